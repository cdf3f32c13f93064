//! Limits that hold for all nodes together: one node counts the places of a flow, and lends them to the others.
//!
//! Two state machines without threads and without a clock. The owner of a flow's [home](home) is its [`Lender`]; each
//! node is a [`Borrower`], of its own lender as well. A node uses no place that its lender does not count for it:
//!
//! - A borrower says how many it keeps, and keeps no more from before it says so. What runs is among them.
//! - A lender counts as many until [`LOAN`] after it has answered. A borrower believes in them for less, from before it
//!   asked.
//! - Who becomes a lender knows nothing of what was lent before. It lends nothing for as long as that may go on, and counts
//!   what borrowers say that they have.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_durable::store::Shard;
use countwheel_durable::{Flow, FlowUse};
use countwheel_time::Instant;

use crate::NodeId;
use crate::place::hash;
use crate::planted::planted;

/// How long a lender counts what it has lent, from its answer on, unless it is asked again.
pub const LOAN: Duration = Duration::from_secs(3);
/// So much shorter a borrower believes in it.
const MARGIN: Duration = Duration::from_millis(500);
/// How often a borrower asks again, and how often if timers wait here or on other nodes.
const RENEWS: Duration = Duration::from_millis(500);
const ASKS: Duration = Duration::from_millis(100);
/// What was not needed for so long is given back.
const KEEPS: Duration = Duration::from_secs(1);
/// For how long a node that asked in vain comes before others.
const WAITS: Duration = Duration::from_millis(2_500);
/// Where there are more nodes than places, one has a place for so long.
const TURN: Duration = Duration::from_secs(1);
/// A lender forgets which question of a node was the last after so long.
const FORGETS: Duration = Duration::from_secs(60);

/// What is lent of a flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lending {
    /// Places for attempts that run.
    Places,
    /// Parts of a rate: each is one start of its burst, and one in the time in which the burst comes back.
    Starts,
}

/// A limit of a flow.
pub type Limited = (Flow, Lending);

/// The shard whose owner counts the places of a flow, of so many.
///
/// ```
/// use countwheel_cluster::home;
/// use countwheel_durable::Flow;
///
/// assert!(home(&Flow::new("queue orders"), 64).0 < 64);
/// ```
#[must_use]
pub fn home(flow: &Flow, shards: u16) -> Shard {
    let number = hash(flow.as_str()) % u64::from(shards.max(1));
    Shard(u16::try_from(number).unwrap_or(0))
}

/// What a borrower asks about one limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Borrowing {
    /// Of what.
    pub limited: Limited,
    /// So many it keeps until it has the answer.
    pub keeps: u32,
    /// Whether it would use more.
    pub wants: bool,
    /// What it gives back by this is not to be lent for so long.
    pub rests: Duration,
}

/// What a lender answers to that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lent {
    /// It is not the one who counts.
    Elsewhere,
    /// So many are to be used from now on.
    Places {
        /// How many.
        count: u32,
        /// Whether other nodes want some.
        others_wait: bool,
    },
}

/// What a lender knows of its node and of the limits.
pub trait Lends {
    /// How many there are on all nodes; `None` without a limit.
    fn limit(&self, limited: &Limited) -> Option<u32>;

    /// From when on this node may lend of the flow: `None` if others count it. Whoever has had its
    /// [home](home) before has lent nothing from [`LOAN`] before that on.
    fn lends_from(&self, flow: &Flow) -> Option<Instant>;

    /// How many nodes live.
    fn nodes(&self) -> u32;
}

/// Counts what is lent of the limits that have their home on this node.
#[derive(Debug, Default)]
pub struct Lender {
    all: BTreeMap<Limited, Account>,
    /// The last question of each node, and when it came.
    last: BTreeMap<NodeId, (u64, Instant)>,
}

/// Of one limit.
#[derive(Debug)]
struct Account {
    lends_from: Instant,
    of: BTreeMap<NodeId, Loan>,
    /// What was given back and is not to be lent yet.
    resting: Vec<(Instant, u32)>,
}

/// What one node has.
#[derive(Clone, Debug)]
struct Loan {
    /// What is counted for it: what it was told, and what it says that it runs.
    count: u32,
    /// What it was told last.
    told: u32,
    until: Instant,
    asked: Instant,
    wants: bool,
    /// Since when it has had some, or wants some.
    since: Instant,
    /// Since when it had wanted what it has.
    wanted: Instant,
}

impl Account {
    fn new(lends_from: Instant) -> Self {
        Self {
            lends_from,
            of: BTreeMap::new(),
            resting: Vec::new(),
        }
    }

    fn expire(&mut self, now: Instant) {
        self.of.retain(|_, loan| {
            if loan.until <= now {
                (loan.count, loan.told) = (0, 0);
            }
            loan.count > 0 || (loan.wants && loan.asked + WAITS > now)
        });
        self.resting.retain(|(until, _)| *until > now);
    }

    fn lent(&self) -> u32 {
        let counts = self.of.values().map(|loan| loan.count);
        counts.fold(0, u32::saturating_add)
    }

    fn rests(&self) -> u32 {
        let counts = self.resting.iter().map(|(_, count)| *count);
        counts.fold(0, u32::saturating_add)
    }

    /// Takes down what a node says that it has. Says what it was told that it has.
    fn note(&mut self, from: NodeId, asked: &Borrowing, now: Instant) -> u32 {
        let before = self.of.get(&from).cloned();
        let (had, told) = before
            .as_ref()
            .map_or((0, 0), |loan| (loan.count, loan.told));
        let back = had.saturating_sub(asked.keeps);
        if back > 0 && !asked.rests.is_zero() && !planted!(LoansStartAgain) {
            self.resting.push((now + asked.rests, back));
        }
        if asked.keeps == 0 && !asked.wants {
            self.of.remove(&from);
            return told;
        }
        // Who has given its last back, or wants some and had none, is the last in turn. Who was lent some and knows
        // nothing of it has lost the answer, and not its turn.
        let wanted = before.as_ref().map_or(now, |loan| loan.wanted);
        let has_lost_it = told > 0 && asked.keeps == 0 && asked.wants;
        let since = match before {
            Some(_) if has_lost_it => wanted,
            Some(loan) if (had > 0) == (asked.keeps > 0) => loan.since,
            _ => now,
        };
        let loan = Loan {
            count: asked.keeps,
            told,
            until: now + LOAN,
            asked: now,
            wants: asked.wants,
            since,
            wanted,
        };
        self.of.insert(from, loan);
        told
    }

    /// How many a node is to use from now on. It was told so many before.
    fn lend(
        &mut self,
        (from, told): (NodeId, u32),
        limit: u32,
        lends: &dyn Lends,
        now: Instant,
    ) -> Lent {
        let (lent, rests) = (self.lent(), self.rests());
        let free = limit.saturating_sub(lent).saturating_sub(rests);
        let nodes = u32::try_from(self.of.len()).unwrap_or(u32::MAX).max(1);
        let fair = (limit / nodes).max(1);
        let Some(mine) = self.of.get(&from).cloned() else {
            let (count, others_wait) = (0, false);
            return Lent::Places { count, others_wait };
        };
        let others = self.of.iter().filter(|(node, _)| **node != from);
        let waiting =
            others.filter(|(_, it)| it.wants && it.count < fair && it.asked + WAITS > now);
        let (mut lack, mut before_me) = (0_u32, 0_u32);
        for (_, other) in waiting {
            let lacks = fair - other.count;
            lack = lack.saturating_add(lacks);
            if mine.count >= fair || other.since < mine.since {
                before_me = before_me.saturating_add(lacks);
            }
        }
        let may_lend = now >= self.lends_from || planted!(LoansLendAtOnce);
        let mut count = mine.count;
        if mine.wants && may_lend {
            let left = free.saturating_sub(before_me);
            count = count.saturating_add(left.min(left.div_ceil(lends.nodes().max(nodes))));
        }
        let others_wait = lack > 0;
        // A node that has the place of the others gives it back as soon as it can. A lender whose limit was lowered
        // may have lent more than there is by now, and wants that back as well.
        let over = lent.saturating_sub(limit);
        let missing = lack.saturating_sub(free);
        // Its loan had ended, and others have been lent the same meanwhile: what it runs is counted, and it is told so
        // with each answer until that has ended.
        count = count.saturating_sub(over.min(mine.count.saturating_sub(told)));
        if count > fair && (missing > 0 || over > 0) {
            count = fair.max(count.saturating_sub(missing.saturating_add(over)));
        } else if over > 0 && limit < nodes {
            count = count.saturating_sub(over);
        } else if mine.count > 0
            && missing > 0
            && limit < nodes
            && mine.since + TURN <= now
            && !planted!(LoansNoTurns)
        {
            count = count.saturating_sub(1);
        }
        if let Some(loan) = self.of.get_mut(&from) {
            if loan.count == 0 && count > 0 {
                (loan.wanted, loan.since) = (loan.since, now);
            }
            loan.count = loan.count.max(count);
            loan.told = count;
        }
        Lent::Places { count, others_wait }
    }
}

impl Lender {
    /// One that has lent nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers a node, whose questions have numbers that grow. `None` to one that is older than another that came:
    /// what it says is no longer so.
    pub fn answer(
        &mut self,
        from: NodeId,
        number: u64,
        asked: &[Borrowing],
        lends: &dyn Lends,
        now: Instant,
    ) -> Option<Vec<Lent>> {
        let is_old = self
            .last
            .get(&from)
            .is_some_and(|(last, _)| *last >= number);
        if is_old && !planted!(LoansOldQuestion) {
            return None;
        }
        self.last.insert(from, (number, now));
        let answers = asked.iter().map(|asked| self.lend(from, asked, lends, now));
        Some(answers.collect())
    }

    /// Forgets what says nothing any more, and what others count by now.
    pub fn sweep(&mut self, lends: &dyn Lends, now: Instant) {
        self.last.retain(|_, (_, came)| *came + FORGETS > now);
        self.all.retain(|limited, account| {
            account.expire(now);
            let is_here = lends.lends_from(&limited.0) == Some(account.lends_from);
            is_here && !(account.of.is_empty() && account.resting.is_empty())
        });
    }

    /// How many it counts for each node of a limit.
    pub fn counted(&self, limited: &Limited) -> impl Iterator<Item = (NodeId, u32)> {
        let accounts = self.all.get(limited).into_iter();
        accounts.flat_map(|account| account.of.iter().map(|(node, loan)| (*node, loan.count)))
    }

    fn lend(&mut self, from: NodeId, asked: &Borrowing, lends: &dyn Lends, now: Instant) -> Lent {
        let Some(lends_from) = lends.lends_from(&asked.limited.0) else {
            self.all.remove(&asked.limited);
            return Lent::Elsewhere;
        };
        let Some(limit) = lends.limit(&asked.limited) else {
            // This node knows of none yet, or of none any more.
            self.all.remove(&asked.limited);
            let (count, others_wait) = (u32::MAX, false);
            return Lent::Places { count, others_wait };
        };
        let account = self.all.entry(asked.limited.clone());
        let account = account.or_insert_with(|| Account::new(lends_from));
        if account.lends_from != lends_from {
            *account = Account::new(lends_from);
        }
        account.expire(now);
        let told = account.note(from, asked, now);
        account.lend((from, told), limit, lends, now)
    }
}

/// What a borrower knows of the use of a limit on this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// The limit on all nodes; `None` without one.
    pub limit: Option<u32>,
    /// Of its flow.
    pub used: FlowUse,
}

/// What this node has been lent of limits.
#[derive(Debug, Default)]
pub struct Borrower {
    all: BTreeMap<Limited, Held>,
    number: u64,
}

/// Of one limit.
#[derive(Clone, Debug)]
struct Held {
    count: u32,
    until: Instant,
    /// When it was asked for last.
    asked: Option<Instant>,
    /// Timers wait for it, here or on other nodes.
    is_short: bool,
    /// When somebody here wanted to know.
    used: Instant,
    /// When all of it was needed last.
    needed: Instant,
}

impl Held {
    fn count(&self, now: Instant) -> u32 {
        if self.until > now || planted!(LoansForEver) {
            self.count
        } else {
            0
        }
    }
}

impl Borrower {
    /// One that has nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many this node may use of a limit now. `None` if it did not know of the limit: it has none, and is to
    /// [ask](Self::asks) soon.
    pub fn count(&mut self, limited: &Limited, now: Instant) -> Option<u32> {
        if let Some(held) = self.all.get_mut(limited) {
            held.used = now;
            return Some(held.count(now));
        }
        let held = Held {
            count: 0,
            until: now,
            asked: None,
            is_short: true,
            used: now,
            needed: now,
        };
        self.all.insert(limited.clone(), held);
        None
    }

    /// Whether it knows of any limit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The limits to ask about now.
    #[must_use]
    pub fn due(&self, now: Instant) -> Vec<Limited> {
        let is_due = |held: &&Held| {
            let every = if held.is_short { ASKS } else { RENEWS };
            held.asked.is_none_or(|asked| asked + every <= now)
        };
        let due = self.all.iter().filter(|(_, held)| is_due(held));
        due.map(|(limited, _)| limited.clone()).collect()
    }

    /// Gives up what is not used. Says of which limits something is given up: from now on nothing is to start by more,
    /// and then [`asks`](Self::asks) says what is left.
    pub fn give_up(&mut self, due: &[(Limited, Usage)], now: Instant) -> Vec<Limited> {
        let mut given_up = Vec::new();
        for (limited, Usage { limit, used }) in due {
            let Some(held) = self.all.get_mut(limited) else {
                continue;
            };
            let Some(limit) = *limit else {
                self.all.remove(limited);
                continue;
            };
            let count = held.count(now).min(limit);
            held.is_short = used.waits;
            let (is_needed, least) = match limited.1 {
                Lending::Places => (used.waits || used.most >= count, used.most),
                Lending::Starts => (used.waits || used.started > 0, 0),
            };
            if is_needed {
                held.needed = now;
            }
            let keeps = match held.needed + KEEPS > now {
                true => count,
                false => count.min(least),
            };
            if keeps < held.count {
                given_up.push(limited.clone());
            }
            held.count = keeps;
        }
        given_up
    }

    /// What is asked about these limits, and under which number. What they have used is read after nothing more starts by
    /// what was [given up](Self::give_up).
    pub fn asks(&mut self, due: &[(Limited, Usage)], now: Instant) -> (u64, Vec<Borrowing>) {
        let mut asks = Vec::new();
        for (limited, Usage { limit, used }) in due {
            let Some(held) = self.all.get_mut(limited) else {
                continue;
            };
            let has = held.count(now);
            let is_idle = has == 0 && used.running == 0 && !used.waits;
            if limit.is_none() || (is_idle && held.used + RENEWS <= now && held.count == 0) {
                if held.asked.is_some() && limit.is_some() {
                    // The lender is told once more, and then there is nothing to say.
                    asks.push(Borrowing {
                        limited: limited.clone(),
                        keeps: 0,
                        wants: false,
                        rests: used.fills_in,
                    });
                }
                self.all.remove(limited);
                continue;
            }
            held.asked = Some(now);
            let (keeps, wants, rests) = match limited.1 {
                Lending::Places => {
                    let running = if planted!(LoansOverlookRunning) {
                        0
                    } else {
                        used.running
                    };
                    (
                        has.max(running),
                        used.waits && used.running >= has,
                        Duration::ZERO,
                    )
                }
                Lending::Starts => {
                    let lacks = has == 0 || !used.fills_in.is_zero();
                    (has, used.waits && lacks, used.fills_in)
                }
            };
            asks.push(Borrowing {
                limited: limited.clone(),
                keeps,
                wants,
                rests,
            });
        }
        self.number += 1;
        (self.number, asks)
    }

    /// Takes the answers, to what was asked at `sent`. Says of which limits it has others now.
    pub fn answered(
        &mut self,
        asked: &[Borrowing],
        answers: &[Lent],
        sent: Instant,
        now: Instant,
    ) -> Vec<Limited> {
        let mut changed = Vec::new();
        for (asked, answer) in asked.iter().zip(answers) {
            let Some(held) = self.all.get_mut(&asked.limited) else {
                continue;
            };
            let Lent::Places { count, others_wait } = *answer else {
                // Somebody else counts by now: asked again soon.
                held.is_short = true;
                continue;
            };
            let has_ended = held.until <= now && asked.keeps > 0;
            if has_ended && asked.limited.1 == Lending::Starts {
                // Whoever has none begins with a burst when there are some again. These were used: they are given back
                // by the next question, and rest.
                held.is_short = true;
                continue;
            }
            let before = held.count(now);
            let sent = if planted!(LoansFromAnswer) {
                now + MARGIN
            } else {
                sent
            };
            held.until = sent + (LOAN - MARGIN);
            held.count = count;
            held.is_short |= others_wait;
            if held.count(now) != before {
                changed.push(asked.limited.clone());
            }
        }
        changed
    }
}
