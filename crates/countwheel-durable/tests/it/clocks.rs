//! Instants go by the wall clock, delays by a clock that no step of it touches.

use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, Config, Due, DueClock, Effect, Engine, Event, Outcome, Precondition, Request,
    RetryPolicy, SetOptions, Shift, State, Ticket, TimerName, Verdict,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);
const HOUR: Duration = Duration::from_secs(3_600);

struct Bench {
    clock: ManualClock,
    store: MemoryStore,
    engine: Engine,
    started: Vec<Attempt>,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::at(NOON);
        let store = MemoryStore::new(7);
        let engine = open(&store, &clock);
        Self {
            clock,
            store,
            engine,
            started: Vec::new(),
        }
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

    fn ask(&mut self, request: Request) {
        self.turn(vec![Event::Request(Ticket(0), request)]);
    }

    fn set(&mut self, key: &str, due: Due) {
        self.ask(Request::Set {
            name: name(key),
            due,
            policy: RetryPolicy::fixed(Duration::from_secs(10)).max_age(Duration::from_secs(35)),
            payload: Vec::new(),
            options: SetOptions::default(),
            precondition: Precondition::None,
        });
    }

    fn step(&mut self, forward: bool, span: Duration) {
        let now = self.clock.timestamp();
        self.clock.set_timestamp(if forward {
            now + span
        } else {
            now.saturating_sub(span)
        });
    }

    /// Lets time pass from wake-up to wake-up, and gives the names that started meanwhile.
    fn wait(&mut self, seconds: u64) -> Vec<String> {
        let before = self.started.len();
        let end = self.clock.boot() + Duration::from_secs(seconds);
        loop {
            self.turn(vec![]);
            let left = end.saturating_since(self.clock.boot());
            let now = self.clock.timestamp();
            let wait = self.engine.next_wake().map(|at| at.saturating_since(now));
            self.clock.advance(wait.unwrap_or(left).min(left));
            if left == Duration::ZERO {
                break;
            }
        }
        let new = self.started[before..].iter();
        new.map(|attempt| attempt.name.key.to_string()).collect()
    }

    fn fail(&mut self) {
        let attempt = self.started.pop().expect("an attempt runs");
        let outcome = Outcome::new(Verdict::Failed { retry_after: None }, "");
        let revision = attempt.revision;
        self.turn(vec![Event::Outcome { revision, outcome }]);
    }

    fn clock_of(&self, key: &str) -> DueClock {
        let record = self.store.get(Shard::ONLY, &name(key)).unwrap();
        record.unwrap().clock
    }
}

fn open(store: &MemoryStore, clock: &ManualClock) -> Engine {
    let clock = Arc::new(clock.clone());
    Engine::open(
        Arc::new(store.clone()),
        Shard::ONLY,
        clock,
        Config::default(),
    )
    .unwrap()
}

fn name(key: &str) -> TimerName {
    TimerName::new("q", key).unwrap()
}

fn at(seconds: u64) -> Due {
    Due::At(NOON + Duration::from_secs(seconds))
}

fn after(seconds: u64) -> Due {
    Due::In(Duration::from_secs(seconds))
}

#[test]
fn a_forward_step_brings_instants_and_leaves_delays() {
    let mut bench = Bench::new();
    bench.set("instant", at(1_800));
    bench.set("delay", after(1_800));
    bench.step(true, HOUR);
    assert_eq!(bench.wait(0), ["instant"]);
    assert_eq!(bench.wait(1_799), [""; 0]);
    assert_eq!(bench.wait(1), ["delay"]);
    // Late is what comes after its time by its own clock: the instant was passed over.
    assert_eq!(bench.started[0].lateness(), Duration::from_secs(1_800));
    assert_eq!(bench.started[1].lateness(), Duration::ZERO);
    let stats = bench.engine.stats();
    assert_eq!((stats.steps_forward, stats.steps_backward), (1, 0));
    assert_eq!(stats.last_step_micros, 3_600_000_000);
}

#[test]
fn a_backward_step_takes_instants_away_and_leaves_delays() {
    let mut bench = Bench::new();
    bench.set("instant", at(60));
    bench.set("delay", after(60));
    assert_eq!(bench.wait(30), [""; 0]);
    bench.step(false, HOUR);
    assert_eq!(bench.wait(29), [""; 0]);
    assert_eq!(bench.wait(1), ["delay"]);
    assert_eq!(bench.wait(3_599), [""; 0]);
    assert_eq!(bench.wait(1), ["instant"]);
    assert!(bench.started.iter().all(|a| a.lateness() == Duration::ZERO));
    let stats = bench.engine.stats();
    assert_eq!((stats.steps_forward, stats.steps_backward), (0, 1));
    assert_eq!(stats.last_step_micros, -3_600_000_000);
}

#[test]
fn a_suspend_counts_for_both_and_is_no_step() {
    let mut bench = Bench::new();
    bench.set("instant", at(60));
    bench.set("delay", after(60));
    bench.turn(vec![]);
    bench.clock.suspend(HOUR);
    let mut started = bench.wait(0);
    started.sort();
    assert_eq!(started, ["delay", "instant"]);
    let stats = bench.engine.stats();
    assert_eq!((stats.steps_forward, stats.steps_backward), (0, 0));
}

#[test]
fn a_small_difference_is_followed_and_is_no_step() {
    let mut bench = Bench::new();
    for _ in 0..10 {
        bench.step(true, Duration::from_millis(250));
        bench.wait(0);
    }
    assert_eq!(bench.engine.stats().steps_forward, 0);
    bench.step(true, Duration::from_micros(250_001));
    bench.wait(0);
    assert_eq!(bench.engine.stats().steps_forward, 1);
    // Slewed by half a thousandth for an hour without a turn.
    bench.clock.advance(HOUR);
    bench.step(false, Duration::from_millis(1_800));
    bench.wait(0);
    assert_eq!(bench.engine.stats().steps_backward, 0);
}

#[test]
fn a_retry_is_a_delay_and_its_age_goes_on() {
    let mut bench = Bench::new();
    bench.set("a", at(5));
    assert_eq!(bench.wait(5), ["a"]);
    bench.step(true, HOUR);
    bench.fail(); // noticed an hour later by the wall clock, by which it was due: too old
    let record = bench.store.get(Shard::ONLY, &name("a")).unwrap().unwrap();
    assert!(matches!(record.state, State::Dead { .. }));

    bench.set("b", at(3_605 + 5));
    assert_eq!(bench.wait(5), ["b"]);
    bench.fail();
    assert_eq!(bench.clock_of("b"), DueClock::Boot);
    bench.step(false, HOUR);
    assert_eq!(bench.wait(10), ["b"]);
    bench.step(true, 2 * HOUR);
    bench.fail();
    assert_eq!(bench.wait(10), ["b"]);
    bench.fail();
    assert_eq!(bench.wait(10), ["b"]);
    // 30 s since it was first due, whatever the wall clock shows; the next would be 40.
    bench.fail();
    let record = bench.store.get(Shard::ONLY, &name("b")).unwrap().unwrap();
    assert!(matches!(record.state, State::Dead { .. }));
}

#[test]
fn a_move_says_by_which_clock_or_keeps_it() {
    let mut bench = Bench::new();
    let to = |shift| Request::Move {
        name: name("a"),
        shift,
        precondition: Precondition::None,
    };
    bench.set("a", at(60));
    bench.ask(to(Shift::Later(Duration::from_secs(1))));
    assert_eq!(bench.clock_of("a"), DueClock::Wall);
    bench.ask(to(Shift::To(after(60))));
    assert_eq!(bench.clock_of("a"), DueClock::Boot);
    bench.ask(to(Shift::Sooner(Duration::from_secs(1))));
    assert_eq!(bench.clock_of("a"), DueClock::Boot);
    bench.step(true, HOUR);
    bench.ask(to(Shift::Later(Duration::from_secs(1))));
    assert_eq!(bench.wait(59), [""; 0]);
    assert_eq!(bench.wait(1), ["a"]);

    bench.set("b", after(60));
    bench.step(true, HOUR);
    bench.ask(Request::Fire { name: name("b") });
    assert_eq!(bench.started.len(), 2);
    assert_eq!(bench.started[1].lateness(), Duration::ZERO);
}

/// A delay came earlier by what the wall clock had been set forward while the process before lived.
#[test]
fn a_step_moves_no_delay_after_a_restart_either() {
    let mut bench = Bench::new();
    bench.set("delay", after(60));
    bench.turn(vec![]);
    bench.step(true, Duration::from_secs(40));
    bench.turn(vec![]);
    bench.engine = open(&bench.store, &bench.clock);
    assert_eq!(bench.wait(59), [""; 0]);
    assert_eq!(bench.wait(1), ["delay"]);
}

#[test]
fn what_a_step_makes_due_starts_in_turns() {
    let mut bench = Bench::new();
    for i in 0..300 {
        bench.set(&format!("{i}"), at(1_800));
    }
    bench.ask(Request::Set {
        name: TimerName::new("other", "a").unwrap(),
        due: at(1_801),
        policy: RetryPolicy::default(),
        payload: Vec::new(),
        options: SetOptions::default(),
        precondition: Precondition::None,
    });
    bench.step(true, HOUR);
    bench.turn(vec![]);
    let place = bench
        .started
        .iter()
        .position(|a| a.name.queue.as_str() == "other");
    assert_eq!(place, Some(1));
}
