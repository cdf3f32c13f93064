//! The disk: that it is one, and how often a second it syncs.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use countwheel_time::{Clock as _, SystemClock};

/// What the file system in memory calls itself.
const TMPFS: u64 = 0x0102_1994;
/// As long as a page of the server's log.
const BLOCK: usize = 8_192;
/// The file is as long as a file of the server's log, and used again from its beginning.
const BLOCKS: u64 = 2_048;

/// Refuses a place in memory.
pub(crate) fn check(directory: &Path) -> anyhow::Result<()> {
    let found = rustix::fs::statfs(directory).context("the directory tells nothing")?;
    let is_memory = u64::try_from(found.f_type).is_ok_and(|kind| kind == TMPFS);
    ensure!(
        !is_memory,
        "{} is in memory: the disk is what is measured",
        directory.display()
    );
    Ok(())
}

/// Bytes that can still be written.
pub(crate) fn free_bytes(directory: &Path) -> anyhow::Result<u64> {
    let found = rustix::fs::statvfs(directory)?;
    Ok(found.f_bavail * found.f_frsize)
}

/// How many times a second a block is written and synced, without a server.
pub(crate) fn sync_rate(directory: &Path, span: Duration) -> anyhow::Result<f64> {
    let file: File = tempfile::tempfile_in(directory)?;
    let block = [7; BLOCK];
    for number in 0..BLOCKS {
        file.write_all_at(&block, number * BLOCK as u64)?;
    }
    file.sync_all()?;
    let clock = SystemClock::new();
    let until = clock.now() + span;
    let mut count = 0;
    while clock.now() < until {
        file.write_all_at(&block, (count % BLOCKS) * BLOCK as u64)?;
        file.sync_data()?;
        count += 1;
    }
    Ok(crate::rate(count, span))
}
