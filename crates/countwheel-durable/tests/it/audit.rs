//! The audit log: one sentence each, under a clock that is moved by hand. `sim audit` has the worlds.

use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::DiskStore;
use countwheel_durable::store::{Cursor, Filter, MemoryStore, Store};
use countwheel_durable::{
    AuditEntry, AuditFilter, BatchError, Changed, Config, DrainMode, Due, JobAction, JobError,
    JobOrder, Missed, Namespace, Note, Precondition, PurgeFilter, QueueName, Receipt, Request,
    Response, RetryPolicy, SetOptions, SettingName, SettingPrecondition, SettingsVersion, Shards,
    Shift, StateKind, Stood, TimerError, TimerName, Timers, inline,
};
use countwheel_time::{ManualClock, Random, Timestamp};

const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);
const DAY: Duration = Duration::from_secs(86_400);
const KEEP: Duration = Duration::from_secs(90 * 86_400);

fn open_on(store: impl Store + 'static, clock: &ManualClock, shards: Shards) -> Timers {
    let clock = Arc::new(clock.clone());
    let (handler, config) = (inline(|_| ()), Config::default());
    Timers::open_divided(store, shards, shards.all(), handler, clock, config).unwrap()
}

fn open(store: &MemoryStore, clock: &ManualClock, shards: Shards) -> Timers {
    open_on(store.clone(), clock, shards)
}

fn one() -> (MemoryStore, ManualClock, Timers) {
    let (store, clock) = (MemoryStore::new(7), ManualClock::at(NOON));
    let timers = open(&store, &clock, Shards::ONE);
    (store, clock, timers)
}

fn name(key: &str) -> TimerName {
    TimerName::new("orders", key).unwrap()
}

fn set_of(key: &str, options: SetOptions) -> Request {
    Request::Set {
        name: name(key),
        due: Due::At(NOON + DAY),
        policy: RetryPolicy::default(),
        payload: b"MARKER of a payload".to_vec(),
        precondition: Precondition::None,
        options,
    }
}

fn set(key: &str) -> Request {
    set_of(key, SetOptions::default())
}

fn by(who: &str) -> Note {
    Note::new(who, KEEP).unwrap()
}

fn all(timers: &Timers) -> Vec<AuditEntry> {
    let filter = AuditFilter {
        newest_first: false,
        limit: 10_000,
        ..AuditFilter::default()
    };
    let page = timers.audit(&filter, None).unwrap();
    assert_eq!((page.unreadable, page.next), (0, None));
    page.entries.into_iter().map(|(_, entry)| entry).collect()
}

fn changed(timers: &Timers) -> Vec<Changed> {
    all(timers).into_iter().map(|entry| entry.changed).collect()
}

fn there(timers: &Timers, key: &str) -> Stood {
    let record = timers.get(name(key)).unwrap().unwrap();
    Stood::There {
        state: record.state.kind(),
        due: record.due,
        revision: record.revision,
        attempts: record.attempt,
    }
}

#[test]
fn an_entry_says_how_the_timer_stood_before_and_after() {
    let (store, clock, timers) = one();
    timers.call(set("a").noted(by("ada"))).unwrap();
    let first = there(&timers, "a");
    clock.advance(Duration::from_secs(60));
    let shift = Request::Move {
        name: name("a"),
        shift: Shift::Later(DAY),
        precondition: Precondition::None,
    };
    timers.call(shift.noted(by("bob"))).unwrap();
    let second = there(&timers, "a");
    assert_ne!(first, second);
    let remove = Request::Remove {
        name: name("a"),
        precondition: Precondition::None,
        only_pending: false,
    };
    timers.call(remove.noted(by("ada"))).unwrap();
    let entry = |before, after| Changed::Timer {
        name: name("a"),
        before,
        after,
    };
    let expected = [
        entry(Stood::Nothing, first),
        entry(first, second),
        entry(second, Stood::Nothing),
    ];
    assert_eq!(changed(&timers), expected);
    let said = all(&timers);
    let notes = said.iter().map(|entry| entry.note.as_slice());
    assert!(notes.eq([&b"ada"[..], b"bob", b"ada"]));
    let later = NOON + Duration::from_secs(60);
    let times: Vec<_> = said.iter().map(|it| (it.at, it.keep_until)).collect();
    assert_eq!(
        times,
        [
            (NOON, NOON + KEEP),
            (later, later + KEEP),
            (later, later + KEEP)
        ]
    );
    // A restart reads the same.
    timers.stop(Duration::ZERO);
    let timers = open(&store, &clock, Shards::ONE);
    assert_eq!(all(&timers), said);
}

#[test]
fn a_dead_timer_that_is_revived_and_fired_says_its_attempts() {
    let (store, clock) = (MemoryStore::new(7), ManualClock::at(NOON));
    let handler = inline(|_| countwheel_durable::Outcome::stopped());
    let timers = Timers::open(store, handler, Arc::new(clock.clone()), Config::default()).unwrap();
    timers.set(name("a"), Duration::ZERO, ()).unwrap();
    while timers.get(name("a")).unwrap().unwrap().state.kind() != StateKind::Dead {
        std::thread::yield_now();
    }
    let dead = there(&timers, "a");
    let revive = Request::Revive {
        name: name("a"),
        due: Due::In(DAY),
    };
    timers.call(revive.noted(by("ada"))).unwrap();
    let pending = there(&timers, "a");
    assert_eq!(
        changed(&timers),
        [Changed::Timer {
            name: name("a"),
            before: dead,
            after: pending
        }]
    );
    assert!(matches!(
        dead,
        Stood::There {
            state: StateKind::Dead,
            attempts: 1,
            ..
        }
    ));
}

#[test]
fn a_request_that_is_refused_has_no_entry() {
    let (_, _, timers) = one();
    timers.call(set("a")).unwrap();
    let refused = [
        Request::Fire { name: name("b") },
        Request::Revive {
            name: name("a"),
            due: Due::In(DAY),
        },
        Request::Move {
            name: name("a"),
            shift: Shift::To(Due::In(DAY * 40_000)),
            precondition: Precondition::None,
        },
        Request::Configure {
            name: SettingName::new("queue/orders").unwrap(),
            value: None,
            precondition: SettingPrecondition::Version(SettingsVersion(9)),
        },
    ];
    for request in refused {
        timers.call(request.noted(by("ada"))).unwrap_err();
    }
    let options = SetOptions {
        missed: Missed::SkipIfOlderThan(Duration::MAX),
        ..SetOptions::default()
    };
    timers
        .call(set_of("c", options).noted(by("ada")))
        .unwrap_err();
    assert_eq!(changed(&timers), []);
}

#[test]
fn a_request_that_changes_nothing_has_no_entry() {
    let (_, _, timers) = one();
    let once = || {
        let receipt = Receipt {
            key: [1; 16],
            fingerprint: [1; 32],
            keep: DAY,
        };
        let options = SetOptions {
            receipt: Some(Box::new(receipt)),
            ..SetOptions::default()
        };
        set_of("a", options).noted(by("ada"))
    };
    timers.call(once()).unwrap();
    let Response::Set(again) = timers.call(once()).unwrap() else {
        panic!("it is a set")
    };
    assert!(again.replayed);
    assert_eq!(changed(&timers).len(), 1);
    // There is no such setting.
    timers
        .noting(Some(by("ada")))
        .resume(Some(&QueueName::new("orders").unwrap()))
        .unwrap();
    assert_eq!(changed(&timers).len(), 1);
}

#[test]
fn a_batch_has_the_entries_of_all_of_its_requests_or_none() {
    let (_, _, timers) = one();
    let batch = |requests| {
        let (send, receive) = std::sync::mpsc::channel();
        timers.submit_batch(requests, move |answer| send.send(answer).unwrap());
        receive.recv().unwrap()
    };
    let refused: Result<_, BatchError> = batch(vec![
        set("a").noted(by("ada")),
        Request::Fire { name: name("x") }.noted(by("ada")),
    ]);
    assert_eq!(refused.unwrap_err().index, Some(1));
    assert_eq!(changed(&timers), []);
    batch(vec![
        set("a").noted(by("ada")),
        set("b"),
        Request::Fire { name: name("a") }.noted(by("bob")),
    ])
    .unwrap();
    let said = all(&timers);
    assert_eq!(said.len(), 2);
    let [
        Changed::Timer {
            before: Stood::Nothing,
            after,
            ..
        },
        Changed::Timer { before, .. },
    ] = [&said[0].changed, &said[1].changed]
    else {
        panic!("{said:?}")
    };
    assert_eq!(after, before, "within the batch");
}

#[test]
fn a_change_of_a_setting_says_its_versions() {
    let (_, _, timers) = one();
    let setting = SettingName::new("queue/orders").unwrap();
    let configure = |value: Option<&str>| {
        let request = Request::Configure {
            name: setting.clone(),
            value: value.map(|value| value.as_bytes().to_vec()),
            precondition: SettingPrecondition::None,
        };
        match timers.call(request.noted(by("ada"))).unwrap() {
            Response::Configured(configured) => configured.version,
            other => panic!("{other:?}"),
        }
    };
    let first = configure(Some("MARKER one"));
    let second = configure(Some("MARKER two"));
    configure(None);
    configure(None);
    let entry = |before, after| Changed::Setting {
        name: setting.clone(),
        before,
        after,
    };
    assert_eq!(
        changed(&timers),
        [
            entry(None, Some(first)),
            entry(Some(first), Some(second)),
            entry(Some(second), None)
        ]
    );
}

#[test]
fn no_entry_has_anything_of_a_payload_or_of_the_value_of_a_setting() {
    let (store, _, timers) = one();
    timers.call(set("a").noted(by("ada"))).unwrap();
    timers
        .call(Request::Fire { name: name("a") }.noted(by("ada")))
        .unwrap();
    let configure = Request::Configure {
        name: SettingName::new("endpoint/shop").unwrap(),
        value: Some(b"MARKER of a secret".to_vec()),
        precondition: SettingPrecondition::None,
    };
    timers.call(configure.noted(by("ada"))).unwrap();
    let queue = QueueName::from_text("countwheel:internal/audit").unwrap();
    let stored = store.list(
        countwheel_durable::store::Shard::ONLY,
        &Filter::queue(queue),
    );
    let stored = stored.unwrap().records;
    assert_eq!(stored.len(), 3);
    for record in stored {
        let text = String::from_utf8_lossy(&record.payload).into_owned();
        assert!(text.contains("ada") && !text.contains("MARKER"), "{text:?}");
    }
}

#[test]
fn entries_are_in_no_count_and_no_request_is_about_one() {
    for shards in [Shards::ONE, Shards::new(4).unwrap()] {
        let timers = open(&MemoryStore::new(7), &ManualClock::at(NOON), shards);
        for number in 1..=9 {
            let receipt = Receipt {
                key: [number; 16],
                fingerprint: [1; 32],
                keep: DAY,
            };
            let options = SetOptions {
                receipt: Some(Box::new(receipt)),
                ..SetOptions::default()
            };
            let key = format!("a{number}");
            timers.call(set_of(&key, options).noted(by("ada"))).unwrap();
        }
        let counts = timers.counts().unwrap();
        assert_eq!(counts.len(), 1, "{counts:?}");
        assert_eq!(counts[0].by_state, [9, 0, 0, 0]);
        for limit in [1, 2, 10] {
            assert_eq!(timers.counts_after(None, limit).unwrap(), counts);
            let overview = timers.overview(limit).unwrap();
            let totals = (overview.totals.queues, overview.totals.by_state);
            assert_eq!(totals, (1, [9, 0, 0, 0]));
            assert_eq!(overview.queues.len(), 1);
        }
        let by_shard = shards.all().map(|shard| timers.totals_of(shard).unwrap());
        let dead: u64 = by_shard.map(|totals| totals.of(StateKind::Dead)).sum();
        assert_eq!(dead, 0);
        let across = timers.page_across(&countwheel_durable::AcrossFilter::default(), None);
        assert_eq!(across.unwrap().page.records.len(), 9);
        assert_eq!(all(&timers).len(), 9);

        let namespace = Namespace::new(Namespace::RESERVED).unwrap();
        let queue = QueueName::in_namespace(&namespace, "audit").unwrap();
        let refused =
            |error: TimerError| assert!(matches!(error, TimerError::Name(_)), "{error:?}");
        let filter = AuditFilter::default();
        let place = timers.audit(&filter, None).unwrap().entries.remove(0).0;
        let stored = timers.page(&Filter::queue(queue.clone()), None).unwrap();
        let entry = stored.records.into_iter().next().unwrap().name;
        refused(timers.set(&entry, DAY, "").unwrap_err());
        refused(timers.remove(&entry).unwrap_err());
        refused(
            timers
                .call(Request::Fire {
                    name: entry.clone(),
                })
                .unwrap_err(),
        );
        let revive = Request::Revive {
            name: entry,
            due: Due::In(DAY),
        };
        refused(timers.call(revive.noted(by("eve"))).unwrap_err());
        refused(timers.drain(&queue, DrainMode::Remove).unwrap_err());
        let job = timers.begin_job(&JobOrder::new(queue.clone(), JobAction::Remove));
        assert!(matches!(job, Err(JobError::Timer(TimerError::Name(_)))));
        assert!(timers.purge(&queue, PurgeFilter::default()).is_err());
        assert_eq!(all(&timers).len(), 9);
        assert_eq!(timers.audit(&filter, None).unwrap().entries[0].0, place);
    }
}

#[test]
fn an_entry_is_gone_once_its_time_is_over() {
    let (store, clock, timers) = one();
    timers.call(set("a").noted(by("ada"))).unwrap();
    let short = Note::new("bob", DAY).unwrap();
    timers.call(set("b").noted(short)).unwrap();
    clock.advance(DAY - Duration::from_micros(1));
    assert_eq!(all(&timers).len(), 2);
    clock.advance(Duration::from_micros(1));
    assert_eq!(all(&timers).len(), 1);
    // Not only hidden: the next turn removes it.
    timers.call(set("c")).unwrap();
    let queue = QueueName::from_text("countwheel:internal/audit").unwrap();
    let stored = || {
        let listed = store.list(
            countwheel_durable::store::Shard::ONLY,
            &Filter::queue(queue.clone()),
        );
        listed.unwrap().records.len()
    };
    while stored() > 1 {
        timers.call(set("c")).unwrap();
    }
    assert_eq!(timers.stats().forgotten, 0);
    assert_eq!(all(&timers)[0].note, b"ada");
}

#[test]
fn a_drain_of_all_shards_has_one_entry() {
    let shards = Shards::new(8).unwrap();
    let timers = open(&MemoryStore::new(7), &ManualClock::at(NOON), shards);
    let ada = timers.noting(Some(by("ada")));
    let orders = QueueName::new("orders").unwrap();
    let held = ada.drain(Some(&orders), DrainMode::Hold).unwrap();
    assert!(held.removed.is_empty() && held.left.is_empty());
    assert!(matches!(
        timers.call(set("a")),
        Err(TimerError::Draining { .. })
    ));
    assert_eq!(ada.resume(Some(&orders)).unwrap(), Some(DrainMode::Hold));
    let said = changed(&timers);
    let [
        Changed::Setting {
            before: None,
            after: Some(_),
            ..
        },
        Changed::Setting {
            before: Some(_),
            after: None,
            ..
        },
    ] = &said[..]
    else {
        panic!("{said:?}")
    };
}

#[test]
fn a_job_and_a_purge_have_the_entries_of_their_begin_and_their_cancel() {
    let (_, _, timers) = one();
    for key in ["a", "b", "c"] {
        timers.call(set(key)).unwrap();
    }
    let ada = timers.noting(Some(by("ada")));
    let orders = QueueName::new("orders").unwrap();
    let job = ada
        .begin_job(&JobOrder::new(orders.clone(), JobAction::Remove))
        .unwrap();
    while timers.job_step(100, &|_, _| true).unwrap().goes_on {}
    // It is over: there is nothing to cancel.
    ada.cancel_job(job.id).unwrap();
    assert_eq!(changed(&timers).len(), 1);
    ada.purge(&orders, PurgeFilter::default()).unwrap();
    ada.cancel_purge(&orders).unwrap();
    ada.cancel_purge(&orders).unwrap();
    assert_eq!(changed(&timers).len(), 3);
}

fn read(timers: &Timers, filter: &AuditFilter) -> Vec<(Cursor, AuditEntry)> {
    let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = timers.audit(filter, after).unwrap();
        assert!(page.entries.len() <= filter.limit);
        found.extend(page.entries);
        pages += 1;
        assert!(pages < 100_000);
        match page.next {
            None => return found,
            next => assert_ne!(next, after),
        }
        after = page.next;
    }
}

/// However the entries are spread in time, each comes once, in either order.
#[test]
fn a_walk_in_either_order_has_every_entry_once() {
    for (seed, count) in (0..40).zip([1, 4].into_iter().cycle()) {
        let mut random = Random::new(seed);
        let clock = ManualClock::at(NOON);
        let timers = open(&MemoryStore::new(7), &clock, Shards::new(count).unwrap());
        let entries = random.below(if seed % 8 == 0 { 700 } else { 60 });
        let pauses = random.below(4);
        for number in 0..entries {
            let key = format!("a{}", number % 7);
            timers
                .call(set(&key).noted(by(&number.to_string())))
                .unwrap();
            let longest =
                [1, 1_000, 60_000_000, 40 * 86_400_000_000][usize::try_from(pauses).unwrap()];
            if random.below(3) == 0 {
                clock.advance(Duration::from_micros(random.below(longest)));
            }
            if random.below(40) == 0 {
                let back =
                    clock_now(&clock).saturating_sub(Duration::from_secs(random.below(7_200)));
                clock.set_timestamp(back);
            }
        }
        let keeps = clock_now(&clock);
        let mut expected = read(
            &timers,
            &AuditFilter {
                newest_first: false,
                limit: 100_000,
                ..AuditFilter::default()
            },
        );
        let kept = expected
            .iter()
            .filter(|(_, entry)| entry.keep_until > keeps);
        assert_eq!(kept.count(), expected.len());
        let some = |random: &mut Random| {
            let at = expected.get(usize::try_from(random.below(entries.max(1))).unwrap());
            at.filter(|_| entries.is_multiple_of(3))
                .map(|(_, entry)| entry.at)
        };
        let mut filter = AuditFilter {
            since: some(&mut random),
            until: some(&mut random),
            newest_first: false,
            limit: 1 + usize::try_from(random.below(40)).unwrap(),
        };
        expected.retain(|(_, entry)| {
            filter.since.is_none_or(|since| entry.at >= since)
                && filter.until.is_none_or(|until| entry.at < until)
        });
        assert!(expected.is_sorted_by_key(|(place, _)| *place), "{seed}");
        assert_eq!(read(&timers, &filter), expected, "{seed}");
        filter.newest_first = true;
        expected.reverse();
        assert_eq!(read(&timers, &filter), expected, "{seed}");
        timers.stop(Duration::ZERO);
    }
}

#[test]
fn a_store_on_a_disk_keeps_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let clock = ManualClock::at(NOON);
    let open = || {
        let store =
            DiskStore::open(directory.path(), 7, countwheel_disk::DiskOptions::default()).unwrap();
        open_on(store, &clock, Shards::ONE)
    };
    let timers = open();
    timers.call(set("a").noted(by("ada"))).unwrap();
    let said = all(&timers);
    assert_eq!(said.len(), 1);
    timers.stop(Duration::ZERO);
    drop(timers);
    let timers = open();
    assert_eq!(all(&timers), said);
}

fn clock_now(clock: &ManualClock) -> Timestamp {
    countwheel_time::Clock::timestamp(clock)
}
