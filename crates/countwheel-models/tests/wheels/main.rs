//! The model test of the wheels finds every planted bug, in every wheel that can have it, and
//! nothing in a wheel without one. With assertions off a bug may make a wheel loop for ever, so
//! this test is about builds that have them on.
#![cfg(debug_assertions)]
#![expect(
    dead_code,
    reason = "the model needs less of the wheels than the product"
)]

extern crate self as countwheel_core;

#[path = "../../../countwheel-core/tests/comparison/mod.rs"]
mod comparison;
#[path = "../shared/planting.rs"]
mod planting;

// The wheels, with mistakes that can be switched on.
include!(concat!(env!("OUT_DIR"), "/wheels/lib.rs"));

use comparison::{Shape, run};
use planted::Bug;

const OPERATIONS_PER_SEED: u64 = 20_000;
const SEEDS: u64 = 50;

/// Of these, a hashed wheel has no part in which to make them.
const ONLY_IN_A_HIERARCHY: [Bug; 4] = [
    Bug::RunAfterItsEquals,
    Bug::RunBeforeItsSlotCascades,
    Bug::CascadeOvertaken,
    Bug::HalfACascadeLeft,
];

#[test]
fn every_planted_bug_is_found_within_a_million_operations() {
    let mut missed = Vec::new();
    for shape in Shape::ALL {
        for &bug in Bug::ALL {
            if shape != Shape::Hierarchical && ONLY_IN_A_HIERARCHY.contains(&bug) {
                continue;
            }
            // The wheels' own assertions are part of what finds bugs.
            planting::plant(Some(bug));
            let found = (0..SEEDS).find_map(|seed| {
                let difference = run(shape, seed, OPERATIONS_PER_SEED).err()?;
                Some((
                    seed * OPERATIONS_PER_SEED + difference.operations,
                    difference,
                ))
            });
            planting::plant(None);
            match found {
                Some((operations, difference)) => {
                    println!("{shape:?} {bug:?}: {operations}: {}", difference.what);
                }
                None => missed.push((shape, bug)),
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn nothing_is_found_where_nothing_is_planted() {
    for shape in Shape::ALL {
        for seed in 0..SEEDS {
            if let Err(difference) = run(shape, seed, OPERATIONS_PER_SEED) {
                panic!("{difference}");
            }
        }
    }
}
