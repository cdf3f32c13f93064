//! Ours, at the level of the store: commits of changes, without a scheduler.

use std::path::Path;

use anyhow::Context as _;
use countwheel_durable::store::{Before, Change, DueScan, Lease, Shard};
use countwheel_durable::{
    DueClock, Missed, Record, RetryPolicy, Revision, State, StateKind, TimerId, TimerName, Wake,
};
use countwheel_time::Timestamp;

use super::{Found, Peer, Visit};
use crate::item::{Item, MOVE_MS, Op};
use crate::ours::{self, Kind, Opened, STORE_ID};

/// The one queue of all timers.
const QUEUE: &str = "bench";

/// How many entries a window reads at a time.
const PAGE: usize = 1_024;

/// The state of a record that waits.
const WAITING: Before = Before::Present(StateKind::Pending);

pub(crate) struct Ours {
    opened: Opened,
    lease: Lease,
    revision: u64,
}

pub(crate) fn open(directory: &Path, kind: Kind) -> anyhow::Result<Ours> {
    let opened = ours::open(kind, directory)?;
    let ownership = opened.store().acquire(Shard::ONLY)?;
    Ok(Ours {
        lease: ownership.lease,
        revision: ownership.last_revision.0,
        opened,
    })
}

/// The name of a timer.
pub(crate) fn name_of(item: Item) -> anyhow::Result<TimerName> {
    let key = item.key();
    let key = str::from_utf8(&key).context("a key is hexadecimal")?;
    Ok(TimerName::new(QUEUE, key)?)
}

/// A timer as the engine makes it of a set.
fn record_of(
    item: Item,
    due: Timestamp,
    revision: u64,
    payload: Vec<u8>,
) -> anyhow::Result<Record> {
    Ok(Record {
        name: name_of(item)?,
        id: TimerId {
            store: STORE_ID,
            set: Revision(revision),
        },
        revision: Revision(revision),
        state: State::Pending,
        created: Timestamp::from_micros(1_700_000_000_000_000),
        due,
        clock: DueClock::Wall,
        first_due: due,
        policy: RetryPolicy::default(),
        failures: 0,
        interruptions: 0,
        attempt: 0,
        attempts: Vec::new(),
        recurring: None,
        missed: Missed::default(),
        payload,
    })
}

impl Ours {
    /// Commits new records with these deadlines and payloads, in one batch.
    pub(crate) fn insert(
        &mut self,
        items: impl Iterator<Item = (Item, Timestamp, Vec<u8>)>,
    ) -> anyhow::Result<()> {
        let changes: Vec<Change> = items
            .map(|(item, due, payload)| self.put(item, due, payload))
            .collect::<anyhow::Result<_>>()?;
        Ok(self.opened.store().commit(self.lease, &changes)?)
    }

    fn put(&mut self, item: Item, due: Timestamp, payload: Vec<u8>) -> anyhow::Result<Change> {
        self.revision += 1;
        Ok(Change::Put {
            record: Box::new(record_of(item, due, self.revision, payload)?),
            before: Before::Absent,
        })
    }

    fn change(&mut self, op: Op) -> anyhow::Result<Change> {
        Ok(match op {
            Op::Insert(item) => {
                let due = Timestamp::from_micros(item.due_ms * 1_000);
                self.put(item, due, item.payload().to_vec())?
            }
            Op::Deliver(item) => Change::Remove {
                name: name_of(item)?,
                before: WAITING,
            },
            Op::Move(item) => {
                let found = self.opened.store().get(Shard::ONLY, &name_of(item)?)?;
                let mut record = found.context("nothing of that name to move")?;
                self.revision += 1;
                record.revision = Revision(self.revision);
                let micros = record.due.as_micros() + MOVE_MS * 1_000;
                record.due = Timestamp::from_micros(micros);
                record.first_due = record.due;
                Change::Put {
                    record: Box::new(record),
                    before: WAITING,
                }
            }
            Op::Remove(item) => {
                let name = name_of(item)?;
                let found = self.opened.store().get(Shard::ONLY, &name)?;
                found.context("nothing of that name to remove")?;
                Change::Remove {
                    name,
                    before: WAITING,
                }
            }
        })
    }
}

impl Peer for Ours {
    fn commit(&mut self, ops: &[Op]) -> anyhow::Result<()> {
        let changes: Vec<Change> = ops
            .iter()
            .map(|op| self.change(*op))
            .collect::<anyhow::Result<_>>()?;
        Ok(self.opened.store().commit(self.lease, &changes)?)
    }

    fn get(&mut self, item: Item) -> anyhow::Result<Option<Found>> {
        let record = self.opened.store().get(Shard::ONLY, &name_of(item)?)?;
        Ok(record.map(|record| Found {
            due_ms: Some(record.due.as_micros() / 1_000),
            payload: record.payload,
        }))
    }

    fn written(&self) -> Vec<(&'static str, u64)> {
        self.opened.written()
    }

    fn scan(&mut self, from_ms: u64, visit: Visit<'_>) -> anyhow::Result<()> {
        let micros = (from_ms * 1_000).checked_sub(1);
        let mut after = micros.map(|micros| Wake {
            at: Timestamp::from_micros(micros),
            revision: Revision(u64::MAX),
        });
        loop {
            let scan = DueScan {
                after,
                limit: PAGE,
                ..DueScan::all(DueClock::Wall)
            };
            let page = self.opened.store().due(Shard::ONLY, &scan)?;
            for entry in &page.entries {
                if !visit(entry.wake.at.as_micros() / 1_000) {
                    return Ok(());
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }
}
