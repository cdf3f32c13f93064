//! Delay queues: 2.8 (the `DelayQueue` users of SOFARegistry, `DelayItem`, the push buffer),
//! KEY-12 and ELV-4 (the latest of one key), 2.12 (the earliest deadline kept when merging).

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use countwheel::{Instant, Layout, ManualHost, Timer};
use countwheel_patterns::{
    DEFAULT_MAX_PENDING, DelayKey, DelayQueue, DelayQueueStats, Due, DueItems, KeyedDelayQueue,
    NextDue, PushError, TakeError, Undue,
};

use crate::support::{Count, HOUR, MS, Presence, Random, SECOND, block_on, layouts, manual, ns};

fn values<T>(due: Vec<Due<T>>) -> Vec<T> {
    due.into_iter().map(|due| due.value).collect()
}

fn undue<T>(undue: Vec<Undue<T>>) -> Vec<T> {
    undue.into_iter().map(|undue| undue.value).collect()
}

fn assert_adds_up(stats: &DelayQueueStats) {
    let ends = stats.taken + stats.replaced + stats.cancelled + stats.returned;
    assert_eq!(stats.pushed, ends + stats.pending, "{stats:?}");
    assert_eq!(stats.lateness.count(), stats.taken);
}

/// 2.8: `DelayItem` orders by wall-clock milliseconds and breaks ties by sequence. Here: by
/// ticks of a clock that nobody sets, and by sequence.
#[test]
fn items_come_when_due_and_in_order() {
    for layout in layouts() {
        let mut host = manual(10 * MS, layout);
        let queue = DelayQueue::new(host.timer().clone());
        for (value, delay) in [
            ("c", 25),
            ("a", 19),
            ("b", 11),
            ("d", 30),
            ("far", 3_600_000),
        ] {
            queue.push(value, delay * MS).unwrap();
        }
        assert_eq!(queue.try_take(), None);
        host.clock().advance(19 * MS);
        assert_eq!(queue.try_take(), None, "never early, to the tick");
        host.clock().advance(MS);
        assert_eq!(values(queue.take_due(9)), ["a", "b"], "one tick: as pushed");
        host.clock().advance(HOUR);
        queue.push("now", Duration::ZERO).unwrap();
        assert_eq!(values(queue.take_due(9)), ["c", "d", "far", "now"]);
        assert!(queue.is_empty());
        host.run_due();
        assert_adds_up(&queue.stats());
    }
}

#[test]
fn what_is_not_taken_stays_and_its_lateness_tells() {
    for layout in layouts() {
        let host = manual(MS, layout);
        let queue = DelayQueue::new(host.timer().clone());
        let deadline = host.timer().now() + SECOND;
        queue.push_at(1, deadline).unwrap();
        queue.push_at(2, deadline).unwrap();
        queue.push_at(3, deadline).unwrap();
        host.clock().advance(SECOND);
        let due = queue.try_take().unwrap();
        assert_eq!(
            (due.value, due.deadline, due.lateness),
            (1, deadline, Duration::ZERO)
        );
        host.clock().advance(HOUR);
        let due = queue.take_due(1).remove(0);
        assert_eq!((due.value, due.deadline, due.lateness), (2, deadline, HOUR));
        assert_eq!(queue.take_due(0), []);
        assert_eq!(queue.len(), 1);
        let stats = queue.stats();
        assert_eq!((stats.lateness_max, stats.pending), (HOUR, 1));
        assert_adds_up(&stats);
    }
}

/// Defect 26 and 2.8: others poll each 200 ms. Here nothing runs while nobody waits, and
/// nobody is woken before something is due, however far that is.
#[test]
fn nobody_is_woken_before_something_is_due() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let queue = DelayQueue::new(host.timer().clone());
        queue.push("later", 1_000 * HOUR).unwrap();
        assert_eq!(host.next_wake(), None, "nobody waits");

        let count = Count::new();
        let mut next = queue.next();
        assert!(count.poll(&mut next).is_pending());
        assert_eq!(host.timer().pending(), 1, "one entry, however many items");
        for n in 0..100 {
            queue.push("never", 2_000 * HOUR + n * SECOND).unwrap();
        }
        assert_eq!(host.timer().pending(), 1);
        host.advance(1_000 * HOUR - MS);
        assert_eq!(count.woken(), 0);
        host.advance(MS);
        assert_eq!(count.woken(), 1);
        let Poll::Ready(Some(due)) = count.poll(&mut next) else {
            panic!("it was woken for an item");
        };
        assert_eq!((due.value, due.lateness), ("later", Duration::ZERO));
        host.advance(999 * HOUR);
        assert_eq!(host.next_wake(), None, "nobody waits any more");
    }
}

#[test]
fn one_item_wakes_one_waiter_the_first_one_first() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let queue = DelayQueue::new(host.timer().clone());
        let counts: Vec<_> = (0..5).map(|_| Count::new()).collect();
        let mut waiters: Vec<_> = (0..5).map(|_| queue.next()).collect();
        for (count, next) in counts.iter().zip(&mut waiters) {
            assert!(count.poll(next).is_pending());
        }
        let woken = || counts.iter().map(|count| count.woken()).collect::<Vec<_>>();
        queue.push(1, MS).unwrap();
        queue.push(2, SECOND).unwrap();
        host.advance(MS);
        assert_eq!(woken(), [1, 0, 0, 0, 0]);
        queue.push(3, Duration::ZERO).unwrap();
        assert_eq!(woken(), [1, 1, 0, 0, 0], "due at once: without the host");
        // A waiter that is polled for another reason keeps its place.
        assert!(counts[0].poll(&mut waiters[0]).is_ready());
        assert!(
            counts[2].poll(&mut waiters[2]).is_ready(),
            "what is due is due to all"
        );
        assert!(
            counts[1].poll(&mut waiters[1]).is_pending(),
            "somebody was faster"
        );
        host.advance(SECOND);
        assert_eq!(woken(), [1, 2, 0, 0, 0], "and it is the first again");
        assert!(counts[1].poll(&mut waiters[1]).is_ready());

        // Three at once wake the two who wait.
        for n in 0..3 {
            queue.push(n, MS).unwrap();
        }
        host.advance(MS);
        assert_eq!(woken(), [1, 2, 0, 1, 1]);
        assert!(counts[3].poll(&mut waiters[3]).is_ready());
        assert!(counts[4].poll(&mut waiters[4]).is_ready());
        assert_eq!(queue.stats().wake_ups, 5);
        assert_eq!(queue.len(), 1);
    }
}

#[test]
fn a_waiter_that_is_dropped_passes_its_wake_up_on() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let queue = DelayQueue::new(host.timer().clone());
        let counts: Vec<_> = (0..3).map(|_| Count::new()).collect();
        let mut waiters: Vec<_> = (0..3).map(|_| queue.next()).collect();
        for (count, next) in counts.iter().zip(&mut waiters) {
            assert!(count.poll(next).is_pending());
        }
        let key = queue.push("tea", MS).unwrap();
        drop(waiters.remove(1));
        host.advance(MS);
        assert_eq!(counts[0].woken(), 1);
        drop(waiters.remove(0));
        assert_eq!(counts[2].woken(), 1, "the one between had gone");
        drop(waiters);
        assert_eq!(queue.len(), 1, "nothing is lost");
        assert_eq!(queue.cancel(key), Some("tea"), "and nobody has taken it");
        assert_eq!(queue.cancel(key), None);
        drop(queue.next()); // never polled
        assert_adds_up(&queue.stats());
    }
}

/// As many as are due are woken at once, however many there are, and no more.
#[test]
fn many_items_wake_many_waiters() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let queue = DelayQueue::new(host.timer().clone());
        let mut waiters: Vec<_> = (0..1_000).map(|_| (Count::new(), queue.next())).collect();
        for (count, next) in &mut waiters {
            assert!(count.poll(next).is_pending());
        }
        for n in 0..900 {
            queue.push(n, MS).unwrap();
        }
        host.advance(MS);
        for (n, (count, next)) in waiters.iter_mut().enumerate() {
            assert_eq!(count.woken(), usize::from(n < 900));
            if n < 900 {
                assert!(matches!(count.poll(next), Poll::Ready(Some(due)) if due.value == n));
            }
        }
        queue.close();
        assert!(waiters.iter().all(|(count, _)| count.woken() == 1));
    }
}

/// ELV-4: what has failed goes back, unless there is a newer one.
#[test]
fn what_has_failed_goes_back_unless_there_is_a_newer_one() {
    let host = ManualHost::new();
    let queue = KeyedDelayQueue::new(host.timer().clone());
    queue.push("a", 1, Duration::ZERO).unwrap();
    queue.push("b", 1, Duration::ZERO).unwrap();
    let failed = queue.take_due(250);
    queue.push_sooner("b", 2, 500 * MS).unwrap();
    for due in failed {
        let (key, value) = due.value;
        queue
            .merge(key, value, 100 * MS, |_, newer, _failed| newer)
            .unwrap();
    }
    host.clock().advance(100 * MS);
    let failed = queue.take_due(250);
    assert_eq!(values(failed.clone()), [("a", 1), ("b", 2)]);

    // And without a pause: under its old deadline, so that it is due at once and comes first.
    queue.push_sooner("b", 3, 500 * MS).unwrap();
    queue.push("c", 1, Duration::ZERO).unwrap();
    for due in failed {
        let (key, value) = due.value;
        queue
            .merge_at(key, value, due.deadline, |_, newer, _failed| newer)
            .unwrap();
    }
    let mut again = values(queue.take_due(250));
    again.sort_unstable();
    assert_eq!(again, [("a", 1), ("b", 3), ("c", 1)]);
}

#[test]
fn a_full_queue_refuses_until_there_is_room() {
    let host = ManualHost::new();
    let queue = DelayQueue::bounded(host.timer().clone(), 2);
    let first = queue.push(1, Duration::ZERO).unwrap();
    queue.push(2, Duration::ZERO).unwrap();
    assert!(matches!(queue.push(3, SECOND), Err(PushError::Full(3))));
    assert!(queue.try_take().is_some());
    assert_eq!(queue.cancel(first), None);
    queue.push(3, SECOND).unwrap();
    let refused = queue.push(4, SECOND).unwrap_err();
    assert_eq!(format!("{refused:?}"), "Full(..)");
    assert_eq!(refused.into_value(), 4);
    let none = DelayQueue::bounded(host.timer().clone(), 0);
    assert!(matches!(none.push((), SECOND), Err(PushError::Full(()))));
    let stats = queue.stats();
    assert_eq!((stats.pushed, stats.refused), (3, 2));
    assert_adds_up(&stats);
}

#[test]
fn a_queue_has_a_limit_unless_it_is_told_unbounded() {
    let host = ManualHost::new();
    let timer = || host.timer().clone();
    let fill = |queue: &DelayQueue<usize>| {
        let all = 0..=DEFAULT_MAX_PENDING;
        all.take_while(|&item| queue.push(item, SECOND).is_ok())
            .count()
    };
    assert_eq!(fill(&DelayQueue::new(timer())), DEFAULT_MAX_PENDING);
    assert_eq!(
        fill(&DelayQueue::unbounded(timer())),
        DEFAULT_MAX_PENDING + 1
    );
    let fill = |queue: &KeyedDelayQueue<usize, ()>| {
        let all = 0..=DEFAULT_MAX_PENDING;
        all.take_while(|&key| queue.push(key, (), SECOND).is_ok())
            .count()
    };
    assert_eq!(fill(&KeyedDelayQueue::new(timer())), DEFAULT_MAX_PENDING);
    let unbounded = KeyedDelayQueue::unbounded(timer());
    assert_eq!(fill(&unbounded), DEFAULT_MAX_PENDING + 1);
}

#[test]
fn a_closed_queue_lets_the_rest_come_due_and_then_ends() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let queue = DelayQueue::new(host.timer().clone());
        let counts: Vec<_> = (0..3).map(|_| Count::new()).collect();
        let mut waiters: Vec<_> = (0..3).map(|_| queue.next()).collect();
        for (count, next) in counts.iter().zip(&mut waiters) {
            assert!(count.poll(next).is_pending());
        }
        queue.push(1, SECOND).unwrap();
        queue.close();
        assert!(queue.is_closed());
        assert!(matches!(queue.push(2, SECOND), Err(PushError::Closed(2))));
        assert_eq!(counts.iter().map(|count| count.woken()).sum::<usize>(), 0);
        host.advance(SECOND);
        assert_eq!(counts[0].woken(), 1);
        assert!(matches!(
            counts[0].poll(&mut waiters[0]),
            Poll::Ready(Some(_))
        ));
        // That was the last.
        assert_eq!([counts[1].woken(), counts[2].woken()], [1, 1]);
        assert_eq!(counts[1].poll(&mut waiters[1]), Poll::Ready(None));
        assert_eq!(counts[2].poll(&mut waiters[2]), Poll::Ready(None));
        assert_eq!(queue.take(), None);
        assert_eq!(queue.take_for(HOUR), Err(TakeError::Ended));
        assert_eq!(block_on(queue.next()), None);
    }
}

#[test]
fn a_closed_queue_whose_last_item_is_cancelled_ends() {
    let host = ManualHost::new();
    let queue = DelayQueue::new(host.timer().clone());
    let key = queue.push(1, HOUR).unwrap();
    let (count, mut next) = (Count::new(), queue.next());
    assert!(count.poll(&mut next).is_pending());
    queue.close();
    assert_eq!(queue.cancel(key), Some(1));
    assert_eq!(
        (count.woken(), count.poll(&mut next)),
        (1, Poll::Ready(None))
    );
}

#[test]
fn a_stop_gives_back_what_nobody_has_taken_and_a_drain_goes_on() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let queue = DelayQueue::new(host.timer().clone());
        let (count, mut next) = (Count::new(), queue.next());
        assert!(count.poll(&mut next).is_pending());
        let start = host.timer().now();
        for n in [3, 1, 2] {
            queue.push(n, n * SECOND).unwrap();
        }
        host.advance(SECOND);
        assert_eq!(count.woken(), 1, "one is due, and not taken");
        let drained = queue.drain();
        assert_eq!(drained[0].deadline, start + SECOND);
        assert_eq!(undue(drained), [1, 2, 3]);
        assert!(count.poll(&mut next).is_pending(), "it goes on");
        queue.push(4, SECOND).unwrap();
        assert_eq!(undue(queue.stop()), [4]);
        assert_eq!(
            (count.woken(), count.poll(&mut next)),
            (2, Poll::Ready(None))
        );
        assert_eq!(undue(queue.stop()), [0_u32; 0]);
        let stats = queue.stats();
        assert_eq!((stats.returned, stats.pending), (4, 0));
        assert_adds_up(&stats);
    }
}

/// LIF-11: with Kafka's timer, what comes after the close is accepted for ever in silence.
#[test]
fn items_come_one_after_another_until_the_queue_has_ended() {
    let mut host = manual(MS, Layout::Hierarchical);
    let queue = DelayQueue::new(host.timer().clone());
    for seconds in 1..=4 {
        queue.push(seconds, seconds * SECOND).unwrap();
    }
    let mut cx = std::task::Context::from_waker(Waker::noop());
    let (mut items, mut taken) = (queue.items(), Vec::new());
    let mut take = |items: &mut DueItems<u32>| {
        let mut take = std::pin::pin!(items.take());
        take.as_mut().poll(&mut cx)
    };
    assert!(take(&mut items).is_pending());
    let mut other = queue.items();
    assert!(take(&mut other).is_pending());
    host.advance(2 * SECOND);
    taken.extend([take(&mut items), take(&mut items)]);
    assert!(take(&mut items).is_pending());
    queue.close();
    host.advance(2 * SECOND);
    drop(items); // it was called first, and what it was called for is the other's
    taken.extend([take(&mut other), take(&mut other)]);
    let values = taken.into_iter().map(|taken| match taken {
        Poll::Ready(Some(due)) => due.value,
        nothing => panic!("{nothing:?}"),
    });
    assert_eq!(values.collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(take(&mut other), Poll::Ready(None));
}

#[test]
fn the_end_of_the_timer_ends_the_waiting() {
    for layout in layouts() {
        let host = manual(MS, layout);
        let timer = host.timer().clone();
        let queue = DelayQueue::new(timer.clone());
        let empty = DelayQueue::<u32>::new(timer.clone());
        let (count, mut next) = (Count::new(), queue.next());
        let (count_empty, mut next_empty) = (Count::new(), empty.next());
        queue.push(1, SECOND).unwrap();
        queue.push(2, HOUR).unwrap();
        assert!(count.poll(&mut next).is_pending());
        assert!(count_empty.poll(&mut next_empty).is_pending());
        timer.stop();
        assert_eq!((count.woken(), count_empty.woken()), (1, 1));
        assert_eq!(count_empty.poll(&mut next_empty), Poll::Ready(None));
        assert!(queue.is_closed());
        assert!(matches!(queue.push(3, SECOND), Err(PushError::Closed(3))));
        host.clock().advance(SECOND);
        assert!(matches!(count.poll(&mut next), Poll::Ready(Some(due)) if due.value == 1));
        assert_eq!(queue.take(), None, "nothing can be waited for");
        assert_eq!(undue(queue.stop()), [2], "and nothing is lost");
        assert_adds_up(&queue.stats());
    }
}

#[test]
fn a_thread_waits_no_longer_than_it_wants_to() {
    let timer = Timer::new();
    let queue = DelayQueue::new(timer.clone());
    assert_eq!(queue.take_for(Duration::ZERO), Err(TakeError::TimedOut));
    assert_eq!(queue.take_for(MS), Err(TakeError::TimedOut));
    let start = timer.now();
    queue.push("tea", 2 * MS).unwrap();
    assert_eq!(queue.take_for(10 * SECOND).unwrap().value, "tea");
    assert!(timer.now().saturating_since(start) >= 2 * MS);
    assert_eq!(queue.take_for(Duration::ZERO), Err(TakeError::TimedOut));
}

#[test]
fn nothing_keeps_the_queue_or_its_items_alive() {
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let presence = Presence::default();
    let queue = DelayQueue::new(timer.clone());
    queue.push(presence.clone(), SECOND).unwrap();
    let mut next = queue.clone().next();
    assert!(Count::new().poll(&mut next).is_pending());
    drop(queue);
    assert!(!presence.is_over());
    drop(next);
    assert!(presence.is_over());
    host.advance(SECOND);
    assert_eq!(timer.pending(), 0);
}

/// Wakers call the queue when they are cloned, woken and dropped; items when they are dropped.
#[test]
fn nothing_foreign_runs_under_the_lock() {
    struct Calls(DelayQueue<Item>, AtomicUsize);
    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(self.0.len() + 1, Ordering::SeqCst);
            panic!("a waker");
        }
    }
    impl Drop for Calls {
        fn drop(&mut self) {
            let _ = self.0.len();
        }
    }
    struct Item(Option<DelayQueue<Self>>);
    impl Drop for Item {
        fn drop(&mut self) {
            if let Some(queue) = &self.0 {
                let _ = queue.len();
            }
        }
    }
    let mut host = ManualHost::new();
    let queue = DelayQueue::<Item>::new(host.timer().clone());
    let poll = |next: &mut NextDue<Item>, waker: &Waker| {
        std::pin::Pin::new(next).poll(&mut std::task::Context::from_waker(waker))
    };
    let calls = |queue: &DelayQueue<Item>| Arc::new(Calls(queue.clone(), AtomicUsize::new(0)));
    let (first, second) = (calls(&queue), calls(&queue));
    let mut next = queue.next();
    assert!(poll(&mut next, &Waker::from(Arc::clone(&first))).is_pending());
    assert!(poll(&mut next, &Waker::from(first)).is_pending());
    assert!(poll(&mut next, &Waker::from(Arc::clone(&second))).is_pending());
    let (count, mut behind) = (Count::new(), queue.next());
    assert!(count.poll(&mut behind).is_pending());
    queue.push(Item(Some(queue.clone())), MS).ok().unwrap();
    queue.push(Item(Some(queue.clone())), MS).ok().unwrap();
    host.advance(MS);
    assert_eq!(second.1.load(Ordering::SeqCst), 3);
    assert_eq!(count.woken(), 1, "a waker that panics keeps nobody asleep");
    drop((next, second));
    queue.push(Item(Some(queue.clone())), HOUR).ok().unwrap();
    drop(queue.take_due(1));
    drop(queue.stop());
}

// ---- with keys ---------------------------------------------------------------------------

/// KEY-12, 2.8, 2.12: the newer value and the earlier deadline, so that a stream of updates
/// cannot postpone for ever; or, by choice, the newer deadline.
#[test]
fn a_newer_item_takes_the_place_of_an_older() {
    for layout in layouts() {
        let host = manual(MS, layout);
        let queue = KeyedDelayQueue::new(host.timer().clone());
        let at = |millis: u64| Instant::ZERO + Duration::from_millis(millis);
        assert_eq!(queue.push_sooner("a", 1, 500 * MS).unwrap(), None);
        assert_eq!(queue.push_sooner("b", 1, 500 * MS).unwrap(), None);
        host.clock().advance(100 * MS);
        assert_eq!(queue.push_sooner("a", 2, 500 * MS).unwrap(), Some(1));
        assert_eq!(queue.deadline("a"), Some(at(500)), "the earlier one stays");
        host.clock().advance(400 * MS);
        assert_eq!(
            values(queue.take_due(9)),
            [("a", 2), ("b", 1)],
            "and so does the place"
        );

        queue.push_sooner("a", 3, 500 * MS).unwrap();
        assert_eq!(queue.push_sooner("a", 4, 200 * MS).unwrap(), Some(3));
        assert_eq!(
            queue.deadline("a"),
            Some(at(700)),
            "or the newer, if that is earlier"
        );
        assert_eq!(queue.push("a", 5, 500 * MS).unwrap(), Some(4));
        assert_eq!(
            queue.deadline("a"),
            Some(at(1000)),
            "and here whatever it is"
        );
        assert_eq!(queue.push_at("a", 6, at(900)).unwrap(), Some(5));
        assert_eq!(queue.push_sooner_at("a", 7, at(901)).unwrap(), Some(6));
        host.clock().advance(399 * MS);
        assert_eq!(queue.try_take(), None);
        host.clock().advance(MS);
        assert_eq!(queue.try_take().unwrap().value, ("a", 7));
        let stats = queue.stats();
        assert_eq!((stats.pushed, stats.replaced, stats.taken), (8, 5, 3));
        assert_adds_up(&stats);
    }
}

/// Until it is taken, a key is there: due or not, and whoever was woken for it.
#[test]
fn a_key_that_is_due_is_replaced_moved_and_cancelled_like_any_other() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let queue = KeyedDelayQueue::new(host.timer().clone());
        let waits = |queue: &KeyedDelayQueue<&'static str, u32>| {
            let (count, mut next) = (Count::new(), queue.next());
            assert!(count.poll(&mut next).is_pending());
            (count, next)
        };
        let (count, mut next) = waits(&queue);
        queue.push("a", 1, MS).unwrap();
        host.advance(2 * MS);
        assert_eq!(count.woken(), 1);
        let deadline = queue.deadline("a").unwrap();
        assert_eq!(queue.push_sooner("a", 2, SECOND).unwrap(), Some(1));
        assert_eq!(queue.deadline("a"), Some(deadline));
        let Poll::Ready(Some(due)) = count.poll(&mut next) else {
            panic!("it is due");
        };
        assert_eq!((due.value, due.lateness), (("a", 2), MS));

        let (count, mut next) = waits(&queue);
        queue.push("a", 3, MS).unwrap();
        host.advance(MS);
        assert_eq!(
            queue.push("a", 4, SECOND).unwrap(),
            Some(3),
            "it is not due any more"
        );
        assert_eq!(count.woken(), 1);
        assert!(count.poll(&mut next).is_pending());
        host.advance(SECOND - MS);
        assert_eq!(count.woken(), 1);
        host.advance(MS);
        assert_eq!(count.woken(), 2);
        assert_eq!(queue.cancel("a"), Some(4));
        assert_eq!(queue.cancel("a"), None);
        assert_eq!(queue.deadline("a"), None);
        assert!(count.poll(&mut next).is_pending());

        queue.push("a", 5, MS).unwrap();
        host.advance(MS);
        assert!(
            !queue
                .merge("b", 1, Duration::ZERO, |_, _, _| panic!("it is not there"))
                .unwrap()
        );
        assert!(
            queue
                .merge("a", 6, HOUR, |_, old, new| old * 10 + new)
                .unwrap()
        );
        assert!(
            matches!(count.poll(&mut next), Poll::Ready(Some(due)) if due.value.0 == "b"
            || due.value == ("a", 56))
        );
        assert_eq!(queue.take_due(9).len(), 1);
        assert_adds_up(&queue.stats());
    }
}

#[test]
fn a_merge_runs_without_a_lock_and_meets_others() {
    let host = ManualHost::new();
    let queue = KeyedDelayQueue::bounded(host.timer().clone(), 2);
    queue.push("a", vec![1], SECOND).unwrap();
    queue.push("b", vec![9], SECOND).unwrap();
    let mut rounds = 0;
    let merged = queue.merge("a", vec![2], HOUR, |&key, mut old, new| {
        rounds += 1;
        assert!(
            matches!(queue.push("c", vec![], SECOND), Err(PushError::Full(_))),
            "its room stays"
        );
        if rounds == 1 {
            assert_eq!(queue.cancel("b"), Some(vec![9]));
            queue.push(key, vec![3], MS).unwrap();
        }
        old.extend(new);
        old
    });
    assert!(merged.unwrap());
    assert_eq!((rounds, queue.len()), (2, 1));
    host.clock().advance(MS);
    assert_eq!(
        queue.try_take().unwrap().value,
        ("a", vec![3, 1, 2]),
        "the earliest of all"
    );
    assert_adds_up(&queue.stats());
    queue.push("c", vec![], SECOND).unwrap();
    queue.push("d", vec![], SECOND).unwrap();
    assert!(
        queue.push("e", vec![], SECOND).is_err(),
        "no room was won by it"
    );
}

#[test]
fn a_merge_that_panics_or_meets_the_end_leaves_the_account_in_order() {
    let host = ManualHost::new();
    let queue = KeyedDelayQueue::bounded(host.timer().clone(), 1);
    queue.push(1, "old", SECOND).unwrap();
    let merge = || queue.merge(1, "new", SECOND, |_, _, _| panic!("a merge"));
    assert!(catch_unwind(AssertUnwindSafe(merge)).is_err());
    assert!(queue.is_empty());
    queue.push(1, "old", SECOND).unwrap();
    let (count, mut next) = (Count::new(), queue.next());
    assert!(count.poll(&mut next).is_pending());
    let refused = queue.merge(1, "new", SECOND, |_, _, _| {
        queue.close();
        "both"
    });
    assert!(matches!(refused, Err(PushError::Closed((1, "both")))));
    assert_eq!(
        (count.woken(), count.poll(&mut next)),
        (1, Poll::Ready(None))
    );
    assert_adds_up(&queue.stats());
}

/// Keys that all have one hash, and one whose comparison panics.
#[test]
fn bad_keys_cost_time_and_nothing_else() {
    #[derive(Clone, Debug)]
    struct Bad(u32);
    impl Hash for Bad {
        fn hash<H: Hasher>(&self, state: &mut H) {
            0.hash(state);
        }
    }
    impl PartialEq for Bad {
        fn eq(&self, other: &Self) -> bool {
            assert!(self.0 != 666 && other.0 != 666, "compared");
            self.0 == other.0
        }
    }
    impl Eq for Bad {}
    let host = ManualHost::new();
    let queue = KeyedDelayQueue::new(host.timer().clone());
    for key in 0..20 {
        queue.push(Bad(key), key, SECOND).unwrap();
    }
    for key in 0..10 {
        assert_eq!(queue.push(Bad(key), 100, SECOND).unwrap(), Some(key));
    }
    for key in 15..20 {
        assert_eq!(queue.cancel(&Bad(key)), Some(key));
    }
    let push = || queue.push(Bad(666), 1, SECOND);
    assert!(catch_unwind(AssertUnwindSafe(push)).is_err());
    host.clock().advance(SECOND);
    assert_eq!(queue.take_due(99).len(), 15);
    assert_adds_up(&queue.stats());
}

// ---- the model ---------------------------------------------------------------------------

/// The plainest delay queue there is, in whole nanoseconds.
struct Model {
    now: u64,
    tick: u64,
    order: u64,
    /// By the tick in which it is due and the order of pushing: value and deadline.
    items: BTreeMap<(u64, u64), (u64, u64)>,
}

impl Model {
    fn push(&mut self, value: u64, delay: u64) {
        self.order += 1;
        let deadline = self.now + delay;
        let due = if delay == 0 {
            self.now / self.tick
        } else {
            deadline.div_ceil(self.tick)
        };
        self.items.insert((due, self.order), (value, deadline));
    }

    fn due(&self) -> usize {
        self.items.range(..(self.now / self.tick + 1, 0)).count()
    }

    fn take(&mut self) -> Option<(u64, u64, u64)> {
        let (&place, &(value, deadline)) = self.items.first_key_value()?;
        (place.0 <= self.now / self.tick).then(|| {
            self.items.remove(&place);
            (value, deadline, self.now - deadline)
        })
    }

    fn place_of(&self, value: u64) -> Option<(u64, u64)> {
        let mut items = self.items.iter();
        items
            .find(|(_, item)| item.0 == value)
            .map(|(&place, _)| place)
    }
}

fn plain(due: &Due<u64>) -> (u64, u64, u64) {
    let lateness = u64::try_from(due.lateness.as_nanos()).unwrap();
    (due.value, due.deadline.as_nanos(), lateness)
}

fn index(random: &mut Random, limit: usize) -> usize {
    usize::try_from(random.below(limit as u64)).unwrap()
}

struct Waiter {
    count: Arc<Count>,
    next: NextDue<u64>,
    /// How often it had been woken when it was polled last.
    seen: usize,
}

fn behaves_like_the_model(seed: u64, tick: u64, layout: Layout) {
    let mut random = Random(seed);
    let mut host = manual(ns(tick), layout);
    let capacity = 1 + random.below(40);
    let queue = DelayQueue::bounded(host.timer().clone(), usize::try_from(capacity).unwrap());
    let mut model = Model {
        now: 0,
        tick,
        order: 0,
        items: BTreeMap::new(),
    };
    let mut keys: Vec<(u64, DelayKey)> = Vec::new();
    let mut waiters: Vec<Waiter> = Vec::new();
    let context = format!("seed {seed}, tick {tick}, {layout:?}");
    for step in 0..150 {
        match random.below(14) {
            0..=4 => {
                let delay = if random.below(8) == 0 {
                    0
                } else {
                    random.nanos_up_to(1 << 20)
                };
                match queue.push(step, ns(delay)) {
                    Ok(key) => {
                        model.push(step, delay);
                        keys.push((step, key));
                    }
                    Err(PushError::Full(value)) => {
                        assert_eq!((value, model.items.len() as u64), (step, capacity));
                    }
                    Err(other) => panic!("{other}: {context}"),
                }
            }
            5 => assert_eq!(
                queue.try_take().as_ref().map(plain),
                model.take(),
                "{context}"
            ),
            6 => {
                let limit = index(&mut random, 5);
                let taken: Vec<_> = queue.take_due(limit).iter().map(plain).collect();
                let expected: Vec<_> = std::iter::from_fn(|| model.take()).take(limit).collect();
                assert_eq!(taken, expected, "{context}");
            }
            7 if !keys.is_empty() => {
                let chosen = index(&mut random, keys.len());
                let (value, key) = keys.swap_remove(chosen);
                let place = model.place_of(value);
                assert_eq!(queue.cancel(key), place.map(|_| value), "{context}");
                place.map(|place| model.items.remove(&place));
            }
            8 | 9 if waiters.len() < 6 => waiters.push(Waiter {
                count: Count::new(),
                next: queue.next(),
                seen: 0,
            }),
            10 if !waiters.is_empty() => {
                let chosen = index(&mut random, waiters.len());
                drop(waiters.swap_remove(chosen));
            }
            11 | 12 => {
                let span = random.nanos_up_to(1 << 20);
                model.now += span;
                if random.below(4) == 0 {
                    host.clock().advance(ns(span)); // a stall
                    host.run_due();
                } else {
                    host.advance(ns(span));
                }
            }
            _ if random.below(10) == 0 => {
                let drained: Vec<_> = undue(queue.drain());
                let items = std::mem::take(&mut model.items).into_values();
                assert_eq!(
                    drained,
                    items.map(|item| item.0).collect::<Vec<_>>(),
                    "{context}"
                );
            }
            _ => {}
        }
        // Whoever is woken takes something, some at once, some later.
        let mut at = 0;
        while at < waiters.len() {
            let waiter = &mut waiters[at];
            let is_new = waiter.seen == 0 && waiter.count.woken() == 0;
            if !is_new && random.below(3) == 0 {
                at += 1;
                continue;
            }
            waiter.seen = waiter.count.woken();
            match waiter.count.poll(&mut waiter.next) {
                Poll::Ready(due) => {
                    assert_eq!(due.as_ref().map(plain), model.take(), "{context}");
                    waiters.swap_remove(at);
                }
                Poll::Pending => {
                    assert_eq!(model.due(), 0, "{context}");
                    at += 1;
                }
            }
        }
        // As many are on their way as there is something for.
        let called = waiters
            .iter()
            .filter(|waiter| waiter.count.woken() > waiter.seen);
        let called = called.count();
        let polled = waiters.len();
        assert!(
            called >= model.due().min(polled),
            "{called} of {polled} were called: {context}"
        );
        assert_eq!(queue.len(), model.items.len(), "{context}");
        assert_adds_up(&queue.stats());
    }
    drop(waiters);
    if random.below(2) == 0 {
        host.timer().stop();
    }
    let rest = undue(queue.stop());
    assert_eq!(
        rest,
        model.items.values().map(|item| item.0).collect::<Vec<_>>(),
        "{context}"
    );
    assert_adds_up(&queue.stats());
}

#[test]
fn it_behaves_like_the_model() {
    for seed in 0..400 {
        for layout in layouts() {
            let tick = [1, 7, 1_000, 1 << 18][(seed % 4) as usize];
            behaves_like_the_model(seed, tick, layout);
        }
    }
}

// ---- threads -----------------------------------------------------------------------------

#[test]
fn threads_push_and_take_everything_once() {
    const EACH: u64 = 500;
    let timer = Timer::new();
    let queue = DelayQueue::new(timer.clone());
    let taken = Mutex::new(Vec::new());
    let sum = AtomicU64::new(0);
    thread::scope(|scope| {
        for taker in 0..4 {
            let (queue, taken, sum, timer) = (&queue, &taken, &sum, &timer);
            scope.spawn(move || {
                let mut mine = Vec::new();
                loop {
                    let due = match taker {
                        0 => queue.take(),
                        1 => match queue.take_for(Duration::from_micros(50)) {
                            Err(TakeError::TimedOut) => continue,
                            taken => taken.ok(),
                        },
                        2 => block_on(queue.next()),
                        _ => {
                            // A waiter that gives up again and again.
                            let (count, mut next) = (Count::new(), queue.next());
                            match count.poll(&mut next) {
                                Poll::Ready(due) => due,
                                Poll::Pending => {
                                    drop(next);
                                    thread::yield_now();
                                    continue;
                                }
                            }
                        }
                    };
                    let Some(due) = due else { break };
                    assert!(timer.now() >= due.deadline, "never early");
                    sum.fetch_add(due.value, Ordering::Relaxed);
                    mine.push(due.value);
                }
                taken.lock().unwrap().extend(mine);
            });
        }
        let pushers: Vec<_> = (0..2)
            .map(|pusher| {
                let queue = &queue;
                scope.spawn(move || {
                    let mut cancelled = 0;
                    for n in 0..EACH {
                        let delay = Duration::from_micros(n * 7 % 3_000);
                        let key = queue.push(pusher * EACH + n, delay).unwrap();
                        if n % 10 == 0 && queue.cancel(key).is_some() {
                            cancelled += 1;
                        }
                    }
                    cancelled
                })
            })
            .collect();
        let cancelled: u64 = pushers
            .into_iter()
            .map(|pusher| pusher.join().unwrap())
            .sum();
        queue.close();
        let stats = queue.stats();
        assert_eq!((stats.pushed, stats.cancelled), (2 * EACH, cancelled));
    });
    let mut taken = taken.into_inner().unwrap();
    let stats = queue.stats();
    assert_eq!(taken.len() as u64, stats.taken);
    assert_eq!(stats.pending, 0);
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len() as u64, stats.taken, "nothing twice");
    assert_adds_up(&stats);
}

#[test]
fn threads_merge_and_lose_nothing() {
    const EACH: u64 = 300;
    let queue = KeyedDelayQueue::new(Timer::new());
    let total = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(due) = queue.take() {
                    let (_, sum) = due.value;
                    total.fetch_add(sum, Ordering::Relaxed);
                }
            });
        }
        let mergers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for n in 0..EACH {
                        let delay = Duration::from_micros(200);
                        queue
                            .merge(n % 3, 1, delay, |_, old, new| old + new)
                            .unwrap();
                    }
                })
            })
            .collect();
        for merger in mergers {
            merger.join().unwrap();
        }
        queue.close();
    });
    assert_eq!(total.into_inner(), 3 * EACH);
    assert_adds_up(&queue.stats());
}

// `merge` knew delays only: who had an instant had to read the clock for it.
#[test]
fn what_is_merged_under_an_instant_comes_at_the_sooner_one() {
    let mut host = manual(MS, layouts()[0]);
    let queue = KeyedDelayQueue::new(host.timer().clone());
    let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
    let add = |_: &&str, old: u32, new: u32| old + new;
    assert!(!queue.merge_at("a", 1, at(5), add).unwrap());
    assert!(queue.merge_at("a", 2, at(9), add).unwrap());
    assert_eq!(queue.deadline("a"), Some(at(5)));
    assert!(queue.merge_at("a", 4, at(3), add).unwrap());
    assert_eq!(queue.deadline("a"), Some(at(3)));
    host.advance(3 * SECOND);
    let due = queue.try_take().unwrap();
    assert_eq!((due.value, due.deadline), (("a", 7), at(3)));
    assert!(!queue.merge_at("a", 1, at(0), add).unwrap());
    assert!(queue.try_take().is_some(), "what has passed is due at once");
}

#[test]
fn who_waits_at_an_empty_queue_does_so_until_the_end_of_time() {
    let (sender, done) = mpsc::channel();
    thread::spawn(move || {
        let mut host = ManualHost::new();
        let queue = DelayQueue::<u32>::new(host.timer().clone());
        let mut next = queue.next();
        let count = Count::new();
        assert!(count.poll(&mut next).is_pending());
        host.advance(Duration::MAX);
        sender.send(()).unwrap();
    });
    assert!(
        done.recv_timeout(5 * SECOND).is_ok(),
        "the host turns in circles"
    );
}
