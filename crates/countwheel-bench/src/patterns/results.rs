//! The results of a run of the patterns.

use serde::{Deserialize, Serialize};

use super::name::Name;
use super::workload::Workload;
use crate::cell::{self, Measured};

/// One measurement that was to be made.
pub(crate) type Cell = cell::Cell<Workload, Name>;

/// The part of a run that is about patterns.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Patterns {
    pub(crate) samples: Vec<Measured<Workload, Name>>,
}

impl Patterns {
    /// Adds what another run on the same machine has found.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.samples.extend(other.samples.iter().cloned());
    }
}
