//! A log in front of a sorted store: what is young is in the log alone, and most of it never
//! gets any further.
//!
//! A commit is appended to the log and synced: one write and one sync, whatever it holds. What
//! it changed is remembered in a [`Table`](young::Table): where its bytes stand, and by what it
//! is found. When a segment of the log is full, what of it is still current moves to the sorted
//! store, and the segment is used again. A timer that fires or is removed before that never
//! reaches the sorted store at all.

mod batch;

mod merge;
mod recovery;
mod segment;
mod writer;
mod young;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::batch::{Logged, name_of};
use self::merge::Pages;
use self::segment::{FRAMES_BEGIN, Frame, Segment};
use self::writer::{Supply, Writer};
use self::young::{Location, Table, Young};
use super::embedded::codec::{self, CodecError, Indexed};
use super::page::{PageBuilder, begins_with, position};
use super::{
    Change, DueEntry, DueScan, Files, Filter, Lease, Ownership, Page, QueueCounts, Shard, Store,
    StoreError,
};
use crate::{Record, TimerName};

/// Shorter segments are all headers and syncs.
const SEGMENT_MIN_BYTES: u64 = 1 << 12;

/// About so many bytes of records move to the sorted store in one commit.
const MOVE_BYTES: usize = 4 << 20;

/// How a log is laid out. See [`LogStore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LogOptions {
    /// How long a segment is, in bytes: at least 4 KiB. One is longer if a change does not fit.
    pub segment_bytes: u64,
    /// With more full segments than this, a commit waits until one has moved.
    pub segments_max: usize,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            segments_max: 8,
        }
    }
}

/// Keeps what is young in a log, and the rest in a sorted store.
///
/// A commit costs one write and one sync of a file whose length never changes. What fires or is
/// removed before its segment is full never reaches the sorted store. [`seal`](Self::seal) and
/// [`move_oldest`](Self::move_oldest) are for who keeps the log short, on a thread of its own or
/// in a simulation; a commit does so itself when there are too many segments.
///
/// Payloads stay in the log: in memory is, for each young timer, its name, where it stands and
/// by what it is found.
///
/// ```
/// use std::sync::Arc;
/// use countwheel_durable::store::{
///     Change, LogOptions, LogStore, MemoryStore, Shard, Store, SystemFiles,
/// };
/// use countwheel_durable::Revision;
///
/// let directory = tempfile::tempdir()?;
/// let open = || {
///     let files = Arc::new(SystemFiles::new(directory.path()));
///     LogStore::open(MemoryStore::new(7), files, 7, LogOptions::default())
/// };
/// let store = open()?;
/// let lease = store.acquire(Shard::ONLY)?.lease;
/// store.commit(lease, &[Change::Given(Revision(5))])?;
/// drop(store);
/// assert_eq!(open()?.acquire(Shard::ONLY)?.last_revision, Revision(5));
///
/// // The log of another store is refused.
/// let files = Arc::new(SystemFiles::new(directory.path()));
/// assert!(LogStore::open(MemoryStore::new(8), files, 8, LogOptions::default()).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LogStore<B> {
    base: B,
    files: Arc<dyn Files>,
    segments_max: usize,
    /// Taken before `state`.
    writer: Mutex<Writer>,
    state: RwLock<State>,
    /// Held while something moves: one segment at a time does. Taken before `writer`.
    moving: Mutex<()>,
}

struct State {
    shards: BTreeMap<Shard, Table>,
    /// Every segment that is not free, by number.
    segments: BTreeMap<u64, Segment>,
}

impl<B: Store> LogStore<B> {
    /// Opens the log in `files`, or begins one there if there is none.
    ///
    /// Reads the log in full, and looks up in the sorted store every name that it finds.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if a file does not hold what was synced to it,
    /// [`StoreError::NotAStore`] if a segment is missing, of another store or of a later
    /// version, [`StoreError::Io`] if the system refuses.
    pub fn open(
        base: B,
        files: Arc<dyn Files>,
        store_id: u64,
        options: LogOptions,
    ) -> Result<Self, StoreError> {
        let segment_bytes = options.segment_bytes.max(SEGMENT_MIN_BYTES);
        let found = recovery::find(&*files, store_id)?;
        let mut supply = Supply {
            files: Arc::clone(&files),
            segment_bytes,
            store_id,
            spares: found.spares,
            next_spare: found.next_spare,
        };
        let recovered = recovery::replay(&base, &*files, &found.segments)?;
        let mut state = recovered.state;
        let (active, offset) = match recovered.end {
            Some(end) => end,
            None => {
                let first = supply.next_segment(1, recovered.next_commit, 0, 0);
                let first = first.map_err(|source| io_error(&*files, source))?;
                state.segments.insert(first.number, first.clone());
                (first, FRAMES_BEGIN)
            }
        };
        let writer = Writer {
            active,
            offset,
            next_commit: recovered.next_commit,
            supply,
            poisoned: false,
        };
        Ok(Self {
            base,
            files,
            segments_max: options.segments_max.max(2),
            writer: Mutex::new(writer),
            state: RwLock::new(state),
            moving: Mutex::new(()),
        })
    }

    /// Moves what is current of the oldest full segment to the sorted store, and frees the
    /// segment. False if no segment is full.
    ///
    /// Commits and reads go on meanwhile.
    ///
    /// # Errors
    /// [`StoreError`] if the sorted store or the system fails, or if a full segment cannot be
    /// read any more.
    pub fn move_oldest(&self) -> Result<bool, StoreError> {
        let _one_at_a_time = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = self.writer();
        if writer.poisoned {
            return Err(StoreError::Poisoned);
        }
        let active = writer.active.number;
        drop(writer);
        let oldest = self.state().segments.values().next().cloned();
        let Some(segment) = oldest.filter(|segment| segment.number < active) else {
            return Ok(false);
        };
        // Before somebody owns what is in it, nobody may write it elsewhere.
        if self
            .state()
            .shards
            .values()
            .any(|table| table.fence.is_none())
        {
            return Ok(false);
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut offset = FRAMES_BEGIN;
        while let Some(frame) = self.read(segment.read_frame(offset))? {
            offset = frame.end;
            let (shard, changes) = self.decoded(&segment, &frame)?;
            for (change, at) in located(&segment, &frame, changes) {
                bytes += at.len;
                batch.push((shard, change, at));
            }
            if bytes > MOVE_BYTES {
                self.move_batch(std::mem::take(&mut batch))?;
                bytes = 0;
            }
        }
        self.move_batch(batch)?;
        self.free(&segment)?;
        Ok(true)
    }

    /// Begins the next segment, so that what was committed so far can move. False if the last
    /// one is empty.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the system refuses, [`StoreError::Poisoned`] if it did before.
    pub fn seal(&self) -> Result<bool, StoreError> {
        let mut writer = self.writer();
        if writer.poisoned {
            return Err(StoreError::Poisoned);
        }
        let begun = writer.seal();
        writer.poisoned |= begun.is_err();
        let begun = begun.map_err(|source| io_error(&*self.files, source))?;
        let sealed = begun.is_some();
        if let Some(segment) = begun {
            self.state_mut().segments.insert(segment.number, segment);
        }
        Ok(sealed)
    }

    /// How many names the log is the only one to know of, and how many segments it has.
    #[must_use]
    pub fn young(&self) -> (usize, usize) {
        let state = self.state();
        let names = state.shards.values().map(Table::len).sum();
        (names, state.segments.len())
    }

    /// Whether the shard is the lease's.
    fn check_lease(&self, lease: Lease) -> Result<(), StoreError> {
        let state = self.state();
        let fence = state.shards.get(&lease.shard).and_then(|table| table.fence);
        drop(state);
        match fence {
            Some(current) if current == lease.fence => Ok(()),
            Some(current) => Err(StoreError::Fenced {
                shard: lease.shard,
                ours: lease.fence,
                current,
            }),
            // Nobody has taken it since the log was opened: the sorted store knows whose it is.
            None => {
                self.base.commit(lease, &[])?;
                self.own(lease)
            }
        }
    }

    /// From now on the shard is the lease's.
    fn own(&self, lease: Lease) -> Result<(), StoreError> {
        let mut state = self.state_mut();
        let table = match state.shards.entry(lease.shard) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(Table::with_counts(self.base.counts(lease.shard)?))
            }
        };
        table.fence = Some(lease.fence);
        Ok(())
    }

    fn move_batch(&self, batch: Vec<(Shard, Logged, Location)>) -> Result<(), StoreError> {
        let mut by_shard = BTreeMap::<Shard, Vec<(TimerName, Location, Change)>>::new();
        let mut leases = BTreeMap::new();
        let mut state = self.state_mut();
        for (shard, logged, at) in batch {
            let Some(table) = state.shards.get_mut(&shard) else {
                continue;
            };
            let (name, change) = match logged {
                Logged::Put { record, .. } => (record.name.clone(), Change::put(*record)),
                Logged::Remove { name, .. } => (name.clone(), Change::remove(name)),
                Logged::Given(_) => {
                    by_shard.entry(shard).or_default();
                    continue;
                }
            };
            // Even of what is gone the revision has to stay.
            let moved = by_shard.entry(shard).or_default();
            // From here on a removal has to reach the sorted store as well.
            if table.will_be_old(&name, at) {
                moved.push((name, at, change));
            }
        }
        for (&shard, table) in &state.shards {
            if let Some(fence) = table.fence {
                leases.insert(shard, (fence, table.last_revision));
            }
        }
        drop(state);
        for (shard, moved) in by_shard {
            let Some(&(fence, last_revision)) = leases.get(&shard) else {
                continue;
            };
            let mut changes = vec![Change::Given(last_revision)];
            let mut places = Vec::with_capacity(moved.len());
            for (name, at, change) in moved {
                changes.push(change);
                places.push((name, at));
            }
            self.base.commit(Lease { shard, fence }, &changes)?;
            let mut state = self.state_mut();
            if let Some(table) = state.shards.get_mut(&shard) {
                for (name, at) in places {
                    table.is_old(&name, at);
                }
            }
        }
        Ok(())
    }

    /// Nothing of the segment is needed any more.
    fn free(&self, segment: &Segment) -> Result<(), StoreError> {
        let mut writer = self.writer();
        // A reader holds the state while it reads.
        self.state_mut().segments.remove(&segment.number);
        let freed = writer.supply.free(segment);
        writer.poisoned |= freed.is_err();
        freed.map_err(|source| io_error(&*self.files, source))
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, result: io::Result<T>) -> Result<T, StoreError> {
        result.map_err(|source| io_error(&*self.files, source))
    }

    fn decoded(
        &self,
        segment: &Segment,
        frame: &Frame,
    ) -> Result<(Shard, Vec<Logged>), StoreError> {
        batch::decode(&frame.body)
            .map_err(|error| damaged(&*self.files, segment, frame.body_at, &error))
    }

    /// The record that stands at `at`. With the state held, so that its segment is not freed.
    fn record(&self, state: &State, at: Location) -> Result<Record, StoreError> {
        let Some(segment) = state.segments.get(&at.segment) else {
            return Err(StoreError::Corrupt {
                path: self.files.path(),
                problem: format!("segment {} is gone", at.segment),
            });
        };
        let mut bytes = vec![0; at.len];
        self.read(segment.file.read_at(at.offset, &mut bytes))?;
        codec::decode(&bytes).map_err(|error| damaged(&*self.files, segment, at.offset, &error))
    }

    /// What the sorted store has under `name`.
    fn old(&self, shard: Shard, name: &TimerName) -> Result<Option<Indexed>, StoreError> {
        let record = self.base.get(shard, name)?;
        Ok(record.as_ref().map(Indexed::of))
    }
}

impl<B: Store> Store for LogStore<B> {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        let writer = self.writer();
        if writer.poisoned {
            return Err(StoreError::Poisoned);
        }
        let mut ownership = self.base.acquire(shard)?;
        self.own(ownership.lease)?;
        let mut state = self.state_mut();
        if let Some(table) = state.shards.get_mut(&shard) {
            table.last_revision = table.last_revision.max(ownership.last_revision);
            ownership.last_revision = table.last_revision;
        }
        drop(state);
        drop(writer);
        Ok(ownership)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        while self.state().segments.len() > self.segments_max {
            self.move_oldest()?;
        }
        let mut writer = self.writer();
        if writer.poisoned {
            return Err(StoreError::Poisoned);
        }
        self.check_lease(lease)?;
        if changes.is_empty() {
            return Ok(());
        }
        let mut old = HashMap::new();
        {
            let state = self.state();
            let table = state.shards.get(&lease.shard);
            for name in changes.iter().filter_map(name_of) {
                let is_young = table.is_some_and(|table| table.get(name).is_some());
                if !is_young && !old.contains_key(name) {
                    old.insert(name, self.old(lease.shard, name)?);
                }
            }
        }
        let written = writer.append(lease.shard, changes);
        writer.poisoned |= written.is_err();
        let (places, begun) = written.map_err(|source| io_error(&*self.files, source))?;
        let mut state = self.state_mut();
        for segment in begun {
            state.segments.insert(segment.number, segment);
        }
        if let Some(table) = state.shards.get_mut(&lease.shard) {
            for (change, at) in changes.iter().zip(places) {
                let old = name_of(change).and_then(|name| old.get(name).copied().flatten());
                table.apply(change, at, old);
            }
        }
        Ok(())
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        let state = self.state();
        match state.shards.get(&shard).and_then(|table| table.get(name)) {
            Some(Young { indexed: None, .. }) => Ok(None),
            Some(young) => self.record(&state, young.at).map(Some),
            None => self.base.get(shard, name),
        }
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<Vec<DueEntry>, StoreError> {
        let limit = scan.limit;
        let state = self.state();
        let table = state.shards.get(&shard);
        let mut young = table
            .into_iter()
            .flat_map(|table| table.due_after(scan.clock, scan.after))
            .filter(|(_, name)| scan.queue.is_none_or(|queue| name.queue == *queue))
            .peekable();
        let mut old = Pages::new(scan.after, |after| {
            let page = self.base.due(
                shard,
                &DueScan {
                    after,
                    limit: limit.max(1),
                    ..*scan
                },
            )?;
            let next = (page.len() >= limit.max(1)).then(|| page.last().map(|entry| entry.wake));
            Ok((page, next.flatten()))
        });
        let is_hidden =
            |entry: &DueEntry| table.is_some_and(|table| table.get(&entry.name).is_some());
        let mut entries = Vec::new();
        while entries.len() < limit {
            let first_old = old.peek(is_hidden)?.map(|entry| entry.wake);
            let first_young = young
                .peek()
                .map(|&(wake, _)| wake)
                .filter(|wake| wake.at <= scan.until);
            match (first_young, first_old) {
                (None, None) => break,
                (Some(wake), other) if other.is_none_or(|other| wake < other) => {
                    let name = young.next().map(|(_, name)| name.clone());
                    entries.extend(name.map(|name| DueEntry { wake, name }));
                }
                _ => entries.extend(old.take()),
            }
        }
        Ok(entries)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        let state = self.state();
        let mut page = PageBuilder::new(filter);
        let table = state.shards.get(&shard);
        let start = filter.after.map_or(Bound::Unbounded, Bound::Excluded);
        let listed = table.into_iter();
        let wanted = |(position, name): &(&super::Position, &TimerName)| {
            let indexed = table.and_then(|table| table.get(name)?.indexed);
            indexed.is_some_and(|indexed| filter.state.is_none_or(|kind| indexed.kind == kind))
                && filter.due_from.is_none_or(|from| position.due >= from)
                && filter.due_before.is_none_or(|before| position.due < before)
                && begins_with(name, filter.prefix.as_deref())
        };
        let mut young = listed
            .flat_map(|table| table.listed_after(&filter.queue, start))
            .filter(wanted)
            .peekable();
        let mut old = Pages::new(filter.after, |after| {
            let filter = Filter {
                after,
                limit: filter.limit.saturating_add(1),
                ..filter.clone()
            };
            let page = self.base.list(shard, &filter)?;
            Ok((page.records, page.next))
        });
        let is_hidden =
            |record: &Record| table.is_some_and(|table| table.get(&record.name).is_some());
        loop {
            let first_old = old.peek(is_hidden)?.map(position);
            let first_young = young.peek().map(|&(&position, _)| position);
            let more = match (first_young, first_old) {
                (None, None) => break,
                (Some(ours), other) if other.is_none_or(|other| ours < other) => {
                    let name = young.next().map(|(_, name)| name);
                    let at = name.and_then(|name| Some(table?.get(name)?.at));
                    let Some(at) = at else { continue };
                    page.take(|| self.record(&state, at))?
                }
                _ => {
                    let Some(record) = old.take() else { continue };
                    page.take(|| Ok::<_, StoreError>(record))?
                }
            };
            if !more {
                break;
            }
        }
        Ok(page.finish())
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        let state = self.state();
        match state.shards.get(&shard) {
            None => self.base.counts(shard),
            Some(table) => Ok(table
                .counts
                .iter()
                .map(|(queue, &by_state)| QueueCounts {
                    queue: queue.clone(),
                    by_state,
                })
                .collect()),
        }
    }
}

impl<B> fmt::Debug for LogStore<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogStore")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

/// Each change of a frame, with the place at which it stands.
fn located(
    segment: &Segment,
    frame: &Frame,
    changes: Vec<Logged>,
) -> impl Iterator<Item = (Logged, Location)> {
    let (number, body_at) = (segment.number, frame.body_at);
    changes.into_iter().map(move |change| {
        let (at, len) = change.place();
        let at = Location {
            segment: number,
            offset: body_at + at as u64,
            len,
        };
        (change, at)
    })
}

fn io_error(files: &dyn Files, source: io::Error) -> StoreError {
    StoreError::Io {
        path: files.path(),
        source,
    }
}

fn damaged(files: &dyn Files, segment: &Segment, offset: u64, error: &CodecError) -> StoreError {
    StoreError::Corrupt {
        path: files.path().join(segment.name()),
        problem: format!("at offset {offset}: {error}"),
    }
}
