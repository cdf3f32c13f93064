//! Namespaces: what a token of one sees of others, and what becomes of who has more than the quotas.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, PATIENCE, Server, Target, pause, program};
use crate::tokens::{first, made, with};

/// In every name of what others have.
const MARK: &str = "zebra";
const FAR: &str = r#"{"in":"1h","target":{"url":"https://example.com/"}}"#;

struct World {
    directory: Directory,
    server: Server,
    operator: Client,
    token: String,
}

impl World {
    fn new() -> Self {
        let directory = Directory::new();
        let (data, token) = first(&directory);
        let server = Server::start(&data);
        let operator = with(&server, &token);
        Self {
            directory,
            server,
            operator,
            token,
        }
    }

    /// Makes a namespace, and a token for everything in it.
    fn namespace(&mut self, name: &str, quotas: &Value) -> Client {
        let path = format!("/v1/namespaces/{name}");
        let body = json!({"quotas": quotas}).to_string();
        let put = self.operator.json("PUT", &path, &body);
        assert!(matches!(put.status, 200 | 201), "{put:?}");
        let body = json!({"name": name, "namespace": name,
            "scopes": ["read", "write", "deliver", "admin"]});
        let (_, token) = made(&mut self.operator, &body);
        with(&self.server, &token)
    }
}

/// What a request names.
#[derive(Clone, Default)]
struct Named {
    /// What the names of queues and endpoints begin with.
    prefix: String,
    namespace: String,
    token: String,
    job: String,
    lease: String,
}

impl Named {
    fn path(&self, template: &str) -> String {
        let prefix = self.prefix.replace('/', "%2F");
        template
            .replace("{queue}/timers", &format!("{prefix}{MARK}-q/timers"))
            .replace("{queue}:lease", &format!("{prefix}{MARK}-pull:lease"))
            .replace("{queue}", &format!("{prefix}{MARK}-q"))
            .replace("{key}", &format!("{MARK}-key"))
            .replace("{name}", &format!("{prefix}{MARK}-hook"))
            .replace("{namespace}", &self.namespace)
            .replace("{token}", &self.token)
            .replace("{id}", &self.job)
            .replace("{node}", "n")
            .replace("{shard}", "0")
    }

    fn text(&self, text: &str) -> String {
        text.replace("NS", &self.prefix)
            .replace("LEASE", &self.lease)
            .replace("NAMESPACE", &self.namespace)
    }

    /// The answer without what differs because the request does.
    fn plain(&self, answer: &Answer) -> (u16, String) {
        let mut text = String::from_utf8_lossy(&answer.body).into_owned();
        for own in [&self.prefix, &self.token] {
            if !own.is_empty() {
                text = text.replace(own.as_str(), "");
            }
        }
        (answer.status, text)
    }
}

/// What is of the whole service, which no token of a namespace opens.
const WHOLE: [&str; 19] = [
    "beginMoveToCluster",
    "drainAllQueues",
    "drainNode",
    "getCluster",
    "getDueStats",
    "getMetrics",
    "getMoveToCluster",
    "getStats",
    "listAudit",
    "listNodes",
    "listShards",
    "makeSnapshot",
    "moveShard",
    "pauseAllQueues",
    "putNamespace",
    "rebalance",
    "removeNamespace",
    "resumeAllQueues",
    "undrainNode",
];

/// A body for each operation that takes one.
fn body_of(operation: &str) -> &'static str {
    match operation {
        "runBatch" => {
            r#"{"op":"set","queue":"NSzebra-q","key":"zebra-new","in":"1h","target":{"url":"https://example.com/"}}
{"op":"move","queue":"NSzebra-q","key":"zebra-key","in":"2h"}
{"op":"fire","queue":"NSzebra-q","key":"zebra-new"}
{"op":"revive","queue":"NSzebra-q","key":"zebra-new"}
{"op":"ack","queue":"NSzebra-pull","key":"zebra-key","token":"LEASE"}
{"op":"nack","queue":"NSzebra-pull","key":"zebra-key","token":"LEASE"}
{"op":"remove","queue":"NSzebra-q","key":"zebra-new"}"#
        }
        "putEndpoint" => r#"{"url":"https://example.com/zebra"}"#,
        "beginJob" => r#"{"queue":"NSzebra-q","action":"move","filter":{},"move":{"by":"1s"}}"#,
        "leaseFromQueues" => r#"{"queues":["NSzebra-pull"]}"#,
        "extendLeases" => {
            r#"{"queue":"NSzebra-pull","key":"zebra-key","token":"LEASE","lease":"1m"}"#
        }
        "ackLeases" | "nackLeases" => {
            r#"{"queue":"NSzebra-pull","key":"zebra-key","token":"LEASE"}"#
        }
        "setTimer" | "postTimer" => FAR,
        "reviveTimer" => r#"{"in":"1h"}"#,
        "drainQueue" => r#"{"mode":"remove"}"#,
        "moveTimer" => r#"{"in":"3h"}"#,
        "backfillTimer" => r#"{"from":"2026-03-01T12:00:00Z","until":"2026-03-01T12:00:00Z"}"#,
        "createToken" => r#"{"name":"zebra","namespace":"NAMESPACE","scopes":["read"]}"#,
        "simulate" => r#"{"retry":{"fixed":"1s"},"queue":"NSzebra-q","endpoint":"NSzebra-hook"}"#,
        _ => "{}",
    }
}

/// Every operation of the document under `/v1`: its method, its path and its name.
fn operations() -> Vec<(String, String, String)> {
    let text = include_str!("../../../../docs/openapi.json");
    let document: Value = serde_json::from_str(text).unwrap();
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            if let Some(name) = operation["operationId"].as_str()
                && path.starts_with("/v1")
            {
                all.push((method.to_uppercase(), path.clone(), name.to_owned()));
            }
        }
    }
    assert!(all.len() > 55, "{all:?}");
    all
}

fn ask(
    client: &mut Client,
    named: &Named,
    (method, path, operation): &(String, String, String),
) -> Answer {
    let path = match &**operation {
        "streamEvents" => format!("{path}?queue={}zebra-q", named.prefix),
        _ => named.path(path),
    };
    let body = named.text(body_of(operation));
    match (&**method, &**operation) {
        ("GET" | "DELETE", _) => client.send(method, &path, &[], b""),
        (_, "runBatch") => {
            let kind = [("content-type", "application/x-ndjson")];
            client.send(method, &path, &kind, body.as_bytes())
        }
        _ => client.json(method, &path, &body),
    }
}

/// Puts there whatever an operation may name, as far as it is gone.
fn furnish(operator: &mut Client, prefix: &str, namespace: &str) -> Named {
    let mut named = Named {
        prefix: prefix.to_owned(),
        namespace: namespace.to_owned(),
        ..Named::default()
    };
    let queue = named.path("/v1/queues/{queue}");
    operator
        .json("POST", &format!("{queue}:resume"), "{}")
        .expect(200);
    for (path, body) in [
        (
            "/v1/endpoints/{name}",
            r#"{"url":"https://example.com/zebra"}"#,
        ),
        ("/v1/queues/{queue}", "{}"),
    ] {
        let put = operator.json("PUT", &named.path(path), body);
        assert!(matches!(put.status, 200 | 201), "{put:?}");
    }
    let pull = queue.replace("zebra-q", "zebra-pull");
    let put = operator.json("PUT", &pull, r#"{"mode":"pull"}"#);
    assert!(matches!(put.status, 200 | 201), "{put:?}");
    let timer = r#"{"every":"1h","body":"zebra","target":{"url":"https://example.com/zebra"}}"#;
    let path = named.path("/v1/queues/{queue}/timers/{key}");
    let end = Patience::new();
    // While the queue is purged, nothing is set.
    loop {
        let set = operator.json("PUT", &path, timer);
        if matches!(set.status, 200 | 201) {
            break;
        }
        assert!(set.status == 409 && end.lasts(), "{set:?}");
        pause();
    }
    let path = format!("{pull}/timers/zebra-key");
    let set = operator.json("PUT", &path, r#"{"in":"0s"}"#);
    assert!(matches!(set.status, 200 | 201), "{set:?}");
    while named.lease.is_empty() {
        assert!(end.lasts(), "{path}");
        let leases = operator.json("POST", &format!("{pull}:lease"), r#"{"wait":"1s"}"#);
        let leases = leases.expect(200);
        named.lease = leases["leases"][0]["token"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
    }
    let body = match namespace {
        "default" => json!({"name": MARK, "scopes": ["read"]}),
        _ => json!({"name": MARK, "scopes": ["read"], "namespace": namespace}),
    };
    named.token = made(operator, &body).0;
    let job = operator.json("POST", "/v1/jobs", &named.text(body_of("beginJob")));
    named.job = job.expect(202)["id"].to_string();
    let path = format!("/v1/jobs/{}", named.job);
    while operator.get(&path).expect(200)["ended"].is_null() {
        assert!(end.lasts(), "{path}");
        pause();
    }
    named
}

/// So long a proof waits.
struct Patience(countwheel_time::Patience);

impl Patience {
    fn new() -> Self {
        Self(countwheel_time::Patience::of(PATIENCE))
    }

    fn lasts(&self) -> bool {
        !self.0.left().is_zero()
    }
}

/// All that the operator sees, but for how long jobs take.
fn all(operator: &mut Client) -> Vec<Value> {
    let mut all = Vec::new();
    for path in [
        "/v1/timers?limit=1000",
        "/v1/queues",
        "/v1/endpoints",
        "/v1/tokens",
        "/v1/namespaces",
    ] {
        all.push(operator.get(path).expect(200));
    }
    let jobs = operator.get("/v1/jobs").expect(200);
    let jobs = jobs["jobs"].as_array().unwrap().iter();
    let jobs = jobs.map(|job| json!([job["id"], job["queue"]]));
    all.push(jobs.collect());
    all
}

#[test]
fn a_token_of_a_namespace_neither_sees_nor_changes_what_is_in_others() {
    let mut world = World::new();
    let mut mine = world.namespace("mine", &json!({}));
    drop(world.namespace("theirs", &json!({})));
    let theirs = furnish(&mut world.operator, "theirs/", "theirs");
    let default = furnish(&mut world.operator, "", "default");
    let absent = Named {
        prefix: "absent/".into(),
        namespace: "absent".into(),
        token: "000000000000".into(),
        job: "999999".into(),
        lease: theirs.lease.clone(),
    };
    let before = all(&mut world.operator);
    let mut refused = BTreeMap::new();
    for operation in &operations() {
        let (_, path, name) = operation;
        let expected = absent.plain(&ask(&mut mine, &absent, operation));
        for others in [&theirs, &default] {
            // The namespace default has no token of its own to name.
            if others.namespace == "default" && matches!(&**name, "getNamespace" | "createToken") {
                continue;
            }
            let answer = ask(&mut mine, others, operation);
            let answer = others.plain(&answer);
            let mut same = answer.1.replace("theirs", "absent");
            if path.contains("{id}") {
                same = same.replace(&others.job, &absent.job);
            }
            assert_eq!((answer.0, same), expected, "{name} of {}", others.namespace);
        }
        let status = expected.0;
        let is_about_others = path.contains('{') || body_of(name).contains("NS");
        let is_whole = WHOLE.contains(&&**name);
        match &**name {
            "runBatch" => {
                let lines = expected
                    .1
                    .lines()
                    .filter(|line| line.contains(r#""status":404"#));
                assert_eq!(lines.count(), 7, "{}", expected.1);
            }
            _ if is_whole => assert_eq!(status, 403, "{name}"),
            "streamEvents" | "createToken" => assert_eq!(status, 404, "{name}"),
            _ if is_about_others => assert_eq!(status, 404, "{name}: {}", expected.1),
            _ => {
                assert_eq!(status, 200, "{name}: {}", expected.1);
                assert!(!expected.1.contains(MARK), "{name}: {}", expected.1);
            }
        }
        *refused.entry(status).or_insert(0) += 1;
    }
    for (after, before) in all(&mut world.operator).iter().zip(&before) {
        assert_eq!(after.to_string(), before.to_string(), "{refused:?}");
    }

    // The same requests about what the token may name are done.
    let mut undone = Vec::new();
    for operation in &operations() {
        let (_, _, name) = operation;
        if WHOLE.contains(&&**name) || name == "streamEvents" {
            continue;
        }
        let own = furnish(&mut world.operator, "mine/", "mine");
        let answer = ask(&mut mine, &own, operation);
        let is_done = match &**name {
            // Nobody listens there, and nobody is asked whether he does.
            "testEndpoint" => answer.status == 200 || answer.status == 422,
            // The timer is no dead one, and no attempt of it has failed.
            // And neither is the queue empty.
            "reviveTimer" | "resendTimer" | "removeQueue" => answer.status == 409,
            "cancelPurge" | "cancelJob" => matches!(answer.status, 200 | 404),
            _ => answer.status / 100 == 2,
        };
        if !is_done {
            let text = String::from_utf8_lossy(&answer.body);
            undone.push(format!("{name}: {} {text}", answer.status));
        }
        if name == "runBatch" {
            let text = String::from_utf8(answer.body).unwrap();
            let done = text.lines().filter(|line| line.contains(r#""status":20"#));
            assert_eq!(done.count(), 5, "{text}");
        }
    }
    assert_eq!(undone, [""; 0]);
}

#[test]
fn lists_have_what_is_in_the_namespace_alone() {
    let mut world = World::new();
    let mut mine = world.namespace("mine", &json!({}));
    drop(world.namespace("mine2", &json!({})));
    for queue in ["a", "mine%2Fa", "mine%2Fb", "mine2%2Fa", "zz"] {
        for key in ["k1", "k2"] {
            let path = format!("/v1/queues/{queue}/timers/{key}");
            world.operator.json("PUT", &path, FAR).expect(201);
        }
        let path = format!("/v1/endpoints/{queue}");
        world
            .operator
            .json("PUT", &path, r#"{"url":"https://example.com/"}"#)
            .expect(201);
    }
    let names = |client: &mut Client, path: &str, list: &str, name: &str| -> Vec<String> {
        let page = client.get(path).expect(200);
        let items = page[list].as_array().unwrap().iter();
        items
            .map(|it| it[name].as_str().unwrap().to_owned())
            .collect()
    };
    let own = ["mine/a", "mine/b"];
    for prefix in ["", "?prefix=m", "?prefix=mine", "?prefix=mine/"] {
        assert_eq!(
            names(&mut mine, &format!("/v1/queues{prefix}"), "queues", "queue"),
            own
        );
    }
    assert_eq!(
        names(&mut mine, "/v1/queues?prefix=mine/b", "queues", "queue"),
        ["mine/b"]
    );
    for prefix in ["mine2", "a", "z", "mine//", "mine/a/"] {
        let path = format!("/v1/queues?prefix={prefix}");
        let none = mine.get(&path);
        assert!(
            none.status == 400 || none.expect(200)["queues"] == json!([]),
            "{prefix}"
        );
    }
    assert_eq!(
        names(&mut mine, "/v1/endpoints", "endpoints", "endpoint"),
        own
    );
    let timers = names(&mut mine, "/v1/timers", "items", "queue");
    assert_eq!(timers, ["mine/a", "mine/a", "mine/b", "mine/b"]);
    assert_eq!(
        names(&mut mine, "/v1/namespaces", "namespaces", "namespace"),
        ["mine"]
    );
    assert_eq!(names(&mut mine, "/v1/tokens", "tokens", "name"), ["mine"]);
    // A cursor of the operator's list opens nothing either.
    let page = world.operator.get("/v1/timers?limit=1").expect(200);
    let after = page["next"].as_str().unwrap();
    let rest = mine.get(&format!("/v1/timers?after={after}"));
    let text = String::from_utf8_lossy(&rest.body).into_owned();
    assert!(
        !text.contains("mine2") && !text.contains(r#""zz""#),
        "{text}"
    );
}

#[test]
fn events_are_those_of_the_namespace() {
    let mut world = World::new();
    drop(world.namespace("mine", &json!({})));
    drop(world.namespace("theirs", &json!({})));
    let body = json!({"name": "listener", "namespace": "mine", "scopes": ["read"]});
    let (_, token) = made(&mut world.operator, &body);
    let mut stream = TcpStream::connect(&world.server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
    )
    .unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    lines.find(|line| line.starts_with("retry:")).unwrap();
    let hook = r#"{"url":"https://example.com/zebra"}"#;
    for prefix in ["theirs%2F", "", "mine%2F"] {
        let queue = format!("/v1/queues/{prefix}zebra-q");
        world.operator.json("PUT", &queue, "{}").expect(201);
        world
            .operator
            .json("PUT", &format!("/v1/endpoints/{prefix}hook"), hook)
            .expect(201);
        world
            .operator
            .json("PUT", &format!("{queue}/timers/last"), FAR)
            .expect(201);
    }
    let mut told = Vec::new();
    for line in lines {
        let Some(data) = line.strip_prefix("data: ") else {
            continue;
        };
        told.push(data.to_owned());
        if data.contains("last") {
            break;
        }
    }
    assert!(told.len() >= 3, "{told:?}");
    for data in &told {
        assert!(data.contains("mine/"), "{told:?}");
    }
}

/// Waits until a set has room.
fn comes_to_fit(client: &mut Client, path: &str) {
    let end = Patience::new();
    while client.json("PUT", path, FAR).status != 201 {
        assert!(end.lasts(), "{path}");
        pause();
    }
}

#[track_caller]
fn is_over(answer: &Answer, quota: &str) {
    let (status, code) = answer.problem();
    let expected = match quota {
        "rate" | "connections" => (429, "over_rate"),
        _ => (507, "quota_exceeded"),
    };
    assert_eq!((status, &*code), expected, "{answer:?}");
    assert_eq!(answer.json()["quota"], quota);
}

#[test]
fn beyond_a_quota_nothing_new_is_taken_and_all_else_goes_on() {
    let mut world = World::new();
    let quotas = json!({"timers": 3, "queues": 2, "endpoints": 1});
    let mut mine = world.namespace("t", &quotas);
    let timer = |key: &str| format!("/v1/queues/t%2Fq/timers/{key}");
    for key in ["a", "b", "c"] {
        mine.json("PUT", &timer(key), FAR).expect(201);
    }
    is_over(&mine.json("PUT", &timer("d"), FAR), "timers");
    is_over(&mine.json("POST", "/v1/queues/t%2Fq/timers", FAR), "timers");
    let line =
        r#"{"op":"set","queue":"t/q","key":"d","in":"1h","target":{"url":"https://example.com/"}}"#;
    let ndjson = [("content-type", "application/x-ndjson")];
    let batch = mine.send("POST", "/v1/batch", &ndjson, line.as_bytes());
    let text = String::from_utf8(batch.body).unwrap();
    assert!(
        text.contains(r#""status":507"#) && text.contains("quota_exceeded"),
        "{text}"
    );
    is_over(
        &mine.send("POST", "/v1/batch?atomic=true", &ndjson, line.as_bytes()),
        "timers",
    );
    // Nor does the operator get more into it.
    is_over(&world.operator.json("PUT", &timer("d"), FAR), "timers");
    // What is there is set again, moved, fired and removed, one by one and in batches.
    mine.json("PUT", &timer("a"), FAR).expect(200);
    mine.json("PATCH", &timer("a"), r#"{"in":"2h"}"#)
        .expect(200);
    let again = line.replace(r#""d""#, r#""b""#);
    let batch = mine.send("POST", "/v1/batch", &ndjson, again.as_bytes());
    let text = String::from_utf8(batch.body).unwrap();
    assert!(text.contains(r#""status":200"#), "{text}");
    mine.send("DELETE", &timer("c"), &[], b"").expect(200);
    comes_to_fit(&mut mine, &timer("d"));
    is_over(&mine.json("PUT", &timer("e"), FAR), "timers");

    // The second queue is the last.
    mine.json("PUT", "/v1/queues/t%2Fother", "{}").expect(201);
    is_over(&mine.json("PUT", "/v1/queues/t%2Fthird", "{}"), "queues");
    mine.json("PUT", "/v1/queues/t%2Fother", r#"{"concurrency":3}"#)
        .expect(200);
    mine.send("DELETE", &timer("d"), &[], b"").expect(200);
    comes_to_fit(&mut mine, "/v1/queues/t%2Fother/timers/d");
    mine.send("DELETE", &timer("a"), &[], b"").expect(200);
    let end = Patience::new();
    loop {
        let refused = mine.json("PUT", "/v1/queues/t%2Fthird/timers/x", FAR);
        if refused.json()["quota"] == "queues" {
            break;
        }
        is_over(&refused, "timers");
        assert!(end.lasts());
        pause();
    }
    let hook = r#"{"url":"https://example.com/"}"#;
    mine.json("PUT", "/v1/endpoints/t%2Fone", hook).expect(201);
    is_over(
        &mine.json("PUT", "/v1/endpoints/t%2Ftwo", hook),
        "endpoints",
    );
    mine.json(
        "PUT",
        "/v1/endpoints/t%2Fone",
        r#"{"url":"https://example.com/2"}"#,
    )
    .expect(200);

    // Others have as much as there is, and a larger quota counts at once.
    for number in 0..10 {
        let path = format!("/v1/queues/q{number}/timers/k");
        world.operator.json("PUT", &path, FAR).expect(201);
    }
    let more = json!({"quotas": {"timers": 20, "queues": 9}}).to_string();
    world
        .operator
        .json("PUT", "/v1/namespaces/t", &more)
        .expect(200);
    mine.json("PUT", "/v1/queues/t%2Fthird/timers/x", FAR)
        .expect(201);
    let shown = mine.get("/v1/namespaces/t").expect(200);
    assert_eq!(shown["usage"]["timers"], 3, "{shown}");
    assert_eq!(shown["usage"]["queues"], 3, "{shown}");
    assert_eq!(shown["usage"]["endpoints"], 1, "{shown}");
}

#[test]
fn a_quota_is_never_exceeded_by_many_at_once() {
    const MOST: usize = 50;
    let mut world = World::new();
    drop(world.namespace("t", &json!({"timers": MOST})));
    let (address, token) = (&world.server.address, &world.token);
    let made: usize = std::thread::scope(|scope| {
        let sets = (0..8).map(|thread| {
            scope.spawn(move || {
                let mut client = Client::to(address);
                client.headers = vec![("authorization".into(), format!("Bearer {token}"))];
                let keys = 0..20;
                let made = keys.filter(|key| {
                    let path = format!("/v1/queues/t%2Fq/timers/{thread}-{key}");
                    client.json("PUT", &path, FAR).status == 201
                });
                made.count()
            })
        });
        let sets: Vec<_> = sets.collect();
        sets.into_iter().map(|it| it.join().unwrap()).sum()
    });
    assert_eq!(made, MOST);
    let shown = world.operator.get("/v1/namespaces/t").expect(200);
    assert_eq!(shown["usage"]["timers"], MOST);
}

/// A set of a timer with a body of so many bytes.
fn heavy(bytes: usize) -> String {
    let target = json!({"url": "https://example.com/"});
    json!({"in": "1h", "target": target, "body": "x".repeat(bytes)}).to_string()
}

/// Waits until a set has room.
fn heavy_comes_to_fit(client: &mut Client, path: &str, bytes: usize) {
    let end = Patience::new();
    while client.json("PUT", path, &heavy(bytes)).status != 201 {
        assert!(end.lasts(), "{path}");
        pause();
    }
}

#[test]
fn a_quota_of_bytes_is_never_exceeded_and_comes_back() {
    let mut world = World::new();
    // What is there before the quota counts.
    let mut mine = world.namespace("t", &json!({}));
    let timer = |key: &str| format!("/v1/queues/t%2F{}/timers/{key}", &key[..1]);
    mine.json("PUT", &timer("a1"), &heavy(4_000)).expect(201);
    drop(world.namespace("t", &json!({"bytes": 10_000})));
    // Until they were counted, what was set since counts alone: a slow machine may take longer than a set waits.
    let end = Patience::new();
    while mine.get("/v1/namespaces/t").expect(200)["usage"]["bytes"].is_null() {
        assert!(end.lasts());
        pause();
    }
    mine.json("PUT", &timer("b1"), &heavy(4_000)).expect(201);
    is_over(&mine.json("PUT", &timer("b2"), &heavy(4_000)), "bytes");
    mine.json("PUT", &timer("b2"), &heavy(1_000)).expect(201);
    let post = mine.json("POST", "/v1/queues/t%2Fa/timers", &heavy(4_000));
    is_over(&post, "bytes");
    let line = |key: &str, bytes: usize| {
        let mut line: Value = serde_json::from_str(&heavy(bytes)).unwrap();
        line["op"] = json!("set");
        line["queue"] = json!("t/b");
        line["key"] = json!(key);
        format!("{line}\n")
    };
    let ndjson = [("content-type", "application/x-ndjson")];
    let lines = line("b3", 4_000);
    let batch = mine.send("POST", "/v1/batch", &ndjson, lines.as_bytes());
    let text = String::from_utf8(batch.body).unwrap();
    assert!(
        text.contains(r#""status":507"#) && text.contains(r#""quota":"bytes""#),
        "{text}"
    );
    let lines = line("b3", 200) + &line("b4", 4_000);
    let atomic = mine.send("POST", "/v1/batch?atomic=true", &ndjson, lines.as_bytes());
    is_over(&atomic, "bytes");
    // What is there is moved, and set again with as many bytes, and not with more than there is room for.
    mine.json("PATCH", &timer("a1"), r#"{"in":"2h"}"#)
        .expect(200);
    mine.json("PUT", &timer("a1"), &heavy(4_000)).expect(200);
    is_over(&mine.json("PUT", &timer("a1"), &heavy(9_000)), "bytes");
    let shown = mine.get("/v1/namespaces/t").expect(200);
    let bytes = shown["usage"]["bytes"].as_u64().unwrap();
    assert!((9_000..=10_000).contains(&bytes), "{shown}");
    // What was removed has room again, and so has what was replaced.
    mine.send("DELETE", &timer("b1"), &[], b"").expect(200);
    heavy_comes_to_fit(&mut mine, &timer("b5"), 4_000);
    is_over(&mine.json("PUT", &timer("b6"), &heavy(4_000)), "bytes");
    mine.json("PUT", &timer("a1"), &heavy(0)).expect(200);
    heavy_comes_to_fit(&mut mine, &timer("b6"), 4_000);
    // Nobody else has that quota, and without it there is no sum.
    world
        .operator
        .json("PUT", "/v1/queues/q/timers/k", &heavy(20_000))
        .expect(201);
    drop(world.namespace("t", &json!({})));
    mine.json("PUT", &timer("b7"), &heavy(9_000)).expect(201);
    let shown = mine.get("/v1/namespaces/t").expect(200);
    assert_eq!(shown["usage"]["bytes"], Value::Null, "{shown}");
}

#[test]
fn many_at_once_never_exceed_a_quota_of_bytes() {
    const MOST: u64 = 50_000;
    let mut world = World::new();
    let mut mine = world.namespace("t", &json!({"bytes": MOST}));
    let (address, token) = (&world.server.address, &world.token);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                let mut client = Client::to(address);
                client.headers = vec![("authorization".into(), format!("Bearer {token}"))];
                for key in 0..20 {
                    let path = format!("/v1/queues/t%2Fq/timers/{thread}-{key}");
                    let put = client.json("PUT", &path, &heavy(1_000));
                    assert!(matches!(put.status, 201 | 507), "{put:?}");
                    // Some go, so that it is counted while others set.
                    if key % 4 == 0 {
                        let gone = client.send("DELETE", &path, &[], b"");
                        assert!(matches!(gone.status, 200 | 404), "{gone:?}");
                    }
                }
            });
        }
    });
    let mut bodies = 0;
    let mut after = String::new();
    loop {
        let page = mine.get(&format!("/v1/queues/t%2Fq/timers?limit=100{after}"));
        let page = page.expect(200);
        let items = page["items"].as_array().unwrap();
        bodies += items.len() as u64 * 1_000;
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    // Nearly all of the room is used, and no more than that.
    assert!((MOST / 2..=MOST).contains(&bodies), "{bodies}");
}

#[test]
fn the_token_of_the_program_counts_for_no_rate() {
    let directory = Directory::new();
    let file = directory.0.join("token");
    let secret = "0123456789abcdef0123456789abcdef";
    std::fs::write(&file, secret).unwrap();
    let arguments = ["--token-file", file.to_str().unwrap()];
    let server = Server::with(&directory.0.join("data"), &arguments);
    let mut operator = with(&server, secret);
    let quotas = json!({"quotas": {"rate": {"per_second": 1, "burst": 1}}}).to_string();
    operator
        .json("PUT", "/v1/namespaces/t", &quotas)
        .expect(201);
    for _ in 0..20 {
        operator.get("/v1/queues/t%2Fq/timers").expect(200);
    }
}

/// Asks until the rate is used up: on a slow machine some of it comes back between two requests. Until then the answers have
/// this status.
fn comes_to_be_over(client: &mut Client, path: &str, status: u16) -> Answer {
    for _ in 0..100 {
        let answer = client.get(path);
        if answer.status != status {
            is_over(&answer, "rate");
            return answer;
        }
    }
    panic!("100 requests within seconds are more than the burst: {path}");
}

#[test]
fn beyond_its_rate_a_namespace_waits_and_others_do_not() {
    let mut world = World::new();
    let mut mine = world.namespace("t", &json!({"rate": {"per_second": 5, "burst": 10}}));
    let mut other = world.namespace("u", &json!({"rate": {"per_second": 1000, "burst": 1000}}));
    let over = comes_to_be_over(&mut mine, "/v1/queues", 200);
    assert_eq!(over.header("retry-after"), Some("1"));
    for _ in 0..50 {
        other.get("/v1/queues").expect(200);
    }
    // A token of the whole service counts for the namespace that the path names, but for that of an operator.
    let reader = json!({"name": "reader", "scopes": ["read"]});
    let (_, reader) = made(&mut world.operator, &reader);
    let mut reader = with(&world.server, &reader);
    comes_to_be_over(&mut reader, "/v1/queues/t%2Fq/timers", 200);
    reader.get("/v1/queues").expect(200);
    for _ in 0..20 {
        world.operator.get("/v1/queues/t%2Fq/timers").expect(200);
    }
    // What is refused counts as well.
    comes_to_be_over(&mut mine, "/v1/queues/u%2Fq/timers", 404);
    comes_to_be_over(&mut mine, "/v1/stats", 403);
    // It opens again.
    let end = Patience::new();
    while mine.get("/v1/queues").status != 200 {
        assert!(end.lasts());
        pause();
    }
    // A batch is slowed down, and every line of it done.
    let lines: String = (0..15)
        .map(|key| format!(r#"{{"op":"set","queue":"t/q","key":"k{key}","in":"1h","target":{{"url":"https://example.com/"}}}}{}"#, "\n"))
        .collect();
    let began = countwheel_time::Patience::of(PATIENCE);
    let ndjson = [("content-type", "application/x-ndjson")];
    let end = Patience::new();
    let batch = loop {
        let batch = mine.send("POST", "/v1/batch", &ndjson, lines.as_bytes());
        if batch.status == 200 {
            break batch;
        }
        assert!(end.lasts());
        pause();
    };
    let text = String::from_utf8(batch.body).unwrap();
    assert_eq!(text.matches(r#""status":201"#).count(), 15, "{text}");
    let took = PATIENCE - began.left();
    // At most ten of them had room in the bucket.
    assert!(took >= Duration::from_millis(900), "{took:?}");
}

#[test]
fn connections_count_for_the_namespace_that_is_asked_first() {
    let mut world = World::new();
    drop(world.namespace("t", &json!({"connections": 2})));
    let body = json!({"name": "t", "namespace": "t", "scopes": ["read"]});
    let (_, token) = made(&mut world.operator, &body);
    let mut open: Vec<Client> = (0..2).map(|_| with(&world.server, &token)).collect();
    for client in &mut open {
        for _ in 0..3 {
            client.get("/v1/queues").expect(200);
        }
    }
    let mut third = with(&world.server, &token);
    is_over(&third.get("/v1/queues"), "connections");
    world.operator.get("/v1/queues").expect(200);
    drop(open.pop());
    let end = Patience::new();
    while third.get("/v1/queues").status != 200 {
        assert!(end.lasts());
        pause();
    }
}

#[test]
fn timers_go_to_endpoints_of_their_own_namespace_alone() {
    let mut world = World::new();
    let target = Target::answering("200 OK");
    let mut mine = world.namespace("t", &json!({}));
    drop(world.namespace("u", &json!({})));
    let hook = json!({"url": target.url}).to_string();
    for name in ["t%2Fhook", "u%2Fhook", "hook"] {
        world
            .operator
            .json("PUT", &format!("/v1/endpoints/{name}"), &hook)
            .expect(201);
    }
    for (client, queue) in [(&mut mine, "t%2Fq"), (&mut world.operator, "t%2Fq")] {
        for name in ["u/hook", "hook", "t/none"] {
            let body = json!({"in": "0s", "target": {"endpoint": name}}).to_string();
            let path = format!("/v1/queues/{queue}/timers/k");
            let refused = client.json("PUT", &path, &body);
            assert_eq!(refused.problem(), (422, "invalid_target".into()), "{name}");
            let settings = json!({"endpoint": name}).to_string();
            let refused = client.json("PUT", &format!("/v1/queues/{queue}"), &settings);
            assert_eq!(refused.status, 422, "{name}: {refused:?}");
        }
    }
    // Nor does a queue of default use one of a namespace.
    let body = json!({"in": "0s", "target": {"endpoint": "t/hook"}}).to_string();
    let refused = world.operator.json("PUT", "/v1/queues/q/timers/k", &body);
    assert_eq!(refused.problem(), (422, "invalid_target".into()));
    mine.json("PUT", "/v1/queues/t%2Fq/timers/k", &body)
        .expect(201);
    let delivery = target.next();
    assert_eq!(delivery.header("timer-queue"), "t/q");
}

#[test]
fn what_is_no_namespace_and_no_quota_is_refused() {
    let mut world = World::new();
    let operator = &mut world.operator;
    for name in ["a%20b", "a%2Fb", "", &"x".repeat(65), "%FF"] {
        let put = operator.json("PUT", &format!("/v1/namespaces/{name}"), "{}");
        assert!(matches!(put.status, 400 | 404 | 405), "{name}: {put:?}");
    }
    let own = operator.json("PUT", "/v1/namespaces/countwheel:internal", "{}");
    assert_eq!(own.problem(), (422, "invalid_setting".into()));
    for quotas in [
        json!({"timers": -1}),
        json!({"timers": 1.5}),
        json!({"timers": "many"}),
        json!({"timers": 1_000_000_000_001_u64}),
        json!({"bytes": -1}),
        json!({"volume": 1}),
        json!({"rate": 5}),
        json!({"rate": {"per_second": 0}}),
        json!([]),
    ] {
        let body = json!({"quotas": quotas}).to_string();
        let put = operator.json("PUT", "/v1/namespaces/t", &body);
        assert!(matches!(put.status, 400 | 422), "{quotas}: {put:?}");
        put.problem();
    }
    operator.get("/v1/namespaces/t").problem();
    // Nothing is set in a namespace that is not there.
    let set = operator.json("PUT", "/v1/queues/t%2Fq/timers/k", FAR);
    assert_eq!(set.problem(), (404, "not_found".into()));
    let token = json!({"name": "x", "namespace": "t", "scopes": ["read"]}).to_string();
    assert_eq!(operator.json("POST", "/v1/tokens", &token).status, 404);
    // Nor is what the service keeps for itself there.
    for path in [
        "/v1/queues/countwheel:internal%2Freceipts",
        "/v1/queues/countwheel:internal%2Faudit/timers",
    ] {
        assert_eq!(operator.get(path).problem(), (404, "not_found".into()));
    }
    let made = operator.json("PUT", "/v1/namespaces/t", "{}");
    made.expect(201);
    let tag = made.header("etag").unwrap().to_owned();
    let quotas = r#"{"quotas":{"timers":0}}"#.as_bytes();
    let json = ("content-type", "application/json");
    let stale = [json, ("if-match", "\"1\"")];
    assert_eq!(
        operator
            .send("PUT", "/v1/namespaces/t", &stale, quotas)
            .status,
        412
    );
    operator
        .send(
            "PUT",
            "/v1/namespaces/t",
            &[json, ("if-match", &tag)],
            quotas,
        )
        .expect(200);
    is_over(
        &operator.json("PUT", "/v1/queues/t%2Fq/timers/k", FAR),
        "timers",
    );
    // One with something in it stays.
    operator.json("PUT", "/v1/queues/t%2Fq", "{}").expect(201);
    let full = operator.send("DELETE", "/v1/namespaces/t", &[], b"");
    assert_eq!(full.problem(), (409, "not_empty".into()));
    operator
        .send("DELETE", "/v1/queues/t%2Fq", &[], b"")
        .expect(200);
    let (id, _) = made_of(operator);
    let full = operator.send("DELETE", "/v1/namespaces/t", &[], b"");
    assert_eq!(full.problem(), (409, "not_empty".into()));
    operator
        .send("DELETE", &format!("/v1/tokens/{id}"), &[], b"")
        .expect(200);
    operator
        .send("DELETE", "/v1/namespaces/t", &[], b"")
        .expect(200);
    operator.get("/v1/namespaces/t").problem();
}

fn made_of(operator: &mut Client) -> (String, String) {
    let body = json!({"name": "x", "namespace": "t", "scopes": ["read"]});
    made(operator, &body)
}

#[test]
fn a_token_of_a_namespace_makes_only_tokens_of_the_same() {
    let mut world = World::new();
    let mut mine = world.namespace("t", &json!({}));
    drop(world.namespace("u", &json!({})));
    // Without a namespace it is that of the token that makes it.
    let body = json!({"name": "child", "scopes": ["read", "admin"]});
    let made = mine
        .json("POST", "/v1/tokens", &body.to_string())
        .expect(201);
    assert_eq!(made["namespace"], "t");
    let mut child = with(&world.server, made["token"].as_str().unwrap());
    child.get("/v1/queues/t%2Fnone/timers").expect(200);
    assert_eq!(child.get("/v1/stats").status, 403);
    for (body, status) in [
        (
            json!({"name": "x", "scopes": ["read"], "namespace": "u"}),
            404,
        ),
        (
            json!({"name": "x", "scopes": ["read"], "namespace": "default"}),
            400,
        ),
        (json!({"name": "x", "scopes": ["metrics"]}), 400),
        (
            json!({"name": "x", "scopes": ["read"], "certificate": "dns:x.example"}),
            403,
        ),
    ] {
        let refused = mine.json("POST", "/v1/tokens", &body.to_string());
        assert_eq!(refused.problem().0, status, "{body}");
    }
    // The pages are of the whole service.
    let form = format!("token={}", made["token"].as_str().unwrap());
    let kind = [("content-type", "application/x-www-form-urlencoded")];
    let login = mine.send("POST", "/login", &kind, form.as_bytes());
    assert_eq!(login.status, 403, "{login:?}");
    // The last token for everything is still the operator's.
    let all = world.operator.get("/v1/tokens").expect(200);
    let first = all["tokens"].as_array().unwrap().iter();
    let first = first
        .filter(|it| it["namespace"].is_null())
        .map(|it| it["id"].clone());
    let ids: Vec<_> = first.collect();
    assert_eq!(ids.len(), 1);
    let path = format!("/v1/tokens/{}", ids[0].as_str().unwrap());
    let last = world.operator.send("DELETE", &path, &[], b"");
    assert_eq!(last.problem(), (409, "conflict".into()));
}

#[test]
fn the_numbers_of_namespaces_and_of_their_tokens_are_where_the_page_says() {
    let mut world = World::new();
    let mut mine = world.namespace("t", &json!({}));
    let body = json!({"name": "x", "scopes": ["read"]}).to_string();
    for _ in 1..100 {
        mine.json("POST", "/v1/tokens", &body).expect(201);
    }
    for client in [&mut mine, &mut world.operator] {
        let body = json!({"name": "x", "scopes": ["read"], "namespace": "t"}).to_string();
        let beyond = client.json("POST", "/v1/tokens", &body);
        assert_eq!(beyond.problem(), (409, "conflict".into()));
    }
    world.operator.json("POST", "/v1/tokens", &body).expect(201);
    for number in 1..1_000 {
        let path = format!("/v1/namespaces/n-{number}");
        world.operator.json("PUT", &path, "{}").expect(201);
    }
    let beyond = world.operator.json("PUT", "/v1/namespaces/n-1000", "{}");
    assert_eq!(beyond.problem(), (409, "conflict".into()));
    // One that is there gets other quotas all the same.
    let quotas = r#"{"quotas":{"timers":5}}"#;
    world
        .operator
        .json("PUT", "/v1/namespaces/n-999", quotas)
        .expect(200);
    let all = world.operator.get("/v1/namespaces").expect(200);
    assert_eq!(all["namespaces"].as_array().unwrap().len(), 1_001);
}

#[test]
fn a_line_that_would_wait_for_too_long_is_refused() {
    let mut world = World::new();
    let slow = json!({"rate": {"per_second": 0.01, "burst": 2}});
    let mut mine = world.namespace("t", &slow);
    let line = |key: usize| {
        format!(
            r#"{{"op":"set","queue":"t/q","key":"{key}","in":"1h","target":{{"url":"https://example.com/"}}}}"#
        )
    };
    let lines = [line(1), line(2), line(3)].join("\n");
    let ndjson = [("content-type", "application/x-ndjson")];
    // The request itself takes one of the two.
    let batch = mine
        .send("POST", "/v1/batch", &ndjson, lines.as_bytes())
        .body;
    let text = String::from_utf8(batch).unwrap();
    assert_eq!(text.matches(r#""status":201"#).count(), 1, "{text}");
    assert_eq!(text.matches(r#""code":"over_rate""#).count(), 2, "{text}");
    is_over(&mine.get("/v1/queues"), "rate");
}

#[test]
fn the_audit_log_has_the_quotas_before_and_after() {
    let mut world = World::new();
    drop(world.namespace("t", &json!({"timers": 5})));
    drop(world.namespace("t", &json!({"timers": 7})));
    let log = world
        .operator
        .get("/v1/audit?operation=putNamespace")
        .expect(200);
    let entry = &log["items"][0];
    assert_eq!(entry["setting"], "namespace/t", "{log}");
    let fields = json!([{"field": "quotas", "before": {"timers": 5}, "after": {"timers": 7}}]);
    assert_eq!(entry["fields"], fields, "{log}");
}

#[test]
fn namespaces_are_there_after_a_restart() {
    let mut world = World::new();
    drop(world.namespace("t", &json!({"timers": 1})));
    let body = json!({"name": "t", "namespace": "t", "scopes": ["write"]});
    let (_, token) = made(&mut world.operator, &body);
    let timer = "/v1/queues/t%2Fq/timers/a";
    with(&world.server, &token)
        .json("PUT", timer, FAR)
        .expect(201);
    let data = world.directory.0.join("data");
    drop(world.server);
    let server = Server::start(&data);
    let mut mine = with(&server, &token);
    mine.json("PUT", timer, FAR).expect(200);
    is_over(
        &mine.json("PUT", "/v1/queues/t%2Fq/timers/b", FAR),
        "timers",
    );
    assert_eq!(mine.json("PUT", "/v1/queues/q/timers/a", FAR).status, 404);
}

#[test]
fn the_commands_ask_for_namespaces() {
    let world = World::new();
    let url = format!("http://{}", world.server.address);
    let run = |arguments: &[&str]| {
        let mut command = program();
        command.env("COUNTWHEEL_TOKEN", &world.token);
        command.args(arguments).args(["--server", &url]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text, said)
    };
    let put = [
        "namespace",
        "put",
        "tenant-7",
        "--timers",
        "9",
        "--bytes",
        "5000",
        "--per-second",
        "50",
        "--burst",
        "60",
    ];
    let (code, text, said) = run(&put);
    assert_eq!(
        (code, text.starts_with("put tenant-7  rev ")),
        (Some(0), true),
        "{said}"
    );
    let (_, token, said) = run(&[
        "token",
        "create",
        "app",
        "--namespace",
        "tenant-7",
        "--scope",
        "read",
    ]);
    assert!(token.starts_with("cwt_"), "{said}");
    let (code, _, said) = run(&[
        "set",
        "k",
        "--queue",
        "tenant-7/orders",
        "--in",
        "1h",
        "--post",
        "https://example.com/",
    ]);
    assert_eq!(code, Some(0), "{said}");
    let (_, text, _) = run(&["namespace", "get", "tenant-7"]);
    let row = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_default();
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(row("timers"), ["timers", "1", "9"], "{text}");
    assert_eq!(row("bytes")[2], "5000", "{text}");
    assert_eq!(row("rate"), ["rate", "-", "50/s"], "{text}");
    let (_, text, _) = run(&["namespace", "list"]);
    let line = text
        .lines()
        .find(|line| line.starts_with("tenant-7"))
        .unwrap();
    let line: Vec<_> = line.split_whitespace().collect();
    assert_eq!(line, ["tenant-7", "9", "5000", "-", "-", "-", "50/s"]);
    let (_, text, _) = run(&["token", "list"]);
    assert!(
        text.lines()
            .any(|line| line.contains("app") && line.contains("tenant-7")),
        "{text}"
    );
    let (code, _, said) = run(&["namespace", "remove", "tenant-7"]);
    assert!(
        code != Some(0) && said.contains("not_empty"),
        "{code:?}: {said}"
    );
    let (code, _, said) = run(&["namespace", "get", "none"]);
    assert!(
        code != Some(0) && said.contains("there is no such namespace"),
        "{said}"
    );
    let (code, _, said) = run(&["namespace", "put", "a/b"]);
    assert!(
        code != Some(0) && said.contains("letters, digits"),
        "{said}"
    );
}

#[test]
fn single_sets_are_noted_where_the_namespace_asks_for_it() {
    let mut world = World::new();
    let body = r#"{"audit_timers":true}"#;
    let put = world
        .operator
        .json("PUT", "/v1/namespaces/noted", body)
        .expect(201);
    assert_eq!(put["audit_timers"], true);
    let put = world
        .operator
        .json("PUT", "/v1/namespaces/quiet", "{}")
        .expect(201);
    assert_eq!(put["audit_timers"], false);
    for queue in ["noted%2Fq", "quiet%2Fq", "q"] {
        let path = format!("/v1/queues/{queue}/timers/k");
        world.operator.json("PUT", &path, FAR).expect(201);
        world
            .operator
            .json("PATCH", &path, r#"{"in":"2h"}"#)
            .expect(200);
        world.operator.send("DELETE", &path, &[], b"").expect(200);
    }
    let log = world.operator.get("/v1/audit?order=oldest").expect(200);
    let entries = log["items"].as_array().unwrap().iter();
    let timers = entries.filter(|entry| entry["action"].is_string());
    let timers: Vec<_> = timers
        .map(|entry| json!([entry["action"], entry["queue"]]))
        .collect();
    let expected = ["set", "move", "remove"].map(|action| json!([action, "noted/q"]));
    assert_eq!(timers, expected, "{log}");
}

#[test]
fn an_atomic_batch_waits_for_its_lines_and_keeps_nobody_out_for_long() {
    let mut world = World::new();
    let slow = json!({"rate": {"per_second": 4, "burst": 1}});
    let mut mine = world.namespace("t", &slow);
    let line = |key: usize| {
        format!(
            r#"{{"op":"set","queue":"t/q","key":"{key}","in":"1h","target":{{"url":"https://example.com/"}}}}"#
        )
    };
    let lines = |count: usize| (0..count).map(line).collect::<Vec<_>>().join("\n");
    let ndjson = [("content-type", "application/x-ndjson")];
    let mut atomic = |count: usize| {
        let body = lines(count);
        mine.send("POST", "/v1/batch?atomic=true", &ndjson, body.as_bytes())
    };
    let began = Patience::new();
    atomic(6).expect(200);
    assert!(PATIENCE - began.0.left() >= Duration::from_millis(1_000));
    // More than come within 30 s are refused, and leave no debt.
    pause();
    let end = Patience::new();
    loop {
        let refused = atomic(150);
        is_over(&refused, "rate");
        // That of the request itself is refused at times.
        if refused
            .header("retry-after")
            .unwrap()
            .parse::<u64>()
            .unwrap()
            > 1
        {
            break;
        }
        assert!(end.lasts());
        pause();
    }
    while mine.get("/v1/queues").status != 200 {
        assert!(end.lasts());
        pause();
    }
}

#[test]
fn what_makes_no_timer_takes_no_room() {
    let mut world = World::new();
    let mut mine = world.namespace("t", &json!({"timers": 10}));
    let timer = |key: &str| format!("/v1/queues/t%2Fq/timers/{key}");
    mine.json("PUT", &timer("a"), FAR).expect(201);
    let json = ("content-type", "application/json");
    for _ in 0..30 {
        let absent = [json, ("if-match", "\"7\"")];
        let failed = mine.send("PUT", &timer("none"), &absent, FAR.as_bytes());
        assert!(matches!(failed.status, 404 | 412), "{failed:?}");
        mine.json("PUT", &timer("a"), FAR).expect(200);
    }
    for key in 1..10 {
        mine.json("PUT", &timer(&key.to_string()), FAR).expect(201);
    }
    is_over(&mine.json("PUT", &timer("b"), FAR), "timers");
    // A POST that was done is answered as before, also without room.
    mine.send("DELETE", &timer("a"), &[], b"").expect(200);
    let once = [json, ("idempotency-key", "once")];
    let end = Patience::new();
    let first = loop {
        let first = mine.send("POST", "/v1/queues/t%2Fq/timers", &once, FAR.as_bytes());
        if first.status == 201 {
            break first.json();
        }
        assert!(end.lasts(), "{first:?}");
        pause();
    };
    let path = timer(first["key"].as_str().unwrap());
    mine.send("DELETE", &path, &[], b"").expect(200);
    comes_to_fit(&mut mine, &timer("c"));
    let again = mine.send("POST", "/v1/queues/t%2Fq/timers", &once, FAR.as_bytes());
    assert_eq!(again.expect(201)["id"], first["id"]);
}

#[test]
fn a_pause_takes_the_place_of_a_queue_and_keeps_the_namespace() {
    let mut world = World::new();
    let mut mine = world.namespace("t", &json!({"queues": 2}));
    for queue in ["a", "b"] {
        mine.json("POST", &format!("/v1/queues/t%2F{queue}:pause"), "{}")
            .expect(200);
        mine.json("POST", &format!("/v1/queues/t%2F{queue}:pause"), "{}")
            .expect(200);
    }
    is_over(&mine.json("POST", "/v1/queues/t%2Fc:pause", "{}"), "queues");
    is_over(
        &mine.json("POST", "/v1/queues/t%2Fc:drain", r#"{"mode":"hold"}"#),
        "queues",
    );
    let shown = mine.get("/v1/namespaces/t").expect(200);
    assert_eq!(shown["usage"]["queues"], 2, "{shown}");
    let tokens = world.operator.get("/v1/tokens").expect(200);
    for token in tokens["tokens"].as_array().unwrap() {
        if token["namespace"] == "t" {
            let path = format!("/v1/tokens/{}", token["id"].as_str().unwrap());
            world.operator.send("DELETE", &path, &[], b"").expect(200);
        }
    }
    let full = world.operator.send("DELETE", "/v1/namespaces/t", &[], b"");
    assert_eq!(full.problem(), (409, "not_empty".into()));
    for queue in ["a", "b"] {
        world
            .operator
            .json("POST", &format!("/v1/queues/t%2F{queue}:resume"), "{}")
            .expect(200);
    }
    world
        .operator
        .send("DELETE", "/v1/namespaces/t", &[], b"")
        .expect(200);
}

#[test]
fn a_namespace_has_four_jobs_at_a_time_and_leaves_the_others() {
    let mut world = World::new();
    let mut mine = world.namespace("t", &json!({}));
    let mut other = world.namespace("u", &json!({}));
    for queue in ["t%2Fq", "u%2Fq"] {
        for key in 0..50 {
            let path = format!("/v1/queues/{queue}/timers/{key}");
            world.operator.json("PUT", &path, FAR).expect(201);
        }
    }
    let job = |queue: &str| {
        json!({"queue": queue, "action": "move", "move": {"by": "1s"}, "filter": {}, "rate": 1})
            .to_string()
    };
    for _ in 0..4 {
        mine.json("POST", "/v1/jobs", &job("t/q")).expect(202);
    }
    let fifth = mine.json("POST", "/v1/jobs", &job("t/q"));
    assert_eq!(fifth.problem(), (409, "too_many_jobs".into()));
    other.json("POST", "/v1/jobs", &job("u/q")).expect(202);
}
