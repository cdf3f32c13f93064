//! Purges: what was there when one was asked for goes, in steps that go on after a cut of power; nothing else does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use countwheel_disk::simulated::{Disk, Fault};
use countwheel_disk::{LogOptions, LogStore, MemorySorted};
use countwheel_durable::store::{MemoryStore, Shard, Store};
use countwheel_durable::{
    Asked, Attempt, Completion, Config, Counted, Due, Elsewhere, Handler, JobAction, Outcome,
    Purge, PurgeError, PurgeFilter, QueueName, Record, Request, Shards, StateKind, TimerError,
    TimerName, Timers, inline,
};
use countwheel_time::{ManualClock, Random, SystemClock, Timestamp};

const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);
const HOUR: Duration = Duration::from_secs(3_600);

fn orders() -> QueueName {
    QueueName::new("orders").unwrap()
}

fn open(store: impl Store + 'static) -> Timers {
    let clock = Arc::new(ManualClock::at(NOON));
    Timers::open(store, inline(|_| ()), clock, Config::default()).unwrap()
}

/// Steps until nothing is left to do.
fn purge_all(timers: &Timers, limit: usize) {
    for _ in 0..10_000 {
        if !timers.purge_step(limit).unwrap().goes_on {
            return;
        }
    }
    panic!("the purge does not end");
}

fn keys(timers: &Timers, queue: &str) -> Vec<String> {
    let listed = timers.list(queue).map(|it| it.unwrap().name.key);
    listed.map(|key| key.as_str().to_owned()).collect()
}

fn set(timers: &Timers, key: &str, after: Duration) {
    timers.set(("orders", key), after, "").unwrap();
}

#[test]
fn a_purge_takes_what_its_filter_names_and_leaves_other_queues() {
    let timers = open(MemoryStore::new(7));
    for (key, hours) in [("a-1", 1), ("a-2", 2), ("a-3", 3), ("b-2", 2)] {
        set(&timers, key, HOUR * hours);
    }
    timers.set(("other", "a-2"), HOUR * 2, "").unwrap();
    let filter = PurgeFilter {
        prefix: Some("a-".to_owned()),
        due_from: Some(NOON + HOUR * 2),
        due_before: Some(NOON + HOUR * 3),
        ..PurgeFilter::default()
    };
    let asked = timers.purge(&orders(), filter.clone()).unwrap();
    assert_eq!((asked.removed, asked.shards_left), (0, 1));
    let again = timers.purge(&orders(), PurgeFilter::default());
    assert!(matches!(again, Err(PurgeError::Running(running)) if *running == asked));
    purge_all(&timers, 100);
    assert_eq!(keys(&timers, "orders"), ["a-1", "b-2", "a-3"]);
    assert_eq!(keys(&timers, "other"), ["a-2"]);
    let through = timers.purges().pop().unwrap();
    let ended = Purge {
        removed: 1,
        shards_left: 0,
        ended: Some(NOON),
        ..asked.clone()
    };
    assert_eq!(through, ended);
    // Another may be asked for then, and only its settings are left.
    let next = timers.purge(&orders(), PurgeFilter::default()).unwrap();
    assert!(next.id > asked.id);
    purge_all(&timers, 100);
    assert_eq!(keys(&timers, "orders"), [""; 0]);
    assert_eq!(timers.purges()[0].removed, 3);
    assert_eq!(timers.settings().iter().count(), 1);
}

#[test]
fn a_purge_that_is_through_is_shown_for_an_hour() {
    let clock = ManualClock::at(NOON);
    let store = MemoryStore::new(7);
    let shared = Arc::new(clock.clone());
    let timers = Timers::open(store, inline(|_| ()), shared, Config::default()).unwrap();
    timers.purge(&orders(), PurgeFilter::default()).unwrap();
    purge_all(&timers, 1);
    clock.advance(HOUR - Duration::from_micros(1));
    purge_all(&timers, 1);
    assert_eq!(timers.purges().len(), 1);
    clock.advance(Duration::from_micros(1));
    assert_eq!(timers.purges(), []);
    purge_all(&timers, 1);
    assert_eq!(timers.settings().iter().count(), 0);
}

#[test]
fn what_is_set_during_a_purge_stays_whatever_the_clock_says() {
    let clock = ManualClock::at(NOON);
    let shared = Arc::new(clock.clone());
    let store = MemoryStore::new(7);
    let timers = Timers::open(store, inline(|_| ()), shared, Config::default()).unwrap();
    for number in 0..20 {
        set(&timers, &format!("old-{number:02}"), HOUR);
    }
    timers.purge(&orders(), PurgeFilter::default()).unwrap();
    // By their times of creation, these are older than the purge.
    clock.set_timestamp(NOON.saturating_sub(HOUR));
    for number in 0..20 {
        set(&timers, &format!("new-{number:02}"), HOUR);
        set(&timers, &format!("old-{number:02}"), HOUR);
        timers.purge_step(1).unwrap();
    }
    purge_all(&timers, 3);
    assert_eq!(keys(&timers, "orders").len(), 40);
}

#[test]
fn a_purge_ends_in_a_store_of_another_number_of_shards_and_leaves_nothing_behind() {
    let store = MemoryStore::new(7);
    let shards = Shards::new(4).unwrap();
    let divided = Timers::open_divided(
        store.clone(),
        shards,
        shards.all(),
        inline(|_| ()),
        Arc::new(ManualClock::at(NOON)),
        Config::default(),
    )
    .unwrap();
    for number in 0..20 {
        set(&divided, &format!("order-{number}"), HOUR);
    }
    divided.purge(&orders(), PurgeFilter::default()).unwrap();
    let mut removed = 0;
    for _ in 0..4 {
        removed += divided.purge_step(100).unwrap().removed as u64;
    }
    assert!(divided.settings().iter().count() > 2);
    divided.stop(Duration::ZERO);
    // As after a move of all timers, of which the first shard stands for all here.
    let timers = open(store);
    purge_all(&timers, 100);
    let through = timers.purges().pop().unwrap();
    assert_eq!((through.removed, through.ended), (removed, Some(NOON)));
    purge_all(&timers, 100);
    assert_eq!(timers.settings().iter().count(), 1);
}

#[test]
fn a_purge_that_is_cancelled_removes_no_more() {
    let timers = open(MemoryStore::new(7));
    for number in 0..10 {
        set(&timers, &format!("order-{number}"), HOUR);
    }
    assert_eq!(timers.cancel_purge(&orders()).unwrap(), None);
    let asked = timers.purge(&orders(), PurgeFilter::default()).unwrap();
    assert_eq!(timers.purge_step(4).unwrap().removed, 4);
    let was = timers.cancel_purge(&orders()).unwrap().unwrap();
    assert_eq!(
        was,
        Purge {
            removed: 4,
            ..asked
        }
    );
    purge_all(&timers, 4);
    assert_eq!(keys(&timers, "orders").len(), 6);
    assert_eq!(timers.settings().iter().count(), 0);
}

/// Ends attempts as their payloads say, or lets them run on.
#[derive(Default)]
struct Ending(std::sync::Mutex<Vec<Completion>>);

impl Handler for Ending {
    fn start(&self, attempt: Attempt, done: Completion) {
        match &*attempt.payload {
            b"done" => done.complete(Outcome::done()),
            b"dead" => done.complete(Outcome::stopped()),
            _ => self.0.lock().unwrap().push(done),
        }
    }
}

fn wait_for(timers: &Timers, key: &str, state: StateKind) -> Record {
    loop {
        let record = timers.get(("orders", key)).unwrap().unwrap();
        if record.state.kind() == state {
            return record;
        }
        thread::yield_now();
    }
}

/// One timer in each state, named after it.
fn of_each_state() -> Timers {
    let clock = Arc::new(SystemClock::new());
    let store = MemoryStore::new(7);
    let timers = Timers::open(store, Ending::default(), clock, Config::default()).unwrap();
    for state in StateKind::ALL {
        let due = match state {
            StateKind::Pending => HOUR,
            _ => Duration::ZERO,
        };
        timers
            .set(("orders", state.as_str()), due, state.as_str())
            .unwrap();
    }
    for state in StateKind::ALL {
        wait_for(&timers, state.as_str(), state);
    }
    timers
}

#[test]
fn the_states_are_those_asked_for_and_what_is_delivered_stays() {
    use StateKind::{Dead, Delivering, Done, Pending};
    for states in [
        vec![Pending],
        vec![Done],
        vec![Dead],
        vec![Pending, Dead],
        vec![Pending, Done, Dead],
        vec![Delivering],
    ] {
        let timers = of_each_state();
        let filter = PurgeFilter {
            states: states.clone(),
            ..PurgeFilter::default()
        };
        timers.purge(&orders(), filter).unwrap();
        purge_all(&timers, 2);
        let mut left = keys(&timers, "orders");
        left.sort();
        let stay = |state: &StateKind| *state == Delivering || !states.contains(state);
        let mut stay: Vec<_> = StateKind::ALL.into_iter().filter(stay).collect();
        stay.sort_by_key(|state| state.as_str());
        let stay: Vec<_> = stay.iter().map(|it| it.as_str()).collect();
        assert_eq!(left, stay, "{states:?}");
    }
}

#[test]
fn a_forget_is_refused_for_what_has_changed_or_is_delivered() {
    let timers = of_each_state();
    let name = |key: &str| TimerName::new("orders", key).unwrap();
    for state in StateKind::ALL {
        let revision = wait_for(&timers, state.as_str(), state).revision;
        let forget = |revision| Request::AsRead {
            name: name(state.as_str()),
            revision,
            state,
            action: JobAction::Remove,
        };
        let other = countwheel_durable::Revision(revision.0 + 1_000);
        assert!(matches!(
            timers.call(forget(other)),
            Err(TimerError::Changed { .. })
        ));
        let answer = timers.call(forget(revision));
        if state == StateKind::Delivering {
            assert!(matches!(answer, Err(TimerError::Conflict { .. })));
        } else {
            answer.unwrap();
            assert!(matches!(
                timers.call(forget(revision)),
                Err(TimerError::NotFound)
            ));
        }
    }
    assert_eq!(keys(&timers, "orders"), ["delivering"]);
}

/// The other of two nodes.
struct Other(std::sync::Mutex<Option<Timers>>);

impl Elsewhere for Other {
    fn ask(&self, shard: Shard, asked: Asked) {
        let other = self.0.lock().unwrap().clone().unwrap();
        other.ask_here(shard, asked);
    }

    fn counts(&self, shards: &[Shard]) -> BTreeMap<Shard, Counted> {
        let other = self.0.lock().unwrap().clone().unwrap();
        other.counts_here(shards).unwrap()
    }
}

#[test]
fn two_nodes_each_purge_their_shards_and_a_set_after_the_answer_stays() {
    let store = MemoryStore::new(7);
    let shards = Shards::new(4).unwrap();
    let nodes = [0, 1].map(|node| {
        let clock = Arc::new(SystemClock::new());
        let owned = [Shard(node), Shard(node + 2)];
        let handler = inline(|_| ());
        Timers::open_divided(
            store.clone(),
            shards,
            owned,
            handler,
            clock,
            Config::default(),
        )
        .unwrap()
    });
    let [first, second] = &nodes;
    let ways = [second, first].map(|it| Arc::new(Other(std::sync::Mutex::new(Some(it.clone())))));
    for (node, way) in nodes.iter().zip(&ways) {
        node.on_elsewhere(Arc::clone(way) as Arc<dyn Elsewhere>);
    }
    for number in 0..100 {
        set(first, &format!("old-{number}"), HOUR);
    }
    let asking = first.clone();
    let asked = thread::spawn(move || asking.purge(&orders(), PurgeFilter::default()));
    // An engine without work sees what others have changed once it is asked.
    let nothing = QueueName::new("nothing").unwrap();
    let look = |node: &Timers| assert_eq!(node.cancel_purge(&nothing).unwrap(), None);
    while !asked.is_finished() {
        look(second);
        second.purge_step(1).unwrap();
    }
    let asked = asked.join().unwrap().unwrap();
    assert_eq!(asked.shards_left, 4);
    for number in 0..100 {
        set(first, &format!("new-{number}"), HOUR);
    }
    let is_through = |node: &Timers| node.purges().iter().any(|it| it.ended.is_some());
    while !is_through(first) {
        first.purge_step(7).unwrap();
        second.purge_step(7).unwrap();
        look(first);
        look(second);
    }
    let left = keys(first, "orders");
    assert_eq!(left.len(), 100);
    assert!(left.iter().all(|key| key.starts_with("new-")));
    assert_eq!(first.purges()[0].removed, 100);
    for way in &ways {
        way.0.lock().unwrap().take();
    }
}

/// What a timer of the queue is, as far as a purge is concerned.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Known {
    due: Timestamp,
    text: String,
    is_old: bool,
}

fn below(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).unwrap()
}

/// A queue on a disk whose power goes, and a purge of it. Says how often the power went during the purge.
fn live(seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let (disk, base) = (Disk::new(seed), MemorySorted::default());
    let reopen = || {
        let mut options = LogOptions::default();
        options.segment_bytes = 1 << 14;
        let log = LogStore::open(base.clone(), disk.files("log"), 7, options).unwrap();
        log.seal().unwrap();
        while log.flush_oldest().unwrap() {}
        open(log)
    };
    let mut timers = reopen();
    let mut known = BTreeMap::new();
    let keys: Vec<String> = (0..60)
        .map(|number| format!("{}-{number}", ["a", "b"][number % 2]))
        .collect();
    let mut sets = 0_u32;
    let mut put = |timers: &Timers, random: &mut Random, key: &str, is_old| {
        sets += 1;
        let (due, text) = (
            NOON + HOUR * u32::try_from(1 + random.below(10)).unwrap(),
            sets.to_string(),
        );
        let name = TimerName::new("orders", key).unwrap();
        timers.set(name, Due::At(due), text.as_str()).unwrap();
        let known = Known { due, text, is_old };
        (key.to_owned(), known)
    };
    for key in &keys[..40] {
        known.extend([put(&timers, &mut random, key, true)]);
    }
    let some = |random: &mut Random| random.below(2) == 0;
    let filter = PurgeFilter {
        prefix: some(&mut random).then(|| "a-".to_owned()),
        due_from: some(&mut random).then(|| NOON + HOUR * 3),
        due_before: some(&mut random).then(|| NOON + HOUR * 8),
        ..PurgeFilter::default()
    };
    let may_move = filter.due_from.is_none() && filter.due_before.is_none();
    let selects = |key: &str, known: &Known| {
        let prefix = filter.prefix.as_deref().unwrap_or_default();
        let due = known.due;
        known.is_old
            && key.starts_with(prefix)
            && filter.due_from.is_none_or(|from| due >= from)
            && filter.due_before.is_none_or(|before| due < before)
    };
    timers.purge(&orders(), filter.clone()).unwrap();
    let (mut cuts, mut before, mut expected) = (0, 0, 0);
    let mut moved = false;
    for step in 0.. {
        assert!(step < 2_000, "the purge does not end");
        if random.below(4) == 0 {
            disk.fail(Fault::power(random.below(4)));
        }
        let stepped = timers.purge_step(1 + below(&mut random, 4));
        if stepped.is_err() || disk.struck() > cuts {
            disk.cut(random.below(u64::MAX));
            drop(timers);
            timers = reopen();
            cuts = disk.struck();
        }
        disk.heal();
        let purge = timers.purges().pop().unwrap();
        assert!(
            purge.removed >= before,
            "{} after {before} were removed",
            purge.removed
        );
        let records: BTreeMap<_, _> = timers
            .list("orders")
            .map(|it| it.unwrap())
            .map(|it| (it.name.key.as_str().to_owned(), it))
            .collect();
        known.retain(|key, it| {
            let is_there = records.contains_key(key);
            let is_gone = !is_there && selects(key, it);
            expected += u64::from(is_gone);
            assert!(is_there || is_gone, "{key} is lost: {it:?}");
            is_there
        });
        assert_eq!(purge.removed, expected);
        for (key, record) in &records {
            let text = std::str::from_utf8(&record.payload).unwrap();
            let it = known.get(key).expect("nothing comes back");
            assert_eq!((record.due, text), (it.due, &*it.text));
        }
        before = purge.removed;
        if purge.ended.is_some() {
            break;
        }
        if random.below(3) == 0 {
            let key = &keys[below(&mut random, keys.len())];
            known.extend([put(&timers, &mut random, key, false)]);
        }
        // What the purge has not come to yet goes behind it.
        let last = records.values().last().filter(|_| may_move && !moved);
        if let Some(record) = last
            && before > 2
            && selects(record.name.key.as_str(), &known[record.name.key.as_str()])
        {
            let due = NOON + Duration::from_secs(1);
            timers.move_to(record.name.clone(), Due::At(due)).unwrap();
            let key = record.name.key.as_str();
            known.get_mut(key).unwrap().due = due;
            moved = true;
        }
    }
    let left = known.iter().find(|(key, known)| selects(key, known));
    assert_eq!(left, None, "it was there before the purge");
    cuts
}

#[test]
fn a_purge_goes_on_after_the_power_went_and_takes_what_was_there_and_nothing_else() {
    let cuts: u64 = (0..40).map(live).sum();
    // What never happens rots.
    assert!(cuts > 60, "{cuts} cuts");
}

#[cfg(feature = "planted-bugs")]
#[test]
fn each_mistake_of_a_purge_is_found() {
    for bug in countwheel_durable::PlantedBug::OF_PURGES {
        let is_found = (0..40).any(|seed| {
            countwheel_durable::plant(Some(*bug));
            let ended = std::panic::catch_unwind(|| live(seed));
            countwheel_durable::plant(None);
            ended.is_err()
        });
        assert!(is_found, "{bug:?} was not found");
    }
}
