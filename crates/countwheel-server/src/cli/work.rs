//! `countwheel work`.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::arguments::{duration, queue};
use super::connection::Service;
use super::{Exit, Failure, Terminal, interrupted};
use crate::client::{Client, ClientError, LeaseTaken, LeaseVerb, LeasesAsked};
use crate::time::format_duration;

/// How long one call waits for what comes due.
const WAIT: Duration = Duration::from_secs(20);
/// How long to wait for a server that is away, before the next call.
const AGAIN: Duration = Duration::from_secs(1);
/// How often it is looked at whether a command has ended.
const LOOKS: Duration = Duration::from_millis(20);
/// The most bytes of the reason of a nack.
const DETAIL_MAX_BYTES: usize = 200;

/// `countwheel work`.
#[derive(Clone, Debug, clap::Args)]
pub struct Work {
    /// The queues, of mode pull
    #[arg(required = true, value_name = "QUEUE", value_parser = queue)]
    queues: Vec<String>,
    /// How long a lease lasts that is not extended: 1s to 12h. It is extended while its command runs
    #[arg(long, value_name = "D", value_parser = duration, default_value = "30s")]
    lease: Duration,
    /// How many commands run at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    concurrency: u32,
    /// End after so many timers
    #[arg(long, value_name = "N")]
    max: Option<u32>,
    /// The name of the worker
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    #[command(flatten)]
    service: Service,
    /// Runs once for each timer, with its body on standard input. Exit code 0 acks it, any other nacks it
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A lease as this command needs it.
#[derive(Clone, Debug, serde::Deserialize)]
struct Job {
    #[serde(flatten)]
    lease: LeaseTaken,
    id: String,
    attempt: u32,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    body_base64: Option<String>,
}

impl Job {
    fn body(&self) -> Vec<u8> {
        match (&self.body, &self.body_base64) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(text)) => BASE64_STANDARD.decode(text).unwrap_or_default(),
            (None, None) => Vec::new(),
        }
    }
}

impl Work {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.service.client()?;
        let command: Arc<[OsString]> = self.command.clone().into();
        let mut left = self.max.unwrap_or(u32::MAX);
        let mut running: JoinSet<Option<String>> = JoinSet::new();
        let mut stop = std::pin::pin!(interrupted());
        let mut asking = None;
        loop {
            let busy = u32::try_from(running.len()).unwrap_or(u32::MAX);
            let room = self.concurrency.saturating_sub(busy).min(left);
            if room > 0 && asking.is_none() {
                asking = Some(Box::pin(self.ask(client.clone(), room)));
            }
            if asking.is_none() && running.is_empty() {
                return Ok(Exit::Done);
            }
            // A call is never given up for a command that ends: its leases would be lost.
            let answer = async {
                match &mut asking {
                    Some(asking) => asking.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(ended) = running.join_next() => report(ended, terminal)?,
                answer = answer => {
                    asking = None;
                    match answer {
                        Ok(leases) => for text in leases {
                            let job: Job = serde_json::from_str(text.get()).map_err(|source| {
                                let status = 200;
                                ClientError::Unintelligible { status, source }
                            })?;
                            left = left.saturating_sub(1);
                            let (client, lease) = (client.clone(), self.lease);
                            running.spawn(work(client, job, Arc::clone(&command), lease));
                        },
                        Err(error) if error.is_passing() => {
                            writeln!(terminal.err, "countwheel: {error}; trying again")?;
                            tokio::select! {
                                () = &mut stop => break,
                                () = tokio::time::sleep(AGAIN) => {}
                            }
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        // Ctrl-C has reached the commands as well: their ends count as any other.
        drop(asking);
        while let Some(ended) = running.join_next().await {
            report(ended, terminal)?;
        }
        Ok(Exit::Interrupted)
    }

    async fn ask(
        &self,
        client: Client,
        max: u32,
    ) -> Result<Vec<Box<serde_json::value::RawValue>>, ClientError> {
        let asked = LeasesAsked {
            queues: self.queues.clone(),
            max,
            lease: Some(self.lease),
            wait: WAIT,
            worker: self.worker.clone(),
        };
        Ok(client.lease(&asked).await?.value.leases)
    }
}

fn report(
    ended: Result<Option<String>, tokio::task::JoinError>,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let said = ended.unwrap_or_else(|error| Some(error.to_string()));
    if let Some(said) = said {
        writeln!(terminal.err, "countwheel: {said}")?;
    }
    Ok(())
}

/// Runs the command for one timer, and says what went wrong.
async fn work(
    client: Client,
    job: Job,
    command: Arc<[OsString]>,
    lease: Duration,
) -> Option<String> {
    let taken = job.lease.clone();
    let (kill, killed) = channel();
    let mut running = tokio::task::spawn_blocking(move || execute(&command, &job, &killed));
    let more = json!({ "lease": format_duration(lease) });
    let mut lost = None;
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended,
            () = tokio::time::sleep(lease / 3) => {}
        }
        // A failure that is not a refusal may pass before the lease ends.
        if let Ok(results) = client
            .settle(LeaseVerb::Extend, std::slice::from_ref(&taken), &more)
            .await
            && let Some((result, _)) = results
                .first()
                .filter(|(result, _)| result.code.as_deref() == Some("lease_lost"))
        {
            lost = Some(result.refusal());
            // It may have ended meanwhile.
            let _ = kill.send(());
        }
    };
    let key = &taken.key;
    if let Some(lost) = lost {
        return Some(format!("{key}: {lost}; its command was killed"));
    }
    let failed = match ended {
        Ok(Ok(status)) if status.success() => None,
        Ok(Ok(status)) => Some(status.to_string()),
        Ok(Err(error)) => Some(error.to_string()),
        Err(error) => Some(error.to_string()),
    };
    let (verb, more) = match &failed {
        None => (LeaseVerb::Ack, json!({})),
        Some(why) => (LeaseVerb::Nack, json!({ "detail": detail(why) })),
    };
    let settled = settle(&client, verb, taken.clone(), &more, lease).await;
    match (failed, settled) {
        (None, None) => None,
        (Some(why), None) => Some(format!("{key}: {why}")),
        (None, Some(refused)) => Some(format!("{key}: {refused}")),
        (Some(why), Some(refused)) => Some(format!("{key}: {why}; {refused}")),
    }
}

/// Settles a lease, and says why that was refused. A server that is away is asked again while the lease may last.
async fn settle(
    client: &Client,
    verb: LeaseVerb,
    lease: LeaseTaken,
    more: &Value,
    within: Duration,
) -> Option<String> {
    let leases = [lease];
    let asking = async {
        loop {
            match client.settle(verb, &leases, more).await {
                Ok(results) => {
                    let refused = results.iter().find(|(result, _)| !result.is_done());
                    return refused.map(|(result, _)| result.refusal());
                }
                Err(error) if error.is_passing() => tokio::time::sleep(AGAIN).await,
                Err(error) => return Some(error.to_string()),
            }
        }
    };
    let settled = tokio::time::timeout(within, asking).await;
    settled.unwrap_or_else(|_| Some("the server was not reached before the lease ended".to_owned()))
}

/// As much of a reason as a nack takes.
fn detail(why: &str) -> &str {
    &why[..why.floor_char_boundary(DETAIL_MAX_BYTES)]
}

/// Runs the command to its end, or until it is to be killed. Blocks.
fn execute(command: &[OsString], job: &Job, killed: &Receiver<()>) -> std::io::Result<ExitStatus> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(std::io::Error::other("there is no command"));
    };
    let mut child = Command::new(program)
        .args(arguments)
        .env("COUNTWHEEL_QUEUE", &job.lease.queue)
        .env("COUNTWHEEL_KEY", &job.lease.key)
        .env("COUNTWHEEL_ID", &job.id)
        .env("COUNTWHEEL_LEASE", &job.lease.token)
        .env("COUNTWHEEL_ATTEMPT", job.attempt.to_string())
        .stdin(Stdio::piped())
        // What it starts is killed with it, and an interrupt at the terminal lets it end.
        .process_group(0)
        .spawn()
        .map_err(|error| {
            let program = program.display();
            std::io::Error::new(
                error.kind(),
                format!("{program}: {}", super::reason(&error)),
            )
        })?;
    let (stdin, body) = (child.stdin.take(), job.body());
    std::thread::spawn(move || {
        // A command need not read its input.
        let _ = stdin.map(|mut stdin| stdin.write_all(&body));
    });
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match killed.recv_timeout(LOOKS) {
            Ok(()) => kill_process_group(Pid::from_child(&child), Signal::KILL)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return child.wait(),
        }
    }
}
