//! How all timers of a directory come into the tables while they are changed there.
//!
//! A move is a row of `move`, and its token the right to write. While it is under way all shards belong to a
//! node of its own, which no process is, so that no other node takes them. One statement decides: it turns the
//! move into one that is decided, and frees the shards. Before it the timers are where they come from, after
//! it they are in the tables.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{Change, ClockNote, Fence};
use countwheel_durable::{Revision, Settings, Shards};
use countwheel_time::Timestamp;
use tokio_postgres::config::Host;

use crate::bits::Bits;
use crate::commit::{Held, Turn};
use crate::front::Lows;
use crate::hash::NameHash;
use crate::link::{Link, Route, Sql};
use crate::schema::{self, Cluster, FIRST_TIMELINE, SchemaName};
use crate::session::{Entry, Failure};
use crate::sql::{SqlSession, Statements, interval, may_be_unreplicated};
use crate::store::{link, parsed, system};
use crate::{PostgresError, PostgresOptions, checks, number};

/// A move of which nobody has heard for so long is given up by the next one.
const SILENT: Duration = Duration::from_secs(10);
/// How long a step of the beginning may take, which empties what an earlier move has left.
pub(crate) const BEGINNING: Duration = Duration::from_secs(60);
/// So often a decision of which a standby may not have heard is followed by another write.
const PROOFS: u32 = 100;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(50);

/// Which move: drawn at random when it begins.
///
/// ```
/// use countwheel_postgres::MoveToken;
///
/// let token = MoveToken(0xfeed);
/// assert_eq!(token.to_string().parse(), Ok(token));
/// assert!("feed".parse::<MoveToken>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MoveToken(pub u128);

impl fmt::Display for MoveToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is no token of a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the token of a move has 32 hex digits")]
pub struct NoToken;

impl FromStr for MoveToken {
    type Err = NoToken;

    fn from_str(text: &str) -> Result<Self, NoToken> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).map_err(|_| NoToken)?;
        digits.then_some(Self(number)).ok_or(NoToken)
    }
}

impl MoveToken {
    pub(crate) fn random() -> Result<Self, PostgresError> {
        let bits = Bits::random().map_err(|error| system(&error))?;
        Ok(Self(u128::from_be_bytes(bits.0)))
    }

    pub(crate) fn bits(self) -> Bits {
        Bits(self.0.to_be_bytes())
    }

    /// How the node is called that has all shards meanwhile.
    pub(crate) fn node(self) -> String {
        format!("move-{:08x}", self.0 >> 96)
    }
}

/// What the tables say of a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveState {
    /// It is under way, or whoever made it has ended.
    Moving,
    /// It is decided: the timers are where they were moved to.
    Decided,
    /// It was given up: the timers are where they came from.
    GivenUp,
    /// The tables know no such move.
    Unknown,
}

/// What the last owner says of a directory: where the target goes on.
#[derive(Clone, Debug)]
pub struct MoveEnd {
    /// The last revision that was given.
    pub revision: Revision,
    /// Under which number its last owner wrote.
    pub fence: Fence,
    /// Where the clocks stand, with the clock of the database as the wall clock; `None` if no delay was ever
    /// counted.
    pub clock: Option<ClockNote>,
    /// All settings.
    pub settings: Settings,
}

/// A move that was given up: the timers are where they came from.
///
/// ```no_run
/// use countwheel_postgres::{PostgresOptions, give_up_move};
///
/// match give_up_move(&PostgresOptions::new("postgres://timers@127.0.0.1/timers"))? {
///     Some(it) if it.is_arrival => println!("the timers stay at {}", it.place),
///     Some(_) => println!("the timers stay in the tables"),
///     None => println!("no move is under way"),
/// }
/// # Ok::<(), countwheel_postgres::PostgresError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GivenUpMove {
    /// Where the timers came from, or were to go: a directory and its machine.
    pub place: String,
    /// Whether they were to come into the tables. What had come was removed.
    pub is_arrival: bool,
}

/// What has come of a try to decide a move, or to give it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tried {
    /// It is done.
    Done,
    /// The move was not under way any more.
    Refused,
}

/// A move of timers into the tables of a cluster.
///
/// ```no_run
/// use countwheel_durable::{Revision, Settings};
/// use countwheel_durable::store::{Change, Fence};
/// use countwheel_postgres::{Arrival, MoveEnd, PostgresOptions, Tried};
///
/// let options = PostgresOptions::new("postgres://timers@127.0.0.1/timers");
/// let mut arrival = Arrival::begin(&options, "/var/lib/countwheel on a.example")?;
/// let mut lane = arrival.lane()?;
/// let changes: Vec<Change> = Vec::new();
/// assert!(lane.write(&changes)?);
/// let end = MoveEnd { revision: Revision(7), fence: Fence(1), clock: None, settings: Settings::default() };
/// assert_eq!(arrival.decide(&end)?, Tried::Done);
/// # Ok::<(), countwheel_postgres::PostgresError>(())
/// ```
pub struct Arrival {
    link: Link,
    route: Route,
    options: PostgresOptions,
    schema: SchemaName,
    cluster: Cluster,
    token: MoveToken,
    no_node_started: bool,
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrival")
            .field("token", &self.token)
            .field("shards", &self.cluster.shards)
            .finish_non_exhaustive()
    }
}

impl Arrival {
    /// Begins a move from `place` into tables without timers, and takes all shards: nodes that have some
    /// lose them. What an earlier move has left that was given up, or of which nobody has heard for 10 s, is
    /// removed, and so is what was moved away.
    ///
    /// # Errors
    /// [`PostgresError::NotEmpty`] if there are timers, [`PostgresError::Moving`] if another move is under
    /// way; any other if the database cannot be used. Nothing was changed.
    pub fn begin(options: &PostgresOptions, place: &str) -> Result<Self, PostgresError> {
        let (schema, route) = parsed(options)?;
        let mut link = Link::new(route.clone(), BEGINNING).map_err(|error| system(&error))?;
        checks::check(&mut link, options)?;
        let cluster = schema::find(&mut link, &schema)?;
        let longest = cluster.ring.longest();
        if options.keep_done > longest {
            return Err(PostgresError::KeptTooLong {
                schema: options.schema.clone(),
                wanted: options.keep_done,
                longest,
            });
        }
        schema::check_rights(&mut link, &schema)?;
        let token = MoveToken::random()?;
        let no_node_started = in_one(&mut link, |link| begin(link, &schema, token, place))?;
        Ok(Self {
            link,
            route,
            options: options.clone(),
            schema,
            cluster,
            token,
            no_node_started,
        })
    }

    /// Whether no node could start on the target until now: its timers had been moved away. Nodes start
    /// from now on.
    #[must_use]
    pub fn no_node_started(&self) -> bool {
        self.no_node_started
    }

    /// Which move it is.
    #[must_use]
    pub fn token(&self) -> MoveToken {
        self.token
    }

    /// Into how many shards the target is divided.
    #[must_use]
    pub fn shards(&self) -> Shards {
        self.cluster.shards
    }

    /// Another connection that writes. Two that write one name have to take turns.
    ///
    /// # Errors
    /// [`PostgresError`] if the database cannot be used.
    pub fn lane(&self) -> Result<ArrivalLane, PostgresError> {
        let mut link = link(&self.route, &self.options)?;
        link.open()?;
        let statements = Statements::of(&self.schema, self.cluster.ring, &|right| right);
        Ok(ArrivalLane {
            session: SqlSession::new(link, Arc::new(statements)),
            shards: self.cluster.shards,
            hash: self.cluster.hash.clone(),
            token: self.token,
        })
    }

    /// Says that the move goes on. `false`: it was given up.
    ///
    /// # Errors
    /// [`PostgresError`] if the database cannot be used.
    pub fn beat(&mut self) -> Result<bool, PostgresError> {
        let beat = self.schema.sql(
            "move_beat",
            "UPDATE @move SET seen = clock_timestamp() WHERE token = $1 AND state = 'moving' \
             RETURNING token",
        );
        let answer = self.link.query(&beat, &[&self.token.bits()])?;
        Ok(!answer.rows.is_empty())
    }

    /// The clock of the database, which it had passed when this returned.
    ///
    /// # Errors
    /// [`PostgresError`] if the database cannot be used.
    pub fn now(&mut self) -> Result<Timestamp, PostgresError> {
        let now = Sql {
            name: "move_now",
            text: "SELECT ceil(extract(epoch FROM clock_timestamp()) * 1000000)::int8".to_owned(),
        };
        let rows = self.link.query(&now, &[])?.rows;
        let micros = rows.first().map_or(0, |row| row.get::<_, i64>(0));
        Ok(Timestamp::from_micros(micros.cast_unsigned()))
    }

    /// Where the nodes of the cluster are that live, the youngest lease first: `http://host:port`.
    ///
    /// # Errors
    /// [`PostgresError`] if the database cannot be used.
    pub fn nodes(&mut self) -> Result<Vec<String>, PostgresError> {
        let nodes = self.schema.sql(
            "move_nodes",
            "SELECT n.api FROM @node n WHERE n.expires > clock_timestamp() \
             AND NOT EXISTS (SELECT FROM @move m WHERE m.token = n.node) ORDER BY n.expires DESC",
        );
        let rows = self.link.query(&nodes, &[])?.rows;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Whether nodes have all shards, once the move is decided.
    ///
    /// # Errors
    /// [`PostgresError`] if the database cannot be used.
    pub fn is_taken(&mut self) -> Result<bool, PostgresError> {
        let taken = self.schema.sql(
            "move_taken",
            "SELECT NOT EXISTS (SELECT FROM @shard WHERE token IS NULL)",
        );
        let rows = self.link.query(&taken, &[])?.rows;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    /// Decides the move, if it is under way still: from then on the timers are in the tables, and their nodes
    /// take the shards. Each shard goes on behind the last revision and the last fence of the end.
    ///
    /// # Errors
    /// [`PostgresError::Unreachable`]: whether it is decided, [`state`](Self::state) says once it has an
    /// answer. Any other: it is not.
    pub fn decide(&mut self, end: &MoveEnd) -> Result<Tried, PostgresError> {
        self.put_settings(&end.settings)?;
        let decide = self.schema.sql("move_decide", DECIDE);
        let clock = end.clock.map(|note| note.to_bytes().to_vec());
        let (revision, version) = (end.revision.0, end.settings.version().0);
        let answer = self.link.query(
            &decide,
            &[
                &self.token.bits(),
                &number::stored(revision),
                &clock,
                &end.fence.0.cast_signed(),
                &number::stored(version),
            ],
        )?;
        let is_decided = answer.rows.first().is_some_and(|row| row.get(0));
        if !is_decided {
            return Ok(Tried::Refused);
        }
        if answer.warnings.iter().any(may_be_unreplicated) {
            self.prove();
        }
        Ok(Tried::Done)
    }

    /// A standby may not have the decision. A later write that it has proves that it has all before.
    fn prove(&mut self) {
        let prove = self.schema.sql(
            "move_prove",
            "UPDATE @move SET seen = clock_timestamp() WHERE token = $1",
        );
        for _ in 0..PROOFS {
            let proved = self.link.query(&prove, &[&self.token.bits()]);
            if proved.is_ok_and(|answer| !answer.warnings.iter().any(may_be_unreplicated)) {
                return;
            }
            self.link.pause(PAUSE);
        }
        tracing::warn!("whether a standby has the decision of the move is not known");
    }

    fn put_settings(&mut self, settings: &Settings) -> Result<(), PostgresError> {
        let put = self.schema.sql(
            "move_settings",
            "WITH m AS MATERIALIZED ( \
               SELECT token FROM @move WHERE token = $1 AND state = 'moving' FOR SHARE), \
             gone AS ( \
               DELETE FROM @setting s USING m WHERE NOT (s.name = ANY ($2::text[]))) \
             INSERT INTO @setting (name, version, value) \
             SELECT u.name, u.version, u.value \
             FROM m, unnest($2::text[], $3::int8[], $4::bytea[]) AS u(name, version, value) \
             ON CONFLICT (name) DO UPDATE SET version = excluded.version, value = excluded.value",
        );
        let (mut names, mut versions, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (name, it) in settings.iter() {
            names.push(name.as_str());
            versions.push(number::stored(it.version.0));
            values.push(it.value.as_slice());
        }
        self.link
            .query(&put, &[&self.token.bits(), &names, &versions, &values])?;
        Ok(())
    }

    /// What has become of the move.
    ///
    /// # Errors
    /// [`PostgresError`] if the database cannot be used.
    pub fn state(&mut self) -> Result<MoveState, PostgresError> {
        state(&mut self.link, &self.schema, self.token)
    }

    /// Gives the move up, if it is under way: the tables are empty again, and their nodes take the shards.
    ///
    /// # Errors
    /// [`PostgresError`] if the database cannot be used: it is given up or not.
    pub fn give_up(&mut self) -> Result<Tried, PostgresError> {
        give_up(&mut self.link, &self.schema, self.token)
    }
}

/// A connection that writes what comes.
pub struct ArrivalLane {
    session: SqlSession,
    shards: Shards,
    hash: NameHash,
    token: MoveToken,
}

impl fmt::Debug for ArrivalLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrivalLane")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl ArrivalLane {
    /// Puts and removes timers, of any shards, in one statement. `false`: the move is not under way any more,
    /// and nothing was written.
    ///
    /// # Errors
    /// [`PostgresError`] if the database cannot be used. What was written is written whole or not at all.
    pub fn write(&mut self, changes: &[Change]) -> Result<bool, PostgresError> {
        let mut of_shards: Vec<Vec<Change>> = Vec::new();
        of_shards.resize_with(self.shards.count().into(), Vec::new);
        for change in changes {
            let name = match change {
                Change::Put { record, .. } => &record.name,
                Change::Remove { name, .. } => name,
                Change::Given(_) | Change::Clock(_) | Change::Setting(_) => continue,
            };
            of_shards[usize::from(self.shards.of(name).0)].push(change.clone());
        }
        let turns = self.shards.all().zip(&of_shards);
        let turns: Vec<_> = turns
            .filter(|(_, changes)| !changes.is_empty())
            .map(|(shard, changes)| Turn::of(shard, changes, &self.hash))
            .collect();
        if turns.is_empty() {
            return Ok(true);
        }
        let after = Held {
            token: self.token.bits(),
            fence: Fence(0),
            seq: 0,
            made_by: None,
            revision: Revision(0),
            clock: None,
            timeline: FIRST_TIMELINE,
        };
        let entries = turns.iter().map(|turn| Entry {
            shard: turn.shard,
            turn: Some(turn),
            after,
            lows: Lows::default(),
        });
        let entries: Vec<_> = entries.collect();
        Ok(self.session.arrive(&entries)?)
    }
}

/// What has become of a move, as its tables say it. One that is under way is given up: whoever asks has what
/// it came from, and nobody else has.
///
/// # Errors
/// [`PostgresError`] if the database cannot be used.
pub fn settle_move(
    options: &PostgresOptions,
    token: MoveToken,
) -> Result<MoveState, PostgresError> {
    let (schema, route) = parsed(options)?;
    let mut link = link(&route, options)?;
    link.open()?;
    schema::version(&mut link, &schema)?;
    loop {
        match state(&mut link, &schema, token)? {
            MoveState::Moving => {
                give_up(&mut link, &schema, token)?;
            }
            state => return Ok(state),
        }
    }
}

/// Gives up the move that is under way, if one is, whoever makes it: nodes take the shards again. Either it is
/// given up or it is decided, so whoever makes it finds out and loses nothing.
///
/// # Errors
/// [`PostgresError`] if the database cannot be used: it is given up or not.
pub fn give_up_move(options: &PostgresOptions) -> Result<Option<GivenUpMove>, PostgresError> {
    let (schema, route) = parsed(options)?;
    let mut link = link(&route, options)?;
    link.open()?;
    // Tables of an earlier version know no moves.
    if schema::version(&mut link, &schema)? < FIRST_VERSION {
        return Ok(None);
    }
    while let Some(it) = under_way(&mut link, &schema)? {
        if give_up(&mut link, &schema, it.token)? == Tried::Done {
            return Ok(Some(it.given_up));
        }
    }
    Ok(None)
}

/// The version of the tables that first had moves.
const FIRST_VERSION: u32 = 6;

/// A move that nobody has decided yet.
struct UnderWay {
    token: MoveToken,
    given_up: GivenUpMove,
    /// Whether nobody has heard of it for [`SILENT`].
    is_silent: bool,
}

fn under_way(link: &mut Link, schema: &SchemaName) -> Result<Option<UnderWay>, PostgresError> {
    let under_way = schema.sql(
        "move_under_way",
        &format!(
            "SELECT token, place, direction, seen < clock_timestamp() - {} \
             FROM @move WHERE state = 'moving'",
            interval(SILENT)
        ),
    );
    let rows = link.query(&under_way, &[])?.rows;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    Ok(Some(UnderWay {
        token: MoveToken(u128::from_be_bytes(row.get::<_, Bits>(0).0)),
        given_up: GivenUpMove {
            place: row.get(1),
            is_arrival: row.get::<_, &str>(2) == "in",
        },
        is_silent: row.get(3),
    }))
}

/// Gives up the move of which nobody has heard for long, and refuses to go on beside one that is heard of.
pub(crate) fn end_silent(link: &mut Link, schema: &SchemaName) -> Result<(), PostgresError> {
    let Some(it) = under_way(link, schema)? else {
        return Ok(());
    };
    if !it.is_silent {
        return Err(PostgresError::Moving {
            schema: schema.as_str().to_owned(),
            place: it.given_up.place,
        });
    }
    give_up(link, schema, it.token).map(drop)
}

/// The URL of the database without its password, as it may be written down.
///
/// # Errors
/// [`PostgresError::Url`] if it is none.
pub fn shown_url(options: &PostgresOptions) -> Result<String, PostgresError> {
    let (_, route) = parsed(options)?;
    let config = &route.config;
    let ports = config.get_ports();
    let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| {
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(path) => {
                let path = path.display().to_string().replace('/', "%2F");
                format!("{path}:{port}")
            }
        }
    });
    let hosts: Vec<_> = hosts.collect();
    let user = config.get_user().map(|user| format!("{}@", escaped(user)));
    let database = config.get_dbname().map(escaped).unwrap_or_default();
    let tls = match (&options.ca, config.get_ssl_mode()) {
        (None, tokio_postgres::config::SslMode::Require) => "?sslmode=require",
        _ => "",
    };
    Ok(format!(
        "postgres://{}{}/{database}{tls}",
        user.unwrap_or_default(),
        hosts.join(","),
    ))
}

/// As a URL has a name.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(char::from(byte));
            }
            other => escaped += &format!("%{other:02X}"),
        }
    }
    escaped
}

/// One that was never begun is unknown, and so is one that came after a backup that was restored.
pub(crate) fn state(
    link: &mut Link,
    schema: &SchemaName,
    token: MoveToken,
) -> Result<MoveState, PostgresError> {
    let state = schema.sql("move_state", "SELECT state FROM @move WHERE token = $1");
    let rows = link.query(&state, &[&token.bits()])?.rows;
    Ok(match rows.first().map(|row| row.get::<_, &str>(0)) {
        Some("moving") => MoveState::Moving,
        Some("decided") => MoveState::Decided,
        Some(_) => MoveState::GivenUp,
        None => MoveState::Unknown,
    })
}

/// Does it in one transaction, all or nothing.
pub(crate) fn in_one<T>(
    link: &mut Link,
    work: impl FnOnce(&mut Link) -> Result<T, PostgresError>,
) -> Result<T, PostgresError> {
    link.execute("BEGIN", BEGINNING)?;
    match work(link) {
        Ok(done) => {
            link.execute("COMMIT", BEGINNING)?;
            Ok(done)
        }
        Err(error) => {
            link.close(); // and with it the transaction
            Err(error)
        }
    }
}

/// Writes a move down, unless another one is under way.
pub(crate) fn write_down(
    link: &mut Link,
    schema: &SchemaName,
    (token, direction): (MoveToken, &str),
    place: &str,
) -> Result<(), PostgresError> {
    let name = || schema.as_str().to_owned();
    let silent = schema.sql(
        "move_silent",
        &format!(
            "UPDATE @move SET state = 'given up', ended = clock_timestamp() \
             WHERE state = 'moving' AND seen < clock_timestamp() - {}",
            interval(SILENT)
        ),
    );
    link.query(&silent, &[])?;
    let others = schema.sql(
        "move_other",
        "SELECT place FROM @move WHERE state = 'moving'",
    );
    if let Some(other) = link.query(&others, &[])?.rows.first() {
        return Err(PostgresError::Moving {
            schema: name(),
            place: other.get(0),
        });
    }
    let write = schema.sql(
        "move_begin",
        "INSERT INTO @move (token, direction, state, place) VALUES ($1, $2, 'moving', $3)",
    );
    match link.query(&write, &[&token.bits(), &direction, &place]) {
        // Another one was quicker.
        Err(Failure::Refused(refusal)) if refusal.code == "23505" => Err(PostgresError::Moving {
            schema: name(),
            place: "elsewhere".to_owned(),
        }),
        written => Ok(written.map(drop)?),
    }
}

/// Gives all shards to the node of a move, which lives for as long as anybody remembers.
pub(crate) fn hold(
    link: &mut Link,
    schema: &SchemaName,
    token: MoveToken,
) -> Result<(), PostgresError> {
    let hold = schema.sql(
        "move_hold",
        "WITH gone AS ( \
           DELETE FROM @node WHERE node IN (SELECT token FROM @move) RETURNING node), \
         me AS ( \
           INSERT INTO @node (node, name, api, weight, version, zones, expires, draining) \
           SELECT $1, $2, '', 1, '', '', clock_timestamp() + interval '100 years', true \
           FROM (SELECT count(*) FROM gone) AS g), \
         v AS (UPDATE @meta SET min_version = schema_version) \
         UPDATE @shard SET owner = $1, token = NULL, fence = fence + 1, \
           since = clock_timestamp(), timeline = @timeline",
    );
    link.query(&hold, &[&token.bits(), &token.node()])?;
    Ok(())
}

/// In one transaction.
fn begin(
    link: &mut Link,
    schema: &SchemaName,
    token: MoveToken,
    place: &str,
) -> Result<bool, PostgresError> {
    write_down(link, schema, (token, "in"), place)?;
    // Every turn that is under way ends before, and none comes after. What came in by a move that was given up,
    // or has gone out, is nobody's, and is there only while the shards are of the move's node.
    let left = schema.sql(
        "move_left",
        "SELECT bool_and(EXISTS (SELECT FROM @move m WHERE m.token = s.owner \
           AND (m.direction = 'in') = (m.state <> 'decided'))) FROM \
         (SELECT owner FROM @shard ORDER BY shard FOR UPDATE) AS s",
    );
    let rows = link.query(&left, &[])?.rows;
    let is_left = rows.first().is_some_and(|row| row.get(0));
    let were_away = is_left && empty(link, schema)?;
    let any = schema.sql(
        "move_any",
        "SELECT EXISTS (SELECT FROM @timer) OR EXISTS (SELECT FROM @done) \
         OR EXISTS (SELECT FROM @setting)",
    );
    let rows = link.query(&any, &[])?.rows;
    if rows.first().is_some_and(|row| row.get(0)) {
        return Err(PostgresError::NotEmpty {
            schema: schema.as_str().to_owned(),
        });
    }
    hold(link, schema, token)?;
    Ok(were_away)
}

/// Removes all timers and settings. None of them is elsewhere by what the tables say, so nodes may start.
/// Returns whether they were elsewhere before.
fn empty(link: &mut Link, schema: &SchemaName) -> Result<bool, PostgresError> {
    let text = schema.sql("empty", "TRUNCATE @timer, @done, @setting").text;
    link.execute(&text, BEGINNING)?;
    let here = schema.sql(
        "move_here",
        "WITH was AS (SELECT away IS NOT NULL AS is_away FROM @meta) \
         UPDATE @meta SET away = NULL FROM was RETURNING is_away",
    );
    let rows = link.query(&here, &[])?.rows;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

pub(crate) fn give_up(
    link: &mut Link,
    schema: &SchemaName,
    token: MoveToken,
) -> Result<Tried, PostgresError> {
    let give_up = schema.sql(
        "move_give_up",
        "UPDATE @move SET state = 'given up', ended = clock_timestamp() \
         WHERE token = $1 AND state = 'moving' RETURNING direction",
    );
    let free = schema.sql(
        "move_free",
        &format!(
            "WITH n AS (DELETE FROM @node WHERE node = $1), \
             v AS (UPDATE @meta SET min_version = {LEAST}) \
             UPDATE @shard SET owner = NULL, token = NULL, fence = fence + 1, \
               since = clock_timestamp(), timeline = @timeline WHERE owner = $1"
        ),
    );
    in_one(link, |link| {
        let given_up = link.query(&give_up, &[&token.bits()])?.rows;
        let Some(row) = given_up.first() else {
            return Ok(Tried::Refused);
        };
        // What was to go out is here still.
        if row.get::<_, &str>(0) == "in" {
            empty(link, schema)?;
        }
        link.query(&free, &[&token.bits()])?;
        Ok(Tried::Done)
    })
}

/// Down to which version of the program these tables can be worked on, while their timers are in them.
const LEAST: i32 = 5;

/// Decides. It waits for statements that write, since each of them holds the row of the move; one that comes
/// later finds it decided, and writes nothing. Numbers go on behind those of the directory.
const DECIDE: &str = "WITH m AS ( \
       UPDATE @move SET state = 'decided', ended = clock_timestamp() \
       WHERE token = $1 AND state = 'moving' AND direction = 'in' \
       AND (SELECT count(*) FROM @shard WHERE owner = $1) = (SELECT shards FROM @meta) \
       RETURNING token), \
     held AS MATERIALIZED ( \
       SELECT s.shard FROM @shard s WHERE s.owner = (SELECT token FROM m) \
       ORDER BY s.shard FOR UPDATE), \
     last AS MATERIALIZED ( \
       SELECT h.shard, l.seq, l.last_revision FROM held h CROSS JOIN LATERAL ( \
         SELECT seq, last_revision FROM @turn t WHERE t.shard = h.shard \
         ORDER BY seq DESC LIMIT 1) AS l), \
     t AS ( \
       INSERT INTO @turn (shard, token, seq, last_revision, clock, timeline) \
       SELECT shard, $1, seq + 1, greatest(last_revision, $2), $3::bytea, @timeline FROM last), \
     s AS ( \
       UPDATE @shard s SET owner = NULL, token = NULL, fence = greatest(s.fence, $4) + 1, \
         since = clock_timestamp(), timeline = @timeline \
       FROM held h WHERE s.shard = h.shard), \
     n AS (DELETE FROM @node WHERE node = (SELECT token FROM m)), \
     v AS ( \
       UPDATE @meta SET min_version = 5, away = NULL, settings_version = greatest(settings_version + 1, $5), \
         settings_timeline = @timeline WHERE EXISTS (SELECT FROM m)) \
     SELECT EXISTS (SELECT FROM m)";
