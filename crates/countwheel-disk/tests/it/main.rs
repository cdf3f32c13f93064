//! The store on a disk from outside: one program, since each program is linked by itself.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod backup;
mod beside;
mod check_and_repair;
mod directory;
mod disk_store;
#[cfg(feature = "planted-bugs")]
mod fuzz;
mod golden;
mod growth;
mod log;
mod scrub;
mod simulated;
mod starts;
mod support;
mod tables;
mod typed;
mod unreadable;
