//! What a timer is set with: bytes, or a value as JSON.

use std::borrow::Cow;

#[cfg(feature = "json")]
use serde::Serialize;
#[cfg(feature = "json")]
use serde::de::DeserializeOwned;

#[cfg(feature = "json")]
use crate::Attempt;

/// The bytes that a timer is set with and that each of its attempts carries.
///
/// Bytes and texts become a payload as they are, and `()` is the empty payload. [`Json`] makes the
/// payload of a value.
///
/// ```
/// use countwheel_durable::Payload;
///
/// assert_eq!(Payload::from("close it"), Payload::from(b"close it"));
/// assert_eq!(Payload::from(()), Payload::default());
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Payload(pub Vec<u8>);

/// A value whose JSON text is the payload. An attempt reads the value back with [`Attempt::json`].
///
/// ```
/// use countwheel_durable::{Json, Payload};
///
/// let order = serde_json::json!({ "id": 42 });
/// assert_eq!(Payload::try_from(Json(&order))?, Payload::from(r#"{"id":42}"#));
/// # Ok::<(), countwheel_durable::PayloadError>(())
/// ```
#[cfg(feature = "json")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Json<T>(pub T);

/// Why a value is no payload, or a payload is not the value that was asked for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// The value has no JSON text, such as a map whose keys are no texts.
    #[error("the payload cannot be written as JSON: {reason}")]
    Write {
        /// What was wrong.
        reason: String,
    },
    /// The payload is not the JSON text of such a value.
    #[error("the payload is not the JSON of {wanted}: {reason}")]
    Read {
        /// The type that was asked for.
        wanted: &'static str,
        /// What was wrong, with line and column.
        reason: String,
    },
}

#[cfg(feature = "json")]
impl<T: Serialize> TryFrom<Json<T>> for Payload {
    type Error = PayloadError;

    fn try_from(Json(value): Json<T>) -> Result<Self, PayloadError> {
        let bytes = serde_json::to_vec(&value).map_err(|error| PayloadError::Write {
            reason: error.to_string(),
        })?;
        Ok(Self(bytes))
    }
}

#[cfg(feature = "json")]
impl Attempt {
    /// The value whose JSON text is the payload. A handler that hands the error on with `?` fails the
    /// attempt with the reason as its detail.
    ///
    /// ```
    /// use countwheel_durable::{Attempt, PayloadError};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Order {
    ///     id: u64,
    /// }
    ///
    /// fn close(attempt: &Attempt) -> Result<(), PayloadError> {
    ///     let order: Order = attempt.json()?;
    ///     println!("close order {}", order.id);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`PayloadError::Read`] with the type, the reason, the line and the column.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        serde_json::from_slice(&self.payload).map_err(|error| PayloadError::Read {
            wanted: short_name::<T>(),
            reason: error.to_string(),
        })
    }
}

/// The name of a type without the modules it is in, as far as it has no parameters.
#[cfg(feature = "json")]
fn short_name<T>() -> &'static str {
    let whole = std::any::type_name::<T>();
    if whole.contains('<') {
        return whole;
    }
    whole.rsplit("::").next().unwrap_or(whole)
}

macro_rules! payload_from {
    ($($bytes:ty),*) => {$(
        impl From<$bytes> for Payload {
            fn from(bytes: $bytes) -> Self {
                Self(bytes.into())
            }
        }
    )*};
}

payload_from!(Vec<u8>, &[u8], Box<[u8]>, String, &str);

impl From<&Vec<u8>> for Payload {
    fn from(bytes: &Vec<u8>) -> Self {
        Self(bytes.clone())
    }
}

impl From<&String> for Payload {
    fn from(text: &String) -> Self {
        Self(text.as_str().into())
    }
}

impl From<Cow<'_, str>> for Payload {
    fn from(text: Cow<'_, str>) -> Self {
        Self(text.into_owned().into())
    }
}

impl From<Cow<'_, [u8]>> for Payload {
    fn from(bytes: Cow<'_, [u8]>) -> Self {
        Self(bytes.into_owned())
    }
}

impl<const N: usize> From<[u8; N]> for Payload {
    fn from(bytes: [u8; N]) -> Self {
        Self(bytes.into())
    }
}

impl<const N: usize> From<&[u8; N]> for Payload {
    fn from(bytes: &[u8; N]) -> Self {
        Self(bytes.into())
    }
}

impl From<()> for Payload {
    fn from((): ()) -> Self {
        Self::default()
    }
}
