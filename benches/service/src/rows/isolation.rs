//! What three bad receivers cost the good ones of the same queue.

use std::time::Duration;

use super::order;
use crate::Bench;
use crate::figures::{Quantiles, figure, median, verdict};
use crate::load::{Lateness, Spread, lateness, set_ahead};
use crate::service::Candidate;
use crate::sink::{Manner, Sink};

const TARGETS: usize = 100;
/// The last of the targets, in the runs with bad ones.
const BAD: [Manner; 3] = [Manner::Hanging, Manner::Slow, Manner::Refusing];
/// How long no good delivery may come before those that miss are given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// The goal for the difference of the two p99, in milliseconds.
const GOAL: f64 = 10.0;

pub(crate) async fn measure(bench: &Bench) -> anyhow::Result<String> {
    let mut text = String::from(
        "| pair | bad targets | p50 ms | p99 ms | p99.9 ms | not arrived | p99, difference ms |\n\
         |---|---|---|---|---|---|---|",
    );
    let mut differences = Vec::new();
    for pair in 1..=bench.arguments.pairs {
        println!("isolation: pair {pair}");
        let mut seen = [None, None];
        for with_bad in order(pair) {
            let run = run(bench, with_bad).await?;
            let missing = run.missing;
            let quantiles = Quantiles::of(run.micros);
            println!(
                "  {}: p99 {} ms, {missing} not arrived",
                if with_bad { "with" } else { "without" },
                figure(quantiles.p99)
            );
            seen[usize::from(with_bad)] = Some((quantiles, missing));
        }
        let [Some((without, few)), Some((with, many))] = seen else {
            continue;
        };
        let difference = with.p99 - without.p99;
        differences.push(difference);
        for (bad, it, missing, end) in [
            ("none", without, few, String::new()),
            ("3", with, many, figure(difference)),
        ] {
            let [p50, p99, p999] = [it.p50, it.p99, it.p999].map(figure);
            text.push_str(&format!(
                "\n| {pair} | {bad} | {p50} | {p99} | {p999} | {missing} | {end} |"
            ));
        }
    }
    let what = "Median of the differences of p99";
    text.push_str(&format!(
        "\n\n{}",
        verdict(what, GOAL, median(&differences))
    ));
    Ok(text)
}

/// One run on a fresh service: how late the deliveries to the good targets were.
async fn run(bench: &Bench, with_bad: bool) -> anyhow::Result<Lateness> {
    let good = TARGETS - BAD.len();
    let mut manners = vec![Manner::Good; TARGETS];
    if with_bad {
        manners[good..].copy_from_slice(&BAD);
    }
    let sink = Sink::open(&manners)?;
    let service = Candidate::Ours.start(bench).await?;
    let spread = Spread::over(bench.arguments.rate, bench.arguments.seconds);
    let dues = set_ahead(&service, spread, sink.ports()).await?;
    let is_good = |number: usize| number % TARGETS < good;
    let answering = if with_bad { good } else { TARGETS };
    let wanted = (0..spread.count)
        .filter(|number| number % TARGETS < answering)
        .count();
    sink.wait_for(wanted, dues.last, PATIENCE).await;
    Ok(lateness(&sink, &dues, is_good))
}
