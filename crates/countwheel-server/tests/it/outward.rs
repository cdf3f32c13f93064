//! How deliveries of an endpoint leave: where they may go, through which proxy, by which HTTP.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, Server, wait_for_state};

const SHOP: &str = "/v1/endpoints/shop";
const TIMER: &str = "/v1/queues/orders/timers/k";

fn start_with(arguments: &[&str]) -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::with(&directory.0.join("data"), arguments);
    let client = server.client();
    (directory, server, client)
}

fn start() -> (Directory, Server, Client) {
    start_with(&["--allow-private-targets"])
}

fn put(client: &mut Client, body: &Value) -> Answer {
    client.json("PUT", SHOP, &body.to_string())
}

#[track_caller]
fn made(client: &mut Client, body: &Value) -> Value {
    let answer = put(client, body);
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    answer.json()
}

/// What a refusal says: its status, its code and the field at fault.
#[track_caller]
fn refused(answer: &Answer) -> (u16, String, String) {
    let (status, code) = answer.problem();
    let pointer = answer.json()["errors"][0]["pointer"].clone();
    (status, code, pointer.as_str().unwrap_or("-").to_owned())
}

/// Sets a timer to the endpoint with one attempt, which is due now.
#[track_caller]
fn send(client: &mut Client) {
    let once = json!({"in": 0, "target": {"endpoint": "shop"},
        "retry": {"fixed": 1, "max_attempts": 1}});
    let answer = client.json("PUT", TIMER, &once.to_string());
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
}

/// Delivers, or not, and gives the detail of the attempt.
#[track_caller]
fn outcome(client: &mut Client, state: &str) -> String {
    send(client);
    let timer = wait_for_state(client, TIMER, state);
    let detail = timer["attempts"][0]["detail"].as_str();
    detail.unwrap_or_default().to_owned()
}

/// A target that keeps its connections. Its port, and a sign of each connection.
fn keeping() -> (u16, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (connected, connections) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            connected.send(()).unwrap_or_default();
            std::thread::spawn(move || answer_all(stream));
        }
    });
    (port, connections)
}

/// Answers each request of a connection, none of which has a body.
fn answer_all(stream: TcpStream) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).unwrap_or_default() > 0 {
        if line == "\r\n" {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.get_mut().write_all(answer).unwrap_or_default();
        }
        line.clear();
    }
}

#[test]
fn an_endpoint_narrows_where_its_deliveries_go_at_once_and_for_kept_connections_too() {
    let (_directory, _server, mut client) = start();
    let (port, connections) = keeping();
    let url = format!("http://localhost:{port}/hook");
    let allowing = |allow: &str| json!({"url": url, "allow": [allow]});
    let unreachable = "target unreachable";
    let at_port = format!("localhost:{port}");
    for (allow, state, detail) in [
        ("localhost", "done", "200"),
        // The connection is kept, and the name leads outside of the range.
        ("10.0.0.0/8", "dead", unreachable),
        ("127.0.0.0/8", "done", "200"),
        ("192.0.2.1", "dead", unreachable),
        (&*at_port, "done", "200"),
    ] {
        let shown = made(&mut client, &allowing(allow));
        assert_eq!(shown["allow"], json!([allow]));
        assert_eq!(outcome(&mut client, state), detail, "{allow}");
        (0..5).for_each(|_| crate::support::pause());
    }
    assert_eq!(connections.try_iter().count(), 3);
    // As long as nothing changes, the connection is used again.
    assert_eq!(outcome(&mut client, "done"), "200");
    assert_eq!(connections.try_iter().count(), 0);
    let shown = made(&mut client, &json!({"url": url}));
    assert_eq!(shown.get("allow"), None);
    assert_eq!(outcome(&mut client, "done"), "200");
}

#[test]
fn what_an_endpoint_allows_opens_nothing() {
    let (_directory, _server, mut client) = start_with(&[]);
    let (port, connections) = keeping();
    let allow = json!(["127.0.0.0/8", "localhost"]);
    let url = format!("http://localhost:{port}/");
    made(&mut client, &json!({"url": url, "allow": allow}));
    assert_eq!(outcome(&mut client, "dead"), "target unreachable");
    assert_eq!(connections.try_iter().count(), 0);
    let url = format!("http://127.0.0.1:{port}/");
    let told = refused(&put(&mut client, &json!({"url": url, "allow": allow})));
    let expected = (422, "invalid_target".to_owned(), "/url".to_owned());
    assert_eq!(told, expected);
}

#[test]
fn what_an_endpoint_allows_is_checked_when_it_is_put() {
    let (_directory, _server, mut client) = start();
    let many: Vec<_> = (0..65).map(|n| format!("h{n}.example")).collect();
    for (allow, status, code, pointer) in [
        (json!([]), 422, "invalid_setting", "/allow"),
        (json!(many), 422, "invalid_setting", "/allow"),
        (json!("x.example"), 400, "malformed", "/allow"),
        (json!(["x.example", 1]), 400, "malformed", "/allow/1"),
        (
            json!(["x.example", "http://x.example"]),
            422,
            "invalid_setting",
            "/allow/1",
        ),
        (json!(["10.0.0.1/8"]), 422, "invalid_setting", "/allow/0"),
        // The URL is at none of them, as far as it shows.
        (json!(["y.example"]), 422, "invalid_setting", "/allow"),
        (json!(["x.example:81"]), 422, "invalid_setting", "/allow"),
        (json!(["10.0.0.0/8:81"]), 422, "invalid_setting", "/allow"),
    ] {
        let body = json!({"url": "http://x.example/", "allow": allow});
        let told = refused(&put(&mut client, &body));
        let expected = (status, code.to_owned(), pointer.to_owned());
        assert_eq!(told, expected, "{allow}");
    }
    let places = json!(["*.Example:80", "[fd00::/8]:80", "10.0.0.0/8"]);
    let shown = made(
        &mut client,
        &json!({"url": "http://x.example/", "allow": places}),
    );
    let places = json!(["*.example:80", "[fd00::/8]:80", "10.0.0.0/8"]);
    assert_eq!(shown["allow"], places);
}
