//! Receipts of sets: what a repeated set is answered with, and where it is kept.

use std::sync::LazyLock;
use std::time::Duration;

use crate::planted::planted;
use crate::{Due, Key, Namespace, QueueName, Record, Set, TimerError, TimerName};

/// Makes a set one that may be repeated: the first set that names a key is done, and the answer is kept. A later set
/// that names the same key is answered in the same way and does nothing, whatever has become of the timer.
///
/// The receipt is committed with the timer, in the timer's shard. It is no timer: no list, no count and no drain has
/// it, and it is gone once `keep` is over. Every set with one key is about a timer of the same shard, or the receipt is
/// not found: the key decides the name of the timer.
///
/// A set with a receipt replaces no timer: it is refused with [`TimerError::Exists`].
///
/// ```
/// # use std::sync::Arc;
/// # use countwheel_durable::store::MemoryStore;
/// # use countwheel_durable::{Config, Precondition, Request, Response, RetryPolicy, SystemClock, Timers, inline};
/// use std::time::Duration;
/// use countwheel_durable::{Due, Receipt, SetOptions, TimerError, TimerName};
///
/// # let clock = Arc::new(SystemClock::new());
/// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
/// let receipt = |fingerprint| Receipt {
///     key: [7; 16],
///     fingerprint: [fingerprint; 32],
///     keep: Duration::from_secs(86_400),
/// };
/// let set = |receipt| {
///     timers.call(Request::Set {
///         name: TimerName::new("orders", "order-42")?,
///         due: Due::In(Duration::from_secs(60)),
///         policy: RetryPolicy::default(),
///         payload: vec![],
///         precondition: Precondition::None,
///         options: SetOptions { receipt: Some(Box::new(receipt)), ..SetOptions::default() },
///     })
/// };
/// let Response::Set(first) = set(receipt(1))? else { panic!("it is a set") };
/// let Response::Set(again) = set(receipt(1))? else { panic!("it is a set") };
/// assert!(!first.replayed && again.replayed);
/// assert_eq!((again.id, again.due), (first.id, first.due));
/// assert!(matches!(set(receipt(2)), Err(TimerError::ReceiptMismatch)));
/// assert_eq!(timers.counts()?[0].queue.as_str(), "orders");
///
/// let name = TimerName::new("orders", "order-42")?;
/// assert_eq!(timers.replayed(&name, &receipt(1))?, Some(again));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    /// Names the receipt among all of a store.
    pub key: [u8; 16],
    /// Tells what is asked for from anything else that is asked for under this key.
    pub fingerprint: [u8; 32],
    /// For how long the receipt is kept, by the wall clock. At most [`Due::MAX_AHEAD`].
    pub keep: Duration,
}

/// The queue of all receipts.
static QUEUE: LazyLock<Option<QueueName>> = LazyLock::new(|| {
    let namespace = Namespace::new(Namespace::RESERVED).ok()?;
    QueueName::in_namespace(&namespace, "receipts").ok()
});

/// The queue of all receipts. Always there.
pub(crate) fn queue() -> Option<&'static QueueName> {
    QUEUE.as_ref()
}

impl Receipt {
    /// Where the receipt of a set of this timer is stored. The key says in which shard the timer is, so that whoever
    /// has the receipt's name alone finds the same shard.
    pub(crate) fn place(&self, timer: &TimerName) -> Option<TimerName> {
        let queue = queue()?.clone();
        let number = u128::from_be_bytes(self.key);
        let [whole, tag] = crate::shards::hashes(timer);
        let key = Key::new(format!("{number:032x}-{whole:016x}-{tag:016x}")).ok()?;
        Some(TimerName { queue, key })
    }

    pub(crate) fn kept(&self) -> Duration {
        let keep = self.keep.min(Due::MAX_AHEAD);
        if planted!(ReceiptEndsEarly) {
            return keep / 2;
        }
        keep
    }

    /// What the set is answered with by what is stored of it.
    pub(crate) fn answer(&self, stored: &Record) -> Result<Set, TimerError> {
        if stored.payload != self.fingerprint && !planted!(ReceiptTakesAnyBody) {
            return Err(TimerError::ReceiptMismatch);
        }
        Ok(Set {
            id: stored.id,
            revision: stored.id.set,
            due: stored.due,
            replaced: None,
            replayed: true,
        })
    }
}

/// The two hashes that decide the shard, if this is the name of a receipt or of an entry of the audit log: by the whole
/// key, and by the tag.
pub(crate) fn hashes_in(name: &TimerName) -> Option<[u64; 2]> {
    if !name.queue.is_reserved() {
        return None;
    }
    let mut parts = name.key.as_str().split('-').skip(1);
    let mut next = || u64::from_str_radix(parts.next()?, 16).ok();
    Some([next()?, next()?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shards;

    #[test]
    fn a_receipt_is_in_the_shard_of_its_timer() {
        let receipt = Receipt {
            key: [0xab; 16],
            fingerprint: [1; 32],
            keep: Duration::from_secs(1),
        };
        let shards = Shards::new(64).unwrap();
        for shards in [Shards::ONE, shards, shards.by_tag()] {
            for key in ["order-42", "{one}/x", "{customer-7}/y", "{", "ü"] {
                for queue in ["orders", "tenant-7/orders"] {
                    let queue = QueueName::from_text(queue).unwrap();
                    let key = Key::new(key).unwrap();
                    let timer = TimerName { queue, key };
                    let place = receipt.place(&timer).unwrap();
                    assert!(place.queue.is_reserved());
                    assert_eq!(shards.of(&place), shards.of(&timer), "{timer}");
                }
            }
        }
    }

    /// A receipt that is stored is looked for by its name.
    #[test]
    fn receipts_stay_where_they_are() {
        let receipt = Receipt {
            key: [7; 16],
            fingerprint: [1; 32],
            keep: Duration::from_secs(1),
        };
        let timer = TimerName::new("orders", "{order-42}/first").unwrap();
        let place = receipt.place(&timer).unwrap().to_string();
        let (queue, key) = place.rsplit_once('/').unwrap();
        assert_eq!(queue, "countwheel:internal/receipts");
        assert_eq!(key, STORED);
    }

    const STORED: &str = "07070707070707070707070707070707-827ad8f0a350ce5b-5f6497046efe99f3";
}
