//! Several shards of one store: in one process, with one budget, and passed from one owner to another.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use countwheel_durable::store::{Filter, MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, BatchError, Budget, Completion, Config, DrainMode, Due, Effect, Engine, Event,
    Handler, Health, Loss, Outcome, Precondition, QueueName, Request, Response, RetryPolicy,
    SetOptions, Shards, State, StateKind, Ticket, TimerError, TimerName, Timers, inline,
};
use countwheel_time::{Clock, ManualClock, SystemClock, Timestamp};

const SHARDS: Shards = match Shards::new(8) {
    Some(shards) => shards,
    None => Shards::ONE,
};

fn name(key: impl AsRef<str>) -> TimerName {
    TimerName::new("orders", key).unwrap()
}

fn set(name: TimerName, due: Due) -> Request {
    Request::Set {
        name,
        due,
        policy: RetryPolicy::default(),
        payload: vec![],
        precondition: Precondition::None,
        options: SetOptions::default(),
    }
}

fn open(store: &MemoryStore, handler: impl Handler, config: Config) -> Timers {
    let clock = Arc::new(SystemClock::new());
    Timers::open_divided(store.clone(), SHARDS, SHARDS.all(), handler, clock, config).unwrap()
}

fn idle(_: &Attempt) -> Outcome {
    Outcome::done()
}

const HOUR: Due = Due::In(Duration::from_secs(3_600));

#[test]
fn a_list_over_shards_is_one_list() {
    let store = MemoryStore::new(7);
    let timers = open(&store, idle, Config::default());
    let at = |micros: u64| Timestamp::from_micros(4_000_000_000_000_000 + micros);
    for i in 0..200 {
        // Revisions of several shards are the same, and so are some of the deadlines.
        let due = Due::At(at(i / 20));
        timers.call(set(name(format!("{i}")), due)).unwrap();
    }
    let queue = QueueName::new("orders").unwrap();
    for limit in [1, 7, 1_000] {
        for scan_limit in [1, 5, 4_096] {
            let filter = Filter {
                limit,
                scan_limit,
                ..Filter::queue(queue.clone())
            };
            let (mut listed, mut after) = (Vec::new(), None);
            loop {
                let page = timers.page(&filter, after).unwrap();
                assert!(page.records.len() <= limit);
                listed.extend(page.records);
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            let keys: BTreeSet<_> = listed.iter().map(|record| record.name.clone()).collect();
            assert_eq!(
                (listed.len(), keys.len()),
                (200, 200),
                "{limit} {scan_limit}"
            );
            let order = |record: &countwheel_durable::Record| (record.due, record.revision);
            assert!(listed.is_sorted_by_key(order), "{limit} {scan_limit}");
            let ids: BTreeSet<_> = listed.iter().map(|record| record.id).collect();
            assert_eq!(ids.len(), 200);
        }
    }
    let counts = timers.counts().unwrap();
    assert_eq!(counts.len(), 1);
    assert_eq!(counts[0].of(StateKind::Pending), 200);
    assert_eq!(timers.counts_after(None, 10).unwrap(), counts);
    assert!(timers.counts_after(Some(&queue), 10).unwrap().is_empty());
    let overview = timers.overview(10).unwrap();
    assert_eq!((overview.totals.queues, overview.queues.len()), (1, 1));
    assert_eq!(overview.totals.of(StateKind::Pending), 200);
    assert_eq!(timers.queue_overview(&queue).unwrap().counts, counts[0]);
    // Statistics follow the answers.
    let clock = SystemClock::new();
    let until = clock.now() + Duration::from_secs(20);
    while timers.stats().set < 200 && clock.now() < until {
        thread::yield_now();
    }
    assert_eq!(timers.stats().set, 200);
}

#[test]
fn a_page_of_counts_says_nothing_of_what_a_shard_has_not_told() {
    let timers = open(&MemoryStore::new(7), idle, Config::default());
    for i in 0..60 {
        let name = TimerName::new(format!("queue-{i:02}"), format!("{}", i * 7)).unwrap();
        timers.call(set(name, HOUR)).unwrap();
    }
    let all = timers.counts().unwrap();
    assert_eq!(all.len(), 60);
    for limit in [1, 3, 100] {
        let (mut paged, mut last) = (Vec::new(), None);
        loop {
            let page = timers.counts_after(last.as_ref(), limit).unwrap();
            let Some(end) = page.last() else { break };
            last = Some(end.queue.clone());
            paged.extend(page);
        }
        assert_eq!(paged, all, "{limit}");
    }
}

#[test]
fn a_batch_is_about_one_shard() {
    let timers = open(&MemoryStore::new(7), idle, Config::default());
    let names: Vec<_> = (0..100).map(|i| name(format!("{i}"))).collect();
    let first = SHARDS.of(&names[0]);
    let (same, other): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| SHARDS.of(name) == first);
    let ask = |names: Vec<TimerName>| {
        let (send, answer) = mpsc::channel();
        let batch = names.into_iter().map(|name| set(name, HOUR)).collect();
        timers.submit_batch(batch, move |answer| send.send(answer).unwrap());
        answer.recv().unwrap()
    };
    let all = [&same[0], &same[1], &other[0], &same[2], &other[1]];
    let refused = ask(all.map(Clone::clone).into());
    let several = BatchError {
        index: None,
        error: TimerError::SeveralShards {
            first: same[0].clone(),
            other: other[0].clone(),
        },
    };
    assert_eq!(refused.unwrap_err().to_string(), several.to_string());
    assert!(timers.get(&same[0]).unwrap().is_none());
    let count = same.len();
    assert_eq!(ask(same).unwrap().len(), count);
}

#[test]
fn a_batch_over_queues_is_about_one_tag() {
    let clock = Arc::new(SystemClock::new());
    let (store, shards) = (MemoryStore::new(7), SHARDS.by_tag());
    let (all, config) = (shards.all(), Config::default());
    let timers = Timers::open_divided(store.clone(), shards, all, idle, clock, config).unwrap();
    for order in 0..50 {
        let (send, answer) = mpsc::channel();
        let names = [
            TimerName::new("orders", format!("{{{order}}}")).unwrap(),
            TimerName::new("reminders", format!("{{{order}}}/first")).unwrap(),
            TimerName::new("reminders", format!("{{{order}}}/second")).unwrap(),
        ];
        let batch = names.iter().map(|name| set(name.clone(), HOUR)).collect();
        timers.submit_batch(batch, move |answer| send.send(answer).unwrap());
        assert_eq!(answer.recv().unwrap().unwrap().len(), 3);
        assert!(names.iter().all(|name| timers.get(name).unwrap().is_some()));
    }
}

#[test]
fn attempts_of_all_shards_share_the_places() {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    struct Slow(mpsc::Sender<()>);
    impl Handler for Slow {
        fn start(&self, _: Attempt, done: Completion) {
            let running = RUNNING.fetch_add(1, Ordering::SeqCst) + 1;
            MOST.fetch_max(running, Ordering::SeqCst);
            let told = self.0.clone();
            thread::spawn(move || {
                RUNNING.fetch_sub(1, Ordering::SeqCst);
                done.complete(Outcome::done());
                told.send(()).unwrap_or_default();
            });
        }
    }
    let (told, ended) = mpsc::channel();
    let config = Config {
        max_in_flight: 3,
        ..Config::default()
    };
    let timers = open(&MemoryStore::new(7), Slow(told), config);
    for i in 0..300 {
        timers
            .call(set(name(format!("{i}")), Due::In(Duration::ZERO)))
            .unwrap();
    }
    // Whoever waits for a place of another shard is woken when it is free.
    for _ in 0..300 {
        ended.recv_timeout(Duration::from_secs(20)).unwrap();
    }
    let most = MOST.load(Ordering::SeqCst);
    assert!((2..=3).contains(&most), "{most}");
}

/// Holds every attempt until it is told to let go.
#[derive(Clone, Default)]
struct Holding(
    Arc<Mutex<Vec<(Attempt, Completion)>>>,
    Option<mpsc::Sender<u32>>,
);

impl Handler for Holding {
    fn start(&self, attempt: Attempt, done: Completion) {
        let number = attempt.number;
        self.0.lock().unwrap().push((attempt, done));
        if let Some(told) = &self.1 {
            told.send(number).unwrap_or_default();
        }
    }
}

#[test]
fn a_lost_shard_ends_alone_and_can_be_taken_again() {
    let store = MemoryStore::new(7);
    let timers = open(&store, idle, Config::default());
    let (send, lost) = mpsc::channel();
    let send = Mutex::new(send);
    timers.on_lost(move |shard, reason| {
        let told = (shard, reason.to_owned());
        send.lock().unwrap().send(told).unwrap();
    });
    timers.on_failure(|reason| panic!("{reason}"));
    let taken = SHARDS.of(&name("a"));
    let other = (0..)
        .map(|i| name(format!("{i}")))
        .find(|it| SHARDS.of(it) != taken)
        .unwrap();
    timers.call(set(name("a"), HOUR)).unwrap();

    // Another owner takes the shard: the next commit is refused.
    let _other_owner = store.acquire(taken).unwrap();
    let refused = timers.call(set(name("a"), HOUR));
    assert!(
        matches!(refused, Err(TimerError::Unknown(_))),
        "{refused:?}"
    );
    let (shard, reason) = lost.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(shard, taken);
    assert!(
        matches!(&reason, Loss::Taken(text) if text.contains("was taken")),
        "{reason}"
    );
    assert!(matches!(timers.owned()[&taken], Health::Lost(_)));
    assert_eq!(timers.health(), Health::Running);
    let refused = timers.call(set(name("a"), HOUR));
    assert!(matches!(refused, Err(TimerError::NotOwned { shard }) if shard == taken));
    timers.call(set(other, HOUR)).unwrap();

    timers.take(taken).unwrap();
    timers.take(taken).unwrap(); // it stays as it is
    assert_eq!(timers.owned()[&taken], Health::Running);
    timers.call(set(name("a"), HOUR)).unwrap();
    timers.hand_over(taken, Duration::ZERO);
    timers.take(taken).unwrap();
    assert!(timers.take(Shard(8)).is_err());
    assert_eq!(timers.stop(Duration::ZERO), 0);
    assert_eq!(timers.health(), Health::Stopped);
    // No count went back when a shard did: four sets, of which the one that was refused was decided.
    let stats = timers.stats();
    assert_eq!((stats.set, stats.in_flight), (4, 0));
    assert!(timers.take(taken).is_err());
    assert!(matches!(
        timers.call(set(name("a"), HOUR)),
        Err(TimerError::Closed)
    ));
}

/// Whoever is told of a loss may take the shard again at once, and ask for what it likes.
#[test]
fn a_shard_is_taken_again_by_who_is_told_that_it_is_lost() {
    let store = MemoryStore::new(7);
    let timers = open(&store, idle, Config::default());
    let (send, taken) = mpsc::channel();
    let (send, again) = (Mutex::new(send), timers.clone());
    timers.on_lost(move |shard, _| {
        again.submit(set(name("asked"), HOUR), |_| ());
        let result = again.take(shard);
        send.lock().unwrap().send((shard, result.is_ok())).unwrap();
    });
    for round in 0..20 {
        for shard in [Shard(3), SHARDS.of(&name("a"))] {
            let _other_owner = store.acquire(shard).unwrap();
            // Its next commit is refused: the names of all shards are asked for.
            for i in 0..64 {
                let lost = timers.call(set(name(format!("{i}")), HOUR)).is_err();
                if lost {
                    break;
                }
            }
            let told = taken.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(told, (shard, true), "{round}");
            assert_eq!(timers.owned()[&shard], Health::Running, "{round}");
        }
    }
    // A handle in a callback keeps the threads, so they are ended by name.
    timers.stop(Duration::ZERO);
}

#[test]
fn the_places_of_attempts_outlive_the_loss_of_their_shard() {
    let (send, started) = mpsc::channel();
    let held = Holding(Arc::default(), Some(send));
    let store = MemoryStore::new(7);
    let config = Config {
        max_in_flight: 1,
        ..Config::default()
    };
    let timers = open(&store, held.clone(), config);
    timers
        .call(set(name("a"), Due::In(Duration::ZERO)))
        .unwrap();
    started.recv_timeout(Duration::from_secs(20)).unwrap();
    let left = timers.hand_over(SHARDS.of(&name("a")), Duration::ZERO);
    assert_eq!(left, 1);
    // Its receiver still works on it.
    let other = (0..).map(|i| name(format!("{i}")));
    let other = other
        .into_iter()
        .find(|it| SHARDS.of(it) != SHARDS.of(&name("a")))
        .unwrap();
    timers
        .call(set(other.clone(), Due::In(Duration::ZERO)))
        .unwrap();
    assert!(started.recv_timeout(Duration::from_millis(300)).is_err());
    let (_, done) = held.0.lock().unwrap().pop().unwrap();
    done.complete(Outcome::done());
    started.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(held.0.lock().unwrap()[0].0.name, other);
}

#[test]
fn planned_hand_overs_do_not_count_as_interruptions() {
    let (send, started) = mpsc::channel();
    let held = Holding(Arc::default(), Some(send));
    let store = MemoryStore::new(7);
    let config = Config {
        max_interruptions: 3,
        suspect_hold: Duration::ZERO,
        ..Config::default()
    };
    let timers = open(&store, held, config);
    let shard = SHARDS.of(&name("a"));
    timers
        .call(set(name("a"), Due::In(Duration::ZERO)))
        .unwrap();
    for number in 1..=12 {
        assert_eq!(
            started.recv_timeout(Duration::from_secs(20)).unwrap(),
            number
        );
        assert_eq!(timers.hand_over(shard, Duration::ZERO), 1);
        assert!(!timers.owned().contains_key(&shard));
        let record = timers.get(name("a")).unwrap().unwrap();
        assert_eq!((record.state, record.attempt), (State::Pending, number));
        timers.take(shard).unwrap();
    }
    assert_eq!(timers.stats().suspects, 0);
}

/// Engines of several shards under one clock and one budget.
struct Bench {
    clock: ManualClock,
    engines: Vec<Engine>,
    budget: Budget,
    started: Vec<(usize, Attempt)>,
}

impl Bench {
    fn new(store: &Arc<MemoryStore>, clock: &ManualClock, shards: u16, config: &Config) -> Self {
        let budget = Budget::new(config);
        let open = |shard| {
            let (store, clock) = (store.clone(), Arc::new(clock.clone()));
            Engine::open_within(&budget, store, Shard(shard), clock, config.clone()).unwrap()
        };
        Self {
            clock: clock.clone(),
            engines: (0..shards).map(open).collect(),
            budget,
            started: Vec::new(),
        }
    }

    fn turn(&mut self, which: usize, events: Vec<Event>) -> Vec<Result<Response, TimerError>> {
        let mut answers = Vec::new();
        let started = &mut self.started;
        let turned = self.engines[which].turn(events, &mut |effect| match effect {
            Effect::Answer(_, answer) => answers.push(answer),
            Effect::Start(attempt) => started.push((which, attempt)),
            Effect::BatchAnswer(..) => unreachable!(),
        });
        turned.unwrap();
        answers
    }
}

fn ask(i: u64, request: Request) -> Event {
    Event::Request(Ticket(i), request)
}

#[test]
fn a_scheduler_waits_for_a_place_that_another_has() {
    let clock = ManualClock::at(Timestamp::from_micros(1_772_366_400_000_000));
    let config = Config {
        max_in_flight: 4,
        queue_share_percent: 50,
        ..Config::default()
    };
    let store = Arc::new(MemoryStore::new(7));
    let mut bench = Bench::new(&store, &clock, 2, &config);
    for i in 0..8 {
        let (queue, which) = (["a", "b"][i % 2], i / 4);
        let name = TimerName::new(queue, format!("{i}")).unwrap();
        let sets = vec![ask(0, set(name, Due::In(Duration::from_secs(5))))];
        assert!(bench.turn(which, sets)[0].is_ok());
    }
    bench.clock.advance(Duration::from_secs(5));
    bench.turn(0, vec![]);
    // With a share of one half, a queue has no more than what is free: two and one are given.
    assert_eq!(bench.started.len(), 3);
    bench.turn(1, vec![]);
    assert_eq!((bench.started.len(), bench.budget.in_flight()), (3, 3));
    assert_eq!(bench.engines[1].stats().in_flight, 0);
    assert_eq!(
        bench.engines[1]
            .next_wake()
            .map(|at| at > bench.clock.timestamp()),
        Some(true)
    );
    for _ in 0..3 {
        let (which, attempt) = bench.started.remove(0);
        let outcome = Event::Outcome {
            revision: attempt.revision,
            outcome: Outcome::done(),
        };
        bench.engines[which].pause();
        bench.turn(which, vec![outcome]);
    }
    assert_eq!(bench.engines[1].next_wake(), Some(bench.clock.timestamp()));
    bench.turn(1, vec![]);
    assert_eq!(bench.started.len(), 3);
    bench.engines.remove(1);
    assert_eq!(bench.budget.in_flight(), 0);
}

#[test]
fn schedulers_share_the_memory_as_they_come_and_go() {
    let clock = ManualClock::at(Timestamp::from_micros(1_772_366_400_000_000));
    let config = Config {
        window_bytes: 2 << 20,
        ..Config::default()
    };
    let store = Arc::new(MemoryStore::new(7));
    let mut bench = Bench::new(&store, &clock, 1, &config);
    let sets = |shard: usize| {
        let names = (0..10_000).map(move |i| name(format!("{shard}-{i:050}")));
        let due = Due::In(Duration::from_secs(60));
        names
            .map(move |name| ask(0, set(name, due)))
            .collect::<Vec<_>>()
    };
    bench.turn(0, sets(0));
    bench.turn(0, vec![]);
    let alone = bench.engines[0].stats().window_bytes;
    assert!(alone > 400 << 10, "{alone}");
    for shard in 1..4 {
        let (store, clock) = (store.clone(), Arc::new(clock.clone()));
        let engine = Engine::open_within(&bench.budget, store, Shard(shard), clock, config.clone());
        bench.engines.push(engine.unwrap());
        bench.turn(shard.into(), sets(shard.into()));
        for which in 0..bench.engines.len() {
            bench.turn(which, vec![]);
        }
        let all = bench
            .engines
            .iter()
            .map(|engine| engine.stats().window_bytes);
        let all: usize = all.sum();
        assert!(all <= config.window_bytes, "{all}");
    }
    assert!(bench.engines[0].stats().window_bytes < alone / 2);
    // Nothing is lost by it.
    bench.engines.truncate(1);
    bench.clock.advance(Duration::from_secs(60));
    while bench.started.len() < 10_000 {
        let before = bench.started.len();
        let ended = bench.started[before.saturating_sub(256)..].iter();
        let outcomes = ended.map(|(_, attempt)| Event::Outcome {
            revision: attempt.revision,
            outcome: Outcome::done(),
        });
        let outcomes = if before == 0 {
            Vec::new()
        } else {
            outcomes.collect()
        };
        let ran = bench.engines[0].stats().in_flight;
        let outcomes = outcomes.into_iter().rev().take(ran).collect();
        bench.turn(0, outcomes);
        assert!(bench.started.len() > before, "{before}");
    }
}

#[test]
fn schedulers_share_the_rate_of_the_backlog() {
    let clock = ManualClock::at(Timestamp::from_micros(1_772_366_400_000_000));
    let config = Config {
        catch_up_per_second: 10,
        ..Config::default()
    };
    let store = Arc::new(MemoryStore::new(7));
    let mut bench = Bench::new(&store, &clock, 4, &config);
    for which in 0..4 {
        let due = Due::In(Duration::from_secs(1));
        let sets = (0..100).map(|i| ask(i, set(name(format!("{which}-{i}")), due)));
        bench.turn(which, sets.collect());
    }
    bench.engines.clear();
    bench.clock.advance(Duration::from_secs(60));
    let mut bench = Bench::new(&store, &clock, 4, &config);
    let began = bench.clock.timestamp();
    let mut seconds = 0;
    while bench.started.len() < 150 {
        for which in 0..4 {
            bench.turn(which, vec![]);
        }
        let passed = bench.clock.timestamp().saturating_since(began).as_secs();
        // The burst of each, and the first before anybody knew how many there are.
        let most = 8 + 10 * (passed + 1);
        assert!(
            bench.started.len() as u64 <= most,
            "{} in {passed} s",
            bench.started.len()
        );
        bench.clock.advance(Duration::from_millis(50));
        seconds = passed;
    }
    assert!((12..=17).contains(&seconds), "{seconds}");
}

/// Each shard gave a page of 8 MiB, and a call of a drain took out all of them.
#[test]
fn a_page_of_several_shards_is_no_longer_than_one_of_a_shard() {
    const BYTES: usize = 1 << 20;
    const TIMERS: usize = 20;
    let store = MemoryStore::new(7);
    let timers = open(&store, inline(|_| ()), Config::default());
    for number in 0..TIMERS {
        let name = name(format!("{number}"));
        let far = Duration::from_secs(3_600);
        timers.set(name, far, vec![0; BYTES]).unwrap();
    }
    let filter = Filter::queue(QueueName::new("orders").unwrap());
    let (mut after, mut seen) = (None, BTreeSet::new());
    loop {
        let page = timers.page(&filter, after).unwrap();
        assert!(page.records.len() * BYTES <= Filter::PAGE_MAX_BYTES);
        seen.extend(page.records.into_iter().map(|record| record.name));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), TIMERS, "each is on one page");
    let mut removed = 0;
    while removed < TIMERS {
        let drained = timers.drain("orders", DrainMode::Remove).unwrap().removed;
        assert!((1..=Filter::PAGE_MAX_BYTES / BYTES).contains(&drained.len()));
        removed += drained.len();
    }
    timers.stop(Duration::ZERO);
}

/// Hands attempts over to a thread.
struct Receives(Mutex<mpsc::Sender<Completion>>);

impl Handler for Receives {
    fn start(&self, _: Attempt, done: Completion) {
        self.0.lock().unwrap().send(done).unwrap_or_default();
    }
}

/// Who has looked for a place and needs none wakes the next scheduler, while that looks itself.
#[test]
fn schedulers_that_wake_each_other_for_places_all_come_to_their_end() {
    const TIMERS: usize = 30_000;
    let store = MemoryStore::new(7);
    let (done, ended) = mpsc::channel();
    let (hand_over, attempts) = mpsc::channel::<Completion>();
    // A receiver of its own, which takes a moment.
    let receiver = thread::spawn(move || {
        for completion in attempts {
            completion.complete(Outcome::done());
            done.send(()).unwrap_or_default();
        }
    });
    let config = Config {
        max_in_flight: 3,
        queue_share_percent: 60,
        max_waiting: TIMERS,
        ..Config::default()
    };
    let handler = Receives(Mutex::new(hand_over));
    let timers = open(&store, handler, config);
    for i in 0..TIMERS {
        let queue = ["a", "b", "c"][i % 3];
        let name = TimerName::new(queue, i.to_string()).unwrap();
        timers.submit(set(name, Due::In(Duration::ZERO)), |answer| {
            answer.unwrap();
        });
    }
    for i in 0..TIMERS {
        let in_time = ended.recv_timeout(Duration::from_secs(20));
        assert!(in_time.is_ok(), "{i} of {TIMERS} have ended");
    }
    drop(timers);
    receiver.join().unwrap();
}
