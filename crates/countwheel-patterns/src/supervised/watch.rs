//! The times of a supervised task's runs, and the results of a run: a state machine without a
//! clock.

use std::time::Duration;

use super::{AfterTrouble, SupervisedEvent, SupervisedOutcome, SupervisedStats};
use crate::chain::{Act, Ended, Event, Machine};
use crate::start::{RunEnd, times};
use countwheel::Instant;
use countwheel_time::Random;
use countwheel_time::nanos;

/// What a supervised task was told at its start.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// The delay while all is well. Longer than zero.
    pub(super) period: Duration,
    /// Longer than zero.
    pub(super) timeout: Duration,
    /// Not shorter than the period.
    pub(super) max_delay: Duration,
    /// Not below 1.
    pub(super) growth: f64,
    /// A share of each delay.
    pub(super) jitter: f64,
    /// How many runs that were given up may go on while another begins, and one more.
    pub(super) concurrency: usize,
    pub(super) on_rejection: AfterTrouble,
    pub(super) on_failure: AfterTrouble,
}

pub(super) struct Watch {
    rules: Rules,
    random: Random,
    delay: Duration,
    phase: Phase,
    /// Runs that were given up and still go on.
    overdue: usize,
    stats: SupervisedStats,
    last_run: u64,
    /// The run that is on its way to the executor, wanted or not.
    sent: Option<u64>,
}

enum Phase {
    Waiting {
        due: Instant,
    },
    /// On its way to the executor, until it is too late.
    Queued {
        run: u64,
        until: Instant,
    },
    Running {
        run: u64,
        until: Instant,
    },
    Over,
}

pub(super) struct Cancel;

impl Watch {
    pub(super) fn new(rules: Rules, random: Random, first: Instant) -> Self {
        Self {
            delay: rules.period,
            rules,
            random,
            phase: Phase::Waiting { due: first },
            overdue: 0,
            stats: SupervisedStats::default(),
            last_run: 0,
            sent: None,
        }
    }

    pub(super) fn delay(&self) -> Duration {
        self.delay
    }

    pub(super) fn next_run(&self) -> Option<Instant> {
        match self.phase {
            Phase::Waiting { due } => Some(due),
            Phase::Queued { .. } | Phase::Running { .. } | Phase::Over => None,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.overdue > 0 || matches!(self.phase, Phase::Running { .. })
    }

    pub(super) fn stats(&self) -> SupervisedStats {
        let in_flight = matches!(self.phase, Phase::Queued { .. } | Phase::Running { .. });
        SupervisedStats {
            in_flight: u64::from(in_flight),
            overdue: self.overdue as u64,
            ..self.stats
        }
    }

    fn grow(&mut self) {
        let grown = times(self.delay, self.rules.growth);
        self.delay = grown.min(self.rules.max_delay);
    }

    fn after(&mut self, trouble: AfterTrouble) {
        match trouble {
            AfterTrouble::Keep => {}
            AfterTrouble::Grow => self.grow(),
            AfterTrouble::Reset => self.delay = self.rules.period,
        }
    }

    /// This was one: the next is due a delay from now.
    fn go_on(&mut self, now: Instant, outcome: SupervisedOutcome) -> Act<SupervisedEvent> {
        let chance = nanos(times(self.delay, self.rules.jitter));
        let chance = Duration::from_nanos(self.random.up_to(chance));
        let due = now + self.delay + chance;
        self.phase = Phase::Waiting { due };
        self.says(outcome)
    }

    fn says(&self, outcome: SupervisedOutcome) -> Act<SupervisedEvent> {
        let mut act = Act::none();
        act.note = Some(SupervisedEvent {
            outcome,
            delay: self.delay,
        });
        act
    }

    fn reject(&mut self, now: Instant, outcome: SupervisedOutcome) -> Act<SupervisedEvent> {
        self.stats.rejected += 1;
        self.after(self.rules.on_rejection);
        self.go_on(now, outcome)
    }

    fn rang(&mut self, now: Instant) -> Act<SupervisedEvent> {
        match self.phase {
            Phase::Waiting { due } if due <= now => {
                self.stats.due += 1;
                if self.overdue >= self.rules.concurrency {
                    return self.reject(now, SupervisedOutcome::Busy);
                }
                let until = now + self.rules.timeout;
                if let Some(run) = self.sent {
                    // One that was refused waits for a thread still: it will do.
                    self.phase = Phase::Queued { run, until };
                    return Act::none();
                }
                self.last_run += 1;
                let run = self.last_run;
                self.sent = Some(run);
                self.phase = Phase::Queued { run, until };
                Act::run(run)
            }
            Phase::Queued { until, .. } if until <= now => {
                self.reject(now, SupervisedOutcome::NoRoom)
            }
            Phase::Running { run, until } if until <= now => {
                self.stats.timeouts += 1;
                self.overdue += 1;
                self.grow();
                let act = self.go_on(now, SupervisedOutcome::TimedOut);
                let tell = Some(run);
                Act { tell, ..act }
            }
            _ => Act::none(),
        }
    }

    fn begin(&mut self, run: u64, now: Instant) -> bool {
        let is_wanted = matches!(self.phase, Phase::Queued { run: queued, .. } if queued == run);
        if is_wanted {
            // It has the whole timeout, however long it waited for a thread.
            let until = now + self.rules.timeout;
            self.phase = Phase::Running { run, until };
        }
        is_wanted
    }

    fn ended(&mut self, run: u64, how: &Ended<RunEnd>, now: Instant) -> Act<SupervisedEvent> {
        let is_current =
            matches!(self.phase, Phase::Running { run: current, .. } if current == run);
        if !is_current {
            // It was given up and counted then.
            self.overdue = self.overdue.saturating_sub(1);
            self.stats.late += 1;
            return self.says(SupervisedOutcome::Late);
        }
        match how {
            Ended::Returned(RunEnd::Failed) => {
                self.stats.failed += 1;
                self.after(self.rules.on_failure);
                self.go_on(now, SupervisedOutcome::Failed)
            }
            Ended::Panicked => {
                self.stats.failed += 1;
                self.stats.panicked += 1;
                self.after(self.rules.on_failure);
                self.go_on(now, SupervisedOutcome::Panicked)
            }
            Ended::Returned(end) => {
                self.stats.success += 1;
                self.delay = self.rules.period;
                let act = self.go_on(now, SupervisedOutcome::Success);
                if *end == RunEnd::Break {
                    self.phase = Phase::Over;
                }
                act
            }
            Ended::Dropped => {
                self.stats.abandoned += 1;
                self.go_on(now, SupervisedOutcome::Abandoned)
            }
        }
    }

    /// No run begins any more, and one that goes on is given up.
    fn end(&mut self) -> Act<SupervisedEvent> {
        let mut act = Act::granted(!matches!(self.phase, Phase::Over));
        match self.phase {
            Phase::Waiting { .. } | Phase::Over => {}
            Phase::Queued { .. } => self.stats.abandoned += 1,
            Phase::Running { run, .. } => {
                self.stats.abandoned += 1;
                self.overdue += 1;
                act.tell = Some(run);
            }
        }
        self.phase = Phase::Over;
        act
    }
}

impl Machine for Watch {
    type Order = Cancel;
    type End = RunEnd;
    type Note = SupervisedEvent;

    fn on(&mut self, now: Instant, event: Event<Self>) -> Act<SupervisedEvent> {
        match event {
            Event::Rang => self.rang(now),
            Event::Begun(run) => {
                self.sent = None;
                Act::granted(self.begin(run, now))
            }
            Event::Ended(run, how) => self.ended(run, &how, now),
            Event::Lost(run) => {
                self.sent = None;
                match self.phase {
                    Phase::Queued { run: queued, .. } if queued == run => {
                        self.reject(now, SupervisedOutcome::NoRoom)
                    }
                    _ => Act::none(),
                }
            }
            Event::Told(Cancel) | Event::TimerEnded => self.end(),
        }
    }

    fn due(&self) -> Option<Instant> {
        match self.phase {
            Phase::Waiting { due: at }
            | Phase::Queued { until: at, .. }
            | Phase::Running { until: at, .. } => Some(at),
            Phase::Over => None,
        }
    }

    fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    fn is_over(&self) -> bool {
        self.is_ending() && self.overdue == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a supervised task is in plain words: a list of runs, each with what it is doing.
    #[derive(Default)]
    struct Model {
        delay: u64,
        /// When the next run is due.
        due: Option<u64>,
        /// The runs: what they are doing, until when they may, and under which number.
        runs: Vec<(Doing, u64, u64)>,
        numbers: u64,
        /// The number that is on its way, wanted or not.
        sent: Option<u64>,
        rejected_busy: u64,
        cancelled: bool,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Doing {
        Queued,
        Running,
        /// It had no room, and has not begun.
        Refused,
        /// It was queued when the task was cancelled.
        Withdrawn,
        TimedOut,
        Abandoned,
        LateAfterTimeout,
        LateAfterCancel,
        Success,
        Failed,
    }

    const PERIOD: u64 = 10;
    const TIMEOUT: u64 = 4;
    const MOST: u64 = 60;

    impl Model {
        fn count(&self, wanted: &[Doing]) -> u64 {
            let runs = self.runs.iter();
            runs.filter(|(doing, ..)| wanted.contains(doing)).count() as u64
        }

        fn current(&mut self) -> Option<&mut (Doing, u64, u64)> {
            let runs = self.runs.iter_mut();
            let mut current = runs.filter(|run| matches!(run.0, Doing::Queued | Doing::Running));
            let first = current.next();
            assert!(current.next().is_none(), "never two within their time");
            first
        }

        fn next(&mut self, now: u64, delay: u64) {
            self.delay = delay;
            self.due = (!self.cancelled).then_some(now + delay);
        }

        fn trouble(&self, trouble: AfterTrouble) -> u64 {
            match trouble {
                AfterTrouble::Keep => self.delay,
                AfterTrouble::Grow => (2 * self.delay).min(MOST),
                AfterTrouble::Reset => PERIOD,
            }
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    /// 2.6, row by row, in every order in which it can happen.
    #[test]
    fn it_does_what_the_model_does() {
        let troubles = [AfterTrouble::Keep, AfterTrouble::Grow, AfterTrouble::Reset];
        for seed in 0..1_000 {
            let mut random = Random::new(seed);
            let mut pick = |below: u64| usize::try_from(random.up_to(below - 1)).unwrap();
            let rules = Rules {
                period: Duration::from_secs(PERIOD),
                timeout: Duration::from_secs(TIMEOUT),
                max_delay: Duration::from_secs(MOST),
                growth: 2.0,
                jitter: 0.0,
                concurrency: 1 + pick(3),
                on_rejection: troubles[pick(3)],
                on_failure: troubles[pick(3)],
            };
            let mut watch = Watch::new(rules.clone(), Random::new(1), at(PERIOD));
            let mut model = Model {
                delay: PERIOD,
                due: Some(PERIOD),
                ..Model::default()
            };
            let mut now = 0;
            for _ in 0..120 {
                let run = pick(model.runs.len().max(1) as u64);
                let doing = model.runs.get(run).map(|run| run.0);
                let number = model.runs.get(run).map_or(0, |run| run.2);
                match pick(12) {
                    0..5 => {
                        now += pick(8) as u64;
                        let act = watch.on(at(now), Event::Rang);
                        let gone = model.count(&[Doing::TimedOut, Doing::Abandoned]);
                        let grown = (2 * model.delay).min(MOST);
                        if model.due.is_some_and(|due| due <= now) {
                            model.due = None;
                            if gone >= rules.concurrency as u64 {
                                model.rejected_busy += 1;
                                let delay = model.trouble(rules.on_rejection);
                                model.next(now, delay);
                                assert_eq!(act.run, None);
                            } else {
                                let is_new = model.sent.is_none();
                                model.numbers += u64::from(is_new);
                                let number = *model.sent.get_or_insert(model.numbers);
                                model.runs.push((Doing::Queued, now + TIMEOUT, number));
                                assert_eq!(act.run, is_new.then_some(number));
                            }
                        } else if let Some((doing, until, number)) = model.current()
                            && *until <= now
                        {
                            assert_eq!(act.run, None);
                            if *doing == Doing::Queued {
                                *doing = Doing::Refused;
                                let delay = model.trouble(rules.on_rejection);
                                model.next(now, delay);
                                assert_eq!(act.tell, None);
                            } else {
                                *doing = Doing::TimedOut;
                                assert_eq!(act.tell, Some(*number));
                                model.next(now, grown);
                            }
                        } else {
                            assert_eq!((act.run, act.tell), (None, None));
                        }
                    }
                    // A run that was withdrawn may still have its turn.
                    5..8 if let Some(number) = model.sent.take() => {
                        let act = watch.on(at(now), Event::Begun(number));
                        let current = model.current();
                        let queued = current.filter(|run| run.0 == Doing::Queued);
                        assert_eq!(act.granted, queued.is_some());
                        if let Some(run) = queued {
                            *run = (Doing::Running, now + TIMEOUT, number);
                        }
                    }
                    8 if pick(3) == 0
                        && let Some(number) = model.sent.take() =>
                    {
                        watch.on(at(now), Event::Lost(number));
                        let current = model.current();
                        if let Some(run) = current.filter(|run| run.0 == Doing::Queued) {
                            run.0 = Doing::Refused;
                            let delay = model.trouble(rules.on_rejection);
                            model.next(now, delay);
                        }
                    }
                    8..11 => {
                        let (how, ok) = match pick(4) {
                            0 => (Ended::Panicked, false),
                            1 => (Ended::Returned(RunEnd::Failed), false),
                            _ => (Ended::Returned(RunEnd::Done), true),
                        };
                        match doing {
                            Some(Doing::Running) => {
                                watch.on(at(now), Event::Ended(number, how));
                                model.runs[run].0 = if ok { Doing::Success } else { Doing::Failed };
                                let failed = model.trouble(rules.on_failure);
                                model.next(now, if ok { PERIOD } else { failed });
                            }
                            Some(gone @ (Doing::TimedOut | Doing::Abandoned)) => {
                                watch.on(at(now), Event::Ended(number, how));
                                model.runs[run].0 = if gone == Doing::TimedOut {
                                    Doing::LateAfterTimeout
                                } else {
                                    Doing::LateAfterCancel
                                };
                            }
                            _ => {}
                        }
                    }
                    11 if pick(20) == 0 => {
                        let order = match pick(2) {
                            0 => Event::Told(Cancel),
                            _ => Event::TimerEnded,
                        };
                        let act = watch.on(at(now), order);
                        assert_eq!(act.granted, !model.cancelled);
                        (model.cancelled, model.due) = (true, None);
                        let mut told = None;
                        if let Some((doing, _, number)) = model.current() {
                            if *doing == Doing::Running {
                                told = Some(*number);
                                *doing = Doing::Abandoned;
                            } else {
                                *doing = Doing::Withdrawn;
                            }
                        }
                        assert_eq!(act.tell, told);
                    }
                    _ => {}
                }
                let stats = watch.stats();
                let late = [Doing::LateAfterTimeout, Doing::LateAfterCancel];
                let model_says = SupervisedStats {
                    due: model.runs.len() as u64 + model.rejected_busy,
                    success: model.count(&[Doing::Success]),
                    timeouts: model.count(&[Doing::TimedOut, Doing::LateAfterTimeout]),
                    rejected: model.count(&[Doing::Refused]) + model.rejected_busy,
                    failed: model.count(&[Doing::Failed]),
                    abandoned: model.count(&[
                        Doing::Abandoned,
                        Doing::Withdrawn,
                        Doing::LateAfterCancel,
                    ]),
                    in_flight: model.count(&[Doing::Queued, Doing::Running]),
                    overdue: model.count(&[Doing::TimedOut, Doing::Abandoned]),
                    late: model.count(&late),
                    panicked: stats.panicked,
                };
                assert_eq!(stats, model_says, "seed {seed}");
                assert_eq!(
                    watch.delay(),
                    Duration::from_secs(model.delay),
                    "seed {seed}"
                );
                assert_eq!(watch.next_run(), model.due.map(at), "seed {seed}");
                let over = model.cancelled && stats.overdue == 0;
                assert_eq!(
                    (watch.is_ending(), watch.is_over()),
                    (model.cancelled, over)
                );
                let going = model.count(&[Doing::Running, Doing::TimedOut, Doing::Abandoned]);
                assert!(going <= rules.concurrency as u64, "seed {seed}");
            }
        }
    }
}
