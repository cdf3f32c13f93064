//! The list of tables of the workloads with threads.

use super::results::Threaded;
use super::workload::Workload;
use crate::grid::{Grid, Shape, Tables};

/// Every table there is something to put in.
pub(crate) fn grids(found: &Threaded) -> Vec<Grid> {
    Grid::all(&TABLES, &found.samples)
}

const CHURN: Shape = Shape::Loads(&[
    (("mops", "throughput"), "million operations/s"),
    (("cpu", "processor time"), "ns/operation"),
    (("p50", "one schedule, p50"), "ns"),
    (("p99", "one schedule, p99"), "ns"),
    (("p99.9", "one schedule, p99.9"), "ns"),
    (("max", "one schedule, longest"), "ns"),
    (("settle", "left to do at the end"), "ms"),
]);

/// All of them, in the order of the report.
const TABLES: [Tables<Workload>; 5] = [
    Tables {
        workload: Workload::W4,
        title: "W4 schedule and cancel",
        shape: CHURN,
    },
    Tables {
        workload: Workload::W4x,
        title: "W4x cancel on another thread",
        shape: CHURN,
    },
    Tables {
        workload: Workload::W5,
        title: "W5 lateness",
        shape: Shape::Figures(
            &[
                ("min", "least"),
                ("p50", "p50"),
                ("p99", "p99"),
                ("p99.9", "p99.9"),
                ("max", "most"),
                ("early", "early timers"),
                ("cpu", "processor, ms"),
            ],
            "µs",
            None,
        ),
    },
    Tables {
        workload: Workload::W6t,
        title: "W6t memory",
        shape: Shape::Figures(
            &[("bytes", "without handle"), ("with-handle", "with handle")],
            "bytes/timer",
            None,
        ),
    },
    Tables {
        workload: Workload::W7,
        title: "W7 idle",
        shape: Shape::Figures(
            &[("cpu", "processor, ms"), ("switches", "voluntary switches")],
            "in all",
            None,
        ),
    },
];
