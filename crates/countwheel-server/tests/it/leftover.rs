//! What a refused request leaves on its connection costs no other request.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::{Answer, Directory, Server, pause, read_answer};

/// A connection by hand.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn to(server: &Server) -> Self {
        let stream = TcpStream::connect(&server.address).unwrap();
        let connection = Self(BufReader::new(stream));
        connection.waits(Duration::from_secs(10));
        connection
    }

    /// How long it waits for an answer.
    fn waits(&self, patience: Duration) {
        let stream = self.0.get_ref();
        stream.set_read_timeout(Some(patience)).unwrap();
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn answer(&mut self) -> Answer {
        read_answer(&mut self.0, false).unwrap()
    }

    /// Whether the other side has closed it, and nothing was left.
    fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        rest.is_empty()
    }
}

/// What is refused without a look at its body.
const REFUSED: [(&str, &str, u16); 6] = [
    ("POST", "/nothing", 404),
    ("PUT", "/v1/queues/q/timers/", 400),
    ("PUT", "/healthz", 405),
    ("PUT", "/v1/queues/q/timers/k%ff", 400),
    ("DELETE", "/v1/queues/q/timers/k", 404),
    ("POST", "/v1/queues/q/timers/k?action=nothing", 404),
];

fn head(server: &Server, (method, path): (&str, &str), more: &str) -> String {
    let host = &server.address;
    format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{more}\r\n")
}

#[test]
fn the_next_request_after_one_that_was_refused_is_answered() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let next = head(&server, ("GET", "/healthz"), "");
    for (method, path, status) in REFUSED {
        let chunked = "transfer-encoding: chunked\r\n";
        let half = vec![b'7'; 4_000];
        let half_chunk = [b"fa0\r\n", &half[..], b"\r\n"].concat();
        for (framing, first, second) in [
            ("content-length: 8000\r\n", half.clone(), half.clone()),
            (
                chunked,
                half_chunk.clone(),
                [&half_chunk[..], b"0\r\n\r\n"].concat(),
            ),
        ] {
            let mut connection = Connection::to(&server);
            // Twice on one connection, and each body comes in two pieces.
            for _ in 0..2 {
                connection.send(head(&server, (method, path), framing).as_bytes());
                connection.send(&first);
                pause();
                connection.send(&second);
                connection.send(next.as_bytes());
                let refused = connection.answer();
                assert_eq!(refused.status, status, "{method} {path} {framing}");
                assert_eq!(refused.header("connection"), None, "{method} {path}");
                assert_eq!(connection.answer().status, 200, "{method} {path} {framing}");
            }
        }
    }
}

/// The answer arrives, whatever is still sent, and says that it is the last.
#[test]
fn a_body_that_is_too_long_to_be_read_for_nothing_ends_the_connection_with_notice() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let long = vec![b'7'; 4 << 20];
    for (path, status) in [("/nothing", 404), ("/v1/queues/q/timers/k", 413)] {
        let mut connection = Connection::to(&server);
        let framing = format!("content-length: {}\r\n", long.len());
        connection.send(head(&server, ("PUT", path), &framing).as_bytes());
        connection.send(&long);
        let refused = connection.answer();
        assert_eq!(refused.status, status);
        assert_eq!(refused.header("connection"), Some("close"));
        assert!(connection.is_closed());
    }
}

/// Who announces a body and does not send it gets the answer within seconds, and loses the
/// connection; who waits to be asked for it is answered at once.
#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    for (expects, most) in [
        ("", Duration::from_secs(6)),
        ("expect: 100-continue\r\n", Duration::from_millis(900)),
    ] {
        let mut connection = Connection::to(&server);
        connection.waits(most);
        let framing = format!("content-length: 100\r\n{expects}");
        connection.send(head(&server, ("PUT", "/nothing"), &framing).as_bytes());
        let refused = connection.answer();
        assert_eq!(refused.status, 404);
        assert_eq!(refused.header("connection"), Some("close"));
    }
}

/// What another reader may take for something else is refused, with a token as well.
#[test]
fn a_request_that_can_be_read_in_two_ways_is_refused() {
    let directory = Directory::new();
    let token = directory.0.join("token");
    std::fs::write(&token, "secret").unwrap();
    let data = directory.0.join("data");
    let server = Server::with(&data, &["--token-file", token.to_str().unwrap()]);
    let host = format!("host: {}", server.address);
    for (line, headers, status) in [
        ("GET /healthz HTTP/1.1", "", 400),
        ("GET /healthz HTTP/1.0", "", 200),
        (
            "GET /healthz HTTP/1.1",
            &*format!("{host}\r\n{host}\r\n"),
            400,
        ),
        (
            "GET http://elsewhere/healthz HTTP/1.1",
            &*format!("{host}\r\n"),
            400,
        ),
        (
            &*format!("GET http://{}/healthz HTTP/1.1", server.address),
            &*format!("{host}\r\n"),
            200,
        ),
        (
            "GET /healthz HTTP/1.1",
            &*format!("{host}\r\nexpect: tea\r\n"),
            417,
        ),
        (
            "GET /healthz HTTP/1.1",
            &*format!("{host}\r\ncontent-encoding: gzip\r\n"),
            415,
        ),
        (
            "GET /healthz HTTP/1.1",
            &*format!("{host}\r\ncontent-encoding: identity\r\n"),
            200,
        ),
    ] {
        let mut connection = Connection::to(&server);
        connection.send(format!("{line}\r\n{headers}\r\n").as_bytes());
        assert_eq!(connection.answer().status, status, "{line} {headers}");
    }
}
