//! The running attempts of one scheduler.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use countwheel_time::Timestamp;

use crate::budget::{Lacking, May, Places};
use crate::flow::{Flow, Flows};
use crate::held::Span;
use crate::planted::planted;
use crate::{QueueName, Revision, TimerName};

/// An attempt that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) name: TimerName,
    /// The flows in which it has a place.
    pub(crate) flows: Vec<Flow>,
    /// From when on it is late: its deadline, and as long after that as it was held.
    pub(crate) late_from: Timestamp,
    /// When it was handed over.
    pub(crate) started: Timestamp,
    /// The same on the line of the boot clock, which is never set.
    pub(crate) boot: Timestamp,
    /// How often the limits of flows, and the flows of timers, had changed when it was claimed.
    pub(crate) changes: u64,
    /// When limits held it, and the runs before it that it came due with. Kept of a run that may be late alone.
    pub(crate) held: Vec<Span>,
    /// So much later than its deadline the age of a timer begins, as its first attempt was held so long.
    pub(crate) ageless: Duration,
}

impl Running {
    /// When the receiver had the attempt, as an outcome says: between the hand-over and now, whatever it
    /// says.
    pub(crate) fn started_at(&self, said: Option<Timestamp>, boot: Timestamp) -> Timestamp {
        let now = self.started + boot.saturating_since(self.boot);
        said.map_or(self.started, |said| said.clamp(self.started, now))
    }
}

/// The attempts of a scheduler that run, and whether it may have more. The places are those of all
/// schedulers of a process; what is left of them is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    attempts: BTreeMap<Revision, Running>,
    places: Places,
    bytes: usize,
    most_bytes: usize,
}

impl InFlight {
    pub(crate) fn new(places: Places, most_bytes: usize) -> Self {
        Self {
            attempts: BTreeMap::new(),
            places,
            bytes: 0,
            most_bytes,
        }
    }

    /// From now on it may take so many bytes.
    pub(crate) fn resize(&mut self, most_bytes: usize) {
        self.most_bytes = most_bytes;
    }

    /// What runs, for who waits until it ends; nothing is left here.
    pub(crate) fn leave(&mut self) -> Self {
        let rest = Self {
            attempts: BTreeMap::new(),
            places: self.places.clone(),
            bytes: 0,
            most_bytes: self.most_bytes,
        };
        mem::replace(self, rest)
    }

    pub(crate) fn len(&self) -> usize {
        self.attempts.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn contains(&self, revision: Revision) -> bool {
        self.attempts.contains_key(&revision)
    }

    pub(crate) fn name(&self, revision: Revision) -> Option<&TimerName> {
        self.attempts.get(&revision).map(|running| &running.name)
    }

    /// How many more can run.
    pub(crate) fn free(&self) -> usize {
        self.places.free()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Revision, &TimerName)> {
        let attempts = self.attempts.iter();
        attempts.map(|(revision, running)| (*revision, &running.name))
    }

    /// An attempt was handed over at this time, of its clock and of the boot clock.
    pub(crate) fn handed_over(&mut self, revision: Revision, started: Timestamp, boot: Timestamp) {
        if let Some(running) = self.attempts.get_mut(&revision) {
            (running.started, running.boot) = (started, boot);
        }
    }

    /// The queues that may not have one more place now.
    pub(crate) fn held_queues(&self) -> Vec<QueueName> {
        self.places.held_queues()
    }

    /// Whether no attempt can start before one ends.
    pub(crate) fn is_full(&self) -> bool {
        self.places.free() == 0 || !self.has_memory()
    }

    /// Whether there is memory for one more; if not, one of this scheduler has to end.
    pub(crate) fn has_memory(&self) -> bool {
        self.bytes + Self::longest() <= self.most_bytes || self.attempts.is_empty()
    }

    /// Whether a queue may have one more place, if there is one to have.
    pub(crate) fn may(&self, queue: &QueueName) -> bool {
        self.places.may(queue)
    }

    /// Takes a place for an attempt of this queue and these flows, which is to be [noted](Self::note) then. Another
    /// scheduler may have taken the last one since it was there.
    pub(crate) fn take_place(
        &self,
        queue: &QueueName,
        flows: &[Flow],
        rules: Option<&dyn Flows>,
        now: Timestamp,
    ) -> Result<(), Lacking> {
        self.places.take(queue, flows, rules, now)
    }

    /// How much memory attempts may take, in bytes.
    pub(crate) fn most_bytes(&self) -> usize {
        self.most_bytes
    }

    /// Takes room for a leased attempt of these flows, the first of which grants it, and says for how long.
    pub(crate) fn take_lease(
        &self,
        flows: &[Flow],
        rules: Option<&dyn Flows>,
        now: Timestamp,
    ) -> Result<Duration, Lacking> {
        self.places.take_lease(flows, rules, now)
    }

    /// The time line of its scheduler stood there when the boot clock was at zero.
    pub(crate) fn count_from(&mut self, zero: Timestamp) {
        self.places.count_from(zero);
    }

    /// Whether a flow has room for one more attempt. If not, the scheduler waits for it from now on.
    pub(crate) fn may_flow(&self, flow: &Flow, rules: Option<&dyn Flows>, now: Timestamp) -> May {
        self.places.may_flow(flow, rules, now)
    }

    /// The scheduler waits for the flow no longer.
    pub(crate) fn leave_flow(&self, flow: &Flow) {
        self.places.leave_flow(flow);
    }

    /// The flows that the scheduler was woken for since it asked last.
    pub(crate) fn woken_for(&self) -> Vec<Flow> {
        self.places.woken_for()
    }

    /// Notes an attempt that has its place.
    pub(crate) fn note(&mut self, revision: Revision, running: Running) {
        self.bytes += Self::entry_bytes(&running);
        self.attempts.insert(revision, running);
    }

    /// Puts an attempt back whose outcome could not be committed.
    pub(crate) fn put_back(&mut self, revision: Revision, running: Running) {
        self.places.take_again(&running.name.queue, &running.flows);
        self.note(revision, running);
    }

    /// Wakes who waits for the places of those that were removed.
    pub(crate) fn wake_waiting(&self) {
        self.places.wake_waiting();
    }

    pub(crate) fn remove(&mut self, revision: Revision) -> Option<Running> {
        let running = self.attempts.remove(&revision)?;
        self.bytes -= Self::entry_bytes(&running);
        if !planted!(LeakPlace) {
            self.places.give_back(&running.name.queue, &running.flows);
        }
        Some(running)
    }

    /// What an attempt takes: its place in two sorted maps that may be half empty, its name and
    /// those of its flows.
    fn entry_bytes(running: &Running) -> usize {
        let (name, flows) = (&running.name, &running.flows);
        let flows = flows
            .iter()
            .map(|flow| size_of::<Flow>() + flow.as_str().len());
        let names = name.queue.as_str().len() + name.key.as_str().len();
        let held = size_of_val(running.held.as_slice());
        Self::bytes_of(names + flows.sum::<usize>() + held)
    }

    const fn bytes_of(name: usize) -> usize {
        2 * (size_of::<Revision>() + size_of::<Running>()) + 64 + name
    }

    const fn longest() -> usize {
        Self::bytes_of(QueueName::TEXT_MAX_BYTES + crate::Key::MAX_BYTES)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        for running in self.attempts.values() {
            self.places.give_back(&running.name.queue, &running.flows);
        }
        self.places.wake_waiting();
    }
}
