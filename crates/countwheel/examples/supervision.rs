//! A timer whose host is gone is noticed, and a new one takes over what it had:
//! `cargo run -p countwheel --example supervision`.

use std::error::Error;
use std::sync::mpsc;
use std::time::Duration;

use countwheel::{Health, ScheduleError, SystemClock, Timer, Watchdog};

/// Gives what `old` still has to `new`. They have the same clock, so the deadlines stay.
fn take_over(old: &Timer, new: &Timer) -> Result<usize, ScheduleError> {
    let unfired = old.stop().unfired;
    let tasks = unfired.len();
    for task in unfired {
        new.schedule_at(task.deadline(), move || task.run())?;
    }
    Ok(tasks)
}

fn main() -> Result<(), Box<dyn Error>> {
    let clock = SystemClock::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let builder = Timer::builder().thread_name("sessions").clock(clock);
    let (sessions, host) = builder.build_hosted(tokio::time::sleep);
    runtime.spawn(host);

    let (complain, complaints) = mpsc::channel();
    let watchdog = Watchdog::new(Duration::from_secs(1));
    watchdog.watch(&sessions);
    let guard = watchdog.start(Duration::from_millis(20), move |complaint| {
        // Whoever supervises may be gone already.
        let _ = complain.send(complaint.clone());
    })?;

    let (sender, ended) = mpsc::channel();
    for user in ["Ada", "Bob"] {
        sessions.schedule_send(Duration::from_millis(200), user, &sender)?;
    }

    drop(runtime); // with all its tasks, and with the host among them

    let complaint = complaints.recv()?;
    println!("{}: {:?}", complaint.timer, complaint.health);
    assert_eq!(complaint.health, Health::Dead);

    let again = Timer::builder()
        .thread_name("sessions")
        .clock(clock)
        .build();
    watchdog.watch(&again);
    println!("taken over: {}", take_over(&sessions, &again)?);
    for user in ended.iter().take(2) {
        println!("the session of {user} ends");
    }
    let latest = again.stats().lateness_max;
    println!(
        "latest by {latest:.1?}, health now: {:?}",
        again.health(Duration::from_secs(1))
    );
    drop(guard);
    Ok(())
}
