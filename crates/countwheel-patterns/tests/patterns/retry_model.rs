//! A retry store against the plainest one there is, through random interleavings: submit,
//! succeed, fail, panic, cancel, time passes, stop, and the timer stops.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use countwheel::{Instant, Layout, ManualHost};
use countwheel_patterns::{
    Attempt, Cancelled, Failure, GiveUp, KeyedRetry, OnPanic, RetryPolicy, RetryStats, SubmitError,
    WhenFull,
};

use crate::support::{Journal, MS, Random, manual};

type Store = KeyedRetry<u64, u64, u64>;
type Result = std::result::Result<(), Failure<u64>>;

/// What the test tells an attempt to do.
#[derive(Clone, Copy, Debug)]
enum Told {
    Return(Result),
    Panic,
}

/// The attempts in flight, by their value: each waits to be told how it ends.
#[derive(Clone, Default)]
struct Gates(Arc<Mutex<HashMap<u64, Gate>>>);

/// What it was told, and who waits for that.
type Gate = (Option<Told>, Option<Waker>);

impl Gates {
    async fn wait(self, value: u64) -> Result {
        let told = std::future::poll_fn(|cx| {
            let mut gates = self.0.lock().unwrap();
            let (told, waker) = gates.entry(value).or_default();
            *waker = Some(cx.waker().clone());
            told.map_or(Poll::Pending, Poll::Ready)
        });
        let told = told.await;
        self.0.lock().unwrap().remove(&value);
        match told {
            Told::Return(result) => result,
            // Without the noise of a panic hook.
            Told::Panic => resume_unwind(Box::new("as told")),
        }
    }

    fn tell(&self, value: u64, told: Told) {
        let mut gates = self.0.lock().unwrap();
        let gate = gates.entry(value).or_default();
        gate.0 = Some(told);
        let waker = gate.1.take();
        drop(gates);
        waker.unwrap().wake();
    }
}

#[derive(Clone, Debug)]
struct Op {
    serial: u64,
    value: u64,
    made: u32,
    error: Option<u64>,
    next_at: u64,
}

#[derive(Default, Debug)]
struct Slot {
    op: Option<Op>,
    /// In flight, and whether its result is void.
    flight: Option<(Op, bool)>,
}

/// In whole milliseconds.
struct Model {
    now: u64,
    last: u64,
    slots: BTreeMap<u64, Slot>,
    /// Keys whose operation waits for its time, in the order in which it was filed.
    waiting: Vec<(u64, u64)>,
    due: VecDeque<u64>,
    limits: (usize, usize, WhenFull, OnPanic),
    closed: bool,
    started: Vec<(u64, u64, u32)>,
    dead: Vec<(u64, u64, u32, Option<u64>, GiveUp)>,
    stats: Counts,
}

#[derive(Default, Debug, PartialEq)]
struct Counts {
    submitted: u64,
    succeeded: u64,
    given_up: u64,
    dropped: u64,
    cancelled: u64,
    superseded: u64,
    returned: u64,
    refused: u64,
    attempts: u64,
    failed: u64,
    panicked: u64,
    void: u64,
}

const DELAYS: [u64; 3] = [5, 10, 20];

impl Model {
    fn in_flight(&self) -> usize {
        self.slots
            .values()
            .filter(|slot| slot.flight.is_some())
            .count()
    }

    fn lift(&mut self, key: u64) -> Option<Op> {
        let op = self.slots.get_mut(&key)?.op.take();
        self.waiting.retain(|(_, other)| *other != key);
        self.due.retain(|other| *other != key);
        op
    }

    fn place(&mut self, key: u64, op: Op) {
        let slot = self.slots.get_mut(&key).unwrap();
        if slot.flight.is_none() && !self.closed {
            if op.next_at > self.now {
                self.waiting.push((op.next_at, key));
            } else {
                self.due.push_back(key);
            }
        }
        slot.op = Some(op);
    }

    fn sweep(&mut self, key: u64) {
        let slot = &self.slots[&key];
        if slot.op.is_none() && slot.flight.is_none() {
            self.slots.remove(&key);
        }
    }

    /// What the executor does when it gets its turn.
    fn run(&mut self) {
        let now = self.now;
        let mut fired: Vec<_> = self.waiting.extract_if(.., |(at, _)| *at <= now).collect();
        fired.sort_by_key(|(at, _)| *at);
        self.due.extend(fired.iter().map(|(_, key)| key));
        while self.in_flight() < self.limits.1
            && let Some(key) = self.due.pop_front()
        {
            let slot = self.slots.get_mut(&key).unwrap();
            let mut op = slot.op.take().unwrap();
            op.made += 1;
            self.started.push((key, op.value, op.made));
            self.stats.attempts += 1;
            slot.flight = Some((op, false));
        }
    }

    fn void(&mut self, key: u64) -> bool {
        match self
            .slots
            .get_mut(&key)
            .and_then(|slot| slot.flight.as_mut())
        {
            Some((_, is_void @ false)) => {
                *is_void = true;
                true
            }
            _ => false,
        }
    }

    fn has(&self, key: u64) -> bool {
        let slot = self.slots.get(&key);
        slot.is_some_and(|slot| slot.op.is_some() || slot.flight.as_ref().is_some_and(|f| !f.1))
    }

    fn submit(
        &mut self,
        key: u64,
        value: u64,
        how: How,
    ) -> std::result::Result<Option<u64>, &'static str> {
        if self.closed {
            self.stats.refused += 1;
            return Err("Closed");
        }
        let mut replaced = None;
        let failed = matches!(how, How::Failed | How::FailedIfAbsent);
        self.last += 1;
        let op = Op {
            serial: self.last,
            value,
            made: u32::from(failed),
            error: failed.then_some(value),
            next_at: self.now + if failed { DELAYS[0] } else { 0 },
        };
        let is_there = self.has(key);
        if let Some(slot) = self.slots.get_mut(&key) {
            match (how, &mut slot.op) {
                (How::IfAbsent | How::FailedIfAbsent, _) if is_there => {
                    self.stats.refused += 1;
                    return Err("Present");
                }
                (How::Update, Some(waiting)) => {
                    self.stats.submitted += 1;
                    self.stats.superseded += 1;
                    return Ok(Some(std::mem::replace(&mut waiting.value, value)));
                }
                _ => {}
            }
            replaced = self.lift(key);
            let voided = self.void(key);
            self.stats.superseded += u64::from(replaced.is_some()) + u64::from(voided);
        } else if self.slots.len() >= self.limits.0 {
            match self.limits.2 {
                WhenFull::Refuse => {
                    self.stats.refused += 1;
                    return Err("Full");
                }
                WhenFull::DropOldest => {
                    let idle = self.slots.iter().filter(|(_, slot)| slot.flight.is_none());
                    let oldest = idle.min_by_key(|(_, slot)| slot.op.as_ref().unwrap().serial);
                    let Some((&oldest, _)) = oldest else {
                        self.stats.refused += 1;
                        return Err("Full");
                    };
                    let op = self.lift(oldest).unwrap();
                    self.slots.remove(&oldest);
                    self.stats.dropped += 1;
                    self.dead
                        .push((oldest, op.value, op.made, op.error, GiveUp::Full));
                }
                _ => {
                    self.stats.submitted += 1;
                    self.stats.dropped += 1;
                    self.dead
                        .push((key, value, op.made, op.error, GiveUp::Full));
                    return Ok(None);
                }
            }
        }
        self.stats.submitted += 1;
        self.slots.entry(key).or_default();
        self.place(key, op);
        Ok(replaced.map(|op| op.value))
    }

    fn land(&mut self, key: u64, told: Told) {
        let slot = self.slots.get_mut(&key).unwrap();
        let (mut op, is_void) = slot.flight.take().unwrap();
        if is_void {
            self.stats.void += 1;
            if let Some(fenced) = self.lift(key) {
                self.place(key, fenced);
            }
            self.sweep(key);
            return;
        }
        let own = DELAYS.get(usize::try_from(op.made).unwrap() - 1).copied();
        let next = match told {
            Told::Return(Ok(())) => {
                self.stats.succeeded += 1;
                self.sweep(key);
                return;
            }
            Told::Return(Err(failure)) => {
                self.stats.failed += 1;
                op.error = Some(failure.into_error());
                match failure {
                    Failure::Permanent(_) => Err(GiveUp::Permanent),
                    Failure::Retryable(_) => own.ok_or(GiveUp::Attempts),
                    Failure::RetryAfter(_, wanted) => own
                        .map(|_| u64::try_from(wanted.as_millis()).unwrap())
                        .ok_or(GiveUp::Attempts),
                }
            }
            Told::Panic => {
                self.stats.panicked += 1;
                match self.limits.3 {
                    OnPanic::Retry => own.ok_or(GiveUp::Attempts),
                    _ => Err(GiveUp::Panic),
                }
            }
        };
        match next {
            Ok(delay) => {
                op.next_at = self.now + delay;
                self.place(key, op);
            }
            Err(reason) => {
                self.stats.given_up += 1;
                self.dead.push((key, op.value, op.made, op.error, reason));
                self.sweep(key);
            }
        }
    }

    fn stop(&mut self) -> Vec<(u64, u64, u32, Option<u64>, u64)> {
        self.closed = true;
        let keys: Vec<_> = self.slots.keys().copied().collect();
        let mut ops: Vec<_> = keys
            .iter()
            .filter_map(|&key| Some((key, self.lift(key)?)))
            .collect();
        keys.iter().for_each(|&key| self.sweep(key));
        self.stats.returned += ops.len() as u64;
        ops.sort_by_key(|(_, op)| (op.next_at, op.serial));
        let ops = ops.into_iter();
        ops.map(|(key, op)| (key, op.value, op.made, op.error, op.next_at))
            .collect()
    }

    fn assert_counts(&self, stats: RetryStats) {
        let counts = Counts {
            submitted: stats.submitted,
            succeeded: stats.succeeded,
            given_up: stats.given_up,
            dropped: stats.dropped,
            cancelled: stats.cancelled,
            superseded: stats.superseded,
            returned: stats.returned,
            refused: stats.refused,
            attempts: stats.attempts,
            failed: stats.failed,
            panicked: stats.panicked,
            void: stats.void,
        };
        assert_eq!(counts, self.stats);
        let flights = self.slots.values().filter_map(|slot| slot.flight.as_ref());
        let (void, valid): (Vec<_>, Vec<_>) = flights.partition(|(_, is_void)| *is_void);
        assert_eq!(
            (stats.in_flight, stats.fencing),
            (valid.len() as u64, void.len() as u64)
        );
        let pending = self.slots.values().filter(|slot| slot.op.is_some()).count();
        assert_eq!(stats.pending, pending as u64);
        assert_adds_up(stats);
    }
}

pub(super) fn assert_adds_up(stats: RetryStats) {
    let ends = stats.succeeded
        + stats.given_up
        + stats.dropped
        + stats.cancelled
        + stats.superseded
        + stats.returned;
    let there = stats.pending + stats.in_flight;
    assert_eq!(stats.submitted, ends + there, "{stats:?}");
    let landed = stats.succeeded + stats.failed + stats.panicked + stats.interrupted + stats.void;
    let flying = stats.in_flight + stats.fencing;
    assert_eq!(stats.attempts, landed + flying, "{stats:?}");
}

#[derive(Clone, Copy, Debug)]
enum How {
    Submit,
    IfAbsent,
    Update,
    Failed,
    FailedIfAbsent,
}

fn submit(
    store: &Store,
    key: u64,
    value: u64,
    how: How,
) -> std::result::Result<Option<u64>, &'static str> {
    let answer = match how {
        How::Submit => store.submit(key, value),
        How::IfAbsent => store.submit_if_absent(key, value).map(|()| None),
        How::Update => store.update(key, value),
        How::Failed => store.submit_failed(key, value, value),
        How::FailedIfAbsent => store
            .submit_failed_if_absent(key, value, value)
            .map(|()| None),
    };
    answer.map_err(|error| {
        let name = match &error {
            SubmitError::Closed(_) => "Closed",
            SubmitError::Full(_) => "Full",
            SubmitError::Present(_) => "Present",
            _ => "other",
        };
        assert_eq!(error.into_inner(), (key, value), "it comes back unchanged");
        name
    })
}

struct Run {
    host: ManualHost,
    store: Store,
    model: Model,
    gates: Gates,
    started: Journal<(u64, u64, u32)>,
    dead: Journal<(u64, u64, u32, Option<u64>, GiveUp)>,
}

impl Run {
    fn new(random: &mut Random) -> Self {
        let host = manual(MS, Layout::Hierarchical);
        let bound = |random: &mut Random| usize::try_from(1 + random.below(6)).unwrap();
        let policies = [
            WhenFull::Refuse,
            WhenFull::DropOldest,
            WhenFull::DropNewest,
            WhenFull::DeadLetter,
        ];
        let when_full = policies[usize::try_from(random.below(4)).unwrap()];
        let on_panic = [OnPanic::Retry, OnPanic::GiveUp][usize::try_from(random.below(2)).unwrap()];
        let limits = (bound(random), bound(random), when_full, on_panic);
        let (gates, started, dead) = (Gates::default(), Journal::new(), Journal::new());
        let delays = DELAYS.map(Duration::from_millis);
        let letters = dead.clone();
        let (waits, starts) = (gates.clone(), started.clone());
        let store = Store::builder(host.timer().clone(), RetryPolicy::list(delays).unwrap())
            .max_pending(NonZeroUsize::new(limits.0).unwrap())
            .max_in_flight(NonZeroUsize::new(limits.1).unwrap())
            .when_full(limits.2)
            .on_panic(limits.3)
            .dead_letter(move |letter| {
                let made = letter.attempts.made();
                letters.write((letter.key, letter.value, made, letter.error, letter.reason));
            })
            .build_keyed_async(move |key, value, attempt: Attempt| {
                starts.write((key, value, attempt.number()));
                waits.clone().wait(value)
            });
        let model = Model {
            now: 0,
            last: 0,
            slots: BTreeMap::new(),
            waiting: Vec::new(),
            due: VecDeque::new(),
            limits,
            closed: false,
            started: Vec::new(),
            dead: Vec::new(),
            stats: Counts::default(),
        };
        let store = store.unwrap();
        Self {
            host,
            store,
            model,
            gates,
            started,
            dead,
        }
    }

    fn advance(&mut self, millis: u64) {
        self.host.advance(Duration::from_millis(millis));
        self.model.run();
        self.model.now += millis;
        self.model.run();
    }

    /// An attempt in flight ends.
    fn land(&mut self, random: &mut Random) {
        self.advance(0);
        let flights = self.model.slots.iter().filter_map(|(key, slot)| {
            let (op, _) = slot.flight.as_ref()?;
            Some((*key, op.value))
        });
        let flights: Vec<_> = flights.collect();
        if flights.is_empty() {
            return;
        }
        let chosen = usize::try_from(random.below(flights.len() as u64)).unwrap();
        let (key, value) = flights[chosen];
        let told = match random.below(10) {
            0..3 => Told::Return(Ok(())),
            3 => Told::Panic,
            4 => Told::Return(Err(Failure::Permanent(random.next()))),
            5 => Told::Return(Err(Failure::RetryAfter(random.next(), MS * 3))),
            _ => Told::Return(Err(Failure::Retryable(random.next()))),
        };
        self.gates.tell(value, told);
        self.host.run_due();
        self.model.land(key, told);
        self.model.run();
    }

    fn cancel(&mut self, key: u64) {
        let answer = self.store.cancel(&key);
        let model = &mut self.model;
        let lifted = model.lift(key);
        let voided = model.void(key);
        model.stats.cancelled += u64::from(lifted.is_some()) + u64::from(voided);
        if model.slots.contains_key(&key) {
            model.sweep(key);
        }
        let expected = match lifted {
            Some(op) => Cancelled::Pending(op.value),
            None if voided => Cancelled::InFlight,
            None => Cancelled::Absent,
        };
        assert_eq!(answer, expected);
    }

    fn stop(&mut self) {
        let stopped = self.store.stop();
        assert_eq!(stopped.in_flight, self.model.in_flight());
        let pending = stopped.pending.into_iter().map(|pending| {
            let at = pending.next_at.saturating_since(Instant::ZERO).as_millis();
            let at = u64::try_from(at).unwrap();
            (
                pending.key,
                pending.value,
                pending.attempts.made(),
                pending.error,
                at,
            )
        });
        assert_eq!(pending.collect::<Vec<_>>(), self.model.stop());
    }

    fn compare(&mut self) {
        assert_eq!(self.started.take(), std::mem::take(&mut self.model.started));
        assert_eq!(self.dead.take(), std::mem::take(&mut self.model.dead));
        self.model.assert_counts(self.store.stats());
        for key in 0..8 {
            assert_eq!(self.store.contains(&key), self.model.has(key));
        }
    }
}

#[test]
fn a_store_does_what_the_plainest_store_does() {
    let mut all = Counts::default();
    for seed in 0..500 {
        let mut random = Random(seed);
        let mut run = Run::new(&mut random);
        let mut value = 0;
        for _ in 0..80 {
            match random.below(12) {
                0..5 => {
                    value += 1;
                    let how = match random.below(8) {
                        0..3 => How::Submit,
                        3 => How::IfAbsent,
                        4 | 5 => How::Update,
                        6 => How::Failed,
                        _ => How::FailedIfAbsent,
                    };
                    let key = random.below(8);
                    let answer = submit(&run.store, key, value, how);
                    assert_eq!(
                        answer,
                        run.model.submit(key, value, how),
                        "seed {seed}, {how:?}"
                    );
                }
                5 => run.cancel(random.below(8)),
                6..9 => run.advance(random.below(12)),
                _ => run.land(&mut random),
            }
            if random.below(3) > 0 {
                run.advance(0);
                run.compare();
            }
        }
        run.advance(0);
        run.stop();
        for _ in 0..6 {
            // What was in flight comes back, or has ended; nothing starts any more.
            run.land(&mut random);
            run.compare();
        }
        assert_eq!(submit(&run.store, 1, 0, How::Submit), Err("Closed"));
        run.model.stats.refused += 1;
        run.stop();
        run.compare();
        assert!(run.store.is_stopped());
        let stats = &run.model.stats;
        all.superseded += stats.superseded;
        all.void += stats.void;
        all.dropped += stats.dropped;
        all.given_up += stats.given_up;
        all.panicked += stats.panicked;
        all.returned += stats.returned;
        all.cancelled += stats.cancelled;
    }
    let Counts {
        superseded,
        void,
        dropped,
        given_up,
        panicked,
        returned,
        cancelled,
        ..
    } = all;
    let seen = [
        superseded, void, dropped, given_up, panicked, returned, cancelled,
    ];
    assert!(
        seen.iter().all(|&count| count > 300),
        "everything happens often: {seen:?}"
    );
}

/// The timer may stop at any moment: what waits is still there.
#[test]
fn nothing_is_lost_when_the_timer_stops() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut run = Run::new(&mut random);
        for value in 1..40 {
            match random.below(3) {
                0 => run.advance(random.below(12)),
                1 => run.land(&mut random),
                _ => {
                    let key = random.below(8);
                    let answer = submit(&run.store, key, value, How::Submit);
                    assert_eq!(answer, run.model.submit(key, value, How::Submit));
                }
            }
        }
        let before = run.store.stats();
        // Tasks that a stop gives back may be dropped, or kept.
        let unfired = run.host.timer().stop().unfired;
        if random.below(2) == 0 {
            drop(unfired);
        }
        let stats = run.store.stats();
        assert_eq!(
            (stats.pending, stats.in_flight),
            (before.pending, before.in_flight)
        );
        assert_adds_up(stats);
        assert_eq!(submit(&run.store, 1, 0, How::Submit), Err("Closed"));
        // The attempts in flight are woken too late: they are dropped, and come back.
        for slot in run.model.slots.values() {
            if let Some((op, _)) = &slot.flight {
                run.gates.tell(op.value, Told::Return(Ok(())));
            }
        }
        let stats = run.store.stats();
        assert_eq!((stats.in_flight, stats.fencing), (0, 0));
        assert_eq!(stats.interrupted, before.in_flight);
        let stopped = run.store.stop();
        assert_eq!(
            stopped.pending.len() as u64,
            before.pending + before.in_flight
        );
        assert_adds_up(run.store.stats());
        assert!(run.store.is_empty());
    }
}
