//! Small models of what the patterns are built on, in every order and with every value that a
//! thread may read.

mod models;
#[path = "../shared/planting.rs"]
mod planting;
#[macro_use]
#[path = "../shared/proving.rs"]
mod proving;
#[path = "../loom/sync.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "the patterns need less of it than the timer"
)]
mod sync;

// The product's files, with mistakes that can be switched on: `concurrent` and `planted`.
include!(concat!(env!("OUT_DIR"), "/patterns/lib.rs"));

use planted::Bug;

prove! {
    2 threads: models::a_future_woken_while_it_is_polled_is_polled_again finds
        WokenWhilePolled, WokenUnseen;
    2 threads: models::a_future_is_dropped_once_and_not_while_it_is_polled finds
        DroppedWhilePolled;
    2 threads: models::an_outcome_is_settled_by_one_of_two finds SettledInTwoSteps;
    2 threads: models::a_check_during_a_try_is_not_missed finds CheckedWhileTried;
    3 threads: models::of_two_checks_during_a_try_none_is_missed finds
        CheckedWhileTried, CheckedUnseen;
    2 threads: models::one_of_two_decides finds DecidedInTwoSteps;
    2 threads: models::a_handle_is_given_back_by_whoever_comes_last finds
        ArmedAfterDecision;
    2 threads: models::who_waits_for_an_outcome_is_woken finds SettledInTwoSteps;
}

#[test]
fn every_mistake_has_a_model_that_finds_it() {
    let found = FOUND.concat();
    let missed: Vec<_> = Bug::ALL.iter().filter(|bug| !found.contains(bug)).collect();
    assert!(missed.is_empty(), "nobody finds {missed:?}");
}
