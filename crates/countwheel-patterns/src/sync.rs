//! What [`concurrent`](crate::concurrent) takes from the machine. The models put the checker's
//! own of the same names in its place.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};

/// How many entries of a wheel are moved while its lock is held once.
pub(crate) const MOVES: usize = 4_096;
