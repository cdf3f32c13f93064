//! What [`concurrent`](crate::concurrent) takes from the machine. The models put the checker's
//! own of the same names in its place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use std::thread;

use crate::planted::Bug;

/// Whether the mistake is to be made: never, outside the models.
pub(crate) const fn is_planted(_bug: Bug) -> bool {
    false
}
