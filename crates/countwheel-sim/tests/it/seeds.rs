//! The simulation itself: it repeats, it reaches what it claims to, and it notices.
//! The fixed and fresh seeds of the gate are run by the program, at full speed.

use std::process::Command;

use countwheel_sim::machine::Kind;
#[cfg(feature = "planted-bugs")]
use countwheel_sim::planted;
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
    for (seed, options) in regressions() {
        world::run(seed, &options).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// The lines of `regressions.txt` about worlds.
fn regressions() -> Vec<(u64, Options)> {
    let lines = include_str!("../../regressions.txt").lines();
    let worlds = lines.filter_map(|line| line.strip_prefix("seeds "));
    let parsed = worlds.map(|line| {
        let mut words = line.split(' ');
        let (seed, kind) = (words.next().unwrap(), words.next().unwrap());
        let mut options = Options::default();
        let (kind, turns) = kind.split_once(':').unwrap_or((kind, ""));
        if !turns.is_empty() {
            options.turns = turns.parse().unwrap();
        }
        options.kind = (kind != "drawn").then(|| Kind::named(kind).unwrap());
        (seed.parse().unwrap(), options)
    });
    parsed.collect()
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
    assert!(sum.killed > 15, "{sum:?}");
    assert!(sum.clock_steps > 50, "{sum:?}");
    assert!(sum.boots > 20 && sum.behind > 5, "{sum:?}");
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

/// Each of these bugs of the product is planted in turn and must be found. Those of three stages are
/// found by the tests of these: `nodes.rs`, `rot.rs` and `shards.rs`.
#[cfg(feature = "planted-bugs")]
#[test]
fn every_planted_bug_is_found() {
    let is_here = |bug: &_| !["nodes", "rot", "shards"].contains(&planted::stage(*bug));
    let all: Vec<_> = planted::PlantedBug::all().filter(is_here).collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let look = || {
        let taken = || next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        while let Some(&bug) = all.get(taken()) {
            let found = planted::search(bug, 1..=1_000, |seed| planted::find(bug, seed));
            let (seed, what) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
            println!("{bug:?}: seed {seed}: {what}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(look);
        scope.spawn(look);
    });
}

/// A world that fails is made smaller, and the smaller one fails when it is run as it is told.
#[cfg(feature = "planted-bugs")]
#[test]
fn a_failing_world_is_made_smaller() {
    let options = Options {
        planted_bug: Some(planted::PlantedBug::Engine(
            countwheel_durable::PlantedBug::LoseRetry,
        )),
        ..Options::default()
    };
    let failure = (1..100)
        .find_map(|seed| world::run(seed, &options).err())
        .unwrap();
    let shrunk = world::shrink(failure, &options, 80);
    assert!(world::run(shrunk.failure.seed, &shrunk.options).is_err());
    // A retry is all it takes, and somebody who fails.
    assert!(shrunk.options.turns < 40, "{shrunk}");
    assert!(shrunk.options.without.len() >= 12, "{shrunk}");
    assert!(
        !shrunk
            .options
            .without
            .contains(&world::Part::FailingReceivers),
        "{shrunk}"
    );
}

/// No feature that the shipped program has, and none of its dependencies', plants a bug: not even
/// with all of its features.
#[test]
fn the_shipped_program_cannot_plant_a_bug() {
    let features_of = |package: &str, edges: &str| {
        let ran = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--all-features", "--prefix", "none"])
            .args([
                "--package",
                package,
                "--edges",
                edges,
                "--format",
                "{p} {f}",
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(ran.status.success(), "{ran:?}");
        let text = String::from_utf8(ran.stdout).unwrap();
        let of_ours = text
            .lines()
            .filter(|line| line.starts_with("countwheel-durable "));
        assert_ne!(of_ours.clone().count(), 0, "{package} is built without it");
        of_ours.filter(|line| line.contains("planted-bugs")).count()
    };
    assert_eq!(features_of("countwheel-server", "normal"), 0);
    // The look itself sees one where there is one.
    assert_ne!(features_of("countwheel-sim", "normal"), 0);
}
