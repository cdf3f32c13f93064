//! One wheel, behind a lock.

use std::collections::HashSet;
use std::sync::Arc;

use super::hub::{Hub, Refusal};
use super::lock;
use crate::planted::Bug;
use crate::sync::{AtomicU64, Mutex, Ordering, fence, is_planted};
use crate::{Driver, Fired, Instant, ShardLoad, TimerKey, Unfired};

/// A wheel behind a lock. On cache lines of its own: another shard's lock is no business of
/// the processor that holds this one.
#[repr(align(128))]
pub(crate) struct Shard<T> {
    hub: Arc<Hub>,
    /// Nothing of the shard is due before this (nanoseconds). Written under the lock.
    pub(super) bound: AtomicU64,
    books: Mutex<Books<T>>,
}

struct Books<T> {
    /// Made with the first entry: a wheel takes 80 KB then, and most threads use one shard.
    driver: Option<Driver<T>>,
    counts: Counts,
    /// The keys that a stop took out.
    returned: HashSet<TimerKey>,
}

/// What has become of the entries of a shard, or of all: at any moment, `added` is the sum of
/// the others and what is pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) added: u64,
    pub(crate) fired: u64,
    pub(crate) cancelled: u64,
    pub(crate) returned: u64,
    /// Not part of the sum.
    pub(crate) pending: u64,
    pub(crate) refused: u64,
    pub(crate) moved: u64,
}

/// What has become of one entry, as far as its shard can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Pending,
    /// A stop took it out.
    Returned,
    /// It fired or was cancelled.
    Gone,
}

impl<T> Shard<T> {
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        Self {
            hub,
            bound: AtomicU64::new(u64::MAX),
            books: Mutex::new(Books {
                driver: None,
                counts: Counts::default(),
                returned: HashSet::new(),
            }),
        }
    }

    /// Files `value` under `deadline`, and wakes the host if it sleeps beyond that.
    #[inline]
    pub(crate) fn insert(
        &self,
        now: Instant,
        deadline: Instant,
        value: T,
    ) -> Result<TimerKey, (Refusal, T)> {
        self.admit(now, deadline, value, Hub::take_room)
    }

    /// The same, but a limit on what is pending does not apply: the entry goes on with
    /// something that was accepted before.
    pub(crate) fn insert_anyway(
        &self,
        now: Instant,
        deadline: Instant,
        value: T,
    ) -> Result<TimerKey, (Refusal, T)> {
        self.admit(now, deadline, value, Hub::take_room_anyway)
    }

    #[inline]
    fn admit(
        &self,
        now: Instant,
        deadline: Instant,
        value: T,
        take_room: fn(&Hub) -> bool,
    ) -> Result<TimerKey, (Refusal, T)> {
        let too_early = is_planted(Bug::ClosedBeforeLock).then(|| self.hub.is_closed());
        let mut books = lock(&self.books);
        // Under the lock: who closes sets this first and then takes the lock to drain, so it
        // either is seen here or finds what is filed now.
        let closed = too_early.unwrap_or_else(|| self.hub.is_closed());
        let refusal = match (closed, !closed && take_room(&self.hub)) {
            (true, _) => Some(Refusal::Closed),
            (false, false) => Some(Refusal::Full),
            (false, true) => None,
        };
        if let Some(refusal) = refusal {
            books.counts.refused += 1;
            return Err((refusal, value));
        }
        books.counts.added += 1;
        let hub = &self.hub;
        let driver = books
            .driver
            .get_or_insert_with(|| Driver::new(now, hub.resolution, hub.layout));
        let key = driver.schedule(now, deadline, value);
        let due = driver.due(deadline).as_nanos();
        let wake = !is_planted(Bug::BoundNotLowered) && self.lower_bound(now, due);
        drop(books);
        if wake {
            self.hub.rouse();
        }
        Ok(key)
    }

    /// Moves an entry to another deadline; false if it is not pending. `done` runs under the
    /// lock, in the order of the moves.
    #[inline]
    pub(crate) fn reschedule(
        &self,
        now: Instant,
        key: TimerKey,
        deadline: Instant,
        done: impl FnOnce(),
    ) -> bool {
        let mut books = lock(&self.books);
        let Some(driver) = &mut books.driver else {
            return false;
        };
        if !driver.reschedule(now, key, deadline) {
            return false;
        }
        let due = driver.due(deadline).as_nanos();
        books.counts.moved += 1;
        done();
        let wake = !is_planted(Bug::MoveNotPublished) && self.lower_bound(now, due);
        drop(books);
        if wake {
            self.hub.rouse();
        }
        true
    }

    /// With the lock held: makes sure that the host looks at this shard by `due`. True if it
    /// has to be woken for that.
    #[inline]
    fn lower_bound(&self, now: Instant, due: u64) -> bool {
        if due >= self.bound.load(Ordering::Relaxed) {
            // No bound is beyond the end of time, so none tells of what is due only then.
            return now == Instant::MAX && !is_planted(Bug::EndOfTimeUnannounced);
        }
        if is_planted(Bug::PublishAfterLook) {
            let wake = self.hub.oversleeps(due);
            self.bound.store(due, Ordering::Relaxed);
            return wake;
        }
        self.bound.store(due, Ordering::Relaxed);
        if !is_planted(Bug::LookWithoutFence) {
            fence(Ordering::SeqCst);
        }
        self.hub.oversleeps(due)
    }

    /// Takes an entry back before it fires: something for the one caller who does, for whom
    /// `done` runs under the lock.
    #[inline]
    pub(crate) fn cancel(&self, key: TimerKey, done: impl FnOnce()) -> Option<T> {
        if is_planted(Bug::CancelInTwoSteps) && self.fate(key) == Fate::Pending {
            let mut books = lock(&self.books);
            books.counts.cancelled += 1;
            done();
            return books.driver.as_mut()?.cancel(key);
        }
        let mut books = lock(&self.books);
        let value = books.driver.as_mut()?.cancel(key)?;
        books.counts.cancelled += 1;
        done();
        // The host is left asleep: at worst it looks once for a deadline that is gone. But
        // one that waits for the last entry to go has to be told.
        let last = self.hub.is_closed() && books.pending() == 0;
        drop(books);
        if !is_planted(Bug::CancelKeepsRoom) {
            self.hub.give_room(1);
        }
        if last && !is_planted(Bug::LastCancelUnannounced) {
            self.hub.rouse();
        }
        Some(value)
    }

    /// Does something with a pending entry; `None` if it is not pending.
    pub(crate) fn with<R>(&self, key: TimerKey, look: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut books = lock(&self.books);
        books.driver.as_mut()?.get_mut(key).map(look)
    }

    pub(crate) fn fate(&self, key: TimerKey) -> Fate {
        let mut books = lock(&self.books);
        let driver = books.driver.as_mut();
        if driver.is_some_and(|driver| driver.get_mut(key).is_some()) {
            Fate::Pending
        } else if books.returned.contains(&key) {
            Fate::Returned
        } else {
            Fate::Gone
        }
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Takes out what is due by `until`, `limit` entries at most.
    pub(super) fn take_due(
        &self,
        now: Instant,
        until: Instant,
        limit: usize,
        due: &mut Vec<Fired<T>>,
    ) {
        let mut books = lock(&self.books);
        let Some(driver) = &mut books.driver else {
            return;
        };
        let before = due.len();
        while due.len() - before < limit
            && let Some(fired) = driver.expire_until(now, until)
        {
            due.push(fired);
        }
        let taken = (due.len() - before) as u64;
        give_memory_back(driver);
        let bound = driver.next_wake().map_or(u64::MAX, Instant::as_nanos);
        if is_planted(Bug::FiredCountedLate) {
            drop(books);
            books = lock(&self.books);
        }
        books.counts.fired += taken;
        if is_planted(Bug::RaiseOutsideLock) {
            drop(books);
            self.bound.store(bound, Ordering::Relaxed);
        } else {
            self.bound.store(bound, Ordering::Relaxed);
            drop(books);
        }
    }

    /// Raises the bound to what is exactly the earliest deadline, if that is soon found.
    ///
    /// The exact answer means one wake-up per deadline, but it may look at everything
    /// pending. The lower bound is cheap, but a far deadline then takes up to ten wake-ups,
    /// one for each level (with a hashed layout, one round of them). So: exact as long as
    /// the search is shorter than the wake-ups it saves, and a bound on both beyond.
    pub(super) fn refine_bound(&self) -> u64 {
        const EXACT_UP_TO_PENDING: usize = 1_024; // a few microseconds
        let mut books = lock(&self.books);
        if let Some(driver) = &mut books.driver {
            give_memory_back(driver);
        }
        let next = match &books.driver {
            Some(driver) if driver.len() <= EXACT_UP_TO_PENDING => driver.next_due(),
            Some(driver) => driver.next_wake(),
            None => None,
        };
        let bound = next.map_or(u64::MAX, Instant::as_nanos);
        if is_planted(Bug::RefineOutsideLock) {
            drop(books);
        }
        self.bound.store(bound, Ordering::Relaxed);
        bound
    }

    /// Takes out everything: as fired, or as returned. The timer is closed.
    pub(super) fn drain(&self, fired: bool) -> Vec<Unfired<T>> {
        debug_assert!(self.hub.is_closed(), "what is drained stays empty");
        let mut books = lock(&self.books);
        let Some(driver) = &mut books.driver else {
            return Vec::new();
        };
        let unfired = driver.drain();
        driver.shrink_to_fit();
        if is_planted(Bug::ReturnedNotedLate) {
            drop(books);
            books = lock(&self.books);
        }
        if fired {
            books.counts.fired += unfired.len() as u64;
        } else {
            books.returned.extend(unfired.iter().map(|one| one.key));
            books.counts.returned += unfired.len() as u64;
        }
        self.bound.store(u64::MAX, Ordering::Relaxed);
        drop(books);
        unfired
    }

    /// `None` if no thread has used this shard.
    pub(super) fn load(&self) -> Option<ShardLoad> {
        let books = lock(&self.books);
        let driver = books.driver.as_ref()?;
        let slots = driver.slot_load();
        Some(ShardLoad {
            pending: books.pending(),
            occupied_slots: slots.occupied,
            fullest_slot: slots.fullest,
            memory_bytes: driver.memory_bytes(),
        })
    }

    pub(super) fn counts(&self) -> Counts {
        let books = lock(&self.books);
        Counts {
            pending: books.pending(),
            ..books.counts
        }
    }
}

/// What a peak has left, once nothing is pending; but not so much that a lone periodic task
/// would allocate for each of its turns.
fn give_memory_back<T>(driver: &mut Driver<T>) {
    const KEPT_BYTES: usize = 1 << 18;
    if driver.is_empty() && driver.memory_bytes() > KEPT_BYTES {
        driver.shrink_to_fit();
    }
}

impl<T> Books<T> {
    fn pending(&self) -> u64 {
        self.driver.as_ref().map_or(0, |driver| driver.len() as u64)
    }
}
