//! Limits that nodes lend each other, sentence by sentence. `sim loans` has the worlds.

use std::time::Duration;

use countwheel_cluster::{
    Borrower, Borrowing, LOAN, Lender, Lending, Lends, Lent, Limited, NodeId, Usage, home,
};
use countwheel_durable::{Flow, FlowUse};
use countwheel_time::Instant;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);

/// A lender of one limit, from one moment on.
struct Of(u32, Instant);

impl Lends for Of {
    fn limit(&self, _: &Limited) -> Option<u32> {
        Some(self.0)
    }

    fn lends_from(&self, _: &Flow) -> Option<Instant> {
        Some(self.1)
    }

    fn nodes(&self) -> u32 {
        1
    }
}

fn at(span: Duration) -> Instant {
    Instant::ZERO + span
}

fn limited(lending: Lending) -> Limited {
    (Flow::new("flow"), lending)
}

fn borrowing(keeps: u32, wants: bool) -> Borrowing {
    Borrowing {
        limited: limited(Lending::Places),
        keeps,
        wants,
        rests: Duration::ZERO,
    }
}

/// What a lender answers to one question: how many.
fn lent(
    lender: &mut Lender,
    (from, number): (NodeId, u64),
    asked: Borrowing,
    of: &Of,
    now: Duration,
) -> Option<u32> {
    match lender.answer(from, number, &[asked], of, at(now))?[..] {
        [Lent::Places { count, .. }] => Some(count),
        _ => None,
    }
}

pub(crate) fn whoever_becomes_the_lender_lends_nothing_at_first_and_believes_what_is_claimed() {
    let (mut lender, of) = (Lender::new(), Of(3, at(LOAN)));
    let mut ask = |from, number, keeps, now| {
        lent(
            &mut lender,
            (from, number),
            borrowing(keeps, true),
            &of,
            now,
        )
    };
    assert_eq!(ask(A, 1, 0, SECOND), Some(0));
    // B was lent two by the one before.
    assert_eq!(ask(B, 1, 2, SECOND), Some(2));
    assert_eq!(ask(A, 2, 0, LOAN), Some(1));
    assert_eq!(ask(B, 2, 2, LOAN), Some(2));
}

pub(crate) fn no_more_is_lent_than_there_is_and_a_loan_ends_by_itself() {
    let (mut lender, of) = (Lender::new(), Of(3, at(Duration::ZERO)));
    let mut ask =
        |from, number, now| lent(&mut lender, (from, number), borrowing(0, true), &of, now);
    assert_eq!(ask(A, 1, SECOND), Some(3));
    let mut ends = SECOND;
    for (number, now) in (1..).zip([2, 3]) {
        ends = SECOND + LOAN;
        assert_eq!(ask(B, number, SECOND * now), Some(0));
    }
    assert_eq!(ask(B, 9, ends), Some(3));
}

pub(crate) fn a_question_that_a_later_one_has_overtaken_says_nothing() {
    let (mut lender, of) = (Lender::new(), Of(3, at(Duration::ZERO)));
    let mut ask = |number, keeps| {
        lent(
            &mut lender,
            (A, number),
            borrowing(keeps, true),
            &of,
            SECOND,
        )
    };
    assert_eq!(ask(7, 0), Some(3));
    assert_eq!(ask(6, 0), None);
    assert_eq!(ask(7, 0), None);
    assert_eq!(ask(8, 3), Some(3));
}

pub(crate) fn who_lost_its_loan_keeps_what_runs_and_no_more() {
    let (mut lender, of) = (Lender::new(), Of(3, at(Duration::ZERO)));
    let mut ask = |from, number, keeps, now| {
        lent(
            &mut lender,
            (from, number),
            borrowing(keeps, true),
            &of,
            now,
        )
    };
    assert_eq!(ask(A, 1, 0, SECOND), Some(3));
    let later = SECOND + LOAN;
    assert_eq!(ask(B, 1, 0, later), Some(3));
    // Two of them still run: these are counted, and A starts none, however often it asks.
    for number in 2..5 {
        assert_eq!(ask(A, number, 2, later), Some(0));
    }
    assert_eq!(ask(B, 2, 3, later), Some(1));
    // B gives two back. Both together are what there is by then.
    assert_eq!(ask(B, 3, 1, later), Some(1));
    assert_eq!(ask(A, 5, 2, later), Some(2));
}

pub(crate) fn who_loses_the_answer_keeps_its_turn() {
    let (mut lender, of) = (Lender::new(), Of(1, at(Duration::ZERO)));
    let mut ask = |from, number, keeps, now| {
        let asked = borrowing(keeps, true);
        lent(&mut lender, (from, number), asked, &of, now)
    };
    assert_eq!(ask(A, 1, 0, SECOND), Some(1));
    let mut now = SECOND;
    for node in [B, C] {
        now += MILLISECOND;
        assert_eq!(ask(node, 1, 0, now), Some(0));
    }
    now += SECOND;
    for (node, count) in [(B, 0), (C, 0)] {
        assert_eq!(ask(node, 2, 0, now), Some(count));
    }
    assert_eq!(ask(A, 2, 1, now), Some(0));
    assert_eq!(ask(A, 3, 0, now), Some(0));
    // It is lent to B, which does not hear of it in time, and asks again, after C.
    assert_eq!(ask(B, 3, 0, now), Some(1));
    assert_eq!(ask(C, 3, 0, now), Some(0));
    assert_eq!(ask(B, 4, 0, now), Some(1));
}

pub(crate) fn where_there_are_more_nodes_than_places_each_has_its_turn() {
    let (mut lender, of) = (Lender::new(), Of(1, at(Duration::ZERO)));
    let mut has = [0; 3];
    let mut turns = [0; 3];
    for step in 0..100 {
        let now = SECOND + 100 * MILLISECOND * step;
        for (place, node) in [A, B, C].into_iter().enumerate() {
            let asked = borrowing(has[place], true);
            let count = lent(&mut lender, (node, u64::from(step) + 1), asked, &of, now);
            has[place] = count.expect("it is the next question");
            turns[place] += has[place];
        }
        assert!(has.iter().sum::<u32>() <= 1, "{has:?}");
    }
    assert!(turns.iter().all(|turns| *turns >= 20), "{turns:?}");
}

pub(crate) fn a_start_that_is_given_back_rests_until_its_rate_allows_it_again() {
    let (mut lender, of) = (Lender::new(), Of(1, at(Duration::ZERO)));
    let asked = |keeps, wants, rests| Borrowing {
        limited: limited(Lending::Starts),
        keeps,
        wants,
        rests,
    };
    let mut ask = |from, number, asked, now| lent(&mut lender, (from, number), asked, &of, now);
    let none = Duration::ZERO;
    assert_eq!(ask(A, 1, asked(0, true, none), SECOND), Some(1));
    ask(A, 2, asked(0, false, 2 * SECOND), 2 * SECOND);
    assert_eq!(ask(B, 1, asked(0, true, none), 3 * SECOND), Some(0));
    assert_eq!(ask(B, 2, asked(0, true, none), 4 * SECOND), Some(1));
}

fn usage(used: FlowUse) -> Vec<(Limited, Usage)> {
    let limit = Some(5);
    vec![(limited(Lending::Places), Usage { limit, used })]
}

/// A borrower that was lent so many, to a question of the first second, and heard so at that time.
fn lent_to(count: u32, heard: Duration) -> Borrower {
    let mut borrower = Borrower::new();
    assert_eq!(borrower.count(&limited(Lending::Places), at(SECOND)), None);
    assert_eq!(borrower.due(at(SECOND)).len(), 1);
    let waits = FlowUse {
        waits: true,
        ..FlowUse::default()
    };
    let (_, asked) = borrower.asks(&usage(waits), at(SECOND));
    let others_wait = false;
    let answers = [Lent::Places { count, others_wait }];
    let changed = borrower.answered(&asked, &answers, at(SECOND), at(heard));
    assert_eq!(changed.len(), usize::from(count > 0));
    borrower
}

pub(crate) fn a_borrower_believes_in_a_loan_from_before_it_asked_and_not_for_ever() {
    let mut borrower = lent_to(4, SECOND + 500 * MILLISECOND);
    let mut count = |now| borrower.count(&limited(Lending::Places), at(now));
    assert_eq!(count(2 * SECOND), Some(4));
    assert_eq!(count(SECOND + LOAN - 501 * MILLISECOND), Some(4));
    assert_eq!(count(SECOND + LOAN - 500 * MILLISECOND), Some(0));
}

pub(crate) fn a_borrower_says_what_runs_beyond_what_it_keeps() {
    let mut borrower = lent_to(4, SECOND);
    let runs = |running| FlowUse {
        running,
        most: running,
        ..FlowUse::default()
    };
    let (_, asked) = borrower.asks(&usage(runs(4)), at(2 * SECOND));
    let others_wait = true;
    let fewer = [Lent::Places {
        count: 1,
        others_wait,
    }];
    borrower.answered(&asked, &fewer, at(2 * SECOND), at(2 * SECOND));
    let (_, asked) = borrower.asks(&usage(runs(3)), at(2 * SECOND));
    assert_eq!((asked[0].keeps, asked[0].wants), (3, false));
}

pub(crate) fn what_is_not_needed_is_given_back() {
    let mut borrower = lent_to(4, SECOND);
    let runs = |most| FlowUse {
        running: 1,
        most,
        ..FlowUse::default()
    };
    let now = at(SECOND + 900 * MILLISECOND);
    assert!(borrower.give_up(&usage(runs(2)), now).is_empty());
    let now = at(2 * SECOND);
    assert_eq!(borrower.give_up(&usage(runs(2)), now).len(), 1);
    let (_, asked) = borrower.asks(&usage(runs(2)), now);
    assert_eq!((asked[0].keeps, asked[0].wants), (2, false));
    // A limit that is gone is forgotten.
    let gone = vec![(limited(Lending::Places), Usage::default())];
    borrower.give_up(&gone, now);
    assert!(borrower.is_empty());
}

pub(crate) fn the_home_of_a_flow_is_the_same_everywhere() {
    let homes = ["queue orders", "endpoint shop", "endpoint üb"];
    let homes = homes.map(|flow| home(&Flow::new(flow), 64).0);
    assert_eq!(homes, HOMES_IN_64);
    assert_eq!(home(&Flow::new("queue orders"), 1).0, 0);
}

const HOMES_IN_64: [u16; 3] = [9, 40, 11];

pub(crate) mod sentences {
    crate::sentences! {
        whoever_becomes_the_lender_lends_nothing_at_first_and_believes_what_is_claimed,
        no_more_is_lent_than_there_is_and_a_loan_ends_by_itself,
        a_question_that_a_later_one_has_overtaken_says_nothing,
        who_lost_its_loan_keeps_what_runs_and_no_more,
        who_loses_the_answer_keeps_its_turn,
        where_there_are_more_nodes_than_places_each_has_its_turn,
        a_start_that_is_given_back_rests_until_its_rate_allows_it_again,
        a_borrower_believes_in_a_loan_from_before_it_asked_and_not_for_ever,
        a_borrower_says_what_runs_beyond_what_it_keeps,
        what_is_not_needed_is_given_back,
        the_home_of_a_flow_is_the_same_everywhere,
    }
}
