//! Makes one run of several: of each name the newest, and no more of what was removed than older
//! runs may still know.
//!
//! Compaction: runs are merged by tier (a log-structured merge tree, O'Neil, Cheng, Gawlick and
//! O'Neil, 1996, with tiers of several runs each): what was ingested is of tier 0, and as many runs
//! as the fan-in of one tier become one of the next. So each record is written once for each tier,
//! and there are at most about fan-in runs for each. When there are half as many tombstones as the
//! oldest run has records, everything is merged into one, so that what was removed takes neither
//! the room nor the time of what is there.
//!
//! A merge goes in steps, so that nobody waits for more than one of them: neither who closes the
//! store nor a merge of a lower tier, which goes first. So there may be one unfinished merge for
//! each tier, and runs stay few while a large merge takes its time. What is unfinished when the
//! store is closed is begun anew.
//!
//! A run with a record that cannot be read is **left alone** until the store is opened again: the
//! runs before it and behind it are merged on their own. A run with an index of which a part cannot
//! be read is merged by itself, which makes its indexes anew.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;
use std::sync::Arc;

use super::TableOptions;
use super::directory::{Directory, Purpose};
use super::format::{Value, restore_unchecked};
use super::reader::{Cursor, Section, Table};
use super::version::{TableRun, Version};
use super::writer::{Content, RunWriter};
use crate::StoreError;
use crate::codec::Indexed;

/// Everything is merged into one run when there are as many tombstones as one in so many records
/// of the oldest run: whoever looks for what is due goes by all of them.
const REMOVED_SHARE: u64 = 2;

/// With so many times the fan-in runs of one tier, compaction is behind.
const BEHIND: usize = 3;

/// Which runs are to become one, and of which tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    runs: Range<usize>,
    tier: u32,
    /// What is of a lower tier need not wait for it.
    first: u32,
    purpose: Purpose,
}

/// The next merge that is worth it. One that is `under_way` has its runs for itself, and what is
/// of as high a tier waits for it.
pub(super) fn wanted(
    version: &Version,
    options: &TableOptions,
    under_way: Option<&Merge>,
) -> Option<Wanted> {
    let free = under_way.map_or(version.runs.len(), |merge| merge.place(version).start);
    let highest = under_way.map(|merge| merge.wanted.first);
    // What is left alone stays where it is, between what is merged before and behind it.
    let mut begin = 0;
    for stretch in version.runs[..free].split(|run| run.is_left_alone()) {
        let end = begin + stretch.len();
        let is_last = end == version.runs.len();
        let wanted = wanted_of(stretch, options, highest, is_last && under_way.is_none());
        if let Some(wanted) = wanted {
            let runs = begin + wanted.runs.start..begin + wanted.runs.end;
            return Some(Wanted { runs, ..wanted });
        }
        begin = end + 1;
    }
    None
}

/// The same of runs that stand one behind the other. `highest` is the tier at which a merge is
/// under way; `may_shrink` is whether the oldest run of all is among them and free.
fn wanted_of(
    runs: &[Arc<TableRun>],
    options: &TableOptions,
    highest: Option<u32>,
    may_shrink: bool,
) -> Option<Wanted> {
    let is_free = |tier| highest.is_none_or(|highest| tier < highest);
    let rewrites = |run: &&Arc<TableRun>| run.has_gap() && is_free(run.tier);
    if let Some(at) = runs.iter().position(|run| rewrites(&run)) {
        return Some(Wanted {
            runs: at..at + 1,
            tier: runs[at].tier,
            first: runs[at].tier,
            purpose: Purpose::Merge,
        });
    }
    let tombstones = |run: &Arc<TableRun>| run.sum(|table| table.footer.tombstones);
    if let [newer @ .., oldest] = runs
        && !newer.is_empty()
        && may_shrink
    {
        let removed: u64 = newer.iter().map(tombstones).sum();
        if removed.saturating_mul(REMOVED_SHARE) >= oldest.sum(|table| table.footer.records).max(1)
        {
            return Some(Wanted {
                runs: 0..runs.len(),
                tier: oldest.tier,
                first: oldest.tier,
                purpose: Purpose::Purge,
            });
        }
    }
    // From the newest on: the tier with few records first.
    let mut begin = 0;
    while begin < runs.len() {
        let tier = runs[begin].tier;
        let same = runs[begin..].iter().take_while(|run| run.tier == tier);
        let end = begin + same.count();
        if !is_free(tier) {
            return None;
        }
        if end - begin >= options.fan_in {
            // The oldest of them, so that those of a tier stay together.
            return Some(Wanted {
                runs: end - options.fan_in..end,
                tier: tier + 1,
                first: tier,
                purpose: Purpose::Merge,
            });
        }
        begin = end;
    }
    None
}

/// If there are so many runs that what is added has to wait: for how many bytes to be merged.
pub(super) fn behind(version: &Version, options: &TableOptions) -> Option<u64> {
    let most = options.fan_in.saturating_mul(BEHIND);
    // Runs that are left alone are not waited for.
    let stretches = version.runs.split(|run| run.is_left_alone());
    let mut tiers = stretches.flat_map(|runs| runs.chunk_by(|one, other| one.tier == other.tier));
    let crowded = tiers.find(|runs| runs.len() >= most)?;
    let oldest = &crowded[crowded.len() - options.fan_in..];
    Some(
        oldest
            .iter()
            .map(|run| run.sum(|table| table.entry.length))
            .sum(),
    )
}

/// A merge that is under way. What it wrote is removed with it unless it is finished.
pub(super) struct Merge {
    /// What the store was when it began.
    version: Arc<Version>,
    wanted: Wanted,
    writer: RunWriter,
    sources: BinaryHeap<Source>,
    last_key: Vec<u8>,
    record: Vec<u8>,
}

/// Why a merge cannot go on.
pub(super) enum Fault {
    /// A record of this table cannot be read.
    Read(Arc<Table>, StoreError),
    /// Nothing can be written.
    Write(StoreError),
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Write(error)
    }
}

impl Merge {
    pub(super) fn begin(
        directory: &Arc<Directory>,
        version: Arc<Version>,
        wanted: Wanted,
    ) -> Result<Self, Fault> {
        let runs = &version.runs[wanted.runs.clone()];
        let newest = runs.first().map_or(0, |run| run.newest);
        let mut sources = BinaryHeap::new();
        for (age, run) in runs.iter().enumerate() {
            sources.extend(Source::first(age, run)?);
        }
        Ok(Self {
            writer: RunWriter::new(directory, wanted.purpose, newest),
            version,
            wanted,
            sources,
            last_key: Vec::new(),
            record: Vec::new(),
        })
    }

    /// The runs that become one.
    pub(super) fn runs(&self) -> &[Arc<TableRun>] {
        &self.version.runs[self.wanted.runs.clone()]
    }

    /// Where they stand by now: what came meanwhile is newer, and may have been merged.
    pub(super) fn place(&self, now: &Version) -> Range<usize> {
        let runs = self.runs();
        let is_first =
            |run: &Arc<TableRun>| runs.first().is_some_and(|first| Arc::ptr_eq(first, run));
        let start = now.runs.iter().position(is_first).unwrap_or(now.runs.len());
        start..start + runs.len()
    }

    /// Merges about as many bytes as the options say. False if that was the last of it.
    pub(super) fn step(&mut self, directory: &Directory) -> Result<bool, Fault> {
        let mut bytes = 0;
        while let Some(mut source) = self.sources.peek_mut() {
            if bytes >= directory.options.merge_bytes {
                return Ok(true);
            }
            let cursor = &source.cursor;
            bytes += (cursor.key().len() + cursor.value().len()) as u64;
            if cursor.key() != self.last_key {
                self.last_key.clear();
                self.last_key.extend_from_slice(cursor.key());
                let table = cursor.table();
                let unread = |error| Fault::Read(Arc::clone(table), error);
                let senseless = |_| unread(table.senseless(cursor.offset()));
                let value = Value::read(cursor.value()).map_err(senseless)?;
                let large;
                let stripped = match value {
                    Value::Tombstone => None,
                    Value::Unreadable(indexed) => {
                        let content = Content::Unreadable(indexed);
                        self.writer.add(&self.last_key, content)?;
                        None
                    }
                    Value::Inline(stripped) => Some(stripped),
                    Value::Large(_) => {
                        large = table
                            .stripped(cursor.value(), cursor.offset())
                            .map_err(unread)?;
                        bytes += large.as_ref().map_or(0, |large| large.len() as u64);
                        large.as_deref()
                    }
                };
                let older = self.wanted.runs.end;
                match stripped {
                    Some(stripped) => {
                        // The frame that it stands in has been checked.
                        let restored = restore_unchecked(cursor.key(), stripped, &mut self.record);
                        restored.map_err(senseless)?;
                        let (&version, content) = self
                            .record
                            .split_first()
                            .ok_or_else(|| unread(table.senseless(cursor.offset())))?;
                        let (_, indexed) =
                            Indexed::unchecked(version, content).map_err(|error| {
                                unread(table.damaged(cursor.offset(), &error.to_string()))
                            })?;
                        let content = Content::Record(stripped, indexed);
                        self.writer.add(&self.last_key, content)?;
                    }
                    None if value == Value::Tombstone
                        && self.version.may_contain(older, &self.last_key) =>
                    {
                        self.writer.add(&self.last_key, Content::Tombstone)?;
                    }
                    None => {}
                }
            }
            // An advance that fails leaves the heap out of order; it is given up then.
            if !source.advance()? {
                PeekMut::pop(source);
            }
        }
        Ok(false)
    }

    /// The run that takes the place of those that were merged; nothing if nothing is left. Its
    /// names are not synced.
    pub(super) fn finish(&mut self) -> Result<Option<TableRun>, StoreError> {
        let tables = self.writer.finish()?;
        Ok((!tables.is_empty()).then_some(TableRun {
            tier: self.wanted.tier,
            newest: self.runs().first().map_or(0, |run| run.newest),
            tables,
        }))
    }
}

fn unread(cursor: &Cursor, error: StoreError) -> Fault {
    Fault::Read(Arc::clone(cursor.table()), error)
}

/// A run, at its next name.
struct Source {
    /// 0 is the newest.
    age: usize,
    cursor: Cursor,
    rest: std::vec::IntoIter<Arc<Table>>,
}

impl Source {
    fn first(age: usize, run: &TableRun) -> Result<Option<Self>, Fault> {
        let mut rest = run.tables.clone().into_iter();
        let Some(table) = rest.next() else {
            return Ok(None);
        };
        let mut cursor = Cursor::new(table, Section::Names, false);
        let found = cursor.seek(&[]).map_err(|error| unread(&cursor, error))?;
        let mut source = Self { age, cursor, rest };
        Ok((found || source.next_table()?).then_some(source))
    }

    /// Goes to the next name. False if there is none.
    fn advance(&mut self) -> Result<bool, Fault> {
        let advanced = self.cursor.advance();
        Ok(advanced.map_err(|error| unread(&self.cursor, error))? || self.next_table()?)
    }

    fn next_table(&mut self) -> Result<bool, Fault> {
        for table in self.rest.by_ref() {
            self.cursor = Cursor::new(table, Section::Names, false);
            let found = self.cursor.seek(&[]);
            if found.map_err(|error| unread(&self.cursor, error))? {
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
