//! Checks a directory that a process has open and goes on changing.
//!
//! The check locks nothing. A table never changes, so a damaged table counts if the manifest still
//! names it after the read. The log changes during the read, so damage to the log counts if the
//! next look finds it again in the same place.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::super::check;
use super::super::directory::{Format, inspect};
use super::super::files::{Files, SystemFiles};
use super::super::log;
use super::super::place::FileSystem;
use super::super::{CheckReport, DiskError, Problem, StoreError, TableStore, table};
use super::{LOG, TABLES};

/// So often a directory is looked at again that has changed meanwhile.
const TRIES: usize = 20;

/// Reads what the running store in `directory` has on the disk. What the log counts is not
/// compared with what is there: the two are never still together.
///
/// # Errors
/// [`DiskError::Busy`] if the store changed in each of the tries.
pub(super) fn check(directory: &Path) -> Result<CheckReport, StoreError> {
    let Some(Format {
        store_id,
        ready: true,
        ..
    }) = inspect(&FileSystem, directory)?
    else {
        return Err(DiskError::NotAStore {
            path: directory.to_owned(),
            problem: "holds a store that was never finished".to_owned(),
        }
        .into());
    };
    let files =
        |part| -> Arc<dyn Files> { Arc::new(SystemFiles::read_only(&directory.join(part))) };
    check_files(&files(LOG), &files(TABLES), store_id)
}

pub(super) fn check_files(
    log: &Arc<dyn Files>,
    tables: &Arc<dyn Files>,
    store_id: u64,
) -> Result<CheckReport, StoreError> {
    let mut report = CheckReport {
        is_running: true,
        ..CheckReport::default()
    };
    check_tables(tables, store_id, &mut report)?;
    check_log(log, tables, store_id, &mut report)?;
    Ok(report)
}

/// Checks every table, and those that come up meanwhile.
fn check_tables(
    tables: &Arc<dyn Files>,
    store_id: u64,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut checked = BTreeSet::new();
    for _ in 0..TRIES {
        let found = TableStore::check_more(Arc::clone(tables), store_id, &mut checked)?;
        let Some(found) = found else {
            return Ok(());
        };
        report.files.extend(found.files);
        let problems = found.problems.into_iter();
        report.problems.extend(problems.map(Problem::from));
        if checked.is_empty() {
            return Ok(()); // not even the manifest can be read
        }
    }
    Err(DiskError::Busy {
        path: tables.path(),
    }
    .into())
}

/// Walks through the log until a walk finds nothing wrong, or the same as the one before.
fn check_log(
    log: &Arc<dyn Files>,
    tables: &Arc<dyn Files>,
    store_id: u64,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut before: Vec<Problem> = Vec::new();
    for _ in 0..TRIES {
        let mut found = CheckReport::default();
        let ingested = check::ingested(&**tables, store_id, &mut CheckReport::default())?;
        // Before the walk: the log only goes on.
        let reached = table::has_reached(&**tables, store_id);
        let reached = reached.map_err(|source| log::io_error(&**tables, source))?;
        log::walk(log, store_id, ingested, reached, &mut found, |_| Ok(()))?;
        let is_sure = found.problems.iter().all(|one| before.contains(one));
        if is_sure {
            report.files.extend(found.files);
            report.problems.extend(found.problems);
            return Ok(());
        }
        before = found.problems;
    }
    Err(DiskError::Busy { path: log.path() }.into())
}
