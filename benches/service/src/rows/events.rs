//! What streams of events cost the deliveries, when some of their clients never read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::order;
use crate::Bench;
use crate::figures::{Quantiles, figure, median, verdict};
use crate::http::{self, find};
use crate::load::{Spread, lateness, set_ahead};
use crate::program::Program;
use crate::service::Service;
use crate::sink::{Manner, Sink};

const TARGETS: usize = 10;
const REQUEST: &[u8] = b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// How long no delivery may come before those that miss are given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the service has after the last stream has gone, until its memory is read.
const REST: Duration = Duration::from_secs(3);
/// So much less of the processors the clients get than the service: what they cost is not what the service costs.
const NICE: i32 = 10;
/// What a client that never reads lets its system keep, in bytes.
const KEPT: u32 = 4_096;
/// The goal for the difference of the two p99, in milliseconds.
const GOAL: f64 = 5.0;

pub(crate) async fn measure(bench: &Bench) -> anyhow::Result<String> {
    let mut text = String::from(
        "| pair | streams | p50 ms | p99 ms | p99.9 ms | not arrived | memory before, peak, after MiB | \
         events a reader, least and most | MiB read | gaps | cut off | p99, difference ms |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|",
    );
    let (clients, silent) = (bench.arguments.streams, bench.arguments.silent);
    ensure!(silent < clients, "somebody has to read");
    let mut differences = Vec::new();
    for pair in 1..=bench.arguments.pairs {
        println!("events: pair {pair}");
        let mut p99 = [0.0; 2];
        let mut lines = [String::new(), String::new()];
        for has_streams in order(pair) {
            let run = run(bench, has_streams.then_some((clients, silent))).await?;
            let [before, peak, after] = run.memory.map(figure);
            let quantiles = Quantiles::of(run.micros);
            p99[usize::from(has_streams)] = quantiles.p99;
            let [p50, p99, p999] = [quantiles.p50, quantiles.p99, quantiles.p999].map(figure);
            let streams = if has_streams {
                format!("{clients}, {silent} never read")
            } else {
                "none".to_owned()
            };
            let [least, most] = run.events;
            let line = format!(
                "\n| {pair} | {streams} | {p50} | {p99} | {p999} | {} | {before}, {peak}, {after} | {least}, {most} | {} | {} | {} |",
                run.missing,
                run.bytes >> 20,
                run.gaps,
                run.cut_off
            );
            println!("  {}", line.trim_start());
            lines[usize::from(has_streams)] = line;
        }
        let difference = p99[1] - p99[0];
        differences.push(difference);
        let [without, with] = lines;
        text.push_str(&format!("{without}  |{with} {} |", figure(difference)));
    }
    let what = "Median of the differences of p99";
    text.push_str(&format!(
        "\n\n{}",
        verdict(what, GOAL, median(&differences))
    ));
    Ok(text)
}

/// What one run came to.
struct Run {
    micros: Vec<u64>,
    missing: usize,
    /// Before the streams, at its peak, and after them, in MiB.
    memory: [f64; 3],
    /// The number of the last event that a reader had: the least and the most of all readers.
    events: [u64; 2],
    bytes: u64,
    gaps: u64,
    cut_off: u64,
}

/// One run on a fresh service, with so many clients, of which so many never read.
async fn run(bench: &Bench, streams: Option<(usize, usize)>) -> anyhow::Result<Run> {
    let sink = Sink::open(&[Manner::Good; TARGETS])?;
    let program = Program::start(&bench.program, &bench.directory)?;
    let (port, pid) = (program.port, program.pid());
    let service = Service::Ours(program);
    let Service::Ours(program) = &service else {
        return Err(anyhow!("another service"));
    };
    let spread = Spread::over(bench.arguments.event_rate, bench.arguments.event_seconds);
    let dues = set_ahead(&service, spread, sink.ports()).await?;
    let before = program.memory("VmRSS")?;
    let clients = match streams {
        Some((clients, silent)) => Some(Clients::open(port, clients, silent).await?),
        None => None,
    };
    let peak = async {
        let mut peak = before;
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            // Its end ends this loop as well.
            peak = peak.max(crate::program::memory_of(pid, "VmRSS").unwrap_or(peak));
            if sink.arrivals().len() >= spread.count {
                return peak;
            }
        }
    };
    let arrived = sink.wait_for(spread.count, dues.last, PATIENCE);
    let (peak, ()) = tokio::select! {
        both = async { tokio::join!(peak, arrived) } => both,
        () = tokio::time::sleep(2 * PATIENCE + Duration::from_secs_f64(bench.arguments.event_seconds)) => (before, ()),
    };
    let late = lateness(&sink, &dues, |_| true);
    // Readers may be behind.
    tokio::time::sleep(REST).await;
    let metrics = metrics(port).await?;
    let (mut events, mut bytes) = ([0, 0], 0);
    if let Some(clients) = clients {
        (events, bytes) = clients.close()?;
    }
    tokio::time::sleep(REST).await;
    let after = program.memory("VmRSS")?;
    Ok(Run {
        micros: late.micros,
        missing: late.missing,
        memory: [before, peak.max(after), after],
        events,
        bytes,
        gaps: counted(&metrics, "countwheel_event_gaps_total")?,
        cut_off: counted(&metrics, "countwheel_event_streams_unread_total")?,
    })
}

async fn metrics(port: u16) -> anyhow::Result<String> {
    let mut stream = http::connect(port).await?;
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

fn counted(metrics: &str, name: &str) -> anyhow::Result<u64> {
    let mut lines = metrics.lines();
    let line = lines.find_map(|line| line.strip_prefix(name));
    Ok(line.context("no such metric")?.trim().parse()?)
}

/// Clients of streams, on a thread of their own.
struct Clients {
    thread: JoinHandle<anyhow::Result<()>>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    stops: AtomicBool,
    open: AtomicUsize,
    /// The number of the last event of each reader.
    last: Vec<AtomicU64>,
    bytes: AtomicU64,
}

impl Clients {
    /// Opens all of them.
    async fn open(port: u16, clients: usize, silent: usize) -> anyhow::Result<Self> {
        let readers = clients - silent;
        let seen = Arc::new(Seen {
            last: (0..readers).map(|_| AtomicU64::new(0)).collect(),
            ..Seen::default()
        });
        let for_thread = Arc::clone(&seen);
        let thread = std::thread::spawn(move || {
            // On Linux that is of this thread alone.
            rustix::process::nice(NICE)?;
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(listen(port, readers, silent, for_thread))
        });
        let clients = Self { thread, seen };
        while clients.seen.open.load(Ordering::Acquire) < readers + silent {
            ensure!(!clients.thread.is_finished(), "a stream does not open");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(clients)
    }

    /// Closes them. The numbers of the last events of readers, the least and the most, and how many bytes they had.
    fn close(self) -> anyhow::Result<([u64; 2], u64)> {
        self.seen.stops.store(true, Ordering::Release);
        self.thread
            .join()
            .map_err(|_| anyhow!("the clients panicked"))??;
        let last = self.seen.last.iter().map(|it| it.load(Ordering::Acquire));
        let (least, most) = (last.clone().min(), last.max());
        let bytes = self.seen.bytes.load(Ordering::Acquire);
        Ok(([least.unwrap_or(0), most.unwrap_or(0)], bytes))
    }
}

async fn listen(port: u16, readers: usize, silent: usize, seen: Arc<Seen>) -> anyhow::Result<()> {
    let mut reading = JoinSet::new();
    for reader in 0..readers {
        let mut stream = http::connect(port).await?;
        stream.write_all(REQUEST).await?;
        reading.spawn(read(stream, reader, Arc::clone(&seen)));
    }
    let mut lazy = Vec::new();
    for _ in 0..silent {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(KEPT)?;
        let mut stream = socket.connect(([127, 0, 0, 1], port).into()).await?;
        stream.write_all(REQUEST).await?;
        lazy.push(stream);
        seen.open.fetch_add(1, Ordering::AcqRel);
    }
    while !seen.stops.load(Ordering::Acquire) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if let Some(ended) = reading.try_join_next() {
            ended??;
            return Err(anyhow!("a stream that is read has ended"));
        }
    }
    Ok(())
}

/// Reads a stream to its end.
async fn read(mut stream: TcpStream, reader: usize, seen: Arc<Seen>) -> anyhow::Result<()> {
    const NUMBER: &[u8] = b"\"number\":";
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut is_open = false;
    loop {
        let read = stream.read_buf(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        if !is_open {
            ensure!(buffer.starts_with(b"HTTP/1.1 200"), "a stream is refused");
            is_open = true;
            seen.open.fetch_add(1, Ordering::AcqRel);
        }
        seen.bytes.fetch_add(read as u64, Ordering::AcqRel);
        // The number is the last field of an event, and the largest comes last.
        let tail = buffer.len().saturating_sub(64);
        if let Some(at) = find(&buffer[tail..], NUMBER) {
            let digits = buffer[tail + at + NUMBER.len()..].iter();
            let digits = digits.take_while(|it| it.is_ascii_digit());
            let number = digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
            seen.last[reader].fetch_max(number, Ordering::AcqRel);
        }
        buffer.drain(..tail);
    }
}
