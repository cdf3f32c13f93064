//! The number of shards of a store, and the shard of each timer.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::store::Shard;
use crate::{Key, TimerName, receipt};

/// Into how many shards a store is divided, and what decides in which of them a timer is: both as they
/// are for as long as the store lives.
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
pub struct Shards {
    count: u16,
    by: By,
}

/// What decides in which shard a timer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// The queue and the key.
    WholeKey,
    /// The tag in the key, if it has one.
    Tag,
}

impl Shards {
    /// Not divided: everything is in [`Shard::ONLY`].
    pub const ONE: Self = Self {
        count: 1,
        by: By::WholeKey,
    };

    /// The most shards.
    pub const MAX: u16 = 1_024;

    /// Divided into so many, 1 to [`MAX`](Self::MAX), by the queue and the whole key of each timer.
    #[must_use]
    pub const fn new(count: u16) -> Option<Self> {
        match count {
            1..=Self::MAX => Some(Self { count, ..Self::ONE }),
            _ => None,
        }
    }

    /// The same, where a tag decides: the first part of the key in `{braces}`, as in Redis Cluster. Timers
    /// of one namespace whose keys have the same tag are in one shard, whatever their queues, so that one
    /// [batch](crate::Timers::submit_batch) can have them all. A key whose first brace is not closed, or
    /// has nothing in it, has no tag.
    ///
    /// A store that was divided without tags stays so: its timers would not be found.
    ///
    /// ```
    /// use countwheel_durable::{Shards, TimerName};
    ///
    /// let shards = Shards::new(64).expect("from 1 to 1024").by_tag();
    /// let remind = TimerName::new("reminders", "{order-42}/first")?;
    /// let close = TimerName::new("unpaid", "{order-42}")?;
    /// assert_eq!(shards.of(&remind), shards.of(&close));
    /// assert_eq!(Shards::tag(&remind.key), Some("order-42"));
    /// assert_eq!(shards.by_whole_key(), Shards::new(64).expect("from 1 to 1024"));
    /// # Ok::<(), countwheel_durable::NameError>(())
    /// ```
    #[must_use]
    pub const fn by_tag(self) -> Self {
        match self.count {
            1 => Self::ONE,
            _ => Self {
                by: By::Tag,
                ..self
            },
        }
    }

    /// The same, where no tag decides.
    #[must_use]
    pub const fn by_whole_key(self) -> Self {
        Self {
            by: By::WholeKey,
            ..self
        }
    }

    /// Whether a tag decides.
    #[must_use]
    pub const fn is_by_tag(self) -> bool {
        matches!(self.by, By::Tag)
    }

    /// The tag of a key, where [tags decide](Self::by_tag).
    #[must_use]
    pub fn tag(key: &Key) -> Option<&str> {
        let (_, behind) = key.as_str().split_once('{')?;
        let (tag, _) = behind.split_once('}')?;
        (!tag.is_empty()).then_some(tag)
    }

    /// How many.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.count
    }

    /// All of them.
    pub fn all(self) -> impl Iterator<Item = Shard> {
        (0..self.count).map(Shard)
    }

    /// The shard of a name: by the SipHash-2-4 (Aumasson and Bernstein, 2012) of what decides, under a
    /// fixed key, so that every process finds the same. Two names of one queue are mostly in two shards.
    #[must_use]
    pub fn of(self, name: &TimerName) -> Shard {
        if self.count == 1 {
            return Shard::ONLY;
        }
        let hash = match (receipt::hashes_in(name), self.by) {
            (Some([whole, _]), By::WholeKey) => whole,
            (Some([_, by_tag]), By::Tag) => by_tag,
            (None, By::WholeKey) => by_whole_key(name),
            (None, By::Tag) => by_tag(name),
        };
        let shard = hash % u64::from(self.count);
        Shard(u16::try_from(shard).unwrap_or(0))
    }
}

/// What decides the shard of a timer, by its whole key and by its tag: both are the same for any number of shards.
pub(crate) fn hashes(name: &TimerName) -> [u64; 2] {
    [by_whole_key(name), by_tag(name)]
}

fn by_whole_key(name: &TimerName) -> u64 {
    hash(name.queue.as_str(), name.key.as_str())
}

fn by_tag(name: &TimerName) -> u64 {
    match Shards::tag(&name.key) {
        Some(tag) => hash(name.queue.namespace(), tag),
        None => by_whole_key(name),
    }
}

fn hash(first: &str, second: &str) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(first.as_bytes());
    hasher.write(&[0]); // in neither
    hasher.write(second.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QueueName;

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
    fn names_with_a_tag_stay_where_they_are() {
        let shards = Shards::new(64).unwrap();
        let keys = [
            "{order-42}",
            "{order-42}/first",
            "late {order-42}{2}",
            "{}{order-42}",
        ];
        let of =
            |shards: Shards| keys.map(|key| shards.of(&TimerName::new("orders", key).unwrap()).0);
        assert_eq!(of(shards), [38, 27, 30, 63]);
        assert_eq!(of(shards.by_tag()), [51, 51, 51, 63]);
    }

    #[test]
    fn the_first_part_in_braces_is_the_tag() {
        let tags = [
            ("{a}", Some("a")),
            ("x{a}y", Some("a")),
            ("{a}{b}", Some("a")),
            ("}{a}", Some("a")),
            ("{{a}}", Some("{a")),
            ("{ü }", Some("ü ")),
            ("{a", None),
            ("a}", None),
            ("{}", None),
            ("{}{a}", None),
            ("a", None),
        ];
        for (key, tag) in tags {
            assert_eq!(Shards::tag(&Key::new(key).unwrap()), tag, "{key}");
        }
    }

    #[test]
    fn a_tag_decides_for_all_queues_of_a_namespace_and_for_no_other() {
        let shards = Shards::new(Shards::MAX).unwrap().by_tag();
        let of = |queue: &str, key: &str| {
            let queue = QueueName::from_text(queue).unwrap();
            let key = Key::new(key).unwrap();
            shards.of(&TimerName { queue, key })
        };
        assert_eq!(of("a", "{t}1"), of("b", "2{t}"));
        assert_eq!(of("n/a", "{t}1"), of("n/b", "2{t}"));
        assert_ne!(of("a", "{t}1"), of("n/a", "{t}1"));
        assert_ne!(of("a", "{t}1"), of("a", "{u}1"));
        // Without a tag the queue and the whole key decide, as ever.
        for key in ["{t", "{}t", "t}", "order-42"] {
            let name = TimerName::new("a", key).unwrap();
            assert_eq!(shards.of(&name), shards.by_whole_key().of(&name), "{key}");
            assert_ne!(of("a", key), of("b", key), "{key}");
        }
        assert_eq!(Shards::ONE.by_tag(), Shards::ONE);
    }

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
