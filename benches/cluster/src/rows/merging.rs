//! Sixteen shards at four lives a turn, on one lane.

use countwheel_postgres::PostgresStore;

use crate::Bench;
use crate::ours::{self, Commits, LIFE, SHARDS};
use crate::rows::Row;
use crate::samples::Goal;

pub(crate) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let rate = |is_merged| {
        let options = bench.server.fresh();
        ours::make(&options, SHARDS)?;
        let commits = Commits {
            lanes: 1,
            shards_a_commit: 16,
            timers_a_shard: 4,
            writes: &LIFE,
            is_merged,
        };
        commits.rate(PostgresStore::open(&options)?, bench.span())
    };
    let (one_each, merged) = (rate(false)?, rate(true)?);
    let row = Row::Merging;
    bench.add(
        row,
        "lives/s by one statement a shard",
        Goal::None,
        one_each,
    );
    bench.add(row, "lives/s by the merged statement", Goal::None, merged);
    bench.add(row, "times as many", Goal::AtLeast(2.5), merged / one_each);
    Ok(())
}
