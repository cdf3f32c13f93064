//! The configuration beside the timers: a small map that belongs to the whole store.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::planted::planted;
use crate::{Key, NameError};

/// What a setting is called: 1 to 256 bytes of UTF-8 without control characters, otherwise opaque.
///
/// ```
/// use countwheel_durable::{SettingError, SettingName};
///
/// assert_eq!(SettingName::new("queue/orders")?.as_str(), "queue/orders");
/// assert_eq!(SettingName::new(""), Err(SettingError::NameEmpty));
/// assert_eq!(SettingName::new("a\nb"), Err(SettingError::NameControl { code_point: 0x0a }));
/// # Ok::<(), SettingError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SettingName(Key);

impl SettingName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = Key::MAX_BYTES;

    /// Checks and takes `name`. The rules are those of a [`Key`].
    ///
    /// # Errors
    /// [`SettingError`] says which rule it breaks.
    pub fn new(name: impl AsRef<str>) -> Result<Self, SettingError> {
        Key::new(name).map(Self).map_err(|error| match error {
            NameError::KeyTooLong { bytes } => SettingError::NameTooLong { bytes },
            NameError::KeyControl { code_point } => SettingError::NameControl { code_point },
            _ => SettingError::NameEmpty,
        })
    }

    /// The setting of that key, for a store that keeps settings as records.
    ///
    /// ```
    /// use countwheel_durable::SettingName;
    ///
    /// let name = SettingName::new("limits")?;
    /// assert_eq!(SettingName::of_key(name.key().clone()), name);
    /// # Ok::<(), countwheel_durable::SettingError>(())
    /// ```
    #[must_use]
    pub fn of_key(key: Key) -> Self {
        Self(key)
    }

    /// The name as the key of a record.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for SettingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SettingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Why something is no setting, or one too many.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// A name has at least one byte.
    #[error("the name of a setting has at least one byte")]
    NameEmpty,
    /// A name has at most 256 bytes.
    #[error(
        "the name of a setting has at most {max} bytes, not {bytes}",
        max = SettingName::MAX_BYTES
    )]
    NameTooLong {
        /// How many it has.
        bytes: usize,
    },
    /// A name has no control characters.
    #[error("the name of a setting has no control characters, such as U+{code_point:04X}")]
    NameControl {
        /// The first one found.
        code_point: u32,
    },
    /// A value has at most 64 KiB.
    #[error("a setting has at most {max} bytes, not {bytes}", max = Setting::VALUE_MAX_BYTES)]
    ValueTooLong {
        /// How many it has.
        bytes: usize,
    },
    /// There is a setting of that name, and the request asked for a new one.
    #[error("a setting of that name exists, with version {}", version.0)]
    Exists {
        /// The change that made it what it is.
        version: SettingsVersion,
    },
    /// The setting has another version than the one asked for.
    #[error("the setting has version {}, another than asked for", current.0)]
    Changed {
        /// The change that made it what it is.
        current: SettingsVersion,
    },
    /// There is no setting of that name, and the request asked for a version of it.
    #[error("there is no setting of that name")]
    NotFound,
    /// Some setting has changed since the version of all settings that the request asked for.
    #[error("the settings have version {}, another than asked for", current.0)]
    SettingsChanged {
        /// The last change of any of them.
        current: SettingsVersion,
    },
    /// All settings together have at most 16 MiB.
    #[error("all settings have at most {max} bytes together, not {bytes}", max = Settings::MAX_BYTES)]
    TooMany {
        /// How many they would have.
        bytes: usize,
    },
}

/// What must hold of a setting for a request to change it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SettingPrecondition {
    /// Nothing.
    #[default]
    None,
    /// There is none of that name.
    Absent,
    /// It was changed last by this change.
    Version(SettingsVersion),
    /// No setting at all was changed since this change: what was read of all of them, at that
    /// [version](Settings::version), still holds.
    Settings(SettingsVersion),
}

/// A change of one setting.
///
/// ```
/// use countwheel_durable::store::{Change, MemoryStore, Shard, Store};
/// use countwheel_durable::{Setting, SettingName, SettingsVersion};
///
/// let store = MemoryStore::new(7);
/// let lease = store.acquire(Shard::ONLY)?.lease;
/// let setting = Setting {
///     name: SettingName::new("queue/orders")?,
///     value: Some(b"{}".to_vec()),
/// };
/// store.commit(lease, &[Change::Setting(setting.clone())])?;
///
/// let settings = store.settings(SettingsVersion::default())?.expect("one has changed");
/// let found = settings.get(&setting.name).expect("it is there");
/// assert_eq!((found.value.as_slice(), found.version), (&b"{}"[..], settings.version()));
/// assert_eq!(store.settings(settings.version())?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: SettingName,
    /// What it is from now on; `None` removes it. Removing nothing is no error.
    pub value: Option<Vec<u8>>,
}

impl Setting {
    /// The longest value, in bytes.
    pub const VALUE_MAX_BYTES: usize = 64 << 10;
}

/// How long the value is, since it may be a secret.
impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.value.as_ref().map(Vec::len);
        f.debug_struct("Setting")
            .field("name", &self.name)
            .field("bytes", &bytes)
            .finish()
    }
}

/// How often a setting was changed, of all the settings that a store ever had. Only grows, also when
/// the last one is removed; each change makes it one greater, and a store that was repaired or
/// restored leaves some out.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct SettingsVersion(pub u64);

/// What a setting is.
#[derive(Clone, PartialEq, Eq)]
pub struct SettingValue {
    /// The change that made it so.
    pub version: SettingsVersion,
    /// The bytes.
    pub value: Vec<u8>,
}

/// How long the value is, since it may be a secret.
impl fmt::Debug for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettingValue")
            .field("version", &self.version)
            .field("bytes", &self.value.len())
            .finish()
    }
}

/// All settings of a store at one moment. See [`Setting`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    version: SettingsVersion,
    values: BTreeMap<SettingName, SettingValue>,
}

impl Settings {
    /// All settings together, names and values, have at most so many bytes.
    pub const MAX_BYTES: usize = 16 << 20;

    /// Those of a store, in `version`.
    ///
    /// ```
    /// use countwheel_durable::{Settings, SettingsVersion};
    ///
    /// let settings = Settings::new(SettingsVersion(3), []);
    /// assert_eq!(settings, Settings::new(SettingsVersion(3), []));
    /// assert_eq!((settings.version(), settings.bytes()), (SettingsVersion(3), 0));
    /// ```
    #[must_use]
    pub fn new(
        version: SettingsVersion,
        values: impl IntoIterator<Item = (SettingName, SettingValue)>,
    ) -> Self {
        Self {
            version,
            values: values.into_iter().collect(),
        }
    }

    /// The last change that is in it.
    #[must_use]
    pub fn version(&self) -> SettingsVersion {
        self.version
    }

    /// The setting of that name.
    #[must_use]
    pub fn get(&self, name: &SettingName) -> Option<&SettingValue> {
        self.values.get(name)
    }

    /// All of them, in order of name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&SettingName, &SettingValue)> {
        self.values.iter()
    }

    /// How many bytes they have, names and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let bytes = self
            .values
            .iter()
            .map(|(name, value)| name.as_str().len() + value.value.len());
        bytes.sum()
    }

    /// Makes a change, as a store does.
    pub(crate) fn apply(&mut self, change: &Setting) {
        self.version.0 = self.version.0.saturating_add(1);
        let version = self.version;
        match change.value.clone() {
            Some(value) => drop(
                self.values
                    .insert(change.name.clone(), SettingValue { version, value }),
            ),
            None => drop(self.values.remove(&change.name)),
        }
    }
}

/// The settings of one step: as they are known, then as the step changes them.
#[derive(Debug)]
pub(crate) struct SettingsDraft {
    known: Arc<Settings>,
    changes: Vec<Setting>,
    /// How many bytes all of them have; counted once it is asked for.
    bytes: Option<usize>,
    /// What there was when changes became such as can be undone.
    undo: Option<(usize, Option<usize>)>,
}

impl SettingsDraft {
    pub(crate) fn new(known: Arc<Settings>) -> Self {
        Self {
            known,
            changes: Vec::new(),
            bytes: None,
            undo: None,
        }
    }

    /// The version of a setting and how long it is; `None` if there is none of that name.
    pub(crate) fn current(&self, name: &SettingName) -> Option<(SettingsVersion, usize)> {
        let drafted = self.changes.iter().rposition(|it| it.name == *name);
        match drafted {
            Some(at) => {
                let bytes = self.changes[at].value.as_ref()?.len();
                let version = self.known.version.0 + at as u64 + 1;
                Some((SettingsVersion(version), bytes))
            }
            None => {
                let known = self.known.get(name)?;
                Some((known.version, known.value.len()))
            }
        }
    }

    /// Takes in a change, unless it breaks a rule or its precondition does not hold. Says the version
    /// that it gives if nobody else changes a setting meanwhile.
    pub(crate) fn change(
        &mut self,
        change: Setting,
        precondition: SettingPrecondition,
    ) -> Result<SettingsVersion, SettingError> {
        let current = self.current(&change.name);
        match (precondition, current) {
            (SettingPrecondition::Absent, Some((version, _))) => {
                return Err(SettingError::Exists { version });
            }
            (SettingPrecondition::Version(_), None) => return Err(SettingError::NotFound),
            (SettingPrecondition::Version(asked), Some((current, _))) if asked != current => {
                return Err(SettingError::Changed { current });
            }
            (SettingPrecondition::Settings(asked), _)
                if asked != self.version() && !planted!(SettingsUnchecked) =>
            {
                let current = self.version();
                return Err(SettingError::SettingsChanged { current });
            }
            _ => {}
        }
        let name = change.name.as_str().len();
        let before = current.map_or(0, |(_, bytes)| name + bytes);
        let known = self.bytes.unwrap_or_else(|| self.known.bytes());
        let mut bytes = known.saturating_sub(before);
        if let Some(value) = &change.value {
            let most = Setting::VALUE_MAX_BYTES;
            if value.len() > most {
                let bytes = value.len();
                return Err(SettingError::ValueTooLong { bytes });
            }
            bytes += name + value.len();
            if bytes > Settings::MAX_BYTES {
                return Err(SettingError::TooMany { bytes });
            }
        }
        self.bytes = Some(bytes);
        self.changes.push(change);
        Ok(self.version())
    }

    /// That of all settings, if nobody else changes one meanwhile.
    fn version(&self) -> SettingsVersion {
        SettingsVersion(self.known.version.0 + self.changes.len() as u64)
    }

    pub(crate) fn begin(&mut self) {
        self.undo = Some((self.changes.len(), self.bytes));
    }

    pub(crate) fn keep(&mut self) {
        self.undo = None;
    }

    pub(crate) fn undo(&mut self) {
        if let Some((changes, bytes)) = self.undo.take() {
            self.changes.truncate(changes);
            self.bytes = bytes;
        }
    }

    pub(crate) fn into_changes(self) -> Vec<Setting> {
        self.changes
    }
}
