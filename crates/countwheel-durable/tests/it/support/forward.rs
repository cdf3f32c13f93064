//! What a store in a test hands on to the one that it stands before.

/// These methods of a [`Store`](countwheel_durable::store::Store) are those of the store in a field.
macro_rules! forward {
    ($field:tt: $($method:ident),+) => {
        $(forward!(@$method $field);)+
    };
    (@acquire $field:tt) => {
        fn acquire(
            &self,
            shard: countwheel_durable::store::Shard,
        ) -> Result<countwheel_durable::store::Ownership, countwheel_durable::store::StoreError> {
            self.$field.acquire(shard)
        }
    };
    (@commit $field:tt) => {
        fn commit(
            &self,
            lease: countwheel_durable::store::Lease,
            changes: &[countwheel_durable::store::Change],
        ) -> Result<(), countwheel_durable::store::StoreError> {
            self.$field.commit(lease, changes)
        }
    };
    (@settings $field:tt) => {
        fn settings(
            &self,
            after: countwheel_durable::SettingsVersion,
        ) -> Result<Option<countwheel_durable::Settings>, countwheel_durable::store::StoreError> {
            self.$field.settings(after)
        }
    };
    (@get $field:tt) => {
        fn get(
            &self,
            shard: countwheel_durable::store::Shard,
            name: &countwheel_durable::TimerName,
        ) -> Result<Option<countwheel_durable::Record>, countwheel_durable::store::StoreError> {
            self.$field.get(shard, name)
        }
    };
    (@due $field:tt) => {
        fn due(
            &self,
            shard: countwheel_durable::store::Shard,
            scan: &countwheel_durable::store::DueScan<'_>,
        ) -> Result<countwheel_durable::store::DuePage, countwheel_durable::store::StoreError> {
            self.$field.due(shard, scan)
        }
    };
    (@list $field:tt) => {
        fn list(
            &self,
            shard: countwheel_durable::store::Shard,
            filter: &countwheel_durable::store::Filter,
        ) -> Result<countwheel_durable::store::Page, countwheel_durable::store::StoreError> {
            self.$field.list(shard, filter)
        }
    };
    (@counts $field:tt) => {
        fn counts(
            &self,
            shard: countwheel_durable::store::Shard,
        ) -> Result<
            Vec<countwheel_durable::store::QueueCounts>,
            countwheel_durable::store::StoreError,
        > {
            self.$field.counts(shard)
        }
    };
}

pub(crate) use forward;
