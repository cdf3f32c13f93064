//! Lists of timers and of queues: over one queue and all, their orders, their pages, and what is refused.

use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, Server, Target, program, wait_for_state};

const TIMERS: &str = "/v1/queues/a/timers";

fn start() -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let client = server.client();
    (directory, server, client)
}

fn set(client: &mut Client, queue: &str, key: &str, second: u32, tags: &[&str]) {
    let body = json!({
        "at": format!("2100-01-01T00:{:02}:{:02}Z", second / 60, second % 60),
        "target": {"url": "http://x.invalid/"}, "body": {"of": key}, "tags": tags,
    });
    let path = format!("/v1/queues/{queue}/timers/{key}");
    client.json("PUT", &path, &body.to_string()).expect(201);
}

fn keys(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap().iter();
    let key = |item: &Value| item["key"].as_str().unwrap().to_owned();
    items.map(key).collect()
}

/// All items of a list and how many pages it has, by the links. The last page alone has none.
fn walk(client: &mut Client, first: &str) -> (Vec<String>, usize) {
    let (mut found, mut pages, mut path) = (Vec::new(), 0, first.to_owned());
    loop {
        let answer = client.get(&path);
        let page = answer.expect(200);
        found.extend(keys(&page));
        pages += 1;
        let Some(link) = answer.header("link") else {
            assert_eq!(page["next"], Value::Null);
            return (found, pages);
        };
        let next = page["next"].as_str().unwrap();
        let target = link.strip_prefix('<').unwrap();
        let target = target.strip_suffix(">; rel=\"next\"").unwrap();
        assert!(target.ends_with(&format!("after={next}")), "{link}");
        path = target.to_owned();
    }
}

#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str, word: &str) {
    assert_eq!(answer.problem(), (status, code.to_owned()));
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains(word), "{detail}");
}

#[test]
fn a_list_over_all_queues_is_in_order_of_due_time() {
    let (_directory, _server, mut client) = start();
    let mut expected = Vec::new();
    for number in 0..40 {
        let (queue, key) = (["a", "ab", "b"][number % 3], format!("k{number:02}"));
        let second = u32::try_from(number * 7 % 40).unwrap();
        set(&mut client, queue, &key, second, &[]);
        expected.push((second, queue, key));
    }
    expected.sort();
    let of = |prefix: &str| -> Vec<String> {
        let all = expected.iter();
        let of_prefix = all.filter(|(_, queue, _)| queue.starts_with(prefix));
        of_prefix.map(|(_, _, key)| key.clone()).collect()
    };
    for limit in [1, 7, 1_000] {
        let (found, pages) = walk(&mut client, &format!("/v1/timers?limit={limit}"));
        assert_eq!(found, of(""));
        assert_eq!(pages, 40_usize.div_ceil(limit));
        let path = format!("/v1/timers?queue_prefix=a&limit={limit}&state=pending");
        assert_eq!(walk(&mut client, &path).0, of("a"));
    }
    let window = "due_after=2100-01-01T00:00:10Z&due_before=2100-01-01T00:00:12Z";
    let page = client.get(&format!("/v1/timers?{window}")).expect(200);
    assert_eq!(keys(&page), of("")[10..12]);
    let none = client.get("/v1/timers?state=dead").expect(200);
    assert_eq!(none, json!({"items": [], "next": null}));
}

#[test]
fn what_has_ended_is_listed_over_all_queues_too() {
    let (_directory, _server, mut client) = start();
    let target = Target::answering("410 Gone");
    for queue in ["a", "b", "c"] {
        let path = format!("/v1/queues/{queue}/timers/dead");
        let body = json!({"in": 0, "target": {"url": target.url}});
        client.json("PUT", &path, &body.to_string()).expect(201);
        wait_for_state(&mut client, &path, "dead");
    }
    set(&mut client, "b", "waits", 1, &[]);
    let dead = walk(&mut client, "/v1/timers?state=dead&limit=2");
    assert_eq!(dead, (vec!["dead".to_owned(); 3], 2));
    assert_eq!(walk(&mut client, "/v1/timers?limit=1").0.len(), 4);
    let trouble = walk(&mut client, "/v1/timers?order=trouble&limit=3");
    assert_eq!(
        trouble,
        (
            ["dead", "dead", "dead", "waits"]
                .map(str::to_owned)
                .to_vec(),
            2
        )
    );
    let queues = client.get("/v1/queues?state=dead&limit=2");
    let page = queues.expect(200);
    assert_eq!(page["queues"].as_array().unwrap().len(), 2);
    let link = queues.header("link").unwrap();
    assert!(
        link.starts_with("</v1/queues?state=dead&limit=2&after="),
        "{link}"
    );
    let after = page["next"].as_str().unwrap();
    let path = format!("/v1/queues?state=dead&limit=2&after={after}");
    let last = client.get(&path).expect(200);
    assert_eq!(
        (&last["queues"][0]["queue"], &last["next"]),
        (&json!("c"), &Value::Null)
    );
    let pending = client.get("/v1/queues?state=pending&prefix=b").expect(200);
    assert_eq!(pending["queues"].as_array().unwrap().len(), 1);
}

#[test]
fn orders_and_tags_have_pages() {
    let (_directory, _server, mut client) = start();
    let names: Vec<_> = (0..10).map(|number| format!("k{number}")).collect();
    for (number, name) in (0..).zip(&names) {
        let tags: &[&str] = if number % 2 == 0 { &["even"] } else { &[] };
        set(&mut client, "a", name, 20 - number, tags);
    }
    for first in [
        format!("{TIMERS}?order=created&limit=3"),
        "/v1/timers?order=created&limit=3".into(),
    ] {
        assert_eq!(walk(&mut client, &first), (names.clone(), 4));
    }
    let even = ["k0", "k2", "k4", "k6", "k8"].map(str::to_owned);
    let path = format!("{TIMERS}?order=created&tag=even&limit=2");
    assert_eq!(walk(&mut client, &path).0, even);
    let mut by_due = even.to_vec();
    by_due.reverse();
    let path = format!("{TIMERS}?tag=even&limit=2");
    assert_eq!(walk(&mut client, &path).0, by_due);
}

#[test]
fn a_timer_is_read_with_its_body_and_a_list_with_what_is_asked_for() {
    let (_directory, _server, mut client) = start();
    set(&mut client, "a", "k", 1, &[]);
    let path = format!("{TIMERS}/k");
    let bare = client.get(&path).expect(200);
    assert!(bare.get("body").is_none());
    let whole = client.get(&format!("{path}?body=text")).expect(200);
    assert_eq!(whole["body"], r#"{"of":"k"}"#);
    assert_eq!(whole["next_attempts"], bare["next_attempts"]);
    let mut item = |query: &str| {
        let page = client.get(&format!("{TIMERS}{query}")).expect(200);
        page["items"][0].clone()
    };
    let listed = item("");
    assert!(listed.get("next_attempts").is_none() && listed.get("body").is_none());
    assert_eq!(
        item("?include=next_attempts")["next_attempts"],
        bare["next_attempts"]
    );
    assert_eq!(item("?bodies=text")["body"], whole["body"]);
    refused(
        &client.get(&format!("{path}?body=yes")),
        400,
        "malformed",
        "\"body\"",
    );
}

#[test]
fn a_cursor_belongs_to_its_list() {
    let (_directory, _server, mut client) = start();
    for (key, second) in [("k1", 1), ("k2", 2)] {
        set(&mut client, "a", key, second, &[]);
        set(&mut client, "b", key, second, &[]);
    }
    let page = client.get(&format!("{TIMERS}?limit=1")).expect(200);
    let next = page["next"].as_str().unwrap().to_owned();
    for other in [
        "/v1/queues/b/timers?".to_owned(),
        format!("{TIMERS}?state=pending&"),
        format!("{TIMERS}?order=created&"),
        format!("{TIMERS}?tag=x&"),
        "/v1/timers?".to_owned(),
        "/v1/queues?".to_owned(),
    ] {
        let answer = client.get(&format!("{other}after={next}"));
        refused(&answer, 400, "malformed", "\"after\"");
    }
    for (query, word) in [
        ("after=x", "\"after\""),
        ("after=00000000.1-1", "\"after\""),
        ("order=name", "\"order\""),
        ("include=all", "\"include\""),
        ("queue_prefix=", "\"queue_prefix\""),
        ("limit=0", "\"limit\""),
        ("colour=red", "\"colour\""),
    ] {
        refused(
            &client.get(&format!("/v1/timers?{query}")),
            400,
            "malformed",
            word,
        );
    }
    let wrong = client.get("/v1/queues?state=late");
    refused(&wrong, 400, "malformed", "\"state\"");
    let path = format!("{TIMERS}?limit=2&after={next}");
    assert_eq!(keys(&client.get(&path).expect(200)), ["k2"]);
    for key in ["k1", "k2"] {
        client
            .send("DELETE", &format!("{TIMERS}/{key}"), &[], b"")
            .expect(200);
    }
    refused(&client.get(&path), 410, "gone", "queue");
}

/// Sets the timers of these numbers in the queue `a`, a second apart, by one batch. Every 4,500th has a tag and a key of its
/// own.
fn fill(client: &mut Client, numbers: std::ops::Range<u32>) {
    let lines = numbers.clone().map(|number| {
        let at = format!(
            "2100-01-01T{:02}:{:02}:{:02}Z",
            number / 3_600,
            number / 60 % 60,
            number % 60
        );
        let is_rare = number.is_multiple_of(4_500);
        let line = json!({
            "op": "set", "queue": "a", "key": format!("{}{number:05}", if is_rare { "r" } else { "k" }),
            "at": at, "target": {"url": "http://x.invalid/"},
            "tags": if is_rare { &["rare"][..] } else { &[] },
        });
        format!("{line}\n")
    });
    let lines: String = lines.collect();
    let headers = [("content-type", "application/x-ndjson")];
    let answer = client.send("POST", "/v1/batch", &headers, lines.as_bytes());
    let text = String::from_utf8(answer.body.clone()).unwrap();
    let count = numbers.len();
    let end = format!(r#"{{"end":true,"operations":{count},"succeeded":{count},"failed":0}}"#);
    assert_eq!(text.trim_end().lines().last(), Some(&*end));
}

#[test]
fn an_order_is_for_ten_thousand_timers_and_no_more() {
    let (_directory, _server, mut client) = start();
    fill(&mut client, 0..10_000);
    let lists = [
        format!("{TIMERS}?order=created&limit=1"),
        format!("{TIMERS}?order=trouble&state=pending&limit=1"),
        "/v1/timers?order=created&limit=1".to_owned(),
        "/v1/timers?order=trouble&queue_prefix=a&limit=1".to_owned(),
        format!("{TIMERS}?order=created&tag=rare&limit=1"),
        // No count says how many these are.
        format!("{TIMERS}?order=created&due_after=2100-01-01T00:00:00Z&limit=1"),
        "/v1/timers?order=created&due_after=2100-01-01T00:00:00Z&limit=1".to_owned(),
    ];
    for list in &lists {
        assert_eq!(keys(&client.get(list).expect(200)), ["r00000"], "{list}");
    }
    fill(&mut client, 10_000..10_001);
    for list in &lists {
        refused(&client.get(list), 422, "too_broad", "10000 timers");
    }
    for narrowed in [
        format!("{TIMERS}?order=created&prefix=r"),
        format!("{TIMERS}?order=created&due_after=2100-01-01T02:00:00Z&tag=rare"),
        "/v1/timers?order=trouble&state=dead".to_owned(),
        "/v1/timers?order=created&queue_prefix=b".to_owned(),
        "/v1/queues/b/timers?order=created".to_owned(),
    ] {
        client.get(&narrowed).expect(200);
    }
    let one = format!("{TIMERS}/k00001");
    client.send("DELETE", &one, &[], b"").expect(200);
    for list in &lists {
        client.get(list).expect(200);
    }
    // The last page has what is left.
    let last = format!("{TIMERS}?order=created&due_after=2100-01-01T00:00:00Z&limit=1000");
    let (found, pages) = walk(&mut client, &last);
    assert_eq!((found.len(), pages), (10_000, 10));
}

#[test]
fn a_page_that_reaches_its_bound_says_so_and_the_next_goes_on() {
    let (_directory, _server, mut client) = start();
    fill(&mut client, 1..10_001);
    let rare = ["r04500", "r09000"];
    for list in [
        format!("{TIMERS}?prefix=r&limit=2"),
        format!("{TIMERS}?tag=rare&limit=2"),
        "/v1/timers?prefix=r&limit=2".to_owned(),
        "/v1/timers?tag=rare&limit=2&state=pending".to_owned(),
    ] {
        let (mut found, mut path, mut empty) = (Vec::new(), list.clone(), 0);
        loop {
            let answer = client.get(&path);
            let page = answer.expect(200);
            let items = keys(&page);
            let is_full = items.len() == 2;
            let has_more = page["next"] != Value::Null;
            // A page that has fewer than it may, and a next page, has looked at as many as it may. No other says so.
            let is_bound = page["bound_reached"] == json!(true);
            assert_eq!(is_bound, has_more && !is_full, "{path}");
            empty += usize::from(is_bound && items.is_empty());
            found.extend(items);
            let Some(next) = page["next"].as_str() else {
                break;
            };
            path = format!("{list}&after={next}");
        }
        assert_eq!(found, rare, "{list}");
        assert!(empty > 0, "{list}");
    }
    let page = client.get(&format!(
        "{TIMERS}?prefix=r&limit=1&due_after=2100-01-01T01:14:00Z"
    ));
    let page = page.expect(200);
    assert_eq!(keys(&page), ["r04500"]);
    assert!(page.get("bound_reached").is_none());
}

#[test]
fn a_long_page_is_whole_and_has_its_link() {
    let (_directory, _server, mut client) = start();
    fill(&mut client, 0..2_500);
    for list in [
        format!("{TIMERS}?limit=1000&bodies=text"),
        "/v1/timers?limit=1000&include=next_attempts".to_owned(),
    ] {
        let (found, pages) = walk(&mut client, &list);
        assert_eq!((found.len(), pages), (2_500, 3));
        let numbers: Vec<_> = found.iter().map(|key| key[1..].to_owned()).collect();
        assert!(numbers.is_sorted(), "{list}");
    }
}

#[test]
fn the_command_lists_in_any_order_over_queues_with_what_is_asked_for() {
    let (_directory, server, mut client) = start();
    for (queue, key, second) in [("a", "first", 9), ("ab", "second", 5), ("b", "third", 1)] {
        set(&mut client, queue, key, second, &[]);
    }
    let run = |arguments: &[&str]| {
        let mut command = program();
        command.arg("list").args(arguments);
        command.args(["--server", &format!("http://{}", server.address)]);
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{error}");
        String::from_utf8(output.stdout).unwrap()
    };
    let names = |out: &str| -> Vec<String> {
        let lines = out.lines().skip(1);
        let name = |line: &str| line.split_whitespace().next().unwrap().to_owned();
        lines.map(name).collect()
    };
    let by_due = run(&["--all-queues"]);
    assert_eq!(names(&by_due), ["b/third", "ab/second", "a/first"]);
    assert!(!by_due.contains("BODY") && !by_due.contains("NEXT ATTEMPT"));
    let created = run(&["--all-queues", "--order", "created", "--limit", "2"]);
    assert_eq!(names(&created), ["a/first", "ab/second"]);
    let of_prefix = run(&["--queue-prefix", "a", "--order", "trouble"]);
    assert_eq!(names(&of_prefix), ["ab/second", "a/first"]);
    let whole = run(&["--queue", "a", "--body", "--include", "next-attempts"]);
    let mut lines = whole.lines();
    let header = lines.next().unwrap();
    assert!(
        header.contains("NEXT ATTEMPT") && header.ends_with("BODY"),
        "{whole}"
    );
    let line = lines.next().unwrap();
    assert!(
        line.contains(" more") && line.ends_with(r#"{"of":"first"}"#),
        "{whole}"
    );
    let json = run(&[
        "--queue-prefix",
        "a",
        "--body",
        "--include",
        "next-attempts",
        "--json",
    ]);
    for line in json.lines() {
        let item: Value = serde_json::from_str(line).unwrap();
        assert!(
            item["body"].is_string() && item["next_attempts"].is_array(),
            "{line}"
        );
    }
    assert_eq!(json.lines().count(), 2);
}
