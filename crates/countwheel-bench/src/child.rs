//! One measurement in a process of its own, so that no peer inherits the heap of another.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context as _;

use crate::cell::{Cell, Entrant, Loaded};
use crate::choice::Word as _;
use crate::competitor::Name;
use crate::results::{self, Outcome, Pages};
use crate::workload::Workload;

/// Makes the C library's allocator advise huge pages for all that it maps.
const HUGE_PAGES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

/// Starts this program again for one measurement, and stops it after `deadline_seconds`.
pub(crate) fn measure_in_child(
    cell: results::Cell,
    deadline_seconds: u64,
) -> anyhow::Result<Outcome> {
    let mut command = this_program()?;
    command
        .arg("one")
        .args(["--competitor", &cell.competitor.word()])
        .args(["--workload", &cell.workload.word()])
        .args(["--timers", &cell.timers.to_string()]);
    if cell.pages == Pages::Huge {
        command.env(HUGE_PAGES.0, HUGE_PAGES.1);
    }
    outcome_of(command, deadline_seconds)
}

/// This program again, for one measurement on the real clock.
pub(crate) fn on_the_real_clock<W: Loaded, N: Entrant>(
    command_word: &str,
    cell: Cell<W, N>,
) -> anyhow::Result<Command> {
    let mut command = this_program()?;
    command
        .arg(command_word)
        .args(["--competitor", &cell.peer.word()])
        .args(["--workload", &cell.workload.word()])
        .args(["--load", &cell.load.to_string()]);
    if cell.short {
        command.arg("--short");
    }
    Ok(command)
}

/// This program once more, with the allocator as the system has it.
fn this_program() -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("this program is not to be found")?;
    let mut command = Command::new(program);
    command.env_remove(HUGE_PAGES.0);
    Ok(command)
}

/// Starts a program that prints its figures on one line, and stops it after
/// `deadline_seconds`.
pub(crate) fn outcome_of(mut command: Command, deadline_seconds: u64) -> anyhow::Result<Outcome> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("a measurement could not be started")?;

    let mut pipe = child.stdout.take().context("the pipe was asked for")?;
    let (sender, receiver) = channel();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let read = pipe.read_to_string(&mut text);
        // Nobody listens any more if the deadline has passed.
        let _ = sender.send(read.map(|_| text));
    });
    let answer = receiver.recv_timeout(Duration::from_secs(deadline_seconds));
    if matches!(answer, Err(RecvTimeoutError::Timeout)) {
        child.kill().context("a measurement could not be stopped")?;
    }
    let output = child.wait_with_output()?;
    let _ = reader.join();
    match answer {
        Err(_) => Ok(Outcome::OverSeconds(deadline_seconds)),
        Ok(text) if output.status.success() => {
            let figures = serde_json::from_str(&text?).context("a measurement told nonsense")?;
            Ok(Outcome::Figures(figures))
        }
        Ok(_) => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            let first = complaint.lines().find(|line| !line.trim().is_empty());
            Ok(Outcome::Failed(
                first.unwrap_or("no reason given").to_owned(),
            ))
        }
    }
}

/// The other side: measures and prints one line.
pub(crate) fn measure_here(name: Name, workload: Workload, timers: u64) -> anyhow::Result<()> {
    let figures = workload.measure(name, timers)?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}
