//! RocksDB: a log-structured merge tree in C++, Debian's build of it.

use std::path::Path;

use anyhow::Context as _;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType,
    Direction, IteratorMode, Options, WriteBatch, WriteOptions,
};

use super::CACHE_BYTES;
use super::two_tables::{Batch, Tables, TwoTables};
use crate::item::{Key, Place, Value};

const RECORDS: &str = "records";
const KEYS: &str = "keys";

pub(crate) struct Rocks(DB);

struct Changes<'a> {
    batch: WriteBatch,
    of: &'a Rocks,
}

pub(crate) fn open(directory: &Path) -> anyhow::Result<TwoTables<Rocks>> {
    let cache = Cache::new_lru_cache(usize::try_from(CACHE_BYTES)?)?;
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.increase_parallelism(2);
    options.set_max_total_wal_size(512 << 20);
    let family = |name: &str, bloom: bool| {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&cache);
        if bloom {
            blocks.set_bloom_filter(10.0, false);
        }
        let mut options = Options::default();
        options.set_write_buffer_size(64 << 20);
        options.set_compression_type(DBCompressionType::Lz4);
        options.set_block_based_table_factory(&blocks);
        ColumnFamilyDescriptor::new(name, options)
    };
    let families = [family(RECORDS, false), family(KEYS, true)];
    let path = directory.join("rocksdb");
    let database = DB::open_cf_descriptors(&options, path, families)?;
    Ok(TwoTables(Rocks(database)))
}

impl Rocks {
    fn family(&self, name: &str) -> anyhow::Result<&ColumnFamily> {
        self.0.cf_handle(name).context("a column family is missing")
    }

    fn find_place(&self, key: &Key) -> anyhow::Result<Option<Place>> {
        let place = self.0.get_pinned_cf(self.family(KEYS)?, key)?;
        let whole = place.map(|place| Place::try_from(&*place));
        whole.transpose().context("a short place")
    }

    fn find_value(&self, place: &Place) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(self.0.get_cf(self.family(RECORDS)?, place)?)
    }
}

impl Tables for Rocks {
    fn write(
        &mut self,
        body: &mut dyn FnMut(&mut dyn Batch) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let batch = WriteBatch::default();
        let mut changes = Changes { batch, of: self };
        body(&mut changes)?;
        let mut options = WriteOptions::default();
        options.set_sync(true);
        let batch = changes.batch;
        let written = self.0.write_opt(batch, &options);
        written.context("RocksDB did not commit")
    }

    fn place(&mut self, key: &Key) -> anyhow::Result<Option<Place>> {
        self.find_place(key)
    }

    fn value(&mut self, place: &Place) -> anyhow::Result<Option<Vec<u8>>> {
        self.find_value(place)
    }

    fn range(
        &mut self,
        from: &Place,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> anyhow::Result<()> {
        let mode = IteratorMode::From(from, Direction::Forward);
        for row in self.0.iterator_cf(self.family(RECORDS)?, mode) {
            let (place, value) = row?;
            if !visit(&place, &value) {
                break;
            }
        }
        Ok(())
    }
}

impl Batch for Changes<'_> {
    fn put(&mut self, place: &Place, value: &Value) -> anyhow::Result<()> {
        self.batch.put_cf(self.of.family(RECORDS)?, place, value);
        Ok(())
    }

    fn put_key(&mut self, key: &Key, place: &Place) -> anyhow::Result<()> {
        self.batch.put_cf(self.of.family(KEYS)?, key, place);
        Ok(())
    }

    fn delete(&mut self, place: &Place) -> anyhow::Result<()> {
        self.batch.delete_cf(self.of.family(RECORDS)?, place);
        Ok(())
    }

    fn delete_key(&mut self, key: &Key) -> anyhow::Result<()> {
        self.batch.delete_cf(self.of.family(KEYS)?, key);
        Ok(())
    }

    fn place(&mut self, key: &Key) -> anyhow::Result<Option<Place>> {
        self.of.find_place(key)
    }

    fn value(&mut self, place: &Place) -> anyhow::Result<Option<Vec<u8>>> {
        self.of.find_value(place)
    }
}
