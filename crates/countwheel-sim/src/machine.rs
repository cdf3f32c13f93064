//! The machine of a simulated process: a disk, and one of the stores on it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::simulated::Disk;
use countwheel_disk::{
    Files, LogOptions, LogStore, MemorySorted, Sorted, TableOptions, TableStore,
};
use countwheel_durable::Shards;
use countwheel_durable::store::{MemoryStore, OnDisk, Store, StoreError};
use countwheel_postgres::PostgresStore;
use countwheel_postgres::testing::SimulatedPostgres;
use countwheel_time::ManualClock;
use parking_lot::Mutex;

use crate::random::Random;
use crate::sabotage::{Misused, MisusedSorted, MisusedStore, Sabotage};

/// The most calls to a disk within one turn, or within a life without turns. With more of them
/// something goes round for ever. The most calls of one turn in 4,000 seeds were fewer than 900,000, most
/// of them made by the checks. A whole life has no such bound: lives of many names in many tables make
/// more than 5,000,000 calls.
const CALLS_MAX: u64 = 10_000_000;

/// The same of the checks after an opening, which read every timer in every order: more than 4,000,000
/// calls were seen.
const CALLS_OF_CHECKS_MAX: u64 = 100_000_000;

/// Which store. A new one is a line here and a line in [`Machine::open`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// In memory: what it acknowledged is there.
    Memory,
    /// A log, and in memory what it flushed.
    Log,
    /// A log, and in tables what it flushed.
    Tables,
    /// A simulated PostgreSQL.
    Postgres,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Log, Self::Tables, Self::Postgres];

    /// Those with something on the disk.
    pub const ON_DISK: [Self; 2] = [Self::Log, Self::Tables];

    /// The one of that name, as [`Debug`](fmt::Debug) shows it, in lower case.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let named = |kind: &Self| format!("{kind:?}").eq_ignore_ascii_case(name);
        Self::ALL.into_iter().find(named)
    }
}

/// A store, and what somebody has to do for it now and then.
pub trait Kept: Store {
    /// A piece of upkeep; `which` says what.
    ///
    /// # Errors
    /// What the store says.
    fn upkeep(&self, which: u64) -> Result<(), StoreError> {
        let _nothing_to_do = which;
        Ok(())
    }

    /// Itself, as what an engine takes.
    fn as_store(&self) -> &dyn Store;
}

impl Kept for MemoryStore {
    fn as_store(&self) -> &dyn Store {
        self
    }
}

impl Kept for PostgresStore {
    fn as_store(&self) -> &dyn Store {
        self
    }
}

impl<B: Sorted> Kept for LogStore<B> {
    fn upkeep(&self, which: u64) -> Result<(), StoreError> {
        match which % 5 {
            0 => self.seal().map(drop),
            1 => self.flush_oldest().map(drop),
            2 => self.prepare().map(drop),
            4 => {
                let _round = self.scrub_step(which % 4_096);
                self.compact().map(drop)
            }
            _ => {
                self.seal()?;
                // Those there are. Each leaves a copy of the counts behind it, which may be longer.
                for _ in 0..self.names_and_segments().1 {
                    if !self.flush_oldest()? {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    fn as_store(&self) -> &dyn Store {
        self
    }
}

/// The disk, and how the store on it is laid out. Clones share the disk.
#[derive(Clone)]
pub struct Machine {
    /// Which store.
    pub kind: Kind,
    /// What everything is on, but for what is in memory.
    pub disk: Disk,
    memory: MemoryStore,
    postgres: SimulatedPostgres,
    sorted: MemorySorted,
    id: u64,
    options: LogOptions,
    tables: TableOptions,
    sabotage: Option<Sabotage>,
}

impl Machine {
    /// A machine with an empty disk. `seed` decides the layout.
    #[must_use]
    pub fn new(kind: Kind, seed: u64) -> Self {
        let mut draw = Random::new(seed, "machine");
        let mut options = LogOptions::default();
        options.segment_bytes = *draw.pick(&[4_096, 8_192, 32_768]);
        options.segments_max = *draw.pick(&[2, 3, 8]);
        options.memtable_names_max = *draw.pick(&[3, 10, 1_000]);
        options.reserve_segments = *draw.pick(&[0, 1, 2]);
        let mut tables = TableOptions::default();
        tables.table_bytes = *draw.pick(&[4_096, 16_384, 1 << 20]);
        tables.block_bytes = *draw.pick(&[64, 512, 4_096]);
        tables.cache_bytes = *draw.pick(&[0, 8_192, 1 << 20]);
        tables.fan_in = *draw.pick(&[2, 3, 8]);
        tables.skip_min = tables.fan_in;
        options.counts_whole = *draw.pick(&[0, 2, 1_024]);
        options.counts_at_once = *draw.pick(&[1, 2, 4_096]);
        let disk = Disk::new(draw.draw());
        // Short segments that become longer, where there is something to grow to.
        let first = *draw.pick(&[4_096, 4_096, options.segment_bytes]);
        options.segment_bytes_first = first.min(options.segment_bytes);
        let machine = Self {
            kind,
            disk,
            memory: MemoryStore::new(seed),
            // Nothing goes wrong there, so nobody waits.
            postgres: SimulatedPostgres::new(Shards::ONE, seed, drop),
            sorted: MemorySorted::default(),
            id: seed,
            options,
            tables,
            sabotage: None,
        };
        machine.bound_calls();
        machine
    }

    /// From now on, so many calls to the disk that only an endless loop makes more are a panic.
    pub(crate) fn bound_calls(&self) {
        self.disk.bound_calls(CALLS_MAX);
    }

    /// The same for the checks after an opening.
    pub(crate) fn bound_calls_of_checks(&self) {
        self.disk.bound_calls(CALLS_OF_CHECKS_MAX);
    }

    /// The same machine, with a log so small that a copy of the counts of many queues is longer.
    #[must_use]
    pub fn with_short_log(mut self) -> Self {
        (self.options.segment_bytes, self.options.segments_max) = (4_096, 2);
        (self.options.counts_whole, self.options.counts_at_once) = (0, 1);
        self
    }

    /// The same machine, with a mistake in the store.
    #[must_use]
    pub fn with(mut self, sabotage: Option<Sabotage>) -> Self {
        self.sabotage = sabotage;
        self
    }

    /// The same machine with a copy of the disk. What is in memory is shared.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self {
            disk: self.disk.copy(),
            ..self.clone()
        }
    }

    /// The store's id and how its log and its tables are laid out.
    #[must_use]
    pub fn layout(&self) -> (u64, LogOptions, TableOptions) {
        (self.id, self.options, self.tables)
    }

    /// Opens the store, for the process that there is now.
    ///
    /// # Errors
    /// What the store says.
    pub fn open(&self) -> Result<Box<dyn Kept>, StoreError> {
        let (disk, id, how) = (&self.disk, self.id, self.sabotage);
        let files = |directory| -> Arc<dyn Files> {
            let files = disk.files(directory);
            match how {
                None => files,
                how => Arc::new(Misused {
                    files,
                    how,
                    nonces_of: None,
                }),
            }
        };
        let store: Box<dyn Kept> = match self.kind {
            Kind::Memory => Box::new(self.memory.clone()),
            Kind::Postgres => {
                let clock = Arc::new(ManualClock::new());
                let (server, within) = (&self.postgres, Duration::ZERO);
                Box::new(PostgresStore::on_simulated(server, 1, clock, within))
            }
            Kind::Log | Kind::Tables => {
                let sorted: Arc<dyn Sorted> = match self.kind {
                    Kind::Log => Arc::new(self.sorted.clone()),
                    _ => Arc::new(TableStore::open_unpersisted(
                        files("tables"),
                        id,
                        self.tables,
                    )?),
                };
                let misused = MisusedSorted {
                    sorted,
                    how,
                    late: Mutex::default(),
                };
                Box::new(LogStore::open(misused, files("log"), id, self.options)?)
            }
        };
        Ok(match how {
            None => store,
            Some(how) => Box::new(MisusedStore::new(store, how)),
        })
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("kind", &self.kind)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
