//! Nodes with leases in the tables: who may take a shard, and who may go on.

use std::io::Write;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use countwheel_cluster::{Node, NodeId, Registry, RegistryError};
use countwheel_durable::store::{Change, Lease, Shard, Store, StoreError};
use countwheel_durable::{Revision, Shards};
use countwheel_postgres::testing::Server;
use countwheel_postgres::{PostgresOptions, PostgresRegistry, PostgresStore};
use countwheel_time::{Clock, SystemClock};

/// Longer than a proof lasts.
const LONG: Duration = Duration::from_secs(600);
/// A lease that is over soon.
const SHORT: Duration = Duration::from_secs(1);
/// After so long a lease of that length is not believed any more, and nobody may take what it is for.
const UNBELIEVED: Duration = Duration::from_millis(600);

struct Process {
    node: Node,
    store: PostgresStore,
    registry: PostgresRegistry,
}

pub(super) fn node(id: u128, name: &str) -> Node {
    Node {
        id: NodeId(id),
        name: name.to_owned(),
        api: format!("http://{name}.example:7700"),
        peers: (id > 1).then(|| format!("{name}.example:7701")),
        weight: 100,
        version: "0.1.0".to_owned(),
        zones: "2026a".to_owned(),
    }
}

impl Process {
    fn new(options: &PostgresOptions, node: Node) -> Self {
        let store = PostgresStore::open(options).expect("there is a cluster");
        Self {
            registry: store.registry(),
            store,
            node,
        }
    }

    fn joined(options: &PostgresOptions, node: Node, lease: Duration) -> Self {
        let process = Self::new(options, node);
        let joined = process.registry.join(&process.node, lease);
        joined.expect("nobody has the name");
        process
    }

    fn take(&self) -> Lease {
        self.store.acquire(FIRST).expect("it may").lease
    }

    fn is_refused(&self) -> bool {
        let taken = self.store.acquire(FIRST);
        matches!(taken, Err(StoreError::Unavailable { reason }) if reason.contains("not over"))
    }

    fn commit(&self, lease: Lease, revision: u64) -> Result<(), StoreError> {
        self.store
            .commit(lease, &[Change::Given(Revision(revision))])
    }
}

const FIRST: Shard = Shard(0);
const BOTH: [Shard; 2] = [FIRST, Shard(1)];

struct World {
    server: Arc<Server>,
    options: PostgresOptions,
}

impl World {
    fn new() -> Self {
        let server = super::server();
        let options = server.fresh();
        PostgresStore::make(&options, Shards::new(2).expect("from 1 to 1024"))
            .expect("a fresh schema");
        Self { server, options }
    }

    fn run(&self, text: &str) -> String {
        let text = text.replace('@', &format!("\"{}\".", self.options.schema));
        let done = self.server.execute(&text).expect("the server is there");
        done.trim().to_owned()
    }

    /// The lease of a node ended so long ago.
    fn ended(&self, name: &str, ago: Duration) {
        let millis = ago.as_millis();
        self.run(&format!(
            "UPDATE @node SET expires = clock_timestamp() - interval '{millis} milliseconds' \
             WHERE name = '{name}'"
        ));
    }

    /// A session that has done a statement and does not end its transaction for so many seconds.
    fn hold(&self, statement: &str, seconds: f64) -> Child {
        self.hold_as(
            "psql",
            statement,
            &format!("; SELECT pg_sleep({seconds}); COMMIT"),
        )
    }

    /// The same under another name, with what it does then. If that is nothing, it waits for more.
    fn hold_as(&self, name: &str, statement: &str, then: &str) -> Child {
        let statement = statement.replace('@', &format!("\"{}\".", self.options.schema));
        let text = format!("BEGIN; {statement}{then}");
        let mut psql = self.server.psql(&text);
        psql.env("PGAPPNAME", name).args(["-f", "-"]);
        psql.stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let holder = psql.spawn().expect("it is installed");
        let schema = &self.options.schema;
        let holds = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'BEGIN; %{schema}%' \
             AND (wait_event = 'PgSleep' OR state = 'idle in transaction')"
        );
        while self.run(&holds) != "1" {
            super::wait(Duration::from_millis(20));
        }
        holder
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_shard_is_taken_if_it_is_free_or_its_owner_gone() {
    let world = World::new();
    let one = Process::joined(&world.options, node(1, "one"), LONG);
    let other = Process::joined(&world.options, node(2, "other"), LONG);

    // Free, and from then on its owner's alone.
    one.take();
    let refused = other.store.acquire(FIRST).expect_err("its owner lives");
    assert!(refused.to_string().contains("node one"), "{refused}");
    let lease = one.take();

    // Given away, to nobody and to a node.
    assert_eq!(one.registry.give(FIRST, None), Ok(true));
    assert!(!one.store.may_start(lease));
    assert!(one.commit(lease, 1).is_err());
    let lease = other.take();
    assert_eq!(one.registry.give(FIRST, None), Ok(false));
    assert!(other.store.may_start(lease));
    assert_eq!(other.registry.give(FIRST, Some(one.node.id)), Ok(true));
    assert!(other.is_refused());
    let lease = one.take();

    // Its lease is over, for less than the margin and for more.
    world.ended("one", Duration::from_millis(1));
    assert!(other.is_refused());
    world.ended("one", Duration::from_millis(400));
    let taken = other.take();
    assert!(taken.fence > lease.fence);
    assert!(matches!(
        one.commit(lease, 2),
        Err(StoreError::Fenced { .. })
    ));
    one.registry.look(true).expect("its row is there");
    assert!(!one.store.may_start(lease));
    assert!(one.is_refused());

    // Its row is gone.
    world.run("DELETE FROM @node WHERE name = 'other'");
    one.take();
    assert_eq!(other.registry.look(true), Err(RegistryError::NotJoined));
    assert!(!other.store.may_start(taken));
    assert!(other.commit(taken, 3).is_err());
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_lease_is_believed_for_less_than_it_lasts_and_again_if_nobody_came() {
    let world = World::new();
    let one = Process::joined(&world.options, node(1, "one"), SHORT);
    let other = Process::joined(&world.options, node(2, "other"), LONG);
    let clock = SystemClock::new();
    // Before it is asked for: how long the answers take says nothing.
    let renewed = |since: &mut countwheel_time::Instant| {
        *since = clock.now();
        one.registry.look(true)
    };
    let mut since = clock.now();
    renewed(&mut since).expect("its row is there");
    let lease = one.take();
    if clock.now().saturating_since(since) < SHORT / 4 {
        assert!(one.store.may_start(lease));
    }
    super::wait(UNBELIEVED);
    assert!(!one.store.may_start(lease));
    assert!(one.store.is_over());
    assert_eq!(one.store.stuck(FIRST), None);
    let refused = one.store.acquire(FIRST);
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })));
    // The token decides: nobody has taken it.
    one.commit(lease, 1).expect("nobody has taken it");

    super::wait(SHORT);
    let seen = renewed(&mut since).expect("its row is there");
    assert_eq!(seen.holdings[0].owner, Some(one.node.id));
    if clock.now().saturating_since(since) < SHORT / 4 {
        assert!(one.store.may_start(lease));
    }
    one.commit(lease, 2).expect("nobody has taken it");

    // Somebody came.
    super::wait(SHORT + UNBELIEVED);
    let taken = other.take();
    renewed(&mut since).expect("its row is there");
    assert!(!one.store.may_start(lease));
    assert!(other.store.may_start(taken));
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn no_two_nodes_that_live_have_one_name() {
    let world = World::new();
    let one = Process::joined(&world.options, node(1, "one"), LONG);
    let lease = one.take();
    let second = Process::new(&world.options, node(2, "one"));
    let taken = second.registry.join(&second.node, LONG);
    let api = one.node.api.clone();
    let name = one.node.name.clone();
    assert_eq!(taken, Err(RegistryError::NameTaken { name, api }));
    one.registry
        .mark_draining("one", true)
        .expect("it is there");

    world.ended("one", Duration::from_secs(1));
    let seen = second
        .registry
        .join(&second.node, LONG)
        .expect("its lease is over");
    assert_eq!(seen.members.len(), 1);
    assert_eq!(
        (&seen.members[0].node, seen.members[0].is_draining),
        (&second.node, false)
    );
    assert!(seen.members[0].expires.saturating_since(seen.now) > LONG / 2);
    // What the one before it had is free.
    assert!(seen.holdings.iter().all(|holding| holding.owner.is_none()));
    second.take();
    assert!(one.commit(lease, 1).is_err());
    assert_eq!(one.registry.look(true), Err(RegistryError::NotJoined));
    assert!(!one.store.may_start(lease));
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn what_operators_want_is_written_down_and_who_leaves_lets_go() {
    let world = World::new();
    let one = Process::joined(&world.options, node(1, "one"), LONG);
    let other = Process::joined(&world.options, node(2, "other"), LONG);
    let lease = one.take();
    let no_such = |name: &str| {
        let name = name.to_owned();
        Err(RegistryError::NoSuchNode { name })
    };
    assert_eq!(other.registry.mark_draining("none", true), no_such("none"));
    assert_eq!(other.registry.mark_draining("one", true), Ok(()));
    assert_eq!(
        other.registry.want(Some(FIRST), Some("none")),
        no_such("none")
    );
    let shard = Shard(9);
    let refused = other.registry.want(Some(shard), Some("one"));
    assert_eq!(refused, Err(RegistryError::NoSuchShard { shard }));
    assert_eq!(other.registry.want(Some(FIRST), Some("other")), Ok(()));
    let seen = one.registry.look(false).expect("its row is there");
    let nodes: Vec<_> = seen.members.iter().map(|member| &member.node).collect();
    assert_eq!(nodes, [&one.node, &other.node]);
    assert!(seen.members[0].is_draining && !seen.members[1].is_draining);
    let [first, second] = &seen.holdings[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(
        (first.shard, first.owner, first.fence),
        (FIRST, Some(one.node.id), lease.fence)
    );
    assert_eq!(
        (first.wanted.as_deref(), second.owner),
        (Some("other"), None)
    );
    assert!(first.since <= seen.now);
    assert_eq!(other.registry.want(None, None), Ok(()));

    assert_eq!(one.registry.leave(), Ok(()));
    assert!(!one.store.may_start(lease));
    assert!(one.commit(lease, 1).is_err());
    let seen = other.registry.look(true).expect("its row is there");
    assert_eq!(seen.members.len(), 1);
    let is_free =
        |holding: &countwheel_cluster::Holding| holding.owner.is_none() && holding.wanted.is_none();
    assert!(seen.holdings.iter().all(is_free));
    other.take();
    // Its leaving may come at any time: it comes back as another.
    assert_eq!(one.registry.look(true), Err(RegistryError::NotJoined));
    assert_eq!(
        one.registry.join(&one.node, LONG),
        Err(RegistryError::NotJoined)
    );
    one.registry
        .join(&node(3, "one"), LONG)
        .expect("nobody has the name");
}

/// A renewal that is not over yet when the shard is taken, alone or with others. Says whether both were done.
fn both_are_done(is_living: bool, at_once: bool) -> bool {
    let world = World::new();
    let one = Process::joined(&world.options, node(1, "one"), LONG);
    let other = Process::joined(&world.options, node(2, "other"), LONG);
    one.take();
    if !is_living {
        world.ended("one", Duration::from_secs(2));
    }
    let renewal = "UPDATE @node SET expires = clock_timestamp() + interval '1 minute' \
                   WHERE name = 'one'";
    // A statement that waits for nobody finds that the owner lives only if its row is free.
    let is_done = is_living && at_once;
    if is_done {
        world.run(renewal);
    }
    let renewing = (!is_done).then(|| world.hold(renewal, 0.4));
    let taken = match at_once {
        true => other.registry.take(&[FIRST]) == Ok(vec![FIRST]),
        false => other.store.acquire(FIRST).is_ok(),
    };
    if let Some(mut renewing) = renewing {
        let renewed = renewing.wait().expect("it was started");
        assert!(renewed.success());
    }
    taken
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_renewal_and_a_takeover_are_not_both_done() {
    for at_once in [false, true] {
        assert!(!both_are_done(false, at_once));
        #[cfg(feature = "planted-bugs")]
        {
            use countwheel_postgres::{PlantedBug, plant};
            for (bug, is_living) in [
                (PlantedBug::PostgresOwnerUnlocked, false),
                (PlantedBug::PostgresTakesLiving, true),
            ] {
                plant(Some(bug));
                let is_found = both_are_done(is_living, at_once);
                plant(None);
                assert!(is_found, "{bug:?}, at once: {at_once}");
            }
        }
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn whoever_renews_while_others_take_owns_what_it_starts() {
    let world = World::new();
    let one = Process::joined(&world.options, node(1, "one"), LONG);
    let other = Process::joined(&world.options, node(2, "other"), LONG);
    let (mut kept, mut lost) = (0, 0);
    for round in 0..super::count("COUNTWHEEL_RACES", 40) {
        world.ended("other", Duration::from_secs(1));
        let lease = one.take();
        other.registry.look(true).expect("its row is there");
        world.ended("one", Duration::from_secs(1));
        let taken = thread::scope(|scope| {
            let renewing = scope.spawn(|| one.registry.look(true));
            // The one is ahead in some rounds, the other one in others.
            if round % 2 == 0 {
                super::wait(Duration::from_millis(1 + round / 10));
            }
            let taken = other.store.acquire(FIRST);
            let renewed = renewing.join().expect("no panic");
            renewed.expect("its row is there");
            taken
        });
        match &taken {
            Ok(_) => lost += 1,
            Err(StoreError::Unavailable { .. }) => kept += 1,
            Err(error) => panic!("{error}"),
        }
        // By its own clock the one has believed its lease all the time: what it reads says whose the shard is.
        one.registry.look(true).expect("its row is there");
        assert_eq!(one.store.may_start(lease), taken.is_err(), "round {round}");
        assert_eq!(one.commit(lease, round + 1).is_ok(), taken.is_err());
    }
    println!("{kept} kept, {lost} lost");
    // Both happen, or the proof is of one order alone.
    assert!(kept > 0 && lost > 0, "{kept} kept, {lost} lost");
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_session_that_holds_a_shard_delays_no_other_and_is_ended() {
    let world = World::new();
    let one = Process::joined(&world.options, node(1, "one"), LONG);
    for shard in BOTH {
        one.store.acquire(shard).expect("it is free");
    }
    world.run(
        "CREATE ROLE plain LOGIN; GRANT USAGE ON SCHEMA @ TO plain; \
         GRANT ALL ON ALL TABLES IN SCHEMA @ TO plain"
            .replace("SCHEMA @", &format!("SCHEMA \"{}\"", world.options.schema))
            .as_str(),
    );
    let mut plain = world.options.clone();
    plain.url = plain.url.replace("postgres@", "plain@");
    let weak = Process::joined(&plain, node(2, "weak"), LONG);
    let other = Process::joined(&world.options, node(3, "other"), LONG);
    world.ended("one", Duration::from_secs(1));
    let clock = SystemClock::new();
    let dead = |shard| {
        let owner = "(SELECT node FROM @node WHERE name = 'one')";
        world.run(&format!(
            "UPDATE @shard SET owner = {owner} WHERE shard = {shard}"
        ))
    };
    let timed = |what: &dyn Fn()| {
        let began = clock.now();
        what();
        clock.now().saturating_since(began)
    };
    let refused = |process: &Process, held: &str| {
        let taken = process.registry.take_held(FIRST);
        let Err(RegistryError::Unavailable { reason }) = &taken else {
            panic!("{taken:?}")
        };
        assert!(
            reason.contains("row of shard 0 is held by session"),
            "{reason}"
        );
        assert!(reason.contains(held), "{reason}");
    };
    let hold = "SELECT FROM @shard WHERE shard = 0 FOR SHARE";

    // One that is nobody's here and does something: it is named, and the other shard is there at once.
    let mut holder = world.hold(hold, 60.0);
    let took = timed(&|| {
        assert_eq!(other.registry.take(&BOTH), Ok(vec![Shard(1)]));
    });
    assert!(took < Duration::from_millis(1_500), "{took:?}");
    other.store.acquire(Shard(1)).expect("it was taken");
    refused(&other, "\"psql\", active");
    refused(&weak, "of another role");
    assert!(holder.try_wait().expect("it was started").is_none());
    // One who waits for it keeps nobody from the others.
    dead(1);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.registry.take_held(FIRST));
        super::wait(Duration::from_millis(200));
        assert_eq!(weak.registry.take(&BOTH), Ok(vec![Shard(1)]));
        assert!(waiting.join().expect("no panic").is_err());
    });
    holder.kill().expect("it was started");
    world.run(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE wait_event = 'PgSleep'",
    );
    holder.wait().expect("it was started");

    // One of the node that died, and one that does nothing within its transaction.
    for (name, then) in [("countwheel", "; SELECT pg_sleep(60)"), ("psql", "")] {
        let before = other.take();
        dead(0);
        let mut holder = world.hold_as(name, hold, then);
        assert_eq!(other.registry.take(&[FIRST]), Ok(Vec::new()));
        assert_eq!(other.registry.take_held(FIRST), Ok(()), "{name}");
        // The one that does nothing hears of its end with its next statement. The other one may be gone.
        let stdin = holder.stdin.as_mut().expect("it is piped");
        drop(writeln!(stdin, "SELECT 1;"));
        let ended = holder.wait().expect("it was started");
        assert!(!ended.success(), "{name}");
        assert!(other.take().fence > before.fence);
    }
}
