//! The settings of queues: how long timers are kept, overlapping runs, long bodies, and the ceilings of the program.

use std::fs;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, Server, Target, pause, reply, wait_for_state};

const ORDERS: &str = "/v1/queues/orders";
const TIMER: &str = "/v1/queues/orders/timers/k";
const MIB: usize = 1 << 20;

fn start() -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let client = server.client();
    (directory, server, client)
}

/// The same data, served with these flags beside.
fn serve(directory: &Directory, flags: &[&str]) -> (Server, Client) {
    let flags = [&["--allow-private-targets"], flags].concat();
    let server = Server::with(&directory.0.join("data"), &flags);
    let client = server.client();
    (server, client)
}

#[track_caller]
fn made(client: &mut Client, path: &str, body: &Value) -> Value {
    let answer = client.json("PUT", path, &body.to_string());
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    answer.json()
}

/// What a refusal says: its status, its code and the field at fault.
#[track_caller]
fn refused(answer: &Answer) -> (u16, String, String) {
    let (status, code) = answer.problem();
    let pointer = answer.json()["errors"][0]["pointer"].clone();
    (status, code, pointer.as_str().unwrap_or("-").to_owned())
}

fn wait_until_gone(client: &mut Client, path: &str) {
    for _ in 0..1_000 {
        if client.get(path).status == 404 {
            return;
        }
        pause();
    }
    panic!("{path} is there still");
}

#[test]
fn a_queue_says_how_long_its_timers_are_kept() {
    let (directory, server, mut client) = start();
    let retention = json!({"done": "1h", "dead": "720h"});
    let shown = made(&mut client, ORDERS, &json!({"retention": retention}));
    assert_eq!(shown["retention"], retention);
    let good = Target::answering("200 OK");
    let gone = Target::answering("410 Gone");
    let set = |url: &str| json!({"in": 0, "target": {"url": url}});
    made(&mut client, TIMER, &set(&good.url));
    let done = wait_for_state(&mut client, TIMER, "done");
    assert!(done["keep_until"].is_string() && done["done_at"] != done["keep_until"]);
    let dead_one = "/v1/queues/orders/timers/dead";
    made(&mut client, dead_one, &set(&gone.url));
    let dead = wait_for_state(&mut client, dead_one, "dead");
    assert!(dead["keep_until"].is_string(), "{dead}");
    // What ends from here on is kept for another time; what has ended is not.
    let short = json!({"retention": {"done": 0, "dead": "500ms"}});
    made(&mut client, ORDERS, &short);
    let shown = client.get(ORDERS).expect(200);
    assert_eq!(shown["retention"], json!({"done": "0s", "dead": "500ms"}));
    for (path, url) in [("done", &good.url), ("gone", &gone.url)] {
        let path = format!("/v1/queues/orders/timers/short-{path}");
        made(&mut client, &path, &set(url));
        wait_until_gone(&mut client, &path);
    }
    assert_eq!(client.get(dead_one).expect(200), dead);
    drop(server);
    let (_server, mut client) = serve(&directory, &[]);
    assert_eq!(client.get(dead_one).expect(200), dead);
    // For good, as without the setting.
    made(&mut client, ORDERS, &json!({"retention": {"dead": null}}));
    let path = "/v1/queues/orders/timers/good";
    made(&mut client, path, &set(&gone.url));
    let dead = wait_for_state(&mut client, path, "dead");
    assert_eq!(dead["keep_until"], Value::Null);
    for (body, pointer) in [
        (
            json!({"retention": {"done": "3650d 1ms"}}),
            "/retention/done",
        ),
        (
            json!({"retention": {"dead": "3650d 1ms"}}),
            "/retention/dead",
        ),
        (json!({"retention": {"dead": "-1s"}}), "/retention/dead"),
        (json!({"overlap": "all"}), "/overlap"),
    ] {
        let answer = client.json("PUT", ORDERS, &body.to_string());
        let (status, _, at) = refused(&answer);
        assert_eq!((status, &*at), (422, pointer), "{answer:?}");
    }
}

/// What is given up while the service starts is kept as its queue says, too.
#[test]
fn what_is_missed_at_a_start_is_kept_as_long_as_its_queue_says() {
    let (directory, server, mut client) = start();
    made(&mut client, ORDERS, &json!({"retention": {"dead": "1h"}}));
    let set = json!({
        "in": "700ms", "missed": {"skip_if_older_than": "1ms"}, "target": {"url": "http://127.0.0.1:1/"},
    });
    let names: Vec<String> = (0..20).map(|number| format!("{TIMER}{number}")).collect();
    for name in &names {
        made(&mut client, name, &set);
    }
    drop(server);
    for _ in 0..100 {
        pause();
    }
    let (_server, mut client) = serve(&directory, &[]);
    for name in &names {
        let timer = wait_for_state(&mut client, name, "dead");
        assert_eq!(timer["dead_reason"], "missed");
        assert!(timer["keep_until"].is_string(), "{timer}");
    }
}

#[test]
fn a_queue_says_what_becomes_of_runs_that_overlap() {
    let (_directory, _server, mut client) = start();
    made(&mut client, ORDERS, &json!({"overlap": "queue"}));
    let target = json!({"url": "http://127.0.0.1:1/"});
    for (says, expected) in [(Value::Null, "queue"), (json!("skip"), "skip")] {
        let mut set = json!({"every": "1h", "target": target});
        if !says.is_null() {
            set["overlap"] = says;
        }
        made(&mut client, TIMER, &set);
        let timer = client.get(TIMER).expect(200);
        assert_eq!(timer["recurring"]["overlap"], expected);
    }
    // It says nothing of a timer for one time.
    made(&mut client, TIMER, &json!({"in": "1h", "target": target}));
    // A change of it holds for a timer that is set, unless that has named the rule itself.
    made(
        &mut client,
        TIMER,
        &json!({"every": "1h", "target": target}),
    );
    let own = "/v1/queues/orders/timers/own";
    let set = json!({"every": "1h", "target": target, "overlap": "queue"});
    made(&mut client, own, &set);
    for (settings, expected, from) in [
        (json!({"overlap": "queue"}), "queue", "queue"),
        (json!({"overlap": "skip"}), "skip", "queue"),
        (json!({}), "skip", "default"),
    ] {
        made(&mut client, ORDERS, &settings);
        let timer = client.get(TIMER).expect(200);
        assert_eq!(timer["recurring"]["overlap"], expected);
        assert_eq!(timer["from"]["overlap"], from);
        let timer = client.get(own).expect(200);
        assert_eq!(timer["recurring"]["overlap"], "queue");
        assert_eq!(timer["from"]["overlap"], Value::Null);
    }
}

/// Asks for the timer until so many of its attempts have failed.
#[track_caller]
fn wait_for_failures(client: &mut Client, failures: u64) -> Value {
    for _ in 0..1_000 {
        let timer = client.get(TIMER).expect(200);
        if timer["failures"] == failures {
            return timer;
        }
        pause();
    }
    panic!("it does not fail {failures} times");
}

/// What a timer shows of its retry policy: the fixed delay, who says it, and how many attempts would come.
fn shown_retry(timer: &Value) -> (&Value, &Value, usize) {
    let next = timer["next_attempts"].as_array().map_or(0, Vec::len);
    (&timer["retry"]["fixed"], &timer["from"]["retry"], next)
}

#[test]
fn a_timer_goes_by_the_retry_policy_that_holds_when_its_attempt_fails() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("500 Internal Server Error");
    let retry = |fixed: &str, most: u32| json!({"retry": {"fixed": fixed, "max_attempts": most}});
    made(&mut client, ORDERS, &retry("1h", 9));
    made(
        &mut client,
        TIMER,
        &json!({"in": "1h", "target": {"url": target.url}}),
    );
    let set = client.get(TIMER).expect(200);
    assert_eq!(shown_retry(&set), (&json!("1h"), &json!("queue"), 9));
    let all = json!({"retry": "queue", "missed": "default", "timeout": "default"});
    assert_eq!(set["from"], all);
    // The record has nothing of it: the view is another at once, under the same revision.
    made(&mut client, ORDERS, &retry("2h", 3));
    let shown = client.get(TIMER).expect(200);
    assert_eq!(shown_retry(&shown), (&json!("2h"), &json!("queue"), 3));
    assert_eq!(shown["revision"], set["revision"]);
    client
        .json("POST", &format!("{TIMER}:fire"), "")
        .expect(202);
    let failed = wait_for_failures(&mut client, 1);
    let wait = |timer: &Value| {
        let at = |text: &Value| {
            let text = text.as_str().unwrap().to_owned();
            text[11..13].parse::<u32>().unwrap() * 60 + text[14..16].parse::<u32>().unwrap()
        };
        let ended = &timer["attempts"].as_array().unwrap().last().unwrap()["ended"];
        (at(&timer["due"]) + 24 * 60 - at(ended)) % (24 * 60)
    };
    assert!((119..=121).contains(&wait(&failed)), "{failed}");
    // No settings at all: what the program does by default.
    made(&mut client, ORDERS, &json!({}));
    let shown = client.get(TIMER).expect(200);
    assert_eq!(shown["from"]["retry"], "default");
    assert_eq!(shown["retry"]["max_attempts"], 20);
    // One failure is all that there may be. The attempt that waits is made all the same, and is the last.
    made(&mut client, ORDERS, &retry("3h", 1));
    let shown = client.get(TIMER).expect(200);
    assert_eq!(shown["state"], "pending");
    assert_eq!(shown_retry(&shown), (&json!("3h"), &json!("queue"), 1));
    client
        .json("POST", &format!("{TIMER}:fire"), "")
        .expect(202);
    let dead = wait_for_state(&mut client, TIMER, "dead");
    assert_eq!(
        (&dead["dead_reason"], &dead["attempt"]),
        (&json!("exhausted"), &json!(2))
    );
}

#[test]
fn what_a_timer_names_itself_stays_whatever_its_queue_says() {
    let (_directory, _server, mut client) = start();
    let own = json!({
        "every": "1h", "target": {"url": "http://127.0.0.1:1/", "timeout": "7s"},
        "retry": {"fixed": "7s"}, "missed": "fire", "overlap": "skip",
    });
    made(&mut client, TIMER, &own);
    let before = client.get(TIMER).expect(200);
    assert_eq!(before["from"], Value::Null);
    let settings = json!({
        "retry": {"fixed": "1h"}, "missed": "collapse", "overlap": "queue", "timeout": "1s",
    });
    made(&mut client, ORDERS, &settings);
    assert_eq!(client.get(TIMER).expect(200), before);
}

#[test]
fn the_rules_of_an_endpoint_are_those_of_the_endpoint_in_use_now() {
    let (_directory, _server, mut client) = start();
    let url = "http://127.0.0.1:1/";
    for (name, fixed) in [("a", "1m"), ("b", "2m")] {
        let settings = json!({"url": url, "retry": {"fixed": fixed}, "timeout": fixed});
        made(&mut client, &format!("/v1/endpoints/{name}"), &settings);
    }
    made(&mut client, "/v1/endpoints/bare", &json!({"url": url}));
    made(
        &mut client,
        ORDERS,
        &json!({"endpoint": "a", "timeout": "9s"}),
    );
    made(&mut client, TIMER, &json!({"in": "1h"}));
    let mut shows = |endpoint: &str| {
        let settings = json!({"endpoint": endpoint, "timeout": "9s"});
        made(&mut client, ORDERS, &settings);
        let timer = client.get(TIMER).expect(200);
        let from = &timer["from"];
        (
            timer["retry"]["fixed"].clone(),
            timer["target"]["timeout"].clone(),
            (from["retry"].clone(), from["timeout"].clone()),
        )
    };
    let endpoint = (json!("endpoint"), json!("endpoint"));
    assert_eq!(shows("a"), (json!("1m"), json!("1m"), endpoint.clone()));
    assert_eq!(shows("b"), (json!("2m"), json!("2m"), endpoint));
    let others = (json!("default"), json!("queue"));
    assert_eq!(shows("bare"), (Value::Null, json!("9s"), others));
}

#[test]
fn the_timeout_of_a_url_is_that_of_the_queue_when_the_attempt_starts() {
    let (_directory, _server, mut client) = start();
    let slow = Target::start(|_| {
        for _ in 0..100 {
            pause();
        }
        reply("200 OK", "")
    });
    made(
        &mut client,
        ORDERS,
        &json!({"timeout": "20m", "retry": {"fixed": "1h"}}),
    );
    let set = json!({"in": "1h", "target": {"url": slow.url}});
    made(&mut client, TIMER, &set);
    let shown = client.get(TIMER).expect(200);
    assert_eq!(shown["target"]["timeout"], "20m");
    assert_eq!(shown["from"]["timeout"], "queue");
    made(
        &mut client,
        ORDERS,
        &json!({"timeout": "100ms", "retry": {"fixed": "1h"}}),
    );
    client
        .json("POST", &format!("{TIMER}:fire"), "")
        .expect(202);
    let failed = wait_for_failures(&mut client, 1);
    assert_eq!(failed["attempts"][0]["detail"], "timed out after 100ms");
    assert_eq!(failed["target"]["timeout"], "100ms");
}

#[test]
fn a_timer_is_missed_by_the_rule_that_its_queue_has_then() {
    let (directory, server, mut client) = start();
    let done = Target::answering("200 OK");
    let skip = json!({"missed": {"skip_if_older_than": "1ms"}});
    made(&mut client, ORDERS, &skip);
    made(
        &mut client,
        TIMER,
        &json!({"in": "500ms", "target": {"url": done.url}}),
    );
    made(&mut client, ORDERS, &json!({"missed": "fire"}));
    drop(server);
    for _ in 0..100 {
        pause();
    }
    let (_server, mut client) = serve(&directory, &[]);
    wait_for_state(&mut client, TIMER, "done");
}

#[test]
fn the_flags_are_ceilings_of_what_queues_and_endpoints_say() {
    let directory = Directory::new();
    let (server, mut client) = serve(&directory, &[]);
    let endpoint = "/v1/endpoints/shop";
    let settings = json!({
        "concurrency": 200, "payload_limit": 16 * MIB, "retention": {"done": "20h", "dead": "9d"},
        "timeout": "30m",
    });
    made(&mut client, ORDERS, &settings);
    let shop = json!({"url": "http://127.0.0.1:1/", "concurrency": 200, "timeout": "21s"});
    made(&mut client, endpoint, &shop);
    let long = json!({"in": "1h", "target": {"url": "http://127.0.0.1:1/", "timeout": "1m"}});
    made(&mut client, TIMER, &long);
    drop(server);
    let low = [
        "--max-in-flight",
        "10",
        "--payload-ceiling-mib",
        "2",
        "--keep-done",
        "1h",
        "--timeout-ceiling",
        "20s",
    ];
    let (server, mut client) = serve(&directory, &low);
    // What was stored before counts as much as the ceiling.
    let shown = client.get(ORDERS).expect(200);
    assert_eq!(
        (&shown["concurrency"], &shown["payload_limit"]),
        (&json!(10), &json!(2 * MIB))
    );
    assert_eq!(shown["retention"], json!({"done": "1h", "dead": "216h"}));
    let shop = client.get(endpoint).expect(200);
    assert_eq!(
        (&shop["concurrency"], &shop["timeout"]),
        (&json!(10), &json!("20s"))
    );
    assert_eq!(shown["timeout"], "20s");
    let timer = client.get(TIMER).expect(200);
    assert_eq!(timer["target"]["timeout"], "20s");
    let body = "x".repeat(2 * MIB + 1);
    let set = json!({"in": "1h", "target": {"url": "http://127.0.0.1:1/"}, "body": body});
    let answer = client.json("PUT", TIMER, &set.to_string());
    assert_eq!(refused(&answer).0, 413);
    assert!(
        answer.json()["detail"]
            .as_str()
            .unwrap()
            .contains("2097152")
    );
    for (path, body, pointer, ceiling) in [
        (
            ORDERS,
            json!({"concurrency": 11}),
            "/concurrency",
            json!(10),
        ),
        (
            endpoint,
            json!({"url": "http://x/", "concurrency": 11}),
            "/concurrency",
            json!(10),
        ),
        (
            ORDERS,
            json!({"payload_limit": 2 * MIB + 1}),
            "/payload_limit",
            json!(2 * MIB),
        ),
        (
            ORDERS,
            json!({"retention": {"done": "61m"}}),
            "/retention/done",
            json!("1h"),
        ),
        (ORDERS, json!({"timeout": 20_001}), "/timeout", json!("20s")),
        (
            endpoint,
            json!({"url": "http://x/", "timeout": 20_001}),
            "/timeout",
            json!("20s"),
        ),
        (
            TIMER,
            json!({"in": 0, "target": {"url": "http://x/", "timeout": 20_001}}),
            "/target/timeout",
            json!("20s"),
        ),
    ] {
        let answer = client.json("PUT", path, &body.to_string());
        let (status, code, at) = refused(&answer);
        assert_eq!((status, &*code, &*at), (422, "above_ceiling", pointer));
        assert_eq!(answer.json()["ceiling"], ceiling);
    }
    let at_the_ceiling = json!({
        "concurrency": 10, "payload_limit": 2 * MIB, "retention": {"done": "1h", "dead": "3650d"},
        "timeout": "20s",
    });
    made(&mut client, ORDERS, &at_the_ceiling);
    drop(server);
    // A longer body has no room in the memory for bodies.
    let (_server, mut client) = serve(&directory, &["--body-memory", "8"]);
    let answer = client.json(
        "PUT",
        ORDERS,
        &json!({"payload_limit": 5 * MIB}).to_string(),
    );
    assert_eq!(refused(&answer).1, "above_ceiling");
    assert_eq!(client.get(ORDERS).expect(200)["payload_limit"], 2 * MIB);
}

/// What the process has taken at the most, in MiB.
fn peak(server: &Server) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib: usize = line
        .and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap();
    kib >> 10
}

/// Bytes that do not get shorter, and are another text each time.
fn noise(seed: usize, length: usize) -> Vec<u8> {
    let mut random = countwheel_time::Random::new(seed as u64);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.draw().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[test]
fn a_body_of_16_mib_is_set_kept_and_delivered_and_one_byte_more_is_refused() {
    const TIMERS: usize = 12;
    const MOST: usize = 16 * MIB;
    let directory = Directory::new();
    let (server, mut client) = serve(&directory, &[]);
    let target = Target::start(|_| reply("200 OK", ""));
    let set = |bytes: &[u8], delay: &str| {
        let base64 = BASE64_STANDARD.encode(bytes);
        let url = &target.url;
        format!(r#"{{"in":"{delay}","target":{{"url":"{url}"}},"body_base64":"{base64}"}}"#)
    };
    // A queue that says nothing takes requests of 1 MiB.
    let answer = client.json("PUT", TIMER, &set(&noise(0, MIB), "1h"));
    assert_eq!(answer.problem(), (413, "too_large".to_owned()));
    made(&mut client, ORDERS, &json!({"payload_limit": MOST}));
    let answer = client.json("PUT", TIMER, &set(&noise(0, MOST + 1), "1h"));
    assert_eq!(
        refused(&answer),
        (413, "too_large".to_owned(), "/body_base64".to_owned())
    );
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("16777216"), "{detail}");
    assert_eq!(client.get(TIMER).status, 404);
    // Nor is a request read that can be none.
    let answer = client.json("PUT", TIMER, &set(&noise(0, MOST + 2 * MIB), "1h"));
    assert_eq!(answer.problem(), (413, "too_large".to_owned()));
    // Other requests of the queue are as long as ever.
    let long = json!({"in": 0, "x": "y".repeat(MIB)}).to_string();
    assert_eq!(client.json("PATCH", TIMER, &long).problem().0, 413);
    for number in 0..TIMERS {
        let path = format!("/v1/queues/orders/timers/{number}");
        let answer = client.json("PUT", &path, &set(&noise(number, MOST), "1h"));
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    let while_set = peak(&server);
    drop(server);
    let (server, mut client) = serve(&directory, &[]);
    let shown = client.get("/v1/queues/orders/timers/3").expect(200);
    assert_eq!(shown["body_bytes"], MOST);
    for number in 0..TIMERS {
        let path = format!("/v1/queues/orders/timers/{number}:fire");
        assert_eq!(client.json("POST", &path, "{}").status, 202);
    }
    for _ in 0..TIMERS {
        let delivery = target.next();
        let number: usize = delivery.header("timer-key").parse().unwrap();
        assert!(delivery.body == noise(number, MOST), "the body of {number}");
    }
    let path = format!("/v1/queues/orders/timers/{}", TIMERS - 1);
    wait_for_state(&mut client, &path, "done");
    // A page ends with the body that fills it.
    let page = client
        .get("/v1/queues/orders/timers?limit=1000")
        .expect(200);
    assert!(page["items"].as_array().unwrap().len() <= TIMERS && page["next"].is_string());
    let while_delivered = peak(&server);
    // Eight attempts with their requests, and what a commit and a page hold.
    assert!(
        while_set < 500 && while_delivered < 1_000,
        "{while_set} and {while_delivered} MiB"
    );
}

#[test]
fn a_place_is_a_url_an_endpoint_or_that_of_the_queue() {
    let (_directory, _server, mut client) = start();
    let set = |target: Value| json!({"in": 0, "target": target}).to_string();
    let answer = client.json("PUT", TIMER, &set(json!({})));
    assert_eq!(
        refused(&answer),
        (400, "malformed".to_owned(), "/target".to_owned())
    );
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(
        detail.contains("url") && detail.contains("endpoint"),
        "{detail}"
    );
    let both = json!({"endpoint": null, "url": "http://x/"});
    assert_eq!(client.json("PUT", TIMER, &set(both)).status, 400);
    // It waits for the queue to have an endpoint.
    let target = Target::answering("200 OK");
    let answer = client.json("PUT", TIMER, &set(json!({"endpoint": null, "path": "/a"})));
    assert_eq!(answer.status, 201, "{answer:?}");
    let timer = client.get(TIMER).expect(200);
    assert_eq!(timer["held_by"], "the queue has no endpoint");
    made(
        &mut client,
        "/v1/endpoints/shop",
        &json!({"url": target.url}),
    );
    made(&mut client, ORDERS, &json!({"endpoint": "shop"}));
    wait_for_state(&mut client, TIMER, "done");
}

#[test]
fn a_spread_at_the_far_limit_says_how_far_it_went() {
    let (_directory, _server, mut client) = start();
    let target = json!({"url": "http://x/"});
    let far = "36525d";
    let set = made(
        &mut client,
        TIMER,
        &json!({"in": far, "spread": "1d", "target": target}),
    );
    let timer = client.get(TIMER).expect(200);
    assert_eq!(
        (&timer["spread"], &timer["spread_drawn"]),
        (&json!("24h"), &json!("0s"))
    );
    assert_eq!(timer["due"], set["due"]);
    // So near to it that hardly any draw has room.
    for number in 0..20 {
        let path = format!("/v1/queues/orders/timers/{number}");
        made(
            &mut client,
            &path,
            &json!({"in": "36524d 23h 59m", "spread": "1d", "target": target}),
        );
        let timer = client.get(&path).expect(200);
        let drawn = timer["spread_drawn"].as_str().unwrap();
        let drawn = countwheel_server::time::parse_duration(drawn).unwrap();
        assert!(drawn <= Duration::from_secs(60), "{drawn:?}");
    }
}

#[test]
fn what_is_kept_no_more_is_shown_no_more() {
    let directory = Directory::new();
    let (server, mut client) = serve(&directory, &[]);
    let target = Target::start(|_| {
        "HTTP/1.1 410 Gone\r\nconnection: close\r\ncontent-length: 6\r\n\r\nsecret".to_owned()
    });
    made(
        &mut client,
        TIMER,
        &json!({"in": 0, "target": {"url": target.url}}),
    );
    let timer = wait_for_state(&mut client, TIMER, "dead");
    assert_eq!(timer["attempts"][0]["answer"]["body"], "secret");
    drop(server);
    let page = "/timer?queue=orders&key=k";
    for (flag, has_answer, has_body) in [
        ("off", false, false),
        ("redacted", true, false),
        ("on", true, true),
    ] {
        let (server, mut client) = serve(&directory, &["--keep-answers", flag]);
        let timer = client.get(TIMER).expect(200);
        let answer = &timer["attempts"][0]["answer"];
        assert_eq!(
            (answer.is_object(), answer["body"] == "secret"),
            (has_answer, has_body)
        );
        let list = client.get("/v1/queues/orders/timers").expect(200);
        assert_eq!(
            list["items"][0]["attempts"][0]["answer"].is_object(),
            has_answer
        );
        let html = client.get(page);
        let html = String::from_utf8_lossy(&html.body).into_owned();
        assert_eq!(html.contains("secret"), has_body);
        drop(server);
    }
}
