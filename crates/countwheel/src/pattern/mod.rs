//! What people build on timers, built once: retries, heartbeats, deadlines, delay queues.
//!
//! Each is a layer on a [`Timer`](crate::Timer), which it is given: with its clock, its host and
//! its executor, where everything foreign runs. None has a thread of its own.
//!
//! | you want | take |
//! |---|---|
//! | to tell work that goes on to stop | [`StopSignal`] |
//!
//! Those that keep many deadlines have wheels of their own, and one entry in the timer's, so
//! they do not count one by one against [`max_pending`](crate::TimerBuilder::max_pending); nor
//! does what follows from something that was accepted before, such as the next run of a periodic
//! task. Each has a bound of its own where it needs one.

mod bell;
mod random;
mod spawned;
mod stop_signal;

pub use stop_signal::{StopSignal, ToldToStop};
