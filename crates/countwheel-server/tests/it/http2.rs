//! Deliveries over HTTP/2, to real servers.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use axum::http::{HeaderName, HeaderValue, Request, Response, Version, request};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::outward::Proxy;
use crate::support::{Client, Directory, PATIENCE, Server, pause, wait_for_state};

/// The certificate of the targets, which is its own authority.
const CERTIFICATE: &[u8] = include_bytes!("tls/unknown.der");

fn start() -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let client = server.client();
    (directory, server, client)
}

/// An endpoint on that port, with more settings.
#[track_caller]
fn endpoint(client: &mut Client, port: u16, more: &Value) -> Value {
    let (begin, end) = ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----");
    let pem = format!("{begin}\n{}\n{end}\n", BASE64_STANDARD.encode(CERTIFICATE));
    let mut body = json!({"url": format!("https://localhost:{port}"), "ca": pem});
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    let answer = client.json("PUT", "/v1/endpoints/shop", &body.to_string());
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    answer.json()
}

fn path_of(key: &str) -> String {
    format!("/v1/queues/orders/timers/{key}")
}

/// Sets a timer with one attempt, which is due now.
#[track_caller]
fn send(client: &mut Client, key: &str, path: &str, timeout: &str) {
    let once = json!({"in": 0, "retry": {"fixed": 1, "max_attempts": 1}, "body": key,
        "target": {"endpoint": "shop", "path": path, "timeout": timeout}});
    let answer = client.json("PUT", &path_of(key), &once.to_string());
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
}

/// Delivers, or not, and gives the only attempt.
#[track_caller]
fn attempt(client: &mut Client, key: &str, path: &str, state: &str) -> Value {
    send(client, key, path, "15s");
    let timer = wait_for_state(client, &path_of(key), state);
    assert_eq!(timer["attempt"], 1, "{timer}");
    timer["attempts"][0].clone()
}

/// A target with TLS that takes these versions, and serves each connection by its number. Its port.
fn listen<F, S>(versions: &[&str], serve: S) -> u16
where
    F: Future<Output = ()> + Send + 'static,
    S: Fn(usize, TlsStream<TcpStream>) -> F + Send + Sync + 'static,
{
    let key = PrivatePkcs8KeyDer::from(include_bytes!("tls/key.der").as_slice());
    let chain = vec![CertificateDer::from(CERTIFICATE)];
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key.into())
        .unwrap();
    config.alpn_protocols = versions.iter().map(|it| it.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            for number in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, serve) = (acceptor.clone(), Arc::clone(&serve));
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve(number, stream).await;
                    }
                });
            }
        });
    });
    port
}

/// A request as it arrived, and on which connection.
struct Seen {
    connection: usize,
    head: request::Parts,
    body: Bytes,
}

/// A server of both versions that answers by the path, and takes so many streams at a time.
fn hyper_server(streams: u32) -> (u16, Receiver<Seen>) {
    let (send, seen) = channel();
    let port = listen(&["h2", "http/1.1"], move |connection, stream| {
        let send = send.clone();
        async move {
            let is_of_2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let stream = TokioIo::new(stream);
            let service = service_fn(move |request| answer(connection, request, send.clone()));
            if is_of_2 {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder.max_concurrent_streams(streams);
                let served = builder.serve_connection(stream, service);
                served.await.unwrap_or_default();
            } else {
                let served = http1::Builder::new().serve_connection(stream, service);
                served.await.unwrap_or_default();
            }
        }
    });
    (port, seen)
}

async fn answer(
    connection: usize,
    request: Request<Incoming>,
    send: Sender<Seen>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let path = head.uri.path().to_owned();
    let seen = Seen {
        connection,
        head,
        body,
    };
    send.send(seen).unwrap_or_default();
    let with = |count: usize, bytes: usize| {
        let mut answer = Response::new(Full::default());
        for number in 0..count {
            let name = HeaderName::try_from(format!("x-{number}")).unwrap();
            let value = HeaderValue::try_from("x".repeat(bytes)).unwrap();
            answer.headers_mut().insert(name, value);
        }
        answer
    };
    Ok(match path.as_str() {
        "/hold" => std::future::pending().await,
        "/long-head" => with(10, 30 << 10),
        "/fair-head" => with(10, 20 << 10),
        "/256-headers" => with(255, 1),
        "/257-headers" => with(256, 1),
        "/long-body" => Response::new(Full::from(vec![b'x'; 1 << 20])),
        _ => Response::new(Full::from("fine")),
    })
}

fn next(seen: &Receiver<Seen>) -> Seen {
    seen.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn deliveries_at_one_time_share_one_connection() {
    let (_directory, _server, mut client) = start();
    let (port, seen) = hyper_server(100);
    endpoint(&mut client, port, &json!({}));
    let first = attempt(&mut client, "first", "/a?b=c", "done");
    assert_eq!(first["detail"], "200");
    assert_eq!(first["answer"]["body"], "fine");
    let times = first["answer"]["times_us"].as_object().unwrap();
    let names: Vec<_> = times.keys().map(String::as_str).collect();
    assert_eq!(names, ["connect", "first_byte", "resolve", "tls"]);
    let Seen { head, body, .. } = next(&seen);
    assert_eq!(head.version, Version::HTTP_2);
    assert_eq!(
        head.uri.to_string(),
        format!("https://localhost:{port}/a?b=c")
    );
    assert_eq!((head.method.as_str(), &*body), ("POST", &b"\"first\""[..]));
    assert_eq!(head.headers["timer-key"], "first");
    assert_eq!(head.headers["content-length"], "7");
    assert!(head.headers.contains_key("timer-late-us") && !head.headers.contains_key("host"));

    for number in 0..20 {
        send(&mut client, &number.to_string(), "/", "15s");
    }
    for number in 0..20 {
        let done = wait_for_state(&mut client, &path_of(&number.to_string()), "done");
        let times = done["attempts"][0]["answer"]["times_us"].clone();
        assert_eq!(times.as_object().unwrap().len(), 1, "{times}");
        assert_eq!(next(&seen).connection, 0);
    }
    // Longer than the windows that the other end opens at first.
    let long = "x".repeat(900_000);
    let body = json!({"in": 0, "target": {"endpoint": "shop"}, "body": long});
    client
        .json("PUT", &path_of("long"), &body.to_string())
        .expect(201);
    let Seen {
        body, connection, ..
    } = next(&seen);
    assert_eq!((body.len(), connection), (long.len() + 2, 0));
    wait_for_state(&mut client, &path_of("long"), "done");
    // A target without a body says so.
    let body = json!({"in": 0, "target": {"endpoint": "shop"}});
    client
        .json("PUT", &path_of("empty"), &body.to_string())
        .expect(201);
    let Seen { head, body, .. } = next(&seen);
    assert!(body.is_empty() && head.headers["content-length"] == "0");
    // The test of an endpoint leaves as its deliveries do.
    let tested = client
        .send("POST", "/v1/endpoints/shop:test", &[], b"")
        .expect(200);
    assert_eq!(tested["attempt"]["detail"], "200");
    let Seen {
        head, connection, ..
    } = next(&seen);
    assert_eq!((head.version, connection), (Version::HTTP_2, 0));
    assert_eq!(head.headers["timer-test"], "1");
}

#[test]
fn an_endpoint_may_ask_for_http_1() {
    let (_directory, _server, mut client) = start();
    let (port, seen) = hyper_server(100);
    for (http, version, connection) in [
        ("1.1", Version::HTTP_11, 0),
        ("auto", Version::HTTP_2, 1),
        ("1.1", Version::HTTP_11, 2),
    ] {
        let shown = endpoint(&mut client, port, &json!({"http": http}));
        let expected = (http == "1.1").then_some(http);
        assert_eq!(shown["http"].as_str(), expected);
        attempt(&mut client, "k", "/", "done");
        let seen = next(&seen);
        assert_eq!((seen.head.version, seen.connection), (version, connection));
    }
    for (http, status, code) in [
        (json!("2"), 422, "invalid_setting"),
        (json!(1.1), 400, "malformed"),
    ] {
        let body = json!({"url": "https://x.example/", "http": http}).to_string();
        let answer = client.json("PUT", "/v1/endpoints/shop", &body);
        assert_eq!(answer.problem(), (status, code.to_owned()));
        assert_eq!(answer.json()["errors"][0]["pointer"], "/http");
    }
}

#[test]
fn a_request_that_is_not_answered_holds_up_no_other() {
    for (streams, connection) in [(100, 0), (1, 1)] {
        let (_directory, _server, mut client) = start();
        let (port, seen) = hyper_server(streams);
        endpoint(&mut client, port, &json!({}));
        attempt(&mut client, "first", "/", "done");
        send(&mut client, "held", "/hold", "20s");
        assert_eq!(next(&seen).connection, 0);
        assert_eq!(next(&seen).connection, 0);
        // Where the other end takes one at a time, there is another connection.
        for number in 0..3 {
            attempt(&mut client, &number.to_string(), "/", "done");
            assert_eq!(next(&seen).connection, connection, "{streams} streams");
        }
        let held = client.get(&path_of("held")).expect(200);
        assert_eq!(held["state"], "delivering");
    }
}

#[test]
fn after_a_request_that_was_not_answered_in_time_there_is_another_connection() {
    let (_directory, _server, mut client) = start();
    let (port, seen) = hyper_server(100);
    endpoint(&mut client, port, &json!({}));
    send(&mut client, "held", "/hold", "300ms");
    let dead = wait_for_state(&mut client, &path_of("held"), "dead");
    assert_eq!(dead["attempts"][0]["detail"], "timed out after 300ms");
    attempt(&mut client, "k", "/", "done");
    assert_eq!((next(&seen).connection, next(&seen).connection), (0, 1));
}

#[test]
fn what_is_read_of_an_answer_is_bounded_for_each() {
    let (_directory, _server, mut client) = start();
    let (port, _seen) = hyper_server(100);
    endpoint(&mut client, port, &json!({}));
    let long = attempt(&mut client, "head", "/long-head", "dead");
    assert_eq!(long["detail"], "the answer is too long");
    attempt(&mut client, "fair", "/fair-head", "done");
    // One of them is the date.
    attempt(&mut client, "few", "/256-headers", "done");
    let many = attempt(&mut client, "many", "/257-headers", "dead");
    assert_eq!(many["detail"], "the answer has too many headers");
    let long = attempt(&mut client, "body", "/long-body", "done");
    let answer = &long["answer"];
    assert_eq!(answer["body_bytes"], 64 << 10);
    assert_eq!(answer["truncated"], true);
}

#[test]
fn deliveries_over_http_2_leave_through_a_proxy_too() {
    let (_directory, _server, mut client) = start();
    let (port, seen) = hyper_server(100);
    let proxy = Proxy::to(port);
    endpoint(&mut client, port, &json!({"egress_proxy": proxy.url}));
    for key in ["a", "b"] {
        attempt(&mut client, key, "/", "done");
        let seen = next(&seen);
        assert_eq!((seen.connection, seen.head.version), (0, Version::HTTP_2));
    }
    let asked = proxy.next();
    assert!(
        asked.starts_with(&format!("CONNECT localhost:{port} ")),
        "{asked}"
    );
}

/// What a server does with the request of a number on the connection of a number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    Answer,
    Refuse,
    /// Answers, and takes no more requests.
    GoAway,
    /// Ends the stream with a fault.
    Reset,
}

/// A server that does what it is told. The numbers of the connections of its requests.
fn deeds(deed: fn(usize, usize) -> Deed) -> (u16, Receiver<usize>) {
    let (send, asked) = channel();
    let port = listen(&["h2"], move |connection, stream| {
        let send = send.clone();
        async move {
            let mut h2 = h2::server::handshake(stream).await.unwrap();
            let mut number = 0;
            while let Some(Ok((_, mut respond))) = h2.accept().await {
                send.send(connection).unwrap_or_default();
                let deed = deed(connection, number);
                number += 1;
                match deed {
                    Deed::Refuse => respond.send_reset(h2::Reason::REFUSED_STREAM),
                    Deed::Reset => respond.send_reset(h2::Reason::INTERNAL_ERROR),
                    Deed::Answer | Deed::GoAway => {
                        respond
                            .send_response(Response::new(()), true)
                            .map_or_else(drop, drop);
                    }
                }
                if deed == Deed::GoAway {
                    h2.graceful_shutdown();
                }
            }
        }
    });
    (port, asked)
}

#[test]
fn what_a_server_has_not_looked_at_goes_to_another_connection_within_the_attempt() {
    for deed in [
        |connection: usize, number: usize| match (connection, number) {
            (0, 1) => Deed::Refuse,
            _ => Deed::Answer,
        },
        |connection: usize, _: usize| match connection {
            0 => Deed::GoAway,
            _ => Deed::Answer,
        },
    ] {
        let (_directory, _server, mut client) = start();
        let (port, asked) = deeds(deed);
        endpoint(&mut client, port, &json!({}));
        attempt(&mut client, "a", "/", "done");
        (0..5).for_each(|_| pause());
        attempt(&mut client, "b", "/", "done");
        assert_eq!(asked.try_iter().max(), Some(1));
    }
}

/// It would be asked again and again for as long as the attempt may take.
#[test]
fn a_server_that_refuses_a_request_on_its_own_connection_is_asked_once() {
    for (deed, detail) in [
        (Deed::Refuse, "the request was refused"),
        (Deed::Reset, "stream reset"),
    ] {
        let (_directory, _server, mut client) = start();
        let (port, asked) = match deed {
            Deed::Refuse => deeds(|_, _| Deed::Refuse),
            _ => deeds(|_, _| Deed::Reset),
        };
        endpoint(&mut client, port, &json!({}));
        let dead = attempt(&mut client, "a", "/", "dead");
        assert_eq!(dead["detail"], detail);
        assert_eq!(asked.try_iter().count(), 1);
    }
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// A frame that begins a request or an answer.
const HEADERS: u8 = 1;

/// Begins the side of a server.
async fn greet(stream: &mut TlsStream<TcpStream>) -> std::io::Result<()> {
    const PREFACE: usize = 24;
    stream.write_all(&frame(4, 0, 0, &[])).await?;
    let mut preface = [0; PREFACE];
    stream.read_exact(&mut preface).await?;
    Ok(())
}

/// The stream of the next request.
async fn next_request(stream: &mut TlsStream<TcpStream>) -> std::io::Result<u32> {
    let mut head = [0; 9];
    loop {
        stream.read_exact(&mut head).await?;
        let [a, b, c, kind, _, id @ ..] = head;
        let mut payload = vec![0; usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)];
        stream.read_exact(&mut payload).await?;
        if kind == HEADERS {
            return Ok(u32::from_be_bytes(id));
        }
    }
}

/// Answers each request, but for the second one of the first connection: that one is told which stream was the last,
/// and that the connection ends.
async fn go_away(
    connection: usize,
    mut stream: TlsStream<TcpStream>,
    last: u32,
    send: Sender<usize>,
) -> std::io::Result<()> {
    greet(&mut stream).await?;
    loop {
        let id = next_request(&mut stream).await?;
        send.send(connection).unwrap_or_default();
        if connection == 0 && id > 1 {
            let last = [last.to_be_bytes(), [0; 4]].concat();
            stream.write_all(&frame(7, 0, 0, &last)).await?;
            stream.shutdown().await?;
        } else {
            // Status 200, and nothing follows.
            stream.write_all(&frame(HEADERS, 5, id, &[0x88])).await?;
        }
    }
}

#[test]
fn a_server_that_goes_away_is_believed_which_request_was_its_last() {
    for (last, detail, connections) in [
        (1, "200", &[0, 0, 1][..]),
        // It may have done something for the second.
        (3, "connection closed before the answer", &[0, 0][..]),
    ] {
        let (_directory, _server, mut client) = start();
        let (send, asked) = channel();
        let port = listen(&["h2"], move |connection, stream| {
            let send = send.clone();
            async move {
                let served = go_away(connection, stream, last, send);
                served.await.unwrap_or_default();
            }
        });
        endpoint(&mut client, port, &json!({}));
        attempt(&mut client, "a", "/", "done");
        let state = if detail == "200" { "done" } else { "dead" };
        assert_eq!(attempt(&mut client, "b", "/", state)["detail"], detail);
        assert_eq!(asked.try_iter().collect::<Vec<_>>(), connections);
    }
}

/// Answers each request, and lets the first connection have no more of them.
async fn allow_no_more(
    connection: usize,
    mut stream: TlsStream<TcpStream>,
    send: Sender<usize>,
) -> std::io::Result<()> {
    const NO_STREAMS: [u8; 6] = [0, 3, 0, 0, 0, 0];
    greet(&mut stream).await?;
    loop {
        let id = next_request(&mut stream).await?;
        send.send(connection).unwrap_or_default();
        if connection == 0 {
            // It comes before the answer, so it is known once the answer is.
            stream.write_all(&frame(4, 0, 0, &NO_STREAMS)).await?;
        }
        stream.write_all(&frame(HEADERS, 5, id, &[0x88])).await?;
    }
}

/// A request on a connection that may have none would wait there until its time is over.
#[test]
fn a_connection_that_may_have_no_more_requests_gets_none() {
    let (_directory, _server, mut client) = start();
    let (send, asked) = channel();
    let port = listen(&["h2"], move |connection, stream| {
        let send = send.clone();
        async move {
            let served = allow_no_more(connection, stream, send);
            served.await.unwrap_or_default();
        }
    });
    endpoint(&mut client, port, &json!({}));
    for key in ["a", "b", "c"] {
        assert_eq!(attempt(&mut client, key, "/", "done")["detail"], "200");
    }
    assert_eq!(asked.try_iter().collect::<Vec<_>>(), [0, 1, 1]);
}

/// What it sends belongs to no stream, so no bound of one answer holds it.
#[test]
fn a_server_that_floods_a_connection_loses_it() {
    let (_directory, _server, mut client) = start();
    let (send, wrote) = channel();
    let port = listen(&["h2"], move |_, mut stream| {
        let send = send.clone();
        async move {
            greet(&mut stream).await.unwrap();
            // A connection that is lost before its request was sent is a refused request.
            next_request(&mut stream).await.unwrap();
            // Of a kind that nobody knows, and everybody has to ignore.
            let unknown = frame(0xfe, 0, 0, &[0; 16 << 10]);
            let mut frames = 0;
            while frames < 1_000 && stream.write_all(&unknown).await.is_ok() {
                frames += 1;
            }
            send.send(frames).unwrap_or_default();
        }
    });
    endpoint(&mut client, port, &json!({}));
    let dead = attempt(&mut client, "a", "/", "dead");
    assert_eq!(dead["detail"], "the answer is too long");
    assert!(wrote.recv_timeout(PATIENCE).unwrap() < 1_000);
}

/// All of them connect, since nobody knows yet what the server speaks, and all but one let go of that.
#[test]
fn the_first_deliveries_at_one_time_come_together_on_one_connection() {
    let (_directory, _server, mut client) = start();
    let (port, seen) = hyper_server(100);
    endpoint(&mut client, port, &json!({}));
    for number in 0..30 {
        send(&mut client, &number.to_string(), "/", "15s");
    }
    for number in 0..30 {
        let done = wait_for_state(&mut client, &path_of(&number.to_string()), "done");
        assert_eq!(done["attempt"], 1);
    }
    assert_eq!(seen.try_iter().count(), 30);
    let mut connections: Vec<_> = (0..3)
        .map(|_| {
            attempt(&mut client, "k", "/", "done");
            next(&seen).connection
        })
        .collect();
    connections.dedup();
    assert_eq!(connections.len(), 1);
}
