//! What a stop gives back goes on in another process, on a clock of its own.

use std::time::Duration;

use countwheel::{ClockReading, Instant, KeyedTimer, ManualClock, ManualHost, Timer, Timestamp};
use countwheel_patterns::{
    Attempts, DelayQueue, Failure, GiveUp, KeyedRetry, Retry, RetryId, RetryPolicy, SavedItem,
    SavedRetry,
};

use crate::support::{Journal, SECOND};

const MINUTE: Duration = Duration::from_secs(60);

/// A machine whose wall clock stands at so many minutes.
fn machine(minutes: u32) -> ManualHost {
    let start = Timestamp::EPOCH + 1_000_000 * MINUTE;
    Timer::builder().manual(ManualClock::at(start + minutes * MINUTE))
}

fn reading(host: &ManualHost) -> ClockReading {
    ClockReading::of(host.timer().clock())
}

fn failing(host: &ManualHost, policy: RetryPolicy) -> (Retry<u32, String>, Journal<GiveUp>) {
    let dead = Journal::new();
    let letters = dead.clone();
    let retry = Retry::builder(host.timer().clone(), policy)
        .dead_letter(move |letter| letters.write(letter.reason))
        .build(|_: &u32, _| Err(Failure::Retryable("down".to_owned())))
        .unwrap();
    (retry, dead)
}

#[test]
fn a_retry_goes_on_after_a_restart_with_its_attempts_its_age_and_its_chance() {
    let policy = || RetryPolicy::fixed(MINUTE).max_age(10 * MINUTE);
    let mut host = machine(0);
    let (retry, _) = failing(&host, policy());
    retry.submit(7).unwrap();
    host.advance(2 * MINUTE + 30 * SECOND);
    let now = reading(&host);
    let pending = retry.stop().pending.remove(0);
    let seed = pending.attempts.seed();
    let saved: SavedRetry<RetryId, u32, String> = pending.saved(now);
    assert_eq!((saved.attempts.made, saved.attempts.seed), (3, seed));

    // Ninety seconds later, by a clock that has just been made.
    let mut host = machine(4);
    let (retry, dead) = failing(&host, policy());
    let pending = saved.restored(reading(&host));
    assert_eq!(pending.next_at, Instant::ZERO, "its time has passed");
    retry.resume(pending).unwrap();
    host.run_due();
    assert_eq!(retry.stats().attempts, 1, "so it is tried at once");
    host.advance(6 * MINUTE);
    assert_eq!((retry.stats().attempts, dead.take().len()), (7, 1));
    assert!(retry.is_empty(), "ten minutes after the first attempt");
}

#[test]
fn a_restart_of_a_restart_counts_the_whole_age() {
    let policy = RetryPolicy::fixed(MINUTE).max_age(10 * MINUTE);
    let mut attempts = Attempts::new(Instant::ZERO, 7);
    let mut host = machine(0);
    for restart in 1..=4 {
        let saved = attempts.saved(reading(&host));
        assert_eq!(saved.first_at, reading(&machine(0)).timestamp);
        host = machine(restart * 2);
        host.advance(30 * SECOND);
        attempts = saved.restored(reading(&host));
        assert!(attempts.next(&policy, host.timer().now()).is_ok());
    }
    host.advance(MINUTE);
    let next = attempts.next(&policy, host.timer().now());
    assert_eq!(next, Err(GiveUp::MaxAge), "after nine minutes and a half");
}

#[test]
fn a_clock_that_was_set_back_makes_nothing_early_and_no_age_negative() {
    let mut host = machine(10);
    let (retry, _) = failing(&host, RetryPolicy::fixed(MINUTE));
    retry.submit_failed(7, "down".to_owned()).unwrap();
    let saved = retry.stop().pending.remove(0).saved(reading(&host));
    host = machine(5);
    let restored = saved.restored(reading(&host));
    assert_eq!(restored.next_at, Instant::ZERO + 6 * MINUTE);
    assert_eq!(restored.attempts.first_at(), Instant::ZERO + 5 * MINUTE);
    assert_eq!(restored.attempts.age_before(), Duration::ZERO);
}

#[test]
fn keys_and_items_keep_their_deadlines_and_never_stays_never() {
    let host = machine(0);
    let timer = || host.timer().clone();
    let keyed = KeyedTimer::new(timer(), |_: u32, _: &str| ());
    keyed.set(1, "a", 5 * MINUTE).unwrap();
    keyed.set(2, "b", Duration::MAX).unwrap();
    let queue = DelayQueue::new(timer());
    queue.push("a", 5 * MINUTE).unwrap();
    queue.push("b", Duration::MAX).unwrap();
    let now = reading(&host);
    let entries: Vec<_> = keyed
        .stop()
        .into_iter()
        .map(|entry| entry.saved(now))
        .collect();
    let items: Vec<_> = queue
        .stop()
        .into_iter()
        .map(|undue| undue.saved(now))
        .collect();
    assert_eq!(
        (entries[1].deadline, items[1].deadline),
        (Timestamp::MAX, Timestamp::MAX)
    );

    let mut host = machine(3);
    let fired = Journal::new();
    let journal = fired.clone();
    let keyed = KeyedTimer::new(host.timer().clone(), move |key: u32, _: &str| {
        journal.write(key);
    });
    let queue = DelayQueue::new(host.timer().clone());
    let now = reading(&host);
    for entry in entries.into_iter().map(|entry| entry.restored(now)) {
        keyed
            .set_at(entry.key, entry.value, entry.deadline)
            .unwrap();
    }
    for item in items
        .into_iter()
        .map(|item: SavedItem<&str>| item.restored(now))
    {
        queue.push_at(item.value, item.deadline).unwrap();
    }
    let two = Instant::ZERO + 2 * MINUTE;
    assert_eq!(keyed.deadlines(), [(1, two), (2, Instant::MAX)]);
    host.advance(2 * MINUTE);
    assert_eq!(fired.take(), [1]);
    assert_eq!(queue.try_take().unwrap().value, "a");
    assert_eq!(queue.drain()[0].deadline, Instant::MAX);
}

#[cfg(feature = "serde")]
#[test]
fn what_is_saved_is_data_and_bad_data_is_refused() {
    let host = machine(0);
    let (retry, _) = failing(&host, RetryPolicy::eureka());
    retry.submit_failed(7, "down".to_owned()).unwrap();
    let saved = retry.stop().pending.remove(0).saved(reading(&host));
    let text = serde_json::to_string(&saved).unwrap();
    let read: SavedRetry<RetryId, u32, String> = serde_json::from_str(&text).unwrap();
    assert_eq!(read, saved);
    assert_eq!(read.key, RetryId::new(read.key.get()));
    for bad in [
        text.replace("\"made\":1", "\"made\":-1"),
        text.replace("\"next_at\"", "\"next\""),
        text.replace("\"value\":7", "\"value\":\"seven\""),
    ] {
        let bad = serde_json::from_str::<SavedRetry<RetryId, u32, String>>(&bad);
        assert!(bad.is_err());
    }
    let item: SavedItem<u32> = serde_json::from_str(r#"{"value":7,"deadline":5}"#).unwrap();
    assert_eq!(item.deadline, Timestamp::from_micros(5));
    let entry = r#"{"key":"a","value":7,"deadline":5}"#;
    let entry: countwheel::SavedEntry<String, u32> = serde_json::from_str(entry).unwrap();
    assert_eq!((entry.key.as_str(), entry.value), ("a", 7));

    let policy: RetryPolicy = serde_json::from_str(r#""15s,15s,30s,3m""#).unwrap();
    let text = serde_json::to_string(&policy).unwrap();
    assert_eq!(text, r#""15s,15s,30s,3m""#);
    for bad in [r#""15s,15x""#, r#""""#, "15", "null"] {
        assert!(serde_json::from_str::<RetryPolicy>(bad).is_err(), "{bad}");
    }
    let error = serde_json::from_str::<RetryPolicy>(r#""15s,15x""#).unwrap_err();
    assert!(error.to_string().contains("15x"), "{error}");
}

/// The saved key of an older operation takes the place of nothing that it should not.
#[test]
fn a_keyed_operation_comes_back_under_its_key() {
    let store = |host: &ManualHost| {
        KeyedRetry::new(
            host.timer().clone(),
            RetryPolicy::fixed(MINUTE),
            |_: &String, _: &u32, _| Err(Failure::Retryable("down")),
        )
    };
    let mut host = machine(0);
    let old = store(&host);
    old.submit("app".to_owned(), 1).unwrap();
    host.advance(SECOND);
    let saved = old.stop().pending.remove(0).saved(reading(&host));
    let host = machine(1);
    let new = store(&host);
    assert_eq!(new.resume(saved.restored(reading(&host))).unwrap(), None);
    assert!(new.contains("app") && !new.is_in_flight("app"));
}
