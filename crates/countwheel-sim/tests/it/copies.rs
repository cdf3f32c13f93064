//! Files from two times: what is put together of copies is complete, or refused and unchanged.
//! The program runs more of it, at full speed.
use std::path::Path;

use countwheel_sim::stores::copies::{self, MIXES_OF_A_STORE, Mistake, Report, Verdicts};

fn run(stores: u64, mistake: Option<Mistake>) -> Report {
    // Thousands of syncs that prove nothing here: in memory, if there is such a place.
    let memory = Path::new("/dev/shm");
    let root = if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    let mut sum = Report::default();
    for seed in 1..=stores {
        let directory = tempfile::tempdir_in(&root).unwrap();
        let report = copies::run(seed, MIXES_OF_A_STORE, directory.path(), mistake).unwrap();
        sum.add(report);
    }
    sum
}

#[test]
fn a_mix_of_copies_is_complete_or_refused_and_unchanged() {
    let report = run(4, None);
    let sum = report.sum();
    assert_eq!(report.failures, Vec::<String>::new(), "{sum}");
    assert!(sum.newest > 10 && sum.refused > 10, "{sum}");
    assert!(sum.repaired > 5, "{sum}");
}

/// What a proof does not find when it is there, the proof does not look for.
#[test]
fn each_mistake_of_an_opening_is_found() {
    let seen = |mistake, verdict: fn(&Verdicts) -> u64| {
        let report = run(4, Some(mistake));
        let sum = report.sum();
        assert!(verdict(&sum) > 0, "{mistake:?}: {sum}");
    };
    for mistake in Mistake::ALL {
        match mistake {
            Mistake::WritesBeforeItReads | Mistake::DiscardsBeforeItReads => {
                seen(mistake, |sum| sum.changed);
            }
            Mistake::LosesTheEnd => seen(mistake, |sum| sum.lost),
            Mistake::RepairsTheLogAlone => seen(mistake, |sum| sum.lost_by_repair),
        }
    }
}
