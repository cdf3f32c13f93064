//! Leases of nodes on the simulated server.

use std::sync::Arc;
use std::time::Duration;

use countwheel_cluster::{Node, NodeId, Registry, RegistryError};
use countwheel_durable::Shards;
use countwheel_durable::store::{Shard, Store, StoreError};
use countwheel_postgres::testing::{Leases, SimulatedFaults, SimulatedPostgres, leases};
use countwheel_postgres::{PostgresRegistry, PostgresStore};
use countwheel_time::{Clock, ManualClock, Timestamp};

/// Some of a gate, more by a variable.
fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("COUNTWHEEL_LEASES").ok();
    1..asked.map_or(300, |text| text.parse().expect("a number"))
}

#[test]
fn who_may_start_owns_the_shard() {
    let mut sum = Leases::default();
    for seed in seeds() {
        let run = leases(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        sum.add(&run);
    }
    println!("{sum:?}");
    // What never happens proves nothing. Far below what is seen, far above none.
    let least = [
        sum.taken,
        sum.at_once,
        sum.refused,
        sum.renewed,
        sum.kept,
        sum.given,
        sum.left,
        sum.rejoined,
        sum.name_taken,
        sum.committed,
    ];
    assert!(least.iter().all(|count| *count > 100), "{sum:?}");
}

struct World {
    /// Of the server, and of each node.
    clocks: [ManualClock; 3],
    server: SimulatedPostgres,
    nodes: Vec<(Node, PostgresStore, PostgresRegistry)>,
}

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(5);

impl World {
    /// Two nodes that have joined.
    fn new() -> Self {
        let clocks = [(); 3].map(|()| ManualClock::at(Timestamp::from_micros(1 << 50)));
        let passing = clocks.clone();
        let server = SimulatedPostgres::keeping(
            Shards::new(2).expect("from 1 to 1024"),
            7,
            86_400 * SECOND,
            Arc::new(clocks[0].clone()),
            move |pause| passing.iter().for_each(|clock| clock.advance(pause)),
        );
        let nodes = [1, 2].map(|id: u8| {
            let clock = Arc::new(clocks[usize::from(id)].clone());
            let store = PostgresStore::on_simulated(&server, id.into(), clock, LEASE);
            let node = Node {
                id: NodeId(id.into()),
                name: format!("node-{id}"),
                api: String::new(),
                peers: None,
                weight: 100,
                version: String::new(),
                zones: String::new(),
            };
            let registry = store.registry();
            registry.join(&node, LEASE).expect("nobody has the name");
            (node, store, registry)
        });
        Self {
            nodes: nodes.into(),
            clocks,
            server,
        }
    }

    fn pass(&self, span: Duration) {
        self.clocks.iter().for_each(|clock| clock.advance(span));
    }
}

/// The clock of the database was set back an hour, or somebody wrote the row by hand: its shards had no owner
/// that worked for as long.
#[test]
fn a_lease_that_ends_far_ahead_is_believed_for_no_longer_than_leases_last() {
    let world = World::new();
    let [(_, of_dead, _), (_, store, registry)] = &world.nodes[..] else {
        panic!("two have joined")
    };
    of_dead.acquire(Shard(0)).expect("it is free");
    let server = &world.clocks[0];
    server.set_timestamp(server.timestamp().saturating_sub(3_600 * SECOND));
    for _ in 0..120 {
        registry.look(true).expect("it is there");
        let refused = store.acquire(Shard(0));
        assert!(matches!(refused, Err(StoreError::Unavailable { .. })));
        world.pass(SECOND / 2);
    }
    world.pass(SECOND);
    let seen = registry.look(true).expect("it is there");
    let dead = &seen.members[0];
    assert!(
        dead.expires + SECOND / 4 < seen.now,
        "{dead:?} {:?}",
        seen.now
    );
    store.acquire(Shard(0)).expect("its owner is dead");

    // A start under its name waits no longer either.
    server.set_timestamp(server.timestamp().saturating_sub(3_600 * SECOND));
    let again = PostgresStore::on_simulated(&world.server, 9, Arc::new(server.clone()), LEASE);
    let named = Node {
        id: NodeId(9),
        ..world.nodes[0].0.clone()
    };
    let taken = again.registry().join(&named, LEASE);
    assert!(
        matches!(taken, Err(RegistryError::NameTaken { .. })),
        "{taken:?}"
    );
    world.pass(62 * SECOND);
    again.registry().join(&named, LEASE).expect("it is over");
}

/// What it was given it could not let go of, so nobody else took it.
#[test]
fn a_node_gives_away_what_it_was_given_and_has_not_taken() {
    let world = World::new();
    let [(one, store, registry), (other, of_other, to_other)] = &world.nodes[..] else {
        panic!("two have joined")
    };
    store.acquire(Shard(0)).expect("it is free");
    assert_eq!(registry.give(Shard(0), Some(other.id)), Ok(true));
    // It is not the giver's any more.
    assert_eq!(registry.give(Shard(0), None), Ok(false));
    assert!(store.acquire(Shard(0)).is_err());
    assert_eq!(to_other.give(Shard(0), None), Ok(true));
    store.acquire(Shard(0)).expect("it is free");

    // Nor is it stuck with what was taken, and not loaded.
    assert_eq!(registry.give(Shard(0), Some(other.id)), Ok(true));
    assert_eq!(
        to_other.take(&[Shard(0), Shard(1)]),
        Ok(vec![Shard(0), Shard(1)])
    );
    assert_eq!(to_other.give(Shard(0), Some(one.id)), Ok(true));
    let lease = store.acquire(Shard(0)).expect("it was given").lease;
    assert!(store.may_start(lease));
    // What was taken at once is gone on with under the same fence.
    let fence = world.server.owner(Shard(1));
    let lease = of_other.acquire(Shard(1)).expect("it was taken").lease;
    assert_eq!(lease.fence, fence);
    // Another shard that nobody gave it.
    assert_eq!(registry.give(Shard(1), None), Ok(false));
    let shard = Shard(7);
    assert_eq!(
        registry.give(shard, None),
        Err(RegistryError::NoSuchShard { shard })
    );
}

/// A caller heard that the store was away, which was there.
#[test]
fn a_lease_that_is_over_is_not_a_store_that_is_away() {
    let world = World::new();
    let (_, store, registry) = &world.nodes[0];
    assert_eq!((store.is_over(), store.stuck(Shard(0))), (false, None));
    // It was stopped.
    world.pass(LEASE);
    assert_eq!((store.is_over(), store.stuck(Shard(0))), (true, None));
    registry.look(true).expect("it is there");
    assert!(!store.is_over());

    let mut faults = SimulatedFaults::default();
    faults.away = 1;
    world.server.set_faults(faults);
    registry.look(true).expect_err("it is away");
    // The lease goes on for a while.
    assert_eq!((store.is_over(), store.stuck(Shard(0))), (false, None));
    world.pass(LEASE);
    registry.look(true).expect_err("it is away");
    assert!(store.stuck(Shard(0)).is_some());
    world.server.set_faults(SimulatedFaults::default());
    registry.look(true).expect("it is there");
    assert_eq!((store.is_over(), store.stuck(Shard(0))), (false, None));
}

#[test]
fn a_seed_repeats() {
    for seed in 1..20 {
        assert_eq!(leases(seed), leases(seed), "{seed}");
    }
}

#[cfg(feature = "planted-bugs")]
#[test]
fn every_mistake_with_leases_is_found() {
    use countwheel_postgres::{PlantedBug, plant};

    for bug in PlantedBug::OF_LEASES {
        plant(Some(*bug));
        let found = (1..=1_000).find_map(|seed| Some((seed, leases(seed).err()?)));
        plant(None);
        let (seed, what) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {seed}: {what}");
    }
}
