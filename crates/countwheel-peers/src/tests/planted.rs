//! Every planted mistake is found by the test that says what it breaks.

use std::panic::catch_unwind;

use super::{bytes, holding, nodes, outbox, sockets};
use crate::{PlantedBug, plant};

/// The test that has to find it.
fn check_of(bug: PlantedBug) -> fn() {
    match bug {
        PlantedBug::PeersAnswerOldest
        | PlantedBug::PeersSentTwice
        | PlantedBug::PeersUnknownIsNotDone
        | PlantedBug::PeersDeadlineIgnored
        | PlantedBug::PeersWaitingUnbounded
        | PlantedBug::PeersRoomLeaks => || (0..300).for_each(outbox::what_became_of_each_question),
        PlantedBug::PeersHopsUnlimited => holding::what_came_over_two_hops_goes_no_further,
        PlantedBug::PeersNoCertificateNeeded => nodes::who_has_no_certificate_of_ours_is_closed,
        PlantedBug::PeersFrameUnchecked => bytes::the_length_of_a_frame_is_not_believed,
        PlantedBug::PeersClusterUnchecked => bytes::a_stranger_is_not_welcome,
        PlantedBug::PeersCountsUnasked | PlantedBug::PeersUncountedIsNone => {
            nodes::each_owner_counts_its_own
        }
        PlantedBug::PeersSilentStay => sockets::connections_that_say_nothing_keep_nobody_out,
        PlantedBug::PeersOldFrames => holding::what_came_before_a_stop_is_not_done,
        PlantedBug::PeersOldWay => holding::what_comes_late_is_looked_at_again,
        PlantedBug::PeersExpiredIsDone => sockets::what_has_expired_is_not_done,
    }
}

#[test]
fn every_planted_bug_is_found() {
    for &bug in PlantedBug::ALL {
        let check = check_of(bug);
        plant(Some(bug));
        let found = catch_unwind(check).is_err();
        plant(None);
        assert!(found, "{bug:?} is not found");
        check();
    }
    // A hold has a deadline as well.
    plant(Some(PlantedBug::PeersDeadlineIgnored));
    let found = catch_unwind(holding::what_nobody_takes_ends_at_its_deadline).is_err();
    plant(None);
    assert!(found);
}
