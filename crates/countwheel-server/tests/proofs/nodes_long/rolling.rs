//! Three nodes under load are stopped and started, one after the other: requests to the other two are answered, and
//! the timers of a shard that changes hands pause for a moment alone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::caller::{self, Caller};
use crate::harness::figures::{self, Spans};
use crate::harness::process::Server;
use crate::harness::receiver::Receiver;
use crate::harness::{PATIENCE, now_us, turn, wait, wait_until};
use crate::nodes::Nodes;

/// How often a shard that is watched fires.
const EVERY: Duration = Duration::from_millis(20);
/// The shortest interval that a timer can have.
const INTERVAL: Duration = Duration::from_millis(100);
/// How many tags are watched, each of one shard.
const TAGS: u64 = 8;
/// Between two requests of a caller.
const BETWEEN: Duration = Duration::from_millis(5);

/// What one node answered to one request, and when it was sent.
struct Answered {
    sent_us: u64,
    status: u16,
}

/// Sets timers at one node until the end; while nobody listens there, it waits.
fn call(
    server: std::net::SocketAddr,
    node: usize,
    url: &str,
    is_over: &AtomicBool,
) -> Vec<Answered> {
    let mut answers = Vec::new();
    let body = json!({"in": "1h", "target": {"url": url}});
    let mut caller = None;
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let path = format!("/v1/queues/calls/timers/call-{node}-{}", number % 500);
        caller = caller.or_else(|| Caller::connect(server));
        let sent_us = now_us();
        let reply = caller
            .as_mut()
            .and_then(|it| it.ask("PUT", &path, Some(&body)));
        match reply {
            Some(reply) => answers.push(Answered {
                sent_us,
                status: reply.status,
            }),
            None => caller = None,
        }
        wait(BETWEEN);
    }
    answers
}

/// Timers of one shard for each tag, one of which is due each [`EVERY`].
fn watch(server: &Server, url: &str) {
    let mut caller = server.caller();
    let start = now_us() + 1_000_000;
    for tag in 0..TAGS {
        for number in 0..INTERVAL.as_millis() / EVERY.as_millis() {
            let at = start + u64::try_from(number * EVERY.as_micros()).expect("a moment");
            let body = json!({
                "every": format!("{}ms", INTERVAL.as_millis()),
                "at": caller::moment(at),
                "target": {"url": url},
            });
            let path = format!("/v1/queues/default/timers/%7B{tag}%7D-{number}");
            let reply = caller.ask("PUT", &path, Some(&body)).expect("it answers");
            assert_eq!(reply.status, 201, "{}", reply.body);
        }
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask nodes-long"]
fn a_rolling_restart_refuses_nothing_and_pauses_no_shard_for_long() {
    let _turn = turn();
    let receiver = Receiver::start();
    let sink = Receiver::counting();
    let (nodes, first) = Nodes::start(3);
    let mut all: Vec<Server> = std::iter::once(first).chain(nodes.others).collect();
    watch(&all[0], &receiver.url);
    wait_until("all fire", || receiver.count() > 20 * TAGS);
    let is_over = AtomicBool::new(false);
    let began = now_us();
    // Of each node: from when on it was told to stop, and from when on it was ready again.
    let mut away = Vec::new();
    let mut stops = Vec::new();
    let answers: Vec<Vec<Answered>> = thread::scope(|scope| {
        let callers: Vec<_> = all
            .iter()
            .enumerate()
            .map(|(node, server)| {
                let (address, url, is_over) = (server.address, sink.url.clone(), &is_over);
                scope.spawn(move || call(address, node, &url, is_over))
            })
            .collect();
        wait(Duration::from_secs(2));
        for node in &mut all {
            let told = now_us();
            node.signal(Signal::TERM);
            let ended = node.end_within(PATIENCE).expect("it ends");
            assert!(ended.success(), "{ended}: {}", node.said());
            stops.push(now_us() - told);
            node.restart();
            away.push((told, now_us()));
            wait(Duration::from_secs(1));
        }
        is_over.store(true, Ordering::Relaxed);
        callers
            .into_iter()
            .map(|caller| caller.join().expect("it goes on"))
            .collect()
    });
    let ended = now_us();
    wait_until("what is due is delivered", || {
        let arrivals = receiver.arrivals();
        arrivals.iter().any(|one| one.due_us > ended)
    });

    let is_away = |node: usize, at: u64| {
        let (from, to): (u64, u64) = away[node];
        (from..=to).contains(&at)
    };
    let mut of_others: BTreeMap<u16, u64> = BTreeMap::new();
    let mut of_stopping: BTreeMap<u16, u64> = BTreeMap::new();
    for (node, answers) in answers.iter().enumerate() {
        for answer in answers {
            let counts = match is_away(node, answer.sent_us) {
                true => &mut of_stopping,
                false => &mut of_others,
            };
            *counts.entry(answer.status).or_default() += 1;
        }
    }
    let arrivals = receiver.arrivals();
    let during: Vec<_> = arrivals
        .iter()
        .filter(|one| (began..ended).contains(&one.due_us))
        .collect();
    let late = Spans::new(
        during
            .iter()
            .map(|one| one.at_us.saturating_sub(one.due_us)),
    );
    let mut of_tag: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for one in &during {
        let (tag, _) = one.key.split_once('-').expect("a tag");
        of_tag.entry(tag).or_default().push(one.at_us);
    }
    let pauses = of_tag.values_mut().map(|times| {
        times.sort_unstable();
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.max().unwrap_or(0).saturating_sub(20_000)
    });
    let pauses = Spans::new(pauses);
    let rows = [
        ("answers of nodes that are up", format!("{of_others:?}")),
        ("answers of the node that stops", format!("{of_stopping:?}")),
        ("stop", Spans::new(stops).typical()),
        (
            "start",
            Spans::new(all.iter().flat_map(|one| one.restarts_us.clone())).typical(),
        ),
        ("late", late.ranked()),
        ("longest pause of each shard watched", pauses.ranked()),
    ];
    figures::print("a rolling restart of three nodes under load", &rows);
    assert_eq!(of_tag.len() as u64, TAGS);
    assert!(
        of_others.keys().all(|status| *status < 500),
        "{of_others:?}"
    );
    // To reach is one second for either, on a machine that does nothing else.
    assert!(late.at(99) <= 3 * 1_000_000, "{}", late.ranked());
    assert!(pauses.at(100) <= 3 * 1_000_000, "{}", pauses.ranked());
}
