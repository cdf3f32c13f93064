//! `countwheel batch`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::mpsc;

use super::connection::Service;
use super::{Exit, Failure, Terminal};
use crate::client::Client;
use crate::client::batch::BatchEnd;

/// So much is read at a time.
const PIECE: usize = 64 << 10;
/// How many of these are read ahead.
const AHEAD: usize = 4;
/// A blank line follows a line so much later, if no other does: the server ends a batch of which nothing comes.
const ALIVE: Duration = Duration::from_secs(10);

/// `countwheel batch`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "A line is an operation: {\"op\": \"set\", \"queue\": \"q\", \"key\": \"k\", \"in\": \"1h\", \
                  \"target\": {\"url\": \"https://example.com/\"}}.\n\
                  The operations are set, move, remove, fire, revive, ack and nack.\n\
                  The status is 1 if one of them was not done."
)]
pub struct Batch {
    /// The operations, one JSON object a line; - is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Do all of them or nothing: at most 10,000
    #[arg(long)]
    atomic: bool,
    #[command(flatten)]
    service: Service,
}

impl Batch {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.service.client()?;
        let file = |source| Failure::File {
            path: self.file.display().to_string(),
            source,
        };
        let (read, mut pieces) = mpsc::channel(AHEAD);
        let source = open(&self.file).map_err(file)?;
        std::thread::spawn(move || read_all(source, &read));
        // The server waits for the first operation no longer than for any body.
        let first = pieces.recv().await;
        let (send, lines) = mpsc::channel(1);
        let sending = tokio::spawn(pass_on(first, pieces, send));
        let done = self.results(&client, lines, terminal).await;
        // Why the batch broke off, if that was on this side.
        if sending.is_finished()
            && let Ok(Err(error)) = sending.await
        {
            return Err(file(error));
        }
        done
    }

    async fn results(
        &self,
        client: &Client,
        lines: mpsc::Receiver<io::Result<Bytes>>,
        terminal: &mut Terminal<'_>,
    ) -> Result<Exit, Failure> {
        if self.atomic {
            let results = client.atomic_batch(lines).await?;
            writeln!(terminal.out, "{results}")?;
            return Ok(Exit::Done);
        }
        let mut answer = client.batch(lines).await?;
        let mut answered = 0;
        loop {
            let next = answer.next().await;
            let next = next.map_err(|source| Failure::Batch { answered, source })?;
            let Some(line) = next else {
                let reason = "the answer has no end".to_owned();
                return Err(Failure::Cut { answered, reason });
            };
            writeln!(terminal.out, "{line}")?;
            if !line.starts_with("{\"end\"") {
                answered += 1;
                continue;
            }
            let Ok(end) = serde_json::from_str::<BatchEnd>(&line) else {
                let reason = "the end of the answer cannot be read".to_owned();
                return Err(Failure::Cut { answered, reason });
            };
            if !end.end {
                let (answered, reason) = (end.operations, end.reason);
                return Err(Failure::Cut { answered, reason });
            }
            return Ok(match end.failed {
                0 => Exit::Done,
                _ => Exit::Refused,
            });
        }
    }
}

fn open(path: &Path) -> io::Result<Box<dyn Read + Send>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    Ok(Box::new(File::open(path)?))
}

/// Reads to the end, or as long as somebody takes it.
fn read_all(mut source: Box<dyn Read + Send>, to: &mpsc::Sender<io::Result<Bytes>>) {
    let mut piece = vec![0; PIECE];
    loop {
        let read = match source.read(&mut piece) {
            Ok(0) => return,
            Ok(length) => Ok(Bytes::copy_from_slice(&piece[..length])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let is_last = read.is_err();
        if to.blocking_send(read).is_err() || is_last {
            return;
        }
    }
}

/// Sends what is read, and signs of life meanwhile. Where the reading fails, what is sent breaks off: its beginning
/// is not taken for all of it.
async fn pass_on(
    first: Option<io::Result<Bytes>>,
    mut pieces: mpsc::Receiver<io::Result<Bytes>>,
    to: mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let mut next = first;
    let mut is_between = true;
    while let Some(read) = next {
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => {
                let broken = io::Error::from(error.kind());
                to.send(Err(broken)).await.unwrap_or_default();
                return Err(error);
            }
        };
        is_between = bytes.last().map_or(is_between, |&last| last == b'\n');
        if to.send(Ok(bytes)).await.is_err() {
            return Ok(());
        }
        next = loop {
            match tokio::time::timeout(ALIVE, pieces.recv()).await {
                Ok(next) => break next,
                Err(_) if is_between => {
                    let blank = Ok(Bytes::from_static(b"\n"));
                    if to.send(blank).await.is_err() {
                        return Ok(());
                    }
                }
                Err(_) => {}
            }
        };
    }
    Ok(())
}
