//! Tokens that are stored: what each opens, and what becomes of one that is wrong, rotated or revoked.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, Server, program};

fn create(data: &Path, arguments: &[&str]) -> Output {
    program()
        .args(["token", "create", "--data"])
        .arg(data)
        .args(arguments)
        .output()
        .unwrap()
}

/// The one line that a command prints.
#[track_caller]
fn line(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let line = text.strip_suffix('\n').unwrap();
    assert!(!line.contains('\n'), "{text}");
    line.to_owned()
}

/// A store with one token for everything, and that token.
fn first(directory: &Directory) -> (std::path::PathBuf, String) {
    let data = directory.0.join("data");
    let made = program().arg("init").arg(&data).status().unwrap();
    assert!(made.success());
    let token = line(&create(&data, &["operator", "--scope", "admin"]));
    (data, token)
}

fn with(server: &Server, token: &str) -> Client {
    let mut client = server.client();
    let shown = format!("Bearer {token}");
    client.headers = vec![("authorization".to_owned(), shown)];
    client
}

#[track_caller]
fn made(admin: &mut Client, body: &Value) -> (String, String) {
    let made = admin.json("POST", "/v1/tokens", &body.to_string());
    assert_eq!(made.header("cache-control"), Some("no-store"));
    let made = made.expect(201);
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    assert!(text("token").starts_with(&format!("cwt_{}_", text("id"))));
    (text("id"), text("token"))
}

fn may(answer: &Answer) -> bool {
    assert_ne!(answer.status, 401, "{answer:?}");
    answer.status != 403
}

const TIMER: &str = "/v1/queues/q/timers/k";
const SET: &str = r#"{"in":"1h","target":{"url":"https://example.com/"}}"#;

/// What each scope opens: one request for each, and whether it is done.
fn opened(client: &mut Client) -> [bool; 7] {
    [
        may(&client.get("/v1/queues")),
        may(&client.json("POST", "/v1/simulate", r#"{"retry":{"fixed":"1s"}}"#)),
        may(&client.json("PUT", TIMER, SET)),
        may(&client.json("POST", "/v1/leases", r#"{"queues":["pulled"]}"#)),
        may(&client.json(
            "PUT",
            "/v1/endpoints/e",
            r#"{"url":"https://example.com/"}"#,
        )),
        may(&client.get("/v1/tokens")),
        may(&client.get("/metrics")),
    ]
}

#[test]
fn each_scope_opens_what_it_says_and_nothing_else() {
    let directory = Directory::new();
    let (data, token) = first(&directory);
    let server = Server::with(&data, &[]);
    let mut admin = with(&server, &token);
    assert_eq!(opened(&mut admin), [true; 7]);
    let pulled = r#"{"mode":"pull"}"#;
    admin.json("PUT", "/v1/queues/pulled", pulled).expect(201);
    for (scopes, expected) in [
        (json!(["read"]), [1, 1, 0, 0, 0, 0, 0]),
        (json!(["write"]), [0, 0, 1, 0, 0, 0, 0]),
        (json!(["deliver"]), [0, 0, 0, 1, 0, 0, 0]),
        (json!(["metrics"]), [0, 0, 0, 0, 0, 0, 1]),
        (json!(["deliver", "read"]), [1, 1, 0, 1, 0, 0, 0]),
    ] {
        let body = json!({"name": "scoped", "scopes": scopes});
        let (_, token) = made(&mut admin, &body);
        let opened = opened(&mut with(&server, &token));
        assert_eq!(opened, expected.map(|it| it == 1), "{scopes}");
    }
    // A refusal says nothing of what is there.
    let (_, token) = made(&mut admin, &json!({"name": "w", "scopes": ["metrics"]}));
    let mut other = with(&server, &token);
    let there = other.get(TIMER);
    let not_there = other.get("/v1/queues/q/timers/none");
    assert_eq!(there.body, not_there.body);
    assert_eq!(there.problem(), (403, "forbidden".into()));
}

#[test]
fn a_token_that_is_missing_wrong_revoked_or_rotated_away_gets_the_same_answer() {
    let directory = Directory::new();
    let (data, token) = first(&directory);
    let server = Server::with(&data, &[]);
    let mut admin = with(&server, &token);
    let body = json!({"name": "jobs", "scopes": ["read"]});
    let (id, old) = made(&mut admin, &body);
    let path = format!("/v1/tokens/{id}");
    let rotate = format!("{path}:rotate");
    let read = |token: &str| with(&server, token).get("/v1/queues");
    assert_eq!(read(&old).status, 200);
    let overlap = admin
        .json("POST", &rotate, r#"{"overlap":"1h"}"#)
        .expect(200);
    let new = overlap["token"].as_str().unwrap().to_owned();
    assert!(overlap["before_until"].is_string());
    assert_eq!((read(&old).status, read(&new).status), (200, 200));
    // Without an overlap the secret before counts no more.
    let last = admin.send("POST", &rotate, &[], b"").expect(200);
    let last = last["token"].as_str().unwrap().to_owned();
    assert_eq!(read(&last).status, 200);
    let rotated = read(&new);
    let missing = server.client().get("/v1/queues");
    let foreign = read(&last.replace("cwt_", "cwt_0"));
    let guessed = read(&format!(
        "{}{}",
        &last[..last.len() - 1],
        if last.ends_with('0') { 1 } else { 0 }
    ));
    admin.send("DELETE", &path, &[], b"").expect(200);
    let revoked = read(&last);
    for answer in [
        &rotated,
        &missing,
        &foreign,
        &guessed,
        &revoked,
        &read("cwt_"),
        &read(""),
    ] {
        assert_eq!(answer.problem(), (401, "unauthorized".into()));
        assert_eq!(answer.body, missing.body);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(admin.get(&path).problem(), (404, "not_found".into()));
    let again = admin.send("DELETE", &path, &[], b"");
    assert_eq!(again.problem(), (404, "not_found".into()));
}

#[test]
fn the_secret_is_shown_once_and_written_nowhere() {
    let directory = Directory::new();
    let (data, token) = first(&directory);
    let log = directory.0.join("log");
    let mut command = program();
    command
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--log-level",
            "trace",
            "--data",
        ])
        .arg(&data)
        .stderr(std::fs::File::create(&log).unwrap());
    let server = Server::logging(command);
    let mut admin = with(&server, &token);
    let (id, worker) = made(
        &mut admin,
        &json!({"name": "worker", "scopes": ["deliver"]}),
    );
    let listed = admin.get("/v1/tokens").expect(200);
    assert_eq!(listed["tokens"].as_array().unwrap().len(), 2);
    let one = admin.get(&format!("/v1/tokens/{id}"));
    assert_eq!(one.expect(200)["name"], "worker");
    let events = admin.get("/v1/queues").body;
    let shown = [listed.to_string().into_bytes(), one.body, events].concat();
    // It counts after a crash as well.
    drop(server);
    let server = Server::with(&data, &[]);
    let mut client = with(&server, &worker);
    assert!(may(&client.json(
        "POST",
        "/v1/leases",
        r#"{"queues":["q"]}"#
    )));
    drop(server);
    let mut everything = vec![shown, std::fs::read(&log).unwrap()];
    for file in walk(&data) {
        everything.push(std::fs::read(file).unwrap());
    }
    assert!(everything.len() > 4);
    for token in [&token, &worker] {
        let secret = token.rsplit('_').next().unwrap();
        for part in [secret, &secret[8..]] {
            let is_there =
                |bytes: &Vec<u8>| bytes.windows(part.len()).any(|it| it == part.as_bytes());
            assert!(!everything.iter().any(is_there));
        }
    }
}

fn walk(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(walk(&path));
        } else {
            files.push(path);
        }
    }
    files
}

#[test]
fn wrong_tokens_are_refused_faster_after_many_and_right_ones_never() {
    let directory = Directory::new();
    let (data, token) = first(&directory);
    let server = Server::with(&data, &[]);
    let mut wrong = with(&server, "cwt_000000000000_00");
    for _ in 0..20 {
        let answer = wrong.get("/v1/queues");
        assert_eq!(answer.problem(), (401, "unauthorized".into()));
    }
    let answer = wrong.get("/v1/queues");
    assert_eq!(answer.problem(), (429, "overloaded".into()));
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    // Health is open, but tries of tokens there count too.
    assert_eq!(wrong.get("/healthz").status, 200);
    assert_eq!(with(&server, &token).get("/v1/queues").status, 200);
    // Whoever shows none has guessed none.
    assert_eq!(server.client().get("/v1/queues").status, 401);
}

#[test]
fn the_last_token_that_makes_others_stays_and_the_first_one_is_such() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let server = Server::with(&data, &[]);
    let mut anyone = server.client();
    let reader = r#"{"name":"r","scopes":["read"]}"#;
    let refused = anyone.json("POST", "/v1/tokens", reader);
    assert_eq!(refused.problem(), (409, "conflict".into()));
    // The first token closes the API for whoever shows none.
    let (id, token) = made(&mut anyone, &json!({"name": "a", "scopes": ["admin"]}));
    assert_eq!(anyone.get("/v1/queues").status, 401);
    let mut admin = with(&server, &token);
    let path = format!("/v1/tokens/{id}");
    let last = admin.send("DELETE", &path, &[], b"");
    assert_eq!(last.problem(), (409, "conflict".into()));
    // One that expires soon will not do for long, but it does now.
    made(
        &mut admin,
        &json!({"name": "b", "scopes": ["admin", "read"], "expires_in": "1h"}),
    );
    let wrong = [("if-match", "\"999\"")];
    let other = admin.send("DELETE", &path, &wrong, b"");
    assert_eq!(other.problem(), (412, "revision_mismatch".into()));
    admin.send("DELETE", &path, &[], b"").expect(200);
    assert_eq!(admin.get("/v1/queues").status, 401);
}

#[test]
fn bad_tokens_are_refused_with_the_place() {
    let directory = Directory::new();
    let (data, token) = first(&directory);
    let server = Server::with(&data, &[]);
    let mut admin = with(&server, &token);
    let long = "x".repeat(129);
    for (body, pointer) in [
        (json!({"scopes": ["read"]}), "/name"),
        (json!({"name": "", "scopes": ["read"]}), "/name"),
        (json!({"name": long, "scopes": ["read"]}), "/name"),
        (json!({"name": "a\u{7}", "scopes": ["read"]}), "/name"),
        (json!({"name": "a"}), "/scopes"),
        (json!({"name": "a", "scopes": []}), "/scopes"),
        (json!({"name": "a", "scopes": ["root"]}), "/scopes/0"),
        (
            json!({"name": "a", "scopes": ["read", "read"]}),
            "/scopes/1",
        ),
        (
            json!({"name": "a", "scopes": ["read"], "expires_in": 0}),
            "/expires_in",
        ),
        (
            json!({"name": "a", "scopes": ["read"], "expires_in": "3651d"}),
            "/expires_in",
        ),
        (
            json!({"name": "a", "scopes": ["read"], "certificate": "worker"}),
            "/certificate",
        ),
        (
            json!({"name": "a", "scopes": ["read"], "certificate": "ip:x"}),
            "/certificate",
        ),
        (
            json!({"name": "a", "scopes": ["read"], "secret": "s"}),
            "/secret",
        ),
    ] {
        let answer = admin.json("POST", "/v1/tokens", &body.to_string());
        assert_eq!(answer.problem(), (400, "malformed".into()), "{body}");
        assert_eq!(answer.json()["errors"][0]["pointer"], pointer, "{body}");
    }
    let (id, _) = made(&mut admin, &json!({"name": "a", "scopes": ["read"]}));
    for (path, body, status) in [
        (
            format!("/v1/tokens/{id}:rotate"),
            r#"{"overlap":"31d"}"#,
            400,
        ),
        (format!("/v1/tokens/{id}:rotate"), r#"{"over":1}"#, 400),
        (format!("/v1/tokens/{id}:revoke"), "{}", 404),
        (format!("/v1/tokens/{id}"), "{}", 404),
        ("/v1/tokens/000000000000:rotate".to_owned(), "{}", 404),
        ("/v1/tokens/none:rotate".to_owned(), "{}", 404),
    ] {
        let answer = admin.json("POST", &path, body);
        assert_eq!(answer.status, status, "{path} {body}: {answer:?}");
    }
    // Whatever was refused, nothing was made.
    let listed = admin.get("/v1/tokens").expect(200);
    assert_eq!(listed["tokens"].as_array().unwrap().len(), 2);
}

#[test]
fn beyond_this_machine_a_stored_token_does_as_well() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let serve = |data: &Path| {
        let mut command = program();
        command
            .args(["serve", "--listen", "0.0.0.0:0", "--data"])
            .arg(data);
        command
    };
    let refused = |data: &Path| {
        let output = serve(data).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("token create --data"), "{said}");
    };
    refused(&data);
    assert!(!data.exists(), "a start that is refused makes nothing");
    let (data, token) = first(&directory);
    let server = Server::spawn(serve(&data));
    let port = server.address.rsplit(':').next().unwrap();
    let mut client = Client::to(&format!("127.0.0.1:{port}"));
    assert_eq!(client.get("/v1/queues").status, 401);
    client.headers = vec![("authorization".to_owned(), format!("Bearer {token}"))];
    assert_eq!(client.get("/v1/queues").status, 200);
    // A process has the directory.
    let output = create(&data, &["other", "--scope", "read"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(data.to_str().unwrap()), "{said}");
    drop(server);
    let empty = directory.0.join("empty");
    assert!(
        program()
            .arg("init")
            .arg(&empty)
            .status()
            .unwrap()
            .success()
    );
    refused(&empty);
    let reader = create(&empty, &["r", "--scope", "read"]);
    assert_eq!(reader.status.code(), Some(1), "{reader:?}");
    let nowhere = create(&directory.0.join("none"), &["r", "--scope", "admin"]);
    assert_eq!(nowhere.status.code(), Some(1), "{nowhere:?}");
}

#[test]
fn what_is_open_says_nothing_and_metrics_need_their_scope() {
    let directory = Directory::new();
    let (data, token) = first(&directory);
    for is_open in [false, true] {
        let flags: &[&str] = if is_open { &["--open-metrics"] } else { &[] };
        let server = Server::with(&data, flags);
        let mut anyone = server.client();
        for path in ["/healthz", "/livez", "/readyz", "/startz"] {
            let answer = anyone.get(path).expect(200);
            let status = answer.as_object().unwrap();
            assert_eq!(status.keys().collect::<Vec<_>>(), ["status"], "{path}");
        }
        let status = anyone.get("/metrics").status;
        assert_eq!(status, if is_open { 200 } else { 401 });
        assert_eq!(with(&server, &token).get("/metrics").status, 200);
    }
}

#[test]
fn the_commands_make_show_rotate_and_revoke() {
    let directory = Directory::new();
    let (data, token) = first(&directory);
    let server = Server::with(&data, &[]);
    let run = |arguments: &[&str]| {
        let url = format!("http://{}", server.address);
        program()
            .arg("token")
            .args(arguments)
            .env("COUNTWHEEL_SERVER", url)
            .env("COUNTWHEEL_TOKEN", &token)
            .output()
            .unwrap()
    };
    let worker = line(&run(&[
        "create",
        "workers",
        "--scope",
        "deliver,read",
        "--expires-in",
        "90d",
    ]));
    assert_eq!(with(&server, &worker).get("/v1/queues").status, 200);
    let id = worker.split('_').nth(1).unwrap();
    let table = run(&["list"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains(id) && table.contains("read,deliver"),
        "{table}"
    );
    let rotated = line(&run(&["rotate", id]));
    assert_eq!(with(&server, &worker).get("/v1/queues").status, 401);
    assert_eq!(with(&server, &rotated).get("/v1/queues").status, 200);
    let certified = run(&[
        "create",
        "c",
        "--scope",
        "read",
        "--certificate",
        "dns:c.example",
        "--json",
    ]);
    let certified: Value = serde_json::from_str(&line(&certified)).unwrap();
    assert!(certified.get("token").is_none());
    let certified = certified["id"].as_str().unwrap();
    assert_eq!(run(&["rotate", certified]).status.code(), Some(1));
    assert_eq!(line(&run(&["revoke", id])), format!("revoked {id}"));
    assert_eq!(run(&["revoke", id]).status.code(), Some(2));
    assert_eq!(
        run(&["create", "x", "--scope", "root"]).status.code(),
        Some(2)
    );
}
