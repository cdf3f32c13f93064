//! Timers that clients set, each once, and what becomes of them.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{Fence, Shard, Store};
use countwheel_durable::{
    Asked, Attempt, Due, Precondition, Request, RetryPolicy, SetOptions, StateKind, TimerError,
    TimerName,
};
use countwheel_time::{Clock, Timestamp};

use super::process::Process;
use super::{SECOND, World};

/// A timer: its key is its number.
pub(super) struct Timer {
    name: TimerName,
    shard: Shard,
    /// By the clock of the server.
    due: Timestamp,
    /// Until when its client waits for an answer.
    pub(super) asked_until: u64,
    answer: Answer,
    is_done: bool,
}

/// What a client was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Nothing yet.
    None,
    Done,
    /// For certain.
    NotDone,
    Unknown,
}

impl Answer {
    fn refused(error: &TimerError) -> Self {
        match error {
            TimerError::ShardUnavailable { .. } => Self::NotDone,
            _ => Self::Unknown,
        }
    }
}

impl World {
    /// A client sets a timer, by whichever node it asks.
    pub(super) fn ask_something(&mut self) {
        if !self.clients.one_in(self.plan.sets) {
            return;
        }
        let shard =
            Shard(u16::try_from(self.clients.below(u64::from(self.plan.shards))).unwrap_or(0));
        let span = self.clients.below(20 * SECOND);
        let due = self.server_clock.timestamp() + Duration::from_micros(span);
        let machine = self.clients.below(self.machines.len() as u64);
        self.ask(usize::try_from(machine).unwrap_or(0), shard, due);
    }

    /// A client asks a node that runs.
    fn ask(&mut self, machine: usize, shard: Shard, due: Timestamp) {
        let (time, number) = (self.time(), self.timers.len());
        let asked = &mut self.machines[machine];
        let Some(process) = asked
            .process
            .as_mut()
            .filter(|_| asked.paused_until <= time)
        else {
            return;
        };
        let Ok(name) = TimerName::new("queue", number.to_string()) else {
            return;
        };
        let request = Request::Set {
            name: name.clone(),
            due: Due::At(due),
            policy: RetryPolicy::fixed(Duration::from_millis(500)),
            payload: Vec::new(),
            precondition: Precondition::None,
            options: SetOptions::default(),
        };
        let told = Arc::clone(&self.told);
        let asked = Asked::one(request, move |answer| {
            let answer = answer.map_or_else(|error| Answer::refused(&error), |_| Answer::Done);
            told.lock().push((number, answer));
        });
        process.take_in(shard, asked, true, &mut self.next_ticket);
        self.timers.push(Timer {
            name,
            shard,
            due,
            asked_until: time + self.plan.answer_within,
            answer: Answer::None,
            is_done: false,
        });
    }

    /// Clients read their answers.
    pub(super) fn hear(&mut self) -> Result<(), String> {
        let told = mem::take(&mut *self.told.lock());
        for (number, answer) in told {
            let timer = &mut self.timers[number];
            if timer.answer != Answer::None {
                return Err(format!("{} is answered again: {answer:?}", timer.name));
            }
            timer.answer = answer;
            self.report.not_done += u64::from(answer == Answer::NotDone);
            self.report.unknown += u64::from(answer == Answer::Unknown);
        }
        Ok(())
    }

    /// Where nothing goes wrong, every node answers for every shard.
    pub(super) fn look_at_answers(&mut self) -> Result<(), String> {
        let (first, due) = (self.timers.len(), self.server_clock.timestamp());
        let members = self.truth()?.members;
        let is_member = |process: &Process| {
            let me = process.control.me();
            members.iter().any(|member| member.node.id == me)
        };
        for machine in 0..self.machines.len() {
            // Another process may have its name.
            if !self.machines[machine]
                .process
                .as_ref()
                .is_some_and(is_member)
            {
                continue;
            }
            for shard in 0..self.plan.shards {
                self.ask(machine, Shard(shard), due);
            }
        }
        let bound = self.time() + self.plan.answer_within;
        self.tick_until(bound, |world| {
            let mut timers = world.timers[first..].iter();
            timers.all(|timer| timer.answer != Answer::None)
        })?;
        let mut timers = self.timers[first..].iter();
        match timers.find(|timer| timer.answer != Answer::Done) {
            Some(timer) => Err(format!(
                "{} of {:?} is not set, and nothing is wrong: {:?}",
                timer.name, timer.shard, timer.answer
            )),
            None => Ok(()),
        }
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
        while let Some(timer) = waits.find(|it| it.answer == Answer::Done && !it.is_done) {
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
            let is_fine = match (state, timer.answer) {
                (None, Answer::NotDone) => left.is_none(),
                (Some(_), Answer::NotDone) => false,
                (Some(StateKind::Done), _) => left.is_some(),
                // Nobody waited for one that was not acknowledged.
                (_, answer) => answer != Answer::Done,
            };
            if !is_fine {
                return Err(format!(
                    "{} is {state:?}, and its client was told {:?}; it left: {left:?}",
                    timer.name, timer.answer
                ));
            }
            self.report.acknowledged += u64::from(timer.answer == Answer::Done);
        }
        Ok(())
    }
}
