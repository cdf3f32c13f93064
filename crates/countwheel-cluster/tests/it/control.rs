//! What one node decides.

use std::time::Duration;

use countwheel_cluster::{
    Action, Control, Looked, NodeConfig, NodeId, Reason, RegistryError, Standing, Why,
};
use countwheel_durable::store::{Fence, Shard};
use countwheel_time::Instant;

use super::paper::{Paper, TTL, WORKS, given, member, taken};

const LOOK: Duration = Duration::from_millis(200);
const MARGIN: Duration = Duration::from_millis(250);
const MINUTE: Duration = Duration::from_secs(60);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn free_shards_are_taken_at_once() {
    let mut paper = Paper::new(2, &[None; 8]);
    let actions = paper.look();
    assert_eq!(taken(&actions).len(), 4, "{actions:?}");
    assert!(
        actions
            .iter()
            .all(|action| matches!(action, Action::Take { why: Why::Free, .. }))
    );
    assert_eq!(paper.look(), [], "they are being taken");
}

pub(crate) fn what_it_was_given_is_taken_at_once() {
    let mut paper = Paper::new(2, &[Some(1), Some(2)]);
    paper.here.clear();
    let take = Action::Take {
        shard: Shard(0),
        why: Why::Given,
    };
    assert_eq!(paper.look(), [take]);
}

/// From the end of the lease and the margin, to the next look.
pub(crate) fn shards_of_the_dead_are_taken_after_the_margin() {
    let mut paper = Paper::new(2, &[Some(1), Some(2)]);
    paper.live(TTL * 2);
    paper.dies(2);
    let ends = paper.view.members[1].expires;
    let mut over = None;
    for _ in 0..1_000 {
        let actions = paper.look();
        if !taken(&actions).is_empty() {
            over = Some(paper.view.now.saturating_since(ends));
            assert!(paper.view.now >= ends, "before it was over");
            break;
        }
        paper.pass(millis(10));
    }
    let over = over.expect("somebody takes it");
    assert!(over >= MARGIN && over <= MARGIN + LOOK, "{over:?}");
}

/// All leases are over, and nobody is dead.
pub(crate) fn who_joins_waits_a_whole_ttl() {
    let mut paper = Paper::new(2, &[Some(2); 4]);
    paper.dies(2);
    paper.view.members[1].expires = paper.view.now;
    let begin = paper.at;
    let taken_at = loop {
        if !taken(&paper.look()).is_empty() {
            break paper.at;
        }
        paper.pass(LOOK);
    };
    assert!(taken_at - begin >= TTL, "{:?}", taken_at - begin);
    assert!(taken_at - begin <= TTL + LOOK * 2);
}

/// The registry does not answer for three TTLs. Then the others renew a moment later than this node.
pub(crate) fn a_stall_moves_no_shard() {
    let stalls: [fn(&mut Paper); 2] = [
        |paper| {
            for _ in 0..15 {
                paper.pass(Duration::from_secs(1));
                paper.miss();
            }
        },
        // One look that hangs is none that fails.
        |paper| paper.pass(TTL * 3),
    ];
    for stall in stalls {
        let mut paper = Paper::new(3, &[Some(1), Some(2), Some(3)]);
        paper.live(TTL * 2);
        stall(&mut paper);
        let alive = std::mem::take(&mut paper.alive);
        assert_eq!(paper.live(Duration::from_secs(2)), []);
        paper.alive = alive;
        assert_eq!(paper.live(TTL * 3), []);
    }
}

/// A failed look in between begins the TTL anew, however soon the next one is.
pub(crate) fn a_look_that_fails_is_a_gap() {
    let mut paper = Paper::new(2, &[Some(1), Some(2)]);
    paper.live(TTL * 2);
    assert!(paper.control.is_steady(paper.at));
    paper.miss();
    assert!(!paper.control.is_steady(paper.at));
    paper.live(TTL - LOOK);
    assert!(!paper.control.is_steady(paper.at));
    paper.live(LOOK * 3);
    assert!(paper.control.is_steady(paper.at));
}

/// By a clock that was set forward all leases are over.
pub(crate) fn a_step_of_the_registrys_clock_moves_no_shard() {
    let mut paper = Paper::new(2, &[Some(1), Some(2)]);
    paper.live(TTL * 2);
    paper.view.now = paper.view.now + Duration::from_secs(3_600);
    let alive = std::mem::take(&mut paper.alive);
    assert_eq!(paper.live(millis(500)), []);
    paper.alive = alive;
    assert_eq!(paper.live(TTL * 3), []);
    paper.view.now = paper.view.now.saturating_sub(Duration::from_secs(3_600));
    assert_eq!(paper.live(TTL * 3), []);
}

/// Those whose owner is gone for longest, then those that it was given, then free ones.
pub(crate) fn what_is_overdue_is_taken_first() {
    let mut paper = Paper::new(1, &[None, Some(3), Some(1), Some(2)]);
    paper.here.clear();
    let now = paper.view.now;
    for (id, over) in [(2, 2), (3, 1)] {
        let mut dead = member(id, &format!("node-{id}"));
        dead.expires = now;
        paper.view.members.push(dead);
        paper.view.members.last_mut().expect("it").expires =
            now.saturating_sub(Duration::from_secs(over));
    }
    // It works on nothing meanwhile.
    for _ in 0..30 {
        let looked = Looked {
            sent: paper.at,
            came: paper.at,
            renewed: true,
        };
        let nothing = countwheel_cluster::View {
            holdings: Vec::new(),
            ..paper.view.clone()
        };
        paper.control.seen(looked, &nothing, &paper.here);
        paper.pass(LOOK);
        paper.view.members[0].expires = paper.view.now + TTL;
    }
    let order = taken(&paper.look());
    assert_eq!(order, [Shard(3), Shard(1), Shard(2), Shard(0)]);
}

pub(crate) fn a_shard_that_nobody_takes_is_anybodys() {
    let mut paper = Paper::new(2, &[None; 8]);
    let first = paper.live(millis(500));
    assert_eq!(taken(&first).len(), 4);
    // Node 2 renews, and takes nothing.
    let then = paper.live(Duration::from_secs(2));
    assert_eq!(taken(&then).len(), 4, "{then:?}");
}

/// Node 2 has renewed a moment ago, and is to have half.
pub(crate) fn a_node_that_comes_is_given_its_share_two_at_a_time() {
    let mut paper = Paper::new(2, &[Some(1); 8]);
    let actions = paper.look();
    assert_eq!(given(&actions).len(), 2, "{actions:?}");
    assert_eq!(paper.look(), [], "they are being handed over");
    let (first, to) = given(&actions)[0];
    assert_eq!(to, NodeId(2));
    paper.pass(LOOK);
    paper.owned(first, Some(to));
    paper.here.remove(&first);
    paper.ended(first, true);
    paper.pass(LOOK);
    assert_eq!(given(&paper.look()).len(), 1);
}

pub(crate) fn a_hand_over_ends_where_all_have_their_share() {
    let mut paper = Paper::new(2, &[Some(1); 9]);
    let done = paper.live(Duration::from_secs(10));
    assert_eq!(given(&done).len(), 4, "{done:?}");
    assert_eq!(paper.live(MINUTE * 3), []);
}

pub(crate) fn nothing_is_given_to_who_has_not_renewed() {
    let mut paper = Paper::new(2, &[Some(1); 8]);
    paper.dies(2);
    paper.view.members[1].expires = paper.view.now + millis(300);
    assert_eq!(paper.look(), []);
}

/// It came from another node: it stays for a minute.
pub(crate) fn a_shard_moves_once_a_minute() {
    let mut paper = Paper::new(2, &[Some(1), Some(2)]);
    paper.here.clear();
    paper.live(LOOK);
    assert!(paper.here.contains_key(&Shard(0)));
    paper.view.holdings[0].wanted = Some("node-2".to_owned());
    assert_eq!(paper.live(MINUTE - LOOK * 2), []);
    let done = paper.live(LOOK * 3);
    let wish = Action::HandOver {
        shard: Shard(0),
        to: NodeId(2),
        reason: Reason::Wanted,
    };
    assert_eq!(done, [wish]);
}

pub(crate) fn a_node_that_drains_gives_all_away_at_once() {
    let mut paper = Paper::new(2, &[Some(1), Some(1), Some(1), Some(2)]);
    paper.here.clear();
    paper.live(LOOK * 2);
    assert_eq!(paper.here.len(), 3);
    paper.view.members[0].is_draining = true;
    let done = paper.live(Duration::from_secs(1));
    assert_eq!(given(&done).len(), 3, "it waits no minute");
    let drains = |action: &Action| {
        matches!(
            action,
            Action::HandOver {
                reason: Reason::Drains,
                ..
            }
        )
    };
    assert!(done.iter().all(drains));
    assert!(!paper.control.has_to_give());
}

pub(crate) fn a_node_that_drains_is_given_nothing() {
    let mut paper = Paper::new(3, &[Some(1); 9]);
    paper.view.members[1].is_draining = true;
    let done = paper.live(Duration::from_secs(10));
    assert!(!given(&done).is_empty());
    assert!(
        given(&done).iter().all(|(_, to)| *to == NodeId(3)),
        "{done:?}"
    );
}

pub(crate) fn where_all_drain_the_shards_stay_and_are_taken() {
    let mut paper = Paper::new(1, &[Some(1), None]);
    paper.view.members[0].is_draining = true;
    let done = paper.live(MINUTE);
    assert_eq!(taken(&done), [Shard(1)]);
    assert_eq!(given(&done), []);
}

pub(crate) fn who_leaves_takes_nothing_and_gives_all() {
    let mut paper = Paper::new(2, &[Some(1), Some(1), None, Some(2)]);
    paper.live(LOOK);
    paper.owned(Shard(2), None);
    paper.here.remove(&Shard(2));
    paper.control.leave();
    assert!(paper.control.has_to_give());
    let done = paper.live(Duration::from_secs(2));
    assert_eq!(given(&done), [(Shard(0), NodeId(2)), (Shard(1), NodeId(2))]);
    assert_eq!(taken(&done), []);
    assert!(!paper.control.has_to_give());
}

/// The last one has nobody to give them to.
pub(crate) fn the_last_to_leave_has_nothing_to_give() {
    let mut paper = Paper::new(1, &[Some(1), Some(1)]);
    paper.control.leave();
    assert_eq!(paper.look(), []);
    assert!(!paper.control.has_to_give());
}

/// A scheduler without work would not hear of it by a commit.
pub(crate) fn what_another_has_taken_ends_here() {
    let mut paper = Paper::new(2, &[Some(1), Some(2)]);
    paper.live(LOOK);
    paper.owned(Shard(0), Some(NodeId(2)));
    assert_eq!(paper.look(), [Action::End { shard: Shard(0) }]);
}

/// All of it while this node saw nothing: timers that were set meanwhile are not known here.
pub(crate) fn what_another_has_had_ends_here() {
    let mut paper = Paper::new(2, &[Some(1), Some(2)]);
    paper.live(LOOK);
    paper.view.holdings[0].fence = Fence(2);
    assert_eq!(paper.look(), [Action::End { shard: Shard(0) }]);
    paper.here.remove(&Shard(0));
    paper.ended(Shard(0), true);
    paper.pass(LOOK);
    assert_eq!(taken(&paper.look()), [Shard(0)]);
}

/// A look that was under way while a shard was taken shows the owner before.
pub(crate) fn a_look_from_before_says_nothing() {
    let mut paper = Paper::new(2, &[None, Some(2)]);
    let before = paper.at;
    let take = paper.look();
    assert_eq!(taken(&take), [Shard(0)]);
    paper.here.insert(Shard(0), WORKS);
    paper.pass(LOOK);
    paper.ended(Shard(0), true);
    assert_eq!(paper.look_sent(before), []);
    assert!(paper.control.is_outdated(Shard(0), before));
}

pub(crate) fn what_ended_by_itself_is_taken_again() {
    let mut paper = Paper::new(2, &[Some(1), Some(2)]);
    paper.here.insert(Shard(0), Standing::Ended);
    assert_eq!(taken(&paper.look()), [Shard(0)]);
    paper.here.insert(Shard(0), Standing::Stops);
    paper.ended(Shard(0), false);
    paper.pass(MINUTE);
    assert_eq!(paper.look(), [], "it waits for the end");
}

/// Three attempts, with pauses that grow. Then another node may try.
pub(crate) fn what_cannot_be_taken_is_let_go() {
    let mut paper = Paper::new(2, &[Some(1), Some(2)]);
    paper.here.clear();
    let mut all = Vec::new();
    for _ in 0..50 {
        for action in paper.look() {
            all.push(action);
            let is_taken = matches!(action, Action::Take { .. });
            paper.ended(Shard(0), !is_taken);
            if !is_taken {
                paper.owned(Shard(0), None);
            }
        }
        paper.pass(LOOK);
    }
    let take = Action::Take {
        shard: Shard(0),
        why: Why::Given,
    };
    assert_eq!(all, [take, take, take, Action::LetGo { shard: Shard(0) }]);
}

/// The registry says no: it is tried again.
pub(crate) fn what_cannot_be_let_go_is_tried_again() {
    let mut paper = Paper::new(2, &[Some(1), Some(2)]);
    paper.here.clear();
    let mut tries = 0;
    for _ in 0..200 {
        for action in paper.look() {
            tries += u64::from(matches!(action, Action::Take { .. }));
            paper.ended(Shard(0), false);
        }
        paper.pass(LOOK);
    }
    assert!(tries > 9, "{tries}");
}

/// Nobody else could have it.
pub(crate) fn the_only_node_lets_go_of_nothing() {
    let mut paper = Paper::new(1, &[Some(1)]);
    paper.here.clear();
    let mut tries = 0;
    for _ in 0..200 {
        for action in paper.look() {
            assert!(matches!(action, Action::Take { .. }), "{action:?}");
            tries += 1;
            paper.ended(Shard(0), false);
        }
        paper.pass(LOOK);
    }
    assert!(tries > 5, "{tries}");
}

pub(crate) fn who_was_removed_joins_again_and_waits() {
    let mut paper = Paper::new(2, &[Some(2), Some(2)]);
    paper.live(TTL * 2);
    assert_eq!(
        paper.control.missed(paper.at, &RegistryError::NotJoined),
        [Action::Rejoin]
    );
    assert!(!paper.control.believes(paper.at));
    paper.dies(2);
    paper.view.members[1].expires = paper.view.now.saturating_sub(Duration::from_secs(1));
    paper.view.members[0].node.id = NodeId(9);
    paper.view.members[0].expires = paper.view.now + TTL;
    let looked = Looked {
        sent: paper.at,
        came: paper.at,
        renewed: true,
    };
    let actions = paper
        .control
        .joined(NodeId(9), looked, &paper.view, &paper.here);
    assert_eq!((actions, paper.control.me()), (vec![], NodeId(9)));
    assert!(paper.control.believes(paper.at));
}

/// The same gap of looks, but of one that was never noticed as one.
pub(crate) fn joining_again_is_a_gap() {
    let mut paper = Paper::new(2, &[Some(1), Some(2)]);
    paper.live(TTL * 2);
    assert!(paper.control.is_steady(paper.at));
    let looked = Looked {
        sent: paper.at,
        came: paper.at,
        renewed: true,
    };
    paper
        .control
        .joined(NodeId(1), looked, &paper.view, &paper.here);
    assert!(!paper.control.is_steady(paper.at));
}

pub(crate) fn who_is_not_in_the_view_joins_again() {
    let mut paper = Paper::new(2, &[Some(2)]);
    paper.view.members.remove(0);
    assert_eq!(paper.look(), [Action::Rejoin]);
}

/// From before the renewal was sent, half a second less than the lease.
pub(crate) fn the_lease_is_believed_from_when_it_was_asked_for() {
    let mut paper = Paper::new(1, &[Some(1)]);
    let sent = paper.at;
    paper.look();
    let until = sent + TTL - Instant::ZERO - millis(500);
    let until = Instant::ZERO + until;
    assert!(
        paper
            .control
            .believes(Instant::from_nanos(until.as_nanos() - 1))
    );
    assert!(!paper.control.believes(until));
}

pub(crate) fn it_looks_each_fifth_of_a_second_and_renews_each_half() {
    let mut control = Control::new(NodeId(1), NodeConfig::default(), 7);
    let view = Paper::new(1, &[]).view;
    let here = std::collections::BTreeMap::new();
    let (mut looks, mut renewals) = (0, 0);
    let mut last = Instant::ZERO;
    while control.next_look() < Instant::ZERO + MINUTE {
        let now = control.next_look();
        let span = now - last;
        let usual = millis(150)..=millis(251);
        assert!(looks == 0 || usual.contains(&span), "{span:?}");
        last = now;
        let renewed = control.renews(now);
        let looked = Looked {
            sent: now,
            came: now,
            renewed,
        };
        let mut view = view.clone();
        view.now = view.now + (now - Instant::ZERO);
        control.seen(looked, &view, &here);
        looks += 1;
        renewals += u64::from(renewed);
    }
    assert!((280..=320).contains(&looks), "{looks}");
    assert!((100..=150).contains(&renewals), "{renewals}");
}

pub(crate) mod sentences {
    crate::sentences! {
        free_shards_are_taken_at_once,
        what_it_was_given_is_taken_at_once,
        shards_of_the_dead_are_taken_after_the_margin,
        who_joins_waits_a_whole_ttl,
        a_stall_moves_no_shard,
        a_look_that_fails_is_a_gap,
        a_step_of_the_registrys_clock_moves_no_shard,
        what_is_overdue_is_taken_first,
        a_shard_that_nobody_takes_is_anybodys,
        a_node_that_comes_is_given_its_share_two_at_a_time,
        a_hand_over_ends_where_all_have_their_share,
        nothing_is_given_to_who_has_not_renewed,
        a_shard_moves_once_a_minute,
        a_node_that_drains_gives_all_away_at_once,
        a_node_that_drains_is_given_nothing,
        where_all_drain_the_shards_stay_and_are_taken,
        who_leaves_takes_nothing_and_gives_all,
        the_last_to_leave_has_nothing_to_give,
        what_another_has_taken_ends_here,
        what_another_has_had_ends_here,
        a_look_from_before_says_nothing,
        what_ended_by_itself_is_taken_again,
        what_cannot_be_taken_is_let_go,
        what_cannot_be_let_go_is_tried_again,
        the_only_node_lets_go_of_nothing,
        who_was_removed_joins_again_and_waits,
        joining_again_is_a_gap,
        who_is_not_in_the_view_joins_again,
        the_lease_is_believed_from_when_it_was_asked_for,
        it_looks_each_fifth_of_a_second_and_renews_each_half,
    }
}
