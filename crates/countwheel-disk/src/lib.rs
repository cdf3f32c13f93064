//! Countwheel's store on a disk: a log in front of sorted tables in one data directory.
//!
//! ```
//! use std::sync::mpsc;
//! use std::time::Duration;
//!
//! let directory = tempfile::tempdir()?;
//! let (close, closed) = mpsc::channel();
//! let timers = countwheel_disk::open(directory.path(), move |attempt| {
//!     close.send(attempt.name.key.to_string())
//! })?;
//! timers.set("unpaid/order-42", Duration::from_millis(20), "close it")?;
//! assert_eq!(closed.recv()?, "order-42");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`open`] runs the timers of [`durable`] on the store in a directory. [`Opening`] has its choices.
//!
//! The module [`guide`] leads from the first timer to sizes: [handlers and threads](guide::handlers),
//! [at least once](guide::repeats), [retries](guide::retries), [testing](guide::testing),
//! [restarts](guide::restarts), [snapshots](guide::snapshots).
//!
//! # The store alone
//!
//! A commit is one write and one sync of the log. In the background its log segments are flushed to
//! sorted tables. An opening reads the log alone. [`DiskStore`] is the store as a program opens it;
//! [`LogStore`] and [`TableStore`] are its parts. Each is useful without the other: the log stands
//! in front of any store that is [`Sorted`].
//!
//! ```
//! use countwheel_disk::{DiskOptions, DiskStore};
//! use countwheel_durable::Revision;
//! use countwheel_durable::store::{Change, Shard, Store};
//!
//! let directory = tempfile::tempdir()?;
//! let store = DiskStore::open(directory.path(), 7, DiskOptions::default())?;
//! let lease = store.acquire(Shard::ONLY)?.lease;
//! store.commit(lease, &[Change::Given(Revision(5))])?; // synced when it returns
//! drop(store);
//!
//! let again = DiskStore::open(directory.path(), 9, DiskOptions::default())?;
//! let ownership = again.acquire(Shard::ONLY)?;
//! assert_eq!((ownership.store_id, ownership.last_revision), (7, Revision(5)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Damage
//!
//! A refused start changes no byte. [`DiskStore::check`] names every damage with its file, its
//! offset and the records at risk. [`DiskStore::repair`] makes a new directory of everything
//! readable. [`DiskStore::snapshot`](OnDisk::snapshot) copies a running store.
//!
//! # Tests
//!
//! With the feature `simulated`, the module of that name has a disk in memory that tears writes,
//! forgets unsynced data, fills up and fails.

mod check;
mod codec;
mod directory;
mod disk;
mod files;
#[cfg(feature = "planted-bugs")]
pub mod fuzz;
#[cfg(any(doc, doctest))]
pub mod guide;
mod log;
mod opening;
mod place;
mod planted;
mod repair;
mod scrub;
mod settings;
#[cfg(any(test, feature = "simulated"))]
pub mod simulated;
mod sorted;
mod table;
pub mod unchanged;

pub use check::{AtRisk, CheckReport, CheckedFile, FileKind, Problem, check_files};
pub use disk::{DiskOptions, DiskStats, DiskStore};
pub use files::{Files, StoreFile, SystemFiles};
pub use log::{FlushingLog, LogOptions, LogStats, LogStore, Recovery};
pub use opening::{Opening, open};
#[cfg(feature = "planted-bugs")]
pub use planted::{PlantedBug, plant};
pub use repair::{Loss, Repaired, repair_files};
pub use sorted::{Flushed, MemorySorted, Reached, Sorted};
pub use table::{
    Salvaged, TableCheck, TableOptions, TableProblem, TableSnapshot, TableStats, TableStore,
};

/// The engine, its verbs and its types.
pub use countwheel_durable as durable;

// The names of the seam, for every file here.
use countwheel_durable::store::{
    Before, Change, ClockNote, Commit, DiskError, DueEntry, DuePage, DueScan, Fence, Filter, Gaps,
    Lease, MemoryStore, OnDisk, OnFailure, OpenFiles, Ownership, Page, Position, QueueCounts,
    Scrubbed, Shard, Snapshot, Store, StoreError, Summary, Totals, one_by_one, page,
};
use countwheel_durable::{
    AttemptEnd, AttemptRecord, DeadReason, DueClock, Key, Missed, QueueName, Record, Recurring,
    RetryPolicy, Revision, Setting, SettingName, SettingValue, Settings, SettingsVersion, State,
    StateKind, TimerId, TimerName, Trouble, TroubleReason, Troubles, Wake,
};

/// The example of the crate's README is compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
