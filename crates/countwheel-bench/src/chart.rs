//! A picture of the main figures: bars on a logarithmic scale, as an SVG file.

use std::fmt::Write as _;

use crate::cell::Entrant as _;
use crate::competitor::Name;
use crate::results::{Pages, Results};
use crate::table::{FIGURES, Row, Table, number, thousands};
use crate::workload::USUAL;

/// The figures that are drawn, in this order.
const DRAWN: [&str; 4] = ["w1-schedule", "w1-cancel", "w2", "w3u"];

const WIDTH: f64 = 900.0;
const LABELS: f64 = 310.0;
const VALUES: f64 = 70.0;
const BARS: f64 = WIDTH - LABELS - VALUES;
const ROW: f64 = 22.0;
const HEAD: f64 = 46.0;
const GAP: f64 = 34.0;

const STYLE: &str = "
  svg { color-scheme: light dark; }
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; font-size: 15px; }
  .faint, .tick { fill: #656d76; }
  .tick { font-size: 11px; }
  .ours { font-weight: 600; }
  .bar { fill: #9aa4af; }
  .bar-ours { fill: #d9480f; }
  .line { stroke: #d0d7de; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .faint, .tick { fill: #9198a1; }
    .bar { fill: #656d76; }
    .bar-ours { fill: #ff922b; }
    .line { stroke: #3d444d; }
  }
";

/// The picture of a run; figures that were not measured are left out.
pub(crate) fn draw(results: &Results) -> String {
    let pages = results.pages().first().copied().unwrap_or(Pages::Default);
    let tables = DRAWN.iter().filter_map(|&key| {
        let figure = FIGURES.iter().find(|figure| figure.key == key)?;
        let sizes = results.sizes(pages, figure.workload);
        let timers = sizes.iter().rev().find(|&&timers| timers <= USUAL)?;
        Table::of(results, pages, figure, *timers)
    });

    let (mut panels, mut top) = (String::new(), 10.0);
    for table in tables {
        top = panel(&mut panels, &table, top) + GAP;
    }
    let _ = writeln!(
        panels,
        "<text class=\"tick\" x=\"0\" y=\"{top:.0}\">Medians of one run, logarithmic scale, \
         shorter is better. {}</text>",
        escaped(&format!(
            "{}, {} cores",
            results.machine.cpu, results.machine.cores
        ))
    );
    let height = top + 10.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" \
         role=\"img\" aria-label=\"Timer libraries compared, nanoseconds per operation\">\n\
         <style>{STYLE}</style>\n{panels}</svg>\n"
    )
}

/// Draws one table from `top` downwards, and says where it ends.
fn panel(svg: &mut String, table: &Table, top: f64) -> f64 {
    let mut rows: Vec<(&Row, f64)> = Vec::new();
    for row in &table.rows {
        rows.extend(row.entry.median().map(|median| (row, median)));
    }
    rows.sort_by(|a, b| a.1.total_cmp(&b.1));
    let scale = Scale::over(rows.iter().map(|row| row.1));
    let bottom = top + HEAD + ROW * rows.len() as f64;

    let _ = writeln!(
        svg,
        "<text class=\"title\" x=\"0\" y=\"{:.0}\">{} <tspan class=\"faint\">{}</tspan></text>",
        top + 15.0,
        escaped(&table.title),
        escaped(table.unit)
    );
    for power in scale.powers() {
        let (x, value) = (LABELS + scale.place(power), power);
        let _ = writeln!(
            svg,
            "<line class=\"line\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            top + HEAD - 6.0,
            top + HEAD - 10.0,
            if value < 1.0 {
                value.to_string()
            } else {
                thousands_of(value)
            }
        );
    }
    for (place, &(row, median)) in rows.iter().enumerate() {
        let y = top + HEAD + ROW * place as f64;
        bar(svg, row.name, median, scale.place(median), y);
    }
    bottom
}

fn bar(svg: &mut String, name: Name, median: f64, length: f64, y: f64) {
    let (text, fill) = if name.is_ours() {
        ("ours", "bar-ours")
    } else {
        ("", "bar")
    };
    let _ = writeln!(
        svg,
        "<text class=\"{text}\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
         <rect class=\"{fill}\" x=\"{LABELS:.0}\" y=\"{:.1}\" width=\"{length:.1}\" \
         height=\"{:.1}\" rx=\"2\"/>\
         <text class=\"{text}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        LABELS - 8.0,
        y + 15.0,
        escaped(name.label()),
        y + 3.0,
        ROW - 6.0,
        LABELS + length + 6.0,
        y + 15.0,
        number(median)
    );
}

/// A logarithmic scale between two powers of ten.
struct Scale {
    lowest: f64,
    highest: f64,
}

impl Scale {
    /// Every value gets a bar: the scale begins at or below half of the least.
    fn over(values: impl Iterator<Item = f64> + Clone) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let greatest = values.fold(1.0, f64::max);
        let lowest = if least.is_finite() && least > 0.0 {
            (least / 2.0).log10().floor()
        } else {
            0.0
        };
        Self {
            lowest,
            highest: greatest.log10().ceil().max(lowest + 1.0),
        }
    }

    fn place(&self, value: f64) -> f64 {
        (value.log10() - self.lowest) / (self.highest - self.lowest) * BARS
    }

    fn powers(&self) -> impl Iterator<Item = f64> {
        let (mut power, highest) = (self.lowest, self.highest);
        std::iter::from_fn(move || {
            let value = 10_f64.powf(power);
            power += 1.0;
            (power - 1.0 <= highest).then_some(value)
        })
    }
}

fn thousands_of(value: f64) -> String {
    let whole = format!("{value:.0}").parse();
    whole.map_or_else(|_| value.to_string(), thousands)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_is_well_formed_and_names_everybody() {
        let svg = draw(&crate::results::fixture());
        let (mut open, mut rest) = (Vec::new(), svg.as_str());
        while let Some((_, after)) = rest.split_once('<') {
            let (tag, after) = after.split_once('>').unwrap();
            rest = after;
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !tag.ends_with('/') {
                open.push(tag.split_whitespace().next().unwrap());
            }
        }
        assert!(open.is_empty(), "left open: {open:?}");
        assert!(svg.contains("W1 schedule, 1,000,000 timers"));
        assert!(svg.contains(">countwheel<") && svg.contains(">BTreeMap<"));
        assert!(!svg.contains("NaN") && !svg.contains("inf\""));
    }

    #[test]
    fn the_scale_spans_whole_powers_of_ten() {
        let scale = Scale::over([3.0, 450.0].into_iter());
        assert!(scale.powers().eq([1.0, 10.0, 100.0, 1000.0]));
        assert!(scale.place(3.0) > 0.0 && scale.place(1000.0) <= BARS);
    }
}
