//! The text and the list of tables of the page about the patterns.

use std::fmt::Write as _;

use super::name::Name;
use super::results::Patterns;
use super::workload::Workload;
use crate::cell::Entrant as _;
use crate::grid::{Better, Grid, Shape, Tables};

/// Every table there is something to put in.
pub(crate) fn grids(found: &Patterns) -> Vec<Grid> {
    Grid::all(&TABLES, &found.samples)
}

const REQUESTS: Shape = Shape::Figures(
    &[
        ("per-core", "for each core"),
        ("mops", "all threads"),
        ("expired", "timed out, %"),
    ],
    "million requests/s",
    Some(Better::More),
);

/// All of them, in the order of the report.
const TABLES: [Tables<Workload>; 5] = [
    Tables {
        workload: Workload::P1,
        title: "P1 heartbeats",
        shape: Shape::Figures(
            &[
                ("cpu", "processor"),
                ("loop", "the loop alone"),
                ("bytes", "bytes/connection"),
                ("behind", "loop late by at most, ms"),
            ],
            "ms/s",
            Some(Better::Less),
        ),
    },
    Tables {
        workload: Workload::P2,
        title: "P2 deadlines of requests, all answered",
        shape: REQUESTS,
    },
    Tables {
        workload: Workload::P2t,
        title: "P2t deadlines of requests, 1 % time out",
        shape: REQUESTS,
    },
    Tables {
        workload: Workload::P3,
        title: "P3 map whose entries expire",
        shape: Shape::Figures(
            &[
                ("per-core", "for each core"),
                ("mops", "all threads"),
                ("hits", "hits, %"),
                ("stale", "oldest value too old by, ms"),
            ],
            "million operations/s",
            Some(Better::More),
        ),
    },
    Tables {
        workload: Workload::P3m,
        title: "P3m map at rest",
        shape: Shape::Figures(
            &[
                ("bytes", "memory"),
                ("gone", "let go, ms after its time, p50"),
                ("last", "the last one"),
                ("held", "never let go, %"),
            ],
            "bytes/entry",
            Some(Better::Less),
        ),
    },
];

/// How it was measured, as a section in Markdown.
pub(crate) fn explain() -> &'static str {
    "\n## What is built on timers\n\n\
     The patterns of `countwheel-patterns` against the same built on other timers, on the \
     machine's clock and measured in the same manner: P2 and P2t in three rounds, P3 in two, P1 \
     and P3m in one. The ratio is that of the first column: how many times better ours is, or, in \
     the rows of ours, how many times better it is than the best other.\n\n\
     - **P1**: N connections, of which one in a hundred is never heard of and the others once a \
     second, in random order, by one thread, some each millisecond. Whoever is silent for 10 s has \
     to be noticed, and is: exactly these, none before. The loop goes on for 10.3 s, in which who \
     re-arms lazily does so once for each connection. *Processor* is the time of the whole process \
     in each second, without that of the loop when nobody watches (the median of three seconds of it); the loop itself adds one to a \
     counter in the 120 bytes that each connection has for itself. *Bytes* are what the resident \
     memory grew by, and what each connection keeps beside its own. A loop that is late has more to do than there is time for.\n\
     - **P2**: each thread makes 1,000,000 requests with a deadline of 5 s, polls the answer once, \
     and answers each by its id 10,000 requests later; who waits is woken, and the answer polled \
     again. **P2t**: the deadline is 50 ms, 1000 wait, and one request in a hundred is never \
     answered. Every request ends in exactly one way, everybody is woken, and nothing is \
     left. *For each core*: by processor time of the whole process; *all threads*: by the clock.\n\
     - **P3**: for 4 s all threads use one map whose entries live for 1 s: nine gets, one insert, of \
     1,000,000 keys after Zipf's law with exponent 0.99, the same for all. Nobody loads what is \
     missing; who is quicker inserts more before an entry expires, and so hits more. The age of \
     every sixteenth value found is looked at.\n\
     - **P3m**: growth of the resident memory for each of 1,000,000 entries of 16 bytes. Then a \
     tenth as many that live for 1 s, and nobody calls any more: how long after its time is a \
     value dropped? Who has not dropped all after three more seconds is shown with those left.\n"
}

/// The table of those who took part.
pub(crate) fn peers(found: &Patterns) -> String {
    let mut text = "\n### Peers of the patterns\n\n| | remark |\n|---|---|\n".to_owned();
    let took_part = |name: &&Name| found.samples.iter().any(|s| s.cell.peer == **name);
    for name in Name::all().iter().filter(took_part) {
        let _ = writeln!(text, "| {} | {} |", name.emphasised(), name.remark());
    }
    text
}
