//! The lives of stores: written scripts, and drawn lives.

use countwheel_disk::simulated::{Calls, Failure, Fault, Operation};
use countwheel_durable::store::{Change, ClockNote};
use countwheel_durable::{
    DeadReason, DueClock, Missed, Namespace, QueueName, Record, RetryPolicy, Revision, Setting,
    SettingName, State, TimerId, TimerName,
};
use countwheel_time::{BootId, Instant, Timestamp};

use super::life::Event;
use crate::random::Random;

/// A script: what happens, but for the faults.
#[derive(Clone, Debug)]
pub struct Script {
    /// What it is called.
    pub name: String,
    /// What happens.
    pub events: Vec<Event>,
}

/// Writes scripts: each change gets the next revision.
struct Writer {
    revision: u64,
    payload: usize,
    events: Vec<Event>,
}

impl Writer {
    fn record(&mut self, key: u64, state: State) -> Record {
        self.revision += 1;
        record(key, self.revision, state, self.payload)
    }

    fn put(&mut self, key: u64) -> Change {
        Change::put(self.record(key, State::Pending))
    }

    fn commit(&mut self, changes: Vec<Change>) {
        let hinted = self.revision.is_multiple_of(2);
        self.events.push(Event::Commit { changes, hinted });
    }

    fn set(&mut self, key: u64) {
        let change = self.put(key);
        self.commit(vec![change]);
    }

    fn becomes(&mut self, key: u64, state: State) {
        let change = Change::put(self.record(key, state));
        self.commit(vec![change]);
    }

    fn remove(&mut self, key: u64) {
        self.commit(vec![Change::remove(name(key))]);
    }

    fn event(&mut self, event: Event) {
        self.events.push(event);
    }

    fn upkeep(&mut self, which: u64) {
        self.event(Event::Upkeep(which));
    }
}

type Family = (&'static str, fn(&mut Writer));

const FAMILIES: [Family; 16] = [
    ("set", |w| w.set(1)),
    ("set, remove", |w| {
        w.set(1);
        w.remove(1);
        w.remove(2);
    }),
    ("replace", |w| (0..4).for_each(|_| w.set(1))),
    ("one batch", |w| {
        let changes = (0..20).map(|key| w.put(key)).collect();
        w.commit(changes);
    }),
    ("a batch about one name", |w| {
        let changes = vec![
            w.put(1),
            Change::remove(name(1)),
            w.put(1),
            w.put(2),
            Change::remove(name(2)),
        ];
        w.commit(changes);
        w.set(2);
    }),
    ("given alone", |w| {
        w.commit(vec![Change::Given(Revision(100))]);
        w.commit(vec![]);
    }),
    ("clocks alone", |w| {
        w.commit(vec![clock(1)]);
        let changes = vec![w.put(1), clock(2)];
        w.commit(changes);
        w.upkeep(3);
        w.event(Event::Restart);
        w.commit(vec![clock(1)]);
        w.upkeep(0);
        w.event(Event::Ask);
    }),
    ("a life", |w| {
        w.set(1);
        w.becomes(1, State::Delivering);
        w.becomes(1, State::Pending);
        w.becomes(1, State::Delivering);
        w.becomes(1, done());
        w.remove(1);
    }),
    ("death and revival", |w| {
        w.set(1);
        w.becomes(1, State::Delivering);
        w.becomes(1, dead());
        w.upkeep(3);
        w.becomes(1, State::Pending);
    }),
    ("sealed after each", |w| {
        for key in 0..4 {
            w.set(key);
            w.upkeep(0);
        }
        w.remove(1);
    }),
    ("moved after each", |w| {
        for key in 0..4 {
            w.set(key);
            w.upkeep(3);
        }
        w.event(Event::Ask);
    }),
    ("removed after the move", |w| {
        w.set(1);
        w.set(2);
        w.upkeep(3);
        w.remove(1);
        w.upkeep(3);
        w.set(1);
        w.remove(2);
        w.upkeep(0);
        w.upkeep(1);
    }),
    ("opened again and again", |w| {
        for key in 0..3 {
            w.set(key);
            w.event(Event::Restart);
            w.event(Event::Ask);
        }
    }),
    ("cut again and again", |w| {
        for key in 0..3 {
            w.set(key);
            w.upkeep(key);
            w.event(Event::Cut(key));
            w.event(Event::Ask);
        }
    }),
    ("taken again", |w| {
        w.set(1);
        w.event(Event::Acquire);
        w.set(2);
        w.upkeep(3);
        w.event(Event::Acquire);
        w.remove(1);
    }),
    ("more than fits", |w| {
        for round in 0..4 {
            let changes = (0..6).map(|key| w.put(round * 3 + key)).collect();
            w.commit(changes);
        }
        w.remove(3);
        w.event(Event::Ask);
    }),
];

/// Sixty-four scripts: sixteen families, with payloads of four lengths.
#[must_use]
pub fn all() -> Vec<Script> {
    let mut scripts = Vec::new();
    for payload in [0, 300, 1_500, 6_000] {
        for (family, write) in FAMILIES {
            let mut writer = Writer {
                revision: 0,
                payload,
                events: Vec::new(),
            };
            write(&mut writer);
            scripts.push(Script {
                name: format!("{family}, {payload} bytes"),
                events: writer.events,
            });
        }
    }
    scripts
}

/// What may happen in a life that is drawn: a swarm, each with other dangers.
struct Dangers {
    keys: u64,
    batch: u64,
    payloads: [usize; 2],
    upkeep: u64,
    acquire: u64,
    restart: u64,
    cut: u64,
    evict: u64,
    fault: u64,
    full: u64,
    failures: Vec<Failure>,
}

/// A life drawn from a seed, with at most `faults` faults.
#[must_use]
pub fn life(seed: u64, faults: u64) -> Vec<Event> {
    let mut draw = Random::new(seed, "dangers");
    let dangers = Dangers {
        keys: draw.between(1, 30),
        batch: *draw.pick(&[1, 3, 12]),
        payloads: [*draw.pick(&[0, 10, 200]), *draw.pick(&[200, 3_000, 20_000])],
        upkeep: *draw.pick(&[0, 2, 6]),
        acquire: *draw.pick(&[0, 0, 20]),
        restart: *draw.pick(&[0, 15]),
        cut: *draw.pick(&[0, 10, 15]),
        evict: *draw.pick(&[0, 20]),
        fault: *draw.pick(&[0, 2, 4, 12]),
        full: *draw.pick(&[0, 0, 15]),
        failures: super::life::FAILURES
            .into_iter()
            .filter(|_| draw.one_in(2))
            .collect(),
    };
    let has_namespaces = Random::new(seed, "namespaces").one_in(2);
    let mut settings = Random::new(seed, "settings");
    // Some lives have none, and some have little else.
    let one_in = *settings.pick(&[0, 0, 2, 6]);
    let mut random = Random::new(seed, "life");
    let mut left = faults;
    let mut revision = 0;
    let mut events = Vec::new();
    for _ in 0..draw.between(10, 60) {
        let mut commit = commit(&mut random, &dangers, &mut revision);
        if has_namespaces {
            move_every_third(&mut commit);
        }
        if let Event::Commit { changes, .. } = &mut commit {
            while settings.one_in(one_in) {
                // Before, behind and between those of timers.
                let at = settings.below(changes.len() as u64 + 1);
                changes.insert(usize::try_from(at).unwrap_or(0), setting(&mut settings));
            }
        }
        events.push(commit);
        if random.one_in(dangers.upkeep) {
            events.push(Event::Upkeep(random.below(5)));
        }
        if random.one_in(dangers.acquire) {
            events.push(Event::Acquire);
        }
        if random.one_in(10) {
            events.push(Event::Ask);
        }
        if random.one_in(dangers.fault) && left > 0 {
            left -= 1;
            events.push(Event::Fault(fault(&mut random, &dangers)));
        }
        if random.one_in(dangers.full) {
            events.push(Event::Room(random.below(40_000)));
        }
        if random.one_in(12) {
            events.push(Event::Heal);
        }
        let ends = [
            (dangers.restart, Event::Restart),
            (dangers.evict, Event::Evict),
            (dangers.cut, Event::Cut(random.draw())),
        ];
        for (one_in, end) in ends {
            if random.one_in(one_in) {
                events.push(end);
                // Faults of the next opening: a crash inside recovery.
                while left > 0 && random.one_in(3) {
                    left -= 1;
                    events.push(Event::Fault(Fault {
                        after: random.below(12),
                        ..fault(&mut random, &dangers)
                    }));
                }
            }
        }
    }
    events
}

fn fault(random: &mut Random, dangers: &Dangers) -> Fault {
    let calls = match random.below(4) {
        0 => Calls::All,
        1 => Calls::Only(*random.pick(&Operation::ALL)),
        _ => Calls::Changing,
    };
    let most = *random.pick(&[1, 8, 40]);
    let failure = match dangers.failures.as_slice() {
        [] => Failure::Torn,
        some => *random.pick(some),
    };
    Fault {
        calls,
        after: random.below(most),
        lasts: random.one_in(3),
        failure,
    }
}

fn commit(random: &mut Random, dangers: &Dangers, revision: &mut u64) -> Event {
    let count = random.between(1, dangers.batch);
    let mut changes = Vec::new();
    for _ in 0..count {
        let key = random.below(dangers.keys);
        *revision += 1;
        changes.push(match random.below(8) {
            0 | 1 => Change::remove(name(key)),
            2 if revision.is_multiple_of(2) => clock(*revision),
            2 => Change::Given(Revision(*revision)),
            kind => {
                let state = match kind {
                    3 => State::Delivering,
                    4 => done(),
                    5 if revision.is_multiple_of(3) => dead_for_a_time(),
                    5 => dead(),
                    _ => State::Pending,
                };
                let payload = *random.pick(&dangers.payloads);
                Change::put(record(key, *revision, state, payload))
            }
        });
    }
    Event::Commit {
        changes,
        hinted: random.one_in(2),
    }
}

/// Every third key is the one before in the same queue of another namespace.
fn move_every_third(event: &mut Event) {
    let Event::Commit { changes, .. } = event else {
        return;
    };
    for change in changes {
        let moved = match change {
            Change::Put { record, .. } => &mut record.name,
            Change::Remove { name, .. } => name,
            Change::Given(_) | Change::Clock(_) | Change::Setting(_) => continue,
        };
        let key = moved.key.as_str().strip_prefix("key-");
        let key = key.and_then(|key| key.parse().ok()).unwrap_or(0_u64);
        if key % 3 == 1 {
            *moved = name(key - 1);
            moved.queue = in_other_namespace(&moved.queue);
        }
    }
}

/// The queue of the same name in the one other namespace that there is.
pub(crate) fn in_other_namespace(queue: &QueueName) -> QueueName {
    Namespace::new("other")
        .and_then(|namespace| QueueName::in_namespace(&namespace, queue.name()))
        .unwrap_or_else(|error| unreachable!("the names are good: {error}"))
}

/// A change of one of a few settings.
fn setting(random: &mut Random) -> Change {
    let number = random.below(5);
    let value = u8::try_from(random.below(251)).unwrap_or(0);
    let bytes = *random.pick(&[0, 9, 700, 5_000]);
    Change::Setting(Setting {
        name: SettingName::new(format!("setting-{number}"))
            .unwrap_or_else(|error| unreachable!("the names are good: {error}")),
        value: (!random.one_in(4)).then(|| vec![value; bytes]),
    })
}

/// A note of the clocks, each of another reading.
fn clock(number: u64) -> Change {
    Change::Clock(ClockNote {
        wall: Timestamp::from_micros(number),
        boot_id: Some(BootId::from_u128(u128::from(number))),
        boot: Instant::from_nanos(number),
        line: Timestamp::from_micros(number),
    })
}

pub(super) fn name(key: u64) -> TimerName {
    let queue = ["even", "odd", "third"][usize::from(key % 2 == 1) + usize::from(key % 6 == 5)];
    TimerName::new(queue, format!("key-{key}"))
        .unwrap_or_else(|error| unreachable!("the names are good: {error}"))
}

fn done() -> State {
    State::Done {
        at: Timestamp::from_micros(9_000_000),
        keep_until: Timestamp::from_micros(90_000_000),
    }
}

fn dead() -> State {
    State::Dead {
        at: Timestamp::from_micros(9_000_000),
        reason: DeadReason::Stopped,
        keep_until: None,
    }
}

fn dead_for_a_time() -> State {
    State::Dead {
        at: Timestamp::from_micros(9_000_000),
        reason: DeadReason::Exhausted,
        keep_until: Some(Timestamp::from_micros(80_000_000)),
    }
}

/// The one place where records are made up.
pub(super) fn record(key: u64, revision: u64, state: State, payload: usize) -> Record {
    // Deadlines meet, now and then.
    let due = Timestamp::from_micros(1_000_000 + revision / 3 * 1_000);
    Record {
        name: name(key),
        id: TimerId {
            store: 7,
            set: Revision(revision),
        },
        revision: Revision(revision),
        state,
        created: Timestamp::from_micros(5),
        due,
        clock: DueClock::ALL[usize::from(key % 3 == 2)],
        missed: Missed::Fire,
        recurring: None,
        first_due: due,
        policy: RetryPolicy::default(),
        failures: 0,
        interruptions: 0,
        attempt: 0,
        attempts: Vec::new(),
        payload: vec![u8::try_from(revision % 251).unwrap_or(0); payload],
    }
}
