//! The scheduler's handling of leased attempts: how they are settled, extended and lost.

use super::{Scheduler, end_attempt, policy};
use crate::draft::Draft;
use crate::planted::planted;
use crate::store::{DueEntry, Filter, Store, StoreError};
use crate::{
    AttemptResult, DeadReason, Due, DueClock, Extended, LeaseToken, Outcome, Record, Revision,
    Settled, State, StateKind, TimerError, TimerName, Verdict,
};
use std::time::Duration;

/// How many records one look for leases reads at the most.
const LEASES_PAGE: usize = 256;

impl Scheduler {
    /// Ends a leased attempt with its outcome.
    pub(super) fn settle_lease(
        &mut self,
        name: &TimerName,
        token: LeaseToken,
        outcome: Outcome,
        draft: &mut Draft<'_>,
    ) -> Result<Settled, TimerError> {
        let record = draft.existing(name)?;
        let is_repeated = record.lease_token() == token
            && matches!(record.state, State::Done { .. })
            && outcome.verdict == Verdict::Done;
        if is_repeated {
            return Ok(settled(record));
        }
        let mut record = Box::new(leased(record, token)?.clone());
        self.forget(&record);
        if let Some(attempt) = record.attempts.last() {
            record.due = attempt.due;
        }
        let record = self.conclude(record, outcome, &[], self.now.wall);
        let settled = settled(&record);
        self.write(draft, record);
        Ok(settled)
    }

    /// Lets a lease end so long from now.
    pub(super) fn extend(
        &mut self,
        name: &TimerName,
        token: LeaseToken,
        lease: Duration,
        draft: &mut Draft<'_>,
    ) -> Result<Extended, TimerError> {
        let mut record = Box::new(leased(draft.existing(name)?, token)?.clone());
        let until = Due::In(lease).resolve(self.now.boot)?;
        // One that is over stays so until somebody looks at it.
        let until = until.max(self.now.boot + Duration::from_micros(1));
        // What the window has of its old end means nothing any more.
        if !planted!(ExtendForgotten) {
            record.due = until;
        }
        self.admit_lease(&record);
        draft.write(record);
        self.stats.leases_extended += 1;
        Ok(Extended { until })
    }

    /// Finds the leases of the scheduler that had the shard before: they have room in their flows as long as they last.
    pub(crate) fn find_leases(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        if self.config.flows.is_none() || planted!(LeasesForgotten) {
            return Ok(());
        }
        let shard = self.ownership.lease.shard;
        for counts in store.counts(shard)? {
            if counts.of(StateKind::Delivering) == 0 {
                continue;
            }
            let mut filter = Filter {
                state: Some(StateKind::Delivering),
                limit: LEASES_PAGE,
                ..Filter::queue(counts.queue)
            };
            loop {
                let page = match store.list(shard, &filter) {
                    Err(error) if error.is_unreadable() => break,
                    page => page?,
                };
                for record in &page.records {
                    if record.leased_until().is_some() {
                        let flows = self.route(record).into_flows();
                        self.leases.put_back(record.revision, flows);
                    }
                }
                let Some(next) = page.next else { break };
                filter.after = Some(next);
            }
        }
        Ok(())
    }

    /// Takes a leased attempt back that nobody has begun.
    pub(super) fn release(
        &mut self,
        name: &TimerName,
        token: LeaseToken,
        draft: &mut Draft<'_>,
    ) -> Result<Settled, TimerError> {
        let mut record = Box::new(leased(draft.existing(name)?, token)?.clone());
        self.forget(&record);
        if let Some(attempt) = record.attempts.pop() {
            record.due = attempt.due;
        }
        if !planted!(ReleaseCounts) {
            record.attempt -= 1;
        }
        record.state = State::Pending;
        // Until now, whoever asked for the lease has held it.
        let due = self.now.convert(record.due, record.clock, DueClock::Boot);
        self.holds
            .note_held(record.revision, vec![(due, self.now.boot)]);
        self.stats.leases_released += 1;
        let settled = settled(&record);
        self.write(draft, record);
        Ok(settled)
    }

    /// Looks at a record whose lease is over. It says whether the timer was given up.
    pub(super) fn lose_lease(&mut self, record: &mut Record) -> bool {
        let now = self.now.wall;
        self.end_lease(record.revision);
        self.stats.leases_lost += 1;
        let detail = "the lease ended before an outcome came".to_owned();
        end_attempt(record, now, AttemptResult::Lost, detail, None);
        if !planted!(LostUncounted) {
            record.failures = record.failures.saturating_add(1);
        }
        record.interruptions = 0;
        let retry = self.retry_after_loss(record);
        let next = policy::next(
            &retry,
            record.failures,
            record.first_due,
            self.now.boot,
            None,
            &mut self.random,
        );
        match next {
            policy::Next::Retry(_) => false,
            policy::Next::Exhausted => {
                self.give_up(record, now, DeadReason::LeaseLost);
                true
            }
            policy::Next::TooOld => {
                self.give_up(record, now, DeadReason::TooOld);
                true
            }
        }
    }

    /// A lease is over, if this scheduler has one of that revision: its room in flows is for others.
    pub(super) fn end_lease(&mut self, revision: Revision) {
        if let Some(flows) = self.leases.remove(revision) {
            self.parked.look_at(&flows);
            self.ended_leases.push((revision, flows));
        }
    }

    /// The record of an attempt that is leased from now on, for so long.
    pub(super) fn lease_out(&self, record: &mut Record, lease: Duration) {
        let (from, to) = (record.clock, DueClock::Boot);
        record.first_due = self.now.convert(record.first_due, from, to);
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.due = self.now.convert(attempt.due, from, to);
            attempt.started = self.now.boot.max(attempt.due);
        }
        record.clock = to;
        record.interruptions = 0;
        let lease = lease.clamp(Duration::from_millis(1), Due::MAX_AHEAD);
        let started = record.attempts.last().map(|attempt| attempt.started);
        record.due = started.unwrap_or(self.now.boot) + lease;
    }

    /// The end of its lease wakes a record.
    pub(super) fn admit_lease(&mut self, record: &Record) {
        if planted!(LeaseNeverEnds) {
            return;
        }
        if let Some(wake) = record.wake() {
            let (name, kind) = (record.name.clone(), Some(record.state.kind()));
            self.admit(record.wake_clock(), DueEntry { wake, name, kind });
        }
    }
}

/// The record, if its attempt of that token is leased.
fn leased(record: &Record, token: LeaseToken) -> Result<&Record, TimerError> {
    let until = record.leased_until();
    let is_own = record.lease_token() == token || planted!(OldTokenCounts);
    if until.is_some() && is_own {
        return Ok(record);
    }
    Err(TimerError::LeaseLost {
        state: record.state.kind(),
        until,
    })
}

fn settled(record: &Record) -> Settled {
    Settled {
        state: record.state.kind(),
        due: matches!(record.state, State::Pending).then_some(record.due),
    }
}
