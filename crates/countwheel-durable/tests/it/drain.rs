//! Drained queues: no new timers, and their own go out, are held or are taken out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{MemoryStore, Shard};
use countwheel_durable::{
    Attempt, BatchError, Config, DrainMode, Due, Effect, Engine, Event, Outcome, Precondition,
    QueueName, Request, Response, RetryPolicy, SetOptions, Shards, Ticket, TimerError, TimerName,
    Timers,
};
use countwheel_time::{Clock, ManualClock, SystemClock, Timestamp};

const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);

struct Bench {
    clock: ManualClock,
    store: MemoryStore,
    engine: Engine,
    started: Vec<Attempt>,
    batches: Vec<Result<Vec<Response>, BatchError>>,
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
            batches: Vec::new(),
        }
    }

    fn restart(&mut self) {
        self.engine = open(&self.store, &self.clock);
    }

    fn turn(&mut self, events: Vec<Event>) -> Vec<Result<Response, TimerError>> {
        let mut answers = Vec::new();
        let (started, batches) = (&mut self.started, &mut self.batches);
        let sink = &mut |effect| match effect {
            Effect::Answer(_, answer) => answers.push(answer),
            Effect::BatchAnswer(_, answer) => batches.push(answer),
            Effect::Start(attempt) => started.push(attempt),
        };
        self.engine.turn(events, sink).unwrap();
        answers
    }

    fn ask_all(&mut self, requests: Vec<Request>) -> Vec<Result<Response, TimerError>> {
        let events = requests
            .into_iter()
            .map(|request| Event::Request(Ticket(0), request));
        self.turn(events.collect())
    }

    fn ask(&mut self, request: Request) -> Result<Response, TimerError> {
        self.ask_all(vec![request]).pop().unwrap()
    }

    fn drain(&mut self, queue: Option<&str>, mode: DrainMode) {
        self.ask(drain(queue, Some(mode))).unwrap();
    }

    fn resume(&mut self, queue: Option<&str>) {
        self.ask(drain(queue, None)).unwrap();
    }

    /// Lets time pass from wake-up to wake-up. Says what started, and how many turns there were.
    fn wait(&mut self, seconds: u64) -> (Vec<String>, usize) {
        let end = self.clock.timestamp() + Duration::from_secs(seconds);
        let mut turns = 0;
        loop {
            self.turn(vec![]);
            turns += 1;
            match self.engine.next_wake() {
                Some(at) if at <= end => {
                    self.clock
                        .advance(at.saturating_since(self.clock.timestamp()));
                }
                _ => break,
            }
        }
        self.clock
            .advance(end.saturating_since(self.clock.timestamp()));
        self.turn(vec![]);
        let started = self.started.iter().map(|it| it.name.to_string());
        (started.collect(), turns)
    }

    fn finish_all(&mut self, outcome: &Outcome) {
        let events = std::mem::take(&mut self.started).into_iter();
        let events = events.map(|attempt| Event::Outcome {
            revision: attempt.revision,
            outcome: outcome.clone(),
        });
        self.turn(events.collect());
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

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn drain(name: Option<&str>, mode: Option<DrainMode>) -> Request {
    Request::drain(name.map(queue).as_ref(), mode).unwrap()
}

fn set(queue: &str, key: &str, seconds: u64) -> Request {
    Request::Set {
        name: TimerName::new(queue, key).unwrap(),
        due: Due::In(Duration::from_secs(seconds)),
        policy: RetryPolicy::default(),
        payload: key.into(),
        precondition: Precondition::None,
        options: SetOptions::default(),
    }
}

const FIRE: DrainMode = DrainMode::Fire { until: None };

#[test]
fn a_drained_queue_takes_no_timer_until_it_is_resumed_and_others_do() {
    for mode in [FIRE, DrainMode::Hold, DrainMode::Remove] {
        let mut bench = Bench::new();
        bench.drain(Some("orders"), mode);
        let refused = bench.ask(set("orders", "a", 1)).unwrap_err();
        assert!(
            matches!(&refused, TimerError::Draining { queue, mode: m } if queue.as_str() == "orders" && *m == mode),
            "{refused:?}"
        );
        bench.ask(set("others", "a", 1)).unwrap();
        bench.resume(Some("orders"));
        bench.ask(set("orders", "a", 1)).unwrap();
    }
}

#[test]
fn a_paused_queue_takes_timers_and_starts_them_when_the_pause_ends() {
    let mut bench = Bench::new();
    let until = Some(NOON + Duration::from_secs(60));
    bench.drain(Some("q"), DrainMode::Pause { until });
    bench.ask(set("q", "a", 5)).unwrap();
    bench.ask(set("others", "b", 5)).unwrap();
    let (started, turns) = bench.wait(59);
    assert_eq!(started, ["others/b"]);
    assert!(turns < 70, "{turns} turns");
    let (started, _) = bench.wait(1);
    assert_eq!(started, ["others/b", "q/a"]);
    // It waited for the pause, and not for the scheduler.
    assert_eq!(bench.started[1].held, Duration::from_secs(55));
    assert_eq!(
        bench.started[1].started,
        bench.started[1].due + bench.started[1].held
    );

    // Without an end, until a resume, also after a restart.
    bench.finish_all(&Outcome::done());
    bench.drain(Some("q"), DrainMode::Pause { until: None });
    bench.ask(set("q", "c", 5)).unwrap();
    bench.restart();
    let (started, _) = bench.wait(3_600);
    assert!(started.is_empty(), "{started:?}");
    bench.resume(Some("q"));
    let (started, _) = bench.wait(0);
    assert_eq!(started, ["q/c"]);
}

#[test]
fn a_pause_hides_no_drain_of_all() {
    let mut bench = Bench::new();
    bench.drain(Some("q"), DrainMode::Pause { until: None });
    bench.drain(None, FIRE);
    let refused = bench.ask(set("q", "a", 0)).unwrap_err();
    assert!(
        matches!(refused, TimerError::Draining { mode: FIRE, .. }),
        "{refused:?}"
    );
}

#[test]
fn a_set_in_the_turn_of_the_drain_counts_by_the_order_of_both() {
    let mut bench = Bench::new();
    let hold = || drain(Some("q"), Some(DrainMode::Hold));
    let answers = bench.ask_all(vec![
        set("q", "before", 1),
        hold(),
        set("q", "after", 1),
        drain(Some("q"), None),
        set("q", "resumed", 1),
    ]);
    assert!(answers[0].is_ok() && answers[4].is_ok(), "{answers:?}");
    assert!(matches!(answers[2], Err(TimerError::Draining { .. })));
}

#[test]
fn a_refused_batch_leaves_no_drain_behind() {
    let mut bench = Bench::new();
    let refused = vec![drain(Some("q"), Some(DrainMode::Hold)), set("q", "a", 0)];
    bench.turn(vec![
        Event::Batch(Ticket(0), refused),
        Event::Request(Ticket(1), set("q", "b", 0)),
    ]);
    assert!(bench.batches[0].is_err());
    assert_eq!(bench.started.len(), 1, "b was set and is due");
}

#[test]
fn hold_starts_nothing_from_its_answer_on_and_resume_starts_what_is_due() {
    let mut bench = Bench::new();
    bench.ask(set("q", "a", 5)).unwrap();
    bench.ask(set("others", "b", 5)).unwrap();
    bench.ask(set("q", "now", 0)).unwrap();
    assert_eq!(bench.started.len(), 1);
    bench.finish_all(&Outcome::failed("again"));
    // Due in the very turn that answers the drain.
    bench.clock.advance(Duration::from_secs(5));
    bench.drain(Some("q"), DrainMode::Hold);
    let (started, turns) = bench.wait(3_600);
    assert_eq!(started, ["others/b"]);
    assert!(turns < 3_700, "{turns} turns in an hour with nothing to do");
    bench.resume(Some("q"));
    let (started, _) = bench.wait(1);
    let started: BTreeSet<_> = started.iter().map(String::as_str).collect();
    assert_eq!(started, BTreeSet::from(["others/b", "q/a", "q/now"]));
}

#[test]
fn what_a_drain_held_is_held_and_not_late() {
    let mut bench = Bench::new();
    bench.ask(set("q", "before", 5)).unwrap();
    bench.ask(set("q", "within", 60)).unwrap();
    bench.clock.advance(Duration::from_secs(15));
    // Nobody came for ten seconds: late by that, and not by the drain.
    bench.drain(Some("q"), DrainMode::Hold);
    bench.wait(100);
    bench.resume(Some("q"));
    for attempt in &bench.started {
        let late = if attempt.name.key.as_str() == "before" {
            10
        } else {
            0
        };
        assert_eq!(attempt.lateness(), Duration::from_secs(late), "{attempt:?}");
    }
    assert_eq!(bench.started.len(), 2);
}

#[test]
fn what_starts_long_after_the_end_of_a_drain_is_late_by_the_rest_alone() {
    let clock = ManualClock::at(NOON);
    let store = MemoryStore::new(7);
    let config = Config {
        max_in_flight: 1,
        ..Config::default()
    };
    let engine = Engine::open(
        Arc::new(store.clone()),
        Shard::ONLY,
        Arc::new(clock.clone()),
        config,
    );
    let mut bench = Bench {
        clock,
        store,
        engine: engine.unwrap(),
        started: Vec::new(),
        batches: Vec::new(),
    };
    bench.ask(set("q", "a", 5)).unwrap();
    bench.ask(set("q", "b", 5)).unwrap();
    bench.drain(None, DrainMode::Hold);
    bench.wait(100);
    bench.resume(None);
    // There is one place: b waits for it, which counts as held as well.
    assert_eq!(bench.started.len(), 1);
    bench.clock.advance(Duration::from_secs(7));
    bench.finish_all(&Outcome::done());
    assert_eq!(bench.started.len(), 1);
    assert_eq!(bench.started[0].lateness(), Duration::ZERO);
    assert_eq!(bench.started[0].held, Duration::from_secs(102));
}

#[test]
fn fire_lets_go_out_what_is_due_until_its_time() {
    let mut bench = Bench::new();
    for (key, seconds) in [("a", 5), ("b", 15)] {
        bench.ask(set("q", key, seconds)).unwrap();
    }
    let until = Some(NOON + Duration::from_secs(10));
    bench.drain(Some("q"), DrainMode::Fire { until });
    assert_eq!(bench.wait(3_600).0, ["q/a"]);
    bench.drain(Some("q"), FIRE);
    assert_eq!(bench.wait(1).0, ["q/a", "q/b"]);
}

#[test]
fn a_drain_outlives_the_process_and_one_of_all_holds_all() {
    let mut bench = Bench::new();
    bench.ask(set("q", "a", 5)).unwrap();
    bench.drain(None, DrainMode::Hold);
    bench.restart();
    assert!(matches!(
        bench.ask(set("another", "b", 5)),
        Err(TimerError::Draining { .. })
    ));
    assert!(bench.wait(60).0.is_empty());
    bench.restart();
    assert!(bench.wait(60).0.is_empty());
    bench.resume(None);
    assert_eq!(bench.wait(1).0, ["q/a"]);
}

#[test]
fn a_held_queue_can_still_be_moved_fired_and_removed() {
    let mut bench = Bench::new();
    for key in ["a", "b"] {
        bench.ask(set("q", key, 60)).unwrap();
    }
    bench.drain(Some("q"), DrainMode::Hold);
    let name = |key| TimerName::new("q", key).unwrap();
    bench.ask(Request::Fire { name: name("a") }).unwrap();
    assert!(bench.wait(1).0.is_empty());
    bench
        .ask(Request::Remove {
            name: name("b"),
            precondition: Precondition::None,
            only_pending: false,
        })
        .unwrap();
    bench.resume(Some("q"));
    assert_eq!(bench.wait(100).0, ["q/a"]);
}

#[test]
fn remove_hands_back_every_timer_once_and_says_what_is_left() {
    for shards in [Shards::ONE, Shards::new(4).unwrap()] {
        let handler = |_: &Attempt| Outcome::stopped();
        let clock = Arc::new(SystemClock::new());
        let (store, config) = (MemoryStore::new(7), Config::default());
        let timers =
            Timers::open_divided(store, shards, shards.all(), handler, clock, config).unwrap();
        let hour = Duration::from_secs(3_600);
        let policy = RetryPolicy::default();
        for key in 0..2_500 {
            let name = TimerName::new("q", format!("key-{key}")).unwrap();
            timers.set_with(name, hour, policy.clone(), "x").unwrap();
        }
        let other = TimerName::new("other", "a").unwrap();
        timers.set_with(&other, hour, policy, "x").unwrap();
        let q = queue("q");
        let mut keys = BTreeSet::new();
        let mut left = Vec::new();
        loop {
            let drained = timers.drain(Some(&q), DrainMode::Remove).unwrap();
            for record in drained.removed {
                assert!(
                    keys.insert(record.name.key.to_string()),
                    "handed back twice"
                );
            }
            left.push(drained.left.pending);
            if drained.left.is_empty() {
                break;
            }
        }
        assert_eq!((keys.len(), left), (2_500, vec![1_500, 500, 0]));
        assert!(timers.get(&other).unwrap().is_some());
        assert_eq!(timers.drains().of(&q), Some(DrainMode::Remove));
        assert_eq!(timers.resume(Some(&q)).unwrap(), Some(DrainMode::Remove));
        assert_eq!(timers.resume(Some(&q)).unwrap(), None);
    }
}

#[test]
fn a_drain_of_all_shards_is_seen_by_each_before_it_is_answered() {
    let shards = Shards::new(8).unwrap();
    let handler = |_: &Attempt| Outcome::done();
    let clock = Arc::new(SystemClock::new());
    let (store, config) = (MemoryStore::new(7), Config::default());
    let timers = Timers::open_divided(store, shards, shards.all(), handler, clock, config).unwrap();
    for round in 0..20 {
        let _left = timers.drain(None, DrainMode::Hold).unwrap();
        for key in 0..16 {
            let name = TimerName::new("q", format!("{round}-{key}")).unwrap();
            let refused = timers.set_with(&name, Duration::ZERO, RetryPolicy::default(), "");
            assert!(
                matches!(refused, Err(TimerError::Draining { .. })),
                "{refused:?}"
            );
        }
        timers.resume(None).unwrap();
        for key in 0..16 {
            let name = TimerName::new("q", format!("{round}-{key}")).unwrap();
            timers
                .set_with(&name, Duration::ZERO, RetryPolicy::default(), "")
                .unwrap();
        }
    }
    timers.stop(Duration::ZERO);
    assert!(matches!(
        timers.drain(None, DrainMode::Hold),
        Err(TimerError::Closed)
    ));
}

/// The drains overlapped, and one time after another: the longest alone counted.
#[test]
fn the_times_of_several_drains_count_together_and_none_twice() {
    let mut bench = Bench::new();
    bench.ask(set("q", "a", 2)).unwrap();
    let second = |bench: &mut Bench, seconds| bench.clock.advance(Duration::from_secs(seconds));
    // Held from 0 to 6 by its own drain and from 4 to 9 by that of all, due at 2.
    bench.drain(Some("q"), DrainMode::Hold);
    second(&mut bench, 4);
    bench.drain(None, DrainMode::Hold);
    second(&mut bench, 2);
    bench.resume(Some("q"));
    second(&mut bench, 3);
    // And from 9 to 14 once more, in the turn that ended the one before.
    let own = drain(Some("q"), Some(DrainMode::Hold));
    bench.ask_all(vec![drain(None, None), own]);
    second(&mut bench, 5);
    bench.resume(Some("q"));
    let attempt = &bench.started[0];
    assert_eq!(attempt.held, Duration::from_secs(12), "{attempt:?}");
    assert_eq!(attempt.lateness(), Duration::ZERO);
}
