//! redb: a copy-on-write B-tree in Rust.

use std::path::Path;

use anyhow::Context as _;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, Table, TableDefinition};

use super::CACHE_BYTES;
use super::two_tables::{Batch, Tables, TwoTables};
use crate::item::{KEY_BYTES, Key, PLACE_BYTES, Place, VALUE_BYTES, Value};

const RECORDS: TableDefinition<'_, &[u8; PLACE_BYTES], &[u8]> = TableDefinition::new("records");
const KEYS: TableDefinition<'_, &[u8; KEY_BYTES], &[u8; PLACE_BYTES]> =
    TableDefinition::new("keys");

pub(crate) struct Redb(Database);

struct Both<'t> {
    records: Table<'t, &'static [u8; PLACE_BYTES], &'static [u8]>,
    keys: Table<'t, &'static [u8; KEY_BYTES], &'static [u8; PLACE_BYTES]>,
}

pub(crate) fn open(directory: &Path) -> anyhow::Result<TwoTables<Redb>> {
    let cache = usize::try_from(CACHE_BYTES)?;
    let database = Database::builder()
        .set_cache_size(cache)
        .create(directory.join("redb"))?;
    let begin = database.begin_write()?;
    begin.open_table(RECORDS)?;
    begin.open_table(KEYS)?;
    begin.commit()?;
    Ok(TwoTables(Redb(database)))
}

impl Tables for Redb {
    fn write(
        &mut self,
        body: &mut dyn FnMut(&mut dyn Batch) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let write = self.0.begin_write()?;
        body(&mut Both {
            records: write.open_table(RECORDS)?,
            keys: write.open_table(KEYS)?,
        })?;
        write.commit().context("redb did not commit")
    }

    fn place(&mut self, key: &Key) -> anyhow::Result<Option<Place>> {
        let read = self.0.begin_read()?;
        Ok(read.open_table(KEYS)?.get(key)?.map(|place| *place.value()))
    }

    fn value(&mut self, place: &Place) -> anyhow::Result<Option<Vec<u8>>> {
        let read = self.0.begin_read()?;
        let value = read.open_table(RECORDS)?.get(place)?;
        Ok(value.map(|value| value.value().to_vec()))
    }

    fn range(
        &mut self,
        from: &Place,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> anyhow::Result<()> {
        let read = self.0.begin_read()?;
        for row in read.open_table(RECORDS)?.range::<&Place>(from..)? {
            let (place, value) = row?;
            if !visit(place.value(), value.value()) {
                break;
            }
        }
        Ok(())
    }
}

impl Batch for Both<'_> {
    fn put(&mut self, place: &Place, value: &Value) -> anyhow::Result<()> {
        let value: &[u8; VALUE_BYTES] = value;
        self.records.insert(place, &value[..])?;
        Ok(())
    }

    fn put_key(&mut self, key: &Key, place: &Place) -> anyhow::Result<()> {
        self.keys.insert(key, place)?;
        Ok(())
    }

    fn delete(&mut self, place: &Place) -> anyhow::Result<()> {
        self.records.remove(place)?;
        Ok(())
    }

    fn delete_key(&mut self, key: &Key) -> anyhow::Result<()> {
        self.keys.remove(key)?;
        Ok(())
    }

    fn place(&mut self, key: &Key) -> anyhow::Result<Option<Place>> {
        Ok(self.keys.get(key)?.map(|place| *place.value()))
    }

    fn value(&mut self, place: &Place) -> anyhow::Result<Option<Vec<u8>>> {
        let value = self.records.get(place)?;
        Ok(value.map(|value| value.value().to_vec()))
    }
}
