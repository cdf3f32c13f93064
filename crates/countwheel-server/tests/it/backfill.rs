//! The runs of a recurring timer: those to come, and those that are made for the past.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};

use serde_json::{Value, json};

use crate::support::{Client, Directory, Server, Target, program, wait_for_state};

const REPORT: &str = "/v1/queues/reports/timers/hourly";
const BACKFILL: &str = "/v1/queues/reports/timers/hourly:backfill";
const RUNS: &str = "/v1/queues/reports/timers/hourly/runs";

/// Sets a timer whose own runs are far away.
#[track_caller]
fn set(client: &mut Client, url: &str, again: &Value) {
    let mut body = json!({"in": "30d", "target": {"url": url, "headers": {"x-shop": "7"}},
                          "body": {"report": 7}, "tags": ["nightly"]});
    for (name, value) in again.as_object().unwrap() {
        body[name] = value.clone();
    }
    let answer = client.json("PUT", REPORT, &body.to_string());
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
}

fn hourly() -> Value {
    json!({"cron": "0 * * * *"})
}

#[track_caller]
fn backfilled(client: &mut Client, body: &Value) -> Value {
    client.json("POST", BACKFILL, &body.to_string()).expect(200)
}

fn results(answer: &Value) -> Vec<&str> {
    let runs = answer["runs"].as_array().unwrap();
    let results = runs.iter().map(|run| run["result"].as_str().unwrap());
    results.collect()
}

#[test]
fn runs_of_the_past_are_made_once() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let server = Server::start(&data);
    let mut client = server.client();
    let target = Target::answering("200 OK");
    set(&mut client, &target.url, &hourly());
    let mut range = json!({"from": "2020-02-01T10:00:00Z", "until": "2020-02-01T12:00:00Z",
                           "dry_run": true});
    let dry = backfilled(&mut client, &range);
    assert_eq!((&dry["made"], &dry["existing"]), (&json!(0), &json!(0)));
    assert_eq!(results(&dry), ["new"; 3]);
    let listed = client.get("/v1/queues/reports/timers").expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");

    range["dry_run"] = json!(false);
    let made = backfilled(&mut client, &range);
    assert_eq!((&made["made"], &made["existing"]), (&json!(3), &json!(0)));
    assert_eq!(
        (results(&made), &made["next"]),
        (vec!["made"; 3], &Value::Null)
    );
    let nominal = |hour: u8| format!("2020-02-01T{hour}:00:00.000000Z");
    let (mut ids, mut nominals) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..3 {
        let delivery = target.next();
        assert_eq!(delivery.body, br#"{"report":7}"#);
        assert_eq!(delivery.header("x-shop"), "7");
        assert_eq!(delivery.header("timer-backfill"), "hourly");
        assert!(!delivery.has("timer-run"));
        let at = delivery.header("timer-nominal");
        let key = delivery.header("timer-key");
        assert_eq!(
            key.replace("%40", "@").replace("%3A", ":"),
            format!("hourly@{at}")
        );
        nominals.insert(at.to_owned());
        ids.insert(delivery.header("webhook-id").to_owned());
    }
    assert_eq!(nominals, [nominal(10), nominal(11), nominal(12)].into());
    assert_eq!(ids.len(), 3);
    let run = format!("/v1/queues/reports/timers/hourly@{}", nominal(11));
    let shown = wait_for_state(&mut client, &run, "done");
    assert_eq!(
        shown["backfill"],
        json!({"of": "hourly", "nominal": nominal(11)})
    );
    assert_eq!(
        (&shown["tags"], &shown["recurring"]),
        (&json!(["nightly"]), &Value::Null)
    );

    // A wider range makes what is new of it.
    range["until"] = json!("2020-02-01T13:00:00Z");
    let wider = backfilled(&mut client, &range);
    assert_eq!(results(&wider), ["exists", "exists", "exists", "made"]);
    assert_eq!(target.next().header("timer-nominal"), nominal(13));
    // Neither another set, nor a restart, nor the end of the runs forgets them.
    set(&mut client, &target.url, &hourly());
    for hour in 10..=13 {
        let run = format!("/v1/queues/reports/timers/hourly@{}", nominal(hour));
        wait_for_state(&mut client, &run, "done");
    }
    // Neither does the removal of one.
    let paused = client.json("POST", "/v1/queues/reports:pause", "{}");
    assert!(paused.status < 300, "{paused:?}");
    range["until"] = json!("2020-02-01T14:00:00Z");
    assert_eq!(backfilled(&mut client, &range)["made"], 1);
    let run = format!("/v1/queues/reports/timers/hourly@{}", nominal(14));
    client.send("DELETE", &run, &[], b"").expect(200);
    assert!(server.stop().success());
    let server = Server::start(&data);
    let mut client = server.client();
    let again = backfilled(&mut client, &range);
    assert_eq!(
        (&again["made"], results(&again)),
        (&json!(0), vec!["exists"; 5])
    );
    range["dry_run"] = json!(true);
    assert_eq!(results(&backfilled(&mut client, &range)), ["exists"; 5]);
    // The timer itself is as it was.
    assert_eq!(client.get(REPORT).expect(200)["recurring"]["run"], 1);
}

#[test]
fn two_backfills_at_once_make_each_run_once() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    // Nothing listens there.
    set(&mut client, "http://127.0.0.1:9/", &hourly());
    let paused = client.json("POST", "/v1/queues/reports:pause", "{}");
    assert!(paused.status < 300, "{paused:?}");
    let barrier = Arc::new(Barrier::new(4));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (mut client, barrier) = (server.client(), Arc::clone(&barrier));
            std::thread::spawn(move || {
                barrier.wait();
                let range =
                    json!({"from": "2020-01-01T00:00:00Z", "until": "2020-01-20T23:59:59Z"});
                let answer = backfilled(&mut client, &range);
                (
                    answer["made"].as_u64().unwrap(),
                    answer["existing"].as_u64().unwrap(),
                )
            })
        })
        .collect();
    let answers: Vec<_> = callers
        .into_iter()
        .map(|caller| caller.join().unwrap())
        .collect();
    assert_eq!(answers.iter().map(|(made, _)| made).sum::<u64>(), 480);
    assert!(
        answers
            .iter()
            .all(|(made, existing)| made + existing == 480)
    );
    let queue = client.get("/v1/queues").expect(200)["queues"][0].clone();
    assert_eq!(queue["pending"], 481, "{queue}");
}

#[test]
fn a_limit_cuts_a_backfill_and_says_from_where_to_go_on() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    let anchored = json!({"every": "10m", "at": "2019-05-05T00:05:00Z"});
    let mut body = json!({"target": {"url": "http://127.0.0.1:9/"}});
    for (name, value) in anchored.as_object().unwrap() {
        body[name] = value.clone();
    }
    client.json("PUT", REPORT, &body.to_string()).expect(201);
    let mut asked = json!({"from": "2019-05-04T00:00:00Z", "until": "2019-05-05T00:59:00Z",
                           "limit": 4, "dry_run": true});
    let first = backfilled(&mut client, &asked);
    // The grid begins at its point.
    let nominals = |answer: &Value| {
        let runs = answer["runs"].as_array().unwrap().clone();
        let minutes = runs
            .iter()
            .map(|run| run["nominal"].as_str().unwrap()[14..16].to_owned());
        minutes.collect::<Vec<_>>()
    };
    assert_eq!(nominals(&first), ["05", "15", "25", "35"]);
    asked["from"] = first["next"].clone();
    let rest = backfilled(&mut client, &asked);
    assert_eq!(
        (nominals(&rest), &rest["next"]),
        (vec!["45".to_owned(), "55".to_owned()], &Value::Null)
    );
}

#[test]
fn what_cannot_be_backfilled_is_refused() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    let url = "http://127.0.0.1:9/";
    let range = r#"{"from":"2020-01-01T00:00:00Z","until":"2020-01-01T01:00:00Z"}"#;
    let mut refused = |again: Option<&Value>, body: &str| {
        if let Some(again) = again {
            set(&mut client, url, again);
        }
        let answer = client.json("POST", BACKFILL, body);
        let (status, code) = answer.problem();
        let pointer = answer.json()["errors"][0]["pointer"].clone();
        (status, code, pointer.as_str().unwrap_or("-").to_owned())
    };
    let says = |status, code: &str, pointer: &str| (status, code.to_owned(), pointer.to_owned());
    assert_eq!(refused(None, range), says(404, "not_found", "-"));
    let once = json!({});
    assert_eq!(refused(Some(&once), range), says(409, "conflict", "-"));
    let delay = json!({"every_after": "1h"});
    assert_eq!(
        refused(Some(&delay), range),
        says(422, "unschedulable", "-")
    );
    assert_eq!(refused(Some(&hourly()), ""), says(400, "malformed", "-"));
    for (body, status, code, pointer) in [
        (
            r#"{"from":"2020-01-01T00:00:00Z"}"#,
            400,
            "malformed",
            "/until",
        ),
        (
            r#"{"until":"2020-01-01T00:00:00Z"}"#,
            400,
            "malformed",
            "/from",
        ),
        (
            r#"{"from":"2020-01-01","until":"2020-01-01T00:00:00Z"}"#,
            422,
            "unschedulable",
            "/from",
        ),
        (
            r#"{"from":"2020-01-02T00:00:00Z","until":"2020-01-01T00:00:00Z"}"#,
            422,
            "unschedulable",
            "/until",
        ),
        (
            r#"{"from":"2020-01-02T00:00:00Z","until":"9000-01-01T00:00:00Z"}"#,
            422,
            "unschedulable",
            "/until",
        ),
        (
            r#"{"from":"2020-01-01T00:00:00Z","until":"2020-01-02T00:00:00Z","limit":0}"#,
            400,
            "malformed",
            "/limit",
        ),
        (
            r#"{"from":"2020-01-01T00:00:00Z","until":"2020-01-02T00:00:00Z","limit":1001}"#,
            400,
            "malformed",
            "/limit",
        ),
        (
            r#"{"from":"2020-01-01T00:00:00Z","until":"2020-01-02T00:00:00Z","dry_run":1}"#,
            400,
            "malformed",
            "/dry_run",
        ),
        (
            r#"{"from":"2020-01-01T00:00:00Z","until":"2020-01-02T00:00:00Z","extra":1}"#,
            400,
            "malformed",
            "/extra",
        ),
        // 1,001 hours.
        (
            r#"{"from":"2020-01-01T00:00:00Z","until":"2020-02-11T16:00:00Z"}"#,
            422,
            "unschedulable",
            "-",
        ),
    ] {
        assert_eq!(refused(None, body), says(status, code, pointer), "{body}");
    }
    let most =
        json!({"from": "2020-01-01T00:00:00Z", "until": "2020-02-11T15:59:59Z", "dry_run": true});
    let found = backfilled(&mut client, &most);
    assert_eq!(found["runs"].as_array().unwrap().len(), 1_000);
    let long = format!("/v1/queues/reports/timers/{}", "k".repeat(240));
    let timer = json!({"cron": "0 * * * *", "in": "30d", "target": {"url": url}}).to_string();
    client.json("PUT", &long, &timer).expect(201);
    let answer = client.json("POST", &format!("{long}:backfill"), range);
    assert_eq!(answer.problem(), (400, "invalid_key".to_owned()));
}

#[test]
fn the_next_runs_come_in_pages() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    for (again, count) in [
        (json!({"every": "1h", "repeats": 40, "jitter": "10m"}), 40),
        (json!({"every_after": "90m", "repeats": 3}), 3),
        (
            json!({"cron": "30 2 * * *", "zone": "Europe/Berlin", "until": "2050-01-01T00:00:00Z"}),
            1_000,
        ),
    ] {
        set(&mut client, "http://127.0.0.1:9/", &again);
        let whole = client.get(&format!("{RUNS}?limit=1000")).expect(200);
        let whole = whole["runs"].as_array().unwrap().clone();
        assert_eq!(whole.len(), count, "{again}");
        let timer = client.get(REPORT).expect(200);
        assert_eq!(whole[0]["nominal"], timer["recurring"]["nominal"]);
        assert_eq!(whole[0]["due"], timer["due"], "with its jitter");
        for (run, next) in whole[1..]
            .iter()
            .zip(timer["recurring"]["next_runs"].as_array().unwrap())
        {
            assert_eq!(run["nominal"], *next);
        }
        let local = |run: &Value| run["local"].is_string();
        assert_eq!(local(&whole[0]), again["zone"].is_string());
        // Page by page it is the same.
        let (mut pages, mut after) = (Vec::new(), String::new());
        loop {
            let page = client.get(&format!("{RUNS}?limit=7{after}")).expect(200);
            pages.extend(page["runs"].as_array().unwrap().clone());
            match page["next"].as_str() {
                Some(next) if pages.len() < count => after = format!("&after={next}"),
                _ => break,
            }
        }
        pages.truncate(count);
        assert_eq!(pages, whole, "{again}");
    }
    let usual = client.get(RUNS).expect(200);
    assert_eq!(usual["runs"].as_array().unwrap().len(), 100);
    for query in [
        "limit=0",
        "limit=1001",
        "after=soon",
        "before=x",
        "limit=1&limit=2",
    ] {
        let answer = client.get(&format!("{RUNS}?{query}"));
        assert_eq!(answer.problem(), (400, "malformed".to_owned()), "{query}");
    }
    set(&mut client, "http://127.0.0.1:9/", &json!({}));
    assert_eq!(client.get(RUNS).problem(), (409, "conflict".to_owned()));
    let nobody = client.get("/v1/queues/reports/timers/nobody/runs");
    assert_eq!(nobody.problem(), (404, "not_found".to_owned()));
    set(
        &mut client,
        "http://127.0.0.1:9/",
        &json!({"every": "100ms", "repeats": 4_000_000_000_u32}),
    );
    let far = client.get(&format!("{RUNS}?after=2090-01-01T00:00:00Z"));
    assert_eq!(far.problem(), (422, "unschedulable".to_owned()));
}

#[test]
fn a_simulation_of_a_place_says_where_each_rule_comes_from() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    let mut put = |path: &str, body: &str| {
        client.json("PUT", path, body).expect(201);
    };
    put(
        "/v1/endpoints/shop",
        r#"{"url":"http://127.0.0.1:9/","retry":{"fixed":"3s","max_attempts":3}}"#,
    );
    put(
        "/v1/queues/orders",
        r#"{"endpoint":"shop","missed":"collapse","overlap":"queue","timeout":"20s"}"#,
    );
    put("/v1/queues/jobs", r#"{"retry":{"schedule":["1s","2s"]}}"#);
    put("/v1/queues/pulled", r#"{"mode":"pull"}"#);
    let mut ask = |body: &str| client.json("POST", "/v1/simulate", body);
    let start = r#""start":"2026-03-01T12:00:00Z""#;
    let orders = ask(&format!(r#"{{"queue":"orders",{start}}}"#)).expect(200);
    let after: Vec<_> = orders["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["after_ms"].as_u64().unwrap())
        .collect();
    assert_eq!(after, [0, 3_000, 6_000]);
    assert_eq!(
        (&orders["missed"], &orders["timeout"]),
        (&json!("collapse"), &json!("20s"))
    );
    assert_eq!(
        orders["from"],
        json!({"retry": "endpoint", "missed": "queue", "timeout": "queue"})
    );
    assert_eq!(
        (&orders["then"], &orders["overlap"]),
        (&json!("dead"), &Value::Null)
    );
    let jobs = ask(r#"{"queue":"jobs","limit":2}"#).expect(200);
    assert_eq!(
        jobs["from"],
        json!({"retry": "queue", "missed": "default", "timeout": "default"})
    );
    assert_eq!(
        (&jobs["truncated"], &jobs["timeout"]),
        (&json!(true), &json!("15s"))
    );
    let shop =
        ask(r#"{"endpoint":"shop","retry":{"fixed":"7s"},"limit":2,"missed":"fire"}"#).expect(200);
    assert_eq!(
        (&shop["from"], &shop["total_ms"]),
        (&json!({"timeout": "default"}), &json!(7_000))
    );
    let recurs = ask(&format!(
        r#"{{"queue":"orders","endpoint":"shop","cron":"30 12 * * *",{start}}}"#
    ))
    .expect(200);
    assert_eq!(recurs["attempts"][0]["at"], "2026-03-01T12:30:00.000000Z");
    assert_eq!(
        (&recurs["overlap"], &recurs["from"]["overlap"]),
        (&json!("queue"), &json!("queue"))
    );
    // The calendar ends, and the schedule does not.
    let last_days = r#""cron":"@daily","start":"9999-12-29T00:00:00Z""#;
    let last = ask(&format!("{{{last_days}}}")).expect(200);
    assert_eq!(last["runs"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&last["truncated"], &last["then"]),
        (&json!(true), &Value::Null)
    );
    let two = ask(&format!(r#"{{{last_days},"repeats":2}}"#)).expect(200);
    assert_eq!(
        (&two["truncated"], &two["then"]),
        (&json!(false), &json!("done"))
    );
    let pulled = ask(r#"{"queue":"pulled","limit":1}"#).expect(200);
    assert_eq!(pulled["timeout"], Value::Null);
    // A timer that is set there has the same rules.
    let set = r#"{"in":"1h"}"#;
    client
        .json("PUT", "/v1/queues/orders/timers/k", set)
        .expect(201);
    let timer = client.get("/v1/queues/orders/timers/k").expect(200);
    assert_eq!(
        (&timer["retry"], &timer["from"]),
        (&orders["retry"], &orders["from"])
    );
    let mut ask = |body: &str| {
        let answer = client.json("POST", "/v1/simulate", body);
        let pointer = answer.json()["errors"][0]["pointer"].clone();
        (answer.problem(), pointer.as_str().unwrap_or("-").to_owned())
    };
    let says = |status, code: &str, pointer: &str| ((status, code.to_owned()), pointer.to_owned());
    assert_eq!(
        ask(r#"{"endpoint":"none"}"#),
        says(422, "invalid_target", "/endpoint")
    );
    assert_eq!(
        ask(r#"{"queue":"a b"}"#),
        says(400, "invalid_queue", "/queue")
    );
    assert_eq!(
        ask(r#"{"queue":"q","until":"2030-01-01T00:00:00Z"}"#),
        says(400, "malformed", "/until")
    );
    assert_eq!(ask(r#"{"queue":7}"#), says(400, "malformed", "/queue"));
}

/// What a command prints, and its status.
fn run(server: &Server, arguments: &[&str]) -> (String, Option<i32>) {
    let address = format!("http://{}", server.address);
    let mut command = program();
    let output = command
        .args(arguments)
        .args(["--server", &address])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    (said, output.status.code())
}

#[test]
fn the_commands_show_and_make_runs() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    set(&mut client, "http://127.0.0.1:9/", &hourly());
    let backfill = [
        "backfill",
        "hourly",
        "--queue",
        "reports",
        "--from",
        "2020-02-01T10:00:00Z",
        "--until",
        "2020-02-01T23:00:00Z",
        "--limit",
        "2",
    ];
    let key = "hourly@2020-02-01T10:00:00.000000Z";
    let dry = [&backfill[..], &["--dry-run"]].concat();
    let (said, status) = run(&server, &dry);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains(key) && said.contains("new"), "{said}");
    let more = "more from 2020-02-01 12:00:00.000 on\n";
    assert!(
        said.ends_with(&format!("2 runs to make, 0 existed; {more}")),
        "{said}"
    );
    let (said, _) = run(&server, &backfill);
    assert!(said.ends_with(&format!("2 runs made, 0 existed; {more}")));
    let (said, _) = run(&server, &backfill);
    assert!(said.ends_with(&format!("0 runs made, 2 existed; {more}")));
    let (said, status) = run(&server, &["runs", "hourly", "--queue", "reports"]);
    assert_eq!((status, said.lines().count()), (Some(0), 21), "{said}");
    let (_, status) = run(&server, &["runs", "none", "--queue", "reports"]);
    assert_eq!(status, Some(2));
    let queue = r#"{"retry":{"fixed":"3s","max_attempts":2}}"#;
    client.json("PUT", "/v1/queues/reports", queue);
    let (said, status) = run(&server, &["simulate", "--queue", "reports"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("total 3 s: 2 attempts, then dead"), "{said}");
    assert!(said.contains("(from: queue)"), "{said}");
    assert!(said.contains("15s  (from: default)"), "{said}");
    let (_, status) = run(&server, &["simulate", "--endpoint", "none"]);
    assert_eq!(status, Some(1));
}
