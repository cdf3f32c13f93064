//! The shell around the state machines of periodic tasks, supervised tasks and workers.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::FAR;
use super::spawned::{Spawned, spawn};
use super::stop_signal::StopSignal;
use countwheel::building::{Alarm, Panicked, caught, continue_at, returns, run_soon, timer_name};
use countwheel::{Instant, ScheduleError, Timer, WeakTimer};
use countwheel_time::locks;

/// Decides what is done when. Reads no clock, starts nothing, calls nobody.
pub(crate) trait Machine: Send + 'static {
    /// What its owner tells it.
    type Order: Send + 'static;
    /// What a run says at its end.
    type End: Send + 'static;
    /// What a listener hears.
    type Note: Send + 'static;

    /// Something has happened. Times never go back.
    fn on(&mut self, now: Instant, event: Event<Self>) -> Act<Self::Note>;

    /// When it wants to be rung next. Earlier does no harm.
    fn due(&self) -> Option<Instant>;

    /// Whether no run is going to begin any more.
    fn is_ending(&self) -> bool;

    /// Whether, besides, none goes on.
    fn is_over(&self) -> bool;
}

/// What may happen to a [`Machine`].
pub(crate) enum Event<M: Machine + ?Sized> {
    /// The time has come, or perhaps not yet.
    Rang,
    /// A run that was asked for has its turn. It begins if that is granted.
    Begun(u64),
    Ended(u64, Ended<M::End>),
    /// A run that was asked for will never have its turn.
    Lost(u64),
    Told(M::Order),
    /// Nothing rings or runs any more.
    TimerEnded,
}

/// How a run has ended.
pub(crate) enum Ended<E> {
    Returned(E),
    Panicked,
    /// A future that was dropped before its end.
    Dropped,
}

/// What a [`Machine`] wants to be done.
pub(crate) struct Act<N> {
    /// Whether a run may begin, or an order made a difference.
    pub(crate) granted: bool,
    /// Have this run begin as soon as there is room.
    pub(crate) run: Option<u64>,
    /// Tell this run to stop, and drop it if it is a future.
    pub(crate) tell: Option<u64>,
    pub(crate) note: Option<N>,
}

impl<N> Act<N> {
    pub(crate) fn none() -> Self {
        Self {
            granted: false,
            run: None,
            tell: None,
            note: None,
        }
    }

    pub(crate) fn granted(granted: bool) -> Self {
        let none = Self::none();
        Self { granted, ..none }
    }

    pub(crate) fn run(run: u64) -> Self {
        let run = Some(run);
        let none = Self::none();
        Self { run, ..none }
    }
}

/// What is done at each run.
pub(crate) trait Perform<M: Machine>: Send + Sync + 'static {
    /// Does it, or begins to. Whatever belongs to the caller is dropped before `run` ends.
    fn perform(self: Arc<Self>, run: Running<M>);

    /// What people know it by.
    fn name(&self) -> &'static str;
}

/// One chain of runs. What the timer holds of it is one waker, or the run that has its turn next;
/// so it lives as long as that or a handle does, and never keeps the timer alive.
pub(crate) struct Chain<M: Machine> {
    timer: WeakTimer,
    alarm: Alarm,
    state: Mutex<State<M>>,
    /// Given when all is over.
    over: StopSignal,
    /// Given when no run is going to begin any more.
    ending: Option<StopSignal>,
}

/// Hears of each run: on the executor, or on the thread of a handle.
pub(crate) type Listener<N> = Arc<dyn Fn(N) + Send + Sync>;

/// Who else is told.
pub(crate) struct Hears<N> {
    pub(crate) listener: Option<Listener<N>>,
    /// Given when no run is going to begin any more.
    pub(crate) ending: Option<StopSignal>,
}

impl<N> Hears<N> {
    pub(crate) fn nobody() -> Self {
        Self {
            listener: None,
            ending: None,
        }
    }
}

struct State<M: Machine> {
    machine: M,
    /// What the clock showed at the last event.
    now: Instant,
    /// What belongs to the caller is dropped when all is over, not when nobody knows of it.
    work: Option<Arc<dyn Perform<M>>>,
    listener: Option<Listener<M::Note>>,
    going: Vec<Going>,
    /// The threads on which foreign code is told of what has happened.
    foreign: Vec<ThreadId>,
}

/// A run that has begun and not ended.
struct Going {
    run: u64,
    /// The thread that is in it, unless it is a future.
    thread: Option<ThreadId>,
    told: bool,
    signal: Option<StopSignal>,
    future: Option<Spawned>,
}

impl<M: Machine> Chain<M> {
    /// Files the first alarm.
    pub(crate) fn start(
        timer: &Timer,
        now: Instant,
        machine: M,
        work: Arc<dyn Perform<M>>,
        hears: Hears<M::Note>,
    ) -> Result<Arc<Self>, ScheduleError> {
        let due = machine.due().map_or(FAR, |due| due.min(FAR));
        let chain = Arc::new(Self {
            timer: timer.downgrade(),
            alarm: Alarm::new(),
            state: Mutex::new(State {
                machine,
                now,
                work: Some(work),
                listener: hears.listener,
                going: Vec::new(),
                foreign: Vec::new(),
            }),
            over: StopSignal::new(),
            ending: hears.ending,
        });
        // This one is an ordinary entry; those that follow are its continuation.
        chain.alarm.ring_first_by(timer, due, || chain.waker())?;
        Ok(chain)
    }

    /// Tells the machine something. Whether that made a difference.
    pub(crate) fn tell(self: &Arc<Self>, order: M::Order) -> bool {
        self.handle(Event::Told(order))
    }

    pub(crate) fn look<R>(&self, look: impl FnOnce(&M) -> R) -> R {
        look(&self.lock().machine)
    }

    pub(crate) fn over(&self) -> &StopSignal {
        &self.over
    }

    /// Blocks until all is over, or for this long. A run does not wait for its own end.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let here = thread::current().id();
        let state = self.lock();
        let runs_here = state.going.iter().any(|going| going.thread == Some(here));
        if runs_here || state.foreign.contains(&here) {
            return false;
        }
        drop(state);
        self.over.wait_for(patience)
    }

    /// Until this is dropped, foreign code runs on this thread. It may wait for the end, which
    /// this thread has yet to bring: it is told so instead.
    fn apart(&self) -> Apart<'_, M> {
        let here = thread::current().id();
        self.lock().foreign.push(here);
        Apart { chain: self, here }
    }

    fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    fn lock(&self) -> MutexGuard<'_, State<M>> {
        locks::lock(&self.state)
    }

    /// Lets the machine decide under the lock, and carries the decision out without the lock.
    fn handle(self: &Arc<Self>, event: Event<M>) -> bool {
        let is_on_host = matches!(event, Event::Rang);
        // Dropped at the very end: it may be the last, and then the timer ends right here.
        let timer = self.timer.upgrade();
        let open = timer.as_ref().filter(|timer| !timer.is_stopped());
        let read = timer.as_ref().map(Timer::now);

        let mut state = self.lock();
        state.now = state.now.max(read.unwrap_or(state.now));
        let now = state.now;
        let (begun, ended) = match &event {
            Event::Begun(run) => (Some(*run), None),
            Event::Ended(run, _) => (None, Some(*run)),
            _ => (None, None),
        };
        let mut act = state.machine.on(now, event);
        if let Some(run) = begun.filter(|_| act.granted) {
            state.going.push(Going {
                run,
                thread: Some(thread::current().id()),
                told: false,
                signal: None,
                future: None,
            });
        }
        let gone = ended.and_then(|run| state.take_going(run));
        if open.is_none() {
            let end = state.machine.on(now, Event::TimerEnded);
            act.run = None;
            act.tell = act.tell.or(end.tell);
        }
        let told = act.tell.and_then(|run| state.tell(run));
        let due = state.machine.due();
        let is_ending = state.machine.is_ending();
        let is_over = state.machine.is_over();
        let listener = state.listener.clone().filter(|_| act.note.is_some());
        let owned = is_over.then(|| (state.work.take(), state.listener.take()));
        drop(state);

        drop(gone);
        if let Some((signal, future)) = told {
            returns(|| signal.iter().for_each(StopSignal::stop));
            let end = future.map(EndWhenDropped);
            match open.filter(|_| is_on_host && end.is_some()) {
                // What the future owns is foreign. A refused task is dropped, and ends it too.
                Some(timer) => drop(run_soon(timer, move || drop(end))),
                None => drop(end),
            }
        }
        if let (Some(note), Some(listener)) = (act.note, listener) {
            if let Some(timer) = open.filter(|_| is_on_host) {
                let chain = Arc::clone(self);
                let told = move || {
                    let _apart = chain.apart();
                    listener(note);
                };
                drop(run_soon(timer, told));
            } else {
                let apart = self.apart();
                if !returns(move || listener(note)) {
                    tracing::error!("a listener panicked");
                }
                drop(apart);
            }
        }
        if let Some(ending) = self.ending.as_ref().filter(|_| is_ending) {
            returns(|| ending.stop());
        }
        if let (Some(run), Some(timer)) = (act.run, open) {
            let turn = ChainTurn::new(self, run);
            // A refused turn is dropped, and says so.
            drop(continue_at(timer, now, turn.name, move || turn.run()));
        }
        if is_over {
            let apart = self.apart();
            returns(|| drop(owned));
            drop(apart);
            returns(|| self.over.stop());
        }
        // At the end of time, what is never due must not be due again and again.
        if let Some(due) = due.filter(|&due| due < FAR || now < FAR) {
            self.ring_by(due);
        }
        if self.over.is_stopped() {
            self.silence();
        }
        act.granted
    }

    /// See [`Alarm`]: `due` was filed under the lock, which was given up since.
    fn ring_by(self: &Arc<Self>, due: Instant) {
        let due = due.min(FAR);
        let timer = self.timer.upgrade();
        let rings = timer.as_ref().is_some_and(|timer| {
            let set = self.alarm.ring_by(timer, due, || self.waker());
            set.is_ok()
        });
        if !rings {
            self.handle(Event::TimerEnded);
        }
    }

    fn silence(&self) {
        self.alarm.silence();
    }
}

/// See [`Chain::apart`].
struct Apart<'a, M: Machine> {
    chain: &'a Chain<M>,
    here: ThreadId,
}

impl<M: Machine> Drop for Apart<'_, M> {
    fn drop(&mut self) {
        let foreign = &mut self.chain.lock().foreign;
        if let Some(place) = foreign.iter().rposition(|&thread| thread == self.here) {
            foreign.swap_remove(place);
        }
    }
}

impl<M: Machine> State<M> {
    fn take_going(&mut self, run: u64) -> Option<Going> {
        let place = self.going.iter().position(|going| going.run == run)?;
        Some(self.going.swap_remove(place))
    }

    fn tell(&mut self, run: u64) -> Option<(Option<StopSignal>, Option<Spawned>)> {
        let going = self.going.iter_mut().find(|going| going.run == run)?;
        going.told = true;
        Some((going.signal.clone(), going.future.take()))
    }
}

impl<M: Machine> Wake for Chain<M> {
    fn wake(self: Arc<Self>) {
        self.silence();
        self.handle(Event::Rang);
    }
}

impl<M: Machine> Drop for Chain<M> {
    fn drop(&mut self) {
        // Nobody is left who could end it otherwise.
        returns(|| self.over.stop());
    }
}

struct EndWhenDropped(Spawned);

impl Drop for EndWhenDropped {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A run on its way to its turn.
struct ChainTurn<M: Machine> {
    chain: Option<Arc<Chain<M>>>,
    run: u64,
    name: &'static str,
}

impl<M: Machine> ChainTurn<M> {
    fn new(chain: &Arc<Chain<M>>, run: u64) -> Self {
        let name = chain.lock().work.as_ref().map(|work| work.name());
        Self {
            chain: Some(Arc::clone(chain)),
            run,
            name: name.unwrap_or("a run that was cancelled"),
        }
    }
}

impl<M: Machine> ChainTurn<M> {
    fn run(mut self) {
        let Some(chain) = self.chain.take() else {
            return;
        };
        let (run, name) = (self.run, self.name);
        if !chain.handle(Event::Begun(run)) {
            return;
        }
        let work = chain.lock().work.clone();
        let running = Running {
            chain: Some(Arc::clone(&chain)),
            run,
            name: self.name,
        };
        if let Some(work) = work
            && caught(|| work.perform(running)) == Err(Panicked::NoRuntime)
        {
            let timer = chain.timer.upgrade();
            let timer = timer.as_ref().map(timer_name);
            tracing::error!(
                timer,
                task = name,
                "a run needs a tokio runtime, and its timer has none"
            );
        }
        let mut state = chain.lock();
        if let Some(going) = state.going.iter_mut().find(|going| going.run == run) {
            going.thread = None;
        }
    }
}

impl<M: Machine> Drop for ChainTurn<M> {
    fn drop(&mut self) {
        if let Some(chain) = self.chain.take() {
            chain.handle(Event::Lost(self.run));
        }
    }
}

/// A run that has begun. Who has it says how it ends; dropping it says that it panicked, or that
/// its future was dropped.
pub(crate) struct Running<M: Machine> {
    chain: Option<Arc<Chain<M>>>,
    run: u64,
    name: &'static str,
}

impl<M: Machine> Running<M> {
    pub(crate) fn end(mut self, end: M::End) {
        self.report(Ended::Returned(end));
    }

    /// What tells this run to stop.
    pub(crate) fn signal(&self) -> StopSignal {
        let signal = StopSignal::new();
        if let Some(chain) = &self.chain {
            let mut state = chain.lock();
            let going = state.going.iter_mut().find(|going| going.run == self.run);
            match going {
                Some(going) if !going.told => going.signal = Some(signal.clone()),
                _ => signal.stop(),
            }
        }
        signal
    }

    /// Goes on as `future`, on the timer's executor.
    pub(crate) fn go_on<F>(self, future: F)
    where
        F: Future<Output: Into<M::End>> + Send + 'static,
    {
        let Some(chain) = self.chain.clone() else {
            return;
        };
        let run = self.run;
        let mut this = self;
        let spawned = spawn(&chain.timer, async move {
            let end = future.await.into();
            this.report(Ended::Returned(end));
        });
        // If it is refused, it has been dropped, and has said so.
        let Ok(spawned) = spawned else { return };
        let mut state = chain.lock();
        let going = state.going.iter_mut().find(|going| going.run == run);
        let end = going.and_then(|going| {
            if going.told {
                return Some(EndWhenDropped(spawned));
            }
            going.future = Some(spawned);
            None
        });
        drop(state);
        drop(end);
        // A future may wait for ever for what a stopped timer does not bring any more.
        chain.ring_by(FAR);
        if chain.over.is_stopped() {
            // It was over before the alarm was set: nobody else takes that back.
            chain.silence();
        }
    }

    fn report(&mut self, ended: Ended<M::End>) {
        if let Some(chain) = self.chain.take() {
            chain.handle(Event::Ended(self.run, ended));
        }
    }
}

impl<M: Machine> Drop for Running<M> {
    fn drop(&mut self) {
        if self.chain.is_some() && thread::panicking() {
            tracing::error!(task = self.name, "a run panicked");
            self.report(Ended::Panicked);
        } else {
            self.report(Ended::Dropped);
        }
    }
}

/// A function that is called by one run at a time.
pub(crate) struct Calls<F>(Mutex<F>);

/// A function whose futures are the runs, one at a time.
pub(crate) struct Futures<F>(Mutex<F>);

impl<F> Calls<F> {
    pub(crate) fn new(function: F) -> Arc<Self> {
        Arc::new(Self(Mutex::new(function)))
    }

    pub(crate) fn into_inner(self) -> F {
        locks::whole(self.0.into_inner())
    }
}

impl<F> Futures<F> {
    pub(crate) fn new(function: F) -> Arc<Self> {
        Arc::new(Self(Mutex::new(function)))
    }

    pub(crate) fn into_inner(self) -> F {
        locks::whole(self.0.into_inner())
    }
}

impl<M, F, R> Perform<M> for Calls<F>
where
    M: Machine,
    F: FnMut() -> R + Send + 'static,
    R: Into<M::End>,
{
    fn perform(self: Arc<Self>, run: Running<M>) {
        // A panic drops it before `run`, as a return does.
        let work = self;
        // Always free: one run at a time.
        let end = locks::lock(&work.0)().into();
        drop(work);
        run.end(end);
    }

    fn name(&self) -> &'static str {
        std::any::type_name::<F>()
    }
}

impl<M, F, A> Perform<M> for Futures<F>
where
    M: Machine,
    F: FnMut() -> A + Send + 'static,
    A: Future<Output: Into<M::End>> + Send + 'static,
{
    fn perform(self: Arc<Self>, run: Running<M>) {
        let work = self;
        let future = locks::lock(&work.0)();
        drop(work);
        run.go_on(future);
    }

    fn name(&self) -> &'static str {
        std::any::type_name::<F>()
    }
}

/// Cancels (or closes) what it holds when it is dropped. Made by `cancel_on_drop` of
/// [`Periodic`](super::Periodic) and [`Supervised`](super::Supervised) and by
/// [`Worker::close_on_drop`](super::Worker::close_on_drop).
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{CancelGuard, Periodic};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let second = Duration::from_secs(1);
/// let beat = Periodic::at_fixed_rate(second).start(host.timer(), || {})?;
/// let beat: CancelGuard<Periodic> = beat.cancel_on_drop();
/// host.advance(3 * second);
/// assert_eq!(beat.stats().runs, 3, "it is used like what it holds");
/// drop(beat);
/// assert_eq!(host.advance(3 * second), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the guard cancels when it is dropped"]
pub struct CancelGuard<H> {
    handle: H,
    cancel: fn(&H) -> bool,
}

impl<H> CancelGuard<H> {
    pub(crate) fn new(handle: H, cancel: fn(&H) -> bool) -> Self {
        Self { handle, cancel }
    }
}

impl<H> std::ops::Deref for CancelGuard<H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.handle
    }
}

impl<H> Drop for CancelGuard<H> {
    fn drop(&mut self) {
        (self.cancel)(&self.handle);
    }
}
