//! Who is measured: one file each, all behind one trait, with the same records.

mod beanstalkd;
mod engine;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "heed")]
mod lmdb;
mod raw;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "rusqlite")]
mod sqlite;
mod store;
#[cfg_attr(
    not(any(
        feature = "fjall",
        feature = "heed",
        feature = "redb",
        feature = "rocksdb",
        feature = "rusqlite"
    )),
    expect(dead_code, reason = "it is for the libraries")
)]
mod two_tables;

use std::path::Path;

use anyhow::bail;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::item::{Item, Op};
use crate::ours::Kind;
use crate::statistics::Durations;
use crate::stopwatch::Stopwatch;
use crate::system::{self, Memory};

pub(crate) use beanstalkd::stop_daemon_of;
pub(crate) use store::{name_of, open as open_ours};

/// What each library may keep in memory of its files, in bytes. LMDB has the page cache.
pub(crate) const CACHE_BYTES: u64 = 256 << 20;

/// Everybody there is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Name {
    RawGrowing,
    RawPreallocated,
    Redb,
    Fjall,
    Rocksdb,
    Sqlite,
    Lmdb,
    Beanstalkd,
    CountwheelLog,
    LogFjall,
    LogRocksdb,
    EngineLog,
}

/// What a candidate can be asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Skill {
    /// Durable inserts.
    Insert,
    /// Deliver the oldest while others come.
    Steady,
    /// Read in the order of deadlines.
    Scan,
    /// Find by key.
    Get,
    /// Another deadline, by key.
    Move,
    /// Open again after a kill.
    Reopen,
}

impl Name {
    pub(crate) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// The word on the command line.
    pub(crate) fn word(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::RawGrowing => "raw append, growing file",
            Self::RawPreallocated => "raw append, preallocated",
            Self::Redb => "redb 4.4",
            Self::Fjall => "fjall 3.1",
            Self::Rocksdb => "RocksDB 7.8 (Debian)",
            Self::Sqlite => "SQLite (rusqlite 0.41)",
            Self::Lmdb => "LMDB (heed 0.22)",
            Self::Beanstalkd => "beanstalkd -f0 (Debian)",
            Self::CountwheelLog => "countwheel, log in front",
            Self::LogFjall => "the same log, fjall behind",
            Self::LogRocksdb => "the same log, RocksDB behind",
            Self::EngineLog => "countwheel engine, log in front",
        }
    }

    /// How it is set up, and how to read its rows.
    pub(crate) fn remark(self) -> &'static str {
        match self {
            Self::RawGrowing => {
                "one `write` and one `fdatasync` a batch, at the end of a file; a record once, 254 bytes"
            }
            Self::RawPreallocated => {
                "the same in a file of 256 MiB written with zeros before, from its beginning again when it is full: **the limit**"
            }
            Self::Redb => "cache 256 MiB, else as it comes: a sync each commit",
            Self::Fjall => {
                "cache 256 MiB, memtables 64 MiB, journals 512 MiB, 2 threads, LZ4; `PersistMode::SyncData` each batch"
            }
            Self::Rocksdb => {
                "cache 256 MiB, memtables 64 MiB, write-ahead log 512 MiB, 2 threads, LZ4, bloom filter on keys; `sync` each batch"
            }
            Self::Sqlite => {
                "write-ahead log, `synchronous=FULL`, exclusive lock, cache 256 MiB, 4 KiB pages, `WITHOUT ROWID`, checkpoint at 64 MiB"
            }
            Self::Lmdb => "as it comes: a sync each commit; its cache is the system's",
            Self::Beanstalkd => {
                "binlog, a sync each write, over loopback; a batch is as many commands in one piece. No lookup by a key of the caller's (by its own id instead), no move, no scan; it keeps everything in memory. Its load is made with a sync every 50 ms"
            }
            Self::CountwheelLog => "`DiskStore`: a commit of the batch's changes",
            Self::LogFjall => {
                "`LogStore` as in `DiskStore`; a segment is an ingestion into one keyspace, past the journal; cache 256 MiB, 2 threads, else as it comes"
            }
            Self::LogRocksdb => {
                "the same; a segment is a file that is ingested, write-ahead log and memtables stay empty; cache 256 MiB, 2 threads, LZ4, bloom filter"
            }
            Self::EngineLog => {
                "`Timers::submit` over `DiskStore`; instead of a batch, so many callers, each with one request under way. The time is that of a request"
            }
        }
    }

    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::CountwheelLog | Self::EngineLog)
    }

    /// Bold if it is ours.
    pub(crate) fn emphasised(self) -> String {
        if self.is_ours() {
            format!("**{}**", self.label())
        } else {
            self.label().to_owned()
        }
    }

    pub(crate) fn can(self, skill: Skill) -> bool {
        match self {
            Self::RawGrowing | Self::EngineLog => skill == Skill::Insert,
            Self::RawPreallocated => matches!(skill, Skill::Insert | Skill::Steady),
            Self::Beanstalkd => !matches!(skill, Skill::Scan | Skill::Move),
            _ => true,
        }
    }

    /// Why it cannot be measured in this build or on this machine.
    pub(crate) fn missing(self) -> Option<String> {
        let feature = match self {
            Self::Redb => cfg!(feature = "redb"),
            Self::Fjall | Self::LogFjall => cfg!(feature = "fjall"),
            Self::Rocksdb | Self::LogRocksdb => cfg!(feature = "rocksdb"),
            Self::Sqlite => cfg!(feature = "rusqlite"),
            Self::Lmdb => cfg!(feature = "heed"),
            Self::Beanstalkd => return beanstalkd::missing(),
            _ => true,
        };
        (!feature).then(|| "it was left out of this build".to_owned())
    }

    /// Opens it in `directory`, or makes it there. `loading`: for a load whose speed is not
    /// compared.
    pub(crate) fn open(self, directory: &Path, loading: bool) -> anyhow::Result<Box<dyn Peer>> {
        Ok(match self {
            Self::RawGrowing => Box::new(raw::Raw::open(directory, raw::Shape::Growing)?),
            Self::RawPreallocated => Box::new(raw::Raw::open(directory, raw::Shape::Preallocated)?),
            #[cfg(feature = "redb")]
            Self::Redb => Box::new(redb::open(directory)?),
            #[cfg(feature = "fjall")]
            Self::Fjall => Box::new(fjall::open(directory)?),
            #[cfg(feature = "rocksdb")]
            Self::Rocksdb => Box::new(rocksdb::open(directory)?),
            #[cfg(feature = "rusqlite")]
            Self::Sqlite => Box::new(sqlite::open(directory)?),
            #[cfg(feature = "heed")]
            Self::Lmdb => Box::new(lmdb::open(directory)?),
            Self::Beanstalkd => Box::new(beanstalkd::Beanstalkd::open(directory, loading)?),
            Self::CountwheelLog => Box::new(store::open(directory, Kind::Log)?),
            #[cfg(feature = "fjall")]
            Self::LogFjall => Box::new(store::open(directory, Kind::Fjall)?),
            #[cfg(feature = "rocksdb")]
            Self::LogRocksdb => Box::new(store::open(directory, Kind::Rocksdb)?),
            Self::EngineLog => Box::new(engine::open(directory, Kind::Log)?),
            #[allow(unreachable_patterns, reason = "with all features nobody is left")]
            other => bail!("{} was left out of this build", other.label()),
        })
    }
}

/// What was found under a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// `None` if it keeps no deadline that can be read back.
    pub(crate) due_ms: Option<u64>,
    pub(crate) payload: Vec<u8>,
}

/// One record of a scan: its deadline, in milliseconds.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(u64) -> bool;

/// A candidate that holds records in a directory. Dropping it closes it.
pub(crate) trait Peer {
    /// Makes the changes, all or none where it can; durable on return.
    fn commit(&mut self, ops: &[Op]) -> anyhow::Result<()>;

    /// The record of that key.
    fn get(&mut self, item: Item) -> anyhow::Result<Option<Found>>;

    /// Records due at `from_ms` or later in order, until `visit` says false.
    fn scan(&mut self, from_ms: u64, visit: Visit<'_>) -> anyhow::Result<()>;

    /// How many records it holds, counted one by one where it can scan.
    fn count(&mut self) -> anyhow::Result<u64> {
        let mut count = 0;
        self.scan(0, &mut |_| {
            count += 1;
            true
        })?;
        Ok(count)
    }

    /// How many of the first records cannot be read back, because others took their place.
    fn overwritten(&self) -> u64 {
        0
    }

    /// Inserts what `next` gives, `batch` at a time, until it gives no more. Gives how long each
    /// commit took, and how long they took together.
    fn insert_all(
        &mut self,
        batch: usize,
        next: &mut dyn FnMut(f64) -> Option<Op>,
    ) -> anyhow::Result<Inserted> {
        let mut inserted = Inserted::default();
        let mut ops = Vec::with_capacity(batch);
        loop {
            ops.clear();
            ops.extend(std::iter::from_fn(|| next(inserted.seconds)).take(batch));
            if ops.is_empty() {
                return Ok(inserted);
            }
            let watch = Stopwatch::start();
            self.commit(&ops)?;
            inserted.durations.record(watch.nanoseconds());
            inserted.seconds = inserted.durations.seconds();
            inserted.records += ops.len() as u64;
        }
    }

    /// Bytes written since it was opened, by what for, as it counts them itself.
    fn written(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// The process whose memory counts.
    fn process(&self) -> u32 {
        std::process::id()
    }

    /// Remembers what the next opening needs and the candidate does not keep itself.
    fn remember(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// The memory it takes.
    fn memory(&self) -> anyhow::Result<Memory> {
        system::memory(self.process())
    }
}

/// What came of [`Peer::insert_all`].
#[derive(Default, Debug)]
pub(crate) struct Inserted {
    pub(crate) records: u64,
    pub(crate) seconds: f64,
    pub(crate) durations: Durations,
}
