//! Circuit breakers of endpoints: an endpoint that fails again and again is left alone for a while, and then tried with
//! one attempt at a time. Its timers wait meanwhile and use up nothing of their schedules.
//!
//! The states are those of Nygard, "Release It!" (2007): closed, open, half-open. Each process knows what it has seen
//! itself.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_time::{Clock, Instant, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::endpoint::EndpointName;

/// How many failures in a row a breaker may wait for.
pub(crate) const FAILURES_MAX: u32 = 10_000;
/// The shortest and the longest pause.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(100);
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(86_400);
/// How many endpoints there is something to say of at a time; the others count as healthy.
pub(crate) const KNOWN_MAX: usize = 65_536;

/// When an endpoint is left alone, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Breaker {
    /// After so many failures in a row.
    pub(crate) failures: u32,
    /// For so long; twice as long after each attempt that fails then.
    pub(crate) pause: Duration,
    /// At most for so long.
    pub(crate) pause_max: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            failures: 10,
            pause: Duration::from_secs(5),
            pause_max: Duration::from_secs(300),
        }
    }
}

/// What became of an attempt, as far as it says something of its endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sign {
    /// The endpoint answers.
    Alive,
    /// The endpoint did not answer, or says that it cannot serve now.
    Failing,
}

/// What changes by a sign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Nothing that anybody waits for.
    Nothing,
    /// Nothing starts for so long; then the breaker is to be [half-opened](Breakers::half_open).
    Opened(Duration),
    /// Attempts start as ever.
    Closed,
}

/// The health of an endpoint, as this process sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Health {
    pub(crate) state: HealthState,
    pub(crate) failures: u32,
    /// When the last failure was, and what it was.
    pub(crate) last: Option<(Timestamp, String)>,
    /// Until when nothing starts, by the wall clock.
    pub(crate) until: Option<Timestamp>,
}

/// How an endpoint is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HealthState {
    Healthy,
    /// The last attempts have failed.
    Degraded,
    /// The breaker is open.
    Paused,
    /// One attempt at a time shows whether the endpoint is back.
    Probing,
    Disabled,
}

#[derive(Debug)]
struct One {
    failures: u32,
    last: (Timestamp, String),
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed,
    Open { until: Instant, pause: Duration },
    HalfOpen { pause: Duration },
}

/// The breakers of all endpoints. Those of which there is nothing to say are not there.
#[derive(Debug, Default)]
pub(crate) struct Breakers(Mutex<BTreeMap<EndpointName, One>>);

impl Breakers {
    /// An attempt has ended. Without a `breaker`, failures are counted and nothing follows.
    pub(crate) fn ended(
        &self,
        name: &EndpointName,
        breaker: Option<Breaker>,
        (sign, detail): (Sign, &str),
        clock: &dyn Clock,
    ) -> Turn {
        let mut known = self.0.lock();
        if sign == Sign::Alive {
            let before = known.remove(name).map(|one| one.state);
            return match before {
                Some(State::Open { .. } | State::HalfOpen { .. }) => Turn::Closed,
                _ => Turn::Nothing,
            };
        }
        if known.len() >= KNOWN_MAX && !known.contains_key(name) {
            return Turn::Nothing;
        }
        let last = (clock.timestamp(), detail.to_owned());
        let one = known.entry(name.clone()).or_insert_with(|| One {
            failures: 0,
            last: last.clone(),
            state: State::Closed,
        });
        one.failures = one.failures.saturating_add(1);
        one.last = last;
        let Some(breaker) = breaker else {
            one.state = State::Closed;
            return Turn::Nothing;
        };
        let pause = match one.state {
            State::Closed if one.failures >= breaker.failures => breaker.pause,
            State::HalfOpen { pause } => pause.saturating_mul(2).min(breaker.pause_max),
            // What was under way when the breaker opened.
            State::Closed | State::Open { .. } => return Turn::Nothing,
        };
        let until = clock.now() + pause;
        one.state = State::Open { until, pause };
        Turn::Opened(pause)
    }

    /// The pause of an endpoint is over: one attempt at a time from here on. Says whether anything changes.
    pub(crate) fn half_open(&self, name: &EndpointName, now: Instant) -> bool {
        let mut known = self.0.lock();
        let Some(one) = known.get_mut(name) else {
            return false;
        };
        match one.state {
            State::Open { until, pause } if until <= now => {
                one.state = State::HalfOpen { pause };
                true
            }
            _ => false,
        }
    }

    /// How many attempts may run at a time, if the breaker says something about that.
    pub(crate) fn at_once(&self, name: &EndpointName) -> Option<u32> {
        match self.0.lock().get(name)?.state {
            State::Closed => None,
            State::Open { .. } => Some(0),
            State::HalfOpen { .. } => Some(1),
        }
    }

    /// Why nothing starts.
    pub(crate) fn why_closed(&self, name: &EndpointName) -> Option<String> {
        let known = self.0.lock();
        let one = known.get(name)?;
        let (State::Open { .. }, failures, (_, detail)) = (one.state, one.failures, &one.last)
        else {
            return None;
        };
        Some(format!(
            "the endpoint {name} is paused after {failures} failures in a row: {detail}"
        ))
    }

    /// Nothing is known of the endpoint any more: it is another by now.
    pub(crate) fn forget(&self, name: &EndpointName) {
        self.0.lock().remove(name);
    }

    /// The health of an endpoint.
    pub(crate) fn health(
        &self,
        name: &EndpointName,
        is_disabled: bool,
        clock: &dyn Clock,
    ) -> Health {
        let known = self.0.lock();
        let one = known.get(name);
        let (state, until) = match one.map(|one| one.state) {
            _ if is_disabled => (HealthState::Disabled, None),
            None => (HealthState::Healthy, None),
            Some(State::Closed) => (HealthState::Degraded, None),
            Some(State::HalfOpen { .. }) => (HealthState::Probing, None),
            Some(State::Open { until, .. }) => {
                let left = until.saturating_since(clock.now());
                (HealthState::Paused, Some(clock.timestamp() + left))
            }
        };
        Health {
            state,
            failures: one.map_or(0, |one| one.failures),
            last: one.map(|one| one.last.clone()),
            until,
        }
    }
}

#[cfg(test)]
mod tests {
    use countwheel_time::ManualClock;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const FAILING: (Sign, &str) = (Sign::Failing, "503");
    const ALIVE: (Sign, &str) = (Sign::Alive, "200");

    fn breaker() -> Option<Breaker> {
        Some(Breaker {
            failures: 3,
            pause: SECOND,
            pause_max: 3 * SECOND,
        })
    }

    #[test]
    fn a_breaker_opens_probes_and_closes() {
        let (breakers, clock) = (Breakers::default(), ManualClock::new());
        let shop = EndpointName::new("shop").unwrap();
        let ended = |sign| breakers.ended(&shop, breaker(), sign, &clock);
        let state = || breakers.health(&shop, false, &clock).state;
        assert_eq!(state(), HealthState::Healthy);
        assert_eq!(
            (ended(FAILING), ended(FAILING)),
            (Turn::Nothing, Turn::Nothing)
        );
        assert_eq!(
            (state(), breakers.at_once(&shop)),
            (HealthState::Degraded, None)
        );
        // In a row: an answer begins anew.
        assert_eq!(ended(ALIVE), Turn::Nothing);
        assert_eq!(state(), HealthState::Healthy);
        ended(FAILING);
        ended(FAILING);
        assert_eq!(ended(FAILING), Turn::Opened(SECOND));
        assert_eq!(
            (state(), breakers.at_once(&shop)),
            (HealthState::Paused, Some(0))
        );
        let why = breakers.why_closed(&shop).unwrap();
        assert_eq!(
            why,
            "the endpoint shop is paused after 3 failures in a row: 503"
        );
        // What was under way changes nothing, and the pause has its time.
        assert_eq!(ended(FAILING), Turn::Nothing);
        assert!(!breakers.half_open(&shop, clock.now()));
        clock.advance(SECOND);
        assert!(breakers.half_open(&shop, clock.now()));
        assert_eq!(
            (state(), breakers.at_once(&shop)),
            (HealthState::Probing, Some(1))
        );
        assert_eq!(breakers.why_closed(&shop), None);
        // Each probe that fails makes the next pause longer, up to a limit.
        for pause in [2, 3, 3] {
            assert_eq!(ended(FAILING), Turn::Opened(pause * SECOND));
            clock.advance(pause * SECOND);
            assert!(breakers.half_open(&shop, clock.now()));
        }
        assert_eq!(ended(ALIVE), Turn::Closed);
        assert_eq!(
            (state(), breakers.at_once(&shop)),
            (HealthState::Healthy, None)
        );
    }

    #[test]
    fn without_a_breaker_failures_are_only_counted() {
        let (breakers, clock) = (Breakers::default(), ManualClock::new());
        let shop = EndpointName::new("shop").unwrap();
        for _ in 0..100 {
            let turn = breakers.ended(&shop, None, FAILING, &clock);
            assert_eq!((turn, breakers.at_once(&shop)), (Turn::Nothing, None));
        }
        let health = breakers.health(&shop, false, &clock);
        assert_eq!(
            (health.state, health.failures),
            (HealthState::Degraded, 100)
        );
        assert_eq!(health.last, Some((clock.timestamp(), "503".to_owned())));
        let disabled = breakers.health(&shop, true, &clock).state;
        assert_eq!(disabled, HealthState::Disabled);
        breakers.forget(&shop);
        assert_eq!(breakers.health(&shop, false, &clock).failures, 0);
    }

    /// The pause that began last counts, though a timer of an earlier one comes.
    #[test]
    fn an_open_breaker_that_was_forgotten_and_opened_again_has_its_whole_pause() {
        let (breakers, clock) = (Breakers::default(), ManualClock::new());
        let shop = EndpointName::new("shop").unwrap();
        let fail = || {
            (0..3)
                .map(|_| breakers.ended(&shop, breaker(), FAILING, &clock))
                .last()
        };
        assert_eq!(fail(), Some(Turn::Opened(SECOND)));
        clock.advance(SECOND / 2);
        breakers.forget(&shop);
        assert_eq!(fail(), Some(Turn::Opened(SECOND)));
        clock.advance(SECOND / 2);
        assert!(!breakers.half_open(&shop, clock.now()));
        assert_eq!(breakers.at_once(&shop), Some(0));
    }
}
