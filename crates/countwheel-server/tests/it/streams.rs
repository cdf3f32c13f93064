//! HTTP/2 on the listening side: the same answers, and callers that mean no good.

use std::time::Duration;

use axum::http::{HeaderMap, Method, Request, Version};
use h2::client::{ResponseFuture, SendRequest};
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::{Client, Directory, PATIENCE, Server};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn start(arguments: &[&str]) -> (Directory, Server) {
    let directory = Directory::new();
    let server = Server::with(&directory.0.join("data"), arguments);
    (directory, server)
}

/// A caller of HTTP/2, and what drives its connection.
struct Caller {
    send: SendRequest<Bytes>,
    drives: JoinHandle<Result<(), h2::Error>>,
    address: String,
}

/// What was answered.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

impl Caller {
    async fn of(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        Self {
            send,
            drives: tokio::spawn(connection),
            address: address.to_owned(),
        }
    }

    fn request(&self, method: &str, path: &str) -> axum::http::request::Builder {
        let uri = format!("http://{}{path}", self.address);
        Request::builder().method(method).uri(uri)
    }

    /// Begins a request of JSON, whose answer may come.
    async fn begin(
        &self,
        request: Request<()>,
        body: Option<&str>,
    ) -> Result<ResponseFuture, h2::Error> {
        let mut send = self.send.clone().ready().await?;
        let (answer, mut stream) = send.send_request(request, body.is_none())?;
        if let Some(body) = body {
            stream.send_data(Bytes::copy_from_slice(body.as_bytes()), true)?;
        }
        Ok(answer)
    }

    async fn ask(&self, request: Request<()>, body: Option<&str>) -> Result<Answer, h2::Error> {
        let answer = self.begin(request, body).await?;
        timeout(PATIENCE, whole(answer)).await.expect("an answer")
    }

    async fn json(&self, method: &str, path: &str, body: &str) -> Answer {
        let request = self.request(method, path);
        let request = request.header("content-type", "application/json");
        self.ask(request.body(()).unwrap(), Some(body))
            .await
            .unwrap()
    }

    async fn get(&self, path: &str) -> Answer {
        let request = self.request("GET", path).body(()).unwrap();
        self.ask(request, None).await.unwrap()
    }
}

async fn whole(answer: ResponseFuture) -> Result<Answer, h2::Error> {
    let (head, mut stream) = answer.await?.into_parts();
    let mut body = Vec::new();
    while let Some(piece) = stream.data().await {
        let piece = piece?;
        stream.flow_control().release_capacity(piece.len())?;
        body.extend_from_slice(&piece);
    }
    Ok(Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        body,
    })
}

#[tokio::test]
async fn every_request_is_answered_as_over_http_1() {
    let (_directory, server) = start(&["--allow-private-targets"]);
    let caller = Caller::of(&server.address).await;
    let mut other = Client::to(&server.address);
    let timer =
        json!({"in": "10d", "target": {"url": "http://127.0.0.1:9/"}, "body": "x".repeat(50_000)});
    for number in 0..40 {
        let path = format!("/v1/queues/q/timers/{number:02}");
        let set = caller.json("PUT", &path, &timer.to_string()).await;
        assert_eq!(set.status, 201, "{set:?}");
        assert!(set.headers.contains_key("etag"));
    }
    for (method, path, body) in [
        ("GET", "/healthz", ""),
        ("HEAD", "/healthz", ""),
        ("GET", "/v1/queues/q/timers/07", ""),
        ("HEAD", "/v1/queues/q/timers/07", ""),
        ("GET", "/v1/queues/q/timers?limit=5", ""),
        // More than fits the windows.
        ("GET", "/v1/queues/q/timers?bodies=text", ""),
        ("GET", "/v1/queues", ""),
        ("GET", "/v1/none", ""),
        ("GET", "/v1/queues/q/timers/%", ""),
        ("GET", "/v1/queues/q/timers/none", ""),
        ("DELETE", "/v1/queues", ""),
        ("OPTIONS", "/v1/queues", ""),
        (
            "POST",
            "/v1/simulate",
            r#"{"retry":{"fixed":1000},"start":"2026-01-01T00:00:00Z"}"#,
        ),
        ("POST", "/v1/simulate", r#"{"retry":7}"#),
        ("POST", "/v1/simulate", ""),
    ] {
        let ours = if body.is_empty() {
            let request = caller.request(method, path).body(()).unwrap();
            caller.ask(request, None).await.unwrap()
        } else {
            caller.json(method, path, body).await
        };
        let theirs = if body.is_empty() {
            other.send(method, path, &[], b"")
        } else {
            other.json(method, path, body)
        };
        assert_eq!(ours.status, theirs.status, "{method} {path}");
        assert_eq!(ours.body, theirs.body, "{method} {path}");
        for name in [
            "content-type",
            "etag",
            "allow",
            "x-content-type-options",
            "retry-after",
        ] {
            let value = ours.headers.get(name).map(|value| value.to_str().unwrap());
            assert_eq!(value, theirs.header(name), "{method} {path} {name}");
        }
        assert!(!ours.headers.contains_key("connection"));
    }
    // Beside each other, on one connection.
    let mut answers = Vec::new();
    for number in 0..100 {
        let path = format!("/v1/queues/q/timers/{:02}", number % 40);
        let request = caller.request("GET", &path).body(()).unwrap();
        let answer = caller.begin(request, None).await.unwrap();
        // One that nobody reads would hold the others up.
        answers.push(tokio::spawn(whole(answer)));
    }
    for answer in answers {
        let answer = timeout(PATIENCE, answer).await.unwrap().unwrap().unwrap();
        assert_eq!((answer.status, &answer.json()["queue"]), (200, &json!("q")));
    }
}

#[tokio::test]
async fn a_request_names_its_host_once_and_asks_for_a_path() {
    let (_directory, server) = start(&[]);
    let caller = Caller::of(&server.address).await;
    let ask = async |uri: &str, host: Option<&str>, method: Method, version| {
        let mut request = Request::builder().method(method).uri(uri).version(version);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let answer = caller.ask(request.body(()).unwrap(), None).await.unwrap();
        let code = answer.json()["code"].as_str().unwrap_or("-").to_owned();
        (answer.status, code)
    };
    let here = format!("http://{}/v1/queues", server.address);
    let (two, get) = (Version::HTTP_2, Method::GET);
    let says = |status, code: &str| (status, code.to_owned());
    assert_eq!(ask(&here, None, get.clone(), two).await, says(200, "-"));
    assert_eq!(
        ask(&here, Some(&server.address), get.clone(), two).await,
        says(200, "-")
    );
    assert_eq!(
        ask(&here, Some("localhost"), get.clone(), two).await,
        says(400, "malformed")
    );
    let elsewhere = "http://evil.example/v1/queues";
    assert_eq!(
        ask(elsewhere, None, get.clone(), two).await,
        says(403, "forbidden")
    );
    // Without an authority, by the host header alone.
    let (one, path) = (Version::HTTP_11, "/v1/queues");
    assert_eq!(
        ask(path, Some("localhost"), get.clone(), one).await,
        says(200, "-")
    );
    assert_eq!(ask(path, None, get, one).await, says(400, "malformed"));
    let tunnel = ask(&server.address, None, Method::CONNECT, two).await;
    assert_eq!(tunnel, says(400, "malformed"));
}

#[tokio::test]
async fn heads_are_bounded_as_in_http_1() {
    let (_directory, server) = start(&[]);
    let caller = Caller::of(&server.address).await;
    let ask = async |headers: usize, length: usize| {
        let mut request = caller.request("GET", "/healthz");
        for number in 0..headers {
            request = request.header(format!("x-{number}"), "v".repeat(length));
        }
        caller.ask(request.body(()).unwrap(), None).await.unwrap()
    };
    // With the host, which comes as the authority.
    assert_eq!(ask(63, 1).await.status, 200);
    let many = ask(64, 1).await;
    assert_eq!(
        (many.status, &many.json()["code"]),
        (431, &json!("head_too_large"))
    );
    assert_eq!(ask(2, 20 << 10).await.status, 431);
    assert_eq!(ask(2, 8 << 10).await.status, 200);
    let most = caller.send.current_max_send_streams();
    assert_eq!(most, 128);
}

#[tokio::test]
async fn a_stop_answers_what_is_under_way() {
    let (_directory, mut server) = start(&["--allow-private-targets"]);
    let caller = Caller::of(&server.address).await;
    assert_eq!(caller.get("/healthz").await.status, 200);
    let body = r#"{"retry":{"fixed":1000},"limit":2}"#;
    let request = caller.request("POST", "/v1/simulate");
    let request = request
        .header("content-type", "application/json")
        .body(())
        .unwrap();
    let mut send = caller.send.clone().ready().await.unwrap();
    let (answer, mut stream) = send.send_request(request, false).unwrap();
    let (first, second) = body.split_at(9);
    stream.send_data(Bytes::from(first), false).unwrap();
    // Behind this one, the other has begun.
    assert_eq!(caller.get("/healthz").await.status, 200);
    server.signal("-TERM");
    // It takes no more, and says so.
    let refused = async {
        while caller.send.clone().ready().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, refused).await.expect("a GOAWAY");
    stream.send_data(Bytes::from(second), true).unwrap();
    let answer = timeout(PATIENCE, whole(answer)).await.unwrap().unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    timeout(PATIENCE, caller.drives)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(server.wait().success());
}

/// Requests that wait for long: leases of an empty queue.
const WAITING: &str = r#"{"wait":"30s"}"#;

async fn pulled(caller: &Caller) {
    let put = caller
        .json("PUT", "/v1/queues/work", r#"{"mode":"pull"}"#)
        .await;
    assert_eq!(put.status, 201, "{put:?}");
}

async fn wait(caller: &Caller) -> Result<ResponseFuture, h2::Error> {
    let request = caller.request("POST", "/v1/queues/work:lease");
    let request = request.header("content-type", "application/json");
    caller.begin(request.body(()).unwrap(), Some(WAITING)).await
}

#[tokio::test]
async fn streams_take_places_as_connections_do() {
    let (_directory, server) = start(&["--connections", "64", "--connections-per-address", "8"]);
    let caller = Caller::of(&server.address).await;
    pulled(&caller).await;
    let mut waiting = Vec::new();
    for _ in 0..7 {
        waiting.push(wait(&caller).await.unwrap());
    }
    // By then all of them wait.
    let refused = async {
        while caller.get("/v1/queues").await.status != 429 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, refused)
        .await
        .expect("all places are taken");
    assert_eq!(caller.get("/v1/queues").await.json()["code"], "overloaded");
    assert_eq!(caller.get("/healthz").await.status, 200);
    drop(waiting);
    let free = async {
        while caller.get("/v1/queues").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, free).await.expect("the places are free");
}

#[tokio::test]
async fn who_gives_requests_up_again_and_again_is_cut_off() {
    let (_directory, server) = start(&[]);
    let caller = Caller::of(&server.address).await;
    pulled(&caller).await;
    let mut begun = 0;
    let cut = async {
        // Dropped, it is given up.
        while wait(&caller).await.is_ok() {
            begun += 1;
            tokio::task::yield_now().await;
            assert!(begun < 100_000);
        }
    };
    timeout(PATIENCE, cut).await.expect("an end");
    assert!(begun > 16, "{begun}");
    assert!(timeout(PATIENCE, caller.drives).await.is_ok());
    assert_eq!(
        Caller::of(&server.address)
            .await
            .get("/v1/queues")
            .await
            .status,
        200
    );
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

#[tokio::test]
async fn a_head_without_an_end_ends_the_connection() {
    let (_directory, server) = start(&[]);
    // A header with a literal name and value, not to be indexed.
    let entry = [&[0, 1, b'x', 100][..], &[b'v'; 100]].concat();
    for (payload, frames) in [(&entry[..], 20_000), (&[], 100_000)] {
        let stream = TcpStream::connect(&server.address).await.unwrap();
        let (mut read, mut write) = stream.into_split();
        let mut begin = [PREFACE, &frame(4, 0, 0, &[])].concat();
        // GET, http, /
        begin.extend(frame(1, 0, 1, &[0x82, 0x86, 0x84]));
        write.write_all(&begin).await.unwrap();
        let sends = tokio::spawn(async move {
            let more = frame(9, 0, 1, payload_of(frames == 20_000)).repeat(100);
            for _ in 0..frames / 100 {
                if write.write_all(&more).await.is_err() {
                    return true;
                }
            }
            false
        });
        let mut all = Vec::new();
        let ended = timeout(PATIENCE, read.read_to_end(&mut all)).await;
        assert!(ended.is_ok(), "{} bytes", payload.len());
        sends.abort();
    }
    assert_eq!(
        Caller::of(&server.address)
            .await
            .get("/healthz")
            .await
            .status,
        200
    );
}

fn payload_of(is_entry: bool) -> &'static [u8] {
    const ENTRY: [u8; 104] = {
        let mut entry = [b'v'; 104];
        entry[0] = 0;
        entry[1] = 1;
        entry[2] = b'x';
        entry[3] = 100;
        entry
    };
    if is_entry { &ENTRY } else { &[] }
}

#[tokio::test]
async fn a_body_that_nobody_reads_stays_within_its_window() {
    let (_directory, server) = start(&["--body-memory", "2"]);
    let caller = Caller::of(&server.address).await;
    // One of which nothing more comes, and others beside it.
    let request = caller.request("PUT", "/v1/queues/q/timers/k");
    let request = request
        .header("content-type", "application/json")
        .body(())
        .unwrap();
    let mut send = caller.send.clone().ready().await.unwrap();
    let (slow, _stream) = send.send_request(request, false).unwrap();
    let long = json!({"retry": {"fixed": 1}, "x": "x".repeat(900_000)}).to_string();
    for _ in 0..4 {
        let answer = caller.json("POST", "/v1/simulate", &long).await;
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (400, &json!("malformed"))
        );
    }
    // A body has ten seconds.
    let slow = timeout(PATIENCE, whole(slow)).await.unwrap().unwrap();
    assert_eq!(
        (slow.status, &slow.json()["code"]),
        (408, &json!("timeout"))
    );
    assert_eq!(caller.get("/healthz").await.status, 200);
}
