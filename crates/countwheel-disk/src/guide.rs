//! The guide to durable timers in a program. Every example in it is run as a test.
//!
//! | page | about |
//! |---|---|
//! | [first timer](first_timer) | names, deadlines, payloads, the verbs, recurring timers |
//! | [which store](stores) | a directory, memory for tests, and a PostgreSQL |
//! | [handlers and threads](handlers) | which kinds there are, where each runs, which may wait |
//! | [at least once](repeats) | what causes a repeat, and how a receiver recognises it |
//! | [retry policies](retries) | delays, limits, dead timers |
//! | [testing] | a month in a moment, a crash, no sleeping |
//! | [restart and another machine](restarts) | overdue timers, two clocks, moving a directory |
//! | [snapshots, check and repair](snapshots) | backups, damage, scrubs |
//! | [sizes](sizing) | disk, memory, threads: what they are, and what changes them |
//!
//! The guide to timers in a process is the module `guide` of the crate `countwheel-patterns`.

/// Names, deadlines, payloads, the verbs, recurring timers.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/first_timer.md")]
pub mod first_timer {}

/// A directory, memory for tests, and a PostgreSQL.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/stores.md")]
pub mod stores {}

/// Which kinds of handlers there are, where each runs, which may wait.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/handlers.md")]
pub mod handlers {}

/// What causes a repeat, and how a receiver recognises it.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/repeats.md")]
pub mod repeats {}

/// Delays, limits, dead timers.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/retries.md")]
pub mod retries {}

/// A month in a moment, a crash, no sleeping.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/testing.md")]
pub mod testing {}

/// Overdue timers, two clocks, moving a directory.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/restarts.md")]
pub mod restarts {}

/// Backups, damage, scrubs.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/snapshots.md")]
pub mod snapshots {}

/// What disk, memory and threads are taken, and what changes that.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/sizing.md")]
pub mod sizing {}
