//! The identity of a name in a primary key.

use countwheel_durable::TimerName;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::bits::Bits;

/// The key of a cluster's hashes, drawn at random when the cluster is made.
pub(crate) const KEY_BYTES: usize = 64;

/// Hashes names with the first 128 bits of HMAC-SHA-256 (RFC 2104) under the cluster's key. The hash
/// stands for the name, so nobody may be able to choose two names that meet: the hash is cryptographic,
/// and its key is a secret of the database.
#[derive(Clone)]
pub(crate) struct NameHash(Hmac<Sha256>);

impl NameHash {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self(Hmac::new(key.into()))
    }

    pub(crate) fn of(&self, name: &TimerName) -> Bits {
        let mut mac = self.0.clone();
        mac.update(name.queue.as_str().as_bytes());
        mac.update(&[0]); // in neither
        mac.update(name.key.as_str().as_bytes());
        let whole = mac.finalize().into_bytes();
        let mut bits = [0; 16];
        bits.copy_from_slice(&whole[..16]);
        Bits(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_of_queue_key_and_secret() {
        let name = |queue, key| TimerName::new(queue, key).unwrap();
        let hash = NameHash::new(&[7; KEY_BYTES]);
        let all = [
            hash.of(&name("a", "bc")),
            hash.of(&name("ab", "c")),
            hash.of(&name("a", "b")),
            NameHash::new(&[8; KEY_BYTES]).of(&name("a", "bc")),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one));
        }
        assert_eq!(hash.of(&name("a", "bc")), all[0]);
    }
}
