//! The records of one step: as the store has them, then as the step changes them.

use std::collections::HashMap;

use crate::store::{Before, Change, Shard, Store, StoreError};
use crate::{Record, TimerError, TimerName};

/// Reads each record once, and keeps what became of it.
pub(crate) struct Draft<'a> {
    store: &'a dyn Store,
    shard: Shard,
    /// Where each name's record stands below.
    places: HashMap<TimerName, usize>,
    /// In the order in which they were first touched.
    drafted: Vec<Drafted>,
    /// What was there before each change, while it may have to be undone.
    undo: Option<Vec<(usize, Drafted)>>,
}

#[derive(Clone)]
struct Drafted {
    name: TimerName,
    record: Option<Record>,
    changed: bool,
    before: Before,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(store: &'a dyn Store, shard: Shard) -> Self {
        Self {
            store,
            shard,
            places: HashMap::new(),
            drafted: Vec::new(),
            undo: None,
        }
    }

    pub(crate) fn read(&mut self, name: &TimerName) -> Result<Option<&Record>, StoreError> {
        let place = match self.places.get(name) {
            Some(place) => *place,
            None => {
                let record = self.store.get(self.shard, name)?;
                self.push(Drafted {
                    name: name.clone(),
                    before: Before::of(record.as_ref()),
                    record,
                    changed: false,
                })
            }
        };
        Ok(self.drafted[place].record.as_ref())
    }

    pub(crate) fn cached(&self, name: &TimerName) -> Option<&Record> {
        let place = self.places.get(name)?;
        self.drafted[*place].record.as_ref()
    }

    pub(crate) fn existing(&mut self, name: &TimerName) -> Result<Record, TimerError> {
        self.read(name)?.cloned().ok_or(TimerError::NotFound)
    }

    pub(crate) fn write(&mut self, record: Record) {
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
        for (place, drafted) in self.undo.take().into_iter().flatten().rev() {
            self.drafted[place] = drafted;
        }
    }

    pub(crate) fn into_changes(self) -> Vec<Change> {
        let changed = self.drafted.into_iter().filter(|d| d.changed);
        changed
            .map(|drafted| {
                let Drafted { name, before, .. } = drafted;
                match drafted.record.map(Box::new) {
                    Some(record) => Change::Put { record, before },
                    None => Change::Remove { name, before },
                }
            })
            .collect()
    }

    fn place(&mut self, name: &TimerName) -> usize {
        self.places.get(name).copied().unwrap_or_else(|| {
            self.push(Drafted {
                name: name.clone(),
                record: None,
                changed: false,
                before: Before::Unknown,
            })
        })
    }

    fn push(&mut self, drafted: Drafted) -> usize {
        let place = self.drafted.len();
        self.places.insert(drafted.name.clone(), place);
        self.drafted.push(drafted);
        place
    }

    fn change(&mut self, place: usize, record: Option<Record>) {
        let drafted = &mut self.drafted[place];
        if let Some(undo) = &mut self.undo {
            undo.push((place, drafted.clone()));
        }
        drafted.record = record;
        drafted.changed = true;
    }
}
