//! Requests with a note: what they change is an entry of the audit log, in the same commit.

use super::Scheduler;
use crate::audit;
use crate::draft::{Draft, Replaced};
use crate::planted::planted;
use crate::{Changed, Note, Request, Response, SettingName, Stood, TimerError, TimerName, shards};

/// What a request is about, and how it stood.
enum Before {
    Timer(TimerName, Stood),
    Setting(SettingName, Option<crate::SettingsVersion>),
}

impl Scheduler {
    pub(super) fn answer_noted(
        &mut self,
        request: Request,
        note: &Note,
        draft: &mut Draft<'_>,
    ) -> Result<Response, TimerError> {
        let before = Self::before(&request, draft)?;
        let made = draft.made();
        let answer = self.answer(request, draft);
        let response = match answer {
            Err(error) if planted!(AuditOfRefused) => {
                self.write_entry(before, None, note, draft);
                return Err(error);
            }
            answer => answer?,
        };
        if draft.made() > made || planted!(AuditOfNothing) {
            self.write_entry(before, Some(&response), note, draft);
        }
        Ok(response)
    }

    /// How what the request is about stands before it is done.
    fn before(request: &Request, draft: &mut Draft<'_>) -> Result<Before, TimerError> {
        match request.plain() {
            Request::Configure { name, .. } => {
                Ok(Before::Setting(name.clone(), draft.setting(name)))
            }
            request => {
                let name = request.name().ok_or(TimerError::NotFound)?;
                let stood = match draft.replaced(name)? {
                    Replaced::Record(record) => Stood::of(record),
                    Replaced::Unreadable => Stood::Unreadable,
                };
                Ok(Before::Timer(name.clone(), stood))
            }
        }
    }

    /// Writes the entry of a request that was done.
    fn write_entry(
        &mut self,
        before: Before,
        response: Option<&Response>,
        note: &Note,
        draft: &mut Draft<'_>,
    ) {
        let (hashes, changed) = match before {
            Before::Timer(name, before) => {
                let after = Stood::of(draft.cached(&name));
                let before = if planted!(AuditBeforeIsAfter) {
                    after
                } else {
                    before
                };
                let changed = Changed::Timer {
                    name: name.clone(),
                    before,
                    after,
                };
                (shards::hashes(&name), changed)
            }
            Before::Setting(name, before) => {
                let after = match response {
                    Some(Response::Configured(configured)) => {
                        draft.setting(&name).map(|_| configured.version)
                    }
                    _ => None,
                };
                if before.is_none() && after.is_none() || planted!(AuditForgetsSettings) {
                    // Nothing was removed.
                    return;
                }
                // A setting is of all shards: its entry is in the one that changes it.
                let shard = u64::from(self.ownership.lease.shard.0);
                let changed = Changed::Setting {
                    name,
                    before,
                    after,
                };
                ([shard; 2], changed)
            }
        };
        let (at, revision) = (self.now.wall, self.next_revision());
        let keep = if planted!(AuditEndsEarly) {
            note.keep() / 2
        } else {
            note.keep()
        };
        let store = self.ownership.store_id;
        let record = audit::record(changed, note, (at, at + keep), (store, revision), hashes);
        let Some(record) = record else {
            return;
        };
        if planted!(AuditLater) {
            self.owed.push(record);
            return;
        }
        self.write(draft, Box::new(record));
    }
}
