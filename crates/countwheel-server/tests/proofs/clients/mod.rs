//! The clients in Rust, TypeScript and Python against the real program, which is killed and started again all the time.
//!
//! The sentences of the verbs hold of each client: first on a calm server, then under kills. An answer whose request met a
//! kill may tell of its own first try, or say that nobody knows: then the sentence begins anew, with another queue, until it
//! was heard to its end. Anything else that is not what the sentence says is a fault, kill or no kill: above all a timer
//! that was acknowledged and is gone.
//!
//! The workers and the receivers of the clients do their work under kills as well: each timer is handled at least
//! once, and no delivery twice.
//!
//! The clients in TypeScript and Python are in `clients/`; `COUNTWHEEL_CLIENTS` names another directory of them.
//! `COUNTWHEEL_CLIENTS_SECONDS` says for how long each part goes on, `COUNTWHEEL_SEED` repeats what is drawn.

mod administration;
mod checks;
mod speakers;
mod target;
mod work;

#[allow(dead_code, reason = "the example has a main as well")]
#[path = "../../../../countwheel-client/examples/tour.rs"]
mod tour;

#[path = "../../it/sentences/table.rs"]
mod table;
#[allow(
    dead_code,
    reason = "a speaker that does not say where it moved from is none of these"
)]
#[path = "../../it/sentences/words.rs"]
mod words;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use countwheel_time::{Clock, SystemClock, Timestamp};
use serde_json::{Value, json};

use self::speakers::{Speaker, Spoken};
use self::table::SENTENCES;
use self::target::Target;
use self::words::{Delivery, Do, Mode, NO_REVISION, Revision, Say, Sentence};
use crate::harness::load::span;
use crate::harness::process::Server;
use crate::harness::{
    Directory, PATIENCE, Random, figures, micros, now_us, pause, seed, setting, turn, wait,
};

/// So often a sentence is begun at the most: it meets a kill about every third time.
const BEGINNINGS: u32 = 60;
/// For so long a state is waited for that a kill may have taken away.
const IMPATIENCE: Duration = Duration::from_secs(3);

/// Counts the kills: odd from a kill on until the server is ready again.
#[derive(Default)]
pub(crate) struct Kills(AtomicU64);

impl Kills {
    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn count(&self) -> u64 {
        self.now().div_ceil(2)
    }

    /// Kills the server and starts it again, until that is to stop.
    pub(crate) fn go_on(&self, server: &mut Server, stops: &AtomicBool, random: &mut Random) {
        while !stops.load(Ordering::SeqCst) {
            let calm = span(
                random,
                Duration::from_millis(100),
                Duration::from_millis(900),
            );
            wait(calm);
            self.0.fetch_add(1, Ordering::SeqCst);
            server.kill();
            server.restart();
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Sets a flag when it goes.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// How a sentence came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    /// Each step was answered as it says.
    Whole,
    /// A kill has made an answer unsure.
    Unsure,
}

/// Somebody who hears one sentence.
struct Ear<'a> {
    speaker: &'a mut dyn Speaker,
    target: &'a Target,
    kills: &'a Kills,
    queue: String,
    start: Timestamp,
    /// The kills when the sentence began.
    began: u64,
    revision: u64,
}

impl Ear<'_> {
    fn hear(&mut self, sentence: &Sentence) -> Heard {
        let steps = (sentence.steps)();
        let hangs = |what: &Do| matches!(what, Do::Set(_, _, Delivery::Hangs));
        let hangs = steps.iter().any(|(what, _)| hangs(what));
        for (index, (what, expected)) in steps.iter().enumerate() {
            let before = self.kills.now();
            let answer = match *what {
                Do::Await(key, state) => self.wait(key, state, hangs),
                Do::Release => {
                    self.target.release(&self.queue);
                    Ok(Say::Done)
                }
                what => self.ask(what),
            };
            if matches!(&answer, Ok(say) if expected.is_said_by(say)) {
                continue;
            }
            let met_kill = before % 2 == 1 || self.kills.now() != before;
            let is_of_own = match &answer {
                Ok(say) => is_of_own_first_try(*what, say),
                // Nobody knows, or the client has given up.
                Err(_) => true,
            };
            // A delivery that a kill has ended begins anew, so a state during it may be another one.
            let is_another_attempt = hangs && self.kills.now() != self.began;
            assert!(
                (met_kill && is_of_own) || is_another_attempt,
                "{}: {:?}, step {index}, {what:?}: answered {answer:?}, expected {expected:?}; kills {before}, {}",
                self.speaker.name(),
                sentence.says,
                self.kills.now(),
            );
            return Heard::Unsure;
        }
        Heard::Whole
    }

    /// Asks; the error is what the client says of a failure.
    fn ask(&mut self, what: Do) -> Result<Say, String> {
        let asked = self.asked(what);
        match self.speaker.ask(&asked) {
            Spoken::Ok(answer) => {
                if let Some(revision) = answer["revision"].as_u64() {
                    self.revision = revision;
                }
                Ok(Say::of(what, &answer, self.start))
            }
            Spoken::No(code) => Ok(Say::No(code)),
            Spoken::Error(error) => Err(error),
        }
    }

    /// What is asked, as the speakers have it.
    fn asked(&self, what: Do) -> Value {
        let revision = |which| match which {
            Revision::Last => json!({ "revision": self.revision }),
            Revision::Wrong => json!({ "revision": NO_REVISION }),
        };
        let hours = |hours: i64| format!("{hours}h");
        let set = |key: &str, at, how: Delivery, condition: Value| {
            let url = format!("{}/{}", self.target.url, how.name());
            json!({"do": "set", "key": key, "in": hours(at), "url": url, "if": condition,
                   "retry": {"fixed": "1s", "max_attempts": 1}})
        };
        let done = Delivery::Done;
        let drain = |mode: Mode| json!({"do": "drain", "mode": mode.name()});
        let mut asked = match what {
            Do::Set(key, at, how) => set(key, at, how, Value::Null),
            Do::SetNew(key, at) => set(key, at, done, json!("absent")),
            Do::SetIf(key, at, which) => set(key, at, done, revision(which)),
            Do::MoveTo(key, at) => json!({"do": "move", "key": key, "in": hours(at), "if": null}),
            Do::MoveBy(key, by) => json!({"do": "move", "key": key, "by": hours(by), "if": null}),
            Do::MoveIf(key, at, which) => {
                json!({"do": "move", "key": key, "in": hours(at), "if": revision(which)})
            }
            Do::Remove(key) => {
                json!({"do": "remove", "key": key, "only_pending": false, "if": null})
            }
            Do::RemoveIf(key, which) => {
                json!({"do": "remove", "key": key, "only_pending": false, "if": revision(which)})
            }
            Do::RemovePending(key) => {
                json!({"do": "remove", "key": key, "only_pending": true, "if": null})
            }
            Do::Get(key) => json!({"do": "get", "key": key}),
            Do::List => json!({"do": "list"}),
            Do::Fire(key) => json!({"do": "fire", "key": key}),
            Do::Revive(key, at) => json!({"do": "revive", "key": key, "in": hours(at)}),
            Do::Drain(mode) | Do::DrainAll(mode) => drain(mode),
            Do::Resume | Do::ResumeAll => json!({"do": "resume"}),
            Do::Await(..) | Do::Release => unreachable!("nobody is asked"),
        };
        asked["queue"] = match what {
            Do::DrainAll(_) | Do::ResumeAll => Value::Null,
            _ => self.queue.as_str().into(),
        };
        asked
    }

    /// Waits until the timer is in this state.
    fn wait(&mut self, key: &'static str, state: &str, hangs: bool) -> Result<Say, String> {
        let began = now_us();
        loop {
            let found = self.ask(Do::Get(key));
            if matches!(&found, Ok(Say::Is(found, _)) if found == state) {
                return Ok(Say::Done);
            }
            let is_unsure = hangs && self.kills.now() != self.began;
            let patience = if is_unsure { IMPATIENCE } else { PATIENCE };
            if now_us() > began + micros(patience) {
                assert!(
                    is_unsure,
                    "{}: {key} is {found:?}, not {state}",
                    self.speaker.name()
                );
                return Err(format!("{key} is {found:?}, not {state}"));
            }
            pause();
        }
    }
}

/// Whether an answer is one that the second try of a request may have, of which the first has taken effect.
fn is_of_own_first_try(what: Do, say: &Say) -> bool {
    let refused = |codes: &[&str]| matches!(say, Say::No(code) if codes.contains(&code.as_str()));
    match what {
        Do::Set(..) => *say == Say::Set(Some("pending".to_owned())),
        Do::SetNew(..) => refused(&["exists"]),
        Do::SetIf(..) | Do::MoveIf(..) => refused(&["revision_mismatch"]),
        Do::MoveTo(..) => matches!(say, Say::Moved(from, to) if from == to),
        Do::Remove(_) | Do::RemoveIf(..) | Do::RemovePending(_) => refused(&["not_found"]),
        Do::Fire(_) => *say == Say::Moved(0, 0) || refused(&["conflict", "gone"]),
        Do::Revive(..) => refused(&["conflict"]),
        Do::Drain(Mode::Remove) => *say == Say::Drained(vec![], [0; 3]),
        Do::Resume | Do::ResumeAll => *say == Say::Resumed(None),
        // A move by a span is not repeated, and the others change nothing by which their second answer would be another one.
        Do::MoveBy(..)
        | Do::Drain(_)
        | Do::DrainAll(_)
        | Do::Get(_)
        | Do::List
        | Do::Await(..)
        | Do::Release => false,
    }
}

/// What came of the sentences of a client.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    whole: usize,
    unsure: u32,
    kills: u64,
}

/// Hears all sentences of a client: on a calm server, and then under kills for that long.
fn hear_all(
    name: &str,
    server: &mut Server,
    target: &Target,
    random: &mut Random,
    span: Duration,
) -> Tally {
    let mut speaker = speakers::of(name, &format!("http://{}", server.address));
    let kills = Kills::default();
    let calm = (0..SENTENCES.len()).map(|number| {
        let queue = format!("{name}-calm-{number}");
        let heard = hear_one(&mut *speaker, target, &kills, number, queue);
        assert_eq!(heard, Heard::Whole, "{}", SENTENCES[number].says);
    });
    assert_eq!(calm.count(), SENTENCES.len());
    let stops = AtomicBool::new(false);
    let mut tally = Tally::default();
    let address = server.address;
    std::thread::scope(|scope| {
        let killing = scope.spawn(|| kills.go_on(server, &stops, random));
        let _ends = Ends(&stops);
        let end = now_us() + micros(span);
        for round in 0.. {
            if round > 0 && now_us() > end {
                break;
            }
            for (number, sentence) in SENTENCES.iter().enumerate() {
                if round > 0 && now_us() > end {
                    break;
                }
                let begun = (0..BEGINNINGS).find(|again| {
                    let queue = format!("{name}-killed-{round}-{number}-{again}");
                    let heard = hear_one(&mut *speaker, target, &kills, number, queue);
                    if heard == Heard::Unsure {
                        // The drain of all queues may go on.
                        target::resume(address, &kills);
                    }
                    heard == Heard::Whole
                });
                let says = sentence.says;
                tally.unsure += begun.unwrap_or_else(|| panic!("never heard whole: {says}"));
                tally.whole += 1;
            }
        }
        stops.store(true, Ordering::SeqCst);
        killing.join().unwrap();
    });
    tally.kills = kills.count();
    tally
}

fn hear_one(
    speaker: &mut dyn Speaker,
    target: &Target,
    kills: &Kills,
    number: usize,
    queue: String,
) -> Heard {
    let began = kills.now();
    let mut ear = Ear {
        speaker,
        target,
        kills,
        queue,
        start: SystemClock::new().timestamp(),
        began,
        revision: 0,
    };
    let heard = ear.hear(&SENTENCES[number]);
    // What hangs hangs no more.
    target.release(&ear.queue);
    heard
}

#[test]
#[ignore = "needs Python and Node with packages: cargo xtask check clients"]
fn every_sentence_holds_of_each_client_while_the_server_is_killed() {
    let _turn = turn();
    let seconds = setting("COUNTWHEEL_CLIENTS_SECONDS", || 8);
    let seed = seed();
    let directory = Directory::new("clients");
    let target = Target::start();
    let names = ["Rust", "TypeScript", "Python"];
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let hearing = names.iter().zip(seed..).map(|(name, seed)| {
            let (directory, target) = (&directory, &target);
            scope.spawn(move || {
                let mut server = Server::start(&directory.join(name));
                let span = Duration::from_secs(seconds);
                hear_all(name, &mut server, target, &mut Random::new(seed), span)
            })
        });
        let hearing: Vec<_> = hearing.collect();
        hearing.into_iter().map(|it| it.join().unwrap()).collect()
    });
    for (name, tally) in names.iter().zip(&tallies) {
        figures::print(
            &format!("the sentences of the client in {name}"),
            &[
                ("heard whole under kills", tally.whole.to_string()),
                ("begun anew after a kill", tally.unsure.to_string()),
                ("kills", tally.kills.to_string()),
            ],
        );
        assert!(tally.whole >= SENTENCES.len(), "{name}: {tally:?}");
        assert!(tally.kills >= 3, "{name}: {tally:?}");
    }
}

#[test]
#[ignore = "a server of its own: cargo xtask check clients"]
fn the_example_of_the_client_runs() {
    let _turn = turn();
    let directory = Directory::new("tour");
    let server = Server::start(&directory.join("data"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = format!("http://{}", server.address);
    runtime.block_on(tour::tour(&url)).unwrap();
    let mut caller = server.caller();
    let jobs = caller
        .ask("GET", "/v1/queues/tour-jobs", None)
        .unwrap()
        .body;
    assert_eq!(jobs["done"], 1, "{jobs}");
    let left = caller.ask("GET", "/v1/queues/tour/timers/later", None);
    assert_eq!(left.unwrap().status, 404);
}

#[test]
fn an_answer_of_another_effect_than_its_own_is_a_fault() {
    let set = Do::Set("a", 2, Delivery::Done);
    assert!(is_of_own_first_try(
        set,
        &Say::Set(Some("pending".to_owned()))
    ));
    assert!(!is_of_own_first_try(
        set,
        &Say::Set(Some("done".to_owned()))
    ));
    assert!(!is_of_own_first_try(
        Do::Get("a"),
        &Say::No("not_found".to_owned())
    ));
    assert!(!is_of_own_first_try(Do::MoveBy("a", 2), &Say::Moved(6, 8)));
    assert!(!is_of_own_first_try(Do::MoveTo("a", 9), &Say::Moved(2, 9)));
    let lost = Say::No("revision_mismatch".to_owned());
    assert!(!is_of_own_first_try(Do::Remove("a"), &lost));
}
