//! Who comes and who goes: timers inserted in random order of their deadlines, and delivered in
//! exactly that order, from counters alone.

use serde::{Deserialize, Serialize};

use crate::item::{Item, Op};
use crate::numbers::Permutation;

/// The first deadline of all: 2035, far ahead of any clock that runs this.
pub(crate) const FIRST_DUE_MS: u64 = 2_051_222_400_000;

/// A steady stream of timers, `live` at a time.
///
/// Timer number `n` is in block `n / live` and gets a random place in that block; places are
/// delivered in order, the block before while this one is inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Stream {
    /// 0 or 1: two streams never share a key.
    tag: u64,
    pub(crate) live: u64,
    /// When place 0 is due.
    from_ms: u64,
    /// From one place to the next.
    every_ms: u64,
    /// How many were inserted.
    pub(crate) inserted: u64,
    /// How many places deliveries have passed.
    pub(crate) delivered: u64,
    /// How many of those nobody had been inserted in.
    skipped: u64,
}

impl Stream {
    pub(crate) fn new(tag: u64, live: u64, from_ms: u64, every_ms: u64) -> Self {
        Self {
            tag,
            live,
            from_ms,
            every_ms,
            inserted: 0,
            delivered: 0,
            skipped: 0,
        }
    }

    fn permutation(&self, block: u64) -> Permutation {
        Permutation::new(self.live, block.wrapping_mul(2).wrapping_add(self.tag))
    }

    /// The place of timer number `number` in the order of deadlines.
    fn place_of(&self, number: u64) -> u64 {
        let (block, within) = (number / self.live, number % self.live);
        block * self.live + self.permutation(block).of(within)
    }

    /// Timer number `number`.
    pub(crate) fn item(&self, number: u64) -> Item {
        Item {
            id: number << 1 | self.tag,
            due_ms: self.from_ms + self.place_of(number) * self.every_ms,
        }
    }

    /// The timer in place number `place`.
    fn item_at(&self, place: u64) -> Item {
        let (block, within) = (place / self.live, place % self.live);
        self.item(block * self.live + self.permutation(block).inverse(within))
    }

    /// Whether it was inserted and not delivered.
    pub(crate) fn is_live(&self, number: u64) -> bool {
        number < self.inserted && self.place_of(number) >= self.delivered
    }

    pub(crate) fn insert(&mut self) -> Op {
        self.inserted += 1;
        Op::Insert(self.item(self.inserted - 1))
    }

    /// The oldest goes. Only while there are `live`, or after the last insert of a block: else
    /// the oldest may still be to come.
    pub(crate) fn deliver(&mut self) -> Op {
        self.delivered += 1;
        Op::Deliver(self.item_at(self.delivered - 1))
    }

    /// The oldest goes, or a place is passed whose timer was never inserted. For the end of a
    /// stream: what is inserted later may get a place that was passed, and is not seen as live.
    pub(crate) fn deliver_or_pass(&mut self) -> Option<Op> {
        let item = self.item_at(self.delivered);
        self.delivered += 1;
        let was_inserted = item.id >> 1 < self.inserted;
        self.skipped += u64::from(!was_inserted);
        was_inserted.then_some(Op::Deliver(item))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        self.inserted - (self.delivered - self.skipped)
    }

    /// The deadline of the place delivered next.
    pub(crate) fn next_due_ms(&self) -> u64 {
        self.from_ms + self.delivered * self.every_ms
    }
}

/// Which timers are inserted in the steady state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pattern {
    /// Each waits behind as many others as there are.
    AllFar,
    /// Four in five are due within the next steps, the fifth is far.
    NearHeavy,
}

/// Milliseconds between two far timers.
const FAR_EVERY_MS: u64 = 40;
/// Four near ones to each far one.
const NEAR_EVERY_MS: u64 = FAR_EVERY_MS / 4;

/// All timers of one candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Traffic {
    pub(crate) far: Stream,
    pub(crate) near: Option<Stream>,
    step: u64,
}

impl Traffic {
    pub(crate) fn new(live: u64) -> Self {
        Self {
            far: Stream::new(0, live, FIRST_DUE_MS, FAR_EVERY_MS),
            near: None,
            step: 0,
        }
    }

    /// Adds a stream of near timers, `live` at a time, from where the far ones have got to.
    pub(crate) fn begin_near(&mut self, live: u64) -> &mut Stream {
        let from = self.far.next_due_ms();
        self.near.insert(Stream::new(1, live, from, NEAR_EVERY_MS))
    }

    /// The next `count` changes of the steady state: one inserted, the oldest delivered.
    pub(crate) fn steady(&mut self, pattern: Pattern, count: usize, ops: &mut Vec<Op>) {
        ops.clear();
        while ops.len() < count {
            self.step += 1;
            let stream = match (&mut self.near, pattern) {
                (Some(near), Pattern::NearHeavy) if !self.step.is_multiple_of(5) => near,
                _ => &mut self.far,
            };
            ops.push(stream.insert());
            ops.push(stream.deliver());
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        self.far.len() + self.near.map_or(0, |near| near.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Does to a map what the changes say, and refuses a delivery of what is not the oldest.
    fn apply(ops: &[Op], map: &mut BTreeMap<u64, u64>) {
        for op in ops {
            match *op {
                Op::Insert(item) => assert_eq!(map.insert(item.due_ms, item.id), None),
                Op::Deliver(item) => assert_eq!(map.remove(&item.due_ms), Some(item.id)),
                Op::Move(_) | Op::Remove(_) => unreachable!(),
            }
        }
    }

    #[test]
    fn the_oldest_is_delivered_and_there_are_always_as_many() {
        let mut traffic = Traffic::new(1_000);
        let mut map = BTreeMap::new();
        let load: Vec<Op> = (0..1_000).map(|_| traffic.far.insert()).collect();
        apply(&load, &mut map);
        let mut ops = Vec::new();
        for _ in 0..50 {
            let oldest = *map.keys().next().unwrap();
            assert_eq!(oldest, traffic.far.next_due_ms());
            traffic.steady(Pattern::AllFar, 256, &mut ops);
            apply(&ops, &mut map);
            assert_eq!(map.len(), 1_000);
        }
        assert!((0..10_000).filter(|&n| traffic.far.is_live(n)).count() == 1_000);
    }

    #[test]
    fn the_end_of_a_stream_leaves_nothing_behind() {
        let mut traffic = Traffic::new(1_000);
        let mut map = BTreeMap::new();
        let load: Vec<Op> = (0..1_300).map(|_| traffic.far.insert()).collect();
        apply(&load, &mut map);
        while traffic.far.len() > 0 {
            let ops: Vec<Op> = traffic.far.deliver_or_pass().into_iter().collect();
            apply(&ops, &mut map);
            assert_eq!(map.len() as u64, traffic.far.len());
        }
        assert!(map.is_empty() && (0..1_300).all(|n| !traffic.far.is_live(n)));
    }

    #[test]
    fn near_ones_go_before_the_far_ones_do() {
        let mut traffic = Traffic::new(10_000);
        let mut map = BTreeMap::new();
        let mut ops: Vec<Op> = (0..10_000).map(|_| traffic.far.insert()).collect();
        let near = traffic.begin_near(100);
        ops.extend((0..100).map(|_| near.insert()));
        let mut by_key = BTreeMap::new();
        let mut lags = Vec::new();
        for batch in 0..40_u64 {
            for op in &ops {
                let item = op.item();
                match op {
                    Op::Insert(_) => drop(by_key.insert(item.id, batch)),
                    _ if item.id & 1 == 1 => lags.push(batch - by_key[&item.id]),
                    _ => {}
                }
                // Near and far may share a deadline.
                match op {
                    Op::Insert(_) => *map.entry(item.due_ms).or_insert(0) += 1,
                    _ => *map.get_mut(&item.due_ms).unwrap() -= 1,
                }
            }
            traffic.steady(Pattern::NearHeavy, 256, &mut ops);
        }
        assert!(lags.len() > 3_000 && lags.iter().all(|&lag| lag <= 3));
        assert!(map.values().all(|&count: &i32| count >= 0));
        assert_eq!(traffic.len(), 10_100);
    }
}
