//! A server of one's own, a simulated one, and what can happen to them: for tests, proofs and
//! measurements.

#![expect(
    clippy::disallowed_methods,
    reason = "a server is waited for in real time"
)]

mod histories;
mod leases;
mod server;
mod simulated;

pub use histories::{SameAnswers, different_answers, same_answers};
pub use leases::{Leases, leases};
pub use server::{NoServer, Server};
pub use simulated::{LostOfShard, SimulatedFaults, SimulatedPostgres};

/// What every session of the store has set, as SQL.
pub const SESSION: &str = crate::link::SESSION;
