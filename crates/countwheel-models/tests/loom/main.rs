//! Small models, in every order and with every value that a thread may read.

mod alarms;
#[path = "../shared/clock.rs"]
mod clock;
mod host;
mod models;
#[path = "../shared/planting.rs"]
mod planting;
#[macro_use]
#[path = "../shared/proving.rs"]
mod proving;
#[path = "../shared/stats.rs"]
mod stats;
mod sync;

// The product's files, with mistakes that can be switched on: `concurrent` and `planted`.
include!(concat!(env!("OUT_DIR"), "/timer/lib.rs"));

use planted::Bug;

// What the product's files find at its root.
use clock::Patience;
use countwheel::{Clock, Driver, Fired, Instant, Layout, Resolution, TimerKey, Unfired};
use stats::ShardLoad;

prove! {
    2 threads: models::an_insert_wakes_a_host_that_falls_asleep finds
        SleepWithoutSecondLook, SleepWithoutFence, LookWithoutFence, PublishAfterLook,
        BoundNotLowered;
    2 threads: models::an_earlier_deadline_shortens_the_sleep finds
        RefineOutsideLock, BoundNotLowered, PublishAfterLook, LookWithoutFence;
    3 threads: models::inserts_on_two_shards_are_both_seen finds
        SecondLookAtOneShard, SleepWithoutSecondLook;
    2 threads: models::an_insert_is_seen_while_another_entry_fires finds RaiseOutsideLock;
    3 threads: models::the_earlier_of_two_deadlines_bounds_the_sleep finds
        SleepWithoutSecondLook, BoundNotLowered, PublishAfterLook, RefineOutsideLock;
    3 threads: models::an_insert_wakes_a_host_that_was_roused finds AwakeAfterWake, LookWithoutFence;
    3 threads: models::a_host_that_wakes_by_itself_misses_nothing finds
        SleepWithoutSecondLook, SleepWithoutFence, LookWithoutFence;
    2 threads: models::a_move_to_sooner_wakes_the_host finds MoveNotPublished, SleepWithoutSecondLook;
    2 threads: models::an_insert_at_the_end_of_time_wakes_the_host finds EndOfTimeUnannounced;
    2 threads: models::a_host_is_woken_through_its_latest_waker finds FirstWakerKept;
    2 threads: models::a_host_about_to_sleep_is_roused finds RouseOnlyTheSleeping, TokenForgotten;
    2 threads: models::a_wake_up_before_the_sleep_ends_it finds TokenForgotten;
    3 threads: models::the_last_cancel_of_a_closing_timer_wakes_its_host finds
        LastCancelUnannounced, RouseOnlyTheSleeping;
    2 threads: models::an_entry_fires_or_is_cancelled finds CancelInTwoSteps;
    2 threads: models::one_of_two_cancels_wins finds CancelInTwoSteps;
    3 threads: models::a_close_finds_what_was_accepted finds ClosedBeforeLock;
    3 threads: models::the_accounts_are_right_at_any_moment finds FiredCountedLate;
    2 threads: models::what_a_stop_took_out_never_seems_to_have_fired finds ReturnedNotedLate;
    2 threads: models::no_more_entries_are_pending_than_may_be finds RoomInTwoSteps;
    2 threads: models::no_more_entries_are_counted_than_may_be_pending finds CountedInTurn;
    2 threads: models::what_leaves_gives_its_room_back finds CancelKeepsRoom;
    2 threads: models::a_stop_and_an_executor_share_the_queue finds DrainInTwoSteps;
    2 threads: models::two_stops_share_what_is_left finds DrainInTwoSteps;
    2 threads: models::a_stop_waits_for_what_runs finds StartAfterTake, EndUnannounced;
    2 threads: models::two_tasks_that_stop_do_not_wait_for_each_other finds StopsWaitForEachOther;
    2 threads: models::a_stop_waits_for_a_task_that_stops finds StartAfterTake, EndUnannounced;
    2 threads: models::a_stop_in_async_code_is_woken finds WaiterRegisteredLate, EndUnannounced;
    2 threads: models::a_stop_waits_for_the_host finds HostEndUnannounced;
    2 threads: models::a_returned_ticket_is_issued_again finds TicketKept;
    2 threads: alarms::a_deadline_filed_while_the_alarm_rings_is_rung_for finds
        AlarmStaysSet;
    2 threads: alarms::of_two_deadlines_the_alarm_rings_for_the_earlier finds AlarmPutOff;
}

#[test]
fn every_mistake_has_a_model_that_finds_it() {
    let found = FOUND.concat();
    let missed: Vec<_> = Bug::ALL.iter().filter(|bug| !found.contains(bug)).collect();
    assert!(missed.is_empty(), "nobody finds {missed:?}");
}
