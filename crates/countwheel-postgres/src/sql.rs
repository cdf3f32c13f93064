//! The statements in SQL, and a connection that does them.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use countwheel_cluster::{Holding, Member, Node, NodeId, View};
use countwheel_durable::store::{ClockNote, Fence, Filter, Shard};
use countwheel_durable::{
    DueClock, QueueName, Record, Revision, SettingName, SettingValue, Settings, SettingsVersion,
    State, StateKind, Wake,
};
use countwheel_time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::types::ToSql;

use crate::bits::Bits;
use crate::body;
use crate::commit::Named;
use crate::front::Lows;
use crate::link::{Answer, Link, Params, Sql};
use crate::number;
use crate::planted::planted;
use crate::registry::{self, GONE_AFTER, LEASE_MAX, MARGIN};
use crate::ring::{Ring, SLOTS, Slots};
use crate::schema::{SchemaName, left_out};
use crate::server::{self, About};
use crate::session::{
    Became, Beside, Blocker, Counted, DueRow, Entry, Failure, Given, Kind, LastTurn, ListRows,
    Made, OwnerRow, Reach, RecordRow, Registered, SavedCounts, Session, Take, Taken, TakenAtOnce,
    TakenOver, Wished,
};
use crate::snapshots::{self, Holder};

/// How long it may take to look what is kept still of a table of the ring.
const FORGETTING: Duration = Duration::from_secs(60);

/// One statement for each table of the ring.
const HAS_ANY: [&str; SLOTS as usize] = [
    "has_0", "has_1", "has_2", "has_3", "has_4", "has_5", "has_6", "has_7", "has_8",
];

/// All statements of a schema.
pub(crate) struct Statements {
    schema: SchemaName,
    ring: Ring,
    /// Of timers that are not done.
    turn: Sql,
    /// Of others as well.
    turn_with_done: Sql,
    /// Of all these and settings.
    turn_with_settings: Sql,
    /// Of timers that come from elsewhere.
    arrive: Sql,
    became: Sql,
    take: Sql,
    take_over: Sql,
    take_held: Sql,
    take_at_once: Sql,
    end_blockers: Sql,
    join: Sql,
    renew: Sql,
    view: Sql,
    give: Sql,
    leave: Sql,
    mark_draining: Sql,
    want: Sql,
    last_turn: Sql,
    owner: Sql,
    kinds: Sql,
    prune: Sql,
    names: Sql,
    due: Sql,
    due_beside: Sql,
    first: Sql,
    places: Sql,
    list: Sql,
    counts: Sql,
    count: Sql,
    saved_counts: Sql,
    last_saved_counts: Sql,
    save_counts: Sql,
    forget_outside: Sql,
    settings_version: Sql,
    settings: Sql,
    note_loss: Sql,
    losses: Sql,
    snapshots: Sql,
    about: Sql,
}

impl Statements {
    /// The statements, with what `planted` makes of those that write.
    ///
    /// A plan is made once, perhaps while the tables are empty, and has to be right when they are large:
    /// every row of them is found by the index of its key. `LATERAL .. LIMIT 1`, `OFFSET 0`, `= ANY (ARRAY[..])`
    /// and `>= .. AND <=` leave the planner no other way, such as a hash join with all rows of a shard. Of the
    /// second column of an index it may leave out `= ANY`, and read all rows of a shard; a range it keeps.
    pub(crate) fn of(schema: &SchemaName, ring: Ring, planted: &dyn Fn(String) -> String) -> Self {
        // Each shard's row is locked against a new owner while its token is ours and the turn before
        // ours is there; then the turn is inserted, and everything else joins what that gave. A
        // repeated statement inserts no turn, and so changes nothing. Nor does one in another history of
        // the server: there the token may be ours again, since the taking after ours is forgotten.
        let entries = "WITH e AS MATERIALIZED ( \
               SELECT * FROM unnest($1::int2[], $2::uuid[], $3::int8[], $4::int8[], $5::bytea[], \
                 $6::int4[], $7::int4[], $29::bytea[]) \
               AS e(shard, token, seq, last_revision, clock, timeline, writes, lows)), ";
        let right = "l AS MATERIALIZED ( \
               SELECT e.* FROM e JOIN @shard s ON s.shard = ANY (ARRAY[e.shard]) AND s.token = e.token \
               WHERE EXISTS (SELECT FROM @turn p WHERE p.shard = e.shard AND p.seq = e.seq - 1 \
                 OFFSET 0) AND e.timeline = (SELECT @timeline) \
               ORDER BY s.shard FOR SHARE OF s), \
             f AS MATERIALIZED ( \
               INSERT INTO @turn (shard, token, seq, last_revision, clock, timeline, writes, lows) \
               SELECT * FROM l \
               ON CONFLICT DO NOTHING RETURNING shard), ";
        let rows = "put AS ( \
               INSERT INTO @timer (shard, hash, revision, due, wake, clock, state, queue, key, \
                 body, payload) \
               SELECT u.* FROM unnest($8::int2[], $9::uuid[], $10::int8[], $11::int8[], \
                 $12::int8[], $13::\"char\"[], $14::\"char\"[], $15::text[], $16::text[], \
                 $17::bytea[], $18::bytea[]) \
                 AS u(shard, hash, revision, due, wake, clock, state, queue, key, body, payload) \
               WHERE u.shard IN (SELECT shard FROM f) \
               ON CONFLICT (shard, hash) DO UPDATE SET revision = excluded.revision, \
                 due = excluded.due, wake = excluded.wake, clock = excluded.clock, \
                 state = excluded.state, body = excluded.body, payload = excluded.payload, \
                 queue = excluded.queue, key = excluded.key), \
             narrow AS ( \
               UPDATE @timer t SET revision = u.revision, due = u.due, wake = u.wake, \
                 clock = u.clock, state = u.state, body = u.body \
               FROM unnest($19::int2[], $20::uuid[], $21::int8[], $22::int8[], $23::int8[], \
                 $24::\"char\"[], $25::\"char\"[], $26::bytea[]) \
                 AS u(shard, hash, revision, due, wake, clock, state, body) \
               WHERE u.shard IN (SELECT shard FROM f) \
                 AND t.shard = ANY (ARRAY[u.shard]) AND t.hash >= u.hash AND t.hash <= u.hash), \
             removed AS ( \
               DELETE FROM @timer t USING unnest($27::int2[], $28::uuid[]) AS u(shard, hash) \
               WHERE u.shard IN (SELECT shard FROM f) \
                 AND t.shard = ANY (ARRAY[u.shard]) AND t.hash >= u.hash AND t.hash <= u.hash";
        let fence = format!("{entries}{right}{rows}");
        // Of a move there are no turns yet: its row is the right to write, and whoever decides it waits for
        // what is under way.
        let arriving = format!(
            "{entries}f AS MATERIALIZED ( \
               SELECT e.shard FROM @move m JOIN e ON e.token = m.token \
               WHERE m.state = 'moving' FOR SHARE OF m), {rows}"
        );
        // What becomes done leaves `timer`, and takes its payload along. Of the parts of a statement none
        // sees what another one writes: what is taken out of the ring was there before.
        let done = " RETURNING t.shard, t.hash, t.payload), \
             kept AS ( \
               INSERT INTO @done (shard, slot, hash, revision, due, keep_until, queue, key, body, \
                 payload) \
               SELECT u.shard, u.slot, u.hash, u.revision, u.due, u.keep_until, u.queue, u.key, \
                 u.body, coalesce(u.payload, r.payload) \
               FROM unnest($30::int2[], $31::int2[], $32::uuid[], $33::int8[], $34::int8[], \
                 $35::int8[], $36::text[], $37::text[], $38::bytea[], $39::bytea[]) \
                 AS u(shard, slot, hash, revision, due, keep_until, queue, key, body, payload) \
               LEFT JOIN removed r ON r.shard = u.shard AND r.hash = u.hash \
               WHERE u.shard IN (SELECT shard FROM f) \
               AND (u.payload IS NOT NULL OR r.payload IS NOT NULL)), \
             replaced AS ( \
               DELETE FROM @done d USING unnest($40::int2[], $41::uuid[]) AS u(shard, hash) \
               WHERE u.shard IN (SELECT shard FROM f) \
                 AND d.shard = ANY (ARRAY[u.shard]) AND d.hash >= u.hash AND d.hash <= u.hash";
        // The last change of a name wins; every change counts.
        let settings = format!(
            "), changed AS MATERIALIZED ( \
               SELECT c.place, c.name, c.value, row_number() OVER (ORDER BY c.place) AS nth, \
               lead(c.place) OVER (PARTITION BY c.name ORDER BY c.place) IS NULL AS is_last \
               FROM unnest($42::int2[], $43::int8[], $44::text[], $45::bytea[]) \
                 AS c(shard, place, name, value) WHERE c.shard IN (SELECT shard FROM f)), \
             m AS MATERIALIZED ( \
               UPDATE @meta SET settings_version = settings_version + {} + n.n, \
                 settings_timeline = @timeline \
               FROM (SELECT count(*) AS n FROM changed) AS n WHERE n.n > 0 \
               RETURNING settings_version - n.n AS before), \
             set AS ( \
               INSERT INTO @setting (name, version, value) \
               SELECT c.name, m.before + c.nth, c.value FROM changed c, m \
               WHERE c.is_last AND c.value IS NOT NULL \
               ON CONFLICT (name) DO UPDATE SET version = excluded.version, value = excluded.value), \
             dropped AS ( \
               DELETE FROM @setting s USING changed c, m \
               WHERE c.is_last AND c.value IS NULL AND s.name = c.name",
            left_out("settings_timeline"),
        );
        let end = ") SELECT shard FROM f";
        Self {
            schema: schema.clone(),
            ring,
            turn: schema.sql("turn", &planted(format!("{fence}{end}"))),
            turn_with_done: schema.sql("turn_with_done", &planted(format!("{fence}{done}{end}"))),
            turn_with_settings: schema.sql(
                "turn_with_settings",
                &planted(format!("{fence}{done}{settings}{end}")),
            ),
            arrive: schema.sql("arrive", &format!("{arriving}{done}{end}")),
            became: schema.sql(
                "became",
                "SELECT s.token = $2, s.fence, \
                 (SELECT CASE WHEN t.token = $2 THEN t.writes END FROM @turn t \
                   WHERE t.shard = s.shard AND t.seq = $3), \
                 EXISTS (SELECT FROM @turn t WHERE t.shard = s.shard AND t.seq = $3 - 1), @timeline \
                 FROM @shard s WHERE s.shard = $1",
            ),
            // It waits for the statements that hold the row.
            take: schema.sql(
                "take",
                &format!(
                    "UPDATE @shard SET fence = fence + {} + 1, token = $2, owner = $3, \
                     timeline = @timeline, since = clock_timestamp() \
                     WHERE shard = $1 AND fence = $4 RETURNING fence",
                    left_out("timeline"),
                ),
            ),
            take_over: schema.sql("take_over", &take_over(TAKEOVER_WITHIN)),
            take_held: schema.sql("take_held", &take_over(HELD_WITHIN)),
            take_at_once: schema.sql("take_at_once", &take_at_once()),
            // Who waits for a lock itself, as another node that takes the shard does, is not ended.
            end_blockers: schema.sql(
                "end_blockers",
                "WITH RECURSIVE b(pid) AS ( \
                   SELECT unnest(pg_blocking_pids($1)) \
                   UNION SELECT unnest(pg_blocking_pids(b.pid)) FROM b WHERE b.pid <> 0), \
                 h AS MATERIALIZED ( \
                   SELECT b.pid, a.application_name AS name, a.state, coalesce( \
                     a.application_name = current_setting('application_name') \
                     AND a.state IS NOT NULL OR a.state LIKE 'idle in transaction%', false) AS may_end \
                   FROM b LEFT JOIN pg_stat_activity a ON a.pid = b.pid \
                   WHERE b.pid <> $1 AND (b.pid = 0 OR cardinality(pg_blocking_pids(b.pid)) = 0)) \
                 SELECT pid, name, state, CASE WHEN may_end THEN pg_terminate_backend(pid) \
                   ELSE false END FROM h",
            ),
            join: schema.sql(
                "join",
                &format!(
                    "WITH me AS ( \
                       INSERT INTO @node AS n (node, name, api, peers, weight, version, zones, expires) \
                       VALUES ($1, $2, $3, $4, $5, $6, $7, \
                         clock_timestamp() + $8::int8 * interval '1 microsecond') \
                       ON CONFLICT (name) DO UPDATE SET node = excluded.node, api = excluded.api, \
                         peers = excluded.peers, weight = excluded.weight, \
                         version = excluded.version, zones = excluded.zones, \
                         expires = excluded.expires, joined = excluded.joined, \
                         draining = n.draining AND n.node = excluded.node \
                       WHERE n.node = excluded.node OR n.expires < clock_timestamp() - {margin} \
                       RETURNING n.*), \
                     gone AS ( \
                       DELETE FROM @node WHERE node = ANY (ARRAY( \
                         SELECT n.node FROM @node n WHERE EXISTS (SELECT FROM me) AND n.name <> $2 \
                         AND n.expires < clock_timestamp() - {gone_after} \
                         AND NOT EXISTS (SELECT FROM @shard s WHERE s.owner = n.node) \
                         FOR UPDATE SKIP LOCKED)) RETURNING node), \
                     {}, \
                     nodes AS MATERIALIZED ( \
                       SELECT n.* FROM @node n \
                       WHERE NOT EXISTS (SELECT FROM gone g WHERE g.node = n.node) \
                       AND NOT EXISTS (SELECT FROM me m WHERE m.name = n.name) \
                       UNION ALL SELECT * FROM me), {}",
                    capped("node <> $1"),
                    seen("EXISTS (SELECT FROM me)"),
                    margin = interval(MARGIN),
                    gone_after = interval(GONE_AFTER),
                ),
            ),
            renew: schema.sql(
                "renew",
                &format!(
                    "WITH me AS ( \
                       UPDATE @node SET expires = clock_timestamp() \
                         + $2::int8 * interval '1 microsecond' WHERE node = $1 RETURNING *), \
                     {}, \
                     nodes AS MATERIALIZED ( \
                       SELECT n.* FROM @node n \
                       WHERE NOT EXISTS (SELECT FROM me m WHERE m.node = n.node) \
                       UNION ALL SELECT * FROM me), {}",
                    capped("node <> $1"),
                    seen("EXISTS (SELECT FROM me)"),
                ),
            ),
            view: schema.sql(
                "view",
                &format!(
                    "WITH nodes AS MATERIALIZED (SELECT * FROM @node), {}",
                    seen("EXISTS (SELECT FROM nodes n WHERE n.node = $1)"),
                ),
            ),
            // One that is sent again finds what it has done before.
            give: schema.sql(
                "give",
                "WITH g AS (UPDATE @shard SET owner = $4, token = NULL, since = clock_timestamp() \
                   WHERE shard = $1 AND fence = $2 AND token IS NOT DISTINCT FROM $3 \
                   RETURNING shard) \
                 SELECT EXISTS (SELECT FROM g) OR EXISTS (SELECT FROM @shard WHERE shard = $1 \
                   AND fence = $2 AND token IS NULL AND owner IS NOT DISTINCT FROM $4)",
            ),
            // The node before its shards, and these in order: as takeovers and commits lock them.
            leave: schema.sql(
                "leave",
                "WITH me AS (DELETE FROM @node WHERE node = $1 RETURNING node), \
                 mine AS MATERIALIZED ( \
                   SELECT s.shard FROM @shard s WHERE s.owner = (SELECT node FROM me) \
                   ORDER BY s.shard FOR UPDATE), \
                 freed AS ( \
                   UPDATE @shard s SET owner = NULL, token = NULL, since = clock_timestamp() \
                   FROM mine m WHERE s.shard = m.shard AND s.owner = $1 RETURNING s.shard) \
                 SELECT count(*) FROM freed",
            ),
            mark_draining: schema.sql(
                "mark_draining",
                "UPDATE @node SET draining = $2 WHERE name = $1 RETURNING name",
            ),
            want: schema.sql(
                "want",
                "WITH n AS MATERIALIZED ( \
                   SELECT $2::text IS NULL OR EXISTS (SELECT FROM @node WHERE name = $2) AS is_there), \
                 w AS MATERIALIZED ( \
                   SELECT s.shard FROM @shard s WHERE (SELECT is_there FROM n) \
                   AND ($1::int2 IS NULL OR s.shard = $1) AND s.wanted IS DISTINCT FROM $2 \
                   ORDER BY s.shard FOR UPDATE), \
                 u AS (UPDATE @shard s SET wanted = $2 FROM w WHERE s.shard = w.shard) \
                 SELECT is_there, $1 IS NULL OR EXISTS (SELECT FROM @shard WHERE shard = $1) FROM n",
            ),
            last_turn: schema.sql(
                "last_turn",
                "SELECT seq, last_revision, clock, timeline, @timeline, token, lows \
                 FROM @turn WHERE shard = $1 ORDER BY seq DESC LIMIT 1",
            ),
            owner: schema.sql(
                "owner",
                "SELECT fence, token, owner FROM @shard WHERE shard = $1",
            ),
            kinds: schema.sql(
                "kinds",
                "SELECT n.hash, t.state, t.wake FROM unnest($2::uuid[]) AS n(hash) \
                 CROSS JOIN LATERAL ( \
                   SELECT state, wake FROM @timer WHERE shard = $1 AND hash = n.hash \
                   UNION ALL SELECT 'd', keep_until FROM @done WHERE shard = $1 AND hash = n.hash \
                   LIMIT 1) AS t",
            ),
            prune: schema.sql("prune", "DELETE FROM @turn WHERE shard = $1 AND seq < $2"),
            // What is not wanted any more, since the payloads before it are long enough, comes without
            // its place.
            names: schema.sql(
                "names",
                "SELECT queue, key, revision, due, state, body, payload, \
                 (SELECT token = $4 FROM @shard WHERE shard = $1) FROM ( \
                 SELECT n.i, t.*, sum(coalesce(octet_length(t.payload), 0)) OVER (ORDER BY n.i) \
                 - coalesce(octet_length(t.payload), 0) AS before \
                 FROM unnest($2::uuid[]) WITH ORDINALITY AS n(hash, i) \
                 LEFT JOIN LATERAL ( \
                   SELECT queue, key, revision, due, state, body, payload FROM @timer \
                   WHERE shard = $1 AND hash = n.hash \
                   UNION ALL SELECT queue, key, revision, due, 'd', body, payload FROM @done \
                   WHERE shard = $1 AND hash = n.hash \
                   AND slot IN ($5, $6, $7, $8, $9, $10, $11, $12, $13) LIMIT 1) AS t ON true) AS found \
                 WHERE before <= $3 ORDER BY i",
            ),
            due: schema.sql(
                "due",
                "SELECT wake, revision, state, queue, key, hash FROM @timer WHERE shard = $1 \
                 AND clock = $2 AND wake IS NOT NULL AND (wake, revision) >= ($3, $4) \
                 AND wake <= $5 AND state <> 'd' ORDER BY wake, revision LIMIT $6",
            ),
            due_beside: schema.sql(
                "due_beside",
                "(SELECT wake, revision, state, queue, key, hash FROM @timer WHERE shard = $1 \
                   AND clock = $2 AND wake IS NOT NULL AND (wake, revision) >= ($3, $4) \
                   AND wake <= $5 AND state <> 'd' ORDER BY wake, revision LIMIT $6) \
                 UNION ALL \
                 (SELECT t.wake, t.revision, t.state, t.queue, t.key, t.hash \
                   FROM unnest($7::uuid[]) AS n(hash) CROSS JOIN LATERAL ( \
                     SELECT * FROM @timer t WHERE t.shard = $1 AND t.hash = n.hash LIMIT 1) AS t \
                   WHERE t.clock = $2 AND (t.wake, t.revision) >= ($8, $9) \
                   AND (t.wake, t.revision) < ($3, $4) AND t.wake <= $5 AND t.state <> 'd') \
                 ORDER BY wake, revision LIMIT $6",
            ),
            first: schema.sql(
                "first",
                "SELECT wake, revision, hash FROM @timer WHERE shard = $1 AND clock = $2 \
                 AND wake IS NOT NULL AND (wake, revision) >= ($3, $4) AND state <> 'd' \
                 ORDER BY wake, revision LIMIT $5",
            ),
            places: schema.sql(
                "places",
                "SELECT t.hash, t.clock, t.wake, t.revision FROM unnest($2::uuid[]) AS n(hash) \
                 CROSS JOIN LATERAL (SELECT * FROM @timer t \
                   WHERE t.shard = $1 AND t.hash = n.hash LIMIT 1) AS t \
                 WHERE t.wake IS NOT NULL AND t.state <> 'd'",
            ),
            // One entry more than may be looked at, and one record more than is wanted: so the page
            // knows whether it is the last.
            list: schema.sql(
                "list",
                "WITH seen AS MATERIALIZED ( \
                   SELECT due, revision, hash, slot, state, key, octet_length(payload) AS bytes, \
                   row_number() OVER (ORDER BY due, revision) AS place FROM ( \
                     SELECT due, revision, hash, NULL::int2 AS slot, state, key, payload \
                     FROM @timer WHERE shard = $1 AND queue = $2 AND queue >= '' \
                     AND (due, revision) >= ($3, $4) AND due <= $5 \
                     UNION ALL SELECT due, revision, hash, slot, 'd'::\"char\", key, payload \
                     FROM @done WHERE shard = $1 AND queue = $2 AND queue >= '' \
                     AND (due, revision) >= ($3, $4) AND due <= $5) AS both_of_them \
                   ORDER BY due, revision LIMIT $6), \
                 wanted AS MATERIALIZED ( \
                   SELECT seen.*, row_number() OVER w AS nth, sum(bytes) OVER w - bytes AS before \
                   FROM seen WHERE place < $6 AND ($7::\"char\" IS NULL OR state = $7) \
                   AND ($8::text IS NULL OR starts_with(key, $8)) \
                   WINDOW w AS (ORDER BY due, revision)) \
                 SELECT s.due, s.revision, w.nth, t.queue, w.key, w.revision, w.due, w.state, t.body, \
                   CASE WHEN w.nth < $9 AND w.before < $10 THEN t.payload END \
                 FROM (SELECT \
                   (SELECT due FROM seen WHERE place = $6 - 1 AND EXISTS \
                     (SELECT FROM seen WHERE place = $6)) AS due, \
                   (SELECT revision FROM seen WHERE place = $6 - 1) AS revision) AS s \
                 LEFT JOIN wanted w ON w.nth <= $9 \
                 LEFT JOIN LATERAL ( \
                   SELECT queue, body, payload FROM @timer \
                   WHERE w.slot IS NULL AND shard = $1 AND hash = w.hash \
                   UNION ALL SELECT queue, body, payload FROM @done \
                   WHERE slot = w.slot AND shard = $1 AND hash = w.hash LIMIT 1) AS t ON true \
                 ORDER BY w.nth",
            ),
            counts: schema.sql(
                "counts",
                "SELECT queue, state, count(*) FROM ( \
                   SELECT queue, state FROM @timer \
                   WHERE shard = $1 AND (state <> 'd' OR wake >= $2) \
                   UNION ALL SELECT queue, 'd' FROM @done WHERE shard = $1 AND keep_until >= $2 \
                 ) AS both_of_them GROUP BY queue, state ORDER BY queue",
            ),
            // One statement: the counts are those after that turn.
            count: schema.sql(
                "count",
                "SELECT s.seq, c.queue, c.state, c.slice, c.count \
                 FROM (SELECT max(seq) AS seq FROM @turn WHERE shard = $1) AS s LEFT JOIN ( \
                   SELECT queue, state, slice, count(*) AS count FROM ( \
                     SELECT queue, state, CASE WHEN state = 'd' \
                       THEN div(wake::numeric + 9223372036854775808, $5::int8::numeric)::int8 END \
                       AS slice \
                     FROM @timer WHERE shard = $1 AND hash >= $2 AND hash <= $3 \
                     UNION ALL SELECT queue, 'd', \
                       div(keep_until::numeric + 9223372036854775808, $5::int8::numeric)::int8 \
                     FROM @done WHERE shard = $1 AND hash >= $2 AND hash <= $3 \
                     LIMIT $4) AS page \
                   GROUP BY queue, state, slice) AS c ON true",
            ),
            saved_counts: schema.sql(
                "saved_counts",
                "SELECT c.counts FROM @counts c JOIN @turn t USING (shard, seq, token) \
                 WHERE shard = $1 AND NOT EXISTS ( \
                   SELECT FROM @turn l WHERE l.shard = $1 AND l.seq > c.seq)",
            ),
            last_saved_counts: schema.sql(
                "last_saved_counts",
                "SELECT counts FROM @counts WHERE shard = $1",
            ),
            save_counts: schema.sql(
                "save_counts",
                "INSERT INTO @counts (shard, seq, token, counts) \
                 SELECT shard, seq, token, n.counts FROM unnest($1::int2[], $2::int8[], $3::uuid[], \
                   $4::bytea[]) AS n(shard, seq, token, counts) JOIN @turn t USING (shard, seq, token) \
                 ON CONFLICT (shard) DO UPDATE SET seq = excluded.seq, token = excluded.token, \
                   counts = excluded.counts",
            ),
            // Nobody owns what is past: each is looked at again once its row is locked.
            forget_outside: schema.sql(
                "forget_outside",
                &format!(
                    "DELETE FROM @timer t USING ( \
                       SELECT p.shard, p.hash FROM unnest($1::int2[]) AS n(shard) \
                       CROSS JOIN LATERAL ( \
                         SELECT shard, hash FROM @timer WHERE shard = n.shard AND clock = 'w' \
                         AND wake <= {past} AND state = 'd' ORDER BY wake LIMIT 200 \
                         FOR UPDATE SKIP LOCKED) AS p) AS u \
                     WHERE t.shard = u.shard AND t.hash = u.hash AND t.state = 'd'",
                    past = past(ring),
                ),
            ),
            settings_version: schema.sql("settings_version", "SELECT settings_version FROM @meta"),
            note_loss: schema.sql(
                "note_loss",
                "INSERT INTO @loss (shard, turn) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            ),
            losses: schema.sql(
                "losses",
                "SELECT shard, turn FROM @loss ORDER BY shard, turn LIMIT 64",
            ),
            snapshots: schema.sql("snapshots", snapshots::HOLDERS),
            about: schema.sql("about", server::ABOUT),
            settings: schema.sql(
                "settings",
                "SELECT m.settings_version, s.name, s.version, s.value \
                 FROM @meta m LEFT JOIN @setting s ON true",
            ),
        }
    }
}

impl Statements {
    /// Those that find timers by their keys.
    #[cfg(feature = "testing")]
    pub(crate) fn texts(self) -> Vec<(&'static str, String)> {
        let all = [
            self.turn,
            self.turn_with_done,
            self.turn_with_settings,
            self.kinds,
            self.names,
            self.due,
            self.first,
            self.places,
            self.list,
        ];
        all.into_iter().map(|sql| (sql.name, sql.text)).collect()
    }

    /// Whether the table of a slot has anything.
    fn has_any(&self, slot: i16) -> String {
        let text = format!("SELECT EXISTS (SELECT FROM @done_{slot})");
        self.schema.sql("has_any", &text).text
    }

    /// Empties the table of a slot. One record that is kept still, by a clock that was set ahead once, makes
    /// it slow and not wrong. The table is locked last: commits wait for who waits for the lock.
    fn forget(&self, slot: i16) -> String {
        let text = format!(
            "DO $$ DECLARE past int8 := {past}; \
             BEGIN \
               IF EXISTS (SELECT FROM @done_{slot} WHERE keep_until > past) THEN \
                 DELETE FROM @done_{slot} WHERE ctid = ANY (ARRAY( \
                   SELECT ctid FROM @done_{slot} WHERE keep_until <= past LIMIT 1000 \
                   FOR UPDATE SKIP LOCKED)); \
                 RETURN; \
               END IF; \
               SET LOCAL lock_timeout = '50ms'; \
               LOCK TABLE @done_{slot} IN ACCESS EXCLUSIVE MODE; \
               IF NOT EXISTS (SELECT FROM @done_{slot} WHERE keep_until > past) THEN \
                 TRUNCATE @done_{slot}; \
               END IF; \
             END $$",
            past = past(self.ring),
        );
        self.schema.sql("forget", &text).text
    }
}

/// How long a takeover waits for the turns that are under way.
const TAKEOVER_WITHIN: Duration = Duration::from_secs(1);
/// After so long one of a shard whose row was held ends who holds it.
pub(crate) const HELD_FOR: Duration = Duration::from_millis(500);
/// How long it waits in all: those that are ended take a moment.
const HELD_WITHIN: Duration = Duration::from_secs(2);

/// Takes one shard. The row of the owner is locked before the clock is read: a renewal comes before, and is seen,
/// or after, and finds the shard taken. Other nodes may lock it as well: one that waits for a shard keeps nobody
/// from the others. Who gives the shard away leaves its fence as it is, so the owner is compared as well.
fn take_over(within: Duration) -> String {
    format!(
        "WITH s AS MATERIALIZED ( \
           SELECT r.owner FROM (SELECT set_config('lock_timeout', '{lock_within}', true) \
             AS is_set OFFSET 0) AS c JOIN @shard r ON c.is_set IS NOT NULL \
           WHERE r.shard = $1 AND r.fence = $4), \
         o AS MATERIALIZED ( \
           SELECT n.name, n.expires FROM @node n \
           WHERE n.node = (SELECT owner FROM s) AND n.node <> $3 {for_share}), \
         living AS MATERIALIZED ( \
           SELECT name FROM o WHERE expires >= clock_timestamp() - {margin}), \
         t AS ( \
           UPDATE @shard SET fence = fence + {left_out} + 1, token = $2, owner = $3, \
             timeline = @timeline, since = clock_timestamp() \
           WHERE shard = $1 AND fence = $4 \
             AND owner IS NOT DISTINCT FROM (SELECT owner FROM s) \
             {is_over} RETURNING fence) \
         SELECT (SELECT fence FROM t), (SELECT name FROM living)",
        left_out = left_out("timeline"),
        lock_within = within.as_millis(),
        margin = interval(MARGIN),
        for_share = unless(planted!(PostgresOwnerUnlocked), "FOR SHARE"),
        is_over = unless(
            planted!(PostgresTakesLiving),
            "AND NOT EXISTS (SELECT FROM living)"
        ),
    )
}

/// Takes many shards as [`take_over`] takes one, and waits for nobody. An owner without a row has no lease.
fn take_at_once() -> String {
    format!(
        "WITH w AS MATERIALIZED ( \
           SELECT u.shard, u.fence, u.token, r.owner \
           FROM unnest($1::int2[], $2::int8[], $3::uuid[]) AS u(shard, fence, token) \
           JOIN @shard r ON r.shard = ANY (ARRAY[u.shard]) AND r.fence = u.fence), \
         o AS MATERIALIZED ( \
           SELECT n.node, n.expires FROM @node n \
           WHERE n.node IN (SELECT owner FROM w) AND n.node <> $4 \
           ORDER BY n.node {for_share}), \
         over AS MATERIALIZED ( \
           SELECT node FROM o {is_over}), \
         l AS MATERIALIZED ( \
           SELECT r.shard, w.token, w.owner, w.fence FROM w \
           JOIN @shard r ON r.shard = ANY (ARRAY[w.shard]) AND r.fence = w.fence \
             AND r.owner IS NOT DISTINCT FROM w.owner \
           WHERE w.owner IS NULL OR w.owner = $4 OR w.owner IN (SELECT node FROM over) \
             OR NOT EXISTS (SELECT FROM @node n WHERE n.node = w.owner) \
           ORDER BY r.shard FOR UPDATE OF r SKIP LOCKED), \
         t AS ( \
           UPDATE @shard r SET fence = r.fence + {left_out} + 1, token = l.token, owner = $4, \
             timeline = @timeline, since = clock_timestamp() \
           FROM l WHERE r.shard = l.shard AND r.fence = l.fence \
             AND r.owner IS NOT DISTINCT FROM l.owner RETURNING r.shard) \
         SELECT shard FROM t ORDER BY shard",
        left_out = left_out("timeline"),
        for_share = unless(planted!(PostgresOwnerUnlocked), "FOR SHARE SKIP LOCKED"),
        is_over = match planted!(PostgresTakesLiving) {
            true => String::new(),
            false => format!("WHERE expires < clock_timestamp() - {}", interval(MARGIN)),
        },
    )
}

/// A part of a statement, which a mistake leaves out.
fn unless(is_planted: bool, part: &str) -> &str {
    match is_planted {
        true => "",
        false => part,
    }
}

pub(crate) fn interval(span: Duration) -> String {
    format!("interval '{} microseconds'", span.as_micros())
}

/// A part of a statement that lets no lease last longer from now than leases ever do: the server's clock was ahead
/// once, or somebody wrote it by hand. Who lives has renewed it long before it is over. A move of all timers is no
/// node and answers no callers: it has the shards until it ends.
fn capped(others: &str) -> String {
    let longest = interval(LEASE_MAX);
    format!(
        "capped AS ( \
           UPDATE @node SET expires = clock_timestamp() + {longest} WHERE node = ANY (ARRAY( \
             SELECT node FROM @node WHERE {others} AND api <> '' \
             AND expires > clock_timestamp() + {longest} + interval '1 second' \
             FOR UPDATE SKIP LOCKED)))"
    )
}

/// The end of a statement that reads all nodes, from `nodes`, and all shards. An owner without a row is none.
fn seen(is_joined: &str) -> String {
    let micros = |column: &str| format!("(extract(epoch FROM {column}) * 1000000)::int8");
    format!(
        "c AS MATERIALIZED (SELECT {now} AS now, {is_joined} AS is_joined) \
         SELECT c.now, c.is_joined, v.* FROM c CROSS JOIN ( \
           SELECT s.shard, n.node, s.fence, s.token, {since} AS at, s.wanted AS name, \
             NULL AS api, NULL AS peers, NULL::int4 AS weight, NULL AS version, NULL AS zones, \
             NULL::bool AS draining \
           FROM @shard s LEFT JOIN nodes n ON n.node = s.owner \
           UNION ALL SELECT NULL, n.node, NULL, NULL, {expires}, n.name, n.api, n.peers, n.weight, \
             n.version, n.zones, n.draining FROM nodes n) AS v",
        now = micros("clock_timestamp()"),
        since = micros("s.since"),
        expires = micros("n.expires"),
    )
}

/// What such a statement says.
fn registered(answer: &Answer) -> Registered {
    let at = |row: &Row, column| {
        let micros = row.get::<_, Option<i64>>(column).unwrap_or(0);
        Timestamp::from_micros(u64::try_from(micros).unwrap_or(0))
    };
    let text = |row: &Row, column| row.get::<_, Option<String>>(column).unwrap_or_default();
    let id = |row: &Row| row.get::<_, Option<Bits>>(3).map(registry::id);
    let mut members = Vec::new();
    let mut holdings = Vec::new();
    for row in &answer.rows {
        let Some(shard) = row.get::<_, Option<i16>>(2) else {
            members.extend(id(row).map(|id| Member {
                node: Node {
                    id,
                    name: text(row, 7),
                    api: text(row, 8),
                    peers: row.get(9),
                    weight: u16::try_from(row.get::<_, i32>(10)).unwrap_or(u16::MAX),
                    version: text(row, 11),
                    zones: text(row, 12),
                },
                expires: at(row, 6),
                is_draining: row.get(13),
            }));
            continue;
        };
        let holding = Holding {
            shard: Shard(shard.cast_unsigned()),
            owner: id(row),
            fence: fence(row.get(4)),
            since: at(row, 6),
            wanted: row.get(7),
        };
        holdings.push((holding, row.get::<_, Option<Bits>>(5)));
    }
    members.sort_by(|one, other| one.node.name.cmp(&other.node.name));
    holdings.sort_by_key(|(holding, _)| holding.shard);
    let (holdings, tokens) = holdings.into_iter().unzip();
    let first = answer.rows.first();
    Registered {
        is_joined: first.is_some_and(|row| row.get(1)),
        view: View {
            now: first.map_or(Timestamp::EPOCH, |row| at(row, 0)),
            members,
            holdings,
        },
        tokens,
        unreplicated: answer.warnings.iter().any(may_be_unreplicated),
    }
}

/// Until when a record was kept at the most that nobody keeps any more, by the server's clock.
fn past(ring: Ring) -> String {
    let guard = ring.guard().as_micros();
    format!(
        "((extract(epoch FROM clock_timestamp()) * 1000000)::int8 - {guard} \
         - 9223372036854775807 - 1)"
    )
}

/// A connection that does them.
pub(crate) struct SqlSession {
    link: Link,
    statements: Arc<Statements>,
}

impl SqlSession {
    pub(crate) fn new(link: Link, statements: Arc<Statements>) -> Self {
        Self { link, statements }
    }

    /// Asks again on a new connection if the first was closed meanwhile: for statements that may be
    /// done twice.
    fn ask(link: &mut Link, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, Failure> {
        Ok(Self::answer(link, sql, params)?.rows)
    }

    fn take_by(
        link: &mut Link,
        take: &Sql,
        (shard, after, token): Take,
        node: NodeId,
    ) -> Result<TakenOver, Failure> {
        let (after, node) = (after.0.cast_signed(), registry::bits(node));
        let params: Params<'_> = &[&shard.0.cast_signed(), &token, &node, &after];
        let answer = Self::answer(link, take, params)?;
        let unreplicated = answer.warnings.iter().any(may_be_unreplicated);
        let row = answer.rows.first();
        let taken = row.and_then(|row| row.get::<_, Option<i64>>(0));
        let living = row.and_then(|row| row.get::<_, Option<String>>(1));
        Ok(match (taken, living) {
            (Some(number), _) => TakenOver::Taken(Taken {
                fence: fence(number),
                unreplicated,
            }),
            (None, Some(name)) => TakenOver::Held(name),
            (None, None) => TakenOver::Moved,
        })
    }

    /// The number of the session that is about to wait, and a connection that can end others.
    fn waiting(&mut self) -> Result<(i32, Link), Failure> {
        let ask = Sql {
            name: "backend",
            text: "SELECT pg_backend_pid()".to_owned(),
        };
        let rows = Self::ask(&mut self.link, &ask, &[])?;
        let other = self.link.another();
        let other = other.map_err(|error| Failure::Away(error.to_string()))?;
        Ok((rows.first().map_or(0, |row| row.get(0)), other))
    }

    fn answer(link: &mut Link, sql: &Sql, params: Params<'_>) -> Result<Answer, Failure> {
        let asked = link.query(sql, params);
        match asked.as_ref().is_err_and(Failure::is_closed) {
            true => link.query(sql, params),
            false => asked,
        }
    }
}

impl SqlSession {
    /// Writes what turns of several shards change as part of a move, and makes no turns. Says whether the move
    /// that the entries have as their token is still under way: if not, nothing was written.
    pub(crate) fn arrive(&mut self, entries: &[Entry<'_, '_>]) -> Result<bool, Failure> {
        let batch = self.batch(entries)?;
        let (sql, link) = (&self.statements.arrive, &mut self.link);
        // Twice is as once: each row is put in place of what has its name.
        let rows = Self::ask(link, sql, &batch.with_ring())?;
        Ok(rows.len() == entries.len())
    }

    fn batch<'a>(&self, entries: &[Entry<'a, '_>]) -> Result<Batch<'a>, Failure> {
        let mut batch = Batch::default();
        for entry in entries {
            let added = batch.add(entry, self.statements.ring);
            added.map_err(|error| {
                Failure::Unwritable(format!("a record cannot be written: {error}"))
            })?;
        }
        Ok(batch)
    }
}

impl Session for SqlSession {
    fn turn(&mut self, entries: &[Entry<'_, '_>]) -> Result<Made, Failure> {
        let batch = self.batch(entries)?;
        let (statements, link) = (&self.statements, &mut self.link);
        let answer = batch.with(statements, |sql, params| link.query(sql, params))?;
        let shards = answer.rows.iter();
        Ok(Made {
            shards: shards
                .map(|row| Shard(row.get::<_, i16>(0).cast_unsigned()))
                .collect(),
            unreplicated: answer.warnings.iter().any(may_be_unreplicated),
        })
    }

    fn became(&mut self, shard: Shard, token: Bits, seq: i64) -> Result<Option<Became>, Failure> {
        let params: Params<'_> = &[&shard.0.cast_signed(), &token, &seq];
        let rows = Self::ask(&mut self.link, &self.statements.became, params)?;
        Ok(rows.first().map(|row| Became {
            is_ours: row.get::<_, Option<bool>>(0) == Some(true),
            fence: fence(row.get(1)),
            writes: row.get(2),
            has_before: row.get(3),
            timeline: row.get(4),
        }))
    }

    fn take(
        &mut self,
        shard: Shard,
        after: Fence,
        token: Bits,
        node: Bits,
    ) -> Result<Option<Taken>, Failure> {
        let after = after.0.cast_signed();
        let params: Params<'_> = &[&shard.0.cast_signed(), &token, &node, &after];
        let answer = Self::answer(&mut self.link, &self.statements.take, params)?;
        let unreplicated = answer.warnings.iter().any(may_be_unreplicated);
        Ok(answer.rows.first().map(|row| Taken {
            fence: fence(row.get(0)),
            unreplicated,
        }))
    }

    fn take_over(
        &mut self,
        shard: Shard,
        after: Fence,
        token: Bits,
        node: NodeId,
    ) -> Result<TakenOver, Failure> {
        let take = (shard, after, token);
        Self::take_by(&mut self.link, &self.statements.take_over, take, node)
    }

    fn take_at_once(&mut self, takes: &[Take], node: NodeId) -> Result<TakenAtOnce, Failure> {
        let shards: Vec<_> = takes.iter().map(|(it, ..)| it.0.cast_signed()).collect();
        let fences: Vec<_> = takes.iter().map(|(_, it, _)| it.0.cast_signed()).collect();
        let tokens: Vec<_> = takes.iter().map(|(.., token)| *token).collect();
        let params: Params<'_> = &[&shards, &fences, &tokens, &registry::bits(node)];
        let answer = Self::answer(&mut self.link, &self.statements.take_at_once, params)?;
        let taken = answer.rows.iter();
        Ok(TakenAtOnce {
            shards: taken
                .map(|row| Shard(row.get::<_, i16>(0).cast_unsigned()))
                .collect(),
            unreplicated: answer.warnings.iter().any(may_be_unreplicated),
        })
    }

    fn take_held(
        &mut self,
        shard: Shard,
        after: Fence,
        token: Bits,
        node: NodeId,
    ) -> (Result<TakenOver, Failure>, Vec<Blocker>) {
        let (waiting, mut other) = match self.waiting() {
            Ok(waiting) => waiting,
            Err(failure) => return (Err(failure), Vec::new()),
        };
        let end = &self.statements.end_blockers;
        let (is_done, done) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let ending = scope.spawn(move || match done.recv_timeout(HELD_FOR) {
                Err(RecvTimeoutError::Timeout) => other.query(end, &[&waiting]).map(|ended| {
                    let ended = ended.rows.iter();
                    ended.map(blocker).collect()
                }),
                _ => Ok(Vec::new()),
            });
            let take = &self.statements.take_held;
            let taken = Self::take_by(&mut self.link, take, (shard, after, token), node);
            drop(is_done);
            let nobody = || Err(Failure::Away("a panic".to_owned()));
            match (ending.join().unwrap_or_else(|_| nobody()), taken) {
                (Ok(ended), taken) => (taken, ended),
                (Err(_), Ok(taken)) => (Ok(taken), Vec::new()),
                (Err(failure), Err(_)) => (Err(failure), Vec::new()),
            }
        })
    }

    fn rest(&mut self) {
        self.link.close();
    }

    fn join(&mut self, node: &Node, lease: i64) -> Result<Registered, Failure> {
        let (id, weight) = (registry::bits(node.id), i32::from(node.weight));
        let params: Params<'_> = &[
            &id,
            &node.name,
            &node.api,
            &node.peers,
            &weight,
            &node.version,
            &node.zones,
            &lease,
        ];
        let answer = Self::answer(&mut self.link, &self.statements.join, params)?;
        Ok(registered(&answer))
    }

    fn renew(&mut self, node: NodeId, lease: i64) -> Result<Registered, Failure> {
        let params: Params<'_> = &[&registry::bits(node), &lease];
        let answer = Self::answer(&mut self.link, &self.statements.renew, params)?;
        Ok(registered(&answer))
    }

    fn view(&mut self, node: NodeId) -> Result<Registered, Failure> {
        let params: Params<'_> = &[&registry::bits(node)];
        let answer = Self::answer(&mut self.link, &self.statements.view, params)?;
        Ok(registered(&answer))
    }

    fn give(
        &mut self,
        shard: Shard,
        (number, token): (Fence, Option<Bits>),
        to: Option<NodeId>,
    ) -> Result<Given, Failure> {
        let (number, to) = (number.0.cast_signed(), to.map(registry::bits));
        let params: Params<'_> = &[&shard.0.cast_signed(), &number, &token, &to];
        let give = &self.statements.give;
        let answer = match self.link.query(give, params) {
            Err(failure) if failure.is_closed() => {
                let again = self.link.query(give, params);
                again.map_err(Failure::again)
            }
            given => given,
        }?;
        Ok(Given {
            is_given: answer.rows.first().is_some_and(|row| row.get(0)),
            unreplicated: answer.warnings.iter().any(may_be_unreplicated),
        })
    }

    fn leave(&mut self, node: NodeId) -> Result<(), Failure> {
        let params: Params<'_> = &[&registry::bits(node)];
        Self::ask(&mut self.link, &self.statements.leave, params).map(drop)
    }

    fn mark_draining(&mut self, name: &str, is_draining: bool) -> Result<bool, Failure> {
        let params: Params<'_> = &[&name, &is_draining];
        let rows = Self::ask(&mut self.link, &self.statements.mark_draining, params)?;
        Ok(!rows.is_empty())
    }

    fn want(&mut self, shard: Option<Shard>, node: Option<&str>) -> Result<Wished, Failure> {
        let shard = shard.map(|shard| shard.0.cast_signed());
        let params: Params<'_> = &[&shard, &node];
        let rows = Self::ask(&mut self.link, &self.statements.want, params)?;
        let found = rows.first().map(|row| (row.get(0), row.get(1)));
        Ok(match found {
            Some((true, true)) => Wished::Noted,
            Some((true, false)) => Wished::NoSuchShard,
            _ => Wished::NoSuchNode,
        })
    }

    fn last_turn(&mut self, shard: Shard) -> Result<Option<LastTurn>, Failure> {
        let params: Params<'_> = &[&shard.0.cast_signed()];
        let rows = Self::ask(&mut self.link, &self.statements.last_turn, params)?;
        Ok(rows.first().map(|row| {
            let clock: Option<&[u8]> = row.get(2);
            LastTurn {
                seq: row.get(0),
                revision: revision(row.get(1)),
                clock: clock.and_then(|bytes| Some(ClockNote::of_bytes(bytes.first_chunk()?))),
                timeline: row.get(3),
                timeline_now: row.get(4),
                token: row.get(5),
                lows: Lows::of_bytes(row.get(6)),
            }
        }))
    }

    fn owner(&mut self, shard: Shard) -> Result<Option<OwnerRow>, Failure> {
        let params: Params<'_> = &[&shard.0.cast_signed()];
        let rows = Self::ask(&mut self.link, &self.statements.owner, params)?;
        Ok(rows.first().map(|row| OwnerRow {
            fence: fence(row.get(0)),
            token: row.get(1),
            node: row.get(2),
        }))
    }

    fn kinds(&mut self, shard: Shard, names: &[Bits]) -> Result<Vec<(Bits, Kind)>, Failure> {
        let params: Params<'_> = &[&shard.0.cast_signed(), &names];
        let rows = Self::ask(&mut self.link, &self.statements.kinds, params)?;
        let kinds = rows.iter().filter_map(|row| {
            let keep_until = timestamp(row.get::<_, Option<i64>>(2).unwrap_or_default());
            let kind = Kind::of(body::kind_of(row.get(1))?, keep_until, self.statements.ring);
            Some((row.get(0), kind))
        });
        Ok(kinds.collect())
    }

    fn prune(&mut self, shard: Shard, seq: i64) -> Result<(), Failure> {
        let params: Params<'_> = &[&shard.0.cast_signed(), &seq];
        Self::ask(&mut self.link, &self.statements.prune, params).map(drop)
    }

    fn names(
        &mut self,
        shard: Shard,
        names: &[Bits],
        reach: Reach,
        bytes: usize,
    ) -> Result<Vec<Option<RecordRow>>, Failure> {
        let (number, limited) = (shard.0.cast_signed(), limit(bytes));
        let slots = reach.slots.numbers();
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![&number, &names, &limited, &reach.token];
        params.extend(slots.iter().map(|slot| slot as &(dyn ToSql + Sync)));
        let rows = Self::ask(&mut self.link, &self.statements.names, &params)?;
        let is_ours = rows
            .first()
            .is_none_or(|row| row.get::<_, Option<bool>>(7) == Some(true));
        if !is_ours && reach.slots != Slots::ALL {
            return self.names(shard, names, Reach::ALL, bytes);
        }
        let rows = rows.iter();
        Ok(rows
            .map(|row| row.get::<_, Option<&str>>(0).map(|_| record(row, 0)))
            .collect())
    }

    fn due(
        &mut self,
        shard: Shard,
        clock: DueClock,
        from: (Timestamp, Revision),
        beside: Option<Beside<'_>>,
        until: Timestamp,
        limited: usize,
    ) -> Result<Vec<DueRow>, Failure> {
        let params: [&(dyn ToSql + Sync); 6] = [
            &shard.0.cast_signed(),
            &body::clock_letter(clock),
            &number::stored(from.0.as_micros()),
            &number::stored(from.1.0),
            &number::stored(until.as_micros()),
            &limit(limited),
        ];
        let rows = match beside {
            None => Self::ask(&mut self.link, &self.statements.due, &params),
            Some(Beside { names, from }) => {
                let at = number::stored(from.0.as_micros());
                let revision = number::stored(from.1.0);
                let others: [&(dyn ToSql + Sync); 3] = [&names, &at, &revision];
                let params = [&params[..], &others[..]].concat();
                Self::ask(&mut self.link, &self.statements.due_beside, &params)
            }
        }?;
        let rows = rows.iter();
        Ok(rows
            .map(|row| DueRow {
                hash: row.get(5),
                wake: wake(row.get(0), row.get(1)),
                state: row.get(2),
                queue: row.get(3),
                key: row.get(4),
            })
            .collect())
    }

    fn first(
        &mut self,
        shard: Shard,
        clock: DueClock,
        from: Wake,
        limited: usize,
    ) -> Result<Vec<(Wake, Bits)>, Failure> {
        let params: Params<'_> = &[
            &shard.0.cast_signed(),
            &body::clock_letter(clock),
            &number::stored(from.at.as_micros()),
            &number::stored(from.revision.0),
            &limit(limited),
        ];
        let rows = Self::ask(&mut self.link, &self.statements.first, params)?;
        let rows = rows.iter();
        Ok(rows
            .map(|row| (wake(row.get(0), row.get(1)), row.get(2)))
            .collect())
    }

    fn places(
        &mut self,
        shard: Shard,
        names: &[Bits],
    ) -> Result<Vec<(Bits, DueClock, Wake)>, Failure> {
        let params: Params<'_> = &[&shard.0.cast_signed(), &names];
        let rows = Self::ask(&mut self.link, &self.statements.places, params)?;
        let places = rows.iter().filter_map(|row| {
            let letter: i8 = row.get(1);
            let mut clocks = DueClock::ALL.into_iter();
            let clock = clocks.find(|clock| body::clock_letter(*clock) == letter)?;
            Some((row.get(0), clock, wake(row.get(2), row.get(3))))
        });
        Ok(places.collect())
    }

    fn list(
        &mut self,
        shard: Shard,
        filter: &Filter,
        from: (Timestamp, Revision),
        until: Timestamp,
    ) -> Result<ListRows, Failure> {
        let params: Params<'_> = &[
            &shard.0.cast_signed(),
            &filter.queue.as_str(),
            &number::stored(from.0.as_micros()),
            &number::stored(from.1.0),
            &number::stored(until.as_micros()),
            &limit(filter.scan_limit.max(1)).saturating_add(1),
            &filter.state.map(body::letter),
            &filter.prefix,
            &limit(filter.limit).saturating_add(1),
            &limit(Filter::PAGE_MAX_BYTES),
        ];
        let rows = Self::ask(&mut self.link, &self.statements.list, params)?;
        let mut page = ListRows::default();
        for row in &rows {
            if let (Some(due), Some(at)) = (row.get(0), row.get(1)) {
                page.seen_to = Some((timestamp(due), revision(at)));
            }
            if row.get::<_, Option<i64>>(2).is_none() {
                break;
            }
            let has_room = row.get::<_, Option<&[u8]>>(9).is_some();
            page.records.push(has_room.then(|| record(row, 3)));
            if !has_room {
                break;
            }
        }
        Ok(page)
    }

    fn counts(
        &mut self,
        shard: Shard,
        kept_from: Timestamp,
    ) -> Result<Vec<(QueueName, StateKind, u64)>, Failure> {
        let kept_from = number::stored(kept_from.as_micros());
        let params: Params<'_> = &[&shard.0.cast_signed(), &kept_from];
        let rows = Self::ask(&mut self.link, &self.statements.counts, params)?;
        let rows = rows.iter();
        Ok(rows
            .filter_map(|row| {
                let queue = QueueName::from_text(row.get::<_, &str>(0)).ok()?;
                let count = u64::try_from(row.get::<_, i64>(2)).ok()?;
                Some((queue, body::kind_of(row.get(1))?, count))
            })
            .collect())
    }

    fn count(
        &mut self,
        shard: Shard,
        page: (Bits, Bits),
        limited: usize,
    ) -> Result<Counted, Failure> {
        let slice = self.statements.ring.micros().cast_signed();
        let limited = limit(limited);
        let params: Params<'_> = &[&shard.0.cast_signed(), &page.0, &page.1, &limited, &slice];
        let rows = Self::ask(&mut self.link, &self.statements.count, params)?;
        let seq = rows.first().and_then(|row| row.get::<_, Option<i64>>(0));
        let counts = rows.iter().filter_map(|row| {
            let queue = QueueName::from_text(row.get::<_, Option<&str>>(1)?).ok()?;
            let count = u64::try_from(row.get::<_, i64>(4)).ok()?;
            let kind = match (body::kind_of(row.get(2))?, row.get::<_, Option<i64>>(3)) {
                (StateKind::Done, Some(slice)) => Kind::Done(slice.cast_unsigned()),
                (kind, _) => Kind::Not(kind),
            };
            Some((queue, kind, count))
        });
        Ok(Counted {
            seq: seq.unwrap_or(0),
            by_kind: counts.collect(),
        })
    }

    fn saved_counts(&mut self, shard: Shard) -> Result<Option<Vec<u8>>, Failure> {
        let params: Params<'_> = &[&shard.0.cast_signed()];
        let rows = Self::ask(&mut self.link, &self.statements.saved_counts, params)?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    fn last_saved_counts(&mut self, shard: Shard) -> Result<Option<Vec<u8>>, Failure> {
        let params: Params<'_> = &[&shard.0.cast_signed()];
        let rows = Self::ask(&mut self.link, &self.statements.last_saved_counts, params)?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    fn save_counts(&mut self, counts: &[SavedCounts]) -> Result<(), Failure> {
        let shards: Vec<_> = counts.iter().map(|it| it.shard.0.cast_signed()).collect();
        let seqs: Vec<_> = counts.iter().map(|it| it.seq).collect();
        let tokens: Vec<_> = counts.iter().map(|it| it.token).collect();
        let bytes: Vec<_> = counts.iter().map(|it| it.counts.as_slice()).collect();
        let params: Params<'_> = &[&shards, &seqs, &tokens, &bytes];
        Self::ask(&mut self.link, &self.statements.save_counts, params).map(drop)
    }

    fn forget(&mut self, slice: u64) -> Result<bool, Failure> {
        let slot = Ring::slot(slice);
        let has_any = Sql {
            name: HAS_ANY[usize::from(slot.unsigned_abs())],
            text: self.statements.has_any(slot),
        };
        for has_tried in [false, true] {
            let rows = Self::ask(&mut self.link, &has_any, &[])?;
            let is_empty = rows.first().is_some_and(|row| !row.get::<_, bool>(0));
            if is_empty || has_tried {
                return Ok(is_empty);
            }
            let forget = self.statements.forget(slot);
            self.link.execute(&forget, FORGETTING)?;
        }
        Ok(false)
    }

    fn forget_outside(&mut self, shards: &[Shard]) -> Result<(), Failure> {
        let shards: Vec<_> = shards.iter().map(|shard| shard.0.cast_signed()).collect();
        Self::ask(&mut self.link, &self.statements.forget_outside, &[&shards]).map(drop)
    }

    fn settings(&mut self, after: SettingsVersion) -> Result<Option<Settings>, Failure> {
        let version = |row: Option<&Row>| row.map_or(0, |row| number::read(row.get(0)));
        let rows = Self::ask(&mut self.link, &self.statements.settings_version, &[])?;
        if version(rows.first()) == after.0 {
            return Ok(None);
        }
        // One statement: the version is that of the values.
        let rows = Self::ask(&mut self.link, &self.statements.settings, &[])?;
        let values = rows.iter().filter_map(|row| {
            let name = SettingName::new(row.get::<_, Option<&str>>(1)?).ok()?;
            let version = SettingsVersion(number::read(row.get(2)));
            let value = row.get::<_, &[u8]>(3).to_vec();
            Some((name, SettingValue { version, value }))
        });
        let version = SettingsVersion(version(rows.first()));
        Ok(Some(Settings::new(version, values)))
    }

    fn note_loss(&mut self, shard: Shard, seq: i64) -> Result<(), Failure> {
        let params: Params<'_> = &[&shard.0.cast_signed(), &seq];
        Self::ask(&mut self.link, &self.statements.note_loss, params).map(drop)
    }

    fn losses(&mut self) -> Result<Vec<(Shard, i64)>, Failure> {
        let rows = Self::ask(&mut self.link, &self.statements.losses, &[])?;
        let rows = rows.iter();
        Ok(rows
            .map(|row| (Shard(row.get::<_, i16>(0).cast_unsigned()), row.get(1)))
            .collect())
    }

    fn snapshots(&mut self) -> Result<Vec<Holder>, Failure> {
        let rows = Self::ask(&mut self.link, &self.statements.snapshots, &[])?;
        Ok(rows.iter().map(Holder::of).collect())
    }

    fn about(&mut self) -> Result<About, Failure> {
        let rows = Self::ask(&mut self.link, &self.statements.about, &[])?;
        Ok(rows.first().map(About::of).unwrap_or_default())
    }

    fn ping(&mut self) -> Result<(), Failure> {
        // A connection that ended meanwhile says nothing of the server that is there now.
        Self::ask(&mut self.link, &self.statements.settings_version, &[]).map(drop)
    }

    fn pause(&mut self, pause: Duration) {
        self.link.pause(pause);
    }
}

fn blocker(row: &Row) -> Blocker {
    let text = |column| row.get::<_, Option<&str>>(column);
    let what = match (row.get::<_, i32>(0), text(1), text(2)) {
        (0, ..) => "a prepared transaction".to_owned(),
        (_, Some(name), Some(state)) => format!("{name:?}, {state}"),
        (_, Some(name), None) => format!("{name:?}, of another role"),
        (_, None, _) => "of another role".to_owned(),
    };
    Blocker {
        pid: row.get(0),
        what,
        is_ended: row.get(3),
    }
}

/// The record of columns that begin at `from`: queue, key, revision, due, state, body, payload.
fn record(row: &Row, from: usize) -> RecordRow {
    RecordRow {
        queue: row.get(from),
        key: row.get(from + 1),
        revision: revision(row.get(from + 2)),
        due: timestamp(row.get(from + 3)),
        state: row.get(from + 4),
        body: row.get(from + 5),
        payload: row.get(from + 6),
    }
}

fn timestamp(column: i64) -> Timestamp {
    Timestamp::from_micros(number::read(column))
}

fn wake(at: i64, at_revision: i64) -> Wake {
    Wake {
        at: timestamp(at),
        revision: revision(at_revision),
    }
}

fn revision(column: i64) -> Revision {
    Revision(number::read(column))
}

fn fence(column: i64) -> Fence {
    Fence(column.cast_unsigned())
}

/// A number as a limit of a statement.
fn limit(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Whether the server warns that the standby may not have the commit.
pub(crate) fn may_be_unreplicated(warning: &DbError) -> bool {
    *warning.code() == SqlState::WARNING
}

/// The columns of a statement.
#[derive(Default)]
struct Batch<'a> {
    fence: Fences,
    put: Rows,
    queues: Vec<&'a str>,
    keys: Vec<&'a str>,
    payloads: Vec<&'a [u8]>,
    narrow: Rows,
    removed: (Vec<i16>, Vec<Bits>),
    done: DoneRows<'a>,
    /// What is taken out of the ring.
    replaced: (Vec<i16>, Vec<Bits>),
    settings: SettingRows<'a>,
}

/// What goes into the ring.
#[derive(Default)]
struct DoneRows<'a> {
    shards: Vec<i16>,
    slots: Vec<i16>,
    hashes: Vec<Bits>,
    revisions: Vec<i64>,
    dues: Vec<i64>,
    keeps: Vec<i64>,
    queues: Vec<&'a str>,
    keys: Vec<&'a str>,
    bodies: Vec<Vec<u8>>,
    /// None if it is that of the row in `timer`.
    payloads: Vec<Option<&'a [u8]>>,
}

impl<'a> DoneRows<'a> {
    fn add(
        &mut self,
        shard: i16,
        named: &Named<'a>,
        (record, keep_until): (&'a Record, Timestamp),
        ring: Ring,
    ) -> Result<(), postcard::Error> {
        self.bodies.push(body::encode(record)?);
        self.shards.push(shard);
        self.slots.push(Ring::slot(ring.slice(keep_until)));
        self.hashes.push(named.hash);
        self.revisions.push(number::stored(record.revision.0));
        self.dues.push(number::stored(record.due.as_micros()));
        self.keeps.push(number::stored(keep_until.as_micros()));
        self.queues.push(record.name.queue.as_str());
        self.keys.push(record.name.key.as_str());
        let payload = record.payload.as_slice();
        self.payloads.push((!named.narrow).then_some(payload));
        Ok(())
    }
}

/// The changes of settings.
#[derive(Default)]
struct SettingRows<'a> {
    shards: Vec<i16>,
    places: Vec<i64>,
    names: Vec<&'a str>,
    values: Vec<Option<&'a [u8]>>,
}

/// Until when a record is kept that is done.
fn kept_until(record: &Record) -> Option<Timestamp> {
    match record.state {
        State::Done { keep_until, .. } => Some(keep_until),
        _ => None,
    }
}

/// Under which right each shard's turn is made.
#[derive(Default)]
struct Fences {
    shards: Vec<i16>,
    tokens: Vec<Bits>,
    seqs: Vec<i64>,
    revisions: Vec<i64>,
    clocks: Vec<Option<Vec<u8>>>,
    timelines: Vec<i32>,
    writes: Vec<i32>,
    lows: Vec<Option<Vec<u8>>>,
}

/// What all rows that are written have.
#[derive(Default)]
struct Rows {
    shards: Vec<i16>,
    hashes: Vec<Bits>,
    revisions: Vec<i64>,
    dues: Vec<i64>,
    wakes: Vec<Option<i64>>,
    clocks: Vec<i8>,
    states: Vec<i8>,
    bodies: Vec<Vec<u8>>,
}

impl Rows {
    fn add(&mut self, shard: i16, hash: Bits, record: &Record) -> Result<(), postcard::Error> {
        self.bodies.push(body::encode(record)?);
        self.shards.push(shard);
        self.hashes.push(hash);
        self.revisions.push(number::stored(record.revision.0));
        self.dues.push(number::stored(record.due.as_micros()));
        let wake = record
            .wake()
            .map(|wake| number::stored(wake.at.as_micros()));
        self.wakes.push(wake);
        self.clocks.push(body::clock_letter(record.wake_clock()));
        self.states.push(body::letter(record.state.kind()));
        Ok(())
    }
}

impl<'a> Batch<'a> {
    fn add(&mut self, entry: &Entry<'a, '_>, ring: Ring) -> Result<(), postcard::Error> {
        let shard = entry.shard.0.cast_signed();
        let (fence, after) = (&mut self.fence, &entry.after);
        fence.shards.push(shard);
        fence.tokens.push(after.token);
        fence.seqs.push(after.seq);
        fence.revisions.push(number::stored(after.revision.0));
        let clock = after.clock.map(|clock| clock.to_bytes().to_vec());
        fence.clocks.push(clock);
        fence.timelines.push(after.timeline);
        fence.writes.push(entry.writes());
        fence.lows.push(entry.lows.to_bytes());
        let Some(turn) = entry.turn else {
            return Ok(());
        };
        for named in &turn.names {
            if named.may_be_done() {
                self.replaced.0.push(shard);
                self.replaced.1.push(named.hash);
            }
            let keep_until = named.record.and_then(kept_until);
            if let (Some(record), Some(keep_until)) = (named.record, keep_until) {
                self.done.add(shard, named, (record, keep_until), ring)?;
                self.removed.0.push(shard);
                self.removed.1.push(named.hash);
                continue;
            }
            match named.record {
                Some(record) if named.narrow => self.narrow.add(shard, named.hash, record)?,
                Some(record) => {
                    self.put.add(shard, named.hash, record)?;
                    self.queues.push(record.name.queue.as_str());
                    self.keys.push(record.name.key.as_str());
                    self.payloads.push(&record.payload);
                }
                None => {
                    self.removed.0.push(shard);
                    self.removed.1.push(named.hash);
                }
            }
        }
        for setting in &turn.settings {
            let place = i64::try_from(self.settings.shards.len()).unwrap_or(i64::MAX);
            self.settings.shards.push(shard);
            self.settings.places.push(place);
            self.settings.names.push(setting.name.as_str());
            self.settings.values.push(setting.value.as_deref());
        }
        Ok(())
    }

    /// The parameters of a statement without the ring.
    fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        let (fence, put, narrow) = (&self.fence, &self.put, &self.narrow);
        vec![
            &fence.shards,
            &fence.tokens,
            &fence.seqs,
            &fence.revisions,
            &fence.clocks,
            &fence.timelines,
            &fence.writes,
            &put.shards,
            &put.hashes,
            &put.revisions,
            &put.dues,
            &put.wakes,
            &put.clocks,
            &put.states,
            &self.queues,
            &self.keys,
            &put.bodies,
            &self.payloads,
            &narrow.shards,
            &narrow.hashes,
            &narrow.revisions,
            &narrow.dues,
            &narrow.wakes,
            &narrow.clocks,
            &narrow.states,
            &narrow.bodies,
            &self.removed.0,
            &self.removed.1,
            &fence.lows,
        ]
    }

    /// The same with the ring.
    fn with_ring(&self) -> Vec<&(dyn ToSql + Sync)> {
        let (done, replaced) = (&self.done, &self.replaced);
        let mut params = self.params();
        let of_ring: [&(dyn ToSql + Sync); 12] = [
            &done.shards,
            &done.slots,
            &done.hashes,
            &done.revisions,
            &done.dues,
            &done.keeps,
            &done.queues,
            &done.keys,
            &done.bodies,
            &done.payloads,
            &replaced.0,
            &replaced.1,
        ];
        params.extend(of_ring);
        params
    }

    /// Hands the statement and its parameters to `run`.
    fn with<T>(&self, statements: &Statements, run: impl FnOnce(&Sql, Params<'_>) -> T) -> T {
        let has_settings = !self.settings.shards.is_empty();
        let (done, replaced) = (&self.done, &self.replaced);
        if done.shards.is_empty() && replaced.0.is_empty() && !has_settings {
            return run(&statements.turn, &self.params());
        }
        let mut params = self.with_ring();
        if !has_settings {
            return run(&statements.turn_with_done, &params);
        }
        let settings: [&(dyn ToSql + Sync); 4] = [
            &self.settings.shards,
            &self.settings.places,
            &self.settings.names,
            &self.settings.values,
        ];
        params.extend(settings);
        run(&statements.turn_with_settings, &params)
    }
}
