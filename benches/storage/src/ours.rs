//! What is measured as ours: the one place to change when the store changes.

use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use countwheel_disk::FlushingLog;
use countwheel_disk::{DiskOptions, DiskStats, DiskStore};
use countwheel_durable::store::Store;
use countwheel_durable::{Config, Handler, Timers};
use countwheel_time::SystemClock;
use serde::{Deserialize, Serialize};

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
use crate::behind;

/// Part of the id of every timer; a new one would do as well.
pub(crate) const STORE_ID: u64 = 7;

/// Which of our stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The log in front of a sorted store.
    Log,
    /// The log in front of fjall.
    #[cfg(feature = "fjall")]
    Fjall,
    /// The log in front of RocksDB.
    #[cfg(feature = "rocksdb")]
    Rocksdb,
}

impl Kind {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Log => "`DiskStore`: a log in front of tables",
            #[cfg(feature = "fjall")]
            Self::Fjall => "`LogStore` in front of fjall",
            #[cfg(feature = "rocksdb")]
            Self::Rocksdb => "`LogStore` in front of RocksDB",
        }
    }

    /// The word on the command line.
    pub(crate) fn word(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// One of our stores, open.
pub(crate) enum Opened {
    Log(Box<DiskStore>),
    #[cfg(feature = "fjall")]
    Fjall(FlushingLog<behind::Behind<behind::Fjall>>),
    #[cfg(feature = "rocksdb")]
    Rocksdb(FlushingLog<behind::Behind<behind::Rocks>>),
}

/// Opens or makes a store in `directory`.
pub(crate) fn open(kind: Kind, directory: &Path) -> anyhow::Result<Opened> {
    Ok(match kind {
        Kind::Log => {
            let directory = directory.join("store");
            let store = DiskStore::open(&directory, STORE_ID, DiskOptions::default())?;
            Opened::Log(Box::new(store))
        }
        #[cfg(feature = "fjall")]
        Kind::Fjall => Opened::Fjall(behind::open(directory)?),
        #[cfg(feature = "rocksdb")]
        Kind::Rocksdb => Opened::Rocksdb(behind::open(directory)?),
    })
}

impl Opened {
    pub(crate) fn store(&self) -> &dyn Store {
        match self {
            Self::Log(store) => &**store,
            #[cfg(feature = "fjall")]
            Self::Fjall(store) => store,
            #[cfg(feature = "rocksdb")]
            Self::Rocksdb(store) => store,
        }
    }

    /// Bytes written since it was opened, by what for; nothing of a store that does not count.
    pub(crate) fn written(&self) -> Vec<(&'static str, u64)> {
        let DiskStats { log, tables, .. } = match self {
            Self::Log(store) => store.stats(),
            #[allow(unreachable_patterns, reason = "without libraries there is no other")]
            _ => return Vec::new(),
        };
        let merged = tables.written - tables.taken_in - tables.purged;
        vec![
            ("commits", log.commits),
            ("commit_pages", log.commit_pages),
            ("beginnings", log.beginnings),
            ("zeros", log.zeros),
            ("taken_in", tables.taken_in),
            ("merged", merged),
            ("purged", tables.purged),
        ]
    }

    /// An engine on it.
    pub(crate) fn timers(self, handler: impl Handler, config: Config) -> anyhow::Result<Timers> {
        let clock = Arc::new(SystemClock::new());
        Ok(match self {
            Self::Log(store) => Timers::open(*store, handler, clock, config)?,
            #[cfg(feature = "fjall")]
            Self::Fjall(store) => Timers::open(store, handler, clock, config)?,
            #[cfg(feature = "rocksdb")]
            Self::Rocksdb(store) => Timers::open(store, handler, clock, config)?,
        })
    }
}
