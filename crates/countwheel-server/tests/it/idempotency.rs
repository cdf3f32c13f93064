//! Sets whose key the service draws, and what becomes of one that is repeated. `sim receipts` has the worlds, these are
//! the sentences.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, Server, Target, program, wait_for_state};

pub(crate) const QUEUE: &str = "/v1/queues/orders";
pub(crate) const FAR: &str =
    r#"{"in": "9d", "target": {"url": "http://x.invalid/"}, "body": {"n": 7}}"#;

fn start() -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let client = server.client();
    (directory, server, client)
}

/// Sets a timer of the queue, as `key` if there is one.
pub(crate) fn post_to(client: &mut Client, queue: &str, key: Option<&str>, body: &str) -> Answer {
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(key.map(|key| ("idempotency-key", key)));
    let path = format!("{queue}/timers");
    client.send("POST", &path, &headers, body.as_bytes())
}

pub(crate) fn post(client: &mut Client, key: Option<&str>, body: &str) -> Answer {
    post_to(client, QUEUE, key, body)
}

/// The answer to a repeat of what was answered with `first`.
#[track_caller]
pub(crate) fn is_replayed(answer: &Answer, first: &Answer) {
    assert_eq!(answer.expect(201), first.expect(201));
    for header in ["location", "etag"] {
        assert_eq!(answer.header(header), first.header(header), "{header}");
    }
    assert_eq!(answer.header("idempotency-replayed"), Some("true"));
}

#[test]
fn a_post_sets_a_timer_under_a_key_of_its_own() {
    let (_directory, _server, mut client) = start();
    let mut keys = Vec::new();
    for _ in 0..2 {
        let answer = post(&mut client, None, FAR);
        let set = answer.expect(201);
        let key = set["key"].as_str().unwrap().to_owned();
        assert_eq!(key.len(), 26, "{set}");
        assert!(
            key.bytes().all(|b| matches!(b, b'a'..=b'z' | b'2'..=b'7')),
            "{key}"
        );
        assert_eq!(set["replaced"], Value::Null);
        let path = format!("{QUEUE}/timers/{key}");
        assert_eq!(answer.header("location"), Some(&*path));
        assert_eq!(answer.header("idempotency-replayed"), None);
        let shown = client.get(&path);
        assert_eq!(shown.header("etag"), answer.header("etag"));
        let shown = shown.expect(200);
        assert_eq!((&shown["id"], &shown["due"]), (&set["id"], &set["due"]));
        keys.push(key);
    }
    assert_ne!(keys[0], keys[1]);
}

#[test]
fn a_repeated_post_is_answered_like_the_first_whatever_became_of_the_timer() {
    let (directory, server, mut client) = start();
    let target = Target::answering("200 OK");
    let now = json!({"in": 0, "target": {"url": target.url}}).to_string();
    let first = post(&mut client, Some("order-7"), &now);
    assert_eq!(first.header("idempotency-replayed"), None);
    let path = first.header("location").unwrap().to_owned();
    target.next();
    wait_for_state(&mut client, &path, "done");
    is_replayed(&post(&mut client, Some("order-7"), &now), &first);
    // With quotes it is the same key.
    is_replayed(&post(&mut client, Some("\"order-7\""), &now), &first);

    let second = post(&mut client, Some("order-8"), FAR);
    let path = second.header("location").unwrap().to_owned();
    assert_ne!(first.header("location"), second.header("location"));
    client.json("PATCH", &path, r#"{"in": "10d"}"#).expect(200);
    is_replayed(&post(&mut client, Some("order-8"), FAR), &second);
    client.json("PUT", &path, FAR).expect(200);
    is_replayed(&post(&mut client, Some("order-8"), FAR), &second);
    client.send("DELETE", &path, &[], b"").expect(200);
    is_replayed(&post(&mut client, Some("order-8"), FAR), &second);
    client
        .json("POST", &format!("{QUEUE}:drain"), r#"{"mode": "hold"}"#)
        .expect(200);
    is_replayed(&post(&mut client, Some("order-8"), FAR), &second);

    server.stop();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    is_replayed(&post(&mut client, Some("order-7"), &now), &first);
    is_replayed(&post(&mut client, Some("order-8"), FAR), &second);
    assert!(target.quiet_for(Duration::from_millis(200)));
    assert_eq!(client.get(&path).problem(), (404, "not_found".to_owned()));
}

#[test]
fn another_body_under_the_key_is_refused_and_another_queue_has_keys_of_its_own() {
    let (_directory, _server, mut client) = start();
    let first = post(&mut client, Some("k"), FAR);
    first.expect(201);
    // A blank more is another body.
    let refused = post(&mut client, Some("k"), &format!("{FAR} "));
    assert_eq!(refused.problem(), (422, "idempotency_mismatch".to_owned()));
    let other = post_to(&mut client, "/v1/queues/other", Some("k"), FAR);
    assert_ne!(other.expect(201)["key"], first.json()["key"]);
    let other = post(&mut client, Some("l"), FAR);
    assert_ne!(other.expect(201)["key"], first.json()["key"]);
    is_replayed(&post(&mut client, Some("k"), FAR), &first);
}

#[test]
fn a_post_that_was_refused_leaves_nothing_behind() {
    let (_directory, _server, mut client) = start();
    let there = r#"{"in": "9d", "target": {"endpoint": "shop"}}"#;
    let refused = post(&mut client, Some("k"), there);
    assert_eq!(refused.problem(), (422, "invalid_target".to_owned()));
    assert_eq!(post(&mut client, Some("k"), "{").problem().0, 400);
    client
        .json(
            "PUT",
            "/v1/endpoints/shop",
            r#"{"url": "http://x.invalid/"}"#,
        )
        .expect(201);
    let first = post(&mut client, Some("k"), there);
    assert_eq!(first.header("idempotency-replayed"), None);
    let path = first.header("location").unwrap().to_owned();
    // What was right when it was asked first has its answer, also when it is not right any more.
    client.send("DELETE", &path, &[], b"").expect(200);
    assert_eq!(
        client.send("DELETE", "/v1/endpoints/shop", &[], b"").status,
        200
    );
    is_replayed(&post(&mut client, Some("k"), there), &first);
    let other = post(&mut client, Some("other"), there);
    assert_eq!(other.problem(), (422, "invalid_target".to_owned()));
}

#[test]
fn of_posts_at_the_same_time_one_sets_the_timer() {
    let (_directory, server, _client) = start();
    for round in 0..5 {
        let callers: Vec<_> = (0..8)
            .map(|_| {
                let mut client = server.client();
                let key = format!("k-{round}");
                thread::spawn(move || post(&mut client, Some(&key), FAR))
            })
            .collect();
        let answers = callers.into_iter().map(|caller| caller.join().unwrap());
        let (set, refused): (Vec<_>, Vec<_>) = answers.partition(|answer| answer.status == 201);
        for answer in &refused {
            assert_eq!(
                answer.problem(),
                (409, "idempotency_in_progress".to_owned())
            );
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
        let is_first = |answer: &&Answer| answer.header("idempotency-replayed").is_none();
        assert_eq!(set.iter().filter(is_first).count(), 1, "{set:?}");
        for answer in &set {
            assert_eq!(answer.expect(201), set[0].expect(201));
        }
    }
    let queues = server.client().get("/v1/queues").expect(200);
    assert_eq!(queues["queues"][0]["pending"], 5, "{queues}");
}

#[test]
fn receipts_are_no_timers() {
    let (_directory, server, mut client) = start();
    for key in ["a", "b", "c"] {
        post(&mut client, Some(key), FAR).expect(201);
    }
    let queues = client.get("/v1/queues").expect(200);
    let all = queues["queues"].as_array().unwrap();
    assert_eq!(all.len(), 1, "{queues}");
    let orders = &all[0];
    assert_eq!(
        (&orders["queue"], &orders["pending"]),
        (&json!("orders"), &json!(3))
    );
    assert_eq!(orders["dead"], 0, "{queues}");
    let timers = client.get(&format!("{QUEUE}/timers")).expect(200);
    assert_eq!(timers["items"].as_array().unwrap().len(), 3);
    for path in ["/metrics", "/", "/dead"] {
        let shown = client.get(path);
        assert_eq!(shown.status, 200);
        let text = String::from_utf8_lossy(&shown.body);
        assert!(!text.contains("countwheel:internal"), "{path}: {text}");
    }
    let metrics = client.get("/metrics");
    let metrics = String::from_utf8_lossy(&metrics.body);
    let dead = metrics
        .lines()
        .filter(|line| line.contains("state=\"dead\""));
    assert!(
        dead.clone().count() > 0 && dead.clone().all(|line| line.ends_with(" 0")),
        "{metrics}"
    );
    let hidden = client.get("/v1/queues/countwheel:internal%2Freceipts/timers");
    assert_eq!(hidden.problem(), (404, "not_found".to_owned()));
    let purged = client.json("POST", &format!("{QUEUE}:purge"), "{}");
    assert!(purged.status < 300, "{purged:?}");
    let exported = program()
        .args(["export", "--server", &format!("http://{}", server.address)])
        .output()
        .unwrap();
    assert!(exported.status.success(), "{exported:?}");
    let exported = String::from_utf8_lossy(&exported.stdout);
    assert!(!exported.contains("countwheel:internal"), "{exported}");
}

#[test]
fn a_drawn_key_has_the_tag_of_its_queue_or_of_its_serial_key() {
    let (_directory, _server, mut client) = start();
    client
        .json("PUT", "/v1/queues/single", r#"{"placement": "one"}"#)
        .expect(201);
    client
        .json("PUT", "/v1/queues/serial", r#"{"serial": true}"#)
        .expect(201);
    let single = post_to(&mut client, "/v1/queues/single", Some("k"), FAR);
    let key = single.expect(201)["key"].clone();
    assert!(key.as_str().unwrap().starts_with("{one}/"), "{key}");
    let path = single.header("location").unwrap().to_owned();
    assert!(
        path.starts_with("/v1/queues/single/timers/%7Bone%7D%2F"),
        "{path}"
    );
    assert_eq!(client.get(&path).expect(200)["key"], key);
    let serial = |key: &str| {
        let body = json!({"in": "9d", "target": {"url": "http://x.invalid/"}, "serial_key": key});
        body.to_string()
    };
    let one = post_to(&mut client, "/v1/queues/serial", Some("k"), &serial("c-1"));
    let key = one.expect(201)["key"].clone();
    assert!(key.as_str().unwrap().starts_with("{c-1}/"), "{key}");
    // The key is one of the serial key, wherever the service runs.
    let other = post_to(&mut client, "/v1/queues/serial", Some("k"), &serial("c-2"));
    assert_ne!(other.expect(201)["key"], key);
    is_replayed(
        &post_to(&mut client, "/v1/queues/serial", Some("k"), &serial("c-1")),
        &one,
    );
}

#[test]
fn an_idempotency_key_goes_with_a_post_of_a_timer_alone() {
    let (_directory, _server, mut client) = start();
    let json = ("content-type", "application/json");
    let timer = format!("{QUEUE}/timers/k");
    client.json("PUT", &timer, FAR).expect(201);
    for (method, path) in [
        ("PUT", timer.clone()),
        ("PATCH", timer.clone()),
        ("DELETE", timer.clone()),
        ("GET", timer.clone()),
        ("POST", format!("{timer}:fire")),
        ("POST", format!("{timer}:resend")),
        ("POST", format!("{QUEUE}:purge")),
        ("POST", "/v1/batch".to_owned()),
        ("GET", format!("{QUEUE}/timers")),
        ("POST", format!("{QUEUE}/timers/")),
    ] {
        let headers = [json, ("idempotency-key", "k")];
        let answer = client.send(method, &path, &headers, b"{}");
        assert_eq!(
            answer.problem(),
            (400, "malformed".to_owned()),
            "{method} {path}"
        );
    }
    let twice = [json, ("idempotency-key", "k"), ("idempotency-key", "k")];
    let path = format!("{QUEUE}/timers");
    let refused = client.send("POST", &path, &twice, FAR.as_bytes());
    assert_eq!(refused.problem(), (400, "malformed".to_owned()));
    for key in ["", "\"\"", "\"a", "\u{fc}", &"x".repeat(256)] {
        let refused = post(&mut client, Some(key), FAR);
        assert_eq!(refused.problem(), (400, "malformed".to_owned()), "{key}");
    }
    for condition in [("if-match", "*"), ("if-none-match", "*")] {
        let refused = client.send("POST", &path, &[json, condition], FAR.as_bytes());
        assert_eq!(refused.problem(), (400, "malformed".to_owned()));
    }
    post(&mut client, Some(&"x".repeat(255)), FAR).expect(201);
}

#[test]
fn a_snapshot_has_the_receipts() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let snapshots = directory.0.join("snapshots");
    let server = Server::with(&data, &["--snapshot-dir", snapshots.to_str().unwrap()]);
    let mut client = server.client();
    let first = post(&mut client, Some("k"), FAR);
    client
        .json("POST", "/v1/snapshots", r#"{"name": "s"}"#)
        .expect(201);
    server.stop();
    let restored = directory.0.join("restored");
    let done = program()
        .arg("restore")
        .arg(snapshots.join("s"))
        .arg(&restored)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let server = Server::start(&restored);
    is_replayed(&post(&mut server.client(), Some("k"), FAR), &first);
}
