//! Countwheel's store in a PostgreSQL.
//!
//! [`PostgresStore::make`] makes the tables of a cluster of shards in one schema. [`PostgresStore`] is a
//! [`Store`](countwheel_durable::store::Store), so the engine of `countwheel-durable` runs on it as on a
//! disk:
//!
//! ```no_run
//! use std::sync::Arc;
//! use countwheel_durable::{Attempt, Config, Outcome, SystemClock, Timers};
//! use countwheel_postgres::{PostgresOptions, PostgresStore};
//!
//! let store = PostgresStore::open(&PostgresOptions::new("postgres://timers@127.0.0.1/timers"))?;
//! let (shards, handler) = (store.shards(), |_: &Attempt| Outcome::done());
//! let (clock, config) = (Arc::new(SystemClock::new()), Config::default());
//! let timers = Timers::open_divided(store, shards, shards.all(), handler, clock, config)?;
//! # drop(timers);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds
//!
//! - **One owner a shard.** Taking a shard gives it a new token. A commit names the token in the
//!   statement that writes, so a statement that arrives late, from an owner that was replaced, changes
//!   nothing.
//! - **Certainty.** Each commit inserts a numbered row of its own, the turn. A commit whose answer is
//!   lost is sent again. The turn's row says whether it was done, so it is done once.
//! - **A lost tail is noticed.** A commit needs the turn before its own. A server that forgot turns it
//!   had acknowledged refuses the next one, and the shard is lost aloud.
//! - **Nothing starts while the database is away**, since the claim of an attempt is a commit.
//!
//! # Cost
//!
//! A turn of a shard costs one exchange for what it reads and one for what it commits. Commits of
//! several shards that wait together are one statement.

mod bits;
mod body;
mod checks;
mod commit;
#[cfg(feature = "conformance")]
pub mod conformance;
mod counts;
mod departing;
mod error;
mod front;
mod hash;
mod keeper;
mod link;
mod migrate;
mod moving;
mod number;
mod options;
mod planted;
mod read;
mod registry;
mod restored;
mod ring;
mod rows;
mod schema;
mod server;
mod session;
mod snapshots;
mod sql;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod tls;

use std::time::Duration;

pub use departing::{Departure, ShardEnd};
pub use error::PostgresError;
pub use moving::{
    Arrival, ArrivalLane, GivenUpMove, MoveEnd, MoveState, MoveToken, NoToken, Tried, give_up_move,
    settle_move, shown_url,
};
pub use options::PostgresOptions;
#[cfg(feature = "planted-bugs")]
pub use planted::{PlantedBug, plant};
pub use registry::PostgresRegistry;
pub use restored::Restored;
pub use server::PostgresServer;
pub use store::PostgresStore;

/// How long one step of an opening may take.
const STEP: Duration = Duration::from_secs(10);

/// The example of the crate's README is compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
