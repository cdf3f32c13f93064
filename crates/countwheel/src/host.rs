//! The hosts of a timer: a thread of its own, a runtime, or a manual host.

pub(crate) mod manual;
pub(crate) mod task;
pub(crate) mod thread;
#[cfg(feature = "tokio")]
pub(crate) mod tokio;
