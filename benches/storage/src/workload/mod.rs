//! What is measured: one file each.

pub(crate) mod check;
pub(crate) mod footprint;
pub(crate) mod insert;
pub(crate) mod life;
pub(crate) mod random;
pub(crate) mod removed;
pub(crate) mod reopen;
pub(crate) mod scan;
pub(crate) mod steady;

use std::collections::BTreeMap;

use crate::statistics::Quantiles;

/// What one measurement delivers, by name.
pub(crate) type Figures = BTreeMap<String, f64>;

/// How many changes share a commit, but where the workload says otherwise.
pub(crate) const BATCH: usize = 256;

/// How many changes share a commit where only the end counts.
pub(crate) const LOAD_BATCH: usize = 16_384;

/// Adds quantiles under names that begin with `prefix`.
pub(crate) fn add_quantiles(figures: &mut Figures, prefix: &str, quantiles: Quantiles) {
    for (name, value) in [
        ("p50_ms", quantiles.p50_ms),
        ("p99_ms", quantiles.p99_ms),
        ("p999_ms", quantiles.p999_ms),
        ("max_ms", quantiles.max_ms),
    ] {
        figures.insert(format!("{prefix}_{name}"), value);
    }
}
