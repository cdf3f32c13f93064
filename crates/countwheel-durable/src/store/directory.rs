//! The data directory: who has it, what it is, and how far its making got.
//!
//! `LOCK` is locked by the process that has the directory. `FORMAT` says what the directory
//! is. While the store is made, `FORMAT` says `creating`, so that a half-made store is made
//! again, and a store that was ever `ready` is never taken for a new one.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;

use super::StoreError;
use super::files::is_full;

const LOCK: &str = "LOCK";
const FORMAT: &str = "FORMAT";
const FORMAT_NEW: &str = "FORMAT.new";

/// The first line of `FORMAT`.
const TITLE: &str = "countwheel data directory";
/// The version of a directory with the embedded database.
pub(super) const EMBEDDED: u64 = 1;
/// The version of a directory with a log and tables.
pub(super) const LOG_AND_TABLES: u64 = 2;

/// What `FORMAT` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Format {
    pub(super) version: u64,
    pub(super) store_id: u64,
    pub(super) ready: bool,
}

/// Takes the directory for this process, as long as the lock is not dropped; makes it if it is
/// not there. Says what it holds, which is of this `version`; `None` if it is empty.
pub(super) fn claim(directory: &Path, version: u64) -> Result<(File, Option<Format>), StoreError> {
    create_directory(directory)?;
    // Looked at before anything is written, since it may be a stranger's directory, and again
    // under the lock, since another process may have made a store meanwhile.
    inspect(directory, version)?;
    let lock = take_lock(&directory.join(LOCK))?;
    let format = inspect(directory, version)?;
    if let Some(format) = format.filter(|format| format.ready) {
        // Whoever made it may have ended between the rename and its sync, or because that failed;
        // and then another one says nothing. What is acknowledged from here on must not depend on
        // it: with `creating` in its place the store would be made anew.
        match write_format(directory, format) {
            // A full disk must not keep a store shut.
            Err(StoreError::Full { .. }) => sync_directory(directory)?,
            written => written?,
        }
    }
    Ok((lock, format))
}

/// What a directory is, as far as that can be read.
type Looked = Result<Option<Format>, StoreError>;

/// Looks at a directory without changing anything in it: what it says it is, and a lock that
/// keeps every opening out as long as it is held. No lock if there is no file for it: then
/// nobody has the directory.
pub(super) fn look(directory: &Path, version: u64) -> Result<(Option<File>, Looked), StoreError> {
    let path = directory.join(LOCK);
    let lock = match File::open(&path) {
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => Some(file),
            Err(TryLockError::WouldBlock) => return Err(StoreError::Locked { path }),
            Err(TryLockError::Error(source)) => return Err(io_error(&path, source)),
        },
        Err(source) if source.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(io_error(&path, source)),
    };
    Ok((lock, inspect(directory, version)))
}

/// Makes `directory` and what leads to it, each durable.
pub(super) fn create_directory(directory: &Path) -> Result<(), StoreError> {
    let parent = match directory.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    if directory.is_dir() {
        // It may have been made just now, by hand. Whether we may sync what it lies in is
        // not ours to demand.
        sync_directory(parent).unwrap_or_default();
        return Ok(());
    }
    create_directory(parent)?;
    let mut private = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut private, 0o700);
    match private.create(directory) {
        Ok(()) => sync_directory(parent),
        // Made by another process just now, or not a directory, which its reader will say.
        Err(source) if source.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(write_failed(directory, source)),
    }
}

/// What the directory says it is; `None` if it is empty. Refuses one that is not empty and
/// does not say.
fn inspect(directory: &Path, version: u64) -> Result<Option<Format>, StoreError> {
    let on_error = |source| io_error(directory, source);
    let mut stranger = None;
    for entry in fs::read_dir(directory).map_err(on_error)? {
        let name = entry.map_err(on_error)?.file_name();
        if name == OsStr::new(FORMAT) {
            return read_format(&directory.join(FORMAT), version).map(Some);
        }
        // What a creation leaves that ended before its first rename.
        if name != OsStr::new(LOCK) && name != OsStr::new(FORMAT_NEW) {
            stranger = Some(name);
        }
    }
    match stranger {
        None => Ok(None),
        Some(name) => Err(StoreError::NotAStore {
            path: directory.to_owned(),
            problem: format!("it has no file {FORMAT}, but it has {}", name.display()),
        }),
    }
}

fn take_lock(path: &Path) -> Result<File, StoreError> {
    let file = private_file()
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|source| io_error(path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(io_error(path, source)),
    }
}

fn read_format(path: &Path, version: u64) -> Result<Format, StoreError> {
    /// More than any format needs.
    const MAX_BYTES: u64 = 4096;

    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut text))
        .map_err(|source| io_error(path, source))?;
    parse_format(&String::from_utf8_lossy(&text), version).map_err(|refusal| {
        let path = path.to_owned();
        match refusal {
            Refusal::NotAStore(problem) => StoreError::NotAStore { path, problem },
            Refusal::Corrupt(problem) => StoreError::Corrupt { path, problem },
        }
    })
}

/// Replaces `FORMAT` in one step: after a crash there is the old one or the new one.
pub(super) fn write_format(directory: &Path, format: Format) -> Result<(), StoreError> {
    let (new, path) = (directory.join(FORMAT_NEW), directory.join(FORMAT));
    let write = || {
        let mut file = private_file().create(true).truncate(true).open(&new)?;
        file.write_all(format_text(format).as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)
    };
    write().map_err(|source| write_failed(&path, source))?;
    sync_directory(directory)
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

fn parse_format(text: &str, version: u64) -> Result<Format, Refusal> {
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
    match field("format")?.parse::<u64>() {
        Ok(found) if found == version => {}
        Ok(LOG_AND_TABLES) => {
            let problem = "holds a log and tables (directory format 2), not one database";
            return Err(Refusal::NotAStore(problem.to_owned()));
        }
        Ok(EMBEDDED) => {
            let problem = "holds one database (directory format 1): it has to be converted to a \
                           new directory first";
            return Err(Refusal::NotAStore(problem.to_owned()));
        }
        Ok(later) if later > version => {
            let problem = format!("written by a later version (directory format {later})");
            return Err(Refusal::NotAStore(problem));
        }
        _ => {
            return Err(Refusal::Corrupt(
                "its format is not a known number".to_owned(),
            ));
        }
    }
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

/// Makes the names in a directory durable.
pub(super) fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    // Elsewhere a directory cannot be opened as a file, and names are durable by themselves.
    if cfg!(unix) {
        let sync = File::open(directory).and_then(|directory| directory.sync_all());
        sync.map_err(|source| io_error(directory, source))?;
    }
    Ok(())
}

/// What to say if something could not be written.
pub(super) fn write_failed(path: &Path, source: io::Error) -> StoreError {
    if is_full(&source) {
        let path = path.to_owned();
        return StoreError::Full { path };
    }
    io_error(path, source)
}

pub(super) fn io_error(path: &Path, source: io::Error) -> StoreError {
    StoreError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_read_as_it_was_written() {
        for version in [EMBEDDED, LOG_AND_TABLES] {
            for ready in [false, true] {
                for store_id in [0, 0xfeed, u64::MAX] {
                    let format = Format {
                        version,
                        store_id,
                        ready,
                    };
                    let text = format_text(format);
                    assert_eq!(parse_format(&text, version), Ok(format));
                    let other = parse_format(&text, EMBEDDED + LOG_AND_TABLES - version);
                    assert!(matches!(other, Err(Refusal::NotAStore(_))), "{other:?}");
                }
            }
        }
    }

    #[test]
    fn any_other_text_is_refused() {
        let text = format_text(Format {
            version: EMBEDDED,
            store_id: 0xfeed,
            ready: true,
        });
        for end in 0..text.len() {
            assert!(
                parse_format(&text[..end], EMBEDDED).is_err(),
                "cut to {end} bytes"
            );
        }
        let corrupt = [
            text.replace("feed", "FEED"),
            text.replace("0000feed", "feed"),
            text.replace("ready", "steady"),
            text.replace("format 1", "format 01"),
            text.replace("format 1", "format 0"),
            text.replace("format 1", "format one"),
            text.replace("store ", "stare "),
            text.replace('\n', "\r\n"),
            format!("{text}\n"),
            "\0".repeat(100),
            String::new(),
        ];
        for text in corrupt {
            let refused = parse_format(&text, EMBEDDED);
            assert!(
                matches!(refused, Err(Refusal::Corrupt(_))),
                "{text:?}: {refused:?}"
            );
        }
        for text in [
            text.replace("count", "pin"),
            text.replace("format 1", "format 3"),
        ] {
            let refused = parse_format(&text, EMBEDDED);
            assert!(
                matches!(refused, Err(Refusal::NotAStore(_))),
                "{text:?}: {refused:?}"
            );
        }
    }
}
