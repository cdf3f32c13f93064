//! Fills the window from the store, and gives up entries when the window holds too much.

use std::ops::Bound;
use std::time::Duration;

use countwheel_time::Timestamp;

use super::{CAPPED_MAX, Side, Window};
use crate::clocks::Now;
use crate::planted::planted;
use crate::store::{DueEntry, DuePage, DueScan, Shard, Store, StoreError};
use crate::{DueClock, QueueName, Revision, TimerName, Wake};

/// How many pages one refill reads at the most, so that no step takes long; half of them for
/// queues that have run low, so that neither keeps the other waiting.
const PAGES: usize = 8;

/// A page looks at so many entries, if there are so many: one of the log, and one behind it.
pub(crate) const LOOK_MIN: usize = 2;

/// How many entries one refill gives up at the most because more queues want room.
const TRIM: usize = 4_096;

/// What wakes within this time should be in memory, even if a queue must give up what is
/// later.
const AHEAD: Duration = Duration::from_secs(10);

/// What wakes within this time is read even where hardly anything of it is kept, because capped
/// queues leave it to the store: what others have there is found in time.
const THIN_AHEAD: Duration = Duration::from_secs(60);

/// A page of which less than one in so many was kept is sparse.
const SPARSE: usize = 8;

/// What holds no more than this part of the room need not give anything up for that.
const SMALL: usize = 16;

impl Window {
    /// Whether [`Window::refill`] would read.
    pub(crate) fn wants_refill(&self, now: Now) -> bool {
        self.wants_more(now)
            || self
                .capped
                .iter()
                .any(|(clock, name)| self.is_low(*clock, name))
    }

    /// Reads what there is room for: the nearest, and of queues that have used up their share
    /// what comes next. A bounded number of pages; [`Window::wants_refill`] says whether there
    /// is more to do.
    ///
    /// `skip` says which entries are in somebody's hands. The store must hold all changes made
    /// so far. At most `left` entries of its indexes are looked at, which is less by then.
    pub(crate) fn refill(
        &mut self,
        now: Now,
        store: &dyn Store,
        shard: Shard,
        skip: &dyn Fn(Revision) -> bool,
        left: &mut usize,
    ) -> Result<(), StoreError> {
        self.horizon = DueClock::ALL.map(|clock| now.by(clock) + AHEAD);
        let mut pages = PAGES / 2;
        for (clock, name) in self.capped_in_turns() {
            self.keep_to_share(clock, &name, TRIM);
            while pages > 0 && *left >= LOOK_MIN && self.is_low(clock, &name) {
                pages -= 1;
                self.read_rest(clock, &name, store, shard, skip, left)?;
                if pages == 0 || *left < LOOK_MIN {
                    self.served = Some((clock, name.clone()));
                }
            }
        }
        self.make_room();
        let mut pages = pages + PAGES / 2;
        while pages > 0
            && *left >= LOOK_MIN
            && let Some(clock) = self.next_to_read(now)
        {
            let side = &self.sides[clock as usize];
            let is_urgent = !side.is_sparse || side.loaded.at < self.horizon[clock as usize];
            pages = if is_urgent { pages - 1 } else { 0 };
            self.filling = true;
            self.read_on(clock, store, shard, skip, left)?;
        }
        self.filling = self.wants_more(now);
        Ok(())
    }

    fn wants_more(&self, now: Now) -> bool {
        self.next_to_read(now).is_some()
    }

    /// The clock that is behind, of those of which more should be read while there is room.
    fn next_to_read(&self, now: Now) -> Option<DueClock> {
        if self.is_full() {
            return None;
        }
        let wanting = self.sides.iter().filter(|side| self.wants(side, now));
        let next = wanting.min_by_key(|side| self.ahead(side, side.loaded))?;
        Some(next.clock)
    }

    /// Whether more should be read of what comes next: from below five eighths up to three
    /// quarters of the whole, the rest is for what comes in; and where that is sparse, no further
    /// than has to be known.
    ///
    /// What does not wake soon is not read while something is due: that comes first.
    fn wants(&self, side: &Side, now: Now) -> bool {
        let is_far = side.loaded.at > now.by(side.clock) + AHEAD;
        if side.loaded == Wake::MAX || is_far && self.is_due(now) {
            false
        } else if side.is_sparse {
            side.loaded.at <= now.by(side.clock) + THIN_AHEAD
        } else {
            self.has_room()
        }
    }

    fn has_room(&self) -> bool {
        self.filling || self.held.cost <= self.room.bytes / 8 * 5
    }

    /// Whether something that is held is due.
    pub(super) fn is_due(&self, now: Now) -> bool {
        let first = |side: &Side| side.heads.keys().next().map(|wake| (side.clock, wake.at));
        let mut heads = self.sides.iter().filter_map(first);
        !self.ring.is_empty() || heads.any(|(clock, at)| at <= now.by(clock))
    }

    /// When more has to be read of what comes next by a clock; `None` if nothing can be.
    pub(super) fn next_read(&self, side: &Side) -> Option<Timestamp> {
        if side.loaded == Wake::MAX || self.stuck {
            None
        } else if side.is_sparse && !self.is_full() {
            Some(side.loaded.at.saturating_sub(THIN_AHEAD))
        } else if self.has_room() && !self.is_full() {
            Some(side.loaded.at.saturating_sub(AHEAD))
        } else {
            Some(side.loaded.at)
        }
    }

    fn is_full(&self) -> bool {
        let cost = self.held.cost;
        cost >= self.room.bytes / 4 * 3 || cost + self.room.longest() > self.room.bytes
    }

    fn is_low(&self, clock: DueClock, name: &QueueName) -> bool {
        let Some(queue) = self.queues.get(name) else {
            return false;
        };
        let lane = &queue.lanes[clock as usize];
        if lane.rest.is_none() || lane.entries.is_empty() {
            return lane.rest.is_some();
        }
        // So low that whatever comes next has room: to read it and leave it is no progress.
        let share = self.share(true);
        let low = lane.cost <= share / 2 && lane.cost + self.room.longest() <= share;
        low && !self.is_near() && self.has_spare()
    }

    /// Whether something that wakes soon is not in memory.
    fn is_near(&self) -> bool {
        let mut sides = self.sides.iter().zip(self.horizon);
        sides.any(|(side, horizon)| side.loaded < Wake::MAX && side.loaded.at < horizon)
    }

    /// Whether one more would push out nothing, or nothing that wakes soon.
    fn has_spare(&self) -> bool {
        let far = self.latest().is_some_and(|(ahead, ..)| ahead >= 0);
        far || self.held.cost + self.room.longest() <= self.room.bytes
    }

    /// What a queue may hold. Those that are held to it have half of the room together, so
    /// whatever they hold, the other half is for others.
    pub(super) fn share(&self, is_capped: bool) -> usize {
        let queues = self.capped.len() + usize::from(!is_capped);
        self.room.bytes / 2 / queues.max(1)
    }

    fn capped_in_turns(&self) -> Vec<(DueClock, QueueName)> {
        let Some(served) = &self.served else {
            return self.capped.iter().cloned().collect();
        };
        let later = (Bound::Excluded(served), Bound::Unbounded);
        let later = self.capped.range(later);
        later.chain(self.capped.range(..=served)).cloned().collect()
    }

    /// Reads a page of what comes next.
    fn read_on(
        &mut self,
        clock: DueClock,
        store: &dyn Store,
        shard: Shard,
        skip: &dyn Fn(Revision) -> bool,
        left: &mut usize,
    ) -> Result<(), StoreError> {
        let from = self.sides[clock as usize].loaded;
        let page = self.read(clock, from, store, shard, left)?;
        self.sides[clock as usize].loaded = page.next.unwrap_or(Wake::MAX);
        let mut page = page.entries;
        let (held, read) = (self.held.entries, page.len());
        if planted!(SkipPageBorder) && page.len() == self.room.page {
            page.pop();
        }
        for entry in page {
            if !skip(entry.wake.revision) {
                self.admit(clock, entry);
            }
        }
        let kept = self.held.entries.saturating_sub(held);
        let is_capped = self.capped.iter().any(|(capped, _)| *capped == clock);
        self.sides[clock as usize].is_sparse = is_capped && kept * SPARSE < read;
        Ok(())
    }

    /// Reads a page of what a capped queue left in the store, and takes along what other
    /// such queues find in it.
    ///
    /// Asks for all queues, not for this one: only that has a bound in the store, wherever
    /// the queue's next entry may be.
    fn read_rest(
        &mut self,
        clock: DueClock,
        name: &QueueName,
        store: &dyn Store,
        shard: Shard,
        skip: &dyn Fn(Revision) -> bool,
        left: &mut usize,
    ) -> Result<(), StoreError> {
        let loaded = self.sides[clock as usize].loaded;
        let Some(from) = self.rest(clock, name).filter(|rest| *rest <= loaded) else {
            self.uncap(clock, name);
            return Ok(());
        };
        let page = self.read(clock, from.before(), store, shard, left)?;
        let end = page.next.unwrap_or(Wake::MAX);
        let mut target_is_full = false;
        let mut full: Vec<QueueName> = Vec::new();
        for DueEntry {
            wake, name: timer, ..
        } in page.entries
        {
            if wake > self.sides[clock as usize].loaded {
                break;
            }
            let Some(rest) = self.rest(clock, &timer.queue) else {
                continue;
            };
            // What an earlier position was left out for is not on this page.
            if wake < rest || rest < from || full.contains(&timer.queue) {
                continue;
            }
            let is_target = timer.queue == *name;
            if !self.has_share(clock, &timer) {
                target_is_full |= is_target;
                full.push(timer.queue);
                continue;
            }
            let next = Some(wake.after());
            if let Some(queue) = self.queues.get_mut(&timer.queue) {
                queue.lanes[clock as usize].rest = next;
            }
            if !skip(wake.revision) {
                self.insert(clock, wake, &timer.queue, timer.key);
            }
            // It had to give something up again: there it goes on.
            if self.rest(clock, &timer.queue) != next {
                target_is_full |= is_target;
                full.push(timer.queue);
            }
        }
        if target_is_full {
            return Ok(());
        }
        if end >= self.sides[clock as usize].loaded {
            self.uncap(clock, name);
        } else if let Some(queue) = self.queues.get_mut(name) {
            let lane = &mut queue.lanes[clock as usize];
            lane.rest = lane.rest.map(|rest| rest.max(end.after()));
        }
        Ok(())
    }

    fn read(
        &mut self,
        clock: DueClock,
        from: Wake,
        store: &dyn Store,
        shard: Shard,
        left: &mut usize,
    ) -> Result<DuePage, StoreError> {
        self.refills += 1;
        let scan = DueScan {
            after: Some(from),
            until: self.sides[clock as usize].until,
            limit: self.room.page,
            scan_limit: *left,
            ..DueScan::all(clock)
        };
        let page = store.due(shard, &scan)?;
        *left = left.saturating_sub(page.scanned.max(1));
        self.scanned += page.scanned as u64;
        Ok(page)
    }

    fn has_share(&self, clock: DueClock, name: &TimerName) -> bool {
        let queue = self.queues.get(&name.queue);
        let lane = queue.map(|queue| &queue.lanes[clock as usize]);
        lane.is_none_or(|lane| {
            let cost = lane.cost + self.room.cost(&name.key);
            let fits = if self.is_near() {
                // Less than what it would have to give up again.
                cost <= self.share(true).min(self.room.bytes / SMALL / 2)
            } else {
                cost <= self.share(true) && self.has_spare()
            };
            fits || lane.entries.is_empty()
        })
    }

    /// Gives up the latest entries of a queue above its share, at most `most` of them.
    pub(super) fn keep_to_share(&mut self, clock: DueClock, name: &QueueName, most: usize) {
        let room = self.room;
        for _ in 0..most {
            let Some(queue) = self.queues.get(name) else {
                return;
            };
            let lane = &queue.lanes[clock as usize];
            let is_capped = lane.rest.is_some();
            let fits = lane.cost <= self.share(is_capped) || lane.entries.len() <= 1;
            if fits || (!is_capped && self.capped.len() >= CAPPED_MAX) {
                return;
            }
            if !is_capped {
                self.cap(clock, name);
            }
            self.lane(clock, name, |lane| lane.rest = lane.give_up_last(room));
        }
    }

    fn cap(&mut self, clock: DueClock, name: &QueueName) {
        let side = (clock, name.clone());
        self.capped.insert(side);
    }

    pub(super) fn uncap(&mut self, clock: DueClock, name: &QueueName) {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.lanes[clock as usize].rest = None;
        }
        self.capped.remove(&(clock, name.clone()));
        self.drop_if_empty(name);
    }

    /// Gives up what is latest of all until what is held fits.
    pub(super) fn keep_to_room(&mut self) {
        let room = self.room;
        let bytes = if planted!(WindowWithoutBound) {
            usize::MAX
        } else {
            room.bytes
        };
        let too_much = |window: &Self| window.held.cost > bytes && window.held.entries > 1;
        self.rebuilds += u64::from(too_much(self));
        while too_much(self) && self.give_up_latest() {}
    }

    /// What is latest of all that is held: how long after what wakes soon, in microseconds, and
    /// where.
    fn latest(&self) -> Option<(i128, DueClock, &QueueName)> {
        let tails = self.sides.iter().filter_map(|side| {
            let (wake, name) = side.tails.last_key_value()?;
            Some((self.ahead(side, *wake), side.clock, name))
        });
        tails.max_by_key(|(ahead, ..)| *ahead)
    }

    /// The time lines of the clocks may lie apart: what is later is seen from where each is.
    fn ahead(&self, side: &Side, wake: Wake) -> i128 {
        let horizon = self.horizon[side.clock as usize];
        i128::from(wake.at.as_micros()) - i128::from(horizon.as_micros())
    }

    /// Whether one of the clocks has still to read what may come before something held.
    fn is_behind(&self) -> bool {
        let Some((latest, ..)) = self.latest() else {
            return false;
        };
        let unread = self.sides.iter().filter(|side| side.loaded < Wake::MAX);
        unread
            .map(|side| self.ahead(side, side.loaded))
            .any(|loaded| loaded < latest)
    }

    fn give_up_latest(&mut self) -> bool {
        let room = self.room;
        let Some((_, clock, name)) = self.latest() else {
            return false;
        };
        let name = name.clone();
        let given_up = self.lane(clock, &name, |lane| lane.give_up_last(room));
        if let Some(wake) = given_up {
            let side = &mut self.sides[clock as usize];
            side.loaded = side.loaded.min(wake.before());
        }
        given_up.is_some()
    }

    /// If it is full, gives up what is later than what one of the clocks has still to read. If
    /// even what comes soon is not in it, has the queues that hold most give up what they need
    /// last.
    fn make_room(&mut self) {
        let room = self.room;
        while self.is_full() && self.is_behind() && self.give_up_latest() {
            self.filling = true;
        }
        let near = self.is_near();
        while near && self.is_full() && !self.stuck {
            let lanes = self.queues.iter().flat_map(|(name, queue)| {
                DueClock::ALL.map(|clock| (queue.lanes[clock as usize].cost, clock, name))
            });
            let Some((cost, clock, name)) = lanes.max_by_key(|(cost, ..)| *cost) else {
                return;
            };
            let name = name.clone();
            let is_capped = self.rest(clock, &name).is_some();
            let entries = self.lane(clock, &name, |lane| lane.entries.len());
            if cost <= room.bytes / SMALL
                || entries <= 1
                || (!is_capped && self.capped.len() >= CAPPED_MAX)
            {
                self.stuck = true;
                return;
            }
            self.cap(clock, &name);
            for _ in 0..entries / 2 {
                self.lane(clock, &name, |lane| lane.rest = lane.give_up_last(room));
            }
        }
        self.filling |= near;
    }
}
