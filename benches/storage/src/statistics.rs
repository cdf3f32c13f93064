//! Medians and percentiles, and how a figure is written.

use serde::{Deserialize, Serialize};

/// The middle of some samples, or between the middle two; `None` of none.
pub(crate) fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        Some(f64::midpoint(
            *sorted.get(middle.wrapping_sub(1))?,
            sorted[middle],
        ))
    } else {
        Some(sorted[middle])
    }
}

/// How long many calls took. 4 bytes a call; a call over 4.2 s counts as 4.2 s.
#[derive(Clone, Default, Debug)]
pub(crate) struct Durations {
    nanoseconds: Vec<u32>,
    sum: u64,
}

impl Durations {
    /// What is as long or longer counts as this, in milliseconds.
    pub(crate) const LONGEST_MS: f64 = 4_294.967_295;

    pub(crate) fn record(&mut self, nanoseconds: u64) {
        self.sum += nanoseconds;
        self.nanoseconds
            .push(u32::try_from(nanoseconds).unwrap_or(u32::MAX));
    }

    pub(crate) fn len(&self) -> usize {
        self.nanoseconds.len()
    }

    /// All of them together, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.sum as f64 / 1e9
    }

    /// What is published of them; zeros of none.
    pub(crate) fn quantiles(mut self) -> Quantiles {
        self.nanoseconds.sort_unstable();
        let at = |part| percentile(&self.nanoseconds, part).map_or(0.0, |ns| f64::from(ns) / 1e6);
        Quantiles {
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: at(1.0),
        }
    }
}

/// How long calls took, in milliseconds.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    pub(crate) max_ms: f64,
}

/// The least of the sorted samples that `part` of them do not exceed; `None` of no samples.
pub(crate) fn percentile<T: Copy>(sorted: &[T], part: f64) -> Option<T> {
    let wanted = (part * sorted.len() as f64).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number from 0 to the length"
    )]
    let rank = wanted as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// A figure with three digits that count: `0.0123`, `4.50`, `128`, `1,450,000`.
pub(crate) fn figure(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "-".to_owned();
    }
    if size >= 1000.0 {
        return grouped(value);
    }
    let digits = match size {
        s if s >= 100.0 => 0,
        s if s >= 10.0 => 1,
        s if s >= 1.0 => 2,
        s if s >= 0.1 => 3,
        s if s > 0.0 => 4,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// A number that was counted or chosen: `16`, `1,000,000`.
pub(crate) fn whole(number: u64) -> String {
    grouped(number as f64)
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_between_the_middle_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_percentile_is_one_of_the_samples() {
        let samples: Vec<u32> = (1..=1000).collect();
        assert_eq!(percentile(&samples, 0.5), Some(500));
        assert_eq!(percentile(&samples, 0.99), Some(990));
        assert_eq!(percentile(&samples, 0.999), Some(999));
        assert_eq!(percentile(&samples, 1.0), Some(1000));
        assert_eq!(percentile(&[7], 0.5), Some(7));
        assert_eq!(percentile::<u32>(&[], 0.5), None);
    }

    #[test]
    fn durations_are_given_in_milliseconds() {
        let mut durations = Durations::default();
        for ms in [1_u64, 2, 3, 4] {
            durations.record(ms * 1_000_000);
        }
        durations.record(u64::MAX >> 1);
        let quantiles = durations.clone().quantiles();
        assert_eq!(quantiles.p50_ms, 3.0);
        assert!(quantiles.max_ms > 4_000.0);
        assert_eq!(Durations::default().quantiles(), Quantiles::default());
    }

    #[test]
    fn figures_have_three_digits_that_count() {
        for (value, text) in [
            (0.0, "0"),
            (0.01234, "0.0123"),
            (0.5, "0.500"),
            (4.5, "4.50"),
            (12.34, "12.3"),
            (128.4, "128"),
            (1_450_000.0, "1,450,000"),
            (-1_450.0, "-1,450"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(figure(value), text);
        }
        assert_eq!(
            (whole(16), whole(10_000_000)),
            ("16".to_owned(), "10,000,000".to_owned())
        );
    }
}
