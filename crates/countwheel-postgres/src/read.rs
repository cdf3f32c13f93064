//! Reads: names, what is due, lists.

use countwheel_durable::store::page::DueBuilder;
use countwheel_durable::store::{
    DueEntry, DuePage, DueScan, Filter, Found, Page, Position, QueueCounts, Shard, StoreError,
};
use countwheel_durable::{QueueName, Record, Revision, TimerName};
use countwheel_time::Timestamp;
use parking_lot::Mutex;

use crate::body::{self, Columns};
use crate::front::{Beginning, Fronts};
use crate::hash::NameHash;
use crate::planted::planted;
use crate::rows::Misnamed;
use crate::session::{Beside, DueRow, Failure, Reach, RecordRow, Session};

/// So many characters are shown of what may be anything.
const SHOWN_MAX: usize = 64;

/// So many entries of an index one statement reads at the most.
const AT_ONCE: usize = 1_024;
/// So often a read begins at a mark that a commit lowers meanwhile, before it begins at the start.
const MARKS_MAX: usize = 3;

/// What a read that failed says: it can be asked again, unless the server refuses it.
pub(crate) fn unanswered(failure: Failure) -> StoreError {
    let reason = failure.reason();
    match failure {
        Failure::Away(_) | Failure::Broken(_) => StoreError::Unavailable { reason },
        Failure::Refused(refusal) if refusal.is_passing() => StoreError::Unavailable { reason },
        Failure::Refused(_) | Failure::Unwritable(_) => StoreError::Failed { reason },
    }
}

fn unreadable(problem: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unreadable {
        problem: problem.to_string(),
    }
}

fn name(queue: &str, key: &str) -> Result<TimerName, StoreError> {
    TimerName::from_text(queue, key).map_err(|error| unreadable(&error))
}

/// The first position behind another one; the first of all behind none, and `None` behind the last of
/// all.
fn behind(position: Option<(Timestamp, Revision)>) -> Option<(Timestamp, Revision)> {
    let Some((at, Revision(revision))) = position else {
        return Some((Timestamp::EPOCH, Revision(0)));
    };
    match revision.checked_add(1) {
        Some(next) => Some((at, Revision(next))),
        None => {
            let next = at.as_micros().checked_add(1)?;
            Some((Timestamp::from_micros(next), Revision(0)))
        }
    }
}

/// The record of a row that was asked for by its name.
fn record(row: RecordRow, name: &TimerName) -> Result<Record, StoreError> {
    if row.queue != name.queue.as_str() || row.key != name.key.as_str() {
        let found: String = row.key.chars().take(SHOWN_MAX).collect();
        let problem = format!(
            "timer {name}: its row has the name {:?}/{found:?}",
            row.queue
        );
        return Err(unreadable(&problem));
    }
    let columns = Columns {
        name: name.clone(),
        revision: row.revision,
        due: row.due,
        state: row.state,
        payload: row.payload,
    };
    body::decode(columns, &row.body).map_err(|error| unreadable(&format!("timer {name}: {error}")))
}

pub(crate) fn get(
    session: &mut dyn Session,
    hash: &NameHash,
    (shard, reach): (Shard, Reach),
    name: &TimerName,
) -> Result<Option<Record>, StoreError> {
    let rows = session.names(shard, &[hash.of(name)], reach, usize::MAX);
    let row = rows.map_err(unanswered)?.into_iter().next().flatten();
    row.map(|row| record(row, name)).transpose()
}

pub(crate) fn get_many(
    session: &mut dyn Session,
    hash: &NameHash,
    (shard, reach): (Shard, Reach),
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
        let rows = session
            .names(shard, &hashes, reach, left)
            .map_err(unanswered)?;
        let is_cut = rows.len() < names.len();
        for (row, name) in rows.into_iter().zip(names) {
            let record = row.map(|row| record(row, &name)).transpose()?;
            let content = record.as_ref().map_or(0, Record::content_bytes);
            left = left.saturating_sub(content);
            found.add(name, record);
        }
        if is_cut || left == 0 {
            return Ok(found);
        }
    }
}

pub(crate) fn due(
    session: &mut dyn Session,
    (hash, misnamed): (&NameHash, &Misnamed),
    shard: Shard,
    scan: &DueScan<'_>,
    fronts: Option<&Mutex<Fronts>>,
) -> Result<DuePage, StoreError> {
    let mut page = DueBuilder::new(scan);
    if page.is_full() {
        return Ok(page.finish());
    }
    let mut after = scan.after;
    loop {
        // One more than may be looked at, so that the page knows whether it is the last.
        let at_once = scan.scan_limit.max(1).saturating_add(1).min(AT_ONCE);
        let at_once = match scan.queue {
            None => at_once.min(scan.limit.saturating_add(1)),
            Some(_) => at_once,
        };
        let Some(from) = behind(after.map(|after| (after.at, after.revision))) else {
            return Ok(page.finish());
        };
        let rows = rows_due(session, shard, scan, fronts, from, at_once)?;
        let is_last = rows.len() < at_once;
        let skipped = usize::from(after.is_some() && planted!(PostgresSkipsBorder));
        for row in rows.into_iter().skip(skipped) {
            if !page.come_to(row.wake) {
                return Ok(page.finish());
            }
            after = Some(row.wake);
            let wanted = scan.queue.map_or(row.queue.as_str(), QueueName::as_str);
            if wanted != row.queue {
                continue;
            }
            // What is wrong with a record is found when it is read by its name.
            let place = (shard, row.hash);
            let Some(name) = misnamed.name(hash, place, &row.queue, &row.key) else {
                continue;
            };
            let entry = DueEntry {
                wake: row.wake,
                name,
                kind: body::kind_of(row.state),
            };
            if !page.take(entry) {
                return Ok(page.finish());
            }
        }
        if is_last {
            return Ok(page.finish());
        }
    }
}

/// At most `limit` rows from a position on. What is known to be gone is passed over.
fn rows_due(
    session: &mut dyn Session,
    shard: Shard,
    scan: &DueScan<'_>,
    fronts: Option<&Mutex<Fronts>>,
    from: (Timestamp, Revision),
    limit: usize,
) -> Result<Vec<DueRow>, StoreError> {
    for _ in 0..MARKS_MAX {
        let Some(fronts) = fronts else {
            break;
        };
        let Beginning { low, lowered } = fronts.lock().beginning(scan.clock);
        let mark = (low.mark.at, low.mark.revision);
        let has_beside = from < mark && !low.named.is_empty() && !planted!(PostgresReadsPastNamed);
        let names = &low.named;
        let beside = has_beside.then_some(Beside { names, from });
        let from = from.max(mark);
        let rows = session.due(shard, scan.clock, from, beside, scan.until, limit);
        let rows = rows.map_err(unanswered)?;
        if fronts.lock().lowered == lowered {
            return Ok(rows);
        }
        // A commit may have put something before the mark, and be seen in part.
    }
    let rows = session.due(shard, scan.clock, from, None, scan.until, limit);
    rows.map_err(unanswered)
}

pub(crate) fn list(
    session: &mut dyn Session,
    shard: Shard,
    filter: &Filter,
) -> Result<Page, StoreError> {
    let mut page = Page {
        records: Vec::new(),
        unreadable: 0,
        next: None,
    };
    let Some(from) = behind(filter.after.map(|after| (after.due, after.revision))) else {
        return Ok(page);
    };
    let due_from = filter.due_from.unwrap_or(Timestamp::EPOCH);
    let until = match filter.due_before {
        Some(before) => match before.as_micros().checked_sub(1) {
            Some(last) => Timestamp::from_micros(last),
            None => return Ok(page),
        },
        None => Timestamp::MAX,
    };
    let rows = session.list(shard, filter, from.max((due_from, Revision(0))), until);
    let rows = rows.map_err(unanswered)?;
    let position = |(due, revision)| Position { due, revision };
    page.next = rows.seen_to.map(position);
    let mut last = None;
    for row in rows.records {
        // The first that has no room begins the next page.
        let Some(row) = row else {
            page.next = last;
            break;
        };
        last = Some(position((row.due, row.revision)));
        let read = name(&row.queue, &row.key).and_then(|name| record(row, &name));
        match read {
            Ok(record) => page.records.push(record),
            Err(_) => page.unreadable += 1,
        }
    }
    Ok(page)
}

pub(crate) fn counts(
    session: &mut dyn Session,
    shard: Shard,
    kept_from: Timestamp,
) -> Result<Vec<QueueCounts>, StoreError> {
    let mut counts: Vec<QueueCounts> = Vec::new();
    for (queue, kind, count) in session.counts(shard, kept_from).map_err(unanswered)? {
        if counts.last().is_none_or(|last| last.queue != queue) {
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
