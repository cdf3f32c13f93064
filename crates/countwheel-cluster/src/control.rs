//! What one node does about its shards: a state machine without threads, without waiting, without a clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use countwheel_durable::store::{Fence, Shard};
use countwheel_time::{Instant, Random, Timestamp};

use crate::planted::planted;
use crate::{Holding, Member, NodeId, RegistryError, View, place};

/// So much earlier than it ends a node stops to believe its lease.
const EARLIER: Duration = Duration::from_millis(500);
/// Who is given a shard has at least so much of its lease left: it has renewed it a moment ago.
const LEFT_AT_LEAST: Duration = Duration::from_secs(1);
/// By so much the clock of the registry may go faster or slower than the boot clock between two looks.
const STEP: Duration = Duration::from_millis(100);
/// After so many attempts in vain a node lets go of a shard that is its own.
const TRIES: u32 = 3;
/// For how long a node that let go of a shard leaves it to others.
const OTHERS_FIRST: Duration = Duration::from_secs(10);
/// The longest pause between two attempts to take the same shard.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How a node judges and how fast it acts. All nodes of a cluster should have the same.
///
/// ```
/// use std::time::Duration;
/// use countwheel_cluster::NodeConfig;
///
/// let config = NodeConfig { ttl: Duration::from_secs(2), ..NodeConfig::default() };
/// assert_eq!(config.renew, Duration::from_millis(500));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeConfig {
    /// How long a lease lasts from its renewal: 5 s.
    pub ttl: Duration,
    /// How long a hand-over waits for the attempts that run: 10 s.
    pub grace: Duration,
    /// How often the registry is looked at, give or take a quarter: every 0.2 s.
    pub look: Duration,
    /// How often the lease is renewed: every 0.5 s.
    pub renew: Duration,
    /// For how long a lease has to be over until others take the shards: 0.25 s.
    pub margin: Duration,
    /// How long others wait for the node that is to take a shard, until they take it: 1 s.
    pub patience: Duration,
    /// How many shards a node hands over at the same time: 2.
    pub at_once: usize,
    /// For how long a shard that has moved stays where it is: a minute.
    pub rest: Duration,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(5),
            grace: Duration::from_secs(10),
            look: Duration::from_millis(200),
            renew: Duration::from_millis(500),
            margin: Duration::from_millis(250),
            patience: Duration::from_secs(1),
            at_once: 2,
            rest: Duration::from_secs(60),
        }
    }
}

/// How a shard stands in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Its scheduler works, under this number.
    Works(Fence),
    /// Its scheduler is told to stop.
    Stops,
    /// Its scheduler has ended by itself.
    Ended,
}

/// Why a node takes a shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Why {
    /// The lease of its owner is over.
    Overdue,
    /// The registry says that it is this node's.
    Given,
    /// Nobody has it.
    Free,
}

impl Why {
    /// In a word, as metrics have it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Overdue => "overdue",
            Self::Given => "given",
            Self::Free => "free",
        }
    }
}

/// Why a node hands a shard over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// The process is to end.
    Leaves,
    /// An operator drains the node.
    Drains,
    /// An operator wants the shard elsewhere.
    Wanted,
    /// It is another's by the placement.
    Balance,
}

impl Reason {
    /// In a word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Leaves => "leaves",
            Self::Drains => "drains",
            Self::Wanted => "wanted",
            Self::Balance => "balance",
        }
    }
}

/// What a node is to do. Of those about a shard, [`Control::ended`] is told what came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Take the shard and start its scheduler.
    Take {
        /// Which.
        shard: Shard,
        /// Why it may.
        why: Why,
    },
    /// End its scheduler, and give the shard away then.
    HandOver {
        /// Which.
        shard: Shard,
        /// To whom.
        to: NodeId,
        /// Why.
        reason: Reason,
    },
    /// Let go of a shard that is this node's and cannot be taken.
    LetGo {
        /// Which.
        shard: Shard,
    },
    /// End the scheduler of a shard that is another's, or was since this node took the shard.
    End {
        /// Which.
        shard: Shard,
    },
    /// Join again, under another id: see [`Control::joined`].
    Rejoin,
}

impl Action {
    /// The shard that it is about.
    #[must_use]
    pub const fn shard(self) -> Option<Shard> {
        match self {
            Self::Take { shard, .. }
            | Self::HandOver { shard, .. }
            | Self::LetGo { shard }
            | Self::End { shard } => Some(shard),
            Self::Rejoin => None,
        }
    }
}

/// A look at the registry, in readings of the boot clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Looked {
    /// Before the registry was asked.
    pub sent: Instant,
    /// After it answered.
    pub came: Instant,
    /// Whether the lease was renewed.
    pub renewed: bool,
}

/// What one node knows, and what it is to do next. It is told of each look at the registry and of the
/// end of each action; the same is done in the same order for the same seed.
///
/// - It takes shards of nodes whose lease is over only after it has itself renewed for a whole TTL
///   without a gap: after a stall of the registry all leases are over, and nobody is dead. A look that
///   failed or that came later than half a TTL after the one before is a gap, and so is a step of the
///   registry's clock.
/// - It takes free shards, and those that it was given, at once.
/// - It hands over what another is to have, a few at a time. A shard that has moved stays for a while,
///   unless this node is drained or leaves.
///
/// ```
/// use countwheel_cluster::{Action, Control, Looked, NodeConfig, NodeId};
/// # use std::collections::BTreeMap;
/// # use countwheel_cluster::{Holding, Member, Node, View, Why};
/// # use countwheel_durable::store::{Fence, Shard};
/// # use countwheel_time::{Instant, Timestamp};
///
/// # let node = Node {
/// #     id: NodeId(1),
/// #     name: "a".to_owned(),
/// #     api: String::new(),
/// #     peers: None,
/// #     weight: 100,
/// #     version: String::new(),
/// #     zones: String::new(),
/// # };
/// # let holding = Holding {
/// #     shard: Shard(0),
/// #     owner: None,
/// #     fence: Fence(0),
/// #     since: Timestamp::EPOCH,
/// #     wanted: None,
/// # };
/// # let view = View {
/// #     now: Timestamp::EPOCH,
/// #     members: vec![Member { node, expires: Timestamp::MAX, is_draining: false }],
/// #     holdings: vec![holding],
/// # };
/// let mut control = Control::new(NodeId(1), NodeConfig::default(), 7);
/// let looked = Looked { sent: Instant::from_nanos(0), came: Instant::from_nanos(9), renewed: true };
/// let actions = control.seen(looked, &view, &BTreeMap::new());
/// assert_eq!(actions, [Action::Take { shard: Shard(0), why: Why::Free }]);
/// ```
#[derive(Debug)]
pub struct Control {
    me: NodeId,
    config: NodeConfig,
    random: Random,
    last: Option<Last>,
    /// When the last renewal was sent that succeeded.
    renewed: Option<Instant>,
    /// Since when it has renewed without a gap.
    steady_since: Option<Instant>,
    next: Instant,
    leaves: bool,
    has_to_give: bool,
    shards: BTreeMap<Shard, Known>,
}

/// The last look that succeeded.
#[derive(Clone, Copy, Debug)]
struct Last {
    sent: Instant,
    came: Instant,
    now: Timestamp,
}

/// What is known of a shard beside what the registry has.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    doing: Option<Action>,
    /// When an action about it ended: what was asked before says nothing of that.
    ended: Option<Instant>,
    /// When it came here from another node.
    moved: Option<Instant>,
    /// Since when nobody has it who lives.
    vacant: Option<Instant>,
    failures: u32,
    /// Until when it is not tried again.
    pause: Option<Instant>,
}

/// Who may have shards, at one look.
struct Field<'a> {
    view: &'a View,
    members: BTreeMap<NodeId, &'a Member>,
    eligible: BTreeSet<NodeId>,
    placed: BTreeMap<Shard, NodeId>,
}

impl Control {
    /// Of a node that has not looked yet.
    #[must_use]
    pub fn new(me: NodeId, config: NodeConfig, seed: u64) -> Self {
        Self {
            me,
            config,
            random: Random::new(seed),
            last: None,
            renewed: None,
            steady_since: None,
            next: Instant::ZERO,
            leaves: false,
            has_to_give: false,
            shards: BTreeMap::new(),
        }
    }

    /// The id under which it has joined.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// When the registry is to be looked at next, by the boot clock.
    #[must_use]
    pub fn next_look(&self) -> Instant {
        self.next
    }

    /// Whether a look at that moment is to renew the lease.
    #[must_use]
    pub fn renews(&self, now: Instant) -> bool {
        let due = self.config.renew.saturating_sub(self.config.look / 2);
        self.renewed.is_none_or(|sent| now - sent >= due)
    }

    /// Whether the lease is believed: whether attempts may leave, as far as it goes.
    #[must_use]
    pub fn believes(&self, now: Instant) -> bool {
        let lasts = self.config.ttl.saturating_sub(EARLIER);
        self.renewed.is_some_and(|sent| now < sent + lasts)
    }

    /// Whether it may take the shards of nodes whose lease is over.
    #[must_use]
    pub fn is_steady(&self, now: Instant) -> bool {
        let since = self.steady_since;
        since.is_some_and(|since| now - since >= self.config.ttl || planted!(NodesTakeUnsteady))
    }

    /// From now on it gives everything away and takes nothing.
    pub fn leave(&mut self) {
        (self.leaves, self.has_to_give) = (true, true);
    }

    /// Where each shard is to be, as of this view.
    #[must_use]
    pub fn placed(&self, view: &View) -> BTreeMap<Shard, NodeId> {
        self.field(view).placed
    }

    /// Whether there is something that another node can still be given, as of the last look.
    #[must_use]
    pub fn has_to_give(&self) -> bool {
        self.has_to_give || self.shards.values().any(|known| known.doing.is_some())
    }

    /// Whether what was asked of the registry at that moment says nothing of the shard: something was
    /// done with it since then, or is being done.
    #[must_use]
    pub fn is_outdated(&self, shard: Shard, sent: Instant) -> bool {
        let known = self.shards.get(&shard);
        known.is_some_and(|known| known.is_outdated(sent))
    }

    /// It has joined, for the first time or again, and looked at the same time.
    pub fn joined(
        &mut self,
        me: NodeId,
        looked: Looked,
        view: &View,
        here: &BTreeMap<Shard, Standing>,
    ) -> Vec<Action> {
        self.me = me;
        (self.last, self.renewed) = (None, None);
        if !planted!(NodesRejoinSteady) {
            self.steady_since = None;
        }
        let renewed = true;
        self.seen(Looked { renewed, ..looked }, view, here)
    }

    /// A look failed, at that moment.
    pub fn missed(&mut self, now: Instant, error: &RegistryError) -> Vec<Action> {
        if !planted!(NodesGapUnseen) {
            self.steady_since = None;
        }
        self.draw_next(now);
        match error {
            RegistryError::NotJoined => {
                self.renewed = None;
                vec![Action::Rejoin]
            }
            _ => Vec::new(),
        }
    }

    /// A look succeeded. What is to be done now, in this order; `here` is how the shards of this process
    /// stand.
    pub fn seen(
        &mut self,
        looked: Looked,
        view: &View,
        here: &BTreeMap<Shard, Standing>,
    ) -> Vec<Action> {
        self.look_for_gap(looked, view.now);
        self.draw_next(looked.came);
        if !view.members.iter().any(|member| member.node.id == self.me) {
            (self.renewed, self.steady_since) = (None, None);
            return vec![Action::Rejoin];
        }
        let field = self.field(view);
        let mut actions = self.ends(looked, view, here);
        // Who has no lease decides nothing.
        if field.members.contains_key(&self.me) {
            actions.extend(self.takes(looked, &field, here));
            actions.extend(self.hand_overs(looked, &field, here));
        }
        for action in &actions {
            if let Some(shard) = action.shard() {
                self.known(shard).doing = Some(*action);
            }
        }
        actions
    }

    /// What was to be done with a shard is done, or was tried in vain.
    pub fn ended(&mut self, now: Instant, shard: Shard, is_done: bool) {
        let pause = self.config.look;
        let known = self.known(shard);
        let done = known.doing.take();
        known.ended = Some(now);
        match done {
            Some(Action::Take { why, .. }) if is_done => {
                (known.failures, known.pause, known.vacant) = (0, None, None);
                known.moved = (why != Why::Free).then_some(now);
            }
            Some(Action::Take { .. }) => {
                known.failures += 1;
                let pause = pause * (1 << known.failures.min(6));
                known.pause = Some(now + pause.min(PAUSE_MAX));
            }
            // What could not be let go is tried again sooner.
            Some(Action::LetGo { .. }) => {
                let pause = if is_done { OTHERS_FIRST } else { PAUSE_MAX };
                (known.failures, known.pause) = (0, Some(now + pause));
            }
            _ => {}
        }
    }

    fn known(&mut self, shard: Shard) -> &mut Known {
        self.shards.entry(shard).or_default()
    }

    fn draw_next(&mut self, now: Instant) {
        let quarter = self.config.look / 4;
        let jitter = self.random.micros_up_to(quarter * 2);
        self.next = now + (self.config.look - quarter) + jitter;
    }

    fn look_for_gap(&mut self, looked: Looked, now: Timestamp) {
        if let Some(last) = &self.last {
            let is_late = looked.came - last.came > self.config.ttl / 2;
            let is_late = is_late && !planted!(NodesGapUnseen);
            // What was over a moment ago by one clock need not be by the other.
            let longest = looked.came - last.sent + STEP;
            let stepped = now > last.now + longest && !planted!(NodesStepUnseen);
            if is_late || stepped {
                self.steady_since = None;
            }
        }
        self.last = Some(Last {
            sent: looked.sent,
            came: looked.came,
            now,
        });
        if looked.renewed {
            self.renewed = Some(looked.sent);
            self.steady_since.get_or_insert(looked.came);
        }
    }

    fn is_over(&self, member: &Member, now: Timestamp) -> bool {
        let margin = match planted!(NodesTakeWithoutMargin) {
            true => Duration::ZERO,
            false => self.config.margin,
        };
        member.expires + margin <= now
    }

    fn field<'a>(&self, view: &'a View) -> Field<'a> {
        let all = view.members.iter().map(|member| (member.node.id, member));
        let members: BTreeMap<_, _> = all
            .filter(|(_, member)| !self.is_over(member, view.now))
            .collect();
        let stays = |member: &&&Member| {
            let drains = member.is_draining && !planted!(NodesGiveToDraining);
            !(drains || self.leaves && member.node.id == self.me)
        };
        let eligible: Vec<_> = members.values().filter(stays).copied().collect();
        let placed = match eligible[..] {
            [] if planted!(NodesAllDrain) => BTreeMap::new(),
            // Somebody has to have the shards.
            [] => place(
                &members.values().copied().collect::<Vec<_>>(),
                &view.holdings,
            ),
            _ => place(&eligible, &view.holdings),
        };
        Field {
            view,
            eligible: eligible.iter().map(|member| member.node.id).collect(),
            members,
            placed,
        }
    }

    /// What works here and is another's, or was in between. The scheduler of a shard without work would not
    /// hear of it, and does not know the timers that were set meanwhile.
    fn ends(&self, looked: Looked, view: &View, here: &BTreeMap<Shard, Standing>) -> Vec<Action> {
        let is_stale = |holding: &&Holding| match here.get(&holding.shard) {
            None => false,
            _ if holding.owner != Some(self.me) => !planted!(NodesKeepOthers),
            Some(Standing::Works(fence)) => *fence != holding.fence && !planted!(NodesKeepReturned),
            Some(_) => false,
        };
        let stale = view.holdings.iter().filter(is_stale);
        let stale = stale.filter(|holding| !self.is_outdated(holding.shard, looked.sent));
        let end = |holding: &Holding| Action::End {
            shard: holding.shard,
        };
        stale.map(end).collect()
    }

    fn takes(
        &mut self,
        looked: Looked,
        field: &Field<'_>,
        here: &BTreeMap<Shard, Standing>,
    ) -> Vec<Action> {
        let mut takes = Vec::new();
        for holding in &field.view.holdings {
            let shard = holding.shard;
            let lives = holding
                .owner
                .is_some_and(|owner| field.members.contains_key(&owner));
            let known = self.known(shard);
            match lives {
                true => known.vacant = None,
                false => _ = known.vacant.get_or_insert(looked.came),
            }
            let works = here.get(&shard).is_some_and(|it| *it != Standing::Ended);
            if works || self.leaves || self.is_outdated(shard, looked.sent) {
                continue;
            }
            if let Some(take) = self.take(looked, field, holding) {
                let since = field.over_since(holding);
                takes.push((take.1, since, take.0));
            }
        }
        takes.sort_by_key(|(why, since, action)| (*why, *since, action.shard()));
        takes.into_iter().map(|(_, _, action)| action).collect()
    }

    /// Whether this node takes a shard that is not at work here, and why.
    fn take(
        &mut self,
        looked: Looked,
        field: &Field<'_>,
        holding: &Holding,
    ) -> Option<(Action, Why)> {
        let shard = holding.shard;
        let known = *self.known(shard);
        let pauses = known.pause.is_some_and(|until| looked.came < until);
        let is_alone = field.members.len() == 1;
        let why = match holding.owner {
            Some(owner) if owner == self.me => Why::Given,
            Some(owner) if field.members.contains_key(&owner) => return None,
            Some(_) if !self.is_steady(looked.came) => return None,
            Some(_) => Why::Overdue,
            None => Why::Free,
        };
        if why == Why::Given && known.failures >= TRIES && !is_alone && !planted!(NodesKeepUntaken)
        {
            return (!pauses).then_some((Action::LetGo { shard }, why));
        }
        if pauses && !(is_alone && known.failures == 0) {
            return None;
        }
        let is_placed = field.placed.get(&shard) == Some(&self.me);
        let waited = known.vacant.is_some_and(|since| {
            looked.came - since >= self.config.patience && !planted!(NodesNobodyElse)
        });
        let stays = field.eligible.contains(&self.me);
        let is_mine = why == Why::Given || is_placed || waited && stays;
        is_mine.then_some((Action::Take { shard, why }, why))
    }

    fn hand_overs(
        &mut self,
        looked: Looked,
        field: &Field<'_>,
        here: &BTreeMap<Shard, Standing>,
    ) -> Vec<Action> {
        let is_giving = |known: &&Known| matches!(known.doing, Some(Action::HandOver { .. }));
        let giving = self.shards.values().filter(is_giving).count();
        let room = match planted!(NodesHandOverAll) {
            true => usize::MAX,
            false => self.config.at_once.saturating_sub(giving),
        };
        let drains = field.members.get(&self.me).is_some_and(|me| me.is_draining);
        self.has_to_give = false;
        let mut given = Vec::new();
        for holding in &field.view.holdings {
            let shard = holding.shard;
            let works = here.get(&shard) == Some(&Standing::Works(holding.fence));
            let is_mine = works && holding.owner == Some(self.me);
            let Some(to) = self.target(field, holding).filter(|_| is_mine) else {
                continue;
            };
            let reason = match holding.wanted.as_deref() {
                _ if self.leaves => Reason::Leaves,
                _ if drains => Reason::Drains,
                Some(name) if name == field.members[&to].node.name => Reason::Wanted,
                _ => Reason::Balance,
            };
            self.has_to_give = true;
            let moved = self.known(shard).moved;
            let rests = moved.is_some_and(|at| looked.came - at < self.config.rest);
            let waits = rests && reason >= Reason::Wanted && !planted!(NodesMoveAgain);
            if !waits && given.len() < room && !self.is_outdated(shard, looked.sent) {
                given.push(Action::HandOver { shard, to, reason });
            }
        }
        given
    }

    /// Who is to have a shard of this node in its place.
    fn target(&self, field: &Field<'_>, holding: &Holding) -> Option<NodeId> {
        let to = *field.placed.get(&holding.shard)?;
        let member = field.members.get(&to)?;
        let renews = member.expires >= field.view.now + LEFT_AT_LEAST || planted!(NodesGiveToDying);
        let is_eligible = field.eligible.contains(&to);
        (to != self.me && renews && is_eligible).then_some(to)
    }
}

impl Field<'_> {
    /// Since when the lease of its owner is over.
    fn over_since(&self, holding: &Holding) -> Timestamp {
        let mut members = self.view.members.iter();
        let owner = members.find(|member| Some(member.node.id) == holding.owner);
        owner.map_or(Timestamp::MAX, |owner| owner.expires)
    }
}

impl Known {
    fn is_outdated(&self, sent: Instant) -> bool {
        let is_older = self.ended.is_some_and(|ended| sent <= ended);
        self.doing.is_some() || is_older && !planted!(NodesBelieveOlder)
    }
}
