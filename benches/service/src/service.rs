//! A service under measurement: ours or a peer, each started on an empty directory.

use std::time::Duration;

use anyhow::Context as _;
use countwheel_time::{Clock as _, SystemClock, Timestamp};
use tokio::task::JoinSet;

use crate::Bench;
use crate::http::Caller;
use crate::peers::{beanstalkd, graphile};
use crate::program::{Process, Program};
use crate::sink::body;

/// How many deliveries a peer may have under way: as many as one queue of ours.
const PLACES: usize = 192;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Candidate {
    Ours,
    Beanstalkd,
    Graphile,
}

impl Candidate {
    pub(crate) const ALL: [Self; 3] = [Self::Ours, Self::Beanstalkd, Self::Graphile];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "countwheel",
            Self::Beanstalkd => "beanstalkd",
            Self::Graphile => "graphile-worker",
        }
    }

    /// Starts it on an empty directory.
    pub(crate) async fn start(self, bench: &Bench) -> anyhow::Result<Service> {
        let place = bench.directory.as_path();
        Ok(match self {
            Self::Ours => Service::Ours(Program::start(&bench.program, place)?),
            Self::Beanstalkd => Service::Beanstalkd({
                let synced = beanstalkd::Synced::EachWrite;
                beanstalkd::Beanstalkd::start(place, synced).await?
            }),
            Self::Graphile => {
                let server = bench.server.as_ref().context("no PostgreSQL was started")?;
                Service::Graphile(graphile::Graphile::start(server, place).await?)
            }
        })
    }
}

/// One that runs.
pub(crate) enum Service {
    Ours(Program),
    Beanstalkd(beanstalkd::Beanstalkd),
    Graphile(graphile::Graphile),
}

/// What delivers beside the service: nothing for ours.
pub(crate) enum Workers {
    None,
    Tasks { _tasks: JoinSet<()> },
    Process { _process: Process },
}

impl Service {
    /// Opens a connection for sets.
    pub(crate) async fn connect(&self) -> anyhow::Result<Setter> {
        Ok(match self {
            Self::Ours(program) => Setter::Ours(Caller::connect(program.port).await?),
            Self::Beanstalkd(server) => Setter::Beanstalkd(server.connect().await?),
            Self::Graphile(tables) => Setter::Graphile(tables.connect().await?),
        })
    }

    /// Whether the service delivers by itself.
    pub(crate) fn delivers(&self) -> bool {
        matches!(self, Self::Ours(_))
    }

    /// Whether delays are whole seconds from the moment of the set.
    pub(crate) fn has_whole_seconds(&self) -> bool {
        matches!(self, Self::Beanstalkd(_))
    }

    /// Starts the workers of a peer, which post to a port.
    pub(crate) async fn work(&self, port: u16) -> anyhow::Result<Workers> {
        Ok(match self {
            Self::Ours(_) => Workers::None,
            Self::Beanstalkd(server) => Workers::Tasks {
                _tasks: server.work(port, PLACES).await?,
            },
            Self::Graphile(tables) => Workers::Process {
                _process: tables.work(port, PLACES)?,
            },
        })
    }
}

/// One timer: its number is its name, and in its body.
#[derive(Clone, Copy)]
pub(crate) struct Timer {
    pub(crate) number: usize,
    pub(crate) due: Timestamp,
    /// Where it goes. The workers of a peer have one place for all.
    pub(crate) port: u16,
}

/// A connection that sets one timer after the other.
pub(crate) enum Setter {
    Ours(Caller),
    Beanstalkd(beanstalkd::Connection),
    Graphile(graphile::Connection),
}

impl Setter {
    /// Sets a timer durably, and returns when the service holds it due.
    pub(crate) async fn set(&mut self, timer: Timer) -> anyhow::Result<Timestamp> {
        let Timer { number, due, port } = timer;
        let body = body(number);
        match self {
            Self::Ours(caller) => {
                let path = format!("/v1/queues/bench/timers/t{number}");
                let set = format!(
                    "{{\"at\":\"{due}\",\"target\":{{\"url\":\"http://127.0.0.1:{port}/\",\
                     \"timeout\":\"15s\"}},\"retry\":{{\"fixed\":\"5s\"}},\"body\":{body}}}"
                );
                caller.send("PUT", &path, &set).await?;
                Ok(due)
            }
            Self::Beanstalkd(connection) => {
                let clock = SystemClock::new();
                let left = due.saturating_since(clock.timestamp()).as_secs_f64();
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a delay is at most hours, and not negative"
                )]
                let delay = left.round() as u64;
                connection.put(delay, &body).await?;
                Ok(clock.timestamp() + Duration::from_secs(delay))
            }
            Self::Graphile(connection) => {
                connection.add(due, &body).await?;
                Ok(due)
            }
        }
    }

    /// How many timers [`set_many`](Self::set_many) takes at best.
    pub(crate) fn batch(&self) -> usize {
        match self {
            Self::Ours(_) | Self::Beanstalkd(_) => 1,
            Self::Graphile(_) => 500,
        }
    }

    /// Sets timers in the fastest way that the service has, and returns their due times.
    pub(crate) async fn set_many(&mut self, timers: &[Timer]) -> anyhow::Result<Vec<Timestamp>> {
        if let Self::Graphile(connection) = self {
            let jobs = timers.iter().map(|timer| (timer.due, body(timer.number)));
            let jobs: Vec<(Timestamp, String)> = jobs.collect();
            connection.add_many(&jobs).await?;
            return Ok(timers.iter().map(|timer| timer.due).collect());
        }
        let mut dues = Vec::new();
        for &timer in timers {
            dues.push(self.set(timer).await?);
        }
        Ok(dues)
    }
}
