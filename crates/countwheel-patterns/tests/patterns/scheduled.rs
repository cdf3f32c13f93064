//! Tasks and async blocks that run later, and whose value somebody waits for.

use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;

use countwheel::{ManualClock, ManualHost, ScheduleError, Stop, Timer};
use countwheel_patterns::{NoValue, Scheduled, TimerExt};

use super::support::{Presence, SECOND};

fn poll<T>(scheduled: &mut Scheduled<T>) -> Poll<Result<T, NoValue>> {
    Pin::new(scheduled).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_task_gives_its_value_at_its_time_to_who_waits() {
    let mut host = ManualHost::new();
    let mut answer = host.timer().schedule_with(SECOND, || 5).unwrap();
    assert!(poll(&mut answer).is_pending() && !answer.is_done());
    assert!(answer.timeout().is_pending());
    host.advance(SECOND);
    assert!(answer.is_done());
    assert_eq!(poll(&mut answer), Poll::Ready(Ok(5)));

    let later = host.timer().schedule_with(SECOND, || "later").unwrap();
    let waiting = thread::spawn(move || later.join());
    host.advance(SECOND);
    assert_eq!(waiting.join().unwrap(), Ok("later"));

    let forgotten = host.timer().schedule_with(SECOND, || 5).unwrap();
    drop(forgotten);
    assert_eq!(host.advance(SECOND), 1, "nobody has to wait");
}

#[test]
fn an_async_block_begins_at_its_time_and_is_polled_until_its_value_is_there() {
    let mut host = ManualHost::new();
    let (clock, began) = (host.timer().clone(), host.timer().now());
    let mut value = host
        .timer()
        .schedule_async(SECOND, async move {
            clock.sleep(2 * SECOND).await.unwrap();
            clock.now().saturating_since(began)
        })
        .unwrap();
    host.advance(2 * SECOND);
    assert!(poll(&mut value).is_pending());
    host.advance(SECOND);
    assert_eq!(poll(&mut value), Poll::Ready(Ok(3 * SECOND)));
}

#[test]
fn what_does_not_run_has_no_value_and_says_so_at_once() {
    let host = ManualHost::new();
    let (presence, timer) = (Presence::default(), host.timer().clone());
    let [one, two, three] = [(); 3].map(|()| presence.clone());
    let mut cancelled = timer.schedule_with(SECOND, move || drop(one)).unwrap();
    let mut handed_back = timer.schedule_with(SECOND, move || drop(two)).unwrap();
    let mut dropped = timer
        .schedule_async(SECOND, async move { drop(three) })
        .unwrap();
    assert!(cancelled.timeout().cancel());
    assert_eq!(poll(&mut cancelled), Poll::Ready(Err(NoValue::NeverRan)));
    let mut unfired = timer.close(Stop::HandBack).wait().unfired;
    assert!(poll(&mut handed_back).is_pending(), "it may still be run");
    drop(unfired.pop());
    assert_eq!(poll(&mut dropped), Poll::Ready(Err(NoValue::NeverRan)));
    unfired.pop().unwrap().run();
    assert_eq!(poll(&mut handed_back), Poll::Ready(Ok(())));
    assert!(presence.is_over());
}

#[test]
fn a_panic_is_no_value_and_still_counted() {
    let mut host = ManualHost::new();
    let (timer, panics) = (host.timer().clone(), || {
        std::panic::resume_unwind(Box::new(1))
    });
    let mut called: Scheduled<()> = timer.schedule_with(SECOND, panics).unwrap();
    let mut polled: Scheduled<()> = timer
        .schedule_async(SECOND, async move { panics() })
        .unwrap();
    host.advance(SECOND);
    assert_eq!(poll(&mut called), Poll::Ready(Err(NoValue::Panicked)));
    assert_eq!(poll(&mut polled), Poll::Ready(Err(NoValue::Panicked)));
    assert_eq!(
        timer.stats().panicked,
        1,
        "as any task; a future is not one"
    );
}

#[test]
fn a_refused_task_comes_back_and_a_scheduled_one_keeps_no_timer() {
    let mut host = Timer::builder().max_pending(1).manual(ManualClock::new());
    let (sender, ran) = mpsc::channel();
    let first = host.timer().schedule_async(SECOND, async {}).unwrap();
    let refused = host.timer().schedule_with(SECOND, move || sender.send(1));
    let Err(ScheduleError::Full(task)) = refused else {
        panic!("there is room for one");
    };
    assert!(task.name().contains("scheduled::"), "{}", task.name());
    task.run();
    assert_eq!(ran.try_recv(), Ok(1));

    host.advance(SECOND);
    assert_eq!(first.join(), Ok(()));
    let endless = host
        .timer()
        .schedule_async(SECOND, std::future::pending::<()>());
    host.advance(SECOND);
    let weak = host.timer().downgrade();
    drop(host);
    assert!(weak.upgrade().is_none());
    drop(endless);
}
