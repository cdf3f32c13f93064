//! The simulated disk and a real one: the same history gives the same results, and the same durable
//! bytes survive.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use countwheel_disk::simulated::Disk;
use countwheel_disk::{Files, LogOptions, LogStore, MemorySorted, StoreFile, SystemFiles};
use countwheel_durable::store::{Shard, Store};

use super::answers::Answers;
use super::life::Event;
use super::script;
use crate::failure::Failure;
use crate::machine::Kept;
use crate::random::Random;
use crate::sabotage::Misused;

const SECTOR: usize = 512;

/// What was compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compared {
    /// Calls, each with the same result.
    pub calls: u64,
    /// Of these, refused by both.
    pub refused: u64,
    /// Bytes that were there in the end, the same in both.
    pub bytes: u64,
    /// Power cuts of the simulated disk that kept what the history says they must.
    pub cuts: u64,
    /// Openings of a log on both, with the same answers and the same bytes.
    pub openings: u64,
}

impl Compared {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.refused += other.refused;
        self.bytes += other.bytes;
        self.cuts += other.cuts;
        self.openings += other.openings;
    }
}

/// One history in `directory`, which is empty.
///
/// # Errors
/// The first difference.
pub fn run(seed: u64, directory: &Path) -> Result<Compared, Box<Failure>> {
    let mut log = Vec::new();
    let calls = directory.join("calls");
    let store = directory.join("store");
    let made = std::fs::create_dir(&calls).and_then(|()| std::fs::create_dir(&store));
    let result = made
        .map_err(|error| error.to_string())
        .and_then(|()| by_calls(seed, &calls, &mut log))
        .and_then(|mut compared| {
            // A log syncs at each commit, which takes its time on a real disk.
            if seed.is_multiple_of(4) {
                compared.openings = by_store(seed, &store)?;
            }
            Ok(compared)
        });
    result.map_err(|what| {
        Box::new(Failure {
            seed,
            step: log.len() as u64,
            what,
            last: log.split_off(log.len().saturating_sub(30)),
        })
    })
}

/// What the history says of a file, told by nobody else.
#[derive(Clone, Default)]
struct Told {
    live: Vec<u8>,
    synced: Vec<u8>,
    /// What it was since the last sync.
    since: Vec<Vec<u8>>,
}

impl Told {
    /// Whether a cut may leave this.
    fn may_be(&self, found: &[u8]) -> bool {
        let versions = || self.since.iter().chain([&self.synced]);
        if !versions().any(|version| version.len() == found.len()) {
            return false;
        }
        let sectors = found.len().div_ceil(SECTOR);
        (0..sectors).all(|sector| {
            let range = sector * SECTOR..found.len().min((sector + 1) * SECTOR);
            let found = &found[range.clone()];
            versions().any(|version| {
                // Where the version ended, there were zeros.
                let part = version.get(range.start..).unwrap_or(&[]);
                let part = &part[..part.len().min(found.len())];
                found.starts_with(part) && found[part.len()..].iter().all(|byte| *byte == 0)
            })
        })
    }
}

#[derive(Default)]
struct History {
    files: Vec<Told>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    /// What each name stood for since the directory was synced.
    since: BTreeMap<String, BTreeSet<Option<usize>>>,
}

type Open = (usize, Arc<dyn StoreFile>, Arc<dyn StoreFile>);

fn by_calls(seed: u64, directory: &Path, log: &mut Vec<String>) -> Result<Compared, String> {
    let mut random = Random::new(seed, "histories");
    let disk = Disk::new(seed);
    let (simulated, real) = (disk.files(""), SystemFiles::new(directory));
    let mut history = History::default();
    let mut open: Vec<Open> = Vec::new();
    let mut compared = Compared::default();
    for _ in 0..random.between(20, 120) {
        compared.calls += 1;
        let name = format!("file-{}", random.below(5));
        let other = format!("file-{}", random.below(5));
        let kind = random.below(14);
        log.push(format!("{kind}: {name} {other}"));
        let refused = match kind {
            0 | 1 => {
                let len = *random.pick(&[0, 0, 512, 3_000, 70_000]);
                let made = (simulated.create(&name, len), real.create(&name, len));
                let made = both(made.0, made.1)?;
                if let Some((ours, theirs)) = made {
                    let node = history.files.len();
                    let len = usize::try_from(len).unwrap_or(0);
                    let mut told = Told {
                        live: vec![0; len],
                        ..Told::default()
                    };
                    told.since.push(told.live.clone());
                    history.files.push(told);
                    history.bind(&name, Some(node));
                    open.push((node, ours, theirs));
                    false
                } else {
                    true
                }
            }
            2 => match both(simulated.open(&name), real.open(&name))? {
                Some((ours, theirs)) => {
                    let node = history.names[&name];
                    open.push((node, ours, theirs));
                    false
                }
                None => true,
            },
            3 => {
                let done = both(simulated.rename(&name, &other), real.rename(&name, &other))?;
                if done.is_some() && name != other {
                    let node = history.names.get(&name).copied();
                    history.bind(&name, None);
                    history.bind(&other, node);
                }
                done.is_none()
            }
            4 => {
                let done = both(simulated.remove(&name), real.remove(&name))?;
                if done.is_some() {
                    history.bind(&name, None);
                }
                done.is_none()
            }
            5 => {
                both(simulated.sync(), real.sync())?;
                history.synced_names = history.names.clone();
                history.since.clear();
                false
            }
            6 => {
                let listed = (simulated.list(), real.list().map(sorted));
                let (ours, theirs) = both(listed.0, listed.1)?.unwrap_or_default();
                if ours != theirs {
                    return Err(format!("{ours:?} listed, {theirs:?} on the real disk"));
                }
                false
            }
            _ if open.is_empty() => false,
            kind => {
                let at = random.below(open.len() as u64);
                let (node, ours, theirs) = &open[usize::try_from(at).unwrap_or(0)];
                let told = &mut history.files[*node];
                call_file(kind, &mut random, told, &**ours, &**theirs)?
            }
        };
        compared.refused += u64::from(refused);
        if random.one_in(8) {
            history.check_cut(&disk, random.draw())?;
            compared.cuts += 1;
        }
    }
    drop(open);
    compared.bytes = same_content(&disk, "", directory)?;
    // With everything synced, nothing is open to chance.
    for path in disk.paths() {
        simulated
            .open(&path)
            .and_then(|file| file.sync())
            .map_err(|error| error.to_string())?;
    }
    simulated.sync().map_err(|error| error.to_string())?;
    disk.cut(random.draw());
    same_content(&disk, "", directory)?;
    Ok(compared)
}

fn call_file(
    kind: u64,
    random: &mut Random,
    told: &mut Told,
    ours: &dyn StoreFile,
    theirs: &dyn StoreFile,
) -> Result<bool, String> {
    let len = told.live.len() as u64;
    match kind {
        7..=9 => {
            let offset = random.below(len + 1);
            let size = *random.pick(&[1, 100, 512, 2_000]);
            let value = random.below(256).to_le_bytes()[0];
            let data = vec![value; size];
            both(ours.write_at(offset, &data), theirs.write_at(offset, &data))?;
            let offset = usize::try_from(offset).unwrap_or(0);
            let end = offset + size;
            if told.live.len() < end {
                told.live.resize(end, 0);
            }
            told.live[offset..end].fill(value);
            told.since.push(told.live.clone());
            Ok(false)
        }
        10 | 11 => {
            let offset = random.below(len + 20);
            let size = usize::try_from(random.below(600)).unwrap_or(0);
            let (mut mine, mut other) = (vec![0; size], vec![0; size]);
            let read = (
                ours.read_at(offset, &mut mine),
                theirs.read_at(offset, &mut other),
            );
            let read = both(read.0, read.1)?;
            if read.is_some() && mine != other {
                return Err(format!("other bytes read at {offset}"));
            }
            Ok(read.is_none())
        }
        12 => {
            let lengths = both(ours.length(), theirs.length())?;
            match lengths {
                Some((a, b)) if a != b => Err(format!("{a} bytes long, {b} on the real disk")),
                _ => Ok(false),
            }
        }
        _ => {
            both(ours.sync(), theirs.sync())?;
            told.synced.clone_from(&told.live);
            told.since.clear();
            Ok(false)
        }
    }
}

impl History {
    fn bind(&mut self, name: &str, node: Option<usize>) {
        match node {
            Some(node) => self.names.insert(name.to_owned(), node),
            None => self.names.remove(name),
        };
        self.since.entry(name.to_owned()).or_default().insert(node);
    }

    /// A cut of a copy leaves what the history says it may, and all that it says it must.
    fn check_cut(&self, disk: &Disk, seed: u64) -> Result<(), String> {
        let after = disk.copy();
        after.cut(seed);
        for number in 0..5 {
            let name = format!("file-{number}");
            let mut may_be = self.since.get(&name).cloned().unwrap_or_default();
            may_be.insert(self.synced_names.get(&name).copied());
            let holds = match after.content(&name) {
                None => may_be.contains(&None),
                Some(found) => may_be
                    .iter()
                    .flatten()
                    .any(|node| self.files[*node].may_be(&found)),
            };
            if !holds {
                return Err(format!("cut {seed} leaves what {name} never was"));
            }
        }
        Ok(())
    }
}

/// The values of both; nothing if both refuse for the same reason.
fn both<A, B>(ours: io::Result<A>, theirs: io::Result<B>) -> Result<Option<(A, B)>, String> {
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => Ok(Some((ours, theirs))),
        (Err(ours), Err(theirs)) if ours.kind() == theirs.kind() => Ok(None),
        (ours, theirs) => Err(format!(
            "{:?}, on the real disk {:?}",
            ours.err(),
            theirs.err()
        )),
    }
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

/// The same files with the same bytes. Says how many.
fn same_content(disk: &Disk, under: &str, directory: &Path) -> Result<u64, String> {
    let files = SystemFiles::new(directory);
    let listed = sorted(files.list().map_err(|error| error.to_string())?);
    let ours: Vec<String> = disk
        .paths()
        .iter()
        .filter_map(|path| path.strip_prefix(under).map(str::to_owned))
        .collect();
    if ours != listed {
        return Err(format!("{ours:?} are there, {listed:?} on the real disk"));
    }
    let mut bytes = 0;
    for name in &listed {
        let theirs = std::fs::read(directory.join(name)).map_err(|error| error.to_string())?;
        let ours = disk.content(&format!("{under}{name}")).unwrap_or_default();
        if ours != theirs {
            return Err(format!("{name} holds other bytes than on the real disk"));
        }
        bytes += theirs.len() as u64;
    }
    Ok(bytes)
}

/// A log on both, with openings in between. Says how many there were.
fn by_store(seed: u64, directory: &Path) -> Result<u64, String> {
    // The same bytes on both, so the same nonces: those of another disk of this seed.
    let (disk, same) = (Disk::new(seed), Disk::new(seed));
    let (ours, theirs) = (MemorySorted::default(), MemorySorted::default());
    let mut options = LogOptions::default();
    options.segment_bytes = 8_192;
    options.segments_max = 3;
    let text = |error: countwheel_durable::store::StoreError| error.to_string();
    let open = || {
        disk.restart();
        let ours = LogStore::open(ours.clone(), disk.files("log"), seed, options)?;
        let files = Arc::new(Misused {
            files: Arc::new(SystemFiles::new(directory)),
            how: None,
            nonces_of: Some(same.files("")),
        });
        let theirs = LogStore::open(theirs.clone(), files, seed, options)?;
        let leases = (
            ours.acquire(Shard::ONLY)?.lease,
            theirs.acquire(Shard::ONLY)?.lease,
        );
        Ok(((ours, theirs), leases))
    };
    let events = script::life(seed, 0);
    let mut names = BTreeSet::new();
    let (mut pair, mut leases) = open().map_err(text)?;
    let mut openings = 1;
    for event in &events {
        match event {
            Event::Commit { changes, .. } => {
                for change in changes {
                    if let countwheel_durable::store::Change::Put { record, .. } = change {
                        names.insert(record.name.clone());
                    }
                }
                pair.0.commit(leases.0, changes).map_err(text)?;
                pair.1.commit(leases.1, changes).map_err(text)?;
            }
            Event::Upkeep(which) => {
                pair.0.upkeep(*which).map_err(text)?;
                pair.1.upkeep(*which).map_err(text)?;
            }
            Event::Restart | Event::Evict | Event::Cut(_) => {
                drop(pair);
                (pair, leases) = open().map_err(text)?;
                openings += 1;
                let ours = Answers::of(&pair.0, &names).map_err(text)?;
                if ours != Answers::of(&pair.1, &names).map_err(text)? {
                    return Err("a log on the real disk answers otherwise".to_owned());
                }
            }
            _ => {}
        }
    }
    drop(pair);
    same_content(&disk, "log/", directory)?;
    Ok(openings)
}
