//! The expiring map: against a plain model, row by row against the caches it is to replace, and
//! on real threads where they meet.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use countwheel::{Layout, ManualClock, ManualHost, Overload, Stop, Timer};
use countwheel_patterns::{
    Cause, ExpiringMap, ExpiringMapBuilder, ExpiringStats, InsertError, Ttl, WeakExpiringMap,
};

use crate::support::{
    Count, Desk, HOUR, Journal, MS, Presence, Random, SECOND, block_on, layouts, manual, ns,
    ticks_of,
};

type Heard = Journal<(u64, u64, Cause)>;

fn heard(builder: ExpiringMapBuilder<u64, u64>) -> (ExpiringMapBuilder<u64, u64>, Heard) {
    let journal = Heard::new();
    let listener = journal.clone();
    let builder = builder.listener(move |key, value, cause| listener.write((key, value, cause)));
    (builder, journal)
}

/// A map with a second to live, and what its listener hears.
fn with_listener(host: &ManualHost) -> (ExpiringMap<u64, u64>, Heard) {
    let (builder, heard) = heard(ExpiringMap::builder().ttl(Ttl::after(SECOND)));
    (builder.build(host.timer().clone()), heard)
}

fn adds_up(stats: ExpiringStats) -> bool {
    let ends = stats.replaced + stats.removed + stats.expired + stats.cleared + stats.drained;
    stats.inserted == ends + stats.len
}

// ---- the model ---------------------------------------------------------------------------

#[derive(Clone, Copy)]
struct Modelled {
    value: u64,
    ends_at: u64,
    idle: u64,
    idle_until: u64,
}

impl Modelled {
    fn deadline(&self) -> u64 {
        self.ends_at.min(self.idle_until)
    }
}

#[derive(Default)]
struct Model {
    now: u64,
    alive: BTreeMap<u64, Modelled>,
    /// What the listener has to hear, by key.
    heard: BTreeMap<u64, Vec<(u64, Cause)>>,
    hits: u64,
    misses: u64,
}

impl Model {
    fn hear(&mut self, key: u64, value: u64, cause: Cause) {
        self.heard.entry(key).or_default().push((value, cause));
    }

    fn pass(&mut self, span: u64) {
        self.now = self.now.saturating_add(span);
        let now = self.now;
        let over = |entry: &Modelled| entry.deadline() <= now && entry.deadline() < u64::MAX;
        let over: Vec<_> = self
            .alive
            .extract_if(.., |_, entry| over(entry))
            .map(|(key, entry)| (key, entry.value))
            .collect();
        for (key, value) in over {
            self.hear(key, value, Cause::Expired);
        }
    }

    fn put(&mut self, key: u64, value: u64, (age, idle): (u64, u64)) -> Option<u64> {
        let entry = Modelled {
            value,
            ends_at: self.now.saturating_add(age),
            idle,
            idle_until: self.now.saturating_add(idle),
        };
        let before = self.alive.insert(key, entry).map(|entry| entry.value);
        if let Some(before) = before {
            self.hear(key, before, Cause::Replaced);
        }
        self.pass(0);
        before
    }

    fn renew(&mut self, key: u64) -> Option<u64> {
        let entry = self.alive.get_mut(&key)?;
        entry.idle_until = self.now.saturating_add(entry.idle);
        Some(entry.value)
    }

    fn read(&mut self, key: u64) -> Option<u64> {
        let read = self.renew(key);
        *(if read.is_some() {
            &mut self.hits
        } else {
            &mut self.misses
        }) += 1;
        read
    }

    fn remove(&mut self, key: u64, cause: Cause) -> Option<u64> {
        let value = self.alive.remove(&key)?.value;
        self.hear(key, value, cause);
        Some(value)
    }
}

/// Says of a failing test with what it failed.
struct Case(String);

impl Drop for Case {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the case was: {}", self.0);
        }
    }
}

fn behaves_like_the_model(seed: u64, tick: u64, layout: Layout) {
    let _case = Case(format!("seed {seed}, tick {tick}, {layout:?}"));
    let mut random = Random(seed);
    let mut host = manual(ns(tick), layout);
    let (builder, journal) = heard(ExpiringMap::builder());
    let map = builder.build(host.timer().clone());
    let mut model = Model::default();
    let keys = 1 + random.below(40);
    for value in 0..400_u64 {
        let key = random.below(keys);
        let mut span = || match random.below(8) {
            0 => 0,
            1..4 => u64::MAX,
            _ => random.nanos_up_to(1_000 * tick),
        };
        let (age, idle) = (span(), span());
        let ttl = Ttl::after(ns(age)).or_idle(ns(idle));
        match random.below(16) {
            0..3 => {
                let before = map.insert_for(key, value, ttl).unwrap();
                assert_eq!(before, model.put(key, value, (age, idle)));
            }
            3 => match map.insert_if_absent_for(key, value, ttl) {
                Ok(()) => assert_eq!(model.put(key, value, (age, idle)), None),
                Err(refused) => {
                    assert!(matches!(refused, InsertError::Present(..)));
                    assert_eq!(refused.into_parts(), (key, value));
                    assert!(model.alive.contains_key(&key));
                }
            },
            4..6 => assert_eq!(map.get(&key), model.read(key)),
            6 => assert_eq!(map.touch(&key), model.renew(key).is_some()),
            7 => {
                let is_there = map.set_ttl(&key, ttl);
                let entry = model.alive.get_mut(&key);
                assert_eq!(is_there, entry.is_some());
                if let Some(entry) = entry {
                    entry.ends_at = model.now.saturating_add(age);
                    (entry.idle, entry.idle_until) = (idle, model.now.saturating_add(idle));
                    model.pass(0);
                }
            }
            8 => assert_eq!(map.remove(&key), model.remove(key, Cause::Removed)),
            9 => {
                let changed = map.update(&key, |value| std::mem::replace(value, 7));
                assert_eq!(changed, model.read(key));
                if let Some(entry) = model.alive.get_mut(&key) {
                    entry.value = 7;
                }
            }
            10 => {
                let expected = model.alive.get(&key).map(|entry| match entry.deadline() {
                    u64::MAX => Duration::MAX,
                    deadline => ns(deadline - model.now),
                });
                assert_eq!(map.remaining(&key), expected);
                assert_eq!(map.contains(&key), expected.is_some());
                let mut snapshot = map.snapshot();
                snapshot.sort_unstable();
                let alive = model.alive.iter();
                assert!(alive.map(|(&key, entry)| (key, entry.value)).eq(snapshot));
            }
            11 if random.below(8) == 0 => match random.below(3) {
                0 => {
                    map.retain(|key, _| key % 2 == 0);
                    let keys: Vec<_> = model.alive.keys().copied().collect();
                    for key in keys.into_iter().filter(|key| key % 2 == 1) {
                        model.remove(key, Cause::Removed);
                    }
                }
                1 => {
                    map.clear();
                    let keys: Vec<_> = model.alive.keys().copied().collect();
                    for key in keys {
                        model.remove(key, Cause::Cleared);
                    }
                }
                _ => {
                    let mut drained = map.drain();
                    drained.sort_unstable_by_key(|entry| entry.key);
                    let alive = std::mem::take(&mut model.alive);
                    assert_eq!(drained.len(), alive.len());
                    for (entry, (key, modelled)) in drained.iter().zip(alive) {
                        assert_eq!((entry.key, entry.value), (key, modelled.value));
                    }
                }
            },
            11 | 12 => {
                // A stall: what has expired is still in the map, and nobody sees it.
                let span = random.nanos_up_to(500 * tick);
                host.clock().advance(ns(span));
                model.pass(span);
            }
            _ => {
                let span = random.nanos_up_to(500 * tick);
                host.advance(ns(span));
                model.pass(span);
                // Over but in the tick that has begun: at most those the model has let go.
                let due = host.next_wake();
                assert!(due.is_none_or(|due| due.as_nanos() > model.now));
                assert!(map.len() >= model.alive.len());
                assert!(adds_up(map.stats()));
            }
        }
    }
    host.advance(ns(tick));
    model.pass(tick);
    host.run_due();
    assert!(map.len() >= model.alive.len());
    let stats = map.stats();
    assert_eq!((stats.hits, stats.misses), (model.hits, model.misses));

    host.advance(Duration::from_nanos(1_000_000 * tick));
    model.pass(1_000_000 * tick);
    assert_eq!(
        map.len(),
        model.alive.len(),
        "nothing is left but what lives for ever"
    );
    drop(map);
    let keys: Vec<_> = model.alive.keys().copied().collect();
    for key in keys {
        model.remove(key, Cause::Cleared);
    }
    host.run_due();
    assert_eq!(host.timer().pending(), 0, "not even a wake-up");
    let mut heard: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (key, value, cause) in journal.take() {
        heard.entry(key).or_default().push((value, cause));
    }
    assert_eq!(heard, model.heard, "each once, in order, with its cause");
    assert_eq!(host.timer().stats().panicked, 0);
}

/// 2.9, defect 22, section 5 row 13: all operations, at random, against a plain map. No read
/// sees what has expired, nothing is gone early, and the listener hears of each entry once.
#[test]
fn an_expiring_map_is_a_map_that_forgets() {
    for layout in layouts() {
        for tick in [1, 10, 1_000_000] {
            for seed in 0..60 {
                behaves_like_the_model(seed, tick, layout);
            }
        }
    }
}

// ---- when entries expire -----------------------------------------------------------------

/// Not before its time, to the nanosecond, and less than a tick after it without any traffic:
/// moka frees what has expired when somebody comes by.
#[test]
fn an_entry_leaves_when_its_time_has_come_and_nobody_comes_by() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let map = ExpiringMap::new(host.timer().clone(), Ttl::after(ns(2_500_000)));
        let presence = Presence::default();
        map.insert(1, presence.clone()).unwrap();
        host.clock().advance(ns(2_499_999));
        host.run_due();
        assert!(map.contains(&1));
        host.clock().advance(ns(1));
        assert!(
            !map.contains(&1) && map.get(&1).is_none(),
            "to the nanosecond"
        );
        assert!(!presence.is_over());
        host.clock().advance(ns(500_000));
        host.run_due();
        assert!(presence.is_over(), "dropped, not only hidden");
        assert!(map.is_empty());
    }
}

/// Sliding and absolute at once: used all the time, it still ends.
#[test]
fn a_use_renews_the_idle_time_and_not_the_age() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let ttl = Ttl::after(10 * SECOND).or_idle(3 * SECOND);
        let map = ExpiringMap::new(host.timer().clone(), ttl);
        for key in 1..=4 {
            map.insert(key, key).unwrap();
        }
        for second in 1..10 {
            host.advance(SECOND);
            assert_eq!(map.get(&1), Some(1));
            assert!(map.touch(&2));
            assert_eq!(map.update(&3, |value| *value), Some(3));
            map.for_each(|_, _| ()); // does not renew
            let _ = map.snapshot();
            assert_eq!(map.contains(&4), second < 3);
        }
        assert_eq!(map.remaining(&1), Some(SECOND));
        host.advance(SECOND);
        assert!(map.is_empty());
    }
}

/// 2.12, remaining-time re-arm: a read is a store. Between the deadline that was filed first
/// and the next, the wheel is asked once, however often the entry is used.
#[test]
fn a_use_does_not_touch_the_wheel() {
    let mut host = ManualHost::new();
    let map = ExpiringMap::new(host.timer().clone(), Ttl::idle(60 * SECOND));
    map.insert(1, 1).unwrap();
    let wake_ups = |host: &ManualHost| host.timer().stats().ran;
    for _ in 0..59_000 {
        host.advance(MS);
        let _ = map.get(&1);
        map.insert(1, 1).unwrap();
    }
    let before = wake_ups(&host);
    assert!(
        before <= 4,
        "{before}: the wheel's own steps to a far deadline"
    );
    host.advance(60 * SECOND - MS);
    assert!(map.contains(&1));
    host.advance(MS);
    assert!(map.is_empty());
    assert!(wake_ups(&host) <= 2 * (before + 2));
}

#[test]
fn the_ends_of_a_span_are_no_special_case() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let (map, heard) = with_listener(&host);
        map.insert_for(1, 1, Ttl::after(Duration::ZERO)).unwrap();
        map.insert_for(2, 2, Ttl::idle(Duration::ZERO)).unwrap();
        assert!(map.get(&1).is_none() && !map.touch(&2));
        host.run_due();
        let mut gone = heard.take();
        gone.sort_unstable();
        assert_eq!(gone, [(1, 1, Cause::Expired), (2, 2, Cause::Expired)]);

        map.insert_for(3, 3, Ttl::NEVER).unwrap();
        map.insert_for(4, 4, Ttl::idle(Duration::MAX)).unwrap();
        assert_eq!(host.timer().pending(), 0, "for ever needs no timer");
        host.advance(Duration::MAX);
        assert_eq!((map.get(&3), map.get(&4)), (Some(3), Some(4)));
        assert_eq!(map.remaining(&3), Some(Duration::MAX));
    }
}

/// A deadline may move to either side, and cease to be.
#[test]
fn another_ttl_counts_from_now_on() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let map = ExpiringMap::new(host.timer().clone(), Ttl::after(10 * SECOND));
        for key in 0..4 {
            map.insert(key, key).unwrap();
        }
        assert!(map.set_ttl(&0, Ttl::after(SECOND)), "sooner");
        assert!(map.set_ttl(&1, Ttl::after(20 * SECOND)), "later");
        assert!(map.set_ttl(&2, Ttl::NEVER));
        host.advance(SECOND);
        assert!(!map.contains(&0) && map.len() == 3);
        assert!(!map.set_ttl(&0, Ttl::NEVER), "what is over stays over");
        host.advance(9 * SECOND);
        assert!(!map.contains(&3) && map.len() == 2);
        assert!(map.set_ttl(&2, Ttl::after(SECOND)), "it has an end again");
        host.advance(10 * SECOND);
        assert!(map.is_empty());
    }
}

/// Jitter: 2.9, expiry times random [0.95, 1.05].
#[test]
fn jitter_spreads_what_was_inserted_together() {
    let mut host = ManualHost::new();
    let builder = ExpiringMap::builder().ttl(Ttl::after(1_000 * SECOND));
    let map = builder.jitter(5).seed(3).build(host.timer().clone());
    for key in 0..1_000 {
        map.insert(key, ()).unwrap();
    }
    host.advance(950 * SECOND - MS);
    assert_eq!(map.len(), 1_000);
    let mut left = vec![map.len()];
    for _ in 0..10 {
        host.advance(10 * SECOND);
        left.push(map.len());
    }
    let gone = left.windows(2).map(|pair| pair[0] - pair[1]);
    assert!(
        gone.clone().all(|gone| (50..150).contains(&gone)),
        "{left:?}"
    );
    host.advance(2 * MS);
    assert!(map.is_empty());
}

// ---- defects 21 and 22, CAN-8 ------------------------------------------------------------

/// Defect 22, first half: go-zero pops the expiry, a Set then moves a timer that is gone, and
/// the fresh value is deleted. Here the expiry looks at the entry as it is.
#[test]
fn an_overwrite_is_never_deleted_by_the_old_timer() {
    for layout in layouts() {
        for (insert_at, lives) in [(500, SECOND), (1_000, SECOND), (1_500, SECOND), (1_000, MS)] {
            let mut host = manual(MS, layout);
            let (map, heard) = with_listener(&host);
            map.insert(1, 1).unwrap();
            // A stall: from 1,000 ms on, the expiry is due and has not run.
            host.clock().advance(MS * insert_at);
            let before = map.insert_for(1, 2, Ttl::after(lives)).unwrap();
            assert_eq!(before, (insert_at < 1_000).then_some(1));
            host.run_due();
            assert_eq!(map.get(&1), Some(2));
            host.advance(lives - ns(1));
            assert_eq!(map.get(&1), Some(2));
            host.advance(MS);
            let first = if insert_at < 1_000 {
                Cause::Replaced
            } else {
                Cause::Expired
            };
            assert_eq!(heard.take(), [(1, 1, first), (1, 2, Cause::Expired)]);
        }
    }
}

/// Defect 22, second half: go-zero's Del races Set and leaves an entry without a timer, for
/// ever. Here threads insert and remove one key, while it expires all the time; in the end
/// everything is gone.
#[test]
fn no_race_leaves_an_entry_without_a_timer() {
    let timer = Timer::new();
    let (builder, heard) = heard(ExpiringMap::builder());
    let map = builder.build(timer);
    let start = Barrier::new(3);
    thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (map, start) = (&map, &start);
            scope.spawn(move || {
                let mut random = Random(thread);
                start.wait();
                for turn in 0..4_000 {
                    let key = random.below(4);
                    match random.below(4) {
                        0 => drop(map.remove(&key)),
                        1 => drop(map.touch(&key)),
                        _ => {
                            let ttl = ns(random.below(300_000));
                            let ttl = Ttl::after(ttl).or_idle(2 * ttl);
                            map.insert_for(key, 10 * turn + thread, ttl).unwrap();
                        }
                    }
                }
            });
        }
    });
    // No sleep: the map says when it is empty, by its listener.
    let mut told = 0;
    while map.stats().inserted > told {
        told += heard.take().len() as u64;
        thread::yield_now();
    }
    let stats = map.stats();
    assert!(adds_up(stats) && map.is_empty(), "{stats:?}");
    assert_eq!((stats.unheard, told), (0, stats.inserted));
}

/// Defect 22: a value that lives long is inserted again and again, just as its short-lived
/// predecessor expires on the timer's thread. It is there whenever one looks.
#[test]
fn a_fresh_value_survives_the_expiry_it_meets() {
    let map = ExpiringMap::new(Timer::new(), Ttl::NEVER);
    for round in 0..300_u64 {
        map.insert_for(1, round, Ttl::after(ns(100 * round)))
            .unwrap();
        while map.contains(&1) {
            thread::yield_now();
        }
        // Over, and perhaps taken out at this very moment.
        assert_eq!(map.insert(1, round).unwrap(), None);
        for _ in 0..20 {
            assert_eq!(map.get(&1), Some(round));
        }
    }
}

/// Defect 21: go-zero keeps a removed value for up to a revolution, and the first value after
/// an overwrite.
#[test]
fn what_is_removed_or_replaced_is_freed_at_once() {
    for layout in layouts() {
        let host = manual(MS, layout);
        let map = ExpiringMap::new(host.timer().clone(), Ttl::after(HOUR));
        let values = [0; 4].map(|_| Presence::default());
        map.insert(1, values[0].clone()).unwrap();
        drop(map.insert(1, values[1].clone()).unwrap());
        assert!(values[0].is_over());
        drop(map.remove(&1));
        assert!(values[1].is_over());
        map.insert(1, values[2].clone()).unwrap();
        map.retain(|_, _| false);
        assert!(values[2].is_over());
        map.insert(1, values[3].clone()).unwrap();
        map.clear();
        assert!(values[3].is_over());
        assert_eq!(host.timer().pending(), 0, "cleared: not even a wake-up");
    }
}

/// CAN-8, defect 38: keys and nodes are used again and again; nothing meets its predecessor.
#[test]
fn a_place_that_is_used_again_has_nothing_of_its_last_owner() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let (map, heard) = with_listener(&host);
        for round in 0..1_000 {
            map.insert_for(1, round, Ttl::after(MS)).unwrap();
            if round % 2 == 0 {
                assert_eq!(map.remove(&1), Some(round));
                map.insert_for(2, round, Ttl::after(2 * MS)).unwrap();
                host.advance(MS);
                assert_eq!(
                    map.get(&2),
                    Some(round),
                    "the place of key 1, not its deadline"
                );
                map.remove(&2);
            } else {
                host.advance(MS);
                assert!(map.is_empty());
            }
        }
        let expired = heard.take().into_iter();
        let expired = expired.filter(|(_, _, cause)| *cause == Cause::Expired);
        assert_eq!(expired.count(), 500);
    }
}

// ---- the listener ------------------------------------------------------------------------

/// All causes, in order, on the executor and not in the caller.
#[test]
fn the_listener_hears_of_everything_that_leaves_and_of_nothing_else() {
    let mut host = ManualHost::new();
    let (map, heard) = with_listener(&host);
    map.insert(1, 1).unwrap();
    map.insert(1, 2).unwrap();
    map.remove(&1);
    map.insert(1, 3).unwrap();
    map.retain(|_, _| false);
    map.insert(1, 4).unwrap();
    map.clear();
    map.insert(1, 5).unwrap();
    assert_eq!(map.drain().len(), 1, "heard of by who drains");
    map.insert(1, 6).unwrap();
    assert!(map.insert_if_absent(1, 7).is_err());
    assert!(heard.take().is_empty(), "not in here");
    assert_eq!(map.stats().unheard, 4);
    host.advance(SECOND);
    let causes = [
        Cause::Replaced,
        Cause::Removed,
        Cause::Removed,
        Cause::Cleared,
    ];
    let mut expected: Vec<_> = (1..)
        .zip(causes)
        .map(|(value, cause)| (1, value, cause))
        .collect();
    expected.push((1, 6, Cause::Expired));
    assert_eq!(heard.take(), expected);
    assert_eq!(map.stats().unheard, 0);
}

/// Never under a lock: it uses the map it belongs to, all of it.
#[test]
fn the_listener_may_use_the_map() {
    let mut host = ManualHost::new();
    let seen = Journal::new();
    let map = ExpiringMap::builder().ttl(Ttl::after(SECOND)).build_cyclic(
        host.timer().clone(),
        |map: WeakExpiringMap<u64, u64>| {
            let seen = seen.clone();
            move |key, value, cause| {
                let map = map.upgrade().unwrap();
                seen.write((value, cause, map.len()));
                if cause == Cause::Expired && value < 3 {
                    assert_eq!(map.insert(key, value + 1).unwrap(), None);
                    map.retain(|_, _| true);
                    map.touch(&key);
                    let _ = map.stats();
                }
            }
        },
    );
    map.insert(1, 1).unwrap();
    host.advance(10 * SECOND);
    let expired = |value| (value, Cause::Expired, 0);
    assert_eq!(seen.take(), [1, 2, 3].map(expired));
    assert_eq!(map.stats().panicked, 0);
}

/// An executor without room makes the listener late, and loses nothing.
#[test]
fn an_executor_without_room_loses_no_entry() {
    let desk = Desk::with_room(0);
    let mut host = ticks_of(MS, Layout::default())
        .executor(Arc::clone(&desk))
        .manual(ManualClock::new());
    let (map, heard) = with_listener(&host);
    for key in 0..1_000 {
        map.insert(key, key).unwrap();
    }
    host.advance(2 * SECOND);
    assert!(map.is_empty() && heard.take().is_empty());
    assert_eq!(map.stats().unheard, 1_000);
    desk.set_room(1_000);
    while map.stats().unheard > 0 {
        host.advance(MS);
        desk.run_all();
    }
    assert_eq!(heard.take().len(), 1_000);
}

/// The timer stops with entries unheard of. Whatever becomes of its tasks, each is heard of
/// once; so is what leaves after that.
#[test]
fn no_end_of_the_timer_loses_an_entry() {
    for end in 0..5 {
        let desk = Desk::with_room(0);
        let mut host = ticks_of(MS, Layout::default())
            .executor(Arc::clone(&desk))
            .manual(ManualClock::new());
        let (map, heard) = with_listener(&host);
        for key in 0..1_000 {
            map.insert(key, key).unwrap();
        }
        host.advance(SECOND);
        map.insert(0, 0).unwrap();
        let timer = host.timer().clone();
        match end {
            0 => drop(timer.close(Stop::Drop)),
            1 => drop(timer.close(Stop::HandBack)),
            2 => {
                let tasks = timer.stop().unfired;
                tasks.into_iter().for_each(countwheel::Task::run);
            }
            3 => {
                let stopping = timer.close(Stop::RunNow);
                desk.set_room(10_000);
                while map.stats().unheard > 0 {
                    host.advance(MS);
                    desk.run_all();
                }
                drop(stopping);
            }
            _ => {
                drop(map);
                drop((timer, host));
                assert_eq!(heard.take().len(), 1_001);
                continue;
            }
        }
        assert_eq!(heard.take().len(), 1_000, "end {end}");
        assert_eq!(map.remove(&0), Some(0));
        assert_eq!(heard.take(), [(0, 0, Cause::Removed)], "here and now");
    }
}

/// A task that is handed back by an overloaded executor, and dropped, is none that is lost.
#[test]
fn an_overload_loses_no_entry() {
    let host = ticks_of(MS, Layout::default())
        .executor(Desk::with_room(0))
        .overload(Overload::hand_back(drop));
    let mut host = host.manual(ManualClock::new());
    let (map, heard) = with_listener(&host);
    map.insert(1, 1).unwrap();
    host.advance(SECOND);
    assert_eq!(heard.take(), [(1, 1, Cause::Expired)]);
}

#[test]
fn a_listener_that_panics_hears_of_the_next() {
    let mut host = ManualHost::new();
    let seen = Journal::new();
    let map = ExpiringMap::builder().ttl(Ttl::after(SECOND));
    let listener = seen.clone();
    let map = map.listener(move |_key: u64, value: u64, _| {
        assert!(!value.is_multiple_of(3));
        listener.write(value);
    });
    let map = map.build(host.timer().clone());
    for key in 0..300 {
        map.insert(key, key).unwrap();
    }
    host.advance(SECOND);
    assert_eq!((seen.take().len(), map.stats().panicked), (200, 100));
    assert_eq!(map.stats().unheard, 0);
}

// ---- foreign code ------------------------------------------------------------------------

/// A value that uses the map when it is dropped, however it leaves: no destructor runs under a
/// lock.
#[test]
fn the_destructor_of_a_value_may_use_the_map() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Nosy(Arc<OnceLock<WeakExpiringMap<u64, Nosy>>>);
    impl Drop for Nosy {
        fn drop(&mut self) {
            if let Some(map) = self.0.get().and_then(WeakExpiringMap::upgrade) {
                map.retain(|_, _| true);
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    let mut host = ManualHost::new();
    let map = ExpiringMap::<u64, Nosy>::new(host.timer().clone(), Ttl::after(SECOND));
    let weak = Arc::new(OnceLock::new());
    assert!(weak.set(map.downgrade()).is_ok());
    let nosy = || Nosy(Arc::clone(&weak));
    let put = |key| drop(map.insert(key, nosy()).unwrap());
    for key in 0..7 {
        put(key);
    }
    put(0); // replaced
    drop(map.remove(&1));
    map.retain(|&key, _| key != 2);
    map.set_ttl(&3, Ttl::after(Duration::ZERO));
    put(3); // expired, and replaced before it was taken out
    map.set_ttl(&4, Ttl::after(Duration::ZERO));
    drop(map.remove(&4));
    host.run_due();
    host.advance(SECOND); // 0, 3, 5 and 6
    put(0);
    map.clear();
    put(0);
    drop(map.drain());
    assert_eq!(DROPPED.load(Ordering::Relaxed), 11);
    let _ = map.close();
    drop(map.insert(9, nosy())); // refused
    assert_eq!(DROPPED.load(Ordering::Relaxed), 12);
    assert_eq!(
        (map.stats().panicked, host.timer().stats().panicked),
        (0, 0)
    );
}

/// What would wait for itself panics instead, and leaves the map whole.
#[test]
fn a_look_that_uses_a_map_panics() {
    let host = ManualHost::new();
    let (map, _) = with_listener(&host);
    map.insert(1, 1).unwrap();
    let panics = |look: &dyn Fn()| catch_unwind(AssertUnwindSafe(look)).is_err();
    assert!(panics(&|| assert!(
        map.get_with(&1, |_| map.get(&1)).is_some()
    )));
    assert!(panics(&|| assert!(map.update(&1, |_| map.len()).is_some())));
    assert!(panics(&|| map.retain(|_, _| map.is_empty())));
    assert!(panics(&|| map.for_each(|_, _| map.clear())));
    assert_eq!(map.get(&1), Some(1));
    assert!(adds_up(map.stats()));
}

/// A clone that panics changes nothing.
#[test]
fn a_value_that_cannot_be_cloned_stays() {
    struct Brittle(AtomicBool);
    impl Clone for Brittle {
        fn clone(&self) -> Self {
            assert!(!self.0.load(Ordering::Relaxed), "brittle");
            Self(AtomicBool::new(false))
        }
    }
    let host = ManualHost::new();
    let map = ExpiringMap::builder()
        .ttl(Ttl::after(SECOND))
        .listener(|_, _, _| ())
        .build(host.timer().clone());
    let brittle = || Brittle(AtomicBool::new(true));
    map.insert(1, brittle()).unwrap();
    let panics = |call: &dyn Fn()| catch_unwind(AssertUnwindSafe(call)).is_err();
    assert!(panics(&|| drop(map.get(&1))));
    assert!(panics(&|| assert!(map.remove(&1).is_some())));
    assert!(panics(&|| drop(map.insert(1, brittle()))));
    assert!(map.contains(&1) && map.len() == 1);
    assert!(adds_up(map.stats()));
}

/// Keys that all hash alike are kept apart, and so are their deadlines.
#[test]
fn keys_of_one_hash_expire_apart() {
    #[derive(PartialEq, Eq, Clone, Copy, Debug)]
    struct Alike(u64);
    impl std::hash::Hash for Alike {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            state.write_u8(0);
        }
    }
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let map = ExpiringMap::new(host.timer().clone(), Ttl::NEVER);
        for key in 1..=20 {
            let ttl = Ttl::after(SECOND * u32::try_from(key).unwrap());
            map.insert_for(Alike(key), key, ttl).unwrap();
        }
        for second in 1..=20 {
            host.advance(SECOND);
            for key in 1..=20 {
                assert_eq!(map.get(&Alike(key)), (key > second).then_some(key));
            }
        }
        assert!(map.is_empty());
    }
}

// ---- loads -------------------------------------------------------------------------------

/// 2.9, Take: one load for a key, the others wait for it and get the same.
#[test]
fn one_loads_and_the_others_wait() {
    const THREADS: usize = 8;
    let map = ExpiringMap::<u64, u64>::new(Timer::new(), Ttl::after(HOUR));
    for key in 0..20 {
        let (loads, start) = (AtomicUsize::new(0), Barrier::new(THREADS));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    let loaded = map.get_or_insert_with(&key, || {
                        loads.fetch_add(1, Ordering::Relaxed);
                        thread::yield_now();
                        key
                    });
                    assert_eq!(loaded, key);
                });
            }
        });
        assert_eq!(loads.load(Ordering::Relaxed), 1);
    }
    let stats = map.stats();
    assert_eq!(
        (stats.loads, stats.inserted, stats.load_failures),
        (20, 20, 0)
    );
    assert!(stats.misses >= stats.loads + stats.waited);
}

/// Starts a load of key 1 on a thread, and calls `meanwhile` when it is under way. What
/// the load then brings is `result`.
fn while_loading<R: Send>(
    map: &ExpiringMap<u64, u64>,
    result: Result<u64, String>,
    meanwhile: impl FnOnce() -> R,
) -> (Result<u64, Arc<String>>, R) {
    let (begun, begins) = mpsc::channel();
    let (release, wait) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let loader = scope.spawn(move || {
            map.try_get_or_load(&1, || {
                begun.send(()).unwrap();
                let _ = wait.recv();
                result
            })
        });
        begins.recv().unwrap();
        let returned = meanwhile();
        drop(release);
        (loader.join().unwrap(), returned)
    })
}

/// 2.9, Take: an error goes to all who wait, and is not kept.
#[test]
fn an_error_is_shared_and_not_kept() {
    let map = ExpiringMap::<u64, u64>::new(Timer::new(), Ttl::after(HOUR));
    thread::scope(|scope| {
        let failed = Err("down".to_owned());
        let (own, other) = while_loading(&map, failed, || {
            let map = &map;
            let other = scope.spawn(|| map.try_get_or_load(&1, || Err("asked twice".to_owned())));
            while map.stats().waited == 0 {
                thread::yield_now();
            }
            other
        });
        let (own, other) = (own.unwrap_err(), other.join().unwrap().unwrap_err());
        assert_eq!(*own, "down");
        assert!(Arc::ptr_eq(&own, &other));
    });
    assert_eq!(map.try_get_or_load(&1, || Ok::<_, Infallible>(3)), Ok(3));
    let stats = map.stats();
    assert_eq!((stats.loads, stats.load_failures, stats.waited), (2, 1, 1));
}

/// A value that was loaded before the key was written or removed is not put above that.
#[test]
fn what_was_loaded_does_not_undo_what_came_in_between() {
    let host = ManualHost::new();
    let map = || ExpiringMap::<u64, u64>::new(host.timer().clone(), Ttl::after(HOUR));

    let inserted = map();
    let (loaded, _) = while_loading(&inserted, Ok(1), || inserted.insert(1, 2).unwrap());
    assert_eq!((loaded, inserted.get(&1)), (Ok(1), Some(2)));

    let removed = map();
    let (loaded, none) = while_loading(&removed, Ok(1), || removed.remove(&1));
    assert_eq!((loaded, none, removed.get(&1)), (Ok(1), None, None));

    let cleared = map();
    let (loaded, ()) = while_loading(&cleared, Ok(1), || cleared.clear());
    assert_eq!((loaded, cleared.get(&1)), (Ok(1), None));

    let closed = map();
    let (loaded, _) = while_loading(&closed, Ok(1), || closed.close());
    assert_eq!((loaded, closed.len()), (Ok(1), 0));

    // Who asks after the removal does not get what was loaded before it.
    let asked = map();
    let (loaded, after) = while_loading(&asked, Ok(1), || {
        asked.remove(&1);
        asked.get_or_insert_with(&1, || 2)
    });
    assert_eq!((loaded, after, asked.get(&1)), (Ok(1), 2, Some(2)));
}

/// A full map does not keep what is loaded, and a load is of use all the same.
#[test]
fn a_load_into_a_full_map_is_returned() {
    let host = ManualHost::new();
    let map = ExpiringMap::<u64, u64>::builder()
        .max_entries(1)
        .build(host.timer().clone());
    map.insert(0, 0).unwrap();
    assert_eq!(map.get_or_insert_with(&1, || 1), 1);
    assert_eq!((map.get(&1), map.stats().refused), (None, 1));
    host.timer().stop();
    assert_eq!(map.get_or_insert_with(&2, || 2), 2);
    assert_eq!(map.len(), 1);
}

/// A loader that panics lets the next one try; one that asks for its own key is told.
#[test]
fn a_load_that_panics_is_taken_over() {
    let map = ExpiringMap::<u64, u64>::new(Timer::new(), Ttl::after(HOUR));
    let (begun, begins) = mpsc::channel();
    thread::scope(|scope| {
        let map = &map;
        let first = scope.spawn(move || {
            map.get_or_insert_with(&1, || {
                begun.send(()).unwrap();
                while map.stats().waited == 0 {
                    thread::yield_now();
                }
                panic!("the first loader");
            })
        });
        begins.recv().unwrap();
        assert_eq!(map.get_or_insert_with(&1, || 2), 2);
        assert!(first.join().is_err());
    });
    let itself = || map.get_or_insert_with(&5, || map.get_or_insert_with(&5, || 1));
    assert!(catch_unwind(AssertUnwindSafe(itself)).is_err());
    assert_eq!(
        map.get_or_insert_with(&5, || map.get_or_insert_with(&6, || 1)),
        1
    );
}

/// An error of another type than one expects is none: one loads in one's turn.
#[test]
fn another_callers_error_of_another_type_is_not_ones_own() {
    let map = ExpiringMap::<u64, u64>::new(Timer::new(), Ttl::after(HOUR));
    thread::scope(|scope| {
        let (own, other) = while_loading(&map, Err("down".to_owned()), || {
            let map = &map;
            let other = scope.spawn(|| map.get_or_insert_with(&1, || 4));
            while map.stats().waited == 0 {
                thread::yield_now();
            }
            other
        });
        assert!(own.is_err());
        assert_eq!(other.join().unwrap(), 4);
    });
}

/// In async code: the load of a future that is dropped goes to the next who waits.
#[test]
fn a_load_whose_future_is_dropped_is_taken_over() {
    let host = ManualHost::new();
    let map = ExpiringMap::<u64, u64>::new(host.timer().clone(), Ttl::after(HOUR));
    let never = std::future::pending::<Result<u64, String>>();
    let mut first = Box::pin(map.try_get_or_load_async(&1, never));
    let (ones, others) = (Count::new(), Count::new());
    assert!(ones.poll(&mut first).is_pending());
    let mut second = pin!(map.try_get_or_load_async(&1, async { Ok::<_, String>(2) }));
    let mut third = pin!(map.try_get_or_load_async(&1, async { Ok::<_, String>(3) }));
    assert!(others.poll(&mut second).is_pending());
    assert!(others.poll(&mut third).is_pending());
    drop(first);
    assert_eq!(others.woken(), 2, "each has a place of its own");
    assert_eq!(others.poll(&mut second), Poll::Ready(Ok(2)));
    assert_eq!(
        others.poll(&mut third),
        Poll::Ready(Ok(2)),
        "or loads in its turn"
    );
    let error = map.try_get_or_load_async(&7, async { Err::<u64, _>("down") });
    assert_eq!(block_on(error), Err(Arc::new("down")));
    let stats = map.stats();
    assert_eq!((stats.loads, stats.load_failures), (3, 2));
}

/// Both kinds wait for each other.
#[test]
fn a_thread_and_a_future_share_a_load() {
    let map = ExpiringMap::<u64, u64>::new(Timer::new(), Ttl::after(HOUR));
    let (own, other) = while_loading(&map, Ok(1), || {
        let map = map.clone();
        let other = thread::spawn({
            let map = map.clone();
            move || block_on(map.try_get_or_load_async(&1, async { Ok::<_, String>(2) }))
        });
        while map.stats().waited == 0 {
            thread::yield_now();
        }
        other
    });
    assert_eq!((own, other.join().unwrap()), (Ok(1), Ok(1)));
}

// ---- bounds, ends, counters --------------------------------------------------------------

/// A bound refuses and gives back; it is exact, through every way out of the map.
#[test]
fn a_bound_is_exact() {
    let mut host = ManualHost::new();
    let map = ExpiringMap::<u64, u64>::builder()
        .ttl(Ttl::after(SECOND))
        .max_entries(3)
        .build(host.timer().clone());
    let fill = || {
        (0..100)
            .take_while(|&key| map.insert(key, key).is_ok())
            .count()
    };
    for way in 0..6 {
        assert_eq!(fill(), 3);
        let refused = map.insert(50, 5).unwrap_err();
        assert!(matches!(refused, InsertError::Full(50, 5)));
        assert_eq!(
            map.insert(0, 9).unwrap(),
            Some(0),
            "no more room than before"
        );
        assert!(map.insert_if_absent(0, 9).is_err());
        match way {
            0 => host.advance(SECOND),
            1 => (0..3).filter_map(|key| map.remove(&key)).count(),
            2 => {
                map.retain(|_, _| false);
                3
            }
            3 => map.drain().len(),
            4 => {
                map.clear();
                3
            }
            _ => {
                host.clock().advance(SECOND);
                assert!(map.remove(&0).is_none());
                map.retain(|_, _| true);
                3
            }
        };
        assert!(map.is_empty());
        assert!(adds_up(map.stats()));
    }
    let threads = 4;
    let accepted = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (map, accepted) = (&map, &accepted);
            scope.spawn(move || {
                for key in 0..100 {
                    let inserted = map.insert(1_000 * thread + key, 0).is_ok();
                    accepted.fetch_add(u64::from(inserted), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!((accepted.load(Ordering::Relaxed), map.len()), (3, 3));
}

/// When the timer has stopped: no inserts, and reads still go by the clock.
#[test]
fn a_stopped_timer_lets_nothing_be_read_that_has_expired() {
    let host = ManualHost::new();
    let (map, heard) = with_listener(&host);
    map.insert(1, 1).unwrap();
    map.insert_for(2, 2, Ttl::NEVER).unwrap();
    host.timer().stop();
    assert!(map.is_closed());
    assert!(matches!(map.insert(3, 3), Err(InsertError::Closed(3, 3))));
    assert_eq!(map.get(&1), Some(1));
    host.clock().advance(SECOND);
    assert_eq!((map.get(&1), map.get(&2)), (None, Some(2)));
    assert_eq!(map.snapshot(), [(2, 2)]);
    assert_eq!(map.len(), 2, "in memory until somebody takes it");
    assert_eq!((map.remove(&1), map.remove(&2)), (None, Some(2)));
    assert_eq!(
        heard.take(),
        [(1, 1, Cause::Expired), (2, 2, Cause::Removed)]
    );
    assert!(adds_up(map.stats()) && map.is_empty());
}

/// LIF-14: go-zero's cache has no Close, and its goroutines live for ever. Here the drop of the
/// last handle, or a close, leaves nothing, and the timer does not keep the map.
#[test]
fn the_end_of_a_map_leaves_nothing() {
    for layout in layouts() {
        for is_closed in [false, true] {
            let host = manual(MS, layout);
            let ttl = Ttl::after(HOUR).or_idle(SECOND);
            let map = ExpiringMap::new(host.timer().clone(), ttl);
            let presence = Presence::default();
            for key in 0..1_000 {
                map.insert(key, presence.clone()).unwrap();
            }
            assert!(host.timer().pending() > 0);
            let weak = map.downgrade();
            if is_closed {
                assert_eq!(map.close().len(), 1_000);
                assert!(map.close().is_empty());
            } else {
                let clone = map.clone();
                drop(map);
                assert!(clone.contains(&1), "a clone is the same map");
                drop(clone);
                assert!(weak.upgrade().is_none());
            }
            assert!(presence.is_over());
            assert_eq!(host.timer().pending(), 0, "not even a wake-up");
            assert!(!host.timer().is_stopped());
        }
    }
}

/// A map does not keep its timer from its end, nor the other way round, and a listener that is
/// to be called does not keep either.
#[test]
fn what_is_unheard_keeps_no_timer_alive() {
    let desk = Desk::with_room(0);
    let host = ticks_of(MS, Layout::default())
        .executor(Arc::clone(&desk))
        .manual(ManualClock::new());
    let weak = host.timer().downgrade();
    let (map, heard) = with_listener(&host);
    map.insert(1, 1).unwrap();
    map.clear();
    drop(host);
    drop(map);
    assert!(weak.upgrade().is_none());
    assert_eq!(heard.take(), [(1, 1, Cause::Cleared)]);
}

/// KEY-11: after a peak, the memory goes back, and what is there is still there.
#[test]
fn churn_gives_memory_back() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let map = ExpiringMap::new(host.timer().clone(), Ttl::after(SECOND));
        for round in 0..3 {
            for key in 0..30_000 {
                map.insert((round, key), key).unwrap();
            }
            host.advance(SECOND / 2);
        }
        for key in 0..100 {
            map.insert_for((9, key), key, Ttl::NEVER).unwrap();
        }
        host.advance(SECOND);
        assert_eq!(map.len(), 100);
        assert!((0..100).all(|key| map.get(&(9, key)) == Some(key)));
    }
}

/// OBS-7: size, hits and misses, besides what became of the values.
#[test]
fn the_counters_say_what_was_done() {
    let mut host = ManualHost::new();
    let map = ExpiringMap::new(host.timer().clone(), Ttl::after(SECOND));
    assert_eq!(map.stats().hit_ratio(), None);
    for key in 0..4 {
        map.insert(key, key).unwrap();
    }
    map.insert(0, 0).unwrap();
    map.remove(&1);
    for key in 0..4 {
        let _ = map.get(&key);
        let _ = map.contains(&key);
        let _ = map.remaining(&key);
    }
    host.advance(SECOND);
    let _ = map.get(&0);
    let stats = map.stats();
    assert_eq!((stats.inserted, stats.replaced, stats.removed), (5, 1, 1));
    assert_eq!((stats.expired, stats.len), (3, 0));
    assert_eq!((stats.hits, stats.misses), (3, 2));
    assert_eq!(stats.hit_ratio(), Some(0.6));
}

/// Real threads do everything at once; in the end, the account is whole and nothing is kept.
#[test]
fn threads_leave_a_whole_account() {
    let map = ExpiringMap::<u64, Presence>::builder()
        .ttl(Ttl::after(MS).or_idle(MS / 2))
        .max_entries(100)
        .build(Timer::new());
    let presence = Presence::default();
    let values = Mutex::new(0_u64);
    thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (map, presence, values) = (&map, &presence, &values);
            scope.spawn(move || {
                let mut random = Random(thread);
                for _ in 0..3_000 {
                    let key = random.below(200);
                    match random.below(9) {
                        0 => drop(map.remove(&key)),
                        1 => drop(map.get(&key)),
                        2 => drop(map.set_ttl(&key, Ttl::after(ns(random.below(100_000))))),
                        3 if random.below(50) == 0 => map.retain(|key, _| key % 2 == 0),
                        4 if random.below(50) == 0 => map.clear(),
                        5 if random.below(50) == 0 => {
                            *values.lock().unwrap() += map.drain().len() as u64;
                        }
                        6 => drop(map.get_or_insert_with(&key, || presence.clone())),
                        _ => drop(map.insert(key, presence.clone())),
                    }
                }
            });
        }
    });
    let stats = map.stats();
    assert!(adds_up(stats), "{stats:?}");
    assert_eq!(stats.drained, *values.lock().unwrap());
    drop(map);
    while !presence.is_over() {
        thread::yield_now(); // what has expired is dropped on the executor
    }
}

// the destructor of an expired value panics: what is drained with it is lost.
#[test]
fn a_destructor_that_panics_takes_nothing_else_with_it() {
    struct V(bool);
    impl Drop for V {
        fn drop(&mut self) {
            if self.0 && !thread::panicking() {
                panic!("on purpose");
            }
        }
    }
    let host = ManualHost::new();
    let map = ExpiringMap::<u32, V>::new(host.timer().clone(), Ttl::NEVER);
    map.insert_for(1, V(true), Ttl::after(SECOND)).unwrap();
    map.insert(2, V(false)).unwrap();
    host.clock().advance(SECOND);
    let drained = catch_unwind(AssertUnwindSafe(|| map.drain().len()));
    assert_eq!(drained.ok(), Some(1), "{:?}", map.stats());
}
