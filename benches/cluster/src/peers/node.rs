//! The queues that run on Node.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

use super::Peer;
use crate::Bench;
use crate::load::Timeline;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");
const FILES: [&str; 3] = ["package.json", "package-lock.json", "peer.mjs"];
/// How much longer than it works a program may take to start and to end.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Answer {
    seconds: Vec<f64>,
}

/// Asks the peer to do `action` for a while.
pub(super) fn ask(
    bench: &Bench,
    peer: Peer,
    action: &str,
    url: &str,
    span: Duration,
) -> anyhow::Result<Timeline> {
    let program = installed(&bench.directory)?;
    let mut child = Command::new("node")
        .arg(program)
        .args([peer.name(), action, url, &span.as_secs_f64().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("node does not start")?;
    let mut out = child.stdout.take().context("the pipe was asked for")?;
    let (send, receive) = channel();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        let read = out.read_to_string(&mut text).map(|_| text);
        // Nobody listens any more if it took too long.
        send.send(read).unwrap_or_default();
    });
    let answer = receive.recv_timeout(span + STARTS_WITHIN);
    if answer.is_err() {
        child.kill()?;
    }
    let status = child.wait()?;
    reader.join().unwrap_or_default();
    let Ok(text) = answer else {
        bail!("{} did not end in time", peer.name());
    };
    ensure!(status.success(), "{} failed: {status}", peer.name());
    let answer: Answer = serde_json::from_str(&text?)?;
    let mut counts = answer.seconds;
    // What comes after the last whole second is no second.
    counts.truncate(usize::try_from(span.as_secs())?);
    Ok(Timeline(counts.into()))
}

/// The program with its packages, as the lock has them.
fn installed(directory: &Path) -> anyhow::Result<PathBuf> {
    let place = directory.join("peers");
    let program = place.join("peer.mjs");
    fs::create_dir_all(&place)?;
    let mut is_new = !place.join("node_modules").is_dir();
    for file in FILES {
        let wanted = fs::read(Path::new(SOURCES).join(file))?;
        let there = place.join(file);
        if fs::read(&there).ok().as_ref() != Some(&wanted) {
            fs::write(there, wanted)?;
            is_new = true;
        }
    }
    if is_new {
        println!("installing the packages of the peers on Node");
        let status = Command::new("npm")
            .args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"])
            .current_dir(&place)
            .stdout(Stdio::null())
            .status()
            .context("npm does not start")?;
        ensure!(status.success(), "the packages of the peers cannot be had");
    }
    Ok(program)
}
