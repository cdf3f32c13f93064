//! How much larger tables and indexes get by lives that leave nothing behind.

use std::time::Duration;

use countwheel_postgres::{PostgresOptions, PostgresStore};
use countwheel_time::Clock as _;

use crate::Bench;
use crate::load::{Engine, Kind};
use crate::ours::{self, SHARDS};
use crate::rows::Row;
use crate::samples::Goal;
use crate::sql::Connection;

pub(crate) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let (pending, lives): (u64, u64) = match bench.arguments.long {
        true => (1_000_000, 10_000_000),
        false => (100_000, 1_000_000),
    };
    let admin = bench.connect()?;
    let options = bench.server.fresh();
    let shards = ours::make(&options, SHARDS)?;
    let engine = Engine::open(PostgresStore::open(&options)?, shards, Duration::ZERO)?;
    engine.fill(pending)?;
    let heap = bytes(&admin, &options, "pg_relation_size")?;
    let indexes = bytes(&admin, &options, "pg_indexes_size")?;
    let began = bench.clock.now();
    let lived = engine.live(Kind::Lives, lives);
    let took = bench.clock.now().saturating_since(began);
    engine.stop();
    lived?;
    let grown = |function, before| {
        let after = bytes(&admin, &options, function);
        after.map(|after| (after / before - 1.0) * 100.0)
    };
    let (heap, indexes) = (
        grown("pg_relation_size", heap)?,
        grown("pg_indexes_size", indexes)?,
    );
    let of = format!("{lives} lives on {pending} pending");
    bench.add(
        Row::Growth,
        format!("s for {of}"),
        Goal::None,
        took.as_secs_f64(),
    );
    bench.add(
        Row::Growth,
        format!("% more heap by {of}"),
        Goal::AtMost(10.0),
        heap,
    );
    bench.add(
        Row::Growth,
        format!("% more of indexes by {of}"),
        Goal::AtMost(40.0),
        indexes,
    );
    Ok(())
}

fn bytes(admin: &Connection, options: &PostgresOptions, function: &str) -> anyhow::Result<f64> {
    admin.number(&format!(
        "SELECT sum({function}(inhrelid))::float8 FROM pg_inherits \
         WHERE inhparent = '{}.timer'::regclass",
        options.schema
    ))
}
