//! A node: how `store.rs` takes a shard and makes a commit certain, one exchange a step.

use crate::Mistake;
use crate::server::{Answer, Sent, Server, Turn};

/// As many revisions as a promotion leaves out: more than are given in any run.
const LEFT_OUT: u8 = 30;

/// What an owner knows of its shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Held {
    pub(crate) token: u8,
    pub(crate) fence: u8,
    pub(crate) seq: u8,
    pub(crate) revision: u8,
    timeline: u8,
    /// The last turn whose commit was answered with "done".
    pub(crate) told: Option<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Phase {
    Out,
    /// `take` asks who owns the shard.
    AsksOwner {
        token: u8,
    },
    SendsTake {
        token: u8,
        after: u8,
    },
    Takes {
        token: u8,
        after: u8,
    },
    /// A process that was started again goes on under a lease: `owner` asks whose the shard is.
    Adopts {
        token: u8,
        fence: u8,
    },
    /// `found` asks for the last turn.
    AsksLast {
        token: u8,
        fence: u8,
        is_adopted: bool,
    },
    /// `settle` sends an empty turn: what the process before has sent may still be on its way.
    Settles(Held),
    WaitsSettled(Held),
    Owns(Held),
    Commits(Commit),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Commit {
    pub(crate) held: Held,
    pub(crate) number: u8,
    is_uncertain: bool,
    at: At,
    result: Option<Ended>,
}

/// Which exchange comes next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// `write` sends the turn.
    Sends,
    Waits,
    /// `resolve` asks what became of it.
    Asks {
        in_place: bool,
    },
    /// `take_place` sends an empty turn.
    SendsPlace,
    WaitsPlace,
    /// `confirm` sends an empty turn.
    SendsProof {
        in_place: bool,
    },
    WaitsProof {
        in_place: bool,
    },
    AsksProof {
        in_place: bool,
    },
}

/// How a commit ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Ended {
    Done,
    /// For certain, and the ownership goes on.
    NotDone,
    Fenced,
    /// The owner is lost in it.
    Lost,
    /// The same, and the loss of acknowledged commits is written down.
    LossNoticed,
}

/// What a node may do next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    Goes(Phase),
    /// The commit ends.
    Ends(Held, u8, Ended),
}

impl Commit {
    pub(crate) fn new(held: Held, number: u8) -> Self {
        Self {
            held,
            number,
            is_uncertain: false,
            at: At::Sends,
            result: None,
        }
    }

    fn at(self, at: At) -> Next {
        Next::Goes(Phase::Commits(Self { at, ..self }))
    }

    fn ends(self, ended: Ended) -> Next {
        Next::Ends(self.held, self.number, ended)
    }

    fn turn(&self) -> Turn {
        Turn {
            seq: self.held.seq + 1,
            token: self.held.token,
            commit: Some(self.number),
            revision: self.held.revision + 1,
            timeline: self.held.timeline,
        }
    }

    fn empty(&self) -> Turn {
        Turn {
            commit: None,
            revision: self.held.revision,
            ..self.turn()
        }
    }

    /// The turn is there.
    fn done(&mut self) {
        self.held.seq += 1;
        self.held.revision += 1;
        self.result = Some(Ended::Done);
    }

    /// Back to the loop of `write`.
    fn again(self) -> Next {
        match self.result {
            Some(ended) => self.ends(ended),
            None => self.at(At::Sends),
        }
    }

    /// After a turn that is there, or an empty one in its place: on, once the standby has it.
    fn proved(self, in_place: bool, out: &mut Vec<Next>) {
        if self.result.is_none() && in_place {
            self.refused(out);
        } else {
            out.push(self.again());
        }
    }

    /// Nothing is under way, and the server has refused the commit.
    fn refused(mut self, out: &mut Vec<Next>) {
        self.is_uncertain = false;
        out.push(self.ends(Ended::NotDone));
        out.push(self.again()); // the refusal passes
    }

    fn send(self, server: &mut Server, node: u8) -> Next {
        let (sent, at) = match self.at {
            At::SendsPlace => (self.empty(), At::WaitsPlace),
            At::SendsProof { in_place } => (self.empty(), At::WaitsProof { in_place }),
            _ => (self.turn(), At::Waits),
        };
        server.send(node, Sent::Turn(sent));
        self.at(at)
    }

    fn hear(mut self, answer: Answer, mistake: Option<Mistake>, out: &mut Vec<Next>) {
        match (self.at, answer) {
            (At::Waits, Answer::Made { is_warned }) => {
                self.done();
                let passed = mistake == Some(Mistake::WarningPassed);
                match is_warned && !passed {
                    true => out.push(self.at(At::SendsProof { in_place: false })),
                    false => out.push(self.again()),
                }
            }
            (At::Waits, Answer::Broken) if mistake == Some(Mistake::LostIsDone) => {
                self.done();
                out.push(self.again());
            }
            (At::Waits, Answer::Broken) if mistake == Some(Mistake::LostIsNotDone) => {
                out.push(self.ends(Ended::NotDone));
            }
            (At::Waits, Answer::Broken) => {
                self.is_uncertain = true;
                out.push(self.again());
                out.push(self.ends(Ended::Lost));
            }
            (At::Waits, Answer::Refused)
                if self.is_uncertain && mistake != Some(Mistake::RefusalIsAll) =>
            {
                out.push(self.at(At::SendsPlace));
            }
            (At::Waits, Answer::Refused) => self.refused(out),
            (At::Waits, _) => out.push(self.at(At::Asks { in_place: false })),
            (At::WaitsPlace, Answer::Made { is_warned }) => {
                self.held.seq += 1;
                match is_warned {
                    true => out.push(self.at(At::SendsProof { in_place: true })),
                    false => self.proved(true, out),
                }
            }
            (At::WaitsPlace, _) => out.push(self.at(At::Asks { in_place: true })),
            (At::WaitsProof { in_place }, Answer::Made { is_warned }) => {
                self.held.seq += 1;
                match is_warned {
                    true => out.push(self.ends(Ended::Lost)),
                    false => self.proved(in_place, out),
                }
            }
            (At::WaitsProof { in_place }, Answer::NotMade) => {
                out.push(self.at(At::AsksProof { in_place }));
            }
            (At::WaitsProof { in_place }, _) => self.unproved(in_place, out),
            _ => {}
        }
    }

    /// Whether the standby has the turn is not known yet.
    fn unproved(self, in_place: bool, out: &mut Vec<Next>) {
        out.push(self.at(At::SendsProof { in_place }));
        out.push(self.ends(Ended::Lost));
    }

    /// Asks what became of the empty turn.
    fn ask_proof(mut self, in_place: bool, server: &Server, out: &mut Vec<Next>) {
        let became = server.became(self.held.token, self.held.seq + 1);
        if became.turn.is_some() {
            // That was the sending before, and its warning was lost as well.
            self.held.seq += 1;
            self.unproved(in_place, out);
        } else if !(became.is_ours && became.has_before) {
            out.push(self.ends(Ended::Lost));
        }
    }

    /// Asks what became of the turn.
    fn ask(
        mut self,
        in_place: bool,
        server: &Server,
        mistake: Option<Mistake>,
        out: &mut Vec<Next>,
    ) {
        let became = server.became(self.held.token, self.held.seq + 1);
        let (is_ours, has_before) = (became.is_ours, became.has_before);
        if let Some(turn) = became.turn {
            if mistake == Some(Mistake::SendsAgain) {
                self.held.seq += 1;
            } else if turn.commit.is_some() || mistake == Some(Mistake::EmptyIsDone) {
                self.done();
            } else {
                self.held.seq += 1;
            }
            match mistake == Some(Mistake::FoundIsKept) {
                true => self.proved(in_place, out),
                false => out.push(self.at(At::SendsProof { in_place })),
            }
        } else if !is_ours {
            out.push(self.ends(Ended::Fenced));
        } else if !has_before && mistake == Some(Mistake::LossPassed) {
            self.held.seq = server.last_turn().seq;
            out.push(self.again());
        } else if !has_before {
            out.push(self.ends(Ended::LossNoticed));
        } else {
            out.push(self.again());
            out.push(self.ends(Ended::Lost));
        }
    }
}

impl Phase {
    /// The node sends its next statement, or asks its next question.
    pub(crate) fn go(
        self,
        server: &mut Server,
        node: u8,
        mistake: Option<Mistake>,
        out: &mut Vec<Next>,
    ) {
        match self {
            Self::AsksOwner { token } => {
                let (after, owner) = server.owner();
                if owner == token {
                    // The answer was lost.
                    out.push(Next::Goes(Self::AsksLast {
                        token,
                        fence: after,
                        is_adopted: false,
                    }));
                } else {
                    out.push(Next::Goes(Self::SendsTake { token, after }));
                }
            }
            Self::SendsTake { token, after } => {
                server.send(node, Sent::Take { after, token });
                out.push(Next::Goes(Self::Takes { token, after }));
            }
            Self::Adopts { token, fence } => out.push(Next::Goes(match server.owner() {
                now if now == (fence, token) => Self::AsksLast {
                    token,
                    fence,
                    is_adopted: true,
                },
                _ => Self::Out,
            })),
            Self::AsksLast {
                token,
                fence,
                is_adopted,
            } => {
                let last = server.last_turn();
                let promotions = match mistake == Some(Mistake::TimelinePassed) {
                    true => 0,
                    false => server.timeline.abs_diff(last.timeline),
                };
                let held = Held {
                    token,
                    fence,
                    seq: last.seq,
                    revision: last.revision + promotions * LEFT_OUT,
                    timeline: server.timeline,
                    told: None,
                };
                let is_unsettled = is_adopted && mistake != Some(Mistake::AdoptsUnsettled);
                out.push(Next::Goes(match is_unsettled {
                    true => Self::Settles(held),
                    false => Self::Owns(held),
                }));
            }
            Self::Settles(held) => {
                let empty = Commit::new(held, 0).empty();
                server.send(node, Sent::Turn(empty));
                out.push(Next::Goes(Self::WaitsSettled(held)));
            }
            Self::Commits(commit) => match commit.at {
                At::Asks { in_place } => {
                    // No answer comes to the question.
                    out.extend([commit.again(), commit.ends(Ended::Lost)]);
                    commit.ask(in_place, server, mistake, out);
                }
                At::AsksProof { in_place } => {
                    commit.unproved(in_place, out);
                    commit.ask_proof(in_place, server, out);
                }
                _ => out.push(commit.send(server, node)),
            },
            Self::Out | Self::Takes { .. } | Self::WaitsSettled(_) | Self::Owns(_) => {}
        }
    }

    /// The node hears what became of the statement it waits for.
    pub(crate) fn hear(self, answer: Answer, mistake: Option<Mistake>, out: &mut Vec<Next>) {
        match (self, answer) {
            (Self::Takes { token, .. }, Answer::Taken(Some(fence))) => {
                out.push(Next::Goes(Self::AsksLast {
                    token,
                    fence,
                    is_adopted: false,
                }));
            }
            (Self::WaitsSettled(held), Answer::Made { is_warned: false }) => {
                let seq = held.seq + 1;
                out.push(Next::Goes(Self::Owns(Held { seq, ..held })));
            }
            (Self::WaitsSettled(Held { token, fence, .. }), _) => {
                out.push(Next::Goes(Self::Adopts { token, fence }));
            }
            (Self::Takes { token, .. }, Answer::Taken(None)) => {
                out.push(Next::Goes(Self::AsksOwner { token }));
            }
            (Self::Takes { token, after }, _) => {
                // Sent once more, then given up.
                out.push(Next::Goes(Self::SendsTake { token, after }));
                out.push(Next::Goes(Self::Out));
            }
            (Self::Commits(commit), answer) => commit.hear(answer, mistake, out),
            _ => {}
        }
    }

    /// Whether it waits for an answer.
    pub(crate) fn waits(&self) -> bool {
        match self {
            Self::Takes { .. } | Self::WaitsSettled(_) => true,
            Self::Commits(commit) => {
                matches!(
                    commit.at,
                    At::Waits | At::WaitsPlace | At::WaitsProof { .. }
                )
            }
            _ => false,
        }
    }

    /// What it knows of the shard if it owns it.
    pub(crate) fn held(&self) -> Option<&Held> {
        match self {
            Self::Owns(held) => Some(held),
            Self::Commits(commit) => Some(&commit.held),
            _ => None,
        }
    }
}
