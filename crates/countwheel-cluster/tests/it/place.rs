//! Where the shards go.

use std::collections::BTreeMap;

use countwheel_cluster::{Holding, Member, NodeId, place};
use countwheel_durable::store::Shard;

use super::paper::{holdings, member};

fn members(ids: &[u128]) -> Vec<Member> {
    ids.iter()
        .map(|id| member(*id, &format!("node-{id}")))
        .collect()
}

fn placed(members: &[Member], holdings: &[Holding]) -> BTreeMap<Shard, NodeId> {
    place(&members.iter().collect::<Vec<_>>(), holdings)
}

fn of(placed: &BTreeMap<Shard, NodeId>, id: u128) -> usize {
    placed.values().filter(|it| **it == NodeId(id)).count()
}

pub(crate) fn each_has_its_share_rounded_down_or_up() {
    for nodes in 1..=5 {
        let ids: Vec<_> = (1..=nodes).collect();
        let placed = placed(&members(&ids), &holdings(&[None; 64]));
        assert_eq!(placed.len(), 64);
        for id in ids {
            let share = 64 / usize::try_from(nodes).expect("few");
            assert!([share, share + 1].contains(&of(&placed, id)), "{placed:?}");
        }
    }
}

pub(crate) fn a_weight_counts() {
    let mut members = members(&[1, 2]);
    members[1].node.weight = 300;
    let placed = placed(&members, &holdings(&[None; 64]));
    assert_eq!((of(&placed, 1), of(&placed, 2)), (16, 48));
}

pub(crate) fn the_order_of_members_does_not_count() {
    let (mut members, holdings) = (members(&[1, 2, 3]), holdings(&[None; 64]));
    let before = placed(&members, &holdings);
    members.rotate_left(1);
    assert_eq!(placed(&members, &holdings), before);
    assert_eq!(placed(&[], &holdings), BTreeMap::new());
}

/// Placed once, then by owners: nothing moves.
pub(crate) fn what_is_placed_stays() {
    let members = members(&[1, 2, 3]);
    let mut holdings = holdings(&[None; 64]);
    let before = placed(&members, &holdings);
    for holding in &mut holdings {
        holding.owner = before.get(&holding.shard).copied();
    }
    assert_eq!(placed(&members, &holdings), before);
}

/// Only the shards of a node that is gone move, and only as many move to one that comes as it is to have.
pub(crate) fn no_more_move_than_have_to() {
    let mut holdings = holdings(&[None; 64]);
    let before = placed(&members(&[1, 2, 3]), &holdings);
    for holding in &mut holdings {
        holding.owner = before.get(&holding.shard).copied();
    }
    let differ = |after: &BTreeMap<Shard, NodeId>| {
        let shards = after.iter();
        shards.filter(|(shard, to)| before[shard] != **to).count()
    };
    let after = placed(&members(&[1, 2]), &holdings);
    assert_eq!(differ(&after), of(&before, 3));
    let after = placed(&members(&[1, 2, 3, 4]), &holdings);
    assert_eq!(differ(&after), 16);
    assert_eq!(of(&after, 4), 16);
}

/// A node that is started again has the same, by its name.
pub(crate) fn the_name_decides() {
    let holdings = holdings(&[None; 64]);
    let before = placed(&members(&[1, 2]), &holdings);
    let again = [member(1, "node-1"), member(9, "node-2")];
    let after = placed(&again, &holdings);
    assert!(
        before
            .iter()
            .all(|(shard, to)| { after[shard] == if *to == NodeId(2) { NodeId(9) } else { *to } })
    );
}

pub(crate) fn a_wish_counts_while_its_node_is_there() {
    let mut holdings = holdings(&[Some(1); 8]);
    for holding in &mut holdings[..6] {
        holding.wanted = Some("node-2".to_owned());
    }
    let both = placed(&members(&[1, 2]), &holdings);
    assert!(holdings[..6].iter().all(|it| both[&it.shard] == NodeId(2)));
    let one = placed(&members(&[1, 3]), &holdings);
    assert_eq!(one.len(), 8, "a wish for one that is gone is none");
    assert_eq!((of(&one, 1), of(&one, 3)), (4, 4));
}

pub(crate) mod sentences {
    crate::sentences! {
        each_has_its_share_rounded_down_or_up,
        a_weight_counts,
        the_order_of_members_does_not_count,
        what_is_placed_stays,
        no_more_move_than_have_to,
        the_name_decides,
        a_wish_counts_while_its_node_is_there,
    }
}
