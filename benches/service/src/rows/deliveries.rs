//! Deliveries a second, and how late they are at rates below that and at it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use countwheel_time::SystemClock;

use crate::Bench;
use crate::figures::{Quantiles, Sheet, verdict};
use crate::load::{Spread, lateness, rate, set_ahead, wait_until};
use crate::machine;
use crate::service::{Candidate, Workers};
use crate::sink::{Manner, Sink};

const IDLE_PER_SECOND: f64 = 10.0;
/// How long no delivery may come before those that miss are given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// The goal for the lateness at half of the peak, p99 in milliseconds.
const GOAL: f64 = 5.0;

const RATE: &str = "deliveries/s, all due at once";
const HALF: &str = "half of the peak";

pub(crate) async fn measure(bench: &mut Bench) -> anyhow::Result<String> {
    let candidates = bench.candidates();
    let mut sheet = Sheet::new(candidates.iter().map(|it| it.name()).collect());
    let mut not_run = Vec::new();
    for round in 0..bench.arguments.rounds {
        println!("deliveries: round {}", round + 1);
        for &candidate in &candidates {
            if let Err(error) = round_of(bench, candidate, round, &mut sheet).await {
                not_run.push(format!("{}: {error:#}", candidate.name()));
            }
        }
    }
    let seen = sheet.median(&format!("{HALF}, p99 ms"), Candidate::Ours.name());
    let verdict = verdict("Lateness at half of the peak, p99", GOAL, seen);
    let table = format!("{}\n\n{verdict}", sheet.table());
    Ok(bench.whole(table, &not_run))
}

async fn round_of(
    bench: &Bench,
    candidate: Candidate,
    round: usize,
    sheet: &mut Sheet,
) -> anyhow::Result<()> {
    let name = candidate.name();
    let disk = machine::sync_rate(&bench.directory)?;
    let peak = peak(bench, candidate).await?;
    sheet.add(RATE, name, round, peak);
    sheet.add("all due at once, syncs/s before", name, round, disk);
    for (load, per_second) in [
        ("10 a second", IDLE_PER_SECOND),
        (HALF, peak / 2.0),
        ("the peak", peak),
    ] {
        let disk = machine::sync_rate(&bench.directory)?;
        let (late, missing) = late(bench, candidate, per_second).await.context(load)?;
        ensure!(missing == 0, "{load}: {missing} did not arrive");
        for (what, value) in [("p50", late.p50), ("p99", late.p99), ("p99.9", late.p999)] {
            sheet.add(&format!("{load}, {what} ms"), name, round, value);
        }
        sheet.add(&format!("{load}, syncs/s before"), name, round, disk);
    }
    Ok(())
}

/// Deliveries a second of timers that are all due. The workers of a peer start when all are due.
async fn peak(bench: &Bench, candidate: Candidate) -> anyhow::Result<f64> {
    let (sink, service) = (Sink::open(&[Manner::Good])?, candidate.start(bench).await?);
    let count = bench.arguments.deliveries;
    let dues = set_ahead(&service, Spread::at_once(count), sink.ports()).await?;
    let mut workers = Workers::None;
    if !service.delivers() {
        let all_due = dues.last + Duration::from_secs(1);
        wait_until(SystemClock::new(), all_due).await;
        workers = service.work(sink.ports()[0]).await?;
    }
    sink.wait_for(count, dues.last, PATIENCE).await;
    drop(workers);
    rate(&sink, count)
}

/// How late deliveries are at a rate, and how many did not come.
async fn late(
    bench: &Bench,
    candidate: Candidate,
    per_second: f64,
) -> anyhow::Result<(Quantiles, usize)> {
    let (sink, service) = (Sink::open(&[Manner::Good])?, candidate.start(bench).await?);
    let spread = Spread::over(per_second, bench.arguments.late_seconds);
    let workers = service.work(sink.ports()[0]).await?;
    let dues = set_ahead(&service, spread, sink.ports()).await?;
    sink.wait_for(spread.count, dues.last, PATIENCE).await;
    drop(workers);
    let late = lateness(&sink, &dues, |_| true);
    Ok((Quantiles::of(late.micros), late.missing))
}
