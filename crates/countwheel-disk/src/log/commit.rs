//! Commits: changes are put into a frame, the frame is written and synced, and the tables learn of
//! it.
//!
//! Commits of several shards go into one frame, for one write and one sync. Each is still all or
//! nothing by itself, and is refused by itself.

use std::collections::HashMap;
use std::io;

use super::batch;
use super::memtable::{LogPlace, Memtable};
use super::segment::VERSION;
use super::writer::{Part, Writer, Written};
use super::{COMMIT_MAX_BYTES, LOOK_EVERY, LogStore, io_error};
use crate::codec::Indexed;
use crate::planted::planted;
use crate::{Before, Change, Commit, Lease, Shard, Sorted, StoreError, settings};
use crate::{StateKind, TimerName};

/// A frame of several commits takes no other once it is so long.
const FRAME_BYTES: usize = 8 << 20;

/// A commit that is being made.
struct Asked<'a> {
    lease: Lease,
    changes: &'a [Change],
    /// Changes of [`Shard::SETTINGS`].
    beside: Vec<Change>,
    /// How many of these are not what a setting in `changes` comes to.
    given: usize,
    /// What became of it, once that is known.
    result: Option<Result<(), StoreError>>,
}

impl<'a> Asked<'a> {
    fn of(commit: &Commit<'a>) -> Self {
        Self {
            lease: commit.lease,
            changes: commit.changes,
            beside: Vec::new(),
            given: 0,
            result: None,
        }
    }
}

impl<B: Sorted> LogStore<B> {
    /// Commits changes of the lease's shard, and with them what the settings among them change in
    /// [`Shard::SETTINGS`], and `beside`, which are changes of that shard.
    pub(crate) fn commit_beside(
        &self,
        lease: Lease,
        changes: &[Change],
        beside: Vec<Change>,
    ) -> Result<(), StoreError> {
        let mut asked = [Asked {
            given: beside.len(),
            beside,
            ..Asked::of(&Commit { lease, changes })
        }];
        self.commit_asked(&mut asked);
        let [asked] = asked;
        asked.result.unwrap_or(Err(StoreError::Poisoned))
    }

    /// As [`Store::commit_all`](crate::Store::commit_all).
    pub(super) fn commit_together(&self, commits: &[Commit<'_>]) -> Vec<Result<(), StoreError>> {
        let mut asked: Vec<_> = commits.iter().map(Asked::of).collect();
        self.commit_asked(&mut asked);
        let results = asked.into_iter().map(|asked| asked.result);
        results
            .map(|result| result.unwrap_or(Err(StoreError::Poisoned)))
            .collect()
    }

    /// Makes these commits. A failure poisons the log, and leaves commits without a result.
    fn commit_asked(&self, asked: &mut [Asked<'_>]) {
        let Err(error) = self.try_commit(asked) else {
            return;
        };
        // Whatever it was that failed: the store's promise knows no exception.
        self.writer_whatever().poisoned |= !planted!(LogGoesOn);
        if let Some(first) = asked.iter_mut().find(|asked| asked.result.is_none()) {
            first.result = Some(Err(error));
        }
    }

    /// Makes these commits. An error is what poisons the log.
    fn try_commit(&self, asked: &mut [Asked<'_>]) -> Result<(), StoreError> {
        let capped = self.make_way()?;
        let mut writer = self.writer()?;
        writer.supply.capped = capped;
        // A disk that is full for all of them may have room for one.
        let mut is_alone = writer.active.version < VERSION;
        while asked.iter().any(|asked| asked.result.is_none()) {
            self.encode(&mut writer, asked, is_alone)?;
            if writer.parts_used == 0 {
                continue;
            }
            match self.append(&mut writer) {
                Ok(place) => self.apply(&mut writer, asked, place),
                Err(error) if error.is_full() && writer.parts_used > 1 => is_alone = true,
                Err(full) if full.is_full() => {
                    asked[writer.parts[0].asked].result = Some(Err(full));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Puts as many of those commits as go into one frame into the writer's, each a part; says of
    /// those that are refused, or have nothing to commit, what became of them.
    fn encode(
        &self,
        writer: &mut Writer,
        asked: &mut [Asked<'_>],
        is_alone: bool,
    ) -> Result<(), StoreError> {
        writer.parts_used = 0;
        // The shards of which something is in the frame: nothing of it is in their tables yet.
        let mut shards = Vec::new();
        for (index, asked) in asked.iter_mut().enumerate() {
            if asked.result.is_some() {
                continue;
            }
            let is_full = writer.frame.len() > FRAME_BYTES || is_alone;
            if writer.parts_used > 0 && is_full {
                break;
            }
            let is_checked = writer.parts_used == 0 || !planted!(LogTogetherUnfenced);
            if is_checked && let Err(fenced) = self.check_lease(asked.lease) {
                asked.result = Some(Err(fenced));
                continue;
            }
            let shard = asked.lease.shard;
            let is_setting = |change: &Change| matches!(change, Change::Setting(_));
            let changes_settings = !asked.beside.is_empty() || asked.changes.iter().any(is_setting);
            if asked.changes.is_empty() && !changes_settings {
                asked.result = Some(Ok(()));
                continue;
            }
            let is_within = |shard| shards.contains(&shard);
            if is_within(shard) || changes_settings && is_within(Shard::SETTINGS) {
                // A later commit of the shard may not overtake this one.
                break;
            }
            if changes_settings {
                // An earlier try may have found no room.
                asked.beside.truncate(asked.given);
                let changes = settings::changes(asked.changes, self.settings_version());
                asked.beside.extend(changes);
                shards.push(Shard::SETTINGS);
            }
            shards.push(shard);
            self.encode_part(writer, index, asked)?;
        }
        Ok(())
    }

    /// Puts one commit into the writer's frame, behind those that are in it.
    fn encode_part(
        &self,
        writer: &mut Writer,
        index: usize,
        asked: &Asked<'_>,
    ) -> Result<(), StoreError> {
        let state = self.state();
        let shard = asked.lease.shard;
        // A shard that was taken has a memtable.
        let memtable = state.shards.get(&shard);
        let Writer {
            frame,
            parts,
            parts_used,
            ..
        } = writer;
        if *parts_used == 0 {
            batch::begin(frame, shard);
        } else if !planted!(LogTogetherInOneShard) {
            batch::encode_shard(frame, shard);
        }
        if parts.len() == *parts_used {
            parts.push(Part::default());
        }
        let part = &mut parts[*parts_used];
        part.asked = index;
        let ingested = self.base.ingested();
        let notes = memtable.map(|memtable| memtable.notes(writer.active.number, ingested));
        let notes = notes.unwrap_or_default();
        part.notes = !notes.is_empty();
        for note in notes {
            batch::encode_low_water(frame, note);
        }
        self.encode_changes(frame, &mut part.places, (shard, memtable), asked.changes)?;
        if !asked.beside.is_empty() {
            let shard = Shard::SETTINGS;
            let none = Memtable::default();
            let memtable = state.shards.get(&shard).unwrap_or(&none);
            batch::encode_shard(frame, shard);
            self.encode_changes(
                frame,
                &mut part.beside,
                (shard, Some(memtable)),
                &asked.beside,
            )?;
        }
        if frame.len() > COMMIT_MAX_BYTES {
            writer.frame = Vec::new();
            let problem = "a commit has at most 2 GiB";
            let source = io::Error::new(io::ErrorKind::InvalidInput, problem);
            return Err(io_error(&*self.files, source));
        }
        *parts_used += 1;
        Ok(())
    }

    /// The frame is in the log: its body stands in this segment, from this place on.
    fn apply(&self, writer: &mut Writer, asked: &mut [Asked<'_>], (segment, body_at): (u64, u64)) {
        let mut state = self.state_mut();
        let mut hid = false;
        for part in &mut writer.parts[..writer.parts_used] {
            let asked = &mut asked[part.asked];
            writer.changes += asked.changes.len() + asked.beside.len();
            let memtable = state.shards.entry(asked.lease.shard).or_default();
            if part.notes {
                (memtable.unnoted, memtable.noted_in) = (0, segment);
            }
            apply(memtable, asked.changes, &part.places, (segment, body_at));
            if memtable.hid >= LOOK_EVERY {
                memtable.hid = 0;
                hid = true;
            }
            if !asked.beside.is_empty() {
                let memtable = state.shards.entry(Shard::SETTINGS).or_default();
                for (change, written) in asked.beside.iter().zip(&mut part.beside) {
                    // It may have been another memtable: there is none before the first setting.
                    written.hash = name_of(change).map_or(0, |name| memtable.hash(name));
                    written.slot = None;
                }
                apply(memtable, &asked.beside, &part.beside, (segment, body_at));
            }
            asked.result = Some(Ok(()));
        }
        drop(state);
        for part in &writer.parts[..writer.parts_used] {
            let changes = asked[part.asked].changes;
            self.is_mended(changes.iter().filter_map(name_of));
        }
        if hid {
            self.may_advance_low_water();
        }
        if self.has_many_names() {
            self.has_changed();
        }
    }

    /// Puts changes of a shard into a frame, each with what it replaces.
    fn encode_changes(
        &self,
        frame: &mut Vec<u8>,
        places: &mut Vec<Written>,
        (shard, memtable): (Shard, Option<&Memtable>),
        changes: &[Change],
    ) -> Result<(), StoreError> {
        find(memtable, changes, places);
        // Of a name of which nobody knows what is under it, what this commit did to it before.
        let mut here = HashMap::new();
        let is_unknown =
            |change: &Change| matches!(before(change), Some(Before::Unknown | Before::Unreadable));
        let careful = changes.iter().any(is_unknown);
        for (change, written) in changes.iter().zip(places) {
            if let Some((name, memtable)) = name_of(change).zip(memtable) {
                let replaces = &mut written.replaces;
                let entry = written.slot.map(|slot| memtable.slot(slot));
                let earlier = here.get(name).copied();
                let (known, is_sure) = match (before(change), earlier, entry) {
                    (Some(Before::Present(kind) | Before::SamePayload(kind)), ..) => {
                        (Some(kind), true)
                    }
                    (Some(Before::Absent), ..) => (None, true),
                    (_, Some(kind), _) => (kind, true),
                    (_, None, Some(entry)) => (entry.kind, true),
                    (Some(Before::Unreadable), None, None) => self.look(shard, name)?,
                    (_, None, None) => (self.base.kind(shard, name)?, true),
                };
                replaces.kind = known;
                // What is not in the memtable is in the sorted store, or nowhere.
                let is_sorted = known.is_some() || !is_sure;
                replaces.may_be_sorted = entry.map_or(is_sorted, |entry| entry.may_be_sorted);
                if careful {
                    here.insert(name, kind_after(change));
                }
            }
            (written.at, written.len) = batch::encode(frame, change, written.replaces);
        }
        Ok(())
    }

    /// The state of what the sorted store has under a name that cannot be read, and whether that
    /// is sure.
    fn look(
        &self,
        shard: Shard,
        name: &TimerName,
    ) -> Result<(Option<StateKind>, bool), StoreError> {
        match self.base.kind(shard, name) {
            // The change takes the place of whatever it was.
            Err(error) if error.is_unreadable() && !planted!(ChangeReadsFirst) => Ok((None, false)),
            found => found.map(|kind| (kind, true)),
        }
    }
}

/// Looks up what the changes are about. In three rounds: what is not in the processor's cache is
/// waited for once for several of them.
fn find(memtable: Option<&Memtable>, changes: &[Change], places: &mut Vec<Written>) {
    places.clear();
    let Some(memtable) = memtable else {
        places.resize_with(changes.len(), Written::default);
        return;
    };
    places.extend(changes.iter().map(|change| Written {
        hash: name_of(change).map_or(0, |name| memtable.hash(name)),
        ..Written::default()
    }));
    for written in &mut *places {
        written.slot = memtable.first(written.hash);
    }
    for (change, written) in changes.iter().zip(places) {
        let first = written.slot.zip(name_of(change));
        written.slot = first
            .and_then(|(slot, name)| memtable.follow(slot, name.queue.as_str(), name.key.as_str()));
    }
}

/// Notes changes of a memtable whose frame is in the log: in which segment, and where its body stands.
fn apply(
    memtable: &mut Memtable,
    changes: &[Change],
    places: &[Written],
    (segment, body_at): (u64, u64),
) {
    for (change, written) in changes.iter().zip(places) {
        let &Written {
            replaces,
            hash,
            slot,
            ..
        } = written;
        let at = LogPlace {
            segment,
            offset: body_at + written.at as u64,
            len: u32::try_from(written.len).unwrap_or(u32::MAX),
        };
        match change {
            Change::Put { record, .. } => {
                let indexed = Some(Indexed::of(record));
                memtable.apply_to((&record.name, hash, slot), indexed, replaces, at);
            }
            Change::Remove { name, .. } => {
                memtable.apply_to((name, hash, slot), None, replaces, at);
            }
            Change::Given(revision) => {
                memtable.last_revision = memtable.last_revision.max(*revision);
            }
            Change::Clock(note) => memtable.clock = Some(*note),
            Change::Setting(_) => {}
        }
    }
}

/// The name that a change is about.
fn name_of(change: &Change) -> Option<&TimerName> {
    match change {
        Change::Put { record, .. } => Some(&record.name),
        Change::Remove { name, .. } => Some(name),
        Change::Given(_) | Change::Clock(_) | Change::Setting(_) => None,
    }
}

fn before(change: &Change) -> Option<Before> {
    match change {
        Change::Put { before, .. } | Change::Remove { before, .. } => Some(*before),
        Change::Given(_) | Change::Clock(_) | Change::Setting(_) => None,
    }
}

/// What is under the name of a change after it.
fn kind_after(change: &Change) -> Option<StateKind> {
    match change {
        Change::Put { record, .. } => Some(record.state.kind()),
        Change::Remove { .. } | Change::Given(_) | Change::Clock(_) | Change::Setting(_) => None,
    }
}
