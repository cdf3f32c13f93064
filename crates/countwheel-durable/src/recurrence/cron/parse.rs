//! Reading an expression.

use super::CronExpression;
use super::calendar::{Fields, MonthDays, WeekDays};

/// Why a text is not a cron expression.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CronError {
    /// It is too long.
    #[error("a cron expression has at most {max} bytes, not {found}", max = CronExpression::MAX_BYTES)]
    Length {
        /// How long it is.
        found: usize,
    },
    /// It has too few fields, or too many.
    #[error("a cron expression has 5 fields, or 6 with the second first, not {found}")]
    Fields {
        /// How many it has.
        found: usize,
    },
    /// It begins with `@` and is none of those known.
    #[error("{found} is none of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly")]
    Nickname {
        /// What it is.
        found: String,
    },
    /// A part of a field cannot be read.
    #[error("{part:?} cannot stand in the {field} of a cron expression, which takes {takes}")]
    Part {
        /// The field.
        field: &'static str,
        /// The part.
        part: String,
        /// What would be right.
        takes: &'static str,
    },
    /// There is no such day.
    #[error("no day matches the days and months of this cron expression")]
    Never,
}

/// The shape of a field.
struct Shape {
    name: &'static str,
    takes: &'static str,
    min: u8,
    max: u8,
    /// Names of the values from `min` on.
    names: &'static [&'static str],
}

const SECOND: Shape = Shape {
    name: "second",
    takes: "0 to 59",
    min: 0,
    max: 59,
    names: &[],
};
const MINUTE: Shape = Shape {
    name: "minute",
    ..SECOND
};
const HOUR: Shape = Shape {
    name: "hour",
    takes: "0 to 23",
    min: 0,
    max: 23,
    names: &[],
};
const MONTH_DAY: Shape = Shape {
    name: "day of the month",
    takes: "1 to 31, ?, L, L-1 to L-30, 1W to 31W, LW",
    min: 1,
    max: 31,
    names: &[],
};
const MONTH: Shape = Shape {
    name: "month",
    takes: "1 to 12 or JAN to DEC",
    min: 1,
    max: 12,
    names: &[
        "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
    ],
};
const WEEK_DAY: Shape = Shape {
    name: "day of the week",
    takes: "0 to 7 or SUN to SAT, ?, 0L to 7L, 0#1 to 7#5",
    min: 0,
    max: 7,
    names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
};

/// The fields of the expression `text`.
pub(super) fn fields(text: &str) -> Result<Fields, CronError> {
    if text.len() > CronExpression::MAX_BYTES {
        return Err(CronError::Length { found: text.len() });
    }
    let text = match text.trim() {
        nickname if nickname.starts_with('@') => {
            spelled_out(nickname).ok_or_else(|| CronError::Nickname {
                found: nickname.to_owned(),
            })?
        }
        text => text,
    };
    let parts: Vec<&str> = text.split_ascii_whitespace().collect();
    let (second, [minute, hour, month_day, month, week_day]) = match *parts {
        [a, b, c, d, e] => ("0", [a, b, c, d, e]),
        [second, a, b, c, d, e] => (second, [a, b, c, d, e]),
        _ => return Err(CronError::Fields { found: parts.len() }),
    };
    Ok(Fields {
        seconds: plain(&SECOND, second)?,
        minutes: plain(&MINUTE, minute)?,
        hours: plain(&HOUR, hour)?,
        month_days: month_days(month_day)?,
        months: plain(&MONTH, month)?,
        week_days: week_days(week_day)?,
        follows_the_clock: minute.starts_with('*') || hour.starts_with('*'),
    })
}

fn spelled_out(nickname: &str) -> Option<&'static str> {
    Some(match nickname.to_ascii_lowercase().as_str() {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => return None,
    })
}

/// A field of numbers only.
fn plain(shape: &Shape, text: &str) -> Result<u64, CronError> {
    text.split(',').try_fold(0, |bits, part| {
        let more = values(shape, part).ok_or_else(|| wrong(shape, part))?;
        Ok(bits | more)
    })
}

fn month_days(text: &str) -> Result<MonthDays, CronError> {
    let mut found = MonthDays {
        star: starred(text),
        ..MonthDays::default()
    };
    for part in text.split(',') {
        month_day(&mut found, &part.to_ascii_uppercase()).ok_or_else(|| wrong(&MONTH_DAY, part))?;
    }
    Ok(found)
}

/// Takes in one part, in capitals; `None` if it is none.
fn month_day(found: &mut MonthDays, part: &str) -> Option<()> {
    if part == "L" {
        found.from_last |= 1;
    } else if part == "LW" {
        found.last_weekday = true;
    } else if let Some(days) = part.strip_prefix("L-") {
        let days = number(days).filter(|days| (1..=30).contains(days))?;
        found.from_last |= 1 << days;
    } else if let Some(day) = part.strip_suffix('W') {
        found.nearest |= 1 << value(&MONTH_DAY, day)?;
    } else {
        found.days |= values(&MONTH_DAY, question_is_star(part))?;
    }
    Some(())
}

fn week_days(text: &str) -> Result<WeekDays, CronError> {
    let mut found = WeekDays {
        star: starred(text),
        ..WeekDays::default()
    };
    for part in text.split(',') {
        week_day(&mut found, &part.to_ascii_uppercase()).ok_or_else(|| wrong(&WEEK_DAY, part))?;
    }
    // Sunday has two numbers.
    found.days = (found.days | (found.days >> 7)) & 0x7f;
    Ok(found)
}

/// Takes in one part, in capitals; `None` if it is none.
fn week_day(found: &mut WeekDays, part: &str) -> Option<()> {
    let day = |text| value(&WEEK_DAY, text).map(|day| 1 << (day % 7));
    if let Some(last) = part.strip_suffix('L') {
        found.last |= day(last)?;
    } else if let Some((name, nth)) = part.split_once('#') {
        let nth = number(nth).filter(|nth| (1..=5).contains(nth))?;
        found.nth[usize::from(nth) - 1] |= day(name)?;
    } else {
        found.days |= values(&WEEK_DAY, question_is_star(part))?;
    }
    Some(())
}

fn question_is_star(part: &str) -> &str {
    if part == "?" { "*" } else { part }
}

fn starred(text: &str) -> bool {
    text.starts_with(['*', '?'])
}

/// The values of `*`, `a`, `a-b`, and of these with a step.
fn values(shape: &Shape, part: &str) -> Option<u64> {
    let (range, step) = match part.split_once('/') {
        Some((range, step)) => (range, Some(number(step).filter(|&step| step > 0)?)),
        None => (part, None),
    };
    let (first, last) = if range == "*" {
        (shape.min, shape.max)
    } else if let Some((first, last)) = range.split_once('-') {
        let (first, last) = (value(shape, first)?, value(shape, last)?);
        // A week that ends on Sunday ends on its seventh day.
        let sunday = shape.max == 7 && last == 0 && first > 0;
        (first, if sunday { 7 } else { last })
    } else {
        let first = value(shape, range)?;
        let last = if step.is_some() { shape.max } else { first };
        (first, last)
    };
    // Sunday is not both ends of a week that nobody bounded.
    let open = range == "*" || (step.is_some() && !range.contains('-'));
    let last = if open && shape.max == 7 && first < 7 {
        6
    } else {
        last
    };
    if first > last {
        return None;
    }
    let stepped = (first..=last).step_by(usize::from(step.unwrap_or(1)));
    Some(stepped.fold(0, |bits, value| bits | 1 << value))
}

/// One value: a number or a name.
fn value(shape: &Shape, text: &str) -> Option<u8> {
    let named = shape
        .names
        .iter()
        .position(|name| name.eq_ignore_ascii_case(text))
        .and_then(|index| u8::try_from(index).ok());
    let value = match named {
        Some(index) => shape.min + index,
        None => number(text)?,
    };
    (shape.min..=shape.max).contains(&value).then_some(value)
}

/// One or two digits.
fn number(text: &str) -> Option<u8> {
    let digits = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

fn wrong(shape: &Shape, part: &str) -> CronError {
    CronError::Part {
        field: shape.name,
        part: part.to_owned(),
        takes: shape.takes,
    }
}
