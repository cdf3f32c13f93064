//! What the concurrent part takes from the machine, here from loom.

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use loom::thread;

pub(crate) use crate::planting::is_planted;
