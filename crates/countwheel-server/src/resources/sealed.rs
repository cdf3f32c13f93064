//! Secrets as they are stored: sealed with a key of the operator, or as they are where no other machine asks.
//!
//! The keys are the lines of a file. The first one seals, and all of them open. A sealed secret is bound to what it
//! is for, so that nobody who writes to the store moves it to another endpoint.

use std::fmt;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::{digest, hmac};
use serde::{Deserialize, Serialize};

/// How many bytes a key has.
const KEY_BYTES: usize = 32;
/// How many keys a file may have.
const KEYS_MAX: usize = 16;
/// So many bytes of a key's hash name it.
const NAME_BYTES: usize = 8;

/// A secret as it is stored.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kept {
    /// As it is.
    Plain(String),
    /// Sealed.
    Sealed {
        /// The name of the key.
        key: String,
        /// The nonce and what is sealed, in base64.
        bytes: String,
    },
}

/// Without the secret.
impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain(…)",
            Self::Sealed { .. } => "Sealed(…)",
        })
    }
}

impl Kept {
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self, Self::Sealed { .. })
    }
}

/// There is no key to seal a secret with, and other machines may ask for what is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoKey;

/// Why a sealed secret cannot be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Unopened {
    #[error("the key {0} that sealed the secret is not in the file of keys")]
    UnknownKey(String),
    #[error("the sealed secret is damaged, or was sealed for another endpoint")]
    Damaged,
}

/// Why a file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("--secret-key-file {file}: {problem}")]
pub struct BadKeys {
    file: String,
    problem: String,
}

/// One key.
struct SealingKey {
    name: String,
    key: LessSafeKey,
}

/// Seals secrets and opens them.
pub(crate) struct Vault {
    keys: Vec<SealingKey>,
    /// Whether a secret may be stored as it is where there is no key.
    keeps_plain: bool,
    /// What signs sessions of the pages, made of the first key.
    sessions: Option<[u8; KEY_BYTES]>,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault")
            .field("keys", &self.keys.len())
            .field("keeps_plain", &self.keeps_plain)
            .finish()
    }
}

impl Vault {
    /// A vault without a key. Secrets are stored as they are if `keeps_plain`, and else not at all.
    pub(crate) fn without_key(keeps_plain: bool) -> Self {
        Self {
            keys: Vec::new(),
            keeps_plain,
            sessions: None,
        }
    }

    /// A vault with the keys of a file.
    pub(crate) fn of_file(file: &Path) -> Result<Self, BadKeys> {
        let bad = |problem: String| BadKeys {
            file: file.display().to_string(),
            problem,
        };
        let text = std::fs::read_to_string(file).map_err(|error| bad(error.to_string()))?;
        Self::of_text(&text).map_err(bad)
    }

    pub(crate) fn of_text(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).enumerate();
        let lines: Vec<_> = lines.filter(|(_, line)| !line.is_empty()).collect();
        if lines.is_empty() || lines.len() > KEYS_MAX {
            return Err(format!("a file of keys has 1 to {KEYS_MAX} of them"));
        }
        let read = |(at, line): (usize, &str)| {
            let key = key_of(line).ok_or_else(|| {
                let number = at + 1;
                format!("line {number} is no key: one is 32 bytes in base64 or in 64 hex digits")
            })?;
            let name = digest::digest(&digest::SHA256, &key);
            let unbound = UnboundKey::new(&AES_256_GCM, &key);
            Ok(SealingKey {
                name: hex(&name.as_ref()[..NAME_BYTES]),
                key: LessSafeKey::new(unbound.map_err(|_| "a key is too short".to_owned())?),
            })
        };
        let first = lines.first().and_then(|(_, line)| key_of(line));
        let keys: Result<Vec<_>, String> = lines.into_iter().map(read).collect();
        let sessions = first.and_then(|key| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
            let made = hmac::sign(&key, b"sessions of the pages");
            made.as_ref().try_into().ok()
        });
        Ok(Self {
            keys: keys?,
            keeps_plain: false,
            sessions,
        })
    }

    /// What signs sessions of the pages; `None` without a key. All nodes with the same first key have the same.
    pub(crate) fn session_key(&self) -> Option<[u8; KEY_BYTES]> {
        self.sessions
    }

    /// The secret as it is to be stored for `purpose`.
    pub(crate) fn seal(&self, purpose: &str, secret: &str) -> Result<Kept, NoKey> {
        let Some(first) = self.keys.first() else {
            return match self.keeps_plain {
                true => Ok(Kept::Plain(secret.to_owned())),
                false => Err(NoKey),
            };
        };
        let mut drawn = [0; NONCE_LEN];
        // Without randomness nothing can be sealed.
        getrandom::fill(&mut drawn).map_err(|_| NoKey)?;
        let nonce = Nonce::assume_unique_for_key(drawn);
        let mut bytes = secret.as_bytes().to_vec();
        let sealed = first
            .key
            .seal_in_place_append_tag(nonce, Aad::from(purpose), &mut bytes);
        sealed.map_err(|_| NoKey)?;
        Ok(Kept::Sealed {
            key: first.name.clone(),
            bytes: BASE64_STANDARD.encode([&drawn[..], &bytes].concat()),
        })
    }

    /// The secret that is stored for `purpose`.
    pub(crate) fn open(&self, purpose: &str, kept: &Kept) -> Result<String, Unopened> {
        let (name, bytes) = match kept {
            Kept::Plain(secret) => return Ok(secret.clone()),
            Kept::Sealed { key, bytes } => (key, bytes),
        };
        let key = self.keys.iter().find(|it| it.name == *name);
        let key = key.ok_or_else(|| Unopened::UnknownKey(name.clone()))?;
        let damaged = |_| Unopened::Damaged;
        let mut bytes = BASE64_STANDARD
            .decode(bytes)
            .map_err(|_| Unopened::Damaged)?;
        let (nonce, sealed) = bytes
            .split_at_mut_checked(NONCE_LEN)
            .ok_or(Unopened::Damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(damaged)?;
        let opened = key.key.open_in_place(nonce, Aad::from(purpose), sealed);
        let opened = opened.map_err(damaged)?;
        String::from_utf8(opened.to_vec()).map_err(|_| Unopened::Damaged)
    }

    /// Whether the secret is stored as a new one would be.
    pub(crate) fn is_current(&self, kept: &Kept) -> bool {
        match (self.keys.first(), kept) {
            (Some(first), Kept::Sealed { key, .. }) => first.name == *key,
            (Some(_), Kept::Plain(_)) => false,
            (None, _) => true,
        }
    }
}

/// The bytes of a key that is written as hex digits or as base64.
fn key_of(line: &str) -> Option<[u8; KEY_BYTES]> {
    if line.len() == 2 * KEY_BYTES {
        let pairs = line.as_bytes().chunks(2);
        let byte = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair).ok()?;
            let is_hex = pair.bytes().all(|digit| digit.is_ascii_hexdigit());
            is_hex.then(|| u8::from_str_radix(pair, 16).ok()).flatten()
        };
        let bytes: Option<Vec<u8>> = pairs.map(byte).collect();
        return bytes?.try_into().ok();
    }
    BASE64_STANDARD.decode(line).ok()?.try_into().ok()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const OTHER: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";

    fn vault(keys: &[&str]) -> Vault {
        Vault::of_text(&keys.join("\n")).expect("keys")
    }

    #[test]
    fn a_sealed_secret_opens_with_its_key_and_for_its_purpose_alone() {
        let one = vault(&[ONE]);
        let sealed = one.seal("endpoint/a", "whsec_x").unwrap();
        assert!(sealed.is_sealed() && one.is_current(&sealed));
        assert_eq!(one.open("endpoint/a", &sealed).as_deref(), Ok("whsec_x"));
        assert_eq!(one.open("endpoint/b", &sealed), Err(Unopened::Damaged));
        let unknown = vault(&[OTHER]).open("endpoint/a", &sealed).unwrap_err();
        assert!(matches!(unknown, Unopened::UnknownKey(_)), "{unknown}");
        // The nonce is another each time.
        assert_ne!(one.seal("endpoint/a", "whsec_x").unwrap(), sealed);
        let Kept::Sealed { key, bytes } = &sealed else {
            panic!("{sealed:?}");
        };
        for bytes in ["", "AAAA", "x", &bytes[4..]] {
            let cut = Kept::Sealed {
                key: key.clone(),
                bytes: bytes.to_owned(),
            };
            assert_eq!(one.open("endpoint/a", &cut), Err(Unopened::Damaged));
        }
    }

    #[test]
    fn the_first_key_seals_and_all_open() {
        let sealed = vault(&[ONE]).seal("p", "s").unwrap();
        let both = vault(&[OTHER, "", ONE]);
        assert_eq!(both.open("p", &sealed).as_deref(), Ok("s"));
        assert!(!both.is_current(&sealed));
        assert!(both.is_current(&both.seal("p", "s").unwrap()));
        assert!(!both.is_current(&Kept::Plain("s".to_owned())));
    }

    #[test]
    fn without_a_key_a_secret_is_kept_as_it_is_or_not_at_all() {
        let here = Vault::without_key(true);
        let plain = here.seal("p", "s").unwrap();
        assert_eq!(plain, Kept::Plain("s".to_owned()));
        assert_eq!(here.open("p", &plain).as_deref(), Ok("s"));
        assert_eq!(Vault::without_key(false).seal("p", "s"), Err(NoKey));
        assert_eq!(format!("{plain:?}"), "Plain(…)");
    }

    #[test]
    fn a_key_is_hex_or_base64_of_32_bytes_and_nothing_else() {
        let base64 = BASE64_STANDARD.encode([7; 32]);
        let same = "07".repeat(32);
        let sealed = vault(&[&base64]).seal("p", "s").unwrap();
        assert_eq!(vault(&[&same]).open("p", &sealed).as_deref(), Ok("s"));
        let short = BASE64_STANDARD.encode([7; 31]);
        let sign = format!("+7{}", "07".repeat(31));
        for text in ["", "\n \n", "x", &short, &same[2..], &sign] {
            assert!(Vault::of_text(text).is_err(), "{text}");
        }
        let said = Vault::of_text(&format!("{ONE}\nno key")).unwrap_err();
        assert!(
            said.starts_with("line 2 is no key") && !said.contains("no key\n"),
            "{said}"
        );
        assert!(Vault::of_text(&[ONE; KEYS_MAX + 1].join("\n")).is_err());
    }
}
