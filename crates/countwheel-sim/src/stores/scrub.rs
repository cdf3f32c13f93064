//! A scrub of a store that has lived for a while: it finds nothing in a sound store, and finds a
//! flipped bit anywhere in a table or in a full segment.

use countwheel_durable::store::{Change, Shard, Store, StoreError};
use countwheel_durable::{State, TroubleReason};

use super::script;
use crate::machine::{Kind, Machine};
use crate::random::Random;

/// How many names there are.
const NAMES: u64 = 40;
/// How many bits are flipped in one life, one at a time.
const FLIPS: u64 = 4;

/// Lives through one seed. Says how many bits were flipped.
///
/// # Errors
/// The first wrong answer.
pub fn run(seed: u64) -> Result<u64, String> {
    let mut random = Random::new(seed, "scrub");
    let machine = Machine::new(Kind::Tables, seed);
    let text = |error: StoreError| error.to_string();
    let store = machine.open().map_err(text)?;
    let lease = store.acquire(Shard::ONLY).map_err(text)?.lease;
    for revision in 1..=random.between(60, 300) {
        let key = random.below(NAMES);
        let change = if random.one_in(4) {
            Change::remove(script::name(key))
        } else {
            let bytes = *random.pick(&[8, 60, 700]);
            Change::put(script::record(key, revision, State::Pending, bytes))
        };
        store.commit(lease, &[change]).map_err(text)?;
        if random.one_in(10) {
            store.upkeep(random.draw()).map_err(text)?;
        }
        if random.one_in(10) {
            let budget = random.below(10_000);
            if let Some(disk) = store.as_store().on_disk() {
                let _round = disk.scrub_step(budget);
            }
        }
    }
    // So that something is in tables and a segment is full.
    for upkeep in [3, 0] {
        store.upkeep(upkeep).map_err(text)?;
    }
    let found = rounds(store.as_store());
    if !found.is_empty() {
        return Err(format!("nothing is damaged, but {found:?}"));
    }
    let disk = &machine.disk;
    let mut paths = disk.paths();
    paths.sort();
    let last = paths
        .iter()
        .rfind(|path| path.contains("segment-"))
        .cloned();
    paths.retain(|path| {
        path.contains("/table-") || path.contains("/segment-") && Some(path) != last.as_ref()
    });
    let mut flips = 0;
    while flips < FLIPS && !paths.is_empty() {
        let path = random.pick(&paths).clone();
        let sound = disk.content(&path).unwrap_or_default();
        let mut end = sound.len();
        if path.contains("/segment-") {
            end = commits_end(&sound);
        }
        let place = usize::try_from(random.below(end as u64)).unwrap_or_default();
        let mut damaged = sound.clone();
        damaged[place] ^= 1 << random.below(8);
        disk.set_content(&path, damaged);
        let found = rounds(store.as_store());
        if !found.iter().any(|found| found.contains(&path)) {
            return Err(format!(
                "a bit of byte {place} of {path} is flipped: {found:?}"
            ));
        }
        disk.set_content(&path, sound);
        flips += 1;
    }
    Ok(flips)
}

/// Where the commits of a full segment end: behind that may stand anything.
fn commits_end(content: &[u8]) -> usize {
    let number = |at: usize| {
        let bytes = content.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let end = |at: usize| {
        let length = usize::try_from(number(at) >> 32).unwrap_or_default();
        at + (16 + length).next_multiple_of(8)
    };
    let (mut commit, nonce) = (number(32), number(48));
    // The first frame says what was before, under the number of the first commit.
    let mut at = end(64);
    while at < content.len() && number(at + 8) ^ nonce == commit {
        at = end(at);
        commit += 1;
    }
    at
}

/// The rest of a round and a whole one. What the last found.
fn rounds(store: &dyn Store) -> Vec<String> {
    let ended = || {
        store
            .on_disk()
            .is_none_or(|disk| disk.scrub_step(1_000).ended)
    };
    for _ in 0..2 {
        while !ended() {}
    }
    let troubles = store.troubles().into_iter();
    let found = troubles.filter(|one| one.reason == TroubleReason::Scrub);
    found.map(|one| one.to_string()).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn flipped_bits_are_found() {
        let flips: u64 = (0..30).map(|seed| super::run(seed).unwrap()).sum();
        assert!(flips > 60, "{flips}");
    }
}
