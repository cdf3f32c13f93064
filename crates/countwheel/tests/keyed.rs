//! What a keyed timer promises, mostly on a clock moved by hand: nothing here sleeps.
//!
//! Each test that guards against a known fault of another library names its row, such as
//! KEY-2, and the fault.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use countwheel::{
    Executor, Instant, KeyedEntry, KeyedStats, KeyedTimer, Layout, ManualClock, ManualHost, Move,
    Overload, Resolution, SetError, Stop, Task, Timer, Work,
};

use support::{Random, SECOND, layouts, manual, ns};

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// A keyed timer that writes down what fires, in order.
fn journal<K, V>(timer: &Timer) -> (KeyedTimer<K, V>, impl Fn() -> Vec<(K, V)> + use<K, V>)
where
    K: Hash + Eq + Send + 'static,
    V: Send + 'static,
{
    let journal = Arc::new(Mutex::new(Vec::new()));
    let entries = Arc::clone(&journal);
    let handler = move |key, value| entries.lock().unwrap().push((key, value));
    let take = move || std::mem::take(&mut *journal.lock().unwrap());
    (KeyedTimer::new(timer.clone(), handler), take)
}

fn pairs<K, V>(entries: Vec<KeyedEntry<K, V>>) -> Vec<(K, V)> {
    let pairs = entries.into_iter().map(|entry| (entry.key, entry.value));
    pairs.collect()
}

fn assert_adds_up(stats: KeyedStats) {
    let ends = stats.replaced + stats.fired + stats.removed + stats.drained + stats.returned;
    assert_eq!(stats.set, ends + stats.pending, "{stats:?}");
}

// ---- the model ---------------------------------------------------------------------------

/// The plainest keyed timer there is, in whole nanoseconds.
struct Model {
    now: u64,
    tick: u64,
    last: u64,
    entries: BTreeMap<u64, Modelled>,
}

#[derive(Clone, Copy)]
struct Modelled {
    value: u64,
    deadline: u64,
    /// The tick that is to begin before it fires.
    due: u64,
    order: u64,
    /// Whether the deadline had passed when it was given. If it was before what has fired
    /// already, its place among the others is anybody's guess.
    passed: bool,
}

impl Model {
    fn place(&mut self, key: u64, value: u64, deadline: u64) {
        self.last += 1;
        let mut due = deadline.div_ceil(self.tick);
        if deadline <= self.now {
            due = due.min(self.now / self.tick);
        }
        let entry = Modelled {
            value,
            deadline,
            due,
            order: self.last,
            passed: deadline < self.now,
        };
        self.entries.insert(key, entry);
    }

    /// Moves a key where `rule` says, given the old deadline.
    fn shift(&mut self, key: u64, rule: impl Fn(u64) -> Option<u64>) -> Move {
        let Some(&entry) = self.entries.get(&key) else {
            return Move::Absent;
        };
        let Some(deadline) = rule(entry.deadline) else {
            return Move::Kept;
        };
        self.place(key, entry.value, deadline);
        Move::Moved
    }

    /// Fires what is due, and compares it with what did fire.
    fn fires(&mut self, fired: &[(u64, u64)]) {
        let hand = self.now / self.tick;
        let due = self.entries.extract_if(.., |_, entry| entry.due <= hand);
        let mut due: Vec<_> = due.collect();
        due.sort_unstable_by_key(|(_, entry)| (entry.due, entry.order));
        let value = |key| fired.iter().find(|(fired, _)| *fired == key);
        for (key, entry) in &due {
            assert_eq!(value(*key), Some(&(*key, entry.value)));
        }
        assert_eq!(
            fired.len(),
            due.len(),
            "nothing is early, nothing fires twice"
        );

        due.retain(|(_, entry)| !entry.passed);
        let order = fired.iter().map(|(key, _)| key);
        let order = order.filter(|key| due.iter().any(|(due, _)| due == *key));
        assert!(order.eq(due.iter().map(|(key, _)| key)), "in order");
    }

    fn drain(&mut self) -> Vec<KeyedEntry<u64, u64>> {
        let mut entries: Vec<_> = std::mem::take(&mut self.entries).into_iter().collect();
        entries.sort_unstable_by_key(|(_, entry)| (entry.deadline, entry.order));
        let drained = entries.into_iter().map(|(key, entry)| KeyedEntry {
            key,
            value: entry.value,
            deadline: at(entry.deadline),
        });
        drained.collect()
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
    let (keyed, fired) = journal::<u64, u64>(host.timer());
    let mut model = Model {
        now: 0,
        tick,
        last: 0,
        entries: BTreeMap::new(),
    };
    let keys = 1 + random.below(40);
    for value in 0..600_u64 {
        let key = random.below(keys);
        let delay = match random.below(8) {
            0 => 0,
            1 => u64::MAX,
            _ => random.nanos_up_to(1_000 * tick),
        };
        let deadline = model.now.saturating_add(delay);
        let old = model.entries.get(&key).copied();
        let old_value = old.map(|entry| entry.value);
        let sooner = |old| (deadline < old).then_some(deadline);
        let later = |old| (deadline > old).then_some(deadline);
        match random.below(14) {
            0 => {
                let replaced = keyed.set(key, value, ns(delay)).unwrap();
                assert_eq!(replaced, old_value);
                model.place(key, value, deadline);
            }
            1 => {
                // Also into the past.
                let deadline = random.below(model.now + 1_000 * tick);
                let replaced = keyed.set_at(key, value, at(deadline)).unwrap();
                assert_eq!(replaced, old_value);
                model.place(key, value, deadline);
            }
            2 => match keyed.set_if_absent(key, value, ns(delay)) {
                Ok(()) => {
                    assert!(old.is_none());
                    model.place(key, value, deadline);
                }
                Err(SetError::Present(same_key, same_value)) => {
                    assert_eq!((same_key, same_value), (key, value));
                    assert!(old.is_some());
                }
                Err(other) => panic!("{other:?}"),
            },
            which @ (3 | 4) => {
                let replaced = if which == 3 {
                    keyed.set_sooner(key, value, ns(delay))
                } else {
                    keyed.set_later(key, value, ns(delay))
                };
                assert_eq!(replaced.unwrap(), old_value);
                if old.is_none() {
                    model.place(key, value, deadline);
                } else if which == 3 {
                    model.shift(key, sooner);
                } else {
                    model.shift(key, later);
                }
                model.entries.get_mut(&key).unwrap().value = value;
            }
            5 => {
                let expected = model.shift(key, |_| Some(deadline));
                assert_eq!(keyed.move_to(&key, ns(delay)), expected);
            }
            6 => {
                let deadline = random.below(model.now + 1_000 * tick);
                let expected = model.shift(key, |_| Some(deadline));
                assert_eq!(keyed.move_to(&key, at(deadline)), expected);
            }
            7 => {
                let expected = model.shift(key, sooner);
                assert_eq!(keyed.move_sooner(&key, ns(delay)), expected);
            }
            8 => {
                let expected = model.shift(key, later);
                assert_eq!(keyed.move_later(&key, ns(delay)), expected);
            }
            9 => {
                assert_eq!(keyed.remove(&key), old_value);
                model.entries.remove(&key);
            }
            10 if random.below(8) == 0 => {
                assert_eq!(keyed.drain(), model.drain());
            }
            10 | 11 => {
                assert_eq!(keyed.get(&key), old_value);
                assert_eq!(keyed.contains(&key), old.is_some());
                let deadline = old.map(|entry| at(entry.deadline));
                assert_eq!(keyed.deadline(&key), deadline);
                let remaining = old.map(|entry| ns(entry.deadline.saturating_sub(model.now)));
                assert_eq!(keyed.remaining(&key), remaining);
                assert_eq!(keyed.len(), model.entries.len());
                assert_adds_up(keyed.stats());
            }
            12 => {
                // A stall: what has come due can still be moved, replaced and removed.
                let span = random.nanos_up_to(500 * tick);
                host.clock().advance(ns(span));
                model.now += span;
            }
            _ => {
                host.run_due();
                model.fires(&fired());
                let span = random.nanos_up_to(500 * tick);
                host.advance(ns(span));
                model.now += span;
                model.fires(&fired());
            }
        }
    }
    assert_eq!(host.timer().pending(), model.entries.len() as u64);
    host.advance(Duration::MAX);
    assert!(keyed.is_empty(), "the end of time leaves nothing");
    assert_eq!(fired().len(), model.entries.len());
    assert_adds_up(keyed.stats());
    assert_eq!(host.timer().stats().panicked, 0);
}

/// KEY-1, KEY-2, KEY-4, KEY-5, KEY-9, KEY-12, ADD-3, ADD-4: all operations, at random, against
/// a sorted map. Nothing is early, nothing is late by a tick, nothing fires twice.
#[test]
fn a_keyed_timer_is_a_sorted_map_that_fires() {
    for layout in layouts() {
        for tick in [1, 10, 1_000_000] {
            for seed in 0..60 {
                behaves_like_the_model(seed, tick, layout);
            }
        }
    }
}

// ---- the faults of go-zero's wheel -------------------------------------------------------

/// KEY-2, KEY-3, defect 15: with ten slots, 1,545 of 6,250 moves of go-zero fired at a wrong
/// time, some a revolution late and some early, because the rule that relocates an entry
/// ignores where the hand is. Here: every hand, every delay before, every delay after, and
/// every time between the two, each fires at its new deadline and only then.
#[test]
fn a_move_is_right_at_every_position_of_the_hand() {
    const SLOTS: u64 = 16; // what a ring of ten is rounded up to
    const DELAYS: std::ops::RangeInclusive<u64> = 1..=25;
    for layout in layouts() {
        for hand in 0..SLOTS {
            for waited in 0..*DELAYS.end() {
                let mut host = manual(ns(1), layout);
                let (keyed, fired) = journal::<(u64, u64), ()>(host.timer());
                host.advance(ns(hand));
                let cases = DELAYS.flat_map(|from| DELAYS.map(move |to| (from, to)));
                let cases: Vec<_> = cases.filter(|&(from, _)| from > waited).collect();
                for &(from, to) in &cases {
                    keyed.set((from, to), (), ns(from)).unwrap();
                }
                host.advance(ns(waited));
                for &(from, to) in &cases {
                    assert_eq!(keyed.move_to(&(from, to), ns(to)), Move::Moved);
                }
                for passed in DELAYS {
                    host.advance(ns(1));
                    let fired = fired();
                    assert!(
                        fired.iter().all(|((_, to), ())| *to == passed),
                        "{layout:?}, hand {hand}, waited {waited}, passed {passed}: {fired:?}"
                    );
                    let expected = cases.iter().filter(|(_, to)| *to == passed).count();
                    assert_eq!(fired.len(), expected);
                }
                assert!(keyed.is_empty());
            }
        }
    }
}

/// KEY-2, defect 16: a move below the interval ran at once, and again at the old time.
#[test]
fn a_move_below_a_tick_fires_once() {
    for layout in layouts() {
        for delay in [0, 1, 999_999] {
            let mut host = manual(ns(1_000_000), layout);
            let (keyed, fired) = journal(host.timer());
            keyed.set("key", 1, ns(5_000_000)).unwrap();
            host.advance(ns(1_500_000));
            assert_eq!(keyed.move_to("key", ns(delay)), Move::Moved);
            assert_eq!(fired(), [], "nothing runs in the move itself");
            host.advance(ns(1_500_000)); // to the next tick but one
            assert_eq!(fired(), [("key", 1)]);
            host.advance(SECOND);
            assert_eq!(fired(), []);
        }
    }
}

/// KEY-1, ADD-3, ADD-4: no delay is refused or raised to a tick, and any may be asked for.
#[test]
fn every_delay_is_allowed_and_zero_fires_at_once() {
    for layout in layouts() {
        let mut host = manual(ns(1_000_000), layout);
        let (keyed, fired) = journal(host.timer());
        host.advance(ns(1_500_000)); // in the middle of a tick
        keyed.set("never", 0, Duration::MAX).unwrap();
        keyed.set("first", 1, Duration::ZERO).unwrap();
        keyed.set_at("second", 2, Instant::ZERO).unwrap();
        assert_eq!(keyed.remaining("second"), Some(Duration::ZERO));
        assert_eq!(host.run_due(), 2);
        let mut now = fired();
        now.sort_unstable();
        assert_eq!(now, [("first", 1), ("second", 2)]);
        keyed.move_to("never", Duration::ZERO);
        assert_eq!(host.run_due(), 1);
        assert_eq!(keyed.move_to("never", Duration::ZERO), Move::Absent);
        assert_eq!(host.next_wake(), None);
    }
}

/// Defects 19 and 20: go-zero fires up to two intervals early, and after a stall everything
/// is late for ever.
#[test]
fn nothing_is_early_and_a_stall_delays_nothing_else() {
    for layout in layouts() {
        let mut host = manual(ns(100_000_000), layout);
        let (keyed, fired) = journal(host.timer());
        host.advance(ns(99_999_999));
        keyed.set("a", (), ns(199_000_000)).unwrap(); // at 298,999,999
        host.advance(ns(198_999_999));
        assert_eq!(fired(), []);
        host.advance(ns(2_000_000));
        assert_eq!(fired().len(), 1);

        keyed.set("b", (), SECOND).unwrap();
        keyed.set("c", (), 100 * SECOND).unwrap();
        host.clock().advance(50 * SECOND);
        host.run_due();
        assert_eq!(fired(), [("b", ())]);
        assert_eq!(keyed.remaining("c"), Some(50 * SECOND));
        host.advance(50 * SECOND);
        assert_eq!(fired().len() + keyed.len(), 1);
        host.advance(ns(100_000_000));
        assert!(keyed.is_empty());
    }
}

/// KEY-5, defect 17: after a drain the keys were still known, and a set of one of them never
/// fired.
#[test]
fn a_drained_key_can_be_set_again_and_fires() {
    for layout in layouts() {
        let mut host = manual(ns(1_000), layout);
        let (keyed, fired) = journal(host.timer());
        for (key, delay) in [("late", 3), ("soon", 1), ("later", 4)] {
            keyed.set(key, 1, delay * SECOND).unwrap();
        }
        keyed.move_to("later", 2 * SECOND);
        let drained = keyed.drain();
        assert_eq!(drained[1].deadline, Instant::ZERO + 2 * SECOND);
        assert_eq!(pairs(drained), [("soon", 1), ("later", 1), ("late", 1)]);
        assert!(keyed.drain().is_empty(), "a second drain finds nothing");
        assert_eq!(host.timer().pending(), 0, "the tasks are gone as well");
        assert_eq!(keyed.move_to("soon", SECOND), Move::Absent);

        assert_eq!(keyed.set("soon", 2, 2 * SECOND).unwrap(), None);
        host.advance(SECOND);
        assert_eq!(fired(), [], "nothing fires at an old deadline");
        host.advance(SECOND);
        assert_eq!(fired(), [("soon", 2)]);
        let stats = keyed.stats();
        assert_eq!((stats.set, stats.drained, stats.fired), (4, 3, 1));
    }
}

/// KEY-5: of equal deadlines, a drain gives first what was first set or moved.
#[test]
fn a_drain_is_in_the_order_of_deadlines_and_of_setting() {
    let host = ManualHost::new();
    let (keyed, _) = journal(host.timer());
    for key in 0..2_000 {
        keyed.set(key, (), SECOND).unwrap();
    }
    for key in 0..1_000 {
        keyed.move_to(&key, SECOND);
    }
    let order = keyed.drain().into_iter().map(|entry| entry.key);
    assert!(order.eq((1_000..2_000).chain(0..1_000)));
}

/// Defect 18, KEY-8, ADD-12: a drain's callback that set or removed a key deadlocked the wheel.
/// Here the handler may do anything, and so may whoever walks through what was drained.
#[test]
fn a_handler_may_call_everything() {
    for layout in layouts() {
        for what in 0..10_u32 {
            let mut host = manual(ns(1_000_000), layout);
            let own: Arc<OnceLock<KeyedTimer<u32, u32>>> = Arc::default();
            let keyed = KeyedTimer::new_cyclic(host.timer().clone(), |weak| {
                move |key: u32, value: u32| {
                    let keyed = weak.upgrade().unwrap();
                    assert!(!keyed.contains(&key), "it is free already");
                    match value {
                        0 => assert_eq!(keyed.set(key, 99, SECOND).unwrap(), None),
                        1 => assert_eq!(keyed.set(7, 99, SECOND).unwrap(), Some(50)),
                        2 => assert_eq!(keyed.remove(&7), Some(50)),
                        3 => assert_eq!(keyed.remove(&key), None),
                        4 => assert_eq!(keyed.move_to(&7, Duration::ZERO), Move::Moved),
                        5 => assert_eq!(keyed.drain().len(), 1),
                        6 => assert_eq!(keyed.stop().len(), 1),
                        7 => assert_eq!(keyed.deadlines().len(), keyed.len()),
                        8 => {
                            for entry in keyed.drain() {
                                keyed.set(entry.key, 99, SECOND).unwrap();
                                keyed.remove(&entry.key);
                            }
                        }
                        9 => drop(keyed.timer().stop()),
                        _ => assert!(value == 50 || value == 99),
                    }
                }
            });
            assert!(own.set(keyed.clone()).is_ok());
            keyed.set(7, 50, 60 * SECOND).unwrap();
            keyed.set(1, what, SECOND).unwrap();
            host.advance(100 * SECOND);
            assert_eq!(host.timer().stats().panicked, 0, "case {what}");
            assert_adds_up(keyed.stats());
        }
    }
}

/// KEY-9, defects 21 and 22: the old task must not fire the new value, nor the old value.
#[test]
fn an_overwritten_value_never_fires() {
    for layout in layouts() {
        let mut host = manual(ns(1_000_000), layout);
        let (keyed, fired) = journal(host.timer());
        keyed.set("key", "old", SECOND).unwrap();
        assert_eq!(keyed.set("key", "new", 3 * SECOND).unwrap(), Some("old"));
        host.advance(2 * SECOND);
        assert_eq!(fired(), []);
        host.advance(SECOND);
        assert_eq!(fired(), [("key", "new")]);

        // Removed and set again: as if it were another key.
        keyed.set("key", "old", SECOND).unwrap();
        assert_eq!(keyed.remove("key"), Some("old"));
        keyed.set("key", "new", 2 * SECOND).unwrap();
        host.advance(SECOND);
        assert_eq!(fired(), []);
        host.advance(SECOND);
        assert_eq!(fired(), [("key", "new")]);
    }
}

/// An executor that keeps its work until it is told to run it.
#[derive(Clone, Debug, Default)]
struct Later(Arc<Mutex<Vec<Work>>>);

impl Executor for Later {
    fn execute(&self, work: Work) -> Result<(), Work> {
        self.0.lock().unwrap().push(work);
        Ok(())
    }
}

impl Later {
    fn run(&self) -> usize {
        let work = std::mem::take(&mut *self.0.lock().unwrap());
        let count = work.len();
        work.into_iter().for_each(Work::run);
        count
    }
}

/// CAN-6, KEY-9, defect 22: go-zero cannot recall what was handed to its goroutine, and a
/// cache entry that is set at that moment is deleted or never expires. Here, until its handler
/// is called, an expired key can be removed, replaced, moved and drained.
#[test]
fn what_has_expired_can_be_recalled_until_its_handler_is_called() {
    let later = Later::default();
    let builder = Timer::builder().executor(later.clone());
    let mut host = builder.manual(ManualClock::new());
    let (keyed, fired) = journal(host.timer());
    for key in ["removed", "replaced", "moved", "sooner", "kept", "fired"] {
        keyed.set(key, 1, SECOND).unwrap();
    }
    assert_eq!(host.advance(SECOND), 6, "all are on their way");
    assert_eq!(keyed.len(), 6);

    assert_eq!(keyed.remove("removed"), Some(1));
    assert_eq!(keyed.set("replaced", 2, SECOND).unwrap(), Some(1));
    assert_eq!(keyed.move_to("moved", SECOND), Move::Moved);
    assert_eq!(keyed.set_sooner("sooner", 2, SECOND).unwrap(), Some(1));
    assert_eq!(keyed.move_sooner("kept", SECOND), Move::Kept);
    assert_eq!(later.run(), 6);
    assert_eq!(fired(), [("sooner", 2), ("kept", 1), ("fired", 1)]);

    assert_eq!(host.advance(SECOND), 2);
    assert_eq!(later.run(), 2);
    assert_eq!(fired(), [("replaced", 2), ("moved", 1)]);

    keyed.set("drained", 3, Duration::ZERO).unwrap();
    assert_eq!(host.run_due(), 1);
    assert_eq!(pairs(keyed.drain()), [("drained", 3)]);
    assert_eq!(later.run(), 1);
    assert_eq!(fired(), []);
    assert_adds_up(keyed.stats());
}

/// CAN-6, KEY-4, defect 21: after a million removals go-zero still held 801,820 of the values.
#[test]
fn values_and_tasks_are_freed_at_once() {
    let host = ManualHost::new();
    let (keyed, _) = journal(host.timer());
    let value = Arc::new(());
    let key = Arc::new("key");
    let count = || (Arc::strong_count(&key), Arc::strong_count(&value));
    let set = || keyed.set(Arc::clone(&key), Arc::clone(&value), SECOND);

    assert!(set().unwrap().is_none());
    assert_eq!((count(), host.timer().pending()), ((2, 2), 1));
    drop(set().unwrap());
    assert_eq!(
        (count(), host.timer().pending()),
        ((2, 2), 1),
        "overwritten"
    );
    drop(keyed.remove(&key));
    assert_eq!((count(), host.timer().pending()), ((1, 1), 0), "removed");
    set().unwrap();
    drop(keyed.drain());
    assert_eq!((count(), host.timer().pending()), ((1, 1), 0), "drained");
    set().unwrap();
    drop(keyed.stop());
    assert_eq!((count(), host.timer().pending()), ((1, 1), 0), "stopped");
    drop(set().unwrap_err());
    assert_eq!((count(), host.timer().pending()), ((1, 1), 0), "refused");
}

/// LIF-10, defect 23: a second stop panicked.
#[test]
fn a_stop_gives_everything_back_and_does_no_harm_twice() {
    let mut host = ManualHost::new();
    let (keyed, fired) = journal(host.timer());
    keyed.set("b", 2, 2 * SECOND).unwrap();
    keyed.set("a", 1, SECOND).unwrap();
    assert!(!keyed.is_stopped());
    assert_eq!(pairs(keyed.stop()), [("a", 1), ("b", 2)]);
    assert!(keyed.stop().is_empty() && keyed.drain().is_empty());
    assert!(keyed.is_stopped());

    let refused = keyed.set("a", 3, SECOND).unwrap_err();
    assert!(matches!(refused, SetError::Closed("a", 3)), "{refused:?}");
    let refused = keyed.set_if_absent("a", 3, SECOND).unwrap_err();
    assert_eq!(refused.to_string(), "the timer has stopped");
    assert_eq!(refused.into_parts(), ("a", 3));
    assert_eq!(keyed.move_to("a", SECOND), Move::Absent);
    assert_eq!(keyed.remove("a"), None);
    assert_eq!((keyed.len(), keyed.stats().refused), (0, 2));

    // The timer is another matter.
    assert!(!host.timer().is_stopped());
    host.timer().schedule(SECOND, || {}).unwrap();
    assert_eq!(host.advance(2 * SECOND), 1);
    assert_eq!(fired(), []);
}

/// KEY-6: several keyed timers share one timer and are no business of each other.
#[test]
fn keyed_timers_share_a_timer() {
    let mut host = ManualHost::new();
    let (orders, closed) = journal(host.timer());
    let (leases, ended) = journal(host.timer());
    orders.set(1, "order", SECOND).unwrap();
    leases.set(1, "lease", SECOND).unwrap();
    assert_eq!(pairs(orders.stop()), [(1, "order")]);
    host.advance(SECOND);
    assert_eq!((closed(), ended()), (vec![], vec![(1, "lease")]));
}

/// KEY-7, defect 23: a key that cannot be hashed crashed the process. Such a key is no key
/// here; one whose hash is bad is slow, and nothing else.
#[test]
fn keys_that_all_hash_alike_are_kept_apart() {
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    struct Alike(u32);
    impl Hash for Alike {
        fn hash<H: Hasher>(&self, _state: &mut H) {}
    }
    let mut host = ManualHost::new();
    let (keyed, fired) = journal(host.timer());
    for number in 0..50 {
        keyed.set(Alike(number), number, SECOND).unwrap();
    }
    for number in (0..50).step_by(2) {
        assert_eq!(keyed.remove(&Alike(number)), Some(number));
    }
    assert_eq!(keyed.move_to(&Alike(1), Duration::ZERO), Move::Moved);
    host.run_due();
    assert_eq!(fired(), [(Alike(1), 1)]);
    host.advance(SECOND);
    assert!(
        fired()
            .into_iter()
            .eq((3..50).step_by(2).map(|n| (Alike(n), n)))
    );
}

/// KEY-7: a key is looked up in its borrowed form, and needs not be cloned.
#[test]
fn keys_are_borrowed_and_never_cloned() {
    #[derive(PartialEq, Eq, Hash)]
    struct Unclonable(String);
    impl std::borrow::Borrow<str> for Unclonable {
        fn borrow(&self) -> &str {
            &self.0
        }
    }
    let mut host = ManualHost::new();
    let (sender, fired) = mpsc::channel();
    let keyed = KeyedTimer::new(
        host.timer().clone(),
        move |key: Unclonable, value: Vec<u8>| {
            sender.send((key.0, value)).unwrap();
        },
    );
    keyed.set(Unclonable("a".into()), vec![1], SECOND).unwrap();
    assert_eq!(keyed.update("a", |value| value.push(2)), Some(()));
    assert_eq!(keyed.get_with("a", Vec::len), Some(2));
    assert_eq!(keyed.move_later("a", 2 * SECOND), Move::Moved);
    host.advance(2 * SECOND);
    assert_eq!(fired.recv().unwrap(), ("a".to_owned(), vec![1, 2]));
}

/// KEY-12: a stream of updates must not postpone a key for ever.
#[test]
fn the_sooner_deadline_can_be_kept() {
    let mut host = ManualHost::new();
    let (keyed, fired) = journal(host.timer());
    for value in 0..100 {
        keyed.set_sooner("key", value, SECOND).unwrap();
        host.advance(Duration::from_millis(100));
    }
    let values: Vec<_> = fired().into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, (9..100).step_by(10).collect::<Vec<_>>());
}

#[test]
fn a_panicking_handler_costs_its_own_key_alone() {
    let mut host = ManualHost::new();
    let keyed = KeyedTimer::new(host.timer().clone(), |key: u32, value: Arc<()>| {
        assert!(key != 1, "planted: {value:?}");
    });
    let value = Arc::new(());
    for key in [1, 2] {
        keyed.set(key, Arc::clone(&value), SECOND).unwrap();
    }
    assert_eq!(host.advance(SECOND), 2);
    let stats = host.timer().stats();
    assert_eq!((stats.ran, stats.panicked), (2, 1));
    assert_eq!((keyed.stats().fired, keyed.len()), (2, 0));
    assert_eq!(Arc::strong_count(&value), 1);
    keyed.set(1, value, SECOND).unwrap();
    assert!(keyed.contains(&1));
}

/// A look that uses the timer would wait for itself: it is told so instead.
#[test]
fn a_look_from_within_a_look_panics_and_does_no_harm() {
    let host = ManualHost::new();
    let (keyed, _) = journal(host.timer());
    keyed.set(1, 1, SECOND).unwrap();
    let again = keyed.clone();
    let look = move || again.get_with(&1, |_| again.len());
    let panic = thread::spawn(look).join().unwrap_err();
    let message = panic.downcast_ref::<&str>().unwrap();
    assert!(message.contains("within a look"), "{message}");
    assert_eq!(keyed.set(1, 2, SECOND).unwrap(), Some(1));
}

// ---- ends --------------------------------------------------------------------------------

/// CAP: what is refused comes back, and what was there stays.
#[test]
fn a_full_timer_refuses_new_keys_and_moves_old_ones() {
    let mut host = Timer::builder().max_pending(1).manual(ManualClock::new());
    let (keyed, fired) = journal(host.timer());
    keyed.set("a", 1, SECOND).unwrap();
    let refused = keyed.set("b", 2, SECOND).unwrap_err();
    assert!(matches!(refused, SetError::Full("b", 2)), "{refused:?}");
    assert_eq!(keyed.set("a", 3, 2 * SECOND).unwrap(), Some(1));
    assert_eq!(keyed.move_to("a", 3 * SECOND), Move::Moved);
    assert_eq!(keyed.remove("a"), Some(3));
    keyed.set("b", 2, SECOND).unwrap();
    host.advance(SECOND);
    assert_eq!(fired(), [("b", 2)]);
    assert_adds_up(keyed.stats());
}

/// An expired key needs room to be moved. If there is none, it fires as it was to.
#[test]
fn a_refused_move_or_set_leaves_the_key_as_it_was() {
    let later = Later::default();
    let builder = Timer::builder().executor(later.clone()).max_pending(1);
    let mut host = builder.manual(ManualClock::new());
    let (keyed, fired) = journal(host.timer());
    keyed.set("a", 1, SECOND).unwrap();
    host.advance(SECOND);
    // It has the only place itself until its task starts.
    assert_eq!(keyed.move_to("a", SECOND), Move::Refused);
    let refused = keyed.set("a", 2, SECOND).unwrap_err();
    assert!(matches!(refused, SetError::Full("a", 2)), "{refused:?}");
    assert_eq!(keyed.get("a"), Some(1));
    later.run();
    assert_eq!(fired(), [("a", 1)]);
}

/// LIF-10: somebody else stops the timer below.
#[test]
fn keys_outlive_a_timer_that_was_stopped_by_somebody_else() {
    let mut host = ManualHost::new();
    let (keyed, fired) = journal(host.timer());
    for key in [1, 2, 3, 4] {
        keyed
            .set(key, key, u32::try_from(key).unwrap() * SECOND)
            .unwrap();
    }
    let mut tasks = host.timer().stop().unfired;
    assert_eq!((tasks.len(), keyed.len()), (4, 4));
    assert!(keyed.is_stopped());

    let refused = keyed.set(1, 9, SECOND).unwrap_err();
    assert!(matches!(refused, SetError::Closed(1, 9)), "{refused:?}");
    assert_eq!(keyed.move_to(&1, SECOND), Move::Refused);
    assert_eq!(keyed.get(&1), Some(1));
    assert_eq!(keyed.remove(&2), Some(2));
    // A task that came back still fires its key, unless that is gone.
    tasks.drain(..2).for_each(Task::run);
    assert_eq!(fired(), [(1, 1)]);
    drop(tasks);
    assert_eq!(keyed.move_sooner(&3, 60 * SECOND), Move::Refused);
    host.advance(100 * SECOND);
    assert_eq!(pairs(keyed.stop()), [(3, 3), (4, 4)]);
    assert_adds_up(keyed.stats());
}

#[test]
fn a_closing_timer_fires_what_is_set_and_takes_nothing_new() {
    let mut host = ManualHost::new();
    let (keyed, fired) = journal(host.timer());
    keyed.set(1, 1, SECOND).unwrap();
    keyed.set(2, 2, 60 * SECOND).unwrap();
    let stopping = host.timer().close(Stop::WaitUpTo(10 * SECOND));
    assert!(keyed.set(1, 9, SECOND).is_err());
    assert!(keyed.set(3, 3, SECOND).is_err());
    assert_eq!(keyed.move_to(&1, 2 * SECOND), Move::Moved);
    host.advance(20 * SECOND);
    assert_eq!(fired(), [(1, 1)]);
    assert_eq!(stopping.wait().unfired.len(), 1);
    assert_eq!(pairs(keyed.drain()), [(2, 2)]);
}

/// A shared timer hands a task back for lack of an executor, and whoever gets it drops it: a
/// later set or move of the key must not rely on that task.
#[test]
fn a_key_whose_task_was_lost_is_scheduled_anew() {
    #[derive(Debug)]
    struct Refuses(Arc<AtomicBool>);
    impl Executor for Refuses {
        fn execute(&self, work: Work) -> Result<(), Work> {
            if self.0.load(Ordering::Relaxed) {
                return Err(work);
            }
            work.run();
            Ok(())
        }
    }
    let refuses = Arc::new(AtomicBool::new(true));
    let mut host = Timer::builder()
        .executor(Refuses(Arc::clone(&refuses)))
        .overload(Overload::hand_back(drop))
        .manual(ManualClock::new());
    let (keyed, fired) = journal(host.timer());
    for key in ["set", "set sooner", "moved", "moved sooner", "left"] {
        keyed.set(key, 1, SECOND).unwrap();
    }
    host.advance(2 * SECOND);
    assert_eq!((fired().len(), keyed.len()), (0, 5));

    refuses.store(false, Ordering::Relaxed);
    keyed.set("set", 2, SECOND).unwrap();
    keyed.set_sooner("set sooner", 2, SECOND).unwrap();
    assert_eq!(keyed.move_to("moved", SECOND), Move::Moved);
    assert_eq!(keyed.move_sooner("moved sooner", SECOND), Move::Kept);
    host.run_due();
    assert_eq!(fired(), [("set sooner", 2), ("moved sooner", 1)]);
    host.advance(SECOND);
    assert_eq!(fired(), [("set", 2), ("moved", 1)]);
    assert_eq!(pairs(keyed.drain()), [("left", 1)]);
    assert_adds_up(keyed.stats());
}

/// Nothing refers to itself: the last clone takes everything along, though its tasks are on
/// the wheel.
#[test]
fn the_last_clone_takes_everything_along() {
    let host = ManualHost::new();
    let (handlers, value) = (Arc::new(()), Arc::new(()));
    let in_handler = Arc::clone(&handlers);
    let keyed = KeyedTimer::new(host.timer().clone(), move |_key: u32, _value: Arc<()>| {
        let _ = &in_handler;
    });
    for key in 0..100 {
        keyed.set(key, Arc::clone(&value), SECOND).unwrap();
    }
    let clone = keyed.clone();
    drop(keyed);
    assert_eq!((host.timer().pending(), clone.len()), (100, 100));
    drop(clone);
    assert_eq!(host.timer().pending(), 0);
    assert_eq!(Arc::strong_count(&value), 1);
    assert_eq!(Arc::strong_count(&handlers), 1);
}

/// The last clone may be one that a handler has.
#[test]
fn a_handler_may_drop_the_last_clone() {
    let mut host = ManualHost::new();
    let (keyed, last) = (Arc::new(Mutex::new(None)), Arc::new(AtomicUsize::new(0)));
    let (held, ran) = (Arc::clone(&keyed), Arc::clone(&last));
    let first = KeyedTimer::new(host.timer().clone(), move |_key: u32, ()| {
        drop(held.lock().unwrap().take());
        ran.fetch_add(1, Ordering::Relaxed);
    });
    for key in 1..=3 {
        first.set(key, (), key * SECOND).unwrap();
    }
    *keyed.lock().unwrap() = Some(first);
    assert_eq!(host.advance(10 * SECOND), 1);
    assert_eq!(
        (last.load(Ordering::Relaxed), host.timer().pending()),
        (1, 0)
    );
}

/// Values, and keys, may use the timer when they are dropped: nothing is dropped under a lock.
#[test]
fn a_value_may_use_the_timer_when_it_is_dropped() {
    struct Linked {
        keyed: countwheel::WeakKeyedTimer<u32, Linked>,
        other: u32,
    }
    impl Drop for Linked {
        fn drop(&mut self) {
            if let Some(keyed) = self.keyed.upgrade() {
                keyed.remove(&self.other);
            }
        }
    }
    let mut host = ManualHost::new();
    let keyed = KeyedTimer::new(host.timer().clone(), |_key: u32, _value: Linked| {});
    let set = |key, other| {
        let value = Linked {
            keyed: keyed.downgrade(),
            other,
        };
        keyed.set(key, value, SECOND).map(drop).unwrap();
    };
    let chain = || (0..10).for_each(|key| set(key, key + 1));
    chain();
    drop(keyed.remove(&0));
    assert!(keyed.is_empty());
    chain();
    set(0, 1); // the replaced value takes the others along
    assert_eq!(keyed.len(), 1);
    chain();
    host.advance(SECOND);
    assert!(keyed.is_empty());
    chain();
    drop(keyed.drain());
    chain();
    drop(keyed);
    assert_eq!(host.timer().pending(), 0);
}

#[test]
fn handles_travel() {
    fn travels<T: Send + Sync + 'static>() {}
    use std::cell::Cell;
    travels::<KeyedTimer<String, Cell<u32>>>();
    travels::<countwheel::WeakKeyedTimer<Cell<u32>, Vec<u8>>>();
    travels::<SetError<String, u32>>();
    let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(SetError::Full(1, 2));
    assert_eq!(boxed.to_string(), "as many tasks are pending as may be");
}

// ---- threads -----------------------------------------------------------------------------

/// Each value that was accepted has one end. These count the ends.
struct Ends(Vec<AtomicU8>);

impl Ends {
    fn of(values: usize) -> Arc<Self> {
        let count = (0..values).map(|_| AtomicU8::new(0));
        Arc::new(Self(count.collect()))
    }

    fn count(&self, value: usize) {
        self.0[value].fetch_add(1, Ordering::Relaxed);
    }

    fn assert_all_once(&self) {
        for (value, ends) in self.0.iter().enumerate() {
            assert_eq!(ends.load(Ordering::Relaxed), 1, "value {value}");
        }
    }
}

/// KEY-8, KEY-9, defect 22: threads set, move, remove and drain the same few keys while a
/// thread fires them. Every value has exactly one end.
#[test]
fn every_value_has_one_end_whoever_races() {
    const THREADS: usize = 8;
    const EACH: usize = 20_000;
    for layout in layouts() {
        let timer = Timer::builder()
            .resolution(Resolution::new(Duration::from_micros(50)).unwrap())
            .layout(layout)
            .build();
        let ends = Ends::of(THREADS * EACH);
        let fired = Arc::clone(&ends);
        let keyed = KeyedTimer::new(timer.clone(), move |_key: u64, value| fired.count(value));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (keyed, ends) = (&keyed, &ends);
                scope.spawn(move || {
                    let mut random = Random(thread as u64);
                    for number in 0..EACH {
                        let value = thread * EACH + number;
                        let key = random.below(16);
                        let delay = Duration::from_micros(random.below(200));
                        let replaced = match random.below(4) {
                            0 => match keyed.set_if_absent(key, value, delay) {
                                Ok(()) => None,
                                Err(refused) => Some(refused.into_parts().1),
                            },
                            1 => keyed.set_sooner(key, value, delay).unwrap(),
                            _ => keyed.set(key, value, delay).unwrap(),
                        };
                        let key = random.below(16);
                        let removed = match random.below(8) {
                            0 | 1 => keyed.remove(&key),
                            2 => {
                                keyed.move_later(&key, delay);
                                None
                            }
                            _ => {
                                keyed.move_to(&key, delay);
                                None
                            }
                        };
                        let ended = replaced.into_iter().chain(removed);
                        ended.for_each(|value| ends.count(value));
                        if number % 1_000 == 0 {
                            let drained = keyed.drain().into_iter();
                            drained.for_each(|entry| ends.count(entry.value));
                            assert_adds_up(keyed.stats());
                        }
                    }
                });
            }
        });
        let left = keyed.stop();
        left.iter().for_each(|entry| ends.count(entry.value));
        drop(timer.stop());
        ends.assert_all_once();
        let stats = keyed.stats();
        assert_adds_up(stats);
        assert_eq!((stats.pending, timer.stats().panicked), (0, 0));
        assert!(stats.fired > 0 && stats.removed > 0 && stats.moved > 0);
    }
}

/// LIF-10: what was accepted before a stop fires, or the stop gives it back, once. And KEY-9:
/// what fires has come due, so no expired task ever got hold of a value that was set later.
#[test]
fn a_stop_under_load_loses_nothing() {
    const THREADS: usize = 4;
    const EACH: usize = 200_000;
    for stoppers in [1, 2] {
        let timer = Timer::builder()
            .resolution(Resolution::new(Duration::from_micros(50)).unwrap())
            .build();
        let ends = Ends::of(THREADS * EACH);
        let (fired, clock) = (Arc::clone(&ends), timer.clone());
        let keyed = KeyedTimer::new(timer.clone(), move |_key: u64, (value, not_before)| {
            assert!(clock.now() >= not_before);
            fired.count(value);
        });
        thread::scope(|scope| {
            let (sender, warm) = mpsc::channel();
            for thread in 0..THREADS {
                let (keyed, ends, sender) = (&keyed, &ends, sender.clone());
                scope.spawn(move || {
                    let mut random = Random(thread as u64);
                    let mut stopped = false;
                    for number in 0..EACH {
                        let value = thread * EACH + number;
                        let delay = Duration::from_micros(random.below(1_000));
                        let not_before = keyed.timer().now() + delay;
                        match keyed.set(random.below(100), (value, not_before), delay) {
                            Ok(replaced) => {
                                assert!(!stopped, "a stop is for good");
                                replaced
                                    .into_iter()
                                    .for_each(|(value, _)| ends.count(value));
                            }
                            Err(SetError::Closed(_, (value, _))) => {
                                stopped = true;
                                ends.count(value);
                            }
                            Err(other) => panic!("{other:?}"),
                        }
                        if number == 2_000 {
                            let _ = sender.send(()); // enough have said so
                        }
                    }
                });
            }
            for _ in 0..stoppers {
                warm.recv().unwrap();
            }
            for _ in 0..stoppers {
                let (keyed, ends) = (&keyed, &ends);
                scope.spawn(move || {
                    let returned = keyed.stop();
                    returned.iter().for_each(|entry| ends.count(entry.value.0));
                });
            }
        });
        drop(timer.stop());
        ends.assert_all_once();
        let stats = keyed.stats();
        assert_adds_up(stats);
        assert_eq!((stats.pending, timer.stats().panicked), (0, 0));
        assert_eq!(stats.set + stats.refused, (THREADS * EACH) as u64);
    }
}

/// With a thread and a pool, as most will use it.
#[test]
fn a_timer_with_a_thread_fires_never_early_and_in_order() {
    let timer = Timer::builder().inline().build();
    let (sender, fired) = mpsc::channel();
    let clock = timer.clone();
    let keyed = KeyedTimer::new(timer.clone(), move |key: u64, deadline: Instant| {
        sender
            .send((
                key,
                clock.now().saturating_since(deadline),
                clock.now() >= deadline,
            ))
            .unwrap();
    });
    let start = timer.now();
    for key in (0..20).rev() {
        let deadline = start + Duration::from_millis(50 + 2 * key);
        keyed.set_at(key, deadline, deadline).unwrap();
    }
    for expected in 0..20 {
        let (key, _lateness, on_time) = fired.recv().unwrap();
        assert_eq!((key, on_time), (expected, true));
    }
    assert_eq!(timer.stats().ran, 20);
}

/// On somebody's runtime, without a thread: a set wakes the host from its sleep.
#[test]
fn a_timer_without_a_thread_fires_on_its_runtime() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build().unwrap();
    runtime.block_on(async {
        let (timer, host) = Timer::builder().build_hosted(tokio::time::sleep);
        let host = tokio::spawn(host);
        let (sender, mut fired) = tokio::sync::mpsc::unbounded_channel();
        let keyed = KeyedTimer::new(timer.clone(), move |key: u32, ()| sender.send(key).unwrap());
        keyed.set(1, (), Duration::MAX).unwrap();
        tokio::task::yield_now().await;
        keyed.set(2, (), Duration::from_millis(2)).unwrap();
        assert_eq!(fired.recv().await, Some(2));
        keyed.move_to(&1, Duration::from_millis(1));
        assert_eq!(fired.recv().await, Some(1));
        drop(timer.close(Stop::Drop));
        host.await.unwrap();
    });
}
