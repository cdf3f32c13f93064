//! Our map whose entries expire.

use std::time::Duration;

use countwheel::Timer;
use countwheel_patterns::{ExpiringMap, Ttl};

use super::{Kind, Map, Value};

pub(crate) struct Ours;

impl Kind for Ours {
    type Of<V: Value> = ExpiringMap<u64, V>;
}

impl<V: Value> Map<V> for ExpiringMap<u64, V> {
    fn start(ttl: Duration) -> anyhow::Result<Self> {
        Ok(Self::new(Timer::new(), Ttl::after(ttl)))
    }

    #[inline]
    fn insert(&self, key: u64, value: V) {
        let old = Self::insert(self, key, value);
        assert!(old.is_ok(), "nobody closes it, and there is no bound");
    }

    #[inline]
    fn get(&self, key: u64) -> Option<V> {
        Self::get(self, &key)
    }
}
