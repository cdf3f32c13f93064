//! A library behind the log answers as the plain reference does: by itself, on random histories,
//! and behind the log, in everything that is wanted of a store.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::{
    FlushingLog, LogOptions, LogStore, MemorySorted, Reached, Sorted, SystemFiles,
};
use countwheel_durable::store::conformance::{self, Reopen};
use countwheel_durable::store::{Change, DueEntry, DueScan, Filter, Lease, Page, Shard, Store};
use countwheel_durable::{
    AttemptEnd, AttemptRecord, AttemptResult, DeadReason, DueClock, Missed, QueueName, Record,
    RetryPolicy, Revision, State, StateKind, TimerId, TimerName, Wake,
};
use countwheel_time::Timestamp;

use super::{Behind, Library};
use crate::numbers::mix;

const SHARDS: [Shard; 3] = [Shard(0), Shard(1), Shard(u16::MAX)];

/// Chance, records of all forms, and questions.
struct Maker {
    drawn: u64,
    revision: u64,
    names: Vec<TimerName>,
}

impl Maker {
    fn new(seed: u64) -> Self {
        let keys = ["a", "aa", "a/", "ä", "漢字", " ", "z"].map(str::to_owned);
        let long = ["k".repeat(256), "k".repeat(255)];
        let keys: Vec<&String> = keys.iter().chain(&long).collect();
        let queues = ["q", "q.", "qq", "r-s:t_u.V"];
        let names = queues.iter().flat_map(|queue| {
            let name = move |key: &String| TimerName::new(queue, key).unwrap();
            keys.iter().copied().map(name)
        });
        Self {
            drawn: mix(seed),
            revision: 0,
            names: names.collect(),
        }
    }

    /// From zero to `end`, which is excluded.
    fn index(&mut self, end: usize) -> usize {
        self.drawn = mix(self.drawn);
        usize::try_from(self.drawn % end as u64).unwrap()
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())].clone()
    }

    fn name(&mut self) -> TimerName {
        let at = self.index(self.names.len());
        self.names[at].clone()
    }

    fn time(&mut self) -> Timestamp {
        match self.index(20) {
            0 => Timestamp::EPOCH,
            1 => Timestamp::MAX,
            _ => Timestamp::from_micros(1_000 * self.index(200) as u64),
        }
    }

    fn record(&mut self, name: TimerName) -> Record {
        self.revision += 1;
        let at = self.time();
        let state = match self.index(6) {
            0 => State::Delivering,
            1 => State::Done {
                at,
                keep_until: self.time(),
            },
            2 => State::Dead {
                at,
                reason: DeadReason::Exhausted,
            },
            _ => State::Pending,
        };
        let attempt = AttemptRecord {
            number: 1,
            due: at,
            started: at,
            held: Duration::ZERO,
            ended: Some(AttemptEnd {
                at,
                result: AttemptResult::Failed,
                detail: "503".to_owned(),
                answer: None,
            }),
        };
        let attempts = vec![attempt; self.index(3)];
        Record {
            name,
            id: TimerId {
                store: 7,
                set: Revision(self.revision),
            },
            revision: Revision(self.revision),
            state,
            created: at,
            due: self.time(),
            clock: self.one(&DueClock::ALL),
            missed: Missed::Fire,
            recurring: None,
            first_due: at,
            policy: RetryPolicy::default(),
            failures: 0,
            interruptions: 0,
            attempt: u32::try_from(attempts.len()).unwrap(),
            attempts,
            payload: vec![7; self.index(300)],
        }
    }

    /// Some names, each once in a shard: half of them removed.
    fn changes(&mut self) -> Vec<(Shard, Change)> {
        let most = self.one(&[2, 20, 100]);
        let (mut changes, mut taken) = (Vec::new(), BTreeSet::new());
        for _ in 0..self.index(most + 1) {
            let shard = self.one(&[SHARDS[0], SHARDS[0], SHARDS[0], SHARDS[1], SHARDS[2]]);
            let name = self.name();
            if taken.insert((shard, name.clone())) {
                changes.push((
                    shard,
                    match self.index(2) {
                        0 => Change::remove(name),
                        _ => Change::put(self.record(name)),
                    },
                ));
            }
        }
        changes
    }

    fn filter(&mut self) -> Filter {
        let mut filter = Filter::queue(self.name().queue);
        if self.index(2) == 0 {
            filter.state = Some(self.one(&StateKind::ALL));
        }
        if self.index(3) == 0 {
            filter.prefix = Some(self.one(&["a", "k", "", "none"]).to_owned());
        }
        if self.index(3) == 0 {
            filter.due_from = Some(self.time());
        }
        if self.index(3) == 0 {
            filter.due_before = Some(self.time());
        }
        filter.limit = self.one(&[0, 1, 2, 5, 100]);
        filter
    }
}

/// Page after page.
fn due(store: &impl Sorted, shard: Shard, scan: &DueScan<'_>) -> Vec<DueEntry> {
    let (mut scan, mut all) = (*scan, Vec::new());
    loop {
        let mut page = store.due(shard, &scan).unwrap();
        all.append(&mut page.entries);
        match page.next {
            Some(next) if all.len() < scan.limit => scan.after = Some(next),
            _ => break,
        }
    }
    all.truncate(scan.limit);
    all
}

fn lists(store: &impl Sorted, shard: Shard, filter: &Filter) -> Vec<Page> {
    let (mut filter, mut pages) = (filter.clone(), Vec::new());
    loop {
        let page = store.list(shard, &filter).unwrap();
        filter.after = page.next;
        pages.push(page);
        // A page of none has a next one for ever.
        if filter.after.is_none() || filter.limit == 0 {
            return pages;
        }
    }
}

/// Asks both the same.
fn compare(tested: &impl Sorted, model: &MemorySorted, maker: &mut Maker) {
    assert_eq!(tested.ingested(), model.ingested());
    for shard in SHARDS {
        for name in &maker.names {
            let (found, wanted) = (tested.get(shard, name), model.get(shard, name));
            assert_eq!(found.unwrap(), wanted.unwrap(), "{shard:?} {name}");
        }
        for clock in DueClock::ALL {
            let scan = DueScan::all(clock);
            assert_eq!(due(tested, shard, &scan), due(model, shard, &scan));
        }
    }
    for _ in 0..10 {
        let shard = maker.one(&SHARDS);
        let queue = maker.name().queue;
        let scan = DueScan {
            clock: maker.one(&DueClock::ALL),
            queue: (maker.index(2) == 0).then_some(&queue),
            after: (maker.index(2) == 0).then(|| Wake {
                at: maker.time(),
                revision: Revision(maker.index(300) as u64),
            }),
            until: maker.time(),
            limit: maker.one(&[0, 1, 7, usize::MAX]),
            scan_limit: maker.one(&[1, 5, usize::MAX]),
        };
        assert_eq!(
            due(tested, shard, &scan),
            due(model, shard, &scan),
            "{scan:?}"
        );
        let filter = maker.filter();
        let (found, wanted) = (lists(tested, shard, &filter), lists(model, shard, &filter));
        assert_eq!(found, wanted, "{filter:?}");
    }
}

fn equals_the_reference<L: Library>(seeds: u64) {
    for seed in 0..seeds {
        println!("seed {seed}");
        let directory = tempfile::tempdir().unwrap();
        let open = || Behind::<L>::open(directory.path()).unwrap();
        let (mut tested, model) = (open(), MemorySorted::default());
        let mut maker = Maker::new(seed);
        let mut reached = None;
        for segment in 1..=20 {
            let changes = maker.changes();
            tested.ingest(segment, changes.clone().into()).unwrap();
            model.ingest(segment, changes.into()).unwrap();
            if maker.index(4) == 0 {
                reached = Some(Reached {
                    segment,
                    commit: 10 * segment,
                });
                tested.checkpoint(reached.unwrap()).unwrap();
            }
            compare(&tested, &model, &mut maker);
            if maker.index(3) == 0 {
                drop(tested);
                tested = open();
                compare(&tested, &model, &mut maker);
            }
            assert_eq!(tested.reached(), reached);
        }
    }
}

/// A copy of the files while it is open is what a killed process leaves: all that was taken in is
/// there.
fn keeps_what_was_taken_in<L: Library>() {
    let directory = tempfile::tempdir().unwrap();
    let (tested, model) = (
        Behind::<L>::open(directory.path()).unwrap(),
        MemorySorted::default(),
    );
    let mut maker = Maker::new(99);
    for segment in 1..=8 {
        let changes = maker.changes();
        tested.ingest(segment, changes.clone().into()).unwrap();
        model.ingest(segment, changes.into()).unwrap();
        let killed = tempfile::tempdir().unwrap();
        copy(directory.path(), killed.path());
        let opened = Behind::<L>::open(killed.path()).unwrap();
        compare(&opened, &model, &mut maker);
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A log with threads, whose segments are so short that most of it gets into the library.
struct Reopened<L: Library> {
    directory: tempfile::TempDir,
    store: Option<FlushingLog<Behind<L>>>,
}

impl<L: Library> Reopen for Reopened<L> {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.store = None;
        let log = self.directory.path().join("log");
        std::fs::create_dir_all(&log).unwrap();
        let base = Behind::open(&self.directory.path().join("behind")).unwrap();
        let mut options = LogOptions::default();
        options.segment_bytes = 1 << 12;
        options.segments_kept = 1;
        let files = Arc::new(SystemFiles::new(&log));
        let log = LogStore::open(base, files, 7, options).unwrap();
        self.store = Some(FlushingLog::start(log).unwrap());
    }
}

fn reopened<L: Library>() -> Box<dyn Reopen> {
    let mut made = Reopened::<L> {
        directory: tempfile::tempdir().unwrap(),
        store: None,
    };
    made.reopen();
    Box::new(made)
}

/// Counts, gets, dues and lists of a log in front of it, and of one in front of the reference.
fn counts_as_the_reference<L: Library>() {
    let mut tested = reopened::<L>();
    let directory = tempfile::tempdir().unwrap();
    let files = Arc::new(SystemFiles::new(directory.path()));
    let model = LogStore::open(MemorySorted::default(), files, 7, LogOptions::default()).unwrap();
    let leases = |store: &dyn Store| {
        SHARDS[..2]
            .iter()
            .map(|&shard| store.acquire(shard).unwrap().lease)
            .collect::<Vec<Lease>>()
    };
    let (mut ours, theirs) = (leases(tested.store()), leases(&model));
    let mut maker = Maker::new(5);
    for round in 0..200 {
        let changes = maker.changes();
        for (at, shard) in SHARDS[..2].iter().enumerate() {
            let of_shard: Vec<Change> = changes
                .iter()
                .filter(|(of, _)| of == shard)
                .map(|(_, change)| change.clone())
                .collect();
            tested.store().commit(ours[at], &of_shard).unwrap();
            model.commit(theirs[at], &of_shard).unwrap();
        }
        if round % 25 == 24 {
            tested.reopen();
            ours = leases(tested.store());
        }
        for shard in &SHARDS[..2] {
            let store = tested.store();
            assert_eq!(store.counts(*shard).unwrap(), model.counts(*shard).unwrap());
            for name in &maker.names {
                assert_eq!(
                    store.get(*shard, name).unwrap(),
                    model.get(*shard, name).unwrap()
                );
            }
            for clock in DueClock::ALL {
                let scan = DueScan::all(clock);
                let entries = |store: &dyn Store| store.due(*shard, &scan).unwrap().entries;
                assert_eq!(entries(store), entries(&model));
            }
            for queue in maker
                .names
                .iter()
                .map(|name| &name.queue)
                .collect::<BTreeSet<&QueueName>>()
            {
                let filter = Filter::queue(queue.clone());
                assert_eq!(
                    store.list(*shard, &filter).unwrap(),
                    model.list(*shard, &filter).unwrap()
                );
            }
        }
    }
}

macro_rules! of {
    ($library:ident, $module:ident, $feature:literal) => {
        #[cfg(feature = $feature)]
        mod $module {
            use super::super::$library;

            #[test]
            fn it_answers_as_the_reference_through_random_histories() {
                super::equals_the_reference::<$library>(20);
            }

            #[test]
            fn it_keeps_what_was_taken_in_when_the_process_is_killed() {
                super::keeps_what_was_taken_in::<$library>();
            }

            #[test]
            fn the_log_in_front_of_it_conforms() {
                super::conformance::check(super::reopened::<$library>);
            }

            #[test]
            fn the_log_in_front_of_it_counts_as_one_in_front_of_the_reference() {
                super::counts_as_the_reference::<$library>();
            }
        }
    };
}

of!(Fjall, of_fjall, "fjall");
of!(Rocks, of_rocksdb, "rocksdb");
