//! The stores by themselves: nothing that was acknowledged is lost, whatever call fails.
//! The program runs more of it, at full speed.

use countwheel_sim::machine::{Kind, Machine};
use countwheel_sim::sabotage::Sabotage;
use countwheel_sim::stores::{
    Tally, bytes, calls, histories, makings, meanwhile, mixes, removed, starts,
};

#[test]
fn drawn_lives_keep_what_they_promised() {
    for (kind, seeds) in [(Kind::Log, 100), (Kind::Tables, 60)] {
        let mut sum = Tally::default();
        for seed in 0..seeds {
            let tally = calls::run_life(kind, seed).unwrap_or_else(|failure| panic!("{failure}"));
            sum.add(&tally);
        }
        // Faults that never happen rot.
        assert!(
            sum.struck > seeds && sum.unknown > seeds / 4,
            "{kind:?}: {sum}"
        );
        assert!(
            sum.failed_openings > seeds / 4 && sum.cuts > 2 * seeds,
            "{kind:?}: {sum}"
        );
    }
}

#[test]
fn what_failed_once_does_not_fail_again() {
    let lines = include_str!("../../regressions.txt").lines();
    for line in lines.filter_map(|line| line.strip_prefix("calls ")) {
        let mut words = line.split(' ');
        let seed = words.next().unwrap().parse().unwrap();
        let kind = Kind::named(words.next().unwrap()).unwrap();
        calls::run_life(kind, seed).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn what_is_committed_while_a_segment_moves_is_kept() {
    let mut met = 0;
    for seed in 0..300 {
        met += meanwhile::run(seed)
            .unwrap_or_else(|what| panic!("seed {seed}: {what}"))
            .met;
    }
    assert!(met > 1_000, "{met} commits met a move");
}

#[test]
fn a_store_without_its_newest_segment_is_refused_and_unchanged() {
    for seed in 0..100 {
        starts::run(&Machine::new(Kind::Tables, seed), seed)
            .unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

#[test]
fn nothing_is_acknowledged_once_the_newest_segment_is_taken_away() {
    for seed in 0..100 {
        removed::run(&Machine::new(Kind::Tables, seed), seed)
            .unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

#[test]
fn files_of_two_moments_are_complete_or_refused() {
    for seed in 0..100 {
        mixes::run(&Machine::new(Kind::Tables, seed), seed)
            .unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

/// One script in four, with every seventh call; the program takes all.
#[test]
fn what_a_store_acknowledges_is_there_wherever_it_was_made() {
    let tally = makings::run(1).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert_eq!(tally.kept, tally.makings, "{tally:?}");
    assert!(tally.failed_names > 100 && tally.refused > 100, "{tally:?}");
}

#[test]
fn scripts_survive_each_call_that_fails() {
    for case in calls::cases(&[Kind::Log, Kind::Tables]).iter().step_by(17) {
        calls::run_case(case, 7).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn damaged_stores_answer_rightly_or_refuse() {
    let mut sum = bytes::Verdicts::default();
    for seed in 0..60 {
        for kind in [Kind::Log, Kind::Tables] {
            sum.add(&bytes::run(kind, seed).unwrap_or_else(|failure| panic!("{failure}")));
        }
    }
    assert!(sum.refused > 20 && sum.right > 20, "{sum:?}");
    assert!(sum.repaired > 15, "{sum:?}");
}

#[test]
fn the_simulated_disk_is_like_a_real_one() {
    for seed in 0..8 {
        let directory = tempfile::tempdir().unwrap();
        let compared = histories::run(seed, directory.path());
        let compared = compared.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(compared.calls > 10);
    }
}

/// Each mistake in the use of a log is found by a life, and soon.
#[test]
fn every_mistake_is_found() {
    for sabotage in Sabotage::ALL {
        let machine = |seed| Machine::new(Kind::Log, seed).with(Some(sabotage));
        let found = (1..100).find(|&seed| calls::find_on(&|| machine(seed), seed).is_err());
        assert!(found.is_some(), "{sabotage:?} was not found");
    }
}

#[cfg(feature = "planted-bugs")]
#[test]
fn a_sync_of_a_directory_above_that_is_believed_wrongly_is_found() {
    use countwheel_disk::PlantedBug as InDisk;
    use countwheel_sim::planted::PlantedBug;
    for bug in [
        PlantedBug::Disk(InDisk::MakingPassesOverParentSync),
        PlantedBug::Disk(InDisk::MakingBelievesSecondSync),
    ] {
        let found = (0..20).find_map(|seed| countwheel_sim::planted::find(bug, seed));
        assert!(found.is_some(), "{bug:?} was not found");
    }
}
