//! Notices timers that are behind or dead. No other part would: a task that does not fire does not
//! complain.

use std::io;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::Builder;
use std::time::Duration;

use crate::Timer;
use crate::engine::Engine;
use crate::task::returns;
use countwheel_time::locks::{self, lock};

/// Whether a timer does what it is for. See [`Timer::health`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Health {
    /// Nothing is overdue by more than the tolerance.
    Fine,
    /// The task that is overdue the longest, pending or waiting for an executor, is so by
    /// this much: the host is starved, the executor is stuck, or the tasks are too many.
    Behind(Duration),
    /// The timer has lost its host, which had tasks left to fire: its thread has given up, or
    /// the future that drives it was dropped. [`Timer::stop`] gives them back.
    Dead,
}

impl Timer {
    /// Whether the timer does what it is for: nothing is overdue by more than `tolerance`.
    /// For a readiness check, or a [`Watchdog`].
    ///
    /// ```
    /// use countwheel::{Health, ManualHost};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// host.timer().schedule(Duration::from_secs(1), || {})?;
    /// host.clock().advance(Duration::from_secs(4)); // and nobody drives it
    /// let health = host.timer().health(Duration::from_secs(2));
    /// assert_eq!(health, Health::Behind(Duration::from_secs(3)));
    /// host.run_due();
    /// assert_eq!(host.timer().health(Duration::from_secs(2)), Health::Fine);
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn health(&self, tolerance: Duration) -> Health {
        self.engine().health(tolerance)
    }
}

/// Looks after timers. It holds none of them: one that is dropped is forgotten.
///
/// A watchdog looks when told to, with [`check`](Self::check), or every so often on a thread
/// of its own, with [`start`](Self::start). (That thread wakes up every so often. The timers
/// do not.)
///
/// ```
/// use countwheel::{Health, ManualHost, Watchdog};
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let watchdog = Watchdog::new(Duration::from_secs(1));
/// watchdog.watch(host.timer());
/// host.timer().schedule(Duration::ZERO, || {})?;
/// assert!(watchdog.check().is_empty());
///
/// host.clock().advance(Duration::from_secs(60));
/// let complaint = &watchdog.check()[0];
/// assert_eq!(complaint.timer, "countwheel");
/// assert_eq!(complaint.health, Health::Behind(Duration::from_secs(60)));
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
#[derive(Debug)]
pub struct Watchdog {
    watched: Arc<WatchedTimer>,
}

/// What a [`Watchdog`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Complaint {
    /// The name of the timer. See
    /// [`TimerBuilder::thread_name`](crate::TimerBuilder::thread_name).
    pub timer: String,
    /// What is wrong with it.
    pub health: Health,
}

#[derive(Debug)]
struct WatchedTimer {
    tolerance: Duration,
    timers: Mutex<Vec<Weak<Engine>>>,
}

impl Watchdog {
    /// Nothing may be overdue by more than `tolerance`.
    #[must_use]
    pub fn new(tolerance: Duration) -> Self {
        Self {
            watched: Arc::new(WatchedTimer {
                tolerance,
                timers: Mutex::default(),
            }),
        }
    }

    /// Looks after this timer, too.
    pub fn watch(&self, timer: &Timer) {
        lock(&self.watched.timers).push(Arc::downgrade(timer.engine()));
    }

    /// Looks now: what is wrong, timer by timer, and logs it.
    #[must_use]
    pub fn check(&self) -> Vec<Complaint> {
        self.watched.check()
    }

    /// Looks every `period` on a thread of its own, and tells `report` what is wrong, each
    /// time. Ends when the guard is dropped.
    ///
    /// ```
    /// use countwheel::{Timer, Watchdog};
    /// use std::time::Duration;
    ///
    /// let watchdog = Watchdog::new(Duration::from_secs(1));
    /// watchdog.watch(Timer::global());
    /// let _guard = watchdog.start(Duration::from_secs(5), |complaint| {
    ///     eprintln!("{}: {:?}", complaint.timer, complaint.health);
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// What the system says if it cannot start a thread.
    pub fn start(
        &self,
        period: Duration,
        report: impl Fn(&Complaint) + Send + 'static,
    ) -> io::Result<WatchdogGuard> {
        let watched = Arc::clone(&self.watched);
        let end = Arc::new(End::default());
        let guard = WatchdogGuard {
            end: Arc::clone(&end),
        };
        let thread = Builder::new().name("countwheel-watchdog".to_owned());
        thread.spawn(move || {
            while !end.comes_within(period) {
                for complaint in watched.check() {
                    returns(|| report(&complaint));
                }
            }
        })?;
        Ok(guard)
    }
}

impl WatchedTimer {
    fn check(&self) -> Vec<Complaint> {
        let mut watched = lock(&self.timers);
        watched.retain(|timer| timer.strong_count() > 0);
        let timers: Vec<_> = watched.iter().filter_map(Weak::upgrade).collect();
        drop(watched); // clocks, subscribers and the end of a timer are foreign code
        let mut complaints = Vec::new();
        for engine in timers {
            // A timer whose clock panics cannot fire anything either.
            let mut health = Health::Dead;
            returns(|| health = engine.health(self.tolerance));
            if health != Health::Fine {
                let timer = engine.name.clone();
                tracing::error!(timer, ?health, "a timer does not do what it is for");
                complaints.push(Complaint { timer, health });
            }
        }
        complaints
    }
}

/// Ends the thread of a [`Watchdog`] when dropped.
#[derive(Debug)]
#[must_use = "the watchdog ends when its guard is dropped"]
pub struct WatchdogGuard {
    end: Arc<End>,
}

impl Drop for WatchdogGuard {
    fn drop(&mut self) {
        *lock(&self.end.has_come) = true;
        self.end.came.notify_one();
    }
}

#[derive(Debug, Default)]
struct End {
    has_come: Mutex<bool>,
    came: Condvar,
}

impl End {
    fn comes_within(&self, period: Duration) -> bool {
        let has_come = lock(&self.has_come);
        let waited = self
            .came
            .wait_timeout_while(has_come, period, |has_come| !*has_come);
        *locks::whole(waited).0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::ManualClock;

    #[test]
    fn a_timer_that_is_dropped_is_forgotten() {
        let watchdog = Watchdog::new(Duration::ZERO);
        let host = Timer::builder().manual(ManualClock::new());
        host.timer().schedule(Duration::ZERO, || ()).unwrap();
        watchdog.watch(host.timer());
        host.clock().advance(Duration::from_secs(1));
        assert_eq!(watchdog.check().len(), 1);
        drop(host);
        assert_eq!(watchdog.check(), []);
        assert!(lock(&watchdog.watched.timers).is_empty());
    }

    #[test]
    fn a_timer_without_its_host_is_dead_and_a_stopped_one_is_not() {
        let (timer, host) = Timer::builder().build_hosted(|_| std::future::pending());
        timer.schedule(Duration::MAX, || ()).unwrap();
        assert_eq!(timer.health(Duration::ZERO), Health::Fine);
        drop(host);
        assert_eq!(timer.health(Duration::ZERO), Health::Dead);
        assert_eq!(timer.stop().unfired.len(), 1);
        assert_eq!(timer.health(Duration::ZERO), Health::Fine);
    }

    #[test]
    fn a_clock_that_panics_is_a_complaint_and_hides_no_other() {
        #[derive(Debug, Default)]
        struct Broken(std::sync::atomic::AtomicBool);
        impl crate::Clock for Broken {
            fn now(&self) -> crate::Instant {
                assert!(!self.0.load(std::sync::atomic::Ordering::Relaxed), "broken");
                crate::Instant::ZERO
            }
            fn timestamp(&self) -> crate::Timestamp {
                crate::Timestamp::EPOCH
            }
        }
        let clock = Arc::new(Broken::default());
        let broken = Timer::builder().clock(Arc::clone(&clock)).build();
        let host = Timer::builder().manual(ManualClock::new());
        host.timer().schedule(Duration::ZERO, || ()).unwrap();
        host.clock().advance(Duration::from_secs(1));
        let watchdog = Watchdog::new(Duration::ZERO);
        watchdog.watch(&broken);
        watchdog.watch(host.timer());
        clock.0.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(watchdog.check().len(), 2);
    }

    #[test]
    fn what_waits_for_a_stuck_executor_is_noticed() {
        let clock = ManualClock::new();
        let pool = crate::Pool::new(1, 1).unwrap();
        let timer = Timer::builder().clock(clock.clone()).executor(pool).build();
        let (started, start) = mpsc::channel();
        let (release, wait) = mpsc::channel::<()>();
        let stuck = move || {
            started.send(()).unwrap();
            assert!(wait.recv().is_err());
        };
        timer.schedule(Duration::ZERO, stuck).unwrap();
        start.recv().unwrap();
        timer.schedule(Duration::ZERO, || ()).unwrap();
        while timer.stats().waiting == 0 {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_secs(3));
        let behind = Health::Behind(Duration::from_secs(3));
        assert_eq!(timer.health(Duration::from_secs(2)), behind);
        drop(release);
        timer.stop();
    }

    #[test]
    fn the_thread_reports_until_its_guard_is_dropped() {
        let host = Timer::builder().manual(ManualClock::new());
        host.timer().schedule(Duration::ZERO, || ()).unwrap();
        host.clock().advance(Duration::from_secs(1));
        let watchdog = Watchdog::new(Duration::ZERO);
        watchdog.watch(host.timer());
        let (sender, complaints) = mpsc::channel();
        let report = move |complaint: &Complaint| sender.send(complaint.clone()).unwrap();
        let guard = watchdog.start(Duration::from_millis(1), report).unwrap();
        let behind = Health::Behind(Duration::from_secs(1));
        assert_eq!(complaints.recv().unwrap().health, behind);
        drop(guard);
        assert!(
            complaints
                .iter()
                .all(|complaint| complaint.health == behind)
        );
    }
}
