//! What a commit to a log costs beside a bare write and sync of as many bytes, taken in turns in
//! the same run.
//! `cargo run --release -p countwheel-disk --example log_rate [DIRECTORY [COMMITS [BATCH]]]`
//!
//! In a directory that is in memory, such as `/dev/shm`, what is left is what the processor does.

use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::{Files, FlushingLog, LogOptions, LogStore, MemorySorted, SystemFiles};
use countwheel_durable::store::{Before, Change, Shard, Store};
use countwheel_durable::{
    DueClock, Missed, Record, RetryPolicy, Revision, State, TimerId, TimerName,
};
use countwheel_time::{Clock, SystemClock, Timestamp};

/// A record of about 300 bytes.
fn record(revision: u64) -> Result<Record, Box<dyn std::error::Error>> {
    // In no order of time.
    let due = Timestamp::from_micros(1 + revision.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (1 << 40));
    Ok(Record {
        name: TimerName::new("orders", format!("order-{revision}"))?,
        id: TimerId {
            store: 7,
            set: Revision(revision),
        },
        revision: Revision(revision),
        state: State::Pending,
        created: Timestamp::from_micros(revision),
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
        payload: vec![7; 200],
    })
}

/// So many commits, then as many bare writes.
const TURN: u64 = 100;

#[derive(Default)]
struct Took {
    waits: Vec<Duration>,
    processor: Duration,
}

/// How long this thread has been on a processor; nothing where the system does not say.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|text| text.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args();
    let parent = args.nth(1).map_or_else(std::env::temp_dir, Into::into);
    let mut number = |otherwise| {
        args.next()
            .map_or(Ok(otherwise), |text| text.parse::<u64>())
    };
    let (commits, batch) = (number(2_000)?, number(256)?);
    let directory = tempfile::tempdir_in(parent)?;
    let clock = SystemClock::new();

    let log_files = directory.path().join("log");
    std::fs::create_dir(&log_files)?;
    let files = Arc::new(SystemFiles::new(&log_files));
    let log = LogStore::open(MemorySorted::default(), files, 7, LogOptions::default())?;
    let log = FlushingLog::start(log)?;
    let lease = log.acquire(Shard::ONLY)?.lease;
    let bare_len = 64 << 20;
    let bare = SystemFiles::new(directory.path()).create("bare", bare_len)?;
    bare.sync()?;

    let (mut in_log, mut in_bare) = (Took::default(), Took::default());
    let mut revision = 0;
    let mut at = 0;
    for _ in 0..commits.div_ceil(TURN) {
        let mut turn = Vec::new();
        for _ in 0..TURN {
            let mut changes = Vec::new();
            for _ in 0..batch {
                revision += 1;
                changes.push(Change::Put {
                    record: Box::new(record(revision)?),
                    before: Before::Absent,
                });
            }
            turn.push(changes);
        }
        let before = processor_time();
        for changes in &turn {
            let begun = clock.now();
            log.commit(lease, changes)?;
            in_log.waits.push(clock.now().saturating_since(begun));
        }
        in_log.processor += processor_time() - before;

        let bytes = vec![7; usize::try_from(batch)? * 310];
        let before = processor_time();
        for _ in 0..TURN {
            if at + bytes.len() as u64 > bare_len {
                at = 0;
            }
            let begun = clock.now();
            bare.write_at(at, &bytes)?;
            bare.sync()?;
            in_bare.waits.push(clock.now().saturating_since(begun));
            at += bytes.len() as u64;
        }
        in_bare.processor += processor_time() - before;
    }
    for (what, mut took) in [("log", in_log), ("bare", in_bare)] {
        took.waits.sort_unstable();
        let records = u32::try_from(took.waits.len() as u64 * batch)?;
        let sum: Duration = took.waits.iter().sum();
        let last = took.waits.len() - 1;
        let [p50, p99, max] = [last / 2, last * 99 / 100, last].map(|at| took.waits[at]);
        println!(
            "{what:4} {:>9.2?} a record, {:.2?} of it on the processor; a commit of {batch}: p50 {p50:.2?}, p99 {p99:.2?}, max {max:.2?}",
            sum / records,
            took.processor / records,
        );
    }
    let (names, segments) = log.log().names_and_segments();
    println!("{names} names in the memtable, {segments} segments");
    Ok(())
}
