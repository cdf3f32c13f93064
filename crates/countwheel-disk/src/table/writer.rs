//! Writes tables: records as they come, in order, then the indexes over them, the filter and the
//! footer.

use std::io;
use std::sync::Arc;

use super::block::Builder;
use super::directory::{Directory, Purpose};
use super::filter::{self, Filter};
use super::format::{
    Footer, Kind, LARGE_BYTES, Malformed, Packer, Pointer, SHARD_BYTES, TablePlace, Tree, Value,
};
use super::reader::Table;
use crate::DueClock;
use crate::codec::Indexed;
use crate::files::StoreFile;
use crate::sorted::{Listener, share};
use crate::{Position, StoreError};

/// So many bytes are written at a time.
const WRITE_BYTES: usize = 1 << 20;
/// After so many bytes they are synced: a commit of the log that comes meanwhile waits for what
/// the system has to write before it, and that is no more than this.
const SYNC_BYTES: u64 = 4 << 20;
/// After so many entries it says how far it is.
const TOLD_EVERY: usize = 512;
/// Sets aside for one table in memory at most: the names and what is indexed of them.
const INDEX_MAX_BYTES: usize = 256 << 20;

/// What becomes of a name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    Tombstone,
    /// A record without its name, and where it stands in the indexes.
    Record(&'a [u8], Indexed),
    /// A record that cannot be read, and where it stands in the indexes.
    Unreadable(Indexed),
}

/// Writes tables of bounded size, one after the other. What was written is removed again unless
/// it is finished.
pub(super) struct RunWriter {
    directory: Arc<Directory>,
    purpose: Purpose,
    newest: u64,
    current: Option<TableWriter>,
    finished: Vec<Arc<Table>>,
    kept: bool,
    told: Told,
}

/// Who is told how far it is.
#[derive(Default)]
struct Told {
    listener: Option<Listener>,
    /// How many entries of how many were written, of the records and of each index.
    done: usize,
    all: usize,
}

impl Told {
    fn one_more(&mut self) {
        self.done += 1;
        if let Some(listener) = &self.listener
            && self.done.is_multiple_of(TOLD_EVERY)
        {
            listener(share(self.done as u64, self.all as u64));
        }
    }
}

impl RunWriter {
    /// `newest` is the last segment of which something is written.
    pub(super) fn new(directory: &Arc<Directory>, purpose: Purpose, newest: u64) -> Self {
        Self {
            directory: Arc::clone(directory),
            purpose,
            newest,
            current: None,
            finished: Vec::new(),
            kept: false,
            told: Told::default(),
        }
    }

    /// Says how far it is from now on, when so many records are to be written.
    pub(super) fn tell(&mut self, listener: &Listener, records: usize) {
        self.told = Told {
            listener: Some(Arc::clone(listener)),
            done: 0,
            all: 3 * records,
        };
    }

    /// Adds a name, which comes after all before it.
    pub(super) fn add(&mut self, key: &[u8], content: Content<'_>) -> Result<(), StoreError> {
        let full = |table: &TableWriter| table.bytes() >= self.directory.options.table_bytes;
        if self.current.as_ref().is_some_and(full) {
            self.finish_table()?;
        }
        if self.current.is_none() {
            self.current = Some(TableWriter::begin(&self.directory, self.purpose)?);
        }
        self.told.one_more();
        match &mut self.current {
            Some(table) => table.add(&self.directory, key, content),
            None => Ok(()),
        }
    }

    /// The tables, every one synced, but not their names.
    pub(super) fn finish(&mut self) -> Result<Vec<Arc<Table>>, StoreError> {
        self.finish_table()?;
        self.kept = true;
        Ok(std::mem::take(&mut self.finished))
    }

    fn finish_table(&mut self) -> Result<(), StoreError> {
        if let Some(table) = &mut self.current {
            let table = table.finish(&self.directory, self.newest, &mut self.told)?;
            self.finished.push(table);
            self.current = None;
        }
        Ok(())
    }
}

impl Drop for RunWriter {
    fn drop(&mut self) {
        if let Some(table) = self.current.take() {
            self.directory.discard(&Directory::table_name(table.number));
        }
        if !self.kept {
            for table in &self.finished {
                table.discard();
            }
        }
    }
}

/// A table that grows.
struct TableWriter {
    number: u64,
    out: Out,
    block_bytes: usize,
    names: TreeWriter,
    footer: Footer,
    first_key: Vec<u8>,
    /// The keys of the records, one after the other.
    keys: Vec<u8>,
    entries: Vec<IndexEntry>,
    hashes: Vec<u64>,
    value: Vec<u8>,
}

/// Where a record is to stand in the indexes.
struct IndexEntry {
    key_at: u32,
    key_len: u16,
    /// Bytes of the key up to and with the end of the queue's name.
    queue_len: u16,
    /// Queues are numbered in order.
    queue: u32,
    shard: [u8; SHARD_BYTES],
    indexed: Indexed,
}

impl TableWriter {
    fn begin(directory: &Arc<Directory>, purpose: Purpose) -> Result<Self, StoreError> {
        let number = directory.next_file();
        let name = Directory::table_name(number);
        let file = directory.files.begin(&name).map_err(|error| {
            // A disk that is full may have made it all the same.
            if error.kind() != io::ErrorKind::AlreadyExists {
                directory.discard(&name);
            }
            directory.write_failed(error)
        })?;
        Ok(Self {
            number,
            out: Out {
                directory: Arc::clone(directory),
                purpose,
                file,
                place: TablePlace {
                    store_id: directory.store_id,
                    file: number,
                },
                written: 0,
                synced: 0,
                packer: Packer::default(),
                buffer: Vec::with_capacity(WRITE_BYTES),
                checksums: crc32fast::Hasher::new(),
            },
            block_bytes: directory.options.block_bytes,
            names: TreeWriter::new(Kind::Records),
            footer: Footer::default(),
            first_key: Vec::new(),
            keys: Vec::new(),
            entries: Vec::new(),
            hashes: Vec::new(),
            value: Vec::new(),
        })
    }

    /// About how long it is going to be.
    fn bytes(&self) -> u64 {
        let memory = self.keys.len() + self.entries.len() * size_of::<IndexEntry>();
        if memory >= INDEX_MAX_BYTES {
            return u64::MAX;
        }
        let names = self.keys.len() as u64;
        self.out.end() + 2 * names + 24 * self.entries.len() as u64
    }

    fn add(
        &mut self,
        directory: &Arc<Directory>,
        key: &[u8],
        content: Content<'_>,
    ) -> Result<(), StoreError> {
        if self.hashes.is_empty() {
            self.first_key = key.to_vec();
        }
        self.hashes.push(filter::hash(key));
        self.value.clear();
        match content {
            Content::Tombstone => {
                self.footer.tombstones += 1;
                Value::Tombstone.write(&mut self.value);
            }
            Content::Unreadable(indexed) => {
                self.footer.records += 1;
                self.index(key, indexed);
                Value::Unreadable(indexed).write(&mut self.value);
            }
            Content::Record(stripped, indexed) => {
                self.footer.records += 1;
                self.index(key, indexed);
                if stripped.len() > LARGE_BYTES {
                    let pointer = self.out.frame(Kind::Large, stripped);
                    let pointer = pointer.map_err(|error| directory.write_failed(error))?;
                    Value::Large(pointer).write(&mut self.value);
                } else {
                    Value::Inline(stripped).write(&mut self.value);
                }
            }
        }
        let pushed = self
            .names
            .push(&mut self.out, self.block_bytes, key, &self.value);
        pushed.map_err(|error| directory.write_failed(error))
    }

    fn index(&mut self, key: &[u8], indexed: Indexed) {
        let queue_len = queue_len(key);
        let same_queue = self.entries.last().filter(|last| {
            let before = &self.keys[last.key_at as usize..];
            before[..usize::from(last.queue_len)] == key[..queue_len]
        });
        let queue = match (same_queue, self.entries.last()) {
            (Some(last), _) => last.queue,
            (None, Some(last)) => last.queue + 1,
            (None, None) => 0,
        };
        self.entries.push(IndexEntry {
            key_at: u32::try_from(self.keys.len()).unwrap_or(u32::MAX),
            key_len: u16::try_from(key.len()).unwrap_or(u16::MAX),
            queue_len: u16::try_from(queue_len).unwrap_or(u16::MAX),
            queue,
            shard: *key.first_chunk().unwrap_or(&[0; SHARD_BYTES]),
            indexed,
        });
        self.keys.extend_from_slice(key);
    }

    /// Writes what is left, syncs, and opens what was written.
    fn finish(
        &mut self,
        directory: &Arc<Directory>,
        newest: u64,
        told: &mut Told,
    ) -> Result<Arc<Table>, StoreError> {
        self.footer.newest = newest;
        let last_key = self.names.last_key().to_vec();
        let (length, checksum, filter) = self
            .write_rest(told)
            .map_err(|error| directory.write_failed(error))?;
        let synced = self.out.file.sync();
        synced.map_err(|error| directory.write_failed(error))?;
        let entry = super::manifest::TableEntry {
            number: self.number,
            length,
            checksum,
            records: self.footer.records,
            first_key: std::mem::take(&mut self.first_key),
            last_key,
        };
        Ok(Arc::new(Table::written(
            directory,
            Arc::clone(&self.out.file),
            entry,
            self.footer,
            filter,
        )))
    }

    fn write_rest(&mut self, told: &mut Told) -> io::Result<(u64, u32, Filter)> {
        let by_name = self.names.finish(&mut self.out)?;
        let by_due = self.write_due(told)?;
        let by_queue = self.write_list(told)?;
        self.footer.trees = [by_name, by_due, by_queue];
        let filter = Filter::of(&self.hashes);
        self.footer.filter = self.out.frame(Kind::Filter, filter.bytes())?;
        self.footer.content = self.out.checksums.clone().finalize();
        let body = self.footer.write();
        let checksum = self
            .out
            .place
            .checksum(self.out.end(), Kind::Footer as u8, &body);
        self.out.frame(Kind::Footer, &body)?;
        self.out.flush()?;
        Ok((self.out.end(), checksum, filter))
    }

    fn write_due(&mut self, told: &mut Told) -> io::Result<Tree> {
        let keys = &self.keys;
        self.entries.sort_unstable_by_key(|entry| {
            let wake = entry.indexed.wake.unwrap_or_default();
            (entry.shard, entry.indexed.clock, wake)
        });
        let mut tree = TreeWriter::new(Kind::Due);
        for entry in &self.entries {
            told.one_more();
            let Some(wake) = entry.indexed.wake else {
                continue;
            };
            self.footer.dues += 1;
            let key = due_key(entry.shard, entry.indexed.clock, wake);
            let name = &entry.key(keys)[SHARD_BYTES..];
            self.footer
                .due_value(name, entry.indexed.kind, &mut self.value);
            tree.push(&mut self.out, self.block_bytes, &key, &self.value)?;
        }
        tree.finish(&mut self.out)
    }

    fn write_list(&mut self, told: &mut Told) -> io::Result<Tree> {
        let keys = &self.keys;
        self.entries.sort_unstable_by_key(|entry| {
            let Indexed { kind, position, .. } = entry.indexed;
            (entry.queue, kind as u8, position)
        });
        let mut tree = TreeWriter::new(Kind::List);
        let mut list_key = Vec::new();
        for entry in &self.entries {
            told.one_more();
            let key = entry.key(keys);
            let (queue, key) = key.split_at(usize::from(entry.queue_len));
            let Indexed { kind, position, .. } = entry.indexed;
            list_key.clear();
            list_key.extend_from_slice(queue);
            list_key.push(kind as u8);
            put_position(&mut list_key, position);
            tree.push(&mut self.out, self.block_bytes, &list_key, key)?;
        }
        tree.finish(&mut self.out)
    }
}

impl IndexEntry {
    fn key<'a>(&self, keys: &'a [u8]) -> &'a [u8] {
        let at = self.key_at as usize;
        &keys[at..at + usize::from(self.key_len)]
    }
}

/// The bytes of a key up to and with the NUL behind the queue's name.
pub(super) fn queue_len(key: &[u8]) -> usize {
    let name = key.get(SHARD_BYTES..).unwrap_or_default();
    let end = name.iter().position(|&byte| byte == 0);
    end.map_or(key.len(), |end| SHARD_BYTES + end + 1)
}

/// The key of a wake: shard, clock, time, revision.
pub(super) fn due_key(shard: [u8; SHARD_BYTES], clock: DueClock, wake: crate::Wake) -> Vec<u8> {
    let mut key = Vec::with_capacity(SHARD_BYTES + 17);
    key.extend_from_slice(&shard);
    key.push(clock as u8);
    put_position(
        &mut key,
        Position {
            due: wake.at,
            revision: wake.revision,
        },
    );
    key
}

pub(super) fn put_position(out: &mut Vec<u8>, position: Position) {
    out.extend_from_slice(&position.due.as_micros().to_be_bytes());
    out.extend_from_slice(&position.revision.0.to_be_bytes());
}

/// Entries in order, in blocks, and the indexes over them, a level for each.
struct TreeWriter {
    kind: Kind,
    leaf: Builder,
    levels: Vec<Builder>,
    /// Whether a block of the level was written already.
    written: Vec<bool>,
    last_key: Vec<u8>,
}

impl TreeWriter {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            leaf: Builder::default(),
            levels: Vec::new(),
            written: Vec::new(),
            last_key: Vec::new(),
        }
    }

    fn push(
        &mut self,
        out: &mut Out,
        block_bytes: usize,
        key: &[u8],
        value: &[u8],
    ) -> io::Result<()> {
        self.leaf.push(key, value);
        if self.leaf.len() >= block_bytes {
            self.write_leaf(out)?;
            for level in 0..self.levels.len() {
                // One more level needs two entries at least, or it would be no use.
                if self.levels[level].len() >= block_bytes && self.levels[level].entries() > 1 {
                    self.write_level(out, level)?;
                }
            }
        }
        Ok(())
    }

    fn last_key(&self) -> &[u8] {
        if self.leaf.entries() > 0 {
            self.leaf.last_key()
        } else {
            &self.last_key
        }
    }

    fn finish(&mut self, out: &mut Out) -> io::Result<Tree> {
        if self.leaf.entries() > 0 {
            self.write_leaf(out)?;
        }
        for level in 0.. {
            let Some(pending) = self.levels.get_mut(level) else {
                break;
            };
            if !self.written[level] && pending.entries() == 1 {
                // One block is all there is below: it is the root.
                let root = only_pointer(pending.take());
                return Ok(Tree {
                    root: root.map_err(|_| io::Error::other("an index has no root"))?,
                    height: u32::try_from(level).unwrap_or(u32::MAX),
                });
            }
            if pending.entries() > 0 {
                self.write_level(out, level)?;
            }
        }
        Ok(Tree::default())
    }

    fn write_leaf(&mut self, out: &mut Out) -> io::Result<()> {
        self.last_key.clear();
        self.last_key.extend_from_slice(self.leaf.last_key());
        let pointer = out.frame(self.kind, &self.leaf.take())?;
        let key = std::mem::take(&mut self.last_key);
        self.point(0, &key, pointer);
        self.last_key = key;
        Ok(())
    }

    fn write_level(&mut self, out: &mut Out, level: usize) -> io::Result<()> {
        let key = self.levels[level].last_key().to_vec();
        let pointer = out.frame(Kind::Index, &self.levels[level].take())?;
        self.written[level] = true;
        self.point(level + 1, &key, pointer);
        Ok(())
    }

    fn point(&mut self, level: usize, key: &[u8], pointer: Pointer) {
        if self.levels.len() == level {
            self.levels.push(Builder::default());
            self.written.push(false);
        }
        let mut value = Vec::with_capacity(12);
        pointer.write(&mut value);
        self.levels[level].push(key, &value);
    }
}

/// The pointer of an index with one entry.
fn only_pointer(body: Vec<u8>) -> Result<Pointer, Malformed> {
    let block = super::block::Block::new(body, 0, 0)?;
    let mut entries = super::block::Entries::new(Arc::new(block));
    if !entries.advance()? {
        return Err(Malformed);
    }
    Pointer::read(entries.value())
}

/// The end of a file that grows.
struct Out {
    directory: Arc<Directory>,
    purpose: Purpose,
    file: Arc<dyn StoreFile>,
    place: TablePlace,
    written: u64,
    synced: u64,
    packer: Packer,
    buffer: Vec<u8>,
    checksums: crc32fast::Hasher,
}

impl Out {
    /// Where the next frame is to stand.
    fn end(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn frame(&mut self, kind: Kind, body: &[u8]) -> io::Result<Pointer> {
        let offset = self.end();
        let (byte, body) = match kind {
            Kind::Records | Kind::Due | Kind::List | Kind::Large => self.packer.pack(kind, body),
            // Small, or without any order; and the footer's length has to be known.
            Kind::Index | Kind::Filter | Kind::Footer | Kind::Manifest => (kind as u8, body),
        };
        let len = u32::try_from(body.len()).map_err(io::Error::other)?;
        let begin = self.buffer.len();
        self.place.write(offset, byte, body, &mut self.buffer);
        self.checksums.update(&self.buffer[begin..begin + 4]);
        if self.buffer.len() >= WRITE_BYTES {
            self.flush()?;
        }
        Ok(Pointer { offset, len })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_at(self.written, &self.buffer)?;
        let written = self.buffer.len() as u64;
        self.directory.count_written(self.purpose, written);
        self.written += written;
        self.buffer.clear();
        if self.written - self.synced >= SYNC_BYTES {
            self.file.sync()?;
            self.synced = self.written;
        }
        Ok(())
    }
}
