//! A client of Countwheel's HTTP API, in the words of the durable crate.
//!
//! | to | is |
//! |---|---|
//! | set, move, remove, get, fire, revive, resend, drain, purge, ask for jobs | a [`Client`] |
//! | ask a server at a socket of the file system | [`Client::new`] with a URL such as `unix:/run/countwheel.sock` |
//! | make, rotate and revoke tokens, read the audit log | [`Client::create_token`], [`Client::audit`] |
//! | have failed requests made again | [`Client::with_retry`] |
//! | go through all timers of a queue | [`Client::timers`], a stream |
//! | send many operations at once | [`Client::batch`](Client::batch), [`batch::Pipe`] |
//! | read what happens, and go on where it was left | [`Client::events`], a stream |
//! | fetch timers of a queue of mode pull and work on them | a [`Worker`](worker::Worker) |
//! | check that a delivery is of the service | a [`Verifier`](signature::Verifier) |
//! | handle each delivery once, in axum or whatever takes Tower layers | a `DeliveryLayer` of the feature `receiver` |
//!
//! Each failure is a [`ClientError`] that says which it is: a URL that cannot be used, a token that is wrong, a server
//! that is away, a service that is another one, a refusal with its code.

mod client;
pub mod events;
pub mod pages;
#[cfg(feature = "receiver")]
pub mod receiver;
pub mod roots;
mod shown;
pub mod signature;
mod stream;
pub mod time;
pub mod words;
pub mod worker;

pub use self::client::*;

/// The example of the crate's README is compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
