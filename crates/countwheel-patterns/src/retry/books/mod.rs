//! The state of every operation: the rules of a retry store, without waiting, without locks, and
//! without foreign code but the comparison of keys.
//!
//! A **slot** belongs to a key. It has at most one operation that is not being tried, and at most
//! one attempt in flight. So a newer operation of the key waits, **fenced**, until the attempt of
//! the older one has ended. Every method changes the books and returns in `Effects` the work to do
//! without the lock. Values, errors and keys that are of no more use leave in `Effects`, too.

mod admission;
mod entries;
mod landing;

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::WhenFull;
use super::numbered::Numbered;
use super::results::RetryStats;
use crate::GiveUp;
use crate::sync::MOVES;
use countwheel::building::{Index, give_memory_back};
use countwheel::{Driver, Instant};

pub(super) use self::entries::{Effects, Landing, Operation, Passage};
use self::entries::{Flight, RetryPlace, Slot, Turned};

pub(super) struct RetryBooks<K, T, E> {
    slots: Numbered<Slot<K, T, E>>,
    index: Index<u64>,
    /// Slots whose operation waits for its time.
    driver: Driver<u64>,
    /// Slots whose operation is due and waits for an attempt to end, in order.
    ready: BTreeMap<u64, u64>,
    /// Slots without a flight, by how long ago their operation was submitted: those that may
    /// be dropped for another. Only kept if somebody asks.
    oldest: Option<BTreeMap<u64, u64>>,
    /// Attempts in flight, and on their way to the executor.
    launched: usize,
    /// The last number given: to slots, operations, tickets and places.
    last: u64,
    phase: Phase,
    stats: RetryStats,
    limits: Limits,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    pub(super) max_pending: usize,
    pub(super) when_full: WhenFull,
    pub(super) max_in_flight: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Open,
    /// Stopped: what comes back from an attempt is kept for the next stop.
    Closed,
    /// Nobody has a handle any more.
    Orphaned,
}

impl<K, T, E> RetryBooks<K, T, E> {
    pub(super) fn new(driver: Driver<u64>, limits: Limits) -> Self {
        let drops_oldest = limits.when_full == WhenFull::DropOldest;
        Self {
            slots: Numbered::default(),
            index: Index::default(),
            driver,
            ready: BTreeMap::new(),
            oldest: drops_oldest.then(BTreeMap::new),
            launched: 0,
            last: 0,
            phase: Phase::Open,
            stats: RetryStats::default(),
            limits,
        }
    }

    pub(super) fn stats(&self) -> RetryStats {
        self.stats
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    pub(super) fn refused(&mut self) {
        self.stats.refused += 1;
    }

    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn find<Q>(&self, hash: u64, key: &Q) -> Option<u64>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let found = self.index.find(hash, |slot| {
            let slot = self.slots.get(slot);
            slot.is_some_and(|slot| (*slot.key).borrow() == key)
        });
        found.copied()
    }

    /// Whether the key has an operation, and whether that is being tried.
    pub(super) fn look<Q>(&self, hash: u64, key: &Q) -> Option<bool>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.slots.get(&self.find(hash, key)?)?;
        let flies = slot.flight.as_ref().is_some_and(|flight| !flight.is_void);
        (flies || slot.operation.is_some()).then_some(flies)
    }

    /// What is left of an operation whose value goes to the caller.
    fn leave(&self, operation: Operation<T, E>, effects: &mut Effects<K, T, E>) -> T {
        effects.errors.extend(operation.error);
        operation.value
    }

    fn write_letter(
        &mut self,
        number: u64,
        operation: Operation<T, E>,
        reason: GiveUp,
        effects: &mut Effects<K, T, E>,
    ) {
        if let Some(slot) = self.slots.get(&number) {
            effects
                .letters
                .push((Arc::clone(&slot.key), operation, reason));
        }
    }

    /// Puts an operation where it belongs now. Its slot has no other.
    fn place(
        &mut self,
        number: u64,
        mut operation: Operation<T, E>,
        now: Instant,
        effects: &mut Effects<K, T, E>,
    ) {
        let Some(slot) = self.slots.get(&number) else {
            return;
        };
        if slot.flight.is_some() {
            operation.place = RetryPlace::Fenced;
        } else {
            if let Some(oldest) = &mut self.oldest {
                oldest.insert(operation.serial, number);
            }
            operation.place = if self.phase != Phase::Open {
                RetryPlace::Left
            } else if operation.next_at > now {
                let key = self.driver.schedule(now, operation.next_at, number);
                let due = self.driver.due(operation.next_at);
                effects.ring = Some(effects.ring.map_or(due, |ring| ring.min(due)));
                RetryPlace::Waiting(key)
            } else {
                self.launch(number, effects)
            };
        }
        self.stats.pending += 1;
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.operation = Some(operation);
        }
    }

    /// Sends an operation to the executor, or to the end of the queue before it.
    fn launch(&mut self, number: u64, effects: &mut Effects<K, T, E>) -> RetryPlace {
        let ticket = self.next_number();
        if self.launched >= self.limits.max_in_flight {
            self.ready.insert(ticket, number);
            return RetryPlace::Ready(ticket);
        }
        self.launched += 1;
        effects.launches.push(Passage {
            slot: number,
            number: ticket,
        });
        RetryPlace::Queued(ticket)
    }

    /// Sends as many as may fly.
    fn fill(&mut self, effects: &mut Effects<K, T, E>) {
        while self.phase == Phase::Open
            && self.launched < self.limits.max_in_flight
            && let Some((_, number)) = self.ready.pop_first()
        {
            let place = self.launch(number, effects);
            if let Some(operation) = self.operation_mut(number) {
                operation.place = place;
            }
        }
    }

    fn operation_mut(&mut self, number: u64) -> Option<&mut Operation<T, E>> {
        self.slots.get_mut(&number)?.operation.as_mut()
    }

    /// Takes an operation out of its slot and of its place.
    fn lift(&mut self, number: u64) -> Option<Operation<T, E>> {
        let operation = self.slots.get_mut(&number)?.operation.take()?;
        match operation.place {
            RetryPlace::Waiting(key) => {
                self.driver.cancel(key);
            }
            RetryPlace::Ready(place) => {
                self.ready.remove(&place);
            }
            RetryPlace::Queued(_) => self.launched -= 1,
            RetryPlace::Fenced | RetryPlace::Left => {}
        }
        if let Some(oldest) = &mut self.oldest {
            oldest.remove(&operation.serial);
        }
        self.stats.pending -= 1;
        Some(operation)
    }

    /// The result of the attempt in flight is to change nothing. False if there is none of
    /// which this was not so already.
    fn void(&mut self, number: u64, effects: &mut Effects<K, T, E>) -> bool {
        let flight = self.slots.get_mut(&number);
        let flight = flight.and_then(|slot| slot.flight.as_mut());
        let Some(flight) = flight.filter(|flight| !flight.is_void) else {
            return false;
        };
        flight.is_void = true;
        effects.signals.push(flight.signal.clone());
        self.stats.in_flight -= 1;
        self.stats.fencing += 1;
        true
    }

    /// Frees a slot that has nothing any more.
    fn sweep(&mut self, number: u64, effects: &mut Effects<K, T, E>) {
        let is_empty = |slot: &Slot<K, T, E>| slot.operation.is_none() && slot.flight.is_none();
        if self.slots.get(&number).is_some_and(is_empty)
            && let Some(slot) = self.slots.remove(&number)
        {
            self.index.remove(slot.hash, |&found| found == number);
            give_memory_back(&mut self.slots);
            effects.keys.push(slot.key);
        }
    }

    /// Takes out what is due, at most `most` of it, and says when to be asked again.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        most: usize,
        effects: &mut Effects<K, T, E>,
    ) -> Option<Instant> {
        self.fill(effects);
        let mut moves = MOVES;
        for _ in 0..most {
            let next = self.driver.expire_within(now, Instant::MAX, &mut moves);
            let Some(fired) = next else {
                return self.driver.next_wake();
            };
            let place = self.launch(fired.value, effects);
            if let Some(operation) = self.operation_mut(fired.value) {
                operation.place = place;
            }
        }
        Some(now)
    }

    /// Takes out the operation of a key. `Err` says whether an attempt of it is in flight.
    pub(super) fn cancel<Q>(
        &mut self,
        hash: u64,
        key: &Q,
        effects: &mut Effects<K, T, E>,
    ) -> Result<T, bool>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let number = self.find(hash, key).ok_or(false)?;
        let lifted = self.lift(number);
        let was_in_flight = self.void(number, effects);
        self.stats.cancelled += u64::from(lifted.is_some()) + u64::from(was_in_flight);
        self.sweep(number, effects);
        self.fill(effects);
        match lifted {
            Some(operation) => Ok(self.leave(operation, effects)),
            None => Err(was_in_flight),
        }
    }

    /// Closes the books and takes out all that waits, in the order in which it would have
    /// been tried.
    pub(super) fn close(
        &mut self,
        is_orphaned: bool,
        effects: &mut Effects<K, T, E>,
    ) -> Vec<(Arc<K>, Operation<T, E>)> {
        self.phase = if is_orphaned {
            Phase::Orphaned
        } else {
            Phase::Closed
        };
        self.signal_all(effects);
        let numbers: Vec<_> = self.slots.keys().copied().collect();
        let mut lifted = Vec::new();
        for number in numbers {
            if let Some(operation) = self.lift(number)
                && let Some(slot) = self.slots.get(&number)
            {
                lifted.push((Arc::clone(&slot.key), operation));
            }
            self.sweep(number, effects);
        }
        lifted.sort_unstable_by_key(|(_, operation)| (operation.next_at, operation.serial));
        let ends = if is_orphaned {
            &mut self.stats.dropped
        } else {
            &mut self.stats.returned
        };
        *ends += lifted.len() as u64;
        lifted
    }

    /// Tells all attempts in flight to stop.
    pub(super) fn signal_all(&self, effects: &mut Effects<K, T, E>) {
        let flights = self.slots.values().filter_map(|slot| slot.flight.as_ref());
        let signals = flights.map(|flight| flight.signal.clone());
        effects.signals.extend(signals);
    }
}
