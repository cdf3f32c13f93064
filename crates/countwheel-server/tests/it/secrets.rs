//! What callers keep to themselves: tokens, signing secrets, queries of URLs, headers and payloads are in no log, error,
//! metric, event or core file. Markers stand for each of them.

use std::fs::File;
use std::io::Read as _;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::support::{Client, Directory, PATIENCE, Server, Target, program, reply, wait_for_state};

const TOKEN: &str = "MARKER-token-5f0c1a2b3c4d5e6f7a8b";
const WRONG_TOKEN: &str = "MARKER-wrong-token-5f0c1a2b3c4d";
/// A secret of 32 bytes that says so in base64 as well.
const SECRET: &str = "whsec_MARKERsecretMARKERsecretMARKERsecretMARKERs=";
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const QUERY: &str = "MARKER-query-1";
const HEADER: &str = "MARKER-header-2";
const PAYLOAD: &str = "MARKER-payload-3";

/// What is to be nowhere; with a part of each, since a text may be cut.
const MARKERS: [&str; 7] = [
    TOKEN,
    "MARKER-token",
    "MARKER-wrong",
    "MARKERsecret",
    QUERY,
    HEADER,
    PAYLOAD,
];

/// The first marker that these bytes have, and what stands around it.
fn found(bytes: &[u8], markers: &[&str]) -> Option<String> {
    let place = |marker: &&str| {
        let mut windows = bytes.windows(marker.len());
        windows.position(|window| window == marker.as_bytes())
    };
    let at = markers.iter().find_map(place)?;
    let around = &bytes[at.saturating_sub(200)..bytes.len().min(at + 60)];
    Some(String::from_utf8_lossy(around).into_owned())
}

#[track_caller]
fn has_none(what: &str, bytes: &[u8], markers: &[&str]) {
    let found = found(bytes, markers);
    assert!(found.is_none(), "{what}: {}", found.unwrap_or_default());
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.push(path);
        }
    }
    all
}

/// A service with a token and a key for secrets, and whoever has that token.
struct Service {
    directory: Directory,
    log: PathBuf,
}

impl Service {
    fn new() -> Self {
        let directory = Directory::new();
        std::fs::write(directory.0.join("token"), TOKEN).unwrap();
        std::fs::write(directory.0.join("keys"), KEY).unwrap();
        let log = directory.0.join("log");
        Self { directory, log }
    }

    fn arguments(&self, format: &str) -> Vec<String> {
        let file = |name: &str| self.directory.0.join(name).display().to_string();
        let words = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--allow-private-targets",
            "--access-log",
            "--log-level",
            "trace",
            "--log-format",
            format,
        ];
        let mut all: Vec<_> = words.map(str::to_owned).to_vec();
        for (option, name) in [
            ("--data", "data"),
            ("--token-file", "token"),
            ("--secret-key-file", "keys"),
            ("--snapshot-dir", "snapshots"),
        ] {
            all.extend([option.to_owned(), file(name)]);
        }
        all
    }

    fn start(&self, format: &str) -> Server {
        std::fs::create_dir_all(self.directory.0.join("snapshots")).unwrap();
        let mut command = program();
        command
            .args(self.arguments(format))
            .stderr(File::create(&self.log).unwrap());
        Server::logging(command)
    }
}

fn client(server: &Server, token: &str) -> Client {
    let mut client = server.client();
    client.headers = vec![("authorization".to_owned(), format!("Bearer {token}"))];
    client
}

/// All that a stream of events says until a timer is done and another dead.
fn listen(server: &Server) -> TcpStream {
    use std::io::Write as _;

    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "GET /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\naccept: text/event-stream\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend_from_slice(&byte);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{head:?}");
    stream
}

#[test]
fn no_secret_is_in_logs_errors_metrics_or_events() {
    for format in ["text", "json"] {
        let service = Service::new();
        let server = service.start(format);
        let mut stream = listen(&server);
        let mut caller = client(&server, TOKEN);
        let good = Target::answering("200 OK");
        let bad = Target::start(|_| reply("500 No", ""));
        let mut said = Vec::new();
        let url = |base: &str| format!("{base}?key={QUERY}");
        let endpoint = json!({
            "url": url(&good.url),
            "headers": {"x-key": HEADER},
            "secrets": [{"id": "a", "secret": SECRET}],
        });
        let put = caller.json("PUT", "/v1/endpoints/shop", &endpoint.to_string());
        put.expect(201);
        let timer = |target| {
            json!({"in": 0, "target": target, "body": PAYLOAD, "content_type": "text/plain",
                   "retry": {"fixed": 1, "max_attempts": 2}})
        };
        let direct = |base: &str| json!({"url": url(base), "headers": {"x-key": HEADER}});
        for (key, target, state) in [
            (
                "by-name",
                json!({"endpoint": "shop", "path": format!("/a?key={QUERY}")}),
                "done",
            ),
            ("by-url", direct(&good.url), "done"),
            ("refused", direct(&bad.url), "dead"),
            ("nobody", direct("http://127.0.0.1:9/"), "dead"),
            ("no-name", direct("http://nobody.invalid/"), "dead"),
            ("no-tls", direct("https://127.0.0.1:9/"), "dead"),
        ] {
            let path = format!("/v1/queues/orders/timers/{key}");
            caller
                .json("PUT", &path, &timer(target).to_string())
                .expect(201);
            wait_for_state(&mut caller, &path, state);
        }
        // Errors of every reader that has a marker before it.
        let path = "/v1/queues/orders/timers/a";
        let set = |text: &str| format!("{{\"in\": 1, {text}}}");
        for text in [
            set(&format!("\"target\": {{\"url\": \"ftp://x/?{QUERY}\"}}")),
            set(&format!("\"target\": {{\"url\": \"http://x:0/?{QUERY}\"}}")),
            set(&format!(
                "\"target\": {{\"url\": \"http://x/?{QUERY}\u{fc}\"}}"
            )),
            set(&format!(
                "\"target\": {{\"url\": \"http://x/\", \"headers\": {{\"x-a\": \"{HEADER}\\n\"}}}}"
            )),
            set(&format!(
                "\"target\": {{\"url\": \"http://x/\", \"headers\": {{\"host\": \"{HEADER}\"}}}}"
            )),
            set(&format!("\"target\": \"{QUERY}\"")),
            set(&format!("\"body_base64\": \"{PAYLOAD}\"")),
            set(&format!("\"body\": [\"{PAYLOAD}\"], \"content_type\": 7")),
            set(&format!("\"body\": \"{PAYLOAD}\", \"in\": 2")),
            format!("{{\"in\": 1, \"body\": \"{PAYLOAD}"),
            format!("{{\"in\": 1, \"body\": \"{PAYLOAD}\"}}"),
        ] {
            let answer = caller.json("PUT", path, &text);
            assert!((400..500).contains(&answer.status), "{text}");
            said.push(("an error of a set", answer.body));
            let line = text.replacen(
                '{',
                "{\"op\": \"set\", \"queue\": \"orders\", \"key\": \"a\", ",
                1,
            );
            let headers = [("content-type", "application/x-ndjson")];
            let answer = caller.send("POST", "/v1/batch", &headers, line.as_bytes());
            said.push(("an error of a line", answer.body));
        }
        for endpoint in [
            json!({"url": format!("http://x/?{QUERY}"), "secrets": [{"id": "a", "secret": &SECRET[1..]}]}),
            json!({"url": "http://x/", "headers": {"x_a": HEADER}}),
            json!({"url": format!("http://user:{QUERY}@x/")}),
        ] {
            let answer = caller.json("PUT", "/v1/endpoints/other", &endpoint.to_string());
            assert!((400..500).contains(&answer.status), "{endpoint}");
            said.push(("an error of an endpoint", answer.body));
        }
        let mut stranger = client(&server, WRONG_TOKEN);
        let answer = stranger.get("/v1/queues");
        assert_eq!(answer.status, 401);
        said.push(("a refusal", answer.body));
        said.push(("a refusal", client(&server, TOKEN).get("/v1/none").body));
        for path in [
            "/metrics",
            "/healthz",
            "/v1/stats",
            "/v1/queues",
            "/v1/endpoints/shop/health",
        ] {
            said.push((path, caller.get(path).body));
        }
        let made = caller.json("POST", "/v1/snapshots", r#"{"name": "one"}"#);
        assert!((200..300).contains(&made.status), "{}", made.json());
        said.push(("a snapshot's answer", made.body));
        // The events of the last timer end with its death.
        let mut events = Vec::new();
        while found(&events, &["no-tls"]).is_none() || found(&events, &["\"dead\""]).is_none() {
            let mut piece = [0; 4_096];
            let length = stream.read(&mut piece).unwrap();
            assert_ne!(length, 0, "{}", String::from_utf8_lossy(&events));
            events.extend_from_slice(&piece[..length]);
        }
        said.push(("an event", events));
        assert!(server.stop().success());
        let log = std::fs::read(&service.log).unwrap();
        assert!(found(&log, &["TRACE"]).is_some(), "it has every level");
        let is_there = found(&log, &["countwheel::access"]).is_some();
        assert!(is_there, "it has the requests");
        said.push(("the log", log));
        for (what, bytes) in said {
            has_none(what, &bytes, &MARKERS);
        }
        // In the files, payloads are as they were sent: so a marker is found where there is one.
        let mut payloads = 0;
        for directory in ["data", "snapshots"] {
            for file in files(&service.directory.0.join(directory)) {
                let bytes = std::fs::read(&file).unwrap();
                has_none(&file.display().to_string(), &bytes, &MARKERS[..4]);
                payloads += usize::from(found(&bytes, &[PAYLOAD]).is_some());
            }
        }
        assert!(payloads > 1, "{payloads}");
    }
}

/// How a process ended that was told to make a core dump, and what core file there is then.
fn killed(directory: &Path, program: &Path, arguments: &[String], signal: &str) -> (bool, bool) {
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh"])
        .arg(program)
        .args(arguments)
        .env_remove("COUNTWHEEL_TOKEN")
        .current_dir(directory)
        .stderr(File::create(directory.join("log")).unwrap());
    let mut server = Server::logging(command);
    client(&server, TOKEN).get("/v1/queues").expect(200);
    server.signal(signal);
    let ended = server.wait();
    assert!(ended.signal().is_some(), "{ended}");
    let is_core = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("core")
    };
    let cores = files(directory).into_iter().filter(is_core);
    let mut has_token = false;
    for core in cores {
        has_token |= found(&std::fs::read(&core).unwrap(), &[TOKEN]).is_some();
        std::fs::remove_file(core).unwrap();
    }
    (ended.core_dumped(), has_token)
}

#[test]
fn the_system_writes_no_core_dump_unless_the_operator_wants_it() {
    let service = Service::new();
    let directory = &service.directory.0;
    std::fs::create_dir_all(directory.join("snapshots")).unwrap();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_countwheel"));
    let mut arguments = service.arguments("text");
    for signal in ["-ABRT", "-QUIT"] {
        let (is_dumped, has_token) = killed(directory, &program, &arguments, signal);
        assert!(!is_dumped && !has_token, "{signal}");
    }
    // Where the system lets a process have one at all, the option does: so the signals above are such as make one.
    let status = Command::new("sh")
        .args(["-c", "ulimit -c unlimited && kill -ABRT $$"])
        .current_dir(directory)
        .status();
    if status.unwrap().core_dumped() {
        for core in files(directory) {
            let name = core.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("core") {
                std::fs::remove_file(&core).unwrap();
            }
        }
        arguments.push("--core-dumps".to_owned());
        let (is_dumped, has_token) = killed(directory, &program, &arguments, "-ABRT");
        assert!(is_dumped, "--core-dumps");
        let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern");
        if pattern.is_ok_and(|pattern| pattern.starts_with("core")) {
            assert!(has_token, "a core dump has the token in it");
        }
    }
}
