//! The simulation itself: it repeats, it reaches what it claims to, and it notices.
//! The fixed and fresh seeds of the gate are run by the program, at full speed.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::process::Command;

use countwheel_sim::machine::Kind;
use countwheel_sim::world::{self, Options, Report};

/// Two processes agree on everything that is let out, and on its order: nothing depends on an
/// address, a thread, a clock or a hash of the process.
#[test]
fn two_processes_let_out_the_same() {
    let trace = || {
        let ran = Command::new(env!("CARGO_BIN_EXE_sim"))
            .args(["trace", "1", "20"])
            .output()
            .unwrap();
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8(ran.stdout).unwrap()
    };
    let (first, second) = (trace(), trace());
    assert_eq!(first.lines().count(), 20);
    for (first, second) in first.lines().zip(second.lines()) {
        assert_eq!(first, second);
    }
}

/// Seeds that failed once, for ever.
#[test]
fn what_failed_once_does_not_fail_again() {
    for (seed, kind, _why) in regressions() {
        let options = Options {
            kind,
            ..Options::default()
        };
        world::run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// The lines of `regressions.txt` about worlds.
fn regressions() -> Vec<(u64, Option<Kind>, &'static str)> {
    let lines = include_str!("../regressions.txt").lines();
    let worlds = lines.filter_map(|line| line.strip_prefix("seeds "));
    worlds
        .map(|line| {
            let mut words = line.splitn(3, ' ');
            let (seed, kind) = (words.next().unwrap(), words.next().unwrap());
            let kind = (kind != "drawn").then(|| Kind::named(kind).unwrap());
            (seed.parse().unwrap(), kind, words.next().unwrap_or(""))
        })
        .collect()
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
    assert!(sum.torn_openings > 50, "{sum:?}");
    assert!(sum.struck > 50, "{sum:?}");
    assert!(sum.full > 10, "{sum:?}");
    assert!(sum.upkeep > 500, "{sum:?}");
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
