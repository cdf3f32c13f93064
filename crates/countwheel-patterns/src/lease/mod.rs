//! Leases, and the eviction of those not renewed.

mod config;
mod eviction;
mod quota;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use self::eviction::Evictions;
use super::activity::{ActivityShard, Cell, Table, WatchError};
use countwheel::{Instant, Timer};
use countwheel_time::nanos;

pub use self::config::LeaseConfig;

/// Holders that have to renew a lease, and are evicted if they do not: the heart of a registry.
///
/// [`grant`](Self::grant) returns a [`Lease`], to be kept under its key in whatever map there is.
/// A renewal writes down the time and does nothing else. A lease runs out when it was last
/// renewed its duration ago (and not twice that, as with Eureka), on the monotonic clock. Then:
///
/// 1. The time in which this process itself did not run is subtracted: nobody could renew then.
///    (Eureka adds it to the leases. Here time itself stands still, see
///    [`LeaseConfig::stall_period`].)
/// 2. The lease is a **suspect**, and looked at again after
///    [`second_look`](LeaseConfig::second_look). Who has renewed by then is no suspect any more.
/// 3. At most a share of all leases is evicted in one period, [chosen at
///    random](LeaseConfig::percent_per_period): if a network breaks, not everybody is lost,
///    and not all instances of one service. The others stay suspects until the next
///    period; with [`self_preservation`](LeaseConfig::self_preservation), nobody is
///    evicted while there are too many.
/// 4. The handler is called with the key, on the timer's executor.
///
/// So without a stall, and with few suspects, a lease that is not renewed is evicted no sooner
/// than its duration and the second look after the last renewal, and less than one tick of the
/// table and two of the timer later; never a renewed one. (With [`gather`](LeaseConfig::gather),
/// up to so much later: the first suspect waits that long, and the others go with it.) A renewal that comes at the very
/// moment of the eviction may be too late: then the next one says so.
///
/// Each lease ends once: it is evicted, or its handle is dropped before that. A handler that
/// panics is counted, and its lease is evicted all the same. Clones are the same table; when the
/// last is dropped, nobody is evicted any more.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::broker::{LeaseConfig, Leases};
/// use std::collections::HashMap;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let (sender, evicted) = mpsc::channel();
/// let config = LeaseConfig::new(Duration::from_secs(90));
/// let leases = Leases::new(host.timer().clone(), config, move |instance: &String| {
///     sender.send(instance.clone()).unwrap();
/// });
///
/// let mut registry = HashMap::new();
/// for instance in ["orders-1", "orders-2"] {
///     registry.insert(instance, leases.grant(instance.to_owned())?);
/// }
/// host.advance(Duration::from_secs(60));
/// assert!(registry["orders-1"].renew());
/// host.advance(Duration::from_secs(60));
/// assert_eq!(evicted.try_iter().collect::<Vec<_>>(), ["orders-2"]);
/// assert!(!registry["orders-2"].renew(), "it has to register again");
/// # Ok::<(), countwheel_patterns::WatchError<String>>(())
/// ```
pub struct Leases<K: Send + Sync + 'static> {
    // In this order: the table goes first, and with it what files suspects.
    table: Table<Evictions<K>>,
    evictions: Arc<Evictions<K>>,
}

/// A key and how long its lease lasts.
struct Term<K> {
    key: K,
    duration: AtomicU64,
    is_suspect: AtomicBool,
}

/// What [`Leases`] have done so far: `granted` equals `live + released + evicted` whenever
/// nothing is under way.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::broker::{LeaseConfig, Leases};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let leases = Leases::new(host.timer().clone(), LeaseConfig::eureka(), |_key: &u32| {});
/// let mut held: Vec<_> = (0..100).map(|key| leases.grant(key).unwrap()).collect();
/// held.pop();
/// host.advance(Duration::from_secs(80));
/// for lease in &held[..90] {
///     lease.renew();
/// }
/// host.advance(Duration::from_secs(60));
/// let stats = leases.stats();
/// assert_eq!((stats.granted, stats.released, stats.evicted), (100, 1, 9));
/// assert_eq!((stats.live, stats.suspects), (90, 0));
///
/// host.advance(Duration::from_secs(300)); // and now everybody is silent
/// let stats = leases.stats();
/// assert_eq!((stats.live, stats.suspects), (90, 90));
/// assert!(stats.preserved > 1);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LeaseStats {
    /// Leases that were granted.
    pub granted: u64,
    /// Those that are held, suspects included.
    pub live: u64,
    /// Those whose handle was dropped before they were evicted.
    pub released: u64,
    /// Those that were evicted.
    pub evicted: u64,
    /// Those that have run out and are not evicted, for now. (Some may have been renewed or
    /// released since.)
    pub suspects: u64,
    /// How often a suspect was renewed.
    pub spared: u64,
    /// How often the limit for a period made suspects wait.
    pub held_back: u64,
    /// How often nobody was evicted because there were too many suspects.
    pub preserved: u64,
    /// How often the handler panicked.
    pub panicked: u64,
    /// How often an entry came up in the wheel and its lease was looked at.
    pub looks: u64,
    /// How often this process did not run when it should have.
    pub stalls: u64,
    /// How long in all: this time counts against no lease.
    pub stalled: Duration,
}

impl<K: Send + Sync + 'static> Leases<K> {
    /// Grants leases by `timer`, and calls `evict` on its executor.
    #[must_use]
    pub fn new(
        timer: Timer,
        config: LeaseConfig,
        evict: impl Fn(&K) + Send + Sync + 'static,
    ) -> Self {
        let evictions = Evictions::new(&timer, config, Box::new(evict));
        Self {
            table: Table::new(timer, config.options(), Arc::clone(&evictions)),
            evictions,
        }
    }

    /// A lease for the duration of the configuration. It counts as renewed now.
    ///
    /// O(1): reads the clock, allocates once, takes one lock of several.
    ///
    /// # Errors
    /// [`WatchError::Closed`] if the table or its timer has stopped, [`WatchError::NoThread`] if
    /// the timer's thread could not be started. Both give the key back.
    pub fn grant(&self, key: K) -> Result<Lease<K>, WatchError<K>> {
        self.grant_for(key, self.evictions.duration())
    }

    /// A lease for another duration.
    ///
    /// # Errors
    /// Those of [`grant`](Self::grant).
    pub fn grant_for(&self, key: K, duration: Duration) -> Result<Lease<K>, WatchError<K>> {
        let member = self.table.watch(Term::new(key, duration));
        let (shard, cell) = member.map_err(|error| error.map(|term| term.key))?;
        Ok(Lease { shard, cell })
    }

    /// How many leases are held.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.table.members()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What has happened so far.
    #[must_use]
    pub fn stats(&self) -> LeaseStats {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (hub, counts) = (self.table.hub(), &self.evictions.counts);
        LeaseStats {
            granted: load(&hub.counts.watched),
            live: self.len(),
            released: load(&hub.counts.closed),
            evicted: load(&counts.evicted),
            suspects: load(&counts.suspects),
            spared: load(&counts.spared),
            held_back: load(&counts.held_back),
            preserved: load(&counts.preserved),
            panicked: load(&hub.counts.panicked),
            looks: load(&hub.counts.looks),
            stalls: hub.stalls.count(),
            stalled: hub.stalls.stalled(),
        }
    }

    /// How much memory the table takes on the heap, in bytes: what the keys own not included,
    /// nor what the allocator adds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    /// Evicts nobody any more, as dropping the last clone does. The leases stay, and do nothing.
    pub fn stop(&self) {
        self.table.stop();
        self.evictions.clear();
    }
}

impl<K: Send + Sync + 'static> Clone for Leases<K> {
    fn clone(&self) -> Self {
        Self {
            table: self.table.clone(),
            evictions: Arc::clone(&self.evictions),
        }
    }
}

impl<K: Send + Sync + 'static> fmt::Debug for Leases<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("live", &self.len())
            .finish_non_exhaustive()
    }
}

/// The right of a holder to stay, for as long as it renews. Dropping it gives it back: nobody is
/// evicted then.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::broker::{LeaseConfig, Leases};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let minute = Duration::from_secs(60);
/// let leases = Leases::new(host.timer().clone(), LeaseConfig::new(minute), |_key: &&str| {});
/// let lease = leases.grant("node 1")?;
/// let other = leases.grant_for("node 2", 5 * minute)?;
/// host.advance(minute / 2);
/// assert_eq!((*lease.key(), lease.remaining()), ("node 1", minute / 2));
/// assert!(lease.renew() && other.renew_at(host.timer().now()));
///
/// other.set_duration(minute / 4);
/// host.advance(minute / 2);
/// assert!(other.is_evicted() && !lease.is_evicted());
/// # Ok::<(), countwheel_patterns::WatchError<&str>>(())
/// ```
#[must_use = "a lease ends when it is dropped"]
pub struct Lease<K: Send + Sync + 'static> {
    shard: Arc<ActivityShard<Evictions<K>>>,
    cell: Arc<Cell<Term<K>>>,
}

impl<K: Send + Sync + 'static> Lease<K> {
    /// Renews the lease from now. False if it is too late: the holder was evicted.
    ///
    /// One reading of the clock, one relaxed store and one load.
    #[inline]
    pub fn renew(&self) -> bool {
        self.cell.set_read(self.shard.live());
        !self.cell.is_ended()
    }

    /// Like [`renew`](Self::renew), without reading the clock: `now` is what the timer's clock
    /// has shown lately.
    #[inline]
    pub fn renew_at(&self, now: Instant) -> bool {
        self.cell.set_read(self.shard.hub().stalls.live(now));
        !self.cell.is_ended()
    }

    /// How long until it runs out, if there is no stall; zero if it has.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let runs_out = self.cell.last_read().plus(self.cell.data.duration());
        Duration::from_nanos(runs_out.since(self.shard.live()))
    }

    /// Another duration, from now on, and for the time since the last renewal.
    pub fn set_duration(&self, duration: Duration) {
        let term = &self.cell.data.duration;
        term.store(nanos(duration), Ordering::Relaxed);
        self.shard.begin_anew(&self.cell);
    }

    /// Whether the holder was evicted.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.cell.is_ended()
    }

    /// Whose it is.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.cell.data.key
    }
}

impl<K: Send + Sync + 'static> Drop for Lease<K> {
    fn drop(&mut self) {
        if self.shard.close(&self.cell)
            && self.cell.data.is_suspect.load(Ordering::Acquire)
            && let Some(evictions) = self.shard.hub().policy()
        {
            evictions.released();
        }
    }
}

impl<K: Send + Sync + 'static> fmt::Debug for Lease<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("remaining", &self.remaining())
            .field("is_evicted", &self.is_evicted())
            .finish_non_exhaustive()
    }
}
