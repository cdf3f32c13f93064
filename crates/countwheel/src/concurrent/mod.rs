//! Where threads meet: the only place of this crate in which they do.
//!
//! A timer has some [`Shard`]s, each a wheel behind a lock of its own, and a thread schedules
//! on one of them, always the same. So threads do not get in each other's way, and whoever
//! takes an entry out of a wheel decides its fate under that wheel's lock: exactly one does.
//!
//! One **host** takes out what is due. It sleeps until the earliest deadline, and only an
//! entry that comes before everything else on its shard makes anybody look whether it has to
//! be woken. The look follows the pattern of Dekker: the one who schedules writes the
//! deadline, then reads until when the host sleeps; the host writes until when it sleeps,
//! then reads the deadlines again; a fence between each write and read makes it impossible
//! that both miss the other.
//!
//! Under a lock of these files no task runs, no waker is woken, and neither is dropped.
//! Atomics and locks come from [`sync`](crate::sync), so that a model checker can stand in:
//! `crates/countwheel-models` does.

mod alarm;
mod hub;
mod parker;
mod ready;
mod shard;
mod shards;

use std::sync::PoisonError;

use crate::sync::{Mutex, MutexGuard};

pub(crate) use alarm::Alarm;
pub(crate) use hub::{Hub, Refusal};
pub(crate) use parker::Parker;
pub(crate) use ready::{Host, Ready};
pub(crate) use shard::{Fate, Shard};
pub(crate) use shards::Shards;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing foreign runs under a lock, so what a panic left behind is whole.
    relock(mutex.lock())
}

fn relock<G>(guard: Result<G, PoisonError<G>>) -> G {
    guard.unwrap_or_else(PoisonError::into_inner)
}
