//! Snapshots of a store that goes on, and what is done with them.
//!
//! A snapshot is a data directory with a file `SNAPSHOT`, which is written last:
//!
//! ```text
//! countwheel snapshot
//! format 1
//! store 0123456789abcdef
//! commit 17
//! file 8192 5f0c1a2b log/segment-0000000000000004
//! file 4672 -------- tables/table-0000000000000004
//! sum 77e2d3c4
//! ```
//!
//! Behind `file` are the length and the CRC-32C of what it holds. A table has none here: it is not
//! read when it is linked, and each of its frames has a checksum. The last line is the CRC-32C of
//! the lines before.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::super::directory::{
    Claim, Format, Lock, io_error, private_file, sync_directory, write_failed, write_format,
};
use super::super::log::Frozen;
use super::super::place::FileSystem;
use super::super::settings;
use super::super::{
    AtRisk, Change, CheckReport, DiskError, DiskOptions, DiskStore, Fence, Problem, Shard,
    Snapshot, StoreError, TableSnapshot, TableStore, table,
};
use super::opened::{Opened, begin, give_up, making};
use super::rescue::Closed;
use super::{LOG, SNAPSHOT, TABLES};
use crate::{Revision, SettingsVersion};

const TITLE: &str = "countwheel snapshot\nformat 1\n";
const NO_SUM: &str = "--------";
/// A line is at most about this long, and a snapshot has no more files than this.
const LINE_MAX_BYTES: u64 = 128;
const FILES_MAX: u64 = 1 << 20;

/// A restored store leaves out so many revisions and fences: as many as the store may have given
/// after the snapshot. With 20,000 changes a second, that is a year and a half.
const REVISIONS_LEFT_OUT: u64 = 1 << 40;
const FENCES_LEFT_OUT: u64 = 1 << 32;

/// What a snapshot says of a file.
struct Listed {
    path: String,
    bytes: u64,
    sum: Option<u32>,
}

impl DiskStore {
    /// Makes a snapshot in the empty directory `into`, which is made if it is not there: the store
    /// as it is after one commit, whatever is committed meanwhile. It is durable on return. If it
    /// ends before its time, `into` is as good as empty.
    ///
    /// Commits wait only while it is noted where the log ends. Until the log is copied, which is
    /// at most as long as its options allow, nothing of it is flushed; commits wait if it is full
    /// by then. Tables are linked where the file system can, else copied. A link is the same
    /// bytes on the same disk: to survive that disk, copy the snapshot to another.
    ///
    /// ```
    /// use countwheel_disk::{DiskOptions, DiskStore};
    /// use countwheel_durable::store::{Shard, Snapshot, Store};
    ///
    /// let mut options = DiskOptions::default();
    /// options.log.segment_bytes = 1 << 16; // for a test
    /// let directory = tempfile::tempdir()?;
    /// let at = |name| directory.path().join(name);
    /// let store = DiskStore::open(&at("data"), 7, options)?;
    /// let lease = store.acquire(Shard::ONLY)?.lease;
    /// let snapshot: Snapshot = store.snapshot(&at("snapshot"))?;
    /// assert_eq!(snapshot.commit, 1);
    /// assert!(DiskStore::verify(&at("snapshot"))?.is_sound());
    ///
    /// let restored = DiskStore::restore(&at("snapshot"), &at("restored"), options)?;
    /// let ownership = restored.acquire(Shard::ONLY)?;
    /// assert_eq!(ownership.store_id, 7);
    /// assert!(ownership.lease.fence > lease.fence);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DiskError::NotAStore`] if `into` holds anything, [`DiskError::Full`] if there is no
    /// room for it, [`StoreError::Poisoned`] if the store failed before, [`DiskError::Io`].
    pub fn snapshot(&self, into: &Path) -> Result<Snapshot, StoreError> {
        Self::must_be_outside(into, &self.directory)?;
        let (lock, format) = empty(into, self.format.get().store_id)?;
        let made = self.snapshot_into(into, format);
        if made.is_err() {
            give_up(&FileSystem, into);
        }
        drop(lock);
        made
    }

    fn snapshot_into(&self, into: &Path, mut format: Format) -> Result<Snapshot, StoreError> {
        let mut files = Vec::new();
        let mut copied = 0;
        let (tables, reached) = self.log.log().frozen(|tables: &TableStore, frozen| {
            // Under the same lock: what is flushed next is in neither.
            let snapshot = tables.snapshot();
            let reached = frozen.reached;
            copied += copy_log(frozen, into, &mut files)?;
            Ok((snapshot, reached))
        })?;
        let from = self.directory.join(TABLES);
        for name in tables.files() {
            let (from, path) = (from.join(&name), format!("{TABLES}/{name}"));
            let target = into.join(&path);
            if fs::hard_link(&from, &target).is_err() {
                copied += copy(&from, &target)?;
            }
            let bytes = target
                .metadata()
                .map_err(|error| write_failed(&target, error))?
                .len();
            let sum = None;
            files.push(Listed { path, bytes, sum });
        }
        // Without it, a snapshot that lost its newest segment would be taken for whole.
        let path = format!("{TABLES}/{}", table::checkpoint_of(reached));
        write(&into.join(&path), &[])?;
        let (bytes, sum) = (0, Some(crc32c::crc32c(&[])));
        files.push(Listed { path, bytes, sum });
        let path = format!("{TABLES}/{}", TableSnapshot::MANIFEST);
        write(&into.join(&path), tables.manifest())?;
        let bytes = tables.manifest().len() as u64;
        copied += bytes;
        let sum = Some(crc32c::crc32c(tables.manifest()));
        files.push(Listed { path, bytes, sum });
        for part in [LOG, TABLES] {
            sync_directory(&FileSystem, &into.join(part))?;
        }
        // Where there is a snapshot there is a store, and no half of it under this name.
        let mut made = Snapshot::default();
        made.commit = reached.commit;
        made.files = files.len() as u64;
        made.bytes = files.iter().map(|file| file.bytes).sum();
        made.copied = copied;
        write(
            &into.join(SNAPSHOT),
            text(self.format.get().store_id, reached.commit, &files).as_bytes(),
        )?;
        sync_directory(&FileSystem, into)?;
        format.ready = true;
        write_format(&FileSystem, into, format)?;
        Ok(made)
    }

    /// Reads all of a snapshot, and says what is wrong with it: the same as
    /// [`check`](Self::check), and whether its files are those that it was made of. Changes
    /// nothing.
    ///
    /// # Errors
    /// As [`check`](Self::check), and [`DiskError::NotAStore`] if `snapshot` is a data directory
    /// and no snapshot.
    pub fn verify(snapshot: &Path) -> Result<CheckReport, StoreError> {
        let closed = Closed::open(snapshot)?;
        let listed = listed(snapshot, closed.store_id)?;
        let mut report = closed.check(snapshot)?;
        for file in &listed {
            if let Err(problem) = compare(snapshot, file)? {
                let path = snapshot.join(&file.path);
                let problem = Problem::new(path, 0, problem, AtRisk::Unknown);
                report.problems.push(problem);
            }
        }
        Ok(report)
    }

    /// Makes a store in the empty directory `into` of a snapshot, which is verified first and
    /// only read. Fences and revisions go on far above those of the snapshot, so that none is
    /// given twice, whatever the store did after the snapshot. What fired since fires again, what
    /// was set since is not there, and what was removed since is there. If it ends before its
    /// time, `into` is as good as empty.
    ///
    /// The store that the snapshot was made of must not be used any more: both have one id.
    ///
    /// # Errors
    /// As [`verify`](Self::verify), [`DiskError::Corrupt`] if that finds a problem,
    /// [`DiskError::NotAStore`] if `into` holds anything, and as [`open`](Self::open).
    pub fn restore(snapshot: &Path, into: &Path, options: DiskOptions) -> Result<Self, StoreError> {
        let report = Self::verify(snapshot)?;
        if let Some(first) = report.problems.into_iter().next() {
            let Problem {
                path,
                offset,
                problem,
                ..
            } = first;
            let problem = format!("at offset {offset}: {problem}");
            return Err(DiskError::Corrupt { path, problem }.into());
        }
        Self::must_be_outside(into, snapshot)?;
        let closed = Closed::open(snapshot)?;
        let Claim { lock, .. } = Claim::empty(&FileSystem, into)?;
        making(&FileSystem, into, closed.store_id, lock, |format, lock| {
            Self::restore_into(snapshot, into, options, lock, format)
        })
    }

    fn restore_into(
        snapshot: &Path,
        into: &Path,
        options: DiskOptions,
        lock: Lock,
        format: Format,
    ) -> Result<Self, StoreError> {
        for file in listed(snapshot, format.store_id)? {
            copy(&snapshot.join(&file.path), &into.join(&file.path))?;
            if let Err(problem) = compare(into, &file)? {
                let path = into.join(&file.path);
                return Err(DiskError::Corrupt { path, problem }.into());
            }
        }
        for part in [LOG, TABLES] {
            sync_directory(&FileSystem, &into.join(part))?;
        }
        let opened = Opened::ready(&FileSystem, into, format, options, lock)?;
        let store = Self::start(into, opened)?;
        store.leave_out()?;
        Ok(store)
    }

    /// Leaves out the revisions, fences and versions of settings that the store may have given
    /// after the snapshot that this one was made of.
    pub(super) fn leave_out(&self) -> Result<(), StoreError> {
        let log = self.log.log();
        // One that nobody ever took has no numbers, but may come to have.
        let shards: BTreeSet<_> = log.shards().into_iter().chain([Shard::ONLY]).collect();
        for shard in shards {
            if shard.is_reserved() {
                continue;
            }
            let known = log.take(shard, Fence(0))?;
            let fence = Fence(known.lease.fence.0.saturating_add(FENCES_LEFT_OUT));
            let lease = log.take(shard, fence)?.lease;
            let given = known.last_revision.0.saturating_add(REVISIONS_LEFT_OUT);
            let mut beside = Vec::new();
            if shard == Shard::ONLY {
                let SettingsVersion(version) = log.settings_version();
                let version = version.saturating_add(REVISIONS_LEFT_OUT);
                beside.push(settings::given(SettingsVersion(version)));
            }
            log.commit_beside(lease, &[Change::Given(Revision(given))], beside)?;
        }
        Ok(())
    }
}

/// Takes an empty directory, or makes it, for a store that is not ready yet.
fn empty(directory: &Path, store_id: u64) -> Result<(Lock, Format), StoreError> {
    let Claim { mut lock, .. } = Claim::empty(&FileSystem, directory)?;
    let format = begin(&FileSystem, directory, store_id, &mut lock)?;
    Ok((lock, format))
}

/// Copies the segments of a log. Says how many bytes that were.
fn copy_log(frozen: Frozen, into: &Path, files: &mut Vec<Listed>) -> Result<u64, StoreError> {
    let mut copied = 0;
    for segment in frozen.segments {
        let path = format!("{LOG}/{}", segment.name);
        let target = into.join(&path);
        let make = || {
            let mut file = private_file().create_new(true).open(&target)?;
            let (mut sum, mut at, mut written) = (0, 0, 0);
            segment.read(|offset, piece| {
                sum = crc32c::crc32c_append(with_zeros(sum, offset - at), piece);
                at = offset + piece.len() as u64;
                written += piece.len() as u64;
                file.seek(SeekFrom::Start(offset))?;
                file.write_all(piece)
            })?;
            // What is not written is zeros, and need take no room.
            file.set_len(segment.len)?;
            file.sync_all()?;
            Ok((with_zeros(sum, segment.len - at), written))
        };
        let (sum, written) = make().map_err(|error| write_failed(&target, error))?;
        copied += written;
        files.push(Listed {
            path,
            bytes: segment.len,
            sum: Some(sum),
        });
    }
    Ok(copied)
}

/// The checksum of what has the checksum `sum` and so many zeros behind it.
fn with_zeros(mut sum: u32, mut count: u64) -> u32 {
    let zeros = [0; 1 << 12];
    while count > 0 {
        let piece = usize::try_from(count).map_or(zeros.len(), |count| count.min(zeros.len()));
        sum = crc32c::crc32c_append(sum, &zeros[..piece]);
        count -= piece as u64;
    }
    sum
}

/// Copies a file, and syncs the copy. Says how long it is.
fn copy(from: &Path, into: &Path) -> Result<u64, StoreError> {
    let mut from = File::open(from).map_err(|error| write_failed(from, error))?;
    let mut write = || {
        let mut file = private_file().create_new(true).open(into)?;
        let copied = io::copy(&mut from, &mut file)?;
        file.sync_all()?;
        Ok(copied)
    };
    write().map_err(|error| write_failed(into, error))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let write = || {
        let mut file = private_file().create(true).truncate(true).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| write_failed(path, error))
}

/// What is wrong with a file; nothing if it is as it is listed.
fn compare(directory: &Path, listed: &Listed) -> Result<Result<(), String>, StoreError> {
    let path = directory.join(&listed.path);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Err("is missing".to_owned()));
        }
        Err(error) => return Err(io_error(&path, error)),
    };
    let on_error = |error| io_error(&path, error);
    let found = file.metadata().map_err(on_error)?.len();
    if found != listed.bytes {
        let expected = listed.bytes;
        return Ok(Err(format!("it has {found} bytes instead of {expected}")));
    }
    let Some(expected) = listed.sum else {
        return Ok(Ok(()));
    };
    let (mut sum, mut piece) = (0, vec![0; 1 << 16]);
    loop {
        let read = file.read(&mut piece).map_err(on_error)?;
        if read == 0 {
            break;
        }
        sum = crc32c::crc32c_append(sum, &piece[..read]);
    }
    if sum != expected {
        return Ok(Err("its checksum does not match".to_owned()));
    }
    Ok(Ok(()))
}

fn text(store_id: u64, commit: u64, files: &[Listed]) -> String {
    let mut text = format!("{TITLE}store {store_id:016x}\ncommit {commit}\n");
    for Listed { path, bytes, sum } in files {
        let sum = sum.map_or_else(|| NO_SUM.to_owned(), |sum| format!("{sum:08x}"));
        // Writing to a text cannot fail.
        writeln!(text, "file {bytes} {sum} {path}").unwrap_or_default();
    }
    let sum = crc32c::crc32c(text.as_bytes());
    writeln!(text, "sum {sum:08x}").unwrap_or_default();
    text
}

/// The files of a snapshot.
fn listed(snapshot: &Path, store_id: u64) -> Result<Vec<Listed>, StoreError> {
    let path = snapshot.join(SNAPSHOT);
    let not_a_store = |problem: &str| {
        DiskError::NotAStore {
            path: path.clone(),
            problem: problem.to_owned(),
        }
        .into()
    };
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(not_a_store("is missing: this is no snapshot"));
        }
        file => file.map_err(|error| io_error(&path, error))?,
    };
    let mut bytes = Vec::new();
    file.take(LINE_MAX_BYTES * FILES_MAX)
        .read_to_end(&mut bytes)
        .map_err(|error| io_error(&path, error))?;
    let text = String::from_utf8_lossy(&bytes);
    if text.starts_with("countwheel snapshot\nformat ") && !text.starts_with(TITLE) {
        return Err(not_a_store("is of another version"));
    }
    read(&text, store_id).ok_or_else(|| {
        DiskError::Corrupt {
            path: path.clone(),
            problem: "at offset 0: it is not as it was written".to_owned(),
        }
        .into()
    })
}

/// Whether a text lists the files of a snapshot.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_list(text: &str, store_id: u64) -> bool {
    read(text, store_id).is_some()
}

fn read(found: &str, store_id: u64) -> Option<Vec<Listed>> {
    let mut lines = found.strip_prefix(TITLE)?.lines();
    lines.next()?;
    let commit = lines.next()?.strip_prefix("commit ")?.parse().ok()?;
    let mut files = Vec::new();
    for line in lines {
        let Some(file) = line.strip_prefix("file ") else {
            break;
        };
        let mut fields = file.splitn(3, ' ');
        let bytes = fields.next()?.parse().ok()?;
        let sum = match fields.next()? {
            NO_SUM => None,
            sum => Some(u32::from_str_radix(sum, 16).ok()?),
        };
        let path = fields.next()?.to_owned();
        // Of these two directories and no other.
        let name = [LOG, TABLES]
            .into_iter()
            .find_map(|part| path.strip_prefix(part)?.strip_prefix('/'))?;
        if PathBuf::from(name).file_name()? != name {
            return None;
        }
        files.push(Listed { path, bytes, sum });
    }
    // Whatever else it says, it was not written so.
    (text(store_id, commit, &files) == found).then_some(files)
}
