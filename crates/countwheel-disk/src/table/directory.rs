//! The shared parts of a table store: its files, its numbers, and its handling of errors.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::TableOptions;
use super::cache::Cache;
use super::checkpoint;
use crate::files::{Files, is_full};
use crate::{DiskError, Gaps, Reached, StoreError};
use crate::{Trouble, TroubleReason, Troubles};

/// A store's files.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) files: Arc<dyn Files>,
    pub(super) store_id: u64,
    pub(super) options: TableOptions,
    pub(super) cache: Cache,
    next_file: AtomicU64,
    written: [AtomicU64; Purpose::COUNT],
    poisoned: AtomicBool,
    /// What cannot be read of tables that are still there.
    pub(super) troubles: Troubles,
    pub(super) gaps: OpenGaps,
}

/// What a table is written for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// An ingest.
    TakeIn,
    /// A merge of one tier into the next, or of a run by itself.
    Merge,
    /// A merge of everything, since too much was removed.
    Purge,
}

impl Purpose {
    const COUNT: usize = 3;
}

/// How many tables have an index of which a part cannot be read.
#[derive(Debug, Default)]
pub(super) struct OpenGaps {
    dues: AtomicU64,
    lists: AtomicU64,
    closed: AtomicU64,
}

impl OpenGaps {
    pub(super) fn opens(&self, in_dues: bool) {
        let gaps = if in_dues { &self.dues } else { &self.lists };
        gaps.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn closes(&self, in_dues: bool) {
        let gaps = if in_dues { &self.dues } else { &self.lists };
        gaps.fetch_sub(1, Ordering::SeqCst);
        if in_dues {
            self.closed.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(super) fn get(&self) -> Gaps {
        Gaps {
            dues: self.dues.load(Ordering::SeqCst) > 0,
            lists: self.lists.load(Ordering::SeqCst) > 0,
            closed: self.closed.load(Ordering::SeqCst),
        }
    }
}

/// What a file is by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FileName {
    Table(u64),
    /// The one that counts.
    Manifest,
    /// One that was being written.
    NewManifest(u64),
    /// A checkpoint of how far the log in front has reached.
    Checkpoint(Reached),
}

const NEW_MANIFEST: &str = "manifest-new-";
const TABLE: &str = "table-";
/// No store comes to a number above this: who has one did not make it, and there have to be
/// numbers behind it.
const FILES_MAX: u64 = 1 << 62;

impl Directory {
    /// The name of the manifest that counts.
    pub(super) const MANIFEST: &str = "manifest";

    pub(super) fn new(
        files: Arc<dyn Files>,
        store_id: u64,
        options: TableOptions,
        next_file: u64,
    ) -> Self {
        Self {
            files,
            store_id,
            options,
            cache: Cache::new(options.cache_bytes),
            next_file: AtomicU64::new(next_file),
            written: Default::default(),
            poisoned: AtomicBool::new(false),
            troubles: Troubles::default(),
            gaps: OpenGaps::default(),
        }
    }

    /// A number that no file has or had.
    pub(super) fn next_file(&self) -> u64 {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    /// Above every number that was given.
    pub(super) fn files_end(&self) -> u64 {
        self.next_file.load(Ordering::Relaxed)
    }

    /// Counts bytes of a table that were written.
    pub(super) fn count_written(&self, purpose: Purpose, bytes: u64) {
        self.written[purpose as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// How many bytes of tables were written for this.
    pub(super) fn written(&self, purpose: Purpose) -> u64 {
        self.written[purpose as usize].load(Ordering::Relaxed)
    }

    pub(super) fn table_name(number: u64) -> String {
        format!("{TABLE}{number:016x}")
    }

    pub(super) fn new_manifest_name(number: u64) -> String {
        format!("{NEW_MANIFEST}{number:016x}")
    }

    /// What a file of this name is; `None` if it is none of a table store's.
    pub(super) fn parse(name: &str) -> Option<FileName> {
        let number = |prefix| {
            let number = u64::from_str_radix(name.strip_prefix(prefix)?, 16).ok();
            number.filter(|&number| number <= FILES_MAX)
        };
        if name == Self::MANIFEST {
            return Some(FileName::Manifest);
        }
        if let Some(reached) = checkpoint::parse(name) {
            return Some(FileName::Checkpoint(reached));
        }
        if let Some(number) = number(TABLE) {
            return (Self::table_name(number) == name).then_some(FileName::Table(number));
        }
        let number = number(NEW_MANIFEST)?;
        (Self::new_manifest_name(number) == name).then_some(FileName::NewManifest(number))
    }

    /// What to say of a write that failed: a full disk is nobody's fault, and what was written is
    /// given up; anything else is final.
    pub(super) fn write_failed(&self, error: io::Error) -> StoreError {
        if is_full(&error) {
            let path = self.files.path();
            return DiskError::Full { path }.into();
        }
        self.sync_failed(error)
    }

    /// What to say of a sync that failed, of files or names: it is final.
    pub(super) fn sync_failed(&self, error: io::Error) -> StoreError {
        self.poison();
        io_error(&*self.files, error)
    }

    pub(super) fn poison(&self) {
        self.poisoned.store(true, Ordering::SeqCst);
    }

    pub(super) fn check_usable(&self) -> Result<(), StoreError> {
        if self.poisoned.load(Ordering::SeqCst) {
            return Err(StoreError::Poisoned);
        }
        Ok(())
    }

    /// Removes a file that nobody needs. If that fails, the next opening does it.
    pub(super) fn discard(&self, name: &str) {
        if let Err(error) = self.files.remove(name) {
            tracing::warn!(name, %error, "a file that is not needed could not be removed");
        }
    }

    /// Notes something that cannot be read, and that is gone on with. Says whether it is new.
    pub(super) fn note(&self, reason: TroubleReason, error: &StoreError) -> bool {
        let is_new = self.troubles.note(Trouble::of(reason, error));
        if is_new {
            tracing::error!(%reason, %error, "a table cannot be read; everything else goes on");
        }
        is_new
    }

    pub(super) fn corrupt(&self, name: &str, offset: u64, problem: &str) -> StoreError {
        corrupt(&*self.files, name, offset, problem)
    }
}

pub(super) fn io_error(files: &dyn Files, source: io::Error) -> StoreError {
    DiskError::Io {
        path: files.path(),
        source,
    }
    .into()
}

pub(super) fn corrupt(files: &dyn Files, name: &str, offset: u64, problem: &str) -> StoreError {
    DiskError::Corrupt {
        path: files.path().join(name),
        problem: format!("at offset {offset}: {problem}"),
    }
    .into()
}

pub(super) fn not_a_store(files: &dyn Files, name: &str, problem: String) -> StoreError {
    DiskError::NotAStore {
        path: files.path().join(name),
        problem,
    }
    .into()
}
