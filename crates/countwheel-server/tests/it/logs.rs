//! The log of the real program: what is refused is in it, and nobody but the program writes a line of it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{Directory, PATIENCE, Server, Target, program, wait_for_state};
use crate::tokens::{first, made, with};

/// A service whose log is the file that is returned.
pub(crate) fn start(directory: &Directory, arguments: &[&str]) -> (Server, PathBuf) {
    let log = directory.0.join("log");
    let mut command = program();
    command
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args([
            "--log-segment-mib",
            "1",
            "--allow-private-targets",
            "--data",
        ])
        .arg(directory.0.join("data"))
        .args(arguments)
        .stderr(File::create(&log).unwrap());
    (Server::logging(command), log)
}

/// The lines of a log in JSON with this message.
pub(crate) fn lines_of(log: &PathBuf, message: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines = lines.filter(|line: &Value| line["fields"]["message"] == message);
    lines.collect()
}

/// A refusal was a line at `debug` alone.
#[test]
fn a_refusal_has_a_line_with_its_token_and_path_and_many_have_a_bounded_number() {
    let directory = Directory::new();
    let (_, token) = first(&directory);
    let (server, log) = start(&directory, &["--log-format", "json"]);
    let mut admin = with(&server, &token);
    let namespace = admin.json("PUT", "/v1/namespaces/tenant-7", "{}");
    assert_eq!(namespace.status, 201);
    let (reader_id, reader) = made(&mut admin, &json!({"name": "r", "scopes": ["read"]}));
    let of_tenant = json!({"name": "t", "scopes": ["read"], "namespace": "tenant-7"});
    let (tenant_id, tenant) = made(&mut admin, &of_tenant);
    let (writer_id, writer) = made(&mut admin, &json!({"name": "w", "scopes": ["write"]}));
    // For a scope, for what is of the whole service, and for the scope that a part of the request needs.
    let mut reader = with(&server, &reader);
    let refused = reader.send("DELETE", "/v1/queues/orders?MARKER=1", &[], b"");
    assert_eq!(refused.problem(), (403, "forbidden".into()));
    let refused = with(&server, &tenant).get("/v1/stats?MARKER=1");
    assert_eq!(refused.problem(), (403, "forbidden".into()));
    let dry = r#"{"queue":"orders","action":"remove","filter":{},"dry_run":true}"#;
    let refused = with(&server, &writer).json("POST", "/v1/jobs", dry);
    assert_eq!(refused.problem(), (403, "forbidden".into()));
    for _ in 0..40 {
        let refused = reader.send("DELETE", "/v1/queues/orders", &[], b"");
        assert_eq!(refused.status, 403);
    }
    let metrics = String::from_utf8(admin.get("/metrics").body).unwrap();
    let counted = metrics.lines().filter(|line| {
        line.starts_with("countwheel_http_requests_total{") && line.contains("status=\"403\"")
    });
    let counted = counted.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    assert_eq!(counted.sum::<u64>(), 43);
    assert!(server.stop().success());
    let refusals = lines_of(&log, "a request was refused");
    let told: Vec<_> = refusals.iter().map(|line| &line["fields"]).collect();
    for (line, (token, method, path)) in told.iter().zip([
        (&reader_id, "DELETE", "/v1/queues/orders"),
        (&tenant_id, "GET", "/v1/stats"),
        (&writer_id, "POST", "/v1/jobs"),
    ]) {
        assert_eq!(line["token"], **token, "{line}");
        assert_eq!(
            (&line["method"], &line["path"]),
            (&json!(method), &json!(path))
        );
        assert_eq!(line["address"], "127.0.0.1");
    }
    assert!(refusals.iter().all(|line| line["level"] == "WARN"));
    assert_eq!(told.len(), 20, "the rest is counted");
    let many = lines_of(
        &log,
        "many requests were refused: more of them are counted alone",
    );
    assert_eq!(many.len(), 1);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("MARKER") && !text.contains("cwt_"), "{text}");
}

/// What would be a line of its own, were it in the log as it is.
const FORGED: &str = "2026-01-01T00:00:00.000000Z  INFO countwheel_server: all is well";

/// Sends these bytes, and reads what comes until the service closes or has answered.
fn say(server: &Server, head: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(head).unwrap();
    let mut answer = Vec::new();
    // A connection that is reset has ended as well.
    stream.read_to_end(&mut answer).unwrap_or_default();
    answer
}

/// Whether a line of the log is one that the program wrote.
pub(crate) fn is_own(format: &str, line: &str) -> bool {
    let is_seen = |found: char| !found.is_control() && !"\u{202e}\u{2028}".contains(found);
    let time = if format == "json" {
        let Ok(Value::Object(line)) = serde_json::from_str(line) else {
            return false;
        };
        let is_whole = ["level", "fields", "target"]
            .iter()
            .all(|name| line.contains_key(*name));
        let time = line
            .get("timestamp")
            .and_then(Value::as_str)
            .filter(|_| is_whole);
        time.map(str::to_owned)
    } else {
        let mut words = line.split_whitespace();
        let (time, level) = (words.next(), words.next().unwrap_or_default());
        let is_level = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"].contains(&level);
        time.filter(|_| is_level).map(str::to_owned)
    };
    let forged = &FORGED[..27];
    let is_time = |time: &String| time.len() == 27 && time.ends_with('Z') && time != forged;
    line.chars().all(is_seen) && time.as_ref().is_some_and(is_time)
}

#[test]
fn each_line_of_the_log_is_one_that_the_program_wrote() {
    for format in ["text", "json"] {
        let directory = Directory::new();
        let (_, token) = first(&directory);
        let arguments = [
            "--log-format",
            format,
            "--log-level",
            "debug",
            "--access-log",
        ];
        let (server, log) = start(&directory, &arguments);
        let mut admin = with(&server, &token);
        // A receiver answers with a line of a log, and so does a name end in one, as far as a name may.
        let body = format!("no\r\n{FORGED}\u{1b}[2J\u{9b}31m\u{202e}\u{2028}{FORGED}\n");
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 500 no\r\nx-a: {FORGED}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let target = Target::start(move |_| answer.clone());
        let hostile = format!("k\",\"level\":\"INFO\"}}\u{2028}{FORGED}\u{202e}");
        let key: String = hostile.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("/v1/queues/orders/timers/{key}");
        let timer = json!({"in": 0, "target": {"url": target.url}, "retry": {"fixed": "1s", "max_attempts": 1}});
        admin.json("PUT", &path, &timer.to_string()).expect(201);
        wait_for_state(&mut admin, &path, "dead");
        // The name of a token is in the notice of its end, which a start gives.
        let soon = json!({"name": hostile, "scopes": ["read"], "expires_in": "1d"});
        made(&mut admin, &soon);
        let controls = json!({"name": format!("a\n{FORGED}"), "scopes": ["read"]});
        let refused = admin.json("POST", "/v1/tokens", &controls.to_string());
        assert_eq!(refused.status, 400);
        // Paths and heads, well formed or not.
        let escaped = "%0A2026-01-01T00:00:00.000000Z%20%20INFO%20all%20is%20well%1B%5B2J";
        let shown = format!("authorization: Bearer {token}");
        for (path, header) in [
            (
                format!("/v1/queues/a{escaped}/timers/b{escaped}"),
                shown.as_str(),
            ),
            (
                format!("/v1/queues/a{escaped}"),
                "authorization: Bearer \u{1b}[2J",
            ),
            (format!("/v1/queues?state={escaped}"), shown.as_str()),
            ("/v1/\u{9b}31m\u{202e}\u{2028}".to_owned(), shown.as_str()),
            ("/v1/\u{1b}[2J".to_owned(), shown.as_str()),
            ("/".to_owned(), "authorization: Bearer cwt_\u{9b}31m"),
            ("/".to_owned(), "user-agent: \u{1b}[2J"),
            ("/".to_owned(), "user-agent: \u{9b}31m\u{202e}"),
            (
                "/".to_owned(),
                "x-forwarded-for: \u{9b}31m, 127.0.0.1\n2026",
            ),
            ("/".to_owned(), "x-forwarded-for: \u{9b}31m"),
            ("/".to_owned(), "x-forwarded-proto: \u{2028}https"),
            ("/".to_owned(), "cookie: countwheel_session=\u{9b}31m.1.2.3"),
            ("/".to_owned(), "traceparent: \u{2028}"),
            ("/".to_owned(), "x-request-id: \u{2028}"),
            ("/".to_owned(), "host: \u{9b}31m"),
        ] {
            let host = if header.starts_with("host") {
                "x: y"
            } else {
                "host: localhost"
            };
            let head =
                format!("GET {path} HTTP/1.1\r\n{host}\r\n{header}\r\nconnection: close\r\n\r\n");
            let answer = say(&server, head.as_bytes());
            assert!(answer.starts_with(b"HTTP/1.1 "), "{head:?}: {answer:?}");
        }
        assert!(server.stop().success());
        let mut text = std::fs::read_to_string(&log).unwrap();
        // The start that finds the token which ends soon.
        let (server, log) = start(&directory, &arguments);
        server.client().get("/healthz").expect(200);
        assert!(server.stop().success());
        text += &std::fs::read_to_string(&log).unwrap();
        for line in text.split_terminator('\n') {
            assert!(is_own(format, line), "{format}: {line:?}");
        }
        // What was said is there, and cannot be taken for a line.
        for there in [
            "not delivered",
            "a token expires soon",
            "\\u202e",
            "%1B%5B2J",
        ] {
            assert!(text.contains(there), "{format}: {there}: {text}");
        }
        assert!(text.matches("all is well").count() >= 3, "{format}: {text}");
    }
}
