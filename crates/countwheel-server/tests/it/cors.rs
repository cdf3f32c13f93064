//! Web pages of other origins.

use crate::support::{Answer, Directory, Server, output_of_refusal, program};

const PAGE: &str = "https://shop.example";

fn start(arguments: &[&str], token: Option<&str>) -> (Directory, Server) {
    let directory = Directory::new();
    let mut command = program();
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(directory.0.join("data"))
        .args(arguments)
        .envs(token.map(|token| ("COUNTWHEEL_TOKEN", token)));
    (directory, Server::spawn(command))
}

fn varies(answer: &Answer) -> bool {
    let vary = answer.headers.iter().filter(|(name, _)| name == "vary");
    vary.into_iter()
        .any(|(_, value)| value.to_ascii_lowercase().contains("origin"))
}

const ALLOWED: &str = "access-control-allow-origin";

#[test]
fn only_pages_of_listed_origins_may_call() {
    let token = "dev-token-0123456789";
    let other = "http://localhost:3000";
    for has_token in [false, true] {
        let arguments = ["--cors-origin", PAGE, "--cors-origin", other];
        let (_directory, server) = start(&arguments, has_token.then_some(token));
        let mut client = server.client();
        let preflight = [
            ("origin", PAGE),
            ("access-control-request-method", "PUT"),
            (
                "access-control-request-headers",
                "authorization,content-type,if-match",
            ),
        ];
        let path = "/v1/queues/q/timers/k";
        // A preflight has no token.
        let answer = client.send("OPTIONS", path, &preflight, b"");
        assert_eq!(answer.status, 204, "{answer:?}");
        assert!(answer.header("x-request-id").is_some(), "{answer:?}");
        assert_eq!(answer.header(ALLOWED), Some(PAGE));
        let methods = answer.header("access-control-allow-methods").unwrap();
        assert!(
            methods.contains("PUT") && methods.contains("DELETE"),
            "{methods}"
        );
        let headers = answer.header("access-control-allow-headers").unwrap();
        assert!(
            headers.contains("authorization") && headers.contains("if-match"),
            "{headers}"
        );
        assert_eq!(answer.header("access-control-max-age"), Some("600"));
        assert_eq!(answer.header("access-control-allow-credentials"), None);
        assert!(varies(&answer));
        let mut own = vec![
            ("origin", PAGE),
            ("sec-fetch-site", "cross-site"),
            ("content-type", "application/json"),
        ];
        let shown = format!("Bearer {token}");
        if has_token {
            // Without the token a page may read the refusal, and no more.
            let answer = client.send("GET", path, &own, b"");
            assert_eq!((answer.status, answer.header(ALLOWED)), (401, Some(PAGE)));
            own.push(("authorization", &shown));
        }
        let set = br#"{"in":"10d","target":{"url":"https://example.com/"}}"#;
        let answer = client.send("PUT", path, &own, set);
        assert_eq!(
            (answer.status, answer.header(ALLOWED)),
            (201, Some(PAGE)),
            "{answer:?}"
        );
        let exposed = answer.header("access-control-expose-headers").unwrap();
        for name in ["etag", "link", "retry-after", "location", "x-request-id"] {
            assert!(exposed.contains(name), "{exposed}");
        }
        assert!(varies(&answer));
        // Others may not.
        for other in [
            "https://shop.example:8443",
            "http://shop.example",
            "https://evil.example",
            "null",
        ] {
            own[0].1 = other;
            let answer = client.send("PUT", path, &own, set);
            assert_eq!(answer.header(ALLOWED), None, "{other}");
            assert!(varies(&answer));
            if !has_token {
                assert_eq!(answer.problem(), (403, "forbidden".to_owned()), "{other}");
            }
            let preflight = [("origin", other), ("access-control-request-method", "PUT")];
            let answer = client.send("OPTIONS", path, &preflight, b"");
            assert_eq!(answer.header(ALLOWED), None, "{other}");
        }
        // Who is no page is answered as before.
        let answer = client.send("OPTIONS", path, &[], b"");
        assert!(
            answer
                .header("allow")
                .is_some_and(|allow| allow.contains("PATCH")),
            "{answer:?}"
        );
        let host = [("host", "evil.example"), ("origin", PAGE)];
        let twice = client.send("GET", path, &host, b"");
        assert_eq!(twice.status, 400);
    }
}

#[test]
fn without_a_list_no_page_may_call() {
    let (_directory, server) = start(&[], None);
    let mut client = server.client();
    let preflight = [("origin", PAGE), ("access-control-request-method", "PUT")];
    let answer = client.send("OPTIONS", "/v1/queues", &preflight, b"");
    assert_eq!((answer.problem().0, answer.header(ALLOWED)), (403, None));
    let answer = client.send("GET", "/v1/queues", &[("origin", PAGE)], b"");
    assert_eq!((answer.problem().0, answer.header(ALLOWED)), (403, None));
    assert!(!varies(&answer));
}

#[test]
fn an_origin_that_is_none_is_refused_at_the_start() {
    let directory = Directory::new();
    for (origin, why) in [
        ("*", "each page that may call is named"),
        ("https://shop.example/", "no slash at its end"),
        ("shop.example", "a scheme and a host"),
    ] {
        let mut command = program();
        command.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--cors-origin",
            origin,
            "--data",
        ]);
        command.arg(directory.0.join("data"));
        let output = output_of_refusal(command).expect("a refusal");
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(why), "{said}");
    }
}
