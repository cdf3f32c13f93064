//! Patterns on our timers against the same patterns on others: heartbeats, deadlines of requests, a
//! map whose entries expire.
//!
//! The measurements run on the real clock, like the workloads with threads, and in the same manner.

mod heartbeat;
mod map;
mod name;
mod request;
mod results;
mod run;
mod words;
mod workload;

pub(crate) use name::Name;
pub(crate) use results::Patterns;
pub(crate) use run::{Plan, check_all, measure_here, run};
pub(crate) use words::{explain, grids, peers};
pub(crate) use workload::Workload;
