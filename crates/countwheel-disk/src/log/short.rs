//! The keys of the memtable, in its slots themselves.
//!
//! A key that was on the heap would be one more place that nobody has in the processor's cache
//! whenever a name is found; and, made between a record and its payload, it would keep what
//! those leave behind from becoming one free piece again.

use crate::Key;

/// So many bytes of a key have room in a slot: those of most identifiers.
const SHORT_MAX: usize = 38;

/// A key.
#[derive(Debug)]
pub(super) enum Short {
    Here { len: u8, bytes: [u8; SHORT_MAX] },
    Elsewhere(Box<str>),
}

impl Short {
    pub(super) fn of(key: &str) -> Self {
        let mut bytes = [0; SHORT_MAX];
        match (bytes.get_mut(..key.len()), u8::try_from(key.len())) {
            (Some(place), Ok(len)) => {
                place.copy_from_slice(key.as_bytes());
                Self::Here { len, bytes }
            }
            _ => Self::Elsewhere(key.into()),
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Here { len, bytes } => &bytes[..usize::from(*len)],
            Self::Elsewhere(key) => key.as_bytes(),
        }
    }

    /// Empty never, since it was made of a text.
    pub(super) fn as_str(&self) -> &str {
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// As the caller gave it; `None` never, since it was made of a key.
    pub(super) fn key(&self) -> Option<Key> {
        Key::new(self.as_str()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_any_length_comes_back() {
        for len in 1..=Key::MAX_BYTES {
            let key = Key::new("k".repeat(len)).unwrap();
            let short = Short::of(key.as_str());
            assert_eq!(short.as_bytes(), key.as_str().as_bytes());
            assert_eq!(short.key(), Some(key));
            let is_here = matches!(short, Short::Here { .. });
            assert_eq!(is_here, len <= SHORT_MAX);
        }
        assert_eq!(size_of::<Option<Short>>(), SHORT_MAX + 2);
    }
}
