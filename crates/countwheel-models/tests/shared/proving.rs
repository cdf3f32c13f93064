//! How a model is explored, and how it is proved to find the mistakes that are planted in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant as Stopwatch;

use loom::model::Builder;

use crate::planted::Bug;
use crate::planting;

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
pub(crate) fn prove(name: &str, threads: usize, model: fn(), twins: &[Bug]) {
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

/// A test for each model, and the list of what they find.
macro_rules! prove {
    ($($threads:literal threads: $file:ident::$model:ident finds $($bug:ident),+;)+) => {
        $(#[test]
        fn $model() {
            proving::prove(stringify!($model), $threads, $file::$model, &[$(Bug::$bug),+]);
        })+

        /// Every mistake that some model finds.
        const FOUND: &[&[Bug]] = &[$(&[$(Bug::$bug),+]),+];
    };
}
