//! A node with timers and a registry in memory, step by step on a clock of the test; and once as it runs.

use countwheel_durable::store::{
    Change, DuePage, DueScan, Fence, Filter, Lease, MemoryStore, Ownership, Page, QueueCounts,
    Store, StoreError,
};
use countwheel_durable::{Config, Record, Settings, SettingsVersion, Shards, TimerName, inline};
use countwheel_time::{ManualClock, SystemClock};

use super::*;

const SHARDS: u16 = 8;
const TTL: Duration = Duration::from_secs(5);

/// The tables that all nodes share.
struct Tables {
    clock: Arc<dyn Clock>,
    members: Vec<Member>,
    holdings: Vec<Holding>,
    is_away: bool,
    /// Somebody holds their rows.
    held: Vec<Shard>,
}

/// One node's way to them.
#[derive(Clone)]
struct Memory {
    tables: Arc<Mutex<Tables>>,
    me: Arc<Mutex<NodeId>>,
}

impl Memory {
    fn new(clock: Arc<dyn Clock>) -> Self {
        let holdings = (0..SHARDS).map(|shard| Holding {
            shard: Shard(shard),
            owner: None,
            fence: Fence(0),
            since: Timestamp::EPOCH,
            wanted: None,
        });
        let tables = Tables {
            clock,
            members: Vec::new(),
            holdings: holdings.collect(),
            is_away: false,
            held: Vec::new(),
        };
        Self {
            tables: Arc::new(Mutex::new(tables)),
            me: Arc::new(Mutex::new(NodeId(0))),
        }
    }

    /// The same tables for another node.
    fn other(&self) -> Self {
        Self {
            tables: Arc::clone(&self.tables),
            me: Arc::new(Mutex::new(NodeId(0))),
        }
    }

    fn tables(&self) -> Result<MutexGuard<'_, Tables>, RegistryError> {
        let tables = lock(&self.tables);
        match tables.is_away {
            true => Err(RegistryError::Unavailable {
                reason: "it is away".to_owned(),
            }),
            false => Ok(tables),
        }
    }

    fn me(&self) -> NodeId {
        *lock(&self.me)
    }
}

impl Tables {
    fn view(&self) -> View {
        View {
            now: self.clock.timestamp(),
            members: self.members.clone(),
            holdings: self.holdings.clone(),
        }
    }

    fn is_over(&self, id: NodeId) -> bool {
        let mut members = self.members.iter();
        let member = members.find(|member| member.node.id == id);
        let margin = Duration::from_millis(250);
        member.is_none_or(|member| member.expires + margin <= self.clock.timestamp())
    }
}

impl Registry for Memory {
    fn join(&self, node: &Node, ttl: Duration) -> Result<View, RegistryError> {
        let mut tables = self.tables()?;
        let before = tables.members.iter().find(|it| it.node.name == node.name);
        if let Some(before) = before.filter(|it| !tables.is_over(it.node.id)) {
            return Err(RegistryError::NameTaken {
                name: node.name.clone(),
                api: before.node.api.clone(),
            });
        }
        tables.members.retain(|it| it.node.name != node.name);
        let expires = tables.clock.timestamp() + ttl;
        tables.members.push(Member {
            node: node.clone(),
            expires,
            is_draining: false,
        });
        *lock(&self.me) = node.id;
        Ok(tables.view())
    }

    fn look(&self, renew: bool) -> Result<View, RegistryError> {
        let (mut tables, me) = (self.tables()?, self.me());
        let expires = tables.clock.timestamp() + TTL;
        let mut members = tables.members.iter_mut();
        let member = members.find(|member| member.node.id == me);
        let member = member.ok_or(RegistryError::NotJoined)?;
        if renew {
            member.expires = expires;
        }
        Ok(tables.view())
    }

    fn take(&self, shards: &[Shard]) -> Result<Vec<Shard>, RegistryError> {
        let tables = self.tables()?;
        let shards = shards.iter().copied();
        Ok(shards.filter(|it| !tables.held.contains(it)).collect())
    }

    fn take_held(&self, shard: Shard) -> Result<(), RegistryError> {
        match self.tables()?.held.contains(&shard) {
            true => Err(RegistryError::Unavailable {
                reason: "session 7 holds it".to_owned(),
            }),
            false => Ok(()),
        }
    }

    fn give(&self, shard: Shard, to: Option<NodeId>) -> Result<bool, RegistryError> {
        let (mut tables, me) = (self.tables()?, self.me());
        let holding = &mut tables.holdings[usize::from(shard.0)];
        let is_mine = holding.owner == Some(me);
        if is_mine {
            holding.owner = to;
        }
        Ok(is_mine)
    }

    fn mark_draining(&self, name: &str, is_draining: bool) -> Result<(), RegistryError> {
        let mut tables = self.tables()?;
        for member in &mut tables.members {
            if member.node.name == name {
                member.is_draining = is_draining;
            }
        }
        Ok(())
    }

    fn want(&self, _: Option<Shard>, _: Option<&str>) -> Result<(), RegistryError> {
        Ok(())
    }

    fn leave(&self) -> Result<(), RegistryError> {
        let (mut tables, me) = (self.tables()?, self.me());
        tables.members.retain(|member| member.node.id != me);
        for holding in &mut tables.holdings {
            holding.owner = holding.owner.filter(|owner| *owner != me);
        }
        Ok(())
    }
}

/// The store of one node: a shard is taken only if its owner is gone.
struct Leased(MemoryStore, Memory);

impl Store for Leased {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        let away = |reason: String| StoreError::Unavailable { reason };
        let mut tables = self.1.tables().map_err(|error| away(error.to_string()))?;
        let me = self.1.me();
        let owner = tables.holdings[usize::from(shard.0)].owner;
        if let Some(owner) = owner.filter(|owner| *owner != me && !tables.is_over(*owner)) {
            return Err(away(format!("{owner} has it")));
        }
        let ownership = self.0.acquire(shard)?;
        let holding = &mut tables.holdings[usize::from(shard.0)];
        (holding.owner, holding.fence) = (Some(me), ownership.lease.fence);
        Ok(ownership)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.0.commit(lease, changes)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.0.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.0.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.0.list(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.0.counts(shard)
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.0.settings(after)
    }
}

fn node(name: &str, id: u128) -> Node {
    Node {
        id: NodeId(id),
        name: name.to_owned(),
        api: format!("http://{name}:7700"),
        peers: None,
        weight: 100,
        version: "0.1.0".to_owned(),
        zones: "2026a".to_owned(),
    }
}

fn timers(store: &MemoryStore, memory: &Memory, clock: &Arc<ClusterClock>) -> Timers {
    let shards = Shards::new(SHARDS).expect("from 1 to 1024");
    let store = Leased(store.clone(), memory.clone());
    let clock = Arc::clone(clock) as Arc<dyn Clock>;
    Timers::open_divided(store, shards, [], inline(|_| ()), clock, Config::default())
        .expect("it takes nothing yet")
}

/// Several nodes of one machine, which do nothing by themselves.
struct World {
    machine: ManualClock,
    memory: Memory,
    store: MemoryStore,
    nodes: Vec<Arc<Driver>>,
}

impl World {
    fn new() -> Self {
        let machine = ManualClock::at(Timestamp::from_micros(1_000_000_000));
        Self {
            memory: Memory::new(Arc::new(machine.clone())),
            machine,
            store: MemoryStore::new(7),
            nodes: Vec::new(),
        }
    }

    fn join(&mut self, name: &str) -> Result<Arc<Driver>, RegistryError> {
        let memory = self.memory.other();
        let clock = Arc::new(ClusterClock::new(Arc::new(self.machine.clone())));
        let timers = timers(&self.store, &memory, &clock);
        let node = node(name, self.nodes.len() as u128 + 1);
        let config = NodeConfig {
            ttl: TTL,
            ..NodeConfig::default()
        };
        let driver = Driver::join(timers, Arc::new(memory), clock, node, config)?;
        self.nodes.push(Arc::clone(&driver));
        Ok(driver)
    }

    /// All nodes look and do what is to be done, for so long.
    fn live(&self, span: Duration) {
        let until = self.machine.boot() + span;
        while self.machine.boot() < until {
            for node in &self.nodes {
                node.look();
                node.work_all();
            }
            self.machine.advance(Duration::from_millis(200));
        }
    }

    fn member(&self, name: &str) -> Option<Member> {
        let tables = lock(&self.memory.tables);
        let mut members = tables.members.iter();
        members.find(|it| it.node.name == name).cloned()
    }
}

impl Driver {
    /// Does all that is to be done now.
    fn work_all(&self) {
        loop {
            let mut state = self.state();
            let mut lanes = [Lane::Takes, Lane::Held, Lane::Gives].into_iter();
            let Some(work) = lanes.find_map(|lane| state.next(lane)) else {
                return;
            };
            drop(state);
            self.work(work);
        }
    }

    fn works(&self) -> Vec<Shard> {
        let here = self.here().into_iter();
        let works = here.filter(|(_, standing)| matches!(standing, Standing::Works(_)));
        works.map(|(shard, _)| shard).collect()
    }

    fn happened(&self, what: Happening) -> Vec<NodeEvent> {
        let state = self.state();
        let events = state.events.iter();
        events.filter(|event| event.what == what).cloned().collect()
    }
}

#[test]
fn a_node_that_comes_is_given_its_share_and_finds_what_was_set() {
    let mut world = World::new();
    let a = world.join("a").expect("it joins");
    world.live(Duration::from_millis(200));
    assert_eq!(a.works().len(), 8);
    for order in 0..32_u64 {
        let hour = Duration::from_secs(3_600);
        a.timers
            .set(("unpaid", order), hour, "")
            .expect("it is set");
    }

    let b = world.join("b").expect("it joins");
    world.live(Duration::from_secs(2));
    assert_eq!((a.works().len(), b.works().len()), (4, 4));
    let moved = |order: &u64| {
        a.timers
            .shards()
            .of(&TimerName::new("unpaid", order.to_string()).expect("a name"))
    };
    let order = (0..32).find(|order| b.works().contains(&moved(order)));
    b.timers
        .remove(("unpaid", order.expect("one of them moved")))
        .expect("its owner knows it");

    let given = a.happened(Happening::HandOver);
    assert_eq!(given.len(), 4);
    assert_eq!(given[0].reason, "balance");
    assert_eq!(given[0].from.as_deref(), Some("a"));
    assert_eq!(given[0].to.as_deref(), Some("b"));
    let taken = b.happened(Happening::Takeover);
    assert_eq!(taken.len(), 4);
    assert_eq!(
        (taken[0].reason.as_str(), taken[0].shard),
        ("given", given[0].shard)
    );
    assert_eq!(a.state().counts.takeovers, BTreeMap::from([(Why::Free, 8)]));
    assert_eq!(
        a.state().counts.hand_overs,
        BTreeMap::from([(Reason::Balance, 4)])
    );
    let views = [&a, &b].map(|node| node.state().view.holdings.clone());
    assert_eq!(views[0], views[1]);
}

#[test]
fn the_shards_of_a_node_that_died_are_taken() {
    let mut world = World::new();
    let a = world.join("a").expect("it joins");
    world.join("b").expect("it joins");
    world.live(TTL * 2);
    assert_eq!(a.works().len(), 4);
    // Its lease goes on for a while, and its threads know nothing.
    world.nodes.pop();
    world.live(Duration::from_millis(4_400));
    assert_eq!(a.works().len(), 4);
    world.live(Duration::from_millis(1_400));
    assert_eq!(a.works().len(), 8);
    let taken = a.happened(Happening::Takeover);
    let overdue = taken.iter().filter(|event| event.reason == "overdue");
    let from: Vec<_> = overdue.map(|event| event.from.as_deref()).collect();
    assert_eq!(from, [Some("b"); 4]);
}

/// A session of the dead hangs, and each take waited for it.
#[test]
fn a_shard_whose_row_somebody_holds_delays_no_other() {
    let mut world = World::new();
    let a = world.join("a").expect("it joins");
    lock(&world.memory.tables).held = vec![Shard(0), Shard(5)];
    a.look();
    let mut state = a.state();
    let Some(Work::Takes(takes)) = state.next(Lane::Takes) else {
        panic!("all are free");
    };
    drop(state);
    assert_eq!(takes.len(), 8);
    a.work(Work::Takes(takes));
    assert_eq!(a.works().len(), 6);
    assert_eq!(a.happened(Happening::Refusal), []);

    // In vain, and again after a pause.
    a.work_all();
    let refused = a.happened(Happening::Refusal);
    let shards: Vec<_> = refused.iter().filter_map(|event| event.shard).collect();
    assert_eq!(shards, [Shard(0), Shard(5)]);
    assert!(refused[0].reason.contains("session 7"), "{refused:?}");
    lock(&world.memory.tables).held.clear();
    world.live(Duration::from_secs(1));
    assert_eq!(a.works().len(), 8);
}

/// It wakes up, and the others have its shards.
#[test]
fn a_node_that_was_removed_joins_again_under_another_id() {
    let mut world = World::new();
    let a = world.join("a").expect("it joins");
    let b = world.join("b").expect("it joins");
    world.live(TTL * 2);
    let before = b.state().control.me();
    world.nodes.pop();
    world.live(TTL * 2);
    lock(&world.memory.tables)
        .members
        .retain(|it| it.node.name != "b");
    world.nodes.push(Arc::clone(&b));
    world.live(Duration::from_secs(1));
    let after = b.state().control.me();
    assert_ne!(before, after);
    assert_eq!(world.member("b").expect("it is there").node.id, after);
    assert_eq!(b.happened(Happening::Joined).len(), 2);
    // Shards that moved a moment ago stay for a minute.
    assert_eq!((a.works().len(), b.works().len()), (8, 0));
    world.live(Duration::from_secs(65));
    assert_eq!((a.works().len(), b.works().len()), (4, 4));
}

#[test]
fn while_the_registry_is_away_nothing_changes_hands() {
    let mut world = World::new();
    let a = world.join("a").expect("it joins");
    let b = world.join("b").expect("it joins");
    world.live(TTL * 2);
    let before = [a.works(), b.works()];
    assert!(a.state().control.believes(world.machine.boot()));
    lock(&world.memory.tables).is_away = true;
    world.live(TTL * 3);
    assert!(!a.state().control.believes(world.machine.boot()));
    lock(&world.memory.tables).is_away = false;
    world.live(TTL * 3);
    assert_eq!([a.works(), b.works()], before);
    assert!(a.state().control.believes(world.machine.boot()));
    assert!(a.state().counts.missed >= 74, "{:?}", a.state().counts);
}

#[test]
fn what_is_refused_again_is_one_event() {
    let mut world = World::new();
    let a = world.join("a").expect("it joins");
    world.live(Duration::from_millis(200));
    assert!(matches!(
        world.join("a").map(drop),
        Err(RegistryError::NameTaken { .. })
    ));
    let before = a.state().counts.refusals;
    for _ in 0..3 {
        a.note(Happening::Refusal, Some(Shard(0)), "no".to_owned());
    }
    a.note(Happening::Refusal, Some(Shard(1)), "no".to_owned());
    assert_eq!(a.happened(Happening::Refusal).len(), 2);
    assert_eq!(a.state().counts.refusals - before, 4);
    for shard in 0..200 {
        a.note(Happening::Lost, Some(Shard(shard)), String::new());
    }
    assert_eq!(a.state().events.len(), EVENTS);
}

/// The look was under way while the shard was given away.
#[test]
fn the_map_has_what_this_node_did_since_the_look() {
    let mut world = World::new();
    let a = world.join("a").expect("it joins");
    world.live(Duration::from_millis(200));
    world.join("b").expect("it joins");
    let sent = world.machine.boot();
    let old = world.memory.tables().expect("it is there").view();
    world.machine.advance(Duration::from_millis(1));
    a.look();
    a.work_all();
    let given = a.happened(Happening::HandOver);
    let shard = given[0].shard.expect("it is of a shard");
    a.state().saw(sent, old);
    let owner = a.state().owner_name(shard);
    assert_ne!(owner.as_deref(), Some("a"));
}

#[test]
fn the_map_is_another_whenever_an_owner_changes() {
    let mut world = World::new();
    let a = world.join("a").expect("it joins");
    world.live(Duration::from_secs(1));
    let version = || a.state().owners.version();
    let before = version();
    world.live(Duration::from_secs(1));
    assert_eq!(version(), before);
    world.join("b").expect("it joins");
    world.live(Duration::from_secs(5));
    assert!(version() >= before + 4);
    let owners = Arc::clone(&a.state().owners);
    let view = Arc::clone(&a.state().view);
    for holding in &view.holdings {
        let owner = owners.owner(holding.shard).map(|owner| owner.node.id);
        assert_eq!(owner, holding.owner);
    }
    assert_eq!(owners.owned().count(), 8);
    let before = version();
    a.state().now_owns(Shard(0), None);
    assert_eq!(a.state().owners.owner(Shard(0)), None);
    assert!(version() > before);
}

/// With threads and the machine's clock.
#[test]
fn a_node_that_stops_hands_all_over_and_leaves() {
    let machine: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (memory, store) = (Memory::new(Arc::clone(&machine)), MemoryStore::new(7));
    let start = |name: &str, id| {
        let memory = memory.other();
        let clock = Arc::new(ClusterClock::new(Arc::clone(&machine)));
        let timers = timers(&store, &memory, &clock);
        let (registry, node) = (Arc::new(memory), node(name, id));
        NodeRunner::start(timers, registry, clock, node, NodeConfig::default())
    };
    let until = |node: &NodeHandle, what: &dyn Fn() -> bool| {
        let end = machine.now() + Duration::from_secs(60);
        while !what() {
            assert!(machine.now() < end, "it takes too long");
            let (state, wait) = (node.driver.state(), Duration::from_millis(20));
            drop(whole(node.driver.changed.wait_timeout(state, wait)));
        }
    };
    let owned = |node: &NodeHandle, id| {
        let owners = node.owners();
        let of_node = owners
            .owned()
            .filter(|(_, owner)| owner.node.id == NodeId(id));
        of_node.count()
    };
    let a = start("a", 1).expect("it joins");
    until(&a, &|| owned(&a, 1) == 8);
    let b = start("b", 2).expect("it joins");
    until(&b, &|| owned(&a, 2) == 4 && owned(&b, 2) == 4);
    assert!(a.is_lease_believed());

    assert_eq!(a.stop(Duration::from_secs(30)), 0);
    until(&b, &|| owned(&b, 2) == 8);
    let is_gone = || b.view().members.iter().all(|it| it.node.id == NodeId(2));
    until(&b, &is_gone);
    let leaves = a
        .events()
        .into_iter()
        .filter(|event| event.reason == "leaves");
    assert_eq!(leaves.count(), 4);
    assert_eq!(
        b.owners().owner(Shard(0)).map(|owner| &*owner.node.name),
        Some("b")
    );

    assert_eq!(b.stop(Duration::from_secs(30)), 0);
    let tables = lock(&memory.tables);
    assert!(tables.members.is_empty());
    assert!(
        tables
            .holdings
            .iter()
            .all(|holding| holding.owner.is_none())
    );
}
