//! One turn at a time: take what happened, decide, make it durable, then let it out.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use countwheel::{Clock, Timestamp};

use crate::backlog::ByQueue;
use crate::clocks::Now;
use crate::notes::Notes;
use crate::planted::planted;
use crate::scheduler::{Event, Scheduler, Ticket};
use crate::store::{Change, ClockNote, Shard, Store, StoreError};
use crate::trouble::Noticed;
use crate::{Attempt, BatchError, Config, Response, Stats, TimerError, Trouble, TroubleReason};

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
    notes: Notes,
    scheduler: Scheduler,
    noticed: Arc<Noticed>,
    /// Outcomes that the store had no room for.
    kept: Vec<Event>,
    /// What the last turn did not take.
    left_over: VecDeque<Event>,
    /// Why there is no other turn: the last could not read the store, and let out what it had.
    ending: Option<StoreError>,
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
    /// Reads the first of it before it returns: a place that cannot be read is one of
    /// [`troubles`](Self::troubles) then.
    ///
    /// # Errors
    /// If the store cannot be taken, or nothing that is due can be read of it.
    pub fn open(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        config: Config,
    ) -> Result<Self, StoreError> {
        let ownership = store.acquire(Shard::ONLY)?;
        let notes = Notes::open(&*clock, ownership.clock);
        let mut scheduler = Scheduler::new(ownership, notes.origin().now(&*clock), config);
        scheduler.read_ahead(&*store)?;
        let noticed = Arc::clone(scheduler.noticed());
        let engine = Self {
            store,
            clock,
            notes,
            scheduler,
            noticed,
            kept: Vec::new(),
            left_over: VecDeque::new(),
            ending: None,
            failed: false,
        };
        engine.look_at_clock(engine.clock.timestamp());
        Ok(engine)
    }

    /// Takes `events` in order, starts what is due, commits once, and then hands every
    /// answer and every attempt to `sink`. What is more than one commit takes
    /// ([`Config::max_batch_bytes`]) is left over for the next turn, which is due at once.
    ///
    /// If the store has no room for the commit, nothing starts, each request is answered with
    /// [`TimerError::StorageFull`], and the outcomes are kept for the next turn.
    ///
    /// A record that cannot be read is left out, and nothing else: see [`Engine::troubles`].
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
        let result = match self.ending.take() {
            Some(error) => Err(error),
            None => self.try_turn(events, sink),
        };
        self.failed = result.is_err();
        let wall = self.clock.timestamp();
        self.look_at_clock(wall);
        self.noticed.look(self.store.troubles(), wall);
        result
    }

    fn look_at_clock(&self, wall: Timestamp) {
        match self.notes.trouble(wall) {
            Some(mut trouble) => {
                trouble.first_seen = Some(wall);
                self.noticed.own.note(trouble);
            }
            None => self.noticed.own.clear(TroubleReason::ClockBehindCommits),
        }
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
        let mut step = self.scheduler.step(now, &mut events, &*self.store);
        self.left_over = events;
        if planted!(LeftOverForgotten) {
            self.left_over.clear();
        }
        self.ending = step.failure.take();
        if planted!(OutcomesEndWithReads)
            && let Some(error) = self.ending.take()
        {
            return Err(error);
        }
        if planted!(AnswerBeforeCommit) {
            for (ticket, answer) in step.answers.drain(..) {
                sink(Effect::Answer(ticket, answer));
            }
        }
        if planted!(StartBeforeCommit) {
            let starts = step.starts.drain(..);
            starts.for_each(|(_, attempt)| sink(Effect::Start(attempt)));
        }
        let has_changes = !step.changes.is_empty();
        let note = self.note(now, has_changes);
        step.changes.extend(note.map(Change::Clock));
        if !step.changes.is_empty() {
            let lease = self.scheduler.ownership().lease;
            match self.store.commit(lease, &step.changes) {
                // Nothing else rests on it.
                Err(StoreError::Full { .. }) if !has_changes => self.notes.refused(now),
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
                committed => {
                    committed?;
                    note.into_iter().for_each(|note| self.notes.committed(note));
                }
            }
        }
        self.scheduler.settle(step.corrections.as_deref());
        for (ticket, answer) in step.answers {
            sink(Effect::Answer(ticket, answer));
        }
        for (ticket, answer) in step.batches {
            sink(Effect::BatchAnswer(ticket, answer));
        }
        for (clock, mut attempt) in step.starts {
            // The commit took time. The wall clock may have been set back during it.
            attempt.started = self.now().by(clock).max(attempt.started);
            self.scheduler.note_started(&attempt);
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
    /// second: a step of the wall clock changes the answer, and where the clocks stand has to be
    /// committed then.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        let now = self.now();
        let is_asked = || self.note(now, false).is_some();
        let wait = if !self.left_over.is_empty() || self.ending.is_some() || is_asked() {
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

    /// The note of the clocks that is due now, with a commit or by itself.
    fn note(&self, now: Now, has_changes: bool) -> Option<ClockNote> {
        let waits = || self.store.has_room() && self.scheduler.wait(now).is_some();
        self.notes.due(now, has_changes, waits)
    }

    fn now(&self) -> Now {
        self.notes.origin().now(&*self.clock)
    }

    /// Commits where the clocks stand, so that the next opening goes on from there. For the end of a
    /// process: a turn does so by itself, now and then.
    ///
    /// # Errors
    /// As [`turn`](Self::turn); [`StoreError::Full`] if there is no room for it, and nothing was
    /// changed.
    pub fn note_clocks(&mut self) -> Result<(), StoreError> {
        if self.failed {
            return Err(StoreError::Poisoned);
        }
        let note = self.notes.note(self.now());
        let lease = self.scheduler.ownership().lease;
        let committed = self.store.commit(lease, &[Change::Clock(note)]);
        self.failed = !matches!(committed, Ok(()) | Err(StoreError::Full { .. }));
        committed.map(|()| self.notes.committed(note))
    }

    /// Starts no attempt from now on. Requests and outcomes are still taken.
    pub fn pause(&mut self) {
        self.scheduler.pause();
    }

    /// What the engine or its store cannot read or do while it goes on: a bounded number of places,
    /// as of the last turn.
    #[must_use]
    pub fn troubles(&self) -> Vec<Trouble> {
        self.noticed.list()
    }

    /// How many timers are overdue, by queue.
    pub(crate) fn overdue(&self) -> Arc<Mutex<ByQueue>> {
        self.scheduler.overdue()
    }

    pub(crate) fn noticed(&self) -> Arc<Noticed> {
        Arc::clone(&self.noticed)
    }

    /// Records that the attempts that run were interrupted by a stop, and is of no more use: to be
    /// called last, by who ends the process on purpose. They start again when the store is opened,
    /// under the next number, and are not taken for why the process ended.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel::ManualClock;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, Engine};
    /// # let store = Arc::new(MemoryStore::new(1));
    /// # let clock = Arc::new(ManualClock::new());
    /// let mut engine = Engine::open(store, clock, Config::default())?;
    /// engine.pause();
    /// engine.abandon()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the store failed, or has no room: then the attempts count as interrupted by a crash.
    pub fn abandon(&mut self) -> Result<(), StoreError> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(StoreError::Poisoned);
        }
        let now = self.now();
        let changes = self.scheduler.abandon(now, &*self.store)?;
        if changes.is_empty() {
            return Ok(());
        }
        let lease = self.scheduler.ownership().lease;
        self.store.commit(lease, &changes)
    }

    /// What it has done and what it holds.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.scheduler.stats();
        self.notes.fill(self.now(), &mut stats);
        stats
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
