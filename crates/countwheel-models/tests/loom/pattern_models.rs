//! Models of what the patterns are built on: alarms, futures on an executor, outcomes.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

use crate::Instant;
use crate::concurrent::{Alarm, Claim, Next, Notice, Outcome, Parker};
use crate::models::join;

// Alarms.

/// Deadlines behind a lock, and when the timer rings for them.
struct Watched {
    alarm: Alarm<()>,
    deadlines: Mutex<Vec<u64>>,
    rings_at: Mutex<Option<u64>>,
}

impl Watched {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            alarm: Alarm::new(),
            deadlines: Mutex::new(Vec::new()),
            rings_at: Mutex::new(None),
        })
    }

    fn file(&self, deadline: u64) {
        with(&self.deadlines, |deadlines| deadlines.push(deadline));
        self.ring_by(deadline);
    }

    fn ring_by(&self, due: u64) {
        let due_at = Instant::from_nanos(due);
        let set = self.alarm.ring_by(due_at, |handle| {
            with(&self.rings_at, |at| *at = Some(due));
            Ok::<_, ()>((handle.is_none().then_some(()), ()))
        });
        assert!(set.is_ok());
    }

    /// What rings does, at `now`.
    fn ring(&self, now: u64) {
        with(&self.rings_at, |at| *at = None);
        self.alarm.rang();
        let next = with(&self.deadlines, |deadlines| {
            deadlines.retain(|&deadline| deadline > now);
            deadlines.iter().min().copied()
        });
        if let Some(next) = next {
            self.ring_by(next);
        }
    }

    fn assert_nothing_is_missed(&self) {
        let first = with(&self.deadlines, |deadlines| deadlines.iter().min().copied());
        let rings_at = with(&self.rings_at, |at| *at);
        if let Some(first) = first {
            assert!(rings_at.is_some_and(|at| at <= first), "{rings_at:?}");
        }
    }
}

fn with<T, R>(mutex: &Mutex<T>, look: impl FnOnce(&mut T) -> R) -> R {
    let Ok(mut guard) = mutex.lock() else {
        panic!("a thread of the model panicked");
    };
    look(&mut guard)
}

pub(crate) fn a_deadline_filed_while_the_alarm_rings_is_rung_for() {
    let watched = Watched::new();
    watched.file(40);
    let filer = {
        let watched = Arc::clone(&watched);
        thread::spawn(move || watched.file(60))
    };
    watched.ring(40);
    join(filer);
    watched.assert_nothing_is_missed();
}

pub(crate) fn of_two_deadlines_the_alarm_rings_for_the_earlier() {
    let watched = Watched::new();
    let filer = {
        let watched = Arc::clone(&watched);
        thread::spawn(move || watched.file(60))
    };
    watched.file(40);
    join(filer);
    watched.assert_nothing_is_missed();
}

// Futures that are polled by tasks.

/// A future that is ready once something has happened.
struct Polled {
    notice: Notice,
    queued: AtomicU64,
    happened: AtomicBool,
    is_polled: AtomicBool,
    drops: AtomicU64,
}

impl Polled {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            notice: Notice::queued(),
            queued: AtomicU64::new(1),
            happened: AtomicBool::new(false),
            is_polled: AtomicBool::new(false),
            drops: AtomicU64::new(0),
        })
    }

    fn wake(&self) {
        if self.notice.wake() {
            self.queued.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn drop_future(&self) {
        assert!(!self.is_polled.load(Ordering::Relaxed), "dropped in use");
        self.drops.fetch_add(1, Ordering::Relaxed);
    }

    /// Works off the queue.
    fn run(&self) {
        while self.queued.load(Ordering::Relaxed) > 0 {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            if !self.notice.start() {
                continue;
            }
            self.is_polled.store(true, Ordering::Relaxed);
            let ready = self.happened.load(Ordering::Relaxed);
            self.is_polled.store(false, Ordering::Relaxed);
            if ready {
                self.notice.end();
                self.drop_future();
                continue;
            }
            match self.notice.rest() {
                Next::Rest => {}
                Next::Queue => {
                    self.queued.fetch_add(1, Ordering::Relaxed);
                }
                Next::Over => self.drop_future(),
            }
        }
    }
}

pub(crate) fn a_future_woken_while_it_is_polled_is_polled_again() {
    let polled = Polled::new();
    let other = {
        let polled = Arc::clone(&polled);
        thread::spawn(move || {
            polled.happened.store(true, Ordering::Relaxed);
            polled.wake();
        })
    };
    polled.run();
    join(other);
    polled.run();
    assert_eq!(polled.drops.load(Ordering::Relaxed), 1, "it is ready");
}

pub(crate) fn a_future_is_dropped_once_and_not_while_it_is_polled() {
    let polled = Polled::new();
    let other = {
        let polled = Arc::clone(&polled);
        thread::spawn(move || {
            if polled.notice.end() {
                polled.drop_future();
            }
        })
    };
    polled.run();
    join(other);
    polled.run();
    assert_eq!(polled.drops.load(Ordering::Relaxed), 1);
}

// Outcomes.

pub(crate) fn an_outcome_is_settled_by_one_of_two() {
    let outcome = Arc::new(Outcome::new());
    let other = {
        let outcome = Arc::clone(&outcome);
        thread::spawn(move || outcome.settle(1).is_ok())
    };
    let mine = outcome.settle(2).is_ok();
    let theirs = join(other);
    assert!(mine != theirs);
    let value = outcome.poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(value, Poll::Ready(if mine { 2 } else { 1 }));
}

pub(crate) fn who_waits_for_an_outcome_is_woken() {
    let outcome = Arc::new(Outcome::new());
    let other = {
        let outcome = Arc::clone(&outcome);
        thread::spawn(move || assert!(outcome.settle(1).is_ok()))
    };
    let parker = Arc::new(Parker::default());
    let waker = Waker::from(Arc::clone(&parker));
    while outcome.poll(&mut Context::from_waker(&waker)).is_pending() {
        parker.park(None);
    }
    assert!(outcome.is_settled());
    join(other);
}

// What several try to decide.

/// Something that is complete once all flags are up. Whoever raises one checks it.
struct Tried<const FLAGS: usize> {
    claim: Claim<()>,
    flags: [AtomicBool; FLAGS],
}

impl<const FLAGS: usize> Tried<FLAGS> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            claim: Claim::new(),
            flags: [(); FLAGS].map(|()| AtomicBool::new(false)),
        })
    }

    fn raise(&self, flag: usize) {
        self.flags[flag].store(true, Ordering::Relaxed);
        if !self.claim.start() {
            return;
        }
        loop {
            let is_complete = self.flags.iter().all(|flag| flag.load(Ordering::Relaxed));
            if is_complete {
                assert!(self.claim.decide());
                return;
            }
            if !self.claim.rest() {
                return;
            }
        }
    }

    fn raised_by_threads() {
        let tried = Self::new();
        let others: Vec<_> = (1..FLAGS)
            .map(|flag| {
                let tried = Arc::clone(&tried);
                thread::spawn(move || tried.raise(flag))
            })
            .collect();
        tried.raise(0);
        others.into_iter().for_each(join);
        assert!(tried.claim.is_decided(), "nobody saw all flags");
    }
}

pub(crate) fn a_check_during_a_try_is_not_missed() {
    Tried::<2>::raised_by_threads();
}

pub(crate) fn of_two_checks_during_a_try_none_is_missed() {
    Tried::<3>::raised_by_threads();
}

pub(crate) fn one_of_two_decides() {
    let claim = Arc::new(Claim::<()>::new());
    let other = {
        let claim = Arc::clone(&claim);
        thread::spawn(move || claim.decide())
    };
    let mine = claim.decide();
    assert!(mine != join(other));
}

pub(crate) fn a_handle_is_given_back_by_whoever_comes_last() {
    let claim = Arc::new(Claim::new());
    let other = {
        let claim = Arc::clone(&claim);
        thread::spawn(move || {
            assert!(claim.decide());
            claim.disarm().is_some()
        })
    };
    let refused = claim.arm(()).is_err();
    assert!(join(other) != refused, "one of the two has the handle");
}
