//! The nodes in the tables, and what this process believes of its own lease.
//!
//! A node believes its lease for [`EARLIER`] less than it lasts, counted by its boot clock from before the
//! renewal was sent. Others take its shards once the lease has been over for [`MARGIN`] by the clock of the
//! server. In between nothing starts, and nobody has taken anything.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use countwheel_cluster::{Node, NodeId, Registry, RegistryError, View};
use countwheel_durable::store::{Fence, Lease, Shard};
use countwheel_time::{Clock, Instant};
use parking_lot::Mutex;

use crate::bits::Bits;
use crate::keeper::{Keeper, OwnedShards};
use crate::planted::planted;
use crate::session::{Blocker, Failure, Registered, Session, TakenOver, Wished};
use crate::store::Owned;

/// So long a lease has to be over, by the clock of the server, until another node takes what it was for.
pub(crate) const MARGIN: Duration = Duration::from_millis(250);
/// So much earlier than it ends a node stops to believe its lease.
const EARLIER: Duration = Duration::from_millis(500);
/// No lease lasts longer: one that ends later is wrong, and is cut down to this.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(60);
/// A node without shards is removed once its lease has been over for so long.
pub(crate) const GONE_AFTER: Duration = Duration::from_secs(3_600);
/// How long a statement about nodes waits for a lock.
pub(crate) const LOCK_WITHIN: Duration = Duration::from_secs(2);
/// How long an exchange about nodes may take.
pub(crate) const EXCHANGE_WITHIN: Duration = Duration::from_secs(3);

/// A server that does not say for so long whether a lease is renewed is away.
const UNANSWERED: Duration = Duration::from_secs(1);

/// Why nothing is done while the lease is not believed.
pub(crate) const IS_OVER: &str = "the lease of this node is over";

pub(crate) fn bits(node: NodeId) -> Bits {
    Bits(node.0.to_be_bytes())
}

pub(crate) fn id(bits: Bits) -> NodeId {
    NodeId(u128::from_be_bytes(bits.0))
}

/// Ownerships of this process that have ended.
#[derive(Default)]
pub(crate) struct Ended {
    /// Up to which fence.
    fences: Mutex<HashMap<Shard, Fence>>,
    /// Their last acknowledged turns, to be looked for.
    pub(crate) doubted: Mutex<Vec<(Shard, Bits, i64)>>,
}

impl Ended {
    /// An ownership ends. A failover may have lost what it acknowledged and made somebody else the owner,
    /// before the next commit could notice.
    pub(crate) fn doubt(&self, shard: Shard, owned: &Owned) {
        let told = owned.told.swap(0, Ordering::Relaxed);
        if told > 0 {
            self.doubted.lock().push((shard, owned.token, told));
        }
    }

    /// The shard is not this process's any more.
    pub(crate) fn end(&self, all: &OwnedShards, shard: Shard, owned: &Arc<Owned>) {
        let mut fences = self.fences.lock();
        let last = fences.entry(shard).or_insert(owned.fence);
        *last = owned.fence.max(*last);
        drop(fences);
        self.doubt(shard, owned);
        let mut all = all.write();
        if all.get(&shard).is_some_and(|now| Arc::ptr_eq(now, owned)) {
            all.remove(&shard);
        }
    }

    pub(crate) fn has(&self, lease: Lease) -> bool {
        let fences = self.fences.lock();
        let last = fences.get(&lease.shard);
        last.is_some_and(|last| lease.fence <= *last)
    }
}

/// Shards that were taken for this process, and are to be acquired under these tokens.
pub(crate) type AtHand = Arc<Mutex<HashMap<Shard, Prepared>>>;

#[derive(Clone, Copy)]
pub(crate) struct Prepared {
    pub(crate) token: Bits,
    /// The standby may not have it, or the answer was lost.
    pub(crate) unproved: bool,
}

/// Draws what cannot be guessed.
pub(crate) type Tokens = Arc<dyn Fn() -> Result<Bits, getrandom::Error> + Send + Sync>;

/// What this process knows of its own node.
pub(crate) struct Standing {
    clock: Arc<dyn Clock>,
    own: Mutex<Option<Own>>,
    asking: Mutex<Asking>,
}

/// Whether the server answers what is asked about nodes.
#[derive(Clone, Copy, Default)]
enum Asking {
    #[default]
    Answered,
    /// No answer yet to what was asked at that time.
    Since(Instant),
    Failed,
}

/// The node that has joined, or is about to.
#[derive(Clone, Copy)]
struct Own {
    id: NodeId,
    /// How long its lease lasts.
    lease: Duration,
    /// Until when it believes the lease, by the boot clock.
    until: Option<Instant>,
    /// How often it was not sure of it. What is taken in one term is not looked at in the next.
    term: u64,
    /// It was told to leave, which may come to be at any time from then on.
    has_left: bool,
}

/// In which term a shard is taken, by whom.
#[derive(Clone, Copy)]
pub(crate) struct Term {
    pub(crate) node: NodeId,
    number: u64,
}

impl Standing {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            own: Mutex::default(),
            asking: Mutex::default(),
        }
    }

    /// Whether shards are taken by a lease.
    pub(crate) fn has_joined(&self) -> bool {
        self.own.lock().is_some()
    }

    /// Whether attempts may leave, as far as the lease goes: also where none was asked for.
    pub(crate) fn is_believed(&self) -> bool {
        let own = self.own.lock();
        own.as_ref().is_none_or(|own| self.believes(own))
    }

    /// Whether the lease is over, or about to be, since the server is away. Else this process was stopped.
    pub(crate) fn is_cut_off(&self) -> bool {
        let is_away = match *self.asking.lock() {
            Asking::Answered => false,
            Asking::Since(asked) => self.clock.now().saturating_since(asked) > UNANSWERED,
            Asking::Failed => true,
        };
        is_away && !self.is_believed()
    }

    /// Asks the server, and notes whether it answers.
    fn asks<T>(&self, ask: impl FnOnce() -> Result<T, Failure>) -> Result<T, RegistryError> {
        {
            let mut asking = self.asking.lock();
            if let Asking::Answered = *asking {
                *asking = Asking::Since(self.clock.now());
            }
        }
        let answer = ask();
        *self.asking.lock() = match answer {
            Err(Failure::Away(_) | Failure::Broken(_)) => Asking::Failed,
            Ok(_) | Err(_) => Asking::Answered,
        };
        answer.map_err(unavailable)
    }

    fn believes(&self, own: &Own) -> bool {
        let now = match planted!(PostgresLeaseAwake) {
            true => self.clock.now(),
            false => self.clock.boot(),
        };
        own.until.is_some_and(|until| now < until)
    }

    /// In which term it believes its lease, if it does.
    pub(crate) fn term(&self) -> Option<Term> {
        let own = self.own.lock();
        let own = own.as_ref().filter(|own| self.believes(own))?;
        Some(Term {
            node: own.id,
            number: own.term,
        })
    }

    /// Whether a shard that was taken in the term is believed to be owned as long as the lease is.
    pub(crate) fn goes_on(&self, term: Term) -> bool {
        let own = self.own.lock();
        let goes_on = own.is_some_and(|own| (own.id, own.term) == (term.node, term.number));
        goes_on || planted!(PostgresTermPassed)
    }

    fn own(&self) -> Result<Own, RegistryError> {
        (*self.own.lock()).ok_or(RegistryError::NotJoined)
    }

    /// The node, if it has not left.
    fn present(&self) -> Result<Own, RegistryError> {
        let own = self.own()?;
        match own.has_left && !planted!(PostgresGoesOnAfterLeaving) {
            true => Err(RegistryError::NotJoined),
            false => Ok(own),
        }
    }

    /// Before a lease is asked for: nothing is believed until the answer is there. A node that has left does not
    /// come back as the same.
    fn begin(&self, id: NodeId, lease: Duration) -> Result<(), RegistryError> {
        let mut own = self.own.lock();
        let has_left = own.is_some_and(|own| own.id == id && own.has_left);
        if has_left && !planted!(PostgresGoesOnAfterLeaving) {
            return Err(RegistryError::NotJoined);
        }
        let term = own.map_or(0, |own| own.term);
        *own = Some(Own {
            id,
            lease,
            until: None,
            term: term + 1,
            has_left: false,
        });
        Ok(())
    }

    /// The node leaves: nothing is believed any more.
    fn leave(&self) {
        if let Some(own) = &mut *self.own.lock() {
            own.until = None;
            own.has_left = true;
        }
    }

    /// The lease was over: another term begins, in which nothing is believed yet.
    fn begin_term(&self) {
        if let Some(own) = &mut *self.own.lock() {
            own.until = None;
            own.term += 1;
        }
    }

    /// The lease is believed no more.
    fn give_up(&self) {
        if let Some(own) = &mut *self.own.lock() {
            own.until = None;
        }
    }

    /// Believes the lease that was asked for at that time.
    fn believe(&self, sent: Instant) {
        if let Some(own) = &mut *self.own.lock() {
            own.until = Some(self.ends(own, sent));
        }
    }

    /// The same of a renewal, unless the lease was over meanwhile. Says whether it was not.
    fn go_on(&self, sent: Instant) -> bool {
        let mut own = self.own.lock();
        let Some(own) = &mut *own else {
            return false;
        };
        let is_in_time = self.believes(own);
        if is_in_time || planted!(PostgresLateIsBelieved) {
            own.until = Some(self.ends(own, sent));
            return true;
        }
        false
    }

    /// Until when a lease is believed that was asked for at that time.
    fn ends(&self, own: &Own, sent: Instant) -> Instant {
        let lease = own.lease.saturating_sub(EARLIER);
        if planted!(PostgresLeaseFromAnswer) {
            return self.clock.boot() + lease;
        }
        if planted!(PostgresLeaseAwake) {
            return self.clock.now() + lease;
        }
        sent + lease
    }
}

/// Where the nodes and the owners of shards are written down: in the tables of the store. Clones are the same.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use countwheel_cluster::{Node, NodeId, Registry};
/// use countwheel_durable::Shards;
/// use countwheel_durable::store::{Shard, Store};
/// use countwheel_postgres::PostgresStore;
/// use countwheel_postgres::testing::SimulatedPostgres;
/// use countwheel_time::ManualClock;
///
/// let (clock, lease) = (ManualClock::new(), Duration::from_secs(5));
/// let server = SimulatedPostgres::new(Shards::ONE, 7, drop);
/// let store = PostgresStore::on_simulated(&server, 1, Arc::new(clock.clone()), lease);
/// let node = Node {
///     id: NodeId(1),
///     name: "a".to_owned(),
///     api: "http://10.0.0.1:7700".to_owned(),
///     peers: None,
///     weight: 100,
///     version: "0.1.0".to_owned(),
///     zones: "2026a".to_owned(),
/// };
/// let registry = store.registry();
/// assert_eq!(registry.join(&node, lease)?.members[0].node, node);
/// let taken = store.acquire(Shard::ONLY)?.lease;
/// assert!(store.may_start(taken));
///
/// clock.advance(lease);
/// assert!(!store.may_start(taken));
/// registry.look(true)?;
/// assert!(store.may_start(taken)); // nobody took it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PostgresRegistry(Arc<Inner>);

struct Inner {
    standing: Arc<Standing>,
    owned: OwnedShards,
    ended: Arc<Ended>,
    keeper: Arc<Keeper>,
    clock: Arc<dyn Clock>,
    tokens: Tokens,
    at_hand: AtHand,
    /// Nothing on it waits for anything but other nodes that judge this one.
    beats: Mutex<Box<dyn Session>>,
    /// What is done on it may wait for commits.
    commands: Mutex<Box<dyn Session>>,
    /// Waits for locks that somebody holds. It has a connection only meanwhile.
    waits: Mutex<Box<dyn Session>>,
}

impl std::fmt::Debug for PostgresRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresRegistry").finish_non_exhaustive()
    }
}

impl PostgresRegistry {
    pub(crate) fn new(
        standing: Arc<Standing>,
        (owned, ended): (OwnedShards, Arc<Ended>),
        (tokens, at_hand): (Tokens, AtHand),
        keeper: Arc<Keeper>,
        [beats, commands, waits]: [Box<dyn Session>; 3],
    ) -> Self {
        Self(Arc::new(Inner {
            clock: Arc::clone(&standing.clock),
            standing,
            owned,
            ended,
            keeper,
            tokens,
            at_hand,
            beats: Mutex::new(beats),
            commands: Mutex::new(commands),
            waits: Mutex::new(waits),
        }))
    }

    /// Reads everything, also for a process that has not joined.
    ///
    /// # Errors
    /// [`RegistryError::Unavailable`].
    pub fn view(&self) -> Result<View, RegistryError> {
        let id = self.0.standing.own().map_or(NodeId(0), |own| own.id);
        let seen = self.0.commands.lock().view(id);
        Ok(seen.map_err(unavailable)?.view)
    }
}

impl Inner {
    /// Ends ownerships that others have ended. What was read before an ownership began says nothing of it.
    fn compare(&self, seen: &Registered) {
        let owned: Vec<_> = {
            let owned = self.owned.read();
            let owned = owned.iter();
            owned
                .map(|(shard, owned)| (*shard, Arc::clone(owned)))
                .collect()
        };
        for (shard, owned) in owned {
            let mut all = seen.view.holdings.iter().zip(&seen.tokens);
            let Some((holding, token)) = all.find(|(holding, _)| holding.shard == shard) else {
                continue;
            };
            let is_gone = holding.fence > owned.fence
                || holding.fence == owned.fence && *token != Some(owned.token);
            if is_gone {
                self.ended.end(&self.owned, shard, &owned);
            }
        }
    }

    /// A token for a shard that is about to be taken. What this process had of it ends: whatever becomes of the
    /// taking, nothing starts under what was before it.
    fn prepare(&self, shard: Shard) -> Result<Bits, RegistryError> {
        let token = (self.tokens)().map_err(|error| away(&error.to_string()))?;
        let owned = self.owned.read().get(&shard).cloned();
        if let Some(owned) = owned {
            self.ended.end(&self.owned, shard, &owned);
        }
        let prepared = Prepared {
            token,
            unproved: true,
        };
        self.at_hand.lock().insert(shard, prepared);
        Ok(token)
    }

    /// The shard was taken under the token that was prepared.
    fn taken(&self, shard: Shard, unproved: bool) {
        if let Some(prepared) = self.at_hand.lock().get_mut(&shard) {
            prepared.unproved = unproved;
        }
    }

    fn end_all(&self) {
        let owned = self.owned.read().clone();
        for (shard, owned) in &owned {
            self.ended.end(&self.owned, *shard, owned);
        }
    }

    /// What was read, unless it says that the lease is gone.
    fn seen(&self, seen: Registered) -> Result<View, RegistryError> {
        if !seen.is_joined {
            self.standing.give_up();
            return Err(RegistryError::NotJoined);
        }
        if !planted!(PostgresLateIsBelieved) {
            self.compare(&seen);
        }
        Ok(seen.view)
    }
}

impl Inner {
    /// Gives a shard away that this node was given, and has not taken or could not load.
    fn give_untaken(&self, shard: Shard, to: Option<NodeId>) -> Result<bool, RegistryError> {
        let own = self.standing.present()?;
        let mut session = self.commands.lock();
        let row = session.owner(shard).map_err(unavailable)?;
        let row = row.ok_or(RegistryError::NoSuchShard { shard })?;
        if row.node != Some(bits(own.id)) {
            return Ok(false);
        }
        self.at_hand.lock().remove(&shard);
        let given = session.give(shard, (row.fence, row.token), to);
        let given = given.map_err(unavailable)?;
        match given.unreplicated {
            true => Err(away(NOT_REPLICATED)),
            false => Ok(given.is_given),
        }
    }

    fn take_held(
        &self,
        session: &mut dyn Session,
        shard: Shard,
        node: NodeId,
    ) -> Result<(), RegistryError> {
        let row = session.owner(shard).map_err(unavailable)?;
        let row = row.ok_or(RegistryError::NoSuchShard { shard })?;
        let token = self.prepare(shard)?;
        let (taken, blockers) = session.take_held(shard, row.fence, token, node);
        for blocker in &blockers {
            let (number, is_ended) = (shard.0, blocker.is_ended);
            tracing::warn!(shard = number, %blocker, is_ended, "a session held the row of a shard");
        }
        let reason = match taken {
            Ok(TakenOver::Taken(taken)) => {
                self.taken(shard, taken.unreplicated);
                return Ok(());
            }
            Ok(TakenOver::Moved) => "others take the shard".to_owned(),
            Ok(TakenOver::Held(owner)) => is_held_by(shard, &owner),
            Err(Failure::Refused(refusal)) if refusal.has_no_lock() => held(shard, &blockers),
            Err(failure) => failure.reason(),
        };
        Err(away(&reason))
    }
}

/// Why a shard is not taken whose owner lives.
pub(crate) fn is_held_by(shard: Shard, owner: &str) -> String {
    let number = shard.0;
    format!("shard {number} is of node {owner}, whose lease is not over")
}

/// Why one is not taken whose row is held.
fn held(shard: Shard, blockers: &[Blocker]) -> String {
    let number = shard.0;
    let blockers = blockers.iter().filter(|it| !it.is_ended);
    let holders: Vec<_> = blockers.map(ToString::to_string).collect();
    match holders.is_empty() {
        true => format!("somebody holds the row of shard {number}"),
        false => format!(
            "the row of shard {number} is held by {}",
            holders.join(", ")
        ),
    }
}

impl Registry for PostgresRegistry {
    fn join(&self, node: &Node, lease: Duration) -> Result<View, RegistryError> {
        let this = &*self.0;
        let mut session = this.beats.lock();
        this.standing.begin(node.id, lease)?;
        // Whose row is gone has no lease that anybody waits for.
        if !planted!(PostgresRejoinKeeps) {
            this.end_all();
        }
        let sent = this.clock.boot();
        let standing = &this.standing;
        let joined = standing.asks(|| session.join(node, micros(lease)))?;
        if joined.is_joined && !joined.unreplicated {
            this.standing.believe(sent);
            return Ok(joined.view);
        }
        if joined.is_joined {
            return Err(away(NOT_REPLICATED));
        }
        // Who has the name may have come since that statement began.
        let seen = session.view(node.id).map_err(unavailable)?;
        let mut members = seen.view.members.into_iter();
        match members.find(|member| member.node.name == node.name) {
            Some(member) if member.node.id != node.id => Err(RegistryError::NameTaken {
                name: member.node.name,
                api: member.node.api,
            }),
            _ => Err(away("another node of that name has just left")),
        }
    }

    fn look(&self, renew: bool) -> Result<View, RegistryError> {
        let this = &*self.0;
        let mut session = this.beats.lock();
        let own = this.standing.present()?;
        if !renew {
            let seen = this.standing.asks(|| session.view(own.id))?;
            return this.seen(seen);
        }
        let sent = this.clock.boot();
        let lease = micros(own.lease);
        let renewed = this.standing.asks(|| session.renew(own.id, lease))?;
        if !renewed.is_joined || renewed.unreplicated || this.standing.go_on(sent) {
            return this.seen(renewed);
        }
        // The lease was over, and others may have taken what was this node's: before the renewal, so a later
        // statement sees it.
        this.standing.begin_term();
        let seen = this.standing.asks(|| session.view(own.id))?;
        let view = this.seen(seen)?;
        this.standing.believe(sent);
        Ok(view)
    }

    fn take(&self, shards: &[Shard]) -> Result<Vec<Shard>, RegistryError> {
        let this = &*self.0;
        let own = this.standing.present()?;
        if this.standing.term().is_none() {
            return Err(away(IS_OVER));
        }
        let mut session = this.commands.lock();
        let seen = session.view(own.id).map_err(unavailable)?;
        if !seen.is_joined {
            return Err(RegistryError::NotJoined);
        }
        let holdings = seen.view.holdings.iter();
        let wanted = holdings.filter(|holding| shards.contains(&holding.shard));
        let takes = wanted.map(|it| Ok((it.shard, it.fence, this.prepare(it.shard)?)));
        let takes = takes.collect::<Result<Vec<_>, RegistryError>>()?;
        let taken = session.take_at_once(&takes, own.id).map_err(unavailable)?;
        for shard in &taken.shards {
            this.taken(*shard, taken.unreplicated);
        }
        Ok(taken.shards)
    }

    fn take_held(&self, shard: Shard) -> Result<(), RegistryError> {
        let this = &*self.0;
        let own = this.standing.present()?;
        let mut session = this.waits.lock();
        let taken = this.take_held(&mut **session, shard, own.id);
        session.rest();
        taken
    }

    fn give(&self, shard: Shard, to: Option<NodeId>) -> Result<bool, RegistryError> {
        let this = &*self.0;
        let known = this.owned.read().get(&shard).cloned();
        let Some(owned) = known else {
            return this.give_untaken(shard, to);
        };
        // The next owner counts nothing anew.
        this.keeper.save();
        owned.is_given.store(true, Ordering::SeqCst);
        let given = this
            .commands
            .lock()
            .give(shard, (owned.fence, Some(owned.token)), to);
        match given {
            // Nothing was done.
            Err(failure @ (Failure::Away(_) | Failure::Refused(_) | Failure::Unwritable(_))) => {
                owned.is_given.store(false, Ordering::SeqCst);
                Err(unavailable(failure))
            }
            given => {
                this.ended.end(&this.owned, shard, &owned);
                let given = given.map_err(unavailable)?;
                match given.unreplicated {
                    true => Err(away(NOT_REPLICATED)),
                    false => Ok(given.is_given),
                }
            }
        }
    }

    fn mark_draining(&self, name: &str, is_draining: bool) -> Result<(), RegistryError> {
        let marked = self.0.commands.lock().mark_draining(name, is_draining);
        match marked.map_err(unavailable)? {
            true => Ok(()),
            false => Err(no_such_node(name)),
        }
    }

    fn want(&self, shard: Option<Shard>, node: Option<&str>) -> Result<(), RegistryError> {
        let wished = self.0.commands.lock().want(shard, node);
        match (wished.map_err(unavailable)?, shard) {
            (Wished::NoSuchShard, Some(shard)) => Err(RegistryError::NoSuchShard { shard }),
            (Wished::NoSuchNode, _) => Err(no_such_node(node.unwrap_or_default())),
            (Wished::Noted | Wished::NoSuchShard, _) => Ok(()),
        }
    }

    fn leave(&self) -> Result<(), RegistryError> {
        let this = &*self.0;
        let Ok(own) = this.standing.own() else {
            return Ok(());
        };
        this.keeper.save();
        // Before it is sent: the next owner may come before the answer.
        this.standing.leave();
        let mut session = this.beats.lock();
        session.leave(own.id).map_err(unavailable)?;
        this.end_all();
        Ok(())
    }
}

const NOT_REPLICATED: &str = "the standby may not have it";

fn micros(lease: Duration) -> i64 {
    i64::try_from(lease.as_micros()).unwrap_or(i64::MAX)
}

fn away(reason: &str) -> RegistryError {
    let reason = reason.to_owned();
    RegistryError::Unavailable { reason }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn unavailable(failure: Failure) -> RegistryError {
    away(&failure.reason())
}

fn no_such_node(name: &str) -> RegistryError {
    let name = name.to_owned();
    RegistryError::NoSuchNode { name }
}
