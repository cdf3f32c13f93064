//! N timers pend in ours: what they cost, how long a restart takes, and how late timers are that
//! fire meanwhile. Keys and deadlines come from counters; nothing here grows with N.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{bail, ensure};
use countwheel_durable::{Attempt, Config, Inline, Outcome as Delivered, Verdict};
use countwheel_time::locks::lock;
use countwheel_time::{Clock as _, SystemClock, Timestamp};
use serde::{Deserialize, Serialize};

use crate::child;
use crate::item::{Item, PAYLOAD_BYTES};
use crate::machine::Machine;
use crate::ours::{self, Kind};
use crate::peer::{name_of, open_ours};
use crate::results::{Outcome, Results};
use crate::run::command_line;
use crate::statistics::Durations;
use crate::stopwatch::{Stopwatch, pause};
use crate::system::{self, Memory};
use crate::traffic::{FIRST_DUE_MS, Stream};
use crate::workload::{Figures, LOAD_BATCH, add_quantiles};

/// What is asked for, and what came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pending {
    pub(crate) parameters: Parameters,
    pub(crate) figures: Figures,
    /// Why there are no more figures.
    pub(crate) failure: Option<String>,
}

/// What a run depends on.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Parameters {
    pub(crate) kind: Kind,
    /// How many timers pend, those that fire included.
    pub(crate) timers: u64,
    /// Bytes of a payload.
    pub(crate) payload: usize,
    /// How many fire a second.
    pub(crate) rate: u64,
    /// For how many seconds.
    pub(crate) seconds: u64,
    /// How many attempts may run at a time.
    pub(crate) in_flight: usize,
}

/// Deadlines of those that do not fire are spread over so long.
const SPREAD_MS: u64 = 2 * 365 * 86_400_000;
/// A record beside its payload, in every place where it is found, at the most.
const BESIDE_PAYLOAD_BYTES: u64 = 160;
/// The log, and what is beside.
const DISK_BYTES_BESIDE: u64 = 2 << 30;
/// How long those that fire may be late before the measurement ends without them.
const PATIENCE_SECONDS: u64 = 120;
const DEADLINE_SECONDS: u64 = 4 * 3600;

impl Parameters {
    fn firing(&self) -> u64 {
        self.rate * self.seconds
    }

    /// Bytes on the disk: half as much again as the records, for the time while they are merged,
    /// unless somebody knows better.
    pub(crate) fn disk_bytes(&self, of_timer: Option<u64>) -> u64 {
        let record = self.payload as u64 + BESIDE_PAYLOAD_BYTES;
        DISK_BYTES_BESIDE + self.timers * of_timer.unwrap_or(record * 3 / 2)
    }

    fn arguments(&self, word: &str, start: Option<Timestamp>) -> Vec<String> {
        let mut arguments = vec![word.to_owned(), "--store".to_owned(), self.kind.word()];
        for (name, number) in [
            ("--timers", self.timers),
            ("--payload", self.payload as u64),
            ("--rate", self.rate),
            ("--seconds", self.seconds),
            ("--in-flight", self.in_flight as u64),
        ] {
            arguments.extend([name.to_owned(), number.to_string()]);
        }
        if let Some(start) = start {
            arguments.extend(["--start".to_owned(), start.as_micros().to_string()]);
        }
        arguments
    }
}

/// Loads, opens again, fires, and writes what was seen. Whether all went well.
pub(crate) fn run(
    parameters: Parameters,
    disk_per_timer: Option<u64>,
    directory: &Path,
    out: Option<PathBuf>,
) -> anyhow::Result<bool> {
    ensure!(
        parameters.timers > parameters.firing(),
        "{} timers are to fire: --timers has to be more",
        parameters.firing()
    );
    std::fs::create_dir_all(directory)?;
    let (free, needed) = (
        system::free_bytes(directory)?,
        parameters.disk_bytes(disk_per_timer),
    );
    ensure!(
        free >= needed,
        "{} has {:.1} GB free, {:.1} GB are needed for {} timers; \
         --disk-per-timer says what one takes if you know better",
        directory.display(),
        free as f64 / 1e9,
        needed as f64 / 1e9,
        parameters.timers
    );
    let mut results = Results {
        commands: vec![command_line()],
        machine: Machine::describe(directory),
        ours: vec![parameters.kind.describe().to_owned()],
        ..Results::default()
    };
    let place = tempfile::tempdir_in(directory)?;
    let mut figures = Figures::new();
    let failure = steps(&parameters, place.path(), &mut figures).err();
    let failure = failure.map(|error| format!("{error:#}"));
    for (name, value) in &figures {
        println!("{name:<28} {}", crate::statistics::figure(*value));
    }
    if let Some(why) = &failure {
        println!("FAILED: {why}");
    }
    let went_well = failure.is_none();
    results.pending.push(Pending {
        parameters,
        figures,
        failure,
    });
    if let Some(out) = out {
        results.write(&out)?;
    }
    Ok(went_well)
}

/// Each a process of its own that ends without closing the store, as by a kill.
fn steps(parameters: &Parameters, directory: &Path, figures: &mut Figures) -> anyhow::Result<()> {
    let mut step = |word: &str, start: Option<Timestamp>| {
        let arguments = parameters.arguments(word, start);
        match child::measure_aloud(&arguments, directory, DEADLINE_SECONDS)? {
            Outcome::Figures(more) => {
                figures.extend(more.clone());
                Ok(more)
            }
            Outcome::OverSeconds(seconds) => bail!("{word} took over {seconds} s"),
            Outcome::Failed(_) => bail!("{word} failed, see above"),
        }
    };
    step("pending-load", None)?;
    let restart = step("pending-open", None)?;
    // Time enough to load those that fire, and to open twice as slowly as just seen, twice.
    let restart = restart.get("restart_ms").copied().unwrap_or(0.0) / 1e3;
    let margin = parameters.firing() as f64 / 20_000.0 + 4.0 * restart + 10.0;
    let start = SystemClock::new().timestamp() + Duration::from_secs_f64(margin);
    step("pending-near", Some(start))?;
    step("pending-fire", Some(start))?;
    Ok(())
}

/// Loads all that do not fire.
pub(crate) fn load(parameters: &Parameters, directory: &Path) -> anyhow::Result<Figures> {
    let count = parameters.timers - parameters.firing();
    let mut stream = Stream::new(0, count, FIRST_DUE_MS, (SPREAD_MS / count).max(1));
    let mut store = open_ours(directory, parameters.kind)?;
    let watch = Stopwatch::start();
    let mut slowest = 0.0_f64;
    while stream.inserted < count {
        let batch = (count - stream.inserted).min(LOAD_BATCH as u64);
        let items = (0..batch).map(|_| {
            let item = stream.insert().item();
            let due = Timestamp::from_micros(item.due_ms * 1_000);
            (item, due, payload(item, parameters.payload))
        });
        let commit = Stopwatch::start();
        store.insert(items)?;
        slowest = slowest.max(commit.milliseconds());
        if stream.inserted / 1_000_000 > (stream.inserted - batch) / 1_000_000 {
            let rate = stream.inserted as f64 / watch.seconds();
            eprintln!("{} of {count} loaded, {rate:.0}/s", stream.inserted);
        }
    }
    let loaded = watch.seconds();
    let figures = Figures::from([
        ("load_per_s".to_owned(), count as f64 / loaded),
        ("load_slowest_ms".to_owned(), slowest),
        ("load_resident".to_owned(), own_memory()?.resident as f64),
    ]);
    leave_open(store);
    Ok(figures)
}

/// Opens an engine, and asks it something.
pub(crate) fn open(parameters: &Parameters, directory: &Path) -> anyhow::Result<Figures> {
    let disk = system::disk_bytes(directory)? as f64;
    let watch = Stopwatch::start();
    let timers = ours::open(parameters.kind, directory)?
        .timers(Inline(|_: &Attempt| done()), config(parameters))?;
    first_turn(&timers)?;
    let restart = watch.milliseconds();
    pause(Duration::from_secs(1));
    let memory = own_memory()?;
    let loaded = (parameters.timers - parameters.firing()) as f64;
    leave_open(timers);
    Ok(Figures::from([
        ("restart_ms".to_owned(), restart),
        ("resident".to_owned(), memory.resident as f64),
        ("anonymous".to_owned(), memory.anonymous as f64),
        ("disk_per_timer".to_owned(), disk / loaded),
    ]))
}

/// Loads those that fire, from `start` on.
pub(crate) fn load_near(
    parameters: &Parameters,
    start: Timestamp,
    directory: &Path,
) -> anyhow::Result<Figures> {
    let count = parameters.firing();
    let mut stream = Stream::new(1, count, 0, 1);
    let mut store = open_ours(directory, parameters.kind)?;
    let watch = Stopwatch::start();
    while stream.inserted < count {
        let batch = (count - stream.inserted).min(LOAD_BATCH as u64);
        let items = (0..batch).map(|_| {
            let item = stream.insert().item();
            // Its place among those that fire.
            let micros = item.due_ms * 1_000_000 / parameters.rate;
            let due = start + Duration::from_micros(micros);
            (item, due, payload(item, parameters.payload))
        });
        store.insert(items)?;
    }
    let rate = count as f64 / watch.seconds();
    leave_open(store);
    Ok(Figures::from([("load_near_per_s".to_owned(), rate)]))
}

/// Opens an engine and lets it fire, from `start` on.
pub(crate) fn fire(
    parameters: &Parameters,
    start: Timestamp,
    directory: &Path,
) -> anyhow::Result<Figures> {
    let clock = SystemClock::new();
    let lateness = Arc::new(Mutex::new(Durations::default()));
    let kept = Arc::clone(&lateness);
    let handler = Inline(move |attempt: &Attempt| {
        let late = u64::try_from(attempt.lateness().as_nanos()).unwrap_or(u64::MAX);
        lock(&kept).record(late);
        done()
    });
    let watch = Stopwatch::start();
    let timers = ours::open(parameters.kind, directory)?.timers(handler, config(parameters))?;
    first_turn(&timers)?;
    let mut figures = Figures::from([("restart_again_ms".to_owned(), watch.milliseconds())]);
    ensure!(
        clock.timestamp() < start,
        "the restart was not over when the first timer was due"
    );

    let expected = parameters.firing();
    let end = start + Duration::from_secs(parameters.seconds + PATIENCE_SECONDS);
    let mut most = Memory::default();
    let mut most_in_window = 0;
    let fired = loop {
        pause(Duration::from_millis(500));
        let stats = timers.stats();
        let memory = own_memory()?;
        most.resident = most.resident.max(memory.resident);
        most.anonymous = most.anonymous.max(memory.anonymous);
        most_in_window = most_in_window.max(stats.in_window);
        if stats.done >= expected || clock.timestamp() > end {
            break stats.done;
        }
    };
    let late = std::mem::take(&mut *lock(&lateness));
    let attempts = late.len();
    add_quantiles(&mut figures, "lateness", late.quantiles());
    figures.insert("fired".to_owned(), fired as f64);
    figures.insert("attempts".to_owned(), attempts as f64);
    figures.insert("firing_resident".to_owned(), most.resident as f64);
    figures.insert("firing_anonymous".to_owned(), most.anonymous as f64);
    figures.insert("most_in_window".to_owned(), most_in_window as f64);
    let disk = system::disk_bytes(directory)? as f64;
    let all = parameters.timers as f64;
    figures.insert("disk_per_timer_after".to_owned(), disk / all);
    ensure!(
        fired == expected,
        "{fired} of {expected} fired in {} s",
        parameters.seconds + PATIENCE_SECONDS
    );
    Ok(figures)
}

/// The process ends with it open: the next one opens what a kill leaves behind.
fn leave_open<T>(open: T) {
    std::mem::forget(open);
}

fn config(parameters: &Parameters) -> Config {
    Config {
        max_in_flight: parameters.in_flight,
        ..Config::default()
    }
}

fn done() -> Delivered {
    Delivered::new(Verdict::Done, "")
}

/// A request that changes nothing: its answer comes from the first turn.
fn first_turn(timers: &countwheel_durable::Timers) -> anyhow::Result<()> {
    let nobody = name_of(Item {
        id: u64::MAX,
        due_ms: 0,
    })?;
    match timers.remove(nobody) {
        Err(countwheel_durable::TimerError::NotFound) => Ok(()),
        other => bail!("a timer that was never set: {other:?}"),
    }
}

fn own_memory() -> anyhow::Result<Memory> {
    system::memory(std::process::id())
}

/// As many bytes as asked for, of the kind that every record has.
fn payload(item: Item, bytes: usize) -> Vec<u8> {
    let whole = item.payload();
    let mut payload = Vec::with_capacity(bytes);
    while payload.len() < bytes {
        payload.extend_from_slice(&whole[..PAYLOAD_BYTES.min(bytes - payload.len())]);
    }
    payload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_the_bytes_asked_for() {
        let item = Item { id: 3, due_ms: 0 };
        for bytes in [0, 1, 200, 201, 1_000] {
            assert_eq!(payload(item, bytes).len(), bytes);
        }
        assert_eq!(payload(item, 200), item.payload());
    }

    #[test]
    fn what_is_asked_for_reaches_the_process_that_does_it() {
        let parameters = Parameters {
            kind: Kind::Log,
            timers: 1_000,
            payload: 10,
            rate: 20,
            seconds: 3,
            in_flight: 5,
        };
        let arguments = parameters.arguments("pending-fire", Some(Timestamp::from_micros(9)));
        let text = arguments.join(" ");
        assert_eq!(
            text,
            "pending-fire --store log --timers 1000 --payload 10 --rate 20 --seconds 3 \
             --in-flight 5 --start 9"
        );
        assert!(
            parameters.disk_bytes(None) > 1_000 * 170 && parameters.disk_bytes(Some(1)) > 1_000
        );
    }
}
