//! Leases of nodes on the simulated server.

use countwheel_postgres::testing::{Leases, leases};

/// Some of a gate, more by a variable.
fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("COUNTWHEEL_LEASES").ok();
    1..asked.map_or(300, |text| text.parse().expect("a number"))
}

#[test]
fn who_may_start_owns_the_shard() {
    let mut sum = Leases::default();
    for seed in seeds() {
        let run = leases(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        sum.add(&run);
    }
    println!("{sum:?}");
    // What never happens proves nothing. Far below what is seen, far above none.
    let least = [
        sum.taken,
        sum.refused,
        sum.renewed,
        sum.kept,
        sum.given,
        sum.left,
        sum.rejoined,
        sum.name_taken,
        sum.committed,
    ];
    assert!(least.iter().all(|count| *count > 100), "{sum:?}");
}

#[test]
fn a_seed_repeats() {
    for seed in 1..20 {
        assert_eq!(leases(seed), leases(seed), "{seed}");
    }
}

#[cfg(feature = "planted-bugs")]
#[test]
fn every_mistake_with_leases_is_found() {
    use countwheel_postgres::{PlantedBug, plant};

    for bug in PlantedBug::OF_LEASES {
        plant(Some(*bug));
        let found = (1..=1_000).find_map(|seed| Some((seed, leases(seed).err()?)));
        plant(None);
        let (seed, what) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {seed}: {what}");
    }
}
