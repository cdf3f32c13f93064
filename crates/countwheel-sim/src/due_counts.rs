//! The counts by due time beside a full count of the store.

use std::time::Duration;

use countwheel_durable::store::{DueScan, Shard, Store};
use countwheel_durable::{DueClock, Engine, StateKind};
use countwheel_time::Timestamp;

/// The buckets of delays are no further from where the wall clock shows them, in microseconds.
const DRIFT_MAX: u64 = 1_000_000;

/// Compares each count with what the store holds between its edges, if the engine says that it has counted all. Says
/// how many timers that were; `None` if it does not say so.
///
/// # Errors
/// The first count that differs.
pub fn check(engine: &Engine, store: &dyn Store, shard: Shard) -> Result<Option<u64>, String> {
    let told = engine.due_counts();
    if !told.exact {
        return Ok(None);
    }
    let (drift, _) = told.drift_micros;
    if drift.unsigned_abs() > DRIFT_MAX {
        return Err(format!("delays are far from where they are: {told:?}"));
    }
    let delays_at = i128::from(engine.stats().line_skew_micros) - i128::from(drift);
    let mut found = Vec::new();
    for clock in DueClock::ALL {
        let page = store.due(shard, &DueScan::all(clock));
        for entry in page.map_err(|error| error.to_string())?.entries {
            let kind = match entry.kind {
                Some(kind) => Some(kind),
                None => {
                    let record = store.get(shard, &entry.name);
                    let record = record.map_err(|error| error.to_string())?;
                    record.map(|record| record.state.kind())
                }
            };
            if kind == Some(StateKind::Pending) {
                let at = i128::from(entry.wake.at.as_micros());
                let at = match clock {
                    DueClock::Wall => at,
                    DueClock::Boot => (at + delays_at).clamp(0, i128::from(u64::MAX)),
                };
                found.push(at);
            }
        }
    }
    let total = found.len() as u64;
    if told.total() != total {
        return Err(format!("{total} pend, and by due time they are {told:?}"));
    }
    let micros = |at: Timestamp| i128::from(at.as_micros());
    let mut end = Timestamp::EPOCH;
    for bucket in &told.buckets {
        let (from, until) = (micros(bucket.from), micros(bucket.until));
        let within = found.iter().filter(|at| (from..until).contains(at));
        let within = within.count() as u64;
        let is_in_order = bucket.from >= end && bucket.from < bucket.until && bucket.count > 0;
        end = bucket.until;
        if within != bucket.count || !is_in_order {
            return Err(format!("{within} are due in {bucket:?} of {told:?}"));
        }
    }
    Ok(Some(total))
}

/// How far ahead buckets are at most so long. The first is within an hour.
const LONGEST: [(Duration, Duration); 3] = [
    (Duration::from_secs(3_600), Duration::from_secs(1)),
    (Duration::from_secs(86_400), Duration::from_secs(60)),
    (
        Duration::from_secs(365 * 86_400),
        Duration::from_secs(3_600),
    ),
];

/// All buckets are as short as they are to be, once the engine has nothing to do at once.
///
/// # Errors
/// The first that is longer.
pub fn check_lengths(engine: &Engine, wall: Timestamp) -> Result<(), String> {
    let told = engine.due_counts();
    let slack = Duration::from_secs(2);
    let past = told.buckets.first();
    if let Some(past) = past.filter(|it| it.from == Timestamp::EPOCH && it.until > wall + slack) {
        return Err(format!("at {wall:?}, {past:?} goes on ahead"));
    }
    let ahead = told.buckets.iter().filter(|bucket| bucket.from > wall);
    for bucket in ahead {
        let until_then = bucket.from.saturating_since(wall) + slack;
        let longest = LONGEST.iter().find(|(within, _)| until_then < *within);
        let length = bucket.until.saturating_since(bucket.from);
        if let Some((_, longest)) = longest
            && length > *longest
        {
            return Err(format!(
                "at {wall:?}, {bucket:?} is longer than {longest:?}"
            ));
        }
    }
    Ok(())
}
