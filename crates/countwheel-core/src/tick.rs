//! A point on a wheel's time line.

/// A point in time, in whole ticks since the wheel's origin.
///
/// What a tick lasts (1 ms, 1 s) and when the origin was is the caller's
/// business; a wheel only compares ticks. A duration is a plain number of ticks.
///
/// ```
/// use countwheel_core::Tick;
///
/// let now = Tick::new(40);
/// let deadline = now.saturating_add(2);
/// assert!(deadline > now);
/// assert_eq!(deadline.get(), 42);
///
/// assert_eq!(Tick::default(), Tick::ZERO);
/// assert_eq!(Tick::MAX.saturating_add(1), Tick::MAX);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tick(u64);

impl Tick {
    /// The origin of the time line.
    pub const ZERO: Self = Self(0);

    /// The last tick there is; a usual way to say "never".
    pub const MAX: Self = Self(u64::MAX);

    /// The point `ticks` ticks after the origin.
    pub const fn new(ticks: u64) -> Self {
        Self(ticks)
    }

    /// How many ticks after the origin this point lies.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The point `ticks` ticks later, or [`Tick::MAX`] if there is none.
    #[must_use]
    pub const fn saturating_add(self, ticks: u64) -> Self {
        Self(self.0.saturating_add(ticks))
    }
}
