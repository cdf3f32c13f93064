//! Medians and percentiles of few numbers.

/// Median, least and greatest of some samples.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// `None` of no samples.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(*sorted.get(middle.wrapping_sub(1))?, sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self {
            median,
            min: *sorted.first()?,
            max: *sorted.last()?,
        })
    }
}

/// The least of the sorted samples that `part` of them do not exceed; `None` of no samples.
pub(crate) fn percentile<T: Copy>(sorted: &[T], part: f64) -> Option<T> {
    let wanted = part * sorted.len() as f64;
    let exceeded = (0_u32..)
        .zip(sorted)
        .find(|&(before, _)| f64::from(before) + 1.0 >= wanted);
    exceeded.map(|(_, &value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_between_the_middle_two() {
        let odd = Summary::of(&[3.0, 1.0, 2.0]);
        let (median, min, max) = (2.0, 1.0, 3.0);
        assert_eq!(odd, Some(Summary { median, min, max }));
        assert_eq!(Summary::of(&[1.0, 4.0]).map(|s| s.median), Some(2.5));
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_percentile_is_one_of_the_samples() {
        let samples: Vec<u32> = (1..=1000).collect();
        assert_eq!(percentile(&samples, 0.5), Some(500));
        assert_eq!(percentile(&samples, 0.999), Some(999));
        assert_eq!(percentile(&samples, 1.0), Some(1000));
        assert_eq!(percentile(&[7], 0.5), Some(7));
        assert_eq!(percentile::<u32>(&[], 0.5), None);
    }
}
