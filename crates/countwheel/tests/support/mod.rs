//! What the tests of this crate have in common: clocks moved by hand, an executor with a
//! door, a log of what ran, a waker that counts.

#![allow(dead_code, reason = "no test needs all of it")]

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use countwheel::{
    Executor, Layout, ManualClock, ManualHost, Resolution, Timer, TimerBuilder, Work,
};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 86_400);

pub(crate) fn layouts() -> [Layout; 2] {
    [Layout::Hierarchical, Layout::hashed(32).unwrap()]
}

pub(crate) fn ns(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

pub(crate) fn ticks_of(tick: Duration, layout: Layout) -> TimerBuilder {
    let resolution = Resolution::new(tick).unwrap();
    Timer::builder().resolution(resolution).layout(layout)
}

pub(crate) fn manual(tick: Duration, layout: Layout) -> ManualHost {
    ticks_of(tick, layout).manual(ManualClock::new())
}

/// What tasks write down, in the order in which they run.
pub(crate) struct Journal<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Journal<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + 'static> Journal<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn write(&self, entry: T) {
        self.0.lock().unwrap().push(entry);
    }

    /// A task that writes one entry.
    pub(crate) fn writes(&self, entry: T) -> impl FnOnce() + Send + 'static {
        let journal = self.clone();
        move || journal.write(entry)
    }

    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Tells whether what it belongs to is still there.
#[derive(Clone, Default)]
pub(crate) struct Presence(Arc<()>);

impl Presence {
    pub(crate) fn is_over(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// A small generator (splitmix64), so that a failure can be repeated from its seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Any magnitude is as likely as any other.
    pub(crate) fn nanos_up_to(&mut self, limit: u64) -> u64 {
        let bits = self.below(u64::from(limit.ilog2()) + 1);
        self.below((2 << bits).min(limit))
    }
}

/// An executor that keeps what it takes until told to run it, and takes as much as it is told.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    room: Mutex<usize>,
    queue: Mutex<VecDeque<Work>>,
}

impl Desk {
    pub(crate) fn with_room(room: usize) -> Arc<Self> {
        let desk = Arc::new(Self::default());
        desk.set_room(room);
        desk
    }

    /// How much more it takes.
    pub(crate) fn set_room(&self, room: usize) {
        *self.room.lock().unwrap() = room;
    }

    pub(crate) fn taken(&self) -> usize {
        self.queue.lock().unwrap().len()
    }

    /// Runs what was taken, first to last, without making room.
    pub(crate) fn run_all(&self) {
        while let Some(work) = self.take() {
            work.run();
        }
    }

    pub(crate) fn take(&self) -> Option<Work> {
        self.queue.lock().unwrap().pop_front()
    }
}

impl Executor for Desk {
    fn execute(&self, work: Work) -> Result<(), Work> {
        let mut room = self.room.lock().unwrap();
        if *room == 0 {
            return Err(work);
        }
        *room -= 1;
        self.queue.lock().unwrap().push_back(work);
        Ok(())
    }
}

/// A waker that counts how often it was woken.
#[derive(Default)]
pub(crate) struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn woken(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn poll<F: Future + Unpin>(self: &Arc<Self>, future: &mut F) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(self));
        Pin::new(future).poll(&mut Context::from_waker(&waker))
    }
}

/// The smallest runtime there is: one thread, one future.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
