//! When a periodic task runs: a state machine without a clock.

use std::time::Duration;

use super::PeriodicStats;
use crate::chain::{Act, Ended, Event, Machine};
use crate::start::RunEnd;
use countwheel::{Instant, MissedTicks};
use countwheel_time::Random;
use countwheel_time::nanos;

/// What a periodic task was told at its start.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) rhythm: Rhythm,
    /// Longer than zero.
    pub(super) period: Duration,
    /// Each run is due up to this much later than the rhythm says.
    pub(super) jitter: Duration,
    pub(super) max_runs: u64,
    pub(super) ends_on_panic: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Rhythm {
    /// From one deadline to the next.
    Rate(MissedTicks),
    /// From the end of a run to the next.
    Delay,
}

pub(super) struct Beat {
    rules: Rules,
    random: Random,
    state: State,
    stats: PeriodicStats,
    last_run: u64,
}

/// A run's place in the rhythm, and the deadline that chance has made of it.
#[derive(Clone, Copy)]
struct BeatDue {
    beat: Instant,
    at: Instant,
}

enum State {
    Waiting(BeatDue),
    /// On its way to the executor.
    Queued(BeatDue),
    Running {
        due: BeatDue,
        began: Instant,
        is_last: bool,
    },
    Over,
}

pub(super) struct Cancel;

impl Beat {
    pub(super) fn new(rules: Rules, random: Random, first: Instant) -> Self {
        let mut beat = Self {
            rules,
            random,
            state: State::Over,
            stats: PeriodicStats::default(),
            last_run: 0,
        };
        beat.wait_for(first);
        beat
    }

    pub(super) fn stats(&self) -> PeriodicStats {
        self.stats
    }

    pub(super) fn next_run(&self) -> Option<Instant> {
        match self.state {
            State::Waiting(due) => Some(due.at),
            State::Queued(_) | State::Running { .. } | State::Over => None,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    fn wait_for(&mut self, beat: Instant) {
        let chance = self.random.up_to(nanos(self.rules.jitter));
        let at = beat + Duration::from_nanos(chance);
        self.state = State::Waiting(BeatDue { beat, at });
    }

    /// After a run that began and ended, or would have.
    fn go_on(&mut self, due: BeatDue, began: Instant, ended: Instant) {
        let period = self.rules.period;
        let Rhythm::Rate(missed) = self.rules.rhythm else {
            return self.wait_for(ended + period);
        };
        // What comes due during a run is as much missed as what comes due during a stall. (But a
        // distance between starts is counted from the start.)
        let seen = match missed {
            MissedTicks::Delay => began,
            _ => ended,
        };
        // What chance has added is not late.
        let chance = due.at.saturating_since(due.beat);
        let seen = Instant::ZERO + seen.saturating_since(Instant::ZERO + chance);
        let next = missed.next(due.beat, seen.max(due.beat), period);
        let periods = next.saturating_since(due.beat).as_nanos() / period.as_nanos();
        let left_out = u64::try_from(periods).unwrap_or(u64::MAX).saturating_sub(1);
        self.stats.skipped = self.stats.skipped.saturating_add(left_out);
        self.wait_for(next);
    }

    fn end(&mut self) -> bool {
        match &mut self.state {
            State::Running { is_last, .. } => !std::mem::replace(is_last, true),
            State::Waiting(_) | State::Queued(_) => {
                self.state = State::Over;
                true
            }
            State::Over => false,
        }
    }

    fn begin(&mut self, run: u64, now: Instant) -> bool {
        let State::Queued(due) = self.state else {
            return false;
        };
        debug_assert_eq!(run, self.last_run);
        let stats = &mut self.stats;
        stats.runs += 1;
        let lateness = now.saturating_since(due.at);
        stats.lateness_max = stats.lateness_max.max(lateness);
        stats.lateness_total = stats.lateness_total.saturating_add(lateness);
        self.state = State::Running {
            due,
            began: now,
            is_last: stats.runs >= self.rules.max_runs,
        };
        true
    }

    fn ended(&mut self, how: &Ended<RunEnd>, now: Instant) {
        let State::Running {
            due,
            began,
            is_last,
        } = self.state
        else {
            return;
        };
        let mut is_last = is_last;
        match how {
            Ended::Returned(RunEnd::Done) => {}
            Ended::Returned(RunEnd::Failed) => self.stats.failed += 1,
            Ended::Returned(RunEnd::Break) => is_last = true,
            Ended::Panicked => {
                self.stats.panicked += 1;
                is_last |= self.rules.ends_on_panic;
            }
            Ended::Dropped => self.stats.dropped += 1,
        }
        self.state = State::Over;
        if !is_last {
            self.go_on(due, began, now);
        }
    }
}

impl Machine for Beat {
    type Order = Cancel;
    type End = RunEnd;
    type Note = ();

    fn on(&mut self, now: Instant, event: Event<Self>) -> Act<()> {
        match event {
            Event::Rang => {
                if let State::Waiting(due) = self.state
                    && due.at <= now
                {
                    self.state = State::Queued(due);
                    self.last_run += 1;
                    return Act::run(self.last_run);
                }
            }
            Event::Begun(run) => return Act::granted(self.begin(run, now)),
            Event::Ended(_, how) => self.ended(&how, now),
            Event::Lost(_) => {
                if let State::Queued(due) = self.state {
                    self.stats.lost += 1;
                    self.go_on(due, now, now);
                }
            }
            Event::Told(Cancel) => return Act::granted(self.end()),
            Event::TimerEnded => {
                let is_running = self.is_running();
                self.end();
                let mut act = Act::none();
                act.tell = is_running.then_some(self.last_run);
                return act;
            }
        }
        Act::none()
    }

    fn due(&self) -> Option<Instant> {
        self.next_run()
    }

    fn is_ending(&self) -> bool {
        matches!(
            self.state,
            State::Over | State::Running { is_last: true, .. }
        )
    }

    fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }
}
