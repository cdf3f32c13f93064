//! The lifetime of an entry, as callers give it and as the map stores it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use countwheel::Instant;
use countwheel_time::Random;

/// How long an entry of an [`ExpiringMap`](super::ExpiringMap) lives: so long after it was
/// inserted, so long after it was last used, whichever comes first, or for ever.
///
/// [`Duration::MAX`] is the same as no limit, and [`Duration::ZERO`] is over at once.
///
/// ```
/// use countwheel_patterns::Ttl;
/// use std::time::Duration;
///
/// let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
/// let session = Ttl::idle(minutes(30)); // every use renews it
/// let login = Ttl::after(minutes(8 * 60)).or_idle(minutes(30)); // but not for ever
/// assert_ne!(session, login);
/// assert_eq!(Ttl::default(), Ttl::NEVER);
/// assert_eq!(Ttl::after(Duration::MAX), Ttl::NEVER);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ttl {
    age: Duration,
    idle: Duration,
}

impl Ttl {
    /// The entry stays until it is removed.
    pub const NEVER: Self = Self::after(Duration::MAX);

    /// The entry expires `age` after it was inserted or replaced, however much it is used.
    #[must_use]
    pub const fn after(age: Duration) -> Self {
        Self {
            age,
            idle: Duration::MAX,
        }
    }

    /// The entry expires once it has not been used for `idle`.
    #[must_use]
    pub const fn idle(idle: Duration) -> Self {
        Self {
            age: Duration::MAX,
            idle,
        }
    }

    /// The same, but the entry also expires once it has not been used for `idle`.
    #[must_use]
    pub const fn or_idle(self, idle: Duration) -> Self {
        Self { idle, ..self }
    }
}

impl Default for Ttl {
    /// [`Ttl::NEVER`].
    fn default() -> Self {
        Self::NEVER
    }
}

/// Spreads deadlines, so that what was inserted together does not expire together.
pub(super) struct Jitter {
    percent: u8,
    /// Counts the draws. Each takes a number of one sequence, whichever thread it is.
    draws: AtomicU64,
    seed: u64,
}

impl Jitter {
    pub(super) fn new(percent: u8, seed: Option<u64>) -> Self {
        Self {
            percent: percent.min(100),
            draws: AtomicU64::new(0),
            seed: seed.unwrap_or_else(|| Random::unseeded().draw()),
        }
    }

    fn spread(&self, span: Duration) -> Duration {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        if self.percent == 0 || nanos == u64::MAX {
            return span;
        }
        let draw = self.draws.fetch_add(1, Ordering::Relaxed);
        let mut random = Random::new(Random::new(self.seed ^ draw).draw());
        let most = u128::from(nanos) * u128::from(self.percent) / 100;
        let most = u64::try_from(most).unwrap_or(nanos);
        let more = random.up_to(most.saturating_mul(2));
        Duration::from_nanos((nanos - most).saturating_add(more))
    }
}

/// The deadlines of an entry. A use moves one of them, with a store, and nothing else.
pub(super) struct Life {
    ends_at: Instant,
    /// In nanoseconds, as is the next; [`NEVER`] if there is no such limit.
    idle: u64,
    idle_until: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl Life {
    pub(super) fn new(ttl: Ttl, jitter: &Jitter, now: Instant) -> Self {
        let idle = u64::try_from(jitter.spread(ttl.idle).as_nanos()).unwrap_or(NEVER);
        Self {
            ends_at: now + jitter.spread(ttl.age),
            idle,
            idle_until: AtomicU64::new(now.as_nanos().saturating_add(idle)),
        }
    }

    /// [`Instant::MAX`] if never.
    #[inline]
    pub(super) fn deadline(&self) -> Instant {
        let idle_until = Instant::from_nanos(self.idle_until.load(Ordering::Relaxed));
        self.ends_at.min(idle_until)
    }

    #[inline]
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let deadline = self.deadline();
        deadline <= now && deadline < Instant::MAX
    }

    /// It is used now.
    #[inline]
    pub(super) fn renew(&self, now: Instant) {
        if self.idle != NEVER {
            let until = now.as_nanos().saturating_add(self.idle);
            // Never back: whoever has read the clock first may come last.
            if until > self.idle_until.load(Ordering::Relaxed) {
                self.idle_until.fetch_max(until, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn remaining(&self, now: Instant) -> Duration {
        match self.deadline() {
            Instant::MAX => Duration::MAX,
            deadline => deadline.saturating_since(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// 2.9: go-zero draws from [0.95, 1.05].
    #[test]
    fn jitter_stays_within_its_bounds_and_uses_them() {
        let jitter = Jitter::new(5, Some(1));
        let spans: Vec<_> = (0..1_000).map(|_| jitter.spread(HOUR)).collect();
        let (least, most) = (spans.iter().min().unwrap(), spans.iter().max().unwrap());
        assert!(*least >= HOUR * 95 / 100 && *least < HOUR * 96 / 100);
        assert!(*most <= HOUR * 105 / 100 && *most > HOUR * 104 / 100);

        let again = Jitter::new(5, Some(1));
        assert!(spans.iter().all(|&span| again.spread(HOUR) == span));
        let other = Jitter::new(5, Some(2));
        assert!(spans.iter().any(|&span| other.spread(HOUR) != span));
    }

    #[test]
    fn jitter_leaves_alone_what_has_no_length_or_no_end() {
        let jitter = Jitter::new(200, Some(1));
        assert_eq!(jitter.spread(Duration::MAX), Duration::MAX);
        assert_eq!(jitter.spread(Duration::ZERO), Duration::ZERO);
        let long = Duration::from_nanos(u64::MAX - 1);
        assert!((0..100).any(|_| jitter.spread(long) != long));
        assert_eq!(Jitter::new(0, None).spread(HOUR), HOUR);
    }

    #[test]
    fn a_late_renewal_does_not_shorten_a_life() {
        let life = Life::new(Ttl::idle(HOUR), &Jitter::new(0, None), Instant::ZERO);
        life.renew(Instant::ZERO + HOUR);
        life.renew(Instant::ZERO);
        assert_eq!(life.deadline(), Instant::ZERO + 2 * HOUR);
    }
}
