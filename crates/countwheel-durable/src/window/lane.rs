//! One queue's part of the window, and its cost.

use std::collections::BTreeMap;

use super::Held;
use crate::{Key, QueueName, Wake};

/// The first and the last entry.
pub(super) type Ends = Option<(Wake, Wake)>;

/// How much a window may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// In bytes.
    pub(crate) bytes: usize,
    /// What an entry counts at the least, so that no more fit in than are allowed.
    least: usize,
    /// How many entries one read of the store brings.
    pub(super) page: usize,
}

impl Room {
    const PAGE: usize = 1_024;
    /// What the longest entry takes while it is on its way from the store.
    const LONGEST: usize = 2 * lane_bytes(Key::MAX_BYTES) + QueueName::TEXT_MAX_BYTES;

    /// Room for so many bytes and so many entries, whichever is less.
    pub(crate) fn new(bytes: usize, entries: usize) -> Self {
        let bytes = bytes.max(16 << 10);
        Self {
            bytes,
            least: bytes / entries.saturating_add(1).max(3),
            page: (bytes / 8 / Self::LONGEST)
                .min(entries)
                .clamp(2, Self::PAGE),
        }
    }

    /// The most that an entry counts.
    pub(super) fn longest(&self) -> usize {
        lane_bytes(Key::MAX_BYTES).max(self.least)
    }

    pub(super) fn cost(&self, key: &Key) -> usize {
        lane_bytes(key.as_str().len()).max(self.least)
    }
}

/// What an entry takes: its place in a sorted map that may be half empty, and an allocation
/// for the key with two counters.
const fn lane_bytes(key: usize) -> usize {
    2 * (size_of::<Wake>() + size_of::<Key>()) + 32 + key
}

/// One queue: what it holds by each clock.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) lanes: [Lane; 2],
    pub(super) in_ring: bool,
}

impl Queue {
    /// What a queue takes by itself: its names in the window's maps and the lanes' ends.
    pub(super) fn bytes(name: &QueueName) -> usize {
        2 * (size_of::<Self>() + size_of::<QueueName>())
            + 8 * (size_of::<Wake>() + size_of::<QueueName>())
            + 6 * size_of::<QueueName>()
            + 32
            + name.as_str().len()
    }

    pub(super) fn is_empty(&self) -> bool {
        let idle = |lane: &Lane| lane.entries.is_empty() && lane.rest.is_none();
        !self.in_ring && self.lanes.iter().all(idle)
    }
}

/// What a queue holds by one clock.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) entries: BTreeMap<Wake, Key>,
    /// Of those, noted here because every change needs them.
    ends: Ends,
    bytes: usize,
    pub(super) cost: usize,
    /// Everything from here on is in the store alone.
    pub(super) rest: Option<Wake>,
}

impl Lane {
    pub(super) fn ends(&self) -> Ends {
        self.ends
    }

    fn look_for_ends(&self) -> Ends {
        let first = self.entries.first_key_value()?;
        let last = self.entries.last_key_value()?;
        Some((*first.0, *last.0))
    }

    pub(super) fn held(&self) -> Held {
        Held {
            entries: self.entries.len(),
            bytes: self.bytes,
            cost: self.cost,
        }
    }

    pub(super) fn insert(&mut self, wake: Wake, key: Key, room: Room) {
        let (bytes, cost) = (lane_bytes(key.as_str().len()), room.cost(&key));
        if self.entries.insert(wake, key).is_none() {
            self.bytes += bytes;
            self.cost += cost;
            let (first, last) = self.ends.unwrap_or((wake, wake));
            self.ends = Some((first.min(wake), last.max(wake)));
        }
    }

    pub(super) fn remove(&mut self, wake: Wake, room: Room) -> Option<Key> {
        let key = self.entries.remove(&wake)?;
        self.bytes -= lane_bytes(key.as_str().len());
        self.cost -= room.cost(&key);
        if self
            .ends
            .is_some_and(|(first, last)| wake == first || wake == last)
        {
            self.ends = self.look_for_ends();
        }
        Some(key)
    }

    /// Counts anew what it costs, in other room.
    pub(super) fn count_cost(&mut self, room: Room) -> usize {
        self.cost = self.entries.values().map(|key| room.cost(key)).sum();
        self.cost
    }

    /// Leaves the last entry to the store.
    pub(super) fn give_up_last(&mut self, room: Room) -> Option<Wake> {
        let (_, wake) = self.ends?;
        self.remove(wake, room);
        Some(wake)
    }
}
