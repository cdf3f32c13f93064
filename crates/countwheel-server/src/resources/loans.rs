//! The limits of deliveries on many nodes: one node counts those of a flow, and lends them to the others.
//! [`countwheel_cluster`] decides; this asks the other nodes, and answers them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use countwheel_cluster::{
    Borrower, Borrowing, LOAN, Lender, Lending, Lends, Lent, Limited, NodeHandle, NodeId, Usage,
    home,
};
use countwheel_durable::store::{Fence, Shard};
use countwheel_durable::{Asked, Counted, Flow, FlowUse, Health, Timers};
use countwheel_peers::{Forwarder, Here, Owners, TellWord, Word};
use countwheel_time::{Clock, Instant};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::sync::oneshot::Receiver;
use tokio::task::JoinSet;

use super::flows::Whole;
use super::{Catalogue, breaker};
use crate::cluster::joined::Map;
use crate::events::Events;
use crate::gather::Leaser;
use crate::tally::Tally;

/// How often it is looked at what is to be asked, while anything is borrowed.
const LOOKS: Duration = Duration::from_millis(50);
/// How often a node says what it has seen of endpoints.
const SAYS: Duration = Duration::from_millis(500);
/// How long a lender may take to answer.
const ANSWERS: Duration = Duration::from_secs(1);
/// How many limits one word asks about: far less than a frame has room for.
const ASKED_MAX: usize = 10_000;

/// What one node says to another.
#[derive(Debug, Serialize, Deserialize)]
enum Said<'a> {
    /// It asks for places.
    Borrows {
        number: u64,
        #[serde(borrow)]
        asked: Vec<SaidBorrowing<'a>>,
    },
    /// What it has seen of endpoints.
    Endpoints(Vec<breaker::Said>),
}

#[derive(Debug, Serialize, Deserialize)]
struct SaidBorrowing<'a> {
    flow: &'a str,
    is_rate: bool,
    keeps: u32,
    wants: bool,
    rests: Duration,
}

/// What that answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answered {
    /// How many, and whether others wait; `None`: another node counts.
    Lends(Vec<Option<(u32, bool)>>),
    /// A later question has come before.
    TooLate,
    /// What was said of endpoints was heard.
    Heard,
}

fn lending(is_rate: bool) -> Lending {
    if is_rate {
        Lending::Starts
    } else {
        Lending::Places
    }
}

/// What a node lends and borrows.
pub(crate) struct Loans {
    catalogue: Arc<Catalogue>,
    owners: Arc<Map>,
    shards: u16,
    clock: Arc<dyn Clock>,
    node: RwLock<Option<Arc<NodeHandle>>>,
    lender: Mutex<Lender>,
    borrower: Mutex<Borrower>,
    homes: Mutex<BTreeMap<Shard, (Fence, Instant)>>,
    /// Nodes of an earlier version, which lend nothing.
    apart: RwLock<BTreeSet<NodeId>>,
    /// A limit is new, or something was heard.
    wake: Notify,
    /// What was heard of endpoints changes limits.
    has_heard: AtomicBool,
}

/// Who counts the places of a flow.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Counting {
    Here,
    There(NodeId, String),
    Nobody,
}

impl Loans {
    /// Of a process that is no node yet: nothing is lent before it [is](Self::joined).
    pub(crate) fn new(
        catalogue: Arc<Catalogue>,
        owners: Arc<Map>,
        shards: u16,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            catalogue,
            owners,
            shards,
            clock,
            node: RwLock::default(),
            lender: Mutex::default(),
            borrower: Mutex::default(),
            homes: Mutex::default(),
            apart: RwLock::default(),
            wake: Notify::new(),
            has_heard: AtomicBool::new(false),
        }
    }

    /// The process is a node from now on.
    pub(crate) fn joined(&self, node: Arc<NodeHandle>) {
        *self.node.write() = Some(node);
        self.wake.notify_one();
    }

    /// How many this node may use of a limit now. `None` if who counts is of an earlier version.
    pub(crate) fn count(&self, flow: &Flow, lending: Lending) -> Option<u32> {
        if self.is_apart(flow) {
            return None;
        }
        let (limited, now) = ((flow.clone(), lending), self.clock.boot());
        let count = self.borrower.lock().count(&limited, now);
        if count.is_none() {
            self.wake.notify_one();
        }
        Some(count.unwrap_or(0))
    }

    fn is_apart(&self, flow: &Flow) -> bool {
        let apart = self.apart.read();
        let owner = || self.owners.owner(home(flow, self.shards));
        !apart.is_empty() && owner().is_some_and(|(owner, _)| apart.contains(&owner))
    }

    /// Asks for what is needed, and gives back what is not, for as long as the process lives.
    pub(crate) async fn run(self: Arc<Self>, timers: Timers, forwarder: Arc<Forwarder>) {
        let mut asking: JoinSet<NodeId> = JoinSet::new();
        let mut busy = BTreeSet::new();
        // Whoever lets go of these takes back what was not said yet.
        let (mut said, mut telling) = (self.clock.boot(), Vec::new());
        loop {
            let is_idle = self.borrower.lock().is_empty();
            let pause = if is_idle { SAYS } else { LOOKS };
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
                Some(asked) = asking.join_next() => if let Ok(node) = asked {
                    busy.remove(&node);
                },
            }
            // Also of breakers that other nodes have opened.
            if self.has_heard.swap(false, Ordering::AcqRel) | self.catalogue.half_open() {
                timers.flows_changed();
            }
            let now = self.clock.boot();
            if now.saturating_since(said) >= SAYS {
                said = now;
                drop(std::mem::replace(&mut telling, self.say(&forwarder)));
            }
            for (node, address, number, asked) in self.look(&timers, &busy) {
                busy.insert(node);
                let (loans, timers) = (Arc::clone(&self), timers.clone());
                let forwarder = Arc::clone(&forwarder);
                asking.spawn(async move {
                    loans
                        .ask(&timers, &forwarder, (node, &address), (number, asked))
                        .await;
                    node
                });
            }
        }
    }

    /// Tells all other nodes what this one has seen of endpoints.
    fn say(&self, forwarder: &Forwarder) -> Vec<Receiver<Word>> {
        let said = self.catalogue.say();
        if said.is_empty() {
            return Vec::new();
        }
        let Ok(word) = postcard::to_allocvec(&Said::Endpoints(said)) else {
            return Vec::new();
        };
        let others = self.owners.others();
        // Whoever does not hear it hears the next one.
        let told = others
            .iter()
            .map(|(node, address)| forwarder.say(*node, address, word.clone()));
        told.collect()
    }

    fn counting(&self, flow: &Flow, me: NodeId) -> Counting {
        match self.owners.owner(home(flow, self.shards)) {
            Some((owner, _)) if owner == me => Counting::Here,
            Some((owner, address)) => Counting::There(owner, address),
            None => Counting::Nobody,
        }
    }

    /// Asks this node itself, and says what is to be asked of which other one.
    fn look(
        &self,
        timers: &Timers,
        busy: &BTreeSet<NodeId>,
    ) -> Vec<(NodeId, String, u64, Vec<Borrowing>)> {
        let now = self.clock.boot();
        let Some(me) = self.node.read().as_ref().map(|node| node.me()) else {
            return Vec::new();
        };
        let here = self.here(timers, now);
        self.lender.lock().sweep(&here, now);
        let mut due: BTreeMap<Counting, Vec<Limited>> = BTreeMap::new();
        for limited in self.borrower.lock().due(now) {
            let counting = self.counting(&limited.0, me);
            let is_busy = match &counting {
                Counting::There(node, _) => busy.contains(node),
                Counting::Here => false,
                Counting::Nobody => true,
            };
            let asked = due.entry(counting).or_default();
            if !is_busy && asked.len() < ASKED_MAX {
                asked.push(limited);
            }
        }
        let all: Vec<_> = due.values().flatten().cloned().collect();
        let used = self.used(timers, &all);
        let given_up = self.borrower.lock().give_up(&used, now);
        if !given_up.is_empty() {
            changed(timers, &given_up);
        }
        let mut others = Vec::new();
        for (counting, limited) in due {
            if limited.is_empty() {
                continue;
            }
            let used = self.used(timers, &limited);
            let (number, asked) = self.borrower.lock().asks(&used, now);
            match counting {
                Counting::Here => {
                    let answers = self.lender.lock().answer(me, number, &asked, &here, now);
                    self.answered(timers, &asked, &answers.unwrap_or_default(), now);
                }
                Counting::There(node, address) => others.push((node, address, number, asked)),
                Counting::Nobody => {}
            }
        }
        others
    }

    fn used(&self, timers: &Timers, limited: &[Limited]) -> Vec<(Limited, Usage)> {
        let flows: BTreeSet<&Flow> = limited.iter().map(|(flow, _)| flow).collect();
        let flows: Vec<Flow> = flows.into_iter().cloned().collect();
        let used: Vec<FlowUse> = timers.flows_used(&flows);
        let used: BTreeMap<&Flow, FlowUse> = flows.iter().zip(used).collect();
        let usage = limited.iter().map(|limited| {
            let limit = Whole::of(&self.catalogue, &limited.0).of_lending(limited.1);
            let used = used.get(&limited.0).copied().unwrap_or_default();
            (limited.clone(), Usage { limit, used })
        });
        usage.collect()
    }

    async fn ask(
        &self,
        timers: &Timers,
        forwarder: &Forwarder,
        (node, address): (NodeId, &str),
        (number, asked): (u64, Vec<Borrowing>),
    ) {
        let said = asked.iter().map(|it| SaidBorrowing {
            flow: it.limited.0.as_str(),
            is_rate: it.limited.1 == Lending::Starts,
            keeps: it.keeps,
            wants: it.wants,
            rests: it.rests,
        });
        let said = Said::Borrows {
            number,
            asked: said.collect(),
        };
        let sent = self.clock.boot();
        let Ok(word) = postcard::to_allocvec(&said) else {
            return;
        };
        let told = forwarder.say(node, address, word);
        let told = tokio::time::timeout(ANSWERS, told).await;
        let answers = match told {
            Ok(Ok(Word::Answered(bytes))) => postcard::from_bytes::<Answered>(&bytes).ok(),
            Ok(Ok(Word::NotUnderstood)) => {
                if self.apart.write().insert(node) {
                    tracing::warn!(%node, "a node of an earlier version counts limits for itself");
                    timers.flows_changed();
                }
                None
            }
            // What was lent is used until its time is over.
            Ok(Err(_)) | Err(_) => None,
        };
        if let Some(Answered::Lends(lent)) = answers {
            let lent = lent.into_iter().map(|lent| match lent {
                None => Lent::Elsewhere,
                Some((count, others_wait)) => Lent::Places { count, others_wait },
            });
            self.answered(timers, &asked, &lent.collect::<Vec<_>>(), sent);
        }
    }

    fn answered(&self, timers: &Timers, asked: &[Borrowing], answers: &[Lent], sent: Instant) {
        let now = self.clock.boot();
        let others = self.borrower.lock().answered(asked, answers, sent, now);
        if !others.is_empty() {
            changed(timers, &others);
        }
    }

    /// Answers what another node says.
    fn word(&self, timers: &Timers, from: NodeId, word: &[u8]) -> Option<Vec<u8>> {
        let now = self.clock.boot();
        let (number, asked) = match postcard::from_bytes(word).ok()? {
            Said::Borrows { number, asked } => (number, asked),
            Said::Endpoints(said) => {
                if self.catalogue.hear(from, said) {
                    self.has_heard.store(true, Ordering::Release);
                    self.wake.notify_one();
                }
                return postcard::to_allocvec(&Answered::Heard).ok();
            }
        };
        let asked = asked.into_iter().map(|it| Borrowing {
            limited: (Flow::new(it.flow), lending(it.is_rate)),
            keeps: it.keeps,
            wants: it.wants,
            rests: it.rests,
        });
        let asked: Vec<_> = asked.collect();
        let here = self.here(timers, now);
        let answers = self.lender.lock().answer(from, number, &asked, &here, now);
        let answered = answers.map_or(Answered::TooLate, |lent| {
            let lent = lent.into_iter().map(|lent| match lent {
                Lent::Elsewhere => None,
                Lent::Places { count, others_wait } => Some((count, others_wait)),
            });
            Answered::Lends(lent.collect())
        });
        postcard::to_allocvec(&answered).ok()
    }

    /// What this node counts now.
    fn here(&self, timers: &Timers, now: Instant) -> LendsHere<'_> {
        let mut homes = self.homes.lock();
        let node = self.node.read().clone();
        let node = node.filter(|node| node.is_lease_believed());
        let mut nodes = 1;
        if let Some(node) = node {
            let (view, me) = (node.view(), node.me());
            let lives = view.members.iter().filter(|it| it.expires > view.now);
            let others = lives
                .filter(|it| it.node.id != me && !it.node.api.is_empty())
                .count();
            nodes = u32::try_from(others).unwrap_or(u32::MAX).saturating_add(1);
            let is_alone = view.members.iter().all(|it| it.node.id == me);
            // Whoever hands a shard over ends its scheduler first, and counts for it no more from then on.
            let owned = timers.owned();
            let runs = |shard| owned.get(&shard) == Some(&Health::Running);
            let mine = view.holdings.iter();
            let mine = mine.filter(|it| it.owner == Some(me) && runs(it.shard));
            let mine = mine.map(|holding| {
                let known = homes.get(&holding.shard).copied();
                let known = known.filter(|(fence, _)| *fence == holding.fence);
                // What another has lent goes on for so long. Where there was no other, nobody has anything; one whose
                // lease is over may come back.
                let lends_from = if is_alone { now } else { now + LOAN };
                (holding.shard, known.unwrap_or((holding.fence, lends_from)))
            });
            *homes = mine.collect();
        } else {
            homes.clear();
        }
        LendsHere {
            catalogue: &self.catalogue,
            shards: self.shards,
            homes: homes.clone(),
            nodes,
        }
    }
}

/// Once this is back, what starts goes by these limits as they are now.
fn changed(timers: &Timers, limited: &[Limited]) {
    let flows: BTreeSet<&Flow> = limited.iter().map(|(flow, _)| flow).collect();
    let flows: Vec<Flow> = flows.into_iter().cloned().collect();
    timers.limits_of_flows_changed(&flows);
}

struct LendsHere<'a> {
    catalogue: &'a Catalogue,
    shards: u16,
    homes: BTreeMap<Shard, (Fence, Instant)>,
    nodes: u32,
}

impl Lends for LendsHere<'_> {
    fn limit(&self, limited: &Limited) -> Option<u32> {
        Whole::of(self.catalogue, &limited.0).of_lending(limited.1)
    }

    fn lends_from(&self, flow: &Flow) -> Option<Instant> {
        let (_, lends_from) = self.homes.get(&home(flow, self.shards))?;
        Some(*lends_from)
    }

    fn nodes(&self) -> u32 {
        self.nodes
    }
}

impl fmt::Debug for Loans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loans").finish_non_exhaustive()
    }
}

/// Where other nodes' questions are answered.
pub(crate) struct NodeHere {
    pub(crate) timers: Timers,
    pub(crate) loans: Arc<Loans>,
    pub(crate) leaser: Arc<Leaser>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) events: Arc<Events>,
}

impl Here for NodeHere {
    fn ask(&self, shard: Shard, asked: Asked) {
        self.timers.ask_here(shard, asked);
    }

    fn counts(&self, shards: &[Shard]) -> BTreeMap<Shard, Counted> {
        self.timers.counts_here(shards).unwrap_or_default()
    }

    fn word(&self, from: NodeId, word: &[u8]) -> Option<Vec<u8>> {
        self.loans.word(&self.timers, from, word)
    }

    fn word_later(&self, from: NodeId, word: &[u8], tell: TellWord) {
        if let Some(answer) = self.events.word(word) {
            tell(answer);
            return;
        }
        // About leases, about figures, or about limits.
        let tell = self.leaser.word(from, word, tell);
        let tell = tell.and_then(|tell| self.tally.word(word, tell));
        if let Some(tell) = tell {
            tell(self.word(from, word));
        }
    }
}
