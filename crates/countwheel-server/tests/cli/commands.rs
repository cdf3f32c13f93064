//! The program as the shell sees it: what it prints, and its exit code.

use std::process::{Output, Stdio};
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::stub::{Fault, Stub};

fn command(arguments: &[&str]) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_countwheel"));
    command.env_remove("COUNTWHEEL_SERVER");
    command.env_remove("COUNTWHEEL_TOKEN");
    command.args(arguments).kill_on_drop(true);
    command
}

async fn run(stub: &Stub, arguments: &[&str]) -> Output {
    let mut command = command(arguments);
    let output = command.env("COUNTWHEEL_SERVER", &stub.url).output();
    output.await.unwrap()
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
async fn wrong_usage_says_what_to_do() {
    let stub = Stub::start().await;
    for (more, words) in [
        (&["--header", "x: 1", "--header", "X: 2"][..], "given twice"),
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

#[tokio::test]
async fn a_replay_without_an_echo_or_without_flights_is_refused() {
    let stub = Stub::start().await;
    stub.inner().no_echo = true;
    let name = format!("countwheel-cli-echo-{}.csv", std::process::id());
    let trace = std::env::temp_dir().join(name);
    let text = "scheduled_departure,flight,delay_minutes\n2013-01-01T10:15:00Z,a,2\n";
    std::fs::write(&trace, text).unwrap();
    let replay = ["replay", trace.to_str().unwrap(), "--speed", "1e9"];
    let (_, err, code) = told(&run(&stub, &replay).await);
    assert!(err.contains("give --target URL"), "{err}");
    assert_eq!(code, Some(2));
    let late = [&replay[..], &["--from", "2014-01-01"]].concat();
    let (_, err, code) = told(&run(&stub, &late).await);
    assert!(err.contains("no flight in the time"), "{err}");
    assert_eq!(code, Some(2));
    assert!(stub.inner().requests.is_empty());
    let aimed = [&replay[..], &["--target", "http://x/"]].concat();
    let (_, err, code) = told(&run(&stub, &aimed).await);
    assert_eq!(code, Some(0), "{err}");
    std::fs::remove_file(&trace).unwrap();
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
    let (trace, log, report) = (path("trace.csv"), path("log"), path("report.json"));
    let text = "scheduled_departure,flight,delay_minutes\n\
                2013-01-01T10:15:00Z,a,2\n2013-01-01T10:16:00Z,b,\n2013-01-02T10:00:00Z,c,30\n";
    std::fs::write(&trace, text).unwrap();
    let arguments = [
        "replay",
        &trace,
        "--speed",
        "1000000",
        "--to",
        "2013-01-02",
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
    assert_eq!(lines[2]["was"], "pending");

    std::fs::write(&trace, format!("{text}soon,d,1\n")).unwrap();
    let (_, err, code) = told(&run(&stub, &["replay", &trace, "--speed", "1e9"]).await);
    assert!(
        err.ends_with("trace.csv: line 5: \"soon\" is not a time such as 2013-01-01T10:15:00Z\n"),
        "{err}"
    );
    assert_eq!(code, Some(2));
    std::fs::remove_dir_all(&folder).unwrap();
}
