//! The command line of the service, and the files that it names.
//!
//! - What is read of a value, written again and read again is the same.
//! - A command line that is taken keeps the bounds of each option, has one place of the store, and shows the URL of a
//!   database to nobody who prints it.
//! - A file of keys that is taken has as many keys as lines. A secret that the first key seals opens with the file
//!   again, for the same purpose alone, and not once a bit of it is changed.
//! - A token is printable, and as it stands in its file.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;

use super::{Seen, seed};
use crate::api::Token;
use crate::config::{HostPort, Serve, is_node_name};
use crate::egress::EgressProxy;
use crate::guard::AllowedTarget;
use crate::listen::At;
use crate::resources::sealed::{Kept, Vault};
use crate::time::{format_duration, format_time, parse_duration, parse_time};

const OF_LINE: u8 = 0;
const OF_KEYS: u8 = 1;
const OF_TOKEN: u8 = 2;
const OF_TARGET: u8 = 3;
const OF_NODE: u8 = 4;
const OF_PROXY: u8 = 5;
const OF_PLACE: u8 = 6;
const OF_DURATION: u8 = 7;
const OF_TIME: u8 = 8;
const KINDS: u8 = 9;

pub(super) fn run(input: &[u8]) -> Seen {
    let Some((&kind, text)) = input.split_first() else {
        return Seen::Refused;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return Seen::Refused;
    };
    match kind % KINDS {
        OF_LINE => line(text),
        OF_KEYS => keys(text),
        OF_TOKEN => token(text),
        OF_TARGET => written_again::<AllowedTarget>(text),
        OF_NODE => written_again::<HostPort>(text),
        OF_PROXY => written_again::<EgressProxy>(text),
        OF_PLACE => written_again::<At>(text),
        OF_DURATION => {
            let Some(read) = parse_duration(text) else {
                return Seen::Refused;
            };
            let written = format_duration(read);
            assert_eq!(parse_duration(&written), Some(read), "{written}");
            Seen::Right
        }
        _ => {
            let Some(read) = parse_time(text) else {
                return Seen::Refused;
            };
            let written = format_time(read);
            assert_eq!(parse_time(&written), Some(read), "{written}");
            Seen::Right
        }
    }
}

fn written_again<T: FromStr + Display + PartialEq>(text: &str) -> Seen {
    let Ok(read) = text.parse::<T>() else {
        return Seen::Refused;
    };
    let written = read.to_string();
    let again = written.parse::<T>().ok();
    assert!(again.is_some_and(|again| again == read), "{written}");
    Seen::Right
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    serve: Serve,
}

/// The options of `serve`, one on each line.
fn line(text: &str) -> Seen {
    let words = std::iter::once("countwheel").chain(text.lines());
    let Ok(Line { serve }) = Line::try_parse_from(words) else {
        return Seen::Refused;
    };
    let day = Duration::from_secs(86_400);
    let bounds = [
        (1..=100_000).contains(&serve.max_in_flight),
        (1..=1_024).contains(&serve.log_segment_mib),
        (1..=10_000).contains(&serve.scrub_rate),
        serve.catch_up_per_second > 0 && serve.window > 1,
        serve.keep_done <= 3_650 * day && serve.scrub_interval <= 3_650 * day,
        serve.shutdown_grace <= day / 24 && serve.suspect_hold <= day / 24,
        serve.node.hand_over_grace <= day / 24,
        (2..=60).contains(&serve.node.lease_ttl.as_secs())
            && serve.node.lease_ttl <= Duration::from_secs(60),
        serve.listening.socket_mode <= 0o777,
        serve.allow_port.iter().all(|port| *port > 0),
        serve.node.node_name.as_deref().is_none_or(is_node_name),
        serve.data.is_some() != serve.store.is_some(),
        serve.listening.listen_tls.is_empty() == serve.listening.tls_key.is_none(),
    ];
    assert!(bounds.iter().all(|is_kept| *is_kept), "{bounds:?}");
    let shown = format!("{serve:?}");
    for url in [&serve.store, &serve.moved_to].into_iter().flatten() {
        // What is shorter may stand there by chance.
        let is_shown = url.as_str().len() > 24 && shown.contains(url.as_str());
        assert!(!is_shown, "the URL of the database is shown");
    }
    Seen::Right
}

fn keys(text: &str) -> Seen {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines = lines.count();
    let (Ok(vault), Ok(again)) = (Vault::of_text(text), Vault::of_text(text)) else {
        return Seen::Refused;
    };
    assert!((1..=16).contains(&lines), "{lines} keys");
    let sealed = vault.seal("endpoint shop", "whsec_secret");
    let sealed = sealed.expect("a vault with a key seals");
    let opened = again.open("endpoint shop", &sealed);
    assert_eq!(opened.as_deref(), Ok("whsec_secret"));
    assert!(again.open("endpoint shoq", &sealed).is_err());
    let Kept::Sealed { key, bytes } = &sealed else {
        panic!("a secret is kept as it is beside a key");
    };
    assert!(!bytes.contains("whsec"));
    // Another digit of its base64 is another bit.
    let at = text.len() % (bytes.len() / 2);
    let other = if bytes.as_bytes()[at] == b'A' {
        "B"
    } else {
        "A"
    };
    let mut changed = bytes.clone();
    changed.replace_range(at..=at, other);
    let changed = Kept::Sealed {
        key: key.clone(),
        bytes: changed,
    };
    assert!(again.open("endpoint shop", &changed).is_err());
    Seen::Right
}

fn token(text: &str) -> Seen {
    let Some(token) = Token::new(text.trim_end()) else {
        return Seen::Refused;
    };
    let text = text.trim_end();
    assert!(!text.is_empty() && !text.chars().any(|it| it.is_control() || it == ' '));
    assert!(token.is(text) && !token.is(&text[1..]) && !token.is(&format!("{text}x")));
    assert!(token.bits() as usize <= text.len() * 7);
    Seen::Right
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    let texts: [(u8, &str); 23] = [
        (
            OF_LINE,
            "--data\n/var/lib/countwheel\n--listen\n127.0.0.1:7070\n--keep-done\n1h 30m",
        ),
        (
            OF_LINE,
            "--store=postgres://me:s3cret-of-mine@db.example/timers\n--lease-ttl=5s\n--node-name=a-1\n--advertise=[::1]:7070",
        ),
        (
            OF_LINE,
            "--data=d\n--listen-tls=0.0.0.0:7443\n--tls-cert=c\n--tls-key=k\n--tls-client-ca=a\n--socket-mode=0660\n--listen=unix:/run/c.sock",
        ),
        (
            OF_LINE,
            "--data=d\n--allow-target=10.0.0.0/8:443\n--allow-port=9200\n--egress-proxy=http://p:3128\n--log-level=debug\n--log-format=json\n--trusted-proxy=10.0.0.1",
        ),
        (
            OF_LINE,
            "--data=d\n--max-in-flight=100000\n--window=2\n--log-segment-mib=1024\n--scrub-interval=off\n--shutdown-grace=1h\n--keep-answers=redacted",
        ),
        (OF_KEYS, KEY),
        (
            OF_KEYS,
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n\n  000102030405060708090A0B0C0D0E0F101112131415161718191a1b1c1d1e20 \n",
        ),
        (OF_TOKEN, "correct-horse-battery-staple\n"),
        (OF_TARGET, "*.Lan:8080"),
        (OF_TARGET, "[fd00::/8]:443"),
        (OF_TARGET, "[fd00::1]:443"),
        (OF_TARGET, "10.1.2.3"),
        (OF_TARGET, "::ffff:10.0.0.1"),
        (OF_NODE, "timers-2.example:7070"),
        (OF_NODE, "[2001:db8::1]:1"),
        (OF_PROXY, "HTTP://proxy.example:3128/"),
        (OF_PLACE, "localhost:7070"),
        (OF_PLACE, "unix:/run/countwheel.sock"),
        (OF_PLACE, "[fe80::1%3]:80"),
        (OF_DURATION, "1h 30m 0.5s"),
        (OF_DURATION, "P1DT2H"),
        (OF_TIME, "2026-03-01T12:00:00.123456+01:00"),
        (OF_TIME, "2199-12-31T23:59:59.999999Z"),
    ];
    texts.map(|(kind, text)| seed(kind, text)).to_vec()
}
