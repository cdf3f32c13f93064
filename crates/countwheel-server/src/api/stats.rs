//! Figures of the whole service: how many timers there are, how many are overdue, and how many are due when.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use countwheel_durable::{DueBucket, DueCounts, StateKind};
use countwheel_time::Timestamp;
use serde::Serialize;

use super::described::operations;
use super::problem::Problem;
use super::request::Query;
use super::{App, answer};
use crate::tally::{Asked, DoneSoFar, Tallied};
use crate::time::{format_time, parse_duration, parse_time};

/// How many buckets an answer has at the most.
pub(crate) const BUCKETS_MAX: usize = 4_096;

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// How many timers pend that are due within a span of time.
#[derive(Serialize)]
struct Bucket {
    from: String,
    /// `None`: whenever after its beginning.
    until: Option<String>,
    timers: u64,
}

impl Bucket {
    fn of(bucket: &DueBucket) -> Self {
        Self {
            from: format_time(bucket.from),
            until: end(bucket.until),
            timers: bucket.count,
        }
    }
}

/// How many pend of which the time has come.
#[derive(Serialize)]
struct Overdue {
    until: Option<String>,
    timers: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exact: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest: Option<String>,
}

/// How far the buckets of delays are from where the wall clock shows them now, in microseconds.
#[derive(Serialize)]
struct Drift {
    least: i64,
    most: i64,
}

impl Drift {
    fn of(due: &DueCounts) -> Self {
        let (least, most) = due.drift_micros;
        Self { least, most }
    }
}

fn end(until: Timestamp) -> Option<String> {
    (until < Timestamp::MAX).then(|| format_time(until))
}

/// Said only where it is not so.
fn unless_exact(exact: bool) -> Option<bool> {
    (!exact).then_some(false)
}

/// The figures of all nodes.
async fn tally(app: &App, asked: Asked) -> Result<Tallied, Problem> {
    let tally = Arc::clone(app.tally());
    let here = app.measure(move |_| Ok(tally.here(&asked))).await?;
    Ok(app.tally().all(here, &asked).await)
}

/// The second in which it is now.
fn this_second(app: &App) -> u64 {
    let now = app.clock.timestamp().as_micros();
    now - now % SECOND
}

pub(super) async fn stats(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Timers {
        pending: u64,
        delivering: u64,
        done: u64,
        dead: u64,
        queues: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        exact: Option<bool>,
    }
    #[derive(Serialize)]
    struct Recent {
        from: String,
        until: String,
        #[serde(flatten)]
        did: DoneSoFar,
    }
    #[derive(Serialize)]
    struct Answer {
        as_of: String,
        timers: Timers,
        overdue: Option<Overdue>,
        /// Within the next minute, hour, day and year, and in all.
        due: Vec<Bucket>,
        delays_drift_micros: Drift,
        in_flight: u64,
        leased: u64,
        waiting_for_limits: u64,
        since_start: DoneSoFar,
        recent: Option<Recent>,
        nodes: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        exact: Option<bool>,
    }
    Query::of(&uri, &[])?;
    let past = this_second(&app);
    let (totals, counts_exact) = app
        .measure(|timers| {
            let overview = timers.overview(0).map_err(|error| Problem::from(&error))?;
            Ok((overview.totals, timers.counts_are_exact()))
        })
        .await?;
    let tallied = tally(&app, Asked::all_from(past)).await?;
    let due = tallied.due.unwrap_or_default();
    let body = Answer {
        as_of: format_time(app.clock.timestamp()),
        timers: Timers {
            pending: totals.of(StateKind::Pending),
            delivering: totals.of(StateKind::Delivering),
            done: totals.of(StateKind::Done),
            dead: totals.of(StateKind::Dead),
            queues: totals.queues,
            exact: unless_exact(counts_exact),
        },
        overdue: tallied.overdue.map(|overdue| Overdue {
            until: Some(format_time(overdue.as_of)),
            timers: overdue.count,
            exact: unless_exact(overdue.is_exact),
            oldest: overdue.oldest.map(format_time),
        }),
        due: coming(&due.buckets, past),
        delays_drift_micros: Drift::of(&due),
        in_flight: tallied.in_flight,
        leased: tallied.leased,
        waiting_for_limits: tallied.parked,
        since_start: tallied.since_start,
        recent: tallied.recent.map(|recent| Recent {
            from: format_time(recent.from),
            until: format_time(recent.until),
            did: recent.did,
        }),
        nodes: tallied.nodes,
        exact: unless_exact(tallied.exact && due.exact),
    };
    Ok(answer(StatusCode::OK, &body))
}

/// How many pend that are due under a minute, under an hour, a day, a year, and later, each without those before, and
/// whether these are all. Blocks for nobody, and waits for the other nodes as [`stats`] does.
pub(crate) async fn ahead(app: &App) -> Result<([u64; 5], bool), Problem> {
    let past = this_second(app);
    let tallied = tally(app, Asked::all_from(past)).await?;
    let due = tallied.due.unwrap_or_default();
    let exact = tallied.exact && due.exact;
    Ok((apart(&coming(&due.buckets, past)), exact))
}

/// What each has more than the one before.
fn apart(within: &[Bucket]) -> [u64; 5] {
    let (mut parts, mut before) = ([0; 5], 0);
    for (part, within) in parts.iter_mut().zip(within) {
        *part = within.timers.saturating_sub(before);
        before = within.timers;
    }
    parts
}

/// How many are due within a minute, an hour, a day, a year and in all, from the end of the past on. Each ends where a
/// count does.
fn coming(buckets: &[DueBucket], past: u64) -> Vec<Bucket> {
    let Some((first, rest)) = buckets.split_first() else {
        return Vec::new();
    };
    let ends = [MINUTE, HOUR, DAY, 365 * DAY, u64::MAX];
    let ends = ends.map(|span| Timestamp::from_micros(past.saturating_add(span)));
    let within = ends.map(|end| {
        let within = rest.iter().take_while(|bucket| bucket.from < end);
        let (mut until, mut count) = (end.max(first.until), 0);
        for bucket in within {
            until = until.max(bucket.until);
            count += bucket.count;
        }
        Bucket::of(&DueBucket {
            from: first.until,
            until,
            count,
        })
    });
    within.into()
}

pub(super) async fn due(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer {
        as_of: String,
        overdue: Option<Overdue>,
        buckets: Vec<Bucket>,
        /// Where to go on, if there are more.
        next: Option<String>,
        delays_drift_micros: Drift,
        nodes: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        exact: Option<bool>,
    }
    let query = Query::of(&uri, &operations::DUE_STATS.query_names())?;
    let a_time = "a time in RFC 3339 with an offset, from 1970 to 9999";
    let from = query.read("from", a_time, parse_time)?;
    let to = query.read("to", a_time, parse_time)?;
    let a_step = "a duration of whole seconds, from 1s to 366d";
    let step = query.read("step", a_step, read_step)?;
    let past = this_second(&app);
    let asked = Asked {
        past,
        from: from.map_or(past, Timestamp::as_micros),
        until: to.unwrap_or(Timestamp::MAX).as_micros(),
        step: step.unwrap_or(1),
    };
    if asked.until <= asked.from && to.is_some() {
        let detail = if from.is_some() {
            "the query parameter \"to\" must be later than \"from\""
        } else {
            "the query parameter \"to\" must be later than now"
        };
        return Err(Problem::malformed(detail));
    }
    let tallied = tally(&app, asked).await?;
    let due = tallied.due.unwrap_or_default();
    let mut buckets = due.buckets.iter();
    let overdue = buckets.next().map(|past| Overdue {
        until: end(past.until),
        timers: past.count,
        exact: None,
        oldest: None,
    });
    let shown = buckets.by_ref().take(BUCKETS_MAX).map(Bucket::of).collect();
    let body = Answer {
        as_of: format_time(app.clock.timestamp()),
        overdue,
        buckets: shown,
        next: buckets.next().map(|next| format_time(next.from)),
        delays_drift_micros: Drift::of(&due),
        nodes: tallied.nodes,
        exact: unless_exact(tallied.exact && due.exact),
    };
    Ok(answer(StatusCode::OK, &body))
}

/// A step in microseconds.
fn read_step(text: &str) -> Option<u64> {
    let step = parse_duration(text)?;
    let is_whole = step.subsec_nanos() == 0;
    let is_within = (Duration::from_secs(1)..=Duration::from_secs(366 * 86_400)).contains(&step);
    let micros = u64::try_from(step.as_micros()).ok()?;
    (is_whole && is_within).then_some(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_of_whole_seconds_up_to_a_leap_year() {
        for (text, step) in [
            ("1s", SECOND),
            ("5m", 5 * MINUTE),
            ("1h", HOUR),
            ("366d", 366 * DAY),
        ] {
            assert_eq!(read_step(text), Some(step), "{text}");
        }
        for text in ["", "0s", "500ms", "1500ms", "367d", "-1s", "a second"] {
            assert_eq!(read_step(text), None, "{text}");
        }
    }

    #[test]
    fn the_parts_of_what_comes_add_up_to_all() {
        let within = [2, 2, 5, 6, 9].map(|count| {
            Bucket::of(&DueBucket {
                from: Timestamp::EPOCH,
                until: Timestamp::MAX,
                count,
            })
        });
        assert_eq!(apart(&within), [2, 0, 3, 1, 3]);
        assert_eq!(apart(&[]), [0; 5]);
    }

    #[test]
    fn what_comes_is_counted_up_to_the_end_of_a_bucket() {
        let at = |seconds: u64| Timestamp::from_micros(seconds * SECOND);
        let bucket = |from, until, count| DueBucket {
            from: at(from),
            until: at(until),
            count,
        };
        let buckets = [
            bucket(0, 1_000, 9),
            bucket(1_001, 1_002, 2),
            bucket(1_020, 1_080, 4),
        ];
        let within = coming(&buckets, 1_000 * SECOND);
        let counts: Vec<_> = within.iter().map(|it| it.timers).collect();
        assert_eq!(counts, [6, 6, 6, 6, 6]);
        assert_eq!(within[0].until, Some(format_time(at(1_080))));
        assert_eq!(within[1].until, Some(format_time(at(4_600))));
        assert_eq!(within[4].until, None);
    }
}
