//! Files that somebody takes away while a store is open: what is acknowledged after that, the next
//! start would not find.

use countwheel_durable::store::{Change, DiskError, Shard, StoreError};
use countwheel_durable::{Revision, State};

use super::{live, script};
use crate::machine::Machine;
use crate::random::Random;

/// How many commits are tried after that.
const COMMITS: u64 = 20;

/// Lives a life, and takes the newest segment away, or puts a copy of it in its place, while the
/// store is open. No commit is acknowledged from then on, and the first says why.
///
/// # Errors
/// What is wrong.
pub fn run(machine: &Machine, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, "removed");
    live(machine, &script::life(seed, 20)).map_err(|broken| broken.what)?;
    let disk = &machine.disk;
    let said = |error: StoreError| error.to_string();
    disk.restart();
    disk.heal();
    disk.set_capacity(None);
    let store = machine.open().map_err(said)?;
    let lease = store.as_store().acquire(Shard::ONLY).map_err(said)?.lease;
    let commit = |number: u64, bytes: usize| {
        let revision = (1 << 40) + number;
        let record = script::record(number % 5, revision, State::Pending, bytes);
        let changes = [Change::put(record), Change::Given(Revision(revision))];
        store.as_store().commit(lease, &changes)
    };
    for number in 0..random.below(10) {
        commit(number, 700).map_err(said)?;
    }
    let mut segments = disk.paths();
    segments.retain(|path| path.starts_with("log/segment-"));
    let newest = segments.pop().ok_or("there is no segment")?;
    let content = disk.content(&newest).unwrap_or_default();
    disk.delete(&newest);
    let is_replaced = random.one_in(2);
    if is_replaced {
        disk.set_content(&newest, content);
    }
    let bytes = *random.pick(&[8, 700, 6_000]);
    for number in 0..COMMITS {
        match commit(100 + number, bytes) {
            Ok(()) => {
                return Err(format!(
                    "a commit is acknowledged without {newest}, replaced: {is_replaced}"
                ));
            }
            Err(StoreError::Disk(DiskError::Removed { .. })) if number == 0 => {}
            Err(StoreError::Poisoned) if number > 0 => {}
            Err(error) => return Err(format!("refused without {newest}, but for {error}")),
        }
    }
    Ok(())
}
