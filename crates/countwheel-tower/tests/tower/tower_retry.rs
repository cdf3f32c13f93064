//! Attempts, the budget, the deadline, and the places of a service that has few.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use countwheel::{ManualHost, Timer};
use countwheel_tower::{
    GiveUp, Retry, RetryBudget, RetryError, RetryLayer, RetryPolicy, Verdict, WithDeadline,
};
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service};

use super::{Does, Request, SECOND, Told, at, call, now_or_never, poll};

type Ended = Result<u32, RetryError<&'static str>>;

const DOWN: Does = Does::Fails("down");

fn every_second() -> RetryPolicy {
    RetryPolicy::fixed(SECOND)
}

fn retried(host: &ManualHost, policy: RetryPolicy, todo: &[Does]) -> (Retry<Told>, Told) {
    let told = Told::new(todo);
    let layer = RetryLayer::new(host.timer().clone(), policy);
    (layer.layer(told.clone()), told)
}

/// Polls a call after each second, until it has ended.
fn run(host: &mut ManualHost, call: &mut Pin<Box<impl Future<Output = Ended>>>) -> Ended {
    for _ in 0..100 {
        if let Poll::Ready(ended) = poll(call) {
            return ended;
        }
        host.advance(SECOND);
    }
    panic!("it does not end");
}

#[test]
fn a_call_that_succeeds_at_once_files_nothing_and_draws_on_no_budget() {
    let host = ManualHost::new();
    let budget = RetryBudget::new(0.0, 0.1, 10 * SECOND).unwrap();
    let told = Told::new(&[Does::Answers(7)]);
    let layer = RetryLayer::new(host.timer().clone(), every_second()).budget(budget.clone());
    let mut service = layer.layer(told.clone());
    assert_eq!(now_or_never(call(&mut service, 1.into())).unwrap(), 7);
    let added = host.timer().stats().added;
    assert_eq!(
        (added, told.calls(), budget.balance(host.timer().now())),
        (0, 1, 1)
    );
}

#[test]
fn attempts_come_when_the_policy_says_and_not_before() {
    let mut host = ManualHost::new();
    let policy = RetryPolicy::linear(SECOND, SECOND);
    let (mut service, told) = retried(&host, policy, &[DOWN, DOWN, Does::Answers(7)]);
    let mut call = call(&mut service, 1.into());
    let mut calls = Vec::new();
    loop {
        let polled = poll(&mut call);
        calls.push(told.calls());
        if let Poll::Ready(ended) = polled {
            assert_eq!(ended.unwrap(), 7);
            break;
        }
        host.advance(SECOND / 2);
    }
    assert_eq!(calls, [1, 1, 2, 2, 2, 2, 3], "at 0, 1 and 3 s");
}

#[test]
fn what_ends_the_attempts_is_told_with_the_last_error() {
    let mut host = ManualHost::new();
    let two = every_second().max_retries(1);
    let (mut service, told) = retried(&host, two, &[Does::Fails("first"), Does::Fails("last")]);
    let ended = run(&mut host, &mut call(&mut service, 1.into()));
    assert!(matches!(
        ended,
        Err(RetryError::GaveUp {
            error: "last",
            attempts: 2,
            reason: GiveUp::Attempts
        })
    ));
    assert_eq!(told.calls(), 2);

    let young = every_second().max_age(SECOND / 2);
    let (mut service, _) = retried(&host, young, &[DOWN]);
    let ended = run(&mut host, &mut call(&mut service, 1.into()));
    assert!(matches!(
        ended,
        Err(RetryError::GaveUp {
            attempts: 1,
            reason: GiveUp::MaxAge,
            ..
        })
    ));
}

#[test]
fn a_judge_sees_request_and_result_and_an_answer_may_be_a_failure() {
    let mut host = ManualHost::new();
    let told = Told::new(&[
        Does::Answers(503),
        Does::Answers(200),
        DOWN,
        Does::Answers(503),
    ]);
    let judge = |request: &Request, result: &Result<u32, &'static str>| match result {
        Ok(503) => Verdict::RetryAfter(3 * SECOND),
        Err(_) if request.request != 2 => Verdict::Retry,
        _ => Verdict::Stands,
    };
    let policy = every_second().max_retries(1).retry_after_cap(2 * SECOND);
    let layer = RetryLayer::new(host.timer().clone(), policy).judge(judge);
    let mut service = layer.layer(told.clone());
    assert_eq!(
        run(&mut host, &mut call(&mut service, 1.into())).unwrap(),
        200
    );
    let asked = host.timer().now().saturating_since(at(0.0).instant());
    assert_eq!(asked, 2 * SECOND, "as asked for, up to the cap");

    let ended = run(&mut host, &mut call(&mut service, 2.into()));
    assert!(matches!(
        ended,
        Err(RetryError::GaveUp {
            error: "down",
            attempts: 1,
            reason: GiveUp::Permanent
        })
    ));
    told.with(|shared| shared.todo = vec![Does::Answers(503); 2]);
    // A response goes to the caller when no other attempt follows, whatever the judge wanted.
    assert_eq!(
        run(&mut host, &mut call(&mut service, 3.into())).unwrap(),
        503
    );
}

#[test]
fn no_attempt_starts_that_cannot_end_before_the_deadline_and_nobody_waits_for_it() {
    let mut host = ManualHost::new();
    let (mut service, told) = retried(&host, every_second(), &[DOWN; 3]);
    // Attempts at 0, 1 and 2 s. One at 3 s would start at the deadline.
    let mut call = call(&mut service, WithDeadline::new(1, at(3.0)));
    let ended = run(&mut host, &mut call);
    assert!(matches!(
        ended,
        Err(RetryError::NoTime {
            error: Some("down"),
            attempts: 3
        })
    ));
    assert_eq!(told.calls(), 3);
    assert_eq!(
        host.timer().now(),
        at(2.0).instant(),
        "at the end of the third attempt"
    );
    assert_eq!(
        ended.unwrap_err().to_string(),
        "the deadline leaves no time for attempt 4"
    );
}

#[test]
fn an_attempt_has_the_time_that_it_takes_at_least() {
    let mut host = ManualHost::new();
    for (takes, attempts) in [(1.0, 2), (1.1, 1), (2.0, 1), (3.1, 0)] {
        let told = Told::new(&[DOWN; 2]);
        let layer = RetryLayer::new(host.timer().clone(), every_second());
        let layer = layer.attempt_takes(Duration::from_secs_f64(takes));
        let mut service = layer.layer(told.clone());
        let limit = host.timer().now() + 2 * SECOND;
        let ended = run(
            &mut host,
            &mut call(&mut service, WithDeadline::new(1, limit.into())),
        );
        assert!(
            matches!(ended, Err(RetryError::NoTime { attempts: made, .. }) if made == attempts),
            "{takes}: {ended:?}"
        );
        assert_eq!(told.calls(), attempts as usize);
    }
}

#[test]
fn a_call_whose_time_is_up_is_refused_and_its_place_is_free() {
    let mut host = ManualHost::new();
    host.advance(SECOND);
    let told = Told::new(&[]);
    let one_at_a_time = ConcurrencyLimit::new(told.clone(), 1);
    let layer = RetryLayer::new(host.timer().clone(), every_second());
    let mut service = layer.layer(one_at_a_time.clone());
    let refused = now_or_never(call(&mut service, WithDeadline::new(1, at(1.0))));
    assert!(matches!(
        refused,
        Err(RetryError::NoTime {
            error: None,
            attempts: 0
        })
    ));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(one_at_a_time.clone().poll_ready(&mut cx).is_ready());
    assert_eq!(told.calls(), 0);
}

#[test]
fn a_budget_bounds_the_retries_of_all_calls_together() {
    let mut host = ManualHost::new();
    // Three retries for each two calls, counted over a time that does not end here.
    let budget = RetryBudget::new(1.5, 0.0, 1_000_000 * SECOND).unwrap();
    let told = Told::new(&[DOWN; 5]);
    let layer = RetryLayer::new(host.timer().clone(), every_second()).budget(budget.clone());
    let mut services = [layer.layer(told.clone()), layer.layer(told.clone())];
    let mut made = Vec::new();
    for service in &mut services {
        match run(&mut host, &mut call(service, 1.into())) {
            Err(RetryError::NoBudget {
                error: "down",
                attempts,
            }) => made.push(attempts),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(made, [2, 3], "the second finds what the first has left");
    assert_eq!(budget.balance(host.timer().now()), 0);
}

#[test]
fn what_the_deadline_forbids_draws_on_no_budget() {
    let mut host = ManualHost::new();
    let budget = RetryBudget::new(1.0, 0.0, 1_000 * SECOND).unwrap();
    let layer = RetryLayer::new(host.timer().clone(), every_second()).budget(budget.clone());
    let mut service = layer.layer(Told::new(&[DOWN]));
    let ended = run(
        &mut host,
        &mut call(&mut service, WithDeadline::new(1, at(0.5))),
    );
    assert!(matches!(ended, Err(RetryError::NoTime { .. })));
    assert_eq!(budget.balance(host.timer().now()), 1);
}

// `Told` panics if an instance is called that was not ready: a clone is not, after a call.
#[test]
fn every_attempt_calls_an_instance_that_is_ready() {
    let mut host = ManualHost::new();
    let (mut service, told) = retried(&host, every_second(), &[DOWN, DOWN, Does::Answers(7)]);
    let mut call = call(&mut service, 1.into());
    assert!(poll(&mut call).is_pending());
    told.with(|shared| shared.busy_polls = 2);
    host.advance(SECOND);
    assert!(poll(&mut call).is_pending());
    assert!(poll(&mut call).is_pending());
    assert_eq!(told.calls(), 1, "it is not ready yet");
    assert!(poll(&mut call).is_pending());
    assert_eq!(told.calls(), 2);
    assert_eq!(run(&mut host, &mut call).unwrap(), 7);
}

#[test]
fn a_service_that_is_ready_too_late_gets_no_attempt() {
    let mut host = ManualHost::new();
    let (mut service, told) = retried(&host, every_second(), &[DOWN]);
    let mut call = call(&mut service, WithDeadline::new(1, at(1.5)));
    assert!(poll(&mut call).is_pending());
    told.with(|shared| shared.busy_polls = 1);
    host.advance(SECOND);
    assert!(poll(&mut call).is_pending());
    host.advance(SECOND);
    let ended = poll(&mut call);
    let Poll::Ready(Err(error)) = ended else {
        panic!("{ended:?}")
    };
    assert!(matches!(
        error,
        RetryError::NoTime {
            error: Some("down"),
            attempts: 1
        }
    ));
    assert_eq!(error.into_inner(), Some("down"));
}

#[test]
fn a_service_that_will_not_be_ready_ends_the_call() {
    let mut host = ManualHost::new();
    let (mut service, told) = retried(&host, every_second(), &[DOWN]);
    let mut retry = call(&mut service, 1.into());
    assert!(poll(&mut retry).is_pending());
    told.with(|shared| shared.is_broken = true);
    host.advance(SECOND);
    assert!(matches!(
        poll(&mut retry),
        Poll::Ready(Err(RetryError::NotReady("broken")))
    ));
    let mut cx = Context::from_waker(Waker::noop());
    let broken = service.poll_ready(&mut cx);
    assert!(matches!(
        broken,
        Poll::Ready(Err(RetryError::NotReady("broken")))
    ));
}

#[test]
fn a_call_holds_no_place_while_it_waits_for_its_delay() {
    let mut host = ManualHost::new();
    let told = Told::new(&[DOWN, Does::Answers(8), Does::Answers(7)]);
    let one_at_a_time = ConcurrencyLimit::new(told.clone(), 1);
    let mut service = RetryLayer::new(host.timer().clone(), every_second()).layer(one_at_a_time);
    let mut waiting = call(&mut service, 1.into());
    assert!(poll(&mut waiting).is_pending());
    assert_eq!(now_or_never(call(&mut service, 2.into())).unwrap(), 8);
    host.advance(SECOND);
    assert_eq!(now_or_never(waiting).unwrap(), 7);
}

#[test]
fn without_a_delay_others_have_their_turn_between_two_attempts() {
    let host = ManualHost::new();
    let at_once = RetryPolicy::fixed(Duration::ZERO);
    let (mut service, told) = retried(&host, at_once, &[DOWN, DOWN, Does::Answers(7)]);
    let mut call = call(&mut service, 1.into());
    for calls in [1, 2] {
        assert!(poll(&mut call).is_pending());
        assert_eq!(told.calls(), calls);
    }
    assert_eq!(now_or_never(call).unwrap(), 7);
}

#[test]
fn a_timer_that_has_stopped_ends_the_call_with_the_last_error() {
    let host = ManualHost::new();
    let (mut service, _) = retried(&host, every_second(), &[DOWN]);
    host.timer().stop();
    let ended = now_or_never(call(&mut service, 1.into()));
    let Err(error @ RetryError::Timer { .. }) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(
        error.to_string(),
        "the timer could not wait after attempt 1"
    );
    assert_eq!(error.into_inner(), Some("down"));
}

#[test]
fn a_dropped_call_makes_no_other_attempt() {
    let mut host = ManualHost::new();
    let (mut service, told) = retried(&host, every_second(), &[DOWN, Does::Hangs]);
    let mut waiting = call(&mut service, 1.into());
    assert!(poll(&mut waiting).is_pending());
    host.advance(SECOND);
    assert!(poll(&mut waiting).is_pending());
    assert_eq!(told.in_flight(), 1);
    drop(waiting);
    assert_eq!(
        (told.in_flight(), told.calls(), host.timer().stats().pending),
        (0, 2, 0)
    );
}

#[test]
fn the_same_seed_makes_the_same_times_and_each_call_draws_its_own_otherwise() {
    let policy =
        || RetryPolicy::fixed(1_000_000 * SECOND).jitter(countwheel_patterns::Jitter::Full);
    let next_wake = |seed: Option<u64>| {
        let host = ManualHost::new();
        let layer = RetryLayer::new(host.timer().clone(), policy());
        let layer = seed.map_or(layer.clone(), |seed| layer.seed(seed));
        let mut service = layer.layer(Told::new(&[DOWN]));
        let mut call = call(&mut service, 1.into());
        assert!(poll(&mut call).is_pending());
        host.next_wake().unwrap()
    };
    assert_eq!(next_wake(Some(7)), next_wake(Some(7)));
    assert_ne!(
        next_wake(None),
        next_wake(None),
        "but once in very many times"
    );
}

#[tokio::test(start_paused = true)]
async fn delays_go_by_tokios_paused_clock() {
    let timer = Timer::on_tokio().unwrap();
    let policy = RetryPolicy::fixed(3600 * SECOND);
    let told = Told::new(&[DOWN, DOWN, Does::Answers(7)]);
    let mut service = RetryLayer::new(timer, policy).layer(told);
    let start = tokio::time::Instant::now();
    assert_eq!(call(&mut service, 1.into()).await.unwrap(), 7);
    assert_eq!(start.elapsed(), 7200 * SECOND);
}
