//! What receivers see, and what their answers mean.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use countwheel_server::time::{format_time, parse_time};
use countwheel_time::{Clock, SystemClock};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection};
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::support::{Client, Delivery, Directory, Server, Target, reply, wait_for_state};

const PATH: &str = "/v1/queues/default/timers/k";

fn start() -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let client = server.client();
    (directory, server, client)
}

fn set(client: &mut Client, body: &Value) -> Value {
    let answer = client.json("PUT", PATH, &body.to_string());
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    answer.json()
}

#[test]
fn a_delivery_carries_what_was_set_and_who_it_is() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("204 No Content");
    let path = "/v1/queues/shop.eu/timers/order%2F4%C3%BC";
    let body = format!(
        r#"{{"in": 0, "target": {{"url": "{}?a=b%20c", "headers": {{"X-Shop": "7", "User-Agent": "shop"}}}},
            "body": {{"order":  42, "sum": 1.00}}}}"#,
        target.url
    );
    let made = client.json("PUT", path, &body).expect(201);
    let delivery = target.next();
    assert_eq!(delivery.request_line, "POST /hook?a=b%20c HTTP/1.1");
    assert_eq!(delivery.body, br#"{"order":  42, "sum": 1.00}"#);
    for (name, value) in [
        ("x-shop", "7"),
        ("user-agent", "shop"),
        ("content-type", "application/json"),
        ("webhook-id", made["id"].as_str().unwrap()),
        ("timer-queue", "shop.eu"),
        ("timer-key", "order%2F4%C3%BC"),
        ("timer-attempt", "1"),
        ("timer-due", made["due"].as_str().unwrap()),
        ("host", target.url.split('/').nth(2).unwrap()),
    ] {
        assert_eq!(delivery.header(name), value, "{name}");
    }
    for name in [
        "webhook-timestamp",
        "timer-late-us",
        "timer-held-us",
        "timer-fence",
    ] {
        assert!(delivery.header(name).parse::<u64>().is_ok(), "{name}");
    }
    assert!(!delivery.has("accept-encoding"));
    let done = wait_for_state(&mut client, path, "done");
    assert_eq!(done["attempts"][0]["detail"], "204");

    // Without a body there is no content type; with one of its own, the text as it stands.
    set(
        &mut client,
        &json!({"in": 0, "target": {"url": target.url}}),
    );
    let delivery = target.next();
    assert!(delivery.body.is_empty() && !delivery.has("content-type"));
    // Some receivers answer 411 to a POST that does not say how long it is.
    assert_eq!(delivery.header("content-length"), "0");
    let version = concat!("countwheel/", env!("CARGO_PKG_VERSION"));
    assert_eq!(delivery.header("user-agent"), version);
    set(
        &mut client,
        &json!({"in": 0, "target": {"url": target.url},
        "body": "a=1&b=ü", "content_type": "application/x-www-form-urlencoded"}),
    );
    let delivery = target.next();
    assert_eq!(delivery.body, "a=1&b=ü".as_bytes());
    assert_eq!(
        delivery.header("content-type"),
        "application/x-www-form-urlencoded"
    );
}

#[test]
fn each_method_is_sent_and_only_some_with_a_body() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("200 OK");
    for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let has_body = !["GET", "HEAD", "OPTIONS"].contains(&method);
        let mut timer = json!({"in": 0, "target": {"url": target.url, "method": method}});
        set(&mut client, &timer);
        let delivery = target.next();
        assert_eq!(delivery.request_line, format!("{method} /hook HTTP/1.1"));
        assert!(delivery.body.is_empty());
        assert_eq!(delivery.has("content-length"), has_body, "{method}");
        let done = wait_for_state(&mut client, PATH, "done");
        let shown = done["target"]["method"].as_str().unwrap_or("POST");
        assert_eq!(shown, method);

        timer["body"] = json!({"n": 1});
        let answer = client.json("PUT", PATH, &timer.to_string());
        if has_body {
            answer.expect(200);
            assert_eq!(target.next().body, br#"{"n":1}"#);
        } else {
            let problem = answer.expect(400);
            assert_eq!(problem["errors"][0]["pointer"], "/body", "{problem}");
        }
    }
    for method in ["get", "CONNECT", "TRACE", "", "POST "] {
        let timer = json!({"in": 0, "target": {"url": target.url, "method": method}});
        let problem = client.json("PUT", PATH, &timer.to_string()).expect(422);
        assert_eq!(problem["code"], "invalid_target");
        assert_eq!(
            problem["errors"][0]["pointer"], "/target/method",
            "{problem}"
        );
    }
}

#[test]
fn bytes_are_delivered_and_shown_as_they_are() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("200 OK");
    let bytes: Vec<u8> = (0..=255).collect();
    let encoded = BASE64_STANDARD.encode(&bytes);
    let far = json!({"in": "1h", "target": {"url": target.url}, "body_base64": encoded});
    set(&mut client, &far);
    let listed = client
        .get("/v1/queues/default/timers?bodies=text")
        .expect(200);
    let shown = &listed["items"][0];
    assert_eq!(
        (&shown["body_base64"], &shown["body"]),
        (&json!(encoded), &Value::Null)
    );
    assert_eq!(shown["body_bytes"], 256);
    client.json("POST", &format!("{PATH}:fire"), "").expect(202);
    let delivery = target.next();
    assert_eq!(delivery.body, bytes);
    assert_eq!(delivery.header("content-type"), "application/octet-stream");

    let text = json!({"in": 0, "target": {"url": target.url}, "content_type": "text/plain",
        "body_base64": BASE64_STANDARD.encode("ü")});
    set(&mut client, &text);
    let delivery = target.next();
    assert_eq!(
        (&*delivery.body, delivery.header("content-type")),
        ("ü".as_bytes(), "text/plain")
    );
    for (field, value) in [
        ("body_base64", json!("a")),
        ("body_base64", json!("YQ")),
        ("body_base64", json!("_-8=")),
        ("body_base64", json!(7)),
        ("body", json!("")),
    ] {
        let mut bad = json!({"in": 0, "target": {"url": target.url}, "body_base64": "YQ=="});
        bad[field] = value;
        let problem = client.json("PUT", PATH, &bad.to_string()).expect(400);
        assert_eq!(problem["errors"][0]["pointer"], "/body_base64", "{problem}");
    }
}

/// What is allowed is open, and what leads elsewhere by another port is not.
#[test]
fn a_target_that_is_not_public_is_allowed_by_address_host_and_port() {
    let target = Target::answering("200 OK");
    let other = Target::answering("200 OK");
    let port = |target: &Target| target.url.split(['/', ':']).nth(4).unwrap().to_owned();
    for allowed in [
        "127.0.0.0/8",
        "127.0.0.1",
        &format!("127.0.0.1:{}", port(&target)),
    ] {
        let directory = Directory::new();
        let server = Server::with(&directory.0.join("data"), &["--allow-target", allowed]);
        let mut client = server.client();
        set(
            &mut client,
            &json!({"in": 0, "target": {"url": target.url}}),
        );
        target.next();
        wait_for_state(&mut client, PATH, "done");
        let timer = json!({"in": 0, "target": {"url": other.url}});
        let is_open = !allowed.contains(':');
        let answer = client.json("PUT", PATH, &timer.to_string());
        answer.expect(if is_open { 200 } else { 422 });
        if is_open {
            other.next();
        }
    }
    // A name is judged once it is resolved.
    let directory = Directory::new();
    let allowed = format!("localhost:{}", port(&target));
    let server = Server::with(&directory.0.join("data"), &["--allow-target", &allowed]);
    let mut client = server.client();
    for target in [&target, &other] {
        let url = format!("http://localhost:{}/hook", port(target));
        set(
            &mut client,
            &json!({"in": 0, "target": {"url": url}, "retry": {"fixed": 1, "max_attempts": 1}}),
        );
        if target.url == other.url {
            assert_eq!(wait_until_held(&mut client)["attempt"], 0);
        } else {
            wait_for_state(&mut client, PATH, "done");
        }
    }
    assert!(other.quiet_for(Duration::from_millis(50)));
}

#[test]
fn each_run_of_a_recurring_timer_has_an_id_a_number_and_a_nominal_time_of_its_own() {
    let (_directory, _server, mut client) = start();
    let target = Target::start(|number| {
        reply(
            ["200 OK", "503 Busy", "200 OK", "410 Gone"][number.min(3)],
            "",
        )
    });
    let body = json!({"every": "200ms", "retry": {"fixed": 1}, "target": {"url": target.url}});
    let made = set(&mut client, &body);
    let id = made["id"].as_str().unwrap();
    let mut nominal = String::new();
    for (run, attempt) in [("1", "1"), ("2", "2"), ("2", "3"), ("3", "4")] {
        let delivery = target.next();
        assert_eq!(delivery.header("webhook-id"), format!("{id}-r{run}"));
        assert_eq!(delivery.header("timer-run"), run);
        assert_eq!(delivery.header("timer-attempt"), attempt);
        let before = std::mem::replace(&mut nominal, delivery.header("timer-nominal").to_owned());
        let retry = attempt == "3";
        assert_eq!(before == nominal, retry, "{before} {nominal}");
        assert!(before <= nominal);
        if !retry {
            assert_eq!(delivery.header("timer-due"), nominal);
        }
    }
    let dead = wait_for_state(&mut client, PATH, "dead");
    assert_eq!(dead["dead_reason"], "stopped");
    assert_eq!(dead["recurring"]["run"], 3);
    assert!(target.quiet_for(Duration::from_millis(500)));
}

#[test]
fn a_failed_attempt_is_followed_by_the_next_until_the_schedule_ends() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("500 Oops");
    set(
        &mut client,
        &json!({"in": 0, "target": {"url": target.url},
        "retry": {"schedule": [20, 20]}}),
    );
    let ids: Vec<String> = (1..=3)
        .map(|attempt| {
            let delivery = target.next();
            assert_eq!(delivery.header("timer-attempt"), attempt.to_string());
            delivery.header("webhook-id").to_owned()
        })
        .collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let dead = wait_for_state(&mut client, PATH, "dead");
    assert_eq!(dead["dead_reason"], "exhausted");
    assert_eq!(dead["failures"], 3);
    assert!(target.quiet_for(Duration::from_millis(200)));
}

#[test]
fn a_redirect_is_an_answer_like_any_other() {
    let (_directory, _server, mut client) = start();
    let elsewhere = Target::answering("200 OK");
    let location = format!("location: {}\r\n", elsewhere.url);
    let target = Target::start(move |_| reply("302 Found", &location));
    set(
        &mut client,
        &json!({"in": 0, "target": {"url": target.url},
        "retry": {"fixed": 1, "max_attempts": 1}}),
    );
    let dead = wait_for_state(&mut client, PATH, "dead");
    assert_eq!(dead["attempts"][0]["detail"], "302");
    assert!(elsewhere.quiet_for(Duration::from_millis(100)));
}

#[test]
fn a_receiver_can_put_off_the_next_attempt() {
    let (_directory, _server, mut client) = start();
    for status in ["503 Busy", "429 Slow"] {
        let target = Target::start(move |_| reply(status, "retry-after: 7200\r\n"));
        set(
            &mut client,
            &json!({"in": 0, "target": {"url": target.url}, "retry": {"fixed": 1}}),
        );
        target.next();
        let timer = wait_for_failure(&mut client);
        let ended = timer["attempts"][0]["ended"].as_str().unwrap();
        let gap = seconds(timer["due"].as_str().unwrap()) - seconds(ended);
        assert!((7_199..=7_201).contains(&gap), "{gap}");
    }
    // With another status it means nothing.
    let target = Target::start(|_| reply("500 Oops", "retry-after: 7200\r\n"));
    set(
        &mut client,
        &json!({"in": 0, "target": {"url": target.url}, "retry": {"fixed": 1}}),
    );
    target.next();
    target.next();
}

/// The sum of a histogram, in microseconds, and how many it counts.
fn histogram(client: &mut Client, name: &str) -> (u64, u64) {
    let answer = client.get("/metrics");
    let text = String::from_utf8(answer.body).unwrap();
    let value = |suffix: &str| {
        let begins = format!("countwheel_{name}_seconds_{suffix} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&begins));
        line.unwrap().parse::<f64>().unwrap()
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "they are small"
    )]
    let whole = |value: f64| value.round() as u64;
    (whole(value("sum") * 1e6), whole(value("count")))
}

fn micros(delivery: &Delivery, name: &str) -> u64 {
    delivery.header(name).parse().unwrap()
}

/// What came between the scheduler and the open connection was in no figure.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "another process connects meanwhile"
)]
fn lateness_ends_at_the_open_connection_and_is_one_value_wherever_it_is_told() {
    let (_directory, _server, mut client) = start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        socket.listen(0).unwrap().into_std().unwrap()
    });
    listener.set_nonblocking(false).unwrap();
    // With that, the system takes no other connection until it is accepted.
    let address = listener.local_addr().unwrap();
    let first = TcpStream::connect(address).unwrap();
    let url = format!("http://{address}/");
    set(&mut client, &json!({"in": 0, "target": {"url": url}}));
    let running = wait_for_state(&mut client, PATH, "delivering");
    assert_eq!(running["attempts"][0].get("late_us"), None);
    std::thread::sleep(Duration::from_millis(300));
    drop((first, listener.accept().unwrap()));
    let target = Target::on(listener, |_| reply("200 OK", ""));
    let delivery = target.next();
    let late_us = micros(&delivery, "timer-late-us");
    assert!(late_us >= 300_000, "{late_us}");
    let done = wait_for_state(&mut client, PATH, "done");
    assert_eq!(done["attempts"][0]["late_us"], late_us);
    assert_eq!(histogram(&mut client, "lateness"), (late_us, 1));
    let (connecting, count) = histogram(&mut client, "connect");
    assert!(
        (300_000..=late_us).contains(&connecting) && count == 1,
        "{connecting}"
    );
    assert_eq!(histogram(&mut client, "tls"), (0, 0));
    assert_eq!(histogram(&mut client, "held"), (0, 0));
}

/// It counted as late, although the operator had said how many attempts may run.
#[test]
#[expect(clippy::disallowed_methods, reason = "a target that takes its time")]
fn what_waits_for_a_place_is_held_and_not_late() {
    let directory = Directory::new();
    let arguments = ["--allow-private-targets", "--max-in-flight", "1"];
    let server = Server::with(&directory.0.join("data"), &arguments);
    let mut client = server.client();
    let target = Target::start(|_| {
        std::thread::sleep(Duration::from_millis(400));
        reply("200 OK", "")
    });
    for key in 0..3 {
        let path = format!("/v1/queues/default/timers/{key}");
        let body = json!({"in": "300ms", "target": {"url": target.url}});
        client.json("PUT", &path, &body.to_string()).expect(201);
    }
    let (mut late, mut held) = (0, 0);
    for number in 0..3 {
        let delivery = target.next();
        let (late_us, held_us) = (
            micros(&delivery, "timer-late-us"),
            micros(&delivery, "timer-held-us"),
        );
        assert!(late_us < 200_000, "{number}: {late_us}");
        assert!(held_us >= number * 300_000, "{number}: {held_us}");
        let path = format!("/v1/queues/default/timers/{}", delivery.header("timer-key"));
        let done = wait_for_state(&mut client, &path, "done");
        assert_eq!(done["attempts"][0]["late_us"], late_us, "{number}");
        assert_eq!(done["attempts"][0]["held_us"], held_us, "{number}");
        (late, held) = (late + late_us, held + held_us);
    }
    assert_eq!(histogram(&mut client, "lateness"), (late, 3));
    assert_eq!(histogram(&mut client, "held"), (held, 2));
}

fn wait_for_failure(client: &mut Client) -> Value {
    for _ in 0..1_000 {
        let timer = wait_for_state(client, PATH, "pending");
        if timer["failures"] == 1 {
            return timer;
        }
        crate::support::pause();
    }
    panic!("no failure");
}

/// Seconds of a time, good for differences.
fn seconds(time: &str) -> i64 {
    let time = parse_time(time).unwrap();
    i64::try_from(time.as_micros() / 1_000_000).unwrap()
}

#[test]
fn an_attempt_without_an_answer_fails_and_says_why() {
    let (_directory, _server, mut client) = start();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed_address = closed.local_addr().unwrap();
    drop(closed);
    let hanging_up = Target::start(|_| String::new());
    let babbling = Target::start(|_| "what?\r\n\r\n".to_owned());
    let silent_url = format!("http://{}/", silent.local_addr().unwrap());
    let tls_url = hanging_up.url.replace("http:", "https:");
    for (url, detail) in [
        (silent_url.as_str(), "timed out after 300ms"),
        (&format!("http://{closed_address}/"), "connection refused"),
        (&hanging_up.url, "connection closed before the answer"),
        (&babbling.url, "the answer is not HTTP"),
        ("http://name.invalid/", "name not resolved"),
        (&tls_url, ""),
    ] {
        set(
            &mut client,
            &json!({"in": 0, "target": {"url": url, "timeout": 300},
            "retry": {"fixed": 1, "max_attempts": 1}}),
        );
        let dead = wait_for_state(&mut client, PATH, "dead");
        let found = dead["attempts"][0]["detail"].as_str().unwrap();
        assert!(found == detail || detail.is_empty(), "{url}: {found}");
        assert_eq!(dead["attempts"][0]["result"], "failed");
    }
}

/// Heads of 300 to 420 kB were taken, and from 500 kB on, or with more than 100 headers, they were no HTTP.
#[test]
fn the_head_of_an_answer_has_so_many_bytes_and_headers_and_no_more() {
    const MOST: usize = 256 << 10;
    let (_directory, _server, mut client) = start();
    let head = |length: usize, headers: usize| {
        let mut head = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n".to_owned();
        for number in 1..headers {
            head += &format!("x-{number}: 1\r\n");
        }
        let rest = length.saturating_sub(head.len() + "\r\n".len());
        head.insert_str("HTTP/1.1 200 ".len(), &"x".repeat(rest));
        head + "\r\n"
    };
    for (length, headers, detail) in [
        (MOST, 1, "200"),
        (MOST + 1, 1, "the answer is too long"),
        (300_000, 1, "the answer is too long"),
        (600_000, 1, "the answer is too long"),
        (0, 256, "200"),
        (0, 257, "the answer has too many headers"),
        (0, 5_000, "the answer has too many headers"),
        (MOST, 257, "the answer has too many headers"),
    ] {
        let answer = head(length, headers);
        assert!(length == 0 || answer.len() == length);
        let target = Target::start(move |_| answer.clone());
        set(
            &mut client,
            &json!({"in": 0, "target": {"url": target.url},
            "retry": {"fixed": 1, "max_attempts": 1}}),
        );
        let state = if detail == "200" { "done" } else { "dead" };
        let timer = wait_for_state(&mut client, PATH, state);
        let found = timer["attempts"][0]["detail"].as_str().unwrap();
        assert_eq!(found, detail, "{length} bytes, {headers} headers");
    }
}

/// A target with one of two certificates of its own making, both for `localhost`: `openssl ca
/// -selfsign` made them, one until the year 2999 and one until 2021. Nothing else trusts the key.
fn tls_target(certificate: &'static [u8]) -> String {
    let key = PrivatePkcs8KeyDer::from(include_bytes!("tls/key.der").as_slice());
    let chain = vec![CertificateDer::from(certificate)];
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key.into())
        .unwrap();
    let config = Arc::new(config);
    serve_connections(move |mut stream| {
        let mut connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        // The other side ends it.
        connection
            .complete_io(&mut stream)
            .map(drop)
            .unwrap_or_default();
    })
}

/// Where `serve` is given each connection.
fn serve_connections(serve: impl Fn(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(serve));
    format!("https://localhost:{port}/hook")
}

/// Each was "no connection: other error": what TLS says is an error within one of the system.
#[test]
fn a_delivery_that_fails_in_tls_says_why() {
    let (_directory, _server, mut client) = start();
    let plain = serve_connections(|mut stream| {
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap_or_default();
    });
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let refusing = format!("https://{}/", closed.local_addr().unwrap());
    drop(closed);
    for (url, detail) in [
        (
            tls_target(include_bytes!("tls/unknown.der")),
            "tls: the issuer of the certificate is unknown",
        ),
        (
            tls_target(include_bytes!("tls/expired.der")),
            "tls: the certificate has expired",
        ),
        (plain, "tls: the answer is not TLS"),
        (
            serve_connections(drop),
            "connection closed before the answer",
        ),
        (refusing, "connection refused"),
        ("https://name.invalid/".to_owned(), "name not resolved"),
    ] {
        set(
            &mut client,
            &json!({"in": 0, "target": {"url": url}, "retry": {"fixed": 1, "max_attempts": 1}}),
        );
        let dead = wait_for_state(&mut client, PATH, "dead");
        let found = dead["attempts"][0]["detail"].as_str().unwrap();
        // Who hangs up with something unread resets the connection.
        let found = found.replace("connection reset", "connection closed before the answer");
        assert_eq!(found, detail, "{url}");
    }
}

/// The same target as in the test before, whose certificate the operator trusts.
#[test]
fn an_authority_of_the_operator_is_trusted() {
    let certificate = include_bytes!("tls/unknown.der");
    let directory = Directory::new();
    let file = directory.0.join("ca.pem");
    let (begin, end) = ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----");
    let pem = format!("{begin}\n{}\n{end}\n", BASE64_STANDARD.encode(certificate));
    std::fs::write(&file, pem).unwrap();
    let file = format!("--ca-file={}", file.display());
    let arguments = ["--allow-private-targets", &file];
    let server = Server::with(&directory.0.join("data"), &arguments);
    let mut client = server.client();
    let url = tls_target(certificate);
    set(
        &mut client,
        &json!({"in": 0, "target": {"url": url}, "retry": {"fixed": 1, "max_attempts": 1}}),
    );
    let dead = wait_for_state(&mut client, PATH, "dead");
    let detail = dead["attempts"][0]["detail"].as_str().unwrap();
    // The target knows TLS, and hangs up behind it, with the request unread or before it.
    let found = detail.replace("connection reset", "connection closed before the answer");
    assert_eq!(found, "connection closed before the answer");
}

/// One connection carries one attempt after the other; one that the target has closed meanwhile costs
/// none.
#[test]
fn a_connection_is_used_again_until_the_target_closes_it() {
    let (_directory, _server, mut client) = start();
    let (connected, connections) = channel();
    let serve = |mut stream: BufReader<TcpStream>| {
        for _ in 0..3 {
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                if stream.read_line(&mut line).unwrap_or_default() == 0 {
                    return;
                }
            }
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            stream.get_mut().write_all(answer).unwrap_or_default();
        }
    };
    let url = serve_connections(move |stream| {
        connected.send(()).unwrap_or_default();
        std::thread::spawn(move || serve(BufReader::new(stream)));
    });
    let url = url.replace("https", "http");
    for number in 1..=7 {
        set(&mut client, &json!({"in": 0, "target": {"url": url}}));
        let done = wait_for_state(&mut client, PATH, "done");
        assert_eq!(done["attempt"], 1, "{number}");
        // Until it is kept, or known to be closed.
        (0..5).for_each(|_| crate::support::pause());
    }
    let connections = connections.try_iter().count();
    assert!((3..=4).contains(&connections), "{connections}");
}

/// Interim answers without end were read for as long as the attempt may take, hundreds of megabytes.
#[test]
fn interim_answers_without_end_end_the_attempt() {
    let (_directory, _server, mut client) = start();
    let (sent, total) = channel();
    let url = serve_connections(move |mut stream| {
        let sent = sent.clone();
        std::thread::spawn(move || {
            // Before the request is there, bytes would be the end of the connection.
            assert!(stream.read(&mut [0; 4_096]).unwrap() > 0);
            let mut bytes = 0_usize;
            let early = b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100);
            while stream.write_all(&early).is_ok() {
                bytes += early.len();
            }
            sent.send(bytes).unwrap_or_default();
        });
    });
    let url = url.replace("https", "http");
    set(
        &mut client,
        &json!({"in": 0, "target": {"url": url}, "retry": {"fixed": 1, "max_attempts": 1}}),
    );
    let dead = wait_for_state(&mut client, PATH, "dead");
    assert_eq!(dead["attempts"][0]["detail"], "the answer is too long");
    // With what the buffers of the system take.
    assert!(total.recv().unwrap() < 16 << 20);
}

/// It was taken, and could not be delivered.
#[test]
fn a_url_may_have_a_query_and_no_path() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("200 OK");
    for (end, line) in [
        ("", "POST / HTTP/1.1"),
        ("?a=b", "POST /?a=b HTTP/1.1"),
        ("/?", "POST /? HTTP/1.1"),
        ("?", "POST /? HTTP/1.1"),
    ] {
        let url = target.url.replace("/hook", end);
        set(&mut client, &json!({"in": 0, "target": {"url": url}}));
        assert_eq!(target.next().request_line, line);
        wait_for_state(&mut client, PATH, "done");
    }
}

#[test]
fn an_answer_without_end_is_not_read_without_end() {
    let (_directory, _server, mut client) = start();
    let target = Target::start(|_| {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n{}",
            "x".repeat(1 << 17)
        )
    });
    set(
        &mut client,
        &json!({"in": 0, "target": {"url": target.url}}),
    );
    let done = wait_for_state(&mut client, PATH, "done");
    assert_eq!(done["attempts"][0]["detail"], "200");
}

#[test]
fn a_target_that_is_not_public_is_not_contacted_unless_allowed() {
    let directory = Directory::new();
    let server = Server::with(&directory.0.join("data"), &[]);
    let mut client = server.client();
    let target = Target::answering("200 OK");
    let port = target
        .url
        .split(':')
        .nth(2)
        .unwrap()
        .split('/')
        .next()
        .unwrap();
    for host in [
        "127.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "0.0.0.0",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0x7f000001",
        "0177.0.0.1",
        "127.0.0.1.",
        "10.0.0.1",
        "169.254.169.254",
        "[fd00::1]",
        "[fe80::1]",
    ] {
        let body = json!({"in": 0, "target": {"url": format!("http://{host}:{port}/hook")}});
        let refused = client.json("PUT", PATH, &body.to_string());
        assert_eq!(refused.problem(), (422, "invalid_target".into()), "{host}");
        assert_eq!(refused.json()["errors"][0]["pointer"], "/target/url");
    }
    // Where a name leads is seen at the attempt, and is not for callers to know.
    let url = format!("http://localhost:{port}/hook");
    let once = json!({"in": 0, "target": {"url": url},
        "retry": {"fixed": 1, "max_attempts": 1}});
    set(&mut client, &once);
    let held = wait_until_held(&mut client);
    let why = format!(
        "localhost:{port} is not called: the name leads to an address where deliveries do not go"
    );
    assert_eq!(held["held_by"], *why);
    // No attempt was made, and none of the schedule is used up.
    assert_eq!(
        (&held["state"], &held["attempt"], &held["attempts"]),
        (&json!("pending"), &json!(0), &json!([]))
    );
    assert!(target.quiet_for(Duration::from_millis(100)));
}

/// The timer, once it is held.
fn wait_until_held(client: &mut Client) -> Value {
    let held = (0..2_000).find_map(|_| {
        crate::support::pause();
        let timer = client.get(PATH).expect(200);
        timer["held_by"].is_string().then_some(timer)
    });
    held.expect("the timer is held")
}

/// A timer may have been set while the service had other options than now.
#[test]
fn a_target_that_is_allowed_no_longer_is_not_contacted() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let target = Target::answering("200 OK");
    let server = Server::start(&data);
    let far = json!({"in": "1h", "target": {"url": target.url},
        "retry": {"fixed": 1, "max_attempts": 1}});
    set(&mut server.client(), &far);
    server.stop();
    let server = Server::with(&data, &[]);
    let mut client = server.client();
    client
        .send("POST", &format!("{PATH}:fire"), &[], b"")
        .expect(202);
    assert!(target.quiet_for(Duration::from_millis(100)));
    let held = client.get(PATH).expect(200);
    let told = held["held_by"].as_str().unwrap().to_owned();
    assert!(told.contains("127.0.0.1"), "{told}");
    // No attempt was made, and none of the schedule is used up.
    assert_eq!(
        (&held["state"], &held["attempt"]),
        (&json!("pending"), &json!(0))
    );
    server.stop();
    let server = Server::start(&data);
    target.next();
    wait_for_state(&mut server.client(), PATH, "done");
}

/// Attempts at an endpoint that leads to a refused address failed, and used up the schedule.
#[test]
fn an_endpoint_that_is_allowed_no_longer_is_not_contacted() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let target = Target::answering("200 OK");
    let server = Server::start(&data);
    let mut client = server.client();
    let shop = json!({"url": target.url}).to_string();
    client.json("PUT", "/v1/endpoints/shop", &shop).expect(201);
    let far = json!({"in": "1h", "target": {"endpoint": "shop"},
        "retry": {"fixed": 1, "max_attempts": 1}});
    set(&mut client, &far);
    server.stop();
    let server = Server::with(&data, &[]);
    let mut client = server.client();
    client
        .send("POST", &format!("{PATH}:fire"), &[], b"")
        .expect(202);
    let held = wait_until_held(&mut client);
    let told = held["held_by"].as_str().unwrap();
    let why = "the endpoint shop is not called: deliveries do not go to 127.0.0.1";
    assert!(told.starts_with(why), "{told}");
    assert_eq!(held["attempt"], 0);
    let tested = client
        .send("POST", "/v1/endpoints/shop:test", &[], b"")
        .expect(200);
    assert_eq!(tested["attempt"]["detail"], "target unreachable");
    assert!(target.quiet_for(Duration::from_millis(100)));
    server.stop();
    let server = Server::start(&data);
    target.next();
    wait_for_state(&mut server.client(), PATH, "done");
}

#[test]
fn no_option_opens_the_metadata_of_a_cloud() {
    let (_directory, _server, mut client) = start();
    for host in [
        "169.254.169.254",
        "169.254.170.2",
        "168.63.129.16",
        "100.100.100.200",
        "0xa9fea9fe",
        "[fd00:ec2::254]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
    ] {
        let body = json!({"in": "1h", "target": {"url": format!("http://{host}/latest")}});
        let refused = client.json("PUT", PATH, &body.to_string());
        assert_eq!(refused.problem(), (422, "invalid_target".into()), "{host}");
    }
}

#[test]
fn a_port_of_something_else_than_http_is_refused_unless_it_is_allowed() {
    let directory = Directory::new();
    let options = [
        "--allow-private-targets",
        "--allow-port",
        "25",
        "--allow-port",
        "6379",
    ];
    let server = Server::with(&directory.0.join("data"), &options);
    let mut client = server.client();
    let mut status = |port: u16| {
        let url = format!("http://192.0.2.1:{port}/");
        let body = json!({"in": "1h", "target": {"url": url}}).to_string();
        let answer = client.json("PUT", PATH, &body);
        if answer.status == 422 {
            assert_eq!(answer.problem().1, "invalid_target");
        }
        answer.status
    };
    for port in [
        22, 110, 143, 465, 587, 993, 995, 2379, 3306, 5432, 9200, 11211, 27017,
    ] {
        assert_eq!(status(port), 422, "{port}");
    }
    for port in [25, 6379, 80, 443, 8080] {
        assert!(matches!(status(port), 200 | 201), "{port}");
    }
}

#[test]
fn the_status_decides_even_if_the_answer_breaks_off() {
    let (_directory, _server, mut client) = start();
    for (status, state) in [("200 OK", "done"), ("410 Gone", "dead")] {
        let cut =
            Target::start(move |_| format!("HTTP/1.1 {status}\r\ncontent-length: 9\r\n\r\nx"));
        set(&mut client, &json!({"in": 0, "target": {"url": cut.url}}));
        wait_for_state(&mut client, PATH, state);
    }
}

/// The test of "never early" for the service: what `docs/semantics-durable.md` names as such.
#[test]
fn no_delivery_leaves_before_its_deadline() {
    const TIMERS: u64 = 40;
    let (_directory, _server, mut client) = start();
    let clock = SystemClock::new();
    let (send, arrived) = channel();
    let target = Target::start(move |_| {
        send.send((clock.now(), clock.timestamp())).unwrap();
        // So it comes again, as a retry, which is a delay of its own.
        reply("500 Oops", "")
    });
    let retry = json!({"fixed": "150ms", "max_attempts": 2});
    let (mut delays, mut began) = (HashMap::new(), HashMap::new());
    for number in 0..TIMERS {
        let (key, wait) = (
            format!("k{number}"),
            Duration::from_millis(10 + 17 * number),
        );
        let mut body = json!({"target": {"url": target.url}, "retry": retry});
        if number % 2 == 0 {
            body["in"] = json!(10 + 17 * number);
            delays.insert(key.clone(), wait);
        } else {
            body["at"] = json!(format_time(clock.timestamp() + wait));
        }
        began.insert(key.clone(), clock.now());
        let path = format!("/v1/queues/default/timers/{key}");
        client.json("PUT", &path, &body.to_string()).expect(201);
    }
    let mut ended = HashMap::new();
    for _ in 0..2 * TIMERS {
        let delivery = target.next();
        let (now, wall) = arrived.recv().unwrap();
        let key = delivery.header("timer-key").to_owned();
        let waited = match (delivery.header("timer-attempt"), delays.get(&key)) {
            ("1", Some(&wait)) => began[&key] + wait,
            ("1", None) => {
                let due = parse_time(delivery.header("timer-due")).unwrap();
                assert!(wall >= due, "{key}: due {due:?}, there {wall:?}");
                now
            }
            _ => ended[&key] + Duration::from_millis(150),
        };
        assert!(now >= waited, "{key}: due {waited:?}, there {now:?}");
        ended.insert(key, now);
    }
    assert!(target.quiet_for(Duration::from_millis(300)));
}
