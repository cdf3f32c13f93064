//! What was wanted of ours, next to what was seen.

use std::fmt::Write as _;

use crate::peer::Name;
use crate::results::{Kind, Results};
use crate::statistics::{figure, whole};

struct Target {
    what: String,
    bound: Bound,
    unit: &'static str,
    seen: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn verdict(&self) -> &'static str {
        match (self.seen, self.bound) {
            (None, _) => "not measured",
            (Some(seen), Bound::AtLeast(least)) if seen >= least => "met",
            (Some(seen), Bound::AtMost(most)) if seen <= most => "met",
            _ => "**MISSED**",
        }
    }

    fn wanted(&self) -> String {
        let (word, value) = match self.bound {
            Bound::AtLeast(value) => ("at least", value),
            Bound::AtMost(value) => ("at most", value),
        };
        // Chosen, not measured: without digits that say nothing.
        let value = if value >= 1_000.0 {
            figure(value)
        } else {
            value.to_string()
        };
        format!("{word} {value}{}", self.unit)
    }
}

/// The table of all targets.
pub(super) fn write(page: &mut String, results: &Results) {
    page.push_str(
        "\n## Targets\n\n\
         Raw is one append and one sync into a preallocated file, of the same batches in the same \
         round.\n\n\
         | ours, log in front | wanted | seen | |\n|---|---|---|---|\n",
    );
    let targets = all(results);
    for target in &targets {
        let seen = target
            .seen
            .map(|seen| format!("{}{}", figure(seen), target.unit));
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} |",
            target.what,
            target.wanted(),
            seen.unwrap_or_default(),
            target.verdict()
        );
    }
    let missed = targets
        .iter()
        .filter(|t| t.verdict() == "**MISSED**")
        .count();
    let measured = targets.iter().filter(|t| t.seen.is_some()).count();
    let _ = writeln!(
        page,
        "\n{missed} of {measured} that were measured were missed; {} were not measured.",
        targets.len() - measured
    );
}

fn all(results: &Results) -> Vec<Target> {
    let mut targets = Vec::new();
    for (peer, label) in [
        (Name::CountwheelLog, "store"),
        (Name::EngineLog, "engine, as many callers"),
    ] {
        for (batch, percent) in [(1, 85.0), (16, 50.0), (256, 30.0), (4_096, 10.0)] {
            let kind = Kind::Insert { batch };
            let share = results
                .share(kind, peer, "per_s")
                .map(|share| share * 100.0);
            targets.push(Target {
                what: format!("acknowledged inserts at {}, {label}", whole(batch as u64)),
                bound: Bound::AtLeast(percent),
                unit: " % of raw",
                seen: share,
            });
        }
    }
    let insert = Kind::Insert { batch: 256 };
    let of_insert = |figure: &str| results.figure(insert, Name::CountwheelLog, figure);
    targets.push(Target {
        what: "commit p99 at 256".to_owned(),
        bound: Bound::AtMost(1.0),
        unit: " ms",
        seen: of_insert("commit_p99_ms"),
    });
    lives(results, &mut targets);
    targets
}

/// Those of a store with many timers in it: the largest that was measured.
fn lives(results: &Results, targets: &mut Vec<Target>) {
    let mut sizes: Vec<u64> = results
        .kinds()
        .into_iter()
        .filter_map(|kind| match kind {
            Kind::Life { live } => Some(live),
            Kind::Insert { .. } | Kind::Removed { .. } => None,
        })
        .collect();
    sizes.sort_unstable();
    let live = sizes.last().copied().unwrap_or(10_000_000);
    let of_size =
        |live: u64, figure: &str| results.figure(Kind::Life { live }, Name::CountwheelLog, figure);
    let seen = |figure: &str| of_size(live, figure);
    let at = format!("with {} timers", whole(live));
    let raw = results.figure(Kind::Insert { batch: 256 }, Name::RawPreallocated, "per_s");
    let load_share = seen("load_per_s")
        .zip(raw)
        .map(|(load, raw)| 100.0 * load / raw);
    let mebibytes = |bytes: f64| bytes / f64::from(1 << 20);
    let growth = match sizes.as_slice() {
        [.., smaller, larger] => of_size(*larger, "reopen_ms")
            .zip(of_size(*smaller, "reopen_ms"))
            .map(|(larger, smaller)| larger / smaller),
        _ => None,
    };
    for (what, bound, unit, seen) in [
        (
            "all-far load in the end in the sorted store, of raw at 256".to_owned(),
            Bound::AtLeast(10.0),
            " % of raw",
            load_share,
        ),
        (
            format!("longest commit while segments are flushed, {at}"),
            Bound::AtMost(50.0),
            " ms",
            seen("far_max_ms").map(|far| far.max(seen("near_max_ms").unwrap_or(0.0))),
        ),
        (
            format!("near-heavy steady state {at}"),
            Bound::AtLeast(500_000.0),
            " changes/s",
            seen("near_per_s"),
        ),
        (
            format!("all-far steady state {at}"),
            Bound::AtLeast(120_000.0),
            " changes/s",
            seen("far_per_s"),
        ),
        (
            format!("write amplification near-heavy {at}"),
            Bound::AtMost(2.0),
            "",
            seen("near_device_wa"),
        ),
        (
            format!("write amplification all-far {at}"),
            Bound::AtMost(3.5),
            "",
            seen("far_device_wa"),
        ),
        (
            format!("window load {at}"),
            Bound::AtLeast(1_000_000.0),
            " records/s",
            seen("scan_cursor_per_s"),
        ),
        (
            format!("first record, cold, after deliveries, {at}"),
            Bound::AtMost(10.0),
            " ms",
            seen("scan_cold_first_ms"),
        ),
        (
            format!("open after `kill -9` {at}"),
            Bound::AtMost(1_000.0),
            " ms",
            seen("reopen_ms"),
        ),
        (
            "the same, from the next smaller size to this one".to_owned(),
            Bound::AtMost(2.0),
            " times",
            growth,
        ),
        (
            format!("resident memory {at}"),
            Bound::AtMost(512.0),
            " MiB",
            seen("resident").map(mebibytes),
        ),
        (
            format!("disk to logical {at}"),
            Bound::AtMost(1.0),
            "",
            seen("disk_to_logical"),
        ),
    ] {
        targets.push(Target {
            what,
            bound,
            unit,
            seen,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_missed_or_not_measured() {
        let verdict = |bound, seen| {
            let target = Target {
                what: String::new(),
                bound,
                unit: "",
                seen,
            };
            target.verdict()
        };
        assert_eq!(verdict(Bound::AtLeast(5.0), Some(5.0)), "met");
        assert_eq!(verdict(Bound::AtLeast(5.0), Some(4.9)), "**MISSED**");
        assert_eq!(verdict(Bound::AtMost(5.0), Some(5.1)), "**MISSED**");
        assert_eq!(verdict(Bound::AtMost(5.0), None), "not measured");
        assert_eq!(verdict(Bound::AtMost(5.0), Some(f64::NAN)), "**MISSED**");
    }
}
