//! Which parts of a log have found the disk full, readable without a lock of the log's: whoever
//! watches the service must not wait for a sync.

use std::sync::atomic::{AtomicBool, Ordering};

use super::LogStore;
use super::supply::Trouble as WriteTrouble;
use crate::files::is_full;
use crate::{Sorted, StoreError};
use crate::{Trouble, TroubleReason};

/// What found no room when it was tried last.
#[derive(Debug, Default)]
pub(super) struct FullDisk {
    /// A file of the log's.
    making: AtomicBool,
    /// The beginning of a segment in a spare, which could not be opened.
    beginning: AtomicBool,
    /// The name of a segment. Known to be there again once one has its name.
    naming: AtomicBool,
    /// A commit in a segment that has its room: a disk that copies on writing.
    appending: AtomicBool,
    /// A flush to the sorted store.
    flushing: AtomicBool,
}

impl FullDisk {
    /// Notes whether there was no room for a file of the log's.
    pub(super) fn made(&self, is_full: bool) {
        self.making.store(is_full, Ordering::SeqCst);
    }

    /// Whether the last file of the log's found no room.
    pub(super) fn has_no_file(&self) -> bool {
        self.making.load(Ordering::SeqCst)
    }

    /// Notes whether a segment could not be begun.
    pub(super) fn begun(&self, is_full: bool) {
        self.beginning.store(is_full, Ordering::SeqCst);
    }

    /// Notes whether there was no room for the name of a segment.
    pub(super) fn named(&self, is_full: bool) {
        self.begun(is_full);
        self.naming.store(is_full, Ordering::SeqCst);
    }

    /// Whether the last segment could not be begun.
    pub(super) fn has_no_segment(&self) -> bool {
        self.beginning.load(Ordering::SeqCst)
    }

    /// Notes whether a commit found no room where it has its place.
    pub(super) fn appended(&self, is_full: bool) {
        self.appending.store(is_full, Ordering::SeqCst);
    }

    /// Whether the last commit found no room where it has its place.
    pub(super) fn takes_no_commit(&self) -> bool {
        self.appending.load(Ordering::SeqCst)
    }

    /// Whether somebody has to look whether there is room again, since no commit may come that would
    /// find out.
    pub(super) fn wants_look(&self) -> bool {
        self.has_no_segment() || self.takes_no_commit()
    }

    /// Notes whether there was no room for a flush.
    pub(super) fn flushed(&self, is_full: bool) {
        self.flushing.store(is_full, Ordering::SeqCst);
    }

    fn any(&self) -> bool {
        let parts = [&self.naming, &self.flushing];
        self.has_no_file()
            || self.wants_look()
            || parts.iter().any(|part| part.load(Ordering::SeqCst))
    }
}

impl<B: Sorted> LogStore<B> {
    /// Looks whether a commit can be written and a segment be begun again, if one could not: no
    /// commit may come that would find out.
    pub(super) fn look_for_room(&self) -> Result<(), StoreError> {
        if self.full_disk.takes_no_commit() {
            let mut writer = self.writer()?;
            let cleared = writer.clear_next();
            self.judged(&mut writer, cleared)?;
            self.full_disk.appended(false);
        }
        if !self.full_disk.has_no_segment() {
            return Ok(());
        }
        let spare = self.writer()?.supply.last().cloned();
        if let Some(Err(error)) = spare.map(|spare| self.files.open(&spare.name))
            && is_full(&error)
        {
            return Err(WriteTrouble::Full.error(&*self.files));
        }
        self.full_disk.begun(false);
        Ok(())
    }

    /// The trouble of a full disk, as soon as any part of the store has found it full: long before
    /// the first commit that is refused, since the log has room of its own.
    pub(super) fn full_disk(&self) -> Option<Trouble> {
        let is_full = self.full_disk.any() || self.base.is_full();
        is_full.then(|| {
            let detail = "no space left, or no file can be opened";
            Trouble::new(TroubleReason::DiskFull, Some(self.files.path()), detail)
        })
    }
}
