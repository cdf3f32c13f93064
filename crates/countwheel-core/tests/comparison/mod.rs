//! The wheels against the plainest model there is: a sorted map.
//!
//! A run is a seed: it decides the shape of the wheel, where the hand starts, and
//! every operation. Wheel and map must agree on every answer, including the order
//! of equal deadlines, and on the whole visible state after every operation.
#![allow(dead_code, reason = "each of the programs that share this uses a part")]

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use countwheel_core::{Expired, HashedWheel, HierarchicalWheel, Tick, TimerKey};

/// Names a timer within one run: timers are numbered as they are inserted.
type Id = usize;

/// Operations of a run in between two checks of every invariant.
const CHECK_INTERVAL: u64 = 1_000;

// ---------------------------------------------------------------------------
// The two sides

/// What both wheels can do: the one place that touches their API.
pub(crate) trait Wheel {
    fn insert(&mut self, deadline: Tick, id: Id) -> TimerKey;
    fn cancel(&mut self, key: TimerKey) -> Option<Id>;
    fn reschedule(&mut self, key: TimerKey, deadline: Tick) -> bool;
    fn cancel_each(&mut self, keys: &[TimerKey]) -> Vec<(TimerKey, Id)>;
    fn expire(&mut self, now: Tick) -> Option<Expired<Id>>;
    fn expire_batch(&mut self, now: Tick, limit: usize) -> Vec<Expired<Id>>;
    /// Those that cannot stop half-way go all the way.
    fn expire_within(&mut self, now: Tick, moves: &mut usize) -> Option<Expired<Id>>;
    fn next_wake(&self) -> Option<Tick>;
    fn next_deadline(&self) -> Option<Tick>;
    fn get(&self, key: TimerKey) -> Option<&Id>;
    fn get_mut(&mut self, key: TimerKey) -> Option<&mut Id>;
    fn deadline(&self, key: TimerKey) -> Option<Tick>;
    fn contains(&self, key: TimerKey) -> bool;
    fn now(&self) -> Tick;
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool;
    fn clear(&mut self);
    fn drain(&mut self) -> Vec<Expired<Id>>;
    fn shrink_to_fit(&mut self);
    fn memory_bytes(&self) -> usize;
    fn check(&self);
}

macro_rules! wheel {
    ($wheel:ident, $within:expr) => {
        impl Wheel for $wheel<Id> {
            fn insert(&mut self, deadline: Tick, id: Id) -> TimerKey {
                $wheel::insert(self, deadline, id)
            }
            fn cancel(&mut self, key: TimerKey) -> Option<Id> {
                $wheel::cancel(self, key)
            }
            fn reschedule(&mut self, key: TimerKey, deadline: Tick) -> bool {
                $wheel::reschedule(self, key, deadline)
            }
            fn cancel_each(&mut self, keys: &[TimerKey]) -> Vec<(TimerKey, Id)> {
                let mut cancelled = Vec::new();
                let each = |key, id| cancelled.push((key, id));
                let count = $wheel::cancel_each(self, keys.iter().copied(), each);
                assert_eq!(count, cancelled.len());
                cancelled
            }
            fn expire(&mut self, now: Tick) -> Option<Expired<Id>> {
                $wheel::expire(self, now)
            }
            fn expire_batch(&mut self, now: Tick, limit: usize) -> Vec<Expired<Id>> {
                let mut batch = Vec::new();
                let count = $wheel::expire_batch(self, now, limit, &mut batch);
                assert_eq!(count, batch.len());
                batch
            }
            fn expire_within(&mut self, now: Tick, moves: &mut usize) -> Option<Expired<Id>> {
                let within: fn(&mut Self, Tick, &mut usize) -> Option<Expired<Id>> = $within;
                within(self, now, moves)
            }
            fn next_wake(&self) -> Option<Tick> {
                $wheel::next_wake(self)
            }
            fn next_deadline(&self) -> Option<Tick> {
                $wheel::next_deadline(self)
            }
            fn get(&self, key: TimerKey) -> Option<&Id> {
                $wheel::get(self, key)
            }
            fn get_mut(&mut self, key: TimerKey) -> Option<&mut Id> {
                $wheel::get_mut(self, key)
            }
            fn deadline(&self, key: TimerKey) -> Option<Tick> {
                $wheel::deadline(self, key)
            }
            fn contains(&self, key: TimerKey) -> bool {
                $wheel::contains(self, key)
            }
            fn now(&self) -> Tick {
                $wheel::now(self)
            }
            fn len(&self) -> usize {
                $wheel::len(self)
            }
            fn is_empty(&self) -> bool {
                $wheel::is_empty(self)
            }
            fn clear(&mut self) {
                $wheel::clear(self);
            }
            fn drain(&mut self) -> Vec<Expired<Id>> {
                $wheel::drain(self)
            }
            fn shrink_to_fit(&mut self) {
                $wheel::shrink_to_fit(self);
            }
            fn memory_bytes(&self) -> usize {
                $wheel::memory_bytes(self)
            }
            fn check(&self) {
                $wheel::check(self);
            }
        }
    };
}

wheel!(HierarchicalWheel, HierarchicalWheel::expire_within);
wheel!(HashedWheel, |wheel, now, _| wheel.expire(now));

/// Which wheel a run is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    Hierarchical,
    Hashed { slots: u64 },
}

impl Shape {
    pub(crate) const ALL: [Self; 6] = [
        Self::Hierarchical,
        Self::Hashed { slots: 1 },
        Self::Hashed { slots: 2 },
        Self::Hashed { slots: 8 },
        Self::Hashed { slots: 64 },
        Self::Hashed { slots: 512 },
    ];

    /// The shape a seed is run with: the hierarchical one every other time.
    pub(crate) fn of_seed(seed: u64) -> Self {
        if seed.is_multiple_of(2) {
            return Self::Hierarchical;
        }
        let hashed = &Self::ALL[1..];
        hashed[small(seed / 2 % hashed.len() as u64)]
    }

    /// A ring of that many slots, or the hierarchy for none.
    pub(crate) fn of_slots(slots: u64) -> Self {
        match slots {
            0 => Self::Hierarchical,
            slots => Self::Hashed { slots },
        }
    }

    fn slots(self) -> u64 {
        match self {
            Self::Hierarchical => 0,
            Self::Hashed { slots } => slots,
        }
    }

    pub(crate) fn build(self, now: Tick) -> Box<dyn Wheel> {
        match self {
            Self::Hierarchical => Box::new(HierarchicalWheel::starting_at(now)),
            Self::Hashed { slots } => {
                let wheel = HashedWheel::starting_at(now, small(slots));
                Box::new(wheel.expect("an allowed size"))
            }
        }
    }

    /// Whether `next_wake` promises the exact tick.
    fn wake_is_exact(self, now: Tick, first_due: Tick, last_due: Tick) -> bool {
        match self {
            Self::Hierarchical => first_due.get() / 256 == now.get() / 256,
            Self::Hashed { slots } => first_due == now || last_due.get() - now.get() <= slots,
        }
    }

    /// A small ring visits every entry at every tick: fewer entries keep a run short.
    fn population_max(self) -> usize {
        match self {
            Self::Hierarchical => 5_000,
            Self::Hashed { slots } => small(slots * 20).clamp(100, 1_500),
        }
    }
}

/// The specification: entries sorted by the tick they are due at, then by insertion.
struct SortedMap {
    now: Tick,
    sequence: u64,
    order: BTreeMap<(Tick, u64), (Id, Tick)>,
    /// Where each timer is in `order`; `None` once it has left.
    places: Vec<Option<(Tick, u64)>>,
}

impl SortedMap {
    fn starting_at(now: Tick) -> Self {
        Self {
            now,
            sequence: 0,
            order: BTreeMap::new(),
            places: Vec::new(),
        }
    }

    fn insert(&mut self, deadline: Tick) -> Id {
        let id = self.places.len();
        self.places.push(None);
        self.file(id, deadline);
        id
    }

    fn file(&mut self, id: Id, deadline: Tick) {
        let place = (deadline.max(self.now), self.sequence);
        self.sequence += 1;
        self.order.insert(place, (id, deadline));
        self.places[id] = Some(place);
    }

    fn cancel(&mut self, id: Id) -> Option<Id> {
        let place = self.places[id].take()?;
        self.order.remove(&place);
        Some(id)
    }

    fn reschedule(&mut self, id: Id, deadline: Tick) -> bool {
        let found = self.cancel(id).is_some();
        if found {
            self.file(id, deadline);
        }
        found
    }

    fn expire(&mut self, now: Tick) -> Option<(Id, Tick)> {
        let now = now.max(self.now);
        match self.order.first_entry() {
            Some(first) if first.key().0 <= now => {
                self.now = first.key().0;
                let (id, deadline) = first.remove();
                self.places[id] = None;
                Some((id, deadline))
            }
            _ => {
                self.now = now;
                None
            }
        }
    }

    fn drain(&mut self) -> Vec<(Id, Tick)> {
        self.places.fill(None);
        std::mem::take(&mut self.order).into_values().collect()
    }

    fn deadline(&self, id: Id) -> Option<Tick> {
        Some(self.order[&self.places[id]?].1)
    }

    fn first_due(&self) -> Option<Tick> {
        Some(self.order.first_key_value()?.0.0)
    }

    fn last_due(&self) -> Option<Tick> {
        Some(self.order.last_key_value()?.0.0)
    }
}

// ---------------------------------------------------------------------------
// What is done to them

/// Sebastiano Vigna's splitmix64, as `countwheel_time::Random` has it: this crate depends on no other.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[small(self.below(from.len() as u64))])
    }
}

/// A number that indexes something.
fn small(number: u64) -> usize {
    usize::try_from(number).expect("what indexes something is small")
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Insert(Tick),
    /// Of a timer that may have left long ago.
    Cancel(Id),
    /// Of this one and as many after it; but one in so many stays.
    CancelEach(Id, usize, usize),
    Reschedule(Id, Tick),
    Look(Id),
    /// At most this many entries.
    Expire(Tick, u64),
    ExpireBatch(Tick, usize),
    /// In that many calls, each with so many moves; then the rest waits for the next operation.
    ExpireWithin(Tick, usize, u64),
    Shrink,
    ExpireAtNextWake,
    NextDeadline,
    Drain,
    Clear,
    /// With a new wheel: the old one has seen the end of time.
    StartAnew(Tick),
}

/// How far ahead deadlines lie.
#[derive(Clone, Copy, Debug)]
enum Delays {
    Near,
    LogUniform,
    Equal,
    AtBorders,
    /// Where a slot begins, of any level.
    Multiples,
    Far,
    Past,
}

impl Delays {
    const ALL: [Self; 7] = [
        Self::Near,
        Self::LogUniform,
        Self::Equal,
        Self::AtBorders,
        Self::Multiples,
        Self::Far,
        Self::Past,
    ];

    fn any(random: &mut Random) -> Self {
        Self::ALL[small(random.below(Self::ALL.len() as u64))]
    }

    fn deadline(self, now: Tick, shape: Shape, random: &mut Random) -> Tick {
        match self {
            Self::Near => now.saturating_add(random.below(150)),
            Self::LogUniform => now.saturating_add(random.next() >> random.below(64)),
            Self::Equal => Tick::new(now.get() | 0xff).saturating_add(random.below(2) * 1_000),
            Self::AtBorders => match shape {
                Shape::Hashed { slots } if random.one_in(2) => {
                    let revolutions = slots * random.below(4);
                    now.saturating_add((revolutions + random.below(3)).saturating_sub(1))
                }
                _ => {
                    let digits = random.below(8) * 8;
                    let last_before = now.get() | ((1 << digits) - 1);
                    Tick::new(last_before).saturating_add(random.below(3))
                }
            },
            Self::Multiples => {
                let digits = [0, 8, 8, 8, 16, 16, 24, 32][small(random.below(8))];
                let start = Tick::new(now.get() >> digits << digits);
                let blocks_ahead = random.below(3) << 16;
                let slots_ahead = random.below(5) << digits;
                start.saturating_add(blocks_ahead + slots_ahead + random.below(3) / 2)
            }
            Self::Far => Tick::new(random.next()),
            Self::Past => Tick::new(random.next() % now.get().max(1)),
        }
    }
}

/// Some hundred operations of one kind, so that the population grows and shrinks.
struct Phase {
    operations_left: u64,
    inserts_percent: u64,
    delays: Delays,
}

impl Phase {
    fn new(random: &mut Random) -> Self {
        Self {
            operations_left: 50 + (random.next() & [0xff, 0x7ff, 0x1fff][small(random.below(3))]),
            inserts_percent: [90, 70, 40, 20, 3][small(random.below(5))],
            delays: Delays::any(random),
        }
    }
}

fn starting_hand(random: &mut Random) -> Tick {
    let few = random.below(200);
    Tick::new(match random.below(7) {
        0 => 0,
        1 => random.next(),
        2 | 3 => (256 << (8 * random.below(7))) - few.min(250),
        4 => (1 << 32) - few,
        5 => (1 << 48) - few,
        _ => u64::MAX - few * few * few,
    })
}

// ---------------------------------------------------------------------------
// A run

/// One seed: both sides, and what is to happen to them.
struct Run {
    shape: Shape,
    random: Random,
    phase: Phase,
    wheel: Box<dyn Wheel>,
    map: SortedMap,
    keys: Vec<TimerKey>,
    /// The timers that are still in, in no order, and where each stands in this list.
    live: Vec<Id>,
    positions: Vec<usize>,
    operations: u64,
    last_operations: VecDeque<(u64, Operation)>,
    /// Whether a slot may have cascaded in part: then the wheel wakes at its hand.
    half_way: bool,
}

impl Run {
    fn new(shape: Shape, seed: u64) -> Self {
        let mut random = Random(seed);
        let now = starting_hand(&mut random);
        Self {
            shape,
            phase: Phase::new(&mut random),
            random,
            wheel: shape.build(now),
            map: SortedMap::starting_at(now),
            keys: Vec::new(),
            live: Vec::new(),
            positions: Vec::new(),
            operations: 0,
            last_operations: VecDeque::new(),
            half_way: false,
        }
    }

    fn step(&mut self) -> Result<(), String> {
        if self.phase.operations_left == 0 {
            self.phase = Phase::new(&mut self.random);
        }
        self.phase.operations_left -= 1;
        let operation = self.choose();
        self.operations += 1;
        if self.last_operations.len() == 12 {
            self.last_operations.pop_front();
        }
        self.last_operations.push_back((self.operations, operation));
        self.apply(operation)?;
        self.compare_state()
    }

    fn choose(&mut self) -> Operation {
        if self.map.now == Tick::MAX && self.random.one_in(200) {
            return Operation::StartAnew(starting_hand(&mut self.random));
        }
        let room = self.live.len() < self.shape.population_max();
        if room && self.random.below(100) < self.phase.inserts_percent {
            return Operation::Insert(self.deadline());
        }
        match self.random.below(20) {
            0..5 => self.timer().map(Operation::Cancel),
            5..9 => {
                let deadline = self.deadline();
                self.timer().map(|id| Operation::Reschedule(id, deadline))
            }
            9..11 => self.timer().map(Operation::Look),
            11 => Some(Operation::NextDeadline),
            12..14 => Some(Operation::ExpireAtNextWake),
            14 if self.random.one_in(500) => Some(Operation::Drain),
            15 if self.random.one_in(300) => Some(Operation::Clear),
            16 if self.random.one_in(50) => Some(Operation::Shrink),
            17 if self.random.one_in(4) => {
                let count = self.random.next() & [3, 0x7f, 0xfff][small(self.random.below(3))];
                let one_stays_in = [usize::MAX, 7, 40, 200][small(self.random.below(4))];
                self.timer()
                    .map(|id| Operation::CancelEach(id, small(count), one_stays_in))
            }
            // Nearly everybody leaves, and chunks are merged.
            16 if self.random.one_in(40) => Some(Operation::CancelEach(0, self.keys.len(), 100)),
            18 => {
                let limit = [0, 1, 2, 10, 100, usize::MAX][small(self.random.below(6))];
                Some(Operation::ExpireBatch(self.time(), limit))
            }
            // What comes next finds the slot as it is, and may be more of this.
            19 => {
                let moves = [0, 1, 2, 7, 31, 40, 100, 1_000][small(self.random.below(8))];
                let calls = 1 + self.random.below(4);
                Some(Operation::ExpireWithin(self.time(), moves, calls))
            }
            _ => None,
        }
        .unwrap_or_else(|| {
            let limit = match self.random.below(10) {
                0 => 0,
                1 if self.random.one_in(10) => u64::MAX,
                _ => 1 + self.random.below(3),
            };
            Operation::Expire(self.time(), limit)
        })
    }

    fn deadline(&mut self) -> Tick {
        let delays = match self.random.below(10) {
            0..3 => Delays::any(&mut self.random),
            _ => self.phase.delays,
        };
        delays.deadline(self.map.now, self.shape, &mut self.random)
    }

    /// A timer, one time in eight one that may have left.
    fn timer(&mut self) -> Option<Id> {
        match self.random.below(8) {
            0 if !self.keys.is_empty() => Some(small(self.random.below(self.keys.len() as u64))),
            _ => self.random.pick(&self.live),
        }
    }

    /// A point in time to expire at.
    fn time(&mut self) -> Tick {
        let now = self.map.now;
        if matches!(self.phase.delays, Delays::Multiples) && self.random.one_in(3) {
            return now.saturating_add(1 << (16 + self.random.below(10)));
        }
        let first_due = self.map.first_due().unwrap_or(now);
        match self.random.below(16) {
            0 => Tick::new(now.get() - self.random.below(now.get().saturating_add(1))),
            1 => now,
            2 => Tick::new(first_due.get().saturating_sub(1)),
            3..6 => first_due,
            6 => first_due.saturating_add(1),
            7 if self.random.one_in(20) => {
                let any = self.random.pick(&self.live);
                let place = any.and_then(|id| self.map.places[id]);
                place.map_or(now, |(due, _)| due)
            }
            // Past a whole slot of a high level, or to its end, while entries are taken one
            // by one.
            7 => now.saturating_add(self.random.next() >> (30 + self.random.below(34))),
            9 if self.random.one_in(3) => {
                let block = (1_u64 << (8 * self.random.below(5))) - 1;
                Tick::new(now.get() | block).saturating_add(self.random.below(3))
            }
            8 if self.random.one_in(400) => self.map.last_due().unwrap_or(now),
            9 if self.random.one_in(1_000) => Tick::new(self.random.next()),
            10 => {
                let border = Delays::AtBorders.deadline(now, self.shape, &mut self.random);
                border.min(now.saturating_add(1 << 40)) // not too soon to the end of time
            }
            _ => now.saturating_add(self.random.below(100)),
        }
    }

    fn apply(&mut self, operation: Operation) -> Result<(), String> {
        match operation {
            Operation::Insert(deadline) => {
                let id = self.map.insert(deadline);
                self.keys.push(self.wheel.insert(deadline, id));
                self.positions.push(self.live.len());
                self.live.push(id);
                Ok(())
            }
            Operation::Cancel(id) => {
                let expected = self.map.cancel(id);
                if expected.is_some() {
                    self.leave(id);
                }
                same("cancel", self.wheel.cancel(self.keys[id]), expected)
            }
            Operation::CancelEach(first, count, one_stays_in) => {
                let ids = first..self.keys.len().min(first + count + 1);
                let ids: Vec<Id> = ids.filter(|id| (id + 1) % one_stays_in != 0).collect();
                let keys: Vec<TimerKey> = ids.iter().map(|&id| self.keys[id]).collect();
                let actual = self.wheel.cancel_each(&keys);
                let mut expected = Vec::new();
                for id in ids {
                    if self.map.cancel(id).is_some() {
                        self.leave(id);
                        expected.push((self.keys[id], id));
                    }
                }
                self.operations += (expected.len() as u64).saturating_sub(1); // stale keys are not counted
                same("cancel_each", actual, expected)
            }
            Operation::ExpireBatch(now, limit) => {
                let actual = self.wheel.expire_batch(now, limit);
                self.half_way &= limit == 0;
                self.operations += (actual.len() as u64).saturating_sub(1);
                let mut expected = Vec::new();
                while expected.len() < limit
                    && let Some((id, deadline)) = self.map.expire(now)
                {
                    self.leave(id);
                    expected.push((self.keys[id], deadline, id));
                }
                let actual = actual.into_iter().map(|e| (e.key, e.deadline, e.value));
                same("expire_batch", actual.collect(), expected)
            }
            Operation::ExpireWithin(now, moves, calls) => {
                for call in 0..calls {
                    self.operations += u64::from(call > 0);
                    self.pull_within(now, moves)?;
                }
                Ok(())
            }
            Operation::Shrink => {
                self.wheel.shrink_to_fit();
                Ok(())
            }
            Operation::Reschedule(id, deadline) => {
                let expected = self.map.reschedule(id, deadline);
                let actual = self.wheel.reschedule(self.keys[id], deadline);
                same("reschedule", actual, expected)
            }
            Operation::Look(id) => self.look(id),
            Operation::Expire(now, limit) => {
                for pull in 0..limit {
                    self.operations += u64::from(pull > 0);
                    if !self.pull(now)? {
                        break;
                    }
                }
                Ok(())
            }
            Operation::ExpireAtNextWake => match self.wheel.next_wake() {
                // That this yields an entry or brings a later wake-up, `compare_state` sees.
                Some(wake) => self.pull(wake).map(|_| ()),
                None => Ok(()),
            },
            Operation::NextDeadline => {
                let actual = self.wheel.next_deadline();
                same("next_deadline", actual, self.map.first_due())
            }
            Operation::Drain => {
                let drained = self.wheel.drain();
                self.live.clear();
                let entries = drained.iter().map(|e| (e.value, e.deadline));
                same("drain", entries.collect::<Vec<_>>(), self.map.drain())
            }
            Operation::StartAnew(now) => {
                self.wheel = self.shape.build(now);
                self.map = SortedMap::starting_at(now);
                self.half_way = false;
                self.keys.clear();
                self.live.clear();
                self.positions.clear();
                Ok(())
            }
            Operation::Clear => {
                self.wheel.clear();
                if self.operations.is_multiple_of(2) {
                    self.wheel.shrink_to_fit();
                }
                self.map.drain();
                self.live.clear();
                Ok(())
            }
        }
    }

    /// The same with so many moves: if they do not suffice, nothing leaves, and the hand is
    /// somewhere on its way.
    fn pull_within(&mut self, now: Tick, moves: usize) -> Result<(), String> {
        let (mut rest, len) = (moves, self.wheel.len());
        let actual = self.wheel.expire_within(now, &mut rest);
        if rest > moves || moves - rest > 8 * len {
            return Err(format!("expire_within: {rest} of {moves} moves are left"));
        }
        if actual.is_some() || rest > 0 {
            self.half_way = false;
            return self.pulled(now, actual).map(|_| ());
        }
        let hand = self.wheel.now();
        let last = self.map.first_due().map_or(now, |due| due.min(now));
        if hand < self.map.now || hand > last.max(self.map.now) {
            return Err(format!("expire_within: the hand is at {hand:?}"));
        }
        self.map.now = hand;
        self.half_way = true;
        Ok(())
    }

    /// Expires one entry on both sides; whether there was one.
    fn pull(&mut self, now: Tick) -> Result<bool, String> {
        self.half_way = false;
        let actual = self.wheel.expire(now);
        self.pulled(now, actual)
    }

    /// The same, now that the wheel has been asked.
    fn pulled(&mut self, now: Tick, actual: Option<Expired<Id>>) -> Result<bool, String> {
        let expected = self.map.expire(now);
        if let Some((id, _)) = expected {
            self.leave(id);
        }
        if let Some(expired) = &actual {
            same("key of expired", expired.key, self.keys[expired.value])?;
        }
        let actual = actual.map(|expired| (expired.value, expired.deadline));
        same("expire", actual, expected)?;
        same("now", self.wheel.now(), self.map.now)?;
        Ok(expected.is_some())
    }

    fn look(&mut self, id: Id) -> Result<(), String> {
        let key = self.keys[id];
        let expected = self.map.places[id].map(|_| id);
        same("get", self.wheel.get(key).copied(), expected)?;
        same("get_mut", self.wheel.get_mut(key).copied(), expected)?;
        same("contains", self.wheel.contains(key), expected.is_some())?;
        same("deadline", self.wheel.deadline(key), self.map.deadline(id))
    }

    fn compare_state(&self) -> Result<(), String> {
        let now = self.map.now;
        same("now", self.wheel.now(), now)?;
        same("len", self.wheel.len(), self.map.order.len())?;
        same("is_empty", self.wheel.is_empty(), self.live.is_empty())?;
        let (Some(first_due), Some(last_due)) = (self.map.first_due(), self.map.last_due()) else {
            return same("next_wake", self.wheel.next_wake(), None);
        };
        let Some(wake) = self.wheel.next_wake() else {
            return Err("next_wake: None, but the wheel is not empty".into());
        };
        if self.half_way && wake == now {
            Ok(())
        } else if self.shape.wake_is_exact(now, first_due, last_due) {
            same("next_wake, promised to be exact,", wake, first_due)
        } else if wake > first_due {
            Err(format!("next_wake: {wake:?}, later than {first_due:?}"))
        } else if wake <= now && wake != first_due {
            Err(format!(
                "next_wake: {wake:?}, but nothing is due at {now:?}"
            ))
        } else {
            Ok(())
        }
    }

    fn leave(&mut self, id: Id) {
        let position = self.positions[id];
        self.live.swap_remove(position);
        if let Some(&moved) = self.live.get(position) {
            self.positions[moved] = position;
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "easier to call")]
fn same<T: PartialEq + fmt::Debug>(what: &str, actual: T, expected: T) -> Result<(), String> {
    if actual == expected {
        return Ok(());
    }
    Err(format!("{what}: {actual:?}, expected {expected:?}"))
}

// ---------------------------------------------------------------------------
// The verdict

/// Where wheel and map parted.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
    /// How many operations it took.
    pub(crate) operations: u64,
    pub(crate) what: String,
    last_operations: Vec<(u64, Operation)>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, shape, .. } = self;
        writeln!(f, "seed {seed}, {shape:?}, operation {}:", self.operations)?;
        writeln!(f, "  {}", self.what)?;
        for (number, operation) in &self.last_operations {
            writeln!(f, "    {number:>8}  {operation:?}")?;
        }
        write!(
            f,
            "  replay: cargo run --profile proof -p countwheel-core --example model -- \
             --seed {seed} --ops {} --slots {}",
            self.operations,
            shape.slots()
        )
    }
}

/// Runs one seed over about `operations` operations, and returns how many it were.
///
/// # Errors
/// The earliest [`Difference`] that a run with every check after every operation finds.
pub(crate) fn run(shape: Shape, seed: u64, operations: u64) -> Result<u64, Box<Difference>> {
    run_checked(shape, seed, operations, CHECK_INTERVAL).map_err(|difference| {
        let shortest = run_checked(shape, seed, difference.operations, 1);
        shortest.err().unwrap_or(difference)
    })
}

fn run_checked(
    shape: Shape,
    seed: u64,
    operations: u64,
    check_interval: u64,
) -> Result<u64, Box<Difference>> {
    let mut run = Run::new(shape, seed);
    // A wheel with a bug may well trip over its own assertions: that is a difference too.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut next_check = check_interval;
        while run.operations < operations {
            run.step()?;
            if run.operations >= next_check {
                run.wheel.check();
                next_check = run.operations + check_interval;
            }
        }
        run.wheel.check();
        Ok(())
    }));
    match outcome {
        Ok(Ok(())) => return Ok(run.operations),
        Ok(Err(what)) => Err(what),
        Err(panic) => Err(sentence_of(&*panic)),
    }
    .map_err(|what: String| {
        Box::new(Difference {
            seed,
            shape,
            operations: run.operations,
            what,
            last_operations: run.last_operations.iter().copied().collect(),
        })
    })
}

fn sentence_of(panic: &(dyn Any + Send)) -> String {
    let sentence = (panic.downcast_ref::<&str>().copied())
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", sentence.unwrap_or("without a sentence"))
}
