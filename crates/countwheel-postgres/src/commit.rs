//! A commit: the turns of several shards in one statement, fenced where it writes.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use countwheel_durable::store::{Before, Change, ClockNote, Fence, Shard};
use countwheel_durable::{QueueName, Record, Revision, Setting, StateKind, TimerName};

use tokio_postgres::types::ToSql;

use crate::bits::Bits;
use crate::body;
use crate::hash::NameHash;
use crate::link::{Params, Sql};
use crate::number;
use crate::schema::SchemaName;

/// The statements that write, and those that ask what became of a write.
pub(crate) struct Writes {
    /// Of timers alone.
    pub(crate) turn: Sql,
    /// Of timers and settings.
    pub(crate) turn_with_settings: Sql,
    pub(crate) became: Sql,
    pub(crate) take: Sql,
    pub(crate) last_turn: Sql,
    pub(crate) owner: Sql,
    pub(crate) states: Sql,
    pub(crate) prune: Sql,
}

impl Writes {
    /// The statements, with what `planted` makes of those that write.
    pub(crate) fn of(schema: &SchemaName, planted: &dyn Fn(String) -> String) -> Self {
        // Each shard's row is locked against a new owner while its token is ours and the turn before
        // ours is there; then the turn is inserted, and everything else joins what that gave. A
        // repeated statement inserts no turn, and so changes nothing.
        let fence = "WITH e AS MATERIALIZED ( \
               SELECT * FROM unnest($1::int2[], $2::uuid[], $3::int8[], $4::int8[], $5::bytea[], \
                 $6::int4[], $7::int4[]) \
               AS e(shard, token, seq, last_revision, clock, timeline, writes)), \
             l AS MATERIALIZED ( \
               SELECT e.* FROM e JOIN @shard s ON s.shard = e.shard AND s.token = e.token \
               WHERE EXISTS (SELECT FROM @turn p WHERE p.shard = e.shard AND p.seq = e.seq - 1) \
               ORDER BY s.shard FOR SHARE OF s), \
             f AS MATERIALIZED ( \
               INSERT INTO @turn (shard, token, seq, last_revision, clock, timeline, writes) \
               SELECT * FROM l \
               ON CONFLICT DO NOTHING RETURNING shard), \
             put AS ( \
               INSERT INTO @timer (shard, hash, revision, due, wake, clock, state, queue, key, \
                 body, payload) \
               SELECT u.* FROM unnest($8::int2[], $9::uuid[], $10::int8[], $11::int8[], \
                 $12::int8[], $13::\"char\"[], $14::\"char\"[], $15::text[], $16::text[], \
                 $17::bytea[], $18::bytea[]) \
                 AS u(shard, hash, revision, due, wake, clock, state, queue, key, body, payload) \
               WHERE u.shard IN (SELECT shard FROM f) \
               ON CONFLICT (shard, hash) DO UPDATE SET revision = excluded.revision, \
                 due = excluded.due, wake = excluded.wake, clock = excluded.clock, \
                 state = excluded.state, body = excluded.body, payload = excluded.payload), \
             narrow AS ( \
               UPDATE @timer t SET revision = u.revision, due = u.due, wake = u.wake, \
                 clock = u.clock, state = u.state, body = u.body \
               FROM unnest($19::int2[], $20::uuid[], $21::int8[], $22::int8[], $23::int8[], \
                 $24::\"char\"[], $25::\"char\"[], $26::bytea[]) \
                 AS u(shard, hash, revision, due, wake, clock, state, body) \
               WHERE u.shard IN (SELECT shard FROM f) AND t.shard = u.shard AND t.hash = u.hash), \
             removed AS ( \
               DELETE FROM @timer t USING unnest($27::int2[], $28::uuid[]) AS u(shard, hash) \
               WHERE u.shard IN (SELECT shard FROM f) AND t.shard = u.shard AND t.hash = u.hash)";
        // The last change of a name wins; every change counts.
        let settings = ", changed AS MATERIALIZED ( \
               SELECT c.place, c.name, c.value, row_number() OVER (ORDER BY c.place) AS nth, \
               lead(c.place) OVER (PARTITION BY c.name ORDER BY c.place) IS NULL AS is_last \
               FROM unnest($29::int2[], $30::int8[], $31::text[], $32::bytea[]) \
                 AS c(shard, place, name, value) WHERE c.shard IN (SELECT shard FROM f)), \
             m AS MATERIALIZED ( \
               UPDATE @meta SET settings_version = settings_version + n.n \
               FROM (SELECT count(*) AS n FROM changed) AS n WHERE n.n > 0 \
               RETURNING settings_version - n.n AS before), \
             kept AS ( \
               INSERT INTO @setting (name, version, value) \
               SELECT c.name, m.before + c.nth, c.value FROM changed c, m \
               WHERE c.is_last AND c.value IS NOT NULL \
               ON CONFLICT (name) DO UPDATE SET version = excluded.version, value = excluded.value), \
             dropped AS ( \
               DELETE FROM @setting s USING changed c, m \
               WHERE c.is_last AND c.value IS NULL AND s.name = c.name)";
        let end = " SELECT shard FROM f";
        Self {
            turn: schema.sql("turn", &planted(format!("{fence}{end}"))),
            turn_with_settings: schema.sql(
                "turn_with_settings",
                &planted(format!("{fence}{settings}{end}")),
            ),
            became: schema.sql(
                "became",
                "SELECT s.token = $2, s.fence, \
                 (SELECT CASE WHEN t.token = $2 THEN t.writes END FROM @turn t \
                   WHERE t.shard = s.shard AND t.seq = $3), \
                 EXISTS (SELECT FROM @turn t WHERE t.shard = s.shard AND t.seq = $3 - 1) \
                 FROM @shard s WHERE s.shard = $1",
            ),
            // It waits for the statements that hold the row.
            take: schema.sql(
                "take",
                "UPDATE @shard SET fence = fence + 1, token = $2, owner = $3, \
                 since = clock_timestamp() WHERE shard = $1 RETURNING fence",
            ),
            last_turn: schema.sql(
                "last_turn",
                "SELECT seq, last_revision, clock, timeline, \
                 ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int4 \
                 FROM @turn WHERE shard = $1 ORDER BY seq DESC LIMIT 1",
            ),
            owner: schema.sql(
                "owner",
                "SELECT fence, token, owner FROM @shard WHERE shard = $1",
            ),
            states: schema.sql(
                "states",
                "SELECT t.hash, t.state FROM unnest($2::uuid[]) AS n(hash) \
                 JOIN @timer t ON t.shard = $1 AND t.hash = n.hash",
            ),
            prune: schema.sql("prune", "DELETE FROM @turn WHERE shard = $1 AND seq < $2"),
        }
    }
}

/// One turn of one shard: for each name what becomes of it, once all changes are made.
pub(crate) struct Turn<'a> {
    pub(crate) shard: Shard,
    revision: Revision,
    clock: Option<ClockNote>,
    pub(crate) settings: Vec<&'a Setting>,
    /// In the order of the hashes, so two statements lock rows in one order.
    pub(crate) names: Vec<Named<'a>>,
    /// How long its payloads are together.
    pub(crate) bytes: usize,
}

/// What becomes of one name.
pub(crate) struct Named<'a> {
    pub(crate) hash: Bits,
    pub(crate) name: &'a TimerName,
    /// What is there before the turn, as the first change of the name says it.
    pub(crate) before: Before,
    /// The record; none if it is removed.
    pub(crate) record: Option<&'a Record>,
    /// Whether its payload is there already.
    narrow: bool,
}

impl<'a> Turn<'a> {
    pub(crate) fn of(shard: Shard, changes: &'a [Change], hash: &NameHash) -> Self {
        let mut turn = Self {
            shard,
            revision: Revision(0),
            clock: None,
            settings: Vec::new(),
            names: Vec::new(),
            bytes: 0,
        };
        let mut places = HashMap::new();
        for change in changes {
            let (name, before, record) = match change {
                Change::Put { record, before } => {
                    turn.revision = turn.revision.max(record.revision);
                    (&record.name, *before, Some(&**record))
                }
                Change::Remove { name, before } => (name, *before, None),
                Change::Given(revision) => {
                    turn.revision = turn.revision.max(*revision);
                    continue;
                }
                Change::Clock(note) => {
                    turn.clock = Some(*note);
                    continue;
                }
                Change::Setting(setting) => {
                    turn.settings.push(setting);
                    continue;
                }
            };
            let stays = matches!(before, Before::SamePayload(_));
            match places.entry(name) {
                Entry::Vacant(place) => {
                    place.insert(turn.names.len());
                    turn.names.push(Named {
                        hash: hash.of(name),
                        name,
                        before,
                        record,
                        narrow: record.is_some() && stays,
                    });
                }
                Entry::Occupied(place) => {
                    let named = &mut turn.names[*place.get()];
                    // The payload stays as it is after the change before.
                    named.narrow &= stays && record.is_some();
                    named.record = record;
                }
            }
        }
        turn.names.sort_unstable_by_key(|named| named.hash);
        let whole = turn.names.iter().filter(|named| !named.narrow);
        let payloads = whole.filter_map(|named| Some(named.record?.payload.len()));
        turn.bytes = payloads.sum();
        turn
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
            && self.settings.is_empty()
            && self.clock.is_none()
            && self.revision == Revision(0)
    }

    /// How many changes it has, as its row says it: no turn has none but an empty one.
    pub(crate) fn writes(&self) -> i32 {
        i32::try_from(1 + self.names.len() + self.settings.len()).unwrap_or(i32::MAX)
    }

    /// What the shard remembers after the turn.
    pub(crate) fn after(&self, held: &Held) -> Held {
        Held {
            seq: held.seq + 1,
            revision: held.revision.max(self.revision),
            clock: self.clock.or(held.clock),
            ..*held
        }
    }
}

/// What an owner knows of its shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) token: Bits,
    pub(crate) fence: Fence,
    /// The number of its last turn.
    pub(crate) seq: i64,
    pub(crate) revision: Revision,
    pub(crate) clock: Option<ClockNote>,
    /// The server's history: another one since a standby was promoted.
    pub(crate) timeline: i32,
}

/// The columns of a statement.
#[derive(Default)]
pub(crate) struct Batch<'a> {
    fence: Fences,
    put: Rows,
    queues: Vec<&'a str>,
    keys: Vec<&'a str>,
    payloads: Vec<&'a [u8]>,
    narrow: Rows,
    removed: (Vec<i16>, Vec<Bits>),
    settings: SettingRows<'a>,
}

/// The changes of settings.
#[derive(Default)]
struct SettingRows<'a> {
    shards: Vec<i16>,
    places: Vec<i64>,
    names: Vec<&'a str>,
    values: Vec<Option<&'a [u8]>>,
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
    /// Adds a turn, after which the shard has `after`.
    pub(crate) fn add(&mut self, turn: &Turn<'a>, after: &Held) -> Result<(), postcard::Error> {
        let shard = turn.shard.0.cast_signed();
        self.add_fence(turn.shard, after, turn.writes());
        for named in &turn.names {
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

    /// Adds a turn that changes nothing and takes the place of any other of its number.
    pub(crate) fn add_empty(&mut self, shard: Shard, after: &Held) {
        self.add_fence(shard, after, 0);
    }

    fn add_fence(&mut self, shard: Shard, after: &Held, writes: i32) {
        let fence = &mut self.fence;
        fence.shards.push(shard.0.cast_signed());
        fence.tokens.push(after.token);
        fence.seqs.push(after.seq);
        fence.revisions.push(number::stored(after.revision.0));
        let clock = after.clock.map(|clock| clock.to_bytes().to_vec());
        fence.clocks.push(clock);
        fence.timelines.push(after.timeline);
        fence.writes.push(writes);
    }

    /// Hands the statement and its parameters to `run`.
    pub(crate) fn with<T>(&self, writes: &Writes, run: impl FnOnce(&Sql, Params<'_>) -> T) -> T {
        let (fence, put, narrow) = (&self.fence, &self.put, &self.narrow);
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![
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
        ];
        if self.settings.shards.is_empty() {
            return run(&writes.turn, &params);
        }
        let settings: [&(dyn ToSql + Sync); 4] = [
            &self.settings.shards,
            &self.settings.places,
            &self.settings.names,
            &self.settings.values,
        ];
        params.extend(settings);
        run(&writes.turn_with_settings, &params)
    }
}

/// How many timers each queue has in each state.
#[derive(Clone, Default)]
pub(crate) struct Counts(pub(crate) BTreeMap<QueueName, [u64; 4]>);

impl Counts {
    /// Counts what a turn has changed, whose names had these states before.
    pub(crate) fn change(&mut self, turn: &Turn<'_>, before: &[Option<StateKind>]) {
        for (named, before) in turn.names.iter().zip(before) {
            let after = named.record.map(|record| record.state.kind());
            if *before == after {
                continue;
            }
            if !self.0.contains_key(&named.name.queue) {
                self.0.insert(named.name.queue.clone(), [0; 4]);
            }
            let Some(counts) = self.0.get_mut(&named.name.queue) else {
                continue;
            };
            if let Some(before) = before {
                counts[*before as usize] = counts[*before as usize].saturating_sub(1);
            }
            if let Some(after) = after {
                counts[after as usize] += 1;
            }
            if *counts == [0; 4] {
                self.0.remove(&named.name.queue);
            }
        }
    }
}
