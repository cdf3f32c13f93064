//! The limit of a call, and the deadline that it hands down.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use countwheel::{ManualHost, SleepError, Timer};
use countwheel_tower::{Cut, Deadline, Elapsed, Timeout, TimeoutError, WithDeadline, grpc_timeout};
use tower::Service;
use tower::limit::ConcurrencyLimit;

use super::{Does, SECOND, Told, at, call, now_or_never, poll};

fn limited(host: &ManualHost, limit: Duration, todo: &[Does]) -> (Timeout<Told>, Told) {
    let told = Told::new(todo);
    let service = Timeout::new(host.timer().clone(), limit, told.clone());
    (service, told)
}

fn elapsed<T: std::fmt::Debug, E: std::fmt::Debug>(
    poll: Poll<Result<T, TimeoutError<E>>>,
) -> Elapsed {
    match poll {
        Poll::Ready(Err(TimeoutError::Elapsed(elapsed))) => elapsed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_in_time_and_an_error_in_time_come_out() {
    let host = ManualHost::new();
    let (mut service, _) = limited(&host, SECOND, &[Does::Answers(7), Does::Fails("down")]);
    assert_eq!(now_or_never(call(&mut service, 1.into())).unwrap(), 7);
    let error = now_or_never(call(&mut service, 2.into())).unwrap_err();
    assert!(matches!(error, TimeoutError::Inner("down")));
    assert_eq!(host.timer().stats().pending, 0);
}

#[test]
fn a_call_ends_at_the_limit_and_not_before_and_its_inner_call_is_dropped() {
    let mut host = ManualHost::new();
    let (mut service, told) = limited(&host, SECOND, &[Does::Hangs]);
    let mut call = call(&mut service, 1.into());
    assert!(poll(&mut call).is_pending());
    host.advance(SECOND - Duration::from_nanos(1));
    assert!(poll(&mut call).is_pending());
    assert_eq!(told.in_flight(), 1);
    host.advance(Duration::from_millis(1));
    let had = SECOND;
    let cut = Cut::Limit(SECOND);
    assert_eq!(elapsed(poll(&mut call)), Elapsed { cut, had });
    assert_eq!(
        told.in_flight(),
        0,
        "though the outer future is still there"
    );
    assert_eq!(elapsed(poll(&mut call)), Elapsed { cut, had });
}

#[test]
fn the_sooner_of_limit_and_deadline_cuts_and_is_handed_down() {
    let mut host = ManualHost::new();
    let (mut service, told) = limited(&host, SECOND, &[Does::Hangs; 3]);
    let mut by_deadline = call(&mut service, WithDeadline::new(1, at(0.25)));
    let mut by_limit = call(&mut service, WithDeadline::new(2, at(60.0)));
    let mut at_once = call(&mut service, WithDeadline::new(3, at(1.0)));
    assert_eq!(told.deadlines(), [at(0.25), at(1.0), at(1.0)]);
    for call in [&mut by_deadline, &mut by_limit, &mut at_once] {
        assert!(poll(call).is_pending());
    }
    host.advance(SECOND / 4);
    let quarter = SECOND / 4;
    let cut = Cut::Deadline(at(0.25));
    assert_eq!(
        elapsed(poll(&mut by_deadline)),
        Elapsed { cut, had: quarter }
    );
    assert!(poll(&mut by_limit).is_pending());
    host.advance(3 * quarter);
    assert_eq!(elapsed(poll(&mut by_limit)).cut, Cut::Limit(SECOND));
    assert_eq!(elapsed(poll(&mut at_once)).cut, Cut::Deadline(at(1.0)));
}

#[test]
fn an_outer_limit_shortens_an_inner_one_and_an_inner_one_the_outer_not() {
    let mut host = ManualHost::new();
    let (inner, told) = limited(&host, 10 * SECOND, &[Does::Hangs, Does::Hangs]);
    let mut outer = Timeout::new(host.timer().clone(), 2 * SECOND, inner);
    let mut cut = call(&mut outer, 1.into());
    assert!(poll(&mut cut).is_pending());
    assert_eq!(told.deadlines(), [at(2.0)]);
    host.advance(2 * SECOND);
    // Both are up; the inner one, which is polled first, says by whose limit.
    let Poll::Ready(Err(TimeoutError::Inner(TimeoutError::Elapsed(elapsed)))) = poll(&mut cut)
    else {
        panic!("the inner one");
    };
    assert_eq!(elapsed.cut, Cut::Deadline(at(2.0)));

    let (inner, told) = limited(&host, SECOND, &[Does::Hangs]);
    let mut outer = Timeout::new(host.timer().clone(), 60 * SECOND, inner);
    let mut cut = call(&mut outer, 1.into());
    assert!(poll(&mut cut).is_pending());
    assert_eq!(told.deadlines(), [at(3.0)]);
}

#[test]
fn a_request_whose_time_is_up_does_not_reach_the_service() {
    let mut host = ManualHost::new();
    host.advance(SECOND);
    let (mut service, told) = limited(&host, SECOND, &[]);
    let cut = elapsed(poll(&mut call(&mut service, WithDeadline::new(1, at(1.0)))));
    assert_eq!(
        cut,
        Elapsed {
            cut: Cut::Deadline(at(1.0)),
            had: Duration::ZERO
        }
    );
    assert_eq!(
        cut.to_string(),
        "the request's deadline had passed before the call"
    );
    let (mut nothing, also_told) = limited(&host, Duration::ZERO, &[]);
    let cut = elapsed(poll(&mut call(&mut nothing, 1.into())));
    assert_eq!(cut.cut, Cut::Limit(Duration::ZERO));
    assert_eq!((told.calls(), also_told.calls()), (0, 0));
}

#[test]
fn without_a_limit_nothing_is_filed() {
    let host = ManualHost::new();
    let (mut service, told) = limited(&host, Duration::MAX, &[Does::Hangs, Does::Hangs]);
    let mut endless = call(&mut service, 1.into());
    assert!(poll(&mut endless).is_pending());
    assert_eq!(
        (told.deadlines(), host.timer().stats().pending),
        (vec![Deadline::NEVER], 0)
    );
    let mut bounded = call(&mut service, WithDeadline::new(2, at(5.0)));
    assert!(poll(&mut bounded).is_pending());
    assert_eq!(host.timer().stats().pending, 1);
    drop(bounded);
    assert_eq!(
        host.timer().stats().pending,
        0,
        "and what is dropped leaves"
    );
}

#[test]
fn a_timer_that_cannot_measure_ends_the_call() {
    let host = ManualHost::new();
    let (mut service, told) = limited(&host, SECOND, &[Does::Hangs, Does::Answers(7)]);
    host.timer().stop();
    let failed = poll(&mut call(&mut service, 1.into()));
    assert!(matches!(
        failed,
        Poll::Ready(Err(TimeoutError::Timer(SleepError::Closed)))
    ));
    assert_eq!(told.in_flight(), 0);
    // An answer that is there at once needs no timer.
    assert_eq!(now_or_never(call(&mut service, 2.into())).unwrap(), 7);
}

#[test]
fn readiness_is_that_of_the_inner_service_and_its_errors_come_out() {
    let host = ManualHost::new();
    let (mut service, told) = limited(&host, SECOND, &[]);
    let mut cx = Context::from_waker(Waker::noop());
    told.with(|shared| shared.busy_polls = 1);
    assert!(service.poll_ready(&mut cx).is_pending());
    assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
    told.with(|shared| shared.is_broken = true);
    let broken = service.poll_ready(&mut cx);
    assert!(matches!(
        broken,
        Poll::Ready(Err(TimeoutError::Inner("broken")))
    ));
}

#[test]
fn a_place_that_a_refused_call_had_reserved_is_kept_for_the_next_and_freed_by_a_drop() {
    let host = ManualHost::new();
    let told = Told::new(&[Does::Hangs]);
    let one_at_a_time = ConcurrencyLimit::new(told.clone(), 1);
    let mut service = Timeout::new(host.timer().clone(), SECOND, one_at_a_time.clone());
    elapsed(poll(&mut call(&mut service, WithDeadline::new(1, at(0.0)))));
    let is_free = |limit: &ConcurrencyLimit<Told>| {
        let mut cx = Context::from_waker(Waker::noop());
        limit.clone().poll_ready(&mut cx).is_ready()
    };
    assert!(!is_free(&one_at_a_time));
    let next = call(&mut service, 2.into());
    assert!(!is_free(&one_at_a_time));
    drop((next, service));
    assert!(is_free(&one_at_a_time));
}

#[tokio::test(start_paused = true)]
async fn a_limit_holds_by_tokios_paused_clock() {
    let timer = Timer::on_tokio().unwrap();
    let told = Told::new(&[Does::Hangs]);
    let mut service = Timeout::new(timer.clone(), 3600 * SECOND, told);
    let start = tokio::time::Instant::now();
    let error = call(&mut service, 1.into()).await.unwrap_err();
    assert!(matches!(error, TimeoutError::Elapsed(_)));
    assert_eq!(start.elapsed(), 3600 * SECOND);
}

#[test]
fn a_header_is_in_the_finest_unit_with_room_and_rounded_down() {
    let now = countwheel::Instant::from_nanos(5);
    let hours = |hours: u64| Duration::from_secs(3600 * hours);
    for (left, header) in [
        (Duration::ZERO, "0n"),
        (Duration::from_nanos(99_999_999), "99999999n"),
        (Duration::from_nanos(100_000_999), "100000u"),
        (Duration::from_secs(100), "100000m"),
        (hours(28), "100800S"),
        (hours(30_000), "1800000M"),
        (hours(1_700_000), "1700000H"),
    ] {
        let deadline = Deadline::at(now + left);
        assert_eq!(grpc_timeout::write(deadline, now).as_deref(), Some(header));
        let read = grpc_timeout::read(header, now).unwrap();
        assert!(read <= deadline, "no more than there was");
    }
    assert_eq!(grpc_timeout::write(Deadline::NEVER, now), None);
    // More hours than the clock has.
    assert_eq!(grpc_timeout::read("99999999H", now), Ok(Deadline::NEVER));
}

#[test]
fn what_is_no_header_is_a_typed_error() {
    use grpc_timeout::ReadError::{Number, Unit};
    for (text, error) in [
        ("", Number),
        ("n", Number),
        ("123456789n", Number),
        ("-1S", Number),
        ("+1S", Number),
        ("1 S", Number),
        ("10", Unit),
        ("10s", Unit),
        ("1µ", Unit),
        ("µS", Number),
    ] {
        let read = grpc_timeout::read(text, countwheel::Instant::ZERO);
        assert_eq!(read, Err(error), "{text}");
    }
}

#[test]
fn an_error_in_a_box_stays_what_it_is() {
    let boxed: TimeoutError<tower::BoxError> = TimeoutError::Inner("full".into());
    assert_eq!(boxed.into_boxed().to_string(), "full");
    let elapsed = Elapsed {
        cut: Cut::Limit(SECOND),
        had: SECOND,
    };
    let boxed = TimeoutError::<tower::BoxError>::Elapsed(elapsed).into_boxed();
    assert_eq!(boxed.downcast_ref::<Elapsed>(), Some(&elapsed));
}
