//! How a store in a database is opened.

use std::path::PathBuf;
use std::time::Duration;

/// Which database, which schema in it, and how it is spoken to.
///
/// ```
/// use std::time::Duration;
/// use countwheel_postgres::PostgresOptions;
///
/// let mut options = PostgresOptions::new("postgres://timers@10.0.0.5/timers");
/// options.exchange_within = Duration::from_secs(3);
/// assert_eq!((options.schema.as_str(), options.lanes), ("countwheel", 4));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// `postgres://user:password@host:port/database`, or the same in the form `host=.. user=..`. With
    /// several hosts, the first that takes writes is used.
    pub url: String,
    /// A file with certificates (PEM) that the server's has to come from: the connection has TLS then.
    /// With `sslmode=require` in the URL and without a file, those are the authorities of the public web.
    /// Without either, the connection has no TLS.
    pub ca: Option<PathBuf>,
    /// The schema with the tables: 1 to 63 of `a` to `z`, `0` to `9` and `_`. `countwheel` by default.
    pub schema: String,
    /// The number of this node, drawn at random if there is none. A store that is opened under the same number goes on with the
    /// shards that a store of this number has taken, until somebody else takes them.
    pub node: Option<u128>,
    /// How many connections commit; each shard uses one of them. At least 1; 4 by default.
    pub lanes: usize,
    /// How many connections read. At least 1; 4 by default.
    pub readers: usize,
    /// How long an exchange with the server may take before its connection is given up; 10 s by
    /// default. The server ends what takes nine tenths of it (`statement_timeout`).
    pub exchange_within: Duration,
    /// How long a commit whose answer was lost is sent again until its shard is given up; a day by
    /// default. The shard can be taken again then, and the attempts that ran are made again.
    pub resolve_within: Duration,
    /// How long done timers are kept at the most; a day by default. A cluster is made for that: a store
    /// that would keep them for longer is refused.
    pub keep_done: Duration,
    /// Whether a server is taken that may lose what it has acknowledged. Not by default.
    pub accept_loss: bool,
    /// Whether only a server is taken that waits for a standby (`synchronous_standby_names`). Not by
    /// default.
    pub require_standby: bool,
    /// Whether the server's storage keeps what it has when its machine is lost, as that of a vendor may:
    /// the store cannot see it and believes it. Not by default.
    pub managed: bool,
    /// How long a transaction may keep a snapshot of the database until that is a trouble; 10 minutes by
    /// default.
    pub snapshots_within: Duration,
    /// The port of a proxy on loopback by whose way the connections go.
    #[cfg(feature = "conformance")]
    pub(crate) through: Option<u16>,
}

impl PostgresOptions {
    /// The defaults, for the database at `url`.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ca: None,
            schema: "countwheel".to_owned(),
            node: None,
            lanes: 4,
            readers: 4,
            exchange_within: Duration::from_secs(10),
            resolve_within: Duration::from_secs(86_400),
            keep_done: Duration::from_secs(86_400),
            accept_loss: false,
            require_standby: false,
            managed: false,
            snapshots_within: Duration::from_secs(600),
            #[cfg(feature = "conformance")]
            through: None,
        }
    }
}
