//! What is done once to tables that were brought back from a backup, before a node works on them.
//!
//! The tables are those of an earlier time. What was given after that time is not in them: revisions, ids,
//! fences and versions of settings. So all of these go on far above what the tables have, and no token of that
//! time is good any more.

use std::time::Duration;

use countwheel_time::Timestamp;

use crate::link::{Link, Sql};
use crate::registry::MARGIN;
use crate::schema::{self, SchemaName, VERSION, left_out};
use crate::sql::interval;
use crate::{PostgresError, PostgresOptions, checks, moving};

/// How far revisions go on, and with them ids: as those of a directory that is restored. A shard that gives
/// 100,000 a second needs four months for as many.
const REVISIONS_LEFT_OUT: u64 = 1 << 40;
/// The same of fences and of versions of settings.
const FENCES_LEFT_OUT: u64 = 1 << 32;
/// How long the rows of nodes and shards are waited for.
const LOCK_WITHIN: Duration = Duration::from_secs(5);

/// What was done to restored tables.
///
/// ```no_run
/// use countwheel_postgres::{PostgresOptions, PostgresStore};
///
/// let restored = PostgresStore::restored(&PostgresOptions::new("postgres://timers@127.0.0.1/timers"))?;
/// println!("{} shards are free", restored.shards);
/// # Ok::<(), countwheel_postgres::PostgresError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Restored {
    /// How many shards the cluster has: all are free now.
    pub shards: u16,
    /// How far revisions and ids go on above those of the tables, at least.
    pub revisions: u64,
    /// The same of fences and of versions of settings.
    pub fences: u64,
    /// How many nodes the tables had: none now.
    pub nodes: u64,
}

/// One statement: it is done whole or not at all. If a shard makes a turn meanwhile, its number is taken and the
/// statement is refused.
fn statement(schema: &SchemaName) -> Sql {
    schema.sql(
        "restored",
        &format!(
            "WITH n AS MATERIALIZED (SELECT node, name, expires FROM @node ORDER BY node FOR UPDATE), \
             living AS MATERIALIZED ( \
               SELECT name, expires FROM n WHERE expires >= clock_timestamp() - {margin} \
               ORDER BY expires DESC LIMIT 1), \
             s AS MATERIALIZED ( \
               SELECT shard FROM @shard WHERE NOT EXISTS (SELECT FROM living) \
               ORDER BY shard FOR UPDATE), \
             turned AS ( \
               INSERT INTO @turn (seq, last_revision, shard, clock, timeline, lows) \
               SELECT l.seq + 1, l.last_revision + {REVISIONS_LEFT_OUT} + {promoted}, s.shard, l.clock, \
                 @timeline, l.lows \
               FROM s CROSS JOIN LATERAL (SELECT * FROM @turn t WHERE t.shard = s.shard \
                 ORDER BY t.seq DESC LIMIT 1) AS l RETURNING shard), \
             freed AS ( \
               UPDATE @shard r SET fence = r.fence + {FENCES_LEFT_OUT} + {promoted_shard}, token = NULL, \
                 owner = NULL, timeline = @timeline, since = clock_timestamp() \
               FROM s WHERE r.shard = s.shard RETURNING r.shard), \
             settings AS ( \
               UPDATE @meta SET settings_version = settings_version + {FENCES_LEFT_OUT} + {promoted_meta}, \
                 settings_timeline = @timeline WHERE EXISTS (SELECT FROM s)), \
             gone AS ( \
               DELETE FROM @node WHERE node IN (SELECT node FROM n) AND EXISTS (SELECT FROM s) \
               RETURNING node), \
             forgotten AS (DELETE FROM @counts WHERE shard IN (SELECT shard FROM s)) \
             SELECT (SELECT name FROM living), \
               (SELECT (extract(epoch FROM expires) * 1000000)::int8 FROM living), \
               (SELECT count(*) FROM freed), (SELECT count(*) FROM gone), (SELECT count(*) FROM turned)",
            margin = interval(MARGIN),
            promoted = left_out("l.timeline"),
            promoted_shard = left_out("r.timeline"),
            promoted_meta = left_out("settings_timeline"),
        ),
    )
}

/// Makes restored tables ready for nodes.
pub(crate) fn restored(
    link: Link,
    schema: &SchemaName,
    options: &PostgresOptions,
) -> Result<Restored, PostgresError> {
    let mut link = link.with_lock_within(LOCK_WITHIN);
    checks::check(&mut link, options)?;
    let cluster = schema::find(&mut link, schema)?;
    // A later program may keep something here that this one does not know.
    let found = schema::version(&mut link, schema)?;
    if found != VERSION {
        return Err(schema::later(schema, found));
    }
    schema::must_be_here(&mut link, schema)?;
    moving::end_silent(&mut link, schema)?;
    let rows = link.query(&statement(schema), &[])?.rows;
    let damaged = |problem: &str| PostgresError::Damaged {
        schema: schema.as_str().to_owned(),
        problem: problem.to_owned(),
    };
    let row = rows.first().ok_or_else(|| damaged("it says nothing"))?;
    if let Some(node) = row.get::<_, Option<String>>(0) {
        let ends = row.get::<_, Option<i64>>(1).unwrap_or(0);
        return Err(PostgresError::NodeLives {
            node,
            ends: Timestamp::from_micros(u64::try_from(ends).unwrap_or(0)),
        });
    }
    let count = |column| u64::try_from(row.get::<_, i64>(column)).unwrap_or(0);
    let shards = cluster.shards.count();
    if [count(2), count(4)] != [u64::from(shards); 2] {
        return Err(damaged("rows of shard or turn are missing"));
    }
    Ok(Restored {
        shards,
        revisions: REVISIONS_LEFT_OUT,
        fences: FENCES_LEFT_OUT,
        nodes: count(3),
    })
}
