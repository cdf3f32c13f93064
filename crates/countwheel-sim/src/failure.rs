//! What a run says that went wrong.

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
