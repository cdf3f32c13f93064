//! Recurring timers and missed runs, one sentence each, under a clock that stands still.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, Config, CronExpression, DeadReason, Due, Effect, Engine, Event, Missed, Outcome,
    Overlap, Precondition, Record, Recurrence, RecurrenceError, Recurring, Request, Response,
    RetryPolicy, Run, Schedule, Set, SetOptions, Shift, State, Ticket, TimerError, TimerName,
    Verdict, Was, Zone,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

/// 2026-03-01 12:00 UTC.
const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(offset: u64) -> Timestamp {
    NOON + seconds(offset)
}

/// An engine on a memory store, with what it let out.
struct Bench {
    clock: ManualClock,
    store: MemoryStore,
    config: Config,
    engine: Engine,
    started: VecDeque<Attempt>,
}

impl Bench {
    fn new() -> Self {
        Self::with(NOON, Config::default())
    }

    fn with(start: Timestamp, config: Config) -> Self {
        let clock = ManualClock::at(start);
        let store = MemoryStore::new(7);
        Self {
            engine: Self::open(&store, &clock, &config),
            clock,
            store,
            config,
            started: VecDeque::new(),
        }
    }

    fn open(store: &MemoryStore, clock: &ManualClock, config: &Config) -> Engine {
        let (store, clock) = (Arc::new(store.clone()), Arc::new(clock.clone()));
        Engine::open(store, Shard::ONLY, clock, config.clone()).unwrap()
    }

    /// Ends the process, and begins another one that much later.
    fn restart_after(&mut self, away: u64) {
        self.started.clear();
        self.clock.advance(seconds(away));
        self.engine = Self::open(&self.store, &self.clock, &self.config);
        self.turn(vec![]);
    }

    fn turn(&mut self, events: Vec<Event>) -> Vec<Result<Response, TimerError>> {
        let mut answers = Vec::new();
        let started = &mut self.started;
        let sink = &mut |effect| match effect {
            Effect::Answer(_, answer) => answers.push(answer),
            Effect::Start(attempt) => started.push_back(attempt),
            Effect::BatchAnswer(..) => unreachable!("no batch was handed in"),
        };
        self.engine.turn(events, sink).unwrap();
        answers
    }

    fn ask(&mut self, request: Request) -> Result<Response, TimerError> {
        let event = Event::Request(Ticket(0), request);
        self.turn(vec![event]).pop().unwrap()
    }

    fn set(&mut self, key: &str, due: Due, missed: Missed, recurrence: Recurrence) -> Timestamp {
        let recurrence = Some(Box::new(recurrence));
        let options = SetOptions {
            missed,
            recurrence,
            ..SetOptions::default()
        };
        match self.ask(set(key, due, options)).unwrap() {
            Response::Set(Set { due, .. }) => due,
            other => panic!("{other:?}"),
        }
    }

    /// Lets time pass from wake-up to wake-up until `end`, with every attempt ending well at
    /// once, and gives how many seconds after noon each run was nominally and really.
    fn run_until(&mut self, end: u64) -> Vec<(u64, u64)> {
        let mut made = Vec::new();
        loop {
            self.turn(vec![]);
            while !self.started.is_empty() {
                made.push(self.finish(Verdict::Done));
            }
            let now = self.clock.timestamp();
            match self.engine.next_wake() {
                Some(wake) if wake <= now => {}
                Some(wake) if wake <= at(end) => self.clock.advance(wake.saturating_since(now)),
                _ => break,
            }
        }
        let now = self.clock.timestamp();
        self.clock.advance(at(end).saturating_since(now));
        let offset = |time: Timestamp| time.saturating_since(NOON).as_secs();
        made.iter()
            .map(|attempt| {
                (
                    offset(attempt.run.unwrap().nominal),
                    offset(attempt.started),
                )
            })
            .collect()
    }

    /// Lets time pass until an attempt starts, and gives when and for which run.
    fn next_start(&mut self) -> (u64, Run) {
        loop {
            self.turn(vec![]);
            if let Some(attempt) = self.started.front() {
                let offset = attempt.started.saturating_since(NOON).as_secs();
                return (offset, attempt.run.unwrap());
            }
            let wake = self.engine.next_wake().expect("something is due");
            self.clock
                .advance(wake.saturating_since(self.clock.timestamp()));
        }
    }

    fn pass(&mut self, span: u64) {
        self.clock.advance(seconds(span));
        self.turn(vec![]);
    }

    fn finish(&mut self, verdict: Verdict) -> Attempt {
        self.finish_with(Outcome::new(verdict, "said the test"))
    }

    fn finish_with(&mut self, outcome: Outcome) -> Attempt {
        let attempt = self.started.pop_front().expect("an attempt runs");
        let revision = attempt.revision;
        self.turn(vec![Event::Outcome { revision, outcome }]);
        attempt
    }

    fn record(&self, key: &str) -> Record {
        self.find(key).expect("the timer is kept")
    }

    fn find(&self, key: &str) -> Option<Record> {
        self.store.get(Shard::ONLY, &name(key)).unwrap()
    }

    fn recurring(&self, key: &str) -> Recurring {
        *self.record(key).recurring.expect("it comes again")
    }
}

fn name(key: &str) -> TimerName {
    TimerName::new("q", key).unwrap()
}

fn set(key: &str, due: Due, options: SetOptions) -> Request {
    Request::Set {
        name: name(key),
        due,
        policy: RetryPolicy::fixed(seconds(2)).max_retries(2),
        payload: key.as_bytes().to_vec(),
        precondition: Precondition::None,
        options,
    }
}

fn every(interval: u64) -> Recurrence {
    Recurrence::new(Schedule::FixedRate {
        every: seconds(interval),
        anchor: None,
    })
}

fn cron(expression: &str, zone: &str) -> Recurrence {
    Recurrence::new(Schedule::Cron {
        expression: CronExpression::new(expression).unwrap(),
        zone: Zone::new(zone).unwrap(),
    })
}

const fn after(delay: u64) -> Due {
    Due::In(seconds(delay))
}

fn failed() -> Verdict {
    Verdict::Failed { retry_after: None }
}

/// The runs of a grid of ten seconds from 10 on, each on time.
fn on_time(points: impl IntoIterator<Item = u64>) -> Vec<(u64, u64)> {
    points.into_iter().map(|point| (point, point)).collect()
}

#[test]
fn a_fixed_rate_keeps_its_grid_and_each_run_has_its_number() {
    let mut bench = Bench::new();
    bench.set("a", after(10), Missed::Fire, every(10));
    assert_eq!(bench.next_start().0, 10);
    let attempt = bench.started.front().unwrap().clone();
    assert_eq!(
        attempt.run,
        Some(Run {
            number: 1,
            nominal: at(10)
        })
    );
    bench.pass(3);
    bench.finish(Verdict::Done);
    let record = bench.record("a");
    assert_eq!((record.state, record.due), (State::Pending, at(20)));
    let (start, run) = bench.next_start();
    assert_eq!((start, run.number, run.nominal), (20, 2, at(20)));
    let second = bench.finish(Verdict::Done);
    assert_eq!(second.id, attempt.id);
    assert_eq!(second.number, attempt.number + 1);
    assert!(second.revision > attempt.revision);
    assert_eq!(bench.run_until(55), on_time([30, 40, 50]));
    let stats = bench.engine.stats();
    assert_eq!((stats.done, stats.missed, stats.overlapped), (5, 0, 0));
}

#[test]
fn a_fixed_delay_waits_from_the_end_of_the_retries() {
    let mut bench = Bench::new();
    let schedule = Schedule::FixedDelay { every: seconds(10) };
    bench.set("a", after(10), Missed::Fire, Recurrence::new(schedule));
    assert_eq!(bench.next_start().0, 10);
    bench.pass(4);
    bench.finish(failed());
    let (start, run) = bench.next_start();
    assert_eq!((start, run.number, run.nominal), (16, 1, at(10)));
    bench.pass(1);
    bench.finish(Verdict::Done);
    let (start, run) = bench.next_start();
    assert_eq!((start, run.number, run.nominal), (27, 2, at(27)));
}

#[test]
fn a_receiver_says_when_the_next_run_is_and_the_schedule_goes_on_behind_it() {
    let asks = |delay| Outcome::done().next_run(seconds(delay));
    // The grid is that of before, and what was passed counts neither as missed nor as overlapped.
    let mut bench = Bench::new();
    bench.set("a", after(10), Missed::Collapse, every(10));
    assert_eq!(bench.next_start().0, 10);
    bench.pass(1);
    bench.finish_with(asks(3));
    let (start, run) = bench.next_start();
    assert_eq!((start, run.number, run.nominal), (14, 2, at(14)));
    bench.finish_with(asks(35));
    let (start, run) = bench.next_start();
    assert_eq!((start, run.number, run.nominal), (49, 3, at(49)));
    let recurring = bench.recurring("a");
    assert_eq!((recurring.missed, recurring.overlapped), (0, 0));
    assert_eq!(recurring.upcoming().next(), Some(at(50)));
    bench.finish(Verdict::Done);
    assert_eq!(bench.run_until(75), on_time([50, 60, 70]));
    // A delay is so for one run, from the end of its retries on.
    let mut bench = Bench::new();
    let delay = Schedule::FixedDelay { every: seconds(10) };
    bench.set("a", after(10), Missed::Fire, Recurrence::new(delay));
    assert_eq!(bench.next_start().0, 10);
    bench.finish_with(Outcome::failed("503").next_run(seconds(100)));
    assert_eq!(bench.next_start().0, 12);
    bench.pass(1);
    bench.finish_with(asks(30));
    assert_eq!(bench.next_start().0, 43);
    bench.finish(Verdict::Done);
    assert_eq!(bench.next_start().0, 53);
    // It survives the process, and is late by the time without one.
    bench.finish_with(asks(5));
    bench.restart_after(2);
    assert_eq!(bench.next_start().0, 58);
}

#[test]
fn a_wish_for_the_next_run_keeps_to_the_bounds_and_a_calendar_hears_none() {
    let due_after = |recurrence: Recurrence, wish: Duration| {
        let mut bench = Bench::new();
        bench.set("a", after(10), Missed::Fire, recurrence);
        bench.next_start();
        bench.finish_with(Outcome::done().next_run(wish));
        let record = bench.record("a");
        (record.state == State::Pending).then(|| record.due.saturating_since(NOON))
    };
    let shortest = Some(seconds(10) + Recurrence::EVERY_MIN);
    assert_eq!(due_after(every(10), Duration::ZERO), shortest);
    let longest = Some(seconds(10) + Recurrence::EVERY_MAX);
    assert_eq!(due_after(every(10), Duration::MAX), longest);
    let until = |offset| Recurrence {
        until: Some(at(offset)),
        ..every(10)
    };
    assert_eq!(due_after(until(15), seconds(5)), Some(seconds(15)));
    assert_eq!(due_after(until(15), seconds(6)), None);
    let once = Recurrence {
        repeats: NonZeroU32::new(1),
        ..every(10)
    };
    assert_eq!(due_after(once, seconds(5)), None);
    // There is no jitter in what the receiver asked for.
    let jittered = Recurrence {
        jitter: seconds(10),
        ..every(10)
    };
    let mut bench = Bench::new();
    bench.set("a", after(10), Missed::Fire, jittered);
    let (start, _) = bench.next_start();
    bench.finish_with(Outcome::done().next_run(seconds(7)));
    assert!(bench.record("a").due <= at(start + 8));
    assert_eq!(bench.recurring("a").moved, Some(bench.record("a").due));
    let daily = cron("0 13 * * *", "UTC");
    let day = 24 * 3_600;
    let next = due_after(daily, seconds(5));
    assert_eq!(next, Some(seconds(3_600 + day)));
}

#[test]
fn a_receiver_ends_the_series_as_done() {
    for recurrence in [every(10), cron("* * * * *", "UTC")] {
        let mut bench = Bench::new();
        bench.set("a", after(10), Missed::Fire, recurrence);
        bench.next_start();
        // A failure says nothing of the runs to come.
        bench.finish_with(Outcome::failed("503").ends_series());
        assert_eq!(bench.record("a").state, State::Pending);
        bench.next_start();
        bench.finish_with(Outcome::done().ends_series());
        let record = bench.record("a");
        assert!(matches!(record.state, State::Done { .. }), "{record:?}");
        assert_eq!(record.recurring.unwrap().run, 1);
        assert_eq!(bench.run_until(3_600), []);
    }
}

#[test]
fn a_run_that_is_given_up_is_counted_and_the_next_one_begins_its_schedule_anew() {
    let mut bench = Bench::new();
    bench.set("a", after(10), Missed::Fire, every(10));
    for (number, start) in [(1, 10), (2, 12), (3, 14)] {
        assert_eq!(bench.next_start().0, start);
        assert_eq!(bench.finish(failed()).number, number);
    }
    let record = bench.record("a");
    assert_eq!((&record.state, record.due), (&State::Pending, at(20)));
    assert_eq!((record.failures, record.first_due), (0, at(20)));
    assert_eq!(record.recurring.unwrap().dead, 1);
    assert_eq!(record.attempts.len(), 3);
    assert_eq!(bench.next_start().1.number, 2);
    assert_eq!(bench.finish(failed()).number, 4);
    assert_eq!(bench.next_start().0, 22);
    let stats = bench.engine.stats();
    assert_eq!((stats.runs_dead, stats.dead), (1, 0));
}

#[test]
fn a_receiver_that_wants_no_more_ends_it_and_a_revive_goes_on() {
    let mut bench = Bench::new();
    bench.set("a", after(10), Missed::Fire, every(10));
    bench.next_start();
    bench.finish(Verdict::Stopped);
    let reason = DeadReason::Stopped;
    assert_eq!(
        bench.record("a").state,
        State::Dead {
            at: at(10),
            reason,
            keep_until: None
        }
    );
    bench.pass(35);
    assert!(bench.started.is_empty());
    let due = after(2);
    let name = name("a");
    bench.ask(Request::Revive { name, due }).unwrap();
    let (start, run) = bench.next_start();
    assert_eq!((start, run.number, run.nominal), (47, 1, at(10)));
    bench.finish(Verdict::Done);
    // What it would have done while it was dead is not made up for.
    assert_eq!(bench.run_until(65), on_time([50, 60]));
    let recurring = bench.recurring("a");
    assert_eq!((recurring.missed, recurring.overlapped), (0, 0));
}

#[test]
fn it_is_done_after_its_last_run_and_dead_if_that_was_given_up() {
    let mut bench = Bench::new();
    let twice = Recurrence {
        repeats: NonZeroU32::new(2),
        ..every(10)
    };
    bench.set("done", after(10), Missed::Fire, twice.clone());
    assert_eq!(bench.run_until(100), on_time([10, 20]));
    let State::Done { at: ended, .. } = bench.record("done").state else {
        panic!("{:?}", bench.record("done"));
    };
    assert_eq!(ended, at(20));
    // It is kept for a while, like any other.
    bench.pass(bench.config.keep_done.as_secs());
    assert_eq!(bench.find("done"), None);

    let mut bench = Bench::new();
    bench.set("dead", after(10), Missed::Fire, twice);
    bench.next_start();
    bench.finish(Verdict::Done);
    for start in [20, 22, 24] {
        assert_eq!(bench.next_start().0, start);
        bench.finish(failed());
    }
    let reason = DeadReason::Exhausted;
    assert_eq!(
        bench.record("dead").state,
        State::Dead {
            at: at(24),
            reason,
            keep_until: None
        }
    );
}

#[test]
fn no_run_is_made_after_until_and_one_that_never_would_be_is_refused() {
    let mut bench = Bench::new();
    let until = |end| Recurrence {
        until: Some(at(end)),
        ..every(10)
    };
    bench.set("a", after(10), Missed::Fire, until(30));
    assert_eq!(bench.run_until(100), on_time([10, 20, 30]));
    assert!(matches!(bench.record("a").state, State::Done { .. }));
    let options = SetOptions {
        recurrence: Some(until(105).into()),
        ..SetOptions::default()
    };
    let refused = bench.ask(set("b", after(10), options));
    assert!(matches!(
        refused,
        Err(TimerError::Recurrence(RecurrenceError::NoRunInTime))
    ));
    assert_eq!(bench.find("b"), None);
}

#[test]
fn a_run_that_overlaps_is_skipped_or_waits() {
    let mut bench = Bench::new();
    bench.set("skip", after(10), Missed::Fire, every(10));
    let queue = Recurrence {
        overlap: Overlap::Queue,
        ..every(10)
    };
    bench.set("queue", after(10), Missed::Fire, queue);
    bench.next_start();
    bench.pass(35);
    assert_eq!(bench.started.len(), 2, "one run at a time");
    bench.finish(Verdict::Done);
    bench.finish(Verdict::Done);
    assert_eq!(bench.recurring("skip").overlapped, 3);
    assert_eq!(bench.recurring("queue").overlapped, 2);
    // Nothing else happened: it starts in the turn in which the other ended.
    let waited = bench.started.front().expect("it waited").clone();
    assert_eq!(waited.name, name("queue"));
    assert_eq!((waited.due, waited.started), (at(40), at(45)));
    bench.finish(Verdict::Done);
    assert_eq!(bench.run_until(55), on_time([50, 50]));
    assert_eq!(bench.engine.stats().overlapped, 5);
}

#[test]
fn retries_belong_to_the_run_and_what_comes_due_meanwhile_overlaps() {
    let mut bench = Bench::new();
    bench.set("a", after(10), Missed::Fire, every(3));
    bench.next_start();
    bench.finish(failed()); // again at 12
    bench.next_start();
    bench.finish(failed()); // again at 14, past the 13 of the grid
    let (start, run) = bench.next_start();
    assert_eq!((start, run.number, run.nominal), (14, 1, at(10)));
    bench.finish(Verdict::Done);
    assert_eq!(bench.next_start().0, 16);
    assert_eq!(bench.recurring("a").overlapped, 1);
}

#[test]
fn every_missed_run_is_made_in_order() {
    let mut bench = Bench::new();
    bench.set("a", after(10), Missed::Fire, every(10));
    bench.restart_after(45);
    let made = bench.run_until(55);
    assert_eq!(made, [(10, 45), (20, 45), (30, 45), (40, 45), (50, 50)]);
    let recurring = bench.recurring("a");
    assert_eq!((recurring.run, recurring.missed), (6, 0));
}

#[test]
fn missed_runs_are_made_at_the_catch_up_rate() {
    let config = Config {
        catch_up_per_second: 2,
        ..Config::default()
    };
    let mut bench = Bench::with(NOON, config);
    bench.set("a", after(1), Missed::Fire, every(1));
    bench.set("b", after(1), Missed::Fire, every(1));
    bench.restart_after(20);
    let made = bench.run_until(24);
    // Two a second, in order of deadline, beside those that are due now.
    let caught_up: Vec<_> = made.iter().filter(|(due, _)| *due < 20).copied().collect();
    assert_eq!(
        caught_up[..6],
        [(1, 20), (1, 20), (2, 21), (2, 21), (3, 22), (3, 22)]
    );
    assert_eq!(caught_up.len(), 9);
}

#[test]
fn more_timers_catch_up_than_one_page_of_the_store_has() {
    let config = Config {
        catch_up_per_second: 1_000_000,
        ..Config::default()
    };
    let mut bench = Bench::with(NOON, config);
    for number in 0..2_500 {
        let key = format!("{number}");
        bench.set(&key, after(10), Missed::Fire, every(10));
    }
    bench.restart_after(45);
    let made = bench.run_until(46);
    assert_eq!(made.len(), 4 * 2_500);
    assert!(made.is_sorted(), "in the order of their nominal times");
}

#[test]
fn runs_that_end_all_at_once_are_followed_by_all_the_next() {
    let config = Config {
        catch_up_per_second: 1_000_000,
        max_in_flight: 5_000,
        ..Config::default()
    };
    let mut bench = Bench::with(NOON, config);
    for number in 0..2_500 {
        let key = format!("{number}");
        bench.set(&key, after(10), Missed::Fire, every(10));
    }
    bench.restart_after(45);
    for point in [10, 20, 30, 40] {
        for _ in 0..5 {
            bench.clock.advance(Duration::from_millis(10));
            bench.turn(vec![]);
        }
        assert_eq!(bench.started.len(), 2_500);
        let ended = bench.started.drain(..).map(|attempt| {
            assert_eq!(attempt.run.unwrap().nominal, at(point));
            Event::Outcome {
                revision: attempt.revision,
                outcome: Outcome::done(),
            }
        });
        let ended = ended.collect();
        bench.turn(ended);
    }
    assert!(bench.started.is_empty());
}

#[test]
fn missed_runs_collapse_into_one() {
    let mut bench = Bench::new();
    bench.set("a", after(10), Missed::Collapse, every(10));
    bench.restart_after(45);
    assert_eq!(bench.run_until(55), [(40, 45), (50, 50)]);
    let recurring = bench.recurring("a");
    assert_eq!((recurring.run, recurring.missed), (3, 3));
    assert_eq!(bench.engine.stats().missed, 3);
}

#[test]
fn missed_runs_of_many_calendars_are_counted_in_many_turns() {
    let mut bench = Bench::new();
    for series in 0..40 {
        let every_second = cron("* * * * * *", "UTC");
        let key = format!("series-{series}");
        bench.set(&key, after(1), Missed::Collapse, every_second);
    }
    bench.restart_after(20_000);
    let mut turns = 1;
    while bench.engine.stats().missed < 40 * 10_001 {
        let before = bench.engine.stats().missed;
        assert!(before <= turns * 7 * 10_001, "{before} in {turns} turns");
        let now = bench.clock.timestamp();
        assert!(bench.engine.next_wake().is_some_and(|wake| wake <= now));
        bench.turn(vec![]);
        turns += 1;
    }
    assert_eq!(turns, 6);
    bench.turn(vec![]);
    assert_eq!(bench.started.len(), 40);
}

#[test]
fn overlapped_runs_of_many_calendars_are_counted_in_many_turns() {
    let mut bench = Bench::new();
    for series in 0..40 {
        let every_second = cron("* * * * * *", "UTC");
        bench.set(
            &format!("series-{series}"),
            after(1),
            Missed::Fire,
            every_second,
        );
    }
    bench.pass(1);
    assert_eq!(bench.started.len(), 40);
    bench.clock.advance(seconds(20_000));
    let ends = bench.started.drain(..).map(|attempt| Event::Outcome {
        revision: attempt.revision,
        outcome: Outcome::done(),
    });
    let ends = ends.collect();
    bench.turn(ends);
    for left in [33, 26, 19, 12, 5, 0] {
        assert_eq!(bench.engine.deferred(), left);
        bench.turn(vec![]);
    }
    assert!(bench.engine.stats().overlapped >= 40 * 10_000);
}

#[test]
fn a_missed_run_that_is_too_old_is_passed_over() {
    let mut bench = Bench::new();
    let fresh = Missed::SkipIfOlderThan(seconds(16));
    bench.set("a", after(10), fresh, every(10));
    bench.restart_after(45);
    assert_eq!(bench.run_until(55), [(30, 45), (40, 45), (50, 50)]);
    assert_eq!(bench.recurring("a").missed, 2);
    // Where the schedule is over, the timer has ended where it can be seen.
    let short = Recurrence {
        until: Some(at(75)),
        ..every(10)
    };
    bench.set("b", after(10), fresh, short);
    bench.restart_after(100);
    assert_eq!(bench.recurring("b").missed, 2);
    let State::Dead { reason, .. } = bench.record("b").state else {
        panic!("{:?}", bench.record("b"));
    };
    assert_eq!(reason, DeadReason::Missed);
}

#[test]
fn a_timer_for_one_time_that_is_too_old_is_dead_and_can_be_revived() {
    let mut bench = Bench::new();
    let options = |age| SetOptions {
        missed: Missed::SkipIfOlderThan(seconds(age)),
        ..SetOptions::default()
    };
    bench.ask(set("old", after(10), options(34))).unwrap();
    bench.ask(set("young", after(10), options(35))).unwrap();
    bench.restart_after(45);
    let attempt = bench.finish(failed());
    assert_eq!((attempt.name, attempt.run), (name("young"), None));
    // A retry is never missed, however late.
    bench.restart_after(1_000);
    assert_eq!(bench.finish(Verdict::Done).name, name("young"));
    let reason = DeadReason::Missed;
    let old = bench.record("old");
    assert_eq!(
        old.state,
        State::Dead {
            at: at(45),
            reason,
            keep_until: None
        }
    );
    assert_eq!((old.attempt, bench.engine.stats().attempts), (0, 1));
    let due = after(0);
    let revive = Request::Revive {
        name: name("old"),
        due,
    };
    bench.ask(revive).unwrap();
    assert_eq!(bench.finish(Verdict::Done).name, name("old"));
}

#[test]
fn an_interrupted_run_is_made_again_and_is_not_missed() {
    let mut bench = Bench::new();
    let fresh = Missed::SkipIfOlderThan(seconds(5));
    bench.set("a", after(10), fresh, every(10));
    bench.next_start();
    bench.restart_after(35);
    let (start, run) = bench.next_start();
    assert_eq!((start, run.number, run.nominal), (45, 1, at(10)));
    assert_eq!(bench.finish(Verdict::Done).number, 2);
    assert_eq!(bench.run_until(55), on_time([50]));
    let recurring = bench.recurring("a");
    assert_eq!((recurring.missed, recurring.overlapped), (0, 3));
}

#[test]
fn a_restart_while_missed_runs_are_made_loses_none() {
    let mut bench = Bench::new();
    bench.set("a", after(10), Missed::Fire, every(10));
    bench.restart_after(35);
    bench.next_start();
    bench.finish(Verdict::Done);
    // That of 20 has started when the process ends; those of 30 to 60 are missed as well.
    assert_eq!(bench.next_start().1.nominal, at(20));
    bench.restart_after(30);
    assert_eq!(bench.next_start().1.nominal, at(20));
    bench.finish(Verdict::Done);
    assert_eq!(bench.next_start().1.nominal, at(30));
    let recurring = bench.recurring("a");
    // Those of 40 to 60 came due while that of 20 was not at its end.
    bench.finish(Verdict::Done);
    assert_eq!(recurring.overlapped, 0);
    assert_eq!(bench.recurring("a").overlapped, 3);
    assert_eq!(bench.record("a").due, at(70));

    // Between two runs it is another matter: nothing was under way.
    let config = Config {
        catch_up_per_second: 1,
        ..Config::default()
    };
    let mut bench = Bench::with(NOON, config);
    bench.set("a", after(10), Missed::Fire, every(10));
    bench.restart_after(35);
    bench.next_start();
    bench.finish(Verdict::Done);
    assert!(bench.started.is_empty(), "the rate allows no more");
    bench.restart_after(30);
    let made = bench.run_until(75);
    let nominal: Vec<_> = made.iter().map(|(nominal, _)| *nominal).collect();
    assert_eq!(nominal, [20, 30, 40, 50, 60, 70]);
}

#[test]
fn a_move_moves_the_next_run_only() {
    let mut bench = Bench::new();
    bench.set("a", after(10), Missed::Fire, every(10));
    let shift = Shift::Later(seconds(25));
    let precondition = Precondition::None;
    let name = name("a");
    bench
        .ask(Request::Move {
            name,
            shift,
            precondition,
        })
        .unwrap();
    assert_eq!(bench.run_until(55), [(10, 35), (40, 40), (50, 50)]);
}

#[test]
fn a_fire_makes_a_run_now_and_leaves_the_grid_alone() {
    let mut bench = Bench::new();
    bench.set("a", after(10), Missed::Fire, every(10));
    bench.pass(3);
    bench.ask(Request::Fire { name: name("a") }).unwrap();
    let (start, run) = bench.next_start();
    assert_eq!((start, run.number, run.nominal), (3, 1, at(3)));
    bench.finish(Verdict::Done);
    assert_eq!(bench.run_until(25), on_time([10, 20]));
    assert_eq!(bench.recurring("a").run, 4);
}

#[test]
fn a_remove_ends_it_also_while_it_runs() {
    let mut bench = Bench::new();
    let remove = |key: &str| Request::Remove {
        name: name(key),
        precondition: Precondition::None,
        only_pending: false,
    };
    bench.set("a", after(10), Missed::Fire, every(10));
    bench.set("b", after(10), Missed::Fire, every(10));
    bench.next_start();
    bench.finish(Verdict::Done);
    let was = bench.ask(remove("a")).unwrap();
    assert!(matches!(was, Response::Removed(Was::Pending { due }) if due == at(20)));
    let was = bench.ask(remove("b")).unwrap();
    assert!(matches!(
        was,
        Response::Removed(Was::Delivering { attempt: 1 })
    ));
    bench.finish(Verdict::Done);
    assert_eq!(bench.engine.stats().outdated, 1);
    assert_eq!(bench.run_until(100), []);
    assert_eq!((bench.find("a"), bench.find("b")), (None, None));
}

#[test]
fn jitter_spreads_the_runs_and_draws_the_same_after_a_restart() {
    let jittered = Recurrence {
        jitter: seconds(8),
        ..every(10)
    };
    let run = |restarts: bool| {
        let mut bench = Bench::new();
        bench.set("a", after(10), Missed::Fire, jittered.clone());
        let mut dues = Vec::new();
        for _ in 0..20 {
            if restarts {
                bench.restart_after(0);
            }
            let nominal = bench.next_start().1.nominal;
            let attempt = bench.finish(Verdict::Done);
            assert_eq!(attempt.started, attempt.due);
            let offset = attempt.due.saturating_since(nominal);
            assert!(offset <= seconds(8));
            dues.push((nominal, offset));
        }
        dues
    };
    let dues = run(false);
    assert_eq!(dues, run(true));
    let nominal: Vec<_> = dues.iter().map(|(nominal, _)| *nominal).collect();
    let grid: Vec<_> = (1..=20).map(|step| at(10 * step)).collect();
    assert_eq!(nominal, grid, "the grid does not drift");
    assert!(dues.iter().any(|(_, offset)| *offset > seconds(5)));
    assert!(dues.iter().any(|(_, offset)| *offset < seconds(3)));
}

#[test]
fn a_cron_expression_follows_the_clocks_of_its_zone() {
    // 2026-03-28 00:00 UTC, a day before the clocks of Berlin go forward.
    let start = Timestamp::from_micros(1_774_656_000_000_000);
    let mut bench = Bench::with(start, Config::default());
    let first = bench.set(
        "a",
        after(0),
        Missed::Fire,
        cron("30 2 * * *", "Europe/Berlin"),
    );
    let hours = |time: Timestamp| time.saturating_since(start).as_secs() / 60;
    assert_eq!(hours(first), 90); // 02:30 in winter is 01:30
    let mut minutes = Vec::new();
    for _ in 0..3 {
        bench.next_start();
        minutes.push(hours(bench.finish(Verdict::Done).due));
    }
    // 02:30 is left out: at 03:00, which is 01:00. Then 02:30 in summer is 00:30.
    assert_eq!(minutes, [90, 1_440 + 60, 2_880 + 30]);
}

#[test]
fn an_anchored_grid_goes_through_its_anchor() {
    let mut bench = Bench::new();
    let daily = |anchor| {
        Recurrence::new(Schedule::FixedRate {
            every: seconds(86_400),
            anchor: Some(anchor),
        })
    };
    let past = NOON.saturating_sub(seconds(10 * 86_400 + 3_600));
    let first = bench.set("past", after(0), Missed::Fire, daily(past));
    assert_eq!(first, at(23 * 3_600));
    let first = bench.set("future", after(0), Missed::Fire, daily(at(77)));
    assert_eq!(first, at(77));
    let first = bench.set("now", after(0), Missed::Fire, daily(NOON));
    assert_eq!(first, NOON);
}

#[test]
fn a_recurrence_out_of_its_bounds_changes_nothing() {
    let mut bench = Bench::new();
    let far = Schedule::FixedRate {
        every: seconds(1),
        anchor: Some(NOON + Due::MAX_AHEAD + seconds(1)),
    };
    let refuse = |bench: &mut Bench, missed, recurrence| {
        let options = SetOptions {
            missed,
            recurrence,
            ..SetOptions::default()
        };
        let refused = bench.ask(set("a", after(1), options)).unwrap_err();
        assert_eq!(bench.find("a"), None);
        refused
    };
    let short = every(0).into();
    assert!(matches!(
        refuse(&mut bench, Missed::Fire, Some(short)),
        TimerError::Recurrence(RecurrenceError::Every { .. })
    ));
    let far = Recurrence::new(far).into();
    assert!(matches!(
        refuse(&mut bench, Missed::Fire, Some(far)),
        TimerError::TooFar
    ));
    let long = Missed::SkipIfOlderThan(Duration::MAX);
    assert!(matches!(
        refuse(&mut bench, long, None),
        TimerError::Recurrence(RecurrenceError::Missed { .. })
    ));
}
