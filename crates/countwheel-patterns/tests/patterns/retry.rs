//! Retry, row by row of what other failback stores do: sections 2.1, 2.3, 2.8 and 2.9 of the
//! behaviours, and the defects 29 and 36.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use countwheel::{Instant, Layout, ManualClock, ManualHost, Overload, Timer};
use countwheel_patterns::{
    Attempt, Cancelled, DEFAULT_MAX_PENDING, Failure, GiveUp, GivenUp, Jitter, KeyedRetry, OnPanic,
    PendingRetry, Retry, RetryBudget, RetryId, RetryPolicy, SubmitError, TimerExt, WeakRetry,
    WhenFull,
};

use super::retry_model::assert_adds_up;
use crate::support::{Count, Desk, HOUR, Journal, MS, Presence, SECOND, manual, ticks_of};

fn host() -> ManualHost {
    manual(MS, Layout::Hierarchical)
}

fn count(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).unwrap()
}

/// Seconds since the clock was made.
fn seconds(instant: Instant) -> f64 {
    instant.saturating_since(Instant::ZERO).as_secs_f64()
}

/// A store whose attempts all fail, and when they were made.
fn failing(host: &ManualHost, policy: RetryPolicy) -> (Retry<u32, &'static str>, Journal<f64>) {
    let times = Journal::new();
    let (journal, timer) = (times.clone(), host.timer().downgrade());
    let retry = Retry::new(host.timer().clone(), policy, move |_: &u32, _: &Attempt| {
        journal.write(seconds(timer.upgrade().unwrap().now()));
        Err(Failure::Retryable("down"))
    });
    (retry, times)
}

// ---- 2.1: Dubbo's failback cluster -------------------------------------------------------

/// 2.1: 1 + retries attempts, 5 s apart; ours to the tick, not 5 to 6 s.
#[test]
fn attempts_are_one_and_the_retries() {
    let mut host = host();
    let (retry, times) = failing(&host, RetryPolicy::dubbo_failback());
    retry.submit(1).unwrap();
    host.advance(HOUR);
    assert_eq!(times.take(), [0.0, 5.0, 10.0, 15.0]);
    let stats = retry.stats();
    assert_eq!((stats.given_up, stats.failed, stats.pending), (1, 4, 0));
    assert_adds_up(stats);
}

/// 2.1: retries = 0 is no retry; before 2022 it became 3.
#[test]
fn no_retries_are_no_retries() {
    let mut host = host();
    let (retry, times) = failing(&host, RetryPolicy::dubbo_failback().max_retries(0));
    retry.submit(1).unwrap();
    host.advance(HOUR);
    assert_eq!(times.take(), [0.0]);
    retry.submit_failed(2, "tried already").unwrap();
    host.advance(HOUR);
    assert!(times.take().is_empty());
    assert_eq!(retry.stats().given_up, 2);
}

/// 2.1 (Retry), defect 29: an async failure counted as done. Ours waits for the operation's end.
#[test]
fn failures_of_async_operations_are_retried() {
    let mut host = host();
    let timer = host.timer().clone();
    let numbers = Journal::new();
    let journal = numbers.clone();
    let retry = Retry::new_async(
        timer.clone(),
        RetryPolicy::dubbo_failback(),
        move |_: u32, attempt| {
            journal.write((attempt.number(), seconds(timer.now())));
            let answer = timer.sleep(2 * SECOND);
            async move {
                answer.await.unwrap();
                if attempt.number() < 3 {
                    Err(Failure::Retryable("late"))
                } else {
                    Ok(())
                }
            }
        },
    );
    retry.submit(7).unwrap();
    host.advance(SECOND);
    assert_eq!((retry.in_flight(), retry.stats().failed), (1, 0));
    host.advance(HOUR);
    // Each delay counts from the end of the attempt before.
    assert_eq!(numbers.take(), [(1, 0.0), (2, 7.0), (3, 14.0)]);
    assert_eq!((retry.stats().failed, retry.stats().succeeded), (2, 1));
    assert_adds_up(retry.stats());
}

/// 2.1 (Invoke), defect 29: the caller gets an empty result, and nobody the error.
#[test]
fn the_last_error_is_not_hidden() {
    let mut host = host();
    let letters = Journal::new();
    let journal = letters.clone();
    let retry = Retry::builder(
        host.timer().clone(),
        RetryPolicy::dubbo_failback().max_retries(1),
    )
    .dead_letter(move |letter| journal.write(letter))
    .build(|_: &u32, attempt| Err(Failure::Retryable(format!("error {}", attempt.number()))))
    .unwrap();
    let id = retry.submit(7).unwrap();
    host.advance(HOUR);
    let letter = letters.take().pop().unwrap();
    assert_eq!(
        (letter.key, letter.value, letter.attempts.made()),
        (id, 7, 2)
    );
    assert_eq!(
        (letter.error.as_deref(), letter.reason),
        (Some("error 2"), GiveUp::Attempts)
    );
}

/// 2.1 (Capacity), defect 29: the first add beyond the bound is dropped with a log line.
#[test]
fn what_finds_no_room_is_given_back_or_goes_to_the_dead_letters() {
    for policy in [
        WhenFull::Refuse,
        WhenFull::DropOldest,
        WhenFull::DropNewest,
        WhenFull::DeadLetter,
    ] {
        let mut host = host();
        let letters = Journal::new();
        let journal = letters.clone();
        let retry = Retry::builder(host.timer().clone(), RetryPolicy::dubbo_failback())
            .max_pending(count(2))
            .when_full(policy)
            .dead_letter(move |letter| {
                journal.write((letter.value, letter.attempts.made(), letter.reason));
            })
            .build(|_: &u32, _| Err(Failure::Retryable("down")))
            .unwrap();
        retry.submit(1).unwrap();
        host.advance(SECOND);
        retry.submit(2).unwrap();
        let third = retry.submit(3);
        let dead = letters.take();
        match policy {
            WhenFull::Refuse => {
                assert!(matches!(third, Err(SubmitError::Full(3))));
                assert_eq!((dead.len(), retry.stats().refused), (0, 1));
            }
            WhenFull::DropOldest => assert_eq!(dead, [(1, 1, GiveUp::Full)]),
            _ => assert_eq!(dead, [(3, 0, GiveUp::Full)]),
        }
        assert_eq!(retry.len(), 2);
        assert_adds_up(retry.stats());
    }
}

/// Systems of before keep any number of failed operations. Here that takes a word.
#[test]
fn a_store_has_a_limit_unless_it_is_told_unbounded() {
    let handler = |_: &usize, _: &Attempt| Ok::<_, Failure<()>>(());
    let (host, policy) = (host(), RetryPolicy::dubbo_registry);
    let timer = || host.timer().clone();
    let fill = |retry: &Retry<usize, ()>| {
        let fits = (0..=DEFAULT_MAX_PENDING).take_while(|&value| retry.submit(value).is_ok());
        fits.count()
    };
    assert_eq!(
        fill(&Retry::new(timer(), policy(), handler)),
        DEFAULT_MAX_PENDING
    );
    assert_eq!(fill(&Retry::dubbo_failback(timer(), handler)), 100);
    let keyed = KeyedRetry::new(timer(), policy(), |_: &usize, _: &(), _| {
        Ok::<_, Failure<()>>(())
    });
    for key in 0..DEFAULT_MAX_PENDING {
        keyed.submit(key, ()).unwrap();
    }
    let refused = keyed.submit(DEFAULT_MAX_PENDING, ());
    assert!(matches!(
        refused,
        Err(SubmitError::Full((DEFAULT_MAX_PENDING, ())))
    ));
    assert!(
        keyed.submit(0, ()).is_ok(),
        "a key that is there needs no room"
    );
    let unbounded = Retry::builder(timer(), policy()).unbounded();
    let unbounded = unbounded.build(handler).unwrap();
    assert_eq!(fill(&unbounded), DEFAULT_MAX_PENDING + 1);
}

/// 2.1 (Capacity): a re-put beyond the bound was swallowed. Ours keeps its place.
#[test]
fn a_retry_is_never_lost_for_want_of_room() {
    let mut host = host();
    let full = Retry::builder(host.timer().clone(), RetryPolicy::dubbo_failback())
        .max_pending(count(3))
        .build(|_: &u32, _| Err(Failure::Retryable("down")))
        .unwrap();
    for value in 0..3 {
        full.submit(value).unwrap();
    }
    for _ in 0..3 {
        host.advance(5 * SECOND - MS);
        assert_eq!((full.len(), full.stats().dropped), (3, 0));
        assert!(full.submit(9).is_err());
        host.advance(MS);
    }
    assert_eq!((full.len(), full.stats().given_up), (0, 3));
}

/// If all are in flight, there is no oldest to drop.
#[test]
fn what_is_in_flight_makes_no_room() {
    let mut host = host();
    let retry = Retry::<u32, ()>::builder(host.timer().clone(), RetryPolicy::dubbo_failback())
        .max_pending(count(1))
        .when_full(WhenFull::DropOldest)
        .build_async(|_, attempt: Attempt| async move {
            attempt.signal().stopped().await;
            Ok(())
        })
        .unwrap();
    retry.submit(1).unwrap();
    host.run_due();
    assert!(matches!(retry.submit(2), Err(SubmitError::Full(2))));
    assert_adds_up(retry.stats());
}

/// 2.1 (Timer), defect 29: a timer per invoker. Ours has one entry for all, in any timer.
#[test]
fn a_store_costs_its_timer_one_entry() {
    let mut host = ticks_of(MS, Layout::Hierarchical)
        .max_pending(1)
        .manual(ManualClock::new());
    let (retry, times) = failing(&host, RetryPolicy::dubbo_registry());
    for value in 0..1_000 {
        retry.submit(value).unwrap();
    }
    host.advance(SECOND);
    assert_eq!((retry.len(), host.timer().pending()), (1_000, 1));
    host.advance(10 * SECOND);
    assert_eq!(
        times.take().len(),
        3_000,
        "and is not held up by the timer's bound"
    );
}

/// 2.1 (Shutdown): pending retries are dropped, not reported. Ours come back, and go on elsewhere.
#[test]
fn a_stop_gives_back_what_waits_and_another_store_goes_on() {
    let mut host = host();
    let (old, _) = failing(&host, RetryPolicy::dubbo_failback());
    old.submit(1).unwrap();
    host.advance(7 * SECOND);
    old.submit(2).unwrap();
    let stopped = old.stop();
    assert_eq!(stopped.in_flight, 0);
    let told = |pending: &PendingRetry<RetryId, u32, _>| {
        (
            pending.value,
            pending.attempts.made(),
            pending.error,
            seconds(pending.next_at),
        )
    };
    let pending: Vec<_> = stopped.pending.iter().map(told).collect();
    assert_eq!(pending, [(2, 0, None, 7.0), (1, 2, Some("down"), 10.0)]);
    assert!(matches!(old.submit(3), Err(SubmitError::Closed(3))));
    assert!(old.stop().pending.is_empty());
    assert_adds_up(old.stats());

    let (new, times) = failing(&host, RetryPolicy::dubbo_failback());
    host.advance(SECOND);
    for pending in stopped.pending {
        new.resume(pending).unwrap();
    }
    host.advance(HOUR);
    // The second is overdue by a second; the first goes on at 10 with its third attempt.
    assert_eq!(times.take(), [8.0, 10.0, 13.0, 15.0, 18.0, 23.0]);
    assert_eq!(host.timer().stats().pending, 0);
    new.stop();
    let back = new.resume(pending_of(&host)).unwrap_err();
    assert_eq!(
        back.into_inner().value,
        9,
        "a refused one comes back as well"
    );
}

fn pending_of(host: &ManualHost) -> PendingRetry<RetryId, u32, &'static str> {
    let (store, _) = failing(host, RetryPolicy::dubbo_failback());
    store.submit(9).unwrap();
    store.stop().pending.pop().unwrap()
}

/// An attempt in flight at the stop is told so; if it fails, the next stop gives it back.
#[test]
fn a_stop_loses_no_attempt_in_flight() {
    let mut host = host();
    let outcome = Arc::new(Mutex::new(None::<Result<(), Failure<&str>>>));
    let (told, signals) = (Arc::clone(&outcome), Journal::new());
    let journal = signals.clone();
    let retry = Retry::new_async(
        host.timer().clone(),
        RetryPolicy::dubbo_failback(),
        move |_: u32, attempt: Attempt| {
            journal.write(attempt.signal().clone());
            let told = Arc::clone(&told);
            async move {
                attempt.signal().stopped().await;
                told.lock().unwrap().take().unwrap()
            }
        },
    );
    for (result, is_back) in [
        (Ok(()), false),
        (Err(Failure::Retryable("again")), true),
        (Err(Failure::Permanent("never")), false),
    ] {
        let retry = if retry.is_stopped() { break } else { &retry };
        *outcome.lock().unwrap() = Some(result);
        retry.submit(1).unwrap();
        host.run_due();
        let signal = signals.take().pop().unwrap();
        assert!(!signal.is_stopped());
        let stopped = retry.stop();
        assert_eq!((stopped.pending.len(), stopped.in_flight), (0, 1));
        assert!(signal.is_stopped());
        host.run_due();
        assert_eq!(retry.in_flight(), 0);
        assert_eq!(retry.stop().pending.len(), usize::from(is_back));
        assert_adds_up(retry.stats());
    }
    // The same for a failure.
    let journal = signals.clone();
    let retry = Retry::new_async(
        host.timer().clone(),
        RetryPolicy::dubbo_failback(),
        move |_: u32, attempt: Attempt| {
            journal.write(attempt.signal().clone());
            async move {
                attempt.signal().stopped().await;
                Err(Failure::Retryable("told to stop"))
            }
        },
    );
    retry.submit(1).unwrap();
    host.run_due();
    assert_eq!(retry.stop().in_flight, 1);
    host.run_due();
    let back = retry.stop().pending.pop().unwrap();
    assert_eq!(
        (back.attempts.made(), back.error),
        (1, Some("told to stop"))
    );
    assert_eq!(seconds(back.next_at), 5.0);
    assert_adds_up(retry.stats());
}

/// A timer that stops first takes nothing with it.
#[test]
fn what_waits_survives_its_timer() {
    let mut host = host();
    let (retry, _) = failing(&host, RetryPolicy::dubbo_failback());
    retry.submit(1).unwrap();
    host.advance(SECOND);
    retry.submit(2).unwrap();
    host.timer().stop();
    assert!(matches!(retry.submit(3), Err(SubmitError::Closed(3))));
    host.advance(HOUR);
    let values: Vec<_> = retry
        .stop()
        .pending
        .iter()
        .map(|pending| pending.value)
        .collect();
    assert_eq!(values, [2, 1]);
    assert_adds_up(retry.stats());
}

// ---- 2.8, 2.9, defect 36 -----------------------------------------------------------------

/// 2.8 (Request retry), defect 36: only one type of exception is retried, others end the chain.
#[test]
fn whether_a_failure_is_retried_is_said_by_the_operation() {
    let mut host = host();
    let times = Journal::new();
    let (journal, timer) = (times.clone(), host.timer().clone());
    let policy = RetryPolicy::dubbo_failback().retry_after_cap(60 * SECOND);
    let retry = Retry::new(
        timer.clone(),
        policy,
        move |value: &u32, attempt: &Attempt| {
            journal.write((*value, attempt.number(), seconds(timer.now())));
            match (value, attempt.number()) {
                (_, 2) => Ok(()),
                (1, _) => Err("any error")?,
                (2, _) => Err(Failure::Permanent("not success")),
                (3, _) => Err(Failure::RetryAfter("busy", SECOND)),
                _ => Err(Failure::RetryAfter("very busy", HOUR)),
            }
        },
    );
    for value in 1..5 {
        retry.submit(value).unwrap();
    }
    host.run_due();
    times.take();
    host.advance(HOUR);
    assert_eq!(times.take(), [(3, 2, 1.0), (1, 2, 5.0), (4, 2, 60.0)]);
    assert_eq!((retry.stats().succeeded, retry.stats().given_up), (3, 1));
}

/// 2.8 (Recycle timer), defect 36: if the pool rejects, the cycle ends.
#[test]
fn an_executor_without_room_ends_nothing() {
    let desk = Desk::with_room(0);
    let lost = Arc::new(AtomicUsize::new(0));
    let losing = Arc::clone(&lost);
    let mut host = Timer::builder()
        .executor(Arc::clone(&desk))
        .overload(Overload::hand_back(move |task| {
            losing.fetch_add(1, Ordering::SeqCst);
            drop(task);
        }))
        .manual(ManualClock::new());
    let (retry, times) = failing(&host, RetryPolicy::dubbo_failback());
    retry.submit(1).unwrap();
    host.advance(SECOND);
    assert_eq!(lost.load(Ordering::SeqCst), 11, "asked again each 100 ms");
    assert_eq!((retry.len(), retry.stats().attempts), (1, 0));
    desk.set_room(100);
    host.advance(100 * MS);
    desk.run_all();
    assert_eq!(times.take().len(), 1);
    assert_eq!(retry.stats().failed, 1);
    assert_adds_up(retry.stats());
}

/// 2.9 (Cleaner): 1 s, 5 s, 1 min, 5 min, 1 h, then report and give up.
#[test]
fn the_cleaner_gives_up_after_its_list() {
    let mut host = host();
    let (retry, times) = failing(&host, RetryPolicy::go_zero_cleaner());
    retry.submit_failed(1, "redis is down").unwrap();
    host.advance(24 * HOUR);
    assert_eq!(times.take(), [1.0, 6.0, 66.0, 366.0, 3966.0]);
    assert_eq!(retry.stats().given_up, 1);
}

/// 2.9 (Cleaner), defect 18: at shutdown all run at once, and block each other. Ours come back.
#[test]
fn any_method_may_be_called_from_the_handlers() {
    let mut host = host();
    let own = Arc::new(OnceLock::<WeakRetry<u32, ()>>::new());
    let (store, letters) = (Arc::clone(&own), Arc::clone(&own));
    let retry = Retry::builder(host.timer().clone(), RetryPolicy::dubbo_failback())
        .dead_letter(move |letter| {
            let store = letters.get().unwrap().upgrade().unwrap();
            store.submit(letter.value + 10).unwrap();
            assert!(!store.is_stopped());
        })
        .build(move |&value: &u32, _: &Attempt| {
            let store = store.get().unwrap().upgrade().unwrap();
            match value {
                1 => {
                    let id = store.submit(2).unwrap();
                    assert_eq!(store.cancel(id), Cancelled::Pending(2));
                    Err(Failure::Permanent(()))
                }
                _ => {
                    assert_eq!(store.stop().in_flight, 1);
                    Ok(())
                }
            }
        })
        .unwrap();
    own.set(retry.downgrade()).unwrap();
    retry.submit(1).unwrap();
    host.advance(SECOND);
    let stats = retry.stats();
    assert_eq!(
        (stats.succeeded, stats.given_up, stats.cancelled),
        (1, 1, 1)
    );
    assert_eq!(host.timer().stats().panicked, 0);
    assert_adds_up(stats);
}

/// 2.3 (Metadata report): after the retries have ended once, later failures are never retried.
#[test]
fn a_store_that_gave_up_once_goes_on() {
    let mut host = host();
    let (retry, times) = failing(&host, RetryPolicy::dubbo_failback());
    for _ in 0..3 {
        let id = retry.submit(1).unwrap();
        host.advance(HOUR);
        assert_eq!(times.take().len(), 4);
        assert_eq!(retry.cancel(id), Cancelled::Absent);
    }
}

// ---- what is ours ------------------------------------------------------------------------

#[test]
fn a_panic_is_a_failed_attempt_unless_told_otherwise() {
    for (policy, attempts, reason) in [
        (OnPanic::Retry, 4, GiveUp::Attempts),
        (OnPanic::GiveUp, 2, GiveUp::Panic),
    ] {
        let mut host = host();
        let letters = Journal::new();
        let journal = letters.clone();
        let retry = Retry::builder(host.timer().clone(), RetryPolicy::dubbo_failback())
            .on_panic(policy)
            .dead_letter(move |letter| {
                journal.write((letter.attempts.made(), letter.error, letter.reason));
                resume_unwind(Box::new("a panic of this one is nobody's business"));
            })
            .build(|_: &u32, attempt| match attempt.number() {
                1 => Err(Failure::Retryable("first")),
                _ => resume_unwind(Box::new("a bug")),
            })
            .unwrap();
        retry.submit(1).unwrap();
        host.advance(HOUR);
        assert_eq!(letters.take(), [(attempts, Some("first"), reason)]);
        assert_eq!(retry.stats().panicked, u64::from(attempts) - 1);
        assert_adds_up(retry.stats());
    }
}

/// A future whose waker is gone would never end: the attempt fails instead.
#[test]
fn an_attempt_that_nobody_can_wake_is_a_failed_one() {
    let mut host = host();
    let retry = Retry::<u32, ()>::new_async(
        host.timer().clone(),
        RetryPolicy::dubbo_failback(),
        |_, _| std::future::pending(),
    );
    retry.submit(1).unwrap();
    host.run_due();
    assert_eq!((retry.len(), retry.in_flight()), (1, 0));
    host.advance(HOUR);
    let stats = retry.stats();
    assert_eq!((stats.interrupted, stats.given_up), (4, 1));
    assert_adds_up(stats);
}

#[test]
fn attempts_in_flight_are_bounded_and_start_in_the_order_in_which_they_came_due() {
    let mut host = host();
    let (started, timer) = (Journal::new(), host.timer().clone());
    let journal = started.clone();
    let retry = Retry::<u32, ()>::builder(timer.clone(), RetryPolicy::dubbo_failback())
        .max_in_flight(count(2))
        .build_async(move |value, _| {
            journal.write((value, seconds(timer.now())));
            let answer = timer.sleep(SECOND);
            async move { answer.await.map_err(|_| Failure::Retryable(())) }
        })
        .unwrap();
    let ids: Vec<_> = (0..6).map(|value| retry.submit(value).unwrap()).collect();
    assert_eq!(
        retry.cancel(ids[2]),
        Cancelled::Pending(2),
        "it waited for its turn"
    );
    host.advance(10 * SECOND);
    assert_eq!(
        started.take(),
        [(0, 0.0), (1, 0.0), (3, 1.0), (4, 1.0), (5, 2.0)]
    );
    assert_eq!(retry.stats().succeeded, 5);
}

#[test]
fn a_budget_bounds_the_retries_of_many() {
    let mut host = host();
    let budget = RetryBudget::new(0.1, 0.0, 100 * SECOND).unwrap();
    let store = |budget: RetryBudget| {
        Retry::builder(host.timer().clone(), RetryPolicy::dubbo_failback())
            .budget(budget)
            .build(|_: &u32, _| Err(Failure::Retryable("down")))
            .unwrap()
    };
    let stores = [store(budget.clone()), store(budget)];
    for value in 0..100 {
        for store in &stores {
            store.submit(value).unwrap();
        }
    }
    host.advance(HOUR);
    let attempts: u64 = stores.iter().map(|store| store.stats().attempts).sum();
    assert_eq!(attempts, 200 + 20, "instead of 800");
    for store in &stores {
        assert_eq!(store.stats().given_up, 100);
    }
}

#[test]
fn the_same_seed_makes_the_same_times() {
    let run = |seed| {
        let mut host = host();
        let times = Journal::new();
        let (journal, timer) = (times.clone(), host.timer().clone());
        let policy = RetryPolicy::eureka().jitter(Jitter::Full).max_retries(8);
        let retry = Retry::builder(timer.clone(), policy.clone())
            .seed(seed)
            .build(move |_: &u32, attempt: &Attempt| {
                journal.write((timer.now(), attempt.attempts().seed()));
                Err(Failure::Retryable(()))
            })
            .unwrap();
        retry.submit(1).unwrap();
        host.advance(HOUR);
        let times = times.take();
        // The preview knows them, but for the rounding up to a millisecond each.
        let preview = policy.preview_seeded(times[0].1);
        for (at, (time, _)) in preview.zip(&times[1..]) {
            let at = Instant::ZERO + at;
            assert!(*time >= at && time.saturating_since(at) < 10 * MS);
        }
        times
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// Dropped, cancelled, succeeded, given up: whatever ends a value may use the store.
#[test]
fn no_destructor_runs_under_the_lock() {
    struct Nosy(Arc<OnceLock<WeakRetry<Nosy, Nosy>>>);
    impl Nosy {
        fn look(&self) {
            if let Some(store) = self.0.get().and_then(WeakRetry::upgrade) {
                assert!(store.stats().submitted > 0);
            }
        }
    }
    impl Drop for Nosy {
        fn drop(&mut self) {
            self.look();
        }
    }
    let mut host = host();
    let own = Arc::new(OnceLock::new());
    let error = Arc::clone(&own);
    let retry = Retry::builder(host.timer().clone(), RetryPolicy::dubbo_failback())
        .max_pending(count(3))
        .when_full(WhenFull::DropOldest)
        .build(move |_: &Nosy, attempt: &Attempt| match attempt.number() {
            3 => Ok(()),
            _ => Err(Failure::Retryable(Nosy(Arc::clone(&error)))),
        })
        .unwrap();
    own.set(retry.downgrade()).ok().unwrap();
    for _ in 0..5 {
        let id = retry.submit(Nosy(Arc::clone(&own))).unwrap();
        host.advance(SECOND);
        if retry.stats().submitted == 2 {
            drop(retry.cancel(id));
        }
    }
    host.advance(7 * SECOND);
    drop(retry.stop());
    assert_eq!(host.timer().stats().panicked, 0);
    assert_adds_up(retry.stats());
}

#[test]
fn dropping_the_last_handle_drops_what_waits_to_the_dead_letters() {
    let mut host = host();
    let (presence, letters) = (Presence::default(), Journal::new());
    let journal = letters.clone();
    let retry = Retry::builder(host.timer().clone(), RetryPolicy::dubbo_failback())
        .dead_letter(move |letter| {
            let (value, _): (u32, Presence) = letter.value;
            journal.write((value, letter.reason));
        })
        .build_async(|(value, _), attempt: Attempt| async move {
            if value == 1 {
                attempt.signal().stopped().await;
            }
            Err(Failure::Retryable(()))
        })
        .unwrap();
    retry.submit((1, presence.clone())).unwrap();
    retry.submit((2, presence.clone())).unwrap();
    host.run_due();
    assert_eq!((retry.stats().pending, retry.in_flight()), (1, 1));
    drop(retry.clone());
    assert_eq!(letters.take(), []);
    drop(retry);
    assert_eq!(letters.take(), [(2, GiveUp::Dropped)]);
    host.run_due();
    assert_eq!(
        letters.take(),
        [(1, GiveUp::Dropped)],
        "the attempt was told, and failed"
    );
    assert!(presence.is_over(), "and the timer holds nothing of it");
    host.advance(HOUR);
}

/// An attempt on its way to the executor keeps nothing alive.
#[test]
fn a_dropped_store_leaves_nothing_in_its_timer() {
    for is_async in [false, true] {
        let mut host = host();
        let presence = Presence::default();
        let held = presence.clone();
        let retry = if is_async {
            Retry::new_async(
                host.timer().clone(),
                RetryPolicy::dubbo_failback(),
                move |_: u32, _| {
                    let held = held.clone();
                    async move {
                        drop(held);
                        Err(Failure::Retryable(()))
                    }
                },
            )
        } else {
            Retry::new(
                host.timer().clone(),
                RetryPolicy::dubbo_failback(),
                move |_: &u32, _: &Attempt| {
                    let _ = &held;
                    Err(Failure::Retryable(()))
                },
            )
        };
        retry.submit(1).unwrap();
        host.run_due();
        retry.submit(2).unwrap();
        assert_eq!(
            host.timer().pending(),
            2,
            "the bell, and the way to the executor"
        );
        drop(retry);
        assert!(presence.is_over());
        assert_eq!(host.timer().pending(), 1);
        host.run_due();
        assert_eq!(host.timer().pending(), 0);
    }
}

/// Attempts in flight hear of it when their timer stops while others wait.
#[test]
fn a_timer_that_stops_tells_attempts_to_stop() {
    let mut host = host();
    let signals = Journal::new();
    let journal = signals.clone();
    let retry = Retry::new_async(
        host.timer().clone(),
        RetryPolicy::dubbo_failback(),
        move |_: u32, attempt: Attempt| {
            journal.write(attempt.signal().clone());
            async move {
                attempt.signal().stopped().await;
                Ok::<_, Failure<()>>(())
            }
        },
    );
    retry.submit(1).unwrap();
    retry.submit_failed(2, ()).unwrap();
    host.run_due();
    let signal = signals.take().pop().unwrap();
    host.timer().stop();
    assert!(signal.is_stopped());
    // Nobody polls the future any more: it is dropped, and its operation comes back.
    assert_eq!((retry.in_flight(), retry.stop().pending.len()), (0, 2));
    assert_adds_up(retry.stats());
}

#[test]
fn a_store_keeps_neither_itself_nor_its_timer_alive() {
    let presence = Presence::default();
    let timer = Timer::new();
    let weak = timer.downgrade();
    let held = presence.clone();
    let retry = Retry::new(
        timer,
        RetryPolicy::dubbo_failback(),
        move |_: &u32, _: &Attempt| {
            let _ = &held;
            Err(Failure::Retryable(()))
        },
    );
    retry.submit_failed(1, ()).unwrap();
    retry
        .submit_failed(2, Failure::RetryAfter((), HOUR))
        .unwrap();
    drop(retry);
    assert!(presence.is_over());
    assert!(weak.upgrade().is_none());
}

// ---- the loop ----------------------------------------------------------------------------

#[test]
fn a_loop_awaits_its_value() {
    let mut host = host();
    let timer = host.timer().clone();
    let waker = Count::new();
    let mut numbers = Vec::new();
    let mut fetch = Box::pin(timer.retry(RetryPolicy::dubbo_failback(), |attempt| {
        numbers.push(attempt);
        std::future::ready(match attempt {
            1 => Err(Failure::Retryable("down")),
            2 => Err(Failure::RetryAfter("busy", SECOND)),
            _ => Ok("page"),
        })
    }));
    assert_eq!(
        host.timer().pending(),
        0,
        "nothing happens before the first poll"
    );
    assert!(waker.poll(&mut fetch).is_pending());
    host.advance(5 * SECOND - MS);
    assert_eq!(waker.woken(), 0);
    host.advance(MS);
    assert_eq!(waker.woken(), 1);
    assert!(waker.poll(&mut fetch).is_pending());
    host.advance(SECOND);
    assert_eq!(waker.poll(&mut fetch), Poll::Ready(Ok("page")));
    drop(fetch);
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn a_loop_gives_up_for_the_reasons_there_are() {
    let mut host = host();
    let timer = host.timer().clone();
    let waker = Count::new();
    let reason = |end: Poll<Result<(), GivenUp<&'static str>>>| match end {
        Poll::Ready(Err(given_up)) => (given_up.error, given_up.attempts, given_up.reason),
        other => panic!("{other:?}"),
    };
    let down = |_| std::future::ready(Err::<(), _>(Failure::Retryable("down")));
    let never = |_| std::future::ready(Err::<(), _>(Failure::Permanent("never")));
    let policy = RetryPolicy::dubbo_failback();

    let end = waker.poll(&mut Box::pin(timer.retry(policy.clone(), never)));
    assert_eq!(reason(end), ("never", 1, GiveUp::Permanent));
    let end = waker.poll(&mut Box::pin(
        timer.retry(policy.clone().max_age(SECOND), down),
    ));
    assert_eq!(reason(end), ("down", 1, GiveUp::MaxAge));
    let budget = RetryBudget::new(0.0, 0.0, SECOND).unwrap();
    let end = waker.poll(&mut Box::pin(
        timer.retry(policy.clone(), down).budget(budget),
    ));
    assert_eq!(reason(end), ("down", 1, GiveUp::Budget));

    let mut last = Box::pin(timer.retry(policy.clone(), down));
    for _ in 0..3 {
        assert!(waker.poll(&mut last).is_pending());
        host.advance(5 * SECOND);
    }
    assert_eq!(reason(waker.poll(&mut last)), ("down", 4, GiveUp::Attempts));

    let mut dropped = Box::pin(timer.retry(policy.clone(), down));
    assert!(waker.poll(&mut dropped).is_pending());
    assert_eq!(timer.pending(), 1);
    drop(dropped);
    assert_eq!(timer.pending(), 0, "dropping cancels");

    let mut stopped = Box::pin(timer.retry(policy.clone(), down));
    assert!(waker.poll(&mut stopped).is_pending());
    timer.stop();
    assert_eq!(reason(waker.poll(&mut stopped)), ("down", 1, GiveUp::Timer));
    let error = timer.retry_blocking(policy, |_| Err::<(), _>(Failure::Retryable("down")));
    let error = error.unwrap_err();
    assert_eq!((error.attempts, error.reason), (1, GiveUp::Timer));
}

// ---- threads -----------------------------------------------------------------------------

/// A function in flight on another thread is told to stop, and what it leaves comes back.
#[test]
fn a_blocking_attempt_is_told_to_stop() {
    let timer = Timer::new();
    let (started, start) = mpsc::channel();
    let retry = Retry::new(
        timer.clone(),
        RetryPolicy::dubbo_failback(),
        move |_: &u32, attempt: &Attempt| {
            started.send(()).unwrap();
            assert!(
                attempt.signal().wait_for(60 * SECOND),
                "it is told long before"
            );
            Err(Failure::Retryable("told to stop"))
        },
    );
    retry.submit(1).unwrap();
    start.recv().unwrap();
    assert_eq!(retry.stop().in_flight, 1);
    assert!(timer.stop().is_complete());
    let back = retry.stop().pending.pop().unwrap();
    assert_eq!((back.value, back.error), (1, Some("told to stop")));
    assert_adds_up(retry.stats());
}

/// Submitters, a canceller and a stop at any moment, on real threads: the accounts are exact.
#[test]
fn the_accounts_are_exact_however_threads_meet() {
    for round in 0..20_u64 {
        let timer = Timer::new();
        let dead = Arc::new(AtomicUsize::new(0));
        let letters = Arc::clone(&dead);
        let policy = RetryPolicy::fixed(Duration::from_micros(300)).max_retries(2);
        let retry = Retry::builder(timer.clone(), policy)
            .max_pending(count(64))
            .when_full(WhenFull::DropOldest)
            .max_in_flight(count(2))
            .dead_letter(move |_| {
                letters.fetch_add(1, Ordering::SeqCst);
            })
            .build(|value: &u64, attempt: &Attempt| {
                match (value + u64::from(attempt.number())) % 3 {
                    0 => Ok(()),
                    _ => Err(Failure::Retryable(())),
                }
            })
            .unwrap();
        let back = thread::scope(|scope| {
            for thread in 0..3 {
                let retry = &retry;
                scope.spawn(move || {
                    for value in 0..100 {
                        let id = retry.submit(value);
                        if let (0, Ok(id)) = (value % (3 + thread), id) {
                            let _ = retry.cancel(id);
                        }
                    }
                });
            }
            if round % 2 == 0 {
                timer.stop();
            }
            retry.stop().pending.len()
        });
        timer.stop();
        let back = back + retry.stop().pending.len();
        let stats = retry.stats();
        assert_adds_up(stats);
        assert_eq!((stats.pending, stats.in_flight, stats.fencing), (0, 0, 0));
        assert_eq!(stats.returned, back as u64);
        assert_eq!(
            stats.given_up + stats.dropped,
            dead.load(Ordering::SeqCst) as u64
        );
    }
}
