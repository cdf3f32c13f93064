//! The header `grpc-timeout`: how much time is left, as text for another process.
//!
//! The text is a number of at most eight digits and a unit: `H` hours, `M` minutes, `S` seconds, `m`
//! milliseconds, `u` microseconds, `n` nanoseconds. Two processes share no clock, so what travels is a
//! duration. Nobody knows how long the message was on its way: take off what that may be with
//! [`Deadline::shrink_by`] before you write it.
//!
//! ```
//! use countwheel::Instant;
//! use countwheel_tower::{Deadline, grpc_timeout};
//! use std::time::Duration;
//!
//! let now = Instant::ZERO;
//! let deadline = Deadline::at(now + Duration::from_millis(1_500));
//! let header = grpc_timeout::write(deadline, now).expect("there is a limit");
//! assert_eq!(header, "1500000u");
//!
//! let theirs = Instant::from_nanos(7); // another clock
//! let read = grpc_timeout::read(&header, theirs)?;
//! assert_eq!(read.remaining(theirs), Duration::from_millis(1_500));
//! # Ok::<(), grpc_timeout::ReadError>(())
//! ```

use std::time::Duration;

use countwheel::Instant;

use crate::Deadline;

/// No number of the header is larger.
const MOST: u128 = 99_999_999;

/// The units, each with its length in nanoseconds, the finest first.
const UNITS: [(char, u128); 6] = [
    ('n', 1),
    ('u', 1_000),
    ('m', 1_000_000),
    ('S', 1_000_000_000),
    ('M', 60_000_000_000),
    ('H', 3_600_000_000_000),
];

/// Why a text is no `grpc-timeout`.
///
/// ```
/// use countwheel::Instant;
/// use countwheel_tower::grpc_timeout::{self, ReadError};
///
/// let read = |text| grpc_timeout::read(text, Instant::ZERO).unwrap_err();
/// assert_eq!(read("10x"), ReadError::Unit);
/// assert_eq!(read("123456789n"), ReadError::Number);
/// assert_eq!(read("S").to_string(), "a grpc-timeout begins with one to eight digits");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Something else than one to eight decimal digits before the unit.
    #[error("a grpc-timeout begins with one to eight digits")]
    Number,
    /// None of the six units at the end.
    #[error("a grpc-timeout ends with one of the units H, M, S, m, u, n")]
    Unit,
}

/// What is left of `deadline` at `now`: in the finest unit that has room for it, rounded down, so that the
/// other side does not think it has more. `None` if the deadline never comes: then send no header.
///
/// ```
/// use countwheel::Instant;
/// use countwheel_tower::{Deadline, grpc_timeout};
///
/// assert_eq!(grpc_timeout::write(Deadline::NEVER, Instant::ZERO), None);
/// let passed = Deadline::at(Instant::ZERO);
/// assert_eq!(grpc_timeout::write(passed, Instant::from_nanos(1)).as_deref(), Some("0n"));
/// ```
#[must_use]
pub fn write(deadline: Deadline, now: Instant) -> Option<String> {
    if deadline == Deadline::NEVER {
        return None;
    }
    let nanos = deadline.remaining(now).as_nanos();
    // A deadline is less than 585 years of nanoseconds away, which hours have room for.
    let (unit, count) = UNITS
        .iter()
        .map(|(unit, length)| (unit, nanos / length))
        .find(|&(_, count)| count <= MOST)?;
    Some(format!("{count}{unit}"))
}

/// The deadline that a header stands for, which came at `now`. One that is beyond the clock's end never
/// comes.
///
/// # Errors
/// [`ReadError`] if the text is something else. A caller that answers with an error then is on the safe
/// side.
pub fn read(text: &str, now: Instant) -> Result<Deadline, ReadError> {
    let unit = text.chars().next_back().ok_or(ReadError::Number)?;
    let (_, length) = UNITS
        .into_iter()
        .find(|&(known, _)| known == unit)
        .ok_or(ReadError::Unit)?;
    let digits = &text[..text.len() - 1]; // all units are of one byte
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ReadError::Number);
    }
    let count: u128 = digits.parse().map_err(|_| ReadError::Number)?;
    let nanos = u64::try_from(count * length).unwrap_or(u64::MAX);
    Ok(Deadline::NEVER.shrink_to(now, Duration::from_nanos(nanos)))
}
