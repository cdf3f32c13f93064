//! What each request does: one function a request.

use super::Scheduler;
use crate::draft::{Draft, Replaced};
use crate::drain;
use crate::planted::planted;
use crate::policy::check_policy;
use crate::{
    Configured, Due, DueClock, EventKind, Forgotten, JobAction, Moved, NameError, Precondition,
    Record, Recurring, Request, Response, RetryPolicy, Revision, Set, SetOptions, Setting,
    SettingName, SettingPrecondition, Shift, State, StateKind, TimerError, TimerId, TimerName, Was,
};
use countwheel_time::Timestamp;
use std::time::Duration;

/// A timer as it is to be set.
struct Asked {
    name: TimerName,
    due: Due,
    policy: RetryPolicy,
    payload: Vec<u8>,
    precondition: Precondition,
    options: SetOptions,
}

impl Scheduler {
    pub(super) fn answer(
        &mut self,
        request: Request,
        draft: &mut Draft<'_>,
    ) -> Result<Response, TimerError> {
        if request.name().is_some_and(|name| name.queue.is_reserved()) {
            return Err(NameError::NamespaceReserved.into());
        }
        match request {
            Request::Set {
                name,
                due,
                policy,
                payload,
                precondition,
                options,
            } => {
                let asked = Asked {
                    name,
                    due,
                    policy,
                    payload,
                    precondition,
                    options,
                };
                self.set(asked, draft).map(Response::Set)
            }
            Request::Move {
                name,
                shift,
                precondition,
            } => self
                .shift(&name, shift, precondition, draft)
                .map(Response::Moved),
            Request::Remove {
                name,
                precondition,
                only_pending,
            } => self
                .remove(&name, precondition, only_pending, draft)
                .map(Response::Removed),
            Request::AsRead {
                name,
                revision,
                state,
                action,
            } => self.act_as_read(&name, (revision, state), action, draft),
            Request::Fire { name } => self.fire(&name, draft).map(Response::Moved),
            Request::Revive { name, due } => self.revive(&name, due, draft).map(Response::Moved),
            Request::Settle {
                name,
                token,
                outcome,
            } => self
                .settle_lease(&name, token, outcome, draft)
                .map(Response::Settled),
            Request::Extend { name, token, lease } => self
                .extend(&name, token, lease, draft)
                .map(Response::Extended),
            Request::Release { name, token } => {
                self.release(&name, token, draft).map(Response::Settled)
            }
            Request::Configure {
                name,
                value,
                precondition,
            } => self
                .configure(name, value, precondition, draft)
                .map(Response::Configured),
            Request::Noted { request, note } => self.answer_noted(*request, &note, draft),
        }
    }

    fn set(&mut self, asked: Asked, draft: &mut Draft<'_>) -> Result<Set, TimerError> {
        let Asked {
            name,
            due,
            policy,
            payload,
            mut precondition,
            mut options,
        } = asked;
        let receipt = options.receipt.take();
        if let Some(receipt) = &receipt {
            if let Some(set) = self.replay(&name, receipt, draft)? {
                return Ok(set);
            }
            if !planted!(ReceiptReplaces) {
                precondition = Precondition::Absent;
            }
        }
        if let Some(mode) = self.drains.refusal(&name.queue)
            && !planted!(DrainTakesSets)
        {
            let queue = name.queue;
            return Err(TimerError::Draining { queue, mode });
        }
        check_policy(&policy)?;
        options.validate()?;
        let limit = self.config.max_payload;
        if payload.len() > limit {
            let bytes = payload.len();
            return Err(TimerError::PayloadTooLarge { bytes, limit });
        }
        let (mut asked, mut due, mut clock) = self.resolve(due)?;
        let recurring = match options.recurrence {
            None => None,
            Some(recurrence) => {
                let by = recurrence.clock();
                let from = self.now.convert(due, clock, by);
                let begun = Recurring::begin(*recurrence, from)?;
                (due, clock) = (Due::At(begun.nominal).resolve(self.now.by(by))?, by);
                Some(Box::new(begun))
            }
        };
        let old = if precondition == Precondition::None {
            draft.replaced(&name)?
        } else {
            Replaced::Record(draft.find(&name)?)
        };
        self.is_mended(&name);
        let replaced = match old {
            Replaced::Record(old) => {
                check(precondition, old)?;
                old.map(|record| record.state.kind())
            }
            Replaced::Unreadable => None,
        };
        let revision = self.next_revision();
        let id = TimerId {
            store: self.ownership.store_id,
            set: revision,
        };
        if let Some(recurring) = &recurring {
            due = recurring.due(id);
            asked = due;
        }
        let record = Box::new(Record {
            name,
            id,
            revision,
            state: State::Pending,
            // On the line of the deadline, so that the one is never before the other.
            created: self.now.by(clock),
            due,
            clock,
            missed: options.missed,
            recurring,
            first_due: asked,
            policy,
            failures: 0,
            interruptions: 0,
            attempt: 0,
            attempts: Vec::new(),
            payload,
        });
        if let Some(receipt) = &receipt {
            self.keep_receipt(receipt, &record, draft);
        }
        self.write(draft, record);
        self.stats.set += 1;
        Ok(Set {
            id,
            revision,
            due,
            replaced,
            replayed: false,
        })
    }

    fn shift(
        &mut self,
        name: &TimerName,
        shift: Shift,
        precondition: Precondition,
        draft: &mut Draft<'_>,
    ) -> Result<Moved, TimerError> {
        let mut record = Box::new(draft.existing(name)?.clone());
        check(precondition, Some(&record))?;
        must_be_pending(&record)?;
        let by = self.now.by(record.clock);
        let resolved = |due: Due| due.resolve(by).map(|due| (due, due, record.clock));
        let (asked, due, clock) = match shift {
            Shift::To(due) => self.resolve(due)?,
            Shift::Later(span) => resolved(Due::At(record.due + span))?,
            Shift::Sooner(span) => resolved(Due::At(record.due.saturating_sub(span)))?,
        };
        if record.is_untried() {
            record.first_due = record.recurring.as_ref().map_or(asked, |_| due);
            if let Some(recurring) = &mut record.recurring
                && !planted!(MoveForgottenByRun)
            {
                let by = recurring.recurrence.clock();
                recurring.move_to(self.now.convert(due, clock, by));
            }
        } else {
            record.first_due = self.now.convert(record.first_due, record.clock, clock);
        }
        self.stats.moved += 1;
        draft.asked(EventKind::Moved);
        Ok(self.rearm(draft, record, due, clock))
    }

    fn remove(
        &mut self,
        name: &TimerName,
        precondition: Precondition,
        only_pending: bool,
        draft: &mut Draft<'_>,
    ) -> Result<Was, TimerError> {
        let record = if precondition == Precondition::None && !only_pending {
            draft.replaced(name)?
        } else {
            Replaced::Record(draft.find(name)?)
        };
        self.is_mended(name);
        let Replaced::Record(record) = record else {
            draft.remove(name);
            self.stats.removed += 1;
            return Ok(Was::Unreadable);
        };
        let record = record.ok_or(TimerError::NotFound)?;
        check(precondition, Some(record))?;
        if only_pending {
            must_be_pending(record)?;
        }
        let was = match record.state {
            State::Pending => Was::Pending { due: record.due },
            State::Delivering => Was::Delivering {
                attempt: record.attempt,
            },
            State::Dead { .. } => Was::Dead,
            State::Done { at, .. } => return Err(TimerError::Gone { at }),
        };
        self.forget(record);
        if !planted!(KeepRemoved) {
            draft.remove(name);
        }
        self.stats.removed += 1;
        Ok(was)
    }

    /// What a job does to one timer.
    fn act_as_read(
        &mut self,
        name: &TimerName,
        (revision, state): (Revision, StateKind),
        action: JobAction,
        draft: &mut Draft<'_>,
    ) -> Result<Response, TimerError> {
        let record = draft.existing(name)?;
        let as_read = if planted!(JobActsOnChanged) {
            Precondition::None
        } else {
            Precondition::Revision(revision)
        };
        check(as_read, Some(record))?;
        let kind = record.state.kind();
        if kind != state || kind == StateKind::Delivering {
            return Err(refusal(record));
        }
        match action {
            JobAction::Move(shift) => self.shift(name, shift, as_read, draft).map(Response::Moved),
            JobAction::Fire => self.fire(name, draft).map(Response::Moved),
            JobAction::Revive => {
                let now = Due::In(Duration::ZERO);
                self.revive(name, now, draft).map(Response::Moved)
            }
            JobAction::Remove => {
                self.forget(record);
                draft.remove(name);
                self.stats.removed += 1;
                Ok(Response::Forgotten(Forgotten { state }))
            }
        }
    }

    fn fire(&mut self, name: &TimerName, draft: &mut Draft<'_>) -> Result<Moved, TimerError> {
        let mut record = Box::new(draft.existing(name)?.clone());
        must_be_pending(&record)?;
        let (due, clock) = (self.now.by(record.clock), record.clock);
        if record.is_untried() {
            record.first_due = due;
            if let Some(recurring) = &mut record.recurring {
                let by = recurring.recurrence.clock();
                let before = self.now.convert(record.due, clock, by);
                recurring.fire(before, self.now.by(by));
            }
        }
        self.stats.fired_by_request += 1;
        draft.asked(EventKind::Fired);
        Ok(self.rearm(draft, record, due, clock))
    }

    fn revive(
        &mut self,
        name: &TimerName,
        due: Due,
        draft: &mut Draft<'_>,
    ) -> Result<Moved, TimerError> {
        let mut record = Box::new(draft.existing(name)?.clone());
        if !matches!(record.state, State::Dead { .. }) {
            return Err(refusal(&record));
        }
        let (asked, due, clock) = self.resolve(due)?;
        record.state = State::Pending;
        record.first_due = record.recurring.as_ref().map_or(asked, |_| due);
        record.failures = 0;
        record.interruptions = 0;
        if let Some(recurring) = &mut record.recurring {
            let by = recurring.recurrence.clock();
            recurring.move_to(self.now.convert(due, clock, by));
        }
        self.stats.revived += 1;
        draft.asked(EventKind::Revived);
        Ok(self.rearm(draft, record, due, clock))
    }

    fn configure(
        &mut self,
        name: SettingName,
        value: Option<Vec<u8>>,
        precondition: SettingPrecondition,
        draft: &mut Draft<'_>,
    ) -> Result<Configured, TimerError> {
        let drain = drain::is_drain(&name).then(|| value.clone());
        let change = Setting {
            name: name.clone(),
            value,
        };
        let version = draft.configure(change, precondition)?;
        if let Some(value) = drain.filter(|_| !planted!(DrainForgotten)) {
            self.drains.change(&name, value.as_deref());
        }
        Ok(Configured { name, version })
    }

    /// What was asked for, when that is, which is now if it has passed, and by which clock: an
    /// instant is one of the wall clock's, a delay is counted by the other.
    fn resolve(&self, due: Due) -> Result<(Timestamp, Timestamp, DueClock), TimerError> {
        let clock = match due {
            Due::At(_) => DueClock::Wall,
            Due::In(_) => DueClock::Boot,
        };
        let resolved = due.resolve(self.now.by(clock))?;
        let asked = match due {
            Due::At(at) if !planted!(PassedTimeForgotten) => at,
            Due::At(_) | Due::In(_) => resolved,
        };
        Ok((asked, resolved, clock))
    }

    /// Gives a pending record another deadline, as a new insertion.
    fn rearm(
        &mut self,
        draft: &mut Draft<'_>,
        mut record: Box<Record>,
        due: Timestamp,
        clock: DueClock,
    ) -> Moved {
        let old_due = record.due;
        if !planted!(MoveKeepsOldDeadline) {
            self.forget(&record);
            record.revision = self.next_revision();
        }
        record.due = due;
        record.clock = clock;
        let revision = record.revision;
        self.write(draft, record);
        Moved {
            revision,
            old_due,
            due,
        }
    }
}

fn check(precondition: Precondition, record: Option<&Record>) -> Result<(), TimerError> {
    match (precondition, record) {
        (Precondition::None, _) | (Precondition::Absent, None) => Ok(()),
        (Precondition::Absent, Some(record)) => Err(TimerError::Exists {
            state: record.state.kind(),
        }),
        (Precondition::Revision(_), None) => Err(TimerError::NotFound),
        (Precondition::Revision(asked), Some(record)) if asked == record.revision => Ok(()),
        (Precondition::Revision(_), Some(record)) => Err(TimerError::Changed {
            current: record.revision,
        }),
    }
}

fn must_be_pending(record: &Record) -> Result<(), TimerError> {
    match record.state {
        State::Pending => Ok(()),
        _ => Err(refusal(record)),
    }
}

/// Why a request that needs another state is refused.
fn refusal(record: &Record) -> TimerError {
    match record.state {
        State::Done { at, .. } => TimerError::Gone { at },
        _ => TimerError::Conflict {
            state: record.state.kind(),
        },
    }
}
