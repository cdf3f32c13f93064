//! Timers a second that workers lease and ack, all of them due before.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use countwheel_time::{Clock as _, SystemClock};
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::Bench;
use crate::figures::Sheet;
use crate::http::Caller;
use crate::machine;
use crate::peers::beanstalkd::{Beanstalkd, Synced};
use crate::program::Program;
use crate::sink::body;

/// How many leases one call asks for, and one ack names.
const BATCH: usize = 256;
/// How many workers of ours there are.
const WORKERS: usize = 4;
/// How many connections set, and how many a peer works on: it takes one job at a time.
const CONNECTIONS: usize = 64;
/// A peer that syncs each write has one timer of so many: each put and each delete waits for a sync of its own.
const SYNCED_PART: usize = 50;
/// The goal, in leases that are acked a second.
const GOAL: f64 = 50_000.0;
const RATE: &str = "leased and acked a second";

/// Whose timers are leased.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leasing {
    Ours,
    Synced,
    Unsynced,
}

impl Leasing {
    const ALL: [Self; 3] = [Self::Ours, Self::Synced, Self::Unsynced];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "countwheel",
            Self::Synced => "beanstalkd",
            Self::Unsynced => "beanstalkd, not synced",
        }
    }
}

pub(crate) async fn measure(bench: &mut Bench) -> anyhow::Result<String> {
    let candidates = match bench.arguments.alone {
        true => vec![Leasing::Ours],
        false => Leasing::ALL.to_vec(),
    };
    let mut sheet = Sheet::new(candidates.iter().map(|it| it.name()).collect());
    let mut not_run = Vec::new();
    for round in 0..bench.arguments.rounds {
        println!("leases: round {}", round + 1);
        for &candidate in &candidates {
            let name = candidate.name();
            let disk = machine::sync_rate(&bench.directory)?;
            let measured = match candidate {
                Leasing::Ours => ours(bench).await,
                Leasing::Synced => theirs(bench, Synced::EachWrite).await,
                Leasing::Unsynced => theirs(bench, Synced::Never).await,
            };
            match measured {
                Ok(rate) => {
                    sheet.add(RATE, name, round, rate);
                    sheet.add("syncs/s before", name, round, disk);
                }
                Err(error) => {
                    // Such as a peer that is not installed.
                    println!("  NOT RUN: {name}: {error:#}");
                    not_run.push(format!("{name}: {error:#}"));
                }
            }
        }
    }
    let seen = sheet.median(RATE, Leasing::Ours.name());
    let verdict = seen.map_or_else(String::new, |seen| {
        let end = if seen >= GOAL { "met" } else { "**MISSED**" };
        format!("\n\nLeases acked a second: wanted at least {GOAL:.0}, seen {seen:.0}: {end}")
    });
    let table = format!("{}{verdict}", sheet.table());
    Ok(bench.whole(table, &not_run))
}

#[expect(clippy::cast_precision_loss, reason = "some millions")]
fn per_second(count: usize, took: std::time::Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

/// How the numbers up to `count` are shared among so many.
fn parts(count: usize, among: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..among).map(move |part| count * part / among..count * (part + 1) / among)
}

/// Leased and acked a second by workers of our program.
async fn ours(bench: &Bench) -> anyhow::Result<f64> {
    let program = Program::start(&bench.program, &bench.directory)?;
    let (port, count) = (program.port, bench.arguments.leases);
    let mut caller = Caller::connect(port).await?;
    let pulled = r#"{"mode":"pull"}"#;
    caller.send("PUT", "/v1/queues/bench", pulled).await?;
    let mut sets = JoinSet::new();
    for part in parts(count, CONNECTIONS) {
        let mut caller = Caller::connect(port).await?;
        sets.spawn(async move {
            for number in part {
                let path = format!("/v1/queues/bench/timers/t{number}");
                let set = format!(r#"{{"in":0,"body":{}}}"#, body(number));
                caller.send("PUT", &path, &set).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = sets.join_next().await {
        ended??;
    }
    let mut workers = JoinSet::new();
    let clock = SystemClock::new();
    let began = clock.now();
    for _ in 0..WORKERS {
        workers.spawn(work(Caller::connect(port).await?));
    }
    let mut acked = 0;
    while let Some(ended) = workers.join_next().await {
        acked += ended??;
    }
    let took = clock.now().saturating_since(began);
    ensure!(acked == count, "{acked} of {count} were acked");
    Ok(per_second(count, took))
}

#[derive(Deserialize)]
struct Leases<'a> {
    #[serde(borrow)]
    leases: Vec<Lease<'a>>,
}

#[derive(Deserialize)]
struct Lease<'a> {
    key: &'a str,
    token: &'a str,
}

#[derive(Deserialize)]
struct Results {
    results: Vec<ResultOf>,
}

#[derive(Deserialize)]
struct ResultOf {
    status: u16,
}

/// Leases and acks until nothing is due. Returns how many were acked.
async fn work(mut caller: Caller) -> anyhow::Result<usize> {
    let asked = format!(r#"{{"max":{BATCH},"lease":"5m"}}"#);
    let mut acked = 0;
    loop {
        let answer = caller.ask("POST", "/v1/queues/bench:lease", &asked).await?;
        let leases: Leases<'_> = serde_json::from_slice(answer).context("leases")?;
        if leases.leases.is_empty() {
            return Ok(acked);
        }
        let mut items = String::from(r#"{"items":["#);
        for (at, Lease { key, token }) in leases.leases.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(
                items,
                r#"{comma}{{"queue":"bench","key":"{key}","token":"{token}"}}"#
            )?;
        }
        items.push_str("]}");
        let answer = caller.ask("POST", "/v1/leases:ack", &items).await?;
        let results: Results = serde_json::from_slice(answer).context("results")?;
        acked += results.results.iter().filter(|it| it.status == 200).count();
    }
}

/// Reserved and deleted a second.
async fn theirs(bench: &Bench, synced: Synced) -> anyhow::Result<f64> {
    let server = Beanstalkd::start(&bench.directory, synced).await?;
    let count = match synced {
        Synced::EachWrite => bench.arguments.leases.div_ceil(SYNCED_PART),
        Synced::Never => bench.arguments.leases,
    };
    let mut puts = JoinSet::new();
    for part in parts(count, CONNECTIONS) {
        let mut connection = server.connect().await?;
        puts.spawn(async move {
            for number in part {
                connection.put(0, &body(number)).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = puts.join_next().await {
        ended??;
    }
    let mut workers = JoinSet::new();
    let clock = SystemClock::new();
    let began = clock.now();
    for part in parts(count, CONNECTIONS) {
        let mut connection = server.connect().await?;
        workers.spawn(async move {
            for _ in part {
                let (id, _) = connection.reserve().await?;
                connection.delete(&id).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    Ok(per_second(count, clock.now().saturating_since(began)))
}
