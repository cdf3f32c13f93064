//! A time zone by its name in the IANA database.

use std::fmt;

use countwheel_time::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

/// A time zone of the IANA database, which is part of this program: what the machine has
/// installed does not matter.
///
/// ```
/// use countwheel_durable::{UnknownZone, Zone};
///
/// assert_eq!(Zone::new("europe/berlin")?.name(), "Europe/Berlin");
/// assert_eq!(Zone::default(), Zone::new("UTC")?);
/// assert!(Zone::new("Europe/Atlantis").is_err());
/// # Ok::<(), UnknownZone>(())
/// ```
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Zone(TimeZone);

/// A name that the IANA database does not have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{name:?} is no time zone of the IANA database, such as Europe/Berlin or UTC")]
pub struct UnknownZone {
    /// The name.
    pub name: String,
}

impl Zone {
    /// The zone of that name, in whatever case. The first use of a zone reads its rules; after
    /// that it is a look-up.
    ///
    /// # Errors
    /// [`UnknownZone`].
    pub fn new(name: impl AsRef<str>) -> Result<Self, UnknownZone> {
        let name = name.as_ref();
        // Names are at most 32 bytes long today. A long one need not be repeated in full.
        let unknown = || UnknownZone {
            name: name.chars().take(64).collect(),
        };
        let zone = TimeZoneDatabase::bundled().get(name);
        // The database's own word for "no zone known" is none either.
        zone.ok()
            .filter(|zone| zone.iana_name().is_some_and(|name| name != "Etc/Unknown"))
            .map(Self)
            .ok_or_else(unknown)
    }

    /// Its name as the database writes it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// What a clock in the zone shows at `time`, with the offset and the zone (RFC 9557). Times
    /// after the year 9999 are shown as its end.
    ///
    /// ```
    /// use countwheel_time::Timestamp;
    /// use countwheel_durable::Zone;
    ///
    /// let noon = Timestamp::from_micros(1_772_366_400_000_000);
    /// let shown = Zone::new("Asia/Kathmandu")?.show(noon);
    /// assert_eq!(shown, "2026-03-01T17:45:00+05:45[Asia/Kathmandu]");
    /// # Ok::<(), countwheel_durable::UnknownZone>(())
    /// ```
    #[must_use]
    pub fn show(&self, time: Timestamp) -> String {
        let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let time = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
        time.to_zoned(self.0.clone()).to_string()
    }

    pub(super) fn rules(&self) -> &TimeZone {
        &self.0
    }
}

impl Default for Zone {
    /// UTC.
    fn default() -> Self {
        Self(TimeZone::UTC)
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.name())
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl TryFrom<String> for Zone {
    type Error = UnknownZone;

    fn try_from(name: String) -> Result<Self, UnknownZone> {
        Self::new(name)
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> Self {
        zone.name().to_owned()
    }
}
