//! The simulation itself: it repeats, it reaches what it claims to, and it notices.
//! The fixed and fresh seeds of the gate are run by the program, at full speed.

use countwheel_sim::world::{self, Options, Report};

#[test]
fn a_seed_repeats_to_the_last_detail() {
    for seed in 1..=20 {
        let options = Options::default();
        let first = world::run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"));
        let second = world::run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn every_fault_happens() {
    let mut sum = Report::default();
    for seed in 100..150 {
        let report = world::run(seed, &Options::default());
        sum.add(&report.unwrap_or_else(|failure| panic!("{failure}")));
    }
    // Faults that never happen rot. Far below what is seen, far above none.
    assert!(sum.crashes > 200, "{sum:?}");
    assert!(sum.torn > 50, "{sum:?}");
    assert!(sum.clock_steps > 50, "{sum:?}");
    assert!(sum.attempts > 2_000, "{sum:?}");
    assert!(sum.dead > 50, "{sum:?}");
    assert!(sum.removed > 1_000, "{sum:?}");
}

#[test]
fn a_disk_that_ignores_syncs_is_noticed() {
    let options = Options {
        lying_disk: true,
        ..Options::default()
    };
    assert!((1..100).any(|seed| world::run(seed, &options).is_err()));
}

/// Each of these bugs of the product is planted in turn and must be found.
#[cfg(feature = "planted-bugs")]
#[test]
fn every_planted_bug_is_found() {
    for bug in countwheel_durable::PlantedBug::ALL {
        let options = Options {
            planted_bug: Some(bug),
            ..Options::default()
        };
        let found = (1..100).find_map(|seed| world::run(seed, &options).err());
        let failure = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {}: {}", failure.seed, failure.what);
    }
}
