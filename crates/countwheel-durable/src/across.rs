//! Lists over several queues, in order of due time, without an index of their own.
//!
//! What waits or is being delivered stands in the index of wakes, which has all queues in order of due time. What has
//! ended stands in the list of its queue alone: the counts tell which queues have any, and their lists are merged. That
//! is refused where it would read too much.

use std::collections::BTreeSet;

use countwheel_time::Timestamp;

use crate::merged::{self, Source};
use crate::store::page::{begins_with, position};
use crate::store::{
    Cursor, DueScan, Filter, Page, Position, QueueCounts, Shard, Store, StoreError,
};
use crate::{DueClock, QueueName, Record, Shards, StateKind, Wake};

/// A list of so many timers that have ended is merged however many queues they are in.
const ENDED_MAX: u64 = 10_000;
/// The lists of so many queues and shards are merged however long they are.
const LISTS_MAX: usize = 64;
/// Of a divided store, which may be far away, no more lists than this are merged.
const LISTS_OF_SHARDS_MAX: usize = 256;
/// A page that has read payloads of so many bytes is refused.
const READ_MAX_BYTES: usize = 64 << 20;
/// A record that is read counts as so many entries of an index.
const RECORD_COST: usize = 4;

/// Which timers of several queues to list. See [`Timers::page_across`](crate::Timers::page_across).
///
/// ```
/// use countwheel_durable::{AcrossFilter, StateKind};
///
/// let dead = AcrossFilter { state: Some(StateKind::Dead), ..AcrossFilter::default() };
/// assert_eq!((dead.limit, dead.queue_prefix), (100, None));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcrossFilter {
    /// Only those of queues whose name begins so.
    pub queue_prefix: Option<String>,
    /// Only those in this state.
    pub state: Option<StateKind>,
    /// Only those whose key begins so.
    pub prefix: Option<String>,
    /// Only those due at this time or later.
    pub due_from: Option<Timestamp>,
    /// Only those due before this time.
    pub due_before: Option<Timestamp>,
    /// At most so many.
    pub limit: usize,
    /// As [`Filter::scan_limit`].
    pub scan_limit: usize,
}

impl Default for AcrossFilter {
    /// Everything, a hundred records a page.
    fn default() -> Self {
        Self {
            queue_prefix: None,
            state: None,
            prefix: None,
            due_from: None,
            due_before: None,
            limit: 100,
            scan_limit: Filter::SCAN_LIMIT,
        }
    }
}

/// Why there is no page of several queues.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcrossError {
    /// Timers that have ended are in too many queues to merge their lists.
    #[error(
        "{timers} timers that are done, dead or delivered are in the lists of {queues} queues, too many to merge"
    )]
    TooBroad {
        /// In how many queues they are.
        queues: usize,
        /// How many they are.
        timers: u64,
    },
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A page of the timers of several queues.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcrossPage {
    /// The records, the place where the next page begins, and how many cannot be read. A page that has fewer records
    /// than its limit, and a next page, has looked at as many entries as it may.
    pub page: Page<Cursor>,
    /// Whether the counts that told which queues to read were those of every timer.
    pub exact: bool,
}

/// One list of those that are merged.
enum Of {
    /// What waits by a clock, or is being delivered.
    Wakes(DueClock),
    /// What one queue has in a state.
    Ended(QueueName, StateKind),
}

impl AcrossFilter {
    fn has_queue(&self, queue: &QueueName) -> bool {
        let prefix = self.queue_prefix.as_deref().unwrap_or_default();
        !queue.is_reserved() && queue.as_str().starts_with(prefix)
    }

    /// Whether the pending timers are wanted, with those in delivery if all states are.
    fn wants_wakes(&self) -> bool {
        matches!(self.state, None | Some(StateKind::Pending))
    }

    /// The states that are read queue by queue.
    pub(crate) fn by_queue(&self) -> &'static [StateKind] {
        match self.state {
            None => &[StateKind::Done, StateKind::Dead],
            Some(StateKind::Pending) => &[],
            Some(StateKind::Delivering) => &[StateKind::Delivering],
            Some(StateKind::Done) => &[StateKind::Done],
            Some(StateKind::Dead) => &[StateKind::Dead],
        }
    }

    fn wants(&self, record: &Record) -> bool {
        let kind = record.state.kind();
        let is_wanted = match self.state {
            None => matches!(kind, StateKind::Pending | StateKind::Delivering),
            Some(wanted) => kind == wanted,
        };
        is_wanted
            && self.has_queue(&record.name.queue)
            && self.due_from.is_none_or(|from| record.due >= from)
            && self.due_before.is_none_or(|before| record.due < before)
            && begins_with(&record.name, self.prefix.as_deref())
    }

    fn of_queue(
        &self,
        queue: &QueueName,
        state: StateKind,
        after: Option<Position>,
        limit: usize,
    ) -> Filter {
        Filter {
            queue: queue.clone(),
            state: Some(state),
            prefix: self.prefix.clone(),
            due_from: self.due_from,
            due_before: self.due_before,
            after,
            limit,
            scan_limit: self.scan_limit,
        }
    }
}

/// A page behind `after`. The counts are of each shard, if [some states](AcrossFilter::by_queue) need them.
pub(crate) fn page(
    store: &dyn Store,
    shards: Shards,
    filter: &AcrossFilter,
    after: Option<Cursor>,
    counts: &[(Shard, Vec<QueueCounts>)],
) -> Result<Page<Cursor>, AcrossError> {
    let mut sources = ended(shards, filter, counts)?;
    if filter.wants_wakes() {
        for shard in shards.all() {
            for clock in DueClock::ALL {
                let of = Of::Wakes(clock);
                sources.push(Source { shard, of });
            }
        }
    }
    let mut bytes = 0;
    merged::page_of(&sources, filter.limit, after, |source, after, limit| {
        let page = match &source.of {
            Of::Wakes(clock) => wakes(store, source.shard, *clock, filter, after, limit)?,
            Of::Ended(queue, state) => {
                let of_queue = filter.of_queue(queue, *state, after, limit);
                store.list(source.shard, &of_queue)?
            }
        };
        bytes += page
            .records
            .iter()
            .map(Record::content_bytes)
            .sum::<usize>();
        if bytes > READ_MAX_BYTES && sources.len() > LISTS_MAX {
            return Err(too_broad(&sources, ENDED_MAX));
        }
        Ok(page)
    })
}

fn too_broad(sources: &[Source<Of>], timers: u64) -> AcrossError {
    let queues = sources.iter().filter_map(|source| match &source.of {
        Of::Ended(queue, _) => Some(queue),
        Of::Wakes(_) => None,
    });
    let queues: BTreeSet<_> = queues.collect();
    let queues = queues.len();
    AcrossError::TooBroad { queues, timers }
}

/// The lists of the queues that have any of what is read queue by queue.
fn ended(
    shards: Shards,
    filter: &AcrossFilter,
    counts: &[(Shard, Vec<QueueCounts>)],
) -> Result<Vec<Source<Of>>, AcrossError> {
    let (mut sources, mut timers) = (Vec::new(), 0);
    for (shard, queues) in counts {
        for counts in queues.iter().filter(|it| filter.has_queue(&it.queue)) {
            for state in filter.by_queue() {
                let count = counts.of(*state);
                // One that has begun or ended a moment ago may not be counted yet: that is how a list is, which
                // is read while timers change.
                if count == 0 {
                    continue;
                }
                timers += count;
                let of = Of::Ended(counts.queue.clone(), *state);
                sources.push(Source { shard: *shard, of });
            }
        }
    }
    let is_divided = shards != Shards::ONE;
    let is_many = sources.len() > LISTS_MAX && timers > ENDED_MAX;
    if is_many || is_divided && sources.len() > LISTS_OF_SHARDS_MAX {
        return Err(too_broad(&sources, timers));
    }
    Ok(sources)
}

/// A page of what one shard has in the order of wakes by a clock. The wake of what waits, or is being delivered, is its due
/// time.
fn wakes(
    store: &dyn Store,
    shard: Shard,
    clock: DueClock,
    filter: &AcrossFilter,
    after: Option<Position>,
    limit: usize,
) -> Result<Page, StoreError> {
    let mut page = Page {
        records: Vec::new(),
        unreadable: 0,
        next: None,
    };
    let until = match filter.due_before {
        None => Timestamp::MAX,
        Some(before) => match before.as_micros().checked_sub(1) {
            Some(last) => Timestamp::from_micros(last),
            None => return Ok(page),
        },
    };
    let first = |at| Wake {
        at,
        ..Wake::default()
    };
    let begin = filter.due_from.map(|from| first(from).before());
    let begin = begin.filter(|wake| *wake != Wake::default());
    let mut after = after
        .map(|Position { due: at, revision }| Wake { at, revision })
        .max(begin);
    let (mut left, mut bytes) = (filter.scan_limit.max(1), 0);
    loop {
        let scan = DueScan {
            after,
            until,
            // One more says whether anything follows.
            limit: limit - page.records.len() + 1,
            scan_limit: left,
            ..DueScan::all(clock)
        };
        let due = store.due(shard, &scan)?;
        let mut wanted = due.entries;
        wanted.retain(|entry| {
            let is_over = matches!(entry.kind, Some(StateKind::Done | StateKind::Dead));
            !is_over
                && filter.has_queue(&entry.name.queue)
                && begins_with(&entry.name, filter.prefix.as_deref())
        });
        let mut names = wanted.iter().map(|entry| entry.name.clone());
        let mut found = store.get_many(shard, &mut names, Filter::PAGE_MAX_BYTES)?;
        let mut read = 0_usize;
        for entry in wanted {
            read += 1;
            let record = match found.take(&entry.name) {
                Some(record) => Ok(record),
                None => store.get(shard, &entry.name),
            };
            let at = Position {
                due: entry.wake.at,
                revision: entry.wake.revision,
            };
            match record {
                Ok(Some(record)) if position(&record) == at && filter.wants(&record) => {
                    if page.records.len() >= limit {
                        page.next = page.records.last().map(position);
                        return Ok(page);
                    }
                    bytes += record.content_bytes();
                    page.records.push(record);
                }
                Ok(_) => {}
                Err(error) if error.is_unreadable() => page.unreadable += 1,
                Err(error) => return Err(error),
            }
            if bytes >= Filter::PAGE_MAX_BYTES {
                page.next = Some(at);
                return Ok(page);
            }
        }
        let next = due
            .next
            .map(|Wake { at, revision }| Position { due: at, revision });
        let Some(position) = next else {
            return Ok(page);
        };
        after = due.next;
        left = left.saturating_sub(due.scanned + read.saturating_mul(RECORD_COST - 1));
        if left == 0 {
            page.next = Some(position);
            return Ok(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use countwheel_time::Random;

    use super::*;
    use crate::store::{Change, MemoryStore};
    use crate::{DeadReason, State, TimerName, merged};

    fn record(revision: u64, random: &mut Random, shards: Shards, shard: Shard) -> Record {
        let due = 1 + random.below(8);
        let queue = format!(
            "{}{}",
            ["a", "b"][usize::from(random.below(2) == 0)],
            random.below(4)
        );
        let names = (0..).map(|number: u64| {
            let key = format!(
                "{}{}-{number}",
                ["x", "y"][usize::from(number.is_multiple_of(2))],
                revision
            );
            TimerName::new(&queue, key).unwrap()
        });
        let name = names
            .into_iter()
            .find(|name| shards.of(name) == shard)
            .unwrap();
        let at = Timestamp::from_micros(random.below(20));
        let state = match random.below(4) {
            0 => State::Delivering,
            1 => State::Done {
                at,
                keep_until: Timestamp::MAX,
            },
            2 => State::Dead {
                at,
                reason: DeadReason::Missed,
                keep_until: None,
            },
            _ => State::Pending,
        };
        Record {
            name,
            state,
            clock: DueClock::ALL[usize::from(random.below(2) == 0)],
            ..merged::tests::record(revision, due)
        }
    }

    /// A walk over all queues has each timer that the filter wants once, in order, whatever it is read by.
    #[test]
    fn a_walk_over_all_queues_has_every_record_once_in_order() {
        for (seed, count) in (0..300).zip([1, 2, 8].into_iter().cycle()) {
            let mut random = Random::new(seed);
            let shards = Shards::new(count).unwrap();
            let store = MemoryStore::new(7);
            let mut below = |limit: u64| usize::try_from(random.below(limit)).unwrap();
            let filter = AcrossFilter {
                queue_prefix: [None, Some("a".to_owned()), Some("b2".to_owned())][below(3)].clone(),
                state: [&[None][..], &StateKind::ALL.map(Some)].concat()[below(5)],
                prefix: [None, Some("x".to_owned())][below(2)].clone(),
                due_from: [
                    None,
                    Some(Timestamp::EPOCH),
                    Some(Timestamp::from_micros(3)),
                ][below(3)],
                due_before: [None, Some(Timestamp::from_micros(6))][below(2)],
                limit: 1 + below(20),
                scan_limit: [1, 7, 4_096][below(3)],
            };
            let (mut expected, mut counts) = (Vec::new(), Vec::new());
            for shard in shards.all() {
                let lease = store.acquire(shard).unwrap().lease;
                let mut changes = Vec::new();
                for revision in 1..=random.below(60) {
                    let record = record(revision, &mut random, shards, shard);
                    let is_wanted = filter.state.is_none_or(|kind| record.state.kind() == kind)
                        && filter.has_queue(&record.name.queue)
                        && filter.due_from.is_none_or(|from| record.due >= from)
                        && filter.due_before.is_none_or(|before| record.due < before)
                        && begins_with(&record.name, filter.prefix.as_deref());
                    if is_wanted {
                        let position = position(&record);
                        expected.push((Cursor { position, shard }, record.name.clone()));
                    }
                    changes.push(Change::put(record));
                }
                store.commit(lease, &changes).unwrap();
                counts.push((shard, store.counts(shard).unwrap()));
            }
            expected.sort();
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = page(&store, shards, &filter, after, &counts).unwrap();
                assert!(page.records.len() <= filter.limit, "{seed}");
                found.extend(page.records.into_iter().map(|record| {
                    let (position, shard) = (position(&record), shards.of(&record.name));
                    (Cursor { position, shard }, record.name)
                }));
                match page.next {
                    None => break,
                    next => assert!(next > after, "{seed}: {next:?} after {after:?}"),
                }
                after = page.next;
            }
            assert_eq!(found, expected, "{seed}: {filter:?}");
        }
    }

    #[test]
    fn lists_of_too_many_queues_are_refused() {
        let counts = |queues: usize, dead: u64| {
            let queues = (0..queues).map(|number| QueueCounts {
                queue: QueueName::new(format!("q{number}")).unwrap(),
                by_state: [0, 0, 0, dead],
            });
            vec![(Shard::ONLY, queues.collect::<Vec<_>>())]
        };
        let store = MemoryStore::new(7);
        let filter = AcrossFilter::default();
        let asked = |shards, counts: &[(Shard, Vec<QueueCounts>)]| {
            page(&store, shards, &filter, None, counts).map(|page| page.next)
        };
        assert!(asked(Shards::ONE, &counts(64, 1_000_000)).is_ok());
        assert!(asked(Shards::ONE, &counts(100, 100)).is_ok());
        let refused = asked(Shards::ONE, &counts(65, 1_000)).unwrap_err();
        assert!(matches!(
            refused,
            AcrossError::TooBroad {
                queues: 65,
                timers: 65_000
            }
        ));
        let shards = Shards::new(2).unwrap();
        assert!(asked(shards, &counts(256, 1)).is_ok());
        assert!(asked(shards, &counts(257, 1)).is_err());
        // What waits needs none of them.
        let pending = AcrossFilter {
            state: Some(StateKind::Pending),
            ..AcrossFilter::default()
        };
        assert!(page(&store, Shards::ONE, &pending, None, &counts(65, 1_000)).is_ok());
    }
}
