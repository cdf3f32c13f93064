//! What the tests of the stores on a simulated disk share: a generator, and how a disk goes
//! away.

use countwheel_durable::store::simulated::{Disk, Fault};

const SECTOR: usize = 512;

/// The one file of a disk that holds an embedded store.
pub(crate) const FILE: &str = "timers.redb";

/// Lets `calls` more calls that write or sync through. The next one may leave anything of what
/// it was to write, and reports an error; so do all calls after it.
pub(crate) fn fail_after(disk: &Disk, calls: u64) {
    disk.fail(Fault::power(calls));
}

/// The disk as it is found after the power went now.
pub(crate) fn crash(disk: &Disk, seed: u64) -> Disk {
    let found = disk.copy();
    found.cut(seed);
    found
}

/// What the one file of the disk holds.
pub(crate) fn image(disk: &Disk) -> Vec<u8> {
    disk.content(FILE).unwrap()
}

/// Spoils the content in one of several ways, and says how.
pub(crate) fn damage(disk: &Disk, random: &mut Random) -> String {
    let mut image = image(disk);
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
    disk.set_content(FILE, image);
    what
}

/// A seeded generator: SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn draw(&mut self) -> u64 {
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
