//! When a worker takes its next step: a state machine without a clock.

use std::time::Duration;

use super::{Step, WorkerStats};
use crate::FAR;
use crate::chain::{Act, Ended, Event, Machine};
use countwheel::Instant;
use countwheel_time::nanos;

/// What a worker was told at its start.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// From the end of a step to the next. [`Duration::MAX`]: until it is woken.
    pub(super) wait: Duration,
    /// At least so long is it from the end of a step to the next.
    pub(super) min_gap: Duration,
    /// So many steps may come without that gap, if there were fewer before. At least one.
    pub(super) burst: u32,
    /// From a wake-up to the step.
    pub(super) wake_delay: Duration,
    pub(super) pause_after_failure: Duration,
}

/// What a worker is told.
pub(super) enum Order {
    Wake,
    Suspend,
    Resume,
    /// A last step, and then no more.
    Finish,
    Close,
    /// Nobody can tell it anything any more.
    Orphaned,
}

pub(super) struct Turns {
    rules: Rules,
    phase: Phase,
    suspended: bool,
    finishing: bool,
    orphaned: bool,
    /// When a wake-up that no step has answered wants one.
    woken: Option<Instant>,
    /// When the next step comes if nobody wakes the worker.
    regular: Instant,
    /// No step comes before.
    not_before: Instant,
    /// By when the steps so far have had their gaps, if those of a burst were made up for.
    paid: Instant,
    stats: WorkerStats,
    last_run: u64,
    /// Whether that run is on its way to the executor, wanted or not.
    sent: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Resting,
    /// On its way to the executor.
    Queued,
    /// `is_last`: not the last after all if it says that there is more to do.
    Stepping {
        is_last: bool,
    },
    /// Stepping, and closed.
    Closing,
    Over,
}

impl Turns {
    pub(super) fn new(rules: Rules, suspended: bool, first: Instant) -> Self {
        Self {
            rules,
            phase: Phase::Resting,
            suspended,
            finishing: false,
            orphaned: false,
            woken: None,
            regular: first,
            not_before: Instant::ZERO,
            paid: Instant::ZERO,
            stats: WorkerStats::default(),
            last_run: 0,
            sent: false,
        }
    }

    pub(super) fn stats(&self) -> WorkerStats {
        self.stats
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.suspended
    }

    pub(super) fn is_stepping(&self) -> bool {
        matches!(self.phase, Phase::Stepping { .. } | Phase::Closing)
    }

    pub(super) fn next_step(&self) -> Option<Instant> {
        self.due().filter(|&due| due < FAR)
    }

    /// Goes on from a rest, if it is time.
    fn go_on(&mut self, now: Instant, granted: bool) -> Act<()> {
        let mut act = Act::granted(granted);
        if let Some(due) = self.due() {
            if due <= now && due < FAR {
                self.phase = Phase::Queued;
                // One that was taken back and is still on its way will do.
                if !std::mem::replace(&mut self.sent, true) {
                    self.last_run += 1;
                    act.run = Some(self.last_run);
                }
            } else if self.orphaned && due == FAR {
                self.phase = Phase::Over;
            }
        }
        act
    }

    fn told(&mut self, order: &Order, now: Instant) -> bool {
        let is_open = !matches!(self.phase, Phase::Closing | Phase::Over) && !self.finishing;
        match order {
            Order::Wake if is_open => {
                self.stats.wakes += 1;
                if self.woken.is_some() || self.phase == Phase::Queued {
                    self.stats.coalesced += 1;
                }
                let at = now + self.rules.wake_delay;
                self.woken = Some(self.woken.unwrap_or(at));
                true
            }
            Order::Suspend if is_open => {
                if self.phase == Phase::Queued {
                    // It is taken back. What made it due still does, once the worker is resumed.
                    self.phase = Phase::Resting;
                }
                !std::mem::replace(&mut self.suspended, true)
            }
            Order::Resume if is_open => std::mem::replace(&mut self.suspended, false),
            Order::Finish if is_open => {
                self.finishing = true;
                self.suspended = false;
                self.woken = Some(now);
                self.not_before = now;
                true
            }
            Order::Close => {
                let is_closed = matches!(self.phase, Phase::Closing | Phase::Over);
                self.phase = match self.phase {
                    Phase::Stepping { .. } | Phase::Closing => Phase::Closing,
                    Phase::Resting | Phase::Queued | Phase::Over => Phase::Over,
                };
                !is_closed
            }
            Order::Orphaned => {
                self.orphaned = true;
                true
            }
            Order::Wake | Order::Suspend | Order::Resume | Order::Finish => false,
        }
    }

    fn begin(&mut self, run: u64) -> bool {
        self.sent = false;
        let may = self.phase == Phase::Queued && run == self.last_run;
        if may {
            let is_last = self.finishing;
            self.phase = Phase::Stepping { is_last };
            // What comes from here on may be too late for this step.
            self.woken = None;
            self.stats.steps += 1;
        }
        may
    }

    fn ended(&mut self, how: &Ended<Step>, now: Instant) {
        let Phase::Stepping { is_last } = self.phase else {
            self.phase = Phase::Over;
            return self.count(how);
        };
        self.count(how);
        let (wait, pause) = match how {
            Ended::Returned(Step::Wait) => (self.rules.wait, Duration::ZERO),
            Ended::Returned(Step::Again) => (Duration::ZERO, Duration::ZERO),
            Ended::Returned(Step::Sleep) => (Duration::MAX, Duration::ZERO),
            Ended::Returned(Step::Pause(pause)) => (*pause, *pause),
            Ended::Returned(Step::Failed) | Ended::Panicked | Ended::Dropped => {
                let pause = self.rules.pause_after_failure;
                (pause, pause)
            }
            Ended::Returned(Step::End) => {
                self.phase = Phase::Over;
                return;
            }
        };
        if is_last && !matches!(how, Ended::Returned(Step::Again)) {
            self.phase = Phase::Over;
            return;
        }
        self.phase = Phase::Resting;
        self.regular = now + wait;
        let gap = self.rules.min_gap;
        self.paid = self.paid.max(now) + gap;
        let on_credit = gap.saturating_mul(self.rules.burst.saturating_sub(1));
        let earned = self.paid.as_nanos().saturating_sub(nanos(on_credit));
        self.not_before = Instant::from_nanos(earned).max(now + pause);
        if self.finishing {
            self.not_before = now;
        }
    }

    fn count(&mut self, how: &Ended<Step>) {
        match how {
            Ended::Returned(Step::Failed) => self.stats.failed += 1,
            Ended::Panicked => self.stats.panicked += 1,
            Ended::Dropped => self.stats.dropped += 1,
            Ended::Returned(_) => {}
        }
    }
}

impl Machine for Turns {
    type Order = Order;
    type End = Step;
    type Note = ();

    fn on(&mut self, now: Instant, event: Event<Self>) -> Act<()> {
        let granted = match event {
            Event::Rang => false,
            Event::Begun(run) => return Act::granted(self.begin(run)),
            Event::Ended(_, how) => {
                self.ended(&how, now);
                false
            }
            Event::Lost(run) => {
                self.sent = false;
                if self.phase == Phase::Queued && run == self.last_run {
                    self.stats.lost += 1;
                    self.phase = Phase::Resting;
                    self.regular = now + self.rules.pause_after_failure;
                    self.not_before = self.regular;
                }
                false
            }
            Event::Told(order) => self.told(&order, now),
            Event::TimerEnded => {
                let is_stepping = self.is_stepping();
                self.told(&Order::Close, now);
                let mut act = Act::none();
                act.tell = is_stepping.then_some(self.last_run);
                return act;
            }
        };
        self.go_on(now, granted)
    }

    /// [`FAR`] if only a wake-up or its owner can bring the next step.
    fn due(&self) -> Option<Instant> {
        if self.phase != Phase::Resting {
            return None;
        }
        if self.suspended {
            return Some(FAR);
        }
        let due = self.woken.map_or(self.regular, |at| at.min(self.regular));
        Some(due.max(self.not_before).min(FAR))
    }

    fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Closing | Phase::Over)
    }

    fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countwheel_time::Random;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    const WAIT: u64 = 20;
    const GAP: u64 = 3;
    const WAKE_DELAY: u64 = 2;
    const PAUSE: u64 = 7;

    /// What has to hold, whatever comes in whatever order: what was asked for and is not answered,
    /// and the time before which no step may begin.
    struct Model {
        /// The run that was asked for last, unless it has had its turn or was taken back.
        queued: Option<u64>,
        /// Whether it is on its way, taken back or not: then it is not asked for again.
        sent: bool,
        stepping: bool,
        closed: bool,
        suspended: bool,
        finishing: bool,
        /// When the oldest wake-up since the last step began has come.
        unanswered: Option<u64>,
        not_before: u64,
        regular: Option<u64>,
    }

    impl Model {
        fn due(&self) -> Option<u64> {
            if self.stepping || self.closed || self.suspended {
                return None;
            }
            let wake_delay = if self.finishing { 0 } else { WAKE_DELAY };
            let woken = self.unanswered.map(|at| at + wake_delay);
            let due = woken.into_iter().chain(self.regular).min()?;
            Some(due.max(self.not_before))
        }
    }

    #[test]
    fn no_wake_up_is_lost_and_no_step_comes_too_soon() {
        for seed in 0..1_500 {
            let mut random = Random::new(seed);
            let mut pick = |below: u64| random.up_to(below - 1);
            let rules = Rules {
                wait: Duration::from_secs(WAIT),
                min_gap: Duration::from_secs(GAP),
                burst: 1,
                wake_delay: Duration::from_secs(WAKE_DELAY),
                pause_after_failure: Duration::from_secs(PAUSE),
            };
            let suspended = pick(4) == 0;
            let mut turns = Turns::new(rules, suspended, at(5));
            let mut model = Model {
                queued: None,
                sent: false,
                stepping: false,
                closed: false,
                suspended,
                finishing: false,
                unanswered: None,
                not_before: 0,
                regular: Some(5),
            };
            let (mut now, mut asked, mut last_one) = (0, 0, false);
            for _ in 0..150 {
                let is_open = !model.closed && !model.finishing;
                let mut act = Act::none();
                let (mut has_gone_on, sent) = (true, model.sent);
                match pick(16) {
                    0..5 => {
                        now += pick(9);
                        act = turns.on(at(now), Event::Rang);
                    }
                    5..8 if sent => {
                        // Also one that was taken back.
                        let may = model.queued == Some(asked);
                        assert_eq!(
                            turns.on(at(now), Event::Begun(asked)).granted,
                            may,
                            "seed {seed}"
                        );
                        (has_gone_on, model.sent) = (false, false);
                        if may {
                            model.queued = None;
                            model.stepping = true;
                            model.unanswered = None;
                            last_one = model.finishing;
                        }
                    }
                    8 if sent => {
                        act = turns.on(at(now), Event::Lost(asked));
                        model.sent = false;
                        if model.queued.take().is_some() {
                            model.not_before = now + PAUSE;
                            model.regular = Some(now + PAUSE);
                        }
                    }
                    9..12 if model.stepping => {
                        let (how, wait, pause) = match pick(8) {
                            0 => (Ended::Panicked, Some(PAUSE), PAUSE),
                            1 => (Ended::Returned(Step::Failed), Some(PAUSE), PAUSE),
                            2 => (Ended::Returned(Step::Again), Some(0), 0),
                            3 => (Ended::Returned(Step::Sleep), None, 0),
                            4 => {
                                let pause = Step::Pause(Duration::from_secs(11));
                                (Ended::Returned(pause), Some(11), 11)
                            }
                            _ => (Ended::Returned(Step::Wait), Some(WAIT), 0),
                        };
                        let again = matches!(how, Ended::Returned(Step::Again));
                        act = turns.on(at(now), Event::Ended(asked, how));
                        model.stepping = false;
                        model.regular = wait.map(|wait| now + wait);
                        model.not_before = now + pause.max(GAP);
                        if model.finishing {
                            model.not_before = now;
                        }
                        model.closed |= last_one && !again;
                    }
                    12 | 13 => {
                        act = turns.on(at(now), Event::Told(Order::Wake));
                        assert_eq!(act.granted, is_open);
                        if is_open {
                            model.unanswered = model.unanswered.or(Some(now));
                        }
                    }
                    14 => {
                        let (order, suspend) = match pick(2) {
                            0 => (Order::Suspend, true),
                            _ => (Order::Resume, false),
                        };
                        act = turns.on(at(now), Event::Told(order));
                        assert_eq!(act.granted, is_open && model.suspended != suspend);
                        if is_open {
                            model.suspended = suspend;
                            model.queued = model.queued.filter(|_| !suspend);
                        }
                    }
                    15 if pick(40) == 0 => {
                        let finish = pick(2) == 0;
                        let order = if finish { Order::Finish } else { Order::Close };
                        act = turns.on(at(now), Event::Told(order));
                        assert_eq!(act.granted, if finish { is_open } else { !model.closed });
                        if !finish {
                            (model.closed, model.queued) = (true, None);
                        } else if is_open {
                            (model.finishing, model.suspended) = (true, false);
                            (model.unanswered, model.not_before) = (Some(now), now);
                        }
                    }
                    _ => has_gone_on = false,
                }
                let is_due = model.due().is_some_and(|due| due <= now);
                if let Some(run) = act.run {
                    assert!(model.queued.is_none(), "one at a time, seed {seed}");
                    assert!(!std::mem::replace(&mut model.sent, true), "seed {seed}");
                    assert!(model.due().is_some_and(|due| due <= now), "seed {seed}");
                    asked = run;
                    model.queued = Some(run);
                } else if model.queued.is_none() && model.sent && has_gone_on && is_due {
                    model.queued = Some(asked);
                } else if model.queued.is_none() {
                    let due = model.due();
                    // It would have come by now, had somebody rung; and it rings at the deadline.
                    let filed = turns.next_step().filter(|_| !model.suspended);
                    assert_eq!(filed, due.map(at), "seed {seed}");
                }
                let over = model.closed && !model.stepping;
                assert_eq!(
                    (turns.is_ending(), turns.is_over()),
                    (model.closed, over),
                    "seed {seed}"
                );
                assert_eq!(turns.is_stepping(), model.stepping);
            }
            assert!(turns.stats().coalesced <= turns.stats().wakes);
        }
    }
}
