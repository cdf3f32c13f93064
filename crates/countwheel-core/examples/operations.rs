//! One operation of one wheel, so many times: for counting its instructions.
//!
//! ```text
//! operations                          lists what there is
//! operations WHEEL OPERATION COUNT    prepares, and does it COUNT times
//! ```
//!
//! The preparation is the same whatever the count, so the difference between the counts of
//! two runs is what the operations took. `cargo xtask instructions` does so.

use std::hint::black_box;
use std::process::ExitCode;

use countwheel_core::{HashedWheel, HierarchicalWheel, Tick, TimerKey};

/// Timers in the wheel before the operations.
const PENDING: u64 = 20_000;

/// Delays are spread over so many ticks.
const SPREAD: u64 = 60_000;

const OPERATIONS: [&str; 8] = [
    "schedule",
    "cancel",
    "cancel-each",
    "reschedule",
    "replace",
    "expire",
    "expire-batch",
    "empty-tick",
];

macro_rules! operations {
    ($name:ident, $new:expr) => {
        fn $name(operation: &str, count: u64) {
            let mut wheel = $new;
            let mut random = Random(42);
            let mut keys: Vec<TimerKey> = (0..PENDING)
                .map(|id| wheel.insert(random.deadline(0), id))
                .collect();
            random.shuffle(&mut keys);
            let mut more = Vec::with_capacity(usize::try_from(PENDING).unwrap_or(0));
            let mut keys = keys.into_iter();
            match operation {
                "schedule" => {
                    for id in 0..count {
                        more.push(wheel.insert(random.deadline(0), id));
                    }
                }
                "cancel" => {
                    for key in keys.by_ref().take(small(count)) {
                        black_box(wheel.cancel(key));
                    }
                }
                "cancel-each" => {
                    let these = keys.by_ref().take(small(count));
                    wheel.cancel_each(these, |_, id| {
                        black_box(id);
                    });
                }
                "reschedule" => {
                    for key in keys.by_ref().take(small(count)) {
                        black_box(wheel.reschedule(key, random.deadline(0)));
                    }
                }
                // What most timers of a service do: each is scheduled, and one cancelled.
                "replace" => {
                    for key in keys.by_ref().take(small(count)) {
                        more.push(wheel.insert(random.deadline(0), 0));
                        black_box(wheel.cancel(key));
                    }
                }
                "expire" => {
                    let mut tick = 0;
                    let mut rest = count;
                    while rest > 0 {
                        tick += 1;
                        while rest > 0
                            && let Some(expired) = wheel.expire(Tick::new(tick))
                        {
                            black_box(expired.value);
                            rest -= 1;
                        }
                    }
                }
                "expire-batch" => {
                    let mut batch = Vec::new();
                    let (mut tick, mut rest) = (0, small(count));
                    while rest > 0 {
                        tick += 1;
                        rest -= wheel.expire_batch(Tick::new(tick), rest, &mut batch);
                        black_box(batch.drain(..).map(|expired| expired.value).sum::<u64>());
                    }
                }
                _ => {
                    wheel.clear();
                    wheel.insert(Tick::new(SPREAD * PENDING), 0);
                    for tick in 0..count {
                        black_box(wheel.expire(Tick::new(tick)));
                    }
                }
            }
            black_box(more.len() + keys.len() + wheel.len());
            // Ending here leaves out what it takes to drop a wheel of whatever length.
            std::process::exit(0);
        }
    };
}

operations!(hierarchical, HierarchicalWheel::new());
operations!(
    hashed,
    HashedWheel::with_ticks_per_wheel(1 << 12).expect("an allowed size")
);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (wheel, operation, count) = match words[..] {
        [] => {
            for wheel in ["hierarchical", "hashed"] {
                for operation in OPERATIONS {
                    println!("{wheel} {operation}");
                }
            }
            return ExitCode::SUCCESS;
        }
        [wheel, operation, count] if OPERATIONS.contains(&operation) => (wheel, operation, count),
        _ => return usage(),
    };
    match (wheel, count.parse()) {
        ("hierarchical", Ok(count @ 0..=PENDING)) => hierarchical(operation, count),
        ("hashed", Ok(count @ 0..=PENDING)) => hashed(operation, count),
        _ => return usage(),
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: operations [WHEEL OPERATION COUNT], with a count up to {PENDING}");
    ExitCode::from(2)
}

/// Sebastiano Vigna's splitmix64, as `countwheel_time::Random` has it: this crate depends on no other.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn deadline(&mut self, now: u64) -> Tick {
        Tick::new(now + 1 + self.next() % SPREAD)
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, small(self.next() % (last as u64 + 1)));
        }
    }
}

fn small(number: u64) -> usize {
    usize::try_from(number).expect("a count is small")
}
