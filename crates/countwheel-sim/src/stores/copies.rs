//! Files from two times: data directories that were put together of copies are complete when they
//! are opened, or refused and unchanged.
//!
//! A store lives in a real directory, with segments and tables that are full soon. Copies are made
//! of it: at rest, under load file by file, and as snapshots. A **mix** is one of the copies in
//! which something is of another copy or of another store, or missing. Of each mix it is known
//! which commits every file of it shows.
//!
//! An opening has to give what was there after one commit, and not an earlier one than
//!
//! - the moment of the oldest file of it, and
//! - the last commit in any of its segments;
//!
//! or to refuse, and to leave every byte, name, length and time of modification as it was. A copy
//! at rest has to be opened. The first limit leaves something open, which is counted by itself: a
//! last segment that is replaced by an older copy of itself ends where the log once ended.
//!
//! What is refused is repaired into a new directory, which has to have every timer that stands in
//! a table or a segment of the mix and was not removed later. What it has not is counted, and no failure
//! of an opening.
//!
//! Real threads flush what is committed while the copies are made, so a seed repeats what was drawn
//! and not every byte.

mod mixing;
mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use countwheel_disk::unchanged::unchanged;
use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::Revision;
use countwheel_durable::store::{Change, DiskError, Shard, Store, StoreError};

pub use self::mixing::Kind;
use self::mixing::Mix;
use self::world::{World, names, record};
use super::answers::Answers;
use super::script;
use crate::failure::panic_text;
use crate::random::Random;

/// So many mixes are made of the copies of one store.
pub const MIXES_OF_A_STORE: u64 = 25;

const ID: u64 = 7;
const OTHER_ID: u64 = 8;

/// A mistake in an opening or a repair, which has to be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// An opening writes the manifest before it reads the log.
    WritesBeforeItReads,
    /// An opening removes a table before it reads the log.
    DiscardsBeforeItReads,
    /// An opening takes a log whose last segment is gone for one that never had it.
    LosesTheEnd,
    /// A repair does not read the tables.
    RepairsTheLogAlone,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::WritesBeforeItReads,
        Self::DiscardsBeforeItReads,
        Self::LosesTheEnd,
        Self::RepairsTheLogAlone,
    ];

    /// What the mistake comes to, before the directory is opened.
    fn before_opening(self, directory: &Path) -> io::Result<()> {
        let last = |part: &str, begins: &str| {
            let entries = fs::read_dir(directory.join(part)).into_iter().flatten();
            let paths = entries.flatten().map(|entry| entry.path());
            let begins = |path: &PathBuf| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with(begins)
            };
            paths.filter(begins).max()
        };
        match self {
            Self::WritesBeforeItReads => match last("tables", "manifest") {
                Some(manifest) => fs::read(&manifest).and_then(|bytes| fs::write(manifest, bytes)),
                None => Ok(()),
            },
            Self::DiscardsBeforeItReads => last("tables", "table-").map_or(Ok(()), fs::remove_file),
            Self::LosesTheEnd => {
                while let Some(checkpoint) = last("tables", "reached-") {
                    fs::remove_file(checkpoint)?;
                }
                last("log", "segment-").map_or(Ok(()), fs::remove_file)
            }
            Self::RepairsTheLogAlone => Ok(()),
        }
    }
}

/// What became of mixes of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdicts {
    /// Mixes.
    pub mixes: u64,
    /// Opened, with all that was acknowledged up to the newest moment of any of its files.
    pub newest: u64,
    /// Opened, as it was at an earlier moment, which is not before that of its oldest file.
    pub earlier: u64,
    /// Of these, those in which the last segment is older than the rest: the limit.
    pub earlier_end: u64,
    /// Made anew, since `FORMAT` says that the store was never ready.
    pub made_anew: u64,
    /// Refused, and as it was.
    pub refused: u64,
    /// Refused, and the repair has all that is there.
    pub repaired: u64,
    /// Refused, and so does a repair refuse it.
    pub not_repaired: u64,
    /// Opened as of an earlier moment: a checkpoint is gone, or of another time, that would tell. The
    /// limit.
    pub unmarked: u64,
    /// Opened with parts of two stores of one id. The limit: no file says which of the two it is
    /// of.
    pub two_of_one_id: u64,
    /// Opened, and something that was acknowledged is missing.
    pub lost: u64,
    /// Opened, and what it holds was never there at one time.
    pub wrong: u64,
    /// Refused, and changed.
    pub changed: u64,
    /// Refused, although it was copied at rest.
    pub refused_whole: u64,
    /// Repaired, and something that is there is missing.
    pub lost_by_repair: u64,
}

impl Verdicts {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.mixes += other.mixes;
        self.newest += other.newest;
        self.earlier += other.earlier;
        self.earlier_end += other.earlier_end;
        self.made_anew += other.made_anew;
        self.refused += other.refused;
        self.repaired += other.repaired;
        self.not_repaired += other.not_repaired;
        self.unmarked += other.unmarked;
        self.two_of_one_id += other.two_of_one_id;
        self.lost += other.lost;
        self.wrong += other.wrong;
        self.changed += other.changed;
        self.refused_whole += other.refused_whole;
        self.lost_by_repair += other.lost_by_repair;
    }

    /// How many of them are not as they have to be. What a repair does not give back is counted
    /// by itself.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.lost + self.wrong + self.changed + self.refused_whole
    }
}

impl fmt::Display for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} mixes: {} opened with all, {} refused and unchanged ({} repaired with all, {} not \
             repaired, {} without something); limits: {} as of an earlier moment, {} of them with \
             an older end of the log; {} without their checkpoint, {} of two stores of one id, {} made \
             anew; failures: {} lost timers, {} wrong, {} refused and \
             changed, {} refused although whole",
            self.mixes,
            self.newest,
            self.refused,
            self.repaired,
            self.not_repaired,
            self.lost_by_repair,
            self.earlier,
            self.earlier_end,
            self.unmarked,
            self.two_of_one_id,
            self.made_anew,
            self.lost,
            self.wrong,
            self.changed,
            self.refused_whole,
        )
    }
}

/// What became of the mixes of some stores.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// By kind.
    pub kinds: BTreeMap<Kind, Verdicts>,
    /// What is not as it has to be, in words.
    pub failures: Vec<String>,
    /// What a repair did not give back, and what is beyond the limits, in words.
    pub limits: Vec<String>,
}

impl Report {
    /// Adds another.
    pub fn add(&mut self, other: Self) {
        for (kind, verdicts) in other.kinds {
            self.kinds.entry(kind).or_default().add(&verdicts);
        }
        self.failures.extend(other.failures);
        self.limits.extend(other.limits);
    }

    /// All kinds together.
    #[must_use]
    pub fn sum(&self) -> Verdicts {
        let mut sum = Verdicts::default();
        self.kinds.values().for_each(|verdicts| sum.add(verdicts));
        sum
    }
}

/// Lets a store live, below `directory`, which has to be empty, and opens `mixes` mixes of its
/// copies; with a mistake if one is given.
///
/// # Errors
/// What kept it from being done at all.
pub fn run(
    seed: u64,
    mixes: u64,
    directory: &Path,
    mistake: Option<Mistake>,
) -> Result<Report, String> {
    let mut random = Random::new(seed, "copies");
    let bench = Bench {
        options: options(&mut random),
        mix: directory.join("mix"),
        repaired: directory.join("repaired"),
        mistake,
    };
    let worlds = worlds(directory, bench.options, &mut random)?;
    let mut report = Report::default();
    for number in 0..mixes {
        let mut random = Random::new(seed.wrapping_add(number << 32), "mix");
        let mix = Mix::draw(&worlds, &mut random);
        let (verdicts, why) = bench.judge(&worlds, &mix)?;
        report.kinds.entry(mix.kind).or_default().add(&verdicts);
        if let Some(why) = why {
            let line = format!("seed {seed}, mix {number}: {mix}: {why}");
            let told = if verdicts.failures() > 0 {
                &mut report.failures
            } else {
                &mut report.limits
            };
            told.push(line);
        }
    }
    Ok(report)
}

fn options(random: &mut Random) -> DiskOptions {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = *random.pick(&[4_096, 8_192, 16_384]);
    options.log.segments_kept = *random.pick(&[1, 1, 2]);
    options.log.segments_max = *random.pick(&[3, 6]);
    options.log.reserve_segments = *random.pick(&[0, 1]);
    options.tables.table_bytes = *random.pick(&[4_096, 16_384]);
    options.tables.block_bytes = *random.pick(&[256, 4_096]);
    options.tables.fan_in = *random.pick(&[2, 3]);
    options.tables.skip_min = options.tables.fan_in;
    options.log.segment_bytes_first = *random.pick(&[4_096, options.log.segment_bytes]);
    options
}

/// The store that it is about, one that went on from a copy of it, one with the same id, and one
/// with another.
fn worlds(
    directory: &Path,
    options: DiskOptions,
    random: &mut Random,
) -> Result<[World; 4], String> {
    let at = |name: &str| directory.join(name);
    let live = |mut world: World, name: &str, id, random: &mut Random, phases| {
        world.live(&at(name), (id, options), random, phases)?;
        fs::remove_dir_all(at(name)).map_err(|error| error.to_string())?;
        Ok::<_, String>(world)
    };
    let own = live(World::new(0), "own", ID, random, 6)?;
    let twin = live(World::new(2), "twin", ID, random, 2)?;
    let other = live(World::new(3), "other", OTHER_ID, random, 2)?;
    let at_rest =
        |copy: &&world::Copied| copy.at_rest && !copy.files.contains_key(Path::new("SNAPSHOT"));
    let whole: Vec<_> = own.copies.iter().filter(at_rest).cloned().collect();
    let from = random.pick(&whole);
    let mix = Mix::whole(from);
    mix.write(&at("fork")).map_err(|error| error.to_string())?;
    let fork = live(own.fork(1, from), "fork", ID, random, 2)?;
    Ok([own, fork, twin, other])
}

/// Where mixes are opened, and how.
struct Bench {
    options: DiskOptions,
    mix: PathBuf,
    repaired: PathBuf,
    mistake: Option<Mistake>,
}

type Judged = (Verdicts, Option<String>);

impl Bench {
    fn open(&self) -> Result<DiskStore, StoreError> {
        if let Some(mistake) = self.mistake {
            let made = mistake.before_opening(&self.mix);
            made.map_err(|source| DiskError::Io {
                path: self.mix.clone(),
                source,
            })?;
        }
        DiskStore::open(&self.mix, ID, self.options)
    }

    fn judge(&self, worlds: &[World; 4], mix: &Mix) -> Result<Judged, String> {
        self.write(mix).map_err(|error| error.to_string())?;
        let mut verdicts = Verdicts {
            mixes: 1,
            ..Verdicts::default()
        };
        let opened = catch_unwind(AssertUnwindSafe(|| unchanged(&self.mix, || self.open())));
        let opened = match opened {
            Ok(opened) => opened,
            Err(panic) => {
                verdicts.wrong = 1;
                return Ok((verdicts, Some(panic_text(&*panic))));
            }
        };
        let store = match opened {
            Ok(Ok(store)) => store,
            Ok(Err(refused)) if mix.is_whole() && mix.base.at_rest && !mix.is_snapshot() => {
                verdicts.refused_whole = 1;
                return Ok((verdicts, Some(format!("refused: {refused}"))));
            }
            Ok(Err(_)) => {
                verdicts.refused = 1;
                let why = self.repair(worlds, mix, &mut verdicts);
                return Ok((verdicts, why));
            }
            Err(changed) => {
                verdicts.changed = 1;
                self.repair(worlds, mix, &mut verdicts);
                return Ok((verdicts, Some(changed)));
            }
        };
        let (world, commit) = match self.found(worlds, store) {
            Ok(found) => found,
            Err(Wrong(why)) => {
                if mix.kind == Kind::Twin {
                    verdicts.two_of_one_id = 1;
                } else {
                    verdicts.wrong = 1;
                }
                return Ok((verdicts, Some(why)));
            }
        };
        if mix.kind == Kind::Format && commit == 0 {
            verdicts.made_anew = 1;
            return Ok((verdicts, None));
        }
        // What went on from a copy has what was there before as well.
        let is_own = world == 0 || (world == 1 && commit <= worlds[1].forked_at());
        let least = match mix.kind {
            Kind::Twin => mix.oldest().min(worlds[1].forked_at()),
            _ => mix.oldest().max(mix.shows()),
        };
        if is_own && commit < least {
            if mix.has_other_checkpoint() || !mix.has_checkpoint() {
                verdicts.unmarked = 1;
            } else {
                verdicts.lost = 1;
            }
            let why = format!("opened as after commit {commit}, and not before {least} has to be");
            return Ok((verdicts, Some(why)));
        }
        if is_own && commit < mix.newest() {
            verdicts.earlier = 1;
            verdicts.earlier_end = u64::from(mix.ends_earlier());
        } else {
            verdicts.newest = 1;
        }
        Ok((verdicts, None))
    }

    /// Writes a mix where it is opened, in place of the one before.
    fn write(&self, mix: &Mix) -> io::Result<()> {
        for directory in [&self.mix, &self.repaired] {
            match fs::remove_dir_all(directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        mix.write(&self.mix)
    }

    /// As of which commit of which of the worlds a store is. Opens it a second time, after
    /// another commit.
    fn found(&self, worlds: &[World; 4], store: DiskStore) -> Result<(usize, usize), Wrong> {
        let owner = store.acquire(Shard::ONLY)?;
        let last = owner.last_revision.0;
        let known = |(number, world): (usize, &World)| Some((number, world.commit_of(last)?));
        let Some((number, commit)) = worlds.iter().enumerate().find_map(known) else {
            let why = format!("the last revision is {last}, which was no commit's last");
            return Err(Wrong(why));
        };
        let world = &worlds[number];
        if owner.lease.fence.0 <= world.fence(commit) {
            return Err(Wrong("a fence is given twice".to_owned()));
        }
        let mut state = world.state(commit);
        same(&store, &state)?;
        // Far above all that were given.
        let revision = 1 << 40;
        store.commit(owner.lease, &[Change::put(record(0, revision))])?;
        state.insert(0, revision);
        drop(store);
        let store = DiskStore::open(&self.mix, ID, self.options)?;
        same(&store, &state)?;
        if store.acquire(Shard::ONLY)?.last_revision != Revision(revision) {
            return Err(Wrong("a revision would be given twice".to_owned()));
        }
        Ok((number, commit))
    }

    /// Repairs what was refused. What is wrong with that, in words.
    fn repair(&self, worlds: &[World; 4], mix: &Mix, verdicts: &mut Verdicts) -> Option<String> {
        // Which of two stores it should be is not for a repair to say, nor what it is of at all.
        let says = |path: &&Path| mix.files.get(*path).map(|part| &part.bytes);
        let is_ours = mix.files.values().all(|part| part.world == 0);
        let format = Path::new("FORMAT");
        let is_known = says(&format) == mix.base.files.get(format).map(|part| &part.bytes);
        if !is_ours || !is_known || mix.is_snapshot() {
            return None;
        }
        if let Err(error) = self.write(mix) {
            return Some(error.to_string());
        }
        if self.mistake == Some(Mistake::RepairsTheLogAlone) {
            let tables = self.mix.join("tables");
            fs::remove_dir_all(&tables).unwrap_or_default();
        }
        let mut lost = |_| Ok(());
        let repaired = unchanged(&self.mix, || {
            DiskStore::repair(&self.mix, &self.repaired, self.options, &mut lost)
        });
        match repaired {
            Err(changed) => {
                verdicts.changed = 1;
                return Some(format!("a repair: {changed}"));
            }
            Ok(Err(_)) => {
                verdicts.not_repaired = 1;
                return None;
            }
            Ok(Ok(_)) => {}
        }
        let missing = self.missing(&worlds[0], mix);
        match missing {
            Ok(missing) if missing.is_empty() => {
                verdicts.repaired = 1;
                None
            }
            Ok(missing) => {
                verdicts.lost_by_repair = 1;
                Some(format!("a repair lost {}: {missing:?}", missing.len()))
            }
            Err(Wrong(why)) => {
                verdicts.wrong = 1;
                Some(format!("a repaired store: {why}"))
            }
        }
    }

    /// The keys of the timers in the files of a mix that a repaired store does not have.
    fn missing(&self, world: &World, mix: &Mix) -> Result<Vec<u64>, Wrong> {
        let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, part) in mix.parts(true) {
            for &revision in &*part.revisions {
                if let Some((key, _)) = world.fate(revision) {
                    let highest = newest.entry(key).or_default();
                    *highest = revision.max(*highest);
                }
            }
        }
        let store = DiskStore::open(&self.repaired, ID, self.options)?;
        let answers = Answers::of(&store, &names())?;
        answers.check().map_err(Wrong)?;
        for found in answers.records.iter().flatten() {
            let known = world.fate(found.revision.0);
            if known.is_none_or(|(key, _)| record(key, found.revision.0) != *found) {
                return Err(Wrong(format!("{} was never so", found.name)));
            }
        }
        let is_there = |key: u64, revision: u64| {
            let mut found = answers.records.iter().flatten();
            found.any(|found| found.name == script::name(key) && found.revision.0 >= revision)
        };
        let lost = |&(key, revision): &(u64, u64)| {
            let was_removed = world.fate(revision).is_some_and(|(_, removed)| removed);
            !was_removed && !is_there(key, revision)
        };
        let lost = newest.into_iter().filter(lost);
        Ok(lost.map(|(key, _)| key).collect())
    }
}

/// Why a store is not as of any commit.
struct Wrong(String);

impl From<StoreError> for Wrong {
    fn from(error: StoreError) -> Self {
        Self(format!("opened, and then: {error}"))
    }
}

/// Whether a store has these revisions of these keys, and nothing else.
fn same(store: &DiskStore, state: &BTreeMap<u64, u64>) -> Result<(), Wrong> {
    let answers = Answers::of(store, &names())?;
    let mut expected: Vec<_> = state.iter().map(|(&key, &rev)| record(key, rev)).collect();
    expected.sort_by(|one, other| one.name.cmp(&other.name));
    let agree = answers.check();
    let found: Vec<_> = answers.records.into_iter().flatten().collect();
    if found == expected {
        return agree.map_err(Wrong);
    }
    let text = format!(
        "{} timers, of which {} are as they were then; {} expected",
        found.len(),
        found.iter().filter(|one| expected.contains(one)).count(),
        expected.len()
    );
    Err(Wrong(text))
}
