//! How the program starts and how it ends.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use countwheel_time::{Clock, Instant, SystemClock};
use serde_json::{Value, json};

use crate::support::{
    Directory, Server, Target, output_of_refusal, pause, program, unprivileged, wait_for_state,
};

const PATH: &str = "/v1/queues/default/timers/k";

fn serve(data: &Path, arguments: &[&str]) -> Output {
    let mut command = program();
    command.args([
        "serve",
        "--log-segment-mib",
        "1",
        "--listen",
        "127.0.0.1:0",
        "--data",
    ]);
    command.arg(data).args(arguments).output().unwrap()
}

/// Checks that it ended with this code and one line that holds `text`.
#[track_caller]
fn refused(output: &Output, code: i32, text: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(text), "{said}");
    if code == 1 {
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn the_c_library_is_told_to_keep_little_unless_somebody_told_it_how_much() {
    let setting = |server: &Server, name: &str| {
        let environment = std::fs::read(format!("/proc/{}/environ", server.pid())).unwrap();
        let environment = String::from_utf8(environment).unwrap();
        let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned());
        environment.split('\0').find_map(value)
    };
    let names = ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"];
    let bytes = |bytes: &str| Some(bytes.to_owned());
    for (told, expected) in [
        (None, [bytes("4194304"), bytes("1048576")]),
        (Some("1000000"), [None, bytes("1000000")]),
    ] {
        let directory = Directory::new();
        let mut command = program();
        command
            .args(["serve", "--log-segment-mib", "1", "--listen", "127.0.0.1:0"])
            .arg("--data")
            .arg(directory.0.join("data"))
            .env_remove("GLIBC_TUNABLES");
        for name in names {
            command.env_remove(name);
        }
        if let Some(told) = told {
            command.env(names[1], told);
        }
        let server = Server::spawn(command);
        assert_eq!(names.map(|name| setting(&server, name)), expected);
        assert!(server.stop().success());
    }
}

#[test]
fn timers_outlive_the_process() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let target = Target::answering("200 OK");
    let server = Server::start(&data);
    let body = json!({"in": "300ms", "target": {"url": target.url}, "body": 1}).to_string();
    let made = server.client().json("PUT", PATH, &body).expect(201);
    assert!(server.stop().success());
    let server = Server::start(&data);
    assert!(server.ready.contains("pending=1"), "{}", server.ready);
    assert_eq!(
        target.next().header("webhook-id"),
        made["id"].as_str().unwrap()
    );
    wait_for_state(&mut server.client(), PATH, "done");
}

#[test]
fn a_log_of_an_earlier_stop_is_refused_beside_the_tables_of_a_later_one() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let log = data.join("log");
    let earlier = directory.0.join("earlier");
    for key in ["a", "b"] {
        let server = Server::start(&data);
        let path = format!("/v1/queues/default/timers/{key}");
        let body = json!({"in": "1h", "target": {"url": "http://127.0.0.1:9/"}}).to_string();
        server.client().json("PUT", &path, &body).expect(201);
        assert!(server.stop().success());
        if key == "a" {
            std::fs::create_dir(&earlier).unwrap();
            for file in std::fs::read_dir(&log).unwrap() {
                let file = file.unwrap();
                std::fs::copy(file.path(), earlier.join(file.file_name())).unwrap();
            }
        }
    }
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::rename(&earlier, &log).unwrap();
    let output = serve(&data, &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the log ends here"), "{said}");
}

#[test]
fn a_stop_waits_for_the_delivery_that_runs() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let target = Target::start(|_| {
        (0..50).for_each(|_| pause());
        crate::support::reply("200 OK", "")
    });
    for signal in ["-TERM", "-INT"] {
        let mut server = Server::start(&data);
        let mut client = server.client();
        let body = json!({"in": 0, "target": {"url": target.url}}).to_string();
        client.json("PUT", PATH, &body);
        target.next();
        let clock = SystemClock::new();
        server.signal(signal);
        // Until it is done, it answers, but takes no more.
        let ready = loop {
            let ready = client.get("/readyz");
            if ready.status != 200 {
                break ready;
            }
        };
        assert_eq!(ready.problem(), (503, "unavailable".into()));
        client.get("/healthz").expect(200);
        let late = client.json("PUT", "/v1/queues/default/timers/late", &body);
        assert_eq!(late.problem(), (503, "unavailable".into()));
        assert_eq!(server.wait().code(), Some(0));
        // It waits for the delivery, not for the end of the grace.
        assert!(clock.now() < Instant::ZERO + Duration::from_secs(8));
        let server = Server::start(&data);
        let done = server.client().get(PATH).expect(200);
        assert_eq!(done["state"], "done");
        assert_eq!(
            server.client().get("/v1/queues/default/timers/late").status,
            404
        );
        assert!(server.stop().success());
    }
}

#[test]
fn a_delivery_that_outlasts_the_grace_is_repeated_under_the_next_number() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let arguments = ["--allow-private-targets", "--shutdown-grace", "100ms"];
    let server = Server::with(&data, &arguments);
    let mut client = server.client();
    client.json(
        "PUT",
        PATH,
        &json!({"in": 0, "target": {"url": url}}).to_string(),
    );
    wait_for_state(&mut client, PATH, "delivering");
    assert_eq!(server.stop().code(), Some(0));
    let server = Server::with(&data, &arguments);
    let mut client = server.client();
    let again = loop {
        let timer = wait_for_state(&mut client, PATH, "delivering");
        if timer["attempt"] != 1 {
            break timer;
        }
    };
    assert_eq!(again["attempt"], 2);
    assert_eq!(again["attempts"][0]["result"], "interrupted");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let directory = Directory::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let mut server = Server::start(&directory.0.join("data"));
        let mut client = server.client();
        let body = json!({"in": 0, "target": {"url": url, "timeout": "5m"}});
        client.json("PUT", PATH, &body.to_string());
        wait_for_state(&mut client, PATH, "delivering");
        server.signal(signal);
        while client.get("/readyz").status == 200 {}
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(code));
    }
}

#[test]
fn a_directory_that_is_in_use_is_named() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let _server = Server::start(&data);
    let output = serve(&data, &[]);
    refused(&output, 1, data.to_str().unwrap());
    refused(&output, 1, "locked by another process");
}

#[test]
fn data_that_cannot_be_used_is_named_and_left_alone() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    assert!(Server::start(&data).stop().success());
    for part in ["FORMAT", "log/segment-0000000000000001", "tables/manifest"] {
        let path = data.join(part);
        let sound = std::fs::read(&path).unwrap();
        let cut = sound[..sound.len() / 2].to_vec();
        for damaged in [b"not a store".to_vec(), cut] {
            std::fs::write(&path, &damaged).unwrap();
            refused(&serve(&data, &[]), 1, data.to_str().unwrap());
            assert_eq!(std::fs::read(&path).unwrap(), damaged);
        }
        std::fs::remove_file(&path).unwrap();
        refused(&serve(&data, &[]), 1, data.to_str().unwrap());
        std::fs::write(&path, sound).unwrap();
        assert!(Server::start(&data).stop().success());
    }

    let file = directory.0.join("file");
    std::fs::write(&file, "x").unwrap();
    refused(&serve(&file, &[]), 1, file.to_str().unwrap());
    let strange = directory.0.join("strange");
    std::fs::create_dir(&strange).unwrap();
    std::fs::write(strange.join("letter.txt"), "x").unwrap();
    refused(&serve(&strange, &[]), 1, strange.to_str().unwrap());

    // Whoever is root may read everything.
    let locked = directory.0.join("locked");
    std::fs::create_dir(&locked).unwrap();
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o000)).unwrap();
    if std::fs::read_dir(&locked).is_err() {
        refused(
            &serve(&locked.join("data"), &[]),
            1,
            locked.to_str().unwrap(),
        );
    }
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn a_command_line_that_asks_for_trouble_is_refused() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let run = |arguments: &[&str]| program().args(arguments).output().unwrap();
    let data = data.to_str().unwrap();
    let open = run(&["serve", "--data", data, "--listen", "0.0.0.0:0"]);
    refused(&open, 2, "--token-file");
    refused(&run(&["dev", "--listen", "[::]:0"]), 2, "--token");
    let all = ["--data", data, "--listen", "0.0.0.0:0", "--token-file"];
    let token = directory.0.join("token");
    let with = |text: &str, mode| {
        std::fs::write(&token, text).unwrap();
        std::fs::set_permissions(&token, PermissionsExt::from_mode(mode)).unwrap();
        run(&[&["serve"], &all[..], &[token.to_str().unwrap()]].concat())
    };
    for (weak, bits) in [
        ("secret", 28),
        ("1234567890123456789012345678901234567", 122),
        ("0123456789abcdef0123456789abcde", 124),
        ("aA0aA0aA0aA0aA0aA0aA0", 125),
    ] {
        refused(&with(weak, 0o600), 2, &format!("at most {bits} bits"));
    }
    let strong = "0123456789abcdef0123456789abcdef";
    refused(&with(strong, 0o644), 2, "every user of this one may read");
    std::fs::remove_file(&token).unwrap();
    refused(&run(&["serve"]), 2, "--data <DIR>|--store <URL>");
    let both = ["serve", "--data", data, "--store", "postgres://db/timers"];
    refused(&run(&both), 2, "cannot be used with");
    for bad in [
        ["--listen", "here"],
        ["--keep-done", "soon"],
        ["--shutdown-grace", "2h"],
        ["--max-in-flight", "0"],
        ["--window", "1"],
        ["--log-format", "xml"],
        ["--log-level", "loud"],
    ] {
        refused(&run(&["serve", "--data", data, bad[0], bad[1]]), 2, bad[0]);
    }
    let missing = directory.0.join("missing");
    let missing = missing.to_str().unwrap();
    refused(
        &run(&["serve", "--data", data, "--token-file", missing]),
        1,
        missing,
    );
    let empty = directory.0.join("empty");
    std::fs::write(&empty, "\n").unwrap();
    let empty = empty.to_str().unwrap();
    refused(
        &run(&["serve", "--data", data, "--token-file", empty]),
        1,
        empty,
    );
    assert!(!Path::new(data).exists(), "nothing was made");

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    refused(&run(&["dev", "--listen", &taken]), 1, "--listen");
}

#[test]
fn dev_echoes_and_leaves_nothing_behind() {
    let directory = Directory::new();
    let mut command = program();
    command
        .args(["dev", "--listen", "127.0.0.1:0"])
        .env("TMPDIR", &directory.0);
    let server = Server::spawn(command);
    let mut client = server.client();
    assert!(
        server.ready.contains("Try: countwheel set order-42"),
        "{}",
        server.ready
    );
    let url = format!("http://{}/echo?fail=2", server.address);
    let body = json!({"in": 0, "target": {"url": url}, "body": {"n": 1}, "retry": {"fixed": 10}});
    client.json("PUT", PATH, &body.to_string()).expect(201);
    let done = wait_for_state(&mut client, PATH, "done");
    assert_eq!(done["attempt"], 3);
    let echoed = client.get("/echo").expect(200);
    let answered: Vec<_> = echoed["deliveries"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|delivery| delivery["answered"].as_u64().unwrap())
        .collect();
    assert_eq!(answered, [503, 503, 200]);
    assert_eq!(echoed["deliveries"][0]["body"], r#"{"n":1}"#);
    let teapot = client.send("POST", "/echo?status=418&delay=1&retry_after=9", &[], b"");
    assert_eq!(
        (teapot.status, teapot.header("retry-after")),
        (418, Some("9"))
    );
    assert_eq!(client.send("POST", "/echo?status=99", &[], b"").status, 400);
    for method in ["PUT", "PATCH", "DELETE"] {
        assert_eq!(client.send(method, "/echo", &[], b"").status, 200);
    }

    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 1);
    assert!(server.stop().success());
    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 0);
}

/// The service that failed may close the connection before it answers.
#[test]
fn a_store_that_fails_ends_the_service_with_its_own_code() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let mut server = Server::start(&data);
    // Whatever the log goes on in, a spare that is there or one that is made, has no place.
    let (log, gone) = (data.join("log"), data.join("gone"));
    std::fs::rename(&log, &gone).unwrap();
    let mut client = server.client();
    let filling = "x".repeat(900_000);
    let body = json!({"in": "1h", "target": {"url": "http://x/"}, "body": filling}).to_string();
    let path = |number| format!("/v1/queues/default/timers/{number}");
    let mut acknowledged = Vec::new();
    for number in 0..20 {
        match client.try_json("PUT", &path(number), &body) {
            Some(answer) if answer.status == 201 => acknowledged.push(number),
            Some(answer) => {
                // The one that the log failed under may be in it.
                let (status, code) = answer.problem();
                assert_eq!(status, 503);
                assert!(["unavailable", "unknown"].contains(&&*code), "{code}");
                break;
            }
            None => break,
        }
    }
    assert!(acknowledged.len() < 20, "the store never failed");
    assert_eq!(server.wait().code(), Some(3));
    std::fs::rename(&gone, &log).unwrap();
    // Everything that was acknowledged is there.
    let server = Server::start(&data);
    for number in acknowledged {
        server.client().get(&path(number)).expect(200);
    }
}

/// A place for snapshots that cannot be used was found at the first snapshot.
#[test]
fn a_place_for_snapshots_that_cannot_be_used_is_refused_at_the_start() {
    let directory = Directory::new();
    let at = |name: &str| directory.0.join(name);
    let data = at("data");
    std::fs::write(at("file"), "x").unwrap();
    std::os::unix::fs::symlink(at("nowhere"), at("dangling")).unwrap();
    std::fs::create_dir(at("sealed")).unwrap();
    std::fs::set_permissions(at("sealed"), PermissionsExt::from_mode(0o500)).unwrap();
    for place in [
        "file",
        "file/below",
        "dangling",
        "dangling/below",
        "sealed",
        "sealed/below",
    ] {
        let place = at(place);
        let mut command = unprivileged(&directory.0);
        command.args(["serve", "--listen", "127.0.0.1:0", "--log-segment-mib", "1"]);
        command
            .arg("--data")
            .arg(&data)
            .arg("--snapshot-dir")
            .arg(&place);
        let Some(output) = output_of_refusal(command) else {
            panic!("{} is taken", place.display());
        };
        refused(&output, 1, place.to_str().unwrap());
        assert!(output.stdout.is_empty());
        assert!(!data.exists(), "nothing was made");
        assert!(!at("nowhere").exists());
    }
    // One that is not there is made, and one behind a link is as good as any.
    std::fs::create_dir(at("there")).unwrap();
    std::os::unix::fs::symlink(at("there"), at("link")).unwrap();
    for place in ["new/below", "link"] {
        let server = Server::with(&data, &["--snapshot-dir", at(place).to_str().unwrap()]);
        let mut client = server.client();
        client
            .json("POST", "/v1/snapshots", r#"{"name": "first"}"#)
            .expect(201);
        assert!(server.stop().success());
    }
}

#[test]
fn a_fence_grows_with_each_start() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let target = Target::answering("200 OK");
    let (mut fences, mut revisions) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let server = Server::start(&data);
        let mut client = server.client();
        let mut set = |wait: Value| {
            let body = json!({"in": wait, "target": {"url": target.url}}).to_string();
            let made = client.json("PUT", PATH, &body).json();
            revisions.push(made["revision"].as_u64().unwrap());
        };
        let fence = || -> u64 { target.next().header("timer-fence").parse().unwrap() };
        set(json!(0));
        fences.push(fence());
        wait_for_state(&mut server.client(), PATH, "done");
        set(json!(0));
        assert_eq!(fences.last(), Some(&fence()), "one start has one fence");
        wait_for_state(&mut server.client(), PATH, "done");
        // What is removed leaves no trace but that its revision is not given again.
        set(json!("1h"));
        client.send("DELETE", PATH, &[], b"").expect(200);
        assert!(server.stop().success());
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    assert!(revisions.is_sorted_by(|a, b| a < b), "{revisions:?}");
}

#[test]
fn nodes_to_try_out_need_ports_that_are_there_and_free() {
    let dev = |arguments: &[&str]| {
        let mut command = program();
        command.arg("dev").args(arguments).output().unwrap()
    };
    let beyond = ["--nodes", "3", "--listen", "127.0.0.1:65534"];
    refused(
        &dev(&beyond),
        2,
        "there are no 3 ports from 127.0.0.1:65534 on",
    );
    refused(&dev(&["--nodes", "9"]), 2, "9 is not in 1..=8");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let before = taken.local_addr().unwrap().port() - 1;
    let listen = format!("127.0.0.1:{before}");
    let output = dev(&["--nodes", "2", "--listen", &listen]);
    refused(&output, 1, "choose another address with --listen");
}
