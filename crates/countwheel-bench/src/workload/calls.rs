//! The latency of single calls. The clock is read before and after every call, and the figures
//! include that cost.

use anyhow::ensure;

use super::expiry::{UNIFORM_TICKS, fired_ids};
use super::pairs::{Call, Pairs, Probe, STEPS, STEPS_PER_TICK, Untimed};
use super::{Figures, finish, room};
use crate::competitor::{Competitor, Tally};
use crate::random::{Delays, index};
use crate::statistics::percentile;
use crate::stopwatch::{Stopwatch, clock_cost};

pub(super) fn measure<C: Competitor>(timers: u64) -> anyhow::Result<Figures> {
    let mut figures = Figures::new();
    figures.insert("calls-clock".to_owned(), clock_cost() as f64);
    if C::CANCELS {
        let mut watch = Latencies::new(STEPS, STEPS, STEPS / STEPS_PER_TICK);
        let warm_up = timers;
        let mut pairs = Pairs::<C>::new(timers, warm_up + STEPS);
        pairs.run(warm_up, &mut Untimed);
        pairs.run(STEPS, &mut watch);
        pairs.finish()?;
        watch.report("calls-w2", &mut figures);
    }

    let mut watch = Latencies::new(timers, 0, UNIFORM_TICKS);
    let mut competitor = C::new(Delays::Uniform.longest());
    let mut handles = room(timers);
    let delays = Delays::Uniform.list(index(timers));
    for ((id, &delay), handle) in (0..).zip(&delays).zip(&mut handles) {
        let schedule = || competitor.schedule(u64::from(delay), id);
        *handle = Some(watch.time(Call::Schedule, schedule));
    }
    let mut told = Tally::default();
    for now in 1..=UNIFORM_TICKS {
        watch.time(Call::Advance, || competitor.advance_to(now, &mut told));
    }
    let fired = fired_ids::<C>(told, &handles).count;
    finish(competitor, handles);
    ensure!(fired == timers, "{fired} of {timers} timers fired");
    watch.report("calls-w3u", &mut figures);
    Ok(figures)
}

/// How long each call took, in memory that was touched before.
struct Latencies {
    schedule: Vec<u32>,
    cancel: Vec<u32>,
    advance: Vec<u32>,
}

impl Latencies {
    fn new(schedules: u64, cancels: u64, advances: u64) -> Self {
        let touched = |count| {
            let mut room = vec![1; index(count)];
            room.clear();
            room
        };
        Self {
            schedule: touched(schedules),
            cancel: touched(cancels),
            advance: touched(advances),
        }
    }

    fn report(self, workload: &str, figures: &mut Figures) {
        for (call, mut latencies) in [
            ("schedule", self.schedule),
            ("cancel", self.cancel),
            ("advance", self.advance),
        ] {
            latencies.sort_unstable();
            for (name, part) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
                if let Some(value) = percentile(&latencies, part) {
                    figures.insert(format!("{workload}-{call}-{name}"), f64::from(value));
                }
            }
        }
    }
}

impl Probe for Latencies {
    #[inline]
    fn time<R>(&mut self, kind: Call, call: impl FnOnce() -> R) -> R {
        let watch = Stopwatch::start();
        let result = call();
        let taken = u32::try_from(watch.nanoseconds()).unwrap_or(u32::MAX);
        match kind {
            Call::Schedule => self.schedule.push(taken),
            Call::Cancel => self.cancel.push(taken),
            Call::Advance => self.advance.push(taken),
        }
        result
    }
}
