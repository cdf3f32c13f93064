//! A disk that is made up, for tests: it loses power, fails, fills up, lies and is damaged,
//! all of it as a seed says.
//!
//! ```
//! use countwheel_durable::store::simulated::{Disk, Fault};
//! use countwheel_durable::store::{Change, LogOptions, LogStore, MemorySorted, Shard, Store};
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

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use damage::Damage;
use fault::{Armed, Strike};
pub use fault::{Call, Calls, Failure, Fault, Operation};
pub use handle::Backend;
use handle::Handle;
use node::Node;

use super::Files;
use crate::random::Random;

/// So many of the last calls are remembered.
const REMEMBERED: usize = 64;

/// A simulated disk with directories and one power supply. Clones are the same disk,
/// [`copy`](Self::copy) makes another.
///
/// What is written is read at once and is durable after the sync of the file; which files a
/// directory has is durable after the sync of the directory. A directory is there as soon as
/// somebody speaks of it.
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
    directories: BTreeMap<String, Directory>,
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
}

#[derive(Clone, Default, Debug)]
struct Directory {
    names: BTreeMap<String, u64>,
    durable: BTreeMap<String, u64>,
    /// What became of names since the last sync of the directory, oldest first.
    unsynced: Vec<Entry>,
}

#[derive(Clone, Debug)]
enum Entry {
    Create { name: String, node: u64 },
    Rename { to: String, node: u64 },
    Remove { node: u64 },
}

impl Entry {
    /// A file has one name, whatever became of an entry before that gave it another.
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Create { name, node } => drop(names.insert(name.clone(), *node)),
            Self::Rename { to, node } => {
                names.retain(|_, named| named != node);
                names.insert(to.clone(), *node);
            }
            Self::Remove { node } => names.retain(|_, named| named != node),
        }
    }

    fn node(&self) -> u64 {
        match self {
            Self::Create { node, .. } | Self::Rename { node, .. } | Self::Remove { node } => *node,
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            nodes: BTreeMap::new(),
            next_node: 0,
            directories: BTreeMap::new(),
            process: 0,
            faults: Vec::new(),
            random: Random::new(0),
            nonces: Random::new(!0),
            counts: [0; Operation::ALL.len()],
            struck: 0,
            last: VecDeque::new(),
            capacity: None,
            ignores_syncs: false,
        }
    }
}

impl Disk {
    /// An empty disk. `seed` says what faults leave open, such as which part of a torn write is
    /// there; what survives a cut says the seed of the cut.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let disk = Self::default();
        let mut state = disk.lock();
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
        let process = self.lock().process;
        Arc::new(Handle::new(self.clone(), directory, process))
    }

    /// A file as redb wants one, for the process that there is now; empty if there is no such
    /// file. Its name is durable at once.
    ///
    /// ```
    /// use countwheel_durable::store::EmbeddedStore;
    /// use countwheel_durable::store::simulated::Disk;
    ///
    /// let disk = Disk::default();
    /// let store = EmbeddedStore::open_backend(disk.backend("timers"), 7)?;
    /// assert_eq!(disk.paths(), ["timers"]);
    /// # Ok::<(), countwheel_durable::store::StoreError>(())
    /// ```
    #[must_use]
    pub fn backend(&self, path: &str) -> Backend {
        let mut state = self.lock();
        let node = match state.find(path) {
            Some(node) => node,
            None => state.put(path, Vec::new()),
        };
        let process = state.process;
        drop(state);
        Backend::new(handle::File::new(self.clone(), path, node, process))
    }

    /// Plants a fault. Several may wait at a time; each counts for itself, from now on.
    pub fn fail(&self, fault: Fault) {
        self.lock().faults.push(Armed {
            fault,
            left: fault.after,
            struck: false,
        });
    }

    /// Forgets all faults: every call works again.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }

    /// How many calls have failed by a fault.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.lock().struck
    }

    /// How many such calls there were.
    #[must_use]
    pub fn calls(&self, calls: Calls) -> u64 {
        let state = self.lock();
        let counted = Operation::ALL.iter().zip(state.counts);
        counted
            .filter(|(operation, _)| calls.contains(**operation))
            .map(|(_, count)| count)
            .sum()
    }

    /// The last 64 calls, oldest first.
    #[must_use]
    pub fn last_calls(&self) -> Vec<Call> {
        self.lock().last.iter().cloned().collect()
    }

    /// The process ends and another begins, on a machine that goes on: what was written is
    /// there, the old handles are dead, and the faults are forgotten.
    pub fn restart(&self) {
        let mut state = self.lock();
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
        let mut state = self.lock();
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
        for node in self.lock().nodes.values_mut() {
            node.evict();
        }
    }

    /// A disk that lies: from now on its syncs do nothing, or again what they say. The negative
    /// control of a test of crashes.
    pub fn ignore_syncs(&self, ignores: bool) {
        self.lock().ignores_syncs = ignores;
    }

    /// How many bytes all files together may have; `None` for no limit. May be changed at any
    /// time.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity = bytes;
    }

    /// Whether there is a limit to how many bytes all files may have.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.lock().capacity.is_some()
    }

    /// How many bytes all files together have.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.lock().used()
    }

    /// Another disk with the same content, of what is durable and of what is not. It has no
    /// process, no faults and no calls yet.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut copy = self.lock().clone();
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
        let state = self.lock();
        let directories = state.directories.iter();
        directories
            .flat_map(|(path, directory)| directory.names.keys().map(|name| join(path, name)))
            .collect()
    }

    /// What can be read of a file; `None` if there is none.
    #[must_use]
    pub fn content(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.lock();
        let node = state.find(path)?;
        state.nodes.get(&node).map(|node| node.live.clone())
    }

    /// Gives a file this content, durably, or makes one with it. Nothing counts it as a call.
    pub fn set_content(&self, path: &str, content: Vec<u8>) {
        let mut state = self.lock();
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
        let mut state = self.lock();
        let Some(directory) = state.directories.get_mut(parent) else {
            return false;
        };
        directory.durable.remove(name);
        let removed = directory.names.remove(name).is_some();
        state.collect();
        removed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A call may panic where a test asked for it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Disk")
            .field("process", &state.process)
            .field("files", &state.nodes.len())
            .field("faults", &state.faults)
            .finish_non_exhaustive()
    }
}

impl Directory {
    fn cut(&mut self, random: &mut Random) {
        let unsynced = std::mem::take(&mut self.unsynced);
        // Most often in order, as a journal has it; sometimes any of them.
        let in_order = random.below(4) > 0;
        let kept = random.below(unsynced.len() as u64 + 1);
        for (index, entry) in (0..).zip(&unsynced) {
            let survives = if in_order {
                index < kept
            } else {
                random.below(2) == 0
            };
            if survives {
                entry.apply(&mut self.durable);
            }
        }
        self.names.clone_from(&self.durable);
    }

    fn change(&mut self, entry: Entry) {
        entry.apply(&mut self.names);
        self.unsynced.push(entry);
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
        self.counts[operation as usize] += 1;
        let mut strike = None;
        for armed in &mut self.faults {
            if armed.fault.calls.contains(operation) {
                // All of them count, the first that strikes wins.
                strike = strike.or(armed.strikes());
            }
        }
        if let Some(strike) = &mut strike
            && strike.failure == Failure::NoSpace
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

    fn find(&self, path: &str) -> Option<u64> {
        let (parent, name) = split(path);
        self.directories.get(parent)?.names.get(name).copied()
    }

    /// A new file that is durable.
    fn put(&mut self, path: &str, content: Vec<u8>) -> u64 {
        let node = self.add(Node::durable(content));
        let (parent, name) = split(path);
        let directory = self.directories.entry(parent.to_owned()).or_default();
        directory.names.insert(name.to_owned(), node);
        directory.durable.insert(name.to_owned(), node);
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

    /// Forgets the files that nobody can find any more.
    fn collect(&mut self) {
        let mut found = BTreeSet::new();
        for directory in self.directories.values() {
            found.extend(directory.names.values());
            found.extend(directory.durable.values());
            found.extend(directory.unsynced.iter().map(Entry::node));
        }
        self.nodes
            .retain(|number, node| node.opened > 0 || found.contains(number));
    }
}

/// The directory of a path, and the name in it.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn join(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_owned(),
        _ => format!("{directory}/{name}"),
    }
}
