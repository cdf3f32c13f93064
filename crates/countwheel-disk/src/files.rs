//! The seam to a directory: files written in place or at their end, names, and syncs.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// A directory with a store's files, or one that a simulation makes up.
///
/// ```
/// use countwheel_disk::{Files, StoreFile, SystemFiles};
///
/// let directory = tempfile::tempdir()?;
/// let files = SystemFiles::new(directory.path());
/// let file = files.begin("table")?;
/// file.write_at(0, b"in no order")?;
/// file.sync()?;
/// files.rename("table", "table-1")?;
/// files.sync()?; // from here on it is there after a loss of power
/// assert_eq!(files.open("table-1")?.length()?, 11);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// What a call did is there after a loss of power only once the sync that concerns it has
/// returned: [`StoreFile::sync`] for what a file holds, [`sync`](Self::sync) for which files
/// there are and what they are called.
pub trait Files: Send + Sync + fmt::Debug {
    /// The names of all files.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes a file of `len` bytes, all of them zero and all of them really there: a disk that
    /// is full later cannot refuse to write them.
    ///
    /// # Errors
    /// What the system says, also if there is such a file.
    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StoreFile>>;

    /// Makes an empty file, which grows as it is written.
    ///
    /// # Errors
    /// What the system says, also if there is such a file.
    fn begin(&self, name: &str) -> io::Result<Arc<dyn StoreFile>>;

    /// Opens a file that is there.
    ///
    /// # Errors
    /// What the system says, also if there is none.
    fn open(&self, name: &str) -> io::Result<Arc<dyn StoreFile>>;

    /// Gives a file another name, in place of the file that has it.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Takes these files out of the directory and keeps them aside, where nothing is read or
    /// written, until the next call; what an earlier call kept aside is removed. Durable on
    /// return: at every moment each file is in one of the two places.
    ///
    /// # Errors
    /// What the system says. Some of the files may have been taken out.
    fn set_aside(&self, names: &[String]) -> io::Result<()>;

    /// Makes durable which files there are.
    ///
    /// # Errors
    /// What the system says. Whether they are durable is unknown then, for good.
    fn sync(&self) -> io::Result<()>;

    /// What tells the file that has this name from all others: its device, and its number there.
    /// By this a log finds out that somebody removed its files, or put others in their place. `None`,
    /// as it is by default, where the system has nothing of the kind, and then nobody finds out.
    ///
    /// # Errors
    /// What the system says, also if there is none.
    fn identity(&self, name: &str) -> io::Result<Option<(u64, u64)>> {
        let _ = name;
        Ok(None)
    }

    /// Where the directory is, for messages.
    fn path(&self) -> PathBuf;

    /// A number that nobody can guess whose bytes come to be in a file.
    ///
    /// # Errors
    /// What the system says.
    fn nonce(&self) -> io::Result<u64>;
}

/// One file of a store.
pub trait StoreFile: Send + Sync + fmt::Debug {
    /// Its length in bytes.
    ///
    /// # Errors
    /// What the system says.
    fn length(&self) -> io::Result<u64>;

    /// Fills `out` with what stands at `offset`.
    ///
    /// # Errors
    /// What the system says, also if there are not as many bytes.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes `data` at `offset`, which is not behind the end. What goes beyond the end makes
    /// the file longer.
    ///
    /// # Errors
    /// What the system says. Some of it may have been written.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes durable what was written, and how long the file is.
    ///
    /// # Errors
    /// What the system says. Whether it is durable is unknown then, for good: a later sync
    /// that succeeds says nothing about it.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the system's.
#[derive(Debug)]
pub struct SystemFiles {
    directory: PathBuf,
    /// Opened once: names that were changed must not stay unsure for lack of a file descriptor.
    handle: OnceLock<File>,
    /// Where files are kept that are set aside; without it they are removed.
    aside: Option<PathBuf>,
    read_only: bool,
}

impl SystemFiles {
    /// The directory, which has to exist. What is [set aside](Files::set_aside) is removed.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            handle: OnceLock::new(),
            aside: None,
            read_only: false,
        }
    }

    /// The same; what is set aside is kept in the directory `aside`, on the same file system,
    /// which is made when it is needed.
    pub(super) fn with_aside(directory: &Path, aside: &Path) -> Self {
        Self {
            aside: Some(aside.to_owned()),
            ..Self::new(directory)
        }
    }

    /// The same, for one who must not change anything: every call that would is refused.
    pub(super) fn read_only(directory: &Path) -> Self {
        Self {
            read_only: true,
            ..Self::new(directory)
        }
    }

    fn may_change(&self) -> io::Result<()> {
        if self.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        Ok(())
    }

    /// A new file, which only its owner may read and write.
    fn make(&self, name: &str) -> io::Result<File> {
        self.may_change()?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(self.directory.join(name));
        file.map_err(|error| passing(name, error))
    }
}

/// Whether the system says that there is no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Whether the system says that too many files are open.
pub(super) fn cannot_open(error: &io::Error) -> bool {
    // By the number that it has on every system like Unix: ENFILE, EMFILE.
    is_full(error) || cfg!(unix) && matches!(error.raw_os_error(), Some(23 | 24))
}

/// Why no file was opened. With too many of them open already, nothing has changed and it may pass:
/// that is as when the disk is full.
fn passing(name: &str, error: io::Error) -> io::Error {
    // By the number that it has on every system like Unix: ENFILE, EMFILE.
    if cfg!(unix) && matches!(error.raw_os_error(), Some(23 | 24)) {
        tracing::warn!(name, %error, "no file can be opened");
        return io::Error::new(io::ErrorKind::StorageFull, error);
    }
    error
}

impl Files for SystemFiles {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        let entries = match fs::read_dir(&self.directory) {
            // Who only looks finds nothing where there is nothing.
            Err(error) if self.read_only && error.kind() == io::ErrorKind::NotFound => {
                return Ok(names);
            }
            entries => entries?,
        };
        for entry in entries {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StoreFile>> {
        let zeros = vec![0; 1 << 20];
        let mut file = self.make(name)?;
        let mut left = len;
        while left > 0 {
            let piece = left.min(zeros.len() as u64);
            file.write_all(&zeros[..usize::try_from(piece).unwrap_or(zeros.len())])?;
            left -= piece;
            // Piece by piece, so that nobody else's sync waits behind all of it.
            if left > 0 {
                file.sync_data()?;
            }
        }
        Ok(Arc::new(SystemFile(file)))
    }

    fn begin(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        Ok(Arc::new(SystemFile(self.make(name)?)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(!self.read_only)
            .open(self.directory.join(name))
            .map_err(|error| passing(name, error))?;
        Ok(Arc::new(SystemFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.may_change()?;
        fs::rename(self.directory.join(from), self.directory.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.may_change()?;
        fs::remove_file(self.directory.join(name))
    }

    fn set_aside(&self, names: &[String]) -> io::Result<()> {
        self.may_change()?;
        let Some(aside) = &self.aside else {
            return names.iter().try_for_each(|name| self.remove(name));
        };
        let earlier = match fs::read_dir(aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            entries => Some(entries?),
        };
        let is_there = earlier.is_some();
        for entry in earlier.into_iter().flatten() {
            fs::remove_file(entry?.path())?;
        }
        if names.is_empty() {
            return if is_there {
                fs::remove_dir(aside)
            } else {
                Ok(())
            };
        }
        if !is_there {
            let mut private = fs::DirBuilder::new();
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut private, 0o700);
            private.create(aside)?;
            aside.parent().map_or(Ok(()), sync_names)?;
        }
        for name in names {
            let (from, to) = (self.directory.join(name), aside.join(name));
            // Two names until the second is durable; a file system without links has to do
            // with one.
            fs::hard_link(&from, &to).or_else(|_| fs::rename(&from, &to))?;
        }
        sync_names(aside)?;
        for name in names {
            match self.remove(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        if let Some(handle) = self.handle.get() {
            return handle.sync_all();
        }
        let handle = File::open(&self.directory)?;
        handle.sync_all()?;
        self.handle.get_or_init(|| handle);
        Ok(())
    }

    #[cfg(unix)]
    fn identity(&self, name: &str) -> io::Result<Option<(u64, u64)>> {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = fs::metadata(self.directory.join(name))?;
        Ok(Some((metadata.dev(), metadata.ino())))
    }

    fn path(&self) -> PathBuf {
        self.directory.clone()
    }

    fn nonce(&self) -> io::Result<u64> {
        getrandom::u64().map_err(io::Error::other)
    }
}

/// Makes the names in a directory durable.
pub(super) fn sync_names(directory: &Path) -> io::Result<()> {
    // Elsewhere a directory cannot be opened as a file, and names are durable by themselves.
    if cfg!(unix) {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

#[derive(Debug)]
struct SystemFile(File);

#[cfg(unix)]
impl StoreFile for SystemFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, out, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.0, data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
