//! The scheduler's rules, one sentence each, under a clock that stands still.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use countwheel_durable::store::{MemoryStore, Shard, Store, StoreError};
use countwheel_durable::{
    Answer, Attempt, AttemptResult, Config, DeadReason, Due, Effect, Engine, Event, Keep, Missed,
    Moved, Outcome, Precondition, QueueName, Record, Request, Response, Retention, RetryPolicy,
    Revision, Set, SetOptions, Shift, State, StateKind, Ticket, TimerError, TimerName, Verdict,
    Was,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);

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
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        let clock = ManualClock::at(NOON);
        let store = MemoryStore::new(7);
        let engine = open(&store, &clock, &config).unwrap();
        Self {
            clock,
            store,
            config,
            engine,
            started: VecDeque::new(),
        }
    }

    /// Ends the process: what was not committed is gone.
    fn restart(&mut self) {
        self.started.clear();
        self.engine = open(&self.store, &self.clock, &self.config).unwrap();
        self.turn(vec![]);
    }

    fn turn(&mut self, events: Vec<Event>) -> Vec<Result<Response, TimerError>> {
        let mut answers = Vec::new();
        let started = &mut self.started;
        let sink = &mut |effect| match effect {
            Effect::Answer(_, answer) => answers.push(answer),
            Effect::BatchAnswer(..) => unreachable!("nobody asks for a batch"),
            Effect::Start(attempt) => started.push_back(attempt),
        };
        self.engine.turn(events, sink).unwrap();
        answers
    }

    fn ask(&mut self, request: Request) -> Result<Response, TimerError> {
        self.turn(vec![Event::Request(Ticket(0), request)])
            .pop()
            .unwrap()
    }

    /// All of them in one turn.
    fn ask_all(&mut self, requests: impl Iterator<Item = Request>) {
        let events = requests.map(|request| Event::Request(Ticket(0), request));
        self.turn(events.collect());
    }

    fn set(&mut self, key: &str, seconds: u64) -> Revision {
        self.set_with(key, seconds, fixed(10))
    }

    fn set_with(&mut self, key: &str, seconds: u64, policy: RetryPolicy) -> Revision {
        match self.ask(set(key, seconds, policy)).unwrap() {
            Response::Set(Set { revision, .. }) => revision,
            other => panic!("{other:?}"),
        }
    }

    /// Lets time pass from wake-up to wake-up, and gives the names that started.
    fn wait(&mut self, seconds: u64) -> Vec<String> {
        let end = self.clock.timestamp() + Duration::from_secs(seconds);
        loop {
            self.turn(vec![]);
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
        self.started
            .iter()
            .map(|a| a.name.key.to_string())
            .collect()
    }

    fn finish(&mut self, verdict: Verdict) -> Attempt {
        self.end(Outcome::new(verdict, "said the test"))
    }

    fn end(&mut self, outcome: Outcome) -> Attempt {
        let attempt = self.started.pop_front().expect("an attempt runs");
        self.turn(vec![Event::Outcome {
            revision: attempt.revision,
            outcome,
        }]);
        attempt
    }

    fn record(&self, key: &str) -> Record {
        self.find(key).expect("the timer is kept")
    }

    fn find(&self, key: &str) -> Option<Record> {
        self.store.get(Shard::ONLY, &name(key)).unwrap()
    }
}

fn open(store: &MemoryStore, clock: &ManualClock, config: &Config) -> Result<Engine, StoreError> {
    let clock = Arc::new(clock.clone());
    Engine::open(Arc::new(store.clone()), Shard::ONLY, clock, config.clone())
}

fn name(key: &str) -> TimerName {
    TimerName::new("q", key).unwrap()
}

fn fixed(seconds: u64) -> RetryPolicy {
    RetryPolicy::fixed(Duration::from_secs(seconds))
}

fn set(key: &str, seconds: u64, policy: RetryPolicy) -> Request {
    Request::Set {
        name: name(key),
        due: Due::In(Duration::from_secs(seconds)),
        policy,
        payload: key.as_bytes().to_vec(),
        precondition: Precondition::None,
        options: SetOptions::default(),
    }
}

fn set_at(key: &str, due: Timestamp) -> Request {
    let mut request = set(key, 0, fixed(10));
    if let Request::Set { due: at, .. } = &mut request {
        *at = Due::At(due);
    }
    request
}

fn noon_and(seconds: u64) -> Timestamp {
    NOON + Duration::from_secs(seconds)
}

fn remove(key: &str) -> Request {
    Request::Remove {
        name: name(key),
        precondition: Precondition::None,
        only_pending: false,
    }
}

fn move_to(key: &str, shift: Shift) -> Request {
    Request::Move {
        name: name(key),
        shift,
        precondition: Precondition::None,
    }
}

fn failed() -> Verdict {
    Verdict::Failed { retry_after: None }
}

#[test]
fn a_timer_starts_at_its_deadline_and_not_before() {
    let mut bench = Bench::new();
    bench.set("a", 5);
    assert_eq!(bench.wait(4), [""; 0]);
    bench.clock.advance(Duration::from_micros(999_999));
    bench.turn(vec![]);
    assert!(bench.started.is_empty());
    bench.clock.advance(Duration::from_micros(1));
    bench.turn(vec![]);
    let attempt = bench.finish(Verdict::Done);
    assert_eq!(attempt.number, 1);
    assert_eq!(attempt.due, NOON + Duration::from_secs(5));
    assert_eq!(attempt.payload, b"a");
    assert!(matches!(bench.record("a").state, State::Done { .. }));
}

#[test]
fn equal_deadlines_start_in_the_order_of_their_sets_and_a_move_is_a_new_one() {
    let mut bench = Bench::new();
    for key in ["a", "b", "c"] {
        bench.set(key, 5);
    }
    let five = Due::At(NOON + Duration::from_secs(5));
    bench.ask(move_to("a", Shift::To(five))).unwrap();
    assert_eq!(bench.wait(5), ["b", "c", "a"]);
}

#[test]
fn a_deadline_that_has_passed_is_due_at_once() {
    let mut bench = Bench::new();
    let mut request = set("a", 0, fixed(1));
    if let Request::Set { due, .. } = &mut request {
        *due = Due::At(NOON.saturating_sub(Duration::from_secs(3600)));
    }
    let answer = bench.ask(request).unwrap();
    assert!(matches!(answer, Response::Set(Set { due: NOON, .. })));
    assert_eq!(bench.started.len(), 1);
}

#[test]
fn a_deadline_beyond_a_hundred_years_is_refused() {
    let mut bench = Bench::new();
    let last = Due::MAX_AHEAD.as_secs();
    assert!(bench.ask(set("a", last, fixed(1))).is_ok());
    let refusal = bench.ask(set("b", last + 1, fixed(1)));
    assert!(matches!(refusal, Err(TimerError::TooFar)));
    let refusal = bench.ask(set("b", u64::MAX, fixed(1)));
    assert!(matches!(refusal, Err(TimerError::TooFar)));
    assert_eq!(bench.find("b"), None);
}

#[test]
fn a_set_replaces_what_had_the_name() {
    let mut bench = Bench::new();
    bench.set("a", 5);
    let answer = bench.ask(set("a", 9, fixed(1))).unwrap();
    assert!(matches!(
        answer,
        Response::Set(Set {
            replaced: Some(StateKind::Pending),
            ..
        })
    ));
    assert_eq!(bench.wait(8), [""; 0]);
    assert_eq!(bench.wait(1), ["a"]);
}

#[test]
fn a_move_goes_sooner_or_later_and_the_old_deadline_means_nothing() {
    let mut bench = Bench::new();
    bench.set("sooner", 100);
    bench.set("later", 5);
    let by = Duration::from_secs(90);
    bench.ask(move_to("sooner", Shift::Sooner(by))).unwrap();
    let answer = bench.ask(move_to("later", Shift::Later(by))).unwrap();
    let Response::Moved(Moved { old_due, due, .. }) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(old_due, NOON + Duration::from_secs(5));
    assert_eq!(due, NOON + Duration::from_secs(95));
    assert_eq!(bench.wait(94), ["sooner"]);
    assert_eq!(bench.wait(1), ["sooner", "later"]);
    let too_soon = bench.ask(move_to("sooner", Shift::Sooner(by)));
    assert!(matches!(
        too_soon,
        Err(TimerError::Conflict {
            state: StateKind::Delivering
        })
    ));
}

#[test]
fn a_conditional_request_needs_the_revision_it_names() {
    let mut bench = Bench::new();
    let first = bench.set("a", 5);
    let second = bench.set("a", 6);
    assert!(second > first);
    let mut request = move_to("a", Shift::Later(Duration::from_secs(1)));
    let condition = |request: &mut Request, asked| match request {
        Request::Move { precondition, .. } | Request::Set { precondition, .. } => {
            *precondition = asked;
        }
        _ => unreachable!(),
    };
    condition(&mut request, Precondition::Revision(first));
    let refusal = bench.ask(request.clone());
    assert!(matches!(refusal, Err(TimerError::Changed { current }) if current == second));
    condition(&mut request, Precondition::Revision(second));
    assert!(bench.ask(request).is_ok());

    let mut request = set("a", 1, fixed(1));
    condition(&mut request, Precondition::Absent);
    let refusal = bench.ask(request.clone());
    assert!(matches!(refusal, Err(TimerError::Exists { .. })));
    bench.ask(remove("a")).unwrap();
    assert!(bench.ask(request).is_ok());
    // A revision is never given twice, so a new timer of the name is not mistaken for it.
    assert!(bench.record("a").revision > second);
}

#[test]
fn a_removed_timer_never_starts_and_the_answer_says_what_it_was_doing() {
    let mut bench = Bench::new();
    bench.set("pending", 5);
    bench.set("delivering", 1);
    bench.set("done", 2);
    bench.set_with("dead", 3, fixed(1).max_retries(0));
    assert_eq!(bench.wait(1), ["delivering"]);
    let held = bench.started.pop_front().unwrap();
    bench.wait(1);
    bench.finish(Verdict::Done);
    bench.wait(1);
    bench.finish(failed());

    let was = |answer| match answer {
        Ok(Response::Removed(was)) => was,
        other => panic!("{other:?}"),
    };
    let due = NOON + Duration::from_secs(5);
    assert_eq!(was(bench.ask(remove("pending"))), Was::Pending { due });
    let attempt = 1;
    assert_eq!(
        was(bench.ask(remove("delivering"))),
        Was::Delivering { attempt }
    );
    assert_eq!(was(bench.ask(remove("dead"))), Was::Dead);
    assert!(matches!(
        bench.ask(remove("done")),
        Err(TimerError::Gone { .. })
    ));
    assert!(matches!(
        bench.ask(remove("pending")),
        Err(TimerError::NotFound)
    ));
    // The attempt that ran comes back to nothing.
    bench.started.push_front(held);
    bench.finish(failed());
    assert_eq!(bench.wait(100), [""; 0]);
    assert_eq!(bench.engine.stats().outdated, 1);
}

#[test]
fn remove_only_if_pending_refuses_what_runs() {
    let mut bench = Bench::new();
    bench.set("a", 1);
    bench.wait(1);
    let request = Request::Remove {
        name: name("a"),
        precondition: Precondition::None,
        only_pending: true,
    };
    assert!(matches!(
        bench.ask(request),
        Err(TimerError::Conflict { .. })
    ));
}

#[test]
fn failures_follow_the_schedule_and_then_the_timer_is_dead() {
    let mut bench = Bench::new();
    let policy = RetryPolicy::list([1, 7].map(Duration::from_secs)).unwrap();
    bench.set_with("a", 5, policy);
    assert_eq!(bench.wait(5).len(), 1);
    bench.finish(failed());
    assert_eq!(bench.wait(1).len(), 1);
    bench.finish(failed());
    assert_eq!(bench.wait(6).len(), 0);
    assert_eq!(bench.wait(1).len(), 1);
    assert_eq!(bench.finish(failed()).number, 3);
    let record = bench.record("a");
    let reason = DeadReason::Exhausted;
    let at = NOON + Duration::from_secs(13);
    let keep_until = None;
    let dead = State::Dead {
        at,
        reason,
        keep_until,
    };
    assert_eq!(record.state, dead);
    let numbers: Vec<_> = record.attempts.iter().map(|a| a.number).collect();
    assert_eq!(numbers, [1, 2, 3]);
    let ends = record.attempts.iter().map(|a| a.ended.clone().unwrap());
    assert!(
        ends.into_iter()
            .all(|end| end.result == AttemptResult::Failed)
    );

    // Revived, it begins its schedule again, with the next attempt number.
    let due = Due::In(Duration::ZERO);
    let name = name("a");
    bench.ask(Request::Revive { name, due }).unwrap();
    assert_eq!(bench.finish(failed()).number, 4);
    assert_eq!(bench.wait(1).len(), 1);
    bench.finish(Verdict::Done);
    assert_eq!(bench.record("a").state.kind(), StateKind::Done);
}

#[test]
fn the_answers_of_the_last_attempts_are_kept() {
    let mut bench = Bench::new();
    let policy = RetryPolicy::fixed(Duration::from_secs(1));
    bench.set_with("a", 1, policy);
    let answers = |bench: &Bench| -> Vec<_> {
        let record = bench.record("a");
        let ends = record.attempts.iter().filter_map(|it| it.ended.as_ref());
        let answers = ends.map(|end| end.answer.as_ref().map(|it| it.as_bytes().to_vec()));
        answers.collect()
    };
    for number in 1..=3 {
        bench.wait(1);
        bench.end(Outcome::failed("503").with_answer([number]));
    }
    bench.wait(1);
    bench.end(Outcome::failed("no answer"));
    let kept = [Some(vec![1]), Some(vec![2]), Some(vec![3]), None];
    assert_eq!(answers(&bench), kept);
    // The fifth takes the place of the first, also in what is kept of it in memory.
    bench.wait(1);
    bench.end(Outcome::failed("503").with_answer(vec![5; 2 * Answer::MAX_BYTES]));
    let longest = Some(vec![5; Answer::MAX_BYTES]);
    let kept = [None, Some(vec![2]), Some(vec![3]), None, longest];
    assert_eq!(answers(&bench), kept);
    // A move leaves them, and another set takes all.
    let later = Shift::Later(Duration::from_secs(9));
    let (name, precondition) = (name("a"), Precondition::None);
    let shift = Request::Move {
        name,
        shift: later,
        precondition,
    };
    bench.ask(shift).unwrap();
    assert_eq!(answers(&bench), kept);
    bench.set("a", 1);
    assert!(answers(&bench).is_empty());
    bench.wait(1);
    bench.end(Outcome::done().with_answer("all is well"));
    assert_eq!(answers(&bench), [Some(b"all is well".to_vec())]);
}

#[test]
fn a_receiver_can_stop_a_timer_or_ask_for_time() {
    let mut bench = Bench::new();
    bench.set("a", 1);
    bench.wait(1);
    let retry_after = Some(Duration::from_secs(60));
    bench.finish(Verdict::Failed { retry_after });
    assert_eq!(bench.wait(59).len(), 0);
    assert_eq!(bench.wait(1).len(), 1);
    let retry_after = Some(Duration::MAX);
    bench.finish(Verdict::Failed { retry_after });
    assert_eq!(bench.wait(86_400 - 1).len(), 0);
    assert_eq!(bench.wait(1).len(), 1);
    bench.finish(Verdict::Stopped);
    let reason = DeadReason::Stopped;
    assert!(matches!(bench.record("a").state, State::Dead { reason: r, .. } if r == reason));
}

#[test]
fn fire_makes_a_pending_timer_due_now() {
    let mut bench = Bench::new();
    bench.set("a", 3600);
    let fire = || Request::Fire { name: name("a") };
    bench.ask(fire()).unwrap();
    assert_eq!(bench.started.len(), 1);
    assert!(matches!(
        bench.ask(fire()),
        Err(TimerError::Conflict { .. })
    ));
    bench.finish(Verdict::Done);
    assert!(matches!(bench.ask(fire()), Err(TimerError::Gone { .. })));
    assert_eq!(bench.wait(3600).len(), 0);
}

#[test]
fn a_set_while_an_attempt_runs_is_a_timer_of_its_own() {
    let mut bench = Bench::new();
    bench.set("a", 1);
    bench.wait(1);
    bench.set("a", 5);
    bench.finish(Verdict::Done);
    assert_eq!(bench.record("a").state, State::Pending);
    assert_eq!(bench.wait(5).len(), 1);
    assert_eq!(bench.finish(Verdict::Done).number, 1);
}

#[test]
fn what_a_crash_interrupts_is_delivered_again_under_the_next_number() {
    let mut bench = Bench::new();
    bench.set("a", 1);
    bench.set("b", 1000);
    bench.wait(1);
    bench.restart();
    let attempt = bench.finish(failed());
    assert_eq!((attempt.number, attempt.name), (2, name("a")));
    let record = bench.record("a");
    let first = record.attempts[0].ended.clone().unwrap();
    assert_eq!(first.result, AttemptResult::Interrupted);
    // An interruption uses up no retry.
    assert_eq!(record.failures, 1);
    assert_eq!(bench.wait(2000), ["a", "b"]);
}

#[test]
fn a_timer_whose_attempts_end_the_process_each_time_is_given_up() {
    let mut bench = Bench::new();
    bench.set("a", 1);
    bench.wait(1);
    for _ in 0..20 {
        bench.restart();
        // Long enough for a suspect to start.
        bench.wait(128);
    }
    let reason = DeadReason::Interrupted;
    let record = bench.record("a");
    assert!(matches!(record.state, State::Dead { reason: r, .. } if r == reason));
    assert_eq!(record.attempt, 10);
}

#[test]
fn the_overdue_follow_in_deadline_order_at_a_bounded_rate_and_hold_up_nobody() {
    let mut bench = Bench::with(Config {
        catch_up_per_second: 100,
        max_in_flight: 10_000,
        ..Config::default()
    });
    for i in 0..3_000_u64 {
        bench.set(&format!("old-{i:04}"), 10_000 - i);
    }
    bench.clock.advance(Duration::from_secs(20_000));
    bench.restart();
    bench.set("new", 1);
    let started = bench.wait(10);
    // 20 ms of unused allowance, 10 s at 100 a second, and the new one on time.
    assert!(
        (1_000..=1_005).contains(&started.len()),
        "{}",
        started.len()
    );
    let new = bench.started.iter().find(|a| a.name == name("new"));
    assert_eq!(new.unwrap().lateness(), Duration::ZERO);
    let old: Vec<_> = started.iter().filter(|key| *key != "new").collect();
    let first: Vec<_> = (0..old.len())
        .map(|i| format!("old-{:04}", 2_999 - i))
        .collect();
    assert!(old.iter().copied().eq(&first));
    assert_eq!(bench.wait(25).len(), 3_001);
}

#[test]
fn no_more_attempts_run_than_allowed() {
    let mut bench = Bench::with(Config {
        max_in_flight: 3,
        ..Config::default()
    });
    for i in 0..10 {
        bench.set(&format!("{i}"), 1);
    }
    assert_eq!(bench.wait(1), ["0", "1", "2"]);
    bench.finish(Verdict::Done);
    assert_eq!(bench.wait(0), ["1", "2", "3"]);
}

#[test]
fn a_small_window_misses_nothing() {
    for window in [2, 3, 7, 64] {
        let mut bench = Bench::with(Config {
            window,
            max_in_flight: 1_000,
            ..Config::default()
        });
        for i in 0..500_u64 {
            bench.set(&format!("{i:03}"), 1 + (i * 7919) % 500);
            let held = bench.engine.stats().in_window;
            assert!(held <= window + 1, "{held} in a window of {window}");
        }
        bench.wait(500);
        assert_eq!(bench.started.len(), 500);
        let late = bench.started.iter().map(Attempt::lateness).max();
        assert_eq!(late, Some(Duration::ZERO));
    }
}

#[test]
fn done_timers_are_forgotten_after_their_retention() {
    let mut bench = Bench::with(Config {
        keep_done: Duration::from_secs(60),
        ..Config::default()
    });
    bench.set("a", 1);
    bench.wait(1);
    bench.finish(Verdict::Done);
    bench.wait(59);
    assert!(bench.find("a").is_some());
    bench.wait(1);
    assert_eq!(bench.find("a"), None);
    assert_eq!(bench.engine.stats().forgotten, 1);
    assert_eq!(bench.engine.next_wake(), None);
}

/// What all queues say.
#[derive(Debug, Default)]
struct Says(Mutex<Keep>);

impl Says {
    fn say(&self, done: Option<u64>, dead: Option<u64>) {
        let [done, dead] = [done, dead].map(|seconds| seconds.map(Duration::from_secs));
        *self.0.lock().unwrap() = Keep { done, dead };
    }
}

impl Retention for Says {
    fn keep(&self, _: &QueueName) -> Keep {
        *self.0.lock().unwrap()
    }
}

/// A bench of which queues say how long they keep what has ended.
fn with_retention() -> (Arc<Says>, Bench) {
    let says = Arc::<Says>::default();
    let retention: Arc<dyn Retention> = Arc::<Says>::clone(&says);
    let config = Config {
        keep_done: Duration::from_secs(60),
        retention: Some(retention),
        ..Config::default()
    };
    (says, Bench::with(config))
}

#[test]
fn a_queue_keeps_its_done_timers_for_as_long_as_it_says_and_no_longer_than_any() {
    let (says, mut bench) = with_retention();
    says.say(Some(5), None);
    bench.set("a", 1);
    bench.wait(1);
    bench.finish(Verdict::Done);
    // What it says later is for what ends later.
    says.say(Some(3_600), None);
    bench.set("b", 1);
    bench.wait(1);
    bench.finish(Verdict::Done);
    bench.wait(3);
    assert!(bench.find("a").is_some());
    bench.wait(1);
    assert_eq!(bench.find("a"), None);
    bench.wait(55);
    assert!(bench.find("b").is_some());
    bench.wait(1);
    assert_eq!(bench.find("b"), None);
    says.say(Some(0), None);
    bench.set("c", 1);
    bench.wait(1);
    bench.finish(Verdict::Done);
    bench.wait(0);
    assert_eq!(bench.find("c"), None);
    assert_eq!(bench.engine.stats().forgotten, 3);
    assert_eq!(bench.engine.next_wake(), None);
}

#[test]
fn a_dead_timer_goes_when_its_queue_keeps_it_no_longer() {
    let (says, mut bench) = with_retention();
    for (key, dead) in [
        ("for good", None),
        ("a", Some(30)),
        ("b", Some(30)),
        ("c", Some(30)),
    ] {
        says.say(None, dead);
        bench.set(key, 1);
        bench.wait(1);
        bench.finish(Verdict::Stopped);
        let until = bench.record(key).state.kept_until();
        let expected = dead.map(|dead| bench.clock.timestamp() + Duration::from_secs(dead));
        assert_eq!(until, expected);
    }
    // It holds for them also if the queue says otherwise by then, and over a restart.
    says.say(None, Some(9_999));
    bench.restart();
    let due = Due::In(Duration::from_secs(3_600));
    let name = name("b");
    bench.ask(Request::Revive { name, due }).unwrap();
    bench.wait(27);
    assert!(bench.find("a").is_some());
    bench.wait(1);
    assert_eq!(bench.find("a"), None);
    bench.wait(2);
    let left = ["for good", "a", "b", "c"].map(|key| bench.find(key).is_some());
    assert_eq!(left, [true, false, true, false]);
    assert_eq!(bench.wait(3_600), ["b"]);
    assert!(bench.find("for good").is_some());
}

#[test]
fn a_refused_request_changes_nothing() {
    let mut bench = Bench::with(Config {
        max_payload: 10,
        ..Config::default()
    });
    bench.set("a", 5);
    let before = bench.record("a");
    let mut large = set("a", 9, fixed(1));
    if let Request::Set { payload, .. } = &mut large {
        *payload = vec![0; 11];
    }
    let refusal = bench.ask(large);
    assert!(matches!(
        refusal,
        Err(TimerError::PayloadTooLarge {
            bytes: 11,
            limit: 10
        })
    ));
    let refusal = bench.ask(set("a", 9, fixed(0)));
    assert!(matches!(refusal, Err(TimerError::Policy(_))));
    let due = Due::In(Duration::ZERO);
    let refusal = bench.ask(Request::Revive {
        name: name("a"),
        due,
    });
    assert!(matches!(refusal, Err(TimerError::Conflict { .. })));
    assert_eq!(bench.record("a"), before);
    assert_eq!(bench.engine.stats().refused, 3);
}

/// A thousand moves of timers with a payload of a megabyte each were one commit of a gigabyte.
#[test]
fn what_is_more_than_one_commit_takes_is_deferred_to_the_next() {
    let mut bench = Bench::with(Config {
        max_batch_bytes: 1_000,
        ..Config::default()
    });
    for key in ["a", "b", "c"] {
        let mut request = set(key, 5, fixed(1));
        if let Request::Set { payload, .. } = &mut request {
            *payload = vec![0; 600];
        }
        bench.ask(request).unwrap();
    }
    let moves = ["a", "b", "c"].map(|key| {
        let shift = Shift::Later(Duration::from_secs(5));
        let (name, precondition) = (name(key), Precondition::None);
        Request::Move {
            name,
            shift,
            precondition,
        }
    });
    let moves = moves.map(|request| Event::Request(Ticket(0), request));
    let mut answered = bench.turn(moves.into()).len();
    assert_eq!((answered, bench.engine.deferred()), (1, 2));
    for left in [1, 0] {
        assert_eq!(bench.engine.next_wake(), Some(bench.clock.timestamp()));
        answered += bench.turn(vec![]).len();
        assert_eq!(bench.engine.deferred(), left);
    }
    assert_eq!(answered, 3);
    bench.wait(5);
    assert!(bench.started.is_empty());
    bench.wait(5);
    assert_eq!(bench.started.len(), 3);
}

#[test]
fn an_owner_that_was_replaced_changes_nothing() {
    let mut bench = Bench::new();
    bench.set("a", 5);
    let _new_owner = open(&bench.store, &bench.clock, &bench.config).unwrap();
    let request = Event::Request(Ticket(0), remove("a"));
    let sink = &mut |effect| panic!("nothing may be let out: {effect:?}");
    let error = bench.engine.turn(vec![request], sink).unwrap_err();
    assert!(matches!(error, StoreError::Fenced { .. }));
    assert!(bench.find("a").is_some());
    assert!(matches!(
        bench.engine.turn(vec![], sink),
        Err(StoreError::Poisoned)
    ));
}

/// A timer that was set and removed in one turn left nothing in the store that showed its
/// revision, so after a restart the next timer got the same one, and a late conditional
/// request would have hit it. Found by the simulation.
#[test]
fn a_revision_is_not_given_again_after_a_timer_that_left_no_trace() {
    let mut bench = Bench::new();
    let request = |request| Event::Request(Ticket(0), request);
    let both = vec![request(set("a", 5, fixed(1))), request(remove("a"))];
    let answers = bench.turn(both);
    let Ok(Response::Set(Set { revision: lost, .. })) = answers[0] else {
        panic!("{answers:?}");
    };
    bench.restart();
    assert!(bench.set("a", 5) > lost);
}

/// The backlog still had the entry of a timer that had been delivered by then, since the wall
/// clock had been set back over it and the window had read it too. The entry named the
/// revision of what was now a done timer, and ended its retention. Found by the simulation.
#[test]
fn an_old_entry_does_not_end_the_retention_of_a_done_timer() {
    let mut bench = Bench::with(Config {
        catch_up_per_second: 1,
        ..Config::default()
    });
    for key in ["a", "b"] {
        bench.ask(set_at(key, noon_and(5))).unwrap();
    }
    bench.clock.advance(Duration::from_secs(10));
    bench.restart();
    assert_eq!(bench.wait(0), ["a"]); // the rate lets the other wait in the backlog
    bench.clock.set_timestamp(NOON + Duration::from_secs(4));
    bench.ask(set_at("c", noon_and(5))).unwrap(); // due before the opening: the window reaches back to there,
    bench.clock.set_timestamp(NOON + Duration::from_secs(3)); // and is now read anew
    assert_eq!(bench.wait(2), ["a", "b", "c"]);
    while !bench.started.is_empty() {
        bench.finish(Verdict::Done);
    }
    bench.wait(60);
    assert_eq!(bench.record("b").state.kind(), StateKind::Done);
}

#[test]
fn a_wall_clock_set_back_loses_nothing() {
    let mut bench = Bench::with(Config {
        window: 4,
        ..Config::default()
    });
    bench.ask(set_at("before", noon_and(5))).unwrap();
    let back = NOON.saturating_sub(Duration::from_secs(3600));
    bench.clock.set_timestamp(back);
    for i in 0..8 {
        let due = back + Duration::from_secs(5 + i);
        bench.ask(set_at(&format!("after-{i}"), due)).unwrap();
    }
    assert_eq!(bench.wait(4), [""; 0]);
    assert_eq!(bench.wait(8).len(), 8);
    bench.wait(3600 + 1);
    assert_eq!(bench.started.len(), 9);
}

#[test]
fn the_last_32_attempts_are_kept_and_all_are_counted() {
    let mut bench = Bench::new();
    bench.set_with("a", 1, fixed(1));
    for _ in 0..40 {
        bench.wait(1);
        bench.finish(failed());
    }
    let record = bench.record("a");
    assert_eq!(record.attempt, 40);
    assert_eq!(record.attempts.len(), 32);
    assert_eq!(record.attempts[0].number, 9);
}

/// The machine started with its clock a day ahead and was then set right: the backlog, paced
/// by the wrong time, waited a day.
#[test]
fn a_clock_that_was_ahead_at_the_start_holds_no_backlog_back() {
    let mut bench = Bench::new();
    bench.ask(set_at("overdue", noon_and(5))).unwrap();
    bench.ask(set_at("later", noon_and(7_200))).unwrap();
    bench.clock.advance(Duration::from_secs(86_400));
    bench.engine = open(&bench.store, &bench.clock, &bench.config).unwrap();
    bench.clock.set_timestamp(NOON + Duration::from_secs(3_600));
    assert_eq!(bench.wait(0), ["overdue"]);
    assert_eq!(bench.wait(3_599), ["overdue"]);
    assert_eq!(bench.wait(1), ["overdue", "later"]);
}

#[test]
fn the_backlog_has_its_turn_even_when_there_is_always_something_due() {
    let mut bench = Bench::with(Config {
        max_in_flight: 1,
        catch_up_per_second: 1_000_000,
        ..Config::default()
    });
    bench.set("overdue", 1);
    bench.clock.advance(Duration::from_secs(10));
    bench.engine = open(&bench.store, &bench.clock, &bench.config).unwrap();
    for i in 0..100 {
        bench.set(&format!("fresh-{i}"), 0);
    }
    let mut order = Vec::new();
    while let Some(attempt) = bench.started.front() {
        order.push(attempt.name.key.to_string());
        bench.finish(Verdict::Done);
    }
    assert_eq!(order.len(), 101);
    let place = order.iter().position(|key| key == "overdue");
    assert!(place.unwrap() <= 8, "{place:?}");
}

#[test]
fn the_backlog_has_its_share_of_one_turn_with_much_that_is_due() {
    let mut bench = Bench::with(Config {
        // A queue has three quarters.
        max_in_flight: 120,
        catch_up_per_second: 1_000_000,
        ..Config::default()
    });
    for i in 0..50 {
        bench.set(&format!("overdue-{i}"), 1);
    }
    bench.clock.advance(Duration::from_secs(10));
    bench.engine = open(&bench.store, &bench.clock, &bench.config).unwrap();
    // So that the rate allows as many.
    bench.clock.advance(Duration::from_secs(1));
    bench.ask_all((0..200).map(|i| set(&format!("fresh-{i}"), 0, fixed(10))));
    let overdue = |attempt: &&Attempt| attempt.name.key.as_str().starts_with("overdue");
    assert_eq!(bench.started.len(), 90);
    assert_eq!(bench.started.iter().filter(overdue).count(), 10);
}

#[test]
fn a_backlog_that_is_only_settled_holds_up_nobody() {
    let mut bench = Bench::new();
    let skipped = |i: u64| {
        let mut request = set(&format!("overdue-{i}"), 1, fixed(10));
        if let Request::Set { options, .. } = &mut request {
            options.missed = Missed::SkipIfOlderThan(Duration::from_secs(1));
        }
        request
    };
    bench.ask_all((0..5_000).map(skipped));
    bench.clock.advance(Duration::from_secs(10));
    bench.engine = open(&bench.store, &bench.clock, &bench.config).unwrap();
    bench.ask_all((0..20).map(|i| set(&format!("fresh-{i}"), 0, fixed(10))));
    assert_eq!(bench.started.len(), 20);
}

#[test]
fn a_retry_after_the_maximum_age_is_not_made_however_it_came_to_be_late() {
    let mut bench = Bench::new();
    let policy = fixed(10).max_age(Duration::from_secs(60));
    bench.set_with("retried", 1, policy.clone());
    bench.set_with("first", 100, policy);
    bench.wait(1);
    bench.finish(failed());
    bench.clock.advance(Duration::from_secs(7_200)); // the service was down
    bench.restart();
    let reason = DeadReason::TooOld;
    let state = bench.record("retried").state;
    assert!(matches!(state, State::Dead { reason: r, .. } if r == reason));
    // A first attempt is made however late it is.
    assert_eq!(bench.wait(1), ["first"]);
}

#[test]
fn what_is_given_up_after_a_long_absence_is_given_up_in_steps() {
    let mut bench = Bench::with(Config {
        max_in_flight: 2_000,
        ..Config::default()
    });
    let policy = fixed(10).max_age(Duration::from_secs(60));
    for i in 0..1_500 {
        bench.set_with(&format!("{i}"), 1, policy.clone());
    }
    assert_eq!(bench.wait(1).len(), 1_500);
    while !bench.started.is_empty() {
        bench.finish(failed());
    }
    bench.clock.advance(Duration::from_secs(7_200)); // the service was down
    bench.restart();
    let dead = |bench: &Bench| {
        let counts = bench.store.counts(Shard::ONLY).unwrap();
        counts[0].of(StateKind::Dead)
    };
    assert_eq!(dead(&bench), 1_024, "in one step");
    assert_eq!(bench.wait(1), Vec::<String>::new());
    assert_eq!(dead(&bench), 1_500);
}

#[test]
fn large_payloads_that_are_due_at_once_start_in_steps() {
    let mut bench = Bench::new();
    for i in 10..60 {
        let mut large = set(&format!("{i}"), 1, fixed(10));
        if let Request::Set { payload, .. } = &mut large {
            *payload = vec![7; 1 << 20];
        }
        bench.ask(large).unwrap();
    }
    bench.clock.advance(Duration::from_secs(1));
    bench.turn(vec![]);
    assert_eq!(bench.started.len(), 16, "MiB in one step");
    let now = bench.clock.timestamp();
    assert!(bench.engine.next_wake().is_some_and(|at| at <= now));
    assert_eq!(bench.wait(0).len(), 50);
    assert!(bench.started.iter().all(|a| a.lateness() == Duration::ZERO));
}

/// A timer that is set for this time, which may have passed.
fn set_for(key: &str, due: Timestamp, missed: Missed) -> Request {
    let mut request = set_at(key, due);
    if let Request::Set { options, .. } = &mut request {
        options.missed = missed;
    }
    request
}

#[test]
fn a_time_that_has_passed_stays_the_deadline_and_is_late_from_now_on_alone() {
    let mut bench = Bench::new();
    let asked = NOON.saturating_sub(Duration::from_secs(300));
    let answer = bench.ask(set_for("a", asked, Missed::Fire)).unwrap();
    assert!(matches!(answer, Response::Set(Set { due, .. }) if due == NOON));
    let attempt = bench.finish(Verdict::Failed { retry_after: None });
    assert_eq!((attempt.deadline, attempt.due), (asked, NOON));
    assert_eq!(attempt.lateness(), Duration::ZERO);
    // A retry has a deadline of its own.
    bench.wait(10);
    let retry = bench.finish(Verdict::Done);
    assert_eq!(retry.deadline, retry.due);
    assert_eq!(retry.due, NOON + Duration::from_secs(10));
}

/// A handler whose own clock was a year ahead made the attempt a year late, on record and in the figures.
#[test]
fn an_attempt_has_started_between_its_hand_over_and_its_outcome_whatever_is_said() {
    let seconds = Duration::from_secs;
    for (said, recorded) in [
        (Some(NOON + seconds(1) + 365 * seconds(86_400)), 5),
        (Some(Timestamp::MAX), 5),
        (Some(NOON + seconds(6)), 5),
        (Some(NOON + seconds(3)), 2),
        (Some(Timestamp::EPOCH), 0),
        (None, 0),
    ] {
        let mut bench = Bench::new();
        bench.set("a", 1);
        bench.wait(1);
        let attempt = bench.started.pop_front().unwrap();
        bench.clock.advance(seconds(5));
        let mut outcome = Outcome::failed("503");
        outcome.started = said;
        bench.turn(vec![Event::Outcome {
            revision: attempt.revision,
            outcome,
        }]);
        let kept = bench.record("a").attempts[0].started;
        assert_eq!(kept, attempt.started + seconds(recorded), "{said:?}");
        let late = bench.engine.stats().lateness.max();
        assert_eq!(late, seconds(recorded), "{said:?}");
    }
}

#[test]
fn a_time_that_had_passed_by_more_than_its_age_is_missed() {
    let mut bench = Bench::new();
    let skip = Missed::SkipIfOlderThan(Duration::from_secs(60));
    for (key, ago) in [("young", 60), ("old", 61)] {
        let asked = NOON.saturating_sub(Duration::from_secs(ago));
        bench.ask(set_for(key, asked, skip)).unwrap();
    }
    let started: Vec<_> = bench
        .started
        .iter()
        .map(|it| it.name.key.as_str())
        .collect();
    assert_eq!(started, ["young"]);
    let old = TimerName::new("q", "old").unwrap();
    let record = bench.store.get(Shard::ONLY, &old).unwrap().unwrap();
    let reason = DeadReason::Missed;
    assert!(matches!(record.state, State::Dead { reason: why, .. } if why == reason));
}

/// The two time lines part when the wall clock is set; each deadline has its own.
#[test]
fn a_timer_is_never_due_before_it_was_set() {
    let mut bench = Bench::new();
    for step in [3_600_000_000, 1, 0, 7] {
        bench
            .clock
            .set_timestamp(NOON + Duration::from_micros(step));
        let delay = Duration::from_nanos(1_500_000_001);
        let mut request = set("a", 0, fixed(10));
        if let Request::Set { due, .. } = &mut request {
            *due = Due::In(delay);
        }
        let answer = bench.ask(request).unwrap();
        let name = TimerName::new("q", "a").unwrap();
        let record = bench.store.get(Shard::ONLY, &name).unwrap().unwrap();
        assert!(matches!(answer, Response::Set(Set { due, .. }) if due == record.due));
        assert_eq!(
            record.due.saturating_since(record.created),
            Duration::from_micros(1_500_001)
        );
    }
}

#[test]
fn retention_ends_when_it_says_whoever_holds_up_the_forgetting() {
    let config = Config {
        max_in_flight: 1,
        keep_done: Duration::from_secs(5),
        ..Config::default()
    };
    let mut bench = Bench::with(config);
    bench.set("a", 0);
    bench.finish(Verdict::Done);
    bench.set("b", 0);
    assert_eq!(bench.started.len(), 1, "b has the only place");
    let with = |precondition| {
        let mut request = set("a", 60, fixed(10));
        if let Request::Set {
            precondition: it, ..
        } = &mut request
        {
            *it = precondition;
        }
        request
    };
    let remove = || Request::Remove {
        name: name("a"),
        precondition: Precondition::None,
        only_pending: false,
    };
    bench.clock.advance(Duration::from_micros(4_999_999));
    let refused = bench.ask(with(Precondition::Absent));
    assert!(
        matches!(refused, Err(TimerError::Exists { .. })),
        "{refused:?}"
    );
    assert!(matches!(bench.ask(remove()), Err(TimerError::Gone { .. })));
    bench.clock.advance(Duration::from_micros(1));
    assert!(matches!(bench.ask(remove()), Err(TimerError::NotFound)));
    let set = bench.ask(with(Precondition::Absent)).unwrap();
    assert!(
        matches!(set, Response::Set(Set { replaced: None, .. })),
        "{set:?}"
    );
}

#[test]
fn a_retry_and_a_revive_start_behind_what_was_set_for_the_same_deadline() {
    let mut bench = Bench::new();
    bench.set_with("retried", 5, fixed(5));
    let once = fixed(5).max_retries(0);
    bench.set_with("revived", 1, once);
    bench.set("set", 10);
    bench.wait(1);
    bench.finish(failed());
    assert_eq!(bench.wait(4), ["retried"]);
    bench.finish(failed());
    let due = Due::In(Duration::from_secs(5));
    let name = name("revived");
    bench.ask(Request::Revive { name, due }).unwrap();
    for key in ["retried", "revived", "set"] {
        assert_eq!(bench.record(key).due, noon_and(10), "{key}");
    }
    // By what they are called, and by when each was set first, it would be the other way round.
    assert_eq!(bench.wait(5), ["set", "retried", "revived"]);
}

#[test]
fn a_move_keeps_the_place_in_the_schedule_of_retries() {
    let mut bench = Bench::new();
    let policy = RetryPolicy::list([1, 7, 30].map(Duration::from_secs)).unwrap();
    bench.set_with("a", 1, policy);
    bench.wait(1);
    bench.finish(failed());
    let later = Shift::Later(Duration::from_secs(99));
    bench.ask(move_to("a", later)).unwrap();
    assert_eq!((bench.wait(99).len(), bench.record("a").failures), (0, 1));
    assert_eq!(bench.wait(1), ["a"]);
    assert_eq!(bench.finish(failed()).number, 2);
    // The second step comes next, as if nobody had moved it.
    assert_eq!(bench.wait(6), [""; 0]);
    assert_eq!(bench.wait(1), ["a"]);
    assert_eq!(bench.finish(failed()).number, 3);
    assert_eq!(bench.wait(29), [""; 0]);
    assert_eq!(bench.wait(1), ["a"]);
}

#[test]
fn a_dead_timer_stays_until_somebody_acts() {
    const CENTURY: u64 = 36_525 * 86_400;
    let once = fixed(1).max_retries(0);
    let mut bench = Bench::new();
    for key in ["removed", "set", "revived", "left"] {
        bench.set_with(key, 1, once.clone());
        bench.wait(1);
        bench.finish(failed());
    }
    bench.wait(CENTURY);
    bench.restart();
    bench.wait(CENTURY);
    for key in ["removed", "set", "revived", "left"] {
        assert_eq!(bench.record(key).state.kind(), StateKind::Dead, "{key}");
    }
    assert_eq!(
        bench.ask(remove("removed")).unwrap(),
        Response::Removed(Was::Dead)
    );
    bench.set("set", 5);
    let (name, due) = (name("revived"), Due::In(Duration::from_secs(6)));
    bench.ask(Request::Revive { name, due }).unwrap();
    assert_eq!(bench.wait(6), ["set", "revived"]);
    assert_eq!(bench.find("removed"), None);
    assert_eq!(bench.record("left").state.kind(), StateKind::Dead);
}

#[test]
fn a_set_replaces_a_timer_in_every_state() {
    let once = fixed(1).max_retries(0);
    let mut bench = Bench::new();
    let mut last = None;
    for state in [
        None,
        Some(StateKind::Pending),
        Some(StateKind::Delivering),
        Some(StateKind::Done),
        Some(StateKind::Dead),
    ] {
        let was = state.map(|state| {
            bench.set_with("a", 1, once.clone());
            if state != StateKind::Pending {
                bench.wait(1);
            }
            match state {
                StateKind::Done => drop(bench.finish(Verdict::Done)),
                StateKind::Dead => drop(bench.finish(failed())),
                _ => {}
            }
            assert_eq!(bench.record("a").state.kind(), state);
            bench.record("a")
        });
        let answer = bench.ask(set("a", 5, fixed(1))).unwrap();
        let Response::Set(Set {
            id,
            revision,
            replaced,
            ..
        }) = answer
        else {
            panic!("{answer:?}");
        };
        assert_eq!(replaced, state);
        assert!(Some(revision) > last);
        last = Some(revision);
        let record = bench.record("a");
        assert_eq!((record.id, record.revision), (id, revision));
        assert_eq!((record.failures, record.attempts.len()), (0, 0));
        assert!(was.is_none_or(|was| was.id != id), "{state:?}");
        // What ran before ends without effect, and the new one comes once.
        let old = bench.started.len();
        (0..old).for_each(|_| drop(bench.finish(Verdict::Done)));
        assert_eq!(bench.record("a").state, State::Pending, "{state:?}");
        assert_eq!(bench.wait(4), [""; 0]);
        assert_eq!(bench.wait(1), ["a"]);
        assert_eq!(bench.finish(Verdict::Done).number, 1);
        bench.wait(Config::default().keep_done.as_secs());
        assert_eq!(bench.find("a"), None);
    }
}
