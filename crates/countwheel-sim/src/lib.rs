//! The one deterministic simulation: seed in, verdict out.
//!
//! The simulation runs the product's own engine, scheduler, window and stores under a simulated
//! clock, on a simulated disk that loses unsynced data, with a store that can crash at any commit
//! and with receivers that fail. A [`model::Model`] predicts every answer and checks every attempt:
//! no timer is early; accepted = done + removed + dead + pending, as sets; no attempt starts after
//! an accepted remove; every acknowledged change survives a crash. [`world::run`] runs a seed,
//! [`year::run`] a year of real departures, [`ages::run`] a day at full load and a hundred years,
//! [`shards::run`] nodes that take the shards of one store from each other, [`nodes::run`] nodes that find
//! each other in a registry and share them, [`flows::run`] engines whose timers wait for flows with limits,
//! [`loans::run`] nodes that lend each other the places of such limits, [`gathers::run`] nodes that lease for each
//! other's workers, [`streams::run`] nodes that copy each other's events for the streams of clients.
//!
//! The window of the durable engine is sorted maps by queue, and no wheel: the far end of it is given
//! up when memory is used up, time goes back when the wall clock does, and the entries of a queue are
//! taken when the queue's turn comes. So what the simulation of the engine runs has no wheel in it.
//!
//! Timers in a process, which do stand on wheels, have proofs of their own: [`timers`] simulates them
//! against a sorted map, [`stress`] lets real threads loose on them, [`idle`] watches them do nothing.
//!
//! ```
//! use countwheel_sim::world::{self, Options};
//!
//! let report = world::run(7, &Options { turns: 50, ..Options::default() })
//!     .unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.turns >= 50);
//! ```

pub mod ages;
pub mod audit;
pub mod due_counts;
mod events;
mod failure;
pub mod flows;
pub mod gathers;
pub mod idle;
pub mod jobs;
mod keeps;
pub mod leases;
pub mod loans;
pub mod machine;
pub mod model;
pub mod nodes;
#[cfg(feature = "planted-bugs")]
pub mod planted;
mod random;
pub mod receipts;
pub mod rot;
mod rules;
pub mod sabotage;
pub mod shards;
mod stepped;
pub mod stores;
pub mod streams;
pub mod stress;
pub mod timers;
pub mod world;
pub mod year;

pub use failure::{Failure, panic_text};
pub use keeps::Keeps;
pub use random::Random;
pub use rules::QueueRules;
pub use stepped::Stepped;
