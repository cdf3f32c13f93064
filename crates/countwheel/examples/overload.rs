//! More work than a pool has room for, three ways to deal with it:
//! `cargo run -p countwheel --example overload`.

use std::error::Error;
use std::sync::mpsc;
use std::time::Duration;

use countwheel::{Overload, Pool, Timer};

const TASKS: usize = 12;

/// One thread, room for two tasks that wait, and twelve tasks of 10 ms that are all due now.
fn overloaded(name: &str, overload: Overload) -> Result<(), Box<dyn Error>> {
    let timer = Timer::builder()
        .thread_name(name)
        .executor(Pool::new(1, 2)?)
        .overload(overload)
        .build();
    let (sender, done) = mpsc::channel();
    for _ in 0..TASKS {
        let sender = sender.clone();
        timer.schedule(Duration::ZERO, move || {
            let (_never, nothing) = mpsc::channel::<()>();
            let _ = nothing.recv_timeout(Duration::from_millis(10)); // busy
            drop(sender);
        })?;
    }
    drop(sender);
    done.iter().for_each(|()| ()); // ends when the last task has run, or is gone

    let stats = timer.stats();
    println!(
        "{name:12} {:2} ran, {:2} came back, refused {:3} times, latest by {:3} ms",
        stats.ran,
        stats.returned,
        stats.overloaded,
        stats.lateness_max.as_millis(),
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    overloaded(
        "retry after",
        Overload::RetryAfter(Duration::from_millis(2)),
    )?;
    overloaded("run inline", Overload::RunInline)?;
    overloaded("hand back", Overload::hand_back(drop))?;
    Ok(())
}
