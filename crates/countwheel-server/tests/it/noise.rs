//! Whatever bytes come in, the service answers within reason and lives on.

use crate::support::{Directory, Server};

/// Chance that a seed repeats.
struct Random(countwheel_time::Random);

impl Random {
    fn new(seed: u64) -> Self {
        Self(countwheel_time::Random::new(seed))
    }

    fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.draw() % limit as u64).unwrap()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

const PIECES: [&str; 40] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\\",
    "\"in\"",
    "\"at\"",
    "\"by\"",
    "\"target\"",
    "\"url\"",
    "\"http://127.0.0.1:9/\"",
    "\"retry\"",
    "\"fixed\"",
    "\"preset\"",
    "\"wechat\"",
    "\"body\"",
    "\"content_type\"",
    "\"headers\"",
    "\"timeout\"",
    "\"5s\"",
    "\"-1h\"",
    "0",
    "-1",
    "1e400",
    "1.5",
    "99999999999999999999",
    "null",
    "true",
    "\\ud800",
    "\u{0}",
    "\n",
    "ü",
    "\"2026-03-01T12:00:00Z\"",
    "{\"in\":\"1h\",\"target\":{\"url\":\"http://127.0.0.1:9/\"}",
    "\"schedule\"",
    "\"max_attempts\"",
    "\"jitter\"",
];
const PATHS: [&str; 33] = [
    "/",
    "v1",
    "queues",
    "q",
    "timers",
    "k",
    ":fire",
    ":revive",
    ":resend",
    "%00",
    "%FF",
    "%2F",
    "..",
    "?",
    "&",
    "limit=",
    "state=dead",
    "after=1-1",
    "%",
    "=",
    ":",
    "simulate",
    "metrics",
    "due_after=",
    "9",
    "dead",
    "queue",
    "timer",
    "/revive",
    "queue=",
    "key=",
    "name=q",
    "from=",
];
const METHODS: [&str; 8] = [
    "GET", "PUT", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "X",
];

fn path(random: &mut Random) -> String {
    match random.below(4) {
        0 => "/v1/queues/q/timers/k".to_owned(),
        1 => format!("/v1/queues/q/timers/{}", random.pick(&PATHS)),
        2 => "/v1/simulate".to_owned(),
        _ => {
            let pieces = random.below(12);
            (0..pieces).fold("/".to_owned(), |path, _| path + random.pick(&PATHS))
        }
    }
}

fn body(random: &mut Random) -> Vec<u8> {
    if random.below(4) == 0 {
        let length = random.below(200);
        (0..length)
            .map(|_| random.draw().to_le_bytes()[0])
            .collect()
    } else {
        let pieces = random.below(30);
        (0..pieces)
            .flat_map(|_| random.pick(&PIECES).bytes())
            .collect()
    }
}

#[test]
fn random_requests_never_break_the_service() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    let mut random = Random::new(1);
    for round in 0..20_000 {
        let method = random.pick(&METHODS);
        let path = path(&mut random);
        let body = body(&mut random);
        let json = [("content-type", "application/json")];
        let headers = if random.below(8) == 0 {
            &[][..]
        } else {
            &json[..]
        };
        let answer = client.send(method, &path, headers, &body);
        assert!(
            (200..500).contains(&answer.status),
            "round {round}: {method} {path} {:?}: {answer:?}",
            String::from_utf8_lossy(&body)
        );
        if answer.status >= 400 && method != "HEAD" {
            answer.problem();
        }
    }
    client.get("/readyz").expect(200);
    assert!(server.stop().success());
}

#[test]
fn bytes_that_are_no_http_never_break_the_service() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut random = Random::new(2);
    for _ in 0..300 {
        let length = 1 + random.below(300);
        let mut bytes: Vec<u8> = (0..length)
            .map(|_| random.draw().to_le_bytes()[0])
            .collect();
        bytes.extend_from_slice(b"\r\n\r\n");
        if let Some(answer) = server.client().exchange(&bytes, false) {
            assert_eq!(answer.problem().0, 400, "{answer:?}");
        }
    }
    for (request, status) in [
        (
            "GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            400,
        ),
        ("GET / HTTP/1.1\r\nhost: x\r\nx: a\r\n folded\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: x\r\na b: c\r\n\r\n", 400),
    ] {
        let answer = server.client().exchange(request.as_bytes(), false).unwrap();
        assert_eq!(answer.problem(), (status, "malformed".into()), "{request}");
    }
    let many: String = (0..65).map(|n| format!("x-{n}: 1\r\n")).collect();
    let long = format!("x: {}\r\n", "x".repeat(40_000));
    for headers in [many, long] {
        let request = format!("GET / HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        let answer = server.client().exchange(request.as_bytes(), false).unwrap();
        assert_eq!(
            answer.problem(),
            (431, "head_too_large".into()),
            "{request:.200}"
        );
    }
    server.client().get("/readyz").expect(200);
}
