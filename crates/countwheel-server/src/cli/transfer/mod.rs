//! `countwheel export` and `countwheel import`: timers as lines of JSON.
//!
//! The first line says format and version, the last one that it is the last. Each line between them is a
//! timer: its name, its state, and the fields of a set that makes the same timer.

mod export;
mod import;
mod line;

pub use export::Export;
pub use import::{Existing, Import};
pub use line::LineError;
