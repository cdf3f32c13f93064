//! What both sides are told, and the seams to what they know nothing of.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_cluster::NodeId;
use countwheel_durable::store::Shard;
use countwheel_durable::{Asked, Counted, Timers};

use crate::PeerTls;

/// Who owns which shard, as this node has last heard.
pub trait Owners: Send + Sync {
    /// The owner of a shard and where other nodes reach it, `host:port`; `None` if there is none, or if it
    /// cannot be reached.
    fn owner(&self, shard: Shard) -> Option<(NodeId, String)>;

    /// Another number whenever any owner has changed.
    fn version(&self) -> u64;

    /// Under which id this node has joined last, if not under [that](PeersConfig::me) which it was started
    /// with: one whose lease was over for long has to join again.
    fn me(&self) -> Option<NodeId> {
        None
    }
}

/// Takes what is answered to a [word](crate::Forwarder::say) of another node.
pub type TellWord = Box<dyn FnOnce(Option<Vec<u8>>) + Send>;

/// Where questions are answered that are about shards of this node.
pub trait Here: Send + Sync {
    /// Answers what is asked for about one shard, later or at once, but never through another node:
    /// [`NotOwned`](countwheel_durable::TimerError::NotOwned) if the shard is not owned here. Must not
    /// block.
    fn ask(&self, shard: Shard, asked: Asked);

    /// How many timers there are in those of the shards that are owned here and can be read. May block. By
    /// default nothing is counted.
    fn counts(&self, shards: &[Shard]) -> BTreeMap<Shard, Counted> {
        let _nothing_is_counted = shards;
        BTreeMap::new()
    }

    /// Answers a [word](crate::Forwarder::say) of another node. `None`: it is not understood. Must not block. By default no
    /// word is.
    fn word(&self, from: NodeId, word: &[u8]) -> Option<Vec<u8>> {
        let _nobody_listens = (from, word);
        None
    }

    /// Answers a word at once or later, by a call of `tell` that must not block. If `tell` is dropped, the other node waits
    /// for as long as it said. By default it is what [`word`](Self::word) answers.
    fn word_later(&self, from: NodeId, word: &[u8], tell: TellWord) {
        tell(self.word(from, word));
    }
}

impl Here for Timers {
    fn ask(&self, shard: Shard, asked: Asked) {
        self.ask_here(shard, asked);
    }

    fn counts(&self, shards: &[Shard]) -> BTreeMap<Shard, Counted> {
        self.counts_here(shards).unwrap_or_default()
    }
}

/// What a [`Forwarder`](crate::Forwarder) and a [`PeerServer`](crate::PeerServer) are told.
///
/// ```
/// use countwheel_cluster::NodeId;
/// use countwheel_peers::PeersConfig;
/// use std::time::Duration;
///
/// let config = PeersConfig {
///     answer_within: Duration::from_secs(5),
///     ..PeersConfig::new(0x5eed, NodeId(7))
/// };
/// assert!(config.tls.is_none());
/// ```
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// The cluster, as its store has it: nodes of another are refused.
    pub cluster: u64,
    /// This start of this node, until [`Owners::me`] says another.
    pub me: NodeId,
    /// `None`: other nodes are called, and listened to, on loopback only.
    pub tls: Option<PeerTls>,
    /// How long a question may wait for its owner and for the answer. Default 15 s: a takeover at the usual
    /// TTL takes 6 s, a hand-over at most 10 s.
    pub answer_within: Duration,
    /// How long to wait before a question that was refused is sent again. Default 50 ms.
    pub retry_after: Duration,
    /// How long a peer may send nothing, or take nothing of what is sent; of one that asks this node, twice
    /// as long. Five times within it each says that it is there. Default 5 s.
    pub silence: Duration,
    /// How many requests may wait for one peer, sent or not. Default 16,384.
    pub max_waiting: usize,
    /// How long they may be together, as they are written. Default 64 MiB.
    pub max_waiting_bytes: usize,
    /// How many connections of others there may be. Default 256.
    pub max_connections: usize,
}

impl PeersConfig {
    /// The defaults for a node of a cluster, without TLS.
    #[must_use]
    pub fn new(cluster: u64, me: NodeId) -> Self {
        Self {
            cluster,
            me,
            tls: None,
            answer_within: Duration::from_secs(15),
            retry_after: Duration::from_millis(50),
            silence: Duration::from_secs(5),
            max_waiting: 16_384,
            max_waiting_bytes: 64 << 20,
            max_connections: 256,
        }
    }
}
