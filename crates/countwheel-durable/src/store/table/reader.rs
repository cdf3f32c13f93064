//! Reads a table: by name, and in order from any place in one of its three trees.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::block::{Block, Entries};
use super::directory::{Directory, not_a_store};
use super::filter::Filter;
use super::format::{
    FRAME_HEADER, Footer, Kind, Malformed, Place, Pointer, Tree, Value, footer_pointer,
};
use super::manifest::TableEntry;
use crate::store::StoreError;
use crate::store::files::StoreFile;

/// A table that was finished. Its file is removed with it, once it was replaced.
#[derive(Debug)]
pub(super) struct Table {
    directory: Arc<Directory>,
    file: Arc<dyn StoreFile>,
    pub(super) entry: TableEntry,
    pub(super) footer: Footer,
    filter: OnceLock<Filter>,
    discarded: AtomicBool,
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
            filter: OnceLock::from(filter),
            discarded: AtomicBool::new(false),
        }
    }

    /// Lets its file go once nobody reads it any more.
    pub(super) fn discard(&self) {
        self.discarded.store(true, Ordering::SeqCst);
    }

    pub(super) fn name(&self) -> String {
        Directory::table_name(self.entry.number)
    }

    pub(super) fn damaged(&self, offset: u64, problem: &str) -> StoreError {
        self.directory.corrupt(&self.name(), offset, problem)
    }

    fn place(&self) -> Place {
        Place {
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
        read.map_err(|error| super::directory::io_error(&*self.directory.files, error))?;
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

    pub(super) fn senseless(&self, offset: u64) -> StoreError {
        self.damaged(offset, "a block makes no sense")
    }

    /// The filter, which is read when it is first needed, and kept.
    pub(super) fn filter(&self) -> Result<&Filter, StoreError> {
        if let Some(filter) = self.filter.get() {
            return Ok(filter);
        }
        let pointer = self.footer.filter;
        let bytes = self.frame(pointer, Kind::Filter)?;
        let filter = Filter::read(bytes[FRAME_HEADER..].to_vec())
            .map_err(|_| self.senseless(pointer.offset))?;
        Ok(self.filter.get_or_init(|| filter))
    }

    /// False if the name is certainly not here.
    pub(super) fn may_contain(&self, key: &[u8], hash: u64) -> Result<bool, StoreError> {
        Ok(key >= self.entry.first_key.as_slice()
            && key <= self.entry.last_key.as_slice()
            && self.filter()?.may_contain(hash))
    }

    /// Where the name stands; `None` if it is not here.
    pub(super) fn find(self: &Arc<Self>, key: &[u8]) -> Result<Option<Cursor>, StoreError> {
        let mut cursor = Cursor::new(Arc::clone(self), Section::Names, true);
        let found = cursor.seek(key)? && cursor.key() == key;
        Ok(found.then_some(cursor))
    }

    /// The bytes of a record without its name; `None` if it was removed.
    pub(super) fn stripped(&self, value: &[u8], at: u64) -> Result<Option<Vec<u8>>, StoreError> {
        match Value::read(value).map_err(|_| self.senseless(at))? {
            Value::Tombstone => Ok(None),
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
        }
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
    pub(super) fn seek(&mut self, target: &[u8]) -> Result<bool, StoreError> {
        let Tree { root, height } = self.table.footer.trees[self.section as usize];
        self.levels.clear();
        self.leaf = None;
        if root.len == 0 {
            return Ok(false);
        }
        let mut pointer = root;
        for _ in 0..height {
            let mut entries = self.load(pointer, Kind::Index)?;
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
        if leaf.advance().map_err(|_| self.table.senseless(offset))? {
            return Ok(true);
        }
        self.leaf = None;
        while let Some(mut entries) = self.levels.pop() {
            if !self.sound_mut(&mut entries)? {
                continue;
            }
            let mut pointer = self.sound(Pointer::read(entries.value()), &entries)?;
            self.levels.push(entries);
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
