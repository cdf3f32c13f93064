//! Durable timers: acknowledged only when stored, delivered at least once, never early.
//!
//! This crate has the engine and the seam to the store of timers, [`store::Store`]. The crate
//! `countwheel-disk` is the store on a disk.
//!
//! ```
//! use std::sync::mpsc;
//! use std::time::Duration;
//!
//! let directory = tempfile::tempdir()?;
//! let (close, closed) = mpsc::channel();
//! let timers = countwheel_disk::open(directory.path(), move |attempt| {
//!     close.send((attempt.name.to_string(), attempt.number))
//! })?;
//! timers.set(("unpaid", "order-42"), Duration::from_millis(20), "close it")?;
//! // From here on a power cut does not lose it.
//! assert_eq!(closed.recv()?, ("unpaid/order-42".to_owned(), 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where attempts go
//!
//! | handler | runs |
//! |---|---|
//! | a function or closure | on a pool of [`Config::handler_threads`] threads; may wait |
//! | [`inline`] | on the scheduler's thread; must not wait |
//! | `on_tokio` (feature `tokio`), [`spawned`] on any other runtime | as a task of the runtime |
//! | [`attempt_channel`] | wherever the program takes [`Attempts`] |
//! | [`Handlers`] | as the handler of the timer's queue does |
//!
//! A handler returns `()`, a `Result` or an [`Outcome`]. [`Attempt::timers`] gives it the verbs, and
//! [`Attempt::json`] the value that [`Json`] wrote.
//!
//! A timer has a name: a [`QueueName`] and the caller's own [`Key`] in it. The caller sets,
//! moves, removes and fires it by that name with a [`Request`]; when it is due, a
//! [`Handler`] gets an [`Attempt`], and the [`Outcome`] decides what follows by the timer's
//! [`RetryPolicy`]. The [`State`]s are pending, delivering, done and dead;
//! `docs/timer-states.md` has the diagram.
//!
//! A set with a [`Recurrence`] makes a recurring timer: at a fixed rate, with a fixed delay, or by
//! a [`CronExpression`] in a [`Zone`]. [`Missed`] is the rule for a timer that is overdue before
//! its first attempt.
//!
//! ```
//! use countwheel_durable::{
//!     CronExpression, Due, Missed, Precondition, Recurrence, Request, RetryPolicy, Schedule,
//!     SetOptions, TimerName, Zone,
//! };
//! use std::time::Duration;
//!
//! let every_morning = Schedule::Cron {
//!     expression: CronExpression::new("0 9 * * *")?,
//!     zone: Zone::new("Asia/Kathmandu")?,
//! };
//! let request = Request::Set {
//!     name: TimerName::new("reports", "sales")?,
//!     due: Due::In(Duration::ZERO), // not before now
//!     policy: RetryPolicy::default(),
//!     payload: Vec::new(),
//!     precondition: Precondition::None,
//!     options: SetOptions {
//!         missed: Missed::Collapse,
//!         recurrence: Some(Recurrence::new(every_morning).into()),
//!         ..SetOptions::default()
//!     },
//! };
//! // Hand it to `Timers::call`.
//! # drop(request);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds
//!
//! - **Acknowledged means synced.** The engine answers a request after its change is on the disk.
//!   Requests that arrive during one sync share the next.
//! - **At least once.** The change that claims an attempt is durable before the attempt starts. If
//!   the process ends before the outcome is recorded, the engine repeats the attempt under the next
//!   number.
//! - **Never early.** Deadlines are UTC microseconds and are not rounded. The engine measures the
//!   lateness of each attempt ([`Stats::lateness`]).
//! - **Bounded.** The window in memory, the attempts in flight, the waiting requests and the rate
//!   of the catch-up all have limits ([`Config`]).
//! - **A remove says what the timer was doing** ([`Was`]), and no attempt starts after it.
//!
//! # What it is not
//!
//! The engine is not exactly once: a receiver that must not act twice remembers [`Attempt::id`]. It
//! is not a cluster: one process owns a directory. It speaks no HTTP: the program `countwheel`
//! does.
//!
//! # Parts
//!
//! [`Timers`] runs an [`Engine`] on a thread of its own. An engine takes [`Event`]s, decides,
//! commits, and lets [`Effect`]s out. An engine has no thread and reads only its given clock, so a
//! simulation runs the same code. A [`store::Store`] keeps the records: `DiskStore` of the crate
//! `countwheel-disk` in a directory, [`store::MemoryStore`] in memory, for tests.

mod across;
mod ahead;
mod answer;
mod audit;
mod backlog;
mod budget;

mod clocks;
mod config;
mod draft;
mod drain;
mod elsewhere;
mod engine;
mod events;
mod flow;
mod gather;
mod handler;
mod handlers;
mod held;
mod in_flight;
mod jobs;
mod kept;
mod leases;
mod merged;
mod name;
mod notes;
mod overdue;
mod parked;
mod payload;
mod planted;
mod policy;
mod pool;
mod purge;
mod receipt;
mod record;
mod recurrence;
mod request;
mod retention;
mod rules;
mod runner;
mod scheduler;
mod setting;
mod shards;
mod spawned;
mod stats;
pub mod store;
mod suspects;
mod taken;
mod timers;
mod together;
mod trouble;
mod verbs;
mod window;

pub use across::{AcrossError, AcrossFilter, AcrossPage};
pub use answer::Answer;
pub use audit::{AuditEntry, AuditFilter, AuditPage, Changed, Note, Noting, Stood};
pub use budget::Budget;
pub use config::Config;
pub use countwheel_time::{
    By, Clock, Delays, Jitter, ManualClock, PlannedAttempt, Preset, RetryPolicy, RetryPolicyError,
    RetrySettings, Share, SystemClock, Timestamp,
};
pub use drain::{DrainMode, Drains};
pub use elsewhere::{Asked, Counted, Elsewhere};
pub use engine::{Effect, Engine, Turn};
pub use events::{
    Chunk, EventCopies, EventKind, EventLog, EventPosition, EventSink, FutureEvent, KnownEvents,
    OwnEvents, ResumeError, Subject, TimerEvent, ToldEvents,
};
pub use flow::{Flow, FlowLimits, FlowRate, FlowUse, Flows, Route};
pub use handler::{
    Attempt, Completion, Handler, Inline, NextRun, Outcome, Run, Verdict, inline, pooled,
};
pub use handlers::Handlers;
pub use jobs::{
    HasTags, Job, JobAction, JobCounts, JobError, JobFilter, JobHost, JobOrder, JobStep, JobSteps,
};
pub use name::{Key, NameError, Namespace, QueueName, TimerName};
#[cfg(feature = "json")]
pub use payload::Json;
pub use payload::{Payload, PayloadError};
#[cfg(feature = "planted-bugs")]
pub use planted::{PlantedBug, plant};
pub use policy::{PolicyError, RETRY_PRESETS, check_policy};
pub use purge::{Purge, PurgeError, PurgeFilter, PurgeStep};
pub use receipt::Receipt;
pub use record::{
    AttemptEnd, AttemptRecord, AttemptResult, DeadReason, DueClock, LeaseToken, Record, Revision,
    State, StateKind, TimerId, UnknownState, UnknownToken, Wake,
};
pub use recurrence::{
    CronError, CronExpression, Missed, Overlap, Recurrence, RecurrenceError, Recurring, Schedule,
    UnknownZone, Zone,
};
pub use request::{
    BatchError, Configured, Due, Extended, Forgotten, Moved, Precondition, Request, Response, Set,
    SetOptions, Settled, Shift, TimerError, Was,
};
pub use retention::{Keep, Retention};
pub use rules::Rules;
pub use scheduler::{Event, Ticket};
pub use setting::{
    Setting, SettingError, SettingName, SettingPrecondition, SettingValue, Settings,
    SettingsVersion,
};
pub use shards::Shards;
#[cfg(feature = "tokio")]
pub use spawned::on_tokio;
pub use spawned::{AttemptFuture, Spawned, spawned};
pub use stats::{DueBucket, DueCounts, Lateness, OverdueCount, Overview, QueueOverview, Stats};
pub use taken::{Attempts, Taken, ToChannel, attempt_channel};
pub use timers::{Drained, Health, Left, Listed, Loss, Timers};
pub use trouble::{Trouble, TroubleReason, Troubles};
pub use verbs::{AsyncTimers, ToFilter, ToPayload, ToQueues, ToTimerName};

/// The example of the crate's README is compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
