//! The places of flows, and the schedulers that wait for them.
//!
//! The schedulers that wait for one flow have turns. The first of them is woken when there is room. Whoever gave a
//! place back may take it again, but not more than twice as often as there are places while another waits. Starts at a
//! rate go strictly by turns: their times are known, and only the first has to wake for one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use countwheel_time::Timestamp;

use crate::flow::{Flow, FlowLimits, FlowRate, FlowUse};
use crate::planted::planted;

/// Whether an attempt of a flow may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum May {
    Now,
    /// Not before this time of the boot clock, unless its limits change.
    At(Timestamp),
    /// Not before the scheduler is woken.
    Later,
}

/// The places that a flow with a share may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spare {
    /// Free places, but for those that a queue by itself leaves to others.
    pub(super) places: usize,
    pub(super) percent: usize,
}

impl Spare {
    /// Whether a flow that has so many places has its share.
    fn is_short(self, has: usize) -> bool {
        has > 0
            && has.saturating_mul(100 - self.percent) >= self.places.saturating_mul(self.percent)
    }
}

/// The flows of all schedulers of a process.
#[derive(Default, Debug)]
pub(super) struct FlowTable {
    flows: BTreeMap<Flow, One>,
    /// Those in which a place or a turn was given back since the last wake.
    freed: BTreeSet<Flow>,
    /// Those that had their share when somebody asked, by how many places they have.
    short: BTreeSet<(usize, Flow)>,
    /// As many there were after the last sweep.
    swept: usize,
    /// Whether somebody asks what flows with limits have used: those are not forgotten before.
    is_asked: bool,
}

/// One flow.
#[derive(Default, Debug)]
struct One {
    has: usize,
    given_back: u64,
    /// As they were when somebody asked last.
    limits: FlowLimits,
    /// The virtual scheduling time of its rate, and the rate that it is of.
    next_start: Timestamp,
    rate: Option<FlowRate>,
    /// What was used since somebody asked.
    most: usize,
    started: usize,
    turn: VecDeque<Waits>,
    is_short: bool,
}

/// A scheduler that waits for a flow.
#[derive(Debug)]
struct Waits {
    member: u64,
    /// How many places had been given back when it began to.
    since: u64,
    is_woken: bool,
}

/// How long a bucket of the rate `after` fills that has the starts of a bucket of the rate `before`, which fills for
/// `left`.
fn missing_after(before: FlowRate, after: FlowRate, left: Duration) -> Duration {
    let whole = |rate: FlowRate| rate.interval().saturating_mul(rate.burst());
    let there = whole(before).saturating_sub(left).as_micros();
    let (from, to) = (before.interval(), after.interval());
    let there = there.saturating_mul(to.as_micros()) / from.as_micros().max(1);
    let there = Duration::from_micros(u64::try_from(there).unwrap_or(u64::MAX));
    whole(after).saturating_sub(there)
}

impl One {
    fn is_full(&self) -> bool {
        let most = self.limits.at_once.map(|most| most as usize);
        let has_no_starts = self.limits.rate.is_some_and(|rate| rate.burst() == 0);
        (has_no_starts || most.is_some_and(|most| self.has >= most)) && !planted!(FlowUnbounded)
    }

    /// Goes by another rate from now on, and begins no burst. The bucket keeps the starts that are left in it, as many as
    /// the new burst at most. Without a rate, also while the flow is closed, the bucket fills as before.
    ///
    /// A larger or smaller part of one rate keeps what was started instead. A part that had nothing before has all of
    /// its burst, since a part is given once the burst is there.
    fn turn_to(&mut self, rate: Option<FlowRate>, now: Timestamp) {
        self.limits.rate = rate;
        let Some(rate) = rate.filter(|rate| self.rate != Some(*rate)) else {
            return;
        };
        let Some(before) = self.rate.replace(rate) else {
            self.next_start = Timestamp::EPOCH;
            return;
        };
        if rate.burst() == 0 {
            // What was started is to be seen until there is a part again.
            return;
        }
        let left = self.next_start.saturating_since(now);
        if before.burst() == 0 || planted!(FlowBurstAnew) {
            self.next_start = Timestamp::EPOCH;
        } else if before.is_part_as(&rate) {
            let (left, interval) = (left.as_micros(), before.interval().as_micros().max(1));
            let used = u32::try_from(left.div_ceil(interval)).unwrap_or(u32::MAX);
            self.next_start = if left == 0 {
                Timestamp::EPOCH
            } else {
                now + rate.interval().saturating_mul(used.min(rate.burst()))
            };
        } else {
            let missing = missing_after(before, rate, left);
            // A bucket that has been full since then has been filling further since then.
            let from = now.min(self.next_start);
            self.next_start = from + missing;
        }
    }

    /// Nobody asks for what it has used.
    fn is_told(&self, is_asked: bool) -> bool {
        let has_limits = self.limits.at_once.is_some() || self.limits.rate.is_some();
        !is_asked || !has_limits || (self.most == 0 && self.started == 0)
    }

    fn allowed(&self) -> Timestamp {
        let rate = self.limits.rate.filter(|_| !planted!(FlowRateIgnored));
        rate.map_or(Timestamp::EPOCH, |rate| rate.allowed(self.next_start))
    }

    /// Whether somebody else has waited for so long that it is the other's turn.
    fn is_others_turn(&self, member: u64) -> bool {
        let Some(first) = self.turn.front().filter(|first| first.member != member) else {
            return false;
        };
        let seen = self.given_back - first.since;
        let patience = 2 * self.has.max(1) as u64;
        (self.limits.rate.is_some() || seen > patience) && !planted!(FlowNobodyElse)
    }

    fn wait(&mut self, member: u64) {
        let since = self.given_back;
        match self.turn.iter_mut().find(|waits| waits.member == member) {
            Some(waits) => waits.is_woken = false,
            None => self.turn.push_back(Waits {
                member,
                since,
                is_woken: false,
            }),
        }
    }

    /// Says whether the member was the first.
    fn leave(&mut self, member: u64) -> bool {
        let at = self.turn.iter().position(|waits| waits.member == member);
        if let Some(at) = at {
            self.turn.remove(at);
        }
        at == Some(0)
    }

    /// Nothing would be forgotten with it.
    fn is_idle(&self, now: Timestamp) -> bool {
        self.has == 0 && self.turn.is_empty() && (self.rate.is_none() || self.next_start <= now)
    }
}

impl FlowTable {
    /// So few flows are never swept.
    const SWEPT_MIN: usize = 1_024;

    /// Whether an attempt of a flow may start, for a scheduler. If not, the scheduler waits for it from now on.
    pub(super) fn may(
        &mut self,
        member: u64,
        flow: &Flow,
        limits: FlowLimits,
        now: Timestamp,
        spare: Spare,
    ) -> May {
        self.sweep(now);
        let one = self.flows.entry(flow.clone()).or_default();
        one.turn_to(limits.rate, now);
        one.limits = limits;
        let is_short = limits.shared && spare.is_short(one.has) && !planted!(FlowTakesAll);
        if is_short && !one.is_short {
            one.is_short = true;
            self.short.insert((one.has, flow.clone()));
        }
        if one.is_full() || is_short || one.is_others_turn(member) {
            one.wait(member);
            return May::Later;
        }
        let allowed = one.allowed();
        if allowed > now {
            one.wait(member);
            return May::At(allowed);
        }
        May::Now
    }

    /// An attempt of the flow starts. The scheduler waits no longer.
    pub(super) fn take(&mut self, member: u64, flow: &Flow, now: Timestamp) {
        self.change(flow, |one| one.has += 1);
        let Some(one) = self.flows.get_mut(flow) else {
            return;
        };
        one.most = one.most.max(one.has);
        one.started += 1;
        if let Some(rate) = one.limits.rate {
            one.next_start = one.next_start.max(now) + rate.interval();
        }
        one.leave(member);
        if !one.turn.is_empty() {
            self.freed.insert(flow.clone());
        }
    }

    /// An attempt that has run before runs again.
    pub(super) fn take_again(&mut self, flow: &Flow) {
        self.flows.entry(flow.clone()).or_default();
        self.change(flow, |one| {
            one.has += 1;
            one.most = one.most.max(one.has);
        });
    }

    /// What a flow uses of its limits. From now on it is counted anew.
    pub(super) fn used(&mut self, flow: &Flow, now: Timestamp) -> FlowUse {
        self.is_asked = true;
        let Some(one) = self.flows.get_mut(flow) else {
            return FlowUse::default();
        };
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let used = FlowUse {
            running: count(one.has),
            most: count(one.most.max(one.has)),
            started: count(one.started),
            waits: !one.turn.is_empty(),
            fills_in: one.next_start.saturating_since(now),
        };
        (one.most, one.started) = (one.has, 0);
        if one.is_idle(now) {
            self.remove(flow);
        }
        used
    }

    /// An attempt of the flow has ended.
    pub(super) fn give_back(&mut self, flow: &Flow) {
        if planted!(FlowPlaceLeaks) {
            return;
        }
        self.change(flow, |one| {
            one.has = one.has.saturating_sub(1);
            one.given_back += 1;
        });
        let one = self.flows.get(flow);
        if one.is_some_and(|one| !one.turn.is_empty()) {
            self.freed.insert(flow.clone());
        } else if one.is_some_and(|one| one.is_idle(Timestamp::EPOCH) && one.is_told(self.is_asked))
        {
            self.remove(flow);
        }
    }

    /// The scheduler does not wait for the flow any more.
    pub(super) fn leave(&mut self, member: u64, flow: &Flow) {
        if let Some(one) = self.flows.get_mut(flow) {
            if one.leave(member) && !one.turn.is_empty() {
                self.freed.insert(flow.clone());
            }
            if one.is_idle(Timestamp::EPOCH) && one.is_told(self.is_asked) {
                self.remove(flow);
            }
        }
    }

    /// The scheduler waits for no flow any more.
    pub(super) fn leave_all(&mut self, member: u64) {
        for (flow, one) in &mut self.flows {
            if one.leave(member) && !one.turn.is_empty() {
                self.freed.insert(flow.clone());
            }
        }
    }

    /// Limits have changed: whoever waits looks again.
    pub(super) fn limits_changed(&mut self, mut wake: impl FnMut(u64, &Flow)) {
        for (flow, one) in &mut self.flows {
            for waits in &mut one.turn {
                waits.is_woken = true;
                wake(waits.member, flow);
            }
        }
    }

    /// The limits of one flow have changed.
    pub(super) fn limit_changed(&mut self, flow: &Flow, mut wake: impl FnMut(u64)) {
        let Some(one) = self.flows.get_mut(flow) else {
            return;
        };
        for waits in &mut one.turn {
            waits.is_woken = true;
            wake(waits.member);
        }
    }

    /// The same of these flows. The first of those that wait looks, and whoever starts one wakes the next.
    pub(super) fn limits_of_changed(&mut self, flows: &[Flow], mut wake: impl FnMut(u64, &Flow)) {
        for flow in flows {
            let one = self.flows.get_mut(flow);
            let first = one.and_then(|one| one.turn.iter_mut().find(|waits| !waits.is_woken));
            if let Some(first) = first {
                first.is_woken = true;
                wake(first.member, flow);
            }
        }
    }

    /// Wakes the first of those that wait for a flow in which there may be room now.
    pub(super) fn wake(&mut self, spare: Spare, mut wake: impl FnMut(u64, &Flow)) {
        let mut freed = std::mem::take(&mut self.freed);
        if planted!(FlowWakesNobody) {
            return;
        }
        let room = self
            .short
            .iter()
            .take_while(|(has, _)| !spare.is_short(*has));
        freed.extend(room.map(|(_, flow)| flow.clone()));
        for flow in freed {
            let Some(one) = self.flows.get_mut(&flow) else {
                continue;
            };
            let is_short = one.limits.shared && spare.is_short(one.has);
            if one.is_short && !is_short {
                one.is_short = false;
                self.short.remove(&(one.has, flow.clone()));
            }
            if is_short && !one.is_short && !one.turn.is_empty() {
                one.is_short = true;
                self.short.insert((one.has, flow.clone()));
            }
            if is_short || one.is_full() {
                continue;
            }
            if let Some(first) = one.turn.front_mut()
                && !first.is_woken
            {
                first.is_woken = true;
                wake(first.member, &flow);
            }
        }
    }

    fn change(&mut self, flow: &Flow, change: impl FnOnce(&mut One)) {
        let Some(one) = self.flows.get_mut(flow) else {
            return;
        };
        let before = one.has;
        change(one);
        if one.is_short && one.has != before {
            self.short.remove(&(before, flow.clone()));
            self.short.insert((one.has, flow.clone()));
        }
    }

    fn remove(&mut self, flow: &Flow) {
        if let Some(one) = self.flows.remove(flow)
            && one.is_short
        {
            self.short.remove(&(one.has, flow.clone()));
        }
    }

    /// Forgets flows whose rate says nothing any more.
    fn sweep(&mut self, now: Timestamp) {
        if self.flows.len() < 2 * self.swept.max(Self::SWEPT_MIN) {
            return;
        }
        let idle = self.flows.iter().filter(|(_, one)| one.is_idle(now));
        let idle: Vec<Flow> = idle.map(|(flow, _)| flow.clone()).collect();
        for flow in idle {
            self.remove(&flow);
        }
        self.swept = self.flows.len();
    }
}
