//! The program as the shell sees it: what it prints, and its exit code.

use std::process::{Output, Stdio};
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::stub::{Fault, Stub};

fn command(arguments: &[&str]) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_countwheel"));
    command.env_remove("COUNTWHEEL_SERVER");
    command.env_remove("COUNTWHEEL_TOKEN");
    command.args(arguments).kill_on_drop(true);
    command
}

pub(crate) async fn run(stub: &Stub, arguments: &[&str]) -> Output {
    let mut command = command(arguments);
    let output = command.env("COUNTWHEEL_SERVER", &stub.url).output();
    output.await.unwrap()
}

/// As [`run`], with something on standard input.
async fn run_with(stub: &Stub, arguments: &[&str], input: &str) -> Output {
    let mut command = command(arguments);
    let command = command.env("COUNTWHEEL_SERVER", &stub.url);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    child.wait_with_output().await.unwrap()
}

/// Standard output, standard error and the exit code.
pub(crate) fn told(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        text(&output.stdout),
        text(&output.stderr),
        output.status.code(),
    )
}

#[tokio::test]
async fn a_refusal_is_one_line_with_its_code() {
    let stub = Stub::start().await;
    let (out, err, code) = told(&run(&stub, &["get", "nothing"]).await);
    assert_eq!(out, "");
    assert_eq!(
        err,
        "countwheel: there is no timer of that name (not_found)\n"
    );
    assert_eq!(code, Some(2));

    stub.put("there", vec![json!({ "state": "done" })]);
    let (_, err, code) = told(&run(&stub, &["remove", "there"]).await);
    assert_eq!(err, "countwheel: the timer is done (gone)\n");
    assert_eq!(code, Some(1));
}

#[tokio::test]
async fn wrong_usage_and_a_server_that_is_away_have_codes_of_their_own() {
    let stub = Stub::start().await;
    for arguments in [
        &["set", "a"][..],
        &["set", "a", "--in", "5", "--post", "http://x/"],
        &[
            "set",
            "a",
            "--in",
            "5s",
            "--at",
            "2026-03-01T12:00:00Z",
            "--post",
            "http://x/",
        ],
        &[
            "set",
            "a",
            "--in",
            "5s",
            "--post",
            "http://x/",
            "--jitter",
            "full",
        ],
        &[
            "set",
            "a",
            "--in",
            "5s",
            "--post",
            "http://x/",
            "--retry",
            "weekly",
        ],
        &[
            "set",
            "a",
            "--in",
            "5s",
            "--post",
            "http://x/",
            "--json-body",
            "{",
        ],
        &["move", "a"],
        &["get", "a", "--server", "localhost"],
        &["replay", "/no/such/file"],
        &["replay", "x", "--speed", "0"],
        &["unknown"],
    ] {
        let (_, err, code) = told(&run(&stub, arguments).await);
        assert_eq!(code, Some(2), "{arguments:?}: {err}");
    }
    assert!(stub.inner().requests.is_empty());

    // A port that was free a moment ago.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let mut away = command(&["get", "a", "--server", &url]);
    let (_, err, code) = told(&away.output().await.unwrap());
    assert!(
        err.starts_with("countwheel: no server at http://127.0.0.1:"),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1);
    assert_eq!(code, Some(3));
}

const SET: [&str; 6] = [
    "set",
    "a",
    "--at",
    "2126-03-01T12:00:00Z",
    "--post",
    "http://x/",
];

#[tokio::test]
async fn a_json_body_arrives_byte_for_byte() {
    let stub = Stub::start().await;
    let body = r#"{"z":1.000,"a":12345678901234567890123,"n":1E2, "z":"\u00e4"}"#;
    let arguments = [&SET[..], &["--json-body", body]].concat();
    let (_, err, code) = told(&run(&stub, &arguments).await);
    assert_eq!(code, Some(0), "{err}");
    let sent = stub.inner().last_body.clone();
    assert!(sent.contains(&format!("\"body\":{body}")), "{sent}");
    let sent: Value = serde_json::from_str(&sent).unwrap();
    assert_eq!(sent["target"]["url"], "http://x/");
}

#[tokio::test]
async fn a_method_is_named_and_a_file_that_is_no_text_goes_as_bytes() {
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("body");
    std::fs::write(&file, [0, 0xff, 0x80]).unwrap();
    let file = file.to_string_lossy();
    for (more, content_type) in [
        (&[][..], Value::Null),
        (&["--content-type", "image/x"], "image/x".into()),
    ] {
        let arguments = [&SET[..], &["--method", "PUT", "--body-file", &file], more].concat();
        let (_, err, code) = told(&run(&stub, &arguments).await);
        assert_eq!(code, Some(0), "{err}");
        let sent: Value = serde_json::from_str(&stub.inner().last_body).unwrap();
        assert_eq!(sent["target"]["method"], "PUT");
        assert_eq!(
            (&sent["body_base64"], &sent["content_type"]),
            (&"AP+A".into(), &content_type)
        );
    }
}

#[tokio::test]
async fn wrong_usage_says_what_to_do() {
    let stub = Stub::start().await;
    for (more, words) in [
        (&["--header", "x: 1", "--header", "X: 2"][..], "given twice"),
        (&["--method", "put"], "a method is one of GET, "),
        (&["--jitter", "full"], "--retry exp:10s..6h"),
        (&["--max-attempts", "3"], "--retry exp:10s..6h"),
        (&["--max-age", "3h"], "--retry exp:10s..6h"),
        (&["--server", "localhost:7171"], "http://localhost:7171?"),
    ] {
        let (_, err, code) = told(&run(&stub, &[&SET[..], more].concat()).await);
        assert!(err.contains(words), "{err}");
        assert_eq!(code, Some(2), "{err}");
    }
    for command in ["set", "move", "revive"] {
        let (_, err, code) = told(&run(&stub, &[command, "a", "--in", "-5s"]).await);
        assert!(err.contains("less than nothing"), "{err}");
        assert_eq!(code, Some(2), "{err}");
    }
    let (_, err, code) = told(&run(&stub, &["replay", "/nope"]).await);
    assert_eq!(err, "countwheel: /nope: No such file or directory\n");
    assert_eq!(code, Some(2));
    assert!(stub.inner().requests.is_empty());

    let (help, _, _) = told(&run(&stub, &["set", "--help"]).await);
    let (plain, retry) = help.split_once("Retry policy:").unwrap();
    for name in ["--if-absent", "--if-revision", "--watch"] {
        assert!(plain.contains(name) && !retry.contains(name), "{help}");
    }
}

/// A trace for the file: each line is its time, as `10:15`, and its other fields.
fn trace(lines: &[(&str, &str)]) -> String {
    let line =
        |(time, fields): &(&str, &str)| format!("{{\"t\":\"2013-01-01T{time}:00Z\",{fields}}}\n");
    lines.iter().map(line).collect()
}

const SET_A: &str = r#""op":"set","key":"a","in":"1m""#;

#[tokio::test]
async fn a_replay_without_an_echo_or_without_operations_is_refused() {
    let stub = Stub::start().await;
    stub.inner().no_echo = true;
    let name = format!("countwheel-cli-echo-{}.jsonl", std::process::id());
    let file = std::env::temp_dir().join(name);
    let text = trace(&[("10:15", SET_A)]);
    std::fs::write(&file, &text).unwrap();
    let replay = ["replay", file.to_str().unwrap(), "--speed", "1e9"];
    let (_, err, code) = told(&run(&stub, &replay).await);
    assert!(err.contains("give --target URL"), "{err}");
    assert_eq!(code, Some(2));
    let late = [&replay[..], &["--from", "2014-01-01"]].concat();
    let (_, err, code) = told(&run(&stub, &late).await);
    assert!(err.contains("no operation in the time"), "{err}");
    assert_eq!(code, Some(2));
    assert!(stub.inner().requests.is_empty());
    let aimed = [&replay[..], &["--target", "http://x/"]].concat();
    let (_, err, code) = told(&run(&stub, &aimed).await);
    assert_eq!(code, Some(0), "{err}");
    // Nobody knows beforehand what standard input will have.
    let lines = trace(&[("10:15", r#""op":"remove","key":"b""#), ("10:16", SET_A)]);
    let (_, err, code) = told(&run_with(&stub, &["replay", "-", "--speed", "1e9"], &lines).await);
    assert!(
        err.starts_with("countwheel: standard input: line 2: no target"),
        "{err}"
    );
    assert_eq!(code, Some(2));
    assert_eq!(stub.inner().requests.last().unwrap(), "DELETE b");
    // Each line has a target.
    let text = trace(&[(
        "10:15",
        &format!(r#"{SET_A},"target":{{"url":"http://y/"}}"#),
    )]);
    std::fs::write(&file, &text).unwrap();
    let (_, err, code) = told(&run(&stub, &replay).await);
    assert_eq!(code, Some(0), "{err}");
    std::fs::remove_file(&file).unwrap();
}

#[tokio::test]
async fn a_replay_sends_what_its_lines_say() {
    let stub = Stub::start().await;
    let lines = trace(&[
        (
            "10:15",
            r#""op":"set","key":"a","queue":"other","at":"2013-01-01T10:16:00Z","body":{"n": 1.000},"retry":{"fixed":"7s"},"target":{"url":"http://y/","headers":{"x-shop":"7"},"timeout":"1s"}"#,
        ),
        (
            "10:15",
            r#""op":"move","key":"a","queue":"other","in":"2m""#,
        ),
    ]);
    let replay = ["replay", "-", "--speed", "1000"];
    let (out, err, code) = told(&run_with(&stub, &replay, &lines).await);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("set      1 ok\nmove     1 ok\n"), "{out}");
    let (first, url) = {
        let inner = stub.inner();
        assert_eq!(inner.requests, ["PUT other a", "PATCH other a"]);
        let live = inner.timers["other a"].live.clone().unwrap();
        assert_eq!(live.body["retry"]["fixed"], 7_000);
        assert_eq!(live.body["target"]["timeout"], 1_000);
        assert_eq!(live.body["target"]["headers"]["x-shop"], "7");
        assert_eq!(live.body["target"]["headers"]["replay-line"], "1");
        assert_eq!(live.body["body"], json!({ "n": 1.0 }));
        let set = countwheel_server::time::parse_time(live.body["at"].as_str().unwrap());
        let moved_by = live.due.saturating_since(set.unwrap());
        // A minute of the trace.
        (moved_by, live.body["target"]["url"].clone())
    };
    assert_eq!(url, "http://y/");
    assert_eq!(first, Duration::from_millis(60));
    // With --target, nothing goes where the lines say.
    let aimed = [&replay[..], &["--target", "http://z/"]].concat();
    let (out, err, code) = told(&run_with(&stub, &aimed, &lines).await);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("set      1 ok in place of another\n"), "{out}");
    let live = stub.inner().timers["other a"].live.clone().unwrap();
    assert_eq!(live.body["target"]["url"], "http://z/");
}

#[tokio::test]
async fn a_trace_in_disorder_is_sorted_if_a_file_and_refused_at_its_line_if_not() {
    let stub = Stub::start().await;
    let lines = trace(&[
        ("10:17", r#""op":"remove","key":"a""#),
        ("10:15", SET_A),
        ("10:16", r#""op":"move","key":"a","in":"1m""#),
    ]);
    let replay = ["replay", "-", "--speed", "1e9"];
    let (_, err, code) = told(&run_with(&stub, &replay, &lines).await);
    assert!(
        err.starts_with("countwheel: standard input: line 2: /t: earlier than"),
        "{err}"
    );
    assert_eq!(code, Some(2));
    assert_eq!(stub.inner().requests, ["DELETE a"]);
    stub.inner().requests.clear();
    let name = format!("countwheel-cli-disorder-{}.jsonl", std::process::id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, &lines).unwrap();
    let (_, err, code) = told(
        &run(
            &stub,
            &["replay", file.to_str().unwrap(), "--speed", "1000"],
        )
        .await,
    );
    std::fs::remove_file(&file).unwrap();
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(stub.inner().requests, ["PUT a", "PATCH a", "DELETE a"]);
}

#[tokio::test]
async fn a_bad_line_of_a_file_is_named_before_anything_is_sent() {
    let stub = Stub::start().await;
    let name = format!("countwheel-cli-bad-{}.jsonl", std::process::id());
    let file = std::env::temp_dir().join(name);
    let path = file.to_str().unwrap();
    let good = trace(&[("10:15", SET_A)]);
    for (bad, expected) in [
        (
            trace(&[("10:16", r#""op":"cancel","key":"a""#)]),
            r#"/op: "cancel" is none of set, move, remove"#,
        ),
        (
            trace(&[("10:16", r#""op":"move","key":"a""#)]),
            "exactly one of in, at is needed",
        ),
        (
            "scheduled_departure,flight\n".to_owned(),
            "the line is not JSON: expected value at column 1",
        ),
    ] {
        std::fs::write(&file, format!("{good}\n{bad}")).unwrap();
        let (out, err, code) = told(&run(&stub, &["replay", path]).await);
        assert_eq!((&*out, code), ("", Some(2)));
        assert_eq!(err, format!("countwheel: {path}: line 3: {expected}\n"));
    }
    std::fs::write(&file, [0x1f, 0x8b, 8]).unwrap();
    let (_, err, code) = told(&run(&stub, &["replay", path]).await);
    assert!(
        err.ends_with("line 1: compressed with gzip: gzip -dc FILE | countwheel replay -\n"),
        "{err}"
    );
    assert_eq!(code, Some(2));
    std::fs::remove_file(&file).unwrap();
    let directory = std::env::temp_dir();
    let (_, err, code) = told(&run(&stub, &["replay", directory.to_str().unwrap()]).await);
    assert!(err.ends_with(": Is a directory\n"), "{err}");
    assert_eq!(code, Some(2));
    for nothing in ["", "\n \n"] {
        let (_, err, code) = told(&run_with(&stub, &["replay", "-"], nothing).await);
        assert_eq!(err, "countwheel: standard input: no operation\n");
        assert_eq!(code, Some(2));
    }
    assert!(stub.inner().requests.is_empty());
}

#[tokio::test]
async fn of_many_attempts_to_come_five_are_told() {
    let stub = Stub::start().await;
    let next: Vec<_> = (1..=20)
        .map(|n| json!({ "attempt": n, "at": "2126-03-01T12:00:00Z" }))
        .collect();
    stub.put(
        "a",
        vec![json!({ "state": "pending", "next_attempts": next })],
    );
    let (out, _, _) = told(&run(&stub, &["get", "a"]).await);
    assert_eq!(out.matches("\nnext ").count(), 5, "{out}");
    assert!(out.ends_with("\n… and 15 more\n"), "{out}");
}

#[tokio::test]
async fn a_removed_timer_is_told_with_what_it_was_doing() {
    let stub = Stub::start().await;
    stub.put("order-42", Vec::new());
    let (out, _, code) = told(&run(&stub, &["remove", "order-42"]).await);
    assert!(
        out.starts_with("removed order-42 (was pending, due in "),
        "{out}"
    );
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn a_reader_that_has_enough_is_no_failure() {
    let stub = Stub::start().await;
    // The stub's list has no end.
    let mut list = command(&["list", "--all"]);
    list.env("COUNTWHEEL_SERVER", &stub.url);
    let mut child = list
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut begin = [0; 16];
    out.read_exact(&mut begin).await.unwrap();
    assert!(begin.starts_with(b"KEY"));
    drop(out);
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(told(&output), (String::new(), String::new(), Some(0)));
}

fn attempt(code: Option<&str>) -> Value {
    let mut attempt = json!({ "number": 1, "due": "2026-03-01T12:00:05Z",
                              "started": "2026-03-01T12:00:05.0003Z", "late_us": 300 });
    if let Some(code) = code {
        attempt["ended"] = "2026-03-01T12:00:05.0014Z".into();
        attempt["detail"] = code.into();
        attempt["result"] = if code == "200" { "done" } else { "failed" }.into();
    }
    attempt
}

#[tokio::test]
async fn a_watch_goes_on_after_the_server_was_away() {
    let stub = Stub::start().await;
    let state = |state: &str, attempts: Value| {
        json!({ "state": state, "attempt": 1, "attempts": attempts,
                "created": "2026-03-01T12:00:00Z" })
    };
    stub.put(
        "order-42",
        vec![
            state("delivering", json!([attempt(None)])),
            state("done", json!([attempt(Some("200"))])),
        ],
    );
    stub.faults(|_, _, number| match number {
        1..4 => Fault::Before,
        _ => Fault::None,
    });
    let (out, err, code) = told(&run(&stub, &["watch", "order-42"]).await);
    assert!(out.contains("fired      +5.000 s\n"), "{out}");
    assert!(
        out.ends_with("attempt 1  200 in 1.1 ms   late 0.3 ms    done\n"),
        "{out}"
    );
    let notices: Vec<_> = err.lines().collect();
    assert_eq!(notices.len(), 2, "{err}");
    assert!(notices[0].ends_with("; waiting for it"), "{err}");
    assert!(notices[1].contains("the server is back after"), "{err}");
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn the_end_of_a_watch_is_in_its_exit_code() {
    let stub = Stub::start().await;
    let dead = json!({ "state": "dead", "dead_reason": "exhausted", "attempt": 1,
                       "attempts": [attempt(Some("503"))] });
    stub.put("dead", vec![dead]);
    let (out, _, code) = told(&run(&stub, &["watch", "dead"]).await);
    assert!(out.ends_with("dead (exhausted)\n"), "{out}");
    assert_eq!(code, Some(1));

    let (_, _, code) = told(&run(&stub, &["watch", "nothing"]).await);
    assert_eq!(code, Some(2));

    stub.put("pending", Vec::new());
    let slow = ["watch", "pending", "--timeout", "300ms"];
    let (_, err, code) = told(&run(&stub, &slow).await);
    assert_eq!(err, "countwheel: pending is not done yet\n");
    assert_eq!(code, Some(124));

    let mut watch = command(&["watch", "pending"]);
    watch
        .env("COUNTWHEEL_SERVER", &stub.url)
        .stdout(Stdio::piped());
    let watch = watch.spawn().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    stub.inner().timers.clear();
    let (out, _, code) = told(&watch.wait_with_output().await.unwrap());
    assert!(out.ends_with("removed    pending\n"), "{out}");
    assert_eq!(code, Some(2));
}

#[tokio::test]
async fn a_replayed_file_leaves_a_report_and_a_log() {
    let stub = Stub::start().await;
    stub.faults(|method, key, _| match (method, key) {
        (&Method::PUT, "a") => Fault::After,
        _ => Fault::None,
    });
    let folder = std::env::temp_dir().join(format!("countwheel-cli-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (file, log, report) = (path("trace.jsonl"), path("log"), path("report.json"));
    let text = trace(&[
        ("10:15", SET_A),
        ("10:16", r#""op":"set","key":"b","in":"1h""#),
        ("10:17", r#""op":"remove","key":"b""#),
        ("18:00", r#""op":"set","key":"c","in":"1h""#),
    ]);
    std::fs::write(&file, &text).unwrap();
    let arguments = [
        "replay",
        &file,
        "--speed",
        "1000000",
        "--to",
        "2013-01-01T18:00:00Z",
        "--log",
        &log,
        "--report",
        &report,
    ];
    let (out, err, code) = told(&run(&stub, &arguments).await);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("set      1 ok, 1 found done\nremove   1 ok\n"),
        "{out}"
    );
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    assert_eq!(report["operations"]["set"], json!({ "ok": 1, "found": 1 }));
    let log = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    let set = lines.iter().find(|line| line["key"] == "a").unwrap();
    assert_eq!(
        (&set["op"], &set["result"]),
        (&json!("set"), &json!("found"))
    );
    assert!(set["acked_us"].as_u64() >= set["sent_us"].as_u64());
    let removed = lines.iter().find(|line| line["op"] == "remove").unwrap();
    assert_eq!(removed["was"], "pending");
    let of = |key: &str| {
        let of_key = lines.iter().filter(|line| line["key"] == key);
        of_key
            .map(|line| line["line"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!((of("a"), of("b")), (vec![1], vec![2, 3]));
    assert_eq!(set["queue"], "default");

    std::fs::remove_dir_all(&folder).unwrap();
}
