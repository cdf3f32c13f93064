//! Figures, times and foreign text as the pages write them.

use std::fmt::{self, Write};
use std::time::Duration;

use askama::filters::Escaper;
use countwheel_durable::{QueueName, TimerName};
use countwheel_time::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::shown;
use crate::time::format_time;

/// Makes what a template shows mean nothing in HTML, and all of it seen. Every expression of every
/// template goes through it: see `askama.toml`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown;

impl Escaper for Shown {
    fn write_escaped_str<W: Write>(&self, mut out: W, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => out.write_str("&amp;")?,
                '<' => out.write_str("&lt;")?,
                '>' => out.write_str("&gt;")?,
                '"' => out.write_str("&quot;")?,
                '\'' => out.write_str("&#39;")?,
                other => shown::put(&mut out, other)?,
            }
        }
        Ok(())
    }
}

/// A number in groups of three digits: `93,104`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number that something has in memory.
pub(super) fn size(number: usize) -> String {
    count(u64::try_from(number).unwrap_or(u64::MAX))
}

/// A number that may be too high.
pub(super) fn at_most(number: u64, is_exact: bool) -> String {
    if is_exact {
        count(number)
    } else {
        format!("at most {}", count(number))
    }
}

/// A span of time in two units at most: below a minute rounded up, so that "at most" is true of it, and
/// cut from there on: `3.1 ms`, `4 min 10 s`, `2 d 4 h`.
pub(super) fn span(span: Duration) -> String {
    let micros = span.as_micros();
    let tenths = |unit: u128, name: &str| {
        let tenths = if micros < 10 * unit {
            (micros * 10).div_ceil(unit)
        } else {
            10 * micros.div_ceil(unit)
        };
        let (whole, tenth) = (tenths / 10, tenths % 10);
        if tenth == 0 {
            format!("{whole} {name}")
        } else {
            format!("{whole}.{tenth} {name}")
        }
    };
    let seconds = span.as_secs();
    let two = |(large, name): (u64, &str), (small, small_name): (u64, &str)| {
        let large = count(large);
        if small == 0 {
            format!("{large} {name}")
        } else {
            format!("{large} {name} {small} {small_name}")
        }
    };
    match seconds {
        0 if micros == 0 => "0 s".to_owned(),
        0 if micros < 1_000 => format!("{micros} µs"),
        0 => tenths(1_000, "ms"),
        1..60 => tenths(1_000_000, "s"),
        60..3_600 => two((seconds / 60, "min"), (seconds % 60, "s")),
        3_600..86_400 => two((seconds / 3_600, "h"), (seconds / 60 % 60, "min")),
        _ => two((seconds / 86_400, "d"), (seconds / 3_600 % 24, "h")),
    }
}

/// A moment: for machines, for people, and how far it is from now.
pub(super) struct When {
    /// RFC 3339.
    pub(super) exact: String,
    /// In UTC, to the millisecond.
    pub(super) people: String,
    /// Such as `in 3 h` or `3 h ago`.
    pub(super) from_now: String,
}

impl When {
    pub(super) fn of(time: Timestamp, now: Timestamp) -> Self {
        const MILLISECONDS_END: usize = "2026-03-01T12:00:05.678".len();
        let exact = format_time(time);
        let people = exact.get(..MILLISECONDS_END).unwrap_or(&exact);
        let from_now = if time > now {
            format!("in {}", span(time.saturating_since(now)))
        } else {
            format!("{} ago", span(now.saturating_since(time)))
        };
        Self {
            people: people.replace('T', " "),
            exact,
            from_now,
        }
    }
}

/// Where the page of a queue is.
pub(super) fn queue_link(queue: &QueueName) -> String {
    format!("/queue?name={}", encoded(queue.as_str()))
}

/// Where the page of a timer is.
pub(super) fn timer_link(name: &TimerName) -> String {
    format!("/timer?{}", timer_query(name))
}

/// A timer as the parameters of a query.
pub(super) fn timer_query(name: &TimerName) -> String {
    let queue = encoded(name.queue.as_str());
    format!("queue={queue}&key={}", encoded(name.key.as_str()))
}

/// Text as the value of a query's parameter.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// What the API shows in JSON, in words: the members of an object as `name value`, elements with
/// commas.
pub(super) fn words(value: &Value) -> String {
    let list = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(elements) => list(elements.iter().map(words).collect()),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{} {}", name.replace('_', " "), words(value))
            };
            list(members.iter().map(member).collect())
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(text: &str) -> String {
        let mut out = String::new();
        Shown.write_escaped_str(&mut out, text).unwrap();
        out
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(
            shown("<script>'a' & \"b\"</script>"),
            "&lt;script&gt;&#39;a&#39; &amp; &quot;b&quot;&lt;/script&gt;"
        );
        assert_eq!(shown("gpj\u{202e}exe\n"), "gpj\\u202eexe\\u000a");
    }

    /// A filter could turn the escaper off.
    #[test]
    fn no_template_shows_anything_unescaped() {
        for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/templates")).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            for way in ["safe", "|escape", "| escape", "|e(", "autoescape"] {
                assert!(!text.contains(way), "{way} in {}", path.display());
            }
        }
    }

    #[test]
    fn figures_are_read_at_a_glance() {
        for (number, expected) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (93_104, "93,104"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(count(number), expected);
        }
        for (micros, expected) in [
            (0, "0 s"),
            (300, "300 µs"),
            (1_000, "1 ms"),
            (3_149, "3.2 ms"),
            (3_100, "3.1 ms"),
            (41_900, "42 ms"),
            (999_999, "1000 ms"),
            (8_200_000, "8.2 s"),
            (59_999_999, "60 s"),
            (60_000_000, "1 min"),
            (250_000_000, "4 min 10 s"),
            (5_400_000_000, "1 h 30 min"),
            (187_200_000_000, "2 d 4 h"),
        ] {
            assert_eq!(span(Duration::from_micros(micros)), expected);
        }
    }

    #[test]
    fn a_moment_says_how_far_it_is() {
        let at = Timestamp::from_micros;
        let now = at(1_700_000_000_123_456);
        let past = When::of(at(1_700_000_000_000_456), now);
        assert_eq!(past.people, "2023-11-14 22:13:20.000");
        assert_eq!(past.from_now, "123 ms ago");
        let coming = When::of(now + Duration::from_secs(3_600), now);
        assert_eq!(coming.from_now, "in 1 h");
        assert_eq!(coming.exact, "2023-11-14T23:13:20.123456Z");
    }

    #[test]
    fn a_link_holds_any_name() {
        let name = TimerName::new("q.1", "a/b?&=#\"'<\u{202e}+ %").unwrap();
        let link = timer_link(&name);
        assert_eq!(
            link,
            "/timer?queue=q%2E1&key=a%2Fb%3F%26%3D%23%22%27%3C%E2%80%AE%2B%20%25"
        );
    }

    #[test]
    fn a_policy_is_said_in_words() {
        let policy = json!({"schedule": ["15s", "1m 30s"], "jitter": "full", "max_attempts": 9});
        assert_eq!(
            words(&policy),
            "jitter full, max attempts 9, schedule 15s, 1m 30s"
        );
    }
}
