//! A limit that passes down a chain of calls, and only ever shrinks.

use std::time::Duration;

use countwheel::{Instant, Timer};

/// When a piece of work has to be done, for handing down from call to call: each step may take
/// less than what is left, never more. So a child never outlives its parent.
///
/// A point in time on the clock of one timer, eight bytes, to be copied. It does nothing by
/// itself: ask it with [`check`](Self::check) between steps, wait no longer than it allows with
/// [`TimerExt::timeout_by`](crate::TimerExt::timeout_by), or [`register`](super::Requests::register) requests under it.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Deadline, DeadlineExceeded};
/// use std::time::Duration;
///
/// let millis = Duration::from_millis;
/// let mut host = ManualHost::new();
/// let page = Deadline::after(host.timer(), millis(2_000));
///
/// // Of the two seconds for the page, the database gets at most half a second ...
/// let now = host.timer().now();
/// assert_eq!(page.shrink_to(now, millis(500)).remaining(now), millis(500));
///
/// // ... and later less, because no more is left.
/// host.advance(millis(1_800));
/// let now = host.timer().now();
/// let query = page.shrink_to(now, millis(500));
/// assert_eq!(query.check(now), Ok(millis(200)));
/// assert_eq!(query, page);
///
/// host.advance(millis(200));
/// assert_eq!(query.check(host.timer().now()), Err(DeadlineExceeded));
/// ```
///
/// # Across processes
///
/// Clocks of two processes have nothing in common, so what travels is the time that is left:
/// [`millis_left`](Self::millis_left) on one side, [`from_millis_left`](Self::from_millis_left)
/// on the other. Nobody can know how long the message was on its way. So take off what that
/// may be with [`shrink_by`](Self::shrink_by) first, or the other side goes on for as long as
/// the message took. (gRPC's `grpc-timeout` header works alike.)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Deadline(Instant);

/// The time for it is up: see [`Deadline::check`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the deadline has passed")]
pub struct DeadlineExceeded;

impl Deadline {
    /// A deadline that does not come: what a chain starts with if nobody has set a limit.
    pub const NEVER: Self = Self(Instant::MAX);

    /// `span` from now, on the clock of `timer`. Reads the clock once.
    #[must_use]
    pub fn after(timer: &Timer, span: Duration) -> Self {
        Self(timer.now() + span)
    }

    /// At `instant`.
    #[must_use]
    pub const fn at(instant: Instant) -> Self {
        Self(instant)
    }

    /// When.
    ///
    /// ```
    /// # use countwheel::Instant;
    /// # use countwheel_patterns::Deadline;
    /// let noon = Instant::from_nanos(12);
    /// assert_eq!(Deadline::at(noon).instant(), noon);
    /// assert_eq!(Deadline::NEVER.instant(), Instant::MAX);
    /// ```
    #[must_use]
    pub const fn instant(self) -> Instant {
        self.0
    }

    /// This one, or `span` from `now` if that is sooner.
    #[must_use]
    pub fn shrink_to(self, now: Instant, span: Duration) -> Self {
        Self(self.0.min(now + span))
    }

    /// Sooner by `reserve`: for what has to be done after the child has returned, or for a
    /// message's time on the wire. [`NEVER`](Self::NEVER) stays what it is.
    ///
    /// ```
    /// # use countwheel::Instant;
    /// # use countwheel_patterns::Deadline;
    /// # use std::time::Duration;
    /// let reserve = Duration::from_nanos(20);
    /// let sooner = Deadline::at(Instant::from_nanos(100)).shrink_by(reserve);
    /// assert_eq!(sooner, Deadline::at(Instant::from_nanos(80)));
    /// assert_eq!(sooner.shrink_by(Duration::MAX), Deadline::at(Instant::ZERO));
    /// assert_eq!(Deadline::NEVER.shrink_by(reserve), Deadline::NEVER);
    /// ```
    #[must_use]
    pub fn shrink_by(self, reserve: Duration) -> Self {
        if self == Self::NEVER {
            return self;
        }
        let reserve = u64::try_from(reserve.as_nanos()).unwrap_or(u64::MAX);
        let nanos = self.0.as_nanos().saturating_sub(reserve);
        Self(Instant::from_nanos(nanos))
    }

    /// The sooner of the two: where two chains meet.
    ///
    /// ```
    /// # use countwheel::Instant;
    /// # use countwheel_patterns::Deadline;
    /// let (soon, late) = (Instant::from_nanos(1), Instant::from_nanos(2));
    /// assert_eq!(Deadline::at(late).min(Deadline::at(soon)), Deadline::at(soon));
    /// ```
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Ord::min(self, other)
    }

    /// How much time is left at `now`: zero once the deadline has come, and
    /// [`Duration::MAX`] if it never comes.
    #[must_use]
    pub fn remaining(self, now: Instant) -> Duration {
        if self == Self::NEVER {
            return Duration::MAX;
        }
        self.0.saturating_since(now)
    }

    /// How much time is left, for use with `?` between the steps of a piece of work.
    ///
    /// # Errors
    /// [`DeadlineExceeded`] if none is.
    pub fn check(self, now: Instant) -> Result<Duration, DeadlineExceeded> {
        match self.remaining(now) {
            Duration::ZERO => Err(DeadlineExceeded),
            left => Ok(left),
        }
    }

    /// How many whole milliseconds are left, for the header of a request to another process:
    /// rounded down, so that the other side does not think it has more. `None` if the deadline
    /// never comes: then send no header.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::Deadline;
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let now = host.timer().now();
    /// let deadline = Deadline::after(host.timer(), Duration::from_micros(1_999));
    /// assert_eq!(deadline.millis_left(now), Some(1));
    /// assert_eq!(Deadline::NEVER.millis_left(now), None);
    ///
    /// // On the other side, whose own limit is a second:
    /// let header = deadline.millis_left(now);
    /// let received = Deadline::from_millis_left(now, header);
    /// let received = received.shrink_to(now, Duration::from_secs(1));
    /// assert_eq!(received.remaining(now), Duration::from_millis(1));
    /// assert!(received <= deadline);
    /// ```
    #[must_use]
    pub fn millis_left(self, now: Instant) -> Option<u64> {
        if self == Self::NEVER {
            return None;
        }
        u64::try_from(self.remaining(now).as_millis()).ok()
    }

    /// The deadline that a header stands for: `millis` from `now`, or never without one.
    #[must_use]
    pub fn from_millis_left(now: Instant, millis: Option<u64>) -> Self {
        millis.map_or(Self::NEVER, |millis| {
            Self(now + Duration::from_millis(millis))
        })
    }
}

impl From<Instant> for Deadline {
    fn from(instant: Instant) -> Self {
        Self(instant)
    }
}

/// How long something may take: a [`Duration`] from now, an [`Instant`], or a [`Deadline`].
/// Each turns into this by itself where it is asked for.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Deadline, Limit, Requests};
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let requests = Requests::<&str>::new(host.timer().clone());
/// let second = Duration::from_secs(1);
/// let budget = Deadline::after(host.timer(), second);
/// let limits: [Limit; 3] = [second.into(), budget.into(), budget.instant().into()];
/// for limit in limits {
///     let response = requests.register(limit)?;
///     assert_eq!(response.deadline(), budget.instant());
/// }
/// # Ok::<(), countwheel_patterns::RegisterError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    After(Duration),
    At(Instant),
}

impl Limit {
    pub(super) fn deadline(self, now: Instant) -> Instant {
        match self.0 {
            Kind::After(span) => now + span,
            Kind::At(instant) => instant,
        }
    }
}

impl From<Duration> for Limit {
    fn from(span: Duration) -> Self {
        Self(Kind::After(span))
    }
}

impl From<Instant> for Limit {
    fn from(instant: Instant) -> Self {
        Self(Kind::At(instant))
    }
}

impl From<Deadline> for Limit {
    fn from(deadline: Deadline) -> Self {
        Self(Kind::At(deadline.0))
    }
}
