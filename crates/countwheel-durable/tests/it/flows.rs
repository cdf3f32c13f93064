//! Limits by where attempts go. `sim flows` has the worlds, these are the sentences.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use countwheel_durable::store::{MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, Config, Due, DueClock, Effect, Engine, Event, Flow, FlowLimits, FlowRate, Flows,
    Missed, Outcome, Overlap, Precondition, Record, Recurrence, Request, RetryPolicy, Route,
    Schedule, SetOptions, State, StateKind, Ticket, TimerName, Timers, inline,
};
use countwheel_time::{Clock, ManualClock, SystemClock};

use super::window::{NOON, Run, fill, record};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// The payload names the flow; each has the limits that stand here, or only its share.
#[derive(Debug, Default)]
struct Named(Mutex<BTreeMap<Flow, FlowLimits>>);

impl Named {
    fn limit(&self, flow: &str, limits: FlowLimits) {
        self.0.lock().unwrap().insert(Flow::new(flow), limits);
    }
}

impl Flows for Named {
    fn route(&self, _: &TimerName, payload: &[u8]) -> Route {
        Flow::new(String::from_utf8_lossy(payload)).into()
    }

    fn limits(&self, flow: &Flow) -> FlowLimits {
        let known = self.0.lock().unwrap();
        known.get(flow).copied().unwrap_or(FlowLimits {
            shared: true,
            ..FlowLimits::default()
        })
    }
}

fn of_flow(flow: &str, revision: u64, due: Duration) -> Record {
    let key = format!("{flow}-{revision}");
    Record {
        payload: flow.as_bytes().to_vec(),
        ..record(revision, "all", &key, NOON + due, DueClock::Wall)
    }
}

fn flow_of(attempt: &Attempt) -> String {
    String::from_utf8(attempt.payload.clone()).unwrap()
}

/// How long after their deadlines the attempts of each flow started, whatever held them.
#[derive(Default)]
struct Delays(RefCell<BTreeMap<String, Vec<Duration>>>);

impl Delays {
    fn note(&self, attempt: &Attempt) {
        let delay = attempt.started.saturating_since(attempt.due);
        let mut delays = self.0.borrow_mut();
        delays.entry(flow_of(attempt)).or_default().push(delay);
    }

    fn of(&self, flow: &str) -> Vec<Duration> {
        self.0.borrow().get(flow).cloned().unwrap_or_default()
    }
}

#[test]
fn receivers_that_hang_delay_no_other_of_their_queue() {
    let store = MemoryStore::new(7);
    let hanging = (0..3_000).map(|i| {
        let due = SECOND + MILLISECOND * u32::try_from(i).unwrap();
        of_flow(&format!("hanging-{}", i % 3), 1 + i, due)
    });
    let others = (0..970).map(|i| {
        let due = SECOND + MILLISECOND * u32::try_from(3 * i).unwrap();
        of_flow(&format!("other-{}", i % 97), 10_000 + i, due)
    });
    fill(&store, hanging.chain(others));
    let config = Config {
        max_in_flight: 64,
        flows: Some(Arc::new(Named::default())),
        ..Config::default()
    };
    let mut run = Run::new(&store, config);
    let delays = Delays::default();
    run.run(10 * SECOND, |attempt| {
        delays.note(attempt);
        let hangs = flow_of(attempt).starts_with("hanging");
        (!hangs).then_some(4 * MILLISECOND)
    });
    for other in 0..97 {
        let delays = delays.of(&format!("other-{other}"));
        assert_eq!(delays, [Duration::ZERO; 10], "other-{other}");
    }
    // Three times what is left of the three quarters that a queue has: 3/10 of 48.
    let hung: Vec<_> = (0..3)
        .map(|i| delays.of(&format!("hanging-{i}")).len())
        .collect();
    assert!(hung.iter().all(|n| (13..=15).contains(n)), "{hung:?}");
}

#[test]
fn what_waits_for_a_flow_is_held_and_not_late() {
    let store = MemoryStore::new(7);
    fill(&store, (0..20).map(|i| of_flow("slow", 1 + i, SECOND)));
    let rules = Arc::new(Named::default());
    let one = FlowLimits {
        at_once: Some(1),
        ..FlowLimits::default()
    };
    rules.limit("slow", one);
    let config = Config {
        flows: Some(rules),
        ..Config::default()
    };
    let mut run = Run::new(&store, config);
    let delays = Delays::default();
    run.run(60 * SECOND, |attempt| {
        delays.note(attempt);
        assert_eq!(attempt.lateness(), Duration::ZERO);
        Some(SECOND)
    });
    let expected: Vec<_> = (0..20).map(|i| SECOND * i).collect();
    assert_eq!(delays.of("slow"), expected);
}

#[test]
fn a_flow_keeps_to_its_rate_and_to_its_burst() {
    let store = MemoryStore::new(7);
    fill(&store, (0..30).map(|i| of_flow("rated", 1 + i, SECOND)));
    let rules = Arc::new(Named::default());
    let ten = FlowLimits {
        rate: Some(FlowRate::new(10, SECOND, 5)),
        ..FlowLimits::default()
    };
    rules.limit("rated", ten);
    let config = Config {
        flows: Some(rules),
        ..Config::default()
    };
    let mut run = Run::new(&store, config);
    let delays = Delays::default();
    run.run(60 * SECOND, |attempt| {
        delays.note(attempt);
        Some(MILLISECOND)
    });
    let after_burst = (1..=25).map(|i| 100 * MILLISECOND * i);
    let expected: Vec<_> = [Duration::ZERO; 5].into_iter().chain(after_burst).collect();
    assert_eq!(delays.of("rated"), expected);
}

/// The memory for what waits has room for some twenty.
#[test]
fn a_closed_flow_fits_into_memory_and_comes_whole_when_it_opens() {
    let store = MemoryStore::new(7);
    let closed = (0..20_000).map(|i| of_flow("closed", 1 + i, SECOND));
    let others = (0..500).map(|i| {
        let due = 30 * SECOND + 5 * MILLISECOND * u32::try_from(i).unwrap();
        of_flow("other", 50_000 + i, due)
    });
    fill(&store, closed.chain(others));
    let rules = Arc::new(Named::default());
    let none = FlowLimits {
        at_once: Some(0),
        ..FlowLimits::default()
    };
    rules.limit("closed", none);
    let flows: Arc<dyn Flows> = Arc::<Named>::clone(&rules);
    let config = Config {
        window_bytes: 128 << 10,
        max_in_flight: 16,
        flows: Some(flows),
        ..Config::default()
    };
    let mut run = Run::new(&store, config);
    let delays = Delays::default();
    run.run(60 * SECOND, |attempt| {
        delays.note(attempt);
        Some(MILLISECOND)
    });
    assert_eq!(delays.of("closed"), []);
    assert_eq!(delays.of("other"), [Duration::ZERO; 500]);
    let parked = run.engine.stats().parked;
    assert!((1..100).contains(&parked), "{parked} in memory");
    let scanned = run.engine.stats().scanned;
    // It goes on by itself once it has room: nobody has to be told where it stands.
    rules.limit("closed", FlowLimits::default());
    run.engine.flows_changed();
    run.run(60 * SECOND, |attempt| {
        delays.note(attempt);
        Some(MILLISECOND)
    });
    assert_eq!(delays.of("closed").len(), 20_000);
    run.assert_all_once("all", 20_500);
    let scanned = run.engine.stats().scanned - scanned;
    assert!(scanned < 200_000, "{scanned} entries for 20,000 timers");
}

/// An engine with a clock that is moved by hand, whose attempts are ended by the test.
struct Ended {
    clock: ManualClock,
    engine: Engine,
}

impl Ended {
    fn new(store: &MemoryStore, rules: Arc<Named>) -> Self {
        let clock = ManualClock::at(NOON);
        let config = Config {
            flows: Some(rules),
            ..Config::default()
        };
        let shared = Arc::new(clock.clone());
        let engine = Engine::open(Arc::new(store.clone()), Shard::ONLY, shared, config);
        let engine = engine.unwrap();
        Self { clock, engine }
    }

    /// Lets time pass and ends an attempt, if one is to end. What starts.
    fn turn(&mut self, span: Duration, ends: Option<(&Attempt, Outcome)>) -> Vec<Attempt> {
        self.clock.advance(span);
        let ends = ends.map(|(attempt, outcome)| Event::Outcome {
            revision: attempt.revision,
            outcome,
        });
        let mut starts = Vec::new();
        let events = ends.into_iter().collect();
        let turned = self.engine.turn(events, &mut |effect| {
            if let Effect::Start(attempt) = effect {
                starts.push(attempt);
            }
        });
        turned.unwrap();
        starts
    }
}

#[test]
fn what_its_handler_held_uses_up_nothing_and_is_asked_again() {
    let store = MemoryStore::new(7);
    let policy = RetryPolicy::fixed(SECOND)
        .max_attempts(2)
        .unwrap()
        .max_age(5 * SECOND);
    let timer = Record {
        policy,
        ..of_flow("shop", 1, SECOND)
    };
    let name = timer.name.clone();
    fill(&store, [timer].into_iter());
    let mut run = Ended::new(&store, Arc::default());
    let first = run.turn(SECOND, None).remove(0);
    let failed = Outcome::failed("503");
    assert!(run.turn(Duration::ZERO, Some((&first, failed))).is_empty());
    let second = run.turn(SECOND, None).remove(0);
    assert_eq!(second.number, 2);
    // It is held for longer than the maximum age, and again once it is asked.
    let held = |wait: u32| Outcome::held(Some(wait * SECOND));
    assert!(run.turn(SECOND, Some((&second, held(60)))).is_empty());
    let record = store.get(Shard::ONLY, &name).unwrap().unwrap();
    let stands = (&record.state, record.attempt, record.failures, record.due);
    assert_eq!(stands, (&State::Pending, 1, 1, second.due));
    assert_eq!(
        (record.attempts.len(), record.revision),
        (1, second.revision)
    );
    assert!(run.turn(60 * SECOND - MILLISECOND, None).is_empty());
    let third = run.turn(MILLISECOND, None).remove(0);
    assert_eq!((third.number, third.held), (2, 61 * SECOND));
    assert_eq!(third.lateness(), Duration::ZERO);
    assert!(run.turn(SECOND, Some((&third, held(60)))).is_empty());
    // A change of limits asks it at once.
    run.engine.flows_changed();
    let fourth = run.turn(SECOND, None).remove(0);
    assert_eq!((fourth.number, fourth.held), (2, 63 * SECOND));
    run.turn(Duration::ZERO, Some((&fourth, Outcome::done())));
    let stats = run.engine.stats();
    assert_eq!((stats.attempts, stats.not_made, stats.done), (4, 2, 1));
    assert_eq!(stats.lateness.count(), 2);
    let record = store.get(Shard::ONLY, &name).unwrap().unwrap();
    assert_eq!((record.attempt, record.state.kind()), (2, StateKind::Done));
}

/// The age of a timer begins when its first attempt may start.
#[test]
fn what_held_a_first_attempt_uses_up_no_age_and_stays_out_of_its_deadline() {
    let store = MemoryStore::new(7);
    let timer = Record {
        policy: RetryPolicy::fixed(SECOND).max_age(5 * SECOND),
        ..of_flow("shop", 1, SECOND)
    };
    let name = timer.name.clone();
    fill(&store, [timer].into_iter());
    let mut run = Ended::new(&store, Arc::default());
    let first = run.turn(SECOND, None).remove(0);
    let held = Outcome::held(Some(60 * SECOND));
    assert!(run.turn(SECOND, Some((&first, held.clone()))).is_empty());
    // It is held twice: both times count.
    let second = run.turn(60 * SECOND, None).remove(0);
    assert_eq!((second.number, second.deadline), (1, first.deadline));
    assert!(run.turn(SECOND, Some((&second, held))).is_empty());
    let third = run.turn(60 * SECOND, None).remove(0);
    assert_eq!((third.number, third.deadline), (1, first.deadline));
    let failed = || Outcome::failed("503");
    run.turn(SECOND, Some((&third, failed())));
    for number in 2..=3 {
        let next = run.turn(SECOND, None).remove(0);
        assert_eq!(next.number, number);
        run.turn(SECOND, Some((&next, failed())));
    }
    // 1 s of each attempt and 1 s of each pause: another pause would end after 6 s.
    let record = store.get(Shard::ONLY, &name).unwrap().unwrap();
    let stands = (record.attempt, record.state.kind());
    assert_eq!(stands, (3, StateKind::Dead), "{record:?}");
}

/// The handler may have looked at what has changed before it changed.
#[test]
fn a_change_while_the_handler_looked_is_not_missed() {
    let store = MemoryStore::new(7);
    fill(&store, [of_flow("shop", 1, SECOND)].into_iter());
    let mut run = Ended::new(&store, Arc::default());
    let first = run.turn(SECOND, None).remove(0);
    run.engine.flows_changed();
    let second = run.turn(SECOND, Some((&first, Outcome::held(None))));
    assert_eq!(second.len(), 1, "it is asked again at once");
    assert!(
        run.turn(SECOND, Some((&second[0], Outcome::held(None))))
            .is_empty()
    );
    // Nobody has changed anything since.
    assert!(run.turn(3_600 * SECOND, None).is_empty());
    run.engine.flows_changed();
    assert_eq!(run.turn(SECOND, None).len(), 1);
}

/// They were late by the time for which the flow was closed.
#[test]
fn runs_that_came_due_while_a_flow_was_closed_are_held() {
    let store = MemoryStore::new(7);
    let rules = Arc::new(Named::default());
    let closed = FlowLimits {
        at_once: Some(0),
        ..FlowLimits::default()
    };
    rules.limit("shop", closed);
    let mut run = Ended::new(&store, Arc::clone(&rules));
    let schedule = Schedule::FixedRate {
        every: SECOND,
        anchor: None,
    };
    let recurrence = Recurrence {
        overlap: Overlap::Queue,
        ..Recurrence::new(schedule)
    };
    let request = Request::Set {
        name: TimerName::new("all", "series").unwrap(),
        due: Due::In(SECOND),
        policy: RetryPolicy::default(),
        payload: b"shop".to_vec(),
        precondition: Precondition::None,
        options: SetOptions {
            missed: Missed::Fire,
            recurrence: Some(Box::new(recurrence)),
            ..SetOptions::default()
        },
    };
    let event = Event::Request(Ticket(1), request);
    run.engine.turn(vec![event], &mut drop).unwrap();
    for _ in 0..10 {
        assert!(run.turn(SECOND, None).is_empty());
    }
    rules.limit("shop", FlowLimits::default());
    run.engine.flows_changed();
    let mut starts = run.turn(SECOND / 2, None);
    for number in 1..=10 {
        let attempt = starts.remove(0);
        let of = attempt.run.unwrap();
        assert_eq!(of.number, number);
        assert_eq!(
            attempt.lateness(),
            MILLISECOND * (number - 1),
            "run {number}"
        );
        starts = run.turn(MILLISECOND, Some((&attempt, Outcome::done())));
    }
}

/// A scheduler that slept looked only when it would have looked anyway.
#[test]
fn a_change_of_limits_wakes_a_scheduler_that_sleeps() {
    let rules = Arc::new(Named::default());
    let closed = FlowLimits {
        at_once: Some(0),
        ..FlowLimits::default()
    };
    rules.limit("shop", closed);
    let flows: Arc<dyn Flows> = Arc::<Named>::clone(&rules);
    let config = Config {
        flows: Some(flows),
        ..Config::default()
    };
    let (send, started) = std::sync::mpsc::channel();
    let handler = inline(move |_: &Attempt| send.send(()));
    let clock = Arc::new(SystemClock::new());
    let timers = Timers::open(MemoryStore::new(7), handler, clock, config).unwrap();
    let mut slowest = Duration::ZERO;
    for number in 0..4 {
        rules.limit("shop", closed);
        let name = format!("all/timer-{number}");
        timers.set(&*name, Duration::ZERO, "shop").unwrap();
        let waits = || timers.stats().parked == 1;
        while !waits() {
            std::thread::yield_now();
        }
        let clock = SystemClock::new();
        let began = clock.now();
        rules.limit("shop", FlowLimits::default());
        timers.flows_changed();
        started.recv().unwrap();
        slowest = slowest.max(clock.now().saturating_since(began));
    }
    assert!(slowest < SECOND / 2, "{slowest:?}");
}
