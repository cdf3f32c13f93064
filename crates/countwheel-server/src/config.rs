//! The operator's settings: flags, and the environment for secrets.

use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use countwheel_disk::DiskOptions;
use countwheel_durable::Config;
use countwheel_postgres::PostgresOptions;
use countwheel_time::{Clock, SystemClock};
use ipnet::IpNet;
use tracing_subscriber::filter::LevelFilter;

use crate::api::{BODY_BYTES, Token};
use crate::callers::Proxies;
use crate::cli;
use crate::flow::Flow;
use crate::guard::Targets;
use crate::places::Limits;
use crate::scrub::Pace;
use crate::server::StartError;
use crate::shown::Showing;
use crate::time::{format_time, parse_duration};

/// A token that other machines may try has at least so many bits.
pub(crate) const TOKEN_BITS: u32 = 128;
/// The bit of a file's mode that lets every user of the machine read it.
const READ_BY_OTHERS: u32 = 0o004;

/// `countwheel dev`: everything on this machine, data thrown away at exit.
#[derive(Args, Clone, Debug)]
pub struct Dev {
    /// Where to listen; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070", value_parser = listen)]
    pub listen: SocketAddr,
    /// What callers must show; needed to listen beyond this machine
    #[arg(long, env = "COUNTWHEEL_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Also deliver to this port, though it is one of those that are refused, such as 22 and 25;
    /// may be given more than once
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub allow_port: Vec<u16>,
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
    /// How the database is used
    #[command(flatten)]
    pub database: DatabaseUse,
    /// Where to listen; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070", value_parser = listen)]
    pub listen: SocketAddr,
    /// A file that holds what callers must show; COUNTWHEEL_TOKEN does the same. Needed to
    /// listen beyond this machine
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Also deliver to loopback, private and other addresses that are not public
    #[arg(long)]
    pub allow_private_targets: bool,
    /// Also deliver to this port, though it is one of those that are refused, such as 22 and 25;
    /// may be given more than once
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub allow_port: Vec<u16>,
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
    /// What is logged, and how
    #[command(flatten)]
    pub log: Log,
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
    },
    /// Upgrade the tables of an earlier version; a service that works on them goes on
    Upgrade {
        /// Where
        #[command(flatten)]
        database: Database,
    },
    /// Acknowledge that the database lost commits: the health of the service is well again
    AcknowledgeLoss {
        /// Where
        #[command(flatten)]
        database: Database,
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
    /// Whose X-Forwarded-For and PROXY protocol say who calls, such as 10.0.0.0/8 or 192.0.2.1; may
    /// be given more than once
    #[arg(long, value_name = "CIDR", value_parser = network)]
    pub trusted_proxy: Vec<IpNet>,
    /// How much memory the bodies of all requests that are being received or answered may take, in
    /// MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub body_memory: u32,
}

impl Default for Front {
    /// What `dev` has: the defaults of the flags.
    fn default() -> Self {
        let limits = Limits::default();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            connections: number(limits.connections),
            connections_per_address: number(limits.per_address),
            trusted_proxy: Vec::new(),
            body_memory: number(BODY_BYTES >> 20),
        }
    }
}

impl Front {
    /// How many connections there may be.
    pub(crate) fn limits(&self) -> Limits {
        let number = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        Limits {
            connections: number(self.connections),
            per_address: number(self.connections_per_address),
        }
    }

    /// Whose word about callers is taken.
    #[must_use]
    pub fn proxies(&self) -> Proxies {
        Proxies::new(self.trusted_proxy.clone())
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
        let say: fn(u64) -> String = match self.log_format {
            LogFormat::Text => left_out,
            LogFormat::Json => left_out_json,
        };
        // For as long as the process lives.
        let flow: &Flow = Box::leak(Box::new(Flow::new(Arc::new(SystemClock::new()), say)));
        let builder = tracing_subscriber::fmt()
            .with_max_level(self.log_level)
            .with_writer(|| Showing::line(flow.line(std::io::stderr())));
        let started = match self.log_format {
            LogFormat::Text => builder.try_init(),
            LogFormat::Json => builder.json().try_init(),
        };
        // Another subscriber is there: it logs.
        started.unwrap_or_default();
    }
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
        needed(token.transpose()?, self.listen, "--token", None)
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
        let how = "--token-file or COUNTWHEEL_TOKEN";
        needed(token, self.listen, how, self.token_file.as_deref())
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
        targets.with_ports(self.allow_port.clone())
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

/// Where other machines reach the service there has to be a token, and none that they find.
fn needed(
    token: Option<Token>,
    listen: SocketAddr,
    how: &'static str,
    file: Option<&Path>,
) -> Result<Option<Token>, StartError> {
    if listen.ip().is_loopback() {
        return Ok(token);
    }
    let Some(token) = token else {
        return Err(StartError::OpenToAll { listen, how });
    };
    let bits = token.bits();
    if bits < TOKEN_BITS {
        return Err(StartError::WeakToken { listen, bits });
    }
    if let Some(path) = file
        && let Ok(found) = path.metadata()
        && found.mode() & READ_BY_OTHERS != 0
    {
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
    let address = match text.strip_prefix("localhost:") {
        Some(port) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
        None => text.to_owned(),
    };
    address
        .parse()
        .map_err(|_| "an address is such as 127.0.0.1:7070 or [::1]:7070".to_owned())
}

/// A network, or the one of a single address.
fn network(text: &str) -> Result<IpNet, String> {
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "a network is such as 10.0.0.0/8, 2001:db8::/32 or 192.0.2.1".to_owned())
}

fn keep_done(text: &str) -> Result<Duration, String> {
    bounded(text, Duration::from_secs(3_650 * 86_400))
}

fn scrub_interval(text: &str) -> Result<Duration, String> {
    match text {
        "off" | "0" => Ok(Duration::ZERO),
        text => bounded(text, Duration::from_secs(3_650 * 86_400)),
    }
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
