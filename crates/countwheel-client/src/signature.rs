//! Whether a delivery is of the service: the signatures of [Standard Webhooks](https://www.standardwebhooks.com), version 1.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use countwheel_time::Timestamp;
use hyper::HeaderMap;
use ring::hmac;

/// What a secret begins with.
const PREFIX: &str = "whsec_";
/// How many bytes a secret may have.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Why a text is no secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a secret is whsec_ and the base64 of 24 to 64 bytes")]
pub struct BadSecret;

/// Why a delivery is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// A header is missing, or is no text.
    #[error("the delivery has no {0}")]
    Missing(&'static str),
    /// The timestamp is no number of seconds.
    #[error("webhook-timestamp is no number of seconds since 1970")]
    BadTimestamp,
    /// It was sent too long ago, or in the future: somebody may send what was sent before.
    #[error("the delivery was sent {seconds} s {}", if *.is_early { "from now" } else { "ago" })]
    OutOfTime {
        /// By how much it is away from now.
        seconds: u64,
        /// Whether it is ahead.
        is_early: bool,
    },
    /// No signature is of one of the secrets.
    #[error("no signature of the delivery is right")]
    Wrong,
}

/// Checks the signatures of deliveries.
///
/// ```
/// use countwheel_client::signature::{SignatureError, Verifier};
/// use countwheel_time::Timestamp;
/// use hyper::HeaderMap;
///
/// let verifier = Verifier::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])?;
/// let mut headers = HeaderMap::new();
/// headers.insert("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek".parse()?);
/// headers.insert("webhook-timestamp", "1614265330".parse()?);
/// headers.insert("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=".parse()?);
/// let now = Timestamp::from_micros(1_614_265_340_000_000);
/// let body = br#"{"test": 2432232314}"#;
/// assert_eq!(verifier.verify(&headers, body, now), Ok(()));
/// assert_eq!(verifier.verify(&headers, b"{}", now), Err(SignatureError::Wrong));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Verifier {
    keys: Vec<hmac::Key>,
    tolerance: Duration,
}

/// Without the secrets.
impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("keys", &self.keys.len())
            .field("tolerance", &self.tolerance)
            .finish()
    }
}

impl Verifier {
    /// How far the time of a delivery may be from now unless [`within`](Self::within) says otherwise.
    pub const TOLERANCE: Duration = Duration::from_secs(300);

    /// Takes what is signed by one of these secrets. With two of them, a secret is replaced without a gap.
    ///
    /// # Errors
    /// [`BadSecret`]. Without a secret, nothing would be taken: that is one as well.
    pub fn new<S: AsRef<str>>(secrets: impl IntoIterator<Item = S>) -> Result<Self, BadSecret> {
        let keys = secrets.into_iter().map(|secret| key(secret.as_ref()));
        let keys = keys.collect::<Option<Vec<_>>>().ok_or(BadSecret)?;
        if keys.is_empty() {
            return Err(BadSecret);
        }
        Ok(Self {
            keys,
            tolerance: Self::TOLERANCE,
        })
    }

    /// The same, which takes deliveries whose time is so far from now.
    #[must_use]
    pub fn within(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Checks the signature of a delivery with these headers and this body, byte for byte as it came.
    ///
    /// # Errors
    /// [`SignatureError`].
    pub fn verify(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: Timestamp,
    ) -> Result<(), SignatureError> {
        let header = |name: &'static str| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.ok_or(SignatureError::Missing(name))
        };
        let id = header("webhook-id")?;
        let timestamp = header("webhook-timestamp")?;
        let signatures = header("webhook-signature")?;
        let is_number = !timestamp.is_empty() && timestamp.bytes().all(|it| it.is_ascii_digit());
        let sent: u64 = match timestamp.parse() {
            Ok(sent) if is_number => sent,
            _ => return Err(SignatureError::BadTimestamp),
        };
        let now = now.as_micros() / 1_000_000;
        if now.abs_diff(sent) > self.tolerance.as_secs() {
            return Err(SignatureError::OutOfTime {
                seconds: now.abs_diff(sent),
                is_early: sent > now,
            });
        }
        let mut signed = format!("{id}.{timestamp}.").into_bytes();
        signed.extend_from_slice(body);
        let given = signatures.split(' ');
        let mut given =
            given.filter_map(|one| BASE64_STANDARD.decode(one.strip_prefix("v1,")?).ok());
        // It takes as long for a signature that is nearly right as for any other.
        let is_right = given.any(|one| {
            let mut keys = self.keys.iter();
            keys.any(|key| hmac::verify(key, &signed, &one).is_ok())
        });
        is_right.then_some(()).ok_or(SignatureError::Wrong)
    }
}

/// The key of a secret as text.
fn key(secret: &str) -> Option<hmac::Key> {
    let bytes = BASE64_STANDARD.decode(secret.strip_prefix(PREFIX)?).ok()?;
    let key = || hmac::Key::new(hmac::HMAC_SHA256, &bytes);
    SECRET_BYTES.contains(&bytes.len()).then(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OTHER: &str = "whsec_//////////////////////////////////////////8=";
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SENT: u64 = 1_614_265_330;

    fn headers(changed: &[(&'static str, &str)]) -> HeaderMap {
        let sent = SENT.to_string();
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", sent.as_str()),
            ("webhook-signature", SIGNATURE),
        ]
        .iter()
        .chain(changed)
        {
            headers.insert(*name, value.parse().unwrap());
        }
        headers
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn one_right_signature_by_one_of_the_secrets_is_enough() {
        let two = format!("v1a,xx v1,AAAA  {SIGNATURE}");
        let both = Verifier::new([OTHER, SECRET]).unwrap();
        for changed in [&[][..], &[("webhook-signature", two.as_str())]] {
            assert_eq!(both.verify(&headers(changed), BODY, at(SENT)), Ok(()));
        }
        let other = Verifier::new([OTHER]).unwrap();
        let wrong = other.verify(&headers(&[]), BODY, at(SENT));
        assert_eq!(wrong, Err(SignatureError::Wrong));
    }

    #[test]
    fn whatever_was_changed_is_refused() {
        let verifier = Verifier::new([SECRET]).unwrap();
        let verify = |changed: &[(&'static str, &str)], body: &[u8]| {
            verifier.verify(&headers(changed), body, at(SENT))
        };
        let wrong = Err(SignatureError::Wrong);
        assert_eq!(verify(&[], b"{}"), wrong);
        assert_eq!(verify(&[("webhook-id", "msg_other")], BODY), wrong);
        let later = (SENT + 1).to_string();
        assert_eq!(verify(&[("webhook-timestamp", &later)], BODY), wrong);
        for signature in ["", "v1,", "v1", "v2,g0hM", &SIGNATURE[3..], "v1,%%%"] {
            assert_eq!(verify(&[("webhook-signature", signature)], BODY), wrong);
        }
        for time in ["", "-1", "+1614265330", "1e9", "99999999999999999999999"] {
            let bad = Err(SignatureError::BadTimestamp);
            assert_eq!(verify(&[("webhook-timestamp", time)], BODY), bad, "{time}");
        }
        let mut without = headers(&[]);
        without.remove("webhook-id");
        let missing = Err(SignatureError::Missing("webhook-id"));
        assert_eq!(verifier.verify(&without, BODY, at(SENT)), missing);
    }

    #[test]
    fn what_was_sent_long_ago_or_will_be_is_refused() {
        let verifier = Verifier::new([SECRET]).unwrap();
        let verify = |verifier: &Verifier, now| verifier.verify(&headers(&[]), BODY, at(now));
        assert_eq!(verify(&verifier, SENT + 300), Ok(()));
        assert_eq!(verify(&verifier, SENT - 300), Ok(()));
        let error = verify(&verifier, SENT + 301).unwrap_err();
        assert_eq!(error.to_string(), "the delivery was sent 301 s ago");
        let error = verify(&verifier, SENT - 301).unwrap_err();
        assert_eq!(error.to_string(), "the delivery was sent 301 s from now");
        let patient = verifier.within(Duration::from_secs(3_600));
        assert_eq!(verify(&patient, SENT + 301), Ok(()));
    }

    #[test]
    fn what_is_no_secret_is_refused_and_a_secret_is_not_shown() {
        for bad in [
            "",
            "whsec_",
            "whsec_AAAA",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        ] {
            assert_eq!(Verifier::new([bad]).unwrap_err(), BadSecret, "{bad}");
        }
        assert_eq!(Verifier::new([""; 0]).unwrap_err(), BadSecret);
        let shown = format!("{:?}", Verifier::new([SECRET]).unwrap());
        assert_eq!(shown, "Verifier { keys: 1, tolerance: 300s }");
    }
}
