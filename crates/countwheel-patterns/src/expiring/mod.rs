//! A map whose entries leave by themselves.
//!
//! `shard.rs` holds the entries, their deadlines and the lock that decides every race. `outbox.rs`
//! holds the entries that the listener still has to hear of. `load.rs` has the loads and their
//! waiting callers.

mod builder;
mod load;
mod outbox;
mod results;
mod shard;
mod ttl;

use std::borrow::Borrow;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hash, RandomState};
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use self::load::{Landing, LoadTurn};
use self::shard::{MapHub, MapRule, MapShard, Taken};
use self::ttl::{Jitter, Life};
use countwheel::building::start_host;
use countwheel::{Instant, Timer};

pub use self::builder::ExpiringMapBuilder;
pub use self::results::{Cause, ExpiringEntry, ExpiringStats, InsertError};
pub use self::ttl::Ttl;

/// A map whose entries expire: each so long after it was inserted, or after it was last used.
///
/// What has expired is never read, be its timer late or not, since every read compares the
/// deadline with the clock. And it does not wait to be read: it is dropped when its time has
/// come, less than a tick later, also if nobody comes by. A
/// [`listener`](ExpiringMapBuilder::listener) hears of it.
///
/// An entry and its deadline are one thing behind one lock. So a value that replaces another
/// is never taken away by the other's timer, an insert that meets an expiry stays, and what is
/// removed leaves nothing behind, neither in the map nor in the wheel. Nothing expires before
/// its time.
///
/// Entries are spread over shards, four for each processor of the machine, each with a lock, a
/// map and a wheel of its own. To read takes the lock for reading, and reads the clock; to
/// renew an entry is one store on top. An insert takes it for writing; a value that replaces
/// another, and lives longer, does not touch the wheel. All are O(1).
///
/// Clones are handles to the same map, and cheap. When the last one is dropped, the entries
/// are cleared, and the timer has nothing more to do with it.
///
/// It has no policy of what to keep when memory is short, only a
/// [hard bound](ExpiringMapBuilder::max_entries). For a cache that is to keep what is used the
/// most, take `moka`: the [guide](crate::guide::expiring_maps) compares the two.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{ExpiringMap, Ttl};
/// use std::time::Duration;
///
/// let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
/// let mut host = ManualHost::new();
/// let sessions = ExpiringMap::new(host.timer().clone(), Ttl::idle(minutes(30)));
/// sessions.insert("4711".to_owned(), "Ada")?;
/// sessions.insert_for("0815".to_owned(), "Bob", Ttl::after(minutes(5)))?;
///
/// host.advance(minutes(20));
/// assert_eq!(sessions.get("4711"), Some("Ada"), "which renews it");
/// assert_eq!(sessions.get("0815"), None);
///
/// host.advance(minutes(29));
/// assert_eq!(sessions.remaining("4711"), Some(minutes(1)));
/// host.advance(minutes(1));
/// assert!(sessions.is_empty());
/// # Ok::<(), countwheel_patterns::InsertError<String, &str>>(())
/// ```
///
/// # When the timer stops
///
/// Nothing can be inserted any more ([`InsertError::Closed`]), and what has expired stays in
/// memory until it is removed, drained or cleared. But it is still not read: reads go by the
/// clock.
pub struct ExpiringMap<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    owner: Arc<MapOwner<K, V>>,
}

/// All clones of a map together, as opposed to its shards, which a ring or a load may hold.
struct MapOwner<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    timer: Timer,
    hasher: RandomState,
    ttl: Ttl,
    jitter: Jitter,
    hub: Arc<MapHub>,
    shards: Box<[Arc<MapShard<K, V>>]>,
}

impl<K, V> ExpiringMap<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// A map whose entries expire on `timer`, after `ttl` unless they have one of their own.
    #[must_use]
    pub fn new(timer: Timer, ttl: Ttl) -> Self {
        Self::builder().ttl(ttl).build(timer)
    }

    /// A map with other options.
    pub const fn builder() -> ExpiringMapBuilder<K, V> {
        ExpiringMapBuilder::new()
    }

    fn with(builder: &ExpiringMapBuilder<K, V>, timer: Timer) -> Self {
        Self {
            owner: Arc::new(MapOwner::new(builder, timer)),
        }
    }

    fn cyclic<L>(
        builder: ExpiringMapBuilder<K, V>,
        timer: Timer,
        listener: impl FnOnce(WeakExpiringMap<K, V>) -> L,
    ) -> Self
    where
        L: Fn(K, V, Cause) + Send + Sync + 'static,
        V: Clone,
    {
        let owner = Arc::new_cyclic(|owner| {
            let weak = WeakExpiringMap {
                owner: Weak::clone(owner),
            };
            MapOwner::new(&builder.listener(listener(weak)), timer)
        });
        Self { owner }
    }

    /// Puts `value` under `key`, for as long as the map's [`Ttl`] says. What was there and had
    /// not expired comes back; its deadline is void.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{ExpiringMap, Ttl};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let map = ExpiringMap::new(host.timer().clone(), Ttl::after(Duration::from_secs(10)));
    /// assert_eq!(map.insert("rate", 7)?, None);
    /// host.advance(Duration::from_secs(6));
    /// assert_eq!(map.insert("rate", 8)?, Some(7));
    /// host.advance(Duration::from_secs(9));
    /// assert_eq!(map.get("rate"), Some(8), "the first one's deadline does not concern it");
    /// # Ok::<(), countwheel_patterns::InsertError<&str, i32>>(())
    /// ```
    ///
    /// # Errors
    /// [`InsertError::Closed`] if the map is closed or its timer has stopped,
    /// [`InsertError::Full`] if there are as many entries as may be and `key` is not among
    /// them, [`InsertError::NoThread`] if the timer's thread could not be started. All give key
    /// and value back.
    pub fn insert(&self, key: K, value: V) -> Result<Option<V>, InsertError<K, V>> {
        self.put(key, value, self.owner.ttl, MapRule::Replace)
    }

    /// Like [`insert`](Self::insert), with a [`Ttl`] of its own.
    ///
    /// # Errors
    /// Those of [`insert`](Self::insert).
    pub fn insert_for(&self, key: K, value: V, ttl: Ttl) -> Result<Option<V>, InsertError<K, V>> {
        self.put(key, value, ttl, MapRule::Replace)
    }

    /// Like [`insert`](Self::insert), but a key that is there keeps its value and its deadline.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{ExpiringMap, InsertError, Ttl};
    /// # use std::time::Duration;
    /// let mut host = ManualHost::new();
    /// let seen = ExpiringMap::new(host.timer().clone(), Ttl::after(Duration::from_secs(60)));
    /// assert!(seen.insert_if_absent("message 1", ()).is_ok());
    /// let again = seen.insert_if_absent("message 1", ());
    /// assert!(matches!(again, Err(InsertError::Present("message 1", ()))), "a duplicate");
    /// host.advance(Duration::from_secs(60));
    /// assert!(seen.insert_if_absent("message 1", ()).is_ok(), "after a minute, nobody minds");
    /// ```
    ///
    /// # Errors
    /// [`InsertError::Present`] if the key is there, otherwise those of
    /// [`insert`](Self::insert).
    pub fn insert_if_absent(&self, key: K, value: V) -> Result<(), InsertError<K, V>> {
        self.insert_if_absent_for(key, value, self.owner.ttl)
    }

    /// Like [`insert_if_absent`](Self::insert_if_absent), with a [`Ttl`] of its own.
    ///
    /// # Errors
    /// Those of [`insert_if_absent`](Self::insert_if_absent).
    pub fn insert_if_absent_for(
        &self,
        key: K,
        value: V,
        ttl: Ttl,
    ) -> Result<(), InsertError<K, V>> {
        self.put(key, value, ttl, MapRule::KeepOld).map(drop)
    }

    /// A clone of what is under `key`, if it has not expired. Renews an idle time.
    ///
    /// (For values that are dear to clone: [`get_with`](Self::get_with), or put them into an
    /// [`Arc`].)
    #[inline]
    #[must_use]
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        self.get_with(key, V::clone)
    }

    /// Shows what is under `key` to `look`, if it has not expired, and returns what that
    /// returns. Renews an idle time.
    ///
    /// Runs under a lock that those wait for who change some other keys, so be short.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{ExpiringMap, Ttl};
    /// let host = ManualHost::new();
    /// let pages = ExpiringMap::new(host.timer().clone(), Ttl::NEVER);
    /// pages.insert("/", vec![1, 2, 3]).unwrap();
    /// assert_eq!(pages.get_with("/", Vec::len), Some(3));
    /// assert_eq!(pages.get_with("/index", Vec::len), None);
    /// ```
    ///
    /// # Panics
    /// If `look` uses an expiring map, this one or another, which might have to wait for
    /// itself.
    #[inline]
    pub fn get_with<Q, R>(&self, key: &Q, look: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.find(key);
        shard.get_with(hash, key, self.now(), look)
    }

    /// Lets `change` change what is under `key`, if it has not expired, and returns what that
    /// returns. Renews an idle time; the rest of the [`Ttl`] goes on.
    ///
    /// Runs under a lock that some other keys wait for, so be short.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{ExpiringMap, Ttl};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let requests = ExpiringMap::new(host.timer().clone(), Ttl::after(Duration::from_secs(1)));
    /// for _ in 0..3 {
    ///     if requests.update("10.0.0.1", |count| *count += 1).is_none() {
    ///         requests.insert("10.0.0.1", 1).unwrap();
    ///     }
    /// }
    /// assert_eq!(requests.get("10.0.0.1"), Some(3));
    /// ```
    ///
    /// # Panics
    /// If `change` uses an expiring map, as with [`get_with`](Self::get_with).
    pub fn update<Q, R>(&self, key: &Q, change: impl FnOnce(&mut V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.find(key);
        shard.update(hash, key, self.now(), change)
    }

    /// Whether there is something under `key` that has not expired. Renews nothing.
    #[must_use]
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.remaining(key).is_some()
    }

    /// How long what is under `key` lives on if it is not used; [`Duration::MAX`] if for ever;
    /// `None` if it is not there. Renews nothing.
    #[must_use]
    pub fn remaining<Q>(&self, key: &Q) -> Option<Duration>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.find(key);
        shard.remaining(hash, key, self.now())
    }

    /// Renews an idle time, as a read does, and says whether the key is there.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{ExpiringMap, Ttl};
    /// # use std::time::Duration;
    /// let mut host = ManualHost::new();
    /// let seconds = Duration::from_secs;
    /// let map = ExpiringMap::new(host.timer().clone(), Ttl::idle(seconds(10)));
    /// map.insert("lease", ()).unwrap();
    /// host.advance(seconds(9));
    /// assert!(map.contains("lease") && map.touch("lease"));
    /// assert_eq!(map.remaining("lease"), Some(seconds(10)));
    /// host.advance(seconds(10));
    /// assert!(!map.touch("lease"));
    /// ```
    pub fn touch<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.find(key);
        shard.touch(hash, key, self.now())
    }

    /// Gives the entry another [`Ttl`], from now on, and says whether the key is there.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{ExpiringMap, Ttl};
    /// # use std::time::Duration;
    /// let mut host = ManualHost::new();
    /// let map = ExpiringMap::new(host.timer().clone(), Ttl::NEVER);
    /// map.insert("draft", ()).unwrap();
    /// assert!(map.set_ttl("draft", Ttl::after(Duration::from_secs(1))));
    /// host.advance(Duration::from_secs(1));
    /// assert!(map.is_empty() && !map.set_ttl("draft", Ttl::NEVER));
    /// ```
    pub fn set_ttl<Q>(&self, key: &Q, ttl: Ttl) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = self.now();
        let (hash, shard) = self.find(key);
        shard.set_life(hash, key, now, Life::new(ttl, &self.owner.jitter, now))
    }

    /// Takes `key` away: its value, unless that has expired. Its place in the wheel is free at
    /// once. What a load of the key that is under way brings will not be kept.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{ExpiringMap, Ttl};
    /// let host = ManualHost::new();
    /// let map = ExpiringMap::new(host.timer().clone(), Ttl::NEVER);
    /// map.insert("Ada".to_owned(), 36).unwrap();
    /// assert_eq!((map.remove("Ada"), map.remove("Ada")), (Some(36), None));
    /// ```
    pub fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.find(key);
        shard.remove(hash, key, self.now())
    }

    /// Removes every entry for which `keep` returns false.
    ///
    /// O(n); the other keys wait, one part of them at a time.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{ExpiringMap, Ttl};
    /// let host = ManualHost::new();
    /// let map = ExpiringMap::new(host.timer().clone(), Ttl::NEVER);
    /// for key in 0..10 {
    ///     map.insert(key, "value").unwrap();
    /// }
    /// map.retain(|key, _value| key % 2 == 0);
    /// assert_eq!(map.len(), 5);
    /// ```
    ///
    /// # Panics
    /// If `keep` uses an expiring map, as with [`get_with`](Self::get_with).
    pub fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool) {
        let now = self.now();
        for shard in &self.owner.shards {
            shard.retain(now, &mut keep);
        }
    }

    /// Takes out everything and drops it. A [`listener`](ExpiringMapBuilder::listener) hears
    /// of it. What loads bring that are under way will not be kept.
    pub fn clear(&self) {
        self.owner.take_all(Taken::Cleared);
    }

    /// Takes out everything that has not expired, in no order. The listener does not hear of
    /// it.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{ExpiringMap, Ttl};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let map = ExpiringMap::new(host.timer().clone(), Ttl::after(Duration::from_secs(3)));
    /// map.insert(1, "one").unwrap();
    /// let entry = map.drain().remove(0);
    /// assert_eq!((entry.key, entry.value, entry.remaining.as_secs()), (1, "one", 3));
    /// assert!(map.is_empty());
    /// ```
    #[must_use = "what is drained is dropped otherwise"]
    pub fn drain(&self) -> Vec<ExpiringEntry<K, V>> {
        self.owner.take_all(Taken::Drained)
    }

    /// Shows every entry to `look` that has not expired, in no order. Renews nothing.
    ///
    /// What is inserted or removed meanwhile may be seen or not. Runs under locks that those
    /// wait for who change other keys, one part of them at a time.
    ///
    /// # Panics
    /// If `look` uses an expiring map, as with [`get_with`](Self::get_with).
    pub fn for_each(&self, mut look: impl FnMut(&K, &V)) {
        let now = self.now();
        for shard in &self.owner.shards {
            shard.for_each(now, &mut look);
        }
    }

    /// Clones of everything that has not expired, in no order. Renews nothing.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{ExpiringMap, Ttl};
    /// let host = ManualHost::new();
    /// let map = ExpiringMap::new(host.timer().clone(), Ttl::NEVER);
    /// map.insert("a", 1).unwrap();
    /// map.insert("b", 2).unwrap();
    /// let mut sum = 0;
    /// map.for_each(|_key, value| sum += value);
    /// for (key, value) in map.snapshot() {
    ///     map.remove(key);
    ///     sum -= value;
    /// }
    /// assert_eq!((sum, map.len()), (0, 0));
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Vec<(K, V)>
    where
        K: Clone,
        V: Clone,
    {
        let mut entries = Vec::new();
        self.for_each(|key, value| entries.push((key.clone(), value.clone())));
        entries
    }

    /// What is under `key`, or else what `make` returns, which is then inserted: like
    /// [`try_get_or_load`](Self::try_get_or_load), for what cannot fail.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{ExpiringMap, Ttl};
    /// let host = ManualHost::new();
    /// let map = ExpiringMap::<String, usize>::new(host.timer().clone(), Ttl::NEVER);
    /// assert_eq!(map.get_or_insert_with("Ada", || 36), 36);
    /// assert_eq!(map.get_or_insert_with("Ada", || unreachable!()), 36);
    /// ```
    ///
    /// # Panics
    /// As [`try_get_or_load`](Self::try_get_or_load) does.
    pub fn get_or_insert_with<Q>(&self, key: &Q, make: impl FnOnce() -> V) -> V
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        V: Clone,
    {
        let loaded = self.try_get_or_load(key, || Ok::<_, Infallible>(make()));
        loaded.unwrap_or_else(|never| match *never {})
    }

    /// What is under `key`, or else what `load` returns, which is then inserted.
    ///
    /// However many ask for a key at the same time, one of them loads it, on its own thread,
    /// without a lock. The others block until it is done, and get the same value or the same
    /// error. An error is not kept: whoever asks next loads again. If `load` panics, another
    /// of those who wait loads in its turn; so it does if the error is not of its type `E`.
    ///
    /// If somebody inserts or removes the key while it is loaded, what is loaded may be older
    /// than that: those who wait still get it, but it is not kept. Neither is it if there is no
    /// room for it or the map is closed.
    ///
    /// (The single flight of `groupcache` and go-zero.)
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{ExpiringMap, Ttl};
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let users = ExpiringMap::new(host.timer().clone(), Ttl::after(Duration::from_secs(60)));
    /// let failed = users.try_get_or_load(&7, || "x".parse::<u32>());
    /// assert_eq!(failed.unwrap_err().to_string(), "invalid digit found in string");
    /// let loaded = users.try_get_or_load(&7, || "36".parse::<u32>());
    /// assert_eq!((loaded, users.get(&7)), (Ok(36), Some(36)));
    /// assert_eq!((users.stats().loads, users.stats().load_failures), (2, 1));
    /// ```
    ///
    /// # Errors
    /// What `load` returned, shared with all who have waited for it.
    ///
    /// # Panics
    /// If `load` asks for the same key, which would wait for itself, and if `load` does.
    pub fn try_get_or_load<Q, E>(
        &self,
        key: &Q,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        V: Clone,
        E: Send + Sync + 'static,
    {
        if let Some(found) = self.get(key) {
            return Ok(found);
        }
        loop {
            let landing = match self.turn(key, true) {
                LoadTurn::Found(value) => return Ok(value),
                LoadTurn::Wait(flight) => flight.wait(),
                LoadTurn::Load(turn) => {
                    let result = load();
                    let now = self.now();
                    return turn.end(result, now, self.life(now));
                }
            };
            if let Some(result) = answer(landing) {
                return result;
            }
        }
    }

    /// Like [`try_get_or_load`](Self::try_get_or_load), in async code: the future `load` is
    /// awaited by one, and the others await its end. Both kinds may wait for each other.
    ///
    /// # Cancel safety
    /// If the future of the one who loads is dropped, another of those who wait loads in its
    /// turn. One who waits may be dropped without effect.
    ///
    /// A `load` that awaits the same key waits for itself, for ever: a thread would panic, but a
    /// future cannot know who polls it.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{ExpiringMap, Ttl};
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let tokens = ExpiringMap::new(host.timer().clone(), Ttl::after(Duration::from_secs(60)));
    /// let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// runtime.block_on(async {
    ///     let fetch = async { Ok::<_, std::io::Error>("token") };
    ///     assert_eq!(tokens.try_get_or_load_async("api", fetch).await.unwrap(), "token");
    ///     let never = std::future::pending::<Result<_, std::io::Error>>();
    ///     assert_eq!(tokens.try_get_or_load_async("api", never).await.unwrap(), "token");
    /// });
    /// ```
    ///
    /// # Errors
    /// What `load` resolved to, shared with all who have waited for it.
    pub async fn try_get_or_load_async<Q, E>(
        &self,
        key: &Q,
        load: impl Future<Output = Result<V, E>>,
    ) -> Result<V, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        V: Clone,
        E: Send + Sync + 'static,
    {
        if let Some(found) = self.get(key) {
            return Ok(found);
        }
        loop {
            let landing = match self.turn(key, false) {
                LoadTurn::Found(value) => return Ok(value),
                LoadTurn::Wait(flight) => flight.landing().await,
                LoadTurn::Load(turn) => {
                    let result = load.await;
                    let now = self.now();
                    return turn.end(result, now, self.life(now));
                }
            };
            if let Some(result) = answer(landing) {
                return result;
            }
        }
    }

    /// How many entries there are. Exact, unless calls are under way. What has expired counts
    /// until it is taken out, which is less than a tick later unless the timer is late or has
    /// stopped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.owner.shards.iter().map(|shard| shard.len()).sum()
    }

    /// Whether there is no entry. See [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What has been done so far.
    #[must_use]
    pub fn stats(&self) -> ExpiringStats {
        let shards = self.owner.shards.iter();
        shards.fold(ExpiringStats::default(), |sum, shard| {
            sum.add(shard.stats())
        })
    }

    /// Refuses inserts from now on, and takes out everything, like [`drain`](Self::drain). The
    /// timer has nothing more to do with the map.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{ExpiringMap, Ttl};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let map = ExpiringMap::new(host.timer().clone(), Ttl::after(Duration::from_secs(3)));
    /// map.insert(1, "one").unwrap();
    /// assert_eq!(map.close()[0].value, "one");
    /// assert!(map.is_closed() && map.insert(2, "two").is_err());
    /// assert_eq!(map.timer().pending(), 0);
    /// assert!(!map.timer().is_stopped(), "others may use it");
    /// ```
    pub fn close(&self) -> Vec<ExpiringEntry<K, V>> {
        self.owner.hub.close();
        self.owner.take_all(Taken::Drained)
    }

    /// Whether inserts are refused, because someone has closed this or the timer below.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.owner.hub.is_closed() || self.owner.timer.is_stopped()
    }

    /// The timer below.
    #[must_use]
    pub fn timer(&self) -> &Timer {
        &self.owner.timer
    }

    /// A handle that does not keep the map alive: for a listener, and for what the values refer
    /// to.
    #[must_use]
    pub fn downgrade(&self) -> WeakExpiringMap<K, V> {
        WeakExpiringMap {
            owner: Arc::downgrade(&self.owner),
        }
    }

    fn put(
        &self,
        key: K,
        value: V,
        ttl: Ttl,
        rule: MapRule,
    ) -> Result<Option<V>, InsertError<K, V>> {
        if let Err(source) = start_host(&self.owner.timer) {
            return Err(InsertError::NoThread { key, value, source });
        }
        let now = self.now();
        let life = Life::new(ttl, &self.owner.jitter, now);
        let (hash, shard) = self.find(&key);
        shard.insert(hash, (key, value), life, now, rule)
    }

    fn turn<Q>(&self, key: &Q, blocks: bool) -> LoadTurn<K, V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        V: Clone,
    {
        let (hash, shard) = self.find(key);
        shard.turn(hash, key.to_owned(), self.now(), blocks)
    }

    #[inline]
    fn now(&self) -> Instant {
        self.owner.timer.now()
    }

    fn life(&self, now: Instant) -> Life {
        Life::new(self.owner.ttl, &self.owner.jitter, now)
    }

    /// The hash of a key, and the shard that has it.
    #[inline]
    fn find<Q>(&self, key: &Q) -> (u64, &Arc<MapShard<K, V>>)
    where
        Q: Hash + ?Sized,
    {
        let hash = self.owner.hasher.hash_one(key);
        // By bits of the hash that the index does not go by until it has 2^32 slots.
        let upper = usize::try_from(hash >> 32).unwrap_or(usize::MAX);
        let shards = &self.owner.shards;
        (hash, &shards[upper & (shards.len() - 1)])
    }
}

/// What a load that another has made answers; `None` if one has to try again.
fn answer<V, E>(landing: Landing<V>) -> Option<Result<V, Arc<E>>>
where
    V: Clone,
    E: Send + Sync + 'static,
{
    match landing {
        Landing::Loaded(value) => Some(Ok(Arc::unwrap_or_clone(value))),
        Landing::Failed(error) => error.downcast().ok().map(Err),
        Landing::Abandoned => None,
    }
}

impl<K, V> MapOwner<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn new(builder: &ExpiringMapBuilder<K, V>, timer: Timer) -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let shards = (4 * processors).next_power_of_two();
        let hub = MapHub::new(builder.max_entries);
        let shard = |_| MapShard::new(&timer, &hub, builder.listener.as_ref());
        let shards = (0..shards).map(shard).collect();
        Self {
            timer,
            hasher: RandomState::new(),
            ttl: builder.ttl,
            jitter: builder.new_jitter(),
            hub,
            shards,
        }
    }

    fn take_all(&self, taken: Taken) -> Vec<ExpiringEntry<K, V>> {
        let now = self.timer.now();
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| shard.take_all(now, taken))
            .collect()
    }
}

impl<K, V> Drop for MapOwner<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn drop(&mut self) {
        self.hub.close();
        self.take_all(Taken::Cleared);
    }
}

impl<K, V> Clone for ExpiringMap<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn clone(&self) -> Self {
        Self {
            owner: Arc::clone(&self.owner),
        }
    }
}

impl<K, V> fmt::Debug for ExpiringMap<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiringMap")
            .field("timer", &self.owner.timer)
            .field("closed", &self.owner.hub.is_closed())
            .finish_non_exhaustive()
    }
}

/// A handle to an [`ExpiringMap`] that does not keep it alive.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{ExpiringMap, Ttl};
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let map = ExpiringMap::new(host.timer().clone(), Ttl::after(Duration::from_secs(1)));
/// let weak = map.downgrade();
/// map.insert(1, "one").unwrap();
/// assert!(weak.upgrade().is_some_and(|map| map.contains(&1)));
///
/// drop(map);
/// assert!(weak.upgrade().is_none());
/// assert_eq!(host.timer().pending(), 0, "nothing is left, not even a wake-up");
/// ```
pub struct WeakExpiringMap<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    owner: Weak<MapOwner<K, V>>,
}

impl<K, V> WeakExpiringMap<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// The map; `None` once its last clone is dropped.
    #[must_use]
    pub fn upgrade(&self) -> Option<ExpiringMap<K, V>> {
        let owner = self.owner.upgrade()?;
        Some(ExpiringMap { owner })
    }
}

impl<K, V> Clone for WeakExpiringMap<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn clone(&self) -> Self {
        Self {
            owner: Weak::clone(&self.owner),
        }
    }
}

impl<K, V> fmt::Debug for WeakExpiringMap<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakExpiringMap").finish_non_exhaustive()
    }
}
