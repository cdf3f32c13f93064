//! Purges of queues, as callers ask for them.

use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, Server, pause, program};

const ORDERS: &str = "/v1/queues/orders";
const PURGE: &str = "/v1/queues/orders:purge";
const CANCEL: &str = "/v1/queues/orders:cancel-purge";

fn start() -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let client = server.client();
    (directory, server, client)
}

fn set(client: &mut Client, key: &str, at: &str) {
    let body = json!({"at": at, "target": {"url": "http://127.0.0.1:1/"}});
    let path = format!("{ORDERS}/timers/{key}");
    client.json("PUT", &path, &body.to_string()).expect(201);
}

fn ask(client: &mut Client, path: &str, body: &Value) -> Answer {
    client.json("POST", path, &body.to_string())
}

/// The queue once its purge is through.
fn purged(client: &mut Client) -> Value {
    loop {
        let queue = client.get(ORDERS).expect(200);
        if !queue["purge"]["ended"].is_null() {
            return queue;
        }
        assert!(!queue["purge"].is_null(), "{queue}");
        pause();
    }
}

fn keys(client: &mut Client) -> Vec<String> {
    let list = client.get("/v1/queues/orders/timers").expect(200);
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["key"].as_str().unwrap().to_owned())
        .collect()
}

const NOON: &str = "2100-01-01T12:00:00.000000Z";
const ONE: &str = "2100-01-01T13:00:00.000000Z";

#[test]
fn a_purge_removes_what_it_names_and_shows_how_far_it_is() {
    let (_directory, _server, mut client) = start();
    for (key, at) in [
        ("a-1", NOON),
        ("a-2", "2100-01-01T12:30:00Z"),
        ("a-3", ONE),
        ("b-1", NOON),
    ] {
        set(&mut client, key, at);
    }
    let filter = json!({
        "states": ["dead", "pending"], "prefix": "a-", "due_after": NOON, "due_before": ONE,
    });
    let asked = ask(&mut client, PURGE, &filter).expect(202);
    let purge = json!({
        "id": asked["purge"]["id"], "states": ["pending", "dead"], "prefix": "a-",
        "due_after": NOON, "due_before": ONE, "since": asked["purge"]["since"],
        "removed": 0, "shards_left": 1,
    });
    assert_eq!(asked, json!({"queue": "orders", "purge": purge}));
    let through = purged(&mut client);
    let mut expected = purge.clone();
    expected["removed"] = 2.into();
    expected["shards_left"] = 0.into();
    expected["ended"] = through["purge"]["ended"].clone();
    assert_eq!(through["purge"], expected);
    assert_eq!(keys(&mut client), ["b-1", "a-3"]);
    // Without a body it is everything, and the empty queue still shows it.
    client.send("POST", PURGE, &[], b"").expect(202);
    let through = purged(&mut client);
    assert_eq!(
        (&through["pending"], &through["purge"]["removed"]),
        (&0.into(), &2.into())
    );
    let queues = client.get("/v1/queues").expect(200);
    assert_eq!(queues["queues"][0]["purge"], through["purge"]);
    // There is nothing left to be purged.
    let answer = client.send("POST", PURGE, &[], b"");
    assert_eq!(answer.problem(), (404, "not_found".to_owned()));
}

#[test]
fn one_purge_of_a_queue_runs_at_a_time_and_can_be_cancelled() {
    let (_directory, _server, mut client) = start();
    let answer = client.send("POST", CANCEL, &[], b"");
    assert_eq!(answer.problem(), (404, "not_found".to_owned()));
    let (mut refused, mut cancelled) = (false, false);
    // Each may be through before it is looked at.
    for round in 0..50 {
        set(&mut client, &format!("k-{round}"), NOON);
        let first = client.send("POST", PURGE, &[], b"").expect(202);
        let second = client.send("POST", PURGE, &[], b"");
        if second.status == 409 {
            assert_eq!(second.problem(), (409, "purging".to_owned()));
            assert_eq!(second.json()["purge"]["id"], first["purge"]["id"]);
            refused = true;
        }
        let answer = client.send("POST", CANCEL, &[], b"");
        if answer.status == 200 {
            assert_eq!(answer.json()["purge"]["id"], first["purge"]["id"]);
            let queue = client.get(ORDERS).expect(200);
            assert!(queue["purge"].is_null(), "{queue}");
            cancelled = true;
        }
        if refused && cancelled {
            return;
        }
    }
    panic!("refused: {refused}, cancelled: {cancelled}");
}

#[test]
fn a_purge_that_breaks_a_rule_is_refused_with_its_field() {
    let (_directory, _server, mut client) = start();
    let answer = ask(&mut client, PURGE, &json!({}));
    assert_eq!(answer.problem(), (404, "not_found".to_owned()));
    set(&mut client, "k", NOON);
    for (body, pointer) in [
        (json!({"stats": []}), "/stats"),
        (json!({"states": []}), "/states"),
        (json!({"states": "dead"}), "/states"),
        (json!({"states": ["dead", "asleep"]}), "/states/1"),
        (json!({"states": ["delivering"]}), "/states/0"),
        (json!({"states": ["dead", "dead"]}), "/states/1"),
        (json!({"states": [7]}), "/states/0"),
        (json!({"prefix": 7}), "/prefix"),
        (json!({"prefix": "x".repeat(257)}), "/prefix"),
        (json!({"due_after": 7}), "/due_after"),
        (json!({"due_before": "noon"}), "/due_before"),
    ] {
        let answer = ask(&mut client, PURGE, &body);
        assert_eq!(answer.problem(), (400, "malformed".to_owned()), "{body}");
        let errors = &answer.json()["errors"];
        assert_eq!(errors[0]["pointer"], pointer, "{body}");
    }
    let conditional = [("If-Match", "*")];
    for path in [PURGE, CANCEL] {
        let answer = client.send("POST", path, &conditional, b"");
        assert_eq!(answer.problem().0, 400, "{path}");
        let answer = client.send("POST", &format!("{path}?state=dead"), &[], b"");
        assert_eq!(answer.problem().0, 400, "{path}");
    }
    assert_eq!(ask(&mut client, CANCEL, &json!({"id": 7})).problem().0, 400);
    assert_eq!(keys(&mut client), ["k"]);
}

#[test]
fn a_purge_goes_on_after_a_kill() {
    let (directory, mut server, mut client) = start();
    for number in 0..600 {
        set(&mut client, &format!("k-{number}"), NOON);
    }
    client.send("POST", PURGE, &[], b"").expect(202);
    set(&mut client, "later", NOON);
    server.signal("-KILL");
    server.wait();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    assert_eq!(purged(&mut client)["purge"]["removed"], 600);
    assert_eq!(keys(&mut client), ["later"]);
}

#[test]
fn the_command_asks_watches_and_cancels() {
    let (_directory, server, mut client) = start();
    for key in ["a-1", "a-2", "b-1"] {
        set(&mut client, key, NOON);
    }
    let run = |arguments: &[&str]| {
        let mut command = program();
        command.args(["purge", "--queue", "orders"]).args(arguments);
        command.args(["--server", &format!("http://{}", server.address)]);
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            text(&output.stdout),
            text(&output.stderr),
            output.status.code(),
        )
    };
    let (out, err, code) = run(&[
        "--prefix",
        "a-",
        "--state",
        "pending",
        "--state",
        "dead",
        "--due-after",
        NOON,
        "--due-before",
        ONE,
        "--watch",
    ]);
    assert!(
        out.contains("orders") && out.contains("0 timers removed"),
        "{out}"
    );
    assert!(err.contains("was purged of 2 timers"), "{err}");
    assert_eq!(code, Some(0));
    assert_eq!(keys(&mut client), ["b-1"]);
    let (_, err, code) = run(&["--cancel"]);
    assert!(err.contains("no purge of that queue runs"), "{err}");
    assert_eq!(code, Some(2));
    let (_, err, code) = run(&["--state", "delivering"]);
    assert!(
        err.contains("what is being delivered is not removed"),
        "{err}"
    );
    assert_eq!(code, Some(1));
}
