//! Each planted mistake breaks a sentence.

use std::panic::catch_unwind;

use countwheel_cluster::{PlantedBug, plant};

#[test]
fn every_planted_mistake_is_found() {
    let all = [
        super::place::sentences::ALL,
        super::clock::sentences::ALL,
        super::control::sentences::ALL,
        super::loans::sentences::ALL,
        super::gather::sentences::ALL,
    ];
    for bug in PlantedBug::ALL {
        plant(Some(*bug));
        let broken = all.iter().copied().flatten();
        let broken: Vec<_> = broken
            .filter(|(_, sentence)| catch_unwind(sentence).is_err())
            .map(|(name, _)| *name)
            .collect();
        plant(None);
        assert!(!broken.is_empty(), "{bug:?} breaks nothing");
    }
    assert_eq!(PlantedBug::ALL.len(), 32);
}
