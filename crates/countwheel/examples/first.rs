//! Three timeouts, one of which is cancelled: `cargo run -p countwheel --example first`.

use std::sync::mpsc;
use std::time::Duration;

use countwheel::{ScheduleError, Timer};

fn main() -> Result<(), ScheduleError> {
    let timer = Timer::new();
    let (sender, fired) = mpsc::channel();
    let mut timeouts = Vec::new();
    for (name, millis) in [("slow", 300), ("quick", 50), ("unwanted", 100)] {
        let (sender, clock) = (sender.clone(), timer.clone());
        let deadline = timer.now() + Duration::from_millis(millis);
        timeouts.push(timer.schedule_at(deadline, move || {
            let lateness = clock.now().saturating_since(deadline);
            println!("{name} after {millis} ms, {lateness:.1?} late");
            drop(sender);
        })?);
    }
    println!("cancelled: {}", timeouts[2].cancel());

    drop(sender);
    fired.iter().for_each(|()| ()); // ends when the last task has dropped its sender
    println!("{:#?}", timer.stats());
    Ok(())
}
