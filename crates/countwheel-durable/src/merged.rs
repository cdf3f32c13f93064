//! One page of the timers of all shards, or of several queues, in order, of pages of each.
//!
//! The keys of a queue are spread evenly over the shards, so a shard has about its part of the next records. It is asked for
//! that and some more, and asked again, for twice as many, if that was not enough. To ask each shard for a whole page would
//! read the page as often as there are shards.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::store::{Cursor, Filter, Page, Position, Shard, StoreError, page};
use crate::{Record, Shards};

/// A shard is asked for so many records more than its even part, and for half of that part more.
const MORE: usize = 4;

/// Where records come from: a shard, and what of it.
pub(crate) struct Source<S> {
    pub(crate) shard: Shard,
    pub(crate) of: S,
}

/// What is known of one source.
struct Part {
    shard: Shard,
    records: VecDeque<Record>,
    /// So many were asked for.
    asked: usize,
    /// There is more behind the records, from here on.
    next: Option<Cursor>,
    /// The store did not look further: the page of all shards ends there too.
    is_short: bool,
}

impl Part {
    /// The first record, or else where nothing is known of the source any more: behind that place. Another source may
    /// have a record at the same place, which goes first.
    fn head(&self) -> Option<(Cursor, bool)> {
        let record = self.records.front();
        let record = record.map(|record| (at(self.shard, record), false));
        record.or_else(|| Some((self.next?, true)))
    }
}

fn at(shard: Shard, record: &Record) -> Cursor {
    let position = page::position(record);
    Cursor { position, shard }
}

/// A page behind `after`, of what `list` reads of a shard.
pub(crate) fn page(
    shards: Shards,
    filter: &Filter,
    after: Option<Cursor>,
    list: impl Fn(Shard, &Filter) -> Result<Page, StoreError>,
) -> Result<Page<Cursor>, StoreError> {
    let sources = shards.all().map(|shard| Source { shard, of: () });
    let sources: Vec<_> = sources.collect();
    page_of(&sources, filter.limit, after, |source, after, limit| {
        let filter = Filter {
            after,
            limit,
            ..filter.clone()
        };
        list(source.shard, &filter)
    })
}

/// A page behind `after` of at most `limit` records of all sources, of what `list` reads of one behind a position. No two
/// sources have the same record.
pub(crate) fn page_of<S, E>(
    sources: &[Source<S>],
    limit: usize,
    after: Option<Cursor>,
    mut list: impl FnMut(&Source<S>, Option<Position>, usize) -> Result<Page, E>,
) -> Result<Page<Cursor>, E> {
    let count = sources.len().max(1);
    let each = if count == 1 {
        limit
    } else {
        (limit / count * 3 / 2 + MORE).min(limit)
    };
    let mut unreadable = 0;
    let mut read = |source: &Source<S>, after: Option<Cursor>, asked: usize| {
        let shard = source.shard;
        let page = list(source, after.and_then(|after| after.of(shard)), asked)?;
        unreadable += page.unreadable;
        Ok::<_, E>(Part {
            shard,
            asked,
            is_short: page.records.len() + page.unreadable < asked,
            records: page.records.into(),
            next: page.next.map(|position| Cursor { position, shard }),
        })
    };
    let parts: Result<Vec<_>, _> = sources
        .iter()
        .map(|source| read(source, after, each))
        .collect();
    let mut parts = parts?;
    let heads = parts.iter().enumerate();
    let heads = heads.filter_map(|(number, part)| Some(Reverse((part.head()?, number))));
    let mut heads: BinaryHeap<_> = heads.collect();
    let (mut records, mut bytes, mut next) = (Vec::new(), 0, None);
    while let Some(Reverse(((head, _), number))) = heads.pop() {
        let is_full = records.len() >= limit || bytes >= Filter::PAGE_MAX_BYTES;
        if is_full {
            // Something follows: from behind the last record.
            next = records.last().map(|(cursor, _)| *cursor).or(Some(head));
            break;
        }
        let part = &mut parts[number];
        match part.records.pop_front() {
            Some(record) => {
                bytes += record.content_bytes();
                records.push((head, record));
            }
            None if part.is_short => {
                next = Some(head);
                break;
            }
            None => {
                // One that has more than its part has most of the page, perhaps.
                let asked = (part.asked * 2).min(limit - records.len());
                *part = read(&sources[number], part.next, asked)?;
            }
        }
        heads.extend(parts[number].head().map(|head| Reverse((head, number))));
    }
    Ok(Page {
        records: records.into_iter().map(|(_, record)| record).collect(),
        unreadable,
        next,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use countwheel_time::{Random, Timestamp};

    use super::*;
    use crate::store::{Change, MemoryStore, Store};
    use crate::{DueClock, Missed, QueueName, RetryPolicy, Revision, State, TimerId, TimerName};

    /// A record of that revision, pending and due then.
    pub(crate) fn record(revision: u64, due: u64) -> Record {
        let (revision, due) = (Revision(revision), Timestamp::from_micros(due));
        Record {
            name: TimerName::new("q", revision.0.to_string()).unwrap(),
            id: TimerId {
                store: 7,
                set: revision,
            },
            revision,
            state: State::Pending,
            created: due,
            due,
            clock: DueClock::Wall,
            missed: Missed::Fire,
            recurring: None,
            first_due: due,
            policy: RetryPolicy::default(),
            failures: 0,
            interruptions: 0,
            attempt: 0,
            attempts: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// Everything comes once and in order, however it is spread, and little more is read than that.
    #[test]
    fn a_walk_over_all_shards_has_every_record_once_in_order() {
        for (seed, shards) in (0..200).zip([1, 2, 8, 64].into_iter().cycle()) {
            let mut random = Random::new(seed);
            let shards = Shards::new(shards).unwrap();
            let store = MemoryStore::new(7);
            let most = [0, 1, 20, 60][usize::try_from(random.below(4)).unwrap()];
            let is_even = random.below(2) == 0;
            let mut expected = Vec::new();
            for shard in shards.all() {
                let lease = store.acquire(shard).unwrap().lease;
                let count = if is_even {
                    most
                } else {
                    random.below(most + 1)
                };
                let changes = (1..=count).map(|revision| {
                    let record = record(revision, 1 + random.below(8));
                    expected.push(at(shard, &record));
                    Change::put(record)
                });
                let changes: Vec<_> = changes.collect();
                store.commit(lease, &changes).unwrap();
            }
            expected.sort();
            let filter = Filter {
                limit: 1 + usize::try_from(random.below(100)).unwrap(),
                scan_limit: [1, 7, 4_096][usize::try_from(random.below(3)).unwrap()],
                ..Filter::queue(QueueName::new("q").unwrap())
            };
            let (read, pages) = (Cell::new(0), Cell::new(0));
            let list = |shard, filter: &Filter| {
                let page = store.list(shard, filter)?;
                read.set(read.get() + page.records.len());
                Ok(page)
            };
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = page(shards, &filter, after, list).unwrap();
                assert!(page.records.len() <= filter.limit, "{seed}");
                pages.set(pages.get() + 1);
                // Which shard a record is of, its place among those of its due time and revision says.
                found.extend(page.records.iter().map(page::position));
                match page.next {
                    None => break,
                    next => assert!(next > after, "{seed}: {next:?} after {after:?}"),
                }
                after = page.next;
            }
            let positions: Vec<_> = expected.iter().map(|cursor| cursor.position).collect();
            assert_eq!(found, positions, "{seed}");
            if is_even && filter.scan_limit > 100 {
                let count = usize::from(shards.count());
                let most = 3 * expected.len() + pages.get() * count * (MORE + 1);
                assert!(
                    read.get() <= most,
                    "{seed}: {} read, {most} at the most",
                    read.get()
                );
            }
        }
    }
}
