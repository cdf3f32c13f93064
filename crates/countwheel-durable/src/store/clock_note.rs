//! The readings of the clocks at a commit.

use countwheel_time::{BootId, Instant, Timestamp};

/// A reading of all clocks at one moment, kept with the commits: what the next opening goes by to
/// carry the second time line on. See decision 19.
///
/// ```
/// use countwheel_time::{BootId, Instant, Timestamp};
/// use countwheel_durable::store::{Change, ClockNote, MemoryStore, Shard, Store};
///
/// let store = MemoryStore::new(7);
/// let lease = store.acquire(Shard::ONLY)?.lease;
/// let note = ClockNote {
///     wall: Timestamp::from_micros(1_700_000_000_000_000),
///     boot_id: Some(BootId::from_u128(7)),
///     boot: Instant::from_nanos(5_000),
///     line: Timestamp::from_micros(1_600_000_000_000_000),
/// };
/// store.commit(lease, &[Change::Clock(note)])?;
/// assert_eq!(store.acquire(Shard::ONLY)?.clock, Some(note));
/// # Ok::<(), countwheel_durable::store::StoreError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockNote {
    /// The wall clock.
    pub wall: Timestamp,
    /// The start of the machine, if that was known.
    pub boot_id: Option<BootId>,
    /// The boot clock, where the second time line came to `line`.
    pub boot: Instant,
    /// The second time line: that of delays.
    pub line: Timestamp,
}

impl ClockNote {
    /// How long its [bytes](Self::to_bytes) are.
    pub const BYTES: usize = 40;

    /// As it is stored, little endian: wall clock, boot id (zero for none), boot clock, line.
    ///
    /// ```
    /// use countwheel_durable::store::ClockNote;
    ///
    /// let bytes = [7; ClockNote::BYTES];
    /// assert_eq!(ClockNote::of_bytes(&bytes).to_bytes(), bytes);
    /// ```
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let id = self.boot_id.map_or(0, BootId::as_u128);
        bytes[..8].copy_from_slice(&self.wall.as_micros().to_le_bytes());
        bytes[8..24].copy_from_slice(&id.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.boot.as_nanos().to_le_bytes());
        bytes[32..].copy_from_slice(&self.line.as_micros().to_le_bytes());
        bytes
    }

    /// The note with these bytes: any are of one.
    #[must_use]
    pub fn of_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let number = |at: usize| {
            let chunk = bytes[at..].first_chunk();
            chunk.map_or(0, |chunk| u64::from_le_bytes(*chunk))
        };
        let id = u128::from(number(8)) | u128::from(number(16)) << 64;
        Self {
            wall: Timestamp::from_micros(number(0)),
            boot_id: (id != 0).then_some(BootId::from_u128(id)),
            boot: Instant::from_nanos(number(24)),
            line: Timestamp::from_micros(number(32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        for id in [None, Some(1), Some(1 << 64), Some(u128::MAX)] {
            let note = ClockNote {
                wall: Timestamp::from_micros(1),
                boot_id: id.map(BootId::from_u128),
                boot: Instant::from_nanos(u64::MAX),
                line: Timestamp::MAX,
            };
            assert_eq!(ClockNote::of_bytes(&note.to_bytes()), note);
        }
    }
}
