//! Small models of what the patterns are built on, in every order and with every value that a
//! thread may read.

#[path = "../../../countwheel-patterns/src/concurrent/mod.rs"]
mod concurrent;
mod models;
#[path = "../../../countwheel-patterns/src/planted.rs"]
mod planted;
#[path = "../shared/planting.rs"]
mod planting;
#[path = "../loom/sync.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "the patterns need less of it than the timer"
)]
mod sync;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant as Stopwatch;

use loom::model::Builder;
use planted::Bug;

/// Runs a model in every order, and counts them.
///
/// Two threads are interrupted wherever they can be. With three, that takes hours: there, a
/// thread that could go on is interrupted so many times at most. Each more takes about four
/// times as long.
fn explore(threads: usize, model: fn(), orders: &Arc<AtomicU64>) {
    let mut builder = Builder::new();
    builder.preemption_bound = match threads {
        ..3 => None,
        _ if planting::is_deep() => Some(5),
        _ => Some(3),
    };
    builder.max_branches = 10_000;
    let orders = Arc::clone(orders);
    builder.check(move || {
        orders.fetch_add(1, Ordering::Relaxed);
        model();
    });
}

/// A model holds, and does not with one of the mistakes planted.
#[expect(clippy::disallowed_methods, reason = "says how long a proof took")]
fn prove(name: &str, threads: usize, model: fn(), twins: &[Bug]) {
    let orders = Arc::new(AtomicU64::new(0));
    let began = Stopwatch::now();
    explore(threads, model, &orders);
    let count = orders.swap(0, Ordering::Relaxed);
    println!("{name}: {count} orders, {:?}", began.elapsed());
    for &bug in twins {
        let began = Stopwatch::now();
        let found = planting::finds(bug, || explore(threads, model, &orders));
        let count = orders.swap(0, Ordering::Relaxed);
        println!(
            "{name}, {bug:?}: {found}, order {count}, {:?}",
            began.elapsed()
        );
        assert!(found, "{name} does not find {bug:?}");
    }
}

macro_rules! prove {
    ($($threads:literal threads: $file:ident::$model:ident finds $($bug:ident),+;)+) => {
        $(#[test]
        fn $model() {
            prove(stringify!($model), $threads, $file::$model, &[$(Bug::$bug),+]);
        })+

        /// Every mistake that some model finds.
        const FOUND: &[&[Bug]] = &[$(&[$(Bug::$bug),+]),+];
    };
}

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
