//! A month of departures in a minute, through the real server, which is killed ten times.
//!
//! `COUNTWHEEL_SEED` repeats the moments of the kills.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::Stdio;

use countwheel_departures::write_trace;
use serde::Deserialize;

use crate::harness::checker::{
    Answer, Arrival, Asked, Event, Evidence, Fault, Made, Moved, Verdict, Was, What, judge,
};
use crate::harness::figures::{self, Spans};
use crate::harness::load::APART_US;
use crate::harness::process::{Server, program};
use crate::harness::receiver::Receiver;
use crate::harness::{Directory, Random, now_us, pause, seed, turn, wait_until};

const DEPARTURES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples-data/departures-2013-01.csv"
);
/// January and the day before it in a minute.
const SPEED: &str = "46000";
/// How long after a restart its traces are taken for gone.
const AFTERMATH_US: u64 = 2_000_000;

#[test]
#[ignore = "a minute long: cargo xtask check january"]
fn january_survives_ten_kills() {
    let _turn = turn();
    let mut random = Random::new(seed());
    // One moment in each tenth of the first 56 seconds: the replay lasts 59.
    let kills_us = (0..10).map(|tenth| 5_600_000 * tenth + random.between(0, 5_400_000));
    let run = replay(
        "january",
        "2014-01-01T00:00:00Z",
        &kills_us.collect::<Vec<_>>(),
    );
    run.tell("January, killed ten times");
    assert_eq!(run.server.outages.len(), 10);
    run.verdict.demand_innocence();
}

#[test]
#[ignore = "part of the minute of january: cargo xtask check january"]
fn without_kills_nothing_is_delivered_twice() {
    let _turn = turn();
    let run = replay("january-2", "2013-01-03T00:00:00Z", &[]);
    run.tell("The first two days, not killed");
    run.verdict.demand_innocence();
    assert_eq!(run.verdict.duplicates, 0);
}

/// A replay that ended, and what came of it.
struct Run {
    server: Server,
    flights: usize,
    verdict: Verdict,
    arrivals: Vec<Arrival>,
    report: Report,
    /// Until nothing was left to deliver.
    took_us: u64,
}

/// Replays the departures scheduled before a time against a server that is killed at these moments after the start.
fn replay(name: &str, before: &str, kills_us: &[u64]) -> Run {
    let directory = Directory::new(name);
    let trace = directory.join("trace");
    let flights = write(&trace, before);
    let receiver = Receiver::start();
    let mut server = Server::start(&directory.join("data"));
    let log = directory.join("log");
    let report = directory.join("report");
    let mut replay = program()
        .args([Path::new("replay"), &trace])
        .args(["--speed", SPEED])
        .args(["--server", &format!("http://{}", server.address)])
        .args(["--target", &receiver.url])
        .args([Path::new("--log"), &log, Path::new("--report"), &report])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = now_us();
    let mut kills_us = kills_us.iter().peekable();
    let status = loop {
        if kills_us.next_if(|at| start + **at <= now_us()).is_some() {
            server.kill();
            server.restart();
        }
        match replay.try_wait().unwrap() {
            Some(status) => break status,
            None => pause(),
        }
    };
    assert!(status.success(), "the replay ended with {status}");

    let mut caller = server.caller();
    // No flight is late by more than this: all that is pending is waited for.
    let last_us = now_us() + 3_600_000_000;
    wait_until("everything is delivered", || caller.is_quiet(last_us));
    let settled_us = now_us();
    let mut histories = histories(&log);
    assert_eq!(histories.len(), flights, "each flight was asked for");
    let sent_us = now_us();
    let mut all: HashMap<_, _> = caller.all().into_iter().collect();
    for (key, history) in &mut histories {
        history.push(Event {
            sent_us,
            answered_us: now_us(),
            what: What::Look(all.remove(key)),
        });
    }
    assert!(all.is_empty(), "nobody asked for {all:?}");
    let evidence = Evidence {
        histories,
        arrivals: receiver.arrivals(),
        settled_us,
        apart_us: APART_US,
        behind_us: 0,
        under_way_us: 0,
        kills_us: server.outages.iter().map(|(killed, _)| *killed).collect(),
        shards: None,
    };
    Run {
        server,
        flights,
        verdict: judge(&evidence),
        arrivals: evidence.arrivals,
        report: serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap(),
        took_us: settled_us - start,
    }
}

/// Writes the departures that are scheduled before a time as a trace, and says how many they are.
fn write(trace: &Path, before: &str) -> usize {
    let before = crate::harness::caller::time_us(before).unwrap();
    let flights = countwheel_departures::open(Path::new(DEPARTURES)).unwrap();
    let flights: Vec<_> = flights
        .map(Result::unwrap)
        .take_while(|flight| flight.scheduled.as_micros() < before)
        .collect();
    let number = flights.len();
    let mut file = BufWriter::new(File::create(trace).unwrap());
    write_trace(flights.into_iter().map(Ok), &mut file).unwrap();
    number
}

/// A line of the replay's log: the members that matter here.
#[derive(Debug, Deserialize)]
struct Line {
    key: String,
    op: String,
    at_us: Option<u64>,
    sent_us: u64,
    acked_us: u64,
    result: String,
    id: Option<String>,
    revision: Option<u64>,
    due_us: Option<u64>,
    was: Option<String>,
    tries: u32,
}

/// The replay's report: the members that matter here.
#[derive(Debug, Deserialize)]
struct Report {
    seconds: f64,
    retries: u64,
    lag: Lag,
}

#[derive(Debug, Deserialize)]
struct Lag {
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
}

/// What was asked of each flight, as the log has it.
fn histories(log: &Path) -> BTreeMap<String, Vec<Event>> {
    let mut histories: BTreeMap<String, Vec<Event>> = BTreeMap::new();
    for line in std::fs::read_to_string(log).unwrap().lines() {
        let line: Line = serde_json::from_str(line).unwrap();
        let event = |what| Event {
            sent_us: line.sent_us,
            answered_us: line.acked_us,
            what,
        };
        let events = line.events().into_iter().map(event);
        histories
            .entry(line.key.clone())
            .or_default()
            .extend(events);
    }
    histories
}

impl Line {
    /// The operation; before it, if there was no answer at first, that it may have taken
    /// effect without one.
    fn events(&self) -> Vec<What> {
        let asked = Asked::At(self.at_us.unwrap_or(0));
        let was = self.was.as_deref().map(|was| was.parse().unwrap());
        let result = self.result.as_str();
        let moved = |answer| What::Move { asked, answer };
        match (self.op.as_str(), result) {
            ("set", _) => {
                let answer = match (result, &self.id, self.revision, self.due_us) {
                    ("ok" | "found" | "replaced", Some(id), Some(revision), Some(due_us)) => {
                        Answer::Yes(Made {
                            id: id.clone(),
                            revision,
                            due_us,
                            replaced: was,
                        })
                    }
                    _ => self.odd(),
                };
                let body_bytes = None;
                vec![What::Set {
                    asked,
                    body_bytes,
                    answer,
                }]
            }
            ("move", "ok" | "found") => match (self.revision, self.due_us) {
                (Some(revision), Some(due_us)) => {
                    vec![moved(Answer::Yes(Moved { revision, due_us }))]
                }
                _ => vec![moved(self.odd())],
            },
            ("move", "unclear") => vec![moved(Answer::Unknown)],
            ("move", "too_late") if self.tries > 1 => {
                vec![moved(Answer::Unknown), moved(Answer::No(was))]
            }
            ("move", "too_late") => vec![moved(Answer::No(was))],
            ("remove", "ok") => {
                // Which attempt was running, the log does not say.
                let attempt = None;
                let was = was.map(|state| Was { state, attempt });
                let answer = was.map_or_else(|| self.odd(), Answer::Yes);
                vec![What::Remove { answer }]
            }
            ("remove", "found") => {
                let answer = Answer::Unknown;
                vec![What::Remove { answer }, What::Look(None)]
            }
            ("remove", "too_late") => {
                let answer = Answer::No(was);
                vec![What::Remove { answer }]
            }
            ("move", _) => vec![moved(self.odd())],
            _ => vec![What::Remove { answer: self.odd() }],
        }
    }

    fn odd<T>(&self) -> Answer<T> {
        Answer::Odd(format!("{self:?}"))
    }
}

impl Run {
    fn tell(&self, title: &str) {
        let verdict = &self.verdict;
        let outages = &self.server.outages;
        let received = |arrival: &Arrival| arrival.at_us - arrival.due_us.min(arrival.at_us);
        let undisturbed: Vec<_> = self
            .arrivals
            .iter()
            .filter(|arrival| {
                let clear = |(killed, ready): &(u64, u64)| {
                    arrival.at_us < *killed || arrival.due_us > *ready + AFTERMATH_US
                };
                outages.iter().all(clear)
            })
            .collect();
        let all = &self.arrivals;
        let late = |arrival: &&Arrival| arrival.late_us;
        let Report {
            seconds,
            retries,
            lag,
        } = &self.report;
        let removed_meanwhile = verdict.removes_while_delivering;
        let mut rows = vec![
            ("flights", self.flights.to_string()),
            ("sets", verdict.sets.to_string()),
            (
                "moves",
                format!("{}, {} too late", verdict.moves, verdict.moves_too_late),
            ),
            (
                "removes",
                format!(
                    "{}, {} too late, {removed_meanwhile} during an attempt",
                    verdict.removes, verdict.removes_too_late
                ),
            ),
            (
                "may have been done",
                format!("{}, without an answer", verdict.unanswered),
            ),
            (
                "deliveries",
                format!("{} of {} timers", all.len(), verdict.delivered),
            ),
            (
                "duplicates",
                format!("{}, each with its own number", verdict.duplicates),
            ),
        ];
        for (name, fault) in [
            ("lost", Fault::Lost),
            ("early", Fault::Early),
            ("after remove", Fault::AfterRemove),
            ("unmarked", Fault::Unmarked),
            ("strangers", Fault::Stranger),
            ("revisions", Fault::Revision),
            ("other faults", Fault::Answer),
        ] {
            let mut count = verdict.count(fault);
            if fault == Fault::Answer {
                count += verdict.count(Fault::Half);
            }
            rows.push((name, count.to_string()));
        }
        rows.push(("kills", outages.len().to_string()));
        if !outages.is_empty() {
            let restarts = self.server.restarts_us.iter().copied();
            rows.push(("restart", Spans::new(restarts).typical()));
        }
        rows.extend([
            (
                "late, said",
                Spans::new(all.iter().map(|arrival| late(&arrival))).ranked(),
            ),
            ("late, seen", Spans::new(all.iter().map(received)).ranked()),
            (
                "  undisturbed, said",
                Spans::new(undisturbed.iter().map(late)).ranked(),
            ),
            (
                "  undisturbed, seen",
                Spans::new(undisturbed.iter().copied().map(received)).ranked(),
            ),
            (
                "replay late",
                figures::quantiles(lag.p50_us, lag.p99_us, lag.max_us),
            ),
            ("replay", format!("{seconds:.1} s, {retries} retries")),
            ("until all was done", format!("{} ms", self.took_us / 1_000)),
        ]);
        figures::print(title, &rows);
    }
}
