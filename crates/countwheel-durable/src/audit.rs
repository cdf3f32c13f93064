//! The audit log: who has changed what, in the commit of the change, and where that is kept.

use std::sync::LazyLock;
use std::time::Duration;

use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::jobs::noted;
use crate::store::{Cursor, Filter, Ownership, Page, Position, Shard, StoreError, page};
use crate::{
    DeadReason, DrainMode, Drained, Due, DueClock, Job, JobError, JobOrder, JobSteps, Key, Missed,
    Namespace, Purge, PurgeError, PurgeFilter, QueueName, Record, Request, Response, RetryPolicy,
    Revision, SettingName, SettingsVersion, State, StateKind, TimerError, TimerId, TimerName,
    Timers, shards,
};

/// What a caller says of a change, for the audit log: bytes in a form of the caller's own, and how long the entry is
/// kept. See [`Request::Noted`](crate::Request::Noted).
///
/// ```
/// use std::time::Duration;
/// use countwheel_durable::{Note, TimerError};
///
/// let note = Note::new("by ada, from 192.0.2.7", Duration::from_secs(90 * 86_400))?;
/// assert_eq!(note.bytes(), b"by ada, from 192.0.2.7");
/// assert_eq!(note.keep(), Duration::from_secs(90 * 86_400));
///
/// let long = Note::new(vec![0; Note::MAX_BYTES + 1], Duration::from_secs(60));
/// assert!(matches!(long, Err(TimerError::PayloadTooLarge { limit: Note::MAX_BYTES, .. })));
/// # Ok::<(), TimerError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    bytes: Vec<u8>,
    keep: Duration,
}

impl Note {
    /// The longest note, in bytes.
    pub const MAX_BYTES: usize = 4_096;

    /// A note of these bytes, whose entry is kept for so long by the wall clock: at most [`Due::MAX_AHEAD`], and a longer
    /// time counts as that.
    ///
    /// # Errors
    /// [`TimerError::PayloadTooLarge`] for more than [`Note::MAX_BYTES`].
    pub fn new(bytes: impl Into<Vec<u8>>, keep: Duration) -> Result<Self, TimerError> {
        let (bytes, limit) = (bytes.into(), Self::MAX_BYTES);
        if bytes.len() > limit {
            let bytes = bytes.len();
            return Err(TimerError::PayloadTooLarge { bytes, limit });
        }
        let keep = keep.min(Due::MAX_AHEAD);
        Ok(Self { bytes, keep })
    }

    /// What the caller says.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How long the entry is kept.
    #[must_use]
    pub fn keep(&self) -> Duration {
        self.keep
    }

    /// The entry of a change at this time, as the record that belongs into the commit of the change: for who changes a store
    /// that no [`Timers`] has open. It has the revision behind the last one of the owner. `None` for a timer whose name has no
    /// place in the log.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use countwheel_durable::store::{Change, MemoryStore, Shard, Store};
    /// # use countwheel_durable::{Clock, Config, SystemClock, Timers, inline};
    /// use countwheel_durable::{AuditFilter, Changed, Note, Setting, SettingName, SettingsVersion};
    ///
    /// let (store, clock) = (MemoryStore::new(7), Arc::new(SystemClock::new()));
    /// let owner = store.acquire(Shard::ONLY)?;
    /// let name = SettingName::new("limits")?;
    /// let value = Some(b"7".to_vec());
    /// let after = Some(SettingsVersion(1));
    /// let changed = Changed::Setting { name: name.clone(), before: None, after };
    /// let note = Note::new("ada", Duration::from_secs(86_400))?;
    /// let entry = note.entry(changed, clock.timestamp(), &owner).ok_or("no place")?;
    /// store.commit(owner.lease, &[Change::Setting(Setting { name, value }), Change::put(entry)])?;
    ///
    /// let timers = Timers::open(store, inline(|_| ()), clock, Config::default())?;
    /// let page = timers.audit(&AuditFilter::default(), None)?;
    /// assert_eq!(page.entries[0].1.note, b"ada");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn entry(&self, changed: Changed, at: Timestamp, owner: &Ownership) -> Option<Record> {
        let hashes = match &changed {
            Changed::Timer { name, .. } => shards::hashes(name),
            // A setting is of all shards: its entry is in the one that changes it.
            Changed::Setting { .. } => [u64::from(owner.lease.shard.0); 2],
        };
        let revision = Revision(owner.last_revision.0 + 1);
        let keep_until = at + self.keep;
        record(
            changed,
            self,
            (at, keep_until),
            (owner.store_id, revision),
            hashes,
        )
    }
}

/// How a timer stood before a change, or after it. Neither its payload nor its headers are part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Stood {
    /// There was none, or none whose retention was not over.
    Nothing,
    /// What the store has of it cannot be read.
    Unreadable,
    /// There was one.
    There {
        /// Its state.
        state: StateKind,
        /// When it is due, or was, by the clock of that deadline.
        due: Timestamp,
        /// Its revision.
        revision: Revision,
        /// How many attempts were begun.
        attempts: u32,
    },
}

impl Stood {
    /// How the record stands, if there is one.
    pub(crate) fn of(record: Option<&Record>) -> Self {
        record.map_or(Self::Nothing, |record| Self::There {
            state: record.state.kind(),
            due: record.due,
            revision: record.revision,
            attempts: record.attempt,
        })
    }
}

/// What was changed, and how it stood.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Changed {
    /// A timer.
    Timer {
        /// Its name.
        name: TimerName,
        /// How it stood.
        before: Stood,
        /// How it stands.
        after: Stood,
    },
    /// A setting.
    Setting {
        /// Its name.
        name: SettingName,
        /// The version that it had; `None` if there was none of that name.
        before: Option<SettingsVersion>,
        /// The version that the request was answered with; `None` if the setting was removed.
        after: Option<SettingsVersion>,
    },
}

/// One entry of the audit log: a change that was committed, in the commit that has the entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditEntry {
    /// When, by the wall clock.
    pub at: Timestamp,
    /// The revision of the entry. With the shard of what was changed, no other entry has it.
    pub revision: Revision,
    /// Until when the entry is kept, by the wall clock.
    pub keep_until: Timestamp,
    /// What was changed.
    pub changed: Changed,
    /// The [note](Note) of who has asked for it.
    pub note: Vec<u8>,
}

/// Which entries of the audit log to read. See [`Timers::audit`](crate::Timers::audit).
///
/// ```
/// use countwheel_durable::AuditFilter;
///
/// let newest = AuditFilter { limit: 20, ..AuditFilter::default() };
/// assert!(newest.newest_first && newest.since.is_none());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditFilter {
    /// Only those of this time or later.
    pub since: Option<Timestamp>,
    /// Only those before this time.
    pub until: Option<Timestamp>,
    /// Whether the newest come first, and not the oldest.
    pub newest_first: bool,
    /// At most so many, and 1 at least.
    pub limit: usize,
}

impl Default for AuditFilter {
    /// Everything, the newest first, a hundred entries a page.
    fn default() -> Self {
        Self {
            since: None,
            until: None,
            newest_first: true,
            limit: 100,
        }
    }
}

/// A page of the audit log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuditPage {
    /// The entries, in the order that was asked for, each with its place in the log.
    pub entries: Vec<(Cursor, AuditEntry)>,
    /// How many could not be read.
    pub unreadable: usize,
    /// The place behind which the next page begins, if there may be one. A page with fewer entries than its limit, and
    /// another page behind it, has looked as far as one page may.
    pub next: Option<Cursor>,
}

/// Verbs of [`Timers`] whose change is noted in the audit log, if there is a note. See [`Timers::noting`].
#[derive(Clone, Debug)]
#[must_use = "a note alone changes nothing"]
pub struct Noting<'a> {
    timers: &'a Timers,
    note: Option<Note>,
}

impl Timers {
    /// The verbs that change settings of the store, with a note for the audit log. A verb whose request is several changes
    /// notes the one that begins it.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// use countwheel_durable::{
    ///     AuditFilter, DrainMode, JobAction, JobOrder, Note, PurgeFilter, QueueName, Request,
    /// };
    ///
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// let note = Note::new("ada", Duration::from_secs(86_400))?;
    /// let ada = timers.noting(Some(note));
    /// let orders = QueueName::new("orders")?;
    /// ada.drain(Some(&orders), DrainMode::Hold)?;
    /// ada.resume(Some(&orders))?;
    /// let job = ada.begin_job(&JobOrder::new(orders.clone(), JobAction::Fire))?;
    /// ada.cancel_job(job.id)?;
    /// ada.purge(&orders, PurgeFilter::default())?;
    /// ada.cancel_purge(&orders)?;
    /// ada.call(Request::drain(Some(&orders), Some(DrainMode::Hold))?)?;
    /// assert_eq!(timers.audit(&AuditFilter::default(), None)?.entries.len(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn noting(&self, note: Option<Note>) -> Noting<'_> {
        Noting { timers: self, note }
    }
}

impl Noting<'_> {
    /// As [`Timers::call`].
    ///
    /// # Errors
    /// As there.
    pub fn call(&self, request: Request) -> Result<Response, TimerError> {
        self.timers.call(noted(request, self.note.as_ref()))
    }

    /// As [`Timers::drain`], which pauses as well.
    ///
    /// # Errors
    /// As there.
    pub fn drain(&self, queue: Option<&QueueName>, mode: DrainMode) -> Result<Drained, TimerError> {
        self.timers.drain_noted(queue, mode, self.note.as_ref())
    }

    /// As [`Timers::resume`].
    ///
    /// # Errors
    /// As there.
    pub fn resume(&self, queue: Option<&QueueName>) -> Result<Option<DrainMode>, TimerError> {
        self.timers.resume_noted(queue, self.note.as_ref())
    }

    /// As [`Timers::begin_job`]. What the job does to each timer has no entry.
    ///
    /// # Errors
    /// As there.
    pub fn begin_job(&self, order: &JobOrder) -> Result<Job, JobError> {
        self.timers.begin_job_noted(order, self.note.as_ref())
    }

    /// As [`Timers::cancel_job`].
    ///
    /// # Errors
    /// As there.
    pub fn cancel_job(&self, id: SettingsVersion) -> Result<Option<Job>, TimerError> {
        JobSteps::cancel_noted(self.timers, id, self.note.as_ref())
    }

    /// As [`Timers::purge`]. What the purge removes has no entry.
    ///
    /// # Errors
    /// As there.
    pub fn purge(&self, queue: &QueueName, filter: PurgeFilter) -> Result<Purge, PurgeError> {
        self.timers.purge_noted(queue, filter, self.note.as_ref())
    }

    /// As [`Timers::cancel_purge`].
    ///
    /// # Errors
    /// As there.
    pub fn cancel_purge(&self, queue: &QueueName) -> Result<Option<Purge>, TimerError> {
        self.timers.cancel_purge_noted(queue, self.note.as_ref())
    }
}

/// The queue of all entries.
static QUEUE: LazyLock<Option<QueueName>> = LazyLock::new(|| {
    let namespace = Namespace::new(Namespace::RESERVED).ok()?;
    QueueName::in_namespace(&namespace, "audit").ok()
});

/// The queue of all entries. Always there.
pub(crate) fn queue() -> Option<&'static QueueName> {
    QUEUE.as_ref()
}

/// The name of an entry. Names are in order of time. The two hashes decide in which shard it is: by the whole key, and by
/// the tag.
pub(crate) fn place(at: Timestamp, revision: Revision, hashes: [u64; 2]) -> Option<TimerName> {
    let queue = queue()?.clone();
    let ([whole, tag], at, revision) = (hashes, at.as_micros(), revision.0);
    let key = Key::new(format!("{at:016x}{revision:016x}-{whole:016x}-{tag:016x}")).ok()?;
    Some(TimerName { queue, key })
}

/// The entry as a store keeps it: a record of a reserved queue, as a receipt is. It is dead, so that it waits for nothing but
/// the end of its time, and every store can read it.
pub(crate) fn record(
    changed: Changed,
    note: &Note,
    (at, keep_until): (Timestamp, Timestamp),
    (store, revision): (u64, Revision),
    hashes: [u64; 2],
) -> Option<Record> {
    Some(Record {
        name: place(at, revision, hashes)?,
        revision,
        state: State::Dead {
            at,
            reason: DeadReason::Stopped,
            keep_until: Some(keep_until),
        },
        id: TimerId {
            store,
            set: revision,
        },
        created: at,
        due: at,
        clock: DueClock::Wall,
        missed: Missed::Fire,
        recurring: None,
        first_due: at,
        policy: RetryPolicy::default(),
        failures: 0,
        interruptions: 0,
        attempt: 0,
        attempts: Vec::new(),
        payload: to_payload(changed, note.bytes.clone()),
    })
}

/// The first byte of what an entry has in place of a payload.
const FORMAT: u8 = 1;

#[derive(Serialize, Deserialize)]
struct Stored {
    changed: Changed,
    #[serde(with = "serde_bytes")]
    note: Vec<u8>,
}

/// What an entry has in place of a payload.
pub(crate) fn to_payload(changed: Changed, note: Vec<u8>) -> Vec<u8> {
    // Nothing in it is without a form.
    postcard::to_extend(&Stored { changed, note }, vec![FORMAT]).unwrap_or_default()
}

impl AuditEntry {
    /// The entry that a record is, for who reads a store without [`Timers::audit`]; `None` if it is none, or this version
    /// cannot read it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use countwheel_durable::store::{Filter, MemoryStore, Shard, Store};
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// use std::sync::Arc;
    /// use countwheel_durable::{AuditEntry, Note, QueueName, Request};
    ///
    /// let store = MemoryStore::new(7);
    /// let clock = Arc::new(SystemClock::new());
    /// let timers = Timers::open(store.clone(), inline(|_| ()), clock, Config::default())?;
    /// let note = Note::new("ada", Duration::from_secs(60))?;
    /// timers.call(Request::drain(None, Some(countwheel_durable::DrainMode::Hold))?.noted(note))?;
    /// let queue = QueueName::from_text("countwheel:internal/audit")?;
    /// let records = store.list(Shard::ONLY, &Filter::queue(queue))?.records;
    /// assert_eq!(AuditEntry::of(&records[0]).map(|entry| entry.note), Some(b"ada".to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn of(record: &Record) -> Option<Self> {
        let (format, rest) = record.payload.split_first()?;
        let stored: Stored = match *format {
            FORMAT => postcard::from_bytes(rest).ok()?,
            _ => return None,
        };
        Some(Self {
            at: record.due,
            revision: record.revision,
            keep_until: record.state.kept_until()?,
            changed: stored.changed,
            note: stored.note,
        })
    }
}

/// A page of the newest entries looks into a span of this length first.
const FIRST_SPAN: Duration = Duration::from_secs(3_600);
/// The next span is so many times as long, or so many times as short if one has too many entries.
const FACTOR: u32 = 8;
/// A span without more than so many entries is read whole, whatever the limit of the page is.
const SPAN_LEAST: usize = 256;
/// One page looks into so many spans at most.
const SPANS_MAX: usize = 64;

/// The store, as one page of the log reads it.
pub(crate) struct Reader<L, C> {
    /// The present time of the wall clock.
    pub(crate) wall: Timestamp,
    /// Reads a page of the records of all shards behind a place, in order of time.
    pub(crate) list: L,
    /// The place of a record.
    pub(crate) place: C,
}

impl<L, C> Reader<L, C>
where
    L: Fn(&Filter, Option<Cursor>) -> Result<Page<Cursor>, StoreError>,
    C: Fn(&Record) -> Cursor,
{
    /// Reads one page behind a place.
    pub(crate) fn page(
        &self,
        filter: &AuditFilter,
        after: Option<Cursor>,
    ) -> Result<AuditPage, StoreError> {
        if filter.newest_first {
            return self.newest(filter, after);
        }
        let page = self.list(filter.limit.max(1), (filter.since, filter.until), after)?;
        let mut found = AuditPage {
            unreadable: page.unreadable,
            next: page.next,
            ..AuditPage::default()
        };
        for record in &page.records {
            self.take(record, &mut found);
        }
        Ok(found)
    }

    fn list(
        &self,
        limit: usize,
        (due_from, due_before): (Option<Timestamp>, Option<Timestamp>),
        after: Option<Cursor>,
    ) -> Result<Page<Cursor>, StoreError> {
        let Some(queue) = queue() else {
            return Ok(Page {
                records: Vec::new(),
                unreadable: 0,
                next: None,
            });
        };
        let filter = Filter {
            due_from,
            due_before,
            limit,
            ..Filter::queue(queue.clone())
        };
        (self.list)(&filter, after)
    }

    /// Takes a record into a page, unless its time is over.
    fn take(&self, record: &Record, page: &mut AuditPage) {
        if record.is_over(self.wall) {
            return;
        }
        match AuditEntry::of(record) {
            Some(entry) => page.entries.push(((self.place)(record), entry)),
            None => page.unreadable += 1,
        }
    }

    /// Reads backwards, which no store does: span by span, each as long as its entries are few.
    fn newest(&self, filter: &AuditFilter, after: Option<Cursor>) -> Result<AuditPage, StoreError> {
        let limit = filter.limit.max(1);
        let probe = limit.saturating_mul(2).max(SPAN_LEAST);
        let floor = filter.since.unwrap_or(Timestamp::EPOCH);
        // A clock that was set back leaves entries that are ahead of it.
        let mut end = self.wall + Due::MAX_AHEAD + Due::MAX_AHEAD;
        end = filter.until.map_or(end, |until| end.min(until));
        if let Some(after) = after {
            end = end.min(after.position.due + MICROSECOND);
        }
        // It ends where the first of some steps ahead of the clock has nothing behind it.
        let mut ahead = MICROSECOND;
        while self.wall + ahead < end {
            let begin = self.wall + ahead;
            let page = self.list(1, (Some(begin), Some(end)), None)?;
            if page.records.is_empty() && page.unreadable == 0 && page.next.is_none() {
                end = begin;
                break;
            }
            ahead = (ahead * FACTOR).max(FIRST_SPAN);
        }
        let mut span = ahead.max(FIRST_SPAN);
        let mut found = AuditPage::default();
        for _ in 0..SPANS_MAX {
            if end <= floor {
                return Ok(found);
            }
            let from = end.saturating_sub(span).max(floor);
            let between = (Some(from), Some(end));
            let mut part = self.list(probe, between, None)?;
            if part.next.is_some() && span > MICROSECOND {
                span = (span / FACTOR).max(MICROSECOND);
                continue;
            }
            let mut records = part.records;
            found.unreadable += part.unreadable;
            // One step of an engine may have written so many in one microsecond.
            while let Some(next) = part.next {
                part = self.list(probe, between, Some(next))?;
                records.append(&mut part.records);
                found.unreadable += part.unreadable;
            }
            for record in records.iter().rev() {
                if after.is_some_and(|after| (self.place)(record) >= after) {
                    continue;
                }
                if found.entries.len() >= limit {
                    found.next = found.entries.last().map(|(place, _)| *place);
                    return Ok(found);
                }
                self.take(record, &mut found);
            }
            end = from;
            span = span.saturating_mul(FACTOR).min(Due::MAX_AHEAD);
        }
        // Everything before that time is behind this place.
        let (due, revision) = (end, Revision(0));
        let position = Position { due, revision };
        let shard = Shard(0);
        found.next = (end > floor).then_some(Cursor { position, shard });
        Ok(found)
    }
}

const MICROSECOND: Duration = Duration::from_micros(1);

/// The place of a record in the log, in this shard.
pub(crate) fn cursor(record: &Record, shard: Shard) -> Cursor {
    let position = page::position(record);
    Cursor { position, shard }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shards, shards};

    #[test]
    fn an_entry_is_in_the_shard_of_what_it_tells() {
        let count = Shards::new(64).unwrap();
        for shards in [Shards::ONE, count, count.by_tag()] {
            for key in ["order-42", "{one}/x", "{customer-7}/y", "{", "ü"] {
                let timer = TimerName::new("orders", key).unwrap();
                let hashes = shards::hashes(&timer);
                let entry = place(Timestamp::from_micros(7), Revision(3), hashes).unwrap();
                assert!(entry.queue.is_reserved());
                assert_eq!(shards.of(&entry), shards.of(&timer), "{timer}");
            }
            // That of a setting is in the shard which changes the setting.
            for shard in shards.all() {
                let hashes = [u64::from(shard.0); 2];
                let entry = place(Timestamp::from_micros(7), Revision(3), hashes).unwrap();
                assert_eq!(shards.of(&entry), shard);
            }
        }
    }

    /// A store of entries of these times alone, and how often it was asked.
    struct Stored {
        entries: Vec<Record>,
        asked: std::cell::Cell<usize>,
    }

    impl Stored {
        fn of(times: impl Iterator<Item = u64>) -> Self {
            let note = Note::new("ada", Duration::from_secs(1 << 30)).unwrap();
            let entry = |(number, at): (usize, u64)| {
                let (at, revision) = (Timestamp::from_micros(at), Revision(number as u64 + 1));
                let name = SettingName::new("queue/orders").unwrap();
                let changed = Changed::Setting {
                    name,
                    before: None,
                    after: None,
                };
                record(changed, &note, (at, at + note.keep), (7, revision), [0; 2]).unwrap()
            };
            let mut entries: Vec<_> = times.enumerate().map(entry).collect();
            entries.sort_by_key(page::position);
            let asked = std::cell::Cell::new(0);
            Self { entries, asked }
        }

        fn page(&self, filter: &Filter, after: Option<Cursor>) -> Page<Cursor> {
            self.asked.set(self.asked.get() + 1);
            let place = |record: &Record| cursor(record, Shard(0));
            let begin = self.entries.partition_point(|it| {
                filter.due_from.is_some_and(|from| it.due < from)
                    || after.is_some_and(|after| place(it) <= after)
            });
            let behind = self.entries[begin..].iter();
            let mut behind =
                behind.take_while(|it| filter.due_before.is_none_or(|before| it.due < before));
            let records: Vec<_> = behind.by_ref().take(filter.limit).cloned().collect();
            let next = behind.next().and(records.last()).map(place);
            Page {
                records,
                unreadable: 0,
                next,
            }
        }
    }

    /// Each page of the newest entries is full but for the last one, however many there are and however close together.
    #[test]
    fn a_page_of_the_newest_entries_is_full() {
        type At = Box<dyn Fn(u64) -> u64>;
        let wall = 1_772_366_400_000_000_u64;
        let second = 1_000_000;
        let cases: [(&str, usize, At); 6] = [
            ("within a second", 3_000, Box::new(move |n| wall - n * 300)),
            (
                "within a microsecond",
                700,
                Box::new(move |_| wall - second),
            ),
            ("one a second", 5_000, Box::new(move |n| wall - n * second)),
            (
                "one a day",
                900,
                Box::new(move |n| wall - n * 86_400 * second),
            ),
            ("long ago", 600, Box::new(move |n| wall / 2 - n * second)),
            (
                "ahead of the clock",
                600,
                Box::new(move |n| wall + 86_400 * second - n * second),
            ),
        ];
        for (name, count, at) in cases {
            let stored = Stored::of((0..count as u64).map(at));
            let reader = Reader {
                wall: Timestamp::from_micros(wall),
                list: |filter: &Filter, after| Ok(stored.page(filter, after)),
                place: |record: &Record| cursor(record, Shard(0)),
            };
            for limit in [1, 100, 1_000] {
                let filter = AuditFilter {
                    limit,
                    ..AuditFilter::default()
                };
                let (mut after, mut seen) = (None, 0);
                for pages in 0..3 {
                    stored.asked.set(0);
                    let page = reader.page(&filter, after).unwrap();
                    let expected = limit.min(count - seen);
                    assert_eq!(
                        page.entries.len(),
                        expected,
                        "{name}, {limit} of {count}, page {pages}"
                    );
                    assert!(
                        stored.asked.get() <= 2 * SPANS_MAX,
                        "{name}: {}",
                        stored.asked.get()
                    );
                    seen += expected;
                    after = page.next;
                    if after.is_none() {
                        assert_eq!(seen, count, "{name}");
                        break;
                    }
                }
            }
        }
    }

    /// An entry that is stored is read by a later version.
    #[test]
    fn entries_stay_as_they_are() {
        let at = Timestamp::from_micros(1_772_366_400_000_000);
        let name = place(at, Revision(9), [1, 2]).unwrap();
        assert_eq!(name.to_string(), STORED_NAME);
        let stood = Stood::There {
            state: StateKind::Dead,
            due: Timestamp::from_micros(5),
            revision: Revision(6),
            attempts: 7,
        };
        let timer = Changed::Timer {
            name: TimerName::new("orders", "a").unwrap(),
            before: stood,
            after: Stood::Nothing,
        };
        let setting = Changed::Setting {
            name: SettingName::new("queue/orders").unwrap(),
            before: None,
            after: Some(SettingsVersion(3)),
        };
        let payloads = [timer, setting].map(|changed| to_payload(changed, b"ada".to_vec()));
        assert_eq!(payloads, [STORED_TIMER, STORED_SETTING]);
    }

    const STORED_NAME: &str = "countwheel:internal/audit/00064bf535af10000000000000000009-0000000000000001-0000000000000002";
    const STORED_TIMER: &[u8] = b"\x01\x00\x06orders\x01a\x02\x03\x05\x06\x07\x00\x03ada";
    const STORED_SETTING: &[u8] = b"\x01\x01\x0cqueue/orders\x00\x01\x03\x03ada";
}
