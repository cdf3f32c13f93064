//! All properties of stores hold in a PostgreSQL.

use countwheel_durable::Shards;
use countwheel_durable::store::Store;
use countwheel_durable::store::conformance::{self, Reopen};
use countwheel_postgres::{PostgresOptions, PostgresStore};

struct Tested {
    options: PostgresOptions,
    store: PostgresStore,
}

impl Reopen for Tested {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn reopen(&mut self) {
        self.store = PostgresStore::open(&self.options).expect("it was open before");
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn every_property_of_a_store_holds() {
    let server = super::server();
    conformance::check(|| {
        let mut options = server.fresh();
        options.node = Some(7);
        let shards = Shards::new(Shards::MAX).expect("from 1 to 1024");
        PostgresStore::make(&options, shards).expect("a fresh schema");
        let store = PostgresStore::open(&options).expect("there is a cluster");
        Box::new(Tested { options, store })
    });
}
