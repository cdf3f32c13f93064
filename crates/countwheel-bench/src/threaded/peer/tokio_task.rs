//! Tasks of the tokio runtime that sleep.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::runtime::{Builder, EnterGuard, Runtime};
use tokio::task::AbortHandle;

use super::Peer;

/// A task for each timer, aborted to cancel.
#[derive(Clone)]
pub(crate) struct Tasks;

impl Peer for Tasks {
    type Handle = AbortHandle;
    type Entered = EnterGuard<'static>;

    const CANCEL_TELLS: bool = false;

    fn start() -> anyhow::Result<Self> {
        Ok(Self)
    }

    fn enter(&self) -> Self::Entered {
        runtime().enter()
    }

    fn schedule(&mut self, delay: Duration, work: impl FnOnce() + Send + 'static) -> AbortHandle {
        // Made here, so that the delay counts from the call and not from the first poll.
        let sleep = tokio::time::sleep(delay);
        let task = tokio::spawn(async move {
            sleep.await;
            work();
        });
        task.abort_handle()
    }

    fn cancel(&mut self, handle: AbortHandle) -> bool {
        handle.abort();
        true
    }
}

/// The runtime as `#[tokio::main]` would build it, with a worker for each core. It
/// lives as long as the process.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
        Builder::new_multi_thread()
            .enable_time()
            .build()
            .expect("threads for a runtime can be started")
    });
    &RUNTIME
}
