//! The wall clock of the server is set, and the server is stopped for a while: no timer starts
//! before its time, none is lost, each arrives once.
//!
//! `COUNTWHEEL_CLOCKS` says how many random scenarios follow the fixed ones;
//! `COUNTWHEEL_SEED` repeats them. It needs libfaketime.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::caller::{self, text, time};
use crate::harness::process::{Launch, Server};
use crate::harness::receiver::Receiver;
use crate::harness::{
    Directory, Random, faketime, figures, now_us, seed, setting, turn, wait, wait_until,
};

/// In seconds.
const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;
/// For how long after a step an attempt may arrive that had been started before it.
const UNDER_WAY_US: u64 = 400_000;
/// By how much the machine's wall clock, by which arrivals are noted, may be slewed while a delay
/// runs.
const SLEW_US: u64 = 2_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Sets this many timers, due within two seconds or in half an hour.
    Set(u64),
    Wait(u64),
    /// Sets the server's wall clock, to so many seconds from the right time.
    Clock(i64),
    /// SIGSTOP, and SIGCONT after so many milliseconds.
    Stop(u64),
    /// `kill -9`, and a start.
    Restart,
    /// The same, with the clock set meanwhile, to so many seconds from the right time.
    RestartAt(i64),
}

struct Timer {
    due_us: u64,
    /// For a delay, the moment on the right clock at which it is over.
    over_us: Option<u64>,
}

/// A server with a wall clock of its own.
struct World {
    server: Server,
    receiver: Receiver,
    clock: PathBuf,
    /// When the clock was set, and to how many microseconds from the right time.
    set: Vec<(u64, i64)>,
    timers: BTreeMap<String, Timer>,
}

fn shifted(us: u64, by: i64) -> u64 {
    us.saturating_add_signed(by)
}

impl World {
    fn new(directory: &Directory, clock_at_boot: i64) -> Self {
        let clock = directory.join("clock");
        write_clock(&clock, clock_at_boot);
        let mut environment = faketime::environment(&clock);
        environment.push(("FAKETIME_NO_CACHE", "1".into()));
        let launch = Launch {
            environment,
            ..Launch::default()
        };
        Self {
            server: Server::start_as(&directory.join("data"), launch),
            receiver: Receiver::start(),
            clock,
            set: vec![(0, clock_at_boot * 1_000_000)],
            timers: BTreeMap::new(),
        }
    }

    fn shift(&self) -> i64 {
        self.set.last().map_or(0, |(_, shift)| *shift)
    }

    fn take(&mut self, step: Step, random: &mut Random) {
        match step {
            Step::Set(count) => {
                for _ in 0..count {
                    self.set_timer(random);
                }
            }
            Step::Wait(millis) => wait(Duration::from_millis(millis)),
            Step::Clock(seconds) => {
                write_clock(&self.clock, seconds);
                self.set.push((now_us(), seconds * 1_000_000));
            }
            Step::Stop(millis) => {
                self.server.signal(Signal::STOP);
                wait(Duration::from_millis(millis));
                self.server.signal(Signal::CONT);
            }
            Step::Restart => {
                self.server.kill();
                self.server.restart();
            }
            Step::RestartAt(seconds) => {
                self.server.kill();
                self.take(Step::Clock(seconds), random);
                self.server.restart();
            }
        }
    }

    fn set_timer(&mut self, random: &mut Random) {
        let millis = match random.between(0, 4) {
            0 => 1_800_000,
            _ => random.between(0, 2_000),
        };
        let sent_us = now_us();
        // No step of the clock brings a delay nearer.
        let at = millis > 2_000 || random.between(0, 2) == 0;
        let mut body = if at {
            let at_us = shifted(sent_us, self.shift()) + millis * 1_000;
            json!({ "at": caller::moment(at_us) })
        } else {
            json!({ "in": millis })
        };
        body["target"] = json!({"url": self.receiver.url});
        let key = format!("clock-{}", self.timers.len());
        let path = format!("/v1/queues/default/timers/{key}");
        let reply = self.server.caller().ask("PUT", &path, Some(&body));
        let reply = reply.expect("an answer");
        assert_eq!(reply.status, 201, "{}", reply.body);
        assert_eq!(text(&reply.body, "key"), key);
        let timer = Timer {
            due_us: time(&reply.body, "due"),
            over_us: (!at).then_some(sent_us + millis * 1_000),
        };
        self.timers.insert(key, timer);
    }

    /// Waits for the delays, whatever the clock shows; sets the clock to where every instant is due,
    /// waits for those, and judges.
    fn judge(mut self, name: &str, faults: &mut Vec<String>) -> u64 {
        wait_until(&format!("{name}: all delays are over"), || {
            let arrived = self.receiver.arrivals().into_iter().map(|one| one.key);
            let arrived: std::collections::BTreeSet<_> = arrived.collect();
            let mut delays = self.timers.iter().filter(|(_, one)| one.over_us.is_some());
            delays.all(|(key, _)| arrived.contains(key))
        });
        wait(Duration::from_millis(1_200));
        let last = self.shift() / 1_000_000;
        self.take(Step::Clock(last.max(DAY) + 2 * DAY), &mut Random::new(0));
        self.take(Step::Restart, &mut Random::new(0));
        let owed = self.timers.len();
        let complete = |receiver: &Receiver| {
            let keys: std::collections::BTreeSet<_> =
                receiver.arrivals().into_iter().map(|one| one.key).collect();
            keys.len() == owed
        };
        wait_until(&format!("{name}: all is delivered"), || {
            complete(&self.receiver)
        });
        let mut attempts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for arrival in self.receiver.arrivals() {
            let Some(timer) = self.timers.get(&arrival.key) else {
                faults.push(format!("{name}: nobody asked for {arrival:?}"));
                continue;
            };
            attempts
                .entry(arrival.key.clone())
                .or_default()
                .push(arrival.attempt);
            // The wall clocks that the server can have seen when it started the attempt.
            let latest = self
                .set
                .iter()
                .zip(
                    self.set
                        .iter()
                        .skip(1)
                        .map(|(until, _)| *until)
                        .chain([u64::MAX]),
                )
                .filter(|((from, _), until)| {
                    *from <= arrival.at_us && until.saturating_add(UNDER_WAY_US) >= arrival.at_us
                })
                .map(|((_, shift), _)| *shift)
                .max();
            let wall_us = shifted(arrival.at_us, latest.unwrap_or(0));
            // No clock that is set, and no restart, brings a delay nearer.
            let early = match timer.over_us {
                Some(over_us) => over_us.saturating_sub(arrival.at_us + SLEW_US),
                None => timer.due_us.saturating_sub(wall_us),
            };
            if early > 0 {
                faults.push(format!("{name}: {early} us early: {arrival:?}"));
            }
        }
        let restarts = !self.server.outages.is_empty();
        for (key, numbers) in &attempts {
            let distinct: std::collections::BTreeSet<_> = numbers.iter().collect();
            if distinct.len() != numbers.len() || (numbers.len() > 1 && !restarts) {
                faults.push(format!("{name}: {key} arrived as attempts {numbers:?}"));
            }
        }
        owed as u64
    }
}

fn write_clock(path: &Path, seconds: i64) {
    faketime::set(path, &format!("{seconds:+}"));
}

/// Where a clock without a battery stands: an hour into 1970.
fn dead() -> i64 {
    HOUR - i64::try_from(now_us() / 1_000_000).unwrap()
}

/// The clock at the boot, and what happens then.
fn fixed() -> Vec<(&'static str, i64, Vec<Step>)> {
    use Step::{Clock, Restart, RestartAt, Set, Stop, Wait};
    vec![
        (
            "an hour forward",
            0,
            vec![Set(20), Wait(400), Clock(HOUR), Set(20), Wait(300)],
        ),
        (
            "an hour back",
            0,
            vec![Set(20), Wait(400), Clock(-HOUR), Set(20), Wait(1_500)],
        ),
        (
            "forward and back",
            0,
            vec![
                Set(20),
                Wait(300),
                Clock(HOUR),
                Wait(500),
                Set(20),
                Clock(0),
                Set(10),
                Wait(700),
            ],
        ),
        (
            "stopped for two seconds",
            0,
            vec![Set(30), Wait(200), Stop(2_000), Set(10)],
        ),
        (
            "a day behind at boot",
            -DAY,
            vec![Set(20), Wait(300), Clock(0), Set(10), Wait(300), Restart],
        ),
        (
            "a day ahead at boot",
            DAY,
            vec![Set(20), Wait(300), Clock(0), Set(10), Wait(300), Restart],
        ),
        (
            "in 1970 at boot",
            dead(),
            vec![
                Set(20),
                Wait(300),
                Restart,
                Set(20),
                Clock(0),
                Set(10),
                Wait(300),
                Restart,
                Set(10),
            ],
        ),
        (
            "in 1970 at a restart",
            0,
            vec![
                Set(20),
                Wait(300),
                RestartAt(dead()),
                Set(20),
                Wait(300),
                Clock(0),
                Restart,
            ],
        ),
        (
            "a jump before a restart",
            0,
            vec![Set(20), Clock(DAY), Restart, Set(20), RestartAt(-DAY)],
        ),
    ]
}

fn drawn(random: &mut Random) -> Vec<Step> {
    let steps = random.between(4, 12);
    (0..steps)
        .map(|_| match random.between(0, 9) {
            0..3 => Step::Set(random.between(1, 20)),
            3..5 => Step::Wait(random.between(0, 800)),
            5..7 => {
                let seconds = [1, 60, HOUR, DAY][usize::try_from(random.between(0, 4)).unwrap()];
                let sign = [-1, 0, 1][usize::try_from(random.between(0, 3)).unwrap()];
                Step::Clock(sign * seconds)
            }
            7 => Step::Stop(random.between(10, 1_500)),
            8 if random.between(0, 2) == 0 => {
                let clocks = [dead(), -DAY, DAY, 0];
                Step::RestartAt(clocks[usize::try_from(random.between(0, 4)).unwrap()])
            }
            _ => Step::Restart,
        })
        .collect()
}

#[test]
#[ignore = "20 seconds, needs libfaketime: cargo xtask check clock"]
fn no_step_of_the_clock_makes_a_timer_early_or_lost() {
    let _turn = turn();
    let more = setting("COUNTWHEEL_CLOCKS", || 0);
    let mut random = Random::new(seed());
    let mut scenarios = fixed();
    for _ in 0..more {
        let boot = [0, HOUR, -HOUR][usize::try_from(random.between(0, 3)).unwrap()];
        scenarios.push(("drawn", boot, drawn(&mut random)));
    }
    let mut rows = Vec::new();
    let mut faults = Vec::new();
    for (number, (name, boot, steps)) in scenarios.into_iter().enumerate() {
        let directory = Directory::new(&format!("clock-{number}"));
        let start = now_us();
        let mut world = World::new(&directory, boot);
        let before = faults.len();
        for step in &steps {
            world.take(*step, &mut random);
        }
        let timers = world.judge(name, &mut faults);
        let took = (now_us() - start) / 1_000;
        if faults.len() > before {
            faults.push(format!("{name}: boot {boot}, {steps:?}"));
        }
        rows.push((name, format!("{timers} timers, {took} ms")));
    }
    rows.push(("early, lost or twice", faults.len().to_string()));
    figures::print("Clocks that are set", &rows);
    assert!(faults.is_empty(), "{faults:#?}");
}
