//! Requests in flight, row by row: Dubbo's DefaultFuture (2.5), without its defects.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use countwheel::{ManualHost, Timer};
use countwheel_patterns::{
    DUBBO_TIMEOUT, Deadline, Late, OwnId, RegisterError, RequestError, RequestId, Requests,
};

use crate::support::{Count, HOUR, MS, Presence, SECOND, YEAR, layouts, manual, ns};

fn table<T: Send + 'static>(host: &ManualHost) -> Requests<T> {
    Requests::new(host.timer().clone())
}

// 2.5, Timer: 30 ms ticks and a thread there, none of either here.
#[test]
fn a_request_times_out_at_its_deadline_and_not_before() {
    for layout in layouts() {
        for tick in [ns(1), MS, 30 * MS] {
            let mut host = manual(tick, layout);
            let requests = table::<()>(&host);
            host.advance(ns(7));
            let response = requests.register(DUBBO_TIMEOUT).unwrap();
            assert_eq!(response.deadline(), host.timer().now() + SECOND);
            host.advance(SECOND - ns(1));
            assert!(!response.is_ended());
            host.advance(tick);
            let Err(RequestError::TimedOut { elapsed, .. }) = response.wait() else {
                panic!("not timed out");
            };
            assert!(elapsed >= SECOND && elapsed < SECOND + tick, "{elapsed:?}");
        }
    }
}

// 2.5, Timer: a timeout of 0 or less means the default there. Here it is what it says.
#[test]
fn no_time_ends_at_once_and_all_the_time_never() {
    let mut host = manual(MS, layouts()[0]);
    let requests = table::<()>(&host);
    let never = requests.register(Duration::MAX).unwrap();
    let also_never = requests.register(Deadline::NEVER).unwrap();
    host.advance(ns(1));
    let at_once = requests.register(Duration::ZERO).unwrap();
    let passed = requests.register(countwheel::Instant::ZERO).unwrap();
    host.run_due();
    for response in [at_once, passed] {
        assert!(response.is_ended());
        let Err(RequestError::TimedOut { elapsed, .. }) = response.wait() else {
            panic!("not timed out");
        };
        assert_eq!(elapsed, Duration::ZERO);
    }
    host.advance(100 * YEAR);
    assert!(!never.is_ended() && !also_never.is_ended());
    requests.complete(never.id(), ()).unwrap();
    never.wait().unwrap();
}

// 2.5, Flow: response: remove, cancel the handle, complete.
#[test]
fn an_answer_ends_the_request_and_then_time_is_of_no_consequence() {
    let mut host = manual(MS, layouts()[0]);
    let requests = table(&host);
    let mut response = requests.register(SECOND).unwrap();
    let waker = Count::new();
    assert!(waker.poll(&mut response).is_pending());
    assert_eq!(requests.in_flight(), 1);
    requests.complete(response.id(), "pong").unwrap();
    assert_eq!((waker.woken(), requests.in_flight()), (1, 0));
    // 2.5, On fire: gone or done, so nothing.
    host.advance(HOUR);
    assert_eq!(waker.woken(), 1);
    assert!(matches!(waker.poll(&mut response), Poll::Ready(Ok("pong"))));
    let stats = requests.stats();
    assert_eq!(
        (stats.completed, stats.timed_out_unsent, stats.late),
        (1, 0, 0)
    );
}

// 2.5, Flow: a late response is a line in a log there.
#[test]
fn a_late_answer_comes_back_with_how_late_it_is() {
    let mut host = manual(MS, layouts()[0]);
    let requests = table(&host);
    let timed_out = requests.register(SECOND).unwrap();
    let own = requests.register_as(OwnId(7), SECOND).unwrap();
    let cancelled = requests.register(SECOND).unwrap();
    let answered = requests.register(SECOND).unwrap();
    let ids = [cancelled.id(), answered.id()];
    cancelled.cancel();
    requests.complete(answered.id(), 1).unwrap();
    host.advance(SECOND + 30 * MS);
    let by = |late: Result<(), Late<i32>>| {
        let late = late.unwrap_err();
        assert_eq!(late.value, 2);
        late.by
    };
    assert_eq!(by(requests.complete(timed_out.id(), 2)), Some(30 * MS));
    assert_eq!(by(requests.complete(OwnId(7), 2)), Some(30 * MS));
    for id in ids {
        assert_eq!(by(requests.complete(id, 2)), None, "it did not time out");
    }
    assert_eq!(by(requests.complete(OwnId(8), 2)), None, "nobody knows it");
    let made_up = RequestId::from_u64(u64::MAX).unwrap();
    assert_eq!(by(requests.complete(made_up, 2)), None);
    let failed = requests.fail(timed_out.id(), "no").unwrap_err();
    assert_eq!((failed.value, failed.by), ("no", Some(30 * MS)));
    assert_eq!(requests.stats().late, 7);
    assert_eq!(answered.wait().unwrap(), 1);
    drop((timed_out, own));
    assert_eq!(
        requests.stats().cancelled,
        1,
        "what has ended is not cancelled"
    );
}

// 2.5, On fire: server side if it was sent, else client side; section 5, row 12.
#[test]
fn a_time_out_tells_whether_the_request_was_sent() {
    let mut host = manual(MS, layouts()[0]);
    let requests = table::<()>(&host);
    let queued = requests.register(SECOND).unwrap();
    let sent = requests.register(SECOND).unwrap();
    let own = requests.register_as(OwnId(1), SECOND).unwrap();
    assert!(requests.mark_sent(sent.id()));
    assert!(requests.mark_sent(OwnId(1)));
    host.advance(SECOND);
    for (response, was_sent) in [(queued, false), (sent, true), (own, true)] {
        let id = response.id();
        let error = response.wait().unwrap_err();
        let RequestError::TimedOut { sent, elapsed } = error else {
            panic!("{error}");
        };
        assert_eq!((sent, elapsed), (was_sent, SECOND));
        assert!(!requests.mark_sent(id), "too late");
    }
    let stats = requests.stats();
    assert_eq!((stats.timed_out_unsent, stats.timed_out_sent), (1, 2));
}

// a client that stalls before it writes had marked its request as sent, after the deadline and
// before the timer's host came: the other side was blamed.
#[test]
fn a_request_that_is_sent_after_its_deadline_was_not_sent_in_time() {
    let mut host = manual(MS, layouts()[0]);
    let requests = table::<()>(&host);
    let stalled = requests.register(SECOND).unwrap();
    let own = requests.register_as(OwnId(1), SECOND).unwrap();
    let in_time = requests.register(SECOND).unwrap();
    host.clock().advance(SECOND - Duration::from_nanos(1));
    assert!(requests.mark_sent(in_time.id()));
    host.clock().advance(Duration::from_nanos(1)); // nobody has looked at the deadlines yet
    assert!(!requests.mark_sent(stalled.id()) && !requests.mark_sent(OwnId(1)));
    assert!(
        !requests.mark_sent(in_time.id()),
        "it is too late to say more"
    );
    host.run_due();
    for (response, was_sent) in [(stalled, false), (own, false), (in_time, true)] {
        let RequestError::TimedOut { sent, .. } = response.wait().unwrap_err() else {
            panic!("it timed out");
        };
        assert_eq!(sent, was_sent);
    }
    let stats = requests.stats();
    assert_eq!((stats.timed_out_unsent, stats.timed_out_sent), (2, 1));
}

// 2.5, cancel(); defect 32: a cancel after the completion failed there.
#[test]
fn a_request_is_cancelled_once_and_not_after_its_end() {
    let host = manual(MS, layouts()[0]);
    let requests = table::<()>(&host);

    drop(requests.register(SECOND).unwrap());
    requests.register(SECOND).unwrap().cancel();
    assert_eq!((requests.stats().cancelled, requests.in_flight()), (2, 0));

    let mut response = requests.register_as(OwnId(3), SECOND).unwrap();
    let waker = Count::new();
    assert!(waker.poll(&mut response).is_pending());
    assert!(requests.cancel(OwnId(3)));
    assert_eq!(waker.woken(), 1, "its caller is told");
    assert!(!requests.cancel(OwnId(3)) && !requests.cancel(response.id()));
    assert!(matches!(response.wait(), Err(RequestError::Cancelled)));

    let answered = requests.register(SECOND).unwrap();
    requests.complete(answered.id(), ()).unwrap();
    assert!(!requests.cancel(answered.id()));
    answered.wait().unwrap();
    assert_eq!(requests.stats().cancelled, 3);
}

// 2.8, last row, and section 5, row 12: the request's memory was held until the wheel came by.
#[test]
fn nothing_of_a_request_stays_behind_when_it_has_ended() {
    let mut host = manual(MS, layouts()[0]);
    let timer = host.timer().clone();
    let requests = Requests::<Presence>::new(timer.clone());
    let question = Presence::default();
    let answer = Presence::default();

    let kept = question.clone();
    let id = requests.register(HOUR).unwrap().on_end(move |_| drop(kept));
    requests.complete(id, answer.clone()).unwrap();
    host.run_due();
    assert!(question.is_over() && answer.is_over());

    let response = requests.register(HOUR).unwrap();
    requests.complete(response.id(), answer.clone()).unwrap();
    assert!(!answer.is_over(), "its caller has it");
    drop(response.wait().unwrap());
    assert!(answer.is_over());

    let kept = question.clone();
    let id = requests.register(HOUR).unwrap().on_end(move |_| drop(kept));
    requests.cancel(id);
    host.run_due();
    assert!(question.is_over());

    // What comes late goes back, and not into the table.
    drop(requests.complete(id, answer.clone()));
    assert!(answer.is_over());
    assert_eq!(requests.in_flight(), 0);
    assert!(timer.pending() <= 1, "one entry for all");
}

#[test]
fn the_timer_has_one_entry_however_many_requests_there_are() {
    let host = Timer::builder()
        .max_pending(1)
        .manual(countwheel::ManualClock::new());
    let requests = Requests::<()>::new(host.timer().clone());
    let all: Vec<_> = (0..1_000)
        .map(|number| requests.register(SECOND + number * MS).unwrap())
        .collect();
    assert_eq!(host.timer().pending(), 1);
    drop(all);
    drop(requests);
    assert_eq!(host.timer().pending(), 0, "a table takes its entry with it");
}

#[test]
fn a_number_of_the_callers_own_is_taken_until_the_request_has_ended() {
    let mut host = manual(MS, layouts()[0]);
    let requests = table::<u32>(&host);
    let refused = |requests: &Requests<u32>| {
        let refused = requests.register_as(OwnId(0), SECOND);
        matches!(refused, Err(RegisterError::Duplicate(OwnId(0))))
    };
    let ends: [fn(&Requests<u32>, &mut ManualHost); 5] = [
        |requests, _| requests.complete(OwnId(0), 1).unwrap(),
        |requests, _| requests.fail(OwnId(0), "no").unwrap(),
        |requests, _| assert!(requests.cancel(OwnId(0))),
        |_, host| assert!(host.advance(SECOND) > 0),
        |_, _| {}, // dropped below
    ];
    for end in ends {
        let response = requests.register_as(OwnId(0), SECOND).unwrap();
        assert!(refused(&requests) && refused(&requests));
        end(&requests, &mut host);
        drop(response);
        assert!(requests.complete(OwnId(0), 2).is_err());
    }
    // Whoever is told of the end may take the number there and then.
    let next = requests.clone();
    let response = requests.register_as(OwnId(0), SECOND).unwrap();
    response.on_end(move |_| {
        next.register_as(OwnId(0), HOUR).unwrap().on_end(|_| {});
    });
    host.advance(SECOND);
    assert!(refused(&requests));
    assert_eq!(requests.stats().refused, 11);
}

#[test]
fn as_many_requests_are_in_flight_as_may_be() {
    let mut host = manual(MS, layouts()[0]);
    let builder = Requests::<u32>::builder(host.timer().clone());
    let requests = builder.max_in_flight(2).build();
    let is_full = |requests: &Requests<u32>| {
        let refused = requests.register(SECOND);
        matches!(refused, Err(RegisterError::Full))
    };
    let channel = requests.channel();
    let ends: [fn(&Requests<u32>, &mut ManualHost, RequestId); 4] = [
        |requests, _, id| requests.complete(id, 1).unwrap(),
        |requests, _, id| requests.fail(id, "no").unwrap(),
        |requests, _, id| assert!(requests.cancel(id)),
        |_, host, _| assert!(host.advance(SECOND) > 0),
    ];
    let _one = requests.register(YEAR).unwrap();
    for end in ends {
        let two = channel.register(SECOND).unwrap();
        assert!(is_full(&requests));
        end(&requests, &mut host, two.id());
    }
    // Neither a number that is taken nor a closed channel costs room.
    let _own = requests.register_as(OwnId(1), SECOND).unwrap();
    assert!(requests.cancel(OwnId(1)));
    let own = requests.register_as(OwnId(1), SECOND).unwrap();
    drop(own);
    drop(channel.close(Duration::ZERO));
    for _ in 0..3 {
        let refused = channel.register(SECOND);
        assert!(matches!(refused, Err(RegisterError::ChannelClosed)));
    }
    let _two = requests.register(SECOND).unwrap();
    assert!(is_full(&requests));
    let none = Requests::<u32>::builder(host.timer().clone()).max_in_flight(0);
    assert!(is_full(&none.build()));
}

#[test]
fn ids_are_never_given_twice_and_find_nothing_when_they_are_old() {
    let host = manual(MS, layouts()[0]);
    let requests = table::<u64>(&host);
    let mut ids = Vec::new();
    let mut in_flight = Vec::new();
    for round in 0..3_000_u64 {
        let response = requests.register(SECOND).unwrap();
        assert_eq!(
            RequestId::from_u64(response.id().as_u64()),
            Some(response.id())
        );
        ids.push(response.id());
        in_flight.push(response);
        if round % 3 > 0 {
            let response = in_flight.swap_remove(0);
            requests.complete(response.id(), round).unwrap();
            assert_eq!(response.wait().unwrap(), round);
        }
    }
    let old: Vec<_> = ids
        .iter()
        .filter(|id| !in_flight.iter().any(|response| response.id() == **id))
        .collect();
    for &id in &old {
        assert!(requests.complete(*id, 0).is_err());
    }
    assert!(in_flight.iter().all(|response| !response.is_ended()));
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
    // Numbers that nobody gave.
    assert!(RequestId::from_u64(0).is_none() && RequestId::from_u64(1).is_none());
    for number in (0..64).map(|bit| 1_u64 << bit | 1 << 63) {
        let id = RequestId::from_u64(number).unwrap();
        assert!(requests.complete(id, 0).is_err() && !requests.cancel(id));
    }
}

// The grace of a channel and the patience of a handler are on the same wheel as requests.
#[test]
fn an_id_that_was_made_up_does_not_hit_what_is_no_request() {
    let mut host = manual(MS, layouts()[0]);
    let builder = Requests::<()>::builder(host.timer().clone());
    let requests = builder.shards(std::num::NonZeroUsize::MIN).build();
    let channel = requests.channel();
    let response = channel.register(HOUR).unwrap();
    let closing = channel.close(SECOND);
    for number in 0..64 {
        let id = RequestId::from_u64(1 << 32 | number).unwrap();
        if id != response.id() {
            assert!(!requests.cancel(id) && !requests.mark_sent(id));
        }
    }
    host.advance(SECOND);
    assert!(matches!(response.wait(), Err(RequestError::ChannelClosed)));
    closing.wait();
}

#[test]
fn what_keeps_what_alive() {
    let timer = Timer::new();
    let weak = timer.downgrade();
    let requests = Requests::<()>::new(timer.clone());
    let channel = requests.channel();
    let (promise, response) = requests.promise(HOUR).unwrap();
    drop(requests);
    assert!(!response.is_ended(), "a channel is a handle as well");
    drop(channel);
    assert!(matches!(response.wait(), Err(RequestError::Stopped)));
    let late = promise.complete(()).unwrap_err();
    assert_eq!(late.by, None);
    drop(timer);
    assert!(
        weak.upgrade().is_none(),
        "a table that is gone keeps no timer"
    );

    let timer = Timer::new();
    let weak = timer.downgrade();
    let requests = Requests::<()>::new(timer.clone());
    let ended = requests.register(HOUR).unwrap();
    requests.complete(ended.id(), ()).unwrap();
    drop((requests, timer));
    assert!(
        weak.upgrade().is_none(),
        "nor does an answer that nobody has taken"
    );
    ended.wait().unwrap();
}

#[test]
fn who_is_told_may_do_anything_with_the_table() {
    struct Meddle(Requests<u32>, std::sync::Mutex<Vec<RequestId>>);
    impl std::task::Wake for Meddle {
        fn wake(self: Arc<Self>) {
            let requests = &self.0;
            let next = requests.register(HOUR).unwrap();
            requests.mark_sent(next.id());
            let channel = requests.channel();
            drop(channel.register(HOUR).unwrap());
            drop(channel.close(SECOND));
            self.1.lock().unwrap().push(next.id());
            requests.complete(next.id(), 1).unwrap();
            assert!(requests.stats().registered > 0);
        }
    }
    let mut host = manual(MS, layouts()[0]);
    let requests = table::<u32>(&host);
    let meddle = Arc::new(Meddle(requests.clone(), std::sync::Mutex::default()));
    let waker = std::task::Waker::from(Arc::clone(&meddle));
    let mut cx = std::task::Context::from_waker(&waker);
    let channel = requests.channel();
    let mut responses: Vec<_> = [SECOND, 2 * SECOND, HOUR, HOUR, HOUR]
        .map(|limit| channel.register(limit).unwrap())
        .into();
    for response in &mut responses {
        assert!(std::pin::Pin::new(response).poll(&mut cx).is_pending());
    }
    host.advance(SECOND);
    requests.complete(responses[1].id(), 1).unwrap();
    assert!(requests.cancel(responses[2].id()));
    requests.fail(responses[3].id(), "no").unwrap();
    drop(channel.close(Duration::ZERO));
    assert_eq!(meddle.1.lock().unwrap().len(), 5);
    assert!(
        responses
            .iter()
            .all(countwheel_patterns::Response::is_ended)
    );
    assert_eq!(requests.in_flight(), 0);
}

#[test]
fn a_waker_that_panics_keeps_nobody_else_from_being_told() {
    struct Grenade;
    impl std::task::Wake for Grenade {
        fn wake(self: Arc<Self>) {
            panic!("boom");
        }
    }
    let mut host = manual(MS, layouts()[0]);
    let requests = table::<u32>(&host);
    let grenade = std::task::Waker::from(Arc::new(Grenade));
    let mut cx = std::task::Context::from_waker(&grenade);
    let mut first = requests.register(SECOND).unwrap();
    assert!(std::pin::Pin::new(&mut first).poll(&mut cx).is_pending());
    let second = requests.register(SECOND).unwrap();
    host.advance(SECOND);
    assert!(first.is_ended() && second.is_ended());

    let mut third = requests.register(SECOND).unwrap();
    assert!(std::pin::Pin::new(&mut third).poll(&mut cx).is_pending());
    requests.complete(third.id(), 1).unwrap();
    assert_eq!(third.wait().unwrap(), 1);
}

// 2.10, Raft: failAfter gives a future that fails with a time-out; completing it ends that.
#[test]
fn a_promise_is_kept_broken_or_too_late() {
    let mut host = manual(MS, layouts()[0]);
    let requests = table::<u32>(&host);
    let (promise, response) = requests.promise(SECOND).unwrap();
    promise.complete(1).unwrap();
    host.advance(HOUR);
    assert_eq!(response.wait().unwrap(), 1);

    let (promise, response) = requests.promise(SECOND).unwrap();
    promise.fail("not the leader").unwrap();
    assert!(matches!(response.wait(), Err(RequestError::Failed(_))));

    let (promise, response) = requests.promise(SECOND).unwrap();
    host.advance(SECOND + MS);
    assert!(matches!(
        response.wait(),
        Err(RequestError::TimedOut { .. })
    ));
    assert_eq!(promise.complete(2).unwrap_err().by, Some(MS));

    let (promise, response) = requests.promise(SECOND).unwrap();
    drop(promise);
    assert!(matches!(response.wait(), Err(RequestError::Cancelled)));

    let (promise, response) = requests.promise(SECOND).unwrap();
    drop(response);
    assert!(promise.fail("nobody listens").is_err());
    assert_eq!((requests.stats().cancelled, requests.in_flight()), (2, 0));
}

#[test]
fn number_and_room_are_free_before_the_caller_is_told() {
    struct Again(Requests<u32>, std::sync::Mutex<Vec<bool>>);
    impl std::task::Wake for Again {
        fn wake(self: Arc<Self>) {
            let again = self.0.register_as(OwnId(5), HOUR);
            self.1.lock().unwrap().push(again.is_ok());
        }
    }
    let mut host = manual(MS, layouts()[0]);
    let builder = Requests::<u32>::builder(host.timer().clone());
    let requests = builder.max_in_flight(1).build();
    let again = Arc::new(Again(requests.clone(), std::sync::Mutex::default()));
    let waker = std::task::Waker::from(Arc::clone(&again));
    let mut cx = std::task::Context::from_waker(&waker);
    let ends: [fn(&Requests<u32>, &mut ManualHost); 2] = [
        |requests, _| requests.complete(OwnId(5), 1).unwrap(),
        |_, host| assert!(host.advance(SECOND) > 0),
    ];
    for end in ends {
        let mut response = requests.register_as(OwnId(5), SECOND).unwrap();
        assert!(std::pin::Pin::new(&mut response).poll(&mut cx).is_pending());
        end(&requests, &mut host);
    }
    assert_eq!(*again.1.lock().unwrap(), [true, true]);
}

// a thread that waited could not look up from it: it waited to the end, or not at all.
#[test]
fn a_wait_may_be_given_up_and_taken_up_again() {
    let mut host = manual(MS, layouts()[0]);
    let requests = table::<u32>(&host);
    let response = requests.register(SECOND).unwrap();
    let response = response.wait_for(Duration::ZERO).unwrap_err();
    let response = response.wait_for(MS).unwrap_err();
    assert_eq!(requests.stats().in_flight, 1, "it goes on");
    requests.complete(response.id(), 7).unwrap();
    assert_eq!(response.wait_for(Duration::ZERO).unwrap().unwrap(), 7);

    let timed_out = requests.register(SECOND).unwrap();
    host.advance(SECOND);
    let error = timed_out.wait_for(HOUR).unwrap().unwrap_err();
    assert!(matches!(error, RequestError::TimedOut { sent: false, .. }));

    let dropped = requests.register(SECOND).unwrap();
    drop(dropped.wait_for(Duration::ZERO));
    assert_eq!(
        requests.stats().cancelled,
        1,
        "as if it had not been waited for"
    );

    let answered = requests.register(SECOND).unwrap();
    let id = answered.id();
    std::thread::scope(|scope| {
        scope.spawn(|| requests.complete(id, 8).unwrap());
        assert_eq!(answered.wait_for(HOUR).unwrap().unwrap(), 8);
    });
}

// a number that timed out once, and then was answered in time.
#[test]
fn an_answer_is_not_late_by_what_another_request_was() {
    let mut host = ManualHost::new();
    let requests = Requests::<u32>::new(host.timer().clone());
    let first = requests.register_as(OwnId(7), SECOND).unwrap();
    host.advance(SECOND);
    assert!(first.wait().is_err());
    let second = requests.register_as(OwnId(7), SECOND).unwrap();
    requests.complete(OwnId(7), 1).unwrap();
    assert_eq!(second.wait().unwrap(), 1);
    host.advance(SECOND);
    let late = requests.complete(OwnId(7), 1).unwrap_err();
    assert_eq!(late.by, None, "that request did not time out");
}
