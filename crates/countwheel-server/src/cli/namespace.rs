//! `countwheel namespace put`, `get`, `list` and `remove`.

use super::arguments::Change;
use super::endpoint::Asked;
use super::table::Table;
use super::{Exit, Failure, Terminal};
use crate::client::{NamespaceSettings, NamespaceShown, Quotas};

/// Namespaces: what each may have, and has.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Namespace {
    /// Make a namespace, or replace its settings: a quota that is not given is none
    Put(Put),
    /// Show the quotas of a namespace, and what it has
    Get(Named),
    /// Show the quotas of all namespaces
    List(List),
    /// Remove a namespace in which nothing is
    Remove(Remove),
}

/// `countwheel namespace put`.
#[derive(Clone, Debug, clap::Args)]
pub struct Put {
    /// The namespace's name
    name: String,
    /// How many timers it may have, in all states
    #[arg(long, value_name = "N")]
    timers: Option<u64>,
    /// How many bytes of timers, with their keys
    #[arg(long, value_name = "N")]
    bytes: Option<u64>,
    /// How many queues with timers or settings
    #[arg(long, value_name = "N")]
    queues: Option<u64>,
    /// How many endpoints
    #[arg(long, value_name = "N")]
    endpoints: Option<u64>,
    /// How many connections of callers
    #[arg(long, value_name = "N")]
    connections: Option<u64>,
    /// How many requests a second
    #[arg(long, value_name = "N")]
    per_second: Option<f64>,
    /// How many of them at once
    #[arg(long, value_name = "N", requires = "per_second")]
    burst: Option<u32>,
    /// Note single sets, moves and removals of its timers in the audit log
    #[arg(long)]
    audit_timers: bool,
    #[command(flatten)]
    change: Change,
    #[command(flatten)]
    asked: Asked,
}

/// One namespace.
#[derive(Clone, Debug, clap::Args)]
pub struct Named {
    /// The namespace's name
    name: String,
    #[command(flatten)]
    asked: Asked,
}

/// `countwheel namespace list`.
#[derive(Clone, Debug, clap::Args)]
pub struct List {
    #[command(flatten)]
    asked: Asked,
}

/// `countwheel namespace remove`.
#[derive(Clone, Debug, clap::Args)]
pub struct Remove {
    /// The namespace's name
    name: String,
    /// Only if its quotas have this revision
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
    #[command(flatten)]
    asked: Asked,
}

impl Put {
    fn quotas(&self) -> Quotas {
        let mut quotas = Quotas::default();
        quotas.timers = self.timers;
        quotas.bytes = self.bytes;
        quotas.queues = self.queues;
        quotas.endpoints = self.endpoints;
        quotas.connections = self.connections;
        match self.per_second {
            Some(per_second) => quotas.rate(per_second, self.burst),
            None => quotas,
        }
    }
}

impl Namespace {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        match self {
            Self::Put(it) => {
                let client = it.asked.service.client()?;
                let settings = NamespaceSettings::default().quotas(it.quotas());
                let settings = settings.audit_timers(it.audit_timers);
                let precondition = it.change.precondition();
                let answer = client.put_namespace(&it.name, &settings, precondition);
                let answer = answer.await?;
                if it.asked.json {
                    writeln!(terminal.out, "{}", answer.json())?;
                } else {
                    let revision = answer.value.revision.unwrap_or_default();
                    writeln!(terminal.out, "put {}  rev {revision}", it.name)?;
                }
            }
            Self::Get(it) => {
                let answer = it.asked.service.client()?.namespace(&it.name).await?;
                if it.asked.json {
                    writeln!(terminal.out, "{}", answer.json())?;
                } else {
                    let mut table = Table::new(["", "HAS", "QUOTA"]);
                    rows(&answer.value)
                        .into_iter()
                        .for_each(|it| table.push(it));
                    table.write(terminal.out)?;
                }
            }
            Self::List(it) => {
                let answer = it.asked.service.client()?.namespaces().await?;
                if it.asked.json {
                    writeln!(terminal.out, "{}", answer.json())?;
                } else {
                    let names = [
                        "NAMESPACE",
                        "TIMERS",
                        "BYTES",
                        "QUEUES",
                        "ENDPOINTS",
                        "CONNECTIONS",
                        "RATE",
                    ];
                    let mut table = Table::new(names);
                    for one in &answer.value.namespaces {
                        let Quotas {
                            timers,
                            bytes,
                            queues,
                            endpoints,
                            connections,
                            ..
                        } = one.quotas;
                        let counts = [timers, bytes, queues, endpoints, connections].map(most);
                        let [timers, bytes, queues, endpoints, connections] = counts;
                        let rate = rate(&one.quotas);
                        let name = one.namespace.clone();
                        table.push([name, timers, bytes, queues, endpoints, connections, rate]);
                    }
                    table.write(terminal.out)?;
                }
            }
            Self::Remove(it) => {
                let client = it.asked.service.client()?;
                let answer = client.remove_namespace(&it.name, it.if_revision).await?;
                if it.asked.json {
                    writeln!(terminal.out, "{}", answer.json())?;
                } else {
                    writeln!(terminal.out, "removed {}", answer.value.namespace)?;
                }
            }
        }
        Ok(Exit::Done)
    }
}

fn most(quota: Option<u64>) -> String {
    quota.map_or_else(|| "-".to_owned(), |most| most.to_string())
}

fn rate(quotas: &Quotas) -> String {
    let rate = quotas.rate.map(|rate| format!("{}/s", rate.per_second));
    rate.unwrap_or_else(|| "-".to_owned())
}

/// What one namespace has, and may have.
fn rows(shown: &NamespaceShown) -> Vec<[String; 3]> {
    let (quotas, usage) = (&shown.quotas, shown.usage);
    let row = |name: &str, has: Option<u64>, quota| [name.to_owned(), most(has), most(quota)];
    vec![
        row("timers", usage.map(|it| it.timers), quotas.timers),
        row("bytes", usage.and_then(|it| it.bytes), quotas.bytes),
        row("queues", usage.map(|it| it.queues), quotas.queues),
        row("endpoints", usage.map(|it| it.endpoints), quotas.endpoints),
        row(
            "connections",
            usage.map(|it| it.connections),
            quotas.connections,
        ),
        ["rate".to_owned(), "-".to_owned(), rate(quotas)],
    ]
}
