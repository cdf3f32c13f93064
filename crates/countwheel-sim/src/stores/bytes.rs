//! Unknown bytes: a store whose files were changed answers rightly, or refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use countwheel_disk::simulated::{Damage, Disk};
use countwheel_durable::TimerName;
use countwheel_durable::store::{Change, DiskError, MemoryStore, Shard, Store, StoreError};

use super::answers::Answers;
use super::life::Event;
use super::rescue::{self, Rescued};
use super::script;
use crate::failure::{Failure, panic_text};
use crate::machine::{Kind, Machine};
use crate::random::Random;

/// What became of damaged stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdicts {
    /// Refused when opened.
    pub refused: u64,
    /// Refused when asked.
    pub refused_later: u64,
    /// Right all the same.
    pub right: u64,
    /// As it was some commits ago: the end of the last segment of a log was zeroed, cut off,
    /// old, or a sector of anything, in which more than one commit may have stood. Nothing durable
    /// says where a log ends but the log, so an opening cannot tell this from an end that was
    /// never reached. A check can, if the counts tell.
    pub without_an_end: u64,
    /// Empty, since a log of which no file is left is a new one: who opens the directory has to
    /// know that there was one.
    pub started_empty: u64,
    /// Without the last commit, which looks like one that was torn: the documented limit.
    pub without_the_last: u64,
    /// Repaired into a new store.
    pub repaired: u64,
}

impl Verdicts {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.refused += other.refused;
        self.refused_later += other.refused_later;
        self.right += other.right;
        self.without_an_end += other.without_an_end;
        self.started_empty += other.started_empty;
        self.without_the_last += other.without_the_last;
        self.repaired += other.repaired;
    }
}

/// Fills a store, spoils its files as the seed says, and looks what it says of that.
///
/// # Errors
/// A wrong answer, or a panic.
pub fn run(kind: Kind, seed: u64) -> Result<Verdicts, Box<Failure>> {
    let mut done = String::new();
    let result = catch_unwind(AssertUnwindSafe(|| spoil(kind, seed, &mut done)));
    let result = result.unwrap_or_else(|panic| Err(panic_text(&*panic)));
    result.map_err(|what| {
        Box::new(Failure {
            seed,
            step: 0,
            what: format!("{kind:?}: {what}"),
            last: vec![done],
        })
    })
}

fn spoil(kind: Kind, seed: u64, done: &mut String) -> Result<Verdicts, String> {
    let mut random = Random::new(seed, "bytes");
    let machine = Machine::new(kind, seed);
    let (names, states) = fill(&machine, seed)?;
    let (all, earlier) = states.split_last().ok_or("nothing was filled in")?;
    let without_last = earlier.last().unwrap_or(all);
    let last_segment = last_segment(&machine);
    let is_last = |path: &String| Some(path) == last_segment.as_ref();
    let mut end_is_gone = false;
    if random.one_in(2) {
        machine.disk.cut(random.draw());
    } else {
        machine.disk.restart();
    }
    for _ in 0..*random.pick(&[1, 1, 1, 2, 5]) {
        if let Some((path, damage)) = machine.disk.damage(random.draw()) {
            // A single bit may be in the last commit; and what is swapped with it can come back.
            let swapped = matches!(&damage, Damage::Swapped { with } if is_last(with));
            end_is_gone |= is_last(&path) || swapped;
            done.push_str(&format!("{path}: {damage}; "));
        }
    }
    let mut verdicts = Verdicts::default();
    let paths = machine.disk.paths();
    let none_left = |prefix: &str| !paths.iter().any(|path| path.starts_with(prefix));
    let may_be_new = match kind {
        Kind::Log => none_left("log/segment-"),
        Kind::Tables => none_left("log/segment-") && none_left("tables/table-"),
        Kind::Memory | Kind::Postgres => true,
    };
    // An opening writes, and a check and a repair do not.
    let rescued = match kind {
        Kind::Tables if !may_be_new => {
            let before = machine.disk.image();
            let rescued = rescue::run(&machine, &names, &states, !end_is_gone)?;
            unchanged(&machine.disk, &before, "a check or a repair")?;
            Some(rescued)
        }
        _ => None,
    };
    verdicts.repaired = u64::from(rescued == Some(Rescued::Repaired));
    let before = machine.disk.image();
    let store = match machine.open() {
        Ok(store) => store,
        Err(error) => {
            refusal(&error)?;
            unchanged(&machine.disk, &before, "a start that was refused")?;
            if rescued == Some(Rescued::Sound) {
                return Err(format!("found sound, and refused: {error}"));
            }
            verdicts.refused = 1;
            return Ok(verdicts);
        }
    };
    match Answers::of(store.as_store(), &names) {
        Ok(found) if found == *all => verdicts.right = 1,
        Ok(found) if found == *without_last => verdicts.without_the_last = 1,
        Ok(found) if end_is_gone && earlier.contains(&found) => verdicts.without_an_end = 1,
        // What a lost commit had replaced was not flushed any more, so it is nowhere, or what was
        // before that is there again: no state that there was, but nothing made up.
        Ok(found) if end_is_gone && found.is_made_of(&states) => verdicts.without_an_end = 1,
        Ok(found) if may_be_new && found.counts.is_empty() => verdicts.started_empty = 1,
        Ok(found) => {
            let (found, expected) = (found.records.len(), all.records.len());
            return Err(format!(
                "wrong answers: of {found} names, {expected} expected"
            ));
        }
        Err(error) => {
            refusal(&error)?;
            if rescued == Some(Rescued::Sound) {
                return Err(format!("found sound, and refused later: {error}"));
            }
            verdicts.refused_later = 1;
        }
    }
    Ok(verdicts)
}

/// Whether a disk is as it was.
pub(super) fn unchanged(
    disk: &Disk,
    before: &BTreeMap<String, Vec<u8>>,
    what: &str,
) -> Result<(), String> {
    let after = disk.image();
    let all = before.keys().chain(after.keys());
    let changed: BTreeSet<_> = all
        .filter(|path| before.get(*path) != after.get(*path))
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    Err(format!("{what} has changed {changed:?}"))
}

/// Whether the error says that something is wrong with the files.
fn refusal(error: &StoreError) -> Result<(), String> {
    match error {
        StoreError::Disk(DiskError::Corrupt { .. } | DiskError::NotAStore { .. }) => Ok(()),
        other => Err(format!("refused for another reason: {other}")),
    }
}

/// The last segment of a log.
fn last_segment(machine: &Machine) -> Option<String> {
    let paths = machine.disk.paths();
    let mut segments = paths.into_iter().filter(|path| path.contains("/segment-"));
    segments.next_back()
}

/// Commits, with upkeep in between. Says which names there are, and what the store answers at
/// first and after each commit.
fn fill(machine: &Machine, seed: u64) -> Result<(BTreeSet<TimerName>, Vec<Answers>), String> {
    let text = |error: StoreError| error.to_string();
    let events = script::life(seed, 0);
    let model = MemoryStore::new(0);
    let store = machine.open().map_err(text)?;
    let lease = store.acquire(Shard::ONLY).map_err(text)?.lease;
    let own = model.acquire(Shard::ONLY).map_err(text)?.lease;
    let mut names = BTreeSet::new();
    for event in &events {
        if let Event::Commit { changes, .. } = event {
            names.extend(changes.iter().filter_map(|change| match change {
                Change::Put { record, .. } => Some(record.name.clone()),
                Change::Remove { name, .. } => Some(name.clone()),
                Change::Given(_) | Change::Clock(_) | Change::Setting(_) => None,
            }));
        }
    }
    let mut states = vec![Answers::of(&model, &names).map_err(text)?];
    for event in &events {
        match event {
            Event::Commit { changes, .. } => {
                store.commit(lease, changes).map_err(text)?;
                model.commit(own, changes).map_err(text)?;
                states.push(Answers::of(&model, &names).map_err(text)?);
            }
            Event::Upkeep(which) => store.upkeep(*which).map_err(text)?,
            _ => {}
        }
    }
    Ok((names, states))
}
