//! Events as a stream. `sim seeds` has the worlds, these are the sentences.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use countwheel_postgres::testing;
use serde_json::{Value, json};

use crate::nodes::nodes;
use crate::support::{Client, Directory, PATIENCE, Server, pause, program};

/// A stream that is read as a browser does.
struct Stream {
    reader: BufReader<TcpStream>,
    text: String,
    status: u16,
    /// The id of the last event.
    last: String,
}

/// An event: its kind and its data.
type Event = (String, Value);

impl Stream {
    fn of(address: &str, path: &str, last: Option<&str>) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let last = last.map_or(String::new(), |last| format!("last-event-id: {last}\r\n"));
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: localhost\r\n{last}\r\n"
        )
        .unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        let mut stream = Self {
            reader,
            text: String::new(),
            status,
            last: String::new(),
        };
        if status == 200 {
            // From here on nothing is missed.
            let first = stream.block();
            assert!(first.starts_with("retry: 1000\n"), "{first}");
            stream.last = id_of(&first);
        }
        stream
    }

    /// What stands before the next empty line.
    fn block(&mut self) -> String {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let block = block.to_owned();
                self.text = rest.to_owned();
                return block;
            }
            let mut line = String::new();
            self.reader.read_line(&mut line).unwrap();
            let length = usize::from_str_radix(line.trim_end(), 16).unwrap();
            assert!(length > 0, "the stream has ended");
            let mut chunk = vec![0; length + 2];
            self.reader.read_exact(&mut chunk).unwrap();
            self.text += std::str::from_utf8(&chunk[..length]).unwrap();
        }
    }

    fn next(&mut self) -> Event {
        loop {
            let block = self.block();
            self.last = id_of(&block);
            let field = |name: &str| {
                let mut lines = block.lines();
                lines.find_map(|line| Some(line.strip_prefix(name)?.to_owned()))
            };
            if let Some(data) = field("data: ") {
                let data = serde_json::from_str(&data).unwrap();
                return (field("event: ").unwrap(), data);
            }
        }
    }

    fn kinds(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.next().0).collect()
    }
}

fn id_of(block: &str) -> String {
    let id = block.lines().find_map(|line| line.strip_prefix("id: "));
    id.unwrap().to_owned()
}

fn start(arguments: &[&str]) -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::with(&directory.0.join("data"), arguments);
    let mut client = server.client();
    let pulled = json!({"mode": "pull"}).to_string();
    for queue in ["jobs", "others"] {
        let answer = client.json("PUT", &format!("/v1/queues/{queue}"), &pulled);
        assert_eq!(answer.status, 201);
    }
    (directory, server, client)
}

#[track_caller]
fn set(client: &mut Client, queue: &str, key: &str, delay: &str) {
    let body = json!({ "in": delay }).to_string();
    let answer = client.json("PUT", &format!("/v1/queues/{queue}/timers/{key}"), &body);
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
}

#[test]
fn the_life_of_a_timer_is_told_in_order() {
    let (_directory, server, mut client) = start(&[]);
    let mut stream = Stream::of(&server.address, "/v1/events?queue=jobs", None);
    set(&mut client, "others", "k", "1h");
    set(&mut client, "jobs", "k", "1h");
    let timer = "/v1/queues/jobs/timers/k";
    assert_eq!(client.json("PATCH", timer, r#"{"in":"2h"}"#).status, 200);
    assert_eq!(
        client.json("POST", &format!("{timer}:fire"), "").status,
        202
    );
    let leased = client.json("POST", "/v1/queues/jobs:lease", r#"{"wait":"5s"}"#);
    let lease = &leased.expect(200)["leases"][0];
    let named = json!({"queue": "jobs", "key": "k", "token": lease["token"]});
    let settled = client.json("POST", "/v1/leases:ack", &named.to_string());
    assert_eq!(settled.status, 200, "{settled:?}");

    let (kind, told) = stream.next();
    assert_eq!(
        (&*kind, &told["key"], &told["state"]),
        ("set", &json!("k"), &json!("pending"))
    );
    let shown = client.get(timer).expect(200);
    assert_eq!(told["id"], shown["id"]);
    assert_eq!(stream.kinds(2), ["moved", "fired"]);
    let (kind, told) = stream.next();
    assert_eq!((&*kind, &told["state"]), ("leased", &json!("leased")));
    let (kind, told) = stream.next();
    assert_eq!(
        (&*kind, &told["result"], &told["attempt"]),
        ("attempt_ended", &json!("done"), &json!(1))
    );
    assert!(told["late_us"].is_u64(), "{told}");
    let (kind, told) = stream.next();
    assert_eq!((&*kind, &told["state"]), ("done", &json!("done")));

    // What a refused batch would have done is told nobody.
    let batch = "{\"op\":\"set\",\"queue\":\"jobs\",\"key\":\"b\",\"in\":\"1h\"}\n\
                 {\"op\":\"remove\",\"queue\":\"jobs\",\"key\":\"nothing\"}\n";
    let ndjson = [("content-type", "application/x-ndjson")];
    client.send("POST", "/v1/batch?atomic=true", &ndjson, batch.as_bytes());
    set(&mut client, "jobs", "last", "1h");
    assert_eq!(
        client
            .send("DELETE", "/v1/queues/jobs/timers/last", &[], b"")
            .status,
        200
    );
    let (kind, told) = stream.next();
    assert_eq!((&*kind, &told["key"]), ("set", &json!("last")));
    let (kind, told) = stream.next();
    assert_eq!((&*kind, told.get("state")), ("removed", None));
}

#[test]
fn queues_and_endpoints_that_change_are_told_of() {
    let (_directory, server, mut client) = start(&[]);
    let kinds = "/v1/events?kinds=queue_changed,endpoint_changed";
    let mut stream = Stream::of(&server.address, kinds, None);
    set(&mut client, "jobs", "k", "1h");
    let endpoint = r#"{"url":"https://example.com/"}"#;
    assert_eq!(
        client.json("PUT", "/v1/endpoints/shop", endpoint).status,
        201
    );
    assert_eq!(
        client.send("DELETE", "/v1/queues/others", &[], b"").status,
        200
    );
    let (kind, told) = stream.next();
    assert_eq!(
        (&*kind, &told["endpoint"], &told["removed"]),
        ("endpoint_changed", &json!("shop"), &json!(false))
    );
    let (kind, told) = stream.next();
    assert_eq!(
        (&*kind, &told["queue"], &told["removed"]),
        ("queue_changed", &json!("others"), &json!(true))
    );
}

/// Sets a timer that is due at once, for the port 1 of a host.
fn push(client: &mut Client, key: &str, host: &str) {
    let set = json!({"in": 0, "target": {"url": format!("http://{host}:1/")},
        "retry": {"fixed": 1, "max_attempts": 1}});
    let path = format!("/v1/queues/pushed/timers/{key}");
    let answer = client.json("PUT", &path, &set.to_string());
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[test]
fn what_becomes_of_attempts_is_told() {
    let (_directory, server, mut client) = start(&["--allow-target", "127.0.0.1"]);
    let mut stream = Stream::of(&server.address, "/v1/events?queue=pushed", None);
    push(&mut client, "refused", "127.0.0.1");
    let (kind, told) = stream.next();
    assert_eq!((&*kind, &told["state"]), ("set", &json!("pending")));
    let (kind, told) = stream.next();
    assert_eq!(
        (&*kind, &told["state"], &told["attempt"]),
        ("started", &json!("delivering"), &json!(1))
    );
    let (kind, told) = stream.next();
    assert_eq!(
        (&*kind, &told["result"], &told["attempt"]),
        ("attempt_ended", &json!("failed"), &json!(1))
    );
    assert!(told["detail"].is_string(), "{told}");
    let (kind, told) = stream.next();
    assert_eq!(
        (&*kind, &told["state"], &told["dead_reason"]),
        ("dead", &json!("dead"), &json!("exhausted"))
    );
}

#[test]
fn an_attempt_that_is_not_made_is_told_as_held() {
    let (_directory, server, mut client) = start(&[]);
    let mut stream = Stream::of(&server.address, "/v1/events?queue=pushed", None);
    // Where the name leads is seen at the attempt, and deliveries do not go there.
    push(&mut client, "held", "localhost");
    assert_eq!(stream.kinds(2), ["set", "started"]);
    let (kind, told) = stream.next();
    assert_eq!(
        (&*kind, &told["key"], &told["state"], told.get("attempt")),
        ("held", &json!("held"), &json!("pending"), None)
    );
}

#[test]
fn runs_that_are_missed_are_told() {
    let (directory, server, mut client) = start(&[]);
    let mut stream = Stream::of(&server.address, "/v1/events?queue=pushed", None);
    let set = json!({"every": "1s", "missed": {"skip_if_older_than": "1ms"},
        "target": {"url": "https://example.invalid/"}});
    let path = "/v1/queues/pushed/timers/often";
    assert_eq!(client.json("PUT", path, &set.to_string()).status, 201);
    assert_eq!(stream.next().0, "set");
    let last = stream.last.clone();
    drop((stream, client, server));
    // Some runs come due while nobody is there.
    for _ in 0..250 {
        pause();
    }
    let server = Server::with(&directory.0.join("data"), &[]);
    let path = "/v1/events?kinds=missed";
    let mut stream = Stream::of(&server.address, path, Some(&last));
    assert_eq!(stream.next().0, "gap");
    let (kind, told) = stream.next();
    assert_eq!((&*kind, &told["key"]), ("missed", &json!("often")));
}

/// What a metric says.
fn figure(client: &mut Client, name: &str) -> u64 {
    let metrics = client.get("/metrics");
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let name = format!("countwheel_{name} ");
    let figure = metrics.lines().find_map(|line| line.strip_prefix(&name));
    figure.unwrap().parse().unwrap()
}

#[test]
fn who_comes_back_behind_what_is_kept_is_told_of_the_gap() {
    const KEPT: usize = 65_536;
    let (_directory, server, mut client) = start(&[]);
    let mut stream = Stream::of(&server.address, "/v1/events?queue=jobs", None);
    set(&mut client, "jobs", "first", "1h");
    assert_eq!(stream.next().1["key"], "first");
    assert_eq!(figure(&mut client, "event_streams"), 1);
    let (number, last) = (number_of(&stream.last), stream.last.clone());
    drop(stream);
    let lines: String = (0..KEPT + 20_000)
        .map(|key| {
            format!("{{\"op\":\"set\",\"queue\":\"jobs\",\"key\":\"k-{key}\",\"in\":\"1h\"}}\n")
        })
        .collect();
    let ndjson = [("content-type", "application/x-ndjson")];
    let answer = client.send("POST", "/v1/batch", &ndjson, lines.as_bytes());
    assert_eq!(answer.status, 200);
    assert_eq!(figure(&mut client, "event_gaps_total"), 0);

    let mut stream = Stream::of(&server.address, "/v1/events?queue=jobs", Some(&last));
    let (kind, told) = stream.next();
    assert_eq!((&*kind, &told), ("gap", &json!({"shard": 0})));
    // The id of the gap is the place behind it.
    let behind = number_of(&stream.last);
    let missed = behind - number;
    assert!((1..=20_000).contains(&missed), "{missed}");
    let (kind, told) = stream.next();
    assert_eq!((&*kind, &told["number"]), ("set", &json!(behind + 1)));
    assert_eq!(figure(&mut client, "event_gaps_total"), 1);
    assert_eq!(figure(&mut client, "events_missed_total"), missed);
    assert_eq!(figure(&mut client, "event_streams_unread_total"), 0);
}

/// The number in an id of a service with one shard.
fn number_of(id: &str) -> u64 {
    id.rsplit_once('.').unwrap().1.parse().unwrap()
}

#[test]
fn filters_let_nothing_else_through() {
    let (_directory, server, mut client) = start(&[]);
    let open = |query: &str| Stream::of(&server.address, &format!("/v1/events?{query}"), None);
    let mut streams = [
        open("queue=jobs&prefix=a-"),
        open("namespace=default&queue=others"),
        open("kinds=removed"),
    ];
    for key in ["b-1", "a-1", "a-2"] {
        set(&mut client, "jobs", key, "1h");
    }
    set(&mut client, "others", "a-3", "1h");
    client
        .send("DELETE", "/v1/queues/jobs/timers/b-1", &[], b"")
        .expect(200);
    set(&mut client, "jobs", "a-5", "1h");
    let [prefixed, others, removed] = &mut streams;
    for key in ["a-1", "a-2", "a-5"] {
        assert_eq!(prefixed.next().1["key"], key);
    }
    assert_eq!(others.next().1["key"], "a-3");
    assert_eq!(removed.next().1["key"], "b-1");
}

#[test]
fn a_stream_goes_on_behind_any_of_its_events() {
    let (_directory, server, mut client) = start(&[]);
    let mut stream = Stream::of(&server.address, "/v1/events", None);
    let begun = stream.last.clone();
    let mut ids = Vec::new();
    for number in 0..10 {
        set(&mut client, "jobs", &format!("k-{number}"), "1h");
        assert_eq!(stream.next().1["key"], format!("k-{number}"));
        ids.push(stream.last.clone());
    }
    drop(stream);
    let mut again = Stream::of(&server.address, "/v1/events", Some(&ids[3]));
    assert_eq!(again.next().1["key"], "k-4");
    // A browser comes back to the same URL, with the header.
    let path = format!("/v1/events?after={begun}");
    let mut again = Stream::of(&server.address, &path, Some(&ids[6]));
    assert_eq!(again.next().1["key"], "k-7");
    let mut again = Stream::of(&server.address, &path, None);
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(again.next().1["key"], format!("k-{number}"));
        assert_eq!(again.last, *id);
    }
}

#[test]
fn a_stream_of_another_start_has_a_gap() {
    let (directory, server, mut client) = start(&[]);
    let mut stream = Stream::of(&server.address, "/v1/events", None);
    set(&mut client, "jobs", "before", "1h");
    assert_eq!(stream.next().0, "set");
    let last = stream.last.clone();
    drop(stream);
    assert!(server.stop().success());
    let server = Server::with(&directory.0.join("data"), &[]);
    let mut client = server.client();
    set(&mut client, "jobs", "after", "1h");
    let mut stream = Stream::of(&server.address, "/v1/events", Some(&last));
    assert_eq!(stream.next(), ("gap".to_owned(), json!({"shard": 0})));
    assert_eq!(stream.next().1["key"], "after");

    // Its store has another first digit.
    let digit = if last.starts_with('1') { "2" } else { "1" };
    let another = format!("{digit}{}", &last[1..]);
    let mut stream = Stream::of(&server.address, "/v1/events", Some(&another));
    assert_eq!(stream.next().0, "gap");
    assert_eq!(stream.next().1["key"], "after");
}

#[test]
fn what_cannot_be_read_is_refused_with_the_word() {
    let (_directory, server, mut client) = start(&[]);
    let stream = Stream::of(&server.address, "/v1/events", None);
    let (store, place) = stream.last.split_once('-').unwrap();
    let (_, number) = place.rsplit_once('.').unwrap();
    let future = number.parse::<u64>().unwrap() + 1;
    let later = stream
        .last
        .replace(&format!(".{number}"), &format!(".{future}"));
    let next_term = format!("{store}-0.99.0");
    let shard = format!("{store}-1.1.0");
    for (query, word) in [
        ("kind=set", "\"kind\""),
        ("kinds=set,gone", "\"gone\""),
        ("kinds=", "\"\""),
        ("queue=a%20b", "\"queue\""),
        ("namespace=a%2Fb", "\"namespace\""),
        ("queue=a&queue=b", "\"queue\""),
        ("after=12", "\"after\""),
        (&*format!("after={later}"), "yet"),
        (&*format!("after={next_term}"), "yet"),
        (&*format!("after={shard}"), "shard 1"),
    ] {
        let problem = client.get(&format!("/v1/events?{query}")).expect(400);
        assert_eq!(problem["code"], "malformed", "{query}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(word), "{query}: {detail}");
    }
    let wrong = client.send("GET", "/v1/events", &[("last-event-id", "x")], b"");
    let detail = wrong.expect(400)["detail"].to_string();
    assert!(detail.contains("last-event-id"), "{detail}");
    assert_eq!(client.json("POST", "/v1/events", "{}").status, 405);
}

#[test]
fn streams_have_a_limit_of_their_own() {
    let (_directory, server, mut client) = start(&["--event-streams", "2"]);
    let open = || Stream::of(&server.address, "/v1/events", None);
    let (first, mut second) = (open(), open());
    let refused = open();
    assert_eq!(refused.status, 429);
    set(&mut client, "jobs", "k", "1h");
    assert_eq!(second.next().1["key"], "k");
    drop(first);
    let patience = countwheel_time::Patience::of(PATIENCE);
    while open().status != 200 {
        assert!(
            !patience.left().is_zero(),
            "the place of a stream that is gone stays taken"
        );
        pause();
    }
}

#[test]
fn who_reads_nothing_holds_up_nobody() {
    let (_directory, server, mut client) = start(&[]);
    let _lazy: Vec<_> = (0..20)
        .map(|_| Stream::of(&server.address, "/v1/events", None))
        .collect();
    let mut stream = Stream::of(&server.address, "/v1/events", None);
    let key = "x".repeat(200);
    for round in 0..10 {
        let lines: String = (0..300)
            .map(|number| {
                let key = format!("{key}-{round}-{number}");
                json!({"op": "set", "queue": "jobs", "key": key, "in": "1h"}).to_string() + "\n"
            })
            .collect();
        let ndjson = [("content-type", "application/x-ndjson")];
        let answer = client.send("POST", "/v1/batch", &ndjson, lines.as_bytes());
        assert_eq!(answer.status, 200);
        let mut seen: Vec<_> = (0..300)
            .map(|_| stream.next().1["key"].to_string())
            .collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 300, "{round}");
    }
}

/// A connection with nothing to say makes room for one that has.
#[test]
fn streams_take_no_places_from_callers() {
    let (_directory, server, _) =
        start(&["--connections", "16", "--connections-per-address", "16"]);
    let _streams: Vec<_> = (0..14)
        .map(|_| Stream::of(&server.address, "/v1/events", None))
        .collect();
    for number in 0..12 {
        let mut client = server.client();
        set(&mut client, "jobs", &format!("k-{number}"), "1h");
    }
}

#[test]
fn the_command_prints_a_line_for_each_event() {
    let (_directory, server, mut client) = start(&[]);
    let url = format!("http://{}", server.address);
    let mut begun = Stream::of(&server.address, "/v1/events", None);
    set(&mut client, "jobs", "k-1", "1h");
    begun.next();
    let after = begun.last.clone();
    let mut child = program()
        .args([
            "events",
            "--server",
            &url,
            "--queue",
            "jobs",
            "--kind",
            "set,removed",
        ])
        .args(["--after", &after])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    set(&mut client, "jobs", "k-2", "1h");
    client
        .send("DELETE", "/v1/queues/jobs/timers/k-2", &[], b"")
        .expect(200);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(
        line.contains("set") && line.contains("jobs/k-2  due "),
        "{line}"
    );
    let line = lines.next().unwrap().unwrap();
    assert!(
        line.contains("removed") && line.ends_with("jobs/k-2"),
        "{line}"
    );
    child.kill().unwrap();
    child.wait().unwrap();

    let refused = program()
        .args(["events", "--server", &url, "--kind", "sat"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("sat"));
}

/// `watch` asks for the timer when something has happened to it, and not every so often.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "another process has time to ask too often"
)]
fn a_watch_does_not_poll() {
    let (_directory, server, mut client) = start(&[]);
    let url = format!("http://{}", server.address);
    set(&mut client, "jobs", "k", "1h");
    let watch = program()
        .args(["watch", "k", "--queue", "jobs", "--server", &url])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(2));
    client
        .send("DELETE", "/v1/queues/jobs/timers/k", &[], b"")
        .expect(200);
    let told = watch.wait_with_output().unwrap();
    assert_eq!(told.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&told.stdout).contains("removed"));
    let metrics = client.get("/metrics");
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let asked = metrics.lines().filter(|line| {
        line.starts_with("countwheel_http_requests")
            && line.contains("method=\"GET\"")
            && line.contains("timers/{key}")
    });
    let asked: f64 = asked
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
        .sum();
    assert!(
        (1.0..10.0).contains(&asked),
        "{asked} looks at the timer: {metrics}"
    );
}

#[track_caller]
fn set_far(client: &mut Client, number: usize) {
    let body = r#"{"in":"1h","target":{"url":"http://127.0.0.1:8080/"}}"#;
    let path = format!("/v1/queues/jobs/timers/k-{number}");
    let answer = client.json("PUT", &path, body);
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn any_node_tells_what_happens_on_all_of_them() {
    let database = testing::Server::start(&[]).unwrap();
    let nodes = nodes(&database, 3);
    let stream = |node: usize, last: Option<&str>| {
        Stream::of(
            &nodes[node].address,
            "/v1/events?queue=jobs&kinds=set",
            last,
        )
    };
    let mut first = stream(0, None);
    let mut clients: Vec<_> = nodes.iter().map(Server::client).collect();
    let keys = |range: std::ops::Range<usize>| -> Vec<_> {
        range
            .map(|number| format!("\"k-{number}\""))
            .collect::<Vec<_>>()
    };
    let read = |stream: &mut Stream, count: usize| {
        let mut read: Vec<_> = (0..count)
            .map(|_| {
                let (kind, data) = stream.next();
                assert_eq!(kind, "set", "{data}");
                data["key"].to_string()
            })
            .collect();
        read.sort_by_key(|key| key.trim_matches('"')[2..].parse::<usize>().unwrap());
        read
    };
    for number in 0..60 {
        set_far(&mut clients[number % 3], number);
    }
    assert_eq!(read(&mut first, 60), keys(0..60));
    let place = first.last.clone();
    drop(first);
    for number in 60..120 {
        set_far(&mut clients[number % 3], number);
    }
    // Resumed by the same id at each node.
    for node in 0..3 {
        assert_eq!(
            read(&mut stream(node, Some(&place)), 60),
            keys(60..120),
            "{node}"
        );
    }
}
