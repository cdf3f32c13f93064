//! Figures of the whole service: `/v1/stats` and `/v1/stats/due`.

use serde_json::{Value, json};

use crate::support::{Client, Directory, Server, Target, pause, program};

const STATS: &str = "/v1/stats";
const DUE: &str = "/v1/stats/due";

fn sum(buckets: &Value) -> u64 {
    let buckets = buckets.as_array().unwrap().iter();
    buckets
        .map(|bucket| bucket["timers"].as_u64().unwrap())
        .sum()
}

/// What a list of all timers of the queue finds that pend, by when they are due.
fn listed(client: &mut Client) -> Vec<String> {
    let (mut due, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/queues/orders/timers?state=pending&limit=1000{after}");
        let page = client.get(&path).expect(200);
        let timers = page["items"].as_array().unwrap().iter();
        due.extend(timers.map(|timer| timer["due"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return due,
        }
    }
}

/// Waits until all is counted, and compares each bucket with a list of all timers.
#[track_caller]
fn assert_counted(client: &mut Client, expected: u64) {
    for _ in 0..2_000 {
        let told = client.get(DUE).expect(200);
        if told["exact"] == json!(false) || told["overdue"]["timers"].as_u64() != Some(100) {
            pause();
            continue;
        }
        let due = listed(client);
        assert_eq!(due.len() as u64, expected);
        // Times are written so that their order is that of their texts.
        for bucket in told["buckets"].as_array().unwrap() {
            let (from, until) = (bucket["from"].as_str(), bucket["until"].as_str());
            let (from, until) = (from.unwrap(), until.unwrap_or("9"));
            let within = due
                .iter()
                .filter(|due| from <= due.as_str() && due.as_str() < until);
            assert_eq!(
                within.count() as u64,
                bucket["timers"].as_u64().unwrap(),
                "{bucket}"
            );
        }
        assert_eq!(100 + sum(&told["buckets"]), expected);
        return;
    }
    panic!("{:?}", client.get(DUE));
}

#[test]
fn figures_are_those_of_a_full_list_under_a_backlog_and_after_a_kill() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let flags = &["--allow-private-targets"];
    let mut server = Server::with(&data, flags);
    let mut client = server.client();
    let target = Target::answering("200 OK");
    let endpoint = json!({"url": target.url, "disabled": true}).to_string();
    let made = client.json("PUT", "/v1/endpoints/shut", &endpoint);
    assert!(matches!(made.status, 200 | 201), "{made:?}");
    let lines = (0..2_000).map(|number| {
        // A hundred are due and wait for the endpoint; the others are due within days.
        let hours = number % 20;
        let seconds = if hours == 0 {
            0
        } else {
            hours * 3_600 + number
        };
        let set = json!({"op": "set", "queue": "orders", "key": number.to_string(),
            "in": format!("{seconds}s"), "target": {"endpoint": "shut"}});
        format!("{set}\n")
    });
    let lines: String = lines.collect();
    let as_lines = [("content-type", "application/x-ndjson")];
    let answer = client.send("POST", "/v1/batch", &as_lines, lines.as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_counted(&mut client, 2_000);
    for number in 1_001..1_020 {
        let path = format!("/v1/queues/orders/timers/{number}");
        assert_eq!(client.json("DELETE", &path, "").status, 200);
    }
    assert_counted(&mut client, 1_981);
    server.signal("-KILL");
    server.wait();
    let server = Server::with(&data, flags);
    let mut client = server.client();
    assert_counted(&mut client, 1_981);

    let stats = client.get(STATS).expect(200);
    assert_eq!(stats["timers"]["pending"], json!(1_981), "{stats}");
    assert_eq!(stats["timers"]["queues"], json!(1));
    let all = stats["due"].as_array().unwrap().last().unwrap();
    assert_eq!(all["timers"], json!(1_881), "{stats}");
    assert_eq!(
        (&stats["in_flight"], &stats["nodes"]),
        (&json!(0), &json!(1))
    );

    // The command says the same, a line of JSON or a table.
    let all = command(&server, &["stats"]);
    let says = |line: &str| all.lines().any(|told| told.starts_with(line));
    assert!(
        says("timers    1981 pending, 0 delivering, 0 done, 0 dead, in 1 queue"),
        "{all}"
    );
    assert!(says("overdue   100, the oldest of "), "{all}");
    let last = all.trim_end().lines().last().unwrap_or_default();
    let last: Vec<_> = last.split_whitespace().rev().take(2).collect();
    assert_eq!(last, ["1881", "-"], "{all}");
    let json: Value = serde_json::from_str(&command(&server, &["stats", "--json"])).unwrap();
    assert_eq!(json["timers"], stats["timers"]);
    let due = command(&server, &["stats", "--due", "--step", "1d"]);
    let counts = due.lines().skip(1).map(|line| {
        let (_, count) = line.rsplit_once(' ').unwrap();
        count.parse::<u64>().unwrap()
    });
    let counts: Vec<_> = counts.collect();
    assert_eq!((counts[0], counts.iter().sum()), (100, 1_981), "{due}");
    let due: Value =
        serde_json::from_str(&command(&server, &["stats", "--due", "--json"])).unwrap();
    assert_eq!(sum(&due["buckets"]), 1_881);
    let step = program().args(["stats", "--step", "1d"]).output();
    assert_eq!(step.unwrap().status.code(), Some(2));

    // So does the first page.
    let page = String::from_utf8(client.get("/").body).unwrap();
    let rows = page.split("<tr>").filter(|row| row.contains("<meter"));
    let counts = rows.map(|row| {
        let (_, rest) = row.split_once("<td class=\"n\">").unwrap();
        rest.split_once('<').unwrap().0.replace(',', "")
    });
    let counts: Vec<u64> = counts.map(|count| count.parse().unwrap()).collect();
    assert_eq!((counts.len(), counts.iter().sum()), (5, 1_881), "{page}");
    assert_eq!((counts[0], counts[4]), (0, 0), "{page}");
    assert!(page.contains("href=\"/reference\""));
}

/// What a command prints.
#[track_caller]
fn command(server: &Server, arguments: &[&str]) -> String {
    let output = program()
        .args(arguments)
        .args(["--server", &format!("http://{}", server.address)])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn buckets_are_asked_for_in_steps_between_times() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    let day = "2099-03-01";
    for (key, time) in [("a", "08:00:30"), ("b", "08:59:59"), ("c", "09:00:00")] {
        let timer = json!({"at": format!("{day}T{time}Z"), "target": {"url": "http://192.0.2.1/"}});
        let path = format!("/v1/queues/orders/timers/{key}");
        assert_eq!(client.json("PUT", &path, &timer.to_string()).status, 201);
    }
    let buckets = |client: &mut Client, query: &str| {
        let told = client.get(&format!("{DUE}?{query}")).expect(200);
        let buckets = told["buckets"].as_array().unwrap().iter();
        let shown = buckets.map(|it| format!("{} {} {}", it["from"], it["until"], it["timers"]));
        shown.collect::<Vec<_>>().join(", ").replace('"', "")
    };
    // So far ahead, a bucket is a day, and its edges say so.
    let whole = format!("{day}T00:00:00.000000Z 2099-03-02T00:00:00.000000Z 3");
    assert_eq!(buckets(&mut client, ""), whole);
    assert_eq!(buckets(&mut client, "step=1h"), whole);
    let part = format!("from={day}T09:00:00Z&to={day}T10:00:00Z");
    assert_eq!(buckets(&mut client, &part), whole);
    assert_eq!(buckets(&mut client, "to=2099-03-01T00:00:00Z"), "");
    let month = buckets(&mut client, "step=366d&from=2099-01-01T00:00:00Z");
    assert!(
        month.ends_with(" 3") && month.starts_with("2099-01-01"),
        "{month}"
    );

    for (query, word) in [
        ("step=500ms", "whole seconds"),
        ("step=0s", "whole seconds"),
        ("from=today", "RFC 3339"),
        ("to=12", "RFC 3339"),
        (
            "from=2099-01-02T00:00:00Z&to=2099-01-01T00:00:00Z",
            "later than",
        ),
        ("to=2001-01-01T00:00:00Z", "later than now"),
        ("queue=orders", "unknown"),
        ("step=1h&step=1h", "twice"),
    ] {
        let answer = client.get(&format!("{DUE}?{query}"));
        let (status, code) = answer.problem();
        assert_eq!((status, code.as_str()), (400, "malformed"), "{query}");
        assert!(
            answer.json()["detail"].to_string().contains(word),
            "{query}: {answer:?}"
        );
    }
    let answer = client.get(&format!("{STATS}?queue=orders"));
    assert_eq!(answer.problem(), (400, "malformed".to_owned()));
}
