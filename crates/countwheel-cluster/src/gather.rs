//! One call for leases on many nodes: how many each node is asked for, what of its offers is taken, and what goes back.
//!
//! A node that is asked leases timers of its own shards, durably, and [offers](Offers) the leases. The node that asks
//! takes what it has room for, and hands a lease to its caller once the owner has confirmed it. The owner releases what
//! is not taken in time. A released lease may be granted again under the same token, so exactly one side may release it:
//! the owner until it has confirmed, and the node that asked from then on.
//!
//! ```
//! use std::time::Duration;
//!
//! use countwheel_cluster::{Gathering, NodeId, Offers};
//! use countwheel_time::Instant;
//!
//! let now = Instant::ZERO;
//! let mut gathering = Gathering::new(2, 0, 3, now, now + Duration::from_secs(1));
//! let asked = gathering.asks(now);
//! assert_eq!(asked, [(0, 2), (1, 1)]);
//!
//! let mut offers = Offers::new();
//! let offer = offers.offer(NodeId(7), 1, vec!["a", "b"], now);
//! let takes = gathering.offered(0, 2, 2, now);
//! assert_eq!(takes, 2);
//! let taken = offers.take(NodeId(7), offer, &[0], now);
//! assert!(taken.is_confirmed && taken.taken == ["a"] && taken.back == ["b"]);
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_time::Instant;

use crate::NodeId;
use crate::planted::planted;

/// How long an owner keeps an offer that nobody has taken.
pub const OFFER: Duration = Duration::from_secs(2);
/// While a call is so young, no more is asked for than there is room for: a busy node answers sooner.
const HEAD_START: Duration = Duration::from_millis(20);
/// A node that had nothing, or did not answer, is asked again after so long.
const ASKS_AGAIN: Duration = Duration::from_secs(1);
/// A call that has something waits so long for more, each time that something comes.
const LINGER: Duration = Duration::from_millis(8);

/// What the owner of shards has offered to other nodes, and they have not taken yet.
#[derive(Debug)]
pub struct Offers<T> {
    next: u64,
    offers: BTreeMap<u64, Offer<T>>,
}

#[derive(Debug)]
struct Offer<T> {
    to: NodeId,
    call: u64,
    until: Instant,
    /// `None` once it is taken: a repeated question has the same answer.
    items: Option<Vec<T>>,
}

/// What becomes of an offer that another node takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken<T> {
    /// Whether what it takes is its own now.
    pub is_confirmed: bool,
    /// What is its own now, if it was not before.
    pub taken: Vec<T>,
    /// What is to be released.
    pub back: Vec<T>,
}

impl<T> Taken<T> {
    fn nothing(is_confirmed: bool) -> Self {
        let (taken, back) = (Vec::new(), Vec::new());
        Self {
            is_confirmed,
            taken,
            back,
        }
    }
}

impl<T> Default for Offers<T> {
    fn default() -> Self {
        let (next, offers) = (1, BTreeMap::new());
        Self { next, offers }
    }
}

impl<T> Offers<T> {
    /// No offers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps what is offered to a call of another node. Returns the number of the offer.
    pub fn offer(&mut self, to: NodeId, call: u64, items: Vec<T>, now: Instant) -> u64 {
        let number = self.next;
        self.next += 1;
        let (until, items) = (now + OFFER, Some(items));
        let offer = Offer {
            to,
            call,
            until,
            items,
        };
        self.offers.insert(number, offer);
        number
    }

    /// The other node takes those of an offer, by their places in it.
    pub fn take(&mut self, from: NodeId, offer: u64, which: &[usize], now: Instant) -> Taken<T> {
        let known = self.offers.get_mut(&offer).filter(|it| it.to == from);
        let Some(known) = known else {
            return Taken::nothing(planted!(OffersTakenLate));
        };
        let Some(items) = known.items.take_if(|_| now < known.until) else {
            return Taken::nothing(known.items.is_none());
        };
        // A repeated question comes within this time.
        known.until = now + OFFER;
        let mut taken = Taken::nothing(true);
        for (at, item) in items.into_iter().enumerate() {
            if which.contains(&at) {
                taken.taken.push(item);
            } else if !planted!(OffersKeepRest) {
                taken.back.push(item);
            }
        }
        taken
    }

    /// The call is over. Returns what is to be released.
    pub fn end(&mut self, from: NodeId, call: u64) -> Vec<T> {
        self.remove(|offer| offer.to == from && offer.call == call && offer.items.is_some())
    }

    /// Returns what nobody has taken in time, which is to be released.
    pub fn sweep(&mut self, now: Instant) -> Vec<T> {
        let back = self.remove(|offer| offer.until <= now);
        if planted!(OffersForgotten) {
            return Vec::new();
        }
        back
    }

    /// The node stops. Returns all that is to be released.
    pub fn close(&mut self) -> Vec<T> {
        self.remove(|_| true)
    }

    fn remove(&mut self, is_over: impl Fn(&Offer<T>) -> bool) -> Vec<T> {
        let over = self.offers.iter().filter(|(_, offer)| is_over(offer));
        let over: Vec<_> = over.map(|(number, _)| *number).collect();
        let removed = over.iter().filter_map(|number| self.offers.remove(number));
        removed
            .flat_map(|offer| offer.items.unwrap_or_default())
            .collect()
    }
}

/// One call of a worker, which asks all nodes for leases.
#[derive(Debug)]
pub struct Gathering {
    max: u32,
    has: u32,
    reserved: u32,
    is_full: bool,
    first: usize,
    places: Vec<Place>,
    begun: Instant,
    ends: Instant,
    arrived: Option<Instant>,
}

/// What a call does with one node.
#[derive(Debug)]
struct Place {
    doing: Doing,
    /// It may have more: it gave all that it was asked for last, or has not been asked yet.
    is_rich: bool,
    not_before: Instant,
    /// When it was asked last.
    asked: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    Nothing,
    Asked(u32),
    Takes(u32),
    /// It does not understand the question.
    Apart,
}

impl Gathering {
    /// A call for `max` leases of so many nodes, which ends at the latest at `ends` and asks the node `first` before the
    /// others.
    #[must_use]
    pub fn new(nodes: usize, first: usize, max: u32, now: Instant, ends: Instant) -> Self {
        let places = (0..nodes).map(|_| Place {
            doing: Doing::Nothing,
            is_rich: true,
            not_before: now,
            asked: now,
        });
        Self {
            max,
            has: 0,
            reserved: 0,
            is_full: false,
            first: first % nodes.max(1),
            places: places.collect(),
            begun: now,
            ends,
            arrived: None,
        }
    }

    /// Which node is to be asked now for how many leases: an equal part of the room, of those that may have some.
    pub fn asks(&mut self, now: Instant) -> Vec<(usize, u32)> {
        let room = self.room();
        if room == 0 || now >= self.ends {
            return Vec::new();
        }
        let count = self.places.len();
        let order = (0..count).map(|at| (self.first + at) % count);
        let has_some = self.has + self.reserved > 0;
        let may_have = |place: &Place| !has_some || place.is_rich;
        let rich = self.places.iter();
        let rich = rich.filter(|it| it.doing != Doing::Apart && may_have(it));
        let rich = u32::try_from(rich.count()).unwrap_or(u32::MAX).max(1);
        let asked = self.places.iter().map(|place| match place.doing {
            Doing::Asked(many) => many,
            _ => 0,
        });
        let is_young = now < self.begun + HEAD_START;
        let mut budget = if is_young {
            room.saturating_sub(asked.sum())
        } else {
            u32::MAX
        };
        let mut asks = Vec::new();
        for at in order.collect::<Vec<_>>() {
            let place = &mut self.places[at];
            let is_idle = place.doing == Doing::Nothing && place.not_before <= now;
            if !is_idle || !may_have(place) || budget == 0 {
                continue;
            }
            let many = room.div_ceil(rich).min(budget);
            budget -= many;
            place.doing = Doing::Asked(many);
            place.asked = now;
            asks.push((at, many));
        }
        asks
    }

    /// A node offers so many leases, of which the first `fitting` fit. Returns how many of the first are to be taken, if
    /// the owner confirms it.
    pub fn offered(&mut self, node: usize, count: u32, fitting: u32, now: Instant) -> u32 {
        let room = self.room();
        let Some(place) = self.places.get_mut(node) else {
            return 0;
        };
        let Doing::Asked(asked) = place.doing else {
            return 0;
        };
        place.is_rich = count >= asked;
        if count == 0 {
            place.not_before = now.max(place.asked + ASKS_AGAIN);
        }
        self.is_full |= fitting < count;
        let takes = if planted!(GatherOverMax) {
            count
        } else {
            count.min(fitting).min(room)
        };
        place.doing = match takes {
            0 => Doing::Nothing,
            takes => Doing::Takes(takes),
        };
        self.reserved += takes;
        takes
    }

    /// The owner has answered whether what was to be taken is this call's, or has not answered. Returns whether the
    /// leases may be handed to the caller.
    pub fn confirmed(&mut self, node: usize, is_confirmed: Option<bool>, now: Instant) -> bool {
        let Some(place) = self.places.get_mut(node) else {
            return false;
        };
        let Doing::Takes(taken) = place.doing else {
            return false;
        };
        place.doing = Doing::Nothing;
        self.reserved -= taken;
        if is_confirmed == Some(true) || planted!(GatherUnconfirmed) {
            self.has += taken;
            self.arrived = Some(now);
            return true;
        }
        place.not_before = now + ASKS_AGAIN;
        false
    }

    /// A node has not answered.
    pub fn failed(&mut self, node: usize, now: Instant) {
        if let Some(place) = self.places.get_mut(node) {
            place.doing = Doing::Nothing;
            place.not_before = now + ASKS_AGAIN;
        }
    }

    /// A node does not understand the question: it is not asked again.
    pub fn apart(&mut self, node: usize) {
        if let Some(place) = self.places.get_mut(node) {
            place.doing = Doing::Apart;
        }
    }

    /// Nothing more fits.
    pub fn fill(&mut self) {
        self.is_full = true;
    }

    /// Whether the call answers its caller now.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        let is_complete = self.is_full || self.has >= self.max || now >= self.latest();
        is_complete && self.reserved == 0
    }

    /// When something is to be asked, or the call may be over, if nothing comes.
    #[must_use]
    pub fn wakes(&self, now: Instant) -> Instant {
        let idle = self.places.iter().filter(|it| it.doing == Doing::Nothing);
        let again = idle.map(|place| place.not_before.max(now));
        let young = Some(self.begun + HEAD_START).filter(|at| *at > now);
        let again = again.filter(|at| *at > now);
        again
            .chain(young)
            .chain([self.latest()])
            .min()
            .unwrap_or(self.ends)
    }

    /// The nodes that have a question of this call.
    pub fn asked(&self) -> impl Iterator<Item = usize> + '_ {
        let places = self.places.iter().enumerate();
        let asked = places.filter(|(_, it)| matches!(it.doing, Doing::Asked(_)));
        asked.map(|(at, _)| at)
    }

    fn latest(&self) -> Instant {
        let lingers = self.arrived.map(|arrived| arrived + LINGER);
        lingers.map_or(self.ends, |lingers| lingers.min(self.ends))
    }

    fn room(&self) -> u32 {
        match self.is_full {
            true => 0,
            false => self.max.saturating_sub(self.has + self.reserved),
        }
    }
}
