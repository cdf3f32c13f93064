//! The end of the process.

use std::fmt;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Why the service stops.
#[derive(Debug)]
pub(crate) enum Cause {
    /// Someone asked it to.
    Signal(&'static str),
    /// The store failed, and why.
    StoreFailed(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(name) => f.write_str(name),
            Self::StoreFailed(reason) => write!(f, "the store failed: {reason}"),
        }
    }
}

/// Hears SIGTERM, SIGINT and SIGHUP from when it is made.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one: its name, and the exit code of a process that it ends.
    pub(crate) async fn next(&mut self) -> (&'static str, i32) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", 143),
            _ = self.interrupt.recv() => ("SIGINT", 130),
            // The terminal is gone.
            _ = self.hangup.recv() => ("SIGHUP", 129),
        }
    }
}
