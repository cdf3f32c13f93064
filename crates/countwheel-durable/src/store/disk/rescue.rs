//! What is done to a data directory that nobody has open: it is checked, and what can be saved of
//! it is saved.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::super::directory::{Format, LOG_AND_TABLES, claim, look};
use super::super::files::{Files, SystemFiles};
use super::super::log;
use super::super::{
    AtRisk, CheckReport, DiskOptions, DiskStore, Loss, Problem, Repaired, StoreError, check_files,
    repair_files,
};
use super::{LOG, TABLES, must_have};

/// A directory that is only read, as long as the lock is held.
pub(super) struct Closed {
    _lock: Option<File>,
    pub(super) store_id: u64,
    /// What is wrong with what says what the directory is.
    pub(super) problem: Option<Problem>,
    pub(super) log: Arc<dyn Files>,
    pub(super) tables: Arc<dyn Files>,
}

impl Closed {
    /// Takes a directory with a store, to read it. Refuses what is none, or is of another format.
    pub(super) fn open(directory: &Path) -> Result<Self, StoreError> {
        let not_a_store = |problem: &str| StoreError::NotAStore {
            path: directory.to_owned(),
            problem: problem.to_owned(),
        };
        if !directory.is_dir() {
            return Err(not_a_store("is no directory"));
        }
        let (lock, format) = look(directory, LOG_AND_TABLES)?;
        let files =
            |part| -> Arc<dyn Files> { Arc::new(SystemFiles::read_only(&directory.join(part))) };
        let (log, tables) = (files(LOG), files(TABLES));
        let (store_id, problem) = match format {
            Ok(Some(Format {
                store_id,
                ready: true,
                ..
            })) => (store_id, None),
            Ok(Some(_)) => return Err(not_a_store("holds a store that was never finished")),
            Ok(None) => return Err(not_a_store("is empty")),
            // What it was is not known then, but the log knows which store it is of.
            Err(error @ StoreError::Corrupt { .. }) => {
                let store_id = log::store_id(&*log).ok_or(error)?;
                let path = directory.join("FORMAT");
                let problem = "it is damaged".to_owned();
                let problem = Problem::new(path, 0, problem, AtRisk::Unknown);
                (store_id, Some(problem))
            }
            Err(error) => return Err(error),
        };
        Ok(Self {
            _lock: lock,
            store_id,
            problem,
            log,
            tables,
        })
    }

    pub(super) fn check(&self, directory: &Path) -> Result<CheckReport, StoreError> {
        let mut report = CheckReport::default();
        report.problems.extend(self.problem.clone());
        match must_have(directory) {
            Ok(()) => {
                let found = check_files(&self.log, &self.tables, self.store_id)?;
                report.files = found.files;
                report.timers = found.timers.filter(|_| report.is_sound());
                report.problems.extend(found.problems);
            }
            Err(error) => report.problems.push(Problem::of(&error, &*self.log)),
        }
        Ok(report)
    }
}

impl DiskStore {
    /// Reads everything that the store in `directory` has, and says what is wrong with it:
    /// checksums, order, what is missing, whether the log counts what is there. Changes nothing,
    /// and keeps every opening out meanwhile. Reads the tables twice; in memory is as much as an
    /// opening takes.
    ///
    /// ```
    /// use countwheel_durable::store::{DiskOptions, DiskStore};
    ///
    /// let mut options = DiskOptions::default();
    /// options.log.segment_bytes = 1 << 16; // for a test
    /// let directory = tempfile::tempdir()?;
    /// let store = DiskStore::open(directory.path(), 7, options)?;
    /// assert!(DiskStore::check(directory.path()).is_err()); // it is in use
    /// drop(store);
    /// assert!(DiskStore::check(directory.path())?.is_sound());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Locked`] if a process has the directory, [`StoreError::NotAStore`] if there
    /// is no store of this format in it, [`StoreError::Io`] if it cannot be read,
    /// [`StoreError::Corrupt`] if not even which store it is can be read.
    pub fn check(directory: &Path) -> Result<CheckReport, StoreError> {
        Closed::open(directory)?.check(directory)
    }

    /// Makes a store in the empty directory `into` of what can be read of the damaged one in
    /// `from`, with the same id: each timer as it was last seen, revisions and fences above all
    /// that were seen. Hands what is lost, or not sure, to `lost`. `from` is only read, but must
    /// not be used any more. If it ends before its time, `into` is as good as empty.
    ///
    /// ```
    /// use countwheel_durable::store::{DiskOptions, DiskStore, Loss, Repaired};
    ///
    /// let mut options = DiskOptions::default();
    /// options.log.segment_bytes = 1 << 16; // for a test
    /// let (from, into) = (tempfile::tempdir()?, tempfile::tempdir()?);
    /// drop(DiskStore::open(from.path(), 7, options)?);
    /// let mut print = |lost| {
    ///     match lost {
    ///         Loss::Stale { name, .. } => println!("{name} may have been changed since"),
    ///         lost => println!("{lost}"),
    ///     }
    ///     Ok(())
    /// };
    /// let repaired = DiskStore::repair(from.path(), into.path(), options, &mut print)?;
    /// assert_eq!(repaired, Repaired::default()); // nothing was there, and nothing was lost
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`check`](Self::check) for `from`, as [`open`](Self::open) for `into`,
    /// [`StoreError::NotAStore`] if that holds a store already, and what `lost` gives.
    pub fn repair(
        from: &Path,
        into: &Path,
        options: DiskOptions,
        lost: &mut dyn FnMut(Loss) -> Result<(), StoreError>,
    ) -> Result<Repaired, StoreError> {
        let damaged = Closed::open(from)?;
        let (lock, format) = claim(into, LOG_AND_TABLES)?;
        if format.is_some_and(|format| format.ready) {
            return Err(StoreError::NotAStore {
                path: into.to_owned(),
                problem: "holds a store already".to_owned(),
            });
        }
        let mut repaired = Repaired::default();
        let store_id = damaged.store_id;
        Self::create(into, store_id, options, lock, |new| {
            if let Some(problem) = damaged.problem.clone() {
                lost(Loss::Damage(problem))?;
                repaired.problems = 1;
            }
            let Closed { log, tables, .. } = &damaged;
            let done = repair_files(log, tables, store_id, new.log.log(), lost)?;
            repaired = Repaired {
                problems: repaired.problems + done.problems,
                ..done
            };
            Ok(())
        })?;
        Ok(repaired)
    }
}
