//! The seam to the database: its statements, each done whole at one moment or not at all.

use std::time::Duration;

use countwheel_durable::store::{ClockNote, Fence, Filter, Shard};
use countwheel_durable::{
    DueClock, QueueName, Record, Revision, Settings, SettingsVersion, State, StateKind, Wake,
};
use countwheel_time::Timestamp;

use crate::bits::Bits;
use crate::commit::{Held, Turn};
use crate::front::Lows;
use crate::ring::{Ring, Slots};
use crate::snapshots::Holder;

/// Why a statement has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Nothing was sent.
    Away(String),
    /// It was sent, or part of it; whether the server did it is unknown.
    Broken(String),
    /// The server refused it, and did none of it.
    Refused(Refusal),
    /// It cannot be sent: the form has no room for it.
    Unwritable(String),
}

/// What the server says of a statement that it refuses.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    /// Its SQLSTATE.
    pub(crate) code: String,
    pub(crate) message: String,
}

impl Refusal {
    /// The server has no room.
    pub(crate) fn is_full(&self) -> bool {
        self.code == "53100"
    }

    /// It took longer than a statement may.
    pub(crate) fn took_too_long(&self) -> bool {
        self.code == "57014"
    }

    /// Somebody else held a lock for too long.
    pub(crate) fn has_no_lock(&self) -> bool {
        self.code == "55P03"
    }

    /// Whether the server may take it at another time.
    pub(crate) fn is_passing(&self) -> bool {
        // Connections, transactions rolled back, resources, interventions of the operator, the system.
        let classes = ["08", "40", "53", "55", "57", "58"];
        classes.iter().any(|class| self.code.starts_with(class))
    }
}

/// The reason of a failure where the server has not answered in time.
pub(crate) const NO_ANSWER: &str = "no answer in time";

impl Failure {
    /// Whether another connection may have an answer at once.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Broken(reason) if reason != NO_ANSWER)
    }

    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Away(reason) | Self::Broken(reason) | Self::Unwritable(reason) => reason.clone(),
            Self::Refused(refusal) => format!("{} ({})", refusal.message, refusal.code),
        }
    }
}

/// What one statement makes of one shard.
#[derive(Clone)]
pub(crate) struct Entry<'a, 'b> {
    pub(crate) shard: Shard,
    /// What is changed. Without it the turn is empty, and takes the place of any other of its number.
    pub(crate) turn: Option<&'a Turn<'b>>,
    /// The turn's row, and under which token it is made.
    pub(crate) after: Held,
    /// The low marks after it.
    pub(crate) lows: Lows,
}

impl Entry<'_, '_> {
    /// How many changes the turn's row says it has: none if it is empty.
    pub(crate) fn writes(&self) -> i32 {
        self.turn.map_or(0, Turn::writes)
    }
}

/// The shards whose turns were inserted, with all that belongs to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Made {
    pub(crate) shards: Vec<Shard>,
    /// The server warns that a standby may not have them.
    pub(crate) unreplicated: bool,
}

/// What became of a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Became {
    /// Whether the shard's token is that of who asks.
    pub(crate) is_ours: bool,
    pub(crate) fence: Fence,
    /// Of the turn's row, if it is there and its token is that of who asks.
    pub(crate) writes: Option<i32>,
    /// Whether the turn before is there.
    pub(crate) has_before: bool,
    /// The server's history now.
    pub(crate) timeline: i32,
}

/// A shard was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) fence: Fence,
    /// The server warns that a standby may not have it.
    pub(crate) unreplicated: bool,
}

/// The last turn of a shard.
#[derive(Clone, Debug)]
pub(crate) struct LastTurn {
    pub(crate) seq: i64,
    pub(crate) revision: Revision,
    pub(crate) clock: Option<ClockNote>,
    /// The server's history when it was made, if the row says so.
    pub(crate) timeline: Option<i32>,
    /// The low marks after it.
    pub(crate) lows: Lows,
    /// The server's history now.
    pub(crate) timeline_now: i32,
    /// Under which it was made, if it is not the first.
    pub(crate) token: Option<Bits>,
}

/// Who owns a shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnerRow {
    pub(crate) fence: Fence,
    pub(crate) token: Option<Bits>,
    pub(crate) node: Option<Bits>,
}

/// A record as its row has it.
#[derive(Clone, Debug)]
pub(crate) struct RecordRow {
    pub(crate) queue: String,
    pub(crate) key: String,
    pub(crate) revision: Revision,
    pub(crate) due: Timestamp,
    pub(crate) state: i8,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

/// An entry of what is due.
#[derive(Clone, Debug)]
pub(crate) struct DueRow {
    pub(crate) hash: Bits,
    pub(crate) wake: Wake,
    pub(crate) state: i8,
    pub(crate) queue: String,
    pub(crate) key: String,
}

/// Timers that are named beside a low mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside<'a> {
    pub(crate) names: &'a [Bits],
    /// Those from this position on.
    pub(crate) from: (Timestamp, Revision),
}

/// A page of a list as the server makes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListRows {
    /// The last entry that was looked at, if there are more behind it.
    pub(crate) seen_to: Option<(Timestamp, Revision)>,
    /// The records, and for the first of those that have no room, none.
    pub(crate) records: Vec<Option<RecordRow>>,
}

/// As what a timer counts: with its state, and if it is done with the slice until which it is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    Not(StateKind),
    Done(u64),
}

impl Kind {
    /// Of a timer in that state, which is kept so long if it is done.
    pub(crate) fn of(state: StateKind, keep_until: Timestamp, ring: Ring) -> Self {
        match state {
            StateKind::Done => Self::Done(ring.slice(keep_until)),
            other => Self::Not(other),
        }
    }

    pub(crate) fn of_record(record: &Record, ring: Ring) -> Self {
        match record.state {
            State::Done { keep_until, .. } => Self::Done(ring.slice(keep_until)),
            _ => Self::Not(record.state.kind()),
        }
    }
}

/// Where a read looks for names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// As long as this is the token of the shard, nobody else has put anything into other tables of the
    /// ring than these; with another token, all are looked at.
    pub(crate) token: Bits,
    pub(crate) slots: Slots,
}

impl Reach {
    /// Everywhere.
    pub(crate) const ALL: Self = Self {
        token: Bits([0; 16]),
        slots: Slots::ALL,
    };
}

/// What a count found.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    /// The last turn of the shard when it was counted.
    pub(crate) seq: i64,
    pub(crate) by_kind: Vec<(QueueName, Kind, u64)>,
}

/// The counts of a shard after one of its turns.
#[derive(Clone, Debug)]
pub(crate) struct SavedCounts {
    pub(crate) shard: Shard,
    pub(crate) seq: i64,
    /// Under which the turn was made.
    pub(crate) token: Bits,
    pub(crate) counts: Vec<u8>,
}

/// One connection.
pub(crate) trait Session: Send {
    /// Makes the turns of several shards, each of them all or none. A shard is not among those made if
    /// its token is another, if the turn before is not there, if a turn of its number is, or if the
    /// server's history is another.
    fn turn(&mut self, entries: &[Entry<'_, '_>]) -> Result<Made, Failure>;

    /// What became of the turn `seq` under `token`; `None` if there is no such shard.
    fn became(&mut self, shard: Shard, token: Bits, seq: i64) -> Result<Option<Became>, Failure>;

    /// Gives the shard a token, an owner and the next fence, if its fence is `after`: a taking that comes
    /// late changes nothing. It waits for the turns that are under way.
    fn take(
        &mut self,
        shard: Shard,
        after: Fence,
        token: Bits,
        node: Bits,
    ) -> Result<Option<Taken>, Failure>;

    fn last_turn(&mut self, shard: Shard) -> Result<Option<LastTurn>, Failure>;

    fn owner(&mut self, shard: Shard) -> Result<Option<OwnerRow>, Failure>;

    /// As what those of the names count that are there.
    fn kinds(&mut self, shard: Shard, names: &[Bits]) -> Result<Vec<(Bits, Kind)>, Failure>;

    /// Deletes turns before `seq`.
    fn prune(&mut self, shard: Shard, seq: i64) -> Result<(), Failure>;

    /// What there is under the names, in their order, until the payloads before one are longer than
    /// `bytes`: the answer may be shorter than the question.
    fn names(
        &mut self,
        shard: Shard,
        names: &[Bits],
        reach: Reach,
        bytes: usize,
    ) -> Result<Vec<Option<RecordRow>>, Failure>;

    /// At most `limit` entries from the position `from` on, and before it those `beside`. Nothing that is done
    /// is among them.
    fn due(
        &mut self,
        shard: Shard,
        clock: DueClock,
        from: (Timestamp, Revision),
        beside: Option<Beside<'_>>,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<DueRow>, Failure>;

    /// The first that wake by the clock, from the position on, at most so many.
    fn first(
        &mut self,
        shard: Shard,
        clock: DueClock,
        from: Wake,
        limit: usize,
    ) -> Result<Vec<(Wake, Bits)>, Failure>;

    /// Where those of the names wake that are there and ever wake.
    fn places(
        &mut self,
        shard: Shard,
        names: &[Bits],
    ) -> Result<Vec<(Bits, DueClock, Wake)>, Failure>;

    /// The page that `filter` asks for, from the position `from` on, up to what is due at `until`.
    fn list(
        &mut self,
        shard: Shard,
        filter: &Filter,
        from: (Timestamp, Revision),
        until: Timestamp,
    ) -> Result<ListRows, Failure>;

    /// How many timers each queue has in each state, in order of queue, without the done ones that are
    /// kept until before `kept_from`.
    fn counts(
        &mut self,
        shard: Shard,
        kept_from: Timestamp,
    ) -> Result<Vec<(QueueName, StateKind, u64)>, Failure>;

    /// Counts at most `limit` timers of a shard that have the hashes from the first to the last of `page`.
    fn count(&mut self, shard: Shard, page: (Bits, Bits), limit: usize)
    -> Result<Counted, Failure>;

    /// The counts that were saved after the last turn of the shard, if they were.
    fn saved_counts(&mut self, shard: Shard) -> Result<Option<Vec<u8>>, Failure>;

    /// Saves counts, each if its turn is there.
    fn save_counts(&mut self, counts: &[SavedCounts]) -> Result<(), Failure>;

    /// Empties the table of the ring that has what is kept until a slice that is over, unless something
    /// in it is kept still: then what is past is removed, some of it at a time. Says whether the table is
    /// empty.
    fn forget(&mut self, slice: u64) -> Result<bool, Failure>;

    /// Removes done records that an earlier program has kept outside of the ring, some of them at a time.
    fn forget_outside(&mut self, shards: &[Shard]) -> Result<(), Failure>;

    /// The settings, if their version is later.
    fn settings(&mut self, after: SettingsVersion) -> Result<Option<Settings>, Failure>;

    /// Writes down that the turn `seq` of a shard was acknowledged and is missing.
    fn note_loss(&mut self, shard: Shard, seq: i64) -> Result<(), Failure>;

    /// Which acknowledged turns were found missing, and nobody has acknowledged that.
    fn losses(&mut self) -> Result<Vec<(Shard, i64)>, Failure>;

    /// Asks whether the server is there, and gives up soon.
    fn ping(&mut self) -> Result<(), Failure>;

    /// Of those who keep a snapshot of the database: whose transaction lasts longest, and the oldest
    /// whose age is not said.
    fn snapshots(&mut self) -> Result<Vec<Holder>, Failure> {
        Ok(Vec::new())
    }

    /// Waits before the next try.
    fn pause(&mut self, pause: Duration);
}
