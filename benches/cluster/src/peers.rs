//! The same of job queues on the same server: adds, whole lives, and what they ask while nothing is due.
//!
//! Each has a database with the jobs that pend, and each measurement a copy of it.

mod node;
mod skip_locked;

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::ensure;
use countwheel_postgres::{PostgresOptions, PostgresStore};
use countwheel_time::Clock as _;

use crate::load::{Engine, Kind, Timeline};
use crate::ours::{self, SHARDS};
use crate::rows::Row;
use crate::samples::Goal;
use crate::{Bench, place, wait};

/// A pending job takes less on the disk, in the mean over all that are loaded, with the copy of one and the log.
const BYTES_A_JOB: u64 = 1_400;
/// A job of a database is due so much later than the one before.
const FAR: &str = "now() + interval '1 day' + n * interval '1 ms'";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peer {
    Ours,
    SkipLocked,
    Graphile,
    PgBoss,
}

/// What is asked of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ask {
    Adds,
    Lives,
}

impl Peer {
    pub(crate) const OTHERS: [Self; 3] = [Self::SkipLocked, Self::Graphile, Self::PgBoss];
    const ALL: [Self; 4] = [Self::Ours, Self::SkipLocked, Self::Graphile, Self::PgBoss];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "countwheel",
            Self::SkipLocked => "skip-locked",
            Self::Graphile => "graphile-worker",
            Self::PgBoss => "pg-boss",
        }
    }

    /// How it adds, as the table says it.
    fn adds_by(self) -> &'static str {
        match self {
            Self::Ours => "set one by one, merged by the engine",
            Self::SkipLocked => "INSERT of 1,000",
            Self::Graphile => "addJobs of 1,000",
            Self::PgBoss => "insert of 1,000",
        }
    }

    /// What becomes of what is done.
    fn leaves(self) -> &'static str {
        match self {
            Self::Ours | Self::PgBoss => "kept as done",
            Self::SkipLocked => "deleted as it is taken",
            Self::Graphile => "deleted",
        }
    }

    fn database(self, pending: u64) -> String {
        format!("{}_{pending}", self.name().replace('-', "_"))
    }

    /// Makes a database with so many jobs that pend.
    fn prepare(self, bench: &Bench, pending: u64) -> anyhow::Result<()> {
        let database = self.database(pending);
        let admin = bench.connect()?;
        admin.run(&format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)"))?;
        admin.run(&format!("CREATE DATABASE {database}"))?;
        let url = bench.url_of(&database);
        match self {
            Self::Ours => {
                let options = PostgresOptions::new(&url);
                let shards = ours::make(&options, SHARDS)?;
                let store = PostgresStore::open(&options)?;
                let engine = Engine::open(store, shards, crate::rows::KEPT)?;
                let filled = engine.fill(pending);
                engine.stop();
                filled?;
            }
            Self::SkipLocked => skip_locked::make(&url)?,
            Self::Graphile | Self::PgBoss => {
                node::ask(bench, self, "make", &url, Duration::ZERO)?;
            }
        }
        let loaded = crate::sql::Connection::open(&url)?;
        if let Some(text) = self.filling(pending) {
            loaded.run(&text)?;
        }
        loaded.run("VACUUM (ANALYZE)")
    }

    /// The same; and how many bytes of the disk each of them takes, with its share of the indexes.
    fn load(self, bench: &Bench, pending: u64) -> anyhow::Result<f64> {
        self.prepare(bench, pending)?;
        let all = bench.connect()?.number(&format!(
            "SELECT (pg_database_size('{}') - pg_database_size('template1'))::float8",
            self.database(pending)
        ))?;
        #[expect(clippy::cast_precision_loss, reason = "a mean")]
        let jobs = pending as f64;
        Ok(all / jobs)
    }

    /// Inserts so many jobs, with the payload that all have.
    fn filling(self, pending: u64) -> Option<String> {
        let json = format!("'{{\"p\":\"{}\"}}'", "x".repeat(ours::PAYLOAD_BYTES - 8));
        let from = format!("FROM generate_series(1, {pending}) AS n");
        match self {
            Self::Ours => None,
            Self::SkipLocked => Some(format!(
                "INSERT INTO job (run_at, payload) SELECT {FAR}, '{}' {from}",
                skip_locked::payload()
            )),
            Self::Graphile => Some(format!(
                "INSERT INTO graphile_worker._private_jobs (task_id, payload, run_at) \
                 SELECT t.id, {json}, {FAR} {from}, graphile_worker._private_tasks t \
                 WHERE t.identifier = 'bench'"
            )),
            Self::PgBoss => Some(format!(
                "INSERT INTO pgboss.job (name, data, start_after) SELECT 'bench', {json}, {FAR} {from}"
            )),
        }
    }

    /// How many jobs were added or done in each second.
    fn timeline(
        self,
        bench: &Bench,
        ask: Ask,
        url: &str,
        seconds: u64,
    ) -> anyhow::Result<Timeline> {
        let span = Duration::from_secs(seconds);
        match (self, ask) {
            (Self::Ours, _) => ours_timeline(bench, ask, url, seconds),
            (Self::SkipLocked, Ask::Adds) => skip_locked::adds(bench.clock, url, span),
            (Self::SkipLocked, Ask::Lives) => skip_locked::lives(bench.clock, url, span),
            (Self::Graphile | Self::PgBoss, Ask::Adds) => node::ask(bench, self, "adds", url, span),
            (Self::Graphile | Self::PgBoss, Ask::Lives) => {
                node::ask(bench, self, "lives", url, span)
            }
        }
    }
}

pub(crate) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    for pending in bench.arguments.pending() {
        if place::free_bytes(&bench.directory)? < pending * BYTES_A_JOB * 4 {
            let what = format!("peers with {pending} pending: the disk has too little room");
            bench.samples.not_run(what);
            continue;
        }
        for peer in Peer::ALL {
            let name = peer.name();
            println!("{pending} pending: loading {name}");
            match peer.load(bench, pending) {
                Ok(bytes) => {
                    let what = format!("{pending} pending, bytes of the disk each: {name}");
                    bench.add(Row::Peers, what, Goal::None, bytes);
                }
                Err(error) => {
                    let what = format!("{name} with {pending} pending: {error:#}");
                    bench.samples.not_run(what);
                }
            }
        }
        for round in 1..=bench.arguments.rounds {
            println!("{pending} pending: round {round}");
            for ask in [Ask::Adds, Ask::Lives] {
                for peer in Peer::ALL {
                    try_rate(bench, peer, ask, pending);
                }
            }
        }
        for peer in Peer::ALL {
            if let Err(error) = idle(bench, peer, pending) {
                let what = format!("{}, idle: {error:#}", peer.name());
                bench.samples.not_run(what);
            }
            drop_database(bench, &peer.database(pending))?;
        }
    }
    Ok(())
}

fn try_rate(bench: &mut Bench, peer: Peer, ask: Ask, pending: u64) {
    let (what, how) = match ask {
        Ask::Adds => ("adds/s", peer.adds_by()),
        Ask::Lives => ("lives/s", peer.leaves()),
    };
    let what = format!("{pending} pending, {what}: {} ({how})", peer.name());
    match rate(bench, peer, ask, pending) {
        Ok(rate) => bench.add(Row::Peers, what, Goal::None, rate),
        Err(error) => bench.samples.not_run(format!("{what}: {error:#}")),
    }
}

/// The mean of the whole seconds after the first.
fn rate(bench: &Bench, peer: Peer, ask: Ask, pending: u64) -> anyhow::Result<f64> {
    let seconds = bench.span().as_secs().max(2) + 1;
    let timeline = on_copy(bench, peer, pending, |url| {
        peer.timeline(bench, ask, url, seconds)
    })?;
    timeline.mean()
}

/// Has something done in a copy of the peer's database.
fn on_copy<T>(
    bench: &Bench,
    peer: Peer,
    pending: u64,
    act: impl FnOnce(&str) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    const COPY: &str = "copy";
    let admin = bench.connect()?;
    drop_database(bench, COPY)?;
    let loaded = peer.database(pending);
    // The copy goes through the log: its pages do not begin as they do after a checkpoint, when each of
    // them is written whole once more.
    admin.run(&format!(
        "CREATE DATABASE {COPY} TEMPLATE {loaded} STRATEGY wal_log"
    ))?;
    let done = act(&bench.url_of(COPY));
    drop_database(bench, COPY)?;
    done
}

fn drop_database(bench: &Bench, name: &str) -> anyhow::Result<()> {
    let admin = bench.connect()?;
    admin.run(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
}

fn ours_timeline(bench: &Bench, ask: Ask, url: &str, seconds: u64) -> anyhow::Result<Timeline> {
    let store = PostgresStore::open(&PostgresOptions::new(url))?;
    let shards = store.shards();
    let engine = Engine::open(store, shards, crate::rows::KEPT)?;
    let kind = match ask {
        Ask::Adds => Kind::Sets,
        Ask::Lives => Kind::LivesAtOnce,
    };
    let load = engine.load(kind);
    let timeline = Timeline::watch(bench.clock, seconds, || load.count(&engine));
    let ended = load.end();
    engine.stop();
    ended?;
    Ok(timeline)
}

/// How many statements a second are done while all jobs are far.
fn idle(bench: &mut Bench, peer: Peer, pending: u64) -> anyhow::Result<()> {
    const STARTS: Duration = Duration::from_secs(3);
    if peer == Peer::SkipLocked {
        return Ok(()); // as many as its caller polls
    }
    let span = bench.span();
    let admin = bench.connect()?;
    admin.run("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")?;
    bench.configure("pg_stat_statements.track = top")?;
    let statements = on_copy(bench, peer, pending, |url| {
        std::thread::scope(|scope| {
            let idler = scope.spawn(|| match peer {
                Peer::Ours => {
                    let store = PostgresStore::open(&PostgresOptions::new(url))?;
                    let shards = store.shards();
                    let engine = Engine::open(store, shards, crate::rows::KEPT)?;
                    wait(bench.clock, STARTS + span);
                    engine.stop();
                    Ok(())
                }
                _ => node::ask(bench, peer, "idle", url, STARTS + span).map(drop),
            });
            wait(bench.clock, STARTS);
            admin.run("SELECT pg_stat_statements_reset()")?;
            let began = bench.clock.now();
            wait(bench.clock, span.saturating_sub(Duration::from_millis(500)));
            let count = admin.number(
                "SELECT coalesce(sum(calls), 0)::float8 FROM pg_stat_statements s \
                 JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = 'copy'",
            )?;
            let passed = bench.clock.now().saturating_since(began);
            let ended = idler.join();
            ensure!(ended.is_ok(), "what was to be idle panicked");
            ended.unwrap_or(Ok(()))?;
            Ok(count / passed.as_secs_f64())
        })
    });
    bench.configure("pg_stat_statements.track = none")?;
    let what = format!("{pending} pending, statements/s idle: {}", peer.name());
    bench.add(Row::Peers, what, Goal::None, statements?);
    Ok(())
}

/// Whole lives under a snapshot that is pinned, with 1e5 jobs that pend.
pub(crate) fn pinned(bench: &Bench, peer: Peer, seconds: u64) -> anyhow::Result<Timeline> {
    const PENDING: u64 = 100_000;
    peer.prepare(bench, PENDING)?;
    let timeline = on_copy(bench, peer, PENDING, |url| {
        let pinned = crate::rows::pin(url)?;
        let timeline = peer.timeline(bench, Ask::Lives, url, seconds);
        drop(pinned);
        timeline
    });
    drop_database(bench, &peer.database(PENDING))?;
    timeline
}

impl Timeline {
    /// Reads a counter once a second.
    pub(crate) fn watch(
        clock: countwheel_time::SystemClock,
        seconds: u64,
        counter: impl Fn() -> u64,
    ) -> Self {
        let began = clock.now();
        let mut before = counter();
        let mut counts = VecDeque::new();
        for second in 1..=seconds {
            let passed = clock.now().saturating_since(began);
            wait(clock, Duration::from_secs(second).saturating_sub(passed));
            let count = counter();
            counts.push_back(crate::rate(count - before, Duration::from_secs(1)));
            before = count;
        }
        Self(counts)
    }

    /// The mean without the first second.
    fn mean(&self) -> anyhow::Result<f64> {
        let count = self.0.len();
        ensure!(count >= 2, "nothing was done after the first second");
        #[expect(clippy::cast_precision_loss, reason = "some seconds")]
        let mean = self.0.iter().skip(1).sum::<f64>() / (count - 1) as f64;
        Ok(mean)
    }
}
