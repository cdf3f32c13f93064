//! The ways between the nodes of a Countwheel cluster.
//!
//! Each shard has one owner, which alone writes to it. What is asked of any other node about that shard
//! goes to the owner: a [`Forwarder`] is where [`Timers`] send it, and a [`PeerServer`] takes it on the
//! other side.
//!
//! ```
//! use std::net::Ipv4Addr;
//! use std::sync::Arc;
//! use std::time::Duration;
//! use countwheel_cluster::NodeId;
//! use countwheel_durable::store::{MemoryStore, Shard};
//! use countwheel_durable::{Config, Shards, SystemClock, Timers, inline};
//! use countwheel_peers::{Forwarder, Owners, PeerServer, PeersConfig};
//!
//! /// All shards are one node's; elsewhere it is the cluster that says so.
//! struct Of(NodeId, String);
//!
//! impl Owners for Of {
//!     fn owner(&self, _: Shard) -> Option<(NodeId, String)> {
//!         Some((self.0, self.1.clone()))
//!     }
//!     fn version(&self) -> u64 {
//!         1
//!     }
//! }
//!
//! let (store, shards) = (MemoryStore::new(7), Shards::new(8).expect("from 1 to 1024"));
//! let open = |owned: Vec<Shard>| {
//!     let (clock, config) = (Arc::new(SystemClock::new()), Config::default());
//!     Timers::open_divided(store.clone(), shards, owned, inline(|_| ()), clock, config)
//! };
//! let (a, b) = (open((0..8).map(Shard).collect())?, open(Vec::new())?);
//! let start = |me, timers: &Timers, address: String| {
//!     let (config, owners) = (PeersConfig::new(7, me), Arc::new(Of(NodeId(1), address)));
//!     Forwarder::start(config, owners, Arc::new(timers.clone()), Arc::new(SystemClock::new()))
//! };
//! // Node 1 owns them, node 2 asks.
//! let of_a = start(NodeId(1), &a, String::new())?;
//! let server = PeerServer::start((Ipv4Addr::LOCALHOST, 0).into(), &of_a)?;
//! b.on_elsewhere(start(NodeId(2), &b, server.address().to_string())?);
//!
//! b.set(("unpaid", "order-42"), Duration::from_secs(60), "close it")?;
//! assert!(a.get(("unpaid", "order-42"))?.is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds
//!
//! - **Not done, or unknown.** A question that never left, or that its receiver refused, is held and sent
//!   again until its deadline; then it is [`ShardUnavailable`], and certainly nothing was done. A question
//!   that left and has no answer is [`Unknown`], and is never sent again.
//! - **Two hops.** A receiver that does not own the shard either sends on once.
//! - **Ours alone.** Both sides show a certificate of the cluster's authority. Without TLS there is only
//!   loopback.
//! - **Bounded.** What waits for a peer, the length of a frame, and what one connection can make its
//!   receiver hold all have limits.
//!
//! [`Timers`]: countwheel_durable::Timers
//! [`ShardUnavailable`]: countwheel_durable::TimerError::ShardUnavailable
//! [`Unknown`]: countwheel_durable::TimerError::Unknown

mod census;
mod config;
mod convert;
mod counts;
mod error;
mod forwarder;
mod frame;
mod hello;
mod link;
mod outbox;
mod planted;
mod server;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;
mod tls;
mod wire;
mod words;

pub use config::{Here, Owners, PeersConfig, TellWord};
pub use counts::{CloseReason, PeerCounts};
pub use error::PeersError;
pub use forwarder::Forwarder;
#[cfg(feature = "planted-bugs")]
pub use planted::{PlantedBug, plant};
pub use server::PeerServer;
pub use tls::{FileStamp, PeerTls};
pub use words::Word;

/// The example of the crate's README is compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
