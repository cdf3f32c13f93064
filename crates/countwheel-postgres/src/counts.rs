//! How many timers each queue has in each state, as the owner of a shard keeps it.
//!
//! A shard with few timers is counted while it is taken. One with many is counted page by page, while
//! it is at work: a page is what has a hash that begins with a certain byte. Each page is one statement,
//! which also says after which turn it was read. What later turns change of it is added.

use std::collections::BTreeMap;

use countwheel_durable::store::QueueCounts;
use countwheel_durable::{QueueName, StateKind};

use crate::bits::Bits;
use crate::commit::Turn;
use crate::planted::planted;
use crate::session::Counted;

/// Into how many pages a shard is divided: one for each first byte of a hash.
const PAGES: usize = 256;

/// The version of saved counts, their first byte.
const VERSION: u8 = 1;

/// Saved counts are not longer: those of more queues are counted anew.
const SAVED_MAX: usize = 1 << 20;

/// The counts of a shard, and which of its pages they have.
#[derive(Clone)]
pub(crate) struct Counts {
    by_queue: BTreeMap<QueueName, ByState>,
    /// After which turn each page was counted. Those from `counted.len()` on were not.
    counted: Vec<i64>,
    /// What turns have changed of the first page that was not counted.
    since: Vec<Changed>,
    /// The last turn that they have.
    pub(crate) seq: i64,
    /// Under which token that was made, if it is not the first.
    pub(crate) made_by: Option<Bits>,
}

type ByState = [u64; StateKind::ALL.len()];

/// What a turn has made of one timer.
#[derive(Clone)]
struct Changed {
    seq: i64,
    queue: QueueName,
    before: Option<StateKind>,
    after: Option<StateKind>,
}

impl Counts {
    /// Of a shard of which no page was counted, after the turn `seq`.
    pub(crate) fn begun(seq: i64, made_by: Option<Bits>) -> Self {
        Self {
            by_queue: BTreeMap::new(),
            counted: Vec::with_capacity(PAGES),
            since: Vec::new(),
            seq,
            made_by,
        }
    }

    /// Of a shard that was counted in one statement.
    pub(crate) fn whole(counted: Counted, made_by: Option<Bits>) -> Self {
        let mut counts = Self::begun(counted.seq, made_by);
        counts.counted = vec![counted.seq; PAGES];
        counts.sum_up(counted.by_state);
        counts
    }

    /// What [`to_bytes`](Self::to_bytes) has saved after the turn `seq`, if this program can read it.
    pub(crate) fn of_bytes(bytes: &[u8], seq: i64, made_by: Option<Bits>) -> Option<Self> {
        let (&version, content) = bytes.split_first()?;
        if version != VERSION {
            return None;
        }
        let (saved, rest): (Vec<(String, ByState)>, _) = postcard::take_from_bytes(content).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let mut counts = Self::begun(seq, made_by);
        counts.counted = vec![seq; PAGES];
        for (queue, by_state) in saved {
            counts
                .by_queue
                .insert(QueueName::from_text(&queue).ok()?, by_state);
        }
        Some(counts)
    }

    /// What is saved of them; `None` while pages are missing, and if they are too long.
    pub(crate) fn to_bytes(&self) -> Option<Vec<u8>> {
        if !self.are_exact() {
            return None;
        }
        let queues = self.by_queue.iter();
        let saved: Vec<_> = queues
            .map(|(queue, by_state)| (queue.as_str(), by_state))
            .collect();
        let bytes = postcard::to_extend(&saved, vec![VERSION]).ok()?;
        (bytes.len() <= SAVED_MAX).then_some(bytes)
    }

    /// Whether every page was counted.
    pub(crate) fn are_exact(&self) -> bool {
        self.counted.len() == PAGES
    }

    /// The first and the last hash of the page that is counted next.
    pub(crate) fn next_page(&self) -> Option<(Bits, Bits)> {
        let byte = u8::try_from(self.counted.len()).ok()?;
        let (mut first, mut last) = ([0; 16], [u8::MAX; 16]);
        (first[0], last[0]) = (byte, byte);
        Some((Bits(first), Bits(last)))
    }

    /// Adds the page that [`next_page`](Self::next_page) said.
    pub(crate) fn add_page(&mut self, page: Counted) {
        let at = page.seq;
        self.sum_up(page.by_state);
        self.counted.push(at);
        for changed in std::mem::take(&mut self.since) {
            if changed.seq > at && !planted!(PostgresPageIsOld) {
                self.count(&changed.queue, changed.before, changed.after);
            }
        }
    }

    /// Counts what the turn `seq` has changed, whose names had these states before.
    pub(crate) fn change(&mut self, turn: &Turn<'_>, before: &[Option<StateKind>], seq: i64) {
        for (named, before) in turn.names.iter().zip(before) {
            let after = named.record.map(|record| record.state.kind());
            if *before == after {
                continue;
            }
            let page = usize::from(named.hash.0[0]);
            match self.counted.get(page) {
                Some(at) if *at < seq => self.count(&named.name.queue, *before, after),
                None if page == self.counted.len() => self.since.push(Changed {
                    seq,
                    queue: named.name.queue.clone(),
                    before: *before,
                    after,
                }),
                // The page has it, or will.
                Some(_) | None => {}
            }
        }
    }

    fn count(&mut self, queue: &QueueName, before: Option<StateKind>, after: Option<StateKind>) {
        if !self.by_queue.contains_key(queue) {
            self.by_queue.insert(queue.clone(), ByState::default());
        }
        let Some(counts) = self.by_queue.get_mut(queue) else {
            return;
        };
        if let Some(before) = before {
            counts[before as usize] = counts[before as usize].saturating_sub(1);
        }
        if let Some(after) = after {
            counts[after as usize] += 1;
        }
        if *counts == ByState::default() {
            self.by_queue.remove(queue);
        }
    }

    fn sum_up(&mut self, counted: Vec<(QueueName, StateKind, u64)>) {
        for (queue, kind, count) in counted {
            self.by_queue.entry(queue).or_default()[kind as usize] += count;
        }
    }

    pub(crate) fn queues(&self) -> Vec<QueueCounts> {
        let queues = self.by_queue.iter();
        queues
            .map(|(queue, by_state)| QueueCounts {
                queue: queue.clone(),
                by_state: *by_state,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use countwheel_durable::store::conformance::varied_records;
    use countwheel_durable::store::{Before, Change, Shard};

    use super::*;
    use crate::hash::{KEY_BYTES, NameHash};

    fn pages(counts: &mut Counts, seq: i64, until: usize) {
        while counts.counted.len() < until {
            let by_state = Vec::new();
            counts.add_page(Counted { seq, by_state });
        }
    }

    /// A page is read after the turn of a change or before it, and added before or after.
    #[test]
    fn a_change_counts_once_whenever_its_page_is_read() {
        let hash = NameHash::new(&[3; KEY_BYTES]);
        let record = varied_records().swap_remove(0);
        let (queue, kind) = (record.name.queue.clone(), record.state.kind());
        let changes = [Change::Put {
            record: Box::new(record),
            before: Before::Absent,
        }];
        let turn = Turn::of(Shard::ONLY, &changes, &hash);
        let page = usize::from(turn.names[0].hash.0[0]);
        for (read_at, is_in_page, added_first) in [
            (4, false, true),
            (4, false, false),
            (5, true, true),
            (5, true, false),
        ] {
            let mut counts = Counts::begun(4, None);
            pages(&mut counts, 4, page);
            let of_page = vec![(queue.clone(), kind, 1)];
            let read = Counted {
                seq: read_at,
                by_state: if is_in_page { of_page } else { Vec::new() },
            };
            if added_first {
                counts.add_page(read);
                counts.change(&turn, &[None], 5);
            } else {
                counts.change(&turn, &[None], 5);
                counts.add_page(read);
            }
            assert!(!counts.are_exact() || page == PAGES - 1);
            assert!(counts.to_bytes().is_none() || page == PAGES - 1);
            pages(&mut counts, 5, PAGES);
            let queues = counts.queues();
            assert_eq!(queues.len(), 1);
            assert_eq!(
                queues[0].of(kind),
                1,
                "{read_at} {is_in_page} {added_first}"
            );
            let saved = counts.to_bytes().unwrap();
            let again = Counts::of_bytes(&saved, 5, None).unwrap();
            assert_eq!(again.queues(), queues);
            for len in 0..saved.len() {
                assert!(Counts::of_bytes(&saved[..len], 5, None).is_none());
            }
        }
    }
}
