//! Operations that wait until they can be completed, or until their time is up.
//!
//! `watch.rs` has the operations under each key, `operation.rs` ends an operation exactly once. The
//! word that decides the end is `concurrent/claim.rs`.

mod operation;
mod results;
mod watch;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use self::operation::{End, Shared, WatchedOperation};
use crate::DEFAULT_MAX_PENDING;
use countwheel::building::returns;
use countwheel::{ScheduleError, Timer};

pub use self::operation::DelayedOperation;
pub use self::results::{DelayedOperationError, DelayedOperationsStats, Watch};

/// So many operations are looked up at a time, so that no lock is held for long.
const SLICE: usize = 64;

/// Operations that wait, each until it can be completed or until its time is up, whichever
/// comes first; it ends exactly once.
///
/// For a request that cannot be answered yet: a fetch that wants at least so many bytes, a
/// write that wants so many acknowledgements. It is tried when it is handed in. If it cannot be
/// completed, it is watched under some keys, and whoever changes something that it may depend
/// on calls [`check`](Self::check) with the key of what has changed. Kafka calls this a
/// purgatory.
///
/// No change is missed: an operation is tried once more after it has been put on all its
/// lists, and a check that finds another thread in the middle of a try makes that one try again.
/// So change first, then check.
///
/// Every operation ends in one way: it is completed by a try, or it expires, or it is taken
/// back by [`cancel_for_key`](Self::cancel_for_key) or [`stop`](Self::stop). One that has ended
/// is off all its lists, and out of the timer, before its
/// [`on_complete`](DelayedOperation::on_complete) is called. So the sizes are exact, and nothing
/// has to be purged.
///
/// **No lock is held while an operation's methods run.** They may check any key, and hand in
/// other operations. Hold no lock of your own either when you call
/// [`check`](Self::check), if an operation needs it. A completion that checks, and so completes
/// another that checks, goes deeper into the stack each time.
///
/// An operation that expires does so as a task of the timer, on its executor, and takes room
/// there while it waits: see [`max_pending`](countwheel::TimerBuilder::max_pending). To hand one in
/// is O(keys × log operations), as is its end; a check is O(log operations) and a try for each
/// operation under the key.
///
/// Clones are handles to the same operations. When the last one is dropped, so are those that
/// wait, neither completed nor expired.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::broker::{DelayedOperation, DelayedOperations, Watch};
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::sync::{Arc, mpsc};
/// use std::time::Duration;
///
/// /// Answers once the log has so many bytes, or with what there is when time is up.
/// struct Fetch {
///     log: Arc<AtomicU64>,
///     min_bytes: u64,
///     answer: mpsc::Sender<u64>,
/// }
///
/// impl DelayedOperation for Fetch {
///     fn try_complete(&self) -> bool {
///         self.log.load(Ordering::SeqCst) >= self.min_bytes
///     }
///     fn on_complete(&self) {
///         let _ = self.answer.send(self.log.load(Ordering::SeqCst));
///     }
/// }
///
/// let mut host = ManualHost::new();
/// let fetches = DelayedOperations::new(host.timer().clone());
/// let log = Arc::new(AtomicU64::new(0));
/// let (sender, answers) = mpsc::channel();
/// for min_bytes in [100, 1_000] {
///     let (log, answer) = (Arc::clone(&log), sender.clone());
///     let fetch = Arc::new(Fetch { log, min_bytes, answer });
///     let half_second = Duration::from_millis(500);
///     let watch = fetches.try_complete_else_watch(fetch, ["orders-0"], half_second)?;
///     assert_eq!(watch, Watch::Waiting);
/// }
///
/// log.store(150, Ordering::SeqCst); // first the change,
/// assert_eq!(fetches.check("orders-0"), 1); // then the check
/// assert_eq!(answers.try_recv(), Ok(150));
///
/// host.advance(Duration::from_millis(500));
/// assert_eq!(answers.try_recv(), Ok(150), "time is up: what there is");
/// let stats = fetches.stats();
/// assert_eq!((stats.completed, stats.expired, stats.pending), (1, 1, 0));
/// # Ok::<(), countwheel_patterns::broker::DelayedOperationError<Fetch>>(())
/// ```
///
/// # When the timer ends first
///
/// Then nothing is accepted any more, and what waits can still be completed by checks or taken
/// back. Whether it expires is said by who stops the timer: with
/// [`Stop::RunNow`](countwheel::Stop::RunNow) everything expires then; a task that is handed back
/// may be run, which expires its operation, or dropped, which leaves it waiting for a check, for
/// [`expire_all`](Self::expire_all) or for [`stop`](Self::stop). The same goes for a task that
/// the timer gives back because of its [`Overload`](countwheel::Overload).
pub struct DelayedOperations<K, O: ?Sized> {
    shared: Arc<Shared<K, O>>,
    hasher: RandomState,
}

impl<K, O> DelayedOperations<K, O>
where
    K: Hash + Eq + Send + Sync + 'static,
    O: DelayedOperation + ?Sized,
{
    /// At most [`DEFAULT_MAX_PENDING`] operations, whose time is told by `timer`.
    #[must_use]
    pub fn new(timer: Timer) -> Self {
        Self::bounded(timer, DEFAULT_MAX_PENDING)
    }

    /// At most so many `operations` that wait. One that its first try completes needs
    /// no room.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::broker::{DelayedOperation, DelayedOperationError, DelayedOperations};
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # struct Never;
    /// # impl DelayedOperation for Never {
    /// #     fn try_complete(&self) -> bool { false }
    /// #     fn on_complete(&self) {}
    /// # }
    /// let mut host = ManualHost::new();
    /// let second = Duration::from_secs(1);
    /// let operations = DelayedOperations::bounded(host.timer().clone(), 1);
    /// operations.try_complete_else_watch(Arc::new(Never), ["a"], second)?;
    /// let refused = operations.try_complete_else_watch(Arc::new(Never), ["a"], second);
    /// assert!(matches!(refused, Err(DelayedOperationError::Full(_))));
    /// host.advance(second);
    /// operations.try_complete_else_watch(Arc::new(Never), ["a"], second)?;
    ///
    /// let many = DelayedOperations::unbounded(host.timer().clone());
    /// many.try_complete_else_watch(Arc::new(Never), ["a"], second)?;
    /// # Ok::<(), DelayedOperationError<Never>>(())
    /// ```
    #[must_use]
    pub fn bounded(timer: Timer, operations: usize) -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            shared: Arc::new(Shared::new(timer, operations, 4 * processors)),
            hasher: RandomState::new(),
        }
    }

    /// Any number of operations, until the memory is full: for those who bound them elsewhere. See
    /// [`bounded`](Self::bounded).
    #[must_use]
    pub fn unbounded(timer: Timer) -> Self {
        Self::bounded(timer, usize::MAX)
    }

    /// Completes `operation` if that is possible; otherwise it waits, watched under `keys`,
    /// for `timeout` at most.
    ///
    /// Tries it, puts it on the lists of all keys, tries it again, and only then gives it to
    /// the timer. Without a key, it is only time that ends it.
    ///
    /// # Errors
    /// [`DelayedOperationError::Closed`] if this was closed or the timer has stopped; the operation was
    /// perhaps tried, but it ends neither way. [`DelayedOperationError::Full`] if as many operations wait
    /// as may, or the timer has no room for its timeout, [`DelayedOperationError::NoThread`] if the
    /// timer's thread could not be started. All give the operation back.
    pub fn try_complete_else_watch(
        &self,
        operation: Arc<O>,
        keys: impl IntoIterator<Item = K>,
        timeout: Duration,
    ) -> Result<Watch, DelayedOperationError<O>> {
        let shared = &self.shared;
        if shared.is_closed() {
            shared.refuse();
            return Err(DelayedOperationError::Closed(operation));
        }
        let deadline = shared.timer.now() + timeout;
        let keys = keys.into_iter();
        let keys = keys.map(|key| (self.hasher.hash_one(&key), key)).collect();
        let watched = shared.submitted(operation, keys);
        if shared.check(&watched) {
            return Ok(Watch::Completed);
        }
        if !shared.take_room(&watched) {
            return self.refuse(&watched, DelayedOperationError::Full);
        }
        shared.list(&watched);
        if shared.check(&watched) {
            return Ok(Watch::Completed);
        }
        // Who closed before it was listed has not seen it.
        if shared.is_closed() {
            return self.refuse(&watched, DelayedOperationError::Closed);
        }
        let (operations, waiting) = (Arc::downgrade(shared), Arc::downgrade(&watched));
        let expire = move || {
            if let (Some(operations), Some(watched)) = (operations.upgrade(), waiting.upgrade()) {
                operations.end(&watched, End::Expired);
            }
        };
        match shared.timer.schedule_at(deadline, expire) {
            Ok(timeout) => {
                if let Err(late) = watched.claim.arm(timeout) {
                    late.cancel();
                }
                Ok(Watch::Waiting)
            }
            Err(ScheduleError::Full(_)) => self.refuse(&watched, DelayedOperationError::Full),
            Err(ScheduleError::NoThread { source, .. }) => self.refuse(&watched, |operation| {
                DelayedOperationError::NoThread { operation, source }
            }),
            Err(_closed) => self.refuse(&watched, DelayedOperationError::Closed),
        }
    }

    /// Takes it off the lists again, unless it has ended meanwhile.
    fn refuse(
        &self,
        watched: &WatchedOperation<K, O>,
        error: impl FnOnce(Arc<O>) -> DelayedOperationError<O>,
    ) -> Result<Watch, DelayedOperationError<O>> {
        if self.shared.end(watched, End::Refused) {
            Err(error(Arc::clone(&watched.operation)))
        } else {
            Ok(Watch::Waiting)
        }
    }

    /// Tries all operations that are watched under `key`, in the order in which they came, and
    /// returns how many this call has completed. To be called after something has changed that
    /// they may depend on.
    ///
    /// One that another thread is trying is tried again by that one, and not counted here.
    /// Those that are handed in meanwhile are not waited for: they see the change themselves.
    pub fn check<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut completed = 0;
        self.each_under(key, |watched| {
            completed += usize::from(self.shared.check(watched));
        });
        completed
    }

    /// Takes back all operations that are watched under `key`, in the order in which they
    /// came: they are on no other list any more, and neither complete nor expire. (One that is
    /// being tried at this moment is taken back, too, whatever the try returns.)
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::broker::{DelayedOperation, DelayedOperations};
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # struct Never;
    /// # impl DelayedOperation for Never {
    /// #     fn try_complete(&self) -> bool { false }
    /// #     fn on_complete(&self) { panic!("it was taken back") }
    /// # }
    /// let mut host = ManualHost::new();
    /// let operations = DelayedOperations::new(host.timer().clone());
    /// operations.try_complete_else_watch(Arc::new(Never), [1, 2], Duration::from_secs(1))?;
    /// assert_eq!((operations.len(), operations.watched()), (1, 2));
    ///
    /// // Partition 1 moves to another machine.
    /// assert_eq!(operations.cancel_for_key(&1).len(), 1);
    /// assert_eq!((operations.len(), operations.watched()), (0, 0));
    /// assert_eq!(host.advance(Duration::from_secs(1)), 0);
    /// # Ok::<(), countwheel_patterns::broker::DelayedOperationError<Never>>(())
    /// ```
    #[must_use]
    pub fn cancel_for_key<Q>(&self, key: &Q) -> Vec<Arc<O>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut cancelled = Vec::new();
        self.each_under(key, |watched| {
            if self.shared.end(watched, End::Cancelled) {
                cancelled.push(Arc::clone(&watched.operation));
            }
        });
        cancelled
    }

    fn each_under<Q>(&self, key: &Q, mut each: impl FnMut(&WatchedOperation<K, O>))
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        let lists = &self.shared.lists;
        let Some(last) = lists.last(hash) else { return };
        let mut first = 0;
        loop {
            let slice = lists.slice(hash, first, last, SLICE);
            let Some(&(number, _)) = slice.last() else {
                return;
            };
            first = number + 1;
            for (_, watched) in slice {
                if watched.keys.iter().any(|(_, other)| other.borrow() == key) {
                    each(&watched);
                }
                // Perhaps the last that holds the operation: its destructor is foreign.
                returns(|| drop(watched));
            }
        }
    }

    /// How many operations wait.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.stats().pending).unwrap_or(usize::MAX)
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many entries all lists have: an operation has one for each of its keys (and one if
    /// it has no key). Exact, unless calls are under way.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.shared.lists.len()
    }

    /// How many operations are watched under `key`. O(operations under the key).
    #[must_use]
    pub fn watching<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut watching = 0;
        self.each_under(key, |watched| {
            watching += usize::from(!watched.claim.is_decided());
        });
        watching
    }

    /// What has become of all operations so far.
    #[must_use]
    pub fn stats(&self) -> DelayedOperationsStats {
        self.shared.stats()
    }

    /// Refuses operations from now on. Those that wait go on waiting.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
    }

    /// Completes all that wait as if their time was up, in the order in which they came, on
    /// this thread. Returns how many.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::broker::{DelayedOperation, DelayedOperations};
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # struct Never;
    /// # impl DelayedOperation for Never {
    /// #     fn try_complete(&self) -> bool { false }
    /// #     fn on_complete(&self) {}
    /// # }
    /// let host = ManualHost::new();
    /// let operations = DelayedOperations::new(host.timer().clone());
    /// operations.try_complete_else_watch(Arc::new(Never), ["a"], Duration::from_secs(1))?;
    /// operations.close(); // a shutdown that answers everybody
    /// assert_eq!(operations.expire_all(), 1);
    /// assert_eq!(operations.stats().expired, 1);
    /// # Ok::<(), countwheel_patterns::broker::DelayedOperationError<Never>>(())
    /// ```
    pub fn expire_all(&self) -> usize {
        let all = self.shared.lists.all().into_values();
        all.filter(|watched| self.shared.end(watched, End::Expired))
            .count()
    }

    /// Refuses operations from now on and gives back all that wait, in the order in which they
    /// came: they neither complete nor expire.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::broker::{DelayedOperation, DelayedOperations};
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # struct Never;
    /// # impl DelayedOperation for Never {
    /// #     fn try_complete(&self) -> bool { false }
    /// #     fn on_complete(&self) {}
    /// # }
    /// let host = ManualHost::new();
    /// let operations = DelayedOperations::new(host.timer().clone());
    /// operations.try_complete_else_watch(Arc::new(Never), ["a"], Duration::from_secs(1))?;
    /// assert_eq!(operations.stop().len(), 1);
    /// assert!(operations.is_empty() && host.timer().pending() == 0);
    /// # Ok::<(), countwheel_patterns::broker::DelayedOperationError<Never>>(())
    /// ```
    #[must_use]
    pub fn stop(&self) -> Vec<Arc<O>> {
        self.close();
        let all = self.shared.lists.all().into_values();
        all.filter(|watched| self.shared.end(watched, End::Returned))
            .map(|watched| Arc::clone(&watched.operation))
            .collect()
    }
}

impl<K, O: ?Sized> Clone for DelayedOperations<K, O> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            hasher: self.hasher.clone(),
        }
    }
}

impl<K, O: ?Sized> fmt::Debug for DelayedOperations<K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayedOperations")
            .field("watched", &self.shared.lists.len())
            .finish_non_exhaustive()
    }
}
