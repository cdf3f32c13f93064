//! The guide: from the first ten lines to tuning. Every example in it is run as a test.
//!
//! | page | for whom |
//! |---|---|
//! | [first steps](first_steps) | the first timer, handles, deadlines |
//! | [what is promised](promises) | never early, order, lateness, cost, memory |
//! | [a wheel, drawn](wheel) | slots, the hand, rounds, levels and cascades in pictures |
//! | [where tasks run](executors) | inline, pools, tokio; a full executor |
//! | [capacity] | a limit on pending tasks |
//! | [channels and async](channels_and_async) | channels, wakers, sleeps, timeouts, intervals |
//! | [keyed timers](keyed) | timers known by keys |
//! | [retries](retry) | operations tried again until they succeed |
//! | [periodic tasks](periodic) | one function again and again, at a fixed rate or with a fixed delay |
//! | [supervised tasks and workers](supervised) | periodic with a timeout and a back-off; loops that can be woken |
//! | [idle connections and heartbeats](idle) | finding the silent ones among a million connections, and keeping connections alive |
//! | [leases] | members that leave unless they renew |
//! | [deadlines] | requests in flight, and limits passed down a chain of calls |
//! | [delay queues](delay_queues) | items to be taken when they are due |
//! | [delayed operations](delayed_operations) | requests that wait for a change, or for their time |
//! | [expiring maps](expiring_maps) | values with a lifetime: sessions, tokens, caches by time |
//! | [stopping] | the fate of the tasks, and who waits for whom |
//! | [seeing inside](observing) | counters, lateness, slow tasks, logs, watchdogs |
//! | [testing your code](testing) | a month in a millisecond, stalls, slow tasks |
//! | [hosting] | on a runtime, or in a loop of your own, without a thread |
//! | [in a tokio program](in_tokio) | which timer, a paused clock, work that needs a runtime, streams |
//! | [do I need a wheel?](do_i_need) | where speed is a reason, and where it is none |
//! | [tuning] | resolution, layout, shards, clock: which to change, and when |
//! | [pitfalls] | common mistakes |
//! | [coming from elsewhere](migrating) | Netty, Dubbo, go-zero, Kafka, SOFARegistry, Eureka, tokio: their calls and ours |
//! | [words of other timer systems](words) | their classes, fields and defaults, ours, and the row with the proof |

/// The first timer, handles, deadlines.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/first_steps.md")]
pub mod first_steps {}

/// Never early, order, lateness, cost, memory.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/promises.md")]
pub mod promises {}

/// Slots, the hand, rounds, levels and cascades in pictures.
///
#[doc = include_str!("../guide/links.md")]
#[doc = include_str!("../guide/pictures/levels.md")]
#[doc = include_str!("../guide/pictures/ring.md")]
#[doc = include_str!("../guide/pictures/twelve.md")]
///
#[doc = include_str!("../guide/wheel.md")]
pub mod wheel {}

/// Inline, pools, tokio; what happens when there is no room.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/executors.md")]
pub mod executors {}

/// A limit on what is pending.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/capacity.md")]
pub mod capacity {}

/// Channels, wakers, sleeps, timeouts, intervals.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/channels_and_async.md")]
pub mod channels_and_async {}

/// Timers that are known by keys.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/keyed.md")]
pub mod keyed {}

/// Operations that are tried again until they succeed.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/retry.md")]
pub mod retry {}

/// The same again and again, at a fixed rate or with a fixed delay.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/periodic.md")]
pub mod periodic {}

/// Periodic with a timeout and a back-off; loops that can be woken.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/supervised.md")]
pub mod supervised {}

/// Who is silent, by the million, and how to keep them alive.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/idle.md")]
pub mod idle {}

/// Members that go unless they renew.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/leases.md")]
pub mod leases {}

/// Requests in flight, and limits that are handed down a chain of calls.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/deadlines.md")]
pub mod deadlines {}

/// Items to be taken when they are due.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/delay_queues.md")]
pub mod delay_queues {}

/// Requests that wait for a change, or for their time.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/delayed_operations.md")]
pub mod delayed_operations {}

/// Values that are forgotten: sessions, tokens, caches by time.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/expiring_maps.md")]
pub mod expiring_maps {}

/// What becomes of the tasks, and who waits for whom.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/stopping.md")]
pub mod stopping {}

/// Counters, lateness, slow tasks, logs, watchdogs.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/observing.md")]
pub mod observing {}

/// A month in a millisecond, stalls, slow tasks.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/testing.md")]
pub mod testing {}

/// On a runtime, or in a loop of your own, without a thread.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/hosting.md")]
pub mod hosting {}

/// Resolution, layout, shards, clock: what to turn, and when.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/tuning.md")]
pub mod tuning {}

/// What is easily got wrong.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/pitfalls.md")]
pub mod pitfalls {}

/// Netty, Dubbo, go-zero, Kafka, SOFARegistry, Eureka, tokio: their call and ours.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/migrating.md")]
pub mod migrating {}

/// Which timer, a paused clock, work that needs a runtime, streams.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/in_tokio.md")]
pub mod in_tokio {}

/// Where speed is a reason, and where it is none.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/do_i_need.md")]
pub mod do_i_need {}

/// Their classes, fields and defaults, and ours.
///
#[doc = include_str!("../guide/links.md")]
///
#[doc = include_str!("../guide/words.md")]
pub mod words {}
