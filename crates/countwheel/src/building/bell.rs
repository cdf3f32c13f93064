//! The wake-up of a pattern with a wheel of its own.

use std::fmt;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use super::Alarm;
use crate::{Driver, Instant, ScheduleError, Timer};

/// Something with deadlines of its own, behind a lock of its own, that a [`Bell`] wakes. See the
/// example of [`building`](super).
pub trait Rung: Send + Sync + 'static {
    /// The bell it was made with.
    fn bell(&self) -> &Bell;

    /// Takes out what is due, a bounded number of entries, and says by when to ring again:
    /// `now` if there is more to do.
    ///
    /// On the timer's host, so nothing foreign runs here but wakers: the rest goes to the
    /// executor, with [`run_soon`](super::run_soon). Also called when the timer has stopped
    /// ([`Bell::is_stopped`]): then nothing rings any more.
    fn ring(self: &Arc<Self>, now: Instant) -> Option<Instant>;
}

/// Wakes a pattern no later than its earliest deadline, with one entry in the timer however
/// many deadlines there are. See the example of [`building`](super).
///
/// Each call is O(1), and takes no lock if the bell is set early enough already.
pub struct Bell {
    timer: Timer,
    alarm: Alarm,
    waker: Waker,
}

impl Bell {
    /// A bell that is silent and keeps `rung` not alive: for use with [`Arc::new_cyclic`].
    #[must_use]
    pub fn new<R: Rung>(timer: Timer, rung: Weak<R>) -> Self {
        Self {
            timer,
            alarm: Alarm::new(),
            waker: Waker::from(Arc::new(Clapper(rung))),
        }
    }

    /// The timer whose host rings.
    #[must_use]
    pub fn timer(&self) -> &Timer {
        &self.timer
    }

    /// What the timer's clock shows.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.timer.now()
    }

    /// A wheel like those of the timer: the same ticks, laid out in the same way.
    #[must_use]
    pub fn driver<T>(&self) -> Driver<T> {
        super::driver(&self.timer)
    }

    /// Whether the timer has stopped: then nothing rings any more.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.timer.is_stopped()
    }

    /// Rings at `due` at the latest. To be called after the lock was given up under which
    /// `due` was filed.
    ///
    /// # Errors
    /// If the timer is closed or its thread cannot be started: then what was filed has to be
    /// taken out again.
    #[inline]
    pub fn ring_by(&self, due: Instant) -> Result<(), ScheduleError> {
        // The host's waker may poll it right here, and then this bell rings.
        self.alarm.ring_by(&self.timer, due, || self.waker.clone())
    }

    /// Rings no more, until [`ring_by`](Self::ring_by) is called again.
    pub fn silence(&self) {
        self.alarm.silence();
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").finish_non_exhaustive()
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.silence();
    }
}

struct Clapper<R>(Weak<R>);

impl<R: Rung> Wake for Clapper<R> {
    fn wake(self: Arc<Self>) {
        let Some(rung) = self.0.upgrade() else { return };
        let bell = rung.bell();
        bell.silence();
        if let Some(due) = rung.ring(bell.now())
            && bell.ring_by(due).is_err()
        {
            // The timer was closed meanwhile, by somebody who found no bell to ring: this is
            // that ring. What it says is of no consequence.
            let _ = rung.ring(bell.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::{ManualClock, ManualHost, Stop};

    const SECOND: Duration = Duration::from_secs(1);

    /// Deadlines, and when each was taken out.
    struct Watched {
        bell: Bell,
        books: Mutex<Books>,
    }

    struct Books {
        driver: Driver<u64>,
        rung: Vec<(Instant, u64)>,
        rings: usize,
        stopped: bool,
    }

    impl Watched {
        fn new(timer: &Timer) -> Arc<Self> {
            Arc::new_cyclic(|weak| {
                let bell = Bell::new(timer.clone(), Weak::clone(weak));
                let books = Books {
                    driver: bell.driver(),
                    rung: Vec::new(),
                    rings: 0,
                    stopped: false,
                };
                Self {
                    bell,
                    books: Mutex::new(books),
                }
            })
        }

        fn file(&self, delay: Duration, number: u64) -> Result<(), ScheduleError> {
            let now = self.bell.now();
            let mut books = self.books.lock().unwrap();
            books.driver.schedule(now, now + delay, number);
            let due = books.driver.due(now + delay);
            drop(books);
            self.bell.ring_by(due)
        }

        fn rung(&self) -> Vec<u64> {
            let books = self.books.lock().unwrap();
            books.rung.iter().map(|&(_, number)| number).collect()
        }
    }

    impl Rung for Watched {
        fn bell(&self) -> &Bell {
            &self.bell
        }

        fn ring(self: &Arc<Self>, now: Instant) -> Option<Instant> {
            let mut books = self.books.lock().unwrap();
            books.rings += 1;
            books.stopped = self.bell.is_stopped();
            for _ in 0..2 {
                match books.driver.expire(now) {
                    Some(fired) => books.rung.push((now, fired.value)),
                    None => return books.driver.next_wake(),
                }
            }
            Some(now)
        }
    }

    #[test]
    fn it_rings_for_each_deadline_with_one_entry_in_the_timer() {
        let mut host = ManualHost::new();
        let watched = Watched::new(host.timer());
        for number in [5, 3, 9, 4, 3, 1] {
            watched
                .file(u32::try_from(number).unwrap() * SECOND, number)
                .unwrap();
        }
        assert_eq!(host.timer().pending(), 1);
        host.advance(4 * SECOND);
        assert_eq!(watched.rung(), [1, 3, 3, 4]);
        host.advance(60 * SECOND);
        assert_eq!(watched.rung(), [1, 3, 3, 4, 5, 9]);
        assert_eq!(host.timer().pending(), 0, "nothing is left to ring for");
        let books = watched.books.lock().unwrap();
        let late = |&(at, number): &(Instant, u64)| {
            at.saturating_since(Instant::ZERO + Duration::from_secs(number))
        };
        assert!(books.rung.iter().all(|rung| late(rung).is_zero()));
    }

    #[test]
    fn it_rings_again_at_once_if_not_all_was_taken_out() {
        let mut host = ManualHost::new();
        let watched = Watched::new(host.timer());
        for number in 0..5 {
            watched.file(SECOND, number).unwrap();
        }
        host.advance(SECOND);
        assert_eq!(watched.rung(), [0, 1, 2, 3, 4]);
        assert!(watched.books.lock().unwrap().rings >= 3);
    }

    #[test]
    fn a_full_timer_does_not_refuse_it() {
        let mut host = Timer::builder().max_pending(1).manual(ManualClock::new());
        host.timer().schedule(3600 * SECOND, || ()).unwrap();
        let watched = Watched::new(host.timer());
        watched.file(SECOND, 1).unwrap();
        assert!(host.timer().schedule(SECOND, || ()).is_err());
        host.advance(SECOND);
        assert_eq!(watched.rung(), [1]);
        assert!(
            host.timer().schedule(SECOND, || ()).is_err(),
            "the first is still there"
        );
    }

    #[test]
    fn it_rings_once_more_when_the_timer_stops_and_then_refuses() {
        let host = ManualHost::new();
        let watched = Watched::new(host.timer());
        watched.file(SECOND, 1).unwrap();
        assert!(host.timer().close(Stop::HandBack).wait().unfired.is_empty());
        assert!(watched.books.lock().unwrap().stopped);
        assert!(matches!(
            watched.file(SECOND, 2),
            Err(ScheduleError::Closed(_))
        ));
    }

    #[test]
    fn it_keeps_nobody_alive() {
        let mut host = ManualHost::new();
        let watched = Watched::new(host.timer());
        watched.file(SECOND, 1).unwrap();
        let weak = Arc::downgrade(&watched);
        drop(watched);
        assert!(weak.upgrade().is_none());
        assert_eq!(host.timer().pending(), 0, "nor does it wake anybody");
        host.advance(SECOND);
    }
}
