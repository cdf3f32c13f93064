//! fjall: a log-structured merge tree in Rust.

use std::path::Path;

use anyhow::Context as _;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::CACHE_BYTES;
use super::two_tables::{Batch, Tables, TwoTables};
use crate::item::{Key, Place, Value};

pub(crate) struct Fjall {
    database: Database,
    records: Keyspace,
    keys: Keyspace,
}

struct Changes<'a> {
    batch: fjall::OwnedWriteBatch,
    of: &'a Fjall,
}

pub(crate) fn open(directory: &Path) -> anyhow::Result<TwoTables<Fjall>> {
    let database = Database::builder(directory.join("fjall"))
        .cache_size(CACHE_BYTES)
        .max_journaling_size(512 << 20)
        .worker_threads(2)
        .open()?;
    let options = || KeyspaceCreateOptions::default().max_memtable_size(64 << 20);
    let records = database.keyspace("records", options)?;
    let keys = database.keyspace("keys", options)?;
    Ok(TwoTables(Fjall {
        database,
        records,
        keys,
    }))
}

impl Tables for Fjall {
    fn write(
        &mut self,
        body: &mut dyn FnMut(&mut dyn Batch) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let batch = self
            .database
            .batch()
            .durability(Some(PersistMode::SyncData));
        let mut changes = Changes { batch, of: self };
        body(&mut changes)?;
        changes.batch.commit().context("fjall did not commit")
    }

    fn place(&mut self, key: &Key) -> anyhow::Result<Option<Place>> {
        place_of(&self.keys, key)
    }

    fn value(&mut self, place: &Place) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(self.records.get(place)?.map(|value| value.to_vec()))
    }

    fn range(
        &mut self,
        from: &Place,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> anyhow::Result<()> {
        for row in self.records.range(&from[..]..) {
            let (place, value) = row.into_inner()?;
            if !visit(&place, &value) {
                break;
            }
        }
        Ok(())
    }
}

impl Batch for Changes<'_> {
    fn put(&mut self, place: &Place, value: &Value) -> anyhow::Result<()> {
        self.batch.insert(&self.of.records, &place[..], &value[..]);
        Ok(())
    }

    fn put_key(&mut self, key: &Key, place: &Place) -> anyhow::Result<()> {
        self.batch.insert(&self.of.keys, &key[..], &place[..]);
        Ok(())
    }

    fn delete(&mut self, place: &Place) -> anyhow::Result<()> {
        self.batch.remove(&self.of.records, &place[..]);
        Ok(())
    }

    fn delete_key(&mut self, key: &Key) -> anyhow::Result<()> {
        self.batch.remove(&self.of.keys, &key[..]);
        Ok(())
    }

    fn place(&mut self, key: &Key) -> anyhow::Result<Option<Place>> {
        place_of(&self.of.keys, key)
    }

    fn value(&mut self, place: &Place) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(self.of.records.get(place)?.map(|value| value.to_vec()))
    }
}

fn place_of(keys: &Keyspace, key: &Key) -> anyhow::Result<Option<Place>> {
    let place = keys.get(key)?;
    let whole = place.map(|place| Place::try_from(&*place));
    whole.transpose().context("a short place")
}
