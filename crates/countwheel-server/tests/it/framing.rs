//! Requests whose beginning or end leaves doubt. What may stand in a head and a body, cut at every
//! offset, are tests of the state machine; these are about the service around it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::json;

use crate::support::{Answer, Directory, PATIENCE, Server, pause, read_answer};

/// What is behind a request that is refused, and has to stay without an answer.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n";
const POST: &str = "POST /nothing HTTP/1.1\r\nhost: localhost\r\n";

/// How the bytes are sent.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Whole,
    At(usize),
    EveryByte,
}

fn pieces(bytes: &[u8], cut: Cut) -> Vec<&[u8]> {
    match cut {
        Cut::Whole => vec![bytes],
        Cut::At(offset) => {
            let (first, second) = bytes.split_at(offset);
            vec![first, second]
        }
        Cut::EveryByte => bytes.chunks(1).collect(),
    }
}

/// All answers to these bytes, on a connection that is then closed for writing, and whether the
/// service closed it.
fn answers(server: &Server, bytes: &[u8], cut: Cut) -> Vec<Answer> {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let pieces = pieces(bytes, cut);
    let is_slow = pieces.len() == 2;
    for piece in pieces {
        // The service may have closed it by now.
        stream.write_all(piece).unwrap_or_default();
        if is_slow {
            pause();
        }
    }
    let mut stream = BufReader::new(stream);
    let mut answers = Vec::new();
    loop {
        let answer = read_answer(&mut stream, false);
        let answer = answer
            .unwrap_or_else(|| panic!("no answer {cut:?} {}", String::from_utf8_lossy(bytes)));
        let is_last = answer.header("connection") == Some("close");
        answers.push(answer);
        if is_last {
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap_or_default();
            assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
            return answers;
        }
    }
}

/// The service answered what was behind the line end, the length or the coding that another reader
/// of the same connection would have passed over.
#[test]
fn what_is_smuggled_behind_a_request_in_doubt_is_never_answered() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let before = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for (head, body, status, code) in [
        (
            "content-length: 5\r\ntransfer-encoding: chunked\r\n",
            "0\r\n\r\n",
            400,
            "malformed",
        ),
        (
            "content-length: 3\r\ncontent-length: 3\r\n",
            "abc",
            400,
            "malformed",
        ),
        ("content-length: +3\r\n", "abc", 400, "malformed"),
        ("x: a\ncontent-length: 0\r\n", "", 400, "malformed"),
        ("content-length : 3\r\n", "abc", 400, "malformed"),
        ("x: a\r\n content-length: 3\r\n", "abc", 400, "malformed"),
        (
            "transfer-encoding: chunked, chunked\r\n",
            "0\r\n\r\n",
            400,
            "malformed",
        ),
        (
            "transfer-encoding: gzip, chunked\r\n",
            "0\r\n\r\n",
            501,
            "not_implemented",
        ),
        (
            "transfer-encoding: identity\r\n",
            "",
            501,
            "not_implemented",
        ),
    ] {
        let request = format!("{before}{POST}{head}\r\n{body}{SMUGGLED}");
        let middle = before.len() + POST.len() + 7;
        for cut in [
            Cut::Whole,
            Cut::At(before.len()),
            Cut::At(middle),
            Cut::EveryByte,
        ] {
            let answers = answers(&server, request.as_bytes(), cut);
            let [health, refused] = &answers[..] else {
                panic!("{head:?} {cut:?}: {answers:?}")
            };
            assert_eq!(health.status, 200, "{head:?} {cut:?}");
            assert_eq!(refused.problem(), (status, code.into()), "{head:?} {cut:?}");
        }
    }
    server.client().get("/healthz").expect(200);
}

/// What stands behind a `#` was dropped, and the rest acted on: the removal of one timer removed
/// another.
#[test]
fn a_target_that_is_no_path_is_refused_and_nothing_of_it_done() {
    let directory = Directory::new();
    let server = Server::with(&directory.0.join("data"), &["--allow-private-targets"]);
    let mut client = server.client();
    let set = r#"{"in":"1h","target":{"url":"http://127.0.0.1:9/"}}"#;
    client
        .json("PUT", "/v1/queues/q/timers/order", set)
        .expect(201);
    let before = client.get("/v1/queues/q/timers").expect(200);
    let length = set.len();
    for method in ["GET", "PUT", "PATCH", "DELETE", "POST", "HEAD", "OPTIONS"] {
        for target in [
            "/v1/queues/q/timers/order#2",
            "/v1/queues/q/timers/order#",
            "/v1/queues/q/timers/order?only=pending#2",
            "/v1/queues/q/timers/order:fire#2",
            "http://localhost/v1/queues/q/timers/order#2",
            "/v1/queues/q/timers/a<b",
            "/v1/queues/q/timers/a>b",
            "/v1/queues/q/timers/a`b",
            "v1/queues/q/timers/order",
            "ftp://localhost/v1/queues/q/timers/order",
            "localhost:80",
            "#",
            "?",
        ] {
            let request = format!(
                "{method} {target} HTTP/1.1\r\nhost: localhost\r\n\
                 content-type: application/json\r\ncontent-length: {length}\r\n\r\n{set}{SMUGGLED}"
            );
            let answers = answers(&server, request.as_bytes(), Cut::Whole);
            let [refused] = &answers[..] else {
                panic!("{method} {target}: {answers:?}")
            };
            assert_eq!(
                refused.problem(),
                (400, "malformed".into()),
                "{method} {target}"
            );
        }
    }
    assert_eq!(client.get("/v1/queues/q/timers").expect(200), before);
    let whole = client.send("OPTIONS", "*", &[], b"");
    assert_eq!(whole.status, 204);
    // What no client has to escape is a name like any other.
    for (key, name) in [
        ("a|b", "a|b"),
        ("a\"{b}", "a\"{b}"),
        ("[a]^\\", "[a]^\\"),
        ("ü", "ü"),
    ] {
        let path = format!("/v1/queues/q/timers/{key}");
        let answer = client.json("PUT", &path, set).expect(201);
        assert_eq!(answer["key"], name);
    }
}

/// HTTP/1.0 has no chunks, so what has no length ends with the connection; the answer said that it
/// goes on.
#[test]
fn an_answer_without_a_length_says_to_http_1_0_that_it_is_the_last() {
    let directory = Directory::new();
    let server = Server::with(&directory.0.join("data"), &["--allow-private-targets"]);
    let mut client = server.client();
    // More than is read and written at a time, and than is held back for the sake of its length.
    let set =
        json!({"in": "1h", "target": {"url": "http://127.0.0.1:9/"}, "body": "x".repeat(2_000)});
    for key in 0..100 {
        let path = format!("/v1/queues/q/timers/{key}");
        client.json("PUT", &path, &set.to_string()).expect(201);
    }
    for (path, is_last) in [
        ("/v1/queues/q/timers?bodies=text", true),
        ("/healthz", false),
    ] {
        let request = format!("GET {path} HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        let mut stream = BufReader::new(stream);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_until(b'\n', &mut head).unwrap();
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        assert_eq!(head.contains("connection: close"), is_last, "{path} {head}");
        assert_eq!(
            head.contains("connection: keep-alive"),
            !is_last,
            "{path} {head}"
        );
    }
}

/// Who had sent all and closed that direction got no answer, and whether the request was done was left to
/// chance.
#[test]
fn who_closes_one_direction_after_a_request_gets_the_answer() {
    let directory = Directory::new();
    let server = Server::with(&directory.0.join("data"), &["--allow-private-targets"]);
    let set = r#"{"in":"1h","target":{"url":"http://127.0.0.1:9/"}}"#;
    for number in 0..20 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!(
            "PUT /v1/queues/q/timers/{number} HTTP/1.1\r\nhost: localhost\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{set}",
            set.len()
        );
        stream.write_all(request.repeat(2).as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut stream = BufReader::new(stream);
        for status in [201, 200] {
            assert_eq!(read_answer(&mut stream, false).unwrap().status, status);
        }
        let mut rest = Vec::new();
        assert_eq!(stream.read_to_end(&mut rest).unwrap(), 0);
    }
}

/// The request is known by then, and is what the refusal answers.
#[test]
fn what_is_smuggled_in_a_body_in_doubt_is_never_answered() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let chunked = "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    for path in ["/v1/queues/q/timers/k", "/nothing"] {
        let head = format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\n{chunked}");
        for body in [
            "2\n{}\r\n0\r\n\r\n",
            "2\r\n{}\n0\r\n\r\n",
            "2\r\n{} \r\n0\r\n\r\n",
            "+2\r\n{}\r\n0\r\n\r\n",
            "2 ;x\r\n{}\r\n0\r\n\r\n",
            "2\r\n{}\r\n0\r\nx : y\r\n\r\n",
            "2\r\n{}\r\n0\n\n",
        ] {
            let request = format!("{head}{body}{SMUGGLED}");
            for cut in [Cut::Whole, Cut::At(head.len() + 1), Cut::EveryByte] {
                let answers = answers(&server, request.as_bytes(), cut);
                let [refused] = &answers[..] else {
                    panic!("{path} {body:?} {cut:?}: {answers:?}")
                };
                let status = if path == "/nothing" { 404 } else { 400 };
                assert_eq!(refused.problem().0, status, "{path} {body:?} {cut:?}");
            }
        }
    }
}

#[test]
fn requests_in_due_form_are_answered_however_they_are_cut() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let requests = [
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "POST /nothing HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n\
         5;x=y\r\nGET /\r\n0\r\nt: x\r\n\r\n",
        "POST /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\nGET /",
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    ];
    let all = requests.concat();
    let offsets = (0..all.len()).step_by(7).map(Cut::At);
    for cut in offsets.chain([Cut::Whole, Cut::EveryByte]) {
        let answers = answers(&server, all.as_bytes(), cut);
        let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, [200, 404, 404, 200], "{cut:?}");
    }
}

/// A path with a broken escape is a name to one reader and an error to another.
#[test]
fn a_broken_escape_or_host_is_refused_and_costs_no_other_request() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    for path in [
        "/v1/queues/q/timers/100%",
        "/v1/queues/q/timers/a%2",
        "/v1/queues/q/timers/a%zz",
        "/v1/queues/q/timers/a%2gb",
        "/v1/queues/%/timers",
        "/v1/queues/q/timers?prefix=%",
        "/v1/queues/q/timers?prefix=%f",
        "/healthz?%",
    ] {
        let refused = client.get(path);
        assert_eq!(refused.problem(), (400, "malformed".into()), "{path}");
        assert_eq!(refused.header("connection"), None, "{path}");
    }
    for host in [
        "a b",
        "user@localhost",
        "localhost:port",
        "localhost/x",
        "[::1",
        "",
        ":80",
    ] {
        let request = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\n\r\n");
        let refused = client.exchange(request.as_bytes(), false).unwrap();
        assert_eq!(refused.problem(), (400, "malformed".into()), "{host}");
    }
}
