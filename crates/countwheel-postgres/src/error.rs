//! Why a database cannot be used.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use countwheel_time::Timestamp;
use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;

use crate::link::Unopened;
use crate::session::Failure;

/// The port of a URL that names none.
const USUAL_PORT: u16 = 5432;

/// Why a store in a database was not opened. Nothing in the database was changed.
///
/// ```
/// use countwheel_postgres::{PostgresError, PostgresOptions, PostgresStore};
///
/// let options = PostgresOptions::new("postgres://127.0.0.1:1/timers");
/// let refused = PostgresStore::open(&options).expect_err("nobody listens there");
/// assert!(matches!(refused, PostgresError::Unreachable { .. }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// The text is no URL of a PostgreSQL.
    #[error("not the URL of a PostgreSQL: {problem}; one is postgres://user@host:5432/database")]
    Url {
        /// What is wrong with it.
        problem: String,
    },
    /// The name of a schema is 1 to 63 of `a` to `z`, `0` to `9` and `_`, and begins with no digit.
    #[error(
        "{schema:?} is no schema: its name is 1 to 63 of a to z, 0 to 9 and _, and begins with no digit"
    )]
    Schema {
        /// What was given.
        schema: String,
    },
    /// The file with the authorities of the server's certificate cannot be used.
    #[error("the certificates in {} cannot be used: {problem}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// No connection: nobody listens there, the host has no address, or no answer came.
    #[error("the database cannot be reached: {reason}")]
    Unreachable {
        /// What the driver or the server said.
        reason: String,
    },
    /// The server has no connection left, for anybody or for this user.
    #[error(
        "the database server takes no more connections, and a node needs {needed}: raise max_connections \
         there ({reason})"
    )]
    NoConnections {
        /// How many a store opens.
        needed: usize,
        /// What the server said.
        reason: String,
    },
    /// The server knows no such user.
    #[error("the database server has no role {role:?}: make it there, or name another in the URL")]
    NoRole {
        /// Who asked.
        role: String,
    },
    /// The password is not that of the user. A server that asks for passwords says the same of a user
    /// that it does not know.
    #[error("the password of role {role:?} is wrong, or the database server has no such role")]
    WrongPassword {
        /// Who asked.
        role: String,
    },
    /// The server asks for a password, and the URL has none.
    #[error("the database server asks for the password of role {role:?}, and the URL has none")]
    NoPassword {
        /// Who asked.
        role: String,
    },
    /// The server has no such database.
    #[error(
        "the server has no database {database:?}: make it there (createdb), or name another in the URL"
    )]
    NoDatabase {
        /// The database.
        database: String,
    },
    /// The connection was to have TLS, and the server has none.
    #[error(
        "the database server has no TLS: turn ssl on there, or leave out --store-ca and sslmode=require"
    )]
    NoTls,
    /// The rules of the server (`pg_hba.conf`) keep this user out, or its connection without TLS.
    #[error("the database server does not admit this connection: {reason}")]
    NotAdmitted {
        /// What it said.
        reason: String,
    },
    /// The server refused a statement of the opening.
    #[error("the database refused: {reason}")]
    Refused {
        /// What it said.
        reason: String,
    },
    /// There is no cluster in that schema.
    #[error("there is no cluster in schema {schema}: make one with `countwheel cluster init`")]
    NoCluster {
        /// The schema.
        schema: String,
    },
    /// There is a cluster in that schema already.
    #[error(
        "there is a cluster of {shards} shards in schema {schema} already; nothing was changed"
    )]
    Exists {
        /// The schema.
        schema: String,
        /// Its number of shards.
        shards: u16,
    },
    /// The schema is of a later version of this program.
    #[error(
        "schema {schema} has version {found}, and this program knows versions up to {known}: \
         use a later program"
    )]
    LaterSchema {
        /// The schema.
        schema: String,
        /// Its version.
        found: u32,
        /// The latest that this program knows.
        known: u32,
    },
    /// The schema is of an earlier version of this program.
    #[error(
        "schema {schema} has version {found}, and this program needs version {needed}: \
         run `countwheel cluster upgrade`"
    )]
    EarlierSchema {
        /// The schema.
        schema: String,
        /// Its version.
        found: u32,
        /// The version that this program needs.
        needed: u32,
    },
    /// The cluster keeps done timers for less long.
    #[error(
        "done timers are to be kept for {} s, and the cluster in schema {schema} was made to keep them \
         for {} s at most: keep them for less long, or make a cluster for longer",
        wanted.as_secs_f64(),
        longest.as_secs_f64()
    )]
    KeptTooLong {
        /// The schema.
        schema: String,
        /// For how long they are to be kept.
        wanted: Duration,
        /// For how long the cluster can keep them.
        longest: Duration,
    },
    /// A node works on tables that are to be made ready after a restore, or whose timers are to be moved away; or
    /// may go on to.
    #[error(
        "node {node} lives: its lease ends at {ends}. Stop all nodes, and try again after that"
    )]
    NodeLives {
        /// The node, of several that whose lease ends last.
        node: String,
        /// When its lease ends, by the clock of the database.
        ends: Timestamp,
    },
    /// Timers are moved into these tables or out of them, or were when whoever moved them ended.
    #[error(
        "a move between schema {schema} and {place} is under way: wait for its end, or for 10 s after the \
         process has ended that makes it"
    )]
    Moving {
        /// The schema.
        schema: String,
        /// Where the timers come from, or go to.
        place: String,
    },
    /// Timers are moved into tables that have none.
    #[error(
        "schema {schema} has timers or settings of its own: move into a cluster that was just made \
         (`countwheel cluster init --schema`)"
    )]
    NotEmpty {
        /// The schema.
        schema: String,
    },
    /// The timers of these tables are elsewhere.
    #[error("the timers of schema {schema} were moved to {place}")]
    MovedAway {
        /// The schema.
        schema: String,
        /// Where they are.
        place: String,
    },
    /// What the tables say of the cluster cannot be read.
    #[error("schema {schema} is damaged: {problem}")]
    Damaged {
        /// The schema.
        schema: String,
        /// What does not add up.
        problem: String,
    },
    /// A setting of the server with which acknowledged timers may be lost.
    #[error("{setting} is {value}, with which acknowledged timers may be lost: {remedy}")]
    Unsafe {
        /// The setting.
        setting: &'static str,
        /// What it is.
        value: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The server or what stands before it cannot hold this store.
    #[error("{found}; {remedy}")]
    Unfit {
        /// What was found.
        found: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The system gave no runtime or no random numbers.
    #[error("cannot start: {reason}")]
    System {
        /// What it said.
        reason: String,
    },
}

impl PostgresError {
    /// Why no connection was opened by `config`.
    pub(crate) fn unopened(unopened: &Unopened, config: &Config, needed: usize) -> Self {
        let reason = unopened.reason();
        let Unopened::Driver(error) = unopened else {
            return Self::Unreachable { reason };
        };
        let role = || config.get_user().unwrap_or_default().to_owned();
        let cause = error.source();
        if let Some(refused) = error.as_db_error() {
            let is_known = |code: &SqlState| refused.code() == code;
            return match () {
                () if is_known(&SqlState::TOO_MANY_CONNECTIONS) => {
                    Self::NoConnections { needed, reason }
                }
                () if is_known(&SqlState::INVALID_PASSWORD) => Self::WrongPassword { role: role() },
                () if is_known(&SqlState::INVALID_CATALOG_NAME) => Self::NoDatabase {
                    database: config.get_dbname().map_or_else(role, str::to_owned),
                },
                // The text is of the server's language, but a name without rules is in `pg_hba.conf`.
                () if is_known(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
                    match refused.message().contains("pg_hba.conf") {
                        true => Self::NotAdmitted { reason },
                        false => Self::NoRole { role: role() },
                    }
                }
                () => Self::Unreachable { reason },
            };
        }
        if let Some(refused) = cause.and_then(|cause| cause.downcast_ref::<io::Error>()) {
            let of = |what: &str| Self::Unreachable {
                reason: format!("{what} ({refused})"),
            };
            if refused.kind() == io::ErrorKind::ConnectionRefused {
                return of(&format!("nobody listens at {}", places(config)));
            }
            if refused.to_string().contains("lookup") {
                return of(&format!("no address is known of {}", places(config)));
            }
        }
        match cause.map(ToString::to_string).as_deref() {
            Some("server does not support TLS") => Self::NoTls,
            Some("password missing") => Self::NoPassword { role: role() },
            _ => Self::Unreachable { reason },
        }
    }
}

/// Where the server was looked for.
fn places(config: &Config) -> String {
    let ports = config.get_ports();
    let hosts = config.get_hosts().iter().enumerate();
    let places = hosts.map(|(at, host)| {
        let port = ports.get(at).or(ports.first()).unwrap_or(&USUAL_PORT);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    });
    places.collect::<Vec<_>>().join(", ")
}

impl From<Failure> for PostgresError {
    fn from(error: Failure) -> Self {
        let reason = error.reason();
        match error {
            Failure::Away(_) | Failure::Broken(_) => Self::Unreachable { reason },
            Failure::Refused(_) | Failure::Unwritable(_) => Self::Refused { reason },
        }
    }
}
