//! The tables of the workloads with threads: a row for each peer, and columns for
//! loads or for figures.

use std::fmt::Write as _;

use super::peer::Name;
use super::results::{Cell, Threaded};
use super::workload::Workload;
use crate::results::Entry;
use crate::table::{cell, thousands};

/// One table.
pub(crate) struct Grid {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    columns: Vec<String>,
    rows: Vec<(Name, Vec<String>)>,
}

/// A figure by its key, and how it is called.
type Figure = (&'static str, &'static str);

/// Tables that go together.
struct Tables {
    workload: Workload,
    title: &'static str,
    shape: Shape,
}

enum Shape {
    /// One table for each figure with its unit, a column for each load.
    Loads(&'static [(Figure, &'static str)]),
    /// One table for each load, a column for each figure; the unit is that of most of them.
    Figures(&'static [Figure], &'static str),
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
const TABLES: [Tables; 5] = [
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
        ),
    },
    Tables {
        workload: Workload::W6t,
        title: "W6t memory",
        shape: Shape::Figures(
            &[("bytes", "without handle"), ("with-handle", "with handle")],
            "bytes/timer",
        ),
    },
    Tables {
        workload: Workload::W7,
        title: "W7 idle",
        shape: Shape::Figures(
            &[("cpu", "processor, ms"), ("switches", "voluntary switches")],
            "in all",
        ),
    },
];

impl Grid {
    /// Every table there is something to put in.
    pub(crate) fn all(found: &Threaded) -> Vec<Self> {
        let mut grids = Vec::new();
        for tables in &TABLES {
            for short in [false, true] {
                let loads = found.loads(tables.workload, short);
                if !loads.is_empty() {
                    tables.add(found, &loads, short, &mut grids);
                }
            }
        }
        grids
    }

    /// As text in columns, each as wide as it has to be.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{} ({})\n{:<42}", self.title, self.unit, "");
        let width = |place: usize| {
            let cells = self.rows.iter().map(|(_, cells)| &cells[place]);
            let widths = cells.chain([&self.columns[place]]);
            widths.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let row = |text: &mut String, cells: &[String]| {
            for (cell, width) in cells.iter().zip(&widths) {
                let _ = write!(text, "  {cell:>width$}");
            }
        };
        row(&mut text, &self.columns);
        for (name, cells) in &self.rows {
            let _ = write!(text, "\n{:<42}", name.label());
            row(&mut text, cells);
        }
        text + "\n"
    }

    /// As a table in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!(
            "\n### {}\n\n| {} | {} |\n|---|{}\n",
            self.title,
            self.unit,
            self.columns.join(" | "),
            "---|".repeat(self.columns.len())
        );
        for (name, cells) in &self.rows {
            let _ = writeln!(text, "| {} | {} |", name.emphasised(), cells.join(" | "));
        }
        text
    }
}

impl Tables {
    fn add(&self, found: &Threaded, loads: &[u64], short: bool, grids: &mut Vec<Grid>) {
        let suffix = if short { ", SHORT RUN" } else { "" };
        let workload = self.workload;
        let column = |load, (figure, head): Figure, title: String| Column {
            workload,
            load,
            short,
            figure,
            title: if title.is_empty() {
                head.to_owned()
            } else {
                title
            },
        };
        match self.shape {
            Shape::Loads(figures) => {
                for &(figure, unit) in figures {
                    let columns = loads
                        .iter()
                        .map(|&load| column(load, figure, with_unit(workload, load)));
                    let title = format!("{}, {}{suffix}", self.title, figure.1);
                    grids.push(grid(found, title, unit, columns.collect()));
                }
            }
            Shape::Figures(figures, unit) => {
                for &load in loads {
                    let columns = figures
                        .iter()
                        .map(|&figure| column(load, figure, String::new()));
                    let title = format!("{}, {}{suffix}", self.title, with_unit(workload, load));
                    grids.push(grid(found, title, unit, columns.collect()));
                }
            }
        }
    }
}

/// As in "8 threads".
fn with_unit(workload: Workload, load: u64) -> String {
    let unit = workload.unit();
    let unit = if load == 1 {
        unit.trim_end_matches('s')
    } else {
        unit
    };
    format!("{} {unit}", thousands(load))
}

struct Column {
    workload: Workload,
    load: u64,
    short: bool,
    figure: &'static str,
    title: String,
}

impl Column {
    fn entry(&self, found: &Threaded, peer: Name) -> Option<Entry> {
        let cell = Cell {
            workload: self.workload,
            load: self.load,
            short: self.short,
            peer,
        };
        found.entry(cell, self.figure)
    }

    /// A figure of its own stands out: who is early must not be overlooked.
    fn text(&self, entry: &Entry) -> String {
        let is_early = match entry {
            Entry::Measured(summary) => {
                self.workload == Workload::W5 && self.figure == "min" && summary.min < 0.0
            }
            Entry::OverSeconds(_) | Entry::Failed => false,
        };
        format!("{}{}", cell(entry), if is_early { " EARLY" } else { "" })
    }
}

fn grid(found: &Threaded, title: String, unit: &'static str, columns: Vec<Column>) -> Grid {
    let row = |&name: &Name| {
        let entries: Vec<Option<Entry>> = columns
            .iter()
            .map(|column| column.entry(found, name))
            .collect();
        let texts = columns.iter().zip(&entries).map(|(column, entry)| {
            let entry = entry.as_ref();
            entry.map_or_else(String::new, |entry| column.text(entry))
        });
        let is_there = entries.iter().any(Option::is_some);
        is_there.then(|| (name, texts.collect()))
    };
    Grid {
        title,
        unit,
        rows: Name::all().iter().filter_map(row).collect(),
        columns: columns.into_iter().map(|column| column.title).collect(),
    }
}
