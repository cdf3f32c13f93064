//! Queues and endpoints: what is stored of them, and what deliveries make of it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use countwheel_time::{Clock, SystemClock};
use ring::hmac;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::support::{
    Answer, Client, Delivery, Directory, Server, Target, output_of_refusal, program, reply,
    wait_for_state,
};

const SHOP: &str = "/v1/endpoints/shop";
const ORDERS: &str = "/v1/queues/orders";
const TIMER: &str = "/v1/queues/orders/timers/k";
/// 24 bytes, the fewest.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER_SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn start() -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let client = server.client();
    (directory, server, client)
}

fn put(client: &mut Client, path: &str, body: &Value) -> Answer {
    client.json("PUT", path, &body.to_string())
}

#[track_caller]
fn made(client: &mut Client, path: &str, body: &Value) -> Value {
    let answer = put(client, path, body);
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

fn remove(client: &mut Client, path: &str) -> Answer {
    client.send("DELETE", path, &[], b"")
}

#[test]
fn an_endpoint_is_put_shown_listed_and_removed() {
    let (_directory, _server, mut client) = start();
    assert_eq!(client.get(SHOP).problem(), (404, "not_found".to_owned()));
    let empty = json!({"endpoints": [], "next": null});
    assert_eq!(client.get("/v1/endpoints").expect(200), empty);
    let whole = json!({
        "url": "https://example.com/hooks", "headers": {"X-Shop": "7"}, "timeout": "90s",
        "secrets": [{"id": "a", "secret": SECRET}, OTHER_SECRET],
        "retry": {"preset": "wechat"}, "concurrency": 5,
        "rate": {"per_second": 2.5, "burst": 9}, "disabled": true,
    });
    let answer = put(&mut client, SHOP, &whole);
    let shown = answer.expect(201);
    let revision = shown["revision"].as_u64().unwrap();
    assert_eq!(answer.header("etag"), Some(&*format!("\"{revision}\"")));
    let ids = [&shown["secrets"][0]["id"], &shown["secrets"][1]["id"]];
    assert!(ids[0] == "a" && ids[1].as_str().unwrap().len() == 16);
    let expected = json!({
        "endpoint": "shop", "revision": revision, "url": "https://example.com/hooks",
        "headers": {"x-shop": "7"}, "timeout": "1m 30s", "secrets": shown["secrets"],
        "sealed": false, "retry": {"preset": "wechat", "jitter": "none"}, "concurrency": 5,
        "rate": {"per_second": 2.5, "burst": 9}, "disabled": true,
        "health": {"state": "disabled", "failures": 0},
    });
    assert_eq!(shown, expected);
    let answer = client.get(SHOP);
    assert_eq!(answer.expect(200), expected);
    let text = String::from_utf8(answer.body).unwrap();
    assert!(
        !text.contains("MfKQ9r8G") && !text.contains("AAECAwQF"),
        "{text}"
    );

    // Put again, the same secret stays what it was.
    let again = made(&mut client, SHOP, &whole);
    assert_eq!(again["secrets"], shown["secrets"]);
    assert!(again["revision"].as_u64() > Some(revision));
    let bare = made(
        &mut client,
        "/v1/endpoints/a",
        &json!({"url": "http://x.example/"}),
    );
    let expected = json!({"endpoint": "a", "revision": bare["revision"], "url": "http://x.example/",
        "headers": {}, "secrets": [], "disabled": false,
        "health": {"state": "healthy", "failures": 0}});
    assert_eq!(bare, expected);
    let list = client.get("/v1/endpoints?limit=1").expect(200);
    assert_eq!(list, json!({"endpoints": [bare], "next": "a"}));
    let list = client.get("/v1/endpoints?after=a").expect(200);
    assert_eq!(list, json!({"endpoints": [again], "next": null}));
    for bad in ["limit=0", "limit=1001", "after=%2F", "more=1"] {
        let answer = client.get(&format!("/v1/endpoints?{bad}"));
        assert_eq!(answer.problem().0, 400, "{bad}");
    }

    let gone = json!({"endpoint": "shop", "removed": true});
    assert_eq!(remove(&mut client, SHOP).expect(200), gone);
    assert_eq!(remove(&mut client, SHOP).problem().0, 404);
    assert_eq!(client.get(SHOP).problem().0, 404);
}

#[test]
fn an_endpoint_is_changed_by_its_revision() {
    let (_directory, _server, mut client) = start();
    let body = json!({"url": "http://x.example/"}).to_string();
    let mut ask = |method: &str, header: (&str, &str)| {
        let headers = [("content-type", "application/json"), header];
        let body = if method == "PUT" {
            body.as_bytes()
        } else {
            b""
        };
        client.send(method, SHOP, &headers, body)
    };
    let problem = |answer: &Answer, status, code: &str| {
        assert_eq!(answer.problem(), (status, code.to_owned()));
        answer.json()["revision"].clone()
    };
    for header in [("if-match", "*"), ("if-match", "\"1\"")] {
        problem(&ask("PUT", header), 404, "not_found");
    }
    let first = ask("PUT", ("if-none-match", "*")).expect(201)["revision"].clone();
    let told = problem(&ask("PUT", ("if-none-match", "*")), 412, "exists");
    assert_eq!(told, first);
    let tag = format!("\"{first}\"");
    let second = ask("PUT", ("if-match", &tag)).expect(200)["revision"].clone();
    let told = problem(&ask("PUT", ("if-match", &tag)), 412, "revision_mismatch");
    assert_eq!(told, second);
    let third = ask("PUT", ("if-match", "*")).expect(200)["revision"].clone();
    let tag = format!("\"{third}\"");
    // The health changes without the revision.
    assert_eq!(ask("GET", ("if-none-match", "*")).status, 304);
    assert_eq!(ask("GET", ("if-none-match", &tag)).status, 200);
    problem(
        &ask("DELETE", ("if-match", "\"1\"")),
        412,
        "revision_mismatch",
    );
    problem(&ask("DELETE", ("if-none-match", "*")), 400, "malformed");
    assert_eq!(ask("DELETE", ("if-match", &tag)).status, 200);
}

/// Those that name no revision all come through, and of those that name one the first does.
#[test]
fn changes_at_the_same_time_lose_nothing() {
    let (_directory, server, mut client) = start();
    let body = |secret: &str, url: usize| {
        let url = format!("http://x.example/{url}");
        json!({"url": url, "secrets": [{"id": "a", "secret": secret}]}).to_string()
    };
    let first = client.json("PUT", SHOP, &body(SECRET, 0)).expect(201);
    let tag = format!("\"{}\"", first["revision"]);
    let put = |number: usize, tag: Option<&str>| {
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(tag.map(|tag| ("if-match", tag)));
        let kept = json!({"url": format!("http://x.example/{number}"), "secrets": [{"id": "a"}]});
        let body = kept.to_string();
        let answer = server.client().send("PUT", SHOP, &headers, body.as_bytes());
        answer.status
    };
    let all = |tag: Option<&str>| {
        let mut statuses: Vec<u16> = std::thread::scope(|scope| {
            let threads = (0..8).map(|number| scope.spawn(move || put(number, tag)));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        statuses.sort_unstable();
        statuses
    };
    let mut won = vec![200];
    won.extend([412; 7]);
    assert_eq!(all(Some(&tag)), won);
    assert_eq!(all(None), [200; 8]);
    let shown = client.get(SHOP).expect(200);
    assert_eq!(shown["secrets"], first["secrets"]);
    let changes = shown["revision"].as_u64().unwrap() - first["revision"].as_u64().unwrap();
    assert_eq!(changes, 9);
}

/// Both look at what is stored before they change it.
#[test]
fn of_an_endpoint_removed_and_named_by_a_queue_at_one_time_one_is_refused() {
    let (_directory, server, _) = start();
    let ask = |method: &str, path: &str, body: &Value| {
        let mut client = server.client();
        match method {
            "DELETE" => remove(&mut client, path).status,
            _ => put(&mut client, path, body).status,
        }
    };
    for number in 0..30 {
        let endpoint = format!("/v1/endpoints/e-{number}");
        let queue = format!("/v1/queues/q-{number}");
        assert_eq!(
            ask("PUT", &endpoint, &json!({"url": "http://x.example/"})),
            201
        );
        let names = json!({"endpoint": format!("e-{number}")});
        let both = std::thread::scope(|scope| {
            let removes = scope.spawn(|| ask("DELETE", &endpoint, &Value::Null));
            let puts = scope.spawn(|| ask("PUT", &queue, &names));
            (removes.join().unwrap(), puts.join().unwrap())
        });
        assert!(matches!(both, (200, 422) | (409, 201)), "{both:?}");
    }
}

#[test]
fn an_endpoint_that_breaks_a_rule_is_refused_with_its_field() {
    let (_directory, _server, mut client) = start();
    let own = pem(include_bytes!("tls/unknown.der"), "CERTIFICATE");
    let long = "x".repeat(8_193);
    let nine: Vec<_> = (0..9)
        .map(|id| json!({"id": id.to_string(), "secret": SECRET}))
        .collect();
    let table = [
        (json!({"more": 1}), (400, "malformed", "/more")),
        (json!({"url": null}), (400, "malformed", "/url")),
        (json!({"url": "ftp://x/"}), (422, "invalid_target", "/url")),
        (
            json!({"url": "http://x:22/"}),
            (422, "invalid_target", "/url"),
        ),
        (
            json!({"headers": {"host": "x"}}),
            (422, "invalid_target", "/headers/host"),
        ),
        (
            json!({"headers": {"webhook-id": "x"}}),
            (422, "invalid_target", "/headers/webhook-id"),
        ),
        (
            json!({"headers": {"x": long}}),
            (422, "invalid_target", "/headers"),
        ),
        (
            json!({"timeout": "99ms"}),
            (422, "invalid_target", "/timeout"),
        ),
        (
            json!({"retry": {"fixed": 0}}),
            (422, "invalid_retry", "/retry/fixed"),
        ),
        (
            json!({"concurrency": 0}),
            (422, "invalid_setting", "/concurrency"),
        ),
        (
            json!({"concurrency": 1_000_001}),
            (422, "invalid_setting", "/concurrency"),
        ),
        (
            json!({"concurrency": "5"}),
            (400, "malformed", "/concurrency"),
        ),
        (json!({"rate": 5}), (400, "malformed", "/rate")),
        (json!({"rate": {}}), (400, "malformed", "/rate/per_second")),
        (
            json!({"rate": {"per_second": "5"}}),
            (400, "malformed", "/rate/per_second"),
        ),
        (
            json!({"rate": {"per_second": 0}}),
            (422, "invalid_setting", "/rate/per_second"),
        ),
        (
            json!({"rate": {"per_second": -1}}),
            (422, "invalid_setting", "/rate/per_second"),
        ),
        (
            json!({"rate": {"per_second": 1, "burst": 0}}),
            (422, "invalid_setting", "/rate/burst"),
        ),
        (
            json!({"rate": {"per_second": 1, "more": 0}}),
            (400, "malformed", "/rate/more"),
        ),
        (json!({"disabled": "true"}), (400, "malformed", "/disabled")),
        (json!({"secrets": SECRET}), (400, "malformed", "/secrets")),
        (
            json!({"secrets": ["whsec_AAAA"]}),
            (422, "invalid_setting", "/secrets/0"),
        ),
        (
            json!({"secrets": [{"id": "a"}]}),
            (422, "invalid_setting", "/secrets/0/id"),
        ),
        (
            json!({"secrets": [{"secret": SECRET}]}),
            (400, "malformed", "/secrets/0/id"),
        ),
        (
            json!({"secrets": [{"id": "ü", "secret": SECRET}]}),
            (422, "invalid_setting", "/secrets/0/id"),
        ),
        (
            json!({"secrets": [{"id": "a", "secret": SECRET}, {"id": "a", "secret": SECRET}]}),
            (422, "invalid_setting", "/secrets/1"),
        ),
        (
            json!({"secrets": nine}),
            (422, "invalid_setting", "/secrets"),
        ),
        (json!({"ca": "x"}), (422, "invalid_setting", "/ca")),
        (json!({"ca": 1}), (400, "malformed", "/ca")),
        (
            json!({"ca": own.repeat(30)}),
            (422, "invalid_setting", "/ca"),
        ),
        (
            json!({"client_certificate": {"certificate": own}}),
            (422, "invalid_setting", "/client_certificate"),
        ),
        (
            json!({"client_certificate": {"certificate": "x", "key": "y"}}),
            (422, "invalid_setting", "/client_certificate/certificate"),
        ),
        (
            json!({"client_certificate": {"certificate": own, "key": "y"}}),
            (422, "invalid_setting", "/client_certificate/key"),
        ),
    ];
    for (wrong, (status, code, pointer)) in table {
        let mut body = json!({"url": "http://x.example/"});
        let fields = wrong.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(fields);
        let told = refused(&put(&mut client, SHOP, &body));
        assert_eq!(
            told,
            (status, code.to_owned(), pointer.to_owned()),
            "{wrong}"
        );
    }
    assert_eq!(refused(&put(&mut client, SHOP, &json!({}))).2, "/url");
    let body = json!({"url": "http://x.example/"});
    for bad in [
        "",
        "%2Fb",
        "a%20b%2Fb",
        "default%2F",
        "%C3%BC",
        &"x".repeat(129),
    ] {
        let path = format!("/v1/endpoints/{bad}");
        let told = put(&mut client, &path, &body).problem();
        assert_eq!(told, (400, "invalid_endpoint".to_owned()), "{bad}");
    }
    assert_eq!(
        client.get("/v1/endpoints").expect(200)["endpoints"],
        json!([])
    );
}

#[test]
fn the_settings_of_a_queue_are_put_shown_and_removed() {
    let (_directory, _server, mut client) = start();
    assert_eq!(client.get(ORDERS).problem(), (404, "not_found".to_owned()));
    let told = refused(&put(&mut client, ORDERS, &json!({"endpoint": "shop"})));
    assert_eq!(
        told,
        (422, "invalid_setting".to_owned(), "/endpoint".to_owned())
    );
    made(&mut client, SHOP, &json!({"url": "http://x.example/"}));
    let settings = json!({
        "endpoint": "shop", "retry": {"fixed": "5s"}, "timeout": "20s", "concurrency": 3,
        "rate": {"per_second": 0.5}, "payload_limit": 10, "missed": "collapse",
    });
    let answer = put(&mut client, ORDERS, &settings);
    let shown = answer.expect(201);
    let revision = shown["revision"].clone();
    assert_eq!(answer.header("etag"), Some(&*format!("\"{revision}\"")));
    let expected = json!({
        "queue": "orders", "revision": revision, "endpoint": "shop", "timeout": "20s",
        "retry": {"fixed": "5s", "jitter": "none"}, "concurrency": 3, "payload_limit": 10,
        "rate": {"per_second": 0.5, "burst": 1}, "missed": "collapse",
        "pending": 0, "delivering": 0, "done": 0, "dead": 0,
    });
    assert_eq!(shown, expected);
    assert_eq!(client.get(ORDERS).expect(200), expected);
    let counts = json!({"queue": "orders", "pending": 0, "delivering": 0, "done": 0, "dead": 0});
    assert_eq!(
        client.get("/v1/queues").expect(200),
        json!({"queues": [counts], "next": null})
    );

    for (wrong, status, code, pointer) in [
        (json!({"more": 1}), 400, "malformed", "/more"),
        (json!({"endpoint": 1}), 400, "malformed", "/endpoint"),
        (
            json!({"endpoint": "other"}),
            422,
            "invalid_setting",
            "/endpoint",
        ),
        (json!({"retry": {}}), 400, "malformed", "/retry"),
        (json!({"timeout": "1h"}), 422, "invalid_target", "/timeout"),
        (
            json!({"payload_limit": 16_777_217}),
            422,
            "invalid_setting",
            "/payload_limit",
        ),
        (
            json!({"payload_limit": -1}),
            422,
            "invalid_setting",
            "/payload_limit",
        ),
        (
            json!({"payload_limit": "1"}),
            400,
            "malformed",
            "/payload_limit",
        ),
        (json!({"missed": "skip"}), 422, "unschedulable", "/missed"),
    ] {
        let told = refused(&put(&mut client, ORDERS, &wrong));
        assert_eq!(
            told,
            (status, code.to_owned(), pointer.to_owned()),
            "{wrong}"
        );
    }

    // What names the endpoint keeps it, and timers keep the settings.
    let body = json!({"in": "9d", "body": 1});
    made(&mut client, TIMER, &body);
    let named = json!({"in": "9d", "target": {"endpoint": "shop"}});
    made(&mut client, "/v1/queues/other/timers/k", &named);
    let answer = remove(&mut client, SHOP);
    assert_eq!(answer.problem(), (409, "in_use".to_owned()));
    let detail = answer.json()["detail"].clone();
    assert_eq!(detail, "the endpoint is named by 1 timer and 1 queue");
    let answer = remove(&mut client, ORDERS);
    assert_eq!(answer.problem(), (409, "not_empty".to_owned()));
    remove(&mut client, TIMER).expect(200);
    remove(&mut client, ORDERS).expect(200);
    remove(&mut client, "/v1/queues/other/timers/k").expect(200);
    remove(&mut client, SHOP).expect(200);
    assert_eq!(remove(&mut client, ORDERS).problem().0, 404);
}

#[test]
fn a_queue_that_was_never_put_has_the_defaults() {
    let (_directory, _server, mut client) = start();
    made(
        &mut client,
        TIMER,
        &json!({"in": "9d", "target": {"url": "http://x.example/"}}),
    );
    let answer = client.get(ORDERS);
    let expected = json!({"queue": "orders", "revision": null, "pending": 1, "delivering": 0,
        "done": 0, "dead": 0});
    assert_eq!(answer.expect(200), expected);
    assert_eq!(answer.header("etag"), None);
    // The queue gets settings while it has timers, and its colon splits no verb off.
    made(&mut client, ORDERS, &json!({}));
    made(&mut client, "/v1/queues/a:pause", &json!({}));
    let shown = client.get("/v1/queues/a:pause").expect(200);
    assert_eq!(shown["queue"], "a:pause");
}

#[test]
fn a_set_takes_from_endpoint_and_queue_what_it_does_not_say() {
    let (_directory, _server, mut client) = start();
    let url = "http://x.example/";
    made(
        &mut client,
        SHOP,
        &json!({"url": url, "retry": {"fixed": "7s"}}),
    );
    made(&mut client, "/v1/endpoints/bare", &json!({"url": url}));
    let queue = json!({"retry": {"fixed": "8s"}, "timeout": "9s", "payload_limit": 3, "missed": "collapse"});
    made(&mut client, ORDERS, &queue);
    let mut fixed = |body: Value| {
        made(&mut client, TIMER, &body);
        let shown = client.get(TIMER).expect(200);
        (
            shown["retry"]["fixed"].clone(),
            shown["target"].clone(),
            shown["missed"].clone(),
        )
    };
    let collapse = json!("collapse");
    let own = fixed(json!({"in": "9d", "target": {"url": url}}));
    let target = json!({"url": url, "headers": {}, "timeout": "9s"});
    assert_eq!(own, (json!("8s"), target, collapse.clone()));
    let target = json!({"endpoint": "shop", "path": "/a?b=1"});
    let of_endpoint = fixed(json!({"in": "9d", "target": target, "missed": "fire"}));
    let target = json!({"endpoint": "shop", "path": "/a?b=1", "headers": {}, "timeout": "9s"});
    assert_eq!(of_endpoint, (json!("7s"), target, Value::Null));
    let of_queue = fixed(json!({"in": "9d", "target": {"endpoint": "bare"}}));
    assert_eq!(of_queue.0, "8s");
    let said = json!({"in": "9d", "target": {"endpoint": "shop", "timeout": "2s"}, "retry": {"fixed": "1s"}});
    let said = fixed(said);
    assert_eq!((said.0, &said.1["timeout"]), (json!("1s"), &json!("2s")));

    for (target, status, code, pointer) in [
        (
            json!({"endpoint": "none"}),
            422,
            "invalid_target",
            "/target/endpoint",
        ),
        (
            json!({"endpoint": "a/b"}),
            422,
            "invalid_target",
            "/target/endpoint",
        ),
        (json!({"endpoint": 1}), 400, "malformed", "/target/endpoint"),
        (
            json!({"endpoint": "shop", "url": url}),
            400,
            "malformed",
            "/target",
        ),
        (
            json!({"endpoint": "shop", "path": "a"}),
            422,
            "invalid_target",
            "/target/path",
        ),
        (
            json!({"endpoint": "shop", "path": "/../a"}),
            422,
            "invalid_target",
            "/target/path",
        ),
        (
            json!({"endpoint": "shop", "pth": "/a"}),
            400,
            "malformed",
            "/target/pth",
        ),
        (
            json!({"url": url, "path": "/a"}),
            400,
            "malformed",
            "/target/path",
        ),
        (json!({"path": "/a"}), 400, "malformed", "/target"),
        (json!({}), 400, "malformed", "/target"),
    ] {
        let body = json!({"in": "9d", "target": target});
        let told = refused(&put(&mut client, TIMER, &body));
        assert_eq!(
            told,
            (status, code.to_owned(), pointer.to_owned()),
            "{target}"
        );
    }
    let told = refused(&put(&mut client, TIMER, &json!({"in": "9d"})));
    assert_eq!(told, (400, "malformed".to_owned(), "/target".to_owned()));
    let large = json!({"in": "9d", "target": {"url": url}, "body": 1234});
    let told = refused(&put(&mut client, TIMER, &large));
    assert_eq!(told, (413, "too_large".to_owned(), "/body".to_owned()));
    made(
        &mut client,
        TIMER,
        &json!({"in": "9d", "target": {"url": url}, "body": 123}),
    );
}

#[test]
fn a_delivery_goes_where_its_endpoint_is_when_it_starts() {
    let (_directory, _server, mut client) = start();
    let (before, now) = (Target::answering("200 OK"), Target::answering("200 OK"));
    let endpoint = |url: &str| json!({"url": format!("{url}/base?k=7"), "headers": {"x-a": "endpoint", "x-b": "endpoint"}});
    made(&mut client, SHOP, &endpoint(&before.url));
    let target = json!({"endpoint": "shop", "path": "/orders/7?x=1", "headers": {"X-A": "timer"}});
    made(
        &mut client,
        TIMER,
        &json!({"in": "9d", "target": target, "body": {"n": 1}}),
    );
    made(&mut client, SHOP, &endpoint(&now.url));
    client
        .send("POST", &format!("{TIMER}:fire"), &[], b"")
        .expect(202);
    let delivery = now.next();
    assert_eq!(
        delivery.request_line,
        "POST /hook/base/orders/7?k=7&x=1 HTTP/1.1"
    );
    assert_eq!(
        (delivery.header("x-a"), delivery.header("x-b")),
        ("timer", "endpoint")
    );
    assert_eq!(delivery.body, br#"{"n":1}"#);
    assert!(!delivery.has("webhook-signature"));
    wait_for_state(&mut client, TIMER, "done");

    // A queue with an endpoint needs no target, and that of a timer may be all but the place.
    made(&mut client, ORDERS, &json!({"endpoint": "shop"}));
    made(&mut client, TIMER, &json!({"in": 0}));
    assert_eq!(now.next().request_line, "POST /hook/base?k=7 HTTP/1.1");
    let target = json!({"path": "/p", "method": "PUT"});
    made(&mut client, TIMER, &json!({"in": 0, "target": target}));
    assert_eq!(now.next().request_line, "PUT /hook/base/p?k=7 HTTP/1.1");
    // Where the queue's endpoint is another when the attempt starts, so is the place.
    made(&mut client, TIMER, &json!({"in": "9d"}));
    made(
        &mut client,
        "/v1/endpoints/other",
        &json!({"url": before.url}),
    );
    made(&mut client, ORDERS, &json!({"endpoint": "other"}));
    client
        .send("POST", &format!("{TIMER}:fire"), &[], b"")
        .expect(202);
    assert_eq!(before.next().request_line, "POST /hook HTTP/1.1");
}

/// Asks for something until it is so.
#[track_caller]
fn until(client: &mut Client, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let shown = (0..2_000).find_map(|_| {
        let shown = client.get(path).expect(200);
        crate::support::pause();
        is_so(&shown).then_some(shown)
    });
    shown.unwrap_or_else(|| panic!("{path}: {}", client.get(path).expect(200)))
}

#[test]
fn a_timer_without_a_usable_endpoint_waits_and_says_why() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("200 OK");
    let disabled = json!({"url": target.url, "disabled": true});
    made(&mut client, SHOP, &disabled);
    made(&mut client, ORDERS, &json!({"endpoint": "shop"}));
    let once = json!({"in": 0, "retry": {"fixed": 1, "max_attempts": 1}});
    made(&mut client, TIMER, &once);
    let held = until(&mut client, TIMER, |timer| timer["held_by"].is_string());
    assert_eq!(held["held_by"], "the endpoint shop is disabled");
    made(&mut client, ORDERS, &json!({}));
    let held = until(&mut client, TIMER, |timer| {
        timer["held_by"] != "the endpoint shop is disabled"
    });
    assert_eq!(held["held_by"], "the queue has no endpoint");
    let told = put(&mut client, TIMER, &once).problem();
    assert_eq!(told, (400, "malformed".to_owned()));
    // No attempt was made: the schedule is as it was.
    assert_eq!(
        (&held["state"], &held["attempt"]),
        (&json!("pending"), &json!(0))
    );
    made(&mut client, SHOP, &json!({"url": target.url}));
    made(&mut client, ORDERS, &json!({"endpoint": "shop"}));
    assert_eq!(target.next().header("timer-attempt"), "1");
    let done = wait_for_state(&mut client, TIMER, "done");
    assert!(done["held_by"].is_null());
}

/// What a timer waits for behind the one attempt that shows whether the endpoint is back.
#[test]
fn a_timer_behind_a_probe_says_what_it_waits_for() {
    let (_directory, _server, mut client) = start();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let target = Target::start(move |number| {
        if number == 0 {
            return reply("503 Service Unavailable", "");
        }
        // The probe has no answer until the test is over.
        held.recv().unwrap_or_default();
        reply("200 OK", "")
    });
    let breaker = json!({"failures": 1, "pause": "100ms"});
    let shop = json!({"url": target.url, "concurrency": 1, "breaker": breaker});
    made(&mut client, SHOP, &shop);
    fill(&mut client, 0..3, &json!({"endpoint": "shop"}));
    target.next();
    target.next();
    let why =
        "the endpoint shop is tried with one attempt at a time after 1 failures in a row: 503";
    let held = until(&mut client, &path(2), |timer| timer["held_by"].is_string());
    assert_eq!(
        (&held["held_by"], &held["attempt"]),
        (&json!(why), &json!(0))
    );
    drop(release);
}

/// A probe waited for the look that a scheduler takes each second.
#[test]
fn a_probe_comes_when_its_pause_is_over() {
    let (_directory, _server, mut client) = start();
    let target = Target::start(|number| match number {
        0..4 => reply("503 Service Unavailable", ""),
        _ => reply("200 OK", ""),
    });
    let breaker = json!({"failures": 1, "pause": "100ms", "pause_max": "100ms"});
    made(
        &mut client,
        SHOP,
        &json!({"url": target.url, "concurrency": 1, "breaker": breaker}),
    );
    fill(&mut client, 0..5, &json!({"endpoint": "shop"}));
    let clock = SystemClock::new();
    let began = clock.now();
    for _ in 0..5 {
        target.next();
    }
    let lasted = clock.now().saturating_since(began);
    // Four pauses; a second for each would be four seconds.
    assert!(
        lasted < std::time::Duration::from_millis(1_500),
        "{lasted:?}"
    );
}

#[test]
fn an_endpoint_asks_to_be_disabled_after_a_while() {
    let (_directory, _server, mut client) = start();
    let shop = |after: Value| json!({"url": "http://127.0.0.1:9/", "auto_disable": after});
    let shown = made(&mut client, SHOP, &shop(json!("120h")));
    assert_eq!(shown["auto_disable"], "120h");
    assert!(shown["disabled_reason"].is_null() && shown["disabled_at"].is_null());
    for after in [json!("59s"), json!("721h"), json!(0)] {
        let answer = put(&mut client, SHOP, &shop(after.clone()));
        assert_eq!(answer.json()["errors"][0]["pointer"], "/auto_disable");
        assert_eq!(
            answer.problem(),
            (422, "invalid_setting".to_owned()),
            "{after}"
        );
    }
}

/// An endpoint may call a status of failure done: then it works.
#[test]
fn an_answer_that_the_endpoint_calls_done_is_no_failure_of_it() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("503 Service Unavailable");
    let shop = json!({"url": target.url, "statuses": {"503": "done"}, "breaker": {"failures": 1}});
    made(&mut client, SHOP, &shop);
    fill(&mut client, 0..3, &json!({"endpoint": "shop"}));
    for _ in 0..3 {
        target.next();
    }
    until(&mut client, ORDERS, |queue| queue["done"] == 3);
    let health = &client.get(SHOP).expect(200)["health"];
    assert_eq!(*health, json!({"state": "healthy", "failures": 0}));
}

#[test]
fn a_timer_of_a_paused_queue_says_so() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("200 OK");
    let timer = json!({"in": 0, "target": {"url": target.url}});
    for (verb, why) in [
        ("pause", "the queue is paused"),
        ("drain", "the queue is drained"),
    ] {
        made(
            &mut client,
            TIMER,
            &json!({"in": "200ms", "target": {"url": target.url}}),
        );
        let path = format!("{ORDERS}:{verb}");
        match verb {
            "drain" => client.json("POST", &path, r#"{"mode": "hold"}"#),
            _ => client.send("POST", &path, &[], b""),
        }
        .expect(200);
        let held = until(&mut client, TIMER, |timer| timer["held_by"].is_string());
        assert_eq!(held["held_by"], why);
        client
            .send("POST", &format!("{ORDERS}:resume"), &[], b"")
            .expect(200);
        target.next();
    }
    made(&mut client, TIMER, &timer);
    target.next();
}

#[test]
fn an_endpoint_is_tested_beside_its_limits_and_its_health() {
    let (_directory, server, mut client) = start();
    let target = Target::answering("503 Service Unavailable");
    let secret = json!([{"id": "a", "secret": SECRET}]);
    let shop = json!({"url": target.url, "disabled": true, "breaker": {"failures": 1},
        "headers": {"x-shop": "7"}, "secrets": secret});
    made(&mut client, SHOP, &shop);
    let test = format!("{SHOP}:test");
    let sent =
        json!({"method": "PUT", "path": "/a?b=1", "body": {"n": 1}, "headers": {"x-own": "8"}});
    let answer = client.json("POST", &test, &sent.to_string()).expect(200);
    let delivery = target.next();
    assert_eq!(delivery.header("timer-test"), "1");
    assert_eq!(
        (delivery.header("x-shop"), delivery.header("x-own")),
        ("7", "8")
    );
    assert_eq!(
        delivery.header("webhook-signature"),
        signature(SECRET, &delivery)
    );
    let attempt = &answer["attempt"];
    assert_eq!(
        (
            &answer["endpoint"],
            &attempt["result"],
            &attempt["detail"],
            &attempt["answer"]["status"]
        ),
        (&json!("shop"), &json!("failed"), &json!("503"), &json!(503))
    );
    // Nothing is sent but what is there, and nothing is counted.
    client.send("POST", &test, &[], b"").expect(200);
    assert_eq!(target.next().header("timer-attempt"), "1");
    let url = format!("http://{}", server.address);
    let mut command = program();
    command.args(["endpoint", "test", "shop", "--path", "/b", "--server", &url]);
    let output = command.output().expect("it runs");
    let said = String::from_utf8(output.stdout).expect("a text");
    assert!(said.contains("shop  failed  503"), "{said}");
    assert_eq!(target.next().header("timer-test"), "1");
    assert_eq!(client.get(SHOP).expect(200)["health"]["failures"], 0);
    for (path, body, problem) in [
        ("/v1/endpoints/none:test", "{}", (404, "not_found")),
        ("/v1/endpoints/shop:try", "{}", (404, "not_found")),
        (&*test, r#"{"url": "http://x/"}"#, (400, "malformed")),
        (
            &*test,
            r#"{"method": "GET", "body": 1}"#,
            (422, "invalid_target"),
        ),
        (&*test, r#"{"path": "/../a"}"#, (422, "invalid_target")),
        (
            &*test,
            r#"{"headers": {"timer-test": "2"}}"#,
            (422, "invalid_target"),
        ),
    ] {
        let (status, code) = problem;
        let told = client.json("POST", path, body).problem();
        assert_eq!(told, (status, code.to_owned()), "{path} {body}");
    }
    assert!(target.quiet_for(std::time::Duration::from_millis(50)));
}

#[test]
fn an_endpoint_that_fails_again_and_again_is_left_alone_and_probed() {
    let (_directory, _server, mut client) = start();
    // The fourth is the first probe.
    let target = Target::start(|number| {
        let status = if number < 4 {
            "503 Service Unavailable"
        } else {
            "200 OK"
        };
        reply(status, "")
    });
    let breaker = json!({"failures": 3, "pause": "2s"});
    let shop = json!({"url": target.url, "concurrency": 1, "breaker": breaker});
    made(&mut client, SHOP, &shop);
    assert_eq!(client.get(SHOP).expect(200)["health"]["state"], "healthy");
    fill(&mut client, 0..6, &json!({"endpoint": "shop"}));
    for _ in 0..3 {
        target.next();
    }
    let paused = until(&mut client, SHOP, |shop| {
        shop["health"]["state"] == "paused"
    });
    let health = &paused["health"];
    assert_eq!(
        (&health["failures"], &health["last_failure"]["detail"]),
        (&json!(3), &json!("503"))
    );
    assert!(
        health["until"].is_string() && paused["breaker"]["pause_max"] == "5m",
        "{paused}"
    );
    let held = until(&mut client, &path(5), |timer| timer["held_by"].is_string());
    let why = "the endpoint shop is paused after 3 failures in a row: 503";
    assert_eq!(
        (&held["held_by"], &held["attempt"]),
        (&json!(why), &json!(0))
    );
    // A probe that fails, one that does not, and the rest.
    let probed = until(&mut client, &path(5), |timer| timer["held_by"] != why);
    if let Some(why) = probed["held_by"].as_str() {
        assert!(why.starts_with("the endpoint shop is "), "{why}");
    }
    for _ in 0..3 {
        target.next();
    }
    let queue = until(&mut client, ORDERS, |queue| queue["done"] == 2);
    assert_eq!(
        queue["pending"], 4,
        "they have failed, and come again in an hour"
    );
    assert_eq!(
        client.get(SHOP).expect(200)["health"],
        json!({"state": "healthy", "failures": 0})
    );

    for (breaker, pointer) in [
        (json!({"failures": 0}), "/breaker/failures"),
        (json!({"pause": "1ms"}), "/breaker/pause"),
        (
            json!({"pause": "2m", "pause_max": "1m"}),
            "/breaker/pause_max",
        ),
        (json!({"after": 1}), "/breaker/after"),
        (json!(3), "/breaker"),
    ] {
        let body = json!({"url": target.url, "breaker": breaker});
        let told = refused(&put(&mut client, SHOP, &body));
        assert_eq!((told.0 / 100, &*told.2), (4, pointer), "{told:?}");
    }
}

fn path(number: u32) -> String {
    format!("/v1/queues/orders/timers/k-{number}")
}

/// So many timers of the queue are due at once, each with an hour for its answer.
fn fill(client: &mut Client, numbers: std::ops::Range<u32>, target: &Value) {
    for number in numbers {
        let timer = json!({"in": 0, "target": target, "retry": {"fixed": "1h"}});
        made(client, &path(number), &timer);
    }
}

#[test]
fn a_receiver_that_hangs_delays_no_other_of_its_queue() {
    let directory = Directory::new();
    let options = ["--allow-private-targets", "--max-in-flight", "16"];
    let server = Server::with(&directory.0.join("data"), &options);
    let mut client = server.client();
    // The connection is made, and nobody reads what comes on it.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", hanging.local_addr().unwrap());
    fill(&mut client, 0..40, &json!({"url": url, "timeout": "10m"}));
    let share = until(&mut client, ORDERS, |queue| queue["delivering"] == 9);
    assert_eq!(share["pending"], 31, "9 of 16 places are its share");
    let target = Target::answering("200 OK");
    fill(&mut client, 100..120, &json!({"url": target.url}));
    for _ in 0..20 {
        target.next();
    }
    let left = until(&mut client, ORDERS, |queue| queue["done"] == 20);
    assert_eq!(
        (&left["delivering"], &left["pending"]),
        (&json!(9), &json!(31))
    );
    // What waits was held, and is not late.
    let held = client.get(&path(39)).expect(200);
    assert_eq!(held["state"], "pending");
}

#[test]
fn limits_of_endpoint_and_queue_hold_and_change_at_once() {
    let (_directory, _server, mut client) = start();
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", hanging.local_addr().unwrap());
    let shop = |limit: u32| json!({"url": url, "timeout": "10m", "concurrency": limit});
    made(&mut client, SHOP, &shop(2));
    fill(&mut client, 0..10, &json!({"endpoint": "shop"}));
    let delivering = |client: &mut Client, count: u32| {
        let queue = until(client, ORDERS, |queue| queue["delivering"] == count);
        assert_eq!(queue["pending"], 10 - count);
    };
    delivering(&mut client, 2);
    made(&mut client, SHOP, &shop(5));
    delivering(&mut client, 5);
    made(&mut client, ORDERS, &json!({"concurrency": 6}));
    made(&mut client, SHOP, &shop(9));
    delivering(&mut client, 6);
    made(&mut client, ORDERS, &json!({}));
    delivering(&mut client, 9);
}

#[test]
fn a_rate_holds_after_its_burst_and_may_be_lifted() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("200 OK");
    let rate = json!({"per_second": 0.001, "burst": 2});
    made(&mut client, SHOP, &json!({"url": target.url, "rate": rate}));
    fill(&mut client, 0..5, &json!({"endpoint": "shop"}));
    target.next();
    target.next();
    until(&mut client, ORDERS, |queue| queue["done"] == 2);
    assert_eq!(client.get(ORDERS).expect(200)["pending"], 3);
    made(&mut client, SHOP, &json!({"url": target.url}));
    for _ in 0..3 {
        target.next();
    }
}

/// Each change would begin a burst if the level of the bucket went with the rate of before.
#[test]
fn no_change_of_a_rate_begins_a_burst() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("200 OK");
    let shop = |per_second: f64, burst: u32, more: &Value| {
        let rate = json!({"per_second": per_second, "burst": burst});
        let mut shop = json!({"url": target.url, "rate": rate});
        let more = more.as_object().unwrap().clone();
        shop.as_object_mut().unwrap().extend(more);
        shop
    };
    let none = json!({});
    made(&mut client, SHOP, &shop(0.001, 2, &none));
    fill(&mut client, 0..9, &json!({"endpoint": "shop"}));
    (0..2).for_each(|_| drop(target.next()));
    until(&mut client, ORDERS, |queue| queue["done"] == 2);
    for (per_second, burst, more) in [
        (0.001, 2, json!({"disabled": true})),
        (0.001, 2, none.clone()),
        (0.002, 2, none.clone()),
        (0.001, 5, none.clone()),
        (0.001, 1, none.clone()),
        (0.001, 5, json!({"breaker": {}})),
    ] {
        made(&mut client, SHOP, &shop(per_second, burst, &more));
        // A start would be seen by then: what waits looks at each change at once.
        made(
            &mut client,
            &path(100),
            &json!({"in": 0, "target": {"url": target.url}}),
        );
        assert_eq!(target.next().header("timer-key"), "k-100");
        wait_for_state(&mut client, &path(100), "done");
    }
}

/// The signature of a delivery by a secret, as the specification says.
fn signature(secret: &str, delivery: &Delivery) -> String {
    let key = BASE64_STANDARD
        .decode(secret.trim_start_matches("whsec_"))
        .unwrap();
    let signed = [
        delivery.header("webhook-id").as_bytes(),
        delivery.header("webhook-timestamp").as_bytes(),
        &delivery.body,
    ];
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    let made = hmac::sign(&key, &signed.join(&b'.'));
    format!("v1,{}", BASE64_STANDARD.encode(made))
}

#[test]
fn a_delivery_is_signed_with_each_secret_of_its_endpoint() {
    let (_directory, _server, mut client) = start();
    let target = Target::start(|number| match number {
        0 => reply("500 Internal Server Error", ""),
        _ => reply("200 OK", ""),
    });
    let both = json!({"url": target.url, "secrets": [{"id": "new", "secret": OTHER_SECRET}, {"id": "old", "secret": SECRET}]});
    made(&mut client, SHOP, &both);
    let timer =
        json!({"in": 0, "target": {"endpoint": "shop"}, "body": {"n": 1}, "retry": {"fixed": 1}});
    made(&mut client, TIMER, &timer);
    for _ in 0..2 {
        let delivery = target.next();
        let signed = [OTHER_SECRET, SECRET].map(|secret| signature(secret, &delivery));
        assert_eq!(delivery.header("webhook-signature"), signed.join(" "));
    }
    // The old one goes, and the new one stays without being sent again.
    let one = json!({"url": target.url, "secrets": [{"id": "new"}]});
    made(&mut client, SHOP, &one);
    made(
        &mut client,
        TIMER,
        &json!({"in": 0, "target": {"endpoint": "shop"}}),
    );
    let delivery = target.next();
    let signed = signature(OTHER_SECRET, &delivery);
    assert_eq!(delivery.header("webhook-signature"), signed);
    // A timer with the same URL of its own is none of the endpoint's.
    made(
        &mut client,
        TIMER,
        &json!({"in": 0, "target": {"url": target.url}}),
    );
    assert!(!target.next().has("webhook-signature"));
}

fn pem(der: &[u8], label: &str) -> String {
    let base64 = BASE64_STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{base64}\n-----END {label}-----\n")
}

/// A target that shows a certificate of its own making, and asks for one of callers that `openssl ca -selfsign` made
/// with the same key.
fn mutual_target() -> String {
    let certificate = CertificateDer::from(include_bytes!("tls/unknown.der").as_slice());
    let key = PrivatePkcs8KeyDer::from(include_bytes!("tls/key.der").as_slice());
    let mut roots = RootCertStore::empty();
    let caller = CertificateDer::from(include_bytes!("tls/client.der").as_slice());
    roots.add(caller).unwrap();
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots))
        .build()
        .unwrap();
    let config = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = BufReader::new(StreamOwned::new(connection, stream));
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                if stream.read_line(&mut line).unwrap_or_default() == 0 {
                    break;
                }
            }
            let answer = reply("200 OK", "");
            stream
                .get_mut()
                .write_all(answer.as_bytes())
                .unwrap_or_default();
        }
    });
    format!("https://localhost:{port}/hook")
}

#[test]
fn an_endpoint_has_authorities_and_a_client_certificate_of_its_own() {
    let (_directory, _server, mut client) = start();
    let url = mutual_target();
    let own = pem(include_bytes!("tls/unknown.der"), "CERTIFICATE");
    let shown_to_it = pem(include_bytes!("tls/client.der"), "CERTIFICATE");
    let key = pem(include_bytes!("tls/key.der"), "PRIVATE KEY");
    let timer =
        json!({"in": 0, "target": {"endpoint": "shop"}, "retry": {"fixed": 1, "max_attempts": 1}});
    let whole = json!({"url": url, "ca": own, "client_certificate": {"certificate": shown_to_it, "key": key}});
    let shown = made(&mut client, SHOP, &whole);
    assert_eq!(
        shown["client_certificate"],
        json!({"certificate": shown_to_it})
    );
    assert_eq!(
        (&shown["ca"], &shown["sealed"]),
        (&json!(own), &json!(false))
    );
    made(&mut client, TIMER, &timer);
    wait_for_state(&mut client, TIMER, "done");
    // Put again without the key, the endpoint keeps it.
    let kept = json!({"url": url, "ca": own, "client_certificate": {"certificate": shown_to_it}});
    made(&mut client, SHOP, &kept);
    made(&mut client, TIMER, &timer);
    wait_for_state(&mut client, TIMER, "done");
    // Without a certificate the target hangs up; without the authority the service does.
    for (endpoint, is_own) in [
        (json!({"url": url, "ca": own}), false),
        (
            json!({"url": url, "client_certificate": {"certificate": shown_to_it, "key": key}}),
            true,
        ),
    ] {
        made(&mut client, SHOP, &endpoint);
        made(&mut client, TIMER, &timer);
        let dead = wait_for_state(&mut client, TIMER, "dead");
        let detail = dead["attempts"][0]["detail"].as_str().unwrap();
        let unknown = detail == "tls: the issuer of the certificate is unknown";
        assert_eq!(unknown, is_own, "{detail}");
    }
}

const KEY: &str = "0707070707070707070707070707070707070707070707070707070707070707";
const OTHER_KEY: &str = "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg=";

/// Whether a text stands anywhere in the files of a directory.
fn has(directory: &Path, text: &str) -> bool {
    let mut entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries.any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return has(&path, text);
        }
        let bytes = std::fs::read(&path).unwrap();
        bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    })
}

#[test]
fn secrets_are_sealed_on_the_disk_and_open_with_their_key_alone() {
    let directory = Directory::new();
    let (data, keys) = (directory.0.join("data"), directory.0.join("keys"));
    let start = |text: &str| {
        std::fs::write(&keys, text).unwrap();
        let keys = format!("--secret-key-file={}", keys.display());
        Server::with(&data, &["--allow-private-targets", &keys])
    };
    let target = Target::answering("200 OK");
    let sent = json!({"url": target.url, "secrets": [{"id": "a", "secret": SECRET}]});
    let timer =
        json!({"in": 0, "target": {"endpoint": "shop"}, "retry": {"fixed": 1, "max_attempts": 1}});
    let server = start(KEY);
    let mut client = server.client();
    assert_eq!(made(&mut client, SHOP, &sent)["sealed"], true);
    made(&mut client, TIMER, &timer);
    let delivery = target.next();
    assert_eq!(
        delivery.header("webhook-signature"),
        signature(SECRET, &delivery)
    );
    assert!(server.stop().success());
    assert!(!has(&data, &SECRET[6..]));

    // Another key seals anew what the old one opens; then the old one may go.
    let revision = |client: &mut Client| client.get(SHOP).expect(200)["revision"].as_u64();
    let server = start(&format!("{OTHER_KEY}\n{KEY}\n"));
    let mut client = server.client();
    let resealed = (0..2_000).find_map(|_| {
        crate::support::pause();
        revision(&mut client).filter(|revision| *revision > 1)
    });
    assert!(resealed.is_some(), "it is sealed anew");
    assert!(server.stop().success());
    let server = start(OTHER_KEY);
    let mut client = server.client();
    assert_eq!(revision(&mut client), resealed);
    made(&mut client, TIMER, &timer);
    let delivery = target.next();
    assert_eq!(
        delivery.header("webhook-signature"),
        signature(SECRET, &delivery)
    );
    assert!(server.stop().success());

    // Without the key nothing leaves unsigned.
    let server = start(KEY);
    let mut client = server.client();
    let fault = client.get(SHOP).expect(200)["fault"].clone();
    assert!(
        fault.as_str().unwrap().starts_with("secret a: the key "),
        "{fault}"
    );
    made(&mut client, TIMER, &timer);
    let held = until(&mut client, TIMER, |timer| timer["held_by"].is_string());
    let detail = "the endpoint shop cannot be used: a secret cannot be opened";
    assert_eq!(held["held_by"], detail);
    made(&mut client, SHOP, &sent);
    target.next();
}

/// A change that keeps a secret while the start seals it anew keeps the secret under the new key.
#[test]
fn all_endpoints_are_sealed_with_the_new_key_whatever_changes_meanwhile() {
    const ENDPOINTS: u32 = 60;
    let directory = Directory::new();
    let (data, keys) = (directory.0.join("data"), directory.0.join("keys"));
    let start = |text: &str| {
        std::fs::write(&keys, text).unwrap();
        let keys = format!("--secret-key-file={}", keys.display());
        Server::with(&data, &["--allow-private-targets", &keys])
    };
    let path = |number: u32| format!("/v1/endpoints/e-{number}");
    let server = start(KEY);
    let mut client = server.client();
    for number in 0..ENDPOINTS {
        let secrets = json!([{"id": "a", "secret": SECRET}]);
        let endpoint = json!({"url": "http://x.example/", "secrets": secrets});
        made(&mut client, &path(number), &endpoint);
    }
    assert!(server.stop().success());
    let server = start(&format!("{OTHER_KEY}\n{KEY}\n"));
    let mut client = server.client();
    for number in (0..ENDPOINTS).rev() {
        let kept = json!({"url": "http://y.example/", "secrets": [{"id": "a"}]});
        made(&mut client, &path(number), &kept);
    }
    // Each of them was kept by a change, so nothing is left for the start to do.
    assert!(server.stop().success());
    let server = start(OTHER_KEY);
    let mut client = server.client();
    for number in 0..ENDPOINTS {
        let shown = client.get(&path(number)).expect(200);
        assert!(shown["fault"].is_null(), "{shown}");
        assert_eq!(shown["url"], "http://y.example/");
    }
}

#[test]
fn without_a_key_secrets_are_kept_on_this_machine_alone() {
    let directory = Directory::new();
    let token = "0123456789abcdef0123456789abcdef";
    let mut command: Command = program();
    let data = directory.0.join("data");
    command
        .args(["serve", "--listen", "0.0.0.0:0", "--data"])
        .arg(&data);
    command.env("COUNTWHEEL_TOKEN", token);
    let server = Server::spawn(command);
    let address = server.address.replace("0.0.0.0", "127.0.0.1");
    let mut client = Client::to(&address);
    client
        .headers
        .push(("authorization".to_owned(), format!("Bearer {token}")));
    let url = "http://x.example/";
    let with_secret = json!({"url": url, "secrets": [SECRET]});
    let told = refused(&put(&mut client, SHOP, &with_secret));
    assert_eq!(
        told,
        (
            422,
            "secret_key_required".to_owned(),
            "/secrets/0".to_owned()
        )
    );
    let own = pem(include_bytes!("tls/unknown.der"), "CERTIFICATE");
    let key = pem(include_bytes!("tls/key.der"), "PRIVATE KEY");
    let with_key = json!({"url": url, "client_certificate": {"certificate": own, "key": key}});
    let told = refused(&put(&mut client, SHOP, &with_key));
    let pointer = "/client_certificate/key".to_owned();
    assert_eq!(told, (422, "secret_key_required".to_owned(), pointer));
    made(&mut client, SHOP, &json!({"url": url}));
}

#[test]
fn a_file_of_keys_that_cannot_be_used_is_refused_at_the_start() {
    let directory = Directory::new();
    let file = directory.0.join("keys");
    for (text, said) in [("", "has 1 to 16 of them"), ("x", "line 1 is no key")] {
        std::fs::write(&file, text).unwrap();
        let mut command = program();
        command
            .arg("serve")
            .arg("--data")
            .arg(directory.0.join("data"));
        command.arg("--secret-key-file").arg(&file);
        let output = output_of_refusal(command).expect("it ends");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(said), "{error}");
        assert_eq!(output.status.code(), Some(1));
    }
    let mut command = program();
    command
        .args(["serve", "--listen", "0.0.0.0:0", "--data"])
        .arg(directory.0.join("data"));
    command.env("COUNTWHEEL_TOKEN", "0123456789abcdef0123456789abcdef");
    command.arg("--secret-key-file").arg(&file);
    std::fs::write(&file, KEY).unwrap();
    let output = output_of_refusal(command).expect("it ends");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("set its mode to 0400"), "{error}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn queues_and_endpoints_survive_a_restart_and_a_snapshot() {
    let directory = Directory::new();
    let at = |name| directory.0.join(name);
    let (data, snapshots, restored) = (at("data"), at("snapshots"), at("restored"));
    let place = snapshots.to_str().unwrap();
    let server = Server::with(&data, &["--allow-private-targets", "--snapshot-dir", place]);
    let mut client = server.client();
    let target = Target::answering("200 OK");
    let endpoint = json!({"url": target.url, "secrets": [SECRET], "retry": {"fixed": "3s"}});
    let endpoint = made(&mut client, SHOP, &endpoint);
    let queue = made(
        &mut client,
        ORDERS,
        &json!({"endpoint": "shop", "payload_limit": 7}),
    );
    made(&mut client, TIMER, &json!({"in": "9d"}));
    let snapshot = client.json("POST", "/v1/snapshots", r#"{"name": "one"}"#);
    snapshot.expect(201);
    drop(server);
    let mut command = program();
    command
        .arg("restore")
        .arg(snapshots.join("one"))
        .arg(&restored);
    assert!(command.output().unwrap().status.success());
    for data in [&data, &restored] {
        let server = Server::start(data);
        let mut client = server.client();
        assert_eq!(client.get(SHOP).expect(200), endpoint);
        let shown = client.get(ORDERS).expect(200);
        for field in ["endpoint", "payload_limit", "revision"] {
            assert_eq!(shown[field], queue[field], "{field}");
        }
        client
            .send("POST", &format!("{TIMER}:fire"), &[], b"")
            .expect(202);
        let delivery = target.next();
        assert_eq!(
            delivery.header("webhook-signature"),
            signature(SECRET, &delivery)
        );
        // A revision is not given twice.
        let again = made(&mut client, SHOP, &json!({"url": target.url}));
        assert!(again["revision"].as_u64() > queue["revision"].as_u64());
    }
}

/// What a command says, on standard output or else on standard error, and its exit code.
fn run(server: &Server, arguments: &[&str]) -> (String, Option<i32>) {
    let mut command = program();
    command.args(arguments);
    command.args(["--server", &format!("http://{}", server.address)]);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = match &output.stdout[..] {
        [] => text(&output.stderr),
        said => text(said),
    };
    (said, output.status.code())
}

#[test]
fn commands_put_show_list_and_remove_endpoints_and_queues() {
    let (directory, server, mut client) = start();
    let target = Target::answering("200 OK");
    let file = directory.0.join("shop.json");
    let text = json!({"url": target.url, "secrets": [{"id": "a", "secret": SECRET}]});
    std::fs::write(&file, text.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let put = ["endpoint", "put", "shop", "--file", file, "--if-absent"];
    let (said, code) = run(&server, &put);
    assert!(
        said.starts_with("put ") && said.contains(&target.url),
        "{said}"
    );
    assert_eq!(code, Some(0));
    let (said, code) = run(&server, &put);
    assert!(said.contains("(exists)"), "{said}");
    assert_eq!(code, Some(1));
    let options = [
        "endpoint",
        "put",
        "other",
        "--url",
        &target.url,
        "--header",
        "X-Shop: 7",
        "--timeout",
        "2s",
        "--concurrency",
        "3",
        "--per-second",
        "2.5",
        "--burst",
        "4",
        "--disabled",
        "--json",
    ];
    let (said, code) = run(&server, &options);
    let shown: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(code, Some(0));
    assert_eq!(shown, client.get("/v1/endpoints/other").expect(200));
    assert_eq!(shown["rate"], json!({"per_second": 2.5, "burst": 4}));
    assert_eq!(
        (&shown["concurrency"], &shown["timeout"]),
        (&json!(3), &json!("2s"))
    );

    let (said, _) = run(&server, &["endpoint", "list"]);
    let lines: Vec<Vec<&str>> = said
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines[0],
        ["ENDPOINT", "URL", "SECRETS", "REVISION", "STATE"]
    );
    let first = [
        "other",
        &target.url,
        "0",
        &shown["revision"].to_string(),
        "disabled",
    ];
    assert_eq!(lines[1], first);
    assert_eq!((lines[2][0], lines[2][2], lines[2][4]), ("shop", "1", "-"));
    let (said, _) = run(&server, &["endpoint", "get", "shop"]);
    assert!(
        said.contains(&target.url) && said.contains("secret") && !said.contains(SECRET),
        "{said}"
    );

    let (said, code) = run(
        &server,
        &[
            "queue",
            "put",
            "--queue",
            "orders",
            "--endpoint",
            "shop",
            "--payload-limit",
            "9",
        ],
    );
    assert!(said.starts_with("put ") && code == Some(0), "{said}");
    let (said, _) = run(&server, &["queue", "get", "--queue", "orders"]);
    assert!(
        said.contains("shop") && said.contains("9 bytes") && said.contains("0 pending"),
        "{said}"
    );
    let set = [
        "set",
        "k",
        "--queue",
        "orders",
        "--in",
        "0s",
        "--endpoint",
        "shop",
        "--path",
        "/a?b=1",
    ];
    assert_eq!(run(&server, &set).1, Some(0));
    assert_eq!(target.next().request_line, "POST /hook/a?b=1 HTTP/1.1");
    wait_for_state(&mut client, TIMER, "done");
    let (said, _) = run(&server, &["get", "k", "--queue", "orders"]);
    assert!(said.contains("endpoint shop /a?b=1"), "{said}");

    let (said, code) = run(&server, &["endpoint", "remove", "shop"]);
    assert!(
        said.contains("the endpoint is named by 0 timers and 1 queue (in_use)"),
        "{said}"
    );
    assert_eq!(code, Some(1));
    for (arguments, code) in [
        (
            &["queue", "remove", "--queue", "orders", "--if-revision", "1"][..],
            1,
        ),
        (&["queue", "remove", "--queue", "orders"], 0),
        (&["queue", "remove", "--queue", "orders"], 2),
        (&["endpoint", "remove", "shop"], 0),
        (&["endpoint", "get", "shop"], 2),
        (&["endpoint", "put", "x"], 2),
        (&["endpoint", "put", "x", "--file", "/no/such/file"], 2),
        (
            &["endpoint", "put", "x", "--file", file, "--url", "http://x/"],
            2,
        ),
        (
            &["endpoint", "put", "x", "--url", "http://x/", "--burst", "1"],
            2,
        ),
        (
            &[
                "set",
                "k",
                "--in",
                "5s",
                "--endpoint",
                "x",
                "--post",
                "http://x/",
            ],
            2,
        ),
        (
            &[
                "set",
                "k",
                "--in",
                "5s",
                "--post",
                "http://x/",
                "--path",
                "/a",
            ],
            2,
        ),
    ] {
        let (said, found) = run(&server, arguments);
        assert_eq!(found, Some(code), "{arguments:?}: {said}");
    }
}

/// Timers with a place by name are lines of an export like others.
#[test]
fn an_export_of_a_timer_with_an_endpoint_is_imported_where_that_is() {
    let (directory, server, mut client) = start();
    let (_other_directory, other, mut there) = start();
    let target = Target::answering("200 OK");
    for client in [&mut client, &mut there] {
        made(client, SHOP, &json!({"url": target.url}));
        made(client, ORDERS, &json!({"endpoint": "shop"}));
    }
    let named =
        json!({"in": "9d", "target": {"endpoint": "shop", "path": "/p", "headers": {"x-a": "1"}}});
    made(&mut client, TIMER, &named);
    made(
        &mut client,
        "/v1/queues/orders/timers/of-queue",
        &json!({"in": "9d"}),
    );
    let (lines, code) = run(&server, &["export"]);
    assert_eq!(code, Some(0), "{lines}");
    let file = directory.0.join("lines");
    std::fs::write(&file, lines).unwrap();
    let (said, code) = run(&other, &["import", file.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    for key in [TIMER, "/v1/queues/orders/timers/of-queue"] {
        let before = client.get(key).expect(200)["target"].clone();
        assert_eq!(there.get(key).expect(200)["target"], before);
    }
}

/// A file with a certificate and its key in one was shown whole.
#[test]
fn a_private_key_among_certificates_is_refused() {
    let (_directory, _server, mut client) = start();
    let both = format!("{}{}", pem(b"x", "CERTIFICATE"), pem(b"y", "PRIVATE KEY"));
    for (body, pointer) in [
        (json!({"ca": both}), "/ca"),
        (
            json!({"client_certificate": {"certificate": both, "key": "z"}}),
            "/client_certificate/certificate",
        ),
    ] {
        let mut endpoint = json!({"url": "http://x.example/"});
        endpoint
            .as_object_mut()
            .unwrap()
            .extend(body.as_object().unwrap().clone());
        let told = refused(&put(&mut client, SHOP, &endpoint));
        assert_eq!(
            told,
            (422, "invalid_setting".to_owned(), pointer.to_owned())
        );
    }
    assert_eq!(client.get(SHOP).status, 404);
}

#[test]
fn of_the_timers_with_one_serial_key_one_is_delivered_at_a_time() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("200 OK");
    let set = |number: u32, more: Value| {
        let mut timer = json!({"in": 300 * number, "target": {"url": target.url}});
        timer
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        (path(number), timer)
    };
    let (at, timer) = set(0, json!({"serial_key": "customer-7"}));
    let told = refused(&put(&mut client, &at, &timer));
    assert_eq!(
        told,
        (422, "invalid_setting".to_owned(), "/serial_key".to_owned())
    );
    for (field, bad) in [
        ("serial_key", json!("")),
        ("priority", json!(-1)),
        ("priority", json!(4_294_967_296_u64)),
    ] {
        let (at, timer) = set(0, json!({field: bad}));
        let told = refused(&put(&mut client, &at, &timer));
        assert_eq!((told.0 / 100, told.2), (4, format!("/{field}")), "{bad}");
    }
    made(&mut client, ORDERS, &json!({"serial": true, "priority": 9}));
    assert_eq!(client.get(ORDERS).expect(200)["serial"], true);
    // The first of a customer hangs, and the others of this one wait for it, and nobody else.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", hanging.local_addr().unwrap());
    let first = json!({"in": 0, "target": {"url": url, "timeout": "3s"}, "serial_key": "customer-7",
        "retry": {"fixed": "1h"}});
    made(&mut client, &path(100), &first);
    wait_for_state(&mut client, &path(100), "delivering");
    for number in [3, 1, 2] {
        let (at, timer) = set(number, json!({"serial_key": "customer-7", "priority": 5}));
        made(&mut client, &at, &timer);
    }
    let (at, timer) = set(4, json!({"serial_key": "customer-8"}));
    made(&mut client, &at, &timer);
    assert_eq!(target.next().header("timer-key"), "k-4");
    let shown = client.get(&path(1)).expect(200);
    assert_eq!(
        (&shown["serial_key"], &shown["priority"]),
        (&json!("customer-7"), &json!(5))
    );
    // In the order of their due times, once the first has failed.
    for number in [1, 2, 3] {
        assert_eq!(target.next().header("timer-key"), format!("k-{number}"));
    }
}

#[test]
fn a_changed_priority_of_a_queue_counts_for_those_that_come_to_wait() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("200 OK");
    let shop = |disabled: bool| json!({"url": target.url, "concurrency": 1, "disabled": disabled});
    made(&mut client, SHOP, &shop(true));
    let queue = |priority: u32| json!({"endpoint": "shop", "priority": priority});
    made(&mut client, ORDERS, &queue(5));
    made(&mut client, "/v1/queues/letters", &queue(6));
    let letter = "/v1/queues/letters/timers/letter";
    made(&mut client, &path(1), &json!({"in": 0}));
    made(&mut client, letter, &json!({"in": 0}));
    made(&mut client, &path(2), &json!({"in": 0, "priority": 1}));
    for path in [&path(1), letter, &path(2)] {
        until(&mut client, path, |timer| timer["held_by"].is_string());
    }
    made(&mut client, ORDERS, &queue(9));
    made(&mut client, &path(3), &json!({"in": 0}));
    until(&mut client, &path(3), |timer| timer["held_by"].is_string());
    made(&mut client, SHOP, &shop(false));
    for key in ["k-2", "k-1", "letter", "k-3"] {
        assert_eq!(target.next().header("timer-key"), key);
    }
}

#[test]
fn of_those_that_wait_the_most_urgent_comes_first() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("200 OK");
    let shop = |disabled: bool| json!({"url": target.url, "concurrency": 1, "disabled": disabled});
    made(&mut client, SHOP, &shop(true));
    made(
        &mut client,
        ORDERS,
        &json!({"endpoint": "shop", "priority": 5}),
    );
    for (number, priority) in [(1, Some(6)), (2, None), (3, Some(0)), (4, Some(7))] {
        let mut timer = json!({"in": 0});
        if let Some(priority) = priority {
            timer["priority"] = json!(priority);
        }
        made(&mut client, &path(number), &timer);
    }
    until(&mut client, &path(4), |timer| timer["held_by"].is_string());
    made(&mut client, SHOP, &shop(false));
    for number in [3, 2, 1, 4] {
        assert_eq!(target.next().header("timer-key"), format!("k-{number}"));
    }
}
