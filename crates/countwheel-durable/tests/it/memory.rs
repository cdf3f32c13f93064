//! The store in memory.

use countwheel_durable::store::conformance::{self, Reopen};
use countwheel_durable::store::{MemoryStore, Store};

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
