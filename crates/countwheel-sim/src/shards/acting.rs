//! The actions of an owner on its shard: half a turn at a time.

use std::collections::BTreeMap;

use countwheel_durable::store::{Change, Commit, Store, StoreError};
use countwheel_durable::{Attempt, Effect, Event, Outcome, Ticket, TimerError, Verdict};

use super::model::{Doubt, Item, last_of};
use super::seam::Seam;
use super::{START, Within, World, is_drawn_set};

impl World {
    /// The next half of a turn, or the commit between the two.
    pub(super) fn go_on(&mut self, index: usize) -> Result<(), String> {
        let owner = &mut self.owners[index];
        match owner.within.take() {
            None if owner.leaving == Some(0) => self.leave(index),
            None => self.begin(index),
            Some(within) if within.committed.is_none() => self.commit(index, within),
            Some(within) => self.end(index, within),
        }?;
        self.look()
    }

    fn begin(&mut self, index: usize) -> Result<(), String> {
        let now = self.now(index);
        let shard = self.owners[index].shard;
        let mut items = std::mem::take(&mut self.owners[index].kept);
        let mut events = Vec::new();
        let running = &mut self.owners[index].running;
        let ended: Vec<_> = running
            .extract_if(.., |(end, _)| *end <= now.time)
            .collect();
        for (_, attempt) in ended {
            let verdict = self.draw_verdict();
            let Attempt { name, revision, .. } = attempt;
            events.push(Event::Outcome {
                revision,
                outcome: Outcome::new(verdict, ""),
            });
            items.push(Item::Outcome(name, revision, verdict));
        }
        // An owner hears by a commit that the server lost others. One that commits nothing does not hear,
        // and nothing of what was lost is done: the promise begins with the next request.
        let is_behind = self.rolled_back[usize::from(shard.0)];
        let requests = match self.healing {
            true => u64::from(is_behind),
            false => *self.clients.pick(&[0, 0, 1, 1, 4]),
        };
        for _ in 0..requests {
            let request = match self.healing {
                true => self.draw_set(shard),
                false => self.draw_request(shard, now.wall),
            };
            if let Some(request) = request {
                self.next_ticket += 1;
                events.push(Event::Request(Ticket(self.next_ticket), request.clone()));
                items.push(Item::Request(self.next_ticket, request));
            }
        }
        self.report.turns += 1;
        let owner = &mut self.owners[index];
        owner.leaving = owner.leaving.map(|turns| turns.saturating_sub(1));
        owner.seam.faults.lock().began = now.time;
        let turn = owner.engine.begin(events);
        let turn = turn.map_err(|error| format!("a turn of {shard:?} does not begin: {error}"))?;
        self.note(
            index,
            format_args!("begins {items:?}, {} changes", turn.changes().len()),
        );
        self.owners[index].within = Some(Within {
            turn,
            items,
            now,
            committed: None,
        });
        Ok(())
    }

    /// A commit, at times with those of other owners of the same node.
    fn commit(&mut self, index: usize, within: Within) -> Result<(), String> {
        let node = self.owners[index].node;
        self.owners[index].within = Some(within);
        let mut some = vec![index];
        if self.groups.one_in(2) {
            let others = (0..self.owners.len()).filter(|other| {
                let owner = &self.owners[*other];
                let is_begun = |within: &Within| within.committed.is_none();
                *other != index && owner.node == node && owner.within.as_ref().is_some_and(is_begun)
            });
            some.extend(others);
        }
        let mut withins = Vec::new();
        for index in some {
            if let Some(within) = self.owners[index].within.take() {
                withins.push((index, within, self.is_current(index)));
            }
        }
        let have = |(_, within, _): &&(usize, Within, bool)| !within.turn.changes().is_empty();
        let asked: Vec<_> = withins
            .iter()
            .filter(have)
            .map(|(index, within, _)| {
                let (lease, changes) = (within.turn.lease(), within.turn.changes());
                (&*self.owners[*index].seam, Commit { lease, changes })
            })
            .collect();
        self.report.together += u64::from(asked.len() > 1);
        let mut made = match asked[..] {
            [(seam, Commit { lease, changes })] => vec![seam.commit(lease, changes)],
            _ => Seam::commit_together(&asked),
        }
        .into_iter();
        for (index, within, was_current) in withins {
            let committed = match within.turn.changes() {
                [] => Ok(()),
                _ => made.next().ok_or("a commit has no result")?,
            };
            self.committed(index, within, was_current, committed)?;
        }
        Ok(())
    }

    fn committed(
        &mut self,
        index: usize,
        mut within: Within,
        was_current: bool,
        committed: Result<(), StoreError>,
    ) -> Result<(), String> {
        let is_current = self.is_current(index);
        let owner = &self.owners[index];
        let was_lost = owner.seam.faults.lock().was_lost.take();
        let is_behind = self.rolled_back[usize::from(owner.shard.0)];
        let may_fail = self.may_fail() || self.is_promoted(index) || is_behind;
        let is_lost = matches!(committed, Err(StoreError::Lost { .. }));
        // A process that has taken the shard again goes by that, also where a failover has lost the taking.
        let is_fine = match &committed {
            Ok(()) => true,
            Err(StoreError::Fenced { .. }) => !is_current || is_behind,
            Err(StoreError::Unavailable { .. }) => owner.seam.faults.lock().struck,
            Err(StoreError::Lost { .. }) => was_lost.is_some() || may_fail,
            Err(error) => error.is_full() && owner.seam.faults.lock().struck,
        };
        if !is_fine {
            return Err(format!(
                "a commit under {:?}: {committed:?}",
                within.turn.lease()
            ));
        }
        self.report.lost += u64::from(is_lost);
        let may_be_applied = committed.is_ok() || was_lost == Some(true) || is_lost && may_fail;
        let is_followed = was_current && !self.rolled_back[usize::from(owner.shard.0)];
        if is_followed && may_be_applied && !within.turn.changes().is_empty() {
            // Until the turn has ended: whoever takes the shard before finds what nobody has said.
            self.doubts[usize::from(owner.shard.0)] = Some(Doubt {
                items: within.items.clone(),
                changes: within.turn.changes().to_vec(),
                now: within.now,
                lost: is_lost.then_some(owner.fence),
            });
        }
        self.note(index, format_args!("commits: {committed:?}"));
        within.committed = Some(committed);
        self.owners[index].within = Some(within);
        Ok(())
    }

    fn end(&mut self, index: usize, within: Within) -> Result<(), String> {
        let Within {
            turn,
            items,
            now,
            committed,
        } = within;
        let is_current = self.is_current(index);
        let turn_of = turn.lease();
        let is_behind = self.rolled_back[usize::from(turn_of.shard.0)];
        let changes = turn.changes().to_vec();
        let committed = committed.unwrap_or(Ok(()));
        let is_committed = committed.is_ok() && !changes.is_empty();
        // By a failover it may have become the owner again since.
        let was_fenced = matches!(committed, Err(StoreError::Fenced { .. }));
        let (mut answers, mut starts) = (BTreeMap::new(), Vec::new());
        let owner = &mut self.owners[index];
        let ended = owner
            .engine
            .end(turn, committed, &mut |effect| match effect {
                Effect::Answer(ticket, answer) => drop(answers.insert(ticket.0, answer)),
                Effect::Start(attempt) => starts.push(attempt),
                Effect::BatchAnswer(..) => {}
            });
        let mut faults = owner.seam.faults.lock();
        let (struck, lease_ended) = (std::mem::take(&mut faults.struck), faults.lease_ended);
        drop(faults);
        self.note(
            index,
            format_args!("ends: {ended:?}, answers {answers:?}, starts {starts:?}"),
        );
        // What is let out of a shard that another has, or of one whose lease has ended.
        let may_not = !is_current || lease_ended;
        if may_not && let Some(attempt) = starts.first() {
            return Err(format!("{attempt:?} leaves an owner that was replaced"));
        }
        let refused = |answer: &Result<_, _>| {
            matches!(
                answer,
                Err(TimerError::Unavailable { .. } | TimerError::StorageFull)
            )
        };
        if may_not && !is_committed && answers.values().any(|answer| !refused(answer)) {
            return Err(format!("{answers:?} leave an owner that was replaced"));
        }
        self.report.fenced += u64::from(!is_current);
        match ended {
            Ok(()) => {}
            Err(StoreError::Fenced { .. }) if (!is_current || was_fenced) && answers.is_empty() => {
                self.owners.remove(index);
                return Ok(());
            }
            // A lost answer, or the lease: the next owner learns what was applied.
            Err(StoreError::Lost { .. }) => {
                self.report.leases += u64::from(is_committed);
                self.owners.remove(index);
                return Ok(());
            }
            Err(error) => return Err(format!("a turn does not end: {error}")),
        }
        if !is_current {
            return Ok(());
        }
        if is_behind && self.healing && items.iter().any(is_drawn_set) {
            return Err(format!("{turn_of:?} passes over a loss"));
        }
        if is_behind {
            // It answers by what it knows, which may be more than there is: what it commits is judged
            // by the watch, and nothing else of it lasts.
            return Ok(());
        }
        self.report.unavailable += u64::from(struck);
        self.doubts[usize::from(self.owners[index].shard.0)] = None;
        for item in items {
            match item {
                Item::Request(ticket, request) => {
                    let answer = answers.remove(&ticket);
                    let answer = answer.ok_or_else(|| format!("no answer to {request:?}"))?;
                    if refused(&answer) && struck {
                        continue;
                    }
                    self.report.requests += 1;
                    self.model.answer(now, &request, answer)?;
                }
                outcome if struck => self.owners[index].kept.push(outcome),
                Item::Outcome(name, revision, verdict) => {
                    self.model.outcome(now, &name, revision, verdict);
                }
            }
        }
        if let Some((ticket, answer)) = answers.first_key_value() {
            return Err(format!("{answer:?} answers {ticket}, which nobody asked"));
        }
        self.let_go(index, starts, now)?;
        if is_committed {
            self.look_at(&changes)?;
        }
        Ok(())
    }

    /// Attempts leave.
    fn let_go(
        &mut self,
        index: usize,
        starts: Vec<Attempt>,
        now: super::Now,
    ) -> Result<(), String> {
        let time = self.time();
        for attempt in starts {
            let owner = &self.owners[index];
            if owner.leaving.is_some() || attempt.fence != owner.fence {
                return Err(format!("{attempt:?} leaves an owner that pauses"));
            }
            self.model.start(&attempt, now)?;
            self.report.attempts += 1;
            let service = self.receivers.below(self.plan.service + 1);
            let end = time + if self.healing { 0 } else { service };
            self.owners[index].running.push((end, attempt));
        }
        // All owners of a node share the places.
        let node = self.owners[index].node;
        let of_node = self.owners.iter().filter(|owner| owner.node == node);
        let running: usize = of_node.map(|owner| owner.running.len()).sum();
        if running > self.config.max_in_flight {
            return Err(format!("{running} attempts run on node {node}"));
        }
        Ok(())
    }

    /// What was committed is what was answered.
    fn look_at(&mut self, changes: &[Change]) -> Result<(), String> {
        for (name, record) in last_of(changes) {
            self.model.compare(name, record, START)?;
        }
        Ok(())
    }

    /// The owner gives its shard away, as a service that stops does.
    fn leave(&mut self, index: usize) -> Result<(), String> {
        let was_current = self.is_current(index);
        let is_behind = self.rolled_back[usize::from(self.owners[index].shard.0)];
        let time = self.time();
        let owner = &mut self.owners[index];
        owner.seam.faults.lock().began = time;
        let noted = owner.engine.note_clocks();
        let result = match noted {
            // A note is made as well as can be.
            Ok(()) | Err(StoreError::Unavailable { .. }) => owner.engine.abandon(),
            error => error,
        };
        let mut faults = owner.seam.faults.lock();
        let struck = std::mem::take(&mut faults.struck);
        let was_lost = faults.was_lost.take().is_some();
        drop(faults);
        let was_lost = was_lost || self.may_fail() || self.is_promoted(index);
        let is_current = was_current && self.is_current(index) && !is_behind;
        self.note(index, format_args!("hands over: {result:?}"));
        let owner = self.owners.remove(index);
        match (result, is_current) {
            (Ok(()), true) => {
                self.report.hand_overs += 1;
                for name in self.names_of(owner.shard) {
                    self.model.hand_over(&name);
                }
                Ok(())
            }
            (Err(StoreError::Unavailable { .. }), _) if struck => Ok(()),
            (Err(error), _) if struck && error.is_full() => Ok(()),
            (Err(StoreError::Lost { .. }), _) if was_lost => Ok(()),
            (Ok(()) | Err(StoreError::Fenced { .. }), false) => Ok(()),
            (Err(error), _) => Err(format!("{:?} is not handed over: {error}", owner.shard)),
        }
    }

    fn is_current(&self, index: usize) -> bool {
        self.owner_of(self.owners[index].shard) == Some(index)
    }

    fn draw_verdict(&mut self) -> Verdict {
        let draw = self.receivers.below(100);
        let (failing, stopping) = (self.plan.failing, self.plan.stopping);
        match draw {
            _ if self.healing => Verdict::Done,
            draw if draw < failing => Verdict::Failed { retry_after: None },
            draw if draw < failing + stopping => Verdict::Stopped,
            _ => Verdict::Done,
        }
    }
}
