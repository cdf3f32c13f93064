//! What is built on timers, against the same built on others: heartbeats, deadlines of
//! requests, a map whose entries expire.
//!
//! On the real clock like the workloads with threads, and measured in the same manner.

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
