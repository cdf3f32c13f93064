//! A store that lives for a while in a real directory, and the copies that are made of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::{Change, Lease, Shard, Store};
use countwheel_durable::{Record, State, TimerName};

use super::super::script;
use crate::random::Random;

/// How many names there are.
pub(super) const KEYS: u64 = 40;

/// One file of a copy.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) bytes: Arc<Vec<u8>>,
    /// Of which store.
    pub(super) world: usize,
    /// How many commits there were when it was copied.
    pub(super) moment: usize,
    /// So many commits were there for certain, whatever else is lost: what it holds shows it.
    pub(super) shows: usize,
    /// The revisions of the records that it holds.
    pub(super) revisions: Arc<BTreeSet<u64>>,
}

/// A copy of a data directory: files by their paths in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Copied {
    pub(super) name: String,
    /// Whether all of it is from one moment.
    pub(super) at_rest: bool,
    pub(super) files: BTreeMap<PathBuf, Part>,
}

/// What a commit did to a name.
#[derive(Clone, Copy, Debug)]
enum Step {
    Set { key: u64, revision: u64 },
    Remove { key: u64 },
}

/// A store, everything that it acknowledged, and copies of it, oldest first.
#[derive(Clone, Debug)]
pub(super) struct World {
    number: usize,
    commits: Vec<Vec<Step>>,
    /// The fence after so many commits.
    fences: Vec<u64>,
    /// After how many commits each segment was first seen.
    first_seen: BTreeMap<u64, usize>,
    /// Which revision a record's payload begins with.
    marks: HashMap<[u8; 8], u64>,
    next_revision: u64,
    /// So many of its commits it shares with another.
    forked_at: usize,
    pub(super) copies: Vec<Copied>,
}

impl World {
    /// One without a commit. `number` tells its revisions from those of other worlds.
    pub(super) fn new(number: usize) -> Self {
        Self {
            number,
            commits: Vec::new(),
            fences: vec![0],
            first_seen: BTreeMap::new(),
            marks: HashMap::new(),
            next_revision: ((number as u64) << 32) + 1,
            forked_at: 0,
            copies: Vec::new(),
        }
    }

    /// What goes on from a copy at rest of this one, apart from it.
    pub(super) fn fork(&self, number: usize, copy: &Copied) -> Self {
        let moment = copy.files.values().map(|part| part.moment).max();
        let moment = moment.unwrap_or(0);
        let mut fork = self.clone();
        fork.commits.truncate(moment);
        fork.fences.truncate(moment + 1);
        fork.first_seen.retain(|_, &mut seen| seen <= moment);
        fork.copies.clear();
        fork.number = number;
        fork.forked_at = moment;
        fork.next_revision = ((number as u64) << 32) + 1;
        fork
    }

    /// How many commits it acknowledged.
    pub(super) fn commits(&self) -> usize {
        self.commits.len()
    }

    /// So many of its commits it shares with the one that it went on from.
    pub(super) fn forked_at(&self) -> usize {
        self.forked_at
    }

    /// After which commit this was the last revision.
    pub(super) fn commit_of(&self, revision: u64) -> Option<usize> {
        if revision == 0 {
            return Some(0);
        }
        let last = |steps: &Vec<Step>| {
            let sets = steps.iter().rev().find_map(|step| match step {
                Step::Set { revision, .. } => Some(*revision),
                Step::Remove { .. } => None,
            });
            sets == Some(revision)
        };
        self.commits.iter().position(last).map(|index| index + 1)
    }

    pub(super) fn fence(&self, commit: usize) -> u64 {
        self.fences.get(commit).copied().unwrap_or(0)
    }

    /// What it held after a commit: revisions by key.
    pub(super) fn state(&self, commit: usize) -> BTreeMap<u64, u64> {
        let mut state = BTreeMap::new();
        for step in self.commits.iter().take(commit).flatten() {
            match *step {
                Step::Set { key, revision } => drop(state.insert(key, revision)),
                Step::Remove { key } => drop(state.remove(&key)),
            }
        }
        state
    }

    /// Which name a revision was of, and whether that was removed later.
    pub(super) fn fate(&self, revision: u64) -> Option<(u64, bool)> {
        let mut fate = None;
        for step in self.commits.iter().flatten() {
            match (*step, &mut fate) {
                (Step::Set { key, revision: r }, _) if r == revision => fate = Some((key, false)),
                (Step::Remove { key }, Some((of, removed))) if key == *of => *removed = true,
                _ => {}
            }
        }
        fate
    }

    /// Lets the store in `directory` live for about so many commits, with copies in between; the
    /// last one is at rest.
    pub(super) fn live(
        &mut self,
        directory: &Path,
        (id, options): (u64, DiskOptions),
        random: &mut Random,
        phases: u64,
    ) -> Result<(), String> {
        let text = |error: countwheel_durable::store::StoreError| error.to_string();
        let open = || -> Result<(DiskStore, Lease), String> {
            let store = DiskStore::open(directory, id, options).map_err(text)?;
            let lease = store.acquire(Shard::ONLY).map_err(text)?.lease;
            Ok((store, lease))
        };
        let mut opened = open()?;
        for phase in 1..=phases {
            for _ in 0..random.between(10, 60) {
                self.commit(directory, &opened, random)?;
            }
            let is_last = phase == phases;
            match random.below(4) {
                0 if !is_last => {
                    let into = directory.with_extension("snapshot");
                    opened.0.snapshot(&into).map_err(text)?;
                    let name = format!("a snapshot after commit {}", self.commits());
                    self.copy(&into, &name, true)?;
                    fs::remove_dir_all(&into).map_err(|error| error.to_string())?;
                }
                1 | 2 if !is_last => self.copy_under_load(directory, &opened, random)?,
                _ => {
                    drop(opened);
                    let name = format!("a copy at rest after commit {}", self.commits());
                    self.copy(directory, &name, true)?;
                    opened = open()?;
                }
            }
        }
        drop(opened);
        Ok(())
    }

    fn commit(
        &mut self,
        directory: &Path,
        (store, lease): &(DiskStore, Lease),
        random: &mut Random,
    ) -> Result<(), String> {
        let (mut steps, mut changes) = (Vec::new(), Vec::new());
        for _ in 0..random.below(3) {
            let key = random.below(KEYS);
            if random.one_in(2) {
                steps.push(Step::Remove { key });
                changes.push(Change::remove(script::name(key)));
            } else {
                steps.push(self.set(key, &mut changes));
            }
        }
        // Each commit has a last revision of its own, by which it is known again.
        let key = random.below(KEYS);
        steps.push(self.set(key, &mut changes));
        store
            .commit(*lease, &changes)
            .map_err(|error| error.to_string())?;
        self.commits.push(steps);
        self.fences.push(lease.fence.0);
        if let Some(segment) = last_segment(directory) {
            let commits = self.commits.len();
            self.first_seen.entry(segment).or_insert(commits);
        }
        Ok(())
    }

    fn set(&mut self, key: u64, changes: &mut Vec<Change>) -> Step {
        let revision = self.next_revision;
        self.next_revision += 1;
        let record = record(key, revision);
        if let Some(mark) = record.payload.first_chunk() {
            self.marks.insert(*mark, revision);
        }
        changes.push(Change::put(record));
        Step::Set { key, revision }
    }

    /// Copies one file after the other, with commits in between.
    fn copy_under_load(
        &mut self,
        directory: &Path,
        opened: &(DiskStore, Lease),
        random: &mut Random,
    ) -> Result<(), String> {
        let mut copied = Copied {
            name: format!("a copy under load from commit {} on", self.commits()),
            ..Copied::default()
        };
        let mut parts = ["", "log", "tables"];
        if random.one_in(2) {
            parts.swap(1, 2);
        }
        for part in parts {
            let mut names = files(&directory.join(part)).map_err(|error| error.to_string())?;
            if random.one_in(2) {
                names.reverse();
            }
            // What is made from here on is not copied.
            let listed = self.commits.len();
            for name in names {
                let path = Path::new(part).join(name);
                if let Some(mut part) = self.read(directory, &path) {
                    part.moment = listed;
                    copied.files.insert(path, part);
                }
                for _ in 0..random.below(3) {
                    self.commit(directory, opened, random)?;
                }
            }
        }
        // A table that was being written is not whole, and nothing can be demanded of it.
        for (path, part) in &mut copied.files {
            let is_table = path.starts_with("tables");
            if is_table && fs::read(directory.join(path)).ok().as_ref() != Some(&*part.bytes) {
                part.revisions = Arc::default();
            }
        }
        self.copies.push(copied);
        Ok(())
    }

    /// Copies all of it at once.
    fn copy(&mut self, directory: &Path, name: &str, at_rest: bool) -> Result<(), String> {
        let mut copied = Copied {
            name: name.to_owned(),
            at_rest,
            ..Copied::default()
        };
        let mut directories = vec![PathBuf::new()];
        while let Some(part) = directories.pop() {
            let inside = fs::read_dir(directory.join(&part)).map_err(|error| error.to_string())?;
            for entry in inside.flatten() {
                let path = part.join(entry.file_name());
                if entry.path().is_dir() {
                    directories.push(path);
                } else if let Some(part) = self.read(directory, &path) {
                    copied.files.insert(path, part);
                }
            }
        }
        self.copies.push(copied);
        Ok(())
    }

    /// Reads a file; `None` if it is gone meanwhile.
    fn read(&self, directory: &Path, path: &Path) -> Option<Part> {
        let bytes = fs::read(directory.join(path)).ok()?;
        let moment = self.commits.len();
        let name = path.file_name()?.to_string_lossy().into_owned();
        let before = self.copies.iter().rev().find_map(|copy| {
            let part = copy.files.get(path)?;
            (*part.bytes == bytes).then_some(part)
        });
        let mut shows = 0;
        let mut first = usize::MAX;
        if let Some(number) = segment_number(&name) {
            first = self.first_seen.get(&number).copied().unwrap_or(usize::MAX);
            // The next one was begun for a commit that may stand in either.
            let next = self.first_seen.range(number + 1..).next();
            shows = next.map_or(moment, |(_, &seen)| seen - 1);
        } else if name.starts_with("table-") {
            first = 0;
        }
        let revisions = match before {
            Some(part) => Arc::clone(&part.revisions),
            None => Arc::new(self.revisions(&bytes, first)),
        };
        Some(Part {
            bytes: Arc::new(bytes),
            world: self.number,
            moment,
            shows,
            revisions,
        })
    }

    /// The revisions of the records in some bytes, but for those from before the commit `first`:
    /// a segment is a file that had another life.
    fn revisions(&self, bytes: &[u8], first: usize) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        if first == usize::MAX {
            return found;
        }
        let from = self.commits.get(first.saturating_sub(1)).into_iter();
        let from = from.flatten().find_map(|step| match step {
            Step::Set { revision, .. } if first > 0 => Some(*revision),
            _ => None,
        });
        for window in bytes.windows(8) {
            let mark: Option<&[u8; 8]> = window.first_chunk();
            let revision = mark.and_then(|mark| self.marks.get(mark)).copied();
            found.extend(revision.filter(|&revision| from.is_none_or(|from| revision >= from)));
        }
        found
    }
}

/// The record of a revision: the payload is its own and begins with eight bytes that no other has.
pub(super) fn record(key: u64, revision: u64) -> Record {
    let mut random = Random::new(revision, "payload");
    let length = 16 + random.below(200);
    let pieces = std::iter::repeat_with(|| random.draw().to_le_bytes()).flatten();
    let length = usize::try_from(length).unwrap_or(0);
    let payload = pieces.take(length).collect();
    Record {
        payload,
        ..script::record(key, revision, State::Pending, 0)
    }
}

/// All names, in their order.
pub(super) fn names() -> BTreeSet<TimerName> {
    (0..KEYS).map(script::name).collect()
}

pub(super) fn segment_number(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("segment-")?, 16).ok()
}

/// The names of the files in a directory, in order.
fn files(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.path().is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The number of the last segment.
fn last_segment(directory: &Path) -> Option<u64> {
    let names = files(&directory.join("log")).ok()?;
    names.iter().filter_map(|name| segment_number(name)).max()
}
