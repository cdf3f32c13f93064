//! One operation, sent again until its result is known.
//!
//! A killed server leaves the question open whether it took the request. Each kind of operation has
//! its own way to find out, always before it is sent again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use countwheel_durable::{Due, Precondition, Revision, StateKind};
use countwheel_time::{Clock, Instant, SystemClock, Timestamp};
use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::plan::{Action, Operation, OperationKind};
use super::run::Replay;
use crate::client::batch::Pipe;
use crate::client::{Answer, ClientError, NewTimer, Timer, TimerMoved, TimerRemoved, TimerSet};
use crate::time::format_time;
use crate::trace::{LINE_HEADER, RUN_HEADER, TracedTimer};

/// The first pause before an operation is asked again, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// The longest pause that a server can ask for.
const PAUSE_ASKED: Duration = Duration::from_secs(10);

/// What became of one operation. Serialises as one line of the acknowledgement log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Acknowledgement {
    /// The line of the trace.
    pub line: u64,
    /// The timer's queue.
    pub queue: String,
    /// The timer's key.
    pub key: String,
    /// What was asked.
    pub op: OperationKind,
    /// The deadline asked for, in microseconds since 1970; none of a remove, or if the timer
    /// recurs and its first run is not at a time.
    pub at_us: Option<u64>,
    /// When it was planned to be asked.
    pub planned_us: u64,
    /// When it was first asked.
    pub sent_us: u64,
    /// When the answer arrived that settled it.
    pub acked_us: u64,
    /// What became of it.
    pub result: OperationResult,
    /// The timer's id, where the answer names it: of a set, and of what a look found.
    pub id: Option<String>,
    /// The revision that the operation gave it.
    pub revision: Option<u64>,
    /// The deadline that the operation gave it.
    pub due_us: Option<u64>,
    /// What the timer was doing before: of a remove, of a replacing set, of one too late.
    pub was: Option<&'static str>,
    /// How often it was asked.
    pub tries: u32,
    /// How late it was first asked, by the monotonic clock.
    pub lag_us: u64,
    /// The server's reason, if it refused.
    pub detail: Option<String>,
}

/// What became of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationResult {
    /// Answered as asked.
    Ok,
    /// An earlier try without an answer had done it, as a look at the timer showed.
    Found,
    /// A set took the place of a timer that was there, in whatever state.
    Replaced,
    /// A move or remove of a timer that had fired, or was not there.
    TooLate,
    /// A try without an answer may have moved the timer before it fired, or not: the
    /// attempts that the server remembers do not go back far enough to tell.
    Unclear,
    /// The server refused it.
    Refused,
}

/// What all operations of a replay share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) replay: Replay,
    pub(super) clock: SystemClock,
    /// Where operations go first, unless each is to be a request.
    pub(super) pipe: Option<Pipe>,
    /// How often any operation was asked again.
    pub(super) retries: AtomicU64,
}

/// What an answer settled.
struct Settled {
    result: OperationResult,
    id: Option<String>,
    revision: Option<u64>,
    due: Option<Timestamp>,
    was: Option<StateKind>,
    detail: Option<String>,
}

impl Settled {
    fn new(result: OperationResult) -> Self {
        Self {
            result,
            id: None,
            revision: None,
            due: None,
            was: None,
            detail: None,
        }
    }

    /// An earlier try did it; the timer looks like this now.
    fn found(timer: &Timer) -> Self {
        Self {
            id: Some(timer.id.clone()),
            revision: Some(timer.revision),
            due: Some(timer.due),
            ..Self::new(OperationResult::Found)
        }
    }

    fn refused(error: &ClientError) -> Self {
        Self {
            detail: Some(error.to_string()),
            ..Self::new(OperationResult::Refused)
        }
    }

    fn too_late(was: Option<StateKind>) -> Self {
        Self {
            was,
            ..Self::new(OperationResult::TooLate)
        }
    }
}

/// Why an operation is not settled yet.
enum Open {
    /// Ask again after a pause, which the server may have asked for.
    Again(Option<Duration>),
    /// As above, but the last try may have taken effect.
    Unknown,
    /// Ask again at once: more is known now.
    Wiser,
}

/// Sorts a failure: settled as refused, or to be asked again.
fn open(error: &ClientError) -> Result<Settled, Open> {
    if error.is_unknown() {
        return Err(Open::Unknown);
    }
    match error.problem() {
        Some(problem) if problem.status == 429 => Err(Open::Again(problem.retry_after)),
        None if error.is_outage() => Err(Open::Again(None)),
        _ => Ok(Settled::refused(error)),
    }
}

fn status(error: &ClientError) -> u16 {
    error.problem().map_or(0, |problem| problem.status)
}

/// Asks until the result is known, however long that takes.
pub(super) async fn perform(
    shared: Arc<Shared>,
    operation: Operation,
    planned: Instant,
) -> Acknowledgement {
    let sent = shared.clock.timestamp();
    let lag = shared.clock.now().saturating_since(planned);
    let (at, kind) = (operation.action.at(), operation.action.kind());
    let queue = match &operation.queue {
        Some(queue) => queue.as_str(),
        None => &shared.replay.queue,
    };
    let action = match operation.action {
        Action::Set { timer } => Ask::Set(Box::new(shared.replay.timer(*timer, operation.line))),
        Action::Move { at } => Ask::Move(at),
        Action::Remove => Ask::Remove,
    };
    let mut asking = Asking {
        replay: &shared.replay,
        pipe: shared.pipe.as_ref(),
        queue,
        key: operation.key.as_str(),
        line: operation.line.to_string(),
        sent,
        in_doubt: false,
        condition: Precondition::Absent,
    };
    let mut tries = 0;
    let mut pause = PAUSES.0;
    let settled = loop {
        tries += 1;
        let turn = match &action {
            Ask::Set(timer) => asking.set(timer).await,
            Ask::Move(at) => asking.shift(*at).await,
            Ask::Remove => asking.remove().await,
        };
        let asked = match turn {
            Ok(settled) => break settled,
            Err(Open::Unknown) => {
                asking.in_doubt = true;
                None
            }
            Err(Open::Again(asked)) => asked,
            Err(Open::Wiser) => continue,
        };
        shared.retries.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(asked.map_or(pause, |asked| asked.min(PAUSE_ASKED))).await;
        pause = (pause * 2).min(PAUSES.1);
    };
    Acknowledgement {
        line: operation.line,
        queue: queue.to_owned(),
        op: kind,
        at_us: at.map(Timestamp::as_micros),
        planned_us: operation.issue.as_micros(),
        sent_us: sent.as_micros(),
        acked_us: shared.clock.timestamp().as_micros(),
        result: settled.result,
        id: settled.id,
        revision: settled.revision,
        due_us: settled.due.map(Timestamp::as_micros),
        was: settled.was.map(StateKind::as_str),
        tries,
        lag_us: u64::try_from(lag.as_micros()).unwrap_or(u64::MAX),
        detail: settled.detail,
        key: operation.key.as_str().to_owned(),
    }
}

/// What is asked, ready to be sent.
enum Ask {
    Set(Box<NewTimer>),
    Move(Timestamp),
    Remove,
}

impl Replay {
    /// What a line sets, with the headers by which a look at the timer recognises it: unlike the
    /// body, the server shows them.
    fn timer(&self, timer: TracedTimer, line: u64) -> NewTimer {
        let (method, url, headers, timeout) = match timer.target {
            Some(target) => (
                target.method,
                Some(target.url),
                target.headers,
                target.timeout,
            ),
            None => (Method::POST, self.echo.clone(), Vec::new(), None),
        };
        let mut headers: BTreeMap<_, _> = headers.into_iter().collect();
        headers.insert(RUN_HEADER.to_owned(), self.run.clone());
        headers.insert(LINE_HEADER.to_owned(), line.to_string());
        NewTimer {
            due: timer.due,
            options: timer.options,
            // The server refuses a timer without a target, and says so.
            url: self.target.clone().or(url).unwrap_or_default(),
            endpoint: None,
            method,
            headers,
            timeout,
            body: timer.body,
            content_type: timer.content_type,
            retry: Some(timer.retry.unwrap_or_else(|| self.retry.clone())),
            tags: Vec::new(),
        }
    }
}

/// What is known of an operation between its tries.
struct Asking<'a> {
    replay: &'a Replay,
    pipe: Option<&'a Pipe>,
    queue: &'a str,
    key: &'a str,
    /// The number of its line, as the header has it.
    line: String,
    /// When it was asked first.
    sent: Timestamp,
    /// An earlier try may have taken effect.
    in_doubt: bool,
    /// Of a set: what must hold for it not to make a second timer.
    condition: Precondition,
}

impl Asking<'_> {
    /// Sets the timer, or finds that it was set. Two tries never both take effect: a set
    /// names what it expects to find, and a revision comes only once.
    async fn set(&mut self, timer: &NewTimer) -> Result<Settled, Open> {
        if self.in_doubt {
            match self.look().await? {
                Some(found) if self.is_ours(&found) => return Ok(Settled::found(&found)),
                Some(other) => self.replace(&other),
                None => self.condition = Precondition::Absent,
            }
        }
        let client = &self.replay.client;
        let single = || client.set(self.queue, self.key, timer, self.condition);
        let line = || {
            let condition = match self.condition {
                Precondition::None => String::new(),
                Precondition::Absent => r#","if_none_match":"*""#.to_owned(),
                Precondition::Revision(revision) => format!(r#","if_match":{revision}"#),
            };
            let fields = timer.to_json();
            let fields = fields.strip_prefix('{').unwrap_or_default();
            self.line("set", &format!("{condition},{fields}"))
        };
        match self.ask::<TimerSet, _>(line, single).await {
            Ok(set) => Ok(Settled {
                id: Some(set.id),
                revision: Some(set.revision),
                due: Some(set.due),
                was: set.replaced,
                ..Settled::new(match self.condition {
                    Precondition::Absent => OperationResult::Ok,
                    _ => OperationResult::Replaced,
                })
            }),
            // Something has the key. If it is not ours, it is replaced.
            Err(error) if status(&error) == 412 => {
                match self.look().await? {
                    Some(found) if self.is_ours(&found) => return Ok(Settled::found(&found)),
                    Some(other) => self.replace(&other),
                    None => self.condition = Precondition::Absent,
                }
                Err(Open::Wiser)
            }
            Err(error) => open(&error),
        }
    }

    /// Moves the timer, or finds that it was moved, or that it fired before.
    async fn shift(&mut self, at: Timestamp) -> Result<Settled, Open> {
        if self.in_doubt {
            match self.look().await? {
                None => return Ok(Settled::too_late(None)),
                // Asked again it can only come to the same.
                Some(timer) if timer.state == StateKind::Pending && timer.attempt == 0 => {
                    if timer.due == at {
                        return Ok(Settled::found(&timer));
                    }
                }
                // It has fired. The deadline of its first attempt tells whether it had been
                // moved: the scheduled one lies before `at`, and one that had passed when it
                // was asked for became that moment, which lies after. So does that of a late
                // `set`, but before this was sent.
                Some(timer) => {
                    let first = timer.attempts.first().filter(|one| one.number == 1);
                    let result = match first {
                        Some(first) if first.due == at || first.due >= at.max(self.sent) => {
                            return Ok(Settled::found(&timer));
                        }
                        Some(_) if timer.state != StateKind::Pending => OperationResult::TooLate,
                        // It waits for a retry: a move can still reach it.
                        Some(_) => return self.ask_to_shift(at).await,
                        None => OperationResult::Unclear,
                    };
                    return Ok(Settled {
                        was: Some(timer.state),
                        id: Some(timer.id),
                        ..Settled::new(result)
                    });
                }
            }
        }
        self.ask_to_shift(at).await
    }

    async fn ask_to_shift(&self, at: Timestamp) -> Result<Settled, Open> {
        let (client, due) = (&self.replay.client, Due::At(at));
        let single = || client.move_to(self.queue, self.key, due, Precondition::None);
        let line = || self.line("move", &format!(r#","at":"{}"}}"#, format_time(at)));
        match self.ask::<TimerMoved, _>(line, single).await {
            Ok(moved) => Ok(Settled {
                revision: Some(moved.revision),
                due: Some(moved.due),
                ..Settled::new(OperationResult::Ok)
            }),
            Err(error) => too_late(&error),
        }
    }

    /// Removes the timer, or finds that it was removed, or that it fired before.
    async fn remove(&mut self) -> Result<Settled, Open> {
        let client = &self.replay.client;
        let single = || client.remove(self.queue, self.key, false, Precondition::None);
        let line = || self.line("remove", "}");
        match self.ask::<TimerRemoved, _>(line, single).await {
            Ok(removed) => Ok(Settled {
                was: removed.was,
                due: removed.due,
                ..Settled::new(OperationResult::Ok)
            }),
            // Had it fired, it would be done, and known for a day.
            Err(error) if self.in_doubt && status(&error) == 404 => {
                Ok(Settled::new(OperationResult::Found))
            }
            Err(error) => too_late(&error),
        }
    }

    /// The line of an operation, with the rest of its object.
    fn line(&self, op: &str, rest: &str) -> String {
        let text = |text: &str| Value::from(text).to_string();
        let (queue, key) = (text(self.queue), text(self.key));
        format!(r#"{{"op":"{op}","queue":{queue},"key":{key}{rest}"#)
    }

    /// Asks by way of the pipe, or else by a request.
    async fn ask<T, F>(
        &self,
        line: impl Fn() -> String,
        single: impl Fn() -> F,
    ) -> Result<T, ClientError>
    where
        T: DeserializeOwned,
        F: Future<Output = Result<Answer<T>, ClientError>>,
    {
        if let Some(pipe) = self.pipe {
            let line = line();
            if pipe.takes(&line)
                && let Some(value) = pipe.ask(line).await?
            {
                return Ok(value);
            }
        }
        single().await.map(|answer| answer.value)
    }

    async fn look(&self) -> Result<Option<Timer>, Open> {
        match self.replay.client.get(self.queue, self.key).await {
            Ok(answer) => Ok(Some(answer.value)),
            Err(error) if status(&error) == 404 => Ok(None),
            // A look changes nothing, so whatever was in doubt stays so.
            Err(_) if self.in_doubt => Err(Open::Unknown),
            Err(_) => Err(Open::Again(None)),
        }
    }

    fn is_ours(&self, timer: &Timer) -> bool {
        let headers = &timer.target.headers;
        headers.get(RUN_HEADER) == Some(&self.replay.run)
            && headers.get(LINE_HEADER) == Some(&self.line)
    }

    /// Next time takes the place of this timer, and of no other.
    fn replace(&mut self, timer: &Timer) {
        self.condition = Precondition::Revision(Revision(timer.revision));
    }
}

/// Sorts a failed move or remove.
fn too_late(error: &ClientError) -> Result<Settled, Open> {
    match error.problem() {
        Some(problem) if matches!(problem.status, 404 | 409 | 410) => {
            let state = problem
                .state
                .as_deref()
                .and_then(|state| state.parse().ok());
            let done = (problem.status == 410).then_some(StateKind::Done);
            Ok(Settled::too_late(state.or(done)))
        }
        _ => open(error),
    }
}
