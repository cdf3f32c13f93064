//! A month of timers without waiting: `cargo run -p countwheel --example manual`.

use std::time::Duration;

use countwheel::{Clock, ManualHost, ScheduleError, SystemClock, Timer};

const HOUR: Duration = Duration::from_secs(3600);

/// Runs `report` every hour: each report schedules the next one.
fn hourly(timer: &Timer, report: fn(&Timer)) -> Result<(), ScheduleError> {
    let next = timer.clone();
    timer.schedule(HOUR, move || {
        report(&next);
        hourly(&next, report).expect("the timer runs as long as this example");
    })?;
    Ok(())
}

fn main() -> Result<(), ScheduleError> {
    let mut host = ManualHost::new();
    hourly(host.timer(), |timer| {
        let hours = timer.now().as_nanos() / 3_600_000_000_000;
        if hours.is_multiple_of(24 * 7) {
            println!("week {} is over", hours / (24 * 7));
        }
    })?;

    let stopwatch = SystemClock::new();
    let ran = host.advance(30 * 24 * HOUR);
    println!(
        "30 days, {ran} tasks, {:.1?}",
        stopwatch.now().saturating_since(countwheel::Instant::ZERO)
    );
    println!("latest by {:?}", host.timer().stats().lateness_max);
    Ok(())
}
