//! What a stop gives back, in the time of the wall clock.

use countwheel::{ClockReading, Timestamp};
use std::time::Duration;

use crate::{Attempts, PendingRetry, Undue};

/// An operation that has not ended, in a form that can be written down and taken up in another
/// process: its times are in UTC. With the feature `serde` it is data.
///
/// ```
/// use countwheel::{ClockReading, ManualHost};
/// use countwheel_patterns::{Failure, Retry, RetryPolicy, SavedRetry};
/// use std::time::Duration;
///
/// let minute = Duration::from_secs(60);
/// let policy = || RetryPolicy::fixed(minute).max_age(3 * minute);
/// let down = |_: &String, _: &_| Err(Failure::Retryable("down"));
/// let mut host = ManualHost::new();
/// let retry = Retry::new(host.timer().clone(), policy(), down);
/// retry.submit("callback".to_owned()).unwrap();
/// host.advance(minute);
/// let now = ClockReading::of(host.timer().clock());
/// let saved: Vec<SavedRetry<_, String, &str>> =
///     retry.stop().pending.into_iter().map(|pending| pending.saved(now)).collect();
/// assert_eq!((saved[0].attempts.made, saved[0].next_at), (2, now.timestamp + minute));
///
/// // In another process, which begins when half a minute has passed:
/// let mut host = ManualHost::new();
/// host.clock().set_timestamp(now.timestamp + minute / 2);
/// let retry = Retry::new(host.timer().clone(), policy(), down);
/// let now = ClockReading::of(host.timer().clock());
/// for pending in saved {
///     retry.resume(pending.restored(now)).unwrap();
/// }
/// host.advance(minute / 2);
/// assert_eq!((retry.stats().attempts, retry.len()), (1, 1), "the third, two minutes after the first");
/// host.advance(minute);
/// assert_eq!(retry.stats().given_up, 1, "the fifth would come after the maximum age");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[must_use = "it is what is left of the operation"]
pub struct SavedRetry<K, T, E> {
    /// Its key, or its [`RetryId`](crate::RetryId).
    pub key: K,
    /// What was submitted.
    pub value: T,
    /// How often it was tried, and since when.
    pub attempts: SavedAttempts,
    /// The last error; none if no attempt has returned one.
    pub error: Option<E>,
    /// When the next attempt was to start.
    pub next_at: Timestamp,
}

/// How far an operation has come, with its beginning in UTC: [`Attempts`] for another process. With
/// the feature `serde` it is data.
///
/// ```
/// use countwheel::{ClockReading, Instant, ManualClock, Timestamp};
/// use countwheel_patterns::{Attempts, GiveUp, RetryPolicy};
/// use std::time::Duration;
///
/// let minute = Duration::from_secs(60);
/// let start = Timestamp::EPOCH + 1_000_000 * minute;
/// let saved = Attempts::new(Instant::ZERO, 7)
///     .with_made(2)
///     .saved(ClockReading::of(&ManualClock::at(start)));
/// assert_eq!((saved.made, saved.first_at), (2, start));
///
/// // The clock of the other process was made after the first attempt.
/// let clock = ManualClock::at(start + 10 * minute);
/// let attempts = saved.restored(ClockReading::of(&clock));
/// assert_eq!((attempts.first_at(), attempts.age_before()), (Instant::ZERO, 10 * minute));
/// let policy = RetryPolicy::fixed(minute).max_age(10 * minute);
/// assert_eq!(attempts.next(&policy, Instant::ZERO), Err(GiveUp::MaxAge));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SavedAttempts {
    /// How many attempts have begun.
    pub made: u32,
    /// When the first attempt began, or was to begin.
    pub first_at: Timestamp,
    /// What decides about chance.
    pub seed: u64,
}

/// An item of a delay queue that nobody has taken, in a form that can be written down and taken up in
/// another process: its deadline is in UTC. With the feature `serde` it is data.
///
/// ```
/// use countwheel::{ClockReading, ManualHost};
/// use countwheel_patterns::{DelayQueue, SavedItem};
/// use std::time::Duration;
///
/// let minute = Duration::from_secs(60);
/// let host = ManualHost::new();
/// let queue = DelayQueue::new(host.timer().clone());
/// queue.push("order", 30 * minute).unwrap();
/// let now = ClockReading::of(host.timer().clock());
/// let saved: Vec<SavedItem<_>> = queue.stop().into_iter().map(|undue| undue.saved(now)).collect();
///
/// // In another process, which begins when an hour has passed:
/// let host = ManualHost::new();
/// host.clock().set_timestamp(now.timestamp + 60 * minute);
/// let queue = DelayQueue::new(host.timer().clone());
/// let now = ClockReading::of(host.timer().clock());
/// for item in saved {
///     let undue = item.restored(now);
///     queue.push_at(undue.value, undue.deadline).unwrap();
/// }
/// assert_eq!(queue.try_take().unwrap().value, "order");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[must_use = "it is what is left of the item"]
pub struct SavedItem<T> {
    /// What was pushed; of a keyed queue, the key and the value.
    pub value: T,
    /// The deadline that was asked for; [`Timestamp::MAX`] if it never comes.
    pub deadline: Timestamp,
}

impl Attempts {
    /// The same with its beginning in UTC, as the timer's clock shows it in `reading`.
    #[must_use]
    pub fn saved(&self, reading: ClockReading) -> SavedAttempts {
        let first_at = reading.timestamp_of(self.first_at());
        SavedAttempts {
            made: self.made(),
            first_at: first_at.saturating_sub(self.age_before()),
            seed: self.seed(),
        }
    }
}

impl SavedAttempts {
    /// The same with its beginning on the clock of another timer. The maximum age goes on to count
    /// from the beginning, also if the clock is younger.
    #[must_use]
    pub fn restored(self, reading: ClockReading) -> Attempts {
        let first_at = reading.instant_of(self.first_at);
        let on_clock: Duration = reading.instant - first_at;
        let age = reading.age_of(self.first_at);
        Attempts::new(first_at, self.seed)
            .with_made(self.made)
            .with_age_before(age.saturating_sub(on_clock))
    }
}

impl<K, T, E> PendingRetry<K, T, E> {
    /// The same with its times in UTC, as the timer's clock shows them in `reading`.
    pub fn saved(self, reading: ClockReading) -> SavedRetry<K, T, E> {
        SavedRetry {
            key: self.key,
            value: self.value,
            attempts: self.attempts.saved(reading),
            error: self.error,
            next_at: reading.timestamp_of(self.next_at),
        }
    }
}

impl<K, T, E> SavedRetry<K, T, E> {
    /// The same with its times on the clock of another timer, for
    /// [`Retry::resume`](crate::Retry::resume). An attempt whose time has passed meanwhile is made at
    /// once.
    pub fn restored(self, reading: ClockReading) -> PendingRetry<K, T, E> {
        PendingRetry {
            key: self.key,
            value: self.value,
            attempts: self.attempts.restored(reading),
            error: self.error,
            next_at: reading.instant_of(self.next_at),
        }
    }
}

impl<T> Undue<T> {
    /// The same with its deadline in UTC, as the timer's clock shows it in `reading`.
    pub fn saved(self, reading: ClockReading) -> SavedItem<T> {
        SavedItem {
            value: self.value,
            deadline: reading.timestamp_of(self.deadline),
        }
    }
}

impl<T> SavedItem<T> {
    /// The same with its deadline on the clock of another timer. A deadline that has passed lies in
    /// the past.
    pub fn restored(self, reading: ClockReading) -> Undue<T> {
        Undue {
            value: self.value,
            deadline: reading.instant_of(self.deadline),
        }
    }
}
