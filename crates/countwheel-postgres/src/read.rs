//! Reads: names, what is due, lists, counts, settings.

use countwheel_durable::store::page::DueBuilder;
use countwheel_durable::store::{
    DueEntry, DuePage, DueScan, Filter, Found, Page, Position, QueueCounts, Shard, StoreError,
};
use countwheel_durable::{
    QueueName, Record, Revision, SettingName, SettingValue, Settings, SettingsVersion, StateKind,
    TimerName, Wake,
};
use countwheel_time::Timestamp;
use tokio_postgres::Row;

use crate::bits::Bits;
use crate::body::{self, BodyError, Columns};
use crate::hash::NameHash;
use crate::link::{LinkError, Params, Sql};
use crate::number;
use crate::schema::SchemaName;

/// So many entries of an index one statement reads at the most.
const AT_ONCE: usize = 1_024;

/// The statements that read.
pub(crate) struct Reads {
    get: Sql,
    get_many: Sql,
    due: Sql,
    list: Sql,
    counts: Sql,
    settings_version: Sql,
    settings: Sql,
}

impl Reads {
    pub(crate) fn of(schema: &SchemaName) -> Self {
        Self {
            get: schema.sql(
                "get",
                "SELECT queue, key, revision, due, state, body, payload FROM @timer \
                 WHERE shard = $1 AND hash = $2",
            ),
            // What is not wanted any more, since the payloads before it are long enough, comes without
            // its place.
            get_many: schema.sql(
                "get_many",
                "SELECT i, queue, key, revision, due, state, body, payload FROM ( \
                 SELECT n.i, t.*, sum(coalesce(octet_length(t.payload), 0)) OVER (ORDER BY n.i) \
                 - coalesce(octet_length(t.payload), 0) AS before \
                 FROM unnest($2::uuid[]) WITH ORDINALITY AS n(hash, i) \
                 LEFT JOIN @timer t ON t.shard = $1 AND t.hash = n.hash) AS found \
                 WHERE before <= $3 ORDER BY i",
            ),
            due: schema.sql(
                "due",
                "SELECT wake, revision, state, queue, key FROM @timer WHERE shard = $1 \
                 AND clock = $2 AND wake IS NOT NULL AND (wake, revision) >= ($3, $4) \
                 AND wake <= $5 ORDER BY wake, revision LIMIT $6",
            ),
            // One entry more than may be looked at, and one record more than is wanted: so the page
            // knows whether it is the last.
            list: schema.sql(
                "list",
                "WITH seen AS MATERIALIZED ( \
                   SELECT due, revision, hash, state, key, octet_length(payload) AS bytes, \
                   row_number() OVER (ORDER BY due, revision) AS place FROM @timer \
                   WHERE shard = $1 AND queue = $2 AND (due, revision) >= ($3, $4) \
                   AND due <= $5 ORDER BY due, revision LIMIT $6), \
                 wanted AS MATERIALIZED ( \
                   SELECT seen.*, row_number() OVER w AS nth, sum(bytes) OVER w - bytes AS before \
                   FROM seen WHERE place < $6 AND ($7::\"char\" IS NULL OR state = $7) \
                   AND ($8::text IS NULL OR starts_with(key, $8)) \
                   WINDOW w AS (ORDER BY due, revision)) \
                 SELECT s.due, s.revision, w.nth, w.due, w.revision, w.state, w.key, t.body, \
                   CASE WHEN w.nth < $9 AND w.before < $10 THEN t.payload END \
                 FROM (SELECT \
                   (SELECT due FROM seen WHERE place = $6 - 1 AND EXISTS \
                     (SELECT FROM seen WHERE place = $6)) AS due, \
                   (SELECT revision FROM seen WHERE place = $6 - 1) AS revision) AS s \
                 LEFT JOIN wanted w ON w.nth <= $9 \
                 LEFT JOIN @timer t ON t.shard = $1 AND t.hash = w.hash ORDER BY w.nth",
            ),
            counts: schema.sql(
                "counts",
                "SELECT queue, state, count(*) FROM @timer WHERE shard = $1 \
                 GROUP BY queue, state ORDER BY queue",
            ),
            settings_version: schema.sql("settings_version", "SELECT settings_version FROM @meta"),
            settings: schema.sql(
                "settings",
                "SELECT m.settings_version, s.name, s.version, s.value \
                 FROM @meta m LEFT JOIN @setting s ON true",
            ),
        }
    }
}

/// Something that answers statements, on one connection or on one of several.
pub(crate) trait Ask {
    fn ask(&self, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, StoreError>;
}

/// What a read that failed says: it can be asked again, unless the server refuses it.
pub(crate) fn unanswered(error: LinkError) -> StoreError {
    let reason = error.reason();
    match error {
        LinkError::Away(_) | LinkError::Broken(_) => StoreError::Unavailable { reason },
        LinkError::Refused(refused) if is_passing(&refused) => StoreError::Unavailable { reason },
        LinkError::Refused(_) => StoreError::Failed { reason },
    }
}

/// Whether the server may take it at another time.
pub(crate) fn is_passing(error: &tokio_postgres::error::DbError) -> bool {
    // Connections, transactions rolled back, resources, interventions of the operator, the system.
    let classes = ["08", "40", "53", "55", "57", "58"];
    classes.contains(&&error.code().code()[..2])
}

fn unreadable(problem: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unreadable {
        problem: problem.to_string(),
    }
}

fn name(queue: &str, key: &str) -> Result<TimerName, StoreError> {
    TimerName::from_text(queue, key).map_err(|error| unreadable(&error))
}

fn kind(column: i8) -> Result<StateKind, StoreError> {
    body::kind_of(column).ok_or_else(|| unreadable(&BodyError::State { column }))
}

fn timestamp(column: i64) -> Timestamp {
    Timestamp::from_micros(number::read(column))
}

fn revision(column: i64) -> Revision {
    Revision(number::read(column))
}

/// The first position behind another one, as columns have it; the first of all behind none, and `None`
/// behind the last of all.
fn behind(position: Option<(Timestamp, Revision)>) -> Option<(i64, i64)> {
    let Some((at, Revision(revision))) = position else {
        return Some((i64::MIN, i64::MIN));
    };
    let at = at.as_micros();
    match revision.checked_add(1) {
        Some(next) => Some((number::stored(at), number::stored(next))),
        None => Some((number::stored(at.checked_add(1)?), i64::MIN)),
    }
}

/// A number as a limit of a statement.
fn limit(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Reads {
    pub(crate) fn get(
        &self,
        ask: &dyn Ask,
        shard: Shard,
        hash: Bits,
        name: &TimerName,
    ) -> Result<Option<Record>, StoreError> {
        let rows = ask.ask(&self.get, &[&shard.0.cast_signed(), &hash])?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        record(row, 0, name.clone()).map(Some)
    }

    pub(crate) fn get_many(
        &self,
        ask: &dyn Ask,
        shard: Shard,
        hash: &NameHash,
        names: &mut dyn Iterator<Item = TimerName>,
        bytes: usize,
    ) -> Result<Found, StoreError> {
        let mut found = Found::default();
        let mut left = bytes;
        loop {
            let names: Vec<_> = names.take(AT_ONCE).collect();
            if names.is_empty() {
                return Ok(found);
            }
            let hashes: Vec<_> = names.iter().map(|name| hash.of(name)).collect();
            let params: Params<'_> = &[&shard.0.cast_signed(), &hashes, &limit(left)];
            let rows = ask.ask(&self.get_many, params)?;
            let is_cut = rows.len() < names.len();
            for row in &rows {
                let place = usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or(usize::MAX);
                let Some(name) = names.get(place) else {
                    return Err(unreadable(&"a place that nobody asked for"));
                };
                let record = match row.get::<_, Option<&str>>(1) {
                    Some(_) => Some(record(row, 1, name.clone())?),
                    None => None,
                };
                let payload = record.as_ref().map_or(0, |record| record.payload.len());
                left = left.saturating_sub(payload);
                found.add(name.clone(), record);
            }
            if is_cut || left == 0 {
                return Ok(found);
            }
        }
    }

    pub(crate) fn due(
        &self,
        ask: &dyn Ask,
        shard: Shard,
        scan: &DueScan<'_>,
        from: Option<Wake>,
    ) -> Result<DuePage, StoreError> {
        let mut page = DueBuilder::new(scan);
        if page.is_full() {
            return Ok(page.finish());
        }
        let clock = body::clock_letter(scan.clock);
        let until = number::stored(scan.until.as_micros());
        let mut after = from;
        loop {
            // One more than may be looked at, so that the page knows whether it is the last.
            let at_once = scan.scan_limit.max(1).saturating_add(1).min(AT_ONCE);
            let at_once = match scan.queue {
                None => at_once.min(scan.limit.saturating_add(1)),
                Some(_) => at_once,
            };
            let Some((wake, revision_from)) = behind(after.map(|after| (after.at, after.revision)))
            else {
                return Ok(page.finish());
            };
            let params: Params<'_> = &[
                &shard.0.cast_signed(),
                &clock,
                &wake,
                &revision_from,
                &until,
                &limit(at_once),
            ];
            let rows = ask.ask(&self.due, params)?;
            for row in &rows {
                let wake = Wake {
                    at: timestamp(row.get(0)),
                    revision: revision(row.get(1)),
                };
                if !page.come_to(wake) {
                    return Ok(page.finish());
                }
                after = Some(wake);
                let queue: &str = row.get(3);
                if scan.queue.is_some_and(|wanted| wanted.as_str() != queue) {
                    continue;
                }
                let entry = DueEntry {
                    wake,
                    name: name(queue, row.get(4))?,
                    kind: Some(kind(row.get(2))?),
                };
                if !page.take(entry) {
                    return Ok(page.finish());
                }
            }
            if rows.len() < at_once {
                return Ok(page.finish());
            }
        }
    }

    pub(crate) fn list(
        &self,
        ask: &dyn Ask,
        shard: Shard,
        filter: &Filter,
    ) -> Result<Page, StoreError> {
        let mut page = Page {
            records: Vec::new(),
            unreadable: 0,
            next: None,
        };
        let position = |due, column| Position {
            due: timestamp(due),
            revision: revision(column),
        };
        let Some(from) = behind(filter.after.map(|after| (after.due, after.revision))) else {
            return Ok(page);
        };
        let due_from = filter.due_from.unwrap_or(Timestamp::EPOCH);
        let (from_due, from_revision) = from.max((number::stored(due_from.as_micros()), i64::MIN));
        let until = match filter.due_before {
            Some(before) => match before.as_micros().checked_sub(1) {
                Some(last) => last,
                None => return Ok(page),
            },
            None => u64::MAX,
        };
        let state = filter.state.map(body::letter);
        let scan = limit(filter.scan_limit.max(1)).saturating_add(1);
        let most = limit(Filter::PAGE_MAX_BYTES);
        let params: Params<'_> = &[
            &shard.0.cast_signed(),
            &filter.queue.as_str(),
            &from_due,
            &from_revision,
            &number::stored(until),
            &scan,
            &state,
            &filter.prefix,
            &limit(filter.limit).saturating_add(1),
            &most,
        ];
        let rows = ask.ask(&self.list, params)?;
        let mut last = None;
        for row in &rows {
            if let (Some(due), Some(revision)) = (row.get(0), row.get(1)) {
                page.next = Some(position(due, revision));
            }
            if row.get::<_, Option<i64>>(2).is_none() {
                break;
            }
            let at = position(row.get(3), row.get(4));
            // The first that has no room begins the next page.
            let Some(payload) = row.get::<_, Option<&[u8]>>(8) else {
                page.next = last;
                break;
            };
            let columns = Columns {
                name: name(filter.queue.as_str(), row.get(6))?,
                revision: at.revision,
                due: at.due,
                state: row.get(5),
                payload: payload.to_vec(),
            };
            match body::decode(columns, row.get(7)) {
                Ok(record) => page.records.push(record),
                Err(_) => page.unreadable += 1,
            }
            last = Some(at);
        }
        Ok(page)
    }

    pub(crate) fn counts(
        &self,
        ask: &dyn Ask,
        shard: Shard,
    ) -> Result<Vec<QueueCounts>, StoreError> {
        let rows = ask.ask(&self.counts, &[&shard.0.cast_signed()])?;
        let mut counts: Vec<QueueCounts> = Vec::new();
        for row in &rows {
            let queue: &str = row.get(0);
            let kind = kind(row.get(1))?;
            let count = u64::try_from(row.get::<_, i64>(2)).unwrap_or(0);
            if counts
                .last()
                .is_none_or(|last| last.queue.as_str() != queue)
            {
                let queue = QueueName::from_text(queue).map_err(|error| unreadable(&error))?;
                counts.push(QueueCounts {
                    queue,
                    by_state: [0; 4],
                });
            }
            if let Some(last) = counts.last_mut() {
                last.by_state[kind as usize] = count;
            }
        }
        Ok(counts)
    }

    pub(crate) fn settings(
        &self,
        ask: &dyn Ask,
        after: SettingsVersion,
    ) -> Result<Option<Settings>, StoreError> {
        let rows = ask.ask(&self.settings_version, &[])?;
        let version = |row: Option<&Row>| row.map_or(0, |row| number::read(row.get(0)));
        if version(rows.first()) <= after.0 {
            return Ok(None);
        }
        // One statement: the version is that of the values.
        let rows = ask.ask(&self.settings, &[])?;
        let mut values = Vec::new();
        for row in &rows {
            let Some(name) = row.get::<_, Option<&str>>(1) else {
                continue;
            };
            let name = SettingName::new(name).map_err(|error| unreadable(&error))?;
            let version = SettingsVersion(number::read(row.get(2)));
            let value = row.get::<_, &[u8]>(3).to_vec();
            values.push((name, SettingValue { version, value }));
        }
        let version = SettingsVersion(version(rows.first()));
        Ok(Some(Settings::new(version, values)))
    }
}

/// The record of a row whose columns begin at `from`: queue, key, revision, due, state, body, payload.
fn record(row: &Row, from: usize, name: TimerName) -> Result<Record, StoreError> {
    let (queue, key): (&str, &str) = (row.get(from), row.get(from + 1));
    if queue != name.queue.as_str() || key != name.key.as_str() {
        let problem = format!("the hash of {name} leads to {queue}/{key}");
        return Err(unreadable(&problem));
    }
    let columns = Columns {
        name,
        revision: revision(row.get(from + 2)),
        due: timestamp(row.get(from + 3)),
        state: row.get(from + 4),
        payload: row.get::<_, &[u8]>(from + 6).to_vec(),
    };
    body::decode(columns, row.get(from + 5)).map_err(|error| unreadable(&error))
}
