//! What has expired: what waits, what runs, and who waits for the end of it.

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;

use super::{lock, relock};
use crate::Patience;
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Condvar, Mutex};
use crate::{Fired, Instant};

/// What has expired and waits for an executor, what runs, and who waits for the end of it.
pub(crate) struct Ready<J> {
    state: Mutex<ReadyState<J>>,
    /// Something ended.
    ended: Condvar,
}

struct ReadyState<J> {
    queue: VecDeque<Fired<J>>,
    /// How many calls of [`Ready::take`] are on their way.
    tickets: usize,
    running: Vec<Running>,
    last_run: u64,
    /// The thread the host runs on, if it is one.
    host: Host,
    /// The threads that wait for the end.
    sleepers: Vec<ThreadId>,
    /// Who waits for the end, asynchronously.
    waiting: Vec<Waker>,
    started: u64,
    returned: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Host {
    /// Nobody takes out what is due: not yet, no more, or only when told to.
    None,
    /// A task of somebody's executor.
    Task,
    Thread(ThreadId),
}

/// A job that runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Running {
    pub(crate) run: u64,
    pub(crate) thread: ThreadId,
    pub(crate) name: &'static str,
    pub(crate) since: Instant,
    pub(crate) deadline: Instant,
}

/// Where what has expired is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    pub(crate) waiting: u64,
    pub(crate) running: u64,
    /// Those that run included.
    pub(crate) started: u64,
    pub(crate) returned: u64,
}

impl<J> Ready<J> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(ReadyState {
                queue: VecDeque::new(),
                tickets: 0,
                running: Vec::new(),
                last_run: 0,
                host: Host::None,
                sleepers: Vec::new(),
                waiting: Vec::new(),
                started: 0,
                returned: 0,
            }),
            ended: Condvar::new(),
        }
    }

    /// Puts what has expired at the end of the queue.
    pub(crate) fn put(&self, expired: impl IntoIterator<Item = Fired<J>>) {
        lock(&self.state).queue.extend(expired);
    }

    /// Announces one call of [`take`](Self::take), if there is something left to take.
    pub(crate) fn issue_ticket(&self) -> bool {
        let mut state = lock(&self.state);
        let wanted = state.tickets < state.queue.len();
        state.tickets += usize::from(wanted);
        wanted
    }

    /// Takes an announcement back: nobody is going to take.
    pub(crate) fn return_ticket(&self) {
        self.change(|state| state.tickets -= 1);
    }

    /// The first of the queue, which runs from now on, on this thread. Unless a stop was
    /// faster.
    pub(crate) fn take(
        &self,
        since: Instant,
        name: impl FnOnce(&J) -> &'static str,
    ) -> Option<(Fired<J>, u64)> {
        self.change(|state| {
            state.tickets = state.tickets.saturating_sub(1);
            let fired = state.queue.pop_front()?;
            if state.queue.len() < state.queue.capacity() / 8 {
                let room = 2 * state.queue.len() + 64;
                state.queue.shrink_to(room);
            }
            let run = state.start(name(&fired.value), since, fired.deadline);
            Some((fired, run))
        })
    }

    /// Something runs on this thread that was never in the queue.
    pub(crate) fn start(&self, name: &'static str, since: Instant, deadline: Instant) -> u64 {
        lock(&self.state).start(name, since, deadline)
    }

    /// What was started has ended.
    pub(crate) fn end(&self, run: u64) {
        self.change(|state| state.end(run));
    }

    /// Takes the first of the queue out for good, for a ticket that is void.
    pub(crate) fn take_back(&self) -> Option<Fired<J>> {
        self.change(|state| {
            state.tickets = state.tickets.saturating_sub(1);
            let fired = state.queue.pop_front();
            state.returned += u64::from(fired.is_some());
            fired
        })
    }

    /// Takes the whole queue out for good. Says nothing to those who wait for the end, because
    /// it is called under a lock: [`announce`](Self::announce) does.
    pub(crate) fn drain(&self) -> VecDeque<Fired<J>> {
        let mut state = lock(&self.state);
        state.returned += state.queue.len() as u64;
        mem::take(&mut state.queue)
    }

    /// Makes those who wait for the end look whether it has come.
    pub(crate) fn announce(&self) {
        self.change(|_| ());
    }

    /// Whether something is in the queue that the thread that asks has to take itself, if it
    /// is going to wait: nobody hosts the timer, or this thread does, or runs a task of it.
    pub(crate) fn needs_help(&self) -> bool {
        let state = lock(&self.state);
        let here = thread::current().id();
        !state.queue.is_empty()
            && (state.host == Host::None
                || state.host == Host::Thread(here)
                || state.running.iter().any(|running| running.thread == here))
    }

    pub(crate) fn set_host(&self, host: Host) {
        if host == Host::None {
            self.change(|state| state.host = host);
        } else {
            // Nobody waits for a beginning, and a host that is polled by the task that waits
            // for its end would wake itself for ever.
            lock(&self.state).host = host;
        }
    }

    /// Changes something that may be the end that somebody waits for.
    fn change<R>(&self, change: impl FnOnce(&mut ReadyState<J>) -> R) -> R {
        let mut state = lock(&self.state);
        let result = change(&mut state);
        let waiting = mem::take(&mut state.waiting);
        let somebody_sleeps = !state.sleepers.is_empty();
        drop(state);
        if somebody_sleeps {
            self.ended.notify_all(); // not cheap, so not for nobody
        }
        waiting.into_iter().for_each(Waker::wake);
        result
    }

    /// Whether everything in the queue has its ticket.
    pub(crate) fn is_handed_out(&self) -> bool {
        let state = lock(&self.state);
        state.queue.len() <= state.tickets
    }

    /// Whether nothing waits, runs or takes out any more, but on the thread that asks; if not,
    /// `waker` is woken when it may be.
    pub(crate) fn poll_over(&self, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        let over = state.is_over(thread::current().id());
        if !over && !state.waiting.iter().any(|known| known.will_wake(waker)) {
            state.waiting.push(waker.clone());
        }
        over
    }

    /// Waits until nothing waits, runs or takes out any more, but on this thread: for
    /// `patience` at most, if given. Whether it is so. Of several tasks that wait here, the
    /// last does not wait for the others.
    pub(crate) fn wait_over(&self, patience: Option<Patience>) -> bool {
        let here = thread::current().id();
        let mut state = lock(&self.state);
        while !state.is_over(here) {
            let left = patience.map(Patience::left);
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            state.sleepers.push(here);
            state = match left {
                None => relock(self.ended.wait(state)),
                Some(left) => relock(self.ended.wait_timeout(state, left)).0,
            };
            let own = state.sleepers.iter().position(|&thread| thread == here);
            if let Some(own) = own {
                state.sleepers.swap_remove(own);
            }
        }
        true
    }

    /// The deadline of what has waited in the queue the longest.
    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        lock(&self.state).queue.front().map(|fired| fired.deadline)
    }

    pub(crate) fn progress(&self) -> Progress {
        let state = lock(&self.state);
        Progress {
            waiting: state.queue.len() as u64,
            running: state.running.len() as u64,
            started: state.started,
            returned: state.returned,
        }
    }

    pub(crate) fn running(&self) -> Vec<Running> {
        lock(&self.state).running.clone()
    }
}

impl<J> ReadyState<J> {
    fn start(&mut self, name: &'static str, since: Instant, deadline: Instant) -> u64 {
        self.started += 1;
        self.last_run += 1;
        self.running.push(Running {
            run: self.last_run,
            thread: thread::current().id(),
            name,
            since,
            deadline,
        });
        self.last_run
    }

    fn end(&mut self, run: u64) {
        self.running.retain(|running| running.run != run);
    }

    fn is_over(&self, here: ThreadId) -> bool {
        // A task does not wait for others that wait for it.
        let runs_here = self.running.iter().any(|running| running.thread == here);
        let is_still = |thread| thread == here || runs_here && self.sleepers.contains(&thread);
        self.queue.is_empty()
            && self.running.iter().all(|running| is_still(running.thread))
            && match self.host {
                Host::None => true,
                Host::Task => false,
                Host::Thread(thread) => is_still(thread),
            }
    }
}
