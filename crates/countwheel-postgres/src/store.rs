//! The store: who owns what in this process, and how a commit becomes certain.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use countwheel_cluster::NodeId;
use countwheel_durable::store::{
    Before, Change, Commit, DuePage, DueScan, Durability, Fence, Filter, Found, Lease, Ownership,
    Page, QueueCounts, Shard, Store, StoreError,
};
use countwheel_durable::{
    Record, Revision, Settings, SettingsVersion, Shards, StateKind, TimerName, Trouble,
    TroubleReason,
};
use countwheel_time::{Clock, Instant, SystemClock, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::bits::Bits;
use crate::commit::{Held, Turn};
use crate::counts::Counts;
use crate::front::{Fronts, Lows, Sizes};
use crate::hash::NameHash;
use crate::keeper::{Keeper, KeeperThread, OwnedShards};
use crate::link::{Link, Route};
use crate::migrate::{self, Planned};
use crate::planted::planted;
use crate::read::{self, unanswered};
use crate::registry::{
    self, AtHand, Ended, IS_OVER, PostgresRegistry, Prepared, Standing, Term, Tokens,
};
use crate::restored::{self, Restored};
use crate::ring::Ring;
use crate::rows::Misnamed;
use crate::schema::{self, Cluster, FIRST_TIMELINE, LEFT_OUT, SchemaName};
use crate::server::PostgresServer;
use crate::session::{Entry, Failure, Kind, Reach, Session, Taken, TakenOver};
use crate::snapshots::Snapshots;
use crate::sql::{SqlSession, Statements};
use crate::{PostgresError, PostgresOptions, checks, tls};

/// So many changes one statement makes at the most, but for one turn that has more.
const CHANGES_MAX: usize = 256;
/// So many bytes of payloads one statement has at the most, but for one turn that has more.
const BYTES_MAX: usize = 4 << 20;
/// After so many turns those before the last [`TURNS_KEPT`] are deleted.
const PRUNED_EVERY: i64 = 1_000;
const TURNS_KEPT: i64 = 64;
/// So often a shard is tried to be taken while others take it.
const TAKINGS_MAX: u32 = 8;
/// Why what waits is stuck, before the server says more.
const NOT_YET: &str = "no answer yet";
/// A commit that waits for longer is stuck.
const MOMENT: Duration = Duration::from_secs(1);
/// How long the server may take to say that it is there.
const PROBE_WITHIN: Duration = Duration::from_secs(2);
/// A shard with more timers than this is counted while it is at work.
const COUNTED_AT_ONCE: usize = 100_000;
/// So many steps the keeper does after a commit if it has no thread.
const KEEPER_STEPS: usize = 63;
/// The connections of a store beside those that commit and read: one asks whether the server is there, one is the
/// keeper's, two are about nodes.
const OTHERS: usize = 4;
/// Between two tries of a commit.
const PAUSE: Duration = Duration::from_millis(50);

/// Keeps timers in the tables of a PostgreSQL.
///
/// Each shard has one owner, whose token every commit names in the statement that writes: the server
/// refuses everybody else's. A commit whose answer is lost is sent again, and the row of its turn says
/// whether it was done.
pub struct PostgresStore {
    node: Bits,
    cluster: Cluster,
    lanes: Vec<Lane>,
    readers: Readers,
    /// Asks whether the server is there, and gives up soon.
    probe: Mutex<Box<dyn Session>>,
    owned: OwnedShards,
    keeper: Arc<Keeper>,
    /// None if the keeper works between commits.
    keeper_thread: Option<KeeperThread>,
    ended: Arc<Ended>,
    /// Turns that were acknowledged and are missing.
    losses: Mutex<BTreeSet<(Shard, i64)>>,
    standing: Arc<Standing>,
    registry: PostgresRegistry,
    at_hand: AtHand,
    pub(crate) durability: Option<Durability>,
    /// Rows that were come by and have no name of a timer.
    misnamed: Misnamed,
    /// Who keeps the server from giving room back.
    snapshots: Snapshots,
    server: PostgresServer,
    resolve_within: Duration,
    clock: Arc<dyn Clock>,
    /// So many timers of a shard are counted while it is taken.
    pub(crate) counted_at_once: usize,
    pub(crate) front_sizes: Sizes,
    tokens: Tokens,
}

/// A shard of this process.
pub(crate) struct Owned {
    pub(crate) token: Bits,
    pub(crate) fence: Fence,
    /// It is being given away.
    pub(crate) is_given: AtomicBool,
    /// Held during a commit.
    held: Mutex<Held>,
    pub(crate) counts: Mutex<Counts>,
    /// The last turn whose commit was acknowledged, until somebody looks for it; zero before the first.
    pub(crate) told: AtomicI64,
    pub(crate) fronts: Mutex<Fronts>,
}

/// A connection, and since when it waits.
struct Lane {
    session: Mutex<Box<dyn Session>>,
    /// Since when what is done on it waits for the server, and why.
    waits: Mutex<Option<(Instant, Cow<'static, str>)>>,
}

/// The connections that read.
struct Readers {
    lanes: Vec<Lane>,
    next: AtomicUsize,
}

/// A read, on one of them.
struct Reading<'a> {
    session: MutexGuard<'a, Box<dyn Session>>,
    lane: &'a Lane,
}

impl Readers {
    /// One that is free, if there is one.
    fn one(&self, clock: &dyn Clock) -> Reading<'_> {
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
        let (front, back) = self.lanes.split_at(first);
        let mut lanes = back.iter().chain(front);
        let free = lanes.find_map(|lane| Some((lane.session.try_lock()?, lane)));
        let (session, lane) = free.unwrap_or_else(|| {
            let lane = &self.lanes[first];
            (lane.session.lock(), lane)
        });
        lane.begin(clock);
        Reading { session, lane }
    }

    /// Why a read would wait now: each of them has read for more than a moment, as where somebody has
    /// locked a table.
    fn stuck(&self, clock: &dyn Clock) -> Option<String> {
        let stuck = self.lanes.iter().map(|lane| lane.stuck(clock));
        stuck.collect::<Option<Vec<_>>>()?.pop()
    }
}

impl Deref for Reading<'_> {
    type Target = dyn Session;

    fn deref(&self) -> &Self::Target {
        &**self.session
    }
}

impl DerefMut for Reading<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut **self.session
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        *self.lane.waits.lock() = None;
    }
}

impl Lane {
    fn new(session: Box<dyn Session>) -> Self {
        Self {
            session: Mutex::new(session),
            waits: Mutex::new(None),
        }
    }

    /// It waits for the server from now on, unless it does already.
    fn begin(&self, clock: &dyn Clock) {
        let mut waits = self.waits.lock();
        waits.get_or_insert_with(|| (clock.now(), Cow::Borrowed(NOT_YET)));
    }

    fn note(&self, reason: String) {
        if let Some((_, why)) = &mut *self.waits.lock() {
            *why = Cow::Owned(reason);
        }
    }

    /// Why it has waited for more than a moment.
    fn stuck(&self, clock: &dyn Clock) -> Option<String> {
        let waits = self.waits.lock();
        let (since, reason) = waits.as_ref()?;
        (clock.now().saturating_since(*since) > MOMENT).then(|| reason.to_string())
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("node", &self.node)
            .field("shards", &self.cluster.shards)
            .finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Makes the tables of a cluster of `shards`, in one transaction. The number of shards is for good, and
    /// so is [for how long](PostgresOptions::keep_done) done timers can be kept.
    ///
    /// # Errors
    /// [`PostgresError::Exists`] if the schema has a cluster; any other if the database cannot hold one.
    pub fn make(options: &PostgresOptions, shards: Shards) -> Result<(), PostgresError> {
        let (schema, route) = parsed(options)?;
        let mut link = link(&route, options)?;
        checks::check(&mut link, options)?;
        schema::make(&mut link, &schema, shards, Ring::of(options.keep_done))
    }

    /// Upgrades the tables of an earlier version of this program, step by step, while an owner may be at work.
    /// An upgrade that was interrupted is done again. Says from which version to which.
    ///
    /// # Errors
    /// [`PostgresError::LaterSchema`] if the tables are of a later program; any other if the database cannot be
    /// used, or holds a lock for a minute.
    pub fn upgrade(options: &PostgresOptions) -> Result<(u32, u32), PostgresError> {
        Self::upgrade_as(options, Planned::WHOLE)
    }

    /// The same of so many steps, with the version before the others if that is the mistake.
    ///
    /// # Errors
    /// As [`upgrade`](Self::upgrade); [`PostgresError::System`] if there are more steps.
    #[cfg(feature = "testing")]
    pub fn upgrade_until(
        options: &PostgresOptions,
        steps: usize,
        version_first: bool,
    ) -> Result<(u32, u32), PostgresError> {
        let planned = Planned {
            steps,
            version_first,
        };
        Self::upgrade_as(options, planned)
    }

    fn upgrade_as(
        options: &PostgresOptions,
        planned: Planned,
    ) -> Result<(u32, u32), PostgresError> {
        let (schema, route) = parsed(options)?;
        let mut link = link(&route, options)?;
        checks::check(&mut link, options)?;
        let from = migrate::upgrade(&mut link, &schema, planned)?;
        Ok((from, schema::VERSION))
    }

    /// Opens the store of the cluster in the schema.
    ///
    /// # Errors
    /// [`PostgresError`] says in one line why not. Nothing was changed.
    pub fn open(options: &PostgresOptions) -> Result<Self, PostgresError> {
        Self::open_planted(options, &|right| right)
    }

    /// The same with a mistake in the statements that write.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[cfg(feature = "conformance")]
    pub fn open_with(
        options: &PostgresOptions,
        mistake: crate::conformance::Mistake,
    ) -> Result<Self, PostgresError> {
        Self::open_planted(options, &|right| mistake.planted(&right))
    }

    /// The texts of the statements that find rows by their keys, by what they are called.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[cfg(feature = "testing")]
    pub fn statements(
        options: &PostgresOptions,
    ) -> Result<Vec<(&'static str, String)>, PostgresError> {
        let (schema, route) = parsed(options)?;
        let ring = schema::find(&mut link(&route, options)?, &schema)?.ring;
        Ok(Statements::of(&schema, ring, &|right| right).texts())
    }

    fn open_planted(
        options: &PostgresOptions,
        planted: &dyn Fn(String) -> String,
    ) -> Result<Self, PostgresError> {
        let (schema, route) = parsed(options)?;
        let links = |count: usize| -> Result<Vec<_>, PostgresError> {
            let links = (0..count.max(1)).map(|_| link(&route, options));
            links.collect()
        };
        let (mut lanes, mut readers) = (links(options.lanes)?, links(options.readers)?);
        let (one, other) = (&mut lanes[0], &mut readers[0]);
        let durability = checks::check(one, options)?;
        checks::check_pooler(one, other)?;
        let cluster = schema::find(one, &schema)?;
        schema::must_be_here(one, &schema)?;
        let longest = cluster.ring.longest();
        if options.keep_done > longest {
            return Err(PostgresError::KeptTooLong {
                schema: options.schema.clone(),
                wanted: options.keep_done,
                longest,
            });
        }
        schema::check_rights(one, &schema)?;
        let another = |within| Link::new(route.clone(), within).map_err(|error| system(&error));
        let mut probe = another(options.exchange_within.min(PROBE_WITHIN / 2))?;
        let mut keeper = another(options.exchange_within)?;
        let about_nodes = || {
            let link = another(options.exchange_within.min(registry::EXCHANGE_WITHIN))?;
            Ok::<_, PostgresError>(link.with_lock_within(registry::LOCK_WITHIN))
        };
        let (mut beats, mut commands, waits) = (about_nodes()?, about_nodes()?, about_nodes()?);
        // Before a shard is taken: who takes one and cannot go on has ended the owner before.
        for link in lanes.iter_mut().chain(&mut readers).chain([
            &mut probe,
            &mut keeper,
            &mut beats,
            &mut commands,
        ]) {
            link.open()?;
        }
        let node = match options.node {
            Some(node) => Bits(node.to_be_bytes()),
            None => Bits::random().map_err(|error| system(&error))?,
        };
        let statements = Arc::new(Statements::of(&schema, cluster.ring, planted));
        let session = |link| {
            let session = SqlSession::new(link, Arc::clone(&statements));
            Box::new(session) as Box<dyn Session>
        };
        let lanes = lanes.into_iter().map(session).collect();
        let readers = readers.into_iter().map(session).collect();
        let others = [probe, keeper, beats, commands, waits].map(session);
        let clock = Arc::new(SystemClock::new());
        let of = (cluster, node, Arc::new(Bits::random) as Tokens);
        let mut store = Self::on(of, lanes, readers, others, clock, options.resolve_within);
        store.durability = Some(durability);
        let thread = store.keeper.start().map_err(|error| system(&error))?;
        store.keeper_thread = Some(thread);
        store.snapshots = Snapshots::new(options.snapshots_within);
        store.server.look(&mut *store.reader(), store.clock.now());
        let losses = store.reader().losses()?;
        store.losses.lock().extend(losses);
        Ok(store)
    }

    /// On connections that are open, at least one of each.
    pub(crate) fn on(
        (cluster, node, tokens): (Cluster, Bits, Tokens),
        lanes: Vec<Box<dyn Session>>,
        readers: Vec<Box<dyn Session>>,
        [probe, keeper, beats, commands, waits]: [Box<dyn Session>; 5],
        clock: Arc<dyn Clock>,
        resolve_within: Duration,
    ) -> Self {
        let (owned, ended) = (OwnedShards::default(), Arc::<Ended>::default());
        let keeper = Keeper::new(keeper, Arc::clone(&owned), cluster.ring, Arc::clone(&clock));
        let standing = Arc::new(Standing::new(Arc::clone(&clock)));
        let at_hand = AtHand::default();
        Self {
            registry: PostgresRegistry::new(
                Arc::clone(&standing),
                (Arc::clone(&owned), Arc::clone(&ended)),
                (Arc::clone(&tokens), Arc::clone(&at_hand)),
                Arc::clone(&keeper),
                [beats, commands, waits],
            ),
            keeper,
            keeper_thread: None,
            counted_at_once: COUNTED_AT_ONCE,
            front_sizes: Sizes::USUAL,
            node,
            cluster,
            lanes: lanes.into_iter().map(Lane::new).collect(),
            probe: Mutex::new(probe),
            readers: Readers {
                lanes: readers.into_iter().map(Lane::new).collect(),
                next: AtomicUsize::new(0),
            },
            owned,
            ended,
            losses: Mutex::default(),
            standing,
            at_hand,
            durability: None,
            misnamed: Misnamed::default(),
            snapshots: Snapshots::default(),
            server: PostgresServer::default(),
            resolve_within,
            clock,
            tokens,
        }
    }

    fn reader(&self) -> Reading<'_> {
        self.readers.one(&*self.clock)
    }

    /// Refuses a read where a commit waits for a server that does not answer: the read would wait, too.
    fn may_read(&self, shard: Shard) -> Result<(), StoreError> {
        let lane = &self.lanes[self.lane_of(shard)];
        let stuck = lane.stuck(&*self.clock);
        match stuck.or_else(|| self.readers.stuck(&*self.clock)) {
            Some(reason) => Err(unavailable(&reason)),
            None => Ok(()),
        }
    }

    /// Forgets the losses that were noticed, once somebody has seen to them. Says how many there were.
    ///
    /// # Errors
    /// [`PostgresError`] if the database cannot be used.
    pub fn acknowledge_losses(options: &PostgresOptions) -> Result<u64, PostgresError> {
        let (schema, route) = parsed(options)?;
        let mut link = link(&route, options)?;
        link.open()?;
        schema::find(&mut link, &schema)?;
        let forget = schema.sql(
            "forget_losses",
            "WITH gone AS (DELETE FROM @loss RETURNING shard) SELECT count(*) FROM gone",
        );
        let rows = link.query(&forget, &[])?.rows;
        let count = rows.first().map_or(0, |row| row.get::<_, i64>(0));
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Makes the tables ready that were restored from a backup, while no node works on them: all shards are free,
    /// and their revisions, ids and fences go on far above what was given after the backup. Attempts that ran at its
    /// time are made again under the next number. It may be done twice.
    ///
    /// # Errors
    /// [`PostgresError::NodeLives`] if the lease of a node is not over; [`PostgresError::EarlierSchema`] and
    /// [`PostgresError::LaterSchema`] if the tables are of another version; any other if the database cannot be used.
    pub fn restored(options: &PostgresOptions) -> Result<Restored, PostgresError> {
        let (schema, route) = parsed(options)?;
        restored::restored(link(&route, options)?, &schema, options)
    }

    /// Into how many shards the cluster is divided.
    #[must_use]
    pub fn shards(&self) -> Shards {
        self.cluster.shards
    }

    /// The number that was drawn when the cluster was made.
    #[must_use]
    pub fn cluster_id(&self) -> u64 {
        self.cluster.id
    }

    /// The server that has the tables.
    #[must_use]
    pub fn server(&self) -> PostgresServer {
        self.server.clone()
    }

    /// Where the nodes of the cluster are written down. Until this process
    /// [joins](countwheel_cluster::Registry::join) them, it takes shards from whoever has them.
    #[must_use]
    pub fn registry(&self) -> PostgresRegistry {
        self.registry.clone()
    }

    fn lane_of(&self, shard: Shard) -> usize {
        usize::from(shard.0) % self.lanes.len()
    }

    fn session_of(&self, shard: Shard) -> MutexGuard<'_, Box<dyn Session>> {
        self.lanes[self.lane_of(shard)].session.lock()
    }

    /// Takes the shard under `token`, whoever has it. Says whether the standby may not have the taking.
    fn take(
        &self,
        session: &mut dyn Session,
        shard: Shard,
        token: Bits,
    ) -> Result<Taken, StoreError> {
        for _ in 0..TAKINGS_MAX {
            let row = session.owner(shard).map_err(unanswered)?;
            let row = row.ok_or_else(|| no_such(shard))?;
            if row.token == Some(token) {
                // The answer was lost, and with it a warning if there was one.
                return Ok(Taken {
                    fence: row.fence,
                    unreplicated: true,
                });
            }
            let taken = session.take(shard, row.fence, token, self.node);
            if let Some(taken) = taken.map_err(unanswered)? {
                return Ok(taken);
            }
        }
        let reason = "others take the shard".to_owned();
        Err(StoreError::Unavailable { reason })
    }

    /// In which term of this node's lease shards are taken; `None` if it has not joined.
    fn lease_term(&self) -> Result<Option<Term>, StoreError> {
        match self.standing.term() {
            None if self.standing.has_joined() => Err(unavailable(IS_OVER)),
            term => Ok(term),
        }
    }

    /// Ends this process's ownership of a shard, if it has one.
    fn end(&self, shard: Shard) {
        let owned = self.owned.read().get(&shard).cloned();
        if let Some(owned) = owned {
            self.ended.end(&self.owned, shard, &owned);
        }
    }

    /// Takes the shard for a node, if it is free or its owner's lease is over, and if it was not taken under the
    /// token before.
    fn take_over(
        session: &mut dyn Session,
        shard: Shard,
        Prepared {
            token,
            mut unproved,
        }: Prepared,
        node: NodeId,
    ) -> Result<Taken, StoreError> {
        for _ in 0..TAKINGS_MAX {
            let row = session.owner(shard).map_err(unanswered)?;
            let row = row.ok_or_else(|| no_such(shard))?;
            if row.token == Some(token) {
                return Ok(Taken {
                    fence: row.fence,
                    unreplicated: unproved,
                });
            }
            // The answer may get lost, and with it a warning if there is one.
            unproved = true;
            match session.take_over(shard, row.fence, token, node) {
                Ok(TakenOver::Taken(taken)) => return Ok(taken),
                Ok(TakenOver::Moved) => {}
                Ok(TakenOver::Held(owner)) => {
                    return Err(unavailable(&registry::is_held_by(shard, &owner)));
                }
                Err(Failure::Refused(refusal)) if refusal.has_no_lock() => {
                    return Err(unavailable("somebody holds the row of the shard"));
                }
                Err(failure) => return Err(unanswered(failure)),
            }
        }
        Err(unavailable("others take the shard"))
    }

    /// Commits an empty turn after a taking that the standby may not have: that one proves it. A taking
    /// that a failover can forget would leave two owners.
    fn prove(
        &self,
        session: &mut dyn Session,
        shard: Shard,
        held: &mut Held,
        lows: &Lows,
    ) -> Result<(), StoreError> {
        let made = session.turn(&[empty_after(shard, held, lows.clone())]);
        let made = made.map_err(unanswered)?;
        if made.unreplicated || !made.shards.contains(&shard) {
            return Err(unavailable("the standby may not have the taking"));
        }
        held.pass();
        Ok(())
    }

    /// Whether a standby that takes the server's place has all that was acknowledged.
    fn is_kept(&self) -> bool {
        matches!(
            self.durability,
            Some(Durability::Standby | Durability::Managed)
        )
    }

    /// Goes on in the history of the server that there is now, if it may: where all is that was acknowledged,
    /// takings as well. Elsewhere another owner may have had the shard since, and may be forgotten with what
    /// it gave.
    fn goes_on(&self, held: &mut Held, timeline: i32) -> bool {
        let goes_on = timeline == held.timeline || self.is_kept();
        if goes_on {
            held.timeline = timeline;
        }
        goes_on
    }

    /// Reads where the shard stands, of which this node has the token.
    fn found(
        &self,
        session: &mut dyn Session,
        shard: Shard,
        token: Bits,
        fence: Fence,
    ) -> Result<(Held, Lows), StoreError> {
        let last = session.last_turn(shard).map_err(unanswered)?;
        let last = last.ok_or_else(|| no_such(shard))?;
        // Each promotion since may have forgotten what an owner after the one before had given.
        let (then, now) = (last.timeline.unwrap_or(FIRST_TIMELINE), last.timeline_now);
        let promotions = u64::from(then.cast_unsigned().abs_diff(now.cast_unsigned()));
        let left_out = match planted!(PostgresTimelinePassed) {
            true => 0,
            false => promotions.saturating_mul(LEFT_OUT),
        };
        let held = Held {
            token,
            fence,
            seq: last.seq,
            made_by: last.token,
            revision: Revision(last.revision.0.saturating_add(left_out)),
            clock: last.clock,
            timeline: last.timeline_now,
        };
        Ok((held, last.lows))
    }

    /// Takes the shard into this process.
    fn own(
        &self,
        session: &mut dyn Session,
        shard: Shard,
        (held, lows): (Held, Lows),
    ) -> Result<Arc<Owned>, StoreError> {
        let mut fronts = self.fronts(session, shard, &lows)?;
        let mut counts = self.counted(session, shard, &held)?;
        if planted!(PostgresCountsStay)
            && let Some(before) = self.owned.read().get(&shard)
        {
            counts = before.counts.lock().clone();
        }
        if planted!(PostgresFrontStays)
            && let Some(before) = self.owned.read().get(&shard)
        {
            let lows = before.fronts.lock().lows();
            fronts = self.fronts(session, shard, &lows)?;
        }
        let has_work = !counts.are_exact() || fronts.is_low();
        let owned = Arc::new(Owned {
            token: held.token,
            fence: held.fence,
            is_given: AtomicBool::new(false),
            held: Mutex::new(held),
            counts: Mutex::new(counts),
            told: AtomicI64::new(0),
            fronts: Mutex::new(fronts),
        });
        let before = self.owned.write().insert(shard, Arc::clone(&owned));
        if has_work {
            self.keeper.wake();
        }
        if let Some(before) = before {
            self.ended.doubt(shard, &before);
        }
        Ok(owned)
    }

    /// What is known of the front of a shard after a turn with these marks.
    fn fronts(
        &self,
        session: &mut dyn Session,
        shard: Shard,
        lows: &Lows,
    ) -> Result<Fronts, StoreError> {
        let named = lows.named();
        let places = match named.is_empty() {
            true => Vec::new(),
            false => session.places(shard, &named).map_err(unanswered)?,
        };
        Ok(Fronts::new(lows, &places, self.front_sizes))
    }

    /// The counts of a shard: as they were saved after its last turn, or counted anew, as far as that takes
    /// no long time.
    fn counted(
        &self,
        session: &mut dyn Session,
        shard: Shard,
        held: &Held,
    ) -> Result<Counts, StoreError> {
        let ring = self.cluster.ring;
        let (seq, made_by) = (held.seq, held.made_by);
        let saved = session.saved_counts(shard).map_err(unanswered)?;
        if let Some(counts) = saved.and_then(|bytes| Counts::of_bytes(&bytes, seq, made_by, ring)) {
            return Ok(counts);
        }
        let all = (Bits([0; 16]), Bits([u8::MAX; 16]));
        let limit = self.counted_at_once;
        let some = match session.count(shard, all, limit + 1) {
            Ok(some) => some,
            // From a cold disk, page by page.
            Err(Failure::Refused(refusal)) if refusal.took_too_long() => {
                return Ok(Counts::begun(seq, made_by, ring));
            }
            Err(failure) => return Err(unanswered(failure)),
        };
        let count: u64 = some.by_kind.iter().map(|(.., count)| count).sum();
        Ok(
            match usize::try_from(count).is_ok_and(|count| count <= limit) {
                true => Counts::whole(some, made_by, ring),
                false => Counts::begun(seq, made_by, ring),
            },
        )
    }

    /// Looks for what is doubted. Where no answer comes, the next time is as good.
    fn look_for_doubted(&self, session: &mut dyn Session) {
        let doubted = std::mem::take(&mut *self.ended.doubted.lock());
        for (shard, token, turn) in doubted {
            match is_missing(session, shard, token, turn) {
                Ok(true) => self.lose(session, shard, turn),
                Ok(false) => {}
                Err(_) => self.ended.doubted.lock().push((shard, token, turn)),
            }
        }
    }

    /// An acknowledged turn is missing: says so aloud.
    fn lose(&self, session: &mut dyn Session, shard: Shard, turn: i64) {
        let number = shard.0;
        tracing::error!(
            shard = number,
            turn,
            "the database lost acknowledged commits"
        );
        self.losses.lock().insert((shard, turn));
        if let Err(failure) = session.note_loss(shard, turn) {
            tracing::error!(reason = failure.reason(), "the loss is not written down");
        }
    }

    /// The shard if the lease is that under which this process has it.
    fn owner(&self, session: &mut dyn Session, lease: Lease) -> Result<Arc<Owned>, StoreError> {
        let known = self.owned.read().get(&lease.shard).cloned();
        if let Some(owned) = known {
            return match owned.fence == lease.fence {
                true => Ok(owned),
                false => Err(fenced(lease, owned.fence)),
            };
        }
        // Of the time before this store was opened, under the same number of a node.
        let row = session.owner(lease.shard).map_err(unanswered)?;
        let Some(row) = row else {
            return Err(fenced(lease, Fence(0)));
        };
        match row.token {
            Some(_) if row.fence == lease.fence && self.ended.has(lease) => {
                Err(lost(lease.shard, "this ownership has ended"))
            }
            Some(token) if row.node == Some(self.node) && row.fence == lease.fence => {
                let (mut held, lows) = self.found(session, lease.shard, token, row.fence)?;
                // What was sent before may still be on its way, and would be taken for the next commit.
                self.prove(session, lease.shard, &mut held, &lows)?;
                self.own(session, lease.shard, (held, lows))
            }
            _ => Err(fenced(lease, row.fence)),
        }
    }

    /// Whether nobody has taken the shard since.
    fn still_owns(
        &self,
        session: &mut dyn Session,
        lease: Lease,
        token: Bits,
    ) -> Result<(), StoreError> {
        let row = session.owner(lease.shard).map_err(unanswered)?;
        let row = row.ok_or_else(|| no_such(lease.shard))?;
        match row.token == Some(token) {
            true => Ok(()),
            false => Err(fenced(lease, row.fence)),
        }
    }

    /// As what the names of a turn count before it. Until when a done one is kept, nobody says: it is looked
    /// for.
    fn kinds_before(&self, turn: &Turn<'_>) -> Result<Vec<Option<Kind>>, StoreError> {
        let looked = turn.names.iter().filter(|named| named.may_be_done());
        let hashes: Vec<_> = looked.map(|it| it.hash).collect();
        let mut found = HashMap::new();
        if !hashes.is_empty() {
            let kinds = self.reader().kinds(turn.shard, &hashes);
            found.extend(kinds.map_err(unanswered)?);
        }
        let before = turn.names.iter().map(|named| match named.before {
            Before::Absent => None,
            Before::Present(StateKind::Done) if planted!(PostgresDoneIsNew) => {
                Some(Kind::Done(self.cluster.ring.slice(self.clock.timestamp())))
            }
            Before::Present(kind) | Before::SamePayload(kind) if kind != StateKind::Done => {
                Some(Kind::Not(kind))
            }
            _ => found.get(&named.hash).copied(),
        });
        Ok(before.collect())
    }

    /// Where a read looks for names of a shard.
    fn reach_of(&self, shard: Shard) -> Reach {
        let owned = self.owned.read();
        owned.get(&shard).map_or(Reach::ALL, |owned| Reach {
            token: owned.token,
            slots: owned.counts.lock().slots(),
        })
    }

    /// Done timers are counted that are kept until then or later.
    fn kept_from(&self) -> Timestamp {
        let ring = self.cluster.ring;
        Timestamp::from_micros(ring.slice(self.clock.timestamp()) * ring.micros())
    }

    /// Makes commits of several shards on the lane of the first.
    fn commit_together(&self, commits: &mut [Wanted<'_>]) {
        let Some(first) = commits.first() else {
            return;
        };
        let lane = &self.lanes[self.lane_of(first.lease.shard)];
        let mut session = lane.session.lock();
        let session = &mut **session;
        // In one order, so two threads that hold some wait for each other in no circle.
        commits.sort_by_key(|wanted| wanted.lease.shard);
        let mut owned = Vec::new();
        for wanted in commits.iter_mut() {
            let ready = self.owner(session, wanted.lease).and_then(|owned| {
                let before = self.kinds_before(&wanted.turn)?;
                Ok((owned, before))
            });
            match ready {
                Ok((it, before)) => {
                    wanted.before = before;
                    if wanted.turn.is_empty() {
                        let owns = self.still_owns(session, wanted.lease, it.token);
                        if matches!(owns, Err(StoreError::Fenced { .. })) {
                            self.ended.doubt(wanted.lease.shard, &it);
                        }
                        wanted.result = Some(owns);
                    }
                    owned.push(it);
                }
                Err(error) => {
                    wanted.result = Some(Err(error));
                    owned.push(Arc::new(Owned::default()));
                }
            }
        }
        let mut open: Vec<Open<'_, '_>> = commits
            .iter_mut()
            .zip(&owned)
            .filter(|(wanted, _)| wanted.result.is_none())
            .map(|(wanted, owned)| Open {
                held: owned.held.lock(),
                owned,
                wanted,
            })
            .collect();
        // A later change of a setting is a later one.
        open.sort_by_key(|it| it.wanted.at);
        for it in &open {
            it.owned.fronts.lock().begin(&it.wanted.turn);
        }
        let mut tried = Tried::default();
        self.write(lane, session, &mut open, &mut tried);
        *lane.waits.lock() = None;
        let mut has_work = false;
        for it in &mut open {
            let shard = it.wanted.lease.shard;
            if !matches!(it.wanted.result, Some(Ok(()))) && planted!(PostgresFrontOfRefused) {
                it.owned.fronts.lock().made(&it.wanted.turn);
            }
            let mut fronts = it.owned.fronts.lock();
            fronts.end();
            has_work |= fronts.is_low();
            drop(fronts);
            if !matches!(it.wanted.result, Some(Ok(()))) && planted!(PostgresCountsRefused) {
                it.wanted.made_as = it.held.seq + 1;
                it.count();
            }
            match &it.wanted.result {
                Some(Ok(())) => {
                    it.owned.told.store(it.held.seq, Ordering::Relaxed);
                    it.count();
                    if it.held.seq % PRUNED_EVERY == 0 {
                        let kept = it.held.seq - TURNS_KEPT;
                        // The next time is as good.
                        let _ = session.prune(shard, kept);
                    }
                }
                Some(Err(StoreError::Fenced { .. } | StoreError::Lost { .. })) => {
                    self.ended.end(&self.owned, shard, it.owned);
                }
                Some(Err(_)) | None => {}
            }
        }
        drop(open);
        if has_work {
            self.keeper.wake();
        }
        let mut results = commits.iter().filter_map(|it| it.result.as_ref());
        // A server that has refused an owner answers.
        if results.any(|result| matches!(result, Err(StoreError::Fenced { .. }))) {
            self.look_for_doubted(session);
        }
    }

    /// Writes the turns until each has its result.
    fn write(
        &self,
        lane: &Lane,
        session: &mut dyn Session,
        open: &mut [Open<'_, '_>],
        tried: &mut Tried,
    ) {
        let began = self.clock.now();
        loop {
            let mut left: Vec<&mut Open<'_, '_>> = open
                .iter_mut()
                .filter(|it| it.wanted.result.is_none())
                .collect();
            if left.is_empty() {
                return;
            }
            let entries: Vec<_> = left.iter().map(|it| it.entry()).collect();
            lane.begin(&*self.clock);
            let sent = session.turn(&entries);
            if let Err(failure) = &sent {
                lane.note(failure.reason());
            }
            let waited = self.clock.now().saturating_since(began);
            let is_late = waited >= self.resolve_within;
            match sent {
                Ok(mut made) => {
                    let all = || left.iter().map(|it| it.wanted.lease.shard).collect();
                    if planted!(PostgresBelievesAll) && !made.shards.is_empty() {
                        made.shards = all();
                    }
                    if planted!(PostgresBelievesNone) && made.shards.len() < left.len() {
                        return end_all(&mut left, |lease| fenced(lease, Fence(0)));
                    }
                    let mut unsure = Vec::new();
                    for it in &mut left {
                        let shard = it.wanted.lease.shard;
                        let is_made = made.shards.contains(&shard);
                        if is_made {
                            it.done();
                        }
                        if match is_made {
                            true => made.unreplicated && !planted!(PostgresWarningPassed),
                            false => self.resolve(session, it, is_late),
                        } {
                            unsure.push(shard);
                        }
                    }
                    self.confirm(session, &mut left, unsure);
                }
                Err(Failure::Away(reason)) if !tried.is_uncertain => {
                    end_all(&mut left, |_| unavailable(&reason));
                }
                Err(Failure::Away(reason) | Failure::Broken(reason)) => {
                    let is_first = !tried.is_uncertain;
                    tried.is_uncertain = true;
                    if planted!(PostgresLostIsDone) {
                        left.iter_mut().for_each(|it| it.done());
                        return;
                    }
                    if planted!(PostgresLostIsNotDone) {
                        return end_all(&mut left, |_| unavailable(&reason));
                    }
                    if is_late {
                        end_all(&mut left, |lease| lost(lease.shard, &reason));
                    } else if !is_first {
                        session.pause(PAUSE);
                    }
                }
                Err(failure @ (Failure::Refused(_) | Failure::Unwritable(_))) => {
                    if left.len() > 1 {
                        // One that is refused keeps none of the others out.
                        drop(left);
                        for it in open.iter_mut() {
                            let mut own = *tried;
                            self.write(lane, session, std::slice::from_mut(it), &mut own);
                        }
                        return;
                    }
                    let it = &mut *left[0];
                    // An earlier sending may still run: what it does is known once an empty turn has
                    // its place.
                    if tried.is_uncertain
                        && !planted!(PostgresRefusalIsAll)
                        && !self.take_place(session, it)
                    {
                        if it.wanted.result.is_none() && is_late {
                            let reason = failure.reason();
                            it.wanted.result = Some(Err(lost(it.wanted.lease.shard, &reason)));
                        } else if it.wanted.result.is_none() {
                            session.pause(PAUSE);
                        }
                        continue;
                    }
                    tried.is_uncertain = false;
                    let reason = failure.reason();
                    it.wanted.result = match failure {
                        Failure::Refused(refusal) if refusal.is_full() => {
                            Some(Err(StoreError::Full { reason }))
                        }
                        Failure::Refused(refusal) if refusal.is_passing() && waited > MOMENT => {
                            Some(Err(StoreError::Unavailable { reason }))
                        }
                        Failure::Refused(refusal) if refusal.is_passing() => {
                            session.pause(PAUSE);
                            None
                        }
                        _ => Some(Err(StoreError::Failed { reason })),
                    };
                }
            }
        }
    }

    /// Asks what became of a turn that the statement did not insert. Says whether an earlier sending
    /// did, whose warning was lost with its answer if there was one.
    fn resolve(&self, session: &mut dyn Session, it: &mut Open<'_, '_>, is_late: bool) -> bool {
        let lease = it.wanted.lease;
        let shard = lease.shard;
        let became = match session.became(shard, it.held.token, it.held.seq + 1) {
            Ok(Some(became)) => became,
            Ok(None) => {
                it.wanted.result = Some(Err(fenced(lease, Fence(0))));
                return false;
            }
            Err(failure) => {
                if is_late {
                    it.wanted.result = Some(Err(lost(shard, &failure.reason())));
                } else {
                    session.pause(PAUSE);
                }
                return false;
            }
        };
        if became.writes.is_some() && planted!(PostgresSendsAgain) {
            it.held.pass();
        } else if became.writes == Some(it.wanted.turn.writes())
            || (became.writes.is_some() && planted!(PostgresEmptyIsDone))
        {
            it.done();
        } else if became.writes.is_some() {
            // An empty turn took its place: nothing was done.
            it.held.pass();
            if became.writes != Some(0) {
                // It is of another process that had this token: nobody knows what it changed.
                *it.owned.fronts.lock() = Fronts::new(&Lows::default(), &[], self.front_sizes);
            }
        } else if !became.is_ours {
            it.wanted.result = Some(Err(fenced(lease, became.fence)));
        } else if !became.has_before && planted!(PostgresLossPassed) {
            if let Ok(Some(last)) = session.last_turn(shard) {
                it.held.seq = last.seq;
                it.held.made_by = last.token;
            }
        } else if !became.has_before {
            let turn = it.held.seq;
            self.lose(session, shard, turn);
            it.owned.told.store(0, Ordering::Relaxed);
            let reason = format!("the database lost acknowledged commits: turn {turn} is missing");
            it.wanted.result = Some(Err(lost(shard, &reason)));
        } else if became.timeline != it.held.timeline {
            if self.goes_on(&mut it.held, became.timeline) {
                return false;
            }
            let reason = "a server that may have lost commits took the place of the other";
            it.wanted.result = Some(Err(lost(shard, reason)));
        } else if is_late {
            let reason = "the turn is not made";
            it.wanted.result = Some(Err(lost(shard, reason)));
        } else {
            // It can be sent again.
            session.pause(PAUSE);
        }
        became.writes.is_some() && !planted!(PostgresFoundIsKept)
    }

    /// Puts an empty turn where one stands that may still come. Says whether it stands there now, so
    /// that nothing of the other can come.
    fn take_place(&self, session: &mut dyn Session, it: &mut Open<'_, '_>) -> bool {
        let before = it.held.seq;
        let is_unsure = match session.turn(&[it.empty()]) {
            Ok(made) if !made.shards.is_empty() => {
                it.held.pass();
                made.unreplicated
            }
            _ => self.resolve(session, it, false),
        };
        if is_unsure {
            let shard = it.shard();
            self.confirm(session, &mut [&mut *it], vec![shard]);
        }
        it.held.seq > before && it.wanted.result.is_none()
    }

    /// Commits an empty turn after those of `unsure`, which the standby may not have: that one proves
    /// it. Without that proof the shard is lost: what its owner was told may not be there for the next.
    fn confirm(
        &self,
        session: &mut dyn Session,
        open: &mut [&mut Open<'_, '_>],
        mut unsure: Vec<Shard>,
    ) {
        let began = self.clock.now();
        while !unsure.is_empty() {
            let of_unsure = open.iter().filter(|it| unsure.contains(&it.shard()));
            let empty: Vec<_> = of_unsure.map(|it| it.empty()).collect();
            let sent = session.turn(&empty);
            let is_late = self.clock.now().saturating_since(began) >= self.resolve_within;
            for it in open.iter_mut() {
                let shard = it.shard();
                if !unsure.contains(&shard) {
                    continue;
                }
                let is_proved = match &sent {
                    Ok(made) if made.shards.contains(&shard) => {
                        it.held.pass();
                        Some(!made.unreplicated)
                    }
                    Ok(_) => {
                        match session.became(shard, it.held.token, it.held.seq + 1) {
                            // That was the sending before, and its warning was lost as well.
                            Ok(Some(became)) if became.writes.is_some() => {
                                it.held.pass();
                                None
                            }
                            Ok(Some(became)) if became.is_ours && became.has_before => {
                                let goes_on = self.goes_on(&mut it.held, became.timeline);
                                (!goes_on).then_some(false)
                            }
                            Ok(_) => Some(false),
                            Err(_) => None,
                        }
                    }
                    Err(_) => None,
                };
                if is_proved == Some(false) || is_proved.is_none() && is_late {
                    let reason = "the standby may not have the last commit";
                    it.wanted.result = Some(Err(lost(shard, reason)));
                }
                if is_proved.is_some() || is_late {
                    unsure.retain(|other| *other != shard);
                }
            }
            if !unsure.is_empty() {
                session.pause(PAUSE);
            }
        }
    }
}

/// A commit that is asked for, and its result.
struct Wanted<'a> {
    /// Its place among all that are asked for.
    at: usize,
    lease: Lease,
    turn: Turn<'a>,
    before: Vec<Option<Kind>>,
    /// The number of the turn that has its changes.
    made_as: i64,
    result: Option<Result<(), StoreError>>,
}

impl<'a> Wanted<'a> {
    fn new(at: usize, commit: &Commit<'a>, hash: &NameHash) -> Self {
        Self {
            at,
            lease: commit.lease,
            turn: Turn::of(commit.lease.shard, commit.changes, hash),
            before: Vec::new(),
            made_as: 0,
            result: None,
        }
    }

    /// Whether one statement makes this one, too. The second of one shard waits for the first.
    fn fits(&self, together: &[Self]) -> bool {
        let sum = |of: fn(&Self) -> usize| together.iter().map(of).sum::<usize>() + of(self);
        together.is_empty()
            || (sum(|it| it.turn.names.len()) <= CHANGES_MAX
                && sum(|it| it.turn.bytes) <= BYTES_MAX
                && together.iter().all(|it| it.lease.shard != self.lease.shard))
    }
}

/// The same while its shard is held.
struct Open<'a, 'b> {
    held: MutexGuard<'a, Held>,
    owned: &'a Arc<Owned>,
    wanted: &'a mut Wanted<'b>,
}

impl<'b> Open<'_, 'b> {
    fn shard(&self) -> Shard {
        self.wanted.lease.shard
    }

    /// What the statement makes of the shard.
    fn entry(&self) -> Entry<'_, 'b> {
        Entry {
            shard: self.wanted.lease.shard,
            turn: Some(&self.wanted.turn),
            after: self.wanted.turn.after(&self.held),
            lows: self.owned.fronts.lock().lows_after(&self.wanted.turn),
        }
    }

    /// A turn that changes nothing, after the last.
    fn empty(&self) -> Entry<'static, 'static> {
        empty_after(
            self.wanted.lease.shard,
            &self.held,
            self.owned.fronts.lock().lows(),
        )
    }

    /// Counts what the turn has changed.
    fn count(&self) {
        let wanted = &*self.wanted;
        let mut counts = self.owned.counts.lock();
        counts.change(&wanted.turn, &wanted.before, wanted.made_as);
        (counts.seq, counts.made_by) = (self.held.seq, self.held.made_by);
    }

    /// The turn is there.
    fn done(&mut self) {
        *self.held = self.wanted.turn.after(&self.held);
        self.owned.fronts.lock().made(&self.wanted.turn);
        self.wanted.made_as = self.held.seq;
        self.wanted.result = Some(Ok(()));
    }
}

/// A turn that changes nothing, after the last.
fn empty_after(shard: Shard, held: &Held, lows: Lows) -> Entry<'static, 'static> {
    Entry {
        shard,
        turn: None,
        after: Held {
            seq: held.seq + 1,
            made_by: Some(held.token),
            ..*held
        },
        lows,
    }
}

/// Ends all that have no result yet.
fn end_all(left: &mut [&mut Open<'_, '_>], error: impl Fn(Lease) -> StoreError) {
    for it in left {
        it.wanted.result = Some(Err(error(it.wanted.lease)));
    }
}

/// What is known of the sendings before.
#[derive(Clone, Copy, Default)]
struct Tried {
    /// One of them may have been done, or may still be.
    is_uncertain: bool,
}

/// In the place of a shard that this process does not have.
impl Default for Owned {
    fn default() -> Self {
        Self {
            token: Bits([0; 16]),
            fence: Fence(0),
            is_given: AtomicBool::new(false),
            held: Mutex::new(Held {
                token: Bits([0; 16]),
                fence: Fence(0),
                seq: 0,
                made_by: None,
                revision: Revision(0),
                clock: None,
                timeline: 0,
            }),
            counts: Mutex::new(Counts::begun(0, None, Ring::of(Duration::ZERO))),
            told: AtomicI64::new(0),
            fronts: Mutex::new(Fronts::new(&Lows::default(), &[], Sizes::USUAL)),
        }
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        if let Some(thread) = &mut self.keeper_thread {
            thread.end();
        }
    }
}

/// Whether a turn that was acknowledged under the token is there no more.
fn is_missing(
    session: &mut dyn Session,
    shard: Shard,
    token: Bits,
    turn: i64,
) -> Result<bool, Failure> {
    let became = session.became(shard, token, turn)?;
    if became.is_none_or(|became| became.writes.is_some()) {
        return Ok(false);
    }
    let after = session.became(shard, token, turn + 1)?;
    let is_of_another = after.is_some_and(|after| after.has_before);
    // Long before the last turn, it is pruned.
    let last = session.last_turn(shard)?;
    Ok(is_of_another || last.is_none_or(|last| last.seq < turn))
}

impl Store for PostgresStore {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        if shard.is_reserved() {
            return Err(StoreError::Reserved { shard });
        }
        let mut session = self.session_of(shard);
        let session = &mut **session;
        let mut token = (self.tokens)().map_err(|error| StoreError::Unavailable {
            reason: error.to_string(),
        })?;
        if planted!(PostgresTokenOfNode) {
            token = self.node;
        }
        let term = self.lease_term()?;
        let taken = match term {
            Some(term) => {
                // Whatever becomes of the taking, nothing starts under what was before it.
                self.end(shard);
                let prepared = self.at_hand.lock().remove(&shard);
                let prepared = prepared.unwrap_or(Prepared {
                    token,
                    unproved: true,
                });
                token = prepared.token;
                Self::take_over(session, shard, prepared, term.node)
            }
            None => self.take(session, shard, token),
        }?;
        // A snapshot of its own: it has what the owner before has committed last.
        let (mut held, lows) = self.found(session, shard, token, taken.fence)?;
        if taken.unreplicated && !planted!(PostgresTakingUnproved) {
            self.prove(session, shard, &mut held, &lows)?;
        }
        let owned = self.own(session, shard, (held, lows))?;
        if term.is_some_and(|term| !self.standing.goes_on(term)) {
            // Another node may have taken it before the lease was renewed.
            self.ended.end(&self.owned, shard, &owned);
            return Err(unavailable("the lease of this node ended meanwhile"));
        }
        self.look_for_doubted(session);
        Ok(Ownership {
            lease: Lease {
                shard,
                fence: held.fence,
            },
            store_id: shard.id(self.cluster.id),
            last_revision: held.revision,
            clock: held.clock,
            forgets_done: true,
        })
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        let results = self.commit_all(&[Commit { lease, changes }]);
        results
            .into_iter()
            .next()
            .unwrap_or(Err(StoreError::Poisoned))
    }

    fn commit_all(&self, commits: &[Commit<'_>]) -> Vec<Result<(), StoreError>> {
        let mut results = Vec::new();
        results.resize_with(commits.len(), || Err(StoreError::Poisoned));
        let mut left = commits
            .iter()
            .enumerate()
            .map(|(at, commit)| Wanted::new(at, commit, &self.cluster.hash))
            .peekable();
        while left.peek().is_some() {
            let mut together: Vec<Wanted<'_>> = Vec::new();
            while let Some(next) = left.next_if(|next| next.fits(&together)) {
                together.push(next);
            }
            self.commit_together(&mut together);
            for wanted in together {
                if let Some(result) = wanted.result {
                    results[wanted.at] = result;
                }
            }
        }
        if self.keeper_thread.is_none() {
            self.keeper.go_on(KEEPER_STEPS);
        }
        results
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn changes_together(&self) -> usize {
        CHANGES_MAX
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.may_read(shard)?;
        let place = (shard, self.reach_of(shard));
        read::get(&mut *self.reader(), &self.cluster.hash, place, name)
    }

    fn get_many(
        &self,
        shard: Shard,
        names: &mut dyn Iterator<Item = TimerName>,
        bytes: usize,
    ) -> Result<Found, StoreError> {
        self.may_read(shard)?;
        let (hash, place) = (&self.cluster.hash, (shard, self.reach_of(shard)));
        read::get_many(&mut *self.reader(), hash, place, names, bytes)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.may_read(shard)?;
        let owned = self.owned.read().get(&shard).cloned();
        let fronts = owned.as_ref().map(|owned| &owned.fronts);
        let names = (&self.cluster.hash, &self.misnamed);
        read::due(&mut *self.reader(), names, shard, scan, fronts)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.may_read(shard)?;
        read::list(&mut *self.reader(), shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        let Some(owned) = self.owned.read().get(&shard).cloned() else {
            return read::counts(&mut *self.reader(), shard, self.kept_from());
        };
        let counts = owned.counts.lock();
        Ok(counts.queues(self.clock.timestamp()))
    }

    fn counts_are_exact(&self, shard: Shard) -> bool {
        let owned = self.owned.read();
        owned
            .get(&shard)
            .is_none_or(|owned| owned.counts.lock().are_exact())
    }

    fn saved_counts(&self, shard: Shard) -> Result<Option<Vec<QueueCounts>>, StoreError> {
        if self.owned.read().contains_key(&shard) {
            return Ok(None);
        }
        let saved = self.reader().last_saved_counts(shard).map_err(unanswered)?;
        let counts = saved.and_then(|bytes| Counts::of_bytes(&bytes, 0, None, self.cluster.ring));
        Ok(counts.map(|counts| counts.queues(self.clock.timestamp())))
    }

    /// What is counted is saved for the next owner, if the server answers.
    fn stopped(&self) {
        let mut lanes = self.lanes.iter();
        if lanes.all(|lane| lane.stuck(&*self.clock).is_none()) {
            self.keeper.save();
        }
    }

    fn durability(&self) -> Option<Durability> {
        self.durability
    }

    fn troubles(&self) -> Vec<Trouble> {
        let losses = self.losses.lock();
        let detail = |&(shard, turn): &(Shard, i64)| {
            let detail = format!(
                "turn {turn} of shard {} was acknowledged and is missing",
                shard.0
            );
            Trouble::new(TroubleReason::TailLost, None, detail)
        };
        let losses = losses.iter().map(detail);
        let others = self.misnamed.troubles().into_iter();
        losses
            .chain(self.snapshots.trouble())
            .chain(others)
            .collect()
    }

    fn may_start(&self, lease: Lease) -> bool {
        if !self.standing.has_joined() {
            return true;
        }
        let owned = self.owned.read();
        let owns = owned.get(&lease.shard).is_some_and(|owned| {
            owned.fence == lease.fence && !owned.is_given.load(Ordering::SeqCst)
        });
        owns && (self.standing.is_believed() || planted!(PostgresLeaseNotLookedAt))
    }

    fn stuck(&self, shard: Shard) -> Option<String> {
        if self.standing.is_cut_off() {
            return Some(IS_OVER.to_owned());
        }
        let lane = &self.lanes[self.lane_of(shard)];
        let stuck = lane.stuck(&*self.clock);
        stuck.or_else(|| self.readers.stuck(&*self.clock))
    }

    fn is_over(&self) -> bool {
        !self.standing.is_believed()
    }

    fn reach(&self) -> Result<(), StoreError> {
        let mut stuck = self
            .lanes
            .iter()
            .filter_map(|lane| lane.stuck(&*self.clock));
        if let Some(reason) = stuck.next().or_else(|| self.readers.stuck(&*self.clock)) {
            return Err(unavailable(&reason));
        }
        let Some(mut probe) = self.probe.try_lock_for(PROBE_WITHIN) else {
            return Err(unavailable(NOT_YET));
        };
        probe.ping().map_err(unanswered)?;
        self.look_for_doubted(&mut **probe);
        self.snapshots.look(&mut **probe, self.clock.now());
        self.server.look(&mut **probe, self.clock.now());
        self.misnamed.look(&mut **probe, &self.cluster.hash);
        if !self.losses.lock().is_empty() {
            // Somebody may have acknowledged them.
            let losses = probe.losses().map_err(unanswered)?;
            *self.losses.lock() = losses.into_iter().collect();
        }
        Ok(())
    }

    fn oldest_snapshot(&self) -> Option<Duration> {
        self.snapshots.oldest()
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.reader().settings(after).map_err(unanswered)
    }
}

fn fenced(lease: Lease, current: Fence) -> StoreError {
    StoreError::Fenced {
        shard: lease.shard,
        ours: lease.fence,
        current,
    }
}

fn unavailable(reason: &str) -> StoreError {
    StoreError::Unavailable {
        reason: reason.to_owned(),
    }
}

fn lost(shard: Shard, reason: &str) -> StoreError {
    StoreError::Lost {
        shard,
        reason: reason.to_owned(),
    }
}

fn no_such(shard: Shard) -> StoreError {
    lost(shard, "the cluster has no such shard")
}

pub(crate) fn system(error: &dyn fmt::Display) -> PostgresError {
    PostgresError::System {
        reason: error.to_string(),
    }
}

/// The options, checked.
/// Refuses a URL that would be read in another way than it is meant: its password would be taken for a wrong one, or a part
/// of it for the host, and be shown.
fn check_escapes(url: &str) -> Result<(), PostgresError> {
    let refused = |problem: &str| {
        let problem = problem.to_owned();
        Err(PostgresError::Url { problem })
    };
    let Some((_, rest)) = url.split_once("://") else {
        return Ok(());
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.matches('@').count() > 1 {
        return refused("an @ in a user or a password is written %40");
    }
    let is_escape = |after: &str| {
        let digits = after.get(..2).filter(|digits| !digits.starts_with('+'));
        digits.is_some_and(|digits| u8::from_str_radix(digits, 16).is_ok_and(|byte| byte > 0))
    };
    if !authority.split('%').skip(1).all(is_escape) {
        return refused(
            "a % is followed by two hexadecimal digits, not 00; a % itself is written %25",
        );
    }
    Ok(())
}

pub(crate) fn parsed(options: &PostgresOptions) -> Result<(SchemaName, Route), PostgresError> {
    let schema = SchemaName::new(&options.schema)?;
    if let Some((scheme, _)) = options.url.split_once("://")
        && !matches!(scheme, "postgres" | "postgresql")
    {
        let problem = format!("it begins with {scheme}://");
        return Err(PostgresError::Url { problem });
    }
    check_escapes(&options.url)?;
    let mut config: tokio_postgres::Config =
        options
            .url
            .parse()
            .map_err(|error: tokio_postgres::Error| {
                let source = std::error::Error::source(&error);
                let problem = source.map_or_else(|| error.to_string(), ToString::to_string);
                PostgresError::Url { problem }
            })?;
    if config.get_application_name().is_none() {
        config.application_name("countwheel");
    }
    // With TLS or without it, never as the server likes: an answer that somebody forged would turn it off.
    match (&options.ca, config.get_ssl_mode()) {
        (Some(_), _) => {
            config.ssl_mode(SslMode::Require);
        }
        (None, SslMode::Prefer) => {
            config.ssl_mode(SslMode::Disable);
        }
        (None, _) => {}
    }
    config.connect_timeout(options.exchange_within);
    let hosts = u32::try_from(config.get_hosts().len()).unwrap_or(u32::MAX);
    if hosts > 1 {
        // One that does not answer leaves time for the others, within the shortest exchange.
        let shortest = options.exchange_within.min(registry::EXCHANGE_WITHIN);
        config.connect_timeout(shortest / hosts);
        if config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
    }
    #[cfg(feature = "conformance")]
    if let Some(port) = options.through {
        config = through(&config, port);
    }
    let route = Route {
        config: Arc::new(config),
        tls: tls::connector(options.ca.as_deref())?,
        needed: options.lanes.max(1) + options.readers.max(1) + OTHERS,
    };
    Ok((schema, route))
}

/// The same by way of a proxy on loopback. The certificate is still that of the server's name.
#[cfg(feature = "conformance")]
fn through(config: &tokio_postgres::Config, port: u16) -> tokio_postgres::Config {
    let mut other = tokio_postgres::Config::new();
    if let Some(tokio_postgres::config::Host::Tcp(host)) = config.get_hosts().first() {
        other.host(host);
    }
    other
        .hostaddr(std::net::Ipv4Addr::LOCALHOST.into())
        .port(port);
    other.ssl_mode(config.get_ssl_mode());
    if let Some(user) = config.get_user() {
        other.user(user);
    }
    if let Some(password) = config.get_password() {
        other.password(password);
    }
    if let Some(name) = config.get_dbname() {
        other.dbname(name);
    }
    if let Some(name) = config.get_application_name() {
        other.application_name(name);
    }
    if let Some(within) = config.get_connect_timeout() {
        other.connect_timeout(*within);
    }
    other
}

/// A connection of one's own.
#[cfg(feature = "conformance")]
pub(crate) fn connect(options: &PostgresOptions) -> Result<Link, PostgresError> {
    let (_, route) = parsed(options)?;
    link(&route, options)
}

pub(crate) fn link(route: &Route, options: &PostgresOptions) -> Result<Link, PostgresError> {
    Link::new(route.clone(), options.exchange_within).map_err(|error| system(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest of the password behind the @ was taken for the host, and shown.
    #[test]
    fn a_url_that_is_not_read_as_it_is_meant_is_refused() {
        for url in [
            "postgres://cw:p@ss@127.0.0.1/timers",
            "postgres://cw:%zz@127.0.0.1/timers",
            "postgres://cw:%00@127.0.0.1/timers",
            "postgres://cw:%+1@127.0.0.1/timers",
            "postgres://cw:%4",
        ] {
            let refused = parsed(&PostgresOptions::new(url)).map(drop);
            let said = refused.expect_err(url).to_string();
            assert!(said.starts_with("not the URL of a PostgreSQL: "), "{said}");
            assert!(!said.contains("ss@"), "{said}");
        }
        for url in [
            "postgres://cw:p%40ss%25@127.0.0.1/timers",
            "postgres://cw@127.0.0.1/timers?options=%zz@",
            "host=127.0.0.1 user=a@b password=%",
        ] {
            assert!(check_escapes(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn of_several_hosts_the_one_that_takes_writes_is_meant() {
        let config = |url: &str| {
            let (_, route) = parsed(&PostgresOptions::new(url)).expect("it is a URL");
            route.config
        };
        for url in [
            "postgres://timers:secret@db1:5432,db2:5433,db3/timers",
            "postgres://timers@db1,db2,db3/timers?target_session_attrs=read-write",
            "host=db1,db2,db3 user=timers dbname=timers",
        ] {
            let config = config(url);
            assert_eq!(config.get_hosts().len(), 3, "{url}");
            let wanted = config.get_target_session_attrs();
            assert_eq!(wanted, TargetSessionAttrs::ReadWrite, "{url}");
            assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(1)));
        }
        let one = config("postgres://timers@db1/timers");
        assert_eq!(one.get_target_session_attrs(), TargetSessionAttrs::Any);
        assert_eq!(one.get_connect_timeout(), Some(&Duration::from_secs(10)));
    }
}
