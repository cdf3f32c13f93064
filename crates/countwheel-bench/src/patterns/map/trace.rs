//! The operations on the map: keys as in real caches, nine reads in ten operations.

use crate::random::SplitMix;

/// Reads or writes one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Operation(u32);

const INSERT: u32 = 1 << 31;

impl Operation {
    /// Neighbours in the ranking are no neighbours in the map.
    #[inline]
    pub(super) fn key(self) -> u64 {
        u64::from(self.0 & !INSERT).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[inline]
    pub(super) fn is_insert(self) -> bool {
        self.0 & INSERT != 0
    }
}

/// How many operations there are before they repeat.
const LENGTH: usize = if cfg!(test) { 1 << 14 } else { 1 << 20 };

/// Of so many operations, one writes.
const READS: u64 = 10;

/// How much more often the first key is used than later ones: the key of rank r is as likely
/// as r to the power of minus this.
const EXPONENT: f64 = 0.99;

/// Operations, drawn before.
pub(super) struct Trace(Vec<Operation>);

impl Trace {
    pub(super) fn new(thread: u64, keys: u32) -> Self {
        let ranks = Ranks::new(keys);
        let mut numbers = SplitMix::new(42 + thread);
        let mut draw = || {
            let rank = ranks.draw(&mut numbers);
            let is_insert = numbers.below(READS) == 0;
            Operation(rank | if is_insert { INSERT } else { 0 })
        };
        Self((0..LENGTH).map(|_| draw()).collect())
    }

    /// All operations again and again, some at a time.
    pub(super) fn endless(&self, some: usize) -> impl Iterator<Item = &[Operation]> {
        self.0.chunks(some).cycle()
    }
}

/// Ranks after Zipf's law.
struct Ranks {
    /// How likely this rank or one before it is.
    cumulated: Vec<f64>,
}

impl Ranks {
    fn new(keys: u32) -> Self {
        let mut sum = 0.0;
        let add = |rank: u32| {
            sum += f64::from(rank).powf(-EXPONENT);
            sum
        };
        Self {
            cumulated: (1..=keys).map(add).collect(),
        }
    }

    /// From 0 on.
    fn draw(&self, numbers: &mut SplitMix) -> u32 {
        let all = self.cumulated.last().copied().unwrap_or_default();
        let part = (numbers.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = self.cumulated.partition_point(|&sum| sum <= part * all);
        u32::try_from(rank.min(self.cumulated.len().saturating_sub(1))).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::index;

    #[test]
    fn one_in_ten_writes_and_the_first_keys_are_the_most_frequent() {
        let trace = Trace::new(0, 1000);
        let writes = trace.0.iter().filter(|op| op.is_insert()).count();
        assert!(writes.abs_diff(LENGTH / 10) < LENGTH / 50, "{writes}");

        let mut times = vec![0; 1000];
        for operation in &trace.0 {
            times[index((operation.0 & !INSERT).into())] += 1;
        }
        // The sum over a thousand ranks is about 7.7.
        assert!(
            times[0] > LENGTH / 9 && times[0] < LENGTH / 7,
            "{}",
            times[0]
        );
        assert!(times[9] < times[0] / 7 && times[9] > times[0] / 14);
        assert!(times.iter().filter(|&&n| n == 0).count() < 200);
    }

    #[test]
    fn a_trace_starts_again_at_its_end() {
        let trace = Trace::new(1, 10);
        let some: Vec<_> = trace.endless(64).take(LENGTH / 64 + 1).collect();
        assert_eq!(some.first(), some.last());
    }
}
