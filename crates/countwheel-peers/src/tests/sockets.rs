//! Other sides that do not do as they should, by hand.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use countwheel_cluster::NodeId;
use countwheel_durable::{Asked, Elsewhere, Response, SystemClock, TimerError, Was};

use super::holding::{Answer, Answers, Map, asked, fire};
use super::nodes::{Node, PATIENCE, SHARD, until};
use crate::frame::{self, Ask, Encoded, FRAME_MAX, Writing};
use crate::hello::{Hello, SPOKEN, Standing, Versions};
use crate::server::{self, Going};
use crate::wire::{AskHead, WireBody};
use crate::{CloseReason, Forwarder, PeersConfig, Word};

const OWNER: NodeId = NodeId(2);

fn write(stream: &mut TcpStream, frame: &[u8]) {
    let length = u32::try_from(frame.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length, frame].concat()).unwrap();
}

/// The next frame; `None` at the end.
fn read(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).ok()?;
    Some(frame)
}

/// The next frame with questions.
fn read_asks(stream: &mut TcpStream) -> Option<Vec<Ask>> {
    loop {
        let asks = frame::read_asks(read(stream)?).unwrap();
        if !asks.is_empty() {
            return Some(asks);
        }
        write(stream, &Writing::answers().finish());
    }
}

fn hello(from: NodeId, to: NodeId) -> Hello {
    Hello {
        standing: Standing::Welcome,
        versions: SPOKEN,
        cluster: 7,
        from,
        to,
    }
}

/// Takes a connection, and says who it is.
fn accept(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let caller = Hello::read(&read(&mut stream).unwrap()).unwrap();
    assert_eq!((caller.from, caller.to), (NodeId(1), OWNER));
    write(&mut stream, &hello(OWNER, caller.from).write());
    stream
}

/// A node that asks whoever listens there.
fn asker(answer_within: Duration) -> (Arc<Forwarder>, TcpListener) {
    asker_of(PeersConfig {
        answer_within,
        ..PeersConfig::new(7, NodeId(1))
    })
}

fn asker_of(config: PeersConfig) -> (Arc<Forwarder>, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let map = Arc::new(Map::default());
    let address = listener.local_addr().unwrap().to_string();
    map.give(SHARD, Some((OWNER, &address)));
    let here = Answers(|_, asked: Asked| asked.refuse(TimerError::NotOwned { shard: SHARD }));
    let clock = Arc::new(SystemClock::new());
    let forwarder = Forwarder::start(config, map, Arc::new(here), clock).unwrap();
    (forwarder, listener)
}

#[test]
fn what_was_sent_and_not_answered_is_unknown_and_never_sent_again() {
    let (forwarder, listener) = asker(PATIENCE);
    let (first, answer) = asked("a");
    forwarder.ask(SHARD, first);
    let mut stream = accept(&listener);
    assert_eq!(read_asks(&mut stream).unwrap().len(), 1);
    drop(stream);
    let unknown = answer.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(unknown, Err(TimerError::Unknown(_))),
        "{unknown:?}"
    );

    let (second, _answer) = asked("b");
    forwarder.ask(SHARD, second);
    let mut stream = accept(&listener);
    let asks = read_asks(&mut stream).unwrap();
    let wire = asks[0].what.wire().unwrap().remove(0).request().unwrap();
    assert_eq!((asks.len(), wire), (1, fire("b")));
    assert_ne!(asks[0].head.id, 1, "no number is given twice");
    assert_eq!(forwarder.counts().unknown, 1);
}

#[test]
fn an_answer_that_comes_too_late_is_nobodys() {
    let (forwarder, listener) = asker(Duration::from_millis(300));
    let (asked, answer) = asked("a");
    forwarder.ask(SHARD, asked);
    let mut stream = accept(&listener);
    let ask = read_asks(&mut stream).unwrap().remove(0);
    assert!((1..=300).contains(&ask.head.left_ms));
    assert_eq!((ask.head.hops, ask.head.map), (1, 1));
    let unknown = answer.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(unknown, Err(TimerError::Unknown(_))),
        "{unknown:?}"
    );

    let done = Ok(vec![Response::Removed(Was::Dead)]);
    let (id, body) = (ask.head.id, WireBody::of(&done));
    let mut frame = Writing::answers();
    frame.answer(&frame::answer(&crate::wire::WireAnswer {
        id,
        map: 1,
        body,
    }));
    write(&mut stream, &frame.finish());
    until("a late answer", || forwarder.counts().late == 1);
}

#[test]
fn an_owner_that_is_not_there_yet_is_called_again() {
    let (forwarder, listener) = asker(PATIENCE);
    let (asked, answer) = asked("a");
    forwarder.ask(SHARD, asked);
    // Nothing but a hello: nothing was sent, so all of it is certain.
    for _ in 0..2 {
        drop(listener.accept().unwrap());
    }
    let mut stream = accept(&listener);
    let ask = read_asks(&mut stream).unwrap().remove(0);
    let mut frame = Writing::answers();
    let done = Ok(vec![Response::Removed(Was::Dead)]);
    let (id, body) = (ask.head.id, WireBody::of(&done));
    frame.answer(&frame::answer(&crate::wire::WireAnswer {
        id,
        map: 1,
        body,
    }));
    write(&mut stream, &frame.finish());
    assert!(answer.recv_timeout(PATIENCE).unwrap().is_ok());
    assert_eq!(forwarder.counts().unknown, 0);
}

#[test]
fn answers_that_are_none_close_the_connection() {
    for (frame, reason) in [
        (vec![9, 9, 9], CloseReason::Malformed),
        (vec![0; FRAME_MAX + 1], CloseReason::TooLong),
    ] {
        let (forwarder, listener) = asker(PATIENCE);
        let (asked, answer) = asked("a");
        forwarder.ask(SHARD, asked);
        let mut stream = accept(&listener);
        read_asks(&mut stream).unwrap();
        let length = u32::try_from(frame.len()).unwrap().to_be_bytes();
        // It is closed after the length, maybe before the rest is written.
        drop(stream.write_all(&[&length, &frame[..]].concat()));
        let unknown = answer.recv_timeout(PATIENCE).unwrap();
        assert!(
            matches!(unknown, Err(TimerError::Unknown(_))),
            "{unknown:?}"
        );
        until("a close", || forwarder.counts().closed(reason) == 1);
    }
}

#[test]
fn who_says_nothing_is_given_up() {
    let config = PeersConfig {
        silence: Duration::from_millis(300),
        answer_within: Duration::from_secs(2),
        ..PeersConfig::new(7, NodeId(1))
    };
    let (forwarder, listener) = asker_of(config);
    let (asked, answer) = asked("a");
    forwarder.ask(SHARD, asked);
    let mut stream = accept(&listener);
    assert_eq!(read_asks(&mut stream).unwrap().len(), 1);
    // It is asked whether it is there, and does not say so.
    until("a close", || {
        forwarder.counts().closed(CloseReason::Silent) == 1
    });
    // It may be stopped, and go on with what it was asked.
    assert!(answer.try_recv().is_err(), "before the deadline");
    let unknown = answer.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(unknown, Err(TimerError::Unknown(_))),
        "{unknown:?}"
    );
    assert_eq!(
        frame::read_asks(read(&mut stream).unwrap()).unwrap().len(),
        0
    );
}

#[test]
fn who_reads_no_answers_is_given_up() {
    let config = PeersConfig {
        silence: Duration::from_millis(200),
        ..PeersConfig::new(7, OWNER)
    };
    let long = "x".repeat(900);
    let here = Answers(move |_, asked: Asked| {
        let reason = long.clone();
        asked.refuse(TimerError::Unavailable { reason });
    });
    let owner = Node::of(config, here);
    let mut stream = call(&owner, &hello(NodeId(1), OWNER));
    read(&mut stream).unwrap();
    let what = Encoded::of(&[fire("a")], false).unwrap();
    let mut frame = Writing::asks();
    for id in 0..1_000 {
        frame.ask(&head(id, 60_000, 1, &what), what.bytes());
    }
    let frame = frame.finish();
    let length = u32::try_from(frame.len()).unwrap().to_be_bytes();
    let frame = [&length, &frame[..]].concat();
    // It asks and asks, and so is not silent.
    while stream.write_all(&frame).is_ok() {}
    until("a close", || {
        owner.forwarder.counts().closed(CloseReason::Silent) == 1
    });
}

/// A node whose timers remove everything.
fn owner() -> Node {
    let config = PeersConfig::new(7, OWNER);
    Node::of(
        config,
        Answers(|_, asked: Asked| {
            let responses = vec![Response::Removed(Was::Dead); asked.requests().len()];
            asked.answer(Ok(responses));
        }),
    )
}

fn call(owner: &Node, hello: &Hello) -> TcpStream {
    let mut stream = TcpStream::connect(owner.server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write(&mut stream, &hello.write());
    stream
}

#[test]
fn callers_that_do_not_belong_here_are_closed_and_counted() {
    let owner = owner();
    let good = hello(NodeId(1), OWNER);
    let later = Versions { from: 3, to: 4 };
    for (hello, standing, reason) in [
        (
            Hello {
                versions: later,
                ..good
            },
            Standing::Version,
            CloseReason::Version,
        ),
        (
            Hello { cluster: 8, ..good },
            Standing::Cluster,
            CloseReason::Cluster,
        ),
        (
            Hello {
                to: NodeId(9),
                ..good
            },
            Standing::Node,
            CloseReason::Node,
        ),
    ] {
        let mut stream = call(&owner, &hello);
        let reply = Hello::read(&read(&mut stream).unwrap()).unwrap();
        assert_eq!((reply.standing, reply.versions), (standing, SPOKEN));
        assert_eq!(read(&mut stream), None);
        until("a close", || owner.forwarder.counts().closed(reason) == 1);
    }
    let mut stream = TcpStream::connect(owner.server.address()).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(read(&mut stream), None);
    let closed = |reason| owner.forwarder.counts().closed(reason);
    until("a close", || closed(CloseReason::TooLong) == 1);
    assert_eq!(owner.forwarder.counts().answered, 0);
}

fn head(id: u64, left_ms: u32, hops: u8, what: &Encoded) -> AskHead {
    AskHead {
        id,
        shard: SHARD.0,
        map: 1,
        left_ms,
        hops,
        is_batch: what.is_batch,
        requests: what.requests,
    }
}

#[test]
fn questions_that_are_none_close_the_connection() {
    for (frame, reason) in [
        (vec![9, 9, 9], CloseReason::Malformed),
        (vec![0; FRAME_MAX + 1], CloseReason::TooLong),
    ] {
        let owner = owner();
        let mut stream = call(&owner, &hello(NodeId(1), OWNER));
        read(&mut stream).unwrap();
        let length = u32::try_from(frame.len()).unwrap().to_be_bytes();
        drop(stream.write_all(&[&length, &frame[..]].concat()));
        assert_eq!(read(&mut stream), None);
        until("a close", || owner.forwarder.counts().closed(reason) == 1);
    }
}

#[test]
fn what_cannot_be_done_here_is_refused_and_the_connection_stays() {
    let owner = owner();
    let mut stream = call(&owner, &hello(NodeId(1), OWNER));
    read(&mut stream).unwrap();
    let what = Encoded::of(&[fire("a")], false).unwrap();
    // The queue's name breaks a rule, a key as long as its own length says.
    let mut bad = Writing::asks();
    let named = [3, 1, b'/', 1, b'a'];
    bad.ask(&head(1, 1_000, 1, &what), &named);
    bad.ask(&head(2, 0, 1, &what), what.bytes());
    bad.ask(&head(3, 1_000, 3, &what), what.bytes());
    bad.ask(&head(4, 1_000, 2, &what), what.bytes());
    write(&mut stream, &bad.finish());
    let mut found = Vec::new();
    while found.len() < 4 {
        let frame = read(&mut stream).unwrap();
        for answer in frame::read_answers(&frame).unwrap() {
            found.push((answer.id, format!("{:?}", answer.body)));
        }
    }
    found.sort();
    assert!(found[0].1.starts_with("Refused"), "{found:?}");
    assert_eq!(found[1].1, "Expired");
    assert_eq!(found[2].1, "NotOwner");
    assert_eq!(found[3].1, "Done([RemovedDead])");
    assert_eq!(owner.forwarder.counts().hops_refused, 1);
    // An empty frame asks whether it is there.
    write(&mut stream, &Writing::asks().finish());
    let here = read(&mut stream).unwrap();
    assert_eq!(frame::read_answers(&here).unwrap().len(), 0);
}

#[test]
fn what_nobody_waits_for_is_not_done() {
    what_has_expired_is_not_done();
}

pub(super) fn what_has_expired_is_not_done() {
    let (send, took) = channel();
    let here = Answers(move |_, asked: Asked| {
        send.send(()).unwrap();
        asked.refuse(TimerError::NotFound);
    });
    let node = Node::of(PeersConfig::new(7, OWNER), here);
    let (going, mut answers) = tokio::sync::mpsc::unbounded_channel();
    let inner = Arc::clone(&node.forwarder.inner);
    let asked = server::Asked::new(inner, NodeId(1), going);
    let what = Encoded::of(&[fire("a")], false).unwrap();
    for (left_ms, is_done) in [(0, false), (1, true)] {
        let head = head(1, left_ms, 1, &what);
        let what = what.clone();
        asked.take(Ask { head, what }, Vec::new());
        assert_eq!(took.try_recv().is_ok(), is_done);
        assert!(matches!(answers.try_recv(), Ok(Going::Answer(_))));
    }
}

#[test]
fn more_connections_than_may_be_are_closed() {
    let config = PeersConfig {
        max_connections: 1,
        ..PeersConfig::new(7, OWNER)
    };
    let owner = Node::of(config, Answers(|_, asked: Asked| drop(asked)));
    let mut first = call(&owner, &hello(NodeId(1), OWNER));
    assert!(read(&mut first).is_some());
    let mut second = TcpStream::connect(owner.server.address()).unwrap();
    assert_eq!(read(&mut second), None);
    assert_eq!(owner.forwarder.counts().closed(CloseReason::TooMany), 1);
    drop(first);
    let closed = || owner.forwarder.counts().closed(CloseReason::Ended) == 1;
    until("a free place", closed);
    // The place is given back a moment later.
    let again = || thread::scope(|_| read(&mut call(&owner, &hello(NodeId(1), OWNER))).is_some());
    until("another connection", again);
}

/// They kept a node that started from being heard, as long as anybody opened more of them.
#[test]
pub(super) fn connections_that_say_nothing_keep_nobody_out() {
    let owner = owner();
    let silent = || TcpStream::connect(owner.server.address()).unwrap();
    let mut known = call(&owner, &hello(NodeId(1), OWNER));
    assert!(read(&mut known).is_some());
    let mut all: Vec<_> = (0..300).map(|_| silent()).collect();
    let mut node = call(&owner, &hello(NodeId(3), OWNER));
    assert!(read(&mut node).is_some(), "the node is not heard");
    // The oldest connection gave way. No connection that has said its hello did.
    all[0].set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(read(&mut all[0]), None);
    let closed = owner.forwarder.counts().closed(CloseReason::TooMany);
    assert!((1..=300 + 2 - 256).contains(&closed), "{closed}");
    for mut it in [known, node] {
        write(&mut it, &Writing::asks().finish());
        assert!(read(&mut it).is_some(), "it says that it is here");
    }
}

/// Passes bytes on to `owner`. Of the first connection only so many there and so many back; then it ends.
fn proxy(owner: std::net::SocketAddr, there: usize, back: usize) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let listening = listener.try_clone().unwrap();
    thread::spawn(move || {
        let mut limits = Some((there, back));
        for caller in listening.incoming() {
            let (Ok(caller), Ok(called)) = (caller, TcpStream::connect(owner)) else {
                return;
            };
            let (there, back) = limits.take().unwrap_or((usize::MAX, usize::MAX));
            for (mut from, mut to, bytes) in [
                (
                    caller.try_clone().unwrap(),
                    called.try_clone().unwrap(),
                    there,
                ),
                (called, caller, back),
            ] {
                thread::spawn(move || {
                    let mut passing = (&mut from).take(bytes as u64);
                    drop(std::io::copy(&mut passing, &mut to));
                    for end in [from, to] {
                        drop(end.shutdown(std::net::Shutdown::Both));
                    }
                });
            }
        }
    });
    listener
}

/// What becomes of a question whose connection is cut there: how often it was done, and the answer.
fn cut(there: usize, back: usize) -> (usize, Answer) {
    let done = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&done);
    let here = Answers(move |_, asked: Asked| {
        if asked.requests() == [fire("a")] {
            count.fetch_add(1, Ordering::SeqCst);
        }
        asked.answer(Ok(vec![Response::Removed(Was::Dead)]));
    });
    let owner = Node::of(PeersConfig::new(7, OWNER), here);
    let between = proxy(owner.server.address(), there, back);
    let node = Node::of(
        PeersConfig::new(7, NodeId(1)),
        Answers(|_, asked: Asked| asked.refuse(TimerError::NotOwned { shard: SHARD })),
    );
    let address = between.local_addr().unwrap().to_string();
    node.map.give(SHARD, Some((OWNER, &address)));
    let (asked, answer) = asked("a");
    node.forwarder.ask(SHARD, asked);
    let answer = answer.recv_timeout(PATIENCE).unwrap();
    // Others over the same way get through, at the latest on the next connection.
    until("another answer", || {
        let (after, answered) = super::holding::asked("b");
        node.forwarder.ask(SHARD, after);
        answered.recv_timeout(PATIENCE).unwrap().is_ok()
    });
    (done.load(Ordering::SeqCst), answer)
}

#[test]
fn a_question_whose_way_is_cut_is_done_once_or_not_at_all() {
    // A hello has 53 bytes with its length, this question 31 and its answer 10.
    let there = (0..100).step_by(3).map(|bytes| (bytes, usize::MAX));
    let back = (0..75).step_by(3).map(|bytes| (usize::MAX, bytes));
    let cuts: Vec<_> = there.chain(back).collect();
    let results: Vec<_> = thread::scope(|scope| {
        let parts: Vec<_> = cuts
            .chunks(cuts.len().div_ceil(4))
            .map(|part| {
                scope.spawn(move || {
                    let part = part.iter();
                    part.map(|&(there, back)| (there, back, cut(there, back)))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap())
            .collect()
    });
    let (mut known, mut unknown) = (0, 0);
    for (there, back, (done, answer)) in results {
        match answer {
            Ok(_) => {
                assert_eq!(done, 1, "cut after {there} and {back}");
                known += 1;
            }
            Err(TimerError::Unknown(_)) => {
                assert!(done <= 1, "cut after {there} and {back}");
                assert!(
                    there > 53 || back > 53,
                    "nothing was sent before the hello came back"
                );
                unknown += 1;
            }
            other => panic!("cut after {there} and {back}: {other:?}"),
        }
    }
    assert!(known > 30 && unknown > 10, "{known} and {unknown}");
}

/// A node of the version before takes no words: nothing is sent.
#[test]
fn a_word_to_a_node_of_an_earlier_version_is_not_said() {
    let (forwarder, listener) = asker(PATIENCE);
    let address = listener.local_addr().unwrap().to_string();
    let told = forwarder.say(OWNER, &address, b"hello".to_vec());
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    read(&mut stream).unwrap();
    let earlier = Hello {
        versions: Versions { from: 1, to: 1 },
        ..hello(OWNER, NodeId(1))
    };
    write(&mut stream, &earlier.write());
    let told = super::bytes::block_on(told);
    assert_eq!(told, Ok(Word::NotUnderstood));
    let (first, _answer) = asked("a");
    forwarder.ask(SHARD, first);
    assert_eq!(read_asks(&mut stream).unwrap().len(), 1);
}
