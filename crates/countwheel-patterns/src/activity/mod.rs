//! The time of last activity, for idle watches, heartbeats and leases.
//!
//! Each watched thing is a [`Cell`] with the times of its last activity. An activity writes a time
//! and does nothing else. A wheel holds each cell once, under the time of the next event if no
//! activity follows. When that time comes, the shard looks at the cell, and files a cell with new
//! activity again for the rest. (Netty's idle handler and SOFARegistry's leases do the same.) The
//! decision of a [`Policy`] runs on the executor, after another look.
//!
//! A cell is always in one place: in the wheel, in a task that handles it, or, for an expired
//! lease, with its guard. So no two actions of one cell run at the same time, and the number of
//! cells bounds the work that waits for an executor.
//!
//! `stalls.rs` keeps the time that does not count, in which this process did not run.

mod cell;
mod shard;
mod stalls;
mod table;

pub(crate) use cell::{Cell, next_multiple};
pub(crate) use shard::{ActivityShard, After, Policy};
pub(crate) use stalls::Live;
pub use table::WatchError;
pub(crate) use table::{Options, Table};
