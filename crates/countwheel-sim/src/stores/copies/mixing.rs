//! Mixes: which file of which copy lies where.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::world::{Copied, Part, World, segment_number};
use crate::random::Random;

/// The kinds of mixes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A copy as it was made.
    Whole,
    /// One file is of another time.
    File,
    /// Two files are.
    Pair,
    /// `log/`, `tables/` or both are of another time.
    Directory,
    /// An older copy was laid over a newer one, and what only the newer one has is still there.
    OlderOver,
    /// A newer one was laid over an older one in the same way.
    NewerOver,
    /// A file, two or a directory is missing.
    Missing,
    /// One file is missing, and one is of another time.
    MissingAndOld,
    /// A file or a directory is of a store with another id.
    OtherStore,
    /// A file or a directory is of a store with the same id: one that went on from a copy of
    /// this one, or one that was begun anew.
    Twin,
    /// `FORMAT` is from when the store was made.
    Format,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Whole,
        Self::File,
        Self::Pair,
        Self::Directory,
        Self::OlderOver,
        Self::NewerOver,
        Self::Missing,
        Self::MissingAndOld,
        Self::OtherStore,
        Self::Twin,
        Self::Format,
    ];
}

/// A data directory that was put together.
#[derive(Clone, Debug)]
pub(super) struct Mix {
    pub(super) kind: Kind,
    what: Vec<String>,
    pub(super) files: BTreeMap<PathBuf, Part>,
    /// What it was before anything was changed.
    pub(super) base: Copied,
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.base.name)?;
        self.what.iter().try_for_each(|what| write!(f, "; {what}"))
    }
}

/// The files of a store with a commit in them, and what finds them.
fn matters(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ["segment-", "table-", "manifest", "reached-"]
        .iter()
        .any(|begin| name.starts_with(begin))
        && !name.starts_with("manifest-new-")
}

impl Mix {
    /// Draws one. The first of `worlds` is the store that it is about, then come one that went on
    /// from a copy of it, one with the same id and one with another.
    pub(super) fn draw(worlds: &[World; 4], random: &mut Random) -> Self {
        let copies = &worlds[0].copies;
        let last = copies.len() - 1;
        let at = if random.one_in(2) {
            last
        } else {
            index(random, copies.len())
        };
        let kind = *random.pick(&Kind::ALL);
        let mut mix = Self {
            kind,
            ..Self::whole(&copies[at])
        };
        let other = &copies[(at + 1 + index(random, last.max(1))) % copies.len()];
        match kind {
            Kind::Whole => {}
            Kind::File => mix.take_file(other, random),
            Kind::Pair => {
                mix.take_file(other, random);
                let other = random.pick(copies);
                mix.take_file(other, random);
            }
            Kind::Directory => {
                let part = *random.pick(&["log", "tables"]);
                mix.take_directory(other, part, false);
            }
            Kind::OlderOver | Kind::NewerOver => {
                let (mut over, mut under) = (index(random, copies.len()), at);
                if (over > under) == (kind == Kind::OlderOver) {
                    (over, under) = (under, over);
                }
                mix.base = copies[under].clone();
                mix.files = mix.base.files.clone();
                let part = *random.pick(&["", "", "log", "tables"]);
                mix.take_directory(&copies[over], part, true);
            }
            Kind::Missing => match random.below(5) {
                0 => {
                    let part = *random.pick(&["log", "tables"]);
                    mix.files.retain(|path, _| !path.starts_with(part));
                    mix.what.push(format!("without {part}"));
                }
                1 => {
                    mix.lose_file(random);
                    mix.lose_file(random);
                }
                _ => mix.lose_file(random),
            },
            Kind::MissingAndOld => {
                mix.lose_file(random);
                mix.take_file(other, random);
            }
            Kind::OtherStore | Kind::Twin => {
                let world = match (kind, random.below(2)) {
                    (Kind::OtherStore, _) => 3,
                    (_, which) => 1 + usize::from(which == 0),
                };
                let foreign = random.pick(&worlds[world].copies);
                let part = *random.pick(&["log", "tables"]);
                match random.below(3) {
                    0 => mix.take_directory(foreign, part, false),
                    1 => mix.take_directory(foreign, part, true),
                    _ => mix.take_file(foreign, random),
                }
            }
            Kind::Format => mix.creating(),
        }
        mix
    }

    /// A copy as it is.
    pub(super) fn whole(base: &Copied) -> Self {
        Self {
            kind: Kind::Whole,
            what: Vec::new(),
            files: base.files.clone(),
            base: base.clone(),
        }
    }

    /// Whether it says that it is a snapshot.
    pub(super) fn is_snapshot(&self) -> bool {
        self.files.contains_key(Path::new("SNAPSHOT"))
    }

    /// Of the files, one of those that matter most times.
    fn pick(files: &BTreeMap<PathBuf, Part>, random: &mut Random) -> Option<PathBuf> {
        let begin = *random.pick(&["segment-", "segment-", "manifest", "table-", "reached-", ""]);
        let named = |path: &&PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(begin)
        };
        let mut found: Vec<&PathBuf> = files.keys().filter(named).collect();
        if found.is_empty() {
            found = files.keys().collect();
        }
        if begin == "segment-" && random.one_in(2) {
            return found.last().map(|path| (*path).clone());
        }
        (!found.is_empty()).then(|| found[index(random, found.len())].clone())
    }

    fn take_file(&mut self, from: &Copied, random: &mut Random) {
        for _ in 0..8 {
            let Some(path) = Self::pick(&from.files, random) else {
                return;
            };
            let part = &from.files[&path];
            let same = self.files.get(&path).is_some_and(|p| p.bytes == part.bytes);
            if !same {
                self.what
                    .push(format!("{} of {}", path.display(), of(from, part)));
                self.files.insert(path, part.clone());
                return;
            }
        }
    }

    /// Takes all files of a directory. What only the one before has stays if it is laid over.
    fn take_directory(&mut self, from: &Copied, part: &str, over: bool) {
        if !over {
            self.files.retain(|path, _| !path.starts_with(part));
        }
        let taken = from.files.iter().filter(|(path, _)| path.starts_with(part));
        let taken: Vec<_> = taken
            .map(|(path, part)| {
                // What is the same is not of another time.
                let before = self.base.files.get(path);
                let same = before.filter(|before| before.bytes == part.bytes);
                (path.clone(), same.unwrap_or(part).clone())
            })
            .collect();
        let how = if over { " laid over" } else { "" };
        let part = if part.is_empty() { "all" } else { part };
        let source = taken
            .first()
            .map_or_else(String::new, |(_, one)| of(from, one));
        self.what.push(format!("{part} of {source}{how}"));
        self.files.extend(taken);
    }

    fn lose_file(&mut self, random: &mut Random) {
        if let Some(path) = Self::pick(&self.files, random) {
            self.files.remove(&path);
            self.what.push(format!("without {}", path.display()));
        }
    }

    fn creating(&mut self) {
        if let Some(part) = self.files.get_mut(Path::new("FORMAT")) {
            let text = String::from_utf8_lossy(&part.bytes).replace("ready", "creating");
            part.bytes = text.into_bytes().into();
            self.what.push("FORMAT of its making".to_owned());
        }
    }

    /// The parts that say something of timers, of this store or of others.
    pub(super) fn parts(&self, own: bool) -> impl Iterator<Item = (&PathBuf, &Part)> {
        let parts = self.files.iter().filter(|(path, _)| matters(path));
        parts.filter(move |(_, part)| (part.world == 0) == own)
    }

    /// After so many commits its oldest part was copied.
    pub(super) fn oldest(&self) -> usize {
        let moments = self.parts(true).map(|(_, part)| part.moment);
        moments.min().unwrap_or(0)
    }

    /// So many commits its segments show.
    pub(super) fn shows(&self) -> usize {
        let shown = self.parts(true).map(|(_, part)| part.shows);
        shown.max().unwrap_or(0)
    }

    pub(super) fn newest(&self) -> usize {
        let moments = self.parts(true).map(|(_, part)| part.moment);
        moments.max().unwrap_or(0)
    }

    /// Whether nothing but the last segment is older than the rest: nothing but a checkpoint of another
    /// file can tell that from an end that the log had.
    pub(super) fn ends_earlier(&self) -> bool {
        let segments = self.parts(true).filter_map(|(path, part)| {
            let name = path.file_name()?.to_string_lossy().into_owned();
            Some((segment_number(&name)?, part.moment))
        });
        let last = segments.max();
        last.is_some_and(|(_, moment)| moment < self.newest())
    }

    /// Whether the checkpoint of how far the log came is not that of the copy.
    pub(super) fn has_other_checkpoint(&self) -> bool {
        last_checkpoint(&self.files) != last_checkpoint(&self.base.files)
    }

    /// Whether there is a checkpoint. Of a copy that was made under load, it may have got another name
    /// between the listing and the reading.
    pub(super) fn has_checkpoint(&self) -> bool {
        last_checkpoint(&self.files).is_some()
    }

    /// Whether it is as it was copied.
    pub(super) fn is_whole(&self) -> bool {
        let same = |(path, part): (&PathBuf, &Part)| {
            let before = self.base.files.get(path);
            before.is_some_and(|before| before.bytes == part.bytes)
        };
        self.files.len() == self.base.files.len() && self.files.iter().all(same)
    }

    /// Writes it to a directory, all of it with a time of long ago, so that each write is seen.
    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        for part in ["", "log", "tables"] {
            let has = self.files.keys().any(|path| path.starts_with(part));
            if has {
                fs::create_dir_all(directory.join(part))?;
            }
        }
        for (path, part) in &self.files {
            let path = directory.join(path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(path, &*part.bytes)?;
        }
        set_times(directory)
    }
}

/// The checkpoint that counts.
fn last_checkpoint(files: &BTreeMap<PathBuf, Part>) -> Option<&PathBuf> {
    let is_checkpoint = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("reached-")
    };
    files.keys().filter(is_checkpoint).max()
}

/// Sets the times of a directory and of all below it.
fn set_times(path: &Path) -> io::Result<()> {
    const LONG_AGO: Duration = Duration::from_secs(1_000_000_000);
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            set_times(&entry?.path())?;
        }
    }
    File::open(path)?.set_modified(SystemTime::UNIX_EPOCH + LONG_AGO)
}

fn of(copy: &Copied, part: &Part) -> String {
    let store = [
        "",
        "what went on from a copy: ",
        "a twin: ",
        "another store: ",
    ];
    format!("{}{}", store[part.world], copy.name)
}

fn index(random: &mut Random, end: usize) -> usize {
    usize::try_from(random.below(end as u64)).unwrap_or(0)
}
