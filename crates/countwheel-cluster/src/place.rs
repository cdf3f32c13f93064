//! Which node is to have which shard.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use countwheel_durable::store::Shard;
use countwheel_time::Random;

use crate::planted::planted;
use crate::{Holding, Member, NodeId};

/// Which of `members` is to have each of the shards in `holdings`. Who asks with the same members and
/// holdings gets the same answer, on every node; nobody looks at a clock here.
///
/// - Each member has a quota: its share by weight, rounded down or up, so that the quotas come to all
///   shards. Who has more than its share rounded down already is first to have it rounded up.
/// - A shard that is [wanted](Holding::wanted) on a member goes there, beyond the quota if need be.
/// - Otherwise a shard stays where it is as long as its owner's quota has room.
/// - What has no owner among the members, and what is too much, goes to the first in the order of
///   rendezvous hashing (Thaler and Ravishankar, 1998) whose quota has room: bounded loads, as Mirrokni,
///   Thorup and Zadimoghaddam (2018) have them. The order is of the names, so a node that is started
///   again has the same.
///
/// Without members the answer is empty.
///
/// ```
/// use countwheel_cluster::{Holding, Member, Node, NodeId, place};
/// use countwheel_durable::store::{Fence, Shard};
/// use countwheel_time::Timestamp;
///
/// let member = |id, name: &str| Member {
///     node: Node {
///         id: NodeId(id),
///         name: name.to_owned(),
///         api: String::new(),
///         peers: None,
///         weight: 100,
///         version: String::new(),
///         zones: String::new(),
///     },
///     expires: Timestamp::MAX,
///     is_draining: false,
/// };
/// let holdings = (0..64).map(|shard| Holding {
///     shard: Shard(shard),
///     owner: Some(NodeId(1)),
///     fence: Fence(1),
///     since: Timestamp::EPOCH,
///     wanted: None,
/// });
/// let holdings: Vec<_> = holdings.collect();
/// let (one, other) = (member(1, "a"), member(2, "b"));
/// let placed = place(&[&one, &other], &holdings);
/// assert_eq!(placed.values().filter(|id| **id == NodeId(2)).count(), 32);
/// ```
#[must_use]
pub fn place(members: &[&Member], holdings: &[Holding]) -> BTreeMap<Shard, NodeId> {
    if members.is_empty() {
        return BTreeMap::new();
    }
    let mut members = members.to_vec();
    members.sort_by(|one, other| one.node.name.cmp(&other.node.name));
    let placer = Placer::new(&members, holdings);
    placer.place(holdings)
}

struct Placer<'a> {
    members: &'a [&'a Member],
    index: BTreeMap<NodeId, usize>,
    hashes: Vec<u64>,
    room: Vec<usize>,
    placed: BTreeMap<Shard, NodeId>,
}

impl<'a> Placer<'a> {
    fn new(members: &'a [&'a Member], holdings: &[Holding]) -> Self {
        let index = members.iter().enumerate();
        let index: BTreeMap<_, _> = index.map(|(at, it)| (it.node.id, at)).collect();
        let mut held = vec![0; members.len()];
        for holding in holdings {
            if let Some(at) = holding.owner.and_then(|owner| index.get(&owner)) {
                held[*at] += 1;
            }
        }
        Self {
            hashes: members.iter().map(|it| hash(&it.node.name)).collect(),
            room: quotas(holdings.len(), members, &held),
            placed: BTreeMap::new(),
            members,
            index,
        }
    }

    fn place(mut self, holdings: &[Holding]) -> BTreeMap<Shard, NodeId> {
        let mut of_owner: Vec<Vec<Shard>> = vec![Vec::new(); self.members.len()];
        let mut homeless = BTreeSet::new();
        for holding in holdings {
            let wanted = holding.wanted.as_ref();
            let wanted = wanted.and_then(|name| self.named(name));
            let wanted = wanted.filter(|_| !planted!(NodesWishPassed));
            let owner = holding.owner.and_then(|owner| self.index.get(&owner));
            if planted!(NodesWantTheGone) && wanted.is_none() && holding.wanted.is_some() {
                continue;
            }
            match (wanted, owner) {
                (Some(wanted), _) => self.put(holding.shard, wanted),
                (None, Some(owner)) => of_owner[*owner].push(holding.shard),
                (None, None) => _ = homeless.insert(holding.shard),
            }
        }
        for (owner, mut shards) in of_owner.into_iter().enumerate() {
            // Those that would come here first of all stay.
            shards.sort_by_key(|shard| Reverse(self.score(*shard, owner)));
            for shard in shards {
                match self.room[owner] {
                    0 => _ = homeless.insert(shard),
                    _ => self.put(shard, owner),
                }
            }
        }
        for shard in homeless {
            let with_room = (0..self.members.len()).filter(|at| self.room[*at] > 0);
            let best = with_room.max_by_key(|at| self.score(shard, *at));
            // Wishes beyond a quota take no room of others, so there is room for all.
            self.put(shard, best.unwrap_or(0));
        }
        self.placed
    }

    fn named(&self, name: &str) -> Option<usize> {
        self.members.iter().position(|it| it.node.name == name)
    }

    fn put(&mut self, shard: Shard, at: usize) {
        self.room[at] = self.room[at].saturating_sub(1);
        self.placed.insert(shard, self.members[at].node.id);
    }

    fn score(&self, shard: Shard, at: usize) -> u64 {
        Random::new(self.hashes[at] ^ u64::from(shard.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)).draw()
    }
}

/// How many shards each is to have: all of them together, each its share rounded down or up.
fn quotas(shards: usize, members: &[&Member], held: &[usize]) -> Vec<usize> {
    let weight = |member: &Member| usize::from(member.node.weight.max(1));
    let sum: usize = members.iter().map(|it| weight(it)).sum();
    let shares = members.iter().map(|it| shards * weight(it));
    let mut quotas: Vec<_> = shares.clone().map(|share| share / sum).collect();
    let left = shards - quotas.iter().sum::<usize>();
    // A share without a rest is not rounded up.
    let mut order: Vec<_> = shares
        .enumerate()
        .filter(|(_, share)| share % sum > 0)
        .map(|(at, share)| (held[at] <= share / sum, Reverse(share % sum), at))
        .collect();
    order.sort_unstable();
    for (_, _, at) in order.into_iter().take(left) {
        quotas[at] += 1;
    }
    quotas
}

/// FNV-1a: the same in every version and on every machine.
pub(crate) fn hash(name: &str) -> u64 {
    let bytes = name.bytes();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
