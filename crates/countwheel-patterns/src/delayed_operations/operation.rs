//! One operation, from its first try to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::results::DelayedOperationsStats;
use super::watch::WatchLists;
use crate::concurrent::Claim;
use countwheel::building::returns;
use countwheel::{Timeout, Timer};

/// Something that waits until it can be completed, or until its time is up. See
/// [`DelayedOperations`](crate::broker::DelayedOperations).
///
/// No lock is held while its methods run, so they may use the
/// [`DelayedOperations`](crate::broker::DelayedOperations) themselves. A method that panics
/// is counted in [`DelayedOperationsStats::panicked`] and goes no further: a try then was in
/// vain.
pub trait DelayedOperation: Send + Sync + 'static {
    /// Whether it can be completed now. May be called often, from any thread, but never by two
    /// at a time; who comes meanwhile makes the one who is here call again. Should be short,
    /// and change nothing that another try would miss.
    ///
    /// If time is up during a call, the operation expires at once, and what the call returns
    /// is of no consequence.
    ///
    /// It may check other keys. If it checks a key of its own, it is called once more, so it
    /// must not do that each time it returns false.
    fn try_complete(&self) -> bool;

    /// Completes it. Called exactly once, whether it could be completed or its time was up;
    /// never if it was taken back.
    fn on_complete(&self);

    /// Called after [`on_complete`](Self::on_complete) if its time was up.
    fn on_expire(&self) {}
}

/// What an operation is from its submission to its end.
pub(super) struct WatchedOperation<K, O: ?Sized> {
    pub(super) number: u64,
    /// With their hashes.
    pub(super) keys: Box<[(u64, K)]>,
    pub(super) claim: Claim<Timeout>,
    /// Whether it has a place among those that wait.
    pub(super) has_room: AtomicBool,
    pub(super) operation: Arc<O>,
}

impl<K, O: ?Sized> WatchedOperation<K, O> {
    /// The hashes that it is listed under: its number, if it has no key, so that it is found
    /// by those who look for all.
    pub(super) fn hashes(&self) -> impl Iterator<Item = u64> + '_ {
        let of_none = self.keys.is_empty().then_some(self.number);
        self.keys.iter().map(|&(hash, _)| hash).chain(of_none)
    }
}

impl<K, O: ?Sized> Drop for WatchedOperation<K, O> {
    fn drop(&mut self) {
        // Nobody waits for it any more: its task need not stay in the timer until its time.
        if let Some(timeout) = self.claim.disarm() {
            timeout.cancel();
        }
    }
}

/// How an operation ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Completed,
    Expired,
    Cancelled,
    Returned,
    Refused,
}

/// What all handles share.
pub(super) struct Shared<K, O: ?Sized> {
    pub(super) timer: Timer,
    pub(super) lists: WatchLists<WatchedOperation<K, O>>,
    pub(super) closed: AtomicBool,
    numbers: AtomicU64,
    /// How many more may wait.
    room: AtomicUsize,
    books: OperationBooks,
}

#[derive(Default)]
struct OperationBooks {
    submitted: AtomicU64,
    /// By [`End`].
    ends: [AtomicU64; 5],
    tries: AtomicU64,
    panicked: AtomicU64,
}

impl<K, O: DelayedOperation + ?Sized> Shared<K, O> {
    pub(super) fn new(timer: Timer, room: usize, parts: usize) -> Self {
        Self {
            timer,
            lists: WatchLists::new(parts),
            closed: AtomicBool::new(false),
            numbers: AtomicU64::new(0),
            room: AtomicUsize::new(room),
            books: OperationBooks::default(),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) || self.timer.is_stopped()
    }

    pub(super) fn submitted(
        &self,
        operation: Arc<O>,
        keys: Box<[(u64, K)]>,
    ) -> Arc<WatchedOperation<K, O>> {
        self.books.submitted.fetch_add(1, Ordering::Relaxed);
        Arc::new(WatchedOperation {
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            keys,
            claim: Claim::new(),
            has_room: AtomicBool::new(false),
            operation,
        })
    }

    /// Takes a place for one that is on no list yet. False if there is none.
    pub(super) fn take_room(&self, watched: &WatchedOperation<K, O>) -> bool {
        let take = |room: usize| room.checked_sub(1);
        let taken = self
            .room
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok();
        // Others see it as they see the list.
        watched.has_room.store(taken, Ordering::Relaxed);
        taken
    }

    /// Lists it under all its keys, or under none if it is decided meanwhile.
    pub(super) fn list(&self, watched: &Arc<WatchedOperation<K, O>>) {
        for hash in watched.hashes() {
            self.lists.add(hash, watched.number, watched);
        }
        // Who decided may have taken it off the lists before it was on them.
        if watched.claim.is_decided() {
            self.unlist(watched);
        }
    }

    fn unlist(&self, watched: &WatchedOperation<K, O>) {
        for hash in watched.hashes() {
            self.lists.remove(hash, watched.number);
        }
    }

    /// Tries it, unless somebody else does, who then tries once more. True if this has
    /// completed it.
    pub(super) fn check(&self, watched: &WatchedOperation<K, O>) -> bool {
        if !watched.claim.start() {
            return false;
        }
        loop {
            let mut can = false;
            self.books.tries.fetch_add(1, Ordering::Relaxed);
            self.run(|| can = watched.operation.try_complete());
            if can {
                return self.end(watched, End::Completed);
            }
            if !watched.claim.rest() {
                return false;
            }
        }
    }

    /// Ends it, unless somebody has: the first who comes here, and nobody else.
    pub(super) fn end(&self, watched: &WatchedOperation<K, O>, end: End) -> bool {
        if !watched.claim.decide() {
            return false;
        }
        if let Some(timeout) = watched.claim.disarm() {
            timeout.cancel();
        }
        self.unlist(watched);
        if watched.has_room.load(Ordering::Relaxed) {
            self.room.fetch_add(1, Ordering::Relaxed);
        }
        self.books.ends[end as usize].fetch_add(1, Ordering::Release);
        if matches!(end, End::Completed | End::Expired) {
            self.run(|| watched.operation.on_complete());
        }
        if end == End::Expired {
            self.run(|| watched.operation.on_expire());
        }
        true
    }

    fn run(&self, foreign: impl FnOnce()) {
        if !returns(foreign) {
            self.books.panicked.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes one that was refused before it was submitted.
    pub(super) fn refuse(&self) {
        self.books.submitted.fetch_add(1, Ordering::Relaxed);
        self.books.ends[End::Refused as usize].fetch_add(1, Ordering::Release);
    }

    pub(super) fn stats(&self) -> DelayedOperationsStats {
        let books = &self.books;
        // The ends first: so never more end than were submitted.
        let ended = |end: End| books.ends[end as usize].load(Ordering::Acquire);
        let (completed, expired) = (ended(End::Completed), ended(End::Expired));
        let (cancelled, returned) = (ended(End::Cancelled), ended(End::Returned));
        let refused = ended(End::Refused);
        let submitted = books.submitted.load(Ordering::Acquire) - refused;
        DelayedOperationsStats {
            submitted,
            completed,
            expired,
            cancelled,
            returned,
            pending: submitted - completed - expired - cancelled - returned,
            refused,
            tries: books.tries.load(Ordering::Relaxed),
            panicked: books.panicked.load(Ordering::Relaxed),
        }
    }
}
