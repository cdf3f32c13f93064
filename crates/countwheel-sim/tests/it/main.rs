//! The simulation: it repeats, it reaches what it claims to, and it notices.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod ages;
mod copies;
mod nodes;
mod rot;
mod seeds;
mod shards;
mod stores;
mod timers;
