//! Requests that are done all together or not at all.

use countwheel::Timestamp;

use super::Scheduler;
use crate::draft::Draft;
use crate::planted::planted;
use crate::store::DueEntry;
use crate::{BatchError, DueClock, Record, Request, Response, TimerError};

/// A change of the window that waits for the rest of its batch.
#[derive(Debug)]
pub(super) enum Put {
    /// The entry of a record as it was goes.
    Off(Box<Record>),
    /// An entry comes in.
    Admit(DueClock, DueEntry),
}

impl Scheduler {
    /// Does all of `requests` in order, or nothing if one of them is refused.
    pub(super) fn answer_batch(
        &mut self,
        now: Timestamp,
        requests: Vec<Request>,
        draft: &mut Draft<'_>,
    ) -> Result<Vec<Response>, BatchError> {
        let (stats, next_revision) = (self.stats.clone(), self.next_revision);
        self.put_off = Some(Vec::new());
        draft.begin();
        let limit = self.config.max_batch_bytes;
        let written_before = draft.written();
        let mut responses = Vec::with_capacity(requests.len());
        let mut refusal = None;
        for (index, request) in requests.into_iter().enumerate() {
            let answer = self.answer(now, request, draft);
            let too_long = index > 0 && draft.written() - written_before > limit;
            let answer = match answer {
                Ok(_) if too_long => Err(TimerError::BatchTooLong { limit }),
                answer => answer,
            };
            match answer {
                Ok(response) => responses.push(response),
                Err(error) => {
                    let index = Some(index);
                    refusal = Some(BatchError { index, error });
                    break;
                }
            }
        }
        let put_off = self.put_off.take().unwrap_or_default();
        if let Some(refusal) = refusal {
            if !planted!(HalfBatch) {
                draft.undo();
            }
            self.stats = stats;
            // None of those given since was seen by anybody.
            self.next_revision = next_revision;
            return Err(refusal);
        }
        draft.keep();
        for put in put_off.into_iter().filter(|_| !planted!(BatchWakesNobody)) {
            match put {
                Put::Off(record) => self.forget(&record),
                Put::Admit(clock, entry) => self.admit(clock, entry),
            }
        }
        Ok(responses)
    }
}
