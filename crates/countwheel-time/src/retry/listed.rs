//! The delays of a list.

use std::sync::Arc;
use std::time::Duration;

/// Delays that a policy shares with its clones.
#[derive(Clone, Debug)]
pub(super) enum Listed {
    /// Those of a preset: nothing is allocated for them.
    Known(&'static [Duration]),
    Own(Arc<[Duration]>),
}

impl Listed {
    pub(super) fn as_slice(&self) -> &[Duration] {
        match self {
            Self::Known(delays) => delays,
            Self::Own(delays) => delays,
        }
    }
}

impl FromIterator<Duration> for Listed {
    fn from_iter<I: IntoIterator<Item = Duration>>(delays: I) -> Self {
        Self::Own(delays.into_iter().collect())
    }
}
