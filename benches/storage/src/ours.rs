//! What is measured as ours: the one place to change when the store changes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use countwheel::SystemClock;
use countwheel_durable::store::{
    Change, DueEntry, DueScan, EmbeddedStore, Filter, Lease, LogOptions, LogStore, Ownership, Page,
    QueueCounts, Shard, Store, StoreError, SystemFiles,
};
use countwheel_durable::{Config, Handler, Record, TimerName, Timers};
use serde::{Deserialize, Serialize};

use crate::stopwatch::pause;

/// Part of the id of every timer; a new one would do as well.
pub(crate) const STORE_ID: u64 = 7;

/// Which of our stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The plain reference.
    Embedded,
    /// The log in front of a sorted store.
    Log,
}

impl Kind {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Embedded => "`EmbeddedStore` (redb)",
            Self::Log => "`LogStore` in front of `EmbeddedStore`, a thread that moves",
        }
    }
}

/// One of our stores, open.
pub(crate) enum Opened {
    Embedded(EmbeddedStore),
    Log(Fronted),
}

/// Opens or makes a store in `directory`.
pub(crate) fn open(kind: Kind, directory: &Path) -> anyhow::Result<Opened> {
    Ok(match kind {
        Kind::Embedded => {
            Opened::Embedded(EmbeddedStore::open(&directory.join("store"), STORE_ID)?)
        }
        Kind::Log => Opened::Log(Fronted::open(directory)?),
    })
}

impl Opened {
    pub(crate) fn store(&self) -> &dyn Store {
        match self {
            Self::Embedded(store) => store,
            Self::Log(store) => store,
        }
    }

    /// An engine on it.
    pub(crate) fn timers(self, handler: impl Handler, config: Config) -> anyhow::Result<Timers> {
        let clock = Arc::new(SystemClock::new());
        Ok(match self {
            Self::Embedded(store) => Timers::open(store, handler, clock, config)?,
            Self::Log(store) => Timers::open(store, handler, clock, config)?,
        })
    }

    /// Has everything leave the log for the sorted store. Somebody has to own the shard.
    pub(crate) fn settle(&self) -> anyhow::Result<()> {
        match self {
            Self::Embedded(_) => Ok(()),
            Self::Log(store) => store.settle(),
        }
    }
}

/// A log with a thread that moves what is full.
pub(crate) struct Fronted {
    store: Arc<LogStore<EmbeddedStore>>,
    stop: Arc<AtomicBool>,
    mover: Option<JoinHandle<Result<(), StoreError>>>,
}

impl Fronted {
    fn open(directory: &Path) -> anyhow::Result<Self> {
        let log = directory.join("log");
        std::fs::create_dir_all(&log)?;
        let base = EmbeddedStore::open(&directory.join("sorted"), STORE_ID)?;
        let files = Arc::new(SystemFiles::new(&log));
        let store = LogStore::open(base, files, STORE_ID, LogOptions::default())?;
        let store = Arc::new(store);
        let stop = Arc::new(AtomicBool::new(false));
        let (moved, told) = (Arc::clone(&store), Arc::clone(&stop));
        let mover = std::thread::Builder::new()
            .name("mover".to_owned())
            .spawn(move || {
                while !told.load(Ordering::Relaxed) {
                    if !moved.move_oldest()? {
                        pause(Duration::from_millis(2));
                    }
                }
                Ok(())
            })
            .context("no thread to move")?;
        Ok(Self {
            store,
            stop,
            mover: Some(mover),
        })
    }

    fn settle(&self) -> anyhow::Result<()> {
        self.store.seal()?;
        while self.store.move_oldest()? {}
        Ok(())
    }
}

impl Drop for Fronted {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Ok(Err(error))) = self.mover.take().map(JoinHandle::join) {
            eprintln!("the mover failed: {error}");
        }
    }
}

impl Store for Fronted {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        self.store.acquire(shard)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.store.commit(lease, changes)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.store.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<Vec<DueEntry>, StoreError> {
        self.store.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.store.list(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.store.counts(shard)
    }
}
