//! What a commit makes of each name, and what its owner knows after it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use countwheel_durable::store::{Before, Change, ClockNote, Fence, Shard};
use countwheel_durable::{Record, Revision, Setting, StateKind, TimerName};

use crate::bits::Bits;
use crate::hash::NameHash;
use crate::planted::planted;

/// One turn of one shard: for each name what becomes of it, once all changes are made.
pub(crate) struct Turn<'a> {
    pub(crate) shard: Shard,
    revision: Revision,
    clock: Option<ClockNote>,
    pub(crate) settings: Vec<&'a Setting>,
    /// In the order of the hashes, so two statements lock rows in one order.
    pub(crate) names: Vec<Named<'a>>,
    /// How long its payloads are together.
    pub(crate) bytes: usize,
}

/// What becomes of one name.
pub(crate) struct Named<'a> {
    pub(crate) hash: Bits,
    pub(crate) name: &'a TimerName,
    /// What is there before the turn, as the first change of the name says it.
    pub(crate) before: Before,
    /// The record; none if it is removed.
    pub(crate) record: Option<&'a Record>,
    /// Whether its payload is there already.
    pub(crate) narrow: bool,
}

impl Named<'_> {
    /// Whether what is there before may be done.
    pub(crate) fn may_be_done(&self) -> bool {
        match self.before {
            Before::Absent => false,
            Before::Present(kind) | Before::SamePayload(kind) => kind == StateKind::Done,
            Before::Unknown | Before::Unreadable => true,
        }
    }
}

impl<'a> Turn<'a> {
    pub(crate) fn of(shard: Shard, changes: &'a [Change], hash: &NameHash) -> Self {
        let mut turn = Self {
            shard,
            revision: Revision(0),
            clock: None,
            settings: Vec::new(),
            names: Vec::new(),
            bytes: 0,
        };
        let mut places = HashMap::new();
        for change in changes {
            let (name, before, record) = match change {
                Change::Put { record, before } => {
                    turn.revision = turn.revision.max(record.revision);
                    (&record.name, *before, Some(&**record))
                }
                Change::Remove { name, before } => (name, *before, None),
                Change::Given(revision) => {
                    turn.revision = turn.revision.max(*revision);
                    continue;
                }
                Change::Clock(note) => {
                    turn.clock = Some(*note);
                    continue;
                }
                Change::Setting(setting) => {
                    turn.settings.push(setting);
                    continue;
                }
            };
            // A done record may be forgotten meanwhile, and its payload with it.
            let stays = matches!(before, Before::SamePayload(kind) if kind != StateKind::Done)
                || matches!(before, Before::Present(_)) && planted!(PostgresKeepsPayload);
            if planted!(PostgresNameTwice) {
                places.clear();
            }
            match places.entry(name) {
                Entry::Vacant(place) => {
                    place.insert(turn.names.len());
                    turn.names.push(Named {
                        hash: hash.of(name),
                        name,
                        before,
                        record,
                        narrow: record.is_some() && stays,
                    });
                }
                Entry::Occupied(place) => {
                    let named = &mut turn.names[*place.get()];
                    // The payload stays as it is after the change before.
                    named.narrow &= stays && record.is_some();
                    named.record = record;
                }
            }
        }
        turn.names.sort_unstable_by_key(|named| named.hash);
        let whole = turn.names.iter().filter(|named| !named.narrow);
        let payloads = whole.filter_map(|named| Some(named.record?.content_bytes()));
        turn.bytes = payloads.sum();
        turn
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
            && self.settings.is_empty()
            && self.clock.is_none()
            && self.revision == Revision(0)
    }

    /// How many changes it has, as its row says it: no turn has none but an empty one.
    pub(crate) fn writes(&self) -> i32 {
        i32::try_from(1 + self.names.len() + self.settings.len()).unwrap_or(i32::MAX)
    }

    /// What the shard remembers after the turn.
    pub(crate) fn after(&self, held: &Held) -> Held {
        Held {
            seq: held.seq + 1,
            made_by: Some(held.token),
            revision: match planted!(PostgresRevisionOfTurn) {
                true => self.revision,
                false => held.revision.max(self.revision),
            },
            clock: self
                .clock
                .or(held.clock.filter(|_| !planted!(PostgresClockOfTurn))),
            ..*held
        }
    }
}

/// What an owner knows of its shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) token: Bits,
    pub(crate) fence: Fence,
    /// The number of its last turn.
    pub(crate) seq: i64,
    /// Under which token that was made, if it is not the first.
    pub(crate) made_by: Option<Bits>,
    pub(crate) revision: Revision,
    pub(crate) clock: Option<ClockNote>,
    /// The server's history: another one since a standby was promoted.
    pub(crate) timeline: i32,
}

impl Held {
    /// A turn was made that changes nothing.
    pub(crate) fn pass(&mut self) {
        self.seq += 1;
        self.made_by = Some(self.token);
    }
}
