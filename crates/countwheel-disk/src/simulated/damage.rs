//! Damage that no sync prevents: bytes that change by themselves, files replaced by others.

use std::fmt;

use super::node::{Node, SECTOR};
use super::{Disk, State};
use countwheel_time::Random;

/// What was done to a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Damage {
    /// A bit has flipped.
    Bit {
        /// In which byte.
        at: usize,
    },
    /// So many bytes have become zero.
    Zeros {
        /// From which on.
        at: usize,
        /// How many.
        len: usize,
    },
    /// A sector is full of anything.
    Garbage {
        /// Where it begins.
        at: usize,
    },
    /// It ends here now.
    Cut {
        /// How long it is.
        len: usize,
    },
    /// It has a sector of itself in place of another.
    Misplaced {
        /// Where the sector came from.
        from: usize,
        /// Where it stands now, too.
        to: usize,
    },
    /// It and another file have each other's content.
    Swapped {
        /// The other.
        with: String,
    },
    /// A sector is as it was before it was last written: a lost write.
    Stale {
        /// Where it begins.
        at: usize,
    },
    /// From here on everything is as it was before it was last written.
    StaleTail {
        /// Where that begins.
        at: usize,
    },
    /// It is gone.
    Missing,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Disk {
    /// Spoils one of the files, in a way that `seed` says. Returns its path and what was done;
    /// `None` if there is no file with anything in it. Whatever was written
    /// and named before counts as durable then.
    ///
    /// ```
    /// use countwheel_disk::simulated::Disk;
    ///
    /// let disk = Disk::default();
    /// disk.set_content("log/segment", vec![7; 2_000]);
    /// let (path, damage) = disk.damage(1).expect("there is a file");
    /// assert_eq!(path, "log/segment");
    /// println!("{path}: {damage}");
    /// ```
    pub fn damage(&self, seed: u64) -> Option<(String, Damage)> {
        let mut random = Random::new(seed);
        let paths = self.paths();
        let mut state = self.0.lock();
        for node in state.nodes.values_mut() {
            node.sync();
        }
        for directory in state.directories.values_mut() {
            directory.unsynced.clear();
            directory.durable.clone_from(&directory.names);
        }
        let full: Vec<&String> = paths
            .iter()
            .filter(|path| state.file(path).is_some_and(|node| !node.live.is_empty()))
            .collect();
        if full.is_empty() {
            return None;
        }
        let path = full[index(&mut random, full.len())].clone();
        let damage = loop {
            let kind = random.below(9);
            if let Some(damage) = state.spoil(&path, &full, kind, &mut random) {
                break damage;
            }
        };
        drop(state);
        if damage == Damage::Missing {
            self.delete(&path);
        }
        Some((path, damage))
    }
}

impl State {
    fn file(&mut self, path: &str) -> Option<&mut Node> {
        let node = self.find(path)?;
        self.nodes.get_mut(&node)
    }

    /// `None` if this file cannot be spoilt so.
    fn spoil(
        &mut self,
        path: &str,
        all: &[&String],
        kind: u64,
        random: &mut Random,
    ) -> Option<Damage> {
        let other = all[index(random, all.len())];
        let theirs = self.file(other)?.live.clone();
        let node = self.file(path)?;
        let mut image = node.live.clone();
        let len = image.len();
        let sectors = len.div_ceil(SECTOR);
        let sector = |random: &mut Random| SECTOR * index(random, sectors);
        let damage = match kind {
            0 => {
                // Half of the time near the beginning, where the least is.
                let within = if random.below(2) == 0 {
                    len.min(4_096)
                } else {
                    len
                };
                let at = index(random, within);
                image[at] ^= 1 << random.below(8);
                Damage::Bit { at }
            }
            1 => {
                let at = sector(random);
                let len = [SECTOR, 4_096, 16_384][index(random, 3)].min(len - at);
                image[at..at + len].fill(0);
                Damage::Zeros { at, len }
            }
            2 => {
                let at = sector(random);
                for byte in image.iter_mut().skip(at).take(SECTOR) {
                    *byte = random.below(256).to_le_bytes()[0];
                }
                Damage::Garbage { at }
            }
            3 => {
                let len = index(random, len);
                image.truncate(len);
                Damage::Cut { len }
            }
            4 => {
                let (from, to) = (sector(random), sector(random));
                let part = SECTOR.min(len - from).min(len - to);
                image.copy_within(from..from + part, to);
                Damage::Misplaced { from, to }
            }
            5 if other != path => {
                let ours = std::mem::replace(&mut image, theirs);
                let opened = node.opened;
                let node = self.file(other)?;
                let others = node.opened;
                *node = Node::durable(ours);
                node.opened = others;
                let node = self.file(path)?;
                *node = Node::durable(image);
                node.opened = opened;
                return Some(Damage::Swapped {
                    with: other.clone(),
                });
            }
            6 | 7 => {
                let aged = node.aged();
                let first = *aged.get(index(random, aged.len().max(1)))?;
                let at = first * SECTOR;
                return if kind == 6 {
                    node.age(first, true).then_some(Damage::Stale { at })
                } else {
                    node.age(first, false).then_some(Damage::StaleTail { at })
                };
            }
            8 => return Some(Damage::Missing),
            _ => return None,
        };
        let opened = node.opened;
        *node = Node::durable(image);
        node.opened = opened;
        Some(damage)
    }
}

fn index(random: &mut Random, end: usize) -> usize {
    usize::try_from(random.below(end as u64)).unwrap_or(0)
}
