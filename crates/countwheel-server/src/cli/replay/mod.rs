//! `countwheel replay`: a trace of set, move and remove, at any speed.
//!
//! The parts are of use to a test harness too: [`Planner`] gives the operations of a trace their
//! place in time, [`Replay`] carries them out against a server that may be killed at any
//! time, and an [`Observer`] sees each acknowledgement.

mod command;
mod perform;
mod plan;
mod report;
mod run;

pub use command::ReplayFile;
pub use perform::{Acknowledgement, OperationResult};
pub use plan::{Action, Operation, OperationKind, Planner, Speed, SpeedError, Timeline};
pub use report::{Lag, Report};
pub use run::{Observer, Progress, Replay, ReplayError};
