//! Pages of lists, figures and metrics of a store with many queues and timers.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use countwheel_time::{Clock as _, SystemClock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::batch;
use crate::Bench;
use crate::figures::{Quantiles, figure, verdict};
use crate::http::{Caller, connect, find};
use crate::program::Program;

/// The queue `ten` has as many timers as an order without an index looks at.
const TEN: usize = 10_000;
/// The part of the timers that the queue `large` has.
const LARGE: usize = 10;
/// A page, and the figures, come within so many milliseconds.
const PAGE_MS: f64 = 50.0;
/// The metrics come within so many milliseconds.
const METRICS_MS: f64 = 200.0;
/// And have at most so many bytes.
const METRICS_BYTES: usize = 2_000_000;
/// How long the dead may take to die.
const DIE_WITHIN: Duration = Duration::from_secs(600);

/// What is asked for. Each walks through its pages, and begins again at the end.
const ASKED: &[(&str, &str)] = &[
    ("one queue, 100", "/v1/queues/large/timers?limit=100"),
    ("one queue, 1,000", "/v1/queues/large/timers?limit=1000"),
    (
        "one queue, 1,000, next attempts",
        "/v1/queues/large/timers?limit=1000&include=next_attempts",
    ),
    (
        "one queue, 1,000, bodies",
        "/v1/queues/large/timers?limit=1000&bodies=text",
    ),
    (
        "one queue, due range",
        "/v1/queues/large/timers?limit=1000&due_after=2100-01-10T00:00:00Z&due_before=2100-01-20T00:00:00Z",
    ),
    (
        "one queue, key prefix that few have",
        "/v1/queues/large/timers?limit=1000&prefix=77",
    ),
    (
        "one queue, tag of every 100th",
        "/v1/queues/large/timers?limit=100&tag=red",
    ),
    (
        "one queue, tag of every 50,000th",
        "/v1/queues/large/timers?limit=100&tag=rare",
    ),
    (
        "one queue of 10,000, created",
        "/v1/queues/ten/timers?limit=100&order=created",
    ),
    (
        "one queue of 10,000, trouble, 1,000",
        "/v1/queues/ten/timers?limit=1000&order=trouble",
    ),
    (
        "one queue, created: too broad",
        "/v1/queues/large/timers?order=created",
    ),
    (
        "one queue, created, key prefix",
        "/v1/queues/large/timers?order=created&prefix=1",
    ),
    (
        "one queue, created, due range",
        "/v1/queues/large/timers?order=created&due_after=2100-01-02T00:00:00Z",
    ),
    ("all queues, 100", "/v1/timers?limit=100"),
    ("all queues, 1,000", "/v1/timers?limit=1000"),
    (
        "all queues, pending, 100",
        "/v1/timers?limit=100&state=pending",
    ),
    (
        "all queues, pending, 1,000",
        "/v1/timers?limit=1000&state=pending",
    ),
    (
        "all queues, delivering",
        "/v1/timers?limit=100&state=delivering",
    ),
    ("all queues, done", "/v1/timers?limit=100&state=done"),
    ("all queues, dead, 100", "/v1/timers?limit=100&state=dead"),
    (
        "all queues, dead, 1,000",
        "/v1/timers?limit=1000&state=dead",
    ),
    (
        "queues by prefix, dead",
        "/v1/timers?limit=100&state=dead&queue_prefix=q1",
    ),
    (
        "queues by prefix, pending",
        "/v1/timers?limit=1000&state=pending&queue_prefix=q19",
    ),
    (
        "all queues, due range",
        "/v1/timers?limit=1000&state=pending&due_after=2100-01-10T00:00:00Z&due_before=2100-01-20T00:00:00Z",
    ),
    (
        "all queues, key prefix that few have",
        "/v1/timers?limit=1000&state=pending&prefix=77",
    ),
    (
        "all queues, tag of every 100th",
        "/v1/timers?limit=100&state=pending&tag=red",
    ),
    (
        "all queues, tag of every 50,000th",
        "/v1/timers?limit=100&state=pending&tag=rare",
    ),
    ("all queues, created: too broad", "/v1/timers?order=created"),
    ("all queues, trouble: too broad", "/v1/timers?order=trouble"),
    (
        "all queues, trouble, dead",
        "/v1/timers?order=trouble&state=dead&limit=100",
    ),
    (
        "all queues, created, due range",
        "/v1/timers?order=created&state=pending&due_after=2100-01-10T00:00:00Z",
    ),
    (
        "some queues, created",
        "/v1/timers?order=created&state=pending&queue_prefix=q19",
    ),
    ("queues, 100", "/v1/queues?limit=100"),
    ("queues, 1,000", "/v1/queues?limit=1000"),
    ("queues with dead", "/v1/queues?limit=1000&state=dead"),
    ("queues by prefix", "/v1/queues?limit=1000&prefix=q19"),
    ("stats", "/v1/stats"),
    ("stats, due", "/v1/stats/due"),
    ("metrics", "/metrics"),
];

pub(crate) async fn measure(bench: &mut Bench) -> anyhow::Result<String> {
    let program = Program::start(&bench.program, &bench.directory)?;
    let timers = bench.arguments.listed;
    fill(bench, program.port).await?;
    println!("lists: {timers} timers are set");
    let mut text = format!(
        "{timers} timers in {} queues, {} of them dead.\n\n| what | answers | p50, ms | p99, ms | most, ms | most, bytes |\n|---|---|---|---|---|---|",
        bench.arguments.queues, bench.arguments.dead
    );
    let mut missed = Vec::new();
    for (what, path) in ASKED {
        let seen = walk(program.port, path, bench.arguments.requests).await?;
        let Seen {
            statuses,
            micros,
            bytes,
        } = seen;
        let most = micros.iter().max().copied().unwrap_or_default();
        let Quantiles { p50, p99, .. } = Quantiles::of(micros);
        let most = Duration::from_micros(most).as_secs_f64() * 1e3;
        let line = format!(
            "\n| {what} | {} | {} | {} | {} | {bytes} |",
            statuses.join(", "),
            figure(p50),
            figure(p99),
            figure(most)
        );
        println!("{}", line.trim());
        text.push_str(&line);
        let is_metrics = *path == "/metrics";
        let at_most = if is_metrics { METRICS_MS } else { PAGE_MS };
        if p99 > at_most {
            missed.push(verdict(what, at_most, Some(p99)));
        }
        if is_metrics && bytes > METRICS_BYTES {
            missed.push(format!(
                "metrics: wanted at most {METRICS_BYTES} bytes, seen {bytes}: **MISSED**"
            ));
        }
    }
    text.push_str("\n\n");
    text.push_str(&match missed.is_empty() {
        true => format!("Every p99 is at most {PAGE_MS} ms, that of the metrics {METRICS_MS} ms."),
        false => missed.join("\n"),
    });
    Ok(text)
}

/// Sets the timers by a batch, and waits until those that are to die are dead.
async fn fill(bench: &Bench, port: u16) -> anyhow::Result<()> {
    let (timers, queues, dead) = (
        bench.arguments.listed,
        bench.arguments.queues,
        bench.arguments.dead,
    );
    let large = timers / LARGE;
    ensure!(
        large + TEN + dead < timers && queues > 2,
        "there are too few timers for the queues"
    );
    let body = "x".repeat(98);
    batch::run(port, timers, move |line, number| {
        let (queue, is_dead) = if number < large {
            ("large".to_owned(), false)
        } else if number < large + TEN {
            ("ten".to_owned(), false)
        } else {
            let of = number - large - TEN;
            (format!("q{}", of % (queues - 2)), of < dead)
        };
        write!(
            line,
            r#"{{"op":"set","queue":"{queue}","key":"{number}","target":{{"url":"http://127.0.0.1:9/"}},"body":"{body}""#
        )?;
        // Over thirty days, by either clock.
        let second = number.wrapping_mul(7_919) % (30 * 86_400);
        let (day, second) = (second / 86_400 + 1, second % 86_400);
        match (is_dead, number % 4) {
            (true, _) => {
                line.push_str(r#","in":0,"retry":{"fixed":"1s","max_attempts":1}"#);
            }
            (false, 0) => write!(line, r#","in":"{}s""#, 86_400 * (day + 1) + second)?,
            (false, _) => write!(
                line,
                r#","at":"2100-01-{day:02}T{:02}:{:02}:{:02}Z""#,
                second / 3_600,
                second / 60 % 60,
                second % 60
            )?,
        }
        if number.is_multiple_of(50_000) {
            line.push_str(r#","tags":["rare"]"#);
        } else if number.is_multiple_of(100) {
            line.push_str(r#","tags":["red"]"#);
        }
        line.push('}');
        Ok(())
    })
    .await?;
    let clock = SystemClock::new();
    let began = clock.now();
    let mut caller = Caller::connect(port).await?;
    loop {
        let stats: serde_json::Value =
            serde_json::from_slice(caller.ask("GET", "/v1/stats", "").await?)?;
        if stats["timers"]["dead"].as_u64() == u64::try_from(dead).ok() {
            return Ok(());
        }
        let took = clock.now().saturating_since(began);
        ensure!(took < DIE_WITHIN, "timers do not die: {stats}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What was seen of one kind of request.
struct Seen {
    /// Each that came, once.
    statuses: Vec<String>,
    micros: Vec<u64>,
    /// The longest body.
    bytes: usize,
}

/// So many requests: page after page, and from the first again.
async fn walk(port: u16, path: &str, requests: usize) -> anyhow::Result<Seen> {
    let clock = SystemClock::new();
    let mut seen = Seen {
        statuses: Vec::new(),
        micros: Vec::new(),
        bytes: 0,
    };
    let mut after: Option<String> = None;
    for _ in 0..requests {
        let mark = if path.contains('?') { '&' } else { '?' };
        let at = match &after {
            Some(after) => format!("{path}{mark}after={after}"),
            None => path.to_owned(),
        };
        let began = clock.now();
        let answer = get(port, &at).await?;
        let took = clock.now().saturating_since(began);
        seen.micros.push(u64::try_from(took.as_micros())?);
        let head = find(&answer, b"\r\n\r\n").context("an answer has no head")?;
        let text = String::from_utf8_lossy(&answer);
        let status = text.split(' ').nth(1).context("no status")?.to_owned();
        ensure!(
            status == "200" || status == "422",
            "{at}: {}",
            text.chars().take(1_000).collect::<String>()
        );
        if !seen.statuses.contains(&status) {
            seen.statuses.push(status);
        }
        seen.bytes = seen.bytes.max(answer.len() - head - 4);
        let link = text.lines().take_while(|line| !line.is_empty());
        let mut link = link.filter_map(|line| line.rsplit_once("after="));
        after = link
            .find_map(|(_, rest)| rest.split_once(">; rel=\"next\""))
            .map(|(after, _)| after.to_owned());
    }
    Ok(seen)
}

/// An answer to the end of its connection, with its head.
async fn get(port: u16, path: &str) -> anyhow::Result<Vec<u8>> {
    let mut stream = connect(port).await?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}
