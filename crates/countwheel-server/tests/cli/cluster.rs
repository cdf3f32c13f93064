//! The commands about the nodes of a cluster.

use serde_json::{Value, json};

use crate::commands::{run, told};
use crate::stub::Stub;

const AS_OF: &str = "2026-03-01T12:00:05.000000Z";

fn glance() -> Value {
    let event = json!({"at": "2026-03-01T12:00:01.250000Z", "event": "takeover", "shard": 3,
        "detail": "the lease of c was over"});
    json!({"node": "a", "as_of": AS_OF, "nodes": {"live": 2, "draining": 1, "over": 0},
        "shards": {"owned": 62, "taking": 1, "handing_over": 0, "overdue": 0, "free": 1},
        "lease_left_ms": 4821, "clock_offset_ms": -3,
        "database": {"reachable": true, "server": "postgres-15", "sync": ["standby1"],
            "durability": "standby", "oldest_snapshot_ms": 90_000},
        "events": [event]})
}

async fn stub(path: &'static str, answer: Value) -> Stub {
    let stub = Stub::start().await;
    stub.inner().cluster.insert(path, answer);
    stub
}

#[tokio::test]
async fn a_cluster_at_a_glance() {
    let stub = stub("/v1/cluster", glance()).await;
    let (out, err, code) = told(&run(&stub, &["cluster", "status"]).await);
    let expected = "\
node      a, lease 4.8 s, clock -3 ms
nodes     2 live, 1 draining, 0 over
shards    62 of 64 owned, 1 taking, 0 handing over, 0 overdue, 1 free
database  postgres-15 answers, durability standby, standby standby1, oldest snapshot 1 min 30 s

AT                       EVENT     SHARD  DETAIL
2026-03-01 12:00:01.250  takeover      3  the lease of c was over
";
    assert_eq!((out.as_str(), err.as_str(), code), (expected, "", Some(0)));
    let (out, _, code) = told(&run(&stub, &["cluster", "status", "--json"]).await);
    assert_eq!(out, format!("{}\n", glance()));
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn nodes_and_shards_are_tables() {
    let node = |name: &str, state: &str, left: u64, peers: Option<&str>| {
        json!({"node": name, "id": "07", "state": state, "here": name == "a", "lease_left_ms": left,
            "shards": 32, "weight": 100, "api": format!("http://{name}:7070"), "peers": peers,
            "version": "0.1.0", "zones": "2026a"})
    };
    let nodes = vec![
        node("a", "live", 4_821, Some("a:7071")),
        node("b", "over", 0, None),
    ];
    let stub = stub("/v1/cluster/nodes", json!({"as_of": AS_OF, "nodes": nodes})).await;
    let (out, _, code) = told(&run(&stub, &["cluster", "nodes"]).await);
    let expected = "\
NODE  STATE  LEASE  SHARDS  VERSION  API            PEERS
a     live   4.8 s      32  0.1.0    http://a:7070  a:7071
b     over    0 ms      32  0.1.0    http://b:7070  -
";
    assert_eq!((out.as_str(), code), (expected, Some(0)));

    let owned = json!({"shard": 0, "state": "owned", "owner": "a", "wanted": null, "fence": 17,
        "since": AS_OF, "pending": 15_625, "overdue": 2, "in_flight": 0, "late_p99_us": 0,
        "commits": 1});
    let free = json!({"shard": 63, "state": "free", "owner": null, "wanted": "b", "fence": 3,
        "since": AS_OF, "pending": null});
    let shards = json!({"as_of": AS_OF, "shards": [owned, free]});
    stub.inner().cluster.insert("/v1/cluster/shards", shards);
    let (out, _, code) = told(&run(&stub, &["cluster", "shards"]).await);
    let expected = "\
SHARD  OWNER  STATE  WANTED  FENCE  PENDING  OVERDUE  SINCE
    0  a      owned  -          17    15625        2  2026-03-01 12:00:05.000
   63  -      free   b           3        -        -  2026-03-01 12:00:05.000
";
    assert_eq!((out.as_str(), code), (expected, Some(0)));
}

#[tokio::test]
async fn a_wish_is_one_request_and_one_line() {
    let stub = Stub::start().await;
    let marked = |state: &str| json!({"node": "b", "state": state, "shards": 1});
    let moved = json!({"shard": 3, "owner": "a", "wanted": "b"});
    let moves = json!({"dry_run": true, "moves": [{"shard": 3, "from": "b", "to": "a"},
        {"shard": 4, "from": null, "to": "a"}]});
    for (path, answer) in [
        ("/v1/cluster/nodes/b/drain", marked("draining")),
        ("/v1/cluster/nodes/b/undrain", marked("live")),
        ("/v1/cluster/shards/3/move", moved),
        ("/v1/cluster/rebalance", moves),
    ] {
        stub.inner().cluster.insert(path, answer);
    }
    for (arguments, path, body, expected) in [
        (
            &["drain", "b"][..],
            "nodes/b/drain",
            "",
            "draining   b  1 shard\n",
        ),
        (
            &["undrain", "b"],
            "nodes/b/undrain",
            "",
            "undrained  b  1 shard\n",
        ),
        (
            &["move", "3", "b"],
            "shards/3/move",
            r#"{"node":"b"}"#,
            "wanted     shard 3  a -> b\n",
        ),
        (
            &["rebalance", "--dry-run"],
            "rebalance",
            r#"{"dry_run":true}"#,
            "SHARD  FROM  TO\n    3  b     a\n    4  -     a\n2 shards would move\n",
        ),
    ] {
        let arguments = [&["cluster"], arguments].concat();
        let (out, err, code) = told(&run(&stub, &arguments).await);
        assert_eq!((out.as_str(), err.as_str(), code), (expected, "", Some(0)));
        let asked = stub.inner().requests.last().cloned();
        assert_eq!(asked, Some(format!("POST /v1/cluster/{path}")));
        assert_eq!(stub.inner().last_body, body);
    }
    // A name that is no node's is a segment of the path all the same.
    let (_, err, code) = told(&run(&stub, &["cluster", "drain", "a/b"]).await);
    assert_eq!(err, "countwheel: this service is no node (no_cluster)\n");
    assert_eq!(code, Some(2));
    let asked = stub.inner().requests.last().cloned();
    assert_eq!(asked.as_deref(), Some("POST /v1/cluster/nodes/a%2Fb/drain"));
}

#[tokio::test]
async fn a_move_of_all_timers_is_followed_to_its_end() {
    const URL: &str = "postgres://timers:secret@db/timers";
    let progress = |state: &str, held: Option<u64>, reason: Option<&str>| {
        json!({"state": state, "target": "schema s of postgres://timers@db:5432/timers",
            "copied": 1_000_812, "left": 0, "took_ms": 31_250, "held_ms": held, "interrupted": 0,
            "reason": reason})
    };
    let moved = progress("moved", Some(212), None);
    let stub = stub("/v1/cluster/move-to", moved.clone()).await;
    let (out, err, code) = told(&run(&stub, &["move-to", URL, "--schema", "s"]).await);
    let expected = "moved: 1000812 timers written in 31.3 s, requests waited for 212 ms\n";
    assert_eq!((out.as_str(), err.as_str(), code), (expected, "", Some(0)));
    let sent = stub.inner().last_body.clone();
    let sent: Value = serde_json::from_str(&sent).expect("it is JSON");
    assert_eq!(sent, json!({"store": URL, "schema": "s"}));
    let (out, _, _) = told(&run(&stub, &["move-to", URL, "--json"]).await);
    assert_eq!(out, format!("{moved}\n"));

    let reason = "its nodes have not taken all shards yet";
    let waits = progress("moved", Some(10_212), Some(reason));
    stub.inner().cluster.insert("/v1/cluster/move-to", waits);
    let (out, _, code) = told(&run(&stub, &["move-to", URL]).await);
    let expected = "moved: 1000812 timers written in 31.3 s, requests waited for 10212 ms";
    assert_eq!((out, code), (format!("{expected}; {reason}\n"), Some(0)));

    let reason = "timers are changed faster than they can be copied";
    let given_up = progress("given_up", None, Some(reason));
    stub.inner().cluster.insert("/v1/cluster/move-to", given_up);
    let (out, _, code) = told(&run(&stub, &["move-to", URL]).await);
    let expected = format!("given up after 31.3 s: {reason}\n");
    assert_eq!((out, code), (expected, Some(1)));
}
