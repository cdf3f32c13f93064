//! The leased attempts of one scheduler, as far as it has granted them itself: their room in flows.
//!
//! What is leased is in the store: a scheduler that opens a shard finds a lease of its predecessor when that ends, or
//! when somebody settles it. Only the limits of flows do not count such a lease.

use std::collections::BTreeMap;

use crate::Revision;
use crate::budget::Places;
use crate::flow::Flow;
use crate::planted::planted;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Leases {
    flows: BTreeMap<Revision, Vec<Flow>>,
    places: Places,
    bytes: usize,
}

impl Leases {
    pub(crate) fn new(places: Places) -> Self {
        Self {
            flows: BTreeMap::new(),
            places,
            bytes: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Notes a lease whose flows have room for it.
    pub(crate) fn note(&mut self, revision: Revision, flows: Vec<Flow>) {
        self.bytes += entry_bytes(&flows);
        if let Some(before) = self.flows.insert(revision, flows) {
            self.give_back(&before);
        }
    }

    /// A lease is over: gives back its room in flows, and says in which.
    pub(crate) fn remove(&mut self, revision: Revision) -> Option<Vec<Flow>> {
        let flows = self.flows.remove(&revision)?;
        self.give_back(&flows);
        Some(flows)
    }

    /// The end of a lease was void.
    pub(crate) fn put_back(&mut self, revision: Revision, flows: Vec<Flow>) {
        self.places.lease_again(&flows);
        self.bytes += entry_bytes(&flows);
        self.flows.insert(revision, flows);
    }

    fn give_back(&mut self, flows: &[Flow]) {
        self.bytes -= entry_bytes(flows);
        if !planted!(LeaseLeaks) {
            self.places.end_lease(flows);
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        for flows in self.flows.values() {
            self.places.end_lease(flows);
        }
    }
}

/// What a lease takes: its place in a sorted map that may be half empty, and the names of its flows.
fn entry_bytes(flows: &[Flow]) -> usize {
    let names = flows
        .iter()
        .map(|flow| size_of::<Flow>() + flow.as_str().len() + 16);
    2 * (size_of::<Revision>() + size_of::<Vec<Flow>>()) + 16 + names.sum::<usize>()
}
