//! The name of a timer: a queue in a namespace, and the caller's own key in it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::TimerError;

/// A namespace: 1 to 64 bytes of ASCII letters, digits and `.` `_` `:` `-`. Queues of the same name
/// in two namespaces have nothing in common.
///
/// ```
/// use countwheel_durable::{NameError, Namespace};
///
/// assert_eq!(Namespace::new("tenant-7")?.as_str(), "tenant-7");
/// assert_eq!(Namespace::default().as_str(), Namespace::DEFAULT_NAME);
/// assert_eq!(Namespace::RESERVED, "countwheel:internal");
/// assert_eq!(Namespace::new("a/b"), Err(NameError::NamespaceCharacter { found: '/' }));
/// # Ok::<(), NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// The longest namespace, in bytes.
    pub const MAX_BYTES: usize = 64;
    /// The namespace of every queue that names none.
    pub const DEFAULT_NAME: &str = "default";
    /// The namespace of what the engine stores for itself, such as [receipts](crate::Receipt). Requests about its
    /// queues are refused, and no count and no list has them.
    pub const RESERVED: &str = "countwheel:internal";

    /// Checks and takes `name`.
    ///
    /// # Errors
    /// [`NameError`] says which rule it breaks.
    pub fn new(name: impl AsRef<str>) -> Result<Self, NameError> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(NameError::NamespaceEmpty);
        }
        if name.len() > Self::MAX_BYTES {
            return Err(NameError::NamespaceTooLong { bytes: name.len() });
        }
        match stranger(name) {
            Some(found) => Err(NameError::NamespaceCharacter { found }),
            None => Ok(Self(name.into())),
        }
    }

    /// The namespace as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the one of every queue that names none.
    #[must_use]
    pub fn is_default(&self) -> bool {
        &*self.0 == Self::DEFAULT_NAME
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self(Self::DEFAULT_NAME.into())
    }
}

/// The first character that is in the name of no queue and of no namespace.
fn stranger(name: &str) -> Option<char> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-');
    // What is allowed has one byte each, so whatever precedes it is whole characters.
    let at = name.bytes().position(|b| !allowed(b))?;
    Some(name[at..].chars().next().unwrap_or_default())
}

/// A queue's name, 1 to 128 bytes of ASCII letters, digits and `.` `_` `:` `-`, in a [`Namespace`].
///
/// As text it is the name alone in the namespace `default`, and `namespace/name` in any other. So
/// each queue has one text, and what was stored before there were namespaces is of `default`.
///
/// ```
/// use countwheel_durable::{NameError, Namespace, QueueName};
///
/// let queue = QueueName::new("orders.eu-west")?;
/// assert_eq!(queue.as_str(), "orders.eu-west");
/// assert_eq!((queue.namespace(), queue.name()), ("default", "orders.eu-west"));
/// assert_eq!(QueueName::new("a b"), Err(NameError::QueueCharacter { found: ' ' }));
///
/// let theirs = QueueName::in_namespace(&Namespace::new("tenant-7")?, "orders.eu-west")?;
/// assert_eq!(theirs.as_str(), "tenant-7/orders.eu-west");
/// assert_eq!((theirs.namespace(), theirs.name()), ("tenant-7", "orders.eu-west"));
/// assert_ne!(theirs, queue);
///
/// let same = QueueName::in_namespace(&Namespace::default(), "orders.eu-west")?;
/// assert_eq!(same, queue);
/// # Ok::<(), NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// The longest name without its namespace, in bytes.
    pub const MAX_BYTES: usize = 128;
    /// The longest text of a name, in bytes: with its namespace, and what stands between them.
    pub const TEXT_MAX_BYTES: usize = Namespace::MAX_BYTES + 1 + Self::MAX_BYTES;
    /// What stands between a namespace and a name.
    const BETWEEN: char = '/';

    /// Checks and takes `name`, of a queue in the namespace `default`.
    ///
    /// # Errors
    /// [`NameError`] says which rule it breaks.
    pub fn new(name: impl AsRef<str>) -> Result<Self, NameError> {
        let name = name.as_ref();
        Self::check(name)?;
        Ok(Self(name.into()))
    }

    /// Checks and takes `name`, of a queue in `namespace`.
    ///
    /// # Errors
    /// [`NameError`] says which rule it breaks.
    pub fn in_namespace(namespace: &Namespace, name: impl AsRef<str>) -> Result<Self, NameError> {
        let name = name.as_ref();
        if namespace.is_default() {
            return Self::new(name);
        }
        Self::check(name)?;
        Ok(Self(format!("{namespace}{}{name}", Self::BETWEEN).into()))
    }

    /// The name whose text this is, with its namespace unless that is `default`.
    ///
    /// ```
    /// use countwheel_durable::{NameError, QueueName};
    ///
    /// assert_eq!(QueueName::from_text("tenant-7/orders")?.namespace(), "tenant-7");
    /// assert_eq!(QueueName::from_text("orders")?, QueueName::new("orders")?);
    /// // One name, one text.
    /// let refused = QueueName::from_text("default/orders");
    /// assert_eq!(refused, Err(NameError::NamespaceDefault));
    /// # Ok::<(), NameError>(())
    /// ```
    ///
    /// # Errors
    /// [`NameError`] says which rule it breaks.
    pub fn from_text(text: impl AsRef<str>) -> Result<Self, NameError> {
        let text = text.as_ref();
        let Some((namespace, name)) = text.split_once(Self::BETWEEN) else {
            return Self::new(text);
        };
        if Namespace::new(namespace)?.is_default() {
            return Err(NameError::NamespaceDefault);
        }
        Self::check(name)?;
        Ok(Self(text.into()))
    }

    fn check(name: &str) -> Result<(), NameError> {
        if name.is_empty() {
            return Err(NameError::QueueEmpty);
        }
        if name.len() > Self::MAX_BYTES {
            return Err(NameError::QueueTooLong { bytes: name.len() });
        }
        stranger(name).map_or(Ok(()), |found| Err(NameError::QueueCharacter { found }))
    }

    fn parts(&self) -> (&str, &str) {
        let parts = self.0.split_once(Self::BETWEEN);
        parts.unwrap_or((Namespace::DEFAULT_NAME, &self.0))
    }

    /// The namespace of the queue.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// Whether the namespace is `default`.
    #[must_use]
    pub fn is_in_default(&self) -> bool {
        !self.0.contains(Self::BETWEEN)
    }

    /// The name without its namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().1
    }

    /// Whether the namespace is [the reserved one](Namespace::RESERVED).
    #[must_use]
    pub(crate) fn is_reserved(&self) -> bool {
        let behind = self.0.strip_prefix(Namespace::RESERVED);
        behind.is_some_and(|behind| behind.starts_with(Self::BETWEEN))
    }

    /// Refuses a queue of the reserved namespace, which no request is about.
    pub(crate) fn must_be_of_callers(&self) -> Result<(), TimerError> {
        if self.is_reserved() {
            return Err(NameError::NamespaceReserved.into());
        }
        Ok(())
    }

    /// The name as text, as it is stored and shown.
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

/// [Its text](Self::as_str), for a pair such as `(&record.name.queue, "o-1")`.
impl AsRef<str> for QueueName {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

/// [Its text](Self::as_str), for a pair such as `("closed", &attempt.name.key)`.
impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

/// Why a text is not a namespace, a queue's name or a timer's key.
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
    /// A namespace has at least one byte.
    #[error("a namespace has at least one byte")]
    NamespaceEmpty,
    /// A namespace has at most 64 bytes.
    #[error("a namespace has at most {max} bytes, not {bytes}", max = Namespace::MAX_BYTES)]
    NamespaceTooLong {
        /// How many it has.
        bytes: usize,
    },
    /// A namespace is made of ASCII letters, digits and `.` `_` `:` `-`.
    #[error("a namespace is made of ASCII letters, digits and . _ : - and not of {found:?}")]
    NamespaceCharacter {
        /// The first character that is none of these.
        found: char,
    },
    /// The namespace is the engine's own.
    #[error("the namespace {name:?} is reserved", name = Namespace::RESERVED)]
    NamespaceReserved,
    /// The text of a queue's name does not say the namespace `default`.
    #[error("the name of a queue in the namespace {name:?} leaves the namespace out", name = Namespace::DEFAULT_NAME)]
    NamespaceDefault,
    /// The text of a timer's name is its queue, a `/` and its key.
    #[error("the name of a timer is queue/key, and {text:?} has no /")]
    KeyMissing {
        /// The text, or its beginning.
        text: String,
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
/// // A verb of `Timers` takes each of these.
/// assert_eq!(TimerName::try_from(("orders", "order-42"))?, name);
/// assert_eq!(TimerName::try_from("orders/order-42")?, name);
/// assert!("orders".parse::<TimerName>().is_err());
/// # Ok::<(), countwheel_durable::NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct TimerName {
    /// The queue.
    pub queue: QueueName,
    /// The key in it.
    pub key: Key,
}

impl From<&TimerName> for TimerName {
    fn from(name: &TimerName) -> Self {
        name.clone()
    }
}

impl<Q: AsRef<str>, K: fmt::Display> TryFrom<(Q, K)> for TimerName {
    type Error = NameError;

    /// The queue, by [its text](QueueName::from_text), and the key: a text, a number, or whatever else
    /// is displayed.
    ///
    /// ```
    /// use countwheel_durable::TimerName;
    ///
    /// assert_eq!(TimerName::try_from(("unpaid", 42))?, TimerName::try_from(("unpaid", "42"))?);
    /// # Ok::<(), countwheel_durable::NameError>(())
    /// ```
    fn try_from((queue, key): (Q, K)) -> Result<Self, NameError> {
        Self::from_text(queue.as_ref(), &key.to_string())
    }
}

impl FromStr for TimerName {
    type Err = NameError;

    /// `queue/key`, of a queue in the namespace `default`. Whatever follows the first `/` is the key,
    /// with every further `/`: a name in another namespace has no such text, see
    /// [`parts`](TimerName::parts).
    fn from_str(text: &str) -> Result<Self, NameError> {
        let parts = text.split_once('/').ok_or_else(|| NameError::KeyMissing {
            text: text.chars().take(QueueName::MAX_BYTES).collect(),
        });
        let (queue, key) = parts?;
        Self::new(queue, key)
    }
}

impl TryFrom<&str> for TimerName {
    type Error = NameError;

    fn try_from(text: &str) -> Result<Self, NameError> {
        text.parse()
    }
}

impl TryFrom<String> for TimerName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl TryFrom<&String> for TimerName {
    type Error = NameError;

    fn try_from(text: &String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl TimerName {
    /// Checks and takes both parts, of a queue in the namespace `default`.
    ///
    /// # Errors
    /// [`NameError`] says which rule which part breaks.
    pub fn new(queue: impl AsRef<str>, key: impl AsRef<str>) -> Result<Self, NameError> {
        Ok(Self {
            queue: QueueName::new(queue)?,
            key: Key::new(key)?,
        })
    }

    /// The text of the queue, with its namespace unless that is `default`, and the key. The verbs take
    /// the pair as a name: it is the name to write down.
    ///
    /// ```
    /// use countwheel_durable::TimerName;
    ///
    /// let name = TimerName::from_text("tenant-7/orders", "42")?;
    /// assert_eq!(name.parts(), ("tenant-7/orders", "42"));
    /// assert_eq!(TimerName::try_from(name.parts())?, name);
    /// assert_ne!(name.to_string().parse::<TimerName>()?, name, "that is orders/42 in tenant-7");
    /// # Ok::<(), countwheel_durable::NameError>(())
    /// ```
    #[must_use]
    pub fn parts(&self) -> (&str, &str) {
        (self.queue.as_str(), self.key.as_str())
    }

    /// The same of a queue in any namespace, by [its text](QueueName::from_text).
    ///
    /// ```
    /// use countwheel_durable::TimerName;
    ///
    /// let name = TimerName::new("orders", "order-42")?;
    /// assert!(name.queue.is_in_default());
    /// assert_eq!(TimerName::from_text(name.queue.as_str(), "order-42")?, name);
    /// # Ok::<(), countwheel_durable::NameError>(())
    /// ```
    ///
    /// # Errors
    /// [`NameError`] if the queue or the key is no name.
    pub fn from_text(queue: &str, key: &str) -> Result<Self, NameError> {
        Ok(Self {
            queue: QueueName::from_text(queue)?,
            key: Key::new(key)?,
        })
    }
}

/// For people, and one way where there are namespaces: `tenant-7/orders/42` is the key `42` of the queue
/// `orders` in the namespace `tenant-7`, and the same text is read as the key `orders/42` of the queue
/// `tenant-7`. [`TimerName::parts`] lead back to every name.
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
    ($name:ident, $check:ident) => {
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
                Self::$check(text)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = NameError;

            fn try_from(text: &str) -> Result<Self, NameError> {
                Self::$check(text)
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::$check(text)
            }
        }
    };
}

checked_text!(Namespace, new);
checked_text!(QueueName, from_text);
checked_text!(Key, new);

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

    #[test]
    fn a_queue_has_one_text_in_each_namespace() {
        let namespace = |name: &str| Namespace::new(name).unwrap();
        let longest = namespace(&"n".repeat(Namespace::MAX_BYTES));
        let queue = "q".repeat(QueueName::MAX_BYTES);
        let named = QueueName::in_namespace(&longest, &queue).unwrap();
        assert_eq!(named.as_str().len(), QueueName::TEXT_MAX_BYTES);
        assert_eq!(
            (named.namespace(), named.name()),
            (longest.as_str(), &*queue)
        );
        for (space, name, text) in [("default", "q", "q"), ("a", "q", "a/q"), ("q", "q", "q/q")] {
            let named = QueueName::in_namespace(&namespace(space), name).unwrap();
            assert_eq!((named.namespace(), named.name()), (space, name));
            assert_eq!((named.as_str(), named.to_string().as_str()), (text, text));
            assert_eq!(QueueName::from_text(text), Ok(named.clone()));
            let stored = postcard::to_allocvec(&named).unwrap();
            assert_eq!(postcard::from_bytes(&stored), Ok(named));
        }
    }

    /// The text of a name in a namespace was read as another name.
    #[test]
    fn the_parts_of_every_name_lead_back_to_it() {
        for (queue, key) in [
            ("orders", "42"),
            ("orders", "a/b"),
            ("tenant-7/orders", "42"),
            ("tenant-7", "orders/42"),
            ("tenant-7/orders", "/"),
        ] {
            let name = TimerName::from_text(queue, key).unwrap();
            assert_eq!(name.parts(), (queue, key));
            assert_eq!(TimerName::try_from(name.parts()), Ok(name.clone()));
            let is_same = name.to_string().parse() == Ok(name.clone());
            assert_eq!(is_same, name.queue.is_in_default(), "{name}");
        }
    }

    #[test]
    fn a_text_that_no_queue_has_is_refused() {
        let slash = NameError::QueueCharacter { found: '/' };
        assert_eq!(QueueName::new("a/q"), Err(slash.clone()));
        assert_eq!(TimerName::new("a/q", "k"), Err(slash.clone()));
        let long = "n".repeat(Namespace::MAX_BYTES + 1);
        let too_long = NameError::NamespaceTooLong { bytes: long.len() };
        for (text, error) in [
            ("default/q", NameError::NamespaceDefault),
            ("/q", NameError::NamespaceEmpty),
            ("a/", NameError::QueueEmpty),
            ("a/b/q", slash),
            ("a b/q", NameError::NamespaceCharacter { found: ' ' }),
            (&format!("{long}/q"), too_long),
            ("", NameError::QueueEmpty),
        ] {
            assert_eq!(QueueName::from_text(text), Err(error), "{text:?}");
            let stored = postcard::to_allocvec(text).unwrap();
            assert!(
                postcard::from_bytes::<QueueName>(&stored).is_err(),
                "{text:?}"
            );
        }
        let queue = "q".repeat(QueueName::MAX_BYTES + 1);
        let bytes = queue.len();
        let error = NameError::QueueTooLong { bytes };
        assert_eq!(QueueName::from_text(format!("a/{queue}")), Err(error));
    }
}
