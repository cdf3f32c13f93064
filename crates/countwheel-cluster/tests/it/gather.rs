//! Calls for leases on many nodes, sentence by sentence. `sim gathers` has the worlds.

use std::time::Duration;

use countwheel_cluster::{Gathering, NodeId, OFFER, Offers};
use countwheel_time::Instant;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

fn at(span: Duration) -> Instant {
    Instant::ZERO + span
}

fn call(nodes: usize, first: usize, max: u32) -> Gathering {
    Gathering::new(nodes, first, max, at(SECOND), at(SECOND * 20))
}

/// Takes the first of an offer: whether it is confirmed, and what is released.
fn take(
    offers: &mut Offers<&'static str>,
    (from, offer): (NodeId, u64),
    now: Instant,
) -> (bool, Vec<&'static str>) {
    let taken = offers.take(from, offer, &[0], now);
    (taken.is_confirmed, taken.back)
}

pub(crate) mod sentences {
    crate::sentences! {
        what_is_left_of_an_offer_is_released,
        an_offer_is_taken_once_and_a_repeated_question_has_the_same_answer,
        an_offer_that_was_released_is_not_confirmed,
        an_offer_is_another_nodes_alone,
        what_nobody_takes_in_time_is_released,
        what_a_call_has_been_offered_is_released_when_the_call_ends,
        each_node_is_asked_for_an_equal_part_and_in_turns,
        no_more_is_asked_for_at_first_than_there_is_room_for,
        a_call_takes_what_it_has_room_for,
        what_is_not_confirmed_is_not_handed_out,
        a_node_that_gave_all_it_was_asked_for_is_asked_for_the_rest,
        a_node_that_does_not_understand_is_not_asked_again,
        a_call_lingers_and_ends,
    }
}

fn what_is_left_of_an_offer_is_released() {
    let mut offers = Offers::new();
    let offer = offers.offer(A, 1, vec!["a", "b", "c"], at(SECOND));
    let taken = offers.take(A, offer, &[1], at(SECOND));
    assert_eq!((taken.taken, taken.back), (vec!["b"], vec!["a", "c"]));
}

fn an_offer_is_taken_once_and_a_repeated_question_has_the_same_answer() {
    let mut offers = Offers::new();
    let offer = offers.offer(A, 1, vec!["a", "b"], at(SECOND));
    assert_eq!(take(&mut offers, (A, offer), at(SECOND)), (true, vec!["b"]));
    assert_eq!(
        take(&mut offers, (A, offer), at(SECOND * 2)),
        (true, vec![])
    );
    assert!(offers.end(A, 1).is_empty() && offers.close().is_empty());
}

fn an_offer_that_was_released_is_not_confirmed() {
    let mut offers = Offers::new();
    let offer = offers.offer(A, 1, vec!["a"], at(SECOND));
    assert_eq!(offers.end(A, 1), ["a"]);
    assert_eq!(take(&mut offers, (A, offer), at(SECOND)), (false, vec![]));
    // It is late, and nobody has looked yet.
    let late = offers.offer(A, 2, vec!["b"], at(SECOND));
    let now = at(SECOND) + OFFER;
    assert_eq!(take(&mut offers, (A, late), now), (false, vec![]));
    assert_eq!(offers.sweep(now), ["b"]);
}

fn an_offer_is_another_nodes_alone() {
    let mut offers = Offers::new();
    let offer = offers.offer(A, 1, vec!["a"], at(SECOND));
    assert_eq!(take(&mut offers, (B, offer), at(SECOND)), (false, vec![]));
    assert!(offers.end(B, 1).is_empty());
    assert_eq!(take(&mut offers, (A, offer), at(SECOND)), (true, vec![]));
}

fn what_nobody_takes_in_time_is_released() {
    let mut offers = Offers::new();
    offers.offer(A, 1, vec!["a"], at(SECOND));
    assert!(offers.sweep(at(SECOND * 2)).is_empty());
    assert_eq!(offers.sweep(at(SECOND) + OFFER), ["a"]);
}

fn what_a_call_has_been_offered_is_released_when_the_call_ends() {
    let mut offers = Offers::new();
    for call in [1, 1, 2] {
        offers.offer(A, call, vec![call], at(SECOND));
    }
    assert_eq!(offers.end(A, 1), [1, 1]);
    assert_eq!(offers.close(), [2]);
}

fn each_node_is_asked_for_an_equal_part_and_in_turns() {
    assert_eq!(call(3, 1, 9).asks(at(SECOND)), [(1, 3), (2, 3), (0, 3)]);
    assert_eq!(call(3, 2, 7).asks(at(SECOND)), [(2, 3), (0, 3), (1, 1)]);
}

fn no_more_is_asked_for_at_first_than_there_is_room_for() {
    let mut call = call(3, 1, 1);
    assert_eq!(call.asks(at(SECOND)), [(1, 1)]);
    assert!(call.asks(at(SECOND + MILLISECOND)).is_empty());
    let later = at(SECOND + 20 * MILLISECOND);
    assert_eq!(call.wakes(at(SECOND)), later);
    assert_eq!(call.asks(later), [(2, 1), (0, 1)]);
}

fn a_call_takes_what_it_has_room_for() {
    let mut call = call(2, 0, 3);
    let later = at(SECOND + 20 * MILLISECOND);
    assert_eq!(call.asks(at(SECOND)), [(0, 2), (1, 1)]);
    assert_eq!(call.offered(0, 2, 2, later), 2);
    assert!(call.confirmed(0, Some(true), later));
    assert_eq!(call.offered(1, 2, 2, later), 1);
    assert!(!call.is_over(later));
    assert!(call.confirmed(1, Some(true), later) && call.is_over(later));
    // Of bodies that do not fit, none is taken.
    let mut call = self::call(2, 0, 3);
    call.asks(at(SECOND));
    assert_eq!(call.offered(0, 2, 1, later), 1);
    assert!(call.confirmed(0, Some(true), later) && call.is_over(later));
}

fn what_is_not_confirmed_is_not_handed_out() {
    let mut call = call(2, 0, 2);
    let now = at(SECOND);
    assert_eq!(call.asks(now), [(0, 1), (1, 1)]);
    assert_eq!(call.offered(1, 1, 1, now), 1);
    assert!(!call.confirmed(1, Some(false), now));
    // It is asked again, in a while.
    assert!(call.asks(now).is_empty());
    assert_eq!(call.asks(now + SECOND), [(1, 1)]);
    assert_eq!(call.offered(1, 1, 1, now + SECOND), 1);
    assert!(!call.confirmed(1, None, now + SECOND));
    assert!(!call.is_over(now + SECOND));
}

fn a_node_that_gave_all_it_was_asked_for_is_asked_for_the_rest() {
    let mut call = call(3, 0, 9);
    let now = at(SECOND + 20 * MILLISECOND);
    call.asks(at(SECOND));
    assert_eq!(call.offered(0, 3, 3, now), 3);
    assert!(call.confirmed(0, Some(true), now));
    assert_eq!(call.offered(1, 0, 0, now), 0);
    call.failed(2, now);
    let asked = call.asks(now);
    assert_eq!(asked, [(0, 3)]);
    assert_eq!(call.asked().collect::<Vec<_>>(), [0]);
}

fn a_node_that_does_not_understand_is_not_asked_again() {
    let mut call = call(2, 1, 4);
    call.asks(at(SECOND));
    call.apart(1);
    call.failed(0, at(SECOND));
    assert_eq!(call.asks(at(SECOND * 9)), [(0, 4)]);
}

fn a_call_lingers_and_ends() {
    let mut waits = call(2, 0, 4);
    let now = at(SECOND * 2);
    waits.asks(at(SECOND));
    assert!(!waits.is_over(now));
    waits.offered(0, 1, 1, now);
    assert!(waits.confirmed(0, Some(true), now) && !waits.is_over(now));
    assert!(waits.is_over(now + 8 * MILLISECOND));
    assert!(waits.wakes(now) <= now + 8 * MILLISECOND);
    let mut none = call(2, 0, 4);
    none.asks(at(SECOND));
    assert!(!none.is_over(at(SECOND * 19)) && none.is_over(at(SECOND * 20)));
    none.fill();
    assert!(none.is_over(now) && none.asks(now).is_empty());
}
