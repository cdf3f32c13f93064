//! How many requests a second the engine takes, from so many callers that each wait for the
//! answer, and what a request costs in processor time.
//!
//! ```text
//! cargo run --release -p countwheel-disk --example submit_rate -- memory 16 5
//! cargo run --release -p countwheel-disk --example submit_rate -- disk:DIRECTORY 256 5
//! ```
//!
//! A fourth argument divides the store into so many shards, all of them owned here.
//!
//! A number of callers with a `+`, such as `1+`, is of callers that wait for none of their
//! last thousand answers: what the engine does when it has always something to do.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::MemoryStore;
use countwheel_durable::{
    Attempt, Config, Due, Inline, Outcome, Precondition, Request, RetryPolicy, SetOptions, Shards,
    TimerName, Timers,
};
use countwheel_time::{Clock, SystemClock};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let store = arguments.next().unwrap_or_else(|| "memory".to_owned());
    let callers = arguments.next().unwrap_or_else(|| "16".to_owned());
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let shards: u16 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let shards = Shards::new(shards).ok_or("there are 1 to 1024 shards")?;
    let ahead = if callers.ends_with('+') { 1_000 } else { 1 };
    let callers: usize = callers.trim_end_matches('+').parse()?;

    let clock = SystemClock::new();
    let handler = Inline(|_: &Attempt| Outcome::done());
    let (shared, config) = (Arc::new(clock), Config::default());
    let timers = match store.strip_prefix("disk:") {
        Some(directory) => {
            let store = DiskStore::open(directory.as_ref(), 7, DiskOptions::default())?;
            Timers::open_divided(store, shards, shards.all(), handler, shared, config)?
        }
        None => {
            let store = MemoryStore::new(7);
            Timers::open_divided(store, shards, shards.all(), handler, shared, config)?
        }
    };

    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..callers)
        .map(|caller| {
            let (timers, stop, done) = (timers.clone(), Arc::clone(&stop), Arc::clone(&done));
            std::thread::spawn(move || call(caller, ahead, &timers, &stop, &done))
        })
        .collect();
    let wait = |span: Duration| {
        let until = clock.now() + span;
        while clock.now() < until {
            std::thread::park_timeout(until.saturating_since(clock.now()));
        }
    };
    wait(Duration::from_millis(500));
    let (before, commits) = (done.load(Ordering::Relaxed), timers.stats().commits);
    let (began, spent) = (clock.now(), processor_time());
    wait(Duration::from_secs(seconds));
    let count = done.load(Ordering::Relaxed) - before;
    let commits = timers.stats().commits - commits;
    let (passed, spent) = (
        clock.now().saturating_since(began),
        processor_time() - spent,
    );
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more")]
    {
        println!(
            "{store} {callers} callers, {ahead} ahead, {} shards: {:.0} requests/s, {:.0} commits/s, {:.1} \
             requests a commit, {:.2} us of processor time each",
            shards.count(),
            count as f64 / passed.as_secs_f64(),
            commits as f64 / passed.as_secs_f64(),
            count as f64 / commits.max(1) as f64,
            spent.as_secs_f64() * 1e6 / count.max(1) as f64,
        );
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| "a caller panicked")?;
    }
    Ok(())
}

/// Sets and removes timers until told to stop.
fn call(caller: usize, ahead: usize, timers: &Timers, stop: &AtomicBool, done: &AtomicU64) {
    let (send, receive) = mpsc::channel();
    let mut waiting = 0;
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let Ok(name) = TimerName::new("submit", format!("{caller}-{}", number / 2)) else {
            break;
        };
        let request = if number % 2 == 0 {
            Request::Set {
                name,
                due: Due::In(Duration::from_secs(60)),
                policy: RetryPolicy::default(),
                payload: vec![0; 100],
                options: SetOptions::default(),
                precondition: Precondition::None,
            }
        } else {
            Request::Remove {
                name,
                precondition: Precondition::None,
                only_pending: false,
            }
        };
        let send = send.clone();
        timers.submit(request, move |answer| {
            send.send(answer.is_ok()).unwrap_or_default();
        });
        waiting += 1;
        if waiting >= ahead {
            for _ in 0..waiting.div_ceil(2) {
                let answered = receive.recv().is_ok_and(|ok| ok);
                done.fetch_add(u64::from(answered), Ordering::Relaxed);
                waiting -= 1;
            }
        }
    }
}

/// Of all threads of this process, user and system.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or("").split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok());
    // Hundredths of a second on Linux.
    let ticks = ticks(12).unwrap_or(0) + ticks(13).unwrap_or(0);
    Duration::from_millis(ticks * 10)
}
