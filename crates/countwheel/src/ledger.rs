//! The books of one timer: what is pending, and what became of everything else.
//!
//! One lock stands around them. Who takes a job out of the driver while holding it decides
//! the job's fate, so no job has two. Foreign code (tasks and their destructors, clocks,
//! subscribers) runs and waiters are woken only after the lock is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;
use std::{io, mem};

use countwheel_core::TimerKey;

use crate::timer::{ScheduleError, Task, Work};
use crate::{Clock, Driver, Fired, Instant, Layout, Resolution, Stats, host};

/// What the handles, the host and its thread share.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) clock: Box<dyn Clock>,
    books: Mutex<Books>,
    /// The host waits here, until the instant in `Books::asleep_until` or for ever.
    host_wanted: Condvar,
    /// Those who stop the timer wait here for the running task to end.
    task_ended: Condvar,
}

#[derive(Debug)]
struct Books {
    driver: Driver<Job>,
    stats: Stats,
    host: Host,
    /// When the sleeping host will look again. `None` while it is awake or on its way.
    asleep_until: Option<Instant>,
    /// The thread that is running a task.
    running_on: Option<ThreadId>,
}

/// Who takes due jobs out.
#[derive(Debug)]
pub(crate) enum Host {
    /// A thread of this name, from the first schedule on.
    Lazy {
        thread_name: String,
    },
    Thread(JoinHandle<()>),
    /// Whoever holds the [`ManualHost`](crate::ManualHost).
    Manual,
    /// Nobody: the timer has stopped.
    Gone,
}

/// What the driver holds for a task.
struct Job {
    work: Work,
    fate: Arc<Fate>,
}

/// What has become of a job, to be read without the lock.
#[derive(Debug, Default)]
pub(crate) struct Fate(AtomicU8);

impl Fate {
    const EXPIRED: u8 = 1;
    const CANCELLED: u8 = 2;

    /// Called once per job, by whoever took it out of the driver.
    fn settle(&self, fate: u8) {
        self.0.store(fate, Ordering::Release);
    }

    pub(crate) fn is_expired(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::EXPIRED
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::CANCELLED
    }
}

/// A task that must run now: it has left the driver and is counted as run.
pub(crate) struct Due {
    work: Work,
    deadline: Instant,
    lateness: Duration,
}

impl Ledger {
    pub(crate) fn new(
        clock: Box<dyn Clock>,
        resolution: Resolution,
        layout: Layout,
        host: Host,
    ) -> Self {
        let driver = Driver::new(clock.now(), resolution, layout);
        Self {
            clock,
            books: Mutex::new(Books {
                driver,
                stats: Stats::default(),
                host,
                asleep_until: None,
                running_on: None,
            }),
            host_wanted: Condvar::new(),
            task_ended: Condvar::new(),
        }
    }

    pub(crate) fn schedule(
        self: &Arc<Self>,
        deadline: Instant,
        work: Work,
    ) -> Result<(TimerKey, Arc<Fate>), ScheduleError> {
        let now = self.clock.now();
        let fate = Arc::new(Fate::default());
        let mut books = self.lock();
        match &books.host {
            Host::Gone => {
                drop(books);
                return Err(ScheduleError::Closed(Task::new(deadline, work)));
            }
            Host::Lazy { thread_name } => {
                // Under the lock, so that there is one thread; it happens once. The thread
                // waits for the lock before it does anything.
                match host::thread::start(thread_name, Arc::clone(self)) {
                    Ok(thread) => books.host = Host::Thread(thread),
                    Err(source) => {
                        drop(books);
                        return Err(no_thread(deadline, work, source));
                    }
                }
            }
            Host::Thread(_) | Host::Manual => {}
        }
        let job = Job {
            work,
            fate: Arc::clone(&fate),
        };
        let key = books.driver.schedule(now, deadline, job);
        books.stats.added += 1;
        let too_late = |until| books.driver.due(deadline) < until;
        let wake = books.asleep_until.is_some_and(too_late);
        if wake {
            books.asleep_until = None;
        }
        drop(books);
        if wake {
            self.host_wanted.notify_one();
        }
        Ok((key, fate))
    }

    /// Takes a job back before it runs; true for the one caller who does.
    pub(crate) fn cancel(&self, key: TimerKey) -> bool {
        let mut books = self.lock();
        let job = books.driver.cancel(key);
        if let Some(job) = &job {
            job.fate.settle(Fate::CANCELLED);
            books.stats.cancelled += 1;
        }
        drop(books);
        // A sleeping host is left alone: at worst it looks once for a deadline that is gone.
        job.is_some()
    }

    pub(crate) fn stats(&self) -> Stats {
        let books = self.lock();
        Stats {
            pending: books.driver.len() as u64,
            ..books.stats
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.lock().host, Host::Gone)
    }

    /// The next task that is due; the caller performs it.
    pub(crate) fn take_due(&self) -> Option<Due> {
        let now = self.clock.now();
        self.lock().take_due(now)
    }

    /// The next task that is due, however long it takes to come; `None` once stopped.
    pub(crate) fn wait_for_due(&self) -> Option<Due> {
        loop {
            let now = self.clock.now();
            let mut books = self.lock();
            if matches!(books.host, Host::Gone) {
                return None;
            }
            if let Some(due) = books.take_due(now) {
                return Some(due);
            }
            // A wait for the lock since `now` makes the sleep longer by as much, never shorter.
            let wake = books.next_wake();
            books.asleep_until = Some(wake.unwrap_or(Instant::MAX));
            let mut books = match wake.map(|wake| wake.saturating_since(now)) {
                Some(rest) => into_inner(self.host_wanted.wait_timeout(books, rest)).0,
                None => into_inner(self.host_wanted.wait(books)),
            };
            books.asleep_until = None;
            books.stats.wake_ups += 1;
        }
    }

    /// Runs a task that was taken out. A panic ends the task, not the thread.
    pub(crate) fn perform(&self, due: Due) {
        let Due {
            work,
            deadline,
            lateness,
        } = due;
        tracing::trace!(
            deadline_ns = deadline.as_nanos(),
            lateness_ns = nanos(lateness),
            "task fires"
        );
        let panicked = !returns(work);
        if panicked {
            tracing::error!(deadline_ns = deadline.as_nanos(), "task panicked");
        }
        let mut books = self.lock();
        books.running_on = None;
        books.stats.panicked += u64::from(panicked);
        let awaited = matches!(books.host, Host::Gone);
        drop(books);
        if awaited {
            self.task_ended.notify_all();
        }
    }

    /// See [`Driver::next_wake`].
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.lock().driver.next_wake()
    }

    /// Refuses tasks from now on and takes out those pending. Does not wait.
    pub(crate) fn close(&self) -> (Vec<Task>, Host) {
        let mut books = self.lock();
        let host = mem::replace(&mut books.host, Host::Gone);
        let unfired = books.driver.drain();
        books.stats.returned += unfired.len() as u64;
        drop(books);
        self.host_wanted.notify_one();
        let tasks = unfired.into_iter();
        let tasks = tasks.map(|unfired| Task::new(unfired.deadline, unfired.value.work));
        (tasks.collect(), host)
    }

    /// Closes, then waits for the running task and the host's thread to end, except for
    /// the thread that it is called on.
    pub(crate) fn stop(&self) -> Vec<Task> {
        let (unfired, host) = self.close();
        let here = thread::current().id();
        let mut books = self.lock();
        while books.running_on.is_some_and(|thread| thread != here) {
            books = into_inner(self.task_ended.wait(books));
        }
        drop(books);
        match host {
            Host::Thread(thread) if thread.thread().id() != here => {
                let ended = thread.join();
                debug_assert!(ended.is_ok(), "the host's thread survives its tasks");
            }
            _ => {}
        }
        unfired
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        // Nothing foreign runs under the lock, so what a panic left behind is whole.
        into_inner(self.books.lock())
    }
}

impl Books {
    fn take_due(&mut self, now: Instant) -> Option<Due> {
        let Fired {
            deadline,
            lateness,
            value,
            ..
        } = self.driver.expire(now)?;
        debug_assert!(self.running_on.is_none(), "tasks run one at a time");
        value.fate.settle(Fate::EXPIRED);
        self.running_on = Some(thread::current().id());
        self.stats.ran += 1;
        self.stats.lateness_max = self.stats.lateness_max.max(lateness);
        Some(Due {
            work: value.work,
            deadline,
            lateness,
        })
    }

    /// When a sleeping host has to look again.
    ///
    /// The exact answer means one wake-up per deadline, but it may look at everything
    /// pending. The lower bound is cheap, but a far deadline then takes up to ten wake-ups,
    /// one for each level (with a hashed layout, one round of them). So: exact as long as
    /// the search is shorter than the wake-ups it saves, and a bound on both beyond.
    fn next_wake(&self) -> Option<Instant> {
        const EXACT_UP_TO_PENDING: usize = 1_024; // a few microseconds
        if self.driver.len() <= EXACT_UP_TO_PENDING {
            self.driver.next_due()
        } else {
            self.driver.next_wake()
        }
    }
}

fn no_thread(deadline: Instant, work: Work, source: io::Error) -> ScheduleError {
    ScheduleError::NoThread {
        task: Task::new(deadline, work),
        source,
    }
}

/// Runs `work`, and says whether it returned rather than panicked.
fn returns(work: Work) -> bool {
    let Err(payload) = catch_unwind(AssertUnwindSafe(work)) else {
        return true;
    };
    // What was thrown is foreign as well, and may throw again when it is dropped.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(again);
    }
    false
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn into_inner<G>(guard: Result<G, PoisonError<G>>) -> G {
    guard.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::mpsc;

    use super::*;
    use crate::{ManualClock, Timer};

    const HOUR: Duration = Duration::from_secs(3600);

    /// A timer with a thread, on a clock that stands still: nothing is due but the past.
    fn timer() -> Timer {
        Timer::builder().clock(ManualClock::new()).build()
    }

    fn wait_until_asleep(timer: &Timer) {
        while timer.ledger().lock().asleep_until.is_none() {
            thread::yield_now();
        }
    }

    #[test]
    fn the_thread_starts_with_the_first_task() {
        let timer = timer();
        assert!(matches!(timer.ledger().lock().host, Host::Lazy { .. }));
        timer.schedule(HOUR, || ()).unwrap();
        assert!(matches!(timer.ledger().lock().host, Host::Thread(_)));
    }

    #[test]
    fn a_later_task_and_a_cancel_leave_the_thread_asleep_and_an_earlier_one_wakes_it() {
        let timer = timer();
        let first_deadline = Instant::ZERO + HOUR;
        let first = timer.schedule_at(first_deadline, || ()).unwrap();
        wait_until_asleep(&timer);
        let until = timer.ledger().lock().asleep_until;
        assert_eq!(until, Some(first_deadline), "exactly");
        for _ in 0..1_000 {
            timer.schedule(HOUR, || ()).unwrap();
            timer.schedule(2 * HOUR, || ()).unwrap().cancel();
            timer.schedule(Duration::MAX, || ()).unwrap();
        }
        first.cancel();
        assert!(timer.ledger().lock().asleep_until.is_some());
        assert_eq!(timer.stats().wake_ups, 0);

        let (sender, ran) = mpsc::channel();
        timer
            .schedule(Duration::ZERO, move || sender.send(()).unwrap())
            .unwrap();
        ran.recv().unwrap();
        wait_until_asleep(&timer);
        assert_eq!(timer.stats().wake_ups, 1);
        assert_eq!(timer.stats().pending, 2_000);
    }

    #[test]
    fn a_far_deadline_takes_one_wake_up() {
        let ring = Layout::Hashed {
            ticks_per_wheel: NonZeroUsize::new(64).unwrap(),
        };
        for layout in [Layout::Hierarchical, ring] {
            // 20,000 ticks: three levels of the hierarchy, 313 rounds of the ring.
            let microsecond = Resolution::new(Duration::from_micros(1)).unwrap();
            let timer = Timer::builder()
                .resolution(microsecond)
                .layout(layout)
                .build();
            let (sender, ran) = mpsc::channel();
            timer
                .schedule(Duration::from_millis(20), move || sender.send(()).unwrap())
                .unwrap();
            ran.recv().unwrap();
            assert!(timer.stats().wake_ups <= 1, "{:?}", timer.stats());
        }
    }

    #[test]
    fn the_thread_ends_and_its_tasks_are_dropped_with_the_last_clone() {
        let timer = timer();
        let clone = timer.clone();
        let (sender, dropped) = mpsc::channel::<()>();
        let timeout = timer.schedule(HOUR, move || drop(sender)).unwrap();
        wait_until_asleep(&timer);
        drop(timer);
        assert_eq!(clone.pending(), 1);

        let ledger = Arc::downgrade(clone.ledger());
        drop(clone);
        assert!(dropped.recv().is_err());
        assert!(!timeout.cancel(), "it was dropped, not cancelled");
        assert!(!timeout.is_expired() && !timeout.is_cancelled());
        drop(timeout);
        while ledger.strong_count() > 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn a_panic_whose_payload_panics_is_one_panic() {
        struct Grenade;
        impl Drop for Grenade {
            fn drop(&mut self) {
                std::panic::panic_any(Self);
            }
        }
        assert!(!returns(Box::new(|| std::panic::panic_any(Grenade))));
        assert!(returns(Box::new(|| ())));
    }
}
