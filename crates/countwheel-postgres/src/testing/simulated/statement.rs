//! Statements that write, as they are on their way.

use countwheel_cluster::{Node, NodeId};
use countwheel_durable::store::{Fence, Shard};
use countwheel_durable::{Record, StateKind};
use countwheel_time::Timestamp;

use crate::bits::Bits;
use crate::body;
use crate::planted::planted;
use crate::ring::Ring;
use crate::session::{Entry, Failure, SavedCounts, Take};

/// A statement that may be done when nobody waits for it any more.
#[derive(Clone)]
pub(super) enum Written {
    Turns(Vec<TurnOf>),
    Take {
        shard: Shard,
        after: Fence,
        token: Bits,
        node: Bits,
    },
    TakeOver {
        shard: Shard,
        after: Fence,
        token: Bits,
        node: NodeId,
        /// Whose lease was found to be over when it was sent: only a mistake looks so early.
        looked: Option<Option<NodeId>>,
    },
    TakeAtOnce {
        takes: Vec<Take>,
        node: NodeId,
        /// Somebody holds the rows of these, as long as this is on its way.
        held: Vec<Shard>,
    },
    Join {
        node: Node,
        lease: i64,
    },
    Renew {
        node: NodeId,
        lease: i64,
    },
    Give {
        shard: Shard,
        of: (Fence, Option<Bits>),
        to: Option<NodeId>,
    },
    Leave(NodeId),
    MarkDraining {
        name: String,
        is_draining: bool,
    },
    Want {
        shard: Option<Shard>,
        node: Option<String>,
    },
    Prune {
        shard: Shard,
        seq: i64,
    },
    Counts(Vec<SavedCounts>),
    /// The table of that slot is emptied.
    Forget(i16),
    /// What is done and past leaves `timer`.
    ForgetOutside(Vec<Shard>),
}

/// What a statement has of one shard.
#[derive(Clone)]
pub(super) struct TurnOf {
    pub(super) shard: Shard,
    pub(super) seq: i64,
    pub(super) row: TurnRow,
    pub(super) put: Vec<(Bits, TimerRow)>,
    pub(super) narrow: Vec<(Bits, TimerRow)>,
    pub(super) removed: Vec<Bits>,
    /// What goes into the ring.
    pub(super) done: Vec<DoneRow>,
    /// What is taken out of it.
    pub(super) replaced: Vec<Bits>,
    /// In the order of the commit.
    pub(super) settings: Vec<(String, Option<Vec<u8>>)>,
    /// The turn's right was looked at when it was sent: only a mistake does so.
    pub(super) has_passed: bool,
}

/// A row of the ring.
#[derive(Clone)]
pub(super) struct DoneRow {
    pub(super) hash: Bits,
    pub(super) slot: i16,
    /// Whether its payload is that of the row in `timer`.
    pub(super) is_bare: bool,
    pub(super) row: TimerRow,
}

/// A row of a turn, without its key.
#[derive(Clone)]
pub(super) struct TurnRow {
    pub(super) token: Option<Bits>,
    pub(super) revision: u64,
    pub(super) clock: Option<countwheel_durable::store::ClockNote>,
    pub(super) timeline: Option<i32>,
    pub(super) writes: i32,
    pub(super) lows: Option<Vec<u8>>,
}

/// A row of a timer, without its key. One that is written without its payload has none.
#[derive(Clone)]
pub(super) struct TimerRow {
    pub(super) queue: String,
    pub(super) key: String,
    pub(super) revision: u64,
    pub(super) due: u64,
    pub(super) wake: Option<u64>,
    pub(super) clock: i8,
    pub(super) state: i8,
    pub(super) body: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

impl TimerRow {
    fn of(record: &Record, payload: &[u8]) -> Result<Self, Failure> {
        let body = body::encode(record);
        Ok(Self {
            queue: record.name.queue.as_str().to_owned(),
            key: record.name.key.as_str().to_owned(),
            revision: record.revision.0,
            due: record.due.as_micros(),
            wake: record.wake().map(|wake| wake.at.as_micros()),
            clock: body::clock_letter(record.wake_clock()),
            state: body::letter(record.state.kind()),
            body: body.map_err(|error| Failure::Unwritable(error.to_string()))?,
            payload: payload.to_vec(),
        })
    }
}

impl TurnOf {
    pub(super) fn of(entry: &Entry<'_, '_>, ring: Ring) -> Result<Self, Failure> {
        let after = &entry.after;
        let mut turn = Self {
            shard: entry.shard,
            seq: after.seq,
            row: TurnRow {
                token: Some(after.token),
                revision: after.revision.0,
                clock: after.clock,
                timeline: Some(after.timeline),
                writes: entry.writes(),
                lows: entry.lows.to_bytes(),
            },
            put: Vec::new(),
            narrow: Vec::new(),
            removed: Vec::new(),
            done: Vec::new(),
            replaced: Vec::new(),
            settings: Vec::new(),
            has_passed: false,
        };
        let Some(changed) = entry.turn else {
            return Ok(turn);
        };
        for named in &changed.names {
            if named.may_be_done() && !planted!(PostgresDoneStays) {
                turn.replaced.push(named.hash);
            }
            match named.record {
                Some(record) if record.state.kind() == StateKind::Done => {
                    let payload = match named.narrow {
                        true => &[],
                        false => record.payload.as_slice(),
                    };
                    let row = TimerRow::of(record, payload)?;
                    let keep_until = Timestamp::from_micros(row.wake.unwrap_or_default());
                    turn.done.push(DoneRow {
                        hash: named.hash,
                        slot: Ring::slot(ring.slice(keep_until)),
                        is_bare: named.narrow,
                        row,
                    });
                    if !planted!(PostgresDoneTwice) {
                        turn.removed.push(named.hash);
                    }
                }
                Some(record) if named.narrow => {
                    turn.narrow.push((named.hash, TimerRow::of(record, &[])?));
                }
                Some(record) => {
                    let row = TimerRow::of(record, &record.payload)?;
                    turn.put.push((named.hash, row));
                }
                None => turn.removed.push(named.hash),
            }
        }
        let settings = changed.settings.iter();
        turn.settings = settings
            .map(|setting| (setting.name.as_str().to_owned(), setting.value.clone()))
            .collect();
        Ok(turn)
    }
}
