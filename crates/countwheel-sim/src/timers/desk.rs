//! The record of one timer's life: callers of the timer enter each call here before and after, and
//! every task enters itself when it runs.
//!
//! The lock is never held during a call of the timer, since tasks and destructors come back here.

use std::collections::VecDeque;
use std::fmt;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

use countwheel::{
    Clock, Executor, Instant, ManualClock, ScheduleError, Stop, Stopped, Stopping, Task, Timeout,
    TimeoutGuard, Timer, Work,
};
use parking_lot::{Mutex, MutexGuard};

use super::plan::{Deed, Delay, Kind, OverloadKind, Plan, border, log_uniform, small};
use super::reference::{Fate, Id, Reference};
use super::{Report, Sabotage};
use crate::random::Random;

/// Shared by the one who simulates, the tasks and the executor.
pub(super) struct Desk {
    pub(super) plan: Plan,
    pub(super) clock: ManualClock,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) random: Random,
    pub(super) reference: Reference,
    pub(super) report: Report,
    pub(super) handles: Vec<Handle>,
    timer: Option<Timer>,
    /// Where values are sent to.
    inbox: (mpsc::Sender<Probe>, mpsc::Receiver<Probe>),
    /// What the executor has accepted.
    works: VecDeque<Work>,
    pub(super) stoppings: Vec<Stopping>,
    /// Why something may be dropped, woken or run that does not fire.
    reason: Reason,
    /// The tasks that run, and since when.
    running: Vec<(Id, Instant)>,
    pub(super) failure: Option<String>,
    sabotage: Option<Sabotage>,
    log: VecDeque<String>,
    log_max: usize,
    print: bool,
}

/// Whom the one thread pretends to be.
const THREADS: [u32; 6] = [0, 1, 2, 3, 4, 5];

/// Why a task is dropped, woken or run without having fired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    None,
    Refused(Id),
    Cancels(Id),
    Overload,
    Loses,
    Stops,
    Unfired,
}

/// A handle, perhaps one that cancels when it is dropped.
pub(super) struct Handle {
    pub(super) id: Id,
    grip: Grip,
}

enum Grip {
    Timeout(Timeout),
    Guard(TimeoutGuard),
}

impl Handle {
    pub(super) fn timeout(&self) -> &Timeout {
        match &self.grip {
            Grip::Timeout(timeout) => timeout,
            Grip::Guard(guard) => guard.timeout(),
        }
    }

    /// Without the guard, if there is none.
    pub(super) fn into_timeout(self) -> Option<Timeout> {
        match self.grip {
            Grip::Timeout(timeout) => Some(timeout),
            Grip::Guard(_) => None,
        }
    }
}

/// What is scheduled: it tells the desk what becomes of it.
struct Probe {
    desk: Arc<Desk>,
    id: Id,
    deed: Deed,
    armed: bool,
}

impl Probe {
    fn run(mut self) {
        self.armed = false;
        if self.desk.runs(self.id) {
            self.desk.does(self.id, self.deed);
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.armed {
            self.desk.dropped(self.id);
        }
    }
}

/// The same for those that are woken.
struct WakeProbe {
    desk: Arc<Desk>,
    id: Id,
    armed: AtomicBool,
}

impl Wake for WakeProbe {
    fn wake(self: Arc<Self>) {
        self.armed.store(false, Ordering::Relaxed);
        self.desk.woken(self.id);
    }
}

impl Drop for WakeProbe {
    fn drop(&mut self) {
        if *self.armed.get_mut() {
            self.desk.dropped(self.id);
        }
    }
}

/// The simulation's executor: what it accepts runs at once, or whenever the simulation likes.
pub(super) struct Elsewhere(pub(super) Arc<Desk>);

impl fmt::Debug for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Elsewhere")
    }
}

impl Executor for Elsewhere {
    fn execute(&self, work: Work) -> Result<(), Work> {
        let desk = &self.0;
        let Some(odds) = desk.plan.executor else {
            return Err(work);
        };
        let mut state = desk.lock();
        state.take_in(desk.now());
        state.reference.retry = None;
        if state.random.one_in(odds.refuses) {
            state.reference.counts.overloaded += 1;
            state.note(|| "the executor refuses".to_owned());
            if let OverloadKind::RetryAfter(pause) = desk.plan.overload {
                let pause = pause.max(Duration::from_micros(1));
                let at = desk.clock.now() + pause;
                state.reference.retry = Some(at.as_nanos());
            }
            return Err(work);
        }
        if state.random.one_in(odds.runs_at_once) {
            drop(state);
            desk.runs_work(work);
        } else if state.random.one_in(odds.loses) {
            drop(state);
            desk.loses_work(work);
        } else {
            state.works.push_back(work);
        }
        Ok(())
    }
}

impl Desk {
    pub(super) fn new(plan: Plan, random: Random, options: &super::Options) -> Arc<Self> {
        let mut reference = Reference::new(
            plan.tick,
            plan.executor.is_none(),
            plan.max_pending,
            plan.shards,
        );
        reference.sabotage = options.sabotage;
        let clock = ManualClock::new();
        clock.advance(Duration::from_nanos(plan.start));
        let mut state = State {
            random,
            reference,
            report: Report::default(),
            handles: Vec::new(),
            timer: None,
            inbox: mpsc::channel(),
            works: VecDeque::new(),
            stoppings: Vec::new(),
            reason: Reason::None,
            running: Vec::new(),
            failure: None,
            sabotage: options.sabotage,
            log: VecDeque::new(),
            log_max: options.log,
            print: options.trace,
        };
        state.note(|| format!("a new timer: {plan:?}"));
        Arc::new(Self {
            plan,
            clock,
            state: Mutex::new(state),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    pub(super) fn set_timer(&self, timer: Option<Timer>) {
        let old = std::mem::replace(&mut self.lock().timer, timer);
        drop(old);
    }

    /// What an overloaded timer calls.
    pub(super) fn takes_back(&self, task: Task) {
        let mut state = self.lock();
        state.take_in(self.now());
        state.reason = Reason::Overload;
        let run = state.random.one_in(2);
        drop(state);
        self.disposes(task, run);
        self.lock().reason = Reason::None;
    }

    /// Runs or drops a task that came back; which one it is it says itself.
    fn disposes(&self, task: Task, run: bool) {
        if run {
            task.run();
            // A value is on its way then.
            let mut state = self.lock();
            let now = self.now();
            state.take_in(now);
        } else {
            drop(task);
        }
    }

    // -- What the timer does ---------------------------------------------------------------

    /// A task runs. Whether it is to do something: not if it only came back.
    fn runs(&self, id: Id) -> bool {
        let mut state = self.lock();
        let now = self.now();
        if state.reason == Reason::None {
            state.take_in(now);
        }
        let fires = state.arrives(id, now);
        if fires {
            state.running.push((id, self.clock.now()));
        }
        fires && state.failure.is_none()
    }

    fn woken(&self, id: Id) {
        let mut state = self.lock();
        let now = self.now();
        if state.reason == Reason::None {
            state.take_in(now);
        }
        // A stop wakes those that have not fired; so does the end of a closing timer's time.
        let reference = &state.reference;
        let fires = reference.entries[id].fate != Fate::Pending || reference.is_due(id, now);
        if state.reason == Reason::None && !fires && reference.give_up.is_some_and(|at| at <= now) {
            let verdict = state.reference.came_out(id);
            state.check(verdict);
            return;
        }
        state.arrives(id, now);
    }

    fn dropped(&self, id: Id) {
        let mut state = self.lock();
        state.note(|| format!("    {id} is dropped"));
        let verdict = match state.reason {
            Reason::None => Err(format!("{id} is dropped for no reason")),
            Reason::Refused(refused) if refused == id => {
                state.reference.entries[id].gone = true;
                Ok(())
            }
            Reason::Cancels(cancelled) if cancelled == id => {
                state.reference.entries[id].gone = true;
                Ok(())
            }
            Reason::Refused(other) | Reason::Cancels(other) => {
                Err(format!("{id} is dropped instead of {other}"))
            }
            Reason::Loses | Reason::Overload => state.reference.handed_back(id),
            Reason::Stops => state.reference.came_out(id),
            Reason::Unfired => state.reference.unfired(id),
        };
        state.check(verdict);
    }

    /// What a task does when it runs. Ends with a panic if it is to.
    fn does(self: &Arc<Self>, id: Id, deed: Deed) {
        let timer = self.lock().timer.clone();
        if let Some(timer) = &timer {
            match deed {
                Deed::Nothing | Deed::Panic => {}
                Deed::Schedule => {
                    let count = self.lock().random.below(3);
                    for _ in 0..count {
                        self.schedules(timer, None);
                    }
                }
                Deed::Cancel => self.cancels(),
                Deed::Move => self.moves(),
                Deed::Query => self.queries(),
                Deed::Stats => self.checks_stats(timer),
                Deed::Slow => {
                    let most = 4 * self.plan.tick + 2 * nanos(self.plan.slow_task_budget);
                    let span = self.lock().random.below(most);
                    self.clock.advance(Duration::from_nanos(span));
                    let now = self.now();
                    let mut state = self.lock();
                    state.note(|| format!("    {id} takes {span}"));
                    state.reference.is_slowed_down(now);
                }
                Deed::Stop => {
                    if self.lock().random.one_in(8) {
                        self.closes(timer);
                    }
                }
            }
        }
        let panics = deed == Deed::Panic;
        let mut state = self.lock();
        let began = state
            .running
            .pop()
            .map_or(Instant::ZERO, |(_, since)| since);
        let took = self.clock.now().saturating_since(began);
        let budget = self.plan.slow_task_budget;
        state.reference.ended(took, budget, panics);
        drop(state);
        // The last clone but the host's.
        drop(timer);
        if panics {
            resume_unwind(Box::new("on purpose"));
        }
    }

    // -- What is done to the timer ---------------------------------------------------------

    fn delay(&self, state: &mut State, kind: Kind, now: u64) -> Delayed {
        let tick = self.plan.tick;
        let random = &mut state.random;
        let nanos = match self.plan.delays.pick(random, &Delay::ALL) {
            Delay::Zero => 0,
            Delay::BelowTick => random.below(tick),
            Delay::Uniform => {
                let most = self.plan.reach.saturating_mul(tick);
                random.below(most)
            }
            Delay::LogUniform => log_uniform(random, 63),
            Delay::Border => border(random, now, tick),
            Delay::Again => {
                let ahead = random.below(self.plan.reach);
                let known = state.reference.some_deadline(now, ahead);
                known.map_or(tick, |known| known.saturating_sub(now))
            }
            Delay::End => (u64::MAX - now).saturating_sub(random.below(3 * tick)),
            Delay::Max => return Delayed(Duration::MAX, u64::MAX),
        };
        // A deadline may also have passed.
        if kind == Kind::At && random.one_in(8) {
            let past = now.saturating_sub(random.below(8 * tick));
            return Delayed(Duration::ZERO, past);
        }
        Delayed(Duration::from_nanos(nanos), now.saturating_add(nanos))
    }

    /// Schedules something, after `delay` if given.
    pub(super) fn schedules(self: &Arc<Self>, timer: &Timer, delayed: Option<Delayed>) {
        let mut state = self.lock();
        let now = self.now();
        let kind = self.plan.kinds.pick(&mut state.random, &Kind::ALL);
        let offer = state.offers(self, kind, delayed, now);
        drop(state);
        let result = self.makes(timer, offer);
        self.learns(offer.id, result);
    }

    /// Schedules several for the same moment.
    pub(super) fn schedules_batch(self: &Arc<Self>, timer: &Timer) {
        let mut state = self.lock();
        let now = self.now();
        let delayed = self.delay(&mut state, Kind::Task, now);
        let count = state.random.between(2, 6);
        let swap = state.sabotage == Some(Sabotage::SwapsTasks);
        drop(state);
        if swap {
            let offers = [(); 2].map(|()| {
                let kind = Kind::Task;
                self.lock().offers(self, kind, Some(delayed), now)
            });
            let [first, second] = offers.map(|offer| Offer { thread: 0, ..offer });
            let [then, before] = [second, first].map(|offer| (offer.id, self.makes(timer, offer)));
            self.learns(before.0, before.1);
            self.learns(then.0, then.1);
            return;
        }
        for _ in 0..count {
            self.schedules(timer, Some(delayed));
        }
    }

    /// Schedules what was offered.
    fn makes(self: &Arc<Self>, timer: &Timer, offer: Offer) -> Result<Timeout, ScheduleError> {
        let Offer {
            id,
            kind,
            delayed: Delayed(delay, deadline),
            thread,
            deed,
        } = offer;
        let mut probe = Probe {
            desk: Arc::clone(self),
            id,
            deed,
            armed: true,
        };
        countwheel::pretend_to_be_thread(thread);
        match kind {
            Kind::Task => timer.schedule(delay, move || probe.run()),
            Kind::At => timer.schedule_at(Instant::from_nanos(deadline), move || probe.run()),
            Kind::Send => {
                let sender = self.lock().inbox.0.clone();
                timer.schedule_send(delay, probe, &sender)
            }
            Kind::Wake => {
                probe.armed = false;
                let waker = Waker::from(Arc::new(WakeProbe {
                    desk: Arc::clone(self),
                    id,
                    armed: AtomicBool::new(true),
                }));
                timer.schedule_wake(delay, waker)
            }
        }
    }

    /// What the timer said to that.
    fn learns(&self, id: Id, result: Result<Timeout, ScheduleError>) {
        let now = self.now();
        match result {
            Ok(timeout) => self.accepted(id, timeout, now),
            Err(error) => self.refused(id, error),
        }
    }

    fn accepted(&self, id: Id, timeout: Timeout, now: u64) {
        let mut state = self.lock();
        let verdict = state.reference.accepted(id, now);
        state.check(verdict);
        let deadline = state.reference.entries[id].deadline;
        if state.sabotage == Some(Sabotage::ForgetsTask) && id % 64 == 63 {
            state.reason = Reason::Cancels(id);
            drop(state);
            timeout.cancel();
            state = self.lock();
            state.reason = Reason::None;
            state.reference.entries[id].gone = false;
        }
        if timeout.deadline().as_nanos() != deadline {
            state.fails(|| format!("{id} was filed under another deadline: {timeout:?}"));
        }
        state.handles.push(Handle {
            id,
            grip: Grip::Timeout(timeout),
        });
        let too_many = 16 + 2 * self.plan.population;
        let old = if state.handles.len() > too_many {
            state.some_handle()
        } else {
            None
        };
        drop(state);
        if let Some(old) = old {
            self.drops(old);
        }
    }

    fn refused(&self, id: Id, error: ScheduleError) {
        let mut state = self.lock();
        state.note(|| format!("    {id} is refused: {error}"));
        let for_want_of_room = matches!(error, ScheduleError::Full(_));
        let verdict = state.reference.refused(id, for_want_of_room);
        state.check(verdict);
        let task = error.into_task();
        if task.deadline().as_nanos() != state.reference.entries[id].deadline {
            state.fails(|| format!("{id} is refused with another deadline: {task:?}"));
        }
        state.reason = Reason::Refused(id);
        let run = state.random.one_in(2);
        drop(state);
        self.disposes(task, run);
        let mut state = self.lock();
        state.reason = Reason::None;
        if !state.reference.entries[id].gone {
            state.fails(|| format!("{id} was refused and did not come back"));
        }
    }

    pub(super) fn cancels(&self) {
        let mut state = self.lock();
        let Some(handle) = state.some_handle() else {
            return;
        };
        state.report.operations += 1;
        let id = handle.id;
        state.reason = Reason::Cancels(id);
        let skip = state.sabotage == Some(Sabotage::SkipsCancel)
            && state.reference.entries[id].fate == Fate::Pending;
        drop(state);
        let answer = if skip {
            self.lock().reference.entries[id].gone = true;
            true
        } else {
            handle.timeout().cancel()
        };
        let mut state = self.lock();
        state.reason = Reason::None;
        state.note(|| format!("cancel {id}: {answer}"));
        state.report.stale += u64::from(!answer);
        let now = self.now();
        let verdict = state.reference.cancelled(id, answer, now);
        state.check(verdict);
        state.put_back_or_drop(handle, answer);
    }

    pub(super) fn moves(&self) {
        let mut state = self.lock();
        let Some(handle) = state.some_handle() else {
            return;
        };
        state.report.operations += 1;
        let now = self.now();
        let id = handle.id;
        let at = state.random.one_in(2);
        let kind = if at { Kind::At } else { Kind::Task };
        let Delayed(delay, deadline) = self.delay(&mut state, kind, now);
        let skip = state.sabotage == Some(Sabotage::SkipsMove)
            && state.reference.entries[id].fate == Fate::Pending;
        drop(state);
        let timeout = handle.timeout();
        let answer = if skip {
            true
        } else if at {
            timeout.reschedule_at(Instant::from_nanos(deadline))
        } else {
            timeout.reschedule(delay)
        };
        let mut state = self.lock();
        state.note(|| format!("move {id} to {deadline}: {answer}"));
        state.report.stale += u64::from(!answer);
        let verdict = state.reference.moved(id, answer, deadline, now);
        state.check(verdict);
        if handle.timeout().deadline().as_nanos() != state.reference.entries[id].deadline && !skip {
            state.fails(|| format!("{id} was moved to another deadline"));
        }
        state.put_back_or_drop(handle, answer);
    }

    pub(super) fn queries(&self) {
        let now = self.now();
        let mut state = self.lock();
        if state.handles.is_empty() {
            return;
        }
        state.report.operations += 1;
        let handles = state.handles.len() as u64;
        let index = state.random.below(handles);
        let question = state.random.below(16);
        let state = &mut *state;
        let handle = &state.handles[small(index)];
        let (id, timeout) = (handle.id, handle.timeout());
        let reference = &mut state.reference;
        let deadline = reference.entries[id].deadline;
        let verdict = match question {
            0..4 => reference.says_pending(id, timeout.is_pending(), now),
            4..8 => reference.says_expired(id, timeout.is_expired(), now),
            8..12 => reference.says_cancelled(id, timeout.is_cancelled()),
            12 | 13 if timeout.deadline().as_nanos() != deadline => Err(format!(
                "{id} says its deadline is {:?}",
                timeout.deadline()
            )),
            14 | 15 if nanos(timeout.remaining()) != deadline.saturating_sub(now) => {
                Err(format!("{id} says it has {:?} left", timeout.remaining()))
            }
            _ => Ok(()),
        };
        state.check(verdict);
    }

    pub(super) fn drops_handle(&self) {
        let mut state = self.lock();
        state.report.operations += 1;
        let handle = state.some_handle();
        drop(state);
        if let Some(handle) = handle {
            self.drops(handle);
        }
    }

    /// Drops a handle, which cancels if it is a guard.
    pub(super) fn drops(&self, handle: Handle) {
        let id = handle.id;
        let guards = matches!(handle.grip, Grip::Guard(_));
        let mut state = self.lock();
        state.note(|| format!("drop the handle of {id}, guard: {guards}"));
        if !guards {
            drop(state);
            return drop(handle);
        }
        state.reason = Reason::Cancels(id);
        drop(state);
        drop(handle);
        let now = self.now();
        let mut state = self.lock();
        state.reason = Reason::None;
        // It does not say whether it did; what was dropped does.
        let cancelled =
            state.reference.entries[id].fate == Fate::Pending && state.reference.entries[id].gone;
        let verdict = state.reference.cancelled(id, cancelled, now);
        state.check(verdict);
    }

    pub(super) fn guards(&self) {
        let mut state = self.lock();
        state.report.operations += 1;
        let Some(Handle { id, grip }) = state.some_handle() else {
            return;
        };
        let grip = match grip {
            Grip::Timeout(timeout) => Grip::Guard(timeout.cancel_on_drop()),
            guard @ Grip::Guard(_) => guard,
        };
        state.handles.push(Handle { id, grip });
    }

    // -- Executor --------------------------------------------------------------------------

    /// Runs, or loses, some of what the executor has accepted.
    pub(super) fn works(&self) {
        let Some(odds) = self.plan.executor else {
            return;
        };
        let count = self.lock().random.between(1, 4);
        for _ in 0..count {
            let mut state = self.lock();
            state.report.operations += 1;
            let works = state.works.len() as u64;
            let index = state.random.below(works + 1);
            let Some(work) = state.works.remove(small(index)) else {
                return;
            };
            let lost = state.random.one_in(odds.loses);
            drop(state);
            if lost {
                self.loses_work(work);
            } else {
                self.runs_work(work);
            }
        }
    }

    fn runs_work(&self, work: Work) {
        let mut state = self.lock();
        let forget = state.sabotage == Some(Sabotage::LosesWork) && state.random.one_in(64);
        drop(state);
        if forget {
            std::mem::forget(work);
        } else {
            work.run();
        }
        let mut state = self.lock();
        state.take_in(self.now());
    }

    fn loses_work(&self, work: Work) {
        let mut state = self.lock();
        state.note(|| "the executor drops its work".to_owned());
        state.reason = Reason::Loses;
        drop(state);
        drop(work);
        self.lock().reason = Reason::None;
    }

    /// Everything the executor has accepted, to be dropped when the timer is no more.
    pub(super) fn take_works(&self) -> VecDeque<Work> {
        std::mem::take(&mut self.lock().works)
    }

    pub(super) fn check_works(&self) {
        let mut state = self.lock();
        let (works, waiting) = (state.works.len(), state.reference.waiting());
        let retry = state.reference.retry.is_some();
        if self.plan.executor.is_some() && !retry && works < waiting {
            state.fails(|| format!("{waiting} wait, {works} were handed to the executor"));
        }
    }

    // -- The end ---------------------------------------------------------------------------

    /// Closes the timer, in any way, and perhaps asks what is left.
    pub(super) fn closes(&self, timer: &Timer) {
        let mut state = self.lock();
        let now = self.now();
        let inside = !state.running.is_empty();
        let random = &mut state.random;
        let stop = match random.below(4) {
            0 => Stop::HandBack,
            1 => Stop::Drop,
            2 if !inside => Stop::RunNow,
            _ => {
                let most = *random.pick(&[4, 40, self.plan.reach]);
                let ticks = random.below(most);
                Stop::WaitUpTo(Duration::from_nanos(ticks.saturating_mul(self.plan.tick)))
            }
        };
        drop(state);
        self.closes_by(timer, stop, now);
    }

    pub(super) fn closes_by(&self, timer: &Timer, stop: Stop, now: u64) {
        let mut state = self.lock();
        state.take_in(now);
        state.report.operations += 1;
        state.report.closed += u64::from(!state.reference.closed);
        state.note(|| format!("close by {stop:?}"));
        let verdict = state.reference.closes(stop, now);
        state.check(verdict);
        state.reason = match stop {
            Stop::HandBack | Stop::Drop => Reason::Stops,
            _ => Reason::None,
        };
        drop(state);
        let stopping = timer.close(stop);
        let mut state = self.lock();
        state.reason = Reason::None;
        let now = self.now();
        state.take_in(now);
        if state.reference.is_short_left() {
            state.fails(|| "a stop has not done what is short".to_owned());
        }
        if !timer.is_stopped() {
            state.fails(|| "a timer that was closed is open".to_owned());
        }
        if stop == Stop::Drop && state.stoppings.is_empty() {
            let out = state.reference.out;
            if out > 0 {
                state.fails(|| format!("{out} were not dropped by the stop"));
            }
        }
        state.stoppings.push(stopping);
        let later = state.random.one_in(4);
        drop(state);
        if !later {
            self.asks_stopping();
        }
    }

    /// Asks one of the stops what is left over.
    pub(super) fn asks_stopping(&self) {
        let mut state = self.lock();
        state.report.operations += 1;
        let Some(mut stopping) = state.stoppings.pop() else {
            return;
        };
        // While the host hands tasks to an executor, not all is known.
        let known = state.reference.is_inline() || !state.reference.is_hosting();
        let how = state.random.below(4);
        state.reference.unfired_begins();
        if how == 0 {
            state.note(|| "drop the stop".to_owned());
            state.reason = Reason::Unfired;
            drop(state);
            drop(stopping);
            self.lock().reason = Reason::None;
            return;
        }
        state.note(|| "ask the stop".to_owned());
        drop(state);
        // It runs what is ready, since there is no host to do so.
        let stopped = match how {
            1 => Some(stopping.wait()),
            2 => {
                let mut context = TaskContext::from_waker(Waker::noop());
                match Pin::new(&mut stopping).poll(&mut context) {
                    Poll::Ready(stopped) => Some(stopped),
                    Poll::Pending => {
                        self.lock().stoppings.push(stopping);
                        None
                    }
                }
            }
            _ => Some(stopping.wait_for(Duration::ZERO)),
        };
        let mut state = self.lock();
        let now = self.now();
        state.take_in(now);
        let (pending, waiting) = (state.reference.pending(), state.reference.waiting());
        let Some(stopped) = stopped else {
            return state.fails(|| "a stop does not end".to_owned());
        };
        if known && (waiting > 0 || stopped.is_complete() != (pending == 0)) {
            state.fails(|| {
                format!("{pending} are pending and {waiting} wait after a stop: {stopped:?}")
            });
        }
        drop(state);
        self.takes_unfired(stopped);
    }

    fn takes_unfired(&self, stopped: Stopped) {
        for task in stopped.unfired {
            let mut state = self.lock();
            state.reason = Reason::Unfired;
            let run = state.random.one_in(2);
            drop(state);
            self.disposes(task, run);
            self.lock().reason = Reason::None;
        }
        let mut state = self.lock();
        let out = state.reference.out;
        if state.stoppings.is_empty() && out > 0 {
            state.fails(|| format!("{out} were neither given back nor dropped by the stop"));
        }
    }

    /// While the last clone of the timer is dropped.
    pub(super) fn while_dropping(&self, drops: impl FnOnce()) {
        self.lock().reason = Reason::Stops;
        drops();
        self.lock().reason = Reason::None;
    }

    // -- What it says about itself ---------------------------------------------------------

    pub(super) fn checks_stats(&self, timer: &Timer) {
        let mut state = self.lock();
        state.take_in(self.now());
        state.report.operations += 1;
        let snapshot = state.random.one_in(2);
        drop(state);
        if snapshot {
            return self.checks_snapshot(timer);
        }
        let stats = timer.stats();
        let mut state = self.lock();
        let verdict = state.agrees(&stats);
        state.check(verdict);
    }

    fn checks_snapshot(&self, timer: &Timer) {
        let snapshot = timer.snapshot();
        let mut state = self.lock();
        let now = self.now();
        let verdict = state.agrees(&snapshot.stats);
        state.check(verdict);
        if snapshot.now != self.clock.now() || snapshot.stopped != state.reference.closed {
            state.fails(|| format!("not the time, or not the state: {snapshot:?}"));
        }
        let running: Vec<_> = snapshot
            .running
            .iter()
            .map(|one| (one.deadline.as_nanos(), nanos(one.since)))
            .collect();
        let expected: Vec<_> = state
            .running
            .iter()
            .map(|&(id, since)| {
                let deadline = state.reference.entries[id].deadline;
                (deadline, now - since.as_nanos())
            })
            .collect();
        if running != expected {
            state.fails(|| format!("{expected:?} run, not {running:?}"));
        }
        if !state.reference.is_hosting() {
            let shards = snapshot.shards.iter().map(|shard| shard.pending);
            let expected = state.reference.shards_used();
            if !shards.eq(expected.iter().copied()) {
                state.fails(|| format!("the shards have {expected:?}: {snapshot:?}"));
            }
            let since = state.reference.overdue_since(now);
            let overdue = since.map_or(0, |since| now.saturating_sub(since));
            if nanos(snapshot.overdue) < overdue {
                state.fails(|| format!("overdue by {overdue}: {snapshot:?}"));
            }
        }
        drop(state);
        self.checks_wake(snapshot.next_wake);
    }

    /// When the host is told to look next.
    pub(super) fn checks_wake(&self, wake: Option<Instant>) {
        let mut state = self.lock();
        state.report.operations += 1;
        let verdict = state
            .reference
            .says_wake(wake.map(Instant::as_nanos), self.now());
        state.check(verdict);
    }
}

/// A delay, and the deadline that comes of it, in nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct Delayed(Duration, u64);

#[derive(Clone, Copy)]
struct Offer {
    id: Id,
    kind: Kind,
    delayed: Delayed,
    thread: u32,
    deed: Deed,
}

impl State {
    /// Everything that scheduling needs to know.
    fn offers(&mut self, desk: &Desk, kind: Kind, delayed: Option<Delayed>, now: u64) -> Offer {
        self.report.operations += 1;
        let delayed = delayed.unwrap_or_else(|| desk.delay(self, kind, now));
        let deed = match kind {
            Kind::Task | Kind::At => desk.plan.deeds.pick(&mut self.random, &Deed::ALL),
            Kind::Send | Kind::Wake => Deed::Nothing,
        };
        let thread = *self.random.pick(&THREADS[..desk.plan.threads]);
        let shard = small(thread.into()) % desk.plan.shards;
        let id = self.reference.offer(kind, shard, delayed.1);
        self.note(|| {
            let deadline = delayed.1;
            format!("schedule {id} at {deadline}: {kind:?} on shard {shard}, does {deed:?}")
        });
        Offer {
            id,
            kind,
            delayed,
            thread,
            deed,
        }
    }

    /// Takes one of the handles out.
    fn some_handle(&mut self) -> Option<Handle> {
        if self.handles.is_empty() {
            return None;
        }
        let index = self.random.below(self.handles.len() as u64);
        Some(self.handles.swap_remove(small(index)))
    }

    /// Keeps a handle, most often: also of what is gone, to be used in vain.
    fn put_back_or_drop(&mut self, handle: Handle, answer: bool) {
        // One that guards something pending would cancel.
        if answer || self.random.one_in(2) || matches!(handle.grip, Grip::Guard(_)) {
            self.handles.push(handle);
        }
    }

    /// Something runs, is woken or has been received. Whether it has fired, rather than come
    /// back.
    fn arrives(&mut self, id: Id, now: u64) -> bool {
        self.note(|| format!("    {id} arrives at {now}"));
        let verdict = match self.reason {
            Reason::None => {
                let skew = u64::from(self.sabotage == Some(Sabotage::EarlyClock));
                self.report.trace = self.report.trace.rotate_left(5) ^ (id as u64) ^ now;
                let started = self.reference.started(id, now - skew.min(now));
                let again = self.sabotage == Some(Sabotage::RunsTwice) && id % 64 == 63;
                if again {
                    started.and_then(|()| self.reference.started(id, now))
                } else {
                    started
                }
            }
            Reason::Refused(refused) if refused == id => {
                self.reference.entries[id].gone = true;
                Ok(())
            }
            Reason::Overload => self.reference.handed_back(id),
            Reason::Stops => self.reference.came_out(id),
            Reason::Unfired => self.reference.unfired(id),
            Reason::Refused(_) | Reason::Cancels(_) | Reason::Loses => {
                Err(format!("{id} runs although {:?}", self.reason))
            }
        };
        if self.reason == Reason::None {
            self.reference.entries[id].gone = true;
        }
        self.check(verdict);
        self.reason == Reason::None
    }

    /// Takes in the values that have been sent.
    pub(super) fn take_in(&mut self, now: u64) {
        while let Ok(mut probe) = self.inbox.1.try_recv() {
            probe.armed = false;
            self.arrives(probe.id, now);
        }
    }

    /// The counters of the timer against the reference's.
    fn agrees(&self, stats: &countwheel::Stats) -> Result<(), String> {
        let reference = &self.reference;
        let counts = &reference.counts;
        let (pending, waiting) = (reference.pending() as u64, reference.waiting() as u64);
        let left = stats.pending + stats.waiting;
        let settled = !reference.is_hosting() || reference.is_inline();
        let right = stats.added == counts.added
            && stats.ran == counts.ran
            && stats.cancelled == counts.cancelled
            && stats.returned == counts.returned
            && left == pending + waiting
            && (!settled || stats.pending == pending)
            && stats.running == self.running.len() as u64
            && stats.refused == counts.refused
            && stats.moved == counts.moved
            && stats.panicked == counts.panicked
            && stats.slow == counts.slow
            && stats.overloaded == counts.overloaded
            && stats.slowest.map(|slowest| slowest.took) == counts.slowest
            && stats.wake_ups == 0
            && stats.host_failures == 0
            && stats.added == stats.ran + stats.cancelled + stats.returned + left;
        let late = !self.running.is_empty()
            || !reference.lateness_is_known
            || stats.lateness == counts.lateness && stats.lateness_max == counts.lateness_max;
        if right && late {
            return Ok(());
        }
        let running = self.running.len();
        Err(format!(
            "the counters differ: {stats:?}, expected {counts:?}, {pending} pending, \
             {waiting} waiting, {running} running"
        ))
    }

    /// Notes the first thing that is wrong.
    pub(super) fn check(&mut self, verdict: Result<(), String>) {
        if let Err(what) = verdict {
            self.fails(|| what);
        }
    }

    pub(super) fn fails(&mut self, what: impl FnOnce() -> String) {
        if self.failure.is_none() {
            self.failure = Some(what());
        }
    }

    /// Says what happens, if anybody wants to know.
    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        if self.log_max == 0 && !self.print || self.failure.is_some() {
            return;
        }
        let line = format!("{:>9} {}", self.report.operations, what());
        if self.print {
            println!("{line}");
        }
        if self.log_max > 0 {
            self.log.push_back(line);
            if self.log.len() > self.log_max {
                self.log.pop_front();
            }
        }
    }

    pub(super) fn take_log(&mut self) -> Vec<String> {
        self.log.drain(..).collect()
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
