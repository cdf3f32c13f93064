//! Two nodes and a database, what may happen next, and what must never.

use crate::node::{Commit, Ended, Held, Next, Phase};
use crate::search::{State, Step};
use crate::server::{Answer, Done, Flight, Sent, Server};
use crate::{Bounds, Mistake};

const NODES: u8 = 2;

/// A commit that was answered with "done".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Told {
    commit: u8,
    token: u8,
    seq: u8,
    revision: u8,
    /// A failover to a standby that lags took it away.
    is_lost: bool,
}

/// The last told turn of an ownership that ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Unseen {
    token: u8,
    seq: u8,
    /// Something that the ownership was told of is lost.
    is_lost: bool,
}

/// All that the future depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    server: Server,
    nodes: [Phase; NODES as usize],
    /// How many commits each has begun.
    begun: [u8; NODES as usize],
    tokens: u8,
    left: Bounds,
    told: Vec<Told>,
    /// The commits that were answered with "not done", a bit each.
    undone: u32,
    /// Nodes that own the shard, and do not know that what they were told of is lost.
    unaware: [bool; NODES as usize],
    /// Ownerships that ended, and of which the node has not looked whether the last told turn is still
    /// there.
    unseen: [Vec<Unseen>; NODES as usize],
    /// A failover made the owner before the last one the owner again.
    is_revived: bool,
    /// What should never be.
    wrong: Option<&'static str>,
}

/// The rules of a search.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rules {
    pub(crate) mistake: Option<Mistake>,
    /// Whether it counts that an owner is told a revision of another one, whose taking a failover took
    /// away.
    pub(crate) knows_revived: bool,
}

type Out<'a> = &'a mut Vec<(Step, World)>;

impl State for World {
    type Rules = Rules;

    fn next(&self, rules: &Rules, out: Out<'_>) {
        for node in 0..NODES {
            self.calls(node, out);
            self.goes(node, rules, out);
            self.hears_nothing(node, rules, out);
        }
        for at in 0..self.server.flights.len() {
            if !self.server.is_blocked(at, rules.mistake) {
                self.serves(at, rules, out);
            }
        }
        self.fails_over(out);
    }

    fn wrong(&self) -> Option<&'static str> {
        self.wrong
    }
}

impl World {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            server: Server::new(),
            nodes: [Phase::Out; NODES as usize],
            begun: [0; NODES as usize],
            tokens: 0,
            left: bounds,
            told: Vec::new(),
            undone: 0,
            unaware: [false; NODES as usize],
            unseen: [Vec::new(), Vec::new()],
            is_revived: false,
            wrong: None,
        }
    }

    /// Somebody asks the node for something.
    fn calls(&self, node: u8, out: Out<'_>) {
        let at = usize::from(node);
        match self.nodes[at] {
            // The nodes are alike: node 0 begins.
            Phase::Out if self.left.takings > 0 && (node == 0 || self.tokens > 0) => {
                let mut world = self.clone();
                world.left.takings -= 1;
                world.tokens += 1;
                let token = world.tokens;
                world.nodes[at] = Phase::AsksOwner { token };
                out.push((Step("takes the shard", node), world));
            }
            Phase::Owns(held) if self.begun[at] < self.left.commits => {
                let mut world = self.clone();
                let number = node * self.left.commits + self.begun[at];
                world.begun[at] += 1;
                world.nodes[at] = Phase::Commits(Commit::new(held, number));
                out.push((Step("begins a commit", node), world));
            }
            _ => {}
        }
        if let Some(held) = self.nodes[at].held()
            && self.left.restarts > 0
        {
            let mut world = self.clone();
            world.left.restarts -= 1;
            let (token, fence) = (held.token, held.fence);
            world.nodes[at] = Phase::Adopts { token, fence };
            world.server.forget(node);
            // With the process goes what it knew.
            (world.unaware[at], world.unseen[at]) = (false, Vec::new());
            out.push((Step("is killed, and started under its lease", node), world));
        }
        if !self.unseen[at].is_empty() {
            let mut world = self.clone();
            for unseen in std::mem::take(&mut world.unseen[at]) {
                let turn = self.server.turn(unseen.seq);
                let is_there = turn.is_some_and(|turn| turn.token == unseen.token);
                if is_there && unseen.is_lost {
                    world.wrong = Some("a loss is passed over");
                }
            }
            out.push((Step("looks for its last turns", node), world));
        }
    }

    fn goes(&self, node: u8, rules: &Rules, out: Out<'_>) {
        let phase = self.nodes[usize::from(node)];
        if phase.waits() {
            return;
        }
        let mut world = self.clone();
        let mut next = Vec::new();
        phase.go(&mut world.server, node, rules.mistake, &mut next);
        let step = match phase {
            Phase::Commits(_) => Step("goes on with its commit", node),
            _ => Step("goes on taking the shard", node),
        };
        world.come(node, next, rules, step, out);
    }

    /// The connection of a node that waits ends, and its statement stays on its way.
    fn hears_nothing(&self, node: u8, rules: &Rules, out: Out<'_>) {
        let phase = self.nodes[usize::from(node)];
        if !phase.waits() {
            return;
        }
        let mut world = self.clone();
        if let Some(at) = self.server.waits(node) {
            if self.left.unanswered == 0 {
                return;
            }
            world.left.unanswered -= 1;
            world.server.flights[at].node = None;
        }
        let mut next = Vec::new();
        phase.hear(Answer::Broken, rules.mistake, &mut next);
        let step = Step("gives its statement up", node);
        world.come(node, next, rules, step, out);
    }

    /// A statement goes on.
    fn serves(&self, at: usize, rules: &Rules, out: Out<'_>) {
        let flight = self.server.flights[at];
        let turn = match flight.sent {
            Sent::Take { after, token } => {
                let (fence, _) = self.server.owner();
                let is_taken = fence == after || rules.mistake == Some(Mistake::TakesLate);
                let taken = is_taken.then_some(Done::Take {
                    fence: fence + 1,
                    token,
                });
                let answer = Answer::Taken(is_taken.then_some(fence + 1));
                return self.finishes(at, flight, taken, answer, rules, out);
            }
            Sent::Turn(turn) => turn,
        };
        let changes = turn.commit.map(|commit| Done::Changes {
            token: turn.token,
            commit,
        });
        let changes = changes.filter(|_| rules.mistake == Some(Mistake::NotJoined));
        if !flight.runs && !self.server.permits(&turn, rules.mistake) {
            return self.finishes(at, flight, changes, Answer::NotMade, rules, out);
        }
        if !flight.runs {
            let mut world = self.clone();
            world.server.flights[at].runs = true;
            out.push((Step("a turn locks the row, of", turn.token), world));
        } else if !self.server.is_free(&turn, rules.mistake) {
            self.finishes(at, flight, changes, Answer::NotMade, rules, out);
        } else {
            for is_warned in [false, true] {
                let made = Answer::Made { is_warned };
                self.finishes(at, flight, Some(Done::Turn(turn)), made, rules, out);
            }
        }
        if flight.node.is_some() && !flight.runs && self.left.refusals > 0 {
            let mut world = self.clone();
            world.left.refusals -= 1;
            world.finishes(at, flight, None, Answer::Refused, rules, out);
        }
    }

    /// A statement is done, or nothing of it is. Who waits for it hears so, or does not.
    fn finishes(
        &self,
        at: usize,
        flight: Flight,
        done: Option<Done>,
        answer: Answer,
        rules: &Rules,
        out: Out<'_>,
    ) {
        let mut world = self.clone();
        world.server.flights.remove(at);
        let is_warned = matches!(answer, Answer::Made { is_warned: true });
        if is_warned {
            let Some(left) = world.left.warnings.checked_sub(1) else {
                return;
            };
            world.left.warnings = left;
        }
        if let Some(done) = done {
            world.commit(done, is_warned);
        }
        let of = match flight.sent {
            Sent::Take { token, .. } => token,
            Sent::Turn(turn) => turn.token,
        };
        let what = match answer {
            Answer::Taken(Some(_)) => "the shard is taken by",
            Answer::Taken(None) => "the shard is not taken by",
            Answer::Made { is_warned: false } => "a turn is made, of",
            Answer::Made { is_warned: true } => "a turn is made with a warning, of",
            Answer::NotMade => "a turn is not made, of",
            Answer::Refused => "a turn is refused, of",
            Answer::Broken => "nothing is heard, of",
        };
        let Some(node) = flight.node else {
            return out.push((Step(what, of), world));
        };
        let phase = world.nodes[usize::from(node)];
        if world.left.unanswered > 0 && answer != Answer::Refused {
            let mut unheard = world.clone();
            unheard.left.unanswered -= 1;
            let mut next = Vec::new();
            phase.hear(Answer::Broken, rules.mistake, &mut next);
            unheard.come(node, next, rules, Step("(and the answer is lost)", of), out);
        }
        let mut next = Vec::new();
        phase.hear(answer, rules.mistake, &mut next);
        world.come(node, next, rules, Step(what, of), out);
    }

    /// A standby takes the place of the server: one that has all that was acknowledged, or one that lags.
    fn fails_over(&self, out: Out<'_>) {
        let all = self.server.done.len();
        let sure = all - usize::from(self.server.unreplicated);
        for kept in 0..=all {
            let mut world = self.clone();
            let left = match kept >= sure {
                true => &mut world.left.failovers,
                false => &mut world.left.losses,
            };
            if *left == 0 {
                continue;
            }
            *left -= 1;
            if kept < sure {
                world.lose(&self.server.done[kept..]);
            }
            world.server.fail_over(kept);
            let step = match kept >= sure {
                true => "a standby that has all takes over, commits it has:",
                false => "a standby that lags takes over, commits it has:",
            };
            world.look();
            out.push((Step(step, u8::try_from(kept).unwrap_or(u8::MAX)), world));
        }
    }

    /// Notes what a failover takes away.
    fn lose(&mut self, lost: &[Done]) {
        self.is_revived |= lost.iter().any(|done| matches!(done, Done::Take { .. }));
        for told in &mut self.told {
            let mut changes = lost.iter().filter_map(Done::changes);
            if told.is_lost || !changes.any(|(_, commit)| commit == told.commit) {
                continue;
            }
            told.is_lost = true;
            for (at, phase) in self.nodes.iter().enumerate() {
                let owns = phase.held().is_some_and(|held| held.token == told.token);
                self.unaware[at] |= owns;
                for unseen in &mut self.unseen[at] {
                    unseen.is_lost |= unseen.token == told.token;
                }
            }
        }
    }

    /// The database changes.
    fn commit(&mut self, done: Done, is_warned: bool) {
        if let Some((token, _)) = done.changes() {
            let taken = |of| {
                let mut all = self.server.done.iter();
                all.rposition(|done| matches!(done, Done::Take { token, .. } if *token == of))
            };
            let mut held = self.nodes.iter().filter_map(Phase::held);
            if held.any(|held| held.token != token && taken(held.token) > taken(token)) {
                self.wrong = Some("an owner that was replaced changes something");
            }
        }
        self.server.add(done, is_warned);
        self.look();
    }

    /// What the node makes of what it heard.
    fn come(&self, node: u8, next: Vec<Next>, rules: &Rules, step: Step, out: Out<'_>) {
        for next in next {
            let mut world = self.clone();
            match next {
                Next::Goes(phase) => world.nodes[usize::from(node)] = phase,
                Next::Ends(held, number, ended) => {
                    world.end(usize::from(node), held, number, ended, rules);
                }
            }
            out.push((step, world));
        }
    }

    /// A commit has its answer.
    fn end(&mut self, at: usize, mut held: Held, commit: u8, ended: Ended, rules: &Rules) {
        match ended {
            Ended::Done => {
                held.told = Some(held.seq);
                if self.unaware[at] {
                    self.wrong = Some("a commit passes over a loss");
                }
                let seq = self.server.done.iter().find_map(|done| match done {
                    Done::Turn(turn) if turn.commit == Some(commit) => Some(turn.seq),
                    _ => None,
                });
                let told = Told {
                    commit,
                    token: held.token,
                    seq: seq.unwrap_or(held.seq),
                    revision: held.revision,
                    is_lost: false,
                };
                for other in &self.told {
                    let is_twice = other.revision == told.revision;
                    if is_twice && (rules.knows_revived || !self.is_revived) {
                        self.wrong = Some("a revision is told twice");
                    }
                    if !other.is_lost && other.seq == told.seq {
                        self.wrong = Some("a turn of two owners is told");
                    }
                }
                self.told.push(told);
                self.told.sort_unstable_by_key(|told| told.commit);
            }
            Ended::NotDone | Ended::Fenced => self.undone |= 1 << commit,
            Ended::Lost => {}
            Ended::LossNoticed => self.unaware[at] = false,
        }
        self.nodes[at] = match ended {
            Ended::Done | Ended::NotDone => Phase::Owns(held),
            Ended::Fenced | Ended::Lost | Ended::LossNoticed => Phase::Out,
        };
        if matches!(ended, Ended::Fenced | Ended::Lost) {
            let is_lost = std::mem::take(&mut self.unaware[at]);
            match held.told {
                Some(seq) if rules.mistake != Some(Mistake::EndsUnseen) => {
                    self.unseen[at].push(Unseen {
                        token: held.token,
                        seq,
                        is_lost,
                    });
                }
                _ if is_lost => self.wrong = Some("a loss is passed over"),
                _ => {}
            }
        }
        self.look();
    }

    /// What was answered agrees with what the database has.
    fn look(&mut self) {
        let mut counts = [0_u8; 32];
        for (_, commit) in self.server.done.iter().filter_map(Done::changes) {
            counts[usize::from(commit)] += 1;
        }
        if counts.iter().any(|count| *count > 1) {
            self.wrong = Some("a commit is done twice");
        }
        let is_done = |commit: usize| counts[commit] > 0;
        if (0..32).any(|commit| self.undone >> commit & 1 == 1 && is_done(commit)) {
            self.wrong = Some("a commit that was answered with \"not done\" is done");
        }
        let mut told = self.told.iter().filter(|told| !told.is_lost);
        if told.any(|told| !is_done(usize::from(told.commit))) {
            self.wrong = Some("a commit that was answered with \"done\" is not there");
        }
    }
}
