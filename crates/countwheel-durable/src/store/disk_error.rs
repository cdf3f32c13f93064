//! The errors that only a store on a disk has.

use std::io;
use std::path::PathBuf;

/// What can go wrong with the files of a store: always of one path. A [`Store`](super::Store) gives it
/// as [`StoreError::Disk`](super::StoreError::Disk), with the same text and the same source.
///
/// ```
/// use countwheel_disk::{DiskOptions, DiskStore};
/// use countwheel_durable::store::{DiskError, StoreError};
///
/// let directory = tempfile::tempdir()?;
/// std::fs::write(directory.path().join("letter.txt"), "Dear")?;
/// let refused = DiskStore::open(directory.path(), 7, DiskOptions::default());
/// let Err(StoreError::Disk(DiskError::NotAStore { path, .. })) = refused else {
///     panic!("it holds something else");
/// };
/// assert_eq!(path, directory.path());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The data directory is open elsewhere. Stop the other process, or use another directory.
    #[error("{} is {}", path.display(), locked(*here, *by, *inherited))]
    Locked {
        /// What is locked: the directory, or its file `LOCK` where a process of an earlier version,
        /// or a file system without locks of directories, knows of nothing else.
        path: PathBuf,
        /// Whether this process itself has the directory open.
        here: bool,
        /// The process that has it, by its id, where the system says so.
        by: Option<u32>,
        /// Whether that process took no lock itself: it was forked, without becoming another program,
        /// by one that took the lock and has ended since. The directory is free once the forked
        /// process ends.
        inherited: bool,
    },
    /// The directory, or a file in it, was removed, renamed or replaced while the store was open: by
    /// its name the next start would not find what is committed. The store takes no more commits.
    /// Nothing that was acknowledged before is in doubt, unless it was removed as well.
    #[error("{}: was removed, renamed or replaced while the store was open", path.display())]
    Removed {
        /// The file that is not there any more.
        path: PathBuf,
    },
    /// A process changes the directory faster than it can be read. Try again when it does less.
    #[error("{}: a process changes it faster than it can be read", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The directory holds something else, or a file of a store is missing or of another
    /// format. Nothing was touched.
    #[error("{}: {problem}", path.display())]
    NotAStore {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file is damaged. Nothing was changed; restore it, or repair it into a new place.
    #[error("{} is damaged: {problem}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What does not add up.
        problem: String,
    },
    /// A file could not be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk has no room for it. Nothing was changed; it can be tried again once there is
    /// room.
    #[error("{}: no space left", path.display())]
    Full {
        /// The directory.
        path: PathBuf,
    },
}

/// How a directory is locked.
fn locked(here: bool, by: Option<u32>, inherited: bool) -> String {
    match by {
        _ if here => "open in this process already".to_owned(),
        None => "locked by another process".to_owned(),
        Some(by) if !inherited => format!("locked by another process ({by})"),
        Some(by) => format!(
            "locked by another process ({by}), which has the lock from one that forked it and has ended"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::super::StoreError;
    use super::*;

    /// What a log or an operator sees of an error of the files is the same from a store.
    #[test]
    fn an_error_of_the_disk_has_the_same_text_and_source_from_a_store() {
        type Make = fn(PathBuf) -> DiskError;
        let locked = |path, here, by, inherited| DiskError::Locked {
            path,
            here,
            by,
            inherited,
        };
        let alone: [(DiskError, &str); 4] = [
            (
                locked("d/f".into(), false, None, false),
                "d/f is locked by another process",
            ),
            (
                locked("d/f".into(), true, None, false),
                "d/f is open in this process already",
            ),
            (
                locked("d/f".into(), false, Some(12), false),
                "d/f is locked by another process (12)",
            ),
            (
                locked("d/f".into(), false, Some(12), true),
                "d/f is locked by another process (12), which has the lock from one that forked it and \
                 has ended",
            ),
        ];
        for (error, text) in alone {
            assert_eq!(error.to_string(), text);
            assert_eq!(StoreError::from(error).to_string(), text);
        }
        let errors: [(Make, &str); 6] = [
            (
                |path| DiskError::Removed { path },
                "d/f: was removed, renamed or replaced while the store was open",
            ),
            (
                |path| DiskError::Busy { path },
                "d/f: a process changes it faster than it can be read",
            ),
            (
                |path| DiskError::NotAStore {
                    path,
                    problem: "of another store".to_owned(),
                },
                "d/f: of another store",
            ),
            (
                |path| DiskError::Corrupt {
                    path,
                    problem: "a block".to_owned(),
                },
                "d/f is damaged: a block",
            ),
            (
                |path| DiskError::Io {
                    path,
                    source: io::Error::other(io::Error::other("the cable")),
                },
                "d/f: the cable",
            ),
            (|path| DiskError::Full { path }, "d/f: no space left"),
        ];
        for (make, text) in errors {
            let alone = make("d/f".into());
            let of_a_store = StoreError::from(make("d/f".into()));
            assert_eq!(alone.to_string(), text);
            assert_eq!(of_a_store.to_string(), text);
            assert_eq!(sources(&of_a_store), sources(&alone), "{text}");
            let has_source = matches!(alone, DiskError::Io { .. });
            assert_eq!(of_a_store.source().is_some(), has_source, "{text}");
        }
    }

    fn sources(error: &(dyn Error + 'static)) -> Vec<String> {
        let causes = std::iter::successors(error.source(), |error| (**error).source());
        causes.map(ToString::to_string).collect()
    }
}
