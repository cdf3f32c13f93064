//! When something was last heard of: what idle watches, heartbeats and leases have in common.
//!
//! Each thing that is watched is a [`Cell`] with the times of its last activity. Activity
//! writes a time and does nothing else. A wheel holds each cell once, under the time at which
//! something would have to be said if nothing more happened; when that time comes, the cell is
//! looked at, and if something has happened it goes back to the wheel for the rest. (So do
//! Netty's idle handler and SOFARegistry's leases.) What a [`Policy`] decides to do then
//! happens on the executor, and only after another look.
//!
//! A cell is always in one place: in the wheel, in a task that deals with it, or, for a lease
//! that has run out, with its guard. So nothing is done twice at a time for one cell, and what
//! waits for an executor is bounded by the number of cells.
//!
//! `stalls.rs` keeps the time that does not count: in which this process did not run itself.

mod cell;
mod shard;
mod stalls;
mod table;

pub(crate) use cell::{Cell, next_multiple};
pub(crate) use shard::{ActivityShard, After, Policy};
pub(crate) use stalls::Live;
pub use table::WatchError;
pub(crate) use table::{Options, Table};
