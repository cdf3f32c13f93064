//! Reads a data directory, and reports its damage.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::Files;
use super::log::{self, Looked};
use super::{
    DiskError, QueueCounts, Shard, StoreError, TableProblem, TableSnapshot, TableStore, table,
};
use crate::{QueueName, StateKind};

/// What a check of a store found. See [`DiskStore::check`](super::DiskStore::check).
///
/// ```
/// use countwheel_disk::{AtRisk, CheckReport, CheckedFile, DiskOptions, DiskStore, FileKind, Problem};
///
/// let mut options = DiskOptions::default();
/// options.log.segment_bytes = 1 << 16; // for a test
/// let directory = tempfile::tempdir()?;
/// drop(DiskStore::open(directory.path(), 7, options)?);
/// let segment = directory.path().join("log/segment-0000000000000001");
/// let mut bytes = std::fs::read(&segment)?;
/// bytes[20] ^= 1;
/// std::fs::write(&segment, bytes)?;
///
/// let report: CheckReport = DiskStore::check(directory.path())?;
/// let Problem { path, at_risk, .. } = &report.problems[0];
/// assert_eq!((path, *at_risk), (&segment, AtRisk::Unknown));
/// let is_it = |file: &&CheckedFile| file.path == segment;
/// let file = report.files.iter().find(is_it).expect("it was read");
/// assert_eq!((file.kind, file.bytes), (FileKind::Segment, 1 << 16));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Every file that was read, damaged ones included.
    pub files: Vec<CheckedFile>,
    /// How many timers there are, if all of it could be read while nobody changed it.
    pub timers: Option<u64>,
    /// Whether a process had the store open and went on changing it.
    pub is_running: bool,
    /// What is wrong. Empty if nothing is.
    pub problems: Vec<Problem>,
}

impl CheckReport {
    /// Whether nothing is wrong.
    ///
    /// ```
    /// assert!(countwheel_disk::CheckReport::default().is_sound());
    /// ```
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

/// A file that a check read.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CheckedFile {
    /// The file.
    pub path: PathBuf,
    /// What it is.
    pub kind: FileKind,
    /// Its length in bytes.
    pub bytes: u64,
    /// What could be read: commits of a segment, records of a table.
    pub entries: u64,
    /// Bytes at its end of a commit that was not finished, and never acknowledged: no damage.
    pub torn_bytes: u64,
}

/// What a file of a store is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FileKind {
    /// A segment of the log.
    Segment,
    /// A segment that the tables have taken in, or one that is not used yet: nothing in it counts.
    Spare,
    /// A table.
    Table,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Segment => "segment",
            Self::Spare => "spare",
            Self::Table => "table",
        })
    }
}

/// What is wrong with a file.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Problem {
    /// The file, or the directory if it is about more than one.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// What does not add up.
    pub problem: String,
    /// What it may cost.
    pub at_risk: AtRisk,
}

impl Problem {
    pub(super) fn new(path: PathBuf, offset: u64, problem: String, at_risk: AtRisk) -> Self {
        Self {
            path,
            offset,
            problem,
            at_risk,
        }
    }

    /// The problem that an opening would refuse the store for.
    pub(super) fn of(error: &StoreError, files: &dyn Files) -> Self {
        let (path, problem) = error.finding();
        let path = path.map_or_else(|| files.path(), Path::to_owned);
        Self::new(path, 0, problem, AtRisk::Unknown)
    }
}

impl From<TableProblem> for Problem {
    fn from(found: TableProblem) -> Self {
        let at_risk = found.at_risk.map_or(AtRisk::Unknown, AtRisk::Records);
        Self::new(found.path, found.offset, found.problem, at_risk)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            offset,
            problem,
            at_risk,
        } = self;
        let path = path.display();
        // Most of what an opening says begins with the offset.
        if problem.starts_with("at offset ") {
            write!(f, "{path}: {problem} ({at_risk})")
        } else {
            write!(f, "{path}: at offset {offset}: {problem} ({at_risk})")
        }
    }
}

/// How much a problem may cost at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AtRisk {
    /// Nobody can say.
    Unknown,
    /// So many records of a table.
    Records(u64),
    /// So many commits. Each may have changed any number of timers.
    Commits(u64),
}

impl fmt::Display for AtRisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("not known how much is at risk"),
            Self::Records(records) => write!(f, "records at risk: {records}"),
            Self::Commits(commits) => write!(f, "commits at risk: {commits}"),
        }
    }
}

/// Reads everything that the store with this log and these tables has, and says what is wrong
/// with it: checksums, order, what is missing, and whether the log counts what is there. Changes
/// nothing. Nobody may write to it meanwhile.
///
/// Reads the tables twice. In memory is as much as an opening takes, and a few blocks.
///
/// ```
/// use std::sync::Arc;
/// use countwheel_disk::{LogOptions, LogStore, SystemFiles, TableOptions, TableStore, check_files};
///
/// let (log, tables) = (tempfile::tempdir()?, tempfile::tempdir()?);
/// let log = Arc::new(SystemFiles::new(log.path()));
/// let tables = Arc::new(SystemFiles::new(tables.path()));
/// let base = TableStore::open(tables.clone(), 7, TableOptions::default())?;
/// let mut options = LogOptions::default();
/// options.segment_bytes = 1 << 16;
/// drop(LogStore::open(base, log.clone(), 7, options)?);
///
/// let report = check_files(&(log as _), &(tables as _), 7)?;
/// assert!(report.is_sound());
/// assert_eq!(report.timers, Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`DiskError::Io`] if a directory cannot be read, [`DiskError::NotAStore`] if a file is of
/// another version. Whatever else is wrong with a file is a problem of the report.
pub fn check_files(
    log: &Arc<dyn Files>,
    tables: &Arc<dyn Files>,
    store_id: u64,
) -> Result<CheckReport, StoreError> {
    let mut report = CheckReport::default();
    let ingested = ingested(&**tables, store_id, &mut report)?;
    if ingested.is_some() {
        let checked = TableStore::check(Arc::clone(tables), store_id)?;
        report.files.extend(checked.files);
        let problems = checked.problems.into_iter();
        report.problems.extend(problems.map(Problem::from));
    }
    let reached = table::has_reached(&**tables, store_id);
    let reached = reached.map_err(|source| log::io_error(&**tables, source))?;
    log::walk(log, store_id, ingested, reached, &mut report, |_| Ok(()))?;
    if let (Some(ingested), true) = (ingested, report.is_sound()) {
        compare(log, tables, store_id, ingested, &mut report)?;
    }
    Ok(report)
}

/// Reads a log in which nothing is wrong as an opening does, and compares what it counts with
/// what is there.
pub(super) fn compare(
    log: &Arc<dyn Files>,
    tables: &Arc<dyn Files>,
    store_id: u64,
    ingested: u64,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    match log::look(&**log, store_id, ingested) {
        Ok(looked) => count(&looked, tables, store_id, report),
        Err(error) => {
            report.problems.push(Problem::of(&error, &**log));
            Ok(())
        }
    }
}

/// The last segment that the tables have taken in, if their manifest can be read; a problem if
/// not.
///
/// # Errors
/// [`DiskError::NotAStore`] if the manifest is whole, and of a later version or of another store:
/// that is no damage.
pub(super) fn ingested(
    tables: &dyn Files,
    store_id: u64,
    report: &mut CheckReport,
) -> Result<Option<u64>, StoreError> {
    let problem = match table::ingested(tables, store_id) {
        Ok(Some(ingested)) => return Ok(Some(ingested)),
        Ok(None) => {
            let path = tables.path().join(TableSnapshot::MANIFEST);
            let problem = "is missing".to_owned();
            Problem::new(path, 0, problem, AtRisk::Unknown)
        }
        Err(error @ StoreError::Disk(DiskError::NotAStore { .. })) => return Err(error),
        Err(error) => Problem::of(&error, tables),
    };
    report.problems.push(problem);
    Ok(None)
}

/// Compares what the log counts with what is there.
fn count(
    looked: &Looked,
    tables: &Arc<dyn Files>,
    store_id: u64,
    report: &mut CheckReport,
) -> Result<(), StoreError> {
    let mut counts: BTreeMap<(Shard, QueueName), [u64; 4]> = BTreeMap::new();
    let mut add = |shard, queue: &QueueName, kind: StateKind| {
        counts.entry((shard, queue.clone())).or_default()[kind as usize] += 1;
    };
    looked.in_memtable(&mut add);
    let read = TableStore::records(Arc::clone(tables), store_id, |found| {
        if !looked.hides(found.shard, &found.record.name) {
            add(
                found.shard,
                &found.record.name.queue,
                found.record.state.kind(),
            );
        }
        Ok(())
    })?;
    // Of each that a damaged table lost, an older one may count in its place.
    let lost = read.problems.iter().map(|problem| problem.at_risk);
    let Some(lost) = lost.sum::<Option<u64>>() else {
        return Ok(()); // whatever differs, it may be for that
    };
    let mut differ_in_all = 0;
    let mut different = Vec::new();
    let mut expected = BTreeMap::new();
    looked.counts(|shard, QueueCounts { queue, by_state }| {
        expected.insert((shard, queue), by_state);
    });
    let queues = expected.keys().chain(counts.keys()).cloned();
    for queue in queues.collect::<std::collections::BTreeSet<_>>() {
        let [there, said] =
            [&counts, &expected].map(|counts| counts.get(&queue).copied().unwrap_or_default());
        if there != said {
            let differ = there.iter().zip(said).map(|(&a, b)| a.abs_diff(b)).sum();
            differ_in_all += differ;
            let problem = format!(
                "of queue {}, in the order pending, delivering, done, dead, the log counts \
                 {said:?} and there are {there:?}",
                queue.1
            );
            let path = looked.path();
            let at_risk = AtRisk::Records(differ);
            different.push(Problem::new(path, 0, problem, at_risk));
        }
    }
    if differ_in_all > lost.saturating_mul(2) {
        report.problems.extend(different);
    }
    let timers = counts.iter().filter(|((shard, _), _)| !shard.is_reserved());
    report.timers = Some(timers.flat_map(|(_, counts)| counts).sum());
    Ok(())
}
