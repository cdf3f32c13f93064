//! Crash loops: a process that ends again and again, from inside and from outside, and what
//! becomes of the timers beside. Under a clock that stands still until it is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{Filter, MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, AttemptResult, Config, DeadReason, Due, DueClock, Effect, Engine, Event, Missed,
    Outcome, Precondition, QueueName, Record, Request, Response, RetryPolicy, SetOptions, Shift,
    State, StateKind, Ticket, TimerError, TimerName, Verdict,
};
use countwheel_time::{Clock, Instant, ManualClock, Timestamp};

const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);

/// What a timer's receiver does; the payload says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Receiver {
    /// Answers after so many milliseconds.
    Answers(u64),
    /// Ends the process after so many milliseconds.
    Kills(u64),
    /// Never answers: the attempt fails after ten seconds.
    Silent,
}

const SILENT: Duration = Duration::from_secs(10);

impl Receiver {
    fn payload(self) -> Vec<u8> {
        let (kind, millis) = match self {
            Self::Answers(millis) => (b'a', millis),
            Self::Kills(millis) => (b'k', millis),
            Self::Silent => (b's', 0),
        };
        [&[kind][..], &millis.to_be_bytes()].concat()
    }

    fn of(payload: &[u8]) -> Self {
        let millis = u64::from_be_bytes(payload[1..].try_into().unwrap());
        match payload[0] {
            b'a' => Self::Answers(millis),
            b'k' => Self::Kills(millis),
            _ => Self::Silent,
        }
    }
}

/// A store, and the processes on it, one after the other.
struct Loop {
    clock: ManualClock,
    store: MemoryStore,
    config: Config,
    engine: Engine,
    running: BTreeMap<(Instant, u64), (Attempt, Verdict)>,
    /// When a payload ends the process.
    ends: Option<Instant>,
    starts: u64,
    restarts: u64,
    /// Since it was opened.
    opened: Instant,
    /// The starts of this process.
    started: Vec<(Duration, TimerName)>,
    /// Whether all receivers that end nothing answer at once from now on.
    heals: bool,
}

impl Loop {
    fn new(config: Config) -> Self {
        let clock = ManualClock::at(NOON);
        let store = MemoryStore::new(7);
        let engine = open(&store, &clock, &config);
        Self {
            opened: clock.boot(),
            clock,
            store,
            config,
            engine,
            running: BTreeMap::new(),
            ends: None,
            starts: 0,
            restarts: 0,
            started: Vec::new(),
            heals: false,
        }
    }

    /// The process ends, and another one opens the store after so long.
    fn restart(&mut self, takes: Duration) {
        self.running.clear();
        self.started.clear();
        self.ends = None;
        self.restarts += 1;
        self.clock.advance(takes);
        self.engine = open(&self.store, &self.clock, &self.config);
        self.opened = self.clock.boot();
    }

    fn turn(&mut self, events: Vec<Event>) -> Vec<Result<Response, TimerError>> {
        let mut answers = Vec::new();
        let mut started = Vec::new();
        let sink = &mut |effect| match effect {
            Effect::Answer(_, answer) => answers.push(answer),
            Effect::BatchAnswer(..) => unreachable!("nobody asks for a batch"),
            Effect::Start(attempt) => started.push(attempt),
        };
        self.engine.turn(events, sink).unwrap();
        let now = self.clock.boot();
        for attempt in started {
            self.starts += 1;
            let lived = now.saturating_since(self.opened);
            self.started.push((lived, attempt.name.clone()));
            let (after, verdict) = match Receiver::of(&attempt.payload) {
                Receiver::Answers(_) | Receiver::Silent if self.heals => {
                    (Duration::ZERO, Verdict::Done)
                }
                Receiver::Answers(millis) => (Duration::from_millis(millis), Verdict::Done),
                Receiver::Kills(millis) => {
                    let at = now + Duration::from_millis(millis);
                    self.ends = Some(self.ends.map_or(at, |ends| ends.min(at)));
                    continue;
                }
                Receiver::Silent => (SILENT, Verdict::Failed { retry_after: None }),
            };
            let place = (now + after, self.starts);
            self.running.insert(place, (attempt, verdict));
        }
        answers
    }

    fn ask(&mut self, request: Request) -> Result<Response, TimerError> {
        let event = Event::Request(Ticket(0), request);
        self.turn(vec![event]).pop().unwrap()
    }

    fn set(&mut self, key: &str, receiver: Receiver) {
        self.ask(set(key, receiver)).unwrap();
    }

    /// Lets the process live for so long. Says whether a payload ended it before.
    fn live(&mut self, span: Duration) -> bool {
        let until = self.clock.boot() + span;
        loop {
            let now = self.clock.boot();
            let mut events = Vec::new();
            while let Some(first) = self.running.first_entry() {
                if first.key().0 > now {
                    break;
                }
                let (attempt, verdict) = first.remove();
                let detail = String::new();
                events.push(Event::Outcome {
                    revision: attempt.revision,
                    outcome: Outcome::new(verdict, detail),
                });
            }
            self.turn(events);
            if self.ends.is_some_and(|ends| ends <= now) {
                return true;
            }
            let wake = self.engine.next_wake();
            let wake = wake.map(|at| now + at.saturating_since(self.clock.timestamp()));
            let outcome = self.running.keys().next().map(|(at, _)| *at);
            let next = [wake, outcome, self.ends].into_iter().flatten().min();
            match next {
                Some(next) if next < until => self.clock.advance(next.saturating_since(now)),
                _ => {
                    self.clock.advance(until.saturating_since(now));
                    return false;
                }
            }
        }
    }

    /// Restarts the process until nothing ends it for a quarter of an hour.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            if !self.live(Duration::from_secs(900)) {
                return;
            }
            self.restart(Duration::from_millis(20));
        }
        panic!("the crash loop does not end");
    }

    fn record(&self, key: &str) -> Record {
        let name = TimerName::new("q", key).unwrap();
        self.store.get(Shard::ONLY, &name).unwrap().unwrap()
    }

    fn all(&self) -> Vec<Record> {
        let mut filter = Filter::queue(QueueName::new("q").unwrap());
        let mut records = Vec::new();
        loop {
            let page = self.store.list(Shard::ONLY, &filter).unwrap();
            records.extend(page.records);
            match page.next {
                Some(next) => filter.after = Some(next),
                None => return records,
            }
        }
    }

    /// Every killer is dead after at most ten attempts of its own, everything else delivered.
    #[track_caller]
    fn judge(&self, killers: usize) {
        let mut dead = 0;
        for record in self.all() {
            if let Receiver::Kills(_) = Receiver::of(&record.payload) {
                let reason = DeadReason::Interrupted;
                let is_dead = matches!(record.state, State::Dead { reason: r, .. } if r == reason);
                assert!(is_dead && record.attempt <= 10, "{record:?}");
                dead += 1;
            } else {
                assert_eq!(record.state.kind(), StateKind::Done, "{record:?}");
            }
        }
        assert_eq!(dead, killers);
    }
}

fn open(store: &MemoryStore, clock: &ManualClock, config: &Config) -> Engine {
    let clock = Arc::new(clock.clone());
    Engine::open(Arc::new(store.clone()), Shard::ONLY, clock, config.clone()).unwrap()
}

fn set(key: &str, receiver: Receiver) -> Request {
    Request::Set {
        name: TimerName::new("q", key).unwrap(),
        due: Due::In(Duration::ZERO),
        policy: RetryPolicy::fixed(Duration::from_secs(5)),
        payload: receiver.payload(),
        precondition: Precondition::None,
        options: SetOptions::default(),
    }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Chance that a seed repeats.
struct Random(countwheel_time::Random);

impl Random {
    fn new(seed: u64) -> Self {
        Self(countwheel_time::Random::new(seed))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.draw() % bound
    }
}

/// So many killers in the middle of 300 others, all due at one time.
fn crowd(killers: &[u64], others: impl Fn(u64) -> Receiver) -> Loop {
    let mut crashes = Loop::new(Config::default());
    let requests = (0..300).map(|i| set(&format!("other-{i:03}"), others(i)));
    let mut requests: Vec<_> = requests.collect();
    for (place, &after) in killers.iter().enumerate() {
        let killer = set(&format!("killer-{place}"), Receiver::Kills(after));
        requests.insert(100 + 20 * place, killer);
    }
    let events = requests.into_iter();
    let events = events.map(|request| Event::Request(Ticket(0), request));
    crashes.turn(events.collect());
    crashes
}

/// At once, in 20 ms, in 200 ms.
fn mixed(number: u64) -> Receiver {
    Receiver::Answers([0, 20, 200][usize::try_from(number % 3).unwrap()])
}

/// Ten ends of the process in a row killed whatever was in flight: 256 timers died with the one
/// that ended it.
#[test]
fn a_payload_that_ends_the_process_dies_alone() {
    let mut crashes = crowd(&[0], mixed);
    crashes.settle();
    crashes.judge(1);
    assert!(crashes.restarts <= 30, "{}", crashes.restarts);
    assert_eq!(crashes.record("killer-0").attempt, 10);
}

#[test]
fn a_payload_that_ends_the_process_late_dies_alone() {
    for after in [5, 100, 3_000, 40_000] {
        let mut crashes = crowd(&[after], mixed);
        crashes.settle();
        crashes.judge(1);
        assert!(crashes.restarts <= 30, "{}", crashes.restarts);
    }
}

#[test]
fn a_payload_that_ends_the_process_dies_alone_beside_the_slow_and_the_silent() {
    let mut crashes = crowd(&[0], |_| Receiver::Answers(5_000));
    crashes.settle();
    crashes.judge(1);
    assert!(crashes.restarts <= 30, "{}", crashes.restarts);

    let mut crashes = crowd(&[0], |_| Receiver::Silent);
    for _ in 0..200 {
        if !crashes.live(Duration::from_secs(900)) {
            break;
        }
        crashes.restart(millis(20));
    }
    assert!(crashes.restarts <= 30, "{}", crashes.restarts);
    crashes.heals = true;
    crashes.settle();
    crashes.judge(1);
}

#[test]
fn of_several_payloads_that_end_the_process_each_dies_and_nothing_else() {
    for killers in [&[0, 0][..], &[0, 0, 0], &[0, 100], &[0, 30, 1_500]] {
        for others in [mixed, |_| Receiver::Answers(1_000)] {
            let mut crashes = crowd(killers, others);
            crashes.settle();
            crashes.judge(killers.len());
        }
    }
}

/// Killers come while the suspects of others are held, so that what was interrupted by one runs
/// beside the next.
#[test]
fn payloads_that_end_the_process_may_come_at_any_time() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut crashes = crowd(&[0], mixed);
        let mut killers = 1;
        for _ in 0..200 {
            let span = millis(random.below(20_000));
            if crashes.live(span) {
                crashes.restart(millis(random.below(40)));
            }
            if random.below(20) == 0 && killers < 4 {
                let after = [0, 50, 2_000][usize::try_from(random.below(3)).unwrap()];
                crashes.set(&format!("killer-{killers}"), Receiver::Kills(after));
                killers += 1;
            }
            let key = format!("later-{}", random.below(1_000_000));
            crashes.set(&key, mixed(random.below(3)));
        }
        crashes.settle();
        crashes.judge(killers);
    }
}

/// 341 timers were dead after as many kills as this, none of which was their fault.
#[test]
fn six_thousand_kills_from_outside_make_nobody_dead() {
    let mut crashes = Loop::new(Config::default());
    let mut random = Random::new(18);
    for kill in 0..6_000_u64 {
        let opening = random.below(40_000);
        let receiver = match kill % 300 {
            0 => Receiver::Silent,
            100 => Receiver::Answers(200),
            200 => Receiver::Answers(20),
            _ => Receiver::Answers(random.below(2)),
        };
        crashes.set(&format!("timer-{kill}"), receiver);
        let ended = crashes.live(Duration::from_micros(50_000 - opening));
        assert!(!ended);
        crashes.restart(Duration::from_micros(opening));
    }
    let interruptions = crashes
        .all()
        .iter()
        .map(|record| record.interruptions)
        .max();
    assert_eq!(interruptions, Some(2));
    let dead = |record: &&Record| record.state.kind() == StateKind::Dead;
    assert_eq!(crashes.all().iter().filter(dead).count(), 0);
    crashes.heals = true;
    crashes.settle();
    crashes.judge(0);
    assert_eq!(crashes.all().len(), 6_000);
}

#[test]
fn kills_from_outside_at_any_pace_make_nobody_dead() {
    for longest in [200, 2_000, 10_000, 100_000] {
        let mut random = Random::new(longest);
        let mut crashes = Loop::new(Config::default());
        for kill in 0..150 {
            let receiver = match random.below(10) {
                0 => Receiver::Silent,
                // In flight at every end that comes after its start.
                1 => Receiver::Answers(200_000),
                2 | 3 => Receiver::Answers(random.below(5_000)),
                _ => mixed(random.below(3)),
            };
            crashes.set(&format!("timer-{kill}"), receiver);
            assert!(!crashes.live(millis(random.below(longest))));
            crashes.restart(millis(random.below(40)));
        }
        crashes.heals = true;
        crashes.settle();
        crashes.judge(0);
    }
}

/// A crash loop in which only what is in flight at the end is of interest: one timer, and how
/// long the process has lived when its attempts start.
#[test]
fn a_suspect_starts_after_the_process_has_lived_for_longer_each_time() {
    let mut crashes = Loop::new(Config::default());
    crashes.set("a", Receiver::Kills(0));
    let mut lived = Vec::new();
    for _ in 0..9 {
        assert!(crashes.live(Duration::from_secs(200)));
        crashes.restart(Duration::ZERO);
        crashes.live(Duration::from_secs(200));
        lived.extend(crashes.started.iter().map(|(lived, _)| lived.as_secs()));
    }
    assert_eq!(lived, [0, 1, 2, 4, 8, 16, 32, 64, 128]);
    crashes.restart(Duration::ZERO);
    crashes.live(Duration::from_secs(200));
    crashes.judge(1);
    let record = crashes.record("a");
    assert!(record.attempts.iter().all(|attempt| {
        attempt.ended.as_ref().map(|end| end.result) == Some(AttemptResult::Interrupted)
    }));
}

#[test]
fn fewer_suspects_run_together_the_more_often_they_were_interrupted() {
    let config = Config {
        max_in_flight: 1_000,
        catch_up_per_second: 1_000_000,
        ..Config::default()
    };
    let mut crashes = Loop::new(config);
    for i in 0..200 {
        crashes.set(&format!("timer-{i}"), Receiver::Silent);
    }
    crashes.restart(Duration::ZERO);
    crashes.live(millis(10));
    assert_eq!(crashes.started.len(), 200);
    for (hold, together) in [
        (1, 128),
        (2, 64),
        (4, 32),
        (8, 16),
        (16, 8),
        (32, 4),
        (64, 2),
        (128, 1),
    ] {
        // Only what runs at the end is of interest.
        let running = crashes.running.values();
        let running: Vec<_> = running.map(|(attempt, _)| attempt.name.clone()).collect();
        let idle = crashes.all().into_iter().map(|record| record.name);
        for name in idle.filter(|name| !running.contains(name)) {
            let remove = Request::Remove {
                name,
                precondition: Precondition::None,
                only_pending: true,
            };
            crashes.ask(remove).unwrap();
        }
        crashes.restart(Duration::ZERO);
        crashes.live(Duration::from_secs(hold) - millis(1));
        assert!(crashes.started.is_empty(), "{hold}");
        crashes.live(millis(2));
        assert_eq!(crashes.started.len(), together, "{hold}");
    }
}

/// Three ends of the process make `a` a suspect that waits in the process after.
fn one_that_waits() -> Loop {
    let mut crashes = Loop::new(Config::default());
    crashes.set("a", Receiver::Silent);
    for _ in 0..2 {
        crashes.restart(millis(20));
        crashes.live(millis(10));
    }
    crashes
}

#[test]
fn a_suspect_that_waits_is_pending_with_its_deadline() {
    let mut crashes = one_that_waits();
    let record = crashes.record("a");
    assert_eq!(record.state, State::Pending);
    assert_eq!((record.interruptions, record.attempt), (2, 2));
    assert_eq!(record.due, NOON);
    let stats = crashes.engine.stats();
    assert_eq!(
        (stats.suspects, stats.in_flight, stats.interrupted),
        (1, 0, 1)
    );
    // It is found again however often the process ends meanwhile, and that is not counted.
    for _ in 0..20 {
        crashes.restart(millis(20));
        crashes.live(millis(900));
    }
    assert_eq!(crashes.record("a"), record);
    crashes.heals = true;
    crashes.live(millis(200));
    assert_eq!(crashes.record("a").attempts.last().unwrap().due, NOON);
    assert_eq!(crashes.record("a").interruptions, 0);
    assert_eq!(crashes.engine.stats().suspects, 0);
    crashes.judge(0);
}

#[test]
fn a_suspect_that_waits_can_be_removed_replaced_moved_and_fired() {
    let mut crashes = one_that_waits();
    let name = TimerName::new("q", "a").unwrap();
    let remove = Request::Remove {
        name: name.clone(),
        precondition: Precondition::None,
        only_pending: true,
    };
    crashes.ask(remove).unwrap();
    assert_eq!(crashes.engine.stats().suspects, 0);
    crashes.live(Duration::from_secs(60));
    assert!(crashes.started.is_empty());

    // Another timer of that name is nobody's suspect.
    let mut crashes = one_that_waits();
    crashes.set("a", Receiver::Answers(0));
    assert_eq!(crashes.started.len(), 1);
    crashes.live(Duration::from_secs(60));
    assert_eq!(crashes.starts, 3);

    // One that is made due stays a suspect.
    let mut crashes = one_that_waits();
    crashes.ask(Request::Fire { name: name.clone() }).unwrap();
    assert!(crashes.started.is_empty());
    crashes.live(millis(1_100));
    assert_eq!(crashes.started.len(), 1);

    let mut crashes = one_that_waits();
    let shift = Shift::To(Due::In(Duration::from_secs(5)));
    let precondition = Precondition::None;
    crashes
        .ask(Request::Move {
            name,
            shift,
            precondition,
        })
        .unwrap();
    crashes.live(Duration::from_secs(60));
    let (lived, _) = crashes.started[0];
    assert_eq!(lived, Duration::from_millis(5_010));
}

/// What was interrupted has been tried, and cannot be missed any more.
#[test]
fn a_suspect_that_waits_is_not_missed() {
    let mut crashes = Loop::new(Config::default());
    let mut request = set("a", Receiver::Silent);
    if let Request::Set { options, .. } = &mut request {
        options.missed = Missed::SkipIfOlderThan(millis(100));
    }
    crashes.ask(request).unwrap();
    for _ in 0..3 {
        crashes.restart(millis(500));
        crashes.live(millis(10));
    }
    crashes.heals = true;
    crashes.live(Duration::from_secs(2));
    crashes.judge(0);
    assert_eq!(crashes.engine.stats().missed, 0);
}

#[test]
fn a_suspect_that_waits_does_not_start_before_its_deadline_when_the_clock_is_set_back() {
    let mut crashes = Loop::new(Config::default());
    let mut request = set("a", Receiver::Silent);
    if let Request::Set { due, .. } = &mut request {
        *due = Due::At(NOON);
    }
    crashes.ask(request).unwrap();
    for _ in 0..2 {
        crashes.restart(millis(20));
        crashes.live(millis(10));
    }
    assert_eq!(crashes.record("a").clock, DueClock::Wall);
    assert_eq!(crashes.engine.stats().suspects, 1);
    let back = Duration::from_secs(600);
    crashes
        .clock
        .set_timestamp(crashes.clock.timestamp().saturating_sub(back));
    crashes.live(Duration::from_secs(590));
    assert!(crashes.started.is_empty());
    crashes.live(Duration::from_secs(20));
    assert_eq!(crashes.started.len(), 1);
    assert!(crashes.clock.timestamp() >= NOON);
}

#[test]
fn a_revived_timer_is_no_suspect() {
    let mut crashes = crowd(&[0], mixed);
    crashes.settle();
    let name = TimerName::new("q", "killer-0").unwrap();
    let due = Due::In(Duration::ZERO);
    crashes.ask(Request::Revive { name, due }).unwrap();
    assert_eq!(crashes.record("killer-0").interruptions, 0);
    crashes.settle();
    assert_eq!(crashes.record("killer-0").attempt, 20);
}

/// A service that is stopped again and again during the same attempt says nothing against it.
#[test]
fn a_stop_is_no_evidence() {
    let mut crashes = Loop::new(Config::default());
    crashes.set("a", Receiver::Silent);
    for stop in 1..=20 {
        assert_eq!(crashes.started.len(), 1, "{stop}");
        crashes.engine.pause();
        crashes.engine.abandon().unwrap();
        let record = crashes.record("a");
        assert_eq!((record.state, record.interruptions), (State::Pending, 1));
        let last = record.attempts.last().unwrap().ended.clone().unwrap();
        assert_eq!(last.result, AttemptResult::Interrupted);
        crashes.restart(millis(20));
        crashes.live(millis(10));
        assert_eq!(crashes.record("a").attempt, stop + 1);
    }
    crashes.heals = true;
    crashes.settle();
    crashes.judge(0);
}

/// Without the rule, innocent timers die or a culprit lives on: these tests can fail.
#[cfg(feature = "planted-bugs")]
#[test]
fn mistakes_in_the_rule_are_noticed() {
    use countwheel_durable::{PlantedBug, plant};

    let outside = || {
        let mut crashes = Loop::new(Config::default());
        crashes.set("a", Receiver::Silent);
        for _ in 0..20 {
            crashes.live(millis(50));
            crashes.restart(millis(10));
        }
        crashes
    };
    let guilty = || {
        let mut crashes = crowd(&[0], |_| Receiver::Answers(5_000));
        crashes.settle();
        crashes
    };
    let dead = |crashes: &Loop| {
        let records = crashes.all().into_iter();
        let dead = records.filter(|record| record.state.kind() == StateKind::Dead);
        dead.count()
    };
    assert_eq!((dead(&outside()), dead(&guilty())), (0, 1));
    plant(Some(PlantedBug::SuspectsUnheld));
    assert_eq!(dead(&outside()), 1);
    plant(Some(PlantedBug::SuspectsTogether));
    assert!(dead(&guilty()) > 100);
    plant(Some(PlantedBug::WaitingCountsAsInterrupted));
    let interruptions = || {
        let mut crashes = one_that_waits();
        crashes.live(Duration::from_secs(3));
        crashes.record("a").interruptions
    };
    assert!(interruptions() > 2);
    plant(None);
    assert_eq!(interruptions(), 2);
}

/// What there is no memory for waits in the store.
#[test]
fn more_suspects_than_there_is_memory_for_wait_and_are_delivered() {
    let config = Config {
        window_bytes: 128 << 10,
        max_in_flight: 500,
        queue_share_percent: 100,
        catch_up_per_second: 1_000_000,
        ..Config::default()
    };
    let mut crashes = Loop::new(config.clone());
    for i in 0..60 {
        crashes.set(&format!("timer-{i}"), Receiver::Silent);
    }
    let mut most = 0;
    for _ in 0..50 {
        crashes.live(millis(30));
        let stats = crashes.engine.stats();
        assert!(stats.window_bytes <= config.window_bytes);
        most = most.max(stats.suspects);
        crashes.restart(millis(20));
    }
    assert!(most < 40, "{most} wait");
    let suspects = crashes.all().into_iter();
    let suspects = suspects.filter(|record| record.interruptions == 2);
    assert!(suspects.count() > most, "there are more");
    crashes.heals = true;
    crashes.settle();
    crashes.judge(0);
    assert!(crashes.starts < 300, "{}", crashes.starts);
}

#[test]
fn with_few_interruptions_allowed_the_last_suspects_run_alone_as_well() {
    for most in 3..=6 {
        let config = Config {
            max_interruptions: most,
            ..Config::default()
        };
        let mut crashes = Loop::new(config);
        for i in 0..20 {
            crashes.set(&format!("before-{i}"), mixed(i));
        }
        crashes.set("killer", Receiver::Kills(0));
        crashes.settle();
        crashes.judge(1);
        assert_eq!(crashes.record("killer").attempt, most);
    }
}
