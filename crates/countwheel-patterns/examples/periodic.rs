//! A heartbeat that misses some beats while one takes long, and a sweep that counts its pauses
//! from the end: `cargo run -p countwheel-patterns --example periodic`.

use std::error::Error;
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use countwheel::{MissedTicks, Timer};
use countwheel_patterns::{Periodic, StopSignal};

/// A second of the example, so that it is over soon.
const SECOND: Duration = Duration::from_millis(20);

fn main() -> Result<(), Box<dyn Error>> {
    let timer = Timer::new();
    let nap = StopSignal::new(); // nobody gives it: a way to sleep

    for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
        let (clock, start, nap) = (timer.clone(), timer.now(), nap.clone());
        let mut beats = 0;
        let heartbeat = Periodic::at_fixed_rate(SECOND)
            .missed_ticks(missed)
            .max_runs(6)
            .start(&timer, move || {
                beats += 1;
                let since = clock.now().saturating_since(start).as_secs_f64();
                println!("{missed:?}: second {:.1}", since / SECOND.as_secs_f64());
                if beats == 2 {
                    // The server takes its time.
                    assert!(!nap.wait_for(SECOND * 5 / 2));
                }
            })?;
        assert!(heartbeat.wait());
        let stats = heartbeat.stats();
        println!(
            "{missed:?}: {} beats, {} left out\n",
            stats.runs, stats.skipped
        );
        assert_eq!(stats.runs, 6);
    }

    // A sweep ends by itself when there is nothing left to sweep.
    let mut leaves = 5;
    let sweep = Periodic::with_fixed_delay(SECOND / 2).start(&timer, move || {
        leaves -= 1;
        println!("a leaf less, {leaves} left");
        if leaves == 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    assert!(sweep.wait());

    // One that would go on for ever is cancelled, and no run begins after that.
    let poll = Periodic::at_fixed_rate(SECOND / 10).start(&timer, || {})?;
    while poll.stats().runs < 5 {
        thread::yield_now();
    }
    assert!(poll.cancel());
    let runs = poll.stats().runs;
    assert!(poll.wait());
    println!(
        "\ncancelled after {runs} runs, late by {:.1?} at most",
        poll.stats().lateness_max
    );
    assert_eq!(poll.stats().runs, runs);
    Ok(())
}
