//! Somebody who hears what commits did: what was told, put together, is what the store holds, and a reader with a
//! place of its own misses nothing without being told.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use countwheel_durable::store::{Lease, Ownership, Shard};
use countwheel_durable::{
    EventLog, EventPosition, EventSink, Record, Revision, StateKind, Subject, TimerEvent, TimerId,
    TimerName,
};
use countwheel_time::Timestamp;
use parking_lot::Mutex;

use crate::random::Random;

/// Where a timer stands, as its last event said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Standing {
    id: TimerId,
    revision: Revision,
    state: StateKind,
    due: Timestamp,
    attempt: u32,
}

impl Standing {
    fn of(record: &Record) -> Self {
        Self {
            id: record.id,
            revision: record.revision,
            state: record.state.kind(),
            due: record.due,
            attempt: record.attempt,
        }
    }

    fn is_ended(self) -> bool {
        matches!(self.state, StateKind::Done | StateKind::Dead)
    }
}

/// The events of a process, and all that was ever told.
#[derive(Debug)]
pub(crate) struct Heard {
    log: Mutex<Arc<EventLog>>,
    /// What was told since that was looked at.
    new: Mutex<Vec<(EventPosition, TimerEvent)>>,
    /// Where each term of the process stands.
    ends: Mutex<BTreeMap<u64, u64>>,
}

impl EventSink for Heard {
    fn opened(&self, ownership: &Ownership) {
        self.log.lock().opened(ownership);
    }

    fn committed(&self, lease: Lease, events: Vec<TimerEvent>) {
        let mut ends = self.ends.lock();
        let end = ends.entry(lease.fence.0).or_default();
        for event in &events {
            *end += 1;
            let position = EventPosition {
                term: lease.fence,
                number: *end,
            };
            self.new.lock().push((position, event.clone()));
        }
        self.log.lock().committed(lease, events);
    }

    fn closed(&self, lease: Lease) {
        self.log.lock().closed(lease);
    }
}

/// Puts together what it hears, and reads as a client does.
#[derive(Debug)]
pub(crate) struct Listener {
    heard: Arc<Heard>,
    random: Random,
    /// How many events a process keeps.
    most: usize,
    standing: BTreeMap<TimerName, Standing>,
    /// Every event of the last terms.
    told: BTreeMap<EventPosition, TimerEvent>,
    /// Where the reader is.
    place: Option<EventPosition>,
}

impl Listener {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, "events");
        let most = usize::try_from(*random.pick(&[1, 5, 60, 65_536])).unwrap_or(1);
        let heard = Heard {
            log: Mutex::new(Arc::new(EventLog::new(most, EventLog::BYTES))),
            new: Mutex::default(),
            ends: Mutex::default(),
        };
        Self {
            heard: Arc::new(heard),
            random,
            most,
            standing: BTreeMap::new(),
            told: BTreeMap::new(),
            place: None,
        }
    }

    /// What the engines of the world tell.
    pub(crate) fn sink(&self) -> Arc<Heard> {
        Arc::clone(&self.heard)
    }

    /// The process has ended, and what it had in memory with it; or the same process takes its shard again.
    pub(crate) fn ends(&mut self) {
        if self.random.one_in(2) {
            *self.heard.log.lock() = Arc::new(EventLog::new(self.most, EventLog::BYTES));
        }
    }

    /// Takes in what is new, and reads now and then.
    pub(crate) fn look(&mut self) -> Result<(), String> {
        let new = mem::take(&mut *self.heard.new.lock());
        for (position, event) in new {
            self.take(&event)?;
            self.told.insert(position, event);
        }
        while self.told.len() > 10_000 {
            self.told.pop_first();
        }
        if self.random.one_in(3) {
            self.read()?;
        }
        Ok(())
    }

    fn take(&mut self, event: &TimerEvent) -> Result<(), String> {
        let Subject::Timer(name) = &event.subject else {
            return Ok(());
        };
        match (event.id, event.state) {
            (_, None) => {
                self.standing.remove(name);
            }
            (Some(id), Some(state)) => {
                let standing = Standing {
                    id,
                    revision: event.revision,
                    state,
                    due: event.due,
                    attempt: event.attempt,
                };
                let attempt = match self.standing.get(name) {
                    // Another attempt may have started with the same write.
                    Some(old) if event.result.is_some() && old.id == id => old.attempt,
                    _ => event.attempt,
                };
                let standing = Standing {
                    attempt,
                    ..standing
                };
                self.standing.insert(name.clone(), standing);
            }
            (None, Some(_)) => return Err(format!("an event of nobody: {event:?}")),
        }
        Ok(())
    }

    /// Reads up to the end, or a part of the way.
    fn read(&mut self) -> Result<(), String> {
        let log = Arc::clone(&self.heard.log.lock());
        for _ in 0..self.random.between(1, 200) {
            let read = log.read(Shard::ONLY, self.place);
            let Some(chunk) = read.map_err(|error| format!("a reader is refused: {error}"))? else {
                return Ok(());
            };
            let (first, term) = (chunk.first, chunk.term);
            match self.place {
                Some(place) if !chunk.gap && (place.term != term || place.number + 1 != first) => {
                    return Err(format!(
                        "after {place:?} comes {first} of {term:?} without a gap"
                    ));
                }
                Some(place) if chunk.gap && place.term == term && place.number + 1 == first => {
                    return Err(format!("a gap without a cause after {place:?}"));
                }
                _ => {}
            }
            for (number, event) in (first..).zip(chunk.events()) {
                let position = EventPosition { term, number };
                if self.told.get(&position).is_some_and(|told| told != event) {
                    return Err(format!("another event is read at {position:?}: {event:?}"));
                }
            }
            if self.place == Some(chunk.end()) {
                return Err(format!("a reader does not get on at {:?}", chunk.end()));
            }
            self.place = Some(chunk.end());
        }
        Ok(())
    }

    /// Compares what was told with what a process finds that opens the store. `is_torn` if a commit of which nobody
    /// knows may be in it.
    pub(crate) fn audit(&mut self, records: &[Record], is_torn: bool) -> Result<(), String> {
        self.look()?;
        let found = records
            .iter()
            .map(|record| (record.name.clone(), Standing::of(record)));
        let found: BTreeMap<_, _> = found.collect();
        for (name, told) in &self.standing {
            match found.get(name) {
                Some(found) if found == told => {}
                Some(found) if is_torn && found.revision >= told.revision => {}
                // Its retention may have ended, or the lost commit may have removed it.
                None if told.is_ended() || is_torn => {}
                other => {
                    return Err(format!(
                        "events tell of {name} {told:?}, and it is {other:?}"
                    ));
                }
            }
        }
        let untold = found
            .iter()
            .find(|(name, _)| !self.standing.contains_key(*name));
        if let Some((name, found)) = untold.filter(|_| !is_torn) {
            return Err(format!("no event tells of {name}, which is {found:?}"));
        }
        self.standing = found;
        Ok(())
    }
}
