//! Every call to the disk fails once: scripts with each call failing in turn, and drawn lives.

use countwheel_disk::simulated::{Failure, Fault};

use super::life::{Broken, Event, FAILURES, Tally, live, shrink, tail};
use super::script::{self, Script};
use crate::failure::Failure as Failed;
use crate::machine::{Kind, Machine};

/// How many lives a shrinking may take.
const SHRINK_TRIES: usize = 400;

/// One script with one kind of failure: a case of [`run_case`].
#[derive(Clone, Debug)]
pub struct Case {
    /// The store.
    pub kind: Kind,
    /// What happens.
    pub script: Script,
    /// How the call fails.
    pub failure: Failure,
}

/// All cases of the scripts.
#[must_use]
pub fn cases(kinds: &[Kind]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &kind in kinds {
        for script in script::all() {
            for failure in FAILURES {
                let script = script.clone();
                cases.push(Case {
                    kind,
                    script,
                    failure,
                });
            }
        }
    }
    cases
}

/// Runs a script again and again: first its first call fails, then the second, every `stride`th,
/// until none is left to fail. After that the process ends, or the power goes, and everything
/// that was acknowledged has to be there.
///
/// # Errors
/// The first rule broken.
pub fn run_case(case: &Case, stride: u64) -> Result<Tally, Box<Failed>> {
    let mut sum = Tally::default();
    let mut after = 0;
    loop {
        let mut events = vec![Event::Fault(Fault::once(after, case.failure))];
        events.extend(case.script.events.iter().cloned());
        events.push(match after % 3 {
            0 => Event::Cut(after),
            1 => Event::Restart,
            _ => Event::Evict,
        });
        let machine = Machine::new(case.kind, 0);
        match live(&machine, &events) {
            Ok(tally) => sum.add(&tally),
            Err(broken) => {
                let what = format!(
                    "{:?}, script '{}', call {after} fails with {:?}",
                    case.kind, case.script.name, case.failure
                );
                return Err(failed(0, &what, &broken, &events, &|| {
                    Machine::new(case.kind, 0)
                }));
            }
        }
        if machine.disk.struck() == 0 {
            return Ok(sum);
        }
        after += stride;
    }
}

/// A drawn life, with up to twenty faults, several of them inside recoveries.
///
/// # Errors
/// The first rule broken.
pub fn run_life(kind: Kind, seed: u64) -> Result<Tally, Box<Failed>> {
    run_life_on(&|| Machine::new(kind, seed), seed)
}

/// The same on a machine of the caller's.
///
/// # Errors
/// The first rule broken.
pub fn run_life_on(machine: &dyn Fn() -> Machine, seed: u64) -> Result<Tally, Box<Failed>> {
    let events = script::life(seed, 20);
    let on = machine();
    live(&on, &events)
        .map_err(|broken| failed(seed, &format!("{:?}", on.kind), &broken, &events, machine))
}

/// The same, without a search for the shortest: whether the life of a seed breaks a rule.
///
/// # Errors
/// The first rule broken.
pub fn find_on(machine: &dyn Fn() -> Machine, seed: u64) -> Result<Tally, String> {
    live(&machine(), &script::life(seed, 20)).map_err(|broken| broken.what)
}

fn failed(
    seed: u64,
    what: &str,
    broken: &Broken,
    events: &[Event],
    machine: &dyn Fn() -> Machine,
) -> Box<Failed> {
    let (fewer, again) = shrink(machine, events, SHRINK_TRIES);
    let mut last = vec!["with as few events as show it:".to_owned()];
    last.extend(tail(&fewer, 60));
    let calls = &again.as_ref().unwrap_or(broken).calls;
    last.push("the last calls to the disk:".to_owned());
    last.extend(tail(calls, 24));
    if let Some(again) = &again {
        last.push(format!("then: {}", again.what));
    }
    Box::new(Failed {
        seed,
        step: broken.event as u64,
        what: format!("{what}: {}", broken.what),
        last,
    })
}
