//! The stores by themselves, without an engine: lists of commits, upkeep, faults and ends of the
//! process, against a store in memory that knows what was acknowledged.
//!
//! ```
//! use countwheel_sim::machine::{Kind, Machine};
//! use countwheel_sim::stores::{live, script};
//!
//! let tally = live(&Machine::new(Kind::Log, 7), &script::life(7, 20))
//!     .unwrap_or_else(|broken| panic!("{}", broken.what));
//! assert!(tally.audits > 0);
//! ```

mod answers;
pub mod bytes;
pub mod calls;
pub mod copies;
pub mod histories;
mod life;
pub mod makings;
pub mod meanwhile;
pub mod mixes;
#[cfg(feature = "planted-bugs")]
pub mod recipes;
pub mod removed;
mod rescue;
pub mod script;
pub mod scrub;
pub mod starts;

pub use answers::Answers;
pub use life::{Broken, Event, FAILURES, Tally, live, shrink, tail};
