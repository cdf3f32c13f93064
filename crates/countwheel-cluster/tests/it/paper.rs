//! A registry on paper: what it has is written by the test.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_cluster::{
    Action, Control, Holding, Looked, Member, Node, NodeConfig, NodeId, RegistryError, Standing,
    View,
};
use countwheel_durable::store::{Fence, Shard};
use countwheel_time::{Instant, Timestamp};

pub(crate) const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);
pub(crate) const TTL: Duration = Duration::from_secs(5);
/// A scheduler that was started when its shard was taken last.
pub(crate) const WORKS: Standing = Standing::Works(Fence(1));

pub(crate) fn node(id: u128, name: &str) -> Node {
    Node {
        id: NodeId(id),
        name: name.to_owned(),
        api: format!("http://{name}:7700"),
        peers: None,
        weight: 100,
        version: "0.1.0".to_owned(),
        zones: "2026a".to_owned(),
    }
}

pub(crate) fn member(id: u128, name: &str) -> Member {
    Member {
        node: node(id, name),
        expires: NOW + TTL,
        is_draining: false,
    }
}

pub(crate) fn holdings(owners: &[Option<u128>]) -> Vec<Holding> {
    let shards = (0..).map(Shard).zip(owners);
    let holdings = shards.map(|(shard, owner)| Holding {
        shard,
        owner: owner.map(NodeId),
        fence: Fence(1),
        since: NOW,
        wanted: None,
    });
    holdings.collect()
}

/// One node, number 1, beside others that the test plays. What it is told to do is done at once unless
/// the test says otherwise.
pub(crate) struct Paper {
    pub(crate) control: Control,
    pub(crate) view: View,
    pub(crate) here: BTreeMap<Shard, Standing>,
    pub(crate) at: Instant,
    /// Who renews at each look, beside node 1.
    pub(crate) alive: Vec<u128>,
}

impl Paper {
    /// Nodes 1 to `nodes`, all of which renew, and these owners. What is node 1's works there.
    pub(crate) fn new(nodes: u128, owners: &[Option<u128>]) -> Self {
        let config = NodeConfig::default();
        let mut paper = Self {
            control: Control::new(NodeId(1), config, 7),
            view: View {
                now: NOW,
                members: (1..=nodes)
                    .map(|id| member(id, &format!("node-{id}")))
                    .collect(),
                holdings: holdings(owners),
            },
            here: BTreeMap::new(),
            at: Instant::from_nanos(1_000_000_000),
            alive: (2..=nodes).collect(),
        };
        for holding in &paper.view.holdings {
            if holding.owner == Some(NodeId(1)) {
                paper.here.insert(holding.shard, WORKS);
            }
        }
        paper
    }

    /// Time passes, by both clocks.
    pub(crate) fn pass(&mut self, span: Duration) {
        self.at = self.at + span;
        self.view.now = self.view.now + span;
    }

    /// A look that renews.
    pub(crate) fn look(&mut self) -> Vec<Action> {
        let sent = self.at;
        self.look_sent(sent)
    }

    pub(crate) fn look_sent(&mut self, sent: Instant) -> Vec<Action> {
        let came = sent + Duration::from_millis(1);
        let lives = |id: NodeId| id == NodeId(1) || self.alive.contains(&id.0);
        for member in &mut self.view.members {
            if lives(member.node.id) {
                member.expires = self.view.now + TTL;
            }
        }
        let looked = Looked {
            sent,
            came,
            renewed: true,
        };
        self.control.seen(looked, &self.view, &self.here)
    }

    /// Looks each 0.2 s for so long, and does what it is told to. Says what that was.
    pub(crate) fn live(&mut self, span: Duration) -> Vec<Action> {
        let until = self.at + span;
        let mut done = Vec::new();
        while self.at < until {
            let actions = self.look();
            for action in &actions {
                self.do_it(*action);
            }
            done.extend(actions);
            self.pass(Duration::from_millis(200));
        }
        done
    }

    /// It is done at once.
    pub(crate) fn do_it(&mut self, action: Action) {
        let Some(shard) = action.shard() else { return };
        let owner = match action {
            Action::Take { .. } => Some(NodeId(1)),
            Action::HandOver { to, .. } => Some(to),
            _ => None,
        };
        match action {
            Action::Take { .. } => _ = self.here.insert(shard, WORKS),
            _ => _ = self.here.remove(&shard),
        }
        if !matches!(action, Action::End { .. }) {
            self.owned(shard, owner);
        }
        self.ended(shard, true);
    }

    pub(crate) fn ended(&mut self, shard: Shard, is_done: bool) {
        let now = self.at + Duration::from_millis(2);
        self.control.ended(now, shard, is_done);
    }

    pub(crate) fn owned(&mut self, shard: Shard, owner: Option<NodeId>) {
        self.view.holdings[usize::from(shard.0)].owner = owner;
    }

    /// A look fails.
    pub(crate) fn miss(&mut self) -> Vec<Action> {
        let reason = "the database is away".to_owned();
        let error = RegistryError::Unavailable { reason };
        self.control.missed(self.at, &error)
    }

    /// A node dies now, after its last renewal.
    pub(crate) fn dies(&mut self, id: u128) {
        self.alive.retain(|other| *other != id);
    }
}

pub(crate) fn taken(actions: &[Action]) -> Vec<Shard> {
    let takes = actions
        .iter()
        .filter(|action| matches!(action, Action::Take { .. }));
    takes.filter_map(|action| action.shard()).collect()
}

pub(crate) fn given(actions: &[Action]) -> Vec<(Shard, NodeId)> {
    let gives = actions.iter().filter_map(|action| match action {
        Action::HandOver { shard, to, .. } => Some((*shard, *to)),
        _ => None,
    });
    gives.collect()
}
