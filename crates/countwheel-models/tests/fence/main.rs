//! The fence of the store in a PostgreSQL, in every order of a few exchanges: two nodes, one shard.
//!
//! A model of `store.rs` and of the statements in `sql.rs` in `countwheel-postgres`. Statements are lost,
//! given up, sent again, refused, done late, and done while their clients wait for nothing any more; the
//! shard changes hands; a standby takes over that has everything, or one that lags. Every state that can be
//! reached within some bounds is visited, and in each of them:
//!
//! - no owner that was replaced changes anything once the taking of the next one has returned;
//! - a commit is done once at the most, one that was answered with "not done" never, and one that was
//!   answered with "done" is there unless a standby that lags took over;
//! - no two owners are told a turn of the same number, and no revision is told twice;
//! - what a standby that lags has lost is noticed by the owner that was told of it, at its next commit or
//!   when it next looks.
//!
//! A search that cannot fail proves nothing. So each of the mistakes below is planted in the model, and has
//! to be found.
//!
//! ```sh
//! cargo test -p countwheel-models --test fence -- --nocapture   # says how many states there are
//! COUNTWHEEL_MODELS=deep cargo test -p countwheel-models --release --test fence -- --nocapture
//! ```

mod leases;
mod node;
mod search;
mod server;
mod world;

use std::time::Instant as Stopwatch;

use search::{Found, State, search};
use world::{Rules, World};

/// How much may happen at the most.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Bounds {
    /// Commits of each node.
    pub(crate) commits: u8,
    pub(crate) takings: u8,
    /// Statements that their clients give up, or whose answers are lost.
    pub(crate) unanswered: u8,
    pub(crate) refusals: u8,
    /// Turns of which the server warns that the standby may not have them.
    pub(crate) warnings: u8,
    /// Failovers that lose nothing but what the server had warned of.
    pub(crate) failovers: u8,
    /// Failovers that lose what was acknowledged.
    pub(crate) losses: u8,
    /// Processes that are killed and started again, and go on under their leases.
    pub(crate) restarts: u8,
}

const fn bounds(of: [u8; 8]) -> Bounds {
    let [
        commits,
        takings,
        unanswered,
        refusals,
        warnings,
        failovers,
        losses,
        restarts,
    ] = of;
    Bounds {
        commits,
        takings,
        unanswered,
        refusals,
        warnings,
        failovers,
        losses,
        restarts,
    }
}

/// Statements without answers.
const ANSWERS: Bounds = bounds([3, 2, 2, 0, 0, 0, 0, 0]);
/// The same, and refusals.
const REFUSALS: Bounds = bounds([2, 2, 2, 1, 0, 0, 0, 0]);
/// A standby that has everything.
const STANDBY: Bounds = bounds([2, 2, 1, 0, 1, 1, 0, 0]);
/// A standby that lags.
const LOSS: Bounds = bounds([2, 3, 1, 0, 0, 0, 1, 0]);
/// Processes that are killed.
const RESTARTS: Bounds = bounds([2, 2, 1, 0, 0, 0, 0, 1]);

/// Minutes, and some gigabytes.
const DEEP: [Bounds; 3] = [
    bounds([3, 3, 2, 1, 0, 0, 0, 0]),
    bounds([2, 2, 3, 2, 0, 0, 0, 0]),
    bounds([2, 2, 2, 1, 1, 1, 0, 0]),
];

macro_rules! mistakes {
    ($($(#[$what:meta])* $name:ident is found by $test:ident in $bounds:ident,)+) => {
        /// A mistake that a search must find.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Mistake {
            $($(#[$what])* $name,)+
        }

        $(#[test]
        fn $test() {
            demand_found(Mistake::$name, $bounds);
        })+
    };
}

mistakes! {
    /// The statement does not compare the token.
    NoToken is found by a_statement_without_the_token_is_found in ANSWERS,
    /// A taking does not wait for the statements that are under way.
    NoLock is found by a_taking_that_does_not_wait_is_found in ANSWERS,
    /// The statement does not look for the turn before its own.
    NoTurnBefore is found by a_statement_without_the_turn_before_is_found in LOSS,
    /// A repeated statement is not refused by the turn that is there.
    ReplacesTurn is found by a_repeated_statement_that_is_done_again_is_found in ANSWERS,
    /// The changes are made whether the turn is inserted or not.
    NotJoined is found by changes_without_their_turn_are_found in ANSWERS,
    /// A taking does not look whether another came before it.
    TakesLate is found by a_taking_that_comes_late_is_found in REFUSALS,
    /// A commit whose answer is lost counts as done.
    LostIsDone is found by a_lost_answer_that_counts_as_done_is_found in ANSWERS,
    /// A commit whose answer is lost counts as not done.
    LostIsNotDone is found by a_lost_answer_that_counts_as_not_done_is_found in ANSWERS,
    /// A commit that was done is sent again under the next number.
    SendsAgain is found by a_commit_that_is_sent_under_the_next_number_is_found in ANSWERS,
    /// A refusal counts, although an earlier sending may still come.
    RefusalIsAll is found by a_refusal_that_counts_before_its_time_is_found in REFUSALS,
    /// The empty turn in the place of a commit counts as the commit.
    EmptyIsDone is found by an_empty_turn_that_counts_as_the_commit_is_found in REFUSALS,
    /// A warning that the standby may not have the commit is passed over.
    WarningPassed is found by a_warning_that_is_passed_over_is_found in STANDBY,
    /// A turn that is found counts as the standby's as well.
    FoundIsKept is found by a_found_turn_that_is_not_the_standbys_is_found in STANDBY,
    /// Where the turn before is missing, the owner goes on from the last one that is there.
    LossPassed is found by a_loss_that_is_passed_over_is_found in LOSS,
    /// A changed timeline at a takeover is passed over.
    TimelinePassed is found by a_timeline_that_is_passed_over_is_found in LOSS,
    /// An owner that ends does not look whether the last turn that it was told of is still there.
    EndsUnseen is found by an_owner_that_ends_without_a_look_is_found in LOSS,
    /// A process that goes on under a lease does not keep out what the one before has sent.
    AdoptsUnsettled is found by a_lease_that_is_taken_up_unsettled_is_found in RESTARTS,
}

fn searched(bounds: Bounds, rules: Rules) -> Found {
    let of = format!("{bounds:?}, {:?}", rules.mistake);
    searched_of(World::new(bounds), &rules, &of)
}

#[expect(clippy::disallowed_methods, reason = "says how long a search took")]
pub(crate) fn searched_of<S: State>(first: S, rules: &S::Rules, of: &str) -> Found {
    let began = Stopwatch::now();
    let found = search(first, rules);
    let (states, took) = (found.states, began.elapsed());
    println!("{of}: {states} states, {took:?}");
    if let Some(wrong) = &found.wrong {
        println!("{}:", wrong.what);
        for step in &wrong.way {
            println!("  {} {}", step.0, step.1);
        }
    }
    found
}

fn demand_right(bounds: Bounds) {
    let found = searched(bounds, Rules::default());
    assert!(found.wrong.is_none(), "see what was printed");
    assert!(found.states > 100_000, "{}", found.states);
}

fn demand_found(mistake: Mistake, bounds: Bounds) {
    let rules = Rules {
        mistake: Some(mistake),
        ..Rules::default()
    };
    let found = searched(bounds, rules);
    assert!(found.wrong.is_some(), "{mistake:?} is not found");
}

#[test]
fn statements_without_answers_are_done_once() {
    demand_right(ANSWERS);
}

#[test]
fn refusals_are_certain() {
    demand_right(REFUSALS);
}

#[test]
fn a_standby_that_has_everything_loses_nothing() {
    demand_right(STANDBY);
}

#[test]
fn what_a_standby_that_lags_loses_is_noticed() {
    demand_right(LOSS);
}

#[test]
fn a_process_that_is_started_again_goes_on() {
    demand_right(RESTARTS);
}

#[test]
fn the_deep_search_finds_nothing() {
    if std::env::var("COUNTWHEEL_MODELS").is_ok_and(|how| how == "deep") {
        DEEP.into_iter().for_each(demand_right);
    }
}

/// A failover that forgets a taking makes the owner before it the owner again. That one knows nothing of
/// the revisions that the other was told, if it has not heard of the taking: known, and not mended.
#[test]
fn an_owner_that_a_failover_revives_gives_revisions_again() {
    let rules = Rules {
        knows_revived: true,
        ..Rules::default()
    };
    let found = searched(LOSS, rules);
    let what = found.wrong.map(|wrong| wrong.what);
    assert_eq!(what, Some("a revision is told twice"));
}
