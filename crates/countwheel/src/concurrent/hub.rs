//! What the shards of one timer have in common: the sleep of the host, the door, the room.

use std::sync::Arc;
use std::task::Waker;

use super::lock;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::{Clock, Driver, Instant, Layout, Resolution};

/// What the shards of one timer have in common.
pub(crate) struct Hub {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) resolution: Resolution,
    pub(super) layout: Layout,
    /// When the sleeping host looks again, in nanoseconds; [`AWAKE`] unless it sleeps.
    pub(super) asleep_until: AtomicU64,
    /// Wakes the host.
    host: Mutex<Option<Waker>>,
    /// [`CLOSED`] and [`ALERT`]: one word, so that a cancel reads one.
    flags: AtomicU64,
    /// How many more entries may be pending, if there is a limit: a signed number, since some
    /// entries are accepted beyond it.
    room: Option<AtomicU64>,
}

/// New entries are refused, for good.
const CLOSED: u64 = 1;

/// The host hears of every cancel.
const ALERT: u64 = 2;

/// More than there will ever be entries.
const MOST_ROOM: u64 = u64::MAX / 2;

/// No deadline is before this one, so nobody finds reason to wake the host.
const AWAKE: u64 = 0;

/// Why an entry was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    Closed,
    Full,
}

impl Hub {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        resolution: Resolution,
        layout: Layout,
        max_pending: Option<u64>,
    ) -> Self {
        Self {
            clock,
            resolution,
            layout,
            asleep_until: AtomicU64::new(AWAKE),
            host: Mutex::new(None),
            flags: AtomicU64::new(0),
            room: max_pending.map(|most| AtomicU64::new(most.min(MOST_ROOM))),
        }
    }

    /// An empty wheel like those of the timer: for a pattern that keeps deadlines of its own.
    pub(crate) fn driver<T>(&self) -> Driver<T> {
        Driver::new(self.clock.now(), self.resolution, self.layout)
    }

    /// From now on this waker wakes the host.
    pub(crate) fn set_host(&self, waker: &Waker) {
        let mut host = lock(&self.host);
        let old = match &mut *host {
            Some(old) if old.will_wake(waker) => None,
            _ => host.replace(waker.clone()),
        };
        drop(host);
        drop(old);
    }

    /// Makes the host look around, whether it sleeps or is about to.
    pub(crate) fn rouse(&self) {
        self.host_is_awake();
        let waker = lock(&self.host).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Called by the host when its sleep is over.
    pub(crate) fn host_is_awake(&self) {
        self.asleep_until.store(AWAKE, Ordering::Relaxed);
    }

    /// When the host looks again, if it sleeps.
    pub(crate) fn asleep_until(&self) -> Option<Instant> {
        let until = self.asleep_until.load(Ordering::Relaxed);
        (until != AWAKE).then_some(Instant::from_nanos(until))
    }

    /// Refuses new entries from now on. False if it was so already.
    pub(crate) fn close(&self) -> bool {
        self.flags.fetch_or(CLOSED, Ordering::SeqCst) & CLOSED == 0
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.flags.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Whether the host is woken by every cancel from now on: one that sleeps by a clock that
    /// jumps to the end of the sleep must not sleep for what is gone.
    #[allow(dead_code, reason = "without tokio nobody is alert")]
    pub(crate) fn set_alert(&self, alert: bool) {
        let is_alert = self.flags.load(Ordering::Relaxed) & ALERT != 0;
        if is_alert != alert {
            self.flags.fetch_xor(ALERT, Ordering::SeqCst);
        }
    }

    /// Whether a cancel has to wake the host. One that waits for the last entry to go is told of
    /// the last.
    #[inline]
    pub(super) fn hears_of_cancel(&self, is_last: impl FnOnce() -> bool) -> bool {
        let flags = self.flags.load(Ordering::Acquire);
        flags != 0 && (flags & ALERT != 0 || is_last())
    }

    #[inline]
    pub(super) fn take_room(&self) -> bool {
        let Some(room) = &self.room else { return true };
        let take = |left: u64| (left.cast_signed() > 0).then(|| left - 1);
        room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }

    /// For what goes on with something that was accepted before.
    pub(super) fn take_room_anyway(&self) -> bool {
        if let Some(room) = &self.room {
            room.fetch_sub(1, Ordering::Relaxed);
        }
        true
    }

    #[inline]
    pub(crate) fn give_room(&self, entries: u64) {
        if let Some(room) = &self.room
            && entries > 0
        {
            room.fetch_add(entries, Ordering::Relaxed);
        }
    }

    /// After the bound of a shard was lowered to `due`: whether the host sleeps too long. One
    /// of those who find so is told, and wakes it.
    pub(super) fn oversleeps(&self, due: u64) -> bool {
        let until = self.asleep_until.load(Ordering::Relaxed);
        due < until
            && self
                .asleep_until
                .compare_exchange(until, AWAKE, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}
