//! All properties of stores hold on the simulated server, and it does what it says.

use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::conformance::{self, Reopen, varied_records};
use countwheel_durable::store::{
    Before, Change, Durability, Fence, Lease, Shard, Store, StoreError,
};
use countwheel_durable::{Record, Revision, Shards, TroubleReason};
use countwheel_postgres::PostgresStore;
use countwheel_postgres::testing::{SimulatedFaults, SimulatedPostgres};
use countwheel_time::{Clock, ManualClock};

const WITHIN: Duration = Duration::from_secs(30);

struct Tested {
    server: SimulatedPostgres,
    clock: ManualClock,
    store: PostgresStore,
}

impl Tested {
    fn new(shards: Shards) -> Self {
        let clock = ManualClock::new();
        let passing = clock.clone();
        let server = SimulatedPostgres::new(shards, 7, move |pause| passing.advance(pause));
        let store = PostgresStore::on_simulated(&server, 1, Arc::new(clock.clone()), WITHIN);
        Self {
            server,
            clock,
            store,
        }
    }

    fn node(&self, node: u128) -> PostgresStore {
        PostgresStore::on_simulated(&self.server, node, Arc::new(self.clock.clone()), WITHIN)
    }

    fn faults(&self, set: impl FnOnce(&mut SimulatedFaults)) {
        let mut faults = SimulatedFaults::default();
        set(&mut faults);
        self.server.set_faults(faults);
    }
}

impl Reopen for Tested {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn reopen(&mut self) {
        self.store = self.node(1);
    }
}

fn shards(count: u16) -> Shards {
    Shards::new(count).expect("from 1 to 1024")
}

/// A change for which nothing is read before.
fn given(revision: u64) -> [Change; 1] {
    [Change::Given(Revision(revision))]
}

/// A change for which nothing is read before, whatever is there.
fn unread(record: Record) -> Change {
    Change::Put {
        record: Box::new(record),
        before: Before::Absent,
    }
}

fn take(store: &PostgresStore) -> Lease {
    store.acquire(Shard::ONLY).expect("nothing fails").lease
}

#[test]
fn every_property_of_a_store_holds() {
    conformance::check(|| Box::new(Tested::new(shards(Shards::MAX))));
}

#[test]
fn a_lost_answer_is_made_certain() {
    let tested = Tested::new(Shards::ONE);
    let lease = take(&tested.store);
    tested.faults(|faults| faults.answer_lost = 2);
    for revision in 1..=50 {
        tested
            .store
            .commit(lease, &given(revision))
            .expect("it is certain");
        assert_eq!(tested.server.turns(Shard::ONLY, lease.fence), revision);
    }
}

#[test]
fn a_late_statement_of_a_replaced_owner_changes_nothing() {
    let tested = Tested::new(Shards::ONE);
    let other = tested.node(2);
    for _ in 0..20 {
        let lease = take(&tested.store);
        tested.faults(|faults| faults.late = 1);
        let given_up = tested.store.commit(lease, &given(1));
        assert!(matches!(given_up, Err(StoreError::Lost { .. })));
        // What is on its way stays there, and nothing else goes wrong.
        tested.faults(|faults| faults.refused = u64::MAX);
        let next = take(&other);
        let turns = tested.server.turns(Shard::ONLY, lease.fence);
        assert!(turns <= 1 && next.fence > lease.fence);
        tested.faults(|_| {});
        assert_eq!(tested.server.turns(Shard::ONLY, lease.fence), turns);
        let refused = tested.store.commit(lease, &given(1));
        assert!(matches!(refused, Err(StoreError::Fenced { .. })));
    }
}

/// A taking whose answer does not come is sent again. The first sending came after another node had taken
/// the shard as well, and made the node that was replaced its owner again: that one found the other's
/// turn in the place of its own, and asked for it without an end.
#[test]
fn a_taking_that_comes_late_takes_nothing() {
    let tested = Tested::new(Shards::ONE);
    let other = tested.node(2);
    let mut late = 0;
    for _ in 0..200 {
        tested.faults(|faults| faults.late = 3);
        let taken = tested.store.acquire(Shard::ONLY);
        // What is on its way stays there, and nothing else goes wrong.
        tested.faults(|faults| faults.refused = u64::MAX);
        let next = take(&other);
        other.commit(next, &given(1)).expect("it is owned");
        // It comes.
        tested.faults(|_| {});
        assert_eq!(tested.server.owner(Shard::ONLY), next.fence);
        other.commit(next, &given(2)).expect("it is owned");
        let Ok(taken) = taken else {
            late += 1;
            continue;
        };
        let refused = tested.store.commit(taken.lease, &given(3));
        assert!(matches!(refused, Err(StoreError::Fenced { .. })));
    }
    assert!(late > 5, "{late}");
}

#[test]
fn a_commit_that_is_given_up_takes_its_time() {
    let tested = Tested::new(Shards::ONE);
    let lease = take(&tested.store);
    let before = tested.clock.now();
    tested.faults(|faults| faults.request_lost = 1);
    let given_up = tested.store.commit(lease, &given(1));
    assert!(matches!(given_up, Err(StoreError::Lost { .. })));
    let took = tested.clock.now().saturating_since(before);
    assert!(took >= WITHIN, "{took:?}");
}

#[test]
fn a_failover_that_loses_commits_is_noticed() {
    let tested = Tested::new(Shards::ONE);
    let lease = take(&tested.store);
    for revision in 1..=3 {
        tested
            .store
            .commit(lease, &given(revision))
            .expect("nothing fails");
    }
    let lost = tested.server.fail_over(2);
    assert_eq!(lost[&Shard::ONLY].turns, 2);
    let noticed = tested.store.commit(lease, &given(4));
    assert!(
        matches!(&noticed, Err(StoreError::Lost { reason, .. }) if reason.contains("turn 3")),
        "{noticed:?}"
    );
    let ownership = tested.store.acquire(Shard::ONLY).expect("nothing fails");
    assert_eq!(ownership.last_revision, Revision(1 + (1 << 20)));
}

/// A process ended in a commit, and the next one went on under the same lease. The first commit came late, in
/// the place of the next one, and was taken for it, since it had as many changes.
#[test]
fn a_commit_of_the_process_before_is_not_taken_for_another() {
    let tested = Tested::new(Shards::ONE);
    let observer = PostgresStore::on_simulated(
        &tested.server.observer(),
        9,
        Arc::new(tested.clock.clone()),
        WITHIN,
    );
    let (mut told, mut late) = (0, 0);
    for round in 1..=300 {
        let [before, after] = [2 * round, 2 * round + 1].map(|revision| {
            let mut record = varied_records().swap_remove(0);
            record.revision = Revision(revision);
            record
        });
        let clock = Arc::new(tested.clock.clone());
        let ended = PostgresStore::on_simulated(&tested.server, 1, clock, Duration::ZERO);
        let lease = take(&ended);
        tested.faults(|faults| faults.late = 1);
        let given_up = ended.commit(lease, &[unread(before)]);
        assert!(matches!(given_up, Err(StoreError::Lost { .. })));
        // What is on its way stays there, and nothing else goes wrong.
        tested.faults(|faults| faults.refused = u64::MAX);
        let committed = tested.node(1).commit(lease, &[unread(after.clone())]);
        if committed.is_ok() {
            told += 1;
            let found = observer.get(Shard::ONLY, &after.name);
            let found = found.expect("nothing fails");
            assert_eq!(found.map(|found| found.revision), Some(after.revision));
        } else {
            late += 1;
        }
        tested.faults(|_| {});
    }
    assert!(told > 50 && late > 0, "{told} and {late}");
}

/// How many losses the store says.
fn losses(store: &PostgresStore) -> usize {
    let troubles = store.troubles();
    let losses = troubles.iter().map(|trouble| trouble.reason);
    losses
        .filter(|reason| *reason == TroubleReason::TailLost)
        .count()
}

/// A failover lost commits, and another node took the shard and went on from what was left. The owner whose
/// commits were lost was told that it was replaced, and nobody said that anything was lost.
#[test]
fn a_loss_is_noticed_by_an_owner_that_was_replaced() {
    for next_turns in 0..4 {
        let tested = Tested::new(Shards::ONE);
        let lease = take(&tested.store);
        for revision in 1..=3 {
            let committed = tested.store.commit(lease, &given(revision));
            committed.expect("nothing fails");
        }
        assert_eq!(tested.server.fail_over(2)[&Shard::ONLY].turns, 2);
        let other = tested.node(2);
        let next = take(&other);
        for _ in 0..next_turns {
            other.commit(next, &given(1 << 30)).expect("nothing fails");
        }
        // With changes, and with nothing but the question whether it is still the owner.
        let changes = given(4);
        let asked = if next_turns == 1 { &[][..] } else { &changes };
        let refused = tested.store.commit(lease, asked);
        assert!(matches!(refused, Err(StoreError::Fenced { .. })));
        assert_eq!(losses(&tested.store), 1, "after {next_turns} turns");
    }
}

/// A failover lost a taking with all that the owner had committed since. The owner was told that somebody
/// else is the owner, and nobody said that anything was lost.
#[test]
fn a_loss_is_noticed_by_an_owner_whose_taking_is_lost() {
    let tested = Tested::new(Shards::ONE);
    let other = tested.node(2);
    let _before = take(&other);
    let lease = take(&tested.store);
    let committed = tested.store.commit(lease, &given(1));
    committed.expect("nothing fails");
    assert!(tested.server.fail_over(2)[&Shard::ONLY].taken);
    let refused = tested.store.commit(lease, &given(2));
    assert!(matches!(refused, Err(StoreError::Fenced { .. })));
    assert_eq!(losses(&tested.store), 1);
}

/// A failover took longer than a commit is sent again for. The ownership ended with the commit that was
/// given up, the next one went on from what was left, and nobody said that anything was lost.
#[test]
fn a_loss_is_noticed_after_a_commit_that_was_given_up() {
    for takes in [true, false] {
        let tested = Tested::new(Shards::ONE);
        let lease = take(&tested.store);
        let committed = tested.store.commit(lease, &given(1));
        committed.expect("nothing fails");
        tested.faults(|faults| faults.request_lost = 1);
        let given_up = tested.store.commit(lease, &given(2));
        assert!(matches!(given_up, Err(StoreError::Lost { .. })));
        tested.server.fail_over(1);
        tested.faults(|_| {});
        match takes {
            true => drop(take(&tested.store)),
            false => tested.store.reach().expect("it is there"),
        }
        assert_eq!(losses(&tested.store), 1);
    }
}

#[test]
fn an_owner_that_was_replaced_long_ago_notices_no_loss() {
    for next_turns in [0, 1, 2, 1_100] {
        let tested = Tested::new(Shards::ONE);
        let other = tested.node(2);
        let lease = take(&tested.store);
        let committed = tested.store.commit(lease, &given(1));
        committed.expect("nothing fails");
        tested.server.fail_over(0);
        let next = take(&other);
        for _ in 0..next_turns {
            other.commit(next, &given(1 << 30)).expect("nothing fails");
        }
        let refused = tested.store.commit(lease, &given(2));
        assert!(matches!(refused, Err(StoreError::Fenced { .. })));
        assert_eq!((losses(&tested.store), losses(&other)), (0, 0));
    }
}

/// The first turn of a shard said nothing of the server's history. Where a failover left that turn alone,
/// the next owner began at the first revision again.
#[test]
fn a_failover_that_loses_all_turns_gives_no_revision_twice() {
    let tested = Tested::new(Shards::ONE);
    let lease = take(&tested.store);
    tested
        .store
        .commit(lease, &given(9))
        .expect("nothing fails");
    assert_eq!(tested.server.fail_over(1)[&Shard::ONLY].turns, 1);
    let next = tested.store.acquire(Shard::ONLY).expect("nothing fails");
    assert_eq!(next.last_revision, Revision(1 << 20));
}

/// An owner that took the shard after a failover goes on 2^20 higher. A second failover lost its taking
/// and all of its commits; the next owner found the turn of before the first failover, went on as far,
/// and gave the same revisions to other timers.
#[test]
fn two_failovers_with_nothing_left_between_them_give_no_revision_twice() {
    let tested = Tested::new(Shards::ONE);
    let lease = take(&tested.store);
    let commit = |lease, revision| {
        let committed = tested.store.commit(lease, &given(revision));
        committed.expect("nothing fails");
    };
    commit(lease, 1);
    tested.server.fail_over(0);
    let between = tested.store.acquire(Shard::ONLY).expect("nothing fails");
    assert_eq!(between.last_revision, Revision(1 + (1 << 20)));
    let told = between.last_revision.0 + 5;
    commit(between.lease, told);
    assert_eq!(tested.server.fail_over(2)[&Shard::ONLY].turns, 1);
    let next = tested.store.acquire(Shard::ONLY).expect("nothing fails");
    assert!(next.last_revision > Revision(told), "{next:?}");
}

#[test]
fn a_taking_that_is_lost_gives_no_right_and_its_number_is_not_given_again() {
    let tested = Tested::new(Shards::ONE);
    let first = take(&tested.store);
    let (one, other) = (tested.node(2), tested.node(3));
    let lost = take(&one);
    assert!(tested.server.fail_over(1)[&Shard::ONLY].taken);
    assert_eq!(tested.server.owner(Shard::ONLY), first.fence);
    let again = take(&other);
    assert_eq!((lost.fence, again.fence), (Fence(2), Fence(2 + (1 << 20))));
    assert!(matches!(
        one.commit(lost, &given(1)),
        Err(StoreError::Fenced { .. })
    ));
    other.commit(again, &given(1)).expect("it is the owner");
}

/// The taking of the second owner was lost with its commits. By its token the first was the owner again,
/// and gave the revisions that the second had given.
#[test]
fn an_owner_whose_successor_is_forgotten_does_not_go_on() {
    let tested = Tested::new(Shards::ONE);
    let first = take(&tested.store);
    let committed = tested.store.commit(first, &given(1));
    committed.expect("nothing fails");
    let other = tested.node(2);
    let second = take(&other);
    other.commit(second, &given(2)).expect("it is the owner");
    assert!(tested.server.fail_over(2)[&Shard::ONLY].taken);
    assert_eq!(tested.server.owner(Shard::ONLY), first.fence);
    let over = tested.store.commit(first, &given(2));
    assert!(matches!(over, Err(StoreError::Lost { .. })), "{over:?}");
    let fenced = other.commit(second, &given(3));
    assert!(matches!(fenced, Err(StoreError::Fenced { .. })));
    assert_eq!(other.troubles().len(), 1, "its commit is lost");
    let next = tested.store.acquire(Shard::ONLY).expect("nothing fails");
    assert!(next.last_revision > Revision(2), "{next:?}");
}

/// Where a standby has all that was acknowledged, takings as well, nobody has to take a shard anew.
#[test]
fn an_owner_goes_on_after_a_failover_that_loses_nothing() {
    let mut tested = Tested::new(Shards::ONE);
    tested.server.set_durability(Durability::Standby);
    tested.reopen();
    let lease = take(&tested.store);
    for revision in 1..=3 {
        let committed = tested.store.commit(lease, &given(revision));
        committed.expect("it is the owner");
        assert!(tested.server.fail_over(0).is_empty());
    }
    assert_eq!(tested.server.turns(Shard::ONLY, lease.fence), 3);
}

/// A taking that only the server has is forgotten with it: a shard is not taken before the standby has
/// that, too, also where the warning was in an answer that was lost.
#[test]
fn a_shard_is_taken_once_the_standby_knows() {
    let mut tested = Tested::new(Shards::ONE);
    tested.server.set_durability(Durability::Standby);
    tested.reopen();
    let mut taken = 0;
    for _ in 0..200 {
        tested.faults(|faults| (faults.answer_lost, faults.unreplicated) = (3, 3));
        let ownership = tested.store.acquire(Shard::ONLY);
        tested.server.fail_over(0);
        if let Ok(ownership) = ownership {
            taken += 1;
            assert_eq!(tested.server.owner(Shard::ONLY), ownership.lease.fence);
        }
    }
    assert!(taken > 20, "{taken}");
}

#[test]
fn a_loss_is_said_also_if_another_has_taken_the_shard() {
    let tested = Tested::new(Shards::ONE);
    let lease = take(&tested.store);
    for revision in [1, 2] {
        let committed = tested.store.commit(lease, &given(revision));
        committed.expect("nothing fails");
    }
    let lost = tested.server.fail_over(1);
    assert_eq!(lost[&Shard::ONLY].turns, 1);
    let other = tested.node(2);
    let next = take(&other);
    assert_eq!(other.troubles(), []);
    // Also where another turn stands in the place of the lost one.
    for _ in 0..2 {
        let fenced = tested.store.commit(lease, &given(3));
        assert!(fenced.is_err(), "{fenced:?}");
        other.commit(next, &given(9)).expect("it is the owner");
    }
    let told = tested.store.troubles();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].detail.contains("turn 2 of shard 0"), "{told:?}");

    // A shard that was taken without a loss has none, whatever its next owner does.
    let third = tested.node(3);
    let last = take(&third);
    third.commit(last, &given(10)).expect("it is the owner");
    let replaced = other.commit(next, &given(11));
    assert!(matches!(replaced, Err(StoreError::Fenced { .. })));
    assert_eq!(other.troubles(), []);
}

#[test]
fn a_failover_loses_what_the_server_warned_of_and_nobody_was_told() {
    let tested = Tested::new(Shards::ONE);
    let lease = take(&tested.store);
    tested.faults(|faults| faults.unreplicated = 1);
    let unsure = tested.store.commit(lease, &given(1));
    assert!(matches!(unsure, Err(StoreError::Lost { .. })));
    assert_eq!(tested.server.turns(Shard::ONLY, lease.fence), 1);
    assert!(tested.server.fail_over(0).is_empty());
    assert_eq!(tested.server.turns(Shard::ONLY, lease.fence), 0);
}

/// The warning that the standby may not have a commit is in its answer. Where the answer was lost, the
/// commit was found when it was asked for, and acknowledged; a failover lost it.
#[test]
fn a_commit_that_is_found_is_the_standbys_before_anybody_is_told() {
    let mut told = 0;
    let tested = Tested::new(Shards::ONE);
    for _ in 0..200 {
        let lease = take(&tested.store);
        tested.faults(|faults| (faults.answer_lost, faults.unreplicated) = (2, 2));
        let committed = tested.store.commit(lease, &given(1));
        tested.server.fail_over(0);
        if committed.is_ok() {
            told += 1;
            assert_eq!(tested.server.turns(Shard::ONLY, lease.fence), 1);
        }
        tested.faults(|_| {});
    }
    assert!(told > 50, "{told}");
}

#[test]
fn a_full_server_says_so_and_has_room_again() {
    let tested = Tested::new(Shards::ONE);
    let lease = take(&tested.store);
    tested.faults(|faults| faults.full = 1);
    let refused = (0..20).find_map(|_| tested.store.commit(lease, &given(1)).err());
    assert!(refused.is_some_and(|error| error.is_full()));
    tested.faults(|_| {});
    tested
        .store
        .commit(lease, &given(2))
        .expect("there is room again");
}

#[test]
fn what_an_owner_counts_is_known_to_others_as_it_saved_it_last() {
    let tested = Tested::new(Shards::ONE);
    let lease = take(&tested.store);
    let other = tested.node(2);
    let saved = || other.saved_counts(Shard::ONLY).expect("nothing fails");
    let counts = || tested.store.counts(Shard::ONLY).expect("it is owned");
    assert_eq!(saved(), None);
    let (mut last, mut fresh, mut old) = (None, 0, 0);
    for record in varied_records() {
        tested.faults(|faults| faults.refused = 3);
        let done = tested.store.commit(lease, &[unread(record)]);
        tested.faults(|_| {});
        let (now, found) = (counts(), saved());
        if found.as_ref() == Some(&now) {
            fresh += usize::from(done.is_ok());
            last = found;
        } else {
            // The saving was refused: they are what they were.
            assert_eq!(found, last);
            old += usize::from(found.is_some());
        }
    }
    assert!(fresh > 0 && old > 0, "{fresh} and {old}");
    // What the owner has is at hand.
    let own = tested.store.saved_counts(Shard::ONLY);
    assert_eq!(own.expect("nothing fails"), None);
}
