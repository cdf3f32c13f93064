//! The data directory: its owner, its kind, and the progress of its making.
//!
//! The owning process holds two locks. One is on the directory itself, which nobody can remove. The
//! other is on the file `LOCK`, for earlier versions and for file systems without locks of
//! directories. `FORMAT` says what the directory is. While the store is made, `FORMAT` says
//! `creating`: the next start makes a half-made store again, and never takes a `ready` store for a
//! new one.
//!
//! A look changes nothing: the opening writes neither file before it is known to succeed.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::files::is_full;
use super::place::DirectoryTree;
use super::{DiskError, StoreError};
use crate::planted::planted;

const LOCK: &str = "LOCK";
/// The file that says what a directory is.
pub(super) const FORMAT: &str = "FORMAT";
const FORMAT_NEW: &str = "FORMAT.new";
const LOST_AND_FOUND: &str = "lost+found";

/// The first line of `FORMAT`.
const TITLE: &str = "countwheel data directory";
/// The version of a directory as it is made.
pub(super) const VERSION: u64 = 3;
/// The version before: no queue has a namespace. It is opened, and becomes the one above.
pub(super) const VERSION_2: u64 = 2;
/// The first version held one database of another library. No release wrote it.
const VERSION_1: u64 = 1;

/// What `FORMAT` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Format {
    pub(super) version: u64,
    pub(super) store_id: u64,
    pub(super) ready: bool,
}

/// Who has the directory, as long as this is not dropped.
#[derive(Debug)]
pub(super) struct Lock {
    directory: Option<File>,
    file: Option<File>,
    /// Whether nobody else can be where the directory is.
    is_alone: bool,
    /// So that a second opening in this process can say where the first one is.
    here: Option<Arc<OpenHere>>,
}

/// The directories that this process has open, by its own id, their devices and inodes. A forked process
/// has a copy of the list, and has none of them open.
static OPEN_HERE: Mutex<BTreeSet<(u32, (u64, u64))>> = Mutex::new(BTreeSet::new());

/// An entry of [`OPEN_HERE`].
#[derive(Debug)]
struct OpenHere((u32, (u64, u64)));

impl OpenHere {
    /// What tells a directory from all others; `None` where the system has nothing of the kind.
    fn identity(path: &Path) -> Option<(u64, u64)> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.dev(), metadata.ino()))
        }
        #[cfg(not(unix))]
        {
            let _ = path;
            None
        }
    }

    fn note(directory: &Path) -> Option<Arc<Self>> {
        let entry = (std::process::id(), Self::identity(directory)?);
        OPEN_HERE.lock().insert(entry);
        Some(Arc::new(Self(entry)))
    }

    /// The error of who finds `path` locked, in `directory` or the directory itself.
    fn locked(path: &Path, directory: &Path) -> StoreError {
        let identity = Self::identity(directory).map(|it| (std::process::id(), it));
        let here = identity.is_some_and(|it| OPEN_HERE.lock().contains(&it));
        let taker = Self::identity(path).and_then(|of| taker(PROCESSES.as_ref(), of));
        let by = taker.filter(|_| !here).and_then(|taker| {
            let path = std::fs::canonicalize(path).ok()?;
            holder(PROCESSES.as_ref(), &path, taker)
        });
        DiskError::Locked {
            path: path.to_owned(),
            here,
            by,
            inherited: by.is_some() && by != taker,
        }
        .into()
    }
}

/// Where Linux says what processes there are and have.
const PROCESSES: &str = "/proc";

/// The process that took a lock of the file of this device and number, if the system says so. It may
/// have ended: the lock is there until everybody has closed the file who got it from that process.
fn taker(processes: &Path, (device, inode): (u64, u64)) -> Option<u32> {
    let locks = std::fs::read_to_string(processes.join("locks")).ok()?;
    let major = device >> 8 & 0xfff | device >> 32 & !0xfff;
    let minor = device & 0xff | device >> 12 & !0xff;
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    // 7: FLOCK  ADVISORY  WRITE 2262 fe:00:5677199 0 EOF
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(4);
        let process = words.next()?.parse().ok()?;
        (words.next()? == file && process > 0).then_some(process)
    })
}

/// The process that has the file `path` open: the one that took the lock of it, if that may have it,
/// or one that has it from there; `None` if none is found.
fn holder(processes: &Path, path: &Path, taker: u32) -> Option<u32> {
    let has = |process: u32| -> Option<bool> {
        let files = processes.join(process.to_string()).join("fd");
        let mut files = std::fs::read_dir(files).ok()?;
        // A link's text, so that no other file system is asked.
        Some(files.any(|file| {
            let target = file.and_then(|file| std::fs::read_link(file.path()));
            target.is_ok_and(|target| target == path)
        }))
    };
    let is_there = processes.join(taker.to_string()).exists();
    // One of another user does not say what it has.
    if is_there && has(taker) != Some(false) {
        return Some(taker);
    }
    let names = std::fs::read_dir(processes).ok()?;
    let others = names.filter_map(|name| name.ok()?.file_name().to_str()?.parse().ok());
    let mut others = others.filter(|&process| process != std::process::id());
    others.find(|&process| has(process) == Some(true))
}

impl Drop for OpenHere {
    fn drop(&mut self) {
        OPEN_HERE.lock().remove(&self.0);
    }
}

/// A directory that this process has.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) lock: Lock,
    /// What it holds; `None` if it is empty.
    pub(super) format: Option<Format>,
}

impl Claim {
    /// Takes the directory for this process, which is not there or holds a store of a version that
    /// is read. Makes it if it is not there; else it changes nothing.
    pub(super) fn of(place: &dyn DirectoryTree, directory: &Path) -> Result<Self, StoreError> {
        create_directory(place, directory)?;
        // Looked at before it is locked, since it may be a stranger's directory, and again under
        // the lock, since another process may have made a store meanwhile.
        inspect(place, directory)?;
        let lock = Lock::take(place, directory)?;
        let format = inspect(place, directory)?;
        Ok(Self { lock, format })
    }

    /// The same, of a directory that has a store which was ready: its lock, and what it says. Makes
    /// nothing.
    pub(super) fn existing(
        place: &dyn DirectoryTree,
        directory: &Path,
    ) -> Result<(Lock, Format), StoreError> {
        let none = || {
            DiskError::NotAStore {
                path: directory.to_owned(),
                problem: "holds no store".to_owned(),
            }
            .into()
        };
        let ready = || {
            let format = inspect(place, directory)?;
            format.filter(|format| format.ready).ok_or_else(none)
        };
        if !place.is_directory(directory) {
            return Err(none());
        }
        ready()?;
        let lock = Lock::take(place, directory)?;
        Ok((lock, ready()?))
    }

    /// The same, of a directory that has no store.
    pub(super) fn empty(place: &dyn DirectoryTree, directory: &Path) -> Result<Self, StoreError> {
        let claim = Self::of(place, directory)?;
        if claim.format.is_some_and(|format| format.ready) {
            return Err(DiskError::NotAStore {
                path: directory.to_owned(),
                problem: "holds a store already".to_owned(),
            }
            .into());
        }
        Ok(claim)
    }
}

impl Format {
    /// The same of the version that is written.
    fn raised(self) -> Self {
        match self.version {
            VERSION_2 if !planted!(MakingLeavesFormat) => Self {
                version: VERSION,
                ..self
            },
            _ => self,
        }
    }

    /// Whether it is of a version that earlier programs open, which do not know all that this one
    /// writes.
    pub(super) fn is_older(self) -> bool {
        self.version == VERSION_2
    }
}

impl Lock {
    fn take(place: &dyn DirectoryTree, directory: &Path) -> Result<Self, StoreError> {
        if !place.is_shared() {
            return Ok(Self {
                directory: None,
                file: None,
                is_alone: true,
                here: None,
            });
        }
        let mut lock = Self {
            directory: lock_of(directory, File::try_lock)?,
            file: None,
            is_alone: false,
            here: None,
        };
        if lock.directory.is_none() || directory.join(LOCK).exists() {
            lock.with_file(directory)?;
        }
        lock.here = OpenHere::note(directory);
        Ok(lock)
    }

    /// The same lock: the directory is taken until both are dropped.
    pub(super) fn share(&self) -> Self {
        let share = |file: &Option<File>| file.as_ref().and_then(|file| file.try_clone().ok());
        Self {
            directory: share(&self.directory),
            file: share(&self.file),
            is_alone: self.is_alone,
            here: self.here.clone(),
        }
    }

    /// Locks the file as well, for those who know of nothing else; makes it if it is not there.
    pub(super) fn with_file(&mut self, directory: &Path) -> Result<(), StoreError> {
        if self.file.is_none() && !self.is_alone {
            self.file = Some(take_lock(directory)?);
        }
        Ok(())
    }
}

/// A lock of the directory itself; `None` where the file system has none.
fn lock_of(
    directory: &Path,
    lock: fn(&File) -> Result<(), TryLockError>,
) -> Result<Option<File>, StoreError> {
    if !cfg!(unix) {
        return Ok(None);
    }
    let file = File::open(directory).map_err(|source| io_error(directory, source))?;
    match lock(&file) {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(OpenHere::locked(directory, directory)),
        Err(TryLockError::Error(error)) => {
            tracing::debug!(%error, "the file system has no locks of directories");
            Ok(None)
        }
    }
}

/// Writes `FORMAT` of a store that is ready once more. Whoever made it may have ended between the
/// rename and its sync, or because that failed; and then another sync says nothing. What is
/// acknowledged from here on must not depend on it: with `creating` in its place the store would
/// be made anew.
///
/// An older version becomes the newest, so that no earlier program reads what it does not know.
/// Says what there is then: a full disk must not keep a store shut, so it may be as it was.
pub(super) fn persist_format(
    place: &dyn DirectoryTree,
    directory: &Path,
    format: Format,
) -> Result<Format, StoreError> {
    let raised = format.raised();
    match write_format(place, directory, raised) {
        Err(error) if error.is_full() => sync_directory(place, directory).map(|()| format),
        written => written.map(|()| raised),
    }
}

/// What a directory is, as far as that can be read.
type Looked = Result<Option<Format>, StoreError>;

/// Looks at a directory without changing anything in it: what it says it is, and a lock that
/// keeps every opening out as long as it is held.
pub(super) fn look(
    place: &dyn DirectoryTree,
    directory: &Path,
) -> Result<(Lock, Looked), StoreError> {
    let path = directory.join(LOCK);
    let mut lock = Lock {
        directory: lock_of(directory, File::try_lock_shared)?,
        file: None,
        is_alone: false,
        here: None,
    };
    match File::open(&path) {
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => lock.file = Some(file),
            Err(TryLockError::WouldBlock) => return Err(OpenHere::locked(&path, directory)),
            Err(TryLockError::Error(source)) => return Err(io_error(&path, source)),
        },
        // Nobody has the directory who knows of nothing else.
        Err(source) if source.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(io_error(&path, source)),
    }
    Ok((lock, inspect(place, directory)))
}

fn parent_of(directory: &Path) -> &Path {
    match directory.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// How often a directory is made whose parent others renew meanwhile. Once one of them has made a directory in it, nobody renews
/// it any more.
const CREATED_WITHIN: usize = 16;

/// Makes `directory` and what leads to it, each durable.
pub(super) fn create_directory(
    place: &dyn DirectoryTree,
    directory: &Path,
) -> Result<(), StoreError> {
    // Another process that makes a store beside may renew a directory on the way just now.
    let is_gone = |error: &StoreError| matches!(error, StoreError::Disk(DiskError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound);
    for _ in 1..CREATED_WITHIN {
        match try_create(place, directory) {
            Err(error) if is_gone(&error) => {}
            made => return made,
        }
    }
    try_create(place, directory)
}

fn try_create(place: &dyn DirectoryTree, directory: &Path) -> Result<(), StoreError> {
    let parent = parent_of(directory);
    if place.is_directory(directory) {
        // It may have been made just now, by hand.
        return sync_parent(place, parent);
    }
    match place.names(parent) {
        // Perhaps one that was made for this, and whose sync failed.
        Ok(names) if names.is_empty() => renew(place, parent)?,
        _ => create_directory(place, parent)?,
    }
    match place.make_directory(directory) {
        Ok(()) => sync_above(place, parent).inspect_err(|_| {
            // A later sync would succeed and say nothing of this entry. One that is made anew is
            // synced anew.
            if let Err(error) = place.remove_directory(directory) {
                let directory = directory.display();
                tracing::warn!(%directory, %error, "an empty directory could not be removed");
            }
        }),
        // Made by another process just now, or not a directory, which its reader will say.
        Err(source) if source.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(write_failed(directory, source)),
    }
}

/// Syncs what a directory lies in. That this process may not is passed over: whoever made the
/// directory and gave it to this process answers for its name.
fn sync_parent(place: &dyn DirectoryTree, parent: &Path) -> Result<(), StoreError> {
    match sync_above(place, parent) {
        Err(StoreError::Disk(DiskError::Io { path, source }))
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            let path = path.display();
            tracing::warn!(%path, %source, "whether the name of the data directory is durable is not known");
            Ok(())
        }
        synced => synced,
    }
}

fn sync_above(place: &dyn DirectoryTree, parent: &Path) -> Result<(), StoreError> {
    match sync_directory(place, parent) {
        Err(_) if planted!(MakingPassesOverParentSync) => Ok(()),
        synced => synced,
    }
}

/// The path of a directory, and another one beside it, hidden and with this suffix. `None` of the
/// root of everything.
fn with_other_name(
    place: &dyn DirectoryTree,
    directory: &Path,
    suffix: &str,
) -> Result<Option<(PathBuf, PathBuf)>, StoreError> {
    let real = place.real_path(directory);
    let real = real.map_err(|source| io_error(directory, source))?;
    let (Some(_), Some(name)) = (real.parent(), real.file_name()) else {
        return Ok(None);
    };
    let mut other = OsString::from(".");
    other.push(name);
    other.push(suffix);
    let other = real.with_file_name(other);
    Ok(Some((real, other)))
}

/// Makes the name of an empty directory on the way to a store durable.
///
/// An earlier making may have left it after the sync of the directory above had failed; after that a
/// sync that succeeds says nothing about a name that was there already. So a new directory takes
/// its place, at once, since others may make something in it at the same time. One that is not as
/// this process makes directories was not left by a making: that one stays.
fn renew(place: &dyn DirectoryTree, directory: &Path) -> Result<(), StoreError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let suffix = format!(".new-{}-{number}", std::process::id());
    let Some((real, new)) = with_other_name(place, directory, &suffix)? else {
        return Ok(());
    };
    let parent = parent_of(&real);
    if planted!(MakingBelievesSecondSync) {
        return sync_parent(place, parent);
    }
    let renewed = place.make_directory(&new).and_then(|()| {
        let renewed = place.are_alike(&new, &real).and_then(|are_alike| {
            if are_alike {
                place.rename_directory(&new, &real)?;
            }
            Ok(are_alike)
        });
        if !matches!(renewed, Ok(true)) {
            place.remove_directory(&new)?;
        }
        renewed
    });
    match renewed {
        Ok(true) => sync_above(place, parent),
        Ok(false) => sync_parent(place, parent),
        // A mount point, one that is not empty any more, or a directory above that is somebody
        // else's.
        Err(error) => {
            let directory = directory.display();
            tracing::debug!(%directory, %error, "a directory on the way stays as it is");
            sync_parent(place, parent)
        }
    }
}

/// Makes the name of the empty data directory durable in which a store is going to be made, and
/// which this process has locked.
///
/// As in [`renew`], a sync alone says nothing about a name that was there. So the name is taken away
/// and given once more.
pub(super) fn persist_name(place: &dyn DirectoryTree, directory: &Path) -> Result<(), StoreError> {
    let Some((real, passing)) = with_other_name(place, directory, ".settling")? else {
        return Ok(());
    };
    let parent = parent_of(&real);
    if planted!(MakingBelievesSecondSync) {
        return sync_parent(place, parent);
    }
    match place.rename_directory(&real, &passing) {
        Ok(()) => {}
        // A mount point, or a directory above that is somebody else's: it was there before.
        Err(error) => {
            let directory = directory.display();
            tracing::debug!(%directory, %error, "the data directory keeps its name as it is");
            return sync_parent(place, parent);
        }
    }
    let back = place.rename_directory(&passing, &real);
    back.map_err(|source| io_error(&passing, source))?;
    sync_above(place, parent)
}

/// What the directory says it is; `None` if it is empty. Refuses one that is not empty and
/// does not say.
pub(super) fn inspect(
    place: &dyn DirectoryTree,
    directory: &Path,
) -> Result<Option<Format>, StoreError> {
    let mut stranger = None;
    let names = place.names(directory);
    for name in names.map_err(|source| io_error(directory, source))? {
        if name == OsStr::new(FORMAT) {
            return read_format(place, directory).map(Some);
        }
        // What a creation leaves that ended before its first rename, and what the root of a file
        // system has of its own.
        if ![LOCK, FORMAT_NEW, LOST_AND_FOUND]
            .map(OsStr::new)
            .contains(&&*name)
        {
            stranger = Some(name);
        }
    }
    match stranger {
        None => Ok(None),
        Some(name) => Err(DiskError::NotAStore {
            path: directory.to_owned(),
            problem: format!("it has no file {FORMAT}, but it has {}", name.display()),
        }
        .into()),
    }
}

fn take_lock(directory: &Path) -> Result<File, StoreError> {
    let path = &directory.join(LOCK);
    let file = private_file()
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|source| io_error(path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenHere::locked(path, directory)),
        Err(TryLockError::Error(source)) => Err(io_error(path, source)),
    }
}

fn read_format(place: &dyn DirectoryTree, directory: &Path) -> Result<Format, StoreError> {
    /// More than any format needs.
    const MAX_BYTES: u64 = 4096;

    let path = directory.join(FORMAT);
    let read = || {
        let file = place.read_only(directory).open(FORMAT)?;
        let length = usize::try_from(file.length()?.min(MAX_BYTES)).map_err(io::Error::other)?;
        let mut text = vec![0; length];
        file.read_at(0, &mut text)?;
        Ok(text)
    };
    let text = read().map_err(|source| io_error(&path, source))?;
    parse_format(&String::from_utf8_lossy(&text)).map_err(|refusal| match refusal {
        Refusal::NotAStore(problem) => DiskError::NotAStore { path, problem }.into(),
        Refusal::Corrupt(problem) => DiskError::Corrupt { path, problem }.into(),
    })
}

/// Replaces `FORMAT` in one step: after a crash there is the old one or the new one.
pub(super) fn write_format(
    place: &dyn DirectoryTree,
    directory: &Path,
    format: Format,
) -> Result<(), StoreError> {
    let files = place.files(directory);
    let write = || {
        match files.remove(FORMAT_NEW) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = files.begin(FORMAT_NEW)?;
        file.write_at(0, format_text(format).as_bytes())?;
        file.sync()?;
        files.rename(FORMAT_NEW, FORMAT)
    };
    write().map_err(|source| write_failed(&directory.join(FORMAT), source))?;
    sync_directory(place, directory)
}

/// For writing what nobody else on the machine shall read: payloads hold what callers hold
/// secret.
pub(super) fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Why the text is not this version's.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Refusal {
    NotAStore(String),
    Corrupt(String),
}

fn format_text(format: Format) -> String {
    let Format {
        version,
        store_id,
        ready,
    } = format;
    let state = if ready { "ready" } else { "creating" };
    format!("{TITLE}\nformat {version}\nstore {store_id:016x}\nstate {state}\n")
}

/// What a text says of a directory, of this version or of the one before.
fn parse_format(text: &str) -> Result<Format, Refusal> {
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) {
        // What was cut to nothing, or zeroed, is more likely ours than a stranger's.
        return Err(if text.trim_matches('\0').is_empty() {
            Refusal::Corrupt("it is empty".to_owned())
        } else {
            Refusal::NotAStore(format!("it does not begin with `{TITLE}`"))
        });
    }
    let mut field = |name: &str| {
        let line = lines.next().and_then(|line| line.split_once(' '));
        let value = line
            .filter(|(found, _)| *found == name)
            .map(|(_, value)| value);
        value.ok_or_else(|| Refusal::Corrupt(format!("it has no line `{name}` in its place")))
    };
    let version = match field("format")?.parse::<u64>() {
        Ok(known @ (VERSION | VERSION_2)) => known,
        Ok(VERSION_1) => {
            let problem = "holds one database (directory format 1), which is no longer read";
            return Err(Refusal::NotAStore(problem.to_owned()));
        }
        Ok(later) if later > VERSION => {
            let problem = format!("written by a later version (directory format {later})");
            return Err(Refusal::NotAStore(problem));
        }
        _ => {
            return Err(Refusal::Corrupt(
                "its format is not a known number".to_owned(),
            ));
        }
    };
    let store_id = u64::from_str_radix(field("store")?, 16)
        .map_err(|_| Refusal::Corrupt("its store is not 16 hex digits".to_owned()))?;
    let format = Format {
        version,
        store_id,
        ready: field("state")? == "ready",
    };
    // Whatever else it says, it was not written so.
    if format_text(format) != text {
        return Err(Refusal::Corrupt("it is not as it was written".to_owned()));
    }
    Ok(format)
}

/// Whether a text says what a directory is.
#[cfg(feature = "planted-bugs")]
pub(super) fn is_format(text: &str) -> bool {
    parse_format(text).is_ok()
}

/// Makes the names in a directory durable.
pub(super) fn sync_directory(
    place: &dyn DirectoryTree,
    directory: &Path,
) -> Result<(), StoreError> {
    let synced = place.sync_directory(directory);
    synced.map_err(|source| io_error(directory, source))
}

/// What to say if something could not be written.
pub(super) fn write_failed(path: &Path, source: io::Error) -> StoreError {
    if is_full(&source) {
        let path = path.to_owned();
        return DiskError::Full { path }.into();
    }
    io_error(path, source)
}

pub(super) fn io_error(path: &Path, source: io::Error) -> StoreError {
    DiskError::Io {
        path: path.to_owned(),
        source,
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_read_as_it_was_written() {
        for version in [VERSION_2, VERSION] {
            for ready in [false, true] {
                for store_id in [0, 0xfeed, u64::MAX] {
                    let format = Format {
                        version,
                        store_id,
                        ready,
                    };
                    let text = format_text(format);
                    assert_eq!(parse_format(&text), Ok(format));
                }
            }
        }
    }

    /// What the program that knew version 2 alone says of version 3.
    #[test]
    fn a_later_version_is_said_to_be_one() {
        for later in [VERSION + 1, 9] {
            let text = format_text(Format {
                version: later,
                store_id: 0xfeed,
                ready: true,
            });
            let expected = format!("written by a later version (directory format {later})");
            let refused = parse_format(&text);
            assert_eq!(refused, Err(Refusal::NotAStore(expected)));
        }
    }

    #[test]
    fn any_other_text_is_refused() {
        let text = format_text(Format {
            version: VERSION,
            store_id: 0xfeed,
            ready: true,
        });
        for end in 0..text.len() {
            assert!(parse_format(&text[..end]).is_err(), "cut to {end} bytes");
        }
        let corrupt = [
            text.replace("feed", "FEED"),
            text.replace("0000feed", "feed"),
            text.replace("ready", "steady"),
            text.replace("format 3", "format 03"),
            text.replace("format 3", "format 0"),
            text.replace("format 3", "format three"),
            text.replace("store ", "stare "),
            text.replace('\n', "\r\n"),
            format!("{text}\n"),
            "\0".repeat(100),
            String::new(),
        ];
        for text in corrupt {
            let refused = parse_format(&text);
            assert!(
                matches!(refused, Err(Refusal::Corrupt(_))),
                "{text:?}: {refused:?}"
            );
        }
        for text in [
            text.replace("count", "pin"),
            text.replace("format 3", "format 1"),
            text.replace("format 3", "format 4"),
        ] {
            let refused = parse_format(&text);
            assert!(
                matches!(refused, Err(Refusal::NotAStore(_))),
                "{text:?}: {refused:?}"
            );
        }
    }
}
