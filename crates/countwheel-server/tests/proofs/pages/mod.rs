//! The pages for the operator as a browser shows them: with planted figures, in both themes and at
//! three widths. Pictures of all of them are in `target/pages` afterwards.
//!
//! It needs Chromium with its driver, and axe-core where `cargo xtask` puts it.

mod browser;

use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::process::{Launch, Server};
use crate::harness::receiver::Receiver;
use crate::harness::{Directory, turn, wait_until};

use self::browser::{Browser, Theme};

const WIDTHS: [u32; 3] = [400, 1_280, 2_560];
/// At which of them axe-core looks: each of the two layouts.
const AXE_WIDTHS: [u32; 2] = [400, 1_280];

const IN_FLIGHT_MAX: &str = "8";
/// One place has nine sixteenths of that, rounded up.
const DELIVERING: u64 = 5;
const LATE: u64 = 1_240;
const ON_TIME: u64 = 1_051;
const DONE: u64 = 3;
/// Keys that others may choose: markup, a change of direction, one that is long, one that is a path.
const HOSTILE: [&str; 4] = [
    "<script>alert('a key')</script>",
    "invoice-\u{202e}fdp.exe",
    "order-0123456789-0123456789-0123456789-0123456789-0123456789-0123456789-0123456789-0123456789-0123456789-0123456789-0123456789",
    "../a b?c=d&e#f\"'%2F+",
];
const LONG_QUEUE: &str = "registry.retry.of-a-service-with-a-name-that-nobody-should-have-given-it-but-somebody-did.eu-central-1";

/// `target`, where `cargo xtask` puts axe-core, and where the pictures go.
fn target() -> PathBuf {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tmp.parent().expect("a directory of cargo's").to_owned()
}

fn axe() -> String {
    let path = target().join("axe/axe_playwright_python/axe.min.js");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A receiver that takes deliveries and answers none.
fn silent_receiver() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            drop(stream.read(&mut [0; 1_024]));
            held.push(stream);
        }
    });
    url
}

fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

fn set(server: &Server, queue: &str, key: &str, body: &Value) {
    let path = format!("/v1/queues/{queue}/timers/{}", encoded(key));
    let reply = server.caller().ask("PUT", &path, Some(body)).unwrap();
    assert_eq!(reply.status, 201, "{}", reply.body);
}

/// How many timers of a queue are in which state.
fn counts(server: &Server, queue: &str) -> Value {
    let reply = server.caller().ask("GET", "/v1/queues", None).unwrap();
    let queues = reply.body["queues"].as_array().unwrap();
    let found = queues.iter().find(|one| one["queue"] == queue);
    found.cloned().unwrap_or_default()
}

/// Sets what the pages are to show.
fn plant(server: &Server, receiver: &Receiver) {
    let answering = json!({"url": receiver.url});
    let refusing = json!({"url": "http://127.0.0.1:9/hook?token=s3cret"});
    for number in 0..DONE {
        let body = json!({"in": 0, "target": answering});
        set(server, "mail", &format!("done-{number}"), &body);
    }
    for key in HOSTILE {
        let body = json!({"in": 0, "retry": {"schedule": ["1ms"]}, "target": {
            "url": refusing["url"],
            "headers": {"authorization": "Bearer s3cret", "accept": "application/json"}},
            "body": {"order": 42, "note": "<b>bold</b>\u{202e}"}});
        set(server, LONG_QUEUE, key, &body);
    }
    wait_until("they are dead", || {
        counts(server, LONG_QUEUE)["dead"] == HOSTILE.len()
    });
    for number in 0..ON_TIME {
        let body = json!({"in": format!("{}s", 7_200 + number), "target": answering});
        set(server, "orders.close", &format!("order-{number}"), &body);
    }
    let body = json!({"cron": "0 2 * * *", "zone": "Europe/Berlin", "target": answering});
    set(server, "reports.nightly", "sales", &body);
    let url = silent_receiver();
    for number in 0..LATE + DELIVERING {
        let body = json!({"in": 0, "target": {"url": url, "timeout": "30m"}});
        set(
            server,
            "payments.callbacks",
            &format!("pay-{number}"),
            &body,
        );
    }
    wait_until("as many are delivered as may be", || {
        counts(server, "payments.callbacks")["delivering"] == DELIVERING
            && counts(server, "mail")["done"] == DONE
    });
}

/// What the page says after a name, or before it.
fn figure(browser: &mut Browser, name: &str) -> String {
    let script = format!(
        "const names = [...document.querySelectorAll('.figures dt')];
         const found = names.find((dt) => dt.innerText.startsWith({name:?}));
         return found.parentElement.querySelector('dd').innerText;"
    );
    let value = browser.run(&script);
    value.as_str().expect("a figure").to_owned()
}

/// The text of a queue's row, in words.
fn row(browser: &mut Browser, queue: &str) -> Vec<String> {
    let script = format!(
        "const rows = [...document.querySelectorAll('.queues tbody tr')];
         return rows.find((tr) => tr.cells[0].innerText.trim() === {queue:?}).innerText;"
    );
    let text = browser.run(&script);
    let words = text.as_str().expect("a row").split_whitespace();
    words.map(str::to_owned).collect()
}

/// What must hold of every page.
fn demand_sound(browser: &mut Browser, axe: &str, name: &str, theme: Theme) {
    // The figures stand still while they are looked at.
    browser.run("for (let id = 1; id < 100; id += 1) clearInterval(id);");
    for width in WIDTHS {
        browser.size(width);
        let picture = format!("{name}-{width}-{}.png", theme.as_str());
        let path = target().join("pages").join(&picture);
        std::fs::write(path, browser.picture()).unwrap();
        let fits = "return [document.documentElement.scrollWidth, window.innerWidth];";
        let fits = browser.run(fits);
        assert!(
            fits[0].as_u64() <= fits[1].as_u64(),
            "{picture} is wider than its window: {fits}"
        );
        if AXE_WIDTHS.contains(&width) {
            browser.run(axe);
            let found = browser.run_until_done(
                "axe.run(document, {resultTypes: ['violations']}).then(
                   (found) => done(found.violations
                     .filter((one) => ['serious', 'critical'].includes(one.impact))
                     .map((one) => [one.id, one.impact, one.nodes.map((node) => node.html)])),
                   (error) => done(String(error)));",
            );
            assert_eq!(found, json!([]), "axe-core of {picture}");
        }
    }
}

#[test]
#[ignore = "see cargo xtask"]
fn the_pages_show_what_there_is() {
    let _turn = turn();
    let directory = Directory::new("pages");
    let launch = Launch {
        options: vec!["--max-in-flight", IN_FLIGHT_MAX],
        ..Launch::default()
    };
    let server = Server::start_as(&directory.join("data"), launch);
    let receiver = Receiver::counting();
    plant(&server, &receiver);
    let pictures = target().join("pages");
    if pictures.exists() {
        std::fs::remove_dir_all(&pictures).unwrap();
    }
    std::fs::create_dir_all(&pictures).unwrap();

    let axe = axe();
    let mut browser = Browser::start();
    let base = format!("http://{}", server.address);
    let timer = |queue: &str, key: &str| format!("/timer?queue={queue}&key={}", encoded(key));
    let pages = [
        ("now", "/".to_owned()),
        ("dead", "/dead".to_owned()),
        ("queue", "/queue?name=payments.callbacks".to_owned()),
        ("timer", timer(LONG_QUEUE, HOSTILE[0])),
        ("reference", "/reference".to_owned()),
    ];
    for theme in Theme::ALL {
        browser.theme(theme);
        for (name, path) in &pages {
            browser.size(WIDTHS[0]);
            browser.open(&format!("{base}{path}"));
            demand_sound(&mut browser, &axe, name, theme);
            assert_eq!(browser.console(), [""; 0], "the console of {name}");
        }
    }
    demand_others(&mut browser, &axe, &base, &directory);

    browser.size(1_280);
    browser.open(&format!("{base}/"));
    demand_figures(&mut browser);
    demand_live(&mut browser, &server);
    demand_revival(&mut browser, &server);
    for key in HOSTILE {
        browser.open(&format!("{base}{}", timer(LONG_QUEUE, key)));
        let title = browser.run("return document.querySelector('h1').innerText;");
        let shown = key.replace('\u{202e}', "\\u202e");
        assert_eq!(title, format!("Timer {shown}"));
        let text = browser.run("return document.body.innerText;");
        assert!(!text.as_str().unwrap().contains("s3cret"), "{text}");
    }
    assert_eq!(browser.console(), [""; 0]);
}

/// What is seldom seen is sound as well: a refusal, the login, and a service with a token and nothing to do.
fn demand_others(browser: &mut Browser, axe: &str, base: &str, directory: &Directory) {
    browser.open(&format!("{base}/timer?queue=mail&key=none"));
    let title = browser.run("return document.querySelector('h1').innerText;");
    assert_eq!(title, "404 Not found");
    demand_sound(browser, axe, "refusal", Theme::Dark);
    // That it was refused.
    assert_eq!(browser.console().len(), 1);

    let launch = Launch {
        environment: vec![("COUNTWHEEL_TOKEN", "s3cret".into())],
        ..Launch::default()
    };
    let server = Server::start_as(&directory.join("other"), launch);
    let base = format!("http://{}", server.address);
    browser.open(&format!("{base}/dead"));
    let title = "return document.querySelector('h1').innerText;";
    assert_eq!(browser.run(title), "Login");
    demand_sound(browser, axe, "login", Theme::Dark);
    for (token, title_behind) in [("wrong", "Login"), ("s3cret", "Dead letters: 0")] {
        browser.run(&format!(
            "document.querySelector('#token').value = '{token}';"
        ));
        browser.click_through("main button");
        assert_eq!(browser.run(title), title_behind);
        demand_sound(browser, axe, &format!("login-{token}"), Theme::Dark);
    }
    // That the wrong token was refused, and nothing of a policy that was broken.
    for line in browser.console() {
        assert!(line.contains("401"), "{line}");
    }
    for (name, path) in [
        ("empty", "/"),
        ("empty-dead", "/dead"),
        ("empty-queue", "/queue?name=q"),
        ("sessions", "/sessions"),
    ] {
        browser.open(&format!("{base}{path}"));
        demand_sound(browser, axe, name, Theme::Dark);
        assert_eq!(browser.console(), [""; 0], "the console of {name}");
    }
    browser.click_through("header button");
    assert_eq!(browser.run(title), "Login");
    browser.open(&format!("{base}/sessions"));
    assert_eq!(browser.run(title), "Login");

    let show_token = "document.querySelector('#token').value = 's3cret';";
    browser.run(show_token);
    browser.click_through("main button");
    assert_eq!(browser.run(title), "Sessions of this token: 1");
    browser.run(show_token);
    browser.click_through("button[value=all]");
    assert_eq!(browser.run(title), "Login");
}

/// The figures of the first page are those that were planted.
fn demand_figures(browser: &mut Browser) {
    let dead = HOSTILE.len();
    for (name, expected) in [
        ("in flight", "5"),
        ("pending in all", "2,292"),
        ("queues", "5"),
    ] {
        assert_eq!(figure(browser, name), expected, "{name}");
    }
    assert_eq!(LATE + ON_TIME + 1, 2_292);
    assert_eq!(LATE, 1_240);
    assert_eq!(figure(browser, "overdue now"), "1,240");
    assert_eq!(figure(browser, "to come"), "1,052");
    // Between two hours and a day, but for the nightly one, which may be as near as a minute.
    let ahead = browser.run(
        "return [...document.querySelectorAll('.ahead tbody tr')].map((tr) =>
           [tr.cells[1].innerText, tr.querySelector('meter').value]);",
    );
    let part = |row: usize| ahead[row][1].as_u64().expect("a number");
    assert_eq!((0..5).map(part).sum::<u64>(), ON_TIME + 1, "{ahead}");
    assert!(part(2) >= ON_TIME && ahead[2][0].is_string(), "{ahead}");
    let reference = "return document.querySelector('nav a[href=\"/reference\"]').innerText;";
    assert_eq!(browser.run(reference), "Reference");
    let late = row(browser, "payments.callbacks");
    let expected = [
        "payments.callbacks",
        "late",
        "1,240",
        "1,240",
        "5",
        "0",
        "0",
    ];
    assert_eq!(late, expected);
    let on_time = row(browser, "orders.close");
    let expected = ["orders.close", "on", "time", "0", "1,051", "0", "0", "0"];
    assert_eq!(on_time, expected);
    let letters = row(browser, LONG_QUEUE);
    assert_eq!(
        letters[letters.len() - 4..],
        ["0", "0", "0", &dead.to_string()]
    );
    let first = browser.run("return document.querySelector('.queues tbody th').innerText;");
    assert_eq!(first, "payments.callbacks");
    let letters = browser.run("return document.querySelectorAll('.dead tbody tr').length;");
    assert_eq!(letters, dead);
    browser.press("Tab");
    let outline = "return getComputedStyle(document.activeElement).outlineStyle;";
    assert_eq!(browser.run(outline), "solid", "the focus is seen");
}

/// The script takes the figures anew, and says when nobody answers.
fn demand_live(browser: &mut Browser, server: &Server) {
    let body = json!({"in": "1h", "target": {"url": "http://127.0.0.1:9/"}});
    set(server, "orders.close", "one more", &body);
    browser.run("document.activeElement.blur();");
    browser.run_until_done("take().then(done);");
    assert_eq!(figure(browser, "pending in all"), "2,293");
    assert_eq!(figure(browser, "to come"), "1,053");
    browser.run("window.fetch = () => Promise.reject(new Error());");
    browser.run_until_done("take().then(done);");
    let stale = browser.run("return document.getElementById('stale').innerText;");
    assert_eq!(
        stale,
        "The service does not answer: the figures below are old."
    );
}

/// The button on the first page revives a dead letter, by way of the browser's own headers.
fn demand_revival(browser: &mut Browser, server: &Server) {
    browser.click(".dead tbody tr:last-child button");
    // The browser may still be on its way when the click is over.
    wait_until("it says so", || {
        let said = browser.run("return document.querySelector('.said')?.innerText ?? '';");
        said.as_str().unwrap().starts_with("Revived: ")
    });
    wait_until("it is dead once more", || {
        counts(server, LONG_QUEUE)["dead"] == HOSTILE.len()
    });
}
