//! Reads all tables together in the order of wakes or of the list, without replaced records.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Bound;
use std::sync::Arc;

use super::format::SHARD_BYTES;
use super::reader::{Cursor, Section, Table};
use super::skips::{OpenSkip, Range};
use super::version::{Version, record};
use super::writer::due_key;
use crate::codec::{self, CodecError};
use crate::page::{DueBuilder, PageBuilder, begins_with, position};
use crate::planted::planted;
use crate::{DueEntry, DuePage, DueScan, Filter, Page, Shard, StoreError};
use crate::{QueueName, StateKind, TimerName, Wake};

/// The bytes at the end of a key by which both indexes are in order: time, revision.
const ORDER_BYTES: usize = 16;

/// How many entries a block counts that has to be read for one.
const BLOCK_COST: usize = 15;

/// A table, at its next entry in the range that is wanted.
struct Source {
    cursor: Cursor,
    run: usize,
    end: Bound<Vec<u8>>,
    /// Of those that read an index of dues: which one it is, and what it passes over next.
    dues: Option<(usize, Option<Range>)>,
}

impl Source {
    /// The first entry of `table` in the range, and of what was read in place of damaged parts of
    /// its index.
    fn first(
        table: &Arc<Table>,
        run: usize,
        section: Section,
        range: &(Bound<Vec<u8>>, Bound<Vec<u8>>),
    ) -> Result<(Option<Self>, Option<Self>), StoreError> {
        let filled = Cursor::filled(table, section);
        let cursor = Cursor::new(Arc::clone(table), section, true);
        let first = Self::at(cursor, run, range)?;
        let filled = filled.map(|cursor| Self::at(cursor, run, range));
        Ok((first, filled.transpose()?.flatten()))
    }

    fn at(
        mut cursor: Cursor,
        run: usize,
        (start, end): &(Bound<Vec<u8>>, Bound<Vec<u8>>),
    ) -> Result<Option<Self>, StoreError> {
        let mut found = match start {
            Bound::Included(key) | Bound::Excluded(key) => cursor.seek(key)?,
            Bound::Unbounded => cursor.seek(&[])?,
        };
        if let Bound::Excluded(key) = start {
            while found && cursor.key() == key {
                found = cursor.advance()?;
            }
        }
        let end = end.clone();
        let source = Self {
            cursor,
            run,
            end,
            dues: None,
        };
        Ok((found && source.is_inside()).then_some(source))
    }

    fn is_inside(&self) -> bool {
        match &self.end {
            Bound::Included(end) => self.cursor.key() <= end.as_slice(),
            Bound::Excluded(end) => self.cursor.key() < end.as_slice(),
            Bound::Unbounded => true,
        }
    }

    /// Goes to the next entry in the range. False if there is none.
    fn advance(&mut self) -> Result<bool, StoreError> {
        Ok(self.cursor.advance()? && self.skip()? && self.is_inside())
    }

    /// Goes by the ranges in which everything is known to be replaced.
    fn skip(&mut self) -> Result<bool, StoreError> {
        let Some((_, next)) = &mut self.dues else {
            return Ok(true);
        };
        let mut found = true;
        while found && let Some((begin, end)) = next {
            if self.cursor.key() <= begin.as_slice() {
                break;
            }
            if self.cursor.key() <= end.as_slice() {
                found = self.cursor.seek(end)?;
                while found && self.cursor.key() <= end.as_slice() {
                    found = self.cursor.advance()?;
                }
            }
            *next = self.cursor.table().skip_at(self.cursor.key());
        }
        Ok(found)
    }

    fn order(&self) -> &[u8] {
        let key = self.cursor.key();
        &key[key.len().saturating_sub(ORDER_BYTES)..]
    }

    fn broken(&self, error: &CodecError) -> StoreError {
        let table = self.cursor.table();
        table.damaged(self.cursor.offset(), &error.to_string())
    }
}

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Source {}

impl PartialOrd for Source {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The least is the greatest, for the heap; at the same place, the newest.
impl Ord for Source {
    fn cmp(&self, other: &Self) -> Ordering {
        let order = other.order().cmp(self.order());
        order.then(other.run.cmp(&self.run))
    }
}

/// Hands each entry to `take`, in order, until that returns false. With something that is `filled`, an
/// entry is there twice once the damaged part can be read again: it is handed over once.
fn merged(
    mut sources: BinaryHeap<Source>,
    is_filled: bool,
    mut take: impl FnMut(&Source) -> Result<bool, StoreError>,
) -> Result<(), StoreError> {
    let mut last: Option<(usize, Vec<u8>)> = None;
    while let Some(mut source) = sources.peek_mut() {
        let is_again = is_filled
            && last
                .as_ref()
                .is_some_and(|(run, key)| *run == source.run && key == source.cursor.key());
        if !is_again && !take(&source)? {
            break;
        }
        if is_filled {
            last = Some((source.run, source.cursor.key().to_vec()));
        }
        // An advance that fails leaves the heap out of order; it is given up then.
        if !source.advance()? {
            PeekMut::pop(source);
        }
    }
    Ok(())
}

pub(super) fn due(
    version: &Version,
    shard: Shard,
    scan: &DueScan<'_>,
) -> Result<DuePage, StoreError> {
    let key = |wake| due_key(shard.0.to_be_bytes(), scan.clock, wake);
    let begin = key(scan.after.unwrap_or_default());
    let end = key(Wake::end_of(scan.until));
    let mut page = DueBuilder::new(scan);
    if page.is_full() {
        return Ok(page.finish());
    }
    let (mut sources, mut is_filled) = (BinaryHeap::new(), false);
    let mut open_skips = Vec::new();
    let range = (Bound::Excluded(begin.clone()), Bound::Included(end.clone()));
    for (run, table) in version.tables() {
        let (first, filled) = Source::first(table, run, Section::Due, &range)?;
        is_filled |= filled.is_some();
        sources.extend(filled);
        if let Some(mut source) = first {
            let next = table.skip_at(source.cursor.key());
            source.dues = Some((open_skips.len(), next));
            open_skips.push((table, OpenSkip::new(begin.clone())));
            if source.skip()? && source.is_inside() {
                sources.push(source);
            }
        }
    }
    let mut name_key = shard.0.to_be_bytes().to_vec();
    let mut last_queue = None;
    merged(sources, is_filled, |source| {
        let broken = |error| source.broken(&error);
        let wake = codec::wake_of(source.cursor.key()).map_err(broken)?;
        if !page.come_to(wake) {
            return Ok(false);
        }
        let table = source.cursor.table();
        let parts = table.footer.due_parts(source.cursor.value());
        let (name, kind) = parts.map_err(|_| broken(CodecError::Name))?;
        let open_skip = source
            .dues
            .as_ref()
            .and_then(|(of, _)| open_skips.get_mut(*of));
        let wanted = scan.queue.is_none_or(|queue| {
            let rest = name.strip_prefix(queue.as_str().as_bytes());
            rest.is_some_and(|rest| rest.first() == Some(&0))
        });
        name_key.truncate(SHARD_BYTES);
        name_key.extend_from_slice(name);
        if wanted {
            let loads = table.loads();
            let is_replaced = version.is_replaced(source.run, &name_key);
            let loads = usize::try_from(table.loads() - loads).unwrap_or(usize::MAX);
            page.costs(loads.saturating_mul(BLOCK_COST));
            // If that cannot be read, neither can the record: whoever asks for it is told.
            if is_replaced.or_else(|error| error.is_unreadable().then_some(false).ok_or(error))? {
                if let Some((_, open_skip)) = open_skip {
                    open_skip.replaced(source.cursor.key());
                }
                return Ok(true);
            }
        }
        if let Some((table, open_skip)) = open_skip {
            let skip = open_skip.counts(source.cursor.key());
            skip.into_iter().for_each(|skip| table.add_skip(skip));
        }
        if !wanted {
            return Ok(true);
        }
        let name = named(name, &mut last_queue).map_err(broken)?;
        Ok(page.take(DueEntry { wake, name, kind }))
    })?;
    let page = page.finish();
    // All of them were looked at up to there.
    let end = page.next.map_or(end, key);
    for (table, open_skip) in open_skips {
        let skip = open_skip.ends(&end);
        skip.into_iter().for_each(|skip| table.add_skip(skip));
    }
    Ok(page)
}

/// The name of these bytes. Most are of the same queue as the one before.
fn named(bytes: &[u8], last: &mut Option<QueueName>) -> Result<TimerName, CodecError> {
    if let Some(queue) = last {
        let rest = bytes.strip_prefix(queue.as_str().as_bytes());
        if let Some(key) = rest.and_then(|rest| rest.strip_prefix(&[0])) {
            return Ok(TimerName {
                queue: queue.clone(),
                key: codec::key_of(key)?,
            });
        }
    }
    let name = codec::name_of(bytes)?;
    *last = Some(name.queue.clone());
    Ok(name)
}

/// A page of what is listed. What cannot be read is counted, unless its name is hidden: something
/// else stands for it elsewhere.
pub(super) fn list(
    version: &Version,
    shard: Shard,
    filter: &Filter,
    is_hidden: &dyn Fn(&TimerName) -> bool,
) -> Result<Page, StoreError> {
    let mut page = PageBuilder::new(filter);
    let (mut sources, mut is_filled) = (BinaryHeap::new(), false);
    for kind in StateKind::ALL {
        if filter.state.is_some_and(|wanted| wanted != kind) {
            continue;
        }
        let range = codec::list_range(shard, filter, kind);
        for (run, table) in version.tables() {
            let (first, filled) = Source::first(table, run, Section::List, &range)?;
            is_filled |= filled.is_some();
            sources.extend(first.into_iter().chain(filled));
        }
    }
    // Shard, queue, NUL: what a count's key begins with as well.
    let mut name_key = codec::count_key(shard, &filter.queue, StateKind::Pending);
    name_key.pop();
    let queue_len = name_key.len();
    merged(sources, is_filled, |source| {
        let at = codec::position_of(source.cursor.key()).map_err(|error| source.broken(&error))?;
        if !page.come_to(at) {
            return Ok(false);
        }
        let key = source.cursor.value();
        let prefix = filter.prefix.as_deref().unwrap_or_default();
        if !key.starts_with(prefix.as_bytes()) {
            return Ok(true);
        }
        name_key.truncate(queue_len);
        name_key.extend_from_slice(key);
        let taken = match version.is_replaced(source.run, &name_key) {
            Ok(true) => return Ok(true),
            Err(error) => Err(error),
            Ok(false) => page.take(|| {
                let at = source.cursor.offset();
                let table = source.cursor.table();
                let lost = || table.damaged(at, "an index and a record do not fit together");
                let found = table.find(&name_key)?.ok_or_else(lost)?;
                let record = record(&found)?.ok_or_else(lost)?;
                let kind = record.state.kind();
                let listed = codec::list_key(shard, &filter.queue, kind, position(&record));
                let fits = listed == source.cursor.key()
                    && begins_with(&record.name, filter.prefix.as_deref());
                if fits { Ok(record) } else { Err(lost()) }
            }),
        };
        match taken {
            Err(error) if error.is_unreadable() && !planted!(ListEndsAtDamage) => {
                let key = codec::key_of(key).ok();
                let name = key.map(|key| TimerName {
                    queue: filter.queue.clone(),
                    key,
                });
                if !name.is_some_and(|name| is_hidden(&name)) {
                    page.leave_out(at);
                }
                Ok(true)
            }
            taken => taken,
        }
    })?;
    Ok(page.finish())
}
