//! Timing wheels: many timers, one hand, constant-time insert and cancel.
//!
//! ```
//! use countwheel_core::{HierarchicalWheel, Tick};
//!
//! let mut wheel = HierarchicalWheel::new();
//! wheel.insert(Tick::new(30), "close the idle connection");
//! let retry = wheel.insert(Tick::new(20), "retry the request");
//! wheel.insert(Tick::new(10), "send a heartbeat");
//! wheel.cancel(retry);
//!
//! assert_eq!(wheel.next_wake(), Some(Tick::new(10)));
//! while let Some(expired) = wheel.expire(Tick::new(25)) {
//!     println!("{} at {}", expired.value, expired.deadline.get());
//! }
//! assert_eq!(wheel.len(), 1, "one timer is still to come");
//! ```
//!
//! A wheel is data in, data out. A wheel knows neither a clock nor a thread nor a callback: the
//! caller passes the time and takes expired entries out one at a time. A [`Tick`] is a point on the
//! wheel's time line; the caller chooses the length of a tick.
//!
//! # Two wheels, one meaning
//!
//! | | [`HierarchicalWheel`] | [`HashedWheel`] |
//! |---|---|---|
//! | shape | eight levels of 256 slots, and a sorted run | one ring of `ticks_per_wheel` slots |
//! | insert, cancel, reschedule | O(1) | O(1) |
//! | an entry's whole way out | at most seven moves, whatever its delay | one look per revolution |
//! | empty ticks | skipped | skipped |
//! | memory when empty | 25 KB | 12 bytes and one bit a slot |
//! | an entry with eight bytes of value | 25 bytes; 34 when far | the same in full chunks; 280 bytes alone in its slot |
//!
//! Take the hierarchical one unless you know that nearly all delays are shorter
//! than one revolution of the ring. Both come from G. Varghese and T. Lauck,
//! *Hashed and Hierarchical Timing Wheels* (1987), schemes 6 and 7. Both keep
//! these promises:
//!
//! - **Every tick has a place.** There is no longest delay and no error from
//!   `insert`; a deadline that has passed is due at once.
//! - **The order is total:** by deadline, and equal deadlines in the order of
//!   insertion. A reschedule counts as a new insertion. A passed deadline counts
//!   as the tick the hand stood at when it was filed.
//! - **Time never goes backwards.** The wheel takes an older `now` as the hand's position.
//! - **A stale key changes nothing**, even after its storage has been reused.
//!
//! # Words
//!
//! - **tick**: a point in time, and the unit of counting.
//! - **hand**: the tick the wheel has reached; `now()` returns it.
//! - **deadline**: the tick at which an entry is due.
//! - **slot**: holds the entries of one span of ticks, in order of insertion.
//! - **ring**: slots that the hand passes in turn; one turn is a **revolution**.
//! - **round**: the revolution of a hashed ring that an entry waits for.
//! - **level**: a ring of a hierarchy; its slots are 256 times as wide as those below.
//! - **cascade**: the move of a slot's entries to finer levels, as the hand enters it.
//!
//! # Storage
//!
//! A value lives in a **node**, which keeps its place from insertion to expiry; a [`TimerKey`]
//! names the node and its generation. A deadline waits in a **chunk**: an array of 32 entries of
//! eight bytes, each half a deadline and the number of a node. A slot is a chain of chunks. New
//! entries go to the end of the last chunk. A cancel clears one bit of a word that says which
//! entries are live. Expiry reads whole chunks, so the wheel never reaches a timer through another
//! one. A chunk in which a deadline is more than 2^32 ticks away has a second array, for the upper
//! halves.
//!
//! A cancelled entry is gone at once. The wheel merges chunks that cancels have left sparse with
//! their neighbours, a few after every 32 removals while the chunks are less than an eighth full,
//! but for one to an occupied slot. It reuses freed memory, the lowest first, and gives memory back
//! after a peak: by itself once as many entries have left as there is room for and the room was not
//! needed, or with `shrink_to_fit`.
//!
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bits;
mod check;
mod chunks;
mod geometry;
mod hashed;
mod hierarchical;
mod indices;
mod key;
mod nodes;
mod segments;
mod sort;
mod storage;
mod tick;

pub use geometry::GeometryError;
pub use hashed::HashedWheel;
pub use hierarchical::HierarchicalWheel;
pub use key::{Expired, TimerKey};
pub use storage::{OccupiedSlot, SlotLoad};
pub use tick::Tick;

/// The example of the crate's README is compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
