//! The leases of two nodes, in every order of a few exchanges: one shard, and time that passes.
//!
//! A model of `registry.rs`, of what `store.rs` does of leases, and of the statements about nodes in `sql.rs`
//! in `countwheel-postgres`. Each statement is on its way, done in the steps in which others see it, and
//! answered; nodes renew and take at the same time, give statements up, and hear answers late; one clock may
//! fall behind. In each state:
//!
//! - a node that may start attempts of the shard has the token that is in the tables;
//! - no owner that was replaced changes anything once the taking of the next one has returned.

use crate::search::{Found, State, Step};
use crate::searched_of;

const NODES: usize = 2;
/// How long a lease lasts, in ticks.
const LEASE: u8 = 3;
/// So much earlier a node stops to believe it.
const EARLIER: u8 = 1;

/// A mistake that a search must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    /// A commit does not compare the token.
    NoToken,
    /// A takeover does not look at the lease of the owner.
    TakesLiving,
    /// It looks at it, and does not lock it.
    OwnerUnlocked,
    /// A late renewal is believed without a look at the token.
    LateIsBelieved,
    /// It is believed after a look at what the renewal itself has read.
    ReadsBefore,
    /// A lease is counted from the answer.
    FromAnswer,
    /// A lease is believed until its end.
    NotEarlier,
    /// A shard is taken although the lease was over meanwhile.
    TermPassed,
    /// A taking without an answer leaves what was before it.
    KeepsBefore,
}

/// How much may happen at the most.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Bounds {
    ticks: u8,
    renewals: u8,
    takings: u8,
    commits: u8,
    /// Statements that their clients give up.
    unanswered: u8,
    /// Ticks that the clock of a node misses.
    missed: u8,
}

/// A clock that falls behind.
const CLOCKS: Bounds = Bounds {
    ticks: 4,
    renewals: 2,
    takings: 2,
    commits: 0,
    unanswered: 0,
    missed: 1,
};
/// Statements that are given up, and commits.
const ANSWERS: Bounds = Bounds {
    ticks: 4,
    renewals: 2,
    takings: 2,
    commits: 1,
    unanswered: 1,
    missed: 0,
};

/// The fence and the token of the shard.
type Row = (u8, u8);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Sent {
    Renew,
    View,
    Take { after: u8, token: u8 },
    Commit { fence: u8, token: u8 },
}

/// How far a statement is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum At {
    Sent,
    /// The snapshot of a renewal.
    Read(Row),
    /// A taking has seen that owner's lease, and holds its row.
    Looked(Option<u8>),
    Renewed(Row),
    Viewed(Row),
    Taken(Option<u8>),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Flight {
    node: u8,
    sent: Sent,
    at: At,
    /// Nobody waits for it any more.
    is_given_up: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Node {
    clock: u8,
    /// Until when it believes its lease, by its clock.
    until: u8,
    term: u8,
    held: Option<Row>,
    /// When the renewal was sent that it waits for.
    renews: Option<u8>,
    /// The term and the token of the taking that it waits for.
    takes: Option<(u8, u8)>,
}

impl Node {
    fn believes(&self) -> bool {
        self.clock < self.until
    }

    fn starts(&self) -> Option<Row> {
        self.held.filter(|_| self.believes())
    }

    /// What the tables say ends what it has.
    fn compare(&mut self, (fence, token): Row) {
        let is_gone = |held: &Row| fence > held.0 || fence == held.0 && token != held.1;
        self.held = self.held.filter(|held| !is_gone(held));
    }

    fn believe(&mut self, sent: u8, mistake: Option<Mistake>) {
        let earlier = match mistake {
            Some(Mistake::NotEarlier) => 0,
            _ => EARLIER,
        };
        let from = match mistake {
            Some(Mistake::FromAnswer) => self.clock,
            _ => sent,
        };
        self.until = from + LEASE - earlier;
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Leases {
    now: u8,
    owner: Option<u8>,
    row: Row,
    /// When the lease of each node ends.
    expires: [u8; NODES],
    flights: Vec<Flight>,
    nodes: [Node; NODES],
    left: Bounds,
    wrong: Option<&'static str>,
}

type Out<'a> = &'a mut Vec<(Step, Leases)>;

impl Leases {
    /// Both nodes have just joined.
    fn new(bounds: Bounds) -> Self {
        let node = Node {
            until: LEASE - EARLIER,
            ..Node::default()
        };
        Self {
            now: 0,
            owner: None,
            row: (0, 0),
            expires: [LEASE; NODES],
            flights: Vec::new(),
            nodes: [node; NODES],
            left: bounds,
            wrong: None,
        }
    }

    /// Time passes. The clock of one node may miss it.
    fn ticks(&self, out: Out<'_>) {
        if self.now == self.left.ticks {
            return;
        }
        let mut all = self.clone();
        all.now += 1;
        all.nodes.iter_mut().for_each(|node| node.clock += 1);
        for at in 0..NODES {
            if all.left.missed > 0 {
                let mut missed = all.clone();
                missed.left.missed -= 1;
                missed.nodes[at].clock -= 1;
                missed.push(Step("time passes, and is missed by", name(at)), out);
            }
        }
        let now = all.now;
        all.push(Step("time passes, it is", now), out);
    }

    fn send(&mut self, at: usize, sent: Sent) {
        self.flights.push(Flight {
            node: name(at),
            sent,
            at: At::Sent,
            is_given_up: false,
        });
    }

    /// What a node does by itself.
    fn begins(&self, at: usize, mistake: Option<Mistake>, out: Out<'_>) {
        let node = &self.nodes[at];
        if node.renews.is_none() && self.left.renewals > 0 {
            let mut next = self.clone();
            next.left.renewals -= 1;
            next.nodes[at].renews = Some(node.clock);
            next.send(at, Sent::Renew);
            next.push(Step("renews its lease", name(at)), out);
        }
        if node.takes.is_none() && node.believes() && self.left.takings > 0 {
            let mut next = self.clone();
            // Tokens are never the same.
            let token = self.left.takings;
            next.left.takings -= 1;
            next.nodes[at].takes = Some((node.term, token));
            if mistake != Some(Mistake::KeepsBefore) {
                next.nodes[at].held = None;
            }
            let after = self.row.0;
            next.send(at, Sent::Take { after, token });
            next.push(Step("takes the shard", name(at)), out);
        }
        if let Some((fence, token)) = node.held
            && self.left.commits > 0
        {
            let mut next = self.clone();
            next.left.commits -= 1;
            next.send(at, Sent::Commit { fence, token });
            next.push(Step("sends a commit", name(at)), out);
        }
    }

    /// Whether the row of a node is locked by a taking.
    fn is_locked(&self, node: u8, mistake: Option<Mistake>) -> bool {
        if mistake == Some(Mistake::OwnerUnlocked) {
            return false;
        }
        let mut flights = self.flights.iter();
        flights.any(|flight| flight.at == At::Looked(Some(node)))
    }

    /// A statement goes on by a step.
    fn serves(&self, number: usize, mistake: Option<Mistake>, out: Out<'_>) {
        let flight = self.flights[number];
        let of = usize::from(flight.node);
        let mut next = self.clone();
        let at = match (flight.sent, flight.at) {
            (Sent::Renew, At::Sent) => At::Read(self.row),
            (Sent::Renew, At::Read(row)) if !self.is_locked(flight.node, mistake) => {
                next.expires[of] = self.now + LEASE;
                At::Renewed(row)
            }
            (Sent::View, At::Sent) => At::Viewed(self.row),
            (Sent::Take { after, .. }, At::Sent) => match self.owner {
                _ if self.row.0 != after => At::Taken(None),
                Some(owner) if owner != flight.node => {
                    let is_over = self.expires[usize::from(owner)] <= self.now;
                    if self.is_locked(owner, mistake) {
                        return;
                    }
                    match is_over || mistake == Some(Mistake::TakesLiving) {
                        true => At::Looked(Some(owner)),
                        false => At::Taken(None),
                    }
                }
                owner => At::Looked(owner),
            },
            (Sent::Take { after, token }, At::Looked(owner)) => {
                match self.row.0 == after && self.owner == owner {
                    true => {
                        next.row = (after + 1, token);
                        next.owner = Some(flight.node);
                        At::Taken(Some(after + 1))
                    }
                    false => At::Taken(None),
                }
            }
            (Sent::Commit { fence, token }, At::Sent) => {
                next.flights.remove(number);
                let is_owner = self.row.1 == token || mistake == Some(Mistake::NoToken);
                let held = self.nodes.iter().filter_map(|node| node.held);
                if is_owner && held.into_iter().any(|held| held.0 > fence) {
                    next.wrong = Some("an owner that was replaced changes something");
                }
                return next.push(Step("a commit comes, of", flight.node), out);
            }
            _ => return,
        };
        next.flights[number].at = at;
        if flight.is_given_up && matches!(at, At::Renewed(_) | At::Viewed(_) | At::Taken(_)) {
            next.flights.remove(number);
        }
        let what = match at {
            At::Sent | At::Read(_) => "the server reads for the renewal of",
            At::Looked(_) => "the owner's lease is looked at by",
            At::Renewed(_) => "the lease is renewed, of",
            At::Viewed(_) => "the tables are read by",
            At::Taken(Some(_)) => "the shard is taken by",
            At::Taken(None) => "the shard is not taken by",
        };
        next.push(Step(what, flight.node), out);
    }

    /// A node hears an answer.
    fn hears(&self, number: usize, mistake: Option<Mistake>, out: Out<'_>) {
        let flight = self.flights[number];
        let of = usize::from(flight.node);
        let mut next = self.clone();
        next.flights.remove(number);
        let node = &mut next.nodes[of];
        let mut looks = false;
        match flight.at {
            At::Renewed(row) => {
                let Some(sent) = node.renews.take() else {
                    return;
                };
                match mistake {
                    _ if node.believes() => {
                        node.compare(row);
                        node.believe(sent, mistake);
                    }
                    Some(Mistake::LateIsBelieved) => node.believe(sent, mistake),
                    Some(Mistake::ReadsBefore) => {
                        node.compare(row);
                        node.term += 1;
                        node.believe(sent, mistake);
                    }
                    _ => {
                        node.until = 0;
                        node.term += 1;
                        node.renews = Some(sent);
                        looks = true;
                    }
                }
            }
            At::Viewed(row) => {
                let Some(sent) = node.renews.take() else {
                    return;
                };
                node.compare(row);
                node.believe(sent, mistake);
            }
            At::Taken(taken) => {
                let Some((term, token)) = node.takes.take() else {
                    return;
                };
                let is_of_term = term == node.term || mistake == Some(Mistake::TermPassed);
                if let Some(fence) = taken {
                    node.held = Some((fence, token)).filter(|_| is_of_term);
                }
            }
            At::Sent | At::Read(_) | At::Looked(_) => return,
        }
        if looks {
            next.send(of, Sent::View);
        }
        next.push(Step("the answer is heard by", flight.node), out);
    }

    /// A node waits no more for a statement, which may be done later.
    fn gives_up(&self, number: usize, out: Out<'_>) {
        let flight = self.flights[number];
        let is_commit = matches!(flight.sent, Sent::Commit { .. });
        if flight.is_given_up || is_commit || self.left.unanswered == 0 {
            return;
        }
        let mut next = self.clone();
        next.left.unanswered -= 1;
        let node = &mut next.nodes[usize::from(flight.node)];
        match flight.sent {
            Sent::Take { .. } => node.takes = None,
            _ => node.renews = None,
        }
        match flight.at {
            At::Renewed(_) | At::Viewed(_) | At::Taken(_) => drop(next.flights.remove(number)),
            _ => next.flights[number].is_given_up = true,
        }
        next.push(Step("a statement is given up by", flight.node), out);
    }

    fn push(mut self, step: Step, out: Out<'_>) {
        // In which order they were sent says nothing.
        self.flights.sort_unstable();
        if self
            .nodes
            .iter()
            .filter_map(Node::starts)
            .any(|held| held != self.row)
        {
            self.wrong = Some("a node may start what it does not own");
        }
        out.push((step, self));
    }
}

fn name(at: usize) -> u8 {
    u8::try_from(at).unwrap_or(u8::MAX)
}

impl State for Leases {
    type Rules = Option<Mistake>;

    fn next(&self, mistake: &Option<Mistake>, out: Out<'_>) {
        self.ticks(out);
        for at in 0..NODES {
            self.begins(at, *mistake, out);
        }
        for number in 0..self.flights.len() {
            self.serves(number, *mistake, out);
            if !self.flights[number].is_given_up {
                self.hears(number, *mistake, out);
                self.gives_up(number, out);
            }
        }
    }

    fn wrong(&self) -> Option<&'static str> {
        self.wrong
    }
}

fn searched(bounds: Bounds, mistake: Option<Mistake>) -> Found {
    let of = format!("{bounds:?}, {mistake:?}");
    searched_of(Leases::new(bounds), &mistake, &of)
}

#[test]
fn who_may_start_owns_the_shard() {
    for bounds in [CLOCKS, ANSWERS] {
        let found = searched(bounds, None);
        assert!(found.wrong.is_none(), "see what was printed");
        assert!(found.states > 100_000, "{}", found.states);
    }
}

#[test]
fn every_mistake_with_leases_is_found() {
    for (mistake, bounds) in [
        (Mistake::NoToken, ANSWERS),
        (Mistake::TakesLiving, ANSWERS),
        (Mistake::OwnerUnlocked, ANSWERS),
        (Mistake::LateIsBelieved, ANSWERS),
        (Mistake::ReadsBefore, ANSWERS),
        (Mistake::FromAnswer, ANSWERS),
        (Mistake::NotEarlier, CLOCKS),
        (Mistake::TermPassed, CLOCKS),
        (Mistake::KeepsBefore, ANSWERS),
    ] {
        let found = searched(bounds, Some(mistake));
        assert!(found.wrong.is_some(), "{mistake:?} is not found");
    }
}
