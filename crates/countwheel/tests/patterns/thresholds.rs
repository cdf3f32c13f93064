//! 2.10, Raft: `ThresholdPurgatory`, and futures that fail when their time is up.

use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use std::thread;

use countwheel::TimeoutError;
use countwheel::pattern::{ThresholdWait, Thresholds, ThresholdsClosed};

use crate::support::{Count, Journal, MS, Random, block_on, layouts, manual};

/// Polls once with a waker that writes `name` down.
fn wait(future: &mut ThresholdWait, journal: &Journal<u64>, name: u64) {
    struct Writes(Journal<u64>, u64);
    impl Wake for Writes {
        fn wake(self: Arc<Self>) {
            self.0.write(self.1);
        }
    }
    let waker = Waker::from(Arc::new(Writes(journal.clone(), name)));
    let polled = std::pin::Pin::new(future).poll(&mut std::task::Context::from_waker(&waker));
    assert_eq!(polled, Poll::Pending);
}

/// 2.10: completes all with a threshold up to the value, in order.
#[test]
fn all_up_to_the_value_go_on_in_order() {
    let thresholds = Thresholds::new();
    let journal = Journal::new();
    let mut waits: Vec<_> = [30, 10, 20, 10, 31, 0].map(|t| thresholds.wait(t)).into();
    for (name, future) in waits.iter_mut().enumerate() {
        wait(future, &journal, name as u64);
    }
    assert_eq!(thresholds.reach(30), 5);
    assert_eq!(journal.take(), [5, 1, 3, 2, 0]);
    assert_eq!((thresholds.waiting(), thresholds.reached()), (1, Some(30)));
    for (name, future) in waits.into_iter().enumerate() {
        if name != 4 {
            assert_eq!(block_on(future), Ok(30));
        }
    }
    assert_eq!(
        thresholds.waiting(),
        0,
        "the one that was dropped does not wait"
    );
}

#[test]
fn what_is_reached_stays_reached() {
    let thresholds = Thresholds::new();
    let mut zero = thresholds.wait(0);
    assert_eq!(
        Count::new().poll(&mut zero),
        Poll::Pending,
        "nothing is reached yet"
    );
    assert_eq!(thresholds.reach(5), 1);
    assert_eq!(thresholds.reach(5), 0);
    assert_eq!(thresholds.reach(4), 0);
    assert_eq!(thresholds.reached(), Some(5));
    assert_eq!(block_on(thresholds.wait(5)), Ok(5));
    assert_eq!(block_on(thresholds.wait(3)), Ok(5));
    let last = thresholds.wait(u64::MAX);
    assert_eq!(thresholds.reach(u64::MAX), 1);
    assert_eq!(block_on(last), Ok(u64::MAX));
}

#[test]
fn the_end_is_told_to_all_who_wait_for_more() {
    let thresholds = Thresholds::new();
    thresholds.reach(5);
    let waiting = thresholds.wait(6);
    assert_eq!(thresholds.close(), 1);
    assert_eq!(thresholds.close(), 0);
    assert_eq!(block_on(waiting), Err(ThresholdsClosed));
    assert_eq!(block_on(thresholds.wait(5)), Ok(5));
    assert_eq!(block_on(thresholds.wait(6)), Err(ThresholdsClosed));
    assert_eq!(thresholds.reach(9), 0, "nothing is reached any more");

    let thresholds = Thresholds::new();
    let other = thresholds.clone();
    let mut waiting = thresholds.wait(1);
    drop(thresholds);
    assert_eq!(Count::new().poll(&mut waiting), Poll::Pending);
    drop(other);
    assert_eq!(block_on(waiting), Err(ThresholdsClosed));
}

/// 2.10: a future that fails when its time is up, and whose timer goes when it does not.
#[test]
fn a_wait_may_have_a_limit() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let timer = host.timer().clone();
        let thresholds = Thresholds::new();
        let count = Count::new();
        let mut early = Box::pin(timer.timeout(10 * MS, thresholds.wait(1)));
        let mut late = Box::pin(timer.timeout(10 * MS, thresholds.wait(2)));
        assert!(count.poll(&mut early).is_pending() && count.poll(&mut late).is_pending());
        host.advance(9 * MS);
        thresholds.reach(1);
        assert!(matches!(count.poll(&mut early), Poll::Ready(Ok(Ok(1)))));
        drop(early);
        assert_eq!(timer.pending(), 1);
        host.advance(MS);
        assert!(matches!(
            count.poll(&mut late),
            Poll::Ready(Err(TimeoutError::Elapsed))
        ));
        drop(late);
        assert_eq!((thresholds.waiting(), count.woken()), (0, 2));
    }
}

/// Wakers are woken, and dropped, without the lock; one that panics disturbs nobody.
#[test]
fn a_waker_may_call_back_and_may_panic() {
    struct Calls(Thresholds, Mutex<Option<usize>>);
    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            *self.1.lock().unwrap() = Some(self.0.waiting());
            panic!("a waker");
        }
    }
    let thresholds = Thresholds::new();
    let calls = Arc::new(Calls(thresholds.clone(), Mutex::default()));
    let waker = Waker::from(Arc::clone(&calls));
    let mut first = thresholds.wait(1);
    let mut second = thresholds.wait(2);
    for future in [&mut first, &mut second] {
        let polled = std::pin::Pin::new(future).poll(&mut std::task::Context::from_waker(&waker));
        assert_eq!(polled, Poll::Pending);
    }
    assert_eq!(thresholds.reach(2), 2);
    assert_eq!(*calls.1.lock().unwrap(), Some(0));
    assert_eq!((block_on(first), block_on(second)), (Ok(2), Ok(2)));
}

/// Nobody who waits is missed, whatever comes first.
#[test]
fn threads_that_reach_and_wait() {
    for seed in 0..50 {
        let thresholds = Thresholds::new();
        let mut random = Random(seed);
        let wanted: Vec<u64> = (0..8).map(|_| random.below(40)).collect();
        thread::scope(|scope| {
            for &threshold in &wanted {
                let thresholds = &thresholds;
                scope.spawn(move || {
                    let reached = block_on(thresholds.wait(threshold)).unwrap();
                    assert!(reached >= threshold);
                });
            }
            for value in 0..40 {
                thresholds.reach(value);
            }
        });
        assert_eq!(thresholds.waiting(), 0);
    }
}
