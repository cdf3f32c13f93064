//! `countwheel dev --nodes`: nodes of a cluster to try out, on a PostgreSQL that goes with them.
//!
//! Each node is a process of this program, so that it can be killed. Nothing is left behind: what `dev`
//! started is in process groups of its own, and `dev` ends it. If `dev` itself is killed, its nodes see
//! the end of their standard input and end. So does the keeper, a shell, which then ends the database and
//! removes the directory.

mod database;
mod node;
mod process;

use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;

use countwheel_time::{Clock, SystemClock};
use rustix::process::Signal;
use tokio::runtime::Runtime;
use tokio::time::sleep;

use crate::VERSION;
use crate::config::Dev;
use crate::listen::At;
use crate::server::{StartError, TemporaryDirectory, program, say};
use crate::shutdown::Signals;

use self::database::{Database, Installed, User};
use self::node::Node;
pub(crate) use self::node::end_with_input;
use self::process::Process;

/// How often it is looked at who has ended.
const LOOKED_EVERY: Duration = Duration::from_millis(100);
/// How long nodes may take to stop. Nobody misses what they do not record.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Runs the nodes to their end.
///
/// # Errors
/// [`StartError`] if one of them, or the database, could not start.
pub(crate) fn run(args: &Dev) -> Result<ExitCode, StartError> {
    args.token()?;
    let addresses = addresses(args.listen, args.nodes)?;
    let runtime = Runtime::new()?;
    let result = runtime.block_on(run_on(args, &addresses));
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

async fn run_on(args: &Dev, addresses: &[SocketAddr]) -> Result<ExitCode, StartError> {
    let clock = SystemClock::new();
    let began = clock.now();
    let mut signals = Signals::listen()?;
    let mut trial = tokio::select! {
        trial = Trial::start(args, addresses) => trial?,
        _ = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    let took = clock.now().saturating_since(began).as_millis();
    say(&banner(&trial.nodes, took, args.token.is_some()));
    let code = tokio::select! {
        (name, _) = signals.next() => {
            tracing::info!(cause = name, "stopping the nodes, and the database");
            ExitCode::SUCCESS
        }
        () = trial.fails() => ExitCode::FAILURE,
    };
    // What is left then is ended, and removed, as it is dropped.
    Ok(tokio::select! {
        () = trial.stop() => code,
        (name, code) = signals.next() => {
            tracing::warn!("{name} again: not waiting any longer");
            ExitCode::from(u8::try_from(code).unwrap_or(1))
        }
    })
}

/// Where the nodes listen: on ports that follow each other, or each on any free one.
fn addresses(first: SocketAddr, nodes: u16) -> Result<Vec<SocketAddr>, StartError> {
    let port = |at: u16| match first.port() {
        0 => Some(0),
        port => port.checked_add(at),
    };
    let address = |at| port(at).map(|port| SocketAddr::new(first.ip(), port));
    let addresses: Option<Vec<_>> = (0..nodes).map(address).collect();
    addresses.ok_or(StartError::Ports {
        listen: first,
        nodes,
    })
}

/// What runs. It is ended in this order: the keeper is there until there is nothing to keep.
struct Trial {
    nodes: Vec<Node>,
    database: Database,
    _directory: TemporaryDirectory,
    _keeper: Process,
}

impl Trial {
    async fn start(args: &Dev, addresses: &[SocketAddr]) -> Result<Self, StartError> {
        // Before anything is made: a port that is taken is the likeliest mistake.
        for &listen in addresses {
            TcpListener::bind(listen).map_err(|source| {
                let listen = At::Tcp(listen);
                StartError::Listen { listen, source }
            })?;
        }
        let installed = Installed::find()?;
        let user = User::of_database()?;
        let directory = TemporaryDirectory::new()?;
        user.own(directory.path())?;
        let keeper = database::keeper(directory.path(), &user)?;
        let database = Database::start(installed, user, directory.path()).await?;
        let names = 'a'..='z';
        let nodes = names.zip(addresses);
        let nodes = nodes.map(|(name, listen)| Node::start(name, *listen, &database.url, args));
        let mut nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        for node in &mut nodes {
            node.ready().await?;
        }
        Ok(Self {
            nodes,
            database,
            _directory: directory,
            _keeper: keeper,
        })
    }

    /// Waits until nothing works any more. One node fewer is what this is for.
    async fn fails(&mut self) {
        loop {
            sleep(LOOKED_EVERY).await;
            if let Some(status) = self.database.process.ended() {
                tracing::error!(%status, "the database ended: stopping");
                return;
            }
            self.nodes.retain_mut(|node| {
                let ended = node.process.ended();
                if let Some(status) = ended {
                    let node = node.name.to_string();
                    tracing::warn!(node, %status, "a node ended: the others take its shards");
                }
                ended.is_none()
            });
            if self.nodes.is_empty() {
                tracing::error!("no node is left: stopping");
                return;
            }
        }
    }

    /// Stops the nodes: each records what ran, as far as it can.
    async fn stop(&mut self) {
        for node in &self.nodes {
            node.process.signal(Signal::TERM);
        }
        let stopped = async {
            while !self.nodes.is_empty() {
                self.nodes.retain_mut(|node| node.process.ended().is_none());
                sleep(LOOKED_EVERY).await;
            }
        };
        if tokio::time::timeout(STOP_WITHIN, stopped).await.is_err() {
            tracing::warn!("a node does not stop: it is killed");
        }
    }
}

/// What is said when all nodes are ready.
fn banner(nodes: &[Node], took_ms: u128, with_token: bool) -> String {
    let token = if with_token { "as set" } else { "not needed" };
    let line = |node: &Node| {
        let (name, at, pid) = (node.name, &node.url, node.process.id());
        format!("node {name}     {at}/    pid {pid}\n")
    };
    let lines: String = nodes.iter().map(line).collect();
    let (program, count) = (program(), nodes.len());
    let [first, .., last] = nodes else {
        return lines;
    };
    let (first, last, pid) = (&first.url, &last.url, last.process.id());
    format!(
        "countwheel {VERSION}, for development: {count} nodes on a PostgreSQL; timers vanish when \
         this ends, and may be sent to this machine\n\
         \n\
         {lines}\
         \n\
         Each has the api under /v1 (token: {token}), the dashboard under / and the receiver under \
         /echo.\n\
         \n\
         ready in {took_ms} ms. Try: {program} set order-42 --in 20s --post {first}/echo --server {last}\n\
         then kill -9 {pid}, and see who has its shards: \
         {program} cluster status --server {first}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn ports_follow_each_other_or_are_any() {
        let ports = |listen, nodes| {
            let addresses = addresses(at(listen), nodes).ok()?;
            Some(addresses.iter().map(SocketAddr::port).collect::<Vec<_>>())
        };
        assert_eq!(ports("127.0.0.1:7070", 3), Some(vec![7070, 7071, 7072]));
        assert_eq!(ports("[::1]:0", 2), Some(vec![0, 0]));
        assert_eq!(ports("127.0.0.1:65534", 2), Some(vec![65534, 65535]));
        assert_eq!(ports("127.0.0.1:65534", 3), None);
    }
}
