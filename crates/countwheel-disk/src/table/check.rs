//! Reads everything and reports the damage.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::block::{Block, Entries};
use super::checkpoint::reached;
use super::directory::Directory;
use super::filter;
use super::format::{FRAME_HEADER, Kind, Malformed, Pointer, Tree, Value, name_of, restore};
use super::manifest::{Manifest, TableEntry};
use super::reader::{Section, Table};
use super::writer::{due_key, queue_len};
use crate::codec::{self, Indexed};
use crate::files::Files;
use crate::{CheckedFile, DiskError, FileKind, Reached, StoreError};

/// What is wrong with a file.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TableProblem {
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// What does not add up.
    pub problem: String,
    /// How many records of the file, and removals that hide older ones, cannot be read or found:
    /// said with the first problem of a file, and 0 with the others. `None` if it is not known.
    pub at_risk: Option<u64>,
}

/// What a check of a table store found. See [`TableStore::check`](super::TableStore::check).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TableCheck {
    /// Tables, damaged ones included.
    pub tables: usize,
    /// Records that were read, those that newer ones replaced included.
    pub records: u64,
    /// Removals that were read.
    pub tombstones: u64,
    /// The length of all tables' files.
    pub bytes: u64,
    /// What is wrong. Empty if nothing is.
    pub problems: Vec<TableProblem>,
    /// Each table that a check read; a salvage names none.
    pub files: Vec<CheckedFile>,
}

/// The last segment that the store in `files` has taken in; `None` if there is no store.
pub(crate) fn ingested(files: &dyn Files, store_id: u64) -> Result<Option<u64>, StoreError> {
    let manifest = Manifest::read(files, store_id)?;
    Ok(manifest.map(|manifest| manifest.ingested))
}

/// How far the log in front is known to have reached, by the checkpoints and by the manifest, if that can
/// be read; `None` if neither says anything.
pub(crate) fn has_reached(files: &dyn Files, store_id: u64) -> io::Result<Option<Reached>> {
    let by_files = reached(files)?;
    let manifest = Manifest::read(files, store_id).ok().flatten();
    Ok(by_files.max(manifest.and_then(|manifest| manifest.reached)))
}

impl super::TableStore {
    /// Checks the tables that the manifest names and that are not in `checked`, and notes them
    /// there; `None` if there are none. A table that is not whole counts only if the manifest names
    /// it still: others may have been merged away and removed meanwhile.
    pub(crate) fn check_more(
        files: Arc<dyn Files>,
        store_id: u64,
        checked: &mut BTreeSet<u64>,
    ) -> Result<Option<TableCheck>, StoreError> {
        let directory = Directory::new(files, store_id, super::TableOptions::default(), 0);
        let directory = Arc::new(directory);
        let mut all = TableCheck::default();
        let read = || Manifest::read(&*directory.files, store_id);
        let problem = match read() {
            Ok(Some(manifest)) => {
                let is_new = |entry: &&TableEntry| !checked.contains(&entry.number);
                let new: Vec<_> = manifest.tables().filter(is_new).cloned().collect();
                if new.is_empty() {
                    return Ok(None);
                }
                for entry in new {
                    let mut check = TableCheck::default();
                    check.table(&directory, &entry);
                    checked.insert(entry.number);
                    let is_named = |manifest: Option<Manifest>| {
                        manifest.is_none_or(|m| m.tables().any(|t| t.number == entry.number))
                    };
                    if check.problems.is_empty() || read().map_or(true, is_named) {
                        all.files.extend(check.files);
                        all.problems.extend(check.problems);
                    }
                }
                return Ok(Some(all));
            }
            Ok(None) => "is missing".to_owned(),
            Err(error @ StoreError::Disk(DiskError::NotAStore { .. })) => return Err(error),
            Err(error) => error.to_string(),
        };
        all.problems.push(TableProblem {
            path: directory.files.path().join(Directory::MANIFEST),
            offset: 0,
            problem,
            at_risk: None,
        });
        Ok(Some(all))
    }
}

impl TableCheck {
    pub(super) fn problem(&mut self, directory: &Directory, number: u64, at: u64, problem: &str) {
        self.problems.push(TableProblem {
            path: directory.files.path().join(Directory::table_name(number)),
            offset: at,
            problem: problem.to_owned(),
            at_risk: Some(0),
        });
    }

    /// Checks a table that the manifest names.
    pub(super) fn table(&mut self, directory: &Arc<Directory>, entry: &TableEntry) {
        self.tables += 1;
        self.bytes += entry.length;
        let (records, problems) = (self.records, self.problems.len());
        let (whole, lost) = match Table::open(directory, entry.clone()) {
            Ok(table) => Walk::of(self, directory, &table),
            Err(error) => {
                self.problem(directory, entry.number, 0, &error.to_string());
                (false, 0)
            }
        };
        let read = self.records - records;
        self.files.push(CheckedFile {
            path: directory
                .files
                .path()
                .join(Directory::table_name(entry.number)),
            kind: FileKind::Table,
            bytes: entry.length,
            entries: read,
            torn_bytes: 0,
        });
        let found = (self.problems.len() - problems) as u64;
        if let Some(first) = self.problems.get_mut(problems) {
            // Every record is there, but an index may not lead to it.
            let at_risk = if whole && found > lost {
                entry.records
            } else {
                entry.records.saturating_sub(read)
            };
            first.at_risk = Some(at_risk);
        }
    }
}

/// Goes through a table.
struct Walk<'a> {
    check: &'a mut TableCheck,
    directory: &'a Directory,
    table: &'a Arc<Table>,
    last_key: Vec<u8>,
    /// Of what the records say that the indexes hold, and of what they do hold: how many entries
    /// there are, and the sum of their hashes.
    expected: [(u64, u64); 2],
    found: [(u64, u64); 2],
    /// Records that could not be read when they were flushed here.
    lost: u64,
}

impl<'a> Walk<'a> {
    /// Whether all records are there, and how many of them could not be read when they were flushed.
    fn of(
        check: &'a mut TableCheck,
        directory: &'a Directory,
        table: &'a Arc<Table>,
    ) -> (bool, u64) {
        let (records, tombstones) = (check.records, check.tombstones);
        let mut walk = Self {
            check,
            directory,
            table,
            last_key: Vec::new(),
            expected: [(0, 0); 2],
            found: [(0, 0); 2],
            lost: 0,
        };
        if table.read_filter().is_err() {
            walk.problem(table.footer.filter.offset, "the filter cannot be read");
        }
        for section in [Section::Names, Section::Due, Section::List] {
            walk.last_key.clear();
            let Tree { root, height } = table.footer.trees[section as usize];
            if root.len > 0 {
                walk.node(section, root, height, None);
            }
        }
        let footer = &table.footer;
        let counted = (
            walk.check.records - records + walk.lost,
            walk.check.tombstones - tombstones,
        );
        let whole = counted == (footer.records, footer.tombstones);
        if whole && (walk.expected != walk.found || walk.found[0].0 != footer.dues) {
            let at = footer.trees[Section::Due as usize].root.offset;
            walk.problem(at, "the indexes do not say what the records say");
        } else if !whole {
            let at = footer.trees[Section::Names as usize].root.offset;
            walk.problem(at, "there are not as many records as the footer says");
        }
        let lost = walk.lost;
        (whole, lost)
    }

    fn problem(&mut self, at: u64, problem: &str) {
        let number = self.table.entry.number;
        self.check.problem(self.directory, number, at, problem);
    }

    /// Checks a block, and all below it. `last` is the key with which it has to end.
    fn node(&mut self, section: Section, pointer: Pointer, height: u32, last: Option<&[u8]>) {
        let kind = if height > 0 {
            Kind::Index
        } else {
            section.kind()
        };
        let mut entries = match self
            .table
            .frame(pointer, kind)
            .map(|bytes| Block::new(bytes, FRAME_HEADER, pointer.offset))
        {
            Ok(Ok(block)) => Entries::new(Arc::new(block)),
            Ok(Err(Malformed)) => return self.problem(pointer.offset, "a block makes no sense"),
            Err(StoreError::Disk(DiskError::Corrupt { .. })) => {
                return self.problem(pointer.offset, "a checksum does not match");
            }
            Err(error) => return self.problem(pointer.offset, &error.to_string()),
        };
        loop {
            match entries.advance() {
                Ok(true) => {}
                Ok(false) => break,
                Err(Malformed) => return self.problem(pointer.offset, "a block makes no sense"),
            }
            if height > 0 {
                match Pointer::read(entries.value()) {
                    Ok(child) => self.node(section, child, height - 1, Some(entries.key())),
                    Err(Malformed) => self.problem(pointer.offset, "an index makes no sense"),
                }
                continue;
            }
            if !self.last_key.is_empty() && entries.key() <= self.last_key.as_slice() {
                self.problem(pointer.offset, "names or keys are out of order");
            }
            self.last_key.clear();
            self.last_key.extend_from_slice(entries.key());
            let sound = match section {
                Section::Names => self.record(&entries),
                Section::Due => {
                    count(&mut self.found[0], entries.key(), entries.value());
                    Ok(())
                }
                Section::List => {
                    count(&mut self.found[1], entries.key(), entries.value());
                    Ok(())
                }
            };
            if let Err(problem) = sound {
                self.problem(pointer.offset, &problem);
            }
        }
        if last.is_some_and(|last| last != entries.key()) {
            self.problem(pointer.offset, "an index is wrong about a block");
        }
    }

    fn record(&mut self, entries: &Entries) -> Result<(), String> {
        let key = entries.key();
        let senseless = |Malformed| "a record makes no sense".to_owned();
        if !self.table.may_contain(key, filter::hash(key)) {
            self.problem(entries.offset(), "the filter does not know a name");
        }
        let stripped = match Value::read(entries.value()).map_err(senseless)? {
            Value::Tombstone => {
                self.check.tombstones += 1;
                return Ok(());
            }
            Value::Unreadable(indexed) => {
                self.lost += 1;
                self.expect(key, indexed)?;
                let name = name_of(key).map_err(senseless)?.1;
                return Err(format!("the record {name} could not be read when it moved"));
            }
            Value::Inline(_) | Value::Large(_) => {
                self.table.stripped(entries.value(), entries.offset())
            }
        };
        let stripped = stripped.map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        restore(key, &stripped.unwrap_or_default(), &mut bytes).map_err(senseless)?;
        let record = codec::decode(&bytes).map_err(|error| error.to_string())?;
        self.check.records += 1;
        self.expect(key, Indexed::of(&record))
    }

    /// Notes what the indexes have to say of a record.
    fn expect(&mut self, key: &[u8], indexed: Indexed) -> Result<(), String> {
        let Indexed {
            kind,
            position,
            wake,
            clock,
        } = indexed;
        let shard = *key.first_chunk().ok_or("a key is too short")?;
        let (_, name) = name_of(key).map_err(|Malformed| "a key makes no sense")?;
        if let Some(wake) = wake {
            let mut value = Vec::new();
            let name = &key[shard.len()..];
            self.table.footer.due_value(name, kind, &mut value);
            count(&mut self.expected[0], &due_key(shard, clock, wake), &value);
        }
        let shard = crate::Shard(u16::from_be_bytes(shard));
        let list_key = codec::list_key(shard, &name.queue, kind, position);
        count(&mut self.expected[1], &list_key, &key[queue_len(key)..]);
        Ok(())
    }
}

fn count((entries, sum): &mut (u64, u64), key: &[u8], value: &[u8]) {
    *entries += 1;
    let hash = filter::hash(key).wrapping_mul(3) ^ filter::hash(value);
    *sum = sum.wrapping_add(filter::hash(&hash.to_le_bytes()));
}
