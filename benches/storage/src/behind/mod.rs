//! The project's log in front of a library, which takes the place of the project's own tables.
//!
//! One table of the library holds everything; the first byte of a key says what it is:
//!
//! - [`DUE`]: shard, clock, wake, revision; the value is the state and the name.
//! - [`LISTED`]: shard, queue, state, deadline, revision; the value is the timer's key.
//! - [`META`]: the last segment taken in, and how far the log had reached then.
//! - [`NAMED`]: shard, queue, timer's key; the value is the record, in the log's bytes.
//!
//! A segment is one piece of sorted keys with the segment's number among them. Both libraries
//! ingest sorted files into one table atomically, so a library's own log stays empty. The ingest
//! looks up the record that each change replaces, and deletes that record's entries in the indexes;
//! a read in order of deadlines then looks nothing up.
//!
//! Two things are less than in the tables: a refused start has let the library write already, and a
//! record that the log lost is in no index.

#[cfg(test)]
mod equal;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use countwheel_disk::{Flushed, FlushingLog, LogOptions, LogStore, Reached, Sorted, SystemFiles};
use countwheel_durable::store::page::{DueBuilder, PageBuilder, position};
use countwheel_durable::store::{
    DueEntry, DuePage, DueScan, Filter, Page, Position, Shard, StoreError,
};
use countwheel_durable::{DueClock, Key, QueueName, Record, Revision, StateKind, TimerName, Wake};
use countwheel_time::Timestamp;
use countwheel_time::locks::lock;

use crate::ours::STORE_ID;
use crate::stopwatch::pause;

#[cfg(feature = "fjall")]
pub(crate) use self::fjall::Fjall;
#[cfg(feature = "rocksdb")]
pub(crate) use self::rocksdb::Rocks;

const DUE: u8 = b'd';
const LISTED: u8 = b'l';
const META: u8 = b'm';
const NAMED: u8 = b'n';

/// The value under the name of a record that the log cannot read any more.
const UNREADABLE: &[u8] = b"";

/// An ingest waits while as many runs wait for compaction. Both libraries slow writes down from
/// twenty on, but not ingests.
const RUNS_MAX: usize = 20;
const PAUSE: Duration = Duration::from_millis(2);

/// An ingest says how far it is with every so many steps, as often as the tables do.
const TOLD_EVERY: usize = 512;

/// Takes the next key in order, with its value or as removed.
pub(crate) type Put<'a> = &'a mut dyn FnMut(&[u8], Option<&[u8]>) -> anyhow::Result<()>;

/// A row of a library, and the rows in a range.
pub(crate) type Row<B> = anyhow::Result<(B, B)>;
pub(crate) type Rows<'a, B> = Box<dyn Iterator<Item = Row<B>> + 'a>;

/// A library with one sorted table that ingests sorted rows atomically.
pub(crate) trait Library: Sized + Send + Sync + 'static {
    type Bytes: AsRef<[u8]>;

    fn open(directory: &Path) -> anyhow::Result<Self>;

    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Self::Bytes>>;

    /// From `from` on, up to `end`, which is excluded.
    fn range(&self, from: &[u8], end: &[u8]) -> Rows<'_, Self::Bytes>;

    /// Ingests the rows that `fill` hands over; durable on return.
    fn ingest(&self, fill: &mut dyn FnMut(Put<'_>) -> anyhow::Result<()>) -> anyhow::Result<()>;

    /// How many runs wait for compaction.
    fn runs(&self) -> usize;
}

/// A library in the place of the sorted store.
pub(crate) struct Behind<L> {
    library: L,
    directory: PathBuf,
    ingested: AtomicU64,
    reached: Mutex<Option<Reached>>,
    ingesting: Mutex<()>,
}

/// The log in front of it, with its threads, in `directory`.
pub(crate) fn open<L: Library>(directory: &Path) -> anyhow::Result<FlushingLog<Behind<L>>> {
    let log = directory.join("log");
    fs::create_dir_all(&log)?;
    let base = Behind::<L>::open(&directory.join("behind"))?;
    let files = Arc::new(SystemFiles::new(&log));
    let log = LogStore::open(base, files, STORE_ID, LogOptions::default())?;
    Ok(FlushingLog::start(log)?)
}

impl<L: Library> Behind<L> {
    pub(crate) fn open(directory: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(directory)?;
        let library = L::open(&directory.join("library"))?;
        let (mut ingested, mut reached) = (0, None);
        if let Some(meta) = library.get(&[META])? {
            let [segment, of_segment, of_commit] = numbers(meta.as_ref())?;
            ingested = segment;
            let known = Reached {
                segment: of_segment,
                commit: of_commit,
            };
            reached = (known.segment > 0).then_some(known);
        }
        let mark = directory.join("mark");
        if mark.exists() {
            let [segment, commit] = numbers(&fs::read(mark)?)?;
            reached = reached.max(Some(Reached { segment, commit }));
        }
        Ok(Self {
            library,
            directory: directory.to_owned(),
            ingested: AtomicU64::new(ingested),
            reached: Mutex::new(reached),
            ingesting: Mutex::default(),
        })
    }

    fn take_in(&self, segment: u64, moved: &Flushed) -> anyhow::Result<()> {
        while self.library.runs() >= RUNS_MAX {
            pause(PAUSE);
        }
        let unreadable = moved.unreadable();
        let mut lost: Vec<Vec<u8>> = unreadable
            .iter()
            .map(|(shard, name)| named_key(*shard, name))
            .collect();
        lost.sort_unstable();
        // What is removed of the indexes, and what is new there.
        let (mut removed, mut added) = (Rest::default(), Rest::default());
        let mut named: Vec<(&[u8], Option<&[u8]>)> = Vec::with_capacity(moved.len());
        // A name is looked up, and has three rows at most that count.
        let (mut key, mut done) = (Vec::new(), 0_usize);
        let all = 4 * moved.len();
        let mut one_more = || {
            done += 1;
            if done.is_multiple_of(TOLD_EVERY) {
                moved.tell(1_f64.min(done as f64 / all as f64));
            }
        };
        for (name, bytes) in moved.in_order() {
            key.clear();
            key.push(NAMED);
            key.extend_from_slice(name);
            let old = self.library.get(&key)?;
            if let Some(old) = old.as_ref().map(AsRef::as_ref)
                && old != UNREADABLE
            {
                removed.index(shard_of(name)?, &Flushed::record(old)?);
            }
            if let Some(bytes) = bytes {
                added.index(shard_of(name)?, &Flushed::record(bytes)?);
            }
            if old.is_some() || bytes.is_some() {
                named.push((name, bytes));
            }
            one_more();
        }
        for key in &lost {
            if let Some(old) = self.library.get(key)?
                && old.as_ref() != UNREADABLE
            {
                removed.index(shard_of(&key[1..])?, &Flushed::record(old.as_ref())?);
            }
        }
        removed.sort();
        added.sort();
        let reached = moved.reached().max(self.reached());
        let known = reached.unwrap_or(Reached {
            segment: 0,
            commit: 0,
        });
        let meta = [segment, known.segment, known.commit].map(u64::to_be_bytes);
        self.library.ingest(&mut |put| {
            let put: Put<'_> = &mut |key, value| {
                one_more();
                put(key, value)
            };
            indexes(&removed, &added, put)?;
            put(&[META], Some(&meta.concat()))?;
            let mut lost = lost.iter().peekable();
            for (name, bytes) in &named {
                key.clear();
                key.push(NAMED);
                key.extend_from_slice(name);
                while let Some(before) = lost.next_if(|lost| **lost < key) {
                    put(before, Some(UNREADABLE))?;
                }
                put(&key, *bytes)?;
            }
            lost.try_for_each(|lost| put(lost, Some(UNREADABLE)))
        })?;
        self.ingested.store(segment, Ordering::SeqCst);
        *lock(&self.reached) = reached;
        Ok(())
    }

    /// Writes and syncs a file beside the library, whose own log stays empty.
    fn write_mark(&self, reached: Reached) -> anyhow::Result<()> {
        let (new, mark) = (self.directory.join("mark.new"), self.directory.join("mark"));
        let mut file = File::create(&new)?;
        let bytes = [reached.segment, reached.commit].map(u64::to_be_bytes);
        file.write_all(&bytes.concat())?;
        file.sync_all()?;
        fs::rename(new, mark)?;
        File::open(&self.directory)?.sync_all()?;
        Ok(())
    }

    fn find(&self, key: &[u8]) -> anyhow::Result<Option<Result<Record, StoreError>>> {
        let found = self.library.get(key)?;
        Ok(found.map(|bytes| match bytes.as_ref() {
            UNREADABLE => Err(StoreError::Unreadable {
                problem: "the log could not read the record".to_owned(),
            }),
            bytes => Flushed::record(bytes),
        }))
    }

    fn scan(&self, shard: Shard, scan: &DueScan<'_>) -> anyhow::Result<DuePage> {
        let mut page = DueBuilder::new(scan);
        if page.is_full() {
            return Ok(page.finish());
        }
        let behind = |wake| {
            let mut key = due_key(shard, scan.clock, wake);
            key.push(0);
            key
        };
        let from = behind(scan.after.unwrap_or_default());
        let end = behind(Wake::end_of(scan.until));
        let mut last_queue: Option<QueueName> = None;
        for row in self.library.range(&from, &end) {
            let (key, value) = row?;
            let Position { due, revision } = position_in(key.as_ref())?;
            let wake = Wake { at: due, revision };
            if !page.come_to(wake) {
                break;
            }
            let (&kind, name) = value.as_ref().split_first().context("an empty entry")?;
            let kind = StateKind::ALL.get(usize::from(kind)).copied();
            let (queue, key) = parts(name)?;
            if scan.queue.is_some_and(|wanted| wanted.as_str() != queue) {
                continue;
            }
            // Most entries are of the queue of the entry before.
            let queue = match &last_queue {
                Some(last) if last.as_str() == queue => last.clone(),
                _ => last_queue.insert(QueueName::from_text(queue)?).clone(),
            };
            let key = Key::new(key)?;
            let name = TimerName { queue, key };
            if !page.take(DueEntry { wake, name, kind }) {
                break;
            }
        }
        Ok(page.finish())
    }

    fn page(&self, shard: Shard, filter: &Filter) -> anyhow::Result<Page> {
        let mut page = PageBuilder::new(filter);
        let kinds = StateKind::ALL.into_iter();
        let wanted = kinds.filter(|kind| filter.state.is_none_or(|wanted| wanted == *kind));
        let mut lists: Vec<_> = wanted
            .map(|kind| {
                let (from, end) = list_range(shard, filter, kind);
                self.library.range(&from, &end).peekable()
            })
            .collect();
        let mut key = Vec::new();
        loop {
            // The first of the first ones.
            let mut first = None;
            for (at, list) in lists.iter_mut().enumerate() {
                let position = match list.peek() {
                    Some(Ok((key, _))) => position_in(key.as_ref())?,
                    Some(Err(_)) => Position {
                        due: Timestamp::EPOCH,
                        revision: Revision(0),
                    },
                    None => continue,
                };
                if first.is_none_or(|(least, _)| position < least) {
                    first = Some((position, at));
                }
            }
            let Some((position_of_key, at)) = first else {
                break;
            };
            let Some(row) = lists[at].next() else { break };
            let (listed, timer) = row?;
            if !page.come_to(position_of_key) {
                break;
            }
            let timer = timer.as_ref();
            let prefix = filter.prefix.as_deref().unwrap_or_default();
            if !timer.starts_with(prefix.as_bytes()) {
                continue;
            }
            key.clear();
            key.push(NAMED);
            push_queue(&mut key, shard, &filter.queue);
            key.extend_from_slice(timer);
            // An ingest after the read of this entry changed the record. Its segment is still in the
            // log, which hides the name.
            let Some(record) = self.find(&key)?.transpose()? else {
                continue;
            };
            if list_key(shard, &record) != listed.as_ref() {
                continue;
            }
            if !page.take(|| anyhow::Ok(record))? {
                break;
            }
        }
        Ok(page.finish())
    }
}

impl<L: Library> Sorted for Behind<L> {
    fn ingested(&self) -> u64 {
        self.ingested.load(Ordering::SeqCst)
    }

    fn reached(&self) -> Option<Reached> {
        *lock(&self.reached)
    }

    fn checkpoint(&self, reached: Reached) -> Result<(), StoreError> {
        self.write_mark(reached).map_err(failed)?;
        let mut known = lock(&self.reached);
        *known = (*known).max(Some(reached));
        Ok(())
    }

    fn ingest(&self, segment: u64, moved: Flushed) -> Result<(), StoreError> {
        let _one_at_a_time = lock(&self.ingesting);
        self.take_in(segment, &moved).map_err(failed)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        let found = self.find(&named_key(shard, name)).map_err(failed)?;
        found.transpose()
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.scan(shard, scan).map_err(failed)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.page(shard, filter).map_err(failed)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err hands it over")]
fn failed(error: anyhow::Error) -> StoreError {
    StoreError::Unavailable {
        reason: format!("{error:#}"),
    }
}

/// Keys of the indexes with their values, in one piece of memory.
#[derive(Default)]
struct Rest {
    bytes: Vec<u8>,
    /// Where a key begins, where it ends, and where its value does.
    rows: Vec<[usize; 3]>,
}

impl Rest {
    /// Adds what the indexes say of a record.
    fn index(&mut self, shard: Shard, record: &Record) {
        if let Some(wake) = record.wake() {
            let key = due_key(shard, record.wake_clock(), wake);
            let name = &record.name;
            let kind = [record.state.kind() as u8];
            let (queue, timer) = (name.queue.as_str().as_bytes(), name.key.as_str().as_bytes());
            self.push(&key, &[&kind, queue, &[0], timer]);
        }
        let timer = record.name.key.as_str().as_bytes();
        self.push(&list_key(shard, record), &[timer]);
    }

    fn push(&mut self, key: &[u8], value: &[&[u8]]) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        for part in value {
            self.bytes.extend_from_slice(part);
        }
        self.rows.push([at, key_end, self.bytes.len()]);
    }

    fn sort(&mut self) {
        let Self { bytes, rows } = self;
        rows.sort_unstable_by_key(|[at, end, _]| &bytes[*at..*end]);
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let row = |[at, key_end, end]: &[usize; 3]| {
            (&self.bytes[*at..*key_end], &self.bytes[*key_end..*end])
        };
        self.rows.iter().map(row)
    }
}

/// Hands over removed and added keys in order. A key that is both is added.
fn indexes(removed: &Rest, added: &Rest, put: Put<'_>) -> anyhow::Result<()> {
    let mut removed = removed.iter().map(|(key, _)| key).peekable();
    for (key, value) in added.iter() {
        while let Some(before) = removed.next_if(|removed| *removed < key) {
            put(before, None)?;
        }
        removed.next_if_eq(&key);
        put(key, Some(value))?;
    }
    removed.try_for_each(|key| put(key, None))
}

fn push_queue(key: &mut Vec<u8>, shard: Shard, queue: &QueueName) {
    key.extend_from_slice(&shard.0.to_be_bytes());
    key.extend_from_slice(queue.as_str().as_bytes());
    key.push(0);
}

fn named_key(shard: Shard, name: &TimerName) -> Vec<u8> {
    let mut key = vec![NAMED];
    push_queue(&mut key, shard, &name.queue);
    key.extend_from_slice(name.key.as_str().as_bytes());
    key
}

fn due_key(shard: Shard, clock: DueClock, wake: Wake) -> Vec<u8> {
    let mut key = vec![DUE];
    key.extend_from_slice(&shard.0.to_be_bytes());
    key.push(clock as u8);
    push_position(
        &mut key,
        Position {
            due: wake.at,
            revision: wake.revision,
        },
    );
    key
}

fn list_key(shard: Shard, record: &Record) -> Vec<u8> {
    let kind = record.state.kind();
    listed_at(shard, &record.name.queue, kind, position(record))
}

fn listed_at(shard: Shard, queue: &QueueName, kind: StateKind, position: Position) -> Vec<u8> {
    let mut key = vec![LISTED];
    push_queue(&mut key, shard, queue);
    key.push(kind as u8);
    push_position(&mut key, position);
    key
}

/// The part of a list in one state that a filter wants.
fn list_range(shard: Shard, filter: &Filter, kind: StateKind) -> (Vec<u8>, Vec<u8>) {
    let at = |due, revision| {
        let position = Position { due, revision };
        listed_at(shard, &filter.queue, kind, position)
    };
    let from = filter.due_from.unwrap_or(Timestamp::EPOCH);
    let begin = at(from, Revision(0));
    let behind = filter.after.map(|after| {
        let mut key = at(after.due, after.revision);
        key.push(0);
        key
    });
    let begin = behind.map_or(begin.clone(), |behind| begin.max(behind));
    let end = match filter.due_before {
        Some(before) => at(before, Revision(0)),
        None => {
            let mut end = at(Timestamp::MAX, Revision(u64::MAX));
            end.push(0);
            end
        }
    };
    let end = end.max(begin.clone());
    (begin, end)
}

fn push_position(key: &mut Vec<u8>, position: Position) {
    key.extend_from_slice(&position.due.as_micros().to_be_bytes());
    key.extend_from_slice(&position.revision.0.to_be_bytes());
}

fn position_in(key: &[u8]) -> anyhow::Result<Position> {
    let (_, end) = key.split_last_chunk::<16>().context("a short key")?;
    let [due, revision] = numbers(end)?;
    Ok(Position {
        due: Timestamp::from_micros(due),
        revision: Revision(revision),
    })
}

fn shard_of(name: &[u8]) -> anyhow::Result<Shard> {
    let shard = name.first_chunk().context("a short key")?;
    Ok(Shard(u16::from_be_bytes(*shard)))
}

/// Queue and key.
fn parts(name: &[u8]) -> anyhow::Result<(&str, &str)> {
    let parts = str::from_utf8(name)?.split_once('\0');
    parts.context("a name without an end of the queue")
}

fn numbers<const N: usize>(bytes: &[u8]) -> anyhow::Result<[u64; N]> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    anyhow::ensure!(rest.is_empty(), "not whole numbers");
    let numbers: Vec<u64> = chunks
        .iter()
        .map(|chunk| u64::from_be_bytes(*chunk))
        .collect();
    numbers
        .try_into()
        .ok()
        .context("too many or too few numbers")
}
