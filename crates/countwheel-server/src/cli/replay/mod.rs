//! `countwheel replay`: a trace of departures as set, move and remove.
//!
//! The parts are of use to a test harness too: [`plan`] turns flights into operations with
//! a place in time, [`Replay`] carries them out against a server that may be killed at any
//! time, and an [`Observer`] sees each acknowledgement.

mod command;
mod perform;
mod plan;
mod report;
mod run;

pub use command::ReplayFile;
pub use perform::{Acknowledgement, OperationResult};
pub use plan::{Action, Operation, OperationKind, Planner, Speed, SpeedError, Timeline, plan};
pub use report::{Lag, Report};
pub use run::{Observer, Progress, Replay, ReplayError};
