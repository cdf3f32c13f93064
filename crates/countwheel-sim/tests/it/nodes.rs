//! The worlds of nodes: they repeat, they reach what they claim to, and they notice.

use countwheel_sim::nodes::{self, Options, Report};
#[cfg(feature = "planted-bugs")]
use countwheel_sim::planted::{self, PlantedBug};

fn run(seed: u64) -> Report {
    nodes::run(seed, &Options::default()).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn a_seed_repeats() {
    for seed in 1..4 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1).trace, run(2).trace);
}

#[test]
fn everything_happens() {
    let mut sum = Report::default();
    for seed in 1..=60 {
        sum.add(&run(seed));
    }
    println!("{sum}");
    assert!(sum.acknowledged > 2_000, "{sum}");
    assert!(sum.attempts > sum.acknowledged, "{sum}");
    assert!(sum.repeated > 100, "{sum}");
    assert!(sum.missed > 1_000, "{sum}");
    assert!(sum.overdue > 50, "{sum}");
    assert!(sum.given > 50, "{sum}");
    assert!(sum.refused > 20, "{sum}");
    assert!(sum.hand_overs > 50, "{sum}");
    assert!(sum.ended > 5, "{sum}");
    assert!(sum.fenced > 20, "{sum}");
    assert!(sum.killed > 20 && sum.left > 10 && sum.drained > 5, "{sum}");
    assert!(sum.paused > 20 && sum.cut_off > 20, "{sum}");
    assert!(sum.rejoined > 0, "{sum}");
    assert!(
        sum.stalls > 5 && sum.clock_steps > 5 && sum.failovers > 5,
        "{sum}"
    );
    assert!(sum.calls > 1_000 && sum.broken > 300, "{sum}");
    assert!(sum.frames > 3_000, "{sum}");
    assert!(sum.not_done > 100 && sum.unknown > 1_000, "{sum}");
}

/// Each of these mistakes is made in turn, and found.
#[cfg(feature = "planted-bugs")]
#[test]
fn every_mistake_of_nodes_is_found() {
    let all = PlantedBug::all();
    let all = all.filter(|bug| planted::stage(*bug) == "nodes");
    for bug in all.chain(planted::ALSO_IN_NODES) {
        let found = planted::search(bug, 1..=1_000, |seed| planted::find(bug, seed));
        let (seed, what) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {seed}: {what}");
    }
}
