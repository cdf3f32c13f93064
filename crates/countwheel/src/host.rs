//! How time passes for a timer: on a thread of its own, on a runtime, or by hand.

pub(crate) mod manual;
pub(crate) mod task;
pub(crate) mod thread;
