//! The schedule of a recurring timer, as JSON.

use std::num::NonZeroU32;
use std::time::Duration;

pub(crate) use countwheel_client::words::{missed as show_missed, recurrence as show};
use countwheel_durable::{
    AttemptResult, CronExpression, DeadReason, Due, Missed, Overlap, Record, Recurrence,
    RecurrenceError, Recurring, Schedule, SetOptions, State, Zone,
};
use serde_json::{Value, json};

use super::described::requests;
use super::json::{self, Field, Kind, Object};
use super::problem::Problem;
use super::retry;
use super::timers::{due_at, due_in, time, unschedulable};
use crate::time::{format_duration, format_time};
use crate::wishes::Adaptive;

/// How many runs to come a timer shows.
const NEXT_RUNS: usize = 20;

const A_SPAN: &str = "a duration is a whole number of milliseconds or a text such as 30m";

/// Reads when a timer is due, for the first time and again, and what becomes of it when it is
/// missed. Nothing if that is not said at all.
pub(crate) fn read(object: &mut Object<'_>) -> Result<Option<(Due, SetOptions)>, Problem> {
    let first = object.at_most_one_of(&["in", "at"])?;
    let kind = object.at_most_one_of(&["every", "every_after", "cron"])?;
    let missed = object.take("missed");
    let missed = missed.as_ref().map(read_missed).transpose()?;
    let missed = missed.unwrap_or_default();
    let Some((kind, field)) = kind else {
        for lonely in ["zone", "repeats", "until", "jitter", "overlap"] {
            if let Some(field) = object.take(lonely) {
                let needs = format!("{lonely} needs one of every, every_after, cron");
                return Err(field.malformed(needs));
            }
        }
        let once = SetOptions {
            missed,
            ..SetOptions::default()
        };
        return match first {
            Some(first) => Ok(Some((read_first(&first)?, once))),
            None => Ok(None),
        };
    };
    let (due, schedule) = match kind {
        "cron" => {
            let zone = object.take("zone");
            let schedule = Schedule::Cron {
                expression: CronExpression::new(field.text()?)
                    .map_err(|error| unschedulable(&field, &error.to_string()))?,
                zone: zone.as_ref().map_or(Ok(Zone::default()), read_zone)?,
            };
            let due = first.as_ref().map(read_first).transpose()?;
            (due.unwrap_or(Due::In(Duration::ZERO)), schedule)
        }
        kind => {
            if let Some(zone) = object.take("zone") {
                return Err(zone.malformed("a zone needs cron"));
            }
            let every = span(&field)?;
            let due = first.as_ref().map(read_first).transpose()?;
            match (kind, due) {
                ("every", Some(Due::At(anchor))) => {
                    let anchor = Some(anchor);
                    // The first point of the grid that has not passed.
                    (
                        Due::In(Duration::ZERO),
                        Schedule::FixedRate { every, anchor },
                    )
                }
                ("every", due) => {
                    let anchor = None;
                    let schedule = Schedule::FixedRate { every, anchor };
                    (due.unwrap_or(Due::In(every)), schedule)
                }
                (_, due) => (
                    due.unwrap_or(Due::In(every)),
                    Schedule::FixedDelay { every },
                ),
            }
        }
    };
    let repeats = object.take("repeats");
    let until = object.take("until");
    let jitter = object.take("jitter");
    let overlap = object.take("overlap");
    let recurrence = Recurrence {
        repeats: repeats.as_ref().map(read_repeats).transpose()?,
        until: until.as_ref().map(time).transpose()?,
        jitter: jitter.as_ref().map_or(Ok(Duration::ZERO), span)?,
        overlap: overlap.as_ref().map_or(Ok(Overlap::Skip), read_overlap)?,
        ..Recurrence::new(schedule)
    };
    recurrence.validate().map_err(|error| {
        let at_fault = match (&error, &jitter) {
            (RecurrenceError::Jitter { .. }, Some(jitter)) => jitter,
            _ => &field,
        };
        unschedulable(at_fault, &error.to_string())
    })?;
    let recurrence = Some(Box::new(recurrence));
    let options = SetOptions {
        missed,
        recurrence,
        ..SetOptions::default()
    };
    Ok(Some((due, options)))
}

fn read_first((kind, field): &(&str, Field<'_>)) -> Result<Due, Problem> {
    if *kind == "in" {
        due_in(field)
    } else {
        due_at(field)
    }
}

fn span(field: &Field<'_>) -> Result<Duration, Problem> {
    retry::duration(field)?.ok_or_else(|| unschedulable(field, A_SPAN))
}

fn read_zone(field: &Field<'_>) -> Result<Zone, Problem> {
    Zone::new(field.text()?).map_err(|error| unschedulable(field, &error.to_string()))
}

fn read_repeats(field: &Field<'_>) -> Result<NonZeroU32, Problem> {
    let repeats = field.whole()?.and_then(|number| u32::try_from(number).ok());
    repeats.and_then(NonZeroU32::new).ok_or_else(|| {
        let most = u32::MAX;
        unschedulable(
            field,
            &format!("repeats is a whole number from 1 to {most}"),
        )
    })
}

pub(super) fn read_overlap(field: &Field<'_>) -> Result<Overlap, Problem> {
    Overlap::from_name(&field.text()?)
        .ok_or_else(|| unschedulable(field, "the overlap is skip or queue"))
}

pub(crate) fn read_missed(field: &Field<'_>) -> Result<Missed, Problem> {
    const THE_FORMS: &str =
        "missed is \"fire\", \"collapse\" or {\"skip_if_older_than\": duration}";
    match field.kind() {
        Kind::Text(text) => match &*text {
            "fire" => Ok(Missed::Fire),
            "collapse" => Ok(Missed::Collapse),
            _ => Err(unschedulable(field, THE_FORMS)),
        },
        Kind::Object => {
            let mut object = field.object_of(&requests::SKIP)?;
            let age = object.require("skip_if_older_than")?;
            object.finish()?;
            let missed = Missed::SkipIfOlderThan(span(&age)?);
            missed
                .validate()
                .map_err(|error| unschedulable(&age, &error.to_string()))?;
            Ok(missed)
        }
        _ => Err(field.malformed(THE_FORMS)),
    }
}

/// Between which delays the receiver of a timer with this recurrence may choose the next run.
pub(crate) fn read_adaptive(
    field: &Field<'_>,
    recurrence: Option<&Recurrence>,
) -> Result<Adaptive, Problem> {
    let has_interval = matches!(
        recurrence.map(|it| &it.schedule),
        Some(Schedule::FixedRate { .. } | Schedule::FixedDelay { .. })
    );
    if !has_interval {
        return Err(field.malformed("adaptive needs one of every, every_after"));
    }
    let mut object = field.object_of(&requests::ADAPTIVE)?;
    let (min, max) = (object.require("min")?, object.require("max")?);
    object.finish()?;
    let interval = |field: &Field<'_>| {
        let found = span(field)?;
        if (Recurrence::EVERY_MIN..=Recurrence::EVERY_MAX).contains(&found) {
            return Ok(found);
        }
        let error = RecurrenceError::Every { found };
        Err(unschedulable(field, &error.to_string()))
    };
    let adaptive = Adaptive {
        min: interval(&min)?,
        max: interval(&max)?,
    };
    if adaptive.min > adaptive.max {
        return Err(unschedulable(&max, "max is not less than min"));
    }
    Ok(adaptive)
}

/// The same for each of them.
pub(crate) fn show_any_missed(missed: Missed) -> Value {
    show_missed(missed).unwrap_or_else(|| json!("fire"))
}

/// What becomes of a missed timer, of what was shown.
pub(crate) fn missed_of(shown: &Value) -> Option<Missed> {
    let text = shown.to_string();
    let parsed = json::parse(text.as_bytes()).ok()?;
    read_missed(&Field::root(parsed)).ok()
}

/// Where a recurring timer stands, with what was set.
/// `overlap` is the rule that holds now.
pub(crate) fn show_position(
    recurring: &Recurring,
    overlap: Option<Overlap>,
    adaptive: Option<Adaptive>,
) -> Value {
    let mut object = show(&recurring.recurrence);
    if let (Some(shown), Some(overlap)) = (object.get_mut("overlap"), overlap) {
        *shown = json!(overlap.as_str());
    }
    if let Some(Adaptive { min, max }) = adaptive {
        let bounds = json!({"min": format_duration(min), "max": format_duration(max)});
        object.insert("adaptive".to_owned(), bounds);
    }
    let next: Vec<_> = recurring
        .upcoming()
        .take(NEXT_RUNS)
        .map(format_time)
        .collect();
    for (name, value) in [
        ("run", json!(recurring.run)),
        ("nominal", json!(format_time(recurring.nominal))),
        ("missed_runs", json!(recurring.missed)),
        ("overlapped_runs", json!(recurring.overlapped)),
        ("dead_runs", json!(recurring.dead)),
        ("next_runs", json!(next)),
    ] {
        object.insert(name.to_owned(), value);
    }
    Value::Object(object)
}

/// To which run each attempt of a record belongs, oldest first. `None` for the attempts of a timer
/// for one time, and for all those before one of which the record does not tell.
///
/// The record has the number of the run that is next, under way or was the last. A delivery ends its
/// run. Whether a failure or an interruption ended its run or was followed by a retry, the record
/// tells for the run that is under way, and for all runs as long as none was given up.
pub(crate) fn runs_of_attempts(record: &Record) -> Vec<Option<u32>> {
    let mut runs = vec![None; record.attempts.len()];
    let Some(recurring) = &record.recurring else {
        return runs;
    };
    // Those of the run under way.
    let (mut failures, mut interruptions) = (record.failures, record.interruptions);
    let mut run = Some(recurring.run);
    // Something of that run, or of one after it, comes behind the attempt.
    let mut is_followed = match record.state {
        State::Pending => true,
        State::Dead { reason, .. } => reason == DeadReason::Missed,
        State::Delivering | State::Done { .. } => false,
    };
    for (attempt, shown) in record.attempts.iter().zip(&mut runs).rev() {
        let result = attempt.ended.as_ref().map(|end| end.result);
        let is_under_way = failures > 0 || interruptions > 0;
        if is_followed {
            run = match result {
                Some(AttemptResult::Done) => run.and_then(|run| run.checked_sub(1)),
                Some(AttemptResult::Failed | AttemptResult::Interrupted)
                    if recurring.dead > 0 && !is_under_way =>
                {
                    None
                }
                // Tried again; or stopped, which ends the timer, and revived.
                _ => run,
            };
        }
        match result {
            Some(AttemptResult::Failed) => failures = failures.saturating_sub(1),
            Some(AttemptResult::Interrupted) => interruptions = interruptions.saturating_sub(1),
            _ => {}
        }
        is_followed = true;
        *shown = run;
    }
    runs
}

#[cfg(test)]
mod tests {
    use countwheel_durable::{
        AttemptEnd, AttemptRecord, DueClock, RetryPolicy, Revision, TimerId, TimerName,
    };
    use countwheel_time::Timestamp;

    use super::super::json;
    use super::*;

    fn read_text(text: &str) -> Result<Option<(Due, SetOptions)>, Problem> {
        let mut object = Field::root(json::parse(text.as_bytes())?).object()?;
        let read = read(&mut object)?;
        object.finish()?;
        Ok(read)
    }

    #[test]
    fn a_recurrence_is_shown_in_the_form_in_which_it_is_set() {
        for text in [
            r#"{"every":"30s","overlap":"skip"}"#,
            r#"{"at":"2026-03-01T12:00:00.000000Z","every":"24h","overlap":"queue"}"#,
            r#"{"every_after":"1m 30s","jitter":"5s","overlap":"skip","repeats":7}"#,
            r#"{"cron":"0 9 * * MON-FRI","overlap":"skip",
                "until":"2027-01-01T00:00:00.000000Z","zone":"Europe/Berlin"}"#,
        ] {
            let (_, options) = read_text(text).unwrap().unwrap();
            let shown = Value::Object(show(&options.recurrence.unwrap()));
            let set: Value = serde_json::from_str(text).unwrap();
            assert_eq!(shown, set);
        }
        for text in [r#""collapse""#, r#"{"skip_if_older_than":"5m"}"#] {
            let (_, options) = read_text(&format!(r#"{{"in":0,"missed":{text}}}"#))
                .unwrap()
                .unwrap();
            let set: Value = serde_json::from_str(text).unwrap();
            assert_eq!(show_missed(options.missed), Some(set));
        }
    }

    #[test]
    fn the_first_run_is_after_one_interval_unless_it_is_said() {
        let due = |text| read_text(text).unwrap().unwrap().0;
        let seconds = |seconds| Due::In(Duration::from_secs(seconds));
        assert_eq!(due(r#"{"every":"30s"}"#), seconds(30));
        assert_eq!(due(r#"{"every_after":"30s"}"#), seconds(30));
        assert_eq!(due(r#"{"every":"30s","in":"5s"}"#), seconds(5));
        assert_eq!(due(r#"{"every_after":"30s","in":0}"#), seconds(0));
        assert_eq!(due(r#"{"cron":"@daily"}"#), seconds(0));
        assert_eq!(due(r#"{"cron":"@daily","in":"1h"}"#), seconds(3_600));
        // A time is a point of the grid.
        let text = r#"{"every":"30s","at":"2026-03-01T12:00:00Z"}"#;
        let (due, options) = read_text(text).unwrap().unwrap();
        let schedule = options.recurrence.unwrap().schedule;
        assert_eq!(due, seconds(0));
        assert!(matches!(
            schedule,
            Schedule::FixedRate {
                anchor: Some(_),
                ..
            }
        ));
        assert!(read_text("{}").unwrap().is_none());
    }

    #[test]
    fn what_is_wrong_is_refused_at_its_field() {
        for (text, pointer) in [
            (r#"{"every":"99ms"}"#, "/every"),
            (r#"{"every":"soon"}"#, "/every"),
            (r#"{"every":-1}"#, "/every"),
            (r#"{"every":true}"#, "/every"),
            (r#"{"every_after":"36526d"}"#, "/every_after"),
            (r#"{"cron":"60 * * * *"}"#, "/cron"),
            (r#"{"cron":"0 0 30 2 *"}"#, "/cron"),
            (r#"{"cron":5}"#, "/cron"),
            (r#"{"cron":"@daily","zone":"Mars/Olympus"}"#, "/zone"),
            (r#"{"every":"1s","zone":"UTC"}"#, "/zone"),
            (r#"{"in":0,"zone":"UTC"}"#, "/zone"),
            (r#"{"in":0,"repeats":1}"#, "/repeats"),
            (r#"{"every":"1s","repeats":0}"#, "/repeats"),
            (r#"{"every":"1s","repeats":4294967296}"#, "/repeats"),
            (r#"{"every":"1s","until":"tomorrow"}"#, "/until"),
            (r#"{"every":"1s","jitter":"2s"}"#, "/jitter"),
            (r#"{"cron":"@daily","jitter":"25h"}"#, "/jitter"),
            (r#"{"every":"1s","overlap":"replace"}"#, "/overlap"),
            (r#"{"every":"1s","missed":"skip"}"#, "/missed"),
            (r#"{"every":"1s","missed":1}"#, "/missed"),
            (
                r#"{"every":"1s","missed":{"skip_if_older_than":"x"}}"#,
                "/missed/skip_if_older_than",
            ),
        ] {
            let problem = read_text(text).expect_err(text);
            let shown = format!("{problem:?}");
            assert!(shown.contains(&format!("{pointer:?}")), "{text}: {shown}");
        }
        for text in [
            r#"{"every":"1s","cron":"@daily"}"#,
            r#"{"in":0,"at":"2026-03-01T12:00:00Z"}"#,
            r#"{"every":"1s","in":0,"at":"2026-03-01T12:00:00Z"}"#,
        ] {
            let shown = format!("{:?}", read_text(text).expect_err(text));
            assert!(shown.contains("one of"), "{text}: {shown}");
        }
    }

    /// A record of run `run` after attempts with these results: `d`one, `f`ailed, `i`nterrupted,
    /// `s`topped, or one that is `u`nder way.
    fn record(state: &State, run: u32, dead: u64, attempts: &str) -> Record {
        let at = Timestamp::from_micros;
        let schedule = Schedule::FixedDelay {
            every: Duration::from_secs(1),
        };
        let attempts = attempts.bytes().zip(1..).map(|(result, number)| {
            let result = match result {
                b'd' => Some(AttemptResult::Done),
                b'f' => Some(AttemptResult::Failed),
                b'i' => Some(AttemptResult::Interrupted),
                b's' => Some(AttemptResult::Stopped),
                _ => None,
            };
            AttemptRecord {
                number,
                due: at(1),
                started: at(1),
                held: Duration::ZERO,
                ended: result.map(|result| AttemptEnd {
                    at: at(2),
                    result,
                    detail: String::new(),
                    answer: None,
                }),
            }
        });
        let attempts: Vec<_> = attempts.collect();
        Record {
            name: TimerName::new("q", "k").unwrap(),
            id: TimerId {
                store: 7,
                set: Revision(1),
            },
            revision: Revision(1),
            state: state.clone(),
            created: at(0),
            due: at(1),
            clock: DueClock::Wall,
            missed: Missed::Fire,
            recurring: Some(Box::new(Recurring {
                recurrence: Recurrence::new(schedule),
                run,
                nominal: at(1),
                moved: None,
                origin: at(1),
                busy_since: None,
                missed: 0,
                overlapped: 0,
                dead,
            })),
            first_due: at(1),
            policy: RetryPolicy::default(),
            failures: 0,
            interruptions: 0,
            attempt: 0,
            attempts,
            payload: Vec::new(),
        }
    }

    #[test]
    fn an_attempt_shows_its_run_as_far_as_the_record_tells() {
        let dead = |reason| State::Dead {
            at: Timestamp::from_micros(3),
            reason,
            keep_until: None,
        };
        let done = State::Done {
            at: Timestamp::from_micros(3),
            keep_until: Timestamp::from_micros(4),
        };
        let (pending, under_way) = (&State::Pending, &State::Delivering);
        let (stopped, missed) = (&dead(DeadReason::Stopped), &dead(DeadReason::Missed));
        let (one, two, three) = (Some(1), Some(2), Some(3));
        for (state, run, given_up, failures, interruptions, attempts, expected) in [
            (pending, 1, 0, 0, 0, "", vec![]),
            (pending, 3, 0, 0, 0, "dd", vec![one, two]),
            (pending, 3, 0, 0, 0, "dfd", vec![one, two, two]),
            (pending, 2, 0, 2, 0, "dff", vec![one, two, two]),
            (under_way, 2, 0, 1, 0, "dfu", vec![one, two, two]),
            (under_way, 2, 0, 0, 1, "diu", vec![one, two, two]),
            (&done, 3, 0, 0, 0, "ddfd", vec![one, two, three, three]),
            (stopped, 2, 0, 0, 0, "ds", vec![one, two]),
            // The run that was missed had no attempt.
            (missed, 3, 0, 0, 0, "dd", vec![one, two]),
            // Revived: the same run.
            (pending, 2, 0, 0, 0, "ds", vec![one, two]),
            (&done, 2, 0, 0, 0, "dsd", vec![one, two, two]),
            // Where each of two failures may have ended a run, none is guessed.
            (pending, 3, 1, 0, 0, "dff", vec![None, None, None]),
            (pending, 4, 1, 0, 0, "ffd", vec![None, None, three]),
            (pending, 3, 1, 1, 0, "dff", vec![None, None, three]),
            (pending, 3, 1, 0, 0, "ii", vec![None, None]),
            (
                under_way,
                3,
                1,
                1,
                0,
                "dffu",
                vec![None, None, three, three],
            ),
            (
                under_way,
                3,
                1,
                1,
                0,
                "fifu",
                vec![None, None, three, three],
            ),
        ] {
            let record = Record {
                failures,
                interruptions,
                ..record(state, run, given_up, attempts)
            };
            let shown = runs_of_attempts(&record);
            assert_eq!(shown, expected, "{attempts} {state:?}");
        }
        let once = Record {
            recurring: None,
            ..record(pending, 1, 0, "f")
        };
        assert_eq!(runs_of_attempts(&once), [None]);
    }
}
