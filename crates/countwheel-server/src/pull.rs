//! The desk at which workers fetch work: calls that wait for leases, and attempts that were leased for them.
//!
//! A call asks for so many leases of each of its queues. The engine takes one of them for each timer that is due
//! ([`Flows::lease`](countwheel_durable::Flows::lease)), makes the lease durable, and hands the attempt over. It goes to
//! the call that has waited longest. An attempt that finds no call, since that has given up, waits here for the next,
//! and is given back to its queue soon.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::{Attempt, Flow, LeaseToken, QueueName, Request, TimerName, Timers};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::bodies::Share;

/// What the name of a flow of leases begins with.
pub(crate) const PULL: &str = "pull ";
/// The most leases of one call.
pub(crate) const LEASES_MAX: u32 = 1_000;
/// The most bytes of bodies in one answer, but for its first.
pub(crate) const LEASED_MAX_BYTES: usize = 8 << 20;
/// How long a lease may be.
pub(crate) const LEASE_MIN: Duration = Duration::from_secs(1);
/// See [`LEASE_MIN`].
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(12 * 3_600);
/// How long a lease is that nobody has said anything of.
pub(crate) const LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// The longest wait of a call.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);
/// The most queues of one call.
pub(crate) const QUEUES_MAX: usize = 64;

/// A call that has something waits so long for more, each time that something comes.
const LINGER: Duration = Duration::from_millis(4);
/// A call that does not wait looks for so long.
pub(crate) const GLANCE: Duration = Duration::from_millis(100);
/// An attempt that nobody asks for is given back after so long.
const READY_FOR: Duration = Duration::from_millis(500);
/// A call that waits asks anew so often: what it asked for may have been used up by a commit that failed.
const ASKS_AGAIN: Duration = Duration::from_secs(1);
/// Of so many leases it is known which worker has them.
pub(crate) const WORKERS_MAX: usize = 65_536;
/// So many bytes a body is thought to have until some have come.
const BODY_GUESS: usize = 256 << 10;

/// The flow out of which the timers of a queue are leased.
pub(crate) fn flow_of(queue: &QueueName) -> Flow {
    Flow::new(format!("{PULL}{queue}"))
}

/// What a call asks for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The queues, and how long a lease of each is.
    pub(crate) queues: Vec<(QueueName, Duration)>,
    pub(crate) max: u32,
    /// The most bytes of bodies, but for the first.
    pub(crate) bytes: usize,
    pub(crate) wait: Duration,
    pub(crate) worker: Option<Arc<str>>,
}

impl Wanted {
    fn names(&self) -> impl Iterator<Item = &QueueName> {
        self.queues.iter().map(|(queue, _)| queue)
    }

    /// How long a lease of that queue is to be.
    pub(crate) fn length_of(&self, queue: &QueueName) -> Option<Duration> {
        let mut queues = self.queues.iter();
        let (_, length) = queues.find(|(known, _)| known == queue)?;
        Some(*length)
    }
}

/// What a call has got.
#[derive(Debug, Default)]
pub(crate) struct Leased {
    pub(crate) attempts: Vec<Attempt>,
    /// There was no memory for more.
    pub(crate) is_refused: bool,
    /// The memory for the bodies.
    pub(crate) share: Option<Share>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Desk {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The service stops: no call waits any more.
    is_closed: bool,
    next: u64,
    calls: BTreeMap<u64, Call>,
    queues: BTreeMap<QueueName, OfQueue>,
    workers: Workers,
}

/// A call that waits.
#[derive(Debug)]
struct Call {
    /// How many more it takes.
    room: u32,
    bytes: usize,
    /// The most bytes of bodies, but for the first.
    most: usize,
    got: Vec<Attempt>,
    /// Its part of the memory for bodies.
    share: Share,
    /// There was no memory for the next.
    is_refused: bool,
    worker: Option<Arc<str>>,
    wake: Arc<Notify>,
}

impl Call {
    /// Takes an attempt, or returns it if there is no room or memory for it.
    fn take(&mut self, attempt: Attempt, workers: &mut Workers) -> Option<Attempt> {
        let bytes = attempt.payload.len();
        let fits = self.got.is_empty() || self.bytes + bytes <= self.most;
        if self.room == 0 || self.is_refused || !fits {
            return Some(attempt);
        }
        if !self.share.take(bytes) {
            self.is_refused = true;
            return Some(attempt);
        }
        self.room -= 1;
        self.bytes += bytes;
        let token = attempt.lease_token();
        workers.note(&attempt.name, token, self.worker.as_ref());
        self.got.push(attempt);
        None
    }
}

#[derive(Debug, Default)]
struct OfQueue {
    /// The calls that ask for leases, in the order in which they came: how many each asks for, and for how long.
    asked: VecDeque<Asked>,
    /// Attempts that nobody has asked for, and since when.
    ready: VecDeque<(Instant, Attempt)>,
    /// About how long a body is.
    body: Option<usize>,
    /// Somebody gives back what is ready.
    is_watched: bool,
}

#[derive(Debug)]
struct Asked {
    call: u64,
    leases: u32,
    lease: Duration,
    /// How many of these the engine has not taken yet.
    open: u32,
}

/// Who has which lease, of the last that were granted here.
#[derive(Debug, Default)]
struct Workers {
    of: BTreeMap<TimerName, (LeaseToken, Arc<str>)>,
    order: VecDeque<(TimerName, LeaseToken)>,
}

impl Workers {
    fn note(&mut self, name: &TimerName, token: LeaseToken, worker: Option<&Arc<str>>) {
        let Some(worker) = worker else {
            self.of.remove(name);
            return;
        };
        while self.order.len() >= WORKERS_MAX
            && let Some((oldest, token)) = self.order.pop_front()
        {
            let is_same = |(known, _): &(LeaseToken, Arc<str>)| *known == token;
            if self.of.get(&oldest).is_some_and(is_same) {
                self.of.remove(&oldest);
            }
        }
        self.order.push_back((name.clone(), token));
        self.of.insert(name.clone(), (token, Arc::clone(worker)));
    }
}

impl Desk {
    /// Whether somebody asks for a lease of this queue.
    pub(crate) fn asks(&self, queue: &QueueName) -> bool {
        let state = self.state.lock();
        let of_queue = state.queues.get(queue);
        of_queue.is_some_and(|it| it.asked.iter().any(|asked| asked.open > 0))
    }

    /// Takes one of the leases that somebody asks for.
    pub(crate) fn grant(&self, queue: &QueueName) -> Option<Duration> {
        let mut state = self.state.lock();
        let of_queue = state.queues.get_mut(queue)?;
        let asked = of_queue.asked.iter_mut().find(|asked| asked.open > 0)?;
        asked.open -= 1;
        Some(asked.lease)
    }

    /// The worker that has a timer's lease of this token, as far as this process granted it.
    pub(crate) fn worker(&self, name: &TimerName, token: LeaseToken) -> Option<Arc<str>> {
        let state = self.state.lock();
        let (known, worker) = state.workers.of.get(name)?;
        (*known == token).then(|| Arc::clone(worker))
    }

    /// Another node has leased this for a call of this one.
    pub(crate) fn note_worker(
        &self,
        name: &TimerName,
        token: LeaseToken,
        worker: Option<&Arc<str>>,
    ) {
        self.state.lock().workers.note(name, token, worker);
    }

    /// The worker that had the last lease of a timer that this process granted.
    pub(crate) fn last_worker(&self, name: &TimerName) -> Option<Arc<str>> {
        let state = self.state.lock();
        state
            .workers
            .of
            .get(name)
            .map(|(_, worker)| Arc::clone(worker))
    }

    /// An attempt was leased. It goes to the first call that asked for it.
    pub(crate) fn arrived(self: &Arc<Self>, runtime: &Handle, attempt: Attempt) {
        let mut state = self.state.lock();
        let State {
            calls,
            queues,
            workers,
            ..
        } = &mut *state;
        let queue = attempt.name.queue.clone();
        let of_queue = queues.entry(queue.clone()).or_default();
        let bytes = attempt.payload.len();
        of_queue.body = Some(of_queue.body.map_or(bytes, |known| (7 * known + bytes) / 8));
        let mut left = attempt;
        for asked in &mut of_queue.asked {
            let Some(call) = calls.get_mut(&asked.call).filter(|_| asked.leases > 0) else {
                continue;
            };
            let back = call.take(left, workers);
            call.wake.notify_one();
            if back.is_some() || call.bytes >= call.most {
                // Nothing more is granted for it: a body was longer than those before.
                asked.open = 0;
            }
            match back {
                None => {
                    asked.leases -= 1;
                    return;
                }
                Some(back) => left = back,
            }
        }
        of_queue.ready.push_back((Instant::now(), left));
        if !std::mem::replace(&mut of_queue.is_watched, true) {
            runtime.spawn(Arc::clone(self).give_back_stale(queue));
        }
    }

    /// The service stops: the calls that wait answer with what they have, and later ones do not wait.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        for call in state.calls.values() {
            call.wake.notify_one();
        }
    }

    /// Gives back what nobody asks for, until nothing is ready.
    async fn give_back_stale(self: Arc<Self>, queue: QueueName) {
        loop {
            tokio::time::sleep(READY_FOR / 2).await;
            let Some(stale) = self.take_stale(&queue) else {
                return;
            };
            stale.iter().for_each(release);
        }
    }

    /// Takes out what has been ready for too long; `None` once nothing is.
    fn take_stale(&self, queue: &QueueName) -> Option<Vec<Attempt>> {
        let mut state = self.state.lock();
        let of_queue = state.queues.get_mut(queue)?;
        let is_stale = |(since, _): &(Instant, Attempt)| since.elapsed() >= READY_FOR;
        let count = of_queue.ready.iter().take_while(|it| is_stale(it)).count();
        let stale: Vec<_> = of_queue.ready.drain(..count).map(|(_, it)| it).collect();
        if of_queue.ready.is_empty() && stale.is_empty() {
            of_queue.is_watched = false;
            if of_queue.asked.is_empty() {
                state.queues.remove(queue);
            }
            return None;
        }
        Some(stale)
    }

    /// Leases timers that are due, and waits for some if none is. Each is of one of the queues that are wanted.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        timers: &Timers,
        wanted: &Wanted,
        share: Share,
    ) -> Leased {
        let begun = Instant::now();
        let (number, wake) = self.begin(wanted, share);
        // Takes back what is asked for, however this ends.
        let waiting = Waiting {
            desk: Arc::clone(self),
            number,
            queues: wanted.names().cloned().collect(),
        };
        let ends = begun + wanted.wait.max(GLANCE);
        let mut lingers: Option<Instant> = None;
        let mut seen = 0;
        let mut asks_again = begun + ASKS_AGAIN;
        self.wake_engines(timers, wanted);
        loop {
            let (has, is_full) = self.progress(number);
            if is_full {
                break;
            }
            let now = Instant::now();
            if has > seen {
                (seen, lingers) = (has, Some(now + LINGER));
                // Now that it is known how long bodies are.
                self.state.lock().ask(number, wanted);
                self.wake_engines(timers, wanted);
            }
            let until = lingers.unwrap_or(ends).min(ends);
            if now >= until {
                break;
            }
            if now >= asks_again {
                asks_again = now + ASKS_AGAIN;
                self.ask_anew(number, wanted);
                self.wake_engines(timers, wanted);
            }
            // Woken, or not: what has come is looked at.
            drop(timeout_at(until.min(asks_again), wake.notified()).await);
        }
        waiting.end().unwrap_or_default()
    }

    fn wake_engines(&self, timers: &Timers, wanted: &Wanted) {
        for queue in wanted.names() {
            timers.flow_changed(&flow_of(queue));
        }
    }

    /// Begins a call, with what is ready.
    fn begin(&self, wanted: &Wanted, share: Share) -> (u64, Arc<Notify>) {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let wake = Arc::<Notify>::default();
        let mut call = Call {
            room: wanted.max,
            bytes: 0,
            most: wanted.bytes,
            got: Vec::new(),
            share,
            is_refused: false,
            worker: wanted.worker.clone(),
            wake: Arc::clone(&wake),
        };
        let State {
            queues, workers, ..
        } = &mut *state;
        // In turns, so that no queue of the call is served last each time.
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for queue in wanted.names() {
                let Some(of_queue) = queues.get_mut(queue) else {
                    continue;
                };
                let Some((since, next)) = of_queue.ready.pop_front() else {
                    continue;
                };
                match call.take(next, workers) {
                    None => goes_on = true,
                    Some(next) => of_queue.ready.push_front((since, next)),
                }
            }
        }
        state.calls.insert(number, call);
        state.ask(number, wanted);
        (number, wake)
    }

    /// How many the call has, and whether it takes no more.
    fn progress(&self, number: u64) -> (usize, bool) {
        let state = self.state.lock();
        let Some(call) = state.calls.get(&number) else {
            return (0, true);
        };
        let is_full = call.room == 0 || call.bytes >= call.most.max(1) || call.is_refused;
        (call.got.len(), is_full || state.is_closed)
    }

    /// Asks for all of it anew.
    fn ask_anew(&self, number: u64, wanted: &Wanted) {
        let mut state = self.state.lock();
        for queue in wanted.names() {
            if let Some(of_queue) = state.queues.get_mut(queue) {
                of_queue.asked.retain(|asked| asked.call != number);
            }
        }
        state.ask(number, wanted);
    }

    /// Ends a call. What it has got is its own.
    fn end(&self, number: u64, queues: &[QueueName]) -> Option<Leased> {
        let mut state = self.state.lock();
        for queue in queues {
            let Some(of_queue) = state.queues.get_mut(queue) else {
                continue;
            };
            of_queue.asked.retain(|asked| asked.call != number);
            if of_queue.asked.is_empty() && of_queue.ready.is_empty() && !of_queue.is_watched {
                state.queues.remove(queue);
            }
        }
        let call = state.calls.remove(&number)?;
        Some(Leased {
            attempts: call.got,
            is_refused: call.is_refused,
            share: Some(call.share),
        })
    }
}

impl State {
    /// Asks for what a call has room for, as far as the bodies are thought to fit: as much of each of its queues.
    fn ask(&mut self, number: u64, wanted: &Wanted) {
        let Some(call) = self.calls.get(&number) else {
            return;
        };
        let queues = u32::try_from(wanted.queues.len().max(1)).unwrap_or(u32::MAX);
        let share = call.room.div_ceil(queues);
        let bytes = call.most.saturating_sub(call.bytes) / wanted.queues.len().max(1);
        for (queue, lease) in &wanted.queues {
            let of_queue = self.queues.entry(queue.clone()).or_default();
            let body = of_queue.body.unwrap_or(BODY_GUESS).max(1);
            let fit = u32::try_from(bytes / body).unwrap_or(u32::MAX).max(1);
            let leases = share.min(fit);
            match of_queue.asked.iter_mut().find(|it| it.call == number) {
                Some(asked) => {
                    let more = leases.saturating_sub(asked.leases);
                    asked.leases += more;
                    asked.open += more;
                }
                None => of_queue.asked.push_back(Asked {
                    call: number,
                    leases,
                    lease: *lease,
                    open: leases,
                }),
            }
        }
    }
}

/// A call that has not ended.
struct Waiting {
    desk: Arc<Desk>,
    number: u64,
    queues: Vec<QueueName>,
}

impl Waiting {
    /// What it has got, the first time.
    fn end(&self) -> Option<Leased> {
        self.desk.end(self.number, &self.queues)
    }
}

impl Drop for Waiting {
    /// The caller has gone: what was leased for it is given back.
    fn drop(&mut self) {
        if let Some(leased) = self.end() {
            leased.attempts.iter().for_each(release);
        }
    }
}

/// Gives a leased attempt back that nobody has begun. If that fails, its lease ends by itself.
pub(crate) fn release(attempt: &Attempt) {
    if let Ok(timers) = attempt.timers() {
        let release = Request::Release {
            name: attempt.name.clone(),
            token: attempt.lease_token(),
        };
        timers.submit(release, |_| ());
    }
}
