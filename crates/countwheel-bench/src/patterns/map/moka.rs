//! The cache of the `moka` crate.

use std::time::Duration;

use moka::sync::Cache;

use super::{Kind, Map, Value};

pub(crate) struct Moka;

impl Kind for Moka {
    type Of<V: Value> = Cache<u64, V>;
}

impl<V: Value> Map<V> for Cache<u64, V> {
    fn start(ttl: Duration) -> anyhow::Result<Self> {
        Ok(Self::builder().time_to_live(ttl).build())
    }

    #[inline]
    fn insert(&self, key: u64, value: V) {
        self.insert(key, value);
    }

    #[inline]
    fn get(&self, key: u64) -> Option<V> {
        self.get(&key)
    }

    fn settle(&self) {
        self.run_pending_tasks();
    }
}
