//! Many operations in one call: `POST /v1/batch`, one JSON object a line.
//!
//! A batch is a stream in both directions. A task of its own reads lines and hands their operations to the schedulers,
//! some thousands at a time, so that they share commits. Their results wait in a **spool**, in the order of the
//! lines and in a compact form, until the connection has room for them. So a caller may send everything before it
//! reads anything, and the memory of a batch is bounded all the same. Where that memory is used up, the task reads
//! no further until the caller has read.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use countwheel_durable::{
    self as durable, BatchError, Due, Precondition, StateKind, TimerError, TimerName, Was,
};
use countwheel_time::Timestamp;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Bytes, Frame};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::access::Identity;
use super::audit::Asking;
use super::described::{operations, requests};
use super::json::{self, Field, Kind, Object};
use super::leases;
use super::problem::{Code, Problem};
use super::reach::Reach;
use super::request::{Condition, Honoured, MAX_BODY_BYTES, Query, has_type, precondition};
use super::timers;
use super::{App, HELD_AT_MOST};
use crate::bodies::Share;
use crate::callers::Caller;
use crate::front::Streaming;
use crate::moving::{Passed, Within};
use crate::quotas::{self, Admitted};
use crate::resources::token::Scope;
use crate::time::format_time;
use crate::traced::TraceContext;

/// How many operations a batch has at the most.
pub(crate) const OPERATIONS_MAX: u64 = 1_000_000;
/// How many operations a batch has at the most that is done all together or not at all.
pub(crate) const ATOMIC_MAX: usize = 10_000;
/// How long such a batch is at the most.
pub(crate) const ATOMIC_MAX_BYTES: usize = 64 << 20;
/// How long a line is at the most.
pub(crate) const LINE_MAX_BYTES: usize = MAX_BODY_BYTES;
/// How many operations of a batch are under way at a time.
pub(crate) const WINDOW: usize = 2_048;
/// How many bytes of lines are.
pub(crate) const WINDOW_BYTES: usize = 4 << 20;
/// How long the caller may neither send nor read anything.
pub(crate) const PROGRESS: Duration = Duration::from_secs(30);
/// So many bytes of what refusals say wait for the caller.
pub(crate) const TEXTS_MAX: usize = 1 << 20;

/// How long the first bytes of a batch may take, as those of any body.
const FIRST_BYTES: Duration = Duration::from_secs(10);
/// What a batch has of the memory for bodies from its beginning.
const BASE: usize = 64 << 10;
/// What is taken of it at a time.
const STEP: usize = 64 << 10;
/// What an operation under way takes beside its line.
const OPERATION_BYTES: usize = 256;
/// The longest result in its compact form, but for what a refusal says.
pub(crate) const RESULT_BYTES: usize = 64;
/// So much of the spool is in one piece.
const PIECE: usize = 8 << 10;
/// How long to wait for room among those that wait for the schedulers, if nothing of the batch is under way.
const ROOM_AGAIN: Duration = Duration::from_millis(10);

/// What a line asks for.
struct Operation {
    verb: Verb,
    name: TimerName,
    ask: Ask,
    /// The room that a new timer takes of a quota, until it is set.
    admitted: Option<Admitted>,
}

/// What it asks the schedulers for.
enum Ask {
    Once(durable::Request),
    /// To set a timer in place of whatever timer has its name.
    Replace(timers::SetRequest),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Set,
    Move,
    Remove { is_pulled: bool },
    Fire,
    Revive,
    Settle,
}

/// The outcome of an operation.
enum Came {
    Asked(Result<durable::Response, TimerError>),
    Refused(Problem),
}

impl Came {
    /// The result of a verb, if it was done.
    fn result(self, verb: Verb) -> Result<Done, Problem> {
        match self {
            Self::Asked(Ok(response)) => Done::of(verb, &response),
            Self::Asked(Err(error)) if verb == Verb::Settle => Err(leases::lost(error)),
            Self::Asked(Err(error)) => Err(error.into()),
            Self::Refused(problem) => Err(problem),
        }
    }
}

/// What was done, in the form in which it waits in the spool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Done {
    Set {
        replaced: Option<StateKind>,
        store: u64,
        set: u64,
        revision: u64,
        due: u64,
    },
    Moved {
        is_accepted: bool,
        revision: u64,
        old_due: u64,
        due: u64,
    },
    RemovedPending {
        due: u64,
    },
    RemovedDelivering {
        attempt: u32,
        is_leased: bool,
    },
    RemovedDead,
    RemovedUnreadable,
    Settled {
        state: StateKind,
        due: Option<u64>,
    },
}

impl Done {
    fn of(verb: Verb, response: &durable::Response) -> Result<Self, Problem> {
        use durable::Response as R;
        Ok(match *response {
            R::Set(set) => Self::Set {
                replaced: set.replaced,
                store: set.id.store,
                set: set.id.set.0,
                revision: set.revision.0,
                due: set.due.as_micros(),
            },
            R::Moved(moved) => Self::Moved {
                is_accepted: verb != Verb::Move,
                revision: moved.revision.0,
                old_due: moved.old_due.as_micros(),
                due: moved.due.as_micros(),
            },
            R::Removed(Was::Pending { due }) => Self::RemovedPending {
                due: due.as_micros(),
            },
            R::Removed(Was::Delivering { attempt }) => Self::RemovedDelivering {
                attempt,
                is_leased: verb == Verb::Remove { is_pulled: true },
            },
            R::Removed(Was::Dead) => Self::RemovedDead,
            R::Removed(Was::Unreadable) => Self::RemovedUnreadable,
            R::Settled(settled) => Self::Settled {
                state: settled.state,
                due: settled.due.map(Timestamp::as_micros),
            },
            R::Forgotten(_) | R::Configured(_) | R::Extended(_) => {
                let detail = "the answer was that of another request";
                return Err(Problem::new(Code::Unknown, detail));
            }
        })
    }

    /// Writes the members of a result, from its status on.
    fn write(&self, text: &mut String) {
        let time = |micros| format_time(Timestamp::from_micros(micros));
        // A text takes whatever is written to it.
        let _ = match *self {
            Self::Set {
                replaced,
                store,
                set,
                revision,
                due,
            } => {
                let status = if replaced.is_some() { 200 } else { 201 };
                let id = durable::TimerId {
                    store,
                    set: durable::Revision(set),
                };
                let due = time(due);
                let _ = write!(
                    text,
                    r#""status":{status},"id":"{id}","revision":{revision},"due":"{due}","replaced":"#
                );
                match replaced {
                    None => write!(text, "null"),
                    Some(state) => write!(text, r#""{}""#, state.as_str()),
                }
            }
            Self::Moved {
                is_accepted,
                revision,
                old_due,
                due,
            } => {
                let status = if is_accepted { 202 } else { 200 };
                let (old_due, due) = (time(old_due), time(due));
                write!(
                    text,
                    r#""status":{status},"revision":{revision},"old_due":"{old_due}","due":"{due}""#
                )
            }
            Self::RemovedPending { due } => {
                let was = timers::was_word(
                    Was::Pending {
                        due: Timestamp::from_micros(due),
                    },
                    false,
                );
                let due = time(due);
                write!(text, r#""status":200,"was":"{was}","due":"{due}""#)
            }
            Self::RemovedDelivering { attempt, is_leased } => {
                let was = timers::was_word(Was::Delivering { attempt }, is_leased);
                write!(text, r#""status":200,"was":"{was}","attempt":{attempt}"#)
            }
            Self::RemovedDead => {
                let was = timers::was_word(Was::Dead, false);
                write!(text, r#""status":200,"was":"{was}""#)
            }
            Self::RemovedUnreadable => {
                let was = timers::was_word(Was::Unreadable, false);
                write!(text, r#""status":200,"was":"{was}""#)
            }
            Self::Settled { state, due } => {
                let state = state.as_str();
                let _ = write!(text, r#""status":200,"state":"{state}""#);
                match due {
                    None => Ok(()),
                    Some(due) => write!(text, r#","due":"{}""#, time(due)),
                }
            }
        };
    }
}

/// A result in the spool.
#[derive(Debug, Serialize, Deserialize)]
enum Kept<'a> {
    Done(Done),
    /// What a refusal says, as an object of JSON.
    Refused {
        status: u16,
        says: &'a str,
    },
    /// The last line.
    End(&'a str),
}

/// Results that the caller has not read.
#[derive(Debug, Default)]
struct Spool {
    pieces: VecDeque<Piece>,
    bytes: usize,
    /// How many of them are of what refusals say.
    texts: usize,
    /// When the connection last took something.
    taken: Option<Instant>,
    waker: Option<Waker>,
    is_ended: bool,
    /// The task is gone without an end.
    is_broken: bool,
}

#[derive(Debug, Default)]
struct Piece {
    bytes: Vec<u8>,
    texts: usize,
}

impl Spool {
    fn push(&mut self, kept: &Kept<'_>, texts: usize) {
        let mut room = [0; RESULT_BYTES];
        let long;
        let bytes: &[u8] = match postcard::to_slice(kept, &mut room) {
            Ok(bytes) => bytes,
            Err(_) => {
                long = postcard::to_allocvec(kept).unwrap_or_default();
                &long
            }
        };
        if self
            .pieces
            .back()
            .is_none_or(|piece| piece.bytes.len() + bytes.len() > PIECE)
        {
            self.pieces.push_back(Piece {
                bytes: Vec::with_capacity(PIECE.max(bytes.len())),
                texts: 0,
            });
        }
        if let Some(piece) = self.pieces.back_mut() {
            piece.bytes.extend_from_slice(bytes);
            piece.texts += texts;
        }
        self.bytes += bytes.len();
        self.texts += texts;
    }

    fn take(&mut self) -> Option<Piece> {
        let piece = self.pieces.pop_front()?;
        self.bytes -= piece.bytes.len();
        self.texts -= piece.texts;
        self.taken = Some(Instant::now());
        Some(piece)
    }
}

/// Operations under way, in the order of their lines.
#[derive(Default)]
struct Open {
    first: u64,
    slots: VecDeque<Slot>,
}

struct Slot {
    verb: Verb,
    bytes: usize,
    since: Instant,
    /// Where operations on one name could overtake each other.
    name: Option<TimerName>,
    came: Option<Came>,
}

/// What the task, the schedulers and the connection know together.
#[derive(Default)]
struct Shared {
    open: Mutex<Open>,
    spool: Mutex<Spool>,
    /// An operation was answered, the connection took something, or is gone.
    changed: Notify,
    is_gone: AtomicBool,
}

impl Shared {
    /// Notes the outcome of an operation, unless it has one already.
    fn came(&self, number: u64, came: Came) {
        let mut open = self.open.lock();
        let at = number.checked_sub(open.first);
        let at = at.and_then(|at| usize::try_from(at).ok());
        if let Some(slot) = at.and_then(|at| open.slots.get_mut(at))
            && slot.came.is_none()
        {
            slot.came = Some(came);
        }
        drop(open);
        // What is behind others waits for them.
        if at == Some(0) {
            self.changed.notify_one();
        }
    }
}

/// After so many operations it is looked at again whether the caller may go on, beside with each piece of the body.
const ASKED_EVERY: u64 = 256;

/// Why a batch ended before its body did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    /// It has more operations than one may have.
    TooMany,
    /// Neither side had a byte of the other for too long.
    Timeout,
    /// The service stops.
    Shutdown,
    /// The body broke off.
    Broken,
    /// The timers have gone to a cluster.
    Moved,
    /// Nobody reads the answer any more.
    Gone,
    /// The token counts no more.
    Unauthorized,
}

impl Cut {
    const fn reason(self) -> &'static str {
        match self {
            Self::TooMany => "too_many",
            Self::Timeout => "timeout",
            Self::Shutdown => "shutdown",
            Self::Broken => "broken",
            Self::Moved => "moved",
            Self::Gone => "gone",
            Self::Unauthorized => "unauthorized",
        }
    }
}

pub(super) async fn batch(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    begin(app, request, OPERATIONS_MAX).await
}

/// A batch of so many operations at the most.
async fn begin(app: Arc<App>, request: Request<Body>, most: u64) -> Result<Response, Problem> {
    precondition(request.headers(), Honoured::Nothing)?;
    let query = Query::of(request.uri(), &operations::BATCH.query_names())?;
    let is_atomic = query.read("atomic", "true or false", |text| text.parse::<bool>().ok())?;
    if !has_type(request.headers(), "application/x-ndjson")? {
        let detail = "send a batch as content-type: application/x-ndjson, one object a line";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    let mut stopping = app.stopping();
    if *stopping.borrow_and_update() {
        return Err(Problem::new(
            Code::Unavailable,
            "the service is shutting down",
        ));
    }
    let trace = TraceContext::of(request.headers());
    let caller = request.extensions().get::<Caller>().copied();
    let asks = request.extensions().get::<Identity>().cloned();
    let streaming = request.extensions().get::<Streaming>().cloned();
    let mut share = app.bodies.share(caller);
    if !share.take(BASE) {
        return Err(no_memory());
    }
    let body = request.into_body();
    if is_atomic == Some(true) {
        return atomic(&app, body, share, trace.as_ref(), asks.as_ref()).await;
    }
    let shared = Arc::<Shared>::default();
    let mut batch = Batch {
        streaming: streaming.as_ref().map(Streaming::begin),
        shared: Arc::clone(&shared),
        share,
        trace,
        body: Some(body),
        buffer: Vec::new(),
        last_in: Instant::now(),
        stopping,
        within: None,
        names: app.cluster().is_some().then(BTreeSet::new),
        window_bytes: 0,
        most,
        operations: 0,
        succeeded: 0,
        failed: 0,
        is_over: false,
        asks,
        is_asked: false,
        app,
    };
    // The caller may wait to be told to send the body, and is not told so once the answer has begun.
    let first = timeout(FIRST_BYTES, batch.read()).await;
    let late = |_| Problem::new(Code::Timeout, "the body did not begin in time");
    let Ok(has_more) = first.map_err(late)? else {
        let detail = "the body ended early or is badly framed";
        return Err(Problem::malformed(detail));
    };
    tokio::spawn(Asking::within(Asking::current(), batch.run(has_more)));
    let lines = Body::new(Lines { shared, next: 0 });
    let kind = HeaderValue::from_static("application/x-ndjson");
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, kind)], lines).into_response())
}

fn no_memory() -> Problem {
    Problem::new(
        Code::Overloaded,
        "the bodies of other requests have taken the memory for bodies",
    )
}

fn too_long() -> Problem {
    let detail = format!("a line has at most {LINE_MAX_BYTES} bytes");
    Problem::new(Code::TooLarge, detail)
}

/// Waits until the timers are to be changed here.
async fn pass(app: &App) -> Result<Option<Within>, Cut> {
    let Some(moves) = app.moves() else {
        return Ok(None);
    };
    match moves.gate().pass(HELD_AT_MOST).await {
        Passed::Here(within) => Ok(Some(within)),
        Passed::Elsewhere(_) | Passed::TooLate => Err(Cut::Moved),
    }
}

/// A batch whose operations are done one by one.
struct Batch {
    app: Arc<App>,
    shared: Arc<Shared>,
    share: Share,
    trace: Option<TraceContext>,
    body: Option<Body>,
    /// What came and is no whole line yet.
    buffer: Vec<u8>,
    last_in: Instant,
    stopping: watch::Receiver<bool>,
    /// While operations are under way here, so that the timers do not go elsewhere meanwhile.
    within: Option<Within>,
    /// In a cluster, the names with an operation under way.
    names: Option<BTreeSet<TimerName>>,
    /// Of the operations under way.
    window_bytes: usize,
    most: u64,
    operations: u64,
    succeeded: u64,
    failed: u64,
    is_over: bool,
    /// Who asks.
    asks: Option<Identity>,
    /// Whether that was looked at since the last bytes came.
    is_asked: bool,
    /// The connection goes on as long as either side has bytes of the other.
    streaming: Option<crate::front::Streams>,
}

impl Batch {
    async fn run(mut self, has_more: bool) {
        let cut = self.feed(has_more).await.err();
        self.settle().await;
        self.end(cut);
    }

    /// Does all lines.
    async fn feed(&mut self, mut has_more: bool) -> Result<(), Cut> {
        let (mut scanned, mut is_skipping) = (0, false);
        loop {
            let buffer = std::mem::take(&mut self.buffer);
            let mut from = 0;
            while let Some(end) = buffer[scanned..].iter().position(|&byte| byte == b'\n') {
                let end = scanned + end;
                if !std::mem::take(&mut is_skipping) {
                    self.line(&buffer[from..end]).await?;
                }
                (from, scanned) = (end + 1, end + 1);
            }
            self.buffer = buffer;
            self.buffer.drain(..from);
            if self.buffer.len() > LINE_MAX_BYTES {
                if !std::mem::replace(&mut is_skipping, true) {
                    self.count()?;
                    self.refused(too_long());
                }
            } else if self.buffer.len() > PIECE && !is_skipping && !self.fit(0).await? {
                is_skipping = true;
                self.count()?;
                self.refused(no_memory());
            }
            if is_skipping {
                self.buffer = Vec::new();
            }
            scanned = self.buffer.len();
            if !has_more {
                let last = std::mem::take(&mut self.buffer);
                return self.line(&last).await;
            }
            has_more = self.more().await?;
        }
    }

    /// Waits for more of the body. `false` at its end.
    async fn more(&mut self) -> Result<bool, Cut> {
        loop {
            self.drain();
            if self.shared.open.lock().slots.is_empty() {
                self.within = None;
            }
            let deadline = self.deadline();
            let is_stopped = *self.stopping.borrow();
            let shared = Arc::clone(&self.shared);
            if is_stopped || shared.is_gone.load(Ordering::Relaxed) {
                return Err(self.why_over());
            }
            tokio::select! {
                read = self.read() => return read,
                () = shared.changed.notified() => {}
                () = sleep_until(deadline) => self.overdue()?,
            }
        }
    }

    fn why_over(&self) -> Cut {
        if *self.stopping.borrow() {
            Cut::Shutdown
        } else {
            Cut::Gone
        }
    }

    /// Reads what comes next of the body. `false` at its end. Nothing is lost if the future is dropped.
    async fn read(&mut self) -> Result<bool, Cut> {
        let Some(body) = &mut self.body else {
            return Ok(false);
        };
        let mut stopping = self.stopping.clone();
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                _ = stopping.wait_for(|&is| is) => return Err(Cut::Shutdown),
            };
            match frame {
                None => return Ok(false),
                Some(Err(_)) => return Err(Cut::Broken),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                        self.last_in = Instant::now();
                        self.is_asked = false;
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Waits for an answer of the schedulers, or until the caller has read something.
    async fn changed(&mut self) -> Result<(), Cut> {
        let shared = Arc::clone(&self.shared);
        if shared.is_gone.load(Ordering::Relaxed) {
            return Err(Cut::Gone);
        }
        let deadline = self.deadline();
        let mut stopping = self.stopping.clone();
        tokio::select! {
            () = shared.changed.notified() => {}
            () = sleep_until(deadline) => self.overdue()?,
            _ = stopping.wait_for(|&is| is) => return Err(Cut::Shutdown),
        }
        self.drain();
        Ok(())
    }

    /// By when something has to come: an answer of a database, if one is awaited, else anything of the caller.
    fn deadline(&self) -> Instant {
        let oldest = self.shared.open.lock().slots.front().map(|slot| slot.since);
        match (oldest, self.app.answers_within()) {
            (Some(since), Some(within)) => since + within,
            // A scheduler in this process answers.
            (Some(_), None) => Instant::now() + PROGRESS,
            (None, _) => {
                let taken = self.shared.spool.lock().taken;
                self.last_in.max(taken.unwrap_or(self.last_in)) + PROGRESS
            }
        }
    }

    /// Nothing has come by the deadline.
    fn overdue(&mut self) -> Result<(), Cut> {
        let now = Instant::now();
        let mut open = self.shared.open.lock();
        if open.slots.is_empty() {
            drop(open);
            return if self.deadline() <= now {
                Err(Cut::Timeout)
            } else {
                Ok(())
            };
        }
        let Some(within) = self.app.answers_within() else {
            return Ok(());
        };
        for slot in &mut open.slots {
            if slot.came.is_none() && slot.since + within <= now {
                let late = "the database has not answered in time".to_owned();
                slot.came = Some(Came::Asked(Err(TimerError::Unknown(late))));
            }
        }
        drop(open);
        self.drain();
        Ok(())
    }

    /// Puts the results into the spool that are there, as far as those before them are.
    fn drain(&mut self) {
        loop {
            let mut open = self.shared.open.lock();
            let ready = open.slots.iter().take_while(|slot| slot.came.is_some());
            let ready = ready.count();
            if ready == 0 {
                return;
            }
            open.first += ready as u64;
            let ready: Vec<_> = open.slots.drain(..ready).collect();
            drop(open);
            let mut results = Vec::with_capacity(ready.len());
            for slot in ready {
                self.window_bytes -= slot.bytes;
                if let (Some(names), Some(name)) = (&mut self.names, &slot.name) {
                    names.remove(name);
                }
                if let Some(came) = slot.came {
                    results.push(came.result(slot.verb));
                }
            }
            let mut spool = self.shared.spool.lock();
            for result in results {
                match result {
                    Ok(done) => {
                        self.succeeded += 1;
                        spool.push(&Kept::Done(done), 0);
                    }
                    Err(problem) => {
                        self.failed += 1;
                        self.share_refusal(&mut spool, &problem);
                    }
                }
            }
            let waker = spool.waker.take();
            drop(spool);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Puts a refusal into the spool: without its words, if there are too many of them.
    fn share_refusal(&self, spool: &mut Spool, problem: &Problem) {
        let status = problem.parts().0.as_u16();
        let says = serde_json::to_string(&problem.line()).unwrap_or_default();
        let has_room = spool.texts + says.len() <= TEXTS_MAX;
        if has_room {
            let says = says.as_str();
            spool.push(&Kept::Refused { status, says }, says.len());
        } else {
            let says = format!(r#"{{"code":"{}"}}"#, problem.code());
            let says = says.as_str();
            spool.push(&Kept::Refused { status, says }, 0);
        }
    }

    /// What the batch has in memory.
    fn needs(&self) -> usize {
        let open = self.shared.open.lock().slots.len();
        let spool = self.shared.spool.lock().bytes;
        let results = spool + open * RESULT_BYTES;
        self.buffer.len() + self.window_bytes + open * OPERATION_BYTES + results
    }

    /// Waits until there is memory for so many more bytes. `false` if there will be none, as far as that is up to
    /// this batch.
    async fn fit(&mut self, more: usize) -> Result<bool, Cut> {
        loop {
            self.drain();
            let needs = self.needs();
            let wanted = (needs + more).saturating_sub(BASE).next_multiple_of(STEP) + BASE;
            let has = self.share.bytes();
            if has > wanted + STEP {
                self.share.give(has - wanted);
            }
            if has >= wanted || self.share.take(wanted - has) {
                return Ok(true);
            }
            let is_idle = self.shared.open.lock().slots.is_empty();
            if is_idle && self.shared.spool.lock().pieces.is_empty() {
                return Ok(false);
            }
            self.changed().await?;
        }
    }

    /// Another operation begins.
    fn count(&mut self) -> Result<(), Cut> {
        if self.operations == self.most {
            return Err(Cut::TooMany);
        }
        self.operations += 1;
        Ok(())
    }

    /// Does what a line asks for.
    async fn line(&mut self, line: &[u8]) -> Result<(), Cut> {
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(());
        }
        self.count()?;
        let taken = self.take(line).await;
        if taken.is_err() {
            // It was not begun.
            self.operations -= 1;
        }
        taken
    }

    /// Begins the operation of a line, or refuses it.
    async fn take(&mut self, line: &[u8]) -> Result<(), Cut> {
        if line.len() > LINE_MAX_BYTES {
            self.refused(too_long());
            return Ok(());
        }
        loop {
            let (open, bytes) = (self.shared.open.lock().slots.len(), self.window_bytes);
            if open < WINDOW && (open == 0 || bytes + line.len() <= WINDOW_BYTES) {
                break;
            }
            self.drain();
            if self.shared.open.lock().slots.len() == open {
                self.changed().await?;
            }
        }
        if *self.stopping.borrow() {
            return Err(Cut::Shutdown);
        }
        if !self.is_asked || self.operations.is_multiple_of(ASKED_EVERY) {
            let asks = self.asks.as_ref();
            if asks.is_some_and(|asks| asks.still(&self.app).is_err()) {
                return Err(Cut::Unauthorized);
            }
            self.is_asked = true;
        }
        if !self
            .fit(line.len() + OPERATION_BYTES + RESULT_BYTES)
            .await?
        {
            self.refused(no_memory());
            return Ok(());
        }
        if let Err(over) = self.keep_rate().await? {
            self.refused(over);
            return Ok(());
        }
        self.stay_within().await?;
        let since = Instant::now();
        while !self.ask(line).await {
            if since.elapsed() > PROGRESS {
                self.refused(TimerError::Full.into());
                return Ok(());
            }
            if self.shared.open.lock().slots.is_empty() {
                tokio::time::sleep(ROOM_AGAIN).await;
            } else {
                self.changed().await?;
            }
        }
        Ok(())
    }

    /// Waits until the rate of the namespace has room for another line. A line that would wait for too long is refused.
    async fn keep_rate(&mut self) -> Result<Result<(), Problem>, Cut> {
        let end = Instant::now() + PROGRESS;
        loop {
            let Err(over) = quotas::take_line(&self.app, self.asks.as_ref()) else {
                return Ok(Ok(()));
            };
            let again = Instant::now() + over.wait;
            if again > end {
                return Ok(Err(*over.problem));
            }
            while Instant::now() < again {
                self.drain();
                if self.shared.is_gone.load(Ordering::Relaxed) {
                    return Err(Cut::Gone);
                }
                let mut stopping = self.stopping.clone();
                let shared = Arc::clone(&self.shared);
                tokio::select! {
                    () = sleep_until(again) => {}
                    () = shared.changed.notified() => {}
                    _ = stopping.wait_for(|&is| is) => return Err(Cut::Shutdown),
                }
            }
            // The caller waits for the rate, and not the service for the caller.
            self.last_in = Instant::now();
        }
    }

    /// While all timers are to change hands, nothing of the batch is under way.
    async fn stay_within(&mut self) -> Result<(), Cut> {
        let Some(moves) = self.app.moves() else {
            return Ok(());
        };
        if self.within.is_some() && moves.gate().is_open() {
            return Ok(());
        }
        self.settle().await;
        self.within = None;
        self.within = pass(&self.app).await?;
        Ok(())
    }

    /// Hands an operation to its scheduler. `false` if too many wait there already.
    async fn ask(&mut self, line: &[u8]) -> bool {
        let read = read(&self.app, line, self.trace.as_ref(), self.asks.as_ref()).await;
        let Operation {
            verb,
            name,
            ask,
            admitted,
        } = match read {
            Ok(operation) => operation,
            Err(problem) => {
                self.refused(problem);
                return true;
            }
        };
        let is_ahead = self
            .names
            .as_ref()
            .is_some_and(|names| names.contains(&name));
        let request = match ask {
            Ask::Once(request) => {
                if is_ahead {
                    self.settle().await;
                }
                request
            }
            // It may be asked for several times, so nothing may follow it meanwhile.
            Ask::Replace(request) => {
                self.settle().await;
                let came = timers::replace(&self.app, &request, admitted).await;
                let came = came.map_or_else(Came::Refused, |set| {
                    Came::Asked(Ok(durable::Response::Set(set)))
                });
                self.opened(verb, 0, None, Some(came));
                return true;
            }
        };
        let name = self.names.as_mut().map(|names| {
            names.insert(name.clone());
            name
        });
        let number = self.opened(verb, line.len(), name, None);
        let shared = Arc::clone(&self.shared);
        let request = self.app.noted(request);
        self.app.timers.submit(request, move |answer| {
            admitted
                .into_iter()
                .for_each(|it| it.answered(answer.as_ref()));
            shared.came(number, Came::Asked(answer));
        });
        let mut open = self.shared.open.lock();
        let is_full = open
            .slots
            .back()
            .is_some_and(|slot| matches!(slot.came, Some(Came::Asked(Err(TimerError::Full)))));
        if is_full && let Some(slot) = open.slots.pop_back() {
            drop(open);
            self.window_bytes -= slot.bytes;
            if let (Some(names), Some(name)) = (&mut self.names, &slot.name) {
                names.remove(name);
            }
        }
        !is_full
    }

    /// Notes that an operation is under way, or its outcome. Returns its number.
    fn opened(
        &mut self,
        verb: Verb,
        bytes: usize,
        name: Option<TimerName>,
        came: Option<Came>,
    ) -> u64 {
        self.window_bytes += bytes;
        let mut open = self.shared.open.lock();
        let number = open.first + open.slots.len() as u64;
        open.slots.push_back(Slot {
            verb,
            bytes,
            since: Instant::now(),
            name,
            came,
        });
        number
    }

    /// The operation that was counted last is refused.
    fn refused(&mut self, problem: Problem) {
        self.opened(Verb::Set, 0, None, Some(Came::Refused(problem)));
        self.drain();
    }

    /// Waits until nothing is under way.
    async fn settle(&mut self) {
        loop {
            self.drain();
            if self.shared.open.lock().slots.is_empty() {
                return;
            }
            let deadline = self.deadline();
            let shared = Arc::clone(&self.shared);
            tokio::select! {
                () = shared.changed.notified() => {}
                // While something is under way, that is no end.
                () = sleep_until(deadline) => drop(self.overdue()),
            }
        }
    }

    /// Writes the last line.
    fn end(mut self, cut: Option<Cut>) {
        let last = Last {
            end: cut.is_none(),
            reason: cut.map(Cut::reason),
            operations: self.operations,
            succeeded: self.succeeded,
            failed: self.failed,
        };
        if cut.is_some()
            && let Some(streams) = &self.streaming
        {
            streams.lingers();
        }
        let last = serde_json::to_string(&last).unwrap_or_default();
        let mut spool = self.shared.spool.lock();
        spool.push(&Kept::End(&last), 0);
        spool.is_ended = true;
        let waker = spool.waker.take();
        drop(spool);
        self.is_over = true;
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // The answer breaks off: it is not taken for a whole one.
        let mut spool = self.shared.spool.lock();
        spool.is_broken = true;
        let waker = spool.waker.take();
        drop(spool);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The last line of an answer.
#[derive(Serialize)]
struct Last {
    end: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    operations: u64,
    succeeded: u64,
    failed: u64,
}

/// The answer of a batch, as the connection takes it.
struct Lines {
    shared: Arc<Shared>,
    /// The number of the next result.
    next: u64,
}

impl Lines {
    /// The lines of these results.
    fn text(&mut self, piece: &[u8]) -> String {
        let mut text = String::with_capacity(piece.len() * 6);
        let mut left = piece;
        while !left.is_empty() {
            let Ok((kept, rest)) = postcard::take_from_bytes::<Kept<'_>>(left) else {
                tracing::error!("a result of a batch cannot be read");
                break;
            };
            left = rest;
            if let Kept::End(last) = kept {
                text.push_str(last);
                text.push('\n');
                continue;
            }
            // A text takes whatever is written to it.
            let _ = write!(text, r#"{{"i":{},"#, self.next);
            self.next += 1;
            match kept {
                Kept::Done(done) => {
                    done.write(&mut text);
                    text.push('}');
                }
                Kept::Refused { status, says } => {
                    let says = says.strip_prefix('{').unwrap_or("}");
                    let _ = write!(text, r#""status":{status},{says}"#);
                }
                Kept::End(_) => {}
            }
            text.push('\n');
        }
        text
    }
}

impl HttpBody for Lines {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut spool = self.shared.spool.lock();
        if let Some(piece) = spool.take() {
            drop(spool);
            self.shared.changed.notify_one();
            let text = self.text(&piece.bytes);
            return Poll::Ready(Some(Ok(Frame::data(text.into()))));
        }
        if spool.is_ended {
            return Poll::Ready(None);
        }
        if spool.is_broken {
            let broken = io::Error::other("the batch broke off");
            return Poll::Ready(Some(Err(broken)));
        }
        spool.waker = Some(context.waker().clone());
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        let spool = self.shared.spool.lock();
        spool.is_ended && spool.pieces.is_empty()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.shared.is_gone.store(true, Ordering::Relaxed);
        self.shared.changed.notify_one();
    }
}

/// Reads a line.
async fn read(
    app: &App,
    line: &[u8],
    trace: Option<&TraceContext>,
    asks: Option<&Identity>,
) -> Result<Operation, Problem> {
    let object = Field::root(json::parse_named("the line", line)?).object()?;
    let op = object.peek("op").ok_or_else(|| object.missing("op"))?;
    let shape = requests::line(&op.text()?);
    let known = "an op is one of set, move, remove, fire, revive, ack, nack";
    let shape = shape.ok_or_else(|| op.malformed(known))?;
    let mut object = object.shaped(shape)?;
    let op = object.require("op")?;
    let verb = op.text()?;
    let reach = Reach::of_identity(asks);
    if verb == "ack" || verb == "nack" {
        // A batch is for the scope write.
        asks.map_or(Ok(()), |asks| asks.needs(Scope::Deliver))?;
        return read_settle(object, verb == "ack", &reach);
    }
    let (queue, key) = (object.require("queue")?, object.require("key")?);
    let name = leases::read_name(&queue, &key, &reach)?;
    let once = |verb, name, request| {
        let ask = Ask::Once(request);
        Ok(Operation {
            verb,
            name,
            ask,
            admitted: None,
        })
    };
    match &*verb {
        "set" => {
            let condition = read_condition(&mut object, true)?;
            let found = reach.find(app, name.queue.namespace()).await;
            found.map_err(|problem| problem.at("/queue"))?;
            let timer = timers::read_known(app, object, &name.queue, app.tagged(&name.key)).await?;
            let request = timer.request(name.clone(), trace.cloned());
            let admitted = quotas::admit(app, &name, request.bytes()).await?;
            let ask = match condition {
                Condition::Engine(precondition) => Ask::Once(request.with(precondition)),
                Condition::Exists => Ask::Replace(request),
            };
            Ok(Operation {
                verb: Verb::Set,
                name,
                ask,
                admitted,
            })
        }
        "move" => {
            let precondition = read_condition(&mut object, false)?.of_existing();
            let request = durable::Request::Move {
                name: name.clone(),
                shift: timers::read_shift(object)?,
                precondition,
            };
            once(Verb::Move, name, request)
        }
        "remove" => {
            let precondition = read_condition(&mut object, false)?.of_existing();
            let only = object.take("only");
            object.finish()?;
            let only_pending = match only {
                None => false,
                Some(field) if field.text()? == "pending" => true,
                Some(field) => return Err(field.malformed("must be \"pending\"")),
            };
            let request = durable::Request::Remove {
                name: name.clone(),
                precondition,
                only_pending,
            };
            let is_pulled = app.catalogue().known().pulled(&name.queue).is_some();
            once(Verb::Remove { is_pulled }, name, request)
        }
        "fire" => {
            object.finish()?;
            let request = durable::Request::Fire { name: name.clone() };
            once(Verb::Fire, name, request)
        }
        "revive" => {
            let due = match object.has("in") || object.has("at") {
                true => timers::due(&mut object)?,
                false => Due::In(Duration::ZERO),
            };
            object.finish()?;
            let request = durable::Request::Revive {
                name: name.clone(),
                due,
            };
            once(Verb::Revive, name, request)
        }
        _ => Err(op.malformed("an op is one of set, move, remove, fire, revive, ack, nack")),
    }
}

fn read_settle(mut object: Object<'_>, is_ack: bool, reach: &Reach) -> Result<Operation, Problem> {
    let (item, outcome) = if is_ack {
        (leases::read_item(&mut object, reach)?, leases::acked())
    } else {
        leases::read_nack(&mut object, reach)?
    };
    object.finish()?;
    let (name, request) = leases::settle_request(item, outcome);
    Ok(Operation {
        verb: Verb::Settle,
        name,
        ask: Ask::Once(request),
        admitted: None,
    })
}

/// The precondition of an operation: `if_match`, or of a set `if_none_match`.
fn read_condition(object: &mut Object<'_>, is_set: bool) -> Result<Condition, Problem> {
    let if_none_match = match is_set {
        true => object.take("if_none_match"),
        false => None,
    };
    let Some(field) = object.take("if_match") else {
        return match if_none_match {
            None => Ok(Condition::Engine(Precondition::None)),
            Some(field) if field.text()? == "*" => Ok(Condition::Engine(Precondition::Absent)),
            Some(field) => Err(field.malformed("must be \"*\"")),
        };
    };
    if if_none_match.is_some() {
        return Err(field.malformed("if_match and if_none_match cannot be combined"));
    }
    let revision = match field.kind() {
        Kind::Text(text) if text == "*" => return Ok(Condition::Exists),
        Kind::Text(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        Kind::Number(number) => number.parse().ok(),
        _ => None,
    };
    let revision = revision.ok_or_else(|| field.malformed("must be one revision, or \"*\""))?;
    Ok(Condition::Engine(Precondition::Revision(
        durable::Revision(revision),
    )))
}

/// Does all of a batch or nothing of it.
async fn atomic(
    app: &App,
    mut body: Body,
    mut share: Share,
    trace: Option<&TraceContext>,
    asks: Option<&Identity>,
) -> Result<Response, Problem> {
    let mut stopping = app.stopping();
    let (mut operations, mut requests) = (Vec::new(), Vec::new());
    let mut admitted = Vec::new();
    let (mut buffer, mut bytes, mut deadline) = (Vec::new(), 0, FIRST_BYTES);
    let mut is_over = false;
    while !is_over {
        let frame = tokio::select! {
            frame = timeout(deadline, body.frame()) => frame,
            _ = stopping.wait_for(|&is| is) => {
                let detail = "the service is shutting down";
                return Err(Problem::new(Code::Unavailable, detail));
            }
        };
        let late = |_| Problem::new(Code::Timeout, "nothing came of the body for too long");
        let broken = |_| Problem::malformed("the body ended early or is badly framed");
        match frame.map_err(late)?.transpose().map_err(broken)? {
            None => {
                is_over = true;
                buffer.push(b'\n');
            }
            Some(frame) => {
                let Ok(data) = frame.into_data() else {
                    continue;
                };
                bytes += data.len();
                buffer.extend_from_slice(&data);
            }
        }
        deadline = PROGRESS;
        if bytes > ATOMIC_MAX_BYTES {
            let detail = format!("an atomic batch has at most {ATOMIC_MAX_BYTES} bytes");
            return Err(Problem::new(Code::TooLarge, detail));
        }
        let wanted = (bytes + requests.len() * OPERATION_BYTES).next_multiple_of(STEP);
        let more = wanted.saturating_sub(share.bytes());
        if more > 0 && !share.take(more) {
            return Err(no_memory());
        }
        let mut from = 0;
        while let Some(end) = buffer[from..].iter().position(|&byte| byte == b'\n') {
            let line = buffer[from..from + end].trim_ascii();
            from += end + 1;
            if line.is_empty() {
                continue;
            }
            let item = requests.len();
            if item == ATOMIC_MAX {
                let detail = format!("an atomic batch has at most {ATOMIC_MAX} operations");
                return Err(Problem::new(Code::TooLarge, detail));
            }
            if line.len() > LINE_MAX_BYTES {
                return Err(too_long().of_item(item));
            }
            let read = read(app, line, trace, asks).await;
            let operation = read.map_err(|problem| problem.of_item(item))?;
            let Ask::Once(request) = operation.ask else {
                let detail = "an atomic batch takes no if_match of *: name a revision";
                let problem = Problem::malformed(detail).at("/if_match");
                return Err(problem.of_item(item));
            };
            operations.push(operation.verb);
            admitted.push(operation.admitted);
            requests.push(request);
        }
        buffer.drain(..from);
        if buffer.len() > LINE_MAX_BYTES {
            return Err(too_long().of_item(requests.len()));
        }
    }
    drop(buffer);
    asks.map_or(Ok(()), |asks| asks.still(app))?;
    let wait = quotas::reserve_lines(app, asks, requests.len(), PROGRESS);
    let wait = wait.map_err(|over| *over.problem)?;
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        _ = stopping.wait_for(|&is| is) => {
            let detail = "the service is shutting down";
            return Err(Problem::new(Code::Unavailable, detail));
        }
    }
    let requests = requests
        .into_iter()
        .map(|request| app.noted(request))
        .collect();
    let (send, receive) = oneshot::channel();
    app.timers.submit_batch(requests, move |answer| {
        for (at, admitted) in admitted.into_iter().enumerate() {
            let answer = match &answer {
                Ok(responses) => responses.get(at).map(Ok),
                Err(failure) => Some(Err(&failure.error)),
            };
            if let (Some(admitted), Some(answer)) = (admitted, answer) {
                admitted.answered(answer);
            }
        }
        // A caller that hung up does not hear what was done.
        send.send(answer).unwrap_or_default();
    });
    let late = || TimerError::Unknown("the database has not answered in time".to_owned());
    let answer = app.in_time(receive).await.ok_or_else(late)?;
    let responses =
        answer
            .unwrap_or_else(|_| Err(closed()))
            .map_err(|BatchError { index, error }| {
                let verb = index.and_then(|index| operations.get(index));
                let problem = match verb {
                    Some(Verb::Settle) => leases::lost(error),
                    _ => error.into(),
                };
                match index {
                    Some(index) => problem.of_item(index),
                    None => problem,
                }
            })?;
    let mut text = String::from(r#"{"results":["#);
    for (at, (response, verb)) in responses.into_iter().zip(operations).enumerate() {
        text.push_str(if at == 0 { "{" } else { ",{" });
        Done::of(verb, &response)?.write(&mut text);
        text.push('}');
    }
    text.push_str("]}");
    drop(share);
    let json = HeaderValue::from_static("application/json");
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, json)], text).into_response())
}

fn closed() -> BatchError {
    BatchError {
        index: None,
        error: TimerError::Closed,
    }
}

#[cfg(test)]
mod tests {
    use countwheel_durable::store::MemoryStore;
    use countwheel_durable::{Attempt, Config, Outcome, Timers, inline};
    use countwheel_time::SystemClock;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;

    use super::*;
    use crate::guard::Targets;

    /// A body that comes in pieces.
    struct Pieces(mpsc::Receiver<String>);

    impl HttpBody for Pieces {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
            let polled = self.0.poll_recv(context);
            polled.map(|piece| piece.map(|piece| Ok(Frame::data(piece.into()))))
        }
    }

    fn app(config: Config, body_bytes: usize) -> Arc<App> {
        let handler = inline(|_: &Attempt| Outcome::done());
        let clock = Arc::new(SystemClock::new());
        let timers = Timers::open(MemoryStore::new(7), handler, clock.clone(), config).unwrap();
        let app = App::new(timers, clock, None, false).with_body_bytes(body_bytes);
        Arc::new(app.with_targets(Targets::any()))
    }

    fn set(key: usize) -> String {
        let target = json!({"url": "http://127.0.0.1:9/"});
        let key = key.to_string();
        let line = json!({"op": "set", "queue": "q", "key": key, "in": "1h", "target": target});
        format!("{line}\n")
    }

    /// A batch whose lines are sent by way of what this returns, and its answer.
    async fn ask(app: &Arc<App>, first: String, most: u64) -> (mpsc::Sender<String>, Body) {
        let (send, pieces) = mpsc::channel(1);
        send.send(first).await.unwrap();
        let request = Request::builder()
            .header(header::CONTENT_TYPE, "application/x-ndjson")
            .body(Body::new(Pieces(pieces)))
            .unwrap();
        let response = begin(Arc::clone(app), request, most).await.unwrap();
        (send, response.into_body())
    }

    async fn rest(body: Body) -> Vec<Value> {
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&bytes).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    const MEMORY: usize = 64 << 20;

    #[tokio::test(start_paused = true)]
    async fn a_batch_of_which_nothing_comes_for_half_a_minute_ends_and_says_where() {
        let app = app(Config::default(), MEMORY);
        let (send, body) = ask(&app, set(0) + &set(1) + "{\"op\":", OPERATIONS_MAX).await;
        let lines = rest(body).await;
        let end = json!({"end": false, "reason": "timeout", "operations": 2, "succeeded": 2, "failed": 0});
        assert_eq!((lines.len(), &lines[2]), (3, &end));
        assert!(send.is_closed());
        assert_eq!(app.bodies.taken(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_blank_line_in_time_keeps_a_batch_open() {
        let app = app(Config::default(), MEMORY);
        let (send, body) = ask(&app, set(0), OPERATIONS_MAX).await;
        for _ in 0..10 {
            tokio::time::sleep(PROGRESS * 2 / 3).await;
            send.send("\n".to_owned()).await.unwrap();
        }
        send.send(set(1)).await.unwrap();
        drop(send);
        let lines = rest(body).await;
        assert_eq!(lines[2]["end"], true, "{lines:?}");
        assert_eq!(lines[2]["operations"], 2);
    }

    /// Everything that is counted has its result, and no line is begun whose result would have no room.
    #[tokio::test(start_paused = true)]
    async fn a_caller_that_reads_nothing_is_read_no_further_and_then_cut_off() {
        let app = app(Config::default(), 256 << 10);
        let (send, body) = ask(&app, set(0), OPERATIONS_MAX).await;
        let mut sent = 1;
        while send.send(set(sent)).await.is_ok() {
            sent += 1;
            assert!(app.bodies.taken() <= 256 << 10);
        }
        let lines = rest(body).await;
        let (end, results) = lines.split_last().unwrap();
        assert_eq!(
            (&end["end"], &end["reason"]),
            (&json!(false), &json!("timeout"))
        );
        assert_eq!(end["succeeded"], results.len());
        assert_eq!(end["operations"], results.len());
        assert!(
            results.len() > 1_000 && results.len() <= sent,
            "{}",
            results.len()
        );
        let counts = app.timers.counts().unwrap();
        assert_eq!(counts[0].of(StateKind::Pending), results.len() as u64);
        assert_eq!(app.bodies.taken(), 0);
    }

    #[tokio::test]
    async fn a_batch_ends_behind_the_most_operations_that_it_may_have() {
        let app = app(Config::default(), MEMORY);
        let (send, body) = ask(&app, (0..12).map(set).collect(), 10).await;
        let lines = rest(body).await;
        let end = json!({"end": false, "reason": "too_many", "operations": 10, "succeeded": 10, "failed": 0});
        assert_eq!((lines.len(), &lines[10]), (11, &end));
        assert!(send.is_closed());
        let counts = app.timers.counts().unwrap();
        assert_eq!(counts[0].of(StateKind::Pending), 10);
    }

    #[tokio::test]
    async fn where_too_many_requests_wait_a_batch_waits_too() {
        let config = Config {
            max_waiting: 3,
            ..Config::default()
        };
        let app = app(config, MEMORY);
        let (send, body) = ask(&app, (0..500).map(set).collect(), OPERATIONS_MAX).await;
        drop(send);
        let lines = rest(body).await;
        assert_eq!(lines[500]["succeeded"], 500, "{:?}", lines[500]);
    }

    /// A million refusals would fill the memory with their words.
    #[tokio::test]
    async fn refusals_that_nobody_reads_lose_their_words_and_keep_their_codes() {
        let app = app(Config::default(), MEMORY);
        let line = "{\"op\": \"fire\", \"queue\": \"q\", \"key\": \"none\"}\n";
        let (send, body) = ask(&app, line.repeat(30_000), OPERATIONS_MAX).await;
        // Nothing of the answer is taken before the body has ended.
        drop(send);
        while app.bodies.taken() > 0 {
            tokio::task::yield_now().await;
        }
        let lines = rest(body).await;
        assert_eq!(lines.len(), 30_001);
        let results = &lines[..30_000];
        assert!(
            results
                .iter()
                .all(|it| it["code"] == "not_found" && it["status"] == 404)
        );
        let said = results.iter().filter(|it| it["detail"].is_string()).count();
        assert!((5_000..20_000).contains(&said), "{said}");
    }

    #[tokio::test]
    async fn a_batch_whose_caller_is_gone_goes_no_further() {
        let app = app(Config::default(), MEMORY);
        let (send, body) = ask(&app, set(0), OPERATIONS_MAX).await;
        drop(body);
        send.closed().await;
        assert!(send.is_closed());
    }

    #[tokio::test]
    async fn a_service_that_stops_begins_no_batch_and_ends_those_that_run() {
        let app = app(Config::default(), MEMORY);
        let (send, body) = ask(&app, set(0), OPERATIONS_MAX).await;
        while app.timers.counts().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        app.stop_batches();
        let lines = rest(body).await;
        assert_eq!(lines[1]["reason"], "shutdown", "{lines:?}");
        assert_eq!(lines[1]["operations"], 1);
        drop(send);
        let request = Request::builder()
            .header(header::CONTENT_TYPE, "application/x-ndjson")
            .body(Body::from(set(1)))
            .unwrap();
        let refused = begin(app, request, OPERATIONS_MAX).await.unwrap_err();
        assert_eq!(refused.code(), "unavailable");
    }

    #[test]
    fn a_result_takes_no_more_room_than_is_kept_for_it() {
        let (most, state) = (u64::MAX, StateKind::Dead);
        for done in [
            Done::Set {
                replaced: Some(state),
                store: most,
                set: most,
                revision: most,
                due: most,
            },
            Done::Moved {
                is_accepted: true,
                revision: most,
                old_due: most,
                due: most,
            },
            Done::Settled {
                state,
                due: Some(most),
            },
        ] {
            let bytes = postcard::to_allocvec(&Kept::Done(done)).unwrap();
            assert!(bytes.len() <= RESULT_BYTES, "{done:?}: {}", bytes.len());
        }
    }
}
