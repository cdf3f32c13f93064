//! Payment callbacks on the schedule of WeChat Pay, a day in less than a second:
//! `cargo run -p countwheel-patterns --example payment_callback`.

use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::time::Duration;

use countwheel::Timer;
use countwheel_patterns::{Attempt, Failure, GiveUp, Retry, RetryPolicy, WhenFull};

/// A second of the schedule is ten microseconds here.
const SCALE: f64 = 1e-5;

#[derive(Debug)]
struct Callback {
    order: u32,
    cents: u64,
}

/// The merchants' side.
fn post(callback: &Callback, attempt: u32) -> Result<(), Failure<u16>> {
    match (callback.order, attempt) {
        // The second one was down for 14 minutes.
        (1, _) | (2, 5..) => Ok(()),
        (3, _) => Err(Failure::Permanent(410)), // the shop is closed for good
        (_, 1) => Err(Failure::RetryAfter(429, Duration::from_millis(2))),
        _ => Err(Failure::Retryable(503)),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let schedule = RetryPolicy::wechat();
    println!("in real life:");
    for step in schedule.preview() {
        println!(
            "  attempt {:>2} after {:>7} s",
            step.attempt,
            step.at.as_secs()
        );
    }

    let timer = Timer::new();
    let start = timer.now();
    let (delivered, ends) = mpsc::channel();
    let dead = delivered.clone();
    let clock = timer.clone();
    let callbacks = Retry::<Callback, u16>::builder(timer, schedule.scaled(SCALE)?)
        .max_pending(NonZeroUsize::new(1_000).ok_or("no room")?)
        .when_full(WhenFull::Refuse)
        .dead_letter(move |letter| {
            let (tries, error) = (letter.attempts.made(), letter.error);
            println!(
                "{:?}: given up after {tries}, {}, {error:?}",
                letter.value, letter.reason
            );
            // Whoever waits for the example may be gone.
            let _ = dead.send((letter.value.order, Some(letter.reason), tries));
        })
        .build(move |callback: &Callback, attempt: &Attempt| {
            let answer = post(callback, attempt.number());
            let at = clock.now().saturating_since(start).div_f64(SCALE).as_secs();
            println!(
                "  {at:>6} s  order {}, attempt {}: {answer:?}",
                callback.order,
                attempt.number()
            );
            if answer.is_ok() {
                let _ = delivered.send((callback.order, None, attempt.number()));
            }
            answer
        })?;

    for order in 1..=4 {
        callbacks.submit(Callback { order, cents: 100 })?;
    }
    let mut ends: Vec<_> = ends.iter().take(4).collect();
    ends.sort_unstable_by_key(|(order, ..)| *order);
    assert_eq!(
        ends,
        [
            (1, None, 1),
            (2, None, 5),
            (3, Some(GiveUp::Permanent), 1),
            (4, Some(GiveUp::Attempts), 16),
        ]
    );
    // A stop in the middle of the day would have given back what waits.
    callbacks.submit_failed(Callback { order: 5, cents: 7 }, 503)?;
    for pending in callbacks.stop().pending {
        let Callback { order, cents } = pending.value;
        println!(
            "order {order}, {cents} cents: kept for tomorrow after {:?}",
            pending.error
        );
    }
    Ok(())
}
