//! The log of the real program: what is refused is in it, and nobody but the program writes a line of it.

use std::fs::File;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{Directory, Server, program};
use crate::tokens::{first, made, with};

/// A service whose log is the file that is returned.
pub(crate) fn start(directory: &Directory, arguments: &[&str]) -> (Server, PathBuf) {
    let log = directory.0.join("log");
    let mut command = program();
    command
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args([
            "--log-segment-mib",
            "1",
            "--allow-private-targets",
            "--data",
        ])
        .arg(directory.0.join("data"))
        .args(arguments)
        .stderr(File::create(&log).unwrap());
    (Server::logging(command), log)
}

/// The lines of a log in JSON with this message.
pub(crate) fn lines_of(log: &PathBuf, message: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines = lines.filter(|line: &Value| line["fields"]["message"] == message);
    lines.collect()
}

/// A refusal was a line at `debug` alone.
#[test]
fn a_refusal_has_a_line_with_its_token_and_path_and_many_have_a_bounded_number() {
    let directory = Directory::new();
    let (_, token) = first(&directory);
    let (server, log) = start(&directory, &["--log-format", "json"]);
    let mut admin = with(&server, &token);
    let namespace = admin.json("PUT", "/v1/namespaces/tenant-7", "{}");
    assert_eq!(namespace.status, 201);
    let (reader_id, reader) = made(&mut admin, &json!({"name": "r", "scopes": ["read"]}));
    let of_tenant = json!({"name": "t", "scopes": ["read"], "namespace": "tenant-7"});
    let (tenant_id, tenant) = made(&mut admin, &of_tenant);
    let (writer_id, writer) = made(&mut admin, &json!({"name": "w", "scopes": ["write"]}));
    // For a scope, for what is of the whole service, and for the scope that a part of the request needs.
    let mut reader = with(&server, &reader);
    let refused = reader.send("DELETE", "/v1/queues/orders?MARKER=1", &[], b"");
    assert_eq!(refused.problem(), (403, "forbidden".into()));
    let refused = with(&server, &tenant).get("/v1/stats?MARKER=1");
    assert_eq!(refused.problem(), (403, "forbidden".into()));
    let dry = r#"{"queue":"orders","action":"remove","filter":{},"dry_run":true}"#;
    let refused = with(&server, &writer).json("POST", "/v1/jobs", dry);
    assert_eq!(refused.problem(), (403, "forbidden".into()));
    for _ in 0..40 {
        let refused = reader.send("DELETE", "/v1/queues/orders", &[], b"");
        assert_eq!(refused.status, 403);
    }
    let metrics = String::from_utf8(admin.get("/metrics").body).unwrap();
    let counted = metrics.lines().filter(|line| {
        line.starts_with("countwheel_http_requests_total{") && line.contains("status=\"403\"")
    });
    let counted = counted.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    assert_eq!(counted.sum::<u64>(), 43);
    assert!(server.stop().success());
    let refusals = lines_of(&log, "a request was refused");
    let told: Vec<_> = refusals.iter().map(|line| &line["fields"]).collect();
    for (line, (token, method, path)) in told.iter().zip([
        (&reader_id, "DELETE", "/v1/queues/orders"),
        (&tenant_id, "GET", "/v1/stats"),
        (&writer_id, "POST", "/v1/jobs"),
    ]) {
        assert_eq!(line["token"], **token, "{line}");
        assert_eq!(
            (&line["method"], &line["path"]),
            (&json!(method), &json!(path))
        );
        assert_eq!(line["address"], "127.0.0.1");
    }
    assert!(refusals.iter().all(|line| line["level"] == "WARN"));
    assert_eq!(told.len(), 20, "the rest is counted");
    let many = lines_of(
        &log,
        "many requests were refused: more of them are counted alone",
    );
    assert_eq!(many.len(), 1);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("MARKER") && !text.contains("cwt_"), "{text}");
}
