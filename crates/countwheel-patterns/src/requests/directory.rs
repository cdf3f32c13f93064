//! The requests by the callers' own numbers, and the recent time-outs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard};

use super::{OwnId, RequestId};
use countwheel::Instant;
use countwheel::building::give_memory_back;
use countwheel_time::locks::lock;

/// The requests that are known by numbers of their callers.
///
/// The order of locks: a part of this first, then the shard of the request. Whoever ends a
/// request has given up the shard's lock when he takes the number out.
pub(super) struct Directory {
    hasher: RandomState,
    parts: Box<[Mutex<Part>]>,
}

#[derive(Default)]
struct Part {
    ids: HashMap<u64, RequestId>,
    recent: Recent,
}

impl Directory {
    pub(super) fn new(parts: usize) -> Self {
        Self {
            hasher: RandomState::new(),
            parts: (0..parts).map(|_| Mutex::default()).collect(),
        }
    }

    /// Enters what `file` makes, or nothing if it fails. `None` if the number is taken.
    pub(super) fn enter<R, E>(
        &self,
        own: OwnId,
        file: impl FnOnce() -> Result<(RequestId, R), E>,
    ) -> Option<Result<(RequestId, R), E>> {
        let mut part = self.part(own);
        let Entry::Vacant(vacant) = part.ids.entry(own.0) else {
            return None;
        };
        let filed = file();
        if let Ok((id, _)) = &filed {
            vacant.insert(*id);
        }
        Some(filed)
    }

    pub(super) fn find(&self, own: OwnId) -> Option<RequestId> {
        self.part(own).ids.get(&own.0).copied()
    }

    /// The request has ended, at its deadline if that is given.
    pub(super) fn remove(&self, own: OwnId, timed_out: Option<Instant>) {
        let mut part = self.part(own);
        part.ids.remove(&own.0);
        match timed_out {
            Some(deadline) => part.recent.note(own.0, deadline),
            None => part.recent.forget(own.0),
        }
        give_memory_back(&mut part.ids);
    }

    /// The deadline at which the last request of this number timed out, if that is known.
    pub(super) fn timed_out_at(&self, own: OwnId) -> Option<Instant> {
        self.part(own).recent.find(own.0)
    }

    fn part(&self, own: OwnId) -> MutexGuard<'_, Part> {
        let hash = self.hasher.hash_one(own.0);
        let part = hash % self.parts.len() as u64;
        lock(&self.parts[usize::try_from(part).unwrap_or(0)])
    }
}

/// The deadlines of the last that timed out, as far as they do not push out each other: to say
/// how late an answer is. Of fixed size, and none before the first.
#[derive(Default)]
pub(super) struct Recent {
    kept: Box<[(u64, Instant)]>,
}

impl Recent {
    const SIZE: usize = 256;

    pub(super) fn note(&mut self, number: u64, deadline: Instant) {
        if self.kept.is_empty() {
            self.kept = vec![(0, Instant::ZERO); Self::SIZE].into_boxed_slice();
        }
        self.kept[Self::place(number)] = (number, deadline);
    }

    /// What has this number now did not time out.
    fn forget(&mut self, number: u64) {
        if let Some(kept) = self.kept.get_mut(Self::place(number))
            && kept.0 == number
        {
            *kept = (0, Instant::ZERO);
        }
    }

    pub(super) fn find(&self, number: u64) -> Option<Instant> {
        let &(kept, deadline) = self.kept.get(Self::place(number))?;
        // What was never filled is not what timed out, but zero is a number like any other.
        (kept == number && (kept, deadline) != (0, Instant::ZERO)).then_some(deadline)
    }

    /// Knuth's multiplicative hashing: the upper bits of a product with the golden ratio.
    fn place(number: u64) -> usize {
        let product = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from(product >> (u64::BITS - Self::SIZE.ilog2())).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_timed_out_last_is_remembered_and_no_more_than_fits() {
        let mut recent = Recent::default();
        assert_eq!(recent.find(0), None);
        for number in 0..10_000 {
            recent.note(number, Instant::from_nanos(number + 1));
            assert_eq!(recent.find(number), Some(Instant::from_nanos(number + 1)));
        }
        let known = (0..10_000).filter(|&number| recent.find(number).is_some());
        let known = known.count();
        assert!(known > Recent::SIZE / 2 && known <= Recent::SIZE, "{known}");
    }
}
