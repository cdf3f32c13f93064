//! Circuit breakers of endpoints: an endpoint that fails again and again is left alone for a while, and then tried with
//! one attempt at a time. Its timers wait meanwhile and use up nothing of their schedules.
//!
//! The states are those of Nygard, "Release It!" (2007): closed, open, half-open. Each process knows what it has seen
//! itself, and what other nodes [say](Said): of two turns of one breaker the later one counts.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_cluster::NodeId;
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
/// For how long a node tells others that a breaker has closed.
const CLOSED_FOR: Duration = Duration::from_secs(10);
/// For how long what another node said of failures counts: it says so twice a second.
const HEARD_FOR: Duration = Duration::from_secs(2);
/// Of how many endpoints one node tells another.
const SAID_MAX: usize = 4_096;
/// How much of the detail of a failure it tells, in bytes.
const DETAIL_MAX: usize = 512;

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

/// What one node says to another of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Said {
    endpoint: String,
    /// Of its settings: another version may be another receiver.
    version: u64,
    /// When its breaker turned last, in microseconds since 1970 by the clock that all nodes go by.
    turned: u64,
    failures: u32,
    /// When the last failure was, and what it was.
    last: (u64, String),
    state: SaidState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum SaidState {
    /// The last attempts have failed.
    Failing,
    /// The breaker is open for so long still; the whole pause is so long.
    Open(Duration, Duration),
    /// One attempt at a time, after a pause of so long.
    HalfOpen(Duration),
    /// The breaker was open, and has closed.
    Closed,
}

#[derive(Debug)]
struct One {
    failures: u32,
    last: (Timestamp, String),
    state: State,
    /// When its breaker turned last.
    turned: Timestamp,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed,
    Open { until: Instant, pause: Duration },
    HalfOpen { pause: Duration },
}

impl One {
    fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }
}

/// The breakers of all endpoints. Those of which there is nothing to say are not there.
#[derive(Debug, Default)]
pub(crate) struct Breakers {
    known: Mutex<BTreeMap<EndpointName, One>>,
    /// Those that were open, and when they closed.
    closed: Mutex<BTreeMap<EndpointName, Timestamp>>,
    /// What other nodes have seen fail, and when they said so.
    others: Mutex<BTreeMap<NodeId, (Instant, Vec<Said>)>>,
}

/// The next moment.
fn later_than(at: Timestamp) -> Timestamp {
    at + Duration::from_micros(1)
}

impl Breakers {
    /// An attempt has ended. Without a `breaker`, failures are counted and nothing follows. An attempt at what the
    /// endpoint was before, which `is_current` says, counts for nothing: it is asked while nothing can be forgotten.
    pub(crate) fn ended(
        &self,
        name: &EndpointName,
        breaker: Option<Breaker>,
        (sign, detail): (Sign, &str),
        is_current: impl FnOnce() -> bool,
        clock: &dyn Clock,
    ) -> Turn {
        let mut known = self.known.lock();
        if !is_current() {
            return Turn::Nothing;
        }
        if sign == Sign::Alive {
            let before = known.remove(name).filter(|one| !one.is_closed());
            let Some(before) = before else {
                return Turn::Nothing;
            };
            let turned = clock.timestamp().max(later_than(before.turned));
            self.closed.lock().insert(name.clone(), turned);
            return Turn::Closed;
        }
        if known.len() >= KNOWN_MAX && !known.contains_key(name) {
            return Turn::Nothing;
        }
        let last = (clock.timestamp(), detail.to_owned());
        let one = known.entry(name.clone()).or_insert_with(|| One {
            failures: 0,
            last: last.clone(),
            state: State::Closed,
            turned: Timestamp::EPOCH,
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
        let closed = self.closed.lock().remove(name).unwrap_or_default();
        one.turned = clock.timestamp().max(later_than(one.turned.max(closed)));
        Turn::Opened(pause)
    }

    /// The pauses that are over: one attempt at a time from here on. Says whether anything changes.
    pub(crate) fn half_open_all(&self, clock: &dyn Clock) -> bool {
        let open: Vec<_> = {
            let known = self.known.lock();
            let open = known.iter().filter(|(_, one)| !one.is_closed());
            open.map(|(name, _)| name.clone()).collect()
        };
        let mut is_other = false;
        for name in open {
            is_other |= self.half_open(&name, clock);
        }
        is_other
    }

    /// What this node tells the others; `version` is that of the settings of an endpoint.
    pub(crate) fn say(
        &self,
        clock: &dyn Clock,
        version: impl Fn(&EndpointName) -> Option<u64>,
    ) -> Vec<Said> {
        let (now, wall) = (clock.now(), clock.timestamp());
        let known = self.known.lock();
        let said = |name: &EndpointName, one: &One| {
            let state = match one.state {
                State::Closed => SaidState::Failing,
                State::Open { until, pause } => SaidState::Open(until.saturating_since(now), pause),
                State::HalfOpen { pause } => SaidState::HalfOpen(pause),
            };
            let (at, detail) = &one.last;
            let end = detail.floor_char_boundary(DETAIL_MAX);
            Some(Said {
                endpoint: name.to_string(),
                version: version(name)?,
                turned: one.turned.as_micros(),
                failures: one.failures,
                last: (at.as_micros(), detail.get(..end)?.to_owned()),
                state,
            })
        };
        let mut closed = self.closed.lock();
        closed.retain(|_, turned| wall.saturating_since(*turned) < CLOSED_FOR);
        let is_closed = |name: &EndpointName, turned: &Timestamp| {
            Some(Said {
                endpoint: name.to_string(),
                version: version(name)?,
                turned: turned.as_micros(),
                failures: 0,
                last: (0, String::new()),
                state: SaidState::Closed,
            })
        };
        let closed = closed
            .iter()
            .filter_map(|(name, turned)| is_closed(name, turned));
        let (failing, open): (Vec<_>, Vec<_>) = known.iter().partition(|(_, one)| one.is_closed());
        let open = open.into_iter().filter_map(|(name, one)| said(name, one));
        let failing = failing
            .into_iter()
            .filter_map(|(name, one)| said(name, one));
        open.chain(closed).chain(failing).take(SAID_MAX).collect()
    }

    /// Another node has said all this. What it says of another version of an endpoint than this node knows is passed
    /// over. Says whether limits change.
    pub(crate) fn hear(
        &self,
        from: NodeId,
        said: Vec<Said>,
        clock: &dyn Clock,
        version: impl Fn(&EndpointName) -> Option<u64>,
    ) -> bool {
        let mut is_other = false;
        let mut failing = Vec::new();
        for said in said.into_iter().take(SAID_MAX) {
            let Ok(name) = EndpointName::new(&said.endpoint) else {
                continue;
            };
            if version(&name) != Some(said.version) {
                continue;
            }
            is_other |= self.hear_one(&name, &said, clock);
            if said.state == SaidState::Failing {
                failing.push(said);
            }
        }
        let now = clock.now();
        let mut others = self.others.lock();
        others.retain(|_, (heard, _)| now.saturating_since(*heard) < HEARD_FOR);
        others.insert(from, (now, failing));
        is_other
    }

    fn hear_one(&self, name: &EndpointName, said: &Said, clock: &dyn Clock) -> bool {
        let mut known = self.known.lock();
        let mut closed = self.closed.lock();
        let turned = Timestamp::from_micros(said.turned);
        let open = known.get(name).filter(|one| !one.is_closed());
        let was_open = open.is_some();
        let mine = open.map(|one| one.turned).max(closed.get(name).copied());
        if mine.is_some_and(|mine| turned <= mine) {
            return false;
        }
        let state = match said.state {
            SaidState::Failing => return false,
            SaidState::Closed => {
                closed.insert(name.clone(), turned);
                if was_open {
                    known.remove(name);
                }
                return was_open;
            }
            SaidState::Open(left, pause) => State::Open {
                until: clock.now() + left.min(PAUSE_MAX),
                pause,
            },
            SaidState::HalfOpen(pause) => State::HalfOpen { pause },
        };
        if known.len() >= KNOWN_MAX && !known.contains_key(name) {
            return false;
        }
        closed.remove(name);
        let (at, detail) = &said.last;
        let one = One {
            failures: said.failures,
            last: (Timestamp::from_micros(*at), detail.clone()),
            state,
            turned,
        };
        known.insert(name.clone(), one);
        true
    }

    /// The pause of an endpoint is over: one attempt at a time from here on. Says whether anything changes.
    pub(crate) fn half_open(&self, name: &EndpointName, clock: &dyn Clock) -> bool {
        let now = clock.now();
        let mut known = self.known.lock();
        let Some(one) = known.get_mut(name) else {
            return false;
        };
        match one.state {
            State::Open { until, pause } if until <= now => {
                one.state = State::HalfOpen { pause };
                one.turned = clock.timestamp().max(later_than(one.turned));
                true
            }
            _ => false,
        }
    }

    /// How many attempts may run at a time, if the breaker says something about that.
    pub(crate) fn at_once(&self, name: &EndpointName) -> Option<u32> {
        match self.known.lock().get(name)?.state {
            State::Closed => None,
            State::Open { .. } => Some(0),
            State::HalfOpen { .. } => Some(1),
        }
    }

    /// What those wait for that are not the one attempt which shows whether the endpoint is back.
    pub(crate) fn why_probed(&self, name: &EndpointName) -> Option<String> {
        let known = self.known.lock();
        let one = known.get(name)?;
        let (State::HalfOpen { .. }, failures, (_, detail)) = (one.state, one.failures, &one.last)
        else {
            return None;
        };
        Some(format!(
            "the endpoint {name} is tried with one attempt at a time after {failures} failures in a row: {detail}"
        ))
    }

    /// Why nothing starts.
    pub(crate) fn why_closed(&self, name: &EndpointName) -> Option<String> {
        let known = self.known.lock();
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
        self.known.lock().remove(name);
        self.closed.lock().remove(name);
        for (_, said) in self.others.lock().values_mut() {
            said.retain(|said| said.endpoint != name.as_str());
        }
    }

    /// The health of an endpoint.
    pub(crate) fn health(
        &self,
        name: &EndpointName,
        is_disabled: bool,
        clock: &dyn Clock,
    ) -> Health {
        let known = self.known.lock();
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
        let mut health = Health {
            state,
            failures: one.map_or(0, |one| one.failures),
            last: one.map(|one| one.last.clone()),
            until,
        };
        drop(known);
        self.others_fail(name, &mut health, clock.now());
        health
    }

    /// What other nodes have seen fail counts as well.
    fn others_fail(&self, name: &EndpointName, health: &mut Health, now: Instant) {
        let others = self.others.lock();
        let others = others.values();
        let others = others.filter(|(heard, _)| now.saturating_since(*heard) < HEARD_FOR);
        let said = others.flat_map(|(_, said)| said);
        for said in said.filter(|said| said.endpoint == name.as_str()) {
            if health.state == HealthState::Healthy {
                health.state = HealthState::Degraded;
            }
            health.failures = health.failures.max(said.failures);
            let (at, detail) = &said.last;
            let at = Timestamp::from_micros(*at);
            if health.last.as_ref().is_none_or(|(last, _)| *last < at) {
                health.last = Some((at, detail.clone()));
            }
        }
    }
}

#[cfg(test)]
mod worlds;

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
        let ended = |sign| breakers.ended(&shop, breaker(), sign, || true, &clock);
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
        assert!(!breakers.half_open(&shop, &clock));
        clock.advance(SECOND);
        assert!(breakers.half_open(&shop, &clock));
        assert_eq!(
            (state(), breakers.at_once(&shop)),
            (HealthState::Probing, Some(1))
        );
        assert_eq!(breakers.why_closed(&shop), None);
        let why = breakers.why_probed(&shop).unwrap();
        assert!(
            why.starts_with("the endpoint shop is tried with one attempt at a time"),
            "{why}"
        );
        // Each probe that fails makes the next pause longer, up to a limit.
        for pause in [2, 3, 3] {
            assert_eq!(ended(FAILING), Turn::Opened(pause * SECOND));
            clock.advance(pause * SECOND);
            assert!(breakers.half_open(&shop, &clock));
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
            let turn = breakers.ended(&shop, None, FAILING, || true, &clock);
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

    #[test]
    fn an_attempt_at_what_an_endpoint_was_before_says_nothing_of_it() {
        let (breakers, clock) = (Breakers::default(), ManualClock::new());
        let shop = EndpointName::new("shop").unwrap();
        for _ in 0..10 {
            let turn = breakers.ended(&shop, breaker(), FAILING, || false, &clock);
            assert_eq!((turn, breakers.at_once(&shop)), (Turn::Nothing, None));
        }
        assert_eq!(breakers.health(&shop, false, &clock).failures, 0);
        breakers.ended(&shop, breaker(), FAILING, || true, &clock);
        breakers.ended(&shop, breaker(), ALIVE, || false, &clock);
        assert_eq!(breakers.health(&shop, false, &clock).failures, 1);
    }

    /// The pause that began last counts, though a timer of an earlier one comes.
    #[test]
    fn an_open_breaker_that_was_forgotten_and_opened_again_has_its_whole_pause() {
        let (breakers, clock) = (Breakers::default(), ManualClock::new());
        let shop = EndpointName::new("shop").unwrap();
        let fail = || {
            (0..3)
                .map(|_| breakers.ended(&shop, breaker(), FAILING, || true, &clock))
                .last()
        };
        assert_eq!(fail(), Some(Turn::Opened(SECOND)));
        clock.advance(SECOND / 2);
        breakers.forget(&shop);
        assert_eq!(fail(), Some(Turn::Opened(SECOND)));
        clock.advance(SECOND / 2);
        assert!(!breakers.half_open(&shop, &clock));
        assert_eq!(breakers.at_once(&shop), Some(0));
    }

    /// Two nodes: what one says, the other one hears.
    #[test]
    fn nodes_tell_each_other_of_breakers_and_the_later_turn_counts() {
        let (one, other, clock) = (Breakers::default(), Breakers::default(), ManualClock::new());
        let shop = EndpointName::new("shop").unwrap();
        let version = |_: &EndpointName| Some(7);
        let tell = |from: &Breakers, to: &Breakers| {
            to.hear(NodeId(1), from.say(&clock, version), &clock, version)
        };
        let fail = |node: &Breakers| node.ended(&shop, breaker(), FAILING, || true, &clock);
        fail(&one);
        // One node tells the other of failures, and nothing changes.
        assert!(!tell(&one, &other));
        let health = other.health(&shop, false, &clock);
        assert_eq!((health.state, health.failures), (HealthState::Degraded, 1));
        fail(&one);
        assert_eq!(fail(&one), Turn::Opened(SECOND));
        clock.advance(SECOND / 4);
        assert!(tell(&one, &other));
        assert!(!tell(&one, &other));
        let health = other.health(&shop, false, &clock);
        assert_eq!((health.state, health.failures), (HealthState::Paused, 3));
        assert_eq!(other.at_once(&shop), Some(0));
        // Both open half at the same time, and the pause of a probe that fails is told of.
        clock.advance(SECOND / 4 * 3);
        assert!(one.half_open_all(&clock) && other.half_open_all(&clock));
        assert_eq!(other.at_once(&shop), Some(1));
        clock.advance(SECOND / 100);
        assert_eq!(fail(&other), Turn::Opened(2 * SECOND));
        assert!(tell(&other, &one));
        assert_eq!(one.at_once(&shop), Some(0));
        // What the other one knew before is no news.
        assert!(!tell(&one, &other));
        clock.advance(2 * SECOND);
        assert!(one.half_open_all(&clock));
        clock.advance(SECOND / 100);
        assert_eq!(
            one.ended(&shop, breaker(), ALIVE, || true, &clock),
            Turn::Closed
        );
        assert!(tell(&one, &other));
        assert!(!tell(&other, &one));
        for node in [&one, &other] {
            assert_eq!(
                node.health(&shop, false, &clock).state,
                HealthState::Healthy
            );
        }
    }

    #[test]
    fn what_nodes_say_of_another_version_or_said_long_ago_counts_for_nothing() {
        let (one, other, clock) = (Breakers::default(), Breakers::default(), ManualClock::new());
        let shop = EndpointName::new("shop").unwrap();
        for _ in 0..3 {
            one.ended(&shop, breaker(), FAILING, || true, &clock);
        }
        let said = one.say(&clock, |_| Some(7));
        assert!(!other.hear(NodeId(1), said, &clock, |_| Some(8)));
        assert_eq!(other.at_once(&shop), None);
        one.forget(&shop);
        one.ended(&shop, None, FAILING, || true, &clock);
        let said = one.say(&clock, |_| Some(8));
        other.hear(NodeId(1), said, &clock, |_| Some(8));
        let state = || other.health(&shop, false, &clock).state;
        assert_eq!(state(), HealthState::Degraded);
        clock.advance(HEARD_FOR);
        assert_eq!(state(), HealthState::Healthy);
    }
}
