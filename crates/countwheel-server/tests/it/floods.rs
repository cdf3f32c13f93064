//! Floods: many connections that keep the service waiting, and bodies that are held.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};

use crate::descriptors::limited;
use crate::support::{Directory, PATIENCE, Server, program};

/// An answer within this is at once, on a machine that does other things as well. The bound that is
/// held by hand is 100 ms; a place that was waited for took 5 s.
const AT_ONCE: Duration = Duration::from_secs(2);
/// More answers than the buffers of the system hold.
const UNREAD_ANSWERS: usize = 1_000;
const SMALL_BUFFER: u32 = 4_096;

fn address(number: usize) -> IpAddr {
    let [.., high, low] = u32::try_from(number + 1).unwrap().to_be_bytes();
    Ipv4Addr::new(127, 0, high, low).into()
}

async fn connect(server: &str, from: IpAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(SMALL_BUFFER).unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(server.parse().unwrap()).await.unwrap()
}

/// What keeps the service waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Idle,
    HalfHead,
    Unread,
}

/// A connection of that kind.
async fn held(server: &str, from: IpAddr, kind: Kind) -> TcpStream {
    let mut stream = connect(server, from).await;
    let sent = match kind {
        Kind::Idle => String::new(),
        Kind::HalfHead => "GET /healthz HTTP/1.1\r\nhost: local".to_owned(),
        Kind::Unread => "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(UNREAD_ANSWERS),
    };
    // Nobody may read it any more.
    let sending = stream.write_all(sent.as_bytes());
    drop(timeout(Duration::from_millis(20), sending).await);
    stream
}

/// What is answered on a connection of its own, and how long that took.
async fn ask(server: &str, from: IpAddr, head: &str, body: &[u8]) -> (String, Duration) {
    let began = Instant::now();
    let mut stream = connect(server, from).await;
    let length = body.len();
    let head = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let request = [head.as_bytes(), body].concat();
    stream.write_all(&request).await.unwrap();
    let answer = timeout(PATIENCE, all_of(stream)).await.unwrap();
    (answer, began.elapsed())
}

/// A figure of the metrics.
async fn figure(server: &str, name: &str) -> usize {
    let (answer, _) = ask(server, address(900), "GET /metrics", b"").await;
    let begins = format!("countwheel_{name} ");
    let line = answer.lines().find_map(|line| line.strip_prefix(&begins));
    line.and_then(|value| value.parse().ok()).unwrap()
}

/// What is still to be read.
async fn all_of(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap_or_default();
    String::from_utf8_lossy(&answer).into_owned()
}

fn is(answer: &str, status: u16) -> bool {
    answer.starts_with(&format!("HTTP/1.1 {status} "))
}

/// All places taken by callers who were waited for, nobody else was answered, and health neither. With
/// 64 files, forty half heads were enough.
#[tokio::test]
async fn who_keeps_the_service_waiting_makes_room_for_who_does_not() {
    for limit in [64, 128] {
        let directory = Directory::new();
        let server = Server::spawn(limited(limit, &directory.0.join("data")));
        for kind in [Kind::HalfHead, Kind::Unread, Kind::Idle] {
            for addresses in [1, 100] {
                let mut flood = Vec::new();
                for number in 0..100 {
                    let from = address(number % addresses);
                    flood.push(held(&server.address, from, kind).await);
                }
                // A caller that asks for a thousand answers gets some, and may be refused the others.
                let others = (kind != Kind::Unread).then_some("/v1/queues");
                for path in ["/healthz", "/readyz", "/metrics"]
                    .into_iter()
                    .chain(others)
                {
                    let head = format!("GET {path}");
                    let (answer, took) = ask(&server.address, address(0), &head, b"").await;
                    assert!(is(&answer, 200), "{limit} {kind:?} {path}: {answer}");
                    assert!(
                        took < AT_ONCE,
                        "{limit} {kind:?} {addresses} {path}: {took:?}"
                    );
                }
            }
        }
        assert!(server.stop().success());
    }
}

/// Requests under way that no caller holds up: the address that has them is refused, health aside,
/// and nobody else.
#[tokio::test]
async fn an_address_with_all_its_places_at_work_is_refused_and_nobody_else() {
    let directory = Directory::new();
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "ulimit -n 96 && exec \"$0\" dev --listen 127.0.0.1:0"])
        .arg(program().get_program())
        .env("TMPDIR", &directory.0);
    let server = Server::spawn(command);
    let mut flood = Vec::new();
    for _ in 0..60 {
        flood.push(under_way(&server.address, address(0), Behind::Nothing).await);
    }
    for head in ["GET /healthz", "GET /metrics", "GET /readyz"] {
        let (answer, took) = ask(&server.address, address(0), head, b"").await;
        assert!(
            is(&answer, 200) && took < AT_ONCE,
            "{head} {took:?} {answer}"
        );
    }
    let (refused, took) = ask(&server.address, address(0), "GET /v1/queues", b"").await;
    assert!(is(&refused, 429) && took < AT_ONCE, "{took:?} {refused}");
    assert!(refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
    assert!(refused.contains("\r\nconnection: close\r\n"), "{refused}");
    let (other, took) = ask(&server.address, address(1), "GET /v1/queues", b"").await;
    assert!(is(&other, 200) && took < AT_ONCE, "{took:?} {other}");
}

/// How it is said for whom a connection, or a request on it, is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Behind {
    /// It is the peer's own.
    Nothing,
    /// By `X-Forwarded-For`.
    Forwarding(&'static str),
    /// By the PROXY protocol.
    Proxying(&'static str),
}

impl Behind {
    fn preface(self) -> String {
        match self {
            Self::Proxying(caller) => format!("PROXY TCP4 {caller} 10.0.0.9 4711 80\r\n"),
            Self::Nothing | Self::Forwarding(_) => String::new(),
        }
    }

    fn header(self) -> String {
        match self {
            Self::Forwarding(caller) => format!("x-forwarded-for: {caller}\r\n"),
            Self::Nothing | Self::Proxying(_) => String::new(),
        }
    }
}

/// A connection with a request that takes the service long.
async fn under_way(server: &str, from: IpAddr, behind: Behind) -> TcpStream {
    let mut stream = connect(server, from).await;
    let request = format!(
        "{}POST /echo?delay=20000 HTTP/1.1\r\nhost: localhost\r\n{}content-length: 0\r\n\r\n",
        behind.preface(),
        behind.header()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

fn behind_a_proxy(directory: &Directory, arguments: &[&str]) -> Server {
    let mut command = program();
    command
        .args(["dev", "--listen", "127.0.0.1:0"])
        .args(["--trusted-proxy", "127.0.0.1/32"])
        .args(["--trusted-proxy", "10.0.0.0/8"])
        .args(arguments)
        .env("TMPDIR", &directory.0);
    Server::spawn(command)
}

#[tokio::test]
async fn a_trusted_proxy_says_who_calls_and_nobody_else_does() {
    let directory = Directory::new();
    let server = behind_a_proxy(&directory, &["--connections-per-address", "2"]);
    let proxy = address(0);
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(under_way(&server.address, proxy, Behind::Forwarding("192.0.2.1")).await);
    }
    // By then both are under way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let queues = "GET /v1/queues HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    for (from, preface, forwarded, status) in [
        (proxy, "", "x-forwarded-for: 192.0.2.1\r\n", 429),
        (
            proxy,
            "",
            "x-forwarded-for: 6.6.6.6, 192.0.2.1, 10.0.0.9\r\n",
            429,
        ),
        (proxy, "", "x-forwarded-for: 192.0.2.1, 192.0.2.2\r\n", 200),
        (proxy, "PROXY TCP4 192.0.2.1 10.0.0.9 4711 80\r\n", "", 429),
        (proxy, "PROXY TCP4 192.0.2.2 10.0.0.9 4711 80\r\n", "", 200),
        (
            proxy,
            "PROXY TCP4 192.0.2.2 10.0.0.9 4711 80\r\n",
            "x-forwarded-for: 192.0.2.1\r\n",
            200,
        ),
        (
            proxy,
            "\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0cAAAA\x0a\0\0\x09\x12\x67\0\x50",
            "x-forwarded-for: 192.0.2.1\r\n",
            200,
        ),
        (address(1), "", "x-forwarded-for: 192.0.2.1\r\n", 200),
        (
            address(1),
            "PROXY TCP4 192.0.2.2 10.0.0.9 4711 80\r\n",
            "",
            400,
        ),
    ] {
        let mut stream = connect(&server.address, from).await;
        let request = format!("{preface}{queues}{forwarded}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = timeout(PATIENCE, all_of(stream)).await.unwrap();
        assert!(
            is(&answer, status),
            "{from} {preface:?} {forwarded}: {answer}"
        );
    }
    // Health is for everybody.
    let mut stream = connect(&server.address, proxy).await;
    let health = queues.replace("/v1/queues", "/healthz");
    let request = format!("{health}x-forwarded-for: 192.0.2.1\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    assert!(is(&all_of(stream).await, 200));
}

/// One caller behind a proxy took all places but a few, and then those of the others.
#[tokio::test]
async fn a_caller_behind_a_proxy_has_no_more_places_than_any_other() {
    let directory = Directory::new();
    let limits = ["--connections", "64", "--connections-per-address", "6"];
    let server = behind_a_proxy(&directory, &limits);
    let proxy = address(0);
    let other = Behind::Proxying("192.0.2.2");
    let mut others = Vec::new();
    for _ in 0..4 {
        let mut stream = connect(&server.address, proxy).await;
        // One in the middle of a body, as far as it has come.
        let head = format!(
            "{}PUT /v1/queues/q/timers/k HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n\
             content-type: application/json\r\ncontent-length: 5\r\n\r\n",
            other.preface()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut line = [0; 25];
        stream.read_exact(&mut line).await.unwrap();
        assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
        others.push(stream);
    }
    let one = Behind::Proxying("192.0.2.1").preface();
    let health = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for kind in ["", "GET /healthz HTTP/1.1\r\nhost", health] {
        let mut flood = Vec::new();
        for _ in 0..200 {
            let mut stream = connect(&server.address, proxy).await;
            let sent = format!("{one}{kind}");
            stream.write_all(sent.as_bytes()).await.unwrap();
            flood.push(stream);
        }
        // On a loaded machine the end of a connection takes its time to come.
        for _ in 0..20 {
            let mut open = Vec::new();
            for mut stream in flood {
                let end = timeout(Duration::from_millis(20), async {
                    let mut piece = [0; 4_096];
                    while stream.read(&mut piece).await.is_ok_and(|length| length > 0) {}
                });
                if end.await.is_err() {
                    open.push(stream);
                }
            }
            flood = open;
            if flood.len() <= 6 {
                break;
            }
        }
        assert!(flood.len() <= 6, "{kind:?}: {} are open", flood.len());
    }
    let figure = |name| figure(&server.address, name);
    assert!(figure("connections_closed_for_room_total").await >= 500);
    assert!((5..=12).contains(&figure("connections").await));
    assert_eq!(figure("connections_in_reserve").await, 0);
    for mut stream in others {
        stream.write_all(b"{\"a\":").await.unwrap();
        let mut line = [0; 13];
        stream.read_exact(&mut line).await.unwrap();
        assert_eq!(&line, b"HTTP/1.1 400 ");
    }
}

/// Behind a proxy the newest were refused, and those of which nothing came any more stayed.
#[tokio::test]
async fn what_does_not_go_on_makes_room_whoever_it_comes_through() {
    for behind in [
        Behind::Nothing,
        Behind::Forwarding("192.0.2.1"),
        Behind::Proxying("192.0.2.1"),
    ] {
        let directory = Directory::new();
        let server = behind_a_proxy(&directory, &["--connections-per-address", "4"]);
        let from = address(usize::from(behind == Behind::Nothing));
        let mut held = Vec::new();
        for _ in 0..6 {
            let mut stream = connect(&server.address, from).await;
            let head = format!(
                "{}PUT /v1/queues/q/timers/k HTTP/1.1\r\nhost: localhost\r\n{}expect: 100-continue\r\n\
                 content-type: application/json\r\ncontent-length: 1000\r\n\r\n",
                behind.preface(),
                behind.header()
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut line = [0; 25];
            stream.read_exact(&mut line).await.unwrap();
            assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n", "{behind:?}");
            held.push(stream);
        }
        for (number, mut stream) in held.into_iter().enumerate() {
            let end = timeout(Duration::from_millis(50), stream.read(&mut [0; 1])).await;
            assert_eq!(end.is_ok(), number < 2, "{behind:?} {number} {end:?}");
        }
    }
}

fn set_of(bytes: usize) -> Vec<u8> {
    let body = json!({
        "in": "1h",
        "target": {"url": "http://127.0.0.1:9/"},
        "content_type": "text/plain",
        "body": "7".repeat(bytes),
    });
    body.to_string().into_bytes()
}

/// A connection that has sent most of a large body.
async fn holding(server: &str, from: IpAddr, key: usize) -> TcpStream {
    let body = set_of(900_000);
    let mut stream = connect(server, from).await;
    let length = body.len();
    let head = format!(
        "PUT /v1/queues/q/timers/{key} HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let sent = [head.as_bytes(), &body[..length - 100]].concat();
    drop(timeout(Duration::from_millis(500), stream.write_all(&sent)).await);
    stream
}

/// Every body had a MiB, and as many connections as there were held one each.
#[tokio::test]
async fn bodies_under_way_have_so_much_memory_in_all() {
    let directory = Directory::new();
    let server = Server::with(
        &directory.0.join("data"),
        &["--allow-private-targets", "--body-memory", "4"],
    );
    let mut held = Vec::new();
    let refused = loop {
        // One caller has three quarters at most.
        let from = address(held.len() % 2);
        let mut stream = holding(&server.address, from, held.len()).await;
        // By then all of it has come, or the answer.
        let mut line = [0; 13];
        match timeout(Duration::from_millis(300), stream.read_exact(&mut line)).await {
            Ok(_) => break line,
            Err(_) => held.push(stream),
        }
        assert!(held.len() <= 4, "more is held than there is memory for");
    };
    assert_eq!(&refused, b"HTTP/1.1 429 ");
    let taken = figure(&server.address, "request_body_bytes").await;
    assert!((1 << 20..=4 << 20).contains(&taken), "{taken}");
    let set = |key, body| ask(&server.address, address(2), key, body);
    let (large, small) = (set_of(900_000), set_of(5_000));
    let (refused, _) = set("PUT /v1/queues/q/timers/large", &large).await;
    assert!(is(&refused, 429), "{refused}");
    assert!(refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
    let (taken, _) = set("PUT /v1/queues/q/timers/small", &small).await;
    assert!(is(&taken, 201), "{taken}");
    drop(held);
    for _ in 0..100 {
        let (taken, _) = set("PUT /v1/queues/q/timers/large", &large).await;
        if is(&taken, 201) {
            assert_eq!(figure(&server.address, "request_body_bytes").await, 0);
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("what was held is not free again");
}

/// A page was one piece, made whole for whoever asked and kept until it was read.
#[tokio::test]
async fn a_page_that_is_not_read_is_not_kept_whole() {
    const TIMERS: usize = 300;
    const UNREAD: usize = 40;
    let directory = Directory::new();
    let arguments = ["--allow-private-targets", "--log-level", "warn"];
    let server = Server::with(&directory.0.join("data"), &arguments);
    let mut client = server.client();
    let header = "7".repeat(8_000);
    for key in 0..TIMERS {
        let body = json!({
            "in": "1h",
            "target": {"url": "http://127.0.0.1:9/", "headers": {"x": header}},
        });
        let path = format!("/v1/queues/q/timers/{key}");
        assert_eq!(client.json("PUT", &path, &body.to_string()).status, 201);
    }
    let page = "/v1/queues/q/timers?limit=1000";
    let whole = client.get(page);
    assert_eq!(whole.header("transfer-encoding"), Some("chunked"));
    let whole = whole.json();
    let (mut items, mut after) = (Vec::new(), String::new());
    loop {
        let page = client
            .get(&format!("/v1/queues/q/timers?limit=7{after}"))
            .expect(200);
        items.extend_from_slice(page["items"].as_array().unwrap());
        let Some(next) = page["next"].as_str() else {
            break;
        };
        after = format!("&after={next}");
    }
    assert_eq!(whole["items"].as_array().unwrap(), &items);
    assert_eq!((items.len(), &whole["next"]), (TIMERS, &json!(null)));
    let part = client.get("/v1/queues/q/timers?limit=299").expect(200);
    assert_eq!(part["items"].as_array().unwrap()[..], items[..299]);
    assert!(part["next"].is_string() && part.get("unreadable").is_none());

    let before = resident(&server);
    let mut unread = Vec::new();
    for _ in 0..UNREAD {
        let mut stream = connect(&server.address, address(0)).await;
        let request = format!("GET {page} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        unread.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    // Each page has 2.4 MB.
    let more = resident(&server).saturating_sub(before);
    assert!(more < 48 << 10, "{more} KiB");
}

/// How much memory of the machine a process has, in KiB.
fn resident(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.unwrap().split_whitespace().nth(1).unwrap();
    number.parse().unwrap()
}

/// Asks for health so often, once every few milliseconds, and says how long it took at the most, and
/// as a rule.
async fn health(server: &str, from: IpAddr, times: usize) -> (Duration, Duration) {
    let mut took = Vec::new();
    for _ in 0..times {
        let (answer, one) = ask(server, from, "GET /healthz", b"").await;
        assert!(is(&answer, 200), "{answer}");
        took.push(one);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    took.sort();
    (took[took.len() - 1], took[took.len() / 2])
}

/// The whole flood, by hand: `cargo test --release -p countwheel-server --test it -- --ignored
/// --nocapture the_whole_flood`. Prints what it measures; needs 20,000 open files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes, and 20,000 open files"]
async fn the_whole_flood() {
    let directory = Directory::new();
    let arguments = ["--allow-private-targets", "--log-level", "warn"];
    let server = Server::with(&directory.0.join("data"), &arguments);
    for key in 0..2_000 {
        let path = format!("PUT /v1/queues/q/timers/{key}");
        let (set, _) = ask(&server.address, address(0), &path, &set_of(100)).await;
        assert!(is(&set, 201), "{set}");
    }
    let bound = Duration::from_millis(100);
    let before = resident(&server);
    for addresses in [1, 1_000] {
        let mut peak = before;
        let mut flood = Vec::new();
        for (kind, number) in [
            (Kind::Idle, 5_000),
            (Kind::HalfHead, 1_000),
            (Kind::Unread, 1_000),
        ] {
            // While it comes, and when it is there.
            let coming = async {
                for number in 0..number {
                    let from = address(number % addresses);
                    flood.push(held(&server.address, from, kind).await);
                }
            };
            let asking = health(&server.address, address(0), 100);
            let ((), (most, median)) = tokio::join!(coming, asking);
            eprintln!(
                "{addresses} addresses, {kind:?} coming: at most {most:?}, median {median:?}"
            );
            let (most, median) = health(&server.address, address(0), 100).await;
            eprintln!("{addresses} addresses, {kind:?} there: at most {most:?}, median {median:?}");
            assert!(most < bound, "{kind:?} {most:?}");
            eprintln!("{} KiB resident", resident(&server));
            peak = peak.max(resident(&server));
        }
        for key in 0..800 {
            let from = address(key % addresses);
            flood.push(holding(&server.address, from, key).await);
            peak = peak.max(resident(&server));
        }
        let (most, median) = health(&server.address, address(0), 100).await;
        eprintln!("{addresses} addresses, bodies held: at most {most:?}, median {median:?}");
        drop(flood);
        let mut after = Vec::new();
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            after.push(resident(&server));
        }
        eprintln!("KiB resident: {before} before, {peak} at the peak, then {after:?}");
    }
    assert!(server.stop().success());
}
