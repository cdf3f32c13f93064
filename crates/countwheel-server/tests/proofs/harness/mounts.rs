//! File systems for a while: each is gone when its guard is dropped.
//!
//! `cargo xtask` runs what uses them in a mount name space of its own, where the kernel takes
//! them away with the last process, should the guards never be dropped.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use countwheel_lossy::Lossy;

/// Runs a program of the system, and fails with what it said.
#[track_caller]
pub(crate) fn run(program: &str, arguments: &[&dyn AsRef<OsStr>]) {
    try_run(program, arguments).unwrap_or_else(|why| panic!("{why}"));
}

pub(crate) fn try_run(program: &str, arguments: &[&dyn AsRef<OsStr>]) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments.iter().map(AsRef::as_ref))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} ended with {}: {said}", output.status))
}

/// A lossy disk on a new directory.
pub(crate) fn lossy(path: &Path) -> Lossy {
    std::fs::create_dir(path).unwrap();
    Lossy::mount(path).expect("FUSE: cargo xtask says what is missing")
}

/// A mounted file system; unmounted when dropped, also while it is in use.
pub(crate) struct Mounted(pub(crate) PathBuf);

impl Mounted {
    /// One of the kernel's that lives in memory and holds so many bytes.
    pub(crate) fn memory(path: &Path, bytes: u64) -> Self {
        std::fs::create_dir_all(path).unwrap();
        let size = format!("size={bytes}");
        run("mount", &[&"-t", &"tmpfs", &"-o", &size, &"tmpfs", &path]);
        Self(path.to_owned())
    }

    /// Makes an ext4 of so many bytes in a file.
    pub(crate) fn format(image: &Path, bytes: u64) {
        let file = std::fs::File::create(image).unwrap();
        file.set_len(bytes).unwrap();
        file.sync_all().unwrap();
        // All of it now: what the kernel would initialise later is load that nobody asked for.
        let lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        run("mkfs.ext4", &[&"-q", &"-F", &"-E", &lazy, &image]);
        let parent = image.parent().unwrap();
        std::fs::File::open(image).unwrap().sync_all().unwrap();
        std::fs::File::open(parent).unwrap().sync_all().unwrap();
    }

    /// The ext4 in a file, through a loop device that goes with it.
    pub(crate) fn ext4(image: &Path, path: &Path, options: &str) -> Self {
        std::fs::create_dir_all(path).unwrap();
        let options = format!("loop{options}");
        run("mount", &[&"-t", &"ext4", &"-o", &options, &image, &path]);
        Self(path.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The loop device is detached with it.
        if try_run("umount", &[&self.0]).is_err()
            && let Err(why) = try_run("umount", &[&"--lazy", &self.0])
        {
            eprintln!("{} may still be mounted: {why}", self.0.display());
        }
    }
}
