//! Delayed operations: 2.10 (Kafka's `DelayedOperation`, watchers, lock rule), defects 26 to 28,
//! LIF-11, 2.12 (the two-phase watch).

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use countwheel::{ManualHost, Stop, Timer};
use countwheel_patterns::DEFAULT_MAX_PENDING;
use countwheel_patterns::broker::{
    DelayedOperation, DelayedOperationError, DelayedOperations, DelayedOperationsStats, Watch,
};

use crate::support::{HOUR, Journal, MS, Presence, Random, SECOND, layouts, manual};

type Ops = DelayedOperations<u64, Op>;

/// What an operation does in a try, given the number of the try.
type Try = Box<dyn Fn(u64) -> bool + Send + Sync>;

struct Op {
    name: u64,
    tries: AtomicU64,
    can: Try,
    journal: Journal<(u64, &'static str)>,
    /// Called by `on_complete`.
    then: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl DelayedOperation for Op {
    fn try_complete(&self) -> bool {
        (self.can)(self.tries.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn on_complete(&self) {
        self.journal.write((self.name, "completed"));
        if let Some(then) = self.then.get() {
            then();
        }
    }

    fn on_expire(&self) {
        self.journal.write((self.name, "expired"));
    }
}

fn op(
    name: u64,
    journal: &Journal<(u64, &'static str)>,
    can: impl Fn(u64) -> bool + Send + Sync + 'static,
) -> Arc<Op> {
    Arc::new(Op {
        name,
        tries: AtomicU64::new(0),
        can: Box::new(can),
        journal: journal.clone(),
        then: OnceLock::new(),
    })
}

fn flag() -> (
    Arc<AtomicBool>,
    impl Fn(u64) -> bool + Send + Sync + 'static,
) {
    let flag = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&flag);
    (flag, move |_| seen.load(Ordering::SeqCst))
}

fn assert_adds_up(stats: DelayedOperationsStats) {
    let ends = stats.completed + stats.expired + stats.cancelled + stats.returned;
    assert_eq!(stats.submitted, ends + stats.pending, "{stats:?}");
}

fn tries(op: &Op) -> u64 {
    op.tries.load(Ordering::SeqCst)
}

/// 2.10: try, register on all keys, try again, and only then the timer.
#[test]
fn it_is_tried_listed_tried_again_and_only_then_given_to_the_timer() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let timer = host.timer().clone();
        let ops = Ops::new(timer.clone());
        let journal = Journal::new();

        let at_once = op(1, &journal, |_| true);
        let watch = ops.try_complete_else_watch(Arc::clone(&at_once), [1, 2], SECOND);
        assert_eq!((watch.unwrap(), tries(&at_once)), (Watch::Completed, 1));
        assert_eq!(journal.take(), [(1, "completed")]);
        assert_eq!(
            (ops.watched(), timer.stats().added),
            (0, 0),
            "it was never listed"
        );

        // What has happened before it was on its lists is seen by the second try.
        let listed = ops.clone();
        let second = op(2, &journal, move |n| {
            assert_eq!(listed.watched(), if n == 1 { 0 } else { 3 }, "on all lists");
            n == 2
        });
        let watch = ops.try_complete_else_watch(second, [1, 2, 3], SECOND);
        assert_eq!(watch.unwrap(), Watch::Completed);
        assert_eq!((ops.watched(), timer.stats().added), (0, 0));

        let third = op(3, &journal, |n| n == 3);
        let watch = ops.try_complete_else_watch(Arc::clone(&third), [1, 2, 3], SECOND);
        assert_eq!((watch.unwrap(), tries(&third)), (Watch::Waiting, 2));
        assert_eq!((ops.len(), ops.watched(), timer.pending()), (1, 3, 1));
        assert_eq!([ops.watching(&1), ops.watching(&4)], [1, 0]);
        assert_eq!(ops.check(&4), 0);
        assert_eq!(ops.check(&2), 1);
        assert_eq!(
            (ops.len(), ops.watched(), timer.pending()),
            (0, 0, 0),
            "off everything"
        );
        assert_eq!(ops.check(&1), 0);
        host.advance(SECOND);
        assert_eq!(journal.take(), [(2, "completed"), (3, "completed")]);
        let stats = ops.stats();
        assert_eq!((stats.submitted, stats.completed, stats.tries), (3, 3, 6));
        assert_eq!(stats.panicked, 0);
        assert_adds_up(stats);
    }
}

/// 2.10: the timeout completes, too, and only if it was the one that did is there an expiry.
#[test]
fn when_time_is_up_it_is_completed_and_then_expired() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let ops = Ops::new(host.timer().clone());
        let journal = Journal::new();
        let waiting = op(1, &journal, |n| n > 2);
        ops.try_complete_else_watch(Arc::clone(&waiting), [1, 2], SECOND)
            .unwrap();
        let keyless = op(2, &journal, |_| false);
        ops.try_complete_else_watch(keyless, [], SECOND).unwrap();
        host.advance(SECOND - MS);
        assert_eq!(journal.take(), []);
        host.advance(MS);
        let ends = [
            (1, "completed"),
            (1, "expired"),
            (2, "completed"),
            (2, "expired"),
        ];
        assert_eq!(journal.take(), ends);
        assert_eq!(ops.check(&1), 0, "it is over");
        assert_eq!(tries(&waiting), 2, "and was not tried for it");
        let at_once = op(3, &journal, |_| false);
        let watch = ops.try_complete_else_watch(at_once, [1], Duration::ZERO);
        assert_eq!(watch.unwrap(), Watch::Waiting);
        host.run_due();
        assert_eq!(journal.take(), [(3, "completed"), (3, "expired")]);
        assert_eq!((ops.len(), ops.watched()), (0, 0));
        assert_adds_up(ops.stats());
    }
}

/// 2.10: a check returns the number completed, in the order in which they came.
#[test]
fn a_check_tries_all_under_the_key_and_no_other() {
    let host = ManualHost::new();
    let ops = Ops::new(host.timer().clone());
    let journal = Journal::new();
    let (set, _) = flag();
    for name in 0..200 {
        let set = Arc::clone(&set);
        let one = op(name, &journal, move |_| {
            name % 2 == 0 && set.load(Ordering::SeqCst)
        });
        let keys = if name < 180 { vec![7, 7, 8] } else { vec![9] };
        ops.try_complete_else_watch(one, keys, SECOND).unwrap();
    }
    assert_eq!(
        ops.watched(),
        180 * 2 + 20,
        "a key that is given twice counts once"
    );
    set.store(true, Ordering::SeqCst);
    assert_eq!(ops.check(&7), 90);
    let completed: Vec<_> = (0..180)
        .step_by(2)
        .map(|name| (name, "completed"))
        .collect();
    assert_eq!(journal.take(), completed);
    assert_eq!(
        (ops.watching(&7), ops.watching(&8), ops.watching(&9)),
        (90, 90, 20)
    );
    assert_eq!(ops.check(&9), 10);
    assert_adds_up(ops.stats());
}

/// 2.10: `cancelForKey` takes the operations back, cancels their timers, completes none.
#[test]
fn what_is_cancelled_neither_completes_nor_expires() {
    let mut host = ManualHost::new();
    let ops = Ops::new(host.timer().clone());
    let journal = Journal::new();
    for name in 0..4 {
        let keys = if name == 3 { vec![2] } else { vec![1, 2] };
        ops.try_complete_else_watch(op(name, &journal, |n| n > 2), keys, SECOND)
            .unwrap();
    }
    let names: Vec<_> = ops.cancel_for_key(&1).iter().map(|op| op.name).collect();
    assert_eq!(names, [0, 1, 2]);
    assert_eq!(
        (ops.len(), ops.watched(), host.timer().pending()),
        (1, 1, 1)
    );
    assert!(ops.cancel_for_key(&1).is_empty());
    assert_eq!(ops.check(&2), 1, "the fourth");
    host.advance(SECOND);
    assert_eq!(journal.take(), [(3, "completed")]);
    let stats = ops.stats();
    assert_eq!((stats.cancelled, stats.completed), (3, 1));
    assert_adds_up(stats);
}

/// Defect 28, the missed completion: a check that comes while another thread is inside a try
/// makes that one try again.
#[test]
fn a_check_during_a_try_is_not_lost() {
    let ops = Ops::new(Timer::new());
    let journal = Journal::new();
    let (set, _) = flag();
    let (inside, go_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let slow = {
        let (set, inside, go_on) = (Arc::clone(&set), Arc::clone(&inside), Arc::clone(&go_on));
        op(1, &journal, move |n| {
            let seen = set.load(Ordering::SeqCst);
            if n == 3 {
                inside.wait();
                go_on.wait();
            }
            seen
        })
    };
    ops.try_complete_else_watch(Arc::clone(&slow), [1], HOUR)
        .unwrap();
    thread::scope(|scope| {
        let trying = scope.spawn(|| ops.check(&1));
        inside.wait();
        set.store(true, Ordering::SeqCst); // too late for the try that is under way
        assert_eq!(ops.check(&1), 0, "the other thread does it");
        go_on.wait();
        assert_eq!(trying.join().unwrap(), 1);
    });
    assert_eq!(journal.take(), [(1, "completed")]);
    assert_eq!(tries(&slow), 4);
}

/// 2.10: time does not wait for a try, and what the try returns then comes to nothing.
#[test]
fn time_is_up_during_a_try() {
    let mut host = ManualHost::new();
    let ops = Ops::new(host.timer().clone());
    let journal = Journal::new();
    let (inside, go_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let slow = {
        let (inside, go_on) = (Arc::clone(&inside), Arc::clone(&go_on));
        op(1, &journal, move |n| {
            if n == 3 {
                inside.wait();
                go_on.wait();
            }
            n == 3
        })
    };
    ops.try_complete_else_watch(slow, [1], SECOND).unwrap();
    thread::scope(|scope| {
        let trying = scope.spawn(|| ops.check(&1));
        inside.wait();
        host.advance(SECOND);
        assert_eq!(journal.take(), [(1, "completed"), (1, "expired")]);
        go_on.wait();
        assert_eq!(trying.join().unwrap(), 0);
    });
    assert_eq!(journal.take(), []);
    assert_adds_up(ops.stats());
}

/// Defect 28: no lock is held while an operation runs. A try and a completion check other keys,
/// their own included, hand in others, cancel and ask for sizes.
#[test]
fn operations_may_call_back() {
    let mut host = ManualHost::new();
    let ops = Ops::new(host.timer().clone());
    let journal = Journal::new();
    let (set, seen) = flag();
    let first = op(1, &journal, seen);
    let again = ops.clone();
    let calls = op(2, &journal, move |n| {
        if n == 3 {
            assert_eq!(again.check(&1), 1, "another key");
            assert_eq!(
                again.check(&2),
                0,
                "its own: tried once more by the one who tries"
            );
        }
        n == 4
    });
    let (in_completion, handed_in) = (ops.clone(), op(3, &journal, |_| false));
    calls.then.get_or_init(|| {
        Box::new(move || {
            assert_eq!(
                in_completion.watched(),
                0,
                "off its lists before it is completed"
            );
            let handed_in = Arc::clone(&handed_in);
            in_completion
                .try_complete_else_watch(handed_in, [2], SECOND)
                .unwrap();
            assert_eq!(in_completion.check(&2), 0);
        })
    });
    ops.try_complete_else_watch(first, [1], HOUR).unwrap();
    ops.try_complete_else_watch(Arc::clone(&calls), [2], HOUR)
        .unwrap();
    set.store(true, Ordering::SeqCst);
    assert_eq!(ops.check(&2), 1);
    assert_eq!(tries(&calls), 4);
    assert_eq!(journal.take(), [(1, "completed"), (2, "completed")]);
    host.advance(SECOND);
    assert_eq!(journal.take(), [(3, "completed"), (3, "expired")]);
    assert_eq!(ops.stats().panicked, 0);
}

#[test]
fn a_panic_is_counted_and_disturbs_nobody() {
    struct Panics(&'static str);
    impl DelayedOperation for Panics {
        fn try_complete(&self) -> bool {
            assert_ne!(self.0, "try");
            false
        }
        fn on_complete(&self) {
            assert_ne!(self.0, "complete");
        }
        fn on_expire(&self) {
            assert_ne!(self.0, "expire");
        }
    }
    let mut host = ManualHost::new();
    let ops = DelayedOperations::new(host.timer().clone());
    for when in ["try", "complete", "expire", "never"] {
        ops.try_complete_else_watch(Arc::new(Panics(when)), ["a"], SECOND)
            .unwrap();
    }
    assert_eq!(ops.stats().panicked, 2);
    assert_eq!(ops.check("a"), 0);
    assert_eq!(ops.stats().panicked, 3, "it can be tried again");
    host.advance(SECOND);
    let stats = ops.stats();
    assert_eq!((stats.panicked, stats.expired, stats.pending), (5, 4, 0));
    assert_adds_up(stats);
}

#[test]
fn operations_have_a_limit_unless_they_are_told_unbounded() {
    let mut host = ManualHost::new();
    let journal = Journal::new();
    let ops = Ops::bounded(host.timer().clone(), 2);
    let submit = |name, can: fn(u64) -> bool| {
        ops.try_complete_else_watch(op(name, &journal, can), [name], SECOND)
    };
    for name in [1, 2] {
        assert_eq!(submit(name, |_| false).unwrap(), Watch::Waiting);
    }
    let refused = submit(3, |_| false);
    assert!(matches!(refused, Err(DelayedOperationError::Full(op)) if tries(&op) == 1));
    assert_eq!((ops.len(), ops.watched(), ops.stats().refused), (2, 2, 1));
    assert_eq!(submit(4, |_| true).unwrap(), Watch::Completed, "in no room");
    // Whatever ends one gives its room back, once.
    assert_eq!(ops.cancel_for_key(&1).len(), 1);
    assert_eq!(submit(5, |n| n == 2).unwrap(), Watch::Completed);
    assert_eq!(submit(6, |_| false).unwrap(), Watch::Waiting);
    assert!(submit(7, |_| false).is_err());
    host.advance(SECOND);
    assert_eq!(submit(8, |_| false).unwrap(), Watch::Waiting);
    assert_eq!(submit(9, |_| false).unwrap(), Watch::Waiting);
    assert!(submit(10, |_| false).is_err());
    assert_adds_up(ops.stats());

    let fill = |ops: &Ops| {
        let all = 0..=DEFAULT_MAX_PENDING;
        all.take_while(|_| {
            let never = op(0, &journal, |_| false);
            ops.try_complete_else_watch(never, [0], SECOND).is_ok()
        })
        .count()
    };
    assert_eq!(fill(&Ops::new(host.timer().clone())), DEFAULT_MAX_PENDING);
    let unbounded = Ops::unbounded(host.timer().clone());
    assert_eq!(fill(&unbounded), DEFAULT_MAX_PENDING + 1);
}

/// LIF-11: after a close, Kafka's timer takes what is to come later, and never tells.
#[test]
fn what_is_refused_comes_back_and_ends_neither_way() {
    let mut host = Timer::builder()
        .max_pending(1)
        .manual(countwheel::ManualClock::new());
    let timer = host.timer().clone();
    let ops = Ops::new(timer.clone());
    let journal = Journal::new();
    let never = |name| op(name, &journal, |_| false);
    ops.try_complete_else_watch(never(1), [1], SECOND).unwrap();
    let refused = ops
        .try_complete_else_watch(never(2), [1, 2], SECOND)
        .unwrap_err();
    assert!(matches!(&refused, DelayedOperationError::Full(op) if op.name == 2));
    assert_eq!(Arc::strong_count(&refused.into_operation()), 1);
    assert_eq!((ops.len(), ops.watched()), (1, 1));
    let watch = ops.try_complete_else_watch(op(3, &journal, |n| n == 2), [1], SECOND);
    assert_eq!(
        watch.unwrap(),
        Watch::Completed,
        "what is completed needs no room"
    );

    ops.close();
    let refused = ops.try_complete_else_watch(op(4, &journal, |_| true), [1], SECOND);
    assert!(matches!(refused, Err(DelayedOperationError::Closed(op)) if tries(&op) == 0));
    host.advance(SECOND);
    assert_eq!(
        journal.take(),
        [(3, "completed"), (1, "completed"), (1, "expired")]
    );

    let ops = Ops::new(timer.clone());
    timer.stop();
    let refused = ops
        .try_complete_else_watch(never(5), [1], SECOND)
        .unwrap_err();
    assert_eq!(refused.to_string(), "no more operations are taken");
    assert_eq!(ops.stats().refused, 1);
    assert_adds_up(ops.stats());
}

/// One that is handed in just as everything is closed, between its listing and its timer.
#[test]
fn a_close_during_the_second_try_refuses() {
    let host = ManualHost::new();
    let ops = Ops::new(host.timer().clone());
    let journal = Journal::new();
    let closes = ops.clone();
    let one = op(1, &journal, move |n| {
        if n == 2 {
            closes.close();
        }
        false
    });
    let refused = ops.try_complete_else_watch(one, [1, 2], SECOND);
    assert!(matches!(refused, Err(DelayedOperationError::Closed(_))));
    assert_eq!(
        (ops.len(), ops.watched(), host.timer().pending()),
        (0, 0, 0)
    );

    // And one that the stop has found on its lists.
    let ops = Ops::new(host.timer().clone());
    let returned = Arc::new(Mutex::new(Vec::new()));
    let (stops, found) = (ops.clone(), Arc::clone(&returned));
    let one = op(2, &journal, move |n| {
        if n == 2 {
            found.lock().unwrap().extend(stops.stop());
        }
        n == 2
    });
    assert_eq!(
        ops.try_complete_else_watch(one, [1, 2], SECOND).unwrap(),
        Watch::Waiting
    );
    assert_eq!(returned.lock().unwrap().len(), 1);
    assert_eq!(
        (ops.stats().returned, ops.watched(), host.timer().pending()),
        (1, 0, 0)
    );
    assert_eq!(journal.take(), [], "it was given back");
}

/// It is over before it is given to the timer, which then has nothing of it.
#[test]
fn a_cancel_during_the_second_try_leaves_nothing_in_the_timer() {
    let host = ManualHost::new();
    let ops = Ops::new(host.timer().clone());
    let journal = Journal::new();
    let cancels = ops.clone();
    let one = op(1, &journal, move |n| {
        n == 2 && cancels.cancel_for_key(&1).len() == 2
    });
    ops.try_complete_else_watch(Arc::clone(&one), [1, 2], SECOND)
        .unwrap();
    assert_eq!(tries(&one), 2);
    assert_eq!(
        (ops.len(), ops.watched(), host.timer().pending()),
        (0, 0, 0)
    );
    assert_eq!(ops.stats().cancelled, 1);
    assert_eq!(journal.take(), []);
}

#[test]
fn a_stop_gives_back_or_everything_expires() {
    for stops in [true, false] {
        let mut host = ManualHost::new();
        let ops = Ops::new(host.timer().clone());
        let journal = Journal::new();
        for name in 0..5 {
            let keys: Vec<_> = (0..name).collect();
            ops.try_complete_else_watch(op(name, &journal, |_| false), keys, SECOND)
                .unwrap();
        }
        assert_eq!(ops.watched(), 1 + 1 + 2 + 3 + 4);
        let mut expected = Vec::new();
        if stops {
            let names: Vec<_> = ops.stop().iter().map(|op| op.name).collect();
            assert_eq!(names, [0, 1, 2, 3, 4]);
        } else {
            ops.close();
            assert_eq!(ops.expire_all(), 5);
            expected.extend((0..5).flat_map(|name| [(name, "completed"), (name, "expired")]));
        }
        assert_eq!((ops.watched(), host.timer().pending()), (0, 0));
        host.advance(SECOND);
        assert_eq!(journal.take(), expected);
        assert_adds_up(ops.stats());
    }
}

#[test]
fn the_end_of_the_timer_is_as_its_stop_says() {
    let journal = Journal::new();
    let watched = |host: &ManualHost| {
        let ops = Ops::new(host.timer().clone());
        for name in 0..2 {
            ops.try_complete_else_watch(op(name, &journal, |n| n > 2), [name], SECOND)
                .unwrap();
        }
        ops
    };
    let host = ManualHost::new();
    let ops = watched(&host);
    assert!(host.timer().close(Stop::RunNow).wait().unfired.is_empty());
    assert_eq!((ops.stats().expired, journal.take().len()), (2, 4));

    let host = ManualHost::new();
    let ops = watched(&host);
    let mut unfired = host.timer().stop().unfired;
    unfired.remove(0).run();
    assert_eq!(journal.take(), [(0, "completed"), (0, "expired")]);
    drop(unfired);
    assert_eq!(ops.len(), 1, "it waits for a check, or for a stop");
    assert_eq!(ops.check(&1), 1);
    assert_adds_up(ops.stats());
}

#[test]
fn nothing_stays_behind_when_the_last_handle_goes() {
    struct Present {
        _presence: Presence,
    }
    impl DelayedOperation for Present {
        fn try_complete(&self) -> bool {
            false
        }
        fn on_complete(&self) {
            panic!("it was dropped");
        }
    }
    let mut host = ManualHost::new();
    let presence = Presence::default();
    let ops: DelayedOperations<u64, dyn DelayedOperation> =
        DelayedOperations::new(host.timer().clone());
    for keys in [vec![], vec![1, 2]] {
        let one = Arc::new(Present {
            _presence: presence.clone(),
        });
        ops.try_complete_else_watch(one, keys, SECOND).unwrap();
    }
    assert_eq!(host.timer().pending(), 2);
    drop(ops);
    assert!(presence.is_over());
    assert_eq!(host.timer().pending(), 0);
    assert_eq!(host.advance(SECOND), 0);
}

#[test]
fn keys_that_share_a_hash_are_told_apart() {
    #[derive(PartialEq, Eq)]
    struct Bad(u64);
    impl Hash for Bad {
        fn hash<H: Hasher>(&self, state: &mut H) {
            0.hash(state);
        }
    }
    let host = ManualHost::new();
    let ops = DelayedOperations::new(host.timer().clone());
    let journal = Journal::new();
    for name in 0..3 {
        ops.try_complete_else_watch(op(name, &journal, |n| n > 2), [Bad(name)], SECOND)
            .unwrap();
    }
    assert_eq!((ops.watching(&Bad(1)), ops.check(&Bad(1))), (1, 1));
    assert_eq!(ops.cancel_for_key(&Bad(2))[0].name, 2);
    assert_eq!(ops.watching(&Bad(0)), 1);
    assert_eq!(journal.take(), [(1, "completed")]);
}

// ---- the model ---------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Waiting { deadline: u64 },
    Completed,
    Expired,
    TakenBack,
}

/// Submissions, changes, checks, cancels and time in any order, then one of the ends.
fn behaves_like_the_model(seed: u64) {
    let mut random = Random(seed);
    let mut host = manual(MS, layouts()[usize::from(seed % 2 == 1)]);
    let timer = host.timer().clone();
    let ops = Ops::new(timer.clone());
    let journal = Journal::new();
    // An operation can be completed once the counters of all its keys together reach its goal.
    let counters: Arc<Vec<AtomicU64>> = Arc::new((0..4).map(|_| AtomicU64::new(0)).collect());
    let mut model: BTreeMap<u64, (Vec<u64>, u64, Fate)> = BTreeMap::new();
    let mut now = 0;
    let is_open = |fate: &Fate| matches!(fate, Fate::Waiting { .. });
    let sum = |keys: &[u64]| -> u64 {
        let of = |&key: &u64| counters[usize::try_from(key).unwrap()].load(Ordering::SeqCst);
        keys.iter().map(of).sum()
    };
    for name in 0..120 {
        match random.below(8) {
            0..=2 => {
                let keys: Vec<u64> = (0..4).filter(|_| random.below(3) == 0).collect();
                let goal = sum(&keys) + random.below(4);
                let delay = random.below(50);
                let (of, its) = (Arc::clone(&counters), keys.clone());
                let can = move |_| {
                    let of = |&key: &u64| of[usize::try_from(key).unwrap()].load(Ordering::SeqCst);
                    its.iter().map(of).sum::<u64>() >= goal
                };
                let delay_ms = Duration::from_millis(delay);
                let one = op(name, &journal, can);
                let watch = ops
                    .try_complete_else_watch(one, keys.clone(), delay_ms)
                    .unwrap();
                let fate = if sum(&keys) >= goal {
                    assert_eq!(watch, Watch::Completed, "seed {seed}");
                    Fate::Completed
                } else {
                    assert_eq!(watch, Watch::Waiting, "seed {seed}");
                    Fate::Waiting {
                        deadline: now + delay,
                    }
                };
                model.insert(name, (keys, goal, fate));
            }
            3 | 4 => {
                let key = random.below(4);
                counters[usize::try_from(key).unwrap()]
                    .fetch_add(random.below(3), Ordering::SeqCst);
                let mut expected = 0;
                for (keys, goal, fate) in model.values_mut() {
                    if is_open(fate) && keys.contains(&key) && sum(keys) >= *goal {
                        *fate = Fate::Completed;
                        expected += 1;
                    }
                }
                assert_eq!(ops.check(&key), expected, "seed {seed}");
            }
            5 if random.below(3) == 0 => {
                let key = random.below(4);
                let mut expected = Vec::new();
                for (&name, (keys, _, fate)) in &mut model {
                    if is_open(fate) && keys.contains(&key) {
                        *fate = Fate::TakenBack;
                        expected.push(name);
                    }
                }
                let cancelled: Vec<_> = ops.cancel_for_key(&key).iter().map(|op| op.name).collect();
                assert_eq!(cancelled, expected, "seed {seed}");
            }
            _ => {
                let span = random.below(20);
                now += span;
                host.advance(Duration::from_millis(span));
                for (_, _, fate) in model.values_mut() {
                    if matches!(fate, Fate::Waiting { deadline } if *deadline <= now) {
                        *fate = Fate::Expired;
                    }
                }
            }
        }
        // A timeout of zero needs a turn of the host.
        host.run_due();
        for (_, _, fate) in model.values_mut() {
            if matches!(fate, Fate::Waiting { deadline } if *deadline <= now) {
                *fate = Fate::Expired;
            }
        }
        let open = || model.values().filter(|(_, _, fate)| is_open(fate));
        let watched: usize = open().map(|(keys, _, _)| keys.len().max(1)).sum();
        assert_eq!(
            (ops.len(), ops.watched()),
            (open().count(), watched),
            "seed {seed}"
        );
        assert_eq!(timer.pending(), open().count() as u64, "seed {seed}");
        assert_adds_up(ops.stats());
    }
    let end = random.below(3);
    if end == 1 {
        assert!(timer.close(Stop::RunNow).wait().unfired.is_empty());
    } else if end == 2 {
        ops.expire_all();
    }
    let returned = ops.stop().len();
    let open = model.values_mut().filter(|(_, _, fate)| is_open(fate));
    let open: Vec<_> = open.map(|(_, _, fate)| fate).collect();
    assert_eq!(
        returned,
        if end == 0 { open.len() } else { 0 },
        "seed {seed}"
    );
    let rest = if end == 0 {
        Fate::TakenBack
    } else {
        Fate::Expired
    };
    open.into_iter().for_each(|fate| *fate = rest);

    let mut journalled: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (name, what) in journal.take() {
        journalled.entry(name).or_default().push(what);
    }
    for (name, (_, _, fate)) in model {
        let expected: &[&str] = match fate {
            Fate::Completed => &["completed"],
            Fate::Expired => &["completed", "expired"],
            Fate::TakenBack => &[],
            Fate::Waiting { .. } => panic!("over"),
        };
        let journalled = journalled.remove(&name).unwrap_or_default();
        assert_eq!(journalled, expected, "operation {name}, seed {seed}");
    }
    assert!(journalled.is_empty());
    assert_adds_up(ops.stats());
}

#[test]
fn it_behaves_like_the_model() {
    for seed in 0..500 {
        behaves_like_the_model(seed);
    }
}

// ---- threads -----------------------------------------------------------------------------

/// Everything that has been made possible before a check is completed when all is quiet: no
/// completion is missed, and none happens twice.
#[test]
fn threads_submit_check_cancel_and_expire() {
    struct Counted {
        ready: Arc<AtomicBool>,
        ends: Arc<AtomicUsize>,
    }
    impl DelayedOperation for Counted {
        fn try_complete(&self) -> bool {
            self.ready.load(Ordering::SeqCst)
        }
        fn on_complete(&self) {
            self.ends.fetch_add(1, Ordering::SeqCst);
        }
    }
    let timer = Timer::new();
    for round in 0..40 {
        let ops = DelayedOperations::new(timer.clone());
        let ends: Vec<_> = (0..48).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        let ready: Vec<_> = (0..3).map(|_| Arc::new(AtomicBool::new(false))).collect();
        let cancelled = AtomicUsize::new(0);
        thread::scope(|scope| {
            for part in ends.chunks(16) {
                let (ops, ready) = (&ops, &ready);
                scope.spawn(move || {
                    for (n, ends) in part.iter().enumerate() {
                        let one = Counted {
                            ready: Arc::clone(&ready[n % 3]),
                            ends: Arc::clone(ends),
                        };
                        let keys = [n % 3, 3 + n % 2];
                        let timeout = if n % 5 == 0 {
                            Duration::from_micros(100)
                        } else {
                            HOUR
                        };
                        ops.try_complete_else_watch(Arc::new(one), keys, timeout)
                            .unwrap();
                    }
                });
            }
            for (key, ready) in ready.iter().enumerate() {
                let (ops, cancelled) = (&ops, &cancelled);
                scope.spawn(move || {
                    for _ in 0..round % 4 * 50 {
                        std::hint::spin_loop();
                    }
                    ready.store(true, Ordering::SeqCst);
                    ops.check(&key);
                    ops.check(&(3 + key % 2));
                    if round % 4 == 0 && key == 2 {
                        let taken = ops.cancel_for_key(&4).len();
                        cancelled.fetch_add(taken, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(ops.stop().is_empty(), "nobody was missed");
        let cancelled = cancelled.into_inner();
        let sum = || -> usize { ends.iter().map(|ends| ends.load(Ordering::SeqCst)).sum() };
        // An expiry that has won may still be on its way to its operation.
        while sum() < 48 - cancelled {
            thread::yield_now();
        }
        let at_most_once = |ends: &Arc<AtomicUsize>| ends.load(Ordering::SeqCst) <= 1;
        assert!(ends.iter().all(at_most_once), "exactly once");
        assert_eq!(ops.watched(), 0);
        let stats = ops.stats();
        assert_eq!((stats.submitted, stats.cancelled), (48, cancelled as u64));
        assert_adds_up(stats);
    }
    timer.stop();
}

#[test]
fn a_destructor_that_panics_does_not_keep_others_from_being_checked() {
    struct Op {
        bad: bool,
        open: Arc<AtomicBool>,
        done: Arc<AtomicUsize>,
    }
    impl DelayedOperation for Op {
        fn try_complete(&self) -> bool {
            self.open.load(Ordering::SeqCst)
        }
        fn on_complete(&self) {
            self.done.fetch_add(1, Ordering::SeqCst);
        }
    }
    impl Drop for Op {
        fn drop(&mut self) {
            assert!(!self.bad || thread::panicking(), "on purpose");
        }
    }
    let host = ManualHost::new();
    let ops = DelayedOperations::new(host.timer().clone());
    let (open, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    for bad in [true, false, false] {
        let op = Op {
            bad,
            open: Arc::clone(&open),
            done: Arc::clone(&done),
        };
        assert!(
            ops.try_complete_else_watch(Arc::new(op), ["k"], HOUR)
                .is_ok()
        );
    }
    open.store(true, Ordering::SeqCst);
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ops.check("k")));
    assert_eq!(done.load(Ordering::SeqCst), 3);
}
