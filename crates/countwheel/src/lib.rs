//! Timers in a process, on timing wheels: never early, and asleep while nothing is due.
//!
//! ```
//! use countwheel::Timer;
//! use std::time::Duration;
//!
//! let timer = Timer::new();
//! timer.schedule(Duration::from_millis(1), || println!("done"))?;
//! let timeout = timer.schedule(Duration::from_secs(30), || println!("too slow"))?;
//! assert!(timeout.cancel(), "it will never run");
//!
//! timer.stop();
//! let refused = timer.schedule(Duration::from_secs(1), || println!("too late"));
//! assert!(matches!(refused, Err(countwheel::ScheduleError::Closed(_task))));
//! # Ok::<(), countwheel::ScheduleError>(())
//! ```
//!
//! # What it is
//!
//! For many short-lived timers: request timeouts, heartbeats, retries, expiry. To schedule
//! and to cancel take constant time, however many are pending. And it promises:
//!
//! - **Never early.** A task runs once the clock has reached its deadline, to the
//!   nanosecond. Rounding to ticks makes it late by less than one tick.
//! - **In order.** By tick, and within a tick as scheduled; also after a stall, when
//!   everything overdue runs once.
//! - **No ticking.** The one thread sleeps until the next deadline, or for ever.
//! - **Any delay** from [`Duration::ZERO`](std::time::Duration::ZERO) to
//!   [`Duration::MAX`](std::time::Duration::MAX), without an error or a special case.
//! - **Nothing lost.** Whatever was added has run, was cancelled or is given back by the
//!   stop, exactly, through every race: see [`Stats`].
//!
//! # What it is not
//!
//! It is not real-time: the machine may be late, and lateness is measured, not prevented. It
//! forgets everything when the process ends. It knows no calendar: nothing here is due "at
//! nine", and the wall clock may be set without any effect.
//!
//! # Three ways in
//!
//! - [`Timer`] runs tasks on a thread of its own.
//! - [`ManualHost`] is the same timer driven by hand on a [`ManualClock`]: for tests and
//!   simulations, where a month takes a millisecond.
//! - [`Driver`] is the state machine below both, for a loop of your own that knows the time
//!   and does the waiting.
//!
//! # Words
//!
//! - **tick**: the unit in which deadlines are filed; its length is the [`Resolution`].
//! - **deadline**: the point in time at which something is due; never a duration.
//! - **timeout**: a duration, or the handle of a scheduled task, [`Timeout`]; never a point.
//! - **lateness**: the moment a task was taken to run minus its deadline; never negative.

#![forbid(unsafe_code)]

mod builder;
mod clock;
mod concurrent;
mod driver;
mod engine;
mod executor;
mod future;
mod host;
mod keyed;
mod planted;
mod resolution;
mod stats;
mod stop;
mod sync;
mod task;
mod timeout;
mod timer;
mod watchdog;

pub use builder::TimerBuilder;
#[cfg(feature = "tsc")]
pub use clock::TscClock;
pub use clock::{Clock, Instant, ManualClock, SystemClock, Timestamp};
pub use countwheel_core::{SlotLoad, Tick, TimerKey};
pub use driver::{Driver, Fired, Layout, LayoutError, TicksPerWheel, Unfired};
#[cfg(feature = "tokio")]
pub use executor::tokio::TokioExecutor;
pub use executor::{Executor, Overload, Pool, PoolError, Work};
pub use future::{
    Elapsed, Interval, MissedTicks, PeriodError, Sleep, SleepError, TimeoutError, WithTimeout,
    interval, sleep, timeout,
};
pub use host::manual::ManualHost;
pub use host::task::HostFuture;
pub use keyed::{KeyedEntry, KeyedStats, KeyedTimer, Move, SetError, WeakKeyedTimer};
pub use resolution::{Resolution, ResolutionError};
pub use stats::{Histogram, RunningTask, ShardLoad, SlowTask, Snapshot, Stats};
pub use stop::{Stop, Stopped, Stopping};
pub use task::Task;
pub use timeout::{Timeout, TimeoutGuard};
#[doc(hidden)]
pub use timer::pretend_to_be_thread;
pub use timer::{ScheduleError, Timer};
pub use watchdog::{Complaint, Health, Watchdog, WatchdogGuard};

/// The example of the README is compiled and run as well.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
