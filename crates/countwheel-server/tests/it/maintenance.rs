//! Snapshots of the running service, and the commands on directories that are not in use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::{Client, Directory, Server, program};

const TIMERS: &str = "/v1/queues/default/timers";

/// Runs a command on directories.
fn command(name: &str, paths: &[&Path], more: &[&str]) -> Output {
    let mut command: Command = program();
    let paths = paths.iter().map(|path| path.as_os_str());
    command.arg(name).args(paths).args(more).output().unwrap()
}

/// Checks how it ended, and gives what it said: on standard error if nothing else.
#[track_caller]
fn ended(output: &Output, code: i32) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{said}{error}");
    if said.is_empty() { error } else { said }
}

fn set(client: &mut Client, key: &str) {
    let body = json!({"in": "9d", "target": {"url": "http://x.invalid/"}, "body": key});
    let answer = client.json("PUT", &format!("{TIMERS}/{key}"), &body.to_string());
    assert_eq!(answer.status, 201, "{answer:?}");
}

fn keys(client: &mut Client) -> Vec<String> {
    let list = client.get(&format!("{TIMERS}?limit=100")).expect(200);
    let items = list["items"].as_array().unwrap().iter();
    let mut keys: Vec<_> = items
        .map(|item| item["key"].as_str().unwrap().to_owned())
        .collect();
    keys.sort();
    keys
}

/// The segment of a log in which something is.
fn segment(data: &Path) -> PathBuf {
    let mut files: Vec<_> = fs::read_dir(data.join("log"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("segment-")
        })
        .collect();
    files.sort();
    files.pop().unwrap()
}

fn position(bytes: &[u8], text: &str) -> usize {
    let text = text.as_bytes();
    bytes
        .windows(text.len())
        .position(|window| window == text)
        .unwrap()
}

#[test]
fn a_snapshot_of_the_running_service_is_verified_and_restored() {
    let directory = Directory::new();
    let at = |name| directory.0.join(name);
    let (data, snapshots) = (at("data"), at("snapshots"));
    let server = Server::with(&data, &["--snapshot-dir", snapshots.to_str().unwrap()]);
    let mut client = server.client();
    for key in ["one", "two"] {
        set(&mut client, key);
    }
    let answer = client.json("POST", "/v1/snapshots", r#"{"name": "first"}"#);
    let made = answer.expect(201);
    assert_eq!(
        (&made["name"], made["commit"].as_u64()),
        // The entry of the audit log is a commit, and in the snapshot.
        (&json!("first"), Some(4))
    );
    set(&mut client, "three");
    let url = format!("http://{}", server.address);
    let said = command("snapshot", &[Path::new("second")], &["--server", &url]);
    assert!(ended(&said, 0).starts_with("snapshot second: commit 6, "));

    let again = client.json("POST", "/v1/snapshots", r#"{"name": "first"}"#);
    assert_eq!(again.problem(), (409, "conflict".to_owned()));
    for bad in [
        "",
        ".",
        "..",
        "a/b",
        "../up",
        ".hidden",
        "ü",
        &"x".repeat(65),
    ] {
        let body = json!({ "name": bad }).to_string();
        let refused = client.json("POST", "/v1/snapshots", &body);
        assert_eq!(refused.problem(), (400, "malformed".to_owned()), "{bad:?}");
    }
    for bad in ["{}", r#"{"name": 1}"#, r#"{"name": "a", "more": 1}"#] {
        assert_eq!(
            client.json("POST", "/v1/snapshots", bad).problem().0,
            400,
            "{bad}"
        );
    }
    assert_eq!(fs::read_dir(&snapshots).unwrap().count(), 2);
    // A directory in use can be checked, and nothing else.
    let said = command("check", &[&data], &[]);
    assert!(ended(&said, 0).contains("while a process has it"));
    let said = command("repair", &[&data, &at("repaired")], &[]);
    assert!(ended(&said, 4).contains("locked by another process"));
    assert!(server.stop().success());

    for (name, expected) in [
        ("first", &["one", "two"][..]),
        ("second", &["one", "three", "two"]),
    ] {
        let (snapshot, restored) = (snapshots.join(name), at(name));
        ended(&command("verify", &[&snapshot], &[]), 0);
        let anew = command(
            "restore",
            &[&snapshot, &restored],
            &["--log-segment-mib", "1"],
        );
        ended(&anew, 0);
        ended(&command("check", &[&restored], &[]), 0);
        let server = Server::start(&restored);
        assert_eq!(keys(&mut server.client()), expected);
        assert!(server.stop().success());
        // Into nothing, or not at all.
        ended(&command("restore", &[&snapshot, &restored], &[]), 2);
    }
    let file = segment(&snapshots.join("first"));
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len() - 1;
    bytes[end] ^= 1;
    fs::write(&file, bytes).unwrap();
    let snapshot = snapshots.join("first");
    ended(&command("verify", &[&snapshot], &[]), 1);
    ended(&command("restore", &[&snapshot, &at("other")], &[]), 1);
    assert!(!at("other").exists());
}

#[test]
fn without_a_place_for_them_there_are_no_snapshots() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    let refused = client.json("POST", "/v1/snapshots", r#"{"name": "first"}"#);
    assert_eq!(refused.problem(), (404, "not_found".to_owned()));
}

#[test]
fn a_damaged_directory_is_checked_and_repaired() {
    let directory = Directory::new();
    let at = |name| directory.0.join(name);
    let (data, repaired) = (at("data"), at("repaired"));
    let server = Server::start(&data);
    let mut client = server.client();
    for key in ["one", "two", "three"] {
        set(&mut client, key);
    }
    assert!(server.stop().success());
    let said = ended(&command("check", &[&data], &["--json"]), 0);
    let end: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(
        end,
        json!({"sound": true, "timers": 3, "problems": 0, "torn_bytes": 0, "running": false})
    );

    let path = segment(&data);
    let mut bytes = fs::read(&path).unwrap();
    let damaged = position(&bytes, "two");
    bytes[damaged] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let said = ended(&command("check", &[&data], &["--json"]), 1);
    let found: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line["what"].is_string())
        .collect();
    assert_eq!(found.len(), 1, "{said}");
    assert_eq!(found[0]["file"], path.to_str().unwrap());
    assert!(found[0]["offset"].as_u64().unwrap() < damaged as u64);
    assert_eq!(found[0]["commits_at_risk"], 1);
    assert_eq!(found[0]["records_at_risk"], Value::Null);
    let said = ended(&command("check", &[&data], &[]), 1);
    assert!(said.contains("commits at risk: 1"), "{said}");

    let anew = ["--log-segment-mib", "1"];
    let said = ended(&command("repair", &[&data, &repaired], &anew), 1);
    assert!(said.contains("2 timers, 1 of them may be stale"), "{said}");
    let list = fs::read_to_string(repaired.join("losses.jsonl")).unwrap();
    let list: Vec<Value> = list
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(list.len(), 2);
    assert_eq!(list[0], found[0]);
    let stale = json!({"queue": "default", "key": "one", "revision": 1, "what": "may be stale"});
    assert_eq!(list[1], stale);
    assert_eq!(fs::read(&path).unwrap(), bytes);
    ended(&command("check", &[&repaired], &[]), 0);
    let server = Server::start(&repaired);
    assert_eq!(keys(&mut server.client()), ["one", "three"]);
    assert!(server.stop().success());

    // Wrong usage, and what is no data directory.
    ended(&command("check", &[], &[]), 2);
    ended(&command("check", &[&at("nowhere")], &[]), 2);
    ended(&command("repair", &[&data, &repaired], &anew), 2);
    ended(&command("verify", &[&repaired], &[]), 2);
}
