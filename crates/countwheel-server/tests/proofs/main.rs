//! The proofs with the real program, too long for every `cargo test`: each is ignored here
//! and run by a command of its own, see `cargo xtask`.
//!
//! One program, so that it is built and linked once for all of them. Those that mount file
//! systems need root; `cargo xtask` gives them name spaces of their own, where nothing is left
//! when they end in any way.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod harness;

mod api;
mod builds;
mod clients;
mod clock;
mod crashes;
mod damage;
mod database_full;
mod faults;
mod january;
mod kill;
mod nodes;
mod nodes_long;
mod pages;
mod patroni;
mod postgres;
mod power;
mod signatures;
mod soak;
mod workers;
