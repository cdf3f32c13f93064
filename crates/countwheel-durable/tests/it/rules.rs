//! Rules that a timer leaves to its queue, one sentence each, under a clock that stands still.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use countwheel_durable::store::{MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, Config, DeadReason, Due, Effect, Engine, Event, Flow, FlowLimits, Flows, Missed,
    Outcome, Overlap, Precondition, QueueName, Record, Recurrence, Request, RetryPolicy, Route,
    Rules, Schedule, SetOptions, State, Ticket, TimerName, Verdict,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);
/// The payload of a timer that has named its rules.
const OWN: &[u8] = b"own";

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What the queue `q` says. Other queues say nothing.
#[derive(Debug, Default)]
struct Says(Mutex<(Option<RetryPolicy>, Option<Missed>, Option<Overlap>)>);

impl Says {
    fn open<T>(queue: &QueueName, payload: &[u8], said: Option<T>) -> Option<T> {
        said.filter(|_| queue.as_str() == "q" && payload != OWN)
    }
}

impl Rules for Says {
    fn retry(&self, queue: &QueueName, payload: &[u8]) -> Option<RetryPolicy> {
        Self::open(queue, payload, self.0.lock().unwrap().0.clone())
    }

    fn missed(&self, queue: &QueueName, payload: &[u8]) -> Option<Missed> {
        Self::open(queue, payload, self.0.lock().unwrap().1)
    }

    fn overlap(&self, queue: &QueueName, payload: &[u8]) -> Option<Overlap> {
        Self::open(queue, payload, self.0.lock().unwrap().2)
    }
}

/// A worker that takes what there is, for five seconds.
#[derive(Debug)]
struct Worker;

impl Flows for Worker {
    fn route(&self, _: &TimerName, _: &[u8]) -> Route {
        Route {
            flows: Vec::new(),
            priority: 0,
            lease: Some(Flow::new("workers")),
        }
    }

    fn limits(&self, _: &Flow) -> FlowLimits {
        FlowLimits::default()
    }

    fn lease(&self, _: &Flow) -> Option<Duration> {
        Some(seconds(5))
    }
}

struct Bench {
    clock: ManualClock,
    store: MemoryStore,
    config: Config,
    says: Arc<Says>,
    engine: Engine,
    started: Vec<Attempt>,
}

impl Bench {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        let says = Arc::<Says>::default();
        let rules: Arc<dyn Rules> = Arc::<Says>::clone(&says);
        let config = Config {
            rules: Some(rules),
            ..config
        };
        let (clock, store) = (ManualClock::at(NOON), MemoryStore::new(7));
        Self {
            engine: open(&store, &clock, &config),
            clock,
            store,
            config,
            says,
            started: Vec::new(),
        }
    }

    /// The process is away for so long.
    fn restart_after(&mut self, away: u64) {
        self.started.clear();
        self.clock.advance(seconds(away));
        self.engine = open(&self.store, &self.clock, &self.config);
        self.turn(Vec::new());
    }

    fn retry(&self, policy: RetryPolicy) {
        self.says.0.lock().unwrap().0 = Some(policy);
    }

    fn turn(&mut self, events: Vec<Event>) {
        let started = &mut self.started;
        let sink = &mut |effect| match effect {
            Effect::Answer(_, answer) => drop(answer.unwrap()),
            Effect::BatchAnswer(..) => unreachable!("nobody asks for a batch"),
            Effect::Start(attempt) => started.push(attempt),
        };
        self.engine.turn(events, sink).unwrap();
    }

    /// Sets a timer that is due in ten seconds, with a retry every ten seconds, twice at the most.
    fn set(&mut self, payload: &[u8], options: SetOptions) {
        let request = Request::Set {
            name: name(),
            due: Due::In(seconds(10)),
            policy: RetryPolicy::fixed(seconds(10)).max_retries(2),
            payload: payload.to_vec(),
            precondition: Precondition::None,
            options,
        };
        self.turn(vec![Event::Request(Ticket(0), request)]);
    }

    fn wait(&mut self, span: u64) {
        self.clock.advance(seconds(span));
        self.turn(Vec::new());
    }

    fn end(&mut self, verdict: Verdict) {
        let revision = self.started.pop().expect("an attempt runs").revision;
        let outcome = Outcome::new(verdict, "said the test");
        self.turn(vec![Event::Outcome { revision, outcome }]);
    }

    fn fail(&mut self) {
        self.end(Verdict::Failed { retry_after: None });
    }

    fn record(&self) -> Record {
        let record = self.store.get(Shard::ONLY, &name()).unwrap();
        record.expect("the timer is kept")
    }

    /// In how many seconds the timer is due.
    fn due_in(&self) -> u64 {
        let due = self.record().due;
        due.saturating_since(self.clock.timestamp()).as_secs()
    }

    fn dead(&self) -> Option<DeadReason> {
        match self.record().state {
            State::Dead { reason, .. } => Some(reason),
            _ => None,
        }
    }
}

fn open(store: &MemoryStore, clock: &ManualClock, config: &Config) -> Engine {
    let (store, clock) = (Arc::new(store.clone()), Arc::new(clock.clone()));
    Engine::open(store, Shard::ONLY, clock, config.clone()).unwrap()
}

fn name() -> TimerName {
    TimerName::new("q", "a").unwrap()
}

fn once(missed: Missed) -> SetOptions {
    SetOptions {
        missed,
        recurrence: None,
        ..SetOptions::default()
    }
}

fn every_ten(missed: Missed, overlap: Overlap) -> SetOptions {
    let every = seconds(10);
    let mut recurrence = Recurrence::new(Schedule::FixedRate {
        every,
        anchor: None,
    });
    recurrence.overlap = overlap;
    SetOptions {
        missed,
        recurrence: Some(Box::new(recurrence)),
        ..SetOptions::default()
    }
}

#[test]
fn the_retry_policy_is_the_one_that_the_queue_has_when_the_attempt_fails() {
    let mut bench = Bench::new();
    bench.set(b"", SetOptions::default());
    let set_with = bench.record().policy;
    bench.retry(RetryPolicy::fixed(seconds(30)));
    bench.wait(10);
    bench.retry(RetryPolicy::fixed(seconds(40)));
    bench.fail();
    assert_eq!(bench.due_in(), 40);
    // What is there before the next failure holds for that one.
    bench.retry(RetryPolicy::fixed(seconds(50)));
    assert_eq!(bench.due_in(), 40);
    bench.wait(40);
    bench.fail();
    assert_eq!(bench.due_in(), 50);
    // More failures than the timer was set for, also over a restart.
    bench.wait(50);
    bench.restart_after(1);
    bench.fail();
    assert_eq!(bench.due_in(), 50);
    // The record has what held at the set, whatever the queue says.
    assert_eq!(bench.record().policy, set_with);
}

#[test]
fn a_rule_that_the_timer_has_named_stays_whatever_its_queue_says() {
    let mut bench = Bench::new();
    bench.retry(RetryPolicy::fixed(seconds(30)));
    bench.says.0.lock().unwrap().1 = Some(Missed::SkipIfOlderThan(seconds(1)));
    bench.set(OWN, SetOptions::default());
    bench.wait(60);
    bench.fail();
    assert_eq!(bench.due_in(), 10);
    for _ in 0..2 {
        bench.wait(10);
        bench.fail();
    }
    assert_eq!(bench.dead(), Some(DeadReason::Exhausted));
}

#[test]
fn a_schedule_that_became_shorter_gives_up_at_the_next_failure_and_not_before() {
    let mut bench = Bench::new();
    bench.set(b"", SetOptions::default());
    bench.wait(10);
    bench.fail();
    bench.wait(10);
    bench.fail();
    // Two failures are more than there may be now. The attempt that waits is made all the same.
    bench.retry(RetryPolicy::fixed(seconds(10)).max_retries(1));
    assert_eq!((bench.dead(), bench.due_in()), (None, 10));
    bench.wait(10);
    assert_eq!(bench.started.len(), 1);
    bench.fail();
    assert_eq!(bench.dead(), Some(DeadReason::Exhausted));
}

#[test]
fn a_maximum_age_that_became_shorter_holds_for_the_attempt_that_waits() {
    let mut bench = Bench::new();
    bench.set(b"", SetOptions::default());
    bench.wait(10);
    bench.fail();
    bench.retry(RetryPolicy::fixed(seconds(10)).max_age(seconds(5)));
    assert_eq!(bench.dead(), None);
    bench.wait(10);
    assert_eq!(bench.dead(), Some(DeadReason::TooOld));
    assert!(bench.started.is_empty());
}

#[test]
fn whether_a_timer_was_missed_is_judged_by_the_rule_of_that_moment() {
    for (at_set, now, is_made) in [
        (Missed::Fire, Missed::SkipIfOlderThan(seconds(60)), false),
        (Missed::SkipIfOlderThan(seconds(60)), Missed::Fire, true),
    ] {
        let mut bench = Bench::new();
        bench.set(b"", once(at_set));
        bench.says.0.lock().unwrap().1 = Some(now);
        bench.restart_after(600);
        assert_eq!(bench.started.len(), usize::from(is_made), "{now:?}");
        let reason = (!is_made).then_some(DeadReason::Missed);
        assert_eq!(bench.dead(), reason, "{now:?}");
    }
}

#[test]
fn missed_runs_are_passed_over_by_the_rule_of_that_moment() {
    let mut bench = Bench::new();
    bench.set(b"", every_ten(Missed::Fire, Overlap::Skip));
    bench.says.0.lock().unwrap().1 = Some(Missed::Collapse);
    bench.restart_after(95);
    bench.turn(Vec::new());
    let recurring = bench.record().recurring.expect("it recurs");
    assert_eq!((recurring.missed, recurring.run), (8, 1));
    // The record has the rule with which the timer was set.
    assert_eq!(bench.record().missed, Missed::Fire);
}

#[test]
fn runs_overlap_by_the_rule_at_the_end_of_the_run() {
    for (at_set, now, next) in [
        (Overlap::Skip, Overlap::Queue, 0),
        (Overlap::Queue, Overlap::Skip, 5),
    ] {
        let mut bench = Bench::new();
        bench.set(b"", every_ten(Missed::Fire, at_set));
        bench.wait(10);
        bench.says.0.lock().unwrap().2 = Some(now);
        bench.wait(25);
        bench.end(Verdict::Done);
        assert_eq!(bench.due_in(), next, "{now:?}");
        let recurring = bench.record().recurring.expect("it recurs");
        assert_eq!(recurring.recurrence.overlap, at_set);
    }
}

#[test]
fn a_lease_without_an_outcome_counts_by_the_policy_of_that_moment() {
    let mut bench = Bench::with(Config {
        flows: Some(Arc::new(Worker)),
        ..Config::default()
    });
    bench.set(b"", SetOptions::default());
    bench.wait(10);
    assert_eq!(bench.started.len(), 1);
    bench.retry(RetryPolicy::fixed(seconds(10)).max_retries(0));
    bench.wait(5);
    assert_eq!(bench.dead(), Some(DeadReason::LeaseLost));
}
