//! The page about a run, in Markdown.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};

use crate::cell::Entrant as _;
use crate::latency::Latencies;
use crate::patterns;
use crate::results::{Pages, Results};
use crate::table::{Table, cell};
use crate::threaded;

/// The page about the runs, which must come from the same machine. Their samples are
/// put together.
pub(crate) fn write(command: &str, runs: &[Results]) -> anyhow::Result<String> {
    let results = together(runs)?;
    let mut page = String::new();
    head(&mut page, command, runs);
    machine(&mut page, &results);
    method(&mut page, &results);
    competitors(&mut page, &results);
    page.push_str("\n## Figures\n");
    for table in Table::all(&results) {
        if table.rows.iter().any(|row| row.entry.median().is_some()) {
            markdown(&mut page, &table);
        }
    }
    for table in Latencies::all(&results) {
        page.push_str(&table.markdown());
    }
    with_threads(&mut page, &results.threaded);
    with_patterns(&mut page, &results.patterns);
    Ok(page)
}

/// What was measured on the real clock, if anything was.
fn with_threads(page: &mut String, found: &threaded::Threaded) {
    let grids = threaded::grids(found);
    if grids.is_empty() && found.not_run.is_empty() {
        return;
    }
    page.push_str(threaded::explain());
    page.push_str(&threaded::peers(found));
    for grid in grids {
        page.push_str(&grid.markdown());
    }
}

/// What was measured of the patterns, if anything was.
fn with_patterns(page: &mut String, found: &patterns::Patterns) {
    let grids = patterns::grids(found);
    if grids.is_empty() {
        return;
    }
    page.push_str(patterns::explain());
    page.push_str(&patterns::peers(found));
    for grid in grids {
        page.push_str(&grid.markdown());
    }
}

fn together(runs: &[Results]) -> anyhow::Result<Results> {
    let (first, others) = runs.split_first().context("there is no run")?;
    let mut all = first.clone();
    for run in others {
        ensure!(
            (&run.machine.cpu, run.machine.cores, &run.machine.kernel)
                == (&all.machine.cpu, all.machine.cores, &all.machine.kernel),
            "the runs are from different machines"
        );
        all.samples.extend(run.samples.iter().cloned());
        all.threaded.extend(&run.threaded);
        all.patterns.extend(&run.patterns);
        for verdict in &run.verdicts {
            if all
                .verdicts
                .iter()
                .all(|v| v.competitor != verdict.competitor)
            {
                all.verdicts.push(verdict.clone());
            }
        }
    }
    Ok(all)
}

fn head(page: &mut String, command: &str, runs: &[Results]) {
    let _ = writeln!(
        page,
        "# Benchmarks\n\n\
         Of wheels, timers in a process and patterns. Those of the durable store are in \
         [benchmarks-storage.md](benchmarks-storage.md).\n\n\
         Generated; do not edit. This page was written by\n\n\
         ```sh\nbench {command}\n```\n\n\
         from what these commands measured:\n\n```sh"
    );
    for run in runs {
        let _ = writeln!(page, "{}", run.command);
    }
    page.push_str("```\n");
}

fn machine(page: &mut String, results: &Results) {
    let machine = &results.machine;
    let rows = [
        ("CPU", machine.cpu.clone()),
        ("cores", machine.cores.to_string()),
        ("caches", machine.caches.join(", ")),
        ("memory", machine.memory.clone()),
        ("kernel", machine.kernel.clone()),
        (
            "compiler",
            format!("{}, opt-level {}", machine.compiler, machine.optimisation),
        ),
        ("page size", machine.page_size.clone()),
        (
            "transparent huge pages",
            machine.transparent_huge_pages.clone(),
        ),
        ("load before the run", machine.load.clone()),
        (
            "reading the clock twice",
            format!("{} ns", results.clock_ns),
        ),
    ];
    page.push_str("\n## Machine\n\n| | |\n|---|---|\n");
    for (name, value) in rows {
        let _ = writeln!(page, "| {name} | {value} |");
    }
}

fn method(page: &mut String, results: &Results) {
    page.push_str(
        "\n## How it was measured\n\n\
         Every measurement is a process of its own. The rounds interleave: in each round every \
         competitor has its turn, and the order rotates. A cell shows the median and, in brackets \
         where they differ, the least and the greatest of all rounds. Delays are drawn before the watch starts; an \
         operation's figure includes reading its delay from an array and storing its handle. The \
         payload is a number of 8 bytes. One thread, virtual time.\n\n\
         - **W1**: N timers of 1 to 60,000 ticks are scheduled, then all cancelled in random order. \
         **W1w**: the same again on the same structure, whose memory is there by then.\n\
         - **W2**: N timers pend; each step schedules one and cancels the one N older, except 1 %. \
         A tick passes every 1000 steps. At 1,000,000 timers exactly 68,184 fire in 4,000,000 \
         steps; every other number ends the measurement.\n\
         - **W3u**: N timers of 1 to 60,000 ticks fire in 60,001 advances of one tick. **W3h**: \
         delays up to 2^32 ticks, every power of two as likely as the next, in 4096 advances of \
         2^20 ticks. **W3s**: 1000 timers over 2^32 ticks, the same advances, in all. **W3e**: \
         1000 far timers, a million ticks on which nothing happens.\n\
         - **W6**: growth of the resident memory for each pending timer, without its handle, \
         whose size is in the table of competitors.\n\
         - **Single calls**: W2, and W3u with its scheduling, with the clock read before and after \
         every call; that cost, given above, is in the figures. Each cell is the median over the \
         rounds.\n\n\
         The ratio of our rows is the best peer's median over ours; that of a peer is its median \
         over our best. Above one, ours is ahead. A peer that cannot cancel does not count as best.\n",
    );
    if results.pages().contains(&Pages::Huge) {
        page.push_str(
            "\nWith huge pages the C library advises them for all that the allocator maps \
             (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`), for every competitor alike.\n",
        );
    }
}

fn competitors(page: &mut String, results: &Results) {
    page.push_str(
        "\n## Competitors\n\n\
         Each was checked against a sorted map first: it fires what is due, nothing early, late or \
         after its cancel. The order is that within one advance, as seen in the check.\n\n\
         | | order | handle, bytes | remark |\n|---|---|---|---|\n",
    );
    for verdict in &results.verdicts {
        let name = verdict.competitor;
        let order = match &verdict.failure {
            Some(why) => format!("**failed the check**: {why}"),
            None => results
                .order_of(name)
                .map_or_else(String::new, |order| order.label().to_owned()),
        };
        let _ = writeln!(
            page,
            "| {} | {order} | {} | {} |",
            name.emphasised(),
            name.handle_bytes(),
            name.remark()
        );
    }
}

fn markdown(page: &mut String, table: &Table) {
    let _ = writeln!(
        page,
        "\n### {}\n\n| | {} | ratio | order in an advance |\n|---|---|---|---|",
        table.title, table.unit
    );
    for row in &table.rows {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} |",
            row.name.emphasised(),
            cell(&row.entry),
            row.ratio_text(),
            row.order
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_every_table_are_as_wide_as_its_head() {
        let fixture = crate::results::fixture();
        let page = write("report x.json --out y.md", &[fixture]).unwrap();
        let mut width = None;
        for line in page.lines() {
            if line.starts_with('|') {
                let columns = line.matches('|').count();
                assert_eq!(*width.get_or_insert(columns), columns, "{line}");
            } else {
                width = None;
            }
        }
        assert!(page.contains("### W2 schedule one, cancel an old one, 1,000,000 timers"));
        assert!(page.contains("| **countwheel** | 10.0 [9.00..11.0] |"));
        assert!(page.contains("| BTreeMap | over 60 s |"));

        assert!(page.contains("| million operations/s | 1 thread | 2 threads |"));
        assert!(page.contains("| **countwheel Timer** | 10.5 [10.0..11.0] | 20.5 [20.0..21.0] |"));
        assert!(page.contains("| tokio task, spawn and abort | over 60 s |  |"));
        assert!(page.contains("| **31 of 971, by up to 950 µs** |"));
        assert!(page.contains("thread | -950 EARLY | 500 |"));
        assert!(
            page.contains("**NOT RUN: JDK ScheduledThreadPoolExecutor**: java is not installed.")
        );

        assert!(page.contains(
            "| **countwheel IdleWatch** | 50.0 | 90.0 | 64.0 | 1.00 | 4.00x to sleep-rearmed |"
        ));
        assert!(page.contains(
            "| tokio Sleep, reset at each touch | 400 | 90.0 | 192 | 12.0 | 8.00x to idle-watch |"
        ));
        assert!(page.contains("| **countwheel Requests** | 5.00 [4.00..6.00] | 6.00 [5.00..7.00] | 0 | 4.00x to timeout-oneshot |"));
        assert!(
            page.contains("| moka 0.12, time to live | 160 |  |  | 100 | 2.00x to expiring-map |")
        );
        // Who was not measured is not explained.
        assert!(!page.contains("| HashMap, 16 shards, swept |"));
    }

    #[test]
    fn runs_of_two_machines_do_not_go_together() {
        let here = crate::results::fixture();
        let mut there = here.clone();
        there.machine.cpu = "another".to_owned();
        assert!(write("", &[here, there]).is_err());
    }
}
