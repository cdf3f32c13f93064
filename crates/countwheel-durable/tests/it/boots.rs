//! Boots with wrong clocks: what an earlier process was asked for comes in its time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::simulated::Disk;
use countwheel_disk::{LogOptions, LogStore, MemorySorted};
use countwheel_durable::store::{MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, Config, Due, Effect, Engine, Event, Outcome, Precondition, Recurrence, Request,
    RetryPolicy, Schedule, SetOptions, Stats, Ticket, TimerName, TroubleReason, Verdict,
};
use countwheel_time::{BootId, Clock, Instant, ManualClock, Timestamp};

const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
/// As often a service looks at its clocks, at least; rougher, for speed.
const LOOK: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_secs(90);

/// What keeps its content over a restart.
enum Kept {
    Memory(MemoryStore),
    Log(Disk, MemorySorted),
}

impl Kept {
    fn log() -> Self {
        Self::Log(Disk::default(), MemorySorted::default())
    }

    /// The store, for a process that begins. A log is short, and moved on at each opening.
    fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::new(store.clone()),
            Self::Log(disk, base) => {
                disk.restart();
                let mut options = LogOptions::default();
                options.segment_bytes = 1 << 14;
                let log = LogStore::open(base.clone(), disk.files("log"), 7, options).unwrap();
                log.seal().unwrap();
                while log.flush_oldest().unwrap() {}
                Arc::new(log)
            }
        }
    }
}

/// Between which moments of real time something has to start.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: Instant,
    to: Instant,
}

/// A machine whose wall clock may be wrong, and what was asked of the service on it.
struct Bench {
    /// Real time is what [`Clock::now`] of it shows.
    clock: ManualClock,
    kept: Kept,
    engine: Option<Engine>,
    boots: u128,
    started: Vec<(Instant, Attempt)>,
    /// The delays that have not started.
    delays: BTreeMap<String, Span>,
    /// When each instant is, by the wall clock.
    instants: BTreeMap<String, Timestamp>,
    /// When a clock was set or a process began: what is overdue then starts at a rate.
    changed: Instant,
    /// What the wall clock should have shown at least, and when; and the same where the notes, which
    /// may be as old as they get, are sure to know it.
    presumed: [Option<(Timestamp, Instant)>; 2],
}

impl Bench {
    fn new(kept: Kept, wall: Timestamp) -> Self {
        let clock = ManualClock::at(wall);
        clock.reboot(BootId::from_u128(1));
        let mut bench = Self {
            clock,
            kept,
            engine: None,
            boots: 1,
            started: Vec::new(),
            delays: BTreeMap::new(),
            instants: BTreeMap::new(),
            changed: Instant::ZERO,
            presumed: [None; 2],
        };
        bench.open();
        bench
    }

    fn open(&mut self) {
        let clock = Arc::new(self.clock.clone());
        let engine = Engine::open(self.kept.store(), Shard::ONLY, clock, Config::default());
        self.engine = Some(engine.unwrap());
        self.changed = self.clock.now();
        self.look();
    }

    fn stats(&self) -> Stats {
        self.engine.as_ref().unwrap().stats()
    }

    fn behind(&self) -> Duration {
        let behind = self.stats().behind_commits(self.clock.timestamp());
        let troubles = self.engine.as_ref().unwrap().troubles();
        let is_said = troubles
            .iter()
            .any(|one| one.reason == TroubleReason::ClockBehindCommits);
        assert_eq!(is_said, behind > Duration::ZERO, "{behind:?}: {troubles:?}");
        behind
    }

    fn turn(&mut self, mut events: Vec<Event>) {
        loop {
            let (now, wall) = (self.clock.now(), self.clock.timestamp());
            let mut new = Vec::new();
            let engine = self.engine.as_mut().unwrap();
            let sink = &mut |effect| match effect {
                Effect::Answer(_, answer) => drop(answer.unwrap()),
                Effect::BatchAnswer(..) => unreachable!("nobody asks for a batch"),
                Effect::Start(attempt) => new.push(attempt),
            };
            engine.turn(std::mem::take(&mut events), sink).unwrap();
            if new.is_empty() {
                break;
            }
            for attempt in new {
                events.push(self.note(now, wall, attempt));
            }
        }
    }

    /// Judges a start, and gives its outcome: the first of a retry fails.
    fn note(&mut self, now: Instant, wall: Timestamp, attempt: Attempt) -> Event {
        let key = attempt.name.key.to_string();
        if let Some(span) = self.delays.remove(&key) {
            assert!(now >= span.from, "{key} starts at {now:?}, not in {span:?}");
            assert!(now <= span.to, "{key} starts at {now:?}, not in {span:?}");
        }
        if let Some(at) = self.instants.remove(&key) {
            assert!(wall >= at, "{key} starts at {wall:?}, not at {at:?}");
        }
        let fails = key.starts_with("retry") && attempt.number == 1;
        let again = match key.as_str() {
            _ if fails => Some(RETRY),
            _ if key.starts_with("series") => Some(Self::every(&key)),
            _ => None,
        };
        if let Some(delay) = again {
            self.expect(key, now, delay);
        }
        let revision = attempt.revision;
        self.started.push((now, attempt));
        let outcome = Outcome::new(
            if fails {
                Verdict::Failed { retry_after: None }
            } else {
                Verdict::Done
            },
            "",
        );
        Event::Outcome { revision, outcome }
    }

    fn every(key: &str) -> Duration {
        Duration::from_secs(60 + key.len() as u64)
    }

    fn expect(&mut self, key: String, now: Instant, delay: Duration) {
        let from = now + delay;
        let to = from + SECOND;
        self.delays.insert(key, Span { from, to });
    }

    /// Retries and series begin with an attempt at once.
    fn set(&mut self, key: &str, due: Due) {
        let mut options = SetOptions::default();
        if key.starts_with("series") {
            let every = Self::every(key);
            let schedule = Schedule::FixedDelay { every };
            options.recurrence = Some(Box::new(Recurrence::new(schedule)));
        }
        match due {
            Due::In(delay) => self.expect(key.to_owned(), self.clock.now(), delay),
            Due::At(at) => drop(self.instants.insert(key.to_owned(), at)),
        }
        let set = Request::Set {
            name: TimerName::new("q", key).unwrap(),
            due,
            policy: RetryPolicy::fixed(RETRY),
            payload: Vec::new(),
            options,
            precondition: Precondition::None,
        };
        self.turn(vec![Event::Request(Ticket(0), set)]);
    }

    /// Takes the turns that the engine asks for, and says how long it wants to wait then.
    fn look(&mut self) -> Option<Duration> {
        for _ in 0..1_000 {
            let wake = self.engine.as_ref().unwrap().next_wake();
            let wait = wake.map(|at| at.saturating_since(self.clock.timestamp()));
            if wait != Some(Duration::ZERO) {
                return wait;
            }
            self.turn(vec![]);
        }
        panic!("it asks for turns again and again");
    }

    /// Sets the wall clock, while the service runs and looks at it.
    fn set_clock(&mut self, wall: Timestamp) {
        self.clock.set_timestamp(wall);
        self.changed = self.clock.now();
        self.turn(vec![]);
    }

    /// Lets time pass; nothing that has to start by then may be left.
    fn wait(&mut self, span: Duration) {
        let end = self.clock.now() + span;
        loop {
            let wait = self.look();
            let now = self.clock.now();
            for (key, span) in &self.delays {
                assert!(now <= span.to, "{key} hangs at {now:?}, after {span:?}");
            }
            let wall = self.clock.timestamp();
            for (key, at) in &self.instants {
                let is_due = wall >= *at + SECOND && now >= self.changed + SECOND;
                assert!(!is_due, "{key} hangs at {wall:?}, after {at:?}");
            }
            let left = end.saturating_since(now);
            if left == Duration::ZERO {
                break;
            }
            self.clock.advance(wait.unwrap_or(left).min(left).min(LOOK));
        }
    }

    /// What the notes of the clocks say of the wall clock, at most and at least: no less than they
    /// said before.
    fn stood(&self) -> [Timestamp; 2] {
        let passed = |at| self.clock.now().saturating_since(at);
        self.presumed.map(|presumed| {
            let presumed = presumed.map(|(wall, at)| wall + passed(at));
            self.clock.timestamp().max(presumed.unwrap_or_default())
        })
    }

    /// The next process begins with the wall clock at `wall`.
    fn presume(&mut self, [most, least]: [Timestamp; 2], away: Duration, wall: Timestamp) {
        let now = self.clock.now();
        if self.delays.is_empty() && self.instants.is_empty() && self.started.is_empty() {
            return; // nothing was committed, so there is no note
        }
        self.presumed = [
            (wall < most).then_some((most + away, now)),
            (wall + MINUTE + LOOK < least).then_some((least + away, now)),
        ];
    }

    /// The process ends without a word, and the next begins after some time.
    fn restart(&mut self, away: Duration, set_clock: impl FnOnce(Timestamp) -> Timestamp) {
        drop(self.engine.take());
        let stood = self.stood();
        self.clock.advance(away);
        let set = set_clock(self.clock.timestamp());
        self.clock.set_timestamp(set);
        self.presume(stood, away, set);
        // What was due meanwhile starts now; nothing else is given away.
        let now = self.clock.now();
        for span in self.delays.values_mut() {
            span.to = span.to.max(now + SECOND);
        }
        self.open();
    }

    /// The same for the machine, whose wall clock then shows what `set_clock` makes of the time.
    fn reboot(&mut self, away: Duration, set_clock: impl FnOnce(Timestamp) -> Timestamp) {
        drop(self.engine.take());
        let stood = self.stood();
        self.clock.advance(away);
        self.boots += 1;
        self.clock.reboot(BootId::from_u128(self.boots));
        let wall = set_clock(self.clock.timestamp());
        self.clock.set_timestamp(wall);
        let now = self.clock.now();
        self.presume(stood, Duration::ZERO, wall);
        // How long the machine was off is what the wall clock says: it may say too much, or too
        // little, or nothing: then what passed since the last note is counted again as well.
        let [counted, most] = stood.map(|stood| wall.saturating_since(stood));
        let mut lost = away.saturating_sub(counted);
        if counted == Duration::ZERO {
            lost += MINUTE + LOOK;
        }
        let won = most.saturating_sub(away);
        for span in self.delays.values_mut() {
            let from = span.from.as_nanos();
            let won = u64::try_from(won.as_nanos()).unwrap();
            span.from = Instant::from_nanos(from.saturating_sub(won));
            span.to = (span.to + lost).max(now + SECOND);
        }
        self.open();
    }
}

fn same(wall: Timestamp) -> Timestamp {
    wall
}

fn after(delay: Duration) -> Due {
    Due::In(delay)
}

/// Each of these with either store.
fn on_each(wall: Timestamp, test: impl Fn(Bench)) {
    test(Bench::new(Kept::Memory(MemoryStore::new(7)), wall));
    test(Bench::new(Kept::log(), wall));
}

/// They hung for 56 years.
#[test]
fn a_dead_clock_that_is_set_right_later_hangs_no_delay() {
    on_each(Timestamp::EPOCH, |mut bench| {
        bench.set("delay", after(HOUR));
        bench.set("retry", after(Duration::ZERO));
        bench.set("series", after(Duration::ZERO));
        bench.wait(30 * SECOND);
        bench.set_clock(NOON);
        bench.wait(20 * SECOND);
        bench.restart(SECOND, same);
        assert_eq!(bench.behind(), Duration::ZERO);
        bench.wait(10 * MINUTE);
        bench.reboot(MINUTE, same);
        bench.wait(HOUR);
        let first = bench
            .started
            .iter()
            .find(|(_, a)| a.name.key.as_str() == "delay");
        assert_eq!(first.unwrap().0, Instant::ZERO + HOUR);
    });
}

/// It came after 25 seconds.
#[test]
fn a_jump_before_the_restart_brings_no_delay() {
    on_each(NOON, |mut bench| {
        bench.set("delay", after(HOUR));
        bench.wait(10 * SECOND);
        bench.set_clock(NOON + 56 * 365 * DAY);
        bench.wait(10 * SECOND);
        bench.restart(5 * SECOND, same);
        bench.wait(HOUR - 26 * SECOND);
        assert!(bench.started.is_empty());
        bench.wait(SECOND);
        assert_eq!(bench.started.len(), 1);
    });
}

#[test]
fn a_clock_that_is_set_between_two_processes_moves_no_delay() {
    on_each(NOON, |mut bench| {
        bench.set("delay", after(HOUR));
        bench.wait(MINUTE);
        bench.restart(MINUTE, |wall| wall + DAY);
        bench.wait(MINUTE);
        bench.restart(MINUTE, |wall| wall.saturating_sub(2 * DAY));
        assert!(bench.behind() > DAY);
        bench.wait(HOUR);
        assert_eq!(bench.started[0].0, Instant::ZERO + HOUR);
        // Nobody knows whether it is right now: it is behind until it has caught up.
        bench.restart(SECOND, same);
        assert!(bench.behind() > DAY);
    });
}

/// The clock was behind for one boot and right for the next: every delay came by as much too early
/// as the clock had been behind.
#[test]
fn a_boot_behind_and_one_with_the_clock_right_bring_no_delay_forward() {
    on_each(NOON, |mut bench| {
        let right = |bench: &Bench| NOON + bench.clock.now().saturating_since(Instant::ZERO);
        bench.set("delay", after(5 * HOUR));
        for wrong in [
            Timestamp::EPOCH,
            NOON.saturating_sub(20 * DAY),
            NOON.saturating_sub(25 * MINUTE),
        ] {
            bench.wait(20 * MINUTE);
            bench.reboot(MINUTE, |_| wrong);
            assert!(bench.behind() > Duration::ZERO);
            bench.wait(10 * MINUTE);
            bench.restart(SECOND, same);
            bench.wait(10 * MINUTE);
            let now = right(&bench) + MINUTE;
            bench.reboot(MINUTE, |_| now);
        }
        assert!(bench.started.is_empty());
        bench.wait(3 * HOUR);
        assert_eq!(bench.started.len(), 1);
        assert!(bench.started[0].0 >= Instant::ZERO + 5 * HOUR);
    });
}

/// What the machine was off for is unknown, and not counted.
#[test]
fn a_boot_in_1970_says_so_and_carries_delays_on() {
    on_each(NOON, |mut bench| {
        bench.set("delay", after(HOUR));
        bench.set("instant", Due::At(NOON + 2 * HOUR));
        bench.wait(20 * MINUTE);
        bench.reboot(10 * MINUTE, |_| Timestamp::EPOCH);
        assert!(bench.behind() > 50 * 365 * DAY);
        assert!(bench.stats().line_skew_micros < 0);
        bench.wait(39 * MINUTE);
        assert!(bench.started.is_empty());
        bench.wait(2 * MINUTE + LOOK);
        assert_eq!(bench.started.len(), 1);
        // An instant waits for the wall clock.
        bench.wait(3 * HOUR);
        assert_eq!(bench.started.len(), 1);
        bench.set_clock(NOON + 5 * HOUR);
        assert_eq!(bench.started.len(), 2);
        assert_eq!(bench.behind(), Duration::ZERO);
    });
}

/// A boot in 1970, again and again, takes back what passed since the last note, and no more.
#[test]
fn no_delay_hangs_over_boots_that_all_begin_in_1970() {
    on_each(Timestamp::EPOCH, |mut bench| {
        bench.set("delay", after(3 * HOUR));
        for _ in 0..6 {
            bench.wait(30 * MINUTE);
            bench.reboot(SECOND, |_| Timestamp::EPOCH);
        }
        bench.wait(10 * MINUTE);
        assert_eq!(bench.started.len(), 1);
    });
}

/// Nothing better is known; but it is once.
#[test]
fn a_boot_a_day_ahead_brings_delays_once() {
    on_each(NOON, |mut bench| {
        bench.set("short", after(HOUR));
        bench.set("long", after(2 * DAY));
        bench.wait(MINUTE);
        bench.reboot(MINUTE, |wall| wall + DAY);
        assert_eq!(bench.started.len(), 1);
        bench.set("new", after(HOUR));
        bench.wait(MINUTE);
        let right = bench.clock.timestamp().saturating_sub(DAY);
        bench.set_clock(right);
        bench.restart(SECOND, same);
        bench.reboot(MINUTE, same);
        assert_eq!(bench.behind(), Duration::ZERO);
        bench.wait(2 * HOUR);
        assert_eq!(bench.started.len(), 2);
        bench.wait(22 * HOUR);
        assert_eq!(bench.started.len(), 3);
    });
}

/// A store of an earlier version has no note.
#[test]
fn without_a_note_delays_begin_at_the_wall_clock() {
    let mut bench = Bench::new(Kept::Memory(MemoryStore::new(7)), NOON);
    assert_eq!(bench.stats().line_skew_micros, 0);
    assert_eq!(bench.behind(), Duration::ZERO);
    bench.restart(SECOND, |wall| wall.saturating_sub(HOUR));
    // Nothing was ever committed.
    assert_eq!(bench.behind(), Duration::ZERO);
    assert_eq!(bench.stats().line_skew_micros, 0);
}

/// A generator of its own: the same seed is the same world.
struct Random(countwheel_time::Random);

impl Random {
    fn new(seed: u64) -> Self {
        Self(countwheel_time::Random::new(seed))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0.draw() % end
    }

    fn span(&mut self, below: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(below.as_micros()).unwrap()))
    }
}

/// A life of a machine whose wall clock shows anything at a boot and is set at any moment. Says how
/// many attempts started, and how often the clock stood before the commits.
fn live(seed: u64) -> (usize, u64) {
    let mut random = Random::new(seed);
    let begins = [NOON, NOON, Timestamp::EPOCH, NOON + DAY];
    let begins = begins[usize::try_from(random.below(4)).unwrap()];
    let kept = match random.below(2) {
        0 => Kept::Memory(MemoryStore::new(7)),
        _ => Kept::log(),
    };
    let mut bench = Bench::new(kept, begins);
    let mut behind = 0;
    for number in 0..25 {
        let right = NOON + bench.clock.now().saturating_since(Instant::ZERO);
        let wrong = match random.below(5) {
            0 => Timestamp::EPOCH + random.span(HOUR),
            1 => right.saturating_sub(DAY),
            2 => right + DAY,
            3 => right + random.span(HOUR),
            _ => right,
        };
        let away = match random.below(3) {
            0 => SECOND,
            _ => random.span(HOUR),
        };
        match random.below(10) {
            0 | 1 => {
                let delay = random.span(HOUR);
                bench.set(&format!("delay-{number}"), after(delay));
            }
            2 => {
                let at = bench.clock.timestamp() + random.span(HOUR);
                bench.set(&format!("instant-{number}"), Due::At(at));
            }
            3 => bench.set(&format!("retry-{number}"), after(Duration::ZERO)),
            4 => bench.set(&format!("series-{number}"), after(Duration::ZERO)),
            5 => bench.set_clock(wrong),
            6 => {
                let is_set = random.below(2) == 0;
                bench.restart(away, |wall| if is_set { wrong } else { wall });
            }
            7 => bench.reboot(away, |_| wrong),
            _ => bench.wait(away.min(10 * MINUTE)),
        }
        behind += u64::from(bench.behind() > Duration::ZERO);
    }
    bench.wait(20 * MINUTE);
    (bench.started.len(), behind)
}

/// Each delay starts between what was asked for and what the boots can have added or taken, each
/// instant by the wall clock, and nothing hangs.
#[test]
fn whatever_the_clocks_show_at_boots_each_comes_in_its_time() {
    let (mut starts, mut behind) = (0, 0);
    for seed in 0..150 {
        let (more, more_behind) = live(seed);
        (starts, behind) = (starts + more, behind + more_behind);
    }
    // What never happens rots.
    assert!(
        starts > 2_000 && behind > 100,
        "{starts} starts, {behind} behind"
    );
}

#[cfg(feature = "planted-bugs")]
#[test]
fn each_mistake_in_keeping_the_clocks_is_found() {
    use countwheel_disk::PlantedBug::LogSnapshotForgetsClock;
    use countwheel_durable::PlantedBug::{LineStartsAtWall, StepUnnoted};
    let fails = |bug, test: &dyn Fn()| {
        countwheel_durable::plant(bug);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
        countwheel_durable::plant(None);
        ended.is_err()
    };
    let found = |bug| {
        let lives = |seed: &u64| {
            fails(bug, &|| {
                live(*seed);
            })
        };
        (0..150).find(lives).is_some()
    };
    for bug in [LineStartsAtWall, StepUnnoted] {
        assert!(found(Some(bug)), "{bug:?} was not found");
    }
    countwheel_disk::plant(Some(LogSnapshotForgetsClock));
    let is_found = found(None);
    countwheel_disk::plant(None);
    assert!(is_found, "LogSnapshotForgetsClock was not found");
    // As it was before there were any notes.
    for test in [
        a_dead_clock_that_is_set_right_later_hangs_no_delay,
        a_jump_before_the_restart_brings_no_delay,
        a_clock_that_is_set_between_two_processes_moves_no_delay,
        a_boot_in_1970_says_so_and_carries_delays_on,
        no_delay_hangs_over_boots_that_all_begin_in_1970,
        a_boot_a_day_ahead_brings_delays_once,
    ] {
        assert!(fails(Some(LineStartsAtWall), &test));
    }
}
