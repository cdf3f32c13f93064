//! The engine with 1 ms more in each round trip, on its four connections.

use std::time::Duration;

use countwheel_postgres::PostgresOptions;
use countwheel_postgres::conformance::Proxy;

use crate::Bench;
use crate::load::Kind;
use crate::ours::{self, SHARDS};
use crate::rows::Row;
use crate::rows::rates::engine;
use crate::samples::Goal;

const EACH_WAY: Duration = Duration::from_micros(500);

pub(crate) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let kinds = [(Kind::Sets, "sets"), (Kind::Lives, "lives")];
    for (kind, what) in kinds {
        let near = bench.server.fresh();
        ours::make(&near, SHARDS)?;
        let near = engine(&near, kind, bench.span())?;
        let (proxy, far) = farther(bench, EACH_WAY)?;
        ours::make(&far, SHARDS)?;
        let far = engine(&far, kind, bench.span())?;
        drop(proxy);
        let row = Row::Trips;
        bench.add(row, format!("{what}/s"), Goal::None, near);
        bench.add(row, format!("{what}/s, 1 ms farther"), Goal::None, far);
        bench.add(
            row,
            format!("{what}: of the near one"),
            Goal::AtLeast(0.7),
            far / near,
        );
    }
    Ok(())
}

/// A schema that is reached by a proxy.
pub(crate) fn farther(
    bench: &Bench,
    each_way: Duration,
) -> anyhow::Result<(Proxy, PostgresOptions)> {
    let proxy = Proxy::start(bench.server.port())?;
    proxy.delay(each_way);
    let mut options = bench.server.fresh();
    options.url = bench.server.url_at(proxy.port());
    Ok((proxy, options))
}
