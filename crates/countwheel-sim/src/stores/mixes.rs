//! Files of two moments of one store, on a simulated disk: the log of one beside the tables of the
//! other. Whoever laid a copy over a directory has made such a mix.
//!
//! - **An older log** over newer tables has lost what decided which records were flushed: it is
//!   refused, and nothing is changed, unless it is as it was when the log was copied. The checkpoint in
//!   the tables, a file of its own that a copy may lack, is taken away; what is left to tell is the
//!   manifest.
//! - **A newer log** over older tables has all that they lack. But what it says under a name of which
//!   the newer tables had nothing is no removal for the older ones. It is opened, and stays as
//!   it was acknowledged, also after its segments have been flushed one by one.

use std::collections::BTreeSet;

use countwheel_disk::simulated::Disk;
use countwheel_durable::State;
use countwheel_durable::TimerName;
use countwheel_durable::store::{Change, Lease, MemoryStore, Shard, Store, StoreError};

use super::answers::Answers;
use super::bytes::unchanged;
use super::script;
use crate::machine::{Kept, Machine};
use crate::random::Random;

const SEAL: u64 = 0;
const MOVE: u64 = 1;
/// There are no more segments than this.
const SEGMENTS_MAX: u64 = 8;

/// Both mixes of one store. What is wrong, if something is.
///
/// ```
/// use countwheel_sim::machine::{Kind, Machine};
/// use countwheel_sim::stores::mixes;
///
/// mixes::run(&Machine::new(Kind::Tables, 7), 7)?;
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// What is wrong.
pub fn run(machine: &Machine, seed: u64) -> Result<(), String> {
    older_log(&machine.copy(), seed)?;
    newer_log(&machine.copy(), seed)
}

/// A store, and the same changes in memory.
struct Pair<'a> {
    machine: &'a Machine,
    random: Random,
    names: BTreeSet<TimerName>,
    store: (Box<dyn Kept>, Lease),
    model: (MemoryStore, Lease),
    revision: u64,
}

impl<'a> Pair<'a> {
    fn new(machine: &'a Machine, random: Random) -> Result<Self, StoreError> {
        let store = machine.open()?;
        let lease = store.acquire(Shard::ONLY)?.lease;
        let model = MemoryStore::new(0);
        let own = model.acquire(Shard::ONLY)?.lease;
        Ok(Self {
            machine,
            random,
            names: BTreeSet::new(),
            store: (store, lease),
            model: (model, own),
            revision: 0,
        })
    }

    fn commit(&mut self, change: &Change) -> Result<(), StoreError> {
        if let Change::Put { record, .. } = change {
            self.names.insert(record.name.clone());
        }
        for (store, lease) in [
            (self.store.0.as_store(), self.store.1),
            (&self.model.0 as &dyn Store, self.model.1),
        ] {
            store.commit(lease, std::slice::from_ref(change))?;
        }
        Ok(())
    }

    fn put(&mut self, key: u64) -> Result<(), StoreError> {
        self.revision += 1;
        let record = script::record(key, self.revision, State::Pending, 0);
        self.commit(&Change::put(record))
    }

    /// Up to three timers that have nothing to do with it.
    fn put_others(&mut self) -> Result<(), StoreError> {
        for _ in 0..self.random.below(4) {
            let key = 10 + self.random.below(10);
            self.put(key)?;
        }
        Ok(())
    }

    fn seal(&self) -> Result<(), StoreError> {
        self.store.0.upkeep(SEAL)
    }

    fn shift(&self) -> Result<(), StoreError> {
        self.store.0.upkeep(MOVE)
    }

    /// The disk as it is now.
    fn image(&self) -> Disk {
        self.machine.disk.copy()
    }

    /// What the store answers is what the model answers.
    fn compare(&self, store: &dyn Store, when: &str) -> Result<(), String> {
        let said = |error: StoreError| error.to_string();
        let found = Answers::of(store, &self.names).map_err(said)?;
        found.check()?;
        if found != Answers::of(&self.model.0, &self.names).map_err(said)? {
            return Err(format!("a newer log over older tables is wrong {when}"));
        }
        Ok(())
    }
}

/// Puts the files of one directory of `from` in the place of those of `to`.
fn replace(directory: &str, from: &Disk, to: &Disk) {
    let is_in = |path: &String| {
        path.strip_prefix(directory)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    for path in to.paths().iter().filter(|path| is_in(path)) {
        to.delete(path);
    }
    for path in from.paths().iter().filter(|path| is_in(path)) {
        to.set_content(path, from.content(path).unwrap_or_default());
    }
}

fn last_segment(disk: &Disk) -> Option<String> {
    let mut segments = disk.paths();
    segments.retain(|path| path.starts_with("log/segment-"));
    segments.pop()
}

fn without_checkpoints(disk: &Disk) {
    for path in disk.paths() {
        if path.starts_with("tables/reached-") {
            disk.delete(&path);
        }
    }
}

/// A timer that has moved, and in the log its removal.
fn removed_since_it_moved(machine: &Machine, seed: u64) -> Result<Pair<'_>, StoreError> {
    let mut pair = Pair::new(machine, Random::new(seed, "mixes"))?;
    pair.put(1)?;
    pair.put_others()?;
    pair.seal()?;
    pair.shift()?;
    pair.commit(&Change::remove(script::name(1)))?;
    pair.put_others()?;
    pair.seal()?;
    Ok(pair)
}

/// The tables have a timer whose removal was not flushed, since it was set again when it would have.
fn older_log(machine: &Machine, seed: u64) -> Result<(), String> {
    let said = |error: StoreError| error.to_string();
    let make = || {
        let mut pair = removed_since_it_moved(machine, seed)?;
        pair.put(2)?;
        let older = (pair.image(), Answers::of(&pair.model.0, &pair.names)?);
        let names = pair.names.clone();
        pair.put(1)?;
        pair.put_others()?;
        pair.shift()?;
        Ok::<_, StoreError>((older, names))
    };
    let ((older, expected), names) = make().map_err(said)?;
    let disk = &machine.disk;
    disk.restart();
    machine.open().map_err(said)?;
    disk.restart();
    replace("log", &older, disk);
    without_checkpoints(disk);
    let before = disk.image();
    let Ok(store) = machine.open() else {
        return unchanged(disk, &before, "a start that was refused");
    };
    // A small log flushes by itself, and has nothing more to flush then: the tables are the older ones.
    if Answers::of(store.as_store(), &names).map_err(said)? != expected {
        return Err("an older log over newer tables was opened".to_owned());
    }
    Ok(())
}

/// The older tables have a timer that the log removed, set and removed once more.
fn newer_log(machine: &Machine, seed: u64) -> Result<(), String> {
    let said = |error: StoreError| error.to_string();
    let make = || {
        let mut pair = removed_since_it_moved(machine, seed)?;
        let older = pair.image();
        pair.shift()?;
        pair.put(1)?;
        pair.put_others()?;
        pair.commit(&Change::remove(script::name(1)))?;
        pair.put(2)?;
        let newer = pair.image();
        Ok::<_, StoreError>((pair, older, newer))
    };
    let (pair, older, newer) = make().map_err(said)?;
    let disk = &machine.disk;
    disk.restart();
    replace("tables", &older, disk);
    // The segment that had been flushed is a segment once more.
    replace("log", &older, disk);
    for path in newer.paths() {
        if path.starts_with("log/") {
            disk.set_content(&path, newer.content(&path).unwrap_or_default());
        }
    }
    // A small log flushes by itself. What it began behind the older copy and flushed is in neither part.
    let is_there = |path: &String| newer.content(path).is_some();
    let may_lack = !last_segment(&older).as_ref().is_some_and(is_there);
    let before = disk.image();
    if may_lack && machine.open().is_err() {
        return unchanged(disk, &before, "a start that was refused");
    }
    disk.restart();
    for turn in 0..SEGMENTS_MAX {
        let store = machine.open().map_err(said)?;
        pair.compare(store.as_store(), &format!("after {turn} openings"))?;
        if turn % 2 == 1 {
            store.upkeep(SEAL).map_err(said)?;
        }
        store.upkeep(MOVE).map_err(said)?;
        pair.compare(
            store.as_store(),
            &format!("after {turn} openings and a flush"),
        )?;
        drop(store);
        disk.restart();
    }
    Ok(())
}
