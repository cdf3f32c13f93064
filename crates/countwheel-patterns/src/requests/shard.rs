//! Some of the requests, behind one lock, which decides how each of them ends.
//!
//! The thread that takes a request out of the wheel under the lock ends it: for the answer, the
//! deadline, a cancel, its channel or a stop. Then the thread gives the lock up and tells the
//! caller. So no waker, no handler and no destructor runs under the lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use super::books::{ChannelNumber, DueRequest, End, RequestBooks, RequestEntry, Taken};
use super::directory::Directory;
use super::handler::{Errand, Start};
use super::response::{Call, Response};
use super::{Late, OwnId, RegisterError, RequestError, RequestId, RequestStats};
use crate::Limit;
use crate::concurrent::Outcome;
use countwheel::building::returns;
use countwheel::building::run_soon;
use countwheel::building::{Bell, Rung};
use countwheel::{Instant, ScheduleError, Timer, TimerKey};
use countwheel_time::locks;

/// How many entries are taken out under one hold of the lock.
const SLICE: usize = 256;

/// What the shards of one table have in common.
pub(super) struct RequestHub {
    pub(super) directory: Directory,
    /// How many more requests may be in flight, if there is a limit.
    room: Option<AtomicU64>,
    handler_patience: Duration,
    late: AtomicU64,
    refused: AtomicU64,
    handled_inline: AtomicU64,
}

impl RequestHub {
    pub(super) fn new(parts: usize, room: Option<u64>, handler_patience: Duration) -> Self {
        Self {
            directory: Directory::new(parts),
            room: room.map(AtomicU64::new),
            handler_patience,
            late: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            handled_inline: AtomicU64::new(0),
        }
    }

    fn take_room(&self) -> bool {
        let Some(room) = &self.room else { return true };
        let take = |left: u64| left.checked_sub(1);
        room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }

    fn give_room(&self) {
        if let Some(room) = &self.room {
            room.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn late<V>(&self, value: V, by: Option<Duration>) -> Late<V> {
        self.late.fetch_add(1, Ordering::Relaxed);
        Late { value, by }
    }

    pub(super) fn add_to(&self, stats: &mut RequestStats) {
        stats.late = self.late.load(Ordering::Relaxed);
        stats.refused = self.refused.load(Ordering::Relaxed);
        stats.handled_inline = self.handled_inline.load(Ordering::Relaxed);
    }
}

/// Some of the requests. On cache lines of its own: another shard's lock is no business of the
/// processor that holds this one.
#[repr(align(128))]
pub(super) struct RequestShard<T> {
    hub: Arc<RequestHub>,
    number: u64,
    bell: Bell,
    books: Mutex<RequestBooks<T>>,
}

impl<T: Send + 'static> RequestShard<T> {
    pub(super) fn new(timer: &Timer, hub: &Arc<RequestHub>, number: u64) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let bell = Bell::new(timer.clone(), weak.clone());
            Self {
                hub: Arc::clone(hub),
                number,
                books: Mutex::new(RequestBooks::new(bell.driver())),
                bell,
            }
        })
    }

    /// Takes a request on.
    #[inline]
    pub(super) fn register(
        self: &Arc<Self>,
        channel: Option<ChannelNumber>,
        own: Option<OwnId>,
        limit: Limit,
    ) -> Result<Response<T>, RegisterError> {
        let registered = self.admit(channel, own, limit);
        if registered.is_err() {
            self.hub.refused.fetch_add(1, Ordering::Relaxed);
        }
        registered
    }

    #[inline]
    fn admit(
        self: &Arc<Self>,
        channel: Option<ChannelNumber>,
        own: Option<OwnId>,
        limit: Limit,
    ) -> Result<Response<T>, RegisterError> {
        if self.bell.is_stopped() {
            return Err(RegisterError::Stopped);
        }
        let now = self.bell.now();
        let deadline = limit.deadline(now);
        let call = Arc::new(Call {
            answer: Outcome::new(),
            registered_at: now,
            own,
        });
        if !self.hub.take_room() {
            return Err(RegisterError::Full);
        }
        let file = || self.file((now, deadline), Arc::clone(&call), channel);
        let filed = match own {
            None => file(),
            Some(own) => {
                (self.hub.directory.enter(own, file)).unwrap_or(Err(RegisterError::Duplicate(own)))
            }
        };
        let (id, due) = filed.inspect_err(|_| self.hub.give_room())?;
        if let Err(error) = self.bell.ring_by(due)
            && let Some(taken) = self.with(|books| books.take_back(id.key()?))
        {
            self.let_go(&taken, None);
            tell_idle(taken.waiting);
            return Err(match error {
                ScheduleError::NoThread { source, .. } => RegisterError::NoThread(source),
                _ => RegisterError::Stopped,
            });
        }
        Ok(Response::new(id, deadline, call, Arc::downgrade(self)))
    }

    #[inline]
    fn file(
        &self,
        times: (Instant, Instant),
        call: Arc<Call<T>>,
        channel: Option<ChannelNumber>,
    ) -> Result<(RequestId, Instant), RegisterError> {
        let mut books = self.lock();
        if books.is_closed {
            return Err(RegisterError::Stopped);
        }
        if channel.is_some_and(|channel| books.is_channel_closed(channel)) {
            return Err(RegisterError::ChannelClosed);
        }
        let filed = books.file(times, call, self.number, channel);
        let id = filed.ok_or(RegisterError::Full)?;
        Ok((id, books.driver.due(times.1)))
    }

    /// Ends a request with `value`, unless it has ended.
    #[inline]
    pub(super) fn complete(&self, id: RequestId, value: T) -> Result<(), Late<T>> {
        match self.take(id, End::Completed) {
            Some(taken) => {
                self.end(taken, Ok(value));
                Ok(())
            }
            None => Err(self.hub.late(value, self.late_by(id))),
        }
    }

    pub(super) fn fail<E>(&self, id: RequestId, error: E) -> Result<(), Late<E>>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match self.take(id, End::Failed) {
            Some(taken) => {
                // Foreign code: whatever it does, the request ends.
                let mut cause = None;
                returns(|| cause = Some(error.into()));
                let cause = cause.unwrap_or_else(|| "the error panicked".into());
                self.end(taken, Err(RequestError::Failed(cause)));
                Ok(())
            }
            None => Err(self.hub.late(error, self.late_by(id))),
        }
    }

    pub(super) fn cancel(&self, id: RequestId) -> bool {
        let taken = self.take(id, End::Cancelled);
        taken
            .map(|taken| self.end(taken, Err(RequestError::Cancelled)))
            .is_some()
    }

    pub(super) fn mark_sent(&self, id: RequestId) -> bool {
        // Read first: who waits for the lock has sent the request before.
        let now = self.bell.now();
        let key = id.key();
        key.is_some_and(|key| self.with(|books| books.set_sent(now, key)))
    }

    /// How long ago a request timed out, if that is known.
    fn late_by(&self, id: RequestId) -> Option<Duration> {
        let deadline = self.with(|books| books.recent.find(id.as_u64()))?;
        Some(self.bell.now().saturating_since(deadline))
    }

    /// How long ago a request of this number timed out, if that is known.
    pub(super) fn own_late_by(&self, own: OwnId) -> Option<Duration> {
        let deadline = self.hub.directory.timed_out_at(own)?;
        Some(self.bell.now().saturating_since(deadline))
    }

    #[inline]
    fn take(&self, id: RequestId, end: End) -> Option<Taken<T>> {
        let key = id.key()?;
        self.with(|books| books.take(key, end))
    }

    /// Before the caller learns of the end: he may take the room and the number again.
    #[inline]
    fn let_go(&self, taken: &Taken<T>, timed_out: Option<Instant>) {
        if let Some(own) = taken.call.own {
            self.hub.directory.remove(own, timed_out);
        }
        self.hub.give_room();
    }

    #[inline]
    fn end(&self, taken: Taken<T>, result: Result<T, RequestError>) {
        self.let_go(&taken, None);
        Self::tell(taken, result);
    }

    /// Tells the caller. A waker that panics keeps nobody else from being told.
    #[inline]
    fn tell(taken: Taken<T>, result: Result<T, RequestError>) {
        let Taken { call, waiting, .. } = taken;
        returns(move || drop(call.answer.settle(result)));
        tell_idle(waiting);
    }

    /// Acts on what was taken out. Callers first, since handlers may take their time.
    fn act_on(&self, due: DueRequest<T>, now: Instant) {
        for (taken, deadline) in due.timed_out {
            self.let_go(&taken, Some(deadline));
            let error = taken.timed_out(now);
            Self::tell(taken, Err(error));
        }
        for taken in due.closed {
            self.end(taken, Err(RequestError::ChannelClosed));
        }
        for taken in due.stopped {
            self.end(taken, Err(RequestError::Stopped));
        }
        tell_idle(due.waiting);
        for start in due.handlers {
            if start.run_here() {
                self.count_inline();
            }
        }
    }

    /// Takes nothing on any more, and takes everything out: for [`end_all`](Self::end_all).
    pub(super) fn close(&self) -> DueRequest<T> {
        let due = self.with(RequestBooks::close);
        self.bell.silence();
        due
    }

    /// Ends what was taken out.
    pub(super) fn end_all(&self, due: DueRequest<T>) {
        self.act_on(due, self.bell.now());
    }

    pub(super) fn is_closed(&self) -> bool {
        self.with(|books| books.is_closed)
    }

    pub(super) fn stats(&self) -> RequestStats {
        let stats = self.with(|books| books.stats);
        RequestStats {
            in_flight: stats.registered - stats.ended(),
            ..stats
        }
    }

    /// Runs a handler on the executor, or on the host if the executor does not begin it in time.
    pub(super) fn execute(self: &Arc<Self>, start: Arc<Start>) {
        let Some(fallback) = self.file_handler(&start) else {
            self.count_inline();
            start.run_here();
            return;
        };
        let errand = Errand::new(self, fallback, start);
        // What is refused is dropped, and then runs here.
        let _ = run_soon(self.bell.timer(), move || errand.run());
    }

    fn file_handler(&self, start: &Arc<Start>) -> Option<TimerKey> {
        let now = self.bell.now();
        let deadline = now + self.hub.handler_patience;
        let (key, due) = self.with(|books| {
            let entry = RequestEntry::Handler(Arc::clone(start));
            let driver = &mut books.driver;
            (!books.is_closed)
                .then(|| (driver.schedule(now, deadline, entry), driver.due(deadline)))
        })?;
        if self.bell.ring_by(due).is_err() {
            self.forget_handler(key);
            return None;
        }
        Some(key)
    }

    /// A handler has begun elsewhere.
    pub(super) fn forget_handler(&self, key: TimerKey) {
        let begun = self.with(|books| books.driver.cancel(key));
        drop(begun);
    }

    pub(super) fn count_inline(&self) {
        self.hub.handled_inline.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn timer(&self) -> &Timer {
        self.bell.timer()
    }

    pub(super) fn with<R>(&self, look: impl FnOnce(&mut RequestBooks<T>) -> R) -> R {
        look(&mut self.lock())
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, RequestBooks<T>> {
        // Nothing foreign runs under the lock, so what a panic left behind is whole.
        locks::lock(&self.books)
    }
}

/// The ends of channels.
impl<T: Send + 'static> RequestShard<T> {
    /// Refuses requests on the channel, and ends those in flight after `grace`.
    pub(super) fn close_channel(
        &self,
        channel: ChannelNumber,
        grace: Duration,
        waiting: &Arc<Outcome<()>>,
    ) {
        let now = self.bell.now();
        let end = now + grace;
        let (is_used, due) = self.with(|books| {
            let is_used = books.close_channel(channel, waiting);
            if is_used && !grace.is_zero() {
                books.set_grace(channel, now, end);
            }
            (is_used, books.driver.due(end))
        });
        if !is_used {
            tell_idle([Arc::clone(waiting)]);
        } else if grace.is_zero() || self.bell.ring_by(due).is_err() {
            self.end_channel(channel);
        }
    }

    /// Ends what is in flight on the channel.
    fn end_channel(&self, channel: ChannelNumber) {
        loop {
            let taken = self.with(|books| books.take_of_channel(channel, SLICE));
            if taken.is_empty() {
                return;
            }
            for taken in taken {
                self.end(taken, Err(RequestError::ChannelClosed));
            }
        }
    }
}

fn tell_idle(waiting: impl IntoIterator<Item = Arc<Outcome<()>>>) {
    for waiting in waiting {
        returns(move || waiting.settle(()).unwrap_or_default());
    }
}

impl<T: Send + 'static> Rung for RequestShard<T> {
    fn bell(&self) -> &Bell {
        &self.bell
    }

    fn ring(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let is_stopped = self.bell.is_stopped();
        loop {
            let due = self.with(|books| books.take_due(now, self.number, SLICE));
            let is_slice = due.is_full(SLICE);
            self.act_on(due, now);
            if !is_stopped {
                // Only now: who was told may have stopped everything.
                return self.with(|books| match books.driver.next_wake() {
                    Some(_) if is_slice => Some(now),
                    next => next,
                });
            }
            if !is_slice {
                self.end_all(self.close());
                return None;
            }
        }
    }
}
