//! The times of the attempts of a retry policy, of a timer in a queue or to an endpoint, or of the runs of a schedule.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use countwheel_durable::{Due, Overlap, QueueName, Recurrence, RetryPolicy, Schedule, SetOptions};
use countwheel_time::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::described::requests;
use super::json::{self, Field};
use super::problem::{Code, Problem};
use super::reach::Reach;
use super::recurrence;
use super::request::{Honoured, Query, json_body, precondition};
use super::retry::{self, Planned, Standing};
use super::{App, answer, timers};
use crate::resources::Resources;
use crate::resources::ceilings::Ceilings;
use crate::resources::endpoint::EndpointName;
use crate::resources::rules::{InForce, Named, Origins};
use crate::time::{LAST_TIME, format_duration, format_time};

#[derive(Serialize)]
struct Answer {
    attempts: Vec<AttemptBody>,
    total_ms: u64,
    truncated: bool,
    then: Option<&'static str>,
}

#[derive(Serialize)]
struct AttemptBody {
    attempt: u32,
    at: String,
    earliest: String,
    delay_ms: u64,
    after_ms: u64,
}

#[derive(Serialize)]
struct Runs {
    runs: Vec<RunBody>,
    truncated: bool,
    then: Option<&'static str>,
}

#[derive(Serialize)]
struct RunBody {
    run: usize,
    at: String,
    latest: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<String>,
}

/// What is to be gone through.
enum Asked {
    Attempts(RetryPolicy),
    Runs(Due, Box<Recurrence>),
    /// The attempts of a timer of a queue, or of one that goes to an endpoint.
    There(Box<There>),
    Known(Box<Ruled>),
}

/// Where a timer would be, and what it says itself.
struct There {
    queue: Option<QueueName>,
    endpoint: Option<EndpointName>,
    due: Due,
    recurrence: Option<Box<Recurrence>>,
    named: Named,
}

/// The same, with the rules that hold there.
struct Ruled {
    due: Due,
    recurrence: Option<Box<Recurrence>>,
    rules: InForce,
}

impl There {
    fn known(self, known: &Resources, ceilings: &Ceilings) -> Result<Ruled, Problem> {
        if let Some(name) = &self.endpoint
            && known.endpoint(name).is_none()
        {
            let detail = format!("there is no endpoint {name}");
            return Err(Problem::new(Code::InvalidTarget, detail).at("/endpoint"));
        }
        let endpoint = self.endpoint.as_ref().map(ToString::to_string);
        let rules = known.would_hold(
            self.queue.as_ref(),
            endpoint.as_deref(),
            self.named,
            ceilings,
        );
        let rules = rules.ok_or_else(|| {
            let detail = "a later version of the program has written the settings of the queue or the endpoint";
            Problem::new(Code::Unreadable, detail)
        })?;
        Ok(Ruled {
            due: self.due,
            recurrence: self.recurrence,
            rules,
        })
    }
}

/// The attempts of a run under the rules that hold, and those rules.
#[derive(Serialize)]
struct Here {
    #[serde(flatten)]
    attempts: Answer,
    retry: Value,
    missed: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap: Option<&'static str>,
    timeout: Option<String>,
    from: Origins,
}

pub(super) async fn simulate(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    Query::of(request.uri(), &[])?;
    precondition(request.headers(), Honoured::Nothing)?;
    let reach = Reach::of(&request);
    let body = json_body(&app, request).await?;
    let (asked, start, limit) = read(&body, &reach)?;
    let asked = match asked {
        Asked::There(there) => {
            // Another node of the cluster may have put what is named a moment ago.
            let known = if app.cluster().is_some() {
                app.look().await?
            } else {
                app.resources().await?
            };
            Asked::Known(Box::new(there.known(&known, app.catalogue().ceilings())?))
        }
        asked => asked,
    };
    let start = start.unwrap_or_else(|| app.clock.timestamp());
    // Ten thousand exponential steps take a while, and so do ten thousand leap days.
    app.read(move |_| Ok(answer(StatusCode::OK, &asked.simulate(start, limit)?)))
        .await
}

/// The answer to the request with this `body`, if it comes `now`: what a simulation needs is in the
/// request, and nothing in a server.
pub(crate) fn answer_to(body: &[u8], now: Timestamp) -> Result<impl Serialize + use<>, Problem> {
    let (asked, start, limit) = read(body, &Reach::Whole)?;
    asked.simulate(start.unwrap_or(now), limit)
}

#[derive(Serialize)]
#[serde(untagged)]
enum Simulated {
    Attempts(Answer),
    Runs(Runs),
    There(Here),
}

impl Asked {
    fn simulate(&self, start: Timestamp, limit: usize) -> Result<Simulated, Problem> {
        Ok(match self {
            Self::Attempts(policy) => Simulated::Attempts(run(policy, start, limit)),
            Self::Runs(due, recurrence) => {
                let from = due.resolve(start)?;
                Simulated::Runs(runs(recurrence, from, limit))
            }
            Self::Known(known) => Simulated::There(known.simulate(start, limit)?),
            Self::There(_) => {
                let detail = "queue and endpoint are known to a server alone";
                return Err(Problem::malformed(detail));
            }
        })
    }
}

fn read(body: &[u8], reach: &Reach) -> Result<(Asked, Option<Timestamp>, usize), Problem> {
    let mut object = Field::root(json::parse(body)?).object_of(&requests::SIMULATE)?;
    let policy = object.take("retry");
    let start = object.take("start");
    let limit = object.take("limit");
    let (queue, endpoint) = (object.take("queue"), object.take("endpoint"));
    let (says_missed, says_overlap) = (object.has("missed"), object.has("overlap"));
    let recurrence = recurrence::read(&mut object)?;
    let one = || {
        object.malformed(
            "exactly one of retry, every, every_after, cron is needed, or a queue or an endpoint",
        )
    };
    let asked = match (&policy, recurrence) {
        (policy, recurrence) if queue.is_some() || endpoint.is_some() => {
            let policy = policy.as_ref().map(retry::read).transpose()?;
            let (due, options) =
                recurrence.unwrap_or((Due::In(Duration::ZERO), SetOptions::default()));
            let overlap = options.recurrence.as_ref().map(|it| it.overlap);
            Asked::There(Box::new(There {
                queue: queue.as_ref().map(|it| reach.queue(it)).transpose()?,
                endpoint: endpoint.as_ref().map(|it| reach.endpoint(it)).transpose()?,
                due,
                named: Named {
                    retry: policy,
                    missed: says_missed.then_some(options.missed),
                    overlap: overlap.filter(|_| says_overlap),
                    recurs: options.recurrence.is_some(),
                },
                recurrence: options.recurrence,
            }))
        }
        (Some(policy), None) => Asked::Attempts(retry::read(policy)?),
        (None, Some((due, options))) => Asked::Runs(due, options.recurrence.ok_or_else(one)?),
        _ => return Err(one()),
    };
    object.finish()?;
    let start = start.as_ref().map(timers::time).transpose()?;
    let limit = match &limit {
        None => 100,
        Some(field) => field
            .whole()?
            .and_then(|limit| usize::try_from(limit).ok())
            .filter(|limit| (1..=10_000).contains(limit))
            .ok_or_else(|| field.malformed("must be a whole number from 1 to 10000"))?,
    };
    Ok((asked, start, limit))
}

impl Ruled {
    fn simulate(&self, start: Timestamp, limit: usize) -> Result<Here, Problem> {
        let mut first = self.due.resolve(start)?;
        if let Some(recurrence) = &self.recurrence {
            let nominal = recurrence.nominal_times(first).next();
            first = nominal.ok_or_else(|| {
                let detail = "the schedule has no run from then on";
                Problem::new(Code::Unschedulable, detail)
            })?;
        }
        let rules = &self.rules;
        Ok(Here {
            attempts: run(&rules.retry, first, limit),
            retry: retry::show(&rules.retry),
            missed: recurrence::show_any_missed(rules.missed),
            overlap: rules.overlap.map(Overlap::as_str),
            timeout: rules.timeout.map(format_duration),
            from: rules.from,
        })
    }
}

/// The runs of a schedule, each on time.
fn runs(recurrence: &Recurrence, from: Timestamp, limit: usize) -> Runs {
    let zone = match &recurrence.schedule {
        Schedule::Cron { zone, .. } => Some(zone),
        _ => None,
    };
    let mut times = recurrence.nominal_times(from).peekable();
    let mut runs = Vec::new();
    while runs.len() < limit
        && let Some(at) = times.next_if(|&at| at <= LAST_TIME)
    {
        runs.push(RunBody {
            run: runs.len() + 1,
            at: format_time(at),
            latest: format_time(at + recurrence.jitter),
            local: zone.map(|zone| zone.show(at)),
        });
    }
    // A schedule that nothing has ended goes on behind the last time that a text can say.
    let is_over = recurrence.until.is_some()
        || (recurrence.repeats).is_some_and(|repeats| runs.len() >= repeats.get() as usize);
    let truncated = times.peek().is_some() || !is_over;
    Runs {
        runs,
        truncated,
        then: (!truncated).then_some("done"),
    }
}

fn run(policy: &RetryPolicy, start: Timestamp, limit: usize) -> Answer {
    let mut plan = Standing::fresh(start).plan(policy).peekable();
    let mut attempts: Vec<Planned> = Vec::new();
    // Cut as well where the calendar of RFC 3339 ends.
    let fits = |planned: &Planned| planned.at <= LAST_TIME;
    while attempts.len() < limit
        && let Some(planned) = plan.next_if(fits)
    {
        attempts.push(planned);
    }
    let truncated = plan.peek().is_some();
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    Answer {
        total_ms: attempts.last().map_or(0, |last| millis(last.after)),
        attempts: attempts
            .into_iter()
            .map(|planned| AttemptBody {
                attempt: planned.attempt,
                at: format_time(planned.at),
                earliest: format_time(planned.earliest),
                delay_ms: millis(planned.delay),
                after_ms: millis(planned.after),
            })
            .collect(),
        truncated,
        then: (!truncated).then_some("dead"),
    }
}
