//! What a store on a disk writes, by what for, over the bytes that callers insert: many far timers
//! are loaded; then batches of 256 changes insert one and deliver the oldest, four in five of them
//! near ones of which 50,000 wait at a time. As the store counts it itself, whoever else writes to
//! the device. The segments, the near timers and the windows that are printed can be made smaller
//! together with the far ones: the shares stay about the same.
//! `cargo run --release -p countwheel-disk --example write_bytes [DIRECTORY [TIMERS [CHANGES
//! [SMALLER [FAN_IN]]]]]`

mod noise;

use std::collections::VecDeque;
use std::error::Error;

use countwheel_disk::{DiskOptions, DiskStats, DiskStore};
use countwheel_durable::store::{Before, Change, DueScan, Lease, Shard, Store};
use countwheel_durable::{DueClock, Record, StateKind};
use countwheel_time::{Clock, SystemClock, Timestamp};

/// Key, payload and place in the order of deadlines, and key and place once more: what two tables
/// of a plain store would hold.
const LOGICAL_BYTES: u64 = 18 + 4 + 32 + 200 + 32 + 18;
const BATCH: u64 = 256;

/// What is not noise in a payload.
const TEXT: &[u8] = br#"{"event":"order.payment_timeout","url":"https://shop.example/hooks/close-order","retry":"default"}  "#;

/// 200 bytes of payload.
fn record(number: u64, due: Timestamp) -> Result<Record, Box<dyn Error>> {
    let created = Timestamp::from_micros(1_700_000_000_000_000);
    noise::record("bench", number, created, due, TEXT)
}

/// Timers of one kind, delivered in the order in which they were inserted.
#[derive(Default)]
struct Stream(VecDeque<(u64, Timestamp)>);

/// Who inserts and delivers.
struct Load {
    lease: Lease,
    inserted: u64,
    far: Stream,
    near: Stream,
}

impl Load {
    fn insert(&mut self, is_near: bool) -> Result<Change, Box<dyn Error>> {
        self.inserted += 1;
        let begin = if is_near { 0 } else { 1 << 40 };
        let due = Timestamp::from_micros(2_051_222_400_000_000 + begin + 10_000 * self.inserted);
        let stream = if is_near {
            &mut self.near
        } else {
            &mut self.far
        };
        stream.0.push_back((self.inserted, due));
        Ok(Change::Put {
            record: Box::new(record(self.inserted, due)?),
            before: Before::Absent,
        })
    }

    fn deliver(&mut self, is_near: bool) -> Result<Change, Box<dyn Error>> {
        let stream = if is_near {
            &mut self.near
        } else {
            &mut self.far
        };
        let (number, due) = stream.0.pop_front().ok_or("nothing waits")?;
        Ok(Change::Remove {
            name: record(number, due)?.name,
            before: Before::Present(StateKind::Pending),
        })
    }

    fn load(&mut self, store: &DiskStore, count: u64, is_near: bool) -> Result<(), Box<dyn Error>> {
        let lease = self.lease;
        let mut left = count;
        while left > 0 {
            let batch = left.min(16_384);
            let changes = (0..batch).map(|_| self.insert(is_near));
            store.commit(lease, &changes.collect::<Result<Vec<_>, _>>()?)?;
            left -= batch;
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no more")]
fn report(what: &str, before: DiskStats, after: DiskStats, inserted: u64) {
    let logical = (inserted * LOGICAL_BYTES) as f64;
    let share = |of: fn(DiskStats) -> u64| of(after).saturating_sub(of(before)) as f64 / logical;
    let parts = [
        share(|stats| stats.log.commit_pages),
        share(|stats| stats.log.beginnings + stats.log.zeros),
        share(|stats| stats.tables.taken_in),
        share(|stats| stats.tables.written - stats.tables.taken_in - stats.tables.purged),
        share(|stats| stats.tables.purged),
    ];
    let [commits, segments, taken_in, merged, purged] = parts;
    let all: f64 = parts.iter().sum();
    let tables = after.tables;
    println!(
        "{what}: {all:.2} = commits {commits:.2} + segments {segments:.2} + taken in {taken_in:.2} \
         + merged {merged:.2} + purged {purged:.2}; {} runs, {} MB, {} records, {} tombstones",
        tables.runs,
        tables.bytes >> 20,
        tables.records,
        tables.tombstones,
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args();
    let parent = args.nth(1).map_or_else(std::env::temp_dir, Into::into);
    let mut number = |otherwise| {
        args.next()
            .map_or(Ok(otherwise), |text| text.parse::<u64>())
    };
    let (timers, changes, smaller) = (number(100_000)?, number(1_600_000)?, number(100)?.max(1));
    let mut options = DiskOptions::default();
    options.log.segment_bytes /= smaller;
    options.log.memtable_names_max /= usize::try_from(smaller)?;
    options.tables.table_bytes /= smaller;
    options.tables.fan_in = usize::try_from(number(options.tables.fan_in as u64)?)?;

    let directory = tempfile::tempdir_in(parent)?;
    let clock = SystemClock::new();
    let store = DiskStore::open(directory.path(), 7, options)?;
    let mut load = Load {
        lease: store.acquire(Shard::ONLY)?.lease,
        inserted: 0,
        far: Stream::default(),
        near: Stream::default(),
    };
    let before = store.stats();
    load.load(&store, timers, false)?;
    report("load", before, store.stats(), timers);
    load.load(&store, 50_000 / smaller, true)?;

    let (mut done, mut printed) = (0, 0);
    let begin = store.stats();
    let mut before = begin;
    let started = clock.now();
    while done < changes {
        let mut batch = Vec::new();
        for at in 0..BATCH / 2 {
            let is_near = !(done / 2 + at).is_multiple_of(5);
            batch.push(load.insert(is_near)?);
            batch.push(load.deliver(is_near)?);
        }
        store.commit(load.lease, &batch)?;
        done += BATCH;
        if (done - printed) * smaller >= 8_000_000 {
            let now = store.stats();
            report(
                &format!("{done} changes"),
                before,
                now,
                (done - printed) / 2,
            );
            (before, printed) = (now, done);
        }
    }
    let took = clock.now().saturating_since(started);
    report("all", begin, store.stats(), done / 2);
    println!("{done} changes in {took:.2?}");
    let scan = DueScan {
        limit: 100_000,
        ..DueScan::all(DueClock::Wall)
    };
    let started = clock.now();
    let found = store.due(Shard::ONLY, &scan)?.entries.len();
    let took = clock.now().saturating_since(started);
    println!("{found} due in {took:.2?}");
    Ok(())
}
