//! Receivers that others wrote take the signatures of real deliveries, and nothing that was changed on the way; and they
//! read deliveries as events.
//!
//! It needs Python and Node, with their packages of Standard Webhooks and of CloudEvents where `cargo xtask` puts them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::process::Server;
use crate::harness::{Directory, turn};

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(30);
/// The shortest secret there may be, and the longest: 24 and 64 bytes.
const SECRETS: [&str; 2] = [
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw==",
];
/// One that the endpoint does not have.
const UNKNOWN: &str = "whsec_//////////////////////////////////////////8=";

/// A delivery as it arrived.
struct Arrival {
    headers: BTreeMap<String, String>,
    body: String,
}

/// A receiver that answers the first delivery with 500, so that it comes again, and all others with 200.
fn receiver() -> (String, Receiver<Arrival>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (send, arrivals) = channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let mut stream = BufReader::new(stream);
            let mut headers = BTreeMap::new();
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap_or_default();
                match line.trim_end().split_once(": ") {
                    Some((name, value)) => drop(headers.insert(name.to_owned(), value.to_owned())),
                    None if line.trim_end().is_empty() => break,
                    None => {}
                }
            }
            let length = headers.get("content-length");
            let length = length.map_or(0, |length| length.parse().unwrap());
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap_or_default();
            let body = String::from_utf8(body).unwrap();
            if send.send(Arrival { headers, body }).is_err() {
                return;
            }
            let status = if number == 0 { 500 } else { 200 };
            let answer =
                format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            stream
                .get_mut()
                .write_all(answer.as_bytes())
                .unwrap_or_default();
        }
    });
    (url, arrivals)
}

/// Where `cargo xtask` puts the packages.
fn target(name: &str) -> PathBuf {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tmp.parent().expect("a directory of cargo's").join(name)
}

fn script(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("tests/proofs/signatures").join(name)
}

/// What a verifier says of each case.
fn verdicts(mut verifier: Command, cases: &[Value]) -> Vec<String> {
    let verifier = verifier.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = verifier.spawn().unwrap();
    let lines = cases.iter().map(|case| format!("{case}\n"));
    let lines = lines.collect::<String>();
    let mut input = child.stdin.take().unwrap();
    // Its answers are short, so they do not keep it from reading.
    input.write_all(lines.as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "needs Python and Node with packages: cargo xtask check signatures"]
fn verifiers_that_others_wrote_take_our_signatures() {
    let _turn = turn();
    let directory = Directory::new("signatures");
    let server = Server::start(&directory.join("data"));
    let mut caller = server.caller();
    let (url, arrivals) = receiver();
    let secrets = json!({ "url": url, "secrets": SECRETS });
    let made = caller.ask("PUT", "/v1/endpoints/shop", Some(&secrets));
    assert_eq!(made.expect("it answers").status, 201);
    let long = "ü".repeat(200_000);
    let bodies = [
        json!({"body": {"n": 1, "sum": 1.5}}),
        json!({"body": "a=1&b=ü€😀", "content_type": "application/x-www-form-urlencoded"}),
        json!({"body": long}),
        json!({"body": "line\r\n.1.2.", "content_type": "text/plain"}),
    ];
    let mut deliveries = Vec::new();
    for (number, body) in bodies.iter().enumerate() {
        let mut timer = body.clone();
        timer["in"] = json!(0);
        timer["target"] = json!({"endpoint": "shop"});
        timer["retry"] = json!({"fixed": 1});
        let path = format!("/v1/queues/default/timers/{number}");
        let set = caller.ask("PUT", &path, Some(&timer));
        assert_eq!(set.expect("it answers").status, 201);
        // The first one comes twice, and each of the two is signed.
        for _ in 0..if number == 0 { 2 } else { 1 } {
            deliveries.push(arrivals.recv_timeout(PATIENCE).expect("a delivery"));
        }
    }
    let signature = |delivery: &Arrival| delivery.headers["webhook-signature"].clone();
    let attempts = deliveries[..2].iter();
    let attempts: Vec<_> = attempts.map(|it| &it.headers["timer-attempt"]).collect();
    assert_eq!(attempts, ["1", "2"]);

    let (mut cases, mut expected) = (Vec::new(), Vec::new());
    let mut case = |secret: &str, headers: &BTreeMap<String, String>, body: &str, verdict| {
        cases.push(json!({"secret": secret, "headers": headers, "body": body}));
        expected.push(verdict);
    };
    for delivery in &deliveries {
        let Arrival { headers, body } = delivery;
        for secret in SECRETS {
            case(secret, headers, body, "right");
            case(secret, headers, &format!("{body} "), "wrong");
            for (name, value) in [
                ("webhook-id", "tmr-0-1"),
                ("webhook-timestamp", "1"),
                ("webhook-signature", "v1,AAAA"),
            ] {
                let mut changed = headers.clone();
                changed.insert(name.to_owned(), value.to_owned());
                case(secret, &changed, body, "wrong");
            }
        }
        case(UNKNOWN, headers, body, "wrong");
        assert_eq!(signature(delivery).split(' ').count(), SECRETS.len());
    }
    let mut python = Command::new("python3");
    python.arg(script("verify.py"));
    python.env("PYTHONPATH", target("standardwebhooks-python"));
    assert_eq!(verdicts(python, &cases), expected);
    let mut node = Command::new("node");
    node.arg(script("verify.js"));
    let modules = target("standardwebhooks-node").join("node_modules");
    node.env("NODE_PATH", modules);
    assert_eq!(verdicts(node, &cases), expected);
}

#[test]
#[ignore = "needs Python with packages: cargo xtask check signatures"]
fn a_reader_that_others_wrote_takes_our_events() {
    let _turn = turn();
    let directory = Directory::new("events");
    let server = Server::start(&directory.join("data"));
    let mut caller = server.caller();
    let (url, arrivals) = receiver();
    let (source, kind) = ("https://example.com/orders?a=%20b", "é \"x\" 100%");
    let queue = json!({"cloudevents": {"source": source, "type": kind}});
    let made = caller.ask("PUT", "/v1/queues/orders", Some(&queue));
    assert_eq!(made.expect("it answers").status, 201);
    let keys = [
        ("order-42", "order-42"),
        ("a%20b%25%22", "a b%\""),
        ("%E2%82%AC%F0%9F%98%80%2F", "€😀/"),
    ];
    let mut cases = Vec::new();
    for (path, _) in keys {
        let timer = json!({"at": "2026-03-01T12:00:05Z", "body": {"n": 1}, "retry": {"fixed": 1},
                           "target": {"url": url, "headers": {"ce-tenant": "7"}}});
        let path = format!("/v1/queues/orders/timers/{path}");
        let set = caller.ask("PUT", &path, Some(&timer));
        assert_eq!(set.expect("it answers").status, 201);
        let Arrival { headers, body } = arrivals.recv_timeout(PATIENCE).expect("a delivery");
        cases.push(json!({"headers": headers, "body": body}));
        if cases.len() == 1 {
            // The first one comes twice, as the same event.
            arrivals.recv_timeout(PATIENCE).expect("a delivery");
        }
    }
    let mut python = Command::new("python3");
    python.arg(script("events.py"));
    python.env("PYTHONPATH", target("cloudevents-python"));
    let found = verdicts(python, &cases);
    assert_eq!(found.len(), keys.len());
    for ((found, case), (_, key)) in found.iter().zip(&cases).zip(keys) {
        let found: Value = serde_json::from_str(found).unwrap();
        let expected = json!({
            "specversion": "1.0", "id": case["headers"]["webhook-id"], "source": source, "type": kind,
            "subject": key, "time": "2026-03-01T12:00:05+00:00",
            "datacontenttype": "application/json", "tenant": "7",
        });
        assert_eq!(found, expected);
    }
}
