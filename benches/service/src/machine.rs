//! The machine: its processors, its load, and how often a second its disk syncs.

use std::fmt;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use countwheel_time::{Clock as _, SystemClock};

/// The number by which the file system in memory names itself.
const TMPFS: u64 = 0x0102_1994;
const BLOCK: usize = 4_096;
/// The file is written again from its beginning after so many blocks.
const BLOCKS: u64 = 1_024;
/// How long the disk is measured.
const SPAN: Duration = Duration::from_millis(500);

/// The state of the machine at one time.
pub(crate) struct State {
    load: String,
    processors: usize,
    syncs_per_second: f64,
}

impl State {
    /// Reads the load first: the measurement of the disk is part of the load afterwards.
    pub(crate) fn read(directory: &Path) -> anyhow::Result<Self> {
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Ok(Self {
            load: load.trim().to_owned(),
            processors: std::thread::available_parallelism()?.get(),
            syncs_per_second: sync_rate(directory)?,
        })
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "load {}; {} processors; the disk syncs {:.0} blocks of 4 KiB a second",
            self.load, self.processors, self.syncs_per_second
        )
    }
}

/// Refuses a directory in memory.
pub(crate) fn check(directory: &Path) -> anyhow::Result<()> {
    let found = rustix::fs::statfs(directory).context("the directory tells nothing")?;
    let is_memory = u64::try_from(found.f_type).is_ok_and(|kind| kind == TMPFS);
    ensure!(
        !is_memory,
        "{} is in memory: the service needs a disk",
        directory.display()
    );
    Ok(())
}

/// How many times a second a block is written and synced, one after the other.
pub(crate) fn sync_rate(directory: &Path) -> anyhow::Result<f64> {
    let file = tempfile::tempfile_in(directory)?;
    let block = [7; BLOCK];
    for number in 0..BLOCKS {
        file.write_all_at(&block, number * BLOCK as u64)?;
    }
    file.sync_all()?;
    let clock = SystemClock::new();
    let began = clock.now();
    let mut count = 0_u32;
    while clock.now().saturating_since(began) < SPAN {
        file.write_all_at(&block, (u64::from(count) % BLOCKS) * BLOCK as u64)?;
        file.sync_data()?;
        count += 1;
    }
    Ok(f64::from(count) / clock.now().saturating_since(began).as_secs_f64())
}
