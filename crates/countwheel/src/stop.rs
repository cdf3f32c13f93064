//! The end of a timer.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::Patience;
use crate::engine::Engine;
use crate::stats::RunningTask;
use crate::task::Task;

/// What becomes of the tasks that are pending when a timer is closed. Whatever it is, new ones
/// are refused from that moment on, and one that runs is never interrupted.
///
/// ```
/// use countwheel::{ManualHost, Stop};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let timer = host.timer().clone();
/// for seconds in [1, 2, 3] {
///     timer.schedule(Duration::from_secs(seconds), || {})?;
/// }
/// // What comes within two seconds still comes.
/// let stopping = timer.close(Stop::WaitUpTo(Duration::from_secs(2)));
/// assert_eq!(host.advance(Duration::from_secs(2)), 2);
/// let stopped = stopping.wait();
/// assert_eq!(stopped.unfired.len(), 1);
/// assert!(stopped.is_complete());
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Stop {
    /// They come back in [`Stopped::unfired`].
    #[default]
    HandBack,
    /// They are dropped.
    Drop,
    /// They run now, before their time, in the order of their deadlines.
    RunNow,
    /// They run at their time, within this span on the timer's clock; then the rest comes
    /// back in [`Stopped::unfired`].
    WaitUpTo(Duration),
}

/// A timer that is closed, and not yet still. Made by [`Timer::close`](crate::Timer::close).
///
/// Block with [`wait`](Self::wait) or [`wait_for`](Self::wait_for), or await it: it is a
/// future. Dropping it waits for nothing and drops what it holds.
#[must_use = "to wait for the end of the running tasks"]
pub struct Stopping {
    engine: Arc<Engine>,
    unfired: Vec<Task>,
}

/// What a stop gives back. Dropping it drops the tasks.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Stopped {
    /// The tasks that have not run and never will, unless by [`Task::run`], in the order in
    /// which they would have. If several stop a timer, each task is given to one of them.
    pub unfired: Vec<Task>,
    /// The tasks that still run, when patience ran out.
    pub running: Vec<RunningTask>,
    /// Whether all is still: nothing runs, but perhaps the task that called.
    complete: bool,
}

impl Stopped {
    /// Whether all is still: nothing is pending or runs any more (but the task that asks, if
    /// one does), and the timer's thread has ended. Everyone who waits long enough sees the
    /// same end, but with a [`ManualHost`](crate::ManualHost), whose clock has to be moved.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

impl Stopping {
    pub(crate) fn new(engine: Arc<Engine>, unfired: Vec<Task>) -> Self {
        Self { engine, unfired }
    }

    /// Waits until nothing runs any more and the timer's thread has ended, however long that
    /// takes.
    ///
    /// (So do not call it while holding what a running task waits for.) Called from a task of
    /// this timer, it does not wait for that task, and runs itself what [`Stop::RunNow`] has left
    /// to run. (Await it in tasks only on a runtime: a task that *blocks* on this future, while
    /// another does, waits for the other.) With a [`ManualHost`](crate::ManualHost) it
    /// runs what [`Stop::RunNow`] has left to run, and waits for nothing that has to become due:
    /// nobody else makes time pass.
    #[must_use = "what did not run comes back"]
    pub fn wait(self) -> Stopped {
        self.engine.help();
        self.engine.ready.wait_over(None);
        self.stopped(true)
    }

    /// Like [`wait`](Self::wait), but for `patience` at most, in real time. What runs then
    /// goes on, and is named in [`Stopped::running`].
    ///
    /// ```
    /// use countwheel::{Stop, Timer};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let timer = Timer::new();
    /// let (started, start) = mpsc::channel();
    /// let (release, wait) = mpsc::channel::<()>();
    /// timer.schedule(Duration::ZERO, move || {
    ///     started.send(()).unwrap();
    ///     drop(wait.recv());
    /// })?;
    /// start.recv().unwrap();
    ///
    /// let stopped = timer.close(Stop::Drop).wait_for(Duration::from_millis(5));
    /// assert!(!stopped.is_complete());
    /// assert_eq!(stopped.running.len(), 1);
    /// drop(release);
    /// assert!(timer.close(Stop::Drop).wait().is_complete());
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    #[must_use = "what did not run comes back"]
    pub fn wait_for(self, patience: Duration) -> Stopped {
        let patience = Patience::of(patience);
        self.engine.help();
        let complete = self.engine.ready.wait_over(Some(patience));
        self.stopped(complete)
    }

    fn stopped(mut self, is_over: bool) -> Stopped {
        self.unfired.extend(self.engine.take_left_over());
        let running = if is_over {
            Vec::new()
        } else {
            self.engine.snapshot().running
        };
        let complete = is_over && self.engine.is_empty();
        Stopped {
            unfired: std::mem::take(&mut self.unfired),
            running,
            complete,
        }
    }
}

impl Future for Stopping {
    type Output = Stopped;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Stopped> {
        self.engine.help();
        if !self.engine.ready.poll_over(cx.waker()) {
            return Poll::Pending;
        }
        let unfired = std::mem::take(&mut self.unfired);
        Poll::Ready(Self::new(Arc::clone(&self.engine), unfired).stopped(true))
    }
}

impl fmt::Debug for Stopping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stopping")
            .field("unfired", &self.unfired)
            .finish_non_exhaustive()
    }
}
