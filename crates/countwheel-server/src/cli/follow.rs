//! The changes of a timer between two looks at it, as lines of text.

use std::time::Duration;

use countwheel_durable::StateKind;
use countwheel_time::Timestamp;

use super::{Exit, retry, text};
use crate::client::{Timer, TimerAttempt, TimerSet};

/// Remembers what was told of a timer, and tells what is new.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    last: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    id: String,
    revision: u64,
    due: Timestamp,
    state: StateKind,
    /// The last attempt whose start was told, if it deserved that, and whose end was told.
    started: u32,
    ended: u32,
    /// Whether the next start is the first of its deadline, and not a retry.
    armed: bool,
}

impl Follower {
    /// A follower that need not tell of the set itself.
    pub(crate) fn after_set(set: &TimerSet) -> Self {
        Self {
            last: Some(Seen::new(&set.id, set.revision, set.due)),
        }
    }

    /// Whether the timer is known to have been there.
    pub(crate) fn has_seen(&self) -> bool {
        self.last.is_some()
    }

    /// What the state means for one who waits for the end; `None` if it is not the end.
    pub(crate) fn end(timer: &Timer) -> Option<Exit> {
        match timer.state {
            StateKind::Pending | StateKind::Delivering => None,
            StateKind::Done => Some(Exit::Done),
            StateKind::Dead => Some(Exit::Refused),
        }
    }

    /// Tells what is new, oldest first.
    pub(crate) fn see(&mut self, timer: &Timer, now: Timestamp) -> Vec<String> {
        let mut lines = Vec::new();
        let known = self.last.take().filter(|seen| seen.id == timer.id);
        let mut seen = known.unwrap_or_else(|| {
            // The first attempt remembers the deadline that a retry has overwritten.
            let first = timer.attempts.first().filter(|one| one.number == 1);
            let due = first.map_or(timer.due, |one| one.due);
            lines.push(place("set", timer, due, now));
            Seen::new(&timer.id, timer.revision, timer.due)
        });
        let news = lines.len();
        for (i, attempt) in timer.attempts.iter().enumerate() {
            if attempt.number > seen.started {
                seen.started = attempt.number;
                if std::mem::take(&mut seen.armed) {
                    lines.push(fired(timer, attempt));
                }
            }
            if attempt.number > seen.ended && attempt.ended.is_some() {
                seen.ended = attempt.number;
                let name = format!("attempt {}", attempt.number);
                let (late, follows) = (lateness(attempt), follows(timer, i));
                let words = format!("{:<14}  {late:<13}  {follows}", outcome(attempt));
                lines.push(line(&name, words.trim_end()));
            }
        }
        // A retry moves the deadline too, but then an attempt has ended.
        if lines.len() == news
            && timer.state == StateKind::Pending
            && timer.revision != seen.revision
        {
            let word = if seen.state == StateKind::Dead {
                "revived"
            } else {
                "moved"
            };
            if timer.due != seen.due || seen.state == StateKind::Dead {
                lines.push(place(word, timer, timer.due, now));
            }
            seen.armed = true;
        }
        if timer.attempts.is_empty() && Self::end(timer).is_some() && seen.state != timer.state {
            lines.push(line(timer.state.as_str(), &timer.key));
        }
        seen.revision = timer.revision;
        seen.due = timer.due;
        seen.state = timer.state;
        self.last = Some(seen);
        lines
    }
}

impl Seen {
    fn new(id: &str, revision: u64, due: Timestamp) -> Self {
        Self {
            id: id.to_owned(),
            revision,
            due,
            state: StateKind::Pending,
            started: 0,
            ended: 0,
            armed: true,
        }
    }
}

/// A line of two columns.
pub(crate) fn line(name: &str, words: &str) -> String {
    format!("{name:<9}  {words}")
}

/// How late an attempt was: `late 0.3 ms`.
pub(crate) fn lateness(attempt: &TimerAttempt) -> String {
    let Some(late) = attempt.late_us else {
        return String::new();
    };
    let span = |micros| text::span(Duration::from_micros(micros));
    let late = format!("late {}", span(late));
    match attempt.held_us {
        0 => late,
        held => format!("{late}, held {}", span(held)),
    }
}

/// How an attempt went: `503 in 1.1 ms`.
pub(crate) fn outcome(attempt: &TimerAttempt) -> String {
    let Some(ended) = attempt.ended else {
        return "is running".to_owned();
    };
    let result = attempt.result.as_deref().unwrap_or("ended");
    if result == "interrupted" {
        return "interrupted by the server's end".to_owned();
    }
    let detail = attempt.detail.as_deref().filter(|text| !text.is_empty());
    let took = text::span(ended.saturating_since(attempt.started));
    format!("{} in {took}", detail.unwrap_or(result))
}

fn place(word: &str, timer: &Timer, due: Timestamp, now: Timestamp) -> String {
    let due = text::clock(due, now);
    let words = format!("{}  due {due}  rev {}", timer.key, timer.revision);
    line(word, &words)
}

fn fired(timer: &Timer, attempt: &TimerAttempt) -> String {
    let since_set = text::stopwatch(attempt.started.saturating_since(timer.created));
    line("fired", &since_set)
}

/// What comes after the attempt at this place in the list.
fn follows(timer: &Timer, place: usize) -> String {
    let attempt = &timer.attempts[place];
    let later = &timer.attempts[place + 1..];
    let next = match (later.first(), timer.state) {
        (Some(next), _) => next.due,
        (None, StateKind::Done) => return "done".to_owned(),
        (None, StateKind::Dead) => {
            let reason = timer.dead_reason.as_deref().unwrap_or("given up");
            return format!("dead ({reason})");
        }
        (None, _) if attempt.number < timer.attempt => return String::new(),
        (None, _) => timer.due,
    };
    let ended = attempt.ended.unwrap_or(attempt.started);
    let wait = text::span(next.saturating_since(ended));
    let failed = |one: &&TimerAttempt| one.result.as_deref() == Some("failed");
    let failed_later = u32::try_from(later.iter().filter(failed).count()).unwrap_or(u32::MAX);
    // A revival begins to count anew: of what came before it, the place is not known.
    match timer.failures.checked_sub(failed_later) {
        Some(failures @ 1..) if failed(&attempt) => {
            let progress = retry::progress(&timer.retry, failures);
            format!("next in {wait} ({progress})")
        }
        _ => format!("next in {wait}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::time::parse_time;

    /// Seconds after noon, as the API writes them.
    fn at(seconds: f64) -> String {
        format!("2026-03-01T12:00:{seconds:09.6}Z")
    }

    fn attempt(number: u32, due: f64, code: Option<&str>) -> Value {
        let mut attempt = json!({
            "number": number, "due": at(due), "started": at(due + 0.0003), "held_us": 0
        });
        if let Some(code) = code {
            attempt["late_us"] = 300.into();
            attempt["ended"] = at(due + 0.0014).into();
            attempt["detail"] = code.into();
            attempt["result"] = if code == "200" { "done" } else { "failed" }.into();
        }
        attempt
    }

    fn timer(state: &str, revision: u64, due: f64, attempts: &[Value]) -> Timer {
        let failed = |one: &&Value| one["result"] == "failed";
        serde_json::from_value(json!({
            "queue": "default", "key": "order-42", "id": "tmr-1-1", "revision": revision,
            "state": state, "created": at(0.0), "due": at(due),
            "target": {"url": "http://x/"}, "retry": {"preset": "wechat"},
            "failures": attempts.iter().filter(failed).count(),
            "attempt": attempts.last().map_or(json!(0), |one| one["number"].clone()),
            "attempts": attempts,
        }))
        .unwrap()
    }

    fn see(looks: &[Timer]) -> Vec<String> {
        let now = parse_time("2026-03-01T12:00:00Z").unwrap();
        let mut follower = Follower::default();
        looks
            .iter()
            .flat_map(|timer| follower.see(timer, now))
            .collect()
    }

    #[test]
    fn every_event_of_a_life_is_one_line() {
        let (first, second) = (attempt(1, 5.0, Some("503")), attempt(2, 20.0, Some("503")));
        let lines = see(&[
            timer("pending", 1, 5.0, &[]),
            timer("pending", 1, 5.0, &[]),
            timer("delivering", 1, 5.0, &[attempt(1, 5.0, None)]),
            timer("pending", 2, 20.0014, std::slice::from_ref(&first)),
            timer("pending", 3, 35.0014, &[first.clone(), second.clone()]),
            timer(
                "done",
                4,
                35.0,
                &[first, second, attempt(3, 35.0, Some("200"))],
            ),
        ]);
        assert_eq!(
            lines,
            [
                "set        order-42  due 12:00:05.000000  rev 1",
                "fired      +5.000 s",
                "attempt 1  503 in 1.1 ms   late 0.3 ms    next in 15 s (wechat 1/15)",
                "attempt 2  503 in 1.1 ms   late 0.3 ms    next in 15 s (wechat 2/15)",
                "attempt 3  200 in 1.1 ms   late 0.3 ms    done",
            ]
        );
    }

    #[test]
    fn a_late_look_tells_the_same_story() {
        let attempts = [
            attempt(1, 5.0, Some("503")),
            attempt(2, 20.0, Some("503")),
            attempt(3, 35.0, Some("200")),
        ];
        assert_eq!(
            see(&[timer("done", 4, 35.0, &attempts)]),
            [
                "set        order-42  due 12:00:05.000000  rev 4",
                "fired      +5.000 s",
                "attempt 1  503 in 1.1 ms   late 0.3 ms    next in 15 s (wechat 1/15)",
                "attempt 2  503 in 1.1 ms   late 0.3 ms    next in 15 s (wechat 2/15)",
                "attempt 3  200 in 1.1 ms   late 0.3 ms    done",
            ]
        );
    }

    #[test]
    fn a_move_and_a_revival_are_told_apart() {
        let mut dead = timer("dead", 3, 9.0, &[attempt(1, 9.0, Some("410"))]);
        dead.dead_reason = Some("stopped".to_owned());
        let lines = see(&[
            timer("pending", 1, 5.0, &[]),
            timer("pending", 2, 9.0, &[]),
            dead,
            timer("pending", 4, 30.0, &[attempt(1, 9.0, Some("410"))]),
        ]);
        assert_eq!(
            lines,
            [
                "set        order-42  due 12:00:05.000000  rev 1",
                "moved      order-42  due 12:00:09.000000  rev 2",
                "fired      +9.000 s",
                "attempt 1  410 in 1.1 ms   late 0.3 ms    dead (stopped)",
                "revived    order-42  due 12:00:30.000000  rev 4",
            ]
        );
    }

    #[test]
    fn another_set_of_the_key_begins_anew() {
        let mut other = timer("pending", 7, 30.0, &[]);
        other.id = "tmr-1-7".to_owned();
        let lines = see(&[timer("pending", 1, 5.0, &[]), other]);
        assert_eq!(lines[1], "set        order-42  due 12:00:30.000000  rev 7");
    }

    #[test]
    fn after_a_set_only_what_follows_is_told() {
        let set = TimerSet {
            key: "order-42".to_owned(),
            id: "tmr-1-1".to_owned(),
            revision: 1,
            due: parse_time(&at(5.0)).unwrap(),
            replaced: None,
        };
        let mut follower = Follower::after_set(&set);
        let now = set.due;
        assert!(follower.see(&timer("pending", 1, 5.0, &[]), now).is_empty());
        let running = timer("delivering", 1, 5.0, &[attempt(1, 5.0, None)]);
        assert_eq!(follower.see(&running, now), ["fired      +5.000 s"]);
    }
}
