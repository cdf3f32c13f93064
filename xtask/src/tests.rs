//! The test programs of the workspace, a few at a time.
//!
//! `cargo test` runs one program after the other, and most programs wait more than they reckon.
//! Here every program runs as `cargo test` runs it: in the directory of its package, whole. The doc
//! tests run beside the programs.

use crate::programs::{self, Program};
use crate::{Outcome, cargo, gate};

/// How many programs run at a time.
const AT_A_TIME: usize = 3;

/// The programs that take longest begin first, so that none of them is left for the end, when a processor
/// has nothing to do beside it. A name that is missing here costs time alone.
const LONGEST: [&str; 10] = [
    "it of countwheel-sim",
    "fence of countwheel-models",
    "hosts of countwheel",
    "it of countwheel-server",
    "bench of countwheel-bench",
    "loom of countwheel-models",
    "patterns of countwheel-patterns",
    "it of countwheel-disk",
    "it of countwheel-durable",
    "it of countwheel-postgres",
];

enum Job {
    Documents,
    Program(&'static Program),
}

/// Runs all tests and doc tests, of what was built before.
pub(crate) fn run() -> Outcome {
    let mut programs: Vec<&Program> = match programs::build() {
        Ok(programs) => programs.iter().collect(),
        Err(why) => return Outcome::Failed(why),
    };
    programs.sort_by_key(|program| {
        let name = program.full_name();
        let place = LONGEST.iter().position(|longest| *longest == name);
        place.unwrap_or(LONGEST.len())
    });
    let documents = std::iter::once(Job::Documents);
    let jobs: Vec<Job> = documents
        .chain(programs.into_iter().map(Job::Program))
        .collect();
    gate::beside(AT_A_TIME, &jobs, Job::run, Job::name)
}

impl Job {
    fn name(&self) -> String {
        match self {
            Self::Documents => "the doc tests".to_owned(),
            Self::Program(program) => program.full_name(),
        }
    }

    fn run(&self) -> bool {
        let mut command = match self {
            Self::Documents => cargo("test --workspace --all-features --doc").command(),
            Self::Program(program) => program.command(),
        };
        match command.output() {
            Ok(output) => {
                let said = [output.stdout, output.stderr].concat();
                let said = String::from_utf8_lossy(&said);
                println!("=== tests: {}\n{}", self.name(), said.trim_end());
                output.status.success()
            }
            Err(error) => {
                println!("=== tests: {} do not start: {error}", self.name());
                false
            }
        }
    }
}
