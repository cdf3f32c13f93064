//! A file system that forgets unsynced data.
//!
//! Killing a program proves nothing about its syncs: the system still has every written byte.
//! Here a program runs on files that live in this process, and a test can
//! [cut](Lossy::cut) the power: a random half of the data unsynced by then is there afterwards.
//!
//! - A file's content survives in sectors of 512 bytes, in any order; a sector written twice
//!   may survive as it was in between. A file's length is one more thing that may survive
//!   without the others. `fsync` and `fdatasync` of the file make both durable.
//! - A new, renamed or removed name survives for sure only once its directory was synced. A rename
//!   is one change, also between two directories. Half of the cuts keep changes of names up to some
//!   moment, as a journal does, half keep any of them.
//! - From the cut until [`heal`](Lossy::heal) every call fails with `EIO`.
//!
//! POSIX allows this behaviour, which is harder than that of ext4 with its defaults. There the sync
//! of a file makes its own name durable too, all changes of names survive in their order, and
//! a file is never longer than the data written to it.
//!
//! Locks are the kernel's, as on any local file system. The file system needs `/dev/fuse` and
//! `fusermount3`.
//!
//! ```no_run
//! use countwheel_lossy::Lossy;
//!
//! let disk = Lossy::mount("/tmp/lossy".as_ref())?;
//! std::fs::write("/tmp/lossy/never-synced", b"gone with 1 in 2")?;
//! println!("{:?}", disk.cut(1));
//! disk.heal();
//! # Ok::<(), std::io::Error>(())
//! ```

mod disk;
mod mount;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fuser::{BackgroundSession, MountOption};

use disk::Disk;
use parking_lot::Mutex;

/// A mounted file system. Unmounted when dropped, and when the process ends in any way.
pub struct Lossy {
    shared: Arc<Shared>,
    path: PathBuf,
    _session: BackgroundSession,
}

/// What became of the changes that were not synced when the power was cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cut {
    /// Sectors that had reached the disk all the same.
    pub sectors_kept: u64,
    /// Sectors that had not.
    pub sectors_dropped: u64,
    /// Names that were made, changed or removed, and stayed so.
    pub names_kept: u64,
    /// Names that are as they were before.
    pub names_dropped: u64,
}

struct Shared {
    disk: Mutex<Disk>,
    sync_micros: AtomicU64,
    /// One read in so many fails; 0 for none.
    reads_per_error: AtomicU64,
    reads: AtomicU64,
    syncs: AtomicU64,
}

impl Lossy {
    /// Mounts an empty one on a directory, which has to exist.
    ///
    /// # Errors
    /// If the system has no FUSE, or does not let this user mount.
    pub fn mount(path: &Path) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            disk: Mutex::new(Disk::new()),
            sync_micros: AtomicU64::new(0),
            reads_per_error: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        });
        let options = [
            MountOption::FSName("countwheel-lossy".to_owned()),
            MountOption::AutoUnmount,
            MountOption::AllowOther,
        ];
        let served = mount::Served::new(Arc::clone(&shared));
        Ok(Self {
            shared,
            path: path.to_owned(),
            _session: fuser::spawn_mount2(served, path, &options)?,
        })
    }

    /// Cuts the power: what was not synced survives or not, as `seed` draws it, and every call
    /// fails until [`heal`](Self::heal).
    pub fn cut(&self, seed: u64) -> Cut {
        self.shared.disk.lock().cut(seed)
    }

    /// Power again. Whoever still has a file open must not use it any more.
    pub fn heal(&self) {
        self.shared.disk.lock().heal();
    }

    /// Whether syncs answer that all is well and do nothing. For proofs that have to fail then.
    pub fn set_lies(&self, lies: bool) {
        self.shared.disk.lock().lies = lies;
    }

    /// Lets so many syncs of directories succeed from now on, and the one after them fail with
    /// `EIO`. The names that it was for can be seen, are gone with the power, and no later sync of
    /// the directory keeps them: only who renames them again and syncs that does. With `None` none
    /// fails.
    pub fn fail_directory_sync(&self, after: Option<u64>) {
        self.shared.disk.lock().directory_syncs_left = after;
    }

    /// Whether a sync of a directory has still to [fail](Self::fail_directory_sync).
    #[must_use]
    pub fn will_fail_directory_sync(&self) -> bool {
        self.shared.disk.lock().directory_syncs_left.is_some()
    }

    /// How long each sync takes; others go on meanwhile.
    pub fn set_sync_time(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.shared.sync_micros.store(micros, Ordering::Relaxed);
    }

    /// One read in `reads` fails with `EIO`; with 0, none. What the kernel still has in memory
    /// is not read.
    pub fn set_reads_per_error(&self, reads: u64) {
        self.shared.reads_per_error.store(reads, Ordering::Relaxed);
    }

    /// How many syncs were asked for so far.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.shared.syncs.load(Ordering::Relaxed)
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        // In a process of its own: here it could wait for the thread that serves it. Lazily:
        // a program that still runs there must not keep it.
        let unmount = Command::new("umount")
            .arg("--lazy")
            .arg(&self.path)
            .stderr(Stdio::null())
            .status();
        if !unmount.is_ok_and(|status| status.success()) {
            eprintln!("{} may still be mounted", self.path.display());
        }
    }
}
