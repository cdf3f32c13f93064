//! Timers on the real clock that threads share, all measured in the same way.
//!
//! The other workloads compare structures under virtual time, on one thread. These workloads
//! compare the calls of a program: with their locks, thread, clock and wake-ups.

mod java;
mod peer;
mod results;
mod run;
mod tables;
mod words;
mod workload;

pub(crate) use peer::{Name, tokio_runtime};
pub(crate) use results::Threaded;
pub(crate) use run::{Plan, check_all, measure_here, run};
pub(crate) use tables::grids;
pub(crate) use words::{explain, peers};
pub(crate) use workload::Workload;
