//! A process ends and another one goes on: calls that wait for their retry, unpaid orders and
//! reminders are written to a file and taken up again:
//! `cargo run --features serde -p countwheel-patterns --example save_and_restore`.

use std::error::Error;
use std::fs;
use std::time::Duration;

use countwheel::{ClockReading, KeyedTimer, ManualClock, ManualHost, SavedEntry, Timer};
use countwheel::{Timestamp, TimestampError};
use countwheel_patterns::{
    Attempt, DeadLetter, DelayQueue, Failure, Retry, RetryId, RetryPolicy, SavedItem, SavedRetry,
};
use serde::{Deserialize, Serialize};

const MINUTE: Duration = Duration::from_secs(60);

/// What is in the file.
#[derive(Serialize, Deserialize)]
struct Saved {
    /// The policy as its text.
    policy: RetryPolicy,
    calls: Vec<SavedRetry<RetryId, String, String>>,
    orders: Vec<SavedItem<String>>,
    reminders: Vec<SavedEntry<String, String>>,
}

/// What a process has.
struct Process {
    timer: Timer,
    policy: RetryPolicy,
    calls: Retry<String, String>,
    orders: DelayQueue<String>,
    reminders: KeyedTimer<String, String>,
}

impl Process {
    fn new(timer: Timer, policy: RetryPolicy) -> Result<Self, Box<dyn Error>> {
        let (attempts, letters) = (timer.clone(), timer.clone());
        let reminder = timer.clone();
        Ok(Self {
            calls: Retry::builder(timer.clone(), policy.clone())
                .dead_letter(move |letter: DeadLetter<_, String, String>| {
                    let (made, reason) = (letter.attempts.made(), letter.reason);
                    let (now, value) = (letters.timestamp(), letter.value);
                    println!("{now}  {value}: given up after {made} attempts: {reason}");
                })
                .build(move |call: &String, attempt: &Attempt| {
                    let (now, number) = (attempts.timestamp(), attempt.number());
                    println!("{now}  {call}: attempt {number}");
                    Err(Failure::Retryable("connection refused".to_owned()))
                })?,
            orders: DelayQueue::new(timer.clone()),
            reminders: KeyedTimer::new(timer.clone(), move |key: String, text: String| {
                println!("{}  reminder of {key}: {text}", reminder.timestamp());
            }),
            timer,
            policy,
        })
    }

    /// Stops everything, and writes down what is left.
    fn save(&self) -> Saved {
        let now = ClockReading::of(self.timer.clock());
        let calls = self.calls.stop().pending.into_iter();
        let (orders, reminders) = (self.orders.stop(), self.reminders.stop());
        Saved {
            policy: self.policy.clone(),
            calls: calls.map(|call| call.saved(now)).collect(),
            orders: orders.into_iter().map(|order| order.saved(now)).collect(),
            reminders: reminders
                .into_iter()
                .map(|entry| entry.saved(now))
                .collect(),
        }
    }

    fn restore(timer: Timer, saved: Saved) -> Result<Self, Box<dyn Error>> {
        let process = Self::new(timer, saved.policy)?;
        let now = ClockReading::of(process.timer.clock());
        for call in saved.calls {
            process.calls.resume(call.restored(now))?;
        }
        for order in saved.orders {
            let order = order.restored(now);
            process.orders.push_at(order.value, order.deadline)?;
        }
        for entry in saved.reminders {
            let entry = entry.restored(now);
            process
                .reminders
                .set_at(entry.key, entry.value, entry.deadline)?;
        }
        Ok(process)
    }
}

/// A process whose clock shows `now`, moved by hand so that the example is over soon.
fn machine(now: Timestamp) -> ManualHost {
    Timer::builder().manual(ManualClock::at(now))
}

fn noon() -> Result<Timestamp, TimestampError> {
    let seconds = Duration::from_secs(1_772_366_400);
    Timestamp::try_from(std::time::SystemTime::UNIX_EPOCH + seconds)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut host = machine(noon()?);
    let policy = "1m,2m,4m,8m age=10m".parse()?;
    let process = Process::new(host.timer().clone(), policy)?;
    process.calls.submit("callback of shop 7".to_owned())?;
    process.orders.push("order 42".to_owned(), 30 * MINUTE)?;
    let (key, text) = ("Ada".to_owned(), "the session ends soon".to_owned());
    process.reminders.set(key, text, 3 * MINUTE)?;
    host.advance(2 * MINUTE);
    let file = std::env::temp_dir().join(format!("countwheel-{}.json", std::process::id()));
    fs::write(&file, serde_json::to_vec_pretty(&process.save())?)?;
    println!("{}  stopped, and saved", host.timer().timestamp());
    let down_since = host.timer().timestamp();
    drop((process, host));

    // Four minutes later, in another process.
    let mut host = machine(down_since + 4 * MINUTE);
    let saved = serde_json::from_slice(&fs::read(&file)?)?;
    fs::remove_file(&file)?;
    println!("{}  restored", host.timer().timestamp());
    let process = Process::restore(host.timer().clone(), saved)?;
    host.advance(24 * MINUTE);
    let order = process.orders.try_take().ok_or("the order is due by now")?;
    println!(
        "{}  {} is closed, {:?} late",
        host.timer().timestamp(),
        order.value,
        order.lateness
    );

    // The attempts of before count, and so does the age: the fourth is the last in ten minutes.
    let stats = process.calls.stats();
    assert_eq!((stats.attempts, stats.given_up), (2, 1));
    assert_eq!(
        process.reminders.stats().fired,
        1,
        "at once: its time had passed"
    );
    assert_eq!(order.lateness, Duration::ZERO);
    Ok(())
}
