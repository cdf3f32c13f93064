//! The place of a data directory: a tree of directories whose names become durable by syncs.
//!
//! The program uses the file system. A simulation uses a [simulated disk](super::simulated::Disk),
//! which can lose a directory.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{Files, SystemFiles, sync_names};

/// Where files are kept that are set aside, beside the directory that had them.
pub(super) const SET_ASIDE: &str = "set-aside";

/// A tree of directories.
///
/// Which directories there are is durable as which files there are is: once the directory above
/// was synced.
pub(super) trait DirectoryTree: Send + Sync + fmt::Debug {
    /// Whether there is such a directory.
    fn is_directory(&self, path: &Path) -> bool;

    /// The path without links and without `.`.
    fn real_path(&self, path: &Path) -> io::Result<PathBuf>;

    /// The names of all that is in a directory.
    fn names(&self, directory: &Path) -> io::Result<Vec<OsString>>;

    /// Makes a directory that only its owner may enter. Fails if the name is taken, or if the
    /// directory above is not there.
    fn make_directory(&self, path: &Path) -> io::Result<()>;

    /// Whether two directories have the same owner and the same rights.
    fn are_alike(&self, one: &Path, other: &Path) -> io::Result<bool>;

    /// Gives a directory another name in the directory above it, perhaps in place of an empty one.
    fn rename_directory(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory and what is in it.
    fn remove_tree(&self, path: &Path) -> io::Result<()>;

    /// Makes durable what is in a directory.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// The files of a directory. What is set aside of them is kept in [`SET_ASIDE`].
    fn files(&self, directory: &Path) -> Arc<dyn Files>;

    /// The files of a directory, for reading alone.
    fn read_only(&self, directory: &Path) -> Arc<dyn Files>;

    /// Whether other processes may be there, and a directory has to be locked.
    fn is_shared(&self) -> bool;
}

/// The file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSystem;

impl DirectoryTree for FileSystem {
    fn is_directory(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        let entries = fs::read_dir(directory)?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        let mut private = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut private, 0o700);
        private.create(path)
    }

    fn are_alike(&self, one: &Path, other: &Path) -> io::Result<bool> {
        let (one, other) = (fs::metadata(one)?, fs::metadata(other)?);
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let owner = |of: &fs::Metadata| (of.uid(), of.gid());
            if owner(&one) != owner(&other) {
                return Ok(false);
            }
        }
        Ok(one.permissions() == other.permissions())
    }

    fn rename_directory(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        sync_names(path)
    }

    fn files(&self, directory: &Path) -> Arc<dyn Files> {
        let aside = directory.with_file_name(SET_ASIDE);
        Arc::new(SystemFiles::with_aside(directory, &aside))
    }

    fn read_only(&self, directory: &Path) -> Arc<dyn Files> {
        Arc::new(SystemFiles::read_only(directory))
    }

    fn is_shared(&self) -> bool {
        true
    }
}
