//! A running service moves its timers into the tables of a cluster: copies them while it serves, follows what
//! is committed meanwhile, holds requests for a moment, and has one statement of the database decide. From then
//! on it sends requests to the nodes of the cluster. See decision 42.

pub mod back;
mod copy;
mod forward;
mod gate;
pub(crate) mod marker;
mod mover;
mod tap;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use countwheel_disk::DiskStore;
use countwheel_durable::store::StoreError;
use countwheel_durable::{TimerError, Timers};
use countwheel_postgres::{PostgresError, PostgresOptions};
use countwheel_time::Clock;
use parking_lot::Mutex;

use crate::api::audit::Operation;

pub(crate) use self::gate::{Gate, Passed, Within};
use self::mover::Mover;
pub(crate) use self::tap::Tapped;

/// Waits on the thread of a move. A timer of the runtime would end with that, before the process does.
#[expect(clippy::disallowed_methods, reason = "nothing else waits here")]
fn pause(span: Duration) {
    thread::sleep(span);
}

/// How far a move has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Phase {
    /// There was none since the service was started.
    #[default]
    None,
    /// All timers are copied.
    Copying,
    /// What was changed meanwhile is copied.
    Following,
    /// Requests wait, and nothing starts.
    Holding,
    /// The timers are in the database. Requests wait until its nodes have taken all shards.
    Taking,
    /// The timers are in the database, and requests go to its nodes.
    Moved,
    /// The timers are here.
    GivenUp,
}

impl Phase {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Copying => "copying",
            Self::Following => "following",
            Self::Holding => "holding",
            Self::Taking => "taking",
            Self::Moved => "moved",
            Self::GivenUp => "given_up",
        }
    }

    /// Whether a move is under way.
    const fn goes_on(self) -> bool {
        matches!(self, Self::Copying | Self::Following | Self::Holding)
    }
}

/// What there is to say of the last move.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) phase: Phase,
    /// Where to, without a password.
    pub(crate) target: Option<String>,
    /// How many timers were written.
    pub(crate) copied: u64,
    /// How many of them were changed since, and are written again.
    pub(crate) left: u64,
    /// How long it took, or takes.
    pub(crate) took: Duration,
    /// For how long requests waited.
    pub(crate) held: Option<Duration>,
    /// How many attempts ran for longer than they were waited for.
    pub(crate) interrupted: usize,
    /// Why it was given up, or waits.
    pub(crate) reason: Option<String>,
}

/// Why a move does not begin, or was given up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MoveError {
    #[error("a move is under way")]
    UnderWay,
    #[error("the timers were moved already")]
    Moved,
    #[error("{0} places of the store cannot be read: see `countwheel check`")]
    Damaged(usize),
    #[error(
        "no node of the cluster lives: start one (serve --store), so that the timers have somewhere to go"
    )]
    NoNode,
    #[error("somebody else has given the move up")]
    GivenUp,
    #[error("timers are changed faster than they can be copied")]
    TooFast,
    #[error("the move was not written down in the data directory: {0}")]
    Marker(std::io::Error),
    #[error("the audit log has no entry of the move: {0}")]
    Entry(TimerError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Database(#[from] PostgresError),
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// What a service with a data directory needs to move its timers.
pub(crate) struct Moves {
    store: Tapped<DiskStore>,
    directory: PathBuf,
    timers: Timers,
    clock: Arc<dyn Clock>,
    keep_done: Duration,
    /// How long attempts that run may take to end.
    grace: Duration,
    gate: Arc<Gate>,
    progress: Mutex<Progress>,
}

impl fmt::Debug for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moves")
            .field("directory", &self.directory)
            .field("progress", &*self.progress.lock())
            .finish_non_exhaustive()
    }
}

impl Moves {
    pub(crate) fn new(
        (store, directory): (Tapped<DiskStore>, PathBuf),
        timers: Timers,
        clock: Arc<dyn Clock>,
        keep_done: Duration,
        grace: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            directory,
            timers,
            clock,
            keep_done,
            grace,
            gate: Arc::default(),
            progress: Mutex::default(),
        })
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress.lock().clone()
    }

    /// Begins a move and goes on with it on a thread of its own. Called on a runtime. Blocks until the
    /// target has said that it takes timers. The entry of the audit log is written then, so it moves with the timers.
    pub(crate) fn begin(
        self: &Arc<Self>,
        mut options: PostgresOptions,
        entry: Operation,
    ) -> Result<(), MoveError> {
        options.keep_done = self.keep_done;
        let mut progress = self.progress.lock();
        match progress.phase {
            Phase::Taking | Phase::Moved => return Err(MoveError::Moved),
            phase if phase.goes_on() => return Err(MoveError::UnderWay),
            _ => {}
        }
        let before = std::mem::take(&mut *progress);
        progress.phase = Phase::Copying;
        drop(progress);
        let begun = Mover::begin(Arc::clone(self), &options).and_then(|mut mover| {
            if let Err(error) = entry.begins(&self.timers) {
                mover.give_up();
                return Err(MoveError::Entry(error));
            }
            let thread = thread::Builder::new().name("countwheel-move".to_owned());
            thread.spawn(move || mover.run())?;
            Ok(())
        });
        if begun.is_err() {
            *self.progress.lock() = before;
        }
        begun
    }
}
