//! The seam to the action of a due timer.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use countwheel_time::Timestamp;

use crate::store::Fence;
use crate::timers::Hub;
use crate::{Answer, Revision, TimerError, TimerId, TimerName, Timers};

/// Carries out attempts. The fourth of the four seams.
///
/// An attempt is handed over after the change that claims it is durable. It may be handed
/// over again, with the next number, only if the process ended before its outcome was
/// recorded.
///
/// ```
/// use countwheel_durable::{Attempt, Completion, Handler, Outcome, Run, Verdict};
///
/// struct Print;
///
/// impl Handler for Print {
///     fn start(&self, attempt: Attempt, done: Completion) {
///         std::thread::spawn(move || {
///             match attempt.run {
///                 Some(Run { number, .. }) => println!("{}, run {number}", attempt.name),
///                 None => println!("{}", attempt.name),
///             }
///             done.complete(Outcome::done());
///         });
///     }
/// }
/// ```
pub trait Handler: Send + Sync + 'static {
    /// Begins an attempt; `done` takes the outcome, from any thread, whenever it is known. How
    /// many run at a time is bounded by
    /// [`Config::max_in_flight`](crate::Config::max_in_flight). Unless it
    /// [`blocks`](Self::blocks), it is called on the scheduler's thread and has to return at once:
    /// everything else waits for it.
    fn start(&self, attempt: Attempt, done: Completion);

    /// Whether [`start`](Self::start) may take its time. Then it is called on one of
    /// [`Config::handler_threads`](crate::Config::handler_threads) threads. Asked once, when the
    /// timers are opened.
    fn blocks(&self) -> bool {
        false
    }
}

/// A function that is called on the scheduler's own thread: only for what takes no time. It may
/// [`submit`](crate::Timers::submit) requests, and not wait for their answers.
///
/// ```
/// use std::sync::{Arc, mpsc};
/// use std::time::Duration;
/// use countwheel_time::SystemClock;
/// use countwheel_durable::store::MemoryStore;
/// use countwheel_durable::{Config, Timers, inline};
///
/// let (fired, names) = mpsc::channel();
/// let handler = inline(move |attempt| fired.send(attempt.name.to_string()));
/// let clock = Arc::new(SystemClock::new());
/// let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
/// timers.set("orders/1", Duration::ZERO, "")?;
/// assert_eq!(names.recv()?, "orders/1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Inline<F>(pub F);

impl<F, R> Handler for Inline<F>
where
    F: Fn(&Attempt) -> R + Send + Sync + 'static,
    R: Into<Outcome>,
{
    fn start(&self, attempt: Attempt, done: Completion) {
        done.complete((self.0)(&attempt).into());
    }
}

/// An [`Inline`] handler of a closure, whose argument needs no type.
pub fn inline<F, R>(handler: F) -> Inline<F>
where
    F: Fn(&Attempt) -> R + Send + Sync + 'static,
    R: Into<Outcome>,
{
    Inline(handler)
}

/// A handler that is called on one of [`Config::handler_threads`](crate::Config::handler_threads)
/// threads, as any function is. The argument of a closure needs no type here.
///
/// ```
/// use countwheel_durable::{Handler, pooled};
///
/// let handler = pooled(|attempt| println!("close {}", attempt.name));
/// assert!(handler.blocks());
/// ```
pub fn pooled<F, R>(handler: F) -> F
where
    F: Fn(&Attempt) -> R + Send + Sync + 'static,
    R: Into<Outcome>,
{
    handler
}

/// One try at delivering a timer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Which timer: the same in every attempt.
    pub id: TimerId,
    /// Its name.
    pub name: TimerName,
    /// Its revision.
    pub revision: Revision,
    /// Which attempt: 1 for the first, one more each time, no gap and no repeat. An attempt that was
    /// [not made](Verdict::Held) has no number: the next one has it.
    pub number: u32,
    /// When it was due.
    pub due: Timestamp,
    /// The deadline that was asked for. Before `due` in the first attempt of a timer that was set for
    /// a time that had passed: it was due at once, and its lateness counts from then.
    pub deadline: Timestamp,
    /// When it was handed over. Never before `due`.
    pub started: Timestamp,
    /// How much of the time between the two a limit took: all places of attempts that run were taken,
    /// or those of its queue, or what was overdue at the opening had not come to it at its rate.
    pub held: Duration,
    /// Which run, of a timer that comes again.
    pub run: Option<Run>,
    /// Under which ownership. A receiver that remembers the highest one it saw can refuse
    /// an owner that was replaced.
    pub fence: Fence,
    /// Until when, by the boot clock, the attempt is leased; `None` if it is not ([`Route::lease`](crate::Route::lease)).
    /// A leased attempt ends by a [`Request::Settle`](crate::Request::Settle) with its [token](Self::lease_token), which
    /// anybody may send, and whatever process owns the timer then. Without one it is lost when the lease ends, and the
    /// timer is due again.
    pub lease: Option<Timestamp>,
    /// What the timer was set with.
    pub payload: Vec<u8>,
    /// The timers that handed it over.
    pub(crate) origin: Origin,
}

/// The timers that handed an attempt over. Two attempts are equal whoever handed them over.
#[derive(Clone, Default)]
pub(crate) struct Origin(pub(crate) Weak<Hub>);

impl PartialEq for Origin {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Origin {}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Origin")
    }
}

/// Which run of a recurring timer an attempt belongs to. Its retries belong to the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    /// 1 for the first. A run that is not made has no number.
    pub number: u32,
    /// The point of the schedule: of a run that was made by request, when that was.
    pub nominal: Timestamp,
}

impl Attempt {
    /// Names this attempt where it is leased.
    #[must_use]
    pub fn lease_token(&self) -> crate::LeaseToken {
        crate::LeaseToken {
            revision: self.revision,
            attempt: self.number,
        }
    }

    /// How much later than due it was handed over, without the time for which a limit
    /// [held](Self::held) it.
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.started.saturating_since(self.due + self.held)
    }

    /// The timers that handed the attempt over: a handler sets, moves and removes timers with them, the
    /// timer of the attempt too. A set of that timer makes a new one, whose name is the same, and the
    /// outcome of this attempt does not count any more.
    ///
    /// An [`Inline`] handler may [`submit`](Timers::submit) and not wait for an answer. The timers
    /// that this returns do not keep the scheduler running. They keep the store open as long as they are
    /// held: a program that opens a directory again drops them first.
    ///
    /// ```
    /// use std::time::Duration;
    /// use countwheel_durable::{Attempt, TimerError};
    ///
    /// /// Reminds once more before the order is closed.
    /// fn remind(attempt: &Attempt) -> Result<(), TimerError> {
    ///     let close = ("unpaid", attempt.name.key.as_str());
    ///     attempt.timers()?.set(close, Duration::from_secs(600), "close it")?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`TimerError::Closed`] once the timers are gone, and for an attempt of an
    /// [`Engine`](crate::Engine) that is driven without [`Timers`].
    pub fn timers(&self) -> Result<Timers, TimerError> {
        let hub = self.origin.0.upgrade().ok_or(TimerError::Closed)?;
        Timers::of(hub)
    }

    /// Whether the attempt may start. That was looked at before it was handed over. A handler that has
    /// waited since, for a connection or a thread, looks again right before it does what cannot be undone:
    /// the lease of this process on the shard may be over, and the attempt be interrupted and made
    /// elsewhere. A lease that is over can go on, if nobody took the shard. Asks nobody, and costs some
    /// locks and a look at the clock. True for an attempt of an [`Engine`](crate::Engine) that is driven
    /// without [`Timers`], false once the timers are gone.
    ///
    /// ```
    /// use countwheel_durable::{Attempt, Completion, Handler, Outcome};
    ///
    /// struct Push;
    ///
    /// impl Handler for Push {
    ///     fn start(&self, attempt: Attempt, done: Completion) {
    ///         std::thread::spawn(move || {
    ///             // Here the connection is made, which takes its time.
    ///             while !attempt.may_start() {
    ///                 std::thread::sleep(std::time::Duration::from_millis(50));
    ///             }
    ///             // Here the request leaves.
    ///             done.complete(Outcome::done());
    ///         });
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn may_start(&self) -> bool {
        let Origin(origin) = &self.origin;
        match origin.upgrade() {
            Some(hub) => hub.may_start(&self.name, self.fence),
            None => origin.ptr_eq(&Weak::new()),
        }
    }
}

/// How an attempt ended, or why it was not made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// What it means for the timer.
    pub verdict: Verdict,
    /// What to remember of it, such as `503`. Cut to 200 bytes.
    pub detail: String,
    /// When the receiver had the attempt, if that was later than
    /// [`Attempt::started`]: after a connection was made, say. On the same time line as that. `None`
    /// if it was at once, or never. See [`started_at`](Self::started_at) for a time that cannot be.
    pub started: Option<Timestamp>,
    /// What to keep of the receiver's answer.
    pub answer: Option<Answer>,
    /// What the receiver asks of the runs to come. Counts with [`Verdict::Done`] alone.
    pub next: Option<NextRun>,
    /// The delay of the next attempt in place of the policy's, which counts the failure all the same: at most 365 days.
    /// Counts with [`Verdict::Failed`] alone.
    pub retry_in: Option<Duration>,
}

impl Outcome {
    /// An outcome with what to remember of it.
    ///
    /// ```
    /// use countwheel_durable::{Outcome, Verdict};
    ///
    /// let outcome = Outcome::new(Verdict::Failed { retry_after: None }, "503");
    /// assert_eq!(outcome.detail, "503");
    /// ```
    pub fn new(verdict: Verdict, detail: impl Into<String>) -> Self {
        Self {
            verdict,
            detail: detail.into(),
            started: None,
            answer: None,
            next: None,
            retry_in: None,
        }
    }

    /// The attempt succeeded: the timer is done.
    ///
    /// ```
    /// use countwheel_durable::{Outcome, Verdict};
    ///
    /// assert_eq!(Outcome::done(), Outcome::done());
    /// assert_eq!(Outcome::stopped().verdict, Verdict::Stopped);
    /// let failed = Outcome::failed("503");
    /// assert_eq!(failed.verdict, Verdict::Failed { retry_after: None });
    /// assert_eq!(failed.detail, "503");
    /// ```
    #[must_use]
    pub fn done() -> Self {
        Self::new(Verdict::Done, "")
    }

    /// The attempt failed, for the reason in `detail`: the retry schedule decides what follows.
    pub fn failed(detail: impl Into<String>) -> Self {
        Self::new(Verdict::Failed { retry_after: None }, detail)
    }

    /// The attempt is not wanted, now or ever: the timer is dead.
    #[must_use]
    pub fn stopped() -> Self {
        Self::new(Verdict::Stopped, "")
    }

    /// The attempt was not made, and uses up nothing: see [`Verdict::Held`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use countwheel_durable::{Outcome, Verdict};
    ///
    /// let look_after = Some(Duration::from_secs(5));
    /// assert_eq!(Outcome::held(look_after).verdict, Verdict::Held { look_after });
    /// ```
    #[must_use]
    pub fn held(look_after: Option<Duration>) -> Self {
        Self::new(Verdict::Held { look_after }, "")
    }

    /// The same with a request to be left alone this long before the next attempt: see
    /// [`Verdict::Failed`]. Changes nothing of an outcome that is no failure.
    ///
    /// ```
    /// use std::time::Duration;
    /// use countwheel_durable::{Outcome, Verdict};
    ///
    /// let minute = Duration::from_secs(60);
    /// let busy = Outcome::failed("503").retry_after(minute);
    /// assert_eq!(busy.verdict, Verdict::Failed { retry_after: Some(minute) });
    /// assert_eq!(Outcome::done().retry_after(minute), Outcome::done());
    /// ```
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        if let Verdict::Failed { retry_after } = &mut self.verdict {
            *retry_after = Some(wait);
        }
        self
    }

    /// The same where the next attempt is due after this delay, shorter or longer than the policy's: see
    /// [`Outcome::retry_in`](Self#structfield.retry_in).
    ///
    /// ```
    /// use std::time::Duration;
    /// use countwheel_durable::Outcome;
    ///
    /// let soon = Duration::from_secs(2);
    /// assert_eq!(Outcome::failed("no stock").retry_in(soon).retry_in, Some(soon));
    /// ```
    #[must_use]
    pub fn retry_in(mut self, delay: Duration) -> Self {
        self.retry_in = Some(delay);
        self
    }

    /// The same of an attempt that its receiver had at this time. A time before the attempt was handed
    /// over counts as then, and one that has not come yet as the time at which the outcome is recorded.
    ///
    /// ```
    /// use countwheel_time::Timestamp;
    /// use countwheel_durable::{Outcome, Verdict};
    ///
    /// let sent = Timestamp::from_micros(1_000_250);
    /// let outcome = Outcome::new(Verdict::Done, "200").started_at(sent);
    /// assert_eq!(outcome.started, Some(sent));
    /// ```
    #[must_use]
    pub fn started_at(mut self, started: Timestamp) -> Self {
        self.started = Some(started);
        self
    }

    /// The same with what to keep of the receiver's answer, in a form of the handler's own. The record
    /// has the first [`Answer::MAX_BYTES`] of it, as long as the attempt is one of the last
    /// [`Answer::KEPT`]. No bytes are no answer.
    ///
    /// ```
    /// use countwheel_durable::{Answer, Outcome};
    ///
    /// let outcome = Outcome::failed("503").with_answer("out of stock");
    /// assert_eq!(outcome.answer, Answer::new("out of stock"));
    /// ```
    #[must_use]
    pub fn with_answer(mut self, answer: impl Into<Vec<u8>>) -> Self {
        self.answer = Answer::new(answer);
        self
    }

    /// The same with a wish of the receiver: the next run is due this long after the end of this one, and the
    /// runs after that as the schedule has them. For a timer with [`Schedule::FixedRate`](crate::Schedule::FixedRate)
    /// or [`Schedule::FixedDelay`](crate::Schedule::FixedDelay); any other does not hear of it, and neither does an
    /// outcome that is not [`Verdict::Done`]. The delay is taken into the bounds of an interval, and the number of
    /// runs and their end hold as before. Points of the grid that are passed count neither as missed nor as
    /// overlapped, and the run has no jitter.
    ///
    /// ```
    /// use std::time::Duration;
    /// use countwheel_durable::{Attempt, Outcome};
    ///
    /// /// Looks again sooner where there was something.
    /// fn poll(attempt: &Attempt) -> Outcome {
    ///     let found = !attempt.payload.is_empty();
    ///     Outcome::done().next_run(Duration::from_secs(if found { 5 } else { 300 }))
    /// }
    /// ```
    #[must_use]
    pub fn next_run(mut self, delay: Duration) -> Self {
        self.next = Some(NextRun::In(delay));
        self
    }

    /// The same with a wish of the receiver: no run follows, and the timer is done. An outcome that is not
    /// [`Verdict::Done`] does not hear of it.
    ///
    /// ```
    /// use countwheel_durable::{NextRun, Outcome};
    ///
    /// let last = Outcome::done().ends_series();
    /// assert_eq!(last.next, Some(NextRun::Never));
    /// ```
    #[must_use]
    pub fn ends_series(mut self) -> Self {
        self.next = Some(NextRun::Never);
        self
    }
}

/// What a receiver asks of the runs to come of a timer that comes at an interval.
///
/// ```
/// use std::time::Duration;
/// use countwheel_durable::{NextRun, Outcome};
///
/// let wait = Duration::from_secs(30);
/// assert_eq!(Outcome::done().next_run(wait).next, Some(NextRun::In(wait)));
/// assert_eq!(Outcome::done().ends_series().next, Some(NextRun::Never));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextRun {
    /// The next run is due this long after the end of this one.
    In(Duration),
    /// There is none: the timer is done.
    Never,
}

/// Nothing to tell: the attempt succeeded.
impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::done()
    }
}

/// An error fails the attempt, with its text as the detail: the retry schedule decides what follows.
impl<T: Into<Self>, E: fmt::Display> From<Result<T, E>> for Outcome {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(outcome) => outcome.into(),
            Err(error) => Self::failed(error.to_string()),
        }
    }
}

/// What an outcome means for the timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Delivered: the timer is done.
    Done,
    /// Not delivered: the retry schedule decides what follows.
    Failed {
        /// The receiver asked to be left alone this long. Makes the next delay longer if
        /// need be, never shorter, and is cut to 24 hours.
        retry_after: Option<Duration>,
    },
    /// Not wanted, now or ever: the timer is dead.
    Stopped,
    /// Not made, for a reason that is not the receiver's: a rule of the program does not let it, or something is
    /// missing that every attempt needs. The timer is pending again with the same deadline, and uses up nothing: its
    /// next attempt has the same number, and the time until that starts counts as [held](Attempt::held). After a
    /// restart the timer is due as any other.
    Held {
        /// When the handler is asked again, from the time on at which the outcome is recorded. No less than
        /// [`HELD_MIN`](Self::HELD_MIN). The timer does not wait for that time if
        /// [`Timers::flows_changed`](crate::Timers::flows_changed) or
        /// [`Timers::routes_changed`](crate::Timers::routes_changed) is called since the attempt was handed over.
        /// `None`: it waits for one of these calls.
        look_after: Option<Duration>,
    },
}

impl Verdict {
    /// How long a [held](Self::Held) timer waits at least, unless the limits of flows change.
    pub const HELD_MIN: Duration = Duration::from_millis(100);
}

/// Takes the outcome of one attempt. Dropped without one, the attempt has failed.
pub struct Completion {
    pub(crate) report: Option<Box<dyn FnOnce(Outcome) + Send>>,
}

impl Completion {
    /// Calls `report` with the outcome, once. For those who run a [`Handler`] themselves,
    /// as a test does.
    pub fn new(report: impl FnOnce(Outcome) + Send + 'static) -> Self {
        Self {
            report: Some(Box::new(report)),
        }
    }

    /// That of an attempt that is leased, whose outcome comes by a request.
    pub(crate) fn of_leased() -> Self {
        Self { report: None }
    }

    /// Reports how the attempt ended. Says nothing of a [leased](Attempt::lease) one.
    pub fn complete(mut self, outcome: Outcome) {
        if let Some(report) = self.report.take() {
            report(outcome);
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(report) = self.report.take() {
            report(Outcome::failed(if std::thread::panicking() {
                "the handler panicked"
            } else {
                "the handler gave no outcome"
            }));
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").finish_non_exhaustive()
    }
}

impl<F, R> Handler for F
where
    F: Fn(&Attempt) -> R + Send + Sync + 'static,
    R: Into<Outcome>,
{
    /// A plain function runs on one of a few threads, and may wait for what it likes, also for the
    /// answers of its own timers. [`Inline`] is for one that takes no time.
    fn start(&self, attempt: Attempt, done: Completion) {
        done.complete(self(&attempt).into());
    }

    fn blocks(&self) -> bool {
        true
    }
}

impl Handler for Arc<dyn Handler> {
    fn start(&self, attempt: Attempt, done: Completion) {
        (**self).start(attempt, done);
    }

    fn blocks(&self) -> bool {
        (**self).blocks()
    }
}
