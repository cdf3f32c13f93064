//! A bound on the log lines of a second, so that neither callers nor receivers can fill a disk with
//! lines or hold up the threads that write them. A line of its own says how many lines were left
//! out.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use countwheel_time::{Clock, Instant};
use parking_lot::Mutex;

/// So many lines are written in each second.
const LINES_MAX: u32 = 1_000;

/// Counts the lines of each second.
#[derive(Debug)]
pub(crate) struct Flow {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// The line that says how many were left out.
    say: fn(u64) -> String,
}

#[derive(Debug)]
struct State {
    second: Instant,
    written: u32,
    left_out: u64,
}

impl Flow {
    /// `say` makes the line that says how many were left out.
    pub(crate) fn new(clock: Arc<dyn Clock>, say: fn(u64) -> String) -> Self {
        let second = clock.now();
        Self {
            clock,
            state: Mutex::new(State {
                second,
                written: 0,
                left_out: 0,
            }),
            say,
        }
    }

    /// What is to be written before a line; `None` if the line is left out.
    fn admit(&self) -> Option<String> {
        let mut state = self.state.lock();
        let now = self.clock.now();
        let mut before = String::new();
        if now.saturating_since(state.second) >= Duration::from_secs(1) {
            if state.left_out > 0 {
                before = (self.say)(state.left_out);
            }
            (state.second, state.written, state.left_out) = (now, 0, 0);
        }
        if state.written >= LINES_MAX {
            state.left_out += 1;
            return None;
        }
        state.written += 1;
        Some(before)
    }

    /// A writer of one line.
    pub(crate) fn line<W: Write>(&self, out: W) -> Bounded<'_, W> {
        Bounded { flow: self, out }
    }
}

/// Writes a line, or leaves it out. Each write is one line.
#[derive(Debug)]
pub(crate) struct Bounded<'a, W> {
    flow: &'a Flow,
    out: W,
}

impl<W: Write> Write for Bounded<'_, W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Some(before) = self.flow.admit() else {
            return Ok(line.len());
        };
        if !before.is_empty() {
            self.out.write_all(before.as_bytes())?;
        }
        self.out.write_all(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use countwheel_time::ManualClock;

    use super::*;

    #[test]
    fn a_flood_of_lines_is_cut_and_counted() {
        let clock = ManualClock::new();
        let flow = Flow::new(Arc::new(clock.clone()), |lines| {
            format!("{lines} left out\n")
        });
        let mut out = Vec::new();
        let mut write = |lines: u32| {
            for _ in 0..lines {
                flow.line(&mut out).write_all(b"line\n").expect("memory");
            }
            String::from_utf8(std::mem::take(&mut out)).expect("text")
        };
        assert_eq!(write(1_500).lines().count(), 1_000);
        clock.advance(Duration::from_millis(999));
        assert_eq!(write(7), "");
        clock.advance(Duration::from_millis(1));
        assert_eq!(write(1), "507 left out\nline\n");
        clock.advance(Duration::from_secs(5));
        assert_eq!(write(2), "line\nline\n");
    }
}
