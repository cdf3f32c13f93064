//! Sets in batches of 64 whose names are read together, and one at a time, 1 ms farther away.

use std::time::Duration;

use countwheel_durable::Shards;
use countwheel_durable::store::Store;
use countwheel_postgres::PostgresStore;

use crate::Bench;
use crate::load::Engine;
use crate::one_by_one::OneByOne;
use crate::ours;
use crate::rows::Row;
use crate::rows::rates::KEPT;
use crate::rows::trips::farther;
use crate::samples::Goal;

const TOGETHER: usize = 64;

pub(crate) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let together = rate(bench, |store| store)?;
    let one_by_one = rate(bench, OneByOne)?;
    let row = Row::Prefetch;
    bench.add(
        row,
        "sets/s, each name read by itself",
        Goal::None,
        one_by_one,
    );
    bench.add(row, "sets/s, names read together", Goal::None, together);
    bench.add(
        row,
        "times as many",
        Goal::AtLeast(20.0),
        together / one_by_one,
    );
    Ok(())
}

fn rate<S: Store + 'static>(bench: &Bench, wrap: fn(PostgresStore) -> S) -> anyhow::Result<f64> {
    let (proxy, options) = farther(bench, Duration::from_micros(500))?;
    ours::make(&options, 1)?;
    let store = wrap(PostgresStore::open(&options)?);
    let engine = Engine::open(store, Shards::ONE, KEPT)?;
    let rate = engine.batches(TOGETHER, bench.span());
    engine.stop();
    drop(proxy);
    rate
}
