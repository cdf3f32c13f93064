//! Timers as lines of JSON: out of one service, into another.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Output, Stdio};

use countwheel_server::time::parse_time;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Client, Directory, Server, pause, program, wait_for_state};

fn run(server: &Server, arguments: &[&str], input: &str) -> Output {
    let url = format!("http://{}", server.address);
    let mut command = program();
    command.args(arguments).env("COUNTWHEEL_SERVER", url);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap_or_default();
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// Standard output, standard error and the exit code.
fn told(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        text(&output.stdout),
        text(&output.stderr),
        output.status.code(),
    )
}

const QUEUES: [&str; 2] = ["default", "other"];

/// All that a service shows of its timers, by their names.
fn shown(client: &mut Client) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for queue in QUEUES {
        let path = format!("/v1/queues/{queue}/timers?bodies=text");
        let page = client.get(&path).expect(200);
        assert_eq!(page["next"], Value::Null);
        for timer in page["items"].as_array().unwrap() {
            let name = format!("{queue} {}", timer["key"].as_str().unwrap());
            all.insert(name, timer.clone());
        }
    }
    all
}

/// What an import keeps of it.
fn kept(mut timer: Value) -> Value {
    let fields = timer.as_object_mut().unwrap();
    for new in [
        "id", "revision", "created", "attempt", "attempts", "failures",
    ] {
        assert!(fields.remove(new).is_some(), "{new}");
    }
    fields.remove("next_attempts");
    if fields
        .get("recurring")
        .is_some_and(|it| it.get("every_after").is_some())
    {
        // It is on the line of delays, which is some microseconds off.
        fields.remove("due");
        let series = fields["recurring"].as_object_mut().unwrap();
        series.retain(|name, _| !["nominal", "next_runs"].contains(&name.as_str()));
    }
    if let Some(series) = fields.get_mut("recurring").and_then(Value::as_object_mut) {
        // The point through which the grid goes is another one of the same grid.
        series.remove("at");
    }
    timer
}

const FAR: &str = "2031-03-01T12:00:00.000001Z";

fn timers() -> Vec<(&'static str, &'static str, Value)> {
    let target = json!({"url": "http://127.0.0.1:9/hook"});
    let whole = json!({"url": "http://127.0.0.1:9/hook?a=1", "timeout": "1m 30s",
        "headers": {"x-shop": "7", "x-name": "größe"}});
    let with = |mut base: Value, more: Value| {
        let mut more = more.as_object().unwrap().clone();
        base.as_object_mut().unwrap().append(&mut more);
        base
    };
    let once = |more: Value| with(json!({"at": FAR, "target": target}), more);
    let series = |more: Value| with(json!({"target": target}), more);
    vec![
        ("default", "plain", once(json!({}))),
        ("default", "a/b ä?#", once(json!({"target": whole}))),
        ("default", "delay", series(json!({"in": "90m"}))),
        (
            "default",
            "text",
            once(json!({"body": "a\u{1}\"\n\u{e9}\u{202e}", "content_type": "text/x"})),
        ),
        (
            "default",
            "bytes",
            once(json!({"body_base64": "AP+A", "content_type": "image/x"})),
        ),
        (
            "default",
            "method",
            once(json!({"target": {"url": "http://127.0.0.1:9/hook", "method": "DELETE"}})),
        ),
        (
            "default",
            "empty",
            once(json!({"body": "", "content_type": "text/plain"})),
        ),
        (
            "default",
            "preset",
            once(json!({"retry": {"preset": "wechat", "jitter": "full"}})),
        ),
        (
            "default",
            "list",
            once(json!({"retry": {"schedule": ["1s", "2m"], "max_age": "1h"}})),
        ),
        (
            "other",
            "grow",
            once(json!({"missed": "collapse",
            "retry": {"exponential": {"first": "1s", "factor": 1.5, "cap": "1h"}, "max_attempts": 9}})),
        ),
        (
            "other",
            "skip",
            once(json!({"missed": {"skip_if_older_than": "5m"}})),
        ),
        (
            "other",
            "every",
            series(json!({"every": "1h", "repeats": 5, "in": "2h", "overlap": "queue"})),
        ),
        (
            "other",
            "grid",
            series(json!({"every": "7h", "at": "2020-01-01T00:00:00Z", "until": FAR})),
        ),
        ("other", "delay-after", series(json!({"every_after": "1d"}))),
        (
            "other",
            "cron",
            series(json!({"cron": "0 9 * * MON-FRI", "zone": "Europe/Berlin"})),
        ),
    ]
}

fn set(client: &mut Client, queue: &str, key: &str, body: &str) {
    let key: String = key.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let path = format!("/v1/queues/{queue}/timers/{key}");
    client.json("PUT", &path, body).expect(201);
}

/// As Ctrl-C does.
fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

fn service() -> (Directory, Server) {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    (directory, server)
}

#[test]
fn what_a_timer_leaves_to_its_queue_is_left_to_it_in_another_service_too() {
    let (_directory, from) = service();
    let (_other, into) = service();
    let mut there = from.client();
    let settings = |fixed: &str| {
        json!({"retry": {"fixed": fixed}, "timeout": fixed, "missed": "collapse", "overlap": "queue"})
            .to_string()
    };
    there
        .json("PUT", "/v1/queues/other", &settings("7s"))
        .expect(201);
    let target = json!({"url": "http://127.0.0.1:9/hook", "headers": {"x-shop": "7"}});
    let open = json!({"every": "1h", "in": "2h", "target": target});
    set(&mut there, "other", "open", &open.to_string());
    let mut own = open;
    for (name, value) in [
        ("retry", json!({"fixed": "1s"})),
        ("missed", json!("fire")),
        ("overlap", json!("skip")),
    ] {
        own[name] = value;
    }
    own["target"]["timeout"] = json!("1s");
    set(&mut there, "other", "own", &own.to_string());
    let (text, err, code) = told(&run(&from, &["export"], ""));
    assert_eq!(
        (err.as_str(), code),
        ("exported 2 timers of 1 queue\n", Some(0))
    );
    let mut here = into.client();
    here.json("PUT", "/v1/queues/other", &settings("8s"))
        .expect(201);
    let (_, err, code) = told(&run(&into, &["import"], &text));
    assert_eq!((err.as_str(), code), ("", Some(0)));
    let mut shows = |key: &str| {
        let timer = here
            .get(&format!("/v1/queues/other/timers/{key}"))
            .expect(200);
        let rules = json!([
            timer["retry"]["fixed"],
            timer["target"]["timeout"],
            timer["missed"],
            timer["recurring"]["overlap"],
            timer["target"]["headers"]["x-shop"]
        ]);
        (rules, timer["from"].clone())
    };
    let queue =
        json!({"retry": "queue", "timeout": "queue", "missed": "queue", "overlap": "queue"});
    assert_eq!(
        shows("open"),
        (json!(["8s", "8s", "collapse", "queue", "7"]), queue)
    );
    assert_eq!(
        shows("own"),
        (json!(["1s", "1s", null, "skip", "7"]), Value::Null)
    );
}

#[test]
fn what_is_exported_from_one_service_is_the_same_in_another() {
    let (directory, from) = service();
    let (_other, into) = service();
    let mut client = from.client();
    for (queue, key, body) in timers() {
        set(&mut client, queue, key, &body.to_string());
    }
    // Byte for byte.
    let verbatim = r#"{"target":{"url":"http://127.0.0.1:9/"},"at":"2031-03-01T12:00:00Z","body": {"n": 1.000,
        "e":1e400} }"#;
    set(&mut client, "default", "verbatim", verbatim);
    let dead = json!({"in": 0, "target": {"url": "http://127.0.0.1:9/"},
        "retry": {"fixed": "1s", "max_attempts": 1}});
    set(&mut client, "default", "dead", &dead.to_string());
    wait_for_state(&mut client, "/v1/queues/default/timers/dead", "dead");

    let file = directory.0.join("timers.jsonl");
    let path = file.display().to_string();
    let (out, err, code) = told(&run(&from, &["export", "--output", &path], ""));
    assert_eq!((out.as_str(), code), ("", Some(0)), "{err}");
    assert_eq!(err, "exported 17 timers of 2 queues\n");
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    let (out, _, _) = told(&run(&from, &["export"], ""));
    let lines = |text: &str| -> Vec<Value> {
        let lines = text.lines().skip(1);
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    assert_eq!(lines(&out), lines(&text));
    // A terminal is shown no character that it would act on.
    assert!(text.contains('\u{202e}') && !out.contains('\u{202e}'));

    let (out, err, code) = told(&run(&into, &["import", &path], ""));
    assert_eq!(
        out, "imported   16 timers  1 dead or done, left out\n",
        "{err}"
    );
    assert_eq!((err.as_str(), code), ("", Some(0)));
    let (mut before, after) = (shown(&mut client), shown(&mut into.client()));
    before.remove("default dead");
    assert_eq!(before.len(), 16);
    for (name, timer) in before.clone() {
        let again = after
            .get(&name)
            .unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(kept(again.clone()), kept(timer), "{name}");
    }
    let body = "{\"n\": 1.000,\n        \"e\":1e400}";
    assert_eq!(after["default verbatim"]["body"], body);
    let due = |all: &BTreeMap<String, Value>| {
        let due = all["other delay-after"]["due"].as_str().unwrap().to_owned();
        parse_time(&due).unwrap().as_micros()
    };
    assert!(due(&after).abs_diff(due(&before)) < 1_000_000);
    assert_eq!(after.len(), 16);

    // What is there already stops it, stays, or is replaced.
    let (out, err, code) = told(&run(&into, &["import"], &text));
    assert_eq!((out.as_str(), code), ("", Some(1)));
    let begins = "countwheel: standard input: line 2: ";
    let ends = "(exists); nothing was imported\n";
    assert!(err.starts_with(begins) && err.ends_with(ends), "{err}");
    assert_eq!(shown(&mut into.client()), after);
    let (out, _, code) = told(&run(
        &into,
        &["import", "--existing", "keep", "--revive-dead"],
        &text,
    ));
    assert_eq!(
        (out.as_str(), code),
        ("imported   1 timer  16 there already\n", Some(0))
    );
    let only = [
        "import",
        "--existing",
        "replace",
        "--queue",
        "other",
        "--json",
    ];
    let (out, _, code) = told(&run(&into, &only, &text));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, Some(0));
    assert_eq!(
        (&report["set"], &report["replaced"]),
        (&json!(6), &json!(6))
    );
    let replaced = shown(&mut into.client());
    let revisions = ["default plain", "other cron"].map(|name| {
        (
            after[name]["revision"] == replaced[name]["revision"],
            kept(after[name].clone()) == kept(replaced[name].clone()),
        )
    });
    assert_eq!(revisions, [(true, true), (false, true)]);
}

#[test]
fn a_bad_export_stops_at_its_line_and_says_what_was_imported() {
    let (_directory, server) = service();
    let first = r#"{"format":"countwheel-timers","version":1}"#;
    let last = r#"{"end":true,"timers":3}"#;
    let line = |key: &str| {
        format!(
            r#"{{"queue":"default","key":"{key}","in":"1h","target":{{"url":"http://x.example/"}}}}"#
        )
    };
    let import = |text: &str, more: &[&str]| {
        // One at a time, so it stops where it is bad.
        let arguments = [&["import", "--concurrency", "1"], more].concat();
        told(&run(&server, &arguments, text))
    };
    for (text, expected, code) in [
        ("nonsense".to_owned(), "line 1: an export begins with", 2),
        (
            r#"{"format":"countwheel-timers","version":2,"more":1}"#.to_owned(),
            "line 1: the export has version 2, and this program reads versions up to 1",
            2,
        ),
        (
            format!("{first}\n{}\n{}", line("torn-1"), &line("torn-2")[..30]),
            "line 3: the line is not JSON",
            2,
        ),
        (
            format!("{first}\n{}\n", line("cut-1")),
            "line 3: the export is not whole: its last line is missing",
            2,
        ),
        (
            format!(
                "{first}\n{}\n\u{0}\u{1}\u{fffd}\n{last}\n",
                line("garbage-1")
            ),
            "line 3: the line is not JSON",
            2,
        ),
        // The service refuses it.
        (
            format!(
                "{first}\n{}\n{}\n{last}\n",
                line("url-1"),
                line("url-2").replace("http", "ftp")
            ),
            "line 3: ",
            1,
        ),
    ] {
        let (out, err, ended) = import(&text, &[]);
        assert_eq!((out.as_str(), ended), ("", Some(code)), "{err}");
        let begins = format!("countwheel: standard input: {expected}");
        let count = match text.contains("-1\"") {
            true => "; 1 timer was imported\n",
            false => "; nothing was imported\n",
        };
        assert!(err.starts_with(&begins) && err.ends_with(count), "{err}");
    }
    let text = format!(
        "{first}\n{}\nnonsense\n{}\n{}\n{}\n",
        line("skip-1"),
        line("skip-2").replace("http", "ftp"),
        line("skip-1"),
        line("skip-3"),
    );
    let (out, err, code) = import(&text, &["--skip-bad"]);
    assert_eq!(out, "imported   2 timers  4 bad, left out\n", "{err}");
    let lines: Vec<_> = err
        .lines()
        .filter_map(|line| line.split(':').nth(1))
        .collect();
    assert_eq!(lines, [" line 3", " line 4", " line 5", " line 7"], "{err}");
    assert_eq!(code, Some(1));
    // A later version is for no program of this one.
    let later = r#"{"format":"countwheel-timers","version":2}"#;
    let (_, _, code) = import(
        &format!("{later}\n{}\n{last}\n", line("later")),
        &["--skip-bad"],
    );
    assert_eq!(code, Some(2));
    let there = server.client().get("/v1/queues/default/timers/later");
    assert_eq!(there.status, 404);
    let missing = told(&run(&server, &["import", "/nowhere.jsonl"], ""));
    assert_eq!(missing.2, Some(2), "{missing:?}");
}

/// Of a pipe to another machine nobody sees that half of it came.
#[test]
fn an_export_that_nobody_reads_is_a_failure() {
    let (_directory, server) = service();
    let mut client = server.client();
    let body = format!(
        r#"{{"in":"1h","target":{{"url":"http://127.0.0.1:9/"}},"body":"{}"}}"#,
        "x".repeat(100_000)
    );
    for key in 0..10 {
        set(&mut client, "default", &key.to_string(), &body);
    }
    let told = |script: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script, env!("CARGO_BIN_EXE_countwheel")]);
        shell.env("COUNTWHEEL_SERVER", format!("http://{}", server.address));
        told(&shell.output().unwrap())
    };
    let (_, err, code) = told("\"$0\" export >&-");
    assert!(
        code == Some(1) && err.contains("standard output is closed"),
        "{code:?} {err}"
    );
    let (out, err, _) = told("{ \"$0\" export; echo status $? >&2; } | head -c 100");
    assert_eq!(out.len(), 100);
    assert!(
        err.contains("the export is not whole") && err.contains("status 1"),
        "{err}"
    );
}

/// What it waits for, be it the next line of a pipe or a server that takes nothing, does not keep it.
#[test]
fn an_interrupted_import_says_what_it_did_and_an_export_leaves_no_file() {
    let (directory, server) = service();
    let mut client = server.client();
    let line = |key: &str| {
        format!(
            r#"{{"queue":"default","key":"{key}","state":"pending","at":"{FAR}","target":{{"url":"http://127.0.0.1:9/"}}}}"#
        )
    };
    let head =
        r#"{"exported":"2026-03-01T12:00:00.000000Z","format":"countwheel-timers","version":1}"#;
    let url = format!("http://{}", server.address);
    let piped = |arguments: &[&str], url: &str| {
        let mut command = program();
        command.args(arguments).env("COUNTWHEEL_SERVER", url);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut import = piped(&["import"], &url);
    let mut stdin = import.stdin.take().unwrap();
    write!(stdin, "{head}\n{}\n{}\n", line("a"), line("b")).unwrap();
    for key in ["a", "b"] {
        let path = format!("/v1/queues/default/timers/{key}");
        while client.get(&path).status == 404 {
            pause();
        }
    }
    interrupt(&import);
    let (out, err, code) = told(&import.wait_with_output().unwrap());
    assert_eq!(code, Some(130), "{err}");
    assert!(out.is_empty(), "{out}");
    assert!(err.contains("interrupted: 2 timers were imported"), "{err}");
    drop(stdin);

    // A server that accepts and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let file = directory.0.join("timers.jsonl");
    let arguments = [
        "export",
        "--queue",
        "default",
        "--output",
        file.to_str().unwrap(),
    ];
    let export = piped(&arguments, &url);
    let asked = silent.accept().unwrap();
    interrupt(&export);
    let (_, err, code) = told(&export.wait_with_output().unwrap());
    assert_eq!(code, Some(130), "{err}");
    assert!(err.contains("interrupted: nothing was exported"), "{err}");
    let left = std::fs::read_dir(&directory.0).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["data"]);
    drop(asked);
}

#[test]
fn a_queue_that_has_no_such_name_is_wrong_usage() {
    let (_directory, server) = service();
    for arguments in [["export", "--queue", "a/b/c"], ["import", "--queue", ""]] {
        let (_, err, code) = told(&run(&server, &arguments, ""));
        assert_eq!(code, Some(2), "{arguments:?}: {err}");
        assert!(err.contains("--queue"), "{err}");
    }
}

/// An import of timers that leave the place to their queue failed where the queue had no endpoint yet.
#[test]
fn timers_that_leave_the_place_to_their_queue_are_imported_and_held() {
    let (_directory, server) = service();
    let mut client = server.client();
    client
        .json(
            "PUT",
            "/v1/endpoints/shop",
            r#"{"url":"http://127.0.0.1:1/"}"#,
        )
        .expect(201);
    client
        .json("PUT", "/v1/queues/default", r#"{"endpoint":"shop"}"#)
        .expect(201);
    set(&mut client, "default", "none", r#"{"in":"1h"}"#);
    let with_path = r#"{"in":"1h","target":{"path":"/a","timeout":"9s"},"body":7}"#;
    set(&mut client, "default", "path", with_path);
    let exported = run(&server, &["export", "--queue", "default"], "");
    let (lines, _, _) = told(&exported);
    let (_elsewhere, other) = service();
    let imported = run(&other, &["import"], &lines);
    assert_eq!(told(&imported).2, Some(0), "{:?}", told(&imported));
    let mut client = other.client();
    for key in ["none", "path"] {
        let path = format!("/v1/queues/default/timers/{key}");
        client
            .json("POST", &format!("{path}:fire"), "{}")
            .expect(202);
        let timer = client.get(&path).expect(200);
        assert_eq!(timer["held_by"], "the queue has no endpoint", "{timer}");
    }
    let timer = client.get("/v1/queues/default/timers/path").expect(200);
    let target = serde_json::json!({"path": "/a", "headers": {}, "timeout": "9s"});
    assert_eq!(timer["target"], target);
}
