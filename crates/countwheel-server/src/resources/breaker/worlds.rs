//! Worlds of endpoints that fail and come back: an engine whose flows go by the breakers, under a clock that is moved by
//! hand. Nothing starts in a pause, one attempt at a time probes, an endpoint that is well is not delayed by another, and
//! in the end every timer is done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use countwheel_durable::store::{MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, Config, Due, Effect, Engine, Event, Flow, FlowLimits, Flows, Outcome, Precondition,
    Request, RetryPolicy, Route, SetOptions, StateKind, Ticket, TimerName, Verdict,
};
use countwheel_time::{Clock, Instant, ManualClock, Random};

use super::{Breaker, Breakers, Sign, Turn};
use crate::resources::endpoint::EndpointName;

const SEEDS: u64 = 200;
const STEPS: u64 = 300;
const ENDPOINTS: u64 = 3;

/// What the worlds have to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    /// Attempts start in a pause.
    PauseUnseen,
    /// More than one attempt probes.
    ProbesAtWill,
    /// The end of a pause is not looked for.
    PauseForever,
    /// Those that wait are not woken by a turn of the breaker.
    TurnUnsaid,
    /// A probe that fails makes the pause no longer.
    PauseAsBefore,
}

const MISTAKES: [Mistake; 5] = [
    Mistake::PauseUnseen,
    Mistake::ProbesAtWill,
    Mistake::PauseForever,
    Mistake::TurnUnsaid,
    Mistake::PauseAsBefore,
];

#[derive(Debug)]
struct Rules {
    breakers: Arc<Breakers>,
    mistake: Option<Mistake>,
}

impl Flows for Rules {
    fn route(&self, _: &TimerName, payload: &[u8]) -> Route {
        Flow::new(String::from_utf8_lossy(payload)).into()
    }

    fn limits(&self, flow: &Flow) -> FlowLimits {
        let name = EndpointName::new(flow.as_str()).expect("a name");
        let unseen = match self.mistake {
            Some(Mistake::PauseUnseen) => Some(0),
            Some(Mistake::ProbesAtWill) => Some(1),
            _ => None,
        };
        let at_once = self.breakers.at_once(&name);
        let at_once = at_once.filter(|at_once| Some(*at_once) != unseen);
        FlowLimits {
            at_once,
            ..FlowLimits::default()
        }
    }
}

/// What a world knows of an endpoint without its breaker.
#[derive(Default)]
struct Model {
    is_down: bool,
    failures: u32,
    running: u32,
    /// Until when nothing starts, and the pause.
    pause: Option<(Instant, Duration)>,
    is_probing: bool,
}

struct World {
    random: Random,
    clock: ManualClock,
    engine: Engine,
    store: Arc<MemoryStore>,
    breakers: Arc<Breakers>,
    breaker: Breaker,
    woken: Arc<AtomicBool>,
    mistake: Option<Mistake>,
    models: BTreeMap<String, Model>,
    running: Vec<(Instant, Attempt)>,
    timers: u64,
    attempts: u64,
}

impl World {
    fn new(seed: u64, mistake: Option<Mistake>) -> Self {
        let mut random = Random::new(seed);
        let (clock, store) = (ManualClock::new(), Arc::new(MemoryStore::new(seed)));
        let breakers = Arc::<Breakers>::default();
        let known = Arc::clone(&breakers);
        let config = Config {
            flows: Some(Arc::new(Rules {
                breakers: known,
                mistake,
            })),
            seed,
            ..Config::default()
        };
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let engine = Engine::open(store.clone(), Shard::ONLY, shared, config).expect("it opens");
        let woken = Arc::<AtomicBool>::default();
        let wakes = Arc::clone(&woken);
        engine.on_room(move || wakes.store(true, Ordering::Relaxed));
        let pause = Duration::from_millis(100 + random.below(900));
        let names = (0..ENDPOINTS).map(|number| format!("endpoint-{number}"));
        Self {
            breaker: Breaker {
                failures: u32::try_from(1 + random.below(4)).expect("few"),
                pause,
                pause_max: pause * 4,
            },
            random,
            clock,
            engine,
            store,
            breakers,
            woken,
            mistake,
            models: names.map(|name| (name, Model::default())).collect(),
            running: Vec::new(),
            timers: 0,
            attempts: 0,
        }
    }

    fn live(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            let number = self.random.below(ENDPOINTS);
            match self.random.below(10) {
                0..4 => self.set(number)?,
                4 => {
                    // One stays well, so that it shows whether others delay it.
                    let name = format!("endpoint-{}", number.max(1));
                    let model = self.models.get_mut(&name).expect("known");
                    model.is_down = !model.is_down;
                }
                _ => self.pass_time()?,
            }
            self.rest()?;
        }
        for model in self.models.values_mut() {
            model.is_down = false;
        }
        for _ in 0..10_000 {
            self.rest()?;
            let counts = self.store.counts(Shard::ONLY).expect("counts");
            let left = |state| counts.iter().map(|of| of.of(state)).sum::<u64>();
            if left(StateKind::Pending) + left(StateKind::Delivering) == 0 {
                let dead = left(StateKind::Dead);
                return (dead == 0).then_some(()).ok_or(format!("{dead} are dead"));
            }
            self.pass_time()?;
        }
        Err("it does not come to its end".to_owned())
    }

    fn set(&mut self, number: u64) -> Result<(), String> {
        self.timers += 1;
        let set = Request::Set {
            name: TimerName::new("q", format!("k-{}", self.timers)).expect("a name"),
            due: Due::In(Duration::from_millis(self.random.below(500))),
            policy: RetryPolicy::fixed(Duration::from_millis(50)),
            payload: format!("endpoint-{number}").into_bytes(),
            precondition: Precondition::None,
            options: SetOptions::default(),
        };
        self.turn(vec![Event::Request(Ticket(self.timers), set)])
    }

    fn pass_time(&mut self) -> Result<(), String> {
        let now = self.clock.now();
        let wake = self.engine.next_wake();
        let wake = wake.map(|at| at.saturating_since(self.clock.timestamp()));
        let ends = self.running.iter().map(|(at, _)| at.saturating_since(now));
        let pauses = self.models.values().filter_map(|model| model.pause);
        let pauses = pauses.map(|(until, _)| until.saturating_since(now));
        let next = wake.into_iter().chain(ends).chain(pauses);
        let span = next.filter(|span| !span.is_zero()).min();
        self.clock.advance(span.unwrap_or(Duration::from_millis(1)));
        let now = self.clock.now();
        for (name, model) in &mut self.models {
            if model.pause.is_some_and(|(until, _)| until <= now) {
                model.is_probing = true;
                let named = EndpointName::new(name).expect("a name");
                let is_looked_for = self.mistake != Some(Mistake::PauseForever);
                let is_open = is_looked_for && self.breakers.half_open(&named, &self.clock);
                if is_open && self.mistake != Some(Mistake::TurnUnsaid) {
                    self.engine.flows_changed();
                }
                if let Some((until, pause)) = model.pause.take() {
                    model.pause = Some((until, pause)).filter(|_| until > now);
                    if model.pause.is_none() {
                        model.pause = Some((Instant::ZERO, pause));
                    }
                }
            }
        }
        let (over, rest) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.running = rest;
        for (_, attempt) in over {
            self.end(&attempt)?;
        }
        Ok(())
    }

    fn end(&mut self, attempt: &Attempt) -> Result<(), String> {
        let name = String::from_utf8_lossy(&attempt.payload).into_owned();
        let named = EndpointName::new(&name).expect("a name");
        let (now, breaker) = (self.clock.now(), self.breaker);
        let model = self.models.get_mut(&name).expect("known");
        model.running -= 1;
        let sign = if model.is_down {
            Sign::Failing
        } else {
            Sign::Alive
        };
        let is_paused = model.pause.is_some_and(|(until, _)| until > now);
        let expected = match (sign, model.is_probing, is_paused) {
            (Sign::Alive, is_probing, _) => {
                let was_open = is_probing || model.pause.is_some();
                (model.failures, model.is_probing, model.pause) = (0, false, None);
                if was_open {
                    Turn::Closed
                } else {
                    Turn::Nothing
                }
            }
            (Sign::Failing, true, _) => {
                let before = model.pause.map_or(breaker.pause, |(_, pause)| pause);
                let pause = (before * 2).min(breaker.pause_max);
                (model.pause, model.is_probing) = (Some((now + pause, pause)), false);
                Turn::Opened(pause)
            }
            (Sign::Failing, false, true) => Turn::Nothing,
            (Sign::Failing, false, false) => {
                model.failures += 1;
                if model.failures >= breaker.failures {
                    model.pause = Some((now + breaker.pause, breaker.pause));
                    Turn::Opened(breaker.pause)
                } else {
                    Turn::Nothing
                }
            }
        };
        let limited = Breaker {
            pause_max: match self.mistake {
                Some(Mistake::PauseAsBefore) => breaker.pause,
                _ => breaker.pause_max,
            },
            ..breaker
        };
        let turn = self
            .breakers
            .ended(&named, Some(limited), (sign, "x"), || true, &self.clock);
        if turn != expected {
            return Err(format!("{name} turned: {turn:?}, and not {expected:?}"));
        }
        if turn == Turn::Closed && self.mistake != Some(Mistake::TurnUnsaid) {
            self.engine.flows_changed();
        }
        let verdict = match sign {
            Sign::Alive => Verdict::Done,
            Sign::Failing => Verdict::Failed { retry_after: None },
        };
        self.turn(vec![Event::Outcome {
            revision: attempt.revision,
            outcome: Outcome::new(verdict, ""),
        }])
    }

    fn rest(&mut self) -> Result<(), String> {
        for _ in 0..10_000 {
            let wall = self.clock.timestamp();
            let is_due = self.engine.next_wake().is_some_and(|at| at <= wall);
            if !is_due && !self.woken.swap(false, Ordering::Relaxed) {
                return Ok(());
            }
            self.turn(Vec::new())?;
        }
        Err("there is always something to do".to_owned())
    }

    fn turn(&mut self, events: Vec<Event>) -> Result<(), String> {
        let mut starts = Vec::new();
        let taken = self.engine.turn(events, &mut |effect| {
            if let Effect::Start(attempt) = effect {
                starts.push(attempt);
            }
        });
        taken.map_err(|error| error.to_string())?;
        for attempt in starts {
            self.start(attempt)?;
        }
        Ok(())
    }

    fn start(&mut self, attempt: Attempt) -> Result<(), String> {
        self.attempts += 1;
        let name = String::from_utf8_lossy(&attempt.payload).into_owned();
        let now = self.clock.now();
        let model = self.models.get_mut(&name).expect("known");
        if model.pause.is_some_and(|(until, _)| until > now) {
            return Err(format!("an attempt starts in the pause of {name}"));
        }
        if model.is_probing && model.running > 0 {
            return Err(format!("more than one attempt probes {name}"));
        }
        if name == "endpoint-0" && (attempt.held + attempt.lateness()) != Duration::ZERO {
            return Err(format!("{name} is well, and its attempt waited"));
        }
        model.running += 1;
        let takes = Duration::from_millis(1 + self.random.below(40));
        self.running.push((now + takes, attempt));
        Ok(())
    }
}

fn first_failure(mistake: Option<Mistake>) -> Option<(u64, String)> {
    (1..=SEEDS).find_map(|seed| {
        let mut world = World::new(seed, mistake);
        let failed = world.live().err();
        assert!(failed.is_some() || world.attempts > 0);
        failed.map(|why| (seed, why))
    })
}

#[test]
fn endpoints_that_fail_are_left_alone_and_delay_no_other() {
    assert_eq!(first_failure(None), None);
}

#[test]
fn each_mistake_of_a_breaker_is_found() {
    for mistake in MISTAKES {
        assert!(first_failure(Some(mistake)).is_some(), "{mistake:?}");
    }
}
