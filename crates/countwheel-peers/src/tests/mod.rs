//! The tests, from the bytes up to nodes that talk. What has a planted mistake is a function of its own:
//! `planted` calls it again.

mod bytes;
mod holding;
mod nodes;
mod outbox;
#[cfg(feature = "planted-bugs")]
mod planted;
mod samples;
mod sockets;
