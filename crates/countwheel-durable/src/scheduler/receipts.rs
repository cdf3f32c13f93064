//! Sets that are repeated: what they are answered with, and what is kept of the first.

use super::Scheduler;
use crate::draft::Draft;
use crate::planted::planted;
use crate::{
    DeadReason, Missed, Receipt, Record, Request, Response, RetryPolicy, Set, State, TimerError,
    TimerName,
};

impl Scheduler {
    /// The answer to the first set with this receipt, if there was one and its receipt is not over.
    pub(super) fn replay(
        &self,
        timer: &TimerName,
        receipt: &Receipt,
        draft: &mut Draft<'_>,
    ) -> Result<Option<Set>, TimerError> {
        let Some(place) = receipt.place(timer) else {
            return Ok(None);
        };
        let Some(stored) = draft.find(&place)?.cloned() else {
            return Ok(None);
        };
        if draft.is_changed(&place) {
            return Err(TimerError::ReceiptPending);
        }
        let mut set = receipt.answer(&stored)?;
        if planted!(ReceiptOfLiveTimer) && draft.find(timer)?.is_none() {
            return Ok(None);
        }
        if planted!(ReplayAnswersLater)
            && let Some(now) = draft.find(timer)?
        {
            (set.revision, set.due) = (now.revision, now.due);
        }
        Ok(Some(set))
    }

    /// What a store without room still answers: a repeated set changes nothing.
    pub(super) fn answer_without_room(
        &self,
        request: &Request,
        draft: &mut Draft<'_>,
    ) -> Result<Response, TimerError> {
        let replayed = match request.plain() {
            Request::Set { name, options, .. } => match &options.receipt {
                Some(receipt) => self.replay(name, receipt, draft)?,
                None => None,
            },
            _ => None,
        };
        replayed.map(Response::Set).ok_or(TimerError::StorageFull)
    }

    /// Keeps the receipt of a set, in the same commit as the timer. In the store it is a record of a reserved queue:
    /// one that is dead, so that it waits for nothing but the end of its time, and is read by every store.
    pub(super) fn keep_receipt(
        &mut self,
        receipt: &Receipt,
        timer: &Record,
        draft: &mut Draft<'_>,
    ) {
        let Some(name) = receipt.place(&timer.name) else {
            return;
        };
        let record = Record {
            name,
            // Positions are of one record each, so the receipt has a revision of its own.
            revision: self.next_revision(),
            state: State::Dead {
                at: self.now.wall,
                reason: DeadReason::Stopped,
                keep_until: Some(self.now.wall + receipt.kept()),
            },
            id: timer.id,
            created: timer.created,
            due: timer.due,
            clock: timer.clock,
            missed: Missed::Fire,
            recurring: None,
            first_due: timer.due,
            policy: RetryPolicy::default(),
            failures: 0,
            interruptions: 0,
            attempt: 0,
            attempts: Vec::new(),
            payload: receipt.fingerprint.to_vec(),
        };
        if planted!(ReceiptLater) {
            self.owed.push(record);
            return;
        }
        self.write(draft, Box::new(record));
    }

    /// Only a planted mistake owes receipts, or entries of the audit log.
    pub(super) fn keep_owed(&mut self, draft: &mut Draft<'_>) {
        for record in std::mem::take(&mut self.owed) {
            self.write(draft, Box::new(record));
        }
    }
}
