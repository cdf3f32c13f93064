//! What a run comes to, for people.

use std::fmt::Display;

/// Prints a title and aligned rows.
pub(crate) fn print(title: &str, rows: &[(&str, String)]) {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    println!("\n{title}");
    for (name, value) in rows {
        println!("  {name:<width$}  {value}");
    }
}

/// Spans in microseconds, ranked.
#[derive(Debug)]
pub(crate) struct Spans(Vec<u64>);

impl Spans {
    pub(crate) fn new(spans_us: impl IntoIterator<Item = u64>) -> Self {
        let mut spans: Vec<_> = spans_us.into_iter().collect();
        spans.sort_unstable();
        Self(spans)
    }

    /// The span that `percent` of a hundred do not exceed.
    pub(crate) fn at(&self, percent: usize) -> u64 {
        let place = (self.0.len() * percent).div_ceil(100);
        self.0.get(place.saturating_sub(1)).copied().unwrap_or(0)
    }

    /// Median and longest.
    pub(crate) fn typical(&self) -> String {
        format!("p50 {}, max {}", millis(self.at(50)), millis(self.at(100)))
    }

    /// Median, the tail, and how many there are.
    pub(crate) fn ranked(&self) -> String {
        quantiles(self.at(50), self.at(99), self.at(100)) + &format!("  ({})", self.0.len())
    }
}

/// Three ranks in one form.
pub(crate) fn quantiles(p50_us: u64, p99_us: u64, max_us: u64) -> String {
    let [p50, p99, max] = [p50_us, p99_us, max_us].map(millis);
    format!("p50 {p50}, p99 {p99}, max {max}")
}

fn millis(us: u64) -> impl Display {
    format!("{}.{:03} ms", us / 1_000, us % 1_000)
}
