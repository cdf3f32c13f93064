//! How deliveries of an endpoint leave: where they may go, through which proxy, by which HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, PATIENCE, Server, program, wait_for_state};

const SHOP: &str = "/v1/endpoints/shop";
const TIMER: &str = "/v1/queues/orders/timers/k";
/// When an attempt looks again at a place where none is made, in microseconds, and a bit less.
const LOOK: u64 = 4_900_000;

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

/// The timer of the endpoint waits, no attempt was made of it, and this is why.
fn held_by(client: &mut Client) -> String {
    let held = (0..2_000).find_map(|_| {
        crate::support::pause();
        let timer = client.get(TIMER).expect(200);
        timer["held_by"].is_string().then_some(timer)
    });
    let held = held.expect("the timer is held");
    assert_eq!(
        (&held["state"], &held["attempt"]),
        (&json!("pending"), &json!(0))
    );
    held["held_by"].as_str().unwrap().to_owned()
}

/// Tests the endpoint: how it ended, and its detail.
fn tested(client: &mut Client) -> (Value, Value) {
    let path = format!("{SHOP}:test");
    let attempt = client.send("POST", &path, &[], b"").expect(200)["attempt"].clone();
    (attempt["result"].clone(), attempt["detail"].clone())
}

/// How long after its deadline the first attempt was made, in microseconds: held, or late.
fn waited(timer: &Value) -> u64 {
    let first = &timer["attempts"][0];
    let spans = ["held_us", "late_us"].map(|name| first[name].as_u64().unwrap());
    spans.iter().sum()
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
    let at_port = format!("localhost:{port}");
    let outside = format!(
        "{at_port} is not called: the name leads to an address that the endpoint does not allow"
    );
    let mut is_held = false;
    for (allow, is_open) in [
        ("localhost", true),
        // The connection is kept, and the name leads outside of the range.
        ("10.0.0.0/8", false),
        ("127.0.0.0/8", true),
        ("192.0.2.1", false),
        (&*at_port, true),
    ] {
        let shown = made(&mut client, &allowing(allow));
        assert_eq!(shown["allow"], json!([allow]));
        // One that is held goes on with the change.
        if !is_held {
            send(&mut client);
        }
        if is_open {
            let done = wait_for_state(&mut client, TIMER, "done");
            assert_eq!(done["attempts"].as_array().map(Vec::len), Some(1));
            assert!(waited(&done) < LOOK, "{done}");
        } else {
            assert_eq!(held_by(&mut client), outside, "{allow}");
            let unreachable = (json!("failed"), json!("target unreachable"));
            assert_eq!(tested(&mut client), unreachable);
            // Those who do not go by the endpoint do not wait.
            let once = json!({"in": 0, "target": {"url": url}}).to_string();
            let other = "/v1/queues/others/timers/k";
            client.json("PUT", other, &once);
            let done = wait_for_state(&mut client, other, "done");
            assert!(waited(&done) < LOOK, "{done}");
        }
        is_held = !is_open;
        (0..5).for_each(|_| crate::support::pause());
    }
    // One connection for each that is allowed, and one of the others.
    assert_eq!(connections.try_iter().count(), 4);
    assert_eq!(tested(&mut client), (json!("done"), json!("200")));
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
    send(&mut client);
    let refused_name = format!(
        "localhost:{port} is not called: the name leads to an address where deliveries do not go"
    );
    assert_eq!(held_by(&mut client), refused_name);
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

/// A proxy that makes tunnels to one address, whatever name is asked for; or that answers something else.
pub(crate) struct Proxy {
    pub(crate) url: String,
    /// The first line of each request, and what else its head has.
    asked: Receiver<String>,
}

impl Proxy {
    pub(crate) fn to(port: u16) -> Self {
        Self::start(move |mut stream| {
            let target = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let made = b"HTTP/1.1 200 Connection established\r\nvia: a proxy\r\n\r\n";
            stream.write_all(made).unwrap_or_default();
            let (mut there, mut here) = (target.try_clone().unwrap(), stream.try_clone().unwrap());
            std::thread::spawn(move || {
                std::io::copy(&mut here, &mut there).unwrap_or_default();
                there.shutdown(Shutdown::Write).unwrap_or_default();
            });
            let mut target = target;
            std::io::copy(&mut target, &mut stream).unwrap_or_default();
            stream.shutdown(Shutdown::Both).unwrap_or_default();
        })
    }

    fn answering(answer: &'static str) -> Self {
        Self::start(move |mut stream| {
            stream.write_all(answer.as_bytes()).unwrap_or_default();
        })
    }

    fn start(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (send, asked) = channel();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let (send, serve) = (send.clone(), serve.clone());
                std::thread::spawn(move || {
                    let mut head = Vec::new();
                    let mut byte = [0];
                    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) > 0 {
                        head.extend(byte);
                    }
                    send.send(String::from_utf8(head).unwrap())
                        .unwrap_or_default();
                    serve(stream);
                });
            }
        });
        Self { url, asked }
    }

    pub(crate) fn next(&self) -> String {
        self.asked.recv_timeout(PATIENCE).unwrap()
    }
}

#[test]
fn deliveries_of_an_endpoint_leave_through_its_proxy_which_resolves_the_names() {
    let (_directory, _server, mut client) = start();
    let (port, connections) = keeping();
    let proxy = Proxy::to(port);
    let body = json!({"url": "http://shop.invalid/hook", "egress_proxy": proxy.url});
    let shown = made(&mut client, &body);
    assert_eq!(shown["egress_proxy"], proxy.url);
    assert_eq!(outcome(&mut client, "done"), "200");
    let head = proxy.next();
    assert_eq!(
        head,
        "CONNECT shop.invalid:80 HTTP/1.1\r\nHost: shop.invalid:80\r\n\r\n"
    );
    let timer = client.get(TIMER).expect(200);
    let times = timer["attempts"][0]["answer"]["times_us"].clone();
    assert!(times["connect"].as_u64() > Some(0), "{timer}");
    (0..5).for_each(|_| crate::support::pause());
    // The tunnel is kept, as any connection is.
    assert_eq!(outcome(&mut client, "done"), "200");
    assert!(proxy.asked.try_recv().is_err());
    assert_eq!(connections.try_iter().count(), 1);
    // A test leaves as a delivery does.
    assert_eq!(tested(&mut client), (json!("done"), json!("200")));
    assert!(proxy.asked.try_recv().is_err());
    // Without the proxy nobody knows the name.
    made(&mut client, &json!({"url": "http://shop.invalid/hook"}));
    assert_eq!(outcome(&mut client, "dead"), "name not resolved");
    // What is allowed narrows by the name alone.
    let mut narrowed = body.clone();
    narrowed["allow"] = json!(["*.invalid:80"]);
    made(&mut client, &narrowed);
    assert_eq!(outcome(&mut client, "done"), "200");
    narrowed["allow"] = json!(["127.0.0.0/8"]);
    let told = refused(&put(&mut client, &narrowed));
    let expected = (422, "invalid_setting".to_owned(), "/allow".to_owned());
    assert_eq!(told, expected);
}

/// The operator's proxy stands in a network to which nothing is delivered.
#[test]
fn the_proxy_of_the_operator_is_that_of_all_who_name_none() {
    let (port, _connections) = keeping();
    let proxy = Proxy::to(port);
    let (_directory, _server, mut client) = start_with(&["--egress-proxy", &proxy.url]);
    let set = |client: &mut Client, url: &str| {
        let once = json!({"in": 0, "target": {"url": url},
            "retry": {"fixed": 1, "max_attempts": 1}});
        client.json("PUT", TIMER, &once.to_string())
    };
    set(&mut client, "http://hooks.invalid:8080/a").expect(201);
    wait_for_state(&mut client, TIMER, "done");
    assert!(proxy.next().starts_with("CONNECT hooks.invalid:8080 "));
    for url in [
        "http://127.0.0.1/",
        "http://10.0.0.1/",
        "http://169.254.169.254/",
        "http://metadata.google.internal/",
        "http://hooks.invalid:22/",
    ] {
        let told = refused(&set(&mut client, url));
        let pointer = "/target/url".to_owned();
        assert_eq!(told, (422, "invalid_target".to_owned(), pointer), "{url}");
    }
    set(&mut client, "http://localhost/").expect(200);
    let private = "deliveries do not go to 127.0.0.1: the address is not public";
    assert_eq!(held_by(&mut client), private);
    assert!(proxy.asked.try_recv().is_err());
    // No range is compared with a name there, whoever named the proxy.
    let narrowed = json!({"url": "http://hooks.invalid/", "allow": ["127.0.0.0/8"]});
    let told = refused(&put(&mut client, &narrowed));
    let expected = (422, "invalid_setting".to_owned(), "/allow".to_owned());
    assert_eq!(told, expected);

    // A caller names no proxy there.
    let mut body = json!({"url": "http://hooks.invalid/", "egress_proxy": proxy.url});
    let told = refused(&put(&mut client, &body));
    let expected = (
        422,
        "invalid_setting".to_owned(),
        "/egress_proxy".to_owned(),
    );
    assert_eq!(told, expected);
    body["egress_proxy"] = json!(proxy.url.replace("127.0.0.1", "localhost"));
    made(&mut client, &body);
    send(&mut client);
    let of_proxy = "hooks.invalid:80 is not called: the proxy of the endpoint is at an address where \
                    deliveries do not go";
    assert_eq!(held_by(&mut client), of_proxy);
    let unreachable = (json!("failed"), json!("proxy: target unreachable"));
    assert_eq!(tested(&mut client), unreachable);
    assert!(proxy.asked.try_recv().is_err());
}

/// What was stored when more was allowed waits, and is not tried.
#[test]
fn what_would_leave_by_a_proxy_that_is_allowed_no_longer_or_in_vain_is_held() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let server = Server::start(&data);
    let mut client = server.client();
    let (port, _connections) = keeping();
    let proxy = Proxy::to(port);
    let far = json!({"in": "9d", "target": {"endpoint": "shop"}}).to_string();
    let fire = format!("{TIMER}:fire");
    made(
        &mut client,
        &json!({"url": "http://shop.invalid/", "egress_proxy": proxy.url}),
    );
    client.json("PUT", TIMER, &far).expect(201);
    server.stop();

    let server = Server::with(&data, &[]);
    let mut client = server.client();
    client.send("POST", &fire, &[], b"").expect(202);
    let of_proxy = "the endpoint shop is not called: its proxy: deliveries do not go to 127.0.0.1: the \
                    address is not public";
    assert_eq!(held_by(&mut client), of_proxy);
    assert!(proxy.asked.try_recv().is_err());
    client.json("PUT", TIMER, &far).expect(200);
    let body = json!({"url": "http://shop.invalid/", "allow": ["192.0.2.0/24"]});
    made(&mut client, &body);
    server.stop();

    // Behind the proxy of the service nobody here sees to which address the name leads.
    let server = Server::with(&data, &["--egress-proxy", &proxy.url]);
    let mut client = server.client();
    client.send("POST", &fire, &[], b"").expect(202);
    let outside =
        "the endpoint shop is not called: the target is outside of what its endpoint allows";
    assert_eq!(held_by(&mut client), outside);
    assert!(proxy.asked.try_recv().is_err());
    made(
        &mut client,
        &json!({"url": "http://shop.invalid/", "allow": ["*.invalid"]}),
    );
    wait_for_state(&mut client, TIMER, "done");
    assert!(proxy.next().starts_with("CONNECT shop.invalid:80 "));
}

#[test]
fn an_attempt_without_a_tunnel_fails_in_its_time_and_says_that_it_was_the_proxy() {
    let (_directory, _server, mut client) = start();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed_url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    let asking = Proxy::answering("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n");
    let refusing = Proxy::answering("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
    let hanging_up = Proxy::answering("");
    for (proxy, detail) in [
        (&*closed_url, "proxy: connection refused"),
        (&*silent_url, "timed out after 300ms"),
        (&*asking.url, "proxy: no tunnel"),
        (&*refusing.url, "proxy: no tunnel"),
        (&*hanging_up.url, "proxy: no tunnel"),
        ("http://proxy.invalid:3128", "proxy: name not resolved"),
    ] {
        let body =
            json!({"url": "https://shop.invalid/", "egress_proxy": proxy, "timeout": "300ms"});
        made(&mut client, &body);
        assert_eq!(outcome(&mut client, "dead"), detail, "{proxy}");
    }
}

#[test]
fn a_proxy_is_checked_when_it_is_named() {
    let (_directory, _server, mut client) = start();
    for (proxy, status, code) in [
        (json!(1), 400, "malformed"),
        (json!(""), 422, "invalid_setting"),
        (json!("https://proxy.example"), 422, "invalid_setting"),
        (json!("http://proxy.example/a"), 422, "invalid_setting"),
        (
            json!("http://me:secret@proxy.example"),
            422,
            "invalid_setting",
        ),
        (json!("http://proxy.example:22"), 422, "invalid_setting"),
        (json!("http://169.254.169.254"), 422, "invalid_setting"),
    ] {
        let body = json!({"url": "http://x.example/", "egress_proxy": proxy});
        let answer = put(&mut client, &body);
        let expected = (status, code.to_owned(), "/egress_proxy".to_owned());
        assert_eq!(refused(&answer), expected, "{proxy}");
        assert!(!String::from_utf8_lossy(&answer.body).contains("secret"));
    }
    for proxy in ["http://me:secret@proxy.example", "proxy.example:3128"] {
        let output = program()
            .args(["serve", "--data", "/nowhere", "--egress-proxy", proxy])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{proxy}");
    }
}

#[test]
fn a_url_that_would_have_to_be_encoded_is_refused_wherever_it_is_said() {
    let (_directory, _server, mut client) = start();
    made(
        &mut client,
        &json!({"url": "http://x.example/%C3%BC?a=%25"}),
    );
    let far = |target: Value| json!({"in": "9d", "target": target});
    for bad in ["/ü", "/a?b=ü", "/%zz", "/a?b=%", "/%e"] {
        let url = format!("http://x.example{bad}");
        let told = refused(&put(&mut client, &json!({"url": url})));
        let expected = (422, "invalid_target".to_owned(), "/url".to_owned());
        assert_eq!(told, expected, "{bad}");
        for (target, pointer) in [
            (json!({"url": url}), "/target/url"),
            (json!({"endpoint": "shop", "path": bad}), "/target/path"),
        ] {
            let answer = client.json("PUT", TIMER, &far(target).to_string());
            let expected = (422, "invalid_target".to_owned(), pointer.to_owned());
            assert_eq!(refused(&answer), expected, "{bad}");
        }
    }
    // A queue takes its place from an endpoint, and a timer adds its path.
    let settings = json!({"endpoint": "shop"}).to_string();
    client
        .json("PUT", "/v1/queues/orders", &settings)
        .expect(201);
    let answer = client.json("PUT", TIMER, &far(json!({"path": "/ü"})).to_string());
    assert_eq!(refused(&answer).2, "/target/path");
    let body = far(json!({"path": "/%C3%BC"})).to_string();
    client.json("PUT", TIMER, &body).expect(201);
}

#[test]
fn the_command_line_says_how_deliveries_leave_and_shows_it() {
    let (_directory, server, mut client) = start();
    let command = |words: &[&str]| {
        let server = format!("http://{}", server.address);
        let output = program()
            .arg("endpoint")
            .args(words)
            .args(["--server", &server])
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let proxy = "http://proxy.example:3128";
    let mut words = vec![
        "put",
        "shop",
        "--url",
        "https://x.example/",
        "--http",
        "1.1",
    ];
    words.extend(["--allow", "*.example", "--allow", "10.0.0.0/8:443"]);
    words.extend(["--egress-proxy", proxy]);
    assert_eq!(command(&words).0, Some(0));
    let shown = client.get(SHOP).expect(200);
    assert_eq!(shown["allow"], json!(["*.example", "10.0.0.0/8:443"]));
    assert_eq!(
        (&shown["egress_proxy"], &shown["http"]),
        (&json!(proxy), &json!("1.1"))
    );
    let (status, sheet) = command(&["get", "shop"]);
    assert_eq!(status, Some(0));
    for word in ["*.example", "10.0.0.0/8:443", proxy, "1.1"] {
        assert!(sheet.lines().any(|line| line.ends_with(word)), "{sheet}");
    }
    for wrong in [
        ["--allow", "10.0.0.1/8"],
        ["--egress-proxy", "proxy"],
        ["--http", "2"],
    ] {
        let words = [&["put", "shop", "--url", "https://x.example/"][..], &wrong].concat();
        assert_eq!(command(&words).0, Some(2), "{wrong:?}");
    }
}
