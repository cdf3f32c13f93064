//! What the client asks of a cluster, and what it is answered.

use std::fmt;

use countwheel_durable::Precondition;
use countwheel_time::Timestamp;
use hyper::Method;
use serde::Deserialize;
use serde_json::json;

use super::{Answer, Client, ClientError, escape, maybe_time, time};

impl Client {
    /// Asks a node what there is of its cluster, and what happened.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn cluster(&self) -> Result<Answer<ClusterGlance>, ClientError> {
        self.send(Method::GET, "/v1/cluster", None, Precondition::None)
            .await
    }

    /// Asks for the nodes of a cluster.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn cluster_nodes(&self) -> Result<Answer<ClusterNodes>, ClientError> {
        self.send(Method::GET, "/v1/cluster/nodes", None, Precondition::None)
            .await
    }

    /// Asks for the shards of a cluster.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn cluster_shards(&self) -> Result<Answer<ClusterShards>, ClientError> {
        self.send(Method::GET, "/v1/cluster/shards", None, Precondition::None)
            .await
    }

    /// Drains a node: it gives all its shards away, and gets none.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn drain_node(&self, node: &str) -> Result<Answer<NodeMarked>, ClientError> {
        self.mark_node(node, "drain").await
    }

    /// Lets a node have shards again.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn undrain_node(&self, node: &str) -> Result<Answer<NodeMarked>, ClientError> {
        self.mark_node(node, "undrain").await
    }

    async fn mark_node(&self, node: &str, verb: &str) -> Result<Answer<NodeMarked>, ClientError> {
        let path = format!("/v1/cluster/nodes/{}/{verb}", escape(node));
        self.send(Method::POST, &path, None, Precondition::None)
            .await
    }

    /// Asks for a shard to go to a node, and to stay there while that lives and is not drained; `None` ends
    /// that.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn move_shard(
        &self,
        shard: u16,
        node: Option<&str>,
    ) -> Result<Answer<ShardMoved>, ClientError> {
        let path = format!("/v1/cluster/shards/{shard}/move");
        let body = json!({ "node": node });
        self.send(Method::POST, &path, Some(body), Precondition::None)
            .await
    }

    /// Asks a service to move all its timers to a cluster. Says how far it has come: the move goes on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn begin_move(&self, to: &MoveTarget) -> Result<Answer<MoveProgress>, ClientError> {
        let mut body = json!({ "store": to.store, "schema": to.schema });
        if let Some(ca) = &to.store_ca {
            body["store_ca"] = json!(ca);
        }
        if to.accept_loss {
            body["accept_loss"] = json!(true);
        }
        self.send(Method::POST, MOVE_TO, Some(body), Precondition::None)
            .await
    }

    /// Asks how far the last move of all timers has come.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn move_progress(&self) -> Result<Answer<MoveProgress>, ClientError> {
        self.send(Method::GET, MOVE_TO, None, Precondition::None)
            .await
    }

    /// Ends all wishes of [`move_shard`](Self::move_shard), or says which shards would move then.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn rebalance(&self, dry_run: bool) -> Result<Answer<Rebalanced>, ClientError> {
        let body = json!({ "dry_run": dry_run });
        self.send(
            Method::POST,
            "/v1/cluster/rebalance",
            Some(body),
            Precondition::None,
        )
        .await
    }
}

const MOVE_TO: &str = "/v1/cluster/move-to";

/// Where timers are to be moved.
#[derive(Clone, PartialEq, Eq)]
pub struct MoveTarget {
    /// The URL of the database. It may have a password, so it is not shown.
    pub store: String,
    /// The schema with the tables.
    pub schema: String,
    /// A file on the service's machine, with what the certificate of the database has to come from.
    pub store_ca: Option<String>,
    /// Whether a database is taken with which acknowledged timers may be lost.
    pub accept_loss: bool,
}

impl fmt::Debug for MoveTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MoveTarget")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

/// How far a move of all timers has come.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct MoveProgress {
    /// `none`, `copying`, `following`, `holding`, `taking`, `moved` or `given_up`.
    pub state: String,
    /// Where to, without a password.
    pub target: Option<String>,
    /// How many timers were written.
    pub copied: u64,
    /// How many of them were changed since.
    pub left: u64,
    /// For how long it has gone on.
    pub took_ms: u64,
    /// For how long requests were held.
    pub held_ms: Option<u64>,
    /// How many attempts ran for longer than they were waited for.
    pub interrupted: u64,
    /// Why it was given up, or waits.
    pub reason: Option<String>,
}

impl MoveProgress {
    /// Whether the timers are in the cluster and its nodes answer.
    #[must_use]
    pub fn is_moved(&self) -> bool {
        self.state == "moved"
    }

    /// Whether the timers stay where they are.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.state == "given_up"
    }
}

/// A cluster at a glance, as one of its nodes sees it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct ClusterGlance {
    /// The node that says so.
    pub node: String,
    /// When it looked, by the clock of the database.
    #[serde(deserialize_with = "time")]
    pub as_of: Timestamp,
    /// How many nodes there are.
    pub nodes: NodeCounts,
    /// How many shards there are.
    pub shards: ShardCounts,
    /// How long the lease of that node goes on.
    pub lease_left_ms: u64,
    /// How far the clock of its machine is ahead of that of the database.
    pub clock_offset_ms: i64,
    /// The database.
    pub database: ClusterDatabase,
    /// What happened last, the latest first.
    pub events: Vec<ClusterEvent>,
}

/// Nodes by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub struct NodeCounts {
    /// Those whose lease goes on.
    pub live: usize,
    /// Those that live and give all their shards away.
    pub draining: usize,
    /// Those whose lease is over.
    pub over: usize,
}

/// Shards by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub struct ShardCounts {
    /// Those whose owner works on them.
    pub owned: usize,
    /// Those that the node that says so has yet to load.
    pub taking: usize,
    /// Those that it is about to give away.
    pub handing_over: usize,
    /// Those whose owner's lease is over.
    pub overdue: usize,
    /// Those of nobody.
    pub free: usize,
}

impl ShardCounts {
    /// All of them.
    #[must_use]
    pub const fn all(self) -> usize {
        self.owned + self.taking + self.handing_over + self.overdue + self.free
    }
}

/// How the database of a cluster does.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct ClusterDatabase {
    /// Whether it answers.
    pub reachable: bool,
    /// What it is, such as `postgres-15`.
    #[serde(default)]
    pub server: Option<String>,
    /// The synchronous standbys that are connected, if they may be seen.
    #[serde(default)]
    pub sync: Option<Vec<String>>,
    /// What a loss of its machine would cost.
    #[serde(default)]
    pub durability: Option<String>,
    /// How long somebody has kept its oldest snapshot.
    #[serde(default)]
    pub oldest_snapshot_ms: Option<u64>,
}

/// Something that happened to a shard or to a node.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct ClusterEvent {
    /// When, by the clock of the database.
    #[serde(deserialize_with = "time")]
    pub at: Timestamp,
    /// What.
    pub event: String,
    /// Which shard, if it is about one.
    #[serde(default)]
    pub shard: Option<u16>,
    /// More of it.
    pub detail: String,
}

/// The nodes of a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct ClusterNodes {
    /// When it was looked, by the clock of the database.
    #[serde(deserialize_with = "time")]
    pub as_of: Timestamp,
    /// All that have joined and not left, in order of name.
    pub nodes: Vec<ClusterNode>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct ClusterNode {
    /// Its name.
    pub node: String,
    /// `live`, `draining` or `over`.
    pub state: String,
    /// How long its lease goes on.
    pub lease_left_ms: u64,
    /// How many shards it has.
    pub shards: usize,
    /// Where callers reach it.
    pub api: String,
    /// Where other nodes reach it.
    #[serde(default)]
    pub peers: Option<String>,
    /// Of its program.
    pub version: String,
}

/// The shards of a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct ClusterShards {
    /// When it was looked, by the clock of the database.
    #[serde(deserialize_with = "time")]
    pub as_of: Timestamp,
    /// All of them, in order.
    pub shards: Vec<ClusterShard>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct ClusterShard {
    /// Its number.
    pub shard: u16,
    /// `owned`, `taking`, `handing_over`, `overdue` or `free`.
    pub state: String,
    /// Whose it is.
    #[serde(default)]
    pub owner: Option<String>,
    /// Whose it is to be.
    #[serde(default)]
    pub wanted: Option<String>,
    /// Under which number it was taken last.
    pub fence: u64,
    /// Since when its owner has it.
    #[serde(default, deserialize_with = "maybe_time")]
    pub since: Option<Timestamp>,
    /// How many timers wait or are delivered.
    #[serde(default)]
    pub pending: Option<u64>,
    /// How many are overdue; only of those of the node that says so.
    #[serde(default)]
    pub overdue: Option<u64>,
}

/// The answer to a drain of a node and to its end.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct NodeMarked {
    /// Which node.
    pub node: String,
    /// How it stands now.
    pub state: String,
    /// How many shards it has.
    pub shards: usize,
}

/// The answer to a move of a shard.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct ShardMoved {
    /// Which shard.
    pub shard: u16,
    /// Whose it is.
    #[serde(default)]
    pub owner: Option<String>,
    /// Whose it is to be; `None` leaves that to the nodes.
    #[serde(default)]
    pub wanted: Option<String>,
}

/// The answer to a rebalance.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Rebalanced {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// What moves, or would move.
    pub moves: Vec<PlannedMove>,
}

/// A shard that goes to another node.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct PlannedMove {
    /// Which.
    pub shard: u16,
    /// From which node, if one has it.
    #[serde(default)]
    pub from: Option<String>,
    /// To which.
    pub to: String,
}
