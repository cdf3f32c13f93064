//! Idle watches: the rows of section 2.11, the lazy re-arming of KEY-10, and what the handle, the
//! executor and the end of the timer have to do with it.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use countwheel::{Instant, Layout, ManualHost, Overload, Pool, Resolution, SleepError, Timer};
use countwheel_patterns::{IdleEvent, IdleKind, IdleLimits, IdleWatch, WatchError, Watched};

use super::support::{Desk, HOUR, Journal, MS, Presence, Random, SECOND, manual, ns, ticks_of};

const MINUTE: Duration = Duration::from_secs(60);
const READER: IdleLimits = IdleLimits::NONE.reader(MINUTE);

type Seen = (u64, IdleKind, bool, Duration);

fn watch_on(timer: &Timer) -> (IdleWatch<u64>, Journal<Seen>) {
    let journal = Journal::new();
    let log = journal.clone();
    let idle = IdleWatch::builder(timer.clone())
        .tick(Resolution::MILLISECOND)
        .build(move |connection: &u64, event: IdleEvent| {
            log.write((*connection, event.kind, event.first, event.idle_for));
        });
    (idle, journal)
}

fn simulated() -> (ManualHost, IdleWatch<u64>, Journal<Seen>) {
    let host = manual(MS, Layout::Hierarchical);
    let (idle, journal) = watch_on(host.timer());
    (host, idle, journal)
}

fn adds_up(idle: &IdleWatch<u64>) {
    let stats = idle.stats();
    assert_eq!(stats.watched, stats.open + stats.closed, "{stats:?}");
}

#[test]
fn each_kind_has_its_limit_and_its_activity() {
    // 2.11: reader / writer / all; on fire, remaining <= 0 is an event.
    let (mut host, idle, journal) = simulated();
    let limits = IdleLimits::NONE
        .reader(10 * SECOND)
        .writer(20 * SECOND)
        .all(30 * SECOND);
    let connection = idle.watch(1, limits).unwrap();
    host.advance(5 * SECOND);
    connection.read();
    host.advance(10 * SECOND);
    assert_eq!(journal.take(), [(1, IdleKind::Reader, true, 10 * SECOND)]);
    connection.read();
    host.advance(5 * SECOND);
    assert_eq!(journal.take(), [(1, IdleKind::Writer, true, 20 * SECOND)]);
    connection.wrote();
    connection.read();
    for _ in 0..6 {
        host.advance(5 * SECOND - MS);
        connection.wrote();
        host.advance(MS);
    }
    let kinds: Vec<_> = journal.take().into_iter().map(|seen| seen.1).collect();
    assert_eq!(
        kinds,
        [IdleKind::Reader; 3],
        "all is not idle while one writes"
    );
    host.advance(30 * SECOND);
    let all = (1, IdleKind::All, true, 30 * SECOND);
    assert!(journal.take().contains(&all));
    let stats = idle.stats();
    assert_eq!(stats.all_idle, 1);
    assert_eq!(stats.panicked + stats.stalls + stats.overtaken, 0);
}

#[test]
fn an_event_is_the_first_until_something_happens() {
    // 2.11: repeated at each further limit; first is reset by activity.
    let (mut host, idle, journal) = simulated();
    let connection = idle.watch(1, READER).unwrap();
    host.advance(3 * MINUTE);
    let event = |first, minutes| (1, IdleKind::Reader, first, minutes * MINUTE);
    assert_eq!(
        journal.take(),
        [event(true, 1), event(false, 2), event(false, 3)]
    );
    connection.wrote();
    host.advance(MINUTE);
    assert_eq!(journal.take(), [event(false, 4)], "a write is no read");
    connection.read();
    host.advance(2 * MINUTE);
    assert_eq!(journal.take(), [event(true, 1), event(false, 2)]);
}

#[test]
fn a_limit_of_zero_is_none_and_the_shortest_is_a_millisecond() {
    // 2.11: <= 0 disables; min 1 ms.
    let (mut host, idle, journal) = simulated();
    let none = IdleLimits::NONE
        .reader(Duration::ZERO)
        .writer(Duration::ZERO)
        .all(Duration::ZERO);
    assert_eq!(none, IdleLimits::NONE);
    let _never = idle.watch(1, none).unwrap();
    let given = IdleLimits {
        reader: Some(Duration::ZERO),
        ..none
    };
    let _never_either = idle.watch(2, given).unwrap();
    let _endless = idle.watch(3, none.all(Duration::MAX)).unwrap();
    host.advance(24 * HOUR);
    assert_eq!(journal.take(), []);
    let quick = idle.watch(4, none.reader(ns(1))).unwrap();
    assert_eq!(quick.limits().reader, Some(MS));
    host.advance(2 * MS);
    assert_eq!(journal.take().len(), 2);
}

#[test]
fn it_is_detected_in_the_tick_in_which_the_limit_passes() {
    // Detection: limit <= idle_for < limit + tick of the table + tick of the timer.
    let mut random = Random(7);
    for _ in 0..200 {
        let (ours, theirs) = (1 + random.below(20_000_000), 1 + random.below(20_000_000));
        let mut host = manual(ns(theirs), Layout::Hierarchical);
        let journal = Journal::new();
        let log = journal.clone();
        let idle = IdleWatch::builder(host.timer().clone())
            .tick(Resolution::new(ns(ours)).unwrap())
            .build(move |_: &u64, event| log.write(event.idle_for));
        let limit = ns(1_000_000 + random.nanos_up_to(60_000_000_000));
        host.clock().advance(ns(random.below(1_000_000_000)));
        let connection = idle.watch(1, IdleLimits::NONE.reader(limit)).unwrap();
        host.advance(ns(random.below(2_000_000_000)));
        connection.read();
        journal.take();
        host.advance(limit + ns(ours + theirs));
        let idle_for = journal.take()[0];
        assert!(limit <= idle_for, "{idle_for:?} is early for {limit:?}");
        assert!(
            idle_for < limit + ns(ours + theirs),
            "{idle_for:?} is late for {limit:?}"
        );
    }
}

#[test]
fn a_read_in_progress_is_no_silence() {
    // 2.11: in-progress read counts as not idle.
    let (mut host, idle, journal) = simulated();
    let connection = idle.watch(1, READER.all(2 * MINUTE)).unwrap();
    let (first, second) = (connection.reading(), connection.reading());
    host.advance(10 * MINUTE);
    drop(first);
    host.advance(10 * MINUTE);
    assert_eq!(connection.read_idle_for(), Duration::ZERO);
    drop(second);
    assert_eq!(journal.take(), []);
    host.advance(MINUTE - MS);
    assert_eq!(journal.take(), []);
    host.advance(MS);
    assert_eq!(journal.take(), [(1, IdleKind::Reader, true, MINUTE)]);
}

#[test]
fn a_million_touches_move_nothing_and_wake_nobody() {
    // KEY-10, 2.12: activity writes a time, and the one entry goes back for the rest.
    let (mut host, idle, journal) = simulated();
    let connection = idle.watch(1, READER).unwrap();
    host.advance(MINUTE / 2);
    let (before, wake) = (host.timer().stats(), host.next_wake());
    for round in 0..250_000 {
        connection.touch();
        connection.read();
        connection.wrote();
        let now = host.timer().now();
        connection.touch_at(now);
        connection.read_at(now);
        connection.wrote_at(now);
        if round % 1_000 == 0 {
            host.clock().advance(ns(1_000));
        }
    }
    assert_eq!(host.timer().stats(), before);
    assert_eq!(host.next_wake(), wake);
    assert_eq!(idle.stats().looks, 0);
    // One look at the old deadline, and one for the rest.
    host.advance(MINUTE / 2);
    assert_eq!((idle.stats().looks, journal.take().len()), (1, 0));
    host.advance(MINUTE / 2 + MS);
    assert_eq!((idle.stats().looks, journal.take().len()), (2, 1));
}

#[test]
fn a_connection_takes_what_is_said() {
    let host = manual(MS, Layout::Hierarchical);
    let idle = IdleWatch::builder(host.timer().clone())
        .shards(NonZeroUsize::MIN)
        .build(|_: &u64, _| {});
    let empty = idle.memory_bytes();
    let mut random = Random(3);
    let watched: Vec<_> = (0..100_000)
        .map(|connection| {
            let limit = MINUTE + ns(random.below(60_000_000_000));
            idle.watch(connection, READER.reader(limit)).unwrap()
        })
        .collect();
    let each = (idle.memory_bytes() - empty) / watched.len();
    assert!(each <= 150, "{each} bytes");
    assert_eq!(size_of::<Watched<u64>>(), 16);
    drop(watched);
    assert!(idle.memory_bytes() < empty + 1_000_000, "freed at once");
}

#[test]
fn a_closed_connection_is_freed_at_once_and_never_heard_of() {
    let host = manual(MS, Layout::Hierarchical);
    let mut host = host;
    let journal = Journal::new();
    let log = journal.clone();
    let idle = IdleWatch::new(host.timer().clone(), move |_: &Presence, event| {
        log.write(event);
    });
    let presence = Presence::default();
    let connection = idle.watch(presence.clone(), READER).unwrap();
    assert!(!presence.is_over());
    drop(connection);
    assert!(
        presence.is_over(),
        "2.4, defect 21: nothing is kept until the next round"
    );
    host.advance(HOUR);
    assert_eq!(journal.take(), []);
    assert_eq!(
        (idle.len(), idle.is_empty(), idle.stats().closed),
        (0, true, 1)
    );
}

#[test]
fn a_full_executor_delays_events_and_loses_none() {
    let desk = Desk::with_room(0);
    let mut host = ticks_of(MS, Layout::Hierarchical)
        .executor(Arc::clone(&desk))
        .manual(countwheel::ManualClock::new());
    let (idle, journal) = watch_on(host.timer());
    let watched: Vec<_> = (0..1_000)
        .map(|id| idle.watch(id, READER).unwrap())
        .collect();
    host.advance(3 * MINUTE + MINUTE / 2);
    assert_eq!(journal.take(), []);
    assert_eq!(idle.stats().looks, 1_000, "and nothing heaps up meanwhile");

    // Who is closed or has traffic before the handler is called is not heard of.
    watched[7].read();
    let mut watched = watched;
    drop(watched.remove(3));
    desk.set_room(usize::MAX);
    host.advance(SECOND);
    desk.run_all();
    let seen = journal.take();
    assert_eq!(seen.len(), 998);
    assert_eq!(idle.stats().overtaken, 1);
    assert!(
        seen.iter().all(|seen| seen.2 && seen.3 >= 3 * MINUTE),
        "those missed are one"
    );
    assert!(seen.iter().all(|seen| seen.0 != 7 && seen.0 != 3));

    // And all are watched as before.
    host.advance(MINUTE);
    desk.run_all();
    assert_eq!(journal.take().len(), 999);
    adds_up(&idle);
}

#[test]
fn a_task_that_the_executor_drops_is_made_up_for() {
    let desk = Desk::with_room(0);
    let mut host = ticks_of(MS, Layout::Hierarchical)
        .executor(Arc::clone(&desk))
        .overload(Overload::hand_back(drop))
        .manual(countwheel::ManualClock::new());
    let (idle, journal) = watch_on(host.timer());
    let _watched: Vec<_> = (0..10).map(|id| idle.watch(id, READER).unwrap()).collect();
    host.advance(MINUTE + SECOND);
    desk.set_room(usize::MAX);
    host.advance(SECOND);
    desk.run_all();
    assert_eq!(journal.take().len(), 10);
    assert!((10..30).contains(&host.timer().stats().returned));
}

#[test]
fn a_handler_that_panics_does_not_end_the_watch() {
    let mut host = manual(MS, Layout::Hierarchical);
    let journal = Journal::new();
    let log = journal.clone();
    let idle = IdleWatch::new(host.timer().clone(), move |id: &u64, event: IdleEvent| {
        log.write((*id, event.kind));
        assert!(*id != 1, "on purpose");
    });
    let limits = READER.all(MINUTE);
    let _both = [
        idle.watch(1, limits).unwrap(),
        idle.watch(2, limits).unwrap(),
    ];
    host.advance(2 * MINUTE);
    assert_eq!(journal.take().len(), 8);
    assert_eq!(idle.stats().panicked, 4);
    assert_eq!(host.timer().stats().panicked, 0);
}

#[test]
fn other_limits_take_effect_at_once() {
    // 2.4: reset of the limits, which Dubbo's client ignores.
    let (mut host, idle, journal) = simulated();
    let connection = idle.watch(1, READER).unwrap();
    host.advance(MINUTE + MINUTE / 2);
    let event = |first, idle_for| (1, IdleKind::Reader, first, idle_for);
    assert_eq!(journal.take(), [event(true, MINUTE)]);

    connection.set_limits(READER.reader(80 * SECOND));
    host.run_due();
    assert_eq!(
        journal.take(),
        [event(true, 90 * SECOND)],
        "sooner: passed already"
    );
    connection.set_limits(READER.reader(HOUR));
    host.advance(59 * MINUTE);
    assert_eq!(journal.take().len(), 1, "later: at an hour, which is now");
    connection.set_limits(IdleLimits::NONE);
    host.advance(10 * HOUR);
    assert_eq!(journal.take(), []);
}

#[test]
fn limits_that_change_while_an_event_waits_are_minded() {
    let desk = Desk::with_room(usize::MAX);
    let mut host = ticks_of(MS, Layout::Hierarchical)
        .executor(Arc::clone(&desk))
        .manual(countwheel::ManualClock::new());
    let (idle, journal) = watch_on(host.timer());
    let connection = idle.watch(1, READER).unwrap();
    host.advance(MINUTE);
    assert_eq!(desk.taken(), 1);
    connection.set_limits(READER.reader(2 * MINUTE));
    desk.run_all();
    assert_eq!(journal.take(), []);
    host.advance(MINUTE);
    desk.run_all();
    assert_eq!(journal.take(), [(1, IdleKind::Reader, true, 2 * MINUTE)]);
}

#[test]
fn a_stall_is_one_event_late_or_none_if_it_is_compensated() {
    let (mut host, idle, journal) = simulated();
    let _watched: Vec<_> = (0..2_000)
        .map(|id| idle.watch(id, READER).unwrap())
        .collect();
    host.clock().advance(10 * MINUTE);
    host.run_due();
    let seen = journal.take();
    assert_eq!(seen.len(), 2_000, "in slices, but all of them");
    assert!(seen.iter().all(|seen| seen.3 == 10 * MINUTE));

    let mut host = manual(MS, Layout::Hierarchical);
    let journal = Journal::new();
    let log = journal.clone();
    let idle = IdleWatch::builder(host.timer().clone())
        .tick(Resolution::MILLISECOND)
        .compensate_stalls(SECOND)
        .build(move |_: &u64, event| log.write(event.idle_for));
    let connection = idle.watch(1, READER).unwrap();
    host.advance(MINUTE / 2);
    host.clock().advance(10 * MINUTE);
    host.run_due();
    assert_eq!(connection.read_idle_for(), MINUTE / 2 + SECOND);
    host.advance(MINUTE / 2 - SECOND - MS);
    assert_eq!(journal.take(), []);
    host.advance(MS);
    assert_eq!(journal.take(), [MINUTE]);
    let stats = idle.stats();
    assert_eq!((stats.stalls, stats.stalled), (1, 10 * MINUTE - SECOND));
    drop(connection);
    host.advance(SECOND);
    assert_eq!(host.next_wake(), None, "an empty table looks at nothing");
}

#[test]
fn when_the_timer_or_the_table_ends_so_does_the_watch() {
    let host = manual(MS, Layout::Hierarchical);
    let presence = Presence::default();
    let captured = presence.clone();
    let idle = IdleWatch::new(host.timer().clone(), move |_: &u64, _| {
        drop(captured.clone());
    });
    let connection = idle.watch(1, READER).unwrap();
    host.timer().stop();
    assert!(matches!(idle.watch(2, READER), Err(WatchError::Closed(2))));
    connection.touch();
    connection.set_limits(IdleLimits::NONE);
    assert_eq!(connection.limits(), IdleLimits::NONE);
    drop(idle);
    assert!(presence.is_over(), "a handle does not keep the handler");
    drop(connection);

    let (mut host, idle, journal) = simulated();
    let connection = idle.watch(1, READER).unwrap();
    let other = idle.clone();
    drop(idle);
    host.advance(MINUTE);
    assert_eq!(journal.take().len(), 1);
    other.stop();
    host.advance(HOUR);
    assert_eq!(journal.take(), []);
    assert!(matches!(other.watch(2, READER), Err(WatchError::Closed(2))));
    drop(connection);
    adds_up(&other);
}

#[test]
fn a_table_does_not_keep_a_timer_that_nobody_has() {
    let host = manual(MS, Layout::Hierarchical);
    let weak = host.timer().downgrade();
    let (idle, _journal) = watch_on(host.timer());
    let connection = idle.watch(1, READER).unwrap();
    drop(host);
    assert!(weak.upgrade().is_some(), "the table uses it");
    drop((idle, connection));
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_handler_may_do_everything() {
    let mut host = manual(MS, Layout::Hierarchical);
    type Slot = Arc<Mutex<Option<Watched<u64>>>>;
    let slot: Slot = Arc::default();
    let (theirs, done) = (Arc::clone(&slot), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&done);
    let idle = IdleWatch::new(host.timer().clone(), move |_: &u64, event: IdleEvent| {
        count.fetch_add(1, Ordering::Relaxed);
        let mut slot = theirs.lock().unwrap();
        if event.first {
            slot.as_ref().unwrap().set_limits(READER.reader(MINUTE / 2));
            slot.as_ref().unwrap().touch();
        }
        if count.load(Ordering::Relaxed) == 3 {
            slot.take(); // closes itself
        }
    });
    *slot.lock().unwrap() = Some(idle.watch(1, READER).unwrap());
    host.advance(HOUR);
    assert_eq!((done.load(Ordering::Relaxed), idle.len()), (3, 0));
}

/// One connection, as anybody would write it down, in whole milliseconds.
#[derive(Clone, Copy)]
struct Plain {
    last: [u64; 2],
    limits: [u64; 3],
    told: u64,
    reading: bool,
    anew: bool,
}

impl Plain {
    fn look(&mut self, now: u64) -> Vec<(IdleKind, bool, u64)> {
        if self.reading {
            self.last[0] = now;
        }
        let told = if self.anew { 0 } else { self.told };
        let kinds = [
            (IdleKind::Reader, self.last[0]),
            (IdleKind::Writer, self.last[1]),
            (IdleKind::All, self.last[0].max(self.last[1])),
        ];
        let mut events = Vec::new();
        for ((kind, last), limit) in kinds.into_iter().zip(self.limits) {
            if limit == 0 {
                continue;
            }
            let said = told.saturating_sub(last) / limit;
            if (now - last) / limit > said {
                events.push((kind, said == 0, now - last));
            }
        }
        if !events.is_empty() {
            (self.told, self.anew) = (now, false);
        }
        events
    }
}

#[test]
fn any_interleaving_is_as_a_plain_model_says() {
    for seed in 0..300 {
        interleave(&mut Random(seed));
    }
}

fn interleave(random: &mut Random) {
    let (mut host, idle, journal) = simulated();
    let (mut now, mut next_id) = (0, 0);
    let mut models: BTreeMap<u64, Plain> = BTreeMap::new();
    let mut handles: BTreeMap<u64, Watched<u64>> = BTreeMap::new();
    for _ in 0..40 {
        let limits = [0; 3].map(|_: u64| random.below(3) * (1 + random.below(30)));
        let [reader, writer, all] = limits.map(Duration::from_millis);
        let given = IdleLimits::NONE.reader(reader).writer(writer).all(all);
        let choice = random.below(10);
        if choice < 3 && models.len() < 6 {
            let plain = Plain {
                last: [now; 2],
                limits,
                told: 0,
                reading: false,
                anew: false,
            };
            models.insert(next_id, plain);
            handles.insert(next_id, idle.watch(next_id, given).unwrap());
            next_id += 1;
        }
        let open: Vec<_> = models.keys().copied().collect();
        let Some(&id) = open.get(usize::try_from(random.below(6)).unwrap()) else {
            continue;
        };
        let plain = models.get_mut(&id).unwrap();
        let mut reading = None;
        match choice {
            3 => {
                models.remove(&id);
                handles.remove(&id);
            }
            4 => {
                (plain.limits, plain.anew) = (limits, true);
                handles[&id].set_limits(given);
            }
            5 => {
                plain.last[0] = now;
                handles[&id].read();
            }
            6 => {
                plain.last[1] = now;
                handles[&id].wrote();
            }
            7 => {
                plain.last = [now; 2];
                handles[&id].touch();
            }
            8 => {
                plain.reading = true;
                reading = Some(handles[&id].reading());
            }
            _ => {}
        }
        // Time passes, or is lost in a stall.
        let mut expected = Vec::new();
        let mut look =
            |models: &mut BTreeMap<u64, Plain>, now| {
                for (&id, plain) in models {
                    let events = plain.look(now).into_iter();
                    expected.extend(events.map(|(kind, first, millis)| {
                        (id, kind, first, Duration::from_millis(millis))
                    }));
                }
            };
        let span = random.below(40);
        host.run_due();
        look(&mut models, now);
        if random.below(4) == 0 {
            host.clock().advance(Duration::from_millis(span));
            host.run_due();
            look(&mut models, now + span);
        } else {
            host.advance(Duration::from_millis(span));
            (now + 1..=now + span).for_each(|now| look(&mut models, now));
        }
        now += span;
        if reading.is_some() {
            let plain = models.get_mut(&id).unwrap();
            (plain.reading, plain.last[0]) = (false, now);
        }
        drop(reading);
        let mut seen = journal.take();
        let order = |seen: &Seen| (seen.0, seen.1 as u8, seen.3);
        seen.sort_by_key(order);
        expected.sort_by_key(order);
        assert_eq!(seen, expected);
        adds_up(&idle);
        assert_eq!(idle.len(), models.len() as u64);
    }
    handles.clear();
    assert!(host.timer().stats().panicked == 0 && idle.is_empty());
    host.timer().stop();
    adds_up(&idle);
}

#[test]
fn who_is_always_active_is_never_idle_whatever_the_threads_do() {
    // Touch against expiry: the limit is some ticks, the touches come more often.
    let timer = Timer::builder()
        .executor(Pool::new(2, 100).unwrap())
        .build();
    let (events, early) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (count, too_early) = (Arc::clone(&events), Arc::clone(&early));
    let limit = 20 * MS;
    let clock = timer.clone();
    let touched: Arc<[AtomicU64; 4]> = Arc::default();
    let theirs = Arc::clone(&touched);
    let idle = IdleWatch::builder(timer.clone())
        .tick(Resolution::MILLISECOND)
        .build(move |id: &u64, event: IdleEvent| {
            let last = theirs[usize::try_from(*id).unwrap()].load(Ordering::SeqCst);
            let since = clock.now().saturating_since(Instant::from_nanos(last));
            count.fetch_add(1, Ordering::Relaxed);
            // Touched again between the look and this line, perhaps, but then only just.
            if since < limit && since > event.idle_for {
                too_early.fetch_add(1, Ordering::Relaxed);
            }
            if event.idle_for < limit {
                too_early.fetch_add(1, Ordering::Relaxed);
            }
        });
    let (barrier, over) = (Barrier::new(4), AtomicBool::new(false));
    thread::scope(|scope| {
        for id in 0..4 {
            let (idle, touched, timer) = (&idle, &touched, &timer);
            let (barrier, over) = (&barrier, &over);
            scope.spawn(move || {
                barrier.wait();
                let began = timer.now();
                let slot = &touched[usize::try_from(id).unwrap()];
                while !over.load(Ordering::Relaxed) {
                    let limits = IdleLimits::NONE.reader(limit).all(limit);
                    let connection = idle.watch(id, limits).unwrap();
                    for _ in 0..2_000 {
                        connection.touch();
                        slot.store(timer.now().as_nanos(), Ordering::SeqCst);
                    }
                    if id == 0 && timer.now().saturating_since(began) > 200 * MS {
                        over.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let stats = idle.stats();
    assert_eq!(early.load(Ordering::Relaxed), 0);
    assert_eq!((stats.open, stats.watched), (0, stats.closed));
    assert_eq!(
        stats.reader_idle + stats.all_idle,
        events.load(Ordering::Relaxed)
    );
    assert!(stats.looks < 1_000_000, "{stats:?}");
}

#[test]
fn a_real_timer_tells_of_silence() {
    let timer = Timer::new();
    let (sender, events) = mpsc::channel();
    let idle = IdleWatch::new(timer.clone(), move |id: &u64, event: IdleEvent| {
        sender.send((*id, event.idle_for)).unwrap();
    });
    let _connection = idle.watch(9, IdleLimits::NONE.all(5 * MS)).unwrap();
    let (id, idle_for) = events.recv().unwrap();
    assert!(id == 9 && idle_for >= 5 * MS);
}

#[test]
fn who_is_closed_by_its_own_handler_is_freed_at_once() {
    let mut host = manual(MS, Layout::Hierarchical);
    let slot: Arc<Mutex<Option<Watched<Presence>>>> = Arc::default();
    let theirs = Arc::clone(&slot);
    let idle = IdleWatch::new(host.timer().clone(), move |_: &Presence, _| {
        drop(theirs.lock().unwrap().take());
    });
    let presence = Presence::default();
    *slot.lock().unwrap() = Some(idle.watch(presence.clone(), READER).unwrap());
    host.advance(MINUTE + SECOND);
    assert!(idle.is_empty() && presence.is_over());
}

#[test]
fn a_short_stall_period_does_not_stop_time() {
    let mut host = ManualHost::new();
    let idle = IdleWatch::builder(host.timer().clone())
        .compensate_stalls(Duration::from_micros(100))
        .build(|_: &u32, _| {});
    let _one = idle.watch(1, IdleLimits::NONE.reader(SECOND)).unwrap();
    host.advance(5 * SECOND);
    let stats = idle.stats();
    assert!(stats.reader_idle >= 1, "{stats:?}");
}

#[test]
fn a_handler_that_sets_limits_is_not_called_for_ever() {
    let mut host = ManualHost::new();
    type Slot = Arc<Mutex<Option<Arc<Watched<u32>>>>>;
    let slot: Slot = Arc::default();
    let (own, calls) = (Arc::clone(&slot), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    let limits = IdleLimits::NONE.reader(SECOND);
    let idle = IdleWatch::new(host.timer().clone(), move |_: &u32, _| {
        if counted.fetch_add(1, Ordering::SeqCst) < 2_000 {
            own.lock().unwrap().as_ref().unwrap().set_limits(limits);
        }
    });
    let one = Arc::new(idle.watch(1, limits).unwrap());
    *slot.lock().unwrap() = Some(Arc::clone(&one));
    host.advance(SECOND + 50 * MS);
    slot.lock().unwrap().take();
    assert!(
        calls.load(Ordering::SeqCst) <= 2,
        "{} events",
        calls.load(Ordering::SeqCst)
    );
}

#[test]
fn who_takes_events_gets_them_in_order_and_learns_what_was_missed() {
    let mut host = manual(MS, Layout::Hierarchical);
    let room = NonZeroUsize::new(2).unwrap();
    let builder = IdleWatch::builder(host.timer().clone()).tick(Resolution::MILLISECOND);
    let (idle, mut events) = builder.build_events(room);
    let wakes = Arc::new(Wakes::default());
    let waker = std::task::Waker::from(Arc::clone(&wakes));
    let mut cx = Context::from_waker(&waker);
    assert!(events.poll_take(&mut cx).is_pending());

    let one = idle.watch(1, READER).unwrap();
    host.advance(SECOND);
    let two = idle.watch(2, READER).unwrap();
    host.advance(MINUTE);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "by the first event");
    host.advance(MINUTE);
    assert_eq!(events.missed(), 2);
    for number in [1, 2] {
        let Poll::Ready(Some((connection, event))) = events.poll_take(&mut cx) else {
            panic!("an event of {number}");
        };
        assert_eq!(
            (connection, event.first, event.idle_for),
            (number, true, MINUTE)
        );
    }
    assert!(events.poll_take(&mut cx).is_pending());
    drop((one, two));
    assert!(events.poll_take(&mut cx).is_pending());
    drop(idle);
    assert!(matches!(events.poll_take(&mut cx), Poll::Ready(None)));
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl std::task::Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn who_awaits_a_connection_is_told_when_its_handler_is() {
    let (mut host, idle, journal) = simulated();
    let connection = idle.watch(1, READER.writer(90 * SECOND)).unwrap();
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let mut until = connection.idle();
    let mut told = move |host: &mut ManualHost, span| {
        let mut told = Vec::new();
        let target = host.timer().now() + span;
        loop {
            while let Poll::Ready(event) = Pin::new(&mut until).poll(&mut cx) {
                let event = event.unwrap();
                told.push((1, event.kind, event.first, event.idle_for));
            }
            let wake = host.next_wake().filter(|&wake| wake <= target);
            let Some(wake) = wake else { break };
            host.advance(wake.saturating_since(host.timer().now()));
        }
        host.advance(target.saturating_since(host.timer().now()));
        told
    };
    let mut both = |host: &mut ManualHost, span| {
        let told = told(host, span);
        assert_eq!(journal.take(), told);
        told.len()
    };
    assert_eq!(both(&mut host, 50 * SECOND), 0);
    connection.read();
    assert_eq!(both(&mut host, 50 * SECOND), 1, "the writer's first");
    assert_eq!(both(&mut host, 50 * SECOND), 1, "the reader's first");
    assert_eq!(both(&mut host, 50 * SECOND), 2, "the second of each");
    connection.touch();
    assert_eq!(both(&mut host, MINUTE), 1);
    let reading = connection.reading();
    assert_eq!(both(&mut host, 10 * SECOND), 0);
    drop(reading);
    assert_eq!(both(&mut host, 100 * SECOND), 2);
}

#[test]
fn who_awaits_a_connection_learns_that_the_timer_has_stopped() {
    let (host, idle, _) = simulated();
    let connection = idle.watch(1, IdleLimits::NONE).unwrap();
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let mut until = connection.idle();
    assert!(Pin::new(&mut until).poll(&mut cx).is_pending());
    host.timer().stop();
    let end = Pin::new(&mut until).poll(&mut cx);
    assert!(matches!(end, Poll::Ready(Err(SleepError::Closed))));
}
