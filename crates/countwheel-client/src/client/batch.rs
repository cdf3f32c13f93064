//! Batches of operations: lines there, and lines back.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::sync::{mpsc, oneshot};

use super::{Answer, Client, ClientError, Problem};

/// A longer line goes as a request of its own.
const LINE_MAX_BYTES: usize = 1 << 20;
/// How many operations one batch of a pipe has: fewer than one may have.
const OPERATIONS_MAX: u64 = 900_000;
/// A pipe without anything under way ends its batch after so long: sooner than the server does.
const IDLE: Duration = Duration::from_secs(5);
/// How many lines wait for a connection.
const AHEAD: usize = 64;

/// The last line of the answer to a batch.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct BatchEnd {
    /// Whether all of the batch was read.
    pub end: bool,
    /// Why not.
    #[serde(default)]
    pub reason: String,
    /// How many operations were answered.
    pub operations: u64,
    /// How many of them were not done.
    pub failed: u64,
}

/// A body of lines, as they come.
struct Coming(mpsc::Receiver<io::Result<Bytes>>);

impl Body for Coming {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let polled = self.0.poll_recv(context);
        polled.map(|bytes| bytes.map(|bytes| bytes.map(Frame::data)))
    }
}

/// The lines of an answer, as they come.
pub struct BatchLines<'a> {
    client: &'a Client,
    body: Incoming,
    buffer: Vec<u8>,
    /// So much of it has no end of a line.
    scanned: usize,
}

impl BatchLines<'_> {
    /// The next line; `None` at the end of the answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<String>, ClientError> {
        loop {
            let end = self.buffer[self.scanned..]
                .iter()
                .position(|&byte| byte == b'\n');
            if let Some(end) = end {
                let line: Vec<u8> = self.buffer.drain(..=self.scanned + end).collect();
                self.scanned = 0;
                let line = String::from_utf8_lossy(&line);
                return Ok(Some(line.trim_end().to_owned()));
            }
            self.scanned = self.buffer.len();
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.client.broken(error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

impl Client {
    fn batch_request(
        &self,
        path: &str,
        lines: mpsc::Receiver<io::Result<Bytes>>,
    ) -> Result<Request<super::Sent>, ClientError> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.url(path))
            .header(CONTENT_TYPE, "application/x-ndjson");
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let address = |_| ClientError::Address {
            text: self.server.clone(),
        };
        request.body(Coming(lines).boxed()).map_err(address)
    }

    /// Sends operations, one a line, and reads their results as they come. The answer begins once the first
    /// bytes have come.
    ///
    /// ```no_run
    /// use countwheel_client::{Client, ClientError};
    /// use countwheel_client::batch::BatchEnd;
    ///
    /// # async fn batch(client: &Client) -> Result<(), ClientError> {
    /// let (send, lines) = tokio::sync::mpsc::channel(64);
    /// tokio::spawn(async move {
    ///     for key in ["a", "b"] {
    ///         let operation = serde_json::json!({"op": "fire", "queue": "orders", "key": key});
    ///         if send.send(Ok(format!("{operation}\n").into())).await.is_err() {
    ///             return;
    ///         }
    ///     }
    /// });
    /// let mut results = client.batch(lines).await?;
    /// while let Some(line) = results.next().await? {
    ///     match serde_json::from_str::<BatchEnd>(&line) {
    ///         Ok(end) => println!("{} done, {} refused", end.operations - end.failed, end.failed),
    ///         Err(_) => println!("{line}"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn batch(
        &self,
        lines: mpsc::Receiver<io::Result<Bytes>>,
    ) -> Result<BatchLines<'_>, ClientError> {
        let request = self.batch_request("/v1/batch", lines)?;
        let answer = self.begin(request).await?;
        Ok(BatchLines {
            client: self,
            body: answer.into_body(),
            buffer: Vec::new(),
            scanned: 0,
        })
    }

    /// Sends operations that are done all together or not at all: their results as JSON.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn atomic_batch(
        &self,
        lines: mpsc::Receiver<io::Result<Bytes>>,
    ) -> Result<String, ClientError> {
        let request = self.batch_request("/v1/batch?atomic=true", lines)?;
        let answer: Answer<IgnoredAny> = self.exchange(request).await?;
        Ok(answer.json())
    }
}

/// Sends single operations of many callers as the lines of batches. Its task ends with it.
#[derive(Clone, Debug)]
pub struct Pipe {
    jobs: mpsc::Sender<Job>,
    timeout: Duration,
    server: String,
    is_off: Arc<AtomicBool>,
}

/// Takes the line of a result, or nothing if the server takes no batches.
type Sender = oneshot::Sender<Result<Option<String>, ClientError>>;

/// An operation, and who waits for its result.
#[derive(Debug)]
struct Job {
    line: String,
    to: Sender,
}

impl Pipe {
    /// A pipe to the client's server. It connects when it is first used.
    pub fn new(client: Client) -> Self {
        let (jobs, coming) = mpsc::channel(AHEAD);
        let is_off = Arc::<AtomicBool>::default();
        let pipe = Self {
            jobs,
            timeout: client.timeout,
            server: client.server.clone(),
            is_off: Arc::clone(&is_off),
        };
        tokio::spawn(drive(client, coming, is_off));
        pipe
    }

    /// Whether an operation can go as this line: it is short enough, and the server takes batches.
    pub fn takes(&self, line: &str) -> bool {
        line.len() < LINE_MAX_BYTES && !self.is_off.load(Ordering::Relaxed)
    }

    /// Asks for an operation, and waits for its result as long as for any answer. `None` if the server takes no
    /// batches: nothing was done.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn ask<T: DeserializeOwned>(&self, line: String) -> Result<Option<T>, ClientError> {
        let (to, result) = oneshot::channel();
        let asked = async {
            let job = Job {
                line: line + "\n",
                to,
            };
            let gone = || self.broken("the pipe has ended");
            self.jobs.send(job).await.map_err(|_| gone())?;
            result.await.unwrap_or_else(|_| Err(gone()))
        };
        let silent = |_| ClientError::Silent {
            server: self.server.clone(),
            timeout: self.timeout,
        };
        let answered = tokio::time::timeout(self.timeout, asked).await;
        let Some(text) = answered.map_err(silent)?? else {
            return Ok(None);
        };
        let mut problem: Problem = serde_json::from_str(&text).unwrap_or_default();
        if problem.status >= 300 {
            // An answer to a single request would say when to ask again.
            problem.retry_after = (problem.status == 429).then_some(Duration::from_secs(1));
            return Err(ClientError::Refused(Box::new(problem)));
        }
        let value = serde_json::from_str(&text).map_err(|source| ClientError::Unintelligible {
            status: problem.status,
            source,
        })?;
        Ok(Some(value))
    }

    fn broken(&self, why: &'static str) -> ClientError {
        ClientError::Broken {
            server: self.server.clone(),
            source: why.into(),
        }
    }
}

/// Makes batches of jobs, one after the other.
async fn drive(client: Client, mut jobs: mpsc::Receiver<Job>, is_off: Arc<AtomicBool>) {
    while let Some(first) = jobs.recv().await {
        if first.to.is_closed() {
            continue;
        }
        let mut open = VecDeque::new();
        let why = carry(&client, first, &mut jobs, &mut open).await;
        // It knows no batches, or cannot hand them on: nothing was done.
        let is_no_batch = matches!(&why, Why::Refused(problem)
            if matches!(problem.status, 404 | 405 | 408 | 413 | 415));
        if is_no_batch {
            is_off.store(true, Ordering::Relaxed);
        }
        for to in open {
            let answer = if is_no_batch {
                Ok(None)
            } else {
                Err(why.error(&client))
            };
            // The caller may have given up.
            to.send(answer).unwrap_or_default();
        }
    }
}

/// Why operations of a batch have no result.
enum Why {
    /// There was no connection.
    Unreachable(String),
    /// The batch was refused.
    Refused(Box<Problem>),
    /// The batch ended before them.
    NotBegun(String),
    /// Nobody knows.
    Broken(String),
}

impl Why {
    fn of(error: ClientError) -> Self {
        match error {
            ClientError::Unreachable { .. } => Self::Unreachable(error.to_string()),
            ClientError::Refused(problem) => Self::Refused(problem),
            // Whatever answered without a problem is no server of batches.
            ClientError::Foreign { status, .. } => Self::Refused(Box::new(Problem {
                status,
                code: "foreign".to_owned(),
                detail: error.to_string(),
                ..Problem::default()
            })),
            other => Self::Broken(other.to_string()),
        }
    }

    fn error(&self, client: &Client) -> ClientError {
        let server = client.server.clone();
        match self {
            Self::Unreachable(why) => ClientError::Unreachable {
                server,
                source: why.as_str().into(),
            },
            Self::Broken(why) => ClientError::Broken {
                server,
                source: why.as_str().into(),
            },
            // It is asked again, as nothing was done.
            Self::NotBegun(why) => ClientError::Refused(Box::new(Problem {
                status: 429,
                code: "overloaded".to_owned(),
                detail: why.clone(),
                ..Problem::default()
            })),
            Self::Refused(problem) => ClientError::Refused(problem.clone()),
        }
    }
}

/// Carries jobs over one batch until it ends. Those without a result are left in `open`.
async fn carry(
    client: &Client,
    first: Job,
    jobs: &mut mpsc::Receiver<Job>,
    open: &mut VecDeque<Sender>,
) -> Why {
    let (send, lines) = mpsc::channel(AHEAD);
    let mut send = Some(send);
    let mut count = 1;
    open.push_back(first.to);
    if let Some(send) = &send {
        // The channel has room for it.
        send.send(Ok(first.line.into())).await.unwrap_or_default();
    }
    let began = tokio::time::timeout(client.timeout, client.batch(lines)).await;
    let mut answer = match began {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Why::of(error),
        Err(_) => return Why::Broken("no answer in time".to_owned()),
    };
    loop {
        let is_idle = open.is_empty() && send.is_some();
        tokio::select! {
            job = jobs.recv(), if send.is_some() => match (job, &send) {
                // Its caller has given up.
                (Some(job), Some(_)) if job.to.is_closed() => {}
                (Some(job), Some(lines)) => {
                    open.push_back(job.to);
                    count += 1;
                    if lines.send(Ok(job.line.into())).await.is_err() {
                        return Why::Broken("the connection broke".to_owned());
                    }
                    if count == OPERATIONS_MAX {
                        send = None;
                    }
                }
                _ => send = None,
            },
            line = answer.next() => match line {
                Ok(Some(line)) if line.starts_with("{\"end\"") => {
                    let end = serde_json::from_str::<BatchEnd>(&line);
                    let reason = end.map(|end| end.reason).unwrap_or_default();
                    return Why::NotBegun(format!("the batch has ended: {reason}"));
                }
                Ok(Some(line)) => {
                    if let Some(to) = open.pop_front() {
                        // The caller may have given up.
                        to.send(Ok(Some(line))).unwrap_or_default();
                    }
                }
                Ok(None) => return Why::Broken("the answer broke off".to_owned()),
                Err(error) => return Why::of(error),
            },
            () = tokio::time::sleep(IDLE), if is_idle => send = None,
        }
    }
}
