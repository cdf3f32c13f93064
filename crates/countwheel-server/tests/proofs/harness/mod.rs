//! What the long proofs share: a server that is killed, a receiver that is not, and a
//! checker that compares what was promised with what arrived.

pub(crate) mod caller;
pub(crate) mod checker;
pub(crate) mod faketime;
pub(crate) mod figures;
pub(crate) mod load;
pub(crate) mod mounts;
pub(crate) mod process;
pub(crate) mod receiver;
pub(crate) mod way;

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use countwheel_time::{Clock, SystemClock};
use parking_lot::{Mutex, MutexGuard};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The wall's time in microseconds since 1970, on the clock that the server reads too.
pub(crate) fn now_us() -> u64 {
    SystemClock::new().timestamp().as_micros()
}

/// Waits a moment for another process.
#[expect(clippy::disallowed_methods, reason = "polls another process")]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

/// Waits until `holds`.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = now_us() + micros(PATIENCE);
    while !holds() {
        assert!(now_us() < end, "waited in vain: {what}");
        pause();
    }
}

/// Waits that long: under load, between faults.
pub(crate) fn wait(span: Duration) {
    let end = now_us() + micros(span);
    while now_us() < end {
        pause();
    }
}

/// What failed first.
static FIRST_FAILURE: Mutex<Option<String>> = Mutex::new(None);

/// The machine, as long as a proof has it. Says once more what failed when it is over, behind all
/// that its end had to say: often the end of what a run printed is all that is left of it.
pub(crate) struct Turn {
    _alone: MutexGuard<'static, ()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(failure) = &*FIRST_FAILURE.lock()
        {
            eprintln!("what failed first: {failure}");
        }
    }
}

/// One proof at a time: each has the machine to itself, and some measure how late things are.
pub(crate) fn turn() -> Turn {
    static TURN: Mutex<()> = Mutex::new(());
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |failure| {
            FIRST_FAILURE
                .lock()
                .get_or_insert_with(|| failure.to_string());
            usual(failure);
        }));
    });
    let alone = TURN.lock();
    *FIRST_FAILURE.lock() = None;
    Turn { _alone: alone }
}

/// A span in microseconds.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// A number from the environment, or `default`.
#[track_caller]
pub(crate) fn setting(name: &str, default: impl FnOnce() -> u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text:?}")),
        Err(_) => default(),
    }
}

/// The seed of a run: `COUNTWHEEL_SEED`, or a fresh one. Printed, so that it can be given.
pub(crate) fn seed() -> u64 {
    let fresh = || getrandom::u64().unwrap() & 0xffff_ffff;
    let seed = setting("COUNTWHEEL_SEED", fresh);
    println!("COUNTWHEEL_SEED={seed}");
    seed
}

/// Chance: the same seed, the same draws.
#[derive(Clone, Debug)]
pub(crate) struct Random(countwheel_time::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(countwheel_time::Random::new(seed))
    }

    fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    /// From `low`, below `high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high - low)
    }
}

/// A path that nobody else has. The process's number is no name: it is the same in every name
/// space of processes.
pub(crate) fn temporary(name: &str) -> PathBuf {
    let name = format!("{name}-{:016x}", getrandom::u64().unwrap());
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// A directory of its own, removed at the end; `cargo xtask` removes those of a run that had
/// none, by how their names begin.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        let path = temporary(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap_or_default();
    }
}
