//! What stands behind a log: records in order, taken in by the segment.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::embedded::codec::{self, CodecError};
use super::{
    Change, DueEntry, DueScan, Filter, Lease, MemoryStore, Page, Shard, Store, StoreError,
};
use crate::{Record, TimerName};

/// Keeps the records that outlived their segment of a log.
///
/// It knows no owners and counts nothing: the log in front of it does. It is written by one
/// caller at a time, and read by any number meanwhile.
pub trait Sorted: Send + Sync {
    /// The last segment that [`ingest`](Self::ingest) took in; 0 before the first.
    fn ingested(&self) -> u64;

    /// Whether what [`ingested`](Self::ingested) said when it was opened survives a loss of power.
    /// If it was not sure, and could not be made so, the log keeps what was taken in.
    fn is_settled(&self) -> bool {
        true
    }

    /// Takes in what is left of the log's segment `segment`: all or nothing, together with the
    /// number, and durable on return. A put replaces whatever was there, a removal of nothing is
    /// no error; if a name occurs twice, the last counts.
    ///
    /// Whoever takes long should say how far it is, see [`Moved::tell`].
    ///
    /// # Errors
    /// [`StoreError`]. Whether it was taken in is unknown then until the store is opened again,
    /// and no later call of this opening may succeed, but after [`StoreError::Full`]: nothing
    /// was taken in, and a later call may succeed.
    fn ingest(&self, segment: u64, moved: Moved) -> Result<(), StoreError>;

    /// The record of that name.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError>;

    /// As [`Store::due`].
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<Vec<DueEntry>, StoreError>;

    /// As [`Store::list`].
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError>;

    /// Does a piece of what keeps it in shape, such as a merge, and says whether more is left.
    /// Ingests and reads go on meanwhile.
    ///
    /// # Errors
    /// As [`ingest`](Self::ingest).
    fn tend(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Whether [`tend`](Self::tend) has fallen so far behind that taking in more would cost reads
    /// and room without a bound. A log with threads moves nothing then, until it is full.
    fn is_behind(&self) -> bool {
        false
    }

    /// Of what is missing until it is not behind any more, about the share of 1 that a call of
    /// [`tend`](Self::tend) does: a log lets commits go on as slowly.
    fn step_share(&self) -> f64 {
        0.0
    }
}

/// What one segment of a log leaves to the sorted store: for each name its record, or that it was
/// removed. The bytes stay as the log has them, all in one piece of memory.
///
/// ```
/// use countwheel_durable::TimerName;
/// use countwheel_durable::store::{Change, Moved, Shard};
///
/// let removal = Change::remove(TimerName::new("orders", "1")?);
/// let moved = Moved::from(vec![(Shard::ONLY, removal.clone())]);
/// assert_eq!((moved.len(), moved.is_empty()), (1, false));
/// assert_eq!(moved.changes()?, [(Shard::ONLY, removal)]);
/// moved.tell(0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Moved {
    /// Of each change the key, and behind it the record.
    bytes: Vec<u8>,
    changes: Vec<MovedChange>,
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

/// Who is told how far a move is, as a share of 1.
pub(super) type Listener = Arc<dyn Fn(f64) + Send + Sync>;

struct MovedChange {
    at: usize,
    key_len: u16,
    /// `None`: it was removed.
    record_len: Option<u32>,
}

impl Moved {
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

    /// The changes, with every record read.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if one cannot be read. Its checksum was right once.
    pub fn changes(&self) -> Result<Vec<(Shard, Change)>, StoreError> {
        let read = |(key, record): (&[u8], Option<&[u8]>)| {
            let (shard, name) = key.split_first_chunk().ok_or(CodecError::Key)?;
            let change = match record {
                Some(record) => Change::put(codec::decode(record)?),
                None => Change::remove(codec::name_of(name)?),
            };
            Ok((Shard(u16::from_be_bytes(*shard)), change))
        };
        let read = |at| {
            read(self.change(at)).map_err(|error: CodecError| StoreError::Corrupt {
                path: "a segment that moves".into(),
                problem: error.to_string(),
            })
        };
        (0..self.len()).map(read).collect()
    }

    /// Has somebody told how far it is.
    pub(super) fn heard_by(&mut self, listener: Listener) {
        self.listener = Some(listener);
    }

    pub(super) fn listener(&self) -> Option<&Listener> {
        self.listener.as_ref()
    }

    /// Adds a change: the bytes of a record, or a removal.
    pub(super) fn push(&mut self, shard: Shard, (queue, key): (&str, &str), record: Option<&[u8]>) {
        let at = self.bytes.len();
        codec::push_timer_key(&mut self.bytes, shard, queue, key);
        let key_len = self.bytes.len() - at;
        self.bytes.extend_from_slice(record.unwrap_or_default());
        self.changes.push(MovedChange {
            at,
            key_len: u16::try_from(key_len).unwrap_or(u16::MAX),
            record_len: record.map(|record| u32::try_from(record.len()).unwrap_or(u32::MAX)),
        });
    }

    /// Keeps of the changes from `from` on those of which `keeps` is true, in order.
    pub(super) fn keep(&mut self, from: usize, keeps: &[bool]) {
        keep(&mut self.changes, from, keeps);
    }

    /// The key of a change as tables have it, and the record if it is a put.
    pub(super) fn change(&self, at: usize) -> (&[u8], Option<&[u8]>) {
        let change = &self.changes[at];
        let (key, behind) = self.bytes[change.at..].split_at(usize::from(change.key_len));
        let record = change.record_len.map(|len| &behind[..len as usize]);
        (key, record)
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

impl From<Vec<(Shard, Change)>> for Moved {
    fn from(changes: Vec<(Shard, Change)>) -> Self {
        changes.into_iter().collect()
    }
}

impl FromIterator<(Shard, Change)> for Moved {
    /// Revisions that were given are left out: the log knows them.
    fn from_iter<I: IntoIterator<Item = (Shard, Change)>>(changes: I) -> Self {
        let mut moved = Self::default();
        for (shard, change) in changes {
            let (name, record) = match &change {
                Change::Put { record, .. } => (&record.name, Some(codec::encode(record))),
                Change::Remove { name, .. } => (name, None),
                Change::Given(_) => continue,
            };
            let name = (name.queue.as_str(), name.key.as_str());
            moved.push(shard, name, record.as_deref());
        }
        moved
    }
}

impl fmt::Debug for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moved")
            .field("changes", &self.len())
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

/// Sorted records in memory: the plain reference. A clone shares the content.
///
/// ```
/// use countwheel_durable::store::{MemorySorted, Moved, Sorted};
///
/// let sorted = MemorySorted::default();
/// sorted.clone().ingest(1, Moved::default())?;
/// assert_eq!(sorted.ingested(), 1);
/// # Ok::<(), countwheel_durable::store::StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemorySorted {
    records: MemoryStore,
    ingested: Arc<Mutex<u64>>,
}

impl Default for MemorySorted {
    fn default() -> Self {
        Self {
            records: MemoryStore::new(0),
            ingested: Arc::default(),
        }
    }
}

impl Sorted for MemorySorted {
    fn ingested(&self) -> u64 {
        *self.ingested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ingest(&self, segment: u64, moved: Moved) -> Result<(), StoreError> {
        let mut ingested = self.ingested.lock().unwrap_or_else(PoisonError::into_inner);
        for (shard, change) in moved.changes()? {
            let fence = self.records.acquire(shard)?.lease.fence;
            self.records.commit(Lease { shard, fence }, &[change])?;
        }
        *ingested = segment;
        Ok(())
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.records.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<Vec<DueEntry>, StoreError> {
        self.records.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.records.list(shard, filter)
    }
}
