//! Keyed retries, row by row of what registries do: section 2.2 of the behaviours, KEY-12 and
//! the defect 30.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use countwheel::{Instant, Layout, ManualHost, Timer};
use countwheel_patterns::{
    Attempt, Cancelled, Failure, KeyedRetry, RetryBudget, RetryPolicy, RetryStopped, SubmitError,
};

use super::retry_model::assert_adds_up;
use crate::support::{HOUR, Journal, MS, SECOND, manual};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Want {
    Register,
    Unregister,
}
use Want::{Register, Unregister};

type Registry = KeyedRetry<&'static str, Want, &'static str>;
type Sent = (&'static str, Want, u32, f64);

const URL: &str = "dubbo://10.0.0.1/echo";

fn host() -> ManualHost {
    manual(MS, Layout::Hierarchical)
}

/// A registry that answers with `up`, and what it was sent.
fn registry(
    host: &ManualHost,
    policy: RetryPolicy,
    up: impl Fn(Want, u32) -> bool + Send + Sync + 'static,
) -> (Registry, Journal<Sent>) {
    let sent = Journal::new();
    let (journal, timer) = (sent.clone(), host.timer().clone());
    let handler = move |url: &&'static str, want: &Want, attempt: &Attempt| {
        let now = timer.now().saturating_since(Instant::ZERO).as_secs_f64();
        journal.write((*url, *want, attempt.number(), now));
        if up(*want, attempt.number()) {
            Ok(())
        } else {
            Err(Failure::Retryable("down"))
        }
    };
    (Registry::new(host.timer().clone(), policy, handler), sent)
}

/// 2.2 (Timer): first delay = period, really 5 to 10 s. (AbstractRetryTask): for ever.
#[test]
fn a_registration_is_retried_each_period_for_ever() {
    let mut host = host();
    let (registry, sent) = registry(&host, RetryPolicy::dubbo_registry(), |_, number| {
        number > 1000
    });
    registry.submit_failed(URL, Register, "refused").unwrap();
    host.advance(6000 * SECOND);
    let sent = sent.take();
    assert_eq!(sent[0], (URL, Register, 2, 5.0), "exactly a period later");
    assert_eq!(sent.len(), 1000);
    assert!(registry.is_empty());
    assert_adds_up(registry.stats());
}

/// 2.2 (Keys): putIfAbsent, a second failure is a no-op.
#[test]
fn a_second_failure_changes_nothing() {
    let mut host = host();
    let (registry, sent) = registry(&host, RetryPolicy::dubbo_registry(), |_, _| true);
    registry
        .submit_failed_if_absent(URL, Register, "refused")
        .unwrap();
    host.advance(3 * SECOND);
    let second = registry.submit_failed_if_absent(URL, Register, "refused");
    assert!(matches!(second, Err(SubmitError::Present((URL, Register)))));
    host.advance(2 * SECOND);
    assert_eq!(sent.take(), [(URL, Register, 2, 5.0)]);
    assert_eq!(
        registry
            .submit_if_absent(URL, Register)
            .map_err(SubmitError::into_inner),
        Ok(())
    );
}

/// 2.2 (register/unregister): drop and cancel both tasks of the URL, then try once.
#[test]
fn a_newer_operation_cancels_the_older() {
    let mut host = host();
    let up = |want, _| want == Unregister;
    let (registry, sent) = registry(&host, RetryPolicy::dubbo_registry(), up);
    registry.submit(URL, Register).unwrap();
    host.advance(7 * SECOND);
    assert_eq!(registry.submit(URL, Unregister).unwrap(), Some(Register));
    host.advance(HOUR);
    let expected = [
        (URL, Register, 1, 0.0),
        (URL, Register, 2, 5.0),
        (URL, Unregister, 1, 7.0),
    ];
    assert_eq!(sent.take(), expected);
    assert!(!registry.contains(&URL));
    assert_adds_up(registry.stats());
}

/// Attempts that end when the test says so, and what has happened so far.
struct Slow {
    host: ManualHost,
    registry: Registry,
    events: Journal<String>,
    answers: mpsc::Sender<Result<(), Failure<&'static str>>>,
}

fn slow() -> Slow {
    let host = host();
    let events = Journal::new();
    let (answers, answered) = mpsc::channel();
    let answered = Arc::new(Mutex::new(answered));
    let (journal, timer) = (events.clone(), host.timer().clone());
    let handler = move |_, want, attempt: Attempt| {
        let (journal, timer, answered) = (journal.clone(), timer.clone(), Arc::clone(&answered));
        async move {
            journal.write(format!("{want:?} {} starts", attempt.number()));
            loop {
                timer.sleep(SECOND).await.unwrap();
                let answer = answered.lock().unwrap().try_recv();
                if let Ok(answer) = answer {
                    let told = if attempt.signal().is_stopped() {
                        ", told to stop"
                    } else {
                        ""
                    };
                    journal.write(format!("{want:?} {} ends{told}", attempt.number()));
                    return answer;
                }
            }
        }
    };
    let registry =
        Registry::new_async(host.timer().clone(), RetryPolicy::dubbo_registry(), handler);
    Slow {
        host,
        registry,
        events,
        answers,
    }
}

/// Defect 30: cancel does not wait for a retry in flight, so a registration can land after the
/// unregistration. Ours waits, and the result of the older changes nothing, whatever it is.
#[test]
fn an_attempt_in_flight_fences_the_newer_operation() {
    for old in [
        Ok(()),
        Err(Failure::Retryable("down")),
        Err(Failure::Permanent("never")),
    ] {
        let Slow {
            mut host,
            registry,
            events,
            answers,
        } = slow();
        registry.submit(URL, Register).unwrap();
        host.advance(3 * SECOND);
        assert!(registry.is_in_flight(&URL));
        assert_eq!(
            registry.submit(URL, Unregister).unwrap(),
            None,
            "it does not wait"
        );
        assert!(!registry.is_in_flight(&URL) && registry.contains(&URL));
        let stats = registry.stats();
        assert_eq!((stats.pending, stats.fencing, stats.superseded), (1, 1, 1));
        host.advance(HOUR);
        assert_eq!(
            events.take(),
            ["Register 1 starts"],
            "however long that takes"
        );

        answers.send(old).unwrap();
        host.advance(SECOND);
        assert_eq!(
            events.take(),
            ["Register 1 ends, told to stop", "Unregister 1 starts"]
        );
        answers.send(Ok(())).unwrap();
        host.advance(HOUR);
        assert_eq!(events.take(), ["Unregister 1 ends"]);
        let stats = registry.stats();
        assert_eq!(
            (stats.succeeded, stats.failed, stats.given_up, stats.void),
            (1, 0, 0, 1)
        );
        assert!(registry.is_empty());
        assert_adds_up(stats);
    }
}

/// Of several that come while one is in flight, the last is made, and only that.
#[test]
fn the_newest_of_many_follows_the_one_in_flight() {
    let Slow {
        mut host,
        registry,
        events,
        answers,
    } = slow();
    registry.submit(URL, Register).unwrap();
    host.run_due();
    assert_eq!(registry.submit(URL, Unregister).unwrap(), None);
    assert_eq!(registry.submit(URL, Register).unwrap(), Some(Unregister));
    assert_eq!(registry.submit(URL, Unregister).unwrap(), Some(Register));
    // One of which an attempt was made elsewhere has a time of its own besides.
    let failed = registry.submit_failed(URL, Register, "refused");
    assert_eq!(failed.unwrap(), Some(Unregister));
    answers.send(Ok(())).unwrap();
    host.advance(4 * SECOND);
    assert_eq!(
        events.take(),
        ["Register 1 starts", "Register 1 ends, told to stop"]
    );
    host.advance(SECOND);
    assert_eq!(events.take(), ["Register 2 starts"]);
    assert_adds_up(registry.stats());
}

/// A cancel ends the operation at once; its attempt still fences what follows.
#[test]
fn a_cancelled_attempt_fences_as_well() {
    let Slow {
        mut host,
        registry,
        events,
        answers,
    } = slow();
    registry.submit(URL, Register).unwrap();
    host.run_due();
    assert_eq!(registry.cancel(&URL), Cancelled::InFlight);
    assert_eq!(registry.cancel(&URL), Cancelled::Absent);
    assert!(!registry.contains(&URL) && registry.is_empty());
    assert_eq!(registry.in_flight(), 1);
    registry.submit_if_absent(URL, Unregister).unwrap();
    let again = registry.submit_if_absent(URL, Register);
    assert!(matches!(again, Err(SubmitError::Present(_))));
    answers.send(Err(Failure::Retryable("down"))).unwrap();
    host.advance(SECOND);
    let expected = [
        "Register 1 starts",
        "Register 1 ends, told to stop",
        "Unregister 1 starts",
    ];
    assert_eq!(events.take(), expected);
    assert_eq!(registry.cancel(&URL), Cancelled::InFlight);
    answers.send(Ok(())).unwrap();
    host.advance(HOUR);
    assert_eq!((registry.in_flight(), registry.stats().cancelled), (0, 2));
    assert_adds_up(registry.stats());
}

/// Defect 30: an exhausted task stays in the map, so later failures of that key are ignored.
#[test]
fn what_is_exhausted_leaves_nothing_behind() {
    let mut host = host();
    let (registry, sent) = registry(&host, RetryPolicy::dubbo_failback(), |_, _| false);
    for round in 1..4 {
        registry
            .submit_failed_if_absent(URL, Register, "refused")
            .unwrap();
        host.advance(HOUR);
        assert_eq!(sent.take().len(), 3, "round {round}");
        assert_eq!(registry.stats().given_up, round);
    }
}

/// Defect 30, 2.2 (ReExportTask): the map entry is never removed on success, so a later failure
/// of the same URL is not retried.
#[test]
fn what_succeeded_leaves_nothing_behind() {
    let mut host = host();
    let (registry, sent) = registry(&host, RetryPolicy::dubbo_registry(), |_, number| {
        number == 3
    });
    for _ in 0..3 {
        registry
            .submit_failed_if_absent(URL, Register, "refused")
            .unwrap();
        host.advance(HOUR);
        assert_eq!(sent.take().len(), 2);
    }
    assert_eq!(registry.stats().succeeded, 3);
}

/// Defect 30: add after destroy throws and leaves the key.
#[test]
fn a_submit_after_the_stop_is_refused_and_leaves_no_key() {
    let mut host = host();
    let (registry, sent) = registry(&host, RetryPolicy::dubbo_registry(), |_, _| false);
    registry.submit(URL, Register).unwrap();
    host.run_due();
    let RetryStopped { pending, .. } = registry.stop();
    assert_eq!(
        (pending[0].key, pending[0].value),
        (URL, Register),
        "destroy loses nothing"
    );
    for answer in [
        registry.submit("other", Register),
        registry.submit_failed("other", Register, "refused"),
        registry.update("other", Register),
    ] {
        assert!(matches!(
            answer,
            Err(SubmitError::Closed(("other", Register)))
        ));
    }
    assert!(!registry.contains(&"other") && registry.is_empty());
    sent.take();
    host.advance(HOUR);
    assert_eq!(sent.take(), [], "nothing runs after the stop");
    assert_adds_up(registry.stats());
}

/// 2.2 (recover): the session is lost, everything is registered again; there after one period,
/// here at once, and what was waiting is not tried twice.
#[test]
fn recovery_submits_all_again() {
    let mut host = host();
    let (registry, sent) = registry(&host, RetryPolicy::dubbo_registry(), |_, _| true);
    registry.submit_failed("a", Register, "refused").unwrap();
    host.advance(SECOND);
    for url in ["a", "b"] {
        registry.submit(url, Register).unwrap();
    }
    host.advance(HOUR);
    assert_eq!(
        sent.take(),
        [("a", Register, 1, 1.0), ("b", Register, 1, 1.0)]
    );
}

/// KEY-12: a pending task with the same id is replaced, but keeps the older deadline, so that a
/// stream of updates cannot postpone for ever. (The policy is not got around either.)
#[test]
fn a_stream_of_updates_neither_postpones_nor_hurries() {
    let mut host = host();
    let pushed = Journal::new();
    let (journal, timer) = (pushed.clone(), host.timer().clone());
    let policy = RetryPolicy::linear(500 * MS, 500 * MS).max_retries(3);
    let pushes = KeyedRetry::new(
        timer.clone(),
        policy,
        move |_: &&str, version: &u32, _: &Attempt| {
            journal.write((
                *version,
                timer.now().saturating_since(Instant::ZERO).as_millis(),
            ));
            Err(Failure::Retryable(()))
        },
    );
    for version in 0..50 {
        pushes.update("topic", version).unwrap();
        host.advance(100 * MS);
    }
    // 2.8 (HEAD push): 3 tries after 500, 1000 and 1500 ms; then the next version begins anew.
    let expected = [
        (0, 0),
        (4, 500),
        (14, 1500),
        (29, 3000),
        (30, 3000),
        (34, 3500),
        (44, 4500),
    ];
    assert_eq!(pushed.take(), expected);
    assert_adds_up(pushes.stats());
}

/// 2.8 (Session notify): stops early if a newer version exists.
#[test]
fn a_newer_version_ends_the_retries_of_the_older() {
    let mut host = host();
    let pushed = Journal::new();
    let journal = pushed.clone();
    let policy = RetryPolicy::linear(3 * SECOND, 3 * SECOND).max_retries(5);
    let pushes = KeyedRetry::new(
        host.timer().clone(),
        policy,
        move |_: &&str, version: &u32, attempt: &Attempt| {
            journal.write((*version, attempt.number()));
            if *version == 1 {
                Err(Failure::Retryable(()))
            } else {
                Ok(())
            }
        },
    );
    pushes.submit("topic", 1).unwrap();
    host.advance(4 * SECOND);
    pushes.submit("topic", 2).unwrap();
    host.advance(HOUR);
    assert_eq!(pushed.take(), [(1, 1), (1, 2), (2, 1)]);
}

/// Keys whose hashes are all the same are still apart.
#[test]
fn keys_of_one_hash_are_kept_apart() {
    #[derive(Clone, PartialEq, Eq)]
    struct Bad(u32);
    impl std::hash::Hash for Bad {
        fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
    }
    let mut host = host();
    let tried = Journal::new();
    let journal = tried.clone();
    let retries = KeyedRetry::new(
        host.timer().clone(),
        RetryPolicy::dubbo_registry(),
        move |key: &Bad, _: &u32, _: &Attempt| {
            journal.write(key.0);
            Ok::<_, Failure<()>>(())
        },
    );
    for key in 0..10 {
        assert_eq!(retries.submit(Bad(key), key).unwrap(), None);
    }
    assert_eq!(retries.submit(Bad(3), 33).unwrap(), Some(3));
    assert_eq!(retries.cancel(&Bad(0)), Cancelled::Pending(0));
    assert_eq!(retries.cancel(&Bad(9)), Cancelled::Pending(9));
    host.run_due();
    assert_eq!(tried.take(), [1, 2, 4, 5, 6, 7, 8, 3]);
}

/// On real threads: never two attempts of a key at a time, and the last one submitted is the
/// last one made.
#[test]
fn attempts_of_a_key_never_overlap_and_the_newest_is_the_last() {
    const KEYS: usize = 4;
    for _ in 0..10 {
        let timer = Timer::new();
        let flying: [AtomicUsize; KEYS] = std::array::from_fn(|_| AtomicUsize::new(0));
        let state = Arc::new((flying, Mutex::new(HashMap::new()), AtomicUsize::new(0)));
        let seen = Arc::clone(&state);
        let policy = RetryPolicy::fixed(Duration::from_micros(200));
        let retries = KeyedRetry::new(
            timer.clone(),
            policy,
            move |key: &usize, value: &u64, attempt: &Attempt| {
                let (flying, last, overlaps) = &*seen;
                let others = flying[*key].fetch_add(1, Ordering::SeqCst);
                overlaps.fetch_add(others, Ordering::SeqCst);
                thread::yield_now();
                let fails = attempt.number() < 2;
                if !fails {
                    last.lock().unwrap().insert(*key, *value);
                }
                flying[*key].fetch_sub(1, Ordering::SeqCst);
                if fails {
                    Err(Failure::Retryable(()))
                } else {
                    Ok(())
                }
            },
        );
        let newest = Mutex::new(HashMap::new());
        thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (retries, newest) = (&retries, &newest);
                scope.spawn(move || {
                    for count in 0..60 {
                        let (key, value) =
                            (usize::try_from(count).unwrap() % KEYS, 100 * count + thread);
                        // The order of submits has to be known, so it is made.
                        let mut newest = newest.lock().unwrap();
                        match count % 7 {
                            5 => drop(retries.cancel(&key)),
                            _ => drop(retries.submit(key, value).unwrap()),
                        }
                        newest.insert(key, (count % 7 != 5).then_some(value));
                    }
                });
            }
        });
        while !(retries.is_empty() && retries.in_flight() == 0) {
            thread::yield_now();
        }
        timer.stop();
        assert_eq!(state.2.load(Ordering::SeqCst), 0, "no two at a time");
        for (key, value) in newest.into_inner().unwrap() {
            if let Some(value) = value {
                assert_eq!(state.1.lock().unwrap().get(&key), Some(&value));
            }
        }
        assert_adds_up(retries.stats());
    }
}

// every operation was tried as soon as it came, also one that a newer one was about to overtake.
#[test]
fn the_first_attempt_may_wait_and_what_is_overtaken_meanwhile_is_never_tried() {
    let mut host = ManualHost::new();
    let second = Duration::from_secs(1);
    let (sender, tried) = mpsc::channel();
    let retry = KeyedRetry::<String, u32, &str>::builder(
        host.timer().clone(),
        RetryPolicy::fixed(10 * second),
    )
    .first_delay(second)
    .build_keyed(move |key, value, attempt| {
        sender
            .send((key.clone(), *value, attempt.number()))
            .unwrap();
        Err(Failure::Retryable("down"))
    })
    .unwrap();
    retry.submit("a".to_owned(), 1).unwrap();
    host.advance(second / 2);
    assert_eq!(retry.submit("a".to_owned(), 2).unwrap(), Some(1));
    assert!(
        retry.contains("a") && !retry.is_in_flight("a"),
        "found by a borrowed key"
    );
    host.advance(second - Duration::from_millis(1));
    assert!(tried.try_recv().is_err());
    host.advance(Duration::from_millis(1));
    assert_eq!(tried.try_recv().unwrap(), ("a".to_owned(), 2, 1));
    host.advance(10 * second);
    assert_eq!(
        tried.try_recv().unwrap(),
        ("a".to_owned(), 2, 2),
        "then as the policy says"
    );
    assert_eq!(retry.cancel("a"), Cancelled::Pending(2));

    // What has failed already waits for its second attempt only.
    retry.submit_failed("b".to_owned(), 3, "down").unwrap();
    host.advance(10 * second);
    assert_eq!(tried.try_recv().unwrap(), ("b".to_owned(), 3, 2));
}

// what is refused uses up the budget.
#[test]
fn what_is_refused_costs_no_budget() {
    let host = ManualHost::new();
    let budget = RetryBudget::new(0.0, 1.0, 10 * SECOND).unwrap();
    let retry =
        KeyedRetry::<u32, (), &str>::builder(host.timer().clone(), RetryPolicy::dubbo_registry())
            .budget(budget.clone())
            .build_keyed(|_, _, _| Ok(()))
            .unwrap();
    retry.submit_failed_if_absent(1, (), "down").unwrap();
    for _ in 0..20 {
        assert!(retry.submit_failed_if_absent(1, (), "down").is_err());
    }
    assert_eq!(
        budget.balance(host.timer().now()),
        9,
        "one retry was granted"
    );
}

// updates of a value that waits are no first attempts.
#[test]
fn an_update_puts_nothing_into_the_budget() {
    let host = ManualHost::new();
    let budget = RetryBudget::new(1.0, 1.0, 10 * SECOND).unwrap();
    let retry =
        KeyedRetry::<u32, u32, &str>::builder(host.timer().clone(), RetryPolicy::dubbo_registry())
            .budget(budget.clone())
            .build_keyed(|_, _, _| Ok(()))
            .unwrap();
    retry.submit_failed(1, 0, "down").unwrap();
    let before = budget.balance(host.timer().now());
    for n in 0..20 {
        retry.update(1, n).unwrap();
    }
    assert_eq!(budget.balance(host.timer().now()), before);
}
