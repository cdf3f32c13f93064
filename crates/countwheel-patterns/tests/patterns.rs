//! What the patterns promise, on a clock moved by hand: nothing here sleeps.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "../../countwheel/tests/support/mod.rs"]
mod support;

#[path = "patterns/batcher.rs"]
mod batcher;
#[path = "patterns/crowd.rs"]
mod crowd;
#[path = "patterns/deadline.rs"]
mod deadline;
#[path = "patterns/delay_queue.rs"]
mod delay_queue;
#[path = "patterns/delayed_operations.rs"]
mod delayed_operations;
#[path = "patterns/expiring.rs"]
mod expiring;
#[path = "patterns/expiring_loads.rs"]
mod expiring_loads;
#[path = "patterns/foreign_code.rs"]
mod foreign_code;
#[path = "patterns/heartbeat.rs"]
mod heartbeat;
#[path = "patterns/idle.rs"]
mod idle;
#[path = "patterns/lease.rs"]
mod lease;
#[cfg(feature = "tokio")]
#[path = "patterns/on_tokio.rs"]
mod on_tokio;
#[path = "patterns/periodic.rs"]
mod periodic;
#[path = "patterns/requests.rs"]
mod requests;
#[path = "patterns/requests_ends.rs"]
mod requests_ends;
#[path = "patterns/requests_model.rs"]
mod requests_model;
#[path = "patterns/requests_races.rs"]
mod requests_races;
#[path = "patterns/retry.rs"]
mod retry;
#[path = "patterns/retry_keyed.rs"]
mod retry_keyed;
#[path = "patterns/retry_model.rs"]
mod retry_model;
#[path = "patterns/retry_policy.rs"]
mod retry_policy;
#[path = "patterns/saved.rs"]
mod saved;
#[path = "patterns/scheduled.rs"]
mod scheduled;
#[path = "patterns/supervised.rs"]
mod supervised;
#[path = "patterns/worker.rs"]
mod worker;
