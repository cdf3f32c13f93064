//! What tables full of done timers cost: a read looks for a new name in each of them.

use countwheel_postgres::PostgresOptions;

use crate::Bench;
use crate::load::Kind;
use crate::rows::Row;
use crate::rows::rates::{engine, made};
use crate::samples::Goal;

/// How many done timers each of the nine tables has.
const DONE: u64 = 200_000;

pub(crate) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let row = Row::History;
    for (kind, name) in [(Kind::Sets, "sets/s"), (Kind::Lives, "lives/s")] {
        let empty = engine(&made(bench)?, kind, bench.span())?;
        let options = made(bench)?;
        fill(bench, &options)?;
        let full = engine(&options, kind, bench.span())?;
        bench.add(row, format!("{name}, no done timers"), Goal::None, empty);
        bench.add(row, format!("{name}, full tables"), Goal::None, full);
        bench.add(
            row,
            format!("{name}: of that without"),
            Goal::AtLeast(0.9),
            full / empty,
        );
    }
    Ok(())
}

/// Fills each table with done timers that nobody asks for, and that are kept for centuries.
fn fill(bench: &Bench, options: &PostgresOptions) -> anyhow::Result<()> {
    let schema = &options.schema;
    let admin = bench.connect()?;
    admin.run(&format!(
        "INSERT INTO {schema}.done SELECT n, n, (s.slot + 9000000) * m.done_slice \
           - 9223372036854775807 - 1, n % 64, s.slot, gen_random_uuid(), 'bench', 'old-' || n, \
           decode(repeat('07', 120), 'hex'), decode(repeat('07', 100), 'hex') \
         FROM {schema}.meta m, generate_series(0, 8) AS s(slot), generate_series(1, {DONE}) AS n"
    ))?;
    admin.run(&format!("VACUUM ANALYZE {schema}.done"))?;
    admin.run("CHECKPOINT")
}
