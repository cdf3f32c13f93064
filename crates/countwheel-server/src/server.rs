//! The process: opens the store, listens, and stops cleanly.

use std::fmt;
use std::fs::DirBuilder;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use countwheel_cluster::{ClusterClock, Node, NodeConfig, NodeId, RegistryError};
use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::{Durability, OnDisk, OpenFiles, Store, StoreError};
use countwheel_durable::{
    Config, EventLog, Health, Loss, Settings, SettingsVersion, StateKind, Timers,
};
use countwheel_peers::{Forwarder, PeerServer, PeersConfig, PeersError};
use countwheel_postgres::{
    PostgresError, PostgresOptions, PostgresRegistry, PostgresServer, PostgresStore,
};
use countwheel_time::{Clock, Instant, SystemClock};
use rustix::fs::Access;
use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::VERSION;
use crate::accept;
use crate::api::access;
use crate::api::cors::Origins;
use crate::api::endpoints::reseal;
use crate::api::{App, Token, router};
use crate::bodies::Bodies;
use crate::cluster::Cluster;
use crate::cluster::certificate::Certificate;
use crate::cluster::joined::{self, Joining, Map, Way};
use crate::config::TOKEN_BITS;
use crate::config::{Dev, Front, KeepAnswers, NodeUse, Serve, StoreUrl};
use crate::deliver::HttpHandler;
use crate::descriptors::{self, Budget, TooLow};
use crate::egress::EgressProxy;
use crate::events::Events;
use crate::gather::Leaser;
use crate::guard::Targets;
use crate::jobs;
use crate::listen::{At, Listen, Listener, SocketFile};
use crate::moving::{Moves, Tapped, marker};
use crate::nodes;
use crate::places::{Limits, Places};
use crate::quotas::weight;
use crate::resources::Catalogue;
use crate::resources::ceilings::Ceilings;
use crate::resources::expiring::Notices;
use crate::resources::flows::DeliveryLimits;
use crate::resources::loans::{Loans, NodeHere};
use crate::resources::queue::LONGEST_JOB;
use crate::resources::sealed::{BadKeys, Vault};
use crate::roots::{self, BadAuthorities};
use crate::scrub::{self, Pace};
use crate::shutdown::{Cause, Signals};
use crate::tally::Tally;
use crate::tls::{self, BadTls, ServerTls};

/// How often it is looked at how many files the store has.
const FILES_EVERY: Duration = Duration::from_secs(1);
/// How often a database is looked at for what nobody asks about.
const DATABASE_EVERY: Duration = Duration::from_secs(10);
/// How often a node looks at what others have put.
const SETTINGS_EVERY: Duration = Duration::from_millis(500);
/// How often it is looked for tokens that end soon.
const NOTICED_EVERY: Duration = Duration::from_secs(3_600);
/// How long deliveries may take to end when `dev` stops: nobody misses them.
const DEV_GRACE: Duration = Duration::from_secs(1);
const STORE_FAILED: u8 = 3;
/// How long after the grace a stop may take to record what has ended.
const STOP_AT_LAST: Duration = Duration::from_secs(30);

/// How to set a token where other machines reach the service.
pub(crate) const HOW_TO_SET_A_TOKEN: &str =
    "--token-file or COUNTWHEEL_TOKEN, or make one with token create --data";

/// Why the service did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The command asks for what is not allowed.
    #[error("{listen} can be reached from other machines: set a token with {how}")]
    OpenToAll {
        /// Where it should listen.
        listen: SocketAddr,
        /// How to set a token.
        how: &'static str,
    },
    /// A token that other machines may try is too easy to find.
    #[error(
        "{listen} can be reached from other machines, and the token has at most {bits} bits: \
         set one of {TOKEN_BITS} or more, such as `openssl rand -hex 16` makes"
    )]
    WeakToken {
        /// Where it should listen.
        listen: SocketAddr,
        /// How many bits it has at the most, by its length and the characters in it.
        bits: u32,
    },
    /// A token that other machines may try is in a file that other users may read.
    #[error(
        "{listen} can be reached from other machines, and every user of this one may read {}: \
         set its mode to 0400", path.display()
    )]
    TokenForAll {
        /// Where it should listen.
        listen: SocketAddr,
        /// The file.
        path: PathBuf,
    },
    /// Other machines could say anything to this node.
    #[error(
        "{listen} can be reached from other machines: give --peer-cert, --peer-key and --peer-ca, or \
         listen for other nodes on loopback"
    )]
    OpenPeers {
        /// Where it should listen for other nodes.
        listen: SocketAddr,
    },
    /// What was given as a token is none.
    #[error("{origin} holds no token: one is printable ASCII without spaces")]
    Token {
        /// Where it was found.
        origin: String,
    },
    /// The port is taken, or the address is not this machine's.
    #[error("cannot listen on {listen}: {source}; choose another address with --listen")]
    Listen {
        /// The place.
        listen: At,
        /// What the system said.
        source: io::Error,
    },
    /// A file or directory could not be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The limit of open files is too low to work with.
    #[error(
        "the limit of open files is {limit}, and at least {needed} are needed: raise it (ulimit -n)"
    )]
    TooFewFiles {
        /// The limit.
        limit: usize,
        /// How many are needed for this directory.
        needed: usize,
    },
    /// The certificate for callers cannot be used.
    #[error(transparent)]
    Tls(#[from] BadTls),
    /// Other nodes and their callers have no way to this one.
    #[error(
        "a node of a cluster is reached at an address: give one with --listen or --listen-tls beside unix:/path"
    )]
    NoAddress,
    /// The authorities of a file cannot be trusted.
    #[error(transparent)]
    Authorities(#[from] BadAuthorities),
    /// The file of keys for secrets cannot be used.
    #[error(transparent)]
    Keys(#[from] BadKeys),
    /// The keys for secrets are in a file that other users may read.
    #[error(
        "every user of this machine may read {}, and other machines can reach the service: set its mode to \
         0400", path.display()
    )]
    KeysForAll {
        /// The file.
        path: PathBuf,
    },
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The database cannot be used.
    #[error(transparent)]
    Database(#[from] PostgresError),
    /// This process cannot be a node of the cluster.
    #[error(transparent)]
    Cluster(#[from] RegistryError),
    /// Nodes that live listen for others in another way: half of them could not reach the other half.
    #[error(
        "node {name} listens for other nodes {theirs}, and this one {ours}: give all nodes the same \
         --peer-listen, --peer-cert, --peer-key and --peer-ca, or none of them"
    )]
    OtherWay {
        /// One of them.
        name: String,
        /// How it listens.
        theirs: &'static str,
        /// How this one does.
        ours: &'static str,
    },
    /// Other nodes cannot be listened to.
    #[error(transparent)]
    Peers(#[from] PeersError),
    /// The nodes of a trial have no ports.
    #[error("there are no {nodes} ports from {listen} on: choose another address with --listen")]
    Ports {
        /// Where the first should listen.
        listen: SocketAddr,
        /// How many there should be.
        nodes: u16,
    },
    /// There is no database for the nodes of a trial.
    #[error(
        "--nodes needs the programs of PostgreSQL 15 or later, and none are installed: install the \
         package postgresql (Debian: postgresql-15 or later)"
    )]
    NoPostgres,
    /// The database of a trial has nobody to run as.
    #[error(
        "PostgreSQL does not run as root, and there is no user postgres: start as another user"
    )]
    NoUser,
    /// A program that a trial needs failed.
    #[error("{what}: {said}")]
    Program {
        /// Which.
        what: String,
        /// What it said.
        said: String,
    },
    /// The timers of the directory are in a database.
    #[error(
        "the timers of {} were moved to {target}: start a node there (serve --store)", data.display()
    )]
    Moved {
        /// The directory.
        data: PathBuf,
        /// Where they are.
        target: String,
    },
    /// The timers were to come into the directory, and are in the database still.
    #[error(
        "the timers of {target} were not moved to {}: remove that, and move them again \
         (countwheel move-from)", data.display()
    )]
    NotMoved {
        /// The directory.
        data: PathBuf,
        /// Where they are.
        target: String,
    },
    /// A move of the directory's timers was not ended, and where they are only the database knows.
    #[error(
        "whether the timers of {} were moved to {target} is not known: {reason}; start again once it can \
         be asked, with --moved-to and its URL if that needs a password", data.display()
    )]
    MoveUnknown {
        /// The directory.
        data: PathBuf,
        /// Where they may be.
        target: String,
        /// Why it was not asked.
        reason: String,
    },
    /// The system refused something else.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

impl From<TooLow> for StartError {
    fn from(TooLow { limit, needed }: TooLow) -> Self {
        Self::TooFewFiles { limit, needed }
    }
}

impl StartError {
    /// Whether another command line would help.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::OpenToAll { .. }
                | Self::WeakToken { .. }
                | Self::TokenForAll { .. }
                | Self::KeysForAll { .. }
                | Self::OpenPeers { .. }
                | Self::Ports { .. }
                | Self::NoAddress
        )
    }
}

/// Runs `countwheel serve` to its end.
///
/// # Errors
/// [`StartError`] if it could not start.
pub fn serve(args: &Serve) -> Result<ExitCode, StartError> {
    let token = args.token()?;
    let vault = args.vault()?;
    let service = Service {
        place: match (&args.store, &args.data) {
            (Some(url), _) => {
                let mut options = args.database.options(url.as_str());
                options.keep_done = args.keep_done;
                Place::Database(options, Box::new(args.node.clone()))
            }
            (None, data) => Place::Directory {
                data: data.clone().unwrap_or_default(),
                must_exist: args.must_exist,
                disk: args.disk(),
                moved_to: args.moved_to.clone(),
                keep_done: Some(args.keep_done),
            },
        },
        listen: args.listening.places(),
        socket_mode: args.listening.socket_mode,
        tls: args.listening.tls()?,
        token,
        beyond: args.listening.beyond(),
        vault,
        targets: args.targets(),
        ca_files: args.ca_file.clone(),
        egress_proxy: args.egress_proxy.clone(),
        keep_answers: args.keep_answers,
        front: args.front.clone(),
        limits: args.limits(random()?),
        grace: args.shutdown_grace,
        scrub: args.scrub(),
        snapshots: args.snapshot_dir.clone(),
        echo: args.dev_node,
        dev: None,
    };
    if args.dev_node {
        nodes::end_with_input();
    }
    service.run()
}

/// Runs `countwheel dev` to its end.
///
/// # Errors
/// [`StartError`] if it could not start.
pub fn dev(args: &Dev) -> Result<ExitCode, StartError> {
    if args.nodes > 1 {
        return nodes::run(args);
    }
    let token = args.token()?;
    let data = TemporaryDirectory::new()?;
    let service = Service {
        place: Place::Directory {
            data: data.path().join("data"),
            must_exist: false,
            disk: args.disk(),
            moved_to: None,
            keep_done: None,
        },
        listen: vec![Listen::plain(At::Tcp(args.listen))],
        socket_mode: 0,
        tls: None,
        token,
        beyond: None,
        vault: Vault::without_key(args.listen.ip().is_loopback()),
        targets: args.targets(),
        ca_files: args.ca_file.clone(),
        egress_proxy: args.egress_proxy.clone(),
        keep_answers: args.keep_answers,
        front: args.front.clone(),
        limits: Config {
            seed: random()?,
            ..Config::default()
        },
        grace: DEV_GRACE,
        scrub: None,
        snapshots: None,
        echo: true,
        dev: Some(data),
    };
    service.run()
}

pub(crate) fn random() -> Result<u64, StartError> {
    getrandom::u64().map_err(|error| io::Error::other(error).into())
}

/// Where the timers are kept.
enum Place {
    Directory {
        data: PathBuf,
        /// There has to be a store already.
        must_exist: bool,
        disk: DiskOptions,
        /// Whom to ask whether its timers were moved, if the directory does not know.
        moved_to: Option<StoreUrl>,
        /// For how long done timers are kept, where timers may be moved to a cluster.
        keep_done: Option<Duration>,
    },
    Database(PostgresOptions, Box<NodeUse>),
}

impl Place {
    /// Whether something may be stored there: a start that is refused makes no store.
    fn may_have_tokens(&self) -> bool {
        match self {
            Self::Directory { data, .. } => data.exists(),
            Self::Database(..) => true,
        }
    }

    /// How many files the store will need, as far as that can be known before it is opened.
    fn files(&self) -> OpenFiles {
        match self {
            Self::Directory { data, .. } => descriptors::of_store(data),
            Self::Database(options, _) => OpenFiles {
                // A connection, and what its thread waits with.
                open: 0,
                ahead: 4 * (options.lanes + options.readers),
            },
        }
    }

    fn open(self) -> Result<Opened, StartError> {
        Ok(match self {
            Self::Directory {
                data,
                must_exist,
                disk,
                moved_to,
                keep_done,
            } => {
                marker::must_be_here(&data, moved_to.as_ref().map(StoreUrl::as_str))?;
                let store = match must_exist {
                    true => DiskStore::open_existing(&data, disk)?,
                    false => DiskStore::open(&data, random()?, disk)?,
                };
                Opened::Directory(Box::new(store), data, keep_done)
            }
            Self::Database(options, node) => {
                Opened::Database(Box::new(PostgresStore::open(&options)?), *node)
            }
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { data, .. } => data.display().fmt(f),
            // The URL may have a password.
            Self::Database(options, _) => write!(f, "schema {} of a PostgreSQL", options.schema),
        }
    }
}

/// A store, open.
enum Opened {
    /// Where, and for how long done timers are kept if they may be moved.
    Directory(Box<DiskStore>, PathBuf, Option<Duration>),
    Database(Box<PostgresStore>, NodeUse),
}

impl Opened {
    fn files(&self) -> OpenFiles {
        match self {
            Self::Directory(store, ..) => store.open_files(),
            Self::Database(..) => OpenFiles::default(),
        }
    }

    /// What the line that says ready says of the store.
    fn origin(&self) -> String {
        match self {
            Self::Directory(store, ..) if store.was_made() => "store=made".to_owned(),
            Self::Directory(..) => "store=opened".to_owned(),
            Self::Database(store, _) => {
                let durability = store.durability();
                let durability = durability.map_or("unknown", Durability::as_str);
                let server = store.server();
                let (name, sync) = (server.name(), sync(server.standbys()));
                format!("store={name} sync={sync} durability={durability}")
            }
        }
    }

    /// What says more of the database.
    fn server(&self) -> Option<PostgresServer> {
        match self {
            Self::Directory(..) => None,
            Self::Database(store, _) => Some(store.server()),
        }
    }

    /// What is stored of queues and endpoints; `None` if nothing is, or it cannot be read yet.
    fn settings(&self) -> Option<Settings> {
        let none = SettingsVersion(0);
        let settings = match self {
            Self::Directory(store, ..) => store.settings(none),
            Self::Database(store, _) => store.settings(none),
        };
        settings.ok().flatten()
    }

    /// Into how many shards it is divided.
    fn shards(&self) -> u16 {
        match self {
            Self::Directory(..) => 1,
            Self::Database(store, _) => store.shards().count(),
        }
    }

    /// The id of the cluster; 0 of a directory.
    fn cluster(&self) -> u64 {
        match self {
            Self::Directory(..) => 0,
            Self::Database(store, _) => store.cluster_id(),
        }
    }

    /// The clock of the timers: nodes share that of the database.
    fn clock(&self, machine: &Arc<dyn Clock>) -> Timekeeper {
        match self {
            Self::Directory(..) => Timekeeper::Machine(Arc::clone(machine)),
            Self::Database(..) => {
                Timekeeper::Cluster(Arc::new(ClusterClock::new(Arc::clone(machine))))
            }
        }
    }

    /// Starts the schedulers: of a directory all, of a database those of the shards that this node will take.
    fn timers(
        self,
        handler: HttpHandler,
        clock: Arc<dyn Clock>,
        config: Config,
        grace: Duration,
    ) -> Result<Running, StoreError> {
        match self {
            Self::Directory(store, data, keep_done) => {
                let store = Tapped::new(*store);
                let moved = Arc::clone(&clock);
                let timers = Timers::open(store.clone(), handler, clock, config)?;
                let moves = keep_done.map(|keep_done| {
                    Moves::new((store, data), timers.clone(), moved, keep_done, grace)
                });
                Ok(Running {
                    timers,
                    joining: None,
                    moves,
                })
            }
            Self::Database(store, node) => {
                let (shards, registry) = (store.shards(), store.registry());
                let timers = Timers::open_divided(*store, shards, None, handler, clock, config)?;
                Ok(Running {
                    timers,
                    joining: Some((registry, node)),
                    moves: None,
                })
            }
        }
    }
}

/// The names of standbys as one word.
fn sync(standbys: Option<Vec<String>>) -> String {
    let Some(standbys) = standbys else {
        return "unknown".to_owned();
    };
    if standbys.is_empty() {
        return "none".to_owned();
    }
    let of_name = |one: char| one.is_ascii_alphanumeric() || "._-:".contains(one);
    let word = |name: &String| name.replace(|one| !of_name(one), "-");
    standbys.iter().map(word).collect::<Vec<_>>().join(",")
}

/// Timers that run.
struct Running {
    timers: Timers,
    /// Of a database: what makes this process a node.
    joining: Option<(PostgresRegistry, NodeUse)>,
    /// Of a directory: what moves them into a database.
    moves: Option<Arc<Moves>>,
}

/// What tells the time.
enum Timekeeper {
    Machine(Arc<dyn Clock>),
    Cluster(Arc<ClusterClock>),
}

impl Timekeeper {
    fn clock(&self) -> Arc<dyn Clock> {
        match self {
            Self::Machine(clock) => Arc::clone(clock),
            Self::Cluster(clock) => Arc::<ClusterClock>::clone(clock),
        }
    }
}

/// Where others reach what listens at these places, and by what scheme: at the first address that other machines
/// reach, else at the first of all.
fn reached(listens: &[Listen]) -> Option<(SocketAddr, &'static str)> {
    let mut addresses = listens
        .iter()
        .filter_map(|it| Some((it.at.address()?, it.scheme())));
    let first = addresses.clone().next();
    addresses.find(|(at, _)| !at.ip().is_loopback()).or(first)
}

/// What this process says of itself as a node that listens there.
fn node(node: &NodeUse, listens: SocketAddr, scheme: &str) -> Result<Node, StartError> {
    let half = || random().map(u128::from);
    Ok(Node {
        id: NodeId(half()? << 64 | half()?),
        name: node.name(listens),
        api: format!("{scheme}://{}", node.advertised(listens)),
        peers: None,
        weight: 100,
        version: VERSION.to_owned(),
        zones: joined::zones(),
    })
}

/// How long to wait before a lost shard is taken again, if that fails.
const RETAKEN_EVERY: Duration = Duration::from_secs(1);

/// Takes shards again whose ownership has ended. Says why if another node has taken one.
fn retake(timers: &Timers, failed: &mpsc::UnboundedSender<String>) {
    let (failed, again) = (failed.clone(), timers.clone());
    let runtime = Handle::current();
    timers.on_lost(move |shard, loss| {
        if let Loss::Taken(reason) = loss {
            // Nobody listens any more if the service has stopped.
            failed.send(reason.clone()).unwrap_or_default();
            return;
        }
        let timers = again.clone();
        runtime.spawn(async move {
            loop {
                let taking = timers.clone();
                let taken = tokio::task::spawn_blocking(move || taking.take(shard)).await;
                match taken {
                    Ok(Err(error)) if timers.health() == Health::Running => {
                        tracing::warn!(shard = shard.0, %error, "the shard is not taken again yet");
                        tokio::time::sleep(RETAKEN_EVERY).await;
                    }
                    _ => return,
                }
            }
        });
    });
}

/// A service to run.
struct Service {
    place: Place,
    listen: Vec<Listen>,
    /// The mode of sockets of the file system.
    socket_mode: u32,
    tls: Option<tls::Files>,
    token: Option<Token>,
    /// Where other machines reach the service.
    beyond: Option<SocketAddr>,
    /// What seals secrets.
    vault: Vault,
    targets: Targets,
    /// Authorities that deliveries trust beside those of everybody.
    ca_files: Vec<PathBuf>,
    /// Through which deliveries leave.
    egress_proxy: Option<EgressProxy>,
    /// What is kept of the answers of targets.
    keep_answers: KeepAnswers,
    front: Front,
    limits: Config,
    grace: Duration,
    scrub: Option<Pace>,
    /// Where snapshots go.
    snapshots: Option<PathBuf>,
    /// Whether there is a receiver to try timers with.
    echo: bool,
    /// In `dev`, the directory to remove at the end.
    dev: Option<TemporaryDirectory>,
}

impl Service {
    fn run(self) -> Result<ExitCode, StartError> {
        let machine: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let began = machine.now();
        let runtime = Runtime::new()?;
        let result = runtime.block_on(self.run_on(&machine, began));
        // A name that is still being resolved holds up nobody.
        runtime.shutdown_timeout(Duration::from_millis(100));
        result
    }

    /// Listens everywhere, or nowhere if one place cannot be had.
    fn bind(&self, tls: Option<&Arc<ServerTls>>) -> Result<Vec<Listener>, StartError> {
        let bound = self.listen.iter().map(|Listen { at, is_tls }| {
            let tls = tls.filter(|_| *is_tls).cloned();
            let listener = Listener::bind(at, self.socket_mode, tls);
            let listen = at.clone();
            listener.map_err(|source| StartError::Listen { listen, source })
        });
        bound.collect()
    }

    async fn run_on(
        self,
        machine: &Arc<dyn Clock>,
        began: Instant,
    ) -> Result<ExitCode, StartError> {
        let mut signals = Signals::listen()?;
        // Before the store is touched: a port that is taken is the likeliest mistake.
        let tls = self.tls.clone();
        let tls = tls.map(|files| ServerTls::read(files, machine.timestamp()));
        let tls = tls.transpose()?.map(Arc::new);
        let listeners = self.bind(tls.as_ref())?;
        let listens: Result<Vec<_>, _> = listeners.iter().map(Listener::listens).collect();
        let listens = listens?;
        let limit = descriptors::limit();
        // Before the store is opened: a start that is refused changes nothing.
        let needed = self.place.files();
        Budget::of(
            limit,
            descriptors::open(needed),
            needed,
            self.limits.max_in_flight,
        )?;
        if let (Some(snapshots), Place::Directory { data, .. }) = (&self.snapshots, &self.place) {
            DiskStore::must_be_outside(snapshots, data)?;
            must_take_files(snapshots)?;
        }
        let authorities = roots::of_system_and(&self.ca_files)?;
        let data = self.place.to_string();
        // A token that is stored does as well, and nothing is stored where nothing is.
        let beyond = self.beyond.filter(|_| self.token.is_none());
        let open = |listen| StartError::OpenToAll {
            listen,
            how: HOW_TO_SET_A_TOKEN,
        };
        if let Some(listen) = beyond.filter(|_| !self.place.may_have_tokens()) {
            return Err(open(listen));
        }
        let store = self.place.open()?;
        let (origin, files) = (store.origin(), store.files());
        let timekeeper = store.clock(machine);
        let (cluster, database) = (store.cluster(), store.server());
        let clock = timekeeper.clock();
        let callers = self.front.limits();
        let budget = set_aside(limit, files, self.limits.max_in_flight, callers.connections)?;
        // Each shard of a cluster may be on a node of its own.
        let ceilings = Ceilings::new(
            budget.attempts,
            store.shards(),
            self.front.payloads(),
            self.limits.keep_done,
        )
        .with_timeout(self.front.timeout_ceiling);
        let catalogue = Catalogue::new(self.vault, Arc::new(authorities), Arc::clone(&clock));
        let catalogue = Arc::new(catalogue.with_ceilings(ceilings));
        if let Some(settings) = store.settings() {
            catalogue.begin(&settings);
        }
        if let Some(listen) = beyond.filter(|_| !catalogue.known().has_tokens()) {
            return Err(open(listen));
        }
        let handler = HttpHandler::with(
            Handle::current(),
            self.targets.clone(),
            Arc::clone(&clock),
            budget.lookups,
            budget.kept(),
            Arc::clone(&catalogue),
        )
        .keeping(self.keep_answers)
        .noting(self.front.audit())
        .through(self.egress_proxy.clone());
        let phases = handler.phases();
        let tester = handler.clone();
        let flows = DeliveryLimits::new(Arc::clone(&catalogue), self.targets.clone());
        let flows = Arc::new(flows.proxied(self.egress_proxy.is_some()));
        let desk = Arc::clone(flows.desk());
        let handler = handler.at_desk(&desk);
        let log = Arc::new(EventLog::new(EventLog::EVENTS, EventLog::BYTES));
        let events = Events::new(Arc::clone(&log), self.front.event_streams());
        let limits = Config {
            events: Some(log),
            due_counts: true,
            max_in_flight: budget.attempts,
            flows: Some(Arc::<DeliveryLimits>::clone(&flows)),
            retention: Some(Arc::<Catalogue>::clone(&catalogue)),
            rules: Some(Arc::<Catalogue>::clone(&catalogue)),
            max_payload: LONGEST_JOB,
            ..self.limits.clone()
        };
        let Running {
            timers,
            joining,
            moves,
        } = store.timers(handler, Arc::clone(&clock), limits, self.grace)?;
        let bodies = Bodies::new(self.front.body_bytes());
        let leaser = Arc::new(Leaser::new(
            desk,
            timers.clone(),
            Arc::clone(&bodies),
            Arc::clone(machine),
            Handle::current(),
        ));
        let tally = Arc::new(Tally::new(timers.clone(), Arc::clone(&clock)));
        // Timers of endpoints wait until the endpoints are known.
        catalogue.refresh(&timers);
        flows.look_at_part(&timers);
        let (mut peers, mut lending) = (None, None);
        let joined = match (joining, &timekeeper) {
            (Some((registry, options)), Timekeeper::Cluster(clock)) => {
                let (address, scheme) = reached(&listens).ok_or(StartError::NoAddress)?;
                let mut node = node(&options, address, scheme)?;
                let tls = options.tls()?;
                let map = Arc::new(Map::new(Way::of(tls.is_some())));
                let config = PeersConfig {
                    tls: tls.clone(),
                    ..PeersConfig::new(cluster, node.id)
                };
                let owners = Arc::<Map>::clone(&map);
                let count = timers.shards().count();
                let loans = Loans::new(Arc::clone(&catalogue), owners, count, Arc::clone(machine));
                let loans = Arc::new(loans);
                let here = Arc::new(NodeHere {
                    timers: timers.clone(),
                    loans: Arc::clone(&loans),
                    leaser: Arc::clone(&leaser),
                    tally: Arc::clone(&tally),
                    events: Arc::clone(&events),
                });
                let owners = Arc::<Map>::clone(&map);
                let forwarder = Forwarder::start(config, owners, here, Arc::clone(machine))?;
                let server = options.peers(address)?;
                let server = server
                    .map(|at| PeerServer::start(at, &forwarder))
                    .transpose()?;
                let reached = server.as_ref().map(PeerServer::address);
                let reached = reached.map(|at| options.advertised_peers(at));
                let way = Way::of(tls.is_some());
                let certificate = match (tls, &reached) {
                    (Some(tls), Some(reached)) => {
                        let now = machine.timestamp();
                        tls.demand_good_for(&reached.host, now)?;
                        Some(Certificate::new(tls, reached.host.clone(), now))
                    }
                    _ => None,
                };
                node.peers = reached.map(|reached| way.published(&reached));
                // Nodes that do not reach each other divide each limit by the shards that they own.
                if node.peers.is_some() {
                    flows.borrow(Arc::clone(&loans));
                    lending = Some((Arc::clone(&loans), Arc::clone(&forwarder)));
                }
                leaser.among(&forwarder, Arc::clone(&map));
                tally.among(&forwarder, Arc::clone(&map));
                events.among(&forwarder, Arc::clone(&map));
                timers.on_elsewhere(Arc::<Forwarder>::clone(&forwarder));
                peers = Some((Arc::clone(&forwarder), server));
                let joining = Joining {
                    forwarder,
                    loans,
                    node,
                    map,
                    config: NodeConfig {
                        ttl: options.lease_ttl,
                        grace: options.hand_over_grace,
                        ..NodeConfig::default()
                    },
                    registry,
                    clock: Arc::clone(clock),
                    certificate,
                    database,
                };
                joining.demand_one_way().await?;
                tokio::select! {
                    joined = joining.join(&timers) => Some(Arc::new(joined?)),
                    _ = signals.next() => return Ok(ExitCode::SUCCESS),
                }
            }
            _ => None,
        };

        let (failed, mut failure) = mpsc::unbounded_channel();
        if joined.is_none() {
            retake(&timers, &failed);
        }
        timers.on_failure(move |reason| {
            // Nobody listens any more if the service has stopped.
            failed.send(reason.to_owned()).unwrap_or_default();
        });
        let with_token = self.token.is_some() || catalogue.known().has_tokens();
        let app = App::new(
            timers.clone(),
            Arc::clone(&clock),
            self.token.clone(),
            self.echo,
        );
        let app = app.with_cluster(joined.as_ref().map(|joined| Arc::clone(&joined.cluster)));
        let (allowed, may_snapshot) = (self.targets.to_string(), self.snapshots.is_some());
        let places = Places::new(budget.callers(files), callers);
        let app = app.with_connections(phases, Arc::clone(&places));
        let app = app.with_snapshots(self.snapshots).with_moves(moves);
        let app = app.with_catalogue(Arc::clone(&catalogue), Arc::clone(&flows));
        let app = app.with_bodies(bodies).with_leaser(Arc::clone(&leaser));
        let app = app.with_tester(tester).with_tally(Arc::clone(&tally));
        let app = app.with_events(Arc::clone(&events));
        let app = app.with_access(beyond.is_some(), self.front.open_metrics);
        let app = app.with_cors(Origins::new(self.front.cors_origin.clone()));
        let app = app.with_answers(self.keep_answers).with_tls(tls.clone());
        let app = app.with_audit(self.front.audit());
        let app = app.with_access_log(self.front.access_log);
        let app = Arc::new(app.with_targets(self.targets));
        // What goes on beside, and has to let go of the store before its directory may be removed.
        let mut upkeep = JoinSet::new();
        if let Some(pace) = self.scrub {
            let progress = app.scrub();
            upkeep.spawn(scrub::run(
                timers.clone(),
                Arc::clone(&clock),
                pace,
                progress,
            ));
        }
        if timers.durability().is_some() {
            let cluster = joined.as_ref().map(|joined| Arc::clone(&joined.cluster));
            upkeep.spawn(keep_looking(timers.clone(), cluster, Arc::clone(machine)));
            upkeep.spawn(keep_knowing(Arc::clone(&catalogue), flows, timers.clone()));
        }
        if let Some((loans, forwarder)) = lending {
            upkeep.spawn(loans.run(timers.clone(), forwarder));
        }
        let (stop, stopped) = watch::channel(false);
        upkeep.spawn(keep_places(Arc::clone(&places), budget, timers.clone()));
        upkeep.spawn(events.run());
        upkeep.spawn(jobs::run(timers.clone(), Arc::clone(&clock)));
        upkeep.spawn(tally.keep_looking());
        upkeep.spawn(keep_noticing(Arc::clone(&app)));
        if let Some(tls) = tls {
            upkeep.spawn(keep_certificate(tls, Arc::clone(machine)));
        }
        let sockets: Vec<_> = listeners.iter().filter_map(Listener::file).collect();
        let serving = tokio::spawn(accept::accept(
            listeners,
            router(Arc::clone(&app)),
            places,
            Arc::new(self.front.proxies()),
            stopped,
        ));

        let mut asked = None;
        if let Some(joined) = &joined {
            tokio::select! {
                () = joined.settle(&timers) => {}
                (name, _) = signals.next() => asked = Some(name),
            }
        }
        app.has_started();
        let sealing = Arc::clone(&app);
        upkeep.spawn(async move { reseal(&sealing).await });
        upkeep.spawn(weight::run(Arc::clone(&app)));
        let totals = timers.overview(0)?.totals;
        let pending = totals.of(StateKind::Pending) + totals.of(StateKind::Delivering);
        tracing::info!(
            version = VERSION,
            data,
            listen = listed(&listens),
            token = with_token,
            targets = allowed,
            snapshots = may_snapshot,
            "started"
        );
        let took = machine.now().saturating_since(began).as_millis();
        if self.dev.is_some() {
            let at = listens[0].at.address().expect("dev listens at an address");
            say(&banner(at, took, with_token));
        } else {
            let node = joined.as_ref().map(|joined| {
                let shards = timers.owned().len();
                format!(" node={} shards={shards}", joined.cluster.name())
            });
            let node = node.unwrap_or_default();
            // A node says first where its timers are.
            let opened = format!("opened_in_ms={took}");
            let rest = match joined {
                Some(_) => format!("{origin} {opened}"),
                None => format!("{opened} {origin}"),
            };
            let (first, others) = (&listens[0], listed(&listens[1..]));
            let others = match others.is_empty() {
                true => others,
                false => format!(" also={others}"),
            };
            say(&format!(
                "ready {first}{node} pending={pending} {rest}{others}"
            ));
        }

        let cause = match asked {
            Some(name) => Cause::Signal(name),
            None => tokio::select! {
                (name, _) = signals.next() => Cause::Signal(name),
                Some(reason) = failure.recv() => Cause::StoreFailed(reason),
            },
        };
        let temporary = self.dev.as_ref().map(|data| data.0.clone());
        tokio::spawn(async move {
            let (name, code) = signals.next().await;
            tracing::warn!("{name} again: not waiting any longer");
            if let Some(path) = temporary {
                remove(&path);
            }
            sockets.iter().for_each(SocketFile::remove);
            std::process::exit(code);
        });
        match &cause {
            Cause::Signal(_) => tracing::info!(%cause, grace = ?self.grace, "stopping"),
            Cause::StoreFailed(_) => {
                tracing::error!(%cause, "stopping: open the store again to go on");
            }
        }
        app.stop_batches();
        leaser.close();
        let grace = self.grace;
        let stopping = timers.clone();
        let stopped = tokio::task::spawn_blocking(move || match joined {
            Some(joined) => joined.stop(grace),
            None => stopping.stop(grace),
        });
        // A commit waits for a database that is away, for as long as that may be.
        let running = tokio::time::timeout(grace + STOP_AT_LAST, stopped).await;
        let Ok(running) = running else {
            tracing::error!(
                "the store cannot be reached: what was asked last is not known, and attempts that \
                 ran will be repeated"
            );
            std::process::exit(STORE_FAILED.into());
        };
        match running {
            Ok(0) => tracing::info!("stopped"),
            Ok(running) => tracing::warn!(running, "stopped: these attempts will be repeated"),
            Err(error) => tracing::error!(%error, "the scheduler did not stop cleanly"),
        }
        // The accepting side waits for its connections itself; if it is gone, so are they.
        stop.send(true).unwrap_or_default();
        serving.await.unwrap_or_default();
        if let Some((forwarder, server)) = peers {
            server.iter().for_each(PeerServer::stop);
            forwarder.stop();
        }
        upkeep.shutdown().await;
        // It may have failed while it stopped, with the outcomes that were recorded last.
        let failed = matches!(timers.health(), Health::Failed(_));
        Ok(if failed {
            ExitCode::from(STORE_FAILED)
        } else {
            ExitCode::SUCCESS
        })
    }
}

/// Refuses a place for snapshots in which nothing can be made: what is there of it is no directory,
/// leads nowhere, or belongs to somebody else. Changes nothing; what is not there is made with the
/// first snapshot.
fn must_take_files(place: &Path) -> Result<(), StartError> {
    let refused = |path: &Path, source| StartError::File {
        path: path.to_owned(),
        source,
    };
    let absolute = std::path::absolute(place).map_err(|source| refused(place, source))?;
    for there in absolute.ancestors() {
        match there.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(refused(place, source)),
            Ok(_) => {}
        }
        // Of a link, what it leads to.
        let found = there.metadata().map_err(|source| refused(place, source))?;
        if !found.is_dir() {
            return Err(refused(place, io::ErrorKind::NotADirectory.into()));
        }
        let allowed = rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK);
        return allowed.map_err(|error| refused(place, error.into()));
    }
    Ok(())
}

/// Divides the files that this process may open, and says how.
fn set_aside(
    limit: usize,
    store: OpenFiles,
    asked: usize,
    connections: usize,
) -> Result<Budget, StartError> {
    let budget = Budget::of(limit, descriptors::open(store), store, asked)?;
    let (deliveries, lookups) = (budget.attempts, budget.lookups);
    let callers = budget.callers(store).min(connections);
    let for_store = store.open + store.ahead;
    if deliveries < asked {
        tracing::warn!(
            limit,
            for_store,
            deliveries,
            callers,
            lookups,
            "the limit of open files is low: fewer deliveries run at a time"
        );
    } else {
        tracing::info!(
            limit,
            for_store,
            deliveries,
            kept = budget.kept(),
            callers,
            lookups,
            "open files"
        );
    }
    Ok(budget)
}

/// Knows what other nodes put of queues and endpoints: engines without work look at nothing.
/// And which part of limits is this node's.
async fn keep_knowing(catalogue: Arc<Catalogue>, flows: Arc<DeliveryLimits>, timers: Timers) {
    loop {
        tokio::time::sleep(SETTINGS_EVERY).await;
        catalogue.look_at_store(timers.clone()).await;
        flows.look_at_part(&timers);
        let (here, asking) = (Arc::clone(&catalogue), timers.clone());
        let asked = tokio::task::spawn_blocking(move || here.confirm(&asking)).await;
        asked.unwrap_or_else(|error| tracing::error!(%error, "the settings are not asked for"));
    }
}

/// Looks at the database, so that the log says what is wrong with it though nobody asks whether the
/// service is ready, and at the certificate that is shown to other nodes.
async fn keep_looking(timers: Timers, cluster: Option<Arc<Cluster>>, machine: Arc<dyn Clock>) {
    let mut before = Vec::new();
    loop {
        tokio::time::sleep(DATABASE_EVERY).await;
        let looking = timers.clone();
        let (here, now) = (cluster.clone(), machine.timestamp());
        let looked = tokio::task::spawn_blocking(move || {
            let certificate = here.as_ref().and_then(|cluster| cluster.certificate());
            if let Some(certificate) = certificate {
                certificate.look(now);
            }
            looking.reach()
        });
        let looked = looked.await;
        if let Ok(Err(error)) = looked {
            tracing::debug!(%error, "the database cannot be reached");
        }
        let troubles = cluster.as_ref().map(|cluster| cluster.troubles());
        let troubles = troubles.unwrap_or_default();
        for trouble in &troubles {
            if !before.contains(&trouble.reason) {
                tracing::warn!("{trouble}");
            }
        }
        before = troubles.into_iter().map(|trouble| trouble.reason).collect();
    }
}

/// Gives notice in the log of tokens that end soon.
async fn keep_noticing(app: Arc<App>) {
    let mut notices = Notices::default();
    loop {
        let known = access::known(&app);
        notices.give(&known, app.clock.timestamp(), app.clock.now());
        tokio::time::sleep(NOTICED_EVERY).await;
    }
}

/// Reads the certificate that callers are shown again when it changes.
async fn keep_certificate(tls: Arc<ServerTls>, machine: Arc<dyn Clock>) {
    loop {
        tokio::time::sleep(tls::LOOKED_EVERY).await;
        let (looking, now) = (Arc::clone(&tls), machine.timestamp());
        let looked = tokio::task::spawn_blocking(move || looking.look(now));
        looked.await.unwrap_or_default();
    }
}

/// These places, as one word.
fn listed(listens: &[Listen]) -> String {
    let listens: Vec<_> = listens.iter().map(ToString::to_string).collect();
    listens.join(",")
}

/// Gives callers the files that the store does not need.
async fn keep_places(places: Arc<Places>, budget: Budget, timers: Timers) {
    loop {
        tokio::time::sleep(FILES_EVERY).await;
        places.set_total(budget.callers(timers.open_files()));
        if places.have_ebbed() {
            // It takes locks of the heap.
            let given = tokio::task::spawn_blocking(countwheel_trim::give_back).await;
            tracing::debug!(?given, "connections have ebbed: what is free goes back");
        }
    }
}

/// Answers the connections of `listener`, at most `connections` at a time, until `stopped` says so,
/// then lets the answers under way leave. Cuts off who does not send or read for half a minute.
/// When all places are taken, the connection whose caller was waited for longest makes room for one
/// that comes.
pub async fn accept(
    listener: TcpListener,
    router: Router,
    connections: usize,
    stopped: watch::Receiver<bool>,
) {
    let places = Places::new(connections, Limits::default());
    let listeners = vec![Listener::of(listener)];
    accept::accept(listeners, router, places, Arc::default(), stopped).await;
}

/// How whoever started this starts the program.
pub(crate) fn program() -> &'static str {
    // Through cargo, there is no `countwheel` on the path.
    match std::env::var_os("CARGO") {
        Some(_) => "cargo run --release --",
        None => "countwheel",
    }
}

/// What `dev` says when it is ready.
fn banner(address: SocketAddr, took_ms: u128, with_token: bool) -> String {
    let program = program();
    let server = if address.port() == 7070 && address.ip().is_loopback() {
        String::new()
    } else {
        format!(" --server http://{address}")
    };
    let token = if with_token { "as set" } else { "not needed" };
    format!(
        "countwheel {VERSION}, for development: timers vanish when this ends, \
         and may be sent to this machine\n\
         \n\
         api        http://{address}/v1      token: {token}\n\
         dashboard  http://{address}/\n\
         echo       http://{address}/echo    answers 200; with ?fail=3, 503 three times first\n\
         \n\
         ready in {took_ms} ms. Try: {program} set order-42 --in 5s \
         --post http://{address}/echo --watch{server}"
    )
}

/// Prints for whoever started us. That nobody reads it is no reason to fail.
pub(crate) fn say(text: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .unwrap_or_default();
}

/// A directory of our own, removed when dropped.
pub(crate) struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn new() -> Result<Self, StartError> {
        let path = std::env::temp_dir().join(format!("countwheel-dev-{:016x}", random()?));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|source| StartError::File {
                path: path.clone(),
                source,
            })?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_dir_all(path) {
        tracing::warn!(%error, path = %path.display(), "the temporary data was not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_reached_where_other_machines_reach_it() {
        let listens = |plain: &[&str], tls: &[&str]| {
            let listen = |is_tls| {
                move |text: &&str| Listen {
                    at: text.parse().expect("a place"),
                    is_tls,
                }
            };
            let plain = plain.iter().map(listen(false));
            plain
                .chain(tls.iter().map(listen(true)))
                .collect::<Vec<_>>()
        };
        let reached = |plain: &[&str], tls: &[&str]| {
            let reached = reached(&listens(plain, tls));
            reached.map(|(at, scheme)| format!("{scheme}://{at}"))
        };
        let found = |text: &str| Some(text.to_owned());
        assert_eq!(reached(&["unix:/a"], &[]), None);
        let here = "127.0.0.1:70";
        assert_eq!(
            reached(&["unix:/a", here], &[]),
            found("http://127.0.0.1:70")
        );
        assert_eq!(reached(&[here], &["[::]:71"]), found("https://[::]:71"));
        assert_eq!(reached(&[], &["[::1]:71"]), found("https://[::1]:71"));
        let all = listed(&listens(&[here, "unix:/a"], &["[::]:71", "unix:/b"]));
        let expected = "http://127.0.0.1:70,unix:/a,https://[::]:71,https+unix:/b";
        assert_eq!(all, expected);
    }

    #[test]
    fn standbys_are_one_word() {
        let names = |names: &[&str]| Some(names.iter().map(|&it| it.to_owned()).collect());
        for (standbys, word) in [
            (None, "unknown"),
            (names(&[]), "none"),
            (names(&["standby1"]), "standby1"),
            (names(&["a b=1\n", "walreceiver"]), "a-b-1-,walreceiver"),
        ] {
            assert_eq!(sync(standbys), word);
        }
    }
}
