//! Ends that are not the request's own: its channel's, the table's, the timer's, and that of an
//! executor without room.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use countwheel::{Layout, ManualClock, ManualHost, Overload, Stop, Timer};
use countwheel_patterns::{OwnId, RegisterError, RequestError, Requests, Response};

use crate::support::{Count, Desk, HOUR, Journal, MS, SECOND, YEAR, manual, ns};

fn host() -> ManualHost {
    manual(MS, Layout::default())
}

fn table<T: Send + 'static>(host: &ManualHost) -> Requests<T> {
    Requests::new(host.timer().clone())
}

fn end<T: Send + std::fmt::Debug + 'static>(response: Response<T>) -> &'static str {
    assert!(response.is_ended(), "{response:?}");
    name(&response.wait())
}

fn name<T>(result: &Result<T, RequestError>) -> &'static str {
    match result {
        Ok(_) => "completed",
        Err(RequestError::TimedOut { .. }) => "timed out",
        Err(RequestError::Cancelled) => "cancelled",
        Err(RequestError::ChannelClosed) => "closed",
        Err(RequestError::Stopped) => "stopped",
        Err(RequestError::Failed(_)) => "failed",
        Err(_) => "something new",
    }
}

// 2.5, closeChannel(t): waits up to t for each request in flight, then fails it as inactive;
// one after another there, so n times t in all. Here they all have the same t, and nobody waits.
#[test]
fn a_closing_channel_leaves_its_requests_the_grace_and_no_more() {
    let mut host = host();
    let requests = table(&host);
    let (channel, other) = (requests.channel(), requests.channel());
    let limits = [HOUR, HOUR, HOUR, SECOND, HOUR, Duration::MAX];
    let [answered, failed, cancelled, timed_out, closed, endless] =
        limits.map(|limit| channel.register(limit).unwrap());
    let elsewhere = [other.register(HOUR), requests.register(HOUR)].map(Result::unwrap);
    assert_eq!((channel.in_flight(), other.in_flight()), (6, 1));

    let mut closing = channel.close(3 * SECOND);
    let waker = Count::new();
    assert!(waker.poll(&mut closing).is_pending());
    assert!(channel.is_closed() && channel.clone().is_closed() && !other.is_closed());
    for _ in 0..2 {
        let refused = channel.register(HOUR);
        assert!(matches!(refused, Err(RegisterError::ChannelClosed)));
    }
    host.advance(SECOND);
    assert_eq!(end(timed_out), "timed out", "sooner than the grace");
    requests.complete(answered.id(), 1).unwrap();
    requests.fail(failed.id(), "no").unwrap();
    drop(cancelled);
    assert_eq!((end(answered), end(failed)), ("completed", "failed"));
    host.advance(2 * SECOND - ns(1));
    assert!(!closed.is_ended() && !endless.is_ended(), "never early");
    assert_eq!(waker.woken(), 0);
    host.advance(ns(1));
    assert_eq!((end(closed), end(endless)), ("closed", "closed"));
    assert_eq!(waker.woken(), 1);
    assert!(waker.poll(&mut closing).is_ready());
    assert!(elsewhere.iter().all(|response| !response.is_ended()));
    let stats = requests.stats();
    assert_eq!((stats.closed, stats.in_flight, stats.refused), (2, 2, 2));
}

#[test]
fn a_channel_without_grace_or_without_requests_closes_there_and_then() {
    let host = host();
    let requests = table::<()>(&host);
    requests.channel().close(HOUR).wait();

    let channel = requests.channel();
    let responses: Vec<_> = (0..1_000)
        .map(|_| channel.register(HOUR).unwrap())
        .collect();
    let patient = channel.close(Duration::MAX);
    assert!(responses.iter().all(|response| !response.is_ended()));
    channel.close(Duration::ZERO).wait();
    patient.wait();
    for response in responses {
        assert_eq!(end(response), "closed");
    }
    channel.close(HOUR).wait();
    assert_eq!((channel.in_flight(), requests.stats().closed), (0, 1_000));
}

#[test]
fn of_two_closes_the_sooner_counts() {
    for (first, second) in [(HOUR, SECOND), (SECOND, HOUR)] {
        let mut host = host();
        let requests = table::<()>(&host);
        let channel = requests.channel();
        let response = channel.register(YEAR).unwrap();
        let closings = [channel.close(first), channel.close(second)];
        host.advance(SECOND - ns(1));
        assert!(!response.is_ended());
        host.advance(ns(1));
        assert_eq!(end(response), "closed");
        for closing in closings {
            closing.wait();
        }
        host.advance(HOUR);
    }
}

#[test]
fn more_requests_than_one_look_takes_all_end_in_their_time() {
    let mut host = host();
    let requests = table::<()>(&host);
    let channel = requests.channel();
    let kept: Vec<_> = (0..2_000)
        .map(|_| channel.register(HOUR).unwrap())
        .collect();
    let timed: Vec<_> = (0..2_000)
        .map(|_| requests.register(SECOND).unwrap())
        .collect();
    drop(channel.close(SECOND));
    drop(channel);
    host.advance(SECOND);
    assert!(kept.into_iter().all(|response| end(response) == "closed"));
    assert!(
        timed
            .into_iter()
            .all(|response| end(response) == "timed out")
    );
    assert_eq!(requests.in_flight(), 0);
    assert!(host.timer().pending() <= 2);
}

#[test]
fn the_place_of_a_channel_is_given_to_another_when_nothing_is_left_of_it() {
    let mut host = host();
    let builder = Requests::<u64>::builder(host.timer().clone());
    let requests = builder.shards(std::num::NonZeroUsize::MIN).build();
    // The handle goes first, then the request; and the other way round.
    let channel = requests.channel();
    let response = channel.register(SECOND).unwrap();
    drop(channel.close(HOUR));
    drop(channel);
    let fresh = requests.channel();
    assert!(!fresh.is_closed());
    drop(response);
    let recycled = requests.channel();
    assert!(!recycled.is_closed(), "a new one");
    let first = fresh.register(SECOND).unwrap();
    let second = recycled.register(SECOND).unwrap();
    assert_eq!((fresh.in_flight(), recycled.in_flight()), (1, 1));
    drop(fresh.close(Duration::ZERO));
    assert!(first.is_ended() && !second.is_ended());
    host.advance(2 * HOUR);
    assert_eq!(end(second), "timed out", "no grace of the old one is left");
    drop((fresh, recycled));
    for _ in 0..10_000 {
        let channel = requests.channel();
        drop(channel.register(SECOND).unwrap());
        drop(channel.close(SECOND));
    }
    assert_eq!(requests.stats().cancelled, 10_001);
}

// 2.5, destroy(), and defect 32: callers were left hanging.
#[test]
fn however_it_stops_every_caller_is_told() {
    type Way = fn(&mut ManualHost, Requests<u32>) -> Option<Requests<u32>>;
    let ways: [(&str, Way); 8] = [
        ("stop", |_, requests| {
            assert_eq!(requests.stop(), 5);
            assert_eq!(requests.stop(), 0);
            Some(requests)
        }),
        ("drop", |_, requests| {
            let stopped = requests.clone();
            drop(requests);
            assert_eq!(stopped.in_flight(), 5, "a clone is left");
            drop(stopped);
            None
        }),
        ("timer, drop", |host, requests| {
            drop(host.timer().close(Stop::Drop));
            Some(requests)
        }),
        ("timer, hand back", |host, requests| {
            assert!(
                host.timer().stop().unfired.is_empty(),
                "no task of anybody's"
            );
            Some(requests)
        }),
        ("timer, run now", |host, requests| {
            drop(host.timer().close(Stop::RunNow));
            Some(requests)
        }),
        ("timer, wait for nothing", |host, requests| {
            drop(host.timer().close(Stop::WaitUpTo(Duration::ZERO)));
            host.run_due();
            Some(requests)
        }),
        ("timer, wait for a while", |host, requests| {
            drop(host.timer().close(Stop::WaitUpTo(SECOND)));
            host.advance(SECOND);
            Some(requests)
        }),
        ("both", |host, requests| {
            drop(host.timer().close(Stop::Drop));
            assert_eq!(requests.stop(), 0);
            Some(requests)
        }),
    ];
    for (what, way) in ways {
        let mut host = host();
        let requests = table::<u32>(&host);
        let channel_less = [HOUR, Duration::MAX].map(|limit| requests.register(limit).unwrap());
        let own = requests.register_as(OwnId(1), HOUR).unwrap();
        let journal = Journal::new();
        for limit in [HOUR, Duration::MAX] {
            let journal = journal.clone();
            let response = requests.register(limit).unwrap();
            response.on_end(move |result| journal.write(name(&result)));
        }
        let left = way(&mut host, requests);
        host.run_due();
        for response in channel_less.into_iter().chain([own]) {
            assert_eq!(end(response), "stopped", "{what}");
        }
        assert_eq!(journal.take(), ["stopped", "stopped"], "{what}");
        assert_eq!(host.timer().pending(), 0, "{what}");
        if let Some(requests) = left {
            assert!(requests.is_stopped(), "{what}");
            assert_eq!((requests.stats().stopped, requests.in_flight()), (5, 0));
            for _ in 0..2 {
                let refused = requests.register(SECOND);
                assert!(matches!(refused, Err(RegisterError::Stopped)), "{what}");
                let refused = requests.register_as(OwnId(1), SECOND);
                assert!(matches!(refused, Err(RegisterError::Stopped)), "{what}");
                let refused = requests.channel().register(SECOND);
                assert!(matches!(refused, Err(RegisterError::Stopped)), "{what}");
            }
            let channel = requests.channel();
            channel.close(SECOND).wait();
        }
    }
}

// One that has to wait for the end of time has to be told of a stop as well.
#[test]
fn a_request_without_a_limit_ends_with_its_timer() {
    let mut host = host();
    let requests = table::<()>(&host);
    let response = requests.register(Duration::MAX).unwrap();
    host.advance(YEAR);
    drop(host.timer().close(Stop::Drop));
    assert_eq!(end(response), "stopped");
}

#[test]
fn a_stop_closes_channels_and_what_waits_for_them() {
    let host = host();
    let requests = table::<()>(&host);
    let (channel, open) = (requests.channel(), requests.channel());
    let response = channel.register(HOUR).unwrap();
    let closing = channel.close(HOUR);
    let abandoned = requests.channel();
    let kept = abandoned.register(HOUR).unwrap();
    drop(abandoned);
    requests.stop();
    closing.wait();
    assert!(open.is_closed() && channel.is_closed());
    assert_eq!((end(response), end(kept)), ("stopped", "stopped"));
    assert_eq!((channel.in_flight(), open.in_flight()), (0, 0));
    drop((channel, open));
}

// A timer that is closed by one whom it has just woken: there is no bell left to ring then.
#[test]
fn a_timer_that_is_closed_while_it_rings_leaves_nobody_behind() {
    struct Close(Timer);
    impl std::task::Wake for Close {
        fn wake(self: Arc<Self>) {
            drop(self.0.close(Stop::Drop));
        }
    }
    let mut host = host();
    let requests = table::<()>(&host);
    let waker = std::task::Waker::from(Arc::new(Close(host.timer().clone())));
    let mut first = requests.register(SECOND).unwrap();
    let mut cx = std::task::Context::from_waker(&waker);
    assert!(std::pin::Pin::new(&mut first).poll(&mut cx).is_pending());
    let second = requests.register(2 * SECOND).unwrap();
    host.advance(SECOND);
    assert_eq!((end(first), end(second)), ("timed out", "stopped"));
    assert_eq!(requests.in_flight(), 0);
}

// Closed with a wait, a timer takes nothing new; its last deadlines still come.
#[test]
fn a_timer_that_waits_for_its_end_ends_requests_at_the_next_deadline() {
    let mut host = host();
    let requests = table::<()>(&host);
    let limits = [SECOND, 2 * SECOND];
    let [first, second] = limits.map(|limit| requests.register(limit).unwrap());
    drop(host.timer().close(Stop::WaitUpTo(HOUR)));
    assert!(requests.is_stopped());
    assert!(requests.register(SECOND).is_err());
    host.advance(SECOND);
    assert_eq!((end(first), end(second)), ("timed out", "stopped"));
}

fn desk_host(desk: &Arc<Desk>, overload: Overload) -> ManualHost {
    let builder = Timer::builder().executor(Arc::clone(desk));
    builder.overload(overload).manual(ManualClock::new())
}

fn logged(requests: &Requests<u32>, limit: Duration) -> (Journal<&'static str>, u64) {
    let journal = Journal::new();
    let kept = journal.clone();
    let response = requests.register(limit).unwrap();
    let id = response.on_end(move |result| kept.write(name(&result)));
    (journal, id.as_u64())
}

#[test]
fn a_handler_runs_on_the_executor_and_once() {
    let desk = Desk::with_room(usize::MAX);
    let mut host = desk_host(&desk, Overload::default());
    let requests = table::<u32>(&host);
    let (timed_out, _) = logged(&requests, SECOND);
    let (answered, id) = logged(&requests, HOUR);
    host.advance(SECOND);
    requests
        .complete(countwheel_patterns::RequestId::from_u64(id).unwrap(), 1)
        .unwrap();
    // One that has ended before it gets its handler.
    let early = requests.register(SECOND).unwrap();
    requests.complete(early.id(), 2).unwrap();
    let journal = Journal::new();
    let kept = journal.clone();
    early.on_end(move |result| kept.write(name(&result)));
    host.run_due();
    assert_eq!(desk.taken(), 3);
    let none: [&str; 0] = [];
    assert_eq!(timed_out.take(), none, "not on the host");
    desk.run_all();
    assert_eq!(timed_out.take(), ["timed out"]);
    assert_eq!(
        (answered.take(), journal.take()),
        (vec!["completed"], vec!["completed"])
    );
    host.advance(HOUR);
    desk.run_all();
    assert_eq!((timed_out.take(), answered.take()), (vec![], vec![]));
    assert_eq!(requests.stats().handled_inline, 0);
    assert!(host.timer().pending() <= 2, "no handler waits any more");
}

// Defect 32 and EXP-3: the pool refuses the task, and the future never completes.
#[test]
fn an_executor_without_room_keeps_no_caller_waiting() {
    let desk = Desk::with_room(0);
    let mut host = desk_host(&desk, Overload::default());
    let builder = Requests::<u32>::builder(host.timer().clone());
    let requests = builder.handler_patience(5 * MS).build();
    let mut response = requests.register(SECOND).unwrap();
    let waker = Count::new();
    assert!(waker.poll(&mut response).is_pending());
    let (journal, _) = logged(&requests, SECOND);
    host.advance(SECOND);
    assert_eq!(waker.woken(), 1, "who waits is told by the host itself");
    assert_eq!(end(response), "timed out");
    assert_eq!((journal.take().len(), requests.in_flight()), (0, 0));
    host.advance(5 * MS);
    assert_eq!(journal.take(), ["timed out"], "and a handler runs there");
    assert_eq!(requests.stats().handled_inline, 1);
    // When there is room again, it does not run a second time.
    desk.set_room(10);
    host.advance(SECOND);
    desk.run_all();
    assert_eq!(journal.take().len(), 0);
}

// An executor that has taken the task and never runs it: all its threads wait for answers.
#[test]
fn an_executor_that_is_stuck_keeps_no_caller_waiting() {
    let desk = Desk::with_room(10);
    let mut host = desk_host(&desk, Overload::default());
    let requests = table::<u32>(&host);
    let (journal, _) = logged(&requests, SECOND);
    host.advance(SECOND);
    assert_eq!((desk.taken(), journal.take().len()), (1, 0));
    host.advance(100 * MS);
    assert_eq!(journal.take(), ["timed out"]);
    desk.run_all();
    assert_eq!(journal.take().len(), 0);
}

#[test]
fn a_task_that_nobody_runs_completes_its_caller_all_the_same() {
    // Dropped by whoever gets back what the executor refuses.
    let desk = Desk::with_room(0);
    let mut host = desk_host(&desk, Overload::hand_back(drop));
    let requests = table::<u32>(&host);
    let (journal, _) = logged(&requests, SECOND);
    host.advance(SECOND);
    assert_eq!(journal.take(), ["timed out"]);
    assert_eq!(requests.stats().handled_inline, 1);

    // Dropped by the executor.
    let desk = Desk::with_room(10);
    let mut host = desk_host(&desk, Overload::default());
    let requests = table::<u32>(&host);
    let (journal, _) = logged(&requests, SECOND);
    host.advance(SECOND);
    drop(desk.take());
    assert_eq!(journal.take(), ["timed out"]);

    // Dropped by a stop, together with all that waits for the executor.
    let desk = Desk::with_room(0);
    let mut host = desk_host(&desk, Overload::default());
    let requests = table::<u32>(&host);
    let (journal, _) = logged(&requests, SECOND);
    host.advance(SECOND);
    drop(host.timer().close(Stop::Drop));
    assert_eq!(journal.take(), ["timed out"]);

    // Dropped with the table, while the executor has it.
    let desk = Desk::with_room(10);
    let mut host = desk_host(&desk, Overload::default());
    let requests = table::<u32>(&host);
    let (journal, _) = logged(&requests, SECOND);
    host.advance(SECOND);
    drop(requests);
    assert_eq!(journal.take(), ["timed out"]);
    desk.run_all();
    assert_eq!(journal.take().len(), 0);
}

#[test]
fn a_handler_of_a_stopped_timer_runs_where_the_request_ends() {
    let desk = Desk::with_room(0);
    let host = desk_host(&desk, Overload::default());
    let requests = table::<u32>(&host);
    let early = requests.register(HOUR).unwrap();
    let (journal, _) = logged(&requests, HOUR);
    drop(host.timer().close(Stop::Drop));
    assert_eq!(journal.take(), ["stopped"]);
    let kept = journal.clone();
    early.on_end(move |result| kept.write(name(&result)));
    assert_eq!(journal.take(), ["stopped"]);
}

#[test]
fn handlers_may_stop_everything_and_a_panic_stops_nothing() {
    let mut host = host();
    let requests = table::<u32>(&host);
    let count = Arc::new(AtomicUsize::new(0));
    for _ in 0..3 {
        let (count, table) = (Arc::clone(&count), requests.clone());
        requests.register(SECOND).unwrap().on_end(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            table.stop();
            panic!("boom");
        });
    }
    let (journal, _) = logged(&requests, HOUR);
    drop(requests);
    host.advance(SECOND);
    assert_eq!(count.load(Ordering::SeqCst), 3);
    assert_eq!(journal.take(), ["stopped"]);
    assert!(host.timer().stats().panicked >= 1);
}

// an error whose `into` panics.
#[test]
fn an_error_that_panics_fails_its_request_all_the_same() {
    struct E;
    impl From<E> for Box<dyn std::error::Error + Send + Sync> {
        fn from(_: E) -> Self {
            panic!("on purpose")
        }
    }
    let host = ManualHost::new();
    let requests = Requests::<u32>::builder(host.timer().clone())
        .max_in_flight(1)
        .build();
    let response = requests.register_as(OwnId(7), SECOND).unwrap();
    let id = response.id();
    let _ = catch_unwind(AssertUnwindSafe(|| drop(requests.fail(id, E))));
    let ended = response.is_ended();
    drop(response);
    let again = requests.register_as(OwnId(7), SECOND);
    assert!(ended, "nobody ends it any more: a wait would hang");
    assert!(again.is_ok(), "{again:?}");
}
