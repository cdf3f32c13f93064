//! A poll that slows down while its server does not answer, and recovers; and a worker beside it
//! that sends what has gathered: `cargo run -p countwheel-patterns --example supervised`.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use countwheel::Timer;
use countwheel_patterns::{Step, StopSignal, Supervised, SupervisedOutcome, Worker};

/// A second of the example, so that it is over soon.
const SECOND: Duration = Duration::from_millis(4);

fn main() -> Result<(), Box<dyn Error>> {
    let timer = Timer::new();

    // The server hangs at first. It can be told to stop waiting, and nothing else helps.
    let hangs = Arc::new(AtomicBool::new(true));
    let server_hangs = Arc::clone(&hangs);
    let fetch = move |stop: StopSignal| {
        while server_hangs.load(Ordering::Relaxed) {
            // One packet after another that does not come.
            if stop.wait_for(SECOND / 4) {
                return Err("told to stop");
            }
        }
        Ok(())
    };

    let (sender, events) = mpsc::channel();
    let poll = Supervised::every(10 * SECOND)
        .timeout(5 * SECOND)
        .max_delay(40 * SECOND)
        .first_delay(Duration::ZERO)
        .name("fetch")
        .on_event(move |event| sender.send(event).expect("somebody listens"))
        .start(&timer, fetch)?;

    let mut delays = Vec::new();
    for event in &events {
        let seconds = event.delay.as_secs_f64() / SECOND.as_secs_f64();
        match event.outcome {
            SupervisedOutcome::TimedOut => {
                println!("no answer: again in {seconds:.0} s");
                delays.push(event.delay);
                if delays.len() == 4 {
                    println!("(the server recovers)");
                    hangs.store(false, Ordering::Relaxed);
                }
            }
            SupervisedOutcome::Success => {
                println!("an answer: again in {seconds:.0} s");
                break;
            }
            SupervisedOutcome::Late => println!("  (a run that was given up has ended)"),
            other => println!("{other:?}"),
        }
    }
    let most = 40 * SECOND;
    assert_eq!(delays[..4], [20 * SECOND, most, most, most]);
    assert_eq!(poll.current_delay(), 10 * SECOND);
    assert!(poll.cancel() && poll.wait());
    let stats = poll.stats();
    println!(
        "{} runs: {} answered, {} given up, of which {} ended later\n",
        stats.due, stats.success, stats.timeouts, stats.late
    );
    assert_eq!((stats.timeouts, stats.overdue), (stats.late, 0));

    // A worker: producers wake it as often as they like.
    let inbox = Arc::new(Mutex::new(Vec::new()));
    let outgoing = Arc::clone(&inbox);
    let (sender, batches) = mpsc::channel();
    let batcher = Worker::on_demand()
        .wake_delay(SECOND)
        .start(&timer, move || {
            let batch: Vec<u32> = std::mem::take(&mut *outgoing.lock().expect("no one panics"));
            if batch.contains(&7) {
                println!("a batch of {} is refused, and lost", batch.len());
                return Step::Failed;
            }
            match sender.send(batch) {
                Ok(()) => Step::Wait,
                Err(_) => Step::End,
            }
        })?;
    for number in 0..1_000 {
        inbox.lock().expect("no one panics").push(number);
        batcher.wake();
        if number == 7 {
            // The batch with the seven is lost, the worker is not.
            while batcher.stats().failed == 0 && batcher.stats().steps < 2 {
                std::thread::yield_now();
            }
        }
    }
    assert!(batcher.finish() && batcher.wait());
    let sent: usize = batches.try_iter().map(|batch| batch.len()).sum();
    let stats = batcher.stats();
    println!(
        "{} wake-ups were {} steps, which sent {sent} numbers",
        stats.wakes, stats.steps
    );
    assert_eq!((stats.wakes, stats.failed), (1_000, 1));
    assert!(stats.steps <= stats.wakes - stats.coalesced + 2);
    Ok(())
}
