//! Timers that clients set, each once, and what becomes of them.

use std::time::Duration;

use countwheel_durable::store::{Fence, Shard, Store};
use countwheel_durable::{
    Attempt, Due, Precondition, Request, RetryPolicy, SetOptions, StateKind, Ticket, TimerName,
};
use countwheel_time::{Clock, Timestamp};

use super::{SECOND, World};

/// A timer: its key is its number.
pub(super) struct Timer {
    name: TimerName,
    shard: Shard,
    /// By the clock of the server.
    due: Timestamp,
    pub(super) is_acknowledged: bool,
    is_done: bool,
}

impl World {
    /// A client sets a timer, on whichever node works on its shard.
    pub(super) fn ask_something(&mut self) {
        if !self.clients.one_in(self.plan.sets) {
            return;
        }
        let number = self.timers.len();
        let Ok(name) = TimerName::new("queue", number.to_string()) else {
            return;
        };
        let shard =
            Shard(u16::try_from(self.clients.below(u64::from(self.plan.shards))).unwrap_or(0));
        let span = self.clients.below(20 * SECOND);
        let due = self.server_clock.timestamp() + Duration::from_micros(span);
        let request = Request::Set {
            name: name.clone(),
            due: Due::At(due),
            policy: RetryPolicy::fixed(Duration::from_millis(500)),
            payload: Vec::new(),
            precondition: Precondition::None,
            options: SetOptions::default(),
        };
        let processes = self
            .machines
            .iter_mut()
            .filter_map(|it| it.process.as_mut());
        let owners = processes.flat_map(|process| &mut process.owners);
        let mut owners: Vec<_> = owners
            .filter(|owner| owner.shard == shard && owner.works())
            .collect();
        if owners.is_empty() {
            return;
        }
        let which = self.clients.below(owners.len() as u64);
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        owners[usize::try_from(which).unwrap_or(0)]
            .asked
            .push((number, ticket, request));
        self.timers.push(Timer {
            name,
            shard,
            due,
            is_acknowledged: false,
            is_done: false,
        });
    }

    /// An attempt leaves a process.
    pub(super) fn leaves(
        &mut self,
        shard: Shard,
        fence: Fence,
        attempt: &Attempt,
    ) -> Result<(), String> {
        let number = attempt.name.key.as_str().parse::<usize>();
        let number = number.map_err(|error| format!("{attempt:?}: {error}"))?;
        let is_owner = self.server.owner(shard) == fence && self.server.is_held(shard, fence);
        if !is_owner {
            return Err(format!("{attempt:?} leaves a node that was replaced"));
        }
        self.show_clock();
        let timer = &self.timers[number];
        if self.latest < timer.due {
            return Err(format!(
                "{attempt:?} is early: it is {:?}, by any clock {:?}",
                self.server_clock.timestamp(),
                self.latest
            ));
        }
        if !self.attempts.insert((number, attempt.number)) {
            return Err(format!("{attempt:?} leaves again"));
        }
        self.report.attempts += 1;
        self.report.repeated += u64::from(attempt.number > 1);
        Ok(())
    }

    /// Whether everything that was acknowledged is done.
    pub(super) fn have_ended(&mut self) -> Result<bool, String> {
        let observer = &self.observer;
        let mut waits = self.timers.iter_mut();
        while let Some(timer) = waits.find(|it| it.is_acknowledged && !it.is_done) {
            let record = observer.get(timer.shard, &timer.name);
            let record =
                record.map_err(|error| format!("{} cannot be read: {error}", timer.name))?;
            // One that is not there is never done.
            timer.is_done = record.is_none_or(|it| it.state.kind() == StateKind::Done);
            if !timer.is_done {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What was acknowledged is done, and it left at least once.
    pub(super) fn look_at_timers(&mut self) -> Result<(), String> {
        for (number, timer) in self.timers.iter().enumerate() {
            let record = self.observer.get(timer.shard, &timer.name);
            let record =
                record.map_err(|error| format!("{} cannot be read: {error}", timer.name))?;
            let state = record.map(|record| record.state.kind());
            let left = self.attempts.range((number, 0)..=(number, u32::MAX)).next();
            let is_fine = match state {
                Some(StateKind::Done) => left.is_some(),
                // Nobody waited for one that was not acknowledged.
                _ => !timer.is_acknowledged,
            };
            if !is_fine {
                return Err(format!(
                    "{} is {state:?}, and was acknowledged; it left: {left:?}",
                    timer.name
                ));
            }
            self.report.acknowledged += u64::from(timer.is_acknowledged);
        }
        Ok(())
    }
}
