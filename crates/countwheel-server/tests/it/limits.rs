//! `docs/limits.md` against the program: what is at a limit is taken, and what is beyond it is refused
//! with the answer that the page names.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use countwheel_server::time::parse_time;
use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, Server, output_of_refusal, program};

const PAGE: &str = include_str!("../../../../docs/limits.md");

/// Rows that other tests hold: these take time, or a receiver.
const ELSEWHERE: [&str; 37] = [
    "sessions of a token",
    "jobs of a namespace at a time, but for `default`",
    "tokens of a namespace",
    "namespaces",
    "time that a line of a batch waits for the rate of its namespace",
    "time for a body to arrive",
    "time for a head to come, or for an answer to be read",
    "time for a handshake of TLS",
    "requests under way on a connection of HTTP/2",
    "what of its bodies has come, and nobody has read",
    "requests that a caller of HTTP/2 gives up before they are answered",
    "trailers of a request",
    "extension of a chunk",
    "payloads on a page of a list",
    "timers that one drain hands back",
    "timers that one step of a purge or a job changes",
    "`per_second` of a `rate`",
    "`ca`, `certificate`",
    "`key` of a `client_certificate`",
    "tokens",
    "wrong tokens of an address within a minute",
    "session of the pages",
    "form of a page",
    "an endpoint or the settings of a queue, as they are stored",
    "all endpoints, queues, drains, purges and jobs",
    "timers that name an endpoint and are counted",
    "`concurrency` of a service",
    "`payload_limit` of a service",
    "`retention.done` of a service",
    "a timeout of a service",
    "body of a timer",
    "request that sets a timer of a queue with a `payload_limit`",
    "time for a body over 1 MiB to arrive",
    "purges of a queue at a time",
    "jobs at a time",
    "timers that are looked at for a list in order `created` or `trouble`",
    "timers that are looked at for a page of a `tag`",
];

/// The cells of the rows of a section.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let section = PAGE.lines().skip_while(|line| *line != heading).skip(1);
    let section = section.take_while(|line| !line.starts_with("## "));
    let rows = section.filter(|line| line.starts_with("| ")).skip(1);
    let cells = |row: &'static str| row.trim_matches('|').split(" | ").map(str::trim).collect();
    rows.map(cells).collect()
}

/// The amounts that a cell names, in bytes, milliseconds or as they are.
fn amounts(cell: &str) -> Vec<u64> {
    let words: Vec<&str> = cell
        .split([' ', ';'])
        .map(|it| it.trim_end_matches(','))
        .collect();
    let number = |word: &str| word.replace(',', "").parse::<u64>().ok();
    let found = words.iter().enumerate().filter_map(|(at, word)| {
        let times = match words.get(at + 1).copied() {
            Some("KiB") => 1 << 10,
            Some("MiB") => 1 << 20,
            Some("s") => 1_000,
            Some("min") => 60_000,
            Some("days") => 86_400_000,
            _ => 1,
        };
        Some(number(word)? * times)
    });
    found.collect()
}

fn long(amount: u64) -> String {
    "x".repeat(usize::try_from(amount).unwrap())
}

fn leases(client: &mut Client, body: &str) -> Answer {
    let put = client.json("PUT", "/v1/queues/pulled", r#"{"mode":"pull"}"#);
    assert!(matches!(put.status, 200 | 201), "{put:?}");
    client.json("POST", "/v1/queues/pulled:lease", body)
}

/// A single item is refused if nobody has that lease: among several, that is its own result.
fn nack(client: &mut Client, more: &str) -> Answer {
    let item = r#""queue":"q","key":"none","token":"000000000000000000000000""#;
    let body = format!(r#"{{"items":[{{{item},{more}}}]}}"#);
    client.json("POST", "/v1/leases:nack", &body)
}

/// Makes a token. The first one closes the API: whoever made it shows it from then on.
fn token(client: &mut Client, body: &str) -> Answer {
    let is_closed = client
        .headers
        .iter()
        .any(|(name, _)| name == "authorization");
    if !is_closed {
        let first = r#"{"name":"first","scopes":["admin"]}"#;
        let first = client.json("POST", "/v1/tokens", first).expect(201);
        let shown = format!("Bearer {}", first["token"].as_str().unwrap());
        client.headers.push(("authorization".to_owned(), shown));
    }
    client.json("POST", "/v1/tokens", body)
}

/// Sends what has so much of what the row is about.
fn ask(client: &mut Client, limit: &str, amount: u64) -> Answer {
    const TIMER: &str = "/v1/queues/q/timers/k";
    const ENDPOINT: &str = "/v1/endpoints/e";
    let path = |path: &str| path.to_owned();
    let set = |rest: &str| format!(r#"{{"in":"1h","target":{{"url":"http://x/"}}{rest}}}"#);
    let target = |target: &str| format!(r#"{{"in":"1h","target":{{{target}}}}}"#);
    let headers = |count: u64, value: &str| {
        let all = (0..count).map(|at| format!(r#""x-{at}":"{value}""#));
        target(&format!(
            r#""url":"http://x/","headers":{{{}}}"#,
            all.collect::<Vec<_>>().join(",")
        ))
    };
    let endpoint = |rest: &str| format!(r#"{{"url":"http://x/"{rest}}}"#);
    let secret = |id: &str, bytes: u64| {
        let key = BASE64_STANDARD.encode(long(bytes));
        format!(r#"{{"id":"{id}","secret":"whsec_{key}"}}"#)
    };
    let (path, body) = match limit {
        "length of a queue" => (format!("/v1/queues/{}/timers/k", long(amount)), set("")),
        "length of a key" => (format!("/v1/queues/q/timers/{}", long(amount)), set("")),
        "time ahead of a deadline" => (
            path(TIMER),
            format!(r#"{{"in":{amount},"target":{{"url":"http://x/"}}}}"#),
        ),
        "body of a request" => {
            let rest = usize::try_from(amount).unwrap() - set(r#","body":"""#).len();
            (
                path(TIMER),
                set(&format!(r#","body":"{}""#, "x".repeat(rest))),
            )
        }
        "depth of a body's JSON" => {
            // The body of the request is a level of its own.
            let depth = usize::try_from(amount).unwrap() - 1;
            let nested = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
            (path(TIMER), set(&format!(r#","body":{nested}"#)))
        }
        "path and query" => {
            let path = format!("{TIMER}?");
            let rest = long(amount - path.len() as u64);
            return client.get(&format!("{path}{rest}"));
        }
        "head of a request" => {
            let head = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: \r\n\r\n";
            let rest = long(amount - head.len() as u64);
            let head = head.replace("x: ", &format!("x: {rest}"));
            return client.exchange(head.as_bytes(), false).unwrap();
        }
        "headers of a request" => {
            // One of them is the host, which the client adds, and one the length.
            let names: Vec<String> = (0..amount - 2).map(|at| format!("x-{at}")).collect();
            let headers: Vec<_> = names.iter().map(|name| (&**name, "1")).collect();
            return client.send("GET", "/healthz", &headers, b"");
        }
        "`target.url`" => {
            let rest = long(amount - "http://x/".len() as u64);
            (path(TIMER), target(&format!(r#""url":"http://x/{rest}""#)))
        }
        "`target.headers`" => (path(TIMER), headers(amount, "1")),
        "`target.headers`, in all" => {
            let name = "x-0".len() as u64;
            (path(TIMER), headers(1, &long(amount - name)))
        }
        "`target.timeout`" => (
            path(TIMER),
            target(&format!(r#""url":"http://x/","timeout":{amount}"#)),
        ),
        "delays of a `schedule`" => {
            let delays = vec!["1"; usize::try_from(amount).unwrap()].join(",");
            (
                path(TIMER),
                set(&format!(r#","retry":{{"schedule":[{delays}]}}"#)),
            )
        }
        "delay of a retry" => (
            path(TIMER),
            set(&format!(r#","retry":{{"fixed":{amount}}}"#)),
        ),
        "`max_attempts`" => (
            path(TIMER),
            set(&format!(
                r#","retry":{{"fixed":1,"max_attempts":{amount}}}"#
            )),
        ),
        "`max_age`" => (
            path(TIMER),
            set(&format!(r#","retry":{{"fixed":1,"max_age":{amount}}}"#)),
        ),
        "`every`, `every_after`" => {
            let body = format!(r#"{{"every":{amount},"target":{{"url":"http://x/"}}}}"#);
            let other = body.replace("every", "every_after");
            let answer = client.json("PUT", TIMER, &other);
            if answer.status >= 300 {
                return answer;
            }
            (path(TIMER), body)
        }
        "`cron`" => {
            let blanks = " ".repeat(usize::try_from(amount).unwrap() - "0* * * *".len());
            let body = format!(r#"{{"cron":"0{blanks}* * * *","target":{{"url":"http://x/"}}}}"#);
            (path(TIMER), body)
        }
        "`min`, `max` of `adaptive`" => {
            let bounds = |min: u64, max: u64| {
                set(&format!(
                    r#","every":"1h","adaptive":{{"min":{min},"max":{max}}}"#
                ))
            };
            let answer = client.json("PUT", TIMER, &bounds(amount, amount));
            if answer.status >= 300 {
                return answer;
            }
            (path(TIMER), bounds(100, amount))
        }
        "`spread`" => (path(TIMER), set(&format!(r#","spread":{amount}"#))),
        "`repeats`" => (
            path(TIMER),
            set(&format!(r#","every":"1h","repeats":{amount}"#)),
        ),
        "timers on a page of a list" => {
            return client.get(&format!("/v1/queues/q/timers?limit={amount}"));
        }
        "runs of a backfill" | "runs on a page of those to come" => {
            let set = set(r#","cron":"* * * * *""#).replace(r#""in":"1h""#, r#""in":"30d""#);
            let made = client.json("PUT", TIMER, &set);
            assert!(matches!(made.status, 200 | 201), "{made:?}");
            if limit == "runs on a page of those to come" {
                return client.get(&format!("{TIMER}/runs?limit={amount}"));
            }
            let (days, hours, minutes) = (amount / 1_440, amount / 60 % 24, amount % 60);
            let body = format!(
                r#"{{"from":"2020-01-01T00:01:00Z","until":"2020-01-{:02}T{hours:02}:{minutes:02}:00Z","dry_run":true}}"#,
                days + 1
            );
            return client.json("POST", &format!("{TIMER}:backfill"), &body);
        }
        "attempts of a simulation" => {
            let body = format!(r#"{{"retry":{{"fixed":1}},"limit":{amount}}}"#);
            return client.json("POST", "/v1/simulate", &body);
        }
        "length of an endpoint" => (format!("/v1/endpoints/{}", long(amount)), endpoint("")),
        "`target.path`" => {
            let made = client.json("PUT", ENDPOINT, &endpoint(""));
            assert!(matches!(made.status, 200 | 201), "{made:?}");
            let rest = long(amount - 1);
            (
                path(TIMER),
                target(&format!(r#""endpoint":"e","path":"/{rest}""#)),
            )
        }
        "secrets of an endpoint" => {
            let all = (0..amount).map(|id| secret(&id.to_string(), 24));
            let all = all.collect::<Vec<_>>().join(",");
            (path(ENDPOINT), endpoint(&format!(r#","secrets":[{all}]"#)))
        }
        "a secret" => (
            path(ENDPOINT),
            endpoint(&format!(r#","secrets":[{}]"#, secret("a", amount))),
        ),
        "places that an endpoint allows" => {
            let all = (1..amount).map(|at| format!(r#","h{at}""#));
            let all = all.collect::<String>();
            let first = if amount > 0 { r#""x""# } else { "" };
            (
                path(ENDPOINT),
                endpoint(&format!(r#","allow":[{first}{all}]"#)),
            )
        }
        "`egress_proxy`" => {
            let rest = long(amount - "http://".len() as u64);
            let proxy = format!(r#","egress_proxy":"http://{rest}""#);
            (path(ENDPOINT), endpoint(&proxy))
        }
        "id of a secret" => (
            path(ENDPOINT),
            endpoint(&format!(r#","secrets":[{}]"#, secret(&long(amount), 24))),
        ),
        "`concurrency`" => (
            path(ENDPOINT),
            endpoint(&format!(r#","concurrency":{amount}"#)),
        ),
        "`burst` of a `rate`" => (
            path(ENDPOINT),
            endpoint(&format!(r#","rate":{{"per_second":1,"burst":{amount}}}"#)),
        ),
        "`source` of `cloudevents`" => {
            let source = format!(r#"{{"source":"{}","type":"a"}}"#, long(amount));
            (
                path("/v1/queues/q"),
                format!(r#"{{"cloudevents":{source}}}"#),
            )
        }
        "`type` of `cloudevents`" => {
            let kind = format!(r#"{{"source":"a","type":"{}"}}"#, long(amount));
            (path("/v1/queues/q"), format!(r#"{{"cloudevents":{kind}}}"#))
        }
        "a status of `statuses`" => (
            path("/v1/queues/q"),
            format!(r#"{{"statuses":{{"{amount}":"done"}}}}"#),
        ),
        "`payload_limit`" => (
            path("/v1/queues/q"),
            format!(r#"{{"payload_limit":{amount}}}"#),
        ),
        "`tags`" => {
            let tags: Vec<_> = (0..amount).map(|tag| format!(r#""{tag}""#)).collect();
            (
                path(TIMER),
                set(&format!(r#","tags":[{}]"#, tags.join(","))),
            )
        }
        "a tag" => {
            let tag = long(amount);
            (path(TIMER), set(&format!(r#","tags":["{tag}"]"#)))
        }
        "`prefix` of a job" | "`rate` of a job" => {
            let set = client.json("PUT", TIMER, &set(""));
            assert!(matches!(set.status, 200 | 201), "{set:?}");
            let (prefix, rate) = match limit {
                "`rate` of a job" => (String::new(), amount),
                _ => (long(amount), 1),
            };
            let body = format!(
                r#"{{"queue":"q","action":"fire","filter":{{"prefix":"{prefix}"}},"rate":{rate},"dry_run":true}}"#
            );
            return client.json("POST", "/v1/jobs", &body);
        }
        "`prefix` of a purge" => {
            let body = format!(r#"{{"prefix":"{}"}}"#, long(amount));
            let set = client.json("PUT", TIMER, &set(""));
            assert!(matches!(set.status, 200 | 201), "{set:?}");
            let answer = client.json("POST", "/v1/queues/q:purge", &body);
            if answer.status == 202 {
                // The next amount finds none that runs.
                client.json("POST", "/v1/queues/q:cancel-purge", "{}");
            }
            return answer;
        }
        "`name` of a token" | "`expires_in` of a token" | "`certificate` of a token" => {
            let (mut name, mut rest) = ("a".to_owned(), String::new());
            match limit {
                "`name` of a token" => name = long(amount),
                "`expires_in` of a token" => rest = format!(r#","expires_in":{amount}"#),
                _ => rest = format!(r#","certificate":"dns:{}""#, long(amount - 4)),
            }
            let body = format!(r#"{{"name":"{name}","scopes":["admin"]{rest}}}"#);
            return token(client, &body);
        }
        "`overlap` of a rotation" => {
            let id = token(client, r#"{"name":"a","scopes":["admin"]}"#).expect(201)["id"].clone();
            let path = format!("/v1/tokens/{}:rotate", id.as_str().unwrap());
            return client.json("POST", &path, &format!(r#"{{"overlap":{amount}}}"#));
        }
        "failures of a `breaker`" => (
            path(ENDPOINT),
            endpoint(&format!(r#","breaker":{{"failures":{amount}}}"#)),
        ),
        "pauses of a `breaker`" => {
            let breaker = format!(r#","breaker":{{"pause":{amount},"pause_max":{amount}}}"#);
            (path(ENDPOINT), endpoint(&breaker))
        }
        "`priority`" => (path(TIMER), set(&format!(r#","priority":{amount}"#))),
        "`serial_key`" => {
            let made = client.json("PUT", "/v1/queues/s", r#"{"serial":true}"#);
            assert!(matches!(made.status, 200 | 201), "{made:?}");
            let key = format!(r#","serial_key":"{}""#, long(amount));
            (path("/v1/queues/s/timers/k"), set(&key))
        }
        "`retention.done`, `retention.dead`" => {
            let kept = |which: &str| format!(r#"{{"retention":{{"{which}":{amount}}}}}"#);
            let answer = client.json("PUT", "/v1/queues/q", &kept("dead"));
            if answer.status >= 300 {
                return answer;
            }
            (path("/v1/queues/q"), kept("done"))
        }
        "`auto_disable`" => (
            path(ENDPOINT),
            format!(r#"{{"url":"http://x/","auto_disable":{amount}}}"#),
        ),
        "leases of one call" => return leases(client, &format!(r#"{{"max":{amount}}}"#)),
        "length of a lease" => return leases(client, &format!(r#"{{"lease":{amount}}}"#)),
        "wait of a call for leases" => {
            // What comes at once ends the wait.
            let set = client.json("PUT", "/v1/queues/pulled/timers/k", r#"{"in":0}"#);
            assert!(matches!(set.status, 200 | 201 | 404 | 422), "{set:?}");
            return leases(client, &format!(r#"{{"wait":{amount}}}"#));
        }
        "queues of a call for leases" => {
            let queues: Vec<_> = (0..amount).map(|at| format!("pulled-{at}")).collect();
            for queue in &queues {
                let put = client.json("PUT", &format!("/v1/queues/{queue}"), r#"{"mode":"pull"}"#);
                assert!(matches!(put.status, 200 | 201), "{put:?}");
            }
            let body = serde_json::json!({ "queues": queues });
            return client.json("POST", "/v1/leases", &body.to_string());
        }
        "`Idempotency-Key`" => {
            let key = long(amount);
            let headers = [
                ("content-type", "application/json"),
                ("idempotency-key", &*key),
            ];
            return client.send("POST", "/v1/queues/q/timers", &headers, set("").as_bytes());
        }
        "name of a worker" => {
            return leases(client, &format!(r#"{{"worker":"{}"}}"#, long(amount)));
        }
        "items of an `:ack`, a `:nack` or an `:extend`" => {
            let item = r#"{"queue":"q","key":"none","token":"000000000000000000000000"}"#;
            let count = usize::try_from(amount).unwrap();
            let items = vec![item; count].join(",");
            return client.json(
                "POST",
                "/v1/leases:ack",
                &format!(r#"{{"items":[{items}]}}"#),
            );
        }
        "`in` of a `:nack`" => return nack(client, &format!(r#""in":{amount}"#)),
        "`detail` of a `:nack`" => {
            return nack(client, &format!(r#""detail":"{}""#, long(amount)));
        }
        "quota of timers, bytes, queues, endpoints or connections" => {
            let body = format!(r#"{{"quotas":{{"timers":{amount}}}}}"#);
            return client.json("PUT", "/v1/namespaces/n", &body);
        }
        "endpoints on a page of their list" => {
            return client.get(&format!("/v1/endpoints?limit={amount}"));
        }
        other => panic!("a row that no test holds: {other}"),
    };
    client.json("PUT", &path, &body)
}

#[test]
fn each_limit_of_a_request_is_where_the_page_says() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    let mut held = 0;
    for row in rows("## Of a request") {
        let [limit, is, _, beyond] = row[..] else {
            panic!("{row:?}");
        };
        if ELSEWHERE.contains(&limit) {
            continue;
        }
        let (status, code) = beyond.split_once(' ').unwrap();
        let code = code.trim_matches('`');
        let found = amounts(is);
        // From and to, or one for each half of the name, or the most.
        let (from, most) = match (is.contains(" to "), &found[..]) {
            (true, [from, to]) => (Some(*from), vec![(limit, *to)]),
            (false, [most]) => (None, vec![(limit, *most)]),
            (false, [most, in_all]) => {
                assert_eq!(limit, "`target.headers`");
                (
                    None,
                    vec![(limit, *most), ("`target.headers`, in all", *in_all)],
                )
            }
            other => panic!("{limit}: {other:?}"),
        };
        let mut try_out = |limit: &str, amount: u64, is_taken: bool| {
            let answer = ask(&mut client, limit, amount);
            let text = String::from_utf8_lossy(&answer.body);
            if is_taken {
                let refused = text.contains(&format!(r#""code":"{code}""#));
                assert!(
                    !refused && answer.status < 500,
                    "{limit} of {amount}: {text}"
                );
            } else {
                assert_eq!(
                    answer.status.to_string(),
                    status,
                    "{limit} of {amount}: {text}"
                );
                assert!(text.contains(code), "{limit} of {amount}: {text}");
            }
            held += 1;
        };
        if let Some(from) = from {
            try_out(limit, from, true);
            try_out(limit, from - 1, false);
        }
        for (limit, most) in most {
            try_out(limit, most, true);
            try_out(limit, most + 1, false);
        }
    }
    assert!(held > 40, "{held}");
}

/// What counts where a caller leaves a value out, as the page writes it; `None` if the row has no default.
fn left_out(client: &mut Client, limit: &str) -> Option<String> {
    const TIMER: &str = "/v1/queues/q/timers/k";
    const ENDPOINT: &str = "/v1/endpoints/e";
    let made = |client: &mut Client, path: &str, body: &Value| {
        let answer = client.json("PUT", path, &body.to_string());
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
        client.get(path).expect(200)
    };
    let words = |text: &str| Some(text.to_owned());
    let absent = |value: &Value| match value {
        Value::Null => words("none"),
        other => panic!("{limit} is {other}"),
    };
    let target = json!({"url": "http://x/"});
    let once = json!({"in": "1h", "target": target});
    let endpoint = json!({"url": "http://x/"});
    match limit {
        "`target.timeout`" => {
            let timer = made(client, TIMER, &once);
            let timeout = timer["target"]["timeout"].as_str().unwrap();
            assert_eq!(timer["from"]["timeout"], "default");
            words(&timeout.replace('s', " s"))
        }
        "`target.headers`" => {
            let timer = made(client, TIMER, &once);
            assert_eq!(timer["target"]["headers"], json!({}));
            words("none")
        }
        "`target.path`" => {
            made(client, ENDPOINT, &endpoint);
            let to_endpoint = json!({"in": "1h", "target": {"endpoint": "e"}});
            absent(&made(client, TIMER, &to_endpoint)["target"]["path"])
        }
        "`max_attempts`" | "`max_age`" => {
            let mut with_policy = once;
            with_policy["retry"] = json!({"fixed": "1s"});
            absent(&made(client, TIMER, &with_policy)["retry"][limit.trim_matches('`')])
        }
        "`spread`" | "`serial_key`" => absent(&made(client, TIMER, &once)[limit.trim_matches('`')]),
        "`priority`" => {
            // The timer says none, and neither does its queue: the most urgent.
            absent(&made(client, TIMER, &once)["priority"]);
            absent(&made(client, "/v1/queues/q", &json!({}))["priority"]);
            words("0")
        }
        "`repeats`" => {
            let timer = made(client, TIMER, &json!({"every": "1h", "target": target}));
            absent(&timer["recurring"]["repeats"])
        }
        "timers on a page of a list" | "endpoints on a page of their list" => {
            let (one, list, items) = match limit {
                "timers on a page of a list" => (
                    "/v1/queues/many/timers/k",
                    "/v1/queues/many/timers",
                    "items",
                ),
                _ => ("/v1/endpoints/many", "/v1/endpoints", "endpoints"),
            };
            let body = if items == "items" { once } else { endpoint };
            for number in 0..101 {
                made(client, &format!("{one}{number}"), &body);
            }
            let page = client.get(list).expect(200);
            words(&page[items].as_array().unwrap().len().to_string())
        }
        "`prefix` of a purge" => {
            made(client, TIMER, &once);
            let purge = client.json("POST", "/v1/queues/q:purge", "{}").expect(202);
            client.json("POST", "/v1/queues/q:cancel-purge", "{}");
            absent(&purge["purge"]["prefix"])
        }
        "`prefix` of a job" | "`rate` of a job" => {
            made(client, TIMER, &once);
            let job = json!({"queue": "q", "action": "fire", "filter": {}, "dry_run": true});
            let job = client.json("POST", "/v1/jobs", &job.to_string());
            let job = job.expect(202);
            match limit.starts_with("`rate`") {
                true => absent(&job["rate"]),
                false => absent(&job["filter"]["prefix"]),
            }
        }
        "`tags`" => {
            made(client, TIMER, &once);
            absent(&client.get(TIMER).expect(200)["tags"])
        }
        "`Idempotency-Key`" => {
            let posted = client.json("POST", "/v1/queues/q/timers", &once.to_string());
            posted.expect(201);
            match posted.header("idempotency-replayed") {
                None => words("none"),
                Some(_) => None,
            }
        }
        "runs on a page of those to come" => {
            made(client, TIMER, &json!({"every": "1h", "target": target}));
            let page = client.get(&format!("{TIMER}/runs")).expect(200);
            words(&page["runs"].as_array().unwrap().len().to_string())
        }
        "attempts of a simulation" => {
            let body = json!({"retry": {"fixed": 1}}).to_string();
            let plan = client.json("POST", "/v1/simulate", &body).expect(200);
            words(&plan["attempts"].as_array().unwrap().len().to_string())
        }
        "secrets of an endpoint" => {
            assert_eq!(made(client, ENDPOINT, &endpoint)["secrets"], json!([]));
            words("none")
        }
        "places that an endpoint allows" => absent(&made(client, ENDPOINT, &endpoint)["allow"]),
        "`ca`, `certificate`" => {
            let shown = made(client, ENDPOINT, &endpoint);
            absent(&shown["client_certificate"]);
            absent(&shown["ca"])
        }
        "`egress_proxy`" | "`concurrency`" | "`auto_disable`" => {
            absent(&made(client, ENDPOINT, &endpoint)[limit.trim_matches('`')])
        }
        "`burst` of a `rate`" => {
            let mut rated = endpoint;
            rated["rate"] = json!({"per_second": 2.5});
            assert_eq!(made(client, ENDPOINT, &rated)["rate"]["burst"], 3);
            words("`per_second`, rounded up")
        }
        "failures of a `breaker`" | "pauses of a `breaker`" => {
            let mut with_breaker = endpoint;
            with_breaker["breaker"] = json!({});
            let breaker = made(client, ENDPOINT, &with_breaker)["breaker"].clone();
            if limit.starts_with("failures") {
                return words(&breaker["failures"].to_string());
            }
            assert_eq!(
                (&breaker["pause"], &breaker["pause_max"]),
                (&json!("5s"), &json!("5m"))
            );
            words("5 s to 300 s")
        }
        "leases of one call"
        | "length of a lease"
        | "name of a worker"
        | "wait of a call for leases" => {
            made(client, "/v1/queues/lease", &json!({"mode": "pull"}));
            for key in ["a", "b"] {
                made(
                    client,
                    &format!("/v1/queues/lease/timers/{key}"),
                    &json!({"in": "1h"}),
                );
            }
            for key in ["a", "b"] {
                let fire = format!("/v1/queues/lease/timers/{key}:fire");
                client.json("POST", &fire, "").expect(202);
            }
            // Nothing says how long to wait, so it is asked until there is one.
            let leased = |client: &mut Client| {
                let answer = client.json("POST", "/v1/queues/lease:lease", "{}");
                answer.expect(200)["leases"].as_array().unwrap().clone()
            };
            let leases = (0..1_000).map(|_| leased(client)).find(|it| !it.is_empty());
            let leases = leases.expect("one is due");
            if limit == "leases of one call" {
                return words(&leases.len().to_string());
            }
            let key = leases[0]["key"].as_str().unwrap();
            let timer = client
                .get(&format!("/v1/queues/lease/timers/{key}"))
                .expect(200);
            if limit == "name of a worker" {
                return absent(&timer["worker"]);
            }
            if limit == "wait of a call for leases" {
                // Nothing is due, and nothing will be: the answer comes all the same.
                made(client, "/v1/queues/idle", &json!({"mode": "pull"}));
                let answer = client.json("POST", "/v1/queues/idle:lease", "{}");
                assert_eq!(answer.expect(200)["leases"], json!([]));
                return words("0 s");
            }
            let at = |field: &Value| parse_time(field.as_str().unwrap()).unwrap();
            let started = at(&timer["attempts"][0]["started"]);
            let lease = at(&leases[0]["leased_until"]).saturating_since(started);
            words(&format!("{} s", lease.as_secs()))
        }
        "`in` of a `:nack`" | "`detail` of a `:nack`" => {
            let settings = json!({"mode": "pull", "retry": {"fixed": "9d"}});
            made(client, "/v1/queues/nacked", &settings);
            let (timer, now) = ("/v1/queues/nacked/timers/k", json!({"in": 0}));
            made(client, timer, &now);
            let ask = json!({"wait": "5s"}).to_string();
            let leased = client.json("POST", "/v1/queues/nacked:lease", &ask);
            let lease = leased.expect(200)["leases"][0].clone();
            let item = json!({"queue": "nacked", "key": "k", "token": lease["token"]});
            client
                .json("POST", "/v1/leases:nack", &item.to_string())
                .expect(200);
            let shown = client.get(timer).expect(200);
            let attempt = &shown["attempts"][0];
            if limit.starts_with("`detail`") {
                return words(&format!("`{}`", attempt["detail"].as_str().unwrap()));
            }
            let at = |field: &Value| parse_time(field.as_str().unwrap()).unwrap();
            let days = at(&shown["due"])
                .saturating_since(at(&attempt["ended"]))
                .as_secs()
                / 86_400;
            assert!((8..=9).contains(&days), "{shown}");
            words("as `retry` says")
        }
        "`expires_in` of a token" | "`certificate` of a token" => {
            let made = token(client, r#"{"name":"a","scopes":["admin"]}"#).expect(201);
            let field = limit.trim_matches('`').split('`').next().unwrap();
            absent(
                &made[if field == "expires_in" {
                    "expires"
                } else {
                    field
                }],
            )
        }
        "quota of timers, bytes, queues, endpoints or connections" => {
            absent(&made(client, "/v1/namespaces/n", &json!({}))["quotas"]["timers"])
        }
        "`overlap` of a rotation" => {
            let made = token(client, r#"{"name":"a","scopes":["admin"]}"#).expect(201);
            let path = format!("/v1/tokens/{}:rotate", made["id"].as_str().unwrap());
            let rotated = client.send("POST", &path, &[], b"").expect(200);
            assert_eq!(rotated["before_until"], Value::Null);
            words("0 s")
        }
        "`payload_limit`" => absent(&made(client, "/v1/queues/q", &json!({}))["payload_limit"]),
        "body of a timer" => {
            assert_eq!(made(client, TIMER, &once)["body_bytes"], 0);
            words("empty")
        }
        "`retention.done`, `retention.dead`" => {
            absent(&made(client, "/v1/queues/q", &json!({}))["retention"]);
            words("`--keep-done`, for good")
        }
        _ => None,
    }
}

#[test]
fn each_value_that_a_caller_leaves_out_counts_as_the_page_says() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    let mut held = 0;
    for row in rows("## Of a request") {
        let (limit, default) = (row[0], row[2]);
        let found = left_out(&mut client, limit);
        assert_eq!(found.as_deref().unwrap_or("–"), default, "{limit}");
        held += usize::from(found.is_some());
    }
    assert!(held > 25, "{held}");
}

/// What the program says of its flags.
fn flags() -> BTreeMap<String, String> {
    let help = program().args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let mut flags = BTreeMap::new();
    let mut last = None;
    for line in help.lines().map(str::trim) {
        if let Some(at) = line.find("--").filter(|_| line.starts_with('-')) {
            let mut words = line[at..].split(' ');
            let name = words.next().unwrap().to_owned();
            let takes = words.next().unwrap_or_default().to_owned();
            last = ["<N>", "<MIB>", "<DURATION>"]
                .contains(&&*takes)
                .then_some(name);
        }
        if let (Some(name), Some(at)) = (&last, line.find("[default: ")) {
            let default = line[at..].trim_start_matches("[default: ");
            flags.insert(name.clone(), default.trim_end_matches(']').to_owned());
        }
    }
    flags
}

#[test]
fn each_flag_has_the_range_and_the_default_of_the_page() {
    let rows = rows("## What the operator sets");
    let unquoted = |cell: &'static str| cell.trim_matches('`');
    let said: BTreeMap<String, String> = rows
        .iter()
        .map(|row| (unquoted(row[0]).to_owned(), unquoted(row[3]).to_owned()))
        .collect();
    assert_eq!(said, flags());
    let is_right = |flag: &str, value: &str| {
        // No store can be there, so it ends also where the value is right.
        let mut command = program();
        let place = match flag {
            "--lease-ttl" | "--hand-over-grace" => ["--store", "no-url"],
            _ => ["--data", "/dev/null"],
        };
        command.arg("serve").args(place).args([flag, value]);
        let ended = output_of_refusal(command).expect("it ends");
        ended.status.code() == Some(1)
    };
    for row in rows {
        let [flag, from, to] = [row[0], row[1], row[2]].map(unquoted);
        assert!(is_right(flag, from) && is_right(flag, to), "{row:?}");
        let (digits, unit) = to.split_at(to.find(char::is_alphabetic).unwrap_or(to.len()));
        let more = digits.parse::<u64>().unwrap() + 1;
        assert!(!is_right(flag, &format!("{more}{unit}")), "{row:?}");
        let (digits, unit) = from.split_at(from.find(char::is_alphabetic).unwrap_or(from.len()));
        if let Some(less) = digits.parse::<u64>().unwrap().checked_sub(1) {
            assert!(!is_right(flag, &format!("{less}{unit}")), "{row:?}");
        }
    }
}
