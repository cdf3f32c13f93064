//! The page of one timer: the API's answer about it, for people, without possible secrets.

use std::sync::Arc;

use askama::Template;
use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use countwheel_durable::{AttemptRecord, Record, RetryPolicy, State as TimerState};
use countwheel_time::Timestamp;

use super::dead::revive_link;
use super::login::Viewer;
use super::queue::class;
use super::text::{When, count, queue_link, size, span, words};
use super::{Frame, answer, timer_of};
use crate::answered::{Answered, KeepAnswers};
use crate::api::App;
use crate::api::problem::{Code, Problem};
use crate::api::recurrence;
use crate::api::request::Query;
use crate::api::retry::{self, Standing};
use crate::api::timers::View;
use crate::job::{Job, To};
use crate::resources::rules::{InForce, Origin};
use crate::time::format_duration;

/// How many bytes of a body are shown.
const BODY_SHOWN_BYTES: usize = 1_024;
/// How many characters are shown of the first line of an answer.
const ANSWER_SHOWN: usize = 200;
/// How many attempts or runs to come are shown.
const COMING_SHOWN: usize = 5;
/// Headers whose values are shown: none of them says who somebody is.
const HEADERS_SHOWN: [&str; 6] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "traceparent",
    "user-agent",
];

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Extension(viewer): Extension<Viewer>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    answer(&headers, page(&app, viewer, &uri).await)
}

async fn page(app: &App, viewer: Viewer, uri: &Uri) -> Result<TimerPage, Problem> {
    let query = Query::of(uri, &["queue", "key"])?;
    let name = timer_of(&query)?;
    let now = app.clock.timestamp();
    let frame = Frame::of(app, viewer, now, "", format!("Timer {}", name.key));
    let view = View::of(app).await;
    app.read(move |timers| {
        let record = timers.get(&name).map_err(Problem::from)?;
        let record =
            record.ok_or_else(|| Problem::new(Code::NotFound, "there is no timer of that name"))?;
        Ok(TimerPage::of(frame, &record, now, &view))
    })
    .await
}

#[derive(Template)]
#[template(path = "timer.html")]
struct TimerPage {
    frame: Frame,
    queue: String,
    queue_link: String,
    key: String,
    state: &'static str,
    class: &'static str,
    due: When,
    dead: Option<Dead>,
    facts: Vec<Fact>,
    /// `None` if what is stored is not a request to make.
    target: Option<Target>,
    recurrence: Vec<Fact>,
    coming: Vec<When>,
    coming_is_runs: bool,
    attempts: Vec<Attempt>,
    /// How many attempts before those were made.
    attempts_left_out: String,
}

/// What is said of a dead timer alone.
struct Dead {
    reason: &'static str,
    /// Where a POST revives it.
    revive: String,
}

/// A name and what it is.
pub(super) struct Fact {
    pub(super) name: String,
    pub(super) value: String,
}

struct Target {
    facts: Vec<Fact>,
    headers: Vec<Fact>,
    body: Vec<String>,
    body_note: String,
}

struct Attempt {
    number: String,
    started: When,
    late: String,
    held: String,
    took: String,
    result: &'static str,
    class: &'static str,
    answer: String,
    /// The first line of the answer's body.
    said: String,
    /// How long the phases took.
    phases: String,
}

impl TimerPage {
    fn of(frame: Frame, record: &Record, now: Timestamp, view: &View) -> Self {
        let job = Job::decode(&record.payload).ok();
        let rules = view.rules(record, job.as_ref());
        let fact = |name: &str, value: String| Fact {
            name: name.to_owned(),
            value,
        };
        let moment = |time| {
            let when = When::of(time, now);
            format!("{} UTC, {}", when.people, when.from_now)
        };
        let mut facts = vec![
            fact("created", moment(record.created)),
            fact("id", record.id.to_string()),
            fact("revision", record.revision.to_string()),
            fact("attempts", count(record.attempt.into())),
            fact("failures in a row", count(record.failures.into())),
            fact(
                "retry",
                by_whom(words(&retry::show(&rules.retry)), rules.from.retry),
            ),
        ];
        if let Some(missed) = recurrence::show_missed(rules.missed) {
            facts.push(fact(
                "if missed",
                by_whom(words(&missed), rules.from.missed),
            ));
        }
        let mut dead = None;
        match record.state {
            TimerState::Pending | TimerState::Delivering => {}
            TimerState::Done { at, keep_until } => {
                facts.push(fact("done", moment(at)));
                facts.push(fact("kept until", moment(keep_until)));
            }
            TimerState::Dead {
                at,
                reason,
                keep_until,
            } => {
                facts.push(fact("died", moment(at)));
                facts.extend(keep_until.map(|until| fact("kept until", moment(until))));
                dead = Some(Dead {
                    reason: reason.as_str(),
                    revive: revive_link(&record.name),
                });
            }
        }
        let kept = u64::try_from(record.attempts.len()).unwrap_or(u64::MAX);
        let left_out = u64::from(record.attempt).saturating_sub(kept);
        let recurring = record.recurring.as_deref();
        Self {
            frame,
            queue: record.name.queue.to_string(),
            queue_link: queue_link(&record.name.queue),
            key: record.name.key.to_string(),
            state: record.state.kind().as_str(),
            class: class(record, now),
            due: When::of(record.due, now),
            dead,
            facts,
            target: job.map(|job| Target::of(job, &rules)),
            recurrence: recurring.map_or_else(Vec::new, |recurring| {
                let rule = recurrence::show(&recurring.recurrence);
                let shown = |name: &str, value| match (name, rules.overlap) {
                    ("overlap", Some(now)) => by_whom(now.as_str().to_owned(), rules.from.overlap),
                    _ => words(value),
                };
                let mut facts: Vec<Fact> = rule
                    .iter()
                    .map(|(name, value)| fact(&name.replace('_', " "), shown(name, value)))
                    .collect();
                facts.push(fact("run", count(recurring.run.into())));
                facts.push(fact("missed runs", count(recurring.missed)));
                facts.push(fact("overlapped runs", count(recurring.overlapped)));
                facts.push(fact("dead runs", count(recurring.dead)));
                facts
            }),
            coming: coming(record, &rules.retry, now),
            coming_is_runs: recurring.is_some(),
            attempts: record
                .attempts
                .iter()
                .rev()
                .map(|attempt| Attempt::of(attempt, now, view.keep_answers()))
                .collect(),
            attempts_left_out: if left_out == 0 {
                String::new()
            } else {
                count(left_out)
            },
        }
    }
}

/// A rule, and who says it if the timer does not.
fn by_whom(rule: String, from: Option<Origin>) -> String {
    match from {
        None => rule,
        Some(from) => format!("{rule}, {}", from.words()),
    }
}

/// The runs to come; of a timer for one time, the attempts if each one fails.
fn coming(record: &Record, retry: &RetryPolicy, now: Timestamp) -> Vec<When> {
    if let Some(recurring) = &record.recurring {
        let runs = recurring.upcoming().take(COMING_SHOWN);
        return runs.map(|run| When::of(run, now)).collect();
    }
    if record.state != TimerState::Pending {
        return Vec::new();
    }
    let standing = Standing {
        due: record.due,
        first_due: record.first_due,
        attempts: record.attempt,
        failures: record.failures,
    };
    let plan = standing.plan(retry).take(COMING_SHOWN);
    plan.map(|planned| When::of(planned.at, now)).collect()
}

impl Target {
    fn of(job: Job, rules: &InForce) -> Self {
        let fact = |name: &str, value: String| Fact {
            name: name.to_owned(),
            value,
        };
        let headers = job.headers.into_iter().map(|(name, value)| {
            let value = if HEADERS_SHOWN.contains(&name.as_str()) {
                value
            } else {
                format!("{} bytes, not shown", size(value.len()))
            };
            Fact { name, value }
        });
        let bytes = job.body.len();
        let shown = &job.body[..bytes.min(BODY_SHOWN_BYTES)];
        let text = String::from_utf8_lossy(shown);
        Self {
            facts: vec![
                fact("method", job.method.to_string()),
                match &job.to {
                    To::Url(url) => fact("URL", without_query(url)),
                    To::Endpoint { name, path } => {
                        let name = name.as_deref().unwrap_or("that of the queue");
                        fact("endpoint", without_query(&format!("{name} {path}")))
                    }
                },
                fact(
                    "timeout",
                    rules.timeout.map_or("none".to_owned(), |timeout| {
                        by_whom(format_duration(timeout), rules.from.timeout)
                    }),
                ),
                fact("content type", job.content_type.unwrap_or_default()),
            ],
            headers: headers.collect(),
            body: text.lines().map(str::to_owned).collect(),
            body_note: if bytes > shown.len() {
                format!(
                    "{} bytes, the first {} shown",
                    size(bytes),
                    size(shown.len())
                )
            } else {
                format!("{} bytes", size(bytes))
            },
        }
    }
}

/// The URL with its query left out, in which there may be a secret.
fn without_query(url: &str) -> String {
    match url.split_once('?') {
        None => url.to_owned(),
        Some((before, query)) => {
            format!(
                "{before}? ({} bytes of query, not shown)",
                size(query.len())
            )
        }
    }
}

impl Attempt {
    fn of(attempt: &AttemptRecord, now: Timestamp, keep: KeepAnswers) -> Self {
        let end = attempt.ended.as_ref();
        let kept = end.and_then(|end| end.answer.as_ref());
        let kept = kept.filter(|_| keep != KeepAnswers::Off);
        let result = end.map_or("running", |end| end.result.as_str());
        let answered = kept.and_then(Answered::decode);
        let shown = answered.as_ref().filter(|_| keep == KeepAnswers::On);
        Self {
            number: count(attempt.number.into()),
            started: When::of(attempt.started, now),
            late: attempt.lateness().map_or(String::new(), span),
            held: if attempt.held.is_zero() {
                String::new()
            } else {
                span(attempt.held)
            },
            took: end.map_or(String::new(), |end| {
                span(end.at.saturating_since(attempt.started))
            }),
            result,
            class: match result {
                "done" => "ok",
                "running" => "brass",
                _ => "bad",
            },
            answer: end.map_or(String::new(), |end| end.detail.clone()),
            said: shown.map_or(String::new(), said),
            phases: answered.as_ref().map_or(String::new(), phases),
        }
    }
}

/// The first line of an answer's body; of one that is no text, how long it is.
fn said(answered: &Answered) -> String {
    let text = answered.text().unwrap_or_default();
    match text.lines().find(|line| !line.trim().is_empty()) {
        Some(first) => {
            let shown: String = first.trim().chars().take(ANSWER_SHOWN).collect();
            let is_all = shown.len() == text.trim().len() && !answered.is_truncated();
            format!("{shown}{}", if is_all { "" } else { " …" })
        }
        None if answered.body_bytes == 0 => String::new(),
        None => format!("{} bytes", count(answered.body_bytes)),
    }
}

fn phases(answered: &Answered) -> String {
    let phases = answered.phases();
    let phases = phases.map(|(name, took)| format!("{name} {}", span(took)));
    phases.collect::<Vec<_>>().join(", ")
}
