//! Some of the keys, behind one lock, which decides who gets an entry.
//!
//! The caller that takes an entry out of the index under the lock owns it: the task that fires it,
//! a remove, a drain or a stop. A task takes the entry only if the entry still bears the task's
//! number. So a task that expired and was then overtaken by a set or a move finds nothing.
//!
//! The lock is held while a shard tells a wheel of a deadline (index before wheel, never the other
//! way round), and while it compares keys. The host is woken after the lock was given up. No value,
//! key or task is dropped under the lock, and the handler runs without it.

use std::any::type_name;
use std::borrow::Borrow;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::entry::{KeyEntry, NO_TASK};
use super::{KeyedStats, Move, SetError, When};
use crate::building::Index;
use crate::task::{Job, Run};
use crate::timer::Rouse;
use crate::{By, Instant, ScheduleError, Timeout, Timer};
use countwheel_time::locks;

/// What the shards of one keyed timer have in common.
pub(super) struct KeyHub<K, V> {
    handler: Box<dyn Fn(K, V) + Send + Sync>,
    /// What people know the handler by.
    name: &'static str,
    closed: AtomicBool,
}

impl<K, V> KeyHub<K, V> {
    pub(super) fn new<H: Fn(K, V) + Send + Sync + 'static>(handler: H) -> Self {
        Self {
            handler: Box::new(handler),
            name: type_name::<H>(),
            closed: AtomicBool::new(false),
        }
    }

    /// Refuses sets from now on.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// Some of the keys. On cache lines of its own: another shard's lock is no business of the
/// processor that holds this one.
#[repr(align(128))]
pub(super) struct KeyShard<K, V> {
    hub: Arc<KeyHub<K, V>>,
    books: Mutex<KeyBooks<K, V>>,
}

pub(super) struct KeyBooks<K, V> {
    pub(super) index: Index<KeyEntry<K, V>>,
    stats: KeyedStats,
}

impl When {
    fn deadline(self, timer: &Timer) -> Instant {
        match self {
            Self::After(delay) => timer.now() + delay,
            Self::At(deadline) => deadline,
        }
    }

    // Both are called under the lock of a shard, so they wake nobody.

    fn schedule(self, timer: &Timer, job: Job) -> Result<(Timeout, Rouse), ScheduleError> {
        match self {
            Self::After(delay) => timer.after_quietly(delay, job),
            Self::At(deadline) => timer.at_quietly(deadline, job),
        }
    }

    fn reschedule(self, timeout: &Timeout) -> Option<Rouse> {
        match self {
            Self::After(delay) => timeout.reschedule_quietly(delay),
            Self::At(deadline) => timeout.reschedule_at_quietly(deadline),
        }
    }
}

/// Which deadline a key gets that has one already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyRule {
    New,
    /// So far from the one that it has.
    By(By),
    Sooner,
    Later,
}

/// Where a drained entry is counted.
#[derive(Clone, Copy)]
pub(super) enum Taken {
    Drained,
    Returned,
}

impl<K, V> KeyShard<K, V> {
    pub(super) fn new(hub: Arc<KeyHub<K, V>>) -> Self {
        Self {
            hub,
            books: Mutex::new(KeyBooks {
                index: Index::default(),
                stats: KeyedStats::default(),
            }),
        }
    }

    /// Calls `look` with the lock held.
    pub(super) fn with<R>(&self, look: impl FnOnce(&mut KeyBooks<K, V>) -> R) -> R {
        look(&mut self.lock().books)
    }

    fn lock(&self) -> Locked<'_, K, V> {
        let inside = Inside::enter();
        // What a panic of somebody's `Eq`, `Clone` or clock leaves behind is whole.
        let books = locks::lock(&self.books);
        Locked {
            books,
            _inside: inside,
        }
    }

    pub(super) fn stats(&self) -> KeyedStats {
        self.with(|books| KeyedStats {
            pending: books.index.len() as u64,
            ..books.stats
        })
    }

    pub(super) fn remove<Q>(&self, hash: u64, key: &Q) -> Option<KeyEntry<K, V>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.with(|books| {
            let removed = books
                .index
                .remove(hash, |entry| entry.key.borrow() == key)?;
            books.stats.removed += 1;
            Some(removed)
        })
    }

    pub(super) fn take_all(&self, taken: Taken) -> impl Iterator<Item = KeyEntry<K, V>> {
        let index = self.with(|books| {
            let entries = books.index.len() as u64;
            match taken {
                Taken::Drained => books.stats.drained += entries,
                Taken::Returned => books.stats.returned += entries,
            }
            std::mem::take(&mut books.index)
        });
        index.into_entries()
    }
}

impl<K: Eq + Send + 'static, V: Send + 'static> KeyShard<K, V> {
    /// Sets what is under `key`; gives back what it replaced.
    pub(super) fn set(
        self: &Arc<Self>,
        timer: &Timer,
        hash: u64,
        (key, value): (K, V),
        when: When,
        rule: KeyRule,
    ) -> Result<Option<V>, SetError<K, V>> {
        let mut rouse = Rouse::NO;
        let result = self.set_quietly(timer, hash, (key, value), (when, rule), &mut rouse);
        timer.rouse_if(rouse);
        result
    }

    fn set_quietly(
        self: &Arc<Self>,
        timer: &Timer,
        hash: u64,
        (key, value): (K, V),
        (when, rule): (When, KeyRule),
        rouse: &mut Rouse,
    ) -> Result<Option<V>, SetError<K, V>> {
        let mut locked = self.lock();
        let KeyBooks { index, stats } = &mut *locked.books;
        if self.refuses(timer) {
            stats.refused += 1;
            return Err(SetError::Closed(key, value));
        }
        let result = match index.find_mut(hash, |entry| entry.key == key) {
            Some(entry) => match self.reset(timer, hash, entry, (when, rule), rouse) {
                Ok(_) => {
                    stats.replaced += 1;
                    Ok(Some(std::mem::replace(&mut entry.value, value)))
                }
                Err(error) => Err(SetError::new(error, key, value)),
            },
            None => match self.insert(timer, hash, index, (key, value), when, rouse) {
                Ok(()) => Ok(None),
                Err(error) => Err(error),
            },
        };
        match &result {
            Ok(_) => stats.set += 1,
            Err(_) => stats.refused += 1,
        }
        result
    }

    /// Sets what is under `key` unless there is something.
    pub(super) fn set_if_absent(
        self: &Arc<Self>,
        timer: &Timer,
        hash: u64,
        (key, value): (K, V),
        when: When,
    ) -> Result<(), SetError<K, V>> {
        let mut rouse = Rouse::NO;
        let result = self.set_if_absent_quietly(timer, hash, (key, value), when, &mut rouse);
        timer.rouse_if(rouse);
        result
    }

    fn set_if_absent_quietly(
        self: &Arc<Self>,
        timer: &Timer,
        hash: u64,
        (key, value): (K, V),
        when: When,
        rouse: &mut Rouse,
    ) -> Result<(), SetError<K, V>> {
        let mut locked = self.lock();
        let KeyBooks { index, stats } = &mut *locked.books;
        if self.refuses(timer) {
            stats.refused += 1;
            return Err(SetError::Closed(key, value));
        }
        if index.find(hash, |entry| entry.key == key).is_some() {
            return Err(SetError::Present(key, value));
        }
        let result = self.insert(timer, hash, index, (key, value), when, rouse);
        match &result {
            Ok(()) => stats.set += 1,
            Err(_) => stats.refused += 1,
        }
        result
    }

    /// Moves what is under `key`, if the rule wants it so.
    pub(super) fn move_to<Q>(
        self: &Arc<Self>,
        timer: &Timer,
        hash: u64,
        key: &Q,
        when: When,
        rule: KeyRule,
    ) -> Move
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut rouse = Rouse::NO;
        let moved = self.with(|KeyBooks { index, stats }| {
            let Some(entry) = index.find_mut(hash, |entry| entry.key.borrow() == key) else {
                return Move::Absent;
            };
            match self.reset(timer, hash, entry, (when, rule), &mut rouse) {
                Ok(true) => {
                    stats.moved += 1;
                    Move::Moved
                }
                Ok(false) => Move::Kept,
                Err(_) => Move::Refused,
            }
        });
        timer.rouse_if(rouse);
        moved
    }

    /// Under the lock, so that what is accepted after a stop has begun is found by it.
    fn refuses(&self, timer: &Timer) -> bool {
        self.hub.is_closed() || timer.is_stopped()
    }

    fn insert(
        self: &Arc<Self>,
        timer: &Timer,
        hash: u64,
        index: &mut Index<KeyEntry<K, V>>,
        (key, value): (K, V),
        when: When,
        rouse: &mut Rouse,
    ) -> Result<(), SetError<K, V>> {
        let task = number();
        match when.schedule(timer, self.job(hash, task)) {
            Ok((timeout, wake)) => {
                *rouse = wake;
                let entry = KeyEntry {
                    key,
                    value,
                    timeout,
                    task,
                    order: task,
                };
                index.insert(hash, entry);
                Ok(())
            }
            Err(error) => Err(SetError::new(error, key, value)),
        }
    }

    /// Gives an entry another deadline, if the rule wants it so: whether it did.
    ///
    /// An entry whose task is lost gets a new one in any case, so that it fires. One whose
    /// task has expired gets a new one if it moves: the old one then finds nothing.
    fn reset(
        self: &Arc<Self>,
        timer: &Timer,
        hash: u64,
        entry: &mut KeyEntry<K, V>,
        (when, rule): (When, KeyRule),
        rouse: &mut Rouse,
    ) -> Result<bool, ScheduleError> {
        let old = entry.deadline();
        let (when, moves) = match rule {
            KeyRule::New => (when, true),
            KeyRule::By(By::Later(span)) => (When::At(old + span), true),
            KeyRule::By(By::Sooner(span)) => {
                let new = Instant::ZERO + old.saturating_since(Instant::ZERO).saturating_sub(span);
                (When::At(new.max(timer.now())), true)
            }
            KeyRule::Sooner => {
                let new = when.deadline(timer);
                (When::At(new.min(old)), new < old)
            }
            KeyRule::Later => {
                let new = when.deadline(timer);
                (When::At(new.max(old)), new > old)
            }
        };
        if !moves && entry.task != NO_TASK {
            return Ok(false);
        }
        let number = number();
        if let Some(wake) = when.reschedule(&entry.timeout) {
            *rouse = wake;
        } else {
            (entry.timeout, *rouse) = when.schedule(timer, self.job(hash, number))?;
            entry.task = number;
        }
        entry.order = number;
        Ok(moves)
    }

    fn job(self: &Arc<Self>, hash: u64, number: u64) -> Job {
        Job::Task(Box::new(Fire {
            shard: Arc::downgrade(self),
            name: self.hub.name,
            hash,
            number,
            ran: false,
        }))
    }

    fn fire(&self, hash: u64, number: u64) {
        let fired = self.with(|books| {
            let fired = books.index.remove(hash, |entry| entry.task == number)?;
            books.stats.fired += 1;
            Some(fired)
        });
        if let Some(entry) = fired {
            let KeyEntry {
                key,
                value,
                timeout,
                ..
            } = entry;
            drop(timeout);
            (self.hub.handler)(key, value);
        }
    }

    /// The task of an entry was dropped by somebody else: the next set or move makes another.
    fn lose(&self, hash: u64, number: u64) {
        self.with(|books| {
            let entry = books.index.find_mut(hash, |entry| entry.task == number);
            if let Some(entry) = entry {
                entry.task = NO_TASK;
            }
        });
    }
}

/// What the timer holds for an entry: nothing that belongs to the caller.
struct Fire<K: Eq + Send + 'static, V: Send + 'static> {
    shard: Weak<KeyShard<K, V>>,
    hash: u64,
    number: u64,
    /// Kept here, because a name is asked for under a lock: what is upgraded there may be the
    /// last of its kind, and its end foreign code.
    name: &'static str,
    ran: bool,
}

impl<K: Eq + Send + 'static, V: Send + 'static> Run for Fire<K, V> {
    fn run(mut self: Box<Self>) {
        self.ran = true;
        if let Some(shard) = self.shard.upgrade() {
            shard.fire(self.hash, self.number);
        }
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

impl<K: Eq + Send + 'static, V: Send + 'static> Drop for Fire<K, V> {
    fn drop(&mut self) {
        // Not if it is dropped from in here: then it was refused, or its entry is gone.
        if !self.ran
            && !Inside::is()
            && let Some(shard) = self.shard.upgrade()
        {
            shard.lose(self.hash, self.number);
        }
    }
}

/// Frees the task of an entry that is out of its index.
pub(super) fn cancel(timeout: &Timeout) {
    let inside = Inside::enter();
    let rouse = timeout.cancel_quietly();
    drop(inside);
    timeout.rouse_if(rouse);
}

struct Locked<'a, K, V> {
    // Given up first.
    books: MutexGuard<'a, KeyBooks<K, V>>,
    _inside: Inside,
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks a thread that holds a lock. Somebody's `Eq` or closure that called a keyed timer from
/// there would wait for itself for ever: it panics instead.
struct Inside;

impl Inside {
    fn enter() -> Self {
        assert!(
            !INSIDE.replace(true),
            "a keyed timer was used from within a look at one"
        );
        Self
    }

    fn is() -> bool {
        INSIDE.get()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// A number that nobody else gets, greater than all that this thread has got. Threads take
/// them by the thousand, so as not to get in each other's way.
fn number() -> u64 {
    const BLOCK: u64 = 1 << 10;
    static BLOCKS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        // A multiple of the block's size, which is no number: take another block.
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    let mut number = NEXT.get();
    if number.is_multiple_of(BLOCK) {
        number = BLOCKS.fetch_add(1, Ordering::Relaxed) * BLOCK + 1;
    }
    NEXT.set(number + 1);
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_given_twice_and_grow_on_every_thread() {
        let take = || (0..5_000).map(|_| number()).collect::<Vec<_>>();
        let mut all = take();
        for handle in [0; 4].map(|_| std::thread::spawn(take)) {
            let numbers = handle.join().unwrap();
            assert!(numbers.is_sorted());
            all.extend(numbers);
        }
        all.extend(take());
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(!all.contains(&NO_TASK));
    }
}
