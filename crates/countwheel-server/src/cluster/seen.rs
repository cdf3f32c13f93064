//! What is known of a cluster at one moment: for the API, the pages and the metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_cluster::{Holding, Member, NodeId, View};
use countwheel_durable::store::{Fence, Shard};
use countwheel_durable::{Health, Shards, Stats};
use countwheel_time::Timestamp;

/// How a node stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeState {
    /// Its lease goes on.
    Live,
    /// The same, and it gives all its shards away.
    Draining,
    /// Its lease is over: others may take its shards.
    Over,
}

impl NodeState {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Draining => "draining",
            Self::Over => "over",
        }
    }
}

/// How a shard stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ShardState {
    /// Its owner lives, and works on it as far as this process knows.
    Owned,
    /// It is this node's, which has yet to load it.
    Taking,
    /// This node is about to give it to another.
    HandingOver,
    /// The lease of its owner is over.
    Overdue,
    /// Nobody has it.
    Free,
}

impl ShardState {
    pub(crate) const ALL: [Self; 5] = [
        Self::Owned,
        Self::Taking,
        Self::HandingOver,
        Self::Overdue,
        Self::Free,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Owned => "owned",
            Self::Taking => "taking",
            Self::HandingOver => "handing_over",
            Self::Overdue => "overdue",
            Self::Free => "free",
        }
    }
}

/// A node, as one line of a table has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NodeLine {
    pub(crate) member: Member,
    pub(crate) state: NodeState,
    pub(crate) lease_left: Duration,
    pub(crate) shards: usize,
    /// Whether it is the node that says so.
    pub(crate) is_here: bool,
}

/// A shard, as one line of a table has it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ShardLine {
    pub(crate) shard: Shard,
    pub(crate) state: ShardState,
    /// The name of its owner; its id if the owner has left.
    pub(crate) owner: Option<String>,
    pub(crate) fence: Fence,
    pub(crate) since: Timestamp,
    pub(crate) wanted: Option<String>,
    /// What the scheduler counts, of a shard that this process works on.
    pub(crate) stats: Option<Stats>,
    /// How many timers wait or are delivered, if it was asked.
    pub(crate) pending: Option<u64>,
}

/// The shards that the tables have, and those that they should have: who deletes a row leaves a shard without an
/// owner, and that has to be seen.
pub(crate) fn all_shards(of_tables: Vec<Holding>, shards: Shards) -> Vec<Holding> {
    let free = |shard| Holding {
        shard,
        owner: None,
        fence: Fence(0),
        since: Timestamp::EPOCH,
        wanted: None,
    };
    let mut all: BTreeMap<_, _> = shards.all().map(|shard| (shard, free(shard))).collect();
    all.extend(of_tables.into_iter().map(|it| (it.shard, it)));
    all.into_values().collect()
}

/// Everything that is known at one moment.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Seen {
    /// This node.
    pub(crate) me: NodeId,
    /// Its name.
    pub(crate) name: String,
    /// What the registry had at the last look.
    pub(crate) view: View,
    /// The clock of the registry now, or a moment before.
    pub(crate) now: Timestamp,
    /// The shards that this process has taken and not given away, and how each is.
    pub(crate) here: BTreeMap<Shard, Health>,
}

impl Seen {
    /// All nodes that have joined and not left, in order of name.
    pub(crate) fn nodes(&self) -> Vec<NodeLine> {
        let members = self.view.members.iter();
        let line = |member: &Member| {
            let is_here = member.node.id == self.me;
            let owned = self.view.holdings.iter();
            NodeLine {
                state: self.state_of(member),
                lease_left: member.expires.saturating_since(self.now),
                shards: owned
                    .filter(|holding| holding.owner == Some(member.node.id))
                    .count(),
                is_here,
                member: member.clone(),
            }
        };
        members.map(line).collect()
    }

    /// All shards in order, without what only the schedulers and the store know.
    pub(crate) fn shards(&self) -> Vec<ShardLine> {
        let line = |holding: &Holding| ShardLine {
            shard: holding.shard,
            state: self.state_of_shard(holding),
            owner: holding.owner.map(|owner| self.name_of(owner)),
            fence: holding.fence,
            since: holding.since,
            wanted: holding.wanted.clone(),
            stats: None,
            pending: None,
        };
        self.view.holdings.iter().map(line).collect()
    }

    /// How many shards are in each state.
    pub(crate) fn states(&self) -> BTreeMap<ShardState, usize> {
        let mut states: BTreeMap<_, _> = ShardState::ALL.map(|state| (state, 0)).into();
        for holding in &self.view.holdings {
            *states.entry(self.state_of_shard(holding)).or_default() += 1;
        }
        states
    }

    /// How long the lease of this node goes on.
    pub(crate) fn lease_left(&self) -> Duration {
        let me = self.member(self.me);
        me.map_or(Duration::ZERO, |me| me.expires.saturating_since(self.now))
    }

    pub(crate) fn state_of(&self, member: &Member) -> NodeState {
        if member.expires <= self.now {
            NodeState::Over
        } else if member.is_draining {
            NodeState::Draining
        } else {
            NodeState::Live
        }
    }

    pub(crate) fn state_of_shard(&self, holding: &Holding) -> ShardState {
        let Some(owner) = holding.owner else {
            return ShardState::Free;
        };
        if owner == self.me {
            return match self.here.get(&holding.shard) {
                Some(Health::Running) => ShardState::Owned,
                Some(Health::Stopping) => ShardState::HandingOver,
                _ => ShardState::Taking,
            };
        }
        let lives = self.member(owner).map(|member| self.state_of(member));
        match lives {
            Some(NodeState::Live | NodeState::Draining) => ShardState::Owned,
            Some(NodeState::Over) | None => ShardState::Overdue,
        }
    }

    /// The node of that name, also one whose lease is over.
    pub(crate) fn named(&self, name: &str) -> Option<&Member> {
        let mut members = self.view.members.iter();
        members.find(|member| member.node.name == name)
    }

    fn member(&self, id: NodeId) -> Option<&Member> {
        let mut members = self.view.members.iter();
        members.find(|member| member.node.id == id)
    }

    pub(crate) fn name_of(&self, id: NodeId) -> String {
        self.member(id)
            .map_or_else(|| id.to_string(), |member| member.node.name.clone())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use countwheel_cluster::Node;

    use super::*;

    pub(crate) const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn member(id: u128, name: &str, left_ms: i64, is_draining: bool) -> Member {
        let millis = Duration::from_millis(left_ms.unsigned_abs());
        Member {
            node: Node {
                id: NodeId(id),
                name: name.to_owned(),
                api: format!("http://{name}.example:7070"),
                peers: (id != 3).then(|| format!("{name}.example:7071")),
                weight: 100,
                version: "0.1.0".to_owned(),
                zones: "2026a".to_owned(),
            },
            expires: if left_ms < 0 {
                NOW.saturating_sub(millis)
            } else {
                NOW + millis
            },
            is_draining,
        }
    }

    /// Node `a` says it, `b` drains, and `c` is dead. Shard 0 is a's, 1 is to be, 2 is b's, 3 is c's, 4
    /// is nobody's, 5 is of a node that has left, and a is about to give away 6.
    pub(crate) fn seen() -> Seen {
        let owners = [Some(1), Some(1), Some(2), Some(3), None, Some(9), Some(1)];
        let holding = |(shard, owner): (u16, Option<u128>)| Holding {
            shard: Shard(shard),
            owner: owner.map(NodeId),
            fence: Fence(u64::from(shard) + 10),
            since: NOW.saturating_sub(Duration::from_secs(90)),
            wanted: (shard == 2).then(|| "a".to_owned()),
        };
        Seen {
            me: NodeId(1),
            name: "a".to_owned(),
            view: View {
                now: NOW,
                members: vec![
                    member(1, "a", 4_821, false),
                    member(2, "b", 4_500, true),
                    member(3, "c", -1_250, false),
                ],
                holdings: (0..).zip(owners).map(holding).collect(),
            },
            now: NOW,
            here: [(Shard(0), Health::Running), (Shard(6), Health::Stopping)].into(),
        }
    }

    /// Somebody deleted the row of a shard, and nothing said so.
    #[test]
    fn a_shard_without_a_row_is_free() {
        let shards = Shards::new(8).expect("from 1 to 1024");
        let mut holdings = all_shards(Vec::new(), shards);
        assert_eq!(holdings.len(), 8);
        for holding in &mut holdings {
            holding.owner = Some(NodeId(1));
        }
        let gone = holdings.remove(3);
        let all = all_shards(holdings, shards);
        let free: Vec<_> = all.iter().filter(|it| it.owner.is_none()).collect();
        assert_eq!(free.len(), 1);
        assert_eq!((free[0].shard, all[3].shard), (gone.shard, gone.shard));
    }

    #[test]
    fn a_node_is_live_draining_or_over() {
        let nodes = seen().nodes();
        let told = nodes.iter().map(|node| {
            (
                node.member.node.name.as_str(),
                node.state.as_str(),
                node.lease_left.as_millis(),
                node.shards,
                node.is_here,
            )
        });
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                ("a", "live", 4_821, 3, true),
                ("b", "draining", 4_500, 1, false),
                ("c", "over", 0, 1, false),
            ]
        );
        assert_eq!(seen().lease_left(), Duration::from_millis(4_821));
    }

    #[test]
    fn a_shard_says_whose_it_is_and_whether_that_one_works_on_it() {
        let shards = seen().shards();
        let told = shards.iter().map(|it| (it.owner.as_deref(), it.state));
        let gone = NodeId(9).to_string();
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                (Some("a"), ShardState::Owned),
                (Some("a"), ShardState::Taking),
                (Some("b"), ShardState::Owned),
                (Some("c"), ShardState::Overdue),
                (None, ShardState::Free),
                (Some(gone.as_str()), ShardState::Overdue),
                (Some("a"), ShardState::HandingOver),
            ]
        );
        let counts: Vec<_> = seen().states().into_values().collect();
        assert_eq!(counts, [2, 1, 1, 2, 1]);
    }
}
