//! A PostgreSQL at the level of this store's statements: each is done whole at one moment, or not at
//! all. What goes wrong is drawn from a seed.
//!
//! Of what is here, only the leases of nodes are compared with the server's clock, and that clock never
//! steps.
//!
//! READ COMMITTED needs no more. A statement of a turn locks the rows of its shards before it reads
//! anything else of them, so the statements of one shard come one after the other.

mod session;
mod statement;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{Durability, Fence, Shard};
use countwheel_durable::{DueClock, Shards};
use countwheel_time::{Clock, ManualClock, Random};
use parking_lot::Mutex;

use self::session::SimulatedSession;
use self::statement::Written;
use self::tables::Tables;
use crate::PostgresStore;
use crate::bits::Bits;
use crate::front::Sizes;
use crate::hash::{KEY_BYTES, NameHash};
use crate::ring::Ring;
use crate::schema::Cluster;
use crate::session::Session;

/// How often something goes wrong: once in so many statements, and never where there is a zero.
///
/// ```
/// use countwheel_postgres::testing::SimulatedFaults;
///
/// let mut faults = SimulatedFaults::default();
/// faults.answer_lost = 20;
/// assert_eq!(faults.away, 0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SimulatedFaults {
    /// There is no connection.
    pub away: u64,
    /// The connection ends before the statement is done.
    pub request_lost: u64,
    /// The connection ends after the statement was done.
    pub answer_lost: u64,
    /// The client gives the statement up, and the server does it later, if it writes.
    pub late: u64,
    /// The server refuses the statement: a conflict, a timeout of a lock.
    pub refused: u64,
    /// The server has no room for a while, and refuses what writes.
    pub full: u64,
    /// The server warns that the standby may not have the turns.
    pub unreplicated: u64,
    /// The statement takes a while on its way to the server, or its answer on the way back.
    pub slow: u64,
    /// The server does nothing for a while. What it gets meanwhile it does later, if it writes.
    pub hangs: u64,
}

impl SimulatedFaults {
    fn all(&mut self) -> [&mut u64; 9] {
        [
            &mut self.away,
            &mut self.request_lost,
            &mut self.answer_lost,
            &mut self.late,
            &mut self.refused,
            &mut self.full,
            &mut self.unreplicated,
            &mut self.slow,
            &mut self.hangs,
        ]
    }

    /// Adds other numbers of the same.
    pub fn add(&mut self, mut other: Self) {
        let sums = self.all().into_iter().zip(other.all());
        sums.for_each(|(sum, other)| *sum += *other);
    }
}

/// What a failover lost of a shard, beyond what the server had warned of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LostOfShard {
    /// How many turns.
    pub turns: u64,
    /// Whether a taking was lost, so that the owner before it is the owner again.
    pub taken: bool,
}

/// A simulated PostgreSQL with the tables of a cluster. Clones are the same server.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use countwheel_durable::store::{Fence, Shard, Store};
/// use countwheel_durable::Shards;
/// use countwheel_postgres::PostgresStore;
/// use countwheel_postgres::testing::SimulatedPostgres;
/// use countwheel_time::ManualClock;
///
/// let clock = ManualClock::new();
/// let passing = clock.clone();
/// let server = SimulatedPostgres::new(Shards::ONE, 7, move |pause| passing.advance(pause));
/// let within = Duration::from_secs(30);
/// let store = PostgresStore::on_simulated(&server, 1, Arc::new(clock), within);
/// assert_eq!(store.acquire(Shard::ONLY)?.lease.fence, Fence(1));
/// assert_eq!(server.owner(Shard::ONLY), Fence(1));
/// # Ok::<(), countwheel_durable::store::StoreError>(())
/// ```
#[derive(Clone)]
pub struct SimulatedPostgres {
    shared: Arc<Shared>,
    /// Nothing goes wrong for who only looks.
    is_observer: bool,
}

struct Shared {
    cluster: Cluster,
    simulated: Mutex<Simulated>,
    /// Lets time pass.
    pass: Box<dyn Fn(Duration) + Send + Sync>,
}

/// The server, and what is on its way to it.
struct Simulated {
    tables: Tables,
    faults: SimulatedFaults,
    random: Random,
    tokens: Random,
    /// Statements that their clients gave up, and before how many other statements each is done.
    late: Vec<(u64, Written)>,
    /// For so many statements there is no room.
    full_for: u64,
    /// For so many statements it does nothing.
    hangs_for: u64,
    /// How many statements each of the faults has struck.
    struck: SimulatedFaults,
    /// What stores that are opened see of it.
    durability: Option<Durability>,
    /// So many timers of a shard a store counts while it takes it.
    counted_at_once: usize,
    /// Turns that were found missing.
    losses: BTreeSet<(Shard, i64)>,
    /// Turns that changed nothing since the last pause. A store that asks for ever is stopped.
    in_vain: u64,
}

/// So many turns in a row that change nothing, without a pause, are an endless loop.
const IN_VAIN_MAX: u64 = 1_000;

/// Little is known of the front of a shard, and a gap is worth names at once.
const FRONT: Sizes = Sizes { known: 4, gap: 1 };

impl fmt::Debug for SimulatedPostgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedPostgres").finish_non_exhaustive()
    }
}

impl SimulatedPostgres {
    /// A server with a cluster of `shards`, where nothing goes wrong yet. A store that waits before
    /// its next try calls `pass`, which moves the clocks.
    #[must_use]
    pub fn new(shards: Shards, seed: u64, pass: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        let (longest, clock) = (Duration::from_secs(86_400), ManualClock::new());
        Self::keeping(shards, seed, longest, Arc::new(clock), pass)
    }

    /// The same of a cluster that keeps done timers for so long at the most, by the clock of the server.
    #[must_use]
    pub fn keeping(
        shards: Shards,
        seed: u64,
        longest: Duration,
        clock: Arc<dyn Clock>,
        pass: impl Fn(Duration) + Send + Sync + 'static,
    ) -> Self {
        let ring = Ring::of(longest);
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut random = Random::new(seed);
        Self {
            shared: Arc::new(Shared {
                cluster: Cluster {
                    id: seed,
                    shards,
                    hash: NameHash::new(&key),
                    ring,
                },
                simulated: Mutex::new(Simulated {
                    tables: Tables::new(shards, ring, clock),
                    faults: SimulatedFaults::default(),
                    tokens: Random::new(random.draw()),
                    random,
                    late: Vec::new(),
                    full_for: 0,
                    hangs_for: 0,
                    struck: SimulatedFaults::default(),
                    durability: None,
                    counted_at_once: usize::MAX / 2,
                    losses: BTreeSet::new(),
                    in_vain: 0,
                }),
                pass: Box::new(pass),
            }),
            is_observer: false,
        }
    }

    /// The same server for somebody who looks at it: nothing goes wrong, and nothing that is late
    /// comes.
    #[must_use]
    pub fn observer(&self) -> Self {
        Self {
            is_observer: true,
            ..self.clone()
        }
    }

    /// What goes wrong from now on. If nothing does, what is late is done, a full disk has room again
    /// and a server that hangs goes on.
    pub fn set_faults(&self, faults: SimulatedFaults) {
        let mut simulated = self.shared.simulated.lock();
        simulated.faults = faults;
        if faults == SimulatedFaults::default() {
            (simulated.full_for, simulated.hangs_for) = (0, 0);
            for (_, written) in std::mem::take(&mut simulated.late) {
                simulated.come(&written);
            }
        }
    }

    /// What stores that are opened from now on see of the server: by itself, that nothing is known.
    pub fn set_durability(&self, durability: Durability) {
        self.shared.simulated.lock().durability = Some(durability);
    }

    /// Stores that are opened from now on count so many timers of a shard while they take it, and the others
    /// later.
    pub fn set_counted_at_once(&self, timers: usize) {
        self.shared.simulated.lock().counted_at_once = timers;
    }

    /// How many statements each of the faults has struck so far.
    #[must_use]
    pub fn struck(&self) -> SimulatedFaults {
        self.shared.simulated.lock().struck
    }

    /// The fence of the owner of a shard; zero before the first.
    #[must_use]
    pub fn owner(&self, shard: Shard) -> Fence {
        self.shared.simulated.lock().tables.owner(shard).fence
    }

    /// Whether the owner of that number may still commit: nobody has taken the shard since, and it was not let
    /// go.
    #[must_use]
    pub fn is_held(&self, shard: Shard, fence: Fence) -> bool {
        let simulated = self.shared.simulated.lock();
        let row = simulated.tables.owner(shard);
        row.fence == fence && row.token.is_some()
    }

    /// How many turns with changes there are that the last owner of that number has made.
    #[must_use]
    pub fn turns(&self, shard: Shard, fence: Fence) -> u64 {
        self.shared.simulated.lock().tables.made(shard, fence)
    }

    /// A timer, as queue and key, that wakes before a low mark of the shard's last turn and is not named
    /// beside it: there must be none.
    #[must_use]
    pub fn before_mark(&self, shard: Shard) -> Option<String> {
        let simulated = self.shared.simulated.lock();
        let tables = &simulated.tables;
        let mut clocks = DueClock::ALL.into_iter();
        let row = clocks.find_map(|clock| tables.before_mark(shard, clock))?;
        Some(format!("{}/{}", row.queue, row.key))
    }

    /// A standby takes the place of the server. All connections end, and what is late is not done any
    /// more. What the server had warned of is lost, and the last `lost` turns and takings before, but no
    /// taking if the server is [said](Self::set_durability) to have a standby. Says of which shards.
    pub fn fail_over(&self, lost: usize) -> BTreeMap<Shard, LostOfShard> {
        let mut simulated = self.shared.simulated.lock();
        simulated.late.clear();
        (simulated.full_for, simulated.hangs_for) = (0, 0);
        // An owner goes on where the server is believed to lose nothing. If it is wrongly, nobody can
        // keep it from going on after a taking that is lost.
        let is_believed = simulated.durability == Some(Durability::Standby);
        simulated.tables.fail_over(lost, is_believed)
    }

    pub(super) fn ring(&self) -> Ring {
        self.shared.cluster.ring
    }

    pub(super) fn sessions(&self, count: usize) -> Vec<Box<dyn Session>> {
        let session = || Box::new(SimulatedSession::new(self.clone())) as Box<dyn Session>;
        (0..count).map(|_| session()).collect()
    }
}

impl PostgresStore {
    /// Opens the store of the cluster of a simulated server, with two connections that commit. For how
    /// long a commit is sent again is [as of a real one](crate::PostgresOptions::resolve_within).
    #[must_use]
    pub fn on_simulated(
        server: &SimulatedPostgres,
        node: u128,
        clock: Arc<dyn Clock>,
        resolve_within: Duration,
    ) -> Self {
        let of_server = server.clone();
        let session = || Box::new(SimulatedSession::new(server.clone())) as Box<dyn Session>;
        let tokens = move || {
            let tokens = &mut of_server.shared.simulated.lock().tokens;
            let mut token = [0; 16];
            token[..8].copy_from_slice(&tokens.draw().to_be_bytes());
            token[8..].copy_from_slice(&tokens.draw().to_be_bytes());
            Ok(Bits(token))
        };
        let (cluster, node) = (server.shared.cluster.clone(), Bits(node.to_be_bytes()));
        let mut store = Self::on(
            (cluster, node, Arc::new(tokens)),
            server.sessions(2),
            server.sessions(2),
            [(); 5].map(|()| session()),
            clock,
            resolve_within,
        );
        store.counted_at_once = server.shared.simulated.lock().counted_at_once;
        store.front_sizes = FRONT;
        store.durability = server.shared.simulated.lock().durability;
        store
    }
}
