//! Whether a start that was refused changed the directory: for tests and proofs.
//!
//! A start that is refused because of what it found changes no byte: no content, no name, no
//! length and no time of modification. A start that is refused because a write or a sync of its own
//! failed is another matter, and none for [`unchanged`].
//!
//! ```
//! use countwheel_disk::unchanged::{Tree, unchanged};
//! use countwheel_disk::{DiskOptions, DiskStore};
//!
//! let directory = tempfile::tempdir()?;
//! let path = directory.path();
//! std::fs::write(path.join("letter"), "Dear all")?;
//! let before = Tree::of(path)?;
//! let open = || DiskStore::open(path, 7, DiskOptions::default());
//! assert!(unchanged(path, open)?.is_err());
//! assert_eq!(before.difference(&Tree::of(path)?), None);
//!
//! std::fs::write(path.join("letter"), "Dear both")?;
//! let changed = before.difference(&Tree::of(path)?);
//! assert!(changed.is_some_and(|what| what.contains("letter")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::StoreError;

/// Everything below a directory, and the directory itself: names, contents, lengths, times of
/// modification, and who may do what with it. See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tree(BTreeMap<PathBuf, FileEntry>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct FileEntry {
    /// `None` for a directory.
    content: Option<Vec<u8>>,
    modified: Option<SystemTime>,
    mode: u32,
}

impl Tree {
    /// Reads all of it. A directory that is not there is an empty tree.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(directory: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        if directory.exists() {
            tree.read(directory, PathBuf::new())?;
        }
        Ok(tree)
    }

    fn read(&mut self, path: &Path, name: PathBuf) -> io::Result<()> {
        let metadata = fs::metadata(path)?;
        let content = if metadata.is_dir() {
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                self.read(&entry.path(), name.join(entry.file_name()))?;
            }
            None
        } else {
            Some(fs::read(path)?)
        };
        let entry = FileEntry {
            content,
            modified: metadata.modified().ok(),
            mode: mode(&metadata),
        };
        self.0.insert(name, entry);
        Ok(())
    }

    /// What `later` has that this has not, or the other way round; `None` if both are the same.
    #[must_use]
    pub fn difference(&self, later: &Self) -> Option<String> {
        let mut found = Vec::new();
        for path in self.0.keys().chain(later.0.keys()) {
            let what = match (self.0.get(path), later.0.get(path)) {
                (Some(before), Some(after)) if before == after => continue,
                (Some(_), None) => "is gone",
                (None, _) => "is new",
                (Some(before), Some(after)) => before.change(after),
            };
            let shown = if path == Path::new("") {
                Path::new(".")
            } else {
                path
            };
            let line = format!("{}: {what}", shown.display());
            if !found.contains(&line) {
                found.push(line);
            }
        }
        (!found.is_empty()).then(|| found.join(", "))
    }
}

impl FileEntry {
    fn change(&self, after: &Self) -> &'static str {
        let length = |entry: &Self| entry.content.as_ref().map(Vec::len);
        if length(self) != length(after) {
            "another length"
        } else if self.content != after.content {
            "other bytes"
        } else if self.mode != after.mode {
            "another mode"
        } else {
            "another time of modification"
        }
    }
}

/// Opens something in `directory`, and compares the directory if that is refused: by an error
/// other than that [it is full](StoreError::is_full). For openings none of whose writes and syncs are
/// made to fail.
///
/// # Errors
/// What a refused opening changed, or why the directory cannot be read.
pub fn unchanged<T>(
    directory: &Path,
    open: impl FnOnce() -> Result<T, StoreError>,
) -> Result<Result<T, StoreError>, String> {
    let read = || Tree::of(directory).map_err(|error| format!("{}: {error}", directory.display()));
    let before = read()?;
    let opened = open();
    match &opened {
        Ok(_) => {}
        Err(error) if error.is_full() => {}
        Err(refused) => {
            if let Some(changed) = before.difference(&read()?) {
                return Err(format!(
                    "refused, and changed: {changed}; refused: {refused}"
                ));
            }
        }
    }
    Ok(opened)
}

#[cfg(unix)]
fn mode(metadata: &Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::mode(metadata)
}

#[cfg(not(unix))]
fn mode(metadata: &Metadata) -> u32 {
    u32::from(metadata.permissions().readonly())
}

#[cfg(test)]
mod tests {
    use super::super::DiskError;
    use super::*;

    fn refuse(path: &Path) -> Result<(), StoreError> {
        Err(DiskError::NotAStore {
            path: path.to_owned(),
            problem: "is none".to_owned(),
        }
        .into())
    }

    /// A proof that cannot fail is none: whatever a refused start may touch is seen.
    #[test]
    fn every_kind_of_change_is_seen() {
        type Change = fn(&Path) -> io::Result<()>;
        let changes: [(&str, Change); 7] = [
            ("part/a: other bytes", |path| {
                fs::write(path.join("part/a"), "b")
            }),
            ("part/a: another length", |path| {
                fs::write(path.join("part/a"), "aa")
            }),
            ("part/a: is gone", |path| {
                fs::remove_file(path.join("part/a"))
            }),
            ("part/b: is new", |path| fs::write(path.join("part/b"), "")),
            ("part/a: another time of modification", |path| {
                let file = fs::File::options().write(true).open(path.join("part/a"))?;
                file.set_modified(SystemTime::UNIX_EPOCH)
            }),
            ("LOCK: is new", |path| fs::write(path.join("LOCK"), "")),
            ("part: is gone", |path| {
                fs::remove_dir_all(path.join("part"))
            }),
        ];
        for (expected, change) in changes {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path();
            fs::create_dir(path.join("part")).unwrap();
            fs::write(path.join("part/a"), "a").unwrap();
            let seen = unchanged(path, || {
                change(path).unwrap();
                refuse(path)
            });
            let seen = seen.unwrap_err();
            assert!(seen.contains(expected), "{expected}: {seen}");
        }
    }

    #[test]
    fn an_opening_may_change_everything() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let opened = unchanged(path, || {
            fs::write(path.join("a"), "a").unwrap();
            Ok(())
        });
        assert!(opened.unwrap().is_ok());
    }
}
