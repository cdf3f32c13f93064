//! Signatures of deliveries, after version 1 of Standard Webhooks: HMAC with SHA-256 over the id, the time and the
//! body, one for each secret of the endpoint.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;

/// What a secret begins with.
const PREFIX: &str = "whsec_";
/// How many bytes a secret may have.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// A secret of an endpoint, ready to sign.
#[derive(Clone)]
pub(crate) struct SigningKey(hmac::Key);

/// Without the secret.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

impl SigningKey {
    /// The key of a secret as text; `None` if the text is no secret.
    pub(crate) fn new(secret: &str) -> Option<Self> {
        let bytes = BASE64_STANDARD.decode(secret.strip_prefix(PREFIX)?).ok()?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        SECRET_BYTES.contains(&bytes.len()).then_some(Self(key))
    }

    fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut signed = hmac::Context::with_key(&self.0);
        signed.update(format!("{id}.{timestamp}.").as_bytes());
        signed.update(body);
        format!("v1,{}", BASE64_STANDARD.encode(signed.sign()))
    }
}

/// The value of `webhook-signature`: a signature by each key.
pub(crate) fn header(keys: &[SigningKey], id: &str, timestamp: u64, body: &[u8]) -> String {
    let signatures = keys.iter().map(|key| key.sign(id, timestamp, body));
    signatures.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification and of its libraries.
    #[test]
    fn the_example_of_the_specification_is_signed_as_it_says() {
        let key = SigningKey::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let body = br#"{"test": 2432232314}"#;
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(
            header(std::slice::from_ref(&key), id, 1_614_265_330, body),
            signature
        );
        let both = header(&[key.clone(), key], id, 1_614_265_330, body);
        assert_eq!(both, format!("{signature} {signature}"));
        assert_eq!(header(&[], id, 1_614_265_330, body), "");
    }

    #[test]
    fn a_secret_is_base64_of_24_to_64_bytes_behind_its_prefix() {
        let of = |bytes: usize| format!("whsec_{}", BASE64_STANDARD.encode(vec![7; bytes]));
        for (bytes, is_secret) in [(23, false), (24, true), (64, true), (65, false)] {
            assert_eq!(SigningKey::new(&of(bytes)).is_some(), is_secret, "{bytes}");
        }
        let good = of(32);
        let without_prefix = good.trim_start_matches("whsec_");
        let without_padding = good.trim_end_matches('=');
        let other_prefix = good.replace("whsec_", "whpk_");
        for text in ["", "whsec_", without_prefix, without_padding, &other_prefix] {
            assert!(SigningKey::new(text).is_none(), "{text}");
        }
        let shown = format!("{:?}", SigningKey::new(&good));
        assert!(!shown.contains(without_prefix), "{shown}");
    }
}
