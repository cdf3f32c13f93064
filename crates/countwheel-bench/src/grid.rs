//! The tables of the measurements on the real clock: a row for each peer, and columns for loads or
//! for figures.

use std::fmt::Write as _;

use crate::cell::{self, Cell, Entrant, Loaded, Measured};
use crate::choice::Word as _;
use crate::results::Entry;
use crate::table::{number, thousands};

/// One table.
pub(crate) struct Grid {
    title: String,
    unit: &'static str,
    columns: Vec<String>,
    rows: Vec<Row>,
}

struct Row {
    label: &'static str,
    emphasised: String,
    cells: Vec<String>,
}

/// A figure by its key, and how it is called.
pub(crate) type Figure = (&'static str, &'static str);

/// Tables that go together.
pub(crate) struct Tables<W> {
    pub(crate) workload: W,
    pub(crate) title: &'static str,
    pub(crate) shape: Shape,
}

#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// One table for each figure with its unit, a column for each load.
    Loads(&'static [(Figure, &'static str)]),
    /// One table for each load, a column for each figure; the unit is that of most of them.
    /// A last column compares the first figure, if it is said what is better.
    Figures(&'static [Figure], &'static str, Option<Better>),
}

/// Which figure is the better one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    More,
    Less,
}

impl Better {
    /// How many times better `this` is than `other`, if that can be said.
    fn times(self, this: f64, other: f64) -> Option<f64> {
        let (above, below) = match self {
            Self::More => (this, other),
            Self::Less => (other, this),
        };
        (above > 0.0 && below > 0.0).then(|| above / below)
    }
}

impl Grid {
    /// Every table there is something to put in.
    pub(crate) fn all<W: Loaded, N: Entrant>(
        all: &[Tables<W>],
        samples: &[Measured<W, N>],
    ) -> Vec<Self> {
        let mut grids = Vec::new();
        for tables in all {
            for short in [false, true] {
                let loads = cell::loads(samples, tables.workload, short);
                if !loads.is_empty() {
                    tables.add(samples, &loads, short, &mut grids);
                }
            }
        }
        grids
    }

    /// As text in columns, each as wide as it has to be.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{} ({})\n{:<42}", self.title, self.unit, "");
        let width = |place: usize| {
            let cells = self.rows.iter().map(|row| &row.cells[place]);
            let widths = cells.chain([&self.columns[place]]);
            widths.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |text: &mut String, cells: &[String]| {
            for (cell, width) in cells.iter().zip(&widths) {
                let _ = write!(text, "  {cell:>width$}");
            }
        };
        line(&mut text, &self.columns);
        for row in &self.rows {
            let _ = write!(text, "\n{:<42}", row.label);
            line(&mut text, &row.cells);
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
        for row in &self.rows {
            let _ = writeln!(text, "| {} | {} |", row.emphasised, row.cells.join(" | "));
        }
        text
    }
}

impl<W: Loaded> Tables<W> {
    fn add<N: Entrant>(
        &self,
        samples: &[Measured<W, N>],
        loads: &[u64],
        short: bool,
        grids: &mut Vec<Grid>,
    ) {
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
                    grids.push(grid(samples, title, unit, columns.collect()));
                }
            }
            Shape::Figures(figures, unit, better) => {
                for &load in loads {
                    let columns = figures
                        .iter()
                        .map(|&figure| column(load, figure, String::new()));
                    let columns: Vec<Column<W>> = columns.collect();
                    let title = format!("{}, {}{suffix}", self.title, with_unit(workload, load));
                    let ratios = better.map(|better| ratios(samples, &columns[0], better));
                    let mut grid = grid(samples, title, unit, columns);
                    if let Some(ratios) = ratios {
                        grid.columns.push("ratio".to_owned());
                        for row in &mut grid.rows {
                            let of_row = ratios.iter().find(|(label, _)| *label == row.label);
                            let text = of_row.map(|(_, text)| text.clone());
                            row.cells.push(text.unwrap_or_default());
                        }
                    }
                    grids.push(grid);
                }
            }
        }
    }
}

/// As in "8 threads".
fn with_unit(workload: impl Loaded, load: u64) -> String {
    let unit = workload.unit();
    let unit = if load == 1 {
        unit.trim_end_matches('s')
    } else {
        unit
    };
    format!("{} {unit}", thousands(load))
}

struct Column<W> {
    workload: W,
    load: u64,
    short: bool,
    figure: &'static str,
    title: String,
}

impl<W: Loaded> Column<W> {
    fn entry<N: Entrant>(&self, samples: &[Measured<W, N>], peer: N) -> Option<Entry> {
        let cell = Cell {
            workload: self.workload,
            load: self.load,
            short: self.short,
            peer,
        };
        cell::entry(samples, cell, self.figure)
    }

    /// A least lateness below zero stands out: who is early must not be overlooked.
    fn text(&self, entry: &Entry) -> String {
        let is_early = match entry {
            Entry::Measured(summary) => self.figure == "min" && summary.min < 0.0,
            Entry::OverSeconds(_) | Entry::Failed => false,
        };
        let early = if is_early { " EARLY" } else { "" };
        format!("{}{early}", crate::table::cell(entry))
    }
}

fn grid<W: Loaded, N: Entrant>(
    samples: &[Measured<W, N>],
    title: String,
    unit: &'static str,
    columns: Vec<Column<W>>,
) -> Grid {
    let row = |&name: &N| {
        let entries: Vec<Option<Entry>> = columns
            .iter()
            .map(|column| column.entry(samples, name))
            .collect();
        let texts = columns.iter().zip(&entries).map(|(column, entry)| {
            let entry = entry.as_ref();
            entry.map_or_else(String::new, |entry| column.text(entry))
        });
        let is_there = entries.iter().any(Option::is_some);
        is_there.then(|| Row {
            label: name.label(),
            emphasised: name.emphasised(),
            cells: texts.collect(),
        })
    };
    Grid {
        title,
        unit,
        rows: N::value_variants().iter().filter_map(row).collect(),
        columns: columns.into_iter().map(|column| column.title).collect(),
    }
}

/// For each of ours, how many times better its median is than that of the best other; for
/// each other, how many times better our best is.
fn ratios<W: Loaded, N: Entrant>(
    samples: &[Measured<W, N>],
    column: &Column<W>,
    better: Better,
) -> Vec<(&'static str, String)> {
    let median = |&name: &N| Some((name, column.entry(samples, name)?.median()?));
    let medians: Vec<(N, f64)> = N::value_variants().iter().filter_map(median).collect();
    let best = |ours: bool| {
        let camp = medians.iter().copied().filter(|(n, _)| n.is_ours() == ours);
        camp.reduce(|a, b| {
            let is_more = b.1 > a.1;
            if is_more == (better == Better::More) {
                b
            } else {
                a
            }
        })
    };
    let (our_best, best_other) = (best(true), best(false));
    let text = |&(name, median): &(N, f64)| {
        let ratio = if name.is_ours() {
            let (other, its) = best_other?;
            (better.times(median, its)?, other)
        } else {
            let (ours, its) = our_best?;
            (better.times(its, median)?, ours)
        };
        let text = format!("{}x to {}", number(ratio.0), ratio.1.word());
        Some((name.label(), text))
    };
    medians.iter().filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_is_more_or_less() {
        assert_eq!(Better::More.times(6.0, 2.0), Some(3.0));
        assert_eq!(Better::Less.times(6.0, 2.0).map(number).unwrap(), "0.333");
        // What is lost in the noise cannot be compared.
        assert_eq!(Better::Less.times(-1.0, 2.0), None);
        assert_eq!(Better::More.times(1.0, 0.0), None);
    }
}
