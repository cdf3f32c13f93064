//! What this disk can do: bare syncs, and acknowledged sets by few and by many writers.
//! `cargo run --release -p countwheel-durable --example commit_rate [DIRECTORY]`

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use countwheel::{Clock, Instant, SystemClock};
use countwheel_durable::store::EmbeddedStore;
use countwheel_durable::{
    Attempt, Config, Due, Inline, Outcome, RetryPolicy, TimerName, Timers, Verdict,
};

const EACH: Duration = Duration::from_millis(400);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let parent = std::env::args_os()
        .nth(1)
        .unwrap_or_else(|| std::env::temp_dir().into());
    let directory = tempfile::tempdir_in(parent)?;
    let clock = Arc::new(SystemClock::new());

    let bare = bare_syncs(directory.path(), &clock)?;
    println!("{bare:8.0} syncs/s: 512 bytes rewritten in place, fdatasync each time");

    let store = EmbeddedStore::open(&directory.path().join("store"), 1)?;
    let done = |_: &Attempt| Outcome::new(Verdict::Done, "");
    let timers = Timers::open(store, Inline(done), clock.clone(), Config::default())?;
    for writers in [1, 16, 256] {
        let before = timers.stats();
        let sets = writers_for(&timers, writers, &clock)?;
        let commits = timers.stats().commits - before.commits;
        let seconds = EACH.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more")]
        let (sets_rate, rate) = (sets as f64 / seconds, commits as f64 / seconds);
        println!(
            "{sets_rate:8.0} sets/s by {writers:3} writers: {rate:.0} commits/s, a commit takes {:.1} bare syncs",
            bare / rate.max(1.0),
        );
    }
    Ok(())
}

fn bare_syncs(directory: &Path, clock: &SystemClock) -> std::io::Result<f64> {
    let mut file = File::create(directory.join("bare"))?;
    file.write_all(&[0; 4096])?;
    file.sync_all()?;
    let (start, mut syncs) = (clock.now(), 0.0);
    while clock.now() < start + EACH {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&[1; 512])?;
        file.sync_data()?;
        syncs += 1.0;
    }
    Ok(syncs / EACH.as_secs_f64())
}

/// Lets writers set timers one after the other, each waiting for its answer; gives how many.
fn writers_for(
    timers: &Timers,
    writers: usize,
    clock: &SystemClock,
) -> Result<usize, Box<dyn std::error::Error>> {
    let until = clock.now() + EACH;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|writer| scope.spawn(move || one_writer(timers, writer, until, clock)))
            .collect();
        let counts = threads
            .into_iter()
            .map(|t| t.join().unwrap_or(Err("panicked".into())));
        counts.sum::<Result<usize, String>>().map_err(Into::into)
    })
}

fn one_writer(
    timers: &Timers,
    writer: usize,
    until: Instant,
    clock: &SystemClock,
) -> Result<usize, String> {
    let mut sets = 0;
    while clock.now() < until {
        let name = TimerName::new("rate", format!("{writer}-{sets}")).map_err(|e| e.to_string())?;
        let due = Due::In(Duration::from_secs(3600));
        let set = timers.set(name, due, RetryPolicy::default(), vec![7; 200]);
        set.map_err(|error| error.to_string())?;
        sets += 1;
    }
    Ok(sets)
}
