//! Columns that line up.

use std::io::{self, Write};

/// How wide the first column gets: one long key shall not push all others' lines apart.
const KEY_WIDTH: usize = 40;

/// Rows of text under a header. Columns are as wide as the widest text so far, so the
/// pages of a long list keep their shape.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    widths: [usize; N],
    right: [bool; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table with this header; a column whose name ends with `>` is flush right.
    pub(crate) fn new(header: [&str; N]) -> Self {
        let mut table = Self {
            widths: [0; N],
            right: header.map(|name| name.ends_with('>')),
            rows: Vec::new(),
        };
        table.push(header.map(|name| name.trim_end_matches('>').to_owned()));
        table
    }

    pub(crate) fn push(&mut self, row: [String; N]) {
        for (width, text) in self.widths.iter_mut().zip(&row) {
            *width = (*width).max(text.chars().count());
        }
        if let Some(key) = self.widths.first_mut() {
            *key = (*key).min(KEY_WIDTH);
        }
        self.rows.push(row);
    }

    /// Writes the rows that are new since the last time.
    pub(crate) fn write(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let mut page = String::new();
        for row in self.rows.drain(..) {
            let mut line = String::new();
            for ((text, width), right) in row.iter().zip(self.widths).zip(self.right) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                if right {
                    line.push_str(&format!("{text:>width$}"));
                } else {
                    line.push_str(&format!("{text:<width$}"));
                }
            }
            page.push_str(line.trim_end());
            page.push('\n');
        }
        out.write_all(page.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_key_is_whole_and_does_not_widen_its_column() {
        let mut table = Table::new(["KEY", "STATE"]);
        let long = "k".repeat(100);
        table.push([long.clone(), "done".into()]);
        table.push(["a".into(), "dead".into()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], format!("{long}  done"));
        assert_eq!(lines[2], format!("{:<40}  dead", "a"));
    }

    #[test]
    fn columns_line_up_by_characters_and_keep_their_width() {
        let mut table = Table::new(["KEY", "N>", "STATE"]);
        table.push(["größe".into(), "7".into(), "done".into()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        table.push(["a".into(), "12".into(), "x".into()]);
        table.write(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "KEY    N  STATE\ngröße  7  done\na      12  x\n"
        );
    }
}
