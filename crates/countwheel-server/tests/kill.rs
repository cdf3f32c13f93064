//! The server is killed under load, again and again; nothing that it acknowledged is lost.
//!
//! `COUNTWHEEL_KILLS` says how often, `COUNTWHEEL_SEED` repeats what is asked.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

mod harness;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Barrier;
use std::time::Duration;

use serde_json::{Value, json};

use harness::caller::{self, Caller, Reply, number, text, time};
use harness::checker::{
    Answer, Asked, Event, Evidence, Fault, Made, Moved, Sight, StateKind, Was, What, judge,
};
use harness::figures::{self, Spans};
use harness::process::Server;
use harness::receiver::Receiver;
use harness::{Directory, Random, micros, now_us, pause, seed, setting, wait_until};

const WORKERS: u64 = 6;
/// How many keys each worker has: together, the most timers there are.
const KEYS: u64 = 800;
/// How far away a deadline is that does not come while this runs.
const FAR_MILLIS: u64 = 3_600_000;

#[test]
#[ignore = "a minute long: cargo xtask check kill"]
fn kills_under_load_lose_nothing() {
    let kills = setting("COUNTWHEEL_KILLS", || 200);
    let mut random = Random::new(seed());
    let directory = Directory::new("kill");
    let receiver = Receiver::start();
    let start = now_us();
    let mut server = Server::start(&directory.join("data"));
    let mut workers: Vec<_> = (0..WORKERS)
        .map(|name| Worker::new(name, &receiver.url, &mut random))
        .collect();
    for _ in 0..kills {
        let load = Duration::from_micros(random.between(20_000, 150_000));
        let looked = Barrier::new(workers.len() + 1);
        std::thread::scope(|scope| {
            for worker in &mut workers {
                let mut caller = server.caller();
                let looked = &looked;
                scope.spawn(move || {
                    worker.look(&mut caller);
                    looked.wait();
                    worker.work(&mut caller);
                });
            }
            looked.wait();
            let end = now_us() + micros(load);
            while now_us() < end {
                pause();
            }
            server.kill();
        });
        server.restart();
    }
    let took_us = now_us() - start;

    // What is near is delivered, and the rest is as it was promised.
    let settled_us = now_us() + 1_000_000;
    let mut caller = server.caller();
    for worker in &mut workers {
        worker.look(&mut caller);
    }
    wait_until("what is near is delivered", || caller.is_quiet(settled_us));
    let mut histories: BTreeMap<_, _> = workers.into_iter().flat_map(|one| one.histories).collect();
    let sent_us = now_us();
    let all: HashMap<_, _> = caller.all().into_iter().collect();
    let kept = all.len();
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
    assert!(all.keys().all(|key| histories.contains_key(key)));
    let evidence = Evidence {
        histories,
        arrivals: receiver.arrivals(),
        settled_us,
    };
    let verdict = judge(&evidence);

    let states: Vec<_> = states
        .iter()
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    let moved_late = verdict.moves_too_late;
    let removed_late = verdict.removes_too_late;
    let removed_meanwhile = verdict.removes_while_delivering;
    let fault = |fault| verdict.count(fault).to_string();
    figures::print(
        &format!("{kills} kills under load"),
        &[
            ("cycles", server.outages.len().to_string()),
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
                format!(
                    "{} of {} timers",
                    evidence.arrivals.len(),
                    verdict.delivered
                ),
            ),
            (
                "duplicates",
                format!("{}, each with its own number", verdict.duplicates),
            ),
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
                    evidence
                        .arrivals
                        .iter()
                        .map(|one| one.at_us.saturating_sub(one.due_us)),
                )
                .ranked(),
            ),
            ("took", format!("{} ms", took_us / 1_000)),
        ],
    );
    verdict.demand_innocence();
    assert!(verdict.sets > 0 && verdict.moves > 0 && verdict.removes > 0);
}

/// Asks for one thing after the other, on keys of its own, until no answer comes.
struct Worker {
    name: u64,
    target: String,
    random: Random,
    histories: BTreeMap<String, Vec<Event>>,
    /// The keys asked for since the last look.
    touched: BTreeSet<String>,
}

impl Worker {
    fn new(name: u64, target: &str, random: &mut Random) -> Self {
        Self {
            name,
            target: target.to_owned(),
            random: Random::new(random.between(0, u64::MAX)),
            histories: BTreeMap::new(),
            touched: BTreeSet::new(),
        }
    }

    /// Looks at what was touched before the last kill.
    fn look(&mut self, caller: &mut Caller) {
        for key in std::mem::take(&mut self.touched) {
            let sent_us = now_us();
            let sight = look(caller, &key);
            self.note(key, sent_us, What::Look(sight));
        }
    }

    /// Asks until the server is killed.
    fn work(&mut self, caller: &mut Caller) {
        loop {
            let key = format!("{}-{}", self.name, self.random.between(0, KEYS));
            let sent_us = now_us();
            let (what, answered) = match self.random.between(0, 100) {
                0..55 => self.set(caller, &key),
                55..80 => self.shift(caller, &key),
                _ => remove(caller, &key),
            };
            self.touched.insert(key.clone());
            self.note(key, sent_us, what);
            if !answered {
                return;
            }
        }
    }

    fn set(&mut self, caller: &mut Caller, key: &str) -> (What, bool) {
        let (asked, mut body) = self.deadline();
        let body_bytes = match self.random.between(0, 4) {
            0 => self.random.between(9_000, 11_000),
            _ => self.random.between(1, 200),
        };
        let letters = "timers ".repeat(2_000);
        body["body"] = json!(letters[..usize::try_from(body_bytes).unwrap()]);
        body["content_type"] = json!("text/plain");
        body["target"] = json!({"url": self.target});
        let reply = caller.ask("PUT", &path(key), Some(&body));
        let answered = reply.is_some();
        let made = |body: &Value| Made {
            id: text(body, "id"),
            revision: number(body, "revision"),
            due_us: time(body, "due"),
            replaced: caller::state(&body["replaced"]),
        };
        let body_bytes = Some(body_bytes);
        let answer = answer(reply, made);
        (
            What::Set {
                asked,
                body_bytes,
                answer,
            },
            answered,
        )
    }

    fn shift(&mut self, caller: &mut Caller, key: &str) -> (What, bool) {
        let (asked, body) = self.deadline();
        let reply = caller.ask("PATCH", &path(key), Some(&body));
        let answered = reply.is_some();
        let moved = |body: &Value| Moved {
            revision: number(body, "revision"),
            due_us: time(body, "due"),
        };
        let answer = answer(reply, moved);
        (What::Move { asked, answer }, answered)
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

/// Looks at a timer, on a server that is not killed meanwhile.
fn look(caller: &mut Caller, key: &str) -> Option<Sight> {
    let reply = caller.ask("GET", &path(key), None).expect("an answer");
    match reply.status {
        200 => Some(caller::sight(&reply.body)),
        404 => None,
        other => panic!("GET {key}: {other} {}", reply.body),
    }
}

fn remove(caller: &mut Caller, key: &str) -> (What, bool) {
    let reply = caller.ask("DELETE", &path(key), None);
    let answered = reply.is_some();
    let was = |body: &Value| Was {
        state: caller::state(&body["was"]).unwrap_or_else(|| panic!("was: {body}")),
        attempt: body["attempt"].as_u64(),
    };
    let answer = answer(reply, was);
    (What::Remove { answer }, answered)
}

/// The keys here need no escape.
fn path(key: &str) -> String {
    format!("/v1/queues/default/timers/{key}")
}

/// Sorts an answer, and reads what it grants.
fn answer<T>(reply: Option<Reply>, read: impl FnOnce(&Value) -> T) -> Answer<T> {
    let Some(Reply { status, body }) = reply else {
        return Answer::Unknown;
    };
    match status {
        200 | 201 => Answer::Yes(read(&body)),
        404 => Answer::No(None),
        409 => match caller::state(&body["state"]) {
            Some(state) => Answer::No(Some(state)),
            None => Answer::Odd(body.to_string()),
        },
        410 => Answer::No(Some(StateKind::Done)),
        _ => Answer::Odd(format!("{status} {body}")),
    }
}
