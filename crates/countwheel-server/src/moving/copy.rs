//! Timers on their way from a store into the tables: read in pages or by name, written in large statements on
//! several connections.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use countwheel_durable::store::{Before, Change, Filter, Shard, Store};
use countwheel_durable::{Record, Shards, TimerName};
use countwheel_postgres::ArrivalLane;
use countwheel_time::Timestamp;
use parking_lot::{Condvar, Mutex};

use super::MoveError;
use super::tap::Tapped;

/// So many timers one statement writes at the most.
const ROWS_MAX: usize = 1_000;
/// So many bytes of payloads one statement has, but for its last timer.
const BYTES_MAX: usize = 2 << 20;
/// So many timers a connection has before it.
const AHEAD: usize = 4 * ROWS_MAX;
/// So many bytes of them: more than the longest record and what a statement gathers, else both sides might wait.
const AHEAD_BYTES: usize = 32 << 20;
/// So many timers a page has.
const PAGE: usize = 1_000;

/// What writes.
pub(super) trait Lane: Send {
    /// `false`: the move is not under way any more, and nothing was written.
    fn write(&mut self, changes: &[Change]) -> Result<bool, MoveError>;
}

impl Lane for ArrivalLane {
    fn write(&mut self, changes: &[Change]) -> Result<bool, MoveError> {
        Ok(Self::write(self, changes)?)
    }
}

/// How many bytes a lane has before it; `None` once it takes nothing more.
struct Room {
    taken: Mutex<Option<usize>>,
    freed: Condvar,
}

impl Room {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            taken: Mutex::new(Some(0)),
            freed: Condvar::new(),
        })
    }

    /// Waits until there is room for so many more bytes, or the lane has ended.
    fn take(&self, bytes: usize) {
        let mut taken = self.taken.lock();
        while taken.is_some_and(|taken| taken > 0 && taken + bytes > AHEAD_BYTES) {
            self.freed.wait(&mut taken);
        }
        *taken = taken.map(|taken| taken + bytes);
    }

    fn give(&self, bytes: usize) {
        let mut taken = self.taken.lock();
        *taken = taken.map(|taken| taken.saturating_sub(bytes));
        self.freed.notify_all();
    }
}

/// Ends the waiting for room, however the lane ends.
struct Ends(Arc<Room>);

impl Drop for Ends {
    fn drop(&mut self) {
        *self.0.taken.lock() = None;
        self.0.freed.notify_all();
    }
}

/// How many bytes a change takes.
fn bytes_of(change: &Change) -> usize {
    match change {
        Change::Put { record, .. } => record.content_bytes(),
        _ => 0,
    }
}

/// Where what is read goes.
pub(super) struct Way<'a> {
    lanes: Vec<(SyncSender<Change>, Arc<Room>)>,
    shards: Shards,
    /// Called now and then, while much is read.
    beat: &'a mut dyn FnMut(u64) -> Result<(), MoveError>,
    sent: u64,
}

impl Way<'_> {
    /// All changes of a name go the same way, in order.
    fn send(&mut self, change: Change) -> Result<(), MoveError> {
        let name = match &change {
            Change::Put { record, .. } => &record.name,
            Change::Remove { name, .. } => name,
            Change::Given(_) | Change::Clock(_) | Change::Setting(_) => return Ok(()),
        };
        let lane = usize::from(self.shards.of(name).0) % self.lanes.len();
        let (sender, room) = &self.lanes[lane];
        room.take(bytes_of(&change));
        // A lane that has ended says why itself.
        sender.send(change).map_err(|_| MoveError::GivenUp)?;
        self.sent += 1;
        if self.sent.is_multiple_of(PAGE as u64) {
            (self.beat)(self.sent)?;
        }
        Ok(())
    }

    /// Sends all timers of a store, and has it note what is changed from now on. That may be sent as it was
    /// before, or not at all.
    pub(super) fn all(
        &mut self,
        store: &Tapped<impl Store>,
        now: Timestamp,
    ) -> Result<(), MoveError> {
        // Before the first is read: what is changed after it was read is noted.
        store.open();
        let mut queue = None;
        while let Some(counts) = store
            .counts_after(Shard::ONLY, queue.as_ref(), 1)?
            .into_iter()
            .next()
        {
            let mut filter = Filter {
                limit: PAGE,
                ..Filter::queue(counts.queue.clone())
            };
            loop {
                let page = store.list(Shard::ONLY, &filter)?;
                if page.unreadable > 0 {
                    return Err(MoveError::Damaged(page.unreadable));
                }
                for record in page.records {
                    if !is_past(&record, now) {
                        // Nobody has to look what it takes the place of: what is sent twice was changed, and
                        // is sent again by its name.
                        self.send(Change::Put {
                            record: Box::new(record),
                            before: Before::Absent,
                        })?;
                    }
                }
                match page.next {
                    Some(next) => filter.after = Some(next),
                    None => break,
                }
            }
            queue = Some(counts.queue);
        }
        Ok(())
    }

    /// Sends what there is now under these names.
    pub(super) fn named(
        &mut self,
        store: &dyn Store,
        names: impl IntoIterator<Item = TimerName>,
        now: Timestamp,
    ) -> Result<(), MoveError> {
        for name in names {
            let found = store.get(Shard::ONLY, &name)?;
            self.send(match found.filter(|record| !is_past(record, now)) {
                Some(record) => Change::put(record),
                None => Change::remove(name),
            })?;
        }
        Ok(())
    }
}

/// Whether it is done or dead and was kept for long enough: it is gone for whoever asks.
fn is_past(record: &Record, now: Timestamp) -> bool {
    record.is_over(now)
}

/// Calls `read`, which sends timers, and writes them on the lanes. Once it has returned, all are written.
pub(super) fn pour(
    lanes: &mut [impl Lane],
    shards: Shards,
    beat: &mut dyn FnMut(u64) -> Result<(), MoveError>,
    read: impl FnOnce(&mut Way<'_>) -> Result<(), MoveError>,
) -> Result<u64, MoveError> {
    thread::scope(|scope| {
        let (senders, writing): (Vec<_>, Vec<_>) = lanes
            .iter_mut()
            .map(|lane| {
                let (sender, receiver) = sync_channel(AHEAD);
                let room = Room::new();
                let ends = Ends(Arc::clone(&room));
                let writing = scope.spawn(move || write(lane, &receiver, &ends));
                ((sender, room), writing)
            })
            .unzip();
        let mut way = Way {
            lanes: senders,
            shards,
            beat,
            sent: 0,
        };
        let read = read(&mut way);
        let sent = way.sent;
        drop(way);
        let mut written = Ok(());
        for writing in writing {
            let lane = writing.join();
            written = written.and(lane.unwrap_or(Err(MoveError::GivenUp)));
        }
        // Why a lane has ended comes before that it could not be written to.
        written.and(read).map(|()| sent)
    })
}

/// Writes what comes until nobody sends any more.
fn write(
    lane: &mut impl Lane,
    coming: &Receiver<Change>,
    Ends(room): &Ends,
) -> Result<(), MoveError> {
    let mut batch = Vec::new();
    let mut bytes = 0;
    loop {
        let next = coming.recv().ok();
        let is_last = next.is_none();
        if let Some(change) = next {
            bytes += bytes_of(&change);
            batch.push(change);
        }
        if is_last || batch.len() >= ROWS_MAX || bytes >= BYTES_MAX {
            if !lane.write(&batch)? {
                return Err(MoveError::GivenUp);
            }
            batch.clear();
            room.give(bytes);
            bytes = 0;
        }
        if is_last {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, LazyLock};

    use countwheel_durable::store::MemoryStore;
    use countwheel_durable::store::conformance::varied_records;
    use countwheel_durable::{Revision, State};
    use parking_lot::Mutex;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1 << 50);

    type Target = Arc<Mutex<BTreeMap<TimerName, Record>>>;

    struct Table(Target);

    impl Lane for Table {
        fn write(&mut self, changes: &[Change]) -> Result<bool, MoveError> {
            let mut target = self.0.lock();
            for change in changes {
                match change {
                    Change::Put { record, .. } => {
                        target.insert(record.name.clone(), (**record).clone());
                    }
                    Change::Remove { name, .. } => {
                        target.remove(name);
                    }
                    _ => {}
                }
            }
            Ok(true)
        }
    }

    static ANY: LazyLock<Record> = LazyLock::new(|| varied_records().swap_remove(0));

    fn record(queue: &str, number: u64, due: u64) -> Record {
        Record {
            name: TimerName::new(queue, format!("k-{number}")).unwrap(),
            revision: Revision(due),
            due: Timestamp::from_micros(due),
            first_due: Timestamp::from_micros(due),
            state: State::Pending,
            ..ANY.clone()
        }
    }

    fn all(store: &Tapped<MemoryStore>) -> BTreeMap<TimerName, Record> {
        let mut all = BTreeMap::new();
        for counts in store.counts(Shard::ONLY).unwrap() {
            let filter = Filter {
                limit: usize::MAX,
                scan_limit: usize::MAX,
                ..Filter::queue(counts.queue)
            };
            let page = store.list(Shard::ONLY, &filter).unwrap();
            all.extend(page.records.into_iter().map(|it| (it.name.clone(), it)));
        }
        all
    }

    #[test]
    fn what_is_changed_while_all_is_copied_is_copied_again() {
        const TIMERS: u64 = 5_000;
        let store = Tapped::new(MemoryStore::new(7));
        let lease = store.acquire(Shard::ONLY).unwrap().lease;
        let puts = |queue, from, range: std::ops::Range<u64>| {
            range.map(move |number| Change::put(record(queue, number, from + number)))
        };
        let before: Vec<_> = puts("b", 10_000, 0..TIMERS).collect();
        store.commit(lease, &before).unwrap();
        let target = Target::default();
        let mut lanes = [Table(Arc::clone(&target)), Table(Arc::clone(&target))];
        let mut rounds = 0;
        let mut beat = |_| {
            rounds += 1;
            let mut changes = vec![
                // One that was copied is gone, one that was not comes before those that were.
                Change::remove(record("b", rounds, 0).name),
                Change::put(record("b", TIMERS - rounds, rounds)),
            ];
            changes.extend(puts("a", 100_000, rounds * 10..rounds * 10 + 5));
            store.commit(lease, &changes).unwrap();
            Ok(())
        };
        let shards = Shards::new(64).unwrap();
        let sent = pour(&mut lanes, shards, &mut beat, |way| way.all(&store, NOW)).unwrap();
        assert!((TIMERS - 10..=TIMERS).contains(&sent), "{sent}");
        assert!(rounds >= 4);
        let names = store.take().unwrap();
        let mut beat = |_| Ok(());
        let copied = pour(&mut lanes, shards, &mut beat, |way| {
            way.named(&store, names, NOW)
        });
        assert!(copied.unwrap() >= 4 * 7);
        assert_eq!(*target.lock(), all(&store));
    }

    #[test]
    fn what_is_done_and_past_is_left_behind() {
        let store = Tapped::new(MemoryStore::new(7));
        let lease = store.acquire(Shard::ONLY).unwrap().lease;
        let done = |number, keep_until| {
            let state = State::Done {
                at: Timestamp::EPOCH,
                keep_until,
            };
            let record = record("a", number, number);
            Change::put(Record { state, ..record })
        };
        let later = NOW + std::time::Duration::from_secs(1);
        store
            .commit(lease, &[done(1, NOW), done(2, later)])
            .unwrap();
        let target = Target::default();
        let mut lanes = [Table(Arc::clone(&target))];
        let mut beat = |_| Ok(());
        pour(&mut lanes, Shards::ONE, &mut beat, |way| {
            way.all(&store, NOW)
        })
        .unwrap();
        let keys: Vec<_> = target.lock().keys().cloned().collect();
        assert_eq!(keys, [record("a", 2, 2).name]);
    }

    /// Of a move that somebody else has given up.
    struct Gone;

    impl Lane for Gone {
        fn write(&mut self, _: &[Change]) -> Result<bool, MoveError> {
            Ok(false)
        }
    }

    #[test]
    fn a_move_that_was_given_up_ends_what_is_under_way() {
        let store = Tapped::new(MemoryStore::new(7));
        let lease = store.acquire(Shard::ONLY).unwrap().lease;
        let puts: Vec<_> = (1..20_000)
            .map(|number| Change::put(record("a", number, number)))
            .collect();
        store.commit(lease, &puts).unwrap();
        let mut beat = |_| Ok(());
        let copied = pour(&mut [Gone, Gone], Shards::ONE, &mut beat, |way| {
            way.all(&store, NOW)
        });
        assert!(matches!(copied, Err(MoveError::GivenUp)), "{copied:?}");
    }

    /// Four thousand long timers were read before the first was written.
    #[test]
    fn what_is_read_ahead_has_so_many_bytes_at_the_most() {
        const EACH: usize = 4 << 20;
        /// Writes nothing before as much is read as there may be.
        struct Slow(Arc<Mutex<(usize, usize)>>);
        impl Lane for Slow {
            fn write(&mut self, changes: &[Change]) -> Result<bool, MoveError> {
                let written: usize = changes.iter().map(bytes_of).sum();
                let is_read = |counts: &(usize, usize)| counts.0 - counts.1 >= AHEAD_BYTES;
                for _ in 0..10_000 {
                    if is_read(&self.0.lock()) {
                        break;
                    }
                    thread::yield_now();
                }
                let mut counts = self.0.lock();
                // One is sent, and not counted as sent yet.
                assert!(counts.0 - counts.1 <= AHEAD_BYTES + EACH, "{counts:?}");
                counts.1 += written;
                Ok(true)
            }
        }
        let counts = Arc::default();
        let mut lanes = [Slow(Arc::clone(&counts))];
        let sent = pour(&mut lanes, Shards::ONE, &mut |_| Ok(()), |way| {
            for number in 0..40 {
                let mut long = record("q", number, number);
                long.attempts = Vec::new();
                long.payload = vec![0; EACH];
                way.send(Change::put(long))?;
                counts.lock().0 += EACH;
            }
            Ok(())
        });
        assert_eq!(sent.unwrap(), 40);
        assert_eq!(*counts.lock(), (40 * EACH, 40 * EACH));
    }
}
