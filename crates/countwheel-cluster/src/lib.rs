//! The nodes of a Countwheel cluster.
//!
//! Each shard has one owner at a time. The registry, in the database of the store, says who; leases end by
//! the clock of that database, and the database refuses the commits of everybody else.

mod clock;
mod control;
mod gather;
mod loans;
mod node;
mod place;
mod planted;
mod registry;

pub use clock::{ClusterClock, Offset};
pub use control::{Action, Control, Looked, NodeConfig, Reason, Standing, Why};
pub use gather::{Gathering, OFFER, Offers, Taken};
pub use loans::{Borrower, Borrowing, LOAN, Lender, Lending, Lends, Lent, Limited, Usage, home};
pub use node::{Happening, NodeCounts, NodeEvent, NodeHandle, NodeRunner, ShardMap};
pub use place::place;
#[cfg(feature = "planted-bugs")]
pub use planted::{PlantedBug, plant};
pub use registry::{Holding, Member, Node, NodeId, Registry, RegistryError, View};

/// The example of the crate's README is compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
