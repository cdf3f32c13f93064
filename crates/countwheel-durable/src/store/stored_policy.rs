//! How a record has its retry policy.
//!
//! A [`Record`](crate::Record) serializes its policy with this module, and a store that reads older
//! forms of a record can do so, too. The form is fixed: what was written once is read by every
//! version.
//!
//! ```
//! use countwheel_durable::RetryPolicy;
//!
//! #[derive(PartialEq, Debug, serde::Serialize, serde::Deserialize)]
//! struct Kept {
//!     #[serde(with = "countwheel_durable::store::stored_policy")]
//!     policy: RetryPolicy,
//! }
//!
//! let kept = Kept { policy: RetryPolicy::wechat() };
//! let bytes = postcard::to_allocvec(&kept)?;
//! assert_eq!(bytes, [1, 0, 0, 0, 0]);
//! assert_eq!(postcard::from_bytes::<Kept>(&bytes)?, kept);
//!
//! let capped = RetryPolicy::fixed(std::time::Duration::ZERO).cap(std::time::Duration::ZERO);
//! assert!(postcard::to_allocvec(&Kept { policy: capped }).is_err(), "no record has room for it");
//! # Ok::<(), postcard::Error>(())
//! ```

use std::borrow::Cow;
use std::time::Duration;

use countwheel_time::{Delays, Jitter, Preset, RetryPolicy, RetryPolicyError, RetrySettings};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use crate::PolicyError;
use crate::policy::DELAY_MAX;

/// Writes a policy. A schedule that grows without a cap is written with the longest delay that a
/// timer may have as its cap, and comes back so.
///
/// # Errors
/// Those of the serializer, and one with the text of a [`PolicyError`] if the form has no room for
/// what the policy says. Every policy that [`check_policy`](crate::check_policy) takes can be
/// written.
pub fn serialize<S: Serializer>(policy: &RetryPolicy, serializer: S) -> Result<S::Ok, S::Error> {
    let stored = Stored::of(policy).map_err(ser::Error::custom)?;
    stored.serialize(serializer)
}

/// Reads what [`serialize`] has written.
///
/// # Errors
/// Those of the deserializer, and one with the text of a [`RetryPolicyError`] if what is there is
/// no policy.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RetryPolicy, D::Error> {
    let stored = Stored::deserialize(deserializer)?;
    stored.policy().map_err(de::Error::custom)
}

/// Whether the first programs that read this form find no policy in what [`serialize`] writes of
/// this one: linear schedules and the presets but `wechat` came later. A store notes it beside the
/// record, so that an older program says that the record is of a later version, and not that it is
/// damaged.
///
/// ```
/// use countwheel_durable::{RetryPolicy, store::stored_policy};
///
/// assert!(stored_policy::came_later(&RetryPolicy::eureka()));
/// assert!(!stored_policy::came_later(&RetryPolicy::wechat()));
/// ```
#[must_use]
pub fn came_later(policy: &RetryPolicy) -> bool {
    let settings = policy.settings();
    match settings.preset {
        Some(preset) => preset != Preset::Wechat,
        None => matches!(settings.delays, Delays::Linear { .. }),
    }
}

/// The fields of a policy in the order in which they are written.
#[derive(Serialize, Deserialize)]
#[serde(rename = "RetryPolicy")]
pub(crate) struct Stored<'a> {
    pub(crate) delays: StoredDelays<'a>,
    jitter: StoredJitter,
    /// A list that has fewer delays repeats its last.
    pub(crate) max_attempts: Option<u32>,
    pub(crate) max_age: Option<Duration>,
}

// The order of the variants is written, too: a new one comes last.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Delays")]
pub(crate) enum StoredDelays<'a> {
    List(Cow<'a, [Duration]>),
    Preset(StoredPreset),
    Fixed(Duration),
    Exponential {
        first: Duration,
        factor: f64,
        cap: Duration,
    },
    Linear {
        first: Duration,
        increment: Duration,
        cap: Duration,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "Preset")]
pub(crate) enum StoredPreset {
    Wechat,
    DubboFailback,
    DubboRegistry,
    Eureka,
    GoZeroCleaner,
}

impl StoredPreset {
    fn of(preset: Preset) -> Option<Self> {
        Some(match preset {
            Preset::Wechat => Self::Wechat,
            Preset::DubboFailback => Self::DubboFailback,
            Preset::DubboRegistry => Self::DubboRegistry,
            Preset::Eureka => Self::Eureka,
            Preset::GoZeroCleaner => Self::GoZeroCleaner,
            _ => return None,
        })
    }

    fn policy(&self) -> RetryPolicy {
        let preset = match self {
            Self::Wechat => Preset::Wechat,
            Self::DubboFailback => Preset::DubboFailback,
            Self::DubboRegistry => Preset::DubboRegistry,
            Self::Eureka => Preset::Eureka,
            Self::GoZeroCleaner => Preset::GoZeroCleaner,
        };
        preset.policy()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "Jitter", rename_all = "lowercase")]
enum StoredJitter {
    None,
    Full,
    Equal,
}

impl<'a> Stored<'a> {
    /// What is written of `policy`.
    ///
    /// # Errors
    /// [`PolicyError::NotKept`] if there is no room for something that it says.
    pub(crate) fn of(policy: &'a RetryPolicy) -> Result<Self, PolicyError> {
        // Every field by its name: a new one cannot be lost.
        let RetrySettings {
            delays,
            preset,
            repeats_last,
            cap,
            jitter,
            max_attempts,
            max_age,
            retry_after_cap,
        } = policy.settings();
        let not_kept = |found| Err(PolicyError::NotKept { found });
        if let Delays::List(list) = delays {
            let retries = max_attempts.map(|most| most.saturating_sub(1));
            let is_longer = retries.is_some_and(|retries| retries as usize > list.len());
            if repeats_last && !is_longer {
                return not_kept("list that repeats its last delay without max_attempts");
            }
            if is_longer && !repeats_last {
                return not_kept("max_attempts beyond a list that does not repeat its last delay");
            }
        }
        if retry_after_cap.is_some() {
            return not_kept("cap of what a receiver asks for with Retry-After");
        }
        let delays = match (preset, delays, cap) {
            (Some(preset), ..) => match StoredPreset::of(preset) {
                Some(preset) => StoredDelays::Preset(preset),
                None => return not_kept("preset of this name"),
            },
            (None, Delays::List(list), None) => StoredDelays::List(Cow::Borrowed(list)),
            (None, Delays::Fixed(delay), None) => StoredDelays::Fixed(delay),
            (None, Delays::Exponential { first, factor }, cap) => {
                let cap = cap.unwrap_or(DELAY_MAX);
                StoredDelays::Exponential { first, factor, cap }
            }
            (None, Delays::Linear { first, increment }, cap) => {
                let cap = cap.unwrap_or(DELAY_MAX);
                StoredDelays::Linear {
                    first,
                    increment,
                    cap,
                }
            }
            (None, Delays::List(_) | Delays::Fixed(_), Some(_)) => {
                return not_kept("cap of a list or of a fixed delay");
            }
        };
        let jitter = match jitter {
            Jitter::None => StoredJitter::None,
            Jitter::Full => StoredJitter::Full,
            Jitter::Equal => StoredJitter::Equal,
            _ => return not_kept("jitter but none, full and equal"),
        };
        Ok(Self {
            delays,
            jitter,
            max_attempts,
            max_age,
        })
    }

    fn policy(self) -> Result<RetryPolicy, RetryPolicyError> {
        let policy = match self.delays {
            StoredDelays::List(list) => RetryPolicy::list(list.iter().copied())?,
            StoredDelays::Preset(preset) => preset.policy(),
            StoredDelays::Fixed(delay) => RetryPolicy::fixed(delay),
            StoredDelays::Exponential { first, factor, cap } => {
                RetryPolicy::exponential(first, factor)?.cap(cap)
            }
            StoredDelays::Linear {
                first,
                increment,
                cap,
            } => RetryPolicy::linear(first, increment).cap(cap),
        };
        let policy = policy.jitter(match self.jitter {
            StoredJitter::None => Jitter::None,
            StoredJitter::Full => Jitter::Full,
            StoredJitter::Equal => Jitter::Equal,
        });
        let policy = match self.max_age {
            Some(age) => policy.max_age(age),
            None => policy,
        };
        match self.max_attempts {
            Some(attempts) => policy.repeat_last().max_attempts(attempts),
            None => Ok(policy),
        }
    }
}
