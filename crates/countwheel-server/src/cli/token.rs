//! `countwheel token create`, `list`, `rotate` and `revoke`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::{Change, Shard, Store as _};
use countwheel_durable::{Changed, SettingsVersion};
use countwheel_time::{Clock, SystemClock};

use super::arguments::duration;
use super::endpoint::Asked;
use super::table::Table;
use super::text::moment;
use super::{Exit, Failure, Terminal};
use crate::api::audit::Audit;
use crate::api::tokens;
use crate::client::{NewToken, TokenMade, TokenShown};
use crate::resources::Catalogue;
use crate::resources::sealed::Vault;
use crate::resources::token::Scope;
use crate::roots;

/// Tokens: what callers show, and what each opens.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Token {
    /// Make a token, and print it: the service does not know it later
    Create(Create),
    /// Show all tokens, without their secrets
    List(List),
    /// Give a token another secret, and print the token
    Rotate(Rotate),
    /// Revoke a token: it opens nothing any more
    Revoke(Revoke),
}

/// `countwheel token create`.
#[derive(Clone, Debug, clap::Args)]
pub struct Create {
    /// What the token is for
    name: String,
    /// What it opens: read, write, deliver, metrics, or admin for everything; may be given more than once
    #[arg(long = "scope", value_name = "SCOPE", required = true, value_delimiter = ',',
          value_parser = PossibleValuesParser::new(Scope::WORDS))]
    scopes: Vec<String>,
    /// The name of a certificate that stands for it, such as dns:worker.example: it has no secret then
    #[arg(long, value_name = "NAME")]
    certificate: Option<String>,
    /// The namespace whose timers, queues and endpoints it opens, and nothing else
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// After how long it opens nothing any more
    #[arg(long, value_name = "D", value_parser = duration)]
    expires_in: Option<Duration>,
    /// Make it in this data directory, which no process has open, in place of asking a server
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    asked: Asked,
}

/// `countwheel token list`.
#[derive(Clone, Debug, clap::Args)]
pub struct List {
    #[command(flatten)]
    asked: Asked,
}

/// `countwheel token rotate`.
#[derive(Clone, Debug, clap::Args)]
pub struct Rotate {
    /// The id of the token
    id: String,
    /// For how long the secret before counts still
    #[arg(long, value_name = "D", value_parser = duration)]
    overlap: Option<Duration>,
    #[command(flatten)]
    asked: Asked,
}

/// `countwheel token revoke`.
#[derive(Clone, Debug, clap::Args)]
pub struct Revoke {
    /// The id of the token
    id: String,
    /// Only if it has this revision
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
    #[command(flatten)]
    asked: Asked,
}

impl Create {
    fn token(&self) -> NewToken {
        let scopes: Vec<&str> = self.scopes.iter().map(String::as_str).collect();
        let mut token = NewToken::new(&self.name, &scopes);
        if let Some(span) = self.expires_in {
            token = token.expires_in(span);
        }
        if let Some(name) = &self.namespace {
            token = token.namespace(name);
        }
        match &self.certificate {
            Some(name) => token.certificate(name),
            None => token,
        }
    }

    /// Makes the token where no service runs: the first one is made so.
    fn make_in(&self, data: &Path, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
        let failed = |why: &dyn fmt::Display| Failure::Data {
            directory: data.display().to_string(),
            why: why.to_string(),
        };
        let store = DiskStore::open_existing(data, DiskOptions::default());
        let store = store.map_err(|error| failed(&error))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let now = clock.timestamp();
        let settings = store.settings(SettingsVersion::default());
        let settings = settings
            .map_err(|error| failed(&error))?
            .unwrap_or_default();
        let catalogue = Catalogue::new(
            Vault::without_key(true),
            Arc::new(roots::of_program()),
            clock,
        );
        catalogue.begin(&settings);
        let body = self.token().to_json().to_string();
        let made = tokens::offline(&catalogue.known(), body.as_bytes(), now);
        let made = made.map_err(|problem| failed(&problem.parts().2))?;
        let owner = store.acquire(Shard::ONLY).map_err(|error| failed(&error))?;
        let changed = Changed::Setting {
            name: made.setting.name.clone(),
            before: None,
            after: Some(SettingsVersion(settings.version().0 + 1)),
        };
        let value = made.setting.value.as_deref().unwrap_or_default();
        let note = Audit::default().by_directory(&made.setting.name, value);
        let entry = note.and_then(|note| note.entry(changed, now, &owner));
        let entry = entry.map(Change::put);
        let changes: Vec<_> = [Change::Setting(made.setting)]
            .into_iter()
            .chain(entry)
            .collect();
        let stored = store.commit(owner.lease, &changes);
        stored.map_err(|error| failed(&error))?;
        let printed = Printed {
            id: made.id.as_str(),
            name: &self.name,
            scopes: &self.scopes,
            token: made.token.as_deref(),
        };
        print(&printed, self.asked.json, terminal)
    }
}

impl Token {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        match self {
            Self::Create(it) => {
                if let Some(data) = &it.data {
                    it.make_in(data, terminal)?;
                } else {
                    let client = it.asked.service.client()?;
                    let made = client.create_token(&it.token()).await?;
                    print(&Printed::of(&made), it.asked.json, terminal)?;
                }
            }
            Self::List(it) => {
                let answer = it.asked.service.client()?.tokens().await?;
                if it.asked.json {
                    writeln!(terminal.out, "{}", answer.json())?;
                } else {
                    let mut table =
                        Table::new(["ID", "NAME", "NAMESPACE", "SCOPES", "CREATED", "EXPIRES"]);
                    answer
                        .value
                        .tokens
                        .iter()
                        .map(row)
                        .for_each(|it| table.push(it));
                    table.write(terminal.out)?;
                }
            }
            Self::Rotate(it) => {
                let client = it.asked.service.client()?;
                let made = client.rotate_token(&it.id, it.overlap).await?;
                print(&Printed::of(&made), it.asked.json, terminal)?;
            }
            Self::Revoke(it) => {
                let client = it.asked.service.client()?;
                let answer = client.revoke_token(&it.id, it.if_revision).await?;
                if it.asked.json {
                    writeln!(terminal.out, "{}", answer.json())?;
                } else {
                    writeln!(terminal.out, "revoked {}", answer.value.id)?;
                }
            }
        }
        Ok(Exit::Done)
    }
}

/// What is printed of a token that was made.
struct Printed<'a> {
    id: &'a str,
    name: &'a str,
    scopes: &'a [String],
    token: Option<&'a str>,
}

impl<'a> Printed<'a> {
    fn of(made: &'a TokenMade) -> Self {
        Self {
            id: &made.shown.id,
            name: &made.shown.name,
            scopes: &made.shown.scopes,
            token: made.token(),
        }
    }
}

/// The token alone on standard output, so that a script takes it, and the rest for whoever reads.
fn print(made: &Printed<'_>, json: bool, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let &Printed {
        id,
        name,
        scopes,
        token,
    } = made;
    if json {
        let mut shown = serde_json::json!({"id": id, "name": name, "scopes": scopes});
        if let Some(token) = token {
            shown["token"] = token.into();
        }
        writeln!(terminal.out, "{shown}")?;
        return Ok(());
    }
    let Some(token) = token else {
        writeln!(terminal.out, "{id}")?;
        return Ok(());
    };
    let scopes = scopes.join(", ");
    writeln!(terminal.out, "{token}")?;
    writeln!(
        terminal.err,
        "token {id} for {name}: {scopes}; it is not shown again"
    )?;
    Ok(())
}

fn row(token: &TokenShown) -> [String; 6] {
    [
        token.id.clone(),
        token.name.clone(),
        token.namespace.clone().unwrap_or_else(|| "-".to_owned()),
        token.scopes.join(","),
        moment(token.created),
        token.expires.map_or_else(|| "never".to_owned(), moment),
    ]
}
