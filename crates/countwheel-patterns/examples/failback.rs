//! Dubbo's failback: a call that has failed is tried again each 5 s, three times, and only so many
//! calls wait: `cargo run -p countwheel-patterns --example failback`.

use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::time::Duration;

use countwheel::Timer;
use countwheel_patterns::{Attempt, DeadLetter, Failure, Retry, RetryPolicy, SubmitError};

/// A second of the example, so that it is over soon.
const SECOND: Duration = Duration::from_millis(10);

#[derive(Debug)]
struct Call {
    method: &'static str,
    /// How often the provider refuses before it answers.
    refusals: u32,
}

fn invoke(call: &Call, attempt: u32) -> Result<(), &'static str> {
    match attempt {
        number if number > call.refusals => Ok(()),
        _ => Err("connection refused"),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let timer = Timer::new();
    let start = timer.now();
    let (clock, (sender, ends)) = (timer.clone(), mpsc::channel());
    let given_up = sender.clone();
    let now = move || clock.now().saturating_since(start).as_secs_f64() / SECOND.as_secs_f64();

    // cluster="failback" retries="3" failbacktasks="2"
    let scale = SECOND.as_secs_f64();
    let failback = Retry::builder(timer, RetryPolicy::dubbo_failback().scaled(scale)?)
        .max_pending(NonZeroUsize::new(2).ok_or("two are more than none")?)
        .dead_letter(move |letter: DeadLetter<_, Call, &str>| {
            let (method, tries) = (letter.value.method, letter.attempts.made());
            let error = letter.error.unwrap_or("no error");
            let end = format!("{method}: given up after {tries} attempts: {error}");
            given_up.send(end).expect("the example waits");
        })
        .build(move |call: &Call, attempt: &Attempt| {
            let (method, number) = (call.method, attempt.number());
            let result = invoke(call, number);
            let at = now();
            println!("second {at:>4.1}: {method}, attempt {number}: {result:?}");
            result.map_err(Failure::Retryable)?;
            let end = format!("{method}: done after {number} attempts");
            sender.send(end).expect("the example waits");
            Ok(())
        })?;

    for (method, refusals) in [("notify", 2), ("audit", u32::MAX), ("mail", 1)] {
        let call = Call { method, refusals };
        let Err(error) = invoke(&call, 1) else {
            continue;
        };
        println!("second  0.0: {method}, attempt 1: {error}");
        match failback.submit_failed(call, error) {
            Ok(_) => println!("             {method} waits for its retry"),
            // Dubbo logs this and drops the call. Here the caller has it again.
            Err(SubmitError::Full(call)) => println!("             {} is refused", call.method),
            Err(error) => return Err(error.into()),
        }
    }
    let mut ends = [ends.recv()?, ends.recv()?];
    ends.sort();
    println!("\n{}", ends.join("\n"));
    assert_eq!(ends[1], "notify: done after 3 attempts");
    let stats = failback.stats();
    assert_eq!((stats.attempts, stats.refused), (2 + 3, 1));
    Ok(())
}
