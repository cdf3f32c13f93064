//! What the service says of itself while it goes on without something.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

use crate::support::{Client, Directory, Server, pause};

/// Health was green while every set was refused, and nobody was told when to ask again.
#[test]
fn a_store_without_room_is_degraded_and_says_when_to_ask_again() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    let token = json!({"name": "operator", "scopes": ["admin"]}).to_string();
    let token = client.json("POST", "/v1/tokens", &token).expect(201);
    let bearer = format!("Bearer {}", token["token"].as_str().unwrap());
    client.headers = vec![("authorization".to_owned(), bearer)];
    // Without room for files nobody can connect.
    let mut anyone = server.client();
    anyone.get("/healthz").expect(200);
    let limit = |to| {
        let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap());
        prlimit(pid, Resource::Nofile, to).unwrap()
    };
    let body = json!({
        "in": "1h",
        "body": "timers ".repeat(10_000),
        "content_type": "text/plain",
        "target": {"url": "http://127.0.0.1:9/"},
    });
    let body = body.to_string();
    assert_eq!(client.get("/healthz").expect(200), json!({"status": "ok"}));
    let before = limit(Rlimit {
        current: Some(0),
        maximum: getrlimit(Resource::Nofile).maximum,
    });
    let refused = (0..200).find_map(|number| {
        let path = format!("/v1/queues/default/timers/{number}");
        let answer = client.json("PUT", &path, &body);
        (answer.status != 201).then_some(answer)
    });
    let refused = refused.expect("a file has to be opened some time");
    assert_eq!(refused.problem(), (507, "storage_full".into()));
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    for (path, well) in [("/healthz", "ok"), ("/readyz", "ready")] {
        let status = client.get(path).expect(200);
        assert_ne!(status["status"], well);
        assert_eq!(status["status"], "degraded");
        let why = &status["degraded"][0];
        assert_eq!(why["reason"], "disk_full", "{status}");
        assert!(why["since"].is_string() && why["detail"].is_string());
        // Everyone else learns of it without the names of files.
        let open = anyone.get(path).expect(200);
        let open = open["degraded"][0].as_object().unwrap();
        assert_eq!(open.keys().collect::<Vec<_>>(), ["reason", "since"]);
    }
    let page = |client: &mut Client| String::from_utf8(client.get("/").body).unwrap();
    let told = client.get("/healthz").expect(200);
    let file = told["degraded"][0]["file"].as_str().unwrap();
    let first = page(&mut client);
    assert!(
        first.contains("disk_full") && first.contains(file),
        "{first}"
    );
    assert!(first.contains("Health: degraded"), "{first}");
    let metrics = |client: &mut Client| String::from_utf8(client.get("/metrics").body).unwrap();
    let full = "countwheel_degraded{reason=\"disk_full\"}";
    assert!(metrics(&mut client).contains(&format!("{full} 1\n")));
    limit(before);
    while client.get("/healthz").expect(200) != json!({"status": "ok"}) {
        pause();
    }
    assert!(metrics(&mut client).contains(&format!("{full} 0\n")));
    let well = page(&mut client);
    assert!(well.contains("Health: <span class=\"ok\">ok"), "{well}");
    let path = "/v1/queues/default/timers/k";
    client.json("PUT", path, &body).expect(201);
}

/// Health asks for no token, so it must not tell more than the reason to whoever shows none.
#[test]
fn without_the_token_no_file_is_named() {
    let directory = Directory::new();
    let token = directory.0.join("token");
    std::fs::write(&token, "secret").unwrap();
    let token = token.to_str().unwrap();
    let server = Server::with(&directory.0.join("data"), &["--token-file", token]);
    let mut owner = server.client();
    let authorization = ("authorization".to_owned(), "Bearer secret".to_owned());
    owner.headers.push(authorization);
    let mut stranger = server.client();
    stranger.get("/healthz").expect(200);
    let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap());
    let none = Rlimit {
        current: Some(0),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    owner.get("/healthz").expect(200);
    prlimit(pid, Resource::Nofile, none).unwrap();
    let body = json!({
        "in": "1h",
        "body": "timers ".repeat(10_000),
        "content_type": "text/plain",
        "target": {"url": "http://example.com/"},
    });
    let body = body.to_string();
    let path = |number| format!("/v1/queues/default/timers/{number}");
    let refused = (0..200).find(|&number| owner.json("PUT", &path(number), &body).status == 507);
    assert!(refused.is_some());
    let told = owner.get("/healthz").expect(200);
    let file = told["degraded"][0]["file"]
        .as_str()
        .expect("a file")
        .to_owned();
    let page = |client: &mut Client| String::from_utf8(client.get("/").body).unwrap();
    let (own, strange) = (page(&mut owner), page(&mut stranger));
    assert!(own.contains("disk_full") && own.contains(&file), "{own}");
    assert!(!strange.contains("disk_full"), "{strange}");
    let told = stranger.get("/healthz").expect(200);
    let why = &told["degraded"][0];
    assert_eq!(why["reason"], "disk_full");
    assert!(why["file"].is_null() && why["detail"].is_null(), "{told}");
}

/// Flips a bit of what stands behind `text` in a table below `data`.
fn damage(data: &Path, text: &str) {
    let is_table = |path: &PathBuf| path.to_string_lossy().contains("/table-");
    let tables = std::fs::read_dir(data.join("tables")).unwrap();
    let tables = tables.map(|entry| entry.unwrap().path()).filter(is_table);
    let damaged = tables.filter(|path| {
        let mut bytes = std::fs::read(path).unwrap();
        let mut windows = bytes.windows(text.len());
        let Some(at) = windows.position(|window| window == text.as_bytes()) else {
            return false;
        };
        bytes[at] ^= 1;
        std::fs::write(path, bytes).unwrap();
        true
    });
    assert!(damaged.count() > 0, "{text} is in no table");
}

/// What callers see of timers whose block on the disk is damaged, from the first look to the last.
#[test]
fn a_timer_that_cannot_be_read_is_refused_left_out_counted_and_replaced() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let server = Server::start(&data);
    let mut client = server.client();
    let path = |key: &str| format!("/v1/queues/orders/timers/{key}");
    let body = |text: &str| {
        json!({
            "in": "9d", "body": text, "content_type": "text/plain",
            "target": {"url": "http://127.0.0.1:9/"},
        })
        .to_string()
    };
    // Each is too large to share a block with another.
    let keys = ["one", "two", "sound"];
    let marked = |key: &str| format!("MARK-{key}-{}", "timers ".repeat(10_000));
    for key in keys {
        client
            .json("PUT", &path(key), &body(&marked(key)))
            .expect(201);
    }
    let filling = body(&"x".repeat(900_000));
    for number in 0..6 {
        let filler = format!("/v1/queues/filler/timers/{number}");
        client.json("PUT", &filler, &filling).expect(201);
    }
    let is_moved = || {
        let names = std::fs::read_dir(data.join("tables")).unwrap();
        let mut names = names.map(|entry| entry.unwrap().file_name());
        names.any(|name| name.to_string_lossy().starts_with("table-"))
    };
    while !is_moved() {
        pause();
    }
    assert!(server.stop().success());
    for key in ["one", "two"] {
        damage(&data, &format!("MARK-{key}-"));
    }

    let server = Server::start(&data);
    let mut client = server.client();
    for (method, path, headers) in [
        ("GET", path("one"), &[][..]),
        ("PATCH", path("one"), &[]),
        ("POST", path("one") + ":fire", &[]),
        ("DELETE", path("one"), &[("if-match", "\"1\"")]),
        ("PUT", path("one"), &[("if-none-match", "*")]),
    ] {
        let (kind, body) = match method {
            "PATCH" => (Some("application/json"), r#"{"in": "1h"}"#.to_owned()),
            "PUT" => (Some("application/json"), body("new")),
            _ => (None, String::new()),
        };
        let kind = kind.map(|kind| ("content-type", kind));
        let headers: Vec<_> = headers.iter().copied().chain(kind).collect();
        let refused = client.send(method, &path, &headers, body.as_bytes());
        let told = refused.json();
        assert_eq!(refused.problem(), (500, "unreadable".into()), "{method}");
        assert_eq!(told["title"], "Unreadable timer");
    }
    let list = client.get("/v1/queues/orders/timers").expect(200);
    assert_eq!(list["unreadable"], 2, "{list}");
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), 1);
    assert_eq!(items[0]["key"], "sound");
    // Nobody else is taken along.
    client.get(&path("sound")).expect(200);
    client.json("PUT", &path("new"), &body("new")).expect(201);
    for place in ["/healthz", "/readyz"] {
        let status = client.get(place).expect(200);
        assert_eq!(status["status"], "degraded");
        let why = status["degraded"].as_array().unwrap().iter();
        let record = why.filter(|why| why["reason"] == "unreadable_record");
        let record: Vec<_> = record.collect();
        assert!(!record.is_empty(), "{status}");
        let file = record[0]["file"].as_str().unwrap();
        assert!(file.contains("/tables/table-"), "{status}");
    }
    let metrics = |client: &mut Client| String::from_utf8(client.get("/metrics").body).unwrap();
    let text = metrics(&mut client);
    let degraded = "countwheel_degraded{reason=\"unreadable_record\"}";
    assert!(text.contains(&format!("{degraded} 1\n")), "{text}");
    let reads = text.lines().find_map(|line| {
        let count = line.strip_prefix("countwheel_unreadable_total ")?;
        count.parse::<u64>().ok()
    });
    assert!(reads.unwrap() >= 4, "{reads:?}");

    let removed = client.send("DELETE", &path("one"), &[], b"").expect(200);
    assert_eq!(removed, json!({"was": "unreadable"}));
    assert_eq!(
        client.get(&path("one")).problem(),
        (404, "not_found".into())
    );
    assert!(client.json("PUT", &path("two"), &body("new")).status < 300);
    let there = client.get(&path("two")).expect(200);
    assert_eq!(
        (&there["state"], &there["body_bytes"]),
        (&json!("pending"), &json!(3))
    );
    let list = client.get("/v1/queues/orders/timers").expect(200);
    assert!(list["unreadable"].is_null(), "{list}");
    assert_eq!(list["items"].as_array().unwrap().len(), 3);
    assert!(server.stop().success());
    let server = Server::start(&data);
    let mut client = server.client();
    assert_eq!(client.get(&path("one")).status, 404);
    client.get(&path("two")).expect(200);
}
