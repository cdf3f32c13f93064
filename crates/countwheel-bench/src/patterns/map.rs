//! P3: a map whose entries live for a while, read and written by all threads. P3m: the memory of
//! its entries, and the time at which it drops expired ones.

mod at_rest;
mod in_use;
mod moka;
mod ours;
mod swept;
mod trace;

use std::time::Duration;

pub(super) use moka::Moka;
pub(super) use ours::Ours;
pub(super) use swept::Swept;

use super::workload::{Extent, Workload};
use crate::workload::Figures;

/// A kind of map, whatever its values are.
pub(crate) trait Kind {
    type Of<V: Value>: Map<V>;
}

/// What a map can hold.
pub(crate) trait Value: Clone + Send + Sync + 'static {}

impl<V: Clone + Send + Sync + 'static> Value for V {}

/// Forgets each entry a while after it was inserted. Clones are the same map.
pub(crate) trait Map<V>: Clone + Send + 'static {
    fn start(ttl: Duration) -> anyhow::Result<Self>;

    fn insert(&self, key: u64, value: V);

    fn get(&self, key: u64) -> Option<V>;

    /// Does now what it would do in later calls.
    fn settle(&self) {}
}

pub(super) fn measure<K: Kind>(
    workload: Workload,
    load: u64,
    extent: Extent,
) -> anyhow::Result<Figures> {
    if workload == Workload::P3m {
        at_rest::measure::<K>(load, extent.ttl)
    } else {
        in_use::measure::<K::Of<u64>>(load, extent)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What it does wrong.
    const KEEPS_ALL: u8 = 0;
    const LOSES_ALL: u8 = 1;
    const CONFUSES: u8 = 2;
    const KEEPS_THE_FIRST: u8 = 3;

    struct Fake<const WRONG: u8>;

    #[derive(Clone)]
    struct Plain<V, const WRONG: u8>(Arc<Mutex<HashMap<u64, V>>>);

    impl<const WRONG: u8> Kind for Fake<WRONG> {
        type Of<V: Value> = Plain<V, WRONG>;
    }

    impl<V: Value, const WRONG: u8> Map<V> for Plain<V, WRONG> {
        fn start(_ttl: Duration) -> anyhow::Result<Self> {
            Ok(Self(Arc::default()))
        }

        fn insert(&self, key: u64, value: V) {
            let mut map = self.0.lock().unwrap();
            if WRONG != KEEPS_THE_FIRST || !map.contains_key(&key) {
                map.insert(key, value);
            }
        }

        fn get(&self, key: u64) -> Option<V> {
            let map = self.0.lock().unwrap();
            match WRONG {
                LOSES_ALL => None,
                CONFUSES => map.values().next().cloned(),
                _ => map.get(&key).cloned(),
            }
        }
    }

    fn complaint<const WRONG: u8>(workload: Workload, load: u64) -> String {
        let extent = Extent {
            span: Duration::from_millis(20),
            ttl: Duration::from_millis(2),
            ..Extent::SHORT
        };
        let found = measure::<Fake<WRONG>>(workload, load, extent);
        found.map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn whoever_is_wrong_is_found_out() {
        let kept = complaint::<KEEPS_ALL>(Workload::P3m, 500);
        assert_eq!(kept, "an entry has outlived its time");
        let lost = complaint::<LOSES_ALL>(Workload::P3m, 500);
        assert_eq!(lost, "an entry is missing");
        let confused = complaint::<CONFUSES>(Workload::P3, 1);
        assert_eq!(confused, "that is another's value");
    }

    #[test]
    fn the_age_of_the_oldest_value_is_told() {
        let extent = Extent {
            span: Duration::from_millis(100),
            ttl: Duration::from_millis(2),
            keys: 10,
            ..Extent::SHORT
        };
        let found = measure::<Fake<KEEPS_THE_FIRST>>(Workload::P3, 1, extent).unwrap();
        assert!(found["hits"] > 90.0, "{found:?}");
        assert!(found["stale"] > 10.0, "{found:?}");
    }
}
