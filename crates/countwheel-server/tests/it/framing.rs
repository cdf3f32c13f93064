//! Requests whose beginning or end leaves doubt. What may stand in a head and a body, cut at every
//! offset, are tests of the state machine; these are about the service around it.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

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
    ] {
        let request = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\n\r\n");
        let refused = client.exchange(request.as_bytes(), false).unwrap();
        assert_eq!(refused.problem(), (400, "malformed".into()), "{host}");
    }
}
