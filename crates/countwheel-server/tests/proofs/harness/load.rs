//! Callers who ask for one thing after the other, and keep what they were told.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc;
use std::time::Duration;

use countwheel_durable::Shards;
use serde_json::{Value, json};

use super::caller::{self, Caller, Reply, number, text, time};
use super::checker::{
    Answer, Asked, Event, Evidence, Fault, Made, Moved, Sight, StateKind, Verdict, Was, What,
    demand_looks, judge,
};
use super::figures::{self, Spans};
use super::process::Server;
use super::receiver::Receiver;
use super::{Random, micros, now_us, pause, wait_until};

/// How far the wall clock may have come from the clock of delays: the two are read one after the
/// other, and whoever keeps the machine's time may set the wall clock a little.
pub(crate) const APART_US: u64 = 50_000;

const WORKERS: u64 = 6;
/// How many keys each worker has: together, the most timers there are.
const KEYS: u64 = 800;
/// How far away a deadline is that does not come while this runs.
const FAR_MILLIS: u64 = 3_600_000;

/// Callers at work, each on a connection and on keys of its own.
pub(crate) struct Load {
    workers: Vec<Worker>,
}

impl Load {
    pub(crate) fn new(target: &str, random: &mut Random) -> Self {
        Self {
            workers: (0..WORKERS)
                .map(|name| Worker::new(name, target, random))
                .collect(),
        }
    }

    /// The same, for a node of a cluster: it is well if another one does not say what came of something.
    pub(crate) fn of_a_node(target: &str, random: &mut Random) -> Self {
        let mut load = Self::new(target, random);
        for worker in &mut load.workers {
            worker.asks_a_node = true;
        }
        load
    }

    /// Looks at what was asked for before, then asks for more, until `trouble` has happened
    /// and the server is gone.
    pub(crate) fn until<T>(
        &mut self,
        server: &mut Server,
        trouble: impl FnOnce(&mut Server) -> T,
    ) -> T {
        // Nothing is sent: that all have let go of it means that all have looked.
        let (looking, looked) = mpsc::channel::<Infallible>();
        std::thread::scope(|scope| {
            for worker in &mut self.workers {
                let caller = Caller::connect(server.address);
                let looking = looking.clone();
                scope.spawn(move || {
                    // Some faults end the server before it is asked for anything.
                    let Some(mut caller) = caller else { return };
                    let answered = worker.look(&mut caller);
                    drop(looking);
                    if answered {
                        worker.work(&mut caller);
                    }
                });
            }
            drop(looking);
            looked.recv().unwrap_err();
            // Who asks goes on for as long as the server answers, also where the trouble has found a fault.
            let result = panic::catch_unwind(AssertUnwindSafe(|| trouble(server)));
            server.kill();
            result.unwrap_or_else(|fault| panic::resume_unwind(fault))
        })
    }

    /// How many requests were refused so far.
    pub(crate) fn refused(&self) -> u64 {
        self.workers.iter().map(|worker| worker.refused).sum()
    }

    /// Kills the server after so long under load, and starts it again.
    pub(crate) fn kill_after(&mut self, server: &mut Server, load: Duration) {
        self.until(server, |server| {
            super::wait(load);
            let ended = server.end_within(Duration::ZERO);
            assert!(ended.is_none(), "it ended by itself: {}", server.said());
        });
        server.restart();
    }

    /// Waits until what is near is delivered, and looks at everything there is.
    pub(crate) fn settle(mut self, server: &Server, receiver: &Receiver) -> Settled {
        let settled_us = now_us() + 1_000_000;
        let mut caller = server.caller();
        for worker in &mut self.workers {
            assert!(worker.look(&mut caller), "{}", server.said());
        }
        wait_until("what is near is delivered", || caller.is_quiet(settled_us));
        let refused = self.workers.iter().map(|worker| worker.refused).sum();
        let unread = self.workers.iter().map(|worker| worker.unread).sum();
        let health = self.workers.iter().flat_map(|worker| &worker.health);
        let mut health_after_failure: BTreeMap<Option<u16>, u64> = BTreeMap::new();
        for status in health {
            *health_after_failure.entry(*status).or_default() += 1;
        }
        let workers = self.workers.into_iter();
        let mut histories: BTreeMap<_, _> = workers.flat_map(|one| one.histories).collect();
        let sent_us = now_us();
        let all: HashMap<_, _> = caller.all().into_iter().collect();
        let mut states: BTreeMap<StateKind, u64> = BTreeMap::new();
        for sight in all.values() {
            *states.entry(sight.state).or_default() += 1;
        }
        for (key, history) in &mut histories {
            history.push(Event {
                sent_us,
                answered_us: now_us(),
                what: What::Look(all.get(key).cloned()),
            });
        }
        let mut strangers = all.iter().filter(|(key, _)| !histories.contains_key(*key));
        let stranger = strangers.next();
        assert!(
            stranger.is_none(),
            "nobody asked for {stranger:?} and {} more of {}",
            strangers.count(),
            all.len()
        );
        demand_looks(&histories);
        let evidence = Evidence {
            histories,
            arrivals: receiver.arrivals(),
            settled_us,
            apart_us: APART_US,
            kills_us: server.outages.iter().map(|(killed, _)| *killed).collect(),
            under_way_us: 0,
            behind_us: if server.launch.database.is_some() {
                APART_US
            } else {
                0
            },
            shards: server
                .launch
                .database
                .as_ref()
                .and_then(|_| Shards::new(64)),
        };
        Settled {
            evidence,
            states,
            refused,
            unread,
            health_after_failure,
        }
    }
}

/// What there was when everything near had been delivered.
pub(crate) struct Settled {
    pub(crate) evidence: Evidence,
    states: BTreeMap<StateKind, u64>,
    /// Requests that the server refused, with nothing done.
    pub(crate) refused: u64,
    /// Those among them that needed a record which could not be read.
    pub(crate) unread: u64,
    /// What `/healthz` said to callers who had just been told that the store failed; `None`
    /// where no answer came any more.
    pub(crate) health_after_failure: BTreeMap<Option<u16>, u64>,
}

impl Settled {
    /// Shows what kills under load came to, and demands that all was asked for and nothing is wrong.
    pub(crate) fn demand_innocence(&self, title: &str, server: &Server, took_us: u64) {
        let verdict = judge(&self.evidence);
        let mut rows = self.rows(&verdict, server);
        rows.insert(0, ("cycles", server.outages.len().to_string()));
        rows.push(("took", format!("{} ms", took_us / 1_000)));
        figures::print(title, &rows);
        verdict.demand_innocence();
        assert!(verdict.sets > 0 && verdict.moves > 0 && verdict.removes > 0);
    }

    /// What the run comes to, for people.
    pub(crate) fn rows(&self, verdict: &Verdict, server: &Server) -> Vec<(&'static str, String)> {
        let states: Vec<_> = self
            .states
            .iter()
            .map(|(state, count)| format!("{count} {state}"))
            .collect();
        let kept: u64 = self.states.values().sum();
        let arrivals = &self.evidence.arrivals;
        let moved_late = verdict.moves_too_late;
        let removed_late = verdict.removes_too_late;
        let removed_meanwhile = verdict.removes_while_delivering;
        let fault = |fault| verdict.count(fault).to_string();
        vec![
            ("sets", verdict.sets.to_string()),
            ("moves", format!("{}, {moved_late} refused", verdict.moves)),
            (
                "removes",
                format!(
                    "{}, {removed_late} refused, {removed_meanwhile} during an attempt",
                    verdict.removes
                ),
            ),
            ("unanswered", verdict.unanswered.to_string()),
            ("kept", format!("{kept}: {}", states.join(", "))),
            (
                "deliveries",
                format!("{} of {} timers", arrivals.len(), verdict.delivered),
            ),
            (
                "duplicates",
                format!("{}, each with its own number", verdict.duplicates),
            ),
            ("given up", verdict.given_up.to_string()),
            ("unread", self.unread.to_string()),
            ("lost", fault(Fault::Lost)),
            ("early", fault(Fault::Early)),
            ("after remove", fault(Fault::AfterRemove)),
            ("unmarked", fault(Fault::Unmarked)),
            ("strangers", fault(Fault::Stranger)),
            ("half", fault(Fault::Half)),
            ("revisions", fault(Fault::Revision)),
            ("odd answers", fault(Fault::Answer)),
            (
                "restart",
                Spans::new(server.restarts_us.iter().copied()).typical(),
            ),
            (
                "late, seen",
                Spans::new(
                    arrivals
                        .iter()
                        .map(|one| one.at_us.saturating_sub(one.due_us)),
                )
                .ranked(),
            ),
        ]
    }

    /// Fails if a caller who knew of the failure was told that all is well.
    #[track_caller]
    pub(crate) fn demand_red_health(&self) {
        let told = &self.health_after_failure;
        assert!(!told.contains_key(&Some(200)), "health: {told:?}");
    }
}

/// Asks for one thing after the other, on keys of its own, until no answer comes.
struct Worker {
    name: u64,
    target: String,
    random: Random,
    histories: BTreeMap<String, Vec<Event>>,
    /// The keys asked for since the last look.
    touched: BTreeSet<String>,
    /// Those of them of which nobody said what came of it: nothing more is asked before the look that decides.
    in_doubt: BTreeSet<String>,
    refused: u64,
    unread: u64,
    health: Vec<Option<u16>>,
    asks_a_node: bool,
}

/// What came of a request.
enum Said {
    Answer(Reply),
    /// Nothing, or that the outcome is not known since the server ends.
    Nothing,
    /// That another node did not say what came of it.
    Unknown,
    /// That nothing was done, for lack of something or for good.
    Refused {
        for_good: bool,
    },
}

impl Worker {
    fn new(name: u64, target: &str, random: &mut Random) -> Self {
        Self {
            name,
            target: target.to_owned(),
            random: Random::new(random.between(0, u64::MAX)),
            histories: BTreeMap::new(),
            touched: BTreeSet::new(),
            in_doubt: BTreeSet::new(),
            refused: 0,
            unread: 0,
            health: Vec::new(),
            asks_a_node: false,
        }
    }

    /// Looks at what was touched before the last kill. Whether all of it was answered.
    fn look(&mut self, caller: &mut Caller) -> bool {
        while let Some(key) = self.touched.first().cloned() {
            let sent_us = now_us();
            let Some(sight) = look(caller, &key) else {
                return false;
            };
            self.touched.remove(&key);
            self.in_doubt.remove(&key);
            self.note(key, sent_us, What::Look(sight));
        }
        true
    }

    /// Asks until the server is gone, or says that it is going.
    fn work(&mut self, caller: &mut Caller) {
        loop {
            let kind = self.random.between(0, 100);
            let key = self.key(kind >= 55);
            if self.in_doubt.contains(&key) {
                continue;
            }
            let sent_us = now_us();
            let (said, what) = match kind {
                0..55 => self.set(caller, &key),
                55..80 => self.shift(caller, &key),
                _ => self.remove(caller, &key),
            };
            self.touched.insert(key.clone());
            // A refusal is no event: the next look has to find what was there before.
            if !matches!(said, Said::Refused { .. }) {
                self.note(key.clone(), sent_us, what);
            }
            match said {
                Said::Answer(_) => {}
                Said::Unknown => {
                    self.in_doubt.insert(key);
                }
                Said::Refused { for_good: false } => {
                    self.refused += 1;
                    pause();
                }
                Said::Refused { for_good: true } => {
                    self.refused += 1;
                    return;
                }
                Said::Nothing => return,
            }
        }
    }

    /// Any of its keys, or mostly one that was asked for before: a server with little time between two
    /// troubles has few timers, and a move of any other key is refused.
    fn key(&mut self, known: bool) -> String {
        let count = self.histories.len() as u64;
        if known && count > 0 && self.random.between(0, 4) > 0 {
            let at = usize::try_from(self.random.between(0, count)).unwrap();
            if let Some(key) = self.histories.keys().nth(at) {
                return key.clone();
            }
        }
        format!("{}-{}", self.name, self.random.between(0, KEYS))
    }

    fn ask(&mut self, caller: &mut Caller, method: &str, key: &str, body: Option<&Value>) -> Said {
        let Some(reply) = caller.ask(method, &path(key), body) else {
            return Said::Nothing;
        };
        match reply.status {
            429 | 507 => Said::Refused { for_good: false },
            // The disk is gone, and the log does not know yet.
            500 if reply.body["code"] == "unreadable" => {
                self.unread += 1;
                Said::Refused { for_good: false }
            }
            // A database that is away has done nothing, and neither has a node that is.
            503 if is_away(&reply.body["detail"]) || reply.body["code"] == "shard_unavailable" => {
                Said::Refused { for_good: false }
            }
            503 if self.asks_a_node && reply.body["code"] == "unknown" => Said::Unknown,
            503 => {
                let health = caller.ask("GET", "/healthz", None);
                let detail = reply.body["detail"].as_str().unwrap_or_default();
                // That a record could not be read ends that request, not the store: what is
                // final is a commit that failed.
                if !["shutting down", "the store could not be read"].contains(&detail) {
                    let status = health.map(|reply| reply.status);
                    if status == Some(200) {
                        eprintln!("told {detail:?}, and that all is well");
                    }
                    self.health.push(status);
                }
                if reply.body["code"] == "unknown" {
                    Said::Nothing
                } else {
                    Said::Refused { for_good: true }
                }
            }
            _ => Said::Answer(reply),
        }
    }

    fn set(&mut self, caller: &mut Caller, key: &str) -> (Said, What) {
        let (asked, mut body) = self.deadline();
        let body_bytes = match self.random.between(0, 4) {
            0 => self.random.between(9_000, 11_000),
            _ => self.random.between(1, 200),
        };
        let letters = "timers ".repeat(2_000);
        body["body"] = json!(letters[..usize::try_from(body_bytes).unwrap()]);
        body["content_type"] = json!("text/plain");
        body["target"] = json!({"url": self.target});
        let said = self.ask(caller, "PUT", key, Some(&body));
        let made = |body: &Value| Made {
            id: text(body, "id"),
            revision: number(body, "revision"),
            due_us: time(body, "due"),
            replaced: caller::state(&body["replaced"]),
        };
        let body_bytes = Some(body_bytes);
        let answer = said.answer(made);
        (
            said,
            What::Set {
                asked,
                body_bytes,
                answer,
            },
        )
    }

    fn shift(&mut self, caller: &mut Caller, key: &str) -> (Said, What) {
        let (asked, body) = self.deadline();
        let said = self.ask(caller, "PATCH", key, Some(&body));
        let moved = |body: &Value| Moved {
            revision: number(body, "revision"),
            due_us: time(body, "due"),
        };
        let answer = said.answer(moved);
        (said, What::Move { asked, answer })
    }

    fn remove(&mut self, caller: &mut Caller, key: &str) -> (Said, What) {
        let said = self.ask(caller, "DELETE", key, None);
        let was = |body: &Value| Was {
            state: caller::state(&body["was"]).unwrap_or_else(|| panic!("was: {body}")),
            attempt: body["attempt"].as_u64(),
        };
        let answer = said.answer(was);
        (said, What::Remove { answer })
    }

    /// Sometimes while the load goes on, sometimes in an hour; as a span or as a time.
    fn deadline(&mut self) -> (Asked, Value) {
        let near = self.random.between(0, 3) == 0;
        let millis = self.random.between(0, 200) + if near { 0 } else { FAR_MILLIS };
        if self.random.between(0, 2) == 0 {
            return (Asked::In(millis * 1_000), json!({ "in": millis }));
        }
        let at = now_us() + millis * 1_000;
        (Asked::At(at), json!({ "at": caller::moment(at) }))
    }

    fn note(&mut self, key: String, sent_us: u64, what: What) {
        let event = Event {
            sent_us,
            answered_us: now_us(),
            what,
        };
        self.histories.entry(key).or_default().push(event);
    }
}

/// Looks at a timer. `None` if the server cannot tell any more.
fn is_away(detail: &Value) -> bool {
    let detail = detail.as_str().unwrap_or_default();
    detail.starts_with("the store is not available")
}

fn look(caller: &mut Caller, key: &str) -> Option<Option<Sight>> {
    let reply = caller.ask("GET", &path(key), None)?;
    match reply.status {
        200 => Some(Some(caller::sight(&reply.body))),
        404 => Some(None),
        503 => None,
        other => panic!("GET {key}: {other} {}", reply.body),
    }
}

/// The keys here need no escape.
fn path(key: &str) -> String {
    format!("/v1/queues/default/timers/{key}")
}

impl Said {
    /// Sorts an answer, and reads what it grants.
    fn answer<T>(&self, read: impl FnOnce(&Value) -> T) -> Answer<T> {
        let Self::Answer(Reply { status, body }) = self else {
            return Answer::Unknown;
        };
        match status {
            200 | 201 => Answer::Yes(read(body)),
            404 => Answer::No(None),
            409 => match caller::state(&body["state"]) {
                Some(state) => Answer::No(Some(state)),
                None => Answer::Odd(body.to_string()),
            },
            410 => Answer::No(Some(StateKind::Done)),
            _ => Answer::Odd(format!("{status} {body}")),
        }
    }
}

/// A span of load between two faults.
pub(crate) fn span(random: &mut Random, from: Duration, to: Duration) -> Duration {
    Duration::from_micros(random.between(micros(from), micros(to)))
}
