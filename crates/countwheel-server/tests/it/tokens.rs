//! Tokens that are stored: what each opens, and what becomes of one that is wrong, rotated or revoked.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::logs;
use crate::support::{
    Answer, Client, Directory, PATIENCE, Server, Target, pause, program, read_answer,
    wait_for_state,
};

fn create(data: &Path, arguments: &[&str]) -> Output {
    program()
        .env("COUNTWHEEL_TOKEN", "of-another-server")
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
pub(crate) fn first(directory: &Directory) -> (std::path::PathBuf, String) {
    let data = directory.0.join("data");
    let made = program().arg("init").arg(&data).status().unwrap();
    assert!(made.success());
    let token = line(&create(&data, &["operator", "--scope", "admin"]));
    (data, token)
}

pub(crate) fn with(server: &Server, token: &str) -> Client {
    let mut client = server.client();
    let shown = format!("Bearer {token}");
    client.headers = vec![("authorization".to_owned(), shown)];
    client
}

#[track_caller]
pub(crate) fn made(admin: &mut Client, body: &Value) -> (String, String) {
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
    for first in [
        reader,
        r#"{"name":"r","scopes":["admin"],"expires_in":"5s"}"#,
        r#"{"name":"r","scopes":["admin"],"certificate":"cn:nobody"}"#,
    ] {
        let refused = anyone.json("POST", "/v1/tokens", first);
        assert_eq!(refused.problem(), (409, "conflict".into()));
    }
    // The first token closes the API for whoever shows none.
    let (id, token) = made(&mut anyone, &json!({"name": "a", "scopes": ["admin"]}));
    assert_eq!(anyone.get("/v1/queues").status, 401);
    let mut admin = with(&server, &token);
    let path = format!("/v1/tokens/{id}");
    let last = admin.send("DELETE", &path, &[], b"");
    assert_eq!(last.problem(), (409, "conflict".into()));
    // None of these would do for whoever has lost the first.
    for more in [
        json!({"expires_in": "1h"}),
        json!({"certificate": "cn:nobody"}),
        json!({"scopes": ["read"]}),
    ] {
        let mut body = json!({"name": "b", "scopes": ["admin", "read"]});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        admin
            .json("POST", "/v1/tokens", &body.to_string())
            .expect(201);
        let last = admin.send("DELETE", &path, &[], b"");
        assert_eq!(last.problem(), (409, "conflict".into()));
    }
    made(&mut admin, &json!({"name": "c", "scopes": ["admin"]}));
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

/// Begins a request, and sends the rest of it later.
struct Half {
    stream: std::net::TcpStream,
}

impl Half {
    fn begin(server: &Server, token: Option<&str>, head: &str, first: &str) -> Self {
        let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
        let shown = token.map_or(String::new(), |it| {
            format!("authorization: Bearer {it}\r\n")
        });
        let text = format!("{head}\r\nhost: localhost\r\n{shown}\r\n{first}");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        Self { stream }
    }

    /// The status of the answer, once the rest is there.
    fn end(mut self, rest: &str) -> u16 {
        self.stream.write_all(rest.as_bytes()).unwrap();
        let mut answers = BufReader::new(self.stream);
        read_answer(&mut answers, false).unwrap().status
    }
}

/// A request with a body is two moments: the token counted at the first one alone.
#[test]
fn what_was_begun_with_a_token_is_refused_once_the_token_is_gone() {
    let directory = Directory::new();
    let (data, token) = first(&directory);
    let server = Server::with(&data, &[]);
    let mut admin = with(&server, &token);
    let body = r#"{"name":"evil","scopes":["admin"]}"#;
    let post = |path: &str, body: &str| {
        format!(
            "POST {path} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {}",
            body.len()
        )
    };
    for way in ["revoked", "rotated"] {
        let (id, stolen) = made(&mut admin, &json!({"name": "stolen", "scopes": ["admin"]}));
        let (create, set) = (post("/v1/tokens", body), post("/v1/queues/q/timers", SET));
        let atomic = create
            .replace("/v1/tokens", "/v1/batch?atomic=true")
            .replace("application/json", "application/x-ndjson");
        let begin = |head: &str, body: &str| Half::begin(&server, Some(&stolen), head, &body[..2]);
        let halves = [begin(&create, body), begin(&set, SET), begin(&atomic, body)];
        // The heads are there.
        assert_eq!(with(&server, &stolen).get("/v1/queues").status, 200);
        pause();
        let path = format!("/v1/tokens/{id}");
        match way {
            "revoked" => admin.send("DELETE", &path, &[], b""),
            _ => admin.send("POST", &format!("{path}:rotate"), &[], b""),
        }
        .expect(200);
        for (half, body) in halves.into_iter().zip([body, SET, body]) {
            let status = half.end(&body[2..]);
            assert!(matches!(status, 400 | 401), "{way}: {status}");
        }
    }
    let listed = admin.get("/v1/tokens").expect(200);
    let names = listed["tokens"].as_array().unwrap().iter();
    assert!(
        names.into_iter().all(|token| token["name"] != "evil"),
        "{listed}"
    );
    assert_eq!(admin.get("/v1/queues").expect(200)["queues"], json!([]));
}

#[test]
fn what_goes_on_ends_with_its_token() {
    let directory = Directory::new();
    let (data, token) = first(&directory);
    let server = Server::with(&data, &[]);
    let mut admin = with(&server, &token);
    let pulled = r#"{"mode":"pull"}"#;
    admin.json("PUT", "/v1/queues/pulled", pulled).expect(201);
    let all = json!({"name": "long", "scopes": ["read", "write", "deliver"]});
    let (id, long) = made(&mut admin, &all);
    let wait = r#"{"queues":["pulled"],"wait":"60s"}"#;
    let head = |line: &str| format!("{line} HTTP/1.1\r\ncontent-type: application/json");
    let lease = format!(
        "{}\r\ncontent-length: {}",
        head("POST /v1/leases"),
        wait.len()
    );
    let lease = Half::begin(&server, Some(&long), &lease, wait);
    let events = Half::begin(&server, Some(&long), "GET /v1/events HTTP/1.1", "");
    let mut events = BufReader::new(events.stream);
    let mut told = String::new();
    // From then on it is told everything.
    while !told.contains("retry:") {
        assert_ne!(events.read_line(&mut told).unwrap(), 0, "{told}");
    }
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let set = |key: &str| {
        let line = format!(
            r#"{{"op":"set","queue":"q","key":"{key}","in":"1h","target":{{"url":"https://example.com/"}}}}"#
        );
        chunk(&format!("{line}\n"))
    };
    let batch = "POST /v1/batch HTTP/1.1\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked";
    let mut batch = Half::begin(&server, Some(&long), batch, &set("before"));
    while !told.contains("before") {
        assert_ne!(events.read_line(&mut told).unwrap(), 0, "{told}");
    }
    admin
        .send("DELETE", &format!("/v1/tokens/{id}"), &[], b"")
        .expect(200);
    // Nothing that comes afterwards is told, leased or taken.
    let due = r#"{"in":0}"#;
    admin
        .json("PUT", "/v1/queues/pulled/timers/k", due)
        .expect(201);
    // The stream ends, and its connection goes on.
    while !told.ends_with("\n0\r\n") {
        assert_ne!(events.read_line(&mut told).unwrap(), 0, "{told}");
    }
    assert!(!told.contains("pulled"), "{told}");
    assert_eq!(lease.end(""), 401);
    batch.stream.write_all(set("after").as_bytes()).unwrap();
    let mut said = String::new();
    batch.stream.read_to_string(&mut said).unwrap_or_default();
    assert!(
        said.contains(r#""status":201"#) && said.contains("unauthorized"),
        "{said}"
    );
    assert_eq!(admin.get("/v1/queues/q/timers/after").status, 404);
    let state = admin.get("/v1/queues/pulled/timers/k").expect(200)["state"].clone();
    assert_eq!(state, "pending");
}

#[test]
fn to_write_is_not_to_read() {
    let directory = Directory::new();
    let (data, token) = first(&directory);
    let server = Server::with(&data, &["--allow-private-targets"]);
    let mut admin = with(&server, &token);
    let gone = Target::answering("410 Gone");
    let card = json!({"in": 0, "target": {"url": gone.url}, "body": {"card": "4111"}});
    admin.json("PUT", TIMER, &card.to_string()).expect(201);
    wait_for_state(&mut admin, TIMER, "dead");
    let (_, writer) = made(&mut admin, &json!({"name": "w", "scopes": ["write"]}));
    let mut writer = with(&server, &writer);
    let thief = Target::answering("200 OK");
    let elsewhere = json!({"target": {"url": thief.url}}).to_string();
    let resend = format!("{TIMER}:resend");
    let refused = writer.json("POST", &resend, &elsewhere);
    assert_eq!(refused.problem(), (403, "forbidden".into()));
    let dry = r#"{"queue":"q","action":"revive","filter":{"prefix":"k"},"dry_run":true}"#;
    let refused = writer.json("POST", "/v1/jobs", dry);
    assert_eq!(refused.problem(), (403, "forbidden".into()));
    let ack = r#"{"op":"ack","queue":"q","key":"k","token":"000000000000000100000001"}"#;
    let ndjson = [("content-type", "application/x-ndjson")];
    let answer = writer.send("POST", "/v1/batch", &ndjson, ack.as_bytes());
    let said = String::from_utf8(answer.body).unwrap();
    assert!(said.contains(r#""status":403"#), "{said}");
    let state = admin.get(TIMER).expect(200)["state"].clone();
    assert_eq!(state, "dead");
    assert_eq!(writer.send("POST", &resend, &[], b"").status, 200);
}

#[test]
fn a_token_that_ends_soon_has_notice_in_its_answers_the_metrics_and_the_log() {
    let directory = Directory::new();
    let (_, operator) = first(&directory);
    let (server, _) = logs::start(&directory, &["--log-format", "json"]);
    let mut admin = with(&server, &operator);
    let mut token = |name: &str, expires: &str| {
        let wanted = json!({"name": name, "scopes": ["read"], "expires_in": expires});
        made(&mut admin, &wanted)
    };
    let (soon_id, soon) = token("soon", "6d");
    let (_, later) = token("later", "8d");
    let notice = |token: &str, method: &str, path: &str| {
        let answer = with(&server, token).send(method, path, &[], b"");
        let notice = answer.header("countwheel-token-expires");
        (answer.status, notice.map(str::to_owned))
    };
    let path = format!("/v1/tokens/{soon_id}");
    let expires = admin.get(&path).expect(200)["expires"].clone();
    let expires = expires.as_str().map(str::to_owned);
    assert!(expires.is_some());
    assert_eq!(notice(&soon, "GET", "/v1/queues"), (200, expires.clone()));
    assert_eq!(
        notice(&soon, "GET", "/v1/queues/none"),
        (404, expires.clone())
    );
    assert_eq!(
        notice(&soon, "DELETE", "/v1/queues/none"),
        (403, expires.clone())
    );
    assert_eq!(notice(&later, "GET", "/v1/queues"), (200, None));
    assert_eq!(notice(&operator, "GET", "/v1/queues"), (200, None));
    assert_eq!(notice("none", "GET", "/v1/queues"), (401, None));
    let metrics = String::from_utf8(admin.get("/metrics").body).unwrap();
    let counted = metrics
        .lines()
        .find(|line| line.starts_with("countwheel_tokens_expiring"));
    assert_eq!(counted, Some("countwheel_tokens_expiring 1"));
    assert!(server.stop().success());
    // A start looks as well, and once.
    let (server, log) = logs::start(&directory, &["--log-format", "json"]);
    server.client().get("/healthz").expect(200);
    assert!(server.stop().success());
    let lines = logs::lines_of(&log, "a token expires soon");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let said = &lines[0]["fields"];
    assert_eq!(
        (&said["token"], &said["name"]),
        (&json!(soon_id), &json!("soon"))
    );
    assert_eq!(said["expires"].as_str().map(str::to_owned), expires);
    assert_eq!(lines[0]["level"], "WARN");
}
