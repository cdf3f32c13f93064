//! Timers by key: set, move, remove and drain, and one handler for every key that fires.
//!
//! A keyed timer is a layer on the timer's ordinary tasks. `shard.rs` holds the one rule that
//! decides every race, `entry.rs` the entries, and `index.rs`, one up, finds them.

mod entry;
mod results;
mod saved;
mod shard;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use self::shard::{KeyHub, KeyRule, KeyShard, Taken};
use crate::{By, Instant, Timer};

pub use self::results::{KeyedEntry, KeyedStats, Move, SetError, When};
pub use self::saved::SavedEntry;

/// Timers that are known by keys: each key has at most one, and all fire into one handler.
///
/// A layer on a [`Timer`], which it may share with others: whatever host and executor that
/// has, the handler runs there as any task does. So keys fire never early, in the order of
/// their deadlines, and a handler that panics is counted and logged by the timer. Handlers of
/// different keys may run at the same time; so may those of one key, if it is set again before
/// its handler has returned.
///
/// A value has exactly one end: it goes to the handler, or to the one caller who
/// [`set`](Self::set) its key again, [`remove`](Self::remove)d it, [`drain`](Self::drain)ed it
/// or [`stop`](Self::stop)ped the timer. This is so through every race, and nothing of the
/// value stays behind. A task that has expired and waits for its executor can still be
/// overtaken by such a call; it then finds nothing to fire.
///
/// Any method may be called from anywhere, the handler included. Any delay will do:
/// [`Duration::ZERO`] fires at once, [`Duration::MAX`] never. A key needs neither to be cloned
/// nor to be kept by the caller: lookups take a borrowed form of it, such as `&str` for
/// `String`. Every call that takes a key is O(1), takes one lock that few other keys share,
/// and hashes the key before.
///
/// Clones are handles to the same keys, and cheap. When the last one is dropped, so is every
/// value, without being fired; the timer below goes on, if somebody else holds it. A handler
/// that needs the keyed timer holds a [`WeakKeyedTimer`], see
/// [`new_cyclic`](Self::new_cyclic).
///
/// ```
/// use countwheel::{KeyedTimer, ManualHost, Move};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let (sender, closed) = mpsc::channel();
/// let orders = KeyedTimer::new(host.timer().clone(), move |order: String, customer: &str| {
///     sender.send(format!("{order} of {customer}")).unwrap();
/// });
///
/// let half_hour = Duration::from_secs(30 * 60);
/// for (order, customer) in [("order 1", "Ada"), ("order 2", "Bob"), ("order 3", "Eve")] {
///     orders.set(order.to_owned(), customer, half_hour)?;
/// }
/// assert_eq!(orders.remove("order 1"), Some("Ada"), "she has paid");
/// assert_eq!(orders.move_to("order 2", 2 * half_hour), Move::Moved, "he asked for it");
///
/// host.advance(half_hour);
/// assert_eq!(closed.try_iter().collect::<Vec<_>>(), ["order 3 of Eve"]);
/// assert_eq!(orders.remaining("order 2"), Some(half_hour));
/// assert_eq!(orders.remaining("order 3"), None);
/// # Ok::<(), countwheel::SetError<String, &str>>(())
/// ```
///
/// # When the timer below ends first
///
/// If somebody else stops the timer, it hands back the tasks, and the keys stay where they
/// are: sets are refused with [`SetError::Closed`], and [`remove`](Self::remove),
/// [`drain`](Self::drain) and [`stop`](Self::stop) still return the values. A task that was
/// handed back may be run, and then fires its key, if that still has the deadline of the
/// task. The same goes for a task that the timer hands back because of its
/// [`Overload`](crate::Overload): if it is dropped, its key stays, and fires only after the
/// next set or move.
pub struct KeyedTimer<K, V> {
    owner: Arc<KeysOwner<K, V>>,
}

/// All clones of a keyed timer together, as opposed to its tasks.
struct KeysOwner<K, V> {
    timer: Timer,
    hasher: RandomState,
    hub: Arc<KeyHub<K, V>>,
    shards: Box<[Arc<KeyShard<K, V>>]>,
}

impl<K, V> KeyedTimer<K, V>
where
    K: Hash + Eq + Send + 'static,
    V: Send + 'static,
{
    /// Keys that fire on `timer`, each into `handler` with its value.
    ///
    /// The keys are kept in parts, four for each processor of the machine, and each part has a
    /// lock of its own. A key costs a task of the timer and an entry of a hash map.
    ///
    /// ```
    /// use countwheel::{KeyedTimer, Timer};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let (sender, expired) = mpsc::channel();
    /// let sessions = KeyedTimer::new(Timer::global().clone(), move |user: u64, ()| {
    ///     sender.send(user).unwrap();
    /// });
    /// sessions.set(42, (), Duration::from_millis(1)).unwrap();
    /// assert_eq!(expired.recv(), Ok(42));
    /// ```
    #[must_use]
    pub fn new(timer: Timer, handler: impl Fn(K, V) + Send + Sync + 'static) -> Self {
        Self {
            owner: Arc::new(KeysOwner::new(timer, KeyHub::new(handler))),
        }
    }

    /// Like [`new`](Self::new), for a handler that needs the keyed timer itself: `handler`
    /// makes it, and is given a handle that does not keep the timer alive. (A handler that
    /// holds a [`KeyedTimer`] would never be dropped, nor would what it holds.)
    ///
    /// ```
    /// use countwheel::{KeyedTimer, ManualHost};
    /// use std::time::Duration;
    ///
    /// // Three tries, each after twice as long as the one before.
    /// let mut host = ManualHost::new();
    /// let retries = KeyedTimer::new_cyclic(host.timer().clone(), |retries| {
    ///     move |request: &'static str, tries: u32| {
    ///         if tries < 3 && let Some(retries) = retries.upgrade() {
    ///             let delay = Duration::from_secs(1 << tries);
    ///             retries.set(request, tries + 1, delay).expect("the timer goes on");
    ///         }
    ///     }
    /// });
    /// retries.set("GET /", 1, Duration::from_secs(1)).unwrap();
    /// assert_eq!(host.advance(Duration::from_secs(1 + 2)), 2);
    /// assert_eq!(retries.get("GET /"), Some(3));
    /// assert_eq!(retries.remaining("GET /"), Some(Duration::from_secs(4)));
    /// host.advance(Duration::from_secs(4));
    /// assert!(retries.is_empty());
    /// ```
    #[must_use]
    pub fn new_cyclic<H>(timer: Timer, handler: impl FnOnce(WeakKeyedTimer<K, V>) -> H) -> Self
    where
        H: Fn(K, V) + Send + Sync + 'static,
    {
        let owner = Arc::new_cyclic(|owner| {
            let weak = WeakKeyedTimer {
                owner: Weak::clone(owner),
            };
            KeysOwner::new(timer, KeyHub::new(handler(weak)))
        });
        Self { owner }
    }

    /// Fires `value` under `key` once `delay` has passed, and never before. The old value of the
    /// key is replaced and comes back. The task of the key moves, without an allocation, so it
    /// cannot fire at its old deadline, neither with the old value nor with the new one.
    ///
    /// A set counts as scheduled anew in the order of a tick. A new key takes room under the
    /// timer's [`max_pending`](crate::TimerBuilder::max_pending), a replaced one that of its
    /// predecessor; unless that one has expired and waits for an executor: it keeps its place
    /// until it starts, and finds nothing to do then.
    ///
    /// ```
    /// use countwheel::{KeyedTimer, ManualHost};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let drafts = KeyedTimer::new(host.timer().clone(), |name, text| println!("{name}: {text}"));
    /// let delay = Duration::from_secs(5);
    /// assert_eq!(drafts.set("letter", "Dear", delay)?, None);
    /// host.advance(Duration::from_secs(4));
    /// assert_eq!(drafts.set("letter", "Dear Ada", delay)?, Some("Dear"));
    /// assert_eq!(host.advance(Duration::from_secs(4)), 0);
    /// assert_eq!(host.advance(Duration::from_secs(1)), 1);
    /// # Ok::<(), countwheel::SetError<&str, &str>>(())
    /// ```
    ///
    /// # Errors
    /// [`SetError::Closed`] if this or the timer below has stopped, [`SetError::Full`] if as
    /// many tasks are pending as may be, [`SetError::NoThread`] if the timer's thread could
    /// not be started. All give key and value back, and leave what was under the key.
    pub fn set(&self, key: K, value: V, delay: Duration) -> Result<Option<V>, SetError<K, V>> {
        self.put(key, value, When::After(delay), KeyRule::New)
    }

    /// Fires `value` under `key` once [`now`](Timer::now) has reached `deadline`, and never before;
    /// at once if the deadline has passed. Otherwise like [`set`](Self::set).
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost};
    /// # use std::time::Duration;
    /// let mut host = ManualHost::new();
    /// let keyed = KeyedTimer::new(host.timer().clone(), |_key: u32, ()| {});
    /// let noon = host.timer().now() + Duration::from_secs(12 * 3600);
    /// keyed.set_at(1, (), noon).unwrap();
    /// assert_eq!(keyed.deadline(&1), Some(noon));
    /// ```
    ///
    /// # Errors
    /// Those of [`set`](Self::set).
    pub fn set_at(&self, key: K, value: V, deadline: Instant) -> Result<Option<V>, SetError<K, V>> {
        self.put(key, value, When::At(deadline), KeyRule::New)
    }

    /// Like [`set`](Self::set), but a key that is there keeps its deadline if that is sooner:
    /// the latest value wins, and a stream of them cannot postpone the key for ever.
    ///
    /// ```
    /// use countwheel::{KeyedTimer, ManualHost};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let (sender, pushed) = mpsc::channel();
    /// let pushes = KeyedTimer::new(host.timer().clone(), move |topic: &str, version: u32| {
    ///     sender.send(format!("{topic} {version}")).unwrap();
    /// });
    /// for version in 0..10 {
    ///     pushes.set_sooner("prices", version, Duration::from_millis(500)).unwrap();
    ///     host.advance(Duration::from_millis(100));
    /// }
    /// assert_eq!(pushed.try_iter().collect::<Vec<_>>(), ["prices 4", "prices 9"]);
    /// ```
    ///
    /// # Errors
    /// Those of [`set`](Self::set).
    pub fn set_sooner(
        &self,
        key: K,
        value: V,
        delay: Duration,
    ) -> Result<Option<V>, SetError<K, V>> {
        self.put(key, value, When::After(delay), KeyRule::Sooner)
    }

    /// Like [`set`](Self::set), but a key that is there keeps its deadline if that is later.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let bans = KeyedTimer::new(host.timer().clone(), |_address: u32, _reason: &str| {});
    /// bans.set_later(7, "flood", Duration::from_secs(3600)).unwrap();
    /// bans.set_later(7, "bad password", Duration::from_secs(60)).unwrap();
    /// assert_eq!(bans.get(&7), Some("bad password"));
    /// assert_eq!(bans.remaining(&7), Some(Duration::from_secs(3600)));
    /// ```
    ///
    /// # Errors
    /// Those of [`set`](Self::set).
    pub fn set_later(
        &self,
        key: K,
        value: V,
        delay: Duration,
    ) -> Result<Option<V>, SetError<K, V>> {
        self.put(key, value, When::After(delay), KeyRule::Later)
    }

    /// Like [`set`](Self::set), but a key that is there keeps its value and its deadline.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost, SetError};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let locks = KeyedTimer::new(host.timer().clone(), |_door: u32, _holder: &str| {});
    /// locks.set_if_absent(1, "Ada", Duration::from_secs(10))?;
    /// let refused = locks.set_if_absent(1, "Bob", Duration::from_secs(60));
    /// assert!(matches!(refused, Err(SetError::Present(1, "Bob"))));
    /// assert_eq!(locks.remaining(&1), Some(Duration::from_secs(10)));
    /// # Ok::<(), SetError<u32, &str>>(())
    /// ```
    ///
    /// # Errors
    /// [`SetError::Present`] if the key is there, otherwise those of [`set`](Self::set). All
    /// give key and value back.
    pub fn set_if_absent(&self, key: K, value: V, delay: Duration) -> Result<(), SetError<K, V>> {
        let (hash, shard) = self.find(&key);
        shard.set_if_absent(&self.owner.timer, hash, (key, value), When::After(delay))
    }

    /// Moves the key to another deadline, be that sooner or later than before: a delay from now, or a
    /// point in time. The key then fires once, at the new deadline, however the two lie; at once if that
    /// has passed.
    ///
    /// A move allocates nothing, and counts as scheduled anew in the order of a tick. A key whose
    /// deadline has come can be moved until its handler is called.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, Instant, ManualHost, Move};
    /// # use std::time::Duration;
    /// let mut host = ManualHost::new();
    /// let idle = KeyedTimer::new(host.timer().clone(), |connection: u32, ()| {
    ///     println!("{connection} is idle");
    /// });
    /// idle.set(1, (), Duration::from_secs(60)).unwrap();
    /// host.advance(Duration::from_secs(59));
    /// assert_eq!(idle.move_to(&1, Duration::from_secs(60)), Move::Moved);
    /// assert_eq!(host.advance(Duration::from_secs(59)), 0);
    /// assert_eq!(host.advance(Duration::from_secs(1)), 1);
    /// assert_eq!(idle.move_to(&1, Duration::from_secs(60)), Move::Absent, "it has fired");
    ///
    /// idle.set(2, (), Duration::MAX).unwrap();
    /// assert_eq!(idle.move_to(&2, Instant::ZERO), Move::Moved);
    /// assert_eq!(host.run_due(), 1);
    /// ```
    pub fn move_to<Q>(&self, key: &Q, when: impl Into<When>) -> Move
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.move_key(key, when.into(), KeyRule::New)
    }

    /// Moves the key by so much from its deadline: sooner at most to now. Otherwise like
    /// [`move_to`](Self::move_to).
    ///
    /// ```
    /// # use countwheel::{By, KeyedTimer, ManualHost, Move};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let orders = KeyedTimer::new(host.timer().clone(), |_order: u32, ()| {});
    /// let minute = Duration::from_secs(60);
    /// orders.set(1, (), 5 * minute).unwrap();
    /// assert_eq!(orders.move_by(&1, By::Later(minute)), Move::Moved);
    /// assert_eq!(orders.remaining(&1), Some(6 * minute));
    /// assert_eq!(orders.move_by(&1, By::Sooner(10 * minute)), Move::Moved);
    /// assert_eq!(orders.remaining(&1), Some(Duration::ZERO));
    /// ```
    pub fn move_by<Q>(&self, key: &Q, by: impl Into<By>) -> Move
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        // The rule says when.
        self.move_key(key, When::After(Duration::ZERO), KeyRule::By(by.into()))
    }

    /// Makes the key due now. The same as a move to now.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost, Move};
    /// # use std::time::Duration;
    /// let mut host = ManualHost::new();
    /// let orders = KeyedTimer::new(host.timer().clone(), |_order: u32, ()| {});
    /// orders.set(1, (), Duration::MAX).unwrap();
    /// assert_eq!((orders.fire(&1), orders.fire(&2)), (Move::Moved, Move::Absent));
    /// assert_eq!(host.run_due(), 1);
    /// ```
    pub fn fire<Q>(&self, key: &Q) -> Move
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.move_to(key, Duration::ZERO)
    }

    /// Moves the key to `delay` from now if that is sooner than before.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost, Move};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let keyed = KeyedTimer::new(host.timer().clone(), |_key: u32, ()| {});
    /// keyed.set(1, (), Duration::from_secs(60)).unwrap();
    /// assert_eq!(keyed.move_sooner(&1, Duration::from_secs(61)), Move::Kept);
    /// assert_eq!(keyed.move_sooner(&1, Duration::from_secs(59)), Move::Moved);
    /// ```
    pub fn move_sooner<Q>(&self, key: &Q, delay: Duration) -> Move
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.move_key(key, When::After(delay), KeyRule::Sooner)
    }

    /// Moves the key to `delay` from now if that is later than before: as leases and
    /// heartbeats want it, whose messages may overtake each other.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost, Move};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let keyed = KeyedTimer::new(host.timer().clone(), |_key: u32, ()| {});
    /// keyed.set(1, (), Duration::from_secs(60)).unwrap();
    /// assert_eq!(keyed.move_later(&1, Duration::from_secs(59)), Move::Kept);
    /// assert_eq!(keyed.move_later(&1, Duration::from_secs(61)), Move::Moved);
    /// ```
    pub fn move_later<Q>(&self, key: &Q, delay: Duration) -> Move
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.move_key(key, When::After(delay), KeyRule::Later)
    }

    /// Takes the key away: its value, which then never fires; `None` if there is no such key,
    /// because it was never set, has fired or was removed.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost};
    /// # use std::time::Duration;
    /// let mut host = ManualHost::new();
    /// let answers = KeyedTimer::new(host.timer().clone(), |_request: u64, _body: String| {});
    /// answers.set(1, "ping".to_owned(), Duration::from_secs(3)).unwrap();
    /// assert_eq!(answers.remove(&1).as_deref(), Some("ping"), "the answer came");
    /// assert_eq!(answers.remove(&1), None);
    /// assert_eq!(host.timer().pending(), 0);
    /// ```
    pub fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.find(key);
        let removed = shard.remove(hash, key)?;
        Some(removed.release().value)
    }

    /// A clone of what is under the key. (For values that are dear to clone:
    /// [`get_with`](Self::get_with), or put them into an [`Arc`].)
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let keyed = KeyedTimer::new(host.timer().clone(), |_key: &str, _value: u32| {});
    /// keyed.set("one", 1, Duration::from_secs(1)).unwrap();
    /// assert_eq!((keyed.get("one"), keyed.get("two")), (Some(1), None));
    /// ```
    #[must_use]
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        self.get_with(key, V::clone)
    }

    /// Shows what is under the key to `look`, and returns what that returns; `None` if there
    /// is no such key.
    ///
    /// Runs under a lock that some other keys wait for, so be short.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let keyed = KeyedTimer::new(host.timer().clone(), |_key: u32, _value: Vec<u8>| {});
    /// keyed.set(1, vec![1, 2, 3], Duration::from_secs(1)).unwrap();
    /// assert_eq!(keyed.get_with(&1, Vec::len), Some(3));
    /// assert_eq!(keyed.get_with(&2, Vec::len), None);
    /// ```
    ///
    /// # Panics
    /// If `look` uses a keyed timer, this one or another, which might have to wait for itself.
    pub fn get_with<Q, R>(&self, key: &Q, look: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.find(key);
        shard.with(|books| {
            let entry = books.index.find(hash, |entry| entry.key.borrow() == key)?;
            Some(look(&entry.value))
        })
    }

    /// Lets `change` change what is under the key, and returns what that returns; `None` if
    /// there is no such key. The deadline stays.
    ///
    /// Runs under a lock that some other keys wait for, so be short.
    ///
    /// ```
    /// use countwheel::{KeyedTimer, ManualHost};
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let batches = KeyedTimer::new(host.timer().clone(), |table: &str, rows: Vec<u32>| {
    ///     println!("{table}: {} rows", rows.len());
    /// });
    /// let add = |row| {
    ///     if batches.update("prices", |rows| rows.push(row)).is_none() {
    ///         batches.set("prices", vec![row], Duration::from_millis(50)).unwrap();
    ///     }
    /// };
    /// add(1);
    /// add(2);
    /// assert_eq!(batches.get("prices"), Some(vec![1, 2]));
    /// ```
    ///
    /// # Panics
    /// If `change` uses a keyed timer, this one or another, which might have to wait for
    /// itself.
    pub fn update<Q, R>(&self, key: &Q, change: impl FnOnce(&mut V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.find(key);
        shard.with(|books| {
            let entry = books
                .index
                .find_mut(hash, |entry| entry.key.borrow() == key)?;
            Some(change(&mut entry.value))
        })
    }

    /// Whether the key is set and has not fired yet.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost};
    /// # use std::time::Duration;
    /// let mut host = ManualHost::new();
    /// let keyed = KeyedTimer::new(host.timer().clone(), |_key: u32, ()| {});
    /// keyed.set(1, (), Duration::from_secs(1)).unwrap();
    /// assert!(keyed.contains(&1));
    /// host.advance(Duration::from_secs(1));
    /// assert!(!keyed.contains(&1));
    /// ```
    #[must_use]
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get_with(key, |_| ()).is_some()
    }

    /// The deadline of the key, as it was asked for last, not rounded. One that has passed
    /// belongs to a key that is about to fire.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let keyed = KeyedTimer::new(host.timer().clone(), |_key: u32, ()| {});
    /// let deadline = host.timer().now() + Duration::from_micros(1_500);
    /// keyed.set(1, (), Duration::from_micros(1_500)).unwrap();
    /// assert_eq!((keyed.deadline(&1), keyed.deadline(&2)), (Some(deadline), None));
    /// ```
    #[must_use]
    pub fn deadline<Q>(&self, key: &Q) -> Option<Instant>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.find(key);
        shard.with(|books| {
            Some(
                books
                    .index
                    .find(hash, |entry| entry.key.borrow() == key)?
                    .deadline(),
            )
        })
    }

    /// The time left until the deadline of the key; zero if it has passed and the key is about
    /// to fire; `None` if there is no such key.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost};
    /// # use std::time::Duration;
    /// let mut host = ManualHost::new();
    /// let keyed = KeyedTimer::new(host.timer().clone(), |_key: u32, ()| {});
    /// keyed.set(1, (), Duration::from_secs(3)).unwrap();
    /// host.advance(Duration::from_secs(1));
    /// assert_eq!(keyed.remaining(&1), Some(Duration::from_secs(2)));
    /// ```
    #[must_use]
    pub fn remaining<Q>(&self, key: &Q) -> Option<Duration>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let deadline = self.deadline(key)?;
        Some(deadline.saturating_since(self.owner.timer.now()))
    }

    /// Shows every key to `look`, with value and deadline, in no order. What is set, moved or
    /// removed meanwhile may be seen before, after or not at all.
    ///
    /// Runs under locks that all other keys wait for, one part of them at a time.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let keyed = KeyedTimer::new(host.timer().clone(), |_order: u32, _amount: u64| {});
    /// keyed.set(1, 20, Duration::from_secs(1)).unwrap();
    /// keyed.set(2, 22, Duration::from_secs(2)).unwrap();
    /// let mut sum = 0;
    /// keyed.for_each(|_order, amount, _deadline| sum += amount);
    /// assert_eq!(sum, 42);
    /// ```
    ///
    /// # Panics
    /// If `look` uses a keyed timer, this one or another, which might have to wait for itself.
    pub fn for_each(&self, mut look: impl FnMut(&K, &V, Instant)) {
        for shard in &self.owner.shards {
            shard.with(|books| {
                for entry in books.index.iter() {
                    look(&entry.key, &entry.value, entry.deadline());
                }
            });
        }
    }

    /// The keys and their deadlines, the earliest first: for people and dashboards.
    ///
    /// O(n log n). Locks one part of the keys at a time, so it is exact only while nothing
    /// changes.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let keyed = KeyedTimer::new(host.timer().clone(), |_key: &str, ()| {});
    /// keyed.set("later", (), Duration::from_secs(9)).unwrap();
    /// keyed.set("soon", (), Duration::from_secs(1)).unwrap();
    /// let deadline = |seconds| host.timer().now() + Duration::from_secs(seconds);
    /// assert_eq!(keyed.deadlines(), [("soon", deadline(1)), ("later", deadline(9))]);
    /// ```
    #[must_use]
    pub fn deadlines(&self) -> Vec<(K, Instant)>
    where
        K: Clone,
    {
        let mut deadlines = Vec::new();
        self.for_each(|key, _, deadline| deadlines.push((key.clone(), deadline)));
        deadlines.sort_by_key(|&(_, deadline)| deadline);
        deadlines
    }

    /// How many keys are set.
    ///
    /// ```
    /// # use countwheel::{KeyedTimer, ManualHost};
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let keyed = KeyedTimer::new(host.timer().clone(), |_key: u32, ()| {});
    /// assert!(keyed.is_empty());
    /// keyed.set(1, (), Duration::from_secs(1)).unwrap();
    /// keyed.set(1, (), Duration::from_secs(2)).unwrap();
    /// assert_eq!(keyed.len(), 1);
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        let shards = self.owner.shards.iter();
        shards
            .map(|shard| shard.with(|books| books.index.len()))
            .sum()
    }

    /// Whether no key is set. See [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What has been done so far.
    #[must_use]
    pub fn stats(&self) -> KeyedStats {
        let shards = self.owner.shards.iter();
        shards.fold(KeyedStats::default(), |sum, shard| sum.add(shard.stats()))
    }

    /// Takes out everything, in the order of deadlines; equal ones in the order in which they
    /// were last set or moved, if one thread did so. Their keys are free at once.
    ///
    /// What is set meanwhile is either drained or stays. Never waits for a handler, and calls
    /// none: what comes back is the caller's to deal with, also with the same keys, and also
    /// from within the handler. O(n log n); others wait for no more than a few instructions.
    ///
    /// ```
    /// use countwheel::{KeyedTimer, ManualHost};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let keyed = KeyedTimer::new(host.timer().clone(), |_key: u32, _value: &str| {});
    /// keyed.set(1, "second", Duration::from_secs(2)).unwrap();
    /// keyed.set(2, "first", Duration::from_secs(1)).unwrap();
    ///
    /// for entry in keyed.drain() {
    ///     println!("{} was due at {:?}", entry.value, entry.deadline);
    ///     keyed.set(entry.key, "once more", Duration::from_secs(3)).unwrap();
    /// }
    /// assert_eq!(host.advance(Duration::from_secs(2)), 0);
    /// assert_eq!(host.advance(Duration::from_secs(1)), 2);
    /// ```
    #[must_use = "what is drained is dropped otherwise"]
    pub fn drain(&self) -> Vec<KeyedEntry<K, V>> {
        self.owner.take_all(Taken::Drained)
    }

    /// Refuses sets from now on, and takes out everything, like [`drain`](Self::drain). Later
    /// calls get nothing back.
    ///
    /// The timer below goes on: others may use it. Never waits for a handler, so one may call
    /// this; one that is running goes on, and [`Timer::stop`] waits for it.
    ///
    /// ```
    /// use countwheel::{KeyedTimer, ManualHost, SetError};
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let keyed = KeyedTimer::new(host.timer().clone(), |_key: u32, _value: &str| {});
    /// keyed.set(1, "unsaved", Duration::from_secs(60)).unwrap();
    /// assert_eq!(keyed.stop()[0].value, "unsaved");
    /// assert!(keyed.stop().is_empty());
    /// assert!(matches!(keyed.set(1, "late", Duration::ZERO), Err(SetError::Closed(1, "late"))));
    /// assert!(keyed.is_stopped() && !host.timer().is_stopped());
    /// ```
    pub fn stop(&self) -> Vec<KeyedEntry<K, V>> {
        self.owner.hub.close();
        self.owner.take_all(Taken::Returned)
    }

    /// Whether sets are refused, because someone has stopped this or the timer below.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.owner.hub.is_closed() || self.owner.timer.is_stopped()
    }

    /// The timer below.
    #[must_use]
    pub fn timer(&self) -> &Timer {
        &self.owner.timer
    }

    /// A handle that does not keep the keyed timer alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakKeyedTimer<K, V> {
        WeakKeyedTimer {
            owner: Arc::downgrade(&self.owner),
        }
    }

    fn put(
        &self,
        key: K,
        value: V,
        when: When,
        rule: KeyRule,
    ) -> Result<Option<V>, SetError<K, V>> {
        let (hash, shard) = self.find(&key);
        shard.set(&self.owner.timer, hash, (key, value), when, rule)
    }

    fn move_key<Q>(&self, key: &Q, when: When, rule: KeyRule) -> Move
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (hash, shard) = self.find(key);
        shard.move_to(&self.owner.timer, hash, key, when, rule)
    }

    /// The hash of a key, and the shard that has it.
    fn find<Q>(&self, key: &Q) -> (u64, &Arc<KeyShard<K, V>>)
    where
        Q: Hash + ?Sized,
    {
        let hash = self.owner.hasher.hash_one(key);
        // By bits of the hash that the map does not go by until it has 2^32 slots.
        let upper = usize::try_from(hash >> 32).unwrap_or(usize::MAX);
        let shards = &self.owner.shards;
        (hash, &shards[upper % shards.len()])
    }
}

impl<K, V> KeysOwner<K, V> {
    fn new(timer: Timer, hub: KeyHub<K, V>) -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let hub = Arc::new(hub);
        let shard = |_| Arc::new(KeyShard::new(Arc::clone(&hub)));
        let shards = (0..4 * processors).map(shard).collect();
        Self {
            timer,
            hasher: RandomState::new(),
            hub,
            shards,
        }
    }

    fn take_all(&self, taken: Taken) -> Vec<KeyedEntry<K, V>> {
        let shards = self.shards.iter();
        let mut entries: Vec<_> = shards.flat_map(|shard| shard.take_all(taken)).collect();
        entries.sort_unstable_by_key(|entry| (entry.deadline(), entry.order));
        entries.into_iter().map(entry::KeyEntry::release).collect()
    }
}

impl<K, V> Drop for KeysOwner<K, V> {
    fn drop(&mut self) {
        if self.hub.is_closed() {
            return;
        }
        self.hub.close();
        let left = self.take_all(Taken::Returned);
        if !left.is_empty() {
            let timer = &self.timer.engine().name;
            let pending = left.len();
            tracing::warn!(
                timer,
                pending,
                "a keyed timer was dropped with keys pending"
            );
        }
    }
}

impl<K, V> Clone for KeyedTimer<K, V> {
    fn clone(&self) -> Self {
        Self {
            owner: Arc::clone(&self.owner),
        }
    }
}

impl<K, V> fmt::Debug for KeyedTimer<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedTimer")
            .field("timer", &self.owner.timer)
            .field("stopped", &self.owner.hub.is_closed())
            .finish_non_exhaustive()
    }
}

/// A handle to a [`KeyedTimer`] that does not keep it alive: for its own handler, and for what
/// the values refer to.
///
/// ```
/// use countwheel::{KeyedTimer, ManualHost};
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let keyed = KeyedTimer::new(host.timer().clone(), |_key: u32, ()| {});
/// let weak = keyed.downgrade();
/// keyed.set(1, (), Duration::from_secs(1)).unwrap();
/// assert!(weak.upgrade().is_some_and(|keyed| keyed.contains(&1)));
///
/// drop(keyed);
/// assert!(weak.upgrade().is_none());
/// assert_eq!(host.timer().pending(), 0, "what was pending is gone");
/// ```
pub struct WeakKeyedTimer<K, V> {
    owner: Weak<KeysOwner<K, V>>,
}

impl<K, V> WeakKeyedTimer<K, V> {
    /// The keyed timer; `None` once its last clone is dropped.
    #[must_use]
    pub fn upgrade(&self) -> Option<KeyedTimer<K, V>> {
        let owner = self.owner.upgrade()?;
        Some(KeyedTimer { owner })
    }
}

impl<K, V> Clone for WeakKeyedTimer<K, V> {
    fn clone(&self) -> Self {
        Self {
            owner: Weak::clone(&self.owner),
        }
    }
}

impl<K, V> fmt::Debug for WeakKeyedTimer<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakKeyedTimer").finish_non_exhaustive()
    }
}
