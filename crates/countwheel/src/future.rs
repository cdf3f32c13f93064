//! Time for async code, on any runtime: to sleep, to stop waiting, to keep a rhythm.

mod global;
mod interval;
mod limit;
mod sleep;

pub use global::{Elapsed, interval, sleep, timeout};
pub use interval::{Interval, MissedTicks, PeriodError};
pub use limit::{TimeoutError, WithTimeout};
pub use sleep::{Sleep, SleepError};
