//! The keys of timers that are set by a POST: drawn at random, or from the request's `Idempotency-Key`, so that a
//! repeated POST finds what the first one has set.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};
use countwheel_durable::{
    self as durable, Configured, Key, NameError, QueueName, Receipt, SettingError, SettingName,
    SettingPrecondition, TimerError, TimerName,
};
use countwheel_time::Timestamp;
use parking_lot::Mutex;
use ring::hmac;

use super::App;
use super::backfill::KNOWN_FOR;
use super::problem::{Code, Problem};
use super::request::only;

/// For how long a repeated POST is answered like the first.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(86_400);
/// The longest `Idempotency-Key`, in bytes.
pub(crate) const KEY_MAX_BYTES: usize = 255;
/// What keys are drawn with: a secret of the store, so that every node and every later process draws the same.
const SETTING: &str = "idempotency/secret";
/// The form of the setting. The secret follows.
const FORM: u8 = 1;
const SECRET_BYTES: usize = 32;
/// How often the secret is looked for while others may put it.
const TRIES: usize = 4;
/// RFC 4648, section 6, in lower case.
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// How many digits of base 32 have 128 bits.
const DIGITS: u32 = 26;

pub(super) static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(super) static REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// What POSTs need of each other.
#[derive(Default)]
pub(crate) struct Posts {
    secret: OnceLock<hmac::Key>,
    /// The drawn keys of those that run.
    running: Mutex<BTreeSet<[u8; 16]>>,
}

impl std::fmt::Debug for Posts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Posts(…)")
    }
}

impl Posts {
    /// Notes that a POST with this key runs, until the answer is dropped.
    ///
    /// # Errors
    /// [`Code::IdempotencyInProgress`] if one runs already.
    pub(super) fn begin(&self, key: [u8; 16]) -> Result<Runs<'_>, Problem> {
        if self.running.lock().insert(key) {
            return Ok(Runs(self, key));
        }
        Err(TimerError::ReceiptPending.into())
    }
}

/// A POST that runs.
#[derive(Debug)]
pub(super) struct Runs<'a>(&'a Posts, [u8; 16]);

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        self.0.running.lock().remove(&self.1);
    }
}

/// The `Idempotency-Key` of a request, bare or as a string of RFC 8941.
///
/// # Errors
/// If it is there twice, or is no key.
pub(super) fn key_of(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = only(headers, &IDEMPOTENCY_KEY)? else {
        return Ok(None);
    };
    let key = match value.strip_prefix('"') {
        Some(quoted) => unquoted(quoted),
        None => Some(value.to_owned()),
    };
    let is_key = |key: &String| {
        (1..=KEY_MAX_BYTES).contains(&key.len()) && key.bytes().all(|b| matches!(b, b' '..=b'~'))
    };
    let key = key.filter(is_key).ok_or_else(|| {
        Problem::malformed(format!(
            "an Idempotency-Key is 1 to {KEY_MAX_BYTES} printable ASCII characters, bare or in quotes"
        ))
    })?;
    Ok(Some(key))
}

/// What stands between quotes, of which the first is gone already.
fn unquoted(quoted: &str) -> Option<String> {
    let mut key = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    loop {
        match characters.next()? {
            '"' => break,
            '\\' => key.push(characters.next().filter(|it| matches!(it, '"' | '\\'))?),
            character => key.push(character),
        }
    }
    characters.as_str().is_empty().then_some(key)
}

/// 128 random bits.
pub(super) fn at_random() -> Result<[u8; 16], Problem> {
    let mut drawn = [0; 16];
    getrandom::fill(&mut drawn).map_err(|error| no_randomness(&error))?;
    Ok(drawn)
}

fn no_randomness(error: &getrandom::Error) -> Problem {
    tracing::error!(%error, "the system gives no randomness");
    Problem::new(Code::Internal, "the system gives no randomness")
}

/// The receipt of a POST: its key is drawn from the queue, the serial key of the timer and the `Idempotency-Key`.
pub(super) async fn receipt(
    app: &App,
    queue: &QueueName,
    serial_key: Option<&str>,
    key: &str,
    body: &[u8],
) -> Result<Receipt, Problem> {
    let secret = secret(app).await?;
    let parts = [
        queue.namespace(),
        queue.name(),
        serial_key.unwrap_or_default(),
        key,
    ];
    let drawn = signed(secret, "key", parts.map(str::as_bytes));
    let mut receipt = Receipt {
        key: [0; 16],
        fingerprint: signed(secret, "body", [body]),
        keep: KEPT_FOR,
    };
    receipt.key.copy_from_slice(&drawn[..16]);
    Ok(receipt)
}

/// The receipt of a run that a backfill makes: the same for each backfill that has the nominal time of the timer.
pub(super) async fn receipt_of_run(
    app: &App,
    timer: &TimerName,
    nominal: Timestamp,
) -> Result<Receipt, Problem> {
    let secret = secret(app).await?;
    let nominal = nominal.as_micros().to_be_bytes();
    let (queue, key) = (&timer.queue, timer.key.as_str());
    let parts = [
        queue.namespace().as_bytes(),
        queue.name().as_bytes(),
        key.as_bytes(),
        &nominal,
    ];
    let drawn = signed(secret, "run", parts);
    let mut receipt = Receipt {
        key: [0; 16],
        fingerprint: signed(secret, "run of a backfill", parts),
        keep: KNOWN_FOR,
    };
    receipt.key.copy_from_slice(&drawn[..16]);
    Ok(receipt)
}

/// A hash under the secret. Each part says how long it is, so that no two lists of parts are signed alike.
fn signed<const N: usize>(secret: &hmac::Key, what: &str, parts: [&[u8]; N]) -> [u8; 32] {
    let mut context = hmac::Context::with_key(secret);
    context.update(what.as_bytes());
    context.update(&[0]);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.sign().as_ref());
    hash
}

/// The key of a timer by what was drawn: with a tag in front, where one has to decide about the shard.
pub(super) fn key(drawn: [u8; 16], tag: Option<&str>) -> Result<Key, NameError> {
    let number = u128::from_be_bytes(drawn);
    let digit = |at: u32| char::from(BASE32[(number >> (5 * at)) as usize % BASE32.len()]);
    let text: String = (0..DIGITS).rev().map(digit).collect();
    // A key without its tag is refused where it needs one.
    let tagged = tag.and_then(|tag| Key::new(format!("{{{tag}}}/{text}")).ok());
    tagged.map_or_else(|| Key::new(text), Ok)
}

/// The secret of the store. The first POST that needs it puts it there.
async fn secret(app: &App) -> Result<&hmac::Key, Problem> {
    let posts = app.posts();
    for look in 0..TRIES {
        if let Some(secret) = posts.secret.get() {
            return Ok(secret);
        }
        if look > 0 {
            // Somebody else has put it.
            app.look().await?;
        }
        let stored = app.read(stored).await?;
        let secret = match stored {
            Some(secret) => Some(secret),
            None => put(app).await?,
        };
        if let Some(secret) = secret {
            let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
            return Ok(posts.secret.get_or_init(|| key));
        }
    }
    let detail = "the secret of the store kept changing meanwhile: try again";
    Err(Problem::new(Code::Overloaded, detail))
}

fn setting() -> Result<SettingName, Problem> {
    SettingName::new(SETTING).map_err(|error| Problem::from(&error))
}

fn stored(timers: &durable::Timers) -> Result<Option<Vec<u8>>, Problem> {
    let settings = timers.settings();
    let Some(value) = settings.get(&setting()?) else {
        return Ok(None);
    };
    match value.value.split_first() {
        Some((&FORM, secret)) if secret.len() == SECRET_BYTES => Ok(Some(secret.to_vec())),
        _ => {
            let detail = "a later version has stored the secret that keys are drawn with";
            Err(Problem::new(Code::Internal, detail))
        }
    }
}

/// Puts a secret, unless one is there: then `None`. One owner decides which comes first.
async fn put(app: &App) -> Result<Option<Vec<u8>>, Problem> {
    let mut secret = vec![0; SECRET_BYTES];
    getrandom::fill(&mut secret).map_err(|error| no_randomness(&error))?;
    let mut value = vec![FORM];
    value.extend(&secret);
    let request = durable::Request::Configure {
        name: setting()?,
        value: Some(value),
        precondition: SettingPrecondition::Absent,
    };
    match app.ask_first_shard::<Configured>(request).await {
        Ok(_) => Ok(Some(secret)),
        Err(TimerError::Setting(SettingError::Exists { .. })) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &[u8]) -> Result<Option<String>, Problem> {
        let mut headers = HeaderMap::new();
        let value = axum::http::HeaderValue::from_bytes(value).unwrap();
        headers.insert(&IDEMPOTENCY_KEY, value);
        key_of(&headers)
    }

    #[test]
    fn a_key_is_the_same_with_and_without_quotes() {
        let long = "x".repeat(KEY_MAX_BYTES);
        for (value, key) in [
            ("a", "a"),
            ("\"a\"", "a"),
            (r#""a\"b\\c""#, "a\"b\\c"),
            ("a b", "a b"),
            ("a\"", "a\""),
            (r"a\b", r"a\b"),
            (&*long, &*long),
            (&*format!("\"{long}\""), &*long),
        ] {
            assert_eq!(read(value.as_bytes()).unwrap().as_deref(), Some(key));
        }
        assert_eq!(key_of(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let long = "x".repeat(KEY_MAX_BYTES + 1);
        for value in [
            "",
            "\"\"",
            "\"",
            "\"a",
            "\"a\"b",
            "\"a\";b=1",
            r#""\a""#,
            "a\tb",
            &*long,
        ] {
            let problem = read(value.as_bytes()).expect_err(value);
            assert_eq!(problem.code(), "malformed", "{value}");
        }
        assert!(read("ü".as_bytes()).is_err());
    }

    #[test]
    fn a_drawn_key_has_its_bits_and_its_tag() {
        let text = |drawn, tag| key(drawn, tag).unwrap().as_str().to_owned();
        assert_eq!(text([0; 16], None), "a".repeat(26));
        assert_eq!(text([0xff; 16], None), format!("h{}", "7".repeat(25)));
        assert_eq!(
            text([0; 16], Some("one")),
            format!("{{one}}/{}", "a".repeat(26))
        );
        // A tag that leaves no room is left out.
        assert_eq!(text([0; 16], Some(&"x".repeat(256))), "a".repeat(26));
    }

    /// A repeat finds the place of the first one with every later version.
    #[test]
    fn keys_stay_where_they_are() {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &[7; SECRET_BYTES]);
        let drawn = signed(&secret, "key", [&b"default"[..], b"orders", b"", b"a"]);
        let mut first = [0; 16];
        first.copy_from_slice(&drawn[..16]);
        assert_eq!(key(first, None).unwrap().as_str(), DRAWN);
        let other = signed(&secret, "key", [&b"default"[..], b"order", b"s", b"a"]);
        assert_ne!(other, drawn);
    }

    const DRAWN: &str = "ch47u3h4l6sft5gobf336jivrb";
}
