//! `countwheel ack`, `nack` and `extend`.

use std::io::BufRead;
use std::time::Duration;

use serde_json::{Value, json};

use super::arguments::duration;
use super::connection::Service;
use super::follow::line;
use super::{Exit, Failure, Terminal};
use crate::client::{Client, LeaseResult, LeaseTaken, LeaseVerb};
use crate::time::format_duration;

/// How many leases one request names at the most.
const ITEMS_MAX: usize = 1_000;

/// Which lease, or all of standard input.
#[derive(Clone, Debug, clap::Args)]
struct Which {
    /// The queue; - reads lines of JSON, as `lease` prints them, from standard input
    #[arg(value_name = "QUEUE")]
    queue: String,
    /// The timer's key
    #[arg(value_name = "KEY", requires = "lease_token")]
    key: Option<String>,
    /// The token of the lease
    #[arg(value_name = "TOKEN")]
    lease_token: Option<String>,
    /// Print the server's JSON, one line for each lease
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

/// `countwheel ack`.
#[derive(Clone, Debug, clap::Args)]
pub struct Ack {
    #[command(flatten)]
    which: Which,
}

/// `countwheel nack`.
#[derive(Clone, Debug, clap::Args)]
pub struct Nack {
    #[command(flatten)]
    which: Which,
    /// The next attempt is due so long from now; as the timer's retry policy says unless given
    #[arg(long = "in", value_name = "D", value_parser = duration, conflicts_with = "dead")]
    delay: Option<Duration>,
    /// There is no next attempt: the timer is dead
    #[arg(long)]
    dead: bool,
    /// Why, at most 200 bytes
    #[arg(long, value_name = "TEXT")]
    detail: Option<String>,
}

/// `countwheel extend`.
#[derive(Clone, Debug, clap::Args)]
pub struct Extend {
    #[command(flatten)]
    which: Which,
    /// The lease ends so long from now: 1s to 12h
    #[arg(long, value_name = "D", value_parser = duration)]
    lease: Duration,
}

impl Ack {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        self.which
            .settle(LeaseVerb::Ack, &json!({}), terminal)
            .await
    }
}

impl Nack {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let mut more = json!({});
        if let Some(delay) = self.delay {
            more["in"] = format_duration(delay).into();
        }
        if self.dead {
            more["dead"] = true.into();
        }
        if let Some(detail) = &self.detail {
            more["detail"] = json!(detail);
        }
        self.which.settle(LeaseVerb::Nack, &more, terminal).await
    }
}

impl Extend {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let more = json!({ "lease": format_duration(self.lease) });
        self.which.settle(LeaseVerb::Extend, &more, terminal).await
    }
}

impl Which {
    async fn settle(
        &self,
        verb: LeaseVerb,
        more: &Value,
        terminal: &mut Terminal<'_>,
    ) -> Result<Exit, Failure> {
        let client = self.service.client()?;
        let mut exit = Exit::Done;
        match (&self.key, &self.lease_token) {
            (Some(key), Some(token)) => {
                let lease = LeaseTaken::new(&self.queue, key, token);
                self.settle_some(&client, verb, more, &[lease], &mut exit, terminal)
                    .await?;
            }
            _ if self.queue == "-" => {
                let (send, mut receive) = tokio::sync::mpsc::channel(4);
                // Standard input may be a pipe that stays open: what has come is settled at once.
                std::thread::spawn(move || read_lines(&send));
                while let Some(leases) = receive.recv().await {
                    self.settle_some(&client, verb, more, &leases?, &mut exit, terminal)
                        .await?;
                }
            }
            _ => {
                let usage = "a lease is QUEUE KEY TOKEN, or - for lines of JSON on standard input";
                return Err(Failure::Usage(usage.to_owned()));
            }
        }
        Ok(exit)
    }

    async fn settle_some(
        &self,
        client: &Client,
        verb: LeaseVerb,
        more: &Value,
        leases: &[LeaseTaken],
        exit: &mut Exit,
        terminal: &mut Terminal<'_>,
    ) -> Result<(), Failure> {
        for (result, text) in client.settle(verb, leases, more).await? {
            if self.json {
                writeln!(terminal.out, "{text}")?;
            } else if result.is_done() {
                writeln!(terminal.out, "{}", line(verb.done(), &told(&result)))?;
            }
            if !result.is_done() {
                *exit = Exit::Refused;
                let (key, why) = (&result.key, result.refusal());
                writeln!(terminal.err, "countwheel: {key}: {why}")?;
            }
        }
        Ok(())
    }
}

fn told(result: &LeaseResult) -> String {
    let LeaseResult { queue, key, .. } = result;
    let more = match (&result.state, &result.due, &result.leased_until) {
        (Some(state), Some(due), _) => format!("  {state}, due {due}"),
        (Some(state), None, _) => format!("  {state}"),
        (None, _, Some(until)) => format!("  leased until {until}"),
        (None, _, None) => String::new(),
    };
    format!("{queue} {key}{more}")
}

/// Sends the leases of standard input on, as many at a time as have come.
fn read_lines(send: &tokio::sync::mpsc::Sender<Result<Vec<LeaseTaken>, Failure>>) {
    let mut input = std::io::stdin().lock();
    let (mut leases, mut text, mut number) = (Vec::new(), String::new(), 0_u64);
    loop {
        text.clear();
        let read = input.read_line(&mut text);
        number += 1;
        let is_over = match read {
            Ok(0) => true,
            Ok(_) if text.trim().is_empty() => false,
            Ok(_) => match serde_json::from_str(&text) {
                Ok(lease) => {
                    leases.push(lease);
                    false
                }
                Err(error) => {
                    let usage = format!("line {number} of standard input is no lease: {error}");
                    // Those before it are settled.
                    let _ = send.blocking_send(Ok(std::mem::take(&mut leases)));
                    let _ = send.blocking_send(Err(Failure::Usage(usage)));
                    return;
                }
            },
            Err(source) => {
                let path = "-".to_owned();
                let _ = send.blocking_send(Err(Failure::File { path, source }));
                return;
            }
        };
        let waits = send.capacity() == send.max_capacity();
        if !leases.is_empty() && (is_over || waits || leases.len() == ITEMS_MAX) {
            // Nobody listens any more: the command has failed.
            if send.blocking_send(Ok(std::mem::take(&mut leases))).is_err() {
                return;
            }
        }
        if is_over {
            return;
        }
    }
}
