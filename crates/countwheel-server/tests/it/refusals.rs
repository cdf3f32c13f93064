//! Whatever is wrong is refused with its own code, and changes nothing.

use crate::support::{Client, Directory, Server, Target, wait_for_state};

const TIMER: &str = "/v1/queues/q/timers/k";

/// Method, path, headers and body; the status and code of the refusal.
type Case<'a> = (
    &'a str,
    String,
    Vec<(&'a str, &'a str)>,
    &'a [u8],
    u16,
    &'a str,
);

/// Everything there is, byte for byte.
fn everything(client: &mut Client) -> Vec<u8> {
    let mut all = client.get("/v1/queues").body;
    for queue in ["q", "default"] {
        all.extend(
            client
                .get(&format!("/v1/queues/{queue}/timers?limit=1000"))
                .body,
        );
    }
    all
}

/// A service that holds a pending timer, a dead one and a done one.
fn furnished(directory: &Directory) -> (Server, Client) {
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    let far = r#"{"in":"30d","target":{"url":"http://127.0.0.1:9/"}}"#;
    client
        .json("PUT", "/v1/queues/q/timers/pending", far)
        .expect(201);
    for (key, status, state) in [("dead", "410 Gone", "dead"), ("done", "200 OK", "done")] {
        let target = Target::answering(status);
        let path = format!("/v1/queues/q/timers/{key}");
        let body = format!(r#"{{"in":0,"target":{{"url":"{}"}}}}"#, target.url);
        client.json("PUT", &path, &body).expect(201);
        target.next();
        wait_for_state(&mut client, &path, state);
    }
    (server, client)
}

#[test]
fn a_set_that_breaks_a_rule_is_refused() {
    let target = r#""target":{"url":"http://127.0.0.1:9/"}"#;
    let timed = |due: &str| format!("{{{due},{target}}}");
    let aimed = |target: &str| format!(r#"{{"in":"1h","target":{target}}}"#);
    let also = |field: &str| format!(r#"{{"in":"1h",{target},{field}}}"#);
    let url = |url: &str| aimed(&format!(r#"{{"url":{url:?}}}"#));
    let header = |header: &str| aimed(&format!(r#"{{"url":"http://x/","headers":{{{header}}}}}"#));
    let nested = |open: &str, close: &str, depth: usize| {
        also(&format!(
            r#""body":{}1{}"#,
            open.repeat(depth),
            close.repeat(depth)
        ))
    };
    let many_headers: Vec<String> = (0..33).map(|n| format!(r#""x-{n}":"1""#)).collect();
    let many_delays = vec!["1"; 1_001].join(",");
    let (malformed, unschedulable) = ((400, "malformed"), (422, "unschedulable"));
    let (retry, aim) = ((422, "invalid_retry"), (422, "invalid_target"));

    let cases: Vec<(String, (u16, &str))> = vec![
        // When.
        (timed(r#""in":-1"#), unschedulable),
        (timed(r#""in":-0.5"#), unschedulable),
        (timed(r#""in":1.5"#), unschedulable),
        (timed(r#""in":1e3"#), unschedulable),
        (timed(r#""in":1e400"#), unschedulable),
        (timed(r#""in":-1e400"#), unschedulable),
        (timed(r#""in":99999999999999999999999"#), unschedulable),
        (timed(r#""in":3155760000001"#), unschedulable),
        (timed(r#""in":"36526d""#), unschedulable),
        (timed(r#""in":"-5s""#), unschedulable),
        (timed(r#""in":"5s ago""#), unschedulable),
        (timed(r#""in":"NaN""#), unschedulable),
        (timed(r#""in":"1e400s""#), unschedulable),
        (timed(r#""in":"""#), unschedulable),
        (timed(r#""in":"soon""#), unschedulable),
        (timed(r#""in":"1 month""#), unschedulable),
        (timed(r#""at":"tomorrow""#), unschedulable),
        (timed(r#""at":"2026-03-01T12:00:00""#), unschedulable),
        (timed(r#""at":"2026-02-30T12:00:00Z""#), unschedulable),
        (timed(r#""at":"9999-12-31T23:59:59Z""#), unschedulable),
        (timed(r#""at":"10000-01-01T00:00:00Z""#), unschedulable),
        (timed(r#""at":"2016-12-31T23:59:60Z""#), unschedulable),
        (timed(r#""at":"1969-07-20T20:17:00Z""#), unschedulable),
        (
            also(r#""every":"1h","until":"2016-12-31T23:59:60Z""#),
            unschedulable,
        ),
        (timed(r#""in":NaN"#), malformed),
        (timed(r#""in":Infinity"#), malformed),
        (timed(r#""in":+1"#), malformed),
        (timed(r#""in":01"#), malformed),
        (timed(r#""in":null"#), malformed),
        (timed(r#""in":true"#), malformed),
        (timed(r#""in":{}"#), malformed),
        (timed(r#""at":1700000000"#), malformed),
        (timed(r#""in":1,"at":"2026-03-01T12:00:00Z""#), malformed),
        (format!("{{{target}}}"), malformed),
        // The shape.
        (String::new(), malformed),
        ("[]".into(), malformed),
        ("null".into(), malformed),
        (r#"["1h",{"url":"http://x/"}]"#.into(), malformed),
        (r#"{"in":"1h"}"#.into(), malformed),
        (also(r#""often":"1h""#), malformed),
        // Again.
        (also(r#""every":"99ms""#), unschedulable),
        (also(r#""every":"1h","every_after":"1h""#), malformed),
        (also(r#""cron":"0 0 30 2 *""#), unschedulable),
        (also(r#""cron":"* * * *""#), unschedulable),
        (
            also(r#""cron":"@daily","zone":"Europe/Atlantis""#),
            unschedulable,
        ),
        (also(r#""zone":"UTC""#), malformed),
        (also(r#""repeats":2"#), malformed),
        (also(r#""every":"1h","repeats":0"#), unschedulable),
        (
            also(r#""every":"1h","until":"2020-01-01T00:00:00Z""#),
            unschedulable,
        ),
        (also(r#""every":"1h","jitter":"61m""#), unschedulable),
        (also(r#""every":"1h","overlap":"allow""#), unschedulable),
        (also(r#""missed":"never""#), unschedulable),
        (
            also(r#""missed":{"skip_if_older_than":"36526d"}"#),
            unschedulable,
        ),
        (also(r#""IN":"1h""#), malformed),
        (also(r#""in":"1h""#), malformed),
        (also(r#""\u0069n":"1h""#), malformed),
        (also(r#""body":{"a":1,"a":1}"#), malformed),
        (also(r#""body":[{"b":[{"a":1,"c":2,"a":3}]}]"#), malformed),
        (also(r#""body":"\ud800""#), malformed),
        (also(r#""body":1} trailing"#), malformed),
        (nested("[", "]", 64), malformed),
        (nested("[", "]", 100_000), malformed),
        (nested("{\"a\":", "}", 100_000), malformed),
        ("[".repeat(100_000), malformed),
        ("{\"a\":".repeat(100_000), malformed),
        // The body.
        (also(r#""content_type":"text/plain""#), malformed),
        (also(r#""content_type":"text/plain","body":1"#), malformed),
        (also(r#""content_type":1,"body":"x""#), malformed),
        (also(r#""content_type":"a\nb","body":"x""#), aim),
        // Where to.
        (aimed(r#""http://x/""#), malformed),
        (aimed("{}"), malformed),
        (aimed(r#"{"url":1}"#), malformed),
        (aimed(r#"{"url":"http://x/","verb":"PUT"}"#), malformed),
        (aimed(r#"{"url":"http://x/","url":"http://y/"}"#), malformed),
        (url("ftp://x/"), aim),
        (url("file:///etc/passwd"), aim),
        (url("/hook"), aim),
        (url("x"), aim),
        (url(""), aim),
        (url("http://"), aim),
        (url("http:///hook"), aim),
        (url("http://user@x/"), aim),
        (url("http://user:secret@x/"), aim),
        (url("http://x y/"), aim),
        (url("http://x:99999/"), aim),
        (url(&format!("http://x/{}", "a".repeat(2_048))), aim),
        (header(r#""host":"x""#), aim),
        (header(r#""Content-Length":"1""#), aim),
        (header(r#""connection":"close""#), aim),
        (header(r#""transfer-encoding":"chunked""#), aim),
        (header(r#""Timer-Key":"x""#), aim),
        (header(r#""webhook-id":"x""#), aim),
        (header(r#""timer_key":"x""#), aim),
        (header(r#""Content_Length":"1""#), aim),
        (header(r#""x_shop":"1""#), aim),
        (header(r#""CONTENT-TYPE":"x""#), aim),
        (header(r#""Proxy-Authorization":"x""#), aim),
        (header(r#""HTTP2-Settings":"x""#), aim),
        (header(r#""tE":"trailers""#), aim),
        (header(r#""Upgrade":"h2c""#), aim),
        (header(r#""host ":"x""#), aim),
        (header(r#"" host":"x""#), aim),
        (header(r#""host\t":"x""#), aim),
        (header(r#""ho\u017ft":"x""#), aim),
        (url("http://x:22/"), aim),
        (url("https://x:6379/"), aim),
        (url("http://169.254.169.254/"), aim),
        (header(r#""a b":"x""#), aim),
        (header(r#""x":"a\r\nb: c""#), aim),
        (header(r#""x-a":"1","X-A":"2""#), aim),
        (header(&many_headers.join(",")), aim),
        (header(r#""x":1"#), malformed),
        (aimed(r#"{"url":"http://x/","headers":[]}"#), malformed),
        (aimed(r#"{"url":"http://x/","timeout":"99ms"}"#), aim),
        (aimed(r#"{"url":"http://x/","timeout":"31m"}"#), aim),
        (aimed(r#"{"url":"http://x/","timeout":1.5}"#), aim),
        (aimed(r#"{"url":"http://x/","timeout":null}"#), malformed),
        // And when again.
        (also(r#""retry":{}"#), malformed),
        (also(r#""retry":null"#), malformed),
        (
            also(r#""retry":{"fixed":"5s","preset":"wechat"}"#),
            malformed,
        ),
        (also(r#""retry":{"fixed":"5s","base":2}"#), malformed),
        (also(r#""retry":{"fixed":"5s","jitter":1}"#), malformed),
        (also(r#""retry":{"exponential":{"first":"1s"}}"#), malformed),
        (also(r#""retry":{"schedule":"1s"}"#), malformed),
        (also(r#""retry":{"fixed":"0s"}"#), retry),
        (also(r#""retry":{"fixed":-1}"#), retry),
        (also(r#""retry":{"fixed":"366d"}"#), retry),
        (also(r#""retry":{"schedule":[]}"#), retry),
        (
            also(&format!(r#""retry":{{"schedule":[{many_delays}]}}"#)),
            retry,
        ),
        (also(r#""retry":{"preset":"alipay"}"#), retry),
        (also(r#""retry":{"fixed":"5s","jitter":"some"}"#), retry),
        (also(r#""retry":{"fixed":"5s","max_attempts":0}"#), retry),
        (
            also(r#""retry":{"fixed":"5s","max_attempts":10001}"#),
            retry,
        ),
        (also(r#""retry":{"fixed":"5s","max_attempts":-1}"#), retry),
        (also(r#""retry":{"fixed":"5s","max_attempts":1.5}"#), retry),
        (also(r#""retry":{"fixed":"5s","max_age":"0s"}"#), retry),
        (
            also(r#""retry":{"exponential":{"first":"1s","cap":"1h","factor":0.5}}"#),
            retry,
        ),
        (
            also(r#""retry":{"exponential":{"first":"1s","cap":"1h","factor":1.000001}}"#),
            retry,
        ),
        (
            also(r#""retry":{"exponential":{"first":"1s","cap":"1h","factor":1e400}}"#),
            retry,
        ),
        (
            also(r#""retry":{"exponential":{"first":"2s","cap":"1s"}}"#),
            retry,
        ),
    ];

    let directory = Directory::new();
    let (_server, mut client) = furnished(&directory);
    let before = everything(&mut client);
    for (body, (status, code)) in &cases {
        let shown = &body[..body.len().min(200)];
        let answer = client.json("PUT", TIMER, body);
        assert_eq!(answer.problem(), (*status, (*code).to_owned()), "{shown}");
    }
    assert_eq!(everything(&mut client), before);
    // What is just within the bounds is taken.
    for body in [
        timed(r#""in":3155760000000"#),
        timed(r#""at":"1970-01-01T00:00:00Z""#),
        nested("[", "]", 63),
    ] {
        let answer = client.json("PUT", TIMER, &body);
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    }
}

#[test]
fn a_refusal_points_to_the_field_at_fault() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    for (body, pointer) in [
        (r#"{"in":-1,"target":{"url":"http://x/"}}"#, "/in"),
        (
            r#"{"at":"2016-12-31T23:59:60Z","target":{"url":"http://x/"}}"#,
            "/at",
        ),
        (
            r#"{"in":1,"target":{"url":"http://x/","headers":{"a_b":"1"}}}"#,
            "/target/headers/a_b",
        ),
        (r#"{"in":1,"target":{"url":"http://x:22/"}}"#, "/target/url"),
        (r#"{"in":1,"target":{"url":"x"}}"#, "/target/url"),
        (r#"{"in":1,"target":{"url":"http://x/"},"a/b":1}"#, "/a~1b"),
        (
            r#"{"in":1,"target":{"url":"http://x/"},"retry":{"schedule":["1s","x"]}}"#,
            "/retry/schedule/1",
        ),
        (
            r#"{"in":1,"target":{"url":"http://x/"},"retry":{"fixed":1,"max_attempts":0}}"#,
            "/retry/max_attempts",
        ),
    ] {
        let answer = client.json("PUT", TIMER, body);
        assert_eq!(answer.json()["errors"][0]["pointer"], pointer, "{body}");
    }
}

#[test]
fn a_name_that_breaks_its_rule_is_refused() {
    let directory = Directory::new();
    let (_server, mut client) = furnished(&directory);
    let before = everything(&mut client);
    let body = r#"{"in":"1h","target":{"url":"http://127.0.0.1:9/"}}"#;
    let long_key = "k".repeat(257);
    let long_umlauts = "%C3%BC".repeat(129);
    for key in [
        "",
        "%00",
        "a%00b",
        "%0A",
        "a%0Ab",
        "%0D",
        "%09",
        "%1B",
        "%7F",
        "%C2%85",
        "%FF",
        "%C3",
        "%ED%A0%80",
        &long_key,
        &long_umlauts,
    ] {
        for (method, tail) in [("PUT", ""), ("GET", ""), ("DELETE", ""), ("POST", ":fire")] {
            let path = format!("/v1/queues/q/timers/{key}{tail}");
            let answer = if method == "PUT" {
                client.json(method, &path, body)
            } else {
                client.send(method, &path, &[], b"")
            };
            assert_eq!(
                answer.problem(),
                (400, "invalid_key".into()),
                "{method} {path}"
            );
        }
    }
    let long_queue = "q".repeat(129);
    for queue in [
        "",
        "a%20b",
        "%2Fb",
        "a%20b%2Fb",
        "default%2F",
        "%C3%BC",
        "%FF",
        "%00",
        "a+b",
        &long_queue,
    ] {
        for path in [
            format!("/v1/queues/{queue}/timers/k"),
            format!("/v1/queues/{queue}/timers"),
        ] {
            let answer = client.get(&path);
            assert_eq!(answer.problem(), (400, "invalid_queue".into()), "{path}");
        }
        let answer = client.json("PUT", &format!("/v1/queues/{queue}/timers/k"), body);
        assert_eq!(answer.problem(), (400, "invalid_queue".into()), "{queue}");
    }
    assert_eq!(everything(&mut client), before);

    let longest = "k".repeat(256);
    for key in [
        "..%2Fx",
        "..%2F..%2F..%2Fetc%2Fpasswd",
        "a%2Fb",
        "%25",
        "..",
        "%20",
        "'%22%3C",
        &longest,
    ] {
        let path = format!("/v1/queues/q/timers/{key}");
        assert_eq!(client.json("PUT", &path, body).status, 201, "{path}");
        client.get(&path).expect(200);
    }
    let keys: Vec<_> = std::fs::read_dir(directory.0.join("data"))
        .unwrap()
        .collect();
    assert!(keys.len() < 10, "a key became a file: {keys:?}");
}

#[test]
fn what_surrounds_a_request_is_checked() {
    let directory = Directory::new();
    let (_server, mut client) = furnished(&directory);
    let before = everything(&mut client);
    let json = ("content-type", "application/json");
    let body = br#"{"in":"1h","target":{"url":"http://127.0.0.1:9/"}}"#;
    let pending = "/v1/queues/q/timers/pending";
    let large = format!(
        r#"{{"in":1,"target":{{"url":"http://x/"}},"body":"{}"}}"#,
        "x".repeat(1 << 20)
    );

    let cases: Vec<Case<'_>> = vec![
        (
            "PUT",
            TIMER.into(),
            vec![],
            body,
            415,
            "unsupported_media_type",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![("content-type", "text/plain")],
            body,
            415,
            "unsupported_media_type",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![("content-type", "application/json; charset=latin1")],
            body,
            415,
            "unsupported_media_type",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, json],
            body,
            400,
            "malformed",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json],
            large.as_bytes(),
            413,
            "too_large",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json],
            b"\xff\xfe",
            400,
            "malformed",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, ("if-match", "7")],
            body,
            400,
            "malformed",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, ("if-match", "*")],
            body,
            404,
            "not_found",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, ("if-match", "*"), ("if-none-match", "*")],
            body,
            400,
            "malformed",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, ("if-match", "\"*\"")],
            body,
            400,
            "malformed",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, ("idempotency-key", "\"a\"")],
            body,
            400,
            "malformed",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, ("prefer", "return=minimal")],
            body,
            400,
            "malformed",
        ),
        (
            "GET",
            pending.into(),
            vec![("prefer", "wait=10")],
            b"",
            400,
            "malformed",
        ),
        (
            "POST",
            "/v1/queues/q/timers/dead:revive".into(),
            vec![("idempotency-key", "a")],
            b"",
            400,
            "malformed",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, ("if-match", "W/\"7\"")],
            body,
            400,
            "malformed",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, ("if-match", "\"7\", \"8\"")],
            body,
            400,
            "malformed",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, ("if-match", "\"99999999999999999999\"")],
            body,
            400,
            "malformed",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, ("if-none-match", "\"7\"")],
            body,
            400,
            "malformed",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, ("if-match", "\"7\""), ("if-none-match", "*")],
            body,
            400,
            "malformed",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, ("if-match", "\"7\""), ("if-match", "\"7\"")],
            body,
            400,
            "malformed",
        ),
        (
            "PUT",
            TIMER.into(),
            vec![json, ("if-match", "\"7\"")],
            body,
            404,
            "not_found",
        ),
        (
            "PUT",
            pending.into(),
            vec![json, ("if-none-match", "*")],
            body,
            412,
            "exists",
        ),
        (
            "PUT",
            pending.into(),
            vec![json, ("if-match", "\"999\"")],
            body,
            412,
            "revision_mismatch",
        ),
        (
            "PUT",
            format!("{TIMER}?x=1"),
            vec![json],
            body,
            400,
            "malformed",
        ),
        ("PATCH", pending.into(), vec![json], b"{}", 400, "malformed"),
        (
            "PATCH",
            pending.into(),
            vec![json],
            br#"{"in":1,"by":1}"#,
            400,
            "malformed",
        ),
        (
            "PATCH",
            pending.into(),
            vec![json],
            br#"{"by":"x"}"#,
            422,
            "unschedulable",
        ),
        (
            "PATCH",
            pending.into(),
            vec![json],
            br#"{"by":1e400}"#,
            422,
            "unschedulable",
        ),
        (
            "PATCH",
            pending.into(),
            vec![json],
            br#"{"by":"36526d"}"#,
            422,
            "unschedulable",
        ),
        (
            "PATCH",
            pending.into(),
            vec![json],
            br#"{"by":"36525d"}"#,
            422,
            "unschedulable",
        ),
        (
            "PATCH",
            pending.into(),
            vec![json],
            br#"{"in":-1}"#,
            422,
            "unschedulable",
        ),
        (
            "PATCH",
            pending.into(),
            vec![json, ("if-match", "\"999\"")],
            br#"{"in":1}"#,
            412,
            "revision_mismatch",
        ),
        (
            "PATCH",
            pending.into(),
            vec![json, ("if-none-match", "*")],
            br#"{"in":1}"#,
            400,
            "malformed",
        ),
        (
            "PATCH",
            "/v1/queues/q/timers/dead".into(),
            vec![json],
            br#"{"in":1}"#,
            409,
            "conflict",
        ),
        (
            "PATCH",
            "/v1/queues/q/timers/done".into(),
            vec![json],
            br#"{"in":1}"#,
            410,
            "gone",
        ),
        (
            "PATCH",
            TIMER.into(),
            vec![json],
            br#"{"in":1}"#,
            404,
            "not_found",
        ),
        ("DELETE", TIMER.into(), vec![], b"", 404, "not_found"),
        (
            "DELETE",
            "/v1/queues/q/timers/done".into(),
            vec![],
            b"",
            410,
            "gone",
        ),
        (
            "DELETE",
            "/v1/queues/q/timers/dead?only=pending".into(),
            vec![],
            b"",
            409,
            "conflict",
        ),
        (
            "DELETE",
            format!("{pending}?only=dead"),
            vec![],
            b"",
            400,
            "malformed",
        ),
        (
            "DELETE",
            format!("{pending}?force"),
            vec![],
            b"",
            400,
            "malformed",
        ),
        (
            "DELETE",
            pending.into(),
            vec![("if-match", "\"999\"")],
            b"",
            412,
            "revision_mismatch",
        ),
        ("GET", TIMER.into(), vec![], b"", 404, "not_found"),
        ("GET", format!("{pending}?x"), vec![], b"", 400, "malformed"),
        ("POST", pending.into(), vec![], b"", 404, "not_found"),
        (
            "POST",
            format!("{pending}:stop"),
            vec![],
            b"",
            404,
            "not_found",
        ),
        (
            "POST",
            format!("{pending}%3Afire"),
            vec![],
            b"",
            404,
            "not_found",
        ),
        (
            "POST",
            format!("{pending}:fire"),
            vec![],
            b"x",
            415,
            "unsupported_media_type",
        ),
        (
            "POST",
            format!("{pending}:fire"),
            vec![json],
            br#"{"in":1}"#,
            400,
            "malformed",
        ),
        (
            "POST",
            format!("{pending}:fire"),
            vec![("if-match", "\"1\"")],
            b"",
            400,
            "malformed",
        ),
        (
            "POST",
            format!("{pending}:revive"),
            vec![],
            b"",
            409,
            "conflict",
        ),
        (
            "POST",
            "/v1/queues/q/timers/dead:fire".into(),
            vec![],
            b"",
            409,
            "conflict",
        ),
        (
            "POST",
            "/v1/queues/q/timers/dead:revive".into(),
            vec![json],
            br#"{"in":-1}"#,
            422,
            "unschedulable",
        ),
        (
            "POST",
            "/v1/queues/q/timers/done:revive".into(),
            vec![],
            b"",
            410,
            "gone",
        ),
        (
            "POST",
            format!("{TIMER}:fire"),
            vec![],
            b"",
            404,
            "not_found",
        ),
        (
            "POST",
            "/v1/simulate".into(),
            vec![json],
            b"{}",
            400,
            "malformed",
        ),
        (
            "POST",
            "/v1/simulate".into(),
            vec![json],
            br#"{"retry":{"fixed":1},"limit":0}"#,
            400,
            "malformed",
        ),
        (
            "POST",
            "/v1/simulate".into(),
            vec![json],
            br#"{"retry":{"fixed":1},"start":"x"}"#,
            422,
            "unschedulable",
        ),
        (
            "GET",
            "/v1/queues/q/timers?limit=0".into(),
            vec![],
            b"",
            400,
            "malformed",
        ),
        (
            "GET",
            "/v1/queues/q/timers?limit=1001".into(),
            vec![],
            b"",
            400,
            "malformed",
        ),
        (
            "GET",
            "/v1/queues/q/timers?limit=1&limit=2".into(),
            vec![],
            b"",
            400,
            "malformed",
        ),
        (
            "GET",
            "/v1/queues/q/timers?state=gone".into(),
            vec![],
            b"",
            400,
            "malformed",
        ),
        (
            "GET",
            "/v1/queues/q/timers?due_after=now".into(),
            vec![],
            b"",
            400,
            "malformed",
        ),
        (
            "GET",
            "/v1/queues/q/timers?after=x".into(),
            vec![],
            b"",
            400,
            "malformed",
        ),
        (
            "GET",
            "/v1/queues/q/timers?color=red".into(),
            vec![],
            b"",
            400,
            "malformed",
        ),
        (
            "GET",
            format!("/v1/queues?{}", "x".repeat(9_000)),
            vec![],
            b"",
            414,
            "uri_too_long",
        ),
        ("GET", "/v1".into(), vec![], b"", 404, "not_found"),
        ("GET", "/v2/queues".into(), vec![], b"", 404, "not_found"),
        (
            "GET",
            "/v1/../metrics".into(),
            vec![],
            b"",
            404,
            "not_found",
        ),
        ("GET", "/echo".into(), vec![], b"", 404, "not_found"),
        (
            "GET",
            "/v1/queues/q/timers/a/b".into(),
            vec![],
            b"",
            404,
            "not_found",
        ),
        (
            "PUT",
            "/v1/queues".into(),
            vec![],
            b"",
            405,
            "method_not_allowed",
        ),
        (
            "DELETE",
            "/metrics".into(),
            vec![],
            b"",
            405,
            "method_not_allowed",
        ),
        ("BREW", TIMER.into(), vec![], b"", 405, "method_not_allowed"),
    ];
    let date = "Thu, 01 Jan 2099 00:00:00 GMT";
    let conditions = [
        ("if-modified-since", date),
        ("if-unmodified-since", date),
        ("if-range", date),
    ];
    for condition in conditions {
        for (method, path, body) in [
            ("PUT", TIMER, &body[..]),
            ("PATCH", pending, br#"{"in":1}"#),
            ("DELETE", pending, b""),
            ("POST", "/v1/queues/q/timers/pending:fire", b""),
            ("POST", "/v1/simulate", br#"{"retry":{"fixed":1}}"#),
            ("POST", "/v1/snapshots", br#"{"name":"x"}"#),
        ] {
            let answer = client.send(method, path, &[json, condition], body);
            let expected = (400, "malformed".to_owned());
            assert_eq!(answer.problem(), expected, "{method} {path} {condition:?}");
        }
        assert_eq!(client.send("GET", pending, &[condition], b"").status, 200);
    }
    for (method, path, headers, body, status, code) in &cases {
        let answer = client.send(method, path, headers, body);
        assert_eq!(
            answer.problem(),
            (*status, (*code).to_owned()),
            "{method} {path} {headers:?}"
        );
        if *status == 405 {
            assert!(answer.header("allow").is_some(), "{method} {path}");
        }
    }
    assert_eq!(everything(&mut client), before);
}

#[test]
fn a_body_that_is_too_long_is_not_read_to_its_end() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    // Announced, and not announced but sent in chunks.
    let announced = format!(
        "PUT {TIMER} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n"
    );
    let answer = client.exchange(announced.as_bytes(), false).unwrap();
    assert_eq!(answer.problem(), (413, "too_large".into()));
    let mut chunked = format!(
        "PUT {TIMER} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    .into_bytes();
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    for _ in 0..17 {
        chunked.extend_from_slice(&chunk);
    }
    let answer = server.client().exchange(&chunked, false).unwrap();
    assert_eq!(answer.problem(), (413, "too_large".into()));
}

#[test]
fn a_time_after_the_last_year_is_said_to_be_too_far() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    for at in [
        "2200-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "10000-01-01T00:00:00Z",
    ] {
        let body = format!(r#"{{"at":"{at}","target":{{"url":"http://x/"}}}}"#);
        let answer = client.json("PUT", TIMER, &body);
        assert_eq!(answer.problem(), (422, "unschedulable".into()), "{at}");
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("ahead"), "{at}: {detail}");
    }
}

/// A web page can make a browser on this machine send requests here, under its own origin or
/// under a name that it lets lead here.
#[test]
fn without_a_token_a_request_comes_from_this_machine_and_under_its_name() {
    let directory = Directory::new();
    let server = Server::start(&directory.0);
    let mut client = server.client();
    let path = "/v1/queues/q/timers/k";
    let body = r#"{"in":"1h","target":{"url":"http://127.0.0.1:9/"}}"#;
    let mut ask = |lines: &str| {
        let length = body.len();
        let request = format!(
            "PUT {path} HTTP/1.1\r\n{lines}content-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        let answer = client.exchange(request.as_bytes(), false);
        answer.expect("an answer").status
    };
    for lines in [
        "host: evil.example\r\n",
        "host: 127.0.0.1.evil.example:7070\r\n",
        "host: 192.168.1.1\r\n",
        "host: localhost\r\norigin: https://evil.example\r\n",
        "host: localhost\r\norigin: null\r\n",
        // A page that somebody else on this machine serves.
        "host: localhost:7070\r\norigin: http://localhost:3000\r\n",
        "host: localhost:7070\r\norigin: http://localhost\r\n",
        "host: localhost:7070\r\norigin: http://127.0.0.1:7070\r\n",
        "host: localhost:7070\r\norigin: http://localhost:7070\r\norigin: http://x\r\n",
        "host: localhost:7070\r\nsec-fetch-site: cross-site\r\n",
        "host: localhost:7070\r\nsec-fetch-site: same-site\r\n",
    ] {
        assert_eq!(ask(lines), 403, "{lines}");
    }
    for lines in ["", "host: localhost\r\nhost: localhost\r\n"] {
        assert_eq!(ask(lines), 400, "{lines}");
    }
    for lines in [
        "host: localhost:7070\r\n",
        "host: 127.0.0.2\r\n",
        "host: [::1]:80\r\n",
        "host: LOCALHOST\r\norigin: http://localhost:80\r\n",
        "host: localhost:7070\r\norigin: http://localhost:7070\r\nsec-fetch-site: same-origin\r\n",
        "host: localhost:7070\r\nsec-fetch-site: none\r\n",
    ] {
        assert!(matches!(ask(lines), 200 | 201), "{lines}");
    }
    // A link from elsewhere may be followed: it changes nothing.
    let followed = [("sec-fetch-site", "cross-site")];
    let mut client = server.client();
    assert_eq!(client.send("GET", "/", &followed, b"").status, 200);
    let fire = client.send("POST", &format!("{path}:fire"), &followed, b"");
    assert_eq!(fire.problem(), (403, "forbidden".into()));
}
