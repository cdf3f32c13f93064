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
//! A [`Timer`] is for many short-lived timers: request timeouts, heartbeats, retries, expiry.
//! Schedule and cancel take constant time, however many tasks are pending. A timer promises:
//!
//! - **Never early.** A task runs once the clock has reached its deadline, to the nanosecond.
//!   Rounding to ticks makes a task late by less than one tick.
//! - **In order.** Tasks start by tick, and within a tick in the order in which one thread has
//!   scheduled them. The same holds after a stall, when every overdue task runs once.
//! - **No ticking.** The one thread sleeps until the next deadline, or for ever.
//! - **Any delay**, from [`Duration::ZERO`](std::time::Duration::ZERO) to
//!   [`Duration::MAX`](std::time::Duration::MAX), without an error or a special case.
//! - **Nothing lost.** Every added task runs, is cancelled or is given back by the stop: exactly
//!   one of them, through every race. See [`Stats`].
//!
//! # What it is not
//!
//! A timer is not real-time: the machine may be late, and a timer measures lateness without
//! preventing it. A timer forgets everything when the process ends. It knows no calendar: nothing
//! here is due "at nine", and setting the wall clock has no effect.
//!
//! # Ways in
//!
//! | you want | take |
//! |---|---|
//! | a task to run later | [`Timer::schedule`], whose handle is a [`Timeout`] |
//! | a value to arrive later | [`Timer::schedule_send`] |
//! | async code to wait | [`Timer::sleep`], [`Timer::timeout`], [`Timer::interval`], on any runtime |
//! | timers with names, to set, move and remove | [`KeyedTimer`] |
//! | retries, periodic tasks, heartbeats, deadlines, delay queues, expiring maps | the crate `countwheel-patterns` |
//! | to build such a pattern yourself | [`building`] |
//! | no thread, but a tokio runtime, and its clock | `Timer::on_tokio` |
//! | no thread, but a runtime | [`TimerBuilder::build_hosted`] |
//! | no waiting, in tests and simulations | [`ManualHost`], on a [`ManualClock`] |
//! | the state machine alone, in a loop of your own | [`Driver`] |
//!
//! [`TimerBuilder`] has the options: the length of a tick, the executor and the rule for a full
//! one, the limit on pending tasks. [`Stop`] says how a timer ends.
//!
//! # The guide
//!
//! The module `guide` of `countwheel-patterns` leads from the first ten lines to tuning, with a
//! tested example for everything.
//!
//! # Words
//!
//! - **tick**: the unit in which deadlines are filed; its length is the [`Resolution`].
//! - **deadline**: the point in time at which something is due; never a duration.
//! - **timeout**: a duration, or the handle of a scheduled task, [`Timeout`]; never a point.
//! - **lateness**: the moment a task was taken to run minus its deadline; never negative.
//! - **host**: the thread, the future or the manual host that looks at the clock when a deadline
//!   comes.
//! - **executor**: the place where tasks then run, see [`Executor`].
//!
//! # Features
//!
//! None is on by default.
//!
//! - `serde`: [`Timestamp`] and [`SavedEntry`] as data.
//! - `stream`: an [`Interval`] is a `Stream` of the crate `futures-core`.
//! - `tokio`: `Timer::on_tokio`, a timer that a tokio runtime hosts, by the runtime's clock;
//!   `TokioExecutor`, which runs tasks on such a runtime. (Async timers need no feature and no tokio.)
//! - `tsc`: `TscClock`, which is cheaper to read than the system's clock.

#![forbid(unsafe_code)]

mod builder;
pub mod building;
mod concurrent;
mod driver;
mod engine;
mod executor;
mod future;
mod host;
mod keyed;
mod resolution;
mod stats;
mod stop;
mod sync;
mod task;
mod timeout;
mod timer;
mod watchdog;

pub use builder::TimerBuilder;
pub use countwheel_core::{SlotLoad, Tick, TimerKey};
#[cfg(feature = "tsc")]
pub use countwheel_time::TscClock;
pub use countwheel_time::{
    BootId, By, Clock, ClockReading, Histogram, Instant, ManualClock, SystemClock, Timestamp,
    TimestampError,
};
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
#[cfg(feature = "tokio")]
pub use host::tokio::TokioClock;
pub use keyed::{
    KeyedEntry, KeyedStats, KeyedTimer, Move, SavedEntry, SetError, WeakKeyedTimer, When,
};
pub use resolution::{Resolution, ResolutionError};
pub use stats::{RunningTask, ShardLoad, SlowTask, Snapshot, Stats};
pub use stop::{Stop, Stopped, Stopping};
pub use task::Task;
pub use timeout::{Timeout, TimeoutGuard};
#[doc(hidden)]
pub use timer::pretend_to_be_thread;
pub use timer::{NoRuntime, ScheduleError, Timer, TimerStartError, WeakTimer};
pub use watchdog::{Complaint, Health, Watchdog, WatchdogGuard};

// Not a part of what is exported: where threads meet, a time-out is one of these.
use countwheel_time::Patience;

/// The example of the README is compiled and run as well.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The example of the crate's README is compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeOfCrate;
