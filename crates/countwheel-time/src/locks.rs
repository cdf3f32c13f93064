//! The locks of the standard library without their poison.
//!
//! A panic while a lock is held poisons the lock: from then on, every caller gets an error. That
//! error protects data which the panic left half changed. The libraries have no such data. Under
//! their locks, foreign code (a caller's function, `Eq`, `Clone`, a clock) runs only where the data
//! is whole. So poison reports no damage, and would make one caller's panic the failure of every
//! other caller. The functions of this module give the guard in either case.
//!
//! The programs have `parking_lot`, whose locks know no poison. The libraries for timers in a process
//! take no dependency for that.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks `mutex`, poisoned or not. Blocks as long as [`Mutex::lock`] does.
///
/// ```
/// use countwheel_time::locks;
/// use std::sync::Mutex;
/// use std::thread;
///
/// let count = Mutex::new(1);
/// thread::scope(|scope| {
///     let under_the_lock = || {
///         let _held = count.lock();
///         panic!("before any change");
///     };
///     assert!(scope.spawn(under_the_lock).join().is_err());
/// });
/// assert!(count.is_poisoned());
/// *locks::lock(&count) += 1;
/// assert_eq!(*locks::lock(&count), 2);
/// ```
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    whole(mutex.lock())
}

/// Locks `lock` to read, poisoned or not. Blocks as long as [`RwLock::read`] does.
///
/// ```
/// use countwheel_time::locks;
/// use std::sync::RwLock;
///
/// let names = RwLock::new(vec!["a", "b"]);
/// let (one, other) = (locks::read(&names), locks::read(&names));
/// assert_eq!(one.len(), other.len());
/// ```
#[inline]
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    whole(lock.read())
}

/// Locks `lock` to write, poisoned or not. Blocks as long as [`RwLock::write`] does.
///
/// ```
/// use countwheel_time::locks;
/// use std::sync::RwLock;
///
/// let names = RwLock::new(vec!["a", "b"]);
/// locks::write(&names).push("c");
/// assert_eq!(locks::read(&names).len(), 3);
/// ```
#[inline]
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    whole(lock.write())
}

/// What an operation on a lock gives, poisoned or not: the guard after a wait on a condition, or
/// the content of a lock that is taken apart.
///
/// ```
/// use countwheel_time::locks;
/// use std::sync::{Condvar, Mutex};
/// use std::thread;
///
/// let (has_come, came) = (Mutex::new(false), Condvar::new());
/// thread::scope(|scope| {
///     scope.spawn(|| {
///         *locks::lock(&has_come) = true;
///         came.notify_one();
///     });
///     let guard = locks::lock(&has_come);
///     let guard = locks::whole(came.wait_while(guard, |has_come| !*has_come));
///     assert!(*guard);
/// });
/// assert!(locks::whole(has_come.into_inner()));
/// ```
#[inline]
pub fn whole<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}
