//! The correctness check. A peer that loses a timer, or fires it early, late or after its cancel,
//! is not measured. The check also finds out the order in which timers fire.

use std::collections::BTreeMap;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use crate::competitor::{Competitor, Fired, Name, SortedMap, Task};
use crate::random::{Delays, SplitMix, index};

/// The order in which one advance fires timers. Across advances time orders them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    /// By deadline, equal deadlines in the order of insertion.
    Total,
    /// By deadline, ties in any order.
    Deadline,
    /// None that could be relied upon.
    None,
    /// It does not say what it fires, so there is none to see.
    Unknown,
}

impl Order {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Total => "deadline, then insertion",
            Self::Deadline => "deadline",
            Self::None => "none within an advance",
            Self::Unknown => "not visible",
        }
    }
}

/// What the check found out about one competitor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) competitor: Name,
    /// The weakest order seen over all seeds.
    pub(crate) order: Option<Order>,
    /// What went wrong, if anything did.
    pub(crate) failure: Option<String>,
}

/// Checks one competitor over `seeds` seeds of `operations` operations.
pub(crate) fn check(name: Name, seeds: u64, operations: u64) -> Verdict {
    let mut order = None;
    for seed in 0..seeds {
        match name.dispatch(Check { seed, operations }) {
            Ok(seen) => order = order.max(Some(seen)),
            Err(error) => {
                return Verdict {
                    competitor: name,
                    order,
                    failure: Some(format!("seed {seed}: {error}")),
                };
            }
        }
    }
    Verdict {
        competitor: name,
        order,
        failure: None,
    }
}

struct Check {
    seed: u64,
    operations: u64,
}

impl Task for Check {
    type Output = anyhow::Result<Order>;

    fn run<C: Competitor>(self) -> Self::Output {
        let mut both = Both::<C>::new(self.seed);
        for _ in 0..self.operations {
            both.step()?;
        }
        both.advance_by(1 << 33)?;
        let nothing_left = both.live.is_empty();
        for handle in both.late.into_iter().chain(both.live.into_values()) {
            both.subject.release(handle);
        }
        ensure!(nothing_left, "timers are left after the last deadline");
        Ok(if C::SILENT {
            Order::Unknown
        } else {
            both.order
        })
    }
}

/// A competitor and the sorted map, doing the same.
struct Both<C: Competitor> {
    numbers: SplitMix,
    far: bool,
    subject: C,
    model: SortedMap,
    now: u64,
    next_id: u64,
    /// Handles of pending timers in the subject, and in the model.
    live: BTreeMap<u64, C::Handle>,
    model_live: BTreeMap<u64, (u64, u64)>,
    /// Handles of timers that have fired, whose cancel has to find nothing.
    late: Vec<C::Handle>,
    /// Copies of handles that have been cancelled already.
    stale: Vec<C::Handle>,
    order: Order,
}

impl<C: Competitor> Both<C> {
    /// Every other seed leaves far delays out: some competitors take another shape then.
    fn new(seed: u64) -> Self {
        let far = seed.is_multiple_of(2);
        let longest = if far {
            Delays::LogUniform
        } else {
            Delays::Uniform
        };
        Self {
            numbers: SplitMix::new(seed),
            far,
            subject: C::new(longest.longest()),
            model: SortedMap::new(longest.longest()),
            now: 0,
            next_id: 0,
            live: BTreeMap::new(),
            model_live: BTreeMap::new(),
            late: Vec::new(),
            stale: Vec::new(),
            order: Order::Total,
        }
    }

    fn step(&mut self) -> anyhow::Result<()> {
        match self.numbers.below(16) {
            0..6 => self.schedule(Delays::Uniform),
            6..8 if self.far => self.schedule(Delays::LogUniform),
            8 => self.schedule_ties(),
            9..12 if C::CANCELS => self.cancel_one()?,
            12 if C::CANCELS => self.cancel_stale()?,
            13 => self.advance_by_magnitude()?,
            _ => self.advance_by(1)?,
        }
        Ok(())
    }

    fn schedule(&mut self, delays: Delays) {
        let delay = delays.draw(&mut self.numbers);
        if delay < C::DELAY_LIMIT {
            self.schedule_after(delay);
        }
    }

    /// Several timers for one tick, which was or will be the deadline of others too.
    fn schedule_ties(&mut self) {
        let deadline = (self.now / 64 + 1 + self.numbers.below(4)) * 64;
        for _ in 0..4 {
            self.schedule_after(deadline - self.now);
        }
    }

    fn schedule_after(&mut self, delay: u64) {
        let id = self.next_id;
        self.next_id += 1;
        self.live.insert(id, self.subject.schedule(delay, id));
        self.model_live.insert(id, self.model.schedule(delay, id));
    }

    fn cancel_one(&mut self) -> anyhow::Result<()> {
        let id = self.numbers.below(self.next_id + 1);
        let Some((&id, _)) = self.live.range(id..).next() else {
            return Ok(());
        };
        if let (Some(handle), Some(key)) = (self.live.remove(&id), self.model_live.remove(&id)) {
            self.stale.extend(C::copy(&handle));
            self.model.cancel(key);
            ensure!(self.subject.cancel(handle), "timer {id} was still to come");
        }
        Ok(())
    }

    /// Cancels a timer that has fired, and one a second time.
    fn cancel_stale(&mut self) -> anyhow::Result<()> {
        for handles in [&mut self.late, &mut self.stale] {
            if handles.is_empty() {
                continue;
            }
            let chosen = index(self.numbers.below(handles.len() as u64));
            let cancelled = self.subject.cancel(handles.swap_remove(chosen));
            ensure!(!cancelled, "a timer that was gone has been cancelled");
        }
        Ok(())
    }

    fn advance_by_magnitude(&mut self) -> anyhow::Result<()> {
        let magnitude = self.numbers.below(22);
        let ticks = 1 + self.numbers.below(1 << magnitude);
        self.advance_by(ticks)
    }

    fn advance_by(&mut self, ticks: u64) -> anyhow::Result<()> {
        self.now += ticks;
        let now = self.now;
        let (mut fired, mut expected) = (Vec::new(), Vec::new());
        self.subject.advance_to(now, &mut fired);
        self.model.advance_to(now, &mut expected);
        if C::SILENT {
            let ids = self.live.iter().filter(|(_, handle)| C::has_fired(handle));
            ids.for_each(|(&id, _)| fired.fire(id));
        }
        self.note_order(&fired, &expected);

        for id in &fired {
            self.late.extend(self.live.remove(id));
        }
        let sorted = |ids: &[u64]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        ensure!(
            sorted(&fired) == sorted(&expected),
            "at tick {now} fired {fired:?}, but due was {expected:?}"
        );
        for id in expected {
            self.model_live.remove(&id);
        }
        Ok(())
    }

    fn note_order(&mut self, fired: &[u64], expected: &[u64]) {
        if fired == expected {
            return;
        }
        let deadline = |id| self.model_live.get(id).map(|&(deadline, _)| deadline);
        let seen = if fired.is_sorted_by_key(deadline) {
            Order::Deadline
        } else {
            Order::None
        };
        self.order = self.order.max(seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Entrant as _;

    #[test]
    fn every_competitor_fires_what_the_sorted_map_fires() {
        for &name in Name::all() {
            let verdict = check(name, 4, 3_000);
            assert_eq!(verdict.failure, None, "{name:?}");
        }
    }

    #[test]
    fn our_wheels_keep_the_total_order() {
        for name in Name::all().iter().copied().filter(|name| name.is_ours()) {
            assert_eq!(check(name, 4, 3_000).order, Some(Order::Total));
        }
    }
}
