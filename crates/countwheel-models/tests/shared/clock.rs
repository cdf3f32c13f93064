//! What the concurrent part takes from the product's clock.

use std::time::Duration;

/// How long somebody waits. No model has a time-out: time does not pass in one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience;

impl Patience {
    pub(crate) fn left(self) -> Duration {
        Duration::MAX
    }
}
