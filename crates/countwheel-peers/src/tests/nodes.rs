//! Nodes that talk over loopback.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::time::Duration;

use countwheel_cluster::NodeId;
use countwheel_durable::store::{MemoryStore, QueueCounts, Shard};
use countwheel_durable::{
    Asked, BatchError, Config, Counted, Elsewhere, Precondition, QueueName, Request, Response,
    Shards, StateKind, SystemClock, TimerError, Timers, Was, inline,
};

use super::holding::{Answers, Map, asked};
use crate::{CloseReason, Forwarder, Here, PeerServer, PeerTls, PeersConfig, PeersError, Word};

pub(super) const SHARD: Shard = Shard(3);
/// Longer than anything takes here.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) forwarder: Arc<Forwarder>,
    pub(super) server: PeerServer,
    pub(super) map: Arc<Map>,
}

impl Node {
    pub(super) fn of(config: PeersConfig, here: impl Here + 'static) -> Self {
        let (id, map) = (config.me, Arc::new(Map::default()));
        let clock = Arc::new(SystemClock::new());
        let owners = Arc::clone(&map);
        let forwarder = Forwarder::start(config, owners, Arc::new(here), clock).unwrap();
        let server = PeerServer::start(([127, 0, 0, 1], 0).into(), &forwarder).unwrap();
        Self {
            id,
            forwarder,
            server,
            map,
        }
    }

    fn new(id: u128, here: impl Fn(Shard, Asked) + Send + Sync + 'static) -> Self {
        Self::of(PeersConfig::new(7, NodeId(id)), Answers(here))
    }

    /// Has heard that `owner` has the shard.
    fn believes(&self, owner: &Self) {
        let address = owner.server.address().to_string();
        self.map.give(SHARD, Some((owner.id, &address)));
    }

    fn closed(&self, reason: CloseReason) -> u64 {
        self.forwarder.counts().closed(reason)
    }
}

/// Waits until it is so.
#[expect(
    clippy::disallowed_methods,
    reason = "the other side is a thread that counts"
)]
pub(super) fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..4_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what} has not come to be");
}

fn refuses(_: Shard, asked: Asked) {
    asked.refuse(TimerError::NotOwned { shard: SHARD });
}

fn removed(_: Shard, asked: Asked) {
    let responses = vec![Response::Removed(Was::Dead); asked.requests().len()];
    asked.answer(Ok(responses));
}

#[test]
fn each_asker_gets_its_own_answer_and_frames_gather() {
    // Answered out of order: every second one at once, the others later.
    let late: parking_lot::Mutex<Vec<(u32, Asked)>> = parking_lot::Mutex::default();
    let number = |asked: &Asked| -> u32 {
        let name = asked.requests()[0].name().unwrap();
        name.key.as_str().parse().unwrap()
    };
    let answer = |number: u32, asked: Asked| {
        let was = Was::Delivering { attempt: number };
        asked.answer(Ok(vec![Response::Removed(was)]));
    };
    let owner = Node::new(2, move |_, asked| {
        let number = number(&asked);
        match number % 2 {
            0 => answer(number, asked),
            _ => late.lock().push((number, asked)),
        }
        if late.lock().len() == 250 {
            let late = std::mem::take(&mut *late.lock());
            late.into_iter()
                .rev()
                .for_each(|(number, asked)| answer(number, asked));
        }
    });
    let node = Node::new(1, refuses);
    node.believes(&owner);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let forwarder = &node.forwarder;
            scope.spawn(move || {
                let numbers = (0..500).map(|number| 4 * number + thread);
                let answers: Vec<_> = numbers
                    .map(|number| {
                        let (asked, answer) = asked(&number.to_string());
                        forwarder.ask(SHARD, asked);
                        (number, answer)
                    })
                    .collect();
                for (number, answer) in answers {
                    let answer = answer.recv_timeout(PATIENCE).unwrap().unwrap();
                    let was = Was::Delivering { attempt: number };
                    assert_eq!(answer, Response::Removed(was));
                }
            });
        }
    });
    let (asked, owner) = (node.forwarder.counts(), owner.forwarder.counts());
    assert_eq!((asked.asked, owner.answered), (2_000, 2_000));
    assert!(asked.frames_sent < 2_000, "{asked:?}");
    assert_eq!(asked.frames_sent, owner.frames_received);
    assert_eq!((asked.waiting, asked.connected), (0, 1));
}

#[test]
fn timers_of_two_nodes_are_one() {
    let (store, shards) = (MemoryStore::new(7), Shards::new(8).unwrap());
    let open = |owned: Vec<Shard>| {
        let clock = Arc::new(SystemClock::new());
        Timers::open_divided(
            store.clone(),
            shards,
            owned,
            inline(|_| ()),
            clock,
            Config::default(),
        )
        .unwrap()
    };
    let timers = [
        open((0..4).map(Shard).collect()),
        open((4..8).map(Shard).collect()),
    ];
    let nodes = [0, 1].map(|place: usize| {
        let config = PeersConfig::new(7, NodeId(place as u128 + 1));
        Node::of(config, timers[place].clone())
    });
    for shard in 0..8 {
        let owner = &nodes[usize::from(shard >= 4)];
        let address = owner.server.address().to_string();
        for node in &nodes {
            node.map.give(Shard(shard), Some((owner.id, &address)));
        }
    }
    for (timers, node) in timers.iter().zip(&nodes) {
        timers.on_elsewhere(Arc::clone(&node.forwarder) as Arc<dyn Elsewhere>);
    }
    let minute = Duration::from_secs(60);
    for key in 0..100_u64 {
        timers[0].set(("orders", key), minute, "close it").unwrap();
    }
    for key in 0..100_u64 {
        let was = timers[1].remove(("orders", key)).unwrap();
        assert!(matches!(was, Was::Pending { .. }));
    }
    let [one, other] = nodes.each_ref().map(|node| node.forwarder.counts());
    assert_eq!(one.asked + other.asked, 100, "each once by a way");

    // A batch is refused whole, with the place in it.
    let keys = (0..1_000).map(|key| format!("{key}"));
    let far = keys.filter(|key| {
        let name = countwheel_durable::TimerName::new("orders", key).unwrap();
        shards.of(&name) == Shard(6)
    });
    let far: Vec<_> = far.take(3).collect();
    let set = |key: &str, precondition| Request::Set {
        name: countwheel_durable::TimerName::new("orders", key).unwrap(),
        due: minute.into(),
        policy: countwheel_durable::RetryPolicy::default(),
        payload: b"close it".to_vec(),
        precondition,
        options: countwheel_durable::SetOptions::default(),
    };
    let batch = |requests| -> Result<Vec<Response>, BatchError> {
        let (send, answer) = channel();
        timers[0].submit_batch(requests, move |answer| send.send(answer).unwrap());
        answer.recv_timeout(PATIENCE).unwrap()
    };
    let absent = Precondition::Absent;
    let none = Precondition::None;
    let done = batch(vec![set(&far[0], absent), set(&far[1], absent)]);
    assert_eq!(done.unwrap().len(), 2);
    let refused = batch(vec![set(&far[2], none), set(&far[1], absent)]).unwrap_err();
    assert!(
        matches!(refused.error, TimerError::Exists { .. }),
        "{refused}"
    );
    assert_eq!(refused.index, Some(1));
    let kept = timers[1].get(("orders", far[2].as_str())).unwrap();
    assert_eq!(kept, None, "nothing of it was done");
    for timers in timers {
        timers.stop(Duration::ZERO);
    }
}

#[test]
fn a_receiver_that_is_no_owner_sends_on_once() {
    let owner = Node::new(3, removed);
    let middle = Node::new(2, refuses);
    let node = Node::new(1, refuses);
    node.believes(&middle);
    middle.believes(&owner);
    let (asked_, answer) = asked("a");
    node.forwarder.ask(SHARD, asked_);
    let answer = answer.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(answer, Response::Removed(Was::Dead));
    assert_eq!(owner.forwarder.counts().answered, 1);
}

#[test]
fn a_third_hop_is_refused_and_certainly_nothing_was_done() {
    let last = Node::new(4, removed);
    let third = Node::new(3, refuses);
    let middle = Node::new(2, refuses);
    let config = PeersConfig {
        answer_within: Duration::from_millis(500),
        ..PeersConfig::new(7, NodeId(1))
    };
    let node = Node::of(config, Answers(refuses));
    node.believes(&middle);
    middle.believes(&third);
    third.believes(&last);
    let (asked_, answer) = asked("a");
    node.forwarder.ask(SHARD, asked_);
    let answer = answer.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(answer, Err(TimerError::ShardUnavailable { .. })),
        "{answer:?}"
    );
    assert!(third.forwarder.counts().hops_refused > 0);
    assert_eq!(last.forwarder.counts().answered, 0);
    // It was held and asked again meanwhile.
    assert!(node.forwarder.counts().held > 1);
}

#[test]
fn what_waits_for_an_owner_is_done_once_there_is_one() {
    let owned = Arc::new(AtomicUsize::new(0));
    let has = Arc::clone(&owned);
    let owner = Node::new(2, move |shard, asked| match has.load(Ordering::SeqCst) {
        0 => refuses(shard, asked),
        _ => removed(shard, asked),
    });
    let node = Node::new(1, refuses);
    node.believes(&owner);
    let (asked_, answer) = asked("a");
    node.forwarder.ask(SHARD, asked_);
    until("a hold", || node.forwarder.counts().held > 2);
    assert!(answer.try_recv().is_err());
    owned.store(1, Ordering::SeqCst);
    assert!(answer.recv_timeout(PATIENCE).unwrap().is_ok());
}

#[test]
fn a_stopped_server_lets_the_last_answers_leave() {
    let (send, kept) = channel();
    let owner = Node::new(2, move |_, asked| send.send(asked).unwrap());
    let node = Node::new(1, refuses);
    node.believes(&owner);
    let (asked_, answer) = asked("a");
    node.forwarder.ask(SHARD, asked_);
    let kept = kept.recv_timeout(PATIENCE).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| owner.server.stop());
        removed(SHARD, kept);
    });
    assert!(answer.recv_timeout(PATIENCE).unwrap().is_ok());
    assert!(PeerServer::start(owner.server.address(), &node.forwarder).is_ok());
}

/// What a hand-over before a restart is like.
#[test]
fn an_owner_that_stops_in_good_order_leaves_nothing_unknown() {
    let first = Node::new(2, removed);
    let second = Node::new(3, removed);
    let node = Node::new(1, refuses);
    node.believes(&first);
    std::thread::scope(|scope| {
        // Fewer than may wait for one peer, and some are left for the second.
        let (send, answers) = sync_channel(8_000);
        let forwarder = &node.forwarder;
        scope.spawn(move || {
            for number in 0..20_000 {
                let (asked, answer) = asked(&number.to_string());
                forwarder.ask(SHARD, asked);
                send.send(answer).unwrap();
            }
        });
        for (number, answer) in answers.iter().enumerate() {
            if number == 2_000 {
                first.server.stop();
                node.believes(&second);
            }
            let answer = answer.recv_timeout(PATIENCE).unwrap();
            assert!(answer.is_ok(), "{number}: {answer:?}");
        }
    });
    let counts = node.forwarder.counts();
    assert_eq!((counts.unknown, counts.unavailable), (0, 0));
    assert!(second.forwarder.counts().answered > 0);
    assert!(first.forwarder.counts().answered >= 2_000);
}

#[test]
fn without_tls_there_is_only_loopback() {
    let node = Node::new(1, refuses);
    let refused = PeerServer::start(([0, 0, 0, 0], 0).into(), &node.forwarder);
    assert!(matches!(refused, Err(PeersError::NotLoopback { .. })));
    // An address for documents: nobody is there, and nobody is called.
    node.map.give(SHARD, Some((NodeId(2), "192.0.2.1:7")));
    let (asked_, answer) = asked("a");
    node.forwarder.ask(SHARD, asked_);
    until("a refusal", || node.closed(CloseReason::NotLoopback) > 0);
    node.forwarder.stop();
    let answer = answer.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(answer, Err(TimerError::ShardUnavailable { .. })));
}

/// An authority, and certificates that it has signed.
struct Authority<'a> {
    directory: &'a Path,
    name: &'a str,
}

impl<'a> Authority<'a> {
    fn new(directory: &'a Path, name: &'a str) -> Self {
        let authority = Self { directory, name };
        let (key, pem) = (authority.path("key"), authority.path("pem"));
        let subject = format!("/CN={name}");
        openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            &subject,
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-keyout",
            text(&key),
            "-out",
            text(&pem),
        ]);
        authority
    }

    fn path(&self, end: &str) -> PathBuf {
        self.directory.join(format!("{}.{end}", self.name))
    }

    /// A certificate for loopback, believed by those who believe `ca`.
    fn node(&self, ca: &Self) -> PeerTls {
        let end = |end: &str| self.path(&format!("node.{end}"));
        let (key, request, pem, extra) = (end("key"), end("csr"), end("pem"), end("ext"));
        let names = "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";
        fs::write(&extra, names).unwrap();
        openssl(&[
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            "/CN=node",
            "-keyout",
            text(&key),
            "-out",
            text(&request),
        ]);
        openssl(&[
            "x509",
            "-req",
            "-in",
            text(&request),
            "-CA",
            text(&self.path("pem")),
            "-CAkey",
            text(&self.path("key")),
            "-set_serial",
            "7",
            "-days",
            "2",
            "-extfile",
            text(&extra),
            "-out",
            text(&pem),
        ]);
        PeerTls::from_files(&pem, &key, &ca.path("pem")).unwrap()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn openssl(arguments: &[&str]) {
    let made = Command::new("openssl").args(arguments).output();
    let made = made.expect("openssl is installed");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
}

#[test]
fn only_a_node_with_a_certificate_of_ours_is_answered() {
    who_has_no_certificate_of_ours_is_closed();
}

pub(super) fn who_has_no_certificate_of_ours_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let ours = Authority::new(directory.path(), "ours");
    let others = Authority::new(directory.path(), "others");
    let with = |id, tls: Option<PeerTls>, here: fn(Shard, Asked)| {
        let config = PeersConfig {
            tls,
            answer_within: Duration::from_millis(500),
            ..PeersConfig::new(7, NodeId(id))
        };
        Node::of(config, Answers(here))
    };
    let ask = |node: &Node, owner: &Node| {
        node.believes(owner);
        let (asked, answer) = asked("a");
        node.forwarder.ask(SHARD, asked);
        answer.recv_timeout(PATIENCE).unwrap()
    };
    let owner = with(2, Some(ours.node(&ours)), removed);
    let known = with(1, Some(ours.node(&ours)), refuses);
    assert!(ask(&known, &owner).is_ok());
    assert_eq!(owner.closed(CloseReason::Certificate), 0);

    // It believes our certificate, and has one of its own authority.
    let stranger = with(3, Some(others.node(&ours)), refuses);
    let answer = ask(&stranger, &owner);
    assert!(
        matches!(answer, Err(TimerError::ShardUnavailable { .. })),
        "{answer:?}"
    );
    assert!(owner.closed(CloseReason::Certificate) > 0);
    assert!(stranger.closed(CloseReason::Certificate) > 0);

    // It has none.
    let before = owner.closed(CloseReason::Certificate);
    let plain = with(4, None, refuses);
    let answer = ask(&plain, &owner);
    assert!(
        matches!(answer, Err(TimerError::ShardUnavailable { .. })),
        "{answer:?}"
    );
    assert!(owner.closed(CloseReason::Certificate) > before);
    assert_eq!(owner.forwarder.counts().answered, 1);

    // And nobody is asked who cannot show one.
    let disguised = with(5, Some(others.node(&others)), removed);
    let answer = ask(&known, &disguised);
    assert!(
        matches!(answer, Err(TimerError::ShardUnavailable { .. })),
        "{answer:?}"
    );
    assert!(known.closed(CloseReason::Certificate) > 0);
    assert_eq!(disguised.forwarder.counts().answered, 0);
}

#[test]
fn files_that_do_not_go_together_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let ours = Authority::new(directory.path(), "ours");
    ours.node(&ours);
    let (pem, key, ca) = (
        ours.path("node.pem"),
        ours.path("node.key"),
        ours.path("pem"),
    );
    let refused = PeerTls::from_files(&pem, &ours.path("key"), &ca);
    assert!(
        matches!(refused, Err(PeersError::Certificate { .. })),
        "{refused:?}"
    );
    let refused = PeerTls::from_files(&key, &key, &ca);
    assert!(matches!(refused, Err(PeersError::File { path, .. }) if path == key));
    let refused = PeerTls::from_files(&pem, &key, &key);
    assert!(matches!(refused, Err(PeersError::File { path, .. }) if path == key));
}

/// Certificates end, and a node had to be started again for each new one.
#[test]
fn a_certificate_is_read_again_when_its_file_changes_and_stays_if_it_is_bad() {
    use countwheel_time::Clock;

    const HOUR: Duration = Duration::from_secs(3_600);
    let directory = tempfile::tempdir().unwrap();
    let ours = Authority::new(directory.path(), "ours");
    let later = Authority::new(directory.path(), "later");
    let both = directory.path().join("both.pem");
    let authorities = [&ours, &later].map(|it| fs::read(it.path("pem")).unwrap());
    fs::write(&both, authorities.concat()).unwrap();
    ours.node(&ours);
    let (pem, key) = (ours.path("node.pem"), ours.path("node.key"));
    let tls = PeerTls::from_files(&pem, &key, &both).unwrap();
    let with = |id, tls: PeerTls, here: fn(Shard, Asked)| {
        let config = PeersConfig {
            tls: Some(tls),
            answer_within: Duration::from_millis(500),
            ..PeersConfig::new(7, NodeId(id))
        };
        Node::of(config, Answers(here))
    };
    let owner = with(2, tls.clone(), removed);
    // Who believes the later authority alone takes the certificate once it is of that one.
    let caller = later.node(&later);
    let is_answered = |id| {
        let node = with(id, caller.clone(), refuses);
        node.believes(&owner);
        let (asked, answer) = asked("a");
        node.forwarder.ask(SHARD, asked);
        answer.recv_timeout(PATIENCE).unwrap().is_ok()
    };
    let soon = SystemClock::new().timestamp() + HOUR;
    let look = || tls.look("127.0.0.1", soon);
    assert!(!look() && !is_answered(3));

    // The certificate is there before its key.
    fs::copy(later.path("node.pem"), &pem).unwrap();
    assert!(!look());
    let problem = tls.problem().expect("they do not go together");
    assert!(!problem.contains('\n'), "{problem}");
    assert!(!is_answered(4));
    fs::copy(later.path("node.key"), &key).unwrap();
    assert!(look() && !look());
    assert_eq!(tls.problem(), None);
    assert!(is_answered(5));
    let left = tls.good_for_another("127.0.0.1", soon);
    assert!((46 * HOUR..48 * HOUR).contains(&left), "{left:?}");

    // What is bad, gone, or is not taken by others, is not shown.
    fs::write(&pem, "nothing").unwrap();
    assert!(!look() && tls.problem().is_some());
    fs::remove_file(&pem).unwrap();
    assert!(!look() && tls.problem().is_some());
    // A pipe that nobody writes to.
    let made = Command::new("mkfifo").arg(&pem).status();
    assert!(made.unwrap().success());
    assert!(!look());
    let problem = tls.problem().expect("it is a pipe");
    assert!(problem.contains("no regular file"), "{problem}");
    fs::remove_file(&pem).unwrap();
    fs::copy(later.path("node.pem"), &pem).unwrap();
    assert!(!tls.look("other.example", soon));
    let problem = tls.problem().expect("it names another host");
    assert!(problem.contains("other.example"), "{problem}");
    assert!(is_answered(6));
    assert!(look() && tls.problem().is_none());
    let later = soon + 72 * HOUR;
    assert_eq!(tls.good_for_another("127.0.0.1", later), Duration::ZERO);
}

/// A node started with what its peers refuse, and took shards that nobody could ask for.
#[test]
fn a_node_knows_whether_others_will_take_its_certificate() {
    use countwheel_time::Clock;

    const HOUR: Duration = Duration::from_secs(3_600);
    let directory = tempfile::tempdir().unwrap();
    let ours = Authority::new(directory.path(), "ours");
    let other = Authority::new(directory.path(), "other");
    // Certificates begin with the second in which they are made.
    let soon = SystemClock::new().timestamp() + HOUR;
    let good = ours.node(&ours);
    good.demand_good_for("127.0.0.1", soon).unwrap();
    // It knows the authority of the others, and is not of it.
    let stranger = other.node(&ours);
    for (tls, host, at, problem) in [
        (&good, "127.0.0.2", soon, "127.0.0.2"),
        (&good, "a.example", soon, "a.example"),
        (&good, "not a host", soon, "not a host"),
        (&good, "127.0.0.1", soon + HOUR * 72, "expired"),
        (&stranger, "127.0.0.1", soon, "UnknownIssuer"),
    ] {
        let refused = tls.demand_good_for(host, at);
        let said = refused.unwrap_err().to_string();
        assert!(said.contains(problem), "{problem}: {said}");
    }
}

/// Counts what it is told to, of whatever shards it is asked.
struct Counts(Vec<(Shard, Counted)>);

impl Here for Counts {
    fn ask(&self, shard: Shard, asked: Asked) {
        asked.refuse(TimerError::NotOwned { shard });
    }

    fn counts(&self, _: &[Shard]) -> BTreeMap<Shard, Counted> {
        self.0.iter().cloned().collect()
    }
}

fn counted(pending: u64) -> Counted {
    let queue = QueueName::new("orders").unwrap();
    let by_state = [pending, 1, 2, 3];
    let exact = pending.is_multiple_of(2);
    Counted {
        queues: vec![QueueCounts { queue, by_state }],
        exact,
    }
}

fn counts_of(node: &Node, shards: &[Shard]) -> BTreeMap<Shard, Counted> {
    Elsewhere::counts(&*node.forwarder, shards)
}

#[test]
fn the_owners_of_shards_are_asked_for_counts() {
    each_owner_counts_its_own();
}

pub(super) fn each_owner_counts_its_own() {
    let shards: Vec<_> = (0..6).map(Shard).collect();
    let of = |id, counts| Node::of(PeersConfig::new(7, NodeId(id)), Counts(counts));
    // It says what it was not asked for, and not what it was: the shard 1 is not its own any more.
    let one = of(2, vec![(shards[0], counted(7)), (shards[4], counted(50))]);
    let other = of(3, vec![(shards[2], counted(8)), (shards[0], counted(60))]);
    let node = Node::new(1, refuses);
    assert!(counts_of(&node, &shards).is_empty());
    for (shard, owner) in [(0, &one), (1, &one), (2, &other), (3, &node)] {
        let address = owner.server.address().to_string();
        let owner = (owner.id, address.as_str());
        node.map.give(shards[shard], Some(owner));
    }
    let found = counts_of(&node, &shards);
    let own = [(shards[0], counted(7)), (shards[2], counted(8))];
    assert_eq!(found, own.into());
    // One frame each.
    assert_eq!(node.forwarder.counts().frames_sent, 2);
    assert_eq!(node.forwarder.counts().frames_received, 2);
}

#[test]
fn who_does_not_count_in_time_is_left_out() {
    let owner = Node::of(
        PeersConfig::new(7, NodeId(2)),
        Counts(vec![(SHARD, counted(4))]),
    );
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let node = Node::new(1, refuses);
    node.believes(&owner);
    node.map.give(Shard(4), Some((NodeId(4), &silent)));
    node.map.give(Shard(5), Some((NodeId(5), "127.0.0.1:1")));
    let found = counts_of(&node, &[SHARD, Shard(4), Shard(5)]);
    assert_eq!(found, [(SHARD, counted(4))].into());
    node.forwarder.stop();
    assert!(counts_of(&node, &[SHARD]).is_empty());
}

#[test]
fn timers_count_what_other_nodes_have() {
    let (store, shards) = (MemoryStore::new(7), Shards::new(8).unwrap());
    let open = |owned: std::ops::Range<u16>| {
        let (clock, config) = (Arc::new(SystemClock::new()), Config::default());
        let owned: Vec<_> = owned.map(Shard).collect();
        Timers::open_divided(store.clone(), shards, owned, inline(|_| ()), clock, config).unwrap()
    };
    let timers = [open(0..4), open(4..8)];
    let [one, other] = [1_u16, 2].map(|id| {
        let here = timers[usize::from(id) - 1].clone();
        Node::of(PeersConfig::new(7, NodeId(id.into())), here)
    });
    for number in 0..8 {
        let owner = if number < 4 { &one } else { &other };
        let address = owner.server.address().to_string();
        for node in [&one, &other] {
            let owner = (owner.id, address.as_str());
            node.map.give(Shard(number), Some(owner));
        }
    }
    for (timers, node) in timers.iter().zip([&one, &other]) {
        timers.on_elsewhere(Arc::<Forwarder>::clone(&node.forwarder));
    }
    for order in 0..100_u64 {
        let due = Duration::from_secs(60);
        timers[0].set(("unpaid", order), due, "close it").unwrap();
    }
    for (timers, node) in timers.iter().zip([&one, &other]) {
        let before = node.forwarder.counts().frames_received;
        let counted = timers.counted().unwrap();
        let pending = counted.queues.iter().map(|it| it.of(StateKind::Pending));
        assert_eq!((pending.sum::<u64>(), counted.exact), (100, true));
        // The store is in memory, and would have known as well.
        assert!(node.forwarder.counts().frames_received > before);
    }
}

/// Says back what it hears, and who said it; one word it does not know.
struct Echo;

impl Here for Echo {
    fn ask(&self, shard: Shard, asked: Asked) {
        refuses(shard, asked);
    }

    fn word(&self, from: NodeId, word: &[u8]) -> Option<Vec<u8>> {
        let answer = format!("{} said {}", from.0, String::from_utf8_lossy(word));
        (word != b"what?").then(|| answer.into_bytes())
    }
}

#[test]
fn a_word_is_answered_or_not_understood_or_lost() {
    let other = Node::of(PeersConfig::new(7, NodeId(2)), Echo);
    let node = Node::new(1, refuses);
    let address = other.server.address().to_string();
    let say = |to, address: &str, word: &str| {
        let told = node
            .forwarder
            .say(NodeId(to), address, word.as_bytes().to_vec());
        super::bytes::block_on(told).ok()
    };
    let answered = |text: &str| Some(Word::Answered(text.as_bytes().to_vec()));
    assert_eq!(say(2, &address, "hello"), answered("1 said hello"));
    assert_eq!(
        say(2, &address, "hello again"),
        answered("1 said hello again")
    );
    assert_eq!(say(2, &address, "what?"), Some(Word::NotUnderstood));
    // What is not said in time is lost.
    let lost = node
        .forwarder
        .say(NodeId(3), "127.0.0.1:1", b"hello".to_vec());
    node.forwarder.stop();
    assert!(super::bytes::block_on(lost).is_err());
    assert_eq!(say(2, &address, "hello"), None);
}
