//! A timer in a process under simulation: random operations, a clock moved by hand, and a
//! plain sorted map that knows what must come of each.
//!
//! The timer is the real one; only the waiting is simulated, and where tasks run. A run is a
//! seed: it decides the options of every timer it makes, everything that is done to it, what
//! its tasks do, and what the executor refuses, delays or loses. The sorted map predicts
//! every answer, every counter, when each task fires and in which order, and that each comes
//! to exactly one end.
//!
//! ```
//! use countwheel_sim::timers::{self, Options};
//!
//! let report = timers::run(7, &Options { operations: 2_000, ..Options::default() })
//!     .unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.operations >= 2_000);
//! ```

mod desk;
mod life;
mod plan;
mod reference;

pub use life::run;

/// What of a run is not drawn from its seed.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many operations.
    pub operations: u64,
    /// How many of the last things that happened a failure shows.
    pub log: usize,
    /// Whether to print everything that happens.
    pub trace: bool,
    /// A fault for the reference to find.
    pub sabotage: Option<Sabotage>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            operations: 100_000,
            log: 40,
            trace: false,
            sabotage: None,
        }
    }
}

/// A fault between the timer and the reference, or in the reference itself: a simulation that
/// does not notice it would notice nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Sabotage {
    /// A cancel is reported and not made.
    SkipsCancel,
    /// A task runs, and then runs again.
    RunsTwice,
    /// The executor drops a task and says nothing.
    LosesWork,
    /// Two tasks are scheduled in the other order.
    SwapsTasks,
    /// The timer's clock is a nanosecond ahead.
    EarlyClock,
    /// The host sleeps longer than it was told to.
    OversleepsDeadline,
    /// A move is reported and not made.
    SkipsMove,
    /// A task is accepted and forgotten.
    ForgetsTask,
    /// Expects a moved task to keep its place in the order.
    KeepsOrderAfterMove,
    /// Expects a deadline to be rounded down.
    RoundsDown,
}

impl Sabotage {
    /// Every one.
    pub const ALL: [Self; 10] = [
        Self::SkipsCancel,
        Self::RunsTwice,
        Self::LosesWork,
        Self::SwapsTasks,
        Self::EarlyClock,
        Self::OversleepsDeadline,
        Self::SkipsMove,
        Self::ForgetsTask,
        Self::KeepsOrderAfterMove,
        Self::RoundsDown,
    ];
}

/// What a run came to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Operations: calls of a timer, a handle, a host or a clock.
    pub operations: u64,
    /// Timers made, used and ended.
    pub timers: u64,
    /// Tasks accepted.
    pub added: u64,
    /// Of these, tasks that ran.
    pub ran: u64,
    /// Tasks that were cancelled.
    pub cancelled: u64,
    /// Tasks that were given back or dropped by a stop.
    pub returned: u64,
    /// Tasks that were not accepted.
    pub refused: u64,
    /// Moves to another deadline.
    pub moved: u64,
    /// Calls of handles whose task had come to its end.
    pub stale: u64,
    /// Tasks that the executor refused.
    pub overloaded: u64,
    /// Tasks that panicked.
    pub panicked: u64,
    /// Timers that were closed, by any mode.
    pub closed: u64,
    /// Timers whose last clone was dropped with work pending.
    pub dropped: u64,
    /// A hash over everything that fired, in order.
    pub trace: u64,
}

impl Report {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.timers += other.timers;
        self.added += other.added;
        self.ran += other.ran;
        self.cancelled += other.cancelled;
        self.returned += other.returned;
        self.refused += other.refused;
        self.moved += other.moved;
        self.stale += other.stale;
        self.overloaded += other.overloaded;
        self.panicked += other.panicked;
        self.closed += other.closed;
        self.dropped += other.dropped;
        self.trace ^= other.trace;
    }
}
