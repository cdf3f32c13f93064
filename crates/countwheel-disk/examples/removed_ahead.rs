//! What timers cost that were set for later and removed again: how late timers of now become while
//! the scheduler looks for what comes next, and how long a turn takes beside its commit.
//! `cargo run --release -p countwheel-disk --example removed_ahead [DIRECTORY [REMOVED [KEPT [SECONDS
//! [SCANNED]]]]]`
//!
//! KEPT timers are due behind those that are removed: with more than twice as many, no merge is worth
//! it for the removed ones alone. SCANNED is how far a turn looks. Cold is with the page cache dropped, which takes root; else it says so.

use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::{
    Change, DuePage, DueScan, Filter, Gaps, Lease, Ownership, Page, QueueCounts, Shard, Store,
    StoreError,
};
use countwheel_durable::{
    Config, Due, Effect, Engine, Event, Outcome, Precondition, Record, Request, RetryPolicy,
    SetOptions, Settings, SettingsVersion, Ticket, TimerName,
};
use countwheel_time::{Clock, SystemClock, Timestamp};

/// So far ahead are those that are removed.
const AHEAD: Duration = Duration::from_secs(36_000);
const BATCH: u64 = 1_024;

/// A store that says how long its commits took.
struct Timed {
    store: DiskStore,
    clock: SystemClock,
    nanos: AtomicU64,
}

impl Store for Timed {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        self.store.acquire(shard)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        let begun = self.clock.now();
        let committed = self.store.commit(lease, changes);
        let took = self.clock.now().saturating_since(begun);
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.store(took, Ordering::Relaxed);
        committed
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.store.settings(after)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.store.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.store.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.store.list(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.store.counts(shard)
    }

    fn gaps(&self) -> Gaps {
        self.store.gaps()
    }
}

/// The greatest and the middle of some durations.
#[derive(Default)]
struct Spread(Vec<Duration>);

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |permille| {
            let last = sorted.len().saturating_sub(1);
            sorted
                .get(last * permille / 1_000)
                .copied()
                .unwrap_or_default()
        };
        write!(
            f,
            "p50 {:.2?}, p99 {:.2?}, max {:.2?}",
            at(500),
            at(990),
            at(1_000)
        )
    }
}

fn name(number: u64) -> Result<TimerName, Box<dyn Error>> {
    // In no order, as keys of orders are.
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Ok(TimerName::new("orders", format!("{mixed:016x}"))?)
}

fn set(name: TimerName, due: Due) -> Request {
    Request::Set {
        name,
        due,
        policy: RetryPolicy::default(),
        payload: vec![7; 100],
        precondition: Precondition::None,
        options: SetOptions::default(),
    }
}

fn remove(name: TimerName) -> Request {
    Request::Remove {
        name,
        precondition: Precondition::None,
        only_pending: false,
    }
}

struct Opened {
    store: Arc<Timed>,
    engine: Engine,
    clock: Arc<SystemClock>,
}

fn open(directory: &Path, max_scanned: usize) -> Result<Opened, Box<dyn Error>> {
    let clock = Arc::new(SystemClock::new());
    let store = Arc::new(Timed {
        store: DiskStore::open(directory, 7, DiskOptions::default())?,
        clock: SystemClock::new(),
        nanos: AtomicU64::new(0),
    });
    let config = Config {
        max_scanned,
        ..Config::default()
    };
    let engine = Engine::open(store.clone(), Shard::ONLY, clock.clone(), config)?;
    Ok(Opened {
        store,
        engine,
        clock,
    })
}

/// Makes requests of all numbers, many in a turn.
fn ask_all(
    engine: &mut Engine,
    numbers: Range<u64>,
    request: impl Fn(TimerName) -> Request,
) -> Result<(), Box<dyn Error>> {
    for first in numbers.clone().step_by(usize::try_from(BATCH)?) {
        let numbers = first..(first + BATCH).min(numbers.end);
        let events =
            numbers.map(|number| Ok(Event::Request(Ticket(number), request(name(number)?))));
        let mut refused = None;
        engine.turn(
            events.collect::<Result<_, Box<dyn Error>>>()?,
            &mut |effect| {
                if let Effect::Answer(_, Err(error)) = effect {
                    refused = Some(error);
                }
            },
        )?;
        refused.map_or(Ok(()), Err)?;
    }
    Ok(())
}

/// Sets a timer each millisecond, due 20 ms later, and measures the turns and how late each starts.
fn fire(
    what: &str,
    Opened {
        store,
        engine,
        clock,
    }: &mut Opened,
    seconds: u64,
) -> Result<(), Box<dyn Error>> {
    let mut commits = Spread::default();
    let (mut turns, mut late) = (Spread::default(), Spread::default());
    let (mut scanned_most, mut set_last, mut number) = (0, Timestamp::EPOCH, 0);
    let mut events = Vec::new();
    let begun = clock.timestamp();
    let end = begun + Duration::from_secs(seconds);
    while clock.timestamp() < end {
        let now = clock.timestamp();
        if now.saturating_since(set_last) >= Duration::from_millis(1) {
            set_last = now;
            number += 1;
            let name = TimerName::new("now", format!("now-{number}"))?;
            let request = set(name, Due::At(now + Duration::from_millis(20)));
            events.push(Event::Request(Ticket(number), request));
        }
        let scanned = engine.stats().scanned;
        let mut next = Vec::new();
        store.nanos.store(0, Ordering::Relaxed);
        let before = clock.now();
        engine.turn(std::mem::take(&mut events), &mut |effect| {
            if let Effect::Start(attempt) = effect {
                // What waited for the restart was late before.
                if attempt.due >= begun {
                    let late_by = clock.timestamp().saturating_since(attempt.due);
                    late.0.push(late_by);
                }
                let outcome = Outcome::done();
                let revision = attempt.revision;
                next.push(Event::Outcome { revision, outcome });
            }
        })?;
        let took = clock.now().saturating_since(before);
        let committed = Duration::from_nanos(store.nanos.load(Ordering::Relaxed));
        turns.0.push(took.saturating_sub(committed));
        commits.0.push(committed);
        scanned_most = scanned_most.max(engine.stats().scanned - scanned);
        events = next;
        let now = clock.timestamp();
        let wake = engine
            .next_wake()
            .unwrap_or(end)
            .min(set_last + Duration::from_millis(1));
        if events.is_empty() && wake > now {
            #[expect(clippy::disallowed_methods, reason = "nothing else wakes it")]
            std::thread::sleep(wake.saturating_since(now));
        }
    }
    println!(
        "{what}: {} turns beside their commits: {turns}; at most {scanned_most} entries looked at in one, {} in all",
        turns.0.len(),
        engine.stats().scanned
    );
    println!("{what}: commits {commits}");
    println!("{what}: {} timers late by {late}", late.0.len());
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args();
    let parent = args.nth(1).map_or_else(std::env::temp_dir, Into::into);
    let mut number = |otherwise| {
        args.next()
            .map_or(Ok(otherwise), |text| text.parse::<u64>())
    };
    let (removed, kept) = (number(5_000)?, number(15_000)?);
    let (seconds, scanned) = (number(1)?, usize::try_from(number(4_096)?)?);
    let directory = tempfile::tempdir_in(parent)?;
    let open = || open(directory.path(), scanned);
    {
        let mut opened = open()?;
        let (engine, clock) = (&mut opened.engine, SystemClock::new());
        let begun = clock.now();
        ask_all(engine, 0..removed, |name| set(name, Due::In(AHEAD)))?;
        let behind = removed..removed + kept;
        ask_all(engine, behind, |name| set(name, Due::In(2 * AHEAD)))?;
        ask_all(engine, 0..removed, remove)?;
        let took = clock.now().saturating_since(begun);
        println!("{removed} set ten hours ahead and removed, {kept} set behind them in {took:.1?}");
        fire("just removed", &mut opened, seconds)?;
    }
    for (what, is_cold) in [("warm", false), ("cold", true)] {
        if is_cold && std::fs::write("/proc/sys/vm/drop_caches", "3").is_err() {
            println!("the page cache cannot be dropped here: as warm as before");
        }
        let clock = SystemClock::new();
        let begun = clock.now();
        let mut opened = open()?;
        let took = clock.now().saturating_since(begun);
        println!("{what}: opened in {took:.2?}");
        fire(what, &mut opened, seconds)?;
    }
    Ok(())
}
