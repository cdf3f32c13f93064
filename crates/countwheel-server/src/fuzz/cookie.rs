//! Sessions of the pages.
//!
//! - A cookie counts only if it is, byte for byte, one that a key and a token of this service have made.
//! - None counts after its end, for longer than a session lasts, after somebody ended it, or with another key.
//! - Whose session it is stays as it was at the beginning.
//!
//! Random bytes would stop at the MAC. So an input is a recipe: whose session begins when, which bytes of the cookie
//! are changed, and when it is shown.

use std::sync::{Arc, LazyLock};

use axum::http::{HeaderMap, HeaderValue, header};
use countwheel_durable::{SettingValue, Settings, SettingsVersion};
use countwheel_time::{ManualClock, Timestamp};
use rustls::RootCertStore;

use super::Seen;
use crate::api::Token;
use crate::api::access::{Access, Identity, Proof};
use crate::dashboard::session::{self, SESSION_SECONDS, Sessions};
use crate::resources::sealed::Vault;
use crate::resources::token::{Scope, StoredToken, TokenId};
use crate::resources::{Catalogue, Resources};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const OTHER_KEY: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const NOON_SECONDS: u64 = 1_772_366_400;
/// What a session of an input has in place of what a login draws, so that the input does the same each time.
const NONCE: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";
const HEAD_BYTES: usize = 6;

/// A service with a configured token and a stored one.
struct Service {
    access: Access,
    known: Arc<Resources>,
    stored: Option<Identity>,
}

static SERVICE: LazyLock<Service> = LazyLock::new(|| {
    let id = TokenId::new("0123456789ab");
    let token = StoredToken {
        namespace: None,
        name: "operator".to_owned(),
        hash: "5f".repeat(32),
        before: None,
        certificate: None,
        scopes: vec![Scope::Admin],
        created: Timestamp::from_micros(0),
        expires: None,
    };
    let version = SettingsVersion(1);
    let setting = id.as_ref().and_then(TokenId::setting);
    let value = token.to_value();
    let settings = setting.map(|name| (name, SettingValue { version, value }));
    let vault = Vault::without_key(true);
    let roots = Arc::new(RootCertStore::empty());
    let catalogue = Catalogue::new(vault, roots, Arc::new(ManualClock::new()));
    catalogue.begin(&Settings::new(version, settings));
    let proof = Proof::Secret(token.hash.as_str().into());
    Service {
        access: Access::new(Token::new("s3cret")),
        known: catalogue.known(),
        stored: id.map(|id| Identity::Token(id, Arc::new(token), proof)),
    }
});

fn seconds(seconds: u64) -> Timestamp {
    Timestamp::from_micros(seconds.saturating_mul(1_000_000))
}

fn sessions(key: &str) -> Option<Sessions> {
    Vault::of_text(key).ok().as_ref().map(Sessions::of)
}

/// The names of who has a session.
fn who(identity: &Identity) -> Option<&str> {
    match identity {
        Identity::Configured => Some("-"),
        Identity::Token(id, ..) => Some(id.as_str()),
        _ => None,
    }
}

/// Two bytes say when a session begins, two when it is shown, one whose it is, one whether the rest is the header or
/// the changes of a cookie: pairs of a place and a byte.
pub(super) fn run(input: &[u8]) -> Seen {
    let Some((head, rest)) = input.split_first_chunk::<HEAD_BYTES>() else {
        return Seen::Refused;
    };
    let [begin_a, begin_b, show_a, show_b, whose, form] = *head;
    let span = |a, b| u64::from(u16::from_be_bytes([a, b]));
    let begins = NOON_SECONDS + span(begin_a, begin_b);
    let now = seconds(begins + span(show_a, show_b));
    let (Some(sessions), Some(others)) = (sessions(KEY), sessions(OTHER_KEY)) else {
        return Seen::Refused;
    };
    let service = &*SERVICE;
    let configured = Identity::Configured;
    let asks = match (whose & 1, &service.stored) {
        (1, Some(stored)) => stored,
        _ => &configured,
    };
    let made = sessions.begin_with(NONCE, &service.access, asks, seconds(begins));
    let made = made.expect("who has shown a token begins a session");
    let mut line = format!("a=b; countwheel_session={made}; c=d").into_bytes();
    match form & 1 {
        0 => line = rest.to_vec(),
        _ => {
            for change in rest.chunks_exact(2) {
                let at = usize::from(change[0]);
                match form & 6 {
                    0 if at < line.len() => line[at] = change[1],
                    2 if at <= line.len() => line.insert(at, change[1]),
                    4 if at < line.len() => drop(line.remove(at)),
                    _ => {
                        let rest = line.get_mut(at..).unwrap_or_default();
                        rest.make_ascii_uppercase();
                    }
                }
            }
        }
    }
    let Ok(value) = HeaderValue::from_bytes(&line) else {
        return Seen::Refused;
    };
    let mut headers = HeaderMap::new();
    headers.append(header::COOKIE, value);
    let (access, known) = (&service.access, &*service.known);
    let shown = || session::shown(&headers, false);
    let first = shown().next();
    let found = sessions.first(shown(), access, known, now);
    // The first session that counts, wherever it stands: else the first cookie of the name.
    let Some(cookie) = found.as_ref().map(|(cookie, _)| &**cookie).or(first) else {
        return Seen::Refused;
    };
    assert!(
        others.read(cookie, access, known, now).is_none(),
        "another key has made it"
    );
    let Some(found) = sessions.read(cookie, access, known, now) else {
        let is_over = now.as_micros() >= seconds(begins + SESSION_SECONDS).as_micros();
        assert!(cookie != made || is_over, "a good session is refused");
        return Seen::Refused;
    };
    let until = cookie.split('.').nth(1).and_then(|it| it.parse().ok());
    let until: u64 = until.expect("a session has an end");
    assert!(now < seconds(until), "{cookie} is over");
    let began = seconds(until.saturating_sub(SESSION_SECONDS));
    let nonce = cookie.split('.').nth(2).unwrap_or_default();
    let again = sessions.begin_with(nonce, access, &found, began);
    assert_eq!(again.as_deref(), Some(cookie), "nobody has made this one");
    assert_eq!(who(&found), cookie.split('.').next());
    let key = sessions.form_key(cookie);
    assert!(sessions.is_form_key(cookie, &key) && !others.is_form_key(cookie, &key));
    sessions.end(cookie, now);
    let is_there = |cookie: &str| sessions.read(cookie, access, known, now).is_some();
    assert!(!is_there(cookie), "somebody has ended it");
    for other in [cookie.to_uppercase(), cookie.replace('.', ".+")] {
        assert!(!is_there(&other), "{other} goes on");
    }
    Seen::Right
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for whose in [0, 1] {
        let head = [0, 0, 0, 9, whose, 1];
        seeds.push(head.to_vec());
        seeds.push([0x12, 0x34, 0xa8, 0xbf, whose, 1].to_vec());
        // A cookie as a header, alone and among others.
        let service = &*SERVICE;
        let asks = match (whose, &service.stored) {
            (1, Some(stored)) => stored,
            _ => &Identity::Configured,
        };
        let made = sessions(KEY).and_then(|sessions| {
            let now = seconds(NOON_SECONDS);
            sessions.begin_with(NONCE, &service.access, asks, now)
        });
        let made = made.unwrap_or_default();
        let head = [0, 0, 0, 9, whose, 0];
        let alone = format!("countwheel_session={made}");
        let among = format!("theme=dark;countwheel_session={made} ; _ga=GA1.2.3");
        for line in [alone, among] {
            seeds.push([&head[..], line.as_bytes()].concat());
        }
    }
    seeds
}
