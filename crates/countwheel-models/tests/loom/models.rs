//! The models. Each says in its name what holds, and fails if it does not.

use std::sync::Arc;
use std::task::Waker;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::concurrent::{Fate, Host as HostKind, Parker, Ready, Refusal, Shards};
use crate::host::{Host, LATE, NOW, PAST, SOON, Value, shards, values};
use crate::{Fired, Instant, TimerKey};

fn insert(shards: &Shards<Value>, shard: usize, deadline: Instant, value: Value) -> TimerKey {
    let inserted = shards.of_thread(shard).insert(NOW, deadline, value);
    let Ok(key) = inserted else {
        panic!("refused");
    };
    key
}

/// Lets another thread do something to the shards.
fn meanwhile<R: 'static>(
    shards: &Arc<Shards<Value>>,
    act: impl FnOnce(&Shards<Value>) -> R + 'static,
) -> thread::JoinHandle<R> {
    let shards = Arc::clone(shards);
    thread::spawn(move || act(&shards))
}

pub(crate) fn join<R>(thread: thread::JoinHandle<R>) -> R {
    let Ok(result) = thread.join() else {
        panic!("a thread of the model panicked");
    };
    result
}

// The sleep of the host.

pub(crate) fn an_insert_wakes_a_host_that_falls_asleep() {
    let shards = shards(1, None);
    let host = Host::new(&shards);
    let inserter = meanwhile(&shards, |shards| insert(shards, 0, PAST, 1));
    assert_eq!(host.take(1), [1]);
    join(inserter);
}

pub(crate) fn an_earlier_deadline_shortens_the_sleep() {
    let shards = shards(1, None);
    let host = Host::new(&shards);
    insert(&shards, 0, LATE, 1);
    let inserter = meanwhile(&shards, |shards| insert(shards, 0, SOON, 2));
    while !host.sleep_unless(|until| until <= SOON) {}
    join(inserter);
}

pub(crate) fn inserts_on_two_shards_are_both_seen() {
    let shards = shards(2, None);
    let host = Host::new(&shards);
    let first = meanwhile(&shards, |shards| insert(shards, 0, PAST, 1));
    let second = meanwhile(&shards, |shards| insert(shards, 1, PAST, 2));
    assert_eq!(host.take(2), [1, 2]);
    join(first);
    join(second);
}

/// No bound tells of what is due only then.
pub(crate) fn an_insert_at_the_end_of_time_wakes_the_host() {
    let shards = shards(1, None);
    let parker = Host::new(&shards).parker();
    let inserter = meanwhile(&shards, |shards| {
        let shard = shards.of_thread(0);
        assert!(shard.insert(Instant::MAX, Instant::MAX, 1).is_ok());
    });
    let mut due = Vec::new();
    loop {
        shards.take_due(Instant::MAX, 8, &mut due);
        if !due.is_empty() {
            break;
        }
        // A host that finds nothing rests, even then.
        assert!(shards.fall_asleep(Instant::MAX, Instant::MAX).is_some());
        parker.park(None);
    }
    join(inserter);
}

/// Another shard has something pending: the host looks for the exact deadline only where it
/// is earliest.
pub(crate) fn an_insert_is_seen_while_another_entry_fires() {
    let shards = shards(2, None);
    let host = Host::new(&shards);
    insert(&shards, 1, LATE, 0);
    insert(&shards, 0, PAST, 1);
    let inserter = meanwhile(&shards, |shards| insert(shards, 0, PAST, 2));
    assert_eq!(host.take(2), [1, 2]);
    join(inserter);
}

pub(crate) fn the_earlier_of_two_deadlines_bounds_the_sleep() {
    let shards = shards(1, None);
    let host = Host::new(&shards);
    let first = meanwhile(&shards, |shards| insert(shards, 0, LATE, 1));
    let second = meanwhile(&shards, |shards| insert(shards, 0, SOON, 2));
    while !host.sleep_unless(|until| until <= SOON) {}
    join(first);
    join(second);
}

/// Somebody else's wake-up must not make anybody believe that the host is still awake.
pub(crate) fn an_insert_wakes_a_host_that_was_roused() {
    let shards = shards(1, None);
    let host = Host::new(&shards);
    let rouser = meanwhile(&shards, |shards| shards.hub().rouse());
    let inserter = meanwhile(&shards, |shards| insert(shards, 0, PAST, 1));
    assert_eq!(host.take(1), [1]);
    join(rouser);
    join(inserter);
}

/// A sleep may end by itself while somebody is about to end it.
pub(crate) fn a_host_that_wakes_by_itself_misses_nothing() {
    let shards = shards(2, None);
    let host = Host::new(&shards);
    let first = meanwhile(&shards, |shards| insert(shards, 0, PAST, 1));
    let second = meanwhile(&shards, |shards| insert(shards, 1, PAST, 2));
    host.sleep_unless(|_| true);
    assert_eq!(host.take(2), [1, 2]);
    join(first);
    join(second);
}

pub(crate) fn a_move_to_sooner_wakes_the_host() {
    let shards = shards(1, None);
    let host = Host::new(&shards);
    let key = insert(&shards, 0, LATE, 1);
    let mover = meanwhile(&shards, move |shards| {
        shards.of_thread(0).reschedule(NOW, key, PAST, || ())
    });
    assert_eq!(host.take(1), [1]);
    assert!(join(mover));
}

/// A future that hosts a timer may be polled with another waker each time, and only the last
/// counts.
pub(crate) fn a_host_is_woken_through_its_latest_waker() {
    let shards = shards(1, None);
    let first = Host::new(&shards);
    let inserter = meanwhile(&shards, |shards| insert(shards, 0, PAST, 1));
    first.sleep_unless(|_| true);
    let second = Host::new(&shards);
    assert_eq!(second.take(1), [1]);
    join(inserter);
}

pub(crate) fn a_host_about_to_sleep_is_roused() {
    let shards = shards(1, None);
    let host = Host::new(&shards);
    let closer = meanwhile(&shards, |shards| {
        shards.hub().close();
        shards.hub().rouse();
    });
    while !shards.hub().is_closed() {
        host.sleep_unless(|_| false);
    }
    join(closer);
}

pub(crate) fn a_wake_up_before_the_sleep_ends_it() {
    let parker = Arc::new(Parker::default());
    let waker = Waker::from(Arc::clone(&parker));
    let other = thread::spawn(move || waker.wake());
    parker.park(None);
    join(other);
}

pub(crate) fn the_last_cancel_of_a_closing_timer_wakes_its_host() {
    let shards = shards(1, None);
    let host = Host::new(&shards);
    let key = insert(&shards, 0, LATE, 1);
    let canceller = meanwhile(&shards, move |shards| {
        shards.of_thread(0).cancel(key, || ())
    });
    let closer = meanwhile(&shards, |shards| {
        shards.hub().close();
        shards.hub().rouse();
    });
    while !(shards.hub().is_closed() && shards.counts().pending == 0) {
        host.sleep_unless(|_| false);
    }
    assert_eq!(join(canceller), Some(1));
    join(closer);
}

// What becomes of an entry.

/// Everything is accounted for, and nothing is pending.
fn assert_settled(shards: &Shards<Value>, added: u64) {
    let counts = shards.counts();
    assert_eq!(counts.added, added);
    assert_eq!(counts.pending, 0);
    assert_eq!(counts.fired + counts.cancelled + counts.returned, added);
}

pub(crate) fn an_entry_fires_or_is_cancelled() {
    let shards = shards(1, None);
    let key = insert(&shards, 0, PAST, 1);
    let canceller = meanwhile(&shards, move |shards| {
        let mut noted = false;
        let cancelled = shards.of_thread(0).cancel(key, || noted = true).is_some();
        assert_eq!(noted, cancelled, "only who cancels notes it");
        cancelled
    });
    let mut due = Vec::new();
    shards.take_due(NOW, 8, &mut due);
    let cancelled = join(canceller);
    assert_ne!(due.len() == 1, cancelled, "one of both, not both");
    assert_eq!(shards.of_thread(0).fate(key), Fate::Gone);
    assert_settled(&shards, 1);
}

pub(crate) fn one_of_two_cancels_wins() {
    let shards = shards(1, None);
    let key = insert(&shards, 0, SOON, 1);
    let cancel = move |shards: &Shards<Value>| {
        let mut noted = false;
        let cancelled = shards.of_thread(0).cancel(key, || noted = true).is_some();
        assert_eq!(noted, cancelled, "only who cancels notes it");
        cancelled
    };
    let other = meanwhile(&shards, cancel);
    let here = cancel(&shards);
    assert_ne!(here, join(other), "one of both, not both");
    assert_settled(&shards, 1);
}

pub(crate) fn a_close_finds_what_was_accepted() {
    let shards = shards(1, None);
    let inserter = meanwhile(&shards, |shards| {
        match shards.of_thread(0).insert(NOW, PAST, 1) {
            Ok(key) => Some(key),
            Err((refusal, value)) => {
                assert_eq!((refusal, value), (Refusal::Closed, 1));
                None
            }
        }
    });
    let host = meanwhile(&shards, |shards| {
        let mut due = Vec::new();
        shards.take_due(NOW, 8, &mut due);
        due.len()
    });
    shards.hub().close();
    let returned = shards.drain(false).len();
    let (key, fired) = (join(inserter), join(host));
    assert_eq!(fired + returned, usize::from(key.is_some()));
    if let Some(key) = key {
        let fate = if returned == 1 {
            Fate::Returned
        } else {
            Fate::Gone
        };
        assert_eq!(shards.of_thread(0).fate(key), fate);
    }
    assert_settled(&shards, u64::from(key.is_some()));
}

pub(crate) fn the_accounts_are_right_at_any_moment() {
    let shards = shards(1, None);
    insert(&shards, 0, PAST, 1);
    let key = insert(&shards, 0, LATE, 2);
    let host = meanwhile(&shards, |shards| {
        shards.take_due(NOW, 8, &mut Vec::new());
    });
    let canceller = meanwhile(&shards, move |shards| {
        shards.of_thread(0).cancel(key, || ());
    });
    let counts = shards.counts();
    assert_eq!(counts.added, 2);
    assert_eq!(counts.fired + counts.cancelled + counts.pending, 2);
    join(host);
    join(canceller);
    assert_settled(&shards, 2);
}

pub(crate) fn what_a_stop_took_out_never_seems_to_have_fired() {
    let shards = shards(1, None);
    let key = insert(&shards, 0, LATE, 1);
    let stop = meanwhile(&shards, |shards| {
        shards.hub().close();
        assert_eq!(shards.drain(false).len(), 1);
    });
    assert_ne!(shards.of_thread(0).fate(key), Fate::Gone);
    join(stop);
    assert_eq!(shards.of_thread(0).fate(key), Fate::Returned);
}

// How many entries may be pending.

fn is_full(shards: &Shards<Value>, shard: usize) -> bool {
    let refused = shards.of_thread(shard).insert(NOW, SOON, 0);
    matches!(refused, Err((Refusal::Full, 0)))
}

pub(crate) fn no_more_entries_are_pending_than_may_be() {
    let shards = shards(2, Some(1));
    let other = meanwhile(&shards, |shards| is_full(shards, 0));
    let here = is_full(&shards, 1);
    assert_ne!(here, join(other), "there is room for one");
    assert_eq!(shards.counts().pending, 1);
}

pub(crate) fn no_more_entries_are_counted_than_may_be_pending() {
    let shards = shards(2, Some(1));
    let key = insert(&shards, 0, LATE, 1);
    let mover = meanwhile(&shards, move |shards| {
        assert_eq!(shards.of_thread(0).cancel(key, || ()), Some(1));
        insert(shards, 1, LATE, 2);
    });
    assert!(shards.counts().pending <= 1, "there is room for one");
    join(mover);
    assert_eq!(shards.counts().pending, 1);
}

pub(crate) fn what_leaves_gives_its_room_back() {
    let shards = shards(1, Some(2));
    insert(&shards, 0, PAST, 1);
    let key = insert(&shards, 0, LATE, 2);
    assert!(is_full(&shards, 0));
    let canceller = meanwhile(&shards, move |shards| {
        shards.of_thread(0).cancel(key, || ()).is_some()
    });
    let mut due = Vec::new();
    shards.take_due(NOW, 8, &mut due);
    shards.hub().give_room(due.len() as u64); // as it starts
    assert!(join(canceller));
    assert!(
        !is_full(&shards, 0) && !is_full(&shards, 0),
        "two have left"
    );
    assert!(is_full(&shards, 0));
}

// What has expired.

fn ready(count: Value) -> Arc<Ready<Value>> {
    let ready = Ready::new();
    // A key is needed, but nobody looks at it.
    let key = insert(&shards(1, None), 0, SOON, 0);
    ready.put((1..=count).map(|value| Fired {
        key,
        deadline: PAST,
        lateness: NOW.saturating_since(PAST),
        value,
    }));
    Arc::new(ready)
}

/// Runs the next of the queue, as an executor does.
fn run_next(ready: &Ready<Value>, task: impl FnOnce()) -> Option<Value> {
    let (fired, run) = ready.take(NOW, |_| "task")?;
    task();
    ready.end(run);
    Some(fired.value)
}

pub(crate) fn a_stop_and_an_executor_share_the_queue() {
    let ready = ready(2);
    assert!(ready.issue_ticket());
    let executor = Arc::clone(&ready);
    let executor = thread::spawn(move || run_next(&executor, || ()));
    let returned = values(ready.drain().into());
    ready.announce();
    ready.wait_over(None);
    let progress = ready.progress();
    let ran: Vec<_> = join(executor).into_iter().collect();
    assert_eq!([ran.clone(), returned.clone()].concat(), [1, 2]);
    assert_eq!(progress.started, ran.len() as u64);
    assert_eq!(progress.returned, returned.len() as u64);
    assert_eq!((progress.waiting, progress.running), (0, 0));
}

pub(crate) fn two_stops_share_what_is_left() {
    let shards = shards(1, None);
    insert(&shards, 0, LATE, 2);
    let ready = ready(1);
    let stop = |shards: &Shards<Value>, ready: &Ready<Value>| {
        shards.hub().close();
        let mut left = values(ready.drain().into());
        ready.announce();
        left.extend(shards.drain(false).into_iter().map(|one| one.value));
        left
    };
    let shared = Arc::clone(&ready);
    let other = meanwhile(&shards, move |shards| stop(shards, &shared));
    let mut left = stop(&shards, &ready);
    left.extend(join(other));
    left.sort_unstable();
    assert_eq!(left, [1, 2]);
    assert_eq!(ready.progress().returned, 1);
    assert_settled(&shards, 1);
}

pub(crate) fn a_stop_waits_for_what_runs() {
    let ready = ready(1);
    assert!(ready.issue_ticket());
    let ran = Arc::new(AtomicBool::new(false));
    let executor = (Arc::clone(&ready), Arc::clone(&ran));
    let executor = thread::spawn(move || {
        let (ready, ran) = executor;
        run_next(&ready, || ran.store(true, Ordering::Relaxed))
    });
    let returned = ready.drain().len();
    ready.announce();
    assert!(ready.wait_over(None));
    assert_eq!(ran.load(Ordering::Relaxed), returned == 0);
    join(executor);
}

/// Both of two tasks stop the timer that they run on, and wait for the end of it.
pub(crate) fn two_tasks_that_stop_do_not_wait_for_each_other() {
    let ready = ready(2);
    let stop = |ready: &Ready<Value>| run_next(ready, || assert!(ready.wait_over(None)));
    let executor = Arc::clone(&ready);
    let executor = thread::spawn(move || stop(&executor));
    stop(&ready);
    join(executor);
    assert_eq!(ready.progress().started, 2);
}

/// But another thread waits for both, although they wait as well.
pub(crate) fn a_stop_waits_for_a_task_that_stops() {
    let ready = ready(1);
    let ended = Arc::new(AtomicBool::new(false));
    let executor = (Arc::clone(&ready), Arc::clone(&ended));
    let executor = thread::spawn(move || {
        let (ready, ended) = executor;
        run_next(&ready, || {
            assert!(ready.wait_over(None));
            ended.store(true, Ordering::Relaxed);
        })
    });
    assert!(ready.wait_over(None));
    assert!(ended.load(Ordering::Relaxed));
    join(executor);
}

pub(crate) fn a_stop_in_async_code_is_woken() {
    let ready = ready(1);
    assert!(ready.issue_ticket());
    let executor = Arc::clone(&ready);
    let executor = thread::spawn(move || run_next(&executor, || ()));
    let parker = Arc::new(Parker::default());
    let waker = Waker::from(Arc::clone(&parker));
    while !ready.poll_over(&waker) {
        parker.park(None);
    }
    assert_eq!(join(executor), Some(1));
    assert_eq!(ready.progress().started, 1);
}

pub(crate) fn a_stop_waits_for_the_host() {
    let ready = Arc::new(Ready::<Value>::new());
    ready.set_host(HostKind::Task);
    let ended = Arc::new(AtomicBool::new(false));
    let host = (Arc::clone(&ready), Arc::clone(&ended));
    let host = thread::spawn(move || {
        let (ready, ended) = host;
        ready.set_host(HostKind::Thread(thread::current().id()));
        assert!(ready.wait_over(None), "the host does not wait for itself");
        ended.store(true, Ordering::Relaxed);
        ready.set_host(HostKind::None);
    });
    assert!(ready.wait_over(None));
    assert!(ended.load(Ordering::Relaxed));
    join(host);
}

/// An executor has no room for the second task at first.
pub(crate) fn a_returned_ticket_is_issued_again() {
    let ready = ready(2);
    assert!(ready.issue_ticket());
    let executor = Arc::clone(&ready);
    let executor = thread::spawn(move || run_next(&executor, || ()));
    if ready.issue_ticket() {
        ready.return_ticket();
    }
    let mut ran = 0;
    while ready.issue_ticket() {
        ran += usize::from(run_next(&ready, || ()).is_some());
    }
    assert!(ready.is_handed_out());
    ran += usize::from(join(executor).is_some());
    assert_eq!(ran, 2);
    assert!(ready.wait_over(None));
}
