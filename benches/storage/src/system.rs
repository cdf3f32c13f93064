//! What the kernel counts: memory of a process, bytes on a disk, bytes to a device.

use std::fs::{File, Metadata, read_dir, read_to_string};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// Resident memory of a process.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// All of it, the part of files that is mapped included.
    pub(crate) resident: u64,
    /// What the process asked for itself.
    pub(crate) anonymous: u64,
}

/// The memory of the process `pid`, counted page by page.
pub(crate) fn memory(pid: u32) -> anyhow::Result<Memory> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = read_to_string(&path).with_context(|| path.clone())?;
    parse_memory(&text).with_context(|| format!("{path} tells nothing"))
}

fn parse_memory(text: &str) -> Option<Memory> {
    let kibibytes = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.trim()
            .strip_suffix("kB")?
            .trim()
            .parse::<u64>()
            .ok()
            .map(|kib| kib * 1024)
    };
    Some(Memory {
        resident: kibibytes("Rss:")?,
        anonymous: kibibytes("Anonymous:")?,
    })
}

/// Bytes that the files below `directory` take on the disk, their allocated blocks.
pub(crate) fn disk_bytes(directory: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    each_file(directory, &mut |_, metadata| {
        bytes += metadata.blocks() * 512;
        Ok(())
    })?;
    Ok(bytes)
}

/// Drops the files below `directory` from the system's cache.
pub(crate) fn drop_cache(directory: &Path) -> anyhow::Result<()> {
    each_file(directory, &mut |path, _| {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        // Only what is on the disk can be forgotten.
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(())
    })
}

fn each_file(
    directory: &Path,
    visit: &mut dyn FnMut(&Path, &Metadata) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let entries = read_dir(directory).with_context(|| directory.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        // A compaction may have removed it since it was listed.
        let Ok(metadata) = path.symlink_metadata() else {
            continue;
        };
        if metadata.is_dir() {
            each_file(&path, visit)?;
        } else if metadata.is_file() {
            visit(&path, &metadata)?;
        }
    }
    Ok(())
}

/// Syncs the whole file system of `directory`.
pub(crate) fn sync_file_system(directory: &Path) -> anyhow::Result<()> {
    rustix::fs::syncfs(File::open(directory)?).context("the file system could not be synced")
}

/// Bytes that can still be written to the file system of `directory`.
pub(crate) fn free_bytes(directory: &Path) -> anyhow::Result<u64> {
    let found = rustix::fs::statvfs(directory).with_context(|| directory.display().to_string())?;
    Ok(found.f_bavail * found.f_frsize)
}

/// Bytes written to the block device below `directory` since the machine started, by everybody.
/// `None` where there is no such device: in memory, on a network.
pub(crate) fn device_written(directory: &Path) -> Option<u64> {
    let device = directory.metadata().ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let text = read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    parse_device(&text)
}

/// The seventh field is written sectors of 512 bytes.
fn parse_device(text: &str) -> Option<u64> {
    let sectors: u64 = text.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * 512)
}

/// Bytes that the process had written to storage; the kernel counts a whole page, or more where
/// pages are gathered into large ones, for a part of one.
pub(crate) fn process_written(pid: u32) -> Option<u64> {
    let text = read_to_string(format!("/proc/{pid}/io")).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("write_bytes:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let text = "55d0-7ffd [rollup]\nRss:      2020 kB\nPss: 3 kB\nAnonymous:    156 kB\n";
        let memory = parse_memory(text).unwrap();
        assert_eq!((memory.resident, memory.anonymous), (2020 << 10, 156 << 10));
        assert!(parse_memory("Rss: 1 MB").is_none());
        let stat = " 3628042 120743 131680874 11603063 28870711 491800 510229096 11734462 0 8 9\n";
        assert_eq!(parse_device(stat), Some(510_229_096 * 512));
        assert_eq!(parse_device("1 2 3"), None);
    }

    #[test]
    fn the_kernel_tells_of_this_process_and_this_directory() {
        assert!(memory(std::process::id()).unwrap().resident > 4096);
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("sub")).unwrap();
        std::fs::write(directory.path().join("sub/file"), [1; 10_000]).unwrap();
        sync_file_system(directory.path()).unwrap();
        drop_cache(directory.path()).unwrap();
        assert!(disk_bytes(directory.path()).unwrap() >= 10_000);
        assert!(free_bytes(directory.path()).unwrap() > 0);
    }
}
