//! The program from outside: real processes, real connections.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod access_log;
mod answers;
mod asvs;
mod audit;
mod backfill;
mod batch;
mod cors;
mod dashboard;
mod degraded;
mod delivery;
mod described;
mod descriptors;
mod events;
mod exits;
mod floods;
mod framing;
#[cfg(feature = "fuzzing")]
mod fuzz;
mod http2;
mod idempotency;
mod jobs;
mod leases;
mod leftover;
mod limits;
mod listening;
mod login;
mod logs;
mod maintenance;
mod namespaces;
mod nodes;
mod nodes_long;
mod noise;
mod outward;
mod process;
mod purge;
mod queues;
mod reading;
mod receivers;
mod refusals;
mod resources;
mod routes;
mod secrets;
mod sentences;
mod stats;
mod streams;
mod support;
mod tls;
mod tokens;
mod transfer;
mod unread;
