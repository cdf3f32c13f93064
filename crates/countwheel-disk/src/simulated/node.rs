//! One file: its present bytes, its durable bytes, and the writes since.

use std::collections::BTreeMap;

use countwheel_time::Random;

/// The piece of a file that is written whole or not at all.
pub(super) const SECTOR: usize = 512;

type Sector = Box<[u8; SECTOR]>;

#[derive(Clone, Default, Debug)]
pub(super) struct Node {
    /// What is read.
    pub(super) live: Vec<u8>,
    /// What is there after a loss of power for certain.
    pub(super) durable: Vec<u8>,
    /// What each sector was since the last sync, oldest first.
    unsynced: BTreeMap<usize, Vec<Sector>>,
    /// How long the file was since the last sync.
    lengths: Vec<usize>,
    /// What stood in a sector before its last sync that changed it.
    earlier: BTreeMap<usize, Sector>,
    /// How many handles of the present process there are.
    pub(super) opened: u64,
}

impl Node {
    /// A file of zeros whose length is not durable yet.
    pub(super) fn zeros(len: usize) -> Self {
        let mut node = Self::default();
        if len > 0 {
            node.live.resize(len, 0);
            node.lengths.push(len);
        }
        node
    }

    /// A file that is durable.
    pub(super) fn durable(bytes: Vec<u8>) -> Self {
        Self {
            durable: bytes.clone(),
            live: bytes,
            ..Self::default()
        }
    }

    pub(super) fn write(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        if end > self.live.len() {
            self.live.resize(end, 0);
            self.lengths.push(end);
        }
        self.live[offset..end].copy_from_slice(data);
        self.remember(offset / SECTOR..end.div_ceil(SECTOR));
    }

    fn remember(&mut self, sectors: std::ops::Range<usize>) {
        for number in sectors {
            let version = sector(&self.live, number);
            self.unsynced.entry(number).or_default().push(version);
        }
    }

    /// A sync that does what it says, of what is not clean.
    pub(super) fn sync(&mut self) {
        self.durable.resize(self.live.len(), 0);
        self.lengths.clear();
        for number in std::mem::take(&mut self.unsynced).into_keys() {
            let version = sector(&self.live, number);
            self.land(number, &version);
        }
    }

    /// A sync that fails: any part of what was written is durable, the rest never will be,
    /// although it can be read.
    pub(super) fn sync_in_part(&mut self, random: &mut Random) {
        self.land_some(random);
    }

    /// Power off, power on.
    pub(super) fn cut(&mut self, random: &mut Random) {
        self.land_some(random);
        self.live.clone_from(&self.durable);
        self.opened = 0;
    }

    fn land_some(&mut self, random: &mut Random) {
        let lengths = std::mem::take(&mut self.lengths);
        // The last or the first, most often; else any in between.
        match (random.below(3), lengths.last()) {
            (0, _) | (_, None) => {}
            (1, Some(&last)) => self.durable.resize(last, 0),
            _ => {
                let which = random.below(lengths.len() as u64);
                let len = lengths[usize::try_from(which).unwrap_or(0)];
                self.durable.resize(len, 0);
            }
        }
        // Now and then nothing or everything arrives, else about half.
        let shares = [0, 1, 50, 50, 50, 99, 100];
        let share = shares[usize::try_from(random.below(7)).unwrap_or(0)];
        for (number, mut versions) in std::mem::take(&mut self.unsynced) {
            if number * SECTOR >= self.durable.len() || random.below(100) >= share {
                continue;
            }
            // Most often the last, or the order of writes would hardly be tried.
            let which = match random.below(4) {
                0 => usize::try_from(random.below(versions.len() as u64)).unwrap_or(0),
                _ => versions.len() - 1,
            };
            let version = versions.swap_remove(which);
            self.land(number, &version);
        }
    }

    /// A sector reaches the medium.
    fn land(&mut self, number: usize, version: &Sector) {
        let start = number * SECTOR;
        let end = self.durable.len().min(start + SECTOR);
        if start >= end {
            return; // cut off since
        }
        let before = sector(&self.durable, number);
        let part = &mut self.durable[start..end];
        if *part != version[..end - start] {
            part.copy_from_slice(&version[..end - start]);
            self.earlier.insert(number, before);
        }
    }

    /// What is only in memory and counts as clean, since a sync of it failed, is forgotten.
    pub(super) fn evict(&mut self) {
        let shared = self.live.len().min(self.durable.len());
        for number in 0..shared.div_ceil(SECTOR) {
            if !self.unsynced.contains_key(&number) {
                let (start, end) = (number * SECTOR, shared.min((number + 1) * SECTOR));
                self.live[start..end].copy_from_slice(&self.durable[start..end]);
            }
        }
    }

    /// Puts back what stood in the sectors from `first` on, or in that one alone, before they
    /// were last written. False if nothing was written twice there.
    pub(super) fn age(&mut self, first: usize, alone: bool) -> bool {
        let last = if alone { first } else { usize::MAX };
        let earlier: Vec<_> = self
            .earlier
            .range(first..=last)
            .map(|(number, version)| (*number, version.clone()))
            .collect();
        let aged = !earlier.is_empty();
        for (number, version) in earlier {
            self.land(number, &version);
        }
        self.live.clone_from(&self.durable);
        aged
    }

    /// The sectors of which an earlier version is known.
    pub(super) fn aged(&self) -> Vec<usize> {
        self.earlier.keys().copied().collect()
    }
}

fn sector(image: &[u8], number: usize) -> Sector {
    let start = (number * SECTOR).min(image.len());
    let end = image.len().min(start + SECTOR);
    let mut version = Box::new([0; SECTOR]);
    version[..end - start].copy_from_slice(&image[start..end]);
    version
}
