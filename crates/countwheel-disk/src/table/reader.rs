//! Reads a table: by name, and in order from any position in one of its three trees.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use super::block::{Block, Entries};
use super::directory::{Directory, not_a_store};
use super::fill::fill;
use super::filter::Filter;
use super::flat::Flat;
use super::format::{
    FRAME_HEADER, Footer, Kind, Malformed, Pointer, TablePlace, Tree, Value, footer_pointer,
};
use super::manifest::TableEntry;
use super::skips::{Range, SkipRanges};
use crate::files::StoreFile;
use crate::planted::planted;
use crate::{DiskError, StoreError};
use crate::{StateKind, TroubleReason};

/// So many entries of a queue's list are looked at for the state of a record that cannot be read.
const LISTED_MAX: usize = 65_536;

/// A table that was finished. Its file is removed with it, once it was replaced.
#[derive(Debug)]
pub(super) struct Table {
    directory: Arc<Directory>,
    file: Arc<dyn StoreFile>,
    pub(super) entry: TableEntry,
    pub(super) footer: Footer,
    /// `None` if it cannot be read.
    filter: OnceLock<Option<Filter>>,
    discarded: AtomicBool,
    /// Whether the due index, and whether the list index or the filter, cannot be read in part.
    gaps: [Gap; 2],
    left_alone: AtomicBool,
    /// In place of the index over names, if a part of it cannot be read.
    flat: RwLock<Option<Arc<Flat>>>,
    /// Of the index of dues.
    skips: RwLock<SkipRanges>,
}

/// A part of an index that cannot be read.
#[derive(Debug, Default)]
struct Gap {
    state: Mutex<GapState>,
    /// What that part said, once it was read from the records.
    filled: RwLock<Option<Arc<Block>>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum GapState {
    #[default]
    None,
    Open,
    /// The table was replaced, or the gap filled.
    Closed,
}

impl Gap {
    fn filled(&self) -> Option<Arc<Block>> {
        self.filled.read().clone()
    }
}

/// One of the three orders of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Section {
    Names = 0,
    Due = 1,
    List = 2,
}

impl Section {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Names => Kind::Records,
            Self::Due => Kind::Due,
            Self::List => Kind::List,
        }
    }
}

impl Table {
    /// Opens a table that the manifest names.
    pub(super) fn open(
        directory: &Arc<Directory>,
        entry: TableEntry,
    ) -> Result<Arc<Self>, StoreError> {
        let name = Directory::table_name(entry.number);
        let file = directory
            .files
            .open(&name)
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    not_a_store(&*directory.files, &name, "is missing".to_owned())
                }
                _ => super::directory::io_error(&*directory.files, error),
            })?;
        let length = file.length();
        let length =
            length.map_err(|error| super::directory::io_error(&*directory.files, error))?;
        if length != entry.length {
            let problem = format!("it has {length} bytes instead of {}", entry.length);
            return Err(directory.corrupt(&name, length.min(entry.length), &problem));
        }
        let mut table = Self {
            directory: Arc::clone(directory),
            file,
            entry,
            footer: Footer::default(),
            filter: OnceLock::new(),
            discarded: AtomicBool::new(false),
            gaps: Default::default(),
            left_alone: AtomicBool::new(false),
            flat: RwLock::default(),
            skips: RwLock::default(),
        };
        table.footer = table.read_footer()?;
        Ok(Arc::new(table))
    }

    /// A table that was just written.
    pub(super) fn written(
        directory: &Arc<Directory>,
        file: Arc<dyn StoreFile>,
        entry: TableEntry,
        footer: Footer,
        filter: Filter,
    ) -> Self {
        Self {
            directory: Arc::clone(directory),
            file,
            entry,
            footer,
            filter: OnceLock::from(Some(filter)),
            discarded: AtomicBool::new(false),
            gaps: Default::default(),
            left_alone: AtomicBool::new(false),
            flat: RwLock::default(),
            skips: RwLock::default(),
        }
    }

    /// The first range of the index of dues that ends with `key` or later, and in which newer runs
    /// have replaced everything.
    pub(super) fn skip_at(&self, key: &[u8]) -> Option<Range> {
        self.skips.read().at(key)
    }

    /// Remembers such a range, in which so many entries were looked at.
    pub(super) fn add_skip(&self, (range, entries): (Range, usize)) {
        let mut skips = self.skips.write();
        skips.add(range, entries, self.directory.options.skip_min);
    }

    /// How many blocks were read for which the cache had no copy, of all tables.
    pub(super) fn loads(&self) -> u64 {
        self.directory.cache.loads()
    }

    /// Lets its file go once nobody reads it any more.
    pub(super) fn discard(&self) {
        self.discarded.store(true, Ordering::SeqCst);
        for in_dues in [false, true] {
            self.close_gap(in_dues);
        }
    }

    /// A part of an index, or the filter, cannot be read. The table is rewritten for it.
    pub(super) fn index_unreadable(&self, in_dues: bool, error: &StoreError) {
        let is_new = self.directory.note(TroubleReason::UnreadableIndex, error);
        let mut state = self.gaps[usize::from(in_dues)].state.lock();
        // One that was filled has another one.
        if *state == GapState::None || *state == GapState::Closed && is_new {
            *state = GapState::Open;
            self.directory.gaps.opens(in_dues);
        }
        drop(state);
        if self.discarded.load(Ordering::SeqCst) {
            // Found by somebody who still reads what was replaced already.
            self.close_gap(in_dues);
        }
    }

    fn close_gap(&self, in_dues: bool) {
        let mut state = self.gaps[usize::from(in_dues)].state.lock();
        if *state == GapState::Open {
            *state = GapState::Closed;
            self.directory.gaps.closes(in_dues);
        }
    }

    /// Whether a part of an index cannot be read.
    pub(super) fn has_gap(&self) -> bool {
        let mut gaps = self.gaps.iter();
        gaps.any(|gap| *gap.state.lock() == GapState::Open)
    }

    /// Reads what the damaged parts of the indexes said from the records, as far as those can be
    /// read, and keeps it in memory. False if the system refused to read some: their gap stays.
    pub(super) fn fill_gaps(self: &Arc<Self>) -> bool {
        let mut is_whole = true;
        for section in [Section::List, Section::Due] {
            let gap = &self.gaps[usize::from(section == Section::Due)];
            if *gap.state.lock() == GapState::Open {
                let filled = fill(self, section);
                let block = filled.block.map(Arc::new);
                *gap.filled.write() = block;
                if filled.is_whole {
                    self.close_gap(section == Section::Due);
                }
                is_whole &= filled.is_whole;
            }
        }
        is_whole
    }

    /// What was read from the records in place of the damaged parts of an index.
    pub(super) fn filled(&self, section: Section) -> Option<Arc<Block>> {
        match section {
            Section::Names => None,
            Section::Due => self.gaps[1].filled(),
            Section::List => self.gaps[0].filled(),
        }
    }

    /// Merges nothing of its run any more: `error` is why a record cannot be read.
    pub(super) fn leave_alone(&self, error: &StoreError) {
        self.left_alone.store(true, Ordering::SeqCst);
        self.directory.note(TroubleReason::RunLeftAlone, error);
    }

    pub(super) fn is_left_alone(&self) -> bool {
        self.left_alone.load(Ordering::SeqCst)
    }

    pub(super) fn name(&self) -> String {
        Directory::table_name(self.entry.number)
    }

    pub(super) fn damaged(&self, offset: u64, problem: &str) -> StoreError {
        self.directory.corrupt(&self.name(), offset, problem)
    }

    /// The system does not give back what stands there.
    pub(super) fn refused(&self, offset: u64, error: &io::Error) -> StoreError {
        let source = io::Error::new(error.kind(), format!("at offset {offset}: {error}"));
        let path = self.path();
        DiskError::Io { path, source }.into()
    }

    /// Where its file is.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.files.path().join(self.name())
    }

    pub(super) fn store_file(&self) -> &dyn StoreFile {
        &*self.file
    }

    pub(super) fn place(&self) -> TablePlace {
        TablePlace {
            store_id: self.directory.store_id,
            file: self.entry.number,
        }
    }

    fn read_footer(&self) -> Result<Footer, StoreError> {
        let pointer = footer_pointer(self.entry.length);
        let pointer = pointer.ok_or_else(|| self.damaged(0, "it is too short"))?;
        let at = pointer.offset;
        // The footer of a later version may be longer, but then the manifest that names the table
        // is of a later version as well.
        let bytes = self.frame(pointer, Kind::Footer)?;
        if super::format::u32_at(&bytes, 0) != self.entry.checksum {
            return Err(self.damaged(at, "it is not the table that the manifest names"));
        }
        let footer = Footer::read(&bytes[FRAME_HEADER..]);
        footer
            .map_err(|_| self.damaged(at, "its footer makes no sense"))?
            .map_err(|version| {
                let problem = format!("is of another version, {version}");
                not_a_store(&*self.directory.files, &self.name(), problem)
            })
    }

    /// Reads a frame and checks it. The body, unpacked, begins at [`FRAME_HEADER`].
    pub(super) fn frame(&self, pointer: Pointer, kind: Kind) -> Result<Vec<u8>, StoreError> {
        let Pointer { offset, len } = pointer;
        let end = offset.checked_add(FRAME_HEADER as u64 + u64::from(len));
        if end.is_none_or(|end| end > self.entry.length) {
            return Err(self.damaged(offset, "an index points behind the end"));
        }
        let mut bytes = vec![0; FRAME_HEADER + len as usize];
        let read = self.file.read_at(offset, &mut bytes);
        read.map_err(|error| self.refused(offset, &error))?;
        match self.place().open(offset, bytes) {
            Some((found, bytes)) if found == kind => Ok(bytes),
            _ => Err(self.damaged(offset, "a checksum does not match")),
        }
    }

    fn block(&self, pointer: Pointer, kind: Kind, cached: bool) -> Result<Arc<Block>, StoreError> {
        let cache = &self.directory.cache;
        if cached && let Some(block) = cache.get(self.entry.number, pointer.offset) {
            return Ok(block);
        }
        let bytes = self.frame(pointer, kind)?;
        let block = Block::new(bytes, FRAME_HEADER, pointer.offset);
        let block = Arc::new(block.map_err(|_| self.senseless(pointer.offset))?);
        if cached {
            cache.insert(self.entry.number, &block);
        }
        Ok(block)
    }

    /// A block that was read before and is still in memory.
    pub(super) fn cached(&self, pointer: Pointer) -> Option<Arc<Block>> {
        self.directory.cache.get(self.entry.number, pointer.offset)
    }

    pub(super) fn senseless(&self, offset: u64) -> StoreError {
        self.damaged(offset, "a block makes no sense")
    }

    /// Reads the filter.
    pub(super) fn read_filter(&self) -> Result<Filter, StoreError> {
        let pointer = self.footer.filter;
        let bytes = self.frame(pointer, Kind::Filter)?;
        Filter::read(bytes[FRAME_HEADER..].to_vec()).map_err(|_| self.senseless(pointer.offset))
    }

    /// False if the name is certainly not here. The filter is read when it is first needed, and
    /// kept; without one, every name may be here.
    pub(super) fn may_contain(&self, key: &[u8], hash: u64) -> bool {
        if key < self.entry.first_key.as_slice() || key > self.entry.last_key.as_slice() {
            return false;
        }
        let filter = self.filter.get_or_init(|| {
            let filter = self.read_filter();
            filter
                .inspect_err(|error| self.index_unreadable(false, error))
                .ok()
        });
        filter
            .as_ref()
            .is_none_or(|filter| filter.may_contain(hash))
    }

    /// Where the name stands; `None` if it is not here.
    pub(super) fn find(self: &Arc<Self>, key: &[u8]) -> Result<Option<Cursor>, StoreError> {
        let flat = self.flat.read().clone();
        if let Some(flat) = flat {
            return self.find_by(&flat, key);
        }
        let mut cursor = Cursor::new(Arc::clone(self), Section::Names, true);
        match (cursor.seek(key), cursor.lost) {
            (Err(error), Some(lost)) => {
                self.directory.note(TroubleReason::UnreadableIndex, &error);
                let flat = self.keep(Flat::of(self, lost));
                self.find_by(&flat, key)
            }
            (found, _) => Ok((found? && cursor.key() == key).then_some(cursor)),
        }
    }

    /// What is there in place of the index over names, of which this block cannot be read.
    pub(super) fn flat(&self, lost: Pointer) -> Arc<Flat> {
        let flat = self.flat.read().clone();
        let again = flat.as_ref().and_then(|flat| flat.again(self).ok()?);
        match (again, flat) {
            (None, Some(flat)) => flat,
            (Some(flat), _) => self.keep(flat),
            (None, None) => self.keep(Flat::of(self, lost)),
        }
    }

    fn keep(&self, flat: Flat) -> Arc<Flat> {
        let flat = Arc::new(flat);
        *self.flat.write() = Some(Arc::clone(&flat));
        flat
    }

    /// The same by what was made in place of the index over names: anew, if what the system refused
    /// meanwhile came back. If that is refused again, the error says so, and not that a gap is no block.
    fn find_by(self: &Arc<Self>, flat: &Flat, key: &[u8]) -> Result<Option<Cursor>, StoreError> {
        let find = |flat: &Flat| match &flat.index {
            Some(index) => self.find_in(index, key),
            None => Err(self.damaged(0, "no block of records can be read")),
        };
        match find(flat) {
            Err(error) => match flat.again(self)? {
                Some(flat) => find(&self.keep(flat)),
                None => Err(error),
            },
            found => found,
        }
    }

    /// The same by an index over all blocks of records.
    fn find_in(
        self: &Arc<Self>,
        index: &Arc<Block>,
        key: &[u8],
    ) -> Result<Option<Cursor>, StoreError> {
        let mut entries = Entries::new(Arc::clone(index));
        let mut cursor = Cursor::new(Arc::clone(self), Section::Names, true);
        if !cursor.sound(entries.seek(key), &entries)? {
            return Ok(None);
        }
        let pointer = cursor.sound(Pointer::read(entries.value()), &entries)?;
        let mut leaf = cursor.load(pointer, Kind::Records)?;
        let found = cursor.sound(leaf.seek(key), &leaf)? && leaf.key() == key;
        cursor.leaf = Some(leaf);
        Ok(found.then_some(cursor))
    }

    /// The state of the record of this name, as the list index says it; `None` if that says nothing
    /// of it, or not within so many entries of its queue.
    pub(super) fn listed(self: &Arc<Self>, key: &[u8]) -> Option<StateKind> {
        let (queue, name) = key.split_at(super::writer::queue_len(key));
        let mut left = LISTED_MAX;
        StateKind::ALL.into_iter().find(|&kind| {
            let prefix = [queue, &[kind as u8]].concat();
            let mut cursor = Cursor::new(Arc::clone(self), Section::List, true);
            let mut found = cursor.seek(&prefix);
            while left > 0 && matches!(found, Ok(true)) && cursor.key().starts_with(&prefix) {
                if cursor.value() == name {
                    return true;
                }
                left -= 1;
                found = cursor.advance();
            }
            false
        })
    }

    /// The bytes of a record without its name; `None` if it was removed.
    pub(super) fn stripped(&self, value: &[u8], at: u64) -> Result<Option<Vec<u8>>, StoreError> {
        match Value::read(value).map_err(|_| self.senseless(at))? {
            Value::Tombstone => Ok(None),
            Value::Unreadable(_) => {
                Err(self.damaged(at, "a record could not be read when it moved"))
            }
            Value::Inline(stripped) => Ok(Some(stripped.to_vec())),
            Value::Large(pointer) => {
                let mut bytes = self.frame(pointer, Kind::Large)?;
                bytes.drain(..FRAME_HEADER);
                Ok(Some(bytes))
            }
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if self.discarded.load(Ordering::SeqCst) {
            self.directory.cache.forget(self.entry.number);
            self.directory.troubles.clear_file(&self.path());
            self.directory.discard(&self.name());
        }
    }
}

/// A position in one of a table's trees.
#[derive(Debug)]
pub(super) struct Cursor {
    table: Arc<Table>,
    section: Section,
    cached: bool,
    levels: Vec<Entries>,
    leaf: Option<Entries>,
    /// The block of the tree that could not be read.
    lost: Option<Pointer>,
    /// All there is, if it is not in the tree.
    filled: Option<Arc<Block>>,
}

impl Cursor {
    /// Nowhere yet. What is read once only is better not kept in the cache.
    pub(super) fn new(table: Arc<Table>, section: Section, cached: bool) -> Self {
        Self {
            table,
            section,
            cached,
            levels: Vec::new(),
            leaf: None,
            lost: None,
            filled: None,
        }
    }

    /// The same in what was read in place of damaged parts of an index.
    pub(super) fn filled(table: &Arc<Table>, section: Section) -> Option<Self> {
        let filled = table.filled(section)?;
        Some(Self {
            filled: Some(filled),
            ..Self::new(Arc::clone(table), section, true)
        })
    }

    pub(super) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// The key at which it is; empty if it is nowhere.
    pub(super) fn key(&self) -> &[u8] {
        self.leaf.as_ref().map_or(&[], Entries::key)
    }

    pub(super) fn value(&self) -> &[u8] {
        self.leaf.as_ref().map_or(&[], Entries::value)
    }

    /// Where the block stands in which it is, for messages.
    pub(super) fn offset(&self) -> u64 {
        self.leaf.as_ref().map_or(0, Entries::offset)
    }

    /// Goes to the first entry whose key is not less than `target`. False if there is none.
    ///
    /// In an index, which can be made anew, what cannot be read is left out.
    pub(super) fn seek(&mut self, target: &[u8]) -> Result<bool, StoreError> {
        let Tree { root, height } = self.table.footer.trees[self.section as usize];
        self.levels.clear();
        self.leaf = None;
        if let Some(filled) = &self.filled {
            let mut entries = Entries::new(Arc::clone(filled));
            let found = self.sound(entries.seek(target), &entries)?;
            self.leaf = found.then_some(entries);
            return Ok(found);
        }
        if root.len == 0 {
            return Ok(false);
        }
        match self.descend(root, height, target) {
            Err(error) if self.passes_over(&error) => self.climb(),
            found => found,
        }
    }

    fn descend(
        &mut self,
        mut pointer: Pointer,
        height: u32,
        target: &[u8],
    ) -> Result<bool, StoreError> {
        for _ in 0..height {
            let loaded = self.load(pointer, Kind::Index);
            let mut entries = loaded.inspect_err(|_| self.lost = Some(pointer))?;
            if !self.sound(entries.seek(target), &entries)? {
                return Ok(false);
            }
            pointer = self.sound(Pointer::read(entries.value()), &entries)?;
            self.levels.push(entries);
        }
        let mut leaf = self.load(pointer, self.section.kind())?;
        let found = self.sound(leaf.seek(target), &leaf)?;
        if !found && height > 0 {
            return Err(self
                .table
                .damaged(pointer.offset, "an index is wrong about a block"));
        }
        self.leaf = found.then_some(leaf);
        Ok(found)
    }

    /// Goes to the next entry. False if there is none.
    pub(super) fn advance(&mut self) -> Result<bool, StoreError> {
        let Some(leaf) = &mut self.leaf else {
            return Ok(false);
        };
        let offset = leaf.offset();
        let advanced = leaf.advance().map_err(|_| self.table.senseless(offset));
        match advanced {
            Ok(true) => return Ok(true),
            Err(error) if !self.passes_over(&error) => return Err(error),
            _ => {}
        }
        self.leaf = None;
        self.climb()
    }

    /// Goes to the first entry of the next leaf.
    fn climb(&mut self) -> Result<bool, StoreError> {
        loop {
            match self.try_climb() {
                // What it was about is behind it now.
                Err(error) if self.passes_over(&error) => {}
                climbed => return climbed,
            }
        }
    }

    fn try_climb(&mut self) -> Result<bool, StoreError> {
        while let Some(mut entries) = self.levels.pop() {
            if !self.sound_mut(&mut entries)? {
                continue;
            }
            let pointer = self.sound(Pointer::read(entries.value()), &entries);
            self.levels.push(entries);
            let mut pointer = pointer?;
            let height = self.table.footer.trees[self.section as usize].height as usize;
            while self.levels.len() < height {
                let mut entries = self.load(pointer, Kind::Index)?;
                if !self.sound_mut(&mut entries)? {
                    return Err(self.table.senseless(pointer.offset));
                }
                pointer = self.sound(Pointer::read(entries.value()), &entries)?;
                self.levels.push(entries);
            }
            let mut leaf = self.load(pointer, self.section.kind())?;
            if !self.sound_mut(&mut leaf)? {
                return Err(self.table.senseless(pointer.offset));
            }
            self.leaf = Some(leaf);
            return Ok(true);
        }
        Ok(false)
    }

    /// Whether it goes on behind what cannot be read.
    fn passes_over(&self, error: &StoreError) -> bool {
        let is_index = self.section != Section::Names && !planted!(IndexEndsReads);
        let passes = is_index && error.is_unreadable();
        if passes {
            self.table
                .index_unreadable(self.section == Section::Due, error);
        }
        passes
    }

    fn load(&self, pointer: Pointer, kind: Kind) -> Result<Entries, StoreError> {
        let block = self.table.block(pointer, kind, self.cached)?;
        Ok(Entries::new(block))
    }

    fn sound<T>(&self, result: Result<T, Malformed>, entries: &Entries) -> Result<T, StoreError> {
        result.map_err(|_| self.table.senseless(entries.offset()))
    }

    fn sound_mut(&self, entries: &mut Entries) -> Result<bool, StoreError> {
        let moved = entries.advance();
        self.sound(moved, entries)
    }
}
