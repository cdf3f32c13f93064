//! Copies of what other processes told: each asks the others for news, and takes in their answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{EventLog, EventPosition, FutureEvent, OwnEvents};
use crate::planted::planted;
use crate::store::{Fence, Shard};

/// How far a process has the events of each shard: by this it asks another process for what follows.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KnownEvents {
    /// The shard, the term, and the number of the last event.
    ends: Vec<(u16, u64, u64)>,
}

/// What the owners in a process told: the answer to [`KnownEvents`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ToldEvents {
    store: u64,
    shards: Vec<(u16, Vec<OwnEvents>)>,
}

/// Why a reader cannot go on behind an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResumeError {
    /// There was no such event yet.
    #[error(transparent)]
    Future(#[from] FutureEvent),
    /// This process does not know, as the owner of the shard has not told it.
    #[error("the owner of shard {} has not told this process of its events", .0.0)]
    Unknown(Shard),
}

/// Keeps copies of what owners in other processes told in the log of this one, and answers those that do the same. It
/// has no thread and no clock: whoever has it asks the others, again and again.
///
/// ```
/// use std::sync::Arc;
/// use countwheel_durable::store::{Fence, Lease, Ownership, Shard};
/// use countwheel_durable::{EventCopies, EventLog, EventPosition, EventSink, Revision, SettingName, TimerEvent, Timestamp};
///
/// let copies = || EventCopies::new(Arc::new(EventLog::new(EventLog::EVENTS, EventLog::BYTES)));
/// let (here, there) = (copies(), copies());
/// let lease = Lease { shard: Shard(2), fence: Fence(1) };
/// there.log().opened(&Ownership {
///     lease,
///     store_id: 7,
///     last_revision: Revision(0),
///     clock: None,
///     forgets_done: false,
/// });
/// let event = TimerEvent::of_setting(SettingName::new("queue/orders")?, true, Timestamp::EPOCH);
/// there.log().committed(lease, vec![event]);
///
/// let told = there.answer(&here.asks(), 8_192);
/// assert!(!here.take(vec![told]));
/// let end = EventPosition { term: Fence(1), number: 1 };
/// assert_eq!(here.log().end(Shard(2)), Some(end));
/// assert!(here.resume(Shard(2), end).is_ok());
/// # Ok::<(), countwheel_durable::SettingError>(())
/// ```
#[derive(Debug)]
pub struct EventCopies {
    log: Arc<EventLog>,
    /// Where the owners of shards in other processes were when they answered last.
    heard: Mutex<BTreeMap<Shard, EventPosition>>,
}

impl EventCopies {
    /// Copies into `log`, which also hears the owners of this process.
    #[must_use]
    pub const fn new(log: Arc<EventLog>) -> Self {
        Self {
            log,
            heard: Mutex::new(BTreeMap::new()),
        }
    }

    /// Where the copies are.
    #[must_use]
    pub fn log(&self) -> &Arc<EventLog> {
        &self.log
    }

    /// What all other processes are asked in a round. What the round before heard of their owners counts no more.
    #[must_use]
    pub fn asks(&self) -> KnownEvents {
        self.heard.lock().clear();
        let shards = self.log.shards().into_iter();
        let ends = shards.filter_map(|shard| {
            let end = self.log.end(shard)?;
            Some((shard.0, end.term.0, end.number))
        });
        KnownEvents {
            ends: ends.collect(),
        }
    }

    /// Answers another process with about `most` events at the most, and those of a whole commit more.
    #[must_use]
    pub fn answer(&self, known: &KnownEvents, most: usize) -> ToldEvents {
        let mut left = most;
        let mut shards = Vec::new();
        for shard in self.log.shards() {
            let after = known.ends.iter().find(|(of, ..)| *of == shard.0);
            let after = after.map(|&(_, term, number)| EventPosition {
                term: Fence(term),
                number,
            });
            let own = self.log.own(shard, after, left);
            left = left.saturating_sub(own.iter().map(|term| term.events.len()).sum());
            if !own.is_empty() {
                shards.push((shard.0, own));
            }
        }
        let store = self.log.store();
        ToldEvents { store, shards }
    }

    /// Takes in what the others answered in a round, in whatever order. Says whether they have more.
    pub fn take(&self, told: Vec<ToldEvents>) -> bool {
        let mut terms: Vec<(u64, Shard, OwnEvents)> = Vec::new();
        for ToldEvents { store, shards } in told {
            for (shard, of_shard) in shards {
                terms.extend(of_shard.into_iter().map(|term| (store, Shard(shard), term)));
            }
        }
        // A shard may have changed hands: the earlier term comes first, whoever answered first.
        terms.sort_by_key(|(_, shard, told)| (*shard, told.term));
        let mut is_more = false;
        for (store, shard, told) in terms {
            let end = EventPosition {
                term: Fence(told.term),
                number: told.end,
            };
            self.heard.lock().insert(shard, end);
            let is_news = self.log.copy(store, shard, told);
            let has_end = self.log.end(shard).is_some_and(|known| known >= end);
            is_more |= is_news && !has_end;
        }
        is_more
    }

    /// Whether a reader can go on behind an event of a shard, of which any process may have told it. It has to be asked after
    /// a round that began later than the reader came.
    ///
    /// # Errors
    /// [`ResumeError::Future`] if there was no such event, and [`ResumeError::Unknown`] if that is not known: the owner
    /// has not answered, or the copy of what it told is not yet so far.
    pub fn resume(&self, shard: Shard, position: EventPosition) -> Result<(), ResumeError> {
        let Err(future) = self.log.read(shard, Some(position)) else {
            let is_known = self.log.end(shard).is_some();
            return if is_known {
                Ok(())
            } else {
                Err(ResumeError::Unknown(shard))
            };
        };
        let heard = self.heard.lock().get(&shard).copied();
        let is_known = self.log.has_own(shard, position.term)
            || heard.is_some_and(|end| end.term == position.term && end.number < position.number);
        if is_known || planted!(EventsResumeRefused) {
            return Err(future.into());
        }
        Err(ResumeError::Unknown(shard))
    }
}
