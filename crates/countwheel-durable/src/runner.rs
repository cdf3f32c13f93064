//! An engine on a thread of its own. An inbox takes requests and outcomes; while one commit runs,
//! the next one gathers.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use countwheel_time::{Clock, Timestamp};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::ahead::Ahead;
use crate::backlog::ByQueue;
use crate::elsewhere::{Asked, Held, Waiter, What};
use crate::engine::{SeenRevision, SeenSettings};
use crate::gather::Gather;
use crate::handler::Origin;
use crate::in_flight::InFlight;
use crate::pool::Pool;
use crate::store::{Fence, Shard, StoreError};
use crate::timers::Loss;
use crate::together::Together;
use crate::trouble::Noticed;
use crate::{
    Attempt, Budget, Completion, Effect, Engine, Event, Handler, Health, Outcome, Revision,
    Settings, Stats, Ticket, TimerError,
};

/// The longest wait while anything is pending: a deadline is a wall time and the wait is
/// not, so a wall clock that was set forward costs at most this much.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// One shard's engine, as everybody but its thread sees it.
pub(crate) struct Owned {
    /// The number under which it has its shard.
    pub(crate) fence: Fence,
    pub(crate) noticed: Arc<Noticed>,
    pub(crate) overdue: Arc<Mutex<ByQueue>>,
    pub(crate) ahead: Arc<Mutex<Ahead>>,
    settings: SeenSettings,
    given: SeenRevision,
    pub(crate) mailbox: Arc<Mailbox>,
    budget: Budget,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What all the threads of a process have in common.
#[derive(Clone)]
pub(crate) struct Common {
    /// Tells the threads of these timers from those of others.
    pub(crate) id: u64,
    pub(crate) handler: Arc<dyn Handler>,
    /// Where the handler is called, if it blocks.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) budget: Budget,
    pub(crate) max_batch: usize,
    pub(crate) max_together: usize,
    pub(crate) together: Arc<Together>,
    /// Told when an engine has failed. Must not wait for anything.
    pub(crate) failed: OnEnd,
    /// What attempts say of where they come from.
    pub(crate) origin: Origin,
}

/// What is called when an engine has come to its end before it was told to.
type OnEnd = Arc<dyn Fn(Shard, &Ended) + Send + Sync>;

/// How an engine came to its end before it was told to stop.
#[derive(Clone, Debug)]
pub(crate) enum Ended {
    /// Another owner has the shard, or may take it.
    Lost(Loss),
    Failed(String),
}

/// What the thread and everybody else meet at. An attempt that still runs keeps this alive
/// and nothing else: not the store, which somebody may want to open again.
pub(crate) struct Mailbox {
    pub(crate) inbox: Mutex<Inbox>,
    arrived: Condvar,
    pub(crate) stats: Mutex<Stats>,
    /// Where the time line of delays stood when the boot clock was at zero.
    pub(crate) line_zero: Timestamp,
}

pub(crate) struct Inbox {
    asked: VecDeque<Asked>,
    /// What is asked for while the shard is given away, if it is kept.
    held: Option<Held>,
    /// How many requests those are.
    requests: usize,
    /// The payload of those.
    bytes: usize,
    /// Whether the thread waits for something to happen. Whoever finds it so wakes it, and
    /// nobody else needs to.
    is_asleep: bool,
    /// A place is kept for this scheduler since it looked last.
    has_room: bool,
    outcomes: VecDeque<(Revision, Outcome)>,
    pub(crate) health: Health,
    /// How long to wait for running attempts, once told to stop.
    grace: Duration,
    pub(crate) left_running: usize,
    /// The attempts that run on after the thread's end: each has its place until it ends.
    left: Option<Arc<Mutex<InFlight>>>,
    /// Why the store takes no more commits, if it said so by itself.
    store_failure: Option<String>,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.outcomes.is_empty()
    }
}

impl Owned {
    /// Starts the thread of an engine.
    pub(crate) fn start(
        engine: Engine,
        shard: Shard,
        common: Common,
    ) -> Result<Arc<Self>, StoreError> {
        let (fence, noticed) = (engine.fence(), engine.noticed());
        let (overdue, ahead) = (engine.overdue(), engine.ahead());
        let (settings, given) = (engine.seen_settings(), engine.seen_revision());
        let mailbox = Arc::new(Mailbox {
            inbox: Mutex::new(Inbox {
                asked: VecDeque::new(),
                held: None,
                requests: 0,
                bytes: 0,
                is_asleep: false,
                has_room: false,
                outcomes: VecDeque::new(),
                health: Health::Running,
                grace: Duration::ZERO,
                left_running: 0,
                left: None,
                store_failure: None,
            }),
            arrived: Condvar::new(),
            stats: Mutex::new(engine.stats()),
            line_zero: engine.line_zero(),
        });
        let woken = Arc::downgrade(&mailbox);
        engine.on_room(move || {
            if let Some(mailbox) = woken.upgrade() {
                let mut inbox = mailbox.inbox.lock();
                inbox.has_room = true;
                mailbox.wake(inbox);
            }
        });
        let budget = common.budget.clone();
        let id = common.id;
        let mut runner = Runner {
            engine,
            shard,
            last: common.clock.timestamp(),
            common,
            mailbox: Arc::clone(&mailbox),
            first_ticket: 0,
            waiting: Vec::new(),
            answered: 0,
            lasted: Duration::ZERO,
            gather: Gather::default(),
        };
        let thread = std::thread::Builder::new()
            .name("countwheel-durable".to_owned())
            .spawn(move || {
                RUNS_FOR.set(Some(id));
                let ended = catch_unwind(AssertUnwindSafe(|| runner.run()));
                runner.end(match ended {
                    Ok(result) => result,
                    Err(panic) => Err(Ended::Failed(panic_text(&*panic))),
                });
            })
            .map_err(|source| StoreError::Thread { source })?;
        Ok(Arc::new(Self {
            fence,
            noticed,
            overdue,
            ahead,
            settings,
            given,
            mailbox,
            budget,
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// Hands in what somebody asks for, or gives it back with the reason. What comes while the shard is
    /// given away is kept for later, if that is wanted.
    pub(crate) fn take_in(
        &self,
        asked: Asked,
        holds: bool,
    ) -> Result<(), Box<(Asked, TimerError)>> {
        let (requests, bytes) = (asked.count(), asked.bytes());
        let mut inbox = self.mailbox.inbox.lock();
        let is_kept = holds && inbox.held.is_some();
        if inbox.health != Health::Running && !is_kept {
            return Err(Box::new((asked, TimerError::Closed)));
        }
        if !self.budget.let_wait(requests, bytes) {
            return Err(Box::new((asked, TimerError::Full)));
        }
        if let Some(held) = &mut inbox.held {
            held.asked.push_back(asked);
            return Ok(());
        }
        inbox.requests += requests;
        inbox.bytes += bytes;
        inbox.asked.push_back(asked);
        self.mailbox.wake(inbox);
        Ok(())
    }

    /// The settings as its engine knows them.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock())
    }

    /// The last revision that was given before an answer left.
    pub(crate) fn last_revision(&self) -> Revision {
        *self.given.lock()
    }

    pub(crate) fn health(&self) -> Health {
        self.mailbox.inbox.lock().health.clone()
    }

    /// The store takes no more commits, for this reason.
    pub(crate) fn store_failed(&self, reason: &str) {
        let mut inbox = self.mailbox.inbox.lock();
        inbox.store_failure = Some(reason.to_owned());
        self.mailbox.wake(inbox);
    }

    /// Tells it to stop. Does not wait.
    pub(crate) fn tell_to_stop(&self, grace: Duration) {
        self.tell_to_stop_and_hold(grace, None);
    }

    /// The same, and keeps what is asked for from here on in `held`, if there is one.
    pub(crate) fn tell_to_stop_and_hold(&self, grace: Duration, held: Option<Held>) {
        let mut inbox = self.mailbox.inbox.lock();
        if inbox.health == Health::Running {
            inbox.health = Health::Stopping;
            inbox.grace = grace;
            inbox.held = held;
        }
        self.mailbox.wake(inbox);
    }

    /// The next of what is kept. Once there is none, nothing is kept any more.
    pub(crate) fn next_held(&self) -> Option<Asked> {
        self.mailbox.next_held(&self.budget)
    }

    /// Waits for the end of the thread. Says how many attempts were left running.
    pub(crate) fn wait(&self) -> usize {
        // Held while joining, so that a second stopper waits for the first one's end.
        let mut thread = self.thread.lock();
        if let Some(handle) = thread.take() {
            // The thread catches what it runs and cannot panic itself.
            handle.join().unwrap_or_default();
        }
        drop(thread);
        self.mailbox.inbox.lock().left_running
    }
}

/// Whether this thread is one of an engine of these timers.
pub(crate) fn is_own_thread(id: u64) -> bool {
    RUNS_FOR.get() == Some(id)
}

/// Whether this thread calls the handler of these timers.
pub(crate) fn is_handling(id: u64) -> bool {
    HANDLES_FOR.get() == Some(id)
}

impl Mailbox {
    fn report(&self, revision: Revision, outcome: Outcome) {
        let mut inbox = self.inbox.lock();
        if let Some(left) = inbox.left.clone() {
            drop(inbox);
            let mut left = left.lock();
            left.remove(revision);
            left.wake_waiting();
            return;
        }
        inbox.outcomes.push_back((revision, outcome));
        self.wake(inbox);
    }

    fn next_held(&self, budget: &Budget) -> Option<Asked> {
        let mut inbox = self.inbox.lock();
        let asked = inbox.held.as_mut()?.asked.pop_front();
        match &asked {
            Some(asked) => budget.waits_no_longer(asked.count(), asked.bytes()),
            None => inbox.held = None,
        }
        asked
    }

    /// Wakes the thread if it sleeps: to wake one that does not costs as much.
    fn wake(&self, mut inbox: MutexGuard<'_, Inbox>) {
        let was_asleep = std::mem::take(&mut inbox.is_asleep);
        drop(inbox);
        if was_asleep {
            self.arrived.notify_one();
        }
    }
}

/// The thread's side.
struct Runner {
    engine: Engine,
    shard: Shard,
    common: Common,
    /// The wall time of the last turn.
    last: Timestamp,
    mailbox: Arc<Mailbox>,
    /// The first ticket of the turn that runs, or of the one whose rest does.
    first_ticket: u64,
    /// Who waits for the answers to these, in the order of the tickets.
    waiting: Vec<Option<Waiter>>,
    /// How many requests those are.
    answered: usize,
    /// How long the last turn took.
    lasted: Duration,
    gather: Gather,
}

impl Runner {
    fn run(&mut self) -> Result<(), Ended> {
        let mut stop_at = None;
        loop {
            let events = self.next_events(stop_at);
            self.check_store()?;
            if stop_at.is_none() && self.mailbox.inbox.lock().health == Health::Stopping {
                let grace = self.mailbox.inbox.lock().grace;
                stop_at = Some(self.common.clock.now() + grace);
                self.engine.pause();
            }
            if let Err(error) = self.turn(events) {
                // It may only say that the store failed earlier.
                self.check_store()?;
                let reason = describe(&error);
                return Err(match error {
                    StoreError::Fenced { .. } => Ended::Lost(Loss::Taken(reason)),
                    StoreError::Lost { .. } => Ended::Lost(Loss::Over(reason)),
                    _ => Ended::Failed(reason),
                });
            }
            if let Some(at) = stop_at {
                let running = self.engine.stats().in_flight;
                let mut inbox = self.mailbox.inbox.lock();
                let ended = running == 0 && inbox.is_empty() && self.engine.deferred() == 0;
                if ended || self.common.clock.now() >= at {
                    inbox.left_running = running;
                    drop(inbox);
                    match self.engine.note_clocks() {
                        // The owner that took the shard notes its own.
                        Ok(()) | Err(StoreError::Fenced { .. }) => {}
                        Err(error) => {
                            tracing::warn!(%error, "where the clocks stand could not be noted");
                        }
                    }
                    if running == 0 {
                        self.engine.close();
                    } else if let Err(error) = self.engine.abandon() {
                        let error = describe(&error);
                        tracing::warn!(error, "that attempts were stopped is not recorded");
                    }
                    self.leave();
                    return Ok(());
                }
            }
        }
    }

    fn check_store(&self) -> Result<(), Ended> {
        let failure = self.mailbox.inbox.lock().store_failure.clone();
        failure.map_or(Ok(()), |reason| Err(Ended::Failed(reason)))
    }

    /// The attempts that run keep their places until they end.
    fn leave(&mut self) {
        let left = self.engine.leave();
        let mut inbox = self.mailbox.inbox.lock();
        let left = inbox.left.insert(Arc::new(Mutex::new(left)));
        let left = Arc::clone(left);
        let ended = std::mem::take(&mut inbox.outcomes);
        drop(inbox);
        let mut left = left.lock();
        for (revision, _) in ended {
            left.remove(revision);
        }
        left.wake_waiting();
    }

    /// Waits for something to happen, or for the engine's next wake-up, or for the end of
    /// the grace period, and takes what has gathered: at most one commit's worth.
    fn next_events(&mut self, stop_at: Option<countwheel_time::Instant>) -> Vec<Event> {
        let clock = &self.common.clock;
        let last = std::mem::replace(&mut self.last, clock.timestamp());
        if self.engine.deferred() > 0 {
            return Vec::new();
        }
        if stop_at.is_none() {
            self.gather();
        }
        let clock = &self.common.clock;
        let mut inbox = self.mailbox.inbox.lock();
        loop {
            let stopping = inbox.health == Health::Stopping && stop_at.is_none();
            if stopping || !inbox.is_empty() {
                break;
            }
            if inbox.store_failure.is_some() {
                return Vec::new();
            }
            if clock.timestamp() < last {
                break; // the wall clock was set back: the engine must know
            }
            let wait = match stop_at {
                Some(at) => Some(at.saturating_since(clock.now())),
                None => {
                    inbox.has_room = false;
                    // The engine may wake another scheduler, which may be about to wake this one.
                    let next = MutexGuard::unlocked(&mut inbox, || self.engine.next_wake());
                    let stops = inbox.health == Health::Stopping || inbox.store_failure.is_some();
                    if !inbox.is_empty() || inbox.has_room || stops {
                        continue;
                    }
                    next.map(|at| wait_until(at, clock))
                }
            };
            inbox.is_asleep = wait != Some(Duration::ZERO);
            let arrived = &self.mailbox.arrived;
            match wait {
                Some(Duration::ZERO) => break,
                Some(wait) => {
                    arrived.wait_for(&mut inbox, wait);
                }
                None => arrived.wait(&mut inbox),
            }
            inbox.is_asleep = false;
        }
        // Neither side can keep the other out: each has half a batch for certain.
        let requests = inbox.requests;
        let half = self.common.max_batch / 2;
        let outcomes = inbox.outcomes.len();
        let outcomes = outcomes.min(self.common.max_batch - requests.min(half));
        let mut events: Vec<_> = inbox
            .outcomes
            .drain(..outcomes)
            .map(|(revision, outcome)| Event::Outcome { revision, outcome })
            .collect();
        // A batch stays whole: the last may be more than is left.
        let mut left = requests.min(self.common.max_batch - outcomes);
        self.first_ticket += self.waiting.len() as u64;
        self.waiting.clear();
        let (before, bytes_before) = (inbox.requests, inbox.bytes);
        while left > 0
            && let Some(asked) = inbox.asked.pop_front()
        {
            let requests = asked.count();
            left = left.saturating_sub(requests);
            inbox.requests -= requests;
            inbox.bytes -= asked.bytes();
            let ticket = Ticket(self.first_ticket + self.waiting.len() as u64);
            events.push(match asked.what {
                What::One(request) => Event::Request(ticket, request),
                What::Batch(requests) => Event::Batch(ticket, requests),
            });
            self.waiting.push(Some(asked.waiter));
        }
        let (requests, bytes) = (before - inbox.requests, bytes_before - inbox.bytes);
        drop(inbox);
        if requests > 0 {
            self.common.budget.waits_no_longer(requests, bytes);
        }
        self.answered = requests;
        events
    }

    /// Lets requests gather that are about to come: see [`Gather`].
    fn gather(&mut self) {
        let clock = &self.common.clock;
        let arrived = self.mailbox.inbox.lock().requests;
        let pause = self.gather.pause(self.lasted, self.answered, arrived);
        let Some(pause) = pause else {
            return;
        };
        if let Some(at) = self.engine.next_wake()
            && wait_until(at, clock) <= pause.at_most
        {
            return;
        }
        let requests = pause.requests.min(self.common.max_batch);
        let ended = || {
            let inbox = self.mailbox.inbox.lock();
            let is_full = inbox.requests >= requests;
            let is_over = is_full
                || !inbox.outcomes.is_empty()
                || inbox.health != Health::Running
                || inbox.store_failure.is_some();
            is_over.then_some(is_full)
        };
        let is_full = pause.wait(&**clock, ended);
        self.gather.ended(is_full);
    }

    fn turn(&mut self, events: Vec<Event>) -> Result<(), StoreError> {
        let Self {
            engine,
            common,
            mailbox,
            waiting,
            first_ticket,
            ..
        } = self;
        let mut waiter = |ticket: Ticket| {
            let place = usize::try_from(ticket.0 - *first_ticket).ok()?;
            waiting.get_mut(place)?.take()
        };
        let began = common.clock.now();
        let (turn, committed) = common.together.commit(engine.begin(events)?);
        let result = engine.end(turn, committed, &mut |effect| match effect {
            Effect::Answer(ticket, answer) => {
                if let Some(waiter) = waiter(ticket) {
                    waiter.answer(answer);
                }
            }
            Effect::BatchAnswer(ticket, answer) => {
                if let Some(waiter) = waiter(ticket) {
                    waiter.answer_batch(answer);
                }
            }
            Effect::Start(attempt) => start(common, attempt, mailbox),
        });
        self.lasted = self.common.clock.now().saturating_since(began);
        *self.mailbox.stats.lock() = self.engine.stats();
        result
    }

    /// Leaves nobody waiting, whichever way the thread ended.
    fn end(&mut self, result: Result<(), Ended>) {
        let hub = self.common.origin.0.upgrade();
        let is_lost = matches!(result, Err(Ended::Lost(_)));
        let until_end = hub.as_ref().filter(|_| is_lost);
        let until_end = until_end.and_then(|hub| hub.hold(true));
        let not_done = self.not_done();
        let mut inbox = self.mailbox.inbox.lock();
        inbox.health = match &result {
            Ok(()) => Health::Stopped,
            Err(Ended::Lost(loss)) => Health::Lost(loss.to_string()),
            Err(Ended::Failed(reason)) => Health::Failed(reason.clone()),
        };
        if result.is_err() {
            inbox.left_running = self.engine.stats().in_flight;
        }
        (inbox.requests, inbox.bytes) = (0, 0);
        let mut asked: VecDeque<_> = not_done.into();
        asked.append(&mut inbox.asked);
        if inbox.held.is_none() {
            inbox.held = until_end;
        }
        let mut sends_on = false;
        if let Some(held) = &mut inbox.held {
            asked.append(&mut held.asked);
            held.asked = std::mem::take(&mut asked);
            sends_on = held.until_end;
        }
        drop(inbox);
        if result.is_err() {
            self.leave();
        }
        for asked in asked {
            self.common
                .budget
                .waits_no_longer(asked.count(), asked.bytes());
            asked.refuse(TimerError::Closed);
        }
        let failure = result.err();
        for waiter in std::mem::take(&mut self.waiting).into_iter().flatten() {
            waiter.refuse(match &failure {
                Some(Ended::Lost(loss)) => TimerError::Unknown(loss.to_string()),
                Some(Ended::Failed(reason)) => TimerError::Unknown(reason.clone()),
                None => TimerError::Closed,
            });
        }
        if let Some(ended) = failure {
            (self.common.failed)(self.shard, &ended);
        }
        while sends_on && let Some(asked) = self.mailbox.next_held(&self.common.budget) {
            match &hub {
                Some(hub) => hub.send_on(self.shard, asked),
                None => asked.refuse(TimerError::Closed),
            }
        }
    }

    /// What the engine was given and has not begun with.
    fn not_done(&mut self) -> Vec<Asked> {
        let mut not_done = Vec::new();
        for event in self.engine.take_deferred() {
            let (ticket, what) = match event {
                Event::Request(ticket, request) => (ticket, What::One(request)),
                Event::Batch(ticket, requests) => (ticket, What::Batch(requests)),
                Event::Outcome { .. } => continue,
            };
            let place = usize::try_from(ticket.0 - self.first_ticket).ok();
            let waiter = place.and_then(|place| self.waiting.get_mut(place)?.take());
            if let Some(waiter) = waiter {
                not_done.push(Asked { what, waiter });
            }
        }
        let count = not_done.iter().map(Asked::count).sum();
        let bytes = not_done.iter().map(Asked::bytes).sum();
        // They wait again, where there may be no room by now.
        self.common.budget.waits_longer(count, bytes);
        not_done
    }
}

fn start(common: &Common, mut attempt: Attempt, mailbox: &Arc<Mailbox>) {
    attempt.origin = common.origin.clone();
    let revision = attempt.revision;
    let mailbox = Arc::clone(mailbox);
    let done = match attempt.lease {
        Some(_) => Completion::of_leased(),
        None => Completion::new(move |outcome| mailbox.report(revision, outcome)),
    };
    let Some(pool) = &common.pool else {
        shielded("a handler", || common.handler.start(attempt, done));
        return;
    };
    let handler = Arc::clone(&common.handler);
    let id = common.id;
    pool.run(Box::new(move || {
        HANDLES_FOR.set(Some(id));
        shielded("a handler", || handler.start(attempt, done));
        HANDLES_FOR.set(None);
    }));
}

thread_local! {
    /// The timers of which this thread runs an engine.
    static RUNS_FOR: Cell<Option<u64>> = const { Cell::new(None) };
    /// The timers whose handler runs on this thread of a pool.
    static HANDLES_FOR: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs somebody else's code: its panic is its own.
pub(crate) fn shielded(whose: &str, f: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
        tracing::error!(panic = panic_text(&*panic), "{whose} panicked");
    }
}

fn wait_until(at: Timestamp, clock: &Arc<dyn Clock>) -> Duration {
    at.saturating_since(clock.timestamp()).min(WAIT_MAX)
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

/// An error with its sources, on one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}
