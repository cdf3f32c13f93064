//! The contents of `FORMAT` while a store is open.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::super::directory::{Format, persist_format};
use super::super::place::DirectoryTree;
use super::super::{Change, DiskError, StoreError};
use crate::planted::planted;

/// What `FORMAT` says. An opening raises an older one to the newest; if the disk is full then, the
/// first commit that finds room does.
#[derive(Debug)]
pub(crate) struct RaisedFormat {
    format: Mutex<Format>,
    /// Whether a commit has to look at it.
    to_raise: AtomicBool,
}

impl RaisedFormat {
    /// Of a store that is ready, or becomes so before anybody asks.
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format: Mutex::new(Format {
                ready: true,
                ..format
            }),
            to_raise: AtomicBool::new(format.is_older()),
        }
    }

    pub(super) fn get(&self) -> Format {
        *self.format.lock()
    }

    /// Raises an older format before a commit, if there is room. Without room a commit goes on,
    /// unless an earlier program, which opens the directory still, would take for damage what is in
    /// it: such a commit is refused as one for which there is no room.
    ///
    /// Any other error leaves it unknown what the directory says: no later commit may succeed.
    pub(crate) fn before(
        &self,
        place: &dyn DirectoryTree,
        directory: &Path,
        changes: &[Change],
    ) -> Result<(), StoreError> {
        if !self.to_raise.load(Ordering::Acquire) {
            return Ok(());
        }
        let is_needed = changes.iter().any(is_of_newest);
        if planted!(MakingRaisesOnce) && !is_needed {
            return Ok(());
        }
        let mut format = self.format.lock();
        if !format.is_older() {
            return Ok(());
        }
        let persisted = persist_format(place, directory, *format);
        let stays_older = persisted
            .as_ref()
            .is_ok_and(|persisted| persisted.is_older());
        self.to_raise.store(stays_older, Ordering::Release);
        *format = persisted?;
        if stays_older && is_needed {
            let path = directory.to_owned();
            return Err(DiskError::Full { path }.into());
        }
        Ok(())
    }
}

/// Whether a change is one that programs do not know which know only an older format.
fn is_of_newest(change: &Change) -> bool {
    match change {
        Change::Put { record, .. } => !record.name.queue.is_in_default(),
        Change::Remove { name, .. } => !name.queue.is_in_default(),
        Change::Given(_) | Change::Clock(_) => false,
        Change::Setting(_) => true,
    }
}
