//! The id of a request.

use std::num::NonZeroU64;

use countwheel::TimerKey;

/// Of the 32 bits for the place of an entry, this many say where on its shard.
const INDEX_BITS: u32 = 26;

const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// What the bits between index and generation can tell apart.
pub(super) const MOST_SHARDS: usize = 1 << (32 - INDEX_BITS);

/// Names one request of one table, from its registration on. Never given to another request of
/// that table, so an answer that comes too late finds nothing rather than somebody else.
///
/// Eight bytes, and so is an `Option` of it. Send it with the request as the number it is; the
/// answer brings it back.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{RequestId, Requests};
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let requests = Requests::new(host.timer().clone());
/// let response = requests.register(Duration::from_secs(1))?;
/// let header: u64 = response.id().as_u64();
///
/// // ... and with the answer:
/// let id = RequestId::from_u64(header).unwrap();
/// requests.complete(id, "pong").unwrap();
/// assert_eq!(response.wait().unwrap(), "pong");
///
/// assert_eq!(RequestId::from_u64(42), None, "no table has given that");
/// # Ok::<(), countwheel_patterns::RegisterError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(NonZeroU64);

impl RequestId {
    /// `None` if the entry stands so far out that the id has no room for its place.
    #[inline]
    pub(super) fn new(shard: u64, key: TimerKey) -> Option<Self> {
        let bits = key.to_bits();
        let index = bits & u64::from(u32::MAX);
        let id = NonZeroU64::new(bits | shard << INDEX_BITS)?;
        (index <= INDEX_MASK).then_some(Self(id))
    }

    #[inline]
    pub(super) fn shard(self) -> usize {
        let shard = (self.0.get() >> INDEX_BITS) & (MOST_SHARDS as u64 - 1);
        usize::try_from(shard).unwrap_or(usize::MAX)
    }

    #[inline]
    pub(super) fn key(self) -> Option<TimerKey> {
        let shard_bits = (MOST_SHARDS as u64 - 1) << INDEX_BITS;
        TimerKey::from_bits(self.0.get() & !shard_bits)
    }

    /// The number to send. Never zero, and not in any order.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0.get()
    }

    /// The id that came back. `None` if no table gives such a number; a number that was made
    /// up otherwise finds nothing, or a request that has this id: so do not take ids from
    /// those who may not answer every request.
    #[must_use]
    pub fn from_u64(number: u64) -> Option<Self> {
        TimerKey::from_bits(number)?;
        NonZeroU64::new(number).map(Self)
    }
}

/// A number under which the caller knows the request: where a protocol says how requests are
/// numbered. See [`Requests::register_as`](super::Requests::register_as).
///
/// A type of its own, so that it is not mistaken for the number of a [`RequestId`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OwnId(pub u64);

/// What names a request to a table: the [`RequestId`] that the table gave, or an [`OwnId`].
///
/// An `OwnId` costs a look-up in a hash map more.
pub trait RequestKey: Copy + sealed::Key {}

impl RequestKey for RequestId {}

impl RequestKey for OwnId {}

pub(super) mod sealed {
    use super::{OwnId, RequestId};

    #[derive(Clone, Copy)]
    pub enum Name {
        Given(RequestId),
        Own(OwnId),
    }

    pub trait Key {
        fn name(self) -> Name;
    }

    impl Key for RequestId {
        #[inline]
        fn name(self) -> Name {
            Name::Given(self)
        }
    }

    impl Key for OwnId {
        #[inline]
        fn name(self) -> Name {
            Name::Own(self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_gives_back_shard_and_key_and_is_itself_a_number() {
        for shard in [0, 1, MOST_SHARDS as u64 - 1] {
            for bits in [1 << 32, u64::MAX << 32 | INDEX_MASK, 7 << 32 | 1] {
                let key = TimerKey::from_bits(bits).unwrap();
                let id = RequestId::new(shard, key).unwrap();
                assert_eq!((id.shard() as u64, id.key()), (shard, Some(key)));
                assert_eq!(RequestId::from_u64(id.as_u64()), Some(id));
            }
        }
        let too_far = TimerKey::from_bits(1 << 32 | (INDEX_MASK + 1)).unwrap();
        assert_eq!(RequestId::new(0, too_far), None);
    }
}
