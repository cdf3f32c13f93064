//! The places of callers' connections, by address and in all.
//!
//! No new connection waits for a place. A connection is either in the service's turn, while the
//! service answers a request on it, or in the caller's turn: no whole head has come, a body does
//! not go on, or the caller does not read an answer. When all places are taken, or all of an
//! address, the connection goes that has been in the caller's turn for longest. If there is none,
//! the new connection gets one of a few places in **reserve**. On these the service answers only
//! health and metrics, and refuses everything else. Since no request changes anything there, a new
//! connection takes the place of the oldest one when the reserve is full too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
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

/// What there is, and what has been.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Figures {
    /// Connections that are open.
    pub(crate) open: usize,
    /// Those of them that are in reserve.
    pub(crate) reserved: usize,
    /// How many had to make room since the start.
    pub(crate) told: u64,
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
    /// Were told to go since the start.
    told: u64,
    connections: HashMap<Id, Connection>,
    /// The most that there were since they ebbed.
    peak: usize,
    reserved: Group,
    ordinary: Group,
    of: HashMap<Of, Group>,
    /// Grows with each look at the state, so that the lowest is the oldest.
    next: u64,
}

/// Whose a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Of {
    Caller(Caller),
    /// A proxy has opened it, and has not said for whom. While all places are taken such a one makes
    /// room among its like: whoever it is of may have enough.
    Unknown,
}

type Id = u64;
type Moment = u64;

#[derive(Debug)]
struct Connection {
    /// As whose it counts, if it does.
    of: Option<Of>,
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
    /// The connection on which it has been the caller's turn for longest.
    fn longest(&self) -> Option<Id> {
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
}

impl Places {
    /// So many, the reserve included, as far as the limits allow.
    pub(crate) fn new(total: usize, limits: Limits) -> Arc<Self> {
        let state = State {
            limits,
            most: 0,
            reserve: 0,
            leaving: 0,
            told: 0,
            connections: HashMap::new(),
            peak: 0,
            reserved: Group::default(),
            ordinary: Group::default(),
            of: HashMap::new(),
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
        let mut state = self.state.lock();
        let left = state.connections.len();
        let have_ebbed = state.peak >= FLOOD_MIN && left <= state.peak / 4;
        if have_ebbed {
            state.peak = left;
        }
        have_ebbed
    }

    /// What the operator sees of them.
    pub(crate) fn figures(&self) -> Figures {
        let state = self.state.lock();
        Figures {
            open: state.connections.len(),
            reserved: state.reserved.connections,
            told: state.told,
        }
    }

    /// From now on there are so many. Of those that are too many go who can.
    pub(crate) fn set_total(&self, total: usize) {
        let mut state = self.state.lock();
        let total = total.min(state.limits.connections);
        state.reserve = (total / PLACES_PER_RESERVE).clamp(1, RESERVE_MAX);
        state.most = total.saturating_sub(state.reserve).max(1);
        while state.ordinary.connections > state.most {
            let Some(longest) = state.ordinary.longest() else {
                break;
            };
            state.tell(longest);
        }
    }

    /// A place for a connection that came: `caller`'s, or a proxy's if there is none.
    pub(crate) fn take(self: &Arc<Self>, caller: Option<Caller>) -> Place {
        let mut state = self.state.lock();
        let of = caller.map_or(Of::Unknown, Of::Caller);
        let own = state.at_limit(of);
        let all = (state.ordinary.connections >= state.most).then(|| state.ordinary.longest());
        let is_reserved = own.or(all).is_some_and(|longest| !state.make_room(longest));
        if is_reserved {
            state.make_room_in_reserve();
        }
        let told = Arc::new(Notify::new());
        let id = state.moment();
        let connection = Connection {
            of: None,
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
            state.count_as(id, Some(of));
        }
        state.waits(id);
        drop(state);
        let places = Arc::clone(self);
        Place { places, id, told }
    }

    /// Waits until those that were told to go have gone, and their files with them.
    pub(crate) async fn all_gone(&self) {
        while self.state.lock().leaving > 0 {
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

    /// Whether there are as many as there may be `of` them; then which has waited for longest, if any
    /// does.
    fn at_limit(&self, of: Of) -> Option<Option<Id>> {
        let own = self.of.get(&of)?;
        let is_full = match of {
            Of::Caller(_) => own.connections >= self.per_address(),
            Of::Unknown => self.ordinary.connections >= self.most,
        };
        is_full.then(|| own.longest())
    }

    /// Closes the connection that has waited for longest. `false` if none waits.
    fn make_room(&mut self, longest: Option<Id>) -> bool {
        if let Some(longest) = longest {
            self.tell(longest);
        }
        longest.is_some()
    }

    /// The same in the reserve, where the oldest goes if none waits.
    fn make_room_in_reserve(&mut self) {
        if self.reserved.connections >= self.reserve {
            let longest = self.reserved.longest();
            self.make_room(longest.or_else(|| self.reserved.first()));
        }
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
            let (of, is_reserved) = (connection.of, connection.is_reserved);
            self.group(is_reserved).waiting.insert(moment, id);
            if let Some(own) = of.and_then(|of| self.of.get_mut(&of)) {
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
            let (of, is_reserved) = (connection.of, connection.is_reserved);
            self.group(is_reserved).waiting.remove(&moment);
            if let Some(own) = of.and_then(|of| self.of.get_mut(&of)) {
                own.waiting.remove(&moment);
            }
        }
        true
    }

    /// Counts a connection that does not wait as another caller's, or as nobody's.
    fn count_as(&mut self, id: Id, of: Option<Of>) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut connection.of, of);
        if let Some(before) = before
            && let Some(own) = self.of.get_mut(&before)
        {
            own.connections -= 1;
            if own.connections == 0 {
                self.of.remove(&before);
                shrink(&mut self.of);
            }
        }
        if let Some(of) = of {
            self.of.entry(of).or_default().connections += 1;
        }
    }

    /// Moves a connection that does not wait to the reserve.
    fn reserve(&mut self, id: Id) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.is_reserved = true;
        self.ordinary.connections -= 1;
        self.reserved.connections += 1;
        self.reserved.all.insert(id);
    }

    /// Forgets a connection. `false` if it was told to go, and so forgotten before.
    fn forget(&mut self, id: Id) -> bool {
        let known = self.works(id);
        if known {
            self.count_as(id, None);
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
            self.told += 1;
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

    /// A place beside this one, for a request of this caller on the same connection.
    pub(crate) fn beside(&self, caller: Caller) -> Self {
        self.places.take(Some(caller))
    }

    /// Whether only health and metrics are answered here.
    pub(crate) fn is_reserved(&self) -> bool {
        let state = self.places.state.lock();
        let connection = state.connections.get(&self.id);
        connection.is_some_and(|connection| connection.is_reserved)
    }

    /// Counts the connection for `caller`, whom a proxy opened it for, or else for nobody: each request
    /// on it has a caller of its own. It is moved to the reserve if the caller has as many as it may,
    /// and none of them waits.
    pub(crate) fn is_from(&self, caller: Option<Caller>) {
        let mut state = self.places.state.lock();
        let Some(connection) = state.connections.get_mut(&self.id) else {
            return;
        };
        connection.is_shared = caller.is_none();
        if connection.is_reserved {
            return;
        }
        state.works(self.id);
        let of = caller.map(Of::Caller);
        let has_room = match of.and_then(|of| state.at_limit(of)) {
            Some(longest) => state.make_room(longest),
            None => true,
        };
        state.count_as(self.id, of.filter(|_| has_room));
        if !has_room {
            state.make_room_in_reserve();
            state.reserve(self.id);
        }
        state.waits(self.id);
    }

    /// It is the service's turn. `false` if the connection was told to go.
    pub(crate) fn works(&self) -> bool {
        self.places.state.lock().works(self.id)
    }

    /// It is the caller's turn, in the middle of a request.
    pub(crate) fn waits(&self) {
        self.places.state.lock().waits(self.id);
    }

    /// An answer has left, and it is the caller's turn.
    pub(crate) fn answered(&self) {
        let mut state = self.places.state.lock();
        if state
            .connections
            .get(&self.id)
            .is_some_and(|one| one.is_shared)
        {
            state.works(self.id);
            state.count_as(self.id, None);
        }
        state.waits(self.id);
    }

    /// Counts the request that is about to be answered for `caller`, on whose behalf a proxy sent
    /// it. `false` if that one has as many connections and requests as it may, and none of them waits.
    pub(crate) fn is_for(&self, caller: Caller) -> bool {
        let mut state = self.places.state.lock();
        let of = Of::Caller(caller);
        if let Some(longest) = state.at_limit(of)
            && !state.make_room(longest)
        {
            return false;
        }
        state.works(self.id);
        state.count_as(self.id, Some(of));
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state.lock();
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
        assert!(places.state.lock().of.is_empty());
    }

    /// One caller behind a proxy took all but a few of the places, and with them those of the others.
    #[tokio::test]
    async fn a_connection_that_a_proxy_opens_for_a_caller_is_one_of_the_callers() {
        let limits = Limits {
            per_address: 3,
            ..ALL
        };
        let places = Places::new(100, limits);
        let one = caller(1).unwrap();
        let others = taken(&places, 10..20);
        let take = || {
            let place = places.take(None);
            place.is_from(Some(one));
            place
        };
        let own: Vec<_> = (0..3).map(|_| take()).collect();
        let fourth = take();
        assert!(is_told(&own[0]).await && !is_told(&own[1]).await);
        assert!(own[1].works() && own[2].works() && fourth.works());
        // Between its requests it is still the caller's.
        fourth.answered();
        let fifth = take();
        assert!(is_told(&fourth).await && fifth.works());
        let reserved = take();
        assert!(reserved.is_reserved() && places.take(Some(one)).is_reserved());
        let other = places.take(None);
        other.is_from(caller(2));
        assert!(!other.is_reserved());
        for other in &others {
            assert!(!is_told(other).await);
        }
        drop((own, fifth, reserved, other));
        let state = places.state.lock();
        assert_eq!(state.reserved.connections, 0);
        assert_eq!(state.ordinary.connections, others.len());
    }

    /// Before it was known whose they were, many connections of one caller took the places of others.
    #[tokio::test]
    async fn connections_of_nobody_knows_whom_make_room_among_themselves() {
        let places = Places::new(16, ALL);
        let others = taken(&places, 0..10);
        let unknown: Vec<_> = (0..30).map(|_| places.take(None)).collect();
        for other in &others {
            assert!(!is_told(other).await && !other.is_reserved());
        }
        let mut left = 0;
        for place in &unknown {
            left += usize::from(!is_told(place).await);
        }
        assert_eq!(left, 4);
        // What is known to be a proxy's own is not among them.
        unknown[29].is_from(None);
        let come = places.take(None);
        assert!(!is_told(&unknown[29]).await && is_told(&unknown[26]).await);
        drop(come);
    }

    /// The oldest, of which nothing more came, stayed, and who came later was refused.
    #[tokio::test]
    async fn a_request_of_a_proxy_that_does_not_go_on_makes_room_for_the_next_of_its_caller() {
        let limits = Limits {
            per_address: 2,
            ..ALL
        };
        let places = Places::new(100, limits);
        let held: Vec<_> = (0..4).map(|_| places.take(None)).collect();
        let one = caller(1).unwrap();
        for place in &held[..2] {
            assert!(place.works() && place.is_for(one));
        }
        held[1].waits();
        assert!(held[2].works() && held[2].is_for(one));
        assert!(is_told(&held[1]).await && !is_told(&held[0]).await);
        assert!(held[3].works() && !held[3].is_for(one));
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
