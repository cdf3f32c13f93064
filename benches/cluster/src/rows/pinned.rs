//! The engine under load while a transaction keeps an old snapshot, and peers beside it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use countwheel_durable::store::Shard;
use countwheel_durable::{DrainMode, Shards, TimerName};
use countwheel_postgres::PostgresStore;

use crate::load::{Engine, Kind, Timeline};
use crate::ours::{self, SHARDS};
use crate::peers;
use crate::rows::Row;
use crate::rows::rates::KEPT;
use crate::samples::Goal;
use crate::sql::Connection;
use crate::{Bench, wait};

const STUCK: &str = "stuck";
/// What only the statement of a page of what is due has, and only that of many names.
const DUE: &str = "ORDER BY wake, revision LIMIT";
const NAMES: &str = "WITH ORDINALITY AS n(hash, i)";
/// So long the server writes down what statements read.
const EXPLAINED: Duration = Duration::from_secs(3);

pub(crate) fn measure(bench: &mut Bench) -> anyhow::Result<()> {
    let seconds = match (bench.arguments.pinned_seconds, bench.arguments.long) {
        (Some(seconds), _) => seconds,
        (None, true) => 600,
        (None, false) => 60,
    };
    // A minute of ten, ten seconds of one.
    let ends = usize::try_from((seconds / 6).clamp(1, 60))?;
    let (first, last) = ours(bench, seconds)?.ends(ends)?;
    add(bench, "the engine", (first, last), Goal::AtLeast(0.75));
    for peer in peers::Peer::OTHERS {
        match peers::pinned(bench, peer, seconds).and_then(|timeline| timeline.ends(ends)) {
            Ok(both) => add(bench, peer.name(), both, Goal::None),
            Err(error) => bench
                .samples
                .not_run(format!("pinned, {}: {error:#}", peer.name())),
        }
    }
    Ok(())
}

fn add(bench: &mut Bench, name: &str, (first, last): (f64, f64), goal: Goal) {
    let row = Row::Pinned;
    bench.add(row, format!("{name}: lives/s first"), Goal::None, first);
    bench.add(row, format!("{name}: lives/s last"), Goal::None, last);
    bench.add(row, format!("{name}: last of first"), goal, last / first);
}

/// Keeps a snapshot of the database of `url` until it is dropped.
pub(crate) fn pin(url: &str) -> anyhow::Result<Connection> {
    let connection = Connection::open(url)?;
    connection.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")?;
    Ok(connection)
}

/// In every second shard one timer stays due from the beginning to the end.
fn ours(bench: &mut Bench, seconds: u64) -> anyhow::Result<Timeline> {
    let options = bench.server.fresh();
    let shards = ours::make(&options, SHARDS)?;
    let store = PostgresStore::open(&options)?;
    let engine = Engine::open(store, shards, KEPT)?;
    let stuck = set_stuck(&engine, shards)?;
    let pinned = pin(&bench.server.url())?;
    let load = engine.load(Kind::Lives);
    let timeline = Timeline::watch(bench.clock, seconds, || load.count(&engine));
    let mut log = explained(bench, || Ok(()))?;
    let ended = load.end().and_then(|()| engine.settle(stuck));
    engine.stop();
    ended?;
    // The next owner reads what is due from the front, and the rest is read as the load needs it.
    log += &explained(bench, || {
        let store = PostgresStore::open(&options)?;
        let engine = Engine::open(store, shards, KEPT)?;
        wait(bench.clock, EXPLAINED);
        engine.stop();
        Ok(())
    })?;
    drop(pinned);
    for (stuck, name) in [(false, "alone"), (true, "with a stuck timer at the front")] {
        let what = format!("buffers of a due page {name}, most");
        let pages = buffers_of(&log, &options.schema, DUE, Some(stuck));
        add_most(bench, what, Goal::AtMost(400.0), &pages)?;
    }
    let reads = buffers_of(&log, &options.schema, NAMES, None);
    let what = "buffers of a read of names, most".to_owned();
    add_most(bench, what, Goal::None, &reads)?;
    Ok(timeline)
}

fn add_most(bench: &mut Bench, what: String, goal: Goal, counts: &[u32]) -> anyhow::Result<()> {
    let most = counts.iter().copied().max();
    let most = most.with_context(|| format!("{what}: nothing was read"))?;
    println!("  of {} reads:", counts.len());
    bench.add(Row::Pinned, what, goal, f64::from(most));
    Ok(())
}

/// Whether a shard has a timer that is stuck. Its partition has the same rest by two.
fn is_stuck(shard: u16) -> bool {
    !shard.is_multiple_of(2)
}

/// Sets a timer in every second shard, and holds their queue before they are due.
fn set_stuck(engine: &Engine, shards: Shards) -> anyhow::Result<u64> {
    const BEFORE: Duration = Duration::from_secs(2);
    let stuck = shards.all().filter(|shard| is_stuck(shard.0));
    let mut left: BTreeSet<Shard> = stuck.collect();
    let count = left.len();
    for number in 0..100_000 {
        let name = TimerName::new(STUCK, format!("timer-{number}"))?;
        if left.remove(&shards.of(&name)) {
            engine.timers.set(name, BEFORE, "")?;
        }
    }
    ensure!(left.is_empty(), "a shard has no timer that is stuck");
    let held = engine.timers.drain(STUCK, DrainMode::Hold)?.left.pending;
    ensure!(
        usize::try_from(held)? == count,
        "of {count} timers {held} are stuck"
    );
    Ok(held)
}

/// What the server's log has of a few seconds in which every statement is explained, and of `meanwhile`.
fn explained(
    bench: &Bench,
    meanwhile: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let before = bench.server.log()?.len();
    bench.configure("auto_explain.log_min_duration = 0")?;
    wait(bench.clock, EXPLAINED);
    let done = meanwhile();
    bench.configure("auto_explain.log_min_duration = -1")?;
    done?;
    let mut log = bench.server.log()?;
    Ok(log.split_off(before))
}

/// How many buffers each statement of the schema read that has `words`: of all, or of those that found
/// their shard in a partition with stuck timers, or without.
fn buffers_of(log: &str, schema: &str, words: &str, stuck: Option<bool>) -> Vec<u32> {
    let plans = log.split("Query Text: ").skip(1);
    let wanted = plans.filter(|plan| {
        let query = plan.split("\n\t").next().unwrap_or_default();
        let is_stuck = partition(plan).map(is_stuck);
        query.contains(&format!("\"{schema}\".timer"))
            && query.contains(words)
            && (stuck.is_none() || is_stuck == stuck)
    });
    wanted.filter_map(buffers).collect()
}

fn partition(plan: &str) -> Option<u16> {
    let (_, rest) = plan.split_once(" on timer_")?;
    let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// The sum of the first line of buffers: that of the whole plan.
fn buffers(plan: &str) -> Option<u32> {
    let line = plan
        .lines()
        .find_map(|line| line.trim().strip_prefix("Buffers: shared "))?;
    let words = line.split_whitespace();
    let counts = words.filter_map(|word| {
        let (what, count) = word.split_once('=')?;
        ["hit", "read"]
            .contains(&what)
            .then(|| count.parse::<u32>().ok())?
    });
    Some(counts.sum::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "2026-01-01 LOG:  duration: 0.1 ms  plan:\n\
        \tQuery Text: SELECT wake FROM \"fresh_1\".timer WHERE shard = $1 ORDER BY wake, revision LIMIT $6\n\
        \tLimit  (cost=0.1) (actual rows=3 loops=1)\n\
        \t  Buffers: shared hit=7 read=2 dirtied=1\n\
        \t  ->  Index Scan using timer_3_shard_clock on timer_3 timer_1 (actual rows=3 loops=1)\n\
        \t        Buffers: shared hit=1\n\
        2026-01-01 LOG:  duration: 0.1 ms  plan:\n\
        \tQuery Text: SELECT queue FROM \"fresh_1\".timer\n\
        \tSeq Scan on timer_3\n\
        \t  Buffers: shared hit=900\n";

    #[test]
    fn the_buffers_of_a_due_page_are_read_from_its_plan() {
        assert_eq!(buffers_of(LOG, "fresh_1", DUE, Some(true)), [9]);
        assert_eq!(buffers_of(LOG, "fresh_1", DUE, None), [9]);
        assert!(buffers_of(LOG, "fresh_1", DUE, Some(false)).is_empty());
        assert!(buffers_of(LOG, "fresh_2", DUE, Some(true)).is_empty());
    }
}
