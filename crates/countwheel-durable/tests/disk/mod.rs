//! A disk that loses power: what was synced stays, of the rest some sectors do.

#[allow(dead_code, reason = "not every test needs it")]
pub(crate) mod files;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SECTOR: usize = 512;

/// A simulated disk. Clones share the content; [`copy`](Disk::copy) does not.
#[derive(Clone, Default, Debug)]
pub(crate) struct Disk(Arc<Mutex<State>>);

#[derive(Clone, Default, Debug)]
struct State {
    /// What is read.
    live: Vec<u8>,
    /// What is there after a loss of power, at least.
    durable: Vec<u8>,
    /// What each sector was since the last sync, oldest first.
    unsynced: BTreeMap<usize, Vec<Vec<u8>>>,
    /// How long the disk was since the last sync.
    lengths: Vec<usize>,
    /// Calls that change something until the power goes.
    left: Option<u64>,
    /// The power went.
    off: bool,
    panics: bool,
}

impl Disk {
    /// Lets `calls` more calls that write or sync through. The next one may leave anything
    /// of what it was to write, and reports an error; so do all calls after it.
    pub(crate) fn fail_after(&self, calls: u64) {
        self.state().left = Some(calls);
    }

    pub(crate) fn panic_from_now(&self) {
        self.state().panics = true;
    }

    pub(crate) fn work_again(&self) {
        let mut state = self.state();
        (state.left, state.off, state.panics) = (None, false, false);
    }

    /// Whether a call was refused.
    pub(crate) fn failed(&self) -> bool {
        self.state().off
    }

    /// Another disk with the same content.
    pub(crate) fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(self.state().clone())))
    }

    /// The disk as it is found after the power went now.
    pub(crate) fn crash(&self, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let state = self.state();
        let mut found = state.durable.clone();
        if !state.lengths.is_empty() {
            let which = random.index(state.lengths.len() + 1);
            found.resize(*state.lengths.get(which).unwrap_or(&found.len()), 0);
        }
        for (sector, versions) in &state.unsynced {
            let start = sector * SECTOR;
            let which = random.index(versions.len() + 1);
            if let (Some(version), true) = (versions.get(which), start < found.len()) {
                let end = found.len().min(start + SECTOR);
                found[start..end].copy_from_slice(&version[..end - start]);
            }
        }
        Self::of(found)
    }

    pub(crate) fn image(&self) -> Vec<u8> {
        self.state().live.clone()
    }

    /// Spoils the content in one of several ways, and says how.
    pub(crate) fn damage(&self, random: &mut Random) -> String {
        let mut state = self.state();
        let mut image = std::mem::take(&mut state.live);
        let page = |random: &mut Random| 4_096 * random.index(image.len() / 4_096);
        let what = match random.index(8) {
            0 => {
                let at = random.index(image.len());
                image[at] ^= 1 << random.index(8);
                format!("a bit at {at} flipped")
            }
            1 => {
                let at = random.index(400);
                image[at] = random.byte();
                format!("byte {at} of the header overwritten")
            }
            2 => {
                let count = 1 + random.index(64);
                for _ in 0..count {
                    let at = random.index(image.len());
                    image[at] = random.byte();
                }
                format!("{count} bytes anywhere overwritten")
            }
            3 => {
                let at = page(random);
                image[at..at + 4_096].fill(0);
                format!("the page at {at} zeroed")
            }
            4 => {
                let (from, to) = (page(random), page(random));
                image.copy_within(from..from + 4_096, to);
                format!("the page at {to} replaced by that at {from}")
            }
            5 => {
                let at = SECTOR * random.index(image.len() / SECTOR);
                (0..SECTOR).for_each(|i| image[at + i] = random.byte());
                format!("garbage in the sector at {at}")
            }
            6 => {
                let len = match random.index(3) {
                    0 => page(random).max(1),
                    1 => 1 + random.index(image.len() - 1),
                    _ => 1 + random.index(9_000),
                };
                image.truncate(len);
                format!("cut to {len} bytes")
            }
            _ => {
                let more = [1, 100, 4_096, 1 << 20][random.index(4)];
                let value = random.byte();
                image.resize(image.len() + more, value);
                format!("{more} bytes of {value} appended")
            }
        };
        *state = State {
            durable: image.clone(),
            live: image,
            ..State::default()
        };
        what
    }

    fn of(content: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(State {
            live: content.clone(),
            durable: content,
            ..State::default()
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic that was asked for happens under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts a call that changes something; an error if there is no power for it.
    fn call(&mut self) -> io::Result<()> {
        assert!(!self.panics, "the disk panics, as it was asked to");
        match &mut self.left {
            None => Ok(()),
            Some(0) => {
                self.off = true;
                Err(io::Error::other("no power"))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn remember(&mut self, first: usize, last: usize) {
        for sector in first..=last {
            let start = (sector * SECTOR).min(self.live.len());
            let end = (start + SECTOR).min(self.live.len());
            let mut version = self.live[start..end].to_vec();
            version.resize(SECTOR, 0);
            self.unsynced.entry(sector).or_default().push(version);
        }
    }
}

impl redb::StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().live.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let start = usize::try_from(offset).unwrap();
        let found = start
            .checked_add(out.len())
            .and_then(|end| state.live.get(start..end));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.call()?;
        let len = usize::try_from(len).unwrap();
        state.live.resize(len, 0);
        state.lengths.push(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        state.call()?;
        state.durable = state.live.clone();
        state.unsynced.clear();
        state.lengths.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        if state.off {
            return state.call();
        }
        // What the last write before the power went was to write may be there.
        let powered = state.call();
        let start = usize::try_from(offset).unwrap();
        let end = start + data.len();
        if state.live.len() < end {
            state.live.resize(end, 0);
        }
        state.live[start..end].copy_from_slice(data);
        state.remember(start / SECTOR, end.saturating_sub(1).max(start) / SECTOR);
        powered
    }
}

/// A seeded generator: SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From zero to `end`, which is excluded.
    pub(crate) fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.draw() % end as u64).unwrap()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.draw().to_le_bytes()[0]
    }
}
