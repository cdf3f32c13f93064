//! What a fuzzer does, without one: what real stores wrote, changed in a few places, with the
//! checksums made right.

use std::panic::{AssertUnwindSafe, catch_unwind};

use countwheel_disk::fuzz::{Seen, Target};

use crate::failure::panic_text;
use crate::random::Random;

/// How many inputs a seed makes of each recipe.
const INPUTS: u64 = 20;

/// Changes recipes as the seed says, and hands them to the readers. Says how many were read and
/// how many refused.
///
/// # Errors
/// A panic.
pub fn run(seed: u64) -> Result<(u64, u64), String> {
    let (mut right, mut refused) = (0, 0);
    for target in Target::ALL {
        let mut random = Random::new(seed, target.name());
        for recipe in target.seeds() {
            for _ in 0..INPUTS {
                let input = change(recipe.clone(), &mut random);
                let seen = catch_unwind(AssertUnwindSafe(|| target.run(&input)));
                match seen {
                    Ok(Seen::Right) => right += 1,
                    Ok(Seen::Refused) => refused += 1,
                    Err(panic) => {
                        let what = panic_text(&*panic);
                        return Err(format!("{target:?}: {what}"));
                    }
                }
            }
        }
    }
    Ok((right, refused))
}

fn change(mut recipe: Vec<u8>, random: &mut Random) -> Vec<u8> {
    for _ in 0..random.between(1, 4) {
        if recipe.is_empty() {
            break;
        }
        let at = usize::try_from(random.below(recipe.len() as u64)).unwrap_or(0);
        let byte = random.draw().to_le_bytes()[0];
        match random.below(5) {
            0 => recipe[at] ^= 1 << (byte % 8),
            1 => recipe[at] = byte,
            2 => recipe[at] = *random.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            3 => recipe.insert(at, byte),
            _ => drop(recipe.remove(at)),
        }
    }
    recipe
}
