//! One wheel, behind a lock.

use std::collections::HashSet;
use std::sync::Arc;

use super::hub::{Hub, Refusal};
use super::lock;
use crate::sync::{AtomicU64, MOVES, Mutex, MutexGuard, Ordering, Queue, fence};
use crate::{Driver, Fired, Instant, ShardLoad, TimerKey, Unfired};

/// A wheel behind a lock. On cache lines of its own: another shard's lock is no business of
/// the processor that holds this one.
#[repr(align(128))]
pub(crate) struct Shard<T> {
    hub: Arc<Hub>,
    /// Nothing of the shard is due before this (nanoseconds). Written under the lock.
    pub(super) bound: AtomicU64,
    books: Mutex<Books<T>>,
    /// The callers who want the books while the host has them.
    callers: Queue,
}

struct Books<T> {
    /// Made with the first entry: a wheel takes 80 KB then, and most threads use one shard.
    driver: Option<Driver<T>>,
    counts: Counts,
    /// The keys that a stop took out.
    returned: HashSet<TimerKey>,
    room: Room,
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
                room: Room::default(),
            }),
            callers: Queue::default(),
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
        let (key, wake) = self.insert_quietly(now, deadline, value)?;
        if wake {
            self.hub.rouse();
        }
        Ok(key)
    }

    /// The same, for those who hold locks: the host is not woken, but they are told whether they
    /// have to [rouse](Hub::rouse) it when they have given up their locks.
    #[inline]
    pub(crate) fn insert_quietly(
        &self,
        now: Instant,
        deadline: Instant,
        value: T,
    ) -> Result<(TimerKey, bool), (Refusal, T)> {
        self.admit(now, deadline, value, Hub::take_room)
    }

    /// The same, but a limit on what is pending does not apply: the entry goes on with
    /// something that was accepted before.
    pub(crate) fn insert_anyway_quietly(
        &self,
        now: Instant,
        deadline: Instant,
        value: T,
    ) -> Result<(TimerKey, bool), (Refusal, T)> {
        self.admit(now, deadline, value, Hub::take_room_anyway)
    }

    #[inline]
    fn admit(
        &self,
        now: Instant,
        deadline: Instant,
        value: T,
        take_room: fn(&Hub) -> bool,
    ) -> Result<(TimerKey, bool), (Refusal, T)> {
        let mut books = self.callers.enter(&self.books);
        // Under the lock: who closes sets this first and then takes the lock to drain, so it
        // either is seen here or finds what is filed now.
        let closed = self.hub.is_closed();
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
        let wake = self.lower_bound(now, due);
        drop(books);
        Ok((key, wake))
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
        let moved = self.reschedule_quietly(now, key, deadline, done);
        if moved == Some(true) {
            self.hub.rouse();
        }
        moved.is_some()
    }

    /// The same, for those who hold locks: `None` if it is not pending, else whether they have
    /// to [rouse](Hub::rouse) the host when they have given up their locks.
    #[inline]
    pub(crate) fn reschedule_quietly(
        &self,
        now: Instant,
        key: TimerKey,
        deadline: Instant,
        done: impl FnOnce(),
    ) -> Option<bool> {
        let mut books = self.callers.enter(&self.books);
        let driver = books.driver.as_mut()?;
        if !driver.reschedule(now, key, deadline) {
            return None;
        }
        let due = driver.due(deadline).as_nanos();
        books.counts.moved += 1;
        done();
        let wake = self.lower_bound(now, due);
        drop(books);
        Some(wake)
    }

    /// With the lock held: makes sure that the host looks at this shard by `due`. True if it
    /// has to be woken for that.
    #[inline]
    fn lower_bound(&self, now: Instant, due: u64) -> bool {
        if due >= self.bound.load(Ordering::Relaxed) {
            // No bound is beyond the end of time, so none tells of what is due only then.
            return now == Instant::MAX;
        }
        self.bound.store(due, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.hub.oversleeps(due)
    }

    /// Takes an entry back before it fires: something for the one caller who does, for whom
    /// `done` runs under the lock.
    #[inline]
    pub(crate) fn cancel(&self, key: TimerKey, done: impl FnOnce()) -> Option<T> {
        let (value, wake) = self.cancel_quietly(key, done)?;
        if wake {
            self.hub.rouse();
        }
        Some(value)
    }

    /// The same, for those who hold locks: with the value, whether they have to
    /// [rouse](Hub::rouse) the host when they have given up their locks.
    #[inline]
    pub(crate) fn cancel_quietly(&self, key: TimerKey, done: impl FnOnce()) -> Option<(T, bool)> {
        let mut books = self.callers.enter(&self.books);
        let value = books.driver.as_mut()?.cancel(key)?;
        books.counts.cancelled += 1;
        done();
        // The host is left asleep: at worst it looks once for a deadline that is gone. But
        // one that waits for the last entry to go has to be told, and one that is alert.
        let wake = self.hub.hears_of_cancel(|| books.pending() == 0);
        drop(books);
        self.hub.give_room(1);
        Some((value, wake))
    }

    /// Does something with a pending entry; `None` if it is not pending.
    pub(crate) fn with<R>(&self, key: TimerKey, look: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut books = self.callers.enter(&self.books);
        books.driver.as_mut()?.get_mut(key).map(look)
    }

    pub(crate) fn fate(&self, key: TimerKey) -> Fate {
        let mut books = self.callers.enter(&self.books);
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

    /// Takes out what is due by `until`, `limit` entries at most. False if it has held the lock
    /// for long enough before it has found out what is: then the bound says "now".
    pub(super) fn take_due(
        &self,
        now: Instant,
        until: Instant,
        limit: usize,
        due: &mut Vec<Fired<T>>,
    ) -> bool {
        let mut books = lock(&self.books);
        let books_mut = &mut *books;
        let Some(driver) = &mut books_mut.driver else {
            return true;
        };
        let before = due.len();
        let mut moves = MOVES;
        while due.len() - before < limit
            && let Some(fired) = driver.expire_within(now, until, &mut moves)
        {
            due.push(fired);
        }
        let is_done = moves > 0 || due.len() - before == limit;
        let taken = (due.len() - before) as u64;
        let is_leaving = books_mut.room.give_back(driver);
        let bound = driver.next_wake().map_or(u64::MAX, Instant::as_nanos);
        books.counts.fired += taken;
        self.bound.store(bound, Ordering::Relaxed);
        drop(books);
        if is_leaving && is_done && due.len() - before < limit {
            // The host may not come back for long.
            drop(self.without_what_a_peak_left());
        }
        is_done
    }

    /// Gives back what a peak has left of the memory, and lets callers in after each piece.
    fn without_what_a_peak_left(&self) -> MutexGuard<'_, Books<T>> {
        loop {
            let mut books = lock(&self.books);
            if !books.give_memory_back() {
                return books;
            }
            drop(books);
            self.let_in();
        }
    }

    /// Lets callers in, for the host that comes back at once.
    pub(super) fn let_in(&self) {
        self.callers.let_in();
    }

    /// Raises the bound to what is exactly the earliest deadline, if that is soon found.
    ///
    /// The exact answer means one wake-up per deadline, but it may look at everything
    /// pending. The lower bound is cheap, but a far deadline then takes up to ten wake-ups,
    /// one for each level (with a hashed layout, one round of them). So: exact as long as
    /// the search is shorter than the wake-ups it saves, and a bound on both beyond.
    pub(super) fn refine_bound(&self) -> u64 {
        const EXACT_UP_TO_PENDING: usize = 1_024; // a few microseconds
        let books = self.without_what_a_peak_left();
        let next = match &books.driver {
            Some(driver) if driver.len() <= EXACT_UP_TO_PENDING => driver.next_due(),
            Some(driver) => driver.next_wake(),
            None => None,
        };
        let bound = next.map_or(u64::MAX, Instant::as_nanos);
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

    /// Takes out up to `limit` entries, in no order, as returned; the timer is closed. Unless they
    /// are `noted`, their handles take them for expired: so only if there are none.
    pub(super) fn take_any(&self, limit: usize, noted: bool) -> Vec<Unfired<T>> {
        debug_assert!(self.hub.is_closed(), "what is taken out comes to an end");
        let mut books = lock(&self.books);
        let Some(driver) = &mut books.driver else {
            return Vec::new();
        };
        let taken = driver.take_any(limit);
        if taken.is_empty() {
            driver.shrink_to_fit();
            self.bound.store(u64::MAX, Ordering::Relaxed);
        }
        books.counts.returned += taken.len() as u64;
        if noted {
            books.returned.extend(taken.iter().map(|one| one.key));
        }
        taken
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

    /// Nothing changes on this shard until the look is dropped.
    pub(super) fn look(&self) -> Look<'_, T> {
        Look(lock(&self.books))
    }
}

/// A shard that stands still.
pub(super) struct Look<'a, T>(MutexGuard<'a, Books<T>>);

impl<T> Look<'_, T> {
    pub(super) fn counts(&self) -> Counts {
        Counts {
            pending: self.0.pending(),
            ..self.0.counts
        }
    }
}

/// What a peak has left of a wheel's memory.
#[derive(Default)]
struct Room {
    /// The room that could not be given back when that was last tried.
    kept: usize,
    /// Whether a part has been given back, and the rest is to follow.
    is_leaving: bool,
}

impl Room {
    /// Gives memory back once nothing is pending or next to nothing; but not so little that a
    /// lone periodic task would allocate for each of its turns. A piece at a time, since
    /// callers wait; whether there may be more.
    fn give_back<T>(&mut self, driver: &mut Driver<T>) -> bool {
        const SHARE: usize = 16;
        const KEPT: usize = 1 << 13;
        const PIECES: usize = 4;
        let room = driver.room();
        // What was tried in vain is not tried again, until there is more.
        let begins = room > KEPT && room != self.kept && driver.len() < room / SHARE;
        if !begins && !self.is_leaving {
            return false;
        }
        self.is_leaving = driver.shrink_by(PIECES);
        if !self.is_leaving {
            self.kept = driver.room();
        }
        self.is_leaving
    }
}

impl<T> Books<T> {
    fn give_memory_back(&mut self) -> bool {
        let driver = self.driver.as_mut();
        driver.is_some_and(|driver| self.room.give_back(driver))
    }

    fn pending(&self) -> u64 {
        self.driver.as_ref().map_or(0, |driver| driver.len() as u64)
    }
}
