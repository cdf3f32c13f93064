//! The number of shards of a store, and the shard of each timer.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::TimerName;
use crate::store::Shard;

/// Into how many shards a store is divided: as many for as long as it lives, since the number decides
/// in which of them a timer is.
///
/// ```
/// use countwheel_durable::store::Shard;
/// use countwheel_durable::{Shards, TimerName};
///
/// let name = TimerName::new("orders", "order-42")?;
/// assert_eq!(Shards::ONE.of(&name), Shard::ONLY);
///
/// let shards = Shards::new(64).expect("from 1 to 1024");
/// assert_eq!(shards.of(&name), shards.of(&name.clone()));
/// assert_eq!(shards.all().count(), 64);
/// assert!(shards.all().any(|shard| shard == shards.of(&name)));
/// assert!(Shards::new(0).is_none());
/// # Ok::<(), countwheel_durable::NameError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shards(u16);

impl Shards {
    /// Not divided: everything is in [`Shard::ONLY`].
    pub const ONE: Self = Self(1);

    /// The most shards.
    pub const MAX: u16 = 1_024;

    /// Divided into so many, 1 to [`MAX`](Self::MAX).
    #[must_use]
    pub const fn new(count: u16) -> Option<Self> {
        match count {
            1..=Self::MAX => Some(Self(count)),
            _ => None,
        }
    }

    /// How many.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.0
    }

    /// All of them.
    pub fn all(self) -> impl Iterator<Item = Shard> {
        (0..self.0).map(Shard)
    }

    /// The shard of a name: by its SipHash-2-4 (Aumasson and Bernstein, 2012) under a fixed key, so
    /// that every process finds the same. Two names of one queue are mostly in two shards.
    #[must_use]
    pub fn of(self, name: &TimerName) -> Shard {
        if self.0 == 1 {
            return Shard::ONLY;
        }
        let mut hasher = SipHasher24::new();
        hasher.write(name.queue.as_str().as_bytes());
        hasher.write(&[0]); // in neither
        hasher.write(name.key.as_str().as_bytes());
        let shard = hasher.finish() % u64::from(self.0);
        Shard(u16::try_from(shard).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a timer is found must not change with a version of a library.
    #[test]
    fn names_stay_where_they_are() {
        let shards = Shards::new(64).unwrap();
        let of = |queue, key| shards.of(&TimerName::new(queue, key).unwrap()).0;
        let found = [
            of("orders", "order-42"),
            of("orders", "order-43"),
            of("q", "ü"),
        ];
        assert_eq!(found, NAMES_IN_64);
    }

    const NAMES_IN_64: [u16; 3] = [16, 63, 48];

    #[test]
    fn names_of_one_queue_spread() {
        let shards = Shards::new(8).unwrap();
        let mut counts = [0; 8];
        for i in 0..8_000 {
            let name = TimerName::new("orders", format!("order-{i}")).unwrap();
            counts[usize::from(shards.of(&name).0)] += 1;
        }
        assert!(
            counts.iter().all(|count| (900..1_100).contains(count)),
            "{counts:?}"
        );
    }
}
