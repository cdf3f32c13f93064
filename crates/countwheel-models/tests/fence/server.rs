//! The database: what it has done, in order, and the statements that are on their way to it.
//!
//! All rows follow from that order, so a failover that loses something leaves a shorter one.

use crate::Mistake;

/// The token of a shard that nobody has taken.
pub(crate) const NOBODY: u8 = 0;

/// A turn's row, or the statement that inserts it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Turn {
    pub(crate) seq: u8,
    pub(crate) token: u8,
    /// What it changes; an empty turn changes nothing.
    pub(crate) commit: Option<u8>,
    pub(crate) revision: u8,
    /// The server's history when the owner took the shard.
    pub(crate) timeline: u8,
}

/// The turn that the making of the cluster inserts.
const FIRST: Turn = Turn {
    seq: 0,
    token: NOBODY,
    commit: None,
    revision: 0,
    timeline: 1,
};

/// What the database does at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Done {
    Take {
        fence: u8,
        token: u8,
    },
    Turn(Turn),
    /// The changes of a turn without it: only a mistake does so.
    Changes {
        token: u8,
        commit: u8,
    },
}

impl Done {
    /// The commit whose changes it has, and under which token.
    pub(crate) fn changes(&self) -> Option<(u8, u8)> {
        match *self {
            Self::Take { .. } => None,
            Self::Turn(turn) => turn.commit.map(|commit| (turn.token, commit)),
            Self::Changes { token, commit } => Some((token, commit)),
        }
    }
}

/// A statement that writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Sent {
    Take { after: u8, token: u8 },
    Turn(Turn),
}

/// One that is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Flight {
    pub(crate) sent: Sent,
    /// Who waits for its answer.
    pub(crate) node: Option<u8>,
    /// Its right was looked at, the row of the shard is locked, and nothing is committed yet.
    pub(crate) runs: bool,
}

/// What a client hears.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Taken(Option<u8>),
    Made {
        is_warned: bool,
    },
    NotMade,
    Refused,
    /// Nothing: the statement may have been done, may still be, or never will.
    Broken,
}

/// What became of a turn, as one question finds it.
pub(crate) struct Became {
    pub(crate) is_ours: bool,
    /// If it has the token of who asks.
    pub(crate) turn: Option<Turn>,
    pub(crate) has_before: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Server {
    pub(crate) done: Vec<Done>,
    pub(crate) timeline: u8,
    /// So many of the last commits the standby does not have.
    pub(crate) unreplicated: u8,
    pub(crate) flights: Vec<Flight>,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self {
            done: Vec::new(),
            timeline: 1,
            unreplicated: 0,
            flights: Vec::new(),
        }
    }

    /// Fence and token of the shard's row.
    pub(crate) fn owner(&self) -> (u8, u8) {
        let takings = self.done.iter().rev().filter_map(|done| match *done {
            Done::Take { fence, token } => Some((fence, token)),
            _ => None,
        });
        takings.into_iter().next().unwrap_or((0, NOBODY))
    }

    pub(crate) fn turn(&self, seq: u8) -> Option<Turn> {
        self.turns().rev().find(|turn| turn.seq == seq)
    }

    pub(crate) fn became(&self, token: u8, seq: u8) -> Became {
        Became {
            is_ours: self.owner().1 == token,
            turn: self.turn(seq).filter(|turn| turn.token == token),
            has_before: self.turn(seq - 1).is_some(),
        }
    }

    pub(crate) fn last_turn(&self) -> Turn {
        self.turns().max_by_key(|turn| turn.seq).unwrap_or(FIRST)
    }

    fn turns(&self) -> impl DoubleEndedIterator<Item = Turn> {
        let turns = self.done.iter().filter_map(|done| match *done {
            Done::Turn(turn) => Some(turn),
            _ => None,
        });
        [FIRST].into_iter().chain(turns)
    }

    pub(crate) fn send(&mut self, node: u8, sent: Sent) {
        self.flights.push(Flight {
            sent,
            node: Some(node),
            runs: false,
        });
    }

    pub(crate) fn waits(&self, node: u8) -> Option<usize> {
        let mut flights = self.flights.iter();
        flights.position(|flight| flight.node == Some(node))
    }

    /// The client of its statement is gone, if there is one.
    pub(crate) fn forget(&mut self, node: u8) {
        if let Some(at) = self.waits(node) {
            self.flights[at].node = None;
        }
    }

    /// Whether the statement has to wait for another one.
    pub(crate) fn is_blocked(&self, at: usize, mistake: Option<Mistake>) -> bool {
        let runs = |seq: Option<u8>| {
            let mut flights = self.flights.iter();
            flights.any(|other| match other.sent {
                Sent::Turn(turn) => other.runs && seq.is_none_or(|seq| seq == turn.seq),
                Sent::Take { .. } => false,
            })
        };
        match self.flights[at].sent {
            // For the lock of the row.
            Sent::Take { .. } => mistake != Some(Mistake::NoLock) && runs(None),
            // For the row of the same turn in the index.
            Sent::Turn(turn) => !self.flights[at].runs && runs(Some(turn.seq)),
        }
    }

    /// Whether the statement of the turn locks the shard's row and goes on.
    pub(crate) fn permits(&self, turn: &Turn, mistake: Option<Mistake>) -> bool {
        let is_owned = self.owner().1 == turn.token || mistake == Some(Mistake::NoToken);
        let has_before =
            self.turn(turn.seq - 1).is_some() || mistake == Some(Mistake::NoTurnBefore);
        is_owned && has_before && self.is_free(turn, mistake)
    }

    /// Whether there is no other turn of its number.
    pub(crate) fn is_free(&self, turn: &Turn, mistake: Option<Mistake>) -> bool {
        self.turn(turn.seq).is_none() || mistake == Some(Mistake::ReplacesTurn)
    }

    /// Commits.
    pub(crate) fn add(&mut self, done: Done, is_warned: bool) {
        self.done.push(done);
        // The standby has what is before as well.
        self.unreplicated = match is_warned {
            true => self.unreplicated + 1,
            false => 0,
        };
    }

    /// A standby goes on with the first `kept`. All connections end.
    pub(crate) fn fail_over(&mut self, kept: usize) {
        self.done.truncate(kept);
        self.timeline += 1;
        self.unreplicated = 0;
        self.flights.clear();
    }
}
