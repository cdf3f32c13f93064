//! What a namespace that is flooded beyond its quota costs another namespace of the same service.

use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use countwheel_time::{Clock as _, Instant, SystemClock};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::Bench;
use crate::figures::{Quantiles, figure, median};
use crate::http::Caller;
use crate::load::{Dues, lateness};
use crate::program::{Program, processor_time_of};
use crate::sink::{Manner, Sink, body};

const OPERATOR: &str = "the-operator-of-the-benchmark-of-namespaces";
/// Sets a second of the namespace that is measured.
const CALM_RATE: f64 = 200.0;
const CALM_CONNECTIONS: usize = 4;
/// The quota of the namespace that is flooded: requests a second, their burst, and in another run timers.
const QUOTA: u32 = 200;
/// Requests a second of the flood.
const FLOOD_RATE: f64 = 2_000.0;
const FLOOD_CONNECTIONS: usize = 16;
/// How long the flood lasts before the first set that is measured, so that its burst is used up.
const LEAD: Duration = Duration::from_secs(2);
/// Time from a set to its due time.
const AHEAD: Duration = Duration::from_secs(2);
/// Time from a set of the flood at its quota of timers to its due time, in seconds: its timers stay.
const FAR: u64 = 86_400;
/// How long no delivery may come before those that miss are given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// The goal: so much later at the most, as a part of the time alone, or in milliseconds.
const GOAL_PART: f64 = 0.2;
const GOAL: f64 = 5.0;

/// What is beside the namespace that is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// The flood asks another service on this machine.
    Elsewhere,
    /// The flood is beyond its quota of requests a second.
    Rate,
    /// The flood is beyond its quota of timers.
    Timers,
}

impl Beside {
    const ALL: [Self; 4] = [Self::Nothing, Self::Elsewhere, Self::Rate, Self::Timers];

    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Elsewhere => "the flood at another service",
            Self::Rate => "a flood beyond its rate",
            Self::Timers => "a flood beyond its timers",
        }
    }

    /// The status of a request beyond the quota.
    const fn refusal(self) -> u16 {
        match self {
            Self::Timers => 507,
            _ => 429,
        }
    }

    fn quotas(self) -> Value {
        match self {
            Self::Timers => json!({"quotas": {"timers": QUOTA}}),
            _ => json!({"quotas": {"rate": {"per_second": QUOTA, "burst": QUOTA}}}),
        }
    }
}

pub(crate) async fn measure(bench: &Bench) -> anyhow::Result<String> {
    let mut text = String::from(
        "| round | beside it | set p50, p99 ms | late p50, p99 ms | not arrived | flood: offered, accepted, refused | \
         connections again | processors: service, flood | set p99, difference ms | late p99, difference ms |\n\
         |---|---|---|---|---|---|---|---|---|---|",
    );
    let mut differences = vec![[Vec::new(), Vec::new()]; Beside::ALL.len()];
    let mut ratios = differences.clone();
    let mut met = [0; Beside::ALL.len()];
    for round in 0..bench.arguments.pairs {
        println!("namespaces: round {}", round + 1);
        let mut runs: [Option<Run>; Beside::ALL.len()] = [const { None }; Beside::ALL.len()];
        // The order changes, so that no kind of run has the quieter part of each round.
        for step in 0..Beside::ALL.len() {
            let at = match round % 2 {
                0 => (round / 2 + step) % Beside::ALL.len(),
                _ => (Beside::ALL.len() - 1 - step + round / 2) % Beside::ALL.len(),
            };
            let run = run(bench, Beside::ALL[at]).await?;
            println!("  {}:{}", Beside::ALL[at].name(), run.cells());
            runs[at] = Some(run);
        }
        let [Some(alone), ..] = &runs else { continue };
        let alone = [alone.set.p99, alone.late.p99];
        for (at, run) in runs.iter().flatten().enumerate() {
            let name = Beside::ALL[at].name();
            text.push_str(&format!("\n| {} | {name} |{}", round + 1, run.cells()));
            if at == 0 {
                text.push_str("  |  |");
                continue;
            }
            let mut is_met = true;
            for (which, seen) in [run.set.p99, run.late.p99].into_iter().enumerate() {
                let difference = seen - alone[which];
                is_met &= difference <= GOAL.max(alone[which] * GOAL_PART);
                differences[at][which].push(difference);
                ratios[at][which].push(seen / alone[which]);
                text.push_str(&format!(" {} |", figure(difference)));
            }
            met[at] += usize::from(is_met);
        }
    }
    text.push_str(
        "\n\n| beside it | set p99, median of the differences ms | of the ratios | late p99, median of the differences ms | \
         of the ratios | rounds within the goal |\n|---|---|---|---|---|---|",
    );
    for (at, beside) in Beside::ALL.into_iter().enumerate().skip(1) {
        text.push_str(&format!("\n| {} |", beside.name()));
        for which in 0..2 {
            for values in [&differences[at][which], &ratios[at][which]] {
                let middle = median(values).map(figure).unwrap_or_default();
                text.push_str(&format!(" {middle} |"));
            }
        }
        let goal = if beside == Beside::Elsewhere {
            "no goal"
        } else if met[at] == bench.arguments.pairs {
            "met"
        } else {
            "**MISSED**"
        };
        let (met, rounds) = (met[at], bench.arguments.pairs);
        text.push_str(&format!(" {met} of {rounds}: {goal} |"));
    }
    Ok(text)
}

/// What one run came to.
struct Run {
    set: Quantiles,
    late: Quantiles,
    missing: usize,
    flood: Flooded,
    /// Processor time of the service that is measured, of that of the flood, by the time that passed.
    processors: [f64; 2],
}

impl Run {
    fn cells(&self) -> String {
        let [set, set_99, late, late_99] =
            [self.set.p50, self.set.p99, self.late.p50, self.late.p99].map(figure);
        let Flooded {
            offered,
            accepted,
            refused,
            again,
            ..
        } = self.flood;
        let [service, flood] = self.processors.map(figure);
        format!(
            " {set}, {set_99} | {late}, {late_99} | {} | {offered}, {accepted}, {refused} | {again} | {service}, {flood} |",
            self.missing
        )
    }
}

/// A service with the two namespaces, and their tokens.
struct Tenants {
    program: Program,
    calm: String,
    flood: String,
}

impl Tenants {
    async fn start(bench: &Bench, quotas: &Value) -> anyhow::Result<Self> {
        let program = Program::start_with(&bench.program, &bench.directory, Some(OPERATOR))?;
        let mut operator = Caller::connect_with(program.port, OPERATOR).await?;
        let mut tokens = Vec::new();
        for (namespace, quotas) in [("calm", &json!({})), ("flood", quotas)] {
            let path = format!("/v1/namespaces/{namespace}");
            operator.send("PUT", &path, &quotas.to_string()).await?;
            let wanted = json!({"name": namespace, "scopes": ["write"], "namespace": namespace});
            let made = operator
                .ask("POST", "/v1/tokens", &wanted.to_string())
                .await?;
            let made: Value = serde_json::from_slice(made)?;
            tokens.push(made["token"].as_str().context("no token")?.to_owned());
        }
        let [calm, flood] = <[String; 2]>::try_from(tokens).map_err(|_| anyhow!("no tokens"))?;
        Ok(Self {
            program,
            calm,
            flood,
        })
    }
}

/// One run on a fresh service.
async fn run(bench: &Bench, beside: Beside) -> anyhow::Result<Run> {
    let clock = SystemClock::new();
    let sinks = [Sink::open(&[Manner::Good])?, Sink::open(&[Manner::Good])?];
    let service = Tenants::start(bench, &beside.quotas()).await?;
    let elsewhere = match beside {
        Beside::Elsewhere => Some(Tenants::start(bench, &beside.quotas()).await?),
        _ => None,
    };
    let pid = service.program.pid().to_string();
    let (began, used) = (clock.now(), processor_time_of(&pid)?);
    let seconds = Duration::from_secs_f64(bench.arguments.namespace_seconds);
    let flood = (beside != Beside::Nothing).then(|| {
        let flooded = elsewhere.as_ref().unwrap_or(&service);
        let flood = Flood {
            port: flooded.program.port,
            token: flooded.flood.clone(),
            target: sinks[1].ports()[0],
            beside,
            lasts: LEAD + seconds + AHEAD,
        };
        std::thread::spawn(move || flood.run())
    });
    tokio::time::sleep(LEAD).await;
    let (micros, dues) = set_calmly(&service, seconds, sinks[0].ports()[0]).await?;
    sinks[0]
        .wait_for(dues.dues.len(), dues.last, PATIENCE)
        .await;
    let late = lateness(&sinks[0], &dues, |_| true);
    let passed = clock.now().saturating_since(began).as_secs_f64();
    let used = processor_time_of(&pid)? - used;
    let flood = match flood {
        Some(thread) => {
            // It ends with the last due time.
            let joined = tokio::task::spawn_blocking(move || thread.join()).await?;
            joined.map_err(|_| anyhow!("the flood panicked"))??
        }
        None => Flooded::default(),
    };
    ensure!(
        flood.others == 0,
        "{} answers of the flood have another status: {}",
        flood.others,
        flood.said
    );
    Ok(Run {
        set: Quantiles::of(micros),
        late: Quantiles::of(late.micros),
        missing: late.missing,
        processors: [used / passed, flood.used / passed],
        flood,
    })
}

/// When the request of a number is meant to begin.
fn intended(began: Instant, number: usize, per_second: f64) -> Instant {
    #[expect(clippy::cast_precision_loss, reason = "some ten thousands")]
    let after = number as f64 / per_second;
    began + Duration::from_secs_f64(after)
}

async fn wait_until(clock: SystemClock, until: Instant) {
    tokio::time::sleep(until.saturating_since(clock.now())).await;
}

fn count(per_second: f64, lasts: Duration) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "some ten thousands"
    )]
    let count = (per_second * lasts.as_secs_f64()) as usize;
    count.max(1)
}

/// Sets timers at a steady rate, however long the answers take. How long each set took from its intended begin, in
/// microseconds, and when the timers are due.
async fn set_calmly(
    service: &Tenants,
    lasts: Duration,
    target: u16,
) -> anyhow::Result<(Vec<u64>, Dues)> {
    let clock = SystemClock::new();
    let number_of_sets = count(CALM_RATE, lasts);
    let mut callers = Vec::new();
    for _ in 0..CALM_CONNECTIONS {
        callers.push(Caller::connect_with(service.program.port, &service.calm).await?);
    }
    let (began, first) = (clock.now(), clock.timestamp() + AHEAD);
    let due = move |number| first + intended(began, number, CALM_RATE).saturating_since(began);
    let mut setters = JoinSet::new();
    for (offset, mut caller) in callers.into_iter().enumerate() {
        setters.spawn(async move {
            let mut micros = Vec::new();
            for number in (offset..number_of_sets).step_by(CALM_CONNECTIONS) {
                let begin = intended(began, number, CALM_RATE);
                wait_until(clock, begin).await;
                let path = format!("/v1/queues/calm%2Fbench/timers/{number}");
                let timer = format!(
                    "{{\"at\":\"{}\",\"target\":{{\"url\":\"http://127.0.0.1:{target}/\"}},\"body\":{}}}",
                    due(number),
                    body(number)
                );
                caller.send("PUT", &path, &timer).await?;
                let took = clock.now().saturating_since(begin).as_micros();
                micros.push(u64::try_from(took)?);
            }
            anyhow::Ok(micros)
        });
    }
    let mut micros = Vec::new();
    while let Some(some) = setters.join_next().await {
        micros.extend(some??);
    }
    let dues: Vec<_> = (0..number_of_sets).map(due).collect();
    let last = dues.last().copied().unwrap_or(first);
    Ok((micros, Dues { dues, last }))
}

/// Sets of another namespace, at a steady rate that is ten times what its quota admits.
struct Flood {
    port: u16,
    token: String,
    target: u16,
    beside: Beside,
    lasts: Duration,
}

/// What became of a flood.
#[derive(Default)]
struct Flooded {
    offered: usize,
    accepted: usize,
    refused: usize,
    /// Answers with any other status, and the first of them.
    others: usize,
    said: String,
    /// How often a connection was opened again.
    again: usize,
    /// Seconds of processor time that the flood itself took.
    used: f64,
}

impl Flood {
    /// Runs on a thread of its own.
    fn run(self) -> anyhow::Result<Flooded> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut flooded = runtime.block_on(async {
            let began = SystemClock::new().now();
            let connections = (0..FLOOD_CONNECTIONS).map(|offset| self.ask(began, offset));
            // One after the other would not be a flood: each is a task of this thread.
            let mut tasks = JoinSet::new();
            for connection in connections {
                tasks.spawn(connection);
            }
            let mut sum = Flooded::default();
            while let Some(some) = tasks.join_next().await {
                sum.add(some??);
            }
            anyhow::Ok(sum)
        })?;
        flooded.used = processor_time_of("thread-self")?;
        Ok(flooded)
    }

    /// What one of the connections asks for.
    fn ask(
        &self,
        began: Instant,
        offset: usize,
    ) -> impl Future<Output = anyhow::Result<Flooded>> + Send + 'static {
        let (port, token, target) = (self.port, self.token.clone(), self.target);
        let (refusal, count) = (self.beside.refusal(), count(FLOOD_RATE, self.lasts));
        let ahead = match self.beside {
            Beside::Timers => FAR,
            _ => AHEAD.as_secs(),
        };
        async move {
            let clock = SystemClock::new();
            let mut caller = Caller::connect_with(port, &token).await?;
            let mut seen = Flooded::default();
            for number in (offset..count).step_by(FLOOD_CONNECTIONS) {
                wait_until(clock, intended(began, number, FLOOD_RATE)).await;
                let path = format!("/v1/queues/flood%2Fbench/timers/{number}");
                let timer = format!(
                    "{{\"in\":\"{ahead}s\",\"target\":{{\"url\":\"http://127.0.0.1:{target}/\"}},\"body\":{}}}",
                    body(number)
                );
                seen.offered += 1;
                match caller.exchange("PUT", &path, &timer).await {
                    Ok((200..300, _)) => seen.accepted += 1,
                    Ok((status, _)) if status == refusal => seen.refused += 1,
                    Ok((_, answer)) => {
                        seen.others += 1;
                        seen.said = String::from_utf8_lossy(answer).into_owned();
                    }
                    Err(_) => {
                        seen.again += 1;
                        caller = Caller::connect_with(port, &token).await?;
                    }
                }
            }
            Ok(seen)
        }
    }
}

impl Flooded {
    fn add(&mut self, other: Self) {
        self.offered += other.offered;
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.others += other.others;
        self.again += other.again;
        if self.said.is_empty() {
            self.said = other.said;
        }
    }
}
