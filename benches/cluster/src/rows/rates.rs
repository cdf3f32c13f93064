//! How many sets and whole lives a second the engine does, and the store without an engine.

use std::time::Duration;

use countwheel_postgres::conformance::Mistake;
use countwheel_postgres::{PostgresOptions, PostgresStore};

use crate::Bench;
use crate::load::{Engine, Kind};
use crate::ours::{self, Commits, LIFE, SHARDS, Write};
use crate::rows::Row;
use crate::samples::Goal;

/// How long done timers are kept: longer than anything is measured.
pub(crate) const KEPT: Duration = Duration::from_secs(86_400);

const LIVES: &str = "lives/s by the engine, kept as done";

pub(crate) fn sets(bench: &mut Bench) -> anyhow::Result<()> {
    let commits = Commits::full(&[Write::Set]);
    let span = bench.span();
    let options = made(bench)?;
    let store = PostgresStore::open_with(&options, Mistake::NoFence)?;
    let unfenced = commits.rate(store, span)?;
    let fenced = commits.rate(PostgresStore::open(&made(bench)?)?, span)?;
    let engine = engine(&made(bench)?, Kind::Sets, span)?;
    let row = Row::Sets;
    bench.add(
        row,
        "sets/s by the statement without its fence",
        Goal::None,
        unfenced,
    );
    bench.add(row, "sets/s by the merged statement", Goal::None, fenced);
    bench.add(
        row,
        "of that without a fence",
        Goal::AtLeast(0.85),
        fenced / unfenced,
    );
    bench.add(row, "sets/s by the engine", Goal::AtLeast(35_000.0), engine);
    bench.add(
        row,
        "of the merged statement",
        Goal::AtLeast(0.7),
        engine / fenced,
    );
    Ok(())
}

pub(crate) fn lives(bench: &mut Bench) -> anyhow::Result<()> {
    let store = PostgresStore::open(&made(bench)?)?;
    let bare = Commits::full(&LIFE).rate(store, bench.span())?;
    let at_once = engine(&made(bench)?, Kind::LivesAtOnce, bench.span())?;
    let engine = engine(&made(bench)?, Kind::Lives, bench.span())?;
    let row = Row::Lives;
    bench.add(row, "lives/s by the merged statement", Goal::None, bare);
    bench.add(
        row,
        "lives/s by the engine, due at once: claimed with their set",
        Goal::None,
        at_once,
    );
    bench.add(row, LIVES, Goal::AtLeast(25_000.0), engine);
    bench.add(
        row,
        "of the merged statement",
        Goal::AtLeast(0.7),
        engine / bare,
    );
    Ok(())
}

/// How many lives a second the engine does, as far as this run has measured it.
pub(crate) fn full_rate(bench: &Bench) -> anyhow::Result<f64> {
    match bench.samples.median(Row::Lives, LIVES) {
        Some(rate) => Ok(rate),
        None => engine(&made(bench)?, Kind::Lives, bench.span()),
    }
}

pub(crate) fn made(bench: &Bench) -> anyhow::Result<PostgresOptions> {
    let options = bench.server.fresh();
    ours::make(&options, SHARDS)?;
    Ok(options)
}

pub(crate) fn engine(options: &PostgresOptions, kind: Kind, span: Duration) -> anyhow::Result<f64> {
    let store = PostgresStore::open(options)?;
    let shards = store.shards();
    let engine = Engine::open(store, shards, KEPT)?;
    let rate = engine.rate(kind, span);
    engine.stop();
    rate
}
