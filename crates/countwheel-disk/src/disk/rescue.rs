//! Checks a data directory that no process has open, and saves the readable part of it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::directory::{Claim, Format, Lock, look};
use super::super::files::{Files, StoreFile, SystemFiles};
use super::super::log;
use super::super::place::{FileSystem, SET_ASIDE};
use super::super::{
    AtRisk, CheckReport, DiskError, DiskOptions, DiskStore, Loss, Problem, Repaired, StoreError,
    check_files, repair_files,
};
use super::opened::must_have;
use super::{LOG, SNAPSHOT, TABLES, beside};

/// A directory that is only read, as long as the lock is held.
pub(super) struct Closed {
    _lock: Lock,
    pub(super) store_id: u64,
    /// What is wrong with what says what the directory is.
    pub(super) problem: Option<Problem>,
    pub(super) log: Arc<dyn Files>,
    pub(super) tables: Arc<dyn Files>,
}

impl Closed {
    /// Takes a directory with a store, to read it. Refuses what is none, or is of another format.
    pub(super) fn open(directory: &Path) -> Result<Self, StoreError> {
        let not_a_store = |problem: &str| {
            DiskError::NotAStore {
                path: directory.to_owned(),
                problem: problem.to_owned(),
            }
            .into()
        };
        if !directory.is_dir() {
            return Err(not_a_store("is no directory"));
        }
        let (lock, format) = look(&FileSystem, directory)?;
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
            Err(error @ StoreError::Disk(DiskError::Corrupt { .. })) => {
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
        match must_have(&FileSystem, directory) {
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

/// The tables, and those that were set aside: all that there is to read.
#[derive(Debug)]
struct WithAside {
    tables: Arc<dyn Files>,
    aside: Arc<dyn Files>,
}

impl Files for WithAside {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = self.tables.list()?;
        let aside = self.aside.list()?;
        let aside = aside.into_iter().filter(|name| !names.contains(name));
        let aside: Vec<String> = aside.collect();
        names.extend(aside);
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        match self.tables.open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.aside.open(name),
            opened => opened,
        }
    }

    fn path(&self) -> PathBuf {
        self.tables.path()
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StoreFile>> {
        self.tables.create(name, len)
    }

    fn begin(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        self.tables.begin(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.tables.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.tables.remove(name)
    }

    fn set_aside(&self, names: &[String]) -> io::Result<()> {
        self.tables.set_aside(names)
    }

    fn sync(&self) -> io::Result<()> {
        self.tables.sync()
    }

    fn nonce(&self) -> io::Result<u64> {
        self.tables.nonce()
    }
}

impl DiskStore {
    /// Reads everything that the store in `directory` has, and says what is wrong with it:
    /// checksums, order, what is missing, whether the log counts what is there. Changes nothing,
    /// and keeps every opening out meanwhile. Reads the tables twice; in memory is as much as an
    /// opening takes.
    ///
    /// Beside a process that has the directory it keeps nobody out, reads the tables once, and
    /// compares no counts: [`CheckReport::is_running`]. What is wrong with a file counts if the
    /// file is still needed when it was read.
    ///
    /// ```
    /// use countwheel_disk::{DiskOptions, DiskStore};
    ///
    /// let mut options = DiskOptions::default();
    /// options.log.segment_bytes = 1 << 16; // for a test
    /// let directory = tempfile::tempdir()?;
    /// let store = DiskStore::open(directory.path(), 7, options)?;
    /// let report = DiskStore::check(directory.path())?; // it is in use
    /// assert!(report.is_sound() && report.is_running);
    /// drop(store);
    /// let report = DiskStore::check(directory.path())?;
    /// assert_eq!((report.timers, report.is_running), (Some(0), false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DiskError::Busy`] if a process changes it faster than it can be read,
    /// [`DiskError::NotAStore`] if there is no store of this format in it, [`DiskError::Io`] if it cannot be read,
    /// [`DiskError::Corrupt`] if not even which store it is can be read.
    pub fn check(directory: &Path) -> Result<CheckReport, StoreError> {
        match Closed::open(directory) {
            Err(StoreError::Disk(DiskError::Locked { .. })) => beside::check(directory),
            closed => closed?.check(directory),
        }
    }

    /// Makes a store in the empty directory `into` of what can be read of the damaged one in
    /// `from`, with the same id: each timer as it was last seen, revisions and fences above all
    /// that were seen. Hands what is lost, or not sure, to `lost`. `from` is only read, but must
    /// not be used any more. If it ends before its time, `into` is as good as empty.
    ///
    /// ```
    /// use countwheel_disk::{DiskOptions, DiskStore, Loss, Repaired};
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
    /// As [`check`](Self::check) for `from`, but [`DiskError::Locked`] if a process has it, as [`open`](Self::open) for `into`,
    /// [`DiskError::NotAStore`] if that holds a store already, and what `lost` gives.
    pub fn repair(
        from: &Path,
        into: &Path,
        options: DiskOptions,
        lost: &mut dyn FnMut(Loss) -> Result<(), StoreError>,
    ) -> Result<Repaired, StoreError> {
        let damaged = Closed::open(from)?;
        Self::must_be_outside(into, from)?;
        let Claim { lock, .. } = Claim::empty(&FileSystem, into)?;
        let mut repaired = Repaired::default();
        let store_id = damaged.store_id;
        Self::create(into, store_id, options, lock, |new| {
            if let Some(problem) = damaged.problem.clone() {
                lost(Loss::Damage(problem))?;
                repaired.problems = 1;
            }
            let log = &damaged.log;
            let tables: Arc<dyn Files> = Arc::new(WithAside {
                tables: Arc::clone(&damaged.tables),
                aside: Arc::new(SystemFiles::read_only(&from.join(SET_ASIDE))),
            });
            let done = repair_files(log, &tables, store_id, new.log.log(), lost)?;
            repaired = Repaired {
                problems: repaired.problems + done.problems,
                ..done
            };
            // The store of a snapshot has gone on.
            if from.join(SNAPSHOT).exists() {
                new.leave_out()?;
            }
            Ok(())
        })?;
        Ok(repaired)
    }
}
