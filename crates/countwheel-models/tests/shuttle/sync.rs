//! What the concurrent part takes from the machine, here from shuttle.

pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use shuttle::thread;

pub(crate) use crate::planting::is_planted;
