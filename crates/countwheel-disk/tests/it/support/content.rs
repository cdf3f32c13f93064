//! What the tests of data directories share: what a store holds, and what is on the disk.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use countwheel_durable::store::{Filter, Shard, Store};
use countwheel_durable::{Record, TimerName};

/// All that a store lists, by name.
pub(crate) fn content(store: &dyn Store) -> BTreeMap<TimerName, Record> {
    let mut found = BTreeMap::new();
    for counts in store.counts(Shard::ONLY).unwrap() {
        let mut filter = Filter::queue(counts.queue);
        loop {
            let page = store.list(Shard::ONLY, &filter).unwrap();
            let named = page.records.into_iter().map(|r| (r.name.clone(), r));
            found.extend(named);
            match page.next {
                Some(next) => filter.after = Some(next),
                None => break,
            }
        }
    }
    found
}

/// Every file below, by its path from here, and what it holds.
pub(crate) fn files_of(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let name = PathBuf::from(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            let below = files_of(&entry.path()).into_iter();
            found.extend(below.map(|(path, bytes)| (name.join(path), bytes)));
        } else {
            found.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    found
}
