//! Work that workers fetch: leases over HTTP. `sim leases` has the worlds, these are the sentences.

use std::io::Write as _;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use countwheel_time::Patience;
use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, PATIENCE, Server, pause, program, wait_for_state};

const JOBS: &str = "/v1/queues/jobs";

fn start() -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    pulled(&mut client, JOBS, &json!({}));
    (directory, server, client)
}

#[track_caller]
fn pulled(client: &mut Client, queue: &str, more: &Value) {
    let mut settings = json!({"mode": "pull"});
    for (name, value) in more.as_object().unwrap() {
        settings[name] = value.clone();
    }
    let answer = client.json("PUT", queue, &settings.to_string());
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
}

#[track_caller]
fn set(client: &mut Client, key: &str, body: &Value) {
    let path = format!("{JOBS}/timers/{key}");
    let answer = client.json("PUT", &path, &body.to_string());
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
}

#[track_caller]
fn lease(client: &mut Client, asked: &Value) -> Vec<Value> {
    let answer = client.json("POST", &format!("{JOBS}:lease"), &asked.to_string());
    answer.expect(200)["leases"].as_array().unwrap().clone()
}

fn post(client: &mut Client, verb: &str, body: &Value) -> Answer {
    client.json("POST", &format!("/v1/leases:{verb}"), &body.to_string())
}

fn named(lease: &Value) -> Value {
    json!({"queue": lease["queue"], "key": lease["key"], "token": lease["token"]})
}

fn with(mut one: Value, name: &str, value: Value) -> Value {
    one[name] = value;
    one
}

fn timer(client: &mut Client, key: &str) -> Value {
    client.get(&format!("{JOBS}/timers/{key}")).expect(200)
}

#[test]
fn a_timer_is_leased_shown_and_acked() {
    let (_directory, _server, mut client) = start();
    let asked = json!({"in": 0, "body": {"n": 7}});
    set(&mut client, "k", &asked);
    // Nobody asks: it waits, and is not late.
    wait_for_state(&mut client, "/v1/queues/jobs/timers/k", "pending");
    let asked = json!({"max": 10, "wait": "5s", "lease": "1m", "worker": "w-1"});
    let leases = lease(&mut client, &asked);
    assert_eq!(leases.len(), 1, "{leases:?}");
    let first = &leases[0];
    assert_eq!(
        (&first["key"], &first["body"], &first["content_type"]),
        (
            &json!("k"),
            &json!(r#"{"n":7}"#),
            &json!("application/json")
        ),
    );
    assert_eq!(
        (&first["attempt"], &first["queue"]),
        (&json!(1), &json!("jobs"))
    );
    let shown = timer(&mut client, "k");
    assert_eq!(
        (&shown["state"], &shown["worker"], &shown["leased_until"]),
        (&json!("leased"), &json!("w-1"), &first["leased_until"]),
    );
    assert_eq!(shown["due"], first["due"]);
    assert!(lease(&mut client, &json!({"max": 10})).is_empty());

    let acked = post(&mut client, "ack", &named(first)).expect(200);
    assert_eq!(
        (&acked["state"], &acked["status"]),
        (&json!("done"), &json!(200))
    );
    let shown = timer(&mut client, "k");
    assert_eq!(shown["attempts"][0]["result"], "done", "{shown}");
    // Whoever has not seen the answer acks again.
    assert_eq!(
        post(&mut client, "ack", &named(first)).expect(200)["state"],
        "done"
    );
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how long another process waits")]
fn a_call_waits_for_what_comes_due() {
    let (_directory, server, mut client) = start();
    let waiting = {
        let mut client = server.client();
        thread::spawn(move || {
            let began = Instant::now();
            let leases = lease(&mut client, &json!({"wait": "10s"}));
            (leases, began.elapsed())
        })
    };
    thread::sleep(Duration::from_millis(200));
    set(&mut client, "soon", &json!({"in": "300ms"}));
    let (leases, waited) = waiting.join().unwrap();
    assert_eq!(leases[0]["key"], "soon");
    assert!(
        (Duration::from_millis(400)..Duration::from_secs(5)).contains(&waited),
        "{waited:?}"
    );
    assert!(
        leases[0]["late_us"].as_u64().unwrap() < 200_000,
        "{leases:?}"
    );
    let began = Instant::now();
    assert!(lease(&mut client, &json!({"wait": "1s"})).is_empty());
    assert!(began.elapsed() >= Duration::from_millis(900));
}

#[test]
fn a_lease_that_is_lost_comes_again_under_a_higher_token_and_the_old_one_is_refused() {
    let (_directory, _server, mut client) = start();
    let retry = json!({"fixed": "1h", "max_attempts": 2});
    set(&mut client, "k", &json!({"in": 0, "retry": retry}));
    let first = lease(
        &mut client,
        &json!({"wait": "5s", "lease": "1s", "worker": "one"}),
    )
    .remove(0);
    let second = lease(
        &mut client,
        &json!({"wait": "10s", "lease": "1s", "worker": "two"}),
    )
    .remove(0);
    assert_eq!(second["attempt"], 2);
    assert!(second["token"].as_str() > first["token"].as_str());
    for verb in ["ack", "nack"] {
        let refused = post(&mut client, verb, &named(&first));
        assert_eq!(refused.problem(), (409, "lease_lost".to_owned()));
        let said = refused.json();
        assert_eq!(
            (&said["worker"], &said["state"]),
            (&json!("two"), &json!("leased"))
        );
        assert_eq!(said["leased_until"], second["leased_until"]);
    }
    let shown = timer(&mut client, "k");
    assert_eq!(shown["attempts"][0]["result"], "lost");
    // The second was the last.
    let dead = wait_for_state(&mut client, "/v1/queues/jobs/timers/k", "dead");
    assert_eq!(dead["dead_reason"], "lease_lost");
    let refused = post(&mut client, "ack", &named(&second));
    assert_eq!(refused.problem(), (409, "lease_lost".to_owned()));
}

#[test]
fn a_nack_counts_by_the_policy_that_the_queue_has_then() {
    let (_directory, _server, mut client) = start();
    pulled(&mut client, JOBS, &json!({"retry": {"fixed": "1h"}}));
    set(&mut client, "k", &json!({"in": 0}));
    let shown = timer(&mut client, "k");
    assert_eq!(
        shown["from"],
        json!({"retry": "queue", "missed": "default"})
    );
    assert_eq!(shown["target"]["timeout"], Value::Null);
    let first = lease(&mut client, &json!({"wait": "5s"})).remove(0);
    let once = json!({"retry": {"fixed": "1h", "max_attempts": 1}});
    pulled(&mut client, JOBS, &once);
    let ended = post(&mut client, "nack", &named(&first)).expect(200);
    assert_eq!(ended["state"], "dead");
}

#[test]
fn a_nack_comes_again_by_the_policy_after_a_delay_or_never() {
    let (_directory, _server, mut client) = start();
    for key in ["policy", "delay", "dead"] {
        set(
            &mut client,
            key,
            &json!({"in": 0, "retry": {"fixed": "1h", "max_attempts": 5}}),
        );
    }
    let mut leases = lease(&mut client, &json!({"max": 3, "wait": "5s"}));
    while leases.len() < 3 {
        leases.extend(lease(&mut client, &json!({"max": 3, "wait": "5s"})));
    }
    let of = |key: &str| named(leases.iter().find(|it| it["key"] == key).unwrap());
    let items = json!({"items": [
        with(of("policy"), "detail", json!("no stock")),
        with(of("delay"), "in", json!("100ms")),
        with(of("dead"), "dead", json!(true)),
        with(of("dead"), "token", json!("000000000000000000000000")),
    ]});
    let results = post(&mut client, "nack", &items).expect(200);
    let statuses: Vec<_> = (0..4)
        .map(|at| results["results"][at]["status"].clone())
        .collect();
    assert_eq!(statuses, [200, 200, 200, 409], "{results}");
    assert_eq!(results["results"][3]["code"], "lease_lost");
    let again = lease(&mut client, &json!({"max": 3, "wait": "5s"}));
    assert_eq!(
        (again.len(), &again[0]["key"], &again[0]["attempt"]),
        (1, &json!("delay"), &json!(2))
    );
    let policy = timer(&mut client, "policy");
    assert_eq!(policy["attempts"][0]["detail"], "no stock");
    assert_eq!(
        (&policy["state"], &policy["failures"]),
        (&json!("pending"), &json!(1))
    );
    assert_eq!(timer(&mut client, "dead")["dead_reason"], "stopped");
}

#[test]
fn a_lease_is_extended_and_holds_over_a_restart() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let server = Server::start(&data);
    let mut client = server.client();
    pulled(&mut client, JOBS, &json!({"lease": "2s"}));
    set(&mut client, "k", &json!({"in": 0}));
    let leased = lease(&mut client, &json!({"wait": "5s"})).remove(0);
    let asked = with(named(&leased), "lease", json!("1h"));
    let extended = post(&mut client, "extend", &asked).expect(200);
    assert!(extended["leased_until"].as_str() > leased["leased_until"].as_str());
    server.signal("-KILL");
    drop(server);
    let server = Server::start(&data);
    let mut client = server.client();
    assert_eq!(timer(&mut client, "k")["state"], "leased");
    assert!(lease(&mut client, &json!({"wait": "3s"})).is_empty());
    assert_eq!(
        post(&mut client, "ack", &named(&leased)).expect(200)["state"],
        "done"
    );
}

#[test]
fn what_is_asked_wrongly_is_refused_and_leases_nothing() {
    let (_directory, _server, mut client) = start();
    set(&mut client, "k", &json!({"in": 0}));
    for (asked, pointer) in [
        (json!({"max": 0}), "/max"),
        (json!({"max": 1001}), "/max"),
        (json!({"lease": "0s"}), "/lease"),
        (json!({"lease": "12h 1s"}), "/lease"),
        (json!({"wait": "61s"}), "/wait"),
        (json!({"worker": ""}), "/worker"),
        (json!({"worker": "a\u{7}"}), "/worker"),
    ] {
        let answer = client.json("POST", &format!("{JOBS}:lease"), &asked.to_string());
        assert_eq!(
            answer.problem(),
            (422, "invalid_setting".to_owned()),
            "{asked}"
        );
        assert_eq!(answer.json()["errors"][0]["pointer"], pointer);
    }
    let pushed = client.json("POST", "/v1/queues/other:lease", "{}");
    assert_eq!(pushed.problem(), (409, "push_queue".to_owned()));
    let both = client.json("POST", "/v1/leases", r#"{"queues": ["jobs", "other"]}"#);
    assert_eq!(both.problem(), (409, "push_queue".to_owned()));
    for queues in [json!([]), json!(["jobs", "jobs"]), json!(["/"]), json!(7)] {
        let asked = json!({"queues": queues}).to_string();
        let status = client.json("POST", "/v1/leases", &asked).problem().0;
        assert!((400..=422).contains(&status), "{queues}");
    }
    let target = json!({"in": 0, "target": {"url": "http://example.com/"}});
    let answer = client.json("PUT", &format!("{JOBS}/timers/t"), &target.to_string());
    assert_eq!(answer.problem(), (422, "pull_queue".to_owned()));
    for settings in [
        json!({"mode": "shove"}),
        json!({"lease": "30s"}),
        json!({"mode": "pull", "lease": "1ms"}),
        json!({"mode": "pull", "timeout": "5s"}),
        json!({"mode": "pull", "statuses": {"4xx": "stop"}}),
        json!({"mode": "pull", "cloudevents": {"source": "/x", "type": "y"}}),
    ] {
        let answer = client.json("PUT", "/v1/queues/q", &settings.to_string());
        assert_eq!(
            answer.problem(),
            (422, "invalid_setting".to_owned()),
            "{settings}"
        );
    }
    for body in [
        json!({}),
        json!({"queue": "jobs", "key": "k"}),
        json!({"queue": "jobs", "key": "k", "token": 7}),
        json!({"queue": "jobs", "key": "k", "token": "xyz"}),
        json!({"items": []}),
        json!({"items": [{"queue": "jobs"}]}),
        json!({"items": [], "queue": "jobs"}),
    ] {
        let status = post(&mut client, "ack", &body).problem().0;
        assert!((400..=422).contains(&status), "{body}");
    }
    // Nothing was leased by any of that.
    assert_eq!(timer(&mut client, "k")["attempt"], 0);
    let leased = lease(&mut client, &json!({"wait": "5s"})).remove(0);
    let dead = with(with(named(&leased), "dead", json!(true)), "in", json!("1s"));
    assert_eq!(post(&mut client, "nack", &dead).problem().0, 422);
    assert_eq!(
        post(&mut client, "extend", &named(&leased)).problem().0,
        400
    );
    assert_eq!(post(&mut client, "ack", &named(&leased)).status, 200);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "another process lets them come due"
)]
fn a_serial_key_and_the_concurrency_of_the_queue_hold_for_leases() {
    let (_directory, _server, mut client) = start();
    pulled(
        &mut client,
        JOBS,
        &json!({"serial": true, "concurrency": 2}),
    );
    for (key, serial) in [("a-1", "a"), ("a-2", "a"), ("b-1", "b"), ("c-1", "c")] {
        set(&mut client, key, &json!({"in": 0, "serial_key": serial}));
    }
    thread::sleep(Duration::from_millis(50));
    let mut leases = lease(&mut client, &json!({"max": 10, "wait": "5s"}));
    leases.extend(lease(&mut client, &json!({"max": 10})));
    let keys: Vec<_> = leases
        .iter()
        .map(|it| it["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["a-1", "b-1"]);
    post(&mut client, "ack", &named(&leases[0])).expect(200);
    let next = lease(&mut client, &json!({"max": 10, "wait": "5s"}));
    assert_eq!((next.len(), &next[0]["key"]), (1, &json!("a-2")));
}

/// It was lost, and counted as a failed attempt.
#[test]
#[expect(clippy::disallowed_methods, reason = "how long another process waits")]
fn what_was_leased_for_a_caller_that_is_gone_is_given_back() {
    let (_directory, server, mut client) = start();
    let asked = json!({"max": 1, "wait": "30s", "lease": "1m"}).to_string();
    let mut gone = server.client();
    gone.hang_up_after("POST", &format!("{JOBS}:lease"), &asked);
    thread::sleep(Duration::from_millis(400));
    for key in ["a", "b", "c"] {
        set(
            &mut client,
            key,
            &json!({"in": 0, "retry": {"fixed": "1h"}}),
        );
    }
    let mut keys = Vec::new();
    while keys.len() < 3 {
        let leases = lease(&mut client, &json!({"max": 5, "wait": "10s"}));
        assert!(!leases.is_empty(), "{keys:?}");
        for leased in leases {
            assert_eq!(leased["attempt"], 1, "{leased}");
            post(&mut client, "ack", &named(&leased)).expect(200);
            keys.push(leased["key"].as_str().unwrap().to_owned());
        }
    }
    keys.sort();
    assert_eq!(keys, ["a", "b", "c"]);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "another process lets them come due"
)]
fn one_call_takes_from_each_of_its_queues() {
    let (_directory, _server, mut client) = start();
    pulled(&mut client, "/v1/queues/few", &json!({}));
    for key in 0..50 {
        set(&mut client, &format!("k-{key}"), &json!({"in": 0}));
    }
    let one = client.json("PUT", "/v1/queues/few/timers/one", r#"{"in": 0}"#);
    assert_eq!(one.status, 201);
    // Both have to wait by then, on a busy machine as well: a call takes what is there.
    thread::sleep(Duration::from_secs(1));
    let asked = json!({"queues": ["jobs", "few"], "max": 10, "wait": "5s"}).to_string();
    let leases = client.json("POST", "/v1/leases", &asked).expect(200)["leases"].clone();
    let few = leases
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["queue"] == "few");
    assert_eq!(few.count(), 1, "{leases}");
    assert!(leases.as_array().unwrap().len() >= 5, "{leases}");
}

#[test]
fn the_placement_of_a_queue_is_fixed_while_it_has_timers() {
    let (_directory, _server, mut client) = start();
    pulled(&mut client, JOBS, &json!({"placement": "one"}));
    assert_eq!(client.get(JOBS).expect(200)["placement"], "one");
    // Without shards, no key needs a tag.
    set(&mut client, "k", &json!({"in": "1h"}));
    let other = client.json("PUT", JOBS, r#"{"mode": "pull"}"#);
    assert_eq!(other.problem(), (409, "placement_fixed".to_owned()));
    pulled(
        &mut client,
        JOBS,
        &json!({"placement": "one", "lease": "9s"}),
    );
    let bad = client.json("PUT", JOBS, r#"{"mode": "pull", "placement": "two"}"#);
    assert_eq!(bad.problem(), (422, "invalid_setting".to_owned()));
    client
        .send("DELETE", &format!("{JOBS}/timers/k"), &[], b"")
        .expect(200);
    let other = client.json("PUT", JOBS, r#"{"mode": "pull"}"#);
    assert_eq!(other.status, 200, "{other:?}");
}

#[test]
fn a_leased_timer_is_exported_and_imported_as_one_that_is_delivered() {
    let (_directory, server, mut client) = start();
    let timer = json!({"in": 0, "target": {"headers": {"x-a": "7"}}, "body": "b"});
    set(&mut client, "k", &timer);
    let leased = lease(&mut client, &json!({"wait": "5s"})).remove(0);
    assert_eq!(leased["headers"]["x-a"], "7");
    let url = format!("http://{}", server.address);
    let export = program().args(["export", "--server", &url]).output();
    let lines = export.unwrap().stdout;
    let text = String::from_utf8(lines.clone()).unwrap();
    assert!(text.contains(r#""state":"delivering""#), "{text}");
    let (_other, fresh, mut to) = start();
    let file = Directory::new();
    std::fs::create_dir_all(&file.0).unwrap();
    let path = file.0.join("timers");
    std::fs::write(&path, &lines).unwrap();
    let url = format!("http://{}", fresh.address);
    let mut import = program();
    let import = import
        .args(["import", "--server", &url])
        .arg(&path)
        .output();
    let import = import.unwrap();
    assert!(import.status.success(), "{import:?}");
    let again = lease(&mut to, &json!({"wait": "5s"})).remove(0);
    assert_eq!(again["headers"], leased["headers"]);
}

#[test]
fn limits_hold_for_leases_over_a_restart_and_a_rate_goes_on() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let server = Server::start(&data);
    let mut client = server.client();
    let settings =
        json!({"serial": true, "concurrency": 2, "rate": {"per_second": 20, "burst": 1}});
    pulled(&mut client, JOBS, &settings);
    for (key, serial) in [("a-1", "a"), ("a-2", "a"), ("b-1", "b"), ("c-1", "c")] {
        set(&mut client, key, &json!({"in": 0, "serial_key": serial}));
    }
    let mut leases = Vec::new();
    while leases.len() < 2 {
        leases.extend(lease(&mut client, &json!({"max": 10, "wait": "5s"})));
    }
    server.signal("-KILL");
    drop(server);
    let server = Server::start(&data);
    let mut client = server.client();
    assert!(lease(&mut client, &json!({"max": 10, "wait": "1s"})).is_empty());
    post(&mut client, "ack", &named(&leases[0])).expect(200);
    let next = lease(&mut client, &json!({"max": 10, "wait": "5s"}));
    assert_eq!((next.len(), &next[0]["key"]), (1, &json!("a-2")));
}

#[test]
fn a_stop_of_the_service_answers_the_calls_that_wait() {
    let (_directory, mut server, _client) = start();
    let waiting = {
        let mut client = server.client();
        thread::spawn(move || lease(&mut client, &json!({"wait": "30s"})))
    };
    (0..30).for_each(|_| pause());
    server.signal("-TERM");
    assert!(waiting.join().unwrap().is_empty());
    assert!(server.wait().success());
}

#[test]
fn what_was_leased_shows_the_time_at_which_it_was_due_again_once_it_is_done() {
    let (_directory, _server, mut client) = start();
    set(&mut client, "k", &json!({"in": 0}));
    let leased = lease(&mut client, &json!({"wait": "5s", "lease": "12h"})).remove(0);
    post(&mut client, "ack", &named(&leased)).expect(200);
    assert_eq!(timer(&mut client, "k")["due"], leased["due"]);
    let target = json!({"target": {"url": "http://127.0.0.1:1/"}}).to_string();
    let resent = client.json("POST", &format!("{JOBS}/timers/k:resend"), &target);
    assert!(matches!(resent.problem().0, 409 | 422), "{resent:?}");
}

#[test]
fn an_answer_has_no_more_bodies_than_there_is_memory_for() {
    let directory = Directory::new();
    let arguments = ["--body-memory", "4"];
    let server = Server::with(&directory.0.join("data"), &arguments);
    let mut client = server.client();
    pulled(&mut client, JOBS, &json!({}));
    let body = "x".repeat(900 << 10);
    for key in 0..6 {
        set(
            &mut client,
            &format!("k-{key}"),
            &json!({"in": 0, "body": body}),
        );
    }
    let leases = lease(&mut client, &json!({"max": 6, "wait": "5s"}));
    assert!((1..=3).contains(&leases.len()), "{}", leases.len());
    let mut keys = leases.len();
    while keys < 6 {
        // What had no room was given back, and is no attempt.
        let leases = lease(&mut client, &json!({"max": 6, "wait": "5s"}));
        assert!(leases.iter().all(|it| it["attempt"] == 1));
        keys += leases.len();
    }
}

#[test]
fn a_refusal_says_that_a_worker_has_the_timer() {
    let (_directory, _server, mut client) = start();
    set(&mut client, "k", &json!({"in": 0}));
    let first = lease(&mut client, &json!({"wait": "5s", "worker": "w-1"})).remove(0);
    let path = format!("{JOBS}/timers/k");
    for (method, path, body) in [
        ("POST", format!("{path}:fire"), ""),
        ("PATCH", path.clone(), r#"{"in": 5}"#),
        ("DELETE", format!("{path}?only=pending"), ""),
        ("POST", format!("{path}:resend"), ""),
    ] {
        let answer = client.json(method, &path, body);
        assert_eq!(answer.problem(), (409, "conflict".to_owned()), "{path}");
        assert_eq!(answer.json()["state"], "leased", "{path}");
    }
    let other = with(named(&first), "token", json!("000000000000000000000001"));
    let refused = post(&mut client, "ack", &other);
    assert_eq!(refused.problem(), (409, "lease_lost".to_owned()));
    let refused = refused.json();
    for (name, value) in [
        ("title", json!("Lease lost")),
        ("state", json!("leased")),
        ("queue", json!("jobs")),
        ("key", json!("k")),
        ("worker", json!("w-1")),
        ("leased_until", first["leased_until"].clone()),
    ] {
        assert_eq!(refused[name], value, "{refused}");
    }
    let removed = client.json("DELETE", &path, "").expect(200);
    assert_eq!(
        (&removed["was"], &removed["attempt"]),
        (&json!("leased"), &json!(1))
    );
    let gone = post(&mut client, "ack", &named(&first));
    assert_eq!(gone.problem(), (409, "lease_lost".to_owned()));
}

/// The program as a shell runs it, with something on standard input.
fn run(server: &Server, arguments: &[&str], input: &str) -> (String, String, Option<i32>) {
    let mut command = program();
    let command = command
        .args(arguments)
        .env("COUNTWHEEL_SERVER", format!("http://{}", server.address));
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that reads nothing may have ended.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        text(output.stdout),
        text(output.stderr),
        output.status.code(),
    )
}

#[test]
fn the_command_line_leases_acks_nacks_and_extends() {
    let (_directory, server, mut client) = start();
    for key in ["a", "b", "c"] {
        let (said, _, code) = run(
            &server,
            &["set", key, "--queue", "jobs", "--in", "0s", "--body", key],
            "",
        );
        assert!(said.starts_with("set ") && code == Some(0), "{said}");
    }
    let mut lines = String::new();
    while lines.lines().count() < 3 {
        let (said, err, code) = run(
            &server,
            &[
                "lease", "jobs", "--max", "5", "--wait", "10s", "--lease", "5m", "--worker", "w",
            ],
            "",
        );
        assert_eq!((err.as_str(), code), ("", Some(0)));
        lines.push_str(&said);
    }
    let leases: Vec<Value> = lines
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    let of = |key: &str| leases.iter().find(|it| it["key"] == key).unwrap();
    let token = |key: &str| of(key)["token"].as_str().unwrap().to_owned();
    assert_eq!(of("b")["body"], "b");
    let (a, b) = (token("a"), token("b"));

    let (said, _, code) = run(&server, &["extend", "jobs", "a", &a, "--lease", "1h"], "");
    assert!(
        said.contains("jobs a  leased until") && code == Some(0),
        "{said}"
    );
    assert_ne!(
        timer(&mut client, "a")["leased_until"],
        of("a")["leased_until"]
    );
    let nack = ["nack", "jobs", "b", &b, "--in", "1h", "--detail", "no disk"];
    let (said, _, code) = run(&server, &nack, "");
    assert!(
        said.contains("jobs b  pending, due ") && code == Some(0),
        "{said}"
    );
    let (_, err, code) = run(&server, &["nack", "jobs", "b", &b, "--dead"], "");
    assert!(
        err.contains("b: ") && err.contains("(lease_lost)") && code == Some(1),
        "{err}"
    );
    // The lines of all three: one of them is lost by now.
    let (said, err, code) = run(&server, &["ack", "-"], &lines);
    assert!(
        said.contains("jobs a  done") && said.contains("jobs c  done"),
        "{said}"
    );
    assert!(err.contains("b: ") && code == Some(1), "{err}");
    assert_eq!(run(&server, &["ack", "-"], "").2, Some(0));

    // What a worker has can be removed.
    set(&mut client, "d", &json!({"in": 0}));
    lease(&mut client, &json!({"wait": "5s"})).remove(0);
    let (said, err, code) = run(&server, &["remove", "d", "--queue", "jobs"], "");
    assert!(
        said.starts_with("removed ") && code == Some(0),
        "{said}{err}"
    );

    for arguments in [
        &["lease"][..],
        &["lease", "jobs", "--wait", "5"],
        &["ack", "jobs"],
        &["ack", "jobs", "a"],
        &["nack", "jobs", "a", &a, "--in", "1s", "--dead"],
        &["extend", "jobs", "a", &a],
        &["work", "jobs"],
        &["work", "jobs", "--concurrency", "0", "--", "true"],
    ] {
        assert_eq!(run(&server, arguments, "").2, Some(2), "{arguments:?}");
    }
    let (_, err, code) = run(&server, &["ack", "-"], "{\"queue\": 7}\n");
    assert!(
        err.contains("line 1 of standard input") && code == Some(2),
        "{err}"
    );
    let (_, err, code) = run(&server, &["lease", "other"], "");
    assert!(err.contains("(push_queue)") && code == Some(1), "{err}");
    let (_, err, code) = run(&server, &["lease", "jobs", "--max", "1001"], "");
    assert!(
        err.contains("(invalid_setting)") && code == Some(1),
        "{err}"
    );
}

#[test]
fn a_command_works_for_each_timer() {
    let (directory, server, mut client) = start();
    let out = directory.0.join("out");
    for (key, body) in [("good", "one"), ("bad", "two")] {
        let set = [
            "set",
            key,
            "--queue",
            "jobs",
            "--in",
            "0s",
            "--body",
            body,
            "--retry",
            "fixed:1s",
            "--max-attempts",
            "1",
        ];
        let (said, err, code) = run(&server, &set, "");
        assert_eq!(code, Some(0), "{said}{err}");
    }
    let script = format!(
        "cat >> {0}; echo \" $COUNTWHEEL_QUEUE $COUNTWHEEL_KEY $COUNTWHEEL_ATTEMPT\" >> {0}; test $COUNTWHEEL_KEY = good",
        out.display()
    );
    let work = [
        "work", "jobs", "--max", "2", "--lease", "1s", "--", "sh", "-c", &script,
    ];
    let (_, err, code) = run(&server, &work, "");
    assert!(
        err.contains("bad: exit status: 1") && code == Some(0),
        "{err}"
    );
    let mut lines: Vec<_> = std::fs::read_to_string(&out)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    assert_eq!(lines, ["one jobs good 1", "two jobs bad 1"]);
    assert_eq!(timer(&mut client, "good")["state"], "done");
    let bad = timer(&mut client, "bad");
    assert_eq!(
        (&bad["state"], &bad["attempts"][0]["detail"]),
        (&json!("dead"), &json!("exit status: 1"))
    );

    // It outlasts its lease, which is extended.
    set(&mut client, "long", &json!({"in": 0}));
    let work = [
        "work", "jobs", "--max", "1", "--lease", "1s", "--", "sleep", "3",
    ];
    let (_, err, code) = run(&server, &work, "");
    assert_eq!((err.as_str(), code), ("", Some(0)));
    let long = timer(&mut client, "long");
    assert_eq!(
        (&long["state"], &long["attempt"]),
        (&json!("done"), &json!(1)),
        "{long}"
    );

    // A command whose timer is removed has lost its lease, and is killed.
    set(&mut client, "gone", &json!({"in": 0}));
    let working = thread::spawn({
        let url = format!("http://{}", server.address);
        move || {
            // The shell has started another program, which holds the output open until it is killed as well.
            let work = [
                "work",
                "jobs",
                "--max",
                "1",
                "--lease",
                "1s",
                "--",
                "sh",
                "-c",
                "sleep 300 & wait",
            ];
            let output = program().args(work).env("COUNTWHEEL_SERVER", url).output();
            String::from_utf8(output.unwrap().stderr).unwrap()
        }
    });
    wait_for_state(&mut client, "/v1/queues/jobs/timers/gone", "leased");
    let path = format!("{JOBS}/timers/gone");
    client.json("DELETE", &path, "").expect(200);
    let patience = Patience::of(PATIENCE);
    let said = working.join().unwrap();
    assert!(!patience.left().is_zero(), "what it started goes on");
    assert!(
        said.contains("gone: ") && said.contains("was killed"),
        "{said}"
    );
    // A program that is not there.
    set(
        &mut client,
        "none",
        &json!({"in": 0, "retry": {"fixed": "1s", "max_attempts": 1}}),
    );
    let (_, err, _) = run(
        &server,
        &["work", "jobs", "--max", "1", "--", "/no/such/program"],
        "",
    );
    assert!(
        err.contains("/no/such/program: No such file or directory"),
        "{err}"
    );
}
