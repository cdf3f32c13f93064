//! The state of one shard: its wheel, and the lists of its channels, which run through it.

use std::sync::Arc;

use super::directory::Recent;
use super::handler::Start;
use super::response::Call;
use super::{RequestError, RequestId, RequestStats};
use crate::concurrent::Outcome;
use crate::sync::MOVES;
use countwheel::{Driver, Fired, Instant, TimerKey};

/// How a request ends, for the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Completed,
    Failed,
    TimedOut,
    Cancelled,
    ChannelClosed,
    Stopped,
}

/// What has a deadline.
pub(super) enum RequestEntry<T> {
    Flight(Flight<T>),
    /// The grace of a channel that closes.
    Grace(ChannelNumber),
    /// A handler that the executor ought to have begun by then.
    Handler(Arc<Start>),
}

/// A request in flight. Of what it is about, nothing is here: neither the question nor, later,
/// the answer.
pub(super) struct Flight<T> {
    pub(super) call: Arc<Call<T>>,
    is_sent: bool,
    channel: Option<ChannelNumber>,
    /// Its neighbours on the list of its channel.
    before: Option<TimerKey>,
    after: Option<TimerKey>,
}

/// Where a shard keeps what it knows of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ChannelNumber(usize);

#[derive(Default)]
struct ChannelState {
    /// Whether somebody holds the channel: if not, and nothing is in flight, its place is free.
    is_held: bool,
    is_closed: bool,
    first: Option<TimerKey>,
    in_flight: u64,
    grace: Option<(TimerKey, Instant)>,
    /// Who waits until nothing is in flight.
    waiting: Vec<Arc<Outcome<()>>>,
}

/// A request that has left: whoever holds this tells the caller, without a lock.
pub(super) struct Taken<T> {
    pub(super) call: Arc<Call<T>>,
    pub(super) is_sent: bool,
    /// Who waited for the last request of the channel to end, if this was it.
    pub(super) waiting: Vec<Arc<Outcome<()>>>,
}

pub(super) struct RequestBooks<T> {
    pub(super) driver: Driver<RequestEntry<T>>,
    pub(super) is_closed: bool,
    pub(super) recent: Recent,
    pub(super) stats: RequestStats,
    channels: Vec<ChannelState>,
    free_channels: Vec<usize>,
}

impl<T> RequestBooks<T> {
    pub(super) fn new(driver: Driver<RequestEntry<T>>) -> Self {
        Self {
            driver,
            is_closed: false,
            recent: Recent::default(),
            stats: RequestStats::default(),
            channels: Vec::new(),
            free_channels: Vec::new(),
        }
    }

    /// Files a request; `None` if the wheel has more entries than an id can tell apart.
    #[inline]
    pub(super) fn file(
        &mut self,
        (now, deadline): (Instant, Instant),
        call: Arc<Call<T>>,
        shard: u64,
        channel: Option<ChannelNumber>,
    ) -> Option<RequestId> {
        let after = channel.and_then(|channel| self.channels[channel.0].first);
        let flight = Flight {
            call,
            is_sent: false,
            channel,
            before: None,
            after,
        };
        let key = self
            .driver
            .schedule(now, deadline, RequestEntry::Flight(flight));
        let Some(id) = RequestId::new(shard, key) else {
            // Its caller holds the call as well: nothing is dropped here.
            self.driver.cancel(key);
            return None;
        };
        if let Some(after) = after.and_then(|key| self.flight(key)) {
            after.before = Some(key);
        }
        if let Some(channel) = channel {
            let state = &mut self.channels[channel.0];
            state.first = Some(key);
            state.in_flight += 1;
        }
        self.stats.registered += 1;
        Some(id)
    }

    pub(super) fn flight(&mut self, key: TimerKey) -> Option<&mut Flight<T>> {
        match self.driver.get_mut(key)? {
            RequestEntry::Flight(flight) => Some(flight),
            RequestEntry::Grace(_) | RequestEntry::Handler(_) => None,
        }
    }

    /// Takes a request out, for the one caller who ends it.
    #[inline]
    pub(super) fn take(&mut self, key: TimerKey, end: End) -> Option<Taken<T>> {
        self.flight(key)?; // and not something else that has this number
        match self.driver.cancel(key)? {
            RequestEntry::Flight(flight) => Some(self.leave(flight, end)),
            RequestEntry::Grace(_) | RequestEntry::Handler(_) => None,
        }
    }

    /// A request has left the wheel.
    #[inline]
    fn leave(&mut self, flight: Flight<T>, end: End) -> Taken<T> {
        let waiting = flight
            .channel
            .map(|channel| self.unlink(channel, flight.before, flight.after));
        let stats = &mut self.stats;
        let count = match end {
            End::Completed => &mut stats.completed,
            End::Failed => &mut stats.failed,
            End::TimedOut if flight.is_sent => &mut stats.timed_out_sent,
            End::TimedOut => &mut stats.timed_out_unsent,
            End::Cancelled => &mut stats.cancelled,
            End::ChannelClosed => &mut stats.closed,
            End::Stopped => &mut stats.stopped,
        };
        *count += 1;
        Taken {
            call: flight.call,
            is_sent: flight.is_sent,
            waiting: waiting.unwrap_or_default(),
        }
    }

    /// Takes what stood between two others out of the list of its channel.
    fn unlink(
        &mut self,
        channel: ChannelNumber,
        before: Option<TimerKey>,
        after: Option<TimerKey>,
    ) -> Vec<Arc<Outcome<()>>> {
        if let Some(after) = after.and_then(|key| self.flight(key)) {
            after.before = before;
        }
        match before {
            Some(before) => {
                if let Some(before) = self.flight(before) {
                    before.after = after;
                }
            }
            None => self.channels[channel.0].first = after,
        }
        let state = &mut self.channels[channel.0];
        state.in_flight -= 1;
        if state.in_flight > 0 {
            return Vec::new();
        }
        let waiting = std::mem::take(&mut state.waiting);
        self.end_grace(channel);
        self.free_if_unused(channel);
        waiting
    }

    /// Notes that a request was sent; false if it has ended, or ought to have by `now`.
    pub(super) fn set_sent(&mut self, now: Instant, key: TimerKey) -> bool {
        if self.driver.deadline(key).is_none_or(|due| due <= now) {
            return false;
        }
        let flight = self.flight(key);
        flight.map(|flight| flight.is_sent = true).is_some()
    }

    /// Takes a request back as if it had never been.
    pub(super) fn take_back(&mut self, key: TimerKey) -> Option<Taken<T>> {
        let taken = self.take(key, End::Stopped)?;
        self.stats.stopped -= 1;
        self.stats.registered -= 1;
        Some(taken)
    }

    pub(super) fn add_channel(&mut self) -> ChannelNumber {
        let state = ChannelState {
            is_held: true,
            ..ChannelState::default()
        };
        match self.free_channels.pop() {
            Some(number) => {
                self.channels[number] = state;
                ChannelNumber(number)
            }
            None => {
                self.channels.push(state);
                ChannelNumber(self.channels.len() - 1)
            }
        }
    }

    /// Nobody holds the channel any more.
    pub(super) fn release_channel(&mut self, channel: ChannelNumber) {
        self.channels[channel.0].is_held = false;
        self.free_if_unused(channel);
    }

    fn free_if_unused(&mut self, channel: ChannelNumber) {
        let state = &self.channels[channel.0];
        if !state.is_held && state.in_flight == 0 {
            self.free_channels.push(channel.0);
        }
    }

    pub(super) fn is_channel_closed(&self, channel: ChannelNumber) -> bool {
        self.channels[channel.0].is_closed
    }

    pub(super) fn in_flight_on(&self, channel: ChannelNumber) -> u64 {
        self.channels[channel.0].in_flight
    }

    /// Refuses requests on this channel from now on. False if nothing is in flight on it; else
    /// `waiting` is settled when nothing is any more.
    pub(super) fn close_channel(
        &mut self,
        channel: ChannelNumber,
        waiting: &Arc<Outcome<()>>,
    ) -> bool {
        let state = &mut self.channels[channel.0];
        state.is_closed = true;
        if state.in_flight > 0 {
            state.waiting.push(Arc::clone(waiting));
        }
        state.in_flight > 0
    }

    /// Ends the requests of a channel at `end`, unless they end sooner.
    pub(super) fn set_grace(&mut self, channel: ChannelNumber, now: Instant, end: Instant) {
        match self.channels[channel.0].grace {
            Some((_, known)) if known <= end => {}
            Some((key, _)) => {
                self.driver.reschedule(now, key, end);
                self.channels[channel.0].grace = Some((key, end));
            }
            None => {
                let key = self.driver.schedule(now, end, RequestEntry::Grace(channel));
                self.channels[channel.0].grace = Some((key, end));
            }
        }
    }

    fn end_grace(&mut self, channel: ChannelNumber) {
        if let Some((key, _)) = self.channels[channel.0].grace.take() {
            self.driver.cancel(key);
        }
    }

    /// Takes requests of a channel out, `limit` at most.
    pub(super) fn take_of_channel(
        &mut self,
        channel: ChannelNumber,
        limit: usize,
    ) -> Vec<Taken<T>> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(first) = self.channels[channel.0].first
            && let Some(one) = self.take(first, End::ChannelClosed)
        {
            taken.push(one);
        }
        taken
    }

    /// Takes out what is due, `limit` at most.
    pub(super) fn take_due(&mut self, now: Instant, shard: u64, limit: usize) -> DueRequest<T> {
        let mut due = DueRequest::default();
        let mut moves = MOVES;
        while due.len() < limit
            && let Some(fired) = self.driver.expire_within(now, Instant::MAX, &mut moves)
        {
            self.take_fired(fired, now, shard, limit, &mut due);
        }
        due
    }

    fn take_fired(
        &mut self,
        fired: Fired<RequestEntry<T>>,
        now: Instant,
        shard: u64,
        limit: usize,
        due: &mut DueRequest<T>,
    ) {
        match fired.value {
            RequestEntry::Flight(flight) => {
                if let Some(id) = RequestId::new(shard, fired.key) {
                    self.recent.note(id.as_u64(), fired.deadline);
                }
                let taken = self.leave(flight, End::TimedOut);
                due.timed_out.push((taken, fired.deadline));
            }
            RequestEntry::Grace(channel) => {
                self.channels[channel.0].grace = None;
                let left = limit - due.len();
                due.closed.extend(self.take_of_channel(channel, left));
                if self.in_flight_on(channel) > 0 {
                    self.set_grace(channel, now, now); // the next slice
                }
            }
            RequestEntry::Handler(start) => due.handlers.push(start),
        }
    }

    /// Takes everything out, and takes nothing on any more.
    pub(super) fn close(&mut self) -> DueRequest<T> {
        self.is_closed = true;
        let mut due = DueRequest::default();
        for unfired in self.driver.drain() {
            match unfired.value {
                RequestEntry::Flight(flight) => {
                    // The lists are of no use any more: they all end here.
                    let flight = Flight {
                        channel: None,
                        ..flight
                    };
                    due.stopped.push(self.leave(flight, End::Stopped));
                }
                RequestEntry::Grace(_) => {}
                RequestEntry::Handler(start) => due.handlers.push(start),
            }
        }
        for number in 0..self.channels.len() {
            let state = &mut self.channels[number];
            let was_used = state.in_flight > 0;
            state.is_closed = true;
            (state.first, state.grace, state.in_flight) = (None, None, 0);
            due.waiting.append(&mut state.waiting);
            if was_used {
                self.free_if_unused(ChannelNumber(number));
            }
        }
        self.driver.shrink_to_fit();
        due
    }
}

/// What was taken out at a time.
pub(super) struct DueRequest<T> {
    /// With their deadlines.
    pub(super) timed_out: Vec<(Taken<T>, Instant)>,
    pub(super) closed: Vec<Taken<T>>,
    pub(super) stopped: Vec<Taken<T>>,
    pub(super) handlers: Vec<Arc<Start>>,
    pub(super) waiting: Vec<Arc<Outcome<()>>>,
}

impl<T> Default for DueRequest<T> {
    fn default() -> Self {
        Self {
            timed_out: Vec::new(),
            closed: Vec::new(),
            stopped: Vec::new(),
            handlers: Vec::new(),
            waiting: Vec::new(),
        }
    }
}

impl<T> DueRequest<T> {
    pub(super) fn is_full(&self, limit: usize) -> bool {
        self.len() >= limit
    }

    fn len(&self) -> usize {
        self.timed_out.len() + self.closed.len() + self.handlers.len()
    }
}

impl<T> Taken<T> {
    pub(super) fn timed_out(&self, now: Instant) -> RequestError {
        RequestError::TimedOut {
            sent: self.is_sent,
            elapsed: now.saturating_since(self.call.registered_at),
        }
    }
}
