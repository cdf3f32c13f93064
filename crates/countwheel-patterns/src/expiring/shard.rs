//! Some of the entries, their deadlines, and the lock that decides about them.
//!
//! An entry and its deadline lie behind one lock, so neither is ever there without the other. The
//! wheel says only when to look. The entry's own deadlines decide whether it is over, since a use
//! or a replacement may have moved them without telling the wheel. If these deadlines lie later,
//! the shard files the entry again for the rest of the time when the wheel brings it up.
//!
//! Under the lock, the shard compares keys, and clones or shows a value. It drops no key, value or
//! waker there, and calls no listener.

use std::borrow::Borrow;
use std::cell::Cell;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;

use super::Cause;
use super::load::{Flight, Load, LoadTurn, Loading};
use super::outbox::{Listener, Outbox};
use super::results::{ExpiringEntry, ExpiringStats, InsertError};
use super::ttl::Life;
use crate::sync::MOVES;
use countwheel::building::Index;
use countwheel::building::returns;
use countwheel::building::{Bell, Rung};
use countwheel::{Driver, Instant, Timer, TimerKey};
use countwheel_time::locks;

/// What the shards of one map have in common.
pub(super) struct MapHub {
    is_closed: AtomicBool,
    /// How many more entries there may be, if there is a limit.
    room: Option<AtomicUsize>,
}

impl MapHub {
    pub(super) fn new(max_entries: Option<usize>) -> Arc<Self> {
        Arc::new(Self {
            is_closed: AtomicBool::new(false),
            room: max_entries.map(AtomicUsize::new),
        })
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    fn take_room(&self) -> bool {
        self.room.as_ref().is_none_or(|room| {
            let take = |left: usize| left.checked_sub(1);
            room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_ok()
        })
    }

    fn give_room(&self, entries: usize) {
        if let Some(room) = &self.room {
            room.fetch_add(entries, Ordering::Relaxed);
        }
    }
}

/// Some of the entries. On cache lines of its own: another shard's lock is no business of the
/// processor that holds this one.
#[repr(align(128))]
pub(super) struct MapShard<K, V> {
    books: RwLock<MapBooks<K, V>>,
    /// Counted by readers, who share the lock.
    hits: AtomicU64,
    misses: AtomicU64,
    hub: Arc<MapHub>,
    bell: Bell,
    outbox: Arc<Outbox<K, V>>,
}

struct MapBooks<K, V> {
    index: Index<MapEntry<K, V>>,
    /// Hashes, to find the entries by.
    wheel: Driver<u64>,
    /// The most that the wheel has had to do since it last gave memory back.
    peak: usize,
    loads: Index<Loading<K, V>>,
    stats: ExpiringStats,
}

struct MapEntry<K, V> {
    key: K,
    value: V,
    life: Life,
    /// What the wheel knows the entry by, and the deadline it was told, never after the entry's.
    filed: Option<(TimerKey, Instant)>,
}

/// What an insert does with a key that is there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MapRule {
    Replace,
    KeepOld,
}

/// What has left its place under the lock, and is dropped after it.
struct Left<K, V> {
    key: Option<K>,
    value: Option<V>,
    loading: Option<Loading<K, V>>,
}

impl<K, V> Left<K, V> {
    const fn new() -> Self {
        Self {
            key: None,
            value: None,
            loading: None,
        }
    }
}

impl<K, V> MapShard<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    pub(super) fn new(
        timer: &Timer,
        hub: &Arc<MapHub>,
        listener: Option<&Arc<Listener<K, V>>>,
    ) -> Arc<Self> {
        let outbox = Outbox::new(listener.map(Arc::clone), timer.downgrade());
        Arc::new_cyclic(|shard: &Weak<Self>| {
            let bell = Bell::new(timer.clone(), Weak::clone(shard));
            Self {
                books: RwLock::new(MapBooks {
                    index: Index::default(),
                    wheel: bell.driver(),
                    peak: 0,
                    loads: Index::default(),
                    stats: ExpiringStats::default(),
                }),
                hits: AtomicU64::new(0),
                misses: AtomicU64::new(0),
                hub: Arc::clone(hub),
                bell,
                outbox: Arc::new(outbox),
            }
        })
    }

    /// Whether nothing may be inserted. Asked under the lock, so that what is accepted after a
    /// close has begun is found by it.
    fn refuses(&self) -> bool {
        self.hub.is_closed() || self.bell.is_stopped()
    }

    /// After the lock was given up: has somebody look when `due` has come, and the listener
    /// told.
    fn follow_up(&self, due: Option<Instant>) {
        if let Some(due) = due {
            // Refused only if the timer is closed, and then all that is left is to be read.
            let _ = self.bell.ring_by(due);
        }
        if self.outbox.has_listener() {
            self.outbox.send();
        }
    }

    pub(super) fn insert(
        &self,
        hash: u64,
        (key, value): (K, V),
        life: Life,
        now: Instant,
        rule: MapRule,
    ) -> Result<Option<V>, InsertError<K, V>>
    where
        K: Eq,
    {
        let mut left = Left::new();
        let mut books = self.write();
        if self.refuses() {
            books.stats.refused += 1;
            return Err(InsertError::Closed(key, value));
        }
        if rule == MapRule::KeepOld
            && let Some(entry) = books.index.find(hash, |entry| entry.key == key)
            && !entry.life.is_over(now)
        {
            return Err(InsertError::Present(key, value));
        }
        let result = self.place(&mut books, hash, (key, value), life, now, &mut left);
        drop(books);
        let (before, due) = result?;
        self.follow_up(due);
        Ok(before)
    }

    /// Puts in what is to be there: what was there instead, and when to look.
    fn place(
        &self,
        books: &mut MapBooks<K, V>,
        hash: u64,
        (key, value): (K, V),
        life: Life,
        now: Instant,
        left: &mut Left<K, V>,
    ) -> Result<(Option<V>, Option<Instant>), InsertError<K, V>>
    where
        K: Eq,
    {
        let Some(entry) = books.index.find_mut(hash, |entry| entry.key == key) else {
            if !self.hub.take_room() {
                books.stats.refused += 1;
                return Err(InsertError::Full(key, value));
            }
            left.loading = books.loads.remove(hash, |load| load.key == key);
            let mut entry = MapEntry {
                key,
                value,
                life,
                filed: None,
            };
            let due = file(&mut books.wheel, hash, &mut entry, now);
            books.index.insert(hash, entry);
            books.peak = books.peak.max(books.wheel.len());
            books.stats.inserted += 1;
            return Ok((None, due));
        };
        let is_over = entry.life.is_over(now);
        let copy = if is_over {
            None
        } else {
            self.outbox.copy(&entry.value)
        };
        left.loading = books.loads.remove(hash, |load| load.key == key);
        let before = mem::replace(&mut entry.value, value);
        entry.life = life;
        let due = file(&mut books.wheel, hash, entry, now);
        books.peak = books.peak.max(books.wheel.len());
        books.stats.inserted += 1;
        if is_over {
            books.stats.expired += 1;
            if self.outbox.has_listener() {
                self.outbox.push(key, before, Cause::Expired);
            } else {
                (left.key, left.value) = (Some(key), Some(before));
            }
            return Ok((None, due));
        }
        books.stats.replaced += 1;
        match copy {
            Some(copy) => self.outbox.push(key, copy, Cause::Replaced),
            None => left.key = Some(key),
        }
        Ok((Some(before), due))
    }

    /// Shows an entry to `look`, as a use of it: unless it is over.
    #[inline]
    pub(super) fn get_with<Q, R>(
        &self,
        hash: u64,
        key: &Q,
        now: Instant,
        look: impl FnOnce(&V) -> R,
    ) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let books = self.read();
        let Some(entry) = books.alive(hash, key, now) else {
            self.misses.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        self.hits.fetch_add(1, Ordering::Relaxed);
        entry.life.renew(now);
        Some(look(&entry.value))
    }

    /// How long an entry lives on, without a use of it.
    pub(super) fn remaining<Q>(&self, hash: u64, key: &Q, now: Instant) -> Option<Duration>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let books = self.read();
        Some(books.alive(hash, key, now)?.life.remaining(now))
    }

    pub(super) fn touch<Q>(&self, hash: u64, key: &Q, now: Instant) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let books = self.read();
        let alive = books.alive(hash, key, now);
        alive.map(|entry| entry.life.renew(now)).is_some()
    }

    pub(super) fn update<Q, R>(
        &self,
        hash: u64,
        key: &Q,
        now: Instant,
        change: impl FnOnce(&mut V) -> R,
    ) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut books = self.write();
        let found = books
            .index
            .find_mut(hash, |entry| entry.key.borrow() == key);
        let Some(entry) = found.filter(|entry| !entry.life.is_over(now)) else {
            self.misses.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        self.hits.fetch_add(1, Ordering::Relaxed);
        entry.life.renew(now);
        Some(change(&mut entry.value))
    }

    pub(super) fn set_life<Q>(&self, hash: u64, key: &Q, now: Instant, life: Life) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut books = self.write();
        let MapBooks { index, wheel, .. } = &mut *books;
        let found = index.find_mut(hash, |entry| entry.key.borrow() == key);
        let Some(entry) = found.filter(|entry| !entry.life.is_over(now)) else {
            return false;
        };
        entry.life = life;
        let due = file(wheel, hash, entry, now);
        books.peak = books.peak.max(books.wheel.len());
        drop(books);
        self.follow_up(due);
        true
    }

    pub(super) fn remove<Q>(&self, hash: u64, key: &Q, now: Instant) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut left = Left::new();
        let mut books = self.write();
        left.loading = books.loads.remove(hash, |load| load.key.borrow() == key);
        let entry = books.index.find(hash, |entry| entry.key.borrow() == key)?;
        let is_over = entry.life.is_over(now);
        let copy = if is_over {
            None
        } else {
            self.outbox.copy(&entry.value)
        };
        let entry = books
            .index
            .remove(hash, |entry| entry.key.borrow() == key)?;
        let MapEntry {
            key, value, filed, ..
        } = entry;
        self.release(&mut books, filed);
        let removed = if is_over {
            books.stats.expired += 1;
            if self.outbox.has_listener() {
                self.outbox.push(key, value, Cause::Expired);
            } else {
                (left.key, left.value) = (Some(key), Some(value));
            }
            None
        } else {
            books.stats.removed += 1;
            match copy {
                Some(copy) => self.outbox.push(key, copy, Cause::Removed),
                None => left.key = Some(key),
            }
            Some(value)
        };
        drop(books);
        self.follow_up(None);
        removed
    }

    /// An entry is out of the index: frees its place in the wheel, too.
    fn release(&self, books: &mut MapBooks<K, V>, filed: Option<(TimerKey, Instant)>) {
        if let Some((timer_key, _)) = filed {
            books.wheel.cancel(timer_key);
            books.give_memory_back();
        }
        self.hub.give_room(1);
    }

    /// Removes whatever `keep` does not want.
    pub(super) fn retain(&self, now: Instant, keep: &mut impl FnMut(&K, &V) -> bool) {
        let mut gone = Vec::new();
        let mut books = self.write();
        let MapBooks {
            index,
            wheel,
            stats,
            ..
        } = &mut *books;
        let extracted = catch_unwind(AssertUnwindSafe(|| {
            index.extract(
                |entry| entry.life.is_over(now) || !keep(&entry.key, &entry.value),
                |entry| {
                    if let Some((timer_key, _)) = entry.filed {
                        wheel.cancel(timer_key);
                    }
                    self.hub.give_room(1);
                    let cause = if entry.life.is_over(now) {
                        stats.expired += 1;
                        Cause::Expired
                    } else {
                        stats.removed += 1;
                        Cause::Removed
                    };
                    if self.outbox.has_listener() {
                        self.outbox.push(entry.key, entry.value, cause);
                    } else {
                        gone.push(entry);
                    }
                },
            );
        }));
        books.give_memory_back();
        drop(books);
        self.follow_up(None);
        if let Err(panic) = extracted {
            resume_unwind(panic);
        }
    }

    /// Takes out everything: returned whole, or as cleared.
    pub(super) fn take_all(&self, now: Instant, taken: Taken) -> Vec<ExpiringEntry<K, V>> {
        // Before the lock, so that whoever inserts after it is looked after.
        self.bell.silence();
        let mut returned = Vec::new();
        let mut gone = Vec::new();
        let mut books = self.write();
        let loads = mem::take(&mut books.loads);
        let index = mem::take(&mut books.index);
        let wheel = mem::replace(&mut books.wheel, self.bell.driver());
        books.peak = 0;
        self.hub.give_room(index.len());
        for entry in index.into_entries() {
            let remaining = entry.life.remaining(now);
            let cause = if entry.life.is_over(now) {
                books.stats.expired += 1;
                Cause::Expired
            } else if taken == Taken::Drained {
                books.stats.drained += 1;
                let MapEntry { key, value, .. } = entry;
                returned.push(ExpiringEntry {
                    key,
                    value,
                    remaining,
                });
                continue;
            } else {
                books.stats.cleared += 1;
                Cause::Cleared
            };
            if self.outbox.has_listener() {
                self.outbox.push(entry.key, entry.value, cause);
            } else {
                gone.push(entry);
            }
        }
        drop(books);
        self.follow_up(None);
        // A destructor that panics must not take with it what is handed over.
        returns(|| drop((loads, wheel, gone)));
        returned
    }

    pub(super) fn for_each(&self, now: Instant, look: &mut impl FnMut(&K, &V)) {
        let books = self.read();
        let alive = books.index.iter().filter(|entry| !entry.life.is_over(now));
        alive.for_each(|entry| look(&entry.key, &entry.value));
    }

    pub(super) fn len(&self) -> usize {
        self.read().index.len()
    }

    pub(super) fn stats(&self) -> ExpiringStats {
        let (unheard, panicked) = self.outbox.counts();
        let books = self.read();
        ExpiringStats {
            len: books.index.len() as u64,
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            unheard,
            panicked,
            ..books.stats
        }
    }

    /// What becomes of a caller who has missed `key`, which it owns now.
    pub(super) fn turn(
        self: &Arc<Self>,
        hash: u64,
        key: K,
        now: Instant,
        blocks: bool,
    ) -> LoadTurn<K, V>
    where
        K: Eq,
        V: Clone,
    {
        let fresh = Flight::new(blocks);
        // The key is an argument, so it outlives the lock.
        let mut books = self.write();
        if let Some(entry) = books.alive(hash, &key, now) {
            entry.life.renew(now);
            return LoadTurn::Found(entry.value.clone());
        }
        if let Some(loading) = books.loads.find(hash, |loading| loading.key == key) {
            let flight = Arc::clone(&loading.flight);
            books.stats.waited += 1;
            return LoadTurn::Wait(flight);
        }
        books.stats.loads += 1;
        let flight = Arc::clone(&fresh);
        books.loads.insert(hash, Loading { key, flight });
        LoadTurn::Load(Load::new(self, hash, &fresh))
    }

    /// Inserts what was loaded, unless it is out of date by now or there is no place for it.
    pub(super) fn keep(
        &self,
        hash: u64,
        flight: &Arc<Flight<V>>,
        value: V,
        life: Life,
        now: Instant,
    ) where
        K: Eq,
    {
        let mut left = Left::new();
        let mut refused = None;
        let mut before = None;
        let mut books = self.write();
        let is_this = |loading: &Loading<K, V>| Arc::ptr_eq(&loading.flight, flight);
        let Some(Loading { key, .. }) = books.loads.remove(hash, is_this) else {
            return;
        };
        if self.refuses() {
            books.stats.refused += 1;
            left.key = Some(key);
            return;
        }
        let mut due = None;
        match self.place(&mut books, hash, (key, value), life, now, &mut left) {
            Ok((old, wanted)) => (before, due) = (old, wanted),
            Err(error) => refused = Some(error),
        }
        drop(books);
        self.follow_up(due);
        drop((refused, before));
    }

    /// A load has failed.
    pub(super) fn give_up(&self, hash: u64, flight: &Arc<Flight<V>>) {
        let mut books = self.write();
        let is_this = |loading: &Loading<K, V>| Arc::ptr_eq(&loading.flight, flight);
        let loading = books.loads.remove(hash, is_this);
        books.stats.load_failures += 1;
        drop(books);
        drop(loading);
    }
}

/// What becomes of entries that are taken out all at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// They are handed over.
    Drained,
    /// Only the listener sees them.
    Cleared,
}

impl<K, V> Rung for MapShard<K, V>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn bell(&self) -> &Bell {
        &self.bell
    }

    fn ring(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        /// Longer, and those who want to read would notice.
        const SLICE: usize = 256;
        if self.refuses() {
            return None;
        }
        // What is dropped without any code of its own is dropped at once.
        let is_plain = !self.outbox.has_listener() && !mem::needs_drop::<(K, V)>();
        let mut books = self.write();
        let (mut looked, mut moves) = (0, MOVES);
        let next = loop {
            if looked == SLICE {
                break Some(now);
            }
            let next = books.wheel.expire_within(now, Instant::MAX, &mut moves);
            let Some(fired) = next else {
                break books.wheel.next_wake();
            };
            looked += 1;
            let MapBooks { index, wheel, .. } = &mut *books;
            let hash = fired.value;
            let is_this =
                |entry: &MapEntry<K, V>| entry.filed.is_some_and(|(key, _)| key == fired.key);
            if let Some(entry) = index.find_mut(hash, is_this)
                && !entry.life.is_over(now)
            {
                // Used or replaced since it was filed: the rest of the time.
                entry.filed = None;
                file(wheel, hash, entry, now);
                continue;
            }
            let Some(entry) = index.remove(hash, is_this) else {
                debug_assert!(false, "what is in the wheel is in the index");
                continue;
            };
            self.hub.give_room(1);
            books.stats.expired += 1;
            if !is_plain {
                self.outbox.push(entry.key, entry.value, Cause::Expired);
            }
        };
        books.give_memory_back();
        drop(books);
        if !is_plain {
            self.outbox.send();
        }
        next
    }
}

impl<K, V> MapBooks<K, V> {
    #[inline]
    fn alive<Q>(&self, hash: u64, key: &Q, now: Instant) -> Option<&MapEntry<K, V>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.index
            .find(hash, |entry| entry.key.borrow() == key)
            .filter(|entry| !entry.life.is_over(now))
    }

    /// The wheel's memory goes after a peak as that of the index does: when an eighth is used.
    fn give_memory_back(&mut self) {
        const SMALL: usize = 1 << 10;
        if self.peak > SMALL && self.wheel.len() < self.peak / 8 {
            self.wheel.shrink_to_fit();
            self.peak = self.wheel.len();
        }
    }
}

/// Files `entry` in the wheel no later than its deadline. If the wheel brings the entry up sooner
/// already, the wheel stays as it is: most replaced or used entries are replaced or used again
/// before that.
fn file<K, V>(
    wheel: &mut Driver<u64>,
    hash: u64,
    entry: &mut MapEntry<K, V>,
    now: Instant,
) -> Option<Instant> {
    let deadline = entry.life.deadline();
    match &mut entry.filed {
        Some((timer_key, _)) if deadline == Instant::MAX => {
            wheel.cancel(*timer_key);
            entry.filed = None;
            None
        }
        Some((_, asks_at)) if *asks_at <= deadline => None,
        Some((timer_key, asks_at)) => {
            *asks_at = deadline;
            wheel.reschedule(now, *timer_key, deadline);
            Some(wheel.due(deadline))
        }
        None if deadline == Instant::MAX => None,
        None => {
            entry.filed = Some((wheel.schedule(now, deadline, hash), deadline));
            Some(wheel.due(deadline))
        }
    }
}

impl<K, V> MapShard<K, V> {
    fn read(&self) -> Locked<RwLockReadGuard<'_, MapBooks<K, V>>> {
        let inside = Inside::enter();
        // What a panic of somebody's `Eq` or `Clone` leaves behind is whole.
        let books = locks::read(&self.books);
        Locked {
            books,
            _inside: inside,
        }
    }

    fn write(&self) -> Locked<RwLockWriteGuard<'_, MapBooks<K, V>>> {
        let inside = Inside::enter();
        let books = locks::write(&self.books);
        Locked {
            books,
            _inside: inside,
        }
    }
}

struct Locked<G> {
    // Given up first.
    books: G,
    _inside: Inside,
}

impl<G: Deref> Deref for Locked<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.books
    }
}

impl<G: DerefMut> DerefMut for Locked<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.books
    }
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks a thread that holds a lock. Somebody's `Eq` or closure that called a map from there
/// might wait for itself for ever: it panics instead.
struct Inside;

impl Inside {
    #[inline]
    fn enter() -> Self {
        assert!(
            !INSIDE.replace(true),
            "an expiring map was used from within a look at one"
        );
        Self
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}
