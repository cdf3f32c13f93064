//! The durable timers from outside: one program, since each program is linked by itself.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod audit;
mod batch;
mod boots;
mod callbacks;
mod clocks;
mod crash_loops;
mod drain;
mod elsewhere;
mod engine;
mod events;
mod flows;
mod full_disk;
mod halves;
mod handlers;
mod jobs;
mod memory;
mod nodes;
mod overdue;
mod purge;
mod receipts;
mod recurring;
mod rules;
mod runner;
mod settings;
mod shards;
mod store_without_files;
mod support;
mod together;
mod troubles;
mod window;
