//! What the service keeps of the answers of targets, and how a timer is sent again.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Barrier};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::support::{Client, Directory, Server, Target, program, reply, wait_for_state};

const LIST: &str = "/v1/queues/default/timers";
const PATH: &str = "/v1/queues/default/timers/k";

fn start_with(arguments: &[&str]) -> (Directory, Server, Client) {
    let directory = Directory::new();
    let arguments = [&["--allow-private-targets"], arguments].concat();
    let server = Server::with(&directory.0.join("data"), &arguments);
    let client = server.client();
    (directory, server, client)
}

/// Reads a head, without a body behind it.
fn read_head(stream: &mut impl Read) -> bool {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return false,
        }
    }
    true
}

/// A target that answers each request of a connection with these bytes, and hangs up when its caller does.
fn target(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || {
                while read_head(&mut stream) {
                    stream.write_all(&answer).unwrap_or_default();
                }
            });
        }
    });
    url
}

fn with_length(status: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Sets the timer with one attempt, and gives the timer as it is after that.
fn attempt(client: &mut Client, url: &str, method: &str) -> Value {
    let set = json!({"in": 0, "target": {"url": url, "method": method, "timeout": 500},
                     "retry": {"fixed": 1, "max_attempts": 1}});
    let answer = client.json("PUT", PATH, &set.to_string());
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    for _ in 0..2_000 {
        let timer = client.get(PATH).expect(200);
        if timer["state"] == "done" || timer["state"] == "dead" {
            return timer;
        }
        crate::support::pause();
    }
    panic!("it never ends");
}

#[test]
fn the_answer_of_an_attempt_is_kept_whatever_it_is() {
    let (_directory, _server, mut client) = start_with(&[]);
    let text = "out of stock: é\nand more";
    let long = "é".repeat(50 << 10);
    let binary = [0x1f, 0x8b, 0x00, 0xff];
    let silent = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc".to_vec();
    let head = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 90\r\n\r\n".to_vec();
    for (answer, method, expected) in [
        (
            with_length("503 Busy", text.as_bytes()),
            "POST",
            json!({"status": 503, "body": text, "body_bytes": text.len(), "truncated": false}),
        ),
        (
            with_length("500 Oops", &binary),
            "POST",
            json!({"status": 500, "body_base64": BASE64_STANDARD.encode(binary), "body_bytes": 4,
                   "truncated": false}),
        ),
        (
            with_length("200 OK", b""),
            "POST",
            json!({"status": 200, "body_bytes": 0, "truncated": false}),
        ),
        (
            b"HTTP/1.1 204 No Content\r\nx-shop: 7\r\n\r\n".to_vec(),
            "POST",
            json!({"status": 204, "body_bytes": 0, "truncated": false}),
        ),
        // The length is that of a body which no answer to HEAD has.
        (
            head,
            "HEAD",
            json!({"status": 502, "body_bytes": 0, "truncated": false}),
        ),
        // It is read as far as any answer is, and its beginning is kept.
        (
            with_length("404 Not Found", long.as_bytes()),
            "POST",
            json!({"status": 404, "body": "é".repeat(512), "body_bytes": 65_536, "truncated": true}),
        ),
        // The beginning of a body that never comes to its end.
        (
            silent,
            "POST",
            json!({"status": 200, "body": "abc", "body_bytes": 3, "truncated": true}),
        ),
    ] {
        let timer = attempt(&mut client, &target(answer), method);
        let attempt = &timer["attempts"][0];
        let mut answer = attempt["answer"].clone();
        let times = answer.as_object_mut().unwrap().remove("times_us").unwrap();
        assert_eq!(answer, expected);
        assert_eq!(attempt["detail"], expected["status"].to_string());
        // An address is not looked up, and there is no TLS.
        let names: Vec<_> = times.as_object().unwrap().keys().collect();
        assert_eq!(names, ["connect", "first_byte"]);
        assert!(times["first_byte"].is_u64(), "{times}");
    }
    // Without an answer there is none.
    let timer = attempt(&mut client, "http://name.invalid/", "POST");
    assert_eq!(timer["attempts"][0]["detail"], "name not resolved");
    assert!(timer["attempts"][0].get("answer").is_none());
}

#[test]
fn the_phases_that_there_were_have_times() {
    let (_directory, _server, mut client) = start_with(&[]);
    let url = target(with_length("200 OK", b"")).replace("127.0.0.1", "localhost");
    let phases = |timer: &Value| -> Vec<String> {
        let times = &timer["attempts"][0]["answer"]["times_us"];
        times.as_object().unwrap().keys().cloned().collect()
    };
    let first = attempt(&mut client, &url, "POST");
    assert_eq!(phases(&first), ["connect", "first_byte", "resolve"]);
    // The connection goes back to the others in a moment.
    let reuses = (0..100).any(|_| {
        let timer = attempt(&mut client, &url, "POST");
        phases(&timer) == ["first_byte"]
    });
    assert!(reuses, "a connection is used again");
}

#[test]
fn the_handshake_of_tls_has_a_time() {
    let certificate = include_bytes!("tls/unknown.der");
    let directory = Directory::new();
    let file = directory.0.join("ca.pem");
    let (begin, end) = ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----");
    let pem = format!("{begin}\n{}\n{end}\n", BASE64_STANDARD.encode(certificate));
    std::fs::write(&file, pem).unwrap();
    let (_data, _server, mut client) = start_with(&[&format!("--ca-file={}", file.display())]);
    let key = PrivatePkcs8KeyDer::from(include_bytes!("tls/key.der").as_slice());
    let chain = vec![CertificateDer::from(certificate.as_slice())];
    let config = ServerConfig::builder().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(chain, key.into()).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = move |stream: TcpStream| {
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        let mut stream = StreamOwned::new(connection, stream);
        if read_head(&mut stream) {
            let answer = with_length("200 OK", b"secured");
            stream.write_all(&answer).unwrap_or_default();
            stream.flush().unwrap_or_default();
            read_head(&mut stream);
        }
    };
    std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(serve));
    let timer = attempt(
        &mut client,
        &format!("https://localhost:{port}/hook"),
        "POST",
    );
    let answer = &timer["attempts"][0]["answer"];
    assert_eq!(answer["body"], "secured", "{timer}");
    let times = answer["times_us"].as_object().unwrap();
    let names: Vec<_> = times.keys().collect();
    assert_eq!(names, ["connect", "first_byte", "resolve", "tls"]);
    assert!(times["tls"].as_u64() > Some(0));
}

#[test]
fn the_operator_decides_what_is_kept() {
    let url = target(with_length("503 Busy", b"a secret"));
    for (policy, status, body) in [
        (&[][..], json!(503), json!("a secret")),
        (&["--keep-answers", "on"], json!(503), json!("a secret")),
        (&["--keep-answers=redacted"], json!(503), Value::Null),
        (&["--keep-answers", "off"], Value::Null, Value::Null),
    ] {
        let (_directory, _server, mut client) = start_with(policy);
        let timer = attempt(&mut client, &url, "POST");
        let attempt = &timer["attempts"][0];
        assert_eq!(attempt["detail"], "503");
        let answer = &attempt["answer"];
        assert_eq!((&answer["status"], &answer["body"]), (&status, &body));
        if !status.is_null() {
            assert_eq!(answer["body_bytes"], 8);
            assert_eq!(answer["truncated"], false);
            assert!(answer["times_us"]["first_byte"].is_u64());
        }
    }
}

#[test]
fn the_last_four_attempts_have_their_answers_also_after_a_restart() {
    let (directory, server, mut client) = start_with(&[]);
    let target = Target::start(|number| {
        let body = format!("refusal {number}");
        let length = body.len();
        format!("HTTP/1.1 500 Oops\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
    });
    let set =
        json!({"in": 0, "target": {"url": target.url}, "retry": {"fixed": 1, "max_attempts": 6}});
    client.json("PUT", PATH, &set.to_string()).expect(201);
    let before = wait_for_state(&mut client, PATH, "dead");
    let attempts = before["attempts"].as_array().unwrap();
    let bodies: Vec<_> = attempts
        .iter()
        .map(|it| it["answer"]["body"].as_str())
        .collect();
    let last = ["refusal 2", "refusal 3", "refusal 4", "refusal 5"].map(Some);
    assert_eq!(bodies, [&[None, None][..], &last].concat());
    // A list has the same without bodies.
    let list = client.get(&format!("{LIST}?bodies=text")).expect(200);
    let listed = &list["items"][0]["attempts"][5]["answer"];
    assert_eq!(
        (&listed["status"], &listed["body_bytes"]),
        (&json!(500), &json!(9))
    );
    assert!(listed.get("body").is_none(), "{listed}");

    assert!(server.stop().success());
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    assert_eq!(client.get(PATH).expect(200), before);
    // Timers that a drain hands back have them too.
    let drain = client.json("POST", "/v1/queues/default:drain", r#"{"mode":"remove"}"#);
    let removed = drain.expect(200);
    assert_eq!(removed["removed"][0]["attempts"], before["attempts"]);
}

fn resend(client: &mut Client, body: &str, headers: &[(&str, &str)]) -> crate::support::Answer {
    let json = [("content-type", "application/json")];
    let headers = [&json[..usize::from(!body.is_empty())], headers].concat();
    client.send("POST", &format!("{PATH}:resend"), &headers, body.as_bytes())
}

#[test]
fn a_timer_is_sent_again_as_it_is_stored_or_elsewhere() {
    let (_directory, _server, mut client) = start_with(&[]);
    let gone = Target::answering("410 Gone");
    let fine = Target::answering("200 OK");
    let set = json!({"in": 0, "body": {"order": 42}, "missed": "collapse",
                     "target": {"url": gone.url, "method": "PUT", "headers": {"x-shop": "7"}, "timeout": "3s"},
                     "retry": {"fixed": "9s", "max_attempts": 7}});
    client.json("PUT", PATH, &set.to_string()).expect(201);
    let first = gone.next();
    let first_dead = wait_for_state(&mut client, PATH, "dead");

    // To its own target, with all that it had.
    let answer = resend(&mut client, "", &[]);
    let again = answer.expect(200);
    assert_eq!(again["replaced"], "dead");
    assert_ne!(again["id"], first_dead["id"]);
    assert_eq!(
        answer.header("etag"),
        Some(format!("\"{}\"", again["revision"]).as_str())
    );
    let second = gone.next();
    assert_eq!(second.request_line, "PUT /hook HTTP/1.1");
    assert_eq!((second.header("x-shop"), &second.body), ("7", &first.body));
    assert_eq!(second.header("content-type"), "application/json");
    assert_eq!(second.header("timer-attempt"), "1");
    assert_eq!(second.header("webhook-id"), again["id"].as_str().unwrap());
    let dead = wait_for_state(&mut client, PATH, "dead");
    for field in ["target", "retry", "missed", "body_bytes", "content_type"] {
        assert_eq!(dead[field], first_dead[field]);
    }
    assert_eq!(dead["retry"]["max_attempts"], 7);
    assert_eq!(dead["missed"], "collapse");
    assert_eq!(
        (&dead["attempt"], &dead["failures"]),
        (&json!(1), &json!(0))
    );

    // To another, whose own are method, headers and timeout.
    let edited = json!({"target": {"url": fine.url, "headers": {"x-new": "8"}}}).to_string();
    let revision = dead["revision"].as_u64().unwrap();
    let stale = format!("\"{}\"", revision - 1);
    let refused = resend(&mut client, &edited, &[("if-match", &stale)]);
    assert_eq!(refused.problem(), (412, "revision_mismatch".to_owned()));
    let current = format!("\"{revision}\"");
    resend(&mut client, &edited, &[("if-match", &current)]).expect(200);
    let third = fine.next();
    assert_eq!(third.request_line, "POST /hook HTTP/1.1");
    assert_eq!((third.header("x-new"), &third.body), ("8", &first.body));
    assert!(!third.has("x-shop"));
    let done = wait_for_state(&mut client, PATH, "done");
    assert_eq!(done["target"]["timeout"], "15s");

    // Also what is done.
    let again = resend(&mut client, "{}", &[("if-match", "*")]).expect(200);
    assert_eq!(again["replaced"], "done");
    assert_eq!(fine.next().body, first.body);
    wait_for_state(&mut client, PATH, "done");
}

#[test]
fn a_timer_that_has_failed_is_sent_again_and_one_that_has_not_is_refused() {
    let (_directory, _server, mut client) = start_with(&[]);
    let refused = |client: &mut Client, state: &str| {
        let answer = resend(client, "", &[]);
        assert_eq!(answer.problem(), (409, "conflict".to_owned()));
        assert_eq!(answer.json()["state"], state);
    };
    let busy = Target::start(|number| reply(if number == 0 { "503 Busy" } else { "200 OK" }, ""));
    let set = json!({"in": 0, "target": {"url": busy.url}, "retry": {"fixed": "1h"}});
    client.json("PUT", PATH, &set.to_string()).expect(201);
    busy.next();
    while wait_for_state(&mut client, PATH, "pending")["failures"] != 1 {
        crate::support::pause();
    }
    assert_eq!(
        resend(&mut client, "", &[]).expect(200)["replaced"],
        "pending"
    );
    busy.next();
    let done = wait_for_state(&mut client, PATH, "done");
    assert_eq!(done["attempts"].as_array().unwrap().len(), 1);

    let waits = json!({"in": "1h", "target": {"url": busy.url}});
    client.json("PUT", PATH, &waits.to_string()).expect(200);
    refused(&mut client, "pending");
    // A target that takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let runs = json!({"in": 0, "target": {"url": url}});
    client.json("PUT", PATH, &runs.to_string()).expect(200);
    wait_for_state(&mut client, PATH, "delivering");
    refused(&mut client, "delivering");
    let recurs = json!({"every": "1h", "in": 0, "repeats": 1, "target": {"url": busy.url}});
    client.json("PUT", PATH, &recurs.to_string()).expect(200);
    busy.next();
    wait_for_state(&mut client, PATH, "done");
    refused(&mut client, "done");

    client
        .json(
            "PUT",
            PATH,
            &json!({"in": 0, "target": {"url": busy.url}}).to_string(),
        )
        .expect(200);
    wait_for_state(&mut client, PATH, "done");
    client
        .json("POST", "/v1/queues/default:drain", r#"{"mode":"hold"}"#)
        .expect(200);
    assert_eq!(
        resend(&mut client, "", &[]).problem(),
        (409, "draining".to_owned())
    );
}

#[test]
fn a_resend_with_bad_input_changes_nothing() {
    let (_directory, _server, mut client) = start_with(&[]);
    assert_eq!(
        resend(&mut client, "", &[]).problem(),
        (404, "not_found".to_owned())
    );
    let star = resend(&mut client, "", &[("if-match", "*")]);
    assert_eq!(star.problem(), (404, "not_found".to_owned()));
    let fine = Target::answering("200 OK");
    let set = json!({"in": 0, "body": 7, "target": {"url": fine.url}});
    client.json("PUT", PATH, &set.to_string()).expect(201);
    let before = wait_for_state(&mut client, PATH, "done");
    for (body, status, code) in [
        ("[]", 400, "malformed"),
        (r#"{"body": 8}"#, 400, "malformed"),
        (r#"{"in": 0}"#, 400, "malformed"),
        (r#"{"target": null}"#, 400, "malformed"),
        (r#"{"target": {}}"#, 400, "malformed"),
        (
            r#"{"target": {"url": "http://x/", "verb": "GET"}}"#,
            400,
            "malformed",
        ),
        (
            r#"{"target": {"url": "http://x/", "method": "GET"}}"#,
            400,
            "malformed",
        ),
        (
            r#"{"target": {"url": "http://x/", "method": "get"}}"#,
            422,
            "invalid_target",
        ),
        (r#"{"target": {"url": "ftp://x/"}}"#, 422, "invalid_target"),
        (
            r#"{"target": {"url": "http://169.254.169.254/"}}"#,
            422,
            "invalid_target",
        ),
        (
            r#"{"target": {"url": "http://x/", "headers": {"host": "y"}}}"#,
            422,
            "invalid_target",
        ),
        (
            r#"{"target": {"url": "http://x/", "timeout": 1}}"#,
            422,
            "invalid_target",
        ),
    ] {
        let answer = resend(&mut client, body, &[]);
        assert_eq!(answer.problem(), (status, code.to_owned()), "{body}");
    }
    for (name, value) in [
        ("if-none-match", "*"),
        ("if-match", "7"),
        ("prefer", "wait=1"),
    ] {
        let answer = resend(&mut client, "", &[(name, value)]);
        assert_eq!(answer.problem(), (400, "malformed".to_owned()), "{name}");
    }
    let query = client.send("POST", &format!("{PATH}:resend?now"), &[], b"");
    assert_eq!(query.problem(), (400, "malformed".to_owned()));
    assert_eq!(client.get(PATH).expect(200), before);
    // An empty text is a body too.
    let set =
        json!({"in": 0, "body": "", "content_type": "text/plain", "target": {"url": fine.url}});
    client.json("PUT", PATH, &set.to_string()).expect(200);
    wait_for_state(&mut client, PATH, "done");
    let get = r#"{"target": {"url": "http://x/", "method": "GET"}}"#;
    let answer = resend(&mut client, get, &[]);
    assert_eq!(answer.problem(), (400, "malformed".to_owned()));
}

/// A target that was allowed when the timer was set, and is not any more.
#[test]
fn a_resend_to_a_target_that_is_refused_by_now_is_refused() {
    let (directory, server, mut client) = start_with(&[]);
    let fine = Target::answering("200 OK");
    let set = json!({"in": 0, "target": {"url": fine.url}});
    client.json("PUT", PATH, &set.to_string()).expect(201);
    wait_for_state(&mut client, PATH, "done");
    assert!(server.stop().success());
    let server = Server::with(&directory.0.join("data"), &[]);
    let mut client = server.client();
    let answer = resend(&mut client, "", &[]);
    assert_eq!(answer.problem(), (422, "invalid_target".to_owned()));
    assert_eq!(client.get(PATH).expect(200)["state"], "done");
}

/// What is stored is sent again by the rules that a set of the same has now.
#[test]
fn a_resend_of_what_a_set_may_not_be_any_more_is_refused() {
    let (_directory, _server, mut client) = start_with(&[]);
    let fine = Target::answering("200 OK");
    let mut put = |path: &str, body: &Value| client.json("PUT", path, &body.to_string());
    let (queue, url) = ("/v1/queues/default", json!({"url": fine.url}));
    put("/v1/endpoints/gone", &url).expect(201);
    put(queue, &json!({"serial": true})).expect(201);
    let timers = [
        (
            json!({"target": {"endpoint": "gone"}}),
            json!({}),
            "invalid_target",
        ),
        (
            json!({"target": url, "body": "a long one"}),
            json!({"payload_limit": 5}),
            "too_large",
        ),
        (
            json!({"target": url, "serial_key": "s"}),
            json!({}),
            "invalid_setting",
        ),
        (
            json!({"target": url}),
            json!({"mode": "pull"}),
            "pull_queue",
        ),
    ];
    for (timer, settings, code) in timers {
        let mut put = |path: &str, body: &Value| client.json("PUT", path, &body.to_string());
        assert_eq!(put(queue, &json!({"serial": true})).status, 200);
        let mut timer = timer;
        timer["in"] = json!(0);
        put(PATH, &timer);
        wait_for_state(&mut client, PATH, "done");
        client.json("PUT", queue, &settings.to_string()).expect(200);
        if code == "invalid_target" {
            client
                .send("DELETE", "/v1/endpoints/gone", &[], b"")
                .expect(200);
        }
        let again = client.json("PUT", "/v1/queues/default/timers/again", &timer.to_string());
        let told = resend(&mut client, "", &[]).problem();
        assert_eq!((&*told.1, &told), (code, &again.problem()));
        assert_eq!(client.get(PATH).expect(200)["state"], "done");
    }
}

#[test]
fn the_command_line_shows_the_answer_and_sends_again() {
    let (_directory, server, mut client) = start_with(&[]);
    let body = "\u{1b}[31mno \u{202e}stock\r\nsecond line";
    let url = target(with_length("410 Gone", body.as_bytes()));
    attempt(&mut client, &url, "POST");
    let run = |arguments: &[&str]| {
        let server = format!("http://{}", server.address);
        let output = program()
            .args(arguments)
            .args(["--server", &server])
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = run(&["get", "k"]);
    let length = body.len();
    let line = format!("answer     410, {length} bytes: \\u001b[31mno \\u202estock …");
    assert!(shown.lines().any(|found| found == line), "{shown}");
    let took = shown
        .lines()
        .find(|line| line.starts_with("took       connect "));
    assert!(
        took.is_some_and(|line| line.contains(" ms, first byte ")),
        "{shown}"
    );
    assert!(!shown.contains(['\u{1b}', '\u{202e}']));

    let fine = Target::answering("200 OK");
    let said = run(&[
        "resend", "k", "--post", &fine.url, "--method", "PATCH", "--header", "x-a: b",
    ]);
    assert!(said.starts_with("resent     k  due ") && said.contains("replaced one that was dead"));
    let delivery = fine.next();
    assert_eq!(delivery.request_line, "PATCH /hook HTTP/1.1");
    assert_eq!(delivery.header("x-a"), "b");
    let done = wait_for_state(&mut client, PATH, "done");
    let revision = done["revision"].to_string();
    let json = run(&["resend", "k", "--if-revision", &revision, "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["replaced"], "done");
    assert_eq!(fine.next().request_line, "PATCH /hook HTTP/1.1");
}

/// Each of them reads the timer as it was, and is for the revision that it read.
#[test]
fn of_resends_at_one_time_only_one_counts() {
    const CALLERS: usize = 8;
    let (_directory, server, mut client) = start_with(&[]);
    let fine = target(with_length("200 OK", b""));
    // A target that takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let elsewhere = json!({"target": {"url": url}}).to_string();
    for _ in 0..5 {
        attempt(&mut client, &fine, "POST");
        let together = Barrier::new(CALLERS);
        let mut statuses: Vec<u16> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut client = server.client();
                        client.get("/readyz").expect(200);
                        together.wait();
                        resend(&mut client, &elsewhere, &[]).status
                    })
                })
                .collect();
            callers.into_iter().map(|it| it.join().unwrap()).collect()
        });
        statuses.sort_unstable();
        let expected = [&[200][..], &[409; CALLERS - 1]].concat();
        assert_eq!(statuses, expected);
    }
}
