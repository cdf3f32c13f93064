//! A hundred thousand timeouts and not one more, and what they weigh:
//! `cargo run -p countwheel --example capacity`.

use std::error::Error;
use std::time::Duration;

use countwheel::{Pool, ScheduleError, Timeout, Timer};

const ROOM: u64 = 100_000;

/// Requests time out after a minute. If too many are under way, a new one is turned away.
fn request(timer: &Timer, number: u64) -> Result<Timeout, ScheduleError> {
    let delay = Duration::from_secs(60) + Duration::from_micros(number);
    timer.schedule(delay, move || println!("request {number} has timed out"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let pool = Pool::new(2, 1_000)?;
    let tenant = |name| {
        let builder = Timer::builder().thread_name(name).executor(pool.clone());
        builder.max_pending(ROOM).build()
    };
    let (loud, quiet) = (tenant("loud"), tenant("quiet"));

    let mut under_way = Vec::new();
    let refused = loop {
        match request(&loud, under_way.len() as u64) {
            Ok(timeout) => under_way.push(timeout),
            Err(refused) => break refused,
        }
    };
    println!("{} are pending, then: {refused}", loud.pending());
    drop(refused); // and the task with it: that request is answered "busy"

    let wheels = loud.snapshot().shards;
    let bytes: usize = wheels.iter().map(|wheel| wheel.memory_bytes).sum();
    println!("{} bytes of wheel for each", bytes as u64 / ROOM);

    request(&quiet, 0)?; // another tenant has room of its own
    println!("the other tenant: {} pending", quiet.pending());

    // An answer makes room at once.
    under_way.truncate(under_way.len() / 2); // dropping a handle does not ...
    println!(
        "after dropping half of the handles: {} pending",
        loud.pending()
    );
    let answered = under_way.iter().filter(|timeout| timeout.cancel());
    println!("answered: {}", answered.count()); // ... but this does
    println!("after the answers: {} pending", loud.pending());
    request(&loud, 0)?;

    let stats = loud.stats();
    println!("{} added, {} refused", stats.added, stats.refused);
    println!("given back by the stop: {}", loud.stop().unfired.len());
    Ok(())
}
