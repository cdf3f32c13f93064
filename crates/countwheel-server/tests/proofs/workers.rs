//! Three workers fetch timers, and they and the server are killed, again and again. No timer is lost, none is leased to two
//! at once, each lease has a higher token than the one before, and an ack that was answered stays.
//!
//! The workers are processes of `countwheel lease` and `countwheel ack`. `COUNTWHEEL_WORKERS_SECONDS` says for how long,
//! `COUNTWHEEL_SEED` repeats what is drawn.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::harness::caller::{Caller, text, time_us};
use crate::harness::load::span;
use crate::harness::process::{Server, program};
use crate::harness::{
    Directory, PATIENCE, Random, figures, micros, now_us, pause, seed, setting, turn, wait,
};

const WORKERS: u64 = 3;
const QUEUE: &str = "/v1/queues/default";
/// How long a lease lasts.
const LEASE: &str = "1s";
/// The clock of the server is read in another process, and its times are whole microseconds.
const SLACK_US: u64 = 2_000;

/// A lease that a worker has had.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    key: String,
    token: String,
    /// When the call was made, and when the worker had its answer.
    asked_us: u64,
    had_us: u64,
    until_us: u64,
}

/// What a worker heard of an ack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    Done,
    Lost,
    Nothing,
}

#[derive(Default, Debug)]
struct History {
    seen: Vec<Seen>,
    /// By key and token.
    acks: BTreeMap<(String, String), Heard>,
}

/// What is wrong with a history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fault {
    /// A timer that the server has taken is not done in the end.
    Lost,
    /// Two workers have had the same lease.
    Twice,
    /// A worker had a lease while the one of another lasted.
    AtOnce,
    /// A later lease has a token that is no higher.
    LowerToken,
    /// A lease was acked, and another came after it, or was acked as well.
    AckForgotten,
}

/// Judges what workers have seen of these timers, and which of them are done in the end.
fn judge(
    keys: &[String],
    history: &History,
    is_done: impl Fn(&str) -> bool,
) -> Vec<(Fault, String)> {
    let mut faults = Vec::new();
    let mut by_key: BTreeMap<&str, Vec<&Seen>> = BTreeMap::new();
    for seen in &history.seen {
        by_key.entry(&seen.key).or_default().push(seen);
    }
    for key in keys {
        if !is_done(key) {
            faults.push((Fault::Lost, key.clone()));
        }
    }
    for (key, mut leases) in by_key {
        leases.sort_by(|one, other| one.token.cmp(&other.token));
        let acked = |seen: &Seen| {
            let ack = history.acks.get(&(seen.key.clone(), seen.token.clone()));
            ack == Some(&Heard::Done)
        };
        for pair in leases.windows(2) {
            let (one, next) = (pair[0], pair[1]);
            let mut accuse = |fault| faults.push((fault, format!("{key}: {one:?}, {next:?}")));
            if one.token == next.token {
                accuse(Fault::Twice);
                continue;
            }
            // A lease that was granted later, since it was asked for when the other was there, has a higher token.
            if next.had_us < one.asked_us {
                accuse(Fault::LowerToken);
            } else if next.had_us + SLACK_US < one.until_us {
                accuse(Fault::AtOnce);
            }
            if acked(one) {
                accuse(Fault::AckForgotten);
            }
        }
    }
    faults
}

/// The workers, and what they have seen.
struct Work<'a> {
    server: &'a str,
    history: &'a Mutex<History>,
    stops: &'a AtomicBool,
    /// Nobody is killed any more, and nothing is forgotten.
    heals: &'a AtomicBool,
    kills: &'a Mutex<u64>,
}

impl Work<'_> {
    /// One worker: it is killed while it asks, forgets what it has, and is killed while it acks.
    fn run(&self, number: u64, random: &mut Random) {
        while !self.stops.load(Ordering::Relaxed) {
            let asked_us = now_us();
            let heals = self.heals.load(Ordering::Relaxed);
            let max = if heals { 500 } else { random.between(1, 40) }.to_string();
            let worker = format!("worker-{number}");
            let mut command = program();
            command
                .args([
                    "lease", "default", "--max", &max, "--lease", LEASE, "--wait", "1s",
                ])
                .args(["--worker", &worker, "--server", self.server])
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let child = command.spawn().unwrap();
            let out = self.end(child, random);
            let had_us = now_us();
            let leases = String::from_utf8_lossy(&out);
            // A line without its end is one that the worker was killed in: it has not read it.
            let whole = leases
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            let lines: Vec<&str> = whole.collect();
            self.note(&lines, asked_us, had_us);
            if lines.is_empty() || !heals && random.between(1, 8) == 1 {
                continue;
            }
            if !heals && random.between(1, 4) == 1 {
                wait(span(random, Duration::ZERO, Duration::from_millis(1_500)));
            }
            self.ack(&lines, random);
        }
    }

    fn note(&self, lines: &[&str], asked_us: u64, had_us: u64) {
        let mut history = self.history.lock();
        for line in lines {
            let lease: Value = serde_json::from_str(line).unwrap();
            let until_us = time_us(&text(&lease, "leased_until")).unwrap();
            history.seen.push(Seen {
                key: text(&lease, "key"),
                token: text(&lease, "token"),
                asked_us,
                had_us,
                until_us,
            });
        }
    }

    fn ack(&self, lines: &[&str], random: &mut Random) {
        let mut command = program();
        command
            .args(["ack", "-", "--json", "--server", self.server])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // Whoever is killed reads no more.
        let _ = stdin.write_all(lines.concat().as_bytes());
        drop(stdin);
        let out = self.end(child, random);
        let mut history = self.history.lock();
        for line in lines {
            let lease: Value = serde_json::from_str(line).unwrap();
            let name = (text(&lease, "key"), text(&lease, "token"));
            history.acks.insert(name, Heard::Nothing);
        }
        let out = String::from_utf8_lossy(&out);
        let whole = out
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        // Results come in the order of the leases.
        for (line, lease) in whole.zip(lines) {
            let (result, lease): (Value, Value) = (
                serde_json::from_str(line).unwrap(),
                serde_json::from_str(lease).unwrap(),
            );
            assert_eq!(result["key"], lease["key"]);
            let heard = match result["status"].as_u64() {
                Some(200) => Heard::Done,
                Some(409) => Heard::Lost,
                _ => Heard::Nothing,
            };
            let name = (text(&lease, "key"), text(&lease, "token"));
            history.acks.insert(name, heard);
        }
    }

    /// Waits for the end of a process of a worker, or kills it before. Returns what it has written.
    fn end(&self, mut child: Child, random: &mut Random) -> Vec<u8> {
        if !self.heals.load(Ordering::Relaxed) && random.between(1, 5) == 1 {
            wait(span(
                random,
                Duration::from_millis(1),
                Duration::from_millis(60),
            ));
            child.kill().unwrap();
            *self.kills.lock() += 1;
        }
        child.wait_with_output().unwrap().stdout
    }
}

/// Sets timers until it is to stop; those of which the server has said that it has them.
fn set_timers(
    server: std::net::SocketAddr,
    stops: &AtomicBool,
    random: &mut Random,
) -> Vec<String> {
    let (mut keys, mut number) = (Vec::new(), 0);
    let mut caller = Caller::connect(server);
    while !stops.load(Ordering::Relaxed) {
        let Some(asking) = &mut caller else {
            pause();
            caller = Caller::connect(server);
            continue;
        };
        number += 1;
        let key = format!("job-{number}");
        let body = json!({
            "in": random.between(0, 400),
            "retry": {"fixed": "10ms", "max_attempts": 1_000},
            "body": number,
        });
        let path = format!("{QUEUE}/timers/{key}");
        match asking.ask("PUT", &path, Some(&body)) {
            Some(reply) if matches!(reply.status, 200 | 201) => keys.push(key),
            Some(_) => {}
            None => caller = None,
        }
        if number % 4 == 0 {
            pause();
        }
    }
    keys
}

#[test]
#[ignore = "half a minute long: cargo xtask check workers"]
fn killed_workers_and_a_killed_server_lose_nothing_and_share_nothing() {
    let _turn = turn();
    let seconds = setting("COUNTWHEEL_WORKERS_SECONDS", || 30);
    let seed = seed();
    let directory = Directory::new("workers");
    let mut server = Server::start(&directory.join("data"));
    let mode = json!({"mode": "pull", "retention": {"done": "1h"}});
    let put = server.caller().ask("PUT", QUEUE, Some(&mode)).unwrap();
    assert!(matches!(put.status, 200 | 201), "{}", put.body);
    let address = server.address;
    let url = format!("http://{address}");
    let (history, kills) = (Mutex::default(), Mutex::new(0));
    let (sets_end, work_ends) = (AtomicBool::new(false), AtomicBool::new(false));
    let heals = AtomicBool::new(false);
    let mut server_kills = 0;
    let started = now_us();
    let (keys, done) = std::thread::scope(|scope| {
        for number in 0..WORKERS {
            let work = Work {
                server: &url,
                history: &history,
                stops: &work_ends,
                heals: &heals,
                kills: &kills,
            };
            scope.spawn(move || work.run(number, &mut Random::new(seed + 1 + number)));
        }
        let sets = scope.spawn(|| set_timers(address, &sets_end, &mut Random::new(seed + 100)));
        // Whatever fails below, the workers end.
        let _ends = Ends(&work_ends);
        let _sets_end = Ends(&sets_end);
        let mut random = Random::new(seed);
        let end = started + micros(Duration::from_secs(seconds));
        while now_us() < end {
            wait(span(
                &mut random,
                Duration::from_millis(100),
                Duration::from_millis(1_200),
            ));
            server.kill();
            server.restart();
            server_kills += 1;
        }
        sets_end.store(true, Ordering::Relaxed);
        let keys = sets.join().unwrap();
        heals.store(true, Ordering::Relaxed);
        let end = now_us() + micros(PATIENCE * 2);
        let mut caller = server.caller();
        loop {
            let counts = caller.ask("GET", QUEUE, None).unwrap().body;
            let of = |state: &str| counts[state].as_u64().unwrap();
            if of("pending") + of("delivering") == 0 {
                break;
            }
            assert!(now_us() < end, "it does not come to its end: {counts}");
            pause();
        }
        let done = caller.all().into_iter();
        let done =
            done.filter(|(_, sight)| sight.state == crate::harness::checker::StateKind::Done);
        let done: BTreeMap<String, ()> = done.map(|(key, _)| (key, ())).collect();
        (keys, done)
    });
    let took = now_us() - started;
    let history = history.into_inner();
    let faults = judge(&keys, &history, |key| done.contains_key(key));
    let acked = history.acks.values().filter(|heard| **heard == Heard::Done);
    figures::print(
        "workers and the server are killed",
        &[
            ("timers", keys.len().to_string()),
            ("leases seen", history.seen.len().to_string()),
            ("acks answered", acked.count().to_string()),
            ("kills of workers", kills.lock().to_string()),
            ("kills of the server", server_kills.to_string()),
            ("seconds", (took / 1_000_000).to_string()),
        ],
    );
    assert!(
        faults.is_empty(),
        "{} faults, the first: {:?}",
        faults.len(),
        faults[0]
    );
    let leases = history.seen.len();
    assert!(
        !keys.is_empty() && leases >= keys.len(),
        "{leases} leases of {}",
        keys.len()
    );
}

/// Sets a flag when it goes.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn seen(token: u32, had_us: u64, until_us: u64) -> Seen {
    Seen {
        key: "k".to_owned(),
        token: format!("{token:024x}"),
        asked_us: had_us - 10,
        had_us,
        until_us,
    }
}

fn faults(seen: Vec<Seen>, acked: &[u32], is_done: bool) -> Vec<Fault> {
    let acks = acked.iter().map(|token| {
        let name = ("k".to_owned(), format!("{token:024x}"));
        (name, Heard::Done)
    });
    let history = History {
        seen,
        acks: acks.collect(),
    };
    let faults = judge(&["k".to_owned()], &history, |_| is_done);
    faults.into_iter().map(|(fault, _)| fault).collect()
}

#[test]
fn a_timer_that_is_leased_again_after_its_lease_and_acked_once_is_fine() {
    let leases = vec![seen(1, 1_000, 50_000), seen(2, 60_000, 90_000)];
    assert_eq!(faults(leases.clone(), &[2], true), []);
    // The order in which they were noted is no matter.
    let turned = leases.into_iter().rev().collect();
    assert_eq!(faults(turned, &[2], true), []);
}

#[test]
fn a_timer_that_is_not_done_is_lost() {
    assert_eq!(faults(Vec::new(), &[], false), [Fault::Lost]);
    assert_eq!(
        faults(vec![seen(1, 1_000, 50_000)], &[], false),
        [Fault::Lost]
    );
}

#[test]
fn a_lease_that_two_have_is_found() {
    let leases = vec![seen(1, 1_000, 50_000), seen(1, 60_000, 90_000)];
    assert_eq!(faults(leases, &[1], true), [Fault::Twice]);
}

#[test]
fn a_lease_within_another_is_found() {
    let leases = vec![seen(1, 1_000, 50_000), seen(2, 40_000, 90_000)];
    assert_eq!(faults(leases, &[2], true), [Fault::AtOnce]);
}

#[test]
fn a_lower_token_of_a_later_lease_is_found() {
    let leases = vec![seen(2, 1_000, 50_000), seen(1, 60_000, 90_000)];
    assert_eq!(faults(leases, &[2], true), [Fault::LowerToken]);
}

#[test]
fn an_ack_that_is_forgotten_is_found() {
    let leases = vec![seen(1, 1_000, 50_000), seen(2, 60_000, 90_000)];
    assert_eq!(faults(leases, &[1, 2], true), [Fault::AckForgotten]);
}
