//! Tokens as they are stored: hashed, with scopes, made and revoked while the service runs.
//!
//! A token is `cwt_<id>_<secret>`. The id names the setting `token/<id>`, and the secret has 256 random bits. So one round of
//! SHA-256 is enough: a slow hash protects secrets that can be guessed, and would cost each request what it costs a thief.

use std::fmt;

use countwheel_durable::{Namespace, SettingName};
use countwheel_time::Timestamp;
use ring::digest;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use super::sealed::hex;
use crate::time::{format_time, parse_time};

/// What the settings of tokens begin with.
pub(super) const TOKEN: &str = "token/";
/// What a token begins with: scanners of source code find it.
const PREFIX: &str = "cwt_";
/// How many bytes an id has, and a secret.
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;
/// The version of the stored form.
const FORMAT: u32 = 1;
/// The same of a token of a namespace: whoever cannot read that must not take it for one of everything.
const FORMAT_WITHIN: u32 = 2;
/// How many tokens there may be.
pub(crate) const TOKENS_MAX: usize = 1_000;
/// How many of them a namespace may have.
pub(crate) const TOKENS_OF_NAMESPACE_MAX: usize = 100;
/// How long the name of a token may be.
pub(crate) const NAME_MAX_BYTES: usize = 128;

/// What a token opens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scope {
    /// To read timers, lists, figures, events and settings.
    Read,
    /// To change timers.
    Write,
    /// To lease timers, and to say what came of them.
    Deliver,
    /// To read the metrics.
    Metrics,
    /// All of that, and to change queues, endpoints, tokens and the cluster.
    Admin,
}

impl Scope {
    /// All of them as words, in order.
    pub(crate) const WORDS: [&'static str; 5] = ["read", "write", "deliver", "metrics", "admin"];

    pub(crate) fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        let all = [
            Self::Read,
            Self::Write,
            Self::Deliver,
            Self::Metrics,
            Self::Admin,
        ];
        all.into_iter().find(|scope| scope.word() == word)
    }
}

/// The id of a token: lowercase hex digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TokenId(String);

impl TokenId {
    pub(crate) fn new(text: &str) -> Option<Self> {
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (text.len() == 2 * ID_BYTES && text.bytes().all(is_hex)).then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The setting of the token.
    pub(crate) fn setting(&self) -> Option<SettingName> {
        SettingName::new(format!("{TOKEN}{}", self.0)).ok()
    }
}

/// A secret that was just drawn. It is shown once, and stored nowhere.
pub(crate) struct Drawn(String);

impl Drawn {
    /// # Errors
    /// The system gives no randomness.
    pub(crate) fn draw() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; SECRET_BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Self(hex(&bytes)))
    }

    pub(crate) fn hash(&self) -> String {
        hash(&self.0)
    }

    /// The whole token.
    pub(crate) fn token(&self, id: &TokenId) -> String {
        format!("{PREFIX}{}_{}", id.0, self.0)
    }
}

impl fmt::Debug for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Drawn(…)")
    }
}

/// An id that was just drawn.
///
/// # Errors
/// The system gives no randomness.
pub(crate) fn draw_id() -> Result<TokenId, getrandom::Error> {
    let mut bytes = [0; ID_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(TokenId(hex(&bytes)))
}

/// What was shown as a token.
pub(crate) struct Shown<'a> {
    pub(crate) id: TokenId,
    secret: &'a str,
}

impl<'a> Shown<'a> {
    /// The hash of its secret.
    pub(crate) fn hash(&self) -> String {
        hash(self.secret)
    }

    /// `None` if it has not the form of a token.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let id = TokenId::new(id)?;
        (secret.len() == 2 * SECRET_BYTES).then_some(Self { id, secret })
    }
}

fn hash(secret: &str) -> String {
    hex(digest::digest(&digest::SHA256, secret.as_bytes()).as_ref())
}

/// A secret that was rotated away, and counts for a while still.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Before {
    pub(crate) hash: String,
    pub(crate) until: Timestamp,
}

/// A token as it is stored: not the token itself.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoredToken {
    pub(crate) name: String,
    /// Of the secret; one that nobody has where a certificate stands for it.
    pub(crate) hash: String,
    pub(crate) before: Option<Before>,
    /// A name of the certificate that stands for the secret, such as `dns:worker.example`.
    pub(crate) certificate: Option<String>,
    /// What it opens all else in; `None`: of the whole service.
    pub(crate) namespace: Option<Namespace>,
    /// In order, each once.
    pub(crate) scopes: Vec<Scope>,
    pub(crate) created: Timestamp,
    pub(crate) expires: Option<Timestamp>,
}

/// Without the hashes.
impl fmt::Debug for StoredToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredToken")
            .field("name", &self.name)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}

/// The stored form.
#[derive(Serialize, Deserialize)]
struct Form {
    format: u32,
    name: String,
    hash: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<BeforeForm>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    scopes: Vec<Scope>,
    created: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct BeforeForm {
    hash: String,
    until: String,
}

impl StoredToken {
    /// What is stored; `None` if this version cannot read it. Such a token opens nothing.
    pub(crate) fn of_value(value: &[u8]) -> Option<Self> {
        let form: Form = serde_json::from_slice(value).ok()?;
        let namespace = match (form.format, form.namespace) {
            (FORMAT, None) => None,
            (FORMAT_WITHIN, Some(namespace)) => Some(Namespace::new(namespace).ok()?),
            _ => return None,
        };
        let before = form.before.map(|before| {
            Some(Before {
                until: parse_time(&before.until)?,
                hash: before.hash,
            })
        });
        Some(Self {
            name: form.name,
            hash: form.hash,
            before: match before {
                None => None,
                Some(before) => Some(before?),
            },
            certificate: form.certificate,
            namespace,
            scopes: form.scopes,
            created: parse_time(&form.created)?,
            expires: match form.expires {
                None => None,
                Some(at) => Some(parse_time(&at)?),
            },
        })
    }

    pub(crate) fn to_value(&self) -> Vec<u8> {
        let form = Form {
            format: match self.namespace {
                None => FORMAT,
                Some(_) => FORMAT_WITHIN,
            },
            name: self.name.clone(),
            hash: self.hash.clone(),
            before: self.before.as_ref().map(|before| BeforeForm {
                hash: before.hash.clone(),
                until: format_time(before.until),
            }),
            certificate: self.certificate.clone(),
            namespace: self.namespace.as_ref().map(Namespace::to_string),
            scopes: self.scopes.clone(),
            created: format_time(self.created),
            expires: self.expires.map(format_time),
        };
        // Texts and numbers can always be written.
        serde_json::to_vec(&form).unwrap_or_default()
    }

    /// Whether what was shown is this token, and counts at that time. Takes as long for any other secret.
    #[cfg(test)]
    pub(crate) fn is(&self, shown: &Shown<'_>, now: Timestamp) -> bool {
        self.has_secret(&shown.hash(), now)
    }

    /// Whether the secret with this hash counts at that time. Takes as long for any other.
    pub(crate) fn has_secret(&self, hash: &str, now: Timestamp) -> bool {
        let same = |known: &str| bool::from(known.as_bytes().ct_eq(hash.as_bytes()));
        let is_new = same(&self.hash);
        let is_old = self
            .before
            .as_ref()
            .is_some_and(|before| same(&before.hash) & (now < before.until));
        (is_new | is_old) && self.certificate.is_none() && self.counts(now)
    }

    /// Whether it has not expired.
    pub(crate) fn counts(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }

    /// Whether it opens what wants this scope.
    pub(crate) fn has(&self, wanted: Scope) -> bool {
        let opens = |scope: &Scope| *scope == wanted || *scope == Scope::Admin;
        self.scopes.iter().any(opens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);

    fn later(seconds: u64) -> Timestamp {
        Timestamp::from_micros(NOON.as_micros() + seconds * 1_000_000)
    }

    fn token(drawn: &Drawn) -> StoredToken {
        StoredToken {
            name: "ci".to_owned(),
            hash: drawn.hash(),
            before: None,
            certificate: None,
            namespace: None,
            scopes: vec![Scope::Read, Scope::Deliver],
            created: NOON,
            expires: None,
        }
    }

    #[test]
    fn a_token_is_read_as_it_was_written_and_nothing_else_is() {
        let (id, drawn) = (draw_id().unwrap(), Drawn::draw().unwrap());
        let text = drawn.token(&id);
        let shown = Shown::read(&text).unwrap();
        assert_eq!(shown.id, id);
        assert!(token(&drawn).is(&shown, NOON));
        let short = &text[..text.len() - 1];
        for wrong in [
            "",
            "cwt_",
            "cwt__",
            short,
            &text[1..],
            &format!("{text}0"),
            &text.to_uppercase(),
        ] {
            assert!(Shown::read(wrong).is_none(), "{wrong}");
        }
        let other = Drawn::draw().unwrap().token(&id);
        assert!(!token(&drawn).is(&Shown::read(&other).unwrap(), NOON));
    }

    #[test]
    fn a_token_counts_until_it_expires_and_a_rotated_secret_for_a_while() {
        let id = draw_id().unwrap();
        let (old, new) = (Drawn::draw().unwrap(), Drawn::draw().unwrap());
        let (old_text, new_text) = (old.token(&id), new.token(&id));
        let stored = StoredToken {
            before: Some(Before {
                hash: old.hash(),
                until: later(60),
            }),
            expires: Some(later(3_600)),
            ..token(&new)
        };
        let is = |text: &str, at| stored.is(&Shown::read(text).unwrap(), at);
        assert!(is(&old_text, later(59)) && !is(&old_text, later(60)));
        assert!(is(&new_text, later(3_599)) && !is(&new_text, later(3_600)));
    }

    #[test]
    fn what_is_stored_is_read_back_and_says_no_secret() {
        let (id, drawn) = (draw_id().unwrap(), Drawn::draw().unwrap());
        let stored = StoredToken {
            before: Some(Before {
                hash: "00".to_owned(),
                until: later(1),
            }),
            expires: Some(later(2)),
            certificate: Some("dns:worker.example".to_owned()),
            ..token(&drawn)
        };
        let value = stored.to_value();
        assert_eq!(StoredToken::of_value(&value), Some(stored.clone()));
        let secret = drawn.token(&id);
        let (_, secret) = secret.rsplit_once('_').unwrap();
        let text = String::from_utf8(value).unwrap();
        assert!(!text.contains(secret));
        let shown = format!("{stored:?} {drawn:?}");
        assert!(!shown.contains(secret) && !shown.contains(&stored.hash));
        let later_form = text.replace("\"format\":1", "\"format\":2");
        assert_eq!(StoredToken::of_value(later_form.as_bytes()), None);
    }

    #[test]
    fn admin_opens_everything_and_each_other_scope_itself() {
        let drawn = Drawn::draw().unwrap();
        let stored = token(&drawn);
        let opened = Scope::WORDS.map(|word| stored.has(Scope::of_word(word).unwrap()));
        assert_eq!(opened, [true, false, true, false, false]);
        let admin = StoredToken {
            scopes: vec![Scope::Admin],
            ..stored
        };
        assert!(
            Scope::WORDS
                .iter()
                .all(|word| admin.has(Scope::of_word(word).unwrap()))
        );
    }
}
