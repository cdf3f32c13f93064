//! One watched thing.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use countwheel::TimerKey;
use countwheel_time::locks::lock;

use super::Live;

/// The times of its last activity, and what belongs to it.
pub(crate) struct Cell<D> {
    read: AtomicU64,
    wrote: AtomicU64,
    /// Up to when all has been said that there was to say.
    told: AtomicU64,
    /// How many reads are in progress.
    reading: AtomicU32,
    flags: AtomicU8,
    /// Where it is in the wheel; only under that wheel's lock.
    place: Mutex<Option<TimerKey>>,
    pub(crate) data: D,
}

/// Nobody watches it any more, or it was evicted.
pub(super) const ENDED: u8 = 1;
/// To be dealt with now, whatever its times.
pub(super) const CALLED: u8 = 2;
/// Its limits have changed: nothing has been said about them.
pub(super) const ANEW: u8 = 4;

impl<D> Cell<D> {
    pub(super) fn new(now: Live, data: D) -> Self {
        Self {
            read: AtomicU64::new(now.0),
            wrote: AtomicU64::new(now.0),
            told: AtomicU64::new(0),
            reading: AtomicU32::new(0),
            flags: AtomicU8::new(0),
            place: Mutex::new(None),
            data,
        }
    }

    // Relaxed throughout: a time stands for itself, and who looks a moment too early to see it
    // looks again before anything is done.

    #[inline]
    pub(crate) fn set_read(&self, now: Live) {
        self.read.store(now.0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn set_wrote(&self, now: Live) {
        self.wrote.store(now.0, Ordering::Relaxed);
    }

    pub(crate) fn last_read(&self) -> Live {
        Live(self.read.load(Ordering::Relaxed))
    }

    pub(crate) fn last_write(&self) -> Live {
        Live(self.wrote.load(Ordering::Relaxed))
    }

    pub(crate) fn begin_read(&self) {
        self.reading.fetch_add(1, Ordering::Relaxed);
    }

    /// The read is over; its time has been set.
    pub(crate) fn end_read(&self) {
        self.reading.fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn is_reading(&self) -> bool {
        self.reading.load(Ordering::Acquire) > 0
    }

    pub(crate) fn told(&self) -> Live {
        Live(self.told.load(Ordering::Relaxed))
    }

    /// All has been said up to `now`. For who deals with the cell.
    pub(crate) fn set_told(&self, now: Live) {
        self.told.store(now.0, Ordering::Relaxed);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.has(ENDED)
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    /// True if it was not raised before.
    pub(super) fn raise(&self, flag: u8) -> bool {
        self.flags.fetch_or(flag, Ordering::AcqRel) & flag == 0
    }

    /// True if it was raised before.
    pub(super) fn lower(&self, flag: u8) -> bool {
        // Most are never raised, and then nothing is written.
        self.has(flag) && self.flags.fetch_and(!flag, Ordering::AcqRel) & flag != 0
    }

    pub(super) fn place(&self) -> MutexGuard<'_, Option<TimerKey>> {
        lock(&self.place)
    }
}

/// When a limit of `limit` nanoseconds is next exceeded by something last heard of at `last`,
/// after everything was said up to `told`: at the limit, then at twice the limit, and so on.
pub(crate) fn next_multiple(last: Live, limit: u64, told: Live) -> Live {
    let said = told.since(last) / limit;
    last.plus(said.saturating_add(1).saturating_mul(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_exceeded_again_at_each_multiple() {
        let next = |told| next_multiple(Live(100), 10, Live(told));
        assert_eq!(next(0), Live(110));
        assert_eq!(next(109), Live(110));
        assert_eq!(next(110), Live(120));
        assert_eq!(
            next(155),
            Live(160),
            "those that were missed are not made up for"
        );
        assert_eq!(next_multiple(Live(5), u64::MAX, Live(0)), Live::NEVER);
    }
}
