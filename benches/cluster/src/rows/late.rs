//! How late timers fire that are due at planned times.

use countwheel_postgres::PostgresStore;

use crate::Bench;
use crate::load::{Engine, quantile};
use crate::ours::{self, SHARDS};
use crate::rows::Row;
use crate::rows::rates::KEPT;
use crate::samples::Goal;

/// Commits that are timed, one after the other.
const COMMITS: u64 = 200;

pub(crate) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let row = Row::Late;
    let options = bench.server.fresh();
    ours::make(&options, SHARDS)?;
    let commit = ours::commit_takes(&PostgresStore::open(&options)?, COMMITS)?;
    let commit = commit.as_secs_f64() * 1_000.0;
    bench.add(row, "ms that a commit takes", Goal::None, commit);
    let half = crate::rows::full_rate(bench)? / 2.0;
    for (name, per_second, most) in [("1,000/s", 1_000.0, 50.0), ("half rate", half, 200.0)] {
        let options = bench.server.fresh();
        let shards = ours::make(&options, SHARDS)?;
        let engine = Engine::open(PostgresStore::open(&options)?, shards, KEPT)?;
        let lateness = engine.pace(per_second, bench.span());
        engine.stop();
        let lateness = lateness?;
        let half_of_all = quantile(&lateness, 0.5)?;
        bench.add(row, format!("{name}: p50, ms"), Goal::None, half_of_all);
        if most < 100.0 {
            bench.add(
                row,
                format!("{name}: p50, commits"),
                Goal::AtMost(2.0),
                half_of_all / commit,
            );
        }
        let nearly_all = quantile(&lateness, 0.99)?;
        bench.add(
            row,
            format!("{name}: p99, ms"),
            Goal::AtMost(most),
            nearly_all,
        );
    }
    Ok(())
}
