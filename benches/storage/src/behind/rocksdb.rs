//! RocksDB behind the log: a segment is one file that it takes in; its write-ahead log and its
//! memtables stay empty.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rocksdb::properties::num_files_at_level;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Direction, IngestExternalFileOptions,
    IteratorMode, Options, ReadOptions, SstFileWriter,
};

use super::{Library, Put, Rows};
use crate::peer::CACHE_BYTES;

pub(crate) struct Rocks {
    database: DB,
    options: Options,
    /// Where a file is written before it is taken in; on the same file system, so that it is not
    /// copied.
    next: PathBuf,
}

impl Library for Rocks {
    type Bytes = Box<[u8]>;

    fn open(directory: &Path) -> anyhow::Result<Self> {
        let cache = Cache::new_lru_cache(usize::try_from(CACHE_BYTES)?)?;
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&cache);
        blocks.set_bloom_filter(10.0, false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.increase_parallelism(2);
        options.set_compression_type(DBCompressionType::Lz4);
        options.set_block_based_table_factory(&blocks);
        let database = DB::open(&options, directory)?;
        let next = directory.with_extension("next");
        Ok(Self {
            database,
            options,
            next,
        })
    }

    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Box<[u8]>>> {
        let found = self.database.get_pinned(key)?;
        Ok(found.map(|bytes| Box::from(&*bytes)))
    }

    fn range(&self, from: &[u8], end: &[u8]) -> Rows<'_, Box<[u8]>> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(end);
        let mode = IteratorMode::From(from, Direction::Forward);
        let rows = self.database.iterator_opt(mode, options);
        Box::new(rows.map(|row| Ok(row?)))
    }

    fn ingest(&self, fill: &mut dyn FnMut(Put<'_>) -> anyhow::Result<()>) -> anyhow::Result<()> {
        if self.next.exists() {
            fs::remove_file(&self.next)?;
        }
        let mut writer = SstFileWriter::create(&self.options);
        writer.open(&self.next)?;
        fill(&mut |key, value| {
            match value {
                Some(value) => writer.put(key, value)?,
                None => writer.delete(key)?,
            }
            Ok(())
        })?;
        writer.finish()?;
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        let taken = self
            .database
            .ingest_external_file_opts(&options, vec![&self.next]);
        taken.context("RocksDB did not take the file in")
    }

    fn runs(&self) -> usize {
        let found = self.database.property_int_value(num_files_at_level(0));
        let runs = found.ok().flatten().unwrap_or(0);
        usize::try_from(runs).unwrap_or(usize::MAX)
    }
}
