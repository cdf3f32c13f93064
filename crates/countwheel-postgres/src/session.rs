//! The seam to the database: its statements, each done whole at one moment or not at all.

use std::fmt;
use std::time::Duration;

use countwheel_cluster::{Node, NodeId, View};
use countwheel_durable::store::{ClockNote, Fence, Filter, Shard};
use countwheel_durable::{
    DueClock, QueueName, Record, Revision, Settings, SettingsVersion, State, StateKind, Wake,
};
use countwheel_time::Timestamp;

use crate::bits::Bits;
use crate::commit::{Held, Turn};
use crate::front::Lows;
use crate::ring::{Ring, Slots};
use crate::server::About;
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

    /// The same of a statement that was sent before, without an answer: that may be done whatever became of this.
    pub(crate) fn again(self) -> Self {
        Self::Broken(self.reason())
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

/// What the tables say of nodes and owners.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    /// Whether the node that asks has a row.
    pub(crate) is_joined: bool,
    pub(crate) view: View,
    /// The token of each shard, in the order of the view.
    pub(crate) tokens: Vec<Option<Bits>>,
    /// The server warns that a standby may not have what was written.
    pub(crate) unreplicated: bool,
}

/// What became of a taking that looks at the lease of the owner.
#[derive(Clone, Debug)]
pub(crate) enum TakenOver {
    Taken(Taken),
    /// The shard has another fence or another owner than was read.
    Moved,
    /// The lease of its owner, a node of that name, is not over.
    Held(String),
}

/// What became of a taking of many shards that waits for nobody.
#[derive(Clone, Debug)]
pub(crate) struct TakenAtOnce {
    /// Those that are taken.
    pub(crate) shards: Vec<Shard>,
    /// The server warns that a standby may not have it.
    pub(crate) unreplicated: bool,
}

/// What is taken: the shard, the fence that it has, and the token that it is to have.
pub(crate) type Take = (Shard, Fence, Bits);

/// A session that holds the row of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Blocker {
    /// Zero for a transaction that is prepared.
    pub(crate) pid: i32,
    /// What it is called and what it does, if this role may know.
    pub(crate) what: String,
    pub(crate) is_ended: bool,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {} ({})", self.pid, self.what)
    }
}

/// What became of a giving.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    /// Whether the shard is given now. If not, it was not of who gives it.
    pub(crate) is_given: bool,
    /// The server warns that a standby may not have it.
    pub(crate) unreplicated: bool,
}

/// What became of a wish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wished {
    Noted,
    NoSuchNode,
    NoSuchShard,
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

    /// The same for a node, if the shard has no owner, if its owner is this node or one without a row, or if
    /// its owner's lease has been over for [`MARGIN`](crate::registry::MARGIN) by the server's clock. The
    /// owner cannot renew its lease meanwhile. It waits for the turns that are under way for a second.
    fn take_over(
        &mut self,
        shard: Shard,
        after: Fence,
        token: Bits,
        node: NodeId,
    ) -> Result<TakenOver, Failure>;

    /// The same of many shards, for each of them or not, without a wait: of those whose rows somebody holds, or
    /// whose owners' rows, none is taken. Shards of nodes that live are not taken either.
    fn take_at_once(&mut self, takes: &[Take], node: NodeId) -> Result<TakenAtOnce, Failure>;

    /// The same of one shard whose row somebody held. After [a moment](crate::sql::HELD_FOR) it ends the
    /// sessions that hold it, each if it is called as this one is, or is idle in a transaction. Says which
    /// those were.
    fn take_held(
        &mut self,
        shard: Shard,
        after: Fence,
        token: Bits,
        node: NodeId,
    ) -> (Result<TakenOver, Failure>, Vec<Blocker>) {
        (self.take_over(shard, after, token, node), Vec::new())
    }

    /// Closes the connection until it is needed again.
    fn rest(&mut self) {}

    /// Writes a node down with a lease of so many microseconds, in place of one of its name whose lease is
    /// over. Does nothing if that is not over. Nodes whose leases have been over for
    /// [an hour](crate::registry::GONE_AFTER) and that have no shards are removed.
    fn join(&mut self, node: &Node, lease: i64) -> Result<Registered, Failure>;

    /// Lets the node's lease last so many microseconds from now, if it has a row, and reads everything: what
    /// others wrote while this waited may not be in it.
    fn renew(&mut self, node: NodeId, lease: i64) -> Result<Registered, Failure>;

    /// Reads everything.
    fn view(&mut self, node: NodeId) -> Result<Registered, Failure>;

    /// Gives a shard that was taken under that fence to another node, or to nobody, and takes its token away,
    /// if it has that token, or none. It waits for the turns that are under way.
    fn give(
        &mut self,
        shard: Shard,
        of: (Fence, Option<Bits>),
        to: Option<NodeId>,
    ) -> Result<Given, Failure>;

    /// Removes the row of a node, and the owner and the token of each of its shards.
    fn leave(&mut self, node: NodeId) -> Result<(), Failure>;

    /// Says whether there is a node of that name.
    fn mark_draining(&mut self, name: &str, is_draining: bool) -> Result<bool, Failure>;

    /// Writes down which node is to have a shard, or each of them.
    fn want(&mut self, shard: Option<Shard>, node: Option<&str>) -> Result<Wished, Failure>;

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

    /// The same as they were saved last, whatever turns came since.
    fn last_saved_counts(&mut self, shard: Shard) -> Result<Option<Vec<u8>>, Failure>;

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

    /// What the server says of itself.
    fn about(&mut self) -> Result<About, Failure> {
        Ok(About::default())
    }

    /// Waits before the next try.
    fn pause(&mut self, pause: Duration);
}
