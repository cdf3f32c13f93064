//! Bit rot while an engine runs: what cannot be read takes nobody else along.

use countwheel_sim::rot;

#[test]
fn bits_that_flip_touch_nobody_else() {
    let mut sum = rot::Report::default();
    for seed in 1..=40 {
        sum.add(&rot::run(seed).unwrap_or_else(|failure| panic!("{failure}")));
    }
    assert!(sum.flips > 300 && sum.lost > 10, "{sum}");
    assert!(sum.mended > 5 && sum.ended > 0, "{sum}");
}

/// Each mistake about what is unreadable is planted in turn and must be found.
#[cfg(feature = "planted-bugs")]
#[test]
fn every_mistake_about_what_is_unreadable_is_found() {
    use countwheel_sim::planted::{self, PlantedBug};

    for bug in PlantedBug::all().filter(|&bug| planted::stage(bug) == "rot") {
        let found = planted::search(bug, 1..=300, |seed| planted::find(bug, seed));
        let (seed, what) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        let what: String = what.chars().take(160).collect();
        println!("{bug:?}: seed {seed}: {what}");
    }
}
