//! How all timers leave the tables for a directory. No node works on them meanwhile, so they are read as they
//! are, and one statement says that they are elsewhere.

use std::fmt;

use countwheel_durable::store::{ClockNote, Fence, Shard};
use countwheel_durable::{Revision, Shards};
use countwheel_time::Timestamp;

use crate::link::Link;
use crate::moving::{
    BEGINNING, MoveState, MoveToken, Tried, give_up, hold, in_one, state, write_down,
};
use crate::registry::MARGIN;
use crate::schema::{self, Cluster, SchemaName};
use crate::sql::interval;
use crate::store::{parsed, system};
use crate::{PostgresError, PostgresOptions, number};

/// A move of timers out of the tables of a cluster.
pub struct Departure {
    link: Link,
    schema: SchemaName,
    cluster: Cluster,
    token: MoveToken,
}

/// Where a shard stands that no node works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardEnd {
    /// Which.
    pub shard: Shard,
    /// The last revision that was given in it.
    pub revision: Revision,
    /// Under which number its last owner wrote.
    pub fence: Fence,
    /// Where its clocks stood at the last commit that said so.
    pub clock: Option<ClockNote>,
}

impl fmt::Debug for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Departure")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl Departure {
    /// Begins a move to `place`, and takes all shards.
    ///
    /// # Errors
    /// [`PostgresError::NodeLives`] if a node has its lease still, [`PostgresError::MovedAway`] if the timers are
    /// elsewhere, [`PostgresError::Moving`] if another move is under way; any other if the database cannot be
    /// used. Nothing was changed.
    pub fn begin(options: &PostgresOptions, place: &str) -> Result<Self, PostgresError> {
        let (schema, route) = parsed(options)?;
        let mut link = Link::new(route, BEGINNING).map_err(|error| system(&error))?;
        link.open()?;
        let cluster = schema::find(&mut link, &schema)?;
        schema::must_be_here(&mut link, &schema)?;
        schema::check_rights(&mut link, &schema)?;
        let token = MoveToken::random()?;
        in_one(&mut link, |link| {
            write_down(link, &schema, (token, "out"), place)?;
            let all = schema.sql("move_all", "SELECT FROM @shard ORDER BY shard FOR UPDATE");
            link.query(&all, &[])?;
            let lives = schema.sql(
                "move_lives",
                &format!(
                    "SELECT name, (extract(epoch FROM expires) * 1000000)::int8 FROM @node n \
                     WHERE n.expires >= clock_timestamp() - {} \
                     AND NOT EXISTS (SELECT FROM @move m WHERE m.token = n.node) \
                     ORDER BY expires DESC LIMIT 1",
                    interval(MARGIN)
                ),
            );
            let rows = link.query(&lives, &[])?.rows;
            if let Some(row) = rows.first() {
                return Err(PostgresError::NodeLives {
                    node: row.get(0),
                    ends: Timestamp::from_micros(row.get::<_, i64>(1).cast_unsigned()),
                });
            }
            hold(link, &schema, token)
        })?;
        Ok(Self {
            link,
            schema,
            cluster,
            token,
        })
    }

    /// Which move it is.
    #[must_use]
    pub fn token(&self) -> MoveToken {
        self.token
    }

    /// Into how many shards the cluster is divided.
    #[must_use]
    pub fn shards(&self) -> Shards {
        self.cluster.shards
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

    /// The clock of the database, which it had not passed before this was called.
    ///
    /// # Errors
    /// [`PostgresError`] if the database cannot be used.
    pub fn now(&mut self) -> Result<Timestamp, PostgresError> {
        let now = self.schema.sql(
            "move_now",
            "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::int8",
        );
        let rows = self.link.query(&now, &[])?.rows;
        let micros = rows.first().map_or(0, |row| row.get::<_, i64>(0));
        Ok(Timestamp::from_micros(micros.cast_unsigned()))
    }

    /// Where each shard stands.
    ///
    /// # Errors
    /// [`PostgresError`] if the database cannot be used.
    pub fn ends(&mut self) -> Result<Vec<ShardEnd>, PostgresError> {
        // A promotion of a standby may have forgotten what was given before it.
        let ends = self.schema.sql(
            "move_ends",
            &format!(
                "SELECT s.shard, s.fence, l.last_revision, ({})::int8, l.clock FROM @shard s \
                 CROSS JOIN LATERAL (SELECT * FROM @turn t WHERE t.shard = s.shard \
                   ORDER BY seq DESC LIMIT 1) AS l ORDER BY s.shard",
                schema::left_out("l.timeline")
            ),
        );
        let rows = self.link.query(&ends, &[])?.rows;
        let ends = rows.iter().map(|row| {
            let given = number::read(row.get(2));
            let left_out = row.get::<_, i64>(3).cast_unsigned();
            let clock: Option<&[u8]> = row.get(4);
            ShardEnd {
                shard: Shard(row.get::<_, i16>(0).cast_unsigned()),
                fence: Fence(row.get::<_, i64>(1).cast_unsigned()),
                revision: Revision(given.saturating_add(left_out)),
                clock: clock.and_then(|bytes| Some(ClockNote::of_bytes(bytes.first_chunk()?))),
            }
        });
        Ok(ends.collect())
    }

    /// Decides the move, if it is under way still: from then on the timers are at `place`, and no node works
    /// on the tables.
    ///
    /// # Errors
    /// [`PostgresError::Unreachable`]: whether it is decided, [`state`](Self::state) says once it has an
    /// answer. Any other: it is not.
    pub fn decide(&mut self) -> Result<Tried, PostgresError> {
        let decide = self.schema.sql(
            "move_decide_out",
            "WITH m AS ( \
               UPDATE @move SET state = 'decided', ended = clock_timestamp() \
               WHERE token = $1 AND state = 'moving' AND direction = 'out' \
               AND (SELECT count(*) FROM @shard WHERE owner = $1) = (SELECT shards FROM @meta) \
               RETURNING place), \
             v AS (UPDATE @meta SET away = (SELECT place FROM m) WHERE EXISTS (SELECT FROM m)) \
             SELECT EXISTS (SELECT FROM m)",
        );
        let rows = self.link.query(&decide, &[&self.token.bits()])?.rows;
        Ok(match rows.first().is_some_and(|row| row.get(0)) {
            true => Tried::Done,
            false => Tried::Refused,
        })
    }

    /// What has become of the move.
    ///
    /// # Errors
    /// [`PostgresError`] if the database cannot be used.
    pub fn state(&mut self) -> Result<MoveState, PostgresError> {
        state(&mut self.link, &self.schema, self.token)
    }

    /// Gives the move up, if it is under way: the timers are here, and nodes take the shards.
    ///
    /// # Errors
    /// [`PostgresError`] if the database cannot be used: it is given up or not.
    pub fn give_up(&mut self) -> Result<Tried, PostgresError> {
        give_up(&mut self.link, &self.schema, self.token)
    }
}
