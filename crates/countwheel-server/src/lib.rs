//! Durable timers over HTTP: the server and the command line of `countwheel`.
//!
//! [`api`] faces the callers, [`deliver`] the receivers. The timers themselves are those of
//! `countwheel-durable`.

mod accept;
mod answered;
pub mod api;
mod bodies;
pub mod callers;
pub mod cli;
mod cluster;
pub mod config;
mod dashboard;
pub mod deliver;
mod descriptors;
pub mod dumps;
mod echo;
pub mod egress;
mod events;
mod failures;
mod flow;
mod framing;
mod front;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod gather;
pub mod guard;
mod job;
mod jobs;
mod leftover;
#[cfg(test)]
mod limits;
pub mod listen;
pub mod maintain;
pub mod memory;
mod metrics;
pub mod moving;
mod nodes;
mod places;
mod pool;
mod pull;
mod quotas;
mod resolver;
mod resources;
mod roots;
mod scrub;
pub mod server;
mod shown;
mod shutdown;
mod streams;
mod tally;
mod tls;
pub mod trace;
mod traced;
mod wishes;
mod word;

pub use countwheel_client as client;
pub use countwheel_client::time;

/// The version of the program, as the banner, the metrics and the deliveries name it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The example of the crate's README is compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
