//! The places that callers' connections have, by address and in all.
//!
//! Nobody who comes waits for a place. A connection is either the service's turn, while a request
//! on it is answered, or the caller's: no whole head has come, a body does not go on, an answer is
//! not read. When all places are taken, or all of an address, the connection goes on which it has
//! been the caller's turn for longest. Where there is none, the connection that comes gets one of a
//! few places in **reserve**, on which only health and metrics are answered; everything else is
//! refused there. Since nothing is changed there, whoever comes when the reserve is taken too gets
//! the place of the oldest in it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::callers::Caller;

/// Of so many places one is in reserve.
const PLACES_PER_RESERVE: usize = 8;
/// And at most so many.
const RESERVE_MAX: usize = 16;

/// From so many connections on it is worth while to look for what they leave behind.
const FLOOD_MIN: usize = 256;

/// What the operator allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// Connections in all.
    pub(crate) connections: usize,
    /// Connections of one address.
    pub(crate) per_address: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            per_address: 1_024,
        }
    }
}

/// The places of one listener.
#[derive(Debug)]
pub(crate) struct Places {
    state: Mutex<State>,
    /// A connection that was told to go has gone.
    gone: Notify,
}

#[derive(Debug)]
struct State {
    limits: Limits,
    /// How many there are, without the reserve.
    most: usize,
    reserve: usize,
    /// Were told to go, and are about to.
    leaving: usize,
    connections: HashMap<Id, Connection>,
    /// The most that there were since they ebbed.
    peak: usize,
    reserved: Group,
    ordinary: Group,
    callers: HashMap<Caller, Group>,
    /// Grows with each look at the state, so that the lowest is the oldest.
    next: u64,
}

type Id = u64;
type Moment = u64;

#[derive(Debug)]
struct Connection {
    /// Under whose name it counts.
    caller: Option<Caller>,
    /// Whether it is a proxy's, so that each request on it may be of another caller.
    is_shared: bool,
    is_reserved: bool,
    /// Since when it is the caller's turn.
    waits: Option<Moment>,
    told: Arc<Notify>,
}

/// Connections that share a limit.
#[derive(Default, Debug)]
struct Group {
    connections: usize,
    waiting: BTreeMap<Moment, Id>,
    /// Only of the reserve: in the order in which they came.
    all: BTreeSet<Id>,
}

impl Group {
    fn longest_waiting(&self) -> Option<Id> {
        self.waiting.values().next().copied()
    }

    fn first(&self) -> Option<Id> {
        self.all.first().copied()
    }
}

/// A place that a connection has, until this goes.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    id: Id,
    told: Arc<Notify>,
    is_reserved: bool,
}

impl Places {
    /// So many, the reserve included, as far as the limits allow.
    pub(crate) fn new(total: usize, limits: Limits) -> Arc<Self> {
        let state = State {
            limits,
            most: 0,
            reserve: 0,
            leaving: 0,
            connections: HashMap::new(),
            peak: 0,
            reserved: Group::default(),
            ordinary: Group::default(),
            callers: HashMap::new(),
            next: 0,
        };
        let places = Arc::new(Self {
            state: Mutex::new(state),
            gone: Notify::new(),
        });
        places.set_total(total);
        places
    }

    /// Whether most of many connections have gone since this was last so: what they used is free.
    pub(crate) fn have_ebbed(&self) -> bool {
        let mut state = lock(&self.state);
        let left = state.connections.len();
        let have_ebbed = state.peak >= FLOOD_MIN && left <= state.peak / 4;
        if have_ebbed {
            state.peak = left;
        }
        have_ebbed
    }

    /// From now on there are so many. Of those that are too many go who can.
    pub(crate) fn set_total(&self, total: usize) {
        let mut state = lock(&self.state);
        let total = total.min(state.limits.connections);
        state.reserve = (total / PLACES_PER_RESERVE).clamp(1, RESERVE_MAX);
        state.most = total.saturating_sub(state.reserve).max(1);
        while state.ordinary.connections > state.most {
            let Some(longest) = state.ordinary.longest_waiting() else {
                break;
            };
            state.tell(longest);
        }
    }

    /// A place for a connection that came: `caller`'s, or a proxy's if there is none.
    pub(crate) fn take(self: &Arc<Self>, caller: Option<Caller>) -> Place {
        let mut state = lock(&self.state);
        let own = caller.and_then(|caller| state.callers.get(&caller));
        let (is_full, longest) = match own.filter(|own| own.connections >= state.per_address()) {
            Some(own) => (true, own.longest_waiting()),
            None => (
                state.ordinary.connections >= state.most,
                state.ordinary.longest_waiting(),
            ),
        };
        let is_reserved = is_full && longest.is_none();
        if is_reserved && state.reserved.connections >= state.reserve {
            let longest = state.reserved.longest_waiting();
            if let Some(first) = longest.or_else(|| state.reserved.first()) {
                state.tell(first);
            }
        } else if let Some(longest) = longest.filter(|_| is_full) {
            state.tell(longest);
        }
        let told = Arc::new(Notify::new());
        let id = state.moment();
        let connection = Connection {
            caller: None,
            is_shared: caller.is_none(),
            is_reserved,
            waits: None,
            told: Arc::clone(&told),
        };
        state.connections.insert(id, connection);
        state.peak = state.peak.max(state.connections.len());
        state.group(is_reserved).connections += 1;
        if is_reserved {
            state.reserved.all.insert(id);
        } else {
            state.count_for(id, caller);
        }
        state.waits(id);
        drop(state);
        let places = Arc::clone(self);
        Place {
            places,
            id,
            told,
            is_reserved,
        }
    }

    /// Waits until those that were told to go have gone, and their files with them.
    pub(crate) async fn all_gone(&self) {
        while lock(&self.state).leaving > 0 {
            self.gone.notified().await;
        }
    }
}

impl State {
    fn moment(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// How many an address may have: never all, so that nobody shuts out everybody else.
    fn per_address(&self) -> usize {
        let share = self.most - self.most / 4;
        self.limits.per_address.min(share)
    }

    fn group(&mut self, is_reserved: bool) -> &mut Group {
        if is_reserved {
            &mut self.reserved
        } else {
            &mut self.ordinary
        }
    }

    /// From now on it is the caller's turn. `false` if the connection was told to go.
    fn waits(&mut self, id: Id) -> bool {
        let moment = self.moment();
        let Some(connection) = self.connections.get_mut(&id) else {
            return false;
        };
        if connection.waits.is_none() {
            connection.waits = Some(moment);
            let (caller, is_reserved) = (connection.caller, connection.is_reserved);
            self.group(is_reserved).waiting.insert(moment, id);
            if let Some(own) = caller.and_then(|caller| self.callers.get_mut(&caller)) {
                own.waiting.insert(moment, id);
            }
        }
        true
    }

    /// From now on it is the service's turn. `false` if the connection was told to go.
    fn works(&mut self, id: Id) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else {
            return false;
        };
        if let Some(moment) = connection.waits.take() {
            let (caller, is_reserved) = (connection.caller, connection.is_reserved);
            self.group(is_reserved).waiting.remove(&moment);
            if let Some(own) = caller.and_then(|caller| self.callers.get_mut(&caller)) {
                own.waiting.remove(&moment);
            }
        }
        true
    }

    /// Has a connection that does not wait count under another name, or none.
    fn count_for(&mut self, id: Id, caller: Option<Caller>) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut connection.caller, caller);
        if let Some(before) = before
            && let Some(own) = self.callers.get_mut(&before)
        {
            own.connections -= 1;
            if own.connections == 0 {
                self.callers.remove(&before);
                shrink(&mut self.callers);
            }
        }
        if let Some(caller) = caller {
            self.callers.entry(caller).or_default().connections += 1;
        }
    }

    /// Forgets a connection. `false` if it was told to go, and so forgotten before.
    fn forget(&mut self, id: Id) -> bool {
        let known = self.works(id);
        if known {
            self.count_for(id, None);
        }
        if let Some(connection) = self.connections.remove(&id) {
            self.group(connection.is_reserved).connections -= 1;
            self.reserved.all.remove(&id);
            shrink(&mut self.connections);
        }
        known
    }

    fn tell(&mut self, id: Id) {
        let told = self.connections.get(&id).map(|one| Arc::clone(&one.told));
        if self.forget(id)
            && let Some(told) = told
        {
            self.leaving += 1;
            told.notify_one();
        }
    }
}

impl Place {
    /// Waits until the connection has to go. It goes at once: what came on it since is not looked
    /// at.
    pub(crate) async fn told(&self) {
        self.told.notified().await;
    }

    /// Whether only health and metrics are answered here.
    pub(crate) const fn is_reserved(&self) -> bool {
        self.is_reserved
    }

    /// It is the service's turn. `false` if the connection was told to go.
    pub(crate) fn works(&self) -> bool {
        lock(&self.places.state).works(self.id)
    }

    /// It is the caller's turn, in the middle of a request.
    pub(crate) fn waits(&self) {
        lock(&self.places.state).waits(self.id);
    }

    /// An answer has left, and it is the caller's turn.
    pub(crate) fn answered(&self) {
        let mut state = lock(&self.places.state);
        if state
            .connections
            .get(&self.id)
            .is_some_and(|one| one.is_shared)
        {
            state.works(self.id);
            state.count_for(self.id, None);
        }
        state.waits(self.id);
    }

    /// Counts the request that is about to be answered for `caller`, on whose behalf a proxy sent
    /// it. `false` if that one has as many connections and requests as it may.
    pub(crate) fn is_for(&self, caller: Caller) -> bool {
        let mut state = lock(&self.places.state);
        let own = state.callers.get(&caller).map_or(0, |own| own.connections);
        if own >= state.per_address() {
            return false;
        }
        state.works(self.id);
        state.count_for(self.id, Some(caller));
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = lock(&self.places.state);
        if !state.forget(self.id) {
            state.leaving -= 1;
            drop(state);
            self.places.gone.notify_one();
        }
    }
}

/// Gives back what a map does not need any more after a peak. Else it would lie above all that is
/// free below it for good.
fn shrink<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > 64 && map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const ALL: Limits = Limits {
        connections: usize::MAX,
        per_address: usize::MAX,
    };

    fn caller(number: u8) -> Option<Caller> {
        Some(Caller::from(std::net::IpAddr::from(Ipv4Addr::new(
            192, 0, 2, number,
        ))))
    }

    /// Whether it was told to go.
    async fn is_told(place: &Place) -> bool {
        tokio::select! {
            biased;
            () = place.told() => true,
            () = tokio::task::yield_now() => false,
        }
    }

    /// Connections of so many addresses, one each.
    fn taken(places: &Arc<Places>, addresses: std::ops::Range<u8>) -> Vec<Place> {
        addresses.map(|n| places.take(caller(n))).collect()
    }

    #[tokio::test]
    async fn who_comes_gets_the_place_of_who_has_waited_for_longest() {
        let places = Places::new(3, ALL);
        let held = taken(&places, 0..2);
        assert!(held[0].works());
        held[0].answered();
        let come = places.take(caller(7));
        assert!(!come.is_reserved());
        assert!(!is_told(&held[0]).await && is_told(&held[1]).await);
        assert!(!held[1].works(), "what comes too late is not answered");
    }

    /// With every place taken by requests under way, whoever wanted to know about health waited.
    #[tokio::test]
    async fn who_comes_while_all_are_answered_gets_a_place_in_reserve() {
        let places = Places::new(16, ALL);
        let held = taken(&places, 0..14);
        assert!(held.iter().all(Place::works));
        let reserve = taken(&places, 100..102);
        assert!(reserve.iter().all(Place::is_reserved));
        // In the reserve it is the same.
        let next = places.take(caller(200));
        assert!(next.is_reserved() && is_told(&reserve[0]).await);
        assert!(reserve[1].works() && next.works());
        assert!(places.take(caller(201)).is_reserved());
        assert!(is_told(&reserve[1]).await && !is_told(&next).await);
        for one in &held {
            assert!(!is_told(one).await, "who is answered is left alone");
        }
        drop(held);
        assert!(!places.take(caller(201)).is_reserved());
    }

    #[tokio::test]
    async fn an_address_at_its_limit_costs_the_others_nothing() {
        let limits = Limits {
            per_address: 3,
            ..ALL
        };
        let places = Places::new(100, limits);
        let others = taken(&places, 10..20);
        let own: Vec<_> = (0..3).map(|_| places.take(caller(1))).collect();
        let fourth = places.take(caller(1));
        assert!(is_told(&own[0]).await && !is_told(&own[1]).await);
        assert!(own[1].works() && own[2].works() && fourth.works());
        assert!(places.take(caller(1)).is_reserved());
        for other in &others {
            assert!(!is_told(other).await);
        }
        drop(own);
        assert!(!places.take(caller(1)).is_reserved());
    }

    #[test]
    fn no_address_has_all_places() {
        let places = Places::new(9, ALL);
        let held: Vec<_> = (0..6).map(|_| places.take(caller(1))).collect();
        assert!(held.iter().all(Place::works));
        assert!(places.take(caller(1)).is_reserved());
        assert!(!places.take(caller(2)).is_reserved());
    }

    #[tokio::test]
    async fn requests_that_a_proxy_passes_on_count_for_their_callers() {
        let limits = Limits {
            per_address: 2,
            ..ALL
        };
        let places = Places::new(100, limits);
        let held: Vec<_> = (0..10).map(|_| places.take(None)).collect();
        let one = caller(1).unwrap();
        assert!(held[0].works() && held[0].is_for(one));
        assert!(held[1].works() && held[1].is_for(one));
        assert!(held[2].works() && !held[2].is_for(one));
        assert!(held[2].is_for(caller(2).unwrap()));
        held[0].answered();
        assert!(held[3].works() && held[3].is_for(one));
        for place in &held {
            assert!(!is_told(place).await);
        }
        drop(held);
        assert!(lock(&places.state).callers.is_empty());
    }

    #[tokio::test]
    async fn fewer_places_are_taken_back_from_those_that_wait() {
        let places = Places::new(4, ALL);
        let held = taken(&places, 0..3);
        assert!(held[0].works());
        places.set_total(3);
        assert!(!is_told(&held[0]).await && is_told(&held[1]).await);
        assert!(!is_told(&held[2]).await);
    }

    #[tokio::test]
    async fn a_file_is_free_once_who_was_told_has_gone() {
        let places = Places::new(2, ALL);
        let first = places.take(caller(0));
        let _second = places.take(caller(1));
        let all_gone = places.all_gone();
        tokio::pin!(all_gone);
        tokio::select! {
            biased;
            () = all_gone.as_mut() => panic!("it is still there"),
            () = tokio::task::yield_now() => {}
        }
        drop(first);
        all_gone.await;
    }
}
