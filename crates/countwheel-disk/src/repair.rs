//! Makes a new store from the readable part of a damaged one.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::files::Files;
use super::log::{self, Kept, Seen};
use super::table::Found;
use super::{
    Before, Change, CheckReport, ClockNote, Fence, Lease, LogStore, Problem, Shard, Sorted, Store,
    StoreError, TableStore, check, settings, table,
};
use crate::planted::planted;
use crate::{Record, Revision, SettingName, SettingsVersion, TimerName};

/// A commit of a repair is about this long, in bytes and in changes.
const COMMIT_BYTES: usize = 1 << 20;
const COMMIT_CHANGES: usize = 1_024;

/// If anything of the log is lost, so many revisions and fences are left out: what is lost may
/// have given some.
const REVISIONS_LEFT_OUT: u64 = 1 << 32;
const FENCES_LEFT_OUT: u64 = 1 << 32;

/// Something that a repair could not read, or could not be sure of.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// This part of a file could not be read.
    Damage(Problem),
    /// This timer was kept as it was last seen. What is lost may have changed or removed it since.
    Stale {
        /// Its name.
        name: TimerName,
        /// The revision that was kept.
        revision: Revision,
    },
    /// The same of a setting.
    StaleSetting {
        /// Its name.
        name: SettingName,
        /// The change that was kept.
        version: SettingsVersion,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damage(problem) => problem.fmt(f),
            Self::Stale { name, revision } => write!(f, "{name}: revision {revision} may be stale"),
            Self::StaleSetting { name, version } => {
                write!(f, "setting {name}: version {} may be stale", version.0)
            }
        }
    }
}

/// What a repair did. See [`DiskStore::repair`](super::DiskStore::repair).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Repaired {
    /// How many timers the new store has.
    pub timers: u64,
    /// How many settings it has.
    pub settings: u64,
    /// How many of all these may be stale.
    pub stale: u64,
    /// In how many places something could not be read.
    pub problems: u64,
}

/// Puts all that can be read of the store with this log and these tables into `into`, an empty
/// store: each timer as it was last seen, revisions and fences above all that were seen. Hands
/// what is lost to `lost`. Changes nothing in `log` and `tables`; nobody may write to them
/// meanwhile.
///
/// In memory is where each record of the log stands.
///
/// ```
/// use std::sync::Arc;
/// use countwheel_disk::{LogOptions, LogStore, MemorySorted, SystemFiles, TableOptions, TableStore, repair_files};
/// use countwheel_durable::store::{Shard, Store};
///
/// let directory = || tempfile::tempdir().map(|dir| Arc::new(SystemFiles::new(&dir.keep())));
/// let (log, tables) = (directory()?, directory()?);
/// let mut options = LogOptions::default();
/// options.segment_bytes = 1 << 16;
/// let base = TableStore::open(tables.clone(), 7, TableOptions::default())?;
/// let damaged = LogStore::open(base, log.clone(), 7, options)?;
/// let before = damaged.acquire(Shard::ONLY)?.lease;
/// drop(damaged);
///
/// let into = LogStore::open(MemorySorted::default(), directory()?, 7, options)?;
/// let repaired = repair_files(&(log as _), &(tables as _), 7, &into, &mut |lost| {
///     panic!("nothing was damaged: {lost}");
/// })?;
/// assert_eq!((repaired.timers, repaired.problems), (0, 0));
/// assert!(into.acquire(Shard::ONLY)?.lease.fence > before.fence);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// What `into` says, what `lost` gives, [`DiskError::Io`](super::DiskError::Io) if a directory cannot be
/// read, and [`DiskError::NotAStore`](super::DiskError::NotAStore) if a file is of another version: that
/// is no damage.
pub fn repair_files<B: Sorted>(
    log: &Arc<dyn Files>,
    tables: &Arc<dyn Files>,
    store_id: u64,
    into: &LogStore<B>,
    lost: &mut dyn FnMut(Loss) -> Result<(), StoreError>,
) -> Result<Repaired, StoreError> {
    let mut salvage = Salvage::default();
    let mut report = CheckReport::default();
    let ingested = check::ingested(&**tables, store_id, &mut report)?;
    let reached = table::has_reached(&**tables, store_id);
    let reached = reached.map_err(|source| log::io_error(&**tables, source))?;
    log::walk(log, store_id, ingested, reached, &mut report, |seen| {
        salvage.note(seen);
        Ok(())
    })?;
    if let (Some(ingested), true) = (ingested, report.is_sound()) {
        // What the log lost at its end, where nothing shows it, may show in its counts.
        check::compare(log, tables, store_id, ingested, &mut report)?;
        salvage.gaps += u64::from(!report.is_sound());
    }
    // What the tables took in may be lost with them, and its segment may be there still.
    let mut taken_in = Salvage::default();
    if let Some(ingested) = ingested {
        log::taken_in(log, store_id, ingested, |seen| {
            taken_in.note(seen);
            Ok(())
        })?;
    }
    for (&shard, owned) in &taken_in.shards {
        salvage.given(shard, owned.revision);
        salvage.owned(shard, owned.fence);
    }
    let mut taken_in = taken_in.names;
    let mut writer = Writer {
        into,
        salvage: &salvage,
        shards: BTreeMap::new(),
        shard: Shard::ONLY,
        changes: Vec::new(),
        settings: Vec::new(),
        last_setting: Revision::default(),
        bytes: 0,
        repaired: Repaired::default(),
        lost,
    };
    for problem in report.problems {
        writer.problem(problem)?;
    }
    let taken = salvage.shards.keys().copied().chain([Shard::ONLY]);
    for shard in taken.filter(|shard| !shard.is_reserved()) {
        writer.target(shard)?;
    }
    let mut overtaken = BTreeSet::new();
    let read = |kept: &Kept| kept.read().map_err(|source| log::io_error(&**log, source));
    let checked = TableStore::salvage_all(Arc::clone(tables), store_id, |found| {
        let found = match found {
            Found::Record(found) => *found,
            Found::Removed(shard, name) => {
                if salvage.gaps == 0 {
                    taken_in.remove(&(shard, name));
                }
                return Ok(());
            }
        };
        let key = (found.shard, found.record.name.clone());
        let stale = found.doubtful || salvage.gaps > 0;
        if let Some(logged) = salvage.names.get(&key) {
            if !stale || !logged.is_before(found.record.revision) {
                return Ok(());
            }
            // The log lost what it said later, and the tables had taken that in.
            overtaken.insert(key);
            return writer.put(found.shard, found.record, stale);
        }
        let older = taken_in.remove(&key).and_then(|logged| logged.kept);
        let mut record = found.record;
        if let (true, Some(older)) = (stale, older) {
            let older = read(&older)?;
            if older.revision > record.revision {
                record = older;
            }
        }
        writer.put(found.shard, record, stale)
    })?;
    // Whatever is in no table was removed, if none of them lost anything.
    let is_whole = salvage.gaps == 0 && checked.problems.is_empty();
    taken_in.retain(|key, _| !is_whole && !salvage.names.contains_key(key));
    for problem in checked.problems {
        writer.problem(Problem::from(problem))?;
    }
    for (key @ (shard, _), logged) in &salvage.names {
        let Some(kept) = logged.kept.as_ref().filter(|_| !overtaken.contains(key)) else {
            continue;
        };
        writer.put(*shard, read(kept)?, logged.gaps < salvage.gaps)?;
    }
    for ((shard, _), logged) in &taken_in {
        if let Some(kept) = &logged.kept {
            writer.put(*shard, read(kept)?, true)?;
        }
    }
    writer.flush()?;
    let left_out = match salvage.gaps {
        0 => 0,
        _ => REVISIONS_LEFT_OUT.saturating_add(salvage.bytes_lost),
    };
    let known = salvage.shards.get(&Shard::SETTINGS);
    let version = writer.last_setting;
    let version = version.max(known.map(|owned| owned.revision).unwrap_or_default());
    let version = SettingsVersion(version.0.saturating_add(left_out));
    let lease = writer.target(Shard::ONLY)?.lease;
    into.commit_beside(lease, &[], vec![settings::given(version)])?;
    for (shard, Target { lease, highest }) in writer.shards {
        let known = salvage.shards.get(&shard);
        let given = highest.max(known.map(|owned| owned.revision).unwrap_or_default());
        let given = Revision(given.0.saturating_add(left_out));
        let mut last = vec![Change::Given(given)];
        last.extend(known.and_then(|owned| owned.clock).map(Change::Clock));
        into.commit(lease, &last)?;
    }
    Ok(writer.repaired)
}

/// What is known of a log.
#[derive(Default)]
struct Salvage {
    shards: BTreeMap<Shard, Owned>,
    names: BTreeMap<(Shard, TimerName), LoggedName>,
    /// Whether the revisions are the last that were given so far: a snapshot says which they were, and
    /// nothing was lost since.
    is_sure: bool,
    /// In how many places commits are lost.
    gaps: u64,
    commits_lost: u64,
    bytes_lost: u64,
}

#[derive(Default)]
struct Owned {
    fence: Fence,
    revision: Revision,
    clock: Option<ClockNote>,
}

/// What the log says of a name.
struct LoggedName {
    /// Where its record stands; `None` if it was removed.
    kept: Option<Kept>,
    /// How many gaps stand before it.
    gaps: u64,
    /// The revision of the record, or the last that was given when it was removed; `None` if that is
    /// not known. Whatever has a later one came later.
    revision: Option<Revision>,
}

impl LoggedName {
    /// Whether a record with this revision is newer than what the log says.
    fn is_before(&self, revision: Revision) -> bool {
        self.revision.is_some_and(|known| known < revision)
    }
}

impl Salvage {
    fn note(&mut self, seen: Seen<'_>) {
        let gaps = self.gaps;
        match seen {
            Seen::Snapshot => self.is_sure = true,
            Seen::Shard(shard, fence, revision) => {
                self.given(shard, revision);
                self.owned(shard, fence);
            }
            Seen::Put { shard, record, at } => {
                self.given(shard, record.revision.max(record.id.set));
                let logged = LoggedName {
                    kept: Some(at.keep()),
                    gaps,
                    revision: Some(record.revision),
                };
                self.names.insert((shard, record.name), logged);
            }
            Seen::Removed { shard, name } => {
                let owned = self.shards.get(&shard).filter(|_| self.is_sure);
                let logged = LoggedName {
                    kept: None,
                    gaps,
                    revision: owned.map(|owned| owned.revision),
                };
                self.names.insert((shard, name), logged);
            }
            Seen::Given(shard, revision) => self.given(shard, revision),
            Seen::Owned(shard, fence) => self.owned(shard, fence),
            Seen::Clock(shard, note) => self.shards.entry(shard).or_default().clock = Some(note),
            Seen::Lost { commits, bytes } => {
                self.gaps += 1;
                self.is_sure = false;
                self.commits_lost = self.commits_lost.saturating_add(commits);
                self.bytes_lost = self.bytes_lost.saturating_add(bytes);
            }
        }
    }

    fn owned(&mut self, shard: Shard, fence: Fence) {
        let owned = self.shards.entry(shard).or_default();
        owned.fence = owned.fence.max(fence);
    }

    fn given(&mut self, shard: Shard, revision: Revision) {
        let owned = self.shards.entry(shard).or_default();
        owned.revision = owned.revision.max(revision);
    }
}

/// A shard of the new store.
struct Target {
    lease: Lease,
    /// The highest revision of a record that was put there.
    highest: Revision,
}

/// Fills the new store.
struct Writer<'a, B> {
    into: &'a LogStore<B>,
    salvage: &'a Salvage,
    shards: BTreeMap<Shard, Target>,
    /// Of which shard the changes are.
    shard: Shard,
    changes: Vec<Change>,
    /// Changes of the shard of the settings, and the last version among them.
    settings: Vec<Change>,
    last_setting: Revision,
    bytes: usize,
    repaired: Repaired,
    lost: &'a mut dyn FnMut(Loss) -> Result<(), StoreError>,
}

impl<B: Sorted> Writer<'_, B> {
    /// The shard in the new store. It is taken under a fence that nobody had: any commit of what
    /// is lost may have raised it.
    fn target(&mut self, shard: Shard) -> Result<&mut Target, StoreError> {
        let target = match self.shards.entry(shard) {
            Entry::Occupied(there) => return Ok(there.into_mut()),
            Entry::Vacant(target) => target,
        };
        let known = self.salvage.shards.get(&shard).map(|owned| owned.fence);
        let left_out = match self.salvage.gaps {
            0 => 0,
            _ => FENCES_LEFT_OUT.saturating_add(self.salvage.commits_lost),
        };
        let fence = Fence(known.unwrap_or_default().0.saturating_add(left_out));
        let lease = self.into.take(shard, fence)?.lease;
        let highest = Revision::default();
        Ok(target.insert(Target { lease, highest }))
    }

    fn problem(&mut self, problem: Problem) -> Result<(), StoreError> {
        self.repaired.problems += 1;
        (self.lost)(Loss::Damage(problem))
    }

    fn put_setting(&mut self, record: Record, stale: bool) -> Result<(), StoreError> {
        // In this shard nothing else was ever written.
        let Some(name) = settings::name_of_record(&record.name) else {
            return Ok(());
        };
        if planted!(RepairForgetsSettings) {
            return Ok(());
        }
        self.repaired.settings += 1;
        if stale {
            self.repaired.stale += 1;
            let version = SettingsVersion(record.revision.0);
            (self.lost)(Loss::StaleSetting { name, version })?;
        }
        self.last_setting = self.last_setting.max(record.revision);
        self.bytes += record.payload.len();
        self.settings.push(Change::Put {
            record: Box::new(record),
            before: Before::Absent,
        });
        if self.settings.len() >= COMMIT_CHANGES || self.bytes >= COMMIT_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn put(&mut self, shard: Shard, record: Record, stale: bool) -> Result<(), StoreError> {
        if shard.is_reserved() {
            return self.put_setting(record, stale);
        }
        self.repaired.timers += 1;
        if stale {
            self.repaired.stale += 1;
            (self.lost)(Loss::Stale {
                name: record.name.clone(),
                revision: record.revision,
            })?;
        }
        if self.shard != shard || self.changes.len() >= COMMIT_CHANGES || self.bytes >= COMMIT_BYTES
        {
            self.flush()?;
        }
        self.shard = shard;
        let highest = &mut self.target(shard)?.highest;
        *highest = record.revision.max(record.id.set).max(*highest);
        self.bytes += record.content_bytes();
        self.changes.push(Change::Put {
            record: Box::new(record),
            before: Before::Absent,
        });
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        let changes = std::mem::take(&mut self.changes);
        let settings = std::mem::take(&mut self.settings);
        self.bytes = 0;
        if !settings.is_empty() {
            let lease = self.target(Shard::ONLY)?.lease;
            self.into.commit_beside(lease, &[], settings)?;
        }
        if changes.is_empty() {
            return Ok(());
        }
        let lease = self.target(self.shard)?.lease;
        self.into.commit(lease, &changes)
    }
}
