//! Places to which no delivery goes just now, for a reason that is not the receiver's and that was found while an
//! attempt was made: a name that leads where deliveries do not go, or no name server that answers. Their timers wait,
//! and one of them looks again now and then.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use axum::http::Uri;
use countwheel_time::Instant;
use parking_lot::Mutex;

use crate::guard::port_of_url;

/// How long it takes until a place is looked at again: at first, and at the most.
pub(crate) const LOOK_MIN: Duration = Duration::from_secs(5);
pub(crate) const LOOK_MAX: Duration = Duration::from_secs(60);
/// So many places are known at a time. The timers of others look again one by one.
pub(crate) const KNOWN_MAX: usize = 65_536;
/// A place at which no attempt has looked for so long may have no timers any more.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// A host and a port, on one way to it: another endpoint may reach it, or the same one after a change.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    at: String,
    /// The number of the way; 0 is the way of all whose endpoints say nothing of it.
    way: u64,
}

impl Place {
    /// Where a URL leads on this way.
    pub(crate) fn of(uri: &Uri, way: u64) -> Option<Self> {
        let host = uri.host()?.to_ascii_lowercase();
        let at = format!("{host}:{}", port_of_url(uri));
        Some(Self { at, way })
    }

    /// A place as `host:port`, on the way of all whose endpoints say nothing of it.
    pub(crate) fn on_the_way_of_all(at: &str) -> Self {
        let at = at.to_owned();
        Self { at, way: 0 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.at)
    }
}

/// Why no delivery goes to a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// Its name leads to an address that is refused. Which one is not for callers to know.
    Refused,
    /// Its name leads outside of what its endpoint allows.
    Outside,
    /// The proxy that its endpoint names is at an address that is refused.
    Proxy,
    /// No name server answers, for any name.
    NoResolver,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "the name leads to an address where deliveries do not go",
            Self::Outside => "the name leads to an address that the endpoint does not allow",
            Self::Proxy => "the proxy of the endpoint is at an address where deliveries do not go",
            Self::NoResolver => "no name server answers",
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct One {
    why: Why,
    /// When one attempt looks again.
    until: Instant,
    wait: Duration,
}

/// What follows when an attempt has found that a place is blocked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// How long it takes until an attempt looks again.
    pub(crate) wait: Duration,
    /// This attempt has found it first, since one was to look.
    pub(crate) is_first: bool,
    /// Nobody knew it, or another reason.
    pub(crate) is_news: bool,
}

/// The places that are known.
#[derive(Debug, Default)]
pub(crate) struct Blocked(Mutex<BTreeMap<Place, One>>);

impl Blocked {
    /// An attempt has found that a place is blocked.
    pub(crate) fn found(&self, place: &Place, why: Why, now: Instant) -> Found {
        let mut known = self.0.lock();
        let before = known.get(place).copied();
        let is_news = before.is_none_or(|before| before.why != why);
        let wait = match before {
            // What was under way when it was found.
            Some(One { until, .. }) if until > now => {
                let wait = until.saturating_since(now);
                return Found {
                    wait,
                    is_first: false,
                    is_news: false,
                };
            }
            Some(before) => before.wait.saturating_mul(2).min(LOOK_MAX),
            None => LOOK_MIN,
        };
        if before.is_none() && known.len() >= KNOWN_MAX {
            known.retain(|_, one| one.until + FORGOTTEN > now);
        }
        let is_first = before.is_some() || known.len() < KNOWN_MAX;
        if is_first {
            let until = now + wait;
            known.insert(place.clone(), One { why, until, wait });
        }
        Found {
            wait,
            is_first,
            is_news: is_news && is_first,
        }
    }

    /// An attempt has come further. Whether the place was blocked before.
    pub(crate) fn passed(&self, place: &Place) -> bool {
        self.0.lock().remove(place).is_some()
    }

    /// Why a place is blocked, if it is.
    pub(crate) fn why(&self, place: &Place) -> Option<Why> {
        self.0.lock().get(place).map(|one| one.why)
    }

    /// How many attempts may run at a time, if the place is blocked: none, or the one that looks.
    pub(crate) fn at_once(&self, place: &Place, now: Instant) -> Option<u32> {
        let until = self.0.lock().get(place)?.until;
        Some(u32::from(until <= now))
    }
}

#[cfg(test)]
mod tests {
    use countwheel_time::{Clock, ManualClock};

    use super::*;

    #[test]
    fn a_blocked_place_is_looked_at_more_and_more_rarely_and_by_one_at_a_time() {
        let (blocked, clock) = (Blocked::default(), ManualClock::new());
        let place = &Place::on_the_way_of_all("hooks.example:443");
        let at_once = || blocked.at_once(place, clock.now());
        assert_eq!((at_once(), blocked.why(place)), (None, None));
        for (number, seconds) in [5, 10, 20, 40, 60, 60].into_iter().enumerate() {
            let second = Duration::from_secs(1);
            let first = Found {
                wait: seconds * second,
                is_first: true,
                is_news: number == 0,
            };
            assert_eq!(blocked.found(place, Why::Refused, clock.now()), first);
            assert_eq!(
                (at_once(), blocked.why(place)),
                (Some(0), Some(Why::Refused))
            );
            // What was under way looks when the first does.
            clock.advance(second);
            let later = Found {
                wait: first.wait - second,
                is_first: false,
                is_news: false,
            };
            assert_eq!(blocked.found(place, Why::Refused, clock.now()), later);
            clock.advance(first.wait);
            assert_eq!(at_once(), Some(1));
        }
        assert!(blocked.found(place, Why::NoResolver, clock.now()).is_news);
        assert!(blocked.passed(place) && !blocked.passed(place));
        assert_eq!(at_once(), None);
    }

    /// One endpoint may allow less than another, or leave by a proxy.
    #[test]
    fn a_place_is_blocked_on_one_way_to_it_alone() {
        let (blocked, clock) = (Blocked::default(), ManualClock::new());
        let url = "https://Hooks.example/a".parse().unwrap();
        let [of_all, narrowed] = [0, 7].map(|way| Place::of(&url, way).unwrap());
        assert_eq!(of_all, Place::on_the_way_of_all("hooks.example:443"));
        assert_eq!(narrowed.to_string(), "hooks.example:443");
        blocked.found(&narrowed, Why::Outside, clock.now());
        assert_eq!(blocked.at_once(&narrowed, clock.now()), Some(0));
        assert_eq!(blocked.at_once(&of_all, clock.now()), None);
    }
}
