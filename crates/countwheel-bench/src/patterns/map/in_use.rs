//! P3: threads that read and write the map.

use std::time::{Duration, Instant};

use anyhow::ensure;

use super::Map;
use super::trace::Trace;
use crate::gate::{Gate, at_once, role};
use crate::patterns::workload::Extent;
use crate::stopwatch::Stopwatch;
use crate::system::processor_nanoseconds;
use crate::workload::{Figures, figures};

/// How many operations there are between two looks at the clock, and of how many values that
/// were found the age is looked at.
const OPERATIONS: usize = 64;
const AGED: u64 = 16;

pub(super) fn measure<M: Map<u64>>(threads: u64, extent: Extent) -> anyhow::Result<Figures> {
    let map = M::start(extent.ttl)?;
    let began = Stopwatch::start().instant();
    let roles = (0..threads).map(|thread| {
        let map = map.clone();
        role(move |gate| User::new(map, extent, began).run(thread, gate))
    });
    let mut processor = 0.0;
    let parts = at_once(roles.collect(), || processor = processor_nanoseconds());
    let processor = processor_nanoseconds() - processor;
    let parts: Vec<Part> = parts.into_iter().collect::<anyhow::Result<_>>()?;
    ensure!(parts.len() as u64 == threads, "a thread panicked");

    let total = |count: fn(&Part) -> u64| parts.iter().map(count).sum::<u64>() as f64;
    let operations = total(|part| part.operations);
    let stale = parts.iter().map(|part| part.stale).max();
    // Left to the end of the process.
    std::mem::forget(map);
    Ok(figures([
        ("mops", operations / extent.span.as_secs_f64() / 1e6),
        ("per-core", operations / processor * 1e3),
        (
            "hits",
            100.0 * total(|part| part.hits) / total(|part| part.gets),
        ),
        ("stale", stale.unwrap_or_default().as_secs_f64() * 1e3),
    ]))
}

/// What a thread has to tell.
#[derive(Default)]
struct Part {
    operations: u64,
    gets: u64,
    hits: u64,
    /// By how much the oldest value that was handed out had outlived its time.
    stale: Duration,
}

struct User<M> {
    map: M,
    extent: Extent,
    /// Before any value was inserted.
    began: Instant,
    part: Part,
}

/// So many bits of a value tell its key, the others when it was inserted, in microseconds.
const KEY_BITS: u32 = 20;
const KEY_MASK: u64 = (1 << KEY_BITS) - 1;

impl<M: Map<u64>> User<M> {
    fn new(map: M, extent: Extent, began: Instant) -> Self {
        Self {
            map,
            extent,
            began,
            part: Part::default(),
        }
    }

    fn run(mut self, thread: u64, gate: &Gate) -> anyhow::Result<Part> {
        let trace = Trace::new(thread, self.extent.keys);
        gate.pass();
        let from = Stopwatch::start().instant();
        for some in trace.endless(OPERATIONS) {
            for &operation in some {
                self.step(operation.key(), operation.is_insert())?;
            }
            self.part.operations += some.len() as u64;
            if from.elapsed() >= self.extent.span {
                break;
            }
        }
        Ok(self.part)
    }

    #[inline]
    fn step(&mut self, key: u64, is_insert: bool) -> anyhow::Result<()> {
        if is_insert {
            let value = (self.microseconds() << KEY_BITS) | (key & KEY_MASK);
            self.map.insert(key, value);
            return Ok(());
        }
        self.part.gets += 1;
        if let Some(value) = self.map.get(key) {
            self.part.hits += 1;
            ensure!(
                value & KEY_MASK == key & KEY_MASK,
                "that is another's value"
            );
            if self.part.hits.is_multiple_of(AGED) {
                let age = self.microseconds() - (value >> KEY_BITS);
                let over = Duration::from_micros(age).saturating_sub(self.extent.ttl);
                self.part.stale = self.part.stale.max(over);
            }
        }
        Ok(())
    }

    fn microseconds(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
