//! Tags of timers, and jobs that act on many of them, as callers ask for them.

use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, Server, pause, program};

const ORDERS: &str = "/v1/queues/orders";
const JOBS: &str = "/v1/jobs";
const NOON: &str = "2100-01-01T12:00:00.000000Z";
const ONE: &str = "2100-01-01T13:00:00.000000Z";
/// Nobody answers there.
const NOBODY: &str = "http://127.0.0.1:1/";

fn start() -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let client = server.client();
    (directory, server, client)
}

fn put(client: &mut Client, key: &str, body: &Value) -> Answer {
    client.json("PUT", &format!("{ORDERS}/timers/{key}"), &body.to_string())
}

fn set(client: &mut Client, key: &str, at: &str, tags: &[&str]) {
    let body = json!({"at": at, "target": {"url": NOBODY}, "tags": tags});
    put(client, key, &body).expect(201);
}

fn ask(client: &mut Client, body: &Value) -> Answer {
    client.json("POST", JOBS, &body.to_string())
}

/// The job once it has ended.
fn ended(client: &mut Client, id: &Value) -> Value {
    loop {
        let job = client.get(&format!("{JOBS}/{id}")).expect(200);
        if !job["ended"].is_null() {
            return job;
        }
        pause();
    }
}

fn listed(client: &mut Client, query: &str) -> Vec<String> {
    let list = client.get(&format!("{ORDERS}/timers{query}")).expect(200);
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["key"].as_str().unwrap().to_owned())
        .collect()
}

fn due(client: &mut Client, key: &str) -> Value {
    client.get(&format!("{ORDERS}/timers/{key}")).expect(200)["due"].clone()
}

/// A timer that is dead after one attempt.
fn set_dead(client: &mut Client, key: &str, tags: &[&str]) {
    let body = json!({
        "in": 0, "target": {"url": NOBODY}, "retry": {"fixed": 100, "max_attempts": 1}, "tags": tags,
    });
    put(client, key, &body).expect(201);
    while client.get(&format!("{ORDERS}/timers/{key}")).expect(200)["state"] != "dead" {
        pause();
    }
}

#[test]
fn tags_are_shown_listed_and_kept_until_a_set_without_them() {
    let (directory, mut server, mut client) = start();
    set(&mut client, "a", NOON, &["eu", "vip"]);
    set(&mut client, "b", NOON, &["eu"]);
    set(&mut client, "c", NOON, &[]);
    let shown = |client: &mut Client, key: &str| {
        client.get(&format!("{ORDERS}/timers/{key}")).expect(200)["tags"].clone()
    };
    assert_eq!(shown(&mut client, "a"), json!(["eu", "vip"]));
    assert_eq!(shown(&mut client, "c"), Value::Null);
    assert_eq!(listed(&mut client, "?tag=eu"), ["a", "b"]);
    assert_eq!(listed(&mut client, "?tag=vip,eu"), ["a"]);
    assert_eq!(listed(&mut client, "?tag=us"), [""; 0]);
    // A move, an attempt, a revive, a resend and a restart keep them.
    client.json(
        "PATCH",
        &format!("{ORDERS}/timers/a"),
        &json!({"by": "1h"}).to_string(),
    );
    set_dead(&mut client, "d", &["us"]);
    let revived = client.send("POST", &format!("{ORDERS}/timers/d:revive"), &[], b"");
    revived.expect(202);
    while client.get(&format!("{ORDERS}/timers/d")).expect(200)["state"] != "dead" {
        pause();
    }
    client
        .send("POST", &format!("{ORDERS}/timers/d:resend"), &[], b"")
        .expect(200);
    server.signal("-KILL");
    server.wait();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    assert_eq!(shown(&mut client, "a"), json!(["eu", "vip"]));
    assert_eq!(listed(&mut client, "?tag=us"), ["d"]);
    let without = json!({"at": NOON, "target": {"url": NOBODY}});
    put(&mut client, "a", &without).expect(200);
    assert_eq!(shown(&mut client, "a"), Value::Null);
}

#[test]
fn a_page_of_a_tag_looks_at_so_many_timers_and_says_where_to_go_on() {
    let (_directory, _server, mut client) = start();
    for number in 0..300 {
        let tags: &[&str] = if number % 100 == 99 {
            &["rare"]
        } else {
            &["often"]
        };
        set(&mut client, &format!("k-{number:03}"), NOON, tags);
    }
    assert_eq!(
        listed(&mut client, "?tag=rare"),
        ["k-099", "k-199", "k-299"]
    );
    let (mut keys, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("{ORDERS}/timers?tag=often&limit=7{after}");
        let page = client.get(&path).expect(200);
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 7, "{page}");
        keys.extend(items.iter().map(|item| item["key"].to_string()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(keys.len(), 297);
    let all = keys.len();
    keys.dedup();
    assert_eq!(keys.len(), all);
}

#[test]
fn a_tag_that_breaks_a_rule_is_refused_with_its_field() {
    let (_directory, _server, mut client) = start();
    for (tags, pointer) in [
        (json!("eu"), "/tags"),
        (json!([""]), "/tags/0"),
        (json!(["eu", "a b"]), "/tags/1"),
        (json!(["ü"]), "/tags/0"),
        (json!(["a,b"]), "/tags/0"),
        (json!(["x".repeat(65)]), "/tags/0"),
        (json!(["eu", "eu"]), "/tags/1"),
        (json!([7]), "/tags/0"),
        (
            json!(["1", "2", "3", "4", "5", "6", "7", "8", "9"]),
            "/tags",
        ),
    ] {
        let body = json!({"at": NOON, "target": {"url": NOBODY}, "tags": tags});
        let answer = put(&mut client, "k", &body);
        assert_eq!(answer.problem(), (400, "malformed".to_owned()), "{body}");
        assert_eq!(answer.json()["errors"][0]["pointer"], pointer, "{body}");
    }
    for query in [
        "?tag=",
        "?tag=a,,b",
        "?tag=a%20b",
        "?tag=eu&tag=us",
        "?tag=1,2,3,4,5,6,7,8,9",
    ] {
        let answer = client.get(&format!("{ORDERS}/timers{query}"));
        assert_eq!(answer.problem(), (400, "malformed".to_owned()), "{query}");
    }
    let longest = "x".repeat(64);
    let tags = ["a.b", "c_d", "e-f", "g:h", "i/j", "k=l", "M9", &longest];
    set(&mut client, "k", NOON, &tags);
    assert_eq!(
        listed(&mut client, &format!("?tag={}", tags.join(","))),
        ["k"]
    );
}

#[test]
fn a_job_moves_what_its_filter_names_once_and_shows_how_far_it_is() {
    let (_directory, _server, mut client) = start();
    for (key, at, tags) in [
        ("a-1", NOON, &["eu"][..]),
        ("a-2", "2100-01-01T12:30:00Z", &["eu", "vip"]),
        ("a-3", ONE, &["eu"]),
        ("a-4", NOON, &["us"]),
        ("b-1", NOON, &["eu"]),
    ] {
        set(&mut client, key, at, tags);
    }
    let order = json!({
        "queue": "orders", "action": "move", "move": {"by": "10m"}, "rate": 1000,
        "filter": {"states": ["pending"], "prefix": "a-", "tags": ["eu"], "due_after": NOON, "due_before": ONE},
    });
    let asked = ask(&mut client, &order).expect(202);
    let mut expected = order.clone();
    expected["id"] = asked["id"].clone();
    expected["since"] = asked["since"].clone();
    expected["dry_run"] = false.into();
    for count in ["matched", "done", "skipped"] {
        expected[count] = 0.into();
    }
    expected["shards_left"] = 1.into();
    assert_eq!(asked, expected);
    let job = ended(&mut client, &asked["id"]);
    expected["ended"] = job["ended"].clone();
    expected["shards_left"] = 0.into();
    expected["matched"] = 2.into();
    expected["done"] = 2.into();
    assert_eq!(job, expected);
    assert_eq!(due(&mut client, "a-1"), "2100-01-01T12:10:00.000000Z");
    assert_eq!(due(&mut client, "a-2"), "2100-01-01T12:40:00.000000Z");
    for (key, at) in [("a-3", ONE), ("a-4", NOON), ("b-1", NOON)] {
        assert_eq!(due(&mut client, key), at);
    }
    assert_eq!(client.get(JOBS).expect(200), json!({"jobs": [job]}));
}

#[test]
fn a_dry_run_counts_and_each_action_acts_on_its_states() {
    let (_directory, _server, mut client) = start();
    set(&mut client, "pending", NOON, &["eu"]);
    set(&mut client, "other", NOON, &["us"]);
    set_dead(&mut client, "dead", &["eu"]);
    let order = |action: &str, dry_run: bool| json!({"queue": "orders", "action": action, "filter": {"tags": ["eu"]}, "dry_run": dry_run});
    for (action, states, matched) in [
        ("remove", json!(["pending", "done", "dead"]), 2),
        ("fire", json!(["pending"]), 1),
        ("revive", json!(["dead"]), 1),
    ] {
        let asked = ask(&mut client, &order(action, true)).expect(202);
        assert_eq!(asked["filter"], json!({"states": states, "tags": ["eu"]}));
        let job = ended(&mut client, &asked["id"]);
        let counts = [&job["matched"], &job["done"], &job["skipped"]];
        assert_eq!(counts, [&json!(matched), &json!(0), &json!(0)], "{action}");
    }
    assert_eq!(listed(&mut client, "").len(), 3);
    let asked = ask(&mut client, &order("revive", false)).expect(202);
    assert_eq!(ended(&mut client, &asked["id"])["done"], 1);
    let asked = ask(&mut client, &order("fire", false)).expect(202);
    assert_eq!(ended(&mut client, &asked["id"])["done"], 1);
    let attempts = |client: &mut Client, key: &str| {
        client.get(&format!("{ORDERS}/timers/{key}")).expect(200)["attempt"].as_u64()
    };
    while attempts(&mut client, "pending") == Some(0) || attempts(&mut client, "dead") != Some(2) {
        pause();
    }
    // What is being delivered is left alone, and retried later: so it may take another job.
    while listed(&mut client, "") != ["other"] {
        let asked = ask(&mut client, &order("remove", false)).expect(202);
        let job = ended(&mut client, &asked["id"]);
        assert_eq!(job["matched"], job["done"], "{job}");
    }
}

#[test]
fn a_job_keeps_its_rate_goes_on_after_a_kill_and_can_be_cancelled() {
    let (directory, mut server, mut client) = start();
    for number in 0..40 {
        set(&mut client, &format!("k-{number}"), NOON, &["eu"]);
    }
    let order = json!({
        "queue": "orders", "action": "move", "move": {"at": ONE}, "filter": {}, "rate": 5,
    });
    let asked = ask(&mut client, &order).expect(202);
    let path = format!("{JOBS}/{}", asked["id"]);
    while client.get(&path).expect(200)["done"] == 0 {
        pause();
    }
    server.signal("-KILL");
    server.wait();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    set(&mut client, "later", NOON, &["eu"]);
    let cancelled = client
        .send("POST", &format!("{path}:cancel"), &[], b"")
        .expect(200);
    assert_eq!(cancelled["cancelled"], true);
    let job = ended(&mut client, &asked["id"]);
    let done = job["done"].as_u64().unwrap();
    // Forty timers take eight seconds.
    assert!((1..40).contains(&done), "{job}");
    let moved = listed(&mut client, &format!("?due_after={ONE}")).len() as u64;
    assert_eq!(moved, done);
    assert_eq!(due(&mut client, "later"), NOON);
    // Cancelled again it stays as it is, and another job does the rest.
    let again = client
        .json("POST", &format!("{path}:cancel"), "{}")
        .expect(200);
    assert_eq!(again, job);
    let mut rest = order.clone();
    rest["rate"] = 100_000.into();
    rest["filter"] = json!({"due_before": ONE});
    let asked = ask(&mut client, &rest).expect(202);
    assert_eq!(ended(&mut client, &asked["id"])["done"], 41 - done);
}

#[test]
fn a_job_that_breaks_a_rule_is_refused_with_its_field() {
    let (_directory, _server, mut client) = start();
    let good = json!({"queue": "orders", "action": "fire", "filter": {}});
    let answer = ask(&mut client, &good);
    assert_eq!(answer.problem(), (404, "not_found".to_owned()));
    set(&mut client, "k", NOON, &[]);
    let with = |name: &str, value: Value| {
        let mut body = good.clone();
        body[name] = value;
        body
    };
    let without = |name: &str| {
        let mut body = good.clone();
        body.as_object_mut().unwrap().remove(name);
        body
    };
    let mut moves = with("action", json!("move"));
    for (body, code, pointer) in [
        (without("queue"), "malformed", "/queue"),
        (without("action"), "malformed", "/action"),
        (without("filter"), "malformed", "/filter"),
        (with("queue", json!("a b")), "invalid_queue", "/queue"),
        (with("action", json!("drop")), "malformed", "/action"),
        (with("filters", json!({})), "malformed", "/filters"),
        (with("filter", json!([])), "malformed", "/filter"),
        (
            with("filter", json!({"state": "dead"})),
            "malformed",
            "/filter/state",
        ),
        (
            with("filter", json!({"states": ["dead"]})),
            "malformed",
            "/filter/states/0",
        ),
        (
            with("filter", json!({"states": []})),
            "malformed",
            "/filter/states",
        ),
        (
            with("filter", json!({"tags": ["a b"]})),
            "malformed",
            "/filter/tags/0",
        ),
        (
            with("filter", json!({"prefix": 7})),
            "malformed",
            "/filter/prefix",
        ),
        (
            with("filter", json!({"due_after": "noon"})),
            "malformed",
            "/filter/due_after",
        ),
        (with("rate", json!(0)), "malformed", "/rate"),
        (with("rate", json!(100_001)), "malformed", "/rate"),
        (with("rate", json!(1.5)), "malformed", "/rate"),
        (with("dry_run", json!("yes")), "malformed", "/dry_run"),
        (with("move", json!({"by": "1h"})), "malformed", "/move"),
        (moves.clone(), "malformed", "/move"),
        (
            {
                moves["move"] = json!({});
                moves.clone()
            },
            "malformed",
            "/move",
        ),
        (
            {
                moves["move"] = json!({"by": "1h", "in": "1h"});
                moves.clone()
            },
            "malformed",
            "/move",
        ),
        (
            {
                moves["move"] = json!({"by": "soon"});
                moves.clone()
            },
            "unschedulable",
            "/move/by",
        ),
        (
            {
                moves["move"] = json!({"at": "9000-01-01T00:00:00Z"});
                moves.clone()
            },
            "unschedulable",
            "/move/at",
        ),
    ] {
        let answer = ask(&mut client, &body);
        let status = if code == "unschedulable" { 422 } else { 400 };
        assert_eq!(answer.problem(), (status, code.to_owned()), "{body}");
        assert_eq!(answer.json()["errors"][0]["pointer"], pointer, "{body}");
    }
    for (method, path, status) in [
        ("GET", "/v1/jobs/7", 404),
        ("GET", "/v1/jobs/01", 404),
        ("GET", "/v1/jobs/x", 404),
        ("POST", "/v1/jobs/7:cancel", 404),
        ("POST", "/v1/jobs/7:stop", 404),
        ("POST", "/v1/jobs/7", 404),
        ("DELETE", "/v1/jobs/7", 405),
        ("GET", "/v1/jobs?all=1", 400),
    ] {
        let answer = client.send(method, path, &[], b"");
        assert_eq!(answer.problem().0, status, "{method} {path}");
    }
    assert_eq!(client.get(JOBS).expect(200), json!({"jobs": []}));
    // As many as run at a time.
    for number in 0..64 {
        set(&mut client, &format!("k-{number}"), NOON, &[]);
    }
    for _ in 0..16 {
        let slow = with("rate", json!(1));
        ask(&mut client, &slow).expect(202);
    }
    let answer = ask(&mut client, &good);
    assert_eq!(answer.problem(), (409, "too_many_jobs".to_owned()));
}

#[test]
fn the_commands_ask_for_jobs_follow_and_cancel_them() {
    let (_directory, server, mut client) = start();
    for key in ["a-1", "a-2", "b-1"] {
        set(&mut client, key, NOON, &[]);
    }
    let run = |arguments: &[&str]| {
        let mut command = program();
        command.args(arguments);
        command.args(["--server", &format!("http://{}", server.address)]);
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            text(&output.stdout),
            text(&output.stderr),
            output.status.code(),
        )
    };
    let tagged = [
        "set", "t-1", "--queue", "orders", "--at", NOON, "--post", NOBODY, "--tag", "eu", "--tag",
        "vip",
    ];
    let (_, err, code) = run(&tagged);
    assert_eq!(code, Some(0), "{err}");
    let (out, _, _) = run(&["list", "--queue", "orders", "--tag", "vip", "--tag", "eu"]);
    assert!(out.contains("t-1") && !out.contains("a-1"), "{out}");
    let (out, err, code) = run(&[
        "bulk",
        "move",
        "--queue",
        "orders",
        "--by",
        "1h",
        "--prefix",
        "a-",
        "--state",
        "pending",
        "--due-after",
        NOON,
        "--due-before",
        ONE,
        "--rate",
        "1000",
        "--watch",
    ]);
    assert!(out.contains("move orders: 0 timers done"), "{out}");
    assert!(
        err.contains("2 timers done, 0 skipped, 0 shards left"),
        "{err}"
    );
    assert_eq!(code, Some(0));
    assert_eq!(due(&mut client, "a-1"), ONE);
    let (_, err, code) = run(&[
        "bulk",
        "remove",
        "--queue",
        "orders",
        "--tag",
        "eu",
        "--dry-run",
        "--watch",
    ]);
    assert!(err.contains("a dry run, 1 timer matched"), "{err}");
    assert_eq!(code, Some(0));
    let (out, _, code) = run(&[
        "bulk", "move", "--queue", "orders", "--at", ONE, "--rate", "1", "--json",
    ]);
    assert_eq!(code, Some(0));
    let job: Value = serde_json::from_str(&out).unwrap();
    let id = job["id"].to_string();
    let (out, err, code) = run(&["job", &id, "--cancel", "--watch"]);
    assert!(
        out.contains("job ") && err.contains("cancelled"),
        "{out} {err}"
    );
    assert_eq!(code, Some(1));
    let (out, _, code) = run(&["jobs"]);
    assert!(
        out.contains("remove (dry run)") && out.contains("cancelled"),
        "{out}"
    );
    assert_eq!(code, Some(0));
    let (_, err, code) = run(&["job", "999999"]);
    assert!(err.contains("there is no such job"), "{err}");
    assert_eq!(code, Some(2));
    let (_, err, code) = run(&["bulk", "move", "--queue", "orders"]);
    assert!(err.contains("\"move\" is missing"), "{err}");
    assert_eq!(code, Some(1));
}
