//! What very many queues cost: how long commits, lists and overviews take while every timer has a
//! queue of its own, and while segments of the log are flushed. `cargo run --release -p
//! countwheel-disk --example many_queues [DIRECTORY [TIMERS [many|one|whole [RATE]]]]`
//!
//! With `one`, all timers are in one queue, for comparison. With `whole`, each segment begins with the
//! counts of all queues, as it was before there were pieces. RATE is how many timers a second are set; 0
//! is as many as the store takes: then commits wait for what is flushed.

use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::{Before, Change, Filter, Lease, Shard, Store};
use countwheel_durable::{
    DueClock, Missed, QueueName, Record, RetryPolicy, Revision, State, StateKind, TimerId,
    TimerName,
};
use countwheel_time::{Clock, SystemClock, Timestamp};

/// Records of a commit: about what a busy service has in a turn.
const BATCH: u64 = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Many,
    One,
    Whole,
}

/// Some durations.
#[derive(Default)]
struct Spread(Vec<Duration>);

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        let at = |permille| sorted.get(last * permille / 1_000).copied();
        let at = |permille| at(permille).unwrap_or_default();
        let (p50, p99, max) = (at(500), at(990), at(1_000));
        write!(f, "p50 {p50:.2?}, p99 {p99:.2?}, max {max:.2?}")
    }
}

fn queue(number: u64) -> Result<QueueName, Box<dyn Error>> {
    // In no order, as the names of customers are.
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Ok(QueueName::new(format!("customer-{mixed:016x}"))?)
}

fn record(number: u64, revision: u64, mode: Mode) -> Result<Record, Box<dyn Error>> {
    let key = format!("close-{number}");
    let name = match mode {
        Mode::One => TimerName::new("customers", key)?,
        Mode::Many | Mode::Whole => TimerName::new(queue(number)?.as_str(), key)?,
    };
    let due = Timestamp::from_micros(1_900_000_000_000_000 + number);
    Ok(Record {
        name,
        id: TimerId {
            store: 7,
            set: Revision(revision),
        },
        revision: Revision(revision),
        state: State::Pending,
        created: Timestamp::from_micros(1),
        due,
        clock: DueClock::Wall,
        missed: Missed::Fire,
        recurring: None,
        first_due: due,
        policy: RetryPolicy::default(),
        failures: 0,
        interruptions: 0,
        attempt: 0,
        attempts: Vec::new(),
        payload: vec![7; 100],
    })
}

struct Bench<'a> {
    store: &'a DiskStore,
    clock: SystemClock,
    lease: Lease,
    revision: u64,
    mode: Mode,
    rate: u64,
}

impl Bench<'_> {
    fn timed<T>(&self, spread: &mut Spread, f: impl FnOnce() -> T) -> T {
        let begun = self.clock.now();
        let made = f();
        spread.0.push(self.clock.now().saturating_since(begun));
        made
    }

    /// Sets timers; `before` is what is there of each.
    fn commit(
        &mut self,
        numbers: Range<u64>,
        before: Before,
        spread: &mut Spread,
    ) -> Result<(), Box<dyn Error>> {
        let begun = self.clock.now();
        let first = numbers.start;
        let mut at = first;
        while at < numbers.end {
            let mut changes = Vec::new();
            for number in at..(at + BATCH).min(numbers.end) {
                self.revision += 1;
                let record = Box::new(record(number, self.revision, self.mode)?);
                changes.push(Change::Put { record, before });
            }
            let (store, lease) = (self.store, self.lease);
            self.timed(spread, || store.commit(lease, &changes))?;
            at += BATCH;
            let due = ((at - first) * 1_000_000).checked_div(self.rate);
            let due = Duration::from_micros(due.unwrap_or(0));
            let passed = self.clock.now().saturating_since(begun);
            #[expect(clippy::disallowed_methods, reason = "it measures what is real")]
            thread::sleep(due.saturating_sub(passed));
        }
        Ok(())
    }
}

fn run(directory: &Path, queues: u64, mode: Mode, rate: u64) -> Result<(), Box<dyn Error>> {
    let mut options = DiskOptions::default();
    if mode == Mode::Whole {
        options.log.counts_whole = usize::MAX;
    }
    let clock = SystemClock::new();
    let store = DiskStore::open(directory, 7, options)?;
    let lease = store.acquire(Shard::ONLY)?.lease;
    let mut bench = Bench {
        store: &store,
        clock: SystemClock::new(),
        lease,
        revision: 0,
        mode,
        rate,
    };
    let mut commits = Spread::default();
    bench.commit(0..queues, Before::Absent, &mut commits)?;
    println!("{queues} timers set, commits of {BATCH}: {commits}");
    let mut commits = Spread::default();
    let there = Before::Present(StateKind::Pending);
    bench.commit(0..queues, there, &mut commits)?;
    println!("each set again:          {commits}");

    // Somebody lists all the time, and somebody looks at the whole, while commits go on.
    let is_over = AtomicBool::new(false);
    let (commits, lists, overviews) = thread::scope(|scope| {
        let reading = scope.spawn(|| -> Result<_, String> {
            let text = |error: &dyn std::fmt::Display| error.to_string();
            let (mut lists, mut overviews) = (Spread::default(), Spread::default());
            let mut number = 1;
            while !is_over.load(Ordering::Relaxed) {
                number = (number * 7 + 3) % queues;
                let queue = queue(number).map_err(|error| text(&error))?;
                let begun = clock.now();
                let page = store.list(Shard::ONLY, &Filter::queue(queue.clone()));
                lists.0.push(clock.now().saturating_since(begun));
                page.map_err(|error| text(&error))?;
                let begun = clock.now();
                let summary = store.summary(Shard::ONLY, &[queue], 1_000);
                overviews.0.push(clock.now().saturating_since(begun));
                summary.map_err(|error| text(&error))?;
            }
            Ok((lists, overviews))
        });
        let mut commits = Spread::default();
        let committed = bench.commit(0..queues / 2, there, &mut commits);
        is_over.store(true, Ordering::Relaxed);
        let read = reading.join().map_err(|_| "the reader panicked".to_owned());
        let (lists, overviews) = read??;
        committed.map_err(|error| error.to_string())?;
        Ok::<_, String>((commits, lists, overviews))
    })?;
    println!("beside lists:            {commits}");
    println!("lists of one queue:      {lists}");
    println!("overviews of 1,000:      {overviews}");

    drop(store);
    let begun = clock.now();
    let store = DiskStore::open(directory, 7, options)?;
    let took = clock.now().saturating_since(begun);
    let summary = store.summary(Shard::ONLY, &[], 0)?;
    let made = if mode == Mode::One { 1 } else { queues };
    assert_eq!(summary.totals.queues, made);
    println!("opened again:            {took:.2?}");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let directory = args.next();
    let queues = args.next().map_or(Ok(100_000), |text| text.parse())?;
    let mode = match args.next().as_deref() {
        Some("one") => Mode::One,
        Some("whole") => Mode::Whole,
        _ => Mode::Many,
    };
    let rate = args.next().map_or(Ok(0), |text| text.parse())?;
    let own = tempfile::tempdir()?;
    let directory = directory.map_or_else(|| own.path().to_owned(), Into::into);
    run(&directory.join("many-queues"), queues, mode, rate)
}
