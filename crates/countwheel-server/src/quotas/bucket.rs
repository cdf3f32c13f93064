//! The rate of a namespace: a token bucket.

use std::time::Duration;

use countwheel_time::Instant;

use crate::resources::endpoint::Rate;

/// A token bucket (Turner, 1986).
#[derive(Default, Debug)]
pub(super) struct Bucket {
    at: Option<Instant>,
    /// Below zero, so much of what is to come is taken already.
    tokens: f64,
}

impl Bucket {
    /// Fills it up to now. Returns the tokens that come in a second.
    fn fill(&mut self, rate: Rate, nodes: u64, now: Instant) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "there are few nodes")]
        let per_second = rate.per_second / nodes as f64;
        let burst = f64::from(rate.burst);
        let since = self.at.map(|at| now.saturating_since(at));
        let filled = since.map_or(burst, |since| {
            self.tokens + since.as_secs_f64() * per_second
        });
        self.tokens = filled.min(burst);
        self.at = Some(now);
        per_second
    }

    /// Takes a token, if there is one. Otherwise says after how long there is.
    pub(super) fn take(&mut self, rate: Rate, nodes: u64, now: Instant) -> Result<(), Duration> {
        let per_second = self.fill(rate, nodes, now);
        if self.tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.tokens) / per_second));
        }
        self.tokens -= 1.0;
        Ok(())
    }

    /// Takes so many tokens that have all come within `patience`, and says after how long they have. Otherwise says by how much
    /// that is too long.
    pub(super) fn reserve(
        &mut self,
        rate: Rate,
        nodes: u64,
        count: f64,
        patience: Duration,
        now: Instant,
    ) -> Result<Duration, Duration> {
        let per_second = self.fill(rate, nodes, now);
        let left = self.tokens - count;
        let wait = (-left / per_second).max(0.0);
        let beyond = wait - patience.as_secs_f64();
        if beyond > 0.0 {
            // A rate may be so small that no duration has room for it.
            let beyond = Duration::try_from_secs_f64(beyond);
            return Err(beyond.unwrap_or(Duration::from_secs(u64::from(u32::MAX))));
        }
        self.tokens = left;
        Ok(Duration::from_secs_f64(wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1) + Duration::from_millis(millis)
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let rate = Rate {
            per_second: 10.0,
            burst: 3,
        };
        let mut bucket = Bucket::default();
        let mut take = |millis| bucket.take(rate, 1, at(millis));
        assert!((0..3).all(|_| take(0).is_ok()));
        assert_eq!(take(0), Err(Duration::from_millis(100)));
        assert!(take(100).is_ok());
        assert_eq!(take(150), Err(Duration::from_millis(50)));
        // A pause fills it, and no more than that.
        assert!((0..3).all(|_| take(60_000).is_ok()) && take(60_000).is_err());
    }

    #[test]
    fn of_two_nodes_each_has_half_the_rate() {
        let rate = Rate {
            per_second: 10.0,
            burst: 1,
        };
        let mut buckets = [Bucket::default(), Bucket::default()];
        let taken = (0..=1_000).map(|millis| {
            let each = buckets.iter_mut();
            each.filter_map(|it| it.take(rate, 2, at(millis)).ok())
                .count()
        });
        // The bursts, and ten in the second.
        let taken: usize = taken.sum();
        assert!((11..=12).contains(&taken), "{taken}");
    }

    #[test]
    fn what_is_reserved_is_there_within_the_patience() {
        let rate = Rate {
            per_second: 2.0,
            burst: 4,
        };
        let patience = Duration::from_secs(30);
        let mut bucket = Bucket::default();
        let mut reserve = |count, millis| bucket.reserve(rate, 1, count, patience, at(millis));
        assert_eq!(reserve(4.0, 0), Ok(Duration::ZERO));
        // Sixty come within the patience, and no more than that.
        assert_eq!(reserve(61.0, 0), Err(Duration::from_millis(500)));
        assert_eq!(reserve(60.0, 0), Ok(patience));
        assert_eq!(reserve(1.0, 0), Err(Duration::from_millis(500)));
        assert_eq!(
            bucket.take(rate, 1, at(0)),
            Err(Duration::from_millis(30_500))
        );
        assert_eq!(bucket.take(rate, 1, at(30_500)), Ok(()));
    }
}
