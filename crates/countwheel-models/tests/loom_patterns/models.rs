//! Models of what the patterns are built on: futures on an executor, outcomes, claims.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::concurrent::{Claim, Next, Notice, Outcome};

fn join<R>(thread: thread::JoinHandle<R>) -> R {
    let Ok(result) = thread.join() else {
        panic!("a thread of the model panicked");
    };
    result
}

/// A thread that sleeps until it is woken.
#[derive(Default)]
struct Wakeable {
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Wakeable {
    fn sleep(&self) {
        let mut woken = self.woken.lock().expect("a panic ends the model");
        if !*woken {
            woken = self.wake.wait(woken).expect("a panic ends the model");
        }
        *woken = false;
    }
}

impl Wake for Wakeable {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().expect("a panic ends the model") = true;
        self.wake.notify_one();
    }
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
    let thread = Arc::new(Wakeable::default());
    let waker = Waker::from(Arc::clone(&thread));
    while outcome.poll(&mut Context::from_waker(&waker)).is_pending() {
        thread.sleep();
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
