//! One node: the program itself, as `serve`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;

use clap::ValueEnum;
use rustix::process::Signal;
use tokio::sync::oneshot;

use crate::config::{Dev, Front, LogFormat};
use crate::server::StartError;
use crate::time::format_duration;

use super::process::Process;

/// A node that was started.
pub(super) struct Node {
    pub(super) name: char,
    pub(super) process: Process,
    /// Where callers reach it, once it is ready.
    pub(super) url: String,
    /// Its first line, which says so.
    line: oneshot::Receiver<String>,
}

impl Node {
    pub(super) fn start(
        name: char,
        listen: SocketAddr,
        store: &str,
        args: &Dev,
    ) -> Result<Self, StartError> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["serve", "--dev-node", "--allow-private-targets"])
            .args(["--lease-ttl", "2s", "--hand-over-grace", "1s"])
            .args(["--shutdown-grace", "1s", "--peer-listen", "127.0.0.1:0"])
            .args(["--node-name", &name.to_string()])
            .args(["--listen", &listen.to_string()])
            .args(passed_on(args))
            // It has a password, and command lines can be read by all.
            .env("COUNTWHEEL_STORE", store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        match &args.token {
            Some(token) => command.env("COUNTWHEEL_TOKEN", token),
            None => command.env_remove("COUNTWHEEL_TOKEN"),
        };
        let mut process = Process::start(&mut command, Signal::KILL)?;
        let (first, line) = oneshot::channel();
        if let Some((printed, logged)) = process.outputs() {
            thread::Builder::new().spawn(move || hear(printed, first))?;
            let prefix = match args.log.log_format {
                LogFormat::Text => format!("[{name}] "),
                LogFormat::Json => String::new(),
            };
            thread::Builder::new().spawn(move || pass_on(logged, &prefix))?;
        }
        Ok(Self {
            name,
            process,
            url: String::new(),
            line,
        })
    }

    /// Waits until it is ready.
    pub(super) async fn ready(&mut self) -> Result<(), StartError> {
        let line = (&mut self.line).await.unwrap_or_default();
        let url = line.strip_prefix("ready ");
        let url = url.and_then(|rest| rest.split(' ').next());
        let url = url.ok_or_else(|| StartError::Program {
            what: format!("node {}", self.name),
            said: "it did not start".to_owned(),
        })?;
        url.clone_into(&mut self.url);
        Ok(())
    }
}

/// The options of `dev` that each node has as well.
fn passed_on(args: &Dev) -> Vec<String> {
    let Front {
        connections,
        connections_per_address,
        event_streams,
        audit_keep,
        audit_timers,
        access_log,
        trusted_proxy,
        cors_origin,
        body_memory,
        payload_ceiling_mib,
        timeout_ceiling,
        open_metrics,
    } = &args.front;
    let format = args.log.log_format.to_possible_value();
    let format = format.map_or(String::new(), |format| format.get_name().to_owned());
    let mut options = vec![
        ("--connections", connections.to_string()),
        (
            "--connections-per-address",
            connections_per_address.to_string(),
        ),
        ("--event-streams", event_streams.to_string()),
        ("--audit-keep", format_duration(*audit_keep)),
        ("--body-memory", body_memory.to_string()),
        ("--payload-ceiling-mib", payload_ceiling_mib.to_string()),
        ("--timeout-ceiling", format_duration(*timeout_ceiling)),
        ("--log-format", format),
        ("--log-level", args.log.log_level.to_string()),
    ];
    let ports = args.allow_port.iter().map(u16::to_string);
    options.extend(ports.map(|port| ("--allow-port", port)));
    let kept = args.keep_answers.to_possible_value();
    let kept = kept.map(|value| value.get_name().to_owned());
    options.extend(kept.map(|kept| ("--keep-answers", kept)));
    let authorities = args.ca_file.iter().map(|file| file.display().to_string());
    options.extend(authorities.map(|file| ("--ca-file", file)));
    let proxy = args.egress_proxy.iter().map(ToString::to_string);
    options.extend(proxy.map(|proxy| ("--egress-proxy", proxy)));
    let proxies = trusted_proxy.iter().map(ToString::to_string);
    options.extend(proxies.map(|proxy| ("--trusted-proxy", proxy)));
    let origins = cors_origin.iter().filter_map(|origin| origin.to_str().ok());
    options.extend(origins.map(|origin| ("--cors-origin", origin.to_owned())));
    let options = options.into_iter();
    let options = options.flat_map(|(name, value)| [name.to_owned(), value]);
    let switches = [
        ("--open-metrics", open_metrics),
        ("--audit-timers", audit_timers),
        ("--access-log", access_log),
    ];
    let switches = switches.into_iter().filter(|(_, is_on)| **is_on);
    options
        .chain(switches.map(|(name, _)| name.to_owned()))
        .collect()
}

/// Says what a node prints first, and reads the rest so that it never waits.
fn hear(printed: impl Read, first: oneshot::Sender<String>) {
    let mut lines = BufReader::new(printed).lines().map_while(Result::ok);
    if let Some(line) = lines.next() {
        // Nobody listens any more if the start was given up.
        first.send(line).unwrap_or_default();
    }
    lines.for_each(drop);
}

/// Writes each line that a node logs, with its name.
fn pass_on(logged: impl Read, prefix: &str) {
    for line in BufReader::new(logged).split(b'\n').map_while(Result::ok) {
        let line = [prefix.as_bytes(), &line, b"\n"].concat();
        // That nobody reads it is no reason to hold the node up.
        io::stderr().write_all(&line).unwrap_or_default();
    }
}

/// Has this process, a node, end with its standard input, which ends when `dev` does in whatever way.
pub(crate) fn end_with_input() {
    thread::spawn(|| {
        let read = io::copy(&mut io::stdin().lock(), &mut io::sink());
        // The database is about to go, so there is nothing to record.
        std::process::exit(i32::from(read.is_err()));
    });
}
