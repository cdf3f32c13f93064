//! A disk that loses what was not synced.
//!
//! What is written is seen by later reads at once and is on the medium after the next sync.
//! A power cut keeps any part of what was written since, sector by sector.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::random::Random;

const SECTOR: usize = 512;

/// One simulated disk with one file. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    state: Arc<Mutex<State>>,
}

/// A process's way to the disk: useless once the process has ended, whatever its
/// destructors still try to write.
#[derive(Debug)]
pub struct Handle {
    disk: Disk,
    process: u64,
}

#[derive(Debug, Default)]
struct State {
    /// What survives a cut for certain.
    durable: Vec<u8>,
    /// What reads see.
    live: Vec<u8>,
    /// What was written to each sector since the last sync, oldest first.
    dirty: BTreeMap<usize, Vec<[u8; SECTOR]>>,
    /// Counts calls, so that one can be made to fail.
    calls: u64,
    fail_at: Option<u64>,
    failed: bool,
    /// A disk that lies: its sync does nothing. The negative control.
    ignores_sync: bool,
    /// The process that has the disk now.
    process: u64,
}

impl Disk {
    /// A disk whose syncs do nothing.
    #[must_use]
    pub fn that_ignores_sync() -> Self {
        let disk = Self::default();
        disk.lock().ignores_sync = true;
        disk
    }

    /// Makes the call after `calls` more fail, and every one after it, until the next cut.
    pub fn fail_after(&self, calls: u64) {
        let mut state = self.lock();
        state.fail_at = Some(state.calls + calls);
    }

    /// Ends the process that had the disk and opens it for the next one. What was written
    /// stays: the system goes on.
    #[must_use]
    pub fn open(&self) -> Handle {
        let mut state = self.lock();
        state.process += 1;
        state.failed = false;
        state.fail_at = None;
        Handle {
            disk: self.clone(),
            process: state.process,
        }
    }

    /// Power off, power on: of each sector written since the last sync, `random` decides
    /// whether it reached the medium, and as which of the versions written. So does the
    /// file's length.
    pub fn cut(&self, random: &mut Random) {
        let mut state = self.lock();
        let State {
            durable,
            live,
            dirty,
            ..
        } = &mut *state;
        if live.len() != durable.len() && random.one_in(2) {
            durable.resize(live.len(), 0);
        }
        // Now and then nothing or everything arrives, else about half.
        let share = *random.pick(&[0, 1, 50, 50, 50, 99, 100]);
        for (sector, versions) in dirty.iter() {
            let begin = sector * SECTOR;
            let end = (begin + SECTOR).min(durable.len());
            if begin < end && random.below(100) < share {
                // Most often the last, or the order of writes would hardly be tried.
                let version = if random.one_in(4) {
                    random.pick(versions)
                } else {
                    &versions[versions.len() - 1]
                };
                durable[begin..end].copy_from_slice(&version[..end - begin]);
            }
        }
        state.live = state.durable.clone();
        state.dirty.clear();
        state.process += 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remember(&mut self, sectors: std::ops::Range<usize>) {
        for sector in sectors {
            let begin = (sector * SECTOR).min(self.live.len());
            let end = (begin + SECTOR).min(self.live.len());
            let mut version = [0; SECTOR];
            version[..end - begin].copy_from_slice(&self.live[begin..end]);
            self.dirty.entry(sector).or_default().push(version);
        }
    }
}

impl Handle {
    fn call(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.disk.lock();
        let gone = || io::Error::other("the simulated disk is gone");
        if state.process != self.process {
            return Err(gone());
        }
        state.calls += 1;
        if state.failed || state.fail_at.is_some_and(|at| state.calls > at) {
            state.failed = true;
            return Err(gone());
        }
        Ok(state)
    }
}

fn range(offset: u64, len: usize) -> io::Result<std::ops::Range<usize>> {
    let begin = usize::try_from(offset).map_err(io::Error::other)?;
    Ok(begin..begin + len)
}

impl redb::StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.call()?.live.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.call()?;
        let range = range(offset, out.len())?;
        let bytes = state.live.get(range);
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.call()?;
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let old = state.live.len();
        state.live.resize(len, 0);
        // A shorter file that grows again must not show what stood there.
        state.remember((old.min(len) / SECTOR)..len.div_ceil(SECTOR));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.call()?;
        if !state.ignores_sync {
            let State {
                durable,
                live,
                dirty,
                ..
            } = &mut *state;
            durable.resize(live.len(), 0);
            for &sector in dirty.keys() {
                let begin = sector * SECTOR;
                let end = (begin + SECTOR).min(live.len());
                if begin < end {
                    durable[begin..end].copy_from_slice(&live[begin..end]);
                }
            }
            dirty.clear();
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        // A call that fails may have written a part: the cut decides which sectors stay.
        let failing = self.call().map(drop);
        let mut state = self.disk.lock();
        if state.process != self.process {
            return failing;
        }
        let range = range(offset, data.len())?;
        if range.end > state.live.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let sectors = (range.start / SECTOR)..range.end.div_ceil(SECTOR);
        state.live[range].copy_from_slice(data);
        state.remember(sectors);
        failing
    }
}
