//! How late the timers of other queues become while a queue is purged: before, and beside the purge.
//! `cargo run --release -p countwheel-disk --example purge_beside [DIRECTORY [TIMERS [STEP [REST]]]]`
//!
//! STEP is how many timers one commit removes, and REST for how many times as long as a step took there is none. A
//! timer of another queue is due each 5 ms.

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::{
    Attempt, Config, Due, Outcome, Precondition, PurgeFilter, QueueName, Request, RetryPolicy,
    SetOptions, TimerName, Timers,
};
use countwheel_time::{Clock, Instant, SystemClock};

/// How long the timers are watched before the purge.
const BEFORE: Duration = Duration::from_secs(10);
const EVERY: Duration = Duration::from_millis(5);
/// How far ahead the timers of the other queue are set.
const AHEAD: Duration = Duration::from_millis(250);

type Lates = Arc<Mutex<Vec<Duration>>>;

fn set(queue: &str, key: u64, delay: Duration) -> Result<Request, Box<dyn Error>> {
    Ok(Request::Set {
        name: TimerName::new(queue, format!("order-{key:08}"))?,
        due: Due::In(delay),
        policy: RetryPolicy::default(),
        payload: vec![7; 100],
        precondition: Precondition::None,
        options: SetOptions::default(),
    })
}

#[expect(clippy::disallowed_methods, reason = "a measurement on the real clock")]
fn sleep_until(clock: &SystemClock, until: Instant) {
    std::thread::sleep(until.saturating_since(clock.now()));
}

/// Sets timers of the other queue for as long as `goes_on` says, and says how late they were.
fn beside(
    timers: &Timers,
    clock: &SystemClock,
    lates: &Lates,
    number: &mut u64,
    mut goes_on: impl FnMut() -> bool,
) -> Result<(), Box<dyn Error>> {
    lates.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let begun = clock.now();
    let mut set_until = 0_u32;
    while goes_on() {
        let due = begun + EVERY * set_until;
        sleep_until(clock, due);
        set_until += 1;
        *number += 1;
        timers.submit(set("other", *number, AHEAD)?, |answer| {
            if let Err(error) = answer {
                eprintln!("{error}");
            }
        });
    }
    sleep_until(clock, clock.now() + AHEAD * 2);
    let mut sorted = std::mem::take(&mut *lates.lock().unwrap_or_else(PoisonError::into_inner));
    sorted.sort_unstable();
    let at = |permille| {
        let last = sorted.len().saturating_sub(1);
        let late = sorted.get(last * permille / 1_000);
        late.copied().unwrap_or_default()
    };
    let (middle, high, most) = (at(500), at(990), at(1_000));
    println!(
        "{} timers: p50 {middle:.2?}, p99 {high:.2?}, max {most:.2?}",
        sorted.len()
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let own = tempfile::tempdir()?;
    let directory = arguments.next();
    let directory = directory.map_or_else(|| own.path().to_owned(), |it| Path::new(&it).to_owned());
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |it| it.parse());
    let (count, step, rest) = (number(200_000)?, number(256)?, number(2)?);
    let clock = SystemClock::new();
    let lates = Lates::default();
    let noting = Arc::clone(&lates);
    let handler = move |attempt: &Attempt| {
        let mut noting = noting.lock().unwrap_or_else(PoisonError::into_inner);
        noting.push(attempt.lateness());
        Outcome::done()
    };
    let store = DiskStore::open(&directory, 7, DiskOptions::default())?;
    let timers = Timers::open(store, handler, Arc::new(clock), Config::default())?;
    let (send, answers) = mpsc::channel();
    for key in 0..count {
        let send = send.clone();
        timers.submit(
            set("orders", key, Duration::from_secs(36_000))?,
            move |it| {
                send.send(it.is_ok()).unwrap_or_default();
            },
        );
        if key % 1_024 == 1_023 {
            for _ in 0..1_024 {
                answers.recv()?;
            }
        }
    }
    let mut key = 0;
    let begun = clock.now();
    beside(&timers, &clock, &lates, &mut key, || {
        clock.now().saturating_since(begun) < BEFORE
    })?;
    let orders = QueueName::new("orders")?;
    timers.purge(&orders, PurgeFilter::default())?;
    let purging = timers.clone();
    let begun = clock.now();
    let own_clock = clock;
    let purge = std::thread::spawn(move || {
        let mut steps = 0_u64;
        loop {
            let begun = own_clock.now();
            match purging.purge_step(usize::try_from(step).unwrap_or(1)) {
                Ok(done) if done.goes_on => steps += 1,
                Ok(_) => return steps,
                Err(error) => eprintln!("{error}"),
            }
            let took = own_clock.now().saturating_since(begun);
            let rest = took * u32::try_from(rest).unwrap_or(2);
            sleep_until(
                &own_clock,
                own_clock.now() + rest.max(Duration::from_millis(5)),
            );
        }
    });
    beside(&timers, &clock, &lates, &mut key, || !purge.is_finished())?;
    let took = clock.now().saturating_since(begun);
    let steps = purge.join().map_err(|_| "the purge panicked")?;
    let removed = timers.purges().first().map_or(0, |purge| purge.removed);
    println!("{removed} timers purged in {steps} steps, {took:.1?}");
    timers.stop(Duration::from_secs(1));
    Ok(())
}
