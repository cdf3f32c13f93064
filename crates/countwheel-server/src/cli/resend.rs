//! `countwheel resend`.

use std::time::Duration;

use hyper::Method;

use super::arguments::{IfRevision, duration, header};
use super::connection::Connection;
use super::set::{once_each, report};
use super::{Exit, Failure, Terminal};
use crate::api::timers::method_of;
use crate::client::NewTarget;

/// `countwheel resend`.
#[derive(Clone, Debug, clap::Args)]
pub struct Resend {
    /// The timer's key
    key: String,
    /// To where; its own target, with method, headers and timeout, if none is given
    #[arg(long, value_name = "URL")]
    post: Option<String>,
    /// By another method than POST: GET, HEAD, PUT, PATCH, DELETE, OPTIONS
    #[arg(long, value_name = "METHOD", value_parser = method_of, default_value = "POST",
          hide_default_value = true, requires = "post")]
    method: Method,
    /// Sent with each delivery: 'name: value'
    #[arg(long = "header", value_name = "HEADER", value_parser = header, requires = "post")]
    headers: Vec<(String, String)>,
    /// How long one attempt may take
    #[arg(long, value_name = "D", value_parser = duration, requires = "post")]
    timeout: Option<Duration>,
    #[command(flatten)]
    if_revision: IfRevision,
    #[command(flatten)]
    connection: Connection,
}

impl Resend {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let headers = once_each(&self.headers)?;
        let target = self.post.as_ref().map(|url| NewTarget {
            url: url.clone(),
            method: self.method.clone(),
            headers,
            timeout: self.timeout,
        });
        let (queue, precondition) = (&self.connection.queue, self.if_revision.precondition());
        let client = self.connection.client()?;
        let answer = client
            .resend(queue, &self.key, target.as_ref(), precondition)
            .await?;
        if self.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
        } else {
            report("resent", &self.key, &answer.value, terminal)?;
        }
        Ok(Exit::Done)
    }
}
