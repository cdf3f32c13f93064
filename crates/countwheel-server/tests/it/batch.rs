//! `POST /v1/batch`: one sentence of the API, or one bad caller, a test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, PATIENCE, Server, pause, program};

const LINES: [(&str, &str); 1] = [("content-type", "application/x-ndjson")];
const MIB: usize = 1 << 20;

fn start() -> (Directory, Server, Client) {
    with(&["--allow-private-targets"])
}

fn with(arguments: &[&str]) -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::with(&directory.0.join("data"), arguments);
    let client = server.client();
    (directory, server, client)
}

fn set(key: &str) -> Value {
    json!({"op": "set", "queue": "q", "key": key, "in": "1h", "target": {"url": "http://127.0.0.1:9/"}})
}

fn op(op: &str, key: &str) -> Value {
    json!({"op": op, "queue": "q", "key": key})
}

fn and(mut operation: Value, name: &str, value: Value) -> Value {
    operation[name] = value;
    operation
}

fn text(operations: &[Value]) -> String {
    operations.iter().map(|line| format!("{line}\n")).collect()
}

fn post(client: &mut Client, path: &str, lines: impl AsRef<[u8]>) -> Answer {
    client.send("POST", path, &LINES, lines.as_ref())
}

/// The results of a batch that was read to its end, and its last line.
#[track_caller]
fn results(answer: &Answer) -> (Vec<Value>, Value) {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let text = std::str::from_utf8(&answer.body).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let mut lines: Vec<Value> = lines.collect();
    let end = lines.pop().unwrap();
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(line["i"], number, "{line}");
    }
    assert_eq!(end["operations"], lines.len(), "{end}");
    (lines, end)
}

#[track_caller]
fn batch(client: &mut Client, operations: &[Value]) -> Vec<Value> {
    let (results, end) = results(&post(client, "/v1/batch", text(operations)));
    assert_eq!(end["end"], true, "{end}");
    let done = results
        .iter()
        .filter(|it| it["status"].as_u64().unwrap() < 300);
    let done = done.count();
    assert_eq!(
        (&end["succeeded"], &end["failed"]),
        (&json!(done), &json!(results.len() - done))
    );
    results
}

fn statuses(results: &[Value]) -> Vec<u64> {
    let statuses = results.iter().map(|it| it["status"].as_u64().unwrap());
    statuses.collect()
}

fn path(key: &str) -> String {
    format!("/v1/queues/q/timers/{key}")
}

/// A connection on which a batch is sent in pieces.
struct Stream(BufReader<TcpStream>);

impl Stream {
    fn open(server: &Server, head: &str) -> Self {
        let stream = TcpStream::connect(&server.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = Self(BufReader::new(stream));
        stream.send(&format!(
            "POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n{head}\r\n\r\n"
        ));
        stream
    }

    fn chunked(server: &Server) -> Self {
        Self::open(server, "transfer-encoding: chunked")
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn chunk(&mut self, text: &str) {
        self.send(&format!("{:x}\r\n{text}\r\n", text.len()));
    }

    fn head(&mut self) {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
        while line != "\r\n" {
            line.clear();
            self.0.read_line(&mut line).unwrap();
        }
    }

    /// The next chunk of the answer: empty at its end, `None` if it breaks off.
    fn next(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        let length = usize::from_str_radix(line.trim_end(), 16).ok()?;
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).ok()?;
        bytes.truncate(length);
        Some(String::from_utf8(bytes).unwrap())
    }

    /// So many lines of the answer.
    fn lines(&mut self, count: usize) -> Vec<Value> {
        let mut text = String::new();
        while text.lines().count() < count {
            text += &self.next().expect("more lines");
        }
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// What is left of the answer.
    fn rest(&mut self) -> Vec<Value> {
        let mut text = String::new();
        while let Some(next) = self.next().filter(|next| !next.is_empty()) {
            text += &next;
        }
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

#[test]
fn each_operation_answers_as_its_own_request_does() {
    let (_directory, _server, mut client) = start();
    let done = batch(
        &mut client,
        &[
            set("a"),
            set("a"),
            and(op("move", "a"), "by", json!("1h")),
            op("remove", "a"),
            op("remove", "a"),
            and(op("fire", "none"), "x", json!(1)),
            op("fire", "none"),
            op("revive", "none"),
            and(set("b"), "in", json!("-1s")),
        ],
    );
    assert_eq!(
        statuses(&done),
        [201, 200, 200, 200, 404, 400, 404, 404, 422]
    );
    let first = &done[0];
    assert_eq!(first["replaced"], Value::Null);
    assert!(first["id"].as_str().unwrap().starts_with("tmr-"), "{first}");
    assert_eq!(done[1]["replaced"], "pending");
    assert_eq!(done[2]["old_due"], done[1]["due"]);
    assert_eq!(
        (&done[3]["was"], &done[3]["due"]),
        (&json!("pending"), &done[2]["due"])
    );
    assert_eq!(done[4]["code"], "not_found");
    assert!(done[4]["detail"].is_string());
    assert_eq!(done[5]["errors"][0]["pointer"], "/x");
    assert_eq!(
        (&done[8]["code"], &done[8]["errors"][0]["pointer"]),
        (&json!("unschedulable"), &json!("/in"))
    );
    // What a single request shows is what the batch said.
    let again = batch(&mut client, &[set("c"), op("fire", "c")]);
    assert_eq!(statuses(&again), [201, 202]);
    let shown = client.get(&path("c")).expect(200);
    assert_eq!(shown["id"], again[0]["id"]);
}

#[test]
fn workers_settle_their_leases_in_a_batch() {
    let (_directory, _server, mut client) = start();
    client
        .json("PUT", "/v1/queues/q", r#"{"mode": "pull"}"#)
        .expect(201);
    let timer = |key: &str| json!({"op": "set", "queue": "q", "key": key, "in": 0});
    let keys = ["ack", "nack", "dead"];
    assert_eq!(
        statuses(&batch(&mut client, &keys.map(timer))),
        [201, 201, 201]
    );
    let mut leases = Vec::new();
    while leases.len() < 3 {
        let asked = r#"{"max": 3, "wait": "5s"}"#;
        let leased = client.json("POST", "/v1/queues/q:lease", asked).expect(200);
        leases.extend(leased["leases"].as_array().unwrap().clone());
    }
    let named = |verb: &str, key: &str| {
        let lease = leases.iter().find(|it| it["key"] == key).unwrap();
        and(op(verb, key), "token", lease["token"].clone())
    };
    let done = batch(
        &mut client,
        &[
            named("ack", "ack"),
            named("ack", "ack"),
            and(named("nack", "nack"), "in", json!("1h")),
            and(named("nack", "dead"), "dead", json!(true)),
            named("nack", "dead"),
            and(op("revive", "dead"), "in", json!("2h")),
            and(named("nack", "nack"), "lease", json!("1m")),
        ],
    );
    assert_eq!(statuses(&done), [200, 200, 200, 200, 409, 202, 400]);
    assert_eq!(
        (&done[0]["state"], &done[2]["state"]),
        (&json!("done"), &json!("pending"))
    );
    assert!(done[2]["due"].is_string() && done[0].get("due").is_none());
    assert_eq!(
        (&done[3]["state"], &done[4]["code"]),
        (&json!("dead"), &json!("lease_lost"))
    );
    assert_eq!(client.get(&path("dead")).expect(200)["state"], "pending");
}

#[test]
fn operations_on_one_key_take_effect_in_the_order_of_their_lines() {
    let (_directory, _server, mut client) = start();
    let mut operations = Vec::new();
    for round in 0..1_000 {
        operations.push(and(set("k"), "if_none_match", json!("*")));
        operations.push(and(op("move", "k"), "in", json!(3_600_000 + round)));
        operations.push(and(set("k"), "if_match", json!("*")));
        operations.push(op("remove", "k"));
        operations.push(set(&format!("other-{round}")));
    }
    operations.push(set("k"));
    let done = batch(&mut client, &operations);
    let wanted = [201, 200, 200, 200, 201].repeat(1_000);
    assert_eq!(statuses(&done[..5_000]), wanted);
    let revisions = done.iter().filter_map(|it| it["revision"].as_u64());
    assert!(revisions.is_sorted());
    assert_eq!(
        client.get(&path("k")).expect(200)["revision"],
        done[5_000]["revision"]
    );
}

#[test]
fn a_precondition_holds_for_its_operation() {
    let (_directory, _server, mut client) = start();
    let first = batch(&mut client, &[set("a")]);
    let revision = first[0]["revision"].as_u64().unwrap();
    let done = batch(
        &mut client,
        &[
            and(set("a"), "if_none_match", json!("*")),
            and(set("a"), "if_match", json!(revision + 1)),
            and(set("a"), "if_match", json!(revision.to_string())),
            and(set("none"), "if_match", json!("*")),
            and(op("remove", "a"), "if_match", json!(revision)),
            and(
                and(op("move", "a"), "in", json!("2h")),
                "if_match",
                json!("*"),
            ),
            and(op("fire", "a"), "if_match", json!("*")),
            and(set("a"), "if_match", json!("x")),
            and(op("remove", "a"), "if_none_match", json!("*")),
            and(op("remove", "a"), "only", json!("dead")),
            and(op("remove", "a"), "only", json!("pending")),
        ],
    );
    let wanted = [412, 412, 200, 404, 412, 200, 400, 400, 400, 400, 200];
    assert_eq!(statuses(&done), wanted, "{done:?}");
    assert_eq!(
        (&done[0]["code"], &done[1]["code"]),
        (&json!("exists"), &json!("revision_mismatch"))
    );
    assert_eq!(done[1]["revision"], revision);
}

/// One bad line is its own refusal: everything else is done.
#[test]
fn a_line_that_cannot_be_read_is_refused_alone() {
    let (_directory, _server, mut client) = start();
    let long = "x".repeat(MIB);
    let mut lines = Vec::new();
    for line in [
        b"".as_slice(),
        b"  \t ",
        b"{",
        b"7",
        b"\xff\xfe",
        br#"{"queue": "q", "key": "k"}"#,
        br#"{"op": "sett", "queue": "q", "key": "k"}"#,
        br#"{"op": "fire", "queue": "q", "key": "k", "key": "k"}"#,
        br#"{"op": "fire", "queue": "", "key": "k"}"#,
        br#"{"op": "fire", "queue": "q"}"#,
        long.as_bytes(),
        format!("{long}x").as_bytes(),
        format!("{long}{long}{long}").as_bytes(),
        format!("{}\r", set("good")).as_bytes(),
    ] {
        lines.extend_from_slice(line);
        lines.push(b'\n');
    }
    // The last line needs no end.
    lines.extend_from_slice(set("last").to_string().as_bytes());
    let (done, end) = results(&post(&mut client, "/v1/batch", &lines));
    let wanted = [
        400, 400, 400, 400, 400, 400, 400, 400, 400, 413, 413, 201, 201,
    ];
    assert_eq!(statuses(&done), wanted, "{done:?}");
    assert_eq!((&end["end"], &end["succeeded"]), (&json!(true), &json!(2)));
    assert_eq!(done[6]["code"], "invalid_queue");
    client.get(&path("good")).expect(200);
    client.get(&path("last")).expect(200);
    let none = results(&post(&mut client, "/v1/batch", "\n\n"));
    assert_eq!(
        none.1,
        json!({"end": true, "operations": 0, "succeeded": 0, "failed": 0})
    );
}

#[test]
fn the_settings_of_a_queue_hold_for_each_operation() {
    let (_directory, _server, mut client) = start();
    client
        .json("PUT", "/v1/queues/q", r#"{"payload_limit": 8}"#)
        .expect(201);
    client
        .json("POST", "/v1/queues/shut:drain", r#"{"mode": "hold"}"#)
        .expect(200);
    let done = batch(
        &mut client,
        &[
            and(set("a"), "body", json!("123456")),
            and(set("b"), "body", json!("1234567")),
            and(set("c"), "queue", json!("shut")),
            and(set("d"), "target", json!({"endpoint": "none"})),
        ],
    );
    assert_eq!(statuses(&done), [201, 413, 409, 422]);
    assert_eq!(done[2]["code"], "draining");
    assert_eq!(done[3]["errors"][0]["pointer"], "/target/endpoint");
}

#[test]
fn a_request_that_is_no_batch_is_refused() {
    let (_directory, _server, mut client) = start();
    let line = text(&[set("a")]);
    let json = client.json("POST", "/v1/batch", &line);
    assert_eq!(json.problem(), (415, "unsupported_media_type".to_owned()));
    for query in [
        "atomic=yes",
        "atomic",
        "atom=true",
        "atomic=true&atomic=true",
    ] {
        let answer = post(&mut client, &format!("/v1/batch?{query}"), &line);
        assert_eq!(answer.problem(), (400, "malformed".to_owned()), "{query}");
    }
    let headers = [LINES[0], ("if-match", "*")];
    let answer = client.send("POST", "/v1/batch", &headers, line.as_bytes());
    assert_eq!(answer.problem(), (400, "malformed".to_owned()));
    let headers = [LINES[0], ("content-encoding", "gzip")];
    let answer = client.send("POST", "/v1/batch", &headers, line.as_bytes());
    assert_eq!(answer.problem().0, 415);
    assert_eq!(client.get("/v1/batch").problem().0, 405);
    assert_eq!(client.get(&path("a")).status, 404);
    let with_charset = [("content-type", "application/x-ndjson; charset=utf-8")];
    let answer = client.send("POST", "/v1/batch", &with_charset, line.as_bytes());
    assert_eq!(results(&answer).0[0]["status"], 201);
}

/// Some clients send all of a body before they read: with answers that waited for a reader, both sides would wait.
#[test]
fn a_caller_that_reads_only_once_all_is_sent_gets_all_results() {
    let (_directory, _server, mut client) = start();
    let count = 100_000;
    let lines: String = (0..count)
        .map(|key| format!("{}\n", set(&format!("k-{key}"))))
        .collect();
    let (done, end) = results(&post(&mut client, "/v1/batch", &lines));
    assert_eq!(
        end,
        json!({"end": true, "operations": count, "succeeded": count, "failed": 0})
    );
    assert!(done.iter().all(|it| it["status"] == 201));
    let queues = client.get("/v1/queues").expect(200);
    assert_eq!(queues["queues"][0]["pending"], count);
    // The connection goes on.
    assert_eq!(
        statuses(&batch(&mut client, &[op("remove", "k-99999")])),
        [200]
    );
}

#[test]
fn results_come_while_the_batch_is_sent() {
    let (_directory, server, mut client) = start();
    let mut stream = Stream::chunked(&server);
    let line = text(&[set("a")]);
    let (begin, rest) = line.split_at(20);
    stream.chunk(begin);
    stream.head();
    stream.chunk(rest);
    assert_eq!(statuses(&stream.lines(1)), [201]);
    client.get(&path("a")).expect(200);
    for round in 0..20 {
        stream.chunk(&text(&[and(op("move", "a"), "in", json!("2h"))]));
        let line = stream.lines(1).remove(0);
        assert_eq!(
            (&line["i"], &line["status"]),
            (&json!(round + 1), &json!(200))
        );
    }
    stream.send("0\r\n\r\n");
    assert_eq!(
        stream.rest(),
        [json!({"end": true, "operations": 21, "succeeded": 21, "failed": 0})]
    );
}

#[test]
fn a_batch_that_breaks_off_has_done_its_whole_lines_and_no_others() {
    let (directory, server, mut client) = start();
    let whole = text(&[set("a"), set("b")]);
    let half = set("half").to_string();
    let length = whole.len() + half.len() + 1;
    let mut stream = Stream::open(&server, &format!("content-length: {length}"));
    stream.send(&whole);
    stream.send(&half);
    stream.head();
    let done = stream.lines(2);
    assert_eq!(statuses(&done), [201, 201]);
    stream.0.get_mut().shutdown(Shutdown::Write).unwrap();
    let rest = stream.rest();
    let end =
        json!({"end": false, "reason": "broken", "operations": 2, "succeeded": 2, "failed": 0});
    assert!(rest.is_empty() || rest == [end], "{rest:?}");
    assert_eq!(client.get(&path("half")).status, 404);
    server.signal("-KILL");
    drop(server);
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    client.get(&path("a")).expect(200);
    client.get(&path("b")).expect(200);
    assert_eq!(client.get(&path("half")).status, 404);
}

#[test]
fn a_stop_of_the_service_ends_a_batch_and_says_where() {
    let (directory, server, _client) = start();
    let mut stream = Stream::chunked(&server);
    let keys: Vec<_> = (0..50).map(|key| set(&format!("k-{key}"))).collect();
    stream.chunk(&text(&keys));
    stream.head();
    assert_eq!(stream.lines(50).len(), 50);
    server.signal("-TERM");
    let end =
        json!({"end": false, "reason": "shutdown", "operations": 50, "succeeded": 50, "failed": 0});
    assert_eq!(stream.rest(), [end]);
    let mut server = server;
    assert!(server.wait().success());
    drop(server);
    let server = Server::start(&directory.0.join("data"));
    let queues = server.client().get("/v1/queues").expect(200);
    assert_eq!(queues["queues"][0]["pending"], 50);
}

/// The memory of a batch is bounded: it is read no further while nobody reads its results, and goes on then.
#[test]
fn a_caller_that_does_not_read_is_not_read_beyond_the_memory_for_bodies() {
    let (_directory, server, mut client) = with(&["--body-memory", "2", "--allow-private-targets"]);
    let count = 200_000;
    let stream = Stream::chunked(&server);
    let mut sending = stream.0.get_ref().try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let line = text(&[op("remove", "none")]);
        let piece = line.repeat(1_000);
        for _ in 0..count / 1_000 {
            let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
            sending.write_all(chunk.as_bytes()).unwrap();
        }
        sending.write_all(b"0\r\n\r\n").unwrap();
    });
    pause();
    let metrics = client.get("/metrics");
    let metrics = String::from_utf8(metrics.body).unwrap();
    let taken = metrics
        .lines()
        .find(|line| line.starts_with("countwheel_request_body_bytes "));
    let taken: f64 = taken.unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    assert!(taken > 0.0 && taken <= 2.0 * MIB as f64, "{taken}");
    let mut stream = stream;
    stream.head();
    let lines = stream.rest();
    writer.join().unwrap();
    assert_eq!(lines.len(), count + 1);
    assert!(
        lines[..count]
            .iter()
            .all(|it| it["status"] == 404 && it["code"] == "not_found")
    );
    assert_eq!(lines[0]["detail"], "there is no timer of that name");
    assert_eq!(lines[count]["failed"], count);
}

#[test]
fn without_memory_for_bodies_a_batch_is_refused() {
    let (_directory, server, mut client) = with(&["--body-memory", "2", "--allow-private-targets"]);
    let hold = |bytes: usize| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let head = format!(
            "PUT {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {MIB}\r\n\r\n",
            path("held")
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&vec![b' '; bytes]).unwrap();
        stream
    };
    for _ in 0..30 {
        // An address has three quarters. A batch that is there before all of this has come has its memory, and one of these is
        // refused.
        let _held = [hold(MIB - 1), hold(480 << 10)];
        (0..20).for_each(|_| pause());
        let answer = post(&mut client, "/v1/batch", text(&[op("remove", "none")]));
        if answer.status == 429 {
            assert_eq!(answer.problem(), (429, "overloaded".to_owned()));
            assert!(answer.header("retry-after").is_some());
            return;
        }
    }
    panic!("no batch was refused");
}

#[test]
fn an_atomic_batch_is_done_whole_or_not_at_all() {
    let (_directory, _server, mut client) = start();
    let atomic = "/v1/batch?atomic=true";
    let operations = [
        set("a"),
        and(op("move", "a"), "in", json!("2h")),
        set("b"),
        op("remove", "b"),
    ];
    let done = post(&mut client, atomic, text(&operations)).expect(200);
    let done = done["results"].as_array().unwrap();
    assert_eq!(statuses(done), [201, 200, 201, 200]);
    assert_eq!(
        client.get(&path("a")).expect(200)["revision"],
        done[1]["revision"]
    );
    assert_eq!(client.get(&path("b")).status, 404);
    for (last, status, code) in [
        (and(set("a"), "if_none_match", json!("*")), 412, "exists"),
        (op("revive", "a"), 409, "conflict"),
        (op("remove", "none"), 404, "not_found"),
        (and(op("fire", "a"), "in", json!("1h")), 400, "malformed"),
        (and(set("a"), "in", json!("40000d")), 422, "unschedulable"),
        (and(set("a"), "if_match", json!("*")), 400, "malformed"),
        (json!("no operation"), 400, "malformed"),
        (
            and(op("ack", "a"), "token", json!("000000000000000000000000")),
            409,
            "lease_lost",
        ),
    ] {
        let operations = [
            set("c"),
            op("remove", "a"),
            set("a"),
            last.clone(),
            set("d"),
        ];
        let refused = post(&mut client, atomic, text(&operations));
        assert_eq!(refused.problem(), (status, code.to_owned()), "{last}");
        assert_eq!(refused.json()["item"], 3, "{last}");
        assert_eq!(client.get(&path("c")).status, 404);
        let kept = client.get(&path("a")).expect(200);
        assert_eq!(kept["revision"], done[1]["revision"], "{last}");
    }
    let none = post(&mut client, atomic, "\n").expect(200);
    assert_eq!(none, json!({"results": []}));
    let plain = post(&mut client, "/v1/batch?atomic=false", text(&[set("e")]));
    assert_eq!(results(&plain).0[0]["status"], 201);
}

#[test]
fn an_atomic_batch_has_at_most_ten_thousand_operations() {
    let (_directory, _server, mut client) = start();
    let lines = |count: usize| -> String {
        (0..count)
            .map(|key| format!("{}\n", set(&format!("k-{key}"))))
            .collect()
    };
    let refused = post(&mut client, "/v1/batch?atomic=true", lines(10_001));
    assert_eq!(refused.problem(), (413, "too_large".to_owned()));
    assert_eq!(client.get("/v1/queues").expect(200)["queues"], json!([]));
    let done = post(&mut client, "/v1/batch?atomic=true", lines(10_000)).expect(200);
    assert_eq!(done["results"].as_array().unwrap().len(), 10_000);
    let line = "x".repeat(MIB + 1);
    let refused = post(&mut client, "/v1/batch?atomic=true", line);
    assert_eq!(refused.problem(), (413, "too_large".to_owned()));
}

#[test]
fn the_command_prints_results_and_says_whether_all_was_done() {
    let (directory, server, mut client) = start();
    let url = format!("http://{}", server.address);
    let run = |arguments: &[&str], input: &str| {
        let mut command = program();
        let command = command.args(["batch", "--server", &url]).args(arguments);
        let piped = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap_or_default();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), said, error)
    };
    let (code, said, _) = run(&[], &text(&[set("a"), set("b")]));
    assert_eq!((code, said.lines().count()), (0, 3), "{said}");
    let (code, said, _) = run(&[], &text(&[set("a"), op("remove", "none")]));
    assert_eq!(code, 1, "{said}");
    assert!(said.ends_with("\"succeeded\":1,\"failed\":1}\n"), "{said}");
    let (code, said, error) = run(&["--atomic"], &text(&[set("c"), op("remove", "none")]));
    assert_eq!((code, said.as_str()), (2, ""));
    assert!(
        error.contains("operation 1: there is no timer of that name"),
        "{error}"
    );
    assert_eq!(client.get(&path("c")).status, 404);
    let file = directory.0.join("lines");
    std::fs::write(&file, text(&[set("c")])).unwrap();
    let (code, said, _) = run(&["--atomic", file.to_str().unwrap()], "");
    assert_eq!(code, 0, "{said}");
    let (code, _, error) = run(&["/nowhere/lines"], "");
    assert_eq!(code, 2, "{error}");
    let (code, said, _) = run(&[], "");
    assert_eq!((code, said.lines().count()), (0, 1));
    drop(server);
    let (code, _, error) = run(&[], &text(&[set("a")]));
    assert_eq!(code, 3, "{error}");
}

#[test]
fn a_replay_sends_its_operations_as_lines_of_a_batch() {
    let (_directory, server, mut client) = start();
    let url = format!("http://{}", server.address);
    let mut lines = String::new();
    for key in 0..500 {
        let name = format!(r#""t":"2026-03-01T12:00:00Z","queue":"q","key":"k-{key}""#);
        lines += &format!("{{{name},\"op\":\"set\",\"in\":\"30000d\"}}\n");
        let at = "2060-03-01T12:00:00Z";
        lines += &format!("{{{name},\"op\":\"move\",\"at\":\"{at}\"}}\n");
        if key % 5 == 0 {
            lines += &format!("{{{name},\"op\":\"remove\"}}\n");
        }
    }
    let mut command = program();
    let command = command.args([
        "replay",
        "-",
        "--server",
        &url,
        "--target",
        "http://127.0.0.1:9/",
    ]);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(lines.as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let queues = client.get("/v1/queues").expect(200);
    assert_eq!(queues["queues"][0]["pending"], 400);
    let moved = client.get(&path("k-1")).expect(200);
    assert!(
        moved["due"].as_str().unwrap().starts_with("2060-"),
        "{moved}"
    );
    let metrics = client.get("/metrics");
    let metrics = String::from_utf8(metrics.body).unwrap();
    let of = |method: &str| {
        let of_method = |line: &&str| {
            line.starts_with("countwheel_http_requests_total{")
                && line.contains(&format!("method=\"{method}\""))
        };
        metrics.lines().filter(of_method).collect::<Vec<_>>()
    };
    assert!(
        of("POST").iter().any(|line| line.contains("/v1/batch")),
        "{metrics}"
    );
    assert!(of("PUT").is_empty() && of("PATCH").is_empty(), "{metrics}");
}
