//! The sentences of the verbs, of a service of one node and of one of three whose every node is asked.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use countwheel_durable::Shards;
use countwheel_postgres::{PostgresError, PostgresOptions, PostgresStore, testing};
use countwheel_time::Patience;
use serde_json::{Value, json};

use crate::idempotency::{FAR, QUEUE, is_replayed, post, post_to};
use crate::login;
use crate::sentences::{SENTENCES, client_of, hear};
use crate::support::{Answer, Client, Directory, PATIENCE, Server, Target, pause, program};

fn node(options: &PostgresOptions, more: &[&str]) -> Server {
    let mut command = program();
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--lease-ttl", "2s"])
        .args(["--log-level", "error", "--allow-private-targets"])
        .args(["--store", &options.url])
        .args(["--schema", &options.schema])
        .args(more);
    Server::spawn(command)
}

/// The nodes of a cluster, each of which has its share of the shards.
pub(crate) fn nodes(database: &testing::Server, count: usize) -> Vec<Server> {
    nodes_with(database, count, &[])
}

/// The same with these arguments as well.
#[expect(clippy::disallowed_methods, reason = "polls another process")]
fn nodes_with(database: &testing::Server, count: usize, more: &[&str]) -> Vec<Server> {
    let options = database.fresh();
    let made = program()
        .args(["cluster", "init", "--store", &options.url])
        .args(["--schema", &options.schema])
        .status();
    assert!(made.unwrap().success());
    let nodes: Vec<_> = (0..count).map(|_| node(&options, more)).collect();
    let patience = Patience::of(PATIENCE);
    loop {
        let answer = nodes[0].client().get("/v1/cluster/nodes");
        let answer: Value = serde_json::from_slice(&answer.body).unwrap();
        let shards = answer["nodes"].as_array().unwrap().iter();
        let shards: Vec<_> = shards
            .map(|node| node["shards"].as_u64().unwrap())
            .collect();
        if shards.iter().sum::<u64>() == 64
            && shards.iter().all(|of_one| *of_one >= 64 / count as u64)
        {
            return nodes;
        }
        assert!(!patience.left().is_zero(), "{answer}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn every_sentence_holds_of_the_client_of_one_node_and_of_three() {
    let database = testing::Server::start(&[]).unwrap();
    for count in [1, 3] {
        let mut speaker = client_of(nodes(&database, count));
        assert_eq!(hear(&mut *speaker), SENTENCES.len(), "{count} nodes");
    }
}

/// What one node has put, the others know: at once where they are asked for it, and within a second where they
/// deliver.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn each_node_knows_the_endpoints_and_queues_that_another_has_put() {
    let database = testing::Server::start(&[]).unwrap();
    let nodes = nodes(&database, 2);
    let mut clients: Vec<Client> = nodes.iter().map(Server::client).collect();
    let target = Target::answering("200 OK");
    let mut put = |of: usize, path: &str, tag: Option<&Value>, body: &Value| {
        let mut headers = vec![("content-type", "application/json")];
        let tag = tag.map(|revision| format!("\"{revision}\""));
        headers.extend(tag.iter().map(|tag| ("if-match", &**tag)));
        let body = body.to_string();
        let answer = clients[of].send("PUT", path, &headers, body.as_bytes());
        assert!(matches!(answer.status, 200 | 201), "{path}: {answer:?}");
        answer.json()
    };
    for round in 0..5 {
        let (one, other) = (round % 2, (round + 1) % 2);
        let (shop, queue) = (format!("shop-{round}"), format!("orders-{round}"));
        let endpoint = format!("/v1/endpoints/{shop}");
        let first = put(one, &endpoint, None, &json!({"url": "http://x.invalid/"}));
        let revision = first["revision"].clone();
        // By the revision that the other node has just answered.
        let url = json!({ "url": format!("{}/{round}", target.url) });
        put(other, &endpoint, Some(&revision), &url);
        put(
            one,
            &format!("/v1/queues/{queue}"),
            None,
            &json!({ "endpoint": shop }),
        );
        // Whichever node has the shard of one of these, it finds the place.
        for key in 0..8 {
            let path = format!("/v1/queues/{queue}/timers/{key}");
            put(other, &path, None, &json!({"in": 0}));
        }
        for _ in 0..8 {
            let line = target.next().request_line;
            assert_eq!(line, format!("POST /hook/{round} HTTP/1.1"));
        }
    }
    // A node of which nobody asks anything knows it as well: here, what a set takes from its queue.
    let patience = Patience::of(PATIENCE);
    let limit = json!({"payload_limit": 1});
    clients[0]
        .json("PUT", "/v1/queues/small", &limit.to_string())
        .expect(201);
    let set = json!({"in": "9d", "target": {"url": "http://x.invalid/"}, "body": 12});
    while clients[1]
        .json("PUT", "/v1/queues/small/timers/k", &set.to_string())
        .status
        != 413
    {
        assert!(!patience.left().is_zero());
        pause();
    }
}

/// A purge that one node is asked for goes through the shards of all, and leaves what any of them takes afterwards.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn each_node_purges_the_shards_that_it_owns() {
    let database = testing::Server::start(&[]).unwrap();
    let nodes = nodes(&database, 2);
    let [mut first, mut second] = [nodes[0].client(), nodes[1].client()];
    let set = |client: &mut Client, key: &str| {
        let body = json!({"in": "1h", "target": {"url": "http://127.0.0.1:1/"}});
        let path = format!("/v1/queues/orders/timers/{key}");
        client.json("PUT", &path, &body.to_string()).expect(201);
    };
    for number in 0..300 {
        set(&mut first, &format!("old-{number}"));
    }
    // A shard that changes hands just now has no mark in time: the caller asks again.
    let patience = Patience::of(PATIENCE);
    let asked = loop {
        let asked = first.send("POST", "/v1/queues/orders:purge", &[], b"");
        if asked.status != 503 || patience.left().is_zero() {
            break asked;
        }
        pause();
    };
    assert_eq!(asked.expect(202)["purge"]["shards_left"], 64);
    for number in 0..100 {
        set(&mut second, &format!("new-{number}"));
    }
    let patience = Patience::of(PATIENCE);
    let queue = loop {
        let queue = second.get("/v1/queues/orders").expect(200);
        if !queue["purge"]["ended"].is_null() {
            break queue;
        }
        assert!(!patience.left().is_zero(), "{queue}");
        pause();
    };
    assert_eq!(queue["purge"]["removed"], 300);
    let list = first.get("/v1/queues/orders/timers?limit=1000").expect(200);
    let items = list["items"].as_array().unwrap();
    let new = |item: &&Value| item["key"].as_str().unwrap().starts_with("new-");
    assert_eq!((items.len(), items.iter().filter(new).count()), (100, 100));
}

fn lease(client: &mut Client, asked: &Value) -> Vec<Value> {
    let answer = client.json("POST", "/v1/queues/jobs:lease", &asked.to_string());
    answer.expect(200)["leases"].as_array().unwrap().clone()
}

fn set_jobs(client: &mut Client, prefix: &str, count: usize) {
    for number in 0..count {
        let path = format!("/v1/queues/jobs/timers/{prefix}-{number}");
        let body = json!({"in": 0, "body": number});
        client.json("PUT", &path, &body.to_string()).expect(201);
    }
}

/// Leases so many at this node, so many a call. Each is the first attempt of another timer.
fn lease_all(client: &mut Client, count: usize, max: usize) -> Vec<Value> {
    let asked = json!({"max": max, "wait": "2s", "lease": "5m", "worker": "w-1"});
    let patience = Patience::of(PATIENCE);
    let mut leases = Vec::new();
    while leases.len() < count {
        let more = lease(client, &asked);
        assert!(more.len() <= max, "{more:?}");
        leases.extend(more);
        assert!(!patience.left().is_zero(), "{} of {count}", leases.len());
    }
    let keys: BTreeSet<_> = leases.iter().map(|it| it["key"].to_string()).collect();
    assert_eq!((leases.len(), keys.len()), (count, count));
    assert!(leases.iter().all(|it| it["attempt"] == 1), "{leases:?}");
    leases
}

/// A call got what was due on the node that it asked, and nothing of the others.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn a_call_at_one_node_leases_from_all() {
    let database = testing::Server::start(&[]).unwrap();
    let mut nodes = nodes(&database, 3);
    let mut clients: Vec<Client> = nodes.iter().map(Server::client).collect();
    let pulled = json!({"mode": "pull"});
    clients[2]
        .json("PUT", "/v1/queues/jobs", &pulled.to_string())
        .expect(201);
    set_jobs(&mut clients[0], "many", 200);
    let leases = lease_all(&mut clients[1], 200, 1_000);
    let first = &leases[0];
    let path = format!("/v1/queues/jobs/timers/{}", first["key"].as_str().unwrap());
    let shown = clients[1].get(&path).expect(200);
    assert_eq!(
        (&shown["state"], &shown["worker"]),
        (&json!("leased"), &json!("w-1"))
    );
    // Any node takes outcomes.
    let items = leases
        .iter()
        .map(|it| json!({"queue": "jobs", "key": it["key"], "token": it["token"]}));
    let items = json!({"items": items.collect::<Vec<_>>()});
    let acked = clients[0]
        .json("POST", "/v1/leases:ack", &items.to_string())
        .expect(200);
    let results = acked["results"].as_array().unwrap();
    assert!(
        results.iter().all(|it| it["state"] == "done"),
        "{results:?}"
    );

    // What comes in excess of one is no attempt.
    set_jobs(&mut clients[0], "few", 30);
    lease_all(&mut clients[0], 30, 1);
    assert!(lease(&mut clients[1], &json!({"max": 9})).is_empty());

    // A call that waits is woken by any node.
    let mut waiting = nodes[0].client();
    let waits = thread::spawn(move || lease(&mut waiting, &json!({"max": 5, "wait": "60s"})));
    pause();
    set_jobs(&mut clients[1], "soon", 5);
    let leases = waits.join().unwrap();
    assert!(!leases.is_empty(), "it waits to the end");
    lease_all(&mut clients[2], 5 - leases.len(), 5);

    // One node is killed, and its shards go to the others.
    set_jobs(&mut clients[0], "rest", 60);
    drop((nodes.pop(), clients.pop()));
    lease_all(&mut clients[0], 60, 25);
}

/// A note travels to the owner of the shard, and each node reads the entries of all.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn the_audit_log_is_that_of_all_nodes() {
    let database = testing::Server::start(&[]).unwrap();
    let nodes = nodes(&database, 2);
    let mut clients: Vec<Client> = nodes.iter().map(Server::client).collect();
    clients[0]
        .json("PUT", "/v1/queues/orders", r#"{"concurrency": 9}"#)
        .expect(201);
    for number in 0..20 {
        let path = format!("/v1/queues/orders/timers/k-{number}");
        clients[0].json("PUT", &path, FAR).expect(201);
        clients[number % 2]
            .json("POST", &format!("{path}:fire"), "{}")
            .expect(202);
    }
    clients[1]
        .json("POST", "/v1/queues/orders:pause", "{}")
        .expect(200);
    let mut logs = clients.iter_mut().map(|client| {
        let page = client.get("/v1/audit?limit=1000").expect(200);
        page["items"].as_array().unwrap().clone()
    });
    let (one, other) = (logs.next().unwrap(), logs.next().unwrap());
    assert_eq!(one, other);
    let count = |operation: &str| {
        let entries = one.iter().filter(|entry| entry["operation"] == operation);
        entries.count()
    };
    let counts = ["putQueue", "fireTimer", "pauseQueue"].map(count);
    assert_eq!((counts, one.len()), ([1, 20, 1], 22), "{one:?}");
}

/// Every node draws the same key, and finds the receipt of what another was asked for.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn a_post_is_repeated_on_another_node() {
    let database = testing::Server::start(&[]).unwrap();
    let nodes = nodes(&database, 2);
    let mut clients: Vec<Client> = nodes.iter().map(Server::client).collect();
    // Both may have to put the secret of the store.
    let first: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            thread::spawn(move || {
                let answer = post(&mut client, Some("at once"), FAR);
                (client, answer)
            })
        })
        .collect();
    let both = first.into_iter().map(|caller| caller.join().unwrap());
    let (back, answers): (Vec<_>, Vec<_>) = both.unzip();
    clients = back;
    let ids: Vec<_> = answers
        .iter()
        .filter(|it| it.status == 201)
        .map(|it| it.json()["id"].clone())
        .collect();
    assert!(
        !ids.is_empty() && ids.iter().all(|id| *id == ids[0]),
        "{answers:?}"
    );
    clients[0]
        .json("PUT", "/v1/queues/single", r#"{"placement": "one"}"#)
        .expect(201);
    clients[0]
        .json("PUT", "/v1/queues/serial", r#"{"serial": true}"#)
        .expect(201);
    // A node knows within a second where the timers of a queue are that another node has put.
    let patience = Patience::of(PATIENCE);
    while clients[1]
        .json("PUT", "/v1/queues/single/timers/k", FAR)
        .status
        != 422
    {
        assert!(!patience.left().is_zero());
        pause();
    }
    let serial = r#"{"in": "9d", "target": {"url": "http://x.invalid/"}, "serial_key": "c-1"}"#;
    for number in 0..12 {
        let (one, other) = (number % 2, (number + 1) % 2);
        let key = format!("k-{number}");
        for (queue, body) in [
            (QUEUE, FAR),
            ("/v1/queues/single", FAR),
            ("/v1/queues/serial", serial),
        ] {
            let first = post_to(&mut clients[one], queue, Some(&key), body);
            is_replayed(
                &post_to(&mut clients[other], queue, Some(&key), body),
                &first,
            );
            let refused = post_to(&mut clients[other], queue, Some(&key), &format!("{body} "));
            assert_eq!(refused.problem(), (422, "idempotency_mismatch".to_owned()));
            let path = first.header("location").unwrap().to_owned();
            clients[other].get(&path).expect(200);
            post_to(&mut clients[other], queue, None, body).expect(201);
        }
    }
    let queues = clients[0].get("/v1/queues").expect(200);
    for queue in queues["queues"].as_array().unwrap() {
        assert_eq!(queue["dead"], 0, "{queues}");
        assert!(
            !queue["queue"].as_str().unwrap().contains("internal"),
            "{queues}"
        );
    }
    let braces = r#"{"in": "9d", "target": {"url": "http://x.invalid/"}, "serial_key": "a}b"}"#;
    let refused = post_to(&mut clients[0], "/v1/queues/serial", Some("x"), braces);
    assert_eq!(refused.problem(), (422, "invalid_setting".to_owned()));
}

/// Waits for what another node has done, which takes half a second or so.
#[expect(clippy::disallowed_methods, reason = "polls another process")]
#[track_caller]
fn comes_to(client: &mut Client, path: &str, status: u16) {
    let patience = Patience::of(PATIENCE);
    loop {
        let answer = client.get(path);
        if answer.status == status {
            return;
        }
        assert!(!patience.left().is_zero(), "{answer:?}");
        // More than 20 wrong tokens within a minute would be refused as such.
        thread::sleep(Duration::from_millis(400));
    }
}

/// What opens the API of one node opens that of all, and closes it: also where no shard is asked.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn a_token_counts_on_all_nodes_until_it_is_revoked() {
    let database = testing::Server::start(&[]).unwrap();
    let nodes = nodes(&database, 2);
    let made = |client: &mut Client, scope: &str| {
        let body = json!({"name": scope, "scopes": [scope]}).to_string();
        client.json("POST", "/v1/tokens", &body).expect(201)
    };
    let with = |node: &Server, token: &Value| {
        let mut client = node.client();
        let shown = format!("Bearer {}", token["token"].as_str().unwrap());
        client.headers.push(("authorization".to_owned(), shown));
        client
    };
    let first = made(&mut nodes[0].client(), "admin");
    assert_eq!(nodes[0].client().get("/v1/queues").status, 401);
    comes_to(&mut nodes[1].client(), "/v1/queues", 401);
    let mut admins: Vec<Client> = nodes.iter().map(|node| with(node, &first)).collect();
    comes_to(&mut admins[1], "/v1/tokens", 200);
    for round in 0..3 {
        let (one, other) = (round % 2, (round + 1) % 2);
        let reader = made(&mut admins[one], "read");
        let (mut here, mut there) = (with(&nodes[one], &reader), with(&nodes[other], &reader));
        assert_eq!(here.get("/v1/queues").status, 200);
        comes_to(&mut there, "/v1/queues", 200);
        assert_eq!(there.get("/v1/tokens").status, 403);
        let path = format!("/v1/tokens/{}", reader["id"].as_str().unwrap());
        admins[other].send("DELETE", &path, &[], b"").expect(200);
        assert_eq!(there.get("/v1/queues").status, 401);
        comes_to(&mut here, "/v1/queues", 401);
    }
    // The first one stays, whichever node is asked.
    let path = format!("/v1/tokens/{}", first["id"].as_str().unwrap());
    for admin in &mut admins {
        let refused = admin.send("DELETE", &path, &[], b"");
        assert_eq!(refused.problem(), (409, "conflict".into()));
    }
}

/// Of two changes at two nodes under the same condition, one is done: each node learns of the other's a moment later.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn of_two_changes_of_a_setting_under_one_condition_one_is_done() {
    const ROUNDS: usize = 12;
    let database = testing::Server::start(&[]).unwrap();
    let nodes = nodes(&database, 2);
    let mut clients: Vec<Client> = nodes.iter().map(Server::client).collect();
    let both = |clients: &mut Vec<Client>, path: &str, header: (&str, &str), bodies: [&str; 2]| {
        at_once(clients, &[header], bodies.map(|body| ("PUT", path, body)))
    };
    let endpoint = |name: &str| json!({"url": format!("https://example.com/{name}")}).to_string();
    let (one, other) = (endpoint("1"), endpoint("2"));
    let quotas = |timers: u64| json!({"quotas": {"timers": timers}}).to_string();
    let (few, many) = (quotas(1), quotas(2));
    let kinds = [
        ("queues", [r#"{"priority":1}"#, r#"{"priority":2}"#]),
        ("endpoints", [&*one, &*other]),
        ("namespaces", [&*few, &*many]),
    ];
    for (kind, bodies) in kinds {
        for round in 0..ROUNDS {
            let path = format!("/v1/{kind}/s-{round}");
            let made = both(&mut clients, &path, ("if-none-match", "*"), bodies);
            let mut statuses: Vec<_> = made.iter().map(|it| it.status).collect();
            statuses.sort_unstable();
            assert_eq!(statuses, [201, 412], "{path}: {made:?}");
            let winner = made.iter().find(|it| it.status == 201).unwrap();
            let tag = winner.header("etag").unwrap().to_owned();
            let shown = winner.json();
            let stored = clients[round % 2].get(&path);
            assert_eq!(stored.header("etag"), Some(&*tag), "{path}");
            for part in ["priority", "url", "quotas"] {
                assert_eq!(stored.json()[part], shown[part], "{path}");
            }
            let changed = both(&mut clients, &path, ("if-match", &tag), bodies);
            let mut statuses: Vec<_> = changed.iter().map(|it| it.status).collect();
            statuses.sort_unstable();
            assert_eq!(statuses, [200, 412], "{path}: {changed:?}");
        }
    }
}

/// Whatever two nodes do at the same time: nothing that is configured outlives its namespace, and a quota of
/// endpoints is exact.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
#[expect(
    clippy::disallowed_methods,
    reason = "another process learns of a token"
)]
fn what_a_change_has_looked_at_holds_when_it_is_done() {
    const ROUNDS: usize = 45;
    let database = testing::Server::start(&[]).unwrap();
    let nodes = nodes(&database, 2);
    let mut clients: Vec<Client> = nodes.iter().map(Server::client).collect();
    let first = json!({"name": "operator", "scopes": ["admin"]}).to_string();
    let json_body = [("content-type", "application/json")];
    let first = clients[0].send("POST", "/v1/tokens", &json_body, first.as_bytes());
    assert_eq!(first.status, 201, "{first:?}");
    let bearer = format!("Bearer {}", first.json()["token"].as_str().unwrap());
    let bearer = [("authorization", &*bearer)];
    // The other node knows the token half a second later at the latest.
    thread::sleep(Duration::from_secs(1));
    for round in 0..ROUNDS {
        let namespace = format!("/v1/namespaces/t-{round}");
        let one = json!({"quotas": {"endpoints": 1}}).to_string();
        let put = clients[0].send(
            "PUT",
            &namespace,
            &[bearer[0], json_body[0]],
            one.as_bytes(),
        );
        assert_eq!(put.status, 201, "{put:?}");

        let endpoint = json!({"url": "https://example.com/"}).to_string();
        let paths = ["a", "b"].map(|name| format!("/v1/endpoints/t-{round}%2F{name}"));
        let asked = [0, 1].map(|at| ("PUT", &*paths[at], &*endpoint));
        let answers = at_once(&mut clients, &bearer, asked);
        let mut statuses: Vec<_> = answers.iter().map(|it| it.status).collect();
        let made = statuses.iter().position(|status| *status == 201).unwrap();
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 507], "{namespace}: {answers:?}");
        let removed = clients[0].send("DELETE", &paths[made], &bearer, b"");
        assert_eq!(removed.status, 200, "{removed:?}");

        let token = json!({"name": "x", "scopes": ["write"], "namespace": format!("t-{round}")});
        let token = token.to_string();
        let queue = format!("/v1/queues/t-{round}%2Fq");
        let making = [
            ("POST", "/v1/tokens", &*token),
            ("PUT", &*paths[0], &*endpoint),
            ("PUT", &*queue, r#"{"priority":1}"#),
        ];
        let asked = [making[round % 3], ("DELETE", &*namespace, "")];
        let answers = at_once(&mut clients, &bearer, asked);
        let statuses = [answers[0].status, answers[1].status];
        assert!(
            [[201, 409], [404, 200]].contains(&statuses),
            "{namespace}: {answers:?}"
        );
    }
}

/// What two nodes answer to two requests at the same time: of a method, a path and a body.
fn at_once(
    clients: &mut [Client],
    headers: &[(&str, &str)],
    asked: [(&str, &str, &str); 2],
) -> Vec<Answer> {
    let start = std::sync::Barrier::new(2);
    let json = ("content-type", "application/json");
    let headers: Vec<_> = headers.iter().copied().chain([json]).collect();
    thread::scope(|scope| {
        let asked = clients.iter_mut().zip(asked);
        let asked = asked.map(|(client, (method, path, body))| {
            let (start, headers) = (&start, &headers);
            scope.spawn(move || {
                start.wait();
                client.send(method, path, headers, body.as_bytes())
            })
        });
        let asked: Vec<_> = asked.collect();
        let answers = asked.into_iter().map(|it| it.join().unwrap());
        answers.collect()
    })
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn a_session_begins_and_ends_at_all_nodes() {
    let mut database = testing::Server::start(&[]).unwrap();
    let directory = Directory::new();
    let keys = directory.0.join("keys");
    std::fs::write(&keys, login::KEY).unwrap();
    let keys = format!("--secret-key-file={}", keys.display());
    let nodes = nodes_with(&database, 2, &[&keys]);
    let (_, token) = login::made(&mut nodes[0].client(), &["admin"]);
    let status = |node: usize, cookie: &str| login::with(&nodes[node], cookie).get("/dead").status;
    let wait_for = |node: usize, cookie: &str, wanted: u16| {
        let patience = Patience::of(PATIENCE);
        while status(node, cookie) != wanted {
            assert!(!patience.left().is_zero(), "{node}: never {wanted}");
            pause();
        }
    };
    let first = login::cookie(&login::log_in(&nodes[0], &token, "/"));
    // The other node is open to everybody until it knows the token, and takes its sessions from then on.
    wait_for(1, "nobody=1", 303);
    assert_eq!(status(1, &first), 200);
    for round in 0..10 {
        let (one, other) = (round % 2, (round + 1) % 2);
        let begun = login::cookie(&login::log_in(&nodes[one], &token, "/"));
        assert_eq!((status(other, &begun), status(one, &begun)), (200, 200));
        login::log_out(&nodes[other], &begun);
        assert_eq!(status(other, &begun), 303);
        wait_for(one, &begun, 303);
    }
    assert_eq!((status(0, &first), status(1, &first)), (200, 200));

    // Without the database a login works at the node that is asked, and says that no other node knows it.
    database.crash();
    let begun = login::cookie(&login::log_in(&nodes[0], &token, "/"));
    let page = login::with(&nodes[0], &begun).get("/sessions");
    assert_eq!(page.status, 200);
    assert!(login::text(&page).contains("this node alone knows it"));
    assert_eq!(login::with(&nodes[1], &begun).get("/sessions").status, 303);

    // After a while nobody knows which tokens other nodes have revoked. Who watches the nodes watches on.
    let mut client = nodes[0].client();
    let bearer = [("authorization", &*format!("Bearer {token}"))];
    let patience = Patience::of(PATIENCE);
    loop {
        let answer = client.send("GET", "/v1/tokens", &bearer, b"");
        if answer.status == 503 {
            assert_eq!(answer.problem().1, "store_unavailable");
            assert!(
                answer.json()["detail"]
                    .as_str()
                    .unwrap()
                    .contains("revoked")
            );
            break;
        }
        assert!(!patience.left().is_zero(), "{answer:?}");
        pause();
    }
    assert_eq!(client.send("GET", "/metrics", &bearer, b"").status, 200);
}

/// Sets timers at both nodes in turn until both refuse, more than a count apart. Says how many were made.
fn fill(clients: &mut [Client], namespace: &str, body: &str, quota: &str) -> usize {
    let (mut made, mut full) = (0, [0; 2]);
    let patience = Patience::of(PATIENCE);
    let mut number = 0;
    while full.iter().any(|times| *times < 8) {
        assert!(!patience.left().is_zero(), "{made} made, {full:?}");
        number += 1;
        let node = number % 2;
        let path = format!("/v1/queues/{namespace}%2Fq/timers/k-{number}");
        let set = clients[node].json("PUT", &path, body);
        if set.status == 201 {
            (made, full) = (made + 1, [0; 2]);
        } else {
            assert_eq!(set.problem(), (507, "quota_exceeded".into()));
            assert_eq!(set.json()["quota"], quota);
            full[node] += 1;
            pause_between_counts();
        }
    }
    made
}

/// Each node reads the bytes of all, and admits its share of what is left.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn the_bytes_of_a_namespace_are_those_of_all_nodes() {
    const BODY: usize = 2_000;
    const MOST: usize = 40_000;
    let database = testing::Server::start(&[]).unwrap();
    let nodes = nodes(&database, 2);
    let mut clients: Vec<Client> = nodes.iter().map(Server::client).collect();
    let quotas = format!(r#"{{"quotas":{{"bytes":{MOST}}}}}"#);
    clients[0]
        .json("PUT", "/v1/namespaces/t", &quotas)
        .expect(201);
    comes_to(&mut clients[1], "/v1/namespaces/t", 200);
    let target = json!({"url": "https://example.com/"});
    let body = json!({"in": "1h", "target": target, "body": "x".repeat(BODY)}).to_string();
    let made = fill(&mut clients, "t", &body, "bytes");
    // At the end, a node's share of the rest has no room for one more.
    let bytes = made * BODY;
    assert!(
        (MOST - 4 * BODY..=MOST + MOST / 2).contains(&bytes),
        "{bytes}"
    );
    for client in &mut clients {
        let shown = client.get("/v1/namespaces/t").expect(200);
        let shown = shown["usage"]["bytes"].as_u64().unwrap();
        assert!(shown >= bytes as u64, "{shown} of {bytes}");
    }
}

/// Each of two nodes admits its share of what is left, until both have counted that nothing is.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn the_quotas_of_a_namespace_are_those_of_all_nodes() {
    const MOST: usize = 40;
    let database = testing::Server::start(&[]).unwrap();
    let nodes = nodes(&database, 2);
    let mut clients: Vec<Client> = nodes.iter().map(Server::client).collect();
    let body = format!(r#"{{"quotas":{{"timers":{MOST}}}}}"#);
    clients[0]
        .json("PUT", "/v1/namespaces/t", &body)
        .expect(201);
    comes_to(&mut clients[1], "/v1/namespaces/t", 200);
    let made = fill(&mut clients, "t", FAR, "timers");
    // What the other node may admit by an older count is half of what was left then.
    assert!((MOST..=MOST + MOST / 2).contains(&made), "{made}");
    let shown = clients[1].get("/v1/namespaces/t").expect(200);
    assert_eq!(shown["usage"]["timers"], made);

    // A token of the namespace counts at both, and so does the end of it.
    let token = json!({"name": "t", "namespace": "t", "scopes": ["read"]});
    let first = json!({"name": "first", "scopes": ["admin"]}).to_string();
    let first = clients[0].json("POST", "/v1/tokens", &first).expect(201);
    let with = |node: &Server, token: &Value| {
        let mut client = node.client();
        let shown = format!("Bearer {}", token["token"].as_str().unwrap());
        client.headers.push(("authorization".to_owned(), shown));
        client
    };
    comes_to(&mut clients[1], "/v1/queues", 401);
    let mut admin = with(&nodes[0], &first);
    let made = admin
        .json("POST", "/v1/tokens", &token.to_string())
        .expect(201);
    let mut there = with(&nodes[1], &made);
    comes_to(&mut there, "/v1/queues/t%2Fq/timers", 200);
    assert_eq!(there.get("/v1/queues/q/timers").status, 404);
    assert_eq!(there.get("/v1/stats").status, 403);
}

#[expect(
    clippy::disallowed_methods,
    reason = "waits for another process to count again"
)]
fn pause_between_counts() {
    thread::sleep(Duration::from_millis(200));
}

/// Pieces of SQL, each of which is a key and the name of a token.
const PIECES: [&str; 17] = [
    "'; DROP TABLE public.canary; --",
    "\"; DROP TABLE public.canary; --",
    "\\'; DELETE FROM public.canary; --",
    "') OR ('1'='1",
    "1; COMMIT; DROP TABLE public.canary",
    "$$; DROP TABLE public.canary; $$",
    "$1",
    "$2::text",
    "@timer",
    "@timeline",
    "E'\\x27'",
    "\\",
    "%",
    "%%",
    "_",
    "order_1",
    "orderx1",
];

/// A text in a path or a query, each byte of it escaped.
fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// All schemas with a table of ours, and what is in a table that is none of ours.
fn tables(database: &testing::Server) -> String {
    const ALL: &str = "SELECT (SELECT string_agg(schemaname || '.' || tablename, ' ' ORDER BY schemaname, tablename) \
                       FROM pg_tables WHERE schemaname NOT LIKE 'pg\\_%'), \
                       (SELECT sum(one) FROM public.canary)";
    database.execute(ALL).unwrap()
}

/// What goes on in the background, once it has ended.
fn wait_for_end(mut look: impl FnMut() -> Value) -> Value {
    let patience = Patience::of(PATIENCE);
    loop {
        let seen = look();
        if !seen["ended"].is_null() {
            return seen;
        }
        assert!(!patience.left().is_zero(), "{seen}");
        pause();
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn what_callers_name_is_no_part_of_a_statement() {
    let database = testing::Server::start(&[]).unwrap();
    let canary = "CREATE TABLE public.canary AS SELECT 7 AS one";
    database.execute(canary).unwrap();
    let node = nodes(&database, 1).remove(0);
    let before = tables(&database);
    assert!(
        before.contains(".timer") && before.contains('7'),
        "{before}"
    );
    let mut client = node.client();
    // Keys, payloads and headers come back as they were.
    for piece in PIECES {
        let path = format!("/v1/queues/sql/timers/{}", escaped(piece));
        let target = json!({"url": "http://127.0.0.1:1/", "headers": {"x-piece": piece}});
        let timer = json!({"in": "9d", "target": target, "body": piece});
        client.json("PUT", &path, &timer.to_string()).expect(201);
        let shown = client.get(&path).expect(200);
        assert_eq!(shown["key"], piece);
        assert_eq!(shown["target"]["headers"]["x-piece"], piece);
    }
    let whole = client
        .get("/v1/queues/sql/timers?limit=1000&bodies=text")
        .expect(200);
    for item in whole["items"].as_array().unwrap() {
        let body: Value = serde_json::from_str(item["body"].as_str().unwrap()).unwrap();
        assert_eq!(body, item["key"]);
    }
    // A prefix is a beginning: no character of it stands for others.
    let listed = |client: &mut Client, path: &str| {
        let list = client.get(path).expect(200);
        let items = list["items"].as_array().unwrap().iter();
        let keys = items.map(|item| item["key"].as_str().unwrap().to_owned());
        keys.collect::<BTreeSet<_>>()
    };
    let beginning = |prefix: &str| {
        let keys = PIECES.iter().filter(|piece| piece.starts_with(prefix));
        keys.map(|&piece| piece.to_owned()).collect::<BTreeSet<_>>()
    };
    for prefix in PIECES
        .into_iter()
        .chain(["order_", "order", "%_", "'", "$", "\\\\", "@"])
    {
        for list in ["/v1/queues/sql/timers", "/v1/timers"] {
            let path = format!("{list}?limit=1000&prefix={}", escaped(prefix));
            assert_eq!(
                listed(&mut client, &path),
                beginning(prefix),
                "{path}: {prefix}"
            );
        }
        let answer = client.get(&format!("/v1/timers?queue_prefix={}", escaped(prefix)));
        let is_none = answer.status == 200 && answer.json()["items"] == json!([]);
        assert!(is_none || answer.status == 400, "{prefix}: {answer:?}");
    }
    for prefix in ["%", "_", "order_", "'; DROP", "$"] {
        let filter = json!({"prefix": prefix});
        let wanted = json!({"queue": "sql", "action": "remove", "dry_run": true, "filter": filter});
        let job = client
            .json("POST", "/v1/jobs", &wanted.to_string())
            .expect(202);
        let path = format!("/v1/jobs/{}", job["id"]);
        let ended = wait_for_end(|| client.get(&path).expect(200));
        assert_eq!(
            ended["matched"],
            beginning(prefix).len(),
            "{prefix}: {ended}"
        );
    }
    // Queues and tags have no such characters, but for the one that stands for any other in a pattern.
    for queue in ["order_1", "orderx1"] {
        let path = format!("/v1/queues/{queue}/timers/in-{queue}");
        let timer = json!({"in": "9d", "target": {"url": "http://127.0.0.1:1/"}, "tags": [queue]});
        client.json("PUT", &path, &timer.to_string()).expect(201);
    }
    let only = BTreeSet::from(["in-order_1".to_owned()]);
    for path in ["/v1/timers?queue_prefix=order_", "/v1/timers?tag=order_1"] {
        assert_eq!(listed(&mut client, path), only, "{path}");
    }
    for piece in PIECES.into_iter().chain(["\0", "a\0b"]) {
        let piece = escaped(piece);
        for path in [
            format!("/v1/queues/{piece}/timers"),
            format!("/v1/queues/sql/timers?tag={piece}"),
            format!("/v1/queues/sql/timers?after={piece}"),
            format!("/v1/timers?state={piece}"),
            format!("/v1/endpoints/{piece}"),
            format!("/v1/namespaces/{piece}"),
            format!("/v1/tokens/{piece}"),
        ] {
            let status = client.get(&path).status;
            let is_name = ["order_1", "orderx1", "_"]
                .iter()
                .any(|it| escaped(it) == piece);
            assert!(
                matches!(status, 400 | 404) || is_name && status == 200,
                "{path}: {status}"
            );
        }
    }
    for key in ["\0", "a\0b", "a\n"] {
        let path = format!("/v1/queues/sql/timers/{}", escaped(key));
        let timer = json!({"in": "9d", "target": {"url": "http://127.0.0.1:1/"}});
        let refused = client.json("PUT", &path, &timer.to_string());
        assert_eq!(refused.status, 400, "{key:?}");
    }
    // A purge removes what begins so, and nothing else.
    let path = "/v1/queues/sql:purge";
    client.json("POST", path, r#"{"prefix": "_"}"#).expect(202);
    wait_for_end(|| client.get("/v1/queues/sql").expect(200)["purge"].clone());
    let mut left = beginning("");
    left.remove("_");
    assert_eq!(
        listed(&mut client, "/v1/queues/sql/timers?limit=1000"),
        left
    );
    // Settings.
    let mut names = BTreeSet::new();
    for piece in PIECES {
        let wanted = json!({"name": piece, "scopes": ["admin"]});
        let made = client
            .json("POST", "/v1/tokens", &wanted.to_string())
            .expect(201);
        let shown = format!("Bearer {}", made["token"].as_str().unwrap());
        client.headers = vec![("authorization".to_owned(), shown)];
        names.insert(piece.to_owned());
    }
    let tokens = client.get("/v1/tokens").expect(200);
    let tokens = tokens["tokens"].as_array().unwrap().iter();
    let found = tokens.map(|token| token["name"].as_str().unwrap().to_owned());
    assert_eq!(found.collect::<BTreeSet<_>>(), names);
    assert_eq!(tables(&database), before);
    assert!(node.stop().success());
}

/// The name of a schema is the one text that stands in statements.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn a_schema_that_is_a_piece_of_sql_is_refused() {
    let database = testing::Server::start(&[]).unwrap();
    let canary = "CREATE TABLE public.canary AS SELECT 7 AS one";
    database.execute(canary).unwrap();
    let before = tables(&database);
    let options = database.fresh();
    let long = "a".repeat(64);
    for schema in PIECES
        .into_iter()
        .chain(["", "1a", "A", "a b", "a\"b", "ü", &long])
    {
        // These are names.
        if ["order_1", "orderx1", "_"].contains(&schema) {
            continue;
        }
        let mut refused = options.clone();
        refused.schema = schema.to_owned();
        for error in [
            PostgresStore::make(&refused, Shards::ONE).err(),
            PostgresStore::open(&refused).err(),
        ] {
            let is_refused =
                matches!(&error, Some(PostgresError::Schema { schema: it }) if it == schema);
            assert!(is_refused, "{schema:?}: {error:?}");
        }
        let said = program()
            .args([
                "cluster",
                "init",
                "--store",
                &options.url,
                "--schema",
                schema,
            ])
            .output()
            .unwrap();
        assert!(!said.status.success(), "{schema:?}");
        let said = String::from_utf8(said.stderr).unwrap();
        assert!(said.contains("is no schema"), "{schema:?}: {said}");
    }
    assert_eq!(tables(&database), before);
}
