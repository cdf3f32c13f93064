//! A log in front of a sorted store: what came last is in the log alone, and most of it never
//! gets any further.
//!
//! A commit is appended to the log and synced: one write and one sync, whatever it holds. What
//! it changed is remembered in a [`Memtable`](memtable::Memtable): where the bytes stand, and by what
//! they are found. When a segment of the log is full, what of it is still current flushes to the sorted
//! store, and the segment is used again. A timer that fires or is removed before that never
//! reaches the sorted store at all.
//!
//! # What the log knows without the sorted store
//!
//! Neither a commit nor an opening looks anything up in the sorted store. Each change is
//! written with the state that it replaces, so the counts follow from the log, and with
//! whether the sorted store **may have the name**, so it is known what a removal has to hide.
//! Each segment begins with a snapshot of what would be lost with the segments before: counts,
//! fences, last revisions.
//!
//! # What may be in the sorted store
//!
//! The rule is: **if the sorted store has a name that is not current in it, then the memtable has
//! the name, and says that the sorted store may have it.** It has to hold after an opening as well,
//! which reads only what stands behind the last segment that was taken in.
//!
//! - The mark is in the frame. A change of a name in the memtable takes the mark from there; a change
//!   of another name takes it from whether there is a record under it, which then is in the
//!   sorted store.
//! - Before a segment goes to the sorted store, what of it is current is marked, with the
//!   writer held, so that no commit is between its frame and the memtable. Every later frame about
//!   the name has the mark. An earlier frame without it has made the place not current, so it
//!   was not marked and does not go.
//! - The process ends **before the segment is taken in**: the segment is read again, and
//!   nothing of it is in the sorted store. Marks say too much then; that costs a removal that
//!   removes nothing.
//! - It ends **after that**: the segment is not read again, `ingested` says so, and everything
//!   behind it that hides something of it has the mark.
//! - It ends **while the segment is freed**: it still has its name, or has lost it, or is gone.
//!   The opening frees what `ingested` says; no file is used again before the loss of its name
//!   is durable.
//! - A name that has **no mark** is in no segment that was taken in with what is not current: so
//!   a removal of it can be forgotten at once.
//! - The snapshot of a segment is taken when every commit before it is synced and none behind
//!   it is made, with the writer held, and is durable before the segment has its name. So is
//!   the first that is left behind the last one taken in, whatever became of those before.
//!
//! # Room
//!
//! A segment's room is on the disk before anything is accepted into it. See [`supply`].
//!
//! # Where to begin to read
//!
//! Behind what was delivered long ago, from the low-water mark on. See [`low_water`].

mod batch;
mod commit;
mod due;
mod flush;
mod flusher;
mod freeze;
mod full;
#[cfg(feature = "planted-bugs")]
pub(super) mod fuzz;
mod low_water;
mod memtable;
mod merge;
mod read;
mod recovery;
mod rescue;
mod scrub;
mod segment;
mod setting;
mod short;
mod supply;
mod walk;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::batch::Form;
use self::flusher::FlushWatch;
use self::full::FullDisk;
use self::low_water::{Earliest, LOOK_EVERY};
use self::memtable::Memtable;
use self::segment::{Segment, VERSION};
use self::supply::{Supply, Trouble as WriteTrouble};
use self::writer::Writer;
use super::codec::CodecError;
use super::scrub::Scrub;
use super::{
    Change, Commit, DiskError, DuePage, DueScan, Fence, Files, Filter, Gaps, Lease, OnDisk,
    OnFailure, OpenFiles, Ownership, Page, QueueCounts, Scrubbed, Shard, Sorted, Store, StoreError,
    Summary,
};
use crate::planted::planted;
use crate::{QueueName, Record, Settings, SettingsVersion, TimerName, Trouble, Troubles};

pub use self::flusher::FlushingLog;
pub(super) use self::freeze::Frozen;
pub(super) use self::walk::{Kept, Looked, Seen, look, store_id, taken_in, walk};

/// Shorter segments are all headers and syncs.
const SEGMENT_MIN_BYTES: u64 = 1 << 12;

/// A segment takes as many changes at least, if they fit.
const CHANGES_MIN: usize = 64;
/// The counts of so many queues are copied while commits wait.
const COUNTED_AT_ONCE: usize = 1_024;

/// A commit is one frame, and that has a length of four bytes.
const COMMIT_MAX_BYTES: usize = 1 << 31;

/// How a log is laid out. See [`LogStore`].
///
/// ```
/// let options = countwheel_disk::LogOptions::default();
/// assert_eq!((options.segment_bytes, options.reserve_segments), (64 << 20, 1));
/// assert_eq!(options.segment_bytes_first, 1 << 20);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LogOptions {
    /// How long a segment becomes, in bytes: at least 4 KiB. One is longer if a commit does not fit.
    pub segment_bytes: u64,
    /// How long the first segments are, in bytes: at least 4 KiB, and at most `segment_bytes`. After
    /// every two that fill the length doubles, up to `segment_bytes`, and so it does for a commit that
    /// does not fit. A directory in which little was ever committed stays small.
    pub segment_bytes_first: u64,
    /// A thread flushes nothing as long as there are no more segments than this, since most of
    /// what is in the memtable may be gone before it has to be flushed. Fewer than `segments_max`.
    /// Here and there, segments that are shorter than `segment_bytes` count as parts of one.
    pub segments_kept: usize,
    /// With more segments than this, a commit waits until one has been flushed; with as many, commits
    /// are no faster than the thread that flushes.
    pub segments_max: usize,
    /// With as many names in the memtable, a commit waits until some have been flushed; from three
    /// quarters on, commits are no faster than a thread flushes them. It begins at two thirds, and
    /// a segment takes a third at most.
    pub memtable_names_max: usize,
    /// So many segments are set aside for when the disk is full. Each is twice as long as those that
    /// are begun now, up to `segment_bytes`.
    pub reserve_segments: usize,
    /// With more queues than this, a segment does not begin with the counts of all: before a segment
    /// flushes, they are copied into the log, in pieces.
    pub counts_whole: usize,
    /// So many queues are in such a piece: whoever commits may wait for one.
    pub counts_at_once: usize,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            segment_bytes_first: 1 << 20,
            segments_kept: 2,
            segments_max: 6,
            memtable_names_max: 600_000,
            reserve_segments: 1,
            counts_whole: 1_024,
            counts_at_once: 4_096,
        }
    }
}

/// What an opening had to do. See [`LogStore::recovery`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Recovery {
    /// Segments that were read.
    pub segments: u64,
    /// Commits that were read.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the one commit at the end that was not finished, and was never acknowledged.
    pub torn_bytes: u64,
    /// Segments that the sorted store had taken in: freed unread.
    pub freed: u64,
}

/// What a log has written since it was opened, in bytes. See [`LogStore::stats`].
///
/// The device gets whole pages, so what is at the edge of a commit goes there twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LogStats {
    /// Commits, as they stand in the segments.
    pub commits: u64,
    /// The pages of 4 KiB in which each of these commits stands.
    pub commit_pages: u64,
    /// Beginnings of segments: their headers, and what they know of the segments before.
    pub beginnings: u64,
    /// Zeros, for segments that were made.
    pub zeros: u64,
}

/// Keeps what came last in a log, and the rest in a sorted store.
///
/// A commit costs one write and one sync of a file whose length never changes. What fires or is
/// removed before its segment is full never reaches the sorted store. Payloads stay in the log:
/// the memtable has, for each timer in the log, its name, where it stands and by what it is found.
///
/// It has no thread. [`seal`](Self::seal), [`flush_oldest`](Self::flush_oldest),
/// [`prepare`](Self::prepare) and [`compact`](Self::compact) are for who keeps the log short, such as
/// [`FlushingLog`] or a simulation; a commit does so itself when it has to.
///
/// ```
/// use std::sync::Arc;
/// use countwheel_disk::{LogOptions, LogStore, MemorySorted, SystemFiles};
/// use countwheel_durable::store::{Change, Shard, Store};
/// use countwheel_durable::Revision;
///
/// let directory = tempfile::tempdir()?;
/// let mut options = LogOptions::default();
/// options.segment_bytes = 1 << 16;
/// let open = |id| {
///     let files = Arc::new(SystemFiles::new(directory.path()));
///     LogStore::open(MemorySorted::default(), files, id, options)
/// };
/// let store = open(7)?;
/// let lease = store.acquire(Shard::ONLY)?.lease;
/// store.commit(lease, &[Change::Given(Revision(5))])?;
/// drop(store);
/// let store = open(7)?;
/// assert_eq!(store.recovery().frames, 2);
/// assert_eq!(store.acquire(Shard::ONLY)?.last_revision, Revision(5));
///
/// // The log of another store is refused.
/// assert!(open(8).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LogStore<B> {
    base: B,
    files: Arc<dyn Files>,
    options: LogOptions,
    recovery: Recovery,
    /// Held while something is flushed: one segment at a time does. Taken before all others.
    flushing: Mutex<()>,
    /// Held while the flusher waits for the writer, so that commits let it through.
    gate: Mutex<()>,
    /// Taken before `state`. Fair when it is asked to be, as that is.
    writer: Mutex<Writer>,
    /// Fair when it is asked to be: whoever takes it again and again would keep commits out.
    state: RwLock<State>,
    /// The segments of which the opening found the second header damaged, by number.
    one_header: Vec<(u64, Trouble)>,
    troubles: Troubles,
    full_disk: Arc<FullDisk>,
    scrub: Scrub,
    /// Whether the round is through with the log. Held by one step at a time.
    scrubbed_log: Mutex<bool>,
    /// Taken last.
    watch: Arc<FlushWatch>,
}

#[derive(Default)]
struct State {
    shards: BTreeMap<Shard, Memtable>,
    /// Every segment that is not free, by number.
    segments: BTreeMap<u64, Segment>,
    /// How many flushes began, and what wakes first of what the last one flushed.
    flushes: u64,
    is_flushing: bool,
    earliest: Vec<Earliest>,
    /// Bytes of the last copy of the counts that was made in pieces.
    copy_bytes: u64,
}

/// How full the log is, and how full it may be.
#[derive(Clone, Copy)]
struct Fill {
    /// How many names are in the memtable.
    names: usize,
    /// How many files the segments are.
    files: usize,
    /// As many as there would be if all were as long as they become.
    segments: usize,
    /// With more segments than this, commits wait.
    segments_max: usize,
    /// How many of these are for the [copies of the counts](segments_of_copies).
    copies: usize,
}

/// Segments that the log may have beside those of the options, because of the copies of the counts.
///
/// A segment is flushed only behind a copy of all counts, and the copy is in the log itself. A copy
/// that is longer than all segments of the options would push itself out, again and again. So the
/// log has room for the last copy and for as many bytes of commits: at least every second byte
/// of the log is one of a commit.
fn segments_of_copies(copy_bytes: u64, segment_bytes: u64) -> usize {
    if planted!(CopiesPushThemselvesOut) {
        return 0;
    }
    let copies = copy_bytes / segment_bytes.max(1);
    usize::try_from(2 * copies).unwrap_or(usize::MAX / 2)
}

impl<B: Sorted> LogStore<B> {
    /// Opens the log in `files`, or begins one there if there is none.
    ///
    /// Reads what the sorted store has not taken in: at most as many segments as the options
    /// allow, and nothing of the sorted store. Then it [makes that durable](Sorted::persist), and makes
    /// the segments of the reserve. A log that is refused was not changed.
    ///
    /// # Errors
    /// [`DiskError::Corrupt`] if a file does not hold what was synced to it,
    /// [`DiskError::NotAStore`] if a segment is missing, of another store or of another
    /// version, [`DiskError::Full`] if there is no room to begin, [`DiskError::Io`] if the
    /// system refuses.
    pub fn open(
        base: B,
        files: Arc<dyn Files>,
        store_id: u64,
        options: LogOptions,
    ) -> Result<Self, StoreError> {
        let reached = base.reached();
        if planted!(OpeningPersistsFirst) {
            base.persist()?;
        }
        let mut found = recovery::find(&*files, store_id, base.ingested(), reached)?;
        let recovered = recovery::replay(&*files, &found.segments, reached)?;
        // All of it is sound: from here on something is written, and nothing before.
        base.persist()?;
        if !base.is_persisted() {
            found.flushed.clear(); // the next opening finds them again
        }
        recovered.persist(&*files)?;
        let mut one_header = std::mem::take(&mut found.one_header);
        for (_, trouble) in &one_header {
            tracing::error!(%trouble, "a segment has one header left; the start goes on with it");
        }
        let mut recovery = recovered.recovery;
        recovery.freed = found.flushed.len() as u64;
        let full_disk = Arc::<FullDisk>::default();
        let mut supply = Supply::new(
            Arc::clone(&files),
            store_id,
            options,
            Arc::clone(&full_disk),
        );
        recovery::recycle(&mut supply, found)?;
        let mut state = recovered.state;
        let mut snapshot = Vec::new();
        let mut unsure = false;
        let mut copied = recovered.copied;
        let mut stats = LogStats::default();
        let (active, begins_at, offset) = match recovered.end {
            Some((active, begins_at, offset))
                if offset > begins_at || planted!(LogKeepsUnsureName) =>
            {
                (active, begins_at, offset)
            }
            // The process before may have ended because it could not sync the name of this one;
            // and after a sync that failed, another one says nothing about what was done before
            // it. So it gets its name once more, by way of another file.
            end => {
                let number = end.as_ref().map_or(1, |(last, _, _)| last.number);
                let form = state.form(options.counts_whole, recovered.copied, number);
                state.snapshot_as(form, &mut snapshot);
                if form == Form::Whole {
                    copied = number;
                }
                match supply.next_segment(number, recovered.next_commit, &mut snapshot, 0) {
                    Ok((begun, begins_at)) => {
                        stats.beginnings += begins_at;
                        state.segments.insert(number, begun.clone());
                        one_header.retain(|(of, _)| *of != number);
                        (begun, begins_at, begins_at)
                    }
                    // A full disk must not keep a store shut: the first commit tries it again.
                    Err(trouble) => match (trouble, end) {
                        (WriteTrouble::Full, Some(end)) => {
                            unsure = true;
                            end
                        }
                        (trouble, _) => return Err(trouble.error(&*files)),
                    },
                }
            }
        };
        let identity = identity_of(&*files, &active)?;
        let writer = Writer {
            active,
            identity,
            unsure,
            checkpoint: None,
            copied,
            counts_whole: options.counts_whole,
            begins_at,
            offset,
            next_commit: recovered.next_commit,
            changes: 0,
            changes_max: (options.memtable_names_max / 3).max(CHANGES_MIN),
            supply,
            poisoned: false,
            frame: Vec::new(),
            snapshot,
            parts: Vec::new(),
            parts_used: 0,
            stats,
        };
        let log = Self {
            base,
            files,
            options,
            recovery,
            flushing: Mutex::new(()),
            gate: Mutex::new(()),
            writer: Mutex::new(writer),
            state: RwLock::new(state),
            troubles: Troubles::default(),
            one_header,
            full_disk,
            scrub: Scrub::default(),
            scrubbed_log: Mutex::default(),
            watch: Arc::default(),
        };
        match log.make_spares(false) {
            Ok(_) => {}
            Err(error) if error.is_full() => {}
            Err(error) => return Err(error),
        }
        log.leave_older()?;
        Ok(log)
    }

    /// What is written from now on has what an earlier version cannot read, so it goes into a
    /// segment that an earlier version refuses by its header. With a full disk it does not.
    fn leave_older(&self) -> Result<(), StoreError> {
        let version = self.writer()?.active.version;
        if version >= VERSION {
            return Ok(());
        }
        match self.seal() {
            Ok(_) => Ok(()),
            Err(error) if error.is_full() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What the opening had to do.
    ///
    /// ```
    /// use countwheel_durable::Revision;
    /// use countwheel_disk::simulated::Disk;
    /// use countwheel_disk::{LogOptions, LogStore, MemorySorted, Recovery};
    /// use countwheel_durable::store::{Change, Shard, Store};
    ///
    /// let (disk, base) = (Disk::default(), MemorySorted::default());
    /// let mut options = LogOptions::default();
    /// options.segment_bytes = 1 << 16; // for a test
    /// let log = LogStore::open(base.clone(), disk.files("log"), 7, options)?;
    /// let lease = log.acquire(Shard::ONLY)?.lease;
    /// log.commit(lease, &[Change::Given(Revision(5))])?;
    /// drop(log);
    ///
    /// disk.restart();
    /// let log = LogStore::open(base, disk.files("log"), 7, options)?;
    /// let Recovery { segments, frames, torn_bytes, .. } = log.recovery();
    /// assert_eq!((segments, frames, torn_bytes), (1, 2, 0)); // the shard was taken, too
    /// # Ok::<(), countwheel_durable::store::StoreError>(())
    /// ```
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// What was written since it was opened. Waits for the commit that is under way.
    ///
    /// ```
    /// use countwheel_disk::simulated::Disk;
    /// use countwheel_disk::{LogOptions, LogStore, MemorySorted};
    /// use countwheel_durable::store::{Shard, Store};
    ///
    /// let mut options = LogOptions::default();
    /// options.segment_bytes = 1 << 16; // for a test
    /// let files = Disk::default().files("log");
    /// let log = LogStore::open(MemorySorted::default(), files, 7, options)?;
    /// let before = log.stats();
    /// assert_eq!((before.commits, before.zeros), (0, 2 << 16)); // one segment, one in reserve
    /// log.acquire(Shard::ONLY)?;
    /// assert!(log.stats().commits > 0 && log.stats().commit_pages == 4_096);
    /// # Ok::<(), countwheel_durable::store::StoreError>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let writer = self.writer_whatever();
        LogStats {
            zeros: writer.supply.zeros,
            ..writer.stats
        }
    }

    /// What is behind it.
    pub(super) fn base(&self) -> &B {
        &self.base
    }

    /// How many names are in the memtable, and how many segments the log has.
    #[must_use]
    pub fn names_and_segments(&self) -> (usize, usize) {
        let state = self.state();
        (state.names(), state.segments.len())
    }

    /// How full the log is, and how full it may be.
    fn fill(&self) -> Fill {
        let state = self.state();
        let copies = segments_of_copies(state.copy_bytes, self.options.segment_bytes);
        let len = self.options.segment_bytes.max(SEGMENT_MIN_BYTES);
        // One that is longer was made for a commit, and is one segment.
        let lengths = state.segments.values().map(|segment| segment.len.min(len));
        let segments = lengths.sum::<u64>().div_ceil(len);
        Fill {
            names: state.names(),
            files: state.segments.len(),
            segments: usize::try_from(segments).unwrap_or(usize::MAX / 2),
            segments_max: self.options.segments_max.max(2) + copies,
            copies,
        }
    }

    /// The shards of which anything is known.
    pub(super) fn shards(&self) -> Vec<Shard> {
        self.state().shards.keys().copied().collect()
    }

    /// Takes the shard under a fence that is above the last one and above `after`.
    pub(super) fn take(&self, shard: Shard, after: Fence) -> Result<Ownership, StoreError> {
        let mut writer = self.writer()?;
        let state = self.state();
        let memtable = state.shards.get(&shard);
        let (fence, last_revision, clock) = memtable.map_or_else(Default::default, |memtable| {
            (memtable.fence, memtable.last_revision, memtable.clock)
        });
        drop(state);
        let fence = Fence(fence.max(after).0.saturating_add(1));
        batch::begin(&mut writer.frame, shard);
        batch::encode_fence(&mut writer.frame, fence);
        self.append(&mut writer)?;
        self.state_mut().shards.entry(shard).or_default().fence = fence;
        Ok(Ownership {
            lease: Lease { shard, fence },
            store_id: shard.id(writer.supply.store_id),
            last_revision,
            clock,
            forgets_done: false,
        })
    }

    /// Whether the shard is the lease's.
    fn check_lease(&self, lease: Lease) -> Result<(), StoreError> {
        let state = self.state();
        let memtable = state.shards.get(&lease.shard);
        let current = memtable.map_or(Fence(0), |memtable| memtable.fence);
        if (current == lease.fence || planted!(LogIgnoresFence)) && current != Fence(0) {
            return Ok(());
        }
        Err(StoreError::Fenced {
            shard: lease.shard,
            ours: lease.fence,
            current,
        })
    }

    /// Appends the writer's frame, in the next segment if it has to. Says in which segment its
    /// body stands, and where.
    fn append(&self, writer: &mut Writer) -> Result<(u64, u64), StoreError> {
        // The next segment would be begun in what took its place.
        self.must_be_there(writer)?;
        let begun = writer.make_room(&self.state());
        if let Some(segment) = self.judged(writer, begun)? {
            self.begun(writer, segment)?;
        }
        self.write_checkpoint(writer)?;
        let appended = writer.append();
        let body_at = self.judged(writer, appended)?;
        // What was written can be found only by the name.
        self.must_be_there(writer)?;
        Ok((writer.active.number, body_at))
    }

    /// The file of the active segment has its name, by which the next opening finds it. Costs one
    /// look at a name.
    ///
    /// # Errors
    /// [`DiskError::Removed`], and nothing may be written any more: in the place of the directory there may
    /// be another one, with another store.
    fn must_be_there(&self, writer: &mut Writer) -> Result<(), StoreError> {
        if writer.identity.is_none() || planted!(LogOverlooksRemoval) {
            return Ok(());
        }
        match identity_of(&*self.files, &writer.active) {
            Ok(found) if found.is_none() || found == writer.identity => Ok(()),
            _ => {
                writer.poisoned = true;
                Err(removed(&*self.files, &writer.active))
            }
        }
    }

    /// Sees to it that the sorted store knows of the active segment before a commit is in it: with
    /// the file, all that was ever in it could be lost without a trace.
    fn write_checkpoint(&self, writer: &mut Writer) -> Result<(), StoreError> {
        let segment = writer.active.number;
        if writer
            .checkpoint
            .is_some_and(|checkpoint| checkpoint.segment == segment)
            || planted!(OpeningWithoutCheckpoint)
        {
            return Ok(());
        }
        let reached = writer.reached();
        self.base.checkpoint(reached)?;
        writer.checkpoint = Some(reached);
        Ok(())
    }

    /// Notes that nothing is committed any more, so that the next opening knows where the log
    /// ends. It is not needed: without it, an end that was lost later may not be missed.
    pub fn close(&self) {
        let mut writer = self.writer_whatever();
        let reached = writer.reached();
        if writer.poisoned
            || writer
                .checkpoint
                .is_none_or(|checkpoint| checkpoint == reached)
        {
            return;
        }
        if let Err(error) = self.must_be_there(&mut writer) {
            tracing::error!(%error, "the end of the log has no checkpoint");
            return;
        }
        if let Err(error) = self.base.checkpoint(reached) {
            tracing::warn!(%error, "the end of the log has no checkpoint");
        }
        writer.checkpoint = Some(reached);
    }

    /// Notes a segment that was begun: the one before can be flushed.
    fn begun(&self, writer: &mut Writer, segment: Segment) -> Result<(), StoreError> {
        let identity = identity_of(&*self.files, &segment);
        writer.poisoned |= identity.is_err();
        writer.identity = identity?;
        self.state_mut().segments.insert(segment.number, segment);
        self.has_changed();
        Ok(())
    }

    /// After anything but a full disk, nothing may be written any more.
    fn judged<T>(
        &self,
        writer: &mut Writer,
        result: Result<T, WriteTrouble>,
    ) -> Result<T, StoreError> {
        result.map_err(|trouble| {
            writer.poisoned |= matches!(trouble, WriteTrouble::Io(_)) && !planted!(LogGoesOn);
            if matches!(trouble, WriteTrouble::Full) {
                self.has_changed(); // a thread looks for room from now on
            }
            match trouble {
                WriteTrouble::Io(error) if is_gone(&error) => removed(&*self.files, &writer.active),
                trouble => trouble.error(&*self.files),
            }
        })
    }

    /// The end of the log, once nobody waits for it that has to come first.
    fn writer(&self) -> Result<MutexGuard<'_, Writer>, StoreError> {
        drop(self.gate.lock());
        let writer = self.writer_whatever();
        if writer.poisoned {
            return Err(StoreError::Poisoned);
        }
        Ok(writer)
    }

    fn writer_whatever(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock()
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write()
    }
}

impl State {
    fn names(&self) -> usize {
        self.shards.values().map(Memtable::len).sum()
    }
}

impl<B: Sorted> Store for LogStore<B> {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        if shard.is_reserved() {
            return Err(StoreError::Reserved { shard });
        }
        self.take(shard, Fence(0))
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        if planted!(LogCommitsSettingsApart) {
            let is_setting = |change: &Change| matches!(change, Change::Setting(_));
            let apart = changes.iter().cloned().partition(is_setting);
            let (apart, changes): (Vec<_>, Vec<_>) = apart;
            if !apart.is_empty() && !changes.is_empty() {
                self.commit_beside(lease, &apart, Vec::new())?;
                return self.commit_beside(lease, &changes, Vec::new());
            }
        }
        self.commit_beside(lease, changes, Vec::new())
    }

    fn commit_all(&self, commits: &[Commit<'_>]) -> Vec<Result<(), StoreError>> {
        self.commit_together(commits)
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.read_settings(after)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.find(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.scan(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.page(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        let mut counts: Vec<QueueCounts> = Vec::new();
        loop {
            let last = counts.last().map(|last| last.queue.clone());
            let page = self.counts_after(shard, last.as_ref(), COUNTED_AT_ONCE)?;
            let is_last = page.len() < COUNTED_AT_ONCE;
            counts.extend(page);
            if is_last {
                return Ok(counts);
            }
        }
    }

    fn counts_after(
        &self,
        shard: Shard,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueCounts>, StoreError> {
        let state = self.state();
        let memtable = state.shards.get(&shard);
        Ok(memtable.map_or_else(Vec::new, |memtable| memtable.counts_after(after, limit)))
    }

    fn summary(
        &self,
        shard: Shard,
        first: &[QueueName],
        limit: usize,
    ) -> Result<Summary, StoreError> {
        let state = self.state();
        let memtable = state.shards.get(&shard);
        Ok(memtable.map_or_else(Summary::default, |memtable| memtable.summary(first, limit)))
    }

    fn gaps(&self) -> Gaps {
        self.base.gaps()
    }

    fn troubles(&self) -> Vec<Trouble> {
        let mut troubles: Vec<_> = self.full_disk().into_iter().collect();
        troubles.extend(self.scrub_troubles());
        let state = self.state();
        let needed = |&&(number, _): &&(u64, _)| state.segments.contains_key(&number);
        let one_header = self.one_header.iter().filter(needed);
        troubles.extend(one_header.map(|(_, trouble)| trouble.clone()));
        drop(state);
        troubles.extend(self.troubles.list());
        troubles.extend(self.base.troubles());
        troubles.truncate(Troubles::LISTED_MAX);
        troubles
    }

    fn on_disk(&self) -> Option<&dyn OnDisk> {
        Some(self)
    }
}

impl<B: Sorted> OnDisk for LogStore<B> {
    fn has_room(&self) -> bool {
        self.has_room_left()
    }

    fn on_failure(&self, f: OnFailure) {
        self.listen(f);
    }

    fn scrub_step(&self, budget: u64) -> Scrubbed {
        self.scrub_all(budget)
    }

    fn open_files(&self) -> OpenFiles {
        let Fill {
            files,
            segments_max,
            ..
        } = self.fill();
        let supply = &self.writer_whatever().supply;
        // One that is begun, those of the reserve, a spare that is made, and the short ones of a log that
        // grows: together they come to less than one more, or to one that is as long.
        let shorter = (supply.segment_bytes / supply.len_min).ilog2() as usize;
        let most = segments_max + self.options.reserve_segments + 2 + shorter;
        let base = self.base.open_files();
        OpenFiles {
            open: base.open + files + 1, // and the directory
            ahead: base.ahead + most.saturating_sub(files),
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

impl WriteTrouble {
    fn error(self, files: &dyn Files) -> StoreError {
        match self {
            Self::Full => DiskError::Full { path: files.path() }.into(),
            Self::Io(source) => io_error(files, source),
        }
    }
}

pub(super) fn io_error(files: &dyn Files, source: io::Error) -> StoreError {
    DiskError::Io {
        path: files.path(),
        source,
    }
    .into()
}

/// What the file is that has a segment's name; `None` if that cannot be known.
///
/// # Errors
/// [`DiskError::Removed`] if there is none.
fn identity_of(files: &dyn Files, segment: &Segment) -> Result<Option<(u64, u64)>, StoreError> {
    match files.identity(&segment.name()) {
        Ok(identity) => Ok(identity),
        Err(error) if is_gone(&error) => Err(removed(files, segment)),
        Err(error) => {
            tracing::debug!(%error, "whether a segment has its name is not known");
            Ok(None)
        }
    }
}

/// Whether the system says that there is no such name.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn removed(files: &dyn Files, segment: &Segment) -> StoreError {
    let path = files.path().join(segment.name());
    DiskError::Removed { path }.into()
}

/// The system does not give back what stands in a segment.
fn refused(files: &dyn Files, segment: &Segment, source: io::Error) -> StoreError {
    DiskError::Io {
        path: files.path().join(segment.name()),
        source,
    }
    .into()
}

fn damaged(files: &dyn Files, segment: &Segment, offset: u64, error: &CodecError) -> StoreError {
    DiskError::Corrupt {
        path: files.path().join(segment.name()),
        problem: format!("at offset {offset}: {error}"),
    }
    .into()
}
