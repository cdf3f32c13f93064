//! What of a shard is not in the sorted store yet: where it stands in the log, and the
//! indexes by which it is found.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use crate::store::embedded::codec::Indexed;
use crate::store::{Change, Fence, Position, QueueCounts};
use crate::{DueClock, QueueName, Revision, TimerName, Wake};

/// Where a record's bytes stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Location {
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) len: usize,
}

/// What the log says of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Young {
    /// Where, and for a name that was removed where its removal stands.
    pub(super) at: Location,
    /// `None`: it was removed.
    pub(super) indexed: Option<Indexed>,
    /// Whether the sorted store may have something under the name.
    pub(super) may_be_old: bool,
}

/// The young part of a shard.
#[derive(Debug)]
pub(super) struct Table {
    /// The owner's, once it is known: the sorted store keeps it.
    pub(super) fence: Option<Fence>,
    pub(super) last_revision: Revision,
    names: HashMap<TimerName, Young>,
    due: BTreeMap<(DueClock, Wake), TimerName>,
    lists: BTreeMap<QueueName, BTreeMap<Position, TimerName>>,
    /// How many records each queue has in each state, old and young.
    pub(super) counts: BTreeMap<QueueName, [u64; 4]>,
}

impl Table {
    /// A table of which nothing is young yet.
    pub(super) fn with_counts(counts: Vec<QueueCounts>) -> Self {
        Self {
            fence: None,
            last_revision: Revision(0),
            names: HashMap::new(),
            due: BTreeMap::new(),
            lists: BTreeMap::new(),
            counts: counts
                .into_iter()
                .map(|counts| (counts.queue, counts.by_state))
                .collect(),
        }
    }

    pub(super) fn get(&self, name: &TimerName) -> Option<&Young> {
        self.names.get(name)
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Notes what the log says of `name` from now on. `old` is what the sorted store has under
    /// it, if the table has nothing.
    fn note(&mut self, name: TimerName, young: Young, old: Option<Indexed>) {
        let before = match self.names.get(&name) {
            Some(before) => before.indexed,
            None => old,
        };
        if let Some(before) = before {
            self.unlist(&name, &before);
            self.count(&name.queue, before, false);
        }
        if let Some(indexed) = young.indexed {
            self.list(&name, &indexed);
            self.count(&name.queue, indexed, true);
        }
        match (young.indexed, young.may_be_old) {
            // Nowhere: nothing has to be remembered.
            (None, false) => drop(self.names.remove(&name)),
            _ => drop(self.names.insert(name, young)),
        }
    }

    /// Notes a change that stands at `at`. `old` is what the sorted store has under its name,
    /// if the table has nothing.
    pub(super) fn apply(&mut self, change: &Change, at: Location, old: Option<Indexed>) {
        let (name, indexed) = match change {
            Change::Put { record, .. } => {
                self.last_revision = self.last_revision.max(record.revision);
                (&record.name, Some(Indexed::of(record)))
            }
            Change::Remove { name, .. } => (name, None),
            Change::Given(revision) => {
                self.last_revision = self.last_revision.max(*revision);
                return;
            }
        };
        let known = self.names.get(name);
        let may_be_old = known.map_or(old.is_some(), |young| young.may_be_old);
        let young = Young {
            at,
            indexed,
            may_be_old,
        };
        self.note(name.clone(), young, old);
    }

    /// The sorted store is about to get what stands at `at`. False if that is not what the
    /// name stands for any more.
    pub(super) fn will_be_old(&mut self, name: &TimerName, at: Location) -> bool {
        match self.names.get_mut(name) {
            Some(young) if young.at == at => {
                young.may_be_old = true;
                true
            }
            _ => false,
        }
    }

    /// The sorted store has what stands at `at`. If nothing newer is here, it is forgotten.
    pub(super) fn is_old(&mut self, name: &TimerName, at: Location) {
        if let Entry::Occupied(entry) = self.names.entry(name.clone())
            && entry.get().at == at
        {
            let young = entry.remove();
            if let Some(indexed) = young.indexed {
                self.unlist(name, &indexed);
            }
        }
    }

    /// What wakes by `clock` after `after`.
    pub(super) fn due_after(
        &self,
        clock: DueClock,
        after: Option<Wake>,
    ) -> impl Iterator<Item = (Wake, &TimerName)> {
        let start = match after {
            Some(after) => Bound::Excluded((clock, after)),
            None => Bound::Included((clock, Wake::default())),
        };
        let due = self.due.range((start, Bound::Unbounded));
        due.take_while(move |((of, _), _)| *of == clock)
            .map(|((_, wake), name)| (*wake, name))
    }

    pub(super) fn listed_after(
        &self,
        queue: &QueueName,
        after: Bound<Position>,
    ) -> impl Iterator<Item = (&Position, &TimerName)> {
        let list = self.lists.get(queue).into_iter();
        list.flat_map(move |list| list.range((after, Bound::Unbounded)))
    }

    fn list(&mut self, name: &TimerName, indexed: &Indexed) {
        if let Some(wake) = indexed.wake {
            self.due.insert((indexed.clock, wake), name.clone());
        }
        let list = self.lists.entry(name.queue.clone()).or_default();
        list.insert(indexed.position, name.clone());
    }

    /// Takes it out of the indexes, if it is there rather than in the sorted store.
    fn unlist(&mut self, name: &TimerName, indexed: &Indexed) {
        if let Some(wake) = indexed.wake {
            self.due.remove(&(indexed.clock, wake));
        }
        if let Some(list) = self.lists.get_mut(&name.queue) {
            list.remove(&indexed.position);
            if list.is_empty() {
                self.lists.remove(&name.queue);
            }
        }
    }

    fn count(&mut self, queue: &QueueName, indexed: Indexed, more: bool) {
        let counts = self.counts.entry(queue.clone()).or_default();
        let count = &mut counts[indexed.kind as usize];
        *count = if more {
            *count + 1
        } else {
            count.saturating_sub(1)
        };
        if *counts == [0; 4] {
            self.counts.remove(queue);
        }
    }
}
