//! The peers: our wheels and those of other libraries, behind one trait.

mod btree;
mod countwheel;
mod delay_queue;
mod heap;
mod hhwt;
mod hhwt_raw;
mod nexus;
mod slab_wheel;
mod tokio_sleep;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub(crate) use btree::SortedMap;

use crate::cell::Entrant;
use crate::dispatch::tasks;

/// A timer structure under virtual time, one tick a millisecond where it wants a unit.
///
/// Everything is monomorphised, so that no call in a timed loop is indirect.
pub(crate) trait Competitor: Sized {
    /// What a timer is cancelled by.
    type Handle;

    /// Whether a timer can be cancelled at all.
    const CANCELS: bool = true;

    /// Whether the ids of fired timers are only to be had by asking each handle.
    const SILENT: bool = false;

    /// Delays from here on are beyond it.
    const DELAY_LIMIT: u64 = u64::MAX;

    /// An empty one at tick 0, without hints about its later size. Who has a choice of
    /// shapes takes one that reaches as far as the longest delay.
    fn new(longest_delay: u64) -> Self;

    /// A timer that fires `delay` ticks from now; at least one.
    fn schedule(&mut self, delay: u64, id: u64) -> Self::Handle;

    /// Whether the timer was still to come. If so it never fires.
    fn cancel(&mut self, handle: Self::Handle) -> bool;

    /// Cancels many in a row, in whatever way is the fastest, and says how many were still to come.
    fn cancel_all(&mut self, handles: impl Iterator<Item = Self::Handle>) -> u64 {
        handles.map(|handle| u64::from(self.cancel(handle))).sum()
    }

    /// Moves time to `now` and fires what is due by then.
    fn advance_to(&mut self, now: u64, fired: &mut impl Fired);

    /// Gives the handle back: nobody is going to cancel this timer. It fires nevertheless.
    fn release(&mut self, _handle: Self::Handle) {}

    /// Whether this timer has fired. Asked of silent competitors only.
    fn has_fired(_handle: &Self::Handle) -> bool {
        false
    }

    /// The released handles of a silent competitor.
    fn released(&self) -> &[Self::Handle] {
        &[]
    }

    /// A second copy of the handle, if it can be had: then a stale one must do no harm.
    fn copy(_handle: &Self::Handle) -> Option<Self::Handle> {
        None
    }
}

/// Where the ids of fired timers go.
pub(crate) trait Fired {
    /// The timer `id` fires now.
    fn fire(&mut self, id: u64);
}

/// Counts and sums: the cheapest use of an id that a compiler cannot leave out.
#[derive(Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) count: u64,
    pub(crate) sum: u64,
}

impl Fired for Tally {
    #[inline]
    fn fire(&mut self, id: u64) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(id);
    }
}

impl Fired for Vec<u64> {
    fn fire(&mut self, id: u64) {
        self.push(id);
    }
}

tasks!(Competitor);

/// The competitors by name, in the order of the tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Name {
    Countwheel,
    CountwheelBatches,
    CountwheelHashed,
    NexusTimer,
    SlabWheel,
    DelayQueue,
    TokioSleep,
    Hhwt,
    HhwtRaw,
    BinaryHeap,
    BtreeMap,
}

impl Entrant for Name {
    fn label(self) -> &'static str {
        match self {
            Self::Countwheel => "countwheel",
            Self::CountwheelBatches => "countwheel, batches",
            Self::CountwheelHashed => "countwheel hashed, 4,096 slots",
            Self::NexusTimer => "nexus-timer 1.5",
            Self::SlabWheel => "slab-wheel 0.0.1",
            Self::DelayQueue => "tokio-util DelayQueue",
            Self::TokioSleep => "tokio Sleep",
            Self::Hhwt => "hierarchical_hash_wheel_timer 1.4",
            Self::HhwtRaw => "hierarchical_hash_wheel_timer 1.4, raw",
            Self::BinaryHeap => "BinaryHeap, lazy cancel",
            Self::BtreeMap => "BTreeMap",
        }
    }

    fn is_ours(self) -> bool {
        matches!(
            self,
            Self::Countwheel | Self::CountwheelBatches | Self::CountwheelHashed
        )
    }
}

impl Name {
    pub(crate) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Whether it can do what ours can: a wheel that cannot cancel is shown, but is not
    /// what we compare with.
    pub(crate) fn is_rival(self) -> bool {
        !self.is_ours() && self != Self::HhwtRaw
    }

    /// The size of what its user has to keep for each timer.
    pub(crate) fn handle_bytes(self) -> usize {
        self.dispatch(HandleBytes)
    }

    /// What a reader of its rows has to know.
    pub(crate) fn remark(self) -> &'static str {
        match self {
            Self::Countwheel => "entries taken out one at a time",
            Self::CountwheelBatches => {
                "the same wheel, expired in batches and cancelled in groups of 64"
            }
            Self::CountwheelHashed => "one ring; later rounds wait in their slots",
            Self::NexusTimer => {
                "`poll_and_rebalance`; a handle must be given back after its timer has fired \
                 (not timed in W3); its usual seven levels where they reach far enough, else \
                 eight wider ones"
            }
            Self::SlabWheel => "its policy `Millis` with a fifth level, to reach 2^32 ticks",
            Self::DelayQueue => {
                "paused clock; its keys carry no generation, so we keep one bit a timer to know \
                 which have fired"
            }
            Self::TokioSleep => {
                "paused clock; a boxed `Sleep` polled once with a waker that does nothing; who \
                 wants to know which timer fired pays more"
            }
            Self::Hhwt => {
                "a cancelled timer leaves a weak reference behind until its tick; empty ticks are \
                 skipped as its own simulation does; delays within 2^24 ticks of 2^32 can fire \
                 early, and are left out of its check (W3 does not meet the case)"
            }
            Self::HhwtRaw => "cannot cancel; long delays as above",
            Self::BinaryHeap => {
                "a cancelled timer stays in the heap until its deadline; a generation array \
                 tells that it is dead"
            }
            Self::BtreeMap => "keyed by deadline and sequence number",
        }
    }

    pub(crate) fn dispatch<T: Task>(self, task: T) -> T::Output {
        match self {
            Self::Countwheel => task.run::<countwheel::Hierarchical>(),
            Self::CountwheelBatches => task.run::<countwheel::InBatches>(),
            Self::CountwheelHashed => task.run::<countwheel::Hashed>(),
            Self::NexusTimer => task.run::<nexus::Nexus>(),
            Self::SlabWheel => task.run::<slab_wheel::Wheel>(),
            Self::DelayQueue => task.run::<delay_queue::Queue>(),
            Self::TokioSleep => task.run::<tokio_sleep::Sleeps>(),
            Self::Hhwt => task.run::<hhwt::Hhwt>(),
            Self::HhwtRaw => task.run::<hhwt_raw::Raw>(),
            Self::BinaryHeap => task.run::<heap::LazyHeap>(),
            Self::BtreeMap => task.run::<SortedMap>(),
        }
    }
}
