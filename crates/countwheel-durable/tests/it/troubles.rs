//! What a store says of itself while it goes on.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::simulated::Disk;
use countwheel_disk::{LogOptions, LogStore, MemorySorted};
use countwheel_durable::store::{
    Change, DiskError, DuePage, DueScan, MemoryStore, Shard, Store, StoreError,
};
use countwheel_durable::{Config, Engine, Revision, Shards, Timers, TroubleReason, inline};
use countwheel_time::{Clock, ManualClock, Timestamp};

use crate::support::forward::forward;

fn options() -> LogOptions {
    let mut options = LogOptions::default();
    options.segment_bytes = 1 << 14;
    options
}

/// Health was green until a commit failed, and the log keeps room for many commits.
#[test]
fn a_full_disk_is_a_trouble_before_the_first_commit_is_refused() {
    let disk = Disk::default();
    let log = LogStore::open(MemorySorted::default(), disk.files("log"), 7, options()).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    assert_eq!(log.troubles(), []);
    disk.set_capacity(Some(disk.used() + 100));
    assert!(matches!(
        log.prepare(),
        Err(StoreError::Disk(DiskError::Full { .. }))
    ));
    log.commit(lease, &[Change::Given(Revision(1))]).unwrap();
    let reasons = || {
        let troubles = log.troubles().into_iter();
        troubles.map(|trouble| trouble.reason).collect::<Vec<_>>()
    };
    assert_eq!(reasons(), [TroubleReason::DiskFull]);
    disk.set_capacity(None);
    assert!(log.prepare().unwrap());
    assert_eq!(reasons(), []);
}

/// A node without shards was healthy, whatever its store said.
#[test]
fn a_process_that_owns_no_shard_says_what_its_store_says() {
    let disk = Disk::default();
    let log = LogStore::open(MemorySorted::default(), disk.files("log"), 7, options()).unwrap();
    disk.set_capacity(Some(disk.used() + 100));
    assert!(log.prepare().is_err());
    let (clock, shards) = (ManualClock::new(), Shards::new(8).unwrap());
    let (handler, shared) = (inline(|_| ()), Arc::new(clock.clone()));
    let config = Config::default();
    let timers = Timers::open_divided(log, shards, None, handler, shared, config).unwrap();
    let first = timers.troubles();
    assert_eq!(first.len(), 1);
    clock.advance(Duration::from_secs(1));
    assert_eq!(timers.troubles(), first, "with the time of its beginning");
}

/// A store that is found, and of which nothing can be read.
struct Unreadable(MemoryStore);

impl Store for Unreadable {
    forward!(0: acquire, commit, settings, get, list, counts);

    fn due(&self, _: Shard, _: &DueScan<'_>) -> Result<DuePage, StoreError> {
        Err(DiskError::Io {
            path: "tables".into(),
            source: io::Error::other("a disk that is dead"),
        }
        .into())
    }
}

/// It said that it was ready, took requests, and failed at its first turn.
#[test]
fn a_store_of_which_nothing_can_be_read_is_refused_at_the_opening() {
    let clock = ManualClock::at(Timestamp::from_micros(1_772_366_400_000_000));
    let store = Arc::new(Unreadable(MemoryStore::new(7)));
    let clock: Arc<dyn Clock> = Arc::new(clock);
    let refused = Engine::open(store, Shard::ONLY, clock, Config::default()).unwrap_err();
    assert!(refused.to_string().contains("dead"), "{refused}");
}
