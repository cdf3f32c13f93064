//! Sessions of people who look at the pages: a cookie says which token was shown, and until when that counts.
//!
//! The cookie is `<who>.<until>.<mac>`, and stored nowhere. The MAC (HMAC-SHA-256) covers the hash of the token too, so a token that is
//! rotated or revoked ends its sessions. Its key comes from the first key of the operator, which all nodes have; without one it
//! is drawn, and a session ends with the process.

use std::collections::BTreeMap;
use std::fmt;

use axum::http::{HeaderMap, header};
use countwheel_time::Timestamp;
use parking_lot::Mutex;
use ring::hmac;

use crate::api::access::{Access, Identity, Proof};
use crate::resources::Resources;
use crate::resources::sealed::{Vault, hex};
use crate::resources::token::TokenId;

/// For how long a session counts, in seconds.
pub(crate) const SESSION_SECONDS: u64 = 12 * 3_600;
/// How many sessions that somebody has ended are known.
const ENDED_MAX: usize = 4_096;
/// The name of the cookie.
const COOKIE: &str = "countwheel_session";
/// Who has shown the token that was given to the program.
const CONFIGURED: &str = "-";

/// Makes sessions, and tells which of them count.
pub(crate) struct Sessions {
    key: hmac::Key,
    /// The MACs of those that were ended, and until when they would count.
    ended: Mutex<BTreeMap<String, u64>>,
}

/// Without the key.
impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sessions(…)")
    }
}

impl Sessions {
    pub(crate) fn of(vault: &Vault) -> Self {
        let mut drawn = [0; 32];
        // Without randomness, and without a key of the operator, nobody has a session.
        let is_drawn = getrandom::fill(&mut drawn).is_ok();
        let key = vault.session_key().or(is_drawn.then_some(drawn));
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, &key.unwrap_or(drawn)),
            ended: Mutex::default(),
        }
    }

    fn mac(&self, what: &str, text: &str) -> hmac::Tag {
        hmac::sign(&self.key, format!("{what}\0{text}").as_bytes())
    }

    /// The value of the cookie for who has shown a token.
    pub(crate) fn begin(&self, access: &Access, asks: &Identity, now: Timestamp) -> Option<String> {
        let until = seconds(now) + SESSION_SECONDS;
        let who = match asks {
            Identity::Token(id, ..) => id.as_str(),
            Identity::Configured => CONFIGURED,
            Identity::Anyone | Identity::Nobody => return None,
        };
        let covered = covered(who, until, &access.mark_of(asks)?);
        let mac = self.mac("session", &covered);
        Some(format!("{who}.{until}.{}", hex(mac.as_ref())))
    }

    /// Who has begun a session that counts now.
    pub(crate) fn read(
        &self,
        cookie: &str,
        access: &Access,
        known: &Resources,
        now: Timestamp,
    ) -> Option<Identity> {
        let mut parts = cookie.split('.');
        let (who, until, mac) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        // Only what was written: one session has one text, and once ended none that counts.
        let written = until;
        let until = until
            .parse::<u64>()
            .ok()
            .filter(|until| seconds(now) < *until && until.to_string() == written)?;
        let asks = if who == CONFIGURED {
            access.has_configured().then_some(Identity::Configured)?
        } else {
            let (id, token) = known.valid_token(&TokenId::new(who)?, now)?;
            let proof = Proof::Secret(token.hash.as_str().into());
            Identity::Token(id.clone(), token.clone(), proof)
        };
        let covered = covered(who, until, &access.mark_of(&asks)?);
        let text = format!("session\0{covered}");
        hmac::verify(&self.key, text.as_bytes(), &bytes(mac)?).ok()?;
        (!self.ended.lock().contains_key(mac)).then_some(asks)
    }

    /// What a form has to say for whoever has this cookie.
    pub(crate) fn form_key(&self, cookie: &str) -> String {
        hex(self.mac("form", cookie).as_ref())
    }

    /// Whether a form says it.
    pub(crate) fn is_form_key(&self, cookie: &str, said: &str) -> bool {
        let text = format!("form\0{cookie}");
        bytes(said).is_some_and(|said| hmac::verify(&self.key, text.as_bytes(), &said).is_ok())
    }

    /// Ends a session before its time, on this node.
    pub(crate) fn end(&self, cookie: &str, now: Timestamp) {
        let mut parts = cookie.rsplit('.');
        let (Some(mac), Some(until)) = (parts.next(), parts.next()) else {
            return;
        };
        let Ok(until) = until.parse() else { return };
        let mut ended = self.ended.lock();
        ended.retain(|_, until| seconds(now) < *until);
        if ended.len() < ENDED_MAX {
            ended.insert(mac.to_owned(), until);
        }
    }
}

fn seconds(now: Timestamp) -> u64 {
    now.as_micros() / 1_000_000
}

fn covered(who: &str, until: u64, mark: &str) -> String {
    format!("{who}\0{until}\0{mark}")
}

/// The bytes of a MAC as [`hex`] writes them, and in no other way.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_hex = text.len() == 64 && text.bytes().all(is_digit);
    let pair = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    is_hex.then(|| (0..text.len()).step_by(2).map_while(pair).collect())
}

/// The session that a request shows.
pub(crate) fn shown(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies.filter_map(|line| line.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';'));
    pairs.find_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == COOKIE).then_some(value)
    })
}

/// The header that has a browser keep a session, or forget it.
pub(crate) fn cookie(session: Option<&str>, is_secure: bool) -> String {
    let (value, age) = session.map_or(("", 0), |session| (session, SESSION_SECONDS));
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Token;

    const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);

    fn later(seconds: u64) -> Timestamp {
        Timestamp::from_micros(NOON.as_micros() + seconds * 1_000_000)
    }

    #[test]
    fn a_session_counts_until_its_end_and_only_as_it_was_made() {
        let access = Access::new(Token::new("s3cret"));
        let other = Access::new(Token::new("s3cret2"));
        let sessions = Sessions::of(&Vault::without_key(true));
        let known = Resources::default();
        let session = sessions
            .begin(&access, &Identity::Configured, NOON)
            .unwrap();
        let counts = |session: &str, at| sessions.read(session, &access, &known, at).is_some();
        assert!(counts(&session, later(SESSION_SECONDS - 1)));
        assert!(!counts(&session, later(SESSION_SECONDS)));
        for at in 0..session.len() {
            let mut changed = session.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(!counts(&changed, NOON), "{changed}");
            assert!(!counts(&session[..at], NOON));
        }
        assert!(!counts(&format!("{session}.0"), NOON));
        // Another token, or another process.
        assert!(sessions.read(&session, &other, &known, NOON).is_none());
        let elsewhere = Sessions::of(&Vault::without_key(true));
        assert!(elsewhere.read(&session, &access, &known, NOON).is_none());
        sessions.end(&session, NOON);
        assert!(!counts(&session, NOON));
        let nobody = sessions.begin(&access, &Identity::Anyone, NOON);
        assert!(nobody.is_none());
    }

    /// The fuzzer's rule that a session has one text found this: in capitals, or with a sign before its end, the session
    /// counted as well, and went on after somebody had ended it.
    #[test]
    fn a_session_that_was_ended_goes_on_in_no_other_writing() {
        let access = Access::new(Token::new("s3cret"));
        let sessions = Sessions::of(&Vault::without_key(true));
        let known = Resources::default();
        let begun = sessions.begin(&access, &Identity::Configured, NOON);
        let session = begun.unwrap();
        let (who, rest) = session.split_once('.').unwrap();
        let (until, mac) = rest.split_once('.').unwrap();
        let writings = [
            format!("{who}.{until}.{}", mac.to_uppercase()),
            format!("{who}.+{until}.{mac}"),
            format!("{who}.0{until}.{mac}"),
        ];
        let counts = |session: &str| sessions.read(session, &access, &known, NOON).is_some();
        assert!(counts(&session));
        for writing in &writings {
            assert!(!counts(writing), "{writing}");
        }
        sessions.end(&session, NOON);
        assert!(!counts(&session));
    }

    #[test]
    fn what_a_form_says_goes_with_its_session() {
        let access = Access::new(Token::new("s3cret"));
        let sessions = Sessions::of(&Vault::without_key(true));
        let begin = |at| sessions.begin(&access, &Identity::Configured, at).unwrap();
        let (one, other) = (begin(NOON), begin(later(1)));
        let key = sessions.form_key(&one);
        assert!(sessions.is_form_key(&one, &key));
        assert!(!sessions.is_form_key(&other, &key));
        assert!(!sessions.is_form_key(&one, "") && !sessions.is_form_key(&one, &key[2..]));
    }

    #[test]
    fn ended_sessions_take_bounded_memory() {
        let sessions = Sessions::of(&Vault::without_key(true));
        for number in 0..10_000 {
            sessions.end(&format!("-.{}.{number:064x}", seconds(later(9))), NOON);
        }
        assert_eq!(sessions.ended.lock().len(), ENDED_MAX);
        sessions.end(&format!("-.{}.{:064x}", seconds(later(99)), 7), later(10));
        assert_eq!(sessions.ended.lock().len(), 1);
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(
            header::COOKIE,
            "a=b; countwheel_session_=x".parse().unwrap(),
        );
        assert_eq!(shown(&headers), None);
        headers.append(
            header::COOKIE,
            "c=d;countwheel_session=e.f.g; h=i".parse().unwrap(),
        );
        assert_eq!(shown(&headers), Some("e.f.g"));
        let set = cookie(Some("e.f.g"), true);
        for part in [
            "countwheel_session=e.f.g;",
            "HttpOnly",
            "SameSite=Strict",
            "Secure",
        ] {
            assert!(set.contains(part), "{set}");
        }
        assert!(cookie(None, false).contains("Max-Age=0;"));
    }
}
