//! The ways between nodes without threads and sockets: whoever has them carries the frames, and may be late,
//! break off, or bring an answer twice.

use std::fmt;
use std::sync::Arc;

use countwheel_cluster::NodeId;
use countwheel_durable::Asked;
use countwheel_durable::store::Shard;
use countwheel_time::{Clock, Instant};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::forwarder::{Inner, Peer};
use crate::frame::{self, Writing};
use crate::server::{Asked as Questions, Going};
use crate::{Here, Owners, PeersConfig};

/// What a [`Forwarder`](crate::Forwarder) does on its thread, done by whoever has it.
///
/// ```
/// use std::sync::Arc;
/// use countwheel_cluster::NodeId;
/// use countwheel_durable::store::{MemoryStore, Shard};
/// use countwheel_durable::{
///     Asked, Config, Request, Shards, SystemClock, TimerName, Timers, inline,
/// };
/// use countwheel_peers::testing::SimulatedPeers;
/// use countwheel_peers::{Owners, PeersConfig};
///
/// struct OfNode(NodeId);
///
/// impl Owners for OfNode {
///     fn owner(&self, _: Shard) -> Option<(NodeId, String)> {
///         Some((self.0, String::new()))
///     }
///     fn version(&self) -> u64 {
///         1
///     }
/// }
///
/// let (store, clock) = (MemoryStore::new(7), Arc::new(SystemClock::new()));
/// let (shards, config) = (Shards::new(1).expect("from 1 to 1024"), Config::default());
/// let timers = Timers::open_divided(store, shards, vec![], inline(|_| ()), clock.clone(), config)?;
/// let (a, b) = (NodeId(1), NodeId(2));
/// let peers = |me| {
///     let (config, owners) = (PeersConfig::new(7, me), Arc::new(OfNode(a)));
///     SimulatedPeers::new(config, owners, Arc::new(timers.clone()), clock.clone())
/// };
/// let (of_a, of_b) = (peers(a), peers(b));
/// let fire = Request::Fire { name: TimerName::new("unpaid", "order-42")? };
/// // Nobody brings an answer: what came of it is not known.
/// of_b.ask(Shard(0), Asked::one(fire, |answer| assert!(answer.is_err())));
/// let connection = of_a.accept(b);
/// let question = of_b.gather(a).expect("one waits");
/// assert!(connection.take(question));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SimulatedPeers {
    inner: Arc<Inner>,
}

impl SimulatedPeers {
    /// Those of a node that nobody has asked anything yet.
    #[must_use]
    pub fn new(
        config: PeersConfig,
        owners: Arc<dyn Owners>,
        here: Arc<dyn Here>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            inner: Inner::new(config, owners, here, clock, None),
        }
    }

    /// Somebody here asks.
    pub fn ask(&self, shard: Shard, asked: Asked) {
        self.inner.ask(shard, asked);
    }

    /// Looks at what waits, as it is to be done every 20 ms.
    pub fn look(&self) {
        self.inner.look();
    }

    /// The nodes that questions wait for, in the order of their ids.
    #[must_use]
    pub fn wanted(&self) -> Vec<NodeId> {
        let waits = |peer: &Arc<Peer>| peer.outbox.lock().has_waiting();
        let peers = self.inner.all().into_iter().filter(waits);
        peers.map(|peer| peer.id).collect()
    }

    /// The next frame of questions to a node to which there is a connection.
    #[must_use]
    pub fn gather(&self, to: NodeId) -> Option<Vec<u8>> {
        let (now, map) = (self.inner.clock.boot(), self.inner.owners.version());
        let gathered = self.peer(to)?.outbox.lock().gather(now, map);
        gathered.map(|(frame, _)| frame)
    }

    /// A frame of answers comes. Says whether it can be read.
    #[must_use]
    pub fn take_answers(&self, from: NodeId, frame: &[u8]) -> bool {
        let peer = self.peer(from);
        peer.is_none_or(|peer| self.inner.take_answers(&peer, frame).is_ok())
    }

    /// The connection to a node breaks.
    pub fn broken(&self, to: NodeId) {
        if let Some(peer) = self.peer(to) {
            self.inner.broken(&peer);
        }
    }

    /// A node calls.
    #[must_use]
    pub fn accept(&self, from: NodeId) -> SimulatedConnection {
        let (going, leaving) = mpsc::unbounded_channel();
        SimulatedConnection {
            before: Mutex::new(self.inner.clock.boot()),
            questions: Questions::new(Arc::clone(&self.inner), from, going),
            leaving: Mutex::new(leaving),
        }
    }

    fn peer(&self, id: NodeId) -> Option<Arc<Peer>> {
        self.inner.all().into_iter().find(|peer| peer.id == id)
    }
}

impl fmt::Debug for SimulatedPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedPeers")
            .field("me", &self.inner.me())
            .finish_non_exhaustive()
    }
}

/// The side of a connection that is asked.
pub struct SimulatedConnection {
    questions: Questions,
    leaving: Mutex<mpsc::UnboundedReceiver<Going>>,
    before: Mutex<Instant>,
}

impl SimulatedConnection {
    /// A frame of questions comes, or a sign of life, which has none. Says whether the connection goes on.
    #[must_use]
    pub fn take(&self, frame: Vec<u8>) -> bool {
        if self.questions.was_stopped(&mut self.before.lock()) {
            return false;
        }
        let Ok(asks) = frame::read_asks(frame) else {
            return false;
        };
        for ask in asks {
            self.questions.take(ask, Vec::new());
        }
        true
    }

    /// The next frame of answers, if there are any.
    #[must_use]
    pub fn next_frame(&self) -> Option<Vec<u8>> {
        let mut frame = None;
        while let Ok(going) = self.leaving.lock().try_recv() {
            if let Going::Answer(leaving) = going {
                let frame = frame.get_or_insert_with(Writing::answers);
                frame.answer(leaving.bytes());
            }
        }
        frame.map(Writing::finish)
    }

    /// A frame that says that the other side is there.
    #[must_use]
    pub fn sign_of_life() -> Vec<u8> {
        Writing::asks().finish()
    }
}

impl fmt::Debug for SimulatedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedConnection")
            .finish_non_exhaustive()
    }
}
