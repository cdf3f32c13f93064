//! The command line against a server that misbehaves.

#![expect(clippy::unwrap_used, reason = "helpers of tests, outside of any test")]

mod cluster;
mod commands;
mod replay;
mod stub;
