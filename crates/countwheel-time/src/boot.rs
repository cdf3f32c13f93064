//! The start of the machine to which a reading of its boot clock belongs.

use std::fmt;

/// One start of a machine: readings of [`Clock::boot`](crate::Clock::boot) of two processes can
/// be compared if both have the same one.
///
/// ```
/// use countwheel_time::{BootId, Clock, ManualClock};
///
/// let clock = ManualClock::new();
/// assert_eq!(clock.clone().boot_id(), clock.boot_id());
/// clock.reboot(BootId::from_u128(7));
/// assert_eq!(clock.boot_id().map(BootId::as_u128), Some(7));
/// assert_eq!(clock.boot().as_nanos(), 0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId(u128);

impl BootId {
    /// The id of this number.
    #[inline]
    #[must_use]
    pub const fn from_u128(number: u128) -> Self {
        Self(number)
    }

    /// The number of this id.
    #[inline]
    #[must_use]
    pub const fn as_u128(self) -> u128 {
        self.0
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootId({:032x})", self.0)
    }
}

/// The id that the kernel drew when it started. `None` where there is none to read.
///
/// A time namespace may set `CLOCK_BOOTTIME` off by an offset of its own. Readings of namespaces
/// with different offsets cannot be compared, so the offset is a part of the id.
pub(crate) fn of_system() -> Option<BootId> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let drawn = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    // Kernels without time namespaces have no such file.
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    parse(&drawn, &offsets)
}

fn parse(drawn: &str, offsets: &str) -> Option<BootId> {
    let hex: String = drawn.trim().chars().filter(|&c| c != '-').collect();
    if hex.len() != 32 {
        return None;
    }
    let drawn = u128::from_str_radix(&hex, 16).ok()?;
    let boottime = offsets.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        (fields.next()? == "boottime").then_some(fields)
    });
    let offset = boottime.and_then(|mut fields| {
        let seconds: i64 = fields.next()?.parse().ok()?;
        let nanos: i64 = fields.next()?.parse().ok()?;
        Some(i128::from(seconds) * 1_000_000_000 + i128::from(nanos))
    });
    Some(BootId(drawn.wrapping_add_signed(offset.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWN: &str = "00000000-0000-0000-0000-0000000000ff\n";

    #[test]
    fn an_id_is_that_of_the_kernel_and_of_the_offset() {
        let plain = parse(DRAWN, "").map(BootId::as_u128);
        assert_eq!(plain, Some(255));
        let none = "monotonic           0         0\nboottime            0         0\n";
        assert_eq!(parse(DRAWN, none).map(BootId::as_u128), Some(255));
        let offset = "monotonic  5  0\nboottime   -1  999999999\n";
        assert_eq!(parse(DRAWN, offset).map(BootId::as_u128), Some(254));
    }

    #[test]
    fn what_is_no_id_is_none() {
        for text in ["", "0", "zz", "00000000-0000-0000-0000-0000000000fz"] {
            assert_eq!(parse(text, ""), None, "{text}");
        }
    }
}
