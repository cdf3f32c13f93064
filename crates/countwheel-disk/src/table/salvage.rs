//! Reads the readable part of damaged tables, for a repair that makes a new store of it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::block::{Block, Entries};
use super::check::TableCheck;
use super::directory::Directory;
use super::format::{
    FRAME_HEADER, Footer, Kind, Pointer, TablePlace, Value, footer_pointer, frame_len, name_of,
    restore, u32_at,
};
use super::manifest::{Manifest, TableEntry};
use crate::codec;
use crate::files::StoreFile;
use crate::{Record, TimerName};
use crate::{Shard, StoreError};

/// A record that could be read of a damaged store.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Salvaged {
    /// Its shard.
    pub shard: Shard,
    /// The record.
    pub record: Record,
    /// A newer table is damaged where this name would stand: it may have been changed or removed
    /// since.
    pub doubtful: bool,
}

/// What is found under a name.
pub(crate) enum Found {
    Record(Box<Salvaged>),
    /// It was removed, and nothing newer can have been lost.
    Removed(Shard, TimerName),
}

/// A table that is to be read: its number, and what the manifest says of it, if it does.
type Whole = (u64, Option<TableEntry>);

/// Tables one behind the other by name.
pub(super) struct WholeRun {
    tables: Vec<Whole>,
    /// The manifest does not name it.
    is_doubtful: bool,
}

/// Hands each record to `each`, in order of shard and name: of each name the newest that can be
/// read. `runs` are newest first.
pub(super) fn salvage(
    directory: &Directory,
    runs: Vec<WholeRun>,
    check: &mut TableCheck,
    mut each: impl FnMut(Found) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut streams: Vec<Stream> = runs.into_iter().map(Stream::new).collect();
    for stream in &mut streams {
        stream.advance(directory, check);
    }
    loop {
        let heads = streams.iter().filter_map(|stream| stream.head.as_ref());
        let Some(key) = heads.map(|head| head.key().to_vec()).min() else {
            return Ok(());
        };
        let mut doubtful = false;
        let mut answered = false;
        for stream in &mut streams {
            let here = stream.head.as_ref().is_some_and(|head| head.key() == key);
            if !here {
                doubtful |= stream.may_have_had(&key);
                continue;
            }
            if !answered {
                doubtful |= stream.is_doubtful;
                match stream.record(directory, check) {
                    Ok(None) => {
                        answered = true;
                        let named = name_of(&key).ok().filter(|_| !doubtful);
                        if let Some((shard, name)) = named {
                            each(Found::Removed(shard, name))?;
                        }
                    }
                    Ok(Some((shard, record))) => {
                        answered = true;
                        each(Found::Record(Box::new(Salvaged {
                            shard,
                            record,
                            doubtful,
                        })))?;
                    }
                    // An older table may have an older one.
                    Err(()) => doubtful = true,
                }
            }
            stream.advance(directory, check);
        }
    }
}

/// What is to be read of the tables with these numbers, newest first: those that the manifest
/// names, and of the others those that may have what it lacks.
pub(super) fn runs(
    directory: &Directory,
    manifest: Option<&Manifest>,
    numbers: impl Iterator<Item = u64>,
) -> Vec<WholeRun> {
    let newest = |number: u64| {
        let file = File::open(directory, number, None)?;
        Some(file.footer?.newest)
    };
    let named: BTreeSet<u64> = manifest
        .iter()
        .flat_map(|manifest| manifest.tables().map(|table| table.number))
        .collect();
    let is_whole = manifest.is_some() && named.iter().all(|&number| newest(number).is_some());
    let sequence = manifest.map_or(0, |manifest| manifest.sequence);
    // By how new they are, then by number: a merge gives its table a higher number than those it
    // was made of. A table without a footer is taken for the oldest.
    let mut runs: Vec<((u64, u64), WholeRun)> = numbers
        .filter(|number| !named.contains(number))
        .map(|number| (newest(number).unwrap_or(0), number))
        .filter(|(newest, _)| !is_whole || *newest > sequence)
        .map(|age| {
            let tables = vec![(age.1, None)];
            let is_doubtful = true;
            (
                age,
                WholeRun {
                    tables,
                    is_doubtful,
                },
            )
        })
        .collect();
    for run in manifest.iter().flat_map(|manifest| &manifest.runs) {
        let tables: Vec<Whole> = run
            .tables
            .iter()
            .map(|table| (table.number, Some(table.clone())))
            .collect();
        let highest = tables.iter().map(|(number, _)| *number).max().unwrap_or(0);
        let is_doubtful = false;
        runs.push((
            (run.newest, highest),
            WholeRun {
                tables,
                is_doubtful,
            },
        ));
    }
    runs.sort_unstable_by_key(|(age, _)| Reverse(*age));
    runs.into_iter().map(|(_, run)| run).collect()
}

/// A file that may be damaged.
struct File {
    file: Arc<dyn StoreFile>,
    place: TablePlace,
    /// How long it should be.
    length: u64,
    footer: Option<Footer>,
}

impl File {
    fn open(directory: &Directory, number: u64, length: Option<u64>) -> Option<Self> {
        let file = directory.files.open(&Directory::table_name(number)).ok()?;
        let mut file = Self {
            place: TablePlace {
                store_id: directory.store_id,
                file: number,
            },
            length: length.or_else(|| file.length().ok())?,
            file,
            footer: None,
        };
        let footer = footer_pointer(file.length).and_then(|at| file.frame(at, Kind::Footer));
        file.footer = footer.and_then(|frame| Footer::read(&frame[FRAME_HEADER..]).ok()?.ok());
        Some(file)
    }

    /// In which part of the file something stands, and whether that part has the names. `None`
    /// without a footer.
    fn part_of(&self, offset: u64) -> Option<(&'static str, bool)> {
        let footer = self.footer.as_ref()?;
        // The root of the index over a part is its last block.
        let [names, due, list] = footer.trees.map(|tree| tree.root);
        let parts = [
            (names, "records", true),
            (due, "the index by wake", false),
            (list, "the list index", false),
        ];
        let part = parts
            .into_iter()
            .find(|(root, ..)| root.len > 0 && offset <= root.offset);
        Some(part.map_or(
            ("the filter or the footer", false),
            |(_, part, is_names)| (part, is_names),
        ))
    }

    /// A frame; `None` if it cannot be read.
    fn frame(&self, pointer: Pointer, kind: Kind) -> Option<Vec<u8>> {
        let (found, bytes) = self.any_frame(pointer)?;
        (found == kind).then_some(bytes)
    }

    fn any_frame(&self, Pointer { offset, len }: Pointer) -> Option<(Kind, Vec<u8>)> {
        let end = offset.checked_add(FRAME_HEADER as u64 + u64::from(len))?;
        if end > self.length {
            return None;
        }
        let mut bytes = vec![0; FRAME_HEADER + len as usize];
        self.file.read_at(offset, &mut bytes).ok()?;
        self.place.open(offset, bytes)
    }

    /// The frame that says itself that it stands at `offset`, and where the next would stand.
    fn frame_at(&self, offset: u64) -> Option<(Kind, Vec<u8>, u64)> {
        let mut header = [0; FRAME_HEADER];
        if offset.checked_add(FRAME_HEADER as u64)? > self.length {
            return None;
        }
        self.file.read_at(offset, &mut header).ok()?;
        Kind::of(header[8])?;
        let len = u32_at(&header, 4);
        let (kind, bytes) = self.any_frame(Pointer { offset, len })?;
        Some((kind, bytes, offset + frame_len(len as usize)))
    }
}

/// The names of a run, one after the other, as far as they can be read.
struct Stream {
    is_doubtful: bool,
    tables: std::vec::IntoIter<Whole>,
    file: Option<File>,
    /// Where the next frame stands.
    next: u64,
    head: Option<Entries>,
    /// Whether everything behind is about the indexes.
    past_names: bool,
    /// Whether something before the head, and after what was read before it, is lost.
    gap: bool,
    /// The table that is read, or was read last.
    table: Option<Whole>,
    /// How many names of it were read.
    read: u64,
    /// Which of all problems is the first of this table.
    first_problem: Option<usize>,
}

impl Stream {
    /// Whether the name may have stood in what is lost before the head.
    fn may_have_had(&self, key: &[u8]) -> bool {
        let last = self.table.as_ref().and_then(|(_, entry)| entry.as_ref());
        // Behind the last name of the last table nothing stood.
        let is_behind = self.head.is_none() && last.is_some_and(|last| key > &last.last_key[..]);
        self.gap && !is_behind
    }

    /// Says of the table that was read how much of it is lost, if anything is wrong with it.
    fn count_lost(&mut self, check: &mut TableCheck) {
        let read = std::mem::take(&mut self.read);
        let first = self.first_problem.take();
        let Some(first) = first.and_then(|at| check.problems.get_mut(at)) else {
            return;
        };
        let footer = self.file.as_ref().and_then(|file| file.footer);
        let named = self.table.as_ref().and_then(|(_, entry)| entry.as_ref());
        // Without a footer it is not known how many removals there were.
        first.at_risk = match (footer, named) {
            (Some(footer), _) => {
                let all = footer.records.saturating_add(footer.tombstones);
                Some(all.saturating_sub(read))
            }
            (None, Some(entry)) if read == 0 => Some(entry.records),
            _ => None,
        };
    }

    fn new(run: WholeRun) -> Self {
        Self {
            is_doubtful: run.is_doubtful,
            tables: run.tables.into_iter(),
            past_names: false,
            file: None,
            next: 0,
            head: None,
            gap: false,
            table: None,
            read: 0,
            first_problem: None,
        }
    }

    /// The record at the head; an error if it is lost.
    fn record(
        &self,
        directory: &Directory,
        check: &mut TableCheck,
    ) -> Result<Option<(Shard, Record)>, ()> {
        let (Some(head), Some(file)) = (&self.head, &self.file) else {
            return Err(());
        };
        let large;
        let stripped = match Value::read(head.value()) {
            Ok(Value::Tombstone) => {
                check.tombstones += 1;
                return Ok(None);
            }
            Ok(Value::Inline(stripped)) => Some(stripped),
            Ok(Value::Large(pointer)) => {
                large = file.frame(pointer, Kind::Large);
                large.as_deref().map(|frame| &frame[FRAME_HEADER..])
            }
            Ok(Value::Unreadable(_)) | Err(_) => None,
        };
        let named = name_of(head.key());
        let mut bytes = Vec::new();
        let record = stripped
            .filter(|stripped| restore(head.key(), stripped, &mut bytes).is_ok())
            .and_then(|_| codec::decode(&bytes).ok());
        match (named, record) {
            (Ok((shard, _)), Some(record)) => {
                check.records += 1;
                Ok(Some((shard, record)))
            }
            (named, _) => {
                let what = named.map_or_else(|_| "?".to_owned(), |(_, name)| name.to_string());
                let problem = format!("the record {what} cannot be read");
                check.problem(directory, file.place.file, head.offset(), &problem);
                if let Some(last) = check.problems.last_mut() {
                    last.at_risk = Some(1);
                }
                Err(())
            }
        }
    }

    fn advance(&mut self, directory: &Directory, check: &mut TableCheck) {
        self.gap = false;
        loop {
            if let Some(head) = &mut self.head {
                match head.advance() {
                    Ok(true) => {
                        self.read += 1;
                        return;
                    }
                    Ok(false) => {}
                    Err(_) => {
                        self.gap = true;
                        let at = head.offset();
                        self.problem(directory, check, at, "a block makes no sense");
                    }
                }
                self.head = None;
            }
            match &self.file {
                Some(file) if self.next < file.length => self.next_frame(directory, check),
                _ => {
                    self.count_lost(check);
                    let Some(table) = self.tables.next() else {
                        self.file = None;
                        return;
                    };
                    self.next = 0;
                    self.past_names = false;
                    let length = table.1.as_ref().map(|entry| entry.length);
                    self.file = File::open(directory, table.0, length);
                    let number = table.0;
                    self.table = Some(table);
                    check.tables += 1;
                    match &self.file {
                        Some(file) => check.bytes += file.length,
                        None => {
                            self.gap = true;
                            self.first_problem = Some(check.problems.len());
                            check.problem(directory, number, 0, "the file cannot be opened");
                        }
                    }
                }
            }
        }
    }

    /// Reads the next frame, or goes on to where one can be read again.
    fn next_frame(&mut self, directory: &Directory, check: &mut TableCheck) {
        let Some(file) = &self.file else { return };
        let end = file.length;
        let mut at = self.next;
        let found = loop {
            if at >= file.length {
                break None;
            }
            if let Some(found) = file.frame_at(at) {
                break Some(found);
            }
            at += super::format::ALIGNMENT;
        };
        if at != self.next {
            let damaged = self.next;
            let part = file.part_of(damaged);
            // Without a footer, what it was is not known: it may have held names.
            self.gap |= part.map_or(!self.past_names, |(_, is_names)| is_names);
            let part = part.map_or("the table", |(part, _)| part);
            let problem = format!("a block of {part} cannot be read");
            self.problem(directory, check, damaged, &problem);
        }
        match found {
            Some((kind, bytes, next)) => {
                self.next = next;
                self.past_names = !matches!(kind, Kind::Records | Kind::Large | Kind::Index);
                if kind == Kind::Records {
                    self.head = Block::new(bytes, FRAME_HEADER, at)
                        .ok()
                        .map(|block| Entries::new(Arc::new(block)));
                }
            }
            None => self.next = end,
        }
    }

    fn problem(&mut self, directory: &Directory, check: &mut TableCheck, at: u64, problem: &str) {
        if let Some(file) = &self.file {
            self.first_problem.get_or_insert(check.problems.len());
            check.problem(directory, file.place.file, at, problem);
        }
    }
}
