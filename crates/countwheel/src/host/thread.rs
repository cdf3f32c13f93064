//! The host of a real timer: one thread that sleeps until the next deadline.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use crate::ledger::Ledger;

/// Starts the thread. It ends when the ledger is closed.
pub(crate) fn start(name: &str, ledger: Arc<Ledger>) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(move || {
        tracing::debug!("timer thread started");
        while let Some(due) = ledger.wait_for_due() {
            ledger.perform(due);
        }
        tracing::debug!("timer thread ended");
    })
}
