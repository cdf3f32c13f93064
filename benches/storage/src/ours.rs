//! What is measured as ours: the one place to change when the store changes.

use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use countwheel_disk::{DiskOptions, DiskStats, DiskStore};
use countwheel_durable::store::Store;
use countwheel_durable::{Config, Handler, Timers};
use countwheel_time::SystemClock;
use serde::{Deserialize, Serialize};

/// Part of the id of every timer; a new one would do as well.
pub(crate) const STORE_ID: u64 = 7;

/// Which of our stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The log in front of a sorted store.
    Log,
}

impl Kind {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Log => "`DiskStore`: a log in front of tables",
        }
    }
}

/// One of our stores, open.
pub(crate) enum Opened {
    Log(DiskStore),
}

/// Opens or makes a store in `directory`.
pub(crate) fn open(kind: Kind, directory: &Path) -> anyhow::Result<Opened> {
    Ok(match kind {
        Kind::Log => {
            let directory = directory.join("store");
            Opened::Log(DiskStore::open(
                &directory,
                STORE_ID,
                DiskOptions::default(),
            )?)
        }
    })
}

impl Opened {
    pub(crate) fn store(&self) -> &dyn Store {
        match self {
            Self::Log(store) => store,
        }
    }

    /// Bytes written since it was opened, by what for; nothing of a store that does not count.
    pub(crate) fn written(&self) -> Vec<(&'static str, u64)> {
        let Self::Log(store) = self;
        let DiskStats { log, tables, .. } = store.stats();
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
            Self::Log(store) => Timers::open(store, handler, clock, config)?,
        })
    }
}
