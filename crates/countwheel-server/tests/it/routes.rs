//! Each route does what the contract says.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, Server, Target, wait_for_state};

const TIMERS: &str = "/v1/queues/default/timers";

fn start() -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let client = server.client();
    (directory, server, client)
}

fn set(client: &mut Client, key: &str, due: &str) -> Value {
    let body = format!(r#"{{{due},"target":{{"url":"http://127.0.0.1:9/"}}}}"#);
    let answer = client.json("PUT", &format!("{TIMERS}/{key}"), &body);
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    answer.json()
}

fn keys(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| item["key"].as_str().unwrap())
        .collect()
}

#[test]
fn a_timer_is_set_read_replaced_and_removed() {
    let (_directory, _server, mut client) = start();
    let path = format!("{TIMERS}/order-42");
    let body = r#"{
        "at": "2100-01-02T03:04:05.678901Z",
        "target": {"url": "https://example.com/hook", "headers": {"X-Shop": "7"}, "timeout": "90s"},
        "body": {"order": 42},
        "retry": {"preset": "wechat"}
    }"#;
    let answer = client.json("PUT", &path, body);
    let made = answer.expect(201);
    let (id, due) = (made["id"].clone(), "2100-01-02T03:04:05.678901Z");
    let expected = json!({"queue": "default", "key": "order-42", "id": id, "revision": 1,
        "due": due, "replaced": null});
    assert_eq!(made, expected);
    assert_eq!(answer.header("etag"), Some("\"1\""));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert!(id.as_str().unwrap().starts_with("tmr-"));

    let answer = client.get(&path);
    let timer = answer.expect(200);
    assert_eq!(answer.header("etag"), Some("\"1\""));
    let mut next = timer["next_attempts"].as_array().unwrap().clone();
    assert_eq!(next.len(), 16);
    assert_eq!(next.remove(0), json!({"attempt": 1, "at": due}));
    assert_eq!(
        next.remove(0),
        json!({"attempt": 2, "at": "2100-01-02T03:04:20.678901Z"})
    );
    let expected = json!({"queue": "default", "key": "order-42", "id": id, "revision": 1,
        "state": "pending", "created": timer["created"], "due": due,
        "target": {"url": "https://example.com/hook", "headers": {"x-shop": "7"},
                   "timeout": "1m 30s"},
        "content_type": "application/json", "body_bytes": 13,
        "retry": {"preset": "wechat", "jitter": "none"}, "from": {"missed": "default"},
        "failures": 0, "attempt": 0, "attempts": [],
        "next_attempts": timer["next_attempts"]});
    assert_eq!(timer, expected);
    // HEAD is GET without the body.
    let head = client.send("HEAD", &path, &[], b"");
    assert_eq!((head.status, head.header("etag")), (200, Some("\"1\"")));

    let again = client.json("PUT", &path, body).expect(200);
    assert_eq!(again["replaced"], "pending");
    assert_eq!(again["revision"], 2);
    assert_ne!(again["id"], id);

    let removed = client.send("DELETE", &path, &[], b"").expect(200);
    assert_eq!(removed, json!({"was": "pending", "due": due}));
    assert_eq!(client.get(&path).problem(), (404, "not_found".into()));
    assert_eq!(client.send("DELETE", &path, &[], b"").status, 404);
    // Not even now is a revision given again.
    assert_eq!(client.json("PUT", &path, body).expect(201)["revision"], 3);
}

#[test]
fn a_policy_is_shown_in_the_form_in_which_it_is_set() {
    let (_directory, _server, mut client) = start();
    for policy in [
        json!({"schedule": ["15s", "1m 30s", "250ms"], "jitter": "full", "max_attempts": 9}),
        json!({"fixed": "5s", "jitter": "equal", "max_age": "48h"}),
        json!({"exponential": {"first": "1s", "factor": 2, "cap": "1h"}, "jitter": "none"}),
        json!({"exponential": {"first": "1s", "factor": 1.5, "cap": "1h"}, "jitter": "none"}),
    ] {
        let body = json!({"in": 60_000, "target": {"url": "http://x/"}, "retry": policy});
        let path = format!("{TIMERS}/p");
        client.json("PUT", &path, &body.to_string());
        assert_eq!(client.get(&path).json()["retry"], policy);
    }
}

#[test]
fn preconditions_hold_back_what_they_should() {
    let (_directory, _server, mut client) = start();
    let path = format!("{TIMERS}/k");
    let body = r#"{"in":"1h","target":{"url":"http://x/"}}"#;
    let mut put = |condition: (&str, &str)| -> Answer {
        let json = ("content-type", "application/json");
        client.send("PUT", &path, &[json, condition], body.as_bytes())
    };
    put(("if-none-match", "*")).expect(201);
    let refused = put(("if-none-match", "*"));
    assert_eq!(refused.problem(), (412, "exists".into()));
    assert_eq!(refused.json()["state"], "pending");
    put(("if-match", "\"1\"")).expect(200);
    let refused = put(("if-match", "\"1\""));
    assert_eq!(refused.problem(), (412, "revision_mismatch".into()));
    assert_eq!(refused.json()["revision"], 2);

    let json = ("content-type", "application/json");
    let mut shift =
        |tag: &str| client.send("PATCH", &path, &[json, ("if-match", tag)], br#"{"by":1}"#);
    assert_eq!(shift("\"1\"").status, 412);
    let moved = shift("\"2\"");
    assert_eq!(moved.expect(200)["revision"], 3);
    assert_eq!(moved.header("etag"), Some("\"3\""));
    let mut remove = |tag: &str| client.send("DELETE", &path, &[("if-match", tag)], b"");
    assert_eq!(remove("\"2\"").status, 412);
    assert_eq!(remove("\"3\"").status, 200);
}

#[test]
fn any_revision_is_matched_if_there_is_a_timer() {
    let (_directory, _server, mut client) = start();
    let path = format!("{TIMERS}/k");
    let body = r#"{"in":"1h","target":{"url":"http://x/"}}"#;
    let json = ("content-type", "application/json");
    let any = ("if-match", "*");
    for (method, body) in [("PUT", body), ("PATCH", r#"{"by":1}"#), ("DELETE", "")] {
        let refused = client.send(method, &path, &[json, any], body.as_bytes());
        assert_eq!(refused.problem(), (404, "not_found".into()), "{method}");
    }
    client.json("PUT", &path, body).expect(201);
    let replaced = client.send("PUT", &path, &[json, any], body.as_bytes());
    assert_eq!(replaced.expect(200)["replaced"], "pending");
    assert_eq!(replaced.header("etag"), Some("\"2\""));
    let moved = client.send("PATCH", &path, &[json, any], br#"{"by":1}"#);
    assert_eq!(moved.expect(200)["revision"], 3);
    let removed = client.send("DELETE", &path, &[any], b"").expect(200);
    assert_eq!(removed["was"], "pending");
}

#[test]
fn a_get_of_what_the_caller_has_is_answered_without_it() {
    let (_directory, _server, mut client) = start();
    let path = format!("{TIMERS}/k");
    let get = |client: &mut Client, method: &str, tag: &str| {
        client.send(method, &path, &[("if-none-match", tag)], b"")
    };
    assert_eq!(get(&mut client, "GET", "*").status, 404);
    let named = json!({"in": "1h", "target": {"url": "http://127.0.0.1:9/", "timeout": "5s"},
        "retry": {"fixed": "1s"}, "missed": "fire"});
    let made = client.json("PUT", &path, &named.to_string());
    assert_eq!(made.expect(201)["revision"], 1);
    for (method, tag) in [
        ("GET", "\"1\""),
        ("GET", "W/\"1\""),
        ("GET", "\"7\", \"1\""),
        ("GET", "*"),
        ("HEAD", "\"1\""),
    ] {
        let answer = get(&mut client, method, tag);
        assert_eq!((answer.status, answer.body.len()), (304, 0), "{tag}");
        assert_eq!(answer.header("etag"), Some("\"1\""));
    }
    for tag in ["\"2\"", "1", "\"11\""] {
        get(&mut client, "GET", tag).expect(200);
    }
    client.json("PATCH", &path, r#"{"by":1}"#).expect(200);
    get(&mut client, "GET", "\"1\"").expect(200);

    // A queue leaves the revision as it is, and changes what is seen of a timer that leaves rules to it.
    for rule in ["retry", "missed"] {
        let mut open = named.clone();
        open.as_object_mut().unwrap().remove(rule);
        let set = client.json("PUT", &path, &open.to_string()).expect(200);
        let tag = format!("\"{}\"", set["revision"]);
        let before = get(&mut client, "GET", &tag).expect(200);
        let settings =
            json!({rule: if rule == "retry" { json!({"fixed": "9s"}) } else { json!("collapse") }});
        client.json("PUT", "/v1/queues/default", &settings.to_string());
        assert_ne!(get(&mut client, "GET", &tag).expect(200), before);
        assert_eq!(get(&mut client, "GET", "*").status, 304);
    }

    // An attempt leaves the revision as it is, and there is more to see.
    let target = Target::answering("200 OK");
    let body = json!({"in": "1h", "target": {"url": target.url}});
    client.json("PUT", &path, &body.to_string()).expect(200);
    let fired = client.send("POST", &format!("{path}:fire"), &[], b"");
    let tag = fired.header("etag").unwrap().to_owned();
    target.next();
    let done = wait_for_state(&mut client, &path, "done");
    assert_eq!(format!("\"{}\"", done["revision"]), tag);
    assert_eq!(get(&mut client, "GET", &tag).expect(200), done);
}

#[test]
fn the_attempts_of_a_recurring_timer_show_their_runs() {
    let (_directory, _server, mut client) = start();
    let target = Target::start(|number| {
        let answers = ["200 OK", "503 Busy", "200 OK", "410 Gone"];
        crate::support::reply(answers[number.min(3)], "")
    });
    let path = format!("{TIMERS}/k");
    let body = json!({"cron": "* * * * * *", "retry": {"fixed": 1}, "target": {"url": target.url}});
    client.json("PUT", &path, &body.to_string()).expect(201);
    let dead = wait_for_state(&mut client, &path, "dead");
    let attempts = dead["attempts"].as_array().unwrap();
    let shown: Vec<_> = attempts
        .iter()
        .map(|one| (&one["run"], &one["number"]))
        .collect();
    let expected =
        [(1, 1), (2, 2), (2, 3), (3, 4)].map(|(run, number)| (json!(run), json!(number)));
    let expected: Vec<_> = expected.iter().map(|(run, number)| (run, number)).collect();
    assert_eq!(shown, expected);
    assert_eq!(dead["recurring"]["run"], 3);
}

#[test]
fn a_move_takes_a_timer_where_it_is_told() {
    let (_directory, _server, mut client) = start();
    set(&mut client, "k", r#""at":"2100-01-01T00:00:00Z""#);
    let path = format!("{TIMERS}/k");
    let mut due = "2100-01-01T00:00:00.000000Z".to_owned();
    for (shift, new) in [
        (r#"{"by":"5m"}"#, "2100-01-01T00:05:00.000000Z"),
        (r#"{"by":"-10m"}"#, "2099-12-31T23:55:00.000000Z"),
        (r#"{"by":300000}"#, "2100-01-01T00:00:00.000000Z"),
        (r#"{"by":-1}"#, "2099-12-31T23:59:59.999000Z"),
        (
            r#"{"at":"2101-01-01T01:00:00+01:00"}"#,
            "2101-01-01T00:00:00.000000Z",
        ),
    ] {
        let moved = client.json("PATCH", &path, shift).expect(200);
        assert_eq!(moved["old_due"], due, "{shift}");
        assert_eq!(moved["due"], new, "{shift}");
        due = new.to_owned();
    }
    let moved = client.json("PATCH", &path, r#"{"in":"1h"}"#).expect(200);
    assert!(moved["due"].as_str().unwrap() < "2100");
    // Sooner than now is now.
    let moved = client
        .json("PATCH", &path, r#"{"by":"-36525d"}"#)
        .expect(200);
    assert!(moved["due"].as_str().unwrap() > "2001");
}

#[test]
fn a_list_is_ordered_filtered_and_paged() {
    let (_directory, _server, mut client) = start();
    for (key, at) in [
        ("b1", "2100-01-01T00:00:02Z"),
        ("a1", "2100-01-01T00:00:01Z"),
        ("a2", "2100-01-01T00:00:03Z"),
        ("a3", "2100-01-01T00:00:03Z"),
    ] {
        set(&mut client, key, &format!(r#""at":"{at}""#));
    }
    let mut list = |query: &str| client.get(&format!("{TIMERS}{query}")).expect(200);
    assert_eq!(keys(&list("")), ["a1", "b1", "a2", "a3"]);
    assert_eq!(keys(&list("?prefix=a")), ["a1", "a2", "a3"]);
    assert_eq!(keys(&list("?state=dead")), [""; 0]);
    assert_eq!(keys(&list("?state=pending&prefix=b")), ["b1"]);
    let window = "?due_after=2100-01-01T00:00:02Z&due_before=2100-01-01T00:00:03Z";
    assert_eq!(keys(&list(window)), ["b1"]);
    assert_eq!(
        keys(&list("?due_after=2100-01-01T01:00:03%2B01:00")),
        ["a2", "a3"]
    );

    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = list(&format!("?limit=3{after}"));
        found.extend(keys(&page).into_iter().map(str::to_owned));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(found, ["a1", "b1", "a2", "a3"]);

    let queues = client.get("/v1/queues").expect(200);
    let expected = json!({"queue": "default", "pending": 4, "delivering": 0, "done": 0, "dead": 0});
    assert_eq!(queues, json!({"queues": [expected], "next": null}));
    assert_eq!(
        client.get("/v1/queues/other/timers").expect(200),
        json!({"items": [], "next": null})
    );
}

#[test]
fn fire_makes_due_now_and_revive_begins_anew() {
    let (_directory, _server, mut client) = start();
    let target = Target::start(|number| {
        crate::support::reply(if number == 0 { "410 Gone" } else { "200 OK" }, "")
    });
    let path = format!("{TIMERS}/k");
    let body = json!({"in": "30d", "target": {"url": target.url}});
    client.json("PUT", &path, &body.to_string()).expect(201);
    let fired = client.send("POST", &format!("{path}:fire"), &[], b"");
    let moved = fired.expect(202);
    assert_eq!(moved["revision"], 2);
    assert!(moved["due"].as_str() < moved["old_due"].as_str());
    target.next();
    let dead = wait_for_state(&mut client, &path, "dead");
    assert_eq!(dead["dead_reason"], "stopped");
    assert!(dead["dead_at"].is_string());
    assert_eq!(dead["attempts"][0]["result"], "stopped");
    assert_eq!(dead["attempts"][0]["detail"], "410");
    assert!(dead.get("next_attempts").is_none());

    let revived = client.json("POST", &format!("{path}:revive"), r#"{"in":"30d"}"#);
    revived.expect(202);
    let pending = client.get(&path).expect(200);
    assert_eq!(
        (&pending["state"], &pending["attempt"]),
        (&json!("pending"), &json!(1))
    );
    assert_eq!(pending["id"], dead["id"]);
    client
        .send("POST", &format!("{path}:fire"), &[], b"")
        .expect(202);
    assert_eq!(target.next().header("timer-attempt"), "2");
    let done = wait_for_state(&mut client, &path, "done");
    assert!(done["done_at"].is_string() && done["keep_until"].is_string());
}

#[test]
fn remove_says_what_the_timer_was_doing() {
    let (_directory, _server, mut client) = start();
    let slow = Target::start(|_| {
        crate::support::pause();
        crate::support::reply("500 Oops", "")
    });
    let gone = Target::answering("410 Gone");
    // A target that takes connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}/", silent.local_addr().unwrap());
    for (url, state, was) in [
        (
            &silent_url,
            "delivering",
            json!({"was": "delivering", "attempt": 1}),
        ),
        (&gone.url, "dead", json!({"was": "dead"})),
    ] {
        let path = format!("{TIMERS}/k");
        let body = json!({"in": 0, "target": {"url": url}});
        client.json("PUT", &path, &body.to_string()).expect(201);
        let timer = wait_for_state(&mut client, &path, state);
        if state == "delivering" {
            assert!(timer["attempts"][0].get("ended").is_none());
            let refused = client.send("DELETE", &format!("{path}?only=pending"), &[], b"");
            assert_eq!(refused.problem(), (409, "conflict".into()));
            assert_eq!(refused.json()["state"], "delivering");
        }
        assert_eq!(client.send("DELETE", &path, &[], b"").expect(200), was);
        assert_eq!(client.get(&path).status, 404);
    }
    drop(slow);
}

#[test]
fn a_simulation_counts_out_the_schedule() {
    let (_directory, _server, mut client) = start();
    let mut simulate = |body: &str| client.json("POST", "/v1/simulate", body).expect(200);
    let wechat = simulate(r#"{"retry":{"preset":"wechat"},"start":"2026-03-01T12:00:00Z"}"#);
    let attempts = wechat["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 16);
    assert_eq!(
        attempts[0],
        json!({"attempt": 1, "at": "2026-03-01T12:00:00.000000Z",
        "earliest": "2026-03-01T12:00:00.000000Z", "delay_ms": 0, "after_ms": 0})
    );
    assert_eq!(
        attempts[15],
        json!({"attempt": 16, "at": "2026-03-02T12:04:00.000000Z",
        "earliest": "2026-03-02T12:04:00.000000Z", "delay_ms": 21_600_000, "after_ms": 86_640_000})
    );
    assert_eq!(wechat["total_ms"], 86_640_000);
    assert_eq!(
        (&wechat["truncated"], &wechat["then"]),
        (&json!(false), &json!("dead"))
    );

    let endless = simulate(r#"{"retry":{"fixed":"1s","jitter":"equal"},"limit":3}"#);
    assert_eq!(endless["attempts"].as_array().unwrap().len(), 3);
    assert_eq!(endless["total_ms"], 2_000);
    assert_eq!(
        (&endless["truncated"], &endless["then"]),
        (&json!(true), &Value::Null)
    );
    let exact = simulate(r#"{"retry":{"fixed":"1s","max_attempts":3},"limit":3}"#);
    assert_eq!(
        (&exact["truncated"], &exact["then"]),
        (&json!(false), &json!("dead"))
    );
    let aged = simulate(r#"{"retry":{"fixed":"1s","max_age":"2500ms"}}"#);
    assert_eq!(aged["attempts"].as_array().unwrap().len(), 3);
    assert_eq!(aged["then"], "dead");
    let long = r#"{"retry":{"fixed":"365d"},"limit":10000}"#;
    let cut = simulate(long);
    assert_eq!(cut["truncated"], true);
    let slow = r#"{"retry":{"exponential":{"first":1,"cap":"365d","factor":1.01}},"limit":10000}"#;
    assert_eq!(simulate(slow)["attempts"].as_array().unwrap().len(), 10_000);
}

#[test]
fn a_recurring_timer_is_set_and_shown_with_its_runs() {
    let (_directory, _server, mut client) = start();
    let path = "/v1/queues/default/timers/report";
    let body = r#"{"cron": "30 2 * * *", "zone": "europe/berlin", "repeats": 9, "jitter": "5m",
        "until": "2099-12-31T00:00:00Z", "overlap": "queue", "in": "1h",
        "missed": {"skip_if_older_than": "90m"}, "target": {"url": "http://127.0.0.1:1/"}}"#;
    let made = client.json("PUT", path, body).expect(201);
    let timer = client.get(path).expect(200);
    assert_eq!(timer["due"], made["due"]);
    assert_eq!(timer["state"], "pending");
    assert_eq!(timer["missed"], json!({"skip_if_older_than": "1h 30m"}));
    let recurring = &timer["recurring"];
    for (field, value) in [
        ("cron", json!("30 2 * * *")),
        ("zone", json!("Europe/Berlin")),
        ("repeats", json!(9)),
        ("until", json!("2099-12-31T00:00:00.000000Z")),
        ("jitter", json!("5m")),
        ("overlap", json!("queue")),
        ("run", json!(1)),
        ("missed_runs", json!(0)),
        ("overlapped_runs", json!(0)),
        ("dead_runs", json!(0)),
    ] {
        assert_eq!(recurring[field], value, "{field}");
    }
    assert_eq!(recurring["next_runs"].as_array().unwrap().len(), 8);
    assert!(recurring["nominal"].as_str() <= timer["due"].as_str());
    let listed = client.get("/v1/queues/default/timers").expect(200);
    assert_eq!(listed["items"][0]["recurring"], *recurring);

    // What never comes is refused, and so is what says nothing of when.
    for (body, pointer) in [
        (
            r#"{"every": "1h", "until": "2020-01-01T00:00:00Z", "target": {"url": "http://x/"}}"#,
            json!("/until"),
        ),
        (
            r#"{"cron": "@daily", "zone": "Nowhere", "target": {"url": "http://x/"}}"#,
            json!("/zone"),
        ),
        (r#"{"target": {"url": "http://x/"}}"#, json!("")),
    ] {
        let answer = client.json("PUT", path, body);
        let (status, _) = answer.problem();
        assert!(matches!(status, 400 | 422), "{body}");
        assert_eq!(answer.json()["errors"][0]["pointer"], pointer, "{body}");
    }
    assert_eq!(client.get(path).expect(200)["revision"], timer["revision"]);
}

#[test]
fn a_simulation_goes_through_the_runs_of_a_schedule() {
    let (_directory, _server, mut client) = start();
    let mut simulate = |body: &str| client.json("POST", "/v1/simulate", body).expect(200);
    let nights = simulate(
        r#"{"cron": "30 2 * * *", "zone": "Europe/Berlin", "start": "2026-03-28T00:00:00Z",
            "jitter": "10s", "limit": 2}"#,
    );
    assert_eq!(
        nights,
        json!({"runs": [
            {"run": 1, "at": "2026-03-28T01:30:00.000000Z",
             "latest": "2026-03-28T01:30:10.000000Z",
             "local": "2026-03-28T02:30:00+01:00[Europe/Berlin]"},
            {"run": 2, "at": "2026-03-29T01:00:00.000000Z",
             "latest": "2026-03-29T01:00:10.000000Z",
             "local": "2026-03-29T03:00:00+02:00[Europe/Berlin]"},
        ], "truncated": true, "then": null})
    );
    let thrice =
        simulate(r#"{"every": "1h", "repeats": 3, "in": 0, "start": "2026-03-01T12:00:00Z"}"#);
    let times: Vec<_> = thrice["runs"].as_array().unwrap().iter().collect();
    assert_eq!(times.len(), 3);
    assert_eq!(times[2]["at"], "2026-03-01T14:00:00.000000Z");
    assert_eq!(thrice["then"], "done");
    let cut = simulate(r#"{"cron": "0 0 29 2 *", "limit": 10000}"#);
    assert_eq!(
        (&cut["truncated"], &cut["then"]),
        (&json!(true), &Value::Null),
        "the calendar ends, and the schedule does not"
    );
    for body in [
        r#"{"retry": {"fixed": 1}, "every": "1s"}"#,
        r#"{"in": 0}"#,
        r#"{"every": "1s", "retry": {"fixed": 1}}"#,
    ] {
        let answer = client.json("POST", "/v1/simulate", body);
        assert_eq!(answer.problem(), (400, "malformed".to_owned()), "{body}");
    }
}

#[test]
fn those_who_run_it_see_health_metrics_and_the_dashboard() {
    let (_directory, _server, mut client) = start();
    set(&mut client, "k", r#""in":"1h""#);
    assert_eq!(client.get("/healthz").expect(200), json!({"status": "ok"}));
    assert_eq!(
        client.get("/readyz").expect(200),
        json!({"status": "ready"})
    );

    let standard = (
        "accept",
        "application/openmetrics-text;version=1.0.0,*/*;q=0.1",
    );
    for (accept, content_type) in [
        (&[][..], "text/plain; version=0.0.4"),
        (
            &[standard][..],
            "application/openmetrics-text; version=1.0.0",
        ),
    ] {
        // The numbers of a turn are published after its answers.
        let answer = loop {
            let answer = client.send("GET", "/metrics", accept, b"");
            if String::from_utf8_lossy(&answer.body).contains("_set_total 1") {
                break answer;
            }
        };
        let found = answer.header("content-type").unwrap();
        assert!(found.starts_with(content_type), "{found}");
        let text = String::from_utf8(answer.body).unwrap();
        assert_eq!(text.ends_with("# EOF\n"), !accept.is_empty());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(series.starts_with("countwheel_"), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
        for line in [
            "countwheel_up 1",
            "countwheel_timers_set_total 1",
            "countwheel_timers{queue=\"default\",state=\"pending\"} 1",
            "countwheel_queues 1",
            "countwheel_lateness_seconds_bucket{le=\"+Inf\"} 0",
            concat!(
                "countwheel_build_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\"} 1"
            ),
            "countwheel_http_requests_total{method=\"GET\",route=\"/healthz\",status=\"200\"} 1",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in {text}"
            );
        }
    }

    assert_eq!(client.get("/").status, 200);

    let options = client.send("OPTIONS", "/healthz", &[], b"");
    assert_eq!(
        (options.status, options.header("allow")),
        (204, Some("GET,HEAD"))
    );
}

#[test]
fn a_token_opens_v1_and_nothing_else_does() {
    let directory = Directory::new();
    let file = directory.0.join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let data = directory.0.join("data");
    let server = Server::with(&data, &["--token-file", file.to_str().unwrap()]);
    let mut client = server.client();
    for header in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer s3cre",
        "Bearer s3cret2",
        "Basic s3cret",
        "s3cret",
    ] {
        let headers = [("authorization", header)];
        for path in ["/v1/queues", "/metrics"] {
            let answer = client.send("GET", path, &headers, b"");
            assert_eq!(
                answer.problem(),
                (401, "unauthorized".into()),
                "{header} {path}"
            );
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
    }
    for path in ["/healthz", "/livez", "/readyz", "/startz", "/login"] {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
    for header in ["Bearer s3cret", "bearer s3cret"] {
        let headers = [("authorization", header)];
        assert_eq!(client.send("GET", "/v1/queues", &headers, b"").status, 200);
    }
}

#[test]
fn many_timers_set_at_once_all_come() {
    let (_directory, server, _client) = start();
    let target = Target::answering("200 OK");
    std::thread::scope(|scope| {
        for caller in 0..4 {
            let (server, url) = (&server, &target.url);
            scope.spawn(move || {
                let mut client = server.client();
                for number in 0..25 {
                    let path = format!("{TIMERS}/{caller}-{number}");
                    let body = json!({"in": 50, "target": {"url": url}});
                    client.json("PUT", &path, &body.to_string()).expect(201);
                }
            });
        }
    });
    for _ in 0..100 {
        target.next();
    }
    assert!(target.quiet_for(Duration::from_millis(100)));
}

#[test]
fn no_more_than_twenty_attempts_or_runs_to_come_are_listed() {
    let (_directory, _server, mut client) = start();
    for (schedule, listed, expected) in [
        (
            r#""in":"1h","retry":{"fixed":"1s","max_attempts":20}"#,
            "next_attempts",
            20,
        ),
        (
            r#""in":"1h","retry":{"fixed":"1s","max_attempts":10000}"#,
            "next_attempts",
            20,
        ),
        (
            r#""in":"1h","retry":{"fixed":"1s","max_attempts":19}"#,
            "next_attempts",
            19,
        ),
        (r#""every":"1h""#, "next_runs", 20),
        (r#""every":"1h","repeats":7"#, "next_runs", 6),
    ] {
        set(&mut client, "k", schedule);
        let timer = client.get(&format!("{TIMERS}/k")).expect(200);
        let found = match listed {
            "next_runs" => &timer["recurring"][listed],
            _ => &timer[listed],
        };
        assert_eq!(found.as_array().unwrap().len(), expected, "{schedule}");
    }
}

#[test]
fn every_answer_carries_an_id_of_its_own() {
    let (_directory, _server, mut client) = start();
    let mut ids = HashSet::new();
    let path = format!("{TIMERS}/k");
    let path = path.as_str();
    let body = r#"{"in":"1h","target":{"url":"http://x/"}}"#;
    for (method, path, body, status) in [
        ("PUT", path, body, 201),
        ("PUT", path, body, 200),
        ("PUT", path, "{", 400),
        ("GET", path, "", 200),
        ("HEAD", path, "", 200),
        ("PATCH", path, r#"{"by":1}"#, 200),
        ("DELETE", path, "", 200),
        ("GET", path, "", 404),
        ("GET", TIMERS, "", 200),
        ("OPTIONS", path, "", 204),
        ("GET", "/healthz", "", 200),
        ("GET", "/nowhere", "", 404),
    ] {
        let answer = match body {
            "" => client.send(method, path, &[], b""),
            _ => client.json(method, path, body),
        };
        assert_eq!(answer.status, status, "{method} {path} {body}");
        let id = answer.header("x-request-id").unwrap().to_owned();
        assert!(!id.is_empty() && ids.insert(id), "{method} {path}");
    }
}

/// The end of a drain that fires was taken out of the body, and then missed there.
#[test]
fn a_drain_that_fires_ends_after_a_delay_or_at_a_time() {
    let (_directory, _server, mut client) = start();
    let drain = "/v1/queues/default:drain";
    for (body, until) in [
        (
            r#"{"mode":"fire","at":"2100-01-02T03:04:05Z"}"#,
            Some("2100-01-02T03:04:05.000000Z"),
        ),
        (r#"{"mode":"fire"}"#, None),
    ] {
        let answer = client.json("POST", drain, body).expect(200);
        assert_eq!(answer["drain"]["until"].as_str(), until, "{body}");
    }
    let answer = client.json("POST", drain, r#"{"mode":"fire","in":"30s"}"#);
    assert!(answer.expect(200)["drain"]["until"].is_string());
    for (body, status) in [
        (r#"{"mode":"fire","in":-1}"#, 422),
        (
            r#"{"mode":"fire","in":"1s","at":"2100-01-02T03:04:05Z"}"#,
            400,
        ),
        (r#"{"mode":"hold","in":"1s"}"#, 400),
        (r#"{"mode":"sell"}"#, 400),
        (r#"{"mode":"hold","more":1}"#, 400),
        ("{}", 400),
    ] {
        let answer = client.json("POST", drain, body);
        assert_eq!(answer.status, status, "{body}: {answer:?}");
    }
    // A refused one changes nothing.
    let queues = client.get("/v1/queues").expect(200);
    assert_eq!(queues["queues"][0]["drain"]["mode"], "fire");
}

#[test]
fn a_drained_queue_is_listed_though_it_has_no_timers() {
    let (_directory, _server, mut client) = start();
    client
        .json("POST", "/v1/queues/b:drain", r#"{"mode":"hold"}"#)
        .expect(200);
    let queues = client.get("/v1/queues").expect(200);
    let expected = json!({"queue": "b", "pending": 0, "delivering": 0, "done": 0, "dead": 0,
        "drain": {"mode": "hold"}});
    assert_eq!(queues, json!({"queues": [expected], "next": null}));
    client
        .json("POST", "/v1/queues:drain", r#"{"mode":"fire"}"#)
        .expect(200);
    let queues = client.get("/v1/queues").expect(200);
    assert_eq!(queues["drain"], json!({"mode": "fire"}));
}

#[test]
fn a_drain_hands_back_the_body_as_it_was_set() {
    let (_directory, _server, mut client) = start();
    for (key, fields) in [
        ("json", r#""body":{"order": 42}"#),
        ("text", r#""body":"{}","content_type":"text/plain""#),
        ("none", r#""retry":{"preset":"wechat"}"#),
        ("bytes", r#""body_base64":"AP+A""#),
    ] {
        set(&mut client, key, &format!(r#""in":"1h",{fields}"#));
    }
    let answer = client.json("POST", "/v1/queues/default:drain", r#"{"mode":"remove"}"#);
    let answer = answer.expect(200);
    assert_eq!(
        answer["left"],
        json!({"pending": 0, "delivering": 0, "dead": 0})
    );
    let removed = answer["removed"].as_array().unwrap();
    let item = |key: &str| removed.iter().find(|it| it["key"] == key).unwrap();
    let body = |key: &str| &item(key)["body"];
    assert_eq!(item("bytes")["body_base64"], "AP+A");
    assert_eq!(
        (body("json"), body("text")),
        (&json!({"order": 42}), &json!("{}"))
    );
    assert_eq!(removed.len(), 4);
}

#[test]
fn a_paused_queue_takes_timers_and_says_until_when() {
    let (_directory, _server, mut client) = start();
    let pause = "/v1/queues/default:pause";
    for (body, until) in [
        ("", Value::Null),
        ("{}", Value::Null),
        (
            r#"{"at":"2100-01-02T03:04:05Z"}"#,
            json!("2100-01-02T03:04:05.000000Z"),
        ),
    ] {
        let answer = client.json("POST", pause, body).expect(200);
        assert_eq!(answer["drain"]["mode"], "pause");
        assert_eq!(answer["drain"]["until"], until);
    }
    set(&mut client, "k", r#""in":0"#);
    let timer = client.get("/v1/queues/default/timers/k").expect(200);
    assert_eq!(timer["state"], "pending");
    let queues = client.get("/v1/queues").expect(200);
    let paused = json!({"mode": "pause", "until": "2100-01-02T03:04:05.000000Z"});
    assert_eq!(queues["queues"][0]["drain"], paused);
    let resumed = client
        .json("POST", "/v1/queues/default:resume", "")
        .expect(200);
    assert_eq!(resumed["was"], paused);

    // One that has ended is no more.
    let past = r#"{"at":"2020-01-01T00:00:00Z"}"#;
    client.json("POST", "/v1/queues:pause", past).expect(200);
    assert_eq!(client.get("/v1/queues").expect(200)["drain"], Value::Null);
    for (body, pointer) in [
        (r#"{"in":"1s","at":"2100-01-02T03:04:05Z"}"#, ""),
        (r#"{"mode":"hold"}"#, "/mode"),
        (r#"{"in":-1}"#, "/in"),
    ] {
        let answer = client.json("POST", pause, body);
        assert!([400, 422].contains(&answer.status), "{answer:?}");
        assert_eq!(answer.json()["errors"][0]["pointer"], pointer, "{body}");
    }
    assert_eq!(
        client.json("POST", "/v1/queues/default:stop", "").status,
        404
    );
}
