//! A server of one's own: for tests, proofs and measurements.

#![expect(
    clippy::disallowed_methods,
    reason = "a server is waited for in real time"
)]

mod server;

pub use server::{NoServer, Server};
