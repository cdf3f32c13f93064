//! The records of one step: first as the store has them, then as the step changes them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::sync::Arc;

use countwheel_time::Timestamp;

use crate::ahead::Moved;
use crate::backlog::{Backlog, Correction, Pends, pends};
use crate::events::{EventKind, TimerEvent, tell};
use crate::kept::Kept;
use crate::planted::planted;
use crate::setting::SettingsDraft;
use crate::store::{Before, Change, Found, Shard, Store, StoreError};
use crate::{
    Record, Setting, SettingError, SettingName, SettingPrecondition, Settings, SettingsVersion,
    TimerError, TimerName,
};

/// Reads each record once, and keeps what became of it.
pub(crate) struct Draft<'a> {
    store: &'a dyn Store,
    shard: Shard,
    /// The records of attempts in flight.
    kept: Kept,
    /// What was read before the step.
    found: Found,
    /// The store could not be asked: nothing that the step comes to may count.
    unavailable: Option<String>,
    /// The time by the wall clock.
    wall: Timestamp,
    /// Where each name's record stands below.
    places: HashMap<TimerName, usize>,
    /// In the order in which they were first touched.
    drafted: Vec<Drafted>,
    /// Where the record stands that was asked for last: mostly it is the next as well.
    last: usize,
    /// How much content all has that was read, in bytes.
    read: usize,
    /// And of all that was written.
    written: usize,
    /// What was there before each change, while it may have to be undone.
    undo: Option<Vec<Undo>>,
    settings: SettingsDraft,
    /// What the changes did, if somebody wants to hear it.
    told: Option<Vec<TimerEvent>>,
    /// How much of it was there at [`Draft::begin`].
    told_before: usize,
    /// What the request asks for whose change is next.
    asked: Option<EventKind>,
    /// How many changes were made, undone ones included.
    made: u64,
}

/// What a step changes of what is counted.
#[derive(Debug, Default)]
pub(crate) struct Corrections {
    /// Of what is overdue.
    pub(crate) backlog: Vec<Correction>,
    /// Where timers pend.
    pub(crate) moved: Vec<Moved>,
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
    /// It was kept in memory.
    was_kept: bool,
    /// Whether the payload is the one that the store has.
    same_payload: bool,
    before: Before,
    /// Where the store's record pends.
    pended: Pends,
}

impl Drafted {
    /// Whether the store's record could not be read, and nothing has taken its place.
    fn is_unread(&self) -> bool {
        self.before == Before::Unreadable && !self.changed
    }
}

struct Undo {
    place: usize,
    record: Option<Box<Record>>,
    changed: bool,
    same_payload: bool,
}

impl<'a> Draft<'a> {
    /// Room for so many records is made at once; there may be more.
    pub(crate) fn new(
        store: &'a dyn Store,
        shard: Shard,
        wall: Timestamp,
        (kept, found): (Kept, Found),
        settings: &Arc<Settings>,
        records: usize,
    ) -> Self {
        Self {
            store,
            shard,
            kept,
            found,
            unavailable: None,
            wall,
            places: HashMap::with_capacity(records),
            drafted: Vec::with_capacity(records),
            last: 0,
            read: 0,
            written: 0,
            undo: None,
            settings: SettingsDraft::new(Arc::clone(settings)),
            told: None,
            told_before: 0,
            asked: None,
            made: 0,
        }
    }

    /// Tells from here on what the changes do.
    pub(crate) fn tells(mut self, tells: bool) -> Self {
        self.told = tells.then(Vec::new);
        self
    }

    /// The next change is what a request of this kind asks for.
    pub(crate) fn asked(&mut self, kind: EventKind) {
        self.asked = Some(kind);
    }

    /// Takes out what the changes did.
    pub(crate) fn take_told(&mut self) -> Vec<TimerEvent> {
        self.told.take().unwrap_or_default()
    }

    /// Changes a setting. Says the version that it gets if nobody else changes one meanwhile.
    pub(crate) fn configure(
        &mut self,
        change: Setting,
        precondition: SettingPrecondition,
    ) -> Result<SettingsVersion, SettingError> {
        let bytes = change.value.as_ref().map_or(0, Vec::len);
        let told = self.told.as_ref();
        let told = told.map(|_| (change.name.clone(), change.value.is_some()));
        let version = self.settings.change(change, precondition)?;
        if let (Some(told), Some((name, is_put))) = (&mut self.told, told) {
            told.push(TimerEvent::of_setting(name, is_put, self.wall));
        }
        self.written += bytes;
        self.made += 1;
        Ok(version)
    }

    /// The version of a setting, as this step has it; `None` if there is none of that name.
    pub(crate) fn setting(&self, name: &SettingName) -> Option<SettingsVersion> {
        self.settings.current(name).map(|(version, _)| version)
    }

    /// How many changes the step has made so far, undone ones included.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }

    pub(crate) fn read(&mut self, name: &TimerName) -> Result<Option<&Record>, StoreError> {
        let place = match self.known(name) {
            Some(place) if !self.drafted[place].is_unread() => place,
            // It is there already, unread.
            Some(place) => {
                let record = self.get(name)?.map(Box::new);
                let drafted = &mut self.drafted[place];
                drafted.before = Before::of(record.as_deref());
                drafted.pended = record.as_deref().and_then(pends);
                drafted.same_payload = record.is_some();
                drafted.record = record;
                place
            }
            None => {
                let kept = self.kept.take(name);
                let was_kept = kept.is_some();
                if let Some(record) = &kept
                    && planted!(KeptThoughChanged)
                {
                    self.kept.keep(record.clone());
                }
                let record = match kept.map(Some).or_else(|| self.take_found(name)) {
                    Some(record) => record,
                    None => self.get(name)?.map(Box::new),
                };
                let before = Before::of(record.as_deref());
                let place = self.enter(name, before, record);
                self.drafted[place].was_kept = was_kept;
                place
            }
        };
        self.last = place;
        Ok(self.drafted[place].record.as_deref())
    }

    /// Asks the store.
    fn get(&mut self, name: &TimerName) -> Result<Option<Record>, StoreError> {
        let record = self.store.get(self.shard, name).inspect_err(|error| {
            if let StoreError::Unavailable { reason } = error {
                self.unavailable = Some(reason.clone());
            }
        })?;
        self.read += record.as_ref().map_or(0, Record::content_bytes);
        Ok(record)
    }

    /// What was read of a name before the step.
    fn take_found(&mut self, name: &TimerName) -> Option<Option<Box<Record>>> {
        let record = self.found.take(name)?;
        self.read += record.as_ref().map_or(0, Record::content_bytes);
        Some(record.map(Box::new))
    }

    /// Why the store could not be asked, if it could not.
    pub(crate) fn unavailable(&self) -> Option<&str> {
        self.unavailable.as_deref()
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
                self.enter(name, Before::Unreadable, None);
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
        self.drafted[self.known(name)?].record.as_deref()
    }

    /// Whether the step has changed what stands under the name.
    pub(crate) fn is_changed(&self, name: &TimerName) -> bool {
        let place = self.known(name);
        place.is_some_and(|place| self.drafted[place].changed)
    }

    /// Where a name's record stands, if it is there.
    fn known(&self, name: &TimerName) -> Option<usize> {
        if self.is_last(name) {
            return Some(self.last);
        }
        self.places.get(name).copied()
    }

    pub(crate) fn existing(&mut self, name: &TimerName) -> Result<&Record, TimerError> {
        self.find(name)?.ok_or(TimerError::NotFound)
    }

    /// How much content the records have that were read and written, in bytes; one that was written
    /// twice counts twice.
    pub(crate) fn bytes(&self) -> usize {
        self.read + self.written
    }

    /// The same of those that were written.
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    pub(crate) fn write(&mut self, record: Box<Record>) {
        self.written += record.content_bytes();
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
        self.told_before = self.told.as_ref().map_or(0, Vec::len);
        self.settings.begin();
    }

    /// Keeps the changes since [`Draft::begin`].
    pub(crate) fn keep(&mut self) {
        self.undo = None;
        self.settings.keep();
    }

    /// Undoes the changes since [`Draft::begin`].
    pub(crate) fn undo(&mut self) {
        self.settings.undo();
        if let Some(told) = &mut self.told
            && !planted!(EventsOfRefused)
        {
            told.truncate(self.told_before);
        }
        for undo in self.undo.take().into_iter().flatten().rev() {
            let drafted = &mut self.drafted[undo.place];
            (drafted.record, drafted.changed) = (undo.record, undo.changed);
            drafted.same_payload = undo.same_payload;
        }
    }

    /// What of the changes those have to know who count timers; `None` if one takes the place of something
    /// that cannot be read.
    pub(crate) fn corrections(&self, backlog: &Backlog) -> Option<Corrections> {
        let mut corrections = Corrections::default();
        for drafted in self.drafted.iter().filter(|drafted| drafted.changed) {
            if matches!(drafted.before, Before::Unknown | Before::Unreadable) {
                return None;
            }
            let is = drafted.record.as_deref().and_then(pends);
            if drafted.pended != is {
                corrections.moved.push((drafted.pended, is));
            }
            if backlog.is_corrected(drafted.pended, is) {
                corrections.backlog.push(Correction {
                    queue: drafted.name.queue.clone(),
                    was: drafted.pended,
                    is,
                });
            }
        }
        Some(corrections)
    }

    /// The changes, and what is kept of the attempts that were in flight before them.
    pub(crate) fn into_changes(self) -> (Vec<Change>, Kept) {
        let mut kept = self.kept;
        let mut changes = Vec::with_capacity(self.drafted.len());
        for drafted in self.drafted {
            let Drafted { name, before, .. } = drafted;
            match (drafted.changed, drafted.record) {
                (true, Some(record)) => {
                    let before = if drafted.same_payload {
                        before.with_same_payload()
                    } else {
                        before
                    };
                    changes.push(Change::Put { record, before });
                }
                (true, None) => changes.push(Change::Remove { name, before }),
                (false, Some(record)) if drafted.was_kept => kept.keep(record),
                (false, _) => {}
            }
        }
        let settings = self.settings.into_changes();
        changes.extend(settings.into_iter().map(Change::Setting));
        (changes, kept)
    }

    fn is_last(&self, name: &TimerName) -> bool {
        let last = self.drafted.get(self.last);
        last.is_some_and(|last| last.name == *name)
    }

    fn place(&mut self, name: &TimerName) -> usize {
        let known = self.known(name);
        self.last = known.unwrap_or_else(|| self.enter(name, Before::Unknown, None));
        self.last
    }

    /// Takes in what stands under a name, unless something is there of it. Says where.
    fn enter(&mut self, name: &TimerName, before: Before, record: Option<Box<Record>>) -> usize {
        self.last = match self.places.entry(name.clone()) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(place) => {
                self.drafted.push(Drafted {
                    name: name.clone(),
                    pended: record.as_deref().and_then(pends),
                    same_payload: record.is_some(),
                    record,
                    changed: false,
                    was_kept: false,
                    before,
                });
                *place.insert(self.drafted.len() - 1)
            }
        };
        self.last
    }

    fn change(&mut self, place: usize, record: Option<Box<Record>>) {
        let drafted = &mut self.drafted[place];
        self.made += 1;
        let asked = self.asked.take();
        if let Some(told) = &mut self.told {
            let (old, new) = (drafted.record.as_deref(), record.as_deref());
            tell(&drafted.name, old, new, asked, self.wall, told);
        }
        let is_same = match (&drafted.record, &record) {
            (Some(old), Some(new)) => drafted.same_payload && old.payload == new.payload,
            _ => false,
        };
        let undo = Undo {
            place,
            record: mem::replace(&mut drafted.record, record),
            changed: mem::replace(&mut drafted.changed, true),
            same_payload: mem::replace(&mut drafted.same_payload, is_same),
        };
        if let Some(undone) = &mut self.undo {
            undone.push(undo);
        }
    }
}
