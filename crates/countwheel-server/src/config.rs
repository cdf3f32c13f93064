//! The operator's settings: flags, and the environment for secrets.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::uri::Authority;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use countwheel_disk::DiskOptions;
use countwheel_durable::{Config, Due};
use countwheel_peers::PeerTls;
use countwheel_postgres::PostgresOptions;
use countwheel_time::{Clock, SystemClock};
use ipnet::IpNet;
use tracing_subscriber::filter::{LevelFilter, Targets as LevelsOfTargets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::writer::MakeWriterExt as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

pub use crate::answered::KeepAnswers;
use crate::api::access_log::TARGET;
use crate::api::audit::{Audit, KEEP};
use crate::api::cors::origin;
use crate::api::timers::{TIMEOUT_MAX, TIMEOUT_MIN};
use crate::api::{BODY_BYTES, Token};
use crate::callers::Proxies;
use crate::cli;
use crate::egress::EgressProxy;
use crate::events::STREAMS;
use crate::flow::Flow;
use crate::guard::{AllowedTarget, Targets};
use crate::listen::{At, Listen};
use crate::places::Limits;
use crate::resources::sealed::Vault;
use crate::scrub::Pace;
use crate::server::{HOW_TO_SET_A_TOKEN, StartError};
use crate::shown::Showing;
use crate::time::{format_time, parse_duration};
use crate::tls::{self, CallersCa};

/// A token that other machines may try has at least so many bits.
pub(crate) const TOKEN_BITS: u32 = 128;
/// Where it is listened if nothing is said.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7_070);
/// The bit of a file's mode that lets every user of the machine read it.
const READ_BY_OTHERS: u32 = 0o004;

/// `countwheel dev`: everything on this machine, data thrown away at exit.
#[derive(Args, Clone, Debug)]
pub struct Dev {
    /// Where to listen; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070", value_parser = listen)]
    pub listen: SocketAddr,
    /// How many nodes of a cluster, with ports that follow each other; from 2 on they share a
    /// PostgreSQL that is made for them, and has to be installed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8))]
    pub nodes: u16,
    /// What callers must show; needed to listen beyond this machine
    #[arg(long, env = "COUNTWHEEL_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Also deliver to this port, though it is one of those that are refused, such as 22 and 25;
    /// may be given more than once
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub allow_port: Vec<u16>,
    /// Deliveries trust the authorities of this file in PEM too, beside those of the system and those that come
    /// with the program; may be given more than once
    #[arg(long, value_name = "FILE")]
    pub ca_file: Vec<PathBuf>,
    /// Deliveries leave through this proxy (`http://proxy.example:3128`), by CONNECT, but for those whose endpoint
    /// names another
    #[arg(long, value_name = "URL")]
    pub egress_proxy: Option<EgressProxy>,
    /// What is kept of the answers of targets, of the last 4 attempts of each timer
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub keep_answers: KeepAnswers,
    /// What callers may take
    #[command(flatten)]
    pub front: Front,
    /// What is logged, and how
    #[command(flatten)]
    pub log: Log,
}

/// `countwheel serve`: timers that last.
#[derive(Args, Clone, Debug)]
#[command(group(ArgGroup::new("place").required(true).args(["data", "store"])))]
pub struct Serve {
    /// The data directory; a store is made in it if it is empty or does not exist
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Refuse to start where there is no store: see `countwheel init`
    #[arg(long, conflicts_with = "store")]
    pub must_exist: bool,
    /// In place of a data directory: the PostgreSQL that has the timers,
    /// postgres://user:password@host:5432/database
    #[arg(
        long,
        value_name = "URL",
        env = "COUNTWHEEL_STORE",
        hide_env_values = true
    )]
    pub store: Option<StoreUrl>,
    /// Whom to ask whether the timers of the directory were moved, if a move was not ended: its URL with the
    /// password
    #[arg(
        long,
        value_name = "URL",
        env = "COUNTWHEEL_MOVED_TO",
        hide_env_values = true
    )]
    pub moved_to: Option<StoreUrl>,
    /// How the database is used
    #[command(flatten)]
    pub database: DatabaseUse,
    /// This process as a node
    #[command(flatten)]
    pub node: NodeUse,
    /// Where to listen, and how
    #[command(flatten)]
    pub listening: Listening,
    /// A file that holds what callers must show; COUNTWHEEL_TOKEN does the same. Needed to
    /// listen beyond this machine
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Also deliver to loopback, private and other addresses that are not public
    #[arg(long)]
    pub allow_private_targets: bool,
    /// Also deliver to this address, range of addresses, host or domain, though it is not public, such as
    /// 10.1.0.0/16, hooks.lan or *.lan; with a port behind a colon, to that port alone, also if that is
    /// refused. May be given more than once
    #[arg(long, value_name = "TARGET")]
    pub allow_target: Vec<AllowedTarget>,
    /// Also deliver to this port, though it is one of those that are refused, such as 22 and 25;
    /// may be given more than once
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub allow_port: Vec<u16>,
    /// Deliveries trust the authorities of this file in PEM too, beside those of the system and those that come
    /// with the program; may be given more than once
    #[arg(long, value_name = "FILE")]
    pub ca_file: Vec<PathBuf>,
    /// Deliveries leave through this proxy (`http://proxy.example:3128`), by CONNECT, but for those whose endpoint
    /// names another
    #[arg(long, value_name = "URL")]
    pub egress_proxy: Option<EgressProxy>,
    /// What is kept of the answers of targets, of the last 4 attempts of each timer
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub keep_answers: KeepAnswers,
    /// A file with the keys that secrets of endpoints are sealed with: 32 bytes in base64 or hex, one key a line.
    /// The first seals, and all open
    #[arg(long, value_name = "FILE")]
    pub secret_key_file: Option<PathBuf>,
    /// What callers may take
    #[command(flatten)]
    pub front: Front,
    /// How long a done timer can still be asked for
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = keep_done)]
    pub keep_done: Duration,
    /// How many attempts run at a time; one queue has at most three quarters of them
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_in_flight: u32,
    /// How many timers a second start of those that were overdue at the start
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub catch_up_per_second: u32,
    /// How long the service has run before a timer starts whose last two attempts ended with the
    /// process; twice as long for each one more, at most 128 times
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = grace)]
    pub suspect_hold: Duration,
    /// How many timers are held in memory: the nearest ones
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(2..))]
    pub window: u32,
    /// How long a segment of the log is, in MiB: the log has from three to eleven of them
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub log_segment_mib: u32,
    /// Where snapshots go that callers ask for; without it there are none
    #[arg(long, value_name = "DIR", conflicts_with = "store")]
    pub snapshot_dir: Option<PathBuf>,
    /// How often all checksums are read, to find damage that nobody has come by; 0 or off for never
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = scrub_interval)]
    pub scrub_interval: Duration,
    /// How fast they are read, in MiB a second
    #[arg(long, value_name = "MIB", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub scrub_rate: u32,
    /// How long running deliveries may take to end at shutdown
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = grace)]
    pub shutdown_grace: Duration,
    /// Let the system write core dumps of the process, which have tokens, secrets and payloads in them
    #[arg(long)]
    pub core_dumps: bool,
    /// A node of `dev --nodes`: with a receiver, and ends when its standard input does
    #[arg(long, hide = true, requires = "store")]
    pub dev_node: bool,
    /// What is logged, and how
    #[command(flatten)]
    pub log: Log,
}

/// Where callers are listened for.
#[derive(Args, Clone, Debug)]
pub struct Listening {
    /// Where to listen without TLS: an address, of which port 0 takes any free one, or a socket (unix:/path);
    /// may be given more than once. 127.0.0.1:7070 if there is no --listen-tls either
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<At>,
    /// Where to listen with TLS; may be given more than once
    #[arg(long, value_name = "ADDRESS", requires_all = ["tls_cert", "tls_key"])]
    pub listen_tls: Vec<At>,
    /// The certificate (PEM) that callers are shown, with those between it and its authority; read again when it changes
    #[arg(long, value_name = "FILE", requires_all = ["listen_tls", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["listen_tls", "tls_cert"])]
    pub tls_key: Option<PathBuf>,
    /// What the authority of the certificate says about it by OCSP (a response in DER), which callers get with the
    /// certificate; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_ocsp: Option<PathBuf>,
    /// Certificates (PEM) that those of callers have to come from
    #[arg(long, value_name = "FILE", requires = "listen_tls")]
    pub tls_client_ca: Option<PathBuf>,
    /// Lists (PEM) of certificates of callers that are revoked, one of each authority at least; read again when the
    /// file changes
    #[arg(long, value_name = "FILE", requires = "tls_client_ca")]
    pub tls_client_crl: Option<PathBuf>,
    /// Whether callers have to show a certificate
    #[arg(
        long,
        value_name = "WHETHER",
        value_enum,
        default_value_t,
        requires = "tls_client_ca"
    )]
    pub tls_client_auth: ClientAuth,
    /// The mode of sockets (unix:/path), in octal digits
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = socket_mode)]
    pub socket_mode: u32,
}

/// Whether callers have to show a certificate.
#[derive(ValueEnum, Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum ClientAuth {
    /// A caller without one is refused in the handshake.
    #[default]
    Required,
    /// Callers without one are answered.
    Optional,
}

impl Listening {
    /// At all these places, of which one is at least.
    pub(crate) fn places(&self) -> Vec<Listen> {
        let plain = self.listen.iter().cloned().map(Listen::plain);
        let tls = self.listen_tls.iter().map(|at| Listen {
            at: at.clone(),
            is_tls: true,
        });
        let mut places: Vec<_> = plain.chain(tls).collect();
        if places.is_empty() {
            places.push(Listen::plain(At::Tcp(DEFAULT_LISTEN)));
        }
        places
    }

    /// The first place that other machines can reach.
    pub(crate) fn beyond(&self) -> Option<SocketAddr> {
        let places = self.places().into_iter();
        places
            .filter(|place| !place.at.is_local())
            .find_map(|place| place.at.address())
    }

    /// The files of TLS, if it is spoken.
    ///
    /// # Errors
    /// [`StartError::KeysForAll`] if every user may read the key, and other machines reach the service.
    pub(crate) fn tls(&self) -> Result<Option<tls::Files>, StartError> {
        let (Some(certificate), Some(key)) = (self.tls_cert.clone(), self.tls_key.clone()) else {
            return Ok(None);
        };
        if self.beyond().is_some() && is_read_by_others(&key) {
            return Err(StartError::KeysForAll { path: key });
        }
        let callers = self.tls_client_ca.clone().map(|file| CallersCa {
            file,
            revoked: self.tls_client_crl.clone(),
            is_required: self.tls_client_auth == ClientAuth::Required,
        });
        Ok(Some(tls::Files {
            certificate,
            key,
            ocsp: self.tls_ocsp.clone(),
            callers,
        }))
    }
}

/// The URL of a database, which may have a password: it is not shown.
#[derive(Clone)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// The URL, with its password.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for StoreUrl {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a URL")
    }
}

/// A cluster's database.
#[derive(Args, Clone, Debug)]
pub struct Database {
    /// The PostgreSQL: postgres://user:password@host:5432/database
    #[arg(
        long,
        visible_alias = "url",
        value_name = "URL",
        env = "COUNTWHEEL_STORE",
        hide_env_values = true
    )]
    pub store: StoreUrl,
    /// How it is used
    #[command(flatten)]
    pub database: DatabaseUse,
}

/// How a cluster's database is used.
#[derive(Args, Clone, Debug)]
pub struct DatabaseUse {
    /// Certificates (PEM) that the database's has to come from: the connection has TLS then
    #[arg(long, value_name = "FILE", requires = "store")]
    pub store_ca: Option<PathBuf>,
    /// The schema with the tables in the database
    #[arg(long, value_name = "NAME", default_value = "countwheel")]
    pub schema: String,
    /// Also use a database with which acknowledged timers may be lost, such as one with fsync off
    #[arg(long, requires = "store")]
    pub accept_loss: bool,
    /// Refuse a database that does not wait for a standby (synchronous_standby_names)
    #[arg(long, requires = "store", conflicts_with = "accept_loss")]
    pub require_standby: bool,
    /// What keeps the database's storage if its machine is lost: managed, if its vendor says so
    #[arg(long, value_name = "HOW", requires = "store", value_parser = ["managed"], conflicts_with = "require_standby")]
    pub durability: Option<String>,
}

impl Database {
    /// How the store is opened.
    #[must_use]
    pub fn options(&self) -> PostgresOptions {
        self.database.options(self.store.as_str())
    }
}

impl DatabaseUse {
    /// How the store at `url` is opened.
    #[must_use]
    pub fn options(&self, url: &str) -> PostgresOptions {
        let mut options = PostgresOptions::new(url);
        options.schema.clone_from(&self.schema);
        options.accept_loss = self.accept_loss;
        options.require_standby = self.require_standby;
        options.managed = self.durability.is_some();
        options.ca.clone_from(&self.store_ca);
        options
    }
}

/// This process as a node of a cluster: how it is called, and where others reach it.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Node of a cluster")]
pub struct NodeUse {
    /// How this node is called, unlike all others; host name and port unless given
    #[arg(long, value_name = "NAME", requires = "store", conflicts_with = "data", value_parser = node_name)]
    pub node_name: Option<String>,
    /// Where callers and other nodes reach this one; the address of --listen unless given
    #[arg(long, value_name = "HOST:PORT", requires = "store", conflicts_with = "data", value_parser = host_and_port)]
    pub advertise: Option<HostPort>,
    /// How long after its last sign of life a node loses its shards, from 2s to 60s
    #[arg(long, value_name = "DURATION", default_value = "5s", requires = "store", conflicts_with = "data", value_parser = lease_ttl)]
    pub lease_ttl: Duration,
    /// How long running deliveries of a shard may take to end before another node has it
    #[arg(long, value_name = "DURATION", default_value = "10s", requires = "store", conflicts_with = "data", value_parser = grace)]
    pub hand_over_grace: Duration,
    /// Where to listen for other nodes; port 0 takes any free one. Beyond this machine only with
    /// --peer-cert, --peer-key and --peer-ca
    #[arg(long, value_name = "ADDRESS", requires = "store", conflicts_with = "data", value_parser = listen)]
    pub peer_listen: Option<SocketAddr>,
    /// The certificate (PEM) that this node shows to other nodes
    #[arg(long, value_name = "FILE", requires_all = ["peer_listen", "peer_key", "peer_ca"], conflicts_with = "data")]
    pub peer_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["peer_listen", "peer_cert", "peer_ca"], conflicts_with = "data")]
    pub peer_key: Option<PathBuf>,
    /// Certificates (PEM) that those of all nodes have to come from
    #[arg(long, value_name = "FILE", requires_all = ["peer_listen", "peer_cert", "peer_key"], conflicts_with = "data")]
    pub peer_ca: Option<PathBuf>,
}

impl NodeUse {
    /// What nodes know each other by, if its files are given: all three or none.
    ///
    /// # Errors
    /// [`StartError::Peers`] if a file cannot be used.
    pub fn tls(&self) -> Result<Option<PeerTls>, StartError> {
        let (Some(cert), Some(key), Some(ca)) = (&self.peer_cert, &self.peer_key, &self.peer_ca)
        else {
            return Ok(None);
        };
        Ok(Some(PeerTls::from_files(cert, key, ca)?))
    }

    /// Where other nodes are listened for: where it is said, else on loopback if callers are there as
    /// well, else nowhere.
    ///
    /// # Errors
    /// [`StartError::OpenPeers`] if other machines could say anything there.
    pub fn peers(&self, callers: SocketAddr) -> Result<Option<SocketAddr>, StartError> {
        let here = callers.ip().is_loopback();
        let Some(listen) = self.peer_listen else {
            return Ok(here.then_some(SocketAddr::new(callers.ip(), 0)));
        };
        if listen.ip().is_loopback() || self.peer_cert.is_some() {
            return Ok(Some(listen));
        }
        Err(StartError::OpenPeers { listen })
    }

    /// How this node is called that listens there.
    #[must_use]
    pub fn name(&self, listens: SocketAddr) -> String {
        let named = self.node_name.clone();
        named.unwrap_or_else(|| default_name(&host_name(), listens.port()))
    }

    /// Where callers reach this node that listens there.
    #[must_use]
    pub fn advertised(&self, listens: SocketAddr) -> HostPort {
        let given = self.advertise.clone();
        given.unwrap_or_else(|| HostPort::of(listens, &host_name()))
    }

    /// Where other nodes reach this one that listens for them there: by the host that it says.
    #[must_use]
    pub fn advertised_peers(&self, listens: SocketAddr) -> HostPort {
        match &self.advertise {
            Some(advertised) => HostPort {
                host: advertised.host.clone(),
                port: listens.port(),
            },
            None => HostPort::of(listens, &host_name()),
        }
    }
}

/// A host by its name or its address, and a port.
///
/// ```
/// use countwheel_server::config::HostPort;
///
/// let at: HostPort = "db-2.example:7070".parse()?;
/// assert_eq!((at.host.as_str(), at.port), ("db-2.example", 7070));
/// assert_eq!("[::1]:7070".parse::<HostPort>()?.to_string(), "[::1]:7070");
/// assert!("http://a:7070".parse::<HostPort>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostPort {
    /// The host, as a URL has it: an address of IPv6 in brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl HostPort {
    /// An address; `host` stands for one that means all of the machine's.
    fn of(address: SocketAddr, host: &str) -> Self {
        let port = address.port();
        let host = match address.ip() {
            ip if ip.is_unspecified() => host.to_owned(),
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        Self { host, port }
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "where a node is reached is such as timers-2.example:7070".to_owned();
        let authority = text.parse::<Authority>().map_err(|_| wrong())?;
        let port = authority.port_u16().filter(|port| *port > 0);
        let host = authority.host();
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let is_host = match bare {
            Some(bare) => bare.parse::<Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(is_of_name),
        };
        // What else an authority may have, such as a user, stands before the host or behind it.
        let is_whole = text.strip_prefix(host).is_some_and(|rest| {
            let port = rest.strip_prefix(':').unwrap_or_default();
            port.bytes().all(|byte| byte.is_ascii_digit())
        });
        let port = port.filter(|_| is_host && is_whole).ok_or_else(wrong)?;
        let host = host.to_owned();
        Ok(Self { host, port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// How long the name of a node may be.
const NODE_NAME_MAX: usize = 63;

/// Whether a node may be called so.
#[must_use]
pub(crate) fn is_node_name(text: &str) -> bool {
    (1..=NODE_NAME_MAX).contains(&text.len()) && text.chars().all(is_of_node_name)
}

fn is_of_node_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || "._-:".contains(character)
}

/// The name of a node that was given none.
fn default_name(host: &str, port: u16) -> String {
    let port = format!(":{port}");
    let host = host.chars().take(NODE_NAME_MAX - port.len());
    let host = host.map(|one| if is_of_node_name(one) { one } else { '-' });
    host.chain(port.chars()).collect()
}

/// How this machine calls itself.
pub(crate) fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// `countwheel cluster`.
#[derive(Subcommand, Clone, Debug)]
pub enum Cluster {
    /// What is done to a cluster's database.
    #[command(flatten)]
    Tables(Tables),
    /// What is asked of its nodes.
    #[command(flatten)]
    Nodes(cli::cluster::Cluster),
}

/// What is done to a cluster's database.
#[derive(Subcommand, Clone, Debug)]
pub enum Tables {
    /// Make the tables of a cluster in a schema that has none
    Init {
        /// Where
        #[command(flatten)]
        database: Database,
        /// Into how many shards the timers are divided, for good: 64 for up to 8 nodes
        #[arg(long, value_name = "N", default_value_t = 64, value_parser = shards)]
        shards: u16,
        /// How long done timers can be kept at the most, for good
        #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = keep_done)]
        keep_done: Duration,
        /// Print JSON, on one line
        #[arg(long)]
        json: bool,
    },
    /// Upgrade the tables of an earlier version; a service that works on them goes on
    Upgrade {
        /// Where
        #[command(flatten)]
        database: Database,
        /// Print JSON, on one line
        #[arg(long)]
        json: bool,
    },
    /// Acknowledge that the database lost commits: the health of the service is well again
    AcknowledgeLoss {
        /// Where
        #[command(flatten)]
        database: Database,
        /// Print JSON, on one line
        #[arg(long)]
        json: bool,
    },
    /// Give up a move of all timers that is under way, or whose process was killed: they stay where they are
    GiveUpMove {
        /// Where
        #[command(flatten)]
        database: Database,
        /// Print JSON, on one line
        #[arg(long)]
        json: bool,
    },
    /// Make tables ready that were restored from a backup, while no node lives: what was given after the
    /// backup is not given again
    Restored {
        /// Where
        #[command(flatten)]
        database: Database,
        /// Print JSON, on one line
        #[arg(long)]
        json: bool,
    },
}

/// The numbers of shards that a cluster may have.
fn shards(text: &str) -> Result<u16, String> {
    match text {
        "64" => Ok(64),
        "256" => Ok(256),
        "1024" => Ok(1_024),
        _ => Err("a cluster has 64, 256 or 1024 shards".to_owned()),
    }
}

/// What callers may take of the service.
#[derive(Args, Clone, Debug)]
pub struct Front {
    /// How many connections callers may have at a time, as far as the limit of open files goes
    #[arg(long, value_name = "N", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(8..=1_000_000))]
    pub connections: u32,
    /// How many of them one address may have, and at most three quarters; addresses of one /64 of
    /// IPv6 count as one
    #[arg(long, value_name = "N", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections_per_address: u32,
    /// How many streams of events there may be at a time
    #[arg(long, value_name = "N", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub event_streams: u32,
    /// How long entries of the audit log are kept; 0 or off for no log
    #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = audit_keep)]
    pub audit_keep: Duration,
    /// Note each set, move and removal of a timer in the audit log as well
    #[arg(long)]
    pub audit_timers: bool,
    /// Write a line of the log for each request: who asked for what, by its names, and how it was answered; none for probes
    #[arg(long)]
    pub access_log: bool,
    /// Whose X-Forwarded-For and PROXY protocol say who calls, such as 10.0.0.0/8 or 192.0.2.1; may
    /// be given more than once
    #[arg(long, value_name = "CIDR", value_parser = network)]
    pub trusted_proxy: Vec<IpNet>,
    /// Whose web pages may call from a browser, such as `https://example.com`; may be given more than once. Without it no
    /// page of another origin can
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub cors_origin: Vec<HeaderValue>,
    /// How much memory the bodies of all requests that are being received or answered may take, in
    /// MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub body_memory: u32,
    /// How long the body of a timer may be in a queue whose payload_limit allows it, in MiB; no
    /// longer than --body-memory has room for
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub payload_ceiling_mib: u32,
    /// Whether /metrics needs no token where the rest does
    #[arg(long)]
    pub open_metrics: bool,
    /// How long an attempt may take: the ceiling of the timeouts of timers, endpoints and queues
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = timeout_ceiling)]
    pub timeout_ceiling: Duration,
}

impl Default for Front {
    /// What `dev` has: the defaults of the flags.
    fn default() -> Self {
        let limits = Limits::default();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            connections: number(limits.connections),
            connections_per_address: number(limits.per_address),
            event_streams: number(STREAMS),
            audit_keep: KEEP,
            audit_timers: false,
            access_log: false,
            trusted_proxy: Vec::new(),
            cors_origin: Vec::new(),
            body_memory: number(BODY_BYTES >> 20),
            payload_ceiling_mib: 16,
            open_metrics: false,
            timeout_ceiling: TIMEOUT_MAX,
        }
    }
}

impl Front {
    /// What is noted in the audit log, and for how long.
    pub(crate) fn audit(&self) -> Audit {
        Audit::new(self.audit_keep, self.audit_timers)
    }

    /// How many connections there may be.
    pub(crate) fn limits(&self) -> Limits {
        let number = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        Limits {
            connections: number(self.connections),
            per_address: number(self.connections_per_address),
        }
    }

    /// How many streams of events there may be.
    pub(crate) fn event_streams(&self) -> usize {
        usize::try_from(self.event_streams).unwrap_or(usize::MAX)
    }

    /// Whose word about callers is taken.
    #[must_use]
    pub fn proxies(&self) -> Proxies {
        Proxies::new(self.trusted_proxy.clone())
    }

    /// How long the bodies of timers may be, and how much memory there is for those of requests, in bytes.
    pub(crate) fn payloads(&self) -> (u64, usize) {
        let ceiling = u64::from(self.payload_ceiling_mib) << 20;
        (ceiling, self.body_bytes())
    }

    /// How many bytes of bodies there may be.
    pub(crate) fn body_bytes(&self) -> usize {
        usize::try_from(self.body_memory).map_or(usize::MAX, |mib| mib << 20)
    }
}

/// What is logged, and how.
#[derive(Args, Clone, Debug)]
pub struct Log {
    /// How log lines are written, on standard error
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// The least that is logged: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: LevelFilter,
}

/// How log lines are written.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Log {
    /// Begins to log. Once in a process; a second call changes nothing.
    pub fn start(&self) {
        self.begin(LevelFilter::OFF);
    }

    /// The same, with the lines of the access log at every level if callers have one.
    pub fn start_for(&self, front: &Front) {
        self.begin(match front.access_log {
            true => LevelFilter::INFO,
            false => LevelFilter::OFF,
        });
    }

    fn begin(&self, of_accesses: LevelFilter) {
        let say: fn(u64) -> String = match self.log_format {
            LogFormat::Text => left_out,
            LogFormat::Json => left_out_json,
        };
        // For as long as the process lives.
        let flow: &Flow = Box::leak(Box::new(Flow::new(Arc::new(SystemClock::new()), say)));
        let builder = tracing_subscriber::fmt()
            // Other crates in a build may turn colours on, and what escapes them is no help in a file.
            .with_ansi(false)
            .with_max_level(self.log_level.max(of_accesses))
            .with_writer(writer(flow, io::stderr));
        let levels = LevelsOfTargets::new()
            .with_default(self.log_level)
            .with_target(TARGET, of_accesses);
        let started = match self.log_format {
            LogFormat::Text => builder.finish().with(levels).try_init(),
            LogFormat::Json => builder.json().finish().with(levels).try_init(),
        };
        // Another subscriber is there: it logs.
        started.unwrap_or_default();
    }
}

/// Writes lines of the log. Those of the access log are neither counted nor left out: there is one for each request.
fn writer<W: io::Write + 'static>(
    flow: &'static Flow,
    out: fn() -> W,
) -> impl for<'a> MakeWriter<'a> + 'static {
    let counted = move || Showing::line(flow.line(out()));
    let each = move || Showing::line(out());
    counted
        .with_filter(|line| line.target() != TARGET)
        .or_else(each)
}

/// The line of a log that says how many were left out before it.
fn left_out(lines: u64) -> String {
    let now = format_time(SystemClock::new().timestamp());
    format!("{now}  WARN countwheel_server: lines of the log were left out lines={lines}\n")
}

/// The same as JSON.
fn left_out_json(lines: u64) -> String {
    let line = serde_json::json!({
        "timestamp": format_time(SystemClock::new().timestamp()),
        "level": "WARN",
        "fields": {"message": "lines of the log were left out", "lines": lines},
        "target": "countwheel_server",
    });
    format!("{line}\n")
}

/// The layout with segments of so many MiB.
fn disk(segment_mib: u32) -> DiskOptions {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = u64::from(segment_mib) << 20;
    options
}

/// `countwheel init`: an empty store.
#[derive(Args, Clone, Debug)]
pub struct Init {
    /// The data directory to make: empty, or not there
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// How long a segment of the log is, in MiB: as in `serve`
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub log_segment_mib: u32,
    /// What is logged, and how
    #[command(flatten)]
    pub log: Log,
}

impl Init {
    /// How the new data directory is laid out.
    #[must_use]
    pub fn disk(&self) -> DiskOptions {
        disk(self.log_segment_mib)
    }
}

impl Dev {
    /// How the data directory is laid out: small, since it is made in a moment.
    #[must_use]
    pub fn disk(&self) -> DiskOptions {
        disk(4)
    }

    /// Where deliveries may go: to this machine too.
    #[must_use]
    pub fn targets(&self) -> Targets {
        Targets::any().with_ports(self.allow_port.clone())
    }

    /// The token that callers must show, if any.
    ///
    /// # Errors
    /// If it is none, or missing where it is needed.
    pub fn token(&self) -> Result<Option<Token>, StartError> {
        let token = self.token.as_deref().map(|text| {
            Token::new(text).ok_or(StartError::Token {
                origin: "--token".to_owned(),
            })
        });
        let beyond = (!self.listen.ip().is_loopback()).then_some(self.listen);
        needed(token.transpose()?, beyond, "--token", None)
    }
}

impl Serve {
    /// The token that callers must show, if any: from the file, else from the environment.
    ///
    /// # Errors
    /// If it cannot be read, is none, or is missing where it is needed.
    pub fn token(&self) -> Result<Option<Token>, StartError> {
        let token = match &self.token_file {
            Some(path) => Some(token_from(path)?),
            None => match std::env::var("COUNTWHEEL_TOKEN") {
                Ok(text) => Some(Token::new(&text).ok_or(StartError::Token {
                    origin: "COUNTWHEEL_TOKEN".to_owned(),
                })?),
                Err(std::env::VarError::NotPresent) => None,
                Err(std::env::VarError::NotUnicode(_)) => {
                    return Err(StartError::Token {
                        origin: "COUNTWHEEL_TOKEN".to_owned(),
                    });
                }
            },
        };
        let Some(token) = token else {
            // Whether one is stored, the store says once it is open.
            return Ok(None);
        };
        let beyond = self.listening.beyond();
        needed(
            Some(token),
            beyond,
            HOW_TO_SET_A_TOKEN,
            self.token_file.as_deref(),
        )
    }

    /// What seals secrets. Where no other machine asks for what is stored, they may be stored as they are.
    ///
    /// # Errors
    /// If the file of keys cannot be used, or other users may read it and other machines reach the service.
    pub(crate) fn vault(&self) -> Result<Vault, StartError> {
        let here = self.listening.beyond().is_none();
        let Some(file) = &self.secret_key_file else {
            return Ok(Vault::without_key(here));
        };
        let vault = Vault::of_file(file)?;
        if !here && is_read_by_others(file) {
            let path = file.clone();
            return Err(StartError::KeysForAll { path });
        }
        Ok(vault)
    }

    /// How the data directory is laid out.
    #[must_use]
    pub fn disk(&self) -> DiskOptions {
        disk(self.log_segment_mib)
    }

    /// Where deliveries may go.
    #[must_use]
    pub fn targets(&self) -> Targets {
        let targets = if self.allow_private_targets {
            Targets::any()
        } else {
            Targets::public()
        };
        let targets = targets.with_ports(self.allow_port.clone());
        targets.with_allowed(self.allow_target.clone())
    }

    /// How the store is scrubbed, if it is.
    pub(crate) fn scrub(&self) -> Option<Pace> {
        let interval = Some(self.scrub_interval).filter(|interval| !interval.is_zero())?;
        let bytes_per_second = u64::from(self.scrub_rate) << 20;
        Some(Pace {
            interval,
            bytes_per_second,
        })
    }

    /// The limits of the scheduler. `seed` is that of the jitter.
    #[must_use]
    pub fn limits(&self, seed: u64) -> Config {
        let number = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        Config {
            window: number(self.window),
            max_in_flight: number(self.max_in_flight),
            catch_up_per_second: self.catch_up_per_second,
            keep_done: self.keep_done,
            suspect_hold: self.suspect_hold,
            seed,
            ..Config::default()
        }
    }
}

/// Whether every user of the machine may read a file.
fn is_read_by_others(file: &Path) -> bool {
    let found = file.metadata();
    found.is_ok_and(|found| found.mode() & READ_BY_OTHERS != 0)
}

/// Where other machines reach the service there has to be a token, and none that they find.
fn needed(
    token: Option<Token>,
    beyond: Option<SocketAddr>,
    how: &'static str,
    file: Option<&Path>,
) -> Result<Option<Token>, StartError> {
    let Some(listen) = beyond else {
        return Ok(token);
    };
    let Some(token) = token else {
        return Err(StartError::OpenToAll { listen, how });
    };
    let bits = token.bits();
    if bits < TOKEN_BITS {
        return Err(StartError::WeakToken { listen, bits });
    }
    if let Some(path) = file.filter(|path| is_read_by_others(path)) {
        let path = path.to_owned();
        return Err(StartError::TokenForAll { listen, path });
    }
    Ok(Some(token))
}

fn token_from(path: &Path) -> Result<Token, StartError> {
    let text = std::fs::read_to_string(path).map_err(|source| StartError::File {
        path: path.to_owned(),
        source,
    })?;
    Token::new(text.trim_end()).ok_or_else(|| StartError::Token {
        origin: path.display().to_string(),
    })
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    address(text).map_err(|_| "an address is such as 127.0.0.1:7070 or [::1]:7070".to_owned())
}

/// The bits of a socket's mode.
fn socket_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok();
    mode.filter(|mode| *mode <= 0o777 && text.bytes().all(|byte| byte.is_ascii_digit()))
        .ok_or_else(|| "a mode is such as 0600 or 0660".to_owned())
}

/// An address, where `localhost` is one.
pub(crate) fn address(text: &str) -> Result<SocketAddr, AddrParseError> {
    let address = match text.strip_prefix("localhost:") {
        Some(port) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
        None => text.to_owned(),
    };
    address.parse()
}

/// A network, or the one of a single address.
fn network(text: &str) -> Result<IpNet, String> {
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "a network is such as 10.0.0.0/8, 2001:db8::/32 or 192.0.2.1".to_owned())
}

fn timeout_ceiling(text: &str) -> Result<Duration, String> {
    let ceiling = bounded(text, TIMEOUT_MAX)?;
    if ceiling < TIMEOUT_MIN {
        return Err("a timeout is at least 100ms".to_owned());
    }
    Ok(ceiling)
}

fn keep_done(text: &str) -> Result<Duration, String> {
    bounded(text, Duration::from_secs(3_650 * 86_400))
}

fn audit_keep(text: &str) -> Result<Duration, String> {
    match text {
        "off" | "0" => Ok(Duration::ZERO),
        text => bounded(text, Due::MAX_AHEAD),
    }
}

fn scrub_interval(text: &str) -> Result<Duration, String> {
    match text {
        "off" | "0" => Ok(Duration::ZERO),
        text => bounded(text, Duration::from_secs(3_650 * 86_400)),
    }
}

fn node_name(text: &str) -> Result<String, String> {
    if is_node_name(text) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "a node's name has 1 to {NODE_NAME_MAX} ASCII letters, digits and . _ - :"
    ))
}

fn host_and_port(text: &str) -> Result<HostPort, String> {
    text.parse()
}

fn lease_ttl(text: &str) -> Result<Duration, String> {
    const ALLOWED: RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(60);
    parse_duration(text)
        .filter(|ttl| ALLOWED.contains(ttl))
        .ok_or_else(|| "a lease lasts from 2s to 60s".to_owned())
}

fn grace(text: &str) -> Result<Duration, String> {
    bounded(text, Duration::from_secs(3_600))
}

fn bounded(text: &str, most: Duration) -> Result<Duration, String> {
    parse_duration(text)
        .filter(|duration| *duration <= most)
        .ok_or_else(|| {
            let most = crate::time::format_duration(most);
            format!("a duration is such as 30s or 1h 30m, at most {most}")
        })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use countwheel_time::ManualClock;
    use parking_lot::Mutex;

    use super::*;

    #[derive(Parser, Debug)]
    struct Line {
        #[arg(long, conflicts_with = "store")]
        data: Option<String>,
        #[arg(long)]
        store: Option<String>,
        #[command(flatten)]
        node: NodeUse,
    }

    fn line(arguments: &[&str]) -> Result<NodeUse, String> {
        let store = ["countwheel", "--store", "postgres://db/timers"];
        let line = Line::try_parse_from(store.iter().chain(arguments));
        line.map(|line| line.node)
            .map_err(|error| error.to_string())
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    /// All lines of a second had one bound: a flood of requests would have left out its own lines, and those of errors.
    #[test]
    fn each_line_of_the_access_log_is_written_and_takes_the_place_of_no_other() {
        static WRITTEN: Mutex<Vec<u8>> = Mutex::new(Vec::new());
        struct Out;
        impl io::Write for Out {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                WRITTEN.lock().extend_from_slice(bytes);
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let flow = Flow::new(Arc::new(ManualClock::new()), |_| String::new());
        let flow: &Flow = Box::leak(Box::new(flow));
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(writer(flow, || Out))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..1_500 {
                tracing::info!(target: TARGET, "a request\nof the log");
                tracing::error!("something else");
            }
        });
        let written = std::mem::take(&mut *WRITTEN.lock());
        let text = String::from_utf8(written).expect("text");
        let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
        assert_eq!(
            count(" countwheel::access: a request\\u000aof the log"),
            1_500
        );
        assert_eq!(count("something else"), 1_000);
        assert_eq!(text.lines().count(), 2_500);
    }

    #[test]
    fn the_options_of_a_node_have_bounds() {
        let longest = "n".repeat(NODE_NAME_MAX);
        for good in [
            &["--node-name", "db-2.example:7070"][..],
            &["--node-name", &longest],
            &["--lease-ttl", "2s"],
            &["--lease-ttl", "60s"],
            &["--advertise", "[::1]:7070"],
        ] {
            assert!(line(good).is_ok(), "{good:?}");
        }
        let too_long = "n".repeat(NODE_NAME_MAX + 1);
        for bad in [
            &["--node-name", ""][..],
            &["--node-name", "a b"],
            &["--node-name", "größe"],
            &["--node-name", &too_long],
            &["--lease-ttl", "1999ms"],
            &["--lease-ttl", "61s"],
            &["--advertise", "a"],
            &["--advertise", "a:0"],
            &["--advertise", "user@a:7070"],
            &["--advertise", "http://a:7070"],
            &["--advertise", "a(b:7070"],
            &["--advertise", "[1::x]:7070"],
            // The fuzzer found this one: it was taken, and the node told others another host.
            &["--advertise", "a[0:b::1]:1"],
            &[
                "--peer-listen",
                "127.0.0.1:0",
                "--peer-cert",
                "c",
                "--peer-key",
                "k",
            ],
            &["--peer-cert", "c", "--peer-key", "k", "--peer-ca", "a"],
        ] {
            assert!(line(bad).is_err(), "{bad:?}");
        }
        let alone = Line::try_parse_from(["countwheel", "--node-name", "a"]);
        assert!(alone.is_err(), "a node is on a database");
        for option in [
            "--node-name=a",
            "--lease-ttl=5s",
            "--advertise=a:1",
            "--peer-listen=[::1]:0",
        ] {
            let line = Line::try_parse_from(["countwheel", "--data", "d", option]);
            assert!(line.is_err(), "{option} means nothing for a directory");
        }
    }

    #[test]
    fn a_trial_has_one_to_eight_nodes() {
        #[derive(Parser, Debug)]
        struct Trial {
            #[command(flatten)]
            dev: Dev,
        }
        let nodes = |arguments: &[&str]| {
            let trial = Trial::try_parse_from([&["countwheel"], arguments].concat());
            trial.ok().map(|trial| trial.dev.nodes)
        };
        assert_eq!(nodes(&[]), Some(1));
        for (text, expected) in [
            ("0", None),
            ("1", Some(1)),
            ("2", Some(2)),
            ("8", Some(8)),
            ("9", None),
            ("", None),
            ("three", None),
        ] {
            assert_eq!(nodes(&["--nodes", text]), expected, "{text:?}");
        }
    }

    #[test]
    fn nodes_are_listened_for_beyond_loopback_only_with_certificates() {
        let peers = |arguments: &[&str], callers| line(arguments).map(|it| it.peers(at(callers)));
        let open = ["--peer-listen", "0.0.0.0:7071"];
        assert!(matches!(
            peers(&open, "127.0.0.1:7070"),
            Ok(Err(StartError::OpenPeers { .. }))
        ));
        let files = ["--peer-cert", "c", "--peer-key", "k", "--peer-ca", "a"];
        let known = [&open[..], &files].concat();
        let Ok(Ok(Some(listen))) = peers(&known, "0.0.0.0:7070") else {
            panic!("it is allowed");
        };
        assert_eq!(listen, at("0.0.0.0:7071"));
        assert!(matches!(peers(&[], "0.0.0.0:7070"), Ok(Ok(None))));
        let Ok(Ok(Some(listen))) = peers(&[], "127.0.0.1:7070") else {
            panic!("they find each other on one machine");
        };
        assert_eq!(listen, at("127.0.0.1:0"));
    }

    #[test]
    fn a_node_is_reached_where_it_says() {
        let node = line(&["--advertise", "a.example:80", "--node-name", "a"]).expect("it is right");
        let listens = at("0.0.0.0:7071");
        assert_eq!(node.name(listens), "a");
        assert_eq!(node.advertised(listens).to_string(), "a.example:80");
        assert_eq!(node.advertised_peers(listens).to_string(), "a.example:7071");
        let silent = line(&[]).expect("it is right");
        let listens = at("[2001:db8::1]:7070");
        assert_eq!(silent.advertised(listens).to_string(), "[2001:db8::1]:7070");
        assert!(
            is_node_name(&silent.name(listens)),
            "{}",
            silent.name(listens)
        );
        let long = default_name(&"h_ö".repeat(40), 65_535);
        assert!(is_node_name(&long) && long.ends_with(":65535"), "{long}");
    }
}
