//! Lists of timers and of queues: over one queue and all, their orders, their pages, and what is refused.

use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, Server, Target, wait_for_state};

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
