//! What a store on a disk does with timers that all outlive the log: how fast they go in, how
//! long a commit takes meanwhile, how much room they take, how long it takes to close, to open
//! again and to find the first that is due once many were delivered.
//! `cargo run --release -p countwheel-disk --example far_rate [DIRECTORY [RECORDS [BATCH]]]`

mod noise;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::{Before, Change, DueScan, Lease, Shard, Store};
use countwheel_durable::{DueClock, Record, StateKind};
use countwheel_time::{Clock, SystemClock, Timestamp};

/// What is not noise in a payload.
const TEXT: &[u8] = br#"{"event":"order.payment_timeout","url":"https://shop.example/hooks/close-order"}                    "#;

/// 200 bytes of payload.
fn record(number: u64) -> Result<Record, Box<dyn Error>> {
    let created = Timestamp::from_micros(1_772_366_400_000_000);
    let due = Timestamp::from_micros(1_772_366_400_000_000 + 50_000 * number);
    noise::record("orders", number, created, due, TEXT)
}

/// How long each commit took.
struct Waits(Vec<Duration>);

impl Waits {
    fn report(mut self, what: &str, records: u64) {
        self.0.sort_unstable();
        let sum: Duration = self.0.iter().sum();
        let last = self.0.len() - 1;
        let [p50, p99, p999, max] =
            [500, 990, 999, 1_000].map(|permille| self.0[last * permille / 1_000]);
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more")]
        let rate = records as f64 / sum.as_secs_f64();
        println!(
            "{what}: {rate:.0}/s; a commit: p50 {p50:.2?}, p99 {p99:.2?}, p99.9 {p999:.2?}, max {max:.2?}"
        );
    }
}

fn commit_all(
    store: &DiskStore,
    lease: Lease,
    (records, batch): (u64, u64),
    change: impl Fn(u64) -> Result<Change, Box<dyn Error>>,
) -> Result<Waits, Box<dyn Error>> {
    let clock = SystemClock::new();
    let mut waits = Vec::new();
    let mut next = 1;
    while next <= records {
        let end = (next + batch).min(records + 1);
        let changes = (next..end).map(&change).collect::<Result<Vec<_>, _>>()?;
        let begun = clock.now();
        store.commit(lease, &changes)?;
        waits.push(clock.now().saturating_since(begun));
        next = end;
    }
    Ok(Waits(waits))
}

fn bytes_in(directory: &Path) -> Result<u64, Box<dyn Error>> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args();
    let parent = args.nth(1).map_or_else(std::env::temp_dir, Into::into);
    let mut number = |otherwise| {
        args.next()
            .map_or(Ok(otherwise), |text| text.parse::<u64>())
    };
    let (records, batch) = (number(1_000_000)?, number(256)?);
    let directory = tempfile::tempdir_in(parent)?;
    let clock = SystemClock::new();
    let open = || DiskStore::open(directory.path(), 7, DiskOptions::default());
    let store = open()?;
    let lease = store.acquire(Shard::ONLY)?.lease;
    let begun = clock.now();
    let put = |number| {
        Ok(Change::Put {
            record: Box::new(record(number)?),
            before: Before::Absent,
        })
    };
    let waits = commit_all(&store, lease, (records, batch), put)?;
    let whole = clock.now().saturating_since(begun);
    waits.report("put", records);
    println!("with the making of the records: {whole:.2?}");
    let begun = clock.now();
    drop(store);
    println!("closed in {:.2?}", clock.now().saturating_since(begun));
    let bytes = |part| bytes_in(&directory.path().join(part));
    let (log, tables) = (bytes("log")?, bytes("tables")?);
    println!("log {log} bytes, tables {tables} bytes, {records} records");

    let store = open()?;
    let lease = store.acquire(Shard::ONLY)?.lease;
    let delivered = records / 2;
    let remove = |number| {
        Ok(Change::Remove {
            name: record(number)?.name,
            before: Before::Present(StateKind::Pending),
        })
    };
    commit_all(&store, lease, (delivered, batch), remove)?.report("removed", delivered);
    let begun = clock.now();
    drop(store);
    println!("closed in {:.2?}", clock.now().saturating_since(begun));
    let begun = clock.now();
    let store = open()?;
    let opened = clock.now();
    let scan = DueScan {
        limit: 1_000,
        ..DueScan::all(DueClock::Wall)
    };
    let found = store.due(Shard::ONLY, &scan)?.entries;
    let scanned = clock.now();
    println!(
        "opened in {:.2?}; {} due in {:.2?}, the first is number {}",
        opened.saturating_since(begun),
        found.len(),
        scanned.saturating_since(opened),
        found.first().map_or(0, |entry| entry.wake.revision.0)
    );
    Ok(())
}
