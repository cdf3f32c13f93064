//! The runtime in whose context tasks run.

#[cfg(feature = "tokio")]
use tokio::runtime::Handle;

/// What a thread enters before it runs the tasks of a timer: a runtime's context, or nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Context {
    #[cfg(feature = "tokio")]
    runtime: Option<Handle>,
}

impl Context {
    #[cfg(feature = "tokio")]
    pub(crate) fn of(runtime: Handle) -> Self {
        Self {
            runtime: Some(runtime),
        }
    }

    /// Whether tasks find a runtime here.
    pub(crate) fn has_runtime(&self) -> bool {
        #[cfg(feature = "tokio")]
        return self.runtime.is_some();
        #[cfg(not(feature = "tokio"))]
        return false;
    }

    /// Does something in this context.
    pub(crate) fn within<R>(&self, run: impl FnOnce() -> R) -> R {
        #[cfg(feature = "tokio")]
        let _entered = self.runtime.as_ref().map(Handle::enter);
        run()
    }
}
