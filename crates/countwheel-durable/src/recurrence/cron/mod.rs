//! Cron expressions: the local times that they name, and their instants in a zone.

mod calendar;
mod parse;

use std::fmt;
use std::sync::Arc;

use calendar::Fields;

pub use parse::CronError;

/// A cron expression: five fields (minute, hour, day of the month, month, day of the week), or
/// six with the second first.
///
/// | field | values | names and marks |
/// |---|---|---|
/// | second, minute | 0 to 59 | |
/// | hour | 0 to 23 | |
/// | day of the month | 1 to 31 | `?`; `L` the last, `L-3` three before it; `15W` the weekday nearest to the 15th in its month, `LW` the last weekday |
/// | month | 1 to 12 | `JAN` to `DEC` |
/// | day of the week | 0 to 7, Sunday is 0 and 7 | `SUN` to `SAT`; `?`; `5L` the month's last Friday; `5#2` its second |
///
/// Every field takes `*`, numbers, ranges `a-b`, steps `*/n`, `a-b/n`, `a/n` (from a to the
/// end), and lists of these. Names can be used where numbers can. For a whole expression there
/// are `@yearly`, `@annually`, `@monthly`, `@weekly`, `@daily`, `@midnight` and `@hourly`.
///
/// If neither day field begins with `*` or `?`, a day needs to match only one of them, as in
/// Vixie's cron: `0 0 13 * FRI` is every 13th and every Friday. Otherwise it has to match both.
///
/// # Where the local time jumps
///
/// As in Vixie's cron, it depends on how the expression is written:
///
/// - One that names its hour and its minute has each of its times once: a time that is left out
///   when the clocks go forward comes at the first instant after the gap; a time that there is
///   twice when they go back comes the first time only. Times that come at the same instant are
///   one.
/// - One whose hour or minute begins with `*` follows what a clock on the wall shows: a time
///   that is left out does not come, and one that there is twice comes twice. So `*/10 * * * *`
///   comes every ten minutes, whatever the clocks do.
///
/// The rule is the same for jumps of any length, a whole day included.
///
/// ```
/// use countwheel_durable::{CronError, CronExpression};
///
/// let workdays = CronExpression::new("0 9 * * MON-FRI")?;
/// assert_eq!(workdays.as_str(), "0 9 * * MON-FRI");
/// assert_eq!(CronExpression::new("0 0 30 2 *"), Err(CronError::Never));
/// assert!(matches!(CronExpression::new("60 * * * *"), Err(CronError::Part { .. })));
/// # Ok::<(), CronError>(())
/// ```
#[derive(Clone, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CronExpression {
    text: Arc<str>,
    fields: Fields,
}

impl CronExpression {
    /// The longest expression, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Reads an expression. O(its length), and O(100 years of days) to refuse one that names no
    /// day.
    ///
    /// # Errors
    /// [`CronError`] says which part is wrong.
    pub fn new(text: impl AsRef<str>) -> Result<Self, CronError> {
        let text = text.as_ref();
        let fields = parse::fields(text)?;
        if !fields.ever_match() {
            return Err(CronError::Never);
        }
        Ok(Self {
            text: text.into(),
            fields,
        })
    }

    /// The expression as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }
}

impl PartialEq for CronExpression {
    /// Whether they are written in the same way.
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for CronExpression {}

impl fmt::Debug for CronExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.text)
    }
}

impl fmt::Display for CronExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::str::FromStr for CronExpression {
    type Err = CronError;

    fn from_str(text: &str) -> Result<Self, CronError> {
        Self::new(text)
    }
}

impl TryFrom<String> for CronExpression {
    type Error = CronError;

    fn try_from(text: String) -> Result<Self, CronError> {
        Self::new(text)
    }
}

impl From<CronExpression> for String {
    fn from(expression: CronExpression) -> Self {
        expression.text.as_ref().to_owned()
    }
}

#[cfg(test)]
mod tests;
