//! The results of calls of a keyed timer.

use std::time::Duration;
use std::{fmt, io};

use crate::{Instant, ScheduleError};

/// When a key is to fire, as the caller gives it: a delay from now, or a point in time.
///
/// ```
/// use countwheel::{Instant, When};
/// use std::time::Duration;
///
/// assert_eq!(When::from(Duration::ZERO), When::After(Duration::ZERO));
/// assert_eq!(When::from(Instant::ZERO), When::At(Instant::ZERO));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// So long from now.
    After(Duration),
    /// At this time of the timer's clock.
    At(Instant),
}

impl From<Duration> for When {
    fn from(delay: Duration) -> Self {
        Self::After(delay)
    }
}

impl From<Instant> for When {
    fn from(deadline: Instant) -> Self {
        Self::At(deadline)
    }
}

/// What a move did. See [`KeyedTimer::move_to`](crate::KeyedTimer::move_to).
///
/// ```
/// use countwheel::{KeyedTimer, ManualHost, Move};
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let leases = KeyedTimer::new(host.timer().clone(), |_lease: u32, ()| {});
/// leases.set(7, (), Duration::from_secs(60)).unwrap();
/// let moved = leases.move_later(&7, Duration::from_secs(30));
/// assert_eq!(moved, Move::Kept, "it has more than that");
/// assert!(moved.existed() && !moved.moved());
/// assert!(!leases.move_later(&8, Duration::from_secs(30)).existed());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    /// The key has the new deadline, and no other.
    Moved,
    /// The key has the deadline it had, since that is already as soon or as late as asked.
    Kept,
    /// The key is as it was: its deadline has come already, so it would have had to be
    /// scheduled anew, and the timer has stopped, has no room or has no thread.
    Refused,
    /// There is no such key: never set, fired, removed or drained.
    Absent,
}

impl Move {
    /// Whether the deadline is another one now.
    #[must_use]
    pub const fn moved(self) -> bool {
        matches!(self, Self::Moved)
    }

    /// Whether there was such a key, moved or not.
    #[must_use]
    pub const fn existed(self) -> bool {
        !matches!(self, Self::Absent)
    }
}

/// Why a key was not set. Key and value come back unchanged, and what was under the key
/// before stays as it was. See [`KeyedTimer::set`](crate::KeyedTimer::set).
///
/// ```
/// use countwheel::{KeyedTimer, SetError, Timer};
/// use std::time::Duration;
///
/// let timer = Timer::builder().max_pending(1).build();
/// let orders = KeyedTimer::new(timer, |order: u32, customer| println!("{order} {customer}"));
/// let hour = Duration::from_secs(3600);
/// orders.set(1, "Ada", hour)?;
/// orders.set(1, "Bob", hour)?; // takes no more room than it had
///
/// let refused = orders.set(2, "Eve", hour).unwrap_err();
/// assert_eq!(refused.to_string(), "as many tasks are pending as may be");
/// assert_eq!(refused.into_parts(), (2, "Eve"));
///
/// orders.stop();
/// let refused = orders.set(1, "Ada", hour);
/// assert!(matches!(refused, Err(SetError::Closed(1, "Ada"))));
/// # Ok::<(), SetError<u32, &str>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SetError<K, V> {
    /// The key is there already. Only
    /// [`set_if_absent`](crate::KeyedTimer::set_if_absent) minds.
    #[error("the key is set already")]
    Present(K, V),
    /// The keyed timer has stopped for good, or the timer below it. Take key and value to
    /// another one, or do now what was to be done later.
    #[error("the timer has stopped")]
    Closed(K, V),
    /// As many tasks are pending as
    /// [`max_pending`](crate::TimerBuilder::max_pending) allows. There is room as soon as one
    /// fires or is removed.
    #[error("as many tasks are pending as may be")]
    Full(K, V),
    /// The timer's thread could not be started. The timer is as it was: try again later.
    #[error("the timer's thread could not be started")]
    NoThread {
        /// The key.
        key: K,
        /// The value.
        value: V,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl<K, V> SetError<K, V> {
    pub(super) fn new(error: ScheduleError, key: K, value: V) -> Self {
        match error {
            ScheduleError::Full(_) => Self::Full(key, value),
            ScheduleError::NoThread { source, .. } => Self::NoThread { key, value, source },
            _ => Self::Closed(key, value),
        }
    }

    /// The key and the value that were not accepted.
    #[must_use]
    pub fn into_parts(self) -> (K, V) {
        match self {
            Self::Present(key, value)
            | Self::Closed(key, value)
            | Self::Full(key, value)
            | Self::NoThread { key, value, .. } => (key, value),
        }
    }
}

/// Names the reason alone, so that any key and value will do.
impl<K, V> fmt::Debug for SetError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Present(..) => "Present",
            Self::Closed(..) => "Closed",
            Self::Full(..) => "Full",
            Self::NoThread { source, .. } => {
                let mut fields = f.debug_struct("NoThread");
                return fields.field("source", source).finish_non_exhaustive();
            }
        };
        f.debug_tuple(name).finish_non_exhaustive()
    }
}

/// What was still pending. See [`KeyedTimer::drain`](crate::KeyedTimer::drain), and
/// [`SavedEntry`](crate::SavedEntry) to write it down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyedEntry<K, V> {
    /// The key. It is free again.
    pub key: K,
    /// The value it was set to last.
    pub value: V,
    /// The deadline that was asked for last, on the clock of the timer, not rounded.
    pub deadline: Instant,
}

/// What a [`KeyedTimer`](crate::KeyedTimer) has done so far.
///
/// `set` equals `replaced + fired + removed + drained + returned + pending`, exactly and at
/// any moment, also while other threads are busy.
///
/// ```
/// use countwheel::{KeyedTimer, ManualHost};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let keyed = KeyedTimer::new(host.timer().clone(), |_key: u64, ()| {});
/// for key in [1, 2, 3, 4, 4] {
///     keyed.set(key, (), Duration::from_secs(key)).unwrap();
/// }
/// keyed.remove(&2);
/// host.advance(Duration::from_secs(1));
/// let stats = keyed.stats();
/// assert_eq!((stats.set, stats.replaced, stats.removed, stats.fired), (5, 1, 1, 1));
/// assert_eq!(stats.pending, 2);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct KeyedStats {
    /// Sets that were accepted, be it in place of another.
    pub set: u64,
    /// Values that a later set of their key put out.
    pub replaced: u64,
    /// Values that went to the handler, those it is busy with included.
    pub fired: u64,
    /// Values that were removed.
    pub removed: u64,
    /// Values that were drained.
    pub drained: u64,
    /// Values that a stop gave back.
    pub returned: u64,
    /// Keys that are set now.
    pub pending: u64,
    /// How often a key got another deadline by a move. Not part of the sum.
    pub moved: u64,
    /// Sets that were not accepted, for any reason but the key's presence. Not part of the
    /// sum.
    pub refused: u64,
}

impl KeyedStats {
    pub(super) fn add(self, other: Self) -> Self {
        Self {
            set: self.set + other.set,
            replaced: self.replaced + other.replaced,
            fired: self.fired + other.fired,
            removed: self.removed + other.removed,
            drained: self.drained + other.drained,
            returned: self.returned + other.returned,
            pending: self.pending + other.pending,
            moved: self.moved + other.moved,
            refused: self.refused + other.refused,
        }
    }
}
