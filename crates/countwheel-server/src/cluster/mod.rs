//! This process as a node of a cluster: what it sees of the others, and what an operator asks of all.

pub(crate) mod certificate;
pub(crate) mod joined;
pub(crate) mod seen;
pub(crate) mod wish;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use countwheel_cluster::{NodeId, Registry, View};
use countwheel_durable::store::Shard;
use countwheel_durable::{StateKind, Timers, Trouble, TroubleReason};
use countwheel_peers::PeerCounts;
use countwheel_postgres::PostgresServer;
use countwheel_time::Timestamp;

use self::certificate::Certificate;
use self::seen::{Seen, ShardLine};
use self::wish::{Move, Refusal};

/// Beyond this difference a clock is told to be wrong.
const OFFSET_MAX: Duration = Duration::from_millis(250);

/// For so long a node that lives may be called in vain.
pub(crate) const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// What happened to a shard or to this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EventLine {
    /// By the clock of the database.
    pub(crate) at: Timestamp,
    /// What, in a word.
    pub(crate) kind: &'static str,
    /// Which shard, if it is about one.
    pub(crate) shard: Option<Shard>,
    /// More of it, for people.
    pub(crate) detail: String,
}

/// How far the clock of this machine is ahead of that of the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Offset {
    /// In microseconds; negative is behind.
    pub(crate) micros: i64,
}

impl From<countwheel_cluster::Offset> for Offset {
    fn from(offset: countwheel_cluster::Offset) -> Self {
        let micros = i64::try_from(offset.size().as_micros()).unwrap_or(i64::MAX);
        let is_behind = matches!(offset, countwheel_cluster::Offset::Behind(_));
        Self {
            micros: if is_behind { -micros } else { micros },
        }
    }
}

impl Offset {
    /// In seconds.
    pub(crate) fn seconds(self) -> f64 {
        let size = Duration::from_micros(self.micros.unsigned_abs()).as_secs_f64();
        if self.micros < 0 { -size } else { size }
    }

    pub(crate) const fn millis(self) -> i64 {
        self.micros / 1_000
    }

    /// Whether one of the two clocks is told to be wrong.
    pub(crate) fn is_wrong(self) -> bool {
        Duration::from_micros(self.micros.unsigned_abs()) > OFFSET_MAX
    }
}

/// What this node has counted since it was started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counted {
    /// Shards taken, by why they could be.
    pub(crate) takeovers: BTreeMap<&'static str, u64>,
    /// Shards given to others.
    pub(crate) handovers: u64,
    /// Shards of which another node was found to be the owner.
    pub(crate) fenced: u64,
    /// What went to other nodes and came from them.
    pub(crate) peers: PeerCounts,
}

/// What makes this process a node: looks at the registry, takes shards and gives them away.
pub(crate) trait Driver: Send + Sync {
    /// Under which id this node has joined last.
    fn me(&self) -> NodeId;
    /// What the registry had at the last look.
    fn view(&self) -> View;
    /// The clock of the registry now, or a moment before.
    fn now(&self) -> Timestamp;
    /// How far the clock of this machine is ahead of that.
    fn clock_offset(&self) -> Offset;
    /// What happened last, the latest first.
    fn events(&self) -> Vec<EventLine>;
    fn counted(&self) -> Counted;
    /// The names of the nodes that live and cannot be reached from here.
    fn unreachable(&self) -> Vec<String>;
    /// Where each shard is to be if no operator wants it elsewhere.
    fn placed(&self, view: &View) -> BTreeMap<Shard, NodeId>;
}

/// This process as a node.
pub(crate) struct Cluster {
    name: String,
    registry: Arc<dyn Registry>,
    driver: Arc<dyn Driver>,
    certificate: Option<Certificate>,
    database: Option<PostgresServer>,
    is_ready: AtomicBool,
}

impl Cluster {
    pub(crate) fn new(name: String, registry: Arc<dyn Registry>, driver: Arc<dyn Driver>) -> Self {
        Self {
            name,
            registry,
            driver,
            certificate: None,
            database: None,
            is_ready: AtomicBool::new(false),
        }
    }

    /// The same with what it shows to other nodes.
    pub(crate) fn with_certificate(mut self, certificate: Option<Certificate>) -> Self {
        self.certificate = certificate;
        self
    }

    /// The same with what the database says of itself.
    pub(crate) fn with_database(mut self, database: Option<PostgresServer>) -> Self {
        self.database = database;
        self
    }

    /// The database, as it was seen last.
    pub(crate) fn database(&self) -> Option<&PostgresServer> {
        self.database.as_ref()
    }

    /// What it shows to other nodes, if it shows something.
    pub(crate) fn certificate(&self) -> Option<&Certificate> {
        self.certificate.as_ref()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether this node has had its shards, or has seen that others have them.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }

    /// From now on it is ready, also while shards change hands.
    pub(crate) fn say_ready(&self) {
        self.is_ready.store(true, Ordering::Relaxed);
    }

    /// Where operators' wishes are written down.
    pub(crate) fn registry(&self) -> &dyn Registry {
        &*self.registry
    }

    /// What is known, as of the last look: asks nobody.
    pub(crate) fn seen(&self, timers: &Timers) -> Seen {
        self.seen_in(self.driver.view(), timers)
    }

    /// What is known after a look. Blocks.
    pub(crate) fn look(&self, timers: &Timers) -> Result<Seen, Refusal> {
        let view = self.registry.look(false)?;
        Ok(self.seen_in(view, timers))
    }

    fn seen_in(&self, mut view: View, timers: &Timers) -> Seen {
        let of_tables = std::mem::take(&mut view.holdings);
        view.holdings = seen::all_shards(of_tables, timers.shards());
        Seen {
            me: self.driver.me(),
            name: self.name.clone(),
            now: self.driver.now().max(view.now),
            view,
            here: timers.owned(),
        }
    }

    /// All shards, with what the schedulers here count and how many timers each has. Blocks.
    pub(crate) fn shards(&self, seen: &Seen, timers: &Timers) -> Vec<ShardLine> {
        let mut lines = seen.shards();
        for line in &mut lines {
            line.stats = timers.stats_of(line.shard);
            line.pending = timers
                .totals_of(line.shard)
                .ok()
                .map(|totals| totals.of(StateKind::Pending) + totals.of(StateKind::Delivering));
        }
        lines
    }

    /// What moves once no operator wants anything.
    pub(crate) fn rebalanced(&self, seen: &Seen) -> Vec<Move> {
        wish::moves(seen, &self.driver.placed(&seen.view))
    }

    pub(crate) fn events(&self) -> Vec<EventLine> {
        self.driver.events()
    }

    pub(crate) fn counted(&self) -> Counted {
        self.driver.counted()
    }

    pub(crate) fn clock_offset(&self) -> Offset {
        self.driver.clock_offset()
    }

    /// The names of the nodes that live and cannot be reached from here.
    pub(crate) fn unreachable(&self) -> Vec<String> {
        self.driver.unreachable()
    }

    /// What is wrong with this node, while everything goes on.
    pub(crate) fn troubles(&self) -> Vec<Trouble> {
        let certificate = self.certificate.as_ref();
        let certificate = certificate.and_then(Certificate::trouble);
        let offset = self.clock_offset();
        let clock = offset.is_wrong().then(|| {
            let detail = format!(
                "the clock of this machine differs from that of the database by {} ms",
                offset.millis()
            );
            Trouble::new(TroubleReason::ClockOffset, None, detail)
        });
        let nodes = self.unreachable();
        let peers = (!nodes.is_empty()).then(|| {
            let detail = format!("this node cannot reach {}", nodes.join(", "));
            Trouble::new(TroubleReason::PeersUnreachable, None, detail)
        });
        clock.into_iter().chain(peers).chain(certificate).collect()
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl EventLine {
    /// The class that colours it on a page.
    pub(crate) fn class(&self) -> &'static str {
        match self.kind {
            "takeover" => "brass",
            "refusal" | "lost" => "bad",
            _ => "dim",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use countwheel_cluster::{Node, RegistryError};
    use parking_lot::Mutex;

    use super::seen::tests::{NOW, seen};
    use super::*;

    /// The registry and the driver of [`seen`]: a wish is done at once.
    pub(crate) struct Still {
        view: Mutex<View>,
        pub(crate) offset: Mutex<Offset>,
        pub(crate) unreachable: Mutex<Vec<String>>,
    }

    impl Default for Still {
        fn default() -> Self {
            Self {
                view: Mutex::new(seen().view),
                offset: Mutex::default(),
                unreachable: Mutex::default(),
            }
        }
    }

    impl Registry for Still {
        fn join(&self, _: &Node, _: Duration) -> Result<View, RegistryError> {
            Ok(self.view.lock().clone())
        }

        fn look(&self, _: bool) -> Result<View, RegistryError> {
            Ok(self.view.lock().clone())
        }

        fn give(&self, _: Shard, _: Option<NodeId>) -> Result<bool, RegistryError> {
            Ok(false)
        }

        fn mark_draining(&self, name: &str, is_draining: bool) -> Result<(), RegistryError> {
            for member in &mut self.view.lock().members {
                if member.node.name == name {
                    member.is_draining = is_draining;
                }
            }
            Ok(())
        }

        fn want(&self, shard: Option<Shard>, node: Option<&str>) -> Result<(), RegistryError> {
            for holding in &mut self.view.lock().holdings {
                if shard.is_none_or(|shard| shard == holding.shard) {
                    holding.wanted = node.map(str::to_owned);
                }
            }
            Ok(())
        }

        fn leave(&self) -> Result<(), RegistryError> {
            Ok(())
        }
    }

    impl Driver for Still {
        fn me(&self) -> NodeId {
            seen().me
        }

        fn view(&self) -> View {
            self.view.lock().clone()
        }

        fn now(&self) -> Timestamp {
            NOW
        }

        fn clock_offset(&self) -> Offset {
            *self.offset.lock()
        }

        fn events(&self) -> Vec<EventLine> {
            Vec::new()
        }

        fn counted(&self) -> Counted {
            Counted::default()
        }

        fn unreachable(&self) -> Vec<String> {
            self.unreachable.lock().clone()
        }

        fn placed(&self, view: &View) -> BTreeMap<Shard, NodeId> {
            let holdings = view.holdings.iter();
            holdings.map(|holding| (holding.shard, NodeId(1))).collect()
        }
    }

    /// The node `a` of [`seen`].
    pub(crate) fn cluster() -> (Arc<Still>, Arc<Cluster>) {
        let still = Arc::new(Still::default());
        let seen = seen();
        let registry: Arc<dyn Registry> = Arc::<Still>::clone(&still);
        let driver: Arc<dyn Driver> = Arc::<Still>::clone(&still);
        let cluster = Cluster::new(seen.name, registry, driver);
        (still, Arc::new(cluster))
    }

    #[test]
    fn only_a_clock_that_is_off_by_more_than_a_quarter_of_a_second_is_a_trouble() {
        let (still, cluster) = cluster();
        for (micros, is_trouble) in [
            (0, false),
            (-250_000, false),
            (250_001, true),
            (-300_000, true),
        ] {
            *still.offset.lock() = Offset { micros };
            assert_eq!(!cluster.troubles().is_empty(), is_trouble, "{micros}");
        }
        let expected =
            "clock_offset: the clock of this machine differs from that of the database by -300 ms";
        assert_eq!(told(&cluster), [expected]);
    }

    fn told(cluster: &Cluster) -> Vec<String> {
        let troubles = cluster.troubles().into_iter();
        troubles.map(|it| it.to_string()).collect()
    }

    #[test]
    fn nodes_that_live_and_cannot_be_reached_are_one_trouble() {
        let (still, cluster) = cluster();
        *still.unreachable.lock() = vec!["b".to_owned(), "c".to_owned()];
        let expected = "peers_unreachable: this node cannot reach b, c";
        assert_eq!(told(&cluster), [expected]);
    }
}
