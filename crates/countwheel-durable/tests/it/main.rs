//! The durable timers from outside: one program, since each program is linked by itself.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod backup;
mod batch;
mod beside;
mod boots;
mod callbacks;
mod clocks;
mod crash_loops;
mod directory;
mod disk_store;
mod elsewhere;
mod engine;
mod full_disk;
#[cfg(feature = "planted-bugs")]
mod fuzz;
mod golden;
mod halves;
mod log;
mod memory;
mod overdue;
mod recurring;
mod rescue;
mod runner;
mod scrub;
mod settings;
mod shards;
mod simulated;
mod starts;
mod support;
mod tables;
mod together;
mod troubles;
mod unreadable;
mod window;
