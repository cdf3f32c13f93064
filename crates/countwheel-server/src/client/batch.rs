//! Batches of operations: lines there, and lines back.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;

use super::{Answer, Client, ClientError};

/// The last line of the answer to a batch.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(crate) struct BatchEnd {
    /// Whether all of the batch was read.
    pub(crate) end: bool,
    /// Why not.
    #[serde(default)]
    pub(crate) reason: String,
    /// How many operations were answered.
    pub(crate) operations: u64,
    /// How many of them were not done.
    pub(crate) failed: u64,
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
pub(crate) struct BatchLines<'a> {
    client: &'a Client,
    body: Incoming,
    buffer: Vec<u8>,
    /// So much of it has no end of a line.
    scanned: usize,
}

impl BatchLines<'_> {
    /// The next line; `None` at the end of the answer.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, ClientError> {
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
            .uri(format!("{}{path}", self.server))
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
    pub(crate) async fn batch(
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
    pub(crate) async fn atomic_batch(
        &self,
        lines: mpsc::Receiver<io::Result<Bytes>>,
    ) -> Result<String, ClientError> {
        let request = self.batch_request("/v1/batch?atomic=true", lines)?;
        let answer: Answer<IgnoredAny> = self.exchange(request).await?;
        Ok(answer.json())
    }
}
