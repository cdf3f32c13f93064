//! Frames: a length of four bytes (big-endian), then so many bytes, which are questions or answers one
//! after another. A frame of none of either asks whether the other side is there, or says so.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use countwheel_durable::store::Shard;
use countwheel_durable::{Counted, Request};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::CloseReason;
use crate::planted::planted;
use crate::wire::{
    AskCounts, AskHead, QUEUES_MAX, REQUESTS_MAX, WireAnswer, WireCounted, WireCounts, WireRequest,
};

/// The longest frame, without its length: the longest request of a timer, and what is gathered with it.
pub(crate) const FRAME_MAX: usize = 24 << 20;
/// The longest frame of counts: the longest of all that a node of an earlier version reads.
const COUNTS_MAX: usize = 8 << 20;
/// What begins a frame of questions, and one of answers.
const ASKS: u8 = 1;
const ANSWERS: u8 = 2;
/// A frame by which a receiver asks for no more questions: it answers those that were sent.
pub(crate) const GOODBYE: &[u8] = &[3];
/// What begins a frame that asks for counts, and one that has them.
const ASKS_COUNTS: u8 = 4;
const COUNTS: u8 = 5;
/// What begins a frame with a word, and one with what is answered to one: since version 2.
const WORD: u8 = 6;
const ANSWERS_WORD: u8 = 7;
/// The longest question without its requests, or the longest answer without its responses.
pub(crate) const HEAD_MAX: usize = 64;
/// So much is read at a time: a length that lies costs no more.
const PIECE: u64 = 64 << 10;

/// Why there is no frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame of {bytes} bytes: the longest has {FRAME_MAX}")]
    TooLong { bytes: usize },
    #[error("a frame that is not as this version writes it: {problem}")]
    Malformed { problem: &'static str },
    #[error(transparent)]
    Ended(#[from] io::Error),
}

impl FrameError {
    pub(crate) fn reason(&self) -> CloseReason {
        match self {
            Self::TooLong { .. } => CloseReason::TooLong,
            Self::Malformed { .. } => CloseReason::Malformed,
            Self::Ended(_) => CloseReason::Ended,
        }
    }
}

fn malformed<T>(problem: &'static str) -> Result<T, FrameError> {
    Err(FrameError::Malformed { problem })
}

/// Reads a frame of at most `limit` bytes.
pub(crate) async fn read(
    from: &mut (impl AsyncRead + Unpin),
    limit: usize,
) -> Result<Vec<u8>, FrameError> {
    let bytes = from.read_u32().await?;
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    if bytes > limit && !planted!(PeersFrameUnchecked) {
        return Err(FrameError::TooLong { bytes });
    }
    let mut frame = Vec::new();
    while frame.len() < bytes {
        let left = (bytes - frame.len()) as u64;
        if from.take(left.min(PIECE)).read_to_end(&mut frame).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
    Ok(frame)
}

/// Writes a frame.
pub(crate) async fn write(to: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    to.write_all(&length.to_be_bytes()).await?;
    to.write_all(frame).await?;
    to.flush().await
}

/// Appends what is written of `value`.
fn append(to: &mut Vec<u8>, value: &impl Serialize) {
    // The types of the wire have a form each, and a `Vec` has room.
    let written = postcard::to_allocvec(value).unwrap_or_default();
    to.extend_from_slice(&written);
}

/// What is written of requests.
pub(crate) fn requests(requests: &[WireRequest<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests {
        append(&mut bytes, request);
    }
    bytes
}

/// Reads one request, and nothing behind it; `None` if that is not what is written.
pub(crate) fn read_request(bytes: &[u8]) -> Option<WireRequest<'_>> {
    let (request, rest) = take(bytes, "a request").ok()?;
    rest.is_empty().then_some(request)
}

/// A frame that is put together.
pub(crate) struct Writing(Vec<u8>);

impl Writing {
    pub(crate) fn asks() -> Self {
        Self(vec![ASKS])
    }

    pub(crate) fn answers() -> Self {
        Self(vec![ANSWERS])
    }

    /// Appends a question: its requests are written already.
    pub(crate) fn ask(&mut self, head: &AskHead, requests: &[u8]) {
        append(&mut self.0, head);
        self.0.extend_from_slice(requests);
    }

    /// Appends an answer that is [written](answer) already.
    pub(crate) fn answer(&mut self, answer: &[u8]) {
        self.0.extend_from_slice(answer);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// What is written of an answer.
pub(crate) fn answer(answer: &WireAnswer<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(&mut bytes, answer);
    bytes
}

/// Requests as they are written, in the frame that they came in or apart.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    frame: Arc<[u8]>,
    from: usize,
    to: usize,
    pub(crate) requests: u32,
    pub(crate) is_batch: bool,
}

impl Encoded {
    /// # Errors
    /// What has no form: no owner would take it.
    pub(crate) fn of(
        asked: &[Request],
        is_batch: bool,
    ) -> Result<Self, (usize, countwheel_durable::TimerError)> {
        let mut wire = Vec::with_capacity(asked.len());
        for (index, request) in asked.iter().enumerate() {
            wire.push(WireRequest::of(request).map_err(|error| (index, error))?);
        }
        let bytes = requests(&wire);
        Ok(Self {
            from: 0,
            to: bytes.len(),
            frame: bytes.into(),
            requests: u32::try_from(asked.len()).unwrap_or(u32::MAX),
            is_batch,
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.frame[self.from..self.to]
    }

    /// How many requests it counts as.
    pub(crate) fn count(&self) -> usize {
        usize::try_from(self.requests).unwrap_or(usize::MAX).max(1)
    }

    /// Reads the requests again, which were read when they came.
    pub(crate) fn wire(&self) -> Result<Vec<WireRequest<'_>>, FrameError> {
        let mut rest = self.bytes();
        let mut found = Vec::new();
        for _ in 0..self.requests {
            let request;
            (request, rest) = take(rest, "a request")?;
            found.push(request);
        }
        Ok(found)
    }
}

/// A question as it came.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) head: AskHead,
    pub(crate) what: Encoded,
}

fn take<'a, T: serde::Deserialize<'a>>(
    bytes: &'a [u8],
    problem: &'static str,
) -> Result<(T, &'a [u8]), FrameError> {
    postcard::take_from_bytes(bytes).map_err(|_| FrameError::Malformed { problem })
}

/// The questions of a frame, each looked through.
pub(crate) fn read_asks(frame: Vec<u8>) -> Result<Vec<Ask>, FrameError> {
    let frame: Arc<[u8]> = frame.into();
    let Some((&ASKS, mut rest)) = frame.split_first() else {
        return malformed("no frame of questions");
    };
    let (mut asks, mut requests) = (Vec::new(), 0_usize);
    while !rest.is_empty() {
        let head: AskHead;
        (head, rest) = take(rest, "the head of a question")?;
        let count = usize::try_from(head.requests).unwrap_or(usize::MAX);
        requests = requests.saturating_add(count.max(1));
        if requests > REQUESTS_MAX {
            return malformed("too many requests");
        }
        if count != 1 && !head.is_batch {
            return malformed("a question that is no batch has one request");
        }
        let from = frame.len() - rest.len();
        for _ in 0..count {
            // None is kept: the memory is that of one.
            (_, rest) = take::<WireRequest<'_>>(rest, "a request")?;
        }
        let what = Encoded {
            frame: Arc::clone(&frame),
            from,
            to: frame.len() - rest.len(),
            requests: head.requests,
            is_batch: head.is_batch,
        };
        asks.push(Ask { head, what });
    }
    Ok(asks)
}

/// The answers of a frame.
pub(crate) fn read_answers(frame: &[u8]) -> Result<Vec<WireAnswer<'_>>, FrameError> {
    let Some((&ANSWERS, mut rest)) = frame.split_first() else {
        return malformed("no frame of answers");
    };
    let (mut answers, mut responses) = (Vec::new(), 0_usize);
    while !rest.is_empty() {
        let answer: WireAnswer<'_>;
        (answer, rest) = take(rest, "an answer")?;
        let count = match &answer.body {
            crate::wire::WireBody::Done(done) => done.len(),
            _ => 1,
        };
        responses = responses.saturating_add(count.max(1));
        // What has gathered, and one more.
        if responses > 2 * REQUESTS_MAX {
            return malformed("too many responses");
        }
        answers.push(answer);
    }
    Ok(answers)
}

/// The frame that asks for counts.
pub(crate) fn ask_counts(ask: &AskCounts) -> Vec<u8> {
    let mut frame = vec![ASKS_COUNTS];
    append(&mut frame, ask);
    frame
}

/// What a frame asks to be counted; `None` if it is a frame of something else.
pub(crate) fn read_ask_counts(frame: &[u8]) -> Result<Option<AskCounts>, FrameError> {
    let Some((&ASKS_COUNTS, rest)) = frame.split_first() else {
        return Ok(None);
    };
    match take(rest, "a question for counts")? {
        (ask, []) => Ok(Some(ask)),
        _ => malformed("more than a question for counts"),
    }
}

/// The frame of counts. Shards that it has no room for are left out, as if they were not owned here.
pub(crate) fn counts(id: u64, counted: &BTreeMap<Shard, Counted>) -> Vec<u8> {
    let mut room = COUNTS_MAX - HEAD_MAX;
    let mut shards = Vec::with_capacity(counted.len());
    for (shard, counted) in counted {
        let wire = WireCounted::of(*shard, counted);
        let mut bytes = Vec::new();
        append(&mut bytes, &wire);
        if bytes.len() <= room && wire.queues.len() <= QUEUES_MAX {
            room -= bytes.len();
            shards.push(wire);
        }
    }
    let mut frame = vec![COUNTS];
    append(&mut frame, &WireCounts { id, shards });
    frame
}

/// The frame of a word.
pub(crate) fn word(id: u64, bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![WORD];
    append(&mut frame, &(id, serde_bytes::Bytes::new(bytes)));
    frame
}

/// The number and the bytes of a word; `None` if it is a frame of something else.
pub(crate) fn read_word(frame: &[u8]) -> Result<Option<(u64, &[u8])>, FrameError> {
    let Some((&WORD, rest)) = frame.split_first() else {
        return Ok(None);
    };
    match take::<(u64, &serde_bytes::Bytes)>(rest, "a word")? {
        ((id, bytes), []) => Ok(Some((id, bytes))),
        _ => malformed("more than a word"),
    }
}

/// The frame of what is answered to a word: nothing by who does not understand it.
pub(crate) fn answer_word(id: u64, answer: Option<&[u8]>) -> Vec<u8> {
    let mut frame = vec![ANSWERS_WORD];
    append(&mut frame, &(id, answer.map(serde_bytes::Bytes::new)));
    frame
}

/// An answer to a word, and its number.
type AnswerToWord<'a> = (u64, Option<&'a [u8]>);

/// What is answered to a word; `None` if it is a frame of something else.
pub(crate) fn read_answer_word(frame: &[u8]) -> Result<Option<AnswerToWord<'_>>, FrameError> {
    let Some((&ANSWERS_WORD, rest)) = frame.split_first() else {
        return Ok(None);
    };
    match take::<(u64, Option<&serde_bytes::Bytes>)>(rest, "what is answered to a word")? {
        ((id, answer), []) => Ok(Some((id, answer.map(|it| &**it)))),
        _ => malformed("more than what is answered to a word"),
    }
}

/// The counts of a frame; `None` if it is a frame of something else.
pub(crate) fn read_counts(frame: &[u8]) -> Result<Option<WireCounts<'_>>, FrameError> {
    let Some((&COUNTS, rest)) = frame.split_first() else {
        return Ok(None);
    };
    match take(rest, "counts")? {
        (counts, []) => Ok(Some(counts)),
        _ => malformed("more than counts"),
    }
}
