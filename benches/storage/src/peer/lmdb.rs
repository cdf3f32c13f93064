//! LMDB: a copy-on-write B-tree in C, in a memory map.

use std::ops::Bound;
use std::path::Path;

use anyhow::Context as _;
use heed::types::Bytes;
use heed::{Database, Env, EnvOpenOptions, RwTxn};

use super::two_tables::{Batch, Tables, TwoTables};
use crate::item::{Key, Place, Value};

/// How far the map may grow: address space, not memory.
const MAP_BYTES: usize = 1 << 40;

pub(crate) struct Lmdb {
    environment: Env,
    records: Database<Bytes, Bytes>,
    keys: Database<Bytes, Bytes>,
}

struct Changes<'a, 't> {
    write: &'a mut RwTxn<'t>,
    records: Database<Bytes, Bytes>,
    keys: Database<Bytes, Bytes>,
}

pub(crate) fn open(directory: &Path) -> anyhow::Result<TwoTables<Lmdb>> {
    let path = directory.join("lmdb");
    std::fs::create_dir_all(&path)?;
    let mut options = EnvOpenOptions::new();
    options.map_size(MAP_BYTES).max_dbs(2);
    #[expect(
        unsafe_code,
        reason = "the map is undefined if another process changes the file: this directory is ours alone"
    )]
    let environment = unsafe { options.open(path)? };
    let mut write = environment.write_txn()?;
    let records = environment.create_database(&mut write, Some("records"))?;
    let keys = environment.create_database(&mut write, Some("keys"))?;
    write.commit()?;
    Ok(TwoTables(Lmdb {
        environment,
        records,
        keys,
    }))
}

impl Tables for Lmdb {
    fn write(
        &mut self,
        body: &mut dyn FnMut(&mut dyn Batch) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut write = self.environment.write_txn()?;
        body(&mut Changes {
            write: &mut write,
            records: self.records,
            keys: self.keys,
        })?;
        write.commit().context("LMDB did not commit")
    }

    fn place(&mut self, key: &Key) -> anyhow::Result<Option<Place>> {
        let read = self.environment.read_txn()?;
        whole(self.keys.get(&read, key)?)
    }

    fn value(&mut self, place: &Place) -> anyhow::Result<Option<Vec<u8>>> {
        let read = self.environment.read_txn()?;
        Ok(self.records.get(&read, place)?.map(<[u8]>::to_vec))
    }

    fn range(
        &mut self,
        from: &Place,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> anyhow::Result<()> {
        let read = self.environment.read_txn()?;
        let from: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(from), Bound::Unbounded);
        for row in self.records.range(&read, &from)? {
            let (place, value) = row?;
            if !visit(place, value) {
                break;
            }
        }
        Ok(())
    }
}

impl Batch for Changes<'_, '_> {
    fn put(&mut self, place: &Place, value: &Value) -> anyhow::Result<()> {
        Ok(self.records.put(self.write, place, value)?)
    }

    fn put_key(&mut self, key: &Key, place: &Place) -> anyhow::Result<()> {
        Ok(self.keys.put(self.write, key, place)?)
    }

    fn delete(&mut self, place: &Place) -> anyhow::Result<()> {
        self.records.delete(self.write, place)?;
        Ok(())
    }

    fn delete_key(&mut self, key: &Key) -> anyhow::Result<()> {
        self.keys.delete(self.write, key)?;
        Ok(())
    }

    fn place(&mut self, key: &Key) -> anyhow::Result<Option<Place>> {
        whole(self.keys.get(self.write, key)?)
    }

    fn value(&mut self, place: &Place) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(self.records.get(self.write, place)?.map(<[u8]>::to_vec))
    }
}

fn whole(place: Option<&[u8]>) -> anyhow::Result<Option<Place>> {
    let whole = place.map(Place::try_from);
    whole.transpose().context("a short place")
}
