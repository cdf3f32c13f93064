//! The login of the pages: a session in place of a token, what it opens, and what ends it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::json;

use crate::support::{Answer, Client, Directory, PATIENCE, Server, Target, wait_for_state};

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const HTML: (&str, &str) = ("accept", "text/html");

struct Shop {
    _directory: Directory,
    server: Server,
    admin: Client,
    token: String,
}

/// A service with tokens, and a timer that is dead.
fn shop() -> Shop {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut admin = server.client();
    let token = made(&mut admin, &["admin"]).1;
    admin.headers = vec![("authorization".to_owned(), format!("Bearer {token}"))];
    let gone = Target::answering("410 Gone");
    bury(&mut admin, &gone);
    Shop {
        _directory: directory,
        server,
        admin,
        token,
    }
}

fn bury(admin: &mut Client, gone: &Target) {
    let body = json!({"in": 0, "target": {"url": gone.url}});
    let path = "/v1/queues/q/timers/a-key";
    let set = admin.json("PUT", path, &body.to_string());
    assert!(matches!(set.status, 200 | 201), "{set:?}");
    wait_for_state(admin, path, "dead");
}

pub(crate) fn made(admin: &mut Client, scopes: &[&str]) -> (String, String) {
    let body = json!({"name": "t", "scopes": scopes}).to_string();
    let made = admin.json("POST", "/v1/tokens", &body).expect(201);
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    (text("id"), text("token"))
}

pub(crate) fn log_in(server: &Server, token: &str, to: &str) -> Answer {
    let form = format!("token={token}&to={to}");
    server
        .client()
        .send("POST", "/login", &[FORM, HTML], form.as_bytes())
}

/// The cookie that an answer has a browser keep.
#[track_caller]
pub(crate) fn cookie(answer: &Answer) -> String {
    assert_eq!(answer.status, 303, "{answer:?}");
    let set = answer.header("set-cookie").unwrap();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(set.contains(part), "{set}");
    }
    assert!(!set.contains("Secure"), "the connection has no TLS: {set}");
    set.split(';').next().unwrap().to_owned()
}

pub(crate) fn with(server: &Server, cookie: &str) -> Client {
    let mut client = server.client();
    let headers = [("cookie", cookie), HTML];
    client.headers = headers
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    client
}

pub(crate) fn text(answer: &Answer) -> String {
    String::from_utf8(answer.body.clone()).unwrap()
}

fn form_key(page: &str) -> String {
    let found = page.split_once("name=\"form_key\" value=\"");
    let (_, rest) = found.unwrap_or_else(|| panic!("no form: {page}"));
    rest.split('"').next().unwrap().to_owned()
}

const PAGES: [&str; 5] = [
    "/",
    "/dead",
    "/queue?name=q",
    "/timer?queue=q&key=a-key",
    "/timer?queue=q&key=none",
];
const REVIVE: &str = "/timer/revive?queue=q&key=a-key";

#[test]
fn without_a_session_no_page_says_anything_but_where_to_log_in() {
    let shop = shop();
    let mut anyone = shop.server.client();
    for path in PAGES {
        let browser = anyone.send("GET", path, &[HTML], b"");
        assert_eq!(browser.status, 303, "{path}");
        let place = browser.header("location").unwrap();
        assert!(place.starts_with("/login?to="), "{place}");
        assert!(browser.body.is_empty());
        assert_eq!(anyone.get(path).problem(), (401, "unauthorized".into()));
    }
    let refused = anyone.send("POST", REVIVE, &[FORM], b"");
    assert_eq!(refused.problem(), (401, "unauthorized".into()));
    let login = anyone.send("GET", "/login?to=%2Fdead", &[HTML], b"");
    assert_eq!(login.status, 200);
    assert!(text(&login).contains(r#"name="to" value="/dead""#));
    assert_eq!(login.header("cache-control"), Some("no-store"));
    for path in ["/page/style.css", "/page/icon.svg", "/reference"] {
        assert_eq!(anyone.get(path).status, 200, "{path}");
    }
}

#[test]
fn a_session_shows_the_pages_and_opens_no_api() {
    let shop = shop();
    let begun = log_in(
        &shop.server,
        &shop.token,
        "%2Ftimer%3Fqueue%3Dq%26key%3Da-key",
    );
    assert_eq!(begun.header("location"), Some("/timer?queue=q&key=a-key"));
    let cookie = cookie(&begun);
    assert!(!cookie.contains(shop.token.rsplit('_').next().unwrap()));
    let mut browser = with(&shop.server, &cookie);
    for path in PAGES {
        let page = browser.get(path);
        let status = if path.ends_with("none") { 404 } else { 200 };
        assert_eq!(page.status, status, "{path}");
    }
    assert!(text(&browser.get("/dead")).contains("a-key"));
    for path in ["/v1/queues", "/metrics", "/v1/tokens"] {
        assert_eq!(browser.get(path).problem(), (401, "unauthorized".into()));
    }
    let elsewhere = log_in(&shop.server, &shop.token, "https%3A%2F%2Fexample.com%2F");
    assert_eq!(elsewhere.header("location"), Some("/"));
    // A cookie of somebody else's making.
    for forged in [
        "countwheel_session=",
        "countwheel_session=-.99999999999.00",
        &cookie[..40],
    ] {
        assert_eq!(
            with(&shop.server, forged).get("/dead").status,
            303,
            "{forged}"
        );
    }
    let both = [("authorization", "Bearer wrong"), HTML];
    assert_eq!(browser.send("GET", "/dead", &both, b"").status, 303);
}

#[test]
fn a_form_counts_only_from_a_page_of_its_session() {
    let mut shop = shop();
    let cookie = cookie(&log_in(&shop.server, &shop.token, "/"));
    let mut browser = with(&shop.server, &cookie);
    let key = form_key(&text(&browser.get("/dead")));
    let right = format!("form_key={key}");
    let host = "localhost";
    let mut other_session = with(&shop.server, &{
        let (_, token) = made(&mut shop.admin, &["admin"]);
        self::cookie(&log_in(&shop.server, &token, "/"))
    });
    let other = format!("form_key={}", form_key(&text(&other_session.get("/dead"))));
    for (form, headers) in [
        (String::new(), vec![]),
        ("form_key=".to_owned(), vec![]),
        (format!("form_key={}", "0".repeat(64)), vec![]),
        (other, vec![]),
        (right.clone(), vec![("origin", "https://example.com")]),
        (right.clone(), vec![("origin", "http://localhost:1")]),
        (right.clone(), vec![("origin", "null")]),
        (right.clone(), vec![("sec-fetch-site", "cross-site")]),
        (right.clone(), vec![("sec-fetch-site", "same-site")]),
    ] {
        let headers: Vec<_> = [&[FORM][..], &headers].concat();
        let refused = browser.send("POST", REVIVE, &headers, form.as_bytes());
        assert_eq!(refused.status, 403, "{form} {headers:?}");
    }
    let path = "/v1/queues/q/timers/a-key";
    assert_eq!(shop.admin.get(path).json()["state"], "dead");
    let origin = format!("http://{host}");
    let headers = [
        FORM,
        ("origin", &*origin),
        ("sec-fetch-site", "same-origin"),
    ];
    let revived = browser.send("POST", REVIVE, &headers, right.as_bytes());
    assert_eq!(revived.status, 303, "{revived:?}");
    assert_ne!(shop.admin.get(path).json()["attempts"], json!([]));
    // A program that shows its token is no page of somebody else.
    let gone = Target::answering("410 Gone");
    bury(&mut shop.admin, &gone);
    let revived = shop.admin.send("POST", REVIVE, &[FORM], b"");
    assert_eq!(revived.status, 303, "{revived:?}");
    // A page of another origin begins no session of its own choice.
    let form = format!("token={}&to=/", shop.token);
    let headers = [FORM, HTML, ("origin", "https://example.com")];
    let refused = shop
        .server
        .client()
        .send("POST", "/login", &headers, form.as_bytes());
    assert_eq!(refused.status, 403);
    assert_eq!(refused.header("set-cookie"), None);
}

#[test]
fn a_session_opens_what_its_token_opens() {
    let mut shop = shop();
    let (_, reader) = made(&mut shop.admin, &["read"]);
    let mut browser = with(&shop.server, &cookie(&log_in(&shop.server, &reader, "/")));
    let page = text(&browser.get("/dead"));
    assert!(page.contains("a-key") && !page.contains("Revive"), "{page}");
    let form = format!("form_key={}", form_key(&page));
    let refused = browser.send("POST", REVIVE, &[FORM], form.as_bytes());
    assert_eq!(refused.status, 403, "{refused:?}");
    for scopes in [&["write"][..], &["metrics", "deliver"]] {
        let (_, token) = made(&mut shop.admin, scopes);
        let refused = log_in(&shop.server, &token, "/");
        assert_eq!((refused.status, refused.header("set-cookie")), (403, None));
    }
}

#[test]
fn a_session_ends_with_its_token_or_by_a_logout() {
    let mut shop = shop();
    let mut begin = || {
        let (id, token) = made(&mut shop.admin, &["read"]);
        let cookie = cookie(&log_in(&shop.server, &token, "/"));
        assert_eq!(with(&shop.server, &cookie).get("/dead").status, 200);
        (id, cookie)
    };
    let (revoked, rotated, ended) = (begin(), begin(), begin());
    let path = format!("/v1/tokens/{}", revoked.0);
    shop.admin.send("DELETE", &path, &[], b"").expect(200);
    let path = format!("/v1/tokens/{}:rotate", rotated.0);
    shop.admin
        .json("POST", &path, r#"{"overlap":"1h"}"#)
        .expect(200);
    let mut browser = with(&shop.server, &ended.1);
    let refused = browser.send("POST", "/logout", &[FORM], b"");
    assert_eq!(refused.status, 403, "{refused:?}");
    let form = format!("form_key={}", form_key(&text(&browser.get("/"))));
    let out = browser.send("POST", "/logout", &[FORM], form.as_bytes());
    assert_eq!((out.status, out.header("location")), (303, Some("/login")));
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
    for (id, cookie) in [revoked, rotated, ended] {
        assert_eq!(with(&shop.server, &cookie).get("/dead").status, 303, "{id}");
    }
}

/// Two logins with one token within a second were one session: the logout of one ended both.
#[test]
fn each_login_is_a_session_of_its_own_and_its_logout_ends_no_other() {
    let shop = shop();
    let begin = || cookie(&log_in(&shop.server, &shop.token, "/"));
    let (one, other) = (begin(), begin());
    assert_ne!(one, other);
    let mut browser = with(&shop.server, &one);
    let form = format!("form_key={}", form_key(&text(&browser.get("/"))));
    let out = browser.send("POST", "/logout", &[FORM], form.as_bytes());
    assert_eq!(out.status, 303, "{out:?}");
    assert_eq!(with(&shop.server, &one).get("/dead").status, 303);
    assert_eq!(with(&shop.server, &other).get("/dead").status, 200);
}

/// A browser sends the cookies of all services on a host, and the first one of the name hid the session.
#[test]
fn a_session_counts_behind_another_cookie_of_its_name() {
    let mut shop = shop();
    let begun = cookie(&log_in(&shop.server, &shop.token, "/"));
    let other = "countwheel_session=-.99999999999.00.00";
    let mut browser = with(&shop.server, &format!("{other}; {begun}"));
    let page = browser.get("/timer?queue=q&key=a-key");
    assert_eq!(page.status, 200, "{page:?}");
    // Its forms are of the session that counts.
    let form = format!("form_key={}", form_key(&text(&page)));
    let revived = browser.send("POST", REVIVE, &[FORM], form.as_bytes());
    assert_eq!(revived.status, 303, "{revived:?}");
    assert_ne!(
        shop.admin.get("/v1/queues/q/timers/a-key").json()["attempts"],
        json!([])
    );
}

/// Where the login leads from what a form asked for whose session is over.
const BEHIND: &str = "/login?to=%2Ftimer%3Fqueue%3Dq%26key%3Da%2Dkey";

/// A browser got JSON, which nobody at a page can read.
#[test]
fn a_form_of_a_session_that_is_over_leads_a_browser_to_the_login() {
    let mut shop = shop();
    let (id, token) = made(&mut shop.admin, &["write", "read"]);
    let mut browser = with(&shop.server, &cookie(&log_in(&shop.server, &token, "/")));
    let form = format!("form_key={}", form_key(&text(&browser.get("/dead"))));
    let path = format!("/v1/tokens/{id}");
    shop.admin.send("DELETE", &path, &[], b"").expect(200);
    let led = browser.send("POST", REVIVE, &[FORM], form.as_bytes());
    assert_eq!((led.status, led.header("location")), (303, Some(BEHIND)));
    assert!(led.body.is_empty());
    let path = "/v1/queues/q/timers/a-key";
    assert_eq!(shop.admin.get(path).json()["state"], "dead");
    let login = text(&browser.get(BEHIND));
    assert!(
        login.contains(r#"name="to" value="/timer?queue=q"#),
        "{login}"
    );
}

/// The session counted when the head came and does no more when the form has come: the service looks a second time.
#[test]
fn a_form_that_comes_after_the_end_of_its_session_changes_nothing() {
    let mut shop = shop();
    let (id, token) = made(&mut shop.admin, &["write", "read"]);
    let begun = cookie(&log_in(&shop.server, &token, "/"));
    let mut browser = with(&shop.server, &begun);
    let form = format!("form_key={}", form_key(&text(&browser.get("/dead"))));
    let head = format!(
        "POST {REVIVE} HTTP/1.1\r\nhost: localhost\r\ncookie: {begun}\r\naccept: text/html\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\
         expect: 100-continue\r\nconnection: close\r\n\r\n",
        form.len()
    );
    let mut late = TcpStream::connect(&shop.server.address).unwrap();
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    late.write_all(head.as_bytes()).unwrap();
    // The service asks for the form once it has let the head in.
    let mut asked = [0; 25];
    late.read_exact(&mut asked).unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    let path = format!("/v1/tokens/{id}");
    shop.admin.send("DELETE", &path, &[], b"").expect(200);
    late.write_all(form.as_bytes()).unwrap();
    let mut answer = String::new();
    late.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 303"), "{answer}");
    assert!(
        answer.contains(&format!("location: {BEHIND}\r\n")),
        "{answer}"
    );
    let path = "/v1/queues/q/timers/a-key";
    assert_eq!(shop.admin.get(path).json()["state"], "dead");
}

/// A browser sends no session with it, and would forget its own by the answer.
#[test]
fn a_page_of_another_site_logs_nobody_out() {
    let shop = shop();
    let mut browser = shop.server.client();
    for header in [
        ("origin", "http://evil.example"),
        ("sec-fetch-site", "cross-site"),
    ] {
        let refused = browser.send("POST", "/logout", &[FORM, header], b"");
        assert_eq!(refused.status, 403, "{refused:?}");
        assert_eq!(refused.header("set-cookie"), None);
    }
    assert_eq!(browser.send("POST", "/logout", &[FORM], b"").status, 303);
}

#[test]
fn a_login_is_tried_a_bounded_number_of_times() {
    let shop = shop();
    for _ in 0..20 {
        let wrong = log_in(&shop.server, "cwt_wrong", "/");
        assert_eq!((wrong.status, wrong.header("set-cookie")), (401, None));
        assert!(text(&wrong).contains("There is no such token."));
    }
    let refused = log_in(&shop.server, "cwt_wrong", "/");
    assert_eq!(refused.status, 429);
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    assert_eq!(log_in(&shop.server, &shop.token, "/").status, 303);
    let long = "x".repeat(9_000);
    assert_eq!(log_in(&shop.server, &long, "/").status, 413);
    for form in ["token=a&token=b", "token=%FF", "name=a"] {
        let refused = shop
            .server
            .client()
            .send("POST", "/login", &[FORM], form.as_bytes());
        assert_eq!(refused.status, 400, "{form}");
    }
}

#[test]
fn without_tokens_there_is_nothing_to_log_in_to() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut anyone = server.client();
    let page = anyone.send("GET", "/", &[HTML], b"");
    assert_eq!(page.status, 200);
    assert!(!text(&page).contains("Log out"));
    let led = anyone.send("GET", "/login?to=%2Fdead", &[HTML], b"");
    assert_eq!((led.status, led.header("location")), (303, Some("/dead")));
}

#[test]
fn what_is_done_at_the_pages_is_in_the_audit_log() {
    let mut shop = shop();
    let cookie = cookie(&log_in(&shop.server, &shop.token, "/dead"));
    let mut browser = with(&shop.server, &cookie);
    let page = text(&browser.get("/timer?queue=q&key=a-key"));
    let form = format!("form_key={}", form_key(&page));
    let revived = browser.send("POST", REVIVE, &[FORM], form.as_bytes());
    assert_eq!(revived.status, 303, "{revived:?}");
    let newest = shop.admin.get("/v1/audit?limit=1").expect(200);
    let entry = &newest["items"][0];
    assert_eq!(
        (&entry["operation"], &entry["action"]),
        (&json!("reviveTimer"), &json!("revive"))
    );
    assert_eq!(
        (&entry["queue"], &entry["key"]),
        (&json!("q"), &json!("a-key"))
    );
    assert_eq!(entry["who"]["session"], true);
    assert_eq!(
        (&entry["who"]["kind"], &entry["who"]["name"]),
        (&json!("token"), &json!("t"))
    );
    assert_eq!(
        (&entry["before"]["state"], &entry["after"]["state"]),
        (&json!("dead"), &json!("pending"))
    );
    let begun = shop.admin.get("/v1/audit?operation=logIn").expect(200);
    let entry = &begun["items"][0];
    assert_eq!(
        (&entry["who"]["kind"], &entry["who"]["name"]),
        (&json!("token"), &json!("t"))
    );
    assert_eq!(
        (&entry["from"], &entry["fields"][0]["before"]),
        (&json!("127.0.0.1"), &json!(null))
    );
    assert!(
        !begun
            .to_string()
            .contains(cookie.split('.').nth(2).unwrap())
    );
    // A session that came in vain is no session of the entry: this one is of the API.
    let mut both = with(&shop.server, &cookie);
    both.headers.extend(shop.admin.headers.clone());
    both.json("POST", "/v1/queues/q:pause", "{}").expect(200);
    let newest = shop.admin.get("/v1/audit?limit=1").expect(200);
    assert_eq!(newest["items"][0]["operation"], "pauseQueue");
    assert_eq!(newest["items"][0]["who"].get("session"), None);
}

/// A key that starts of a service share, and nodes.
pub(crate) const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

#[track_caller]
pub(crate) fn log_out(server: &Server, cookie: &str) {
    let mut browser = with(server, cookie);
    let form = format!("form_key={}", form_key(&text(&browser.get("/"))));
    let out = browser.send("POST", "/logout", &[FORM], form.as_bytes());
    assert_eq!((out.status, out.header("location")), (303, Some("/login")));
}

/// Which sessions were ended was in memory alone: a start with the same key took them again.
#[test]
fn a_logout_is_known_after_a_restart() {
    let directory = Directory::new();
    let (data, keys) = (directory.0.join("data"), directory.0.join("keys"));
    std::fs::write(&keys, KEY).unwrap();
    let keys = format!("--secret-key-file={}", keys.display());
    let server = Server::with(&data, &[&keys]);
    let (_, token) = made(&mut server.client(), &["admin"]);
    let begin = || cookie(&log_in(&server, &token, "/"));
    let (ended, other) = (begin(), begin());
    log_out(&server, &ended);
    assert!(server.stop().success());
    let server = Server::with(&data, &[&keys]);
    assert_eq!(with(&server, &ended).get("/dead").status, 303);
    assert_eq!(with(&server, &other).get("/dead").status, 200);
}

/// The sessions on a page, the last one first: what ends each, and the line of it.
fn sessions(page: &str) -> Vec<(&str, &str)> {
    let rows = page.split("<tr>").skip(2);
    let rows = rows.map(|row| {
        let (_, nonce) = row.split_once("name=\"session\" value=\"").unwrap();
        (nonce.split('"').next().unwrap(), row)
    });
    rows.collect()
}

#[test]
fn sessions_are_shown_and_ended_with_the_token_once_more() {
    let mut shop = shop();
    let begin = || cookie(&log_in(&shop.server, &shop.token, "/"));
    let cookies = [begin(), begin(), begin()];
    let status = |cookie: &str| with(&shop.server, cookie).get("/dead").status;
    let (_, other) = made(&mut shop.admin, &["admin"]);
    let of_other = cookie(&log_in(&shop.server, &other, "/"));

    let page = text(&with(&shop.server, &cookies[2]).get("/sessions"));
    let shown = sessions(&page);
    assert_eq!(shown.len(), 3, "{page}");
    assert!(page.contains("127.0.0.1"), "{page}");
    let this = shown.iter().filter(|(_, row)| row.contains("(this one)"));
    let this: Vec<_> = this.map(|(nonce, _)| *nonce).collect();
    assert!(this.len() == 1 && cookies[2].contains(this[0]), "{page}");
    // Neither the token nor what makes a cookie is there.
    assert!(!page.contains(&shop.token) && !page.contains(&cookies[2]));

    let end = |cookie: &str, session: &str, token: &str| {
        let mut browser = with(&shop.server, cookie);
        let key = form_key(&text(&browser.get("/sessions")));
        let form = format!("form_key={key}&session={session}&token={token}");
        browser.send("POST", "/sessions/end", &[FORM], form.as_bytes())
    };
    let nonce = |cookie: &str| cookie.split('.').nth(2).unwrap().to_owned();
    let first = nonce(&cookies[0]);
    // Not without the token, with a wrong one, or with that of somebody else; not those of somebody else; not by another page.
    assert_eq!(end(&cookies[2], &first, "").status, 401);
    assert_eq!(end(&cookies[2], &first, "wrong").status, 401);
    assert_eq!(end(&cookies[2], &first, &other).status, 403);
    assert_eq!(end(&cookies[2], &nonce(&of_other), &shop.token).status, 303);
    let form = format!("session={first}&token={}", shop.token);
    let forged =
        with(&shop.server, &cookies[2]).send("POST", "/sessions/end", &[FORM], form.as_bytes());
    assert_eq!(forged.status, 403);
    assert_eq!(cookies.each_ref().map(|it| status(it)), [200; 3]);
    assert_eq!(status(&of_other), 200);

    let ended = end(&cookies[2], &first, &shop.token);
    assert_eq!(
        (ended.status, ended.header("location")),
        (303, Some("/sessions"))
    );
    assert_eq!(cookies.each_ref().map(|it| status(it)), [303, 200, 200]);
    assert_eq!(end(&cookies[2], "all", &shop.token).status, 303);
    assert_eq!(cookies.each_ref().map(|it| status(it)), [303; 3]);
    assert_eq!(status(&of_other), 200);
    let again = cookie(&log_in(&shop.server, &shop.token, "/"));
    assert_eq!(status(&again), 200);
}
