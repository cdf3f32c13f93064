//! The layout that every library has: by place in the order of deadlines the record, by key the
//! place. Written once, so that it is the same in each.

use anyhow::{Context as _, ensure};

use super::{Found, Peer, Visit};
use crate::item::{Item, Key, MOVE_MS, Op, Place, Value};

/// What a library offers: two tables in order, and a batch of changes that is durable or was
/// never made.
pub(crate) trait Tables {
    /// Runs `body` on a batch, and commits it.
    fn write(
        &mut self,
        body: &mut dyn FnMut(&mut dyn Batch) -> anyhow::Result<()>,
    ) -> anyhow::Result<()>;

    /// Where the record of this key stands.
    fn place(&mut self, key: &Key) -> anyhow::Result<Option<Place>>;

    /// What stands in this place.
    fn value(&mut self, place: &Place) -> anyhow::Result<Option<Vec<u8>>>;

    /// Places and values in order, from `from`, until `visit` says false.
    fn range(
        &mut self,
        from: &Place,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> anyhow::Result<()>;
}

/// The changes of one batch.
pub(crate) trait Batch {
    fn put(&mut self, place: &Place, value: &Value) -> anyhow::Result<()>;
    fn put_key(&mut self, key: &Key, place: &Place) -> anyhow::Result<()>;
    fn delete(&mut self, place: &Place) -> anyhow::Result<()>;
    fn delete_key(&mut self, key: &Key) -> anyhow::Result<()>;
    /// Where the record of this key stands; what this batch has changed may be missing.
    fn place(&mut self, key: &Key) -> anyhow::Result<Option<Place>>;
    /// What stands in this place; what this batch has changed may be missing.
    fn value(&mut self, place: &Place) -> anyhow::Result<Option<Vec<u8>>>;
}

/// A library as a candidate.
pub(crate) struct TwoTables<T>(pub(crate) T);

impl<T: Tables> Peer for TwoTables<T> {
    fn commit(&mut self, ops: &[Op]) -> anyhow::Result<()> {
        self.0.write(&mut |batch| {
            for op in ops {
                apply(batch, *op)?;
            }
            Ok(())
        })
    }

    fn get(&mut self, item: Item) -> anyhow::Result<Option<Found>> {
        let Some(place) = self.0.place(&item.key())? else {
            return Ok(None);
        };
        let value = self.0.value(&place)?;
        let value = value.context("a key leads to no record")?;
        ensure!(
            Item::key_in(&value) == Some(item.key()),
            "a key leads to another record"
        );
        Ok(Some(Found {
            due_ms: Item::due_in(&place),
            payload: Item::payload_in(&value)
                .context("a record is too short")?
                .to_vec(),
        }))
    }

    fn scan(&mut self, from_ms: u64, visit: Visit<'_>) -> anyhow::Result<()> {
        let from = Item {
            id: 0,
            due_ms: from_ms,
        };
        let mut whole = true;
        self.0.range(&from.place(), &mut |place, value| {
            // The payload is read, as a window that is loaded needs it.
            whole &= Item::payload_in(value).is_some();
            whole && Item::due_in(place).is_some_and(&mut *visit)
        })?;
        ensure!(whole, "a record is too short");
        Ok(())
    }
}

fn apply(batch: &mut dyn Batch, op: Op) -> anyhow::Result<()> {
    match op {
        Op::Insert(item) => {
            batch.put(&item.place(), &item.value())?;
            batch.put_key(&item.key(), &item.place())
        }
        Op::Deliver(item) => {
            batch.delete(&item.place())?;
            batch.delete_key(&item.key())
        }
        Op::Move(item) => {
            let place = batch.place(&item.key())?;
            let place = place.context("nothing of that key to move")?;
            let value = batch.value(&place)?;
            let value = value.context("nothing in that place to move")?;
            let value: Value = value.as_slice().try_into().context("a short record")?;
            let due_ms = Item::due_in(&place).context("a short place")? + MOVE_MS;
            let later = Item { due_ms, ..item }.place();
            batch.delete(&place)?;
            batch.put(&later, &value)?;
            batch.put_key(&item.key(), &later)
        }
        Op::Remove(item) => {
            let place = batch.place(&item.key())?;
            let place = place.context("nothing of that key to remove")?;
            batch.delete(&place)?;
            batch.delete_key(&item.key())
        }
    }
}
