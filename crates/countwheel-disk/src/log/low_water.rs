//! The low-water mark of the sorted store: up to where, in the order of wakes, there is nothing
//! more to find in it.
//!
//! What was delivered or removed leaves entries in the order of wakes that nobody wants: the
//! sorted store has not heard of it yet, or has not merged it away. Whoever begins at the
//! beginning, as every opening does, would go by all of them. So the log keeps a low-water
//! mark for each shard and clock: a wake up to which the sorted store has nothing but what the log hides.
//!
//! - It **goes on** when somebody has looked: what is hidden stays so until it has been flushed, and has
//!   been replaced then. While something is flushed it goes on to the first wake of that: what is behind
//!   may be in the sorted store now, and was not when somebody looked.
//! - It **goes back** when something is flushed that wakes earlier, before the sorted store has it.
//! - It is **written** in the frame of a commit now and then, and again in each segment. After an
//!   opening it holds as long as the sorted store has taken nothing in since: what was in the
//!   memtable is there again. With it stands one that is no later than what was in the memtable,
//!   either: that one holds whatever was taken in. What was put later stands behind them in the
//!   log, and is in the memtable again.

use super::LogStore;
use super::memtable::Memtable;
use crate::{DueScan, Shard, Sorted, StoreError};
use countwheel_time::Timestamp;

use crate::{DueClock, Wake};

/// So many entries are looked at in one piece, if the first of them is hidden.
const AT_ONCE: usize = 1_024;
/// Once a mark has passed so many entries, it is written.
const NOTED_EVERY: usize = 1_024;
/// Once so many changes may have hidden something, it is worth a look.
pub(super) const LOOK_EVERY: usize = 4_096;

/// The clocks, in the order of their numbers.
const CLOCKS: [DueClock; 2] = [DueClock::Wall, DueClock::Boot];

/// The first wake, by a clock, of what is flushed of a shard.
pub(super) type Earliest = (Shard, DueClock, Wake);

/// The low-water marks of a shard. By clock: a wake up to which, and with which, nothing is to be
/// found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LowWater([Wake; 2]);

impl LowWater {
    /// After what to begin to read.
    pub(super) fn after(self, clock: DueClock, after: Option<Wake>) -> Option<Wake> {
        let mark = Some(self.0[clock as usize]).filter(|&wake| wake > Wake::default());
        mark.max(after)
    }

    fn set(&mut self, clock: DueClock, wake: Wake) {
        self.0[clock as usize] = wake;
    }

    /// Takes what was written when `note` was, if it holds with what was taken in by now.
    pub(super) fn recover(&mut self, note: Note, ingested: u64) {
        if note.ingested.is_none_or(|then| then == ingested) {
            self.set(note.clock, note.wake);
        }
    }

    /// Something is to be found there from now on.
    pub(super) fn go_back(&mut self, clock: DueClock, wake: Wake) {
        let mark = &mut self.0[clock as usize];
        *mark = before(wake).min(*mark);
    }

    /// What there is to write: nothing for a clock whose mark stands at the beginning.
    fn notes(self, ingested: Option<u64>) -> impl Iterator<Item = Note> {
        let marks = CLOCKS.into_iter().zip(self.0);
        let marks = marks.filter(|&(_, wake)| wake > Wake::default());
        marks.map(move |(clock, wake)| Note {
            clock,
            wake,
            ingested,
        })
    }
}

/// Something that was written about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Note {
    pub(super) clock: DueClock,
    pub(super) wake: Wake,
    /// The last segment that the sorted store had taken in, if it holds with that one only.
    pub(super) ingested: Option<u64>,
}

impl Memtable {
    /// What to write to the segment `number`, if it is time to. `ingested` is the last segment
    /// that was taken in.
    pub(super) fn notes(&self, number: u64, ingested: u64) -> Vec<Note> {
        if self.unnoted < NOTED_EVERY && self.noted_in == number {
            return Vec::new();
        }
        let mut always = self.low_water;
        for clock in CLOCKS {
            if let Some((first, _)) = self.due_after(clock, None).next() {
                always.go_back(clock, first);
            }
        }
        // The one that says less comes first, so that the other counts if both hold.
        let mut notes: Vec<Note> = always.notes(None).collect();
        notes.extend(self.low_water.notes(Some(ingested)));
        notes
    }
}

/// The last wake before this one.
fn before(wake: Wake) -> Wake {
    let Wake { at, mut revision } = wake;
    if revision.0 > 0 {
        revision.0 -= 1;
        return Wake { at, revision };
    }
    let at = at.as_micros().checked_sub(1);
    at.map_or(Wake::default(), |at| Wake {
        at: Timestamp::from_micros(at),
        ..Wake::MAX
    })
}

impl<B: Sorted> LogStore<B> {
    /// Something is about to be flushed, until [`flushes_no_more`](Self::flushes_no_more).
    pub(super) fn flushes(&self, earliest: Vec<Earliest>) {
        let mut state = self.state_mut();
        state.flushes += 1;
        state.is_flushing = true;
        for &(shard, clock, wake) in &earliest {
            if let Some(memtable) = state.shards.get_mut(&shard) {
                memtable.low_water.go_back(clock, wake);
            }
        }
        state.earliest = earliest;
    }

    pub(super) fn flushes_no_more(&self) {
        self.state_mut().is_flushing = false;
    }

    /// Advances the low-water marks past some of what the sorted store has and the log hides. True
    /// if there may be more.
    pub(super) fn advance_low_water(&self) -> Result<bool, StoreError> {
        let shards: Vec<Shard> = self.state().shards.keys().copied().collect();
        let mut more = false;
        for shard in shards {
            for clock in CLOCKS {
                more |=
                    self.advance_by(shard, clock, 1)? && self.advance_by(shard, clock, AT_ONCE)?;
            }
        }
        Ok(more)
    }

    /// True if all that the page has were hidden, there is another page, and what is flushed does not
    /// stand before it: then there is no more to advance until it has been flushed.
    fn advance_by(&self, shard: Shard, clock: DueClock, limit: usize) -> Result<bool, StoreError> {
        let state = self.state();
        let (flushes, was_flushing) = (state.flushes, state.is_flushing);
        let Some(memtable) = state.shards.get(&shard) else {
            return Ok(false);
        };
        let after = memtable.low_water.after(clock, None);
        // However long the sorted store takes, no commit waits for it.
        drop(state);
        let scan = DueScan {
            after,
            limit,
            scan_limit: DueScan::SCAN_LIMIT,
            ..DueScan::all(clock)
        };
        let page = self.base.due(shard, &scan)?;
        let entries = page.entries;
        if self.base.gaps().dues {
            // What the read left out is found again once the index was made anew.
            return Ok(false);
        }
        let mut state = self.state_mut();
        let flushed = state.flushes - flushes + u64::from(was_flushing);
        if flushed > 1 {
            // Nobody knows any more what the flushes before the last one took.
            return Ok(false);
        }
        let is_this = |(s, c, _): &&Earliest| flushed > 0 && (*s, *c) == (shard, clock);
        let bound = state.earliest.iter().find(is_this).map(|e| before(e.2));
        let Some(memtable) = state.shards.get_mut(&shard) else {
            return Ok(false);
        };
        let hides = |memtable: &Memtable, name| memtable.get(name).is_some();
        let seen = entries
            .iter()
            .position(|entry| !hides(memtable, &entry.name))
            .unwrap_or(entries.len());
        let mark = match entries.get(seen) {
            Some(first) => Some(before(first.wake)),
            // What was removed in between is left behind as well.
            None => page.next.or(entries.last().map(|last| last.wake)),
        };
        let bounded = mark.map(|mark| bound.map_or(mark, |bound| mark.min(bound)));
        if let Some(bounded) = bounded {
            memtable.low_water.set(clock, bounded);
        }
        memtable.unnoted += seen;
        let is_more = seen == entries.len() && page.next.is_some();
        Ok(is_more && bounded == mark)
    }
}
