//! W3: timers that fire, and ticks without a deadline.

use anyhow::ensure;

use super::{Figures, figures, finish, room};
use crate::competitor::{Competitor, Tally};
use crate::random::{Delays, index};
use crate::stopwatch::Stopwatch;

/// The jump that W3h and W3s advance by, and how many of them pass every deadline.
const JUMP: u64 = 1 << 20;
const JUMPS: u64 = 4096;

const EMPTY_TICKS: u64 = 1_000_000;

/// The longest uniform delay, and one tick more.
pub(super) const UNIFORM_TICKS: u64 = 60_001;

/// W3u, in nanoseconds a timer.
pub(super) fn tick_by_tick<C: Competitor>(timers: u64) -> anyhow::Result<Figures> {
    let mut line = Line::<C>::new(timers, Delays::Uniform);
    let watch = Stopwatch::start();
    line.advance(1, UNIFORM_TICKS);
    let each = watch.nanoseconds_per(timers);
    line.finish(timers)?;
    Ok(figures([("w3u", each)]))
}

/// W3h, in nanoseconds a timer.
pub(super) fn in_jumps<C: Competitor>(timers: u64) -> anyhow::Result<Figures> {
    let mut line = Line::<C>::new(timers, Delays::LogUniform);
    let watch = Stopwatch::start();
    line.advance(JUMP, JUMPS);
    let each = watch.nanoseconds_per(timers);
    line.finish(timers)?;
    Ok(figures([("w3h", each)]))
}

/// W3s, in milliseconds for all of it.
pub(super) fn sparse<C: Competitor>(timers: u64) -> anyhow::Result<Figures> {
    let mut line = Line::<C>::new(timers, Delays::Sparse);
    let watch = Stopwatch::start();
    line.advance(JUMP, JUMPS);
    let milliseconds = watch.nanoseconds_per(1_000_000);
    line.finish(timers)?;
    Ok(figures([("w3s", milliseconds)]))
}

/// W3e, in nanoseconds a tick.
pub(super) fn empty_ticks<C: Competitor>(timers: u64) -> anyhow::Result<Figures> {
    let mut line = Line::<C>::new(timers, Delays::Far);
    let watch = Stopwatch::start();
    line.advance(1, EMPTY_TICKS);
    let each = watch.nanoseconds_per(EMPTY_TICKS);
    line.finish(0)?;
    Ok(figures([("w3e", each)]))
}

/// Pending timers whose handles somebody holds.
struct Line<C: Competitor> {
    competitor: C,
    handles: Vec<Option<C::Handle>>,
    fired: Tally,
}

impl<C: Competitor> Line<C> {
    fn new(timers: u64, delays: Delays) -> Self {
        let mut competitor = C::new(delays.longest());
        let mut handles = room(timers);
        let delays = delays.list(index(timers));
        for ((id, delay), handle) in (0..).zip(delays).zip(&mut handles) {
            *handle = Some(competitor.schedule(u64::from(delay), id));
        }
        Self {
            competitor,
            handles,
            fired: Tally::default(),
        }
    }

    fn advance(&mut self, ticks: u64, times: u64) {
        for step in 1..=times {
            self.competitor.advance_to(step * ticks, &mut self.fired);
        }
    }

    fn finish(self, expected: u64) -> anyhow::Result<()> {
        let fired = fired_ids::<C>(self.fired, &self.handles);
        finish(self.competitor, self.handles);
        ensure!(
            fired.count == expected,
            "{} timers fired; it should have been {expected}",
            fired.count
        );
        ensure!(
            expected == 0 || fired.sum == expected * (expected - 1) / 2,
            "the fired ids are not the scheduled ones"
        );
        Ok(())
    }
}

/// What has fired; a silent competitor is asked handle by handle.
pub(super) fn fired_ids<C: Competitor>(told: Tally, handles: &[Option<C::Handle>]) -> Tally {
    if !C::SILENT {
        return told;
    }
    let mut fired = Tally::default();
    for (id, handle) in (0..).zip(handles) {
        if handle.as_ref().is_some_and(C::has_fired) {
            fired.count += 1;
            fired.sum += id;
        }
    }
    fired
}
