//! The contents of the books: slots, operations, attempts in flight, and the effects of a change.

use std::sync::Arc;

use crate::retry::{PendingRetry, Refusal};
use crate::{Attempts, GiveUp, StopSignal};
use countwheel::{Instant, TimerKey};

pub(super) struct Slot<K, T, E> {
    pub(super) key: Arc<K>,
    pub(super) hash: u64,
    pub(super) operation: Option<Operation<T, E>>,
    pub(super) flight: Option<Flight>,
}

/// Something to be tried.
pub(in crate::retry) struct Operation<T, E> {
    pub(super) serial: u64,
    pub(in crate::retry) value: T,
    pub(in crate::retry) attempts: Attempts,
    pub(in crate::retry) error: Option<E>,
    pub(in crate::retry) next_at: Instant,
    pub(super) place: RetryPlace,
}

/// Where an operation is that is not being tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RetryPlace {
    /// Due later.
    Waiting(TimerKey),
    /// Due, behind others.
    Ready(u64),
    /// On its way to the executor, with the ticket of this number.
    Queued(u64),
    /// Until the attempt of another operation of its key has ended.
    Fenced,
    /// Until a stop takes it out.
    Left,
}

pub(super) struct Flight {
    pub(super) signal: StopSignal,
    /// Its operation was cancelled, or another took its place.
    pub(super) is_void: bool,
}

/// Where an attempt is, or is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::retry) struct Passage {
    pub(super) slot: u64,
    pub(super) number: u64,
}

/// How an attempt ended.
pub(in crate::retry) enum Landing<E> {
    Succeeded,
    /// With what is known of the next attempt.
    Failed(Option<E>, Result<Instant, GiveUp>),
    Panicked(Result<Instant, GiveUp>),
    /// It was dropped before its end.
    Interrupted(Result<Instant, GiveUp>),
}

/// One that is not accepted.
pub(in crate::retry) type Turned<K, T, E> = (Refusal, Arc<K>, Operation<T, E>);

/// What is to be done once the lock is given up.
pub(in crate::retry) struct Effects<K, T, E> {
    pub(in crate::retry) signals: Vec<StopSignal>,
    pub(in crate::retry) launches: Vec<Passage>,
    pub(in crate::retry) ring: Option<Instant>,
    pub(in crate::retry) letters: Vec<(Arc<K>, Operation<T, E>, GiveUp)>,
    pub(super) operations: Vec<Operation<T, E>>,
    pub(super) errors: Vec<E>,
    pub(super) keys: Vec<Arc<K>>,
}

impl<K, T, E> Default for Effects<K, T, E> {
    fn default() -> Self {
        Self {
            signals: Vec::new(),
            launches: Vec::new(),
            ring: None,
            letters: Vec::new(),
            operations: Vec::new(),
            errors: Vec::new(),
            keys: Vec::new(),
        }
    }
}

impl<T, E> Operation<T, E> {
    pub(in crate::retry) fn new(
        value: T,
        attempts: Attempts,
        error: Option<E>,
        next_at: Instant,
    ) -> Self {
        Self {
            serial: 0,
            value,
            attempts,
            error,
            next_at,
            place: RetryPlace::Left,
        }
    }

    pub(in crate::retry) fn into_pending<K>(self, key: K) -> PendingRetry<K, T, E> {
        PendingRetry {
            key,
            value: self.value,
            attempts: self.attempts,
            error: self.error,
            next_at: self.next_at,
        }
    }
}
