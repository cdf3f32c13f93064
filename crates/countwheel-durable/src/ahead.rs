//! How many timers pend, by when they are due: counts that commits keep.
//!
//! For each clock the counts cover everything up to a position in the order of wakes. After an opening the position
//! goes from the beginning to the end, a bounded piece a turn; each commit corrects the counts by its changes up to it.
//! A **bucket** is a second within the next hour, a minute within a day, an hour within a year and a day within a
//! hundred years. As time passes, a far bucket is **split**: a bounded read of its part of the order of wakes says how
//! many of it belong to each of the shorter ones. Until the read has come to the end of the bucket, what it has not
//! come by is one bucket still, so each count is exact for the edges that are said of it.
//!
//! The buckets of delays stand on the time line of delays, and are said by where the wall clock stood on it when the
//! count began.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_time::Timestamp;

use crate::backlog::{Look, Pends};
use crate::clocks::Now;
use crate::planted::planted;
use crate::store::{Shard, Store, StoreError};
use crate::{DueBucket, DueClock, DueCounts, Wake};

/// How long the buckets of each level are, in microseconds: a second, a minute, an hour, a day.
const LENGTHS: [u64; 4] = [1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000];

/// Up to how far ahead there are buckets of each level, in microseconds: an hour, a day, a year, a hundred years.
const HORIZONS: [u64; 4] = [
    3_600_000_000,
    86_400_000_000,
    365 * 86_400_000_000,
    36_525 * 86_400_000_000,
];

/// The buckets of delays begin anew if the two clocks have parted by so much since they began, in microseconds.
const DRIFT_MAX: u64 = 1_000_000;

/// From where to where a timer went with a commit.
pub(crate) type Moved = (Pends, Pends);

/// The counts of one shard.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// Whether anything is counted.
    is_on: bool,
    sides: [Side; 2],
    /// A part of the order of wakes cannot be read.
    has_gap: bool,
    /// The time of the last step.
    now: Now,
    /// How many entries were looked at.
    pub(crate) scanned: u64,
}

/// Where a wake is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Before the first bucket.
    Past,
    /// In the bucket of that level with that beginning.
    Bucket(usize, u64),
    /// Behind the last bucket.
    Later,
}

/// The counts by one clock.
#[derive(Debug)]
struct Side {
    clock: DueClock,
    /// What the wall clock showed more than this clock when the count began, in microseconds.
    shift: i64,
    /// Everything up to here is counted, and nothing beyond.
    reached: Wake,
    /// Where the buckets of each level begin, by the wall clock in microseconds, and where the last end. Those of one
    /// level end where those of the next begin.
    edges: [u64; 5],
    /// None is zero.
    buckets: [BTreeMap<u64, u64>; 4],
    past: u64,
    later: u64,
    /// The level of which the first bucket is being split, and up to where it has been.
    splitting: Option<(usize, Wake)>,
    /// Something was taken off that was not there.
    is_off: bool,
}

impl Side {
    fn new(clock: DueClock, now: Now) -> Self {
        let wall = now.wall.as_micros();
        let mut edges = [floor(wall, LENGTHS[0]); 5];
        for level in 0..4 {
            let length = LENGTHS.get(level + 1).copied().unwrap_or(LENGTHS[3]);
            let ahead = wall.saturating_add(HORIZONS[level]);
            edges[level + 1] = floor(ahead, length).saturating_add(length);
        }
        Self {
            clock,
            shift: shift(clock, now),
            reached: Wake::default(),
            edges,
            buckets: Default::default(),
            past: 0,
            later: 0,
            splitting: None,
            is_off: false,
        }
    }

    /// A time of this clock as the buckets have it.
    fn shifted(&self, at: Timestamp) -> u64 {
        let shifted = i128::from(at.as_micros()) + i128::from(self.shift);
        u64::try_from(shifted.max(0)).unwrap_or(u64::MAX)
    }

    /// The last position of this clock before a time of the buckets.
    fn before(&self, micros: u64) -> Wake {
        let at = i128::from(micros) - i128::from(self.shift);
        match u64::try_from(at) {
            Ok(at) if at > 0 => Wake::end_of(Timestamp::from_micros(at - 1)),
            Ok(_) => Wake::default(),
            Err(_) if at < 0 => Wake::default(),
            Err(_) => Wake::MAX,
        }
    }

    fn place(&self, wake: Wake) -> Place {
        let at = self.shifted(wake.at);
        if at < self.edges[0] {
            return Place::Past;
        }
        let behind = self.edges[1..].iter().position(|edge| at < *edge);
        let Some(level) = behind else {
            return Place::Later;
        };
        let start = floor(at, LENGTHS[level]);
        if let Some((split, to)) = self.splitting
            && split == level
            && start == self.edges[level]
            && wake <= to
        {
            return Place::Bucket(level - 1, floor(at, LENGTHS[level - 1]));
        }
        Place::Bucket(level, start)
    }

    fn add(&mut self, place: Place) {
        match place {
            Place::Past => self.past += 1,
            Place::Later => self.later += 1,
            Place::Bucket(level, start) => *self.buckets[level].entry(start).or_default() += 1,
        }
    }

    fn take_off(&mut self, place: Place) {
        let found = match place {
            Place::Past => Some(&mut self.past),
            Place::Later => Some(&mut self.later),
            Place::Bucket(level, start) => self.buckets[level].get_mut(&start),
        };
        match found {
            Some(0) | None => self.is_off = true,
            Some(count) => {
                *count -= 1;
                if *count == 0
                    && let Place::Bucket(level, start) = place
                {
                    self.buckets[level].remove(&start);
                }
            }
        }
    }

    fn is_counted(&self) -> bool {
        self.reached == Wake::MAX
    }

    /// The wall clock shows `wall`: what has passed needs no buckets, and where nothing is, none is split.
    fn advance(&mut self, wall: u64) {
        for level in (0..4).rev() {
            let to = floor(wall, LENGTHS[level]).min(self.edges[level + 1]);
            if to > self.edges[level] {
                self.pass(level, to);
            }
        }
        for level in (1..4).rev() {
            if self.splitting.is_some_and(|(split, _)| split == level) {
                continue;
            }
            let first = self.buckets[level].range(self.edges[level]..).next();
            let first = first.map_or(u64::MAX, |(start, _)| *start);
            let wanted = floor(self.wanted(level, wall), LENGTHS[level]) + LENGTHS[level];
            let to = first.min(wanted).min(self.edges[level + 1]);
            self.edges[level] = self.edges[level].max(to);
        }
    }

    /// Everything before `to`, where a bucket of the level begins, becomes one count.
    fn pass(&mut self, level: usize, to: u64) {
        for finer in &mut self.buckets[..level] {
            self.past += finer.values().sum::<u64>();
            finer.clear();
        }
        let left = self.buckets[level].split_off(&to);
        let passed = std::mem::replace(&mut self.buckets[level], left);
        self.past += passed.values().sum::<u64>();
        self.edges[..=level].fill(to);
        self.splitting = self.splitting.filter(|(split, _)| *split > level);
    }

    /// Up to where the buckets of a level are to be split.
    fn wanted(&self, level: usize, wall: u64) -> u64 {
        wall.saturating_add(HORIZONS[level - 1])
            .min(u64::MAX - LENGTHS[3])
    }

    /// How long until a bucket is to be split, in microseconds; `None` if none is left.
    fn next_split(&self, wall: u64) -> Option<u64> {
        if self.splitting.is_some() {
            return Some(0);
        }
        let firsts = (1..4).filter_map(|level| {
            let (first, _) = self.buckets[level].first_key_value()?;
            Some(first.saturating_sub(HORIZONS[level - 1]))
        });
        firsts.min().map(|at| at.saturating_sub(wall))
    }

    /// The level whose first bucket is to be split now.
    fn next_level(&self, wall: u64) -> Option<usize> {
        (1..4).find(|&level| {
            let edge = self.edges[level];
            let is_wanted = edge <= self.wanted(level, wall) && edge < self.edges[level + 1];
            is_wanted && self.buckets[level].contains_key(&edge)
        })
    }

    /// Counts the next piece of the order of wakes.
    fn count(&mut self, look: &mut Look<'_>) -> Result<(), StoreError> {
        let mut found = Vec::new();
        self.reached = look.read(self.clock, self.reached, Wake::MAX, &mut found)?;
        if planted!(AheadCountEndsEarly) {
            self.reached = Wake::MAX;
        }
        for (wake, _) in found {
            self.add(self.place(wake));
        }
        Ok(())
    }

    /// Splits the next piece of the bucket that is due for it. Says whether there was one.
    fn split(&mut self, wall: u64, look: &mut Look<'_>) -> Result<bool, StoreError> {
        if self.splitting.is_none() {
            let Some(level) = self.next_level(wall) else {
                return Ok(false);
            };
            self.splitting = Some((level, self.before(self.edges[level])));
        }
        let Some((level, from)) = self.splitting else {
            return Ok(false);
        };
        let start = self.edges[level];
        let end = start.saturating_add(LENGTHS[level]);
        let until = self.before(end);
        let mut found = Vec::new();
        let to = look.read(self.clock, from, until, &mut found)?;
        for (wake, _) in found {
            if !planted!(AheadSplitCountsTwice) {
                self.take_off(Place::Bucket(level, start));
            }
            let at = self.shifted(wake.at);
            self.add(Place::Bucket(level - 1, floor(at, LENGTHS[level - 1])));
        }
        self.splitting = Some((level, to));
        if to >= until {
            // What is left is nowhere in the order of wakes.
            let left = self.buckets[level].remove(&start);
            self.is_off |= left.is_some() && !planted!(AheadSplitCountsTwice);
            self.edges[level] = end.min(self.edges[level + 1]);
            self.splitting = None;
        }
        Ok(true)
    }

    /// All buckets, in no order.
    fn list(&self, buckets: &mut Vec<DueBucket>) {
        let mut list = |from: u64, until: u64, count: u64| {
            if count > 0 {
                let (from, until) = (Timestamp::from_micros(from), Timestamp::from_micros(until));
                buckets.push(DueBucket { from, until, count });
            }
        };
        list(0, self.edges[0], self.past);
        list(self.edges[4], u64::MAX, self.later);
        for (level, length) in LENGTHS.into_iter().enumerate() {
            for (&start, &count) in &self.buckets[level] {
                let mut from = start;
                if let Some((split, to)) = self.splitting
                    && split == level
                    && start == self.edges[level]
                {
                    // What was not come by is behind it, perhaps in the same of the shorter buckets.
                    from = floor(self.shifted(to.at), LENGTHS[level - 1]).max(start);
                    if planted!(AheadSplitHidesRest) {
                        from += LENGTHS[level - 1];
                    }
                }
                list(from, start.saturating_add(length), count);
            }
        }
    }
}

impl Ahead {
    /// The counts of a shard, if they are wanted.
    pub(crate) fn new(now: Now, is_on: bool) -> Self {
        Self {
            is_on,
            sides: DueClock::ALL.map(|clock| Side::new(clock, now)),
            has_gap: false,
            now,
            scanned: 0,
        }
    }

    /// Counts anew, from the beginning.
    pub(crate) fn restart(&mut self, now: Now) {
        self.sides = DueClock::ALL.map(|clock| Side::new(clock, now));
    }

    /// Takes in what was committed.
    pub(crate) fn correct(&mut self, moved: &[Moved]) {
        if !self.is_on {
            return;
        }
        for &(was, is) in moved {
            if let Some((clock, wake)) = was {
                let side = &mut self.sides[clock as usize];
                if wake <= side.reached && !planted!(AheadKeepsOldPlace) {
                    side.take_off(side.place(wake));
                }
            }
            if let Some((clock, wake)) = is {
                let side = &mut self.sides[clock as usize];
                if wake <= side.reached || planted!(AheadCountsUnread) {
                    side.add(side.place(wake));
                }
            }
        }
    }

    /// It is now. To be called in each step, before [`look`](Self::look).
    pub(crate) fn advance(&mut self, now: Now) {
        self.now = now;
        if !self.is_on {
            return;
        }
        for side in &mut self.sides {
            let drift = shift(side.clock, now).abs_diff(side.shift);
            if side.is_off || drift > DRIFT_MAX && !planted!(AheadStepIgnored) {
                if side.is_off {
                    tracing::warn!(clock = ?side.clock, "timers are counted anew by when they are due");
                }
                *side = Side::new(side.clock, now);
            }
            side.advance(now.wall.as_micros());
        }
    }

    /// Whether there is something to read.
    pub(crate) fn is_behind(&self, now: Now) -> bool {
        self.wait(now).is_some_and(|wait| wait.is_zero())
    }

    /// How long until there is something to read; `None` if there is nothing as long as nothing changes.
    pub(crate) fn wait(&self, now: Now) -> Option<Duration> {
        if !self.is_on {
            return None;
        }
        let wall = now.wall.as_micros();
        let waits = self.sides.iter().filter_map(|side| {
            if !side.is_counted() || side.is_off {
                return Some(Duration::ZERO);
            }
            side.next_split(wall).map(Duration::from_micros)
        });
        waits.min()
    }

    /// Reads what is to be counted or split next, of `left` entries at most. The store has to hold everything that
    /// was committed so far.
    pub(crate) fn look(
        &mut self,
        store: &dyn Store,
        shard: Shard,
        left: &mut usize,
    ) -> Result<(), StoreError> {
        if !self.is_on {
            return Ok(());
        }
        let has_gap = store.gaps().dues;
        if self.has_gap && !has_gap {
            self.restart(self.now);
        }
        self.has_gap = has_gap;
        let wall = self.now.wall.as_micros();
        let before = *left;
        let mut look = Look::new(store, shard, left);
        for side in &mut self.sides {
            while !side.is_counted() && look.may_go_on() {
                side.count(&mut look)?;
            }
            while side.is_counted() && !side.is_off && look.may_go_on() {
                if !side.split(wall, &mut look)? {
                    break;
                }
                side.advance(wall);
            }
        }
        self.scanned += (before - *left) as u64;
        Ok(())
    }

    /// The counts as of the last step.
    pub(crate) fn counts(&self) -> DueCounts {
        let mut buckets = Vec::new();
        for side in &self.sides {
            side.list(&mut buckets);
        }
        let is_exact = |side: &Side| side.is_counted() && !side.is_off;
        let delays = &self.sides[DueClock::Boot as usize];
        let drift = i128::from(shift(DueClock::Boot, self.now)) - i128::from(delays.shift);
        let drift = i64::try_from(drift).unwrap_or(i64::MAX);
        DueCounts {
            buckets: DueBucket::merged(buckets),
            exact: self.is_on && self.sides.iter().all(is_exact) && !self.has_gap,
            drift_micros: (drift, drift),
        }
    }
}

/// What the wall clock shows more than that clock, in microseconds.
fn shift(clock: DueClock, now: Now) -> i64 {
    let shift = i128::from(now.wall.as_micros()) - i128::from(now.by(clock).as_micros());
    i64::try_from(shift).unwrap_or(if shift > 0 { i64::MAX } else { i64::MIN })
}

fn floor(micros: u64, length: u64) -> u64 {
    micros - micros % length
}
