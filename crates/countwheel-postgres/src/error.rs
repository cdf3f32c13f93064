//! Why a database cannot be used.

use std::path::PathBuf;

use crate::session::Failure;

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
    /// No connection: the server is away, or refuses this user.
    #[error("the database cannot be reached: {reason}")]
    Unreachable {
        /// What the driver or the server said.
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

impl From<Failure> for PostgresError {
    fn from(error: Failure) -> Self {
        let reason = error.reason();
        match error {
            Failure::Away(_) | Failure::Broken(_) => Self::Unreachable { reason },
            Failure::Refused(_) | Failure::Unwritable(_) => Self::Refused { reason },
        }
    }
}
