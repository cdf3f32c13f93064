//! The text of the page about the workloads with threads.

use std::fmt::Write as _;

use super::results::Threaded;
use crate::cell::Entrant as _;
use crate::table::number;

/// How it was measured, as a section in Markdown.
pub(crate) fn explain() -> &'static str {
    "\n## Timers on the real clock\n\n\
     What follows is not about structures but about what a program calls: timers that threads \
     share, on the machine's clock, with their locks, threads and wake-ups. Every measurement is \
     again a process of its own, rounds interleave and rotate, and a cell shows the median and, in \
     brackets, the least and the greatest of all rounds: three of W4, W4x and W6t, two of W5, one \
     of W7. Numbers are those of splitmix64 from seed 42, thread i from 42 + i.\n\n\
     - **W4**: each thread schedules 1,000,000 timers of 5 to 60 s, in whole milliseconds, and \
     cancels each 1000 schedules later; none fires. An operation is one schedule or one cancel. \
     Delays are drawn before, all threads start at a barrier, and the clock stops when the last \
     has cancelled its last timer. The *processor time* is that of the whole process, and goes on \
     until a timer of 1 ms that is scheduled afterwards has fired: by then whoever puts work off \
     has done it. How long that took is *left to do at the end*. Every sixteenth schedule is \
     timed alone; reading the clock is in that figure. More threads than cores wait for each \
     other's time slices, which the longest schedules show.\n\
     - **W4x**: the same, but what one thread schedules another cancels. Half of the threads \
     schedule, and hand their handles over in batches of 64, through a bounded channel (of the \
     standard library of each language) that four batches fill; the other half cancel, each \
     handle after 1000 later ones. The channel is in the figures, alike for all.\n\
     - **W5**: N timers spread evenly over 0.5 to 5.5 s, to the microsecond, scheduled by one \
     thread. Lateness is the moment the work begins minus (the moment of the call plus the \
     delay); it is negative for a timer that fires early, which is marked. One tick of lateness is \
     part of a timer that rounds up to ticks. *Processor* is the time of the whole process from \
     the first call to the last timer.\n\
     - **W6t**: growth of the resident memory for each of 1,000,000 pending timers of 60 to 120 s, \
     with work that holds 8 bytes, without and with what its caller keeps. In Java: growth of the \
     used heap after collection of garbage.\n\
     - **W7**: for 20 s nobody calls. Before, one timer was scheduled and cancelled, one has \
     fired, and either none or 1,000,000 of 1 to 2 h pend. Processor time, and how often threads \
     went to sleep by themselves, of all threads but the one that measures. All peers at once, \
     since there is nothing to compete for.\n\n\
     What to bear in mind:\n\n\
     - Some do the work themselves, on their thread: ours where it says inline, the heap, \
     hierarchical_hash_wheel_timer, Netty, the JDK's executor. A `Sleep`, an async-io `Timer` and a \
     futures-timer `Delay` only wake somebody. In W4, W4x, W6t and W7 they wake nobody at all, \
     which is the cheapest use there is and keeps no work in memory; in W5 whoever wakes polls and \
     does the work at once, without an executor. The row of tokio's tasks has all that a runtime \
     does: a task each, which a worker polls.\n\
     - Cancelled timers are still in memory, and have to be got rid of later, in the heap (until \
     their deadline) and in hierarchical_hash_wheel_timer (until their tick). Their cancels are \
     cheap for this reason.\n\
     - Who takes calls through a queue answers before anything is done: Netty, futures-timer, \
     async-io, hierarchical_hash_wheel_timer, tokio's tasks. What is left then shows in the \
     processor time and in what is left to do.\n\
     - The peers in Java do the whole of W4, W4x and, over 1 s, of W5 once before they are measured, \
     so that they are compiled. The virtual machine runs with its defaults; its own threads are in \
     the processor time, and its collector's pauses in the longest schedules. There, processor \
     time comes in steps of 10 ms, but for W7; and in W7 the row of a JVM without a timer is to be \
     subtracted.\n"
}

/// The table of those who took part, and of those who did not.
pub(crate) fn peers(found: &Threaded) -> String {
    let mut text = "\n### Peers with threads\n\n\
         Each was checked first: four threads schedule 2000 timers of 1 to 200 ms and cancel a \
         random half at once; exactly the others fire, once each.\n\n\
         | | early in the check | handle, bytes | remark |\n|---|---|---|---|\n"
        .to_owned();
    for verdict in &found.verdicts {
        let early = match (&verdict.failure, verdict.early) {
            (Some(why), _) => format!("**failed the check**: {why}"),
            (None, 0) => "none".to_owned(),
            (None, early) => format!(
                "**{early} of {}, by up to {} µs**",
                verdict.fired,
                number(-verdict.least)
            ),
        };
        let _ = writeln!(
            text,
            "| {} | {early} | {} | {} |",
            verdict.peer.emphasised(),
            verdict.peer.handle_bytes(),
            verdict.peer.remark()
        );
    }
    if let Some(java) = &found.java {
        let _ = writeln!(text, "\nJava: {java}.");
    }
    for not_run in &found.not_run {
        let _ = writeln!(
            text,
            "\n**NOT RUN: {}**: {}.",
            not_run.peer.label(),
            not_run.why
        );
    }
    text
}
