//! Tower layers on Countwheel's timers: a timeout that hands a deadline down, and a retry with a budget
//! that starts no attempt without time for it.
//!
//! ```
//! use countwheel::Timer;
//! use countwheel_tower::{Deadline, RetryLayer, RetryPolicy, TimeoutLayer, WithDeadline};
//! use std::time::Duration;
//! use tower::{BoxError, ServiceBuilder, ServiceExt};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! # runtime.block_on(async {
//! let timer = Timer::new();
//! let millis = Duration::from_millis;
//! let policy = RetryPolicy::fixed(millis(1)).max_retries(3);
//! let service = ServiceBuilder::new()
//!     .layer(TimeoutLayer::new(timer.clone(), millis(2_000))) // for all attempts together
//!     .layer(RetryLayer::new(timer.clone(), policy))
//!     .layer(TimeoutLayer::new(timer.clone(), millis(500))) // for each
//!     .service_fn(async |request: WithDeadline<&str>| Ok::<_, BoxError>(request.request.len()));
//!
//! // Whoever called us left 100 ms, so no limit of ours is longer.
//! let deadline = Deadline::after(&timer, millis(100));
//! let answer = service.oneshot(WithDeadline::new("four", deadline)).await.unwrap();
//! assert_eq!(answer, 4);
//! # });
//! ```
//!
//! | you want | take |
//! |---|---|
//! | a limit for each call, shortened by the deadline that the request carries | [`TimeoutLayer`] |
//! | failed calls again, on a [`RetryPolicy`], within a [`RetryBudget`] and the deadline | [`RetryLayer`] |
//! | a request type that carries a deadline | [`CarriesDeadline`], or [`WithDeadline`] around a type of others |
//! | the deadline from another process, and to it | [`grpc_timeout`] |
//!
//! # One timer
//!
//! A [`Deadline`] is a point on the clock of one timer, and two timers begin to count at different moments.
//! So all layers of a program take clones of one timer. In tests that is
//! [`ManualHost::timer`](countwheel::ManualHost::timer), or `Timer::on_tokio` on a runtime whose clock is
//! paused: the layers read no clock but the timer's.
//!
//! # Beside Tower's own layers
//!
//! | | `tower::timeout`, `tower::retry` | this crate |
//! |---|---|---|
//! | the timer | tokio's | any of Countwheel's: a thread, a runtime, tokio's with its clock, by hand |
//! | a limit over several layers and processes | - | the deadline in the request |
//! | the error | boxed; `Elapsed` has no fields | typed; what cut the call, and how long the call had |
//! | a call whose time is up already | reaches the inner service | does not |
//! | when to try again | a trait `Policy`; the back-off is exponential, with jitter | a [`RetryPolicy`]: lists, fixed, linear, exponential, presets, a text; `Retry-After` |
//! | a request that changes between attempts | yes | no |
//! | a result that changes | yes | no; a refusal adds what was spent |
//! | a request that cannot be cloned | `clone_request` says no, and the call goes out once | does not compile |
//! | a policy with state | yes, for each request | no: a [`Judge`] sees one result at a time |
//! | a budget | a trait, with `TpsBudget` | [`RetryBudget`], the same token bucket |
//!
//! Take Tower's `timeout` where one limit is enough and the program runs on tokio anyway: there is less to
//! learn. Take Tower's `retry` where attempts differ, such as a header that counts them.

#![forbid(unsafe_code)]

mod deadline;
pub mod grpc_timeout;
mod retry;
mod timeout;

pub use countwheel_patterns::{Deadline, GiveUp, RetryBudget, RetryPolicy};
pub use deadline::{CarriesDeadline, WithDeadline};
pub use retry::{EveryError, Judge, Retry, RetryError, RetryFuture, RetryLayer, Verdict};
pub use timeout::{Cut, Elapsed, Timeout, TimeoutError, TimeoutFuture, TimeoutLayer};

/// What Tower's own layers call any error.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The example of the crate's README is compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
