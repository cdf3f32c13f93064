//! The failure that a run reports.

use std::collections::VecDeque;
use std::fmt;

/// A run that broke a rule.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that shows it again.
    pub seed: u64,
    /// How far it had come: turns, or operations.
    pub step: u64,
    /// What is wrong.
    pub what: String,
    /// The last things that happened.
    pub last: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.last {
            writeln!(f, "    {line}")?;
        }
        write!(f, "seed {} step {}: {}", self.seed, self.step, self.what)
    }
}

/// How much of what happened a failure shows, a line.
const LINE_BYTES: usize = 400;

/// The last things that happened, for the one who looks for the cause.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) lines: VecDeque<String>,
    keep: usize,
    /// Over everything that was noted, in order.
    pub(crate) hash: u64,
}

impl Log {
    /// Keeps so many.
    pub(crate) fn new(keep: usize) -> Self {
        Self {
            keep: keep.max(1),
            ..Self::default()
        }
    }

    /// The failure of a run of which these are the last things that happened.
    pub(crate) fn failure(self, seed: u64, step: u64, what: String) -> Box<Failure> {
        Box::new(Failure {
            seed,
            step,
            what,
            last: self.lines.into(),
        })
    }

    pub(crate) fn note(&mut self, mut line: String) {
        for byte in line.bytes() {
            // FNV-1a
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.lines.len() == self.keep {
            self.lines.pop_front();
        }
        // Payloads are long, and of no interest.
        let end = line.floor_char_boundary(LINE_BYTES);
        line.truncate(end);
        self.lines.push_back(line);
    }
}

/// What a panic that was caught said.
///
/// ```
/// let panic = std::panic::catch_unwind(|| panic!("too {}", "much")).unwrap_err();
/// assert_eq!(countwheel_sim::panic_text(&*panic), "a panic: too much");
/// ```
#[must_use]
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("a panic: {}", said.unwrap_or("of no text"))
}
