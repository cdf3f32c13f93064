//! Several places to listen at, and sockets of the file system.

use std::fs;
use std::io::{BufReader, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Output;

use crate::support::{
    Answer, Client, Directory, PATIENCE, Server, output_of_refusal, pause, program, read_answer,
};

fn serve(directory: &Directory, data: &str, socket: &Path, more: &[&str]) -> std::process::Command {
    let mut command = program();
    command
        .args(["serve", "--log-segment-mib=1", "--data"])
        .arg(directory.0.join(data))
        .arg(format!("--listen=unix:{}", socket.display()))
        .args(more);
    command
}

fn refused(command: std::process::Command) -> Output {
    output_of_refusal(command).expect("it is refused")
}

fn connect(socket: &Path) -> BufReader<UnixStream> {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

fn ask(stream: &mut BufReader<UnixStream>, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.get_mut().write_all(request.as_bytes()).unwrap();
    read_answer(stream, false).unwrap()
}

fn mode(socket: &Path) -> u32 {
    let found = socket.symlink_metadata().unwrap();
    assert!(found.file_type().is_socket());
    found.permissions().mode() & 0o777
}

#[test]
fn a_socket_is_made_replaced_if_stale_and_removed() {
    let directory = Directory::new();
    let socket = directory.0.join("api.sock");
    let server = Server::spawn(serve(&directory, "data", &socket, &[]));
    assert!(
        server
            .ready
            .starts_with(&format!("ready unix:{} ", socket.display())),
        "{}",
        server.ready
    );
    assert_eq!(mode(&socket), 0o600);
    let mut stream = connect(&socket);
    for _ in 0..3 {
        assert_eq!(ask(&mut stream, "/v1/queues").status, 200);
    }
    // Another one that is to listen there does not, and leaves it alone.
    let output = refused(serve(&directory, "other", &socket, &[]));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("unix:") && said.contains("in use"), "{said}");
    assert_eq!(ask(&mut connect(&socket), "/healthz").status, 200);

    // Killed, it leaves the file, which the next one replaces.
    drop(server);
    assert_eq!(mode(&socket), 0o600);
    let server = Server::spawn(serve(&directory, "data", &socket, &["--socket-mode=0666"]));
    assert_eq!(mode(&socket), 0o666);
    assert_eq!(ask(&mut connect(&socket), "/healthz").status, 200);
    assert!(server.stop().success());
    assert!(!socket.exists());
}

#[test]
fn the_commands_ask_a_service_at_its_socket() {
    let directory = Directory::new();
    let socket = directory.0.join("api.sock");
    let server = Server::spawn(serve(&directory, "data", &socket, &[]));
    let url = format!("unix:{}", socket.display());
    let run = |url: &str, arguments: &[&str]| {
        let output = program()
            .args(arguments)
            .env("COUNTWHEEL_SERVER", url)
            .output();
        let output = output.unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let told = text(&output.stdout) + &text(&output.stderr);
        (output.status.code(), told)
    };
    let set = ["set", "a", "--in=1h", "--post=http://example.com/"];
    assert_eq!(run(&url, &set).0, Some(0));
    let operations = directory.0.join("operations");
    let operation = r#"{"op": "set", "queue": "default", "key": "b", "in": "1h", "target": {"url": "http://example.com/"}}"#;
    fs::write(&operations, operation).unwrap();
    assert_eq!(
        run(&url, &["batch", operations.to_str().unwrap()]).0,
        Some(0)
    );
    for (arguments, says) in [
        (&["get", "a"][..], "pending"),
        (&["list"], "b"),
        (&["queues"], "default"),
        (&["stats"], "2"),
        (&["token", "list"], "SCOPES"),
        (&["audit"], "OPERATION"),
    ] {
        let (code, told) = run(&url, arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {told}");
        assert!(told.contains(says), "{arguments:?}: {told}");
    }
    // The option is another way to say it.
    let option = format!("--server={url}");
    assert_eq!(run("http://127.0.0.1:1", &["get", "a", &option]).0, Some(0));
    let (code, told) = run(&url, &["get", "nobody"]);
    assert_eq!(code, Some(2), "{told}");

    assert!(server.stop().success());
    let (code, told) = run(&url, &["get", "a"]);
    assert_eq!(code, Some(3), "{told}");
    assert!(
        told.starts_with(&format!("countwheel: no server at {url}: ")),
        "{told}"
    );
    let long = format!("unix:/{}", "p".repeat(109));
    for (url, says) in [
        ("unix:api.sock", "does not begin with /"),
        ("unix:/run/", "ends with /"),
        (&long, "has 110 bytes"),
    ] {
        let (code, told) = run(url, &["get", "a"]);
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains(says), "{told}");
    }
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let directory = Directory::new();
    let socket = directory.0.join("api.sock");
    fs::write(&socket, "precious").unwrap();
    let output = refused(serve(&directory, "data", &socket, &[]));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no socket"), "{said}");
    assert_eq!(fs::read_to_string(&socket).unwrap(), "precious");
    assert!(!directory.0.join("data").exists());
    // A socket that was put in place of its own at the end stays.
    fs::remove_file(&socket).unwrap();
    let server = Server::spawn(serve(&directory, "data", &socket, &[]));
    fs::remove_file(&socket).unwrap();
    let _other = UnixListener::bind(&socket).unwrap();
    assert!(server.stop().success());
    assert!(socket.exists());
}

#[test]
fn the_same_is_answered_wherever_it_is_asked() {
    let directory = Directory::new();
    let socket = directory.0.join("api.sock");
    let more = [
        "--listen=127.0.0.1:0",
        "--listen=localhost:0",
        "--connections=16",
        "--connections-per-address=6",
    ];
    let server = Server::spawn(serve(&directory, "data", &socket, &more));
    let (_, others) = server.ready.split_once(" also=http://").unwrap();
    let others: Vec<_> = others.trim_end().split(",http://").collect();
    let [one, two] = others[..] else {
        panic!("{}", server.ready)
    };
    assert_ne!(one, two);
    let set = r#"{"in": "1d", "target": {"url": "http://example.com/"}}"#;
    let path = "/v1/queues/q/timers/a";
    let mut client = Client::to(one);
    client.json("PUT", path, set).expect(201);
    let timer = Client::to(two).get(path).expect(200);
    assert_eq!(ask(&mut connect(&socket), path).expect(200), timer);
    // All count together; a user of this machine as one address does.
    let _idle: Vec<_> = (0..20).map(|_| connect(&socket)).collect();
    let _more: Vec<_> = (0..20)
        .map(|_| std::net::TcpStream::connect(two).unwrap())
        .collect();
    // While those are still coming, each may make room for the next one before it is answered.
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let figures = (0..2_000).find_map(|_| {
        pause();
        let answer = Client::to(one).exchange(request, false)?;
        let metrics = String::from_utf8(answer.body).unwrap();
        let figure = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().parse::<f64>().unwrap()
        };
        let told = figure("countwheel_connections_closed_for_room_total");
        (told >= 28.0).then(|| figure("countwheel_connections "))
    });
    let open = figures.expect("both are held to their limit");
    assert!((7.0..=13.0).contains(&open), "{open}");
}
