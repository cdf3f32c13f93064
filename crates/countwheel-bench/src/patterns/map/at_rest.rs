//! P3m: the memory of entries, and the time at which the map drops expired ones.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use countwheel_time::locks::lock;

use super::{Kind, Map as _};
use crate::random::SplitMix;
use crate::statistics::percentile;
use crate::stopwatch::{Stopwatch, lateness, pause};
use crate::system::resident;
use crate::workload::{Figures, figures};

/// How long the entries live whose size is measured.
const LONG: Duration = Duration::from_secs(600);

/// After so many inserts, whoever puts work off does it: queues that grew long would stay in
/// the resident memory.
const PORTION: usize = 10_000;

/// A map for so many lives is watched after its entries have expired.
const LIVES: u32 = 3;

/// Of so many entries one is looked up.
const LOOKED_UP: usize = 16;

pub(super) fn measure<K: Kind>(entries: u64, ttl: Duration) -> anyhow::Result<Figures> {
    let mut numbers = SplitMix::new(42);
    let keys: Vec<u64> = (0..entries).map(|_| numbers.next()).collect();
    let before = resident()?;
    let map = K::Of::<u64>::start(LONG)?;
    for some in keys.chunks(PORTION) {
        for &key in some {
            map.insert(key, key);
        }
        map.settle();
    }
    let bytes = (resident()? - before) / entries as f64;
    for &key in keys.iter().step_by(LOOKED_UP) {
        ensure!(map.get(key) == Some(key), "an entry is missing");
    }
    // Left to the end of the process, like all others.
    std::mem::forget(map);

    let few = &keys[..keys.len() / 10];
    let map = K::Of::<Arc<Token>>::start(ttl)?;
    let drops: &'static Mutex<Vec<i64>> = Box::leak(Box::default());
    for &key in few {
        let due = Stopwatch::start().instant() + ttl;
        map.insert(key, Arc::new(Token { due, drops }));
    }
    map.settle();
    let until = Stopwatch::start().instant() + ttl * (1 + LIVES);
    let dropped = || lock(drops).len();
    while dropped() < few.len() && lateness(until) < 0 {
        pause(Duration::from_millis(1));
    }
    let mut late = lock(drops).clone();
    pause(ttl);
    for &key in few.iter().step_by(LOOKED_UP) {
        ensure!(map.get(key).is_none(), "an entry has outlived its time");
    }
    std::mem::forget(map);

    late.sort_unstable();
    ensure!(
        late.first().is_none_or(|&least| least >= 0),
        "an entry was dropped before its time"
    );
    let held = few.len() - late.len();
    let mut found = figures([
        ("bytes", bytes),
        ("held", 100.0 * held as f64 / few.len().max(1) as f64),
    ]);
    for (name, part) in [("gone", 0.5), ("last", 1.0)] {
        if held == 0 {
            let nanoseconds = percentile(&late, part).context("there are no entries")?;
            found.insert(name.to_owned(), nanoseconds as f64 / 1e6);
        }
    }
    Ok(found)
}

/// A value that tells when its memory is let go.
pub(crate) struct Token {
    due: Instant,
    drops: &'static Mutex<Vec<i64>>,
}

impl Drop for Token {
    fn drop(&mut self) {
        let late = lateness(self.due);
        let mut drops = lock(self.drops);
        drops.push(late);
    }
}
