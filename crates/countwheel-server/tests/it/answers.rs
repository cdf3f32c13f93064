//! What the service keeps of the answers of targets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::support::{Client, Directory, Server, Target, program, wait_for_state};

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

#[test]
fn the_command_line_shows_the_answer() {
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
}
