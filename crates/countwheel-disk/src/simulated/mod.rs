//! A disk that is made up, for tests: it loses power, fails, fills up, lies and is damaged,
//! all of it as a seed says.
//!
//! ```
//! use countwheel_disk::simulated::{Disk, Fault};
//! use countwheel_disk::{LogOptions, LogStore, MemorySorted};
//! use countwheel_durable::store::{Change, Shard, Store};
//! use countwheel_durable::Revision;
//!
//! let disk = Disk::default();
//! let base = MemorySorted::default();
//! let open = || LogStore::open(base.clone(), disk.files("log"), 7, LogOptions::default());
//! let log = open()?;
//! let lease = log.acquire(Shard::ONLY)?.lease;
//! log.commit(lease, &[Change::Given(Revision(5))])?;
//! disk.fail(Fault::power(0)); // before anything more can change
//! assert!(log.commit(lease, &[Change::Given(Revision(6))]).is_err());
//!
//! disk.cut(42); // 42 says what of the rest survives
//! let last = open()?.acquire(Shard::ONLY)?.last_revision;
//! assert!(last == Revision(5) || last == Revision(6));
//! # Ok::<(), countwheel_durable::store::StoreError>(())
//! ```

mod damage;
mod fault;
mod handle;
mod node;
mod store;
mod tree;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

pub use damage::Damage;
use fault::{Armed, Strike};
pub use fault::{Call, Calls, Failure, Fault, Operation};
use handle::Handle;
use node::Node;
pub use store::SimulatedStore;
use tree::{Directory, ROOT, Tree, split};

use super::{DiskOptions, Files, StoreError};
use countwheel_time::Random;

/// So many of the last calls are remembered.
const REMEMBERED: usize = 64;

/// A simulated disk with directories and one power supply. Clones are the same disk,
/// [`copy`](Self::copy) makes another.
///
/// What is written is read at once and is durable after the sync of the file; which files a
/// directory has, and which directories, is durable after the sync of the directory. A directory
/// that [`files`](Self::files) is asked for is there, durably; those that
/// [`open_store`](Self::open_store) makes are not there before it makes them, and can be lost.
///
/// - **A power cut** ([`cut`](Self::cut)) keeps any part of what was not synced: of each sector
///   of 512 bytes any version that was written, any of the lengths that the file had, the first
///   few of the changes of names or, now and then, any of them.
/// - **A process** that ends ([`restart`](Self::restart)) loses nothing but its handles: they
///   fail, whatever its destructors still try.
/// - **A sync that fails** is as bad as on Linux: any part of what it was for is durable, and the
///   rest counts as clean. It can be read, no later sync writes it, and
///   [`evict`](Self::evict) or a power cut lose it. So it is with changes of names: those that
///   are durable are the first few, and a power cut loses the rest.
/// - **Faults** ([`fail`](Self::fail)) make calls fail, counted from when they are planted.
/// - **A bound** ([`bound_calls`](Self::bound_calls)) ends what would never end.
/// - **A capacity** ([`set_capacity`](Self::set_capacity)) makes it full.
/// - **Damage** ([`damage`](Self::damage)) is what no sync protects from.
///
/// The same calls, faults and seeds lead to the same bytes. It is as slow as memory, and keeps
/// all in memory two or three times.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Clone, Debug)]
struct State {
    nodes: BTreeMap<u64, Node>,
    next_node: u64,
    /// By their numbers, as the files: both are what names are given to.
    directories: BTreeMap<u64, Directory>,
    /// The process that has the disk. The handles of those before are dead.
    process: u64,
    faults: Vec<Armed>,
    /// For what faults leave open.
    random: Random,
    nonces: Random,
    counts: [u64; Operation::ALL.len()],
    struck: u64,
    last: VecDeque<Call>,
    capacity: Option<u64>,
    ignores_syncs: bool,
    /// How many calls there may be.
    calls_max: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            nodes: BTreeMap::new(),
            next_node: ROOT,
            directories: BTreeMap::from([(ROOT, Directory::default())]),
            process: 0,
            faults: Vec::new(),
            random: Random::new(0),
            nonces: Random::new(!0),
            counts: [0; Operation::ALL.len()],
            struck: 0,
            last: VecDeque::new(),
            capacity: None,
            ignores_syncs: false,
            calls_max: u64::MAX,
        }
    }
}

impl Disk {
    /// An empty disk. `seed` says what faults leave open, such as which part of a torn write is
    /// there; what survives a cut says the seed of the cut.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let disk = Self::default();
        let mut state = disk.0.lock();
        state.random = Random::new(seed);
        // Others than those that faults draw.
        state.nonces = Random::new(!seed);
        drop(state);
        disk
    }

    /// A directory, for the process that there is now. The name is a path as it shall be shown;
    /// the empty one is the disk's own.
    #[must_use]
    pub fn files(&self, directory: &str) -> Arc<dyn Files> {
        let mut state = self.0.lock();
        state.directory(directory);
        let process = state.process;
        drop(state);
        Arc::new(Handle::new(self.clone(), directory, process))
    }

    /// Opens the store in a directory for the process that there is now, as
    /// [`DiskStore::open`](super::DiskStore::open) does, and makes the directory, those above it
    /// and the store where there is none. No thread flushes or compacts.
    ///
    /// ```
    /// use countwheel_disk::DiskOptions;
    /// use countwheel_disk::simulated::Disk;
    ///
    /// let disk = Disk::default();
    /// let store = disk.open_store("srv/data", 7, DiskOptions::default())?;
    /// assert!(store.was_made());
    /// drop(store);
    /// disk.cut(1);
    /// let store = disk.open_store("srv/data", 8, DiskOptions::default())?;
    /// assert!(!store.was_made());
    /// # Ok::<(), countwheel_durable::store::StoreError>(())
    /// ```
    ///
    /// # Errors
    /// As `DiskStore::open`.
    pub fn open_store(
        &self,
        directory: &str,
        new_store_id: u64,
        options: DiskOptions,
    ) -> Result<SimulatedStore, StoreError> {
        let process = self.0.lock().process;
        let place = Tree::new(self.clone(), process);
        SimulatedStore::open(place, Path::new(directory), new_store_id, options)
    }

    /// Makes a directory and those above it, durably. Nothing counts it as a call.
    pub fn make_directory(&self, path: &str) {
        self.0.lock().directory(path);
    }

    /// Panics at a call after so many from now on. A store that writes for ever, within one commit
    /// say, is a panic then, which a simulation sees.
    ///
    /// ```should_panic
    /// use countwheel_disk::simulated::Disk;
    ///
    /// let disk = Disk::default();
    /// disk.bound_calls(1_000);
    /// let files = disk.files("");
    /// loop {
    ///     let _names = files.list();
    /// }
    /// ```
    pub fn bound_calls(&self, calls: u64) {
        let mut state = self.0.lock();
        let made: u64 = state.counts.iter().sum();
        state.calls_max = made.saturating_add(calls);
    }

    /// Plants a fault. Several may wait at a time; each counts for itself, from now on.
    pub fn fail(&self, fault: Fault) {
        self.0.lock().faults.push(Armed {
            fault,
            left: fault.after,
            struck: false,
        });
    }

    /// Forgets all faults: every call works again.
    pub fn heal(&self) {
        self.0.lock().faults.clear();
    }

    /// How many calls have failed by a fault.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.0.lock().struck
    }

    /// How many such calls there were.
    #[must_use]
    pub fn calls(&self, calls: Calls) -> u64 {
        let state = self.0.lock();
        let counted = Operation::ALL.iter().zip(state.counts);
        counted
            .filter(|(operation, _)| calls.contains(**operation))
            .map(|(_, count)| count)
            .sum()
    }

    /// The last 64 calls, oldest first.
    #[must_use]
    pub fn last_calls(&self) -> Vec<Call> {
        self.0.lock().last.iter().cloned().collect()
    }

    /// The process ends and another begins, on a machine that goes on: what was written is
    /// there, the old handles are dead, and the faults are forgotten.
    pub fn restart(&self) {
        let mut state = self.0.lock();
        state.process += 1;
        state.faults.clear();
        for node in state.nodes.values_mut() {
            node.opened = 0;
        }
        state.collect();
    }

    /// The power goes and comes back: the process ends, and of what was not synced `seed` says
    /// what survives. See [`Disk`].
    pub fn cut(&self, seed: u64) {
        let mut random = Random::new(seed);
        let mut state = self.0.lock();
        state.process += 1;
        state.faults.clear();
        for directory in state.directories.values_mut() {
            directory.cut(&mut random);
        }
        for node in state.nodes.values_mut() {
            node.cut(&mut random);
        }
        state.collect();
    }

    /// The machine forgets what it can read again: what a sync that failed left in memory alone
    /// is lost.
    pub fn evict(&self) {
        for node in self.0.lock().nodes.values_mut() {
            node.evict();
        }
    }

    /// A disk that lies: from now on its syncs do nothing, or again what they say. The negative
    /// control of a test of crashes.
    pub fn ignore_syncs(&self, ignores: bool) {
        self.0.lock().ignores_syncs = ignores;
    }

    /// How many bytes all files together may have; `None` for no limit. May be changed at any
    /// time.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.lock().capacity = bytes;
    }

    /// Whether there is a limit to how many bytes all files may have.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.0.lock().capacity.is_some()
    }

    /// How many bytes all files together have.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.lock().used()
    }

    /// Another disk with the same content, of what is durable and of what is not. It has no
    /// process, no faults and no calls yet.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut copy = self.0.lock().clone();
        copy.faults.clear();
        copy.last.clear();
        (copy.counts, copy.struck) = ([0; Operation::ALL.len()], 0);
        for node in copy.nodes.values_mut() {
            node.opened = 0;
        }
        copy.collect();
        Self(Arc::new(Mutex::new(copy)))
    }

    /// The paths of all files, in order.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        self.0.lock().paths()
    }

    /// All files by their paths, and what can be read of them: for a comparison.
    ///
    /// ```
    /// use countwheel_disk::simulated::Disk;
    ///
    /// let disk = Disk::default();
    /// let before = disk.image();
    /// disk.files("log").begin("segment")?;
    /// assert!(disk.image() != before);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn image(&self) -> BTreeMap<String, Vec<u8>> {
        let paths = self.paths().into_iter();
        paths
            .map(|path| {
                let content = self.content(&path).unwrap_or_default();
                (path, content)
            })
            .collect()
    }

    /// What can be read of a file; `None` if there is none.
    #[must_use]
    pub fn content(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.0.lock();
        let node = state.find(path)?;
        state.nodes.get(&node).map(|node| node.live.clone())
    }

    /// Gives a file this content, durably, or makes one with it. Nothing counts it as a call.
    pub fn set_content(&self, path: &str, content: Vec<u8>) {
        let mut state = self.0.lock();
        match state.find(path) {
            Some(node) => {
                let opened = state.nodes.get(&node).map_or(0, |node| node.opened);
                let mut new = Node::durable(content);
                new.opened = opened;
                state.nodes.insert(node, new);
            }
            None => drop(state.put(path, content)),
        }
    }

    /// Removes a file, durably. Nothing counts it as a call. False if there was none.
    pub fn delete(&self, path: &str) -> bool {
        let (parent, name) = split(path);
        let mut state = self.0.lock();
        let Some(directory) = state.found(parent) else {
            return false;
        };
        directory.durable.remove(name);
        let removed = directory.names.remove(name).is_some();
        state.collect();
        removed
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        f.debug_struct("Disk")
            .field("process", &state.process)
            .field("files", &state.nodes.len())
            .field("faults", &state.faults)
            .finish_non_exhaustive()
    }
}

impl State {
    /// Counts a call, and says whether it fails.
    fn call(
        &mut self,
        operation: Operation,
        path: &Arc<str>,
        offset: u64,
        length: u64,
    ) -> Option<Strike> {
        let number = self.counts.iter().sum();
        assert!(
            number < self.calls_max,
            "a simulated disk is called more often than it may be: something does not end"
        );
        self.counts[operation as usize] += 1;
        let mut strike = None;
        for armed in &mut self.faults {
            if armed.fault.calls.contains(operation) {
                // All of them count, the first that strikes wins.
                strike = strike.or(armed.strikes());
            }
        }
        if let Some(strike) = &mut strike
            && strike.failure.is_full()
            && !operation.takes_room()
        {
            strike.failure = Failure::Io;
        }
        self.struck += u64::from(strike.is_some());
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(Call {
            number,
            operation,
            path: Arc::clone(path),
            offset,
            length,
            failure: strike.map(|strike| strike.failure),
        });
        assert!(
            strike.is_none_or(|strike| strike.failure != Failure::Panic),
            "a simulated disk was asked to panic"
        );
        strike
    }

    /// A call that does nothing if it fails.
    fn plain_call(
        &mut self,
        operation: Operation,
        path: &Arc<str>,
        offset: u64,
        length: u64,
    ) -> io::Result<()> {
        match self.call(operation, path, offset, length) {
            Some(strike) => Err(strike.failure.error()),
            None => Ok(()),
        }
    }

    /// A new file that is durable.
    fn put(&mut self, path: &str, content: Vec<u8>) -> u64 {
        let node = self.add(Node::durable(content));
        let (parent, name) = split(path);
        self.directory(parent).put(name, node);
        node
    }

    fn add(&mut self, node: Node) -> u64 {
        self.next_node += 1;
        self.nodes.insert(self.next_node, node);
        self.next_node
    }

    fn used(&self) -> u64 {
        self.nodes.values().map(|node| node.live.len() as u64).sum()
    }

    /// How many bytes more there is room for.
    fn room(&self) -> u64 {
        let capacity = self.capacity.unwrap_or(u64::MAX);
        capacity.saturating_sub(self.used())
    }
}
