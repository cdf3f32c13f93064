//! Where threads meet without a lock of a pattern: the only place of this crate in which they do.
//!
//! Under a lock of these files no task runs, no waker is woken, and neither is dropped.
//! Atomics and locks come from [`sync`](crate::sync), so that a model checker can stand in:
//! `crates/countwheel-models` does.

mod claim;
mod notice;
mod outcome;

use std::sync::PoisonError;

use crate::sync::{Mutex, MutexGuard};

pub(crate) use claim::Claim;
pub(crate) use notice::{Next, Notice};
pub(crate) use outcome::Outcome;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing foreign runs under a lock, so what a panic left behind is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
