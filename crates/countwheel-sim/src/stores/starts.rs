//! Starts that have to be refused: the newest segment of a log is gone.

use countwheel_durable::Revision;
use countwheel_durable::store::{Change, Shard, StoreError};

use super::bytes::unchanged;
use super::{live, script};
use crate::machine::Machine;

/// Lives a life, removes the newest segment, and opens the store: it is refused, and the disk is
/// as it was. What is wrong, if something is.
///
/// # Errors
/// What is wrong.
pub fn run(machine: &Machine, seed: u64) -> Result<(), String> {
    live(machine, &script::life(seed, 20)).map_err(|broken| broken.what)?;
    let disk = &machine.disk;
    let said = |error: StoreError| error.to_string();
    disk.restart();
    disk.heal();
    disk.set_capacity(None);
    let store = machine.open().map_err(said)?;
    let lease = store.acquire(Shard::ONLY).map_err(said)?.lease;
    let given = Change::Given(Revision(1 << 40));
    store.commit(lease, &[given]).map_err(said)?;
    drop(store);
    disk.restart();
    let mut segments = disk.paths();
    segments.retain(|path| path.starts_with("log/segment-"));
    let newest = segments.pop().ok_or("there is no segment")?;
    disk.delete(&newest);
    let before = disk.image();
    match machine.open() {
        Ok(_) => return Err(format!("it was opened without {newest}")),
        Err(refused) if !refused.to_string().contains(&newest) => {
            return Err(format!("it was refused, and not for {newest}: {refused}"));
        }
        Err(_) => {}
    }
    unchanged(disk, &before, "a start that was refused")
}
