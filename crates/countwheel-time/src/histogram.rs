//! The distribution of durations.

use std::fmt;
use std::time::Duration;

/// How many durations fell into which range: each range is at most a quarter wider than the
/// one before, from a nanosecond to 584 years.
///
/// ```
/// use countwheel_time::Histogram;
/// use std::time::Duration;
///
/// let mut histogram = Histogram::default();
/// for micros in 1..=1_000 {
///     histogram.record(Duration::from_micros(micros));
/// }
/// let median = histogram.quantile(0.5).unwrap();
/// assert!(median >= Duration::from_micros(500) && median < Duration::from_micros(625));
/// assert_eq!(histogram.count(), 1_000);
/// assert_eq!(histogram.iter().map(|(_, count)| count).sum::<u64>(), 1_000);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64; Self::RANGES]>,
}

impl Histogram {
    /// Of each power of two: four. The first four values have a range each.
    const RANGES: usize = 4 * 63;

    /// Counts one. O(1).
    #[inline]
    pub fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[Self::range_of(nanos)] += 1;
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// A duration that `share` of all (0 to 1) do not exceed: the end of the range in which
    /// that falls, so at most a quarter too much. `None` if there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        // As many as a float can count exactly; beyond, the rounding is of no consequence.
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and the count"
        )]
        let rank = ((count as f64 * share.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut sum = 0;
        self.iter().find_map(|(end, count)| {
            sum += count;
            (sum >= rank).then_some(end)
        })
    }

    /// The ranges that are not empty: the longest duration of each, and how many fell in it.
    pub fn iter(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let ranges = self.counts.iter().enumerate();
        let used = ranges.filter(|&(_, &count)| count > 0);
        used.map(|(range, &count)| (Self::end_of(range), count))
    }

    #[inline]
    fn range_of(nanos: u64) -> usize {
        if nanos < 4 {
            return usize::try_from(nanos).unwrap_or(0);
        }
        let power = nanos.ilog2();
        let quarter = (nanos >> (power - 2)) & 3;
        (power as usize - 1) * 4 + usize::try_from(quarter).unwrap_or(0)
    }

    fn end_of(range: usize) -> Duration {
        if range < 4 {
            return Duration::from_nanos(range as u64);
        }
        let power = range / 4 + 1;
        let start = (4 + (range as u64 % 4)) << (power - 2);
        let width = 1_u64 << (power - 2);
        Duration::from_nanos(start + (width - 1))
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: Box::new([0; Self::RANGES]),
        }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("p50", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_its_range_and_no_range_is_wider_than_a_quarter() {
        let mut last = None;
        for range in 0..Histogram::RANGES {
            let end = u64::try_from(Histogram::end_of(range).as_nanos()).unwrap();
            assert_eq!(Histogram::range_of(end), range);
            let start = last.map_or(0, |last: u64| last + 1);
            assert_eq!(Histogram::range_of(start), range);
            assert!(end - start <= start / 4);
            last = Some(end);
        }
        assert_eq!(last, Some(u64::MAX));
    }
}
