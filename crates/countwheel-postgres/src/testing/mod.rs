//! A server of one's own, and what can happen to it: for tests, proofs and measurements.

#![expect(
    clippy::disallowed_methods,
    reason = "a proxy and a server are waited for in real time"
)]

mod mistake;
mod proxy;
mod server;

pub use mistake::Mistake;
pub use proxy::{Cut, Proxy};
pub use server::{NoServer, Server};
