//! S4: get, move and remove by random keys, each key once.

use super::{BATCH, Figures};
use crate::item::{Item, Op};
use crate::numbers::Permutation;
use crate::peer::{Name, Peer, Skill};
use crate::statistics::Durations;
use crate::stopwatch::Stopwatch;
use crate::traffic::Stream;

/// Each part takes no more than this share of the keys, so that the next one finds some.
const PART: u64 = 8;

/// Live timers in random order, none twice.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    stream: Stream,
    order: Permutation,
    next: u64,
    end: u64,
}

impl Keys {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            order: Permutation::new(stream.inserted.max(1), 97),
            next: 0,
            end: stream.inserted,
            stream,
        }
    }

    /// Leaves out a quarter, for those who look afterwards at what nobody has touched.
    pub(crate) fn but_a_quarter(mut self) -> Self {
        self.end -= self.end / 4;
        self
    }

    /// How far it has got.
    pub(crate) fn position(&self) -> u64 {
        self.next
    }

    /// Leaves out those before `position`.
    pub(crate) fn skip_to(&mut self, position: u64) {
        self.next = position;
    }
}

impl Iterator for Keys {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        while self.next < self.end {
            let number = self.order.of(self.next);
            self.next += 1;
            if self.stream.is_live(number) {
                return Some(self.stream.item(number));
            }
        }
        None
    }
}

/// Finds by key for `seconds`.
pub(crate) fn get(
    peer: &mut dyn Peer,
    keys: &mut Keys,
    seconds: f64,
    figure: &str,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let mut durations = Durations::default();
    let end = keys.next + keys.stream.inserted / PART;
    while durations.seconds() < seconds && keys.next < end {
        let Some(item) = keys.next() else { break };
        let watch = Stopwatch::start();
        let found = peer.get(item)?;
        durations.record(watch.nanoseconds());
        let right = found.is_some_and(|found| found.payload == item.payload());
        anyhow::ensure!(
            right,
            "REFUSED: record {} was not found by its key",
            item.id
        );
    }
    let rate = durations.len() as f64 / durations.seconds();
    figures.insert(figure.to_owned(), rate);
    Ok(())
}

/// Moves, then removes, each for `seconds`, in batches. Gives how many were removed.
pub(crate) fn change(
    name: Name,
    peer: &mut dyn Peer,
    keys: &mut Keys,
    seconds: f64,
    figures: &mut Figures,
) -> anyhow::Result<u64> {
    if name.can(Skill::Move) {
        batches(peer, keys, seconds, "move_per_s", Op::Move, figures)?;
    }
    batches(peer, keys, seconds, "remove_per_s", Op::Remove, figures)
}

fn batches(
    peer: &mut dyn Peer,
    keys: &mut Keys,
    seconds: f64,
    figure: &str,
    op: impl Fn(Item) -> Op,
    figures: &mut Figures,
) -> anyhow::Result<u64> {
    let mut durations = Durations::default();
    let mut count = 0;
    let end = keys.next + keys.stream.inserted / PART;
    while durations.seconds() < seconds && keys.next < end {
        let ops: Vec<Op> = keys.by_ref().take(BATCH).map(&op).collect();
        if ops.is_empty() {
            break;
        }
        let watch = Stopwatch::start();
        peer.commit(&ops)?;
        durations.record(watch.nanoseconds());
        count += ops.len() as u64;
    }
    figures.insert(figure.to_owned(), count as f64 / durations.seconds());
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::traffic::Traffic;

    #[test]
    fn every_live_timer_is_named_once() {
        let mut traffic = Traffic::new(100);
        for _ in 0..100 {
            traffic.far.insert();
        }
        for _ in 0..30 {
            traffic.far.deliver();
        }
        let ids: Vec<u64> = Keys::new(traffic.far).map(|item| item.id).collect();
        assert_eq!(ids.len(), 70);
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 70);

        let mut some = Keys::new(traffic.far).but_a_quarter();
        let mut both: Vec<u64> = some.by_ref().map(|item| item.id).collect();
        let mut others = Keys::new(traffic.far);
        others.skip_to(some.position());
        both.extend(others.map(|item| item.id));
        assert_eq!(both, ids);
    }
}
