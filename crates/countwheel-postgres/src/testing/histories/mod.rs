//! The same statements for the simulated server and for a real one: every answer has to be the same.

mod steps;

use std::fmt::{self, Debug};
use std::sync::Arc;

use countwheel_durable::Shards;
use countwheel_time::Random;

use self::steps::{Asking, Step};
use super::{Server, SimulatedPostgres};
use crate::conformance::Mistake;
use crate::hash::{KEY_BYTES, NameHash};
use crate::schema::SchemaName;
use crate::session::Session;
use crate::sql::{SqlSession, Statements};
use crate::{PostgresError, PostgresOptions, PostgresStore, STEP};

/// Each history has so many steps at least, and as many more at the most.
const STEPS: u64 = 40;
/// Of a history that fails, so many shorter ones are tried at the most.
const SHORTER_MAX: usize = 200;
/// Connections to each server that write.
const SESSIONS: usize = 2;
const SHARDS: u16 = 3;

/// What two servers were asked that answered the same. See [`same_answers`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SameAnswers {
    /// How many questions.
    pub answers: usize,
    /// How many shards' turns were made.
    pub made: usize,
    /// How many were not.
    pub not_made: usize,
}

/// Draws a history of statements from `seed`, puts it to a simulated server and in a schema of its own to
/// `server`, there with a mistake in what is sent if there is one, and demands that all answers are the same,
/// and in the end all that can be read.
///
/// ```no_run
/// use countwheel_postgres::testing::{Server, same_answers};
///
/// let server = Server::start(&[]).expect("one is installed");
/// assert!(same_answers(&server, 7, None)?.made > 0);
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// The first answer that is not the same.
pub fn same_answers(
    server: &Server,
    seed: u64,
    mistake: Option<Mistake>,
) -> Result<SameAnswers, String> {
    let run = run(server, mistake, &history(seed))?;
    run.map_err(|differs| format!("seed {seed}: {differs:?}"))
}

/// The same of a history for which [`same_answers`] fails, as short as it gets by leaving out steps, with what
/// is left.
///
/// ```no_run
/// use countwheel_postgres::conformance::Mistake;
/// use countwheel_postgres::testing::{Server, different_answers};
///
/// let server = Server::start(&[]).expect("one is installed");
/// assert!(different_answers(&server, 1, Some(Mistake::NotJoined))?.is_some());
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// The server cannot be used.
pub fn different_answers(
    server: &Server,
    seed: u64,
    mistake: Option<Mistake>,
) -> Result<Option<String>, String> {
    let run = |steps: &[Step]| run(server, mistake, steps);
    let steps = history(seed);
    let Err(differs) = run(&steps)? else {
        return Ok(None);
    };
    let (steps, differs) = shorter(steps, differs, &run)?;
    let steps: String = steps.iter().map(|step| format!("\n  {step:?}")).collect();
    Ok(Some(format!("seed {seed}: {differs:?}\nafter{steps}")))
}

fn history(seed: u64) -> Vec<Step> {
    steps::history(&mut Random::new(seed), STEPS)
}

fn run(server: &Server, mistake: Option<Mistake>, steps: &[Step]) -> Run {
    let servers = Servers::new(server, mistake);
    servers.map_err(|error| error.to_string())?.run(steps)
}

/// An answer that is not the same.
struct Differs {
    /// After so many steps.
    at: usize,
    asked: String,
    simulated: String,
    real: String,
}

impl Debug for Differs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asked, simulated, real) = (&self.asked, &self.simulated, &self.real);
        write!(
            f,
            "{asked}\n  the simulated server: {simulated}\n  the real one: {real}"
        )
    }
}

type Run = Result<Result<SameAnswers, Differs>, String>;

/// Leaves out what is behind the first difference, then one step after the other, while some answer still is
/// not the same.
fn shorter(
    mut steps: Vec<Step>,
    mut differs: Differs,
    run: &impl Fn(&[Step]) -> Run,
) -> Result<(Vec<Step>, Differs), String> {
    steps.truncate(differs.at + 1);
    let mut left = SHORTER_MAX;
    loop {
        let before = steps.len();
        for at in (0..steps.len()).rev() {
            if at >= steps.len() || left == 0 {
                continue;
            }
            left -= 1;
            let mut fewer = steps.clone();
            fewer.remove(at);
            if let Err(still) = run(&fewer)? {
                fewer.truncate(still.at + 1);
                (steps, differs) = (fewer, still);
            }
        }
        if steps.len() == before || left == 0 {
            return Ok((steps, differs));
        }
    }
}

/// Both servers, with connections to each.
struct Servers {
    observer: Box<dyn Session>,
    /// The simulated one and the real one.
    sessions: [Vec<Box<dyn Session>>; 2],
    /// Goes with this.
    _made: Schema,
}

/// The schema of one history, removed at the end.
struct Schema(PostgresOptions);

impl Drop for Schema {
    fn drop(&mut self) {
        let remove = format!("DROP SCHEMA \"{}\" CASCADE", self.0.schema);
        let removed = crate::store::connect(&self.0).map(|mut link| link.execute(&remove, STEP));
        if !matches!(removed, Ok(Ok(()))) {
            tracing::warn!(schema = self.0.schema, "a schema is left");
        }
    }
}

impl Servers {
    fn new(server: &Server, mistake: Option<Mistake>) -> Result<Self, PostgresError> {
        let shards = Shards::new(SHARDS).unwrap_or(Shards::ONE);
        let options = server.fresh();
        PostgresStore::make(&options, shards)?;
        let made = Schema(options);
        let schema = SchemaName::new(&made.0.schema)?;
        let planted = |right: String| match mistake {
            Some(mistake) => mistake.planted(&right),
            None => right,
        };
        let simulated = SimulatedPostgres::new(shards, 1, drop);
        let statements = Arc::new(Statements::of(&schema, simulated.ring(), &planted));
        let real = (0..SESSIONS).map(|_| {
            let link = crate::store::connect(&made.0)?;
            let session = SqlSession::new(link, Arc::clone(&statements));
            Ok(Box::new(session) as Box<dyn Session>)
        });
        let real = real.collect::<Result<_, PostgresError>>()?;
        let mut observers = simulated.observer().sessions(1);
        Ok(Self {
            observer: observers.remove(0),
            sessions: [simulated.sessions(SESSIONS), real],
            _made: made,
        })
    }

    fn run(&mut self, steps: &[Step]) -> Run {
        let mut same = SameAnswers::default();
        let mut asking = Asking::new(NameHash::new(&[7; KEY_BYTES]));
        let everything = steps::everything();
        for (at, step) in steps.iter().chain(&everything).enumerate() {
            // A statement is prepared once a connection: what only asks is left to the first.
            let connection = if step.writes() { at % SESSIONS } else { 0 };
            let sessions = self.sessions.each_mut();
            let sessions = sessions.map(|sessions| &mut sessions[connection]);
            let answers = asking.ask(step, &mut *self.observer, sessions);
            let [simulated, real] = answers.map_err(|failure| failure.reason())?;
            if simulated.text != real.text {
                return Ok(Err(Differs {
                    at: at.min(steps.len()),
                    asked: format!("{step:?}"),
                    simulated: simulated.text,
                    real: real.text,
                }));
            }
            same.answers += 1;
            same.made += real.made;
            same.not_made += step.turns().saturating_sub(real.made);
        }
        Ok(Ok(same))
    }
}
