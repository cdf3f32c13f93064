//! The two kinds of jobs: a task, and a waker.

use std::any::{Any, type_name};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::{mem, thread};

use crate::Instant;
use crate::Patience;
use crate::concurrent::Parker;
use countwheel_time::locks;

/// What a timer holds for one thing that is to happen.
pub(crate) enum Job {
    /// Runs on the executor.
    Task(Box<dyn Run>),
    /// Wakes somebody, on the host itself.
    Wake(Waker),
}

/// Something that runs once.
pub(crate) trait Run: Send {
    fn run(self: Box<Self>);

    /// What people know it by.
    fn name(&self) -> &'static str;

    /// Whether it is so short, and never waits, that the host itself may run it.
    fn is_short(&self) -> bool {
        false
    }
}

/// A function. Its type says where in the code it was written.
pub(crate) struct Function<F>(pub(crate) F);

impl<F: FnOnce() + Send> Run for Function<F> {
    fn run(self: Box<Self>) {
        (self.0)();
    }

    fn name(&self) -> &'static str {
        type_name::<F>()
    }
}

/// A function with a name of its own.
pub(crate) struct Named<F> {
    pub(crate) name: &'static str,
    pub(crate) task: F,
}

impl<F: FnOnce() + Send> Run for Named<F> {
    fn run(self: Box<Self>) {
        (self.task)();
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

/// A value on its way to a channel.
pub(crate) struct Delivery<T> {
    pub(crate) value: T,
    pub(crate) to: mpsc::Sender<T>,
}

impl<T: Send> Run for Delivery<T> {
    fn run(self: Box<Self>) {
        // Nobody listens any more: then nobody misses it either.
        let _ = self.to.send(self.value);
    }

    fn name(&self) -> &'static str {
        type_name::<T>()
    }

    fn is_short(&self) -> bool {
        true
    }
}

impl Job {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Task(run) => run.name(),
            Self::Wake(_) => "waker",
        }
    }

    pub(crate) fn is_short(&self) -> bool {
        match self {
            Self::Task(run) => run.is_short(),
            Self::Wake(_) => true,
        }
    }

    pub(crate) fn run(self) {
        match self {
            Self::Task(run) => run.run(),
            Self::Wake(waker) => waker.wake(),
        }
    }
}

/// A task that did not run and is the caller's again: refused, or left over by a stop.
///
/// ```
/// use countwheel::{ScheduleError, Timer};
/// use std::time::Duration;
///
/// let (old, new) = (Timer::new(), Timer::new());
/// old.stop();
/// let refused = old.schedule(Duration::from_secs(1), || println!("hello")).unwrap_err();
/// let ScheduleError::Closed(task) = refused else { panic!("not closed: {refused}") };
/// new.schedule(Duration::from_secs(1), move || task.run())?;
/// # Ok::<(), ScheduleError>(())
/// ```
pub struct Task {
    deadline: Instant,
    /// It makes a task `Sync`, so that errors may contain one and still travel.
    job: Mutex<Job>,
}

impl Task {
    pub(crate) fn new(deadline: Instant, job: Job) -> Self {
        Self {
            deadline,
            job: Mutex::new(job),
        }
    }

    /// The deadline that was asked for, on the clock of its timer.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What the task is known by in logs: its type, which for a closure is the function it was
    /// written in.
    ///
    /// ```
    /// # use countwheel::Timer;
    /// # use std::time::Duration;
    /// let timer = Timer::new();
    /// timer.schedule(Duration::from_secs(60), || println!("flush"))?;
    /// let task = &timer.stop().unfired[0];
    /// assert!(task.name().ends_with("{{closure}}"));
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &'static str {
        locks::lock(&self.job).name()
    }

    /// Runs the task here and now.
    pub fn run(self) {
        self.into_job().run();
    }

    pub(crate) fn into_job(self) -> Job {
        locks::whole(self.job.into_inner())
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("name", &self.name())
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// Blocks this thread until `poll`, asked again at each wake-up, has an answer.
///
/// ```
/// use countwheel::building::block_until;
/// use std::pin::pin;
///
/// let mut future = pin!(async { 42 });
/// assert_eq!(block_until(|cx| future.as_mut().poll(cx)), 42);
/// ```
pub fn block_until<R>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<R>) -> R {
    let parker = Arc::new(Parker::default());
    let waker = Waker::from(Arc::clone(&parker));
    let mut cx = Context::from_waker(&waker);
    loop {
        match poll(&mut cx) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => parker.park(None),
        }
    }
}

/// The same, for `patience` at most: `None` if there was no answer by then. Asks at least once.
///
/// ```
/// use countwheel::building::block_for;
/// use countwheel_time::Patience;
/// use std::task::Poll;
/// use std::time::Duration;
///
/// let patience = Patience::of(Duration::from_millis(1));
/// assert_eq!(block_for(patience, |_cx| Poll::<()>::Pending), None);
/// ```
pub fn block_for<R>(
    patience: Patience,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<R>,
) -> Option<R> {
    let parker = Arc::new(Parker::default());
    let waker = Waker::from(Arc::clone(&parker));
    let mut cx = Context::from_waker(&waker);
    loop {
        let left = patience.left();
        match poll(&mut cx) {
            Poll::Ready(answer) => return Some(answer),
            Poll::Pending if left.is_zero() => return None,
            Poll::Pending => parker.park(Some(left)),
        }
    }
}

/// Why something foreign has not returned. See [`caught`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Panicked {
    /// It needs a tokio runtime, or a part of one, and there is none where it ran: it would panic
    /// again at every other try.
    NoRuntime,
    /// For a reason of its own.
    Otherwise,
}

impl Panicked {
    /// Which of them it is, by what was thrown: tokio has texts of its own for what it lacks.
    ///
    /// ```
    /// use countwheel::building::Panicked;
    ///
    /// let thrown = std::panic::catch_unwind(tokio::runtime::Handle::current).unwrap_err();
    /// assert_eq!(Panicked::of(&*thrown), Panicked::NoRuntime);
    /// assert_eq!(Panicked::of(&"no route"), Panicked::Otherwise);
    /// ```
    #[must_use]
    pub fn of(thrown: &(dyn Any + Send)) -> Self {
        const LACKS: [&str; 2] = [
            "there is no reactor running, must be called from the context of a Tokio 1.x runtime",
            "A Tokio 1.x context was found, but",
        ];
        let text = thrown.downcast_ref::<&str>().copied();
        let text = text.or_else(|| thrown.downcast_ref::<String>().map(String::as_str));
        let lacks = |text: &str| LACKS.iter().any(|lack| text.starts_with(lack));
        if text.is_some_and(lacks) {
            Self::NoRuntime
        } else {
            Self::Otherwise
        }
    }
}

/// Does something foreign, and gives what it returned, or says why it panicked.
///
/// ```
/// use countwheel::building::{Panicked, caught};
///
/// assert_eq!(caught(|| 42), Ok(42));
/// let needs_a_runtime = || drop(tokio::runtime::Handle::current());
/// assert_eq!(caught(needs_a_runtime), Err(Panicked::NoRuntime));
/// ```
///
/// # Errors
/// [`Panicked`] if it panicked. What was thrown is gone.
pub fn caught<R>(foreign: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(foreign)).map_err(|payload| {
        let why = Panicked::of(&*payload);
        // What was thrown is foreign as well, and may throw again when it is dropped.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(again);
        }
        debug_assert!(!thread::panicking(), "the panic was caught");
        why
    })
}

/// Does something foreign, and says whether it returned rather than panicked.
///
/// ```
/// use countwheel::building::returns;
///
/// assert!(returns(|| drop("quietly")));
/// assert!(!returns(|| std::panic::resume_unwind(Box::new("loudly"))));
/// ```
pub fn returns(foreign: impl FnOnce()) -> bool {
    caught(foreign).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_whose_payload_panics_is_one_panic() {
        struct Grenade;
        impl Drop for Grenade {
            fn drop(&mut self) {
                std::panic::panic_any(Self);
            }
        }
        assert!(!returns(|| std::panic::panic_any(Grenade)));
        assert!(returns(|| ()));
    }
}
