//! W2: timeouts of requests. N timers pend. Each step schedules one timer and cancels the timer
//! that is N older, unless its request is one of the 1 % without an answer. A tick passes every
//! 1000 steps.

use anyhow::ensure;

use super::{Figures, figures, finish, room};
use crate::competitor::{Competitor, Tally};
use crate::random::{Delays, SplitMix, index};
use crate::stopwatch::Stopwatch;

/// How many steps are timed. Tests are not optimised, and only want to get through.
pub(super) const STEPS: u64 = if cfg!(test) { 20_000 } else { 2_000_000 };
pub(super) const STEPS_PER_TICK: u64 = 1000;

pub(super) fn measure<C: Competitor>(timers: u64) -> anyhow::Result<Figures> {
    // Every timer of the beginning has been replaced before the watch starts.
    let warm_up = STEPS.max(timers);
    let mut pairs = Pairs::<C>::new(timers, warm_up + STEPS);
    pairs.run(warm_up, &mut Untimed);
    let watch = Stopwatch::start();
    pairs.run(STEPS, &mut Untimed);
    let pair = watch.nanoseconds_per(STEPS);

    pairs.finish()?;
    Ok(figures([("w2", pair)]))
}

/// What a step does, for who wants to know how long it took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Schedule,
    Cancel,
    Advance,
}

/// Stands around each call.
pub(super) trait Probe {
    fn time<R>(&mut self, kind: Call, call: impl FnOnce() -> R) -> R;
}

/// Lets every call pass.
pub(super) struct Untimed;

impl Probe for Untimed {
    #[inline]
    fn time<R>(&mut self, _kind: Call, call: impl FnOnce() -> R) -> R {
        call()
    }
}

/// The workload on its way.
pub(super) struct Pairs<C: Competitor> {
    competitor: C,
    /// Of each step: the delay, and whether the older timer is cancelled.
    delays: Vec<u32>,
    answered: Vec<bool>,
    ring: Vec<Option<C::Handle>>,
    place: usize,
    step: u64,
    fired: Tally,
    /// Timers whose cancel came too late.
    late: u64,
}

impl<C: Competitor> Pairs<C> {
    /// N timers, scheduled at tick 0, and the plan for `steps` steps.
    pub(super) fn new(timers: u64, steps: u64) -> Self {
        let (delays, answered) = plan(timers, steps);
        let mut competitor = C::new(Delays::Uniform.longest());
        let mut ring = room(timers);
        for ((id, &delay), handle) in (0..).zip(&delays).zip(&mut ring) {
            *handle = Some(competitor.schedule(u64::from(delay), id));
        }
        Self {
            competitor,
            delays,
            answered,
            ring,
            place: 0,
            step: 0,
            fired: Tally::default(),
            late: 0,
        }
    }

    pub(super) fn run(&mut self, steps: u64, probe: &mut impl Probe) {
        let timers = self.ring.len();
        let first = index(self.step);
        let delays = self.delays[timers + first..].iter();
        let competitor = &mut self.competitor;
        for (&delay, &answered) in delays.zip(&self.answered[first..]).take(index(steps)) {
            let (delay, id) = (u64::from(delay), timers as u64 + self.step);
            let new = probe.time(Call::Schedule, || competitor.schedule(delay, id));
            if let Some(old) = self.ring[self.place].replace(new) {
                if answered {
                    let in_time = probe.time(Call::Cancel, || competitor.cancel(old));
                    self.late += u64::from(!in_time);
                } else {
                    competitor.release(old);
                }
            }
            self.place = (self.place + 1) % timers;
            self.step += 1;
            if self.step.is_multiple_of(STEPS_PER_TICK) {
                let (now, fired) = (self.step / STEPS_PER_TICK, &mut self.fired);
                probe.time(Call::Advance, || competitor.advance_to(now, fired));
            }
        }
    }

    /// Compares the number of timers that fired with what arithmetic says.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        let fired = if C::SILENT {
            let pending = self.ring.iter().flatten();
            let fired = pending.chain(self.competitor.released());
            self.late + fired.filter(|handle| C::has_fired(handle)).count() as u64
        } else {
            self.fired.count
        };
        let expected = expected(self.ring.len() as u64, &self.delays, &self.answered);
        finish(self.competitor, self.ring);
        ensure!(
            fired == expected,
            "{fired} timers fired; it should have been {expected}"
        );
        Ok(())
    }
}

fn plan(timers: u64, steps: u64) -> (Vec<u32>, Vec<bool>) {
    let mut numbers = SplitMix::new(44);
    let answered = (0..steps).map(|_| numbers.below(100) != 0).collect();
    (Delays::Uniform.list(index(timers + steps)), answered)
}

/// How many timers fire: those whose deadline comes before their cancel and before the end.
fn expected(timers: u64, delays: &[u32], answered: &[bool]) -> u64 {
    let end = answered.len() as u64 / STEPS_PER_TICK;
    let timer_fires = |(number, &delay): (u64, &u32)| {
        // The first N are there before the first step; the others come one a step.
        let scheduled = number.saturating_sub(timers) / STEPS_PER_TICK;
        let cancelled = match answered.get(index(number)) {
            Some(true) => (number / STEPS_PER_TICK).min(end),
            Some(false) | None => end,
        };
        scheduled + u64::from(delay) <= cancelled
    };
    (0..)
        .zip(delays)
        .filter(|&timer| timer_fires(timer))
        .count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::competitor::SortedMap;

    #[test]
    fn of_the_published_workload_68184_timers_fire() {
        let (delays, answered) = plan(1_000_000, 4_000_000);
        assert_eq!(expected(1_000_000, &delays, &answered), 68_184);
    }

    #[test]
    fn the_sorted_map_agrees_with_the_arithmetic() {
        let mut pairs = Pairs::<SortedMap>::new(20_000, 100_000);
        pairs.run(100_000, &mut Untimed);
        assert!(pairs.late > 0, "some cancels come too late");
        pairs.finish().unwrap();
    }
}
