//! Commits that come while a segment is flushed: after it was looked through and marked, before the
//! sorted store has it. On a real machine two threads meet there; here they do so in every life.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, Weak};

use countwheel_disk::simulated::Disk;
use countwheel_disk::{Flushed, LogOptions, LogStore, MemorySorted, Sorted};
use countwheel_durable::store::{
    Change, DuePage, DueScan, Filter, Lease, MemoryStore, Page, Shard, Store, StoreError,
};
use countwheel_durable::{Record, State, TimerName};
use parking_lot::Mutex;

use super::answers::Answers;
use super::script;
use crate::random::Random;

/// How many names there are.
const NAMES: u64 = 5;

/// What a run came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Met {
    /// Segments that were flushed.
    pub flushes: u64,
    /// Of these, while a commit was made.
    pub met: u64,
    /// Ends of the process.
    pub ends: u64,
}

/// Lives through one seed.
///
/// # Errors
/// The first wrong answer.
pub fn run(seed: u64) -> Result<Met, String> {
    let mut random = Random::new(seed, "meanwhile");
    let disk = Disk::new(seed);
    let sorted = MemorySorted::default();
    let model = MemoryStore::new(7);
    let text = |error: StoreError| error.to_string();
    let names: BTreeSet<TimerName> = (0..NAMES).map(script::name).collect();
    let mut met = Met::default();
    let mut revision = 0;
    let (mut log, mut lease) = open(&disk, &sorted)?;
    let mut own = model.acquire(Shard::ONLY).map_err(text)?.lease;
    for step in 0..40 {
        match random.below(8) {
            0..3 => {
                let changes = draw(&mut random, &mut revision);
                log.commit(lease, &changes).map_err(text)?;
                model.commit(own, &changes).map_err(text)?;
            }
            3 => {
                log.seal().map_err(text)?;
            }
            4..7 => {
                log.seal().map_err(text)?;
                let changes = draw(&mut random, &mut revision);
                log.base().meanwhile(lease, changes.clone());
                met.flushes += u64::from(log.flush_oldest().map_err(text)?);
                if log.base().was_met()? {
                    met.met += 1;
                    model.commit(own, &changes).map_err(text)?;
                }
            }
            _ => {
                met.ends += 1;
                drop(log);
                disk.cut(random.draw());
                (log, lease) = open(&disk, &sorted)?;
                own = model.acquire(Shard::ONLY).map_err(text)?.lease;
            }
        }
        let found = Answers::of(&*log.0, &names).map_err(text)?;
        let expected = Answers::of(&model, &names).map_err(text)?;
        found.check()?;
        if found != expected {
            return Err(format!("step {step}: {found:?}, expected {expected:?}"));
        }
    }
    Ok(met)
}

/// A few puts and removals, of each name one at the most.
fn draw(random: &mut Random, revision: &mut u64) -> Vec<Change> {
    let mut changes = BTreeMap::new();
    for _ in 0..random.between(1, 3) {
        let key = random.below(NAMES);
        *revision += 1;
        let change = if random.one_in(2) {
            Change::remove(script::name(key))
        } else {
            Change::put(script::record(key, *revision, State::Pending, 8))
        };
        changes.insert(key, change);
    }
    changes.into_values().collect()
}

/// A log whose sorted store lets somebody else commit before it takes anything in.
struct Log(Arc<LogStore<Busy>>, Arc<Between>);

impl Log {
    fn base(&self) -> &Between {
        &self.1
    }
}

impl std::ops::Deref for Log {
    type Target = LogStore<Busy>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

fn open(disk: &Disk, sorted: &MemorySorted) -> Result<(Log, Lease), String> {
    let mut options = LogOptions::default();
    options.segment_bytes = 4_096;
    // Nothing is flushed by itself.
    options.segments_max = 10_000;
    let between = Arc::new(Between::default());
    let busy = Busy {
        sorted: sorted.clone(),
        between: Arc::clone(&between),
    };
    let log = LogStore::open(busy, disk.files("log"), 7, options);
    let log = Arc::new(log.map_err(|error| error.to_string())?);
    let is_first = between.log.set(Arc::downgrade(&log)).is_ok();
    debug_assert!(is_first);
    let lease = log.acquire(Shard::ONLY).map_err(|e| e.to_string())?.lease;
    Ok((Log(log, between), lease))
}

/// What is committed meanwhile, and what came of it.
#[derive(Default)]
struct Between {
    log: OnceLock<Weak<LogStore<Busy>>>,
    waits: Mutex<Option<(Lease, Vec<Change>)>>,
    done: Mutex<Option<Result<(), StoreError>>>,
}

impl Between {
    fn meanwhile(&self, lease: Lease, changes: Vec<Change>) {
        *self.waits.lock() = Some((lease, changes));
    }

    /// Whether it was committed. Asked once.
    fn was_met(&self) -> Result<bool, String> {
        *self.waits.lock() = None;
        let done = self.done.lock().take();
        match done {
            None => Ok(false),
            Some(result) => result.map(|()| true).map_err(|error| error.to_string()),
        }
    }

    fn meet(&self) {
        let waits = self.waits.lock().take();
        let log = self.log.get().and_then(Weak::upgrade);
        if let (Some((lease, changes)), Some(log)) = (waits, log) {
            let done = log.commit(lease, &changes);
            *self.done.lock() = Some(done);
        }
    }
}

struct Busy {
    sorted: MemorySorted,
    between: Arc<Between>,
}

impl Sorted for Busy {
    fn ingested(&self) -> u64 {
        self.sorted.ingested()
    }

    fn ingest(&self, segment: u64, flushed: Flushed) -> Result<(), StoreError> {
        self.between.meet();
        self.sorted.ingest(segment, flushed)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.sorted.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.sorted.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.sorted.list(shard, filter)
    }
}
