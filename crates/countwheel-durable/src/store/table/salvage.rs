//! Reads what can be read of damaged tables, for a repair that makes a new store of it.

use std::sync::Arc;

use super::block::{Block, Entries};
use super::check::TableCheck;
use super::directory::Directory;
use super::format::{
    FRAME_HEADER, Footer, Kind, Place, Pointer, Value, footer_pointer, frame_len, name_of, restore,
    u32_at,
};
use crate::Record;
use crate::store::embedded::codec;
use crate::store::files::StoreFile;
use crate::store::{Shard, StoreError};

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

/// A table's number, and how long its file should be, if that is known.
pub(super) type Whole = (u64, Option<u64>);

/// Hands each record to `each`, in order of shard and name: of each name the newest that can be
/// read. `runs` are newest first.
pub(super) fn salvage(
    directory: &Directory,
    runs: Vec<Vec<Whole>>,
    all_doubtful: bool,
    check: &mut TableCheck,
    mut each: impl FnMut(Salvaged) -> Result<(), StoreError>,
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
        let mut doubtful = all_doubtful;
        let mut settled = false;
        for stream in &mut streams {
            let here = stream.head.as_ref().is_some_and(|head| head.key() == key);
            if !here {
                doubtful |= stream.gap;
                continue;
            }
            if !settled {
                match stream.record(directory, check) {
                    Ok(None) => settled = true,
                    Ok(Some((shard, record))) => {
                        settled = true;
                        each(Salvaged {
                            shard,
                            record,
                            doubtful,
                        })?;
                    }
                    // An older table may have an older one.
                    Err(()) => doubtful = true,
                }
            }
            stream.advance(directory, check);
        }
    }
}

/// The numbers of the tables, newest first, by their footers; those without one are last.
pub(super) fn by_footer(directory: &Directory, numbers: &[u64]) -> Vec<Vec<Whole>> {
    let newest = |number: u64| {
        let file = File::open(directory, (number, None))?;
        let frame = file.frame(footer_pointer(file.length)?, Kind::Footer)?;
        Some(Footer::read(&frame[FRAME_HEADER..]).ok()?.ok()?.newest)
    };
    let mut tables: Vec<(u64, u64)> = numbers
        .iter()
        .map(|&number| (newest(number).unwrap_or(0), number))
        .collect();
    // A merge gives its table a higher number than those it was made of.
    tables.sort_unstable_by(|one, other| other.cmp(one));
    let runs = tables.into_iter();
    runs.map(|(_, number)| vec![(number, None)]).collect()
}

/// A file that may be damaged.
struct File {
    file: Arc<dyn StoreFile>,
    place: Place,
    /// How long it should be.
    length: u64,
}

impl File {
    fn open(directory: &Directory, (number, length): Whole) -> Option<Self> {
        let file = directory.files.open(&Directory::table_name(number)).ok()?;
        Some(Self {
            place: Place {
                store_id: directory.store_id,
                file: number,
            },
            length: length.or_else(|| file.length().ok())?,
            file,
        })
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
    tables: std::vec::IntoIter<Whole>,
    file: Option<File>,
    /// Where the next frame stands.
    next: u64,
    head: Option<Entries>,
    /// Whether everything behind is about the indexes.
    past_names: bool,
    /// Whether something before the head, and after what was read before it, is lost.
    gap: bool,
}

impl Stream {
    fn new(tables: Vec<Whole>) -> Self {
        Self {
            tables: tables.into_iter(),
            past_names: false,
            file: None,
            next: 0,
            head: None,
            gap: false,
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
            Err(_) => None,
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
                    last.at_risk = 1;
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
                    Ok(true) => return,
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
                    let Some(table) = self.tables.next() else {
                        self.file = None;
                        return;
                    };
                    self.next = 0;
                    self.past_names = false;
                    self.file = File::open(directory, table);
                    check.tables += 1;
                    match &self.file {
                        Some(file) => check.bytes += file.length,
                        None => {
                            self.gap = true;
                            check.problem(directory, table.0, 0, "the file cannot be opened");
                        }
                    }
                }
            }
        }
    }

    /// Reads the next frame, or goes on to where one can be read again.
    fn next_frame(&mut self, directory: &Directory, check: &mut TableCheck) {
        let Some(file) = &self.file else { return };
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
            // What it was is not known: it may have held names.
            self.gap |= !self.past_names;
            let damaged = self.next;
            self.problem(
                directory,
                check,
                damaged,
                "nothing can be read from here on for a while",
            );
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
            None => self.next = file.length,
        }
    }

    fn problem(&self, directory: &Directory, check: &mut TableCheck, at: u64, problem: &str) {
        if let Some(file) = &self.file {
            check.problem(directory, file.place.file, at, problem);
        }
    }
}
