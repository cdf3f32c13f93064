//! The records of one step: as the store has them, then as the step changes them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;
use std::mem;

use countwheel::Timestamp;

use crate::backlog::{Backlog, Correction, Pends, pends};
use crate::planted::planted;
use crate::store::{Before, Change, Shard, Store, StoreError};
use crate::{Record, TimerError, TimerName};

/// Reads each record once, and keeps what became of it.
pub(crate) struct Draft<'a> {
    store: &'a dyn Store,
    shard: Shard,
    /// The time by the wall clock.
    wall: Timestamp,
    /// Where each name's record stands below.
    places: HashMap<TimerName, usize>,
    /// In the order in which they were first touched.
    drafted: Vec<Drafted>,
    /// Where the record stands that was asked for last: mostly it is the next as well.
    last: usize,
    /// How long the payloads are of all that was read, in bytes.
    read: usize,
    /// And of all that was written.
    written: usize,
    /// What was there before each change, while it may have to be undone.
    undo: Option<Vec<Undo>>,
}

/// What a change takes the place of.
pub(crate) enum Replaced<'a> {
    /// A record, or nothing.
    Record(Option<&'a Record>),
    /// Something that cannot be read.
    Unreadable,
}

struct Drafted {
    name: TimerName,
    /// In a box as a change has it, since it moves often.
    record: Option<Box<Record>>,
    changed: bool,
    before: Before,
    /// Where the store's record pends.
    pended: Pends,
}

struct Undo {
    place: usize,
    record: Option<Box<Record>>,
    changed: bool,
}

impl<'a> Draft<'a> {
    /// Room for so many records is made at once; there may be more.
    pub(crate) fn new(store: &'a dyn Store, shard: Shard, wall: Timestamp, records: usize) -> Self {
        Self {
            store,
            shard,
            wall,
            places: HashMap::with_capacity(records),
            drafted: Vec::with_capacity(records),
            last: 0,
            read: 0,
            written: 0,
            undo: None,
        }
    }

    pub(crate) fn read(&mut self, name: &TimerName) -> Result<Option<&Record>, StoreError> {
        let (store, shard) = (self.store, self.shard);
        let mut read = 0;
        let place = self.enter(name, || {
            let record = store.get(shard, name)?;
            read = record.as_ref().map_or(0, |record| record.payload.len());
            Ok((Before::of(record.as_ref()), record))
        })?;
        self.read += read;
        let drafted = &mut self.drafted[place];
        if drafted.before == Before::Unreadable && !drafted.changed {
            let record = store.get(shard, name)?;
            self.read += record.as_ref().map_or(0, |record| record.payload.len());
            drafted.before = Before::of(record.as_ref());
            drafted.pended = record.as_ref().and_then(pends);
            drafted.record = record.map(Box::new);
        }
        Ok(self.drafted[place].record.as_deref())
    }

    /// The same for a request, for which a done timer is gone at the end of its retention.
    pub(crate) fn find(&mut self, name: &TimerName) -> Result<Option<&Record>, TimerError> {
        let wall = self.wall;
        let found = self.read(name).map_err(|source| {
            if !source.is_unreadable() {
                return source.into();
            }
            let name = name.clone();
            TimerError::Unreadable { name, source }
        });
        Ok(found?.filter(|record| !record.is_over(wall)))
    }

    /// The record of a name that is going to be replaced or removed, whatever it is.
    pub(crate) fn replaced(&mut self, name: &TimerName) -> Result<Replaced<'_>, TimerError> {
        match self.find(name).map(|_| ()) {
            Err(TimerError::Unreadable { .. }) if !planted!(ChangeReadsFirst) => {
                let Ok(_) = self.enter(name, || Ok::<_, Infallible>((Before::Unreadable, None)));
                Ok(Replaced::Unreadable)
            }
            found => {
                found?;
                let wall = self.wall;
                let record = self.cached(name);
                Ok(Replaced::Record(
                    record.filter(|record| !record.is_over(wall)),
                ))
            }
        }
    }

    pub(crate) fn cached(&self, name: &TimerName) -> Option<&Record> {
        let place = if self.is_last(name) {
            self.last
        } else {
            *self.places.get(name)?
        };
        self.drafted[place].record.as_deref()
    }

    pub(crate) fn existing(&mut self, name: &TimerName) -> Result<&Record, TimerError> {
        self.find(name)?.ok_or(TimerError::NotFound)
    }

    /// How long the payloads of the records are that were read and written, in bytes; one that
    /// was written twice counts twice.
    pub(crate) fn bytes(&self) -> usize {
        self.read + self.written
    }

    /// The same of those that were written.
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    pub(crate) fn write(&mut self, record: Box<Record>) {
        self.written += record.payload.len();
        let place = self.place(&record.name);
        self.change(place, Some(record));
    }

    pub(crate) fn remove(&mut self, name: &TimerName) {
        let place = self.place(name);
        self.change(place, None);
    }

    /// From here on, changes can be undone.
    pub(crate) fn begin(&mut self) {
        self.undo = Some(Vec::new());
    }

    /// Keeps the changes since [`Draft::begin`].
    pub(crate) fn keep(&mut self) {
        self.undo = None;
    }

    /// Undoes the changes since [`Draft::begin`].
    pub(crate) fn undo(&mut self) {
        for undo in self.undo.take().into_iter().flatten().rev() {
            let drafted = &mut self.drafted[undo.place];
            (drafted.record, drafted.changed) = (undo.record, undo.changed);
        }
    }

    /// What of the changes the `backlog` has to know; `None` if one takes the place of something
    /// that cannot be read.
    pub(crate) fn corrections(&self, backlog: &Backlog) -> Option<Vec<Correction>> {
        let mut corrections = Vec::new();
        for drafted in self.drafted.iter().filter(|drafted| drafted.changed) {
            if matches!(drafted.before, Before::Unknown | Before::Unreadable) {
                return None;
            }
            let is = drafted.record.as_deref().and_then(pends);
            if backlog.is_corrected(drafted.pended, is) {
                corrections.push(Correction {
                    queue: drafted.name.queue.clone(),
                    was: drafted.pended,
                    is,
                });
            }
        }
        Some(corrections)
    }

    pub(crate) fn into_changes(self) -> Vec<Change> {
        let changed = self.drafted.into_iter().filter(|d| d.changed);
        changed
            .map(|drafted| {
                let Drafted { name, before, .. } = drafted;
                match drafted.record {
                    Some(record) => Change::Put { record, before },
                    None => Change::Remove { name, before },
                }
            })
            .collect()
    }

    fn is_last(&self, name: &TimerName) -> bool {
        let last = self.drafted.get(self.last);
        last.is_some_and(|last| last.name == *name)
    }

    fn place(&mut self, name: &TimerName) -> usize {
        let Ok(place) = self.enter(name, || Ok::<_, Infallible>((Before::Unknown, None)));
        place
    }

    /// Where a name's record stands; one that is not there yet is as `first` says.
    fn enter<E>(
        &mut self,
        name: &TimerName,
        first: impl FnOnce() -> Result<(Before, Option<Record>), E>,
    ) -> Result<usize, E> {
        if !self.is_last(name) {
            self.last = match self.places.entry(name.clone()) {
                Entry::Occupied(place) => *place.get(),
                Entry::Vacant(place) => {
                    let (before, record) = first()?;
                    self.drafted.push(Drafted {
                        name: name.clone(),
                        pended: record.as_ref().and_then(pends),
                        record: record.map(Box::new),
                        changed: false,
                        before,
                    });
                    *place.insert(self.drafted.len() - 1)
                }
            };
        }
        Ok(self.last)
    }

    fn change(&mut self, place: usize, record: Option<Box<Record>>) {
        let drafted = &mut self.drafted[place];
        let undo = Undo {
            place,
            record: mem::replace(&mut drafted.record, record),
            changed: mem::replace(&mut drafted.changed, true),
        };
        if let Some(undone) = &mut self.undo {
            undone.push(undo);
        }
    }
}
