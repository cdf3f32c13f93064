//! The pages for the operator: what they show, to whom, and what they never do.

use serde_json::{Value, json};

use crate::support::{Answer, Client, Directory, Server, Target, wait_for_state};

/// Keys that mean something in HTML, in a URL, or on a screen.
const HOSTILE: [&str; 5] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "invoice-\u{202e}fdp.exe",
    "../a b?c=d&e#f%2F+",
];

const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; \
    connect-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

fn start() -> (Directory, Server, Client) {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let client = server.client();
    (directory, server, client)
}

fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

fn path(queue: &str, key: &str) -> String {
    format!("/v1/queues/{queue}/timers/{}", encoded(key))
}

fn timer_page(queue: &str, key: &str) -> String {
    format!("/timer?queue={}&key={}", encoded(queue), encoded(key))
}

#[track_caller]
fn set(client: &mut Client, queue: &str, key: &str, body: &Value) {
    let answer = client.json("PUT", &path(queue, key), &body.to_string());
    answer.expect(201);
}

/// Sets a timer and waits until it is dead.
#[track_caller]
fn bury(client: &mut Client, queue: &str, key: &str, body: &Value) {
    set(client, queue, key, body);
    wait_for_state(client, &path(queue, key), "dead");
}

/// A timer that dies at its first delivery.
fn doomed(target: &Target) -> Value {
    json!({"in": 0, "target": {"url": target.url}})
}

fn later() -> Value {
    json!({"in": "1h", "target": {"url": "http://127.0.0.1:9/"}})
}

#[track_caller]
fn page(client: &mut Client, path: &str) -> String {
    let answer = client.get(path);
    let text = String::from_utf8(answer.body).unwrap();
    assert_eq!(answer.status, 200, "{path}: {text}");
    text
}

/// The text of a page as it is without its markup, which counts for nothing.
fn text_of(page: &str) -> String {
    let mut text = String::new();
    let mut depth = 0;
    for character in page.chars() {
        match character {
            '<' => depth += 1,
            '>' => depth -= 1,
            other if depth == 0 => text.push(other),
            _ => {}
        }
    }
    text
}

/// Every tag of a page.
fn tags(page: &str) -> Vec<&str> {
    let tags = page.split('<').skip(1);
    tags.filter_map(|rest| rest.split('>').next()).collect()
}

#[test]
fn a_page_has_no_style_of_its_own_and_no_code() {
    let (_directory, _server, mut client) = start();
    let gone = Target::answering("410 Gone");
    for key in HOSTILE {
        bury(&mut client, "q", key, &doomed(&gone));
    }
    let paths = [
        "/".to_owned(),
        "/dead".to_owned(),
        "/queue?name=q".to_owned(),
        timer_page("q", HOSTILE[1]),
    ];
    for path in paths {
        let answer = client.get(&path);
        let header = |name| answer.header(name);
        assert_eq!(header("content-security-policy"), Some(POLICY), "{path}");
        assert_eq!(header("content-type"), Some("text/html; charset=utf-8"));
        assert_eq!(header("x-content-type-options"), Some("nosniff"));
        assert_eq!(header("referrer-policy"), Some("same-origin"));
        assert_eq!(header("cache-control"), Some("no-store"));
        let page = String::from_utf8(answer.body).unwrap();
        for tag in tags(&page) {
            // No value has a quote in it, so every second part is outside of them.
            let names: String = tag.split('"').step_by(2).collect();
            let inline = [" style=", " on", "http-equiv"];
            let found = inline.iter().find(|part| names.contains(**part));
            assert_eq!(found, None, "<{tag}> of {path}");
            assert!(!tag.contains("javascript:"), "<{tag}> of {path}");
            let elements = ["style", "base", "iframe", "object", "img"];
            let element = names.split(' ').next().unwrap();
            assert!(!elements.contains(&element), "<{tag}> of {path}");
            if tag.starts_with("script") {
                assert_eq!(tag, "script src=\"/page/live.js\" defer", "{path}");
            }
        }
    }
    for (path, content_type) in [
        ("/page/style.css", "text/css; charset=utf-8"),
        ("/page/live.js", "text/javascript; charset=utf-8"),
        ("/page/icon.svg", "image/svg+xml"),
    ] {
        let answer = client.get(path);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some(content_type));
    }
}

#[test]
fn what_others_wrote_is_text() {
    let (_directory, _server, mut client) = start();
    // What a receiver answers is shown as well.
    let gone = Target::start(|_| {
        let body = "<i>gone</i>\u{202e}";
        let length = body.len();
        format!("HTTP/1.1 410 <u>Gone</u>\r\ncontent-length: {length}\r\n\r\n{body}")
    });
    for key in HOSTILE {
        let body = json!({"in": 0, "content_type": "text/<b>", "body": "<i>body</i>\u{202e}",
            "target": {"url": format!("{}?token=s3cret", gone.url),
                       "headers": {"accept": "<s>", "x-secret": "s3cret"}}});
        bury(&mut client, "q", key, &body);
    }
    for key in HOSTILE {
        let escaped = key
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('"', "&quot;")
            .replace('\'', "&#39;")
            .replace('\u{202e}', "\\u202e");
        for path in [
            "/".to_owned(),
            "/dead".to_owned(),
            "/queue?name=q".to_owned(),
            timer_page("q", key),
        ] {
            let page = page(&mut client, &path);
            assert!(
                page.contains(&escaped),
                "{escaped} is not in {path}: {page}"
            );
            for raw in [
                "<i>", "<u>", "<b>", "<s>", "<img", "<script>", "\u{202e}", "s3cret",
            ] {
                assert!(!page.contains(raw), "{raw} is in {path}: {page}");
            }
        }
        // The link of a timer leads to it.
        let link = timer_page("q", key).replace('&', "&amp;");
        assert!(page(&mut client, "/").contains(&format!("href=\"{link}\"")));
        let shown = page(&mut client, &timer_page("q", key));
        let answered = "410: &lt;i&gt;gone&lt;/i&gt;\\u202e";
        assert!(shown.contains(answered), "{answered}: {shown}");
        for part in [
            "&lt;i&gt;body&lt;/i&gt;\\u202e",
            "text/&lt;b&gt;",
            "&lt;s&gt;",
            "x-secret",
        ] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
    }
}

/// The page said 0+ of 93,000, summed the first 50 queues by name, and ran 211 and 0 together.
#[test]
fn the_figures_are_those_of_the_api() {
    let (_directory, _server, mut client) = start();
    let gone = Target::answering("410 Gone");
    // A queue that is last by name, and in trouble.
    bury(&mut client, "zz", "dead", &doomed(&gone));
    for number in 0..60 {
        set(&mut client, &format!("q{number:02}"), "k", &later());
    }
    for number in 0..211 {
        set(&mut client, "many", &format!("k{number}"), &later());
    }
    let queues = client.get("/v1/queues").expect(200);
    let queues = queues["queues"].as_array().unwrap();
    let sum = |state: &str| -> u64 {
        let numbers = queues.iter().map(|queue| queue[state].as_u64().unwrap());
        numbers.sum()
    };
    let page = page(&mut client, "/");
    let text = text_of(&page);
    let words: Vec<&str> = text.split_whitespace().collect();
    let says = |expected: &[&str]| words.windows(expected.len()).any(|found| found == expected);
    assert_eq!((sum("pending"), sum("dead"), queues.len()), (271, 1, 62));
    assert!(says(&["pending", "in", "all", "271"]), "{text}");
    assert!(says(&["to", "come", "271"]), "{text}");
    assert!(says(&["queues", "62"]), "{text}");
    assert!(says(&["Dead", "letters:", "1"]), "{text}");
    assert!(says(&["overdue", "now", "0"]), "{text}");
    assert!(
        says(&["many", "on", "time", "0", "211", "0", "0", "0"]),
        "{text}"
    );
    assert!(
        says(&["zz", "dead", "letters", "0", "0", "0", "0", "1"]),
        "{text}"
    );
    assert!(
        says(&["12", "more", "queues", "are", "not", "shown;"]),
        "{text}"
    );
    // The one in trouble comes first.
    let place = |name: &str| page.find(&format!("/queue?name={name}\"")).unwrap();
    assert!(place("zz") < place("many"));
}

#[test]
fn what_is_overdue_is_counted_and_comes_first() {
    let directory = Directory::new();
    let server = Server::with(
        &directory.0.join("data"),
        &["--allow-private-targets", "--max-in-flight", "4"],
    );
    let mut client = server.client();
    // It takes what comes, and answers nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    set(&mut client, "a", "k", &later());
    for number in 0..10 {
        let body = json!({"in": 0, "target": {"url": url}});
        set(&mut client, "late", &format!("k{number}"), &body);
    }
    // One queue has three quarters of what may be in flight, and the count is a second old at most.
    let says = |text: &str, expected: &[&str]| {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.windows(expected.len()).any(|found| found == expected)
    };
    let text = loop {
        let text = text_of(&page(&mut client, "/"));
        if says(&text, &["overdue", "now", "7", "oldest", "overdue"]) {
            break text;
        }
        crate::support::pause();
    };
    assert!(says(&text, &["late", "late", "7", "7", "3"]), "{text}");
    assert!(
        text.find("late\nlate").unwrap() < text.find("a\non time").unwrap(),
        "{text}"
    );
}

#[test]
fn a_dead_letter_is_revived_from_the_page() {
    let (_directory, server, mut client) = start();
    let target = Target::start(|number| {
        let status = if number == 0 { "410 Gone" } else { "200 OK" };
        crate::support::reply(status, "")
    });
    let key = HOSTILE[4];
    bury(&mut client, "q", key, &doomed(&target));
    let action = format!("/timer/revive?queue=q&key={}", encoded(key));
    for path in ["/", "/dead", &timer_page("q", key)] {
        let page = page(&mut client, path);
        let form = format!(
            "method=\"post\" action=\"{}\"",
            action.replace('&', "&amp;")
        );
        assert!(page.contains(&form), "{path}: {page}");
    }
    // As another page would have a browser send it.
    let origin = format!("http://{}", server.address);
    let others: [&[(&str, &str)]; 4] = [
        &[("origin", "https://example.com")],
        &[("origin", "null")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site"), ("origin", &origin)],
    ];
    for headers in others {
        let refused = client.send("POST", &action, headers, b"");
        assert_eq!(refused.problem(), (403, "forbidden".into()), "{headers:?}");
    }
    assert_eq!(client.get(&path("q", key)).json()["state"], "dead");
    // A link cannot do it either.
    assert_eq!(client.get(&action).status, 405);

    let form = [
        ("origin", "http://localhost"),
        ("sec-fetch-site", "same-origin"),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    let answer = client.send("POST", &action, &form, b"");
    assert_eq!(answer.status, 303, "{answer:?}");
    let back = answer.header("location").unwrap().to_owned();
    assert_eq!(back, format!("/dead?queue=q&key={}", encoded(key)));
    wait_for_state(&mut client, &path("q", key), "done");
    let text = text_of(&page(&mut client, &back));
    assert!(text.contains("Revived: "), "{text}");
    assert!(text.contains("It is done now."), "{text}");
    // Once more, and there is nothing to revive.
    let again = client.send("POST", &action, &form, b"");
    assert_eq!(again.problem(), (410, "gone".into()));
}

#[test]
fn dead_letters_come_page_by_page() {
    let (_directory, _server, mut client) = start();
    let gone = Target::answering("410 Gone");
    for number in 0..70 {
        set(
            &mut client,
            &format!("q{}", number % 2),
            &format!("k{number:02}"),
            &doomed(&gone),
        );
    }
    for number in 0..70 {
        let path = path(&format!("q{}", number % 2), &format!("k{number:02}"));
        wait_for_state(&mut client, &path, "dead");
    }
    let mut found = Vec::new();
    let mut next = Some("/dead".to_owned());
    let mut pages = 0;
    while let Some(path) = next {
        let page = page(&mut client, &path);
        assert!(page.contains("Dead letters: 70"));
        let keys = page.split("/timer?queue=q").skip(1);
        let keys = keys.filter_map(|rest| rest.split("&amp;key=").nth(1));
        found.extend(
            keys.filter_map(|rest| rest.split('"').next())
                .map(str::to_owned),
        );
        next = page.split("<a href=\"").find_map(|rest| {
            let (link, rest) = rest.split_once('"')?;
            rest.starts_with(" rel=\"next\"")
                .then(|| link.replace("&amp;", "&"))
        });
        pages += 1;
    }
    found.sort();
    assert_eq!(
        found,
        (0..70).map(|n| format!("k{n:02}")).collect::<Vec<_>>()
    );
    assert_eq!(pages, 2);
}

#[test]
fn a_queue_lists_its_timers_in_order_of_due_time() {
    let (_directory, _server, mut client) = start();
    for number in 0..60 {
        let body = json!({"in": format!("{}s", 10_000 - number),
            "target": {"url": "http://127.0.0.1:9/"}});
        set(&mut client, "q", &format!("k{number:02}"), &body);
    }
    let first = page(&mut client, "/queue?name=q");
    let place = |page: &str, key: &str| page.find(&format!("key={key}\""));
    assert!(place(&first, "k59").unwrap() < place(&first, "k10").unwrap());
    assert_eq!(place(&first, "k09"), None);
    let next = first.split("<a href=\"").find_map(|rest| {
        let (link, rest) = rest.split_once('"')?;
        rest.starts_with(" rel=\"next\"")
            .then(|| link.replace("&amp;", "&"))
    });
    let second = page(&mut client, &next.expect("a next page"));
    assert!(place(&second, "k09").is_some() && place(&second, "k10").is_none());
    let done = page(&mut client, "/queue?name=q&state=done");
    assert!(place(&done, "k59").is_none() && text_of(&done).contains("None."));
}

/// The page of the queue `q` has these texts, and no URL.
#[track_caller]
fn settings_show(client: &mut Client, parts: &[&str]) {
    let text = text_of(&page(client, "/queue?name=q"));
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert!(!words.contains("s3cret"), "{words}");
}

#[test]
fn a_queue_shows_its_settings_and_how_its_endpoint_is() {
    let (_directory, _server, mut client) = start();
    let parts = [
        "mode push",
        "endpoint none",
        "max attempts 20",
        "timeout 15s, by default",
        "if missed fire, by default",
        "concurrency no limit, by default",
        "done timers are kept 24h, by default",
        "dead timers are kept for good, by default",
    ];
    settings_show(&mut client, &parts);
    let url = "http://127.0.0.1:9/s3cret";
    let endpoint = json!({"url": url, "retry": {"fixed": "7s"}, "disabled": true});
    let settings = json!({
        "endpoint": "shop", "retry": {"fixed": "8s"}, "timeout": "9s", "concurrency": 3,
        "rate": {"per_second": 2.5}, "retention": {"done": "1h", "dead": "2h"}, "overlap": "queue",
        "missed": {"skip_if_older_than": "5m"},
    });
    for (path, body) in [("/v1/endpoints/shop", endpoint), ("/v1/queues/q", settings)] {
        client.json("PUT", path, &body.to_string()).expect(201);
    }
    let parts = [
        "endpoint shop",
        "health of the endpoint disabled, failures in a row: 0",
        "fixed 7s",
        "timeout 9s",
        "if missed skip if older than 5m",
        "overlap queue",
        "concurrency 3",
        "per second 2.5",
        "done timers are kept 1h",
        "dead timers are kept 2h",
    ];
    settings_show(&mut client, &parts);
}

#[test]
fn a_timer_shows_what_was_tried_and_what_comes() {
    let (_directory, _server, mut client) = start();
    let busy = Target::answering("503 Busy");
    let body = json!({"in": 0, "target": {"url": busy.url}, "retry": {"fixed": "1h"}});
    set(&mut client, "q", "k", &body);
    while client.get(&path("q", "k")).json()["failures"] != 1 {
        crate::support::pause();
    }
    let text = text_of(&page(&mut client, &timer_page("q", "k")));
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "state pending due",
        "1 failed",
        "503",
        "fixed 1h",
        "Next attempts",
        "timeout 15s",
    ] {
        assert!(
            part == "pending state" || words.contains(part),
            "{part}: {words}"
        );
    }
    let body = json!({"cron": "0 9 * * MON", "zone": "Europe/Berlin", "in": "1h",
        "target": {"url": busy.url}});
    set(&mut client, "q", "cron", &body);
    let text = text_of(&page(&mut client, &timer_page("q", "cron")));
    for part in ["Next runs", "0 9 * * MON", "Europe/Berlin"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn what_cannot_be_shown_is_said_to_people_and_programs() {
    let (_directory, _server, mut client) = start();
    for (path, status, code) in [
        ("/?x=1", 400, "malformed"),
        ("/dead?x=1", 400, "malformed"),
        ("/dead?after=1-1", 400, "malformed"),
        ("/dead?from=q&after=x", 400, "malformed"),
        ("/dead?from=%20", 400, "invalid_queue"),
        ("/dead?queue=q", 400, "malformed"),
        ("/queue", 400, "malformed"),
        ("/queue?name=", 400, "invalid_queue"),
        ("/queue?name=%FF", 400, "malformed"),
        ("/queue?name=q&name=q", 400, "malformed"),
        ("/queue?name=q&state=asleep", 400, "malformed"),
        ("/queue?name=q&after=", 400, "malformed"),
        ("/timer", 400, "malformed"),
        ("/timer?queue=q", 400, "malformed"),
        ("/timer?queue=q&key=", 400, "invalid_key"),
        ("/timer?queue=q&key=%00", 400, "invalid_key"),
        ("/timer?queue=q&key=none", 404, "not_found"),
    ] {
        let refused = client.get(path);
        assert_eq!(refused.problem(), (status, code.into()), "{path}");
        let asks_for_pages = [("accept", "text/html,application/xhtml+xml;q=0.9")];
        let refused: Answer = client.send("GET", path, &asks_for_pages, b"");
        assert_eq!(refused.status, status, "{path}");
        let content_type = refused.header("content-type");
        assert_eq!(content_type, Some("text/html; charset=utf-8"), "{path}");
        assert_eq!(refused.header("content-security-policy"), Some(POLICY));
    }
    let action = "/timer/revive?queue=q&key=none";
    let refused = client.send("POST", action, &[], b"");
    assert_eq!(refused.problem(), (404, "not_found".into()));
}
