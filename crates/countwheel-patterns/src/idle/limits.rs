//! The idle limits of a connection, and the events at their end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use countwheel_time::nanos;

/// How long nothing may be read, written, or either, before an [`IdleEvent`] says so.
///
/// A limit that is not given, or zero, disables its event. The shortest is a millisecond:
/// shorter ones are taken for that.
///
/// ```
/// use countwheel_patterns::IdleLimits;
/// use std::time::Duration;
///
/// let limits = IdleLimits::NONE
///     .reader(Duration::from_secs(180))
///     .writer(Duration::from_secs(60));
/// assert_eq!(limits.reader, Some(Duration::from_secs(180)));
/// assert_eq!(limits.writer(Duration::ZERO).writer, None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IdleLimits {
    /// How long nothing may be read.
    pub reader: Option<Duration>,
    /// How long nothing may be written.
    pub writer: Option<Duration>,
    /// How long neither may happen.
    pub all: Option<Duration>,
}

impl IdleLimits {
    /// All disabled.
    pub const NONE: Self = Self {
        reader: None,
        writer: None,
        all: None,
    };

    /// With another limit for reading; zero disables it.
    #[must_use]
    pub const fn reader(mut self, limit: Duration) -> Self {
        self.reader = given(limit);
        self
    }

    /// With another limit for writing; zero disables it.
    #[must_use]
    pub const fn writer(mut self, limit: Duration) -> Self {
        self.writer = given(limit);
        self
    }

    /// With another limit for both together; zero disables it.
    #[must_use]
    pub const fn all(mut self, limit: Duration) -> Self {
        self.all = given(limit);
        self
    }
}

const fn given(limit: Duration) -> Option<Duration> {
    if limit.is_zero() { None } else { Some(limit) }
}

/// What has not happened for so long.
///
/// ```
/// use countwheel_patterns::IdleKind;
///
/// // What a server usually does about it.
/// let action = |kind| match kind {
///     IdleKind::Reader | IdleKind::All => "close",
///     IdleKind::Writer => "send a heartbeat",
/// };
/// assert_eq!(action(IdleKind::Writer), "send a heartbeat");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IdleKind {
    /// Nothing was read.
    Reader,
    /// Nothing was written.
    Writer,
    /// Nothing was read, and nothing written.
    All,
}

impl IdleKind {
    pub(super) const ALL: [Self; 3] = [Self::Reader, Self::Writer, Self::All];
}

/// A connection has been idle for as long as its limit, or for a multiple of it. See
/// [`IdleWatch`](super::IdleWatch).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct IdleEvent {
    /// What has not happened.
    pub kind: IdleKind,
    /// Whether this is the first event of its kind since something happened, or since the
    /// limits were changed.
    pub first: bool,
    /// For how long it has not happened: at least the limit.
    pub idle_for: Duration,
}

/// The limits of one connection in nanoseconds, in the order of [`IdleKind::ALL`]; zero is none.
pub(super) struct Limits([AtomicU64; 3]);

impl Limits {
    const LEAST: u64 = 1_000_000;

    pub(super) fn new(limits: IdleLimits) -> Self {
        let these = Self(Default::default());
        these.set(limits);
        these
    }

    /// Whether that changes anything.
    pub(super) fn set(&self, limits: IdleLimits) -> bool {
        let mut changed = false;
        let limits = [limits.reader, limits.writer, limits.all];
        for (kept, limit) in self.0.iter().zip(limits) {
            let limit = limit.map_or(0, nanos);
            let limit = if limit == 0 {
                0
            } else {
                limit.max(Self::LEAST)
            };
            changed |= kept.swap(limit, Ordering::Relaxed) != limit;
        }
        changed
    }

    pub(super) fn get(&self) -> IdleLimits {
        let [reader, writer, all] = [0, 1, 2].map(|kind: usize| {
            let limit = self.0[kind].load(Ordering::Relaxed);
            given(Duration::from_nanos(limit))
        });
        IdleLimits {
            reader,
            writer,
            all,
        }
    }

    /// Those that are not disabled.
    pub(super) fn each(&self) -> impl Iterator<Item = (IdleKind, u64)> {
        let limits = self.0.iter().map(|limit| limit.load(Ordering::Relaxed));
        let each = IdleKind::ALL.into_iter().zip(limits);
        each.filter(|&(_, limit)| limit > 0)
    }
}
