//! A table: a row for each candidate, a column for each figure.

use std::fmt::Write as _;

use crate::peer::Name;
use crate::results::{Kind, Results};
use crate::statistics::figure;

/// One figure of all candidates.
pub(super) struct Column {
    head: String,
    figure: String,
    show: Show,
}

enum Show {
    Plain,
    /// As a share of the limit in the same round.
    Share,
    Mebibytes,
}

impl Column {
    fn new(head: &str, figure: &str, show: Show) -> Self {
        Self {
            head: head.to_owned(),
            figure: figure.to_owned(),
            show,
        }
    }

    pub(super) fn plain(head: &str, figure: &str) -> Self {
        Self::new(head, figure, Show::Plain)
    }

    pub(super) fn share(head: &str, figure: &str) -> Self {
        Self::new(head, figure, Show::Share)
    }

    pub(super) fn mebibytes(head: &str, figure: &str) -> Self {
        Self::new(head, figure, Show::Mebibytes)
    }

    /// How long commits took.
    pub(super) fn quantiles(prefix: &str) -> [Self; 4] {
        [
            ("p50 ms", "p50_ms"),
            ("p99 ms", "p99_ms"),
            ("p99.9 ms", "p999_ms"),
            ("max ms", "max_ms"),
        ]
        .map(|(head, name)| Self::plain(head, &format!("{prefix}_{name}")))
    }

    fn cell(&self, results: &Results, kind: Kind, peer: Name) -> Option<String> {
        let value = match self.show {
            Show::Share => results.share(kind, peer, &self.figure)?,
            _ => results.figure(kind, peer, &self.figure)?,
        };
        Some(match self.show {
            Show::Plain => figure(value),
            Show::Share => format!("{} %", figure(value * 100.0)),
            Show::Mebibytes => figure(value / f64::from(1 << 20)),
        })
    }
}

/// What a section shows.
pub(super) struct Table {
    title: String,
    columns: Vec<Column>,
}

impl Table {
    pub(super) fn new(title: String, columns: Vec<Column>) -> Self {
        Self { title, columns }
    }

    /// Those that have at least one of the figures, and those that failed.
    pub(super) fn write(&self, page: &mut String, results: &Results, kind: Kind) {
        let heads: Vec<&str> = self.columns.iter().map(|c| c.head.as_str()).collect();
        let _ = writeln!(
            page,
            "\n### {}\n\n| | {} |\n|---|{}",
            self.title,
            heads.join(" | "),
            "---|".repeat(heads.len())
        );
        for peer in results.peers(kind) {
            let cells: Vec<Option<String>> = self
                .columns
                .iter()
                .map(|column| column.cell(results, kind, peer))
                .collect();
            let failure = results.failure(kind, peer);
            if cells.iter().all(Option::is_none) && failure.is_none() {
                continue;
            }
            let mut cells: Vec<String> = cells.into_iter().map(Option::unwrap_or_default).collect();
            if let (Some(why), Some(first)) = (failure, cells.first_mut())
                && first.is_empty()
            {
                // The whole of it stands at the end of the page.
                *first = why.split(':').next().unwrap_or("failed").to_owned();
            }
            let _ = writeln!(page, "| {} | {} |", peer.emphasised(), cells.join(" | "));
        }
    }
}
