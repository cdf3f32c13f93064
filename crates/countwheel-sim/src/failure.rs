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
