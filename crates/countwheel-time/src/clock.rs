//! The seam to time: one object gives both the monotonic and the wall reading.
//!
//! Everything in Countwheel that needs the time takes a [`Clock`], so that a test or a
//! simulation can make time instead of waiting for it. [`SystemClock`] is the only place
//! that reads the machine's clocks.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use crate::boot::{self, BootId};
use crate::locks::lock;

/// A point on the monotonic time line: whole nanoseconds since the clock was made.
///
/// Never goes backwards and has no calendar. An instant of one clock means nothing to
/// another. Reaches 584 years; arithmetic stops at the end instead of wrapping.
///
/// ```
/// use countwheel_time::Instant;
/// use std::time::Duration;
///
/// let start = Instant::from_nanos(1_000);
/// let end = start + Duration::from_nanos(500);
/// assert_eq!(end.saturating_since(start), Duration::from_nanos(500));
/// assert_eq!(start.saturating_since(end), Duration::ZERO);
/// assert_eq!(end - start, Duration::from_nanos(500));
/// assert_eq!(Instant::MAX + Duration::MAX, Instant::MAX);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// The moment the clock was made.
    pub const ZERO: Self = Self(0);
    /// The last instant there is, 584 years in. A deadline there never comes.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the clock was made.
    #[inline]
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock was made.
    #[inline]
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[inline]
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Self;

    /// Stops at [`Instant::MAX`] instead of overflowing, so any delay is allowed.
    #[inline]
    fn add(self, delay: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl std::ops::Sub for Instant {
    type Output = Duration;

    /// How long after `earlier` this is; zero if it is not after it:
    /// [`saturating_since`](Instant::saturating_since).
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

/// A point in UTC: whole microseconds since 1970-01-01T00:00:00Z.
///
/// The only form of time that is stored or sent. Follows the wall clock, so two readings
/// may go backwards. Times before 1970 do not exist here. Arithmetic stops at the ends.
///
/// ```
/// use countwheel_time::Timestamp;
/// use std::time::Duration;
///
/// let due = Timestamp::from_micros(1_000_000);
/// assert_eq!(due + Duration::from_millis(1), Timestamp::from_micros(1_001_000));
/// // A fraction of a microsecond rounds up: a sum is never early.
/// assert_eq!(due + Duration::from_nanos(1), Timestamp::from_micros(1_000_001));
/// assert_eq!(due.saturating_since(Timestamp::EPOCH), Duration::from_secs(1));
/// assert_eq!(due.to_string(), "1970-01-01T00:00:01.000000Z");
/// ```
///
/// Of the standard library's times:
///
/// ```
/// use countwheel_time::{Timestamp, TimestampError};
/// use std::time::{Duration, SystemTime};
///
/// let system = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
/// let time = Timestamp::try_from(system)?;
/// assert_eq!(time, Timestamp::from_micros(1_500_000));
/// assert_eq!(SystemTime::try_from(time)?, system);
/// let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
/// assert_eq!(Timestamp::try_from(before), Err(TimestampError::BeforeEpoch));
/// # Ok::<(), TimestampError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Timestamp(u64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);
    /// The last timestamp there is, in the year 586,524.
    pub const MAX: Self = Self(u64::MAX);

    /// The timestamp `micros` microseconds after the epoch.
    #[inline]
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    #[inline]
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[inline]
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// The timestamp `span` before this one, not before the epoch.
    #[inline]
    #[must_use]
    pub fn saturating_sub(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)),
        )
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    /// Rounds a fraction of a microsecond up and stops at [`Timestamp::MAX`].
    #[inline]
    fn add(self, span: Duration) -> Self {
        let micros = span.as_nanos().div_ceil(1_000);
        Self(
            self.0
                .saturating_add(u64::try_from(micros).unwrap_or(u64::MAX)),
        )
    }
}

/// Why a time is no [`Timestamp`], or none of the system.
///
/// ```
/// use countwheel_time::{Timestamp, TimestampError};
/// use std::time::{Duration, SystemTime};
///
/// let early = SystemTime::UNIX_EPOCH - Duration::from_nanos(1);
/// let error = Timestamp::try_from(early).unwrap_err();
/// assert_eq!(error, TimestampError::BeforeEpoch);
/// assert_eq!(error.to_string(), "times begin with the year 1970");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimestampError {
    /// The time lies before 1970.
    BeforeEpoch,
    /// The time lies beyond what the other type can say.
    TooFar,
}

impl fmt::Display for TimestampError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BeforeEpoch => "times begin with the year 1970",
            Self::TooFar => "the time is too far ahead",
        })
    }
}

impl std::error::Error for TimestampError {}

impl TryFrom<SystemTime> for Timestamp {
    type Error = TimestampError;

    /// A fraction of a microsecond rounds up: what waits for it is never early.
    fn try_from(time: SystemTime) -> Result<Self, TimestampError> {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        let nanos = since.map_err(|_| TimestampError::BeforeEpoch)?.as_nanos();
        let micros = u64::try_from(nanos.div_ceil(1_000));
        micros.map(Self).map_err(|_| TimestampError::TooFar)
    }
}

impl TryFrom<Timestamp> for SystemTime {
    type Error = TimestampError;

    /// Fails where the system's times end earlier.
    fn try_from(time: Timestamp) -> Result<Self, TimestampError> {
        let since = Duration::from_micros(time.0);
        Self::UNIX_EPOCH
            .checked_add(since)
            .ok_or(TimestampError::TooFar)
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with six digits of a second: `2026-03-01T12:00:00.000000Z`. A year after
    /// 9999, which RFC 3339 has not, has a plus sign and six digits, as in ISO 8601.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = date_of(days);
        if year > 9_999 {
            write!(f, "+{year:06}")?;
        } else {
            write!(f, "{year:04}")?;
        }
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        write!(
            f,
            "-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z"
        )
    }
}

/// Year, month and day of the Gregorian calendar, `days` days after 1970-01-01.
fn date_of(days: u64) -> (u64, u64, u64) {
    // Counted from 0000-03-01, so that the day that is not always there is a year's last
    // (Hinnant, "chrono-compatible low-level date algorithms").
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// Reads the time. The first of the four seams.
///
/// Both readings come from one object, so a test cannot move one and forget the other.
///
/// ```
/// use countwheel_time::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now().saturating_since(before), Duration::from_secs(3600));
/// ```
pub trait Clock: Send + Sync + fmt::Debug {
    /// The monotonic reading. Never less than an earlier one of the same clock.
    fn now(&self) -> Instant;

    /// The wall reading. Read it only for what is stored, shown or bound to a calendar:
    /// it may jump in both directions.
    fn timestamp(&self) -> Timestamp;

    /// A monotonic reading that also counts while the machine is suspended. Compare it only
    /// with others of its kind: where it stood when the clock was made is left open.
    ///
    /// What keeps a promise over hours reads this one. Without a clock of its own for it, the
    /// same as [`Clock::now`].
    ///
    /// ```
    /// use countwheel_time::{Clock, ManualClock};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// clock.suspend(Duration::from_secs(60));
    /// assert_eq!(clock.now().as_nanos(), 0);
    /// assert_eq!(clock.boot().as_nanos(), 60_000_000_000);
    /// ```
    fn boot(&self) -> Instant {
        self.now()
    }

    /// Which start of the machine [`Clock::boot`] counts from. Readings of two clocks with the
    /// same id are of one clock, also in two processes. `None`, as without a clock of its own for
    /// it, is the same as no other.
    fn boot_id(&self) -> Option<BootId> {
        None
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    #[inline]
    fn now(&self) -> Instant {
        (**self).now()
    }

    #[inline]
    fn timestamp(&self) -> Timestamp {
        (**self).timestamp()
    }

    #[inline]
    fn boot(&self) -> Instant {
        (**self).boot()
    }

    #[inline]
    fn boot_id(&self) -> Option<BootId> {
        (**self).boot_id()
    }
}

/// The machine's clocks: `CLOCK_MONOTONIC`, the wall clock and `CLOCK_BOOTTIME` on Linux.
///
/// The monotonic reading stands still while the machine is suspended; [`Clock::boot`] does
/// not.
///
/// ```
/// use countwheel_time::{Clock, SystemClock};
///
/// let clock = SystemClock::new();
/// let first = clock.now();
/// assert!(clock.now() >= first);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: std::time::Instant,
}

impl SystemClock {
    /// A clock whose [`Instant::ZERO`] is now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
    pub fn new() -> Self {
        Self {
            origin: std::time::Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Instant {
        Instant::ZERO + self.origin.elapsed()
    }

    #[inline]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
    fn timestamp(&self) -> Timestamp {
        // A machine whose clock stands before 1970 is read as standing at 1970.
        let since_epoch = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
    }

    #[cfg(target_os = "linux")]
    fn boot(&self) -> Instant {
        let read = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(read.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(read.tv_nsec).unwrap_or(0);
        Instant(self::nanos(Duration::new(seconds, nanos)))
    }

    fn boot_id(&self) -> Option<BootId> {
        boot::of_system()
    }
}

/// The processor's own counter, scaled to nanoseconds (with the `quanta` crate): less than
/// half as dear to read as the system's clock, which matters where timers are scheduled by the
/// million. With the feature `tsc`.
///
/// A timer on this clock is never early by it. But its rate is measured once, at the first
/// clock of a process, which takes up to 200 ms, and then differs from that of the system's
/// clock by some millionths, in either direction: by the system's clock, a timeout of a minute
/// may come some tens of microseconds early. Where the machine has no such counter that may
/// be trusted, this reads the system's clock.
///
/// ```
/// use countwheel_time::{Clock, TscClock};
///
/// let clock = TscClock::new();
/// let first = clock.now();
/// assert!(clock.now() >= first);
/// ```
#[cfg(feature = "tsc")]
#[derive(Clone, Debug)]
pub struct TscClock {
    counter: quanta::Clock,
    origin: quanta::Instant,
    system: SystemClock,
}

#[cfg(feature = "tsc")]
impl TscClock {
    /// A clock whose [`Instant::ZERO`] is now.
    #[must_use]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        Self {
            origin: counter.now(),
            counter,
            system: SystemClock::new(),
        }
    }
}

#[cfg(feature = "tsc")]
impl Default for TscClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(feature = "tsc")]
impl Clock for TscClock {
    #[inline]
    fn now(&self) -> Instant {
        Instant::ZERO + self.counter.now().saturating_duration_since(self.origin)
    }

    #[inline]
    fn timestamp(&self) -> Timestamp {
        self.system.timestamp()
    }

    #[inline]
    fn boot(&self) -> Instant {
        self.system.boot()
    }

    #[inline]
    fn boot_id(&self) -> Option<BootId> {
        self.system.boot_id()
    }
}

/// How long a thread is ready to wait, in real time, whatever a [`Clock`] shows: a thread that
/// blocks does so in real time.
///
/// ```
/// use countwheel_time::Patience;
/// use std::time::Duration;
///
/// let patience = Patience::of(Duration::from_secs(60));
/// assert!(patience.left() <= Duration::from_secs(60));
/// assert_eq!(Patience::of(Duration::ZERO).left(), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    began: std::time::Instant,
    span: Duration,
}

impl Patience {
    /// Begins now, and lasts for `span`.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
    pub fn of(span: Duration) -> Self {
        Self {
            began: std::time::Instant::now(),
            span,
        }
    }

    /// How much of it is left; zero once it is over. Reads the system's clock.
    #[must_use]
    pub fn left(self) -> Duration {
        self.span.saturating_sub(self.began.elapsed())
    }
}

/// A duration in whole nanoseconds; [`u64::MAX`], 584 years, if it is longer.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(countwheel_time::nanos(Duration::from_micros(3)), 3_000);
/// assert_eq!(countwheel_time::nanos(Duration::MAX), u64::MAX);
/// ```
#[inline]
#[must_use]
pub fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A clock that moves only when told to. Clones share the same time.
///
/// Starts at [`Instant::ZERO`] and [`Timestamp::EPOCH`] unless told otherwise, with a
/// [`Clock::boot_id`] that no other has.
///
/// ```
/// use countwheel_time::{Clock, ManualClock, Timestamp};
/// use std::time::Duration;
///
/// let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
/// clock.advance(Duration::from_millis(5));
/// assert_eq!(clock.now().as_nanos(), 5_000_000);
///
/// // Someone sets the wall clock back an hour: the monotonic reading does not notice.
/// clock.set_timestamp(clock.timestamp().saturating_sub(Duration::from_secs(3600)));
/// assert_eq!(clock.now().as_nanos(), 5_000_000);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    readings: Arc<ManualReadings>,
}

#[derive(Debug)]
struct ManualReadings {
    now_nanos: AtomicU64,
    /// How long it was suspended.
    suspended_nanos: AtomicU64,
    /// Wall time in nanoseconds, so that advancing by less than a microsecond adds up.
    wall_nanos: Mutex<u128>,
    /// The start of the machine, and where the others, added, stood then.
    booted: Mutex<(BootId, u64)>,
}

impl Default for ManualReadings {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1 << 32);
        let id = BootId::from_u128(u128::from(NEXT.fetch_add(1, Ordering::Relaxed)));
        Self {
            now_nanos: AtomicU64::default(),
            suspended_nanos: AtomicU64::default(),
            wall_nanos: Mutex::default(),
            booted: Mutex::new((id, 0)),
        }
    }
}

impl ManualClock {
    /// A clock that stands at [`Instant::ZERO`] and [`Timestamp::EPOCH`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A clock that stands at [`Instant::ZERO`] and `timestamp`.
    #[must_use]
    pub fn at(timestamp: Timestamp) -> Self {
        let clock = Self::new();
        clock.set_timestamp(timestamp);
        clock
    }

    /// Moves all readings forward by `span`.
    pub fn advance(&self, span: Duration) {
        let mut wall = self.wall();
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let now = self.readings.now_nanos.load(Ordering::Relaxed);
        self.readings
            .now_nanos
            .store(now.saturating_add(nanos), Ordering::Relaxed);
        *wall = wall.saturating_add(u128::from(nanos));
    }

    /// Moves the wall reading and that of [`Clock::boot`] forward by `span`, as if the machine
    /// had been suspended so long.
    pub fn suspend(&self, span: Duration) {
        let mut wall = self.wall();
        let nanos = nanos(span);
        let suspended = self.readings.suspended_nanos.load(Ordering::Relaxed);
        self.readings
            .suspended_nanos
            .store(suspended.saturating_add(nanos), Ordering::Relaxed);
        *wall = wall.saturating_add(u128::from(nanos));
    }

    /// The machine starts anew, with this id: [`Clock::boot`] begins at zero again. The other
    /// readings stay; [`advance`](Self::advance) says how long the machine was off, and
    /// [`set_timestamp`](Self::set_timestamp) what its wall clock shows.
    pub fn reboot(&self, id: BootId) {
        let suspended = self.readings.suspended_nanos.load(Ordering::Relaxed);
        let stood = self.now() + Duration::from_nanos(suspended);
        *self.booted() = (id, stood.as_nanos());
    }

    /// Sets the wall reading alone, as an operator or a time server would.
    pub fn set_timestamp(&self, timestamp: Timestamp) {
        *self.wall() = u128::from(timestamp.as_micros()) * 1_000;
    }

    fn wall(&self) -> MutexGuard<'_, u128> {
        lock(&self.readings.wall_nanos)
    }

    fn booted(&self) -> MutexGuard<'_, (BootId, u64)> {
        lock(&self.readings.booted)
    }
}

impl Clock for ManualClock {
    #[inline]
    fn now(&self) -> Instant {
        Instant(self.readings.now_nanos.load(Ordering::Relaxed))
    }

    #[inline]
    fn timestamp(&self) -> Timestamp {
        Timestamp(u64::try_from(*self.wall() / 1_000).unwrap_or(u64::MAX))
    }

    #[inline]
    fn boot(&self) -> Instant {
        let suspended = self.readings.suspended_nanos.load(Ordering::Relaxed);
        let stood = (self.now() + Duration::from_nanos(suspended)).as_nanos();
        Instant(stood.saturating_sub(self.booted().1))
    }

    #[inline]
    fn boot_id(&self) -> Option<BootId> {
        Some(self.booted().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_in_utc_by_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000000Z"),
            (1_772_366_405, "2026-03-01T12:00:05.000000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000000Z"),
            (253_402_300_800, "+010000-01-01T00:00:00.000000Z"),
        ] {
            let time = Timestamp::from_micros(seconds * 1_000_000);
            assert_eq!(time.to_string(), text);
        }
        let last = Timestamp::from_micros(1_772_366_405_000_042).to_string();
        assert_eq!(last, "2026-03-01T12:00:05.000042Z");
        assert!(Timestamp::MAX.to_string().starts_with("+586524-"));
    }

    #[test]
    fn every_day_of_the_calendar_follows_the_day_before() {
        let (mut year, mut month, mut day) = (1970, 1, 0);
        for days in 0..400 * 366 {
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + u64::from(is_leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
            assert_eq!(date_of(days), (year, month, day));
        }
    }

    #[test]
    fn times_of_the_system_are_rounded_up_and_bounded() {
        let nano = Duration::from_nanos(1);
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(Timestamp::try_from(epoch), Ok(Timestamp::EPOCH));
        let micro = Timestamp::from_micros(1);
        assert_eq!(Timestamp::try_from(epoch + nano), Ok(micro));
        let before = Timestamp::try_from(epoch - nano);
        assert_eq!(before, Err(TimestampError::BeforeEpoch));
        let last = epoch + Duration::from_micros(u64::MAX);
        assert_eq!(Timestamp::try_from(last), Ok(Timestamp::MAX));
        assert_eq!(SystemTime::try_from(Timestamp::MAX), Ok(last));
        let after = Timestamp::try_from(last + nano);
        assert_eq!(after, Err(TimestampError::TooFar));
    }
}
