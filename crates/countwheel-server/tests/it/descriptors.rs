//! A service that may open few files.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::support::{Directory, Server, Target, program, wait_for_state};

/// The command that serves `data` with this limit of open files.
pub(crate) fn limited(limit: u32, data: &Path) -> Command {
    let program = program();
    let mut command = Command::new("sh");
    let limit = format!("ulimit -n {limit} && exec \"$0\" \"$@\"");
    command.arg("-c").arg(limit).arg(program.get_program());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .args(["serve", "--allow-private-targets", "--log-segment-mib", "1"])
        .args(["--listen", "127.0.0.1:0", "--data"])
        .arg(data);
    command
}

fn tables(data: &Path) -> usize {
    let files = std::fs::read_dir(data.join("tables")).unwrap().flatten();
    let is_table = |name: std::ffi::OsString| name.to_string_lossy().starts_with("table-");
    files.filter(|file| is_table(file.file_name())).count()
}

/// Callers had half of the files, however few there were: with all of their connections idle, no
/// table could be opened, and everything was refused as on a full disk.
#[test]
fn with_few_files_and_every_place_idle_deliveries_health_and_tables_go_on() {
    const TIMERS: usize = 400;
    let directory = Directory::new();
    let data = directory.0.join("data");
    let target = Target::answering("200 OK");
    let server = Server::spawn(limited(64, &data));
    let connect = || TcpStream::connect(&server.address).unwrap();
    let mut idle: Vec<_> = (0..100).map(|_| connect()).collect();
    let body = json!({
        "in": "1s",
        "body": "timers ".repeat(2_000),
        "content_type": "text/plain",
        "target": {"url": target.url},
    });
    let soon = body.to_string();
    let later = body.to_string().replace("1s", "1h");
    for number in 0..TIMERS {
        let mut client = server.client();
        let path = format!("/v1/queues/default/timers/{number}");
        let body = if number.is_multiple_of(20) {
            &soon
        } else {
            &later
        };
        let answer = client.json("PUT", &path, body);
        assert_eq!(answer.status, 201, "{number}: {answer:?}");
        if number.is_multiple_of(20) {
            // Whoever was told to go comes again.
            idle.extend((0..40).map(|_| connect()));
            assert_eq!(client.get("/healthz").expect(200), json!({"status": "ok"}));
        }
    }
    for _ in 0..TIMERS / 20 {
        target.next();
    }
    let mut client = server.client();
    wait_for_state(&mut client, "/v1/queues/default/timers/0", "done");
    assert!(tables(&data) > 0, "nothing was moved to a table");
    assert_eq!(client.get("/healthz").expect(200), json!({"status": "ok"}));
    drop(idle);
    assert!(server.stop().success());
}

#[test]
fn a_limit_that_is_too_low_is_refused_with_the_number_that_is_needed() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let output = limited(32, &data).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the limit of open files is 32"), "{said}");
    assert!(!data.exists(), "a start that is refused changes nothing");
}
