//! The log that a life takes, and how many of its claims change no index.

use std::time::Duration;

use anyhow::ensure;
use countwheel_postgres::{PostgresOptions, PostgresStore};
use countwheel_time::Clock as _;

use crate::load::{Engine, Kind};
use crate::ours::{self, SHARDS};
use crate::rows::Row;
use crate::rows::rates::KEPT;
use crate::samples::Goal;
use crate::sql::Connection;
use crate::{Bench, wait};

const LIVES: u64 = 20_000;
/// So long a session may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

pub(crate) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let row = Row::Wal;
    let admin = bench.connect()?;
    admin.run("CREATE EXTENSION IF NOT EXISTS pg_walinspect")?;
    // What is removed with its outcome is updated once: by its claim.
    for (name, keep_done, most) in [
        ("without history", Duration::ZERO, 1.4),
        ("with history", KEPT, 1.9),
    ] {
        let options = bench.server.fresh();
        let shards = ours::make(&options, SHARDS)?;
        let engine = Engine::open(PostgresStore::open(&options)?, shards, keep_done)?;
        engine.live(Kind::Lives, LIVES / 10)?;
        engine.settle(0)?;
        let (before, done) = (position(&admin)?, engine.done());
        let lived = engine.live(Kind::Lives, LIVES);
        let lived = lived.and_then(|()| engine.settle(0));
        let lives = crate::rate(engine.done() - done, Duration::from_secs(1));
        engine.stop();
        lived?;
        let kilobytes = |column| log(&admin, &before, column).map(|bytes| bytes / lives / 1_000.0);
        let (records, images) = (kilobytes("record_size")?, kilobytes("fpi_size")?);
        bench.add(
            row,
            format!("KB of log a life {name}"),
            Goal::AtMost(most),
            records,
        );
        bench.add(
            row,
            format!("KB of full-page images a life {name}"),
            Goal::None,
            images,
        );
        if !keep_done.is_zero() {
            let bytes = of_done(&admin, &options)?;
            let what = "bytes of a done timer, with its indexes";
            bench.add(row, what, Goal::None, bytes);
        }
        if keep_done.is_zero() {
            let (share, claims) = heap_only(bench, &admin, &options)?;
            bench.add(row, "% of claims heap-only", Goal::AtLeast(80.0), share);
            bench.add(
                row,
                "claims a life that are a write of their own",
                Goal::None,
                claims,
            );
        }
    }
    Ok(())
}

fn position(admin: &Connection) -> anyhow::Result<String> {
    admin.text("SELECT pg_current_wal_insert_lsn()::text")
}

fn log(admin: &Connection, from: &str, column: &str) -> anyhow::Result<f64> {
    admin.number(&format!(
        "SELECT sum({column})::float8 FROM \
         pg_get_wal_stats('{from}', pg_current_wal_flush_lsn())"
    ))
}

fn of_done(admin: &Connection, options: &PostgresOptions) -> anyhow::Result<f64> {
    let schema = &options.schema;
    let bytes = admin.number(&format!(
        "SELECT sum(pg_total_relation_size(inhrelid))::float8 FROM pg_inherits \
         WHERE inhparent = '{schema}.done'::regclass"
    ))?;
    let count = admin.number(&format!("SELECT count(*)::float8 FROM {schema}.done"))?;
    Ok(bytes / count)
}

/// How many claims in a hundred changed no index, and how many updates each insert had. Sessions tell
/// their counts at the latest when they end.
fn heap_only(
    bench: &Bench,
    admin: &Connection,
    options: &PostgresOptions,
) -> anyhow::Result<(f64, f64)> {
    let sessions = "SELECT count(*)::float8 FROM pg_stat_activity \
                    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let clock = bench.clock;
    let until = clock.now() + ENDS_WITHIN;
    while admin.number(sessions)? > 0.0 {
        ensure!(clock.now() < until, "a session of the store does not end");
        wait(clock, Duration::from_millis(20));
    }
    let counts = |column| {
        admin.number(&format!(
            "SELECT sum({column})::float8 FROM pg_stat_user_tables \
             WHERE schemaname = '{}' AND relname LIKE 'timer\\_%'",
            options.schema
        ))
    };
    let (heap_only, all) = (counts("n_tup_hot_upd")?, counts("n_tup_upd")?);
    ensure!(all > 0.0, "no claim was counted");
    Ok((heap_only / all * 100.0, all / counts("n_tup_ins")?))
}
