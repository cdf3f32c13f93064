//! What an operator may ask of a cluster, and why it is refused.

use std::collections::BTreeMap;

use countwheel_cluster::{Member, NodeId, RegistryError};
use countwheel_durable::store::Shard;

use super::seen::{NodeState, Seen};

/// Why the cluster does not do what was asked. Nothing was changed, but for
/// [`RegistryError::Unavailable`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// There is no node of that name, or its lease is over.
    #[error("there is no node named {name} that lives")]
    UnknownNode { name: String },
    #[error("there is no shard {}", shard.0)]
    UnknownShard { shard: Shard },
    /// A node that gives all its shards away gets none.
    #[error("node {name} is drained: undrain it first")]
    NodeDraining { name: String },
    /// Nobody would have the shards.
    #[error(
        "node {name} is the last one that lives and is not drained: nobody could have its shards"
    )]
    LastNode { name: String },
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// A shard that is to change hands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Move {
    pub(crate) shard: Shard,
    /// The name of its owner, if it has one.
    pub(crate) from: Option<String>,
    pub(crate) to: String,
}

/// Whether a node may be marked to give all its shards away.
///
/// # Errors
/// [`Refusal`] says why not.
pub(crate) fn may_drain(seen: &Seen, name: &str) -> Result<(), Refusal> {
    let unknown = || Refusal::UnknownNode {
        name: name.to_owned(),
    };
    let drained = seen.named(name).ok_or_else(unknown)?;
    let mut others = seen.view.members.iter();
    let stays = |other: &Member| {
        other.node.id != drained.node.id && seen.state_of(other) == NodeState::Live
    };
    if !others.any(stays) {
        return Err(Refusal::LastNode {
            name: name.to_owned(),
        });
    }
    Ok(())
}

/// Whether a node may be marked to have shards again.
///
/// # Errors
/// [`Refusal`] says why not.
pub(crate) fn may_undrain(seen: &Seen, name: &str) -> Result<(), Refusal> {
    if seen.named(name).is_none() {
        return Err(Refusal::UnknownNode {
            name: name.to_owned(),
        });
    }
    Ok(())
}

/// Whether a node may be named that is to have a shard; `None` leaves that to the placement again.
///
/// # Errors
/// [`Refusal`] says why not.
pub(crate) fn may_want(seen: &Seen, shard: Shard, name: Option<&str>) -> Result<(), Refusal> {
    let mut holdings = seen.view.holdings.iter();
    if !holdings.any(|holding| holding.shard == shard) {
        return Err(Refusal::UnknownShard { shard });
    }
    if let Some(name) = name {
        let member = seen.named(name).map(|member| seen.state_of(member));
        let name = name.to_owned();
        match member {
            Some(NodeState::Live) => {}
            Some(NodeState::Draining) => return Err(Refusal::NodeDraining { name }),
            Some(NodeState::Over) | None => return Err(Refusal::UnknownNode { name }),
        }
    }
    Ok(())
}

/// Which shards are not where a placement has them.
pub(crate) fn moves(seen: &Seen, placed: &BTreeMap<Shard, NodeId>) -> Vec<Move> {
    let holdings = seen.view.holdings.iter();
    let moves = holdings.filter_map(|holding| {
        let to = *placed.get(&holding.shard)?;
        (holding.owner != Some(to)).then(|| Move {
            shard: holding.shard,
            from: holding.owner.map(|owner| seen.name_of(owner)),
            to: seen.name_of(to),
        })
    });
    moves.collect()
}

#[cfg(test)]
mod tests {
    use super::super::seen::tests::seen;
    use super::*;

    fn name(name: &str) -> String {
        name.to_owned()
    }

    #[test]
    fn what_leaves_shards_without_a_node_is_refused() {
        let seen = seen();
        // b drains already, and c is dead: without a there is nobody.
        let refused = may_drain(&seen, "a");
        assert_eq!(refused, Err(Refusal::LastNode { name: name("a") }));
        let refused = may_drain(&seen, "z");
        assert_eq!(refused, Err(Refusal::UnknownNode { name: name("z") }));
        let refused = may_undrain(&seen, "z");
        assert_eq!(refused, Err(Refusal::UnknownNode { name: name("z") }));
        assert_eq!(may_drain(&seen, "b"), Ok(()));
        assert_eq!(may_drain(&seen, "c"), Ok(()));
        assert_eq!(may_undrain(&seen, "b"), Ok(()));
    }

    #[test]
    fn a_shard_is_moved_to_a_node_that_lives_and_may_have_it() {
        let seen = seen();
        let moved = |shard, to| may_want(&seen, Shard(shard), to);
        let draining = Refusal::NodeDraining { name: name("b") };
        assert_eq!(moved(0, Some("b")), Err(draining));
        for dead in ["c", "z"] {
            let unknown = Refusal::UnknownNode { name: name(dead) };
            assert_eq!(moved(0, Some(dead)), Err(unknown));
        }
        let shard = Shard(7);
        assert_eq!(moved(7, Some("a")), Err(Refusal::UnknownShard { shard }));
        assert_eq!(moved(2, Some("a")), Ok(()));
        assert_eq!(moved(2, None), Ok(()));
    }

    #[test]
    fn only_what_is_elsewhere_moves() {
        let placed = [(0, 1), (2, 1), (4, 1)];
        let placed = placed.map(|(shard, node)| (Shard(shard), NodeId(node)));
        let moved = |shard, from: Option<&str>| Move {
            shard: Shard(shard),
            from: from.map(name),
            to: name("a"),
        };
        assert_eq!(
            moves(&seen(), &placed.into()),
            [moved(2, Some("b")), moved(4, None)]
        );
    }
}
