//! The log of failed attempts: for each target the first, the tenth, the hundredth and so on, and a
//! line when the target answers again. A receiver that is away for an hour fails thousands of
//! attempts, and a line for each would hide all other lines.

use std::collections::HashMap;

use axum::http::uri::Authority;
use parking_lot::Mutex;

/// The failures of so many targets are told apart. Those of others are counted together.
const TARGETS_MAX: usize = 1_024;

/// How many attempts of each target have failed since one succeeded.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    by_target: HashMap<Authority, u64>,
    others: u64,
}

/// How many attempts have failed, if that is worth a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failed {
    pub(crate) attempts: u64,
    /// Of this target alone.
    pub(crate) is_own: bool,
}

impl Failures {
    /// An attempt has failed.
    pub(crate) fn failed(&self, target: &Authority) -> Option<Failed> {
        let mut counts = self.0.lock();
        let is_own = counts.by_target.contains_key(target) || counts.by_target.len() < TARGETS_MAX;
        let count = if is_own {
            counts.by_target.entry(target.clone()).or_default()
        } else {
            &mut counts.others
        };
        *count = count.saturating_add(1);
        let attempts = *count;
        is_power_of_ten(attempts).then_some(Failed { attempts, is_own })
    }

    /// An attempt has succeeded. Says how many have failed before.
    pub(crate) fn succeeded(&self, target: &Authority) -> Option<u64> {
        self.0.lock().by_target.remove(target)
    }
}

fn is_power_of_ten(mut number: u64) -> bool {
    while number >= 10 && number.is_multiple_of(10) {
        number /= 10;
    }
    number == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(number: usize) -> Authority {
        let text = format!("host-{number}:80");
        text.parse().expect("an authority")
    }

    #[test]
    fn a_target_that_is_away_has_a_line_for_each_power_of_ten() {
        let failures = Failures::default();
        let target = target(1);
        for _ in 0..2 {
            let told = (0..12_345).filter_map(|_| failures.failed(&target));
            let told: Vec<u64> = told.map(|told| told.attempts).collect();
            assert_eq!(told, [1, 10, 100, 1_000, 10_000]);
            assert_eq!(failures.succeeded(&target), Some(12_345));
            assert_eq!(failures.succeeded(&target), None);
        }
    }

    #[test]
    fn what_is_kept_of_targets_is_bounded() {
        let failures = Failures::default();
        let own = (0..5_000).filter_map(|number| failures.failed(&target(number)));
        let (own, others): (Vec<_>, Vec<_>) = own.partition(|told| told.is_own);
        assert_eq!(own.len(), TARGETS_MAX);
        let others: Vec<u64> = others.iter().map(|told| told.attempts).collect();
        assert_eq!(others, [1, 10, 100, 1_000]);
        assert_eq!(failures.succeeded(&target(0)), Some(1));
        assert_eq!(
            failures.failed(&target(4_999)).map(|told| told.is_own),
            Some(true)
        );
    }
}
