//! Which rules hold for a timer at the moment at which they count.

use std::borrow::Cow;

use super::Scheduler;
use crate::planted::planted;
use crate::{Missed, Overlap, QueueName, Record, RetryPolicy, Rules};

impl Scheduler {
    /// The retry policy after a lease without an outcome.
    pub(super) fn retry_after_loss<'r>(&self, record: &'r Record) -> Cow<'r, RetryPolicy> {
        if planted!(RulesLostOfTheSet) {
            return Cow::Borrowed(&record.policy);
        }
        self.retry_now(record)
    }

    /// The retry policy after a failure.
    pub(super) fn retry_after_failure<'r>(&self, record: &'r Record) -> Cow<'r, RetryPolicy> {
        if planted!(RulesRetryOfTheSet) {
            return Cow::Borrowed(&record.policy);
        }
        self.retry_now(record)
    }

    /// The retry policy of a retry that is due.
    pub(super) fn retry_of_due<'r>(&self, record: &'r Record) -> Cow<'r, RetryPolicy> {
        if planted!(RulesAgeOfTheSet) {
            return Cow::Borrowed(&record.policy);
        }
        self.retry_now(record)
    }

    fn retry_now<'r>(&self, record: &'r Record) -> Cow<'r, RetryPolicy> {
        let said = self.ask(record, |rules, queue, payload| rules.retry(queue, payload));
        said.map_or(Cow::Borrowed(&record.policy), Cow::Owned)
    }

    /// What becomes of a timer that is overdue, or of runs that are.
    pub(super) fn missed_now(&self, record: &Record) -> Missed {
        if planted!(RulesMissedOfTheSet) {
            return record.missed;
        }
        let said = self.ask(record, |rules, queue, payload| rules.missed(queue, payload));
        said.unwrap_or(record.missed)
    }

    /// What becomes of runs that overlap; `None`: as the recurrence says.
    pub(super) fn overlap_now(&self, record: &Record) -> Option<Overlap> {
        if planted!(RulesOverlapOfTheSet) {
            return None;
        }
        self.ask(record, |rules, queue, payload| {
            rules.overlap(queue, payload)
        })
    }

    fn ask<T>(
        &self,
        record: &Record,
        rule: impl Fn(&dyn Rules, &QueueName, &[u8]) -> Option<T>,
    ) -> Option<T> {
        let rules = self.config.rules.as_deref()?;
        if planted!(RulesOfAnotherQueue)
            && let Ok(another) = QueueName::new("another")
        {
            return rule(rules, &another, &record.payload);
        }
        let own: &[u8] = if planted!(RulesOverOwn) {
            &[]
        } else {
            &record.payload
        };
        rule(rules, &record.name.queue, own)
    }
}
