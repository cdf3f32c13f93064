//! The runs of a recurring timer: those to come, and runs that are made for nominal times in the past.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use countwheel_durable::{
    self as durable, Due, Key, Missed, Precondition, Receipt, Record, Recurring, Schedule,
    SetOptions, State as Standing, TimerError, TimerName, Zone,
};
use countwheel_time::Timestamp;
use serde::Serialize;

use super::described::{operations, requests};
use super::idempotency;
use super::json::{self, Field};
use super::problem::{Code, Problem};
use super::request::{Held, Honoured, Query, precondition, timer_of};
use super::timers::{self, check_sendable, unschedulable};
use super::{App, answer};
use crate::deliver::carries_body;
use crate::job::{Inherits, Job};
use crate::quotas;
use crate::quotas::weight::bytes_of;
use crate::time::{LAST_TIME, format_time, parse_time};
use crate::traced::TraceContext;

/// How many runs one backfill makes, and how many one page of runs has.
pub(crate) const RUNS_MAX: usize = 1_000;
/// How many runs a page has unless it says so.
const RUNS_DEFAULT: usize = 100;
/// How many runs are passed over one by one to where a page begins.
pub(crate) const PASSED_MAX: usize = 100_000;
/// How many runs are set at a time, and how many bytes of payload they have.
const TOGETHER: usize = 64;
const TOGETHER_BYTES: usize = 4 << 20;
/// For how long it is known that a run was made.
pub(crate) const KNOWN_FOR: Duration = Duration::from_secs(365 * 86_400);
/// How often a run is set that another backfill is setting.
const TRIES: usize = 8;

const NO_TIMER: &str = "there is no timer of that name";

fn recurring_of(record: &Record) -> Result<&Recurring, Problem> {
    record.recurring.as_deref().ok_or_else(|| {
        let detail = "the timer does not recur: it has no runs";
        Problem::new(Code::Conflict, detail).in_state(record.state.kind())
    })
}

fn zone_of(recurring: &Recurring) -> Option<&Zone> {
    match &recurring.recurrence.schedule {
        Schedule::Cron { zone, .. } => Some(zone),
        _ => None,
    }
}

async fn stored(app: &App, name: &TimerName) -> Result<Record, Problem> {
    let read = name.clone();
    let record = app.read(move |timers| timers.get(&read).map_err(Problem::from));
    let record = record.await?;
    record.ok_or_else(|| Problem::new(Code::NotFound, NO_TIMER))
}

#[derive(Serialize)]
struct Runs {
    runs: Vec<RunBody>,
    /// The `after` of the next page, if there is one.
    next: Option<String>,
}

#[derive(Serialize)]
struct RunBody {
    nominal: String,
    due: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<String>,
}

/// The runs to come, if each is made on time and takes no time.
pub(super) async fn runs(
    State(app): State<Arc<App>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let name = timer_of(&uri)?;
    let query = Query::of(&uri, &operations::RUNS.query_names())?;
    precondition(&headers, Honoured::Nothing)?;
    let limit = query.read("limit", "a number from 1 to 1000", |text| {
        text.parse()
            .ok()
            .filter(|limit| (1..=RUNS_MAX).contains(limit))
    })?;
    let a_time = "a time in RFC 3339 with an offset, from 1970 to 9999";
    let after = query.read("after", a_time, parse_time)?;
    let record = stored(&app, &name).await?;
    let page = move |_: &durable::Timers| page(&record, after, limit.unwrap_or(RUNS_DEFAULT));
    // A calendar may be asked for many times.
    let page = app.read(page).await?;
    Ok(answer(StatusCode::OK, &page))
}

fn page(record: &Record, after: Option<Timestamp>, limit: usize) -> Result<Runs, Problem> {
    let recurring = recurring_of(record)?;
    let zone = zone_of(recurring);
    let shown = |nominal, due| RunBody {
        nominal: format_time(nominal),
        due: format_time(due),
        local: zone.map(|zone| zone.show(nominal)),
    };
    let mut runs = Vec::new();
    let mut next = None;
    let waits = record.state == Standing::Pending;
    let comes = waits && record.failures == 0 && record.interruptions == 0;
    if comes && after.is_none_or(|after| recurring.nominal > after) {
        runs.push(shown(recurring.nominal, record.due));
    }
    if waits || record.state == Standing::Delivering {
        let from = after.unwrap_or(Timestamp::EPOCH);
        let is_far = recurring.recurrence.repeats.is_some()
            || matches!(recurring.recurrence.schedule, Schedule::FixedDelay { .. });
        if is_far
            && recurring
                .upcoming()
                .nth(PASSED_MAX)
                .is_some_and(|it| it <= from)
        {
            let detail = format!("the page begins more than {PASSED_MAX} runs from now");
            return Err(Problem::new(Code::Unschedulable, detail));
        }
        let mut last = runs.last().map(|_| recurring.nominal);
        for nominal in recurring.upcoming_after(from) {
            let due = recurring.due_of(nominal, record.id);
            if due > LAST_TIME {
                break;
            }
            if runs.len() == limit {
                next = last;
                break;
            }
            runs.push(shown(nominal, due));
            last = Some(nominal);
        }
    }
    let next = next.map(format_time);
    Ok(Runs { runs, next })
}

/// What a backfill asks for.
struct Asked {
    from: Timestamp,
    until: Timestamp,
    limit: Option<usize>,
    is_dry: bool,
}

impl Asked {
    fn read(body: &[u8], now: Timestamp) -> Result<Self, Problem> {
        let mut object = Field::root(json::parse(body)?).object_of(&requests::BACKFILL)?;
        let (from, until) = (object.require("from")?, object.require("until")?);
        let (limit, is_dry) = (object.take("limit"), object.take("dry_run"));
        object.finish()?;
        let (begin, end) = (timers::time(&from)?, timers::time(&until)?);
        if end < begin {
            return Err(unschedulable(&until, "until is not before from"));
        }
        if end > now {
            let detail = "a backfill makes runs of the past: until is not in the future";
            return Err(unschedulable(&until, detail));
        }
        let limit = limit.as_ref().map(|field| {
            let limit = field.whole()?.and_then(|limit| usize::try_from(limit).ok());
            limit
                .filter(|limit| (1..=RUNS_MAX).contains(limit))
                .ok_or_else(|| field.malformed("must be a whole number from 1 to 1000"))
        });
        let is_dry = is_dry.as_ref().map(Field::truth);
        Ok(Self {
            from: begin,
            until: end,
            limit: limit.transpose()?,
            is_dry: is_dry.transpose()?.unwrap_or_default(),
        })
    }

    /// The nominal times, and the one to go on from if there are more.
    fn nominal_times(
        &self,
        recurring: &Recurring,
    ) -> Result<(Vec<Timestamp>, Option<Timestamp>), Problem> {
        if let Schedule::FixedDelay { .. } = recurring.recurrence.schedule {
            let detail = "a timer with every_after has no nominal times in the past: each run is reckoned \
                          from the end of the one before";
            return Err(Problem::new(Code::Unschedulable, detail));
        }
        let mut times = recurring.nominal_times(self.from);
        let mut found = Vec::new();
        let next = loop {
            let Some(nominal) = times.next().filter(|&nominal| nominal <= self.until) else {
                break None;
            };
            if found.len() == self.limit.unwrap_or(RUNS_MAX) {
                break Some(nominal);
            }
            found.push(nominal);
        };
        if next.is_some() && self.limit.is_none() {
            let detail = format!(
                "there are more than {RUNS_MAX} runs in this time: make it shorter, or give a limit and go on \
                 from next"
            );
            return Err(Problem::new(Code::Unschedulable, detail));
        }
        Ok((found, next))
    }
}

#[derive(Serialize)]
struct Answer {
    dry_run: bool,
    made: usize,
    existing: usize,
    runs: Vec<MadeBody>,
    /// From where to go on, if the limit has cut off what follows.
    next: Option<String>,
}

#[derive(Serialize)]
struct MadeBody {
    key: String,
    nominal: String,
    result: Became,
}

/// What became of a run.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Became {
    /// It was made now.
    Made,
    /// It was made before, or a timer has its key.
    Exists,
    /// It would be made now.
    New,
}

/// A run that is to be made.
struct Run {
    name: TimerName,
    nominal: Timestamp,
    receipt: Receipt,
}

/// Makes runs of a recurring timer for nominal times in the past, each as a timer of its own that is due now.
pub(super) async fn backfill(
    app: &App,
    name: TimerName,
    trace: Option<TraceContext>,
    body: Option<Held>,
) -> Result<Response, Problem> {
    let body = body.ok_or_else(|| Problem::malformed("a backfill says from when until when"))?;
    let asked = Asked::read(&body, app.clock.timestamp())?;
    let record = stored(app, &name).await?;
    recurring_of(&record)?;
    let unreadable = || {
        let detail = "what is stored of the timer is not a request to make: set it";
        Problem::new(Code::Conflict, detail).in_state(record.state.kind())
    };
    let mut job = Job::decode(&record.payload).map_err(|_| unreadable())?;
    if job.content_type.is_some() && !carries_body(&job.method) {
        return Err(unreadable());
    }
    check_sendable(app, &name, &job).await?;
    let times = record.clone();
    let (times, next, asked) = app
        .read(move |_| {
            let (times, next) = asked.nominal_times(recurring_of(&times)?)?;
            Ok((times, next, asked))
        })
        .await?;
    let mut runs = Vec::with_capacity(times.len());
    for nominal in times {
        runs.push(Run {
            name: TimerName {
                queue: name.queue.clone(),
                key: key_of(&name.key, nominal)?,
            },
            nominal,
            receipt: idempotency::receipt_of_run(app, &name, nominal).await?,
        });
    }
    let results = if asked.is_dry {
        look(app, &runs).await?
    } else {
        job.extras.trace = trace;
        job.extras.spread = None;
        job.extras.adaptive = None;
        // A run that somebody asks for is dropped by no rule of the queue.
        job.extras.inherits = Inherits {
            missed: false,
            overlap: false,
            ..job.extras.inherits
        };
        make(app, &runs, &record, job).await?
    };
    let count = |result| results.iter().filter(|&&it| it == result).count();
    let body = Answer {
        dry_run: asked.is_dry,
        made: count(Became::Made),
        existing: count(Became::Exists),
        next: next.map(format_time),
        runs: runs
            .iter()
            .zip(&results)
            .map(|(run, &result)| MadeBody {
                key: run.name.key.as_str().to_owned(),
                nominal: format_time(run.nominal),
                result,
            })
            .collect(),
    };
    Ok(answer(StatusCode::OK, &body))
}

/// The key of the run of a timer for a nominal time.
fn key_of(key: &Key, nominal: Timestamp) -> Result<Key, Problem> {
    let text = format!("{}@{}", key.as_str(), format_time(nominal));
    Key::new(text).map_err(|error| {
        let detail =
            format!("the key of a run is that of the timer, @ and the nominal time: {error}");
        Problem::new(Code::InvalidKey, detail)
    })
}

/// Of which timer a run with this key was made.
pub(crate) fn timer_of_run(key: &str, nominal: Timestamp) -> &str {
    let end = format!("@{}", format_time(nominal));
    key.strip_suffix(&*end).unwrap_or(key)
}

/// Which of the runs would be made.
async fn look(app: &App, runs: &[Run]) -> Result<Vec<Became>, Problem> {
    let wanted = runs.iter().map(|run| (run.name.clone(), run.receipt));
    let wanted: Vec<_> = wanted.collect();
    app.read(move |timers| {
        wanted
            .iter()
            .map(|(name, receipt)| {
                let is_known = match timers.replayed(name, receipt) {
                    Err(TimerError::ReceiptMismatch) => true,
                    replayed => replayed?.is_some(),
                };
                let exists = is_known || timers.get(name)?.is_some();
                Ok(if exists { Became::Exists } else { Became::New })
            })
            .collect()
    })
    .await
}

/// Sets the runs, a few at a time. What fails leaves those before as they are: the same backfill goes on from there.
async fn make(app: &App, runs: &[Run], record: &Record, job: Job) -> Result<Vec<Became>, Problem> {
    let bytes = record.payload.len().max(1);
    let together = (TOGETHER_BYTES / bytes).clamp(1, TOGETHER);
    let mut job = job;
    let mut results = Vec::with_capacity(runs.len());
    for runs in runs.chunks(together) {
        let mut waiting = Vec::with_capacity(runs.len());
        let mut full = None;
        for run in runs {
            job.extras.backfill = Some(run.nominal);
            let payload = job.encode();
            let bytes = bytes_of(&run.name.key, &payload);
            let admitted = match quotas::admit(app, &run.name, bytes).await {
                Ok(admitted) => admitted,
                Err(problem) => {
                    full = Some(problem);
                    break;
                }
            };
            let set = set(run, record, payload);
            waiting.push((run, app.ask::<durable::Set>(set), admitted));
        }
        for (run, answer, admitted) in waiting {
            let mut answer = answer.await;
            for _ in 0..TRIES {
                if !matches!(answer, Err(TimerError::ReceiptPending)) {
                    break;
                }
                // Another backfill sets it in the same commit, which may fail.
                job.extras.backfill = Some(run.nominal);
                answer = app.ask(set(run, record, job.encode())).await;
            }
            admitted.into_iter().for_each(|it| it.end(answer.as_ref()));
            results.push(match answer {
                Ok(set) if !set.replayed => Became::Made,
                Ok(_) | Err(TimerError::Exists { .. } | TimerError::ReceiptMismatch) => {
                    Became::Exists
                }
                Err(error) => return Err(error.into()),
            });
        }
        full.map_or(Ok(()), Err)?;
    }
    Ok(results)
}

fn set(run: &Run, record: &Record, payload: Vec<u8>) -> durable::Request {
    durable::Request::Set {
        name: run.name.clone(),
        due: Due::In(Duration::ZERO),
        policy: record.policy.clone(),
        payload,
        precondition: Precondition::Absent,
        options: SetOptions {
            missed: Missed::Fire,
            receipt: Some(Box::new(run.receipt)),
            ..SetOptions::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_run_says_of_which_timer_it_is() {
        let nominal = Timestamp::from_micros(1_772_366_400_000_000);
        for key in ["report", "a@b", "{one}/x", "a@2026-03-01T12:00:00.000000Z"] {
            let run = key_of(&Key::new(key).unwrap(), nominal).unwrap();
            assert_eq!(run.as_str(), format!("{key}@2026-03-01T12:00:00.000000Z"));
            assert_eq!(timer_of_run(run.as_str(), nominal), key);
        }
        let long = Key::new("x".repeat(250)).unwrap();
        assert_eq!(key_of(&long, nominal).unwrap_err().code(), "invalid_key");
    }
}
