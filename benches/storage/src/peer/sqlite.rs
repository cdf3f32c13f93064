//! SQLite: a B-tree in C, with a write-ahead log.

use std::path::Path;

use anyhow::Context as _;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::CACHE_BYTES;
use super::two_tables::{Batch, Tables, TwoTables};
use crate::item::{Key, Place, Value};

pub(crate) struct Sqlite(Connection);

struct Changes<'a>(&'a Connection);

pub(crate) fn open(directory: &Path) -> anyhow::Result<TwoTables<Sqlite>> {
    let connection = Connection::open(directory.join("sqlite"))?;
    connection.execute_batch(&format!(
        "PRAGMA page_size = 4096;
         PRAGMA locking_mode = EXCLUSIVE;
         PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA wal_autocheckpoint = 16384;
         PRAGMA cache_size = -{};
         CREATE TABLE IF NOT EXISTS records (place BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID;
         CREATE TABLE IF NOT EXISTS keys (key BLOB PRIMARY KEY, place BLOB) WITHOUT ROWID;",
        CACHE_BYTES >> 10
    ))?;
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    anyhow::ensure!(mode == "wal", "SQLite took the journal mode {mode}");
    Ok(TwoTables(Sqlite(connection)))
}

impl Tables for Sqlite {
    fn write(
        &mut self,
        body: &mut dyn FnMut(&mut dyn Batch) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let write = self.0.transaction()?;
        body(&mut Changes(&write))?;
        write.commit().context("SQLite did not commit")
    }

    fn place(&mut self, key: &Key) -> anyhow::Result<Option<Place>> {
        place_of(&self.0, key)
    }

    fn value(&mut self, place: &Place) -> anyhow::Result<Option<Vec<u8>>> {
        value_of(&self.0, place)
    }

    fn range(
        &mut self,
        from: &Place,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> anyhow::Result<()> {
        let mut select = self
            .0
            .prepare_cached("SELECT place, value FROM records WHERE place >= ? ORDER BY place")?;
        let mut rows = select.query([&from[..]])?;
        while let Some(row) = rows.next()? {
            if !visit(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?) {
                break;
            }
        }
        Ok(())
    }
}

impl Batch for Changes<'_> {
    fn put(&mut self, place: &Place, value: &Value) -> anyhow::Result<()> {
        let mut insert = self
            .0
            .prepare_cached("INSERT OR REPLACE INTO records VALUES (?, ?)")?;
        insert.execute(params![&place[..], &value[..]])?;
        Ok(())
    }

    fn put_key(&mut self, key: &Key, place: &Place) -> anyhow::Result<()> {
        let mut insert = self
            .0
            .prepare_cached("INSERT OR REPLACE INTO keys VALUES (?, ?)")?;
        insert.execute(params![&key[..], &place[..]])?;
        Ok(())
    }

    fn delete(&mut self, place: &Place) -> anyhow::Result<()> {
        let mut delete = self
            .0
            .prepare_cached("DELETE FROM records WHERE place = ?")?;
        delete.execute([&place[..]])?;
        Ok(())
    }

    fn delete_key(&mut self, key: &Key) -> anyhow::Result<()> {
        let mut delete = self.0.prepare_cached("DELETE FROM keys WHERE key = ?")?;
        delete.execute([&key[..]])?;
        Ok(())
    }

    fn place(&mut self, key: &Key) -> anyhow::Result<Option<Place>> {
        place_of(self.0, key)
    }

    fn value(&mut self, place: &Place) -> anyhow::Result<Option<Vec<u8>>> {
        value_of(self.0, place)
    }
}

fn place_of(connection: &Connection, key: &Key) -> anyhow::Result<Option<Place>> {
    let mut select = connection.prepare_cached("SELECT place FROM keys WHERE key = ?")?;
    let place: Option<Vec<u8>> = select.query_row([&key[..]], |row| row.get(0)).optional()?;
    let whole = place.map(|place| Place::try_from(place.as_slice()));
    whole.transpose().context("a short place")
}

fn value_of(connection: &Connection, place: &Place) -> anyhow::Result<Option<Vec<u8>>> {
    let mut select = connection.prepare_cached("SELECT value FROM records WHERE place = ?")?;
    let value = select.query_row([&place[..]], |row| row.get(0)).optional();
    value.context("SQLite did not read")
}
