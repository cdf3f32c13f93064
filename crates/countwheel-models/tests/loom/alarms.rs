//! Models of what wakes a pattern: alarms.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;

use crate::Instant;
use crate::concurrent::Alarm;
use crate::models::join;

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
