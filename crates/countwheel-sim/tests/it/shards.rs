//! The worlds of shards: they repeat, they reach what they claim to, and they notice.

use countwheel_sim::machine::Kind;
#[cfg(feature = "planted-bugs")]
use countwheel_sim::planted::{self, PlantedBug};
use countwheel_sim::shards::{self, Options, Report};

fn run(seed: u64, kind: Option<Kind>) -> Report {
    let options = Options {
        kind,
        ..Options::default()
    };
    shards::run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn a_seed_repeats() {
    for seed in 1..20 {
        for kind in [None, Some(Kind::Postgres)] {
            assert_eq!(run(seed, kind), run(seed, kind), "{seed}");
        }
    }
}

#[test]
fn no_rule_is_broken_on_any_store() {
    for kind in Kind::ALL {
        for seed in 1_000..1_010 {
            run(seed, Some(kind));
        }
    }
}

#[test]
fn everything_happens() {
    let mut sum = Report::default();
    for seed in 100..200 {
        sum.add(&run(seed, None));
    }
    // What never happens proves nothing. Far below what is seen, far above none.
    assert!(sum.attempts > 1_000, "{sum}");
    assert!(sum.takings_over > 200, "{sum}");
    assert!(sum.takings_within > 50, "{sum}");
    assert!(sum.fenced > 100, "{sum}");
    assert!(sum.unavailable > 100, "{sum}");
    assert!(sum.lost > 50, "{sum}");
    assert!(sum.leases > 10, "{sum}");
    assert!(sum.killed > 50, "{sum}");
    assert!(sum.adopted > 50, "{sum}");
    assert!(sum.hand_overs > 200, "{sum}");
    assert!(sum.boots > 20, "{sum}");
    assert!(sum.clock_steps > 50, "{sum}");
    assert!(sum.dead > 5, "{sum}");
    assert!(sum.removed > 500, "{sum}");
}

#[test]
fn everything_happens_on_a_server() {
    let mut sum = Report::default();
    for seed in 100..200 {
        sum.add(&run(seed, Some(Kind::Postgres)));
    }
    // What never happens proves nothing. Far below what is seen, far above none.
    assert!(sum.attempts > 800, "{sum}");
    assert!(sum.takings_within > 100, "{sum}");
    assert!(sum.fenced > 500, "{sum}");
    assert!(sum.unavailable > 500, "{sum}");
    assert!(sum.lost > 200, "{sum}");
    assert!(sum.adopted > 200, "{sum}");
    assert!(sum.failovers > 100, "{sum}");
    assert!(sum.rolled_back > 100, "{sum}");
    assert!(sum.reported > 10, "{sum}");
    assert!(sum.forgotten > 15, "{sum}");
    assert!(sum.sleeps > 100, "{sum}");
    let struck = sum.struck;
    assert!(struck.away > 100, "{sum}");
    assert!(struck.request_lost > 100, "{sum}");
    assert!(struck.answer_lost > 100, "{sum}");
    assert!(struck.late > 100, "{sum}");
    assert!(struck.refused > 100, "{sum}");
    assert!(struck.full > 100, "{sum}");
    assert!(struck.unreplicated > 100, "{sum}");
    assert!(struck.slow > 100, "{sum}");
    assert!(struck.hangs > 100, "{sum}");
}

/// Each of these mistakes is made in turn, and found.
#[cfg(feature = "planted-bugs")]
#[test]
fn every_mistake_with_shards_is_found() {
    let all = PlantedBug::all().map(|bug| (bug, planted::kind_of(bug)));
    let of_shards = all.filter(|(bug, _)| planted::stage(*bug) == "shards");
    for (bug, kind) in of_shards.chain(planted::ALSO_IN_SHARDS) {
        let found = planted::search(bug, 1..=1_000, |seed| {
            let find = || planted::find_in_shards(bug, seed, kind);
            let found = std::panic::catch_unwind(find);
            found.unwrap_or_else(|panic| Some(countwheel_sim::panic_text(&*panic)))
        });
        let (seed, what) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?} on {kind:?}: seed {seed}: {what}");
    }
}
