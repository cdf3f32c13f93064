//! Sessions of people who look at the pages: a cookie says which token was shown, and until when that counts.
//!
//! The cookie is `<who>.<until>.<nonce>.<mac>`. The store has the nonces of the sessions that count, so that a session ends on
//! all nodes, and people see which of theirs count; where the store takes no change, one node knows them. The nonce is drawn at
//! each login, so no two logins are one session. The MAC (HMAC-SHA-256) covers the hash of the token too, so a token that is
//! rotated or revoked ends its sessions. Its key comes from the first key of the operator, which all nodes have; without one it
//! is drawn, and a session ends with the process. A cookie without a nonce, as versions before had it, is no session.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header};
use countwheel_durable::Precondition;
use countwheel_time::Timestamp;
use parking_lot::Mutex;
use ring::hmac;

use crate::api::access::{Access, Identity, Proof};
use crate::api::problem::{Code, Problem};
use crate::api::request::Condition;
use crate::api::{App, stored};
use crate::callers::Peer;
use crate::resources::Resources;
use crate::resources::sealed::{Vault, hex};
use crate::resources::sessions::{StoredSession, StoredSessions};
use crate::resources::token::TokenId;

/// For how long a session counts, in seconds.
pub(crate) const SESSION_SECONDS: u64 = 12 * 3_600;
/// How many sessions of a token are known that somebody has ended. Whoever ends more ends all of that token.
const ENDED_MAX: usize = 256;
/// How many sessions this node knows that are not stored. One more ends one of them.
const HERE_MAX: usize = 1_024;
/// A session that was begun so many seconds ago may not be known to all nodes.
const NEW_SECONDS: u64 = 5;
/// How long a login and a logout wait for the store.
const STORED_WITHIN: Duration = Duration::from_secs(5);
/// How long after a try there is another one.
const TRIED_EVERY: Duration = Duration::from_millis(200);
/// How far a clock may be set back before sessions from before do not count.
const SET_BACK_SECONDS: u64 = 60;
/// How many random bytes a session has.
const NONCE_BYTES: usize = 16;
/// How many cookies of the name of ours are tried. A browser sends one of each path and domain, the longest path first.
const TRIED_MAX: usize = 4;
/// The name of the cookie where there is no TLS.
const COOKIE: &str = "countwheel_session";
/// Its name over TLS. A browser takes such a cookie from the host itself, over TLS, and for all paths: neither another host of
/// the domain nor a connection without TLS puts one there.
const COOKIE_OF_HOST: &str = "__Host-countwheel_session";
/// Who has shown the token that was given to the program.
const CONFIGURED: &str = "-";

/// Makes sessions, and tells which of them count.
pub(crate) struct Sessions {
    key: hmac::Key,
    /// Those that were ended here, by who had begun them.
    ended: Mutex<BTreeMap<String, Ended>>,
    /// Those that were begun here and are not stored, by nonce.
    here: Mutex<BTreeMap<String, Unstored>>,
}

struct Unstored {
    who: String,
    until: u64,
}

/// Sessions of one token that were ended before their time.
#[derive(Default)]
struct Ended {
    /// Their MACs, and until when they would count.
    macs: BTreeMap<String, u64>,
    /// All that would end until then are ended.
    all_until: u64,
}

impl Ended {
    fn has(&self, mac: &str, until: u64) -> bool {
        until <= self.all_until || self.macs.contains_key(mac)
    }
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
            here: Mutex::default(),
        }
    }

    fn mac(&self, what: &str, text: &str) -> hmac::Tag {
        hmac::sign(&self.key, format!("{what}\0{text}").as_bytes())
    }

    /// The value of the cookie for who has shown a token, another one at each call. `None` for who has shown none, and where
    /// the system gives no randomness. This node alone knows the session until it is [stored](Self::store).
    pub(crate) fn begin(&self, access: &Access, asks: &Identity, now: Timestamp) -> Option<String> {
        let mut nonce = [0; NONCE_BYTES];
        let drawn = getrandom::fill(&mut nonce);
        drawn
            .inspect_err(|error| tracing::error!(%error, "a session has no randomness"))
            .ok()?;
        self.begin_with(&hex(&nonce), access, asks, now)
    }

    /// The same with a nonce that somebody else has drawn.
    pub(crate) fn begin_with(
        &self,
        nonce: &str,
        access: &Access,
        asks: &Identity,
        now: Timestamp,
    ) -> Option<String> {
        let mut until = seconds(now) + SESSION_SECONDS;
        // The secret from before a rotation opens nothing for longer than it counts.
        if let Identity::Token(_, token, Proof::Secret(hash)) = asks
            && **hash != *token.hash
        {
            let before = token.before.as_ref();
            until = until.min(before.map_or(0, |before| seconds(before.until)));
        }
        let who = who(asks)?;
        let covered = covered(who, until, nonce, &access.mark_of(asks)?);
        let mut here = self.here.lock();
        here.retain(|_, it| seconds(now) < it.until);
        if here.len() >= HERE_MAX {
            here.pop_first();
        }
        let unstored = Unstored {
            who: who.to_owned(),
            until,
        };
        here.insert(nonce.to_owned(), unstored);
        let mac = self.mac("session", &covered);
        Some(format!("{who}.{until}.{nonce}.{}", hex(mac.as_ref())))
    }

    /// Who has begun a session that counts now.
    pub(crate) fn read(
        &self,
        cookie: &str,
        access: &Access,
        known: &Resources,
        now: Timestamp,
    ) -> Option<Identity> {
        let (parts, until, asks) = self.verified(cookie, access, known, now)?;
        let is_stored = self.is_stored(&parts, until, known);
        let counts = is_stored || self.here.lock().contains_key(parts.nonce);
        let ended = self.ended.lock();
        let ended = ended.get(parts.who);
        let is_ended = ended.is_some_and(|ended| ended.has(parts.mac, until));
        (counts && !is_ended).then_some(asks)
    }

    /// Whether another node may have begun this session a moment ago: only the store could tell.
    pub(crate) fn may_be_new(
        &self,
        cookie: &str,
        access: &Access,
        known: &Resources,
        now: Timestamp,
    ) -> bool {
        let verified = self.verified(cookie, access, known, now);
        verified.is_some_and(|(parts, until, _)| {
            let begun = until.saturating_sub(SESSION_SECONDS);
            let is_new = seconds(now).abs_diff(begun) <= NEW_SECONDS;
            is_new && !self.is_stored(&parts, until, known)
        })
    }

    fn is_stored(&self, parts: &Parts<'_>, until: u64, known: &Resources) -> bool {
        let stored = known.sessions(parts.who);
        let stored = stored.and_then(|stored| stored.get(parts.nonce));
        stored.is_some_and(|stored| stored.until == until)
    }

    /// A cookie that was made with the key and is not over, with the second of its end and who has begun it.
    fn verified<'c>(
        &self,
        cookie: &'c str,
        access: &Access,
        known: &Resources,
        now: Timestamp,
    ) -> Option<(Parts<'c>, u64, Identity)> {
        let parts = Parts::of(cookie)?;
        let Parts {
            who,
            until,
            nonce,
            mac,
        } = parts;
        // Only what was written: one session has one text, and once ended none that counts.
        let written = until;
        let until = until
            .parse::<u64>()
            .ok()
            .filter(|until| seconds(now) < *until && until.to_string() == written)
            .filter(|until| *until <= seconds(now) + SESSION_SECONDS + SET_BACK_SECONDS)?;
        let asks = if who == CONFIGURED {
            access.has_configured().then_some(Identity::Configured)?
        } else {
            let (id, token) = known.valid_token(&TokenId::new(who)?, now)?;
            let proof = Proof::Secret(token.hash.as_str().into());
            Identity::Token(id.clone(), token.clone(), proof)
        };
        let covered = covered(who, until, nonce, &access.mark_of(&asks)?);
        let text = format!("session\0{covered}");
        hmac::verify(&self.key, text.as_bytes(), &bytes(mac)?).ok()?;
        Some((parts, until, asks))
    }

    /// Tells all nodes of a session that was begun here, and the next start of this one. The others know it as soon as it is
    /// shown there.
    ///
    /// # Errors
    /// Those of a change of a setting: then this node alone knows it.
    pub(crate) async fn store(
        &self,
        app: &App,
        cookie: &str,
        from: Option<String>,
        now: Timestamp,
    ) -> Result<(), Problem> {
        let parts = Parts::of(cookie).and_then(|it| Some((it.until.parse().ok()?, it)));
        let Some((until, Parts { who, nonce, .. })) = parts else {
            return Ok(());
        };
        let session = StoredSession {
            begun: now.as_micros(),
            until,
            from,
        };
        let now = seconds(now);
        let make = |known: &Resources| {
            let before = known.sessions(who).cloned().unwrap_or_default();
            Ok(before.with(nonce, session.clone(), now).to_value())
        };
        change(app, who, make).await?;
        self.here.lock().remove(nonce);
        // A login adds one such setting at the most, so there are no more of them than tokens with sessions of late.
        let known = app.catalogue().known();
        if let Some(over) = known.over(now) {
            let make = |known: &Resources| {
                let before = known.sessions(over).cloned().unwrap_or_default();
                Ok(before.still(now).to_value())
            };
            if let Err(error) = change(app, over, make).await {
                tracing::debug!(?error, "what is over of sessions stays for now");
            }
        }
        Ok(())
    }

    /// Ends a session of `who` on all nodes; `None` for all of them.
    ///
    /// # Errors
    /// Those of a change of a setting.
    pub(crate) async fn remove(
        &self,
        app: &App,
        who: &str,
        nonce: Option<&str>,
        now: Timestamp,
    ) -> Result<(), Problem> {
        self.here
            .lock()
            .retain(|it, unstored| unstored.who != who || nonce.is_some_and(|nonce| nonce != it));
        let known = app.look().await?;
        let is_stored = match nonce {
            Some(nonce) => known
                .sessions(who)
                .is_some_and(|it| it.get(nonce).is_some()),
            None => known.sessions(who).is_some(),
        };
        if !is_stored {
            return Ok(());
        }
        let make = |known: &Resources| {
            let before = known.sessions(who).cloned().unwrap_or_default();
            Ok(before.without(nonce, seconds(now)).to_value())
        };
        change(app, who, make).await
    }

    /// The first of these cookies that is a session and counts now, with who has begun it. A cookie of the same name that is
    /// none, as another service on the host may have left it, hides no session behind it.
    pub(crate) fn first<'a>(
        &self,
        cookies: impl Iterator<Item = &'a str>,
        access: &Access,
        known: &Resources,
        now: Timestamp,
    ) -> Option<(String, Identity)> {
        cookies.take(TRIED_MAX).find_map(|cookie| {
            let asks = self.read(cookie, access, known, now)?;
            Some((cookie.to_owned(), asks))
        })
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
        let Some(Parts {
            who, until, mac, ..
        }) = Parts::of(cookie)
        else {
            return;
        };
        let Ok(until) = until.parse() else { return };
        let now = seconds(now);
        let mut all = self.ended.lock();
        all.retain(|_, ended| {
            ended.macs.retain(|_, until| now < *until);
            !ended.macs.is_empty() || now < ended.all_until
        });
        let ended = all.entry(who.to_owned()).or_default();
        if ended.macs.len() < ENDED_MAX {
            ended.macs.insert(mac.to_owned(), until);
            return;
        }
        tracing::warn!(
            token = who,
            "all sessions of a token are ended: more were ended than are known one by one"
        );
        *ended = Ended {
            macs: BTreeMap::new(),
            all_until: now + SESSION_SECONDS,
        };
    }
}

/// Changes what is stored of the sessions of `who`.
async fn change(
    app: &App,
    who: &str,
    make: impl Fn(&Resources) -> Result<Option<Vec<u8>>, Problem>,
) -> Result<(), Problem> {
    let name = StoredSessions::setting(who);
    let name = name.ok_or_else(|| Problem::new(Code::Internal, "no name of sessions"))?;
    let version = |known: &Resources| known.version_of_sessions(who);
    let condition = Condition::Engine(Precondition::None);
    let trying = async {
        loop {
            let change = stored::change(app, &name, condition, version, "session", &make);
            match change.await {
                // The owner may have died. To make the same change twice does no harm.
                Err(problem) if problem.parts().0 == StatusCode::SERVICE_UNAVAILABLE => {
                    tokio::time::sleep(TRIED_EVERY).await;
                }
                changed => return changed.map(drop),
            }
        }
    };
    let late = |_| Problem::new(Code::Unavailable, "the store takes no change");
    let tried = tokio::time::timeout(STORED_WITHIN, trying).await;
    tried.map_err(late)?
}

/// The name of who has shown a token.
pub(crate) fn who(asks: &Identity) -> Option<&str> {
    match asks {
        Identity::Token(id, ..) => Some(id.as_str()),
        Identity::Configured => Some(CONFIGURED),
        Identity::Anyone | Identity::Nobody => None,
    }
}

/// The nonce of a session, which is its name.
pub(crate) fn nonce(cookie: &str) -> Option<&str> {
    Parts::of(cookie).map(|parts| parts.nonce)
}

/// A cookie, taken apart.
#[derive(Clone, Copy)]
struct Parts<'a> {
    who: &'a str,
    until: &'a str,
    nonce: &'a str,
    mac: &'a str,
}

impl<'a> Parts<'a> {
    /// `None` for a text that has another form.
    fn of(cookie: &'a str) -> Option<Self> {
        let mut parts = cookie.split('.');
        let found = Self {
            who: parts.next()?,
            until: parts.next()?,
            nonce: parts.next().filter(|it| is_hex(it, NONCE_BYTES))?,
            mac: parts.next()?,
        };
        parts.next().is_none().then_some(found)
    }
}

fn seconds(now: Timestamp) -> u64 {
    now.as_micros() / 1_000_000
}

fn covered(who: &str, until: u64, nonce: &str, mark: &str) -> String {
    format!("{who}\0{until}\0{nonce}\0{mark}")
}

/// Whether it is so many bytes as [`hex`] writes them.
fn is_hex(text: &str, bytes: usize) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 2 * bytes && text.bytes().all(is_digit)
}

/// The bytes of a MAC as [`hex`] writes them, and in no other way.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let is_hex = is_hex(text, 32);
    let pair = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    is_hex.then(|| (0..text.len()).step_by(2).map_while(pair).collect())
}

/// Whether a browser speaks TLS, to the service itself or to a proxy that says so.
pub(crate) fn is_secure(headers: &HeaderMap, peer: Option<&Peer>) -> bool {
    let forwarded = headers.get("x-forwarded-proto");
    peer.is_some_and(|peer| peer.is_tls)
        || forwarded.is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"https"))
}

/// The cookies that a request shows as sessions, in order. Over TLS, a cookie that could have come without TLS is none.
pub(crate) fn shown(headers: &HeaderMap, is_secure: bool) -> impl Iterator<Item = &str> {
    let is_name = move |name: &[u8]| {
        name == COOKIE_OF_HOST.as_bytes() || !is_secure && name == COOKIE.as_bytes()
    };
    let cookies = headers.get_all(header::COOKIE).iter();
    // What others have there may be no text: a browser sends the cookies of all ports of a host.
    let pairs = cookies.flat_map(|line| line.as_bytes().split(|&byte| byte == b';'));
    pairs.filter_map(move |pair| {
        let pair = pair.trim_ascii();
        let end = pair.iter().position(|&byte| byte == b'=')?;
        let (name, value) = (&pair[..end], &pair[end + 1..]);
        str::from_utf8(value).ok().filter(|_| is_name(name))
    })
}

/// The header that has a browser keep a session, or forget it.
pub(crate) fn cookie(session: Option<&str>, is_secure: bool) -> String {
    let (value, age) = session.map_or(("", 0), |session| (session, SESSION_SECONDS));
    let (name, secure) = match is_secure {
        true => (COOKIE_OF_HOST, "; Secure"),
        false => (COOKIE, ""),
    };
    format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::api::Token;
    use crate::resources::token::{Before, Drawn, Scope, StoredToken};

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
        let Parts {
            who,
            until,
            nonce,
            mac,
        } = Parts::of(&session).unwrap();
        let writings = [
            format!("{who}.{until}.{nonce}.{}", mac.to_uppercase()),
            format!("{who}.{until}.{}.{mac}", nonce.to_uppercase()),
            format!("{who}.+{until}.{nonce}.{mac}"),
            format!("{who}.0{until}.{nonce}.{mac}"),
        ];
        let counts = |session: &str| sessions.read(session, &access, &known, NOON).is_some();
        assert!(counts(&session));
        for writing in &writings {
            assert!(!counts(writing), "{writing}");
        }
        sessions.end(&session, NOON);
        assert!(!counts(&session));
    }

    /// Two logins with one token within a second were one session, and the logout of one ended both.
    #[test]
    fn each_login_begins_a_session_of_its_own() {
        let access = Access::new(Token::new("s3cret"));
        let sessions = Sessions::of(&Vault::without_key(true));
        let known = Resources::default();
        let begin = || {
            sessions
                .begin(&access, &Identity::Configured, NOON)
                .unwrap()
        };
        let (one, other) = (begin(), begin());
        assert_ne!(one, other);
        let counts = |session: &str| sessions.read(session, &access, &known, NOON).is_some();
        assert!(counts(&one) && counts(&other));
        assert!(!sessions.is_form_key(&one, &sessions.form_key(&other)));
        sessions.end(&one, NOON);
        assert!(!counts(&one) && counts(&other));
        // Nobody makes one of two.
        let (one, other) = (begin(), begin());
        let [of_one, of_other] = [&one, &other].map(|it| Parts::of(it).unwrap());
        let mixed = one.replace(of_one.nonce, of_other.nonce);
        assert!(mixed != one && !counts(&mixed));
    }

    /// Versions before had no nonce. Whoever has such a cookie logs in once more.
    #[test]
    fn a_cookie_without_a_nonce_is_no_session() {
        let access = Access::new(Token::new("s3cret"));
        let sessions = Sessions::of(&Vault::without_key(true));
        let until = seconds(later(60));
        let mac = sessions.mac("session", &format!("{CONFIGURED}\0{until}\0s3cret"));
        let known = Resources::default();
        let before = format!("{CONFIGURED}.{until}.{}", hex(mac.as_ref()));
        assert!(sessions.read(&before, &access, &known, NOON).is_none());
    }

    /// The first cookie of the name hid all others: another service on the host locked people out.
    #[test]
    fn a_session_is_found_behind_a_cookie_of_its_name_that_is_none() {
        let access = Access::new(Token::new("s3cret"));
        let sessions = Sessions::of(&Vault::without_key(true));
        let known = Resources::default();
        let begun = sessions.begin(&access, &Identity::Configured, NOON);
        let session = begun.unwrap();
        let found = |line: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, line.parse().unwrap());
            let found = sessions.first(shown(&headers, false), &access, &known, NOON);
            found.map(|(session, _)| session)
        };
        let none = "countwheel_session=-.9.0.0";
        for line in [
            format!("countwheel_session={session}"),
            format!("{none}; countwheel_session={session}"),
            format!("countwheel_session={session}; {none}"),
        ] {
            assert_eq!(found(&line).as_deref(), Some(&*session), "{line}");
        }
        assert_eq!(found(none), None);
        let many = [none; TRIED_MAX].join(";");
        assert_eq!(found(&format!("{many};countwheel_session={session}")), None);
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
            let until = seconds(later(9));
            sessions.end(&format!("-.{until}.{number:032x}.{number:064x}"), NOON);
        }
        let known = |sessions: &Sessions| sessions.ended.lock().get("-").map(|it| it.macs.len());
        assert!(known(&sessions).is_some_and(|known| known <= ENDED_MAX));
        let after = later(SESSION_SECONDS + 1);
        let until = seconds(after) + 9;
        sessions.end(&format!("x.{until}.{:032x}.{:064x}", 7, 7), after);
        assert_eq!(known(&sessions), None);
    }

    /// Four thousand of them, and no later one had an effect.
    #[test]
    fn whoever_ends_more_sessions_than_are_known_ends_all_of_the_token_and_of_no_other() {
        let drawn = Drawn::draw().unwrap();
        let (known, id) = (
            known_with(&drawn, None),
            TokenId::new("0123456789ab").unwrap(),
        );
        let access = Access::new(Token::new("s3cret"));
        let sessions = Sessions::of(&Vault::without_key(true));
        let (_, token) = known.valid_token(&id, NOON).unwrap();
        let asks = Identity::Token(id, token.clone(), Proof::Secret(token.hash.as_str().into()));
        let own = sessions.begin(&access, &asks, NOON).unwrap();
        let other = sessions
            .begin(&access, &Identity::Configured, NOON)
            .unwrap();
        for number in 0..=ENDED_MAX as u64 {
            let at = later(number);
            let session = sessions.begin(&access, &asks, at).unwrap();
            sessions.end(&session, at);
        }
        let last = later(ENDED_MAX as u64);
        let counts = |session: &str, at| sessions.read(session, &access, &known, at).is_some();
        assert!(!counts(&own, last) && counts(&other, last));
        // Whoever logs in again has a session.
        let next = later(ENDED_MAX as u64 + 1);
        let session = sessions.begin(&access, &asks, next).unwrap();
        assert!(counts(&session, next));
    }

    #[test]
    fn a_secret_from_before_a_rotation_gives_no_session_beyond_its_end() {
        let (old, new) = (Drawn::draw().unwrap(), Drawn::draw().unwrap());
        let before = Before {
            hash: old.hash(),
            until: later(60),
        };
        let (known, id) = (
            known_with(&new, Some(before)),
            TokenId::new("0123456789ab").unwrap(),
        );
        let access = Access::new(None);
        let sessions = Sessions::of(&Vault::without_key(true));
        let (_, token) = known.valid_token(&id, NOON).unwrap();
        let begin = |hash: String| {
            let asks = Identity::Token(id.clone(), token.clone(), Proof::Secret(hash.into()));
            sessions.begin(&access, &asks, NOON).unwrap()
        };
        let (by_old, by_new) = (begin(old.hash()), begin(new.hash()));
        let counts = |session: &str, at| sessions.read(session, &access, &known, at).is_some();
        assert!(counts(&by_old, later(59)) && counts(&by_new, later(59)));
        assert!(!counts(&by_old, later(60)) && counts(&by_new, later(60)));
    }

    /// A clock that was ahead at a login must not make a session of days.
    #[test]
    fn a_session_from_the_future_does_not_count() {
        let access = Access::new(Token::new("s3cret"));
        let sessions = Sessions::of(&Vault::without_key(true));
        let known = Resources::default();
        let begun = sessions.begin(&access, &Identity::Configured, later(86_400));
        let session = begun.unwrap();
        assert!(sessions.read(&session, &access, &known, NOON).is_none());
        let slightly = sessions.begin(&access, &Identity::Configured, later(30));
        assert!(
            sessions
                .read(&slightly.unwrap(), &access, &known, NOON)
                .is_some()
        );
    }

    #[test]
    fn cookies_of_others_that_are_no_text_hide_no_session() {
        let mut headers = HeaderMap::new();
        let line = b"lang=Z\xc3\xbcrich; countwheel_session=a.b.c; x=y";
        headers.insert(header::COOKIE, HeaderValue::from_bytes(line).unwrap());
        assert_eq!(shown(&headers, false).collect::<Vec<_>>(), ["a.b.c"]);
    }

    fn known_with(drawn: &Drawn, before: Option<Before>) -> Resources {
        let stored = StoredToken {
            namespace: None,
            name: "ops".to_owned(),
            hash: drawn.hash(),
            before,
            certificate: None,
            scopes: vec![Scope::Read],
            created: NOON,
            expires: None,
        };
        Resources::with_token(TokenId::new("0123456789ab").unwrap(), stored)
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(
            header::COOKIE,
            "a=b; countwheel_session_=x".parse().unwrap(),
        );
        assert_eq!(shown(&headers, false).next(), None);
        headers.append(
            header::COOKIE,
            "c=d;countwheel_session=e.f.g; h=i".parse().unwrap(),
        );
        assert_eq!(shown(&headers, false).collect::<Vec<_>>(), ["e.f.g"]);
        let set = cookie(Some("e.f.g"), true);
        for part in [
            "__Host-countwheel_session=e.f.g;",
            "Path=/;",
            "HttpOnly",
            "SameSite=Strict",
            "Secure",
        ] {
            assert!(set.contains(part), "{set}");
        }
        assert!(!set.contains("Domain"), "{set}");
        assert!(cookie(None, false).contains("Max-Age=0;"));
        assert!(cookie(Some("e.f.g"), false).starts_with("countwheel_session=e.f.g;"));
    }

    /// A page that was loaded without TLS, or another host of the domain, has a browser send a cookie of the plain name over TLS too.
    #[test]
    fn over_tls_a_session_has_the_name_that_only_its_host_gives() {
        let mut headers = HeaderMap::new();
        let line = "countwheel_session=a.b.c; __Host-countwheel_session=e.f.g; __Host-x=y";
        headers.insert(header::COOKIE, line.parse().unwrap());
        assert_eq!(shown(&headers, true).collect::<Vec<_>>(), ["e.f.g"]);
        assert_eq!(
            shown(&headers, false).collect::<Vec<_>>(),
            ["a.b.c", "e.f.g"]
        );
        let peer = |is_tls| Peer {
            source: std::net::IpAddr::from([127, 0, 0, 1]).into(),
            certificate: None,
            is_tls,
            counted: std::sync::Arc::default(),
        };
        let mut proxied = HeaderMap::new();
        proxied.insert("x-forwarded-proto", HeaderValue::from_static("HTTPS"));
        for (headers, is_tls, secure) in [
            (&headers, false, false),
            (&headers, true, true),
            (&proxied, false, true),
        ] {
            assert_eq!(is_secure(headers, Some(&peer(is_tls))), secure);
        }
    }
}
