//! One turn at a time: take what happened, decide, make it durable, then let it out.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use countwheel_time::{Clock, Timestamp};
use parking_lot::Mutex;

use crate::ahead::Ahead;
use crate::backlog::ByQueue;
use crate::clocks::Now;
use crate::in_flight::InFlight;
use crate::notes::Notes;
use crate::planted::planted;
use crate::scheduler::{Event, Scheduler, Step, Ticket};
use crate::store::{self, Change, ClockNote, Fence, Lease, Shard, Store, StoreError};
use crate::trouble::Noticed;
use crate::{
    Attempt, BatchError, Budget, Config, Configured, DueCounts, Request, Response, Revision,
    Settings, SettingsVersion, Stats, TimerError, TimerEvent, Trouble, TroubleReason,
};

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
/// use countwheel_time::{Clock, ManualClock};
/// use countwheel_durable::store::{MemoryStore, Shard};
/// use countwheel_durable::{
///     Config, Due, Effect, Engine, Event, Outcome, Precondition, Request, RetryPolicy,
///     SetOptions, Ticket, TimerName, Verdict,
/// };
///
/// let clock = ManualClock::new();
/// let store = Arc::new(MemoryStore::new(1));
/// let mut engine = Engine::open(store, Shard::ONLY, Arc::new(clock.clone()), Config::default())?;
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
    deferred: VecDeque<Event>,
    /// Why there is no other turn: the last could not read the store, and let out what it had.
    ending: Option<StoreError>,
    /// A turn was begun that has not ended.
    is_within: bool,
    failed: bool,
    settings: SeenSettings,
    given: SeenRevision,
    /// When they are looked at again, by the boot clock, if nobody asks before.
    settings_due: Timestamp,
    /// They could not be read when they were looked at last.
    settings_unread: bool,
}

/// The settings as an engine saw them last.
pub(crate) type SeenSettings = Arc<Mutex<Arc<Settings>>>;

/// The last revision that was given before an answer left.
pub(crate) type SeenRevision = Arc<Mutex<Revision>>;

/// So often a turn looks whether somebody else has changed a setting.
const SETTINGS_PAUSE: Duration = Duration::from_millis(500);

/// A turn that was begun: what it would change, and what it lets out once that is durable. See
/// [`Engine::begin`].
#[derive(Debug)]
#[must_use = "an engine whose turn was begun and not ended takes no other"]
pub struct Turn {
    lease: Lease,
    now: Now,
    step: Step,
    /// Why the store could not be asked while this was decided: nothing of it counts.
    unavailable: Option<String>,
    /// Whether there is more to commit than a note of the clocks.
    has_changes: bool,
    note: Option<ClockNote>,
}

impl Turn {
    /// The right under which the changes are to be committed.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.lease
    }

    /// What is to be committed, all or nothing. Often empty: then there is nothing to commit.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        match self.unavailable {
            Some(_) => &[],
            None => &self.step.changes,
        }
    }
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

/// Why nothing of a turn is done, although the store goes on.
enum Refusal {
    Full,
    Unavailable(String),
}

impl Refusal {
    fn answer(&self, ticket: Ticket) -> Effect {
        Effect::Answer(ticket, Err(self.error()))
    }

    fn batch_answer(&self, ticket: Ticket) -> Effect {
        Effect::BatchAnswer(ticket, Err(BatchError::of_all(self.error())))
    }

    fn error(&self) -> TimerError {
        match self {
            Self::Full => TimerError::StorageFull,
            Self::Unavailable(reason) => TimerError::Unavailable {
                reason: reason.clone(),
            },
        }
    }
}

impl Engine {
    /// Takes ownership of a shard of the store and begins with what it holds. What is overdue
    /// follows in turns by queue, in each in deadline order, at the rate of the configuration.
    ///
    /// Reads the first of it before it returns: a place that cannot be read is one of
    /// [`troubles`](Self::troubles) then. Reads all settings.
    ///
    /// # Errors
    /// If the store cannot be taken, if its settings cannot be read, or nothing that is due.
    pub fn open(
        store: Arc<dyn Store>,
        shard: Shard,
        clock: Arc<dyn Clock>,
        config: Config,
    ) -> Result<Self, StoreError> {
        Self::open_within(&Budget::new(&config), store, shard, clock, config)
    }

    /// The same, of several engines in a process that share a [`Budget`].
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_within(
        budget: &Budget,
        store: Arc<dyn Store>,
        shard: Shard,
        clock: Arc<dyn Clock>,
        config: Config,
    ) -> Result<Self, StoreError> {
        let ownership = store.acquire(shard)?;
        let notes = Notes::open(&*clock, ownership.clock);
        let events = config.events.clone();
        let mut scheduler = Scheduler::new(ownership, notes.origin().now(&*clock), config, budget);
        scheduler.count_from(notes.origin().zero());
        let settings = store.settings(SettingsVersion::default())?;
        scheduler.knows(Arc::new(settings.unwrap_or_default()));
        scheduler.read_ahead(&*store)?;
        scheduler.find_leases(&*store)?;
        let settings = Arc::new(Mutex::new(Arc::clone(scheduler.settings())));
        let settings_due = notes.origin().now(&*clock).boot + SETTINGS_PAUSE;
        let noticed = Arc::clone(scheduler.noticed());
        let given = Arc::new(Mutex::new(scheduler.last_revision()));
        let engine = Self {
            store,
            clock,
            notes,
            scheduler,
            noticed,
            kept: Vec::new(),
            deferred: VecDeque::new(),
            ending: None,
            is_within: false,
            failed: false,
            settings,
            given,
            settings_due,
            settings_unread: false,
        };
        engine.look_at_clock(engine.clock.timestamp());
        if let Some(events) = events {
            events.opened(&ownership);
        }
        Ok(engine)
    }

    /// Takes `events` in order, starts what is due, commits once, and then hands every
    /// answer and every attempt to `sink`: [`begin`](Self::begin), the commit, and
    /// [`end`](Self::end).
    ///
    /// # Errors
    /// As [`end`](Self::end).
    pub fn turn(
        &mut self,
        events: Vec<Event>,
        sink: &mut dyn FnMut(Effect),
    ) -> Result<(), StoreError> {
        let mut turn = self.begin(events)?;
        if planted!(AnswerBeforeCommit) {
            for (ticket, answer) in turn.step.answers.drain(..) {
                sink(Effect::Answer(ticket, answer));
            }
        }
        if planted!(BatchAnswersEarly) {
            for (ticket, answer) in turn.step.batches.drain(..) {
                sink(Effect::BatchAnswer(ticket, answer));
            }
        }
        if planted!(StartBeforeCommit) {
            let starts = turn.step.starts.drain(..);
            starts.for_each(|(_, attempt)| sink(Effect::Start(attempt)));
        }
        if planted!(EventsBeforeCommit) {
            self.tell(turn.lease, mem::take(&mut turn.step.told));
        }
        let committed = match turn.changes() {
            [] => Ok(()),
            changes => self.store.commit(turn.lease(), changes),
        };
        self.end(turn, committed, sink)
    }

    /// The first half of a turn: takes `events` in order and decides what is done and what starts.
    /// Nothing is let out. [`Turn::changes`] are to be committed under [`Turn::lease`], in one
    /// commit, and [`end`](Self::end) takes the result.
    ///
    /// What is more than one commit takes ([`Config::max_batch_bytes`]) is deferred to the next
    /// turn, which is due at once. A record that cannot be read is left out, and nothing else: see
    /// [`Engine::troubles`].
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_time::ManualClock;
    /// # use countwheel_durable::store::{MemoryStore, Shard, Store};
    /// # use countwheel_durable::{Config, Engine, Event, Request, Ticket, TimerName};
    /// # let clock = Arc::new(ManualClock::new());
    /// # let request = Request::Fire { name: TimerName::new("orders", "order-42")? };
    /// let store = Arc::new(MemoryStore::new(1));
    /// let mut engine = Engine::open(store.clone(), Shard::ONLY, clock, Config::default())?;
    /// let turn = engine.begin(vec![Event::Request(Ticket(1), request)])?;
    /// // Others may act between the two.
    /// let committed = store.commit(turn.lease(), turn.changes());
    /// engine.end(turn, committed, &mut |effect| println!("{effect:?}"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Poisoned`] if an earlier turn failed, or was begun and not ended. What the
    /// store could not read, if the turn before let out what it had in spite of it.
    pub fn begin(&mut self, events: Vec<Event>) -> Result<Turn, StoreError> {
        if self.failed || self.is_within {
            self.failed = true;
            return Err(StoreError::Poisoned);
        }
        if let Some(error) = self.ending.take() {
            return self.ended(Err(error));
        }
        self.is_within = true;
        let now = self.now();
        let mut events: VecDeque<_> = if self.kept.is_empty() && self.deferred.is_empty() {
            events.into()
        } else {
            let kept = self.kept.drain(..).chain(self.deferred.drain(..));
            kept.chain(events).collect()
        };
        let asks = |request: &Request| matches!(request.plain(), Request::Configure { .. });
        let asks = events.iter().any(|event| match event {
            Event::Request(_, request) => asks(request),
            Event::Batch(_, requests) => requests.iter().any(asks),
            Event::Outcome { .. } => false,
        });
        if asks || now.boot >= self.settings_due {
            self.look_at_settings(now);
        }
        let mut step = self.scheduler.step(now, &mut events, &*self.store);
        self.deferred = events;
        if planted!(DeferredForgotten) {
            self.deferred.clear();
        }
        let unavailable = match step.failure.take() {
            Some(StoreError::Unavailable { reason }) => Some(reason),
            failure => {
                self.ending = failure;
                None
            }
        };
        if planted!(OutcomesEndWithReads)
            && let Some(error) = self.ending.take()
        {
            return self.ended(Err(error));
        }
        let has_changes = !step.changes.is_empty();
        let note = self.note(now, has_changes);
        let note = note.filter(|_| unavailable.is_none());
        step.changes.extend(note.map(Change::Clock));
        Ok(Turn {
            unavailable,
            lease: self.scheduler.ownership().lease,
            now,
            step,
            has_changes,
            note,
        })
    }

    /// The second half of a turn: takes the result of its commit, and hands every answer and every
    /// attempt to `sink`.
    ///
    /// If the store had no room for the commit, or was not available, nothing starts, each request is
    /// answered with [`TimerError::StorageFull`] or [`TimerError::Unavailable`], and the outcomes are
    /// kept for the next turn.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] or [`StoreError::Lost`] if the shard is not owned any more: another
    /// opening goes on with it. Attempts that were claimed and did not leave are interrupted then.
    /// Another error if the store failed: what became of the changes is unknown, nothing was let out, and
    /// the engine is of no more use; open the store again. Every later turn fails too.
    pub fn end(
        &mut self,
        turn: Turn,
        committed: Result<(), StoreError>,
        sink: &mut dyn FnMut(Effect),
    ) -> Result<(), StoreError> {
        let result = self.let_out(turn, committed, sink);
        self.ended(result)
    }

    fn ended<T>(&mut self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        self.is_within = false;
        self.failed = result.is_err();
        let wall = self.clock.timestamp();
        self.look_at_clock(wall);
        self.noticed.look(self.store.troubles(), wall);
        result
    }

    /// Sees what others have changed of the settings. If that cannot be read, those that are known
    /// stay.
    fn look_at_settings(&mut self, now: Now) {
        self.settings_due = now.boot + SETTINGS_PAUSE;
        let known = self.scheduler.settings().version();
        match self.store.settings(known) {
            Ok(None) => self.settings_unread = false,
            Ok(Some(settings)) => {
                self.settings_unread = false;
                self.see_settings(settings);
            }
            Err(error) => {
                if !mem::replace(&mut self.settings_unread, true) {
                    tracing::warn!(%error, "the settings cannot be read; they stay as they were");
                }
            }
        }
    }

    fn see_settings(&mut self, settings: Settings) {
        let settings = Arc::new(settings);
        self.scheduler.knows(Arc::clone(&settings));
        *self.settings.lock() = settings;
    }

    /// The settings as of the last turn: what was committed is in them, and what others have changed
    /// up to half a second before it.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(self.scheduler.settings())
    }

    /// The same for whoever reads them beside the engine.
    pub(crate) fn seen_settings(&self) -> SeenSettings {
        Arc::clone(&self.settings)
    }

    /// The last revision that was given, as of the last turn. See [`JobHost::owned`](crate::JobHost::owned).
    #[must_use]
    pub fn last_revision(&self) -> Revision {
        *self.given.lock()
    }

    /// The last revision for whoever reads it beside the engine.
    pub(crate) fn seen_revision(&self) -> SeenRevision {
        Arc::clone(&self.given)
    }

    /// Sees what the turn has changed of the settings, which is durable, and makes the versions right
    /// that its answers say, if somebody else has changed some as well.
    fn settings_changed(&mut self, now: Now, step: &mut Step) {
        let changed = step.changes.iter().filter_map(|change| match change {
            Change::Setting(setting) => Some(setting),
            _ => None,
        });
        let mut changed = changed.peekable();
        if changed.peek().is_none() {
            return;
        }
        let mut expected = Settings::clone(self.scheduler.settings());
        changed.for_each(|setting| expected.apply(setting));
        self.look_at_settings(now);
        let seen = self.scheduler.settings();
        if seen.version() == expected.version() {
            return;
        }
        if seen.version() < expected.version() {
            // They cannot be read just now, and this much is known.
            self.see_settings(expected);
            return;
        }
        let seen = Arc::clone(seen);
        let one = step
            .answers
            .iter_mut()
            .filter_map(|(_, it)| it.as_mut().ok());
        let batches = step
            .batches
            .iter_mut()
            .filter_map(|(_, it)| it.as_mut().ok());
        for response in one.chain(batches.flatten()) {
            if let Response::Configured(Configured { name, version }) = response {
                let found = seen.get(name).map(|value| value.version);
                *version = found.unwrap_or(seen.version());
            }
        }
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

    fn let_out(
        &mut self,
        turn: Turn,
        committed: Result<(), StoreError>,
        sink: &mut dyn FnMut(Effect),
    ) -> Result<(), StoreError> {
        let Turn {
            lease,
            now,
            mut step,
            unavailable,
            has_changes,
            note,
        } = turn;
        let refusal = match (unavailable, committed) {
            (Some(reason), _) | (None, Err(StoreError::Unavailable { reason })) => {
                Some(Refusal::Unavailable(reason))
            }
            (None, Err(error)) if error.is_full() => Some(Refusal::Full),
            (None, committed) => {
                committed?;
                note.into_iter().for_each(|note| self.notes.committed(note));
                None
            }
        };
        // A commit shows that the shard was owned; without one, only the lease can.
        let is_committed = refusal.is_none() && (has_changes || note.is_some());
        if let Some(refusal) = refusal {
            // Nothing else rests on a note.
            let is_note_alone = note.is_some() && !has_changes;
            if is_note_alone || matches!(refusal, Refusal::Unavailable(_)) {
                self.notes.refused(now);
            }
            if !is_note_alone {
                self.refuse(now, step, &refusal, sink);
                return Ok(());
            }
        }
        let answers = step.answers.len() + step.batches.len();
        if !is_committed && answers > 0 && !planted!(AnswersWithoutLease) {
            self.check_lease(lease, "an answer")?;
        }
        self.settings_changed(now, &mut step);
        let changes = mem::take(&mut step.changes);
        self.scheduler.settle(step.corrections.as_ref(), changes);
        *self.given.lock() = self.scheduler.last_revision();
        self.tell(lease, mem::take(&mut step.told));
        for (ticket, answer) in step.answers {
            sink(Effect::Answer(ticket, answer));
        }
        for (ticket, answer) in step.batches {
            sink(Effect::BatchAnswer(ticket, answer));
        }
        for (clock, mut attempt) in step.starts {
            if !planted!(StartsWithoutLease) {
                self.check_lease(lease, "an attempt")?;
            }
            // The commit took time. The wall clock may have been set back during it.
            let now = self.now();
            attempt.started = now.by(clock).max(attempt.started);
            self.scheduler.note_started(&attempt, now.boot);
            sink(Effect::Start(attempt));
        }
        Ok(())
    }

    /// Tells what a commit did, which is durable.
    fn tell(&self, lease: Lease, told: Vec<TimerEvent>) {
        if told.is_empty() {
            return;
        }
        if let Some(events) = self.scheduler.events() {
            events.committed(lease, told);
        }
    }

    /// Whether `what` may leave: not once the lease has ended.
    fn check_lease(&self, lease: Lease, what: &str) -> Result<(), StoreError> {
        if self.store.may_start(lease) {
            return Ok(());
        }
        Err(StoreError::Lost {
            shard: lease.shard,
            reason: format!("the lease ended before {what} left"),
        })
    }

    /// The step could not be committed, and is void: requests are refused, outcomes kept. So is what
    /// was deferred, since nobody shall wait for it to come.
    fn refuse(&mut self, now: Now, step: Step, refusal: &Refusal, sink: &mut dyn FnMut(Effect)) {
        for (ticket, _) in &step.answers {
            sink(refusal.answer(*ticket));
        }
        for (ticket, _) in &step.batches {
            sink(refusal.batch_answer(*ticket));
        }
        self.kept = self.scheduler.undo(now, step);
        for event in self.deferred.drain(..) {
            match event {
                Event::Request(ticket, _) => {
                    self.scheduler.note_refused();
                    sink(refusal.answer(ticket));
                }
                Event::Batch(ticket, _) => {
                    self.scheduler.note_refused();
                    sink(refusal.batch_answer(ticket));
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
        let wait = if !self.deferred.is_empty() || self.ending.is_some() || is_asked() {
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
    pub fn deferred(&self) -> usize {
        self.deferred.len()
    }

    /// Takes back the events that no turn has taken: nothing of them was done.
    pub(crate) fn take_deferred(&mut self) -> impl Iterator<Item = Event> + use<> {
        mem::take(&mut self.deferred).into_iter()
    }

    /// The note of the clocks that is due now, with a commit or by itself.
    fn note(&self, now: Now, has_changes: bool) -> Option<ClockNote> {
        let waits = || store::has_room(&*self.store) && self.scheduler.wait(now).is_some();
        self.notes.due(now, has_changes, waits)
    }

    /// Where the time line of delays stood when the boot clock was at zero.
    pub(crate) fn line_zero(&self) -> Timestamp {
        self.notes.origin().zero()
    }

    fn now(&self) -> Now {
        self.notes.origin().now(&*self.clock)
    }

    /// Commits where the clocks stand, so that the next opening goes on from there. For the end of a
    /// process: a turn does so by itself, now and then.
    ///
    /// # Errors
    /// As [`turn`](Self::turn); an error that [is full](StoreError::is_full) if there is no room for the
    /// note, or [`StoreError::Unavailable`], and nothing was changed.
    pub fn note_clocks(&mut self) -> Result<(), StoreError> {
        if self.failed {
            return Err(StoreError::Poisoned);
        }
        let note = self.notes.note(self.now());
        let lease = self.scheduler.ownership().lease;
        let committed = self.store.commit(lease, &[Change::Clock(note)]);
        self.failed = match &committed {
            Ok(()) | Err(StoreError::Unavailable { .. }) => false,
            Err(error) => !error.is_full(),
        };
        committed.map(|()| self.notes.committed(note))
    }

    /// The limits of [flows](Config::flows) are others than before: [`Budget::flows_changed`] of the engine's budget.
    /// The next turn looks at the timers that wait for one.
    pub fn flows_changed(&self) {
        self.scheduler.flows_changed();
    }

    /// Calls `wake` when this engine waits for a place of an attempt that another engine of its budget
    /// has given back: [`next_wake`](Self::next_wake) may have changed. It is called on the other
    /// engine's thread, and must neither block for long nor call an engine. Whoever drives several engines of one
    /// budget, or engines with [flows](Config::flows), gives a turn to an engine that was woken.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_time::ManualClock;
    /// # use countwheel_durable::store::{MemoryStore, Shard};
    /// # use countwheel_durable::{Config, Engine};
    /// # let store = Arc::new(MemoryStore::new(1));
    /// # let clock = Arc::new(ManualClock::new());
    /// let engine = Engine::open(store, Shard::ONLY, clock, Config::default())?;
    /// let (wake, woken) = std::sync::mpsc::sync_channel(1);
    /// engine.on_room(move || drop(wake.try_send(())));
    /// assert!(woken.try_recv().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_room(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.scheduler.on_room(Arc::new(wake));
    }

    /// The attempts that run, of an engine that is of no more use. Their places stay taken until they
    /// are removed there, or that is dropped.
    pub(crate) fn leave(&mut self) -> InFlight {
        self.scheduler.leave()
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

    /// How many timers pend, by when they are due: as of the last turn.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_time::ManualClock;
    /// # use countwheel_durable::store::{MemoryStore, Shard};
    /// # use countwheel_durable::{Config, Engine};
    /// # let store = Arc::new(MemoryStore::new(1));
    /// # let clock = Arc::new(ManualClock::new());
    /// let config = Config { due_counts: true, ..Config::default() };
    /// let engine = Engine::open(store, Shard::ONLY, clock, config)?;
    /// let counts = engine.due_counts();
    /// assert!(counts.exact && counts.buckets.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn due_counts(&self) -> DueCounts {
        self.scheduler.ahead().lock().counts()
    }

    /// The same for whoever reads it beside the engine.
    pub(crate) fn ahead(&self) -> Arc<Mutex<Ahead>> {
        self.scheduler.ahead()
    }

    /// The number under which it has its shard.
    pub(crate) fn fence(&self) -> Fence {
        self.scheduler.ownership().lease.fence
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
    /// # use countwheel_time::ManualClock;
    /// # use countwheel_durable::store::{MemoryStore, Shard};
    /// # use countwheel_durable::{Config, Engine};
    /// # let store = Arc::new(MemoryStore::new(1));
    /// # let clock = Arc::new(ManualClock::new());
    /// let mut engine = Engine::open(store, Shard::ONLY, clock, Config::default())?;
    /// engine.pause();
    /// engine.abandon()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the store failed, or has no room: then the attempts count as interrupted by a crash.
    pub fn abandon(&mut self) -> Result<(), StoreError> {
        if mem::replace(&mut self.failed, true) {
            return Err(StoreError::Poisoned);
        }
        let now = self.now();
        let (changes, told) = self.scheduler.abandon(now, &*self.store)?;
        let lease = self.scheduler.ownership().lease;
        if !changes.is_empty() {
            self.store.commit(lease, &changes)?;
        }
        self.tell(lease, told);
        self.close();
        Ok(())
    }

    /// Every commit was told, and there is no other: to be called last, by who has not abandoned anything.
    pub(crate) fn close(&self) {
        if let Some(events) = self.scheduler.events() {
            events.closed(self.scheduler.ownership().lease);
        }
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
