//! The model test finds every planted bug, in every wheel that can have it, and
//! nothing in a wheel without one. With assertions off a bug may make a wheel loop
//! for ever, so this test is about builds that have them on.
#![cfg(debug_assertions)]

mod comparison;

use comparison::{Shape, run};
use countwheel_core::PlantedBug;

const OPERATIONS_PER_SEED: u64 = 20_000;
const SEEDS: u64 = 50;

#[test]
fn every_planted_bug_is_found_within_a_million_operations() {
    // The wheels' own assertions are part of what finds bugs: let them fail quietly.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for shape in Shape::ALL {
        for bug in PlantedBug::ALL {
            if shape != Shape::Hierarchical && !bug.concerns_hashed_wheels() {
                continue;
            }
            let found = (0..SEEDS).find_map(|seed| {
                let difference = run(shape, seed, OPERATIONS_PER_SEED, Some(bug)).err()?;
                Some((
                    seed * OPERATIONS_PER_SEED + difference.operations,
                    difference,
                ))
            });
            match found {
                Some((operations, difference)) => {
                    println!("{shape:?} {bug:?}: {operations}: {}", difference.what);
                }
                None => missed.push((shape, bug)),
            }
        }
    }
    drop(std::panic::take_hook());
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn nothing_is_found_where_nothing_is_planted() {
    for shape in Shape::ALL {
        for seed in 0..SEEDS {
            if let Err(difference) = run(shape, seed, OPERATIONS_PER_SEED, None) {
                panic!("{difference}");
            }
        }
    }
}
