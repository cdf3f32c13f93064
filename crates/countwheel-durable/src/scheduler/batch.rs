//! Requests that succeed or fail together.

use super::Scheduler;
use crate::draft::{Draft, Replaced};
use crate::planted::planted;
use crate::store::DueEntry;
use crate::{BatchError, DueClock, QueueName, Record, Request, Response, TimerError, Wake};

/// A change of the window that waits for the rest of its batch.
#[derive(Debug)]
pub(super) enum Put {
    /// The entry of a record as it was goes.
    Off(DueClock, Wake, QueueName),
    /// An entry comes in.
    Admit(DueClock, DueEntry),
}

impl Scheduler {
    /// Does all of `requests` in order, or nothing if one of them is refused.
    pub(super) fn answer_batch(
        &mut self,
        mut requests: Vec<Request>,
        draft: &mut Draft<'_>,
    ) -> Result<Vec<Response>, BatchError> {
        if planted!(BatchReversed) {
            requests.reverse();
        }
        let (stats, next_revision) = (self.stats.clone(), self.next_revision);
        let drains = self.drains.clone();
        self.put_off = Some(Vec::new());
        draft.begin();
        let limit = self.config.max_batch_bytes;
        let mut responses = Vec::with_capacity(requests.len());
        let mut refusal = None;
        let mut bytes = 0;
        for (index, request) in requests.into_iter().enumerate() {
            let answer = match self.answer_one(request, &mut bytes, draft) {
                Ok(_) if index > 0 && bytes > limit => Err(TimerError::BatchTooLong { limit }),
                answer => answer,
            };
            match answer {
                Ok(response) => responses.push(response),
                Err(error) => {
                    let index = Some(if planted!(BatchNamesFirst) { 0 } else { index });
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
            self.drains = drains;
            // None of those given since was seen by anybody.
            self.next_revision = next_revision;
            return Err(refusal);
        }
        draft.keep();
        if planted!(BatchReversed) {
            responses.reverse();
        }
        for put in put_off.into_iter().filter(|_| !planted!(BatchWakesNobody)) {
            match put {
                Put::Off(clock, wake, queue) => self.take_off(clock, wake, &queue),
                Put::Admit(clock, entry) => self.admit(clock, entry),
            }
        }
        Ok(responses)
    }

    /// Adds to `bytes` how much the request brings into memory until the batch is at its end: the
    /// payload that it finds, which may have to be put back, or the one that it writes.
    fn answer_one(
        &mut self,
        request: Request,
        bytes: &mut usize,
        draft: &mut Draft<'_>,
    ) -> Result<Response, TimerError> {
        let found = match request.name().map(|name| draft.replaced(name)) {
            None => 0,
            Some(found) => match found? {
                Replaced::Record(record) => record.map_or(0, Record::content_bytes),
                Replaced::Unreadable => 0,
            },
        };
        let written_before = draft.written();
        let response = self.answer(request, draft)?;
        *bytes += found.max(draft.written() - written_before);
        Ok(response)
    }
}
