//! The client against servers that are not what they should be: each failure is told apart, none hangs, none fills the memory.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use countwheel_client::events::{Event, EventFilter};
use countwheel_client::worker::{Failure, Job, Worker};
use countwheel_client::{Client, ClientError, Filter, NewTimer, SocketFault, roots};
use countwheel_durable::{Due, Precondition, RetryPolicy};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

/// What a stub does with a request.
#[derive(Clone, Debug)]
enum Does {
    /// Answers with these bytes, and closes.
    Says(String),
    /// Answers with these bytes, and holds the connection open.
    Holds(String),
    /// Answers with the first text, and then with the second without an end.
    Floods(&'static str, &'static str),
}

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

fn json(status: u16, more: &str, body: &str) -> Does {
    let kind = if status < 300 {
        "application/json"
    } else {
        "application/problem+json"
    };
    Does::Says(format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{more}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    ))
}

fn problem(status: u16, code: &str) -> Does {
    json(
        status,
        "",
        &format!(r#"{{"status":{status},"code":"{code}","detail":"no"}}"#),
    )
}

/// A server that does this with its requests, one after the other, and the last with all others.
async fn stub(does: Vec<Does>) -> (String, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (heard, does) = (Heard::default(), Arc::new(Mutex::new(VecDeque::from(does))));
    let hears = heard.clone();
    tokio::spawn(async move {
        while let Ok((peer, _)) = listener.accept().await {
            tokio::spawn(serve(peer, Arc::clone(&does), hears.clone()));
        }
    });
    (url, heard)
}

/// A directory of its own for a test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The path of a file in it, and the URL of a server at a socket of that path.
    fn socket(&self, name: &str) -> (PathBuf, String) {
        let path = self.0.join(name);
        let url = format!("unix:{}", path.display());
        (path, url)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap_or_default();
    }
}

/// The same as [`stub`] at a socket of the file system.
fn stub_at(path: &Path, does: Vec<Does>) -> Heard {
    let listener = UnixListener::bind(path).unwrap();
    let (heard, does) = (Heard::default(), Arc::new(Mutex::new(VecDeque::from(does))));
    let hears = heard.clone();
    tokio::spawn(async move {
        while let Ok((peer, _)) = listener.accept().await {
            tokio::spawn(serve(peer, Arc::clone(&does), hears.clone()));
        }
    });
    heard
}

async fn serve(
    mut peer: impl AsyncRead + AsyncWrite + Unpin,
    does: Arc<Mutex<VecDeque<Does>>>,
    heard: Heard,
) {
    let (mut request, mut chunk) = (Vec::new(), [0; 4_096]);
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lines = head.to_ascii_lowercase();
            let length = lines
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                heard.0.lock().push(text);
                break;
            }
        }
        match peer.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(read) => request.extend_from_slice(&chunk[..read]),
        }
    }
    let next = {
        let mut does = does.lock();
        if does.len() > 1 {
            does.pop_front()
        } else {
            does.front().cloned()
        }
    };
    match next.unwrap() {
        Does::Says(text) => peer.write_all(text.as_bytes()).await.unwrap_or_default(),
        Does::Holds(text) => {
            peer.write_all(text.as_bytes()).await.unwrap_or_default();
            std::future::pending::<()>().await;
        }
        Does::Floods(head, rest) => {
            peer.write_all(head.as_bytes()).await.unwrap_or_default();
            while peer.write_all(rest.as_bytes()).await.is_ok() {}
        }
    }
}

fn client(url: &str) -> Client {
    Client::new(url, Some("t")).unwrap()
}

/// So many retries, without a wait worth the name.
fn retrying(url: &str, retries: u32) -> Client {
    client(url).with_retry(RetryPolicy::fixed(Duration::from_millis(1)).max_retries(retries))
}

fn timer() -> NewTimer {
    NewTimer::to("http://127.0.0.1:1", Due::In(Duration::from_secs(60)))
}

const SET: &str =
    r#"{"id":"tmr-1","revision":7,"due":"2026-03-01T12:00:05.000000Z","replaced":null}"#;

#[tokio::test]
async fn each_failure_is_told_apart() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let page =
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 14\r\n\r\n<html>\n</html>";
    let proxy = "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\nnope";
    let elsewhere = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n{\"queue\":";
    for (does, kind, is_outage, is_unknown) in [
        (Does::Says(page.to_owned()), "foreign", false, true),
        (Does::Says(proxy.to_owned()), "foreign", true, true),
        (Does::Says(elsewhere.to_owned()), "foreign", false, false),
        (Does::Says("SSH-2.0-x\r\n".to_owned()), "broken", true, true),
        (Does::Says(String::new()), "broken", true, true),
        (Does::Says(cut.to_owned()), "broken", true, true),
        (Does::Holds(cut.to_owned()), "silent", true, true),
        (json(200, "", "[]"), "unintelligible", false, true),
        (problem(401, "unauthorized"), "unauthorized", false, false),
        (problem(404, "not_found"), "refused", false, false),
        (problem(503, "unknown"), "refused", true, true),
        (problem(507, "storage_full"), "refused", true, true),
        (problem(507, "quota_exceeded"), "refused", false, false),
    ] {
        let (url, _) = stub(vec![does.clone()]).await;
        let client = client(&url).with_timeout(Duration::from_millis(300));
        let error = client.get("orders", "a").await.unwrap_err();
        assert_eq!(error.kind(), kind, "{does:?}: {error}");
        let found = (error.is_outage(), error.is_unknown());
        assert_eq!(found, (is_outage, is_unknown), "{does:?}: {error}");
    }
    let error = client(&nobody).get("orders", "a").await.unwrap_err();
    assert_eq!(error.kind(), "unreachable");
    let (url, _) = stub(vec![Does::Says(page.to_owned())]).await;
    let told = client(&url)
        .get("orders", "a")
        .await
        .unwrap_err()
        .to_string();
    assert!(
        told.ends_with("answered 200, and not as Countwheel does: \"<html>\""),
        "{told}"
    );
}

#[tokio::test]
async fn an_endless_answer_has_an_end() {
    let (url, _) = stub(vec![Does::Floods(
        "HTTP/1.1 200 OK\r\n",
        "x-endless: y\r\n",
    )])
    .await;
    let error = client(&url).get("orders", "a").await.unwrap_err();
    assert_eq!(error.kind(), "broken", "{error}");
}

#[tokio::test]
async fn a_request_is_made_again_where_that_does_no_harm() {
    let broken = || Does::Says(String::new());
    // A set may be made twice, and its second answer says that it may tell of the first.
    let (url, heard) = stub(vec![broken(), json(201, "", SET)]).await;
    let client = retrying(&url, 3);
    let answer = client
        .set("orders", "a", &timer(), Precondition::None)
        .await
        .unwrap();
    assert!(answer.is_repeated());
    assert_eq!(heard.all().len(), 2);
    assert_eq!(heard.all()[0], heard.all()[1]);
    // Of a refusal for a lack of room nothing was done, so a fire may come again as well.
    let moved = r#"{"revision":8,"old_due":"2026-03-01T12:00:05Z","due":"2026-03-01T12:00:01Z"}"#;
    let (url, heard) = stub(vec![problem(429, "overloaded"), json(202, "", moved)]).await;
    let answer = retrying(&url, 3).fire("orders", "a").await.unwrap();
    assert!(!answer.is_repeated());
    assert_eq!(heard.all().len(), 2);
    // A fire whose answer is lost may have been done.
    let (url, heard) = stub(vec![broken()]).await;
    let error = retrying(&url, 3).fire("orders", "a").await.unwrap_err();
    assert!(error.is_unknown());
    assert_eq!(heard.all().len(), 1);
    // A remove that is made again finds nothing: that may be of the first.
    let (url, heard) = stub(vec![broken(), problem(404, "not_found")]).await;
    let client = retrying(&url, 3);
    let removed = client
        .remove("orders", "a", false, Precondition::None)
        .await;
    assert!(removed.unwrap_err().problem().unwrap().repeated);
    assert_eq!(heard.all().len(), 2);
    // Tries have an end.
    let (url, heard) = stub(vec![broken()]).await;
    assert_eq!(
        retrying(&url, 2)
            .get("orders", "a")
            .await
            .unwrap_err()
            .kind(),
        "broken"
    );
    assert_eq!(heard.all().len(), 3);
}

#[tokio::test]
async fn a_post_is_made_again_with_an_idempotency_key_alone() {
    let lost = || vec![Does::Says(String::new()), json(201, "", SET)];
    let (url, heard) = stub(lost()).await;
    let client = retrying(&url, 3);
    let error = client.post("orders", &timer(), None).await.unwrap_err();
    assert!(error.is_unknown());
    assert_eq!(heard.all().len(), 1);
    let (url, heard) = stub(lost()).await;
    let key = countwheel_client::idempotency_key();
    let posted = retrying(&url, 3).post("orders", &timer(), Some(&key)).await;
    assert_eq!(posted.unwrap().value.revision, 7);
    let header = format!("idempotency-key: \"{key}\"\r\n");
    assert!(heard.all().iter().all(|request| request.contains(&header)));
    assert_eq!(heard.all().len(), 2);
}

#[tokio::test]
async fn pages_follow_one_another() {
    let item = |key: &str| {
        format!(
            r#"{{"queue":"q","key":"{key}","id":"i","revision":1,"state":"pending","created":"2026-03-01T12:00:05Z","due":"2026-03-01T12:00:05Z","target":{{"url":"http://x"}}}}"#
        )
    };
    let page =
        |items: &str, next: &str| json(200, "", &format!(r#"{{"items":[{items}],"next":{next}}}"#));
    let (url, heard) = stub(vec![
        page(&format!("{},{}", item("a"), item("b")), r#""one""#),
        page("", r#""two""#),
        page(&item("c"), "null"),
    ])
    .await;
    let mut timers = client(&url).timers("q", Filter::default()).of(2);
    let mut keys = Vec::new();
    while let Some(timer) = timers.next().await.unwrap() {
        keys.push(timer.key);
    }
    assert_eq!(keys, ["a", "b", "c"]);
    let asked = heard.all();
    let paths: Vec<&str> = asked.iter().map(|it| it.lines().next().unwrap()).collect();
    assert_eq!(
        paths,
        [
            "GET /v1/queues/q/timers?limit=2 HTTP/1.1",
            "GET /v1/queues/q/timers?limit=2&after=one HTTP/1.1",
            "GET /v1/queues/q/timers?limit=2&after=two HTTP/1.1",
        ]
    );
}

#[tokio::test]
async fn a_server_at_a_socket_is_asked_as_any_other() {
    let directory = Directory::new("asked");
    let (path, url) = directory.socket("api.sock");
    let event = "id: 1-0.1.1\nevent: set\ndata: {\"kind\":\"set\"}\n\n";
    let heard = stub_at(
        &path,
        vec![
            json(201, "", SET),
            Does::Says(String::new()),
            json(201, "", SET),
            Does::Holds(format!("{STREAM}{event}")),
        ],
    );
    // What TLS trusts is of no account at a socket.
    let client = retrying(&url, 3).with_tls(roots::public());
    assert_eq!(client.server(), url);
    for is_repeated in [false, true] {
        let (timer, none) = (timer(), Precondition::None);
        let set = client.set("orders", "a", &timer, none).await.unwrap();
        assert_eq!(set.is_repeated(), is_repeated);
    }
    let mut events = client.events(&EventFilter::default());
    assert!(events.next().await.is_ok());
    for request in heard.all() {
        let lines = request.to_ascii_lowercase();
        assert!(lines.contains("\r\nhost: localhost\r\n"), "{request}");
        assert!(
            lines.contains("\r\nauthorization: bearer t\r\n"),
            "{request}"
        );
    }
    let asked = heard.all();
    let paths: Vec<&str> = asked.iter().map(|it| it.lines().next().unwrap()).collect();
    let put = "PUT /v1/queues/orders/timers/a HTTP/1.1";
    assert_eq!(paths, [put, put, put, "GET /v1/events HTTP/1.1"]);
}

#[tokio::test]
async fn a_socket_without_a_server_is_unreachable_until_there_is_one() {
    let directory = Directory::new("unreachable");
    let (path, url) = directory.socket("api.sock");
    let asked = async || client(&url).get("orders", "a").await.unwrap_err();
    let missing = asked().await;
    assert_eq!(
        (missing.kind(), missing.is_unknown()),
        ("unreachable", false)
    );
    let told = missing.to_string();
    assert!(
        told.starts_with(&format!("no server at {url}: No such file")),
        "{told}"
    );
    std::fs::write(&path, "no socket").unwrap();
    assert_eq!(asked().await.kind(), "unreachable");
    std::fs::remove_file(&path).unwrap();
    // Nobody listens on a socket whose process has ended.
    drop(UnixListener::bind(&path).unwrap());
    let told = asked().await.to_string();
    assert!(told.contains("refused"), "{told}");
    std::fs::remove_file(&path).unwrap();
    let _heard = stub_at(
        &path,
        vec![
            problem(404, "not_found"),
            Does::Says("SSH-2.0-x\r\n".to_owned()),
        ],
    );
    assert_eq!(asked().await.kind(), "refused");
    assert_eq!(asked().await.kind(), "broken");
}

#[test]
fn a_path_that_is_none_of_a_socket_is_refused_before_anything_is_sent() {
    let long = format!("unix:/{}", "p".repeat(200));
    for (url, expected) in [
        ("unix:api.sock", SocketFault::Relative),
        ("unix:", SocketFault::Relative),
        ("unix:/run/", SocketFault::Directory),
        ("unix:/run/a\0b", SocketFault::Nul),
        (&long, SocketFault::TooLong { bytes: 201 }),
    ] {
        let error = Client::new(url, Some("t")).unwrap_err();
        assert_eq!(
            (error.kind(), error.is_unknown()),
            ("socket", false),
            "{error}"
        );
        assert!(
            matches!(error, ClientError::Socket { fault, .. } if fault == expected),
            "{error}"
        );
    }
    for url in [
        "https+unix:/run/x.sock",
        "http+unix:/run/x.sock",
        "UNIX:/run/x.sock",
        "/run/x.sock",
    ] {
        assert_eq!(
            Client::new(url, None).unwrap_err().kind(),
            "address",
            "{url}"
        );
    }
}

const STREAM: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn events_go_on_where_they_were_left() {
    let stream = |text: &str| Does::Says(format!("{STREAM}{text}"));
    let (url, heard) = stub(vec![
        stream(": hello\n\nid: 1\nevent: set\ndata: {\"key\":\"a\"}\n\nid: 2\nevent: do"),
        problem(503, "store_unavailable"),
        stream("id: 2\nevent: done\ndata: {}\n\nevent: gap\ndata: {}\n\n"),
        problem(400, "malformed"),
    ])
    .await;
    let mut events = retrying(&url, 3).events(&EventFilter::default()).after("0");
    let mut found = Vec::new();
    let error = loop {
        match events.next().await {
            Ok(event) => found.push(event),
            Err(error) => break error,
        }
    };
    assert_eq!(error.status(), Some(400));
    let kinds: Vec<&str> = found
        .iter()
        .map(|event: &Event| event.kind.as_str())
        .collect();
    assert_eq!(kinds, ["set", "done", "gap"]);
    assert!(found[2].is_gap());
    let value: serde_json::Value = found[0].read().unwrap();
    assert_eq!(value["key"], "a");
    assert_eq!(events.last(), Some("2"));
    let asked = heard.all();
    let last = |number: usize| format!("last-event-id: {number}\r\n");
    let after: Vec<bool> = asked
        .iter()
        .zip([0, 1, 1, 2])
        .map(|(it, id)| it.contains(&last(id)))
        .collect();
    assert_eq!(after, [true; 4], "{asked:?}");
}

#[tokio::test]
async fn what_is_no_stream_of_events_is_told_apart() {
    let page = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi";
    let (url, _) = stub(vec![Does::Says(page.to_owned())]).await;
    let mut events = client(&url).events(&EventFilter::default());
    assert_eq!(events.next().await.unwrap_err().kind(), "foreign");
    let flood = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ";
    let (url, _) = stub(vec![Does::Floods(flood, "and so on, and on, and so on, ")]).await;
    let mut events = client(&url).events(&EventFilter::default());
    assert_eq!(events.next().await.unwrap_err().kind(), "foreign");
    let (url, _) = stub(vec![problem(401, "unauthorized")]).await;
    let mut events = client(&url).events(&EventFilter::default());
    assert_eq!(events.next().await.unwrap_err().kind(), "unauthorized");
}

#[tokio::test]
async fn a_worker_ends_with_what_it_has_if_leases_are_refused() {
    let lease = r#"{"leases":[{"queue":"jobs","key":"a","id":"tmr-1","token":"01","attempt":1,"due":"2026-03-01T12:00:05Z","body":"x"}]}"#;
    let done = r#"{"results":[{"queue":"jobs","key":"a","status":200,"state":"done"}]}"#;
    let (url, heard) = stub(vec![
        problem(503, "unknown"),
        json(200, "", lease),
        problem(409, "push_queue"),
        Does::Says(String::new()),
        json(200, "", done),
    ])
    .await;
    let count = Arc::<AtomicUsize>::default();
    let counts = Arc::clone(&count);
    let refused = Arc::new(tokio::sync::Notify::new());
    let waits = Arc::clone(&refused);
    let handler = move |job: Job| {
        assert_eq!(job.body, b"x");
        let (counts, waits) = (Arc::clone(&counts), Arc::clone(&waits));
        async move {
            waits.notified().await;
            counts.fetch_add(1, Ordering::SeqCst);
            Ok::<(), Failure>(())
        }
    };
    let worker = Worker::new(client(&url), ["jobs"]).concurrency(2);
    let watch = async {
        while heard.all().len() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        refused.notify_one();
    };
    let (worked, ()) = tokio::join!(worker.run(handler, std::future::pending()), watch);
    let error: ClientError = worked.unwrap_err();
    assert_eq!(error.problem().unwrap().code, "push_queue");
    assert_eq!(count.load(Ordering::SeqCst), 1);
    let acks = heard.all();
    let acks = acks
        .iter()
        .filter(|request| request.starts_with("POST /v1/leases:ack"));
    assert_eq!(
        acks.count(),
        2,
        "an ack whose answer was lost is sent again"
    );
}
