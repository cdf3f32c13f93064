//! `countwheel endpoint put`, `get`, `list`, `test` and `remove`.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::arguments::{Change, duration, header, limits};
use super::connection::Service;
use super::follow::line;
use super::table::Table;
use super::{Exit, Failure, Terminal};
use crate::client::{EndpointShown, TestedAttempt};
use crate::egress::EgressProxy;
use crate::guard::AllowedTarget;
use crate::time::format_duration;

/// Endpoints: where deliveries go, by name.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Endpoint {
    /// Make an endpoint, or put another in its place: of a file with its JSON, or of options
    Put(Box<Put>),
    /// Show one endpoint
    Get(Named),
    /// Show all endpoints in the order of their names
    List(All),
    /// Send one request to an endpoint now, and show what came of it
    Test(Test),
    /// Remove an endpoint that no timer and no queue names
    Remove(Remove),
}

/// `countwheel endpoint put`.
#[derive(Clone, Debug, clap::Args)]
pub struct Put {
    /// The endpoint's name
    name: String,
    /// Its JSON, as the API takes it; - reads standard input. Secrets and certificates are put so
    #[arg(long, value_name = "FILE", required_unless_present = "url",
          conflicts_with_all = ["url", "headers", "timeout", "concurrency", "per_second", "burst", "allow",
                                "egress_proxy", "http", "disabled"])]
    file: Option<PathBuf>,
    /// Where it is
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Sent with each delivery: 'name: value'
    #[arg(long = "header", value_name = "HEADER", value_parser = header)]
    headers: Vec<(String, String)>,
    /// How long one attempt may take
    #[arg(long, value_name = "D", value_parser = duration)]
    timeout: Option<Duration>,
    /// How many attempts may run at a time
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// How many attempts may start a second
    #[arg(long, value_name = "N")]
    per_second: Option<f64>,
    /// How many of them at once
    #[arg(long, value_name = "N", requires = "per_second")]
    burst: Option<u32>,
    /// Deliver to this place and no other: a range of addresses, an address, a host or a domain, with a port or
    /// without; may be given more than once
    #[arg(long, value_name = "TARGET")]
    allow: Vec<AllowedTarget>,
    /// Deliver through this proxy, as `http://proxy.example:3128`
    #[arg(long, value_name = "URL")]
    egress_proxy: Option<EgressProxy>,
    /// Which HTTP: auto, or 1.1 to keep to that
    #[arg(long, value_name = "VERSION", value_parser = ["auto", "1.1"])]
    http: Option<String>,
    /// Let no attempt start
    #[arg(long)]
    disabled: bool,
    #[command(flatten)]
    change: Change,
    #[command(flatten)]
    asked: Asked,
}

/// Which server, and which form.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Asked {
    #[command(flatten)]
    pub(super) service: Service,
    /// Print the server's JSON, one line for each result
    #[arg(long)]
    pub(super) json: bool,
}

/// One endpoint.
#[derive(Clone, Debug, clap::Args)]
pub struct Named {
    /// The endpoint's name
    name: String,
    #[command(flatten)]
    asked: Asked,
}

/// All endpoints.
#[derive(Clone, Debug, clap::Args)]
pub struct All {
    #[command(flatten)]
    asked: Asked,
}

/// `countwheel endpoint test`.
#[derive(Clone, Debug, clap::Args)]
pub struct Test {
    /// The endpoint's name
    name: String,
    /// The method of the request
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// What follows the endpoint's URL
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// Sent with the request: 'name: value'
    #[arg(long = "header", value_name = "HEADER", value_parser = header)]
    headers: Vec<(String, String)>,
    #[command(flatten)]
    asked: Asked,
}

/// `countwheel endpoint remove`.
#[derive(Clone, Debug, clap::Args)]
pub struct Remove {
    /// The endpoint's name
    name: String,
    /// Only if it has this revision
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
    #[command(flatten)]
    asked: Asked,
}

impl Endpoint {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        match self {
            Self::Put(put) => put.run(terminal).await?,
            Self::Get(Named { name, asked }) => {
                let answer = asked.service.client()?.endpoint(name).await?;
                if asked.json {
                    writeln!(terminal.out, "{}", answer.json())?;
                } else {
                    for line in sheet(&answer.value) {
                        writeln!(terminal.out, "{line}")?;
                    }
                }
            }
            Self::List(All { asked }) => list(asked, terminal).await?,
            Self::Test(test) => return test.run(terminal).await,
            Self::Remove(Remove {
                name,
                if_revision,
                asked,
            }) => {
                let client = asked.service.client()?;
                let answer = client.remove_endpoint(name, *if_revision).await?;
                if asked.json {
                    writeln!(terminal.out, "{}", answer.json())?;
                } else {
                    writeln!(terminal.out, "{}", line("removed", name))?;
                }
            }
        }
        Ok(Exit::Done)
    }
}

impl Test {
    async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let mut body = json!({ "headers": headers(&self.headers) });
        if let Some(method) = &self.method {
            body["method"] = method.clone().into();
        }
        if let Some(path) = &self.path {
            body["path"] = path.clone().into();
        }
        let client = self.asked.service.client()?;
        let answer = client.test_endpoint(&self.name, body.to_string()).await?;
        let TestedAttempt { result, detail, .. } = &answer.value.attempt;
        if self.asked.json {
            writeln!(terminal.out, "{}", answer.json())?;
        } else {
            let words = format!("{}  {result}  {detail}", self.name);
            writeln!(terminal.out, "{}", line("tested", &words))?;
        }
        Ok(Exit::Done)
    }
}

/// Headers as the API takes them.
fn headers(headers: &[(String, String)]) -> Value {
    let headers = headers.iter();
    let headers = headers.map(|(name, value)| (name.clone(), Value::String(value.clone())));
    Value::Object(headers.collect())
}

impl Put {
    async fn run(&self, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
        let body = match &self.file {
            Some(file) => super::arguments::read_file(file)?,
            None => self.body().to_string(),
        };
        let precondition = self.change.precondition();
        let client = self.asked.service.client()?;
        let answer = client.put_endpoint(&self.name, body, precondition).await?;
        if self.asked.json {
            writeln!(terminal.out, "{}", answer.json())?;
        } else {
            let EndpointShown { url, revision, .. } = &answer.value;
            let words = format!("{}  {url}  rev {revision}", self.name);
            writeln!(terminal.out, "{}", line("put", &words))?;
        }
        Ok(())
    }

    fn body(&self) -> Value {
        let mut body = json!({ "url": self.url });
        if !self.headers.is_empty() {
            body["headers"] = headers(&self.headers);
        }
        if let Some(timeout) = self.timeout {
            body["timeout"] = format_duration(timeout).into();
        }
        if !self.allow.is_empty() {
            let places = self.allow.iter().map(ToString::to_string);
            body["allow"] = places.collect::<Vec<_>>().into();
        }
        if let Some(proxy) = &self.egress_proxy {
            body["egress_proxy"] = proxy.to_string().into();
        }
        if let Some(version) = &self.http {
            body["http"] = version.as_str().into();
        }
        if self.disabled {
            body["disabled"] = true.into();
        }
        limits(&mut body, self.concurrency, self.per_second, self.burst);
        body
    }
}

async fn list(asked: &Asked, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let client = asked.service.client()?;
    let mut table = Table::new(["ENDPOINT", "URL", "SECRETS>", "REVISION>", "STATE"]);
    let mut after: Option<String> = None;
    loop {
        let page = client.endpoints(after.as_deref()).await?;
        if asked.json {
            writeln!(terminal.out, "{}", page.json())?;
        }
        for it in &page.value.endpoints {
            table.push([
                it.endpoint.clone(),
                it.url.clone(),
                it.secrets.len().to_string(),
                it.revision.to_string(),
                state(it).to_owned(),
            ]);
        }
        after = page.value.next;
        if after.is_none() {
            break;
        }
    }
    if !asked.json {
        table.write(terminal.out)?;
    }
    Ok(())
}

fn state(endpoint: &EndpointShown) -> &'static str {
    match (&endpoint.fault, endpoint.disabled) {
        (Some(_), _) => "fault",
        (None, true) => "disabled",
        (None, false) => "-",
    }
}

/// An endpoint as a sheet, one property a line.
fn sheet(endpoint: &EndpointShown) -> Vec<String> {
    let mut lines = vec![
        line("endpoint", &endpoint.endpoint),
        line("url", &endpoint.url),
        line("revision", &endpoint.revision.to_string()),
    ];
    let headers = endpoint.headers.iter();
    lines.extend(headers.map(|(name, value)| line("header", &format!("{name}: {value}"))));
    lines.extend(endpoint.timeout.iter().map(|it| line("timeout", it)));
    lines.extend(endpoint.allow.iter().map(|it| line("allow", it)));
    let proxy = endpoint.egress_proxy.iter();
    lines.extend(proxy.map(|it| line("proxy", it)));
    lines.extend(endpoint.http.iter().map(|it| line("http", it)));
    for secret in &endpoint.secrets {
        let words = format!("{}  created {}", secret.id, secret.created);
        lines.push(line("secret", &words));
    }
    if endpoint.disabled {
        let reason = endpoint.disabled_reason.as_deref();
        lines.push(line("disabled", reason.unwrap_or("no attempt starts")));
    }
    lines.extend(endpoint.fault.iter().map(|it| line("fault", it)));
    lines
}
