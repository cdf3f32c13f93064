//! The tables, and how a cluster is made.

use std::time::Duration;

use countwheel_durable::Shards;

use crate::PostgresError;
use crate::hash::{KEY_BYTES, NameHash};
use crate::link::{Link, Sql};
use crate::number;
use crate::ring::{Ring, SLOTS};

/// The latest version of the tables that this program knows.
pub(crate) const VERSION: u32 = 7;

/// Into how many tables the timers are divided, by shard: so many can be vacuumed at once.
const PARTITIONS: u16 = 16;

/// The server's history: the first half of the name of the file that it writes now.
const TIMELINE: &str = "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int4";

/// How far numbers that are given go on for each time that the server may have forgotten some.
pub(crate) const LEFT_OUT: u64 = 1 << 20;

/// How far a number goes on that was given last in the history of that column: each promotion since may have
/// forgotten what was given after the one before.
pub(crate) fn left_out(timeline: &str) -> String {
    format!("{LEFT_OUT} * abs(@timeline - coalesce({timeline}, {FIRST_TIMELINE}))")
}

/// The history that every server begins with.
pub(crate) const FIRST_TIMELINE: i32 = 1;

/// How long making the tables may take.
const MAKING: Duration = Duration::from_secs(60);

/// What version 2 has beside version 1: counts are saved; who gives a fence or a version of the settings says
/// in which history of the server; and the tables say which programs may work on them.
pub(crate) const SECOND: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS @counts (
        shard int2 PRIMARY KEY,
        seq int8 NOT NULL,
        token uuid NOT NULL,
        counts bytea NOT NULL
    )",
    "ALTER TABLE @shard ADD COLUMN IF NOT EXISTS timeline int4",
    "ALTER TABLE @meta ADD COLUMN IF NOT EXISTS settings_timeline int4, \
     ADD COLUMN IF NOT EXISTS min_version int4 NOT NULL DEFAULT 2",
    "ALTER TABLE @turn ADD COLUMN IF NOT EXISTS lows bytea",
    // What is there was written by a program that kept to it.
    "ALTER TABLE @timer DROP CONSTRAINT IF EXISTS timer_fits, ADD CONSTRAINT timer_fits CHECK (
        clock IN ('w', 'b') AND CASE state
        WHEN 'p' THEN wake IS NOT DISTINCT FROM due
        WHEN 'r' THEN wake IS NOT DISTINCT FROM due
        WHEN 'd' THEN wake IS NOT NULL
        WHEN 'x' THEN wake IS NULL
        ELSE false END) NOT VALID",
];

/// What version 3 has beside version 2: done records are in a ring of tables, where an earlier program does not
/// look for them.
pub(crate) const RING: &[&str] = &[
    // A seventh of a day: so that done records can be kept for one, as they were before.
    "ALTER TABLE @meta ADD COLUMN IF NOT EXISTS done_slice int8 NOT NULL DEFAULT 12342857143",
    "CREATE TABLE IF NOT EXISTS @done (
        revision int8 NOT NULL,
        due int8 NOT NULL,
        keep_until int8 NOT NULL,
        shard int2 NOT NULL,
        slot int2 NOT NULL,
        hash uuid NOT NULL,
        queue text COLLATE \"C\" NOT NULL,
        key text COLLATE \"C\" NOT NULL,
        body bytea NOT NULL,
        payload bytea NOT NULL
    ) PARTITION BY LIST (slot)",
    "CREATE INDEX IF NOT EXISTS done_names ON @done (shard, hash)",
    "CREATE INDEX IF NOT EXISTS done_lists ON @done (shard, queue, due, revision)",
    // So the last record that is kept is found without reading all of them.
    "CREATE INDEX IF NOT EXISTS done_keeps ON @done USING brin (keep_until) \
     WITH (pages_per_range = 32, autosummarize = on)",
    "CREATE TABLE IF NOT EXISTS @done_0 PARTITION OF @done FOR VALUES IN (0)",
    "CREATE TABLE IF NOT EXISTS @done_1 PARTITION OF @done FOR VALUES IN (1)",
    "CREATE TABLE IF NOT EXISTS @done_2 PARTITION OF @done FOR VALUES IN (2)",
    "CREATE TABLE IF NOT EXISTS @done_3 PARTITION OF @done FOR VALUES IN (3)",
    "CREATE TABLE IF NOT EXISTS @done_4 PARTITION OF @done FOR VALUES IN (4)",
    "CREATE TABLE IF NOT EXISTS @done_5 PARTITION OF @done FOR VALUES IN (5)",
    "CREATE TABLE IF NOT EXISTS @done_6 PARTITION OF @done FOR VALUES IN (6)",
    "CREATE TABLE IF NOT EXISTS @done_7 PARTITION OF @done FOR VALUES IN (7)",
    "CREATE TABLE IF NOT EXISTS @done_8 PARTITION OF @done FOR VALUES IN (8)",
    "UPDATE @meta SET min_version = 3 WHERE min_version < 3",
];

/// An index of a table that is divided.
pub(crate) struct Index {
    pub(crate) table: &'static str,
    /// The last word of its name, and of those of its parts.
    pub(crate) name: &'static str,
    pub(crate) of: &'static str,
}

/// What version 4 has in place of [`LISTS`]: only a statement that names a queue can use the indexes of lists. To
/// the planner a shard with many dead rows looks empty, and there each index costs what any other costs: it would
/// look for a name among all rows of the shard.
pub(crate) const QUEUES: &[Index] = &[
    Index {
        table: "timer",
        name: "queues",
        of: "(shard, queue, due, revision) WHERE queue >= ''",
    },
    Index {
        table: "done",
        name: "queues",
        of: "(shard, queue, due, revision) WHERE queue >= ''",
    },
];

/// What version 4 has no more.
pub(crate) const LISTS: &[&str] = &[
    "DROP INDEX IF EXISTS @timer_lists",
    "DROP INDEX IF EXISTS @done_lists",
];

/// What version 5 has beside version 4: nodes with leases, a wish of the operator for each shard, and what
/// decides in which shard a timer is. A program of version 4 may go on: it knows no leases, but its tokens are
/// as good.
pub(crate) const NODES: &[&str] = &[
    // Its rows are few and change twice a second: free space on their page keeps all changes there.
    "CREATE TABLE IF NOT EXISTS @node (
        node uuid PRIMARY KEY,
        name text COLLATE \"C\" NOT NULL UNIQUE,
        api text NOT NULL,
        peers text,
        weight int4 NOT NULL,
        version text NOT NULL,
        zones text NOT NULL,
        expires timestamptz NOT NULL,
        draining bool NOT NULL DEFAULT false,
        joined timestamptz NOT NULL DEFAULT clock_timestamp()
    ) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)",
    "ALTER TABLE @shard ADD COLUMN IF NOT EXISTS wanted text COLLATE \"C\"",
    "ALTER TABLE @meta ADD COLUMN IF NOT EXISTS routing int4 NOT NULL DEFAULT 1",
];

/// What version 6 has beside version 5: which moves of all timers there were, into these tables and out of them,
/// and where the timers are if they are not here. A program of version 5 knows nothing of that, and may go on as
/// long as `min_version` lets it: it is refused while timers are moved, and once they are away.
pub(crate) const MOVES: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS @move (
        token uuid PRIMARY KEY,
        direction text NOT NULL CHECK (direction IN ('in', 'out')),
        state text NOT NULL CHECK (state IN ('moving', 'decided', 'given up')),
        place text NOT NULL,
        began timestamptz NOT NULL DEFAULT clock_timestamp(),
        seen timestamptz NOT NULL DEFAULT clock_timestamp(),
        ended timestamptz
    )",
    // One at a time.
    "CREATE UNIQUE INDEX IF NOT EXISTS move_now ON @move ((true)) WHERE state = 'moving'",
    "ALTER TABLE @meta ADD COLUMN IF NOT EXISTS away text",
];

/// What version 7 has beside version 6: a dead timer may wake, at the end of its retention. A program of version 6
/// may go on: it takes such a timer for one that a later version wrote, and does not touch it.
pub(crate) const DEAD_WAKE: &[&str] = &[
    "ALTER TABLE @timer DROP CONSTRAINT IF EXISTS timer_fits, ADD CONSTRAINT timer_fits CHECK (
        clock IN ('w', 'b') AND CASE state
        WHEN 'p' THEN wake IS NOT DISTINCT FROM due
        WHEN 'r' THEN wake IS NOT DISTINCT FROM due
        WHEN 'd' THEN wake IS NOT NULL
        WHEN 'x' THEN wake IS NULL OR clock = 'w'
        ELSE false END) NOT VALID",
];

/// Of a cluster made before version 5: the whole key decides in which shard a timer is.
const BY_KEY: i32 = 1;
/// Of any other: a part of the key in braces decides alone, if there is one. No earlier program looks for it.
const BY_TAG: i32 = 2;

/// A number that nobody else's advisory lock has by accident.
pub(crate) const LOCK: i64 = 0x636f_756e_7477_6865;

/// A checked name of a schema.
#[derive(Clone, Debug)]
pub(crate) struct SchemaName(String);

impl SchemaName {
    pub(crate) fn new(name: &str) -> Result<Self, PostgresError> {
        let mut bytes = name.bytes();
        let begins = bytes
            .next()
            .is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
        let goes_on = bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if begins && goes_on && name.len() <= 63 {
            Ok(Self(name.to_owned()))
        } else {
            let schema = name.to_owned();
            Err(PostgresError::Schema { schema })
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A statement in which `@timeline` stands for the server's history now, and any other `@` for the schema
    /// and a dot.
    pub(crate) fn sql(&self, name: &'static str, text: &str) -> Sql {
        let text = text.replace("@timeline", TIMELINE);
        let text = text.replace('@', &format!("\"{}\".", self.0));
        Sql { name, text }
    }
}

/// What the tables say of the cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) id: u64,
    pub(crate) shards: Shards,
    pub(crate) hash: NameHash,
    pub(crate) ring: Ring,
}

/// The tables of version 1. One transaction makes them all: an end of it in the middle leaves none.
fn tables(
    schema: &SchemaName,
    shards: Shards,
    ring: Ring,
    id: u64,
    key: &[u8; KEY_BYTES],
) -> String {
    let last = shards.count() - 1;
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut text = format!(
        r#"
CREATE SCHEMA IF NOT EXISTS "{name}";
CREATE TABLE @meta (
    one bool PRIMARY KEY DEFAULT true CHECK (one),
    schema_version int4 NOT NULL,
    cluster_id int8 NOT NULL,
    shards int2 NOT NULL,
    name_key bytea NOT NULL,
    settings_version int8 NOT NULL
);
CREATE TABLE @shard (
    shard int2 PRIMARY KEY,
    fence int8 NOT NULL,
    token uuid,
    owner uuid,
    since timestamptz
);
CREATE TABLE @turn (
    seq int8 NOT NULL,
    last_revision int8 NOT NULL,
    shard int2 NOT NULL,
    token uuid,
    clock bytea,
    timeline int4,
    writes int4 NOT NULL DEFAULT 0,
    PRIMARY KEY (shard, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
CREATE TABLE @loss (
    shard int2 NOT NULL,
    turn int8 NOT NULL,
    noticed timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (shard, turn)
);
CREATE TABLE @setting (
    name text COLLATE "C" PRIMARY KEY,
    version int8 NOT NULL,
    value bytea NOT NULL
);
CREATE TABLE @timer (
    revision int8 NOT NULL,
    due int8 NOT NULL,
    wake int8,
    shard int2 NOT NULL,
    clock "char" NOT NULL,
    state "char" NOT NULL,
    hash uuid NOT NULL,
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (shard, hash)
) PARTITION BY LIST (shard);
CREATE INDEX timer_wakes ON @timer (shard, clock, wake, revision) WHERE wake IS NOT NULL;
{second};
INSERT INTO @meta (schema_version, cluster_id, shards, name_key, settings_version, settings_timeline)
    VALUES ({VERSION}, {id}, {count}, '\x{hex}', {zero}, @timeline);
INSERT INTO @shard (shard, fence, timeline) SELECT shard, 0, @timeline FROM generate_series(0, {last}) AS shard;
INSERT INTO @turn (seq, last_revision, shard, timeline)
    SELECT 0, {zero}, shard, @timeline FROM generate_series(0, {last}) AS shard;
"#,
        name = schema.as_str(),
        second = SECOND.join(";\n"),
        count = shards.count(),
        id = number::stored(id),
        zero = number::stored(0),
    );
    text += &RING.join(";\n");
    text += ";\n";
    for Index { table, name, of } in QUEUES {
        text += &format!("CREATE INDEX {table}_{name} ON @{table} {of};\n");
    }
    text += &[LISTS, NODES, MOVES, DEAD_WAKE].concat().join(";\n");
    text += &format!(
        ";\nUPDATE @meta SET done_slice = {}, routing = {BY_TAG}, min_version = 5;\n",
        ring.micros(),
    );
    let partitions = PARTITIONS.min(shards.count());
    for partition in 0..partitions {
        let held: Vec<_> = (partition..shards.count())
            .step_by(usize::from(partitions))
            .map(|shard| shard.to_string())
            .collect();
        // Half of each page is free, so a claim finds room on the page of its row and no index
        // changes.
        text += &format!(
            "CREATE TABLE @timer_{partition} PARTITION OF @timer FOR VALUES IN ({}) \
             WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);\n",
            held.join(", "),
        );
    }
    text
}

/// Makes a cluster.
pub(crate) fn make(
    link: &mut Link,
    schema: &SchemaName,
    shards: Shards,
    ring: Ring,
) -> Result<(), PostgresError> {
    let system = |error: getrandom::Error| PostgresError::System {
        reason: error.to_string(),
    };
    let id = getrandom::u64().map_err(system)?;
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(system)?;
    link.execute("BEGIN", MAKING)?;
    link.execute(&format!("SELECT pg_advisory_xact_lock({LOCK})"), MAKING)?;
    let made = match find(link, schema) {
        Ok(cluster) => Err(PostgresError::Exists {
            schema: schema.as_str().to_owned(),
            shards: cluster.shards.count(),
        }),
        Err(PostgresError::NoCluster { .. }) => {
            let text = schema
                .sql("make", &tables(schema, shards, ring, id, &key))
                .text;
            link.execute(&text, MAKING).map_err(PostgresError::from)
        }
        Err(error) => Err(error),
    };
    match made {
        Ok(()) => Ok(link.execute("COMMIT", MAKING)?),
        Err(error) => {
            link.close(); // and with it the transaction
            Err(error)
        }
    }
}

/// The version of the tables.
pub(crate) fn version(link: &mut Link, schema: &SchemaName) -> Result<u32, PostgresError> {
    let is_there = Sql {
        name: "is_there",
        text: "SELECT to_regclass($1) IS NOT NULL".to_owned(),
    };
    let meta = format!("\"{}\".meta", schema.as_str());
    let found = link.query(&is_there, &[&meta])?;
    let name = || schema.as_str().to_owned();
    if found.rows.first().is_none_or(|row| !row.get::<_, bool>(0)) {
        return Err(PostgresError::NoCluster { schema: name() });
    }
    let version = schema.sql("version", "SELECT schema_version FROM @meta");
    let rows = link.query(&version, &[])?.rows;
    let version = rows.first().map(|row| row.get::<_, i32>(0));
    version
        .and_then(|version| u32::try_from(version).ok())
        .ok_or_else(|| PostgresError::Damaged {
            schema: name(),
            problem: "meta is empty".to_owned(),
        })
}

/// Refuses tables of a later version.
pub(crate) fn later(schema: &SchemaName, found: u32) -> PostgresError {
    PostgresError::LaterSchema {
        schema: schema.as_str().to_owned(),
        found,
        known: VERSION,
    }
}

/// Reads what cluster there is.
pub(crate) fn find(link: &mut Link, schema: &SchemaName) -> Result<Cluster, PostgresError> {
    let name = || schema.as_str().to_owned();
    let damaged = |problem: &str| PostgresError::Damaged {
        schema: name(),
        problem: problem.to_owned(),
    };
    let version = version(link, schema)?;
    if version < VERSION {
        return Err(PostgresError::EarlierSchema {
            schema: name(),
            found: version,
            needed: VERSION,
        });
    }
    // Tables of a later version say down to which version a program may work on them.
    if version > VERSION {
        let least = schema.sql("least", "SELECT min_version FROM @meta");
        let rows = link.query(&least, &[])?.rows;
        let least = rows.first().map_or(0, |row| row.get::<_, i32>(0));
        if least.cast_unsigned() > VERSION {
            return Err(later(schema, version));
        }
    }
    let cluster = schema.sql(
        "cluster",
        "SELECT cluster_id, shards, name_key, done_slice, routing FROM @meta",
    );
    let rows = link.query(&cluster, &[])?.rows;
    let row = rows.first().ok_or_else(|| damaged("meta is empty"))?;
    let shards = u16::try_from(row.get::<_, i16>(1)).ok();
    let shards = shards.and_then(Shards::new);
    let shards = shards.ok_or_else(|| damaged("the number of shards"))?;
    let key: &[u8] = row.get(2);
    let key = key.try_into().map_err(|_| damaged("the key of names"))?;
    let shards = match row.get(4) {
        BY_KEY => shards,
        BY_TAG => shards.by_tag(),
        _ => return Err(damaged("what decides in which shard a timer is")),
    };
    let cluster = Cluster {
        id: number::read(row.get(0)),
        shards,
        hash: NameHash::new(key),
        ring: Ring::of_slices(row.get::<_, i64>(3).cast_unsigned()),
    };
    let whole = schema.sql(
        "whole",
        "SELECT (SELECT count(*) FROM @shard), (SELECT count(DISTINCT shard) FROM @turn), \
         (SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass($1)), \
         (SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass($2))",
    );
    let [timers, done] = ["timer", "done"].map(|table| format!("\"{}\".{table}", schema.as_str()));
    let found = link.query(&whole, &[&timers, &done])?.rows;
    let found = found
        .first()
        .map(|row| [0, 1, 2, 3].map(|at| row.get::<_, i64>(at)));
    let count = i64::from(shards.count());
    let partitions = count.min(PARTITIONS.into());
    match found {
        Some([rows, ..]) if rows != count => Err(damaged("rows of shard are missing")),
        Some([_, turns, ..]) if turns != count => Err(damaged("a shard has no turn")),
        Some([_, _, tables, _]) if tables != partitions => {
            Err(damaged("a partition of timer is missing"))
        }
        Some([.., tables]) if tables != i64::from(SLOTS) => {
            Err(damaged("a partition of done is missing"))
        }
        Some(_) => Ok(cluster),
        None => Err(damaged("it says nothing of itself")),
    }
}

/// Refuses tables whose timers were moved away.
pub(crate) fn must_be_here(link: &mut Link, schema: &SchemaName) -> Result<(), PostgresError> {
    let away = schema.sql("away", "SELECT away FROM @meta");
    let rows = link.query(&away, &[])?.rows;
    match rows.first().and_then(|row| row.get(0)) {
        None => Ok(()),
        Some(place) => Err(PostgresError::MovedAway {
            schema: schema.as_str().to_owned(),
            place,
        }),
    }
}

/// Looks whether the user may do all that the store does.
pub(crate) fn check_rights(link: &mut Link, schema: &SchemaName) -> Result<(), PostgresError> {
    let ask = Sql {
        name: "rights",
        text: "SELECT t FROM unnest($1::text[]) AS t \
               WHERE NOT has_table_privilege(t, 'SELECT') \
               OR NOT has_table_privilege(t, 'INSERT') \
               OR NOT has_table_privilege(t, 'UPDATE') \
               OR NOT has_table_privilege(t, 'DELETE') \
               OR t ~ '[.]done_' AND NOT has_table_privilege(t, 'TRUNCATE')"
            .to_owned(),
    };
    let tables = [
        "meta", "shard", "node", "turn", "setting", "loss", "counts", "timer", "done", "move",
    ];
    let slots = (0..SLOTS).map(|slot| format!("done_{slot}"));
    let tables = tables.into_iter().map(str::to_owned).chain(slots);
    let tables: Vec<_> = tables
        .map(|table| format!("\"{}\".{table}", schema.as_str()))
        .collect();
    let refused = link.query(&ask, &[&tables.as_slice()])?.rows;
    match refused.first() {
        None => Ok(()),
        Some(row) => Err(PostgresError::Unfit {
            found: format!("the user may not read and write {}", row.get::<_, &str>(0)),
            remedy: "grant SELECT, INSERT, UPDATE and DELETE on all tables of the schema, and TRUNCATE \
                     on those whose names begin with done_",
        }),
    }
}
