//! One measurement in a process of its own: nobody inherits another's heap, and it can be
//! killed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context as _;

use crate::peer::stop_daemon_of;
use crate::results::Outcome;
use crate::stopwatch::pause;

/// Starts this program again with `arguments`, and stops it after `deadline_seconds`.
pub(crate) fn measure(
    arguments: &[String],
    directory: &Path,
    deadline_seconds: u64,
) -> anyhow::Result<Outcome> {
    outcome_of(
        start(arguments, directory, Stdio::piped())?,
        directory,
        deadline_seconds,
    )
}

/// The same, and what it says of its progress is shown.
pub(crate) fn measure_aloud(
    arguments: &[String],
    directory: &Path,
    deadline_seconds: u64,
) -> anyhow::Result<Outcome> {
    outcome_of(
        start(arguments, directory, Stdio::inherit())?,
        directory,
        deadline_seconds,
    )
}

fn outcome_of(
    mut child: Child,
    directory: &Path,
    deadline_seconds: u64,
) -> anyhow::Result<Outcome> {
    let mut out = child.stdout.take().context("the pipe was asked for")?;
    let (sender, receiver) = channel();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let read = out.read_to_string(&mut text);
        // Nobody listens any more if the deadline has passed.
        sender.send(read.map(|_| text)).unwrap_or_default();
    });
    let answer = receiver.recv_timeout(Duration::from_secs(deadline_seconds));
    if matches!(answer, Err(RecvTimeoutError::Timeout)) {
        child.kill().context("a measurement could not be stopped")?;
    }
    let output = child.wait_with_output()?;
    stop_daemon_of(directory);
    reader.join().unwrap_or_default();
    match answer {
        Err(_) => Ok(Outcome::OverSeconds(deadline_seconds)),
        Ok(text) if output.status.success() => Ok(match serde_json::from_str(&text?) {
            Ok(figures) => Outcome::Figures(figures),
            Err(error) => Outcome::Failed(format!("it told nonsense: {error}")),
        }),
        Ok(_) => Ok(Outcome::Failed(complaint(&output.stderr))),
    }
}

/// Starts a process that prints a line for each commit, kills it after `seconds` of them, and
/// gives the last number it printed.
pub(crate) fn kill_writer(
    arguments: &[String],
    directory: &Path,
    seconds: f64,
    deadline_seconds: u64,
) -> anyhow::Result<Result<u64, String>> {
    let mut child = start(arguments, directory, Stdio::piped())?;
    let out = child.stdout.take().context("the pipe was asked for")?;
    let (first, began) = channel();
    let reader = std::thread::spawn(move || {
        let mut last = 0;
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            // A line that was cut off by the kill is no number, or a smaller one.
            last = line.parse::<u64>().unwrap_or(0).max(last);
            first.send(()).unwrap_or_default();
        }
        last
    });
    if began
        .recv_timeout(Duration::from_secs(deadline_seconds))
        .is_ok()
    {
        pause(Duration::from_secs_f64(seconds));
    }
    let ended_before = child.try_wait()?.is_some();
    child.kill().context("the writer could not be killed")?;
    stop_daemon_of(directory);
    let output = child.wait_with_output()?;
    let last = reader.join().unwrap_or(0);
    if ended_before || last == 0 {
        return Ok(Err(complaint(&output.stderr)));
    }
    Ok(Ok(last))
}

fn start(arguments: &[String], directory: &Path, errors: Stdio) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("this program is not to be found")?;
    Command::new(program)
        .args(arguments)
        .arg("--directory")
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .context("a measurement could not be started")
}

/// The first line of a process's complaint.
pub(crate) fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let first = text.lines().find(|line| !line.trim().is_empty());
    first.unwrap_or("no reason given").to_owned()
}
