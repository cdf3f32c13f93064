//! Runs of worlds that live for a number of steps.

/// What of such a run is not drawn from its seed.
///
/// ```
/// use countwheel_sim::{Stepped, flows};
///
/// let options = Stepped::of(flows::STEPS);
/// assert_eq!(options.steps, flows::STEPS);
/// ```
#[derive(Clone, Debug)]
pub struct Stepped {
    /// How many steps it has; of some worlds only the first phase.
    pub steps: u64,
    /// How many of the last things that happened a failure shows.
    pub log: usize,
    /// A bug for the checkers to find.
    #[cfg(feature = "planted-bugs")]
    pub planted_bug: Option<crate::planted::PlantedBug>,
}

impl Stepped {
    /// With so many steps, and no bug.
    #[must_use]
    pub fn of(steps: u64) -> Self {
        Self {
            steps,
            log: 60,
            #[cfg(feature = "planted-bugs")]
            planted_bug: None,
        }
    }
}
