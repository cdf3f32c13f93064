//! Makes one run of several: of each name the newest, and no more of what was removed than older
//! runs may still know.
//!
//! Runs are merged by tier (a log-structured merge tree, O'Neil, Cheng, Gawlick and O'Neil, 1996,
//! with tiers of several runs each): what was ingested is of tier 0, and as many runs as the fan-in
//! of one tier become one of the next. So each record is written once for each tier, and there are
//! at most about fan-in runs for each. When there are as many tombstones as the oldest run has
//! records, everything is merged into one, so that what was removed does not take more room than
//! what is there.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;
use std::sync::Arc;

use super::TableOptions;
use super::directory::Directory;
use super::format::{Value, restore};
use super::reader::{Cursor, Section, Table};
use super::version::{Run, Version};
use super::writer::{Content, RunWriter};
use crate::store::StoreError;
use crate::store::embedded::codec::Indexed;

/// Which runs are to become one, and of which tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    pub(super) runs: Range<usize>,
    tier: u32,
}

/// The next merge that is worth it.
pub(super) fn wanted(version: &Version, options: &TableOptions) -> Option<Wanted> {
    let runs = &version.runs;
    let tombstones = |run: &Arc<Run>| run.sum(|table| table.footer.tombstones);
    if let [newer @ .., oldest] = &runs[..]
        && !newer.is_empty()
    {
        let removed: u64 = newer.iter().map(tombstones).sum();
        if removed >= oldest.sum(|table| table.footer.records).max(1) {
            return Some(Wanted {
                runs: 0..runs.len(),
                tier: oldest.tier,
            });
        }
    }
    // From the newest on: the tier with few records first.
    let mut begin = 0;
    while begin < runs.len() {
        let tier = runs[begin].tier;
        let same = runs[begin..].iter().take_while(|run| run.tier == tier);
        let end = begin + same.count();
        if end - begin >= options.fan_in {
            // The oldest of them, so that those of a tier stay together.
            return Some(Wanted {
                runs: end - options.fan_in..end,
                tier: tier + 1,
            });
        }
        begin = end;
    }
    None
}

/// Writes the run that takes the place of those that are wanted; `None` if nothing is left.
/// Its names are not synced.
pub(super) fn merge(
    directory: &Arc<Directory>,
    version: &Version,
    wanted: &Wanted,
) -> Result<Option<Run>, StoreError> {
    let runs = &version.runs[wanted.runs.clone()];
    let newest = runs.first().map_or(0, |run| run.newest);
    let mut writer = RunWriter::new(directory, newest);
    let mut sources = BinaryHeap::new();
    for (age, run) in runs.iter().enumerate() {
        sources.extend(Source::first(age, run)?);
    }
    let mut last_key: Vec<u8> = Vec::new();
    let mut bytes = Vec::new();
    while let Some(mut source) = sources.peek_mut() {
        let cursor = &source.cursor;
        if cursor.key() != last_key {
            last_key.clear();
            last_key.extend_from_slice(cursor.key());
            let table = cursor.table();
            let senseless = |_| table.senseless(cursor.offset());
            let value = Value::read(cursor.value()).map_err(senseless)?;
            let large;
            let stripped = match value {
                Value::Tombstone => None,
                Value::Inline(stripped) => Some(stripped),
                Value::Large(_) => {
                    large = table.stripped(cursor.value(), cursor.offset())?;
                    large.as_deref()
                }
            };
            match stripped {
                Some(stripped) => {
                    restore(cursor.key(), stripped, &mut bytes).map_err(senseless)?;
                    let indexed = Indexed::decode(&bytes)
                        .map_err(|error| table.damaged(cursor.offset(), &error.to_string()))?;
                    writer.add(&last_key, Content::Record(stripped, indexed))?;
                }
                None if version
                    .may_contain(wanted.runs.end, &last_key)
                    .unwrap_or(true) =>
                {
                    writer.add(&last_key, Content::Tombstone)?;
                }
                None => {}
            }
        }
        // An advance that fails leaves the heap out of order; it is given up then.
        if !source.advance()? {
            PeekMut::pop(source);
        }
    }
    let tables = writer.finish()?;
    Ok((!tables.is_empty()).then_some(Run {
        tier: wanted.tier,
        newest,
        tables,
    }))
}

/// A run, at its next name.
struct Source {
    /// 0 is the newest.
    age: usize,
    cursor: Cursor,
    rest: std::vec::IntoIter<Arc<Table>>,
}

impl Source {
    fn first(age: usize, run: &Run) -> Result<Option<Self>, StoreError> {
        let mut rest = run.tables.clone().into_iter();
        let Some(table) = rest.next() else {
            return Ok(None);
        };
        let mut cursor = Cursor::new(table, Section::Names, false);
        let found = cursor.seek(&[])?;
        let mut source = Self { age, cursor, rest };
        Ok((found || source.next_table()?).then_some(source))
    }

    /// Goes to the next name. False if there is none.
    fn advance(&mut self) -> Result<bool, StoreError> {
        Ok(self.cursor.advance()? || self.next_table()?)
    }

    fn next_table(&mut self) -> Result<bool, StoreError> {
        for table in self.rest.by_ref() {
            self.cursor = Cursor::new(table, Section::Names, false);
            if self.cursor.seek(&[])? {
                return Ok(true);
            }
        }
        Ok(false)
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

/// The least name is the greatest, for the heap; of one name, the newest.
impl Ord for Source {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_name = other.cursor.key().cmp(self.cursor.key());
        by_name.then(other.age.cmp(&self.age))
    }
}
