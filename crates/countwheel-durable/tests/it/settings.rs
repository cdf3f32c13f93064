//! Settings as an engine has them: beside its timers, seen by all owners of a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use countwheel_durable::store::{Change, Lease, MemoryStore, Shard, Store, StoreError};
use countwheel_durable::{
    Attempt, BatchError, Config, Configured, Due, Effect, Engine, Event, Outcome, Precondition,
    Request, Response, RetryPolicy, SetOptions, Setting, SettingError, SettingName,
    SettingPrecondition, Settings, SettingsVersion, Shards, Ticket, TimerError, TimerName, Timers,
};
use countwheel_time::{Clock, ManualClock};

use crate::support::forward::forward;

/// A store in memory that has no room, or cannot read its settings, when it is told so.
#[derive(Default)]
struct Told {
    full: AtomicBool,
    unreadable: AtomicBool,
    /// How often somebody asked for the settings.
    asked: AtomicU64,
}

struct Shared(MemoryStore, Arc<Told>);

impl Store for Shared {
    forward!(0: acquire, get, due, list, counts);

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        if self.1.full.load(Ordering::SeqCst) {
            let reason = "told so".to_owned();
            return Err(StoreError::Full { reason });
        }
        self.0.commit(lease, changes)
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.1.asked.fetch_add(1, Ordering::SeqCst);
        if self.1.unreadable.load(Ordering::SeqCst) {
            let problem = "a setting cannot be read".to_owned();
            return Err(StoreError::Unreadable { problem });
        }
        self.0.settings(after)
    }
}

struct Bench {
    clock: ManualClock,
    store: MemoryStore,
    told: Arc<Told>,
    engine: Engine,
}

impl Bench {
    fn new() -> Self {
        Self::of(MemoryStore::new(7), ManualClock::new(), Shard::ONLY)
    }

    fn of(store: MemoryStore, clock: ManualClock, shard: Shard) -> Self {
        let told = Arc::<Told>::default();
        let shared = Arc::new(Shared(store.clone(), Arc::clone(&told)));
        let engine = Engine::open(shared, shard, Arc::new(clock.clone()), Config::default());
        Self {
            clock,
            store,
            told,
            engine: engine.unwrap(),
        }
    }

    /// Another owner of the same store.
    fn beside(&self, shard: u16) -> Self {
        Self::of(self.store.clone(), self.clock.clone(), Shard(shard))
    }

    fn ask(&mut self, request: Request) -> Result<Response, TimerError> {
        let mut answers = Vec::new();
        let events = vec![Event::Request(Ticket(1), request)];
        let mut sink = |effect| answers.push(effect);
        self.engine.turn(events, &mut sink).unwrap();
        match answers.pop() {
            Some(Effect::Answer(Ticket(1), answer)) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn ask_all(&mut self, requests: Vec<Request>) -> Result<Vec<Response>, BatchError> {
        let mut answers = Vec::new();
        let events = vec![Event::Batch(Ticket(1), requests)];
        let mut sink = |effect| answers.push(effect);
        self.engine.turn(events, &mut sink).unwrap();
        match answers.pop() {
            Some(Effect::BatchAnswer(Ticket(1), answer)) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn turn(&mut self) {
        self.engine.turn(Vec::new(), &mut |_| {}).unwrap();
    }

    fn value(&self, of: &str) -> Option<Vec<u8>> {
        let settings = self.engine.settings();
        settings.get(&name(of)).map(|value| value.value.clone())
    }

    fn asked(&self) -> u64 {
        self.told.asked.swap(0, Ordering::SeqCst)
    }
}

fn name(name: &str) -> SettingName {
    SettingName::new(name).unwrap()
}

fn configure(of: &str, value: Option<&[u8]>, precondition: SettingPrecondition) -> Request {
    Request::Configure {
        name: name(of),
        value: value.map(<[u8]>::to_vec),
        precondition,
    }
}

fn put(of: &str, value: &str) -> Request {
    configure(of, Some(value.as_bytes()), SettingPrecondition::None)
}

fn version(answer: Result<Response, TimerError>) -> SettingsVersion {
    match answer {
        Ok(Response::Configured(Configured { version, .. })) => version,
        other => panic!("{other:?}"),
    }
}

fn set(key: &str, precondition: Precondition) -> Request {
    Request::Set {
        name: TimerName::new("q", key).unwrap(),
        due: Due::In(Duration::from_secs(60)),
        policy: RetryPolicy::default(),
        payload: Vec::new(),
        precondition,
        options: SetOptions::default(),
    }
}

#[test]
fn what_was_configured_is_known_at_once_and_after_a_restart() {
    let mut bench = Bench::new();
    assert_eq!(*bench.engine.settings(), Settings::default());
    let first = version(bench.ask(put("a", "1")));
    let second = version(bench.ask(put("b", "2")));
    assert!(first < second);
    assert_eq!(bench.engine.settings().version(), second);
    let removed = bench.ask(configure("a", None, SettingPrecondition::None));
    assert!(version(removed) > second);
    assert_eq!(
        (bench.value("a"), bench.value("b")),
        (None, Some(b"2".to_vec()))
    );
    let again = bench.beside(0);
    assert_eq!(again.engine.settings(), bench.engine.settings());
}

#[test]
fn a_precondition_is_of_the_setting_that_is_there() {
    use SettingPrecondition::{Absent, None as Any, Settings, Version};
    let mut bench = Bench::new();
    let value = Some(&b"x"[..]);
    let refused = |answer| match answer {
        Err(TimerError::Setting(error)) => error,
        other => panic!("{other:?}"),
    };
    let nothing = bench.ask(configure("a", value, Version(SettingsVersion(1))));
    assert_eq!(refused(nothing), SettingError::NotFound);
    let first = version(bench.ask(configure("a", value, Absent)));
    let exists = bench.ask(configure("a", value, Absent));
    assert_eq!(refused(exists), SettingError::Exists { version: first });
    // A change of another one changes nothing of it.
    version(bench.ask(configure("b", value, Any)));
    let second = version(bench.ask(configure("a", value, Version(first))));
    let late = bench.ask(configure("a", None, Version(first)));
    assert_eq!(refused(late), SettingError::Changed { current: second });
    version(bench.ask(configure("a", None, Version(second))));
    let last = version(bench.ask(configure("a", value, Absent)));
    // All settings are as they were, or some has changed: another one, or one that is gone since.
    let of_all = bench.ask(configure("b", None, Settings(second)));
    let current = last;
    assert_eq!(refused(of_all), SettingError::SettingsChanged { current });
    let last = version(bench.ask(configure("b", None, Settings(last))));
    let twice = bench.ask_all(vec![
        configure("d", value, Settings(last)),
        configure("e", value, Settings(last)),
    ]);
    assert_eq!(twice.unwrap_err().index, Some(1));
    assert_eq!(bench.value("d"), None);
    // In one batch each sees those before it.
    let batch = bench.ask_all(vec![
        configure("c", value, Absent),
        configure("c", None, Any),
        configure("c", value, Absent),
        configure("c", value, Absent),
    ]);
    let refusal = batch.unwrap_err();
    assert_eq!(refusal.index, Some(3));
    assert!(matches!(
        refusal.error,
        TimerError::Setting(SettingError::Exists { .. })
    ));
    assert_eq!(bench.value("c"), None);
}

#[test]
fn a_batch_changes_settings_and_timers_or_neither() {
    let mut bench = Bench::new();
    let there = |bench: &Bench| {
        let timer = TimerName::new("q", "1").unwrap();
        let timer = bench.store.get(Shard::ONLY, &timer).unwrap().is_some();
        (timer, bench.value("a").is_some())
    };
    bench.ask(set("2", Precondition::None)).unwrap();
    let batch = |last| {
        vec![
            put("a", "1"),
            set("1", Precondition::Absent),
            set(last, Precondition::Absent),
        ]
    };
    let refused = bench.ask_all(batch("2")).unwrap_err();
    assert_eq!(refused.index, Some(2));
    assert_eq!(there(&bench), (false, false));
    bench.told.full.store(true, Ordering::SeqCst);
    let refused = bench.ask_all(batch("3")).unwrap_err();
    assert!(matches!(refused.error, TimerError::StorageFull));
    assert_eq!(there(&bench), (false, false));
    bench.told.full.store(false, Ordering::SeqCst);
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(bench.ask_all(batch("3")).unwrap().len(), 3);
    assert_eq!(there(&bench), (true, true));
    assert_eq!(bench.engine.settings().version(), SettingsVersion(1));
}

#[test]
fn settings_have_bounds() {
    let mut bench = Bench::new();
    let most = vec![7; Setting::VALUE_MAX_BYTES];
    let too_long = vec![7; Setting::VALUE_MAX_BYTES + 1];
    let any = SettingPrecondition::None;
    let long = bench.ask(configure("a", Some(&too_long), any));
    assert!(matches!(
        long,
        Err(TimerError::Setting(SettingError::ValueTooLong { .. }))
    ));
    let number = |number: usize| format!("{number:05}");
    let each = most.len() + number(0).len();
    let fit = Settings::MAX_BYTES / each;
    for chunk in (0..fit).collect::<Vec<_>>().chunks(50) {
        let requests = chunk
            .iter()
            .map(|&at| configure(&number(at), Some(&most), any));
        bench.ask_all(requests.collect()).unwrap();
    }
    assert_eq!(bench.engine.settings().bytes(), fit * each);
    let refused = bench.ask(configure("one more", Some(&most), any));
    assert!(matches!(
        refused,
        Err(TimerError::Setting(SettingError::TooMany { .. }))
    ));
    // One in the place of another has room, and so has one more once another is gone.
    version(bench.ask(configure(&number(0), Some(&most), any)));
    let exchanged = bench.ask_all(vec![
        configure(&number(1), None, any),
        configure(&number(fit), Some(&most), any),
    ]);
    assert_eq!(exchanged.unwrap().len(), 2);
}

#[test]
fn what_the_owner_of_another_shard_changes_is_seen_after_half_a_second() {
    let mut bench = Bench::new();
    let mut other = bench.beside(1);
    version(other.ask(put("a", "theirs")));
    bench.turn();
    assert_eq!(bench.value("a"), None);
    bench.clock.advance(Duration::from_millis(500));
    bench.asked();
    bench.turn();
    assert_eq!(bench.value("a"), Some(b"theirs".to_vec()));
    // And no more often than that, however many turns there are.
    for _ in 0..100 {
        bench.clock.advance(Duration::from_millis(10));
        bench.turn();
    }
    let asked = bench.asked();
    assert!((2..=4).contains(&asked), "{asked}");
    // Whoever changes one looks before.
    version(other.ask(put("b", "theirs")));
    let absent = SettingPrecondition::Absent;
    let late = bench.ask(configure("b", Some(b"ours"), absent));
    assert!(matches!(
        late,
        Err(TimerError::Setting(SettingError::Exists { .. }))
    ));
}

#[test]
fn an_answer_says_the_version_that_the_store_gave() {
    let mut bench = Bench::new();
    let mut other = bench.beside(1);
    let turn = bench
        .engine
        .begin(vec![Event::Request(Ticket(1), put("a", "ours"))]);
    let turn = turn.unwrap();
    // Between the two halves.
    let theirs = version(other.ask(put("b", "theirs")));
    let committed = bench.store.commit(turn.lease(), turn.changes());
    let mut answers = Vec::new();
    bench
        .engine
        .end(turn, committed, &mut |effect| answers.push(effect))
        .unwrap();
    let Some(Effect::Answer(_, answer)) = answers.pop() else {
        panic!("{answers:?}");
    };
    let ours = version(answer);
    assert!(ours > theirs);
    let settings = bench.engine.settings();
    assert_eq!(settings.get(&name("a")).unwrap().version, ours);
    assert_eq!(settings.get(&name("b")).unwrap().version, theirs);
}

#[test]
fn settings_that_cannot_be_read_any_more_stay_as_they_were() {
    let mut bench = Bench::new();
    version(bench.ask(put("a", "1")));
    bench.told.unreadable.store(true, Ordering::SeqCst);
    bench.clock.advance(Duration::from_secs(5));
    bench.turn();
    assert_eq!(bench.value("a"), Some(b"1".to_vec()));
    // Its own changes it knows without reading them.
    let second = version(bench.ask(put("b", "2")));
    assert_eq!(bench.value("b"), Some(b"2".to_vec()));
    bench.told.unreadable.store(false, Ordering::SeqCst);
    bench.clock.advance(Duration::from_secs(5));
    bench.turn();
    assert_eq!(bench.engine.settings().version(), second);
    // But none begins without them: what they say would be missing.
    let told = Arc::<Told>::default();
    told.unreadable.store(true, Ordering::SeqCst);
    let store = Arc::new(Shared(bench.store.clone(), told));
    let clock: Arc<dyn Clock> = Arc::new(bench.clock.clone());
    let refused = Engine::open(store, Shard(2), clock, Config::default());
    assert!(matches!(refused, Err(StoreError::Unreadable { .. })));
}

#[test]
fn any_shard_that_a_process_owns_changes_settings() {
    let shards = Shards::new(8).unwrap();
    let handler = |_: &Attempt| Outcome::done();
    let clock = Arc::new(ManualClock::new());
    let timer = TimerName::new("q", "1").unwrap();
    // Not the first one.
    let owned = [shards.of(&timer), Shard(5), Shard(6)];
    let store = MemoryStore::new(7);
    let config = Config::default();
    let timers = Timers::open_divided(store, shards, owned, handler, clock, config).unwrap();
    let first = version(timers.call(put("a", "1")));
    assert_eq!(timers.settings().get(&name("a")).unwrap().version, first);
    let (send, answers) = std::sync::mpsc::channel();
    let batch = vec![put("b", "2"), set("1", Precondition::Absent)];
    timers.submit_batch(batch, move |answer| send.send(answer).unwrap());
    assert_eq!(answers.recv().unwrap().unwrap().len(), 2);
    assert!(timers.get(&timer).unwrap().is_some());
    let settings = timers.settings();
    assert!(settings.get(&name("a")).is_some() && settings.get(&name("b")).is_some());
}
