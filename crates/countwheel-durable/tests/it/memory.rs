//! The store in memory.

use std::sync::Arc;

use countwheel_durable::store::conformance::{self, Reopen};
use countwheel_durable::store::{MemoryStore, Store};
use countwheel_time::ManualClock;

struct Memory(MemoryStore);

impl Reopen for Memory {
    fn store(&self) -> &dyn Store {
        &self.0
    }

    fn reopen(&mut self) {
        self.0 = self.0.clone();
    }
}

#[test]
fn the_memory_store_conforms() {
    conformance::check(|| Box::new(Memory(MemoryStore::new(7))));
}

#[test]
fn a_memory_store_that_forgets_conforms() {
    let forgetting = || MemoryStore::new(7).forgetting(Arc::new(ManualClock::new()));
    conformance::check(|| Box::new(Memory(forgetting())));
}
