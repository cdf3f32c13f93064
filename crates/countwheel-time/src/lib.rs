//! Time and chance: clocks that a test can move by hand, points in time, a seeded generator, a
//! histogram of durations, and retry policies.
//!
//! | you want | take |
//! |---|---|
//! | the time, replaceable in tests | a [`Clock`]: [`SystemClock`], [`ManualClock`], `TscClock` |
//! | a point on the monotonic time line | [`Instant`], in whole nanoseconds |
//! | a point in UTC, to store or to send | [`Timestamp`], in whole microseconds |
//! | an instant in UTC, and back: to write it down | a [`ClockReading`] |
//! | how far a deadline is moved | [`By`] |
//! | a duration of its text: `1h 30m`, `PT30M` | [`read_duration`] |
//! | to know whether the machine has rebooted | [`BootId`] |
//! | to wait at most so long, in real time | [`Patience`] |
//! | draws that a seed repeats | [`Random`] |
//! | the distribution of durations | [`Histogram`] |
//! | to say when to try again after a failure | a [`RetryPolicy`], a [`Preset`] of one, or the text of one: `15s,15s,30s,3m` |
//! | a lock without poison | [`locks`] |
//!
//! This crate has no timer, no wheel and no thread: timers are in the crate `countwheel`, which
//! exports the clocks again.
//!
//! ```
//! use countwheel_time::{Clock, ManualClock, Timestamp};
//! use std::time::Duration;
//!
//! let clock = ManualClock::at(Timestamp::from_micros(1_000_000));
//! clock.advance(Duration::from_secs(1));
//! assert_eq!(clock.timestamp(), Timestamp::from_micros(2_000_000));
//! ```
//!
//! # Features
//!
//! None is on by default.
//!
//! - `serde`: [`Timestamp`] as data, [`RetryPolicy`] and [`Preset`] as their texts.
//! - `tsc`: `TscClock`, which is cheaper to read than the system's clock.

#![forbid(unsafe_code)]

mod boot;
mod by;
mod clock;
mod duration;
mod histogram;
pub mod locks;
mod random;
mod reading;
mod retry;

pub use boot::BootId;
pub use by::By;
#[cfg(feature = "tsc")]
pub use clock::TscClock;
pub use clock::{
    Clock, Instant, ManualClock, Patience, SystemClock, Timestamp, TimestampError, nanos,
};
pub use duration::{DurationTextError, read_duration};
pub use histogram::Histogram;
pub use random::Random;
pub use reading::ClockReading;
pub use retry::{
    Delays, Jitter, PlannedAttempt, Preset, RetryPolicy, RetryPolicyError, RetrySettings,
    RetryTextError, Share,
};

/// The example of the crate's README is compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
