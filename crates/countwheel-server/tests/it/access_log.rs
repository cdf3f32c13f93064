//! The access log of a real process: which requests have a line, what each line says, and what none does.

use std::collections::BTreeMap;
use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use serde_json::{Value, json};

use crate::logs::{self, start};
use crate::support::{Answer, Client, Directory, PATIENCE, Server, pause, read_answer};
use crate::tokens::{first, made, with};

const JSON: [&str; 3] = ["--access-log", "--log-format", "json"];
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const HTML: (&str, &str) = ("accept", "text/html");
const TIMER: &str = "/v1/queues/orders/timers/order-42";
const SET: &str = r#"{"in":"9d","target":{"url":"http://x.invalid/MARKER-url","headers":{"x-a":"MARKER-header"}},"body":"MARKER-body"}"#;
/// A line has at most so many bytes, whatever is asked for.
const LINE_MAX_BYTES: usize = 8 << 10;

/// The lines of the access log in a log in JSON.
fn lines(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    let lines = text
        .lines()
        .filter(|line| line.contains("countwheel::access"));
    let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lines = lines.filter(|line| line["target"] == "countwheel::access");
    lines
        .inspect(|line| assert_eq!(line["level"], "INFO"))
        .map(|mut line| line["fields"].take())
        .collect()
}

/// Lines once the process has ended, by the id of their request.
#[track_caller]
fn by_request(server: Server, log: &Path) -> BTreeMap<String, Value> {
    assert!(server.stop().success());
    let mut all = BTreeMap::new();
    for line in lines(log) {
        let id = line["request"].as_str().unwrap().to_owned();
        let before = all.insert(id, line);
        assert_eq!(before, None, "a request has two lines");
    }
    all
}

fn id(answer: &Answer) -> String {
    answer.header("x-request-id").unwrap().to_owned()
}

/// What a line says beside its time and the id of its request: all fields of `expected`, those of every answer, and no other.
#[track_caller]
fn assert_says(lines: &mut BTreeMap<String, Value>, answer: &Answer, mut expected: Value) {
    let mut line = lines.remove(&id(answer)).unwrap();
    let fields = line.as_object_mut().unwrap();
    fields.remove("request");
    let took = fields.remove("took_us").unwrap();
    let patience = u64::try_from(PATIENCE.as_micros()).unwrap();
    assert!((1..patience).contains(&took.as_u64().unwrap()), "{took}");
    expected["message"] = "a request was answered".into();
    expected["status"] = answer.status.into();
    expected["bytes"] = answer.body.len().into();
    expected["address"] = "127.0.0.1".into();
    assert_eq!(line, expected);
}

#[test]
fn each_request_has_one_line_with_who_what_and_how_it_was_answered() {
    let directory = Directory::new();
    let (_, token) = first(&directory);
    let (server, log) = start(&directory, &JSON);
    let operator = token.split('_').nth(1).unwrap();
    let mut admin = with(&server, &token);
    let (reader, secret) = made(&mut admin, &json!({"name": "r", "scopes": ["read"]}));
    let set = admin.json("PUT", TIMER, SET);
    let mut caller = with(&server, &secret);
    let get = caller.get(TIMER);
    get.expect(200);
    let head = caller.send("HEAD", TIMER, &[], b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
    let list = caller.get("/v1/queues/orders/timers?limit=7&prefix=MARKER-query");
    list.expect(200);
    let all = caller.get("/v1/timers");
    let endpoint = caller.get("/v1/endpoints/shop");
    assert_eq!(endpoint.status, 404);
    let fired = admin.send("POST", &format!("{TIMER}:fire"), &[], b"");
    let about = admin.get(&format!("/v1/tokens/{reader}"));
    let metrics = admin.get("/metrics");
    assert_eq!(metrics.status, 200);
    // Refused: for its scope, for its token, without one, for its method, and since nothing is there.
    let refused = caller.send("DELETE", "/v1/queues/orders?MARKER-query", &[], b"");
    assert_eq!(refused.status, 403);
    let wrong = with(&server, "cwt_0123abcd4567_MARKER").get(TIMER);
    assert_eq!(wrong.status, 401);
    let missing = server.client().get(TIMER);
    let no_method = admin.send("PATCH", "/v1/queues/orders/timers", &[], b"");
    assert_eq!(no_method.status, 405);
    let nowhere = server.client().get("/MARKER-path/orders");
    assert_eq!(nowhere.status, 404);
    let described = server.client().get("/problems");
    // A probe has none, well or not.
    for path in [
        "/livez",
        "/readyz",
        "/startz",
        "/healthz",
        "/healthz?MARKER=%",
    ] {
        let mut prober = server.client();
        assert!(matches!(prober.get(path).status, 200 | 400), "{path}");
    }
    let mut all_lines = by_request(server, &log);
    let by = |who: &str, operation: &str, method: &str, route: &str| json!({"who": "token", "token": who, "operation": operation, "method": method, "route": route});
    let and = |mut line: Value, names: &[(&str, &str)]| {
        for (name, value) in names {
            line[*name] = (*value).into();
        }
        line
    };
    let timer_route = "/v1/queues/{queue}/timers/{key}";
    let timers_route = "/v1/queues/{queue}/timers";
    let timer = [("queue", "orders"), ("key", "order-42")];
    let queue = [("queue", "orders")];
    let mut says = |answer: &Answer, expected: Value| assert_says(&mut all_lines, answer, expected);
    says(
        &set,
        and(by(operator, "setTimer", "PUT", timer_route), &timer),
    );
    says(
        &get,
        and(by(&reader, "getTimer", "GET", timer_route), &timer),
    );
    says(
        &head,
        and(by(&reader, "getTimer", "HEAD", timer_route), &timer),
    );
    says(
        &list,
        and(by(&reader, "listTimers", "GET", timers_route), &queue),
    );
    says(&all, by(&reader, "listAllTimers", "GET", "/v1/timers"));
    let endpoints = by(&reader, "getEndpoint", "GET", "/v1/endpoints/{name}");
    says(&endpoint, and(endpoints, &[("endpoint", "shop")]));
    says(
        &fired,
        and(by(operator, "fireTimer", "POST", timer_route), &timer),
    );
    let tokens = by(operator, "getToken", "GET", "/v1/tokens/{token}");
    says(&about, and(tokens, &[("of_token", &reader)]));
    says(&metrics, by(operator, "getMetrics", "GET", "/metrics"));
    let removes = by(&reader, "removeQueue", "DELETE", "/v1/queues/{queue}");
    says(&refused, and(removes, &queue));
    let of_nobody = json!({"operation": "getTimer", "method": "GET", "route": timer_route});
    says(&wrong, and(of_nobody.clone(), &timer));
    says(&missing, and(of_nobody, &timer));
    let patch =
        json!({"who": "token", "token": operator, "method": "PATCH", "route": timers_route});
    says(&no_method, and(patch, &queue));
    says(&nowhere, json!({"who": "anyone", "method": "GET"}));
    let problems = json!({"who": "anyone", "operation": "listProblems", "method": "GET", "route": "/problems"});
    says(&described, problems);
    // The two tokens were made before: one of them by a request.
    let rest: Vec<_> = all_lines.into_values().collect();
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert_eq!(rest[0]["operation"], "createToken");
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("MARKER") && !text.contains("cwt_"), "{text}");
}

#[test]
fn a_login_and_the_pages_behind_it_have_lines_with_the_token_and_no_cookie() {
    let directory = Directory::new();
    let (_, token) = first(&directory);
    let (server, log) = start(&directory, &JSON);
    let operator = token.split('_').nth(1).unwrap();
    let mut admin = with(&server, &token);
    let (writer, of_writer) = made(&mut admin, &json!({"name": "w", "scopes": ["write"]}));
    let mut browser = server.client();
    let mut log_in = |token: &str| {
        let form = format!("token={token}&to=%2Fdead%3Fqueue%3DMARKER");
        browser.send("POST", "/login", &[FORM, HTML], form.as_bytes())
    };
    let wrong = log_in("cwt_0123abcd4567_MARKER");
    let refused = log_in(&of_writer);
    let begun = log_in(&token);
    assert_eq!(begun.status, 303);
    let cookie = begun.header("set-cookie").unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let led = browser.send("GET", "/timer?queue=q&key=order-7", &[HTML], b"");
    assert_eq!(led.status, 303);
    let page = browser.send(
        "GET",
        "/timer?queue=q&key=order-7",
        &[HTML, ("cookie", &cookie)],
        b"",
    );
    assert_eq!(page.status, 404);
    let first_page = browser.send("GET", "/", &[HTML, ("cookie", &cookie)], b"");
    assert_eq!(first_page.status, 200);
    let mut lines = by_request(server, &log);
    let mut says = |answer: &Answer, expected: Value| assert_says(&mut lines, answer, expected);
    let login = |who: &Value| {
        let mut line = json!({"method": "POST", "route": "/login"});
        let fields = line.as_object_mut().unwrap();
        fields.extend(who.as_object().unwrap().clone());
        line
    };
    says(&wrong, login(&json!({"who": "anyone"})));
    says(&refused, login(&json!({"who": "token", "token": writer})));
    says(&begun, login(&json!({"who": "token", "token": operator})));
    let of_timer = |mut line: Value| {
        line["queue"] = "q".into();
        line["key"] = "order-7".into();
        line
    };
    says(&led, of_timer(json!({"method": "GET", "route": "/timer"})));
    let by_session = |route: &str| json!({"who": "token", "token": operator, "session": true, "method": "GET", "route": route});
    says(&page, of_timer(by_session("/timer")));
    says(&first_page, by_session("/"));
    let text = std::fs::read_to_string(&log).unwrap();
    let (_, session) = cookie.split_once('=').unwrap();
    for secret in ["MARKER", "cwt_", session] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[test]
fn without_the_flag_no_request_has_a_line_and_with_it_each_level_has_them() {
    for (flags, has_lines) in [
        (&["--log-level", "trace"][..], false),
        (&["--log-level", "error", "--access-log"], true),
        (&["--log-level", "trace", "--access-log"], true),
    ] {
        for format in ["text", "json"] {
            let directory = Directory::new();
            let arguments = [flags, &["--log-format", format]].concat();
            let (server, log) = start(&directory, &arguments);
            server.client().json("PUT", TIMER, SET).expect(201);
            server.client().get(TIMER).expect(200);
            assert!(server.stop().success());
            let text = std::fs::read_to_string(&log).unwrap();
            let of_accesses = text.matches("countwheel::access").count();
            assert_eq!(of_accesses, if has_lines { 2 } else { 0 }, "{text}");
            assert!(!text.contains("MARKER"), "{text}");
            let others = text.lines().count() - of_accesses;
            assert_eq!(others == 0, flags.contains(&"error"), "{flags:?} {text}");
        }
    }
}

#[test]
fn the_address_is_that_of_the_caller_behind_a_trusted_proxy_and_no_other_ones_word() {
    for (flags, address) in [
        (&["--trusted-proxy", "127.0.0.1/32"][..], "192.0.2.7"),
        (&[], "127.0.0.1"),
    ] {
        let directory = Directory::new();
        let (server, log) = start(&directory, &[&JSON[..], flags].concat());
        let forwarded = [("x-forwarded-for", "198.51.100.9, 192.0.2.7")];
        let answer = server.client().send("GET", "/v1/queues", &forwarded, b"");
        answer.expect(200);
        assert!(server.stop().success());
        let [line] = &lines(&log)[..] else {
            panic!("one request has one line")
        };
        assert_eq!(line["address"], address);
        assert_eq!(
            (&line["who"], &line["operation"]),
            (&json!("anyone"), &json!("listQueues"))
        );
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(!text.contains("198.51.100.9"), "{text}");
    }
}

/// A stream of events, of which the first lines have come.
fn open_stream(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "GET /v1/events?queue=orders HTTP/1.1\r\nhost: localhost\r\nlast-event-id: \r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut come = Vec::new();
    while !come.windows(7).any(|window| window == b"retry: ") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        come.extend(byte);
    }
    assert!(come.starts_with(b"HTTP/1.1 200"), "{come:?}");
    stream
}

#[test]
fn a_stream_has_a_line_when_it_begins_and_one_when_it_ends() {
    let directory = Directory::new();
    let (server, log) = start(&directory, &JSON);
    let stream = open_stream(&server);
    let of_stream = || {
        let lines = lines(&log).into_iter();
        lines.filter(|line| line["operation"] == "streamEvents")
    };
    // It is there while the stream goes on.
    let begun: Vec<_> = of_stream().collect();
    let [begun] = &begun[..] else {
        panic!("{begun:?}")
    };
    assert_eq!(begun["message"], "a request was answered");
    assert_eq!(
        (&begun["route"], &begun["status"]),
        (&json!("/v1/events"), &json!(200))
    );
    assert_eq!(begun.get("bytes"), None);
    drop(stream);
    // The service learns of the end when it tells an event.
    let mut client = server.client();
    let mut patience = 0..2_000;
    let ended = loop {
        if let Some(ended) = of_stream().nth(1) {
            break ended;
        }
        assert!(patience.next().is_some(), "the stream never ends");
        client.json("PUT", TIMER, SET);
        pause();
    };
    assert_eq!(ended["message"], "an answer has ended");
    assert!(ended["bytes"].as_u64().unwrap() > 10, "{ended}");
    assert!(ended["took_us"].as_u64() >= begun["took_us"].as_u64());
    for same in [
        "request",
        "operation",
        "method",
        "route",
        "status",
        "who",
        "address",
    ] {
        assert_eq!(ended[same], begun[same], "{same}");
        assert!(!ended[same].is_null(), "{same}");
    }
    assert!(server.stop().success());
    assert_eq!(of_stream().count(), 2);
}

#[test]
fn a_head_that_is_no_http_and_a_preflight_have_lines() {
    let directory = Directory::new();
    let origin = "https://shop.example";
    let flags = [&JSON[..], &["--cors-origin", origin]].concat();
    let (server, log) = start(&directory, &flags);
    let stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = BufReader::new(stream);
    let head = b"GET /v1/queues/MARKER HTTP/1.1\r\nhost: localhost\r\nMARKER \x01: MARKER\r\n\r\n";
    stream.get_mut().write_all(head).unwrap();
    let broken = read_answer(&mut stream, false).unwrap();
    assert_eq!(broken.status, 400);
    let wants = [("origin", origin), ("access-control-request-method", "PUT")];
    let asked = [
        b"OPTIONS /v1/queues/orders HTTP/1.1\r\nhost: localhost\r\n".to_vec(),
        wants
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .concat()
            .into(),
        b"\r\n".to_vec(),
    ];
    let preflight = Client::to(&server.address)
        .exchange(&asked.concat(), false)
        .unwrap();
    assert_eq!(preflight.status, 204);
    let mut all = by_request(server, &log);
    assert_says(&mut all, &broken, json!({}));
    let expected = json!({"method": "OPTIONS", "route": "/v1/queues/{queue}", "queue": "orders"});
    assert_says(&mut all, &preflight, expected);
    assert_eq!(all.len(), 0);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("MARKER") && !text.contains(origin), "{text}");
}

/// Each character of the name is written as six or more.
#[test]
fn a_line_is_bounded_and_a_name_ends_none() {
    for format in ["text", "json"] {
        let directory = Directory::new();
        let (server, log) = start(&directory, &["--access-log", "--log-format", format]);
        let mut client = server.client();
        let namespace = "n".repeat(64);
        let put = client.json("PUT", &format!("/v1/namespaces/{namespace}"), "{}");
        assert_eq!(put.status, 201);
        let queue = format!("{namespace}%2F{}", "q".repeat(128));
        let invisible = "%C2%AD".repeat(128);
        let path = format!("/v1/queues/{queue}/timers/{invisible}");
        client.json("PUT", &path, SET).expect(201);
        client.get(&path).expect(200);
        let forged =
            "%E2%80%A82026-01-01T00:00:00.000000Z%20%20INFO%20status=200%22%20status=200%E2%80%AE";
        let forger = client.get(&format!("/v1/queues/orders/timers/{forged}"));
        assert_eq!(forger.status, 404);
        let long = client.get(&format!("/v1/queues/{}", "q".repeat(4_000)));
        assert_eq!(long.status, 400);
        let control = client.get("/v1/queues/orders/timers/a%0A2026");
        assert_eq!(control.status, 400);
        assert!(server.stop().success());
        let text = std::fs::read_to_string(&log).unwrap();
        let of_accesses = text
            .lines()
            .filter(|line| line.contains("countwheel::access"));
        let mut lengths = Vec::new();
        for line in of_accesses {
            assert!(logs::is_own(format, line), "{line:?}");
            assert!(line.len() <= LINE_MAX_BYTES, "{} {line}", line.len());
            lengths.push(line.len());
        }
        assert_eq!(lengths.len(), 6, "{text}");
        // The longest names are there as a whole, and what is no name is not.
        assert!(lengths[1] > 6 * 128, "{lengths:?}");
        assert!(lengths[4] < 512 && lengths[5] < 512, "{lengths:?}");
        // A quote in a name ends no field.
        assert!(text.contains("status=200\\\" status=200\\u"), "{text}");
    }
}
