//! Some of the cells, and the wheel that says when to look at them.
//!
//! Under the lock no foreign code runs, and no cell is dropped.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use std::vec;

use super::cell::{ANEW, CALLED, Cell, ENDED};
use super::stalls::Live;
use super::table::ActivityHub;
use crate::sync::MOVES;
use countwheel::building::returns;
use countwheel::building::run_soon;
use countwheel::building::{Bell, Rung};
use countwheel::{Driver, Instant, Layout, Resolution, Timer};
use countwheel_time::locks;

/// What is to be done about cells of which nothing was heard.
pub(crate) trait Policy: Send + Sync + Sized + 'static {
    type Data: Send + Sync + 'static;

    /// When something is to be done if nothing happens until then. Called under a lock:
    /// nothing foreign.
    fn next(&self, cell: &Cell<Self::Data>, now: Live) -> Live;

    /// The time has come. On the executor, with the cell in nobody else's hands. A panic is
    /// counted.
    fn act(
        self: &Arc<Self>,
        shard: &Arc<ActivityShard<Self>>,
        cell: &Arc<Cell<Self::Data>>,
        now: Live,
    ) -> After;
}

/// What becomes of a cell that was dealt with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Back to the wheel, unless it has ended.
    File,
    /// The policy keeps it, and files it later.
    Keep,
}

/// How many cells are looked at before others get their turn.
const SLICE: usize = 256;

/// After which time a cell is dealt with whose task was dropped.
const PAUSE: Duration = Duration::from_millis(100);

/// What an empty wheel keeps of a peak, so that a few connections that come and go do not
/// allocate each time.
const KEPT_BYTES: usize = 1 << 18;

/// On cache lines of its own: another shard's lock is no business of the processor that holds
/// this one.
#[repr(align(128))]
pub(crate) struct ActivityShard<P: Policy> {
    pub(super) hub: Arc<ActivityHub<P>>,
    bell: Bell,
    wheel: Mutex<Driver<Arc<Cell<P::Data>>>>,
}

impl<P: Policy> ActivityShard<P> {
    pub(super) fn new(hub: &Arc<ActivityHub<P>>, timer: Timer, tick: Resolution) -> Arc<Self> {
        let wheel = Mutex::new(Driver::new(timer.now(), tick, Layout::Hierarchical));
        Arc::new_cyclic(|shard| Self {
            hub: Arc::clone(hub),
            bell: Bell::new(timer, Weak::clone(shard)),
            wheel,
        })
    }

    pub(crate) fn hub(&self) -> &ActivityHub<P> {
        &self.hub
    }

    pub(crate) fn timer(&self) -> &Timer {
        self.bell.timer()
    }

    /// What the timer's clock shows, without the stalls.
    #[inline]
    pub(crate) fn live(&self) -> Live {
        self.hub.stalls.live(self.bell.now())
    }

    fn lock(&self) -> MutexGuard<'_, Driver<Arc<Cell<P::Data>>>> {
        locks::lock(&self.wheel)
    }

    /// Files a cell that is in nobody's hands, to be looked at no sooner than `no_sooner`.
    pub(crate) fn file(&self, policy: &P, cell: Arc<Cell<P::Data>>, no_sooner: Instant) {
        let now = self.bell.now();
        let mut wheel = self.lock();
        if cell.is_ended() || self.hub.is_stopped() {
            drop(wheel);
            return drop(cell);
        }
        let ring_by = self.put(&mut wheel, policy, cell, now, no_sooner);
        drop(wheel);
        // Refused only if the timer is closed: then the cell stays where it is until the end.
        let _ = self.bell.ring_by(ring_by);
    }

    /// Returns by when to ring.
    fn put(
        &self,
        wheel: &mut Driver<Arc<Cell<P::Data>>>,
        policy: &P,
        cell: Arc<Cell<P::Data>>,
        now: Instant,
        no_sooner: Instant,
    ) -> Instant {
        let deadline = self.deadline(policy, &cell, now).max(no_sooner);
        let key = wheel.schedule(now, deadline, cell);
        if let Some(cell) = wheel.get_mut(key) {
            *cell.place() = Some(key);
        }
        wheel.due(deadline).min(self.hub.stalls.next_look(now))
    }

    fn deadline(&self, policy: &P, cell: &Cell<P::Data>, now: Instant) -> Instant {
        if cell.has(CALLED) {
            return now;
        }
        if cell.lower(ANEW) {
            cell.set_told(Live(0));
        }
        let live = self.hub.stalls.live(now);
        self.hub.stalls.real(policy.next(cell, live))
    }

    /// Ends the watch of a cell, and frees what was kept of it. True for one of all who do so.
    pub(crate) fn end(&self, cell: &Cell<P::Data>) -> bool {
        if !cell.raise(ENDED) {
            return false;
        }
        let mut wheel = self.lock();
        let place = cell.place().take();
        let filed = place.and_then(|key| wheel.cancel(key));
        if wheel.is_empty() && wheel.memory_bytes() > KEPT_BYTES {
            wheel.shrink_to_fit();
        }
        drop(wheel);
        drop(filed);
        self.hub.stalls.leave();
        true
    }

    /// The handle of a cell was dropped.
    pub(crate) fn close(&self, cell: &Cell<P::Data>) -> bool {
        let ended = self.end(cell);
        if ended {
            self.hub.counts.closed.fetch_add(1, Ordering::Relaxed);
        }
        ended
    }

    /// Handles the cell now, or once the task that holds the cell gives it back.
    pub(crate) fn call(&self, cell: &Cell<P::Data>) {
        cell.raise(CALLED);
        self.look_again(cell);
    }

    /// The cell's limits have changed.
    pub(crate) fn begin_anew(&self, cell: &Cell<P::Data>) {
        cell.raise(ANEW);
        self.look_again(cell);
    }

    fn look_again(&self, cell: &Cell<P::Data>) {
        let Some(policy) = self.hub.policy() else {
            return;
        };
        let now = self.bell.now();
        let mut wheel = self.lock();
        let Some(key) = *cell.place() else { return };
        let deadline = self.deadline(&policy, cell, now);
        wheel.reschedule(now, key, deadline);
        let due = wheel.due(deadline);
        drop(wheel);
        let _ = self.bell.ring_by(due);
    }

    /// The limits of all cells have changed.
    pub(super) fn look_at_all_again(&self) {
        let Some(policy) = self.hub.policy() else {
            return;
        };
        let now = self.bell.now();
        let mut ring_by = Instant::MAX;
        let mut wheel = self.lock();
        for filed in wheel.drain() {
            let due = self.put(&mut wheel, &policy, filed.value, now, Instant::ZERO);
            ring_by = ring_by.min(due);
        }
        drop(wheel);
        let _ = self.bell.ring_by(ring_by);
    }

    /// Nothing will be done any more.
    pub(super) fn clear(&self) {
        let mut wheel = self.lock();
        let filed = wheel.drain();
        for filed in &filed {
            *filed.value.place() = None;
        }
        wheel.shrink_to_fit();
        drop(wheel);
        self.bell.silence();
        drop(filed);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.lock().memory_bytes()
    }

    fn deal_with(self: &Arc<Self>, policy: &Arc<P>, cell: Arc<Cell<P::Data>>) {
        let now = self.bell.now();
        self.hub.stalls.look(now);
        let live = self.hub.stalls.live(now);
        if !cell.lower(CALLED) && self.deadline(policy, &cell, now) > now {
            self.hub.counts.overtaken.fetch_add(1, Ordering::Relaxed);
            return self.file(policy, cell, Instant::ZERO);
        }
        let mut after = After::File;
        if !returns(|| after = policy.act(self, &cell, live)) {
            self.hub.counts.panicked.fetch_add(1, Ordering::Relaxed);
        }
        if after == After::File {
            self.file(policy, cell, Instant::ZERO);
        }
    }
}

impl<P: Policy> Rung for ActivityShard<P> {
    fn bell(&self) -> &Bell {
        &self.bell
    }

    fn ring(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let policy = self.hub.policy().filter(|_| !self.bell.is_stopped());
        let Some(policy) = policy else {
            self.clear();
            return None;
        };
        self.hub.stalls.look(now);
        let mut due = Vec::new();
        let mut looked = 0;
        let mut wheel = self.lock();
        let mut moves = MOVES;
        while looked < SLICE
            && let Some(fired) = wheel.expire_within(now, Instant::MAX, &mut moves)
        {
            looked += 1;
            let cell = fired.value;
            if self.deadline(&policy, &cell, now) <= now {
                *cell.place() = None;
                due.push(cell);
            } else {
                self.put(&mut wheel, &policy, cell, now, Instant::ZERO);
            }
        }
        let again = if looked == SLICE {
            now
        } else {
            // A cell that waits for the executor is in no wheel, and watched all the same.
            let stalls = &self.hub.stalls;
            let is_watched = stalls.members() > 0;
            let look = is_watched.then(|| stalls.next_look(now));
            let wake = wheel.next_wake().into_iter().chain(look).min();
            wake.unwrap_or(Instant::MAX)
        };
        drop(wheel);
        let counts = &self.hub.counts;
        counts.looks.fetch_add(looked as u64, Ordering::Relaxed);
        if !due.is_empty() {
            let batch = Batch {
                shard: Arc::downgrade(self),
                cells: due.into_iter(),
            };
            // If the timer is closed, the batch is dropped, and with it what nobody needs.
            let _ = run_soon(self.timer(), move || batch.run());
        }
        (again < Instant::MAX).then_some(again)
    }
}

/// Cells on their way to the executor. It holds the shard weakly: a task must not keep its own
/// timer alive.
struct Batch<P: Policy> {
    shard: Weak<ActivityShard<P>>,
    cells: vec::IntoIter<Arc<Cell<P::Data>>>,
}

impl<P: Policy> Batch<P> {
    fn run(mut self) {
        let Some(shard) = self.shard.upgrade() else {
            return;
        };
        let Some(policy) = shard.hub.policy() else {
            return;
        };
        for cell in self.cells.by_ref() {
            if !cell.is_ended() {
                shard.deal_with(&policy, cell);
            }
        }
    }
}

/// A task that an executor drops must not lose what it was to do.
impl<P: Policy> Drop for Batch<P> {
    fn drop(&mut self) {
        if self.cells.len() == 0 {
            return;
        }
        let Some(shard) = self.shard.upgrade() else {
            return;
        };
        let Some(policy) = shard.hub.policy() else {
            return;
        };
        let later = shard.bell.now() + PAUSE;
        for cell in self.cells.by_ref() {
            shard.file(&policy, cell, later);
        }
    }
}
