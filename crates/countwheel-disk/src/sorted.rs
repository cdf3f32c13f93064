//! What stands behind a log: records in order, taken in by the segment.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::codec::{self, CodecError, Indexed};
use super::{
    Change, DuePage, DueScan, Filter, Gaps, MemoryStore, OpenFiles, Page, Scrubbed, Shard, Store,
    StoreError,
};
use crate::{Record, StateKind, TimerName, Trouble};

/// Keeps the records that outlived their segment of a log.
///
/// It knows no owners and counts nothing: the log in front of it does. It is written by one
/// caller at a time, and read by any number meanwhile.
pub trait Sorted: Send + Sync {
    /// The last segment that [`ingest`](Self::ingest) took in; 0 before the first.
    fn ingested(&self) -> u64;

    /// Whether what [`ingested`](Self::ingested) said when it was opened survives a loss of power.
    /// If it was not sure, and could not be made so, the log keeps what was taken in.
    fn is_persisted(&self) -> bool {
        true
    }

    /// Makes durable what the opening found, and puts away what a crash left behind. Until then
    /// nothing was written. The log in front calls it once its own files turned out to be sound,
    /// so that a start that is refused changes nothing. A second call does nothing.
    ///
    /// # Errors
    /// [`StoreError`]. With no room it succeeds, and [`is_persisted`](Self::is_persisted) is false.
    fn persist(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// How far the log in front is known to have reached: the last [`checkpoint`](Self::checkpoint)
    /// that was made, or what the last ingest [followed](Flushed::reached), if that is farther;
    /// `None` if there was neither. A log that ends before has lost its end.
    fn reached(&self) -> Option<Reached> {
        None
    }

    /// Notes, durably, how far the log in front has reached. A log writes a checkpoint of each
    /// segment that it begins before the first commit in it.
    ///
    /// # Errors
    /// An error that [is full](StoreError::is_full) if there is no room for the checkpoint, and
    /// nothing was changed. Any other error ends this opening of the store.
    fn checkpoint(&self, reached: Reached) -> Result<(), StoreError> {
        let _kept_nowhere = reached;
        Ok(())
    }

    /// Takes in what is left of the log's segment `segment`: all or nothing, together with the
    /// number, and durable on return. A put replaces whatever was there, a removal of nothing is
    /// no error; if a name occurs twice, the last counts.
    ///
    /// Whoever takes long should say how far it is, see [`Flushed::tell`].
    ///
    /// # Errors
    /// [`StoreError`]. Whether it was taken in is unknown then until the store is opened again,
    /// and no later call of this opening may succeed. After an error that
    /// [is full](StoreError::is_full) nothing was taken in, and a later call may succeed.
    fn ingest(&self, segment: u64, flushed: Flushed) -> Result<(), StoreError>;

    /// The record of that name.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError>;

    /// As [`Store::due`].
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError>;

    /// As [`Store::list`].
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError>;

    /// The same for a log that hides some names: a record that cannot be read counts as left out
    /// only if its name is not hidden. A store that leaves nothing out need not care.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    fn list_behind(
        &self,
        shard: Shard,
        filter: &Filter,
        is_hidden: &dyn Fn(&TimerName) -> bool,
    ) -> Result<Page, StoreError> {
        let _nothing_left_out = is_hidden;
        self.list(shard, filter)
    }

    /// Does a piece of a compaction, such as a step of a merge, and says whether more is left.
    /// Ingests and reads go on meanwhile.
    ///
    /// # Errors
    /// As [`ingest`](Self::ingest).
    fn compact(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// The state of the record of that name, also of one that cannot be read if an index says it.
    ///
    /// # Errors
    /// [`StoreError`] if nothing says it, or if the store failed.
    fn kind(&self, shard: Shard, name: &TimerName) -> Result<Option<StateKind>, StoreError> {
        Ok(self.get(shard, name)?.map(|record| record.state.kind()))
    }

    /// As [`Store::gaps`]. Calls of [`compact`](Self::compact) close them.
    fn gaps(&self) -> Gaps {
        Gaps::default()
    }

    /// Whether [`compact`](Self::compact) found no room when it was called last.
    fn is_full(&self) -> bool {
        false
    }

    /// As [`OnDisk::open_files`](super::OnDisk::open_files).
    fn open_files(&self) -> OpenFiles {
        OpenFiles::default()
    }

    /// As [`OnDisk::scrub_step`](super::OnDisk::scrub_step).
    fn scrub_step(&self, budget: u64) -> Scrubbed {
        let _nothing_to_read = budget;
        Scrubbed::NOTHING
    }

    /// As [`Store::troubles`].
    fn troubles(&self) -> Vec<Trouble> {
        Vec::new()
    }

    /// Whether [`compact`](Self::compact) has fallen so far behind that taking in more would cost reads
    /// and room without a bound. A log with threads flushes nothing then, until it is full.
    fn is_behind(&self) -> bool {
        false
    }

    /// Of what is missing until it is not behind any more, about the share of 1 that a call of
    /// [`compact`](Self::compact) does: a log lets commits go on as slowly.
    fn step_share(&self) -> f64 {
        0.0
    }
}

/// How far a log has reached. See [`Sorted::checkpoint`].
///
/// ```
/// use std::sync::Arc;
/// use countwheel_disk::{Reached, Sorted, SystemFiles, TableOptions, TableStore};
///
/// let directory = tempfile::tempdir()?;
/// let files = Arc::new(SystemFiles::new(directory.path()));
/// let tables = TableStore::open(files, 7, TableOptions::default())?;
/// let reached = Reached { segment: 3, commit: 99 };
/// tables.checkpoint(reached)?;
/// assert_eq!(tables.reached(), Some(reached));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Reached {
    /// The newest segment.
    pub segment: u64,
    /// A commit that was durable when the checkpoint was made; 0 if there was none.
    pub commit: u64,
}

/// What one segment of a log leaves to the sorted store: for each name its record, or that it was
/// removed. The bytes stay as the log has them, all in one piece of memory.
///
/// ```
/// use countwheel_durable::TimerName;
/// use countwheel_disk::Flushed;
/// use countwheel_durable::store::{Change, Shard};
///
/// let removal = Change::remove(TimerName::new("orders", "1")?);
/// let flushed = Flushed::from(vec![(Shard::ONLY, removal.clone())]);
/// assert_eq!((flushed.len(), flushed.is_empty()), (1, false));
/// assert_eq!(flushed.changes()?, [(Shard::ONLY, removal)]);
/// flushed.tell(0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Flushed {
    /// Of each change the key, and behind it the record.
    bytes: Vec<u8>,
    changes: Vec<FlushedChange>,
    reached: Option<Reached>,
    listener: Option<Listener>,
}

/// What a part is of a whole, as a share of 1.
#[expect(clippy::cast_precision_loss, reason = "a share needs no more")]
pub(super) fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

/// Keeps of a list from `from` on what `keeps` says, in order.
pub(super) fn keep<T>(list: &mut Vec<T>, from: usize, keeps: &[bool]) {
    let mut keeps = std::iter::repeat_n(&true, from).chain(keeps);
    list.retain(|_| keeps.next().copied().unwrap_or(true));
}

/// Who is told how far a flush is, as a share of 1.
pub(super) type Listener = Arc<dyn Fn(f64) + Send + Sync>;

struct FlushedChange {
    at: usize,
    key_len: u16,
    kind: FlushedKind,
}

#[derive(Clone, Copy)]
enum FlushedKind {
    Removed,
    /// How long it is.
    Record(u32),
    Unreadable(Indexed),
}

/// What becomes of a name that is flushed.
#[derive(Clone, Copy)]
pub(super) enum FlushedContent<'a> {
    Removed,
    /// The bytes of its record.
    Record(&'a [u8]),
    /// Its record cannot be read; this is what is known of it.
    Unreadable(Indexed),
}

impl Flushed {
    /// How many changes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Says that about such a share of it, of 1, was taken in: a commit that waits for room in
    /// the log need not wait until all of it was.
    pub fn tell(&self, share: f64) {
        if let Some(listener) = &self.listener {
            listener(share);
        }
    }

    /// The changes, with every record read. What could not be read of the log is left out: see
    /// [`Flushed::unreadable`].
    ///
    /// # Errors
    /// [`StoreError::Unreadable`] if one cannot be. Its checksum was right once.
    pub fn changes(&self) -> Result<Vec<(Shard, Change)>, StoreError> {
        let read = |(key, content): (&[u8], FlushedContent<'_>)| {
            let (shard, name) = key.split_first_chunk().ok_or(CodecError::Key)?;
            let change = match content {
                FlushedContent::Record(record) => Change::put(codec::decode(record)?),
                FlushedContent::Removed => Change::remove(codec::name_of(name)?),
                FlushedContent::Unreadable(_) => return Ok(None),
            };
            Ok(Some((Shard(u16::from_be_bytes(*shard)), change)))
        };
        let read = |at| {
            read(self.change(at)).map_err(|error: CodecError| StoreError::Unreadable {
                problem: error.to_string(),
            })
        };
        let changes = (0..self.len()).map(read);
        changes.filter_map(Result::transpose).collect()
    }

    /// The names whose records the log cannot read any more: a sorted store must not answer with
    /// anything older.
    ///
    /// ```
    /// use countwheel_disk::Flushed;
    ///
    /// assert!(Flushed::default().unreadable().is_empty()); // the usual case
    /// ```
    #[must_use]
    pub fn unreadable(&self) -> Vec<(Shard, TimerName)> {
        let changes = (0..self.len()).map(|at| self.change(at));
        let lost = changes.filter(|(_, content)| matches!(content, FlushedContent::Unreadable(_)));
        let named = |(key, _): (&[u8], _)| {
            let (shard, name) = key.split_first_chunk()?;
            Some((
                Shard(u16::from_be_bytes(*shard)),
                codec::name_of(name).ok()?,
            ))
        };
        lost.filter_map(named).collect()
    }

    /// The changes as bytes, in the order of their keys: a key with the bytes of its record, or with
    /// `None` for a removal. A store that keeps records as bytes decodes nothing. Of a name that
    /// occurs twice, the last change counts. A key is the shard in two bytes, big-endian, the
    /// queue, a NUL and the timer's key. [`Flushed::record`] decodes a record. [`Flushed::unreadable`]
    /// names the records that the log cannot read any more; they are left out here.
    ///
    /// ```
    /// use countwheel_durable::TimerName;
    /// use countwheel_disk::Flushed;
    /// use countwheel_durable::store::{Change, Shard};
    ///
    /// let removal = |key| TimerName::new("orders", key).map(|name| (Shard::ONLY, Change::remove(name)));
    /// let flushed = Flushed::from(vec![removal("2")?, removal("1")?, removal("2")?]);
    /// let keys: Vec<&[u8]> = flushed.in_order().map(|(key, _)| key).collect();
    /// assert_eq!(keys, [b"\0\0orders\x001", b"\0\0orders\x002"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_order(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let mut sorted = self.sorted().into_iter().peekable();
        std::iter::from_fn(move || {
            loop {
                let (key, content) = self.change(sorted.next()?);
                let is_last = sorted.peek().is_none_or(|&at| self.change(at).0 != key);
                match content {
                    FlushedContent::Removed if is_last => return Some((key, None)),
                    FlushedContent::Record(record) if is_last => return Some((key, Some(record))),
                    _ => {}
                }
            }
        })
    }

    /// Decodes the bytes of a record that [`Flushed::in_order`] gave, in this process or an earlier one.
    ///
    /// ```
    /// assert!(countwheel_disk::Flushed::record(b"nothing of the kind").is_err());
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Unreadable`] if it cannot be read.
    pub fn record(bytes: &[u8]) -> Result<Record, StoreError> {
        codec::decode(bytes).map_err(|error| StoreError::Unreadable {
            problem: error.to_string(),
        })
    }

    /// How far the log had reached when it was known what to flush; `None` if nobody said. What a
    /// commit up to there had replaced or removed is left out. So a sorted store that has taken
    /// this in is right only behind a log that reaches as far, and should keep it with what it
    /// takes in, for [`Sorted::reached`].
    ///
    /// ```
    /// assert_eq!(countwheel_disk::Flushed::default().reached(), None);
    /// ```
    #[must_use]
    pub fn reached(&self) -> Option<Reached> {
        self.reached
    }

    /// Says how far the log has reached.
    pub(super) fn follows(&mut self, reached: Reached) {
        self.reached = Some(reached);
    }

    /// Sets the listener that hears of the progress.
    pub(super) fn heard_by(&mut self, listener: Listener) {
        self.listener = Some(listener);
    }

    pub(super) fn listener(&self) -> Option<&Listener> {
        self.listener.as_ref()
    }

    /// Adds a change: the bytes of a record, or a removal.
    pub(super) fn push(&mut self, shard: Shard, name: (&str, &str), record: Option<&[u8]>) {
        let kind = record.map_or(FlushedKind::Removed, |record| {
            FlushedKind::Record(u32::try_from(record.len()).unwrap_or(u32::MAX))
        });
        self.push_kind(shard, name, kind, record.unwrap_or_default());
    }

    /// Adds a record that cannot be read.
    pub(super) fn push_unreadable(&mut self, shard: Shard, name: (&str, &str), indexed: Indexed) {
        self.push_kind(shard, name, FlushedKind::Unreadable(indexed), &[]);
    }

    fn push_kind(
        &mut self,
        shard: Shard,
        (queue, key): (&str, &str),
        kind: FlushedKind,
        record: &[u8],
    ) {
        let at = self.bytes.len();
        codec::push_timer_key(&mut self.bytes, shard, queue, key);
        let key_len = self.bytes.len() - at;
        self.bytes.extend_from_slice(record);
        self.changes.push(FlushedChange {
            at,
            key_len: u16::try_from(key_len).unwrap_or(u16::MAX),
            kind,
        });
    }

    /// Keeps of the changes from `from` on those of which `keeps` is true, in order.
    pub(super) fn keep(&mut self, from: usize, keeps: &[bool]) {
        keep(&mut self.changes, from, keeps);
    }

    /// The key of a change as tables have it, and what becomes of it.
    pub(super) fn change(&self, at: usize) -> (&[u8], FlushedContent<'_>) {
        let change = &self.changes[at];
        let (key, behind) = self.bytes[change.at..].split_at(usize::from(change.key_len));
        let content = match change.kind {
            FlushedKind::Removed => FlushedContent::Removed,
            FlushedKind::Record(len) => FlushedContent::Record(&behind[..len as usize]),
            FlushedKind::Unreadable(indexed) => FlushedContent::Unreadable(indexed),
        };
        (key, content)
    }

    /// The numbers of the changes, in order of their keys; of the same key, in their own order.
    pub(super) fn sorted(&self) -> Vec<usize> {
        let keys = || (0..self.len()).map(|at| self.change(at).0);
        let first = keys().next().unwrap_or_default();
        let common = |key: &[u8]| first.iter().zip(key).take_while(|(a, b)| a == b).count();
        let common = keys().map(common).min().unwrap_or_default();
        // What comes behind what they all begin with decides mostly; keys have no zeros there.
        let next = |key: &[u8]| {
            let mut next = [0; 8];
            let rest = key.get(common..).unwrap_or_default();
            let len = rest.len().min(8);
            next[..len].copy_from_slice(&rest[..len]);
            u64::from_be_bytes(next)
        };
        let mut sorted: Vec<_> = keys().map(next).zip(0..).collect();
        sorted.sort_unstable_by(|&(next, at), &(other_next, other)| {
            next.cmp(&other_next)
                .then_with(|| self.change(at).0.cmp(self.change(other).0))
                .then(at.cmp(&other))
        });
        sorted.into_iter().map(|(_, at)| at).collect()
    }
}

impl From<Vec<(Shard, Change)>> for Flushed {
    fn from(changes: Vec<(Shard, Change)>) -> Self {
        changes.into_iter().collect()
    }
}

impl FromIterator<(Shard, Change)> for Flushed {
    /// Revisions that were given, notes of the clocks and settings are left out: the log knows them.
    fn from_iter<I: IntoIterator<Item = (Shard, Change)>>(changes: I) -> Self {
        let mut flushed = Self::default();
        for (shard, change) in changes {
            let (name, record) = match &change {
                Change::Put { record, .. } => (&record.name, Some(codec::encode(record))),
                Change::Remove { name, .. } => (name, None),
                Change::Given(_) | Change::Clock(_) | Change::Setting(_) => continue,
            };
            let name = (name.queue.as_str(), name.key.as_str());
            flushed.push(shard, name, record.as_deref());
        }
        flushed
    }
}

impl fmt::Debug for Flushed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flushed")
            .field("changes", &self.len())
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

/// Sorted records in memory: the plain reference. A clone shares the content.
///
/// ```
/// use countwheel_disk::{MemorySorted, Flushed, Sorted};
///
/// let sorted = MemorySorted::default();
/// sorted.clone().ingest(1, Flushed::default())?;
/// assert_eq!(sorted.ingested(), 1);
/// # Ok::<(), countwheel_durable::store::StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemorySorted {
    records: MemoryStore,
    /// What was lost in the log.
    unreadable: Arc<Mutex<BTreeSet<(Shard, TimerName)>>>,
    ingested: Arc<Mutex<u64>>,
}

impl Default for MemorySorted {
    fn default() -> Self {
        Self {
            records: MemoryStore::new(0),
            unreadable: Arc::default(),
            ingested: Arc::default(),
        }
    }
}

impl Sorted for MemorySorted {
    fn ingested(&self) -> u64 {
        *self.ingested.lock()
    }

    fn ingest(&self, segment: u64, flushed: Flushed) -> Result<(), StoreError> {
        let mut ingested = self.ingested.lock();
        let mut unreadable = self.unreadable.lock();
        for (shard, change) in flushed.changes()? {
            let name = match &change {
                Change::Put { record, .. } => Some(&record.name),
                Change::Remove { name, .. } => Some(name),
                Change::Given(_) | Change::Clock(_) | Change::Setting(_) => None,
            };
            if let Some(name) = name {
                unreadable.remove(&(shard, name.clone()));
            }
            let lease = self.records.take(shard).lease;
            self.records.commit(lease, &[change])?;
        }
        for (shard, name) in flushed.unreadable() {
            let lease = self.records.take(shard).lease;
            let removal = Change::remove(name.clone());
            self.records.commit(lease, &[removal])?;
            unreadable.insert((shard, name));
        }
        *ingested = segment;
        Ok(())
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        if self.unreadable.lock().contains(&(shard, name.clone())) {
            return Err(StoreError::Unreadable {
                problem: format!("the record {name} could not be read"),
            });
        }
        self.records.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.records.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.records.list(shard, filter)
    }
}
