//! Close an unpaid order, survive a restart: `cargo run -p countwheel-disk --example order_timeout`.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::{Attempt, Config, Due, Outcome, RetryPolicy, TimerName, Timers, Verdict};
use countwheel_time::SystemClock;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let (send, closed) = mpsc::channel();
    let open = || {
        let send = send.clone();
        let close_order = move |attempt: &Attempt| {
            println!(
                "close {} (attempt {}, {:.1?} late)",
                attempt.name,
                attempt.number,
                attempt.lateness()
            );
            send.send(attempt.name.clone()).unwrap_or_default();
            Outcome::new(Verdict::Done, "closed")
        };
        let store = DiskStore::open(directory.path(), 1, DiskOptions::default())?;
        let clock = Arc::new(SystemClock::new());
        Timers::open(store, close_order, clock, Config::default())
    };

    let timers = open()?;
    for (order, millis) in [("order-1", 400), ("order-2", 500), ("order-3", 600)] {
        let name = TimerName::new("unpaid", order)?;
        let due = Due::In(Duration::from_millis(millis));
        timers.set(name, due, RetryPolicy::default(), Vec::new())?;
    }
    // Order 2 is paid. The answer says what the timer was doing.
    let was = timers.remove(TimerName::new("unpaid", "order-2")?)?;
    println!("order-2 is paid: {was:?}");

    println!("the process ends, and another one begins");
    drop(timers);
    let timers = open()?;
    assert_eq!(closed.recv()?.key.as_str(), "order-1");
    assert_eq!(closed.recv()?.key.as_str(), "order-3");
    timers.stop(Duration::from_secs(1));
    Ok(())
}
