//! Durable sets a second at numbers of connections.

use std::time::Duration;

use countwheel_time::{Clock as _, Instant, SystemClock};
use tokio::task::JoinSet;

use crate::Bench;
use crate::figures::{Quantiles, Sheet};
use crate::machine;
use crate::service::{Candidate, Setter, Timer};

/// What is set before does not count.
const WARM_UP: Duration = Duration::from_secs(1);
/// Timers are due so much later, in the order in which they are set.
const AHEAD: Duration = Duration::from_secs(3_600);
/// Numbers of the timers of one connection.
const NUMBERS: usize = 1_000_000;

pub(crate) async fn measure(bench: &mut Bench) -> anyhow::Result<String> {
    let candidates = bench.candidates();
    let mut sheet = Sheet::new(candidates.iter().map(|it| it.name()).collect());
    let mut not_run = Vec::new();
    for round in 0..bench.arguments.rounds {
        println!("sets: round {}", round + 1);
        for connections in bench.arguments.connections.clone() {
            for &candidate in &candidates {
                let name = candidate.name();
                let disk = machine::sync_rate(&bench.directory)?;
                match run(bench, candidate, connections).await {
                    Ok((rate, latency)) => {
                        let what = |it: &str| format!("{connections} connections, {it}");
                        sheet.add(&what("sets/s"), name, round, rate);
                        sheet.add(&what("p50 ms"), name, round, latency.p50);
                        sheet.add(&what("p99 ms"), name, round, latency.p99);
                        sheet.add(&what("syncs/s before"), name, round, disk);
                    }
                    Err(error) => not_run.push(format!("{name} at {connections}: {error:#}")),
                }
            }
        }
    }
    Ok(bench.whole(sheet.table(), &not_run))
}

/// Sets a second on a fresh service, and how long a set took.
pub(crate) async fn run(
    bench: &Bench,
    candidate: Candidate,
    connections: usize,
) -> anyhow::Result<(f64, Quantiles)> {
    let service = candidate.start(bench).await?;
    let mut setters = Vec::new();
    for _ in 0..connections {
        setters.push(service.connect().await?);
    }
    let clock = SystemClock::new();
    let span = Duration::from_secs_f64(bench.arguments.set_seconds);
    let from = clock.now() + WARM_UP;
    let mut tasks = JoinSet::new();
    for (at, setter) in setters.into_iter().enumerate() {
        tasks.spawn(set_until(setter, at * NUMBERS, from, from + span));
    }
    let mut micros = Vec::new();
    while let Some(took) = tasks.join_next().await {
        micros.extend(took??);
    }
    #[expect(clippy::cast_precision_loss, reason = "some hundred thousands")]
    let rate = micros.len() as f64 / span.as_secs_f64();
    Ok((rate, Quantiles::of(micros)))
}

/// Sets one timer after the other, and returns the microseconds of each that was answered between two times.
async fn set_until(
    mut setter: Setter,
    mut number: usize,
    from: Instant,
    until: Instant,
) -> anyhow::Result<Vec<u64>> {
    let clock = SystemClock::new();
    let mut took = Vec::new();
    loop {
        let began = clock.now();
        let due = clock.timestamp() + AHEAD;
        // Nobody listens there, and nothing is due before the run ends.
        let port = 9_999;
        setter.set(Timer { number, due, port }).await?;
        number += 1;
        let ended = clock.now();
        if ended >= until {
            return Ok(took);
        }
        if ended >= from {
            let micros = ended.saturating_since(began).as_micros();
            took.push(u64::try_from(micros)?);
        }
    }
}
