//! All cells of one table.

use std::fmt;
use std::io;
use std::iter;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::cell::Cell;
use super::shard::{ActivityShard, Policy};
use super::stalls::Stalls;
use countwheel::building::{start_host, tick_duration};
use countwheel::{Instant, Resolution, Timer};
use countwheel_time::locks::lock;

/// Why something is not watched. It comes back unchanged.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{IdleLimits, IdleWatch, WatchError};
///
/// let host = ManualHost::new();
/// let idle = IdleWatch::new(host.timer().clone(), |_connection: &u32, _event| {});
/// host.timer().stop();
/// let refused = idle.watch(7, IdleLimits::NONE).unwrap_err();
/// assert!(matches!(refused, WatchError::Closed(7)));
/// assert_eq!(refused.into_value(), 7);
/// ```
#[non_exhaustive]
pub enum WatchError<T> {
    /// The table or its timer has stopped for good.
    Closed(T),
    /// The timer's thread could not be started. All is as it was: try again later.
    NoThread {
        /// What was to be watched.
        value: T,
        /// What the system said.
        source: io::Error,
    },
}

impl<T> WatchError<T> {
    /// What was to be watched.
    #[must_use]
    pub fn into_value(self) -> T {
        match self {
            Self::Closed(value) | Self::NoThread { value, .. } => value,
        }
    }

    pub(crate) fn map<U>(self, map: impl FnOnce(T) -> U) -> WatchError<U> {
        match self {
            Self::Closed(value) => WatchError::Closed(map(value)),
            Self::NoThread { value, source } => WatchError::NoThread {
                value: map(value),
                source,
            },
        }
    }
}

impl<T> fmt::Debug for WatchError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(_) => f.write_str("Closed(..)"),
            Self::NoThread { source, .. } => f
                .debug_struct("NoThread")
                .field("source", source)
                .finish_non_exhaustive(),
        }
    }
}

impl<T> fmt::Display for WatchError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed(_) => "the table or its timer has stopped",
            Self::NoThread { .. } => "the timer's thread could not be started",
        })
    }
}

impl<T> std::error::Error for WatchError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Closed(_) => None,
            Self::NoThread { source, .. } => Some(source),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) watched: AtomicU64,
    pub(crate) closed: AtomicU64,
    pub(crate) looks: AtomicU64,
    pub(crate) overtaken: AtomicU64,
    pub(crate) panicked: AtomicU64,
}

/// What the shards of a table have in common.
pub(crate) struct ActivityHub<P> {
    /// Taken out when the table stops: what it captures may hold handles of the table.
    policy: Mutex<Option<Arc<P>>>,
    stopped: AtomicBool,
    pub(crate) stalls: Stalls,
    pub(crate) counts: Counts,
}

impl<P> ActivityHub<P> {
    /// `None` if the table has stopped.
    pub(crate) fn policy(&self) -> Option<Arc<P>> {
        lock(&self.policy).clone()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

/// The options that all tables have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) tick: Resolution,
    pub(crate) shards: Option<NonZeroUsize>,
    pub(crate) stall_period: Option<Duration>,
}

impl Options {
    /// Whoever waits for a minute does not mind ten milliseconds, and a million of them then
    /// wake the host a hundred times a second and not a thousand times.
    pub(crate) const TICK: Duration = Duration::from_millis(10);
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tick: Resolution::new(Self::TICK).unwrap_or(Resolution::MILLISECOND),
            shards: None,
            stall_period: None,
        }
    }
}

/// Clones are the same table, which stops when the last one is dropped.
pub(crate) struct Table<P: Policy> {
    owner: Arc<TableOwner<P>>,
}

impl<P: Policy> Clone for Table<P> {
    fn clone(&self) -> Self {
        Self {
            owner: Arc::clone(&self.owner),
        }
    }
}

struct TableOwner<P: Policy> {
    hub: Arc<ActivityHub<P>>,
    shards: Box<[Arc<ActivityShard<P>>]>,
    turn: AtomicUsize,
}

impl<P: Policy> Table<P> {
    pub(crate) fn new(timer: Timer, options: Options, policy: Arc<P>) -> Self {
        let hub = Arc::new(ActivityHub {
            policy: Mutex::new(Some(policy)),
            stopped: AtomicBool::new(false),
            stalls: Stalls::new(options.stall_period.map(|period| {
                // Whoever looks more often than the timer rings takes each ring for a stall.
                let tick = tick_duration(&timer);
                period.max(tick.saturating_mul(2))
            })),
            counts: Counts::default(),
        });
        let processors = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let shards = options.shards.unwrap_or_else(processors).get();
        let shards = iter::repeat_n(timer, shards);
        let shards = shards
            .map(|timer| ActivityShard::new(&hub, timer, options.tick))
            .collect();
        Self {
            owner: Arc::new(TableOwner {
                hub,
                shards,
                turn: AtomicUsize::new(0),
            }),
        }
    }

    /// Watches `data` from now on.
    pub(crate) fn watch(&self, data: P::Data) -> Result<Member<P>, WatchError<P::Data>> {
        let owner = &*self.owner;
        let turn = owner.turn.fetch_add(1, Ordering::Relaxed);
        let shard = &owner.shards[turn % owner.shards.len()];
        let timer = shard.timer();
        let policy = owner.hub.policy().filter(|_| !timer.is_stopped());
        let Some(policy) = policy else {
            return Err(WatchError::Closed(data));
        };
        if let Err(source) = start_host(timer) {
            return Err(WatchError::NoThread {
                value: data,
                source,
            });
        }
        owner.hub.stalls.join(timer.now());
        owner.hub.counts.watched.fetch_add(1, Ordering::Relaxed);
        let cell = Arc::new(Cell::new(shard.live(), data));
        shard.file(&policy, Arc::clone(&cell), Instant::ZERO);
        Ok((Arc::clone(shard), cell))
    }

    pub(crate) fn hub(&self) -> &ActivityHub<P> {
        &self.owner.hub
    }

    pub(crate) fn members(&self) -> u64 {
        self.owner.hub.stalls.members()
    }

    /// The limits of all have changed.
    pub(crate) fn look_at_all_again(&self) {
        for shard in &self.owner.shards {
            shard.look_at_all_again();
        }
    }

    pub(crate) fn stop(&self) {
        self.owner.stop();
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let wheels = self.owner.shards.iter();
        let wheels: usize = wheels.map(|shard| shard.memory_bytes()).sum();
        // A cell is behind two counters.
        let cell = size_of::<Cell<P::Data>>() + 2 * size_of::<usize>();
        let members = usize::try_from(self.members()).unwrap_or(usize::MAX);
        wheels.saturating_add(members.saturating_mul(cell))
    }
}

/// A cell, and the shard to which it belongs.
pub(crate) type Member<P> = (Arc<ActivityShard<P>>, Arc<Cell<<P as Policy>::Data>>);

impl<P: Policy> TableOwner<P> {
    fn stop(&self) {
        self.hub.stopped.store(true, Ordering::Release);
        let policy = lock(&self.hub.policy).take();
        for shard in &self.shards {
            shard.clear();
        }
        drop(policy);
    }
}

impl<P: Policy> Drop for TableOwner<P> {
    fn drop(&mut self) {
        self.stop();
    }
}
