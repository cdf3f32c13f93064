//! What the receiver of a delivery decides and is told: by the statuses and the headers of its answers, and by the
//! headers of the delivery.

use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, Server, Target, reply, wait_for_state};

const SHOP: &str = "/v1/endpoints/shop";
const ORDERS: &str = "/v1/queues/orders";
const TIMER: &str = "/v1/queues/orders/timers/k";

fn start() -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let client = server.client();
    (directory, server, client)
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

/// Sets the timer with these fields beside a due time of now, and gives it as it is at its end.
#[track_caller]
fn ended(client: &mut Client, fields: &Value) -> Value {
    let mut body = json!({"in": 0, "retry": {"fixed": 1, "max_attempts": 1}});
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    made(client, TIMER, &body);
    for _ in 0..2_000 {
        let timer = client.get(TIMER).expect(200);
        if timer["state"] == "done" || timer["state"] == "dead" {
            return timer;
        }
        crate::support::pause();
    }
    panic!("it never ends");
}

#[test]
fn a_status_means_what_the_endpoint_says_then_what_the_queue_says() {
    let (_directory, _server, mut client) = start();
    for (status, of_endpoint, of_queue, state, reason) in [
        (
            "409 x",
            json!({"409": "done", "4xx": "stop"}),
            json!({}),
            "done",
            Value::Null,
        ),
        (
            "400 x",
            json!({"409": "done", "4xx": "stop"}),
            json!({}),
            "dead",
            json!("stopped"),
        ),
        (
            "404 x",
            json!({"404": "retry", "4xx": "stop"}),
            json!({}),
            "dead",
            json!("exhausted"),
        ),
        (
            "410 x",
            json!({"410": "retry"}),
            json!({"410": "done"}),
            "dead",
            json!("exhausted"),
        ),
        (
            "410 x",
            json!({"404": "retry"}),
            json!({"4xx": "done"}),
            "done",
            Value::Null,
        ),
        (
            "200 x",
            json!({}),
            json!({"2xx": "stop"}),
            "dead",
            json!("stopped"),
        ),
        (
            "302 x",
            json!({"3xx": "done"}),
            json!({}),
            "done",
            Value::Null,
        ),
        (
            "503 x",
            json!({}),
            json!({"5xx": "done"}),
            "done",
            Value::Null,
        ),
        ("410 x", json!({}), json!({}), "dead", json!("stopped")),
    ] {
        let target = Target::answering(status);
        let shop = json!({"url": target.url, "statuses": of_endpoint});
        let shown = made(&mut client, SHOP, &shop);
        let is_shown = of_endpoint != json!({});
        assert_eq!(
            shown["statuses"],
            if is_shown {
                of_endpoint.clone()
            } else {
                Value::Null
            }
        );
        let queue = json!({"endpoint": "shop", "statuses": of_queue});
        made(&mut client, ORDERS, &queue);
        let timer = ended(&mut client, &json!({}));
        let found = (&timer["state"], &timer["dead_reason"]);
        assert_eq!(
            found,
            (&json!(state), &reason),
            "{status} {of_endpoint} {of_queue}"
        );
        assert_eq!(timer["attempts"][0]["detail"], status[..3], "{status}");
    }
    // A timer with a URL of its own goes by the rules of its queue alone.
    let target = Target::answering("418 x");
    made(
        &mut client,
        SHOP,
        &json!({"url": target.url, "statuses": {"418": "stop"}}),
    );
    made(
        &mut client,
        ORDERS,
        &json!({"endpoint": "shop", "statuses": {"4xx": "done"}}),
    );
    let fields = json!({"target": {"url": target.url}});
    assert_eq!(ended(&mut client, &fields)["state"], "done");
    let shown = client.get(ORDERS).expect(200);
    assert_eq!(shown["statuses"], json!({"4xx": "done"}));
}

#[test]
fn retry_after_counts_wherever_429_and_503_are_tried_again_and_nowhere_else() {
    let (_directory, _server, mut client) = start();
    let waits = |client: &mut Client, status: &'static str, rules: Value| {
        let target = Target::start(move |_| reply(status, "retry-after: 7200\r\n"));
        made(client, ORDERS, &json!({"statuses": rules}));
        let body = json!({"in": 0, "retry": {"fixed": "1h"}, "target": {"url": target.url}});
        made(client, TIMER, &body);
        target.next();
        let timer = loop {
            let timer = client.get(TIMER).expect(200);
            if timer["attempts"][0]["ended"].is_string() {
                break timer;
            }
            crate::support::pause();
        };
        if timer["state"] != "pending" {
            return timer["state"].as_str().unwrap().to_owned();
        }
        let ended = timer["attempts"][0]["ended"].as_str().unwrap();
        let due = timer["due"].as_str().unwrap();
        let hour = |text: &str| -> u32 { text[11..13].parse().unwrap() };
        // An hour or two, and never less.
        format!("{}h", (24 + hour(due) - hour(ended)) % 24)
    };
    assert_eq!(waits(&mut client, "503 x", json!({"5xx": "retry"})), "2h");
    assert_eq!(
        waits(&mut client, "429 x", json!({"429": "retry", "4xx": "stop"})),
        "2h"
    );
    assert_eq!(waits(&mut client, "418 x", json!({"4xx": "retry"})), "1h");
    assert_eq!(waits(&mut client, "503 x", json!({"503": "stop"})), "dead");
}

#[test]
fn a_rule_that_is_none_is_refused_with_its_field() {
    let (_directory, _server, mut client) = start();
    let invalid = (422, "invalid_setting");
    for (statuses, (status, code), pointer) in [
        (json!({"1xx": "done"}), invalid, "/statuses/1xx"),
        (json!({"600": "done"}), invalid, "/statuses/600"),
        (json!({"199": "done"}), invalid, "/statuses/199"),
        (json!({"4XX": "done"}), invalid, "/statuses/4XX"),
        (json!({"all": "done"}), invalid, "/statuses/all"),
        (json!({"": "done"}), invalid, "/statuses/"),
        (json!({"404": "later"}), invalid, "/statuses/404"),
        (json!({"404": "Done"}), invalid, "/statuses/404"),
        (json!({"404": true}), (400, "malformed"), "/statuses/404"),
        (json!({"404": null}), (400, "malformed"), "/statuses/404"),
        (json!(["404"]), (400, "malformed"), "/statuses"),
    ] {
        let expected = (status, code.to_owned(), pointer.to_owned());
        let body = json!({"url": "http://x.example/", "statuses": statuses}).to_string();
        assert_eq!(
            refused(&client.json("PUT", SHOP, &body)),
            expected,
            "{body}"
        );
        let body = json!({"statuses": statuses}).to_string();
        assert_eq!(
            refused(&client.json("PUT", ORDERS, &body)),
            expected,
            "{body}"
        );
    }
    assert_eq!(client.get(SHOP).status, 404);
    // What is at the border of the rule is taken.
    let all = json!({"200": "done", "599": "stop", "2xx": "retry", "5xx": "done"});
    let shown = made(&mut client, ORDERS, &json!({"statuses": all}));
    assert_eq!(shown["statuses"], all);
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Sends JSON with these headers.
fn with_headers(
    client: &mut Client,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: &Value,
) -> Answer {
    let json = [("content-type", "application/json")];
    let headers = [&json, headers].concat();
    client.send(method, path, &headers, body.to_string().as_bytes())
}

#[test]
fn a_trace_goes_on_from_the_set_to_each_attempt() {
    let (_directory, _server, mut client) = start();
    let target = Target::start(|number| reply(if number == 0 { "500 x" } else { "200 x" }, ""));
    let body = json!({"in": 0, "retry": {"fixed": 1}, "target": {"url": target.url}});
    let headers = [("traceparent", PARENT), ("tracestate", "a=1, b=2")];
    with_headers(&mut client, ("PUT", TIMER), &headers, &body).expect(201);
    let deliveries = [target.next(), target.next()];
    let parents = deliveries.each_ref().map(|it| it.header("traceparent"));
    for (delivery, parent) in deliveries.iter().zip(parents) {
        assert_eq!((&parent[..36], &parent[52..]), (&PARENT[..36], "-01"));
        assert_eq!(delivery.header("tracestate"), "a=1,b=2");
    }
    // The set and each attempt are spans of their own.
    let spans = [PARENT, parents[0], parents[1]].map(|parent| &parent[36..52]);
    assert!(spans[0] != spans[1] && spans[1] != spans[2], "{spans:?}");
    let timer = wait_for_state(&mut client, TIMER, "done");
    assert_eq!(timer["trace_id"], TRACE);
    let list = client.get("/v1/queues/orders/timers").expect(200);
    assert_eq!(list["items"][0]["trace_id"], TRACE);

    // A resend goes on with the trace of the set, or with its own.
    let resend = format!("{TIMER}:resend");
    client.json("POST", &resend, "{}").expect(200);
    assert_eq!(target.next().header("traceparent")[..36], PARENT[..36]);
    wait_for_state(&mut client, TIMER, "done");
    let own = PARENT.replace("0af7", "1af7");
    let headers = [("traceparent", &*own)];
    with_headers(&mut client, ("POST", &resend), &headers, &json!({})).expect(200);
    let delivery = target.next();
    assert_eq!(delivery.header("traceparent")[..36], own[..36]);
    assert!(!delivery.has("tracestate"));
}

#[test]
fn a_trace_that_breaks_the_rules_is_ignored_and_a_header_of_the_timer_wins() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("200 x");
    let body = json!({"in": 0, "target": {"url": target.url}});
    let broken = PARENT.to_uppercase();
    for headers in [
        &[][..],
        &[("tracestate", "a=1")],
        &[("traceparent", &*broken), ("tracestate", "a=1")],
        &[("traceparent", PARENT), ("traceparent", PARENT)],
    ] {
        let answer = with_headers(&mut client, ("PUT", TIMER), headers, &body);
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
        let delivery = target.next();
        assert!(!delivery.has("traceparent") && !delivery.has("tracestate"));
        let timer = wait_for_state(&mut client, TIMER, "done");
        assert_eq!(timer["trace_id"], Value::Null);
    }
    // A state that breaks the rules goes alone.
    let headers = [("traceparent", PARENT), ("tracestate", "A=1")];
    with_headers(&mut client, ("PUT", TIMER), &headers, &body).expect(200);
    let delivery = target.next();
    assert!(delivery.has("traceparent") && !delivery.has("tracestate"));

    let headers = [("traceparent", PARENT), ("tracestate", "a=1")];
    let own = json!({"in": 0, "target": {"url": target.url, "headers": {"traceparent": "mine"}}});
    with_headers(&mut client, ("PUT", TIMER), &headers, &own).expect(200);
    let delivery = target.next();
    assert_eq!(delivery.header("traceparent"), "mine");
    assert!(!delivery.has("tracestate"));
    // That of an endpoint does so too.
    let shop = json!({"url": target.url, "headers": {"TraceParent": "theirs"}});
    made(&mut client, SHOP, &shop);
    let body = json!({"in": 0, "target": {"endpoint": "shop"}});
    with_headers(&mut client, ("PUT", TIMER), &headers, &body).expect(200);
    assert_eq!(target.next().header("traceparent"), "theirs");
}

#[test]
fn deliveries_of_a_queue_are_events_if_it_says_so() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("200 x");
    let event = json!({"source": "/orders", "type": "com.example.order.due"});
    let shown = made(&mut client, ORDERS, &json!({"cloudevents": event}));
    assert_eq!(shown["cloudevents"], event);
    assert_eq!(client.get(ORDERS).expect(200)["cloudevents"], event);
    // Headers of the timer that are attributes of the event give way, and other ones go along.
    let headers = json!({"ce-id": "mine", "CE-Source": "mine", "ce-tenant": "7"});
    let body = json!({"at": "2026-03-01T12:00:05Z", "body": {"n": 1},
                      "target": {"url": target.url, "headers": headers}});
    let timer = "/v1/queues/orders/timers/a%20%22%C3%BC%25%22";
    let id = made(&mut client, timer, &body)["id"].clone();
    let delivery = target.next();
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", id.as_str().unwrap()),
        ("ce-source", "/orders"),
        ("ce-type", "com.example.order.due"),
        ("ce-subject", "a%20%22%C3%BC%25%22"),
        ("ce-time", "2026-03-01T12:00:05.000000Z"),
        ("ce-tenant", "7"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(delivery.header(name), value, "{name}");
    }
    // To an endpoint, and run by run.
    made(&mut client, SHOP, &json!({"url": target.url}));
    let queue = json!({"endpoint": "shop", "cloudevents": {"source": "a/b", "type": "é x"}});
    made(&mut client, ORDERS, &queue);
    made(
        &mut client,
        TIMER,
        &json!({"in": 0, "every": "100ms", "repeats": 2}),
    );
    for run in ["-r1", "-r2"] {
        let delivery = target.next();
        assert_eq!(delivery.header("ce-type"), "%C3%A9%20x");
        assert_eq!(delivery.header("ce-id"), delivery.header("webhook-id"));
        assert!(delivery.header("ce-id").ends_with(run));
        assert_eq!(delivery.header("ce-time"), delivery.header("timer-due"));
    }
    // A queue that does not say so adds nothing.
    made(&mut client, ORDERS, &json!({"endpoint": "shop"}));
    let body = json!({"in": 0, "target": {"headers": {"ce-id": "mine"}}});
    made(&mut client, TIMER, &body);
    let delivery = target.next();
    assert_eq!(delivery.header("ce-id"), "mine");
    assert!(!delivery.has("ce-specversion"));
}

#[test]
fn an_event_that_breaks_a_rule_is_refused_with_its_field() {
    let (_directory, _server, mut client) = start();
    let invalid = (422, "invalid_setting");
    let malformed = (400, "malformed");
    for (event, (status, code), pointer) in [
        (
            json!({"source": "", "type": "a"}),
            invalid,
            "/cloudevents/source",
        ),
        (
            json!({"source": "a b", "type": "a"}),
            invalid,
            "/cloudevents/source",
        ),
        (
            json!({"source": "/a", "type": ""}),
            invalid,
            "/cloudevents/type",
        ),
        (
            json!({"source": "/a", "type": "a\nb"}),
            invalid,
            "/cloudevents/type",
        ),
        (
            json!({"source": 1, "type": "a"}),
            malformed,
            "/cloudevents/source",
        ),
        (json!({"source": "/a"}), malformed, "/cloudevents/type"),
        (json!({"type": "a"}), malformed, "/cloudevents/source"),
        (
            json!({"source": "/a", "type": "a", "id": "x"}),
            malformed,
            "/cloudevents/id",
        ),
        (json!("/orders"), malformed, "/cloudevents"),
    ] {
        let expected = (status, code.to_owned(), pointer.to_owned());
        let body = json!({"cloudevents": event}).to_string();
        assert_eq!(
            refused(&client.json("PUT", ORDERS, &body)),
            expected,
            "{body}"
        );
    }
}

/// A time of the API in microseconds of its day.
fn of_day(time: &Value) -> u64 {
    let text = time.as_str().unwrap();
    let number = |from: usize, to: usize| text[from..to].parse::<u64>().unwrap();
    let seconds = number(11, 13) * 3_600 + number(14, 16) * 60 + number(17, 19);
    seconds * 1_000_000 + number(20, 26)
}

#[test]
fn a_spread_draws_the_due_time_once() {
    let (directory, server, mut client) = start();
    let nominal = "2090-03-01T12:00:00Z";
    let body = json!({"at": nominal, "spread": "10m", "target": {"url": "http://x.example/"}});
    let noon = 12 * 3_600 * 1_000_000;
    let mut drawn = Vec::new();
    for key in 0..20 {
        let path = format!("/v1/queues/orders/timers/{key}");
        let set = made(&mut client, &path, &body);
        let timer = client.get(&path).expect(200);
        assert_eq!(
            (&timer["spread"], &timer["due"]),
            (&json!("10m"), &set["due"])
        );
        let due = of_day(&set["due"]);
        assert!((noon..=noon + 600_000_000).contains(&due), "{set}");
        assert!(timer["spread_drawn"].is_string(), "{timer}");
        drawn.push(due);
    }
    // Twenty draws lie in both halves, but in one of half a million cases.
    let middle = noon + 300_000_000;
    assert!(drawn.iter().any(|&due| due < middle) && drawn.iter().any(|&due| due > middle));
    assert!(server.stop().success());
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    for (key, due) in drawn.iter().enumerate() {
        let timer = client.get(&format!("/v1/queues/orders/timers/{key}"));
        assert_eq!(of_day(&timer.expect(200)["due"]), *due);
    }

    // A delay is spread as well, nothing may be drawn, and a resend comes at once.
    let target = Target::answering("200 x");
    let body = json!({"in": 0, "spread": "0s", "target": {"url": target.url}});
    let set = made(&mut client, TIMER, &body);
    assert_eq!(target.next().header("timer-due"), set["due"]);
    let timer = wait_for_state(&mut client, TIMER, "done");
    assert_eq!(timer["spread_drawn"], "0s");
    client
        .json("POST", &format!("{TIMER}:resend"), "{}")
        .expect(200);
    target.next();
    assert_eq!(client.get(TIMER).expect(200)["spread"], Value::Null);
    let body = json!({"in": "36525d", "spread": "1d", "target": {"url": target.url}});
    let timer = made(&mut client, TIMER, &body);
    assert!(timer["due"].is_string(), "{timer}");
}

#[test]
fn a_spread_that_breaks_a_rule_is_refused_with_its_field() {
    let (_directory, _server, mut client) = start();
    let unschedulable = (422, "unschedulable");
    let malformed = (400, "malformed");
    for (fields, (status, code)) in [
        (json!({"in": 0, "spread": "25h"}), unschedulable),
        (json!({"in": 0, "spread": 86_400_001}), unschedulable),
        (json!({"in": 0, "spread": "-1s"}), unschedulable),
        (json!({"in": 0, "spread": "soon"}), unschedulable),
        (json!({"in": 0, "spread": true}), malformed),
        (json!({"in": 0, "spread": {"within": "1s"}}), malformed),
        (json!({"every": "1h", "spread": "1s"}), malformed),
        (json!({"cron": "@daily", "spread": "1s"}), malformed),
    ] {
        let mut body = fields;
        body["target"] = json!({"url": "http://x.example/"});
        let answer = client.json("PUT", TIMER, &body.to_string());
        let expected = (status, code.to_owned(), "/spread".to_owned());
        assert_eq!(refused(&answer), expected, "{body}");
    }
    assert_eq!(client.get(TIMER).status, 404);
}

/// In microseconds.
const DAY: u64 = 86_400_000_000;
const POLL: &str = "/v1/queues/orders/timers/poll";

/// Asks for the timer until it has run so often.
fn after_runs(client: &mut Client, runs: u64) -> Value {
    for _ in 0..2_000 {
        let timer = client.get(POLL).expect(200);
        if timer["attempt"].as_u64() >= Some(runs) && timer["state"] != "delivering" {
            return timer;
        }
        crate::support::pause();
    }
    panic!("it never runs so often");
}

#[test]
fn a_receiver_says_when_the_next_run_is() {
    let (directory, server, mut client) = start();
    for schedule in ["every", "every_after"] {
        let target = Target::start(|run| {
            let next = [
                "timer-next: 250ms\r\n",
                "timer-next: 0\r\n",
                "timer-next: 7d\r\n",
            ];
            reply("200 x", next.get(run).unwrap_or(&""))
        });
        let adaptive = json!({"min": "100ms", "max": "5m"});
        let body =
            json!({"in": 0, schedule: "1h", "adaptive": adaptive, "target": {"url": target.url}});
        made(&mut client, POLL, &body);
        // Clamped to both bounds.
        let timer = after_runs(&mut client, 3);
        assert_eq!(timer["recurring"]["adaptive"], adaptive);
        let attempts = timer["attempts"].as_array().unwrap();
        // Midnight may lie between the two.
        let wait =
            |at: usize, due: &Value| (of_day(due) + DAY - of_day(&attempts[at]["ended"])) % DAY;
        let about = |wait: u64, expected: u64| (expected..expected + 50_000).contains(&wait);
        let waits = [
            wait(0, &attempts[1]["due"]),
            wait(1, &attempts[2]["due"]),
            wait(2, &timer["due"]),
        ];
        // Between the end on two time lines lie some microseconds.
        let expected = [250_000, 100_000, 300_000_000];
        for (wait, expected) in waits.into_iter().zip(expected) {
            assert!(about(wait + 1_000, expected), "{waits:?}: {timer}");
        }
        assert_eq!(timer["recurring"]["overlapped_runs"], 0);
        for attempt in attempts {
            assert_eq!(attempt["answer"]["ignored"], Value::Null, "{attempt}");
        }
    }
    // What was chosen is there after a restart.
    let due = client.get(POLL).expect(200)["due"].clone();
    assert!(server.stop().success());
    let server = Server::start(&directory.0.join("data"));
    let timer = server.client().get(POLL).expect(200);
    assert_eq!(timer["due"], due);
    assert_eq!(timer["recurring"]["adaptive"]["max"], "5m");
}

#[test]
fn a_receiver_ends_the_series() {
    let (_directory, _server, mut client) = start();
    let target = Target::start(|run| {
        let stop = "timer-stop: 1\r\n";
        match run {
            0 => reply("500 x", stop),
            1 => reply("200 x", "timer-stop: 0\r\ntimer-next: soon\r\n"),
            _ => reply("200 x", stop),
        }
    });
    let body = json!({"in": 0, "every": "100ms", "adaptive": {"min": 100, "max": 100},
                      "retry": {"fixed": 1}, "target": {"url": target.url}});
    made(&mut client, POLL, &body);
    let timer = wait_for_state(&mut client, POLL, "done");
    let ignored = timer["attempts"].as_array().unwrap().iter();
    let ignored = ignored.map(|attempt| attempt["answer"]["ignored"].clone());
    let ignored: Vec<Value> = ignored.collect();
    let (stop, both) = (json!(["timer-stop"]), json!(["timer-next", "timer-stop"]));
    assert_eq!(ignored, [stop, both, Value::Null]);
    assert_eq!(timer["recurring"]["run"], 2);
}

#[test]
fn without_adaptive_the_wishes_of_a_receiver_are_ignored_and_told() {
    let (_directory, _server, mut client) = start();
    let target = Target::start(|_| reply("200 x", "timer-next: 1h\r\ntimer-stop: 1\r\n"));
    let both = json!(["timer-next", "timer-stop"]);
    let body = json!({"in": 0, "every": "100ms", "repeats": 2, "target": {"url": target.url}});
    made(&mut client, POLL, &body);
    let timer = wait_for_state(&mut client, POLL, "done");
    assert_eq!(timer["recurring"]["run"], 2);
    for attempt in timer["attempts"].as_array().unwrap() {
        assert_eq!(attempt["answer"]["ignored"], both);
    }
    let once = ended(&mut client, &json!({"target": {"url": target.url}}));
    assert_eq!(once["attempts"][0]["answer"]["ignored"], both);
}

#[test]
fn an_adaptive_that_breaks_a_rule_is_refused_with_its_field() {
    let (_directory, _server, mut client) = start();
    let unschedulable = (422, "unschedulable");
    let malformed = (400, "malformed");
    let all = json!({"min": "5s", "max": "5m"});
    for (schedule, adaptive, (status, code), pointer) in [
        (json!({"in": 0}), all.clone(), malformed, "/adaptive"),
        (json!({"cron": "@daily"}), all, malformed, "/adaptive"),
        (json!({"every": "1s"}), json!("5s"), malformed, "/adaptive"),
        (
            json!({"every": "1s"}),
            json!({"min": "5s"}),
            malformed,
            "/adaptive/max",
        ),
        (
            json!({"every": "1s"}),
            json!({"max": "5s"}),
            malformed,
            "/adaptive/min",
        ),
        (
            json!({"every": "1s"}),
            json!({"min": 100, "max": 100, "step": 1}),
            malformed,
            "/adaptive/step",
        ),
        (
            json!({"every": "1s"}),
            json!({"min": true, "max": 100}),
            malformed,
            "/adaptive/min",
        ),
        (
            json!({"every": "1s"}),
            json!({"min": "x", "max": 100}),
            unschedulable,
            "/adaptive/min",
        ),
        (
            json!({"every": "1s"}),
            json!({"min": 99, "max": 100}),
            unschedulable,
            "/adaptive/min",
        ),
        (
            json!({"every_after": "1s"}),
            json!({"min": "1s", "max": "36526d"}),
            unschedulable,
            "/adaptive/max",
        ),
        (
            json!({"every": "1s"}),
            json!({"min": 101, "max": 100}),
            unschedulable,
            "/adaptive/max",
        ),
    ] {
        let mut body = schedule;
        body["adaptive"] = adaptive;
        body["target"] = json!({"url": "http://x.example/"});
        let answer = client.json("PUT", POLL, &body.to_string());
        let expected = (status, code.to_owned(), pointer.to_owned());
        assert_eq!(refused(&answer), expected, "{body}");
    }
    assert_eq!(client.get(POLL).status, 404);
}
