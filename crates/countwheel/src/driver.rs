//! The state machine under every timer: deadlines in, fired values out, never waiting.

use std::fmt;
use std::time::Duration;

use countwheel_core::{Expired, HashedWheel, HierarchicalWheel, SlotLoad, Tick, TimerKey};

use crate::{Instant, Resolution};

/// Both wheels have the same methods; this picks the one that is there.
macro_rules! either {
    ($this:expr, $wheel:ident => $call:expr) => {
        match $this {
            Wheel::Hierarchical($wheel) => $call,
            Wheel::Hashed($wheel) => $call,
        }
    };
}

/// How the pending entries are laid out. A choice of speed, not of behaviour: every layout
/// fires the same values at the same instants in the same order.
///
/// ```
/// use countwheel::{Driver, Instant, Layout, Resolution};
///
/// let classic = Layout::hashed(512)?;
/// let mut driver = Driver::new(Instant::ZERO, Resolution::MILLISECOND, classic);
/// driver.schedule(Instant::ZERO, Instant::from_nanos(5), "soon");
/// assert_eq!(driver.len(), 1);
///
/// let error = Layout::hashed(0).unwrap_err();
/// assert_eq!(error.to_string(), "a wheel has 1 to 1073741824 ticks, not 0");
/// # Ok::<(), countwheel::LayoutError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Layout {
    /// Levels of slots, each level as many times coarser as it has slots. Near and far
    /// deadlines cost the same, whatever the tick.
    #[default]
    Hierarchical,
    /// One ring of slots, gone round again and again: what Netty calls a hashed wheel. It
    /// suits delays of not much more than one round, since farther ones are visited again
    /// and again.
    Hashed {
        /// How many slots the ring has: a round lasts that many ticks.
        ticks_per_wheel: TicksPerWheel,
    },
}

impl Layout {
    /// A ring of `ticks_per_wheel` slots, rounded up to a power of two.
    ///
    /// # Errors
    /// If there are none, or more than 2^30.
    pub const fn hashed(ticks_per_wheel: usize) -> Result<Self, LayoutError> {
        match ticks_per_wheel {
            1..=TicksPerWheel::MAX => {
                let ticks_per_wheel = TicksPerWheel(ticks_per_wheel.next_power_of_two());
                Ok(Self::Hashed { ticks_per_wheel })
            }
            _ => Err(LayoutError { ticks_per_wheel }),
        }
    }
}

/// The number of slots of a ring: a power of two up to 2^30. See [`Layout::hashed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TicksPerWheel(usize);

impl TicksPerWheel {
    const MAX: usize = 1 << 30;

    /// The number.
    ///
    /// ```
    /// # use countwheel::Layout;
    /// let Ok(Layout::Hashed { ticks_per_wheel }) = Layout::hashed(500) else { panic!() };
    /// assert_eq!(ticks_per_wheel.get(), 512);
    /// ```
    #[must_use]
    pub const fn get(self) -> usize {
        self.0
    }
}

/// A ring without a slot, or with more than 2^30. See [`Layout::hashed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a wheel has 1 to {} ticks, not {ticks_per_wheel}", TicksPerWheel::MAX)]
pub struct LayoutError {
    ticks_per_wheel: usize,
}

/// A wheel with a [`Resolution`]: the whole logic of a timer, without the waiting.
///
/// Reads no clock: whoever owns it says what time it is, so the same code runs below a
/// thread, an event loop and a simulation. The times it is told may go backwards; it then
/// stands still until they have caught up.
///
/// Never early: a value fires once the time it was told has reached the deadline asked for,
/// in nanoseconds. Asked at every [`next_wake`](Self::next_wake), it is less than one tick
/// late.
///
/// ```
/// use countwheel::{Driver, Instant, Layout, Resolution};
/// use std::time::Duration;
///
/// let start = Instant::ZERO;
/// let mut driver = Driver::new(start, Resolution::MILLISECOND, Layout::default());
/// let deadline = start + Duration::from_micros(1_500);
/// driver.schedule(start, deadline, "tea");
///
/// assert!(driver.expire(start + Duration::from_millis(1)).is_none());
/// let fired = driver.expire(start + Duration::from_millis(2)).unwrap();
/// assert_eq!((fired.value, fired.deadline), ("tea", deadline));
/// assert_eq!(fired.lateness, Duration::from_micros(500));
/// assert!(driver.is_empty());
/// ```
pub struct Driver<T> {
    wheel: Wheel<Asked<T>>,
    resolution: Resolution,
    /// The latest time this was told.
    now: Instant,
}

/// A value whose deadline has come. See [`Driver::expire`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fired<T> {
    /// What [`Driver::schedule`] returned; it finds nothing from now on.
    pub key: TimerKey,
    /// The deadline that was asked for, not rounded.
    pub deadline: Instant,
    /// Now minus the deadline: the rounding up to a tick, and however late it was asked.
    pub lateness: Duration,
    /// What was scheduled.
    pub value: T,
}

/// A value that was still pending. See [`Driver::drain`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfired<T> {
    /// What [`Driver::schedule`] returned; it finds nothing from now on.
    pub key: TimerKey,
    /// The deadline that was asked for, not rounded.
    pub deadline: Instant,
    /// What was scheduled.
    pub value: T,
}

impl<T> Driver<T> {
    /// A driver with nothing pending, at the time `now`.
    #[must_use]
    pub fn new(now: Instant, resolution: Resolution, layout: Layout) -> Self {
        Self {
            wheel: Wheel::new(layout, resolution.now(now)),
            resolution,
            now,
        }
    }

    /// The length of a tick.
    #[must_use]
    pub const fn resolution(&self) -> Resolution {
        self.resolution
    }

    /// How many values are pending.
    #[must_use]
    pub fn len(&self) -> usize {
        self.wheel.len()
    }

    /// Whether nothing is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fires `value` once `deadline` is reached: at once if it has passed, and at [`Instant::MAX`]
    /// only when time ends there.
    ///
    /// Values of one tick fire in the order in which they were scheduled. Never fails.
    #[inline]
    pub fn schedule(&mut self, now: Instant, deadline: Instant, value: T) -> TimerKey {
        self.advance(now);
        let tick = self.tick_of(deadline);
        self.wheel.insert(tick, Asked { deadline, value })
    }

    /// Moves what is pending under `key` to another deadline, and says whether there was
    /// anything. The key stays valid; a move counts as a new scheduling in the order.
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # use std::time::Duration;
    /// # let start = Instant::ZERO;
    /// # let mut driver = Driver::new(start, Resolution::MILLISECOND, Layout::default());
    /// let key = driver.schedule(start, start + Duration::from_secs(1), "lease");
    /// let extended = start + Duration::from_secs(2);
    /// assert!(driver.reschedule(start, key, extended));
    /// assert_eq!(driver.expire(start + Duration::from_secs(1)), None);
    /// assert_eq!(driver.expire(extended).unwrap().deadline, extended);
    /// assert!(!driver.reschedule(extended, key, Instant::MAX), "it has fired");
    /// ```
    pub fn reschedule(&mut self, now: Instant, key: TimerKey, deadline: Instant) -> bool {
        self.advance(now);
        let tick = self.tick_of(deadline);
        if let Some(asked) = self.wheel.get_mut(key) {
            asked.deadline = deadline;
        }
        self.wheel.reschedule(key, tick)
    }

    /// Takes back what is pending under `key`; `None` if it has fired or been cancelled.
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # let mut driver = Driver::new(Instant::ZERO, Resolution::MILLISECOND, Layout::default());
    /// let key = driver.schedule(Instant::ZERO, Instant::from_nanos(1), "never mind");
    /// assert_eq!(driver.cancel(key), Some("never mind"));
    /// assert_eq!(driver.cancel(key), None);
    /// ```
    #[inline]
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        self.wheel.cancel(key).map(|asked| asked.value)
    }

    /// Takes out the next value that is due at `now`: call it until it returns `None`.
    ///
    /// After a stall, however long, every value comes out once, in order of deadline (in
    /// ticks) and then of scheduling.
    pub fn expire(&mut self, now: Instant) -> Option<Fired<T>> {
        self.expire_until(now, Instant::MAX)
    }

    /// Like [`expire`](Self::expire), but leaves alone what is due after `until`: for those
    /// who merge several drivers in the order of their deadlines.
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # use std::time::Duration;
    /// # let start = Instant::ZERO;
    /// # let mut driver = Driver::new(start, Resolution::MILLISECOND, Layout::default());
    /// let at = |millis| start + Duration::from_millis(millis);
    /// driver.schedule(start, at(1), "first");
    /// driver.schedule(start, at(2), "second");
    /// assert_eq!(driver.expire_until(at(9), at(1)).unwrap().lateness.as_millis(), 8);
    /// assert_eq!(driver.expire_until(at(9), at(1)), None);
    /// assert_eq!(driver.expire(at(9)).unwrap().value, "second");
    /// ```
    pub fn expire_until(&mut self, now: Instant, until: Instant) -> Option<Fired<T>> {
        let mut moves = usize::MAX;
        self.expire_within(now, until, &mut moves)
    }

    /// Like [`expire_until`](Self::expire_until), but does at most so many `moves` of what is
    /// pending, and takes those it has done off that number: for those who hold a lock
    /// meanwhile. A million deadlines of one tick come nearer by a move each, three times or
    /// so in all.
    ///
    /// After `None`, nothing more is due by `until` if there are `moves` left. With none left
    /// there may be: ask again, with as many as suit. Everything may be called in between, and
    /// [`next_wake`](Self::next_wake) says "now". With a hashed layout, the number is not
    /// looked at.
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # use std::time::Duration;
    /// # let start = Instant::ZERO;
    /// # let mut driver = Driver::new(start, Resolution::MILLISECOND, Layout::default());
    /// let hour = start + Duration::from_secs(3600);
    /// for number in 0..10_000 {
    ///     driver.schedule(start, hour, number);
    /// }
    /// let mut asked = 0;
    /// let first = loop {
    ///     let mut moves = 1_000;
    ///     asked += 1;
    ///     match driver.expire_within(hour, hour, &mut moves) {
    ///         Some(fired) => break fired,
    ///         None => assert_eq!((moves, driver.len()), (0, 10_000)),
    ///     }
    /// };
    /// assert_eq!(first.value, 0);
    /// assert_eq!(asked, 20, "each moves twice before it is due");
    /// ```
    pub fn expire_within(
        &mut self,
        now: Instant,
        until: Instant,
        moves: &mut usize,
    ) -> Option<Fired<T>> {
        self.now = self.now.max(now);
        let tick = self.resolution.now(self.now.min(until));
        if tick < self.wheel.now() {
            // The hand is past `until`, and nothing is due before the hand.
            return None;
        }
        let expired = self.wheel.expire_within(tick, moves)?;
        let Asked { deadline, value } = expired.value;
        debug_assert!(deadline <= self.now, "nothing fires early");
        Some(Fired {
            key: expired.key,
            deadline,
            lateness: self.now.saturating_since(deadline),
            value,
        })
    }

    /// When to call [`expire`](Self::expire) next; `None` if nothing is pending.
    ///
    /// Never later than the earliest pending value is due, but it may be earlier: a far
    /// deadline is approached in a few steps. The cost does not grow with what is pending.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        self.wheel
            .next_wake()
            .map(|tick| self.resolution.instant(tick))
    }

    /// When the earliest pending value is due, exactly; `None` if nothing is pending.
    ///
    /// Dearer than [`next_wake`](Self::next_wake): at worst it looks at everything pending.
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # use std::time::Duration;
    /// # let start = Instant::ZERO;
    /// # let mut driver = Driver::new(start, Resolution::MILLISECOND, Layout::default());
    /// let hour = start + Duration::from_secs(3600);
    /// driver.schedule(start, hour, "on the hour");
    /// assert_eq!(driver.next_due(), Some(hour));
    /// assert!(driver.next_wake() <= Some(hour));
    /// ```
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.wheel
            .next_deadline()
            .map(|tick| self.resolution.instant(tick))
    }

    /// When a value that is scheduled now under `deadline` would be due: its deadline, rounded
    /// up to a tick.
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # let driver = Driver::<()>::new(Instant::ZERO, Resolution::MILLISECOND, Layout::default());
    /// assert_eq!(driver.due(Instant::from_nanos(1)).as_nanos(), 1_000_000);
    /// ```
    #[inline]
    #[must_use]
    pub fn due(&self, deadline: Instant) -> Instant {
        self.resolution.instant(self.tick_of(deadline))
    }

    /// What is pending under `key`; `None` if it has fired or been cancelled.
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # let mut driver = Driver::new(Instant::ZERO, Resolution::MILLISECOND, Layout::default());
    /// let key = driver.schedule(Instant::ZERO, Instant::from_nanos(1), "tea");
    /// *driver.get_mut(key).unwrap() = "coffee";
    /// assert_eq!(driver.cancel(key), Some("coffee"));
    /// ```
    pub fn get_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        self.wheel.get_mut(key).map(|asked| &mut asked.value)
    }

    /// What is pending under `key`, to look at; `None` if it has fired or been cancelled. O(1).
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # let mut driver = Driver::new(Instant::ZERO, Resolution::MILLISECOND, Layout::default());
    /// let key = driver.schedule(Instant::ZERO, Instant::from_nanos(1), "tea");
    /// assert_eq!(driver.get(key), Some(&"tea"));
    /// driver.cancel(key);
    /// assert_eq!(driver.get(key), None);
    /// ```
    #[must_use]
    pub fn get(&self, key: TimerKey) -> Option<&T> {
        self.wheel.get(key).map(|asked| &asked.value)
    }

    /// The deadline of what is pending under `key`, as it was asked for, not rounded; `None` if
    /// it has fired or been cancelled. O(1).
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # let mut driver = Driver::new(Instant::ZERO, Resolution::MILLISECOND, Layout::default());
    /// let key = driver.schedule(Instant::ZERO, Instant::from_nanos(1), "tea");
    /// assert_eq!(driver.deadline(key), Some(Instant::from_nanos(1)));
    /// driver.reschedule(Instant::ZERO, key, Instant::from_nanos(7));
    /// assert_eq!(driver.deadline(key), Some(Instant::from_nanos(7)));
    /// driver.cancel(key);
    /// assert_eq!(driver.deadline(key), None);
    /// ```
    #[must_use]
    pub fn deadline(&self, key: TimerKey) -> Option<Instant> {
        self.wheel.get(key).map(|asked| asked.deadline)
    }

    /// Calls `look` with all that is pending: the key, the deadline as it was asked for, the value.
    /// In no particular order. O(what is pending, or was at a peak).
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # let mut driver = Driver::new(Instant::ZERO, Resolution::MILLISECOND, Layout::default());
    /// let at = Instant::from_nanos;
    /// let tea = driver.schedule(Instant::ZERO, at(1), "tea");
    /// let coffee = driver.schedule(Instant::ZERO, at(2), "coffee");
    /// let mut list = Vec::new();
    /// driver.for_each(|key, deadline, name| list.push((deadline, key, *name)));
    /// list.sort_by_key(|&(deadline, ..)| deadline);
    /// assert_eq!(list, [(at(1), tea, "tea"), (at(2), coffee, "coffee")]);
    /// ```
    pub fn for_each(&self, mut look: impl FnMut(TimerKey, Instant, &T)) {
        either!(&self.wheel, wheel => {
            for (key, _, asked) in wheel.iter() {
                look(key, asked.deadline, &asked.value);
            }
        });
    }

    /// Gives memory back that a peak has left, as far as that is possible.
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # let mut driver = Driver::<u64>::new(Instant::ZERO, Resolution::MILLISECOND, Layout::default());
    /// for value in 0..10_000 {
    ///     driver.schedule(Instant::ZERO, Instant::MAX, value);
    /// }
    /// let peak = driver.memory_bytes();
    /// driver.drain();
    /// driver.shrink_to_fit();
    /// assert!(driver.memory_bytes() < peak / 4);
    /// ```
    pub fn shrink_to_fit(&mut self) {
        either!(&mut self.wheel, wheel => wheel.shrink_to_fit());
    }

    /// Like [`shrink_to_fit`](Self::shrink_to_fit), but gives back so many pieces of each kind at
    /// most; whether there may be more. For those who hold a lock meanwhile.
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # let mut driver = Driver::<u64>::new(Instant::ZERO, Resolution::MILLISECOND, Layout::default());
    /// for value in 0..10_000 {
    ///     driver.schedule(Instant::ZERO, Instant::MAX, value);
    /// }
    /// let peak = driver.memory_bytes();
    /// driver.drain();
    /// while driver.shrink_by(1) {}
    /// assert!(driver.memory_bytes() < peak / 4);
    /// ```
    pub fn shrink_by(&mut self, pieces: usize) -> bool {
        either!(&mut self.wheel, wheel => wheel.shrink_by(pieces))
    }

    /// How much memory the wheel takes on the heap, in bytes, what its values own not included.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        either!(&self.wheel, wheel => wheel.memory_bytes())
    }

    /// How the entries are spread over the wheel's slots: for people who wonder whether a
    /// [`Layout`] suits their delays. O(slots and entries).
    #[must_use]
    pub fn slot_load(&self) -> SlotLoad {
        either!(&self.wheel, wheel => wheel.slot_load())
    }

    /// Takes out everything that is pending, in the order in which it would have fired.
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # let mut driver = Driver::new(Instant::ZERO, Resolution::MILLISECOND, Layout::default());
    /// driver.schedule(Instant::ZERO, Instant::MAX, "never");
    /// let unfired = driver.drain();
    /// assert_eq!((unfired[0].value, unfired[0].deadline), ("never", Instant::MAX));
    /// assert!(driver.is_empty());
    /// ```
    pub fn drain(&mut self) -> Vec<Unfired<T>> {
        self.wheel.drain().into_iter().map(unfired).collect()
    }

    /// Takes out up to `limit` of what is pending, in no particular order: for those who give all
    /// of it up, a piece at a time. Nothing is copied but what comes out.
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # let mut driver = Driver::new(Instant::ZERO, Resolution::MILLISECOND, Layout::default());
    /// for value in 0..10 {
    ///     driver.schedule(Instant::ZERO, Instant::MAX, value);
    /// }
    /// assert_eq!(driver.take_any(7).len(), 7);
    /// assert_eq!(driver.take_any(7).len(), 3);
    /// assert!(driver.is_empty());
    /// ```
    #[must_use = "what is taken is dropped otherwise"]
    pub fn take_any(&mut self, limit: usize) -> Vec<Unfired<T>> {
        let mut batch = Vec::with_capacity(limit.min(self.len()));
        either!(&mut self.wheel, wheel => wheel.take_any(limit, &mut batch));
        batch.into_iter().map(unfired).collect()
    }

    /// How many values there is memory for: as many as are pending, or more, after a peak. O(1).
    ///
    /// ```
    /// # use countwheel::{Driver, Instant, Layout, Resolution};
    /// # let mut driver = Driver::new(Instant::ZERO, Resolution::MILLISECOND, Layout::default());
    /// driver.schedule(Instant::ZERO, Instant::MAX, "never");
    /// assert!(driver.room() >= driver.len());
    /// ```
    #[must_use]
    pub fn room(&self) -> usize {
        either!(&self.wheel, wheel => wheel.room())
    }

    #[inline]
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if self.wheel.len() == 0 {
            // Nothing can come out, so this only winds the wheel on: what is filed next
            // starts at the level that its delay calls for, not at that of the idle time.
            let nothing = self.wheel.expire(self.resolution.now(self.now));
            debug_assert!(nothing.is_none(), "an empty wheel expires nothing");
        }
    }

    #[inline]
    fn tick_of(&self, deadline: Instant) -> Tick {
        let tick = self.resolution.deadline(deadline);
        if deadline <= self.now {
            // It has passed: do not wait for the end of the tick that it passed in.
            tick.min(self.resolution.now(self.now))
        } else {
            tick
        }
    }
}

impl<T> fmt::Debug for Driver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("pending", &self.len())
            .field("resolution", &self.resolution)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// What is filed: the tick on the wheel is rounded, this is not.
struct Asked<T> {
    deadline: Instant,
    value: T,
}

fn unfired<T>(Expired { key, value, .. }: Expired<Asked<T>>) -> Unfired<T> {
    Unfired {
        key,
        deadline: value.deadline,
        value: value.value,
    }
}

enum Wheel<T> {
    Hierarchical(HierarchicalWheel<T>),
    Hashed(HashedWheel<T>),
}

impl<T> Wheel<T> {
    fn new(layout: Layout, now: Tick) -> Self {
        match layout {
            Layout::Hierarchical => Self::Hierarchical(HierarchicalWheel::starting_at(now)),
            Layout::Hashed { ticks_per_wheel } => {
                let wheel = HashedWheel::starting_at(now, ticks_per_wheel.get());
                Self::Hashed(wheel.expect("a ring may have 1 to 2^30 slots"))
            }
        }
    }

    fn len(&self) -> usize {
        either!(self, wheel => wheel.len())
    }

    fn insert(&mut self, deadline: Tick, value: T) -> TimerKey {
        either!(self, wheel => wheel.insert(deadline, value))
    }

    fn get(&self, key: TimerKey) -> Option<&T> {
        either!(self, wheel => wheel.get(key))
    }

    fn get_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        either!(self, wheel => wheel.get_mut(key))
    }

    fn reschedule(&mut self, key: TimerKey, deadline: Tick) -> bool {
        either!(self, wheel => wheel.reschedule(key, deadline))
    }

    fn cancel(&mut self, key: TimerKey) -> Option<T> {
        either!(self, wheel => wheel.cancel(key))
    }

    fn expire(&mut self, now: Tick) -> Option<Expired<T>> {
        either!(self, wheel => wheel.expire(now))
    }

    fn expire_within(&mut self, now: Tick, moves: &mut usize) -> Option<Expired<T>> {
        match self {
            Self::Hierarchical(wheel) => wheel.expire_within(now, moves),
            Self::Hashed(wheel) => wheel.expire(now),
        }
    }

    fn now(&self) -> Tick {
        either!(self, wheel => wheel.now())
    }

    fn next_wake(&self) -> Option<Tick> {
        either!(self, wheel => wheel.next_wake())
    }

    fn next_deadline(&self) -> Option<Tick> {
        either!(self, wheel => wheel.next_deadline())
    }

    fn drain(&mut self) -> Vec<Expired<T>> {
        either!(self, wheel => wheel.drain())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Layout; 2] = [
        Layout::Hierarchical,
        Layout::Hashed {
            ticks_per_wheel: TicksPerWheel(16),
        },
    ];

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn driver<T>(tick_nanos: u64, layout: Layout) -> Driver<T> {
        let resolution = Resolution::new(Duration::from_nanos(tick_nanos)).unwrap();
        Driver::new(Instant::ZERO, resolution, layout)
    }

    fn values<T>(driver: &mut Driver<T>, now: Instant) -> Vec<T> {
        std::iter::from_fn(|| driver.expire(now).map(|fired| fired.value)).collect()
    }

    #[test]
    fn values_of_one_tick_fire_as_scheduled_and_ticks_in_order() {
        for layout in ALL {
            let mut driver = driver(10, layout);
            for (deadline, name) in [(25, 'c'), (19, 'a'), (11, 'b'), (30, 'd')] {
                driver.schedule(at(0), at(deadline), name);
            }
            assert_eq!(values(&mut driver, at(19)), []);
            assert_eq!(values(&mut driver, at(20)), ['a', 'b']);
            assert_eq!(values(&mut driver, at(1_000)), ['c', 'd']);
        }
    }

    #[test]
    fn a_passed_deadline_does_not_wait_for_the_next_tick() {
        for layout in ALL {
            let mut driver = driver(10, layout);
            driver.schedule(at(15), at(15), "now");
            driver.schedule(at(15), at(3), "before");
            driver.schedule(at(15), at(16), "next");
            assert_eq!(driver.next_wake(), Some(at(10)));
            assert_eq!(values(&mut driver, at(15)).len(), 2);
            assert_eq!(driver.next_due(), Some(at(20)));
        }
    }

    #[test]
    fn a_deadline_that_passes_during_a_stall_keeps_its_place() {
        for layout in ALL {
            let mut driver = driver(1, layout);
            driver.schedule(at(0), at(10), 'a');
            driver.schedule(at(0), at(30), 'c');
            assert_eq!(driver.expire(at(99)).unwrap().value, 'a');
            driver.schedule(at(99), at(20), 'b');
            driver.schedule(at(99), at(99), 'd');
            assert_eq!(values(&mut driver, at(99)), ['b', 'c', 'd']);
        }
    }

    #[test]
    fn a_time_that_goes_backwards_is_ignored() {
        for layout in ALL {
            let mut driver = driver(10, layout);
            assert_eq!(driver.expire(at(50)), None);
            driver.schedule(at(20), at(40), "passed");
            let fired = driver.expire(at(0)).unwrap();
            assert_eq!(
                (fired.value, fired.lateness),
                ("passed", Duration::from_nanos(10))
            );
        }
    }

    #[test]
    fn a_moved_value_fires_at_its_new_deadline_behind_those_already_there() {
        for layout in ALL {
            let mut driver = driver(10, layout);
            let moved = driver.schedule(at(0), at(20), "moved");
            driver.schedule(at(0), at(95), "there");
            assert!(driver.reschedule(at(5), moved, at(91)));
            assert_eq!(values(&mut driver, at(90)), [""; 0]);
            assert_eq!(driver.expire(at(100)).unwrap().value, "there");
            let fired = driver.expire(at(100)).unwrap();
            assert_eq!((fired.key, fired.deadline), (moved, at(91)));
            assert!(!driver.reschedule(at(100), moved, at(200)));
            assert_eq!(driver.cancel(moved), None);
        }
    }

    #[test]
    fn a_list_names_what_is_pending_wherever_it_stands() {
        for layout in ALL {
            let mut driver = driver(10, layout);
            let mut expected = Vec::new();
            for number in 0_u64..2_000 {
                let deadline = at(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (number % 60));
                let key = driver.schedule(at(0), deadline, number);
                match number % 3 {
                    0 => assert_eq!(driver.cancel(key), Some(number)),
                    1 => {
                        assert!(driver.reschedule(at(0), key, at(number + 5)));
                        expected.push((key, at(number + 5), number));
                    }
                    _ => expected.push((key, deadline, number)),
                }
            }
            for _ in 0..200 {
                let fired = driver.expire(at(1_000)).unwrap();
                expected.retain(|&(key, ..)| key != fired.key);
            }
            let mut listed = Vec::new();
            driver.for_each(|key, deadline, &number| listed.push((key, deadline, number)));
            listed.sort_by_key(|&(.., number)| number);
            assert_eq!(listed, expected);
            for (key, deadline, number) in listed {
                assert_eq!(driver.deadline(key), Some(deadline));
                assert_eq!(driver.get(key), Some(&number));
            }
        }
    }

    #[test]
    fn the_end_of_time_comes_only_when_it_is_reached() {
        for layout in ALL {
            for tick_nanos in [1, 7, 1_000_000, u64::MAX - 1, u64::MAX] {
                let mut driver = driver(tick_nanos, layout);
                driver.schedule(at(0), at(0) + Duration::MAX, "the end");
                assert_eq!(driver.expire(at(u64::MAX - 1)), None);
                assert_eq!(driver.next_due(), Some(Instant::MAX));
                assert_eq!(driver.expire(Instant::MAX).unwrap().value, "the end");
            }
        }
    }

    #[test]
    fn an_idle_driver_is_as_good_as_new() {
        let now = at(1 << 40);
        for layout in ALL {
            let mut driver = driver(1, layout);
            driver.schedule(now, now + Duration::from_nanos(63), ());
            assert_eq!(
                driver.next_wake(),
                driver.next_due(),
                "exact within a block"
            );
        }
    }
}
