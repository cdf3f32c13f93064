//! All wheels of a timer, as its host sees them.

use std::sync::Arc;

use super::hub::Hub;
use super::shard::{Counts, Shard};
use crate::sync::{Ordering, fence};
use crate::{Fired, Instant, ShardLoad, Unfired};

/// All shards of a timer, as the host and the stop see them.
pub(crate) struct Shards<T> {
    hub: Arc<Hub>,
    shards: Box<[Arc<Shard<T>>]>,
}

impl<T> Shards<T> {
    /// `shards` of them; at least one.
    pub(crate) fn new(hub: Hub, shards: usize) -> Self {
        let hub = Arc::new(hub);
        let shard = |_| Arc::new(Shard::new(Arc::clone(&hub)));
        let shards = (0..shards.max(1)).map(shard).collect();
        Self { hub, shards }
    }

    #[inline]
    pub(crate) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// The shard of a thread that has this number.
    #[inline]
    pub(crate) fn of_thread(&self, number: usize) -> &Arc<Shard<T>> {
        &self.shards[number % self.shards.len()]
    }

    /// Takes out what is due at `now`, `limit` entries at most, in order of deadline (in
    /// ticks) and, of those that one thread scheduled, as scheduled.
    ///
    /// No lock is held for long. False if that is why it ends here: more may be due, and who
    /// goes on at once [lets callers in](Self::let_in) first.
    pub(crate) fn take_due(&self, now: Instant, limit: usize, due: &mut Vec<Fired<T>>) -> bool {
        let limit = due.len() + limit;
        while due.len() < limit {
            let (first, second) = self.two_earliest();
            let (bound, shard) = first;
            if bound > now.as_nanos() {
                return true;
            }
            if bound == u64::MAX {
                // Time has ended, for those who asked for that: a bound tells no more.
                let take = |shard: &Arc<Shard<T>>| shard.take_due(now, now, limit - due.len(), due);
                return self.shards.iter().all(take);
            }
            // As far as this shard is ahead of all others.
            let until = now.min(Instant::from_nanos(second));
            if !shard.take_due(now, until, limit - due.len(), due) {
                return false;
            }
        }
        true
    }

    /// Lets those in who wait for a lock that the host has held.
    pub(crate) fn let_in(&self) {
        self.shards.iter().for_each(|shard| shard.let_in());
    }

    /// The lowest bound with its shard, and the second lowest.
    fn two_earliest(&self) -> ((u64, &Shard<T>), u64) {
        let mut first = (u64::MAX, &*self.shards[0]);
        let mut second = u64::MAX;
        for shard in &self.shards {
            let bound = shard.bound.load(Ordering::Relaxed);
            if bound < first.0 {
                second = first.0;
                first = (bound, shard);
            } else {
                second = second.min(bound);
            }
        }
        (first, second)
    }

    /// When there is next something to do: `None` if nothing is pending.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        loop {
            let ((bound, shard), _) = self.two_earliest();
            if shard.refine_bound() <= bound {
                let nothing = bound == u64::MAX && self.counts().pending == 0;
                return (!nothing).then_some(Instant::from_nanos(bound));
            }
        }
    }

    /// Announces the sleep of the host: until when it may sleep, or `None` if it must not,
    /// because something is due at `now`. [`Instant::MAX`] is for ever.
    pub(crate) fn fall_asleep(&self, now: Instant, no_later_than: Instant) -> Option<Instant> {
        loop {
            let ((bound, shard), _) = self.two_earliest();
            // At the end of time, what is for ever must not be taken for what is due.
            if bound.min(no_later_than.as_nanos()) <= now.as_nanos().min(u64::MAX - 1) {
                return None;
            }
            if shard.refine_bound() > bound {
                continue;
            }
            let until = bound.min(no_later_than.as_nanos());
            self.hub.asleep_until.store(until, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let second_look = self.two_earliest().0.0;
            if second_look >= bound {
                return Some(Instant::from_nanos(until));
            }
            self.hub.host_is_awake();
        }
    }

    /// Takes out everything, as fired or as returned, in the order in which it would have
    /// fired. The timer is closed.
    pub(crate) fn drain(&self, fired: bool) -> Vec<Unfired<T>> {
        let shards = self.shards.iter();
        let mut unfired: Vec<_> = shards.flat_map(|shard| shard.drain(fired)).collect();
        unfired.sort_by_key(|one| self.hub.resolution.deadline(one.deadline));
        unfired
    }

    /// Takes out up to `limit` entries, in no order, as returned; nothing if nothing is left. The
    /// timer is closed. If it is dropped as well, nobody can schedule any more, and what has no
    /// handles needs no note.
    pub(crate) fn take_any(&self, limit: usize, is_dropped: bool) -> Vec<Unfired<T>> {
        let pieces = self.shards.iter().map(|shard| {
            let has_handles = Arc::strong_count(shard) > 1;
            shard.take_any(limit, has_handles || !is_dropped)
        });
        let mut pieces = pieces.filter(|piece| !piece.is_empty());
        pieces.next().unwrap_or_default()
    }

    /// What has become of all entries, at one moment: an entry that is cancelled on one shard to
    /// make room for another elsewhere is never counted together with that one.
    pub(crate) fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        // All locks at a time, always in this order; nobody else holds two.
        let looks: Vec<_> = self.shards.iter().map(|shard| shard.look()).collect();
        for look in &looks {
            let counts = look.counts();
            sum.added += counts.added;
            sum.fired += counts.fired;
            sum.cancelled += counts.cancelled;
            sum.returned += counts.returned;
            sum.pending += counts.pending;
            sum.refused += counts.refused;
            sum.moved += counts.moved;
        }
        sum
    }

    /// The earliest bound, without a lock: nothing is due before.
    pub(crate) fn bound(&self) -> Instant {
        Instant::from_nanos(self.two_earliest().0.0)
    }

    /// How full each shard is that has been used.
    pub(crate) fn load(&self) -> Vec<ShardLoad> {
        self.shards
            .iter()
            .filter_map(|shard| shard.load())
            .collect()
    }
}
