//! The delay queue whose items have keys, so that a newer item replaces an older one.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::time::Duration;

use super::next::{DueItems, NextDue};
use super::queue::Queue;
use super::results::{DelayQueueStats, Due, PushError, TakeError, Undue};
use super::shelf::Item;
use crate::DEFAULT_MAX_PENDING;
use countwheel::{Instant, Timer};

/// A [`DelayQueue`](super::DelayQueue) with one item for each key: a newer item takes the
/// place of an older one that nobody has taken yet.
///
/// It gathers a stream of updates: consumers see the latest value of each key, and a key that
/// changes a thousand times is taken once. Which deadline the key has then is a choice:
///
/// - [`push`](Self::push): the newer deadline. A key comes once it has been quiet for so long.
/// - [`push_sooner`](Self::push_sooner): the earlier of the two. A stream of updates cannot
///   put the key off for ever. The push buffer of SOFARegistry does this.
/// - [`merge`](Self::merge): the earlier of the two as well, and a function makes one value of
///   both, as for changes that have to be added up.
///
/// Taking, waiting, order, cost and the ends are those of the `DelayQueue`; what is taken is
/// the pair of key and value. A key is looked up in any borrowed form, and it is hashed without
/// the lock; it is compared under it, so its [`Eq`] should not call the queue.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::KeyedDelayQueue;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let changed = KeyedDelayQueue::new(host.timer().clone());
/// let window = Duration::from_millis(500);
/// for version in 1..=10 {
///     changed.push_sooner("prices", version, window)?;
///     host.advance(Duration::from_millis(50));
/// }
/// // Half a second after the first change, whatever came since.
/// let due = changed.try_take().unwrap();
/// assert_eq!((due.value, due.lateness), (("prices", 10), Duration::ZERO));
/// assert!(changed.is_empty());
///
/// changed.close();
/// assert!(changed.push("prices", 11, window).is_err());
/// # Ok::<(), countwheel_patterns::PushError<(&str, u32)>>(())
/// ```
pub struct KeyedDelayQueue<K: Send + 'static, V: Send + 'static> {
    queue: Arc<Queue<(K, V)>>,
    hasher: RandomState,
}

/// Which deadline a key has whose value is replaced.
#[derive(Clone, Copy)]
enum QueueRule {
    Newer,
    Sooner,
}

impl<K, V> KeyedDelayQueue<K, V>
where
    K: Hash + Eq + Send + 'static,
    V: Send + 'static,
{
    /// A queue with room for [`DEFAULT_MAX_PENDING`] keys, by the clock and in the ticks of `timer`.
    #[must_use]
    pub fn new(timer: Timer) -> Self {
        Self::bounded(timer, DEFAULT_MAX_PENDING)
    }

    /// A queue with room for any number of keys, until the memory is full: for those who bound the
    /// keys elsewhere.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::KeyedDelayQueue;
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let queue = KeyedDelayQueue::unbounded(host.timer().clone());
    /// assert_eq!(queue.push("tea", 1, Duration::from_secs(1)).unwrap(), None);
    /// ```
    #[must_use]
    pub fn unbounded(timer: Timer) -> Self {
        Self::bounded(timer, usize::MAX)
    }

    /// A queue with room for `capacity` keys. Those that are due and not taken count, too.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{KeyedDelayQueue, PushError};
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let queue = KeyedDelayQueue::bounded(host.timer().clone(), 1);
    /// queue.push("a", 1, Duration::ZERO)?;
    /// assert_eq!(queue.push("a", 2, Duration::ZERO)?, Some(1), "it takes no more room");
    /// let refused = queue.push("b", 1, Duration::ZERO);
    /// assert!(matches!(refused, Err(PushError::Full(("b", 1)))));
    /// # Ok::<(), PushError<(&str, u32)>>(())
    /// ```
    #[must_use]
    pub fn bounded(timer: Timer, capacity: usize) -> Self {
        Self {
            queue: Queue::new(timer, capacity),
            hasher: RandomState::new(),
        }
    }

    /// Adds a key that can be taken once `delay` has passed. If it is there already, value and
    /// deadline are replaced, and the old value comes back.
    ///
    /// # Errors
    /// [`PushError::Closed`] if the queue was closed or the timer has stopped,
    /// [`PushError::Full`] if there is no room for a new key, [`PushError::NoThread`] if the
    /// timer's thread could not be started. All give key and value back.
    pub fn push(&self, key: K, value: V, delay: Duration) -> Result<Option<V>, PushError<(K, V)>> {
        self.put(key, value, self.queue.now() + delay, QueueRule::Newer)
    }

    /// Adds a key that can be taken once the timer's [`now`](Timer::now) has reached
    /// `deadline`. Otherwise like [`push`](Self::push).
    ///
    /// # Errors
    /// Those of [`push`](Self::push).
    pub fn push_at(
        &self,
        key: K,
        value: V,
        deadline: Instant,
    ) -> Result<Option<V>, PushError<(K, V)>> {
        self.put(key, value, deadline, QueueRule::Newer)
    }

    /// Like [`push`](Self::push), but a key that is there keeps its deadline, and its place, if
    /// that is no later.
    ///
    /// # Errors
    /// Those of [`push`](Self::push).
    pub fn push_sooner(
        &self,
        key: K,
        value: V,
        delay: Duration,
    ) -> Result<Option<V>, PushError<(K, V)>> {
        self.put(key, value, self.queue.now() + delay, QueueRule::Sooner)
    }

    /// Like [`push_at`](Self::push_at), but a key that is there keeps its deadline, and its
    /// place, if that is no later.
    ///
    /// # Errors
    /// Those of [`push`](Self::push).
    pub fn push_sooner_at(
        &self,
        key: K,
        value: V,
        deadline: Instant,
    ) -> Result<Option<V>, PushError<(K, V)>> {
        self.put(key, value, deadline, QueueRule::Sooner)
    }

    fn put(
        &self,
        key: K,
        value: V,
        deadline: Instant,
        rule: QueueRule,
    ) -> Result<Option<V>, PushError<(K, V)>> {
        let hash = self.hasher.hash_one(&key);
        let now = self.queue.now();
        if let Err(source) = self.queue.start() {
            let value = (key, value);
            return Err(PushError::NoThread { value, source });
        }
        let mut state = self.queue.lock();
        let found = state.shelf.find(hash, |(other, _)| *other == key);
        let admitted = self.queue.admit(&mut state, found.is_some());
        if let Err(refusal) = admitted {
            drop(state);
            return Err(refusal.of((key, value)));
        }
        let Some(found) = found else {
            let hash = Some(hash);
            let value = (key, value);
            let item = Item {
                value,
                deadline,
                hash,
            };
            state.shelf.put(now, item);
            self.queue.filed(state, now, deadline);
            return Ok(None);
        };
        let current = state.shelf.get_mut(found).map(|item| item.deadline);
        let stays = matches!(rule, QueueRule::Sooner) && current <= Some(deadline);
        let moved_to = (!stays).then_some(deadline);
        let old = state.shelf.replace(now, found, (key, value), moved_to);
        self.queue.filed(state, now, deadline);
        // The key of before is dropped here, without the lock.
        Ok(old.map(|(_, value)| value))
    }

    /// Adds a key like [`push_sooner`](Self::push_sooner), but if the key is there, `merge`
    /// makes one value of the old and the new one. True if it did.
    ///
    /// `merge` runs without a lock: meanwhile the key is out of the queue, and its room stays
    /// taken. If somebody else pushes the key in that time, `merge` runs once more, with their
    /// value as the old one. The key then counts as pushed anew in the order of a tick. If
    /// `merge` panics, so does this call, and the old value is lost.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::KeyedDelayQueue;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let views = KeyedDelayQueue::new(host.timer().clone());
    /// for page in ["home", "help", "home", "home"] {
    ///     views.merge(page, 1, Duration::from_secs(1), |_page, old, new| old + new)?;
    /// }
    /// host.advance(Duration::from_secs(1));
    /// let written: Vec<_> = views.take_due(10).into_iter().map(|due| due.value).collect();
    /// assert_eq!(written, [("help", 1), ("home", 3)]);
    /// # Ok::<(), countwheel_patterns::PushError<(&str, u32)>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`push`](Self::push). If the queue was closed while `merge` ran, the merged
    /// value comes back.
    pub fn merge(
        &self,
        key: K,
        value: V,
        delay: Duration,
        merge: impl FnMut(&K, V, V) -> V,
    ) -> Result<bool, PushError<(K, V)>> {
        self.merge_at(key, value, self.queue.now() + delay, merge)
    }

    /// Like [`merge`](Self::merge), but a new key can be taken once the timer's
    /// [`now`](Timer::now) has reached `deadline`; one that is there, at the sooner of both.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::KeyedDelayQueue;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let second = Duration::from_secs(1);
    /// let on_the_minute = host.timer().now() + 60 * second;
    /// let views = KeyedDelayQueue::new(host.timer().clone());
    /// for _ in 0..3 {
    ///     host.advance(second);
    ///     views.merge_at("home", 1, on_the_minute, |_page, old, new| old + new)?;
    /// }
    /// assert_eq!(views.deadline("home"), Some(on_the_minute));
    /// host.advance(57 * second);
    /// assert_eq!(views.try_take().unwrap().value, ("home", 3));
    /// # Ok::<(), countwheel_patterns::PushError<(&str, u32)>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`merge`](Self::merge).
    pub fn merge_at(
        &self,
        key: K,
        value: V,
        mut deadline: Instant,
        mut merge: impl FnMut(&K, V, V) -> V,
    ) -> Result<bool, PushError<(K, V)>> {
        let hash = self.hasher.hash_one(&key);
        if let Err(source) = self.queue.start() {
            let value = (key, value);
            return Err(PushError::NoThread { value, source });
        }
        let mut value = value;
        let mut held = Held(&self.queue, 0);
        loop {
            let now = self.queue.now();
            let mut state = self.queue.lock();
            let found = state.shelf.find(hash, |(other, _)| *other == key);
            let admitted = self.queue.admit(&mut state, found.is_some() || held.1 > 0);
            if let Err(refusal) = admitted {
                drop(state);
                return Err(refusal.of((key, value)));
            }
            let Some(item) = found.and_then(|found| state.shelf.hold(found)) else {
                let merged = held.1 > 0;
                state.shelf.release(std::mem::take(&mut held.1));
                let item = Item {
                    value: (key, value),
                    deadline,
                    hash: Some(hash),
                };
                state.shelf.put(now, item);
                self.queue.filed(state, now, deadline);
                return Ok(merged);
            };
            held.1 += 1;
            drop(state);
            deadline = deadline.min(item.deadline);
            value = merge(&key, item.value.1, value);
        }
    }

    /// Takes back what is under `key`, due or not; `None` if it is not there, or was taken.
    pub fn cancel<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        let cancelled = self.queue.change(|state| {
            let found = state.shelf.find(hash, |(other, _)| other.borrow() == key)?;
            state.shelf.cancel(found)
        });
        cancelled.map(|(_, value)| value)
    }

    /// The deadline of `key`; `None` if it is not there.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::KeyedDelayQueue;
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let queue = KeyedDelayQueue::new(host.timer().clone());
    /// queue.push("a".to_owned(), (), Duration::from_secs(1)).unwrap();
    /// queue.push_sooner("a".to_owned(), (), Duration::from_secs(2)).unwrap();
    /// assert_eq!(queue.deadline("a"), Some(host.timer().now() + Duration::from_secs(1)));
    /// assert_eq!(queue.cancel("a"), Some(()));
    /// assert_eq!(queue.deadline("a"), None);
    /// ```
    #[must_use]
    pub fn deadline<Q>(&self, key: &Q) -> Option<Instant>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        let mut state = self.queue.lock();
        let found = state.shelf.find(hash, |(other, _)| other.borrow() == key)?;
        state.shelf.get_mut(found).map(|item| item.deadline)
    }

    /// Takes the next key, and blocks until it is due. `None` if there will be none. See
    /// [`DelayQueue::take`](super::DelayQueue::take).
    #[must_use]
    pub fn take(&self) -> Option<Due<(K, V)>> {
        self.next().block(None).ok()
    }

    /// Takes the next key, and blocks until it is due, or for `patience` of real time. See
    /// [`DelayQueue::take_for`](super::DelayQueue::take_for).
    ///
    /// # Errors
    /// [`TakeError::TimedOut`] if nothing was due in time, [`TakeError::Ended`] if nothing will
    /// ever be.
    pub fn take_for(&self, patience: Duration) -> Result<Due<(K, V)>, TakeError> {
        self.next().block(Some(patience))
    }

    /// Takes the next key, and waits until it is due. `None` if there will be none. See
    /// [`DelayQueue::next`](super::DelayQueue::next).
    pub fn next(&self) -> NextDue<(K, V)> {
        NextDue::new(&self.queue)
    }

    /// One key after another as they become due, until there will be none. See
    /// [`DelayQueue::items`](super::DelayQueue::items).
    pub fn items(&self) -> DueItems<(K, V)> {
        DueItems::new(&self.queue)
    }

    /// Takes the next key if one is due, without waiting.
    #[must_use]
    pub fn try_take(&self) -> Option<Due<(K, V)>> {
        self.queue.try_take()
    }

    /// Takes what is due, `limit` keys at most, without waiting. See
    /// [`DelayQueue::take_due`](super::DelayQueue::take_due).
    #[must_use]
    pub fn take_due(&self, limit: usize) -> Vec<Due<(K, V)>> {
        self.queue.take_due(limit)
    }

    /// When to call [`try_take`](Self::try_take) next, for a loop that polls. See
    /// [`DelayQueue::next_wake`](super::DelayQueue::next_wake).
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        self.queue.next_wake()
    }

    /// How many keys there are, due or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the queue has done so far.
    #[must_use]
    pub fn stats(&self) -> DelayQueueStats {
        self.queue.stats()
    }

    /// Refuses pushes from now on. See [`DelayQueue::close`](super::DelayQueue::close).
    pub fn close(&self) {
        self.queue.close();
    }

    /// Whether pushes are refused, because the queue was closed or the timer has stopped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Gives back everything that is there, due or not, in order, and goes on.
    #[must_use]
    pub fn drain(&self) -> Vec<Undue<(K, V)>> {
        self.queue.drain(false)
    }

    /// Refuses pushes from now on and gives back everything that nobody has taken, due or not,
    /// in order. See [`DelayQueue::stop`](super::DelayQueue::stop).
    #[must_use]
    pub fn stop(&self) -> Vec<Undue<(K, V)>> {
        self.queue.drain(true)
    }
}

/// Gives the room back of what was taken out to be merged, if the merging panics.
struct Held<'a, K: Send + 'static, V: Send + 'static>(&'a Queue<(K, V)>, usize);

impl<K: Send + 'static, V: Send + 'static> Drop for Held<'_, K, V> {
    fn drop(&mut self) {
        if self.1 > 0 {
            self.0.lock().shelf.release(self.1);
        }
    }
}

impl<K: Send + 'static, V: Send + 'static> Clone for KeyedDelayQueue<K, V> {
    fn clone(&self) -> Self {
        Self {
            queue: Arc::clone(&self.queue),
            hasher: self.hasher.clone(),
        }
    }
}

impl<K: Send + 'static, V: Send + 'static> fmt::Debug for KeyedDelayQueue<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedDelayQueue")
            .field("pending", &self.queue.len())
            .field("closed", &self.queue.is_closed())
            .finish_non_exhaustive()
    }
}
