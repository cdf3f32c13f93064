//! A timer with nothing to do does nothing, as the kernel sees it.
//!
//! Timers that have fired something and have nothing pending, and timers with a million tasks an
//! hour away, of every layout and with coarse and fine ticks, all at once. Over some seconds,
//! neither their own count of wake-ups nor the kernel's count of their threads' sleeps may change.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::sync::mpsc;
use std::time::Duration;

use countwheel::{Clock, Layout, Resolution, SystemClock, Timer};

use crate::random::Random;

/// How long, and with how many tasks.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long to watch.
    pub span: Duration,
    /// How many tasks are pending on each timer that has any.
    pub tasks: u64,
}

/// Between the last call and the beginning of the watch: a wheel may look around once more
/// after something was filed.
const CALM: Duration = Duration::from_secs(2);

/// How many threads schedule: so the tasks are spread over that many shards.
const THREADS: u32 = 4;

/// What was seen of one timer.
#[derive(Clone, Debug)]
pub struct Idler {
    /// The layout, the tick, what is pending.
    pub what: String,
    /// How many tasks were pending.
    pub pending: u64,
    /// How often its host woke up, by its own count.
    pub wake_ups: u64,
    /// How often its threads went to sleep, by the kernel's count. `None` if that is unknown.
    pub switches: Option<u64>,
}

impl Idler {
    /// Whether it was as quiet as it has to be: silent with nothing pending, and at most one
    /// wake-up for far tasks.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let allowed = u64::from(self.pending > 0);
        self.wake_ups <= allowed && self.switches.is_none_or(|switches| switches <= allowed)
    }
}

impl fmt::Display for Idler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let switches = self
            .switches
            .map_or("unknown".to_owned(), |switches| switches.to_string());
        write!(
            f,
            "{:<36} {:>9} pending: {} wake-ups, {switches} switches",
            self.what, self.pending, self.wake_ups
        )
    }
}

/// Watches idle timers.
///
/// # Errors
/// If a timer refuses what it should take.
pub fn run(options: &Options) -> Result<Vec<Idler>, String> {
    let mut timers = Vec::new();
    for (layout, layout_name) in [
        (Some(Layout::Hierarchical), "hierarchical"),
        (Layout::hashed(512).ok(), "hashed(512)"),
    ] {
        for tick in [Duration::from_millis(1), Duration::from_micros(64)] {
            for tasks in [0, options.tasks] {
                let name = format!("idle-{}", timers.len());
                let what = format!("{layout_name}, ticks of {tick:?}");
                let timer = Timer::builder()
                    .layout(layout.unwrap_or_default())
                    .resolution(Resolution::new(tick).map_err(|error| error.to_string())?)
                    .thread_name(name.clone())
                    .build();
                prepare(&timer, tasks, timers.len()).map_err(|error| format!("{what}: {error}"))?;
                timers.push((name, what, timer));
            }
        }
    }
    pause(CALM);
    let before: Vec<_> = timers.iter().map(|(.., timer)| timer.stats()).collect();
    let switched = switches();
    pause(options.span);
    let switches = switches();
    let mut idlers = Vec::new();
    for ((name, what, timer), before) in timers.iter().zip(before) {
        let now = timer.stats();
        let count = |counts: &BTreeMap<String, u64>| counts.get(name).copied();
        idlers.push(Idler {
            what: what.clone(),
            pending: now.pending,
            wake_ups: now.wake_ups - before.wake_ups,
            switches: count(&switches).zip(count(&switched)).map(|(a, b)| a - b),
        });
    }
    Ok(idlers)
}

/// Fires a task of the timer on every used shard, so that all its threads run and no wheel is
/// fresh, and leaves `tasks` pending.
fn prepare(timer: &Timer, tasks: u64, number: usize) -> Result<(), Box<dyn std::error::Error>> {
    let (sender, fired) = mpsc::channel();
    for thread in 0..THREADS {
        countwheel::pretend_to_be_thread(thread);
        let sender = sender.clone();
        let task = move || {
            let _ = sender.send(());
        };
        timer.schedule(Duration::from_millis(2), task)?;
    }
    drop(sender);
    fired.iter().for_each(drop);
    pause(Duration::from_millis(20));
    let mut random = Random::new(number as u64, "delays");
    let hour = 3_600_000_000_000;
    let threads = (0..THREADS).cycle();
    for (_task, thread) in (0..tasks).zip(threads) {
        countwheel::pretend_to_be_thread(thread);
        let delay = Duration::from_nanos(random.between(hour, 2 * hour));
        timer.schedule(delay, || ())?;
    }
    Ok(())
}

/// How often the threads of each name have gone to sleep by themselves.
fn switches() -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        // A thread may have ended since it was listed.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else {
            continue;
        };
        let field = |name| {
            let rest = status
                .lines()
                .find_map(|line: &str| line.strip_prefix(name));
            rest.map(str::trim)
        };
        if let Some(name) = field("Name:")
            && let Some(count) = field("voluntary_ctxt_switches:")
            && let Ok(count) = count.parse::<u64>()
        {
            *counts.entry(name.to_owned()).or_default() += count;
        }
    }
    counts
}

/// Waits, in real time.
pub(crate) fn pause(span: Duration) {
    let clock = SystemClock::new();
    let (_sender, never) = mpsc::channel::<()>();
    let end = clock.now() + span;
    while clock.now() < end {
        let left = end.saturating_since(clock.now());
        let _ = never.recv_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_is_noticed() {
        let idler = |pending, wake_ups, switches| Idler {
            what: String::new(),
            pending,
            wake_ups,
            switches,
        };
        assert!(idler(0, 0, Some(0)).is_quiet());
        assert!(idler(1, 1, None).is_quiet());
        assert!(!idler(0, 1, Some(0)).is_quiet());
        assert!(!idler(0, 0, Some(1)).is_quiet());
        assert!(!idler(1, 0, Some(2)).is_quiet());
    }

    #[test]
    fn the_kernel_counts_the_sleeps_of_a_named_thread() {
        let thread = std::thread::Builder::new().name("sleeper".to_owned());
        let (sender, receiver) = mpsc::channel::<mpsc::Sender<()>>();
        let sleeper = thread.spawn(move || {
            receiver.iter().for_each(|done| done.send(()).unwrap());
        });
        let count = || switches().get("sleeper").copied().unwrap_or(0);
        let wake = || {
            let (done, wait) = mpsc::channel();
            sender.send(done).unwrap();
            wait.recv().unwrap();
        };
        wake();
        let before = count();
        // Until it sleeps again, and is woken from that.
        while count() <= before {
            pause(Duration::from_millis(1));
            wake();
        }
        drop(sender);
        sleeper.unwrap().join().unwrap();
    }
}
