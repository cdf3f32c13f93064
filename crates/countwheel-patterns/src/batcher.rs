//! Items that are handled together: when there are enough of them, or when the oldest has waited
//! long enough.

use std::any::type_name;
use std::fmt;
use std::mem;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use super::delay_queue::PushError;
use countwheel::building::{Bell, Rung, run_soon, start_host};
use countwheel::{Instant, Timer};
use countwheel_time::locks;

/// Gathers items into batches. A batch goes to a function when it is full, or when the oldest of
/// its items has waited as long as may be: whichever comes first.
///
/// The function runs on the timer's executor. With several threads there, two batches may be
/// handled at a time; within a batch, and from one batch to the next as they begin, items keep the
/// order in which they were pushed. A panic of the function is counted, and its batch is gone.
/// What the executor drops comes back, and is tried again after the same delay.
///
/// To push is O(1) and takes one short lock. The timer has one entry however many items there
/// are, and those do not count under its [`max_pending`](countwheel::TimerBuilder::max_pending); the
/// batcher has a bound of its own, and counts under it also what is being handled.
///
/// Clones are handles to the same batcher. When the last one is dropped, what waits is dropped
/// with it, and a warning is logged: [`stop`](Self::stop) gives it back, and
/// [`flush`](Self::flush) has it handled. So it does not wait for ever if the timer stops.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Batcher, PushError};
/// use std::num::NonZeroUsize;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let (sender, batches) = mpsc::channel();
/// let half_a_second = Duration::from_millis(500);
/// let three = NonZeroUsize::new(3).unwrap();
/// let writes = Batcher::bounded(host.timer().clone(), 1_000, three, half_a_second, move |rows| {
///     sender.send(rows).unwrap();
/// });
/// for row in 1..=4 {
///     writes.push(row)?;
/// }
/// host.run_due();
/// assert_eq!(batches.try_recv(), Ok(vec![1, 2, 3]), "it was full");
/// host.advance(half_a_second);
/// assert_eq!(batches.try_recv(), Ok(vec![4]), "it had waited");
/// # Ok::<(), PushError<u32>>(())
/// ```
pub struct Batcher<T: Send + 'static> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    bell: Bell,
    handler: Box<dyn Fn(Vec<T>) + Send + Sync>,
    /// What people know the handler by.
    name: &'static str,
    capacity: usize,
    batch: usize,
    delay: Duration,
    books: Mutex<BatchBooks<T>>,
}

struct BatchBooks<T> {
    /// The oldest first.
    waiting: Vec<T>,
    /// When the oldest has waited long enough, if there is one.
    due: Option<Instant>,
    closed: bool,
    stats: BatcherStats,
}

/// What a [`Batcher`] has done so far.
///
/// `pushed` equals `handled + returned + waiting + in_flight`, exactly and at any moment, as long
/// as nothing was dropped with the batcher.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::Batcher;
/// use std::num::NonZeroUsize;
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let ten = NonZeroUsize::new(10).unwrap();
/// let batcher = Batcher::bounded(host.timer().clone(), 100, ten, Duration::MAX, |_: Vec<u8>| ());
/// batcher.push(1).unwrap();
/// let stats = batcher.stats();
/// assert_eq!((stats.pushed, stats.waiting, stats.handled), (1, 1, 0));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct BatcherStats {
    /// Items that were taken on.
    pub pushed: u64,
    /// Items whose batch was handled, be it by a function that panicked.
    pub handled: u64,
    /// Items that a stop gave back.
    pub returned: u64,
    /// Items that wait for their batch to be full or due.
    pub waiting: u64,
    /// Items whose batch waits for the executor or is being handled.
    pub in_flight: u64,
    /// Items that were not taken on. They are in no other number.
    pub refused: u64,
    /// Batches that were handled.
    pub batches: u64,
    /// Batches that went because they were full.
    pub full: u64,
    /// Batches whose function panicked.
    pub panicked: u64,
    /// Batches that the executor dropped. Their items wait again.
    pub dropped: u64,
}

impl<T: Send + 'static> Batcher<T> {
    /// A batcher on `timer`, for `capacity` items at most that wait or are being handled. A batch
    /// has `batch` items at most, and goes to `handler` when it has that many or when `delay` has
    /// passed since the oldest was pushed. With [`Duration::MAX`] it waits until it is full or
    /// [flushed](Self::flush); with [`Duration::ZERO`] it takes what has come until the host looks.
    ///
    /// A capacity below `batch` is that of a batcher whose batches are never full.
    #[must_use]
    pub fn bounded<H>(
        timer: Timer,
        capacity: usize,
        batch: NonZeroUsize,
        delay: Duration,
        handler: H,
    ) -> Self
    where
        H: Fn(Vec<T>) + Send + Sync + 'static,
    {
        let shared = Arc::new_cyclic(|weak: &Weak<Shared<T>>| Shared {
            bell: Bell::new(timer, Weak::clone(weak)),
            handler: Box::new(handler),
            name: type_name::<H>(),
            capacity,
            batch: batch.get(),
            delay,
            books: Mutex::new(BatchBooks {
                waiting: Vec::new(),
                due: None,
                closed: false,
                stats: BatcherStats::default(),
            }),
        });
        Self { shared }
    }

    /// Adds an item to the batch that gathers.
    ///
    /// # Errors
    /// [`PushError::Full`] if as many items wait or are being handled as may,
    /// [`PushError::Closed`] if the batcher or the timer has stopped, [`PushError::NoThread`] if
    /// the timer's thread could not be started. All give the item back.
    pub fn push(&self, value: T) -> Result<(), PushError<T>> {
        self.shared.push(value)
    }

    /// Hands out all waiting items, without waiting for more, and returns their number. The handler
    /// runs on the executor, and this call does not wait for it.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::Batcher;
    /// use std::num::NonZeroUsize;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let ten = NonZeroUsize::new(10).unwrap();
    /// let batcher = Batcher::bounded(host.timer().clone(), 100, ten, Duration::MAX, |_: Vec<u8>| ());
    /// batcher.push(1).unwrap();
    /// assert_eq!(batcher.flush(), 1);
    /// assert_eq!(batcher.flush(), 0);
    /// host.run_due();
    /// assert_eq!(batcher.stats().handled, 1);
    /// ```
    pub fn flush(&self) -> usize {
        let mut flushed = 0;
        while let Some(batch) = self.shared.lock().take(self.shared.batch) {
            flushed += batch.len();
            self.shared.hand_out(batch);
        }
        flushed
    }

    /// How many items wait for their batch to be full or due.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.lock().waiting.len()
    }

    /// Whether no item waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> BatcherStats {
        let books = self.shared.lock();
        let waiting = books.waiting.len() as u64;
        BatcherStats {
            waiting,
            ..books.stats
        }
    }

    /// Refuses items from now on, and gives back those that wait, the oldest first. What is being
    /// handled goes on. A later call gives back what the executor has dropped meanwhile.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Batcher, PushError};
    /// use std::num::NonZeroUsize;
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let ten = NonZeroUsize::new(10).unwrap();
    /// let batcher = Batcher::bounded(host.timer().clone(), 100, ten, Duration::MAX, |_: Vec<u8>| ());
    /// batcher.push(1).unwrap();
    /// assert_eq!(batcher.stop(), [1]);
    /// assert!(matches!(batcher.push(2), Err(PushError::Closed(2))));
    /// ```
    #[must_use = "what waited is dropped otherwise"]
    pub fn stop(&self) -> Vec<T> {
        let mut books = self.shared.lock();
        books.closed = true;
        books.due = None;
        let waiting = mem::take(&mut books.waiting);
        books.stats.returned += waiting.len() as u64;
        drop(books);
        self.shared.bell.silence();
        waiting
    }
}

impl<T> BatchBooks<T> {
    /// The next batch, of `limit` items at most; `None` if nothing waits.
    fn take(&mut self, limit: usize) -> Option<Vec<T>> {
        if self.waiting.is_empty() {
            return None;
        }
        let rest = self.waiting.split_off(limit.min(self.waiting.len()));
        let batch = mem::replace(&mut self.waiting, rest);
        if self.waiting.is_empty() {
            self.due = None;
        }
        self.stats.in_flight += batch.len() as u64;
        Some(batch)
    }

    fn has_room(&self, capacity: usize) -> bool {
        let taken = self.waiting.len() as u64 + self.stats.in_flight;
        taken < capacity as u64
    }
}

impl<T: Send + 'static> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, BatchBooks<T>> {
        // Nothing foreign runs under the lock, so what a panic left behind is whole.
        locks::lock(&self.books)
    }

    fn push(self: &Arc<Self>, value: T) -> Result<(), PushError<T>> {
        if let Err(source) = start_host(self.bell.timer()) {
            self.lock().stats.refused += 1;
            return Err(PushError::NoThread { value, source });
        }
        let now = self.bell.now();
        let mut books = self.lock();
        let is_closed = books.closed || self.bell.is_stopped();
        if is_closed || !books.has_room(self.capacity) {
            books.stats.refused += 1;
            drop(books);
            return Err(if is_closed {
                PushError::Closed(value)
            } else {
                PushError::Full(value)
            });
        }
        books.stats.pushed += 1;
        books.waiting.push(value);
        if books.waiting.len() >= self.batch {
            books.stats.full += 1;
            let batch = books.take(self.batch);
            drop(books);
            batch.into_iter().for_each(|batch| self.hand_out(batch));
            return Ok(());
        }
        let due = *books.due.get_or_insert(now + self.delay);
        let is_first = books.waiting.len() == 1;
        drop(books);
        if is_first {
            self.ring_by(due);
        }
        Ok(())
    }

    fn ring_by(&self, due: Instant) {
        // If the timer was closed meanwhile, what waits is for a stop to give back.
        let _ = self.bell.ring_by(due);
    }

    fn hand_out(self: &Arc<Self>, batch: Vec<T>) {
        let errand = Errand {
            shared: Arc::clone(self),
            batch,
        };
        // What is refused is dropped, and puts its items back.
        let _ = run_soon(self.bell.timer(), move || errand.run());
    }

    fn put_back(&self, batch: Vec<T>) {
        let due = self.bell.now() + self.delay;
        let mut books = self.lock();
        books.stats.dropped += 1;
        books.stats.in_flight -= batch.len() as u64;
        let younger = mem::replace(&mut books.waiting, batch);
        books.waiting.extend(younger);
        let rings = !books.closed && !self.bell.is_stopped();
        if rings {
            books.due = Some(books.due.map_or(due, |known| known.min(due)));
        }
        drop(books);
        if rings {
            self.ring_by(due);
        }
    }
}

impl<T: Send + 'static> Rung for Shared<T> {
    fn bell(&self) -> &Bell {
        &self.bell
    }

    fn ring(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let mut books = self.lock();
        if self.bell.is_stopped() {
            return None;
        }
        let due = books.due?;
        if due > now {
            return Some(due);
        }
        let batch = books.take(self.batch);
        let next = books.due;
        drop(books);
        batch.into_iter().for_each(|batch| self.hand_out(batch));
        next
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let waiting = locks::whole(self.books.get_mut()).waiting.len();
        if waiting > 0 {
            let handler = self.name;
            tracing::warn!(handler, waiting, "a batcher was dropped with items waiting");
        }
    }
}

/// A batch on its way through the executor. If it is dropped there, its items wait again.
struct Errand<T: Send + 'static> {
    shared: Arc<Shared<T>>,
    batch: Vec<T>,
}

impl<T: Send + 'static> Errand<T> {
    fn run(mut self) {
        /// Counts at the end, however it comes.
        struct Handled<'a, T: Send + 'static>(&'a Shared<T>, u64);

        impl<T: Send + 'static> Drop for Handled<'_, T> {
            fn drop(&mut self) {
                let stats = &mut self.0.lock().stats;
                stats.in_flight -= self.1;
                stats.handled += self.1;
                stats.batches += 1;
                stats.panicked += u64::from(std::thread::panicking());
            }
        }

        let batch = mem::take(&mut self.batch);
        let _handled = Handled(&self.shared, batch.len() as u64);
        (self.shared.handler)(batch);
    }
}

impl<T: Send + 'static> Drop for Errand<T> {
    fn drop(&mut self) {
        if !self.batch.is_empty() {
            self.shared.put_back(mem::take(&mut self.batch));
        }
    }
}

impl<T: Send + 'static> Clone for Batcher<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Batcher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher")
            .field("handler", &self.shared.name)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
