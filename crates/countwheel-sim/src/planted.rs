//! Bugs of the product, planted one at a time, and which stage has to find each.

use countwheel_durable::{PlantedBug, plant};

use crate::machine::{Kind, Machine};
use crate::stores::{calls, meanwhile};
use crate::world::{self, Options};

/// A bug on this thread, until this goes.
#[must_use]
pub(crate) struct Planted(());

impl Planted {
    pub(crate) fn new(bug: Option<PlantedBug>) -> Self {
        plant(bug);
        Self(())
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        plant(None);
    }
}

/// The stage that has to find a bug, as `sim` has it: the stores alone, a log while it moves, or everything
/// together.
#[must_use]
pub fn stage(bug: PlantedBug) -> &'static str {
    let name = format!("{bug:?}");
    if name.starts_with("LogMoves") {
        return "meanwhile";
    }
    let of_a_store = ["Log", "Tables", "Manifest"];
    if of_a_store.iter().any(|part| name.starts_with(part)) {
        "calls"
    } else {
        "seeds"
    }
}

/// Runs one seed of its stage with the bug. What is wrong, if that is seen.
#[must_use]
pub fn find(bug: PlantedBug, seed: u64) -> Option<String> {
    let _planted = Planted::new(Some(bug));
    match stage(bug) {
        "calls" => {
            let machine = || Machine::new(Kind::Tables, seed);
            calls::find_on(&machine, seed).err()
        }
        "meanwhile" => meanwhile::run(seed).err(),
        _ => {
            let options = Options {
                planted_bug: Some(bug),
                ..Options::default()
            };
            world::run(seed, &options).err().map(|failure| failure.what)
        }
    }
}
