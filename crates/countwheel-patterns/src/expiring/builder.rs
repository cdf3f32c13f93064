//! The options of an expiring map.

use std::hash::Hash;
use std::sync::Arc;

use super::outbox::Listener;
use super::ttl::Jitter;
use super::{Cause, ExpiringMap, Ttl, WeakExpiringMap};
use countwheel::Timer;

/// The options of an [`ExpiringMap`].
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{ExpiringMap, Ttl};
/// use std::time::Duration;
///
/// // As go-zero's cache has it: a fixed life, give or take 5 %.
/// let mut host = ManualHost::new();
/// let cache = ExpiringMap::builder()
///     .ttl(Ttl::after(Duration::from_secs(100)))
///     .jitter(5)
///     .seed(1)
///     .build(host.timer().clone());
/// for user in 0..100 {
///     cache.insert(user, "profile").unwrap();
/// }
/// host.advance(Duration::from_secs(95) - Duration::from_nanos(1));
/// assert_eq!(cache.len(), 100);
/// host.advance(Duration::from_secs(5));
/// assert!((20..80).contains(&cache.len()));
/// host.advance(Duration::from_secs(5) + Duration::from_millis(1));
/// assert!(cache.is_empty());
/// ```
#[must_use]
pub struct ExpiringMapBuilder<K, V> {
    pub(super) ttl: Ttl,
    jitter: u8,
    seed: Option<u64>,
    pub(super) max_entries: Option<usize>,
    pub(super) listener: Option<Arc<Listener<K, V>>>,
}

impl<K, V> ExpiringMapBuilder<K, V> {
    pub(super) const fn new() -> Self {
        Self {
            ttl: Ttl::NEVER,
            jitter: 0,
            seed: None,
            max_entries: None,
            listener: None,
        }
    }

    /// How long entries live that are inserted without a [`Ttl`] of their own: for ever unless
    /// told otherwise.
    pub fn ttl(mut self, ttl: Ttl) -> Self {
        self.ttl = ttl;
        self
    }

    /// Makes every span of a [`Ttl`] up to so many percent shorter or longer, each time by
    /// chance: then what was inserted together does not expire together, and is not loaded
    /// together again. 0 unless told otherwise, and 100 at most; go-zero has 5.
    pub const fn jitter(mut self, percent: u8) -> Self {
        self.jitter = percent;
        self
    }

    /// The same seed makes the same [`jitter`](Self::jitter), insert by insert: for tests.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// How many entries there may be: any number unless told otherwise. One more is refused,
    /// with [`InsertError::Full`](super::InsertError::Full); nothing is evicted for it. What
    /// has expired counts until it is taken out, which is less than a tick later. Exact; the
    /// price is a counter that all shards share.
    pub const fn max_entries(mut self, entries: usize) -> Self {
        self.max_entries = Some(entries);
        self
    }

    /// Who hears of the entries that leave the map, and why, except those that are drained.
    ///
    /// Called on the timer's executor, with no lock held, so it may use the map; once for each
    /// entry, and for each key in the order in which its entries have left. Not before the call
    /// that makes an entry leave has done so, and not at once after it. Nothing is lost: if the
    /// timer stops, the tasks that it hands back call the listener, be they run or dropped, and
    /// after that, the thread that makes an entry leave. A panic is counted in
    /// [`ExpiringStats::panicked`](super::ExpiringStats::panicked).
    ///
    /// A value that also goes back to a caller, from [`insert`](ExpiringMap::insert) or
    /// [`remove`](ExpiringMap::remove), is cloned for the listener: put what is dear to clone
    /// into an [`Arc`].
    ///
    /// The map holds the listener, so one that holds the map keeps both for ever: see
    /// [`build_cyclic`](Self::build_cyclic).
    pub fn listener(mut self, listener: impl Fn(K, V, Cause) + Send + Sync + 'static) -> Self
    where
        V: Clone,
    {
        self.listener = Some(Arc::new(Listener {
            hear: Box::new(listener),
            copy: V::clone,
        }));
        self
    }

    pub(super) fn new_jitter(&self) -> Jitter {
        Jitter::new(self.jitter, self.seed)
    }
}

impl<K, V> ExpiringMapBuilder<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// A map whose entries expire on `timer`: on its clock, in its ticks.
    #[must_use]
    pub fn build(self, timer: Timer) -> ExpiringMap<K, V> {
        ExpiringMap::with(&self, timer)
    }

    /// Like [`build`](Self::build), for a [`listener`](Self::listener) that needs the map:
    /// `listener` makes it, and is given a handle that does not keep the map alive.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Cause, ExpiringMap, Ttl};
    /// use std::time::Duration;
    ///
    /// // What expires is renewed for as long as somebody wants it.
    /// let mut host = ManualHost::new();
    /// let quotes = ExpiringMap::builder()
    ///     .ttl(Ttl::after(Duration::from_secs(1)))
    ///     .build_cyclic(host.timer().clone(), |quotes| {
    ///         move |symbol: &str, price: u64, cause| {
    ///             if cause == Cause::Expired && let Some(quotes) = quotes.upgrade() {
    ///                 quotes.insert(symbol, price + 1).expect("the map is open");
    ///             }
    ///         }
    ///     });
    /// quotes.insert("ABC", 100).unwrap();
    /// host.advance(Duration::from_secs(3));
    /// assert_eq!(quotes.get("ABC"), Some(103));
    /// ```
    #[must_use]
    pub fn build_cyclic<L>(
        self,
        timer: Timer,
        listener: impl FnOnce(WeakExpiringMap<K, V>) -> L,
    ) -> ExpiringMap<K, V>
    where
        L: Fn(K, V, Cause) + Send + Sync + 'static,
        V: Clone,
    {
        ExpiringMap::cyclic(self, timer, listener)
    }
}

impl<K, V> std::fmt::Debug for ExpiringMapBuilder<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExpiringMapBuilder")
            .field("ttl", &self.ttl)
            .field("jitter", &self.jitter)
            .field("max_entries", &self.max_entries)
            .finish_non_exhaustive()
    }
}
