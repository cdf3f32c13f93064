//! The audit log of a real process: who, from where, what, and how it stood. `sim audit` has the worlds, these are a
//! sentence each.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Client, Directory, Server, program};

const FAR: &str = r#"{"in":"9d","target":{"url":"http://x.invalid/MARKER-url","headers":{"x-a":"MARKER-header"}},"body":"MARKER-body"}"#;
const TIMER: &str = "/v1/queues/orders/timers/a";

fn start(options: &[&str]) -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::with(&directory.0.join("data"), options);
    let client = server.client();
    (directory, server, client)
}

fn with(server: &Server, token: &str) -> Client {
    let mut client = server.client();
    client.headers = vec![("authorization".to_owned(), format!("Bearer {token}"))];
    client
}

/// The whole log, the oldest entry first.
#[track_caller]
fn log(client: &mut Client) -> Vec<Value> {
    let page = client.get("/v1/audit?order=oldest&limit=1000").expect(200);
    assert_eq!(page["next"], Value::Null, "{page}");
    assert_eq!(page.get("unreadable"), None, "{page}");
    page["items"].as_array().unwrap().clone()
}

fn operations(entries: &[Value]) -> Vec<&str> {
    let operations = entries.iter().map(|entry| &entry["operation"]);
    operations.map(|it| it.as_str().unwrap()).collect()
}

fn field<'a>(entry: &'a Value, name: &str) -> &'a Value {
    let fields = entry["fields"].as_array().unwrap();
    let found = fields.iter().find(|field| field["field"] == name);
    found.unwrap_or(&Value::Null)
}

#[test]
fn each_change_of_settings_has_an_entry_with_who_and_from_where() {
    let (directory, server, mut client) = start(&[]);
    let anyone = client.json("PUT", "/v1/queues/orders", r#"{"concurrency":3}"#);
    let request = anyone.header("x-request-id").unwrap().to_owned();
    anyone.expect(201);
    let made = client.json("POST", "/v1/tokens", r#"{"name":"ada","scopes":["admin"]}"#);
    let made = made.expect(201);
    let mut ada = with(&server, made["token"].as_str().unwrap());
    ada.json(
        "PUT",
        "/v1/queues/orders",
        r#"{"concurrency":5,"timeout":"9s"}"#,
    )
    .expect(200);
    ada.json(
        "PUT",
        "/v1/endpoints/shop",
        r#"{"url":"https://example.com/"}"#,
    )
    .expect(201);
    ada.send("DELETE", "/v1/endpoints/shop", &[], b"")
        .expect(200);
    ada.json("POST", "/v1/queues/orders:pause", "{}")
        .expect(200);
    ada.json("POST", "/v1/queues/orders:resume", "{}")
        .expect(200);
    ada.json("POST", "/v1/queues:drain", r#"{"mode":"hold"}"#)
        .expect(200);
    ada.json("POST", "/v1/queues:resume", "{}").expect(200);
    // Nothing is paused, and nothing changes.
    ada.json("POST", "/v1/queues/orders:resume", "{}")
        .expect(200);
    // What is refused has no entry.
    ada.json("PUT", "/v1/queues/orders", r#"{"concurrency":-1}"#);
    ada.send("DELETE", "/v1/endpoints/shop", &[], b"").problem();
    ada.send("DELETE", "/v1/queues/orders", &[], b"")
        .expect(200);
    let entries = log(&mut ada);
    assert_eq!(
        operations(&entries),
        [
            "putQueue",
            "createToken",
            "putQueue",
            "putEndpoint",
            "removeEndpoint",
            "pauseQueue",
            "resumeQueue",
            "drainAllQueues",
            "resumeAllQueues",
            "removeQueue"
        ]
    );
    let first = &entries[0];
    assert_eq!(first["who"], json!({"kind": "anyone"}));
    assert_eq!(
        (&first["from"], &first["request"]),
        (&json!("127.0.0.1"), &json!(request))
    );
    assert_eq!(first["setting"], "queue/orders");
    assert_eq!(
        (&first["before"], &first["after"]["revision"]),
        (&Value::Null, &json!(1))
    );
    assert_eq!(
        field(first, "concurrency"),
        &json!({"field": "concurrency", "after": 3})
    );
    let who = json!({"kind": "token", "id": made["id"], "name": "ada"});
    for entry in &entries[2..] {
        assert_eq!(entry["who"], who, "{entry}");
    }
    let changed = &entries[2];
    assert_eq!(changed["before"]["revision"], 1);
    assert_eq!(
        changed["fields"],
        json!([{"field": "concurrency", "before": 3, "after": 5}, {"field": "timeout", "after": "9s"}])
    );
    assert_eq!(entries[5]["details"]["drain"]["mode"], "pause");
    let removed = entries.last().unwrap();
    assert_eq!(removed["after"], Value::Null);
    assert_eq!(field(removed, "concurrency")["before"], 5);

    // A restart keeps the log.
    drop((client, ada, server));
    let server = Server::with(&directory.0.join("data"), &[]);
    let mut ada = with(&server, made["token"].as_str().unwrap());
    assert_eq!(log(&mut ada), entries);
}

#[test]
fn what_people_do_to_timers_is_noted_and_what_services_do_if_it_is_asked_for() {
    for (options, all) in [(&[][..], false), (&["--audit-timers"], true)] {
        let (_directory, _server, mut client) = start(options);
        client.json("PUT", TIMER, FAR).expect(201);
        client.json("PATCH", TIMER, r#"{"in":"8d"}"#).expect(200);
        let shown = client.get(TIMER).expect(200);
        client
            .json("POST", &format!("{TIMER}:fire"), "{}")
            .expect(202);
        client.send("DELETE", TIMER, &[], b"");
        let batch = "{\"op\":\"set\",\"queue\":\"orders\",\"key\":\"b\",\"in\":\"9d\",\"target\":{\"url\":\"http://x.invalid/\"}}\n{\"op\":\"fire\",\"queue\":\"orders\",\"key\":\"b\"}\n";
        let kind = [("content-type", "application/x-ndjson")];
        for path in ["/v1/batch", "/v1/batch?atomic=true"] {
            let done = client.send("POST", path, &kind, batch.as_bytes());
            assert_eq!(done.status, 200, "{done:?}");
        }
        let job = r#"{"queue":"orders","action":"remove","filter":{"prefix":"z"}}"#;
        client.json("POST", "/v1/jobs", job).expect(202);
        client
            .json("POST", "/v1/queues/orders:purge", "{}")
            .expect(202);
        let entries = log(&mut client);
        let of_timers: Vec<_> = entries
            .iter()
            .filter(|entry| entry.get("key").is_some())
            .map(|entry| entry["action"].as_str().unwrap())
            .collect();
        let expected: &[&str] = if all {
            &[
                "set", "move", "fire", "remove", "set", "fire", "set", "fire",
            ]
        } else {
            &["fire", "fire", "fire"]
        };
        assert_eq!(of_timers, expected, "{entries:?}");
        let fired = entries
            .iter()
            .find(|entry| entry["operation"] == "fireTimer");
        let fired = fired.unwrap();
        assert_eq!(
            (&fired["queue"], &fired["key"]),
            (&json!("orders"), &json!("a"))
        );
        let before = json!({"state": "pending", "due": shown["due"], "revision": shown["revision"], "attempts": 0});
        assert_eq!(fired["before"], before);
        assert!(fired["after"]["revision"].as_u64() > shown["revision"].as_u64());
        let job = entries
            .iter()
            .find(|entry| entry["operation"] == "beginJob");
        let details = &job.unwrap()["details"];
        assert_eq!(
            (&details["action"], &details["filter"]["prefix"]),
            (&json!("remove"), &json!("z"))
        );
        assert!(operations(&entries).contains(&"purgeQueue"));
    }
}

/// A service with what a snapshot has.
fn restore(snapshot: &Path, into: &Path) -> Server {
    let restore = program().arg("restore").arg(snapshot).arg(into).output();
    let done = restore.unwrap();
    assert!(done.status.success(), "{done:?}");
    Server::start(into)
}

/// A snapshot changes no timer and no setting that anybody has made, and had no entry.
#[test]
fn a_snapshot_has_an_entry_and_one_that_is_refused_has_none() {
    let directory = Directory::new();
    let at = |name| directory.0.join(name);
    let snapshots = at("snapshots");
    let options = ["--snapshot-dir", snapshots.to_str().unwrap()];
    let server = Server::with(&at("data"), &options);
    let mut client = server.client();
    let make = |client: &mut Client, name: &str| {
        let body = json!({ "name": name }).to_string();
        client.json("POST", "/v1/snapshots", &body)
    };
    let made = make(&mut client, "one");
    let request = made.header("x-request-id").unwrap().to_owned();
    made.expect(201);
    assert_eq!(make(&mut client, "../two").status, 400);
    make(&mut client, "two").expect(201);
    let entries = log(&mut client);
    assert_eq!(operations(&entries), ["makeSnapshot", "makeSnapshot"]);
    let first = &entries[0];
    assert_eq!(first["details"], json!({"snapshot": "one"}));
    assert_eq!(first["setting"], "operation/makeSnapshot");
    assert_eq!(
        (&first["who"]["kind"], &first["request"]),
        (&json!("anyone"), &json!(request))
    );
    assert_eq!(first["before"], Value::Null);
    assert_eq!(entries[1]["before"], first["after"]);
    // The entry is in the snapshot that it is about, and no list of settings has it.
    drop((client, server));
    let again = Server::with(&at("data"), &["--audit-keep", "0"]);
    assert_eq!(log(&mut again.client()), entries);
    again.stop();
    let restored = restore(&snapshots.join("one"), &at("restored"));
    assert_eq!(log(&mut restored.client()), entries[..1]);
    let queues = restored.client().get("/v1/queues").expect(200);
    assert_eq!(queues["queues"], json!([]), "{queues}");
}

/// A token that somebody makes in a data directory had no entry: the first one of a service, which makes all others.
#[test]
fn a_token_that_is_made_in_a_directory_has_an_entry_in_the_same_commit() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    drop(Server::with(&data, &[]));
    let made = program()
        .args(["token", "create", "--json", "ada", "--scope", "admin"])
        .arg("--data")
        .arg(&data)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let (id, token) = (
        made["id"].as_str().unwrap(),
        made["token"].as_str().unwrap(),
    );
    let server = Server::with(&data, &[]);
    let mut ada = with(&server, token);
    let entries = log(&mut ada);
    assert_eq!(operations(&entries), ["createToken"]);
    let entry = &entries[0];
    let user = rustix::process::geteuid().as_raw();
    assert_eq!(entry["who"], json!({"kind": "directory"}));
    assert_eq!(entry["from"], format!("user {user}"));
    assert_eq!(entry["setting"], format!("token/{id}"));
    assert_eq!(entry["before"], Value::Null);
    let shown = ada.get(&format!("/v1/tokens/{id}")).expect(200);
    assert_eq!(entry["after"]["revision"], shown["revision"]);
    assert_eq!(
        (field(entry, "name"), field(entry, "secret")),
        (
            &json!({"field": "name", "after": "ada"}),
            &json!({"field": "secret"})
        )
    );
    assert!(
        !entry
            .to_string()
            .contains(token.rsplit('_').next().unwrap())
    );
    // What is made after it has places of its own.
    ada.json("PUT", "/v1/queues/orders", r#"{"concurrency":3}"#)
        .expect(201);
    ada.json("PUT", TIMER, FAR).expect(201);
    assert_eq!(operations(&log(&mut ada)), ["createToken", "putQueue"]);
}

#[test]
fn no_entry_has_a_secret() {
    let (_directory, server, mut client) = start(&["--audit-timers"]);
    let made = client
        .json("POST", "/v1/tokens", r#"{"name":"ada","scopes":["admin"]}"#)
        .expect(201);
    let (id, token) = (
        made["id"].as_str().unwrap(),
        made["token"].as_str().unwrap(),
    );
    let mut ada = with(&server, token);
    let endpoint = |path: &str, header: &str| {
        json!({
            "url": format!("https://MARKERuser:MARKERword@example.com/MARKER{path}?key=MARKER"),
            "headers": {"authorization": format!("MARKER{header}")},
        })
        .to_string()
    };
    // A user in a URL may be refused: then the path and the query alone are the markers.
    let put = ada.json("PUT", "/v1/endpoints/shop", &endpoint("one", "one"));
    let plain = |path: &str| {
        json!({
            "url": format!("https://example.com/MARKER{path}?key=MARKER"),
            "headers": {"authorization": format!("MARKER{path}")},
            "timeout": "5s",
        })
        .to_string()
    };
    assert!(put.status == 201 || put.status >= 400);
    assert!(ada.json("PUT", "/v1/endpoints/shop", &plain("two")).status < 300);
    ada.json("PUT", "/v1/endpoints/shop", &plain("three"))
        .expect(200);
    let rotated = ada.json(
        "POST",
        &format!("/v1/tokens/{id}:rotate"),
        r#"{"overlap":"1h"}"#,
    );
    let rotated = rotated.expect(200);
    let mut ada = with(&server, rotated["token"].as_str().unwrap());
    ada.json("PUT", TIMER, FAR).expect(201);
    ada.json("POST", &format!("{TIMER}:fire"), "{}").expect(202);
    let text = ada.get("/v1/audit?limit=1000");
    let text = String::from_utf8_lossy(&text.body).into_owned();
    for secret in [
        "MARKER",
        "hash",
        token.rsplit('_').next().unwrap(),
        rotated["token"]
            .as_str()
            .unwrap()
            .rsplit('_')
            .next()
            .unwrap(),
    ] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let entries = log(&mut ada);
    let changed = entries
        .iter()
        .rfind(|entry| entry["operation"] == "putEndpoint");
    let changed = changed.unwrap();
    let origin =
        json!({"field": "url", "before": "https://example.com", "after": "https://example.com"});
    assert_eq!(field(changed, "url"), &origin);
    assert_eq!(field(changed, "headers"), &json!({"field": "headers"}));
    let rotated = entries
        .iter()
        .find(|entry| entry["operation"] == "rotateToken");
    let rotated = rotated.unwrap();
    assert_eq!(field(rotated, "secret"), &json!({"field": "secret"}));
    assert!(field(rotated, "before_until")["after"].is_string());
}

#[test]
fn the_log_is_read_in_pages_and_by_who_what_and_when() {
    let (_directory, server, mut client) = start(&[]);
    let made = client
        .json("POST", "/v1/tokens", r#"{"name":"ada","scopes":["admin"]}"#)
        .expect(201);
    let mut ada = with(&server, made["token"].as_str().unwrap());
    for number in 0..25 {
        let path = format!("/v1/queues/q-{number}");
        ada.json("PUT", &path, r#"{"concurrency":1}"#).expect(201);
        if number % 5 == 0 {
            ada.send("DELETE", &path, &[], b"").expect(200);
        }
    }
    let oldest = log(&mut ada);
    assert_eq!(oldest.len(), 31);
    let mut walk = |query: &str| {
        let (mut found, mut after) = (Vec::new(), String::new());
        loop {
            let page = ada.get(&format!("/v1/audit?{query}{after}")).expect(200);
            found.extend(page["items"].as_array().unwrap().clone());
            match page["next"].as_str() {
                None => return found,
                Some(next) => after = format!("&after={next}"),
            }
        }
    };
    let mut newest = oldest.clone();
    newest.reverse();
    assert_eq!(walk("limit=4"), newest);
    assert_eq!(walk("limit=4&order=oldest"), oldest);
    let removed: Vec<_> = newest
        .iter()
        .filter(|entry| entry["operation"] == "removeQueue")
        .cloned()
        .collect();
    assert_eq!(removed.len(), 5);
    assert_eq!(walk("limit=2&operation=removeQueue"), removed);
    assert_eq!(walk("limit=7&who=ada"), newest[..30]);
    assert_eq!(walk("who=anyone"), newest[30..]);
    assert_eq!(walk("who=nobody"), [] as [Value; 0]);
    let middle = oldest[10]["at"].as_str().unwrap();
    let since = walk(&format!("limit=3&since={middle}"));
    let until = walk(&format!("limit=3&until={middle}"));
    assert_eq!([since, until].concat(), newest);
    for bad in ["order=due", "limit=0", "since=noon", "after=x", "what=x"] {
        let refused = ada.get(&format!("/v1/audit?{bad}"));
        assert_eq!(refused.problem(), (400, "malformed".to_owned()), "{bad}");
    }

    // It is for those with the scope admin.
    for scope in ["read", "write", "deliver", "metrics"] {
        let body = json!({"name": "scoped", "scopes": [scope]}).to_string();
        let made = ada.json("POST", "/v1/tokens", &body).expect(201);
        let mut scoped = with(&server, made["token"].as_str().unwrap());
        assert_eq!(scoped.get("/v1/audit").status, 403, "{scope}");
    }
    assert_eq!(client.get("/v1/audit").status, 401);
}

#[test]
fn a_service_without_the_log_writes_none() {
    for off in ["0", "off"] {
        let (_directory, _server, mut client) = start(&["--audit-keep", off, "--audit-timers"]);
        client.json("PUT", "/v1/queues/orders", "{}").expect(201);
        client.json("PUT", TIMER, FAR).expect(201);
        client
            .json("POST", &format!("{TIMER}:fire"), "{}")
            .expect(202);
        assert_eq!(log(&mut client), [] as [Value; 0]);
    }
}

#[test]
fn an_entry_is_gone_once_its_time_is_over() {
    let (_directory, _server, mut client) = start(&["--audit-keep", "2s"]);
    client.json("PUT", "/v1/queues/orders", "{}").expect(201);
    let entry = log(&mut client).remove(0);
    assert_ne!(entry["kept_until"], entry["at"]);
    while !log(&mut client).is_empty() {
        crate::support::pause();
    }
}

/// Entries are in a queue of the engine's own, which nothing shows and nothing reaches.
#[test]
fn entries_are_no_timers() {
    let (_directory, server, mut client) = start(&["--audit-timers"]);
    for key in ["a", "b", "c"] {
        let path = format!("/v1/queues/orders/timers/{key}");
        client.json("PUT", &path, FAR).expect(201);
    }
    assert_eq!(log(&mut client).len(), 3);
    let queues = client.get("/v1/queues").expect(200);
    assert_eq!(queues["queues"].as_array().unwrap().len(), 1, "{queues}");
    assert_eq!(queues["queues"][0]["dead"], 0);
    for path in [
        "/metrics",
        "/",
        "/dead",
        "/v1/stats",
        "/v1/timers?state=dead",
    ] {
        let shown = client.get(path);
        let text = String::from_utf8_lossy(&shown.body);
        assert!(
            shown.status == 200 && !text.contains("countwheel:internal"),
            "{path}: {text}"
        );
    }
    let all = client.get("/v1/timers?state=dead").expect(200);
    assert_eq!(all["items"], json!([]));
    let hidden = client.get("/v1/queues/countwheel:internal%2Faudit/timers");
    assert_eq!(hidden.problem(), (404, "not_found".to_owned()));
    let exported = program()
        .args(["export", "--server", &format!("http://{}", server.address)])
        .output()
        .unwrap();
    let exported = String::from_utf8_lossy(&exported.stdout);
    assert!(exported.contains("orders") && !exported.contains("countwheel:internal"));
}

#[test]
fn the_caller_behind_a_proxy_is_the_one_that_the_proxy_names() {
    let (_directory, _server, mut client) = start(&["--trusted-proxy", "127.0.0.1"]);
    let json = ("content-type", "application/json");
    for forwarded in ["203.0.113.9", "198.51.100.1, 203.0.113.9"] {
        let headers = [json, ("x-forwarded-for", forwarded)];
        let put = client.send("PUT", "/v1/queues/orders", &headers, b"{}");
        assert!(put.status < 300, "{put:?}");
    }
    for entry in log(&mut client) {
        assert_eq!(entry["from"], "203.0.113.9");
    }
    // Of anybody else, the header says nothing.
    let (_directory, _server, mut client) = start(&[]);
    let headers = [json, ("x-forwarded-for", "203.0.113.9")];
    client
        .send("PUT", "/v1/queues/orders", &headers, b"{}")
        .expect(201);
    assert_eq!(log(&mut client)[0]["from"], "127.0.0.1");
}

#[test]
fn a_snapshot_has_the_log() {
    let directory = Directory::new();
    let snapshots = directory.0.join("snapshots");
    let data = directory.0.join("data");
    let server = Server::with(&data, &["--snapshot-dir", snapshots.to_str().unwrap()]);
    let mut client = server.client();
    client.json("PUT", "/v1/queues/orders", "{}").expect(201);
    let said = log(&mut client);
    assert_eq!(said.len(), 1);
    client
        .json("POST", "/v1/snapshots", r#"{"name": "s"}"#)
        .expect(201);
    server.stop();
    let server = restore(&snapshots.join("s"), &directory.0.join("restored"));
    let restored = log(&mut server.client());
    assert_eq!(restored[..1], said);
    assert_eq!(operations(&restored), ["putQueue", "makeSnapshot"]);
}

#[test]
fn the_command_shows_the_log_as_a_table_and_as_json() {
    let (_directory, server, mut client) = start(&[]);
    for number in 0..3 {
        let path = format!("/v1/queues/q-{number}");
        client
            .json("PUT", &path, r#"{"concurrency":1}"#)
            .expect(201);
    }
    let address = format!("http://{}", server.address);
    let show = |options: &[&str]| {
        let done = program()
            .args(["audit", "--server", &address])
            .args(options)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        let [out, err] = [done.stdout, done.stderr].map(|it| String::from_utf8(it).unwrap());
        (out, err)
    };
    let (table, more) = show(&["--limit", "2"]);
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(
        lines[1].contains("queue/q-2") && lines[2].contains("queue/q-1"),
        "{table}"
    );
    for part in ["anyone", "127.0.0.1", "putQueue", "concurrency"] {
        assert!(lines[1].contains(part), "{part}: {table}");
    }
    assert_eq!(more, "there may be more: --limit shows them\n");
    let said = log(&mut client);
    let (lines, more) = show(&["--oldest", "--json"]);
    let read = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    assert_eq!(read.collect::<Vec<Value>>(), said);
    assert_eq!(more, "");
    let since = said[1]["at"].as_str().unwrap();
    let (lines, _) = show(&["--json", "--since", since]);
    assert_eq!(lines.lines().count(), 2);
    let (lines, _) = show(&["--json", "--until", since, "--operation", "putQueue"]);
    assert_eq!(lines.lines().count(), 1);
    assert_eq!(show(&["--json", "--who", "configured"]).0, "");
}
