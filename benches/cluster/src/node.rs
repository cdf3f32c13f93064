//! This program as one node of a cluster, in a process of its own: what the service is made of, without
//! HTTP, and callers of the process beside it. `nodes.rs` starts it, says what is to be done on its
//! standard input, and reads from its standard output what it counts.

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead as _, Write as _};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use countwheel_cluster::{ClusterClock, Node, NodeConfig, NodeHandle, NodeId, NodeRunner};
use countwheel_durable::store::Shard;
use countwheel_durable::{
    Attempt, Completion, Config, Due, Handler, Health, Outcome, TimerName, Timers,
};
use countwheel_peers::{Forwarder, Owners, PeerServer, PeersConfig};
use countwheel_postgres::{PostgresOptions, PostgresStore};
use countwheel_time::{Clock as _, Instant, SystemClock};
use serde::{Deserialize, Serialize};

use crate::load::{AHEAD, request};
use crate::rows::KEPT;
use crate::wait;

/// How often it says what it has counted.
const SAID_EVERY: Duration = Duration::from_millis(20);
/// How long a caller that may set nothing more waits until it looks again.
const LOOKED_EVERY: Duration = Duration::from_millis(5);
/// From the set of a timer that is to live until it is due.
const DUE_AFTER: Duration = Duration::from_millis(100);

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[arg(long)]
    pub(crate) url: String,
    #[arg(long)]
    pub(crate) schema: String,
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) max_in_flight: usize,
    /// How many milliseconds a receiver takes; 0 is a function that returns at once.
    #[arg(long)]
    pub(crate) takes: u64,
}

/// What its callers are to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) kind: Kind,
    pub(crate) names: Names,
    pub(crate) callers: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// Timers that are due a day from now.
    Sets,
    /// Timers that are due a moment after their set.
    Lives,
}

/// Of which shards the timers are that a node is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Names {
    /// As they come.
    Any,
    /// Of those that the node has.
    Own,
    /// Of those that others have.
    Others,
}

/// A line of its standard input.
#[derive(Serialize, Deserialize)]
pub(crate) enum Told {
    /// The callers begin.
    Work(Work),
    /// All callers together may have asked for so many lives.
    Allow(u64),
    /// They end.
    Rest,
}

/// A line of its standard output.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Said {
    /// Shards whose schedulers work here.
    pub(crate) owned: usize,
    /// Sets that its callers asked for, and those that were answered.
    pub(crate) asked_for: u64,
    pub(crate) set: u64,
    /// Lives that ended here.
    pub(crate) done: u64,
    /// Questions that it sent to other nodes.
    pub(crate) sent: u64,
    /// Why the first request was refused that was.
    pub(crate) refused: Option<String>,
}

/// Runs until its standard input ends. Nobody misses what it has not handed over then.
pub(crate) fn run(options: &Options) -> anyhow::Result<Infallible> {
    let machine = SystemClock::new();
    let mut of_store = PostgresOptions::new(&options.url);
    of_store.schema.clone_from(&options.schema);
    let store = PostgresStore::open(&of_store)?;
    let (shards, registry, cluster) = (store.shards(), store.registry(), store.cluster_id());
    let clock = Arc::new(ClusterClock::new(Arc::new(machine)));
    let config = Config {
        max_in_flight: options.max_in_flight,
        catch_up_per_second: u32::MAX,
        keep_done: KEPT,
        ..Config::default()
    };
    let receivers = Receivers::start(machine, Duration::from_millis(options.takes));
    let of_timers = Arc::<ClusterClock>::clone(&clock);
    let timers = Timers::open_divided(store, shards, None, receivers, of_timers, config)?;
    let map = Arc::new(Map::default());
    let started = u128::from(machine.timestamp().as_micros());
    let id = NodeId(started << 64 | u128::from(std::process::id()));
    let (owners, here) = (Arc::<Map>::clone(&map), Arc::new(timers.clone()));
    let config = PeersConfig::new(cluster, id);
    let forwarder = Forwarder::start(config, owners, here, Arc::new(machine))?;
    let server = PeerServer::start((Ipv4Addr::LOCALHOST, 0).into(), &forwarder)?;
    timers.on_elsewhere(Arc::<Forwarder>::clone(&forwarder));
    let node = Node {
        id,
        name: options.name.clone(),
        api: "http://127.0.0.1:0".to_owned(),
        peers: Some(server.address().to_string()),
        weight: 100,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        zones: String::new(),
    };
    let handle = NodeRunner::start(
        timers.clone(),
        Arc::new(registry),
        clock,
        node,
        NodeConfig::default(),
    )?;
    // It is set once.
    let _ = map.0.set(handle);
    let callers = Arc::new(Callers {
        name: options.name.clone(),
        timers: timers.clone(),
        clock: machine,
        rests: AtomicBool::new(false),
        allowed: AtomicU64::new(0),
        taken: AtomicU64::new(0),
        asked_for: AtomicU64::new(0),
        set: AtomicU64::new(0),
        refused: OnceLock::new(),
    });
    let told = Arc::clone(&callers);
    thread::spawn(move || {
        let end = told.listen();
        if let Err(error) = &end {
            eprintln!("a node: {error:#}");
        }
        std::process::exit(i32::from(end.is_err()));
    });
    loop {
        let running = timers.owned();
        let running = running.values().filter(|it| **it == Health::Running);
        let said = Said {
            owned: running.count(),
            asked_for: callers.asked_for.load(Ordering::Relaxed),
            set: callers.set.load(Ordering::Relaxed),
            done: timers.stats().done,
            sent: forwarder.counts().asked,
            refused: callers.refused.get().cloned(),
        };
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &said)?;
        writeln!(out)?;
        out.flush()?;
        drop(out);
        wait(machine, SAID_EVERY);
    }
}

/// The owners of all shards, as the service has them.
#[derive(Default)]
struct Map(OnceLock<NodeHandle>);

impl Owners for Map {
    fn owner(&self, shard: Shard) -> Option<(NodeId, String)> {
        let node = self.0.get()?.owner(shard)?.node;
        Some((node.id, node.peers?))
    }

    fn version(&self) -> u64 {
        let Some(handle) = self.0.get() else {
            return 0;
        };
        let mut hasher = DefaultHasher::new();
        for holding in &handle.view().holdings {
            holding.owner.hash(&mut hasher);
        }
        hasher.finish()
    }

    fn me(&self) -> Option<NodeId> {
        Some(self.0.get()?.me())
    }
}

/// Ends each attempt after the same time, which costs no processor.
struct Receivers {
    clock: SystemClock,
    takes: Duration,
    running: Sender<(Instant, Completion)>,
}

impl Receivers {
    fn start(clock: SystemClock, takes: Duration) -> Self {
        let (running, attempts) = channel::<(Instant, Completion)>();
        thread::spawn(move || {
            // They end in the order in which they began.
            for (until, done) in attempts {
                wait(clock, until.saturating_since(clock.now()));
                done.complete(Outcome::done());
            }
        });
        Self {
            clock,
            takes,
            running,
        }
    }
}

impl Handler for Receivers {
    fn start(&self, _: Attempt, done: Completion) {
        if self.takes.is_zero() {
            done.complete(Outcome::done());
        } else {
            let until = self.clock.now() + self.takes;
            // The thread is there as long as this is.
            self.running.send((until, done)).unwrap_or_default();
        }
    }
}

struct Callers {
    name: String,
    timers: Timers,
    clock: SystemClock,
    rests: AtomicBool,
    allowed: AtomicU64,
    taken: AtomicU64,
    asked_for: AtomicU64,
    set: AtomicU64,
    refused: OnceLock<String>,
}

impl Callers {
    fn listen(self: &Arc<Self>) -> anyhow::Result<()> {
        let mut threads = Vec::new();
        for line in io::stdin().lock().lines() {
            match serde_json::from_str(&line?)? {
                Told::Work(work) => {
                    self.rests.store(false, Ordering::Relaxed);
                    threads.extend((0..work.callers).map(|number| {
                        let callers = Arc::clone(self);
                        thread::spawn(move || callers.call(work, number))
                    }));
                }
                Told::Allow(allowed) => self.allowed.store(allowed, Ordering::Relaxed),
                Told::Rest => {
                    self.rests.store(true, Ordering::Relaxed);
                    for thread in threads.drain(..) {
                        match thread.join() {
                            Ok(called) => called?,
                            Err(_) => bail!("a caller panicked"),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Sets timers until it is to rest.
    fn call(self: &Arc<Self>, work: Work, number: usize) -> anyhow::Result<()> {
        let (send, receive) = channel();
        let (due, ahead) = match work.kind {
            Kind::Sets => (Due::In(Duration::from_secs(86_400)), AHEAD),
            // Those who allow bound it.
            Kind::Lives => (Due::In(DUE_AFTER), usize::MAX),
        };
        let began = self.clock.timestamp().as_micros();
        let mut open = 0;
        let owned = self.timers.owned();
        let is_own = |name: &TimerName| owned.contains_key(&self.timers.shards().of(name));
        let names = (0_u64..).map(|at| {
            let key = format!("{}-{number}-{began}-{at:09}", self.name);
            TimerName::new("bench", key)
        });
        let mut names = names.filter(|name| match (work.names, name) {
            (Names::Any, _) | (_, Err(_)) => true,
            (Names::Own, Ok(name)) => is_own(name),
            (Names::Others, Ok(name)) => !is_own(name),
        });
        loop {
            let name = names.next().context("names do not end")??;
            while work.kind == Kind::Lives && !self.may() {
                if self.rests.load(Ordering::Relaxed) {
                    return Ok(());
                }
                wait(self.clock, LOOKED_EVERY);
            }
            if self.rests.load(Ordering::Relaxed) {
                return Ok(());
            }
            let (callers, send) = (Arc::clone(self), send.clone());
            self.asked_for.fetch_add(1, Ordering::Relaxed);
            self.timers.submit(request(name, due), move |answer| {
                match answer {
                    Ok(_) => {
                        callers.set.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        callers.refused.get_or_init(|| error.to_string());
                    }
                }
                // Nobody listens any more if the caller rests.
                send.send(()).unwrap_or_default();
            });
            open += 1;
            open -= taken(&receive, open, ahead)?;
        }
    }

    /// Whether another life is allowed, which is taken then.
    fn may(&self) -> bool {
        let allowed = self.allowed.load(Ordering::Relaxed);
        let more = |taken: u64| (taken < allowed).then_some(taken + 1);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }
}

/// How many answers came: half of what is open, waited for, once that is too much.
fn taken(receive: &Receiver<()>, open: usize, ahead: usize) -> anyhow::Result<usize> {
    const LIMIT: Duration = Duration::from_secs(60);
    if open < ahead {
        return Ok(receive.try_iter().count());
    }
    for _ in 0..open / 2 {
        receive.recv_timeout(LIMIT)?;
    }
    Ok(open / 2)
}
