//! What the receiver of a recurring timer asks of the runs to come, by headers of its answer.

use std::time::Duration;

use axum::http::HeaderMap;
use countwheel_durable::NextRun;
use serde::{Deserialize, Serialize};

use crate::time::parse_duration;

/// The header that says when the next run is.
const NEXT: &str = "timer-next";
/// The header that ends the series.
const STOP: &str = "timer-stop";

/// Between which delays a receiver may choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Adaptive {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

/// Which of its headers an answer had in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ignored {
    pub(crate) next: bool,
    pub(crate) stop: bool,
}

impl Ignored {
    /// The names of the headers.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let next = self.next.then_some(NEXT);
        next.into_iter().chain(self.stop.then_some(STOP))
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// What an answer asks for, and what of it does not count. `adaptive` is that of the timer; `is_done` is whether the
/// answer means that the run is done.
pub(crate) fn read(
    headers: &HeaderMap,
    adaptive: Option<Adaptive>,
    is_done: bool,
) -> (Option<NextRun>, Ignored) {
    let has = |name: &str| headers.contains_key(name);
    let Some(Adaptive { min, max }) = adaptive.filter(|_| is_done) else {
        let (next, stop) = (has(NEXT), has(STOP));
        return (None, Ignored { next, stop });
    };
    if only(headers, STOP) == Some("1") {
        let (next, stop) = (has(NEXT), false);
        return (Some(NextRun::Never), Ignored { next, stop });
    }
    let delay = only(headers, NEXT).and_then(delay);
    let ignored = Ignored {
        next: delay.is_none() && has(NEXT),
        stop: has(STOP),
    };
    let asked = delay.map(|delay| NextRun::In(delay.clamp(min, max)));
    (asked, ignored)
}

/// The value of a header that is there once.
fn only<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok().map(str::trim),
        _ => None,
    }
}

/// Whole seconds, or a duration.
fn delay(text: &str) -> Option<Duration> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More seconds than fit are as good as any other large number.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    parse_duration(text)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const ADAPTIVE: Adaptive = Adaptive {
        min: Duration::from_secs(5),
        max: Duration::from_secs(300),
    };

    fn headers(values: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn names(ignored: Ignored) -> Vec<&'static str> {
        ignored.names().collect()
    }

    #[test]
    fn a_delay_is_seconds_or_a_duration_within_its_bounds() {
        for (value, seconds) in [
            ("30", Some(30)),
            (" 30s ", Some(30)),
            ("1m 30s", Some(90)),
            ("PT1M", Some(60)),
            ("0", Some(5)),
            ("250ms", Some(5)),
            ("7d", Some(300)),
            ("99999999999999999999", Some(300)),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
        ] {
            let (asked, ignored) = read(&headers(&[(NEXT, value)]), Some(ADAPTIVE), true);
            let expected = seconds.map(|seconds| NextRun::In(Duration::from_secs(seconds)));
            assert_eq!(asked, expected, "{value}");
            assert_eq!(ignored.next, seconds.is_none(), "{value}");
        }
    }

    #[test]
    fn what_does_not_count_is_told() {
        let both = &[(NEXT, "30"), (STOP, "1")][..];
        for (values, adaptive, is_done, asked, ignored) in [
            (both, None, true, None, &[NEXT, STOP][..]),
            (both, Some(ADAPTIVE), false, None, &[NEXT, STOP]),
            (both, Some(ADAPTIVE), true, Some(NextRun::Never), &[NEXT]),
            (&both[1..], Some(ADAPTIVE), true, Some(NextRun::Never), &[]),
            (&[(STOP, "0")], Some(ADAPTIVE), true, None, &[STOP]),
            (
                &[(STOP, "1"), (STOP, "1")],
                Some(ADAPTIVE),
                true,
                None,
                &[STOP],
            ),
            (
                &[(NEXT, "9"), (NEXT, "9")],
                Some(ADAPTIVE),
                true,
                None,
                &[NEXT],
            ),
            (&[], Some(ADAPTIVE), true, None, &[]),
            (&[], None, true, None, &[]),
        ] {
            let found = read(&headers(values), adaptive, is_done);
            assert_eq!((found.0, &*names(found.1)), (asked, ignored), "{values:?}");
        }
    }
}
