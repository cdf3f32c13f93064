//! Parts for authors of patterns on timers: a layer above [`Timer`] needs them, and its callers do
//! not.
//!
//! The crate `countwheel-patterns` is made of them. A pattern with many deadlines has wheels
//! of its own ([`driver`]) behind locks of its own, and a [`Bell`]: one entry in the timer, no
//! later than the earliest of its deadlines. When the bell rings, the host takes out the due
//! entries. Short work runs there, other work on the executor ([`run_soon`]).
//!
//! | you want | take |
//! |---|---|
//! | to be woken by the earliest of many deadlines | a [`Bell`] and a [`Rung`], or an [`Alarm`] |
//! | to go on with accepted work | [`run_soon`], [`continue_at`], [`Alarm::ring_by`]: all exempt from [`max_pending`](crate::TimerBuilder::max_pending) |
//! | a name of its own for a task | [`schedule_named`], [`continue_at`] |
//! | a wheel like those of the timer | [`driver`], [`tick_duration`] |
//! | somebody who rings, before something is filed | [`start_host`] |
//! | the name of the timer, for logs | [`timer_name`] |
//! | entries found by a hash | [`Index`], [`give_memory_back`] |
//! | to block a thread | [`block_until`], [`block_for`] |
//! | to call foreign code that may panic | [`returns`], [`caught`] |
//! | one lock of many for each thread | [`number_of_thread`] |
//!
//! ```
//! use countwheel::building::{Bell, Rung};
//! use countwheel::{Driver, Instant, ManualHost, ScheduleError};
//! use std::sync::{Arc, Mutex, Weak};
//! use std::time::Duration;
//!
//! /// Notes the numbers whose deadline has come.
//! struct Notes {
//!     bell: Bell,
//!     due: Mutex<(Driver<u32>, Vec<u32>)>,
//! }
//!
//! impl Rung for Notes {
//!     fn bell(&self) -> &Bell {
//!         &self.bell
//!     }
//!
//!     fn ring(self: &Arc<Self>, now: Instant) -> Option<Instant> {
//!         let mut due = self.due.lock().unwrap();
//!         let (driver, noted) = &mut *due;
//!         while let Some(fired) = driver.expire(now) {
//!             noted.push(fired.value);
//!         }
//!         driver.next_wake()
//!     }
//! }
//!
//! let mut host = ManualHost::new();
//! let notes = Arc::new_cyclic(|notes: &Weak<Notes>| {
//!     let bell = Bell::new(host.timer().clone(), notes.clone());
//!     let due = Mutex::new((bell.driver(), Vec::new()));
//!     Notes { bell, due }
//! });
//! for number in 1..=3 {
//!     let now = notes.bell.now();
//!     let deadline = now + Duration::from_secs(u64::from(number));
//!     let mut due = notes.due.lock().unwrap();
//!     due.0.schedule(now, deadline, number);
//!     let ring_at = due.0.due(deadline);
//!     drop(due);
//!     notes.bell.ring_by(ring_at)?;
//! }
//! assert_eq!(host.timer().pending(), 1, "however many there are");
//! host.advance(Duration::from_secs(2));
//! assert_eq!(notes.due.lock().unwrap().1, [1, 2]);
//! # Ok::<(), ScheduleError>(())
//! ```

mod alarm;
mod bell;
mod index;

use std::time::Duration;

use crate::task::{Function, Job, Named};
use crate::{Driver, Instant, ScheduleError, Timeout, Timer};

pub use crate::task::{Panicked, block_for, block_until, caught, returns};
pub use crate::timer::number_of_thread;
pub use alarm::Alarm;
pub use bell::{Bell, Rung};
pub use index::{Index, give_memory_back};

/// Runs `task` on the executor now, as the continuation of accepted work:
/// [`max_pending`](crate::TimerBuilder::max_pending) does not apply. O(1).
///
/// ```
/// use countwheel::{ManualHost, building};
/// use std::sync::mpsc;
///
/// let mut host = ManualHost::new();
/// let (sender, ran) = mpsc::channel();
/// building::run_soon(host.timer(), move || sender.send("ran").unwrap())?;
/// host.run_due();
/// assert_eq!(ran.try_recv(), Ok("ran"));
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
///
/// # Errors
/// If the timer is closed or its thread cannot be started: the task comes back in the error.
pub fn run_soon(timer: &Timer, task: impl FnOnce() + Send + 'static) -> Result<(), ScheduleError> {
    let job = Job::Task(Box::new(Function(task)));
    timer.go_on_at(timer.now(), job).map(drop)
}

/// Runs `task` on the executor at `deadline`, as the continuation of accepted work, under `name` in
/// logs and statistics. See [`run_soon`].
///
/// ```
/// use countwheel::{Instant, ManualHost, building};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let deadline = host.timer().now() + Duration::from_secs(1);
/// building::continue_at(host.timer(), deadline, "the next page", || println!("page 2"))?;
/// host.advance(Duration::from_secs(1));
/// assert_eq!(host.timer().stats().ran, 1);
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
///
/// # Errors
/// Those of [`run_soon`].
pub fn continue_at(
    timer: &Timer,
    deadline: Instant,
    name: &'static str,
    task: impl FnOnce() + Send + 'static,
) -> Result<(), ScheduleError> {
    let job = Job::Task(Box::new(Named { name, task }));
    timer.go_on_at(deadline, job).map(drop)
}

/// Runs `task` once `delay` has passed, like [`Timer::schedule`], under `name` in logs and statistics:
/// for a function that wraps one of the caller's.
///
/// ```
/// use countwheel::{ManualHost, building};
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// building::schedule_named(host.timer(), Duration::from_secs(1), "flush", || ())?;
/// assert_eq!(host.timer().stop().unfired[0].name(), "flush");
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
///
/// # Errors
/// Those of [`Timer::schedule`].
pub fn schedule_named(
    timer: &Timer,
    delay: Duration,
    name: &'static str,
    task: impl FnOnce() + Send + 'static,
) -> Result<Timeout, ScheduleError> {
    timer.after(delay, Job::Task(Box::new(Named { name, task })))
}

/// Makes sure that the timer has a host: starts its thread, as the first task would. On a timer that
/// has stopped it does nothing, since a pattern says in its own words that it is closed.
///
/// ```
/// use countwheel::{Timer, building};
///
/// let timer = Timer::new();
/// building::start_host(&timer)?;
/// timer.stop();
/// building::start_host(&timer)?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// What the system says if it cannot start a thread.
pub fn start_host(timer: &Timer) -> std::io::Result<()> {
    timer.host()
}

/// An empty wheel like those of the timer: the same ticks, laid out in the same way.
///
/// ```
/// use countwheel::{Driver, Timer, building};
///
/// let wheel: Driver<&str> = building::driver(&Timer::new());
/// assert!(wheel.is_empty());
/// ```
#[must_use]
pub fn driver<T>(timer: &Timer) -> Driver<T> {
    timer.engine().shards.hub().driver()
}

/// How long a tick of the timer is.
///
/// ```
/// use countwheel::{Resolution, Timer, building};
/// use std::time::Duration;
///
/// let resolution = Resolution::new(Duration::from_millis(5))?;
/// let timer = Timer::builder().resolution(resolution).build();
/// assert_eq!(building::tick_duration(&timer), Duration::from_millis(5));
/// # Ok::<(), countwheel::ResolutionError>(())
/// ```
#[must_use]
pub fn tick_duration(timer: &Timer) -> Duration {
    timer.engine().shards.hub().resolution.tick_duration()
}

/// The name of the timer, by which it is known in logs.
///
/// ```
/// use countwheel::{Timer, building};
///
/// let timer = Timer::builder().thread_name("sessions").build();
/// assert_eq!(building::timer_name(&timer), "sessions");
/// ```
#[must_use]
pub fn timer_name(timer: &Timer) -> &str {
    &timer.engine().name
}
