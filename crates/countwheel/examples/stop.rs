//! How a program ends: what is nearly due is still on time, what is far off is written down,
//! and nobody waits for ever. `cargo run -p countwheel --example stop`.

use std::sync::mpsc;
use std::time::Duration;

use countwheel::{ScheduleError, Stop, Timer};

const HOUR: Duration = Duration::from_secs(3600);

fn main() -> Result<(), ScheduleError> {
    let timer = Timer::new();
    for (name, delay) in [
        ("the answer to a request", Duration::from_millis(20)),
        ("a retry", Duration::from_millis(60)),
        ("an unpaid order", HOUR / 2),
    ] {
        timer.schedule(delay, move || println!("on time: {name}"))?;
    }
    let (_never, stuck) = mpsc::channel::<()>();
    timer.schedule(Duration::ZERO, move || report(&stuck))?;

    // New tasks are refused from here on. What is due within 100 ms still runs.
    let stopping = timer.close(Stop::WaitUpTo(Duration::from_millis(100)));
    if let Err(refused) = timer.schedule(HOUR, || println!("run instead")) {
        println!("refused: {refused}");
        refused.into_task().run();
    }

    // And nobody is waited for longer than 300 ms.
    let stopped = stopping.wait_for(Duration::from_millis(300));
    for task in stopped.unfired {
        let left = task.deadline().saturating_since(timer.now());
        println!("to be written down: due in {} s", left.as_secs());
    }
    for task in stopped.running {
        println!("still running: {} for {:.0?}", task.name, task.since);
    }
    let stats = timer.stats();
    println!(
        "{} added = {} ran + {} cancelled + {} returned",
        stats.added, stats.ran, stats.cancelled, stats.returned
    );
    Ok(())
}

/// Waits for something that never comes.
fn report(stuck: &mpsc::Receiver<()>) {
    let _ = stuck.recv();
}
