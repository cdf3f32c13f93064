//! Timers that were overdue when the scheduler was opened. They start at a bounded rate, so that a
//! long absence makes no other timer late.

use std::time::Duration;

use countwheel_time::Timestamp;

use crate::clocks::Now;
use crate::planted::planted;
use crate::store::{DueEntry, Shard, Store, StoreError};
use crate::window::{Room, Window};
use crate::{DueClock, QueueName, Revision};

/// The overdue, in a window of their own: in turns by queue, in each in order of deadline.
#[derive(Debug)]
pub(crate) struct Overdue {
    pub(crate) window: Window,
    interval: Duration,
    /// The virtual scheduling time of the generic cell rate algorithm (ITU-T I.371), by the
    /// boot clock: the next start is allowed from here on.
    next_start: Timestamp,
    /// Since when, by the boot clock, it is what it is.
    pub(crate) since: Timestamp,
}

impl Overdue {
    /// The longest that unused allowance is kept.
    const BURST: Duration = Duration::from_millis(20);

    pub(crate) fn new(opened: Now, room: Room, per_second: u32) -> Self {
        let from = Now {
            wall: Timestamp::EPOCH,
            boot: Timestamp::EPOCH,
        };
        let until = Now {
            wall: just_before(opened.wall),
            boot: just_before(opened.boot),
        };
        Self {
            window: Window::new(from, until, room),
            interval: Duration::from_secs(1) / per_second.max(1),
            next_start: opened.boot,
            since: opened.boot,
        }
    }

    /// Begins anew with what is overdue by `clock` now.
    pub(crate) fn restart(&mut self, clock: DueClock, now: Now) {
        self.since = now.boot;
        self.window
            .restart(clock, Timestamp::EPOCH, just_before(now.by(clock)));
    }

    pub(crate) fn is_done(&self) -> bool {
        DueClock::ALL
            .iter()
            .all(|clock| self.window.is_done(*clock))
    }

    pub(crate) fn refill(
        &mut self,
        now: Now,
        store: &dyn Store,
        shard: Shard,
        skip: &dyn Fn(Revision) -> bool,
        left: &mut usize,
    ) -> Result<(), StoreError> {
        self.window.refill(now, store, shard, skip, left)
    }

    /// Takes in an entry that was written since, if it belongs to what was overdue; says
    /// whether it does. One that there is no room for will be read from the store.
    pub(crate) fn admit(&mut self, clock: DueClock, entry: &DueEntry) -> bool {
        let belongs = self.window.reaches(clock, entry.wake);
        if belongs {
            self.window.admit(clock, entry.clone());
        }
        belongs
    }

    /// The next entry, if the rate allows one now.
    pub(crate) fn take(&mut self, now: Now, may: impl Fn(&QueueName) -> bool) -> Option<DueEntry> {
        if now.boot < self.next_start && !planted!(CatchUpAtOnce) {
            return None;
        }
        self.window.take(now, may)
    }

    /// Notes that the entry last taken was started.
    /// The rate is divided among so many.
    pub(crate) fn started(&mut self, now: Now, among: usize) {
        let earliest = now.boot.saturating_sub(Self::BURST);
        let among = u32::try_from(among).unwrap_or(u32::MAX);
        self.next_start = self.next_start.max(earliest) + self.interval.saturating_mul(among);
    }

    /// How long until the rate allows a start.
    pub(crate) fn pause(&self, now: Now) -> Duration {
        self.next_start.saturating_since(now.boot)
    }

    /// How long until the rate allows a start of something that is due and `may`; `None` if
    /// nothing is left.
    pub(crate) fn wait(&self, now: Now, may: impl Fn(&QueueName) -> bool) -> Option<Duration> {
        let due = if self.window.is_ready(may) {
            Some(Duration::ZERO)
        } else {
            let sides = DueClock::ALL.into_iter();
            let wakes = sides.filter_map(|clock| Some((clock, self.window.next_wake(clock)?)));
            wakes
                .map(|(clock, at)| at.saturating_since(now.by(clock)))
                .min()
        };
        due.map(|due| due.max(self.pause(now)))
    }
}

fn just_before(at: Timestamp) -> Timestamp {
    at.saturating_sub(Duration::from_micros(1))
}
