//! How many timers each queue has in each state, as the owner of a shard keeps it.
//!
//! A shard with few timers is counted while it is taken. One with many is counted page by page, while
//! it is at work: a page is what has a hash that begins with a certain byte. Each page is one statement,
//! which also says after which turn it was read. What later turns change of it is added.
//!
//! Done timers are counted by the slice until which they are kept, and count no more once it is over:
//! nobody says when they are forgotten.

use std::collections::BTreeMap;

use countwheel_durable::store::QueueCounts;
use countwheel_durable::{QueueName, StateKind};
use countwheel_time::Timestamp;

use crate::bits::Bits;
use crate::commit::Turn;
use crate::planted::planted;
use crate::ring::{Ring, Slots};
use crate::session::{Counted, Kind};

/// Into how many pages a shard is divided: one for each first byte of a hash.
const PAGES: usize = 256;

/// The version of saved counts, their first byte.
const VERSION: u8 = 2;

/// Saved counts are not longer: those of more queues are counted anew.
const SAVED_MAX: usize = 1 << 20;

/// The counts of a shard, and which of its pages they have.
#[derive(Clone)]
pub(crate) struct Counts {
    /// Without those that are done.
    by_queue: BTreeMap<QueueName, ByState>,
    done: BTreeMap<u64, BTreeMap<QueueName, u64>>,
    ring: Ring,
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
    before: Option<Kind>,
    after: Option<Kind>,
}

/// As they are saved.
type Saved<Q> = (Vec<(Q, ByState)>, Vec<(u64, Q, u64)>);

impl Counts {
    /// Of a shard of which no page was counted, after the turn `seq`.
    pub(crate) fn begun(seq: i64, made_by: Option<Bits>, ring: Ring) -> Self {
        Self {
            by_queue: BTreeMap::new(),
            done: BTreeMap::new(),
            ring,
            counted: Vec::with_capacity(PAGES),
            since: Vec::new(),
            seq,
            made_by,
        }
    }

    /// Of a shard that was counted in one statement.
    pub(crate) fn whole(counted: Counted, made_by: Option<Bits>, ring: Ring) -> Self {
        let mut counts = Self::begun(counted.seq, made_by, ring);
        counts.counted = vec![counted.seq; PAGES];
        counts.sum_up(counted.by_kind);
        counts
    }

    /// What [`to_bytes`](Self::to_bytes) has saved after the turn `seq`, if this program can read it.
    pub(crate) fn of_bytes(
        bytes: &[u8],
        seq: i64,
        made_by: Option<Bits>,
        ring: Ring,
    ) -> Option<Self> {
        let (&version, content) = bytes.split_first()?;
        if version != VERSION {
            return None;
        }
        let ((by_queue, done), rest): (Saved<String>, _) =
            postcard::take_from_bytes(content).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let mut counts = Self::begun(seq, made_by, ring);
        counts.counted = vec![seq; PAGES];
        for (queue, by_state) in by_queue {
            let queue = QueueName::from_text(&queue).ok()?;
            counts.by_queue.insert(queue, by_state);
        }
        for (slice, queue, count) in done {
            let of_slice = counts.done.entry(slice).or_default();
            of_slice.insert(QueueName::from_text(&queue).ok()?, count);
        }
        Some(counts)
    }

    /// What is saved of them; `None` while pages are missing, and if they are too long.
    pub(crate) fn to_bytes(&self) -> Option<Vec<u8>> {
        if !self.are_exact() {
            return None;
        }
        let queues = self.by_queue.iter();
        let queues = queues.map(|(queue, by_state)| (queue.as_str(), *by_state));
        let done = self.done.iter().flat_map(|(slice, queues)| {
            let queues = queues.iter();
            queues.map(|(queue, count)| (*slice, queue.as_str(), *count))
        });
        let saved: Saved<&str> = (queues.collect(), done.collect());
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
        self.sum_up(page.by_kind);
        self.counted.push(at);
        for changed in std::mem::take(&mut self.since) {
            if changed.seq > at && !planted!(PostgresPageIsOld) {
                self.count(&changed.queue, changed.before, changed.after);
            }
        }
    }

    /// Counts what the turn `seq` has changed, whose names counted so before.
    pub(crate) fn change(&mut self, turn: &Turn<'_>, before: &[Option<Kind>], seq: i64) {
        for (named, before) in turn.names.iter().zip(before) {
            let ring = self.ring;
            let after = named.record.map(|record| Kind::of_record(record, ring));
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

    fn count(&mut self, queue: &QueueName, before: Option<Kind>, after: Option<Kind>) {
        if let Some(kind) = before {
            self.add(queue, kind, -1);
        }
        if let Some(kind) = after {
            self.add(queue, kind, 1);
        }
    }

    /// Adds to one number, and drops what has come to nothing.
    fn add(&mut self, queue: &QueueName, kind: Kind, count: i64) {
        match kind {
            Kind::Not(state) => {
                let counts = of_queue(&mut self.by_queue, queue);
                let number = &mut counts[state as usize];
                *number = number.saturating_add_signed(count);
                if *counts == ByState::default() {
                    self.by_queue.remove(queue);
                }
            }
            Kind::Done(slice) => {
                let queues = self.done.entry(slice).or_default();
                let number = of_queue(queues, queue);
                *number = number.saturating_add_signed(count);
                if *number == 0 {
                    queues.remove(queue);
                }
                if queues.is_empty() {
                    self.done.remove(&slice);
                }
            }
        }
    }

    fn sum_up(&mut self, counted: Vec<(QueueName, Kind, u64)>) {
        for (queue, kind, count) in counted {
            self.add(&queue, kind, i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// The tables of the ring in which the shard may have records: all, while that is not counted. What is
    /// past may be there until its table is emptied.
    pub(crate) fn slots(&self) -> Slots {
        match self.are_exact() {
            true => Slots::of(self.done.keys().copied()),
            false => Slots::ALL,
        }
    }

    /// The counts at that time.
    pub(crate) fn queues(&self, now: Timestamp) -> Vec<QueueCounts> {
        let first = match planted!(PostgresForgottenCount) {
            true => 0,
            false => self.ring.slice(now),
        };
        let mut queues = self.by_queue.clone();
        for (queue, count) in self.done.range(first..).flat_map(|(_, queues)| queues) {
            of_queue(&mut queues, queue)[StateKind::Done as usize] += count;
        }
        let queues = queues.into_iter();
        queues
            .map(|(queue, by_state)| QueueCounts { queue, by_state })
            .collect()
    }

    /// The table of that slice was seen empty once the slice was over.
    pub(crate) fn emptied(&mut self, slice: u64) {
        let slot = Ring::slot(slice);
        self.done
            .retain(|other, _| *other > slice || Ring::slot(*other) != slot);
    }
}

/// The number of a queue, which may be new.
fn of_queue<'a, N: Default>(
    numbers: &'a mut BTreeMap<QueueName, N>,
    queue: &QueueName,
) -> &'a mut N {
    if !numbers.contains_key(queue) {
        numbers.insert(queue.clone(), N::default());
    }
    numbers.entry(queue.clone()).or_default()
}

#[cfg(test)]
mod tests {
    use countwheel_durable::store::conformance::varied_records;
    use countwheel_durable::store::{Before, Change, Shard};

    use std::time::Duration;

    use super::*;
    use crate::hash::{KEY_BYTES, NameHash};

    fn pages(counts: &mut Counts, seq: i64, until: usize) {
        while counts.counted.len() < until {
            let by_kind = Vec::new();
            counts.add_page(Counted { seq, by_kind });
        }
    }

    fn ring() -> Ring {
        Ring::of(Duration::from_secs(7))
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    /// A page is read after the turn of a change or before it, and added before or after.
    #[test]
    fn a_change_counts_once_whenever_its_page_is_read() {
        let hash = NameHash::new(&[3; KEY_BYTES]);
        let record = varied_records().swap_remove(0);
        let (queue, state) = (record.name.queue.clone(), record.state.kind());
        let kind = Kind::Not(state);
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
            let mut counts = Counts::begun(4, None, ring());
            pages(&mut counts, 4, page);
            let of_page = vec![(queue.clone(), kind, 1)];
            let read = Counted {
                seq: read_at,
                by_kind: if is_in_page { of_page } else { Vec::new() },
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
            let queues = counts.queues(Timestamp::EPOCH);
            assert_eq!(queues.len(), 1);
            assert_eq!(
                queues[0].of(state),
                1,
                "{read_at} {is_in_page} {added_first}"
            );
            let saved = counts.to_bytes().unwrap();
            let again = Counts::of_bytes(&saved, 5, None, ring()).unwrap();
            assert_eq!(again.queues(Timestamp::EPOCH), queues);
            for len in 0..saved.len() {
                assert!(Counts::of_bytes(&saved[..len], 5, None, ring()).is_none());
            }
        }
    }

    #[test]
    fn done_timers_count_until_their_slice_is_over() {
        let queue = QueueName::from_text("q").unwrap();
        let done = |slice, count| (queue.clone(), Kind::Done(slice), count);
        let by_kind = vec![
            done(9, 5),
            done(10, 7),
            (queue.clone(), Kind::Not(StateKind::Dead), 1),
        ];
        let mut counts = Counts::whole(Counted { seq: 1, by_kind }, None, ring());
        for again in [false, true] {
            if again {
                let saved = counts.to_bytes().unwrap();
                counts = Counts::of_bytes(&saved, 1, None, ring()).unwrap();
            }
            for (seconds, expected) in [(0, 12), (9, 12), (10, 7), (11, 0)] {
                let queues = counts.queues(at(seconds));
                assert_eq!(queues[0].by_state, [0, 0, expected, 1], "{seconds}");
            }
            assert_eq!(counts.slots(), Slots::of([9, 10]));
        }
        // What is past may be there until somebody has seen that it is not.
        counts.emptied(9);
        assert_eq!(counts.slots(), Slots::of([10]));
        counts.emptied(1);
        assert_eq!(
            counts.slots(),
            Slots::of([10]),
            "that was the slice of before"
        );
        counts.emptied(19);
        assert_eq!(counts.slots(), Slots::of([]));
        assert_eq!(Counts::begun(1, None, ring()).slots(), Slots::ALL);
    }
}
