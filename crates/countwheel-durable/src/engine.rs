//! One turn at a time: take what happened, decide, make it durable, then let it out.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use countwheel::{Clock, Timestamp};

use crate::clocks::{Now, Origin};
use crate::planted::planted;
use crate::scheduler::{Event, Scheduler, Ticket};
use crate::store::{Shard, Store, StoreError};
use crate::{Attempt, BatchError, Config, Response, Stats, TimerError};

/// A scheduler with its store and its clock, but without a thread: whoever holds it calls
/// [`turn`](Engine::turn) when something happened or [`next_wake`](Engine::next_wake) has
/// come.
///
/// [`Timers`](crate::Timers) runs one on a thread; a simulation runs it under a clock of
/// its own. Both run the same code.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use countwheel::{Clock, ManualClock};
/// use countwheel_durable::store::MemoryStore;
/// use countwheel_durable::{
///     Config, Due, Effect, Engine, Event, Outcome, Precondition, Request, RetryPolicy,
///     SetOptions, Ticket, TimerName, Verdict,
/// };
///
/// let clock = ManualClock::new();
/// let store = Arc::new(MemoryStore::new(1));
/// let mut engine = Engine::open(store, Arc::new(clock.clone()), Config::default())?;
///
/// let set = Request::Set {
///     name: TimerName::new("orders", "order-42")?,
///     due: Due::In(Duration::from_secs(5)),
///     policy: RetryPolicy::default(),
///     payload: b"close it".to_vec(),
///     precondition: Precondition::None,
///     options: SetOptions::default(),
/// };
/// engine.turn(vec![Event::Request(Ticket(1), set)], &mut |effect| {
///     assert!(matches!(effect, Effect::Answer(Ticket(1), Ok(_))));
/// })?;
///
/// clock.advance(Duration::from_secs(5));
/// let mut started = None;
/// engine.turn(vec![], &mut |effect| match effect {
///     Effect::Start(attempt) => started = Some(attempt),
///     _ => unreachable!(),
/// })?;
/// let attempt = started.expect("it is due");
/// assert_eq!(attempt.payload, b"close it");
/// assert_eq!(attempt.lateness(), Duration::ZERO);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    origin: Origin,
    scheduler: Scheduler,
    /// Outcomes that the store had no room for.
    kept: Vec<Event>,
    /// What the last turn did not take.
    left_over: VecDeque<Event>,
    failed: bool,
}

/// What a turn lets out, after everything it rests on is durable.
#[derive(Debug)]
pub enum Effect {
    /// Answer the request of this ticket.
    Answer(Ticket, Result<Response, TimerError>),
    /// Answer the batch of this ticket.
    BatchAnswer(Ticket, Result<Vec<Response>, BatchError>),
    /// Begin this attempt. Its outcome comes back as [`Event::Outcome`].
    Start(Attempt),
}

impl Effect {
    fn no_room(ticket: Ticket) -> Self {
        Self::Answer(ticket, Err(TimerError::StorageFull))
    }

    fn no_room_for_batch(ticket: Ticket) -> Self {
        Self::BatchAnswer(ticket, Err(BatchError::of_all(TimerError::StorageFull)))
    }
}

impl Engine {
    /// Takes ownership of the store's shard and begins with what it holds. What is overdue
    /// follows in turns by queue, in each in deadline order, at the rate of the configuration.
    ///
    /// # Errors
    /// If the store cannot be taken.
    pub fn open(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        config: Config,
    ) -> Result<Self, StoreError> {
        let ownership = store.acquire(Shard::ONLY)?;
        let origin = Origin::of(&*clock);
        let scheduler = Scheduler::new(ownership, origin.now(&*clock), config);
        Ok(Self {
            store,
            clock,
            origin,
            scheduler,
            kept: Vec::new(),
            left_over: VecDeque::new(),
            failed: false,
        })
    }

    /// Takes `events` in order, starts what is due, commits once, and then hands every
    /// answer and every attempt to `sink`. What is more than one commit takes
    /// ([`Config::max_batch_bytes`]) is left over for the next turn, which is due at once.
    ///
    /// If the store has no room for the commit, nothing starts, each request is answered with
    /// [`TimerError::StorageFull`], and the outcomes are kept for the next turn.
    ///
    /// # Errors
    /// If the store failed: what became of the changes is unknown, nothing was let out, and
    /// the engine is of no more use; open the store again. Every later turn fails too.
    pub fn turn(
        &mut self,
        events: Vec<Event>,
        sink: &mut dyn FnMut(Effect),
    ) -> Result<(), StoreError> {
        if self.failed {
            return Err(StoreError::Poisoned);
        }
        let result = self.try_turn(events, sink);
        self.failed = result.is_err();
        result
    }

    fn try_turn(
        &mut self,
        events: Vec<Event>,
        sink: &mut dyn FnMut(Effect),
    ) -> Result<(), StoreError> {
        let now = self.now();
        let mut events: VecDeque<_> = if self.kept.is_empty() && self.left_over.is_empty() {
            events.into()
        } else {
            let kept = self.kept.drain(..).chain(self.left_over.drain(..));
            kept.chain(events).collect()
        };
        let step = self.scheduler.step(now, &mut events, &*self.store);
        self.left_over = events;
        if planted!(LeftOverForgotten) {
            self.left_over.clear();
        }
        let mut step = step?;
        if planted!(AnswerBeforeCommit) {
            for (ticket, answer) in step.answers.drain(..) {
                sink(Effect::Answer(ticket, answer));
            }
        }
        if planted!(StartBeforeCommit) {
            let starts = step.starts.drain(..);
            starts.for_each(|(_, attempt)| sink(Effect::Start(attempt)));
        }
        if !step.changes.is_empty() {
            let lease = self.scheduler.ownership().lease;
            match self.store.commit(lease, &step.changes) {
                Err(StoreError::Full { .. }) => {
                    for (ticket, _) in &step.answers {
                        sink(Effect::no_room(*ticket));
                    }
                    for (ticket, _) in &step.batches {
                        sink(Effect::no_room_for_batch(*ticket));
                    }
                    self.kept = self.scheduler.undo(now, step);
                    self.refuse_left_over(sink);
                    return Ok(());
                }
                committed => committed?,
            }
        }
        for (ticket, answer) in step.answers {
            sink(Effect::Answer(ticket, answer));
        }
        for (ticket, answer) in step.batches {
            sink(Effect::BatchAnswer(ticket, answer));
        }
        for (clock, mut attempt) in step.starts {
            // The commit took time. The wall clock may have been set back during it.
            attempt.started = self.now().by(clock).max(attempt.started);
            self.scheduler.note_started(attempt.lateness());
            sink(Effect::Start(attempt));
        }
        Ok(())
    }

    /// What was left over finds no room either, and nobody shall wait for it to come: requests are
    /// refused, outcomes kept.
    fn refuse_left_over(&mut self, sink: &mut dyn FnMut(Effect)) {
        for event in self.left_over.drain(..) {
            match event {
                Event::Request(ticket, _) => {
                    self.scheduler.note_refused();
                    sink(Effect::no_room(ticket));
                }
                Event::Batch(ticket, _) => {
                    self.scheduler.note_refused();
                    sink(Effect::no_room_for_batch(ticket));
                }
                Event::Outcome { .. } => self.kept.push(event),
            }
        }
    }

    /// When the next turn is needed if nothing happens before, by the wall clock as it stands
    /// now: a time that has passed means at once, `None` not at all. Never later than the next
    /// deadline, sometimes sooner, but while the store has no room. Ask again at least every
    /// second: a step of the wall clock changes the answer.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        let now = self.now();
        let wait = if !self.left_over.is_empty() {
            Some(Duration::ZERO)
        } else if self.kept.is_empty() {
            self.scheduler.wait(now)
        } else {
            self.scheduler.held(now)
        };
        Some(now.wall + wait?)
    }

    /// How many events wait for the next turn, because the last had as much as one commit takes:
    /// the last of those that were given.
    #[must_use]
    pub fn left_over(&self) -> usize {
        self.left_over.len()
    }

    fn now(&self) -> Now {
        self.origin.now(&*self.clock)
    }

    /// Starts no attempt from now on. Requests and outcomes are still taken.
    pub fn pause(&mut self) {
        self.scheduler.pause();
    }

    /// What it has done and what it holds.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.scheduler.stats()
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("scheduler", &self.scheduler)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
