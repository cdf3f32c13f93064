//! Sets in one batch, beside single sets at 64 connections.

use std::fmt::Write as _;

use anyhow::ensure;
use countwheel_time::{Clock as _, SystemClock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::sets;
use crate::Bench;
use crate::figures::Sheet;
use crate::http;
use crate::machine;
use crate::program::Program;
use crate::service::Candidate;

/// Connections of the single sets.
const CONNECTIONS: usize = 64;
/// So many lines are sent at a time.
const LINES: usize = 256;
/// The last bytes of an answer in which its last line is looked for.
const TAIL: usize = 512;

pub(crate) async fn measure(bench: &mut Bench) -> anyhow::Result<String> {
    let name = Candidate::Ours.name();
    let mut sheet = Sheet::new(vec![name]);
    for round in 0..bench.arguments.rounds {
        println!("batch: round {}", round + 1);
        let (single, _) = sets::run(bench, Candidate::Ours, CONNECTIONS).await?;
        sheet.add(
            &format!("single sets at {CONNECTIONS} connections, sets/s"),
            name,
            round,
            single,
        );
        let disk = machine::sync_rate(&bench.directory)?;
        let count = bench.arguments.operations;
        let program = Program::start(&bench.program, &bench.directory)?;
        let before = program.memory("VmRSS")?;
        let body = "x".repeat(98);
        let seconds = run(program.port, count, move |lines, number| {
            write!(
                lines,
                r#"{{"op":"set","queue":"q","key":"{number}","in":"1h","target":{{"url":"http://127.0.0.1:9999/"}},"body":"{body}"}}"#
            )
        })
        .await?;
        let (peak, after) = (program.memory("VmHWM")?, program.memory("VmRSS")?);
        #[expect(clippy::cast_precision_loss, reason = "some millions")]
        let rate = count as f64 / seconds;
        let mut add =
            |what: &str, value| sheet.add(&format!("one batch, {what}"), name, round, value);
        add("sets/s", rate);
        add("memory before, MiB", before);
        add("memory at its peak, MiB", peak);
        add("memory after, MiB", after);
        add("syncs/s before", disk);
    }
    Ok(sheet.table())
}

/// How many seconds a batch of so many sets takes, from its first byte to the end of its answer. `line` writes the set of a
/// number.
pub(crate) async fn run(
    port: u16,
    count: usize,
    line: impl Fn(&mut String, usize) -> std::fmt::Result + Send + 'static,
) -> anyhow::Result<f64> {
    let clock = SystemClock::new();
    let (reading, writing) = http::connect(port).await?.into_split();
    let began = clock.now();
    let sending = tokio::spawn(send(writing, count, line));
    let tail = read(reading).await?;
    let took = clock.now().saturating_since(began);
    sending.await??;
    let wanted = format!(r#"{{"end":true,"operations":{count},"succeeded":{count},"failed":0}}"#);
    ensure!(tail.contains(&wanted), "the answer ends with {tail}");
    Ok(took.as_secs_f64())
}

/// Sends so many sets.
async fn send(
    mut writing: OwnedWriteHalf,
    count: usize,
    line: impl Fn(&mut String, usize) -> std::fmt::Result,
) -> anyhow::Result<()> {
    let head = "POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n\
                transfer-encoding: chunked\r\n\r\n";
    writing.write_all(head.as_bytes()).await?;
    let (mut lines, mut chunk) = (String::new(), String::new());
    for from in (0..count).step_by(LINES) {
        lines.clear();
        chunk.clear();
        for number in from..count.min(from + LINES) {
            line(&mut lines, number)?;
            lines.push('\n');
        }
        write!(chunk, "{:x}\r\n{lines}\r\n", lines.len())?;
        writing.write_all(chunk.as_bytes()).await?;
    }
    writing.write_all(b"0\r\n\r\n").await?;
    // Both halves close the connection together.
    writing.forget();
    Ok(())
}

/// Reads an answer to the end of its chunks, and returns the last of it.
async fn read(mut reading: OwnedReadHalf) -> anyhow::Result<String> {
    let mut buffer = Vec::with_capacity(1 << 18);
    loop {
        let read = reading.read_buf(&mut buffer).await?;
        let tail = buffer.len().saturating_sub(TAIL);
        let tail = String::from_utf8_lossy(&buffer[tail..]).into_owned();
        if tail.ends_with("\r\n0\r\n\r\n") {
            return Ok(tail);
        }
        ensure!(read > 0, "the answer breaks off with {tail}");
        buffer.drain(..buffer.len().saturating_sub(TAIL));
    }
}
