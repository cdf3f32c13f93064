//! What a timer is called: a queue and the caller's own key in it.

use std::fmt;
use std::sync::Arc;

/// A queue's name: 1 to 128 bytes of ASCII letters, digits and `.` `_` `:` `-`.
///
/// ```
/// use countwheel_durable::{NameError, QueueName};
///
/// let queue = QueueName::new("orders.eu-west")?;
/// assert_eq!(queue.as_str(), "orders.eu-west");
/// assert_eq!(QueueName::new("a b"), Err(NameError::QueueCharacter { found: ' ' }));
/// # Ok::<(), NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Checks and takes `name`.
    ///
    /// # Errors
    /// [`NameError`] says which rule it breaks.
    pub fn new(name: impl AsRef<str>) -> Result<Self, NameError> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(NameError::QueueEmpty);
        }
        if name.len() > Self::MAX_BYTES {
            return Err(NameError::QueueTooLong { bytes: name.len() });
        }
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-');
        // What is allowed has one byte each, so whatever precedes it is whole characters.
        match name.bytes().position(|b| !allowed(b)) {
            Some(at) => Err(NameError::QueueCharacter {
                found: name[at..].chars().next().unwrap_or_default(),
            }),
            None => Ok(Self(name.into())),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A timer's key, chosen by the caller and unique in its queue: 1 to 256 bytes of UTF-8
/// without control characters, otherwise opaque.
///
/// Never becomes part of a file name: `../x` is a key like any other.
///
/// ```
/// use countwheel_durable::{Key, NameError};
///
/// assert_eq!(Key::new("../x")?.as_str(), "../x");
/// assert_eq!(Key::new("a\nb"), Err(NameError::KeyControl { code_point: 0x0a }));
/// assert_eq!(Key::new("x".repeat(257)), Err(NameError::KeyTooLong { bytes: 257 }));
/// # Ok::<(), NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Key(Arc<str>);

impl Key {
    /// The longest key, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Checks and takes `key`.
    ///
    /// # Errors
    /// [`NameError`] says which rule it breaks.
    pub fn new(key: impl AsRef<str>) -> Result<Self, NameError> {
        let key = key.as_ref();
        if key.is_empty() {
            return Err(NameError::KeyEmpty);
        }
        if key.len() > Self::MAX_BYTES {
            return Err(NameError::KeyTooLong { bytes: key.len() });
        }
        // Most keys are plain, and to see that costs less than to look at each character.
        let is_plain = key.bytes().all(|b| matches!(b, b' '..=b'~'));
        let control = || key.chars().find(|c| c.is_control());
        match (!is_plain).then(control).flatten() {
            Some(found) => Err(NameError::KeyControl {
                code_point: found.into(),
            }),
            None => Ok(Self(key.into())),
        }
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why a text is not a queue's name or a timer's key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// A queue's name has at least one byte.
    #[error("a queue name has at least one byte")]
    QueueEmpty,
    /// A queue's name has at most 128 bytes.
    #[error("a queue name has at most {max} bytes, not {bytes}", max = QueueName::MAX_BYTES)]
    QueueTooLong {
        /// How many it has.
        bytes: usize,
    },
    /// A queue's name is made of ASCII letters, digits and `.` `_` `:` `-`.
    #[error("a queue name is made of ASCII letters, digits and . _ : - and not of {found:?}")]
    QueueCharacter {
        /// The first character that is none of these.
        found: char,
    },
    /// A key has at least one byte.
    #[error("a key has at least one byte")]
    KeyEmpty,
    /// A key has at most 256 bytes.
    #[error("a key has at most {max} bytes, not {bytes}", max = Key::MAX_BYTES)]
    KeyTooLong {
        /// How many it has.
        bytes: usize,
    },
    /// A key has no control characters.
    #[error("a key has no control characters, such as U+{code_point:04X}")]
    KeyControl {
        /// The first one found.
        code_point: u32,
    },
}

/// A timer's full name: which queue, which key.
///
/// ```
/// use countwheel_durable::TimerName;
///
/// let name = TimerName::new("orders", "order-42")?;
/// assert_eq!(name.to_string(), "orders/order-42");
/// # Ok::<(), countwheel_durable::NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct TimerName {
    /// The queue.
    pub queue: QueueName,
    /// The key in it.
    pub key: Key,
}

impl TimerName {
    /// Checks and takes both parts.
    ///
    /// # Errors
    /// [`NameError`] says which rule which part breaks.
    pub fn new(queue: impl AsRef<str>, key: impl AsRef<str>) -> Result<Self, NameError> {
        Ok(Self {
            queue: QueueName::new(queue)?,
            key: Key::new(key)?,
        })
    }
}

impl fmt::Display for TimerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.queue, self.key)
    }
}

impl fmt::Debug for TimerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What a checked text has in common: it reads as text and is made from text.
macro_rules! checked_text {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl From<$name> for String {
            fn from(text: $name) -> Self {
                text.0.as_ref().to_owned()
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                Self::new(text)
            }
        }
    };
}

checked_text!(QueueName);
checked_text!(Key);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ascii_is_looked_at_by_the_character() {
        let found = 'é';
        assert_eq!(
            QueueName::new("aé"),
            Err(NameError::QueueCharacter { found })
        );
        for (key, code_point) in [("a\u{7f}", 0x7f), ("é\u{85}", 0x85), ("é\n", 0x0a)] {
            assert_eq!(Key::new(key), Err(NameError::KeyControl { code_point }));
        }
        assert!(Key::new(" ~é\u{a0}").is_ok());
    }
}
