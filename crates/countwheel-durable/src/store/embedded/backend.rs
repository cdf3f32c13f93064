//! A disk whose changes are held back until they are released.

use std::io;
use std::ops::Bound;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use redb::{BackendError, StorageBackend};

/// Reads through to `inner`; writes are kept in memory, in order, until [`release`].
///
/// An opening that repairs changes little: the header and a few pages. It is replayed with
/// its syncs, so a crash in the middle of it leaves what a crash in the middle of the
/// opening itself would have left.
///
/// [`release`]: HeldBack::release
#[derive(Debug)]
pub(super) struct HeldBack<B> {
    inner: Arc<B>,
    held: Arc<RwLock<Option<Held>>>,
}

/// What was held back.
#[derive(Debug)]
struct Held {
    /// How long the disk would be.
    len: u64,
    changes: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Write { offset: u64, data: Vec<u8> },
    SetLen(u64),
    Sync,
}

impl<B> Clone for HeldBack<B> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            held: Arc::clone(&self.held),
        }
    }
}

impl<B: StorageBackend> HeldBack<B> {
    pub(super) fn new(inner: B) -> io::Result<Self> {
        let held = Held {
            len: inner.len()?,
            changes: Vec::new(),
        };
        Ok(Self {
            inner: Arc::new(inner),
            held: Arc::new(RwLock::new(Some(held))),
        })
    }

    /// Makes all changes so far, and from now on each at once.
    pub(super) fn release(&self) -> io::Result<()> {
        let mut held = self.held_mut();
        for change in held.iter().flat_map(|held| &held.changes) {
            match change {
                Change::Write { offset, data } => self.inner.write(*offset, data)?,
                Change::SetLen(len) => self.inner.set_len(*len)?,
                Change::Sync => self.inner.sync_data()?,
            }
        }
        *held = None;
        Ok(())
    }

    fn held(&self) -> RwLockReadGuard<'_, Option<Held>> {
        self.held.read().expect("no panic under the lock")
    }

    /// Holds `change` back; false if changes are to be made at once.
    fn hold(&self, change: impl FnOnce() -> Change) -> bool {
        // The common case shares the lock: a sync must not keep readers waiting.
        if self.held().is_none() {
            return false;
        }
        match &mut *self.held_mut() {
            Some(held) => {
                held.push(change());
                true
            }
            None => false,
        }
    }

    fn held_mut(&self) -> RwLockWriteGuard<'_, Option<Held>> {
        self.held.write().expect("no panic under the lock")
    }
}

impl Held {
    fn push(&mut self, change: Change) {
        match &change {
            Change::Write { offset, data } => self.len = self.len.max(end(*offset, data)),
            Change::SetLen(len) => self.len = *len,
            Change::Sync => {}
        }
        self.changes.push(change);
    }

    fn read(&self, inner: &dyn StorageBackend, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if end(offset, out) > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let there = inner.len()?.saturating_sub(offset);
        let there = usize::try_from(there).map_or(out.len(), |there| there.min(out.len()));
        let (old, new) = out.split_at_mut(there);
        if !old.is_empty() {
            inner.read(offset, old)?;
        }
        new.fill(0);
        for change in &self.changes {
            match change {
                Change::Write { offset: at, data } => overlay(out, offset, *at, data),
                // What was cut off reads as zeros, should it ever grow back.
                Change::SetLen(len) => {
                    let kept = usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX);
                    if let Some(cut) = out.get_mut(kept..) {
                        cut.fill(0);
                    }
                }
                Change::Sync => {}
            }
        }
        Ok(())
    }
}

/// Copies the part of `data`, which stands at `at`, that falls into `out`, which begins at
/// `offset`.
fn overlay(out: &mut [u8], offset: u64, at: u64, data: &[u8]) {
    let (first, last) = (offset.max(at), end(offset, out).min(end(at, data)));
    if first >= last {
        return;
    }
    let within = |position: u64, start: u64| {
        usize::try_from(position - start).expect("a position inside a slice")
    };
    out[within(first, offset)..within(last, offset)]
        .copy_from_slice(&data[within(first, at)..within(last, at)]);
}

fn end(offset: u64, data: &[u8]) -> u64 {
    offset.saturating_add(data.len() as u64)
}

impl<B: StorageBackend> StorageBackend for HeldBack<B> {
    fn len(&self) -> io::Result<u64> {
        match &*self.held() {
            Some(held) => Ok(held.len),
            None => self.inner.len(),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match &*self.held() {
            Some(held) => held.read(&*self.inner, offset, out),
            None => self.inner.read(offset, out),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.hold(|| Change::SetLen(len)) {
            return Ok(());
        }
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.hold(|| Change::Sync) {
            return Ok(());
        }
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let change = || Change::Write {
            offset,
            data: data.to_vec(),
        };
        if self.hold(change) {
            return Ok(());
        }
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    // An opening for one process asks for nothing but these two.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redb::backends::InMemoryBackend;

    use super::*;
    use crate::random::Random;

    fn content(disk: &dyn StorageBackend) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(disk.len().unwrap()).unwrap()];
        disk.read(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_disk_held_back_reads_like_a_plain_one_and_changes_when_released() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut below = |end: u64| {
                let drawn = random.up_to(Duration::from_micros(end - 1));
                u64::try_from(drawn.as_micros()).unwrap()
            };
            let (plain, inner) = (InMemoryBackend::new(), InMemoryBackend::new());
            for disk in [&plain, &inner] {
                disk.set_len(600).unwrap();
                disk.write(0, &[7; 600]).unwrap();
            }
            let held = HeldBack::new(inner).unwrap();
            for value in 1..40 {
                let (offset, len) = (below(800), below(300));
                if below(4) == 0 {
                    plain.set_len(offset).unwrap();
                    held.set_len(offset).unwrap();
                } else if offset + len <= plain.len().unwrap() {
                    let data = vec![value; usize::try_from(len).unwrap()];
                    plain.write(offset, &data).unwrap();
                    held.write(offset, &data).unwrap();
                }
                held.sync_data().unwrap();
                let expected = content(&plain);
                assert_eq!(content(&held), expected);
                let start = usize::try_from(offset).unwrap().min(expected.len());
                let mut out = vec![0; expected.len() - start];
                held.read(start as u64, &mut out).unwrap();
                assert_eq!(out, expected[start..]);
                assert!(held.read(offset, &mut [0; 900]).is_err());
            }
            assert_eq!(content(&*held.inner), [7; 600]);
            held.release().unwrap();
            assert_eq!(content(&*held.inner), content(&plain));
            held.set_len(3).unwrap();
            assert_eq!(held.inner.len().unwrap(), 3);
        }
    }
}
