//! The model test as a command, for as many operations as you have time for.
//!
//! ```text
//! model [--ops 5e7] [--seeds N]    that many operations, spread over N seeds
//! model --seed S [--ops N]         one seed again
//!   [--slots N]                    only rings of N slots; 0: only the hierarchy
//! ```
//!
//! Prints each difference with the command that replays it, then a summary. Exits
//! with 1 if there was a difference.

#[path = "../tests/comparison/mod.rs"]
mod comparison;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use comparison::{Shape, run};

const OPERATIONS_PER_SEED: u64 = 20_000;

struct Plan {
    seeds: std::ops::Range<u64>,
    operations_per_seed: u64,
    /// Only this one; otherwise each seed has its own.
    shape: Option<Shape>,
}

fn main() -> ExitCode {
    let plan = match plan(std::env::args().skip(1)) {
        Ok(plan) => plan,
        Err(complaint) => {
            eprintln!("{complaint}\nusage: model [--ops 5e7] [--seeds N] [--seed S] [--slots N]");
            return ExitCode::from(2);
        }
    };
    let next_seed = AtomicU64::new(plan.seeds.start);
    let (operations, differences) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = || loop {
        let seed = next_seed.fetch_add(1, Relaxed);
        if !plan.seeds.contains(&seed) {
            break;
        }
        let shape = plan.shape.unwrap_or(Shape::of_seed(seed));
        match run(shape, seed, plan.operations_per_seed) {
            Ok(count) => {
                operations.fetch_add(count, Relaxed);
            }
            Err(difference) => {
                operations.fetch_add(difference.operations, Relaxed);
                differences.fetch_add(1, Relaxed);
                println!("{difference}");
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let (operations, differences) = (operations.into_inner(), differences.into_inner());
    let seeds = plan.seeds.end - plan.seeds.start;
    println!("operations {operations}, seeds {seeds}, differences {differences}");
    ExitCode::from(u8::from(differences > 0))
}

fn plan(mut args: impl Iterator<Item = String>) -> Result<Plan, String> {
    let (mut operations, mut seeds, mut only, mut shape) = (None, None, None, None);
    while let Some(name) = args.next() {
        let value = args.next().ok_or(format!("{name} needs a value"))?;
        let number = whole_number(&value).ok_or(format!("{value} is not a whole number"))?;
        match name.as_str() {
            "--ops" => operations = Some(number),
            "--seeds" => seeds = Some(number.max(1)),
            "--slots" => shape = Some(Shape::of_slots(number)),
            "--seed" => only = Some(number),
            _ => return Err(format!("{name} is not an option")),
        }
    }
    if let Some(seed) = only {
        return Ok(Plan {
            seeds: seed..seed + 1,
            operations_per_seed: operations.unwrap_or(OPERATIONS_PER_SEED),
            shape,
        });
    }
    let operations = operations.unwrap_or(50_000_000);
    let seeds = seeds.unwrap_or(operations.div_ceil(OPERATIONS_PER_SEED).max(1));
    Ok(Plan {
        seeds: 0..seeds,
        operations_per_seed: operations.div_ceil(seeds),
        shape,
    })
}

/// Reads `50000000` and, since zeros are hard to count, `5e7`.
fn whole_number(text: &str) -> Option<u64> {
    let (digits, zeros) = text.split_once('e').unwrap_or((text, "0"));
    let scale = 10_u64.checked_pow(zeros.parse().ok()?)?;
    digits.parse::<u64>().ok()?.checked_mul(scale)
}
