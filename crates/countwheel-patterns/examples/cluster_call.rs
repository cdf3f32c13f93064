//! A call with a timeout, another provider if there is no answer, and a notification that is sent
//! until it arrives: `cargo run -p countwheel-patterns --example cluster_call`.
//!
//! Failover is a loop of the caller's, since nothing is left for later. Failback is a [`Retry`].

use std::error::Error;
use std::sync::mpsc;
use std::time::Duration;

use countwheel::Timer;
use countwheel_patterns::{Attempt, Deadline, Failure, Requests, Retry, RetryPolicy};

const MS: Duration = Duration::from_millis(1);

/// A provider and how long it takes. The first one hangs.
const PROVIDERS: [(&str, Duration); 3] = [
    ("10.0.0.1", Duration::MAX),
    ("10.0.0.2", Duration::from_millis(10)),
    ("10.0.0.3", Duration::from_millis(10)),
];

/// One call of one provider, which has until `limit` to answer.
fn call(
    (timer, requests): (&Timer, &Requests<String>),
    (provider, delay): (&'static str, Duration),
    limit: Deadline,
) -> Result<String, Box<dyn Error>> {
    let response = requests.register(limit)?;
    let (id, reader) = (response.id(), requests.clone());
    requests.mark_sent(id);
    // The network: the answer comes after a while, or never.
    let answer = format!("7 in stock, says {provider}");
    timer.schedule(delay, move || drop(reader.complete(id, answer)))?;
    Ok(response.wait()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let timer = Timer::new();
    let requests = Requests::new(timer.clone());

    // Failover: 300 ms for everything, 50 ms for each provider, two retries.
    let all = Deadline::after(&timer, 300 * MS);
    let mut answer = None;
    for provider in PROVIDERS {
        let limit = all.shrink_to(timer.now(), 50 * MS);
        match call((&timer, &requests), provider, limit) {
            Ok(stock) => answer = Some(stock),
            Err(error) => println!("failover: {}: {error}", provider.0),
        }
        if answer.is_some() {
            break;
        }
    }
    println!("answer:   {}", answer.ok_or("no provider has answered")?);
    assert_eq!(requests.stats().timed_out_sent, 1);

    // Failback: the caller does not wait for a notification. The first try is the caller's.
    let (sender, arrived) = mpsc::channel();
    let notices = Retry::new(
        timer,
        RetryPolicy::dubbo_failback().scaled(0.01)?,
        move |notice: &&str, attempt: &Attempt| {
            let number = attempt.number();
            let result = if number < 3 { Err("refused") } else { Ok(()) };
            println!("failback: {notice}, attempt {number}: {result:?}");
            result.map_err(Failure::Retryable)?;
            sender
                .send(number)
                .map_err(|_| Failure::Permanent("nobody waits"))
        },
    );
    println!("failback: sold one, attempt 1: Err(\"refused\")");
    notices.submit_failed("sold one", "refused")?;
    println!("caller:   goes on");
    assert_eq!(arrived.recv(), Ok(3));
    Ok(())
}
