//! The seam to where the nodes are written down.

use std::fmt;
use std::time::Duration;

use countwheel_durable::store::{Fence, Shard};
use countwheel_time::Timestamp;

/// A start of a node, drawn at random: a node that is started again has another.
///
/// ```
/// use countwheel_cluster::NodeId;
///
/// assert_eq!(NodeId(7).to_string(), "00000000000000000000000000000007");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u128);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What a node says of itself when it joins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Of this start.
    pub id: NodeId,
    /// How people call it: no two nodes that live have the same.
    pub name: String,
    /// The URL of its HTTP API, as callers reach it.
    pub api: String,
    /// Where other nodes reach it, `host:port`; `None` if they cannot.
    pub peers: Option<String>,
    /// How many shards it wants in proportion to others: 1 to 1,000, usually 100.
    pub weight: u16,
    /// The version of its program.
    pub version: String,
    /// The version of its time-zone rules.
    pub zones: String,
}

/// A node as the registry has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// What it said of itself.
    pub node: Node,
    /// When its lease ends, by the clock of the registry.
    pub expires: Timestamp,
    /// Whether it is to give all its shards away.
    pub is_draining: bool,
}

/// Who has a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    /// The shard.
    pub shard: Shard,
    /// Whose it is, or is to be: a node that was given a shard has yet to take it. `None` if it was let go.
    pub owner: Option<NodeId>,
    /// The number under which it was taken last.
    pub fence: Fence,
    /// Since when its owner has it, by the clock of the registry.
    pub since: Timestamp,
    /// The name of the node that an operator wants to have it, if that lives.
    pub wanted: Option<String>,
}

/// Everything that the registry has, at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// That moment, by the clock of the registry: read before the answer came.
    pub now: Timestamp,
    /// All nodes that have joined and not left, also those whose lease is over, in order of name.
    pub members: Vec<Member>,
    /// All shards, in order.
    pub holdings: Vec<Holding>,
}

/// Why the registry did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Another node of that name lives.
    #[error(
        "a node named {name} lives, at {api}: choose another name with --node-name, or stop it"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Where the other one is.
        api: String,
    },
    /// This node has not joined, has left, or was removed after its lease had ended. Unless it has left, it can
    /// join again.
    #[error("the cluster does not know this node any more")]
    NotJoined,
    /// There is no node of that name.
    #[error("there is no node named {name}")]
    NoSuchNode {
        /// The name.
        name: String,
    },
    /// There is no such shard.
    #[error("there is no shard {}", shard.0)]
    NoSuchShard {
        /// The shard.
        shard: Shard,
    },
    /// It cannot be reached, or does not answer in time. Nothing was changed, or what was asked for was
    /// done whole; the next [look](Registry::look) shows which.
    #[error("the registry is not available: {reason}")]
    Unavailable {
        /// Why.
        reason: String,
    },
}

/// Where the nodes and the owners of shards are written down. One object for each node.
///
/// Every method may block for as long as an exchange with the database may last.
pub trait Registry: Send + Sync {
    /// Writes this node down, with a lease of `ttl` from now by the clock of the registry. From then on
    /// [`Store::acquire`](countwheel_durable::store::Store::acquire) takes a shard only if it is free, was
    /// given to this node, or if its owner's lease is over.
    ///
    /// A row of the same name whose lease is over is replaced, and its shards are free.
    ///
    /// # Errors
    /// [`RegistryError::NameTaken`] if a node of that name has a lease; [`RegistryError::Unavailable`].
    fn join(&self, node: &Node, ttl: Duration) -> Result<View, RegistryError>;

    /// Reads everything, after it has renewed the lease if `renew` says so. The store believes the lease
    /// until half a second before its end, counted by the boot clock from before this was sent. A renewal
    /// that comes after the end of the lease is believed only once the owners of this node's shards were read
    /// again.
    ///
    /// # Errors
    /// [`RegistryError::NotJoined`]; [`RegistryError::Unavailable`].
    fn look(&self, renew: bool) -> Result<View, RegistryError>;

    /// Takes those of the shards that this node may have and whose rows nobody holds, in one statement that waits
    /// for nobody. Says which;
    /// [`Store::acquire`](countwheel_durable::store::Store::acquire) goes on with them. Of the others somebody
    /// holds the row, as a commit that is under way does, or they are not this node's to take:
    /// [`take_held`](Self::take_held) finds out. What this process had of any of the shards is ended.
    ///
    /// By default it says all of them, and takes none: `acquire` does.
    ///
    /// # Errors
    /// [`RegistryError::Unavailable`]: some may be taken, and [`look`](Self::look) shows which.
    fn take(&self, shards: &[Shard]) -> Result<Vec<Shard>, RegistryError> {
        Ok(shards.to_vec())
    }

    /// Takes a shard whose row somebody held. It waits for a moment, and then ends the session that holds the row,
    /// if that is one of a node or does nothing. By default `acquire` does all of it.
    ///
    /// # Errors
    /// [`RegistryError::Unavailable`] with who holds it.
    fn take_held(&self, shard: Shard) -> Result<(), RegistryError> {
        let _acquire_takes_it = shard;
        Ok(())
    }

    /// Gives a shard that this node owns to another, or lets it go (`None`). What the owner before had
    /// under way was ended by then. Says whether it was still this node's.
    ///
    /// # Errors
    /// [`RegistryError::Unavailable`].
    fn give(&self, shard: Shard, to: Option<NodeId>) -> Result<bool, RegistryError>;

    /// Marks that a node is to give all its shards away, or that it may have shards again.
    ///
    /// # Errors
    /// [`RegistryError::NoSuchNode`]; [`RegistryError::Unavailable`].
    fn mark_draining(&self, name: &str, is_draining: bool) -> Result<(), RegistryError>;

    /// Writes down which node an operator wants to have a shard; `None` ends that wish, and `None` of all
    /// shards ends all.
    ///
    /// # Errors
    /// [`RegistryError::NoSuchNode`], [`RegistryError::NoSuchShard`]; [`RegistryError::Unavailable`].
    fn want(&self, shard: Option<Shard>, node: Option<&str>) -> Result<(), RegistryError>;

    /// Lets go of all shards of this node and removes its row. Whatever the answer, that may come to be from then
    /// on, and nothing is renewed: a node that is to join again draws another [`NodeId`].
    ///
    /// # Errors
    /// [`RegistryError::Unavailable`].
    fn leave(&self) -> Result<(), RegistryError>;
}
